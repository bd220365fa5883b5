"""Builds and times candidates in worker processes, in this machine or behind an RPC tracker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.support.popen_pool import PopenPoolExecutor, StatusKind

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Decisions, Workload
from mlcbuild.tuning import measure
from mlcbuild.tuning.job import TuningJob
from mlcbuild.tuning.tvm_setup import load_meta_schedule

ms = load_meta_schedule()

# Compiling leaks memory in a worker, so it is replaced now and then.
_USES = 64


_Item = tuple[Capabilities, Workload, Decisions, bool, Any, tuple[str, ...], int]


def _build(item: _Item) -> str:
    return measure.build_library(*item)


class Workers:
    """One process that compiles and one that runs; their failures are results.

    MetaSchedule's own local builder starts a new process, which loads TVM anew, for every batch;
    this one keeps its process. Running is MetaSchedule's local or RPC runner.
    """

    def __init__(self, job: TuningJob) -> None:
        capabilities = job.capabilities
        record: dict[str, Any] = {
            "kind": "llvm",
            "mtriple": job.triple,
            "mcpu": capabilities.llvm_cpu,
            "num-cores": job.threads,
        }
        if capabilities.llvm_features:
            record["mattr"] = list(capabilities.llvm_features)
        self.target = tvm.target.Target(record)
        self._job = job
        self._builders = PopenPoolExecutor(
            max_workers=1, timeout=job.build_timeout, maximum_process_uses=_USES
        )
        self._runner: Any = None

    def build(
        self, workload: Workload, candidates: Sequence[Decisions], *, whole: bool = False
    ) -> list[Any]:
        """A ``BuilderResult`` for each candidate; ``whole`` compiles it for any number of rows."""
        job = self._job
        capabilities = job.capabilities
        results = []
        inputs = [
            (capabilities, workload, decisions, whole, self.target, job.link, job.threads)
            for decisions in candidates
        ]
        for done in self._builders.map_with_error_catching(_build, inputs):
            if done.status == StatusKind.COMPLETE:
                results.append(ms.builder.BuilderResult(done.value, None))
            elif done.status == StatusKind.TIMEOUT:
                text = f"compiling took more than {self._job.build_timeout:g} s"
                results.append(ms.builder.BuilderResult(None, text))
            else:
                results.append(ms.builder.BuilderResult(None, str(done.value)))
        return results

    def run(self, built: Sequence[Any], mod: tvm.IRModule) -> list[Any]:
        """A ``RunnerResult`` for each candidate, with the seconds of its calls.

        ``mod`` is the stand-in, whose signature the kernels have.
        """
        results: list[Any] = [None] * len(built)
        info = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
        inputs, places = [], []
        for place, result in enumerate(built):
            if result.error_msg is not None:
                results[place] = ms.runner.RunnerResult(None, str(result.error_msg))
                continue
            inputs.append(ms.runner.RunnerInput(result.artifact_path, "cpu", info))
            places.append(place)
        if self._runner is None:
            self._runner = self._make_runner()
        futures = self._runner.run(inputs) if inputs else []
        for place, future in zip(places, futures, strict=True):
            results[place] = future.result()
        return results

    def drop(self, built: Sequence[Any]) -> None:
        """Removes the libraries of candidates."""
        for result in built:
            if result.artifact_path is not None:
                shutil.rmtree(Path(str(result.artifact_path)).parent, ignore_errors=True)

    def _make_runner(self) -> Any:
        config = ms.runner.EvaluatorConfig(
            number=measure.CALLS, repeat=measure.ROUNDS, min_repeat_ms=0
        )
        rpc = self._job.rpc
        if rpc is None:
            return ms.runner.LocalRunner(
                timeout_sec=self._job.run_timeout,
                evaluator_config=config,
                f_run_evaluator=measure.time_calls,
                initializer=measure.prepare_worker,
            )
        return ms.runner.RPCRunner(
            rpc_config=ms.runner.RPCConfig(
                tracker_host=rpc.host,
                tracker_port=rpc.port,
                tracker_key=rpc.key,
                session_timeout_sec=int(self._job.run_timeout),
            ),
            evaluator_config=config,
            f_run_evaluator=measure.time_calls_remotely,
            max_workers=1,
        )
