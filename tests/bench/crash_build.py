"""Kill builds at random moments, then show that the next one completes with nothing half-written.

    python tests/bench/crash_build.py recipes/smollm2-135m.toml --kills 20 -- --quantization q4f16_1

An undisturbed build in an empty store gives the expected tree digest; a second one that finds the
compilers' private caches warm gives the duration, so that kills hit all stages and not mostly the
C++ compiler. Then a store sees ``--kills`` builds that end in SIGKILL of their whole process group
at a random moment. After each, every blob must hold the bytes that its name says and every visible
bundle must verify; at the end a build must complete with the expected digest. A store that a build
completed in is emptied, so that later kills hit work again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.core.atomic import remove_tree
from tests.bench.command_line import parse_with_make_options

KEPT = ("tools", "version")  # of a store that is cleared: the compilers' caches, what it is


class Site:
    """A store and an output folder, and the command that builds into them."""

    def __init__(self, base: Path, recipe: Path, options: list[str]) -> None:
        self.store = base / "store"
        self.out = base / "out"
        self.base = base
        self.command = [sys.executable, "-m", "mlcbuild", "--store", str(self.store), "make"]
        self.command += [str(recipe.resolve()), *options, "--out", str(self.out)]

    def clear(self) -> None:
        """Drop every result."""
        for path in (*self.store.glob("*"), self.out):
            if path.name not in KEPT:
                remove_tree(path)

    def build(self) -> Path:
        """Build to the end; gives the bundle's folder."""
        result = subprocess.run(self.command, text=True, stdout=subprocess.PIPE, check=True)
        return Path(result.stdout.splitlines()[-1])

    def build_and_kill(self, after: float) -> bool:
        """Start a build and kill its process group; gives whether it was still at work."""
        with (self.base / "log.txt").open("ab") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
            try:
                process.wait(timeout=after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
        if process.returncode != 0:
            raise SystemExit(f"a build failed by itself, see {self.base / 'log.txt'}")
        return False

    def damaged_blobs(self) -> list[str]:
        """Blobs whose bytes are not the ones that their name says."""
        return [
            str(blob)
            for blob in sorted(self.store.glob("blobs/*/*"))
            if sha256(blob) != blob.name.removesuffix(".x")
        ]

    def broken_bundles(self) -> list[str]:
        """Everything under the output folder that looks like a bundle and does not verify."""
        broken = []
        for manifest in sorted(self.out.rglob("bundle.json")):
            command = [sys.executable, "-m", "mlcbuild", "verify", str(manifest.parent)]
            if subprocess.run([*command, "--hashes-only"], capture_output=True).returncode != 0:
                broken.append(str(manifest.parent))
        return broken


def sha256(path: Path) -> str:
    """Digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def tree_digest(bundle: Path) -> str:
    """The digest that names a bundle."""
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    return str(manifest["tree_digest"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="folder for the stores (default: temporary)")
    arguments, options = parse_with_make_options(parser, sys.argv[1:])
    chance = random.Random(arguments.seed)
    if arguments.scratch is not None:
        arguments.scratch.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="crash-build-", dir=arguments.scratch))
    try:
        site = Site(base, arguments.recipe, options)
        expected = tree_digest(site.build())
        site.clear()
        start = time.monotonic()
        again = tree_digest(site.build())
        duration = time.monotonic() - start
        site.clear()
        print(f"undisturbed: {duration:.1f} s, {expected}", flush=True)
        if again != expected:
            raise SystemExit(f"a second build gave {again}")
        kills = 0
        while kills < arguments.kills:
            moment = chance.uniform(0, duration)
            if not site.build_and_kill(moment):
                site.clear()
                continue
            kills += 1
            damaged, broken = site.damaged_blobs(), site.broken_bundles()
            state = f"{len(damaged)} damaged blobs, {len(broken)} broken bundles"
            print(f"kill {kills} after {moment:.2f} s: {state}", flush=True)
            if damaged or broken:
                raise SystemExit("\n".join(["half-written:", *damaged, *broken]))
        bundle = site.build()
        found = tree_digest(bundle)
        if found != expected or site.broken_bundles():
            raise SystemExit(f"after the kills the bundle is {found}, expected {expected}")
        print(f"after {kills} kills the build completed: {found}, verified")
    finally:
        remove_tree(base)


if __name__ == "__main__":
    main()
