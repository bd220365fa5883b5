"""mlcbuild inspect: what a bundle is, in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlcbuild.cli._bundle_options import bundle_argument, json_option

if TYPE_CHECKING:
    from mlcbuild.bundle.client_manifest import ClientManifest
    from mlcbuild.bundle.manifest import BundleManifest, ManifestBase, VariantInfo


@click.command("inspect")
@bundle_argument
@json_option
def command(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE holds: model, scheme, sizes, memory plan, kernels, licence."""
    from mlcbuild.bundle.client_manifest import ClientManifest
    from mlcbuild.bundle.reader import open_any_manifest
    from mlcbuild.core.cpuinfo import host_features
    from mlcbuild.engine.host import runs_here, variant_for

    manifest = open_any_manifest(bundle)
    chosen = None
    if not isinstance(manifest, ClientManifest) and runs_here(manifest):
        chosen = variant_for(manifest, host_features())
    if as_json:
        record: dict[str, Any] = manifest.model_dump(mode="json")
        record["path"] = str(bundle)
        record["payload_bytes"] = manifest.payload_bytes
        record["host_variant"] = None if chosen is None else chosen.name
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    lines = _summary(manifest)
    if isinstance(manifest, ClientManifest):
        lines += _client_lines(manifest)
    else:
        lines += _plan_lines(manifest, chosen)
    if manifest.model.notes:
        lines += ["notes", *(f"  {note}" for note in manifest.model.notes)]
    for line in lines:
        click.echo(line)


def _summary(manifest: ManifestBase) -> list[str]:
    from mlcbuild.core.atomic import format_bytes

    model, limits = manifest.model, manifest.limits
    vocabulary = f"{model.vocab_size:,} rows"
    if model.tokenizer_vocab_size != model.vocab_size:
        vocabulary += f", {model.tokenizer_vocab_size:,} tokens"
    rows = [
        ("name", manifest.name),
        ("digest", manifest.tree_digest),
        ("target", manifest.target),
        ("scheme", f"{manifest.scheme['name']}: {manifest.scheme.get('summary', '')}"),
        ("model", f"{manifest.architecture}, {model.parameters:,} parameters"),
        ("vocabulary", vocabulary),
        ("source", model.source + (f" @ {model.revision}" if model.revision else "")),
        ("licence", model.license or "not stated by the source"),
        ("files", f"{len(manifest.files)}, {format_bytes(manifest.payload_bytes)}"),
        (
            "limits",
            (
                f"context of {limits.context_window_size}, {limits.max_batch_size} "
                f"sequence{'s' if limits.max_batch_size > 1 else ''}, "
                f"prefill in chunks of {limits.prefill_chunk_size}"
            ),
        ),
    ]
    return [f"{name:<12}{value}" for name, value in rows]


def _memory_lines(weights: int, cache: int, about: str, scratch: int, total: int) -> list[str]:
    from mlcbuild.core.atomic import format_bytes

    return [
        "memory",
        f"  weights   {format_bytes(weights):>10}",
        f"  KV cache  {format_bytes(cache):>10}  {about}",
        f"  scratch   {format_bytes(scratch):>10}",
        f"  total     {format_bytes(total):>10}",
    ]


def _client_lines(manifest: ClientManifest) -> list[str]:
    from mlcbuild.core.atomic import format_bytes

    memory, needs = manifest.memory, manifest.needs
    about = (
        f"a full context in {manifest.limits.kv_dtype}, "
        f"{format_bytes(memory.kv_bytes_per_token)} a token"
    )
    lines = _memory_lines(
        memory.weights_bytes, memory.kv_bytes, about, memory.scratch_bytes, memory.total_bytes
    )
    lines.append(f"{'client':<12}{manifest.client.package}")
    lines.append(f"{'library':<12}{manifest.client.library}")
    wants = [*needs.features, *(f"{name} of {value}" for name, value in needs.limits.items())]
    lines.append(f"{'device':<12}WebGPU; needs {', '.join(wants) or 'nothing beyond its defaults'}")
    lines.append(f"{'page':<12}{manifest.page or 'none'}")
    return lines


def _plan_lines(manifest: BundleManifest, chosen: VariantInfo | None) -> list[str]:
    from mlcbuild.core.atomic import format_bytes
    from mlcbuild.core.cpuinfo import host_features
    from mlcbuild.engine.host import host_platform, runs_here

    limits, memory = manifest.limits, manifest.memory
    per_token = format_bytes(memory.kv_bytes_per_token)
    kept = "full contexts"
    if limits.sliding_window_size:
        kept = f"sliding windows of {limits.sliding_window_size} tokens"
        if limits.attention_sink_size:
            kept += f" and {limits.attention_sink_size} sinks"
    cache = f"{limits.max_batch_size} {kept} in {limits.kv_dtype}, {per_token} a token"
    lines = _memory_lines(
        memory.weights_bytes, memory.kv_bytes, cache, memory.arena_bytes, memory.total_bytes
    )
    lines.append("kernels")
    features = host_features() if runs_here(manifest) else frozenset()
    for variant in manifest.variants:
        if variant is chosen:
            verdict = "  <- this CPU takes it"
        elif not runs_here(manifest):
            verdict = ""
        else:
            lacking = [flag for flag in variant.capability if flag not in features]
            verdict = f"  (this CPU lacks {', '.join(lacking)})" if lacking else ""
        needs = ", ".join(variant.capability) or "nothing special"
        lines.append(f"  {variant.name}: {variant.activations} activations; needs {needs}{verdict}")
        sources = [f"{count} {source}" for source, count in variant.schedules.items() if count]
        if sources:
            lines.append(f"    schedules: {', '.join(sources)}")
    if manifest.is_wasm:
        lines.append("  runs in browsers and node: mlcbuild serve-web shows it")
    elif not runs_here(manifest):
        lines.append(f"  this machine is {host_platform()}: the bundle does not run here")
    elif chosen is None:
        lines.append("  none of them runs on this CPU")
    return lines
