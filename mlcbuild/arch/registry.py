"""Finds architectures: a folder in this package is one, named after its ``model_type``."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

import mlcbuild.arch
from mlcbuild.errors import SourceError


@dataclass(frozen=True, slots=True)
class Architecture:
    """One folder of ``mlcbuild.arch``; its modules are imported when they are asked for.

    ``config`` reads and checks a config.json, ``weights`` maps the checkpoint's tensors, ``model``
    defines the computation (and imports the compiler).
    """

    name: str

    @property
    def config(self) -> ModuleType:
        """The ``config`` module."""
        return self._load("config")

    @property
    def weights(self) -> ModuleType:
        """The ``weights`` module."""
        return self._load("weights")

    @property
    def model(self) -> ModuleType:
        """The ``model`` module; importing it imports the compiler."""
        return self._load("model")

    def _load(self, module: str) -> ModuleType:
        return importlib.import_module(f"mlcbuild.arch.{self.name}.{module}")


def architectures() -> tuple[str, ...]:
    """The names of all architectures, sorted; nothing is imported."""
    modules = pkgutil.iter_modules(mlcbuild.arch.__path__)
    return tuple(sorted(module.name for module in modules if module.ispkg))


def get_architecture(model_type: str) -> Architecture:
    """The architecture for a config's ``model_type``; SourceError with close names if unknown."""
    known = architectures()
    if model_type in known:
        return Architecture(model_type)
    close = difflib.get_close_matches(model_type, known, n=3, cutoff=0.6)
    raise SourceError(
        f"models of type {model_type!r} are not supported",
        why=f"known types: {', '.join(known)}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )
