"""Every error a user can meet: what happened, where, why, what next, and an exit code by class."""

from __future__ import annotations

from typing import ClassVar


class MlcbuildError(Exception):
    """Base of all expected errors.

    ``message`` says what happened (one sentence, no final period), ``where`` names the place
    (``file:line``, a tensor, a stage), ``why`` the likely cause, ``hint`` the next step.
    """

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        lines = [head]
        if self.why:
            lines.append(f"why: {self.why}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The error as a JSON-able record, for ``--json`` output."""
        return {
            "error": self.kind,
            "exit_code": self.exit_code,
            "message": self.message,
            "where": self.where,
            "why": self.why,
            "hint": self.hint,
        }


class InternalError(MlcbuildError):
    """A broken promise of our own code; never the user's fault."""


class UsageError(MlcbuildError):
    """The command line is wrong."""

    exit_code = 2
    kind = "usage"


class RecipeError(MlcbuildError):
    """A recipe does not read or does not fit the schema."""

    exit_code = 2
    kind = "recipe"


class SourceError(MlcbuildError):
    """A model source is missing, gated, truncated or corrupt."""

    exit_code = 3
    kind = "source"


class ToolchainError(MlcbuildError):
    """A compiler, linker or library that the build needs is not there."""

    exit_code = 4
    kind = "toolchain"


class StageError(MlcbuildError):
    """A stage of the build failed."""

    exit_code = 5
    kind = "stage"


class VerificationError(MlcbuildError):
    """A bundle does not hold what its manifest promises, or a quality gate was missed."""

    exit_code = 6
    kind = "verification"


class ResourceError(MlcbuildError):
    """Disk, memory or a device limit stands in the way."""

    exit_code = 7
    kind = "resource"


class NetworkError(MlcbuildError):
    """The network or a publish target did not answer as needed."""

    exit_code = 8
    kind = "network"
