"""The pages of one layer as kernels see them: float elements, or int8 codes with scales."""

from __future__ import annotations

from collections.abc import Callable

from tvm.tirx.script import builder as T

from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    KernelWriter,
    dynamic,
    f32,
    for_columns,
    index,
    keep,
    load,
    local,
    prefetch,
    splat,
    store,
    vector_type,
)
from mlcbuild.kernels.cpu._floats import Floats
from mlcbuild.kernels.cpu._vector import horizontal_max
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import SCALE_BYTES, KvPageShape

KEY, VALUE = 0, 1

# Vectors whose largest value is below this are stored as zeros: 127 / absmax would overflow.
_TINY = 1e-30

_LINE_BYTES = 64


class KvPages:
    """The next arguments of a kernel: one tensor of pages, or codes and scales over one memory.

    Elements of a page are ``[2, kv_heads, page_size * head_dim]``, keys before values, a head's
    keys ``[head_dim, page_size]`` and its values ``[page_size, head_dim]``. An int8 page goes on
    with float32 scales ``[2, kv_heads, page_size]``, one for each key and each value; it is passed
    twice, as int8 ``[pages, page_bytes]`` and as float32 ``[pages, page_bytes / 4]``.
    """

    def __init__(
        self, writer: KernelWriter, shape: KvPageShape, capabilities: Capabilities
    ) -> None:
        self.shape = shape
        self._floats = Floats(capabilities)
        pool = dynamic("pages")
        self._per_head = shape.page_size * shape.head_dim
        if shape.is_quantized:
            self._elements: Buffer = writer.arg("pages", (pool, shape.page_bytes), "int8")
            columns = shape.page_bytes // SCALE_BYTES
            self._scales: Buffer = writer.arg("page_scales", (pool, columns), "float32")
        else:
            full = (pool, 2, shape.kv_heads, self._per_head)
            self._elements = writer.arg("pages", full, shape.dtype)

    def _place(self, page: Expr, kind: int, head: Expr, at: Expr) -> tuple[Expr, ...]:
        if not self.shape.is_quantized:
            return page, index(kind), head, at
        part = (index(kind * self.shape.kv_heads) + head) * index(self._per_head)
        return page, part + at

    def _scale_place(self, page: Expr, kind: int, head: Expr, offset: Expr) -> tuple[Expr, Expr]:
        first = self.shape.code_bytes // SCALE_BYTES + kind * self.shape.kv_heads * (
            self.shape.page_size
        )
        return page, index(first) + head * index(self.shape.page_size) + offset

    def load(self, page: Expr, kind: int, head: Expr, at: Expr, lanes: int) -> Expr:
        """``lanes`` neighbours of a head's keys or values as float32, not yet scaled."""
        return self._floats.load(self._elements, *self._place(page, kind, head, at), lanes=lanes)

    def prefetch(self, page: Expr, kind: int, head: Expr) -> None:
        """Ask for a head's keys or values of a page."""
        per_line = _LINE_BYTES // self.shape.item_bytes
        with T.serial(index(-(-self._per_head // per_line))) as line:
            at = line * index(per_line)
            prefetch(self._elements, *self._place(page, kind, head, at))

    def scaled(
        self, value: Expr, page: Expr, kind: int, head: Expr, offset: Expr, lanes: int
    ) -> Expr:
        """What belongs to ``lanes`` tokens from ``offset`` on, times their scales if there are."""
        if not self.shape.is_quantized:
            return value
        where = self._scale_place(page, kind, head, offset)
        return keep(value * load(self._scales, *where, lanes=lanes))

    def append(
        self,
        page: Expr,
        head: Expr,
        offset: Expr,
        key: Buffer,
        value_at: Callable[[Expr, int], Expr],
        lanes: int,
    ) -> None:
        """Store one token of a head: ``key`` float32 [head_dim], values by column and width."""
        head_dim, page_size = self.shape.head_dim, self.shape.page_size
        dtype = self.shape.dtype

        def key_at(column: Expr, width: int) -> Expr:
            return load(key, column, lanes=width)

        key_inverse = self._store_scale(page, KEY, head, offset, key_at, lanes)
        value_inverse = self._store_scale(page, VALUE, head, offset, value_at, lanes)

        def encode(value: Expr, inverse: Expr | None, width: int) -> Expr:
            if inverse is not None:
                value = T.nearbyint(value * splat(inverse, width))
                value = value.astype(vector_type("int32", width))
            return self._floats.narrow(value, dtype, width)

        with T.serial(index(head_dim)) as d:
            where = self._place(page, KEY, head, d * index(page_size) + offset)
            store(self._elements, encode(key_at(d, 1), key_inverse, 1), *where)

        def store_value(column: Expr, width: int) -> None:
            where = self._place(page, VALUE, head, offset * index(head_dim) + column)
            code = encode(value_at(column, width), value_inverse, width)
            store(self._elements, code, *where, lanes=width)

        for_columns(head_dim, lanes, store_value)

    def _store_scale(
        self,
        page: Expr,
        kind: int,
        head: Expr,
        offset: Expr,
        value_at: Callable[[Expr, int], Expr],
        lanes: int,
    ) -> Expr | None:
        """Store max |value| / 127 of a token; gives what to multiply its values with."""
        if not self.shape.is_quantized:
            return None
        cell = local((1,))
        store(cell, f32(0.0), index(0))

        def widen(column: Expr, width: int) -> None:
            absolute = keep(T.fabs(value_at(column, width)))
            store(cell, T.max(load(cell, index(0)), horizontal_max(absolute, width)), index(0))

        for_columns(self.shape.head_dim, lanes, widen)
        absmax = load(cell, index(0))
        usable = absmax > f32(_TINY)
        scale = T.Select(usable, absmax / f32(127.0), f32(0.0))
        store(self._scales, scale, *self._scale_place(page, kind, head, offset))
        return keep(T.Select(usable, f32(127.0) / absmax, f32(0.0)))
