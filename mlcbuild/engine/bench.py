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
from mlcbuild.bundle.reader import Bundle
from mlcbuild.engine.host import describe_machine
from mlcbuild.engine.profile import KernelMeter, Phase, phase_record
from mlcbuild.engine.work import PlanWork, Run, Step
from mlcbuild.errors import InternalError, UsageError


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure.

    ``prefill``: prompt lengths in tokens; ``decode``: steps; ``batch``: sequences at once;
    ``depth``: tokens in the cache before decoding starts; ``profile``: time every kernel too.
    """

    prefill: tuple[int, ...] = (128, 512)
    decode: int = 64
    batch: tuple[int, ...] = (1, 4)
    depth: tuple[int, ...] = (0,)
    repeat: int = 5
    threads: int = 0
    activations: str | None = None
    variant: str | None = None
    profile: bool = False


def run_bench(
    path: Path, plan: BenchPlan, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measures the bundle in folder ``path`` and returns a JSON-able record.

    ``results``: one item per measurement, tokens per second, the median of ``repeat`` runs after
    one warm-up, with the slowest and fastest run beside it. ``load_s``: opening the bundle and
    making the engine; ``first_token_s``: from the start of that to the first token of a one-token
    prompt; ``rss_peak_bytes``: of this whole process. Random token ids from a fixed seed. With
    ``plan.profile`` also ``machine``, ``limits`` (``NativeEngine.limits``) and, in every result,
    ``profile`` (``phase_record``), of all its runs but the warm-up. Raises ``UsageError`` if
    something does not fit the bundle's limits.
    """
    say = progress if progress is not None else _silent
    started = time.perf_counter()
    with NativeBundle.open(path) as native:
        limits = native.bundle.manifest.limits
        _check_plan(plan, limits.context_window_size, limits.max_batch_size)
        if plan.profile:
            native.require("mlcb_engine_limits", "measure what the machine can do")
        # Pages of ended requests would make every run touch memory that no run has touched yet.
        with NativeEngine(
            native,
            threads=plan.threads,
            activations=plan.activations,
            variant=plan.variant,
            prefix_cache=False,
            profile=plan.profile,
        ) as engine:
            load_s = time.perf_counter() - started
            meter = KernelMeter(engine) if plan.profile else None
            bench = _Bench(engine, limits.prefill_chunk_size, meter)
            bench.prefill_rate(1)
            first_token_s = time.perf_counter() - started
            results: list[dict[str, Any]] = []
            phases: list[Phase] = []

            def measure(measure_once: Callable[[], float], **what: Any) -> None:
                measure_once()  # warm-up: pages of weights and cache come in, clocks go up
                if meter is not None:
                    meter.take()
                rates = [measure_once() for _ in range(plan.repeat)]
                if meter is not None:
                    phases.append(meter.take())
                results.append({**what, **_rates(rates)})

            for tokens in plan.prefill:
                say(f"prefill of {tokens} tokens")
                measure(partial(bench.prefill_rate, tokens), kind="prefill", tokens=tokens)
            for depth in plan.depth:
                for batch in plan.batch if plan.decode else ():
                    say(f"decode of {plan.decode} tokens, batch {batch}, depth {depth}")
                    measure(
                        partial(bench.decode_rate, plan.decode, batch, depth),
                        kind="decode",
                        batch=batch,
                        depth=depth,
                        tokens=plan.decode,
                    )
            info = engine.info()
            peak = rss_peak_bytes()  # before the measurement of limits takes its own
            profile: dict[str, Any] = {}
            if plan.profile:
                say("limits of this machine")
                profile = {"machine": describe_machine(), "limits": engine.limits()}
                work = PlanWork.read(_plan_file(native.bundle, str(info["variant"])))
                for result, phase in zip(results, phases, strict=True):
                    result["profile"] = phase_record(phase, work, profile["limits"])
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
        "rss_peak_bytes": peak,
        **profile,
    }


def rss_peak_bytes() -> int:
    """The largest resident set that this process had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes everywhere but there


def _plan_file(bundle: Bundle, name: str) -> Path:
    """The plan of the variant ``name``."""
    (variant,) = (item for item in bundle.manifest.variants if item.name == name)
    return bundle.file(variant.plan)


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


def _rates(rates: Sequence[float]) -> dict[str, float]:
    return {
        "tok_s": round(statistics.median(rates), 2),
        "tok_s_min": round(min(rates), 2),
        "tok_s_max": round(max(rates), 2),
    }


class _Bench:
    def __init__(self, engine: NativeEngine, chunk: int, meter: KernelMeter | None) -> None:
        self._engine = engine
        self._chunk = chunk
        self._meter = meter
        # Of every request: the position of the last token that is known.
        self._positions: dict[int, int] = {}
        self._ids = engine.native.bundle.manifest.model.tokenizer_vocab_size
        self._random = random.Random(0)

    def _submit(self, tokens: int, max_tokens: int) -> int:
        # New ids every time: a prefix that is still in the cache must not be measured.
        prompt = [self._random.randrange(self._ids) for _ in range(tokens)]
        number = self._engine.submit(Request(prompt, max_tokens=max_tokens, ignore_eos=True))
        self._positions[number] = tokens - 1
        return number

    def _step(self) -> tuple[bool, list[int]]:
        """One step: (whether requests remain, the request id of every token that came)."""
        busy = self._engine.step()
        tokens: list[int] = []
        while (event := self._engine.poll()) is not None:
            if event.kind == EventKind.ERROR:
                raise status_error(event.status, event.text)
            if event.kind == EventKind.TOKEN:
                tokens.append(event.request_id)
                self._positions[event.request_id] += 1
            if event.kind == EventKind.DONE:
                del self._positions[event.request_id]
        return busy, tokens

    def _drain(self) -> None:
        while self._step()[0]:
            pass

    def prefill_rate(self, tokens: int) -> float:
        """Tokens per second from submitting a prompt to its first token."""
        self._submit(tokens, 1)
        if self._meter is not None:
            self._meter.start()
        started = time.perf_counter()
        busy, found = True, list[int]()
        while busy and not found:
            busy, found = self._step()
        elapsed = time.perf_counter() - started
        if self._meter is not None:
            self._meter.stop(self._prefill_steps(tokens), elapsed)
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
        ran: list[Step] = []
        if self._meter is not None:
            self._meter.start()
        started = time.perf_counter()
        count = 0
        for _ in range(steps):
            if self._meter is not None:
                ran.append(self._decode_step())
            count += len(self._step()[1])
        elapsed = time.perf_counter() - started
        if self._meter is not None:
            self._meter.stop([step for step in ran if step.runs], elapsed)
        for request_id in ids:
            self._engine.cancel(request_id)
        self._drain()
        if count == 0:
            raise InternalError("the runtime returned no token while decoding")
        return count / elapsed

    def _prefill_steps(self, tokens: int) -> list[Step]:
        """The steps of a prompt that is alone: chunks, of which the last gives logits."""
        starts = range(0, tokens, self._chunk)
        runs = [Run(start, min(self._chunk, tokens - start)) for start in starts]
        return [Step((run,), int(run is runs[-1])) for run in runs]

    def _decode_step(self) -> Step:
        """The next step, in which every request feeds its last token back."""
        runs = tuple(Run(position, 1) for position in self._positions.values())
        return Step(runs, len(runs))
