"""What a matrix product with rows of weights is: its arguments, its weights, what it stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlcbuild.kernels.webgpu.builder import Buffer, Expr, KernelWriter

CODES = 8  # of 4 bits, in a word
# What a product is found by: the names of its tensor expressions, and an annotation of the first
# with (bits, group size, zero point) where weights are codes.
DEQUANTIZE = "dequantize"
PRODUCT = "NT_matmul"
MATRIX_ATTRIBUTE = "mlcbuild.codes"


def has_codes(bits: int | None, group: int | None) -> bool:
    """Whether the kernels read codes of so many bits in groups of so many columns."""
    return bits == 4 and group is not None and group % CODES == 0 and group <= 64


@dataclass(frozen=True)
class RowMatrix:
    """Weights [rows, columns]: 4-bit codes with scales, or floats of ``dtype``.

    With ``group``, ``(code - zero_point) * scale``; the first code is in the lowest bits of a word,
    and ``dtype`` is that of the scales [rows, columns / group].
    """

    rows: int
    columns: int
    dtype: str
    group: int | None = None
    zero_point: int = 0


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a kernel; dimensions are numbers or int32 variables."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str


# Stores one element: the kernel's buffers, its row and column, the sums over the matrix's rows
# ``column + start`` for each start of the problem.
Finish = Callable[[Sequence[Buffer], Expr, Expr, Sequence[Expr]], None]


@dataclass(frozen=True)
class LinearProblem:
    """``out[row, column] = finish(sum over k of x[row, k] * matrix[column + start, k], ...)``.

    ``x`` [1, rows, columns of the matrix] and ``weights`` are places among the arguments; sums are
    float32. ``starts`` are where the rows of the matrix begin that make one output column: one, or
    two for a gate and what it is multiplied with.
    """

    matrix: RowMatrix
    arguments: tuple[Argument, ...]
    x: int
    weights: tuple[int, ...]
    rows: Expr
    outputs: int
    starts: tuple[int, ...]
    finish: Finish

    def declare(self, writer: KernelWriter) -> list[Buffer]:
        """The kernel's arguments, in order."""
        return [writer.tensor(arg.name, arg.shape, arg.dtype) for arg in self.arguments]
