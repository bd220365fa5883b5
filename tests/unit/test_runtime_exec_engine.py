"""The bundle's runtime: numbers, batching, streaming, limits, errors at the C interface."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.bundle import abi
from mlcbuild.bundle.abi import FinishReason, Status
from tests.unit import fake_bundle
from tests.unit.fake_bundle import FORBIDDEN, IM_END, TOKENIZER_VOCAB, VOCAB, FakeLimits
from tests.unit.fake_runtime import Bundle, Engine, Runtime, RuntimeFailure

PROMPTS = [
    [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]
    for seed, length in ((1, 5), (2, 37), (3, 1), (4, 18))
]


@pytest.fixture(scope="module")
def binaries(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return fake_bundle.build_binaries(pytestconfig.cache)


@pytest.fixture(scope="module")
def bundle(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("exec") / "bundle"
    fake_bundle.make_bundle(folder, binaries)
    with Runtime(folder / "lib" / "libmlcb.so").open(folder) as opened:
        yield opened


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[Engine]:
    with bundle.engine() as engine:
        yield engine


def failure_of(call: Any, *arguments: Any, **options: Any) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        call(*arguments, **options)
    return caught.value


def greedy_reference(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        row = fake_bundle.reference_logits(tokens)[-1, :TOKENIZER_VOCAB]
        tokens.append(int(row.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("length", [1, 4, 5, 16, 17, 50, 96])
def test_logits_match_the_reference(engine: Engine, length: int) -> None:
    tokens = [int(t) for t in np.random.default_rng(length).integers(0, VOCAB - 1, length)]
    expected = fake_bundle.reference_logits(tokens)
    assert np.abs(engine.logits(tokens) - expected).max() < 2e-3


def test_logits_leave_nothing_behind(engine: Engine) -> None:
    first = engine.logits(PROMPTS[1])
    engine.submit(PROMPTS[0], max_tokens=20)
    for _ in range(3):
        engine.step()
    assert (engine.logits(PROMPTS[1]) == first).all()
    alone = engine.run()[1].tokens
    assert alone == engine.generate(PROMPTS[0], max_tokens=20).tokens


def test_greedy_text_matches_the_reference(engine: Engine) -> None:
    outcome = engine.generate(PROMPTS[0], max_tokens=24, ignore_eos=1)
    assert outcome.tokens == greedy_reference(PROMPTS[0], 24)
    assert outcome.finish == FinishReason.LENGTH
    raw = bytes(token for token in outcome.tokens if token < 256)
    assert outcome.text == raw.decode(errors="replace")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 2.0, "top_p": 0.95, "top_k": 40}])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batch_gives_the_same_text(bundle: Bundle, sampling: Any, threads: int) -> None:
    with bundle.engine(threads=threads) as engine:
        wishes = [{"max_tokens": 30, "seed": i, "ignore_eos": 1, **sampling} for i in range(4)]
        alone = [engine.generate(p, **w).tokens for p, w in zip(PROMPTS, wishes, strict=True)]
        ids = [engine.submit(p, **w) for p, w in zip(PROMPTS, wishes, strict=True)]
        outcomes = engine.run()
        assert [outcomes[i].tokens for i in ids] == alone
        # Arriving one after the other, so that prompts and decoding mix in one step.
        late: list[int] = [engine.submit(PROMPTS[0], **wishes[0])]

        def submit_next(_: int) -> None:
            if len(late) < len(PROMPTS):
                late.append(engine.submit(PROMPTS[len(late)], **wishes[len(late)]))

        outcomes = engine.run(submit_next)
        assert [outcomes[i].tokens for i in late] == alone


def test_chunked_prefill_equals_one_shot(binaries: Path, tmp_path: Path) -> None:
    texts, logits = [], []
    for chunk in (4, 7, 64):
        folder = tmp_path / str(chunk)
        fake_bundle.make_bundle(folder, binaries, FakeLimits(chunk=chunk))
        opened = Runtime(folder / "lib" / "libmlcb.so").open(folder)
        with opened, opened.engine() as engine:
            texts.append(engine.generate(PROMPTS[1], max_tokens=25).tokens)
            logits.append(engine.logits(PROMPTS[1]))
    assert texts[0] == texts[1] == texts[2]
    assert (logits[0] == logits[2]).all()
    assert (logits[1] == logits[2]).all()


def test_more_requests_than_fit(engine: Engine) -> None:
    ids = [engine.submit(PROMPTS[i % 4], max_tokens=5 + i) for i in range(11)]
    outcomes = engine.run()
    for number, request_id in enumerate(ids):
        again = engine.generate(PROMPTS[number % 4], max_tokens=5 + number)
        assert outcomes[request_id].tokens == again.tokens
        assert outcomes[request_id].finish != FinishReason.NONE


def test_small_cache_makes_requests_wait(bundle: Bundle) -> None:
    with bundle.engine(kv_tokens=60) as engine:
        assert engine.info["limits"]["context_window_size"] == 60
        ids = [engine.submit(PROMPTS[1], max_tokens=10, ignore_eos=1) for _ in range(3)]
        outcomes = engine.run()
        assert len({tuple(outcomes[i].tokens) for i in ids}) == 1
        assert len(outcomes[ids[0]].tokens) == 10
        # Without max_tokens a text ends where the cache does.
        outcome = engine.generate(PROMPTS[1], ignore_eos=1)
        assert len(outcome.tokens) == 60 - len(PROMPTS[1])
        assert outcome.finish == FinishReason.LENGTH
        failure = failure_of(engine.submit, [1] * 61)
        assert failure.status == Status.TOO_LONG
        assert "61 tokens, the KV cache holds 60" in failure.message
        engine.submit([1] * 57)  # all but a page of the cache
        for _ in range(4):
            engine.step()
        assert failure_of(engine.logits, [1, 2]).status == Status.MEMORY
        engine.run()
        engine.logits([1, 2])


def test_context_window_ends_a_text(engine: Engine) -> None:
    outcome = engine.generate([1] * 90, ignore_eos=1)
    assert (len(outcome.tokens), outcome.finish) == (6, FinishReason.LENGTH)
    outcome = engine.generate([1] * 96, ignore_eos=1)
    assert (len(outcome.tokens), outcome.finish) == (1, FinishReason.LENGTH)
    failure = failure_of(engine.submit, [1] * 97)
    assert failure.status == Status.TOO_LONG
    assert failure_of(engine.logits, [1] * 97).status == Status.TOO_LONG


def test_stop_token(engine: Engine) -> None:
    for seed in range(100):
        wishes = {"max_tokens": 80, "temperature": 50, "seed": seed}
        free = engine.generate([65], ignore_eos=1, **wishes).tokens
        if IM_END in free:
            break
    outcome = engine.generate([65], **wishes)
    assert outcome.tokens == free[: free.index(IM_END)]
    assert outcome.finish == FinishReason.STOP


def test_stop_string(engine: Engine) -> None:
    free = engine.generate(PROMPTS[3], max_tokens=40, temperature=1.5, seed=5).text
    ascii_pairs = [free[i : i + 2] for i in range(1, len(free) - 1) if free[i : i + 2].isascii()]
    stop = ascii_pairs[-1]
    outcome = engine.generate(PROMPTS[3], stop=[stop], max_tokens=40, temperature=1.5, seed=5)
    assert outcome.finish == FinishReason.STOP
    assert outcome.text == free[: free.index(stop)]
    assert outcome.stop_string == stop
    # ignore_eos is about the model's own stops.
    again = engine.generate(
        PROMPTS[3], stop=[stop], max_tokens=40, temperature=1.5, seed=5, ignore_eos=1
    )
    assert (again.text, again.finish) == (outcome.text, FinishReason.STOP)


def test_padding_is_never_sampled(engine: Engine) -> None:
    for seed in range(6):
        outcome = engine.generate([5], max_tokens=90, temperature=50, ignore_eos=1, seed=seed)
        assert max(outcome.tokens) < TOKENIZER_VOCAB


def test_cancel(engine: Engine) -> None:
    first = engine.submit(PROMPTS[0], ignore_eos=1)
    second = engine.submit(PROMPTS[1], max_tokens=8)
    for _ in range(4):
        engine.step()
    engine.cancel(first)
    outcomes = engine.run()
    assert outcomes[first].finish == FinishReason.CANCEL
    assert outcomes[second].tokens == engine.generate(PROMPTS[1], max_tokens=8).tokens
    assert failure_of(engine.cancel, first).status == Status.NOT_FOUND
    waiting = engine.submit(PROMPTS[0])
    engine.cancel(waiting)
    assert engine.run()[waiting].finish == FinishReason.CANCEL
    assert engine.outcomes[waiting].tokens == []


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_leaks_no_page(bundle: Bundle, seed: int) -> None:
    """Requests come, fail, end and are cancelled at every stage; nothing of them stays."""
    random = np.random.default_rng(seed)
    sampling: Any = {"temperature": 2.0, "top_k": 50, "ignore_eos": 1}
    limits = [{"kv_tokens": 96}, {"kv_tokens": 150}, {"max_batch_size": 1}, {}][seed]
    with bundle.engine(threads=1 + seed % 2, **limits) as engine:
        alone = [engine.generate(p, max_tokens=12, seed=1, **sampling).tokens for p in PROMPTS]
        of_prompt: dict[int, int] = {}
        for _ in range(60):
            action = random.integers(0, 8)
            if action < 3:
                number = int(random.integers(0, len(PROMPTS)))
                request_id = engine.submit(PROMPTS[number], max_tokens=12, seed=1, **sampling)
                of_prompt[request_id] = number
            elif action == 3 and of_prompt:
                with contextlib.suppress(RuntimeFailure):  # it has ended already
                    engine.cancel(int(random.choice(list(of_prompt))))
            elif action == 4:
                with contextlib.suppress(RuntimeFailure):  # no room, or the kernel's error
                    engine.logits([1, 2, int(random.choice([3, FORBIDDEN]))])
            else:
                engine.step()
        outcomes = engine.run()
        cancelled = 0
        for request_id, number in of_prompt.items():
            tokens = outcomes[request_id].tokens
            if outcomes[request_id].finish == FinishReason.CANCEL:
                cancelled += 1
                assert tokens == alone[number][: len(tokens)]
            else:
                assert tokens == alone[number]
        assert 0 < cancelled < len(of_prompt)
        # The whole window fits again, and what was left in the pages does not show.
        tokens = [int(t) for t in random.integers(0, VOCAB - 1, 96)]
        assert np.abs(engine.logits(tokens) - fake_bundle.reference_logits(tokens)).max() < 2e-3


def test_start_stop_and_destroy_while_requests_run(bundle: Bundle) -> None:
    with bundle.engine(threads=2) as engine:
        alone = engine.generate(PROMPTS[0], max_tokens=60, ignore_eos=1).tokens
        library, handle = engine.library, engine.handle
        ids = [engine.submit(PROMPTS[0], max_tokens=60, ignore_eos=1) for _ in range(6)]
        while not all(engine.outcomes[i].done for i in ids):
            engine.runtime.check(library.mlcb_engine_start(handle))
            engine.poll(1)
            engine.runtime.check(library.mlcb_engine_stop(handle))
            engine.step()
        assert all(engine.outcomes[i].tokens == alone for i in ids)
        engine.submit(PROMPTS[0], ignore_eos=1)
        engine.runtime.check(library.mlcb_engine_start(handle))


def test_submitting_from_many_threads(bundle: Bundle) -> None:
    with bundle.engine(threads=2) as engine:
        alone = [engine.generate(p, max_tokens=10, ignore_eos=1).tokens for p in PROMPTS]
        engine.runtime.check(engine.library.mlcb_engine_start(engine.handle))
        submitted: list[tuple[int, int]] = []

        def submit(number: int) -> None:
            for _ in range(10):
                request_id = engine.submit(PROMPTS[number], max_tokens=10, ignore_eos=1)
                submitted.append((request_id, number))

        threads = [threading.Thread(target=submit, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        while not all(engine.outcomes[i].done for i, _ in submitted):
            assert engine.poll(20_000)
        assert len({request_id for request_id, _ in submitted}) == 40
        assert all(engine.outcomes[i].tokens == alone[number] for i, number in submitted)


def test_kernel_error_reaches_its_requests(engine: Engine) -> None:
    failure = failure_of(engine.logits, [1, FORBIDDEN])
    assert failure.status == Status.KERNEL
    assert failure.message == "embed: ValueError: fake kernel: embed: the forbidden token"
    good = engine.generate(PROMPTS[0], max_tokens=4)
    bad = engine.submit([FORBIDDEN], max_tokens=4)
    outcome = engine.run()[bad]
    assert outcome.status == Status.KERNEL
    assert "the forbidden token" in outcome.message
    assert engine.generate(PROMPTS[0], max_tokens=4).tokens == good.tokens


def test_error_inside_a_parallel_part(binaries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    fake_bundle.make_bundle(folder, binaries)
    plan = fake_bundle.make_plan(FakeLimits(), "fast", "int8")
    add = fake_bundle.KERNELS.index("add")
    for call in plan["functions"][1]["calls"]:
        if call[0] == add:
            call[1][2] = ["f", 1e38]
    fake_bundle.write_plan(folder, plan)
    opened = Runtime(folder / "lib" / "libmlcb.so").open(folder)
    with opened, opened.engine(threads=2) as engine:
        failure = failure_of(engine.logits, [1, 2, 3])
    assert failure.status == Status.KERNEL
    assert failure.message == "matmul: ValueError: matmul: not a number"


def test_barrier_is_refused(binaries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    fake_bundle.make_bundle(folder, binaries)
    plan = fake_bundle.make_plan(FakeLimits(), "fast", "int8")
    plan["kernels"].append("barrier")
    plan["functions"][1]["calls"].append([len(plan["kernels"]) - 1, []])
    fake_bundle.write_plan(folder, plan)
    with Runtime(folder / "lib" / "libmlcb.so").open(folder) as opened:
        for threads in (1, 2):
            with opened.engine(threads=threads) as engine:
                failure = failure_of(engine.logits, [1, 2, 3])
                assert failure.status == Status.KERNEL
                assert "barrier" in failure.message


def test_own_thread(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        alone = [engine.generate(p, max_tokens=20).tokens for p in PROMPTS]
        assert failure_of(engine.poll, 10).status == Status.ARGUMENT
        library, handle = engine.library, engine.handle
        engine.runtime.check(library.mlcb_engine_start(handle))
        engine.runtime.check(library.mlcb_engine_start(handle))
        assert engine.poll(5) is False
        ids = [engine.submit(p, max_tokens=20) for p in PROMPTS]
        while not all(engine.outcomes[i].done for i in ids):
            assert engine.poll(20_000)
        assert [engine.outcomes[i].tokens for i in ids] == alone

        def wait_for_events() -> None:
            with contextlib.suppress(RuntimeFailure):  # asked after the thread was gone
                while engine.poll(-1):
                    pass

        engine.submit(PROMPTS[0], ignore_eos=1)
        assert engine.logits([1, 2, 3]).shape == (3, VOCAB)  # beside the running request
        waiter = threading.Thread(target=wait_for_events)
        waiter.start()
        engine.runtime.check(library.mlcb_engine_stop(handle))
        waiter.join(20)
        assert not waiter.is_alive()


def test_two_engines_at_once(bundle: Bundle) -> None:
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        with bundle.engine(threads=2) as engine:
            results[number] = engine.generate(PROMPTS[1], max_tokens=40, ignore_eos=1).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 40


def test_engine_outlives_the_bundle_handle(binaries: Path, tmp_path: Path) -> None:
    fake_bundle.make_bundle(tmp_path / "bundle", binaries)
    opened = Runtime(tmp_path / "bundle" / "lib" / "libmlcb.so").open(tmp_path / "bundle")
    with opened.engine() as engine:
        opened.close()
        assert len(engine.generate(PROMPTS[0], max_tokens=5, ignore_eos=1).tokens) == 5


def test_choice_of_variant(bundle: Bundle) -> None:
    for wishes, name, activations in (
        ({}, "fast", "int8"),
        ({"activations": b"float"}, "plain", "float"),
        ({"variant": b"plain"}, "plain", "float"),
    ):
        with bundle.engine(threads=2, **wishes) as engine:
            info = engine.info
            assert (info["variant"], info["activations"]) == (name, activations)
            assert info["threads"] == 2
            assert info["memory"]["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    failure = failure_of(bundle.engine, variant=b"future")
    assert failure.status == Status.DEVICE
    assert "future needs avx9000" in failure.message
    failure = failure_of(bundle.engine, variant=b"plain", activations=b"int8")
    assert failure.status == Status.UNSUPPORTED
    assert "future (int8), fast (int8), plain (float)" in failure.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads is -1"),
        ({"threads": 5000}, "threads is 5000"),
        ({"max_batch_size": 5}, "built for at most 4"),
        ({"max_batch_size": -1}, "max_batch_size is -1"),
        ({"kv_tokens": -1}, "kv_tokens"),
        ({"kv_tokens": 10_000}, "built for at most 384"),
        ({"kv_tokens": 1 << 32}, "built for at most 384"),
        ({"kv_tokens": (1 << 63) - 1}, "built for at most 384"),
        ({"activations": b"int4"}, "activations"),
    ],
)
def test_engine_arguments(bundle: Bundle, options: Any, message: str) -> None:
    failure = failure_of(bundle.engine, **options)
    assert failure.status == Status.ARGUMENT
    assert message in failure.message


@pytest.mark.parametrize(
    ("tokens", "params", "message"),
    [
        ([], {}, "no tokens"),
        ([1, VOCAB], {}, f"token 1 has the id {VOCAB}, not in 0..{VOCAB - 1}"),
        ([-1], {}, "id -1"),
        ([1], {"temperature": -0.5}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"top_p": 1.5}, "top_p"),
        ([1], {"top_k": -1}, "top_k"),
        ([1], {"max_tokens": -1}, "max_tokens"),
        ([1], {"stop": [""]}, "stop string is empty"),
    ],
)
def test_request_arguments(engine: Engine, tokens: list[int], params: Any, message: str) -> None:
    failure = failure_of(engine.submit, tokens, **params)
    assert failure.status == Status.ARGUMENT
    assert message in failure.message


def test_null_and_small_structs(bundle: Bundle, engine: Engine) -> None:
    library = bundle.runtime.library
    assert library.mlcb_bundle_open(None, None, None) == Status.ARGUMENT
    assert library.mlcb_engine_create(None, None, None) == Status.ARGUMENT
    assert library.mlcb_engine_step(None, None) == Status.ARGUMENT
    assert library.mlcb_engine_poll(engine.handle, None, 0) == Status.ARGUMENT
    assert library.mlcb_request_cancel(None, 1) == Status.ARGUMENT
    assert library.mlcb_engine_info(None) is None
    library.mlcb_engine_destroy(None)
    library.mlcb_bundle_close(None)
    params = abi.RequestParams(struct_size=8)
    request_id = ctypes.c_uint64()
    call = library.mlcb_request_submit
    assert call(engine.handle, ctypes.byref(params), ctypes.byref(request_id)) == Status.ARGUMENT
    assert b"struct_size is 8, at least" in library.mlcb_last_error()
    event = abi.Event(struct_size=4)
    assert library.mlcb_engine_poll(engine.handle, ctypes.byref(event), 0) == Status.ARGUMENT
    larger = (ctypes.c_char * 512)()
    options = abi.EngineOptions.from_buffer(larger)
    options.struct_size = 512
    handle = ctypes.c_void_p()
    create = library.mlcb_engine_create
    assert create(bundle.handle, ctypes.byref(options), ctypes.byref(handle)) == Status.OK
    library.mlcb_engine_destroy(handle)


def test_text_calls(bundle: Bundle) -> None:
    library = bundle.runtime.library
    ids = bundle.tokenize("Hi é<|im_end|>")
    assert ids == [*"Hi é".encode(), IM_END]
    array = (ctypes.c_int32 * len(ids))(*ids)
    size = ctypes.c_size_t()
    call = library.mlcb_detokenize
    assert call(bundle.handle, array, len(ids), 0, None, 0, ctypes.byref(size)) == Status.TOO_SMALL
    assert size.value == len("Hi é".encode())
    text = ctypes.create_string_buffer(64)
    special = abi.TextFlags.DETOKENIZE_SPECIAL
    assert call(bundle.handle, array, len(ids), special, text, 64, ctypes.byref(size)) == Status.OK
    assert text.raw[: size.value].decode() == "Hi é<|im_end|>"
    inside = abi.TextFlags.DETOKENIZE_INSIDE
    assert call(bundle.handle, array, len(ids), inside, text, 64, ctypes.byref(size)) == Status.OK
    assert text.raw[: size.value].decode() == "Hi é"
    array[0] = VOCAB
    status = call(bundle.handle, array, len(ids), 0, text, 64, ctypes.byref(size))
    assert status == Status.ARGUMENT
    count = ctypes.c_size_t()
    status = library.mlcb_tokenize(bundle.handle, b"abc", 3, 0, array, 2, ctypes.byref(count))
    assert (status, count.value) == (Status.TOO_SMALL, 3)
    status = library.mlcb_tokenize(bundle.handle, b"abc", 3, 64, array, 9, ctypes.byref(count))
    assert status == Status.ARGUMENT
    chat = library.mlcb_apply_chat_template
    status = chat(bundle.handle, b'[{"role":"user"', text, 64, ctypes.byref(size))
    assert status == Status.ARGUMENT
    message = b'[{"role":"user","content":"Hi"}]'
    buffer = ctypes.create_string_buffer(256)
    assert chat(bundle.handle, message, buffer, 256, ctypes.byref(size)) == Status.OK
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert buffer.raw[: size.value].decode() == expected


def test_logits_buffer(engine: Engine) -> None:
    ids = (ctypes.c_int32 * 2)(1, 2)
    out = (ctypes.c_float * (2 * VOCAB - 1))()
    call = engine.library.mlcb_engine_logits
    assert call(engine.handle, ids, 2, out, len(out)) == Status.TOO_SMALL
    assert call(engine.handle, None, 2, out, len(out)) == Status.ARGUMENT
