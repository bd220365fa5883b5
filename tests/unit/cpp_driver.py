"""Test drivers over parts of the runtime: the names that tests import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.runtime_objects import build_program


def build_cpp(config: pytest.Config, driver: str, sources: object = None) -> Path:
    """The program ``tests/<driver>.cc`` over the whole runtime library."""
    assert config.cache is not None, "pytest runs without its cache plugin"
    return build_program(config.cache, driver)
