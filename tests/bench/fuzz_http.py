"""Sends a server what no client should: no 500, no hang, and it must be well at the end.

    python tests/bench/fuzz_http.py BUNDLE --minutes 10

Starts ``mlcbuild serve BUNDLE`` on a free port of the loopback, sends mutated bodies, broken HTTP,
slow and impatient clients for the time given, and prints counts as JSON. What was answered wrongly
goes to --out, a file for each exchange. Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from tests.bench import server_process

# Longer than any answer may take on a busy machine; a fuzzed request writes few tokens.
PATIENCE_SECONDS = 60.0
# 5xx that a server may answer: it closes, a request's time is up.
ALLOWED_5XX = frozenset({503, 504})
_MOMENT_SECONDS = 0.3
_LARGE = 3 << 20

CHAT: dict[str, Any] = {
    "model": "MODEL",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Where is Paris?"},
    ],
    "max_tokens": 4,
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": 1,
    "n": 1,
    "stop": ["\n\n"],
    "logprobs": True,
    "top_logprobs": 2,
    "presence_penalty": 0.1,
    "logit_bias": {"5": -100},
    "stream": False,
    "response_format": {"type": "text"},
    "user": "somebody",
}
TOOLS: dict[str, Any] = {
    "model": "MODEL",
    "messages": [{"role": "user", "content": "The weather in Paris?"}],
    "max_tokens": 4,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"enum": [1, 2]}},
                    "required": ["city"],
                },
            },
        }
    ],
    "tool_choice": "auto",
}
SCHEMA: dict[str, Any] = {
    "model": "MODEL",
    "messages": [{"role": "user", "content": "A person, as JSON"}],
    "max_tokens": 4,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "person",
            "schema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Z][a-z]+$", "maxLength": 9},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "friends": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
                },
                "required": ["name", "age"],
            },
        },
    },
}
TEXT: dict[str, Any] = {
    "model": "MODEL",
    "prompt": "Once upon a time",
    "max_tokens": 4,
    "temperature": 0,
    "echo": False,
    "grammar": {"type": "regex", "value": "[a-z ]{1,20}"},
}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
VALID = (
    (PATHS["chat"], CHAT),
    (PATHS["chat"], TOOLS),
    (PATHS["chat"], SCHEMA),
    (PATHS["text"], TEXT),
)

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 31,
    1 << 63,
    1 << 64,
    -(1 << 63),
    10**400,
    1e308,
    -1e308,
    5e-324,
    0.5,
    "",
    "x",
    "\x00",
    "\u202e\U0001f9e8\ufffe",
    "<|im_start|>system\n<|im_end|>",
    "a" * 10_000,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    {"type": "object"},
    {"$ref": "#/nowhere"},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"pattern": "(a*)*b"},
    {"pattern": "["},
    {"enum": list(range(1000))},
    {"minLength": 1 << 40},
    {"minItems": 100_000},
    {"not": {}},
    {"oneOf": []},
)


@dataclass
class Report:
    """Counts by (kind of request, outcome), and what was answered wrongly."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[tuple[str, str, bytes, bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, outcome: str, sent: bytes, received: bytes, fault: bool) -> None:
        """Takes one exchange."""
        with self.lock:
            self.counts[kind, outcome] += 1
            if fault and len(self.faults) < 100:
                self.faults.append((kind, outcome, sent, received))

    def to_json(self) -> dict[str, Any]:
        """Totals for people and programs."""
        kinds: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in sorted(self.counts.items()):
            kinds.setdefault(kind, {})[outcome] = count
        total = sum(self.counts.values())
        return {"exchanges": total, "faults": len(self.faults), "kinds": kinds}


class Fuzzer:
    """One stream of exchanges, the same for the same seed."""

    def __init__(self, host: str, port: int, model: str, seed: int, report: Report) -> None:
        self.address = (host, port)
        self.model = model
        self.random = random.Random(seed)
        self.report = report
        self.kinds: dict[str, Callable[[], None]] = {
            "valid": self.valid,
            "fields": self.fields,
            "bytes": self.bytes_,
            "deep": self.deep,
            "large": self.large,
            "headers": self.headers,
            "lengths": self.lengths,
            "chunks": self.chunks,
            "not-http": self.not_http,
            "paths": self.paths,
            "pipelined": self.pipelined,
            "slow": self.slow,
            "left": self.left,
        }
        self.weights = [2, 12, 6, 2, 1, 4, 3, 3, 3, 2, 2, 1, 3]
        self.kind = ""

    def run(self, until: float) -> None:
        """Exchanges until that time (monotonic)."""
        names = list(self.kinds)
        while time.monotonic() < until:
            (self.kind,) = self.random.choices(names, self.weights)
            self.kinds[self.kind]()

    # ---- bodies --------------------------------------------------------------------------------

    def body(self) -> tuple[str, dict[str, Any]]:
        """A valid request."""
        path, template = self.random.choice(VALID)
        body = copy.deepcopy(template)
        body["model"] = self.model
        if self.random.random() < 0.3:
            body["stream"] = True
        return path, body

    def valid(self) -> None:
        """What must be answered with 200, or 400 where the model lacks what is asked for."""
        path, body = self.body()
        self.exchange(self.post(path, json.dumps(body).encode()))

    def fields(self) -> None:
        """Junk in the place of values, fields that are missing, doubled or unknown."""
        path, body = self.body()
        for _ in range(self.random.randint(1, 3)):
            self.mutate(body)
        try:
            data = json.dumps(body).encode()
        except (ValueError, RecursionError):
            return
        self.exchange(self.post(path, data))

    def mutate(self, value: Any) -> None:
        """Changes one place in ``value``, chosen by walking down."""
        draw = self.random
        while True:
            if not isinstance(value, (dict, list)) or not value:
                return
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            key = draw.choice(keys)
            inner = value[key]
            if isinstance(inner, (dict, list)) and inner and draw.random() < 0.7:
                value = inner
                continue
            what = draw.randrange(5)
            if what == 0:
                del value[key]
            elif what == 1 and isinstance(value, dict):
                value[
                    draw.choice(("unknown", "Model", key + "s" if isinstance(key, str) else ""))
                ] = inner
            elif what == 2 and isinstance(value, list):
                value.extend(copy.deepcopy(value * draw.randint(1, 50)))
            else:
                value[key] = copy.deepcopy(draw.choice(JUNK))
            return

    def bytes_(self) -> None:
        """Bodies that are cut, flipped, doubled, or no UTF-8."""
        path, body = self.body()
        data = bytearray(json.dumps(body, ensure_ascii=self.random.random() < 0.5).encode())
        for _ in range(self.random.randint(1, 4)):
            place = self.random.randrange(len(data) or 1)
            match self.random.randrange(6):
                case 0:
                    del data[place:]
                case 1 if data:
                    data[place % len(data)] = self.random.randrange(256)
                case 2:
                    data[place:place] = bytes([self.random.randrange(256)])
                case 3:
                    data[place:place] = self.random.choice(
                        (b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\x00", b"NaN", b"1e999", b"//")
                    )
                case 4:
                    data += bytes(data)
                case 5:
                    data[place : place + 20] = b""
        self.exchange(self.post(path, bytes(data)))

    def deep(self) -> None:
        """Containers in containers."""
        depth = self.random.choice((100, 128, 129, 200, 1000, 100_000))
        opening, closing = self.random.choice(((b"[", b"]"), (b'{"a":', b"}")))
        nested = opening * depth + b"1" + closing * (depth if self.random.random() < 0.8 else 0)
        path, body = self.body()
        name = self.random.choice(("messages", "metadata", "response_format", "tools", "prompt"))
        head = json.dumps({**body, name: 0}).encode()[:-2]
        self.exchange(self.post(path, head + nested + b"}"))

    def large(self) -> None:
        """Bodies around and beyond the limit."""
        size = self.random.choice((_LARGE, 4_000_000, 5_000_000))
        path, body = self.body()
        body["user"] = "u" * size
        self.exchange(self.post(path, json.dumps(body).encode()))

    # ---- HTTP ----------------------------------------------------------------------------------

    def post(self, path: str, data: bytes, *more: str) -> bytes:
        """A whole request."""
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Connection: close",
            *more,
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + data

    def headers(self) -> None:
        """Headers that are many, long, odd or wrong."""
        draw = self.random
        path, body = self.body()
        more = draw.choice(
            (
                [f"X-{number}: {number}" for number in range(draw.choice((50, 500)))],
                ["X-Long: " + "y" * draw.choice((5000, 50_000))],
                ["Content-Type: text/plain"],
                ["Content-Type: application/json; charset=utf-7"],
                ["Content-Encoding: gzip"],
                ["Expect: 100-continue"],
                ["Expect: something"],
                ["Authorization: Bearer " + "k" * 5000],
                ["Authorization: \xff\xfe"],
                ["Host: evil.example"],
                ["Host: 127.0.0.1:99999999"],
                ["Upgrade: websocket", "Connection: Upgrade"],
                ["Origin: https://evil.example", "Access-Control-Request-Method: POST"],
                ["Accept: image/png", "Accept-Encoding: br", "Range: bytes=0-1"],
                ["X-Fold: a\r\n b"],
                ["No colon here"],
                [": no name"],
                ["X-Nul: \x00"],
                ["Transfer-Encoding: gzip, chunked"],
            )
        )
        self.exchange(self.post(path, json.dumps(body).encode(), *more))

    def lengths(self) -> None:
        """A Content-Length that is wrong."""
        path, body = self.body()
        data = json.dumps(body).encode()
        length = self.random.choice(
            ("-1", "abc", "", "1e3", "0", str(len(data) - 5), "99999999999999999999", "+5", "5, 6")
        )
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
        # A body that is announced longer than it is ends with the client's side of the connection.
        self.exchange(head.encode() + data, half_close=True)

    def chunks(self) -> None:
        """Chunked bodies, right and wrong."""
        path, body = self.body()
        data = json.dumps(body).encode()
        draw = self.random
        pieces = [b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:20], data[20:])]
        encoded = b"".join(pieces) + b"0\r\n\r\n"
        encoded = draw.choice(
            (
                encoded,
                encoded[: draw.randrange(len(encoded))],
                b"zz\r\n" + encoded,
                b"ffffffffffffffffff\r\n" + encoded,
                b"-5\r\n" + encoded,
                b"5;ext=" + b"e" * 20_000 + b"\r\n" + encoded,
                encoded[:-2] + b"Trailer: x\r\n\r\n",
            )
        )
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        both = "Content-Length: 5\r\n" if draw.random() < 0.3 else ""
        ending = "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        self.exchange((head + both + ending).encode() + encoded, half_close=True)

    def not_http(self) -> None:
        """What is no HTTP/1.1."""
        draw = self.random
        data = draw.choice(
            (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(100),  # TLS
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET /health\r\n\r\n",
                b"GET /health HTTP/9.9\r\n\r\n",
                b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\r\n\r\n\r\n",
                b"\x00" * 1000,
                draw.randbytes(draw.randrange(1, 3000)),
                b"GET /" + b"p" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            )
        )
        self.exchange(data, half_close=True, may_be_empty=True)

    def paths(self) -> None:
        """Other methods and paths."""
        draw = self.random
        method = draw.choice(("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW", "POST"))
        path = draw.choice(
            (
                *PATHS.values(),
                "/v1/models",
                "/v1/models/%00",
                "/v1/models/" + "m" * 5000,
                "/v1/models/../../etc/passwd",
                "/v1/models/%2e%2e%2f",
                "/health",
                "/metrics",
                "/",
                "//",
                "*",
                "http://evil.example/v1/models",
                "/v1/models?" + "q=1&" * 1000,
                "/v1/chat/completions/../completions",
                "/%ff%fe",
            )
        )
        request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self.exchange(request.encode())

    def pipelined(self) -> None:
        """Several requests before the first answer; the last one closes."""
        parts = []
        count = self.random.randint(2, 5)
        for _ in range(count):
            path, body = self.body()
            if self.random.random() < 0.5:
                self.mutate(body)
            parts.append(self.post(path, json.dumps(body).encode()))
        data = b"".join(part.replace(b"Connection: close\r\n", b"") for part in parts[:-1])
        self.exchange(data + parts[-1])

    def slow(self) -> None:
        """A client that sends in small pieces, and one that reads so."""
        path, body = self.body()
        data = self.post(path, json.dumps(body).encode())
        step = max(1, len(data) // 20)
        self.exchange(data, step=step, pause=0.01)

    def left(self) -> None:
        """A client that leaves: in mid-request, before the answer, or in mid-stream."""
        path, body = self.body()
        body["stream"] = True
        data = self.post(path, json.dumps(body).encode())
        outcome = "left"
        try:
            with socket.create_connection(self.address, PATIENCE_SECONDS) as connection:
                connection.sendall(data[: self.random.choice((len(data), len(data) // 2, 20))])
                if self.random.random() < 0.5:
                    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # RST
                time.sleep(self.random.choice((0, 0, 0.01, 0.1)))
        except OSError as error:
            outcome = type(error).__name__
        self.report.add(self.kind, outcome, data, b"", False)

    # ---- exchanges -----------------------------------------------------------------------------

    def exchange(
        self,
        data: bytes,
        *,
        half_close: bool = False,
        may_be_empty: bool = False,
        step: int = 0,
        pause: float = 0.0,
    ) -> None:
        """Sends, reads to the end, and judges what came."""
        received = b""
        end = time.monotonic() + PATIENCE_SECONDS
        try:
            with socket.create_connection(self.address, PATIENCE_SECONDS) as connection:
                try:
                    for start in range(0, len(data), step or len(data)):
                        connection.sendall(data[start : start + (step or len(data))])
                        time.sleep(pause)
                    if half_close:
                        # The server may wait for more: it gets a moment to answer, then the end.
                        connection.settimeout(_MOMENT_SECONDS)
                        with contextlib.suppress(TimeoutError):
                            received += connection.recv(65536)
                        connection.settimeout(PATIENCE_SECONDS)
                        connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it may have answered and closed already
                while piece := connection.recv(65536):
                    received += piece
                    if time.monotonic() > end:
                        raise TimeoutError
        except TimeoutError:
            self.report.add(self.kind, "hang", data, received, True)
            return
        except ConnectionRefusedError:
            self.report.add(self.kind, "refused", data, received, True)
            time.sleep(0.1)
            return
        except OSError:
            pass  # a reset, after an answer to what the server did not read to its end
        fault = judge(received, whole=not half_close and self.kind in ("valid", "fields", "deep"))
        status = statuses(received)
        outcome = fault or (",".join(sorted(set(map(str, status)))) if status else "closed")
        empty_fault = not status and not may_be_empty and not half_close and not received
        if empty_fault and self.kind in ("valid", "fields", "deep", "slow"):
            fault = outcome = "no answer"
        self.report.add(self.kind, outcome, data, received, fault is not None)


def statuses(raw: bytes) -> list[int]:
    """The status of every answer in ``raw``."""
    found = []
    for line in raw.split(b"\r\n"):
        at = line.find(b"HTTP/1.1 ")
        if at >= 0 and line[at + 9 : at + 12].isdigit():
            found.append(int(line[at + 9 : at + 12]))
    return [status for status in found if status != 100]


def judge(raw: bytes, *, whole: bool) -> str | None:
    """What is wrong with answers, or None. ``whole``: the one answer must be complete."""
    for status in statuses(raw):
        if status >= 500 and status not in ALLOWED_5XX:
            return f"status {status}"
    head, _, body = raw.partition(b"\r\n\r\n")
    if not whole or not head.startswith(b"HTTP/1.1 "):
        return None
    if b"text/event-stream" in head:
        if not body.rstrip(b"\r\n").endswith(b"0") or b"data: [DONE]" not in body:
            return "stream without end"
        return "error in a stream" if b'"type":"server_error"' in body else None
    try:
        answer = json.loads(body)
    except ValueError:
        return "body is no JSON"
    if int(head[9:12]) >= 400 and sorted(answer.get("error", {})) != [
        "code",
        "message",
        "param",
        "type",
    ]:
        return "error without its fields"
    return None


def fuzz(
    host: str, port: int, model: str, seconds: float, *, seed: int = 0, clients: int = 4
) -> Report:
    """Runs ``clients`` fuzzers at once for a time."""
    report = Report()
    until = time.monotonic() + seconds
    fuzzers = [Fuzzer(host, port, model, seed + number, report) for number in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        for ended in [pool.submit(fuzzer.run, until) for fuzzer in fuzzers]:
            ended.result()
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(".cache/fuzz_http"))
    arguments = parser.parse_args(argv)
    limits = ("--max-tokens", "8", "--max-n", "4", "--max-body", "4M")
    with server_process.serve(arguments.bundle, *limits) as server:
        report = fuzz(
            "127.0.0.1",
            server.port,
            server.model,
            arguments.minutes * 60,
            seed=arguments.seed,
            clients=arguments.clients,
        )
        end = server.wait_idle()
        code = server.stop()
    result = {
        **report.to_json(),
        "minutes": arguments.minutes,
        "seed": arguments.seed,
        "healthy": end.healthy,
        "pages_used": end.pages_used,
        "exit_code": code,
        "tracebacks": server.log.count("Traceback"),
    }
    print(json.dumps(result, indent=2))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, (kind, outcome, sent, received) in enumerate(report.faults):
        name = arguments.out / f"{number:03d}-{kind}"
        name.with_suffix(".sent").write_bytes(sent)
        name.with_suffix(".received").write_bytes(outcome.encode() + b"\n\n" + received)
    if server.log.count("Traceback"):
        (arguments.out / "server.log").write_text(server.log)
    good = end.healthy and end.pages_used == 0 and code == 0 and not result["tracebacks"]
    return 0 if good and not report.faults else 1


if __name__ == "__main__":
    sys.exit(main())
