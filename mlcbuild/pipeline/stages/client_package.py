"""client_package: the browser's client itself, fetched with npm, for the page in the bundle."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tarfile
from pathlib import Path

from mlcbuild.core.atomic import copy_file
from mlcbuild.core.node import node_versions, npm_command
from mlcbuild.errors import NetworkError, SourceError
from mlcbuild.pipeline.action import Action, ActionContext
from mlcbuild.pipeline.env import BuildEnv

SCRIPT, LICENSE = "web-llm.js", "web-llm-LICENSE"
_MEMBERS = {"package/lib/index.js": SCRIPT, "package/LICENSE": LICENSE}
# What the registry says of each version that bundles are made for; a version never changes.
_INTEGRITY = {
    "@mlc-ai/web-llm@0.2.86": (
        "sha512-plciXBCYtY7iTKHzEcsqOfSO+s5u8NqMYFPnHmRbsN8CEdKcolgXIoGLPbzO6FtJHV43m7YP00x6qQ6Kb8CJJw=="
    ),
}
_NO_NETWORK = re.compile(r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|network")


def client_package_action(package: str, env: BuildEnv) -> Action:
    """The client's module and its licence; ``package`` is name@version."""

    def run(context: ActionContext) -> None:
        archive = _archive(context, package, offline=env.offline)
        with tarfile.open(archive) as tar:
            for member, name in _MEMBERS.items():
                source = tar.extractfile(member)
                if source is None:
                    raise SourceError(f"{package} holds no {member}", where=str(archive))
                with source, open(context.out / name, "wb") as target:
                    shutil.copyfileobj(source, target)

    return Action(
        stage="client_package",
        version=1,
        subject=package,
        run=run,
        params={"package": package, "integrity": _INTEGRITY[package]},
        tools=node_versions(),
        describe=f"fetch {package}",
    )


def _archive(context: ActionContext, package: str, *, offline: bool) -> Path:
    """The package's file, from the cache or else from the registry that npm is set up for."""
    expected = str(context.params["integrity"])
    folder = context.tool_cache("npm")
    kept = folder / f"{hashlib.sha256(expected.encode()).hexdigest()[:16]}.tgz"
    if kept.exists() and _integrity(kept) == expected:
        return kept
    if offline:
        raise NetworkError(
            f"{package} is not in the cache, and --offline was given",
            hint="run once without --offline",
        )
    done = context.processes.run(
        [*npm_command(), "pack", package, "--loglevel=error"],
        cwd=context.scratch,
        own_settings=True,
        log=context.log,
        check=False,
    )
    found = sorted(context.scratch.glob("*.tgz"))
    if done.exit_code != 0 or len(found) != 1:
        said = (done.stderr or done.stdout).strip()
        kind = NetworkError if _NO_NETWORK.search(said) else SourceError
        raise kind(
            f"npm could not fetch {package}",
            why=said.splitlines()[-1] if said else f"exit code {done.exit_code}",
            hint=f"the whole story is in {context.log}",
        )
    if _integrity(found[0]) != expected:
        raise SourceError(
            f"{package} of the registry is not the pinned one",
            why=f"it has {_integrity(found[0])}, {expected} was expected",
            hint="check which registry npm is set up for",
        )
    copy_file(found[0], kept)
    return kept


def _integrity(path: Path) -> str:
    """As registries write it: the algorithm, and the digest in base 64."""
    digest = hashlib.sha512(path.read_bytes()).digest()
    return f"sha512-{base64.b64encode(digest).decode('ascii')}"
