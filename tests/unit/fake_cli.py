"""Runs the command line with the toy graph in place of the real one; prints heavy imports."""

from __future__ import annotations

import os
import sys

import mlcbuild.pipeline.build as build
from mlcbuild.cli.main import run
from tests.unit import fake_graph

HEAVY = ("tvm", "tvm_ffi", "huggingface_hub", "numpy", "rich", "requests", "pydantic", "torch")


def main() -> int:
    """Arguments are the command line; FAKE_CLI_IMPORTS=1 prints what was imported on stderr."""
    build.build_graph = fake_graph.build_graph  # type: ignore[assignment]
    code = run(sys.argv[1:])
    if os.environ.get("FAKE_CLI_IMPORTS"):
        print("heavy:", *(name for name in HEAVY if name in sys.modules), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
