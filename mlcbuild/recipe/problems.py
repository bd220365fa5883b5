"""What is wrong with a recipe: every problem with its place, all of them in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlcbuild.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; ``file`` is as the user named it, ``line`` None if not known."""

    file: str
    line: int | None
    key: str  # dotted, "" for the file itself
    message: str
    why: str | None = None
    hint: str | None = None

    @property
    def where(self) -> str:
        """``file:line``, or the file alone."""
        return f"{self.file}:{self.line}" if self.line is not None else self.file

    @property
    def text(self) -> str:
        """The message with its key."""
        return f"{self.key}: {self.message}" if self.key else self.message

    def to_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "file": self.file,
            "line": self.line,
            "key": self.key or None,
            "message": self.message,
            "why": self.why,
            "hint": self.hint,
        }


class RecipeProblems(RecipeError):
    """A recipe with one or more problems; ``recipe`` is the file that was asked for."""

    def __init__(self, problems: Sequence[Problem], recipe: str | None = None) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        if len(self.problems) == 1:
            super().__init__(first.text, where=first.where, why=first.why, hint=first.hint)
            return
        blocks = [f"the recipe has {len(self.problems)} problems"]
        for problem in self.problems:
            block = [f"  {problem.where}: {problem.text}"]
            if problem.why:
                block.append(f"    why: {problem.why}")
            if problem.hint:
                block.append(f"    hint: {problem.hint}")
            blocks.append("\n".join(block))
        super().__init__("\n".join(blocks), where=recipe or first.file)

    def to_json(self) -> dict[str, object]:
        """The error with all problems as records."""
        return {**super().to_json(), "problems": [problem.to_json() for problem in self.problems]}
