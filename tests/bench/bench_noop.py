"""What a `mlcbuild make` with nothing to do costs over a bare interpreter.

    python tests/bench/bench_noop.py recipes/smollm2-135m.toml -- --quantization q4f16_1

Builds once, then starts `python -c pass` and the same `make` alternately. The difference of the
medians must stay below ``--limit`` seconds, or the exit code is 1. Also says whether the no-op
loaded the compiler or the hub client.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from tests.bench import machine
from tests.bench.command_line import parse_with_make_options

HEAVY = ("tvm", "huggingface_hub", "numpy")


def seconds(command: list[str]) -> float:
    """Wall clock of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def loaded_modules(command: list[str]) -> list[str]:
    """Which of the heavy modules a `make` imports, as the interpreter reports its imports."""
    traced = [command[0], "-X", "importtime", *command[1:]]
    result = subprocess.run(traced, check=True, text=True, capture_output=True)
    names = {
        line.rpartition("|")[2].strip()
        for line in result.stderr.splitlines()
        if line.startswith("import time:")
    }
    return [name for name in HEAVY if name in names]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--limit", type=float, default=0.25, help="seconds")
    arguments, options = parse_with_make_options(parser, sys.argv[1:])
    bare = [sys.executable, "-c", "pass"]
    make = [sys.executable, "-m", "mlcbuild", "make", str(arguments.recipe), *options]
    subprocess.run(make, check=True, stdout=sys.stderr)
    subprocess.run(make, check=True, stdout=sys.stderr)
    pairs = [(seconds(bare), seconds(make)) for _ in range(arguments.runs)]
    floor, whole = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(machine.heading(machine.describe()))
    print(f"python -c pass {floor:.3f} s, no-op make {whole:.3f} s: {whole - floor:.3f} s over it")
    print(f"loaded of {', '.join(HEAVY)}: {', '.join(loaded_modules(make)) or 'none'}")
    sys.exit(whole - floor >= arguments.limit)


if __name__ == "__main__":
    main()
