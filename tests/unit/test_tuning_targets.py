"""Tuning a recipe of several targets: what cannot be tuned is left out, and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlcbuild.core.progress import Event, Progress
from mlcbuild.errors import UsageError
from mlcbuild.pipeline import tune
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.recipe.lock import RecipeLock
from mlcbuild.store.store import Store
from tests.unit.test_stages import spec_of

REQUEST = tune.TuningRequest(trials=1, minutes=None, threads=1)


class Notes:
    """Keeps the texts of notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def emit(self, event: Event) -> None:
        self.texts.append(str(event.get("text", "")))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["web-wasm32-cpu", "web-wasm32-webgpu"])
def test_a_target_for_browsers_does_not_stop_the_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "host_has", lambda _: False)
    notes = Notes()
    env = BuildEnv(Store(tmp_path / "store"), RecipeLock(None), progress=Progress(notes))
    web = spec_of(tmp_path, target=name)
    native = spec_of(tmp_path, target="linux-x86_64-cpu")
    assert tune.tune_builds(env, [web, native], REQUEST) == []
    assert any(text.startswith(f"{name}: not tuned, only libraries") for text in notes.texts)
    assert any("runs none of its variants" in text for text in notes.texts)
    assert tune.tune_builds(env, [web], REQUEST) == []
    with pytest.raises(UsageError, match=f"the kernels of {name} cannot be tuned") as caught:
        tune.tune_builds(env, [web], replace(REQUEST, asked=True))
    assert "--target linux-x86_64-cpu" in str(caught.value.hint)
