"""Test drivers over the runtime, compiled into pytest's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.runtime_objects import build_program


def runtime_folder(config: pytest.Config) -> Path:
    """Where compiled parts of the runtime are kept between sessions."""
    assert config.cache is not None, "pytest runs without its cache plugin"
    return config.cache.mkdir("runtime")


def build_cpp(config: pytest.Config, driver: str) -> Path:
    """The program ``tests/<driver>.cc`` over the whole runtime library."""
    return build_program(runtime_folder(config), driver)
