"""A model definition as a Relax module of the functions that a target wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.relax.frontend import nn

from mlcbuild.errors import InternalError


def export_model(
    model: Any, functions: Sequence[str], sizes: Mapping[str, int] | None = None
) -> tuple[tvm.IRModule, list[str]]:
    """Exports some functions of ``model``; returns the names of the packed params with them.

    ``sizes`` fixes dimensions that the model leaves open, by name. Tracing a function costs as much
    as lowering it, so that what no plan holds is left out here.
    """
    spec = model.get_spec()
    methods = dict(zip(spec.method_names, spec.method_specs, strict=True))
    missing = [name for name in functions if name not in methods]
    if missing:
        raise InternalError(f"{type(model).__module__} has no function {', '.join(missing)}")
    chosen = [_fix(methods[name], sizes or {}) for name in functions]
    wanted = nn.spec.ModuleSpec(model, list(functions), chosen)
    mod, named = model.export_tvm(spec=wanted)
    return mod, [name for name, _ in named]


def _fix(method: Any, sizes: Mapping[str, int]) -> Any:
    args = [
        nn.spec.Tensor([sizes.get(size, size) for size in arg.shape], arg.dtype)
        if isinstance(arg, nn.spec.Tensor)
        else arg
        for arg in method.arg_specs
    ]
    return nn.spec.MethodSpec(
        method.method, method.arg_names, args, method.param_mode, method.effect_mode
    )
