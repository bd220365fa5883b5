"""Kills builds of the toy graph at random moments and looks at what they leave behind."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import mlcbuild.pipeline.build as build
from mlcbuild.cli.main import run
from tests.unit import fake_graph

BUNDLE = Path("toy/q0f32/linux-x86_64-cpu")
BLOCKS = 16


def main(folder: str, kills: int) -> int:
    """Kill ``kills`` builds below ``folder``, which has toy.toml; prints how many were running."""
    build.build_graph = fake_graph.build_graph  # type: ignore[assignment]
    base = Path(folder)
    recipe = (base / "toy.toml").read_text()
    dice = random.Random(0)
    assert _wait(_start(base)) == 0  # the first build pays for what later ones find done
    (base / "toy.toml").write_text(recipe.replace("blocks = 2", f"blocks = {BLOCKS - 1}"))
    started = time.monotonic()
    assert _wait(_start(base)) == 0
    usual = time.monotonic() - started
    killed = 0
    for attempt in range(kills):
        text = recipe.replace("blocks = 2", f"blocks = {BLOCKS + attempt}")
        (base / "toy.toml").write_text(text)
        child = _start(base)
        time.sleep(usual * dice.uniform(0.05, 0.95))
        os.kill(child, signal.SIGKILL)
        killed += _wait(child) != 0
        check_nothing_half_written(base)
    assert _wait(_start(base)) == 0
    check_nothing_half_written(base)
    bundle = base / "artifacts" / BUNDLE
    size = (BLOCKS + kills - 1) * fake_graph.BLOCK
    assert (bundle / "right.bin").stat().st_size == size
    assert [path.name for path in bundle.parent.iterdir()] == [BUNDLE.name]
    assert list((base / "store" / "tmp").iterdir()) == []
    print(killed)
    return 0


def _start(base: Path) -> int:
    """Fork a build, so that no time is lost on starting Python."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = 1
    try:
        store, out = str(base / "store"), str(base / "artifacts")
        code = run(["--store", store, "-q", "make", str(base / "toy.toml"), "--out", out])
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    return os.waitpid(child, 0)[1]


def check_nothing_half_written(base: Path) -> None:
    """Every final name holds what it promises."""
    store = base / "store"
    for path in (store / "blobs").glob("??/*"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest == path.name.removesuffix(".x"), f"{path} is not what it says"
    for path in (store / "actions").glob("??/*.json"):
        if not path.name.startswith("."):
            assert json.loads(path.read_text())["key"] == path.stem
    for path in (store / "trees").glob("*"):
        assert any(item.is_file() for item in path.rglob("*"))
    bundle = base / "artifacts" / BUNDLE
    if bundle.exists():
        names = {path.name for path in bundle.rglob("*")}
        assert names == {"bin", "tool", "bundle.json", "left.bin", "right.bin"}
        assert (bundle / "right.bin").stat().st_size % fake_graph.BLOCK == 0
