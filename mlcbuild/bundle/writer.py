"""Composes bundle.json for a folder that holds everything else of a bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlcbuild.bundle.manifest import (
    CHAT_VERSION,
    GOLDEN_VERSION,
    MANIFEST_NAME,
    PARAMS_VERSION,
    PLAN_VERSION,
    BundleManifest,
    FileEntry,
    LimitsInfo,
    ModelInfo,
    RuntimeInfo,
    VariantInfo,
    tree_digest,
)
from mlcbuild.bundle.memory_plan import kv_of, plan_memory
from mlcbuild.bundle.parts import payload_entries, read_part, refuse_contradictions
from mlcbuild.core.atomic import write_atomic
from mlcbuild.errors import StageError
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme

PARAMS_INDEX = "params/index.json"
TOKENIZER = "tokenizer/tokenizer.json"
CHAT = "chat.json"
GOLDEN = "golden.json"
HEADER = "include/mlcb.h"


@dataclass(frozen=True, slots=True)
class BundleParts:
    """What the manifest says beyond what the files themselves tell.

    ``variants`` names the plans (``lib/<name>.plan``), best first; ``kernels`` are the files that
    hold their kernels, left out: ``lib/kernels-<name>.<ext>``. ``library`` and ``executable`` are
    paths in the bundle. ``parameters`` counts the model's
    weights before quantization. ``schedules`` counts, by variant, where kernels have theirs from.
    """

    name: str
    target: str
    architecture: str
    scheme: QuantScheme
    limits: Limits
    variants: tuple[str, ...]
    source: str
    vocab_size: int
    tokenizer_vocab_size: int
    parameters: int
    revision: str | None = None
    license: str | None = None
    notes: tuple[str, ...] = ()
    library: str = "lib/libmlcb.so"
    executable: str | None = "bin/mlcb"
    schedules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


def write_bundle(out_dir: Path, parts: BundleParts) -> BundleManifest:
    """Writes ``out_dir``/bundle.json for the files that lie in ``out_dir`` and returns it.

    Expects lib/, include/, params/, tokenizer/, chat.json (and bin/, licenses/, golden.json if the
    bundle has them; without a golden.json the manifest says so, which is how the self-test is
    computed before it is added). The file appears atomically; an older one is replaced. Raises
    ``StageError`` naming every missing or contradictory part, ``ResourceError`` if the disk is
    full.
    """
    (out_dir / MANIFEST_NAME).unlink(missing_ok=True)
    files = payload_entries(out_dir)
    present = {entry.path for entry in files}
    needed = [parts.library, HEADER, PARAMS_INDEX, TOKENIZER, CHAT]
    if parts.executable is not None:
        needed.append(parts.executable)
    missing = [path for path in needed if path not in present]
    if not parts.variants:
        missing.append("lib/<variant>.plan (no variant at all)")
    variants: list[VariantInfo] = []
    plans: list[dict[str, Any]] = []
    suffix = Path(parts.library).suffix
    for name in parts.variants:
        plan_path = f"lib/{name}.plan"
        kernels_path = parts.kernels.get(name, f"lib/kernels-{name}{suffix}")
        absent = [path for path in (plan_path, kernels_path) if path not in present]
        missing += absent
        if absent:
            continue
        plan = _read_versioned(out_dir, plan_path, "plan_version", PLAN_VERSION)
        plans.append(plan)
        variants.append(
            VariantInfo(
                name=name,
                activations=plan["activations"],
                capability=list(plan["capability"]),
                kernels=kernels_path,
                plan=plan_path,
                schedules=dict(parts.schedules.get(name, {})),
            )
        )
    if missing:
        raise StageError(
            "the bundle lacks parts", where=str(out_dir), why=f"missing: {', '.join(missing)}"
        )
    index = _read_versioned(out_dir, PARAMS_INDEX, "params_version", PARAMS_VERSION)
    _read_versioned(out_dir, CHAT, "chat_version", CHAT_VERSION)
    if GOLDEN in present:
        _read_versioned(out_dir, GOLDEN, "golden_version", GOLDEN_VERSION)
    _check_parts(parts, plans, index, {entry.path: entry for entry in files}, out_dir)
    kv = kv_of(plans)
    limits = LimitsInfo(
        **dataclasses.asdict(parts.limits),
        sliding_window_size=kv["window"],
        attention_sink_size=kv["sinks"],
    )
    manifest = BundleManifest(
        name=parts.name,
        target=parts.target,
        architecture=parts.architecture,
        scheme=dataclasses.asdict(parts.scheme),
        model=ModelInfo(
            source=parts.source,
            revision=parts.revision,
            license=parts.license,
            vocab_size=parts.vocab_size,
            tokenizer_vocab_size=parts.tokenizer_vocab_size,
            parameters=parts.parameters,
            notes=list(parts.notes),
        ),
        limits=limits,
        variants=variants,
        runtime=RuntimeInfo(library=parts.library, executable=parts.executable, header=HEADER),
        params=PARAMS_INDEX,
        tokenizer=TOKENIZER,
        chat=CHAT,
        golden=GOLDEN if GOLDEN in present else None,
        memory=plan_memory(index, plans, limits),
        tree_digest=tree_digest(files),
        files=files,
    )
    write_atomic(out_dir / MANIFEST_NAME, manifest.to_bytes())
    return manifest


def _check_parts(
    parts: BundleParts,
    plans: Sequence[dict[str, Any]],
    index: dict[str, Any],
    files: dict[str, FileEntry],
    out_dir: Path,
) -> None:
    problems: list[str] = []
    for name, plan in zip(parts.variants, plans, strict=True):
        for key, expected in (
            ("variant", name),
            ("target", parts.target),
            ("layout", index.get("layout")),
            ("vocab_size", parts.vocab_size),
        ):
            if plan.get(key) != expected:
                problems.append(
                    f"lib/{name}.plan: {key} is {plan.get(key)!r}, the bundle has {expected!r}"
                )
        known = {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in index["tensors"]}
        for param in plan["params"]:
            held = known.get(param["name"])
            if held != (param["dtype"], param["shape"]):
                problems.append(
                    f"lib/{name}.plan wants {param['name']} as {param['dtype']} {param['shape']}, "
                    f"params hold {'nothing' if held is None else f'{held[0]} {held[1]}'}"
                )
    for shard in index["shards"]:
        entry = files.get(shard["path"])
        found = None if entry is None else (entry.size, entry.sha256)
        if found != (shard["size"], shard["sha256"]):
            problems.append(
                f"params/index.json says {shard['path']} has {shard['size']} bytes, sha256 "
                f"{shard['sha256']}; the file has {found}"
            )
    if parts.tokenizer_vocab_size > parts.vocab_size:
        problems.append(
            f"the tokenizer makes {parts.tokenizer_vocab_size} ids, the model has "
            f"{parts.vocab_size} rows"
        )
    refuse_contradictions(out_dir, problems)


def _read_versioned(out_dir: Path, path: str, key: str, known: int) -> dict[str, Any]:
    value = read_part(out_dir, path)
    found = value.get(key)
    if found != known:
        raise StageError(
            f"{path} is of another version",
            where=str(out_dir),
            why=f"{key} is {found}, this mlcbuild writes {known}",
        )
    return value
