"""Build a recipe twice, in two folders with two stores, and compare every byte of the payloads.

    python tests/bench/reproduce.py recipes/smollm2-135m.toml -- --quantization q4f16_1

The second build runs in another working folder, with another hash seed, time zone, language and
umask. What lies in attest/ is outside the payload. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.core.atomic import remove_tree
from tests.bench.command_line import parse_with_make_options

ROOT = Path(__file__).parents[2]
SURROUNDINGS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
)
UMASKS = (0o022, 0o027)


def build(base: Path, number: int, recipe: Path, options: list[str]) -> list[Path]:
    """Build below ``base``; gives the bundles' folders."""
    base.mkdir(parents=True)
    command = [sys.executable, "-m", "mlcbuild", "--store", str(base / "store"), "make"]
    command += [str(recipe.resolve()), *options, "--out", str(base / "out")]
    environment = os.environ | SURROUNDINGS[number] | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command,
        cwd=base,
        env=environment,
        umask=UMASKS[number],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Path(line) for line in result.stdout.splitlines()]


def payload(bundle: Path) -> set[str]:
    """Paths of the payload's files, relative to the bundle."""
    files = (path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if path.parts[0] != "attest"}


def differences(first: Path, second: Path) -> list[str]:
    """What differs between two bundles: files, bytes, executable bits."""
    left, right = payload(first), payload(second)
    found = [f"only in one: {path}" for path in sorted(left ^ right)]
    for path in sorted(left & right):
        a, b = first / path, second / path
        if not filecmp.cmp(a, b, shallow=False):
            found.append(f"bytes differ: {path}")
        if os.access(a, os.X_OK) != os.access(b, os.X_OK):
            found.append(f"executable bit differs: {path}")
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--scratch", type=Path, help="folder for the stores (default: temporary)")
    arguments, options = parse_with_make_options(parser, sys.argv[1:])
    if arguments.scratch is not None:
        arguments.scratch.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="reproduce-", dir=arguments.scratch))
    try:
        places = (base / "one", base / "another" / "place")
        first, second = (
            build(place, number, arguments.recipe, options) for number, place in enumerate(places)
        )
        failed = len(first) != len(second)
        for left, right in zip(first, second, strict=False):
            found = differences(left, right)
            manifest = json.loads((left / "bundle.json").read_text(encoding="utf-8"))
            print(f"{left.relative_to(places[0])}: {len(payload(left))} files")
            print("\n  ".join([manifest["tree_digest"], *(found or ["identical"])]))
            failed = failed or bool(found)
    finally:
        remove_tree(base)
    sys.exit(failed)


if __name__ == "__main__":
    main()
