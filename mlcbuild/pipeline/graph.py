"""Walking a graph of actions."""

from __future__ import annotations

from collections.abc import Iterable

from mlcbuild.errors import InternalError
from mlcbuild.pipeline.action import Action


def dependencies(action: Action) -> tuple[Action, ...]:
    """The actions whose results an action reads, by the names of its inputs."""
    return tuple(item for _, item in sorted(action.inputs.items()) if isinstance(item, Action))


def topological(roots: Iterable[Action]) -> list[Action]:
    """Every action that ``roots`` need, each once, inputs before their users."""
    order: list[Action] = []
    done: set[int] = set()
    open_: set[int] = set()

    def visit(action: Action) -> None:
        if id(action) in done:
            return
        if id(action) in open_:
            raise InternalError(f"{action.label} depends on itself")
        open_.add(id(action))
        for item in dependencies(action):
            visit(item)
        open_.discard(id(action))
        done.add(id(action))
        order.append(action)

    for root in roots:
        visit(root)
    return order
