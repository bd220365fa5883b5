"""How many bytes and operations the kernels of a step take, from the bundle's execution plan."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlcbuild.errors import VerificationError
from mlcbuild.passes.plan_expression import evaluate
from mlcbuild.spec.kv import SCALE_BYTES, Window

_ITEM_BYTES = {
    **dict.fromkeys(("float64", "int64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
}


@dataclass(frozen=True, slots=True)
class Run:
    """``rows`` tokens of one sequence in a step, the first of them at position ``start``."""

    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward step: the runs of its sequences, and how many rows get logits."""

    runs: tuple[Run, ...]
    logit_rows: int

    @property
    def rows(self) -> int:
        """Token rows in all."""
        return sum(run.rows for run in self.runs)


@dataclass(frozen=True, slots=True)
class Work:
    """Calls, bytes read and written, operations; a multiply-add is two operations."""

    calls: int = 0
    bytes: int = 0
    float_ops: int = 0
    int8_ops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.calls + other.calls,
            self.bytes + other.bytes,
            self.float_ops + other.float_ops,
            self.int8_ops + other.int8_ops,
        )

    def times(self, count: int) -> Work:
        """The work of ``count`` calls like this."""
        return Work(
            self.calls * count, self.bytes * count, self.float_ops * count, self.int8_ops * count
        )


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as a kernel sees it; ``table``: the name of a meta table, else empty."""

    kind: str
    table: str
    dtype: str
    shape: tuple[tuple[int | str, ...], ...]  # expressions


@dataclass(frozen=True, slots=True)
class _Form:
    """A kernel and the tensors of a call, each once, in order: what its work depends on."""

    kernel: str
    tensors: tuple[_Tensor, ...]


class PlanWork:
    """The work of a plan's kernels. What a kernel does is told by the tensors that it is given.

    - the page table and the pages: attention. Every page that a sequence sees is read once a step;
      a row at position p takes 4 * heads * head_dim operations for each position that it sees.
    - slots and pages: writes the keys and values of the rows.
    - an input that holds row numbers: reads those rows of its tables and no others.
    - a matrix of the params ``[out, in]``, or packed as ``[out / lanes, ..., lanes]``: a linear
      layer, 2 * rows * in * out operations, on int8 if its activations are.
    - anything else: reads and writes its tensors once; operations are not counted.

    Every tensor counts once, whatever cache it is found in; of the rope table, the rows in use.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan
        kv = plan["kv"]
        self._kv = kv
        self._window = Window(int(kv.get("window", 0)), int(kv.get("sinks", 0)))
        self._params = [str(param["name"]) for param in plan["params"]]

    @classmethod
    def read(cls, path: Path) -> PlanWork:
        """The plan file at ``path`` (docs/formats.md)."""
        try:
            return cls(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError) as error:
            raise VerificationError(
                "the bundle's plan does not read", where=str(path), why=repr(error)
            ) from None

    @cached_property
    def _functions(self) -> list[tuple[list[str], dict[_Form, int]]]:
        """Each function's variables and the forms of its calls with how often they occur."""
        found = []
        for function in self._plan["functions"]:
            forms: dict[_Form, int] = {}
            for kernel, arguments in function["calls"]:
                numbers = dict.fromkeys(int(ref) for kind, ref in arguments if kind == "t")
                tensors = [function["tensors"][number] for number in numbers]
                form = _Form(self._plan["kernels"][kernel], self._tensors(function, tensors))
                forms[form] = forms.get(form, 0) + 1
            found.append(([str(name) for name in function["vars"]], forms))
        return found

    @staticmethod
    def _tensors(function: Mapping[str, Any], tensors: Iterable[Any]) -> tuple[_Tensor, ...]:
        seen = []
        for kind, ref, _, dtype, shape in tensors:
            dims = tuple(tuple(function["exprs"][number]) for number in shape)
            seen.append(_Tensor(kind, str(ref) if kind == "meta" else "", dtype, dims))
        return tuple(seen)

    @cached_property
    def weights(self) -> dict[str, list[str]]:
        """Short names of the params that each kernel reads: ``{"linear": ["qkv_proj"], ...}``."""
        found: dict[str, list[str]] = {}
        for function in self._plan["functions"]:
            for kernel, arguments in function["calls"]:
                names = found.setdefault(self._plan["kernels"][kernel], [])
                for number in (int(ref) for kind, ref in arguments if kind == "t"):
                    kind, ref = function["tensors"][number][:2]
                    name = _short_name(self._params[ref]) if kind == "param" else ""
                    if name and name not in names:
                        names.append(name)
        return found

    def step(self, step: Step) -> dict[str, Work]:
        """The work of each kernel in one step, in which every function of the plan runs once."""
        values = {
            **self._plan["bounds"],
            "seq_len": step.rows,
            "logit_rows": step.logit_rows,
            "kv_nnz": sum(self._pages_seen(run) for run in step.runs),
        }
        found: dict[str, Work] = {}
        for names, forms in self._functions:
            numbered = {number: int(values[name]) for number, name in enumerate(names)}
            for form, count in forms.items():
                work = self._call(form, numbered, step).times(count)
                found[form.kernel] = found.get(form.kernel, Work()) + work
        return found

    def steps(self, steps: Iterable[Step]) -> dict[str, Work]:
        """The work of each kernel in all ``steps``."""
        counts: dict[Step, int] = {}
        for step in steps:
            counts[step] = counts.get(step, 0) + 1
        found: dict[str, Work] = {}
        for step, count in counts.items():
            for kernel, work in self.step(step).items():
                found[kernel] = found.get(kernel, Work()) + work.times(count)
        return found

    def _call(self, form: _Form, values: Mapping[int, int], step: Step) -> Work:
        tensors = [
            (tensor, tuple(evaluate(expression, values) for expression in tensor.shape))
            for tensor in form.tensors
        ]
        tables = {tensor.table for tensor in form.tensors}
        has_pages = any(tensor.kind == "kv" for tensor in form.tensors)
        attends = has_pages and "page_values" in tables
        appends = has_pages and "slots" in tables
        row_numbers = [shape[0] for tensor, shape in tensors if _is_row_numbers(tensor, shape)]
        moved = 0
        for number, (tensor, shape) in enumerate(tensors):
            size = math.prod(shape) * _ITEM_BYTES[tensor.dtype]
            is_output = number == len(tensors) - 1
            if tensor.kind == "kv":
                continue
            if tensor.table == "rope_cos_sin":
                size = step.rows * shape[-1] * _ITEM_BYTES[tensor.dtype]
            elif row_numbers and not is_output and not _is_row_numbers(tensor, shape):
                rows = _table_rows(tensor, shape)
                size = size * min(row_numbers[0], rows) // rows if rows else 0
            moved += size
        if appends:
            moved += step.rows * self._token_bytes
        if attends:
            moved += sum(self._pages_seen(run) for run in step.runs) * int(self._kv["page_bytes"])
            width = tensors[-1][1][-1]
            seen = sum(self._positions_seen(run) for run in step.runs)
            return Work(1, moved, float_ops=4 * width * seen)
        products = 0 if row_numbers or has_pages else _multiply_adds(tensors)
        if tensors[0][0].dtype == "int8":
            return Work(1, moved, int8_ops=2 * products)
        return Work(1, moved, float_ops=2 * products)

    @property
    def _token_bytes(self) -> int:
        """Bytes of one token's key and value in one layer."""
        heads, dim, dtype = int(self._kv["kv_heads"]), int(self._kv["head_dim"]), self._kv["dtype"]
        scale = SCALE_BYTES if dtype == "int8" else 0
        return 2 * heads * (dim * _ITEM_BYTES[dtype] + scale)

    def _positions_seen(self, run: Run) -> int:
        """Positions that the rows of a run attend to, added up."""
        total = 0
        for position in range(run.start, run.start + run.rows):
            seen = position + 1
            if self._window.size:
                behind = max(0, seen - self._window.size)
                seen = seen - behind + min(behind, self._window.sinks)
            total += seen
        return total

    def _pages_seen(self, run: Run) -> int:
        """Pages of a sequence that some row of a run attends to."""
        size = int(self._kv["page_size"])
        end = run.start + run.rows
        pages = -(-end // size)
        if self._window.size:
            first = max(0, run.start + 1 - self._window.size) // size
            pages -= max(0, first - self._window.sink_pages(size))
        return pages


def _short_name(param: str) -> str:
    """``model.layers.0.mlp.down_proj.q_weight`` as ``down_proj``."""
    return param.rpartition(".")[0].rpartition(".")[2] or param


def _is_row_numbers(tensor: _Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor tells a kernel which rows to take: token ids, positions of logits."""
    return tensor.kind == "input" and tensor.dtype == "int32" and len(shape) == 1


def _table_rows(tensor: _Tensor, shape: Sequence[int]) -> int:
    """Rows of a table ``[..., row, column]``, or of a param packed ``[block, column, lane]``."""
    if tensor.kind == "param" and len(shape) == 3:
        return shape[0] * shape[2]
    return math.prod(shape[:-1])


def _multiply_adds(tensors: Sequence[tuple[_Tensor, tuple[int, ...]]]) -> int:
    """Multiply-adds of a linear layer; 0 for what is none.

    Rows and columns are those of activations and output; the weight must have as many outputs,
    rounded up to whole blocks.
    """
    columns, *_ = tensors[0][1][-1:] or (0,)
    *rows, outputs = tensors[-1][1]
    for tensor, shape in tensors:
        if tensor.kind != "param" or len(shape) < 2:
            continue
        blocks, lanes = (shape[0], shape[2]) if len(shape) == 3 else (shape[0], 1)
        if (blocks - 1) * lanes < outputs <= blocks * lanes:
            return math.prod(rows) * outputs * columns
    return 0
