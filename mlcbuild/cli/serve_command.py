"""mlcbuild serve: OpenAI's REST interface over a bundle."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlcbuild.cli._bundle_options import (
    bundle_argument,
    engine_options,
    speculation_arguments,
    speculation_options,
)
from mlcbuild.cli.context import get_settings
from mlcbuild.errors import UsageError

if TYPE_CHECKING:
    from mlcbuild.engine import AsyncEngine
    from mlcbuild.server.options import ServerOptions
    from mlcbuild.server.request_log import LogWriter

_KEY_VARIABLE = "MLCBUILD_API_KEY"
_PREFIXES = "KMGT"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class _Size(click.ParamType[int]):
    """Bytes as people write them: 4096, 512M or 1.5GB (of 1000), 2GiB (of 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes, at least 1."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", value, re.IGNORECASE)
        size = 0
        if match is not None:
            power = _PREFIXES.find(match[2].upper()) + 1 if match[2] else 0
            size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
        if size < 1:
            self.fail(f"{value!r} is no size such as 512M or 2G", param, ctx)
        return size


@click.command("serve")
@bundle_argument
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. The default is reached from this machine only.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free one.",
)
@click.option(
    "--model-name",
    "model_names",
    multiple=True,
    metavar="NAME",
    help="Name of the model in requests (may be repeated). Default: the bundle's.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help=f"Let in only who has a key (may be repeated). Also ${_KEY_VARIABLE}, which other users "
    "of this machine cannot see.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="A file with a key on each line.",
)
@click.option(
    "--cors",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin use the server, e.g. https://app.example (may be repeated; "
    "* is all).",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Answer to this name too, e.g. that of a proxy (may be repeated). Without API keys only "
    "--host and this machine's own names are answered.",
)
@click.option(
    "--mode",
    type=click.Choice(["server", "local", "interactive"]),
    default="server",
    show_default=True,
    help="How many requests run at once: the bundle's limit, at most 4, or one.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    default=None,
    help="Requests that run at once. Default: the mode's.",
)
@click.option(
    "--kv-bytes",
    type=_Size(),
    default=None,
    metavar="SIZE",
    help="Memory for the KV cache, e.g. 512M or 2G. Default: full windows for every request.",
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="The same, in tokens.",
)
@click.option("--no-prefix-cache", is_flag=True, help="Forget a request's pages when it ends.")
@speculation_options
@engine_options
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Requests that may wait for a place; more get 429.",
)
@click.option(
    "--max-body",
    type=_Size(),
    default="4M",
    show_default=True,
    metavar="SIZE",
    help="Largest request body.",
)
@click.option(
    "--max-n",
    type=click.IntRange(min=1, max=128),
    default=32,
    show_default=True,
    help="Texts that one request may ask for: n, times its prompts.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=0,
    help="Tokens that one text may have; 0 (the default): what the context window holds.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="End a text after this time with what there is; 0 (the default): never.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for running requests when the server is told to stop.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines on stderr, one for each request; --quiet: none.",
)
def command(
    bundle: Path,
    host: str,
    port: int,
    model_names: tuple[str, ...],
    api_keys: tuple[str, ...],
    api_key_file: Path | None,
    cors_origins: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    mode: str,
    max_batch_size: int | None,
    kv_bytes: int | None,
    kv_tokens: int | None,
    no_prefix_cache: bool,
    speculation: str | None,
    speculation_tokens: int,
    draft: Path | None,
    threads: int,
    activations: str | None,
    variant: str | None,
    max_waiting: int,
    max_body: int,
    max_n: int,
    max_tokens: int,
    request_timeout: float,
    grace: float,
    log_format: str,
) -> None:
    """Answer OpenAI's REST calls with BUNDLE, until Ctrl-C or SIGTERM.

    POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /health, GET /metrics.
    """
    import asyncio

    from mlcbuild.bundle.manifest import read_manifest
    from mlcbuild.engine import AsyncEngine
    from mlcbuild.server.options import ServerOptions
    from mlcbuild.server.run import open_sockets, run_server, url_of
    from mlcbuild.server.service import Service

    if kv_bytes is not None and kv_tokens is not None:
        raise UsageError("--kv-bytes and --kv-tokens say the same thing; give one")
    guessing = speculation_arguments(speculation, speculation_tokens, draft)
    _check_names(model_names, cors_origins, allowed_hosts)
    quiet = get_settings().quiet or get_settings().as_json
    keys = _collect_keys(api_keys, api_key_file)
    options = ServerOptions(
        model_names=tuple(dict.fromkeys(model_names)) or (read_manifest(bundle).name,),
        api_keys=keys,
        cors_origins=cors_origins,
        allowed_hosts=_answered_names(host, allowed_hosts),
        max_body_bytes=max_body,
        max_n=max_n,
        max_tokens=max_tokens,
        request_seconds=request_timeout,
        grace_seconds=grace,
    )
    sockets = open_sockets(host, port)
    url = url_of(host, sockets[0].getsockname()[1])
    talk = _Talk(log_format == "json", quiet)
    if not keys and not _is_loopback(host):
        talk.warn(
            f"whoever reaches {url} may use the model: there is no API key",
            f"give --api-key or ${_KEY_VARIABLE}, or leave --host out",
        )

    async def load() -> AsyncEngine:
        return await AsyncEngine.open(
            bundle,
            threads=threads,
            activations=activations,
            variant=variant,
            mode=mode,
            max_batch_size=max_batch_size or 0,
            kv_bytes=kv_bytes or 0,
            kv_tokens=kv_tokens or 0,
            max_waiting=max_waiting,
            prefix_cache=not no_prefix_cache,
            **guessing,
        )

    def announce(engine: AsyncEngine) -> None:
        talk.announce(engine, options, url)

    service = Service(options)
    asyncio.run(run_server(service, sockets, load, write_log=talk.log_writer(), on_ready=announce))
    talk.say("stopped", {"event": "stopped"})


def _check_names(model_names: Sequence[str], origins: Sequence[str], hosts: Sequence[str]) -> None:
    """Refuses what no request could ever say."""
    for name in model_names:
        if not name.strip():
            raise UsageError("--model-name is empty")
    for origin in origins:
        if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise UsageError(
                f"--cors {origin}: no page has this origin",
                why="an origin is a scheme, a host and maybe a port, without a path",
                hint="for example https://app.example or http://localhost:3000; * is all",
            )
    for host in hosts:
        if not host or "/" in host or host.strip() != host:
            raise UsageError(
                f"--allowed-host {host}: a Host header never says this",
                hint="give the name alone, for example llm.example",
            )


def _collect_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys of the command line, the file and the environment."""
    keys = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(
                "the file of API keys does not read",
                where=str(file),
                why=why,
                hint="see --api-key-file",
            ) from None
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise UsageError("the file of API keys is empty", where=str(file))
        keys += found
    variable = os.environ.get(_KEY_VARIABLE)
    if variable is not None:
        keys.append(variable)
    for key in keys:
        if not key.strip() or not key.isascii() or not key.isprintable() or key != key.strip():
            raise UsageError(
                "an API key is empty, or holds spaces at its ends or what a header cannot carry",
                why="a key is printable ASCII",
                hint=f"look at --api-key, --api-key-file and ${_KEY_VARIABLE}",
            )
    return tuple(dict.fromkeys(keys))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _answered_names(host: str, more: tuple[str, ...]) -> tuple[str, ...]:
    """What the Host header may say: anything, where the server is meant to be reached from afar."""
    if not _is_loopback(host):
        return more or ("*",)
    return tuple(dict.fromkeys((*_LOOPBACK_NAMES, host, *more)))


class _Talk:
    """What the server says on stderr, as text or as JSON lines."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self._as_json = as_json
        self._quiet = quiet

    def say(self, text: str, record: dict[str, Any]) -> None:
        """Something that --quiet leaves out."""
        if not self._quiet:
            self._print(text, record)

    def warn(self, text: str, hint: str) -> None:
        """Something that must be seen."""
        self._print(f"warning: {text}\nhint: {hint}", {"event": "warning", "message": text})

    def _print(self, text: str, record: dict[str, Any]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": now, **record}, ensure_ascii=False) if self._as_json else text
        print(line, file=sys.stderr, flush=True)

    def log_writer(self) -> LogWriter | None:
        """Prints a request."""
        from mlcbuild.server.request_log import json_line, text_line

        if self._quiet:
            return None
        form = json_line if self._as_json else text_line
        return lambda record: print(form(record), file=sys.stderr, flush=True)

    def announce(self, engine: AsyncEngine, options: ServerOptions, url: str) -> None:
        """Where the server is, what it serves, and how to ask it."""
        from mlcbuild.core.atomic import format_bytes

        info, manifest = engine.info, engine.manifest
        name = options.model_names[0]
        memory, limits = info["memory"], info["limits"]
        record = {
            "event": "ready",
            "url": f"{url}/v1",
            "models": list(options.model_names),
            "engine": info,
        }
        at_once = limits["max_batch_size"]
        tokens = info["kv"]["pages"] * info["kv"]["page_size"]
        key = " -H 'Authorization: Bearer KEY'" if options.api_keys else ""
        body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
        lines = [
            f"{', '.join(options.model_names)} ({manifest.scheme['name']}) at {url}/v1",
            (
                f"mode {info['mode']}: {at_once} request{'s' * (at_once != 1)} at once, "
                f"{limits['max_waiting']} may wait; {info['variant']}, "
                f"{info['activations']} activations, {info['threads']} threads"
            ),
            (
                f"memory: {format_bytes(memory['weights_bytes'])} weights + up to "
                f"{format_bytes(memory['kv_bytes'])} KV cache ({tokens} tokens)"
            ),
            (
                f"try: curl {url}/v1/chat/completions{key} "
                f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
            ),
            "Ctrl-C stops",
        ]
        self.say("\n".join(lines), record)
