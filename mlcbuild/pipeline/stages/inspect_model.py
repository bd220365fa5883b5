"""inspect: reads a checkpoint's headers and config, and says what will be built of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlcbuild.core import canonical_json
from mlcbuild.errors import SourceError
from mlcbuild.pipeline.action import Action, ActionContext, ActionInput
from mlcbuild.pipeline.stages.files import (
    GENERATION_CONFIG,
    LICENSES,
    MODEL,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from mlcbuild.pipeline.stages.tools import architecture_code, tool_versions
from mlcbuild.recipe.build_spec import BuildSpec


def inspect_action(spec: BuildSpec, source: ActionInput, location: str) -> Action:
    """Small outputs only, so that what follows does not depend on the weights' bytes.

    ``location`` names the source to people; it stays out of the key.
    """

    def run(context: ActionContext) -> None:
        _run(context, location)

    return Action(
        stage="inspect",
        version=1,
        subject=spec.recipe,
        run=run,
        inputs={"source": source},
        params={"tie_word_embeddings": spec.tie_word_embeddings},
        tools=tool_versions("gguf", "safetensors", "tokenizers"),
        code=(*architecture_code("config", "weights"), "mlcbuild.sources"),
        describe="read the checkpoint's headers",
    )


def _run(context: ActionContext, location: str) -> None:
    from mlcbuild.arch.registry import get_architecture
    from mlcbuild.sources.checkpoint import open_checkpoint
    from mlcbuild.weights.mapping import check_consumed

    checkpoint = open_checkpoint(context.inputs["source"])
    config = dict(checkpoint.config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise SourceError("config.json names no model_type", where=location)
    architecture = get_architecture(model_type)
    tie = context.params["tie_word_embeddings"]
    parsed = architecture.config.read_config(
        config, where=f"{location}: config.json", tie_word_embeddings=tie
    )
    rules = architecture.weights.param_rules(parsed)
    check_consumed(rules, checkpoint)
    tokenizer = checkpoint.tokenizer_json()
    if tokenizer is None:
        raise SourceError(
            "the model has no tokenizer.json",
            where=location,
            hint="transformers makes one: AutoTokenizer.from_pretrained(IN).save_pretrained(OUT)",
        )
    size = _tokenizer_size(tokenizer, location)
    if size > parsed.vocab_size:
        raise SourceError(
            f"the tokenizer makes {size} ids, the model has {parsed.vocab_size} rows",
            where=location,
            why="config.json and tokenizer.json belong to different models",
        )
    description = {
        "architecture": model_type,
        "config": config,
        "parameters": sum(_elements(rule.shape) for rule in rules),
        "vocab_size": parsed.vocab_size,
        "tokenizer_vocab_size": size,
        "license": checkpoint.license_id,
        "notes": list(checkpoint.notes),
    }
    _write_json(context.out / MODEL, description)
    (context.out / TOKENIZER).write_bytes(tokenizer)
    _write_json(context.out / TOKENIZER_CONFIG, dict(checkpoint.tokenizer_config))
    _write_json(context.out / GENERATION_CONFIG, dict(checkpoint.generation_config))
    for name, data in _licenses(checkpoint).items():
        path = context.out / LICENSES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _licenses(checkpoint: Any) -> dict[str, bytes]:
    return {Path(path).name: Path(path).read_bytes() for path in checkpoint.license_files}


def _tokenizer_size(tokenizer: bytes, location: str) -> int:
    """The highest token id + 1."""
    try:
        document = json.loads(tokenizer)
        vocab = document["model"]["vocab"]
        ids = [int(i) for i in vocab.values()] if isinstance(vocab, dict) else [len(vocab) - 1]
        ids += [int(token["id"]) for token in document.get("added_tokens", [])]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            "tokenizer.json does not read", where=location, why=f"{type(error).__name__}: {error}"
        ) from error
    return max(ids) + 1


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_bytes(canonical_json.encode(record))
