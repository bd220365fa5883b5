"""Runs a bundle's own code in a process of its own: a crash there is an error, not the end."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.core.canonical_json import Json
from mlcbuild.core.process import Completed, minimal_environment
from mlcbuild.errors import MlcbuildError, StageError
from mlcbuild.pipeline.action import ActionContext

MODULE = "mlcbuild.pipeline.stages.native_child"
REQUEST, ANSWER = "request.json", "answer.json"


def run_native(context: ActionContext, task: str, bundle: Path, **request: Json) -> Any:
    """What ``task`` ("golden" or "verify") of this module answers about ``bundle``.

    Errors of the bundle's runtime are raised here as they were there; StageError, naming what was
    being tried, if the process ended in any other way.
    """
    folder = context.scratch / task
    folder.mkdir()
    record = {"task": task, "bundle": str(bundle), **request}
    (folder / REQUEST).write_bytes(canonical_json.encode(record))
    env = minimal_environment(context.scratch)
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", MODULE, str(folder)]
    done = context.processes.run(command, cwd=folder, env=env, log=context.log, check=False)
    answer = folder / ANSWER
    if done.exit_code != 0 or not answer.is_file():
        raise _ended(done, context.log)
    found = json.loads(answer.read_bytes())
    if "error" in found:
        raise _error(found["error"])
    return found["result"]


def _ended(done: Completed, log: Path) -> StageError:
    trying = (done.stdout.strip().splitlines() or ["starting"])[-1]
    if done.exit_code < 0:
        try:
            ending = f"the process was killed by {signal.Signals(-done.exit_code).name}"
        except ValueError:
            ending = f"the process was killed by signal {-done.exit_code}"
    else:
        last = done.stderr.strip().splitlines()[-1:]
        ending = " ".join([f"the process ended with exit code {done.exit_code}", *last])
    return StageError(
        f"the bundle does not run here: it failed at {trying}",
        why=ending,
        hint=f"the whole story is in {log}",
    )


def _error(record: Mapping[str, Any]) -> MlcbuildError:
    kinds = {kind.kind: kind for kind in MlcbuildError.__subclasses__()}
    return kinds[record["error"]](
        record["message"], where=record["where"], why=record["why"], hint=record["hint"]
    )


def _say(trying: str) -> None:
    """Tells the parent what comes next; it shows the last line if nothing comes after it."""
    print(trying, flush=True)


def _golden(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compares the text code with its references; records the self-test on one variant."""
    from mlcbuild.bundle.chat_config import load_reference
    from mlcbuild.bundle.runtimes import open_runtime
    from mlcbuild.bundle.selftest import compute_golden
    from mlcbuild.bundle.tokenizer_check import check_chat, check_stop, check_tokenizer

    reference = load_reference(json.loads(Path(request["tokenizer_config"]).read_bytes()))
    _say("opening the bundle")
    with open_runtime(Path(request["bundle"])) as native:
        _say("the tokenizer")
        check_tokenizer(native)
        if reference is not None:
            _say("the chat template")
            check_stop(native, reference)
            check_chat(native, reference)
        prompt = native.tokenize(request["prompt"])
        if not prompt:
            raise StageError("the tokenizer makes no tokens of the self-test's prompt")
        _say(f"the self-test of the variant {request['variant']}")
        return compute_golden(
            native, prompt, count=int(request["tokens"]), variant=request["variant"]
        )


def _verify(request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the recorded self-test on the variant that the runtime picks; params are hashed."""
    from mlcbuild.bundle.runtimes import open_runtime
    from mlcbuild.bundle.selftest import run_golden

    _say("opening the bundle")
    with open_runtime(Path(request["bundle"]), verify_full=True) as native:
        with native.open_engine(threads=1, activations="float", max_batch_size=1) as engine:
            variant = engine.info()["variant"]
        _say(f"the self-test of the variant {variant}")
        golden = run_golden(native, threads=int(request["threads"]))
    golden.check(request["where"])
    return golden.to_json()


def main(folder: Path) -> None:
    """Answers the request in ``folder``; only expected errors become an answer."""
    faulthandler.enable()
    request = json.loads((folder / REQUEST).read_bytes())
    task = {"golden": _golden, "verify": _verify}[request["task"]]
    try:
        answer: dict[str, Any] = {"result": task(request)}
    except MlcbuildError as error:
        answer = {"error": error.to_json()}
    (folder / ANSWER).write_bytes(canonical_json.encode(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
