"""The Python engine over the C interface, with a stub of the runtime."""

from __future__ import annotations

import ctypes
import json
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from mlcbuild.bundle import abi
from mlcbuild.bundle.abi import PromptTooLongError, Status, load_library, status_error
from mlcbuild.bundle.native import NativeBundle
from mlcbuild.bundle.selftest import compute_golden, run_golden
from mlcbuild.engine import Engine
from mlcbuild.errors import InternalError, ResourceError, UsageError, VerificationError
from tests.unit import stub_bundle

STRUCTS = {
    "mlcb_bundle_options": abi.BundleOptions,
    "mlcb_engine_options": abi.EngineOptions,
    "mlcb_request_params": abi.RequestParams,
    "mlcb_event": abi.Event,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    library = stub_bundle.compile_stub(folder)
    stub_bundle.make_bundle(folder / "bundle", library.read_bytes())
    return folder / "bundle"


def test_structs_lie_as_the_header_says(tmp_path: Path) -> None:
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));'
            for field in struct._fields_
        ]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <mlcb.h>\nint main(void) {" + "\n".join(lines) + "}\n"
    )
    program = stub_bundle.compile_c(source, tmp_path / "layout")
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    found = dict(line.split() for line in output.splitlines())
    for name, struct in STRUCTS.items():
        assert ctypes.sizeof(struct) == int(found[name]), name
        for field in struct._fields_:
            assert getattr(struct, field[0]).offset == int(found[f"{name}.{field[0]}"]), field


def test_every_function_of_the_header_has_a_prototype() -> None:
    header = (stub_bundle.INCLUDE / "mlcb.h").read_text()
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in header.splitlines()
        if line.startswith("MLCB_API ")
    }
    assert declared == set(abi._PROTOTYPES)
    for kind, prefix in (
        (Status, "MLCB_ERROR_"),
        (abi.EventKind, "MLCB_EVENT_"),
        (abi.FinishReason, "MLCB_FINISH_"),
        (abi.TextFlags, "MLCB_"),
    ):
        for item in kind:
            name = prefix + str(item.name) if item is not Status.OK else "MLCB_OK"
            if item.value or item is Status.OK or kind is not abi.TextFlags:
                assert f"{name} = {item.value}" in header, item


def test_generate_and_its_options(bundle: Path) -> None:
    with Engine(bundle, threads=3, activations="float", kv_tokens=5, max_batch_size=2) as engine:
        assert engine.info == {
            "variant": "stub",
            "activations": "float",
            "threads": 3,
            "batch": 2,
            "kv": 5,
        }
        result = engine.generate([72, 105], max_tokens=5)
        assert result.text == "HiHiH"
        assert result.token_ids == (72, 105, 72, 105, 72)
        assert result.finish_reason == "length"
        assert "".join(engine.stream([72, 105], max_tokens=3)) == "HiH"
        assert engine.manifest.name == "stub"


def test_prompts(bundle: Path) -> None:
    with Engine(bundle) as engine:
        assert engine.tokenize("ab") == [97] * 4 + [98] * 4
        assert engine.prompt_token_ids("a", raw=True) == [256] * 4 + [97] * 4
        messages = [{"role": "user", "content": "\u00e9"}]
        text = '[{"content":"\u00e9","role":"user"}]'
        assert engine.render_chat(messages) == text + ">"
        assert engine.render_chat(messages, generation_prompt=False) == text
        assert engine.prompt_token_ids("\u00e9") == engine.tokenize(text + ">")
        assert engine.prompt_token_ids(list(np.array([1, 2]))) == [1, 2]
        assert engine.detokenize([72, 0xE9]) == "H" * 20 + "\ufffd" * 20
        long = "x" * 5000
        assert engine.tokenize(long) == [120] * 20000
        assert len(engine.detokenize([72] * 1000)) == 20000
        with pytest.raises(UsageError, match="mixture"):
            engine.prompt_token_ids([1, {"role": "user", "content": "x"}])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="not an integer"):
            engine.prompt_token_ids([1.5])  # type: ignore[arg-type]


def test_base_model_wants_raw_prompts(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(bundle) as engine:

        def refuse(*_: object) -> str:
            raise UsageError("this model has no role user")

        monkeypatch.setattr(engine._native, "render_chat", refuse)
        with pytest.raises(UsageError, match="no role user"):
            engine.generate("a")
        monkeypatch.setattr(type(engine._native.bundle), "read_json", lambda *_: {"roles": {}})
        with pytest.raises(UsageError, match="no chat template"):
            engine.generate("a")


def test_logits(bundle: Path) -> None:
    with Engine(bundle) as engine:
        rows = engine.logits([7, 9])
    assert rows.shape == (2, 260)
    assert rows.dtype == np.float32
    assert rows.argmax(axis=1).tolist() == [9, 7]
    assert rows[1, 0] == 1


def test_batch_gives_what_one_by_one_gives(bundle: Path) -> None:
    prompts = [[65 + i, 97 + i] for i in range(9)]
    with Engine(bundle) as engine:
        together = engine.generate_batch(prompts, max_tokens=7)
        assert together == [engine.generate(prompt, max_tokens=7) for prompt in prompts]


def test_one_engine_used_by_several_threads(bundle: Path) -> None:
    results: dict[int, str] = {}
    with Engine(bundle) as engine:

        def work(number: int) -> None:
            for _ in range(5):
                results[number] = engine.generate([65 + number], max_tokens=20 + number).text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert engine._events == {}
    assert results == {number: chr(65 + number) * (20 + number) for number in range(8)}


def test_leaving_a_stream_cancels_the_request(bundle: Path) -> None:
    with Engine(bundle) as engine:
        unstarted = engine.stream([65], max_tokens=50)
        stream = engine.stream_events([65], max_tokens=50)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert engine._events == {}
        assert len(engine._abandoned) == 1
        assert engine.generate([66], max_tokens=3).text == "BBB"
        assert engine._abandoned == set()
        assert not engine._engine.step()  # nothing is left
        del unstarted


def test_interrupt_cancels_the_request(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(bundle) as engine:
        steps = iter([None, KeyboardInterrupt])
        step = engine._engine.step

        def interrupted() -> bool:
            if (error := next(steps)) is not None:
                raise error
            return step()

        monkeypatch.setattr(engine._engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch([[65], [66], [67]], max_tokens=9)
        monkeypatch.undo()
        assert engine._events == {}
        assert engine.generate([66], max_tokens=3).text == "BBB"
        assert not engine._engine.step()


def test_errors_of_requests(bundle: Path) -> None:
    with Engine(bundle) as engine:
        with pytest.raises(PromptTooLongError, match="101 tokens do not fit") as long:
            engine.generate([1] * 101)
        assert long.value.exit_code == 2
        with pytest.raises(UsageError, match="temperature is negative"):
            engine.generate([1], temperature=-1)
        with pytest.raises(InternalError, match="a kernel failed"):
            engine.generate([65, 258], max_tokens=5)
        with pytest.raises(InternalError, match="a kernel failed"):
            engine.generate_batch([[66], [65, 258], [67]], max_tokens=5)
        with pytest.raises(UsageError, match="empty stop string"):
            engine.generate([1], stop=["a", ""])
        with pytest.raises(UsageError, match="seed"):
            engine.generate([1], seed=-1)
        with pytest.raises(UsageError, match="out of range"):
            engine.generate([1 << 40])
        assert engine.generate([66], max_tokens=3).text == "BBB"
        assert engine._events == {}
    with pytest.raises(UsageError, match="closed"):
        engine.generate([1])
    engine.close()


def test_a_lost_request_is_an_error_not_a_hang(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(bundle) as engine:
        monkeypatch.setattr(engine._engine, "step", lambda: False)
        with pytest.raises(InternalError, match="lost request"):
            engine.generate([65])


def test_errors_of_engine_and_bundle(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="lacks avx9") as device:
        Engine(bundle, variant="avx9")
    assert device.value.exit_code == 7
    with pytest.raises(VerificationError) as altered:
        Engine(bundle, verify_full=True)
    assert altered.value.why == "a bit flipped"
    assert altered.value.hint == "copy it again"
    stub_bundle.make_bundle(tmp_path / "text")
    with pytest.raises(VerificationError, match="does not load"):
        Engine(tmp_path / "text")


def test_other_abi_version_names_both(tmp_path: Path) -> None:
    library = stub_bundle.compile_stub(tmp_path, "-DSTUB_ABI_VERSION=9")
    with pytest.raises(VerificationError, match="ABI version 9, this mlcbuild 1"):
        load_library(library)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_status_has_an_error(status: Status) -> None:
    error = status_error(status, "it broke", "here")
    assert str(error).startswith("here: it broke")
    expected = 2 if status < 20 else 6 if status < 40 else 7 if status < 60 else 1
    assert error.exit_code == (1 if status is Status.TOO_SMALL else expected)


def test_self_test(bundle: Path) -> None:
    with NativeBundle.open(bundle) as native:
        # The stub's logits favour the id that follows in the circle of what it was given.
        golden = compute_golden(native, [65, 66], count=3)
        assert golden["greedy_token_ids"] == [65, 66, 65]
        assert golden["top_logits"][0] == [65, 11.0]
        assert len(golden["top_logits"]) == 8
        assert json.loads(json.dumps(golden)) == golden
        report = run_golden(native)
        assert report.expected == report.decoded == 3
        assert report.max_difference == 0
