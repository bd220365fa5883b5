"""The search of one workload: MetaSchedule proposes, workers measure, the default is the judge."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import tvm

from mlcbuild.kernels.registry import get_spaces
from mlcbuild.spec.schedule_space import Space, Workload
from mlcbuild.tuning.candidates import (
    sampled_index,
    schedule_rule,
    space_of,
    stand_in,
    trace_text,
)
from mlcbuild.tuning.cost_model import DecisionModel
from mlcbuild.tuning.job import TuningJob, TuningTask
from mlcbuild.tuning.mutate_choice import MutateChoice
from mlcbuild.tuning.tvm_setup import load_meta_schedule
from mlcbuild.tuning.workers import Workers

ms = load_meta_schedule()

# The candidates that go into the comparison with the default.
_FINALISTS = 3

# A winner must be so much faster than the default in the median round, and not slower in three
# rounds of four: less is noise.
LEAST_GAIN = 1.02

# Batches in a row that find nothing faster end a search.
_PATIENCE = 3

# Tells the parent what happened: an event's name and its fields.
Emit = Callable[..., None]


@dataclass
class Trial:
    """One measured candidate; ``seconds`` is empty for one that failed."""

    decisions: dict[str, int]
    seconds: list[float] = field(default_factory=list)
    trace: str | None = None
    error: str | None = None

    @property
    def time(self) -> float:
        """A time that noise only raises: the first quartile of the calls."""
        if len(self.seconds) < 2:
            return self.seconds[0] if self.seconds else math.inf
        return float(statistics.quantiles(self.seconds, n=4)[0])


@dataclass
class Budget:
    """What is left to spend on all tasks that are still to do."""

    trials: int | None
    deadline: float | None
    tasks_left: int
    clock: Callable[[], float] = field(default=time.monotonic)

    def share(self) -> tuple[int, float | None]:
        """Trials and the deadline of the next task: equal shares of what is left."""
        tasks = max(1, self.tasks_left)
        trials = 1 << 30 if self.trials is None else max(1, self.trials // tasks)
        if self.deadline is None:
            return trials, None
        now = self.clock()
        return trials, now + max(0.0, self.deadline - now) / tasks


class Search:
    """Everything that tasks of one job share."""

    def __init__(self, job: TuningJob, emit: Emit) -> None:
        self._job = job
        self._emit = emit
        self._workers = Workers(job)

    def run(self) -> None:
        """Search every task of the job within its budget."""
        job = self._job
        deadline = None if job.seconds is None else time.monotonic() + job.seconds
        budget = Budget(job.trials, deadline, len(job.tasks))
        for number, task in enumerate(job.tasks):
            trials, until = budget.share()
            self._emit("task", number=number, workload=task.workload.to_json(), trials=trials)
            used = self._search(number, task, trials, until)
            if budget.trials is not None:
                budget.trials -= used
            budget.tasks_left -= 1
            if deadline is not None and time.monotonic() > deadline:
                break

    def _search(self, number: int, task: TuningTask, limit: int, until: float | None) -> int:
        """Measure candidates of one task; how many."""
        space = space_of(self._job.capabilities, task.workload)
        mod = stand_in(self._job.capabilities, task.workload)
        context = self._context(space, mod, limit)
        database = ms.database.MemoryDatabase()
        model = DecisionModel(self._job.seed)
        designs = context.generate_design_space()
        context.pre_tuning(max(limit, 1), self._job.batch, designs, database, model)
        trials = [Trial(dict(known.decisions), [known.seconds]) for known in task.known]
        best = min((trial.time for trial in trials), default=math.inf)
        seen = {tuple(sorted(trial.decisions.items())) for trial in trials}
        measured = idle = 0
        while measured < limit and idle < _PATIENCE and (until is None or time.monotonic() < until):
            candidates = context.generate_measure_candidates()
            if not candidates:
                break
            batch = self._measure(number, task.workload, candidates, database, context, model)
            new = [t for t in batch if tuple(sorted(t.decisions.items())) not in seen]
            seen.update(tuple(sorted(t.decisions.items())) for t in batch)
            trials += batch
            measured += len(batch)
            fastest = min((trial.time for trial in batch), default=math.inf)
            idle = 0 if fastest < best / LEAST_GAIN and new else idle + 1
            best = min(best, fastest)
        context.post_tuning()
        self._confirm(number, task.workload, mod, trials)
        return measured

    def _context(self, space: Space, mod: tvm.IRModule, limit: int) -> Any:
        job = self._job
        generator = ms.space_generator.ScheduleFn(
            schedule_rule(space),
            sch_rules=[],
            postprocs=[],
            mutator_probs={MutateChoice(job.seed): 1.0},
        )
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=64, init_min_unmeasured=8, genetic_num_iters=2, eps_greedy=0.2
        )
        context = ms.TuneContext(
            mod=mod,
            target=self._workers.target,
            space_generator=generator,
            search_strategy=strategy,
            task_name=space.form,
            rand_state=job.seed,
            num_threads=1,
            logger=logging.getLogger("mlcbuild.tuning"),
        )
        return context.clone()

    def _measure(
        self,
        number: int,
        workload: Workload,
        candidates: Sequence[Any],
        database: Any,
        context: Any,
        model: Any,
    ) -> list[Trial]:
        """Build, run, tell MetaSchedule and the parent."""
        space = space_of(self._job.capabilities, workload)
        traces = [candidate.sch.trace for candidate in candidates]
        chosen = [space.decisions_at(sampled_index(trace)) for trace in traces]
        built = self._workers.build(workload, chosen)
        results = self._workers.run(built, context.mod)
        self._workers.drop(built)
        trials = []
        for candidate, trace, decisions, result in zip(
            candidates, traces, chosen, results, strict=True
        ):
            trial = Trial(decisions, trace=trace_text(trace))
            if result.error_msg is None:
                trial.seconds = [round(float(value), 9) for value in result.run_secs]
                where = database.commit_workload(candidate.sch.mod)
                record = ms.database.TuningRecord(
                    trace, where, [trial.time], self._workers.target, candidate.args_info
                )
                database.commit_tuning_record(record)
            else:
                trial.error = _last_line(str(result.error_msg))
            trials.append(trial)
            self._emit("trial", number=number, **asdict(trial))
        context.notify_runner_results(candidates, results)
        model.update(context, candidates, results)
        return trials

    def _confirm(self, number: int, workload: Workload, mod: Any, trials: Sequence[Trial]) -> None:
        """Compare the fastest candidates with the default, all as they would be shipped, in turns.

        The seconds of a search were taken minutes apart, on a machine that does other things too.
        Here every round measures everybody once, so that what disturbs a round disturbs all.
        """
        finalists = [Trial(self._default(workload))]
        for trial in sorted(trials, key=lambda trial: trial.time):
            known = [finalist.decisions for finalist in finalists]
            if trial.seconds and trial.decisions not in known and len(finalists) <= _FINALISTS:
                finalists.append(trial)
        built = self._workers.build(workload, [f.decisions for f in finalists], whole=True)
        rounds: list[list[float]] = []
        errors = [str(b.error_msg) for b in built if b.error_msg is not None]
        for turn in range(self._job.rounds):
            order = list(range(len(finalists)))
            if turn % 2:
                order.reverse()
            results = self._workers.run([built[i] for i in order], mod)
            errors += [str(r.error_msg) for r in results if r.error_msg is not None]
            times = [Trial({}, [float(v) for v in r.run_secs or ()]).time for r in results]
            rounds.append([time for _, time in sorted(zip(order, times, strict=True))])
        self._workers.drop(built)
        winner = choose_winner(rounds)
        if winner is None:
            self._emit("failed", number=number, error=_last_line(errors[0] if errors else ""))
            return
        place, speedup = winner
        self._emit(
            "confirmed",
            number=number,
            decisions=finalists[place].decisions,
            seconds=[times[place] for times in rounds if math.isfinite(times[place])],
            speedup=speedup,
            rounds=len(rounds),
            trace=finalists[place].trace,
        )

    def _default(self, workload: Workload) -> dict[str, int]:
        capabilities = self._job.capabilities
        found: dict[str, int] = get_spaces(capabilities).default_decisions(
            capabilities, workload.builder, dict(workload.args), workload.form
        )
        return found


def choose_winner(rounds: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Who is fastest, and the default's time over theirs in the median round.

    ``rounds`` hold the seconds of everybody, the default's first, infinite for a failure. The
    default itself wins with a speedup of 1 unless somebody is faster by ``LEAST_GAIN`` in the
    median round and no slower in three of four. Rounds in which the default failed do not count;
    None if they are half of all, or more.
    """
    usable = [times for times in rounds if math.isfinite(times[0])]
    if 2 * len(usable) <= len(rounds):
        return None
    best = (0, 1.0)
    for place in range(1, len(usable[0])):
        ratios = sorted(times[0] / times[place] for times in usable)
        middle, low = statistics.median(ratios), ratios[len(ratios) // 4]
        if middle >= LEAST_GAIN and low >= 1.0 and middle > best[1]:
            best = (place, middle)
    return best


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it gave no reason"
