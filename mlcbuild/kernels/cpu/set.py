"""The CPU kernel set: every kernel builder of one kernel variant behind one object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partialmethod

from tvm import tirx

from mlcbuild.kernels.cpu import (
    attention,
    elementwise,
    embedding,
    linear_dense,
    linear_int,
    norm,
    rope,
)
from mlcbuild.kernels.cpu import linear_int_float as linear_float
from mlcbuild.kernels.cpu import quantize as quantize_module
from mlcbuild.kernels.cpu.tiles import Tiles, default_tiles
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import Window


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """Builders of private, scheduled PrimFuncs for one CPU variant.

    Every method returns the same object for the same arguments. Kernels take their inputs first
    and their outputs last (destination passing); activations are float32 ``[n, K]`` with ``n``
    dynamic. ``G`` is the number of groups of 32 columns, ``Kp`` is ``K`` padded to 32, ``NB`` is
    the number of blocks of 16 weight rows. ``tiles`` are the tile sizes of linear kernels; None
    takes the defaults of kernel, size and instruction set. A row of a result never depends on
    ``n`` or on the row's index.
    """

    capabilities: Capabilities
    tiles: Tiles | None = None

    def _tiles(self, kernel: str, out_features: int) -> Tiles:
        return self.tiles or default_tiles(self.capabilities, kernel, out_features)

    def _dividing(self, *sizes: int) -> Capabilities:
        """The same device with the widest vectors, down to four lanes, that divide all sizes."""
        bits = self.capabilities.vector_bits
        while bits > 128 and any(size % (bits // 32) for size in sizes):
            bits //= 2
        return replace(self.capabilities, vector_bits=bits)

    def quantize_rows(self, in_features: int) -> tirx.PrimFunc:
        """``(x f32[n,K]) -> (xq i8[n,Kp], xs f32[n,G], xz i32[n,G])``: int8 activations."""
        return quantize_module.quantize_rows(self.capabilities, in_features)

    def _linear_int(
        self,
        bits: int,
        out_features: int,
        in_features: int,
        group_size: int,
        scale_dtype: str,
        zero_point: int,
        bias: bool = False,
        residual: bool = False,
    ) -> tirx.PrimFunc:
        """``(xq, xs, xz, w i32[NB,Kw*bits/32,16], s[NB,Kw/group,16], [bias], [residual]) -> y``.

        ``Kw`` is K padded to ``group_size``; bias is f32[O], residual and y are f32[n,O].
        """
        tiles = self._tiles(f"linear_int{bits}", out_features)
        numbers = (out_features, in_features, group_size, scale_dtype, zero_point)
        return linear_int.linear_int(self.capabilities, tiles, bits, *numbers, bias, residual)

    def _linear_int_float(
        self,
        bits: int,
        out_features: int,
        in_features: int,
        group_size: int,
        scale_dtype: str,
        zero_point: int,
        bias: bool = False,
        residual: bool = False,
    ) -> tirx.PrimFunc:
        """``(x f32[n,K], w, s, [bias], [residual]) -> y``: as _linear_int, float activations."""
        tiles = self._tiles(f"linear_int{bits}_float", out_features)
        numbers = (out_features, in_features, group_size, scale_dtype, zero_point)
        return linear_float.linear_int_float(
            self.capabilities, tiles, bits, *numbers, bias, residual
        )

    def _embedding_int(
        self,
        bits: int,
        vocab_size: int,
        hidden_size: int,
        group_size: int,
        scale_dtype: str,
        zero_point: int,
    ) -> tirx.PrimFunc:
        """``(ids i32[n], w i32[NB,Hw*bits/32,16], s[NB,Hw/group,16]) -> f32[n,H]``."""
        return embedding.embedding_int(
            self.capabilities, bits, vocab_size, hidden_size, group_size, scale_dtype, zero_point
        )

    linear_int3 = partialmethod(_linear_int, 3)
    linear_int4 = partialmethod(_linear_int, 4)
    linear_int8 = partialmethod(_linear_int, 8)
    linear_int3_float = partialmethod(_linear_int_float, 3)
    linear_int4_float = partialmethod(_linear_int_float, 4)
    linear_int8_float = partialmethod(_linear_int_float, 8)
    embedding_int3 = partialmethod(_embedding_int, 3)
    embedding_int4 = partialmethod(_embedding_int, 4)
    embedding_int8 = partialmethod(_embedding_int, 8)

    def linear_dense(
        self,
        out_features: int,
        in_features: int,
        weight_dtype: str,
        bias: bool = False,
        residual: bool = False,
    ) -> tirx.PrimFunc:
        """``(x f32[n,K], w[NB,K,16], [bias f32[O]], [residual f32[n,O]]) -> y f32[n,O]``."""
        return linear_dense.linear_dense(
            self.capabilities,
            self._tiles("linear_dense", out_features),
            out_features,
            in_features,
            weight_dtype,
            bias,
            residual,
        )

    def embedding_dense(
        self, vocab_size: int, hidden_size: int, weight_dtype: str
    ) -> tirx.PrimFunc:
        """``(ids i32[n], w[NB,H,16]) -> f32[n,H]``."""
        return embedding.embedding_dense(self.capabilities, vocab_size, hidden_size, weight_dtype)

    def rms_norm(self, hidden_size: int, eps: float) -> tirx.PrimFunc:
        """``(x f32[n,H], w f32[H]) -> y f32[n,H]``: ``x / sqrt(mean(x^2) + eps) * w``."""
        return norm.rms_norm(self.capabilities, hidden_size, eps)

    def rms_norm_quantize(self, hidden_size: int, eps: float) -> tirx.PrimFunc:
        """``(x f32[n,H], w f32[H]) -> (xq, xs, xz)``: rms_norm, then quantize_rows."""
        return norm.rms_norm_quantize(self.capabilities, hidden_size, eps)

    def silu_mul(self, intermediate_size: int) -> tirx.PrimFunc:
        """``(gate_up f32[n,2F]) -> f32[n,F]``: ``silu(gate) * up``, the gate first."""
        return elementwise.silu_mul(self.capabilities, intermediate_size)

    def silu_mul_quantize(self, intermediate_size: int) -> tirx.PrimFunc:
        """``(gate_up f32[n,2F]) -> (xq, xs, xz)``: silu_mul, then quantize_rows."""
        return elementwise.silu_mul_quantize(self.capabilities, intermediate_size)

    def add(self, width: int) -> tirx.PrimFunc:
        """``(a f32[n,K], b f32[n,K]) -> f32[n,K]``."""
        return elementwise.add(self.capabilities, width)

    def take_rows(self, width: int) -> tirx.PrimFunc:
        """``(x f32[n,K], index i32[r]) -> f32[r,K]``."""
        return elementwise.take_rows(self.capabilities, width)

    def rope_append(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        page_size: int,
        kv_dtype: str,
    ) -> tirx.PrimFunc:
        """``(qkv, positions, slots, rope_cos_sin, pages) -> q``: rotate, append keys and values.

        qkv is f32[n,(H+2KV)*D], positions and slots i32[n], rope_cos_sin f32[P,R], pages
        [np,2,KV,page*D] (changed in place), q f32[n,H*D]. With ``kv_dtype`` int8 the pages are
        two arguments over one memory: codes i8[np,page_bytes], scales f32[np,page_bytes/4].
        """
        return rope.rope_append(
            self.capabilities, heads, kv_heads, head_dim, rotary_dim, page_size, kv_dtype
        )

    def paged_attention(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        kv_dtype: str,
        scale: float,
        window: int = 0,
        sinks: int = 0,
    ) -> tirx.PrimFunc:
        """``(q, pages, positions, page_begin, page_values, [page_skip]) -> out``.

        q and out are f32[n,H*D], pages as for rope_append, positions and page_begin i32[n],
        page_values i32[nnz]. Row i attends to positions 0..positions[i] of its sequence; with a
        ``window`` to those below ``sinks`` and the last ``window`` ones, and page_skip i32[n]
        tells how many pages are missing in the row's page list behind the sink pages.
        """
        return attention.paged_attention(
            self._dividing(head_dim, page_size),
            heads,
            kv_heads,
            head_dim,
            page_size,
            kv_dtype,
            scale,
            Window(window, sinks),
        )


KERNELS = CpuKernels
