"""Loads TVM's MetaSchedule without the parts that cost 15 seconds of every process."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def load_meta_schedule() -> types.ModuleType:
    """``tvm.s_tir.meta_schedule``.

    MetaSchedule imports the tensor intrinsics of every device that TVM knows, although our
    templates use none of them: an empty package takes their place. Its search path stays, so
    that a single one of them can still be imported by name.
    """
    if _INTRINSICS not in sys.modules:
        spec = importlib.util.find_spec("tvm.s_tir")
        if spec is None or spec.origin is None:
            raise ImportError("tvm.s_tir is not installed")
        package = types.ModuleType(_INTRINSICS)
        package.__path__ = [str(Path(spec.origin).parent / "tensor_intrin")]
        sys.modules[_INTRINSICS] = package
        importlib.import_module("tvm.s_tir").tensor_intrin = package  # type: ignore[attr-defined]
    return importlib.import_module("tvm.s_tir.meta_schedule")
