"""Puts kernels of our own where a module multiplies with rows of weights.

The layers are tensor expressions (``quant.row_layers``), fused by now with what follows them:
``dequantize``, ``NT_matmul``, elementwise blocks. What a kernel stores is read from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from mlcbuild.kernels.webgpu.builder import Buffer, Expr, dynamic, store
from mlcbuild.kernels.webgpu.linear import (
    DEQUANTIZE,
    MATRIX_ATTRIBUTE,
    PRODUCT,
    Argument,
    LinearProblem,
    RowMatrix,
    has_codes,
)
from mlcbuild.kernels.webgpu.linear_row import linear_row
from mlcbuild.kernels.webgpu.linear_tiles import linear_tiles

_GENERIC = "mlcbuild.generic"


class Unsupported(Exception):
    """Why a product has no kernel of ours."""


def is_linear(func: Any) -> bool:
    """Whether a function multiplies with rows of weights."""
    if not isinstance(func, tirx.PrimFunc) or "tirx.is_scheduled" in (func.attrs or {}):
        return False
    return any(block.name_hint == PRODUCT for block in _blocks(func))


def linear_kernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel for a fused product; raises Unsupported for a form it has none for."""
    problem = _Reader(func).problem()
    one = isinstance(problem.rows, int) and problem.rows == 1
    return linear_row(problem) if one else linear_tiles(problem)


def schedule_linear(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels of our own; products that have none say why in an attribute."""
    out = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for gvar, func in mod.functions.items():
        if is_linear(func):
            try:
                out[gvar] = linear_kernel(func)
            except Unsupported as error:
                out[gvar] = func.with_attr(_GENERIC, str(error))
    return out


def generic_products(mod: tvm.IRModule) -> dict[str, str]:
    """The products that have the generic schedule, by name, and why."""
    return {
        gvar.name_hint: str(func.attrs[_GENERIC])
        for gvar, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and func.attrs and _GENERIC in func.attrs
    }


def _blocks(func: tirx.PrimFunc) -> list[Any]:
    """The blocks of a function in order, without the root."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if type(node).__name__ == "SBlock" and node.iter_vars:
            found.append(node)

    tvm_ffi.structural_walk(func.body, (object, visit), order="pre")
    return found


class _Reader:
    """Reads the problem from a function."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._params = list(func.params)
        self._blocks = {block.name_hint: block for block in _blocks(func)}
        self._sizes: dict[str, Expr] = {}
        self._product = self._blocks[PRODUCT]
        self._writers = {
            block.body.buffer: block
            for block in self._blocks.values()
            if block is not self._product
        }

    def problem(self) -> LinearProblem:
        """The problem, if it has the form that the layers make."""
        matrix_buffer = self._product.reads[1].source
        dequantize = self._blocks.get(DEQUANTIZE)
        if dequantize is None or dequantize.body.buffer != matrix_buffer:
            raise Unsupported("the weights are not dequantized in it")
        weights = [self._place(region.source) for region in dequantize.reads]
        matrix = _matrix(dequantize, [self._params[place].ty for place in weights])
        x = self._place(self._product.reads[0].source)
        arguments = tuple(
            Argument(str(param.name), self._shape(param.ty.shape), str(param.ty.dtype))
            for param in self._params
        )
        if len(arguments[x].shape) != 3 or arguments[x].shape[0] != 1:
            raise Unsupported("x is not one batch of rows")
        result = self._params[-1]
        finish = _Finish(self._product.body.buffer, self._params, self._writers)
        starts = finish.starts(result)
        outputs = arguments[-1].shape[-1]
        if len(starts) > 2 or outputs + starts[-1] != matrix.rows:
            raise Unsupported("its output is no column for each row of weights")
        return LinearProblem(
            matrix=matrix,
            arguments=arguments,
            x=x,
            weights=tuple(weights),
            rows=arguments[x].shape[1],
            outputs=outputs,
            starts=starts,
            finish=finish.store(result, starts),
        )

    def _place(self, buffer: Any) -> int:
        for place, param in enumerate(self._params):
            if param.same_as(buffer):
                return place
        raise Unsupported(f"{buffer.name} is computed in it")

    def _shape(self, shape: Sequence[Any]) -> tuple[Expr, ...]:
        sizes = []
        for size in shape:
            if isinstance(size, tirx.Var):
                sizes.append(self._sizes.setdefault(str(size.name), dynamic(str(size.name))))
            elif isinstance(size, tirx.IntImm):
                sizes.append(int(size.value))
            else:
                raise Unsupported(f"a dimension is {size}")
        return tuple(sizes)


def _matrix(dequantize: Any, types: Sequence[Any]) -> RowMatrix:
    rows, columns = (int(size.value) for size in dequantize.body.buffer.ty.shape)
    dtype = str(types[-1].dtype)
    if dtype not in ("float16", "float32"):
        raise Unsupported(f"the weights are {dtype}")
    if MATRIX_ATTRIBUTE not in dequantize.annotations:
        return RowMatrix(rows, columns, dtype)
    bits, group, zero_point = (int(v) for v in dequantize.annotations[MATRIX_ATTRIBUTE])
    if not has_codes(bits, group):
        raise Unsupported(f"the weights are codes of {bits} bits in groups of {group}")
    return RowMatrix(rows, columns, dtype, group, zero_point)


class _Finish:
    """What is done to the sums before they are stored."""

    def __init__(self, sums: Any, params: Sequence[Any], writers: Mapping[Any, Any]) -> None:
        self._sums = sums
        self._params = params
        self._writers = writers

    def starts(self, result: Any) -> tuple[int, ...]:
        """The distances from an output's column to the rows of weights that it needs."""
        found: set[int] = set()

        def load(buffer: Any, shifts: tuple[int, ...]) -> Any:
            if buffer.same_as(self._sums):
                found.add(shifts[-1])
            return None

        self._walk(result, (0,) * len(result.ty.shape), load)
        if not found or min(found) != 0:
            raise Unsupported("its output does not begin at the first row of weights")
        return tuple(sorted(found))

    def store(self, result: Any, starts: tuple[int, ...]) -> Any:
        """The ``Finish`` of a problem."""
        place = len(self._params) - 1

        def finish(
            buffers: Sequence[Buffer], row: Expr, column: Expr, sums: Sequence[Expr]
        ) -> None:
            def load(buffer: Any, shifts: tuple[int, ...]) -> Any:
                if buffer.same_as(self._sums):
                    return sums[starts.index(shifts[-1])]
                for param, own in zip(self._params[:-1], buffers[:-1], strict=True):
                    if buffer.same_as(param):
                        return own[_indices(row, column, shifts)]
                return None

            value = self._walk(result, (0,) * len(result.ty.shape), load)
            store(buffers[place], value, *_indices(row, column, (0,) * len(result.ty.shape)))

        return finish

    def _walk(self, buffer: Any, shifts: tuple[int, ...], load: Any) -> Any:
        """The expression of an element of ``buffer``; ``load`` gives those that are read."""
        value = load(buffer, shifts)
        if value is not None:
            return value
        if buffer.same_as(self._sums) or any(buffer.same_as(p) for p in self._params[:-1]):
            return tirx.const(0, str(buffer.ty.dtype))
        if buffer not in self._writers:
            raise Unsupported(f"{buffer.name} is not computed elementwise")
        block = self._writers[buffer]
        axes = [iter_var.var for iter_var in block.iter_vars]
        if not all(a.same_as(b) for a, b in zip(axes, block.body.indices, strict=True)):
            raise Unsupported(f"{buffer.name} is stored in another order")

        def replace(node: Any) -> Any:
            moved = _shifts(node.indices, axes, shifts)
            return self._walk(node.source, moved, load)

        return tvm_ffi.structural_map(block.body.value, (TensorLoad, replace))


def _shifts(
    indices: Sequence[Any], axes: Sequence[Any], shifts: tuple[int, ...]
) -> tuple[int, ...]:
    """How far each index is from its axis; the axes are matched from the last one."""
    found = []
    for index, axis, shift in zip(
        reversed(indices), reversed(axes), reversed(shifts), strict=False
    ):
        left = tvm.sym.Analyzer().simplify(index - axis)
        if not isinstance(left, tirx.IntImm):
            raise Unsupported(f"{index} is read for {axis}")
        found.append(int(left.value) + shift)
    return tuple(reversed(found))


def _indices(row: Expr, column: Expr, shifts: tuple[int, ...]) -> tuple[Expr, ...]:
    """Where an element is: [column], [row, column] or [0, row, column], with shifts."""
    own = (0, row, column)[3 - len(shifts) :]
    return tuple(at + shift if shift else at for at, shift in zip(own, shifts, strict=True))
