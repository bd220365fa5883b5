"""A validated recipe and its matrix of builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import UsageError
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.recipe.build_spec import BuildSpec, Calibration, Publish, Quality, Tuning
from mlcbuild.spec.limits import Limits


@dataclass(frozen=True)
class KnownNames:
    """The names that recipes may use, from the registries."""

    schemes: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """A recipe with every default filled in; ``values`` has the shape of the schema."""

    path: Path
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name, the first folder of its bundles."""
        return str(self.values["name"])

    @property
    def schemes(self) -> tuple[str, ...]:
        """Quantization schemes, as listed."""
        return tuple(self.values["quantization"]["schemes"])

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets, as listed."""
        return tuple(self.values["targets"]["names"])

    def expand(
        self,
        known: KnownNames,
        schemes: Sequence[str] = (),
        targets: Sequence[str] = (),
    ) -> tuple[BuildSpec, ...]:
        """The builds of the matrix, schemes within targets.

        ``schemes`` and ``targets`` take the place of the recipe's lists where given, whether they
        narrow them or name something else. Raises ``UsageError`` for an unknown name.
        """
        for what, option, names, all_names in (
            ("quantization scheme", "--quantization", schemes, known.schemes),
            ("target", "--target", targets, known.targets),
        ):
            for name in names:
                if name not in all_names:
                    raise UsageError(
                        f'unknown {what} "{name}"',
                        where=option,
                        hint=suggestion_or_list(name, all_names),
                    )
        return tuple(
            self._spec(scheme, target)
            for target in dict.fromkeys(targets or self.targets)
            for scheme in dict.fromkeys(schemes or self.schemes)
        )

    def _spec(self, scheme: str, target: str) -> BuildSpec:
        values = self.values
        model, quantization, runtime = values["model"], values["quantization"], values["runtime"]
        calibration = quantization["calibration"]
        return BuildSpec(
            recipe=self.name,
            scheme=scheme,
            target=target,
            source=model["source"],
            limits=Limits(
                context_window_size=runtime["context_window_size"],
                prefill_chunk_size=runtime["prefill_chunk_size"],
                max_batch_size=runtime["max_batch_size"],
                kv_dtype=runtime["kv_dtype"] or get_scheme(scheme).kv_dtype,
            ),
            revision=model["revision"],
            tie_word_embeddings=model["tie_word_embeddings"],
            lora=tuple(model["lora"]),
            exclude=tuple(quantization["exclude"]),
            scheme_overrides=tuple(quantization["overrides"].items()),
            calibration=Calibration(**calibration) if calibration is not None else None,
            target_options=values["targets"].get(target, {}),
            sliding_window_size=runtime["sliding_window_size"],
            attention_sink_size=runtime["attention_sink_size"],
            tuning=Tuning(**values["tuning"]),
            quality=Quality(**values["quality"]),
            bundle_options=values["bundle"],
            publish=Publish(**values["publish"]),
            recipe_path=self.path,
            base_dir=self.path.parent,
        )
