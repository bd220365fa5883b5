"""Attention over the paged key-value cache; positions and pages are the runtime's business."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from mlcbuild.nn.layers import Linear

ATTENTION_CALL = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"


class Attention(nn.Module):
    """Grouped-query attention: x [b, n, hidden] -> [b, n, hidden]; rotary embedding inside."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        qkv_bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.qkv_proj = Linear(hidden, (heads + 2 * kv_heads) * head_dim, qkv_bias)
        self.o_proj = Linear(heads * head_dim, hidden, out_bias)

    def forward(self, x: Tensor, kv: PagedKVCache, layer: int) -> Tensor:
        """Attends to everything of the same sequence up to each row's own position."""
        batch, rows, _ = x.shape
        total = self.heads + 2 * self.kv_heads
        qkv = op.reshape(self.qkv_proj(x), (batch, rows, total, self.head_dim))
        out = kv.attention_with_fused_qkv(layer, qkv, self.heads, self.head_dim**-0.5)
        return self.o_proj(op.reshape(out, (batch, rows, self.heads * self.head_dim)))
