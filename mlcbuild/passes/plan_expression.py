"""Shape expressions of a plan: tirx expressions as reverse Polish tokens, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlcbuild.errors import InternalError

Token = int | str

_BINARY = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "FloorDiv": "/",
    "FloorMod": "%",
    "Max": "max",
    "Min": "min",
}

_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


class Variables:
    """Shape variables of one function, numbered in order of first use."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def index(self, name: str) -> int:
        """The number of a variable."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def to_tokens(expr: Any, variables: Variables) -> tuple[Token, ...]:
    """``expr``: an int, a variable's name, a tirx expression, or tokens already."""
    if isinstance(expr, tuple):
        return expr
    if isinstance(expr, int):
        return (expr,)
    if isinstance(expr, str):
        return (f"${variables.index(expr)}",)
    kind = type(expr).__name__
    if kind == "IntImm":
        return (int(expr.value),)
    if kind in ("Var", "SizeVar"):
        return (f"${variables.index(str(expr.name))}",)
    if kind == "Cast":
        return to_tokens(expr.value, variables)
    if kind in _BINARY:
        left, right = to_tokens(expr.a, variables), to_tokens(expr.b, variables)
        return (*left, *right, _BINARY[kind])
    raise InternalError(f"shape expression {kind} has no plan form: {expr}")


def product(parts: list[tuple[Token, ...]]) -> tuple[Token, ...]:
    """The product of expressions; constants are folded."""
    constant, symbolic = 1, []
    for part in parts:
        if len(part) == 1 and isinstance(part[0], int):
            constant *= part[0]
        else:
            symbolic.append(part)
    if not symbolic:
        return (constant,)
    tokens: list[Token] = []
    for index, part in enumerate(symbolic):
        tokens.extend(part)
        if index:
            tokens.append("*")
    return (*tokens, constant, "*") if constant != 1 else tuple(tokens)


def evaluate(tokens: tuple[Token, ...], values: Mapping[int, int]) -> int:
    """The value for variables by number; floor semantics."""
    stack: list[int] = []
    for token in tokens:
        if isinstance(token, int):
            stack.append(token)
        elif token.startswith("$"):
            stack.append(values[int(token[1:])])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_EVALUATE[token](left, right))
    return stack[0]
