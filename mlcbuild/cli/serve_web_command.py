"""mlcbuild serve-web: a bundle for browsers over HTTP, to try it on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from mlcbuild.cli._bundle_options import bundle_argument, json_option
from mlcbuild.cli.context import get_settings

if TYPE_CHECKING:
    from mlcbuild.bundle.web_bundles import WebBundle
    from mlcbuild.server.file_tree import FileTree

_CLIENT_PREFIX = "resolve/main/"  # what MLC's browser client puts between a model and a file
_PAGE = "index.html"
_MAX_PATH = 200  # characters of a path that are shown


@click.command("serve-web")
@bundle_argument
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. The default is reached from this machine only; browsers allow "
    "WebGPU and storage there, and elsewhere over https alone.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="0 takes a free one.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
@json_option
def command(bundle: Path, host: str, port: int, opens: bool, as_json: bool) -> None:
    """Serve BUNDLE, of a web target, to browsers until Ctrl-C or SIGTERM.

    What lies beside it for the same model and scheme is served as well, so that its page can
    offer both WebGPU and CPU. Any static host does the same job: docs/web.md.
    """
    import asyncio
    import threading
    import webbrowser

    from mlcbuild.bundle.web_bundles import open_web_bundles
    from mlcbuild.server.file_tree import FileServer
    from mlcbuild.server.files import serve_files
    from mlcbuild.server.run import open_sockets, url_of

    bundles, notes = open_web_bundles(bundle)
    trees = [_tree(item) for item in bundles]
    sockets = open_sockets(host, port)
    root = url_of(host, sockets[0].getsockname()[1])
    quiet = get_settings().quiet

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    def ready() -> None:
        for note in notes:
            print(f"warning: {note}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps(_record(root, bundles), ensure_ascii=False), flush=True)
        else:
            # The address is the result; the rest is talk.
            print(f"{root}/{trees[0].name}/", flush=True)
            say("\n".join([*(_line(item) for item in bundles), "Ctrl-C stops"]))
        if opens:
            # A browser for text runs in the terminal, and waits for answers from this thread.
            address = f"{root}/{trees[0].name}/"
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    app = FileServer(trees, lambda *request: say(_request_line(*request)))
    asyncio.run(serve_files(app, sockets, ready))
    say("stopped")


def _request_line(method: str, path: str, status: int) -> str:
    """For the terminal, which must not see the control characters that anybody may send."""
    return f"{status} {method} {quote(path[:_MAX_PATH])}"


def _tree(bundle: WebBundle) -> FileTree:
    """What is served of a bundle: its manifest as read at the start, and the files it lists."""
    import hashlib

    from mlcbuild.bundle.manifest import MANIFEST_NAME, manifest_bytes
    from mlcbuild.server.file_tree import FileTree, ServedFile

    manifest = bundle.manifest
    files = {entry.path: ServedFile(entry.size, entry.sha256) for entry in manifest.files}
    content = manifest_bytes(bundle.folder)
    digest = hashlib.sha256(content).hexdigest()
    files[MANIFEST_NAME] = ServedFile(len(content), digest, content)
    return FileTree(
        name=manifest.target,
        folder=bundle.folder,
        files=files,
        index=_PAGE if _PAGE in files else None,
        aliases=(_CLIENT_PREFIX,),
    )


def _line(bundle: WebBundle) -> str:
    from mlcbuild.core.atomic import format_bytes

    manifest = bundle.manifest
    size = format_bytes(manifest.payload_bytes)
    files = len(manifest.files)
    return f"{manifest.name} ({manifest.scheme['name']}), {manifest.target}: {files} files, {size}"


def _record(root: str, bundles: list[WebBundle]) -> dict[str, Any]:
    return {
        "event": "ready",
        "url": f"{root}/{bundles[0].manifest.target}/",
        "bundles": [
            {
                "url": f"{root}/{manifest.target}/",
                "path": str(bundle.folder),
                "name": manifest.name,
                "target": manifest.target,
                "scheme": manifest.scheme["name"],
                "tree_digest": manifest.tree_digest,
                "files": len(manifest.files),
                "payload_bytes": manifest.payload_bytes,
            }
            for bundle in bundles
            for manifest in [bundle.manifest]
        ],
    }
