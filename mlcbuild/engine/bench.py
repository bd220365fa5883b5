"""Speed of a bundle through its public interface: prefill, decode, load, memory."""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlcbuild.bundle.abi import EventKind, status_error
from mlcbuild.bundle.native import NativeBundle, NativeEngine, Request
from mlcbuild.errors import InternalError, UsageError


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure.

    ``prefill``: prompt lengths in tokens; ``decode``: steps; ``batch``: sequences at once;
    ``depth``: tokens in the cache before decoding starts.
    """

    prefill: tuple[int, ...] = (128, 512)
    decode: int = 64
    batch: tuple[int, ...] = (1, 4)
    depth: tuple[int, ...] = (0,)
    repeat: int = 5
    threads: int = 0
    activations: str | None = None
    variant: str | None = None


def run_bench(
    path: Path, plan: BenchPlan, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measures the bundle in folder ``path`` and returns a JSON-able record.

    ``results``: one item per measurement, tokens per second, the median of ``repeat`` runs after
    one warm-up, with the slowest and fastest run beside it. ``load_s``: opening the bundle and
    making the engine; ``first_token_s``: from the start of that to the first token of a one-token
    prompt; ``rss_peak_bytes``: of this whole process. Random token ids from a fixed seed. Raises
    ``UsageError`` if something does not fit the bundle's limits.
    """
    say = progress if progress is not None else _silent
    started = time.perf_counter()
    with NativeBundle.open(path) as native:
        limits = native.bundle.manifest.limits
        _check_plan(plan, limits.context_window_size, limits.max_batch_size)
        # Pages of ended requests would make every run touch memory that no run has touched yet.
        with NativeEngine(
            native,
            threads=plan.threads,
            activations=plan.activations,
            variant=plan.variant,
            prefix_cache=False,
        ) as engine:
            load_s = time.perf_counter() - started
            bench = _Bench(engine, limits.prefill_chunk_size)
            bench.prefill_rate(1)
            first_token_s = time.perf_counter() - started
            results: list[dict[str, Any]] = []
            for tokens in plan.prefill:
                say(f"prefill of {tokens} tokens")
                rates = _repeat(partial(bench.prefill_rate, tokens), plan.repeat)
                results.append({"kind": "prefill", "tokens": tokens, **_rates(rates)})
            for depth in plan.depth:
                for batch in plan.batch if plan.decode else ():
                    say(f"decode of {plan.decode} tokens, batch {batch}, depth {depth}")
                    decode = partial(bench.decode_rate, plan.decode, batch, depth)
                    rates = _repeat(decode, plan.repeat)
                    results.append(
                        {
                            "kind": "decode",
                            "batch": batch,
                            "depth": depth,
                            "tokens": plan.decode,
                            **_rates(rates),
                        }
                    )
            info = engine.info()
    return {
        "bundle": native.bundle.manifest.name,
        "scheme": native.bundle.manifest.scheme.get("name"),
        "target": native.bundle.manifest.target,
        "tree_digest": native.bundle.manifest.tree_digest,
        "variant": info.get("variant"),
        "activations": info.get("activations"),
        "threads": info.get("threads"),
        "repeat": plan.repeat,
        "results": results,
        "load_s": round(load_s, 4),
        "first_token_s": round(first_token_s, 4),
        "rss_peak_bytes": rss_peak_bytes(),
    }


def rss_peak_bytes() -> int:
    """The largest resident set that this process had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes everywhere but there


def _silent(_: str) -> None:
    return None


def _check_plan(plan: BenchPlan, window: int, max_batch: int) -> None:
    for name, values, low in (
        ("prefill", plan.prefill, 1),
        ("batch", plan.batch, 1),
        ("depth", plan.depth, 0),
        ("decode", (plan.decode,), 0),
        ("repeat", (plan.repeat,), 1),
    ):
        if any(value < low for value in values):
            raise UsageError(f"--{name} must be at least {low}, it is {list(values)}")
    longest = max(
        [tokens + 1 for tokens in plan.prefill]
        + [max(1, depth) + plan.decode + 1 for depth in plan.depth if plan.decode]
        + [0]
    )
    if longest > window:
        raise UsageError(
            f"the longest sequence of this bench has {longest} tokens, the window {window}",
            hint="choose smaller --prefill, --decode or --depth",
        )
    if plan.decode and max(plan.batch, default=0) > max_batch:
        raise UsageError(
            f"--batch {max(plan.batch)} is more than the bundle's max_batch_size {max_batch}"
        )


def _repeat(measure: Callable[[], float], repeat: int) -> list[float]:
    measure()  # warm-up: pages of weights and cache come in, clocks go up
    return [measure() for _ in range(repeat)]


def _rates(rates: Sequence[float]) -> dict[str, float]:
    return {
        "tok_s": round(statistics.median(rates), 2),
        "tok_s_min": round(min(rates), 2),
        "tok_s_max": round(max(rates), 2),
    }


class _Bench:
    def __init__(self, engine: NativeEngine, chunk: int) -> None:
        self._engine = engine
        self._chunk = chunk
        self._ids = engine.native.bundle.manifest.model.tokenizer_vocab_size
        self._random = random.Random(0)

    def _submit(self, tokens: int, max_tokens: int) -> int:
        # New ids every time: a prefix that is still in the cache must not be measured.
        prompt = [self._random.randrange(self._ids) for _ in range(tokens)]
        return self._engine.submit(Request(prompt, max_tokens=max_tokens, ignore_eos=True))

    def _step(self) -> tuple[bool, list[int]]:
        """One step: (whether requests remain, the request id of every token that came)."""
        busy = self._engine.step()
        tokens: list[int] = []
        while (event := self._engine.poll()) is not None:
            if event.kind == EventKind.ERROR:
                raise status_error(event.status, event.text)
            if event.kind == EventKind.TOKEN:
                tokens.append(event.request_id)
        return busy, tokens

    def _drain(self) -> None:
        while self._step()[0]:
            pass

    def prefill_rate(self, tokens: int) -> float:
        """Tokens per second from submitting a prompt to its first token."""
        self._submit(tokens, 1)
        started = time.perf_counter()
        busy, found = True, list[int]()
        while busy and not found:
            busy, found = self._step()
        elapsed = time.perf_counter() - started
        self._drain()
        if not found:
            raise InternalError("the runtime returned no token for a prompt")
        return tokens / elapsed

    def decode_rate(self, steps: int, batch: int, depth: int) -> float:
        """Tokens per second of ``steps`` steps of a full batch, prefill not counted."""
        length = max(1, depth)
        # Sequences that were prefilled first decode while the others are prefilled.
        slack = batch * (-(-length // self._chunk)) + 1
        window = self._engine.native.bundle.manifest.limits.context_window_size
        limit = min(steps + 1 + slack, window - length)
        waiting = {self._submit(length, limit) for _ in range(batch)}
        ids = set(waiting)
        busy = True
        while waiting and busy:
            busy, found = self._step()
            waiting.difference_update(found)
        started = time.perf_counter()
        count = 0
        for _ in range(steps):
            count += len(self._step()[1])
        elapsed = time.perf_counter() - started
        for request_id in ids:
            self._engine.cancel(request_id)
        self._drain()
        if count == 0:
            raise InternalError("the runtime returned no token while decoding")
        return count / elapsed
