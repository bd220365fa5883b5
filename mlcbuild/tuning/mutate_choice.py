"""MetaSchedule's step from one candidate to a neighbour: another value for one choice."""

from __future__ import annotations

import random
from typing import Any

from tvm.ir.utils import derived_object

from mlcbuild.tuning.tvm_setup import load_meta_schedule

ms = load_meta_schedule()


@derived_object
class MutateChoice(ms.mutator.PyMutator):  # type: ignore[misc, name-defined]
    """Replaces the decision of one sampling instruction.

    Half of the time by the value before or after it: values are in order, so that is a small
    step, and small steps find the best of a region that is good.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._random = random.Random(seed)

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Nothing of the context is needed."""

    def apply(self, trace: Any, _: Any) -> Any:
        """The changed trace; None if nothing can be changed."""
        decided = trace.decisions
        steps = [(inst, len(inst.attrs[0])) for inst in trace.insts if inst in decided]
        steps = [(inst, count) for inst, count in steps if count > 1]
        if not steps:
            return None
        inst, count = self._random.choice(steps)
        now = int(decided[inst])
        near = [i for i in (now - 1, now + 1) if 0 <= i < count]
        far = [i for i in range(count) if i != now]
        chosen = self._random.choice(near if self._random.random() < 0.5 else far)
        return trace.with_decision(inst, chosen, remove_postproc=True)

    def clone(self) -> Any:
        """Another one of the same seed."""
        return MutateChoice(self._seed)
