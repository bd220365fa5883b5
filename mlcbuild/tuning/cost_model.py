"""Predicts how fast a candidate is from its decisions, so that only promising ones are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object

from mlcbuild.tuning.candidates import sampled_index
from mlcbuild.tuning.tvm_setup import load_meta_schedule

ms = load_meta_schedule()

Array = np.ndarray[Any, np.dtype[Any]]

# With fewer measurements the model knows nothing, and candidates are drawn at random.
LEAST_SAMPLES = 8

_TREES = 60


@derived_object
class DecisionModel(ms.cost_model.PyCostModel):  # type: ignore[misc, name-defined]
    """Boosted trees (xgboost) over the positions of the decisions in their lists of values.

    The stand-ins that MetaSchedule passes around have no loops from which it could read features;
    the decisions are all that differs. Scores are the fastest time over a candidate's time, 0 for
    a candidate that failed, so greater is better.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._features: list[tuple[int, ...]] = []
        self._seconds: list[float] = []
        self._model: Any = None

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from measurements."""
        for candidate, result in zip(candidates, results, strict=True):
            runs = [float(value) for value in result.run_secs or ()]
            self._features.append(sampled_index(candidate.sch.trace))
            self._seconds.append(min(runs) if runs and min(runs) < 1e9 else float("inf"))
        if len(self._features) < LEAST_SAMPLES or not np.isfinite(self._seconds).any():
            return
        import xgboost

        seconds = np.asarray(self._seconds)
        fastest = seconds[np.isfinite(seconds)].min()
        scores = np.where(np.isfinite(seconds), fastest / seconds, 0.0)
        parameters = {"max_depth": 4, "eta": 0.2, "nthread": 1, "seed": self._seed}
        known = xgboost.DMatrix(np.asarray(self._features, "float32"), scores)
        self._model = xgboost.train(parameters, known, num_boost_round=_TREES)

    def predict(self, context: Any, candidates: Sequence[Any]) -> Array:
        """The score of each candidate."""
        if self._model is None:
            return self._random.random(len(candidates))
        import xgboost

        features = [sampled_index(candidate.sch.trace) for candidate in candidates]
        asked = xgboost.DMatrix(np.asarray(features, "float32"))
        return np.asarray(self._model.predict(asked), "float64")
