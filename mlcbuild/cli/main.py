"""The ``mlcbuild`` command: global options, commands found by file name, errors, exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

import mlcbuild
import mlcbuild.cli as package
from mlcbuild.cli.context import Settings, default_store
from mlcbuild.cli.output import error_text
from mlcbuild.core.suggest import suggestion_or_list
from mlcbuild.errors import MlcbuildError, ResourceError, UsageError

_SUFFIX = "_command"
INTERRUPTED = 130

# What the machine refuses, not what we did wrong.
_REFUSALS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "writing or reading is not permitted",
    errno.EPERM: "writing or reading is not permitted",
    errno.EMFILE: "too many files are open",
    errno.ENOMEM: "memory is short",
}


class CommandFinder(click.Group):
    """A command NAME is ``command`` of ``cli/NAME_command.py``, imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names by files; nothing is imported."""
        modules = pkgutil.iter_modules(package.__path__)
        return sorted(
            module.name[: -len(_SUFFIX)].replace("_", "-")
            for module in modules
            if module.name.endswith(_SUFFIX)
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None if no file is named so."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(
            f"{package.__name__}.{cmd_name.replace('-', '_')}{_SUFFIX}"
        )
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is not a click command")
        _accept_global_options(command)
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                _accept_global_options(inner)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for an unknown name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(
                f'unknown command "{args[0]}"',
                hint=suggestion_or_list(args[0], self.list_commands(ctx)),
            )
        return super().resolve_command(ctx, args)


def _override(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        settings = ctx.find_object(Settings)
        if settings is not None and value not in (None, False):
            change: dict[str, Any] = {name: False if name == "color" else value}
            ctx.obj = replace(settings, **change)

    return callback


def _accept_global_options(command: click.Command) -> None:
    """Let ``mlcbuild make R --store S`` mean ``mlcbuild --store S make R``.

    These options stay out of the command's own help.
    """
    taken = {name for parameter in command.params for name in parameter.opts}
    for flags, setting in (
        (("--store",), "store_path"),
        (("--db",), "db_path"),
        (("--quiet", "-q"), "quiet"),
        (("--verbose", "-v"), "verbose"),
        (("--no-color",), "color"),
    ):
        if taken.isdisjoint(flags):
            is_path = setting.endswith("_path")
            command.params.append(
                click.Option(
                    flags,
                    type=click.Path(path_type=Path, file_okay=False) if is_path else None,
                    is_flag=not is_path,
                    expose_value=False,
                    hidden=True,
                    callback=_override(setting),
                )
            )


@click.group(
    cls=CommandFinder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of build results. Default: $MLCBUILD_STORE, else mlcbuild in the user's cache.",
)
@click.option(
    "--db",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of tuning records. Default: $MLCBUILD_DB, else mlcbuild/tuning in user data.",
)
@click.option("--json", "as_json", is_flag=True, help="Events and results as JSON on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Only results, warnings and errors.")
@click.option("--verbose", "-v", is_flag=True, help="Say more; tracebacks of internal errors.")
@click.option("--no-color", is_flag=True, help="No colours (as the variable NO_COLOR).")
@click.version_option(mlcbuild.__version__, prog_name="mlcbuild")
@click.pass_context
def group(
    ctx: click.Context,
    store: Path | None,
    db: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> None:
    """Build language models into self-contained bundles.

    Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 internal error, 2 usage
    or recipe, 3 source, 4 toolchain missing, 5 a stage failed, 6 verification or quality gate,
    7 disk, memory or device limits, 8 network or publish, 130 interrupted.
    """
    ctx.obj = Settings.from_environment(
        store, db, as_json=as_json, quiet=quiet, verbose=verbose, no_color=no_color
    )


def main() -> NoReturn:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed, never raised."""
    previous = _interrupt_on_terminate()
    try:
        return _run(list(arguments) or ["--help"])
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _run(arguments: list[str]) -> int:
    try:
        code = group.main(arguments, prog_name="mlcbuild", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except MlcbuildError as error:
        _report(error, arguments)
        return error.exit_code
    except click.ClickException as error:
        _report_usage(error, arguments)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        kept = "; what was finished is kept" if {"make", "tune"} & set(arguments) else ""
        click.echo(f"interrupted{kept}", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _REFUSALS:
            return _report_bug(error, arguments)
        refusal = _refusal(error)
        _report(refusal, arguments)
        return refusal.exit_code
    except Exception as error:  # a bug of ours: the user gets one line, the log the rest
        return _report_bug(error, arguments)


def _refusal(error: OSError) -> ResourceError:
    """What is left when no stage could say more about it."""
    return ResourceError(
        _REFUSALS[error.errno or 0],
        where=str(error.filename) if error.filename else None,
        hint="choose another folder with --store (build results) or --out (bundles)",
    )


def _report(error: MlcbuildError, arguments: list[str]) -> None:
    if "--json" in arguments:
        click.echo(json.dumps({"event": "error", **error.to_json()}, ensure_ascii=False))
    click.echo(error_text(error), err=True)


def _report_usage(error: click.ClickException, arguments: list[str]) -> None:
    command = getattr(getattr(error, "ctx", None), "command_path", "mlcbuild")
    message = error.format_message().rstrip(".")
    _report(UsageError(message, hint=f"{command} --help shows what there is"), arguments)


def _report_bug(error: Exception, arguments: list[str]) -> int:
    text = traceback.format_exc()
    if "--verbose" in arguments or "-v" in arguments:
        click.echo(text, err=True)
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    body = f"mlcbuild {mlcbuild.__version__}\narguments: {arguments}\n\n{text}"
    place = "nowhere (no folder could be written)"
    for folder in (default_store(os.environ) / "logs", Path(tempfile.gettempdir())):
        if folder.is_dir():
            with contextlib.suppress(OSError):
                (folder / name).write_text(body, encoding="utf-8")
                place = str(folder / name)
                break
    lines = str(error).strip().splitlines()
    summary = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    click.echo(
        f"error: internal error: {summary}\n\nhint: this is a bug; the traceback is in {place}",
        err=True,
    )
    return 1


def _interrupt_on_terminate() -> signal._HANDLER | None:
    """Let SIGTERM end a build as Ctrl-C does: tools are killed, nothing half-written is left."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        return signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, as in some tests
        return None
