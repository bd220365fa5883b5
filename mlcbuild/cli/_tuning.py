"""What tune and make share: running a tuning request and showing how it goes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mlcbuild.core.progress import Progress, Task
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.recipe.build_spec import BuildSpec

if TYPE_CHECKING:
    from mlcbuild.pipeline.tune import TuningPlan, TuningRequest
    from mlcbuild.tuning.run import JobResult, Outcome


class TuningDisplay:
    """Counts trials, and says a line for each workload that is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stack = ExitStack()
        self._task: Task | None = None
        self._told: set[tuple[int, int]] = set()
        self._counted: dict[int, int] = {}

    def __call__(self, plan: TuningPlan, number: int | None, outcome: Outcome | None) -> None:
        """``PlanWatch``."""
        if number is None or outcome is None:
            self.close()
            self._counted = {}
            names = ", ".join(plan.variants)
            if not plan.job.tasks:
                self._progress.note(f"{names}: all {plan.known} workloads have a record")
                return
            known = f", {plan.known} have a record" if plan.known else ""
            self._progress.note(f"{names}: tuning {len(plan.job.tasks)} workloads{known}")
            task = self._progress.task(f"tune {names}", plan.job.trials, "trials")
            self._task = self._stack.enter_context(task)
            return
        if self._task is not None:
            self._task.advance(outcome.trials - self._counted.get(number, 0))
        self._counted[number] = outcome.trials
        if (outcome.record or outcome.error) and (id(plan), number) not in self._told:
            self._told.add((id(plan), number))
            self._progress.note(f"  {describe(outcome)}")

    def close(self) -> None:
        """End the count that is shown."""
        self._stack.close()
        self._task = None


def describe(outcome: Outcome) -> str:
    """``linear_int4 960x576, 1 row: 1.12x of the default (blocks 4, unroll 2), 24 trials``."""
    failed = f", {outcome.failed} failed" if outcome.failed else ""
    if outcome.record is None:
        why = outcome.error or "interrupted"
        return f"{outcome.workload}: no comparison ({why}), {outcome.trials} trials{failed}"
    speedup = outcome.record.speedup or 1.0
    if speedup > 1.0:
        decisions = ", ".join(f"{name} {value}" for name, value in outcome.record.decisions)
        verdict = f"{speedup:.2f}x of the default ({decisions})"
    else:
        verdict = "the default is best"
    return f"{outcome.workload}: {verdict}, {outcome.trials} trials{failed}"


def run_tuning(
    env: BuildEnv, specs: Sequence[BuildSpec], request: TuningRequest, progress: Progress
) -> list[tuple[TuningPlan, JobResult]]:
    """``tune_builds`` with a display."""
    from mlcbuild.pipeline.tune import tune_builds

    display = TuningDisplay(progress)
    try:
        return tune_builds(env, specs, request, display)
    finally:
        display.close()


def record_rows(results: Sequence[tuple[TuningPlan, JobResult]]) -> list[dict[str, Any]]:
    """The new comparisons as they are stored, for ``--json``."""
    return [
        dict(outcome.record.to_json())
        for _, result in results
        for outcome in result.outcomes
        if outcome.record is not None
    ]
