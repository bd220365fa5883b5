"""Rewrites a model's layers by type so that they hold packed weights and call kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlcbuild.errors import InternalError
from mlcbuild.kernels.tagged import tagged
from mlcbuild.nn.layers import Embedding, GatedMLP, Linear
from mlcbuild.spec.layout import Layout, padded
from mlcbuild.spec.scheme import QuantScheme

ACTIVATION_GROUP = 32  # columns that share one scale when activations are quantized to int8


@dataclass(frozen=True)
class Packing:
    """How the layers of one kernel variant are rewritten.

    ``kernels`` is the kernel set of the variant; ``activations`` is "int8" (quantized at run time
    per group of 32, integer schemes only) or "float".
    """

    scheme: QuantScheme
    layout: Layout
    kernels: Any
    activations: str

    def linear(self, layer: Linear) -> nn.Module:
        """The layer over a packed weight."""
        return PackedLinear(layer, self)

    def embedding(self, layer: Embedding) -> nn.Module:
        """The layer over a packed table."""
        return PackedEmbedding(layer, self)

    def gated(self, layer: GatedMLP) -> None:
        """Nothing: the kernels take a gated MLP in its parts."""


class LayerPacking(Protocol):
    """A way to hold the weights of a scheme."""

    @property
    def scheme(self) -> QuantScheme:
        """Which numbers are stored."""

    def linear(self, layer: Linear) -> nn.Module:
        """What takes the place of ``layer``."""

    def embedding(self, layer: Embedding) -> nn.Module:
        """What takes the place of ``layer``."""

    def gated(self, layer: GatedMLP) -> nn.Module | None:
        """What takes the place of ``layer``; None if its parts are replaced one by one."""


def _placeholder(shape: tuple[Any, ...], dtype: str) -> Tensor:
    return Tensor.placeholder(shape, dtype)


def _as_rows(x: Tensor, columns: int) -> tuple[Tensor, Any]:
    """X [1, n, columns] or [b, 1, columns] as [rows, columns]."""
    batch, length, _ = x.shape
    one = isinstance(batch, int) and batch == 1
    rows = length if one else batch if isinstance(length, int) and length == 1 else batch * length
    return op.reshape(x, (rows, columns)), rows


class _PackedMatrix(nn.Module):
    """A weight matrix [out_features, in_features] in its packed layout."""

    def __init__(self, out_features: int, in_features: int, packing: Packing) -> None:
        super().__init__()
        self.out_features = out_features
        self.in_features = in_features
        self.packing = packing
        scheme, lanes = packing.scheme, packing.layout.lanes
        blocks = padded(out_features, lanes) // lanes
        if scheme.is_integer:
            group = scheme.group_size or 0
            columns = padded(in_features, group)
            self.q_weight = nn.Parameter(
                (blocks, columns * (scheme.bits or 0) // 32, lanes), "int32"
            )
            self.q_scale = nn.Parameter((blocks, columns // group, lanes), scheme.scale_dtype)
        else:
            self.weight = nn.Parameter((blocks, in_features, lanes), scheme.weight_dtype)

    def _kernel_args(self) -> dict[str, Any]:
        scheme = self.packing.scheme
        if scheme.is_integer:
            return {
                "group_size": scheme.group_size,
                "scale_dtype": scheme.scale_dtype,
                "zero_point": scheme.zero_point,
            }
        return {"weight_dtype": scheme.weight_dtype}

    def _weights(self) -> list[Tensor]:
        if self.packing.scheme.is_integer:
            return [self.q_weight, self.q_scale]
        return [self.weight]

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """X [b, n, in_features] -> float32 [b, n, out_features]."""
        batch, length, _ = x.shape
        rows, count = _as_rows(x, self.in_features)
        scheme, kernels = self.packing.scheme, self.packing.kernels
        integer = scheme.is_integer
        args: dict[str, Any] = {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "bias": bias is not None,
            "residual": False,
            **self._kernel_args(),
        }
        if integer and self.packing.activations == "int8":
            inputs = self._quantize_activations(rows, count)
            func = tagged(kernels, f"linear_int{scheme.bits}", **args)
        else:
            inputs = [rows]
            builder = f"linear_int{scheme.bits}_float" if integer else "linear_dense"
            func = tagged(kernels, builder, **args)
        inputs += self._weights() + ([] if bias is None else [bias])
        out = _placeholder((count, self.out_features), "float32")
        y = op.tensor_ir_op(func, "linear", args=inputs, out=out)
        return op.reshape(y, (batch, length, self.out_features))

    def _quantize_activations(self, rows: Tensor, count: Any) -> list[Tensor]:
        columns = padded(self.in_features, ACTIVATION_GROUP)
        groups = columns // ACTIVATION_GROUP
        outs = [
            _placeholder((count, columns), "int8"),
            _placeholder((count, groups), "float32"),
            _placeholder((count, groups), "int32"),
        ]
        func = tagged(self.packing.kernels, "quantize_rows", in_features=self.in_features)
        return list(op.tensor_ir_op(func, "quantize_rows", args=[rows], out=outs))

    def take(self, token_ids: Tensor) -> Tensor:
        """Rows by int32 id [n] -> float32 [n, in_features]."""
        scheme = self.packing.scheme
        func = tagged(
            self.packing.kernels,
            f"embedding_int{scheme.bits}" if scheme.is_integer else "embedding_dense",
            vocab_size=self.out_features,
            hidden_size=self.in_features,
            **self._kernel_args(),
        )
        out = _placeholder((token_ids.shape[0], self.in_features), "float32")
        return op.tensor_ir_op(func, "embedding", args=[token_ids, *self._weights()], out=out)


class PackedLinear(_PackedMatrix):
    """``Linear`` over a packed weight."""

    def __init__(self, linear: Linear, packing: Packing) -> None:
        super().__init__(linear.out_features, linear.in_features, packing)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[b, n, in_features] -> [b, n, out_features]."""
        return self.multiply(x, self.bias)


class PackedEmbedding(_PackedMatrix):
    """``Embedding`` over a packed table, shared with the head when it is tied."""

    def __init__(self, embedding: Embedding, packing: Packing) -> None:
        super().__init__(embedding.vocab_size, embedding.features, packing)

    def forward(self, token_ids: Tensor) -> Tensor:
        """int32 [n] -> [n, features]."""
        return self.take(token_ids)

    def project(self, x: Tensor) -> Tensor:
        """[b, n, features] -> logits [b, n, vocab_size]."""
        return self.multiply(x, None)


def rewrite_layers(module: nn.Module, packing: LayerPacking) -> int:
    """Replaces every Linear and Embedding below ``module`` in place; returns how many."""
    if not (packing.scheme.quantize_embedding and packing.scheme.quantize_lm_head):
        raise InternalError(
            f"scheme {packing.scheme.name} leaves layers out, which is not built yet"
        )
    count = 0
    children: list[tuple[Any, Any, Any]] = []
    if isinstance(module, nn.ModuleList):
        children = [(module.modules, index, child) for index, child in enumerate(module.modules)]
    else:
        children = [(vars(module), name, child) for name, child in vars(module).items()]
    for holder, key, child in children:
        if isinstance(child, Linear):
            holder[key] = packing.linear(child)
        elif isinstance(child, Embedding):
            holder[key] = packing.embedding(child)
        elif isinstance(child, GatedMLP) and (whole := packing.gated(child)) is not None:
            holder[key] = whole
            count += 1  # two layers
        elif isinstance(child, nn.Module | nn.ModuleList):
            count += rewrite_layers(child, packing)
            continue
        else:
            continue
        count += 1
    return count
