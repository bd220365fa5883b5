"""A model definition as a Relax module of the functions that a target wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.relax.frontend import nn

from mlcbuild.errors import InternalError


def export_model(model: Any, functions: Sequence[str]) -> tuple[tvm.IRModule, list[str]]:
    """Exports some functions of ``model``; returns the names of the packed params with them.

    Tracing a function costs as much as lowering it, so that what no plan holds is left out here.
    """
    spec = model.get_spec()
    methods = dict(zip(spec.method_names, spec.method_specs, strict=True))
    missing = [name for name in functions if name not in methods]
    if missing:
        raise InternalError(f"{type(model).__module__} has no function {', '.join(missing)}")
    wanted = nn.spec.ModuleSpec(model, list(functions), [methods[name] for name in functions])
    mod, named = model.export_tvm(spec=wanted)
    return mod, [name for name, _ in named]
