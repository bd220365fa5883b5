"""Kernel functions that remember how they were built, so that passes can rebuild them fused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm import tirx

from mlcbuild.errors import InternalError, StageError

ATTRIBUTE = "mlcb.kernel"


@dataclass(frozen=True, slots=True)
class KernelTag:
    """The builder method of a kernel set and its keyword arguments (sorted)."""

    builder: str
    args: tuple[tuple[str, Any], ...]

    def with_args(self, **changes: Any) -> KernelTag:
        """The same builder with some arguments changed."""
        return KernelTag(self.builder, tuple(sorted({**dict(self.args), **changes}.items())))

    def get(self, name: str) -> Any:
        """One argument; KeyError if it is not there."""
        return dict(self.args)[name]


@cache
def build(kernels: Any, tag: KernelTag) -> tirx.PrimFunc:
    """The PrimFunc of ``tag`` from kernel set ``kernels``; equal calls give the same object.

    Raises StageError for sizes that no kernel of the set can compute.
    """
    try:
        func = getattr(kernels, tag.builder)(**dict(tag.args))
    except InternalError as error:
        raise StageError(
            f"there is no {tag.builder} kernel for {error.message}",
            why=error.why,
            hint="this model's sizes do not fit the target's kernels: please report the model",
        ) from error
    text = json.dumps({"builder": tag.builder, "args": dict(tag.args)}, sort_keys=True)
    return func.with_attr(ATTRIBUTE, text)


def tagged(kernels: Any, builder: str, **args: Any) -> tirx.PrimFunc:
    """The tagged PrimFunc of one builder method."""
    return build(kernels, KernelTag(builder, tuple(sorted(args.items()))))


def read_tag(func: object) -> KernelTag | None:
    """The tag of a function, or None if it is no tagged kernel."""
    attrs = getattr(func, "attrs", None)
    if attrs is None or ATTRIBUTE not in attrs:
        return None
    return _parse(str(attrs[ATTRIBUTE]))


@cache
def _parse(text: str) -> KernelTag:
    record = json.loads(text)
    return KernelTag(record["builder"], tuple(sorted(record["args"].items())))
