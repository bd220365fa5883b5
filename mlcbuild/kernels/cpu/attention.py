"""Causal attention over a paged key-value cache, one row of queries at a time."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu._builder import (
    Buffer,
    Expr,
    Registers,
    dynamic,
    f32,
    index,
    keep,
    kernel,
    load,
    local,
    splat,
    store,
)
from mlcbuild.kernels.cpu._kv_pages import KEY, VALUE, KvPages
from mlcbuild.kernels.cpu._vector import exp, horizontal_max, horizontal_sum, lanes_of, tree
from mlcbuild.kernels.cpu.tiles import largest_divisor
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.kv import KvPageShape, Window

# Below every score: the score of a position that a row must not see.
_HIDDEN = -1e30

# From so many rows on, most are a prompt's.
_MANY_ROWS = 32


class _Shown:
    """Which positions of one page a row sees, as a mask over its scores.

    ``visible``: positions up to the row's own; ``start``: position of the page's first token.
    """

    def __init__(
        self, lanes: int, window: Window, visible: Expr, position: Expr, start: Expr
    ) -> None:
        self._lanes = lanes
        self._window = window
        self._visible = T.bind(visible.astype("int32"))
        if window.size:
            low = position - index(window.size - 1) - start
            self._low = keep(low.astype("int32"))
            self._sinks = keep((index(window.sinks) - start).astype("int32"))

    def select(self, offset: int, shown: Expr, hidden: Expr) -> Expr:
        """``shown`` in the lanes of the page from ``offset`` on that are seen, else ``hidden``."""
        lanes = self._lanes
        at = T.Ramp(T.int32(offset), T.int32(1), lanes)
        if self._window.size:
            inside = at >= splat(self._low, lanes)
            if self._window.sinks:
                sink = T.Select(at < splat(self._sinks, lanes), shown, hidden)
            else:
                sink = hidden
            shown = keep(T.Select(inside, shown, sink))
        return T.Select(at < splat(self._visible, lanes), shown, hidden)


@cache
def paged_attention(
    capabilities: Capabilities,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    kv_dtype: str,
    scale: float,
    window: Window,
) -> tirx.PrimFunc:
    """``(q, pages, positions, page_begin, page_values, [page_skip]) -> out``.

    q and out are f32[n,H*D], pages as KvPages takes them, positions, page_begin and page_skip
    i32[n], page_values i32[nnz]. Row i attends to positions 0..positions[i], or to what the
    window shows of them; then only pages with such positions are touched. The softmax runs page
    by page with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for
    softmax", 2018); the output row holds the unnormalized sum until the last page. All heads of
    a kv head are done together, so that its keys and values are loaded and converted once.
    Scales of int8 pages are applied to scores and to weights, not to every element.
    """
    lanes = lanes_of(capabilities)
    if heads % kv_heads or head_dim % lanes or page_size % lanes:
        raise InternalError(
            f"attention of {heads}/{kv_heads} heads of {head_dim} in pages of {page_size}",
            why=f"head_dim and page_size must be multiples of {lanes}, heads of kv_heads",
        )
    group = heads // kv_heads
    page_vectors = page_size // lanes
    head_vectors = head_dim // lanes
    # Registers for accumulators: half of the register file leaves room for operands.
    registers = 16 if lanes == 16 else 8

    with kernel("paged_attention") as writer:
        n, nnz = dynamic("n"), dynamic("nnz")
        q = writer.arg("q", (n, heads * head_dim), "float32")
        pages = KvPages(writer, KvPageShape(kv_heads, head_dim, page_size, kv_dtype))
        positions = writer.arg("positions", (n,), "int32")
        page_begin = writer.arg("page_begin", (n,), "int32")
        page_values = writer.arg("page_values", (nnz,), "int32")
        page_skip = writer.arg("page_skip", (n,), "int32") if window.size else None
        out = writer.arg("out", (n, heads * head_dim), "float32")

        def head_start(kv_head: Expr, member: int) -> Expr:
            """Column where the head ``member`` of a kv head's group begins."""
            return (kv_head * index(group) + index(member)) * index(head_dim)

        def score_page(row: Expr, kv_head: Expr, page: Expr, members: range) -> list[list[Expr]]:
            """Scores of a page, [member][vector of positions], before masking."""
            # Few accumulators would wait for each other's latency: split the sum over d.
            splits = 1
            while splits * 2 * len(members) * page_vectors <= registers and splits < 4:
                splits *= 2
            cells = [(m, v, c) for m in members for v in range(page_vectors) for c in range(splits)]
            number = {cell: i for i, cell in enumerate(cells)}
            sums = Registers(len(cells), lanes)
            sums.clear()
            with T.serial(index(head_dim // splits)) as step:
                for split in range(splits):
                    d = step * index(splits) + index(split)
                    query = {m: load(q, row, head_start(kv_head, m) + d) for m in members}
                    for v in range(page_vectors):
                        at = d * index(page_size) + index(v * lanes)
                        key = pages.load(page, KEY, kv_head, at, lanes)
                        for m in members:
                            i = number[m, v, split]
                            sums.set(i, T.fma(splat(query[m], lanes), key, sums.get(i)))

            def total(m: int, v: int) -> Expr:
                parts = [sums.get(number[m, v, split]) for split in range(splits)]
                score = keep(tree(parts, lambda a, b: a + b) * f32(scale, lanes))
                return pages.scaled(score, page, KEY, kv_head, index(v * lanes), lanes)

            return [[total(m, v) for v in range(page_vectors)] for m in members]

        def attend(row: Expr, kv_head: Expr) -> None:
            position = T.bind(positions[row].astype("int64"))
            begin = T.bind(page_begin[row].astype("int64"))
            largest = local((group,))  # running maximum of the scores, per head
            weight = Registers(group, lanes)  # running sums of exp(score - maximum), by lane
            weight.clear()
            for m in range(group):
                store(largest, f32(_HIDDEN), index(m))
            with T.serial(index(group * head_vectors)) as v:
                at = head_start(kv_head, 0) + v * index(lanes)
                store(out, f32(0.0, lanes), row, at, lanes=lanes)

            def weigh_page(
                m: int, page: Expr, scores: list[Expr], shown: _Shown, into: Buffer
            ) -> None:
                """Store exp(score - maximum) of a head; a new maximum rescales what is there."""
                masked = [
                    keep(shown.select(v * lanes, score, f32(_HIDDEN, lanes)))
                    for v, score in enumerate(scores)
                ]
                old = load(largest, index(m))
                new = keep(T.max(old, horizontal_max(tree(masked, T.max), lanes)))
                with T.If(new > old), T.Then():
                    rescale = exp(splat(old - new, lanes), lanes)
                    store(largest, new, index(m))
                    weight.set(m, weight.get(m) * rescale)
                    with T.serial(index(head_vectors)) as v:
                        at = head_start(kv_head, m) + v * index(lanes)
                        kept = load(out, row, at, lanes=lanes) * rescale
                        store(out, kept, row, at, lanes=lanes)
                powers = [exp(score - splat(new, lanes), lanes) for score in masked]
                if window.size:  # hidden positions lie between visible ones: their values are read
                    nothing = f32(0.0, lanes)
                    powers = [
                        keep(shown.select(v * lanes, power, nothing))
                        for v, power in enumerate(powers)
                    ]
                for v, power in enumerate(powers):
                    at = index(v * lanes)
                    scaled = pages.scaled(power, page, VALUE, kv_head, at, lanes)
                    store(into, scaled, index(m), at, lanes=lanes)
                weight.set(m, weight.get(m) + tree(powers, lambda a, b: a + b))

            def add_values(page: Expr, visible: Expr, weights: Buffer) -> None:
                """Add a page's values to the output; no value beyond the visible ones is read."""
                members_at_once = min(group, registers)
                vectors_at_once = largest_divisor(head_vectors, registers // members_at_once)
                for low in range(0, group, members_at_once):
                    members = range(low, min(group, low + members_at_once))
                    with T.serial(index(head_vectors // vectors_at_once)) as tile:
                        start = tile * index(vectors_at_once * lanes)
                        add_value_tile(page, visible, weights, members, start, vectors_at_once)

            def add_value_tile(
                page: Expr,
                visible: Expr,
                weights: Buffer,
                members: range,
                start: Expr,
                vectors: int,
            ) -> None:
                cells = [(m, v) for m in members for v in range(vectors)]
                columns = [start + index(v * lanes) for v in range(vectors)]
                sums = Registers(len(cells), lanes)
                for i, (m, v) in enumerate(cells):
                    column = head_start(kv_head, m) + columns[v]
                    sums.set(i, load(out, row, column, lanes=lanes))
                with T.serial(visible) as j:
                    at = [j * index(head_dim) + column for column in columns]
                    values = [pages.load(page, VALUE, kv_head, a, lanes) for a in at]
                    for i, (m, v) in enumerate(cells):
                        weight_of_j = splat(load(weights, index(m), j), lanes)
                        sums.set(i, T.fma(weight_of_j, values[v], sums.get(i)))
                for i, (m, v) in enumerate(cells):
                    column = head_start(kv_head, m) + columns[v]
                    store(out, sums.get(i), row, column, lanes=lanes)

            def attend_page(page: Expr, logical: Expr) -> None:
                """Take in page number ``logical`` of the sequence, which lies in ``page``."""
                start = logical * index(page_size)
                visible = T.bind(T.min(position + index(1) - start, index(page_size)))
                shown = _Shown(lanes, window, visible, position, start)
                weights = local((group, page_size))
                at_once = max(1, registers // page_vectors)
                for low in range(0, group, at_once):
                    members = range(low, min(group, low + at_once))
                    scores = score_page(row, kv_head, page, members)
                    for m, member_scores in zip(members, scores, strict=False):
                        weigh_page(m, page, member_scores, shown, weights)
                add_values(page, visible, weights)

            pages_of_row = T.bind(position // index(page_size) + index(1))
            if page_skip is None:
                with T.serial(pages_of_row) as step, T.sblock("page"):
                    # Pages lie anywhere: no processor knows which one comes next. Rows of a prompt
                    # find them in the cache, from the row before.
                    with T.If(n < index(_MANY_ROWS)), T.Then():
                        following = T.min(step + index(1), pages_of_row - index(1))
                        upcoming = T.bind(page_values[begin + following].astype("int64"))
                        pages.prefetch(upcoming, KEY, kv_head)
                        pages.prefetch(upcoming, VALUE, kv_head)
                    attend_page(T.bind(page_values[begin + step].astype("int64")), step)
            else:
                # The sink pages, then those from the first position of the window on.
                sink_pages = index(window.sink_pages(page_size))
                skip = T.bind(page_skip[row].astype("int64"))
                oldest = T.max(position - index(window.size - 1), index(0)) // index(page_size)
                first = T.bind(T.max(oldest, sink_pages))
                in_front = T.bind(T.min(sink_pages, pages_of_row))
                count = in_front + T.max(pages_of_row - first, index(0))
                with T.serial(count) as step:
                    is_sink = step < in_front
                    logical = keep(T.Select(is_sink, step, first + step - in_front))
                    at = begin + logical - T.Select(is_sink, index(0), skip)
                    page = keep(page_values[at].astype("int64"))
                    with T.sblock("page"):
                        attend_page(page, logical)

            for m in range(group):
                inverse = splat(keep(f32(1.0) / horizontal_sum(weight.get(m), lanes)), lanes)
                with T.serial(index(head_vectors)) as v:
                    at = head_start(kv_head, m) + v * index(lanes)
                    store(out, load(out, row, at, lanes=lanes) * inverse, row, at, lanes=lanes)

        with T.parallel(n * index(kv_heads)) as task, T.sblock("row_and_kv_head"):
            # Later rows of a prompt see more positions: alternate from both ends, so that equal
            # shares of the tasks are equal shares of the work.
            turn = T.bind(task // index(kv_heads))
            early = T.bind(turn // index(2))
            row = T.bind(T.Select(turn % index(2) == index(0), early, n - index(1) - early))
            attend(row, task % index(kv_heads))
    return writer.func
