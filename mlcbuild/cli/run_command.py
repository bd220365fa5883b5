"""mlcbuild run: one prompt, one answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlcbuild.cli._bundle_options import (
    bundle_argument,
    engine_options,
    json_option,
    sampling_options,
    speculation_arguments,
    speculation_options,
)
from mlcbuild.cli._streaming import text_output, write_now
from mlcbuild.errors import UsageError

if TYPE_CHECKING:
    from mlcbuild.engine import Engine


@click.command("run")
@bundle_argument
@click.option("--prompt", required=True, help='What to ask; "-" reads it from stdin.')
@click.option("--system", default=None, help="System message. Default: the model's own, if any.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@sampling_options
@click.option("--stop", multiple=True, help="Stop before this string (may be repeated).")
@click.option(
    "--json-schema",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="The answer is JSON that fits the schema in this file.",
)
@click.option("--regex", default=None, help="The whole answer matches this regular expression.")
@speculation_options
@engine_options
@json_option
def command(
    bundle: Path,
    prompt: str,
    system: str | None,
    raw: bool,
    json_schema: Path | None,
    regex: str | None,
    speculation: str | None,
    speculation_tokens: int,
    draft: Path | None,
    threads: int,
    activations: str | None,
    variant: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask BUNDLE something; the answer, and nothing else, goes to stdout as it is made."""
    from mlcbuild.engine import Engine

    if raw and system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out")
    guessing = speculation_arguments(speculation, speculation_tokens, draft)
    options["grammar"] = _grammar(json_schema, regex)
    if prompt == "-":
        prompt = _read_stdin()
    with Engine(
        bundle,
        threads=threads,
        activations=activations,
        variant=variant,
        **guessing,
    ) as engine:
        token_ids = _prompt_token_ids(engine, prompt, system, raw)
        options["stop"] = tuple(options["stop"])
        if as_json:
            with _grammar_errors(json_schema):
                record = _record(engine, token_ids, options)
            click.echo(json.dumps(record, ensure_ascii=False))
            return
        output = text_output()
        finish_reason = None
        with _grammar_errors(json_schema):
            for event in engine.stream_events(token_ids, **options):
                write_now(output, event.text)
                finish_reason = event.finish_reason or finish_reason
        write_now(output, "\n")
        if finish_reason == "length":
            limit = options["max_tokens"]
            _warn_cut(limit, engine.context_window_size, whole=options["grammar"] is None)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def _warn_cut(max_tokens: int, window: int, *, whole: bool) -> None:
    """Says that an answer was cut off, on stderr."""
    cause = f"--max-tokens {max_tokens}" if max_tokens else f"the context window of {window} tokens"
    rest = "" if whole else "; it does not fit its grammar"
    click.echo(f"warning: the answer was ended by {cause}{rest}", err=True)


@contextmanager
def _grammar_errors(json_schema: Path | None) -> Iterator[None]:
    """Errors of a grammar name the file or option that it came from, not the bundle."""
    from mlcbuild.bundle.abi import GrammarError

    try:
        yield
    except GrammarError as error:
        error.where = "--regex" if json_schema is None else str(json_schema)
        raise


def _grammar(json_schema: Path | None, regex: str | None) -> dict[str, str] | None:
    if json_schema is not None and regex is not None:
        raise UsageError("--json-schema and --regex cannot both bind the answer")
    if json_schema is not None:
        return {"type": "json_schema", "value": _read_schema(json_schema)}
    return None if regex is None else {"type": "regex", "value": regex}


def _read_schema(path: Path) -> str:
    """The text of a schema, which must be JSON."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise UsageError("the schema is not JSON", where=where, why=error.msg) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "--json-schema takes a file" if str(path).lstrip().startswith("{") else None
        raise UsageError("the schema does not read", where=str(path), why=why, hint=hint) from None
    return text


def _prompt_token_ids(engine: Engine, prompt: str, system: str | None, raw: bool) -> list[int]:
    if raw:
        return engine.prompt_token_ids(prompt, raw=True)
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return engine.prompt_token_ids(messages)


def _record(engine: Engine, token_ids: list[int], options: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    first: float | None = None
    pieces: list[str] = []
    generated: list[int] = []
    finish_reason = None
    for event in engine.stream_events(token_ids, **options):
        first = time.perf_counter() if first is None else first
        pieces.append(event.text)
        if event.finish_reason is not None:
            finish_reason = event.finish_reason
        else:
            generated.append(event.token_id)
    ended = time.perf_counter()
    decode_s = ended - (ended if first is None else first)
    info = engine.info
    return {
        "text": "".join(pieces),
        "token_ids": generated,
        "finish_reason": finish_reason,
        "prompt_tokens": len(token_ids),
        "first_token_s": None if first is None else round(first - started, 4),
        "decode_tok_s": round((len(generated) - 1) / decode_s, 2)
        if decode_s > 0 and len(generated) > 1
        else None,
        "variant": info.get("variant"),
        "activations": info.get("activations"),
        "threads": info.get("threads"),
    }
