"""Command lines of the form ``script RECIPE [options] -- [options of mlcbuild make]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse_with_make_options(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The script's own arguments, and what follows ``--``."""
    arguments = list(argv)
    position = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:position]), arguments[position + 1 :]
