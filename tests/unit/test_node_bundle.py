"""What runs a bundle in node, with a runner that answers as a test wants it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from mlcbuild.bundle import node
from mlcbuild.bundle.native import NativeBundle, Request
from mlcbuild.bundle.node import NodeBundle, NodeEngine
from mlcbuild.errors import ToolchainError, UsageError, VerificationError
from tests.unit.web_bundles import write_cpu_bundle

# Says what it got, but never answers "step".
RUNNER = """\
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...given } = JSON.parse(line);
  if (op === "submit") given.request = BigInt(given.request.seed) === 2n ** 64n - 1n ? 7 : 0;
  if (op === "step") process.stdout.write('{"result": tr');
  else console.log(JSON.stringify({ result: given.request ?? {} }));
}
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runner = tmp_path / "runner.mjs"
    runner.write_text(RUNNER, encoding="utf-8")
    monkeypatch.setattr(node, "RUNNER", runner)
    folder = tmp_path / "web-wasm32-cpu"
    write_cpu_bundle(folder, {})
    return folder


def test_a_seed_of_64_bits_arrives_whole(bundle: Path) -> None:
    with NodeBundle.open(bundle) as opened, NodeEngine(opened) as engine:
        assert engine.submit(Request([1], 1, seed=2**64 - 1)) == 7


def test_no_answer_is_waited_for_forever(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NodeBundle.open(bundle) as opened:
        engine = NodeEngine(opened)
        monkeypatch.setattr(node, "CALL_SECONDS", 0.3)
        started = time.monotonic()
        with pytest.raises(VerificationError, match=r"no answer within 0\.3 s .* to step"):
            engine.step()
        assert time.monotonic() - started < 10


def test_a_node_that_does_not_start_leaves_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    program = tmp_path / "node"
    program.write_text("no program", encoding="utf-8")
    monkeypatch.setattr(node, "node_program", lambda: program)
    with pytest.raises(ToolchainError, match="node does not run"):
        NodeBundle.open(bundle)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_process_is_told_what_shows_the_bundle(bundle: Path) -> None:
    with pytest.raises(UsageError) as caught:
        NativeBundle.open(bundle)
    assert "mlcbuild serve-web BUNDLE" in str(caught.value.hint)
