"""What writing a kernel with TVM's IR builder has in common on every device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from mlcbuild.errors import InternalError

# Already scheduled; op_pattern 8 is kOpaque: Relax's fusion leaves such a function alone.
_ATTRIBUTES = {"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}


class BaseWriter:
    """The kernel being written; ``func`` is there once the ``with`` block is left."""

    def __init__(self) -> None:
        self._func: tirx.PrimFunc | None = None

    @property
    def func(self) -> tirx.PrimFunc:
        """The finished PrimFunc."""
        if self._func is None:
            raise InternalError("the kernel is not finished")
        return self._func

    def finish(self, func: tirx.PrimFunc) -> None:
        """Store the built function."""
        self._func = func

    def tensor(self, name: str, shape: Sequence[Any], dtype: str, offset: Any = None) -> Any:
        """The next argument: a tensor, which begins ``offset`` elements into its memory."""
        handle = T.arg(name, T.handle())
        buffer = T.match_buffer(handle, tuple(shape), dtype, elem_offset=offset, layout=None)
        IRBuilder.name(name, buffer)
        return buffer


Writer = TypeVar("Writer", bound=BaseWriter)


@contextmanager
def write_kernel(
    writer: Writer, name: str, *, private: bool, attributes: Mapping[str, Any] | None = None
) -> Iterator[Writer]:
    """A PrimFunc that is scheduled and opaque to operator fusion, with ``attributes`` besides."""
    with IRBuilder() as ir_builder, T.prim_func(is_private=private, s_tir=True):
        T.func_name(name)
        T.func_attr({**_ATTRIBUTES, **(attributes or {})})
        yield writer
    writer.finish(ir_builder.get())
