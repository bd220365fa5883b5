"""A bundle for WebAssembly, run in node, as far as a build and its checks need that."""

from __future__ import annotations

import base64
import ctypes
import dataclasses
import json
import math
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import mlcbuild
from mlcbuild.bundle.abi import EventKind, TextFlags, status_error
from mlcbuild.bundle.manifest import MANIFEST_NAME
from mlcbuild.bundle.native import NativeEvent, Request, conversation_json
from mlcbuild.bundle.reader import Bundle, open_bundle
from mlcbuild.core.node import node_program
from mlcbuild.core.process import minimal_environment
from mlcbuild.errors import ToolchainError, VerificationError

RUNNER = Path(mlcbuild.__file__).parent / "runtime_stub" / "node" / "runner.mjs"
CALL_SECONDS = 600.0  # more than any call takes, of a model that a browser can hold
_KINDS = {"token": EventKind.TOKEN, "done": EventKind.DONE, "error": EventKind.ERROR}


class NodeBundle:
    """A bundle opened by its own module in a node process. For one thread at a time."""

    def __init__(self, bundle: Bundle, *, verify_full: bool = False) -> None:
        """Takes the best module that node can compile; ``verify_full`` also hashes the params.

        Raises what the runtime finds as an ``MlcbuildError``.
        """
        self.bundle = bundle
        program = str(node_program())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._home = tempfile.TemporaryDirectory()
        try:
            self._process = subprocess.Popen(
                [program, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", str(RUNNER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=minimal_environment(Path(self._home.name)),
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._drop_files()
            raise ToolchainError(f"{program} does not run", why=str(error)) from error
        manifest = bundle.manifest
        try:
            self.module: str = self.call(
                "open",
                folder=str(bundle.path),
                modules=list(dict.fromkeys(variant.kernels for variant in manifest.variants)),
                files=[MANIFEST_NAME, *(entry.path for entry in manifest.files)],
                verify_full=verify_full,
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path, *, verify_full: bool = False) -> NodeBundle:
        """Reads the manifest of the folder ``path`` and opens it."""
        return cls(open_bundle(path), verify_full=verify_full)

    def call(self, operation: str, **given: Any) -> Any:
        """What the runner answers; its failures are raised, and so is that it gives no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(CALL_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"op": operation, **given}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if late.is_set():
            self._process.wait()
            raise VerificationError(
                f"node gave no answer within {CALL_SECONDS:g} s when it was to {operation}",
                where=str(self.bundle.path),
            )
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            raise VerificationError(
                f"node ended with {self._process.returncode} while it was to {operation}",
                where=str(self.bundle.path),
                why=" ".join(said[-3:]) or None,
            )
        answer = json.loads(line)
        if "result" in answer:
            return answer["result"]
        if answer["status"] is None:
            raise VerificationError(
                f"the bundle's module fails in node: {answer['message']}",
                where=str(self.bundle.path),
            )
        raise status_error(answer["status"], answer["message"], str(self.bundle.path))

    def tokenize(self, text: str, flags: TextFlags = TextFlags.TOKENIZE_SPECIAL) -> list[int]:
        """Token ids of ``text``."""
        ids: list[int] = self.call(
            "tokenize",
            text=text,
            special=TextFlags.TOKENIZE_SPECIAL in flags,
            bos=TextFlags.TOKENIZE_BOS in flags,
        )
        return ids

    def detokenize(self, token_ids: Sequence[int], flags: TextFlags = TextFlags.NONE) -> bytes:
        """The bytes that the ids stand for."""
        data: str = self.call(
            "detokenize",
            ids=list(token_ids),
            special=TextFlags.DETOKENIZE_SPECIAL in flags,
            inside=TextFlags.DETOKENIZE_INSIDE in flags,
        )
        return base64.b64decode(data)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, with the model's chat template."""
        conversation = conversation_json(
            messages, add_generation_prompt, tools=tools, now=now, variables=variables
        )
        text: str = self.call("render", conversation=conversation)
        return text

    def open_engine(
        self,
        *,
        threads: int = 0,
        activations: str | None = None,
        variant: str | None = None,
        max_batch_size: int = 0,
    ) -> NodeEngine:
        """The only engine of the bundle until it is closed.

        ``threads``: as many as it may have, 0 for any number; a module always takes one.
        """
        return NodeEngine(
            self, activations=activations, variant=variant, max_batch_size=max_batch_size
        )

    def close(self) -> None:
        """Ends the process; a second call does nothing."""
        self._process.kill()
        self._process.communicate()
        self._drop_files()

    def _drop_files(self) -> None:
        self._errors.close()
        self._home.cleanup()

    def __enter__(self) -> NodeBundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class NodeEngine:
    """An engine over a ``NodeBundle``."""

    def __init__(self, node: NodeBundle, **options: Any) -> None:
        """``options``: fields of mlcb_engine_options; None is the runtime's default."""
        self._node = node
        given = {key: value for key, value in options.items() if value is not None}
        self._info: dict[str, Any] = node.call("engine", options=given)

    def info(self) -> dict[str, Any]:
        """What the runtime chose: variant, activations, threads, limits, memory in bytes."""
        return self._info

    def logits(self, token_ids: Sequence[int]) -> list[ctypes.Array[ctypes.c_float]]:
        """A row of ``vocab_size`` floats for each position."""
        vocab_size = self._node.bundle.manifest.model.vocab_size
        data = base64.b64decode(
            self._node.call("logits", ids=list(token_ids), vocab_size=vocab_size)
        )
        rows = ((ctypes.c_float * vocab_size) * len(token_ids)).from_buffer_copy(data)
        return list(rows)

    def submit(self, request: Request) -> int:
        """Queues a request and returns its id."""
        fields = dataclasses.asdict(request)
        fields["seed"] = str(request.seed)  # numbers of JSON have 53 bits in JavaScript
        fields["logit_bias"] = [  # JSON has no infinity
            (token, None if bias == -math.inf else bias) for token, bias in request.logit_bias
        ]
        request_id: int = self._node.call("submit", request=fields)
        return request_id

    def step(self) -> bool:
        """One forward step; whether requests remain."""
        busy: bool = self._node.call("step")
        return busy

    def poll(self) -> NativeEvent | None:
        """The next event, or None."""
        event = self._node.call("poll")
        if event is None:
            return None
        return NativeEvent(
            request_id=event["request_id"],
            kind=_KINDS[event["kind"]],
            token_id=event["token_id"],
            text=event["text"],
            finish_reason=event["finish_reason"],
            status=event["status"],
            choice=event["choice"],
            logprob=event["logprob"],
            top_logprobs=tuple(
                (item["token_id"], item["logprob"]) for item in event["top_logprobs"]
            ),
            stop_string=event["stop_string"],
        )

    def close(self) -> None:
        """Destroys the engine, dropping its requests."""
        self._node.call("destroy")

    def __enter__(self) -> NodeEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # else the process may be the one that failed
            self.close()
