"""mlcbuild verify: every hash of a bundle, then its self-test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from mlcbuild.cli._bundle_options import bundle_argument, json_option
from mlcbuild.errors import VerificationError


@click.command("verify")
@bundle_argument
@click.option("--hashes-only", is_flag=True, help="Do not run the self-test.")
@json_option
def command(bundle: Path, hashes_only: bool, as_json: bool) -> None:
    """Check every file of BUNDLE against its manifest, then run its self-test.

    The self-test runs golden.json with float activations on this machine's kernels; it is left out
    for a bundle of another system or processor. Exit code 6 if anything is wrong.
    """
    from mlcbuild.bundle.reader import verify_bundle
    from mlcbuild.core.atomic import format_bytes

    report = verify_bundle(bundle, full=True)
    record: dict[str, Any] = {**report.to_json(), "selftest": None, "selftest_skipped": None}
    if not report.ok:
        if as_json:
            click.echo(json.dumps(record, ensure_ascii=False))
            raise click.exceptions.Exit(VerificationError.exit_code)
        report.check()
    if not as_json:
        click.echo(f"{report.files} files, {format_bytes(report.bytes_hashed)}: all as named")
        click.echo(report.tree_digest)
    skipped = "not asked for" if hashes_only else _why_not_here(bundle)
    if skipped is None:
        ok = _selftest(bundle, record, as_json)
    else:
        ok = True
        record["selftest_skipped"] = skipped
        if not as_json:
            click.echo(f"self-test left out: {skipped}")
    record["ok"] = ok
    if as_json:
        click.echo(json.dumps(record, ensure_ascii=False))
    if not ok:
        raise click.exceptions.Exit(VerificationError.exit_code)


def _why_not_here(bundle: Path) -> str | None:
    from mlcbuild.bundle.client_manifest import ClientManifest, read_any_manifest
    from mlcbuild.core.node import NODE
    from mlcbuild.core.versions import installed_version
    from mlcbuild.engine.host import host_platform, runs_here

    manifest = read_any_manifest(bundle)
    if isinstance(manifest, ClientManifest):
        return f"{manifest.client.package} runs the bundle, not mlcbuild"
    if manifest.golden is None:
        return "the bundle has none"
    if manifest.is_wasm:
        missing = installed_version(NODE) is None
        return f"it runs in node: pip install 'mlcbuild[web]' brings {NODE}" if missing else None
    if not runs_here(manifest):
        return f"the bundle is for {manifest.target}, this machine is {host_platform()}"
    return None


def _selftest(bundle: Path, record: dict[str, Any], as_json: bool) -> bool:
    from mlcbuild.bundle.runtimes import open_runtime
    from mlcbuild.bundle.selftest import run_golden

    with open_runtime(bundle) as native:
        golden = run_golden(native)
    record["selftest"] = golden.to_json()
    if not as_json:
        golden.check(str(bundle))
        click.echo(
            f"self-test passed on {golden.variant}: {golden.agreeing} tokens agree, "
            f"largest logit difference {golden.max_difference:.4f}"
        )
    return golden.ok
