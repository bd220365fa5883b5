"""The pinned C++ toolchain: PyPI's ziglang, whose clang and libc stubs are the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mlcbuild.core.process import minimal_environment
from mlcbuild.pipeline.action import ActionContext

ZIG = "ziglang"


def run_zig(context: ActionContext, arguments: Sequence[str | Path], cwd: Path) -> None:
    """Runs ``zig ARGUMENTS`` in ``cwd``; its cache of compiled C++ libraries is kept."""
    cache = context.tool_cache("zig")
    env = minimal_environment(context.scratch)
    env["ZIG_GLOBAL_CACHE_DIR"] = str(cache)
    env["ZIG_LOCAL_CACHE_DIR"] = str(cache)
    context.run_process([sys.executable, "-m", ZIG, *arguments], cwd=cwd, env=env)
