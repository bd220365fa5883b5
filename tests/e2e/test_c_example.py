"""The examples of the C interface, built against a bundle's own header and library, and run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "mlcbuild" / "runtime_stub" / "examples"


def build(name: str, bundle: Path, folder: Path) -> Path:
    """Compile one example as docs/c-abi.md says; the program finds the bundle's library."""
    gnu, zig, standard = ("gcc", "cc", "c89") if name.endswith(".c") else ("g++", "c++", "c++17")
    compiler = [gnu] if shutil.which(gnu) else [sys.executable, "-m", "ziglang", zig]
    program = folder / Path(name).stem
    flags = [f"-std={standard}", "-pedantic", "-Wall", "-Werror", f"-I{bundle / 'include'}"]
    library = [f"-L{bundle / 'lib'}", "-lmlcb", f"-Wl,-rpath,{bundle / 'lib'}"]
    command = [*compiler, *flags, str(EXAMPLES / name), *library, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing of this process' environment."""
    words = [str(word) for word in command]
    return subprocess.run(words, env={}, text=True, capture_output=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def generate(smollm2_int4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("generate.c", smollm2_int4, tmp_path_factory.mktemp("generate"))


def test_generate(generate: Path, smollm2_int4: Path) -> None:
    done = run(generate, smollm2_int4, "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "[the model was done; prompt " in done.stderr


def test_generate_takes_any_text(generate: Path, smollm2_int4: Path) -> None:
    done = run(generate, smollm2_int4, 'Repeat: "quoted" \\ and\ttabs\nand lines, é, 東京')
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_generate_tells_what_is_wrong(generate: Path, tmp_path: Path) -> None:
    done = run(generate, tmp_path, "Hello")
    assert done.returncode == 1
    assert done.stderr.startswith("the bundle: status 20: ")
    assert "bundle.json" in done.stderr
    assert run(generate).returncode == 2


def test_batch(smollm2_int4: Path, tmp_path: Path) -> None:
    program = build("batch.cc", smollm2_int4, tmp_path)
    done = run(program, smollm2_int4)
    assert done.returncode == 0, done.stderr
    answers: dict[str, dict[str, Any]] = {
        answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())
    }
    assert set(answers) == {"greeting", "schema", "cancelled"}
    assert answers["schema"]["finish_reason"] == "stop"
    found = json.loads(answers["schema"]["text"])
    assert set(found) == {"capital", "is_in_europe"}
    assert found["capital"] in ("Berlin", "Paris", "Rome")
    assert isinstance(found["is_in_europe"], bool)
    assert answers["cancelled"]["finish_reason"] == "cancel"
    assert answers["greeting"]["finish_reason"] in ("stop", "length")
    assert answers["greeting"]["text"]
    metrics = json.loads(done.stderr)
    requests = metrics["requests"]
    assert (requests["submitted"], requests["finished"], requests["failed"]) == (3, 3, 0)
    assert requests["finished_by_reason"]["cancel"] == 1
    assert metrics["latency"]["ttft"]["count"] == 3
    # The seed decides, not what runs beside it or when the third one was cancelled.
    again = map(json.loads, run(program, smollm2_int4).stdout.splitlines())
    texts = {answer["name"]: answer["text"] for answer in again}
    assert texts["greeting"] == answers["greeting"]["text"]
    assert texts["schema"] == answers["schema"]["text"]


def test_tool_call(smollm2_int4: Path, tmp_path: Path) -> None:
    """SmolLM2's template knows no tools: the program says so, and how."""
    program = build("tool_call.cc", smollm2_int4, tmp_path)
    done = run(program, smollm2_int4)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "tool" in done.stderr
