"""The engine of the runtime: what batching, caches, preemption and guesses must never change."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcbuild.bundle.abi import FinishReason, GrammarKind, Status
from tests.unit import fake_bundle
from tests.unit.fake_bundle import IM_END, PAGE, TOKENIZER_VOCAB, FakeLimits
from tests.unit.fake_runtime import Bundle, Engine, Outcome, Runtime, RuntimeFailure

FREE: Any = {"temperature": 1.3, "top_p": 0.9, "ignore_eos": 1}


def prompt_of(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


@pytest.fixture(scope="module")
def binaries(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return fake_bundle.build_binaries(pytestconfig.cache)


@pytest.fixture(scope="module")
def bundle(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("engine") / "bundle"
    fake_bundle.make_bundle(folder, binaries)
    with Runtime(folder / "lib" / "libmlcb.so").open(folder) as opened:
        yield opened


def failure_of(call: Any, *arguments: Any, **options: Any) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        call(*arguments, **options)
    return caught.value


def lone_texts(bundle: Bundle, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    """Each prompt's text in an engine that runs nothing else and remembers nothing."""
    with bundle.engine(max_batch_size=1, no_prefix_cache=1) as engine:
        return [
            engine.generate(prompt, seed=number, **params).tokens
            for number, prompt in enumerate(prompts)
        ]


# ---- prefix cache --------------------------------------------------------------------------------


def test_a_known_beginning_is_not_computed_again(bundle: Bundle) -> None:
    prompt = prompt_of(1, 41)
    with bundle.engine() as engine:
        first = engine.generate(prompt, max_tokens=9, **FREE)
        rows = engine.metrics()["batch"]["prefill_rows"]
        second = engine.generate(prompt, max_tokens=9, **FREE)
        assert (first.cached_tokens, second.cached_tokens) == (0, 40)
        assert second.tokens == first.tokens
        assert engine.metrics()["batch"]["prefill_rows"] - rows == 1
        # What was generated is known too: a conversation that goes on.
        longer = [*prompt, *first.tokens, 5]
        third = engine.generate(longer, max_tokens=9, **FREE)
        assert third.cached_tokens == 48
        engine.clear_cache()
        assert engine.metrics()["kv"]["cached_pages"] == 0
        cold = engine.generate(longer, max_tokens=9, **FREE)
        assert (cold.cached_tokens, cold.tokens) == (0, third.tokens)
    with bundle.engine(no_prefix_cache=1) as engine:
        for _ in range(2):
            outcome = engine.generate(prompt, max_tokens=9, **FREE)
            assert (outcome.cached_tokens, outcome.tokens) == (0, first.tokens)
        assert engine.info["prefix_cache"] is False


def test_a_whole_page_prompt_still_computes_its_last_token(bundle: Bundle) -> None:
    prompt = prompt_of(2, 10 * PAGE)
    with bundle.engine() as engine:
        first = engine.generate(prompt, max_tokens=5, **FREE)
        second = engine.generate(prompt, max_tokens=5, **FREE)
        assert second.cached_tokens == 9 * PAGE
        assert second.tokens == first.tokens


@pytest.mark.parametrize("seed", range(3))
def test_eviction_never_changes_a_text(bundle: Bundle, seed: int) -> None:
    """Texts that share beginnings, in a cache that is too small for all of them."""
    random = np.random.default_rng(seed)
    stems = [prompt_of(10 + i, 24) for i in range(4)]
    prompts = [
        [*stems[int(random.integers(4))], *prompt_of(100 + i, int(random.integers(1, 12)))]
        for i in range(30)
    ]
    alone = lone_texts(bundle, prompts, max_tokens=10, **FREE)
    with bundle.engine(kv_tokens=112) as engine:
        ids = []
        for number, prompt in enumerate(prompts):
            ids.append(engine.submit(prompt, seed=number, max_tokens=10, **FREE))
            for _ in range(int(random.integers(0, 6))):
                engine.step()
        outcomes = engine.run()
        assert [outcomes[i].tokens for i in ids] == alone
        figures = engine.metrics()
        assert figures["kv"]["evictions"] > 0
        assert figures["tokens"]["cached_prompt"] > 0
        assert figures["kv"]["used_pages"] == 0


# ---- preemption ----------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [None, b"ngram"])
def test_preempted_texts_go_on_as_if_nothing_happened(
    bundle: Bundle, speculation: bytes | None
) -> None:
    prompts = [prompt_of(20 + i, 12 + i) for i in range(6)]
    alone = lone_texts(bundle, prompts, max_tokens=40, **FREE)
    for options in ({"kv_tokens": 100}, {"kv_tokens": 100, "no_prefix_cache": 1}):
        with bundle.engine(speculation=speculation, **options) as engine:
            ids = [
                engine.submit(prompt, seed=number, max_tokens=40, **FREE)
                for number, prompt in enumerate(prompts)
            ]
            outcomes = engine.run()
            assert [outcomes[i].tokens for i in ids] == alone
            assert engine.metrics()["batch"]["preemptions"] > 0
            # The first to come is never the one that gives way.
            assert outcomes[ids[0]].seconds[2] == min(outcomes[i].seconds[2] for i in ids)


def test_pages_are_not_reserved_for_what_may_come(bundle: Bundle) -> None:
    with bundle.engine(kv_tokens=96) as engine:
        ids = [engine.submit(prompt_of(i, 8), max_tokens=80, ignore_eos=1) for i in range(3)]
        for _ in range(3):
            engine.step()
            while engine.poll():
                pass
        assert all(engine.outcomes[i].tokens for i in ids)


# ---- several choices -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 16, 37, 41])
def test_choices_equal_texts_of_their_own(bundle: Bundle, length: int) -> None:
    """Branching off the prompt's pages is the same as computing the prompt again for each."""
    prompt = prompt_of(length, length)
    with bundle.engine(max_batch_size=1, no_prefix_cache=1) as engine:  # one after the other
        request = engine.submit(prompt, n=3, seed=4, max_tokens=20, **FREE)
        engine.run()
        expected = [choice.tokens for choice in engine.choices[request]]
    assert len({tuple(tokens) for tokens in expected}) == 3
    wishes: list[Any] = [
        {},
        {"max_batch_size": 2},
        {"kv_tokens": 96},
        {"speculation": b"ngram"},
    ]
    for options in wishes:
        with bundle.engine(**options) as engine:
            beside = engine.submit(prompt_of(50, 9), seed=1, max_tokens=15, **FREE)
            request = engine.submit(prompt, n=3, seed=4, max_tokens=20, **FREE)
            engine.run()
            choices = engine.choices[request]
            assert [choice.tokens for choice in choices] == expected
            assert all(choice.finish == FinishReason.LENGTH for choice in choices)
            assert [choice.completion_tokens for choice in choices] == [20, 20, 20]
            assert engine.outcomes[beside].done
            # Again, with the prompt known: its last token alone is computed before branching off.
            request = engine.submit(prompt, n=3, seed=4, max_tokens=20, **FREE)
            engine.run()
            assert [choice.tokens for choice in engine.choices[request]] == expected
            assert engine.metrics()["kv"]["used_pages"] == 0


def test_every_choice_ends(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        request = engine.submit(prompt_of(1, 40), n=3, max_tokens=50, **FREE)
        engine.step()  # the prompt takes three steps: nothing has branched off
        engine.cancel(request)
        engine.run()
        assert [choice.finish for choice in engine.choices[request]] == [FinishReason.CANCEL] * 3
        request = engine.submit(prompt_of(1, 5), n=4, max_tokens=50, **FREE)
        engine.step()
        engine.step()
        engine.cancel(request)
        engine.run()
        assert all(choice.tokens for choice in engine.choices[request])
        assert failure_of(engine.submit, [1], n=129).status == Status.ARGUMENT
        assert failure_of(engine.submit, [1], n=-1).status == Status.ARGUMENT


# ---- speculation ---------------------------------------------------------------------------------


# Most of its text is forced, and the prompts hold it already.
FORCING: Any = {"grammar_kind": GrammarKind.REGEX, "grammar": b"([ab]hello world){3}", **FREE}


@pytest.mark.parametrize(
    "sampling", [{}, FREE, {"temperature": 0.2, "repetition_penalty": 1.1}, FORCING]
)
def test_guesses_never_change_a_text(bundle: Bundle, sampling: Any) -> None:
    prompts = [[*prompt_of(i, 6)] * (i + 1) for i in range(4)]
    prompts.append(list(b"ahello worldbhello worldaahello world"))
    alone = lone_texts(bundle, prompts, max_tokens=40, **sampling)
    wishes: list[Any] = [
        {"speculation": b"ngram"},
        {"speculation": b"ngram", "speculation_tokens": 9},
        {"speculation": b"draft", "draft": bundle.handle},
        {"speculation": b"draft", "draft": bundle.handle, "speculation_tokens": 1},
    ]
    for options in wishes:
        with bundle.engine(**options) as engine:
            ids = [
                engine.submit(prompt, seed=number, max_tokens=40, **sampling)
                for number, prompt in enumerate(prompts)
            ]
            outcomes = engine.run()
            assert [outcomes[i].tokens for i in ids] == alone
            speculation = engine.metrics()["speculation"]
            assert 0 <= speculation["accepted"] <= speculation["proposed"]
            jumps = engine.metrics()["grammar"]["jump_ahead_tokens"]
            assert (jumps > 0) == (sampling is FORCING)
            if options["speculation"] == b"draft" and not sampling:
                # The draft is the model itself: it is always right.
                assert speculation["accepted"] == speculation["proposed"] > 0
                assert engine.metrics()["batch"]["steps"] < sum(map(len, alone))


def test_speculation_arguments(bundle: Bundle, binaries: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"speculation": b"oracle"}, 'speculation is "oracle"'),
        ({"speculation": b"draft"}, "needs a draft bundle"),
        ({"speculation": b"ngram", "draft": bundle.handle}, "uses no draft"),
        ({"draft": bundle.handle}, 'speculation is not "draft"'),
        ({"speculation": b"ngram", "speculation_tokens": 65}, "not in 0..64"),
    ):
        failure = failure_of(bundle.engine, **options)
        assert failure.status == Status.ARGUMENT
        assert message in failure.message
    folder = tmp_path / "other"
    fake_bundle.make_bundle(folder, binaries)
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"<|im_end|>", b"<|im_fin|>"))
    fake_bundle.write_manifest(folder, limits=FakeLimits())
    with bundle.runtime.open(folder) as other:
        failure = failure_of(bundle.engine, speculation=b"draft", draft=other.handle)
        assert failure.status == Status.UNSUPPORTED
        assert "another tokenizer" in failure.message


# ---- grammars ------------------------------------------------------------------------------------


def test_forced_text_is_put_in_at_once(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        outcome = engine.generate([1, 2, 3], max_tokens=60, seed=1, **FORCING)
        assert re.fullmatch("([ab]hello world){3}", outcome.text)
        assert outcome.finish == FinishReason.STOP
        # Three rows of the model for each repetition: its letter, the last one forced, the next.
        assert engine.metrics()["batch"]["steps"] <= 8
        assert engine.metrics()["grammar"]["jump_ahead_tokens"] >= 27
        # Where each token counts by itself, none is skipped.
        skipped = engine.metrics()["grammar"]["jump_ahead_tokens"]
        scored = engine.generate([1, 2, 3], max_tokens=60, seed=1, logprobs=1, **FORCING)
        assert re.fullmatch("([ab]hello world){3}", scored.text)
        stopped = engine.generate([1, 2, 3], max_tokens=60, stop_token_ids=[ord("w")], **FORCING)
        assert stopped.text in ("ahello ", "bhello ")
        assert engine.metrics()["grammar"]["jump_ahead_tokens"] == skipped


def test_a_grammar_that_is_not_valid_fails_at_once(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        failure = failure_of(engine.submit, [1], grammar_kind=GrammarKind.REGEX, grammar=b"(a")
        assert failure.status == Status.GRAMMAR
        assert engine.metrics()["requests"]["rejected_by_status"] == {"grammar": 1}


# ---- sampling through the engine -----------------------------------------------------------------


def test_logprobs_are_those_of_the_model(bundle: Bundle) -> None:
    prompt = prompt_of(3, 9)
    with bundle.engine() as engine:
        request = engine.submit(prompt, logprobs=1, top_logprobs=3, max_tokens=6, seed=3, **FREE)
        outcome = engine.run()[request]
        rows = engine.logits([*prompt, *outcome.tokens])[len(prompt) - 1 : -1, :TOKENIZER_VOCAB]
        for row, token, logprob, top in zip(
            rows.astype(np.float64),
            outcome.tokens,
            outcome.logprobs,
            outcome.top_logprobs,
            strict=True,
        ):
            reference = row - np.log(np.exp(row - row.max()).sum()) - row.max()
            assert abs(reference[token] - logprob) < 1e-4
            best = np.argsort(-reference, kind="stable")[:3]
            assert [entry[0] for entry in top] == best.tolist()
            assert np.allclose([entry[1] for entry in top], reference[best], atol=1e-4)
        plain = engine.generate(prompt, max_tokens=6, seed=3, **FREE)
        assert plain.tokens == outcome.tokens
        assert plain.top_logprobs == [[]] * 6


def test_biases_and_stop_tokens(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        forced = engine.generate([1, 2], logit_bias=[(65, 1e6)], max_tokens=4)
        assert forced.tokens == [65] * 4
        never = engine.generate([1, 2], logit_bias=[(65, 1e6), (66, 2e6)], stop_token_ids=[66])
        assert (never.tokens, never.finish) == ([], FinishReason.STOP)
        assert never.completion_tokens == 0
        # A stop token of the request counts even where the model's own do not.
        ends = engine.generate(
            [1, 2], logit_bias=[(IM_END, 1e6)], stop_token_ids=[IM_END], ignore_eos=1
        )
        assert ends.finish == FinishReason.STOP
        failure = failure_of(engine.submit, [1], logit_bias=[(100_000, 1.0)])
        assert "logit_bias names the token 100000" in failure.message
        failure = failure_of(engine.submit, [1], logit_bias=[(1, float("nan"))])
        assert failure.status == Status.ARGUMENT


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logprobs": 1, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1, "top_logprobs": -2}, "top_logprobs"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"grammar_kind": 9, "grammar": b"x"}, "grammar kind 9"),
        ({"grammar_kind": 3}, "grammar is NULL"),
    ],
)
def test_more_request_arguments(bundle: Bundle, params: Any, message: str) -> None:
    with bundle.engine() as engine:
        failure = failure_of(engine.submit, [1], **params)
        assert failure.status == Status.ARGUMENT
        assert message in failure.message


# ---- limits, modes, time -------------------------------------------------------------------------


def test_modes(bundle: Bundle) -> None:
    for mode, sequences in ((None, 4), (b"server", 4), (b"local", 4), (b"interactive", 1)):
        with bundle.engine(mode=mode) as engine:
            assert engine.info["limits"]["max_batch_size"] == sequences
            assert engine.info["mode"] == (mode or b"server").decode()
            assert engine.info["kv"]["pages"] == sequences * 24
    with bundle.engine(mode=b"interactive", max_batch_size=2) as engine:
        assert engine.info["limits"]["max_batch_size"] == 2
    assert 'mode is "remote"' in failure_of(bundle.engine, mode=b"remote").message


def test_memory_budget(bundle: Bundle) -> None:
    page = PAGE * 2 * 2 * 2 * 8 * 4  # tokens, keys and values, layers, heads, width, bytes
    with bundle.engine(kv_bytes=10 * page + 17) as engine:
        info = engine.info
        assert info["kv"]["pages"] == 10
        assert info["memory"]["kv_bytes"] == 10 * page
        assert info["limits"]["context_window_size"] == 40
        assert len(engine.generate([1], ignore_eos=1).tokens) == 39
    with bundle.engine(kv_bytes=1 << 40) as engine:  # all that the plan allows
        assert engine.info["kv"]["pages"] == 96
    failure = failure_of(bundle.engine, kv_bytes=page - 1)
    assert failure.status == Status.ARGUMENT
    assert f"takes {page}\nhint: raise kv_bytes" in failure.message
    assert failure_of(bundle.engine, kv_bytes=page, kv_tokens=4).status == Status.ARGUMENT


def test_as_many_wait_as_may(bundle: Bundle) -> None:
    with bundle.engine(max_batch_size=2, max_waiting=3) as engine:
        ids = [engine.submit([1, i], max_tokens=4, ignore_eos=1) for i in range(5)]
        failure = failure_of(engine.submit, [1, 2])
        assert failure.status == Status.BUSY
        assert "5 requests" in failure.message
        assert engine.metrics()["requests"]["rejected_by_status"] == {"busy": 1}
        outcomes = engine.run()
        assert all(len(outcomes[i].tokens) == 4 for i in ids)
        engine.submit([1, 2], max_tokens=1)
        engine.run()


def test_time_limit(bundle: Bundle) -> None:
    with bundle.engine(max_batch_size=1) as engine:
        slow = engine.submit([1, 2], ignore_eos=1, timeout_ms=60)
        waits = engine.submit([1, 3], ignore_eos=1, timeout_ms=1)
        engine.step()
        time.sleep(0.08)
        outcomes = engine.run()
        assert outcomes[slow].finish == FinishReason.DEADLINE
        assert len(outcomes[slow].tokens) == 1
        assert outcomes[waits].status == Status.DEADLINE
        assert "before its first token" in outcomes[waits].message
        assert engine.generate([1, 2], max_tokens=2, timeout_ms=60_000).finish
        assert engine.metrics()["kv"]["used_pages"] == 0


def test_time_limit_after_a_choice_ended(bundle: Bundle) -> None:
    """The first choice ends at once with a stop token; two others wait until the time is over."""
    with bundle.engine(max_batch_size=1) as engine:
        request = engine.submit(
            [1, 2], n=3, logit_bias=[(66, 1e6)], stop_token_ids=[66], timeout_ms=40
        )
        engine.step()
        time.sleep(0.06)
        engine.run()
        reasons = [choice.finish for choice in engine.choices[request]]
        assert reasons == [FinishReason.STOP, FinishReason.DEADLINE, FinishReason.DEADLINE]


def test_a_long_prompt_does_not_hold_up_a_short_one(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        long = engine.submit(prompt_of(1, 90), max_tokens=3, ignore_eos=1)
        short = engine.submit(prompt_of(2, 4), max_tokens=3, ignore_eos=1)
        engine.step()
        while engine.poll():
            pass
        assert len(engine.outcomes[short].tokens) == 1
        assert engine.outcomes[long].tokens == []
        engine.run()


def test_cancelled_pages_are_free_after_a_step(bundle: Bundle) -> None:
    with bundle.engine(no_prefix_cache=1) as engine:
        request = engine.submit(prompt_of(1, 40), ignore_eos=1)
        other = engine.submit([1, 2, 3], ignore_eos=1, max_tokens=60)
        for _ in range(5):
            engine.step()
        assert engine.metrics()["kv"]["used_pages"] >= 12
        engine.cancel(request)
        engine.step()
        assert engine.metrics()["kv"]["used_pages"] <= 3
        engine.cancel(other)
        engine.step()
        assert engine.metrics()["kv"]["used_pages"] == 0


def test_figures_of_a_request(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        outcome: Outcome = engine.generate([1, 2, 3], max_tokens=5, ignore_eos=1)
        assert (outcome.prompt_tokens, outcome.completion_tokens) == (3, 5)
        queue, first, total = outcome.seconds
        assert 0 <= queue <= first <= total < 60
        figures = engine.metrics()
        assert figures["requests"]["finished_by_reason"]["length"] == 1
        assert figures["tokens"]["generated"] == 5
        assert figures["latency"]["ttft"]["count"] == 1
        assert figures["latency"]["inter_token"]["count"] == 4
        assert figures["kernels"] is None
        assert "mlcb_" in engine.metrics_text("prometheus")
        assert failure_of(engine.metrics_text, "xml").status == Status.ARGUMENT
    with bundle.engine(profile=1) as engine:
        engine.generate([1, 2, 3], max_tokens=5)
        kernels = {entry["name"]: entry for entry in engine.metrics()["kernels"]}
        assert kernels["embed"]["calls"] >= 1
        assert all(entry["seconds"] > 0 for entry in kernels.values())


def test_random_traffic_over_every_feature(bundle: Bundle) -> None:
    """Requests of every kind come and go in a small cache; the texts are those of a lone run."""
    random = np.random.default_rng(9)
    prompts = [prompt_of(60 + i, int(random.integers(1, 30))) for i in range(8)]
    wishes: list[Any] = [
        {"max_tokens": int(random.integers(1, 30)), "n": int(random.integers(1, 4)), **FREE}
        for _ in prompts
    ]
    expected = []
    with bundle.engine(max_batch_size=1, no_prefix_cache=1) as engine:
        for number, prompt in enumerate(prompts):
            request = engine.submit(prompt, seed=number, **wishes[number])
            engine.run()
            expected.append([choice.tokens for choice in engine.choices[request]])
    with bundle.engine(kv_tokens=120, speculation=b"ngram") as engine:
        numbers: dict[int, int] = {}
        for _ in range(120):
            action = random.integers(0, 6)
            if action < 2:
                number = int(random.integers(0, len(prompts)))
                numbers[engine.submit(prompts[number], seed=number, **wishes[number])] = number
            elif action == 2 and numbers:
                victim = int(random.choice(list(numbers)))
                if not all(choice.done for choice in engine.choices[victim]):
                    with contextlib.suppress(RuntimeFailure):  # it has ended already
                        engine.cancel(victim)
            else:
                engine.step()
                while engine.poll():
                    pass
        engine.run()
        cancelled = 0
        for request, number in numbers.items():
            for choice, tokens in zip(engine.choices[request], expected[number], strict=True):
                if choice.finish == FinishReason.CANCEL:
                    cancelled += 1
                    assert choice.tokens == tokens[: len(choice.tokens)]
                else:
                    assert choice.tokens == tokens
        assert cancelled > 0
        used: int = engine.metrics()["kv"]["used_pages"]
        assert used == 0


def test_engine_is_named_once(bundle: Bundle) -> None:
    with bundle.engine() as engine:
        assert isinstance(engine, Engine)
        assert sorted(engine.info) == [
            "activations",
            "kv",
            "limits",
            "memory",
            "mode",
            "prefix_cache",
            "speculation",
            "threads",
            "variant",
        ]
