"""Linear, Embedding, RMSNorm and the gated MLP as plain float32 layers."""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op


class Linear(nn.Module):
    """y = x W^T (+ bias): x [..., in_features] -> [..., out_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter((out_features, in_features), "float32")
        self.bias = nn.Parameter((out_features,), "float32") if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The product, as relax operators."""
        y = op.matmul(x, op.permute_dims(self.weight), out_dtype="float32")
        return y if self.bias is None else y + self.bias


class Embedding(nn.Module):
    """A table [vocab_size, features]: rows by token id, and the output head when it is tied."""

    def __init__(self, vocab_size: int, features: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.features = features
        self.weight = nn.Parameter((vocab_size, features), "float32")

    def forward(self, token_ids: Tensor) -> Tensor:
        """int32 [n] -> [n, features]."""
        return op.take(self.weight, token_ids, axis=0)

    def project(self, x: Tensor) -> Tensor:
        """X [..., features] -> logits [..., vocab_size]."""
        return op.matmul(x, op.permute_dims(self.weight), out_dtype="float32")


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter((features,), "float32")

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same shape."""
        return op.rms_norm(x, self.weight, axes=-1, epsilon=self.eps)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020), gate and up in one matrix product."""

    def __init__(self, features: int, hidden: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = Linear(features, 2 * hidden, bias)
        self.down_proj = Linear(hidden, features, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same shape."""
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(op.silu(gate) * up)


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of x [1, n, features] by int32 index [r] -> [1, r, features]."""
    # An index out of range is the nearest row: TVM's faster mode would read other memory.
    return op.wrap_nested(relax.op.take(x._expr, rows._expr, axis=1, mode="clip"), "take")
