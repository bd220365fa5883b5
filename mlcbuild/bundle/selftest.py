"""The bundle's self-test (golden.json): computing it at build time, running it on a device."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from mlcbuild.bundle.abi import EventKind, status_error
from mlcbuild.bundle.manifest import GOLDEN_VERSION
from mlcbuild.bundle.native import NativeEvent, Request
from mlcbuild.bundle.reader import Bundle
from mlcbuild.errors import VerificationError

TOP_LOGITS = 8
TOLERANCE = 0.02


class StepEngine(Protocol):
    """What is run: ``mlcbuild.bundle.native.NativeEngine``, or its like in node."""

    def info(self) -> dict[str, Any]:
        """What the runtime chose."""

    def logits(self, token_ids: Sequence[int]) -> list[ctypes.Array[ctypes.c_float]]:
        """A row of ``vocab_size`` floats for each position."""

    def submit(self, request: Request) -> int:
        """Queues a request and returns its id."""

    def step(self) -> bool:
        """One forward step; whether requests remain."""

    def poll(self) -> NativeEvent | None:
        """The next event, or None."""

    def __enter__(self) -> StepEngine:
        """The engine."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Destroys it."""


class Runtime(Protocol):
    """What opens engines: ``mlcbuild.bundle.native.NativeBundle``, or its like in node."""

    @property
    def bundle(self) -> Bundle:
        """The bundle that is open."""

    def detokenize(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of the ids."""

    def open_engine(
        self,
        *,
        threads: int = ...,
        activations: str | None = ...,
        variant: str | None = ...,
        max_batch_size: int = ...,
    ) -> StepEngine:
        """An engine over the bundle."""


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """How the bundle did in the reference mode.

    ``max_difference``: of the logits at the prompt's last position, against ``tolerance``.
    ``agreeing``: expected tokens that, each after the expected ones before it, have the highest
    logit (within the tolerance, so that a near tie is no failure). ``decoded``: tokens that
    generation itself chose as expected before it parted at such a near tie, or all of them.
    """

    variant: str
    activations: str
    max_difference: float
    tolerance: float
    agreeing: int
    decoded: int
    decode_ok: bool
    expected: int
    text_expected: str
    text_found: str

    @property
    def ok(self) -> bool:
        """Whether the bundle computes what it computed where it was built."""
        return (
            self.max_difference <= self.tolerance
            and self.agreeing == self.expected
            and self.decode_ok
        )

    def to_json(self) -> dict[str, object]:
        """A JSON-able record."""
        finite = math.isfinite(self.max_difference)
        return {
            "ok": self.ok,
            "variant": self.variant,
            "activations": self.activations,
            "max_difference": round(self.max_difference, 6) if finite else None,
            "tolerance": self.tolerance,
            "agreeing": self.agreeing,
            "decoded": self.decoded,
            "expected": self.expected,
            "text_expected": self.text_expected,
            "text_found": self.text_found,
        }

    def check(self, where: str) -> None:
        """Raises ``VerificationError`` if the self-test failed."""
        if not self.ok:
            raise VerificationError(
                "the bundle's self-test fails on this machine",
                where=where,
                why=f"variant {self.variant} ({self.activations} activations): largest logit "
                f"difference {self.max_difference:.4f} (tolerance {self.tolerance}), "
                f"{self.agreeing} of {self.expected} tokens agree, {self.decoded} decoded; "
                f"expected {self.text_expected!r}, found {self.text_found!r}",
                hint="a kernel computes wrongly on this CPU, or the bundle mixes two builds",
            )


def greedy_token_ids(
    engine: StepEngine, prompt: Sequence[int], count: int, where: str
) -> list[int]:
    """``count`` greedily chosen ids after ``prompt``, stop tokens not heeded."""
    request_id = engine.submit(Request(prompt, max_tokens=count, ignore_eos=True))
    ids: list[int] = []
    busy = True
    while busy:
        busy = engine.step()
        while (event := engine.poll()) is not None:
            if event.request_id != request_id:
                continue
            if event.kind == EventKind.ERROR:
                raise status_error(event.status, event.text, where)
            if event.kind == EventKind.TOKEN:
                ids.append(event.token_id)
    return ids


def compute_golden(
    native: Runtime, prompt: Sequence[int], *, count: int = 16, variant: str | None = None
) -> dict[str, Any]:
    """The record of golden.json, computed with float activations on one thread.

    ``variant`` should be the baseline that every machine which builds has, so that the record does
    not depend on the machine.
    """
    with native.open_engine(
        threads=1, activations="float", variant=variant, max_batch_size=1
    ) as engine:
        row = _valid(native, engine.logits(prompt)[-1])
        best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:TOP_LOGITS]
        return {
            "golden_version": GOLDEN_VERSION,
            "prompt_token_ids": list(prompt),
            "greedy_token_ids": greedy_token_ids(engine, prompt, count, str(native.bundle.path)),
            "top_logits": [[token, round(row[token], 3)] for token in best],
            "tolerance": TOLERANCE,
        }


def run_golden(native: Runtime, *, threads: int = 0) -> GoldenReport:
    """Runs golden.json through the bundle's runtime in the reference mode (float activations).

    Raises ``VerificationError`` if the bundle has no golden.json.
    """
    bundle = native.bundle
    if bundle.manifest.golden is None:
        raise VerificationError("the bundle has no self-test", where=str(bundle.path))
    golden = bundle.read_json(bundle.manifest.golden)
    prompt: list[int] = golden["prompt_token_ids"]
    expected: list[int] = golden["greedy_token_ids"]
    with native.open_engine(threads=threads, activations="float", max_batch_size=1) as engine:
        rows = [
            _valid(native, row) for row in engine.logits(prompt + expected[:-1])[len(prompt) - 1 :]
        ]
        found = greedy_token_ids(engine, prompt, len(expected), str(bundle.path))
        info = engine.info()
    tolerance = float(golden["tolerance"])
    differences = [abs(rows[0][token] - value) for token, value in golden["top_logits"]]
    finite = all(math.isfinite(difference) for difference in differences)
    decoded = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    # Beyond a near tie the continuations differ rightly; anything else is an error.
    decode_ok = decoded == len(expected) or (
        decoded < len(found) and _near_top(rows[decoded], found[decoded], tolerance)
    )
    return GoldenReport(
        variant=str(info["variant"]),
        activations=str(info["activations"]),
        max_difference=max(differences) if finite else math.inf,
        tolerance=tolerance,
        agreeing=sum(
            _near_top(row, token, tolerance) for row, token in zip(rows, expected, strict=True)
        ),
        decoded=decoded,
        decode_ok=decode_ok,
        expected=len(expected),
        text_expected=native.detokenize(expected).decode("utf-8", "replace"),
        text_found=native.detokenize(found).decode("utf-8", "replace"),
    )


def _valid(native: Runtime, row: ctypes.Array[ctypes.c_float]) -> list[float]:
    """The logits of ids that the tokenizer has; rows of the vocabulary may be padded beyond it."""
    return row[: native.bundle.manifest.model.tokenizer_vocab_size]


def _near_top(row: Sequence[float], token: int, tolerance: float) -> bool:
    """Whether a token's logit is the highest of its row, or within the tolerance of it."""
    return row[token] >= max(row) - tolerance
