"""The Python engine over the C interface, with a stub of the runtime."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlcbuild.bundle import abi
from mlcbuild.bundle.abi import (
    BusyError,
    DeadlineError,
    EventKind,
    GrammarError,
    PromptTooLongError,
    Status,
    load_library,
    status_error,
)
from mlcbuild.bundle.native import NativeBundle, NativeEvent, Request, RequestUsage
from mlcbuild.bundle.selftest import compute_golden, run_golden
from mlcbuild.engine import Engine, EngineOptions, GenerationOptions, ScoredToken
from mlcbuild.engine.hub import Flight, Mail, RequestHub
from mlcbuild.errors import InternalError, ResourceError, UsageError, VerificationError
from tests.unit import stub_bundle

STRUCTS = {
    "mlcb_bundle_options": abi.BundleOptions,
    "mlcb_engine_options": abi.EngineOptions,
    "mlcb_logit_bias": abi.LogitBias,
    "mlcb_request_params": abi.RequestParams,
    "mlcb_token_logprob": abi.TokenLogprob,
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
    assert declared == set(abi._PROTOTYPES) | set(abi._LATER_PROTOTYPES)
    for kind, prefix in (
        (Status, "MLCB_ERROR_"),
        (abi.EventKind, "MLCB_EVENT_"),
        (abi.FinishReason, "MLCB_FINISH_"),
        (abi.GrammarKind, "MLCB_GRAMMAR_"),
        (abi.TextFlags, "MLCB_"),
    ):
        for item in kind:
            name = prefix + str(item.name) if item is not Status.OK else "MLCB_OK"
            if item.value or item is Status.OK or kind is not abi.TextFlags:
                assert f"{name} = {item.value}" in header, item


def test_generate_and_its_options(bundle: Path) -> None:
    with Engine(bundle) as engine:
        result = engine.generate([72, 105], max_tokens=5)
        assert result.text == "HiHiH"
        assert result.token_ids == (72, 105, 72, 105, 72)
        assert result.finish_reason == "length"
        assert "".join(engine.stream([72, 105], max_tokens=3)) == "HiH"
        assert engine.manifest.name == "stub"


def choices_of(engine: Engine) -> dict[str, object]:
    """What the stub was told; its limits and memory are always the same."""
    return {key: item for key, item in engine.info.items() if key not in ("kv", "limits", "memory")}


def test_every_engine_option_reaches_the_runtime(bundle: Path) -> None:
    with Engine(bundle) as engine:
        assert choices_of(engine) == {
            "variant": "stub",
            "activations": "int8",
            "threads": 0,
            "batch": 0,
            "kv_tokens": 0,
            "kv_bytes": 0,
            "mode": "server",
            "max_waiting": 0,
            "prefix_cache": 1,
            "speculation": "none",
            "speculation_tokens": 0,
            "draft": 0,
            "profile": 0,
        }
    options: EngineOptions = {
        "threads": 3,
        "activations": "float",
        "kv_tokens": 5,
        "max_batch_size": 2,
        "kv_bytes": 1 << 40,
        "mode": "local",
        "max_waiting": 7,
        "prefix_cache": False,
        "speculation": "draft",
        "speculation_tokens": 6,
        "draft": bundle,
        "profile": True,
    }
    with Engine(bundle, **options) as engine:
        assert choices_of(engine) == {
            "variant": "stub",
            "activations": "float",
            "threads": 3,
            "batch": 2,
            "kv_tokens": 5,
            "kv_bytes": 1 << 40,
            "mode": "local",
            "max_waiting": 7,
            "prefix_cache": 0,
            "speculation": "draft",
            "speculation_tokens": 6,
            "draft": 1,
            "profile": 1,
        }
    for wrong in (
        {"speculation": "draft"},
        {"draft": bundle, "speculation": "ngram"},
        {"kv_bytes": -1},
        {"threads": 1 << 32},
    ):
        with pytest.raises(UsageError):
            Engine(bundle, **wrong)
    with Engine(bundle, draft=bundle) as engine:  # a draft says what it is for
        assert engine.info["speculation"] == "draft"


def test_every_generation_option_reaches_the_runtime(bundle: Path) -> None:
    plain = {
        "tokens": 2,
        "n": 1,
        "max_tokens": 1,
        "temperature": 0,
        "top_p": 0,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "seed": 0,
        "logit_bias": [],
        "logprobs": 0,
        "top_logprobs": 0,
        "ignore_eos": 0,
        "stop": [],
        "stop_token_ids": [],
        "timeout_ms": 0,
        "grammar_kind": 0,
        "grammar": "",
    }
    with Engine(bundle) as engine:
        engine.generate([72, 105], max_tokens=1)
        assert engine.metrics()["last_request"] == plain
        options: GenerationOptions = {
            "max_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 3,
            "min_p": 0.125,
            "seed": 2**64 - 1,
            "repetition_penalty": 1.5,
            "presence_penalty": -1.5,
            "frequency_penalty": 0.75,
            "logit_bias": {5: -float("inf"), 6: 2.5},
            "logprobs": True,
            "top_logprobs": 2,
            "ignore_eos": True,
            "stop": ["xy", "z"],
            "stop_token_ids": [8, 9],
            "timeout": 1.5,
            "grammar": {"type": "regex", "value": "[ab]\\d"},
        }
        engine.generate_choices([72, 105], 2, **options)
        assert engine.metrics()["last_request"] == {
            "tokens": 2,
            "n": 2,
            "max_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 3,
            "min_p": 0.125,
            "repetition_penalty": 1.5,
            "presence_penalty": -1.5,
            "frequency_penalty": 0.75,
            "seed": 2**64 - 1,
            "logprobs": 1,
            "top_logprobs": 2,
            "logit_bias": [[5, "-inf"], [6, 2.5]],
            "ignore_eos": 1,
            "stop": ["xy", "z"],
            "stop_token_ids": [8, 9],
            "timeout_ms": 1500,
            "grammar_kind": 3,
            "grammar": "[ab]\\d",
        }
        with pytest.raises(UsageError, match="temprature"):
            engine.generate([1], temprature=1)  # type: ignore[call-arg]


def test_choices_logprobs_and_usage(bundle: Path) -> None:
    with Engine(bundle) as engine:
        first, second = engine.generate_choices([72, 105], 2, max_tokens=3, logprobs=True)
        assert (first.text, second.text) == ("HiH", "iHi")
        assert second.token_ids == (105, 72, 105)
        assert second.logprobs == tuple(ScoredToken(token, -token / 64) for token in (105, 72, 105))
        assert second.usage == RequestUsage(2, 1, 3, 0.25, 0.5, 2.0)
        (likely,) = engine.generate([72], max_tokens=1, logprobs=True, top_logprobs=2).logprobs
        assert likely.top == ((72, -72 / 64), (73, -72 / 64 - 1))
        assert engine.generate([72], max_tokens=1).logprobs == ()
        events = list(engine.stream_events([72, 105], n=3, max_tokens=2))
        for choice in range(3):
            mine = [event.text for event in events if event.choice == choice]
            assert "".join(mine) == ("Hi", "iH", "Hi")[choice]
        stopped = engine.generate([72, 105, 33], stop="!")
        assert (stopped.text, stopped.finish_reason, stopped.stop_string) == ("Hi", "stop", "!")
        ended = engine.generate([72, 105, 259])
        assert (ended.text, ended.finish_reason, ended.stop_string) == ("Hi", "stop", None)
        with pytest.raises(UsageError, match="timeout is 0"):
            engine.generate([72], timeout=0)
        with pytest.raises(UsageError, match="n is 0"):
            engine.generate_choices([72], 0)


def test_deadlines_and_full_queues(bundle: Path) -> None:
    with Engine(bundle, max_waiting=1) as engine:
        late = engine.generate([72, 105], timeout=0.007)
        assert (late.text, late.finish_reason) == ("Hi", "deadline")
        with pytest.raises(DeadlineError, match="waited too long"):
            engine.generate([72, 105], timeout=0.006)
        with engine.stream([72]) as stream:
            next(stream)
            with pytest.raises(BusyError, match="queue is full") as busy:
                engine.generate([72])
            assert "try again later" in str(busy.value)
        assert engine.drain(5)
        assert engine.generate([72], max_tokens=1).text == "H"


def test_grammars(bundle: Path) -> None:
    with Engine(bundle) as engine:
        for given, kind, text in (
            ({"type": "json"}, 1, ""),
            ({"type": "json_schema", "value": {"b": 1, "a": "\u00e9"}}, 2, '{"b":1,"a":"\u00e9"}'),
            ({"type": "ebnf", "value": "root ::= x"}, 4, "root ::= x"),
            ({"type": "structure", "value": {"x": 1}}, 5, '{"x":1}'),
        ):
            engine.generate([72], max_tokens=1, grammar=given)
            request = engine.metrics()["last_request"]
            assert (request["grammar_kind"], request["grammar"]) == (kind, text)
        with pytest.raises(GrammarError, match="bad is not good"):
            engine.generate([72], grammar={"type": "regex", "value": "bad"})
        with pytest.raises(UsageError, match="grammar: type: input should be"):
            engine.generate([72], grammar={"type": "perl", "value": "x"})
        with pytest.raises(UsageError, match="NUL"):
            engine.generate([72], grammar={"type": "regex", "value": "a\0b"})


def test_figures_and_cache(bundle: Path) -> None:
    with Engine(bundle) as engine:
        assert engine.prometheus_metrics() == "mlcb_running 0\n"
        assert engine.metrics()["cleared"] == 0
        engine.clear_cache()
        assert engine.metrics()["cleared"] == 1


def test_prompts(bundle: Path) -> None:
    with Engine(bundle) as engine:
        assert engine.tokenize("ab") == [97] * 4 + [98] * 4
        assert engine.prompt_token_ids("a", raw=True) == [256] * 4 + [97] * 4
        messages = [{"role": "user", "content": "\u00e9"}]
        text = '{"messages":[{"role":"user","content":"\u00e9"}],"add_generation_prompt":true}'
        assert engine.render_chat(messages) == text
        assert engine.render_chat(messages, generation_prompt=False) == text.replace(
            "true", "false"
        )
        assert engine.prompt_token_ids("\u00e9") == engine.tokenize(text)
        tools = [{"type": "function", "function": {"name": "f", "description": "d"}}]
        rendered = engine.render_chat(
            messages,
            generation_prompt=False,
            tools=tools,
            continue_final_message=True,
            now=5,
            variables={"v": 1},
        )
        assert json.loads(rendered) == {
            "messages": messages,
            "add_generation_prompt": False,
            "tools": tools,
            "continue_final_message": True,
            "now": 5,
            "variables": {"v": 1},
        }
        with pytest.raises(UsageError, match="the template says: no"):
            engine.render_chat([{"role": "user", "content": "REFUSE"}])
        with pytest.raises(UsageError, match="surrogate"):
            engine.tokenize("\ud800")
        with pytest.raises(UsageError, match="is not JSON"):
            engine.render_chat(messages, variables={"v": float("nan")})
        assert engine.prompt_token_ids(list(np.array([1, 2]))) == [1, 2]
        assert engine.detokenize([72, 0xE9]) == "H" * 20 + "\ufffd" * 20
        long = "x" * 5000
        assert engine.tokenize(long) == [120] * 20000
        assert len(engine.detokenize([72] * 1000)) == 20000
        with pytest.raises(UsageError, match="mixture"):
            engine.prompt_token_ids([1, {"role": "user", "content": "x"}])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="an integer, not float"):
            engine.prompt_token_ids([1.5])  # type: ignore[arg-type]


def test_base_model_wants_raw_prompts(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise UsageError("this model has no role user")

    monkeypatch.setattr(NativeBundle, "render_chat", refuse)
    with Engine(bundle) as engine:
        with pytest.raises(UsageError, match="no role user"):
            engine.generate("a")
        opened = type(engine._native.bundle)
    monkeypatch.setattr(opened, "read_json", lambda *_: {"template": None})
    with Engine(bundle) as engine, pytest.raises(UsageError, match="no chat template"):
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
        assert engine._hub.in_flight == 0
    assert results == {number: chr(65 + number) * (20 + number) for number in range(8)}


def test_leaving_a_stream_cancels_the_request(bundle: Path) -> None:
    with Engine(bundle) as engine:
        stream = engine.stream_events([65], max_tokens=90)
        next(stream)
        stream.close()
        assert list(stream) == []
        with engine.stream([65], max_tokens=90) as texts:
            next(texts)
        forgotten = engine.stream([65], max_tokens=90)
        del forgotten
        assert engine._hub.in_flight == 0
        assert engine.drain(5)
        assert engine.metrics()["cancelled"] == 3
        assert engine.generate([66], max_tokens=3).text == "BBB"
        stream.close()
        assert engine.metrics()["cancelled"] == 3


def test_interrupt_cancels_the_requests(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(bundle) as engine:
        events = iter([None, KeyboardInterrupt])
        real = Flight.read

        def interrupted(self: Flight, mail: Mail) -> tuple[int, NativeEvent]:
            if (error := next(events)) is not None:
                raise error
            return real(self, mail)

        monkeypatch.setattr(Flight, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch([[65], [66], [67]], max_tokens=90)
        monkeypatch.undo()
        assert engine.drain(5)
        assert engine.metrics()["cancelled"] == 3
        assert engine.generate([66], max_tokens=3).text == "BBB"


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
        with pytest.raises(UsageError, match="max_tokens 1099511627776 is out of range"):
            engine.generate([1], max_tokens=1 << 40)
        with pytest.raises(UsageError, match="holds a NUL"):
            engine.generate([1], stop="a\0")
        assert engine.generate([66], max_tokens=3).text == "BBB"
        assert engine._hub.in_flight == 0
    for call in (engine.generate, engine.tokenize):
        with pytest.raises(UsageError, match="the engine is closed"):
            call("a")
    engine.close()


WRONG: list[tuple[Any, str]] = [
    (lambda engine: engine.generate(None), "not NoneType"),
    (lambda engine: engine.generate(b"a"), "not bytes"),
    (lambda engine: engine.generate([True]), "an integer, not True"),
    (lambda engine: engine.generate([1], temperature="x"), "temperature is 'x', expected a number"),
    (lambda engine: engine.generate([1], max_tokens=1.5), "max_tokens is 1.5, expected a whole"),
    (lambda engine: engine.generate([1], max_token=1), 'did you mean "max_tokens"'),
    (lambda engine: engine.generate_batch("abc"), "not one text"),
    (lambda engine: engine.logits("a"), "an integer, not str"),
    (lambda engine: engine.tokenize(None), "a text, not NoneType"),
    (lambda engine: engine.render_chat("x"), "messages are a list"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_types_are_told(bundle: Path, call: Any, message: str) -> None:
    with Engine(bundle) as engine, pytest.raises(UsageError, match=message):
        call(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 1}, 'did you mean "threads"'),
        ({"threads": "2"}, "threads is '2', expected a whole number"),
        ({"speculation": "draft"}, "goes with speculation"),
        ({"speculation": "ngram", "draft": "x"}, "goes with speculation"),
        ({"draft": 5}, "not int"),
    ],
)
def test_wrong_engine_options(bundle: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Engine(bundle, **options)


def test_a_broken_poll_is_an_error_not_a_hang(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(bundle) as engine:

        def broken(*_: object) -> None:
            raise ValueError("no such event")

        monkeypatch.setattr(engine._engine, "poll", broken)
        with pytest.raises(InternalError, match="do not read") as error:
            engine.generate([65])
        assert "no such event" in str(error.value)


class HastyEngine:
    """An engine whose events come before ``submit`` has returned."""

    def __init__(self, bundle: Path) -> None:
        self.native = SimpleNamespace(bundle=SimpleNamespace(path=bundle))
        self.events: SimpleQueue[NativeEvent] = SimpleQueue()
        self.polled = threading.Event()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def submit(self, request: Request) -> int:
        self.events.put(NativeEvent(7, EventKind.TOKEN, 65, "A", None, 0))
        self.events.put(NativeEvent(7, EventKind.DONE, -1, "", "stop", 0))
        # At the second look for more, the first two have been taken up.
        for _ in range(2):
            self.polled.clear()
            assert self.polled.wait(10)
        return 7

    def poll(self, timeout_ms: int = 0) -> NativeEvent | None:
        try:
            return (
                self.events.get(timeout=timeout_ms / 1000) if timeout_ms else self.events.get(False)
            )
        except Empty:
            self.polled.set()
            return None


def test_events_that_come_before_their_requests_id(tmp_path: Path) -> None:
    posts: list[Any] = []
    hub = RequestHub(HastyEngine(tmp_path), posts.extend)  # type: ignore[arg-type]
    hub.submit(Request([65]), "box", 3)
    assert [(box, position, event.kind) for box, (position, event) in posts] == [
        ("box", 3, EventKind.TOKEN),
        ("box", 3, EventKind.DONE),
    ]
    assert hub.wait_idle(1)
    hub.close()


def test_closing_ends_what_runs(bundle: Path) -> None:
    engine = Engine(bundle)
    found: list[BaseException] = []
    running = threading.Event()

    def work() -> None:
        try:
            for _ in engine.stream([65], max_tokens=90):
                running.set()
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(10)
    engine.close()
    thread.join(10)
    assert "closed while a request was running" in str(found[0])
    for call in (lambda: engine.tokenize("a"), lambda: engine.info, lambda: engine.generate([1])):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_forgotten_engine_does_not_keep_the_process(bundle: Path) -> None:
    script = (
        "import sys; from mlcbuild.engine import Engine; engine = Engine(sys.argv[1]);"
        "stream = engine.stream([65], max_tokens=90); print(next(stream))"
    )
    command = [sys.executable, "-c", script, str(bundle)]
    done = subprocess.run(
        command, cwd=stub_bundle.HERE.parents[1], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\n", "")


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
    with pytest.raises(VerificationError, match="ABI version 9, this mlcbuild 2"):
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
