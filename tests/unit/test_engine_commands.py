"""run, verify, inspect and bench on a bundle with a stub of the runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mlcbuild.bundle.manifest import read_manifest
from mlcbuild.bundle.writer import write_bundle
from mlcbuild.cli import (
    bench_command,
    inspect_command,
    run_command,
    verify_command,
)
from mlcbuild.core import cpuinfo as cpuinfo_reader
from mlcbuild.engine import Engine, host
from mlcbuild.engine.prepare import RequestBuilder
from mlcbuild.errors import MlcbuildError, UsageError, VerificationError
from tests.unit import stub_bundle


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return stub_bundle.compile_stub(tmp_path_factory.mktemp("stub")).read_bytes()


@pytest.fixture
def bundle(tmp_path: Path, library: bytes) -> Path:
    stub_bundle.make_bundle(tmp_path / "bundle", library)
    return tmp_path / "bundle"


def invoke(command: click.Command, *arguments: object, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(command, [str(item) for item in arguments], input=stdin)
    if isinstance(result.exception, MlcbuildError):
        raise result.exception
    return result


def watch_tokenize(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> list[str]:
    """Makes every text ``ids``; returns the list into which the texts go."""
    seen: list[str] = []

    def tokenize(self: RequestBuilder, text: str, **_: object) -> list[int]:
        seen.append(text)
        return ids

    monkeypatch.setattr(RequestBuilder, "tokenize", tokenize)
    return seen


def test_run_prints_the_text_only(bundle: Path) -> None:
    result = invoke(run_command.command, bundle, "--prompt", "ab", "--raw", "--max-tokens", 10)
    assert result.stdout == "????aabbbb\n".replace("aabbbb", "aaaabb")  # BOS four times, as the ids
    assert result.stderr == "warning: the answer was ended by --max-tokens 10\n"


def test_run_reads_stdin_and_renders_messages(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch_tokenize(monkeypatch, [65])
    result = invoke(
        run_command.command, bundle, "--prompt", "-", "--system", "S", "--max-tokens", 2, stdin="Q"
    )
    assert result.stdout == "AA\n"
    assert json.loads(seen[0])["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
    ]


def test_run_json(bundle: Path) -> None:
    result = invoke(
        run_command.command, bundle, "--prompt", "a", "--raw", "--max-tokens", 3, "--json"
    )
    record = json.loads(result.stdout)
    assert record["text"] == "???"
    assert record["token_ids"] == [256, 256, 256]
    assert record["finish_reason"] == "length"
    assert record["prompt_tokens"] == 8
    assert record["variant"] == "stub"


def test_run_passes_its_options_on(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    seen: dict[str, Any] = {}
    close = Engine.close

    def watch(self: Engine) -> None:
        if not seen:
            seen.update(self.metrics()["last_request"], info=self.info)
        close(self)

    monkeypatch.setattr(Engine, "close", watch)
    result = invoke(
        *(run_command.command, bundle, "--prompt", "ECHO:a", "--raw", "--json-schema", schema),
        *("--temperature", 0.5, "--top-p", 0.25, "--top-k", 3, "--min-p", 0.125),
        *("--repetition-penalty", 1.5, "--presence-penalty", -0.5, "--frequency-penalty", 0.75),
        *("--max-tokens", 2, "--seed", 7, "--stop", "x", "--stop", "y"),
        *("--speculation", "draft", "--speculation-tokens", 3, "--draft", bundle),
    )
    assert result.stdout == "aa\n"
    assert seen["info"]["speculation"] == "draft"
    assert (seen["info"]["speculation_tokens"], seen["info"]["draft"]) == (3, 1)
    assert (seen["temperature"], seen["top_p"], seen["top_k"], seen["min_p"]) == (
        *(0.5, 0.25, 3),
        0.125,
    )
    assert (seen["repetition_penalty"], seen["presence_penalty"]) == (1.5, -0.5)
    assert (seen["frequency_penalty"], seen["max_tokens"], seen["seed"]) == (0.75, 2, 7)
    assert seen["stop"] == ["x", "y"]
    assert (seen["grammar_kind"], seen["grammar"]) == (2, '{"type": "object"}')


def test_run_refuses_what_does_not_fit_together(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--raw leaves out"):
        invoke(run_command.command, bundle, "--prompt", "a", "--raw", "--system", "b")
    with pytest.raises(VerificationError, match="not a bundle"):
        invoke(run_command.command, tmp_path, "--prompt", "a")
    schema = tmp_path / "schema.json"
    schema.write_bytes(b"\xff")
    options = ("--prompt", "ECHO:a", "--raw", "--json-schema", schema)
    with pytest.raises(UsageError, match="the schema does not read"):
        invoke(run_command.command, bundle, *options)
    schema.write_text('{\n "type": }')
    with pytest.raises(UsageError, match=r"schema\.json:2:10: the schema is not JSON"):
        invoke(run_command.command, bundle, *options)
    inline = ("--prompt", "ECHO:a", "--raw", "--json-schema", '{"type": "object"}')
    with pytest.raises(UsageError, match="--json-schema takes a file"):
        invoke(run_command.command, bundle, *inline)
    with pytest.raises(UsageError, match="stdin is not UTF-8 at byte 1"):
        invoke(run_command.command, bundle, "--prompt", "-", stdin=b"a\xff")
    with pytest.raises(UsageError, match="cannot both bind"):
        invoke(run_command.command, bundle, *options, "--regex", "a")
    with pytest.raises(UsageError, match="draft"):
        invoke(run_command.command, bundle, "--prompt", "a", "--speculation", "draft")
    assert invoke(run_command.command, bundle, "--prompt", "a", "--top-p", 0).exit_code == 2


def test_verify(bundle: Path) -> None:
    result = invoke(verify_command.command, bundle)
    assert result.exit_code == 0
    assert "13 files" in result.stdout
    assert "self-test passed on stub: 3 tokens agree" in result.stdout
    record = json.loads(invoke(verify_command.command, bundle, "--json").stdout)
    assert record["ok"] is True
    assert record["selftest"]["agreeing"] == 3


def test_verify_altered_and_failing(bundle: Path, library: bytes) -> None:
    (bundle / "licenses/LICENSE").write_bytes(b"Apache Licence")
    with pytest.raises(VerificationError, match="licenses/LICENSE: altered"):
        invoke(verify_command.command, bundle)
    result = invoke(verify_command.command, bundle, "--json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["problems"][0]["path"] == "licenses/LICENSE"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"top_logits": [[65, 11.5]]}, "largest logit difference 0.5000"),
        ({"greedy_token_ids": [65, 66, 67]}, "2 of 3 tokens agree, 2 decoded"),
    ],
)
def test_verify_finds_a_wrong_kernel(
    tmp_path: Path, library: bytes, change: dict[str, Any], why: str
) -> None:
    root = stub_bundle.write_files(tmp_path / "b", library)
    golden = json.loads((root / "golden.json").read_bytes())
    (root / "golden.json").write_text(json.dumps({**golden, **change}))
    write_bundle(root, stub_bundle.parts())
    with pytest.raises(VerificationError) as error:
        invoke(verify_command.command, root)
    assert why in str(error.value)
    result = invoke(verify_command.command, root, "--json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["selftest"]["ok"] is False
    assert invoke(verify_command.command, root, "--hashes-only").exit_code == 0


def test_verify_leaves_the_self_test_of_another_system_out(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "host_platform", lambda: "macos-arm64")
    result = invoke(verify_command.command, bundle)
    assert "self-test left out: the bundle is for linux-x86_64-cpu" in result.stdout


def test_inspect(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "host_platform", lambda: "linux-x86_64")
    monkeypatch.setattr(cpuinfo_reader, "host_features", lambda: frozenset({"avx2", "fma", "sse2"}))
    text = invoke(inspect_command.command, bundle).stdout
    manifest = read_manifest(bundle)
    for part in (manifest.tree_digest, "q0f32", "Apache-2.0", "258 tokens", "for tests"):
        assert part in text
    assert "avx512: float activations; needs avx9  (this CPU lacks avx9)" in text
    assert "avx2: float activations; needs avx2, fma  <- this CPU takes it" in text
    record = json.loads(invoke(inspect_command.command, bundle, "--json").stdout)
    assert record["host_variant"] == "avx2"
    assert record["memory"]["kv_bytes_per_token"] == 192
    monkeypatch.setattr(host, "host_platform", lambda: "macos-arm64")
    assert "the bundle does not run here" in invoke(inspect_command.command, bundle).stdout


def test_bench(bundle: Path) -> None:
    result = invoke(
        bench_command.command,
        *(bundle, "--prefill", "8,16", "--decode", 5, "--batch", "1,4", "--depth", "0,20"),
        *("--repeat", 3, "--threads", 2, "--json"),
    )
    record = json.loads(result.stdout)
    assert record["threads"] == 2
    assert [
        (item["kind"], item.get("batch"), item.get("depth"), item["tokens"])
        for item in record["results"]
    ] == [
        ("prefill", None, None, 8),
        ("prefill", None, None, 16),
        ("decode", 1, 0, 5),
        ("decode", 4, 0, 5),
        ("decode", 1, 20, 5),
        ("decode", 4, 20, 5),
    ]
    for item in record["results"]:
        assert 0 < item["tok_s_min"] <= item["tok_s"] <= item["tok_s_max"]
    assert record["rss_peak_bytes"] > 1 << 20
    assert 0 < record["load_s"] <= record["first_token_s"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--prefill", "100"], "has 101 tokens, the window 100"),
        (["--prefill", "8", "--decode", "60", "--depth", "60"], "has 121 tokens"),
        (["--prefill", "8", "--batch", "5"], "more than the bundle's max_batch_size 4"),
        (["--prefill", "0"], "at least 1"),
    ],
)
def test_bench_refuses_what_does_not_fit(bundle: Path, arguments: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        invoke(bench_command.command, bundle, *arguments)


def test_bench_refuses_bad_lists(bundle: Path) -> None:
    assert invoke(bench_command.command, bundle, "--prefill", "8,x").exit_code == 2


def test_host_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nflags : other\n")
    assert cpuinfo_reader.host_features(cpuinfo) == {"fpu", "avx2", "fma"}
    assert cpuinfo_reader.host_features(tmp_path / "none") == frozenset()
