"""Keeps a server busy with many streams and checks that each gets its own text.

    python tests/bench/load_server.py BUNDLE --streams 64 --minutes 10

Starts ``mlcbuild serve BUNDLE`` on the loopback. Every stream has a prompt and a seed of its own;
what it must get is taken from a run of it alone before. Random clients are killed in mid-stream.
Checked: no error, no foreign text, flat memory, pages that come back within a step or two of a
kill. Prints a table on stderr, and the figures as JSON on stdout. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.core.atomic import format_bytes
from tests.bench import machine, server_process
from tests.bench.server_process import ServerProcess

_WORDS = (
    *("river", "stone", "window", "garden", "letter", "winter", "bridge", "candle", "forest"),
    *("harbor", "island", "journey", "kitchen", "ladder", "meadow", "needle", "orchard", "pepper"),
    *("question", "ribbon", "silver", "thunder", "umbrella", "village", "whistle", "yellow"),
)
_STEPS_ALLOWED = 2
_GROWTH_ALLOWED = 0.03
_GROWTH_FLOOR_BYTES = 8 << 20
_SAMPLE_SECONDS = 2.0
_STEP_COUNT = "mlcb_step_seconds_count"


class Failure(Exception):
    """A request that did not go as it should."""


@dataclass(frozen=True)
class Job:
    """What one stream asks for, over and over."""

    number: int
    prompt: str
    seed: int
    max_tokens: int

    def body(self, model: str) -> bytes:
        """The request."""
        return json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": self.prompt}],
                "seed": self.seed,
                "temperature": 0.8,
                "max_tokens": self.max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()


@dataclass
class Figures:
    """What was measured under load; times in seconds."""

    requests: int = 0
    killed: int = 0
    tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)


def make_jobs(streams: int, tokens: int, seed: int) -> list[Job]:
    """Jobs with prompts of different lengths, none the beginning of another."""
    draw = random.Random(seed)
    jobs = []
    for number in range(streams):
        words = " ".join(draw.choices(_WORDS, k=draw.randint(4, 60)))
        prompt = f"Story {number}. Write about these: {words}."
        jobs.append(Job(number, prompt, draw.getrandbits(32), draw.randint(tokens // 2, tokens)))
    return jobs


@asynccontextmanager
async def post(port: int, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A request on a connection of its own, read up to its head; ``Failure`` unless it is 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        if not answer.startswith("HTTP/1.1 200 "):
            raise Failure(answer.partition("\r\n")[0] + " " + (await reader.read()).decode()[:300])
        yield reader
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a stream up to [DONE]; ``Failure`` if it ends before."""
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            chunk: dict[str, Any] = json.loads(line[6:])
            if "error" in chunk:
                raise Failure(str(chunk["error"]))
            yield chunk
    raise Failure("the stream broke off")


def text_of(chunk: dict[str, Any]) -> str:
    """What a chunk adds."""
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


async def run_job(
    port: int, model: str, job: Job, figures: Figures, kill_after: int | None = None
) -> str:
    """The text of one run; with ``kill_after`` the connection is dropped after so many chunks."""
    pieces: list[str] = []
    started = last = time.perf_counter()
    async with post(port, job.body(model)) as reader:
        async for chunk in events(reader):
            now = time.perf_counter()
            if text := text_of(chunk):
                (figures.between if pieces else figures.first_token).append(
                    now - (last if pieces else started)
                )
                last = now
                pieces.append(text)
            usage = chunk.get("usage")
            figures.tokens += usage["completion_tokens"] if usage else 0
            if kill_after is not None and len(pieces) >= kill_after:
                figures.killed += 1
                break
    return "".join(pieces)


async def work(
    server: ServerProcess,
    job: Job,
    expected: str,
    until: float,
    kill_share: float,
    figures: Figures,
) -> None:
    """One stream, again and again."""
    draw = random.Random(job.number)
    while time.monotonic() < until:
        kill = draw.randint(1, 12) if draw.random() < kill_share else None
        try:
            text = await run_job(server.port, server.model, job, figures, kill)
        except (Failure, OSError, asyncio.IncompleteReadError) as error:
            figures.errors.append(f"stream {job.number}: {type(error).__name__}: {error}")
            await asyncio.sleep(0.5)
            continue
        figures.requests += 1
        right = expected.startswith(text) if kill is not None else text == expected
        if not right:
            figures.foreign.append(f"stream {job.number}: {text!r} instead of {expected!r}")


async def watch_memory(server: ServerProcess, figures: Figures) -> None:
    """Notes the server's memory until it is cancelled."""
    started = time.monotonic()
    while True:
        figures.rss.append((time.monotonic() - started, server.rss_bytes()))
        await asyncio.sleep(_SAMPLE_SECONDS)


async def check_kills(server: ServerProcess, jobs: Sequence[Job], rounds: int) -> list[int]:
    """Kills one of several running streams at a time: steps until its pages were back, for each.

    The count is from the last look before the kill to the first look that finds them back, so it
    is never too small.
    """
    taken: list[int] = []
    loop = asyncio.get_running_loop()
    for round_ in range(rounds):
        chosen = [jobs[(round_ * 3 + offset) % len(jobs)] for offset in range(3)]
        victim, *others = [Job(job.number, job.prompt, job.seed, 400) for job in chosen]
        figures = Figures()
        running = [
            asyncio.ensure_future(run_job(server.port, server.model, job, figures, 200))
            for job in others
        ]
        async with post(server.port, victim.body(server.model)) as reader:
            seen = 0
            async for chunk in events(reader):
                seen += bool(text_of(chunk))
                if seen >= 6:
                    break
            before = await loop.run_in_executor(None, server.metrics)
        goal = before["mlcb_requests_running"] - 1
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            now = await loop.run_in_executor(None, server.metrics)
            # The others hardly grow within the steps allowed; the victim had some pages.
            free = (server_process.pages_used(now) or 0) < (server_process.pages_used(before) or 0)
            if now["mlcb_requests_running"] <= goal and free:
                taken.append(int(now[_STEP_COUNT] - before[_STEP_COUNT]))
                break
        else:
            taken.append(10_000)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        while (await loop.run_in_executor(None, server.metrics))["mlcb_requests_running"]:
            await asyncio.sleep(0.02)
    return taken


def memory_growth(rss: Sequence[tuple[float, int]], warm_up: float) -> dict[str, Any]:
    """Resident memory after the warm-up and at the end, as medians of a tenth of the run each."""
    warm = [size for at, size in rss if at >= warm_up] or [size for _, size in rss]
    tenth = max(1, len(warm) // 10)
    first, last = statistics.median(warm[:tenth]), statistics.median(warm[-tenth:])
    allowed = max(first * _GROWTH_ALLOWED, _GROWTH_FLOOR_BYTES)
    return {
        "after_warm_up": int(first),
        "end": int(last),
        "peak": max(size for _, size in rss),
        "flat": last - first <= allowed,
    }


async def measure(server: ServerProcess, arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run."""
    quiet = machine.describe()
    jobs = make_jobs(arguments.streams, arguments.tokens, arguments.seed)
    say(f"{len(jobs)} streams alone, one after another")
    alone = Figures()
    expected = [await run_job(server.port, server.model, job, alone) for job in jobs]
    say(f"all at once for {arguments.minutes:g} min")
    figures = Figures()
    before = server.metrics()
    started = time.monotonic()
    until = started + arguments.minutes * 60
    memory = asyncio.ensure_future(watch_memory(server, figures))
    await asyncio.gather(
        *(
            work(server, job, text, until, arguments.kill_share, figures)
            for job, text in zip(jobs, expected, strict=True)
        )
    )
    seconds = time.monotonic() - started
    memory.cancel()
    after = server.metrics()
    say("kills, one at a time")
    kills = await check_kills(server, jobs, arguments.kills)
    made = after["mlcb_generated_tokens_total"] - before["mlcb_generated_tokens_total"]
    warm_up = min(arguments.warm_up, arguments.minutes * 60 / 4)
    return {
        "machine": quiet,
        "bundle": str(arguments.bundle),
        "engine": server.info,
        "streams": arguments.streams,
        "seconds": round(seconds, 1),
        "requests": figures.requests,
        "distinct_texts": len(set(expected)),
        "tokens": int(made),
        "tok_s": round(made / seconds, 1),
        "alone_tok_s": round(
            alone.tokens / max(1e-9, sum(alone.between) + sum(alone.first_token)), 1
        ),
        "first_token_s": quantiles(figures.first_token),
        "between_tokens_s": quantiles(figures.between),
        "errors": figures.errors[:20],
        "error_count": len(figures.errors),
        "foreign": figures.foreign[:20],
        "foreign_count": len(figures.foreign),
        "killed": figures.killed,
        "cancelled": int(cancelled(after) - cancelled(before)),
        "kill_steps": kills,
        "memory": memory_growth(figures.rss, warm_up),
    }


def cancelled(metrics: dict[str, float]) -> float:
    """Texts that ended because nobody waited for them."""
    return metrics.get('mlcb_requests_finished_total{reason="cancel"}', 0)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99."""
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 4)
        for share in (50, 90, 99)
        if ordered
    }


def failed_checks(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    checks = {
        f"{result['error_count']} errors": result["error_count"] == 0,
        f"{result['foreign_count']} foreign texts": result["foreign_count"] == 0,
        "memory grew": result["memory"]["flat"],
        f"pages came back after {result['kill_steps']} steps": _steps(result) <= _STEPS_ALLOWED,
        f"{result['end_pages']} pages are still held": result["end_pages"] == 0,
        f"the server ended with {result['exit_code']}": result["exit_code"] == 0,
        "the server is not healthy": result["healthy"],
    }
    return [text for text, good in checks.items() if not good]


def _steps(result: dict[str, Any]) -> float:
    """Steps until pages were back, the median.

    A look at the figures takes time too, in which the others make steps: the exact number is for
    tests/unit/test_runtime_engine.py.
    """
    return float(statistics.median(result["kill_steps"]))


def table(result: dict[str, Any]) -> list[str]:
    """The figures for people."""
    first, between, memory = result["first_token_s"], result["between_tokens_s"], result["memory"]
    rows = (
        ("streams", f"{result['streams']} for {result['seconds'] / 60:.1f} min"),
        ("requests", f"{result['requests']}, {result['killed']} of them killed"),
        ("tokens", f"{result['tokens']}, {result['tok_s']} tok/s (alone {result['alone_tok_s']})"),
        ("first token", ", ".join(f"{key} {value * 1000:.0f} ms" for key, value in first.items())),
        ("between", ", ".join(f"{key} {value * 1000:.0f} ms" for key, value in between.items())),
        ("errors", str(result["error_count"])),
        ("foreign texts", f"{result['foreign_count']} of {result['requests']}"),
        ("steps to free", f"{result['kill_steps']} after a kill"),
        (
            "memory",
            " ".join(
                f"{key.replace('_', ' ')} {format_bytes(memory[key])}"
                for key in ("after_warm_up", "end", "peak")
            ),
        ),
    )
    return [machine.heading(result["machine"]), *(f"  {name:<15}{text}" for name, text in rows)]


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--kill-share", type=float, default=0.1)
    parser.add_argument("--kills", type=int, default=10, help="kills that are timed at the end")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", action="append", default=[], help="an option for the server")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here")
    arguments = parser.parse_args(argv)
    options = ("--max-waiting", str(arguments.streams * 2), *arguments.serve)
    with server_process.serve(arguments.bundle, *options) as server:
        result = asyncio.run(measure(server, arguments))
        end = server.wait_idle()
        result |= {"healthy": end.healthy, "end_pages": end.pages_used, "exit_code": server.stop()}
    failed = failed_checks(result)
    result["failed"] = failed
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    for line in (*table(result), *(f"FAILED: {item}" for item in failed)):
        say(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
