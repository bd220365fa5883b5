"""Random Jinja templates, for comparing the runtime with Jinja itself."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, TypeVar

VARIABLES: dict[str, Any] = {
    "a": 3,
    "b": -2,
    "c": 0,
    "s": "Hello World",
    "n": None,
    "f": 2.5,
    "l": [3, 1, 2],
    "d": {"k": "v", "z": 1, "items": [1]},
    "t": True,
    "x": "é世界 ß",
    "msgs": [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo", "n": 1}],
}


def _options(text: str, separator: str) -> list[str]:
    return text.strip().replace("\n", separator).split(separator)


_T = TypeVar("_T")

_LITERALS = _options(
    """\
0|1|2|7|-3|1.5|'ab'|'a b'|'x'|"q's"|''|true|false|none|[1, 2, 3]|['b', 'a']
{'k': 1, 'j': 'w'}|(1, 2)|[]|{}|'\\n'|'Ünï'|10|[[1, 2], [3, 4]]|'a,b,c'|' pad '|'%s-%s'
'{} {}'
""",
    "|",
)
_METHODS = _options(
    """\
upper()|lower()|strip()|title()|split()|split(',')|split(@E)|startswith('H')
endswith(@E)|replace('a', 'b')|replace(@E, 'z', 1)|join(['a', 'b'])|join(@E)|get(@E)
get('k')|get('q', 5)|items()|keys()|values()|capitalize()|find('o')|count(@E)|index('l')
rstrip('d')|lstrip()|splitlines()|rsplit(' ', 1)|partition(' ')|isdigit()|isalpha()
isupper()|islower()|zfill(5)|center(9)|ljust(8, '*')|format(1, 'x')|copy()|append(1)
swapcase()|rfind('o')|removeprefix('He')|isspace()|isalnum()|strip('dH')|rpartition('o')
split(none, 1)
""",
    "|",
)
_FILTERS = _options(
    """\
upper;lower;length;trim;string;tojson;tojson(indent=2);list;first;last;join;join('-')
join(@E);default('dd');default('dd', true);default(@E);int;float;abs;round;round(1)
round(1, 'floor');reverse;reverse|list;sort;sort(reverse=true);unique|list;sum;min;max
capitalize;title;replace('l', 'L');replace(@E, @E);indent;indent(2, true);items|list
dictsort;map('upper')|list;map(attribute='role')|list
map(attribute='k', default='D')|list;select|list;reject('none')|list
select('string')|list;selectattr('role')|list;selectattr('role', 'equalto', 'user')|list
rejectattr('n', 'defined')|list;wordcount;center(11);truncate(5);truncate(7, true, '..')
batch(2)|list;slice(2)|list;count;d('q');format(1);format('a', 'b');attr('k')
escape|string;int(5);float(1.5);join(',', attribute='role')
sort(attribute='role')|map(attribute='content')|join;tojson(sort_keys=true)
dictsort(by='value');tojson(separators=(',', ':'));list|length;string|length;trim('d ')
unique(attribute='role')|list;sum(start=1);min(attribute='n')
""",
    ";",
)
_TESTS = _options(
    """\
defined|undefined|none|string|number|mapping|iterable|sequence|integer|float|boolean
true|false|odd|even|divisibleby 3|divisibleby(2)|upper|lower|callable|in @L|eq(@E)
sameas none|sameas true|gt(@E)|lt 5|equalto 'x'|ne @L|filter|test|escaped
""",
    "|",
)
_BODIES = [
    "",
    "{{ loop.index }}",
    "{{ loop.last }}{{ loop.revindex0 }}",
    "{{ i }}",
    "{{ loop.previtem }}{{ loop.nextitem }}",
    "{{ loop.cycle('p', 'q') }}",
    "{{ loop.length }}",
    "{{ loop.changed(i) }}",
    "{% if loop.index == 2 %}{% break %}{% endif %}",
    "{%- if loop.index == 2 %}{% continue -%}{% endif %}",
]


def random_template(seed: int) -> str:
    """A template over VARIABLES; many of them are refused while they render."""
    generator = _Generator(seed)
    return generator.statements(generator.pick([1, 2, 2, 3]), generator.pick([1, 2, 3]))


def shows_an_address(text: str) -> bool:
    """Whether Jinja wrote an object whose text differs from run to run or Python to Python."""
    parts = " at 0x", "<bound", "<built-in", "<class", "<macro", "<jinja2", "range(", "<function"
    return any(part in text.lower() for part in parts)


class _Generator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[_T]) -> _T:
        return self._random.choice(options)

    def _fill(self, text: str, depth: int) -> str:
        """Puts expressions for @E and literals for @L."""
        text = re.sub("@E", lambda _: self.expression(depth - 2), text)
        return re.sub("@L", lambda _: str(self.pick(_LITERALS)), text)

    def _operand(self, depth: int) -> str:
        return f"({self.expression(depth - 1)})"

    def expression(self, depth: int) -> str:
        if depth <= 0:
            return (
                self.pick(_LITERALS)
                if self._random.random() < 0.5
                else self.pick([*VARIABLES, "u"])
            )
        first, second = self.expression(depth - 1), self.expression(depth - 1)
        operand = self._operand(depth)
        kind = self._random.randrange(20)
        if kind < 2:
            return self.expression(0)
        if kind == 2:
            return f"{first} {self.pick(['+', '-', '*', '/', '//', '%', '+'])} {second}"
        if kind == 3:
            return f"({first} ~ {second})"
        if kind == 4:
            op = self.pick(["==", "!=", "<", ">", "<=", ">=", "in", "not in"])
            return f"({first} {op} {second})"
        if kind == 5:
            return f"({first} {self.pick(['and', 'or'])} {second})"
        if kind == 6:
            return f"(not {first})"
        if kind == 7:
            return f"({first} if {second} else {self.expression(depth - 1)})"
        if kind == 8:
            return f"({first} if {second})"
        if kind == 9:
            return f"{operand}[{self.pick(['0', '1', '-1', chr(39) + 'k' + chr(39), '9'])}]"
        if kind == 10:  # Jinja folds slices of constants in a way of its own
            start, stop = self.pick(["", "1", "-2", "0"]), self.pick(["", "2", "-1", "5"])
            step = self.pick(["", ":2", ":-1"])
            return f"{self.pick(['s', 'l', 'x', 'msgs'])}[{start}:{stop}{step}]"
        if kind == 11:
            return f"{operand}.{self.pick(['k', 'role', 'items', 'content', 'foo', 'z'])}"
        if kind == 12:
            return f"{operand}.{self._fill(self.pick(_METHODS), depth)}"
        if kind < 16:
            return f"{operand}|{self._fill(self.pick(_FILTERS), depth)}"
        if kind == 16:
            return f"({operand} is {self.pick(['', 'not '])}{self._fill(self.pick(_TESTS), depth)})"
        if kind == 17:
            return f"[{first}, {second}]"
        if kind == 18:
            key = self.pick(["'q'", "1", "none", "(1, 2)", "''"])
            return "{'k': " + first + ", " + key + ": " + second + "}"
        return f"({first}, {second})"

    def statements(self, depth: int, most: int) -> str:
        return "".join(self._statement(depth) for _ in range(self._random.randint(1, most)))

    def _tag(self, text: str) -> str:
        signs = ["", "", "-", "+"]
        return "{%" + self.pick(signs) + " " + text + " " + self.pick(signs) + "%}"

    def _text(self) -> str:
        texts = ["\n", "  \n", " text ", "  ", "\n\n  x\n", "a", "{# c #}", "{#- c -#}\n", "", "\t"]
        text: str = self.pick(texts)
        return text

    def _print(self) -> str:
        begin, end = self.pick(["", "", "-"]), self.pick(["", "", "-"])
        value = self.expression(self.pick([1, 1, 2, 2, 3]))
        return self._text() + "{{" + begin + " " + value + " " + end + "}}" + self._text()

    def _statement(self, depth: int) -> str:
        kind = self._random.randrange(16)
        inner = depth - 1
        if kind < 3 or depth <= 0:
            return self._print()
        if kind < 5:
            text = self._tag(f"if {self.expression(2)}") + self.statements(inner, 2)
            if self._random.random() < 0.3:
                text += self._tag(f"elif {self.expression(2)}") + self.statements(inner, 2)
            if self._random.random() < 0.5:
                text += self._tag("else") + self.statements(inner, 2)
            return text + self._tag("endif")
        if kind < 8:
            target = self.pick(["i", "i", "a", "x", "i, j", "k"])
            values = ["l", "d", "msgs", "d.items()", "[1, 2, 3]", "'abc'", "range(3)", "d|dictsort"]
            value = self.pick([*values, self.expression(2), "l|reverse"])
            condition = self.pick(["", "", "", f" if {self.expression(1)}"])
            text = self._tag(f"for {target} in {value}{condition}")
            text += self.statements(inner, 3) + self.pick(_BODIES)
            if self._random.random() < 0.3:
                text += self._tag("else") + self._text()
            return text + self._tag("endfor")
        if kind < 11:
            return self._tag(f"set {self.pick('abxyq')} = {self.expression(2)}") + self._text()
        if kind == 11:
            name = self.pick(
                ["y", "q"]
            )  # a context variable read in its own block is Jinja's secret
            return (
                self._tag(f"set {name}{self.pick(['', '', ' | upper'])}")
                + self.statements(0, 2).replace(name, "s")
                + self._tag("endset")
            )
        if kind == 12:
            name = self.pick(["m1", "m2"])
            call = self.pick(["(1)", "('z', q=2)", "(a, b)", "()", "(q=1)", "(1, 2, 3)"])
            return (
                self._tag(f"macro {name}(p, q={self.pick(_LITERALS)})")
                + "{{ p }}{{ q }}"
                + self.statements(inner, 2)
                + self._tag("endmacro")
                + "{{ "
                + name
                + call
                + " }}"
            )
        if kind == 13:
            step = self.pick(["1", "i", "ns.v"])
            return (
                self._tag("set ns = namespace(v=0, w='a')")
                + self._tag(f"for i in {self.pick(['l', '[1, 2]'])}")
                + self._tag(f"set ns.v = ns.v + {step}")
                + self._tag("endfor")
                + "{{ ns.v }}{{ ns.w }}{{ ns.zz }}"
            )
        if kind == 14:
            return (
                self._tag(f"with y = {self.expression(1)}, q = 1")
                + self.statements(inner, 2)
                + self._tag("endwith")
            )
        name = self.pick(["upper", "trim", "title", "indent"])
        return self._tag(f"filter {name}") + self.statements(inner, 1) + self._tag("endfilter")
