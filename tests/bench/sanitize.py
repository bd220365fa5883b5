"""The runtime under ThreadSanitizer and AddressSanitizer: the stress program over a small bundle.

    python tests/bench/sanitize.py [--runs 20] [--sanitizers thread,address]

Compiles the whole runtime and ``tests/exec_stress.cc`` with g++ for each sanitizer (objects are
kept in .cache/sanitize) and runs it: engines on threads of their own, two at a time, with
preemption, guesses, grammars, time limits, cancellation, metrics and logits from other threads.
Exit code 1 if a run reports anything.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.pipeline.stages.runtime import ROOT, RuntimeUnit
from tests.unit import fake_bundle
from tests.unit.runtime_objects import compile_units, library_units, program_unit

FLAGS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
COMMON = ["-std=c++17", "-O1", "-g", "-fno-rtti", "-fPIC", "-ffp-contract=off"]


def compile_all(folder: Path, sanitizer: str) -> list[Path]:
    """Objects of the library and of the stress program; those that are there are taken."""
    flags = [*COMMON, *FLAGS[sanitizer]]

    def run(unit: RuntimeUnit, output: Path) -> None:
        command = ["g++", *flags, "-Isrc", "-Iinclude", *unit.input_arguments(), "-o", str(output)]
        subprocess.run(command, check=True, cwd=ROOT)

    units = [*library_units(), program_unit("exec_stress")]
    return compile_units(folder, units, " ".join(flags), run)


def build(folder: Path, sanitizer: str) -> Path:
    """The stress program under ``sanitizer``."""
    objects = compile_all(folder / sanitizer, sanitizer)
    program = folder / sanitizer / "stress"
    subprocess.run(
        ["g++", *FLAGS[sanitizer], *objects, "-o", program, "-pthread", "-ldl"], check=True
    )
    return program


def make_bundle(folder: Path) -> Path:
    """The hand-made bundle, with kernels compiled by g++'s C compiler."""
    binaries = folder / "binaries"
    binaries.mkdir(parents=True, exist_ok=True)
    sources = [ROOT / "tests" / "exec_fake_kernels.c", ROOT / "src" / "exec" / "kernel_shim.c"]
    flags = ["-O2", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden"]
    output = ["-o", str(binaries / "kernels-fake.so"), "-lm"]
    subprocess.run(["gcc", *flags, *map(str, sources), *output], check=True)
    for name in ("libmlcb.so", "mlcb"):  # listed in the manifest, not used by the program
        (binaries / name).touch()
    bundle = folder / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    fake_bundle.make_bundle(bundle, binaries)
    return bundle


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--sanitizers", default="thread,address")
    parser.add_argument("--folder", type=Path, default=Path(".cache/sanitize"))
    options = parser.parse_args()
    if shutil.which("g++") is None:
        raise SystemExit("g++ is missing\nhint: apt-get install g++")
    folder = options.folder.resolve()
    bundle = make_bundle(folder)
    failed = 0
    for sanitizer in options.sanitizers.split(","):
        program = build(folder, sanitizer)
        # ThreadSanitizer wants its addresses where they are without randomization.
        command = ["setarch", "-R", str(program), str(bundle)]
        started = time.monotonic()
        for number in range(options.runs):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                failed += 1
                print(f"{sanitizer}, run {number}:\n{done.stdout}{done.stderr}", file=sys.stderr)
        elapsed = time.monotonic() - started
        print(f"{sanitizer}: {options.runs} runs in {elapsed:.0f} s, {failed} reports so far")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
