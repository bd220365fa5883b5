"""The nodes of the build graph: frozen actions and what a running one is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from mlcbuild.core.canonical_json import Json
from mlcbuild.core.process import Completed, ProcessRunner
from mlcbuild.core.progress import Progress


@dataclass(frozen=True, eq=False)
class FileInput:
    """A file or folder from outside the store, keyed by what its files hold.

    ``include`` are fnmatch patterns over POSIX paths relative to a folder (empty: every file).
    The stage gets the path itself, so it must only read; a change during the build is noticed.
    """

    path: Path
    include: tuple[str, ...] = ()


ActionInput = Union["Action", FileInput]


@dataclass(frozen=True, eq=False)
class Action:
    """One step of a build: ``run`` turns the inputs into a tree of files.

    The key is the digest of stage, version, the inputs' tree digests by name, params, tools and
    the code digest; ``subject``, ``describe`` and ``long`` stay out of it. So ``params`` must hold
    everything that changes the output, and no path of this machine.

    ``subject`` is what is built, ``name/scheme/target``, or a prefix of it for stages that several
    builds share (``name`` for fetch). ``tools`` maps a tool to its version. ``code`` are modules,
    packages or plain folders below ``mlcbuild`` (dotted); the module of ``run`` is always in, and
    imports within ``mlcbuild`` are followed. ``long`` actions get a journal that survives a kill.
    """

    stage: str
    version: int
    subject: str
    run: Callable[[ActionContext], None]
    inputs: Mapping[str, ActionInput] = field(default_factory=dict)
    params: Mapping[str, Json] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    long: bool = False
    describe: str = ""

    @property
    def label(self) -> str:
        """``stage subject``, as shown to people."""
        return f"{self.stage} {self.subject}"


@dataclass(frozen=True)
class ActionContext:
    """What a running action is given.

    ``inputs``: read-only folders (or the path of a ``FileInput``); ``out``: an empty folder that
    becomes the result tree (regular files only; the executable bit is kept); ``scratch``: a
    private folder, dropped afterwards; ``journal``: a folder kept across kills until the action
    succeeds (``long`` actions only); ``log``: a text file for tool output, named in errors.
    """

    inputs: Mapping[str, Path]
    out: Path
    params: Mapping[str, Json]
    scratch: Path
    log: Path
    progress: Progress
    threads: int
    processes: ProcessRunner
    tool_cache: Callable[[str], Path]  # name -> persistent private folder, never part of an output
    journal: Path | None = None

    def run_process(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a tool, its output going to the log; a non-zero exit raises ``StageError``.

        ``env`` is the whole environment of the tool (None: a minimal one, so that the user's
        variables do not leak into outputs).
        """
        return self.processes.run(command, cwd=cwd or self.scratch, env=env, log=self.log)
