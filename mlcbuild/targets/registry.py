"""Finds targets by their folder: ``linux_x86_64_cpu`` is the target ``linux-x86_64-cpu``."""

from __future__ import annotations

import importlib
import pkgutil

import mlcbuild.targets as package
from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import InternalError, UsageError
from mlcbuild.targets.target import PlanTarget, Target


def _name(folder: str) -> str:
    system, *arch, device = folder.split("_")
    return f"{system}-{'_'.join(arch)}-{device}"


def target_names() -> tuple[str, ...]:
    """Every target's name, sorted; imports none of them."""
    folders = (m.name for m in pkgutil.iter_modules(package.__path__) if m.ispkg)
    return tuple(sorted(_name(folder) for folder in folders))


def get_target(name: str) -> Target:
    """The target record; UsageError with a suggestion if there is none of that name."""
    if name not in target_names():
        raise UsageError(
            f"no target is named {name!r}", hint=suggestion_or_list(name, target_names())
        )
    module = importlib.import_module(f"mlcbuild.targets.{name.replace('-', '_')}")
    target = module.TARGET
    if not isinstance(target, Target) or target.name != name:
        raise InternalError(f"{module.__name__} does not define the target {name}")
    return target


def get_plan_target(name: str) -> PlanTarget:
    """``get_target`` for what only targets of our own runtime can do; UsageError for others."""
    target = get_target(name)
    if not isinstance(target, PlanTarget):
        raise UsageError(
            f"{name} has no kernel variants of ours", why="another client runs its bundles"
        )
    return target
