"""Rewrites a model's layers to weights as rows of codes or floats, the form that GPUs read.

A layer is a tensor expression here: the schedules of a device come later, and fusion can take in
what stands before and behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlcbuild.kernels.webgpu.linear import DEQUANTIZE, MATRIX_ATTRIBUTE, PRODUCT, has_codes
from mlcbuild.nn.layers import Embedding, GatedMLP, Linear
from mlcbuild.spec.layout import padded
from mlcbuild.spec.scheme import QuantScheme


@dataclass(frozen=True)
class RowPacking:
    """Layers that read the target-independent form of ``scheme``'s weights.

    Integer schemes: ``q_weight`` uint32 [rows, padded columns * bits / 32], the first code in the
    lowest bits, and ``q_scale`` [rows, padded columns / group_size]; others: ``weight`` as it is.
    Whatever a weight is multiplied with is float32, and so are the sums.
    """

    scheme: QuantScheme

    def linear(self, layer: Linear) -> nn.Module:
        """The layer over rows of weights."""
        return RowLinear(layer, self.scheme)

    def embedding(self, layer: Embedding) -> nn.Module:
        """The table over rows of weights."""
        return RowEmbedding(layer, self.scheme)

    def gated(self, layer: GatedMLP) -> nn.Module | None:
        """The gated MLP over rows of weights; in parts where no kernel makes both halves."""
        if self.scheme.is_integer and not has_codes(self.scheme.bits, self.scheme.group_size):
            return None
        return RowGatedMLP(layer, self.scheme)


class _RowMatrix(nn.Module):
    """A weight matrix [out_features, in_features] as rows."""

    def __init__(self, out_features: int, in_features: int, scheme: QuantScheme) -> None:
        super().__init__()
        self.out_features = out_features
        self.in_features = in_features
        self.scheme = scheme
        if scheme.is_integer:
            group = scheme.group_size or 1
            columns = padded(in_features, group)
            words = columns * (scheme.bits or 0) // 32
            self.q_weight = nn.Parameter((out_features, words), "uint32")
            self.q_scale = nn.Parameter((out_features, columns // group), scheme.scale_dtype)
        else:
            self.weight = nn.Parameter((out_features, in_features), scheme.weight_dtype)

    def _weights(self) -> list[Tensor]:
        if self.scheme.is_integer:
            return [self.q_weight, self.q_scale]
        return [self.weight]

    def _value(self, weights: tuple[Any, ...], row: Any, column: Any) -> Any:
        """The float32 weight at ``row``, ``column``."""
        if not self.scheme.is_integer:
            return weights[0][row, column].astype("float32")
        words, scales = weights
        bits, group = self.scheme.bits or 0, self.scheme.group_size or 1
        per_word = 32 // bits
        shift = (column % per_word * bits).astype("uint32")
        mask = tirx.const((1 << bits) - 1, "uint32")
        code = tirx.bitwise_and(tirx.shift_right(words[row, column // per_word], shift), mask)
        # An int32 on the way: shaders have no direct conversion that all back ends do well.
        centered = code.astype("int32") - tirx.const(self.scheme.zero_point or 0, "int32")
        return centered.astype("float32") * scales[row, column // group].astype("float32")

    def multiply(self, x: Tensor) -> Tensor:
        """X [b, n, in_features] -> float32 [b, n, out_features]."""
        return op.tensor_expr_op(self._product, "linear", [x, *self._weights()])

    def _product(self, x: te.Tensor, *weights: te.Tensor) -> te.Tensor:
        scheme = self.scheme
        codes = [scheme.bits, scheme.group_size, scheme.zero_point]
        matrix = te.compute(
            (self.out_features, self.in_features),
            lambda row, column: self._value(weights, row, column),
            name=DEQUANTIZE,
            attrs={MATRIX_ATTRIBUTE: codes} if scheme.is_integer else None,
        )
        column = te.reduce_axis((0, self.in_features), name="k")
        return te.compute(
            (*x.shape[:-1], self.out_features),
            lambda *i: te.sum(
                x(*i[:-1], column).astype("float32") * matrix[i[-1], column], axis=column
            ),
            name=PRODUCT,
        )

    def take(self, token_ids: Tensor) -> Tensor:
        """Rows by int32 id [n] -> float32 [n, in_features]."""

        def rows(ids: te.Tensor, *weights: te.Tensor) -> te.Tensor:
            return te.compute(
                (ids.shape[0], self.in_features),
                lambda i, column: self._value(weights, ids[i], column),
                name="take",
            )

        return op.tensor_expr_op(rows, "embedding", [token_ids, *self._weights()])


class RowLinear(_RowMatrix):
    """``Linear`` over rows of weights."""

    def __init__(self, linear: Linear, scheme: QuantScheme) -> None:
        super().__init__(linear.out_features, linear.in_features, scheme)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[b, n, in_features] -> [b, n, out_features]."""
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias

    def gate(self, x: Tensor) -> Tensor:
        """``silu(first half) * second half``: [b, n, in] -> float32 [b, n, out / 2]."""
        half = self.out_features // 2
        bias = [] if self.bias is None else [self.bias]

        def gated(x: te.Tensor, *rest: te.Tensor) -> te.Tensor:
            product = self._product(x, *rest[: len(rest) - len(bias)])

            def value(rows: tuple[Any, ...], column: Any) -> Any:
                at = product(*rows, column)
                return at + rest[-1][column] if bias else at

            def element(*i: Any) -> Any:
                gate = value(i[:-1], i[-1])
                return gate * tirx.sigmoid(gate) * value(i[:-1], i[-1] + half)

            return te.compute((*x.shape[:-1], half), element, name="gate")

        return op.tensor_expr_op(gated, "gated_linear", [x, *self._weights(), *bias])


class RowGatedMLP(nn.Module):
    """``GatedMLP`` over rows of weights: one kernel makes both halves and multiplies them."""

    def __init__(self, mlp: GatedMLP, scheme: QuantScheme) -> None:
        super().__init__()
        self.gate_up_proj = RowLinear(mlp.gate_up_proj, scheme)
        self.down_proj = RowLinear(mlp.down_proj, scheme)

    def forward(self, x: Tensor) -> Tensor:
        """[b, n, features] -> the same shape."""
        return self.down_proj(self.gate_up_proj.gate(x))


class RowEmbedding(_RowMatrix):
    """``Embedding`` over rows of weights, shared with the head when it is tied."""

    def __init__(self, embedding: Embedding, scheme: QuantScheme) -> None:
        super().__init__(embedding.vocab_size, embedding.features, scheme)

    def forward(self, token_ids: Tensor) -> Tensor:
        """int32 [n] -> [n, features]."""
        return self.take(token_ids)

    def project(self, x: Tensor) -> Tensor:
        """[b, n, features] -> logits [b, n, vocab_size]."""
        return self.multiply(x)
