"""The runtime's Jinja against Jinja itself."""

# ruff: noqa: E501 - templates read best on one line
from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from mlcbuild.bundle.jinja_template import JinjaTemplate, TemplateRefusal
from mlcbuild.errors import SourceError
from tests.unit.chat_driver import ChatDriver, build_chat_driver
from tests.unit.random_templates import VARIABLES, random_template, shows_an_address
from tests.unit.text_driver import DriverError


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[ChatDriver]:
    with ChatDriver(build_chat_driver(pytestconfig)) as driver:
        yield driver


def jinja(source: str, variables: dict[str, Any]) -> str | None:
    """What Jinja renders; None if it refuses."""
    try:
        return JinjaTemplate(source, {}).render([], False, variables=variables)
    except (TemplateRefusal, SourceError):
        return None


def runtime(driver: ChatDriver, source: str) -> tuple[str | None, str]:
    """What the runtime renders with VARIABLES; None and why if it refuses."""
    given: dict[str, Any] = {
        "messages": [],
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
    }
    try:
        return driver.render_template(source, {**given, **VARIABLES}), ""
    except DriverError as error:
        return None, str(error)


def words_of(text: str) -> list[str]:
    """Its lines, split where a call is whole."""
    words: list[str] = []
    for word in text.split():
        if words and words[-1].count("(") > words[-1].count(")"):
            words[-1] += " " + word
        else:
            words.append(word)
    return words


# What the runtime leaves out on purpose: writing what has an address, integers beyond 64 bits.
LEFT_OUT = ("make a list of it", "a function cannot be written", "an integer beyond 64 bits")


def compare(driver: ChatDriver, sources: list[str]) -> int:
    """Every template, with VARIABLES, renders as in Jinja or is refused as there.

    Returns how many are not refused.
    """
    rendered = 0
    for source in sources:
        expected = jinja(source, VARIABLES)
        if expected is not None and shows_an_address(expected):
            continue
        found, why = runtime(driver, source)
        if not any(part in why for part in LEFT_OUT):
            assert found == expected, f"{source}\n{why}"
            rendered += expected is not None
    return rendered


# ---- white space, comments, raw text ---------------------------------------------------------


def test_white_space(driver: ChatDriver) -> None:
    tags = ["{%", "{%-", "{%+"]
    ends = ["%}", "-%}", "+%}"]
    sources = [
        f"a \n  {begin} if true {end}\n  b \n\n {begin} endif {end}\n c"
        for begin in tags
        for end in ends
    ]
    sources += [f"a \n  {begin} a }}}} \n b" for begin in ("{{", "{{-")]
    sources += [
        f"a \n \t {begin} no \n {end}\n b"
        for begin in ("{#", "{#-", "{#+")
        for end in ("#}", "-#}", "+#}")
    ]
    sources += [
        "a{% raw %} {{ x }} {% endraw %}b",
        "a \n  {%- raw -%} \n {{ x }} {% if %}\n {%- endraw +%}\n b",
        "  {% raw %}\n  x\n  {% endraw %}\n  b",
        "\u00a0 {%- set q = 1 %} \u2003{{- q }}",
        "a\r\nb\rc\n{{ 'x\r\ny' }}\n",
        "x\n\n",
        "{{ '\n' }}\n{% set q %}\n  z\n{% endset %}\n[{{ q }}]",
        "{{ a -}}\n\n b {{- c }}",
        "{%- for i in l -%}\n  {{ i }}\n{%- endfor -%}\n",
        "{{ a }}\n{# x #}\n{{ b }}",
        "a {",
        "{ { a } } {{ {'x': {'y': 1}}['x']['y'] }}",
        "{{ d }}{{ {}}}",
    ]
    compare(driver, sources)


# ---- expressions -----------------------------------------------------------------------------

EXPRESSIONS = r"""
a + b * 2 ** 3 - 7 // 2 % 3
-7 // 2 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 // -2 ~ ' ' ~ 7 % -3
7.5 // 2 ~ ' ' ~ -7.5 % 2 ~ ' ' ~ 7.5 % -2 ~ ' ' ~ -0.0
2 ** 62 ~ ' ' ~ 2 ** -1 ~ ' ' ~ (-2) ** 3 ~ ' ' ~ 2 ** 0.5
1 / 4 ~ ' ' ~ 6 / 3 ~ ' ' ~ 1e16 ~ ' ' ~ 1e15 ~ ' ' ~ 1e-4 ~ ' ' ~ 1e-5 ~ ' ' ~ 0.1 + 0.2
1.0 ~ 100.0 ~ 1e22 ~ 1.5e300 ~ 5e-324 ~ 123456789012345680.0
1 / 0
1 // 0
5.0 % 0
0x1F + 0b101 + 0o17 + 1_000
1.e5
'a' 'b' "c"
'tab\t nl\n q\' \x41 \u00e9 \U0001F600 \101 \d \
x'
"it's" ~ 'say "x"'
'a' * 3 ~ 2 * 'b' ~ 'c' * -1 ~ [1] * 2 ~ (1,) * 2
[1, 2] + [3] ~ (1,) + (2, 3)
[1] + (2,)
'a' + 1
none + 1
a < 5 < 10
a < 2 < 10 / 0
1 == 1.0 and true == 1 and not (1 == '1')
'a' < 'b' and 'Z' < 'a' and 'a' < 'ä'
[1, 2] < [1, 3] and (1,) < (1, 0)
'a' < 1
none < none
none == none ~ undefined_thing == other_undefined
'el' in s and 'x' not in s and 3 in l and 'k' in d and 9 not in l
1 in 'abc'
'x' in none
'x' in undefined_thing
not a
not a == 3
not (a and b)
a or 0 / 0
c and 0 / 0
n or 'fallback'
'' or [] or {} or 'last'
a if b else c
a if false
(a if false) is undefined
'x' if a else 'y' if b else 'z'
undefined_thing
undefined_thing.x
undefined_thing['x']
undefined_thing + 1
undefined_thing ~ 'x'
undefined_thing()
undefined_thing | length
undefined_thing[1:]
d.k ~ d['k'] ~ d.missing ~ d['missing'] ~ d.get('missing') ~ d.get('missing', 4)
d.missing.deeper
n.x
n['x']
a.x
s.x
l['x']
l[99]
l[-1] ~ l[-3]
l[-4]
l[true]
s[0] ~ s[-1] ~ s[99]
x[0] ~ x[-1] ~ x[1:3] ~ x[::-1] ~ x | length
l[1:] ~ l[:1] ~ l[::2] ~ l[::-1] ~ l[-2:] ~ l[5:] ~ l[:-5] ~ l[2:0:-1]
s[1:4] ~ s[::-2] ~ s[-3:] ~ s[:0] ~ s[100:] ~ s[-100:3]
l[::0]
n[1:]
d[1:]
d['items']
d.items
d.items()
d.keys() ~ d.values()
d.items() | list
d.items()[0]
d.keys() | length
d.update({'a': 1})
d.update
d.pop('k')
l.append(1)
l.append
l.index(2) ~ l.count(1) ~ l.copy()
l.index(99)
(1, 2).index(2)
{1: 'a', true: 'b', 1.0: 'c'}
{'a': 1, 'a': 2}
{[1]: 2}
{'x': [1, 'q', none, true, 1.5, (1,), ()], 'y': {'z': {}}}
[['a', "it's", 'say "x" it\'s', 'é\n\x00\u200b\u00a0\U0001F600']]
('a',) ~ () ~ (1, 2)
msgs[0].role ~ msgs[0]['content'] ~ msgs.0.role
msgs[0].content.strip().upper()
__class__
s.__class__
s.__class__.__mro__
d.__class__
''.join
range(3) | list ~ range(1, 10, 3) | list ~ range(5, 0, -2) | list
range(100001) | length
range(1, 2, 0)
range('a')
range()
dict(a=1, b='x') ~ dict({'q': 1}, r=2) ~ dict([('a', 1)])
dict([1])
namespace(a=1)
namespace(a=1).a ~ namespace({'b': 2}).b ~ namespace().zz
namespace(_a=1)
raise_exception('no')
raise_exception()
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %H:%M:%S %j %A')
nothing_callable('x')
a(1)
'x'(1)
lipsum_is_no_name
(1, 2)[0]
[1, 2][1] ~ {'a': 5}.a ~ 'abc'[1]
[x, x] | map('upper') | join('|')
-a ~ +a ~ - -a ~ -f
-s
not not a
a is defined and not zz is defined
*a
a b
a +
(a
[1, 2
{'a' 1}
a | nothing
a is nothing
a is defined is defined
a | upper() ~ a | string | length
f | int ~ f | round | int
true ~ false ~ none ~ True ~ None
l | join(d='-') ~ l | join('-', attribute=none)
'%s is %d of %.2f, %5s|%-5s|%05d|%x|%r|%%' % ('a', 7, 1.005, 'r', 'l', 42, 255, 'q')
'%(a)s-%(b)d' % {'a': 1, 'b': 2}
'%s' % 'x' ~ '%s' % [1] ~ '%s' % none ~ '%s' % undefined_thing
'%d' % 'x'
'%s %s' % 'x'
'%s' % ('x', 'y')
'%' % 1
'%q' % 1
'%+d %e %g %G %c %i' % (5, 12345.678, 0.0001, 1e20, 'x', 3.99)
'{} {}'.format(1, 'x') ~ '{0}{1}{0}'.format('a', 'b') ~ '{k}'.format(k=3) ~ '{{}}'.format()
'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:.2f}|{:,}|{:x}|{:%}'.format('a', 'b', 'c', 'd', 42, 1.005, 1234567, 255, 0.25)
'{!r} {!s:>4}'.format('x', 'y') ~ '{:{}}'.format('a', 4)
'{'.format(1)
'{} {}'.format(1)
'{0} {}'.format(1, 2)
'{x}'.format(1)
'{:d}'.format('x')
'{:s}'.format(1)
""".strip("\n")


def expressions() -> list[str]:
    lines = EXPRESSIONS.replace("\\\nx'", "\\\x00x'").split("\n")
    return ["{{ " + line.replace("\x00", "\n") + " }}" for line in lines]


def test_expressions(driver: ChatDriver) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" in a template is deprecated Python
        compare(driver, expressions())


# ---- methods, filters, tests -----------------------------------------------------------------

METHODS = """
upper() lower() title() capitalize() strip() lstrip() rstrip() strip('H d')
strip(none) strip(1) split() split('l') split('') split(none) split(' ', 1) split(sep='o',
maxsplit=1) rsplit('o', 1) rsplit() splitlines() splitlines(true) splitlines(keepends=true)
partition('o') rpartition('o') partition('zz') rpartition('zz') partition('') startswith('He')
startswith(('x','He')) startswith('l', 2) startswith('l', 2, 3) startswith(1) endswith('ld')
endswith('x') endswith('') find('o') find('o', 5) find('zz') find('', 3) find('o', -4, -1)
rfind('o') index('o') index('zz') rindex('l') count('l') count('') count('l', 3) replace('l',
'L') replace('l', 'L', 1) replace('', '-') replace('', '-', 3) replace('l') replace('l', 1)
join(['a', 'b']) join([1]) join('abc') join({}) center(20) center(21,
'*') center(3) ljust(15, '.') rjust(15) zfill(15) removeprefix('He') removesuffix('ld')
isdigit() isalpha() isalnum() isspace() isupper() islower() isascii() isdecimal() isprintable()
format() upper(1) nothing() encode() length
"""
METHOD_VALUES = [
    "'Hello World'", "' \\t pad\\u00a0\\n'", "'ÄÖ straße ǅ ŉ ΑΣ Σ'", "'İi ﬁ ᾳ ⓐ Ⅷ'", "''",
    "'-12'", "'a\\r\\nb\\x0bc\\u2028d\\n'", "'123'", "'héllo wörld'",
]  # fmt: skip


def test_methods_of_text(driver: ChatDriver) -> None:
    compare(
        driver,
        [
            f"{{{{ {v}.{m} }}}}"
            for v in METHOD_VALUES
            for m in words_of(METHODS)
            if m != "length" and m not in ("encode()",)
        ],
    )


FILTERS = """
abs abs() attr('k') batch(2)|list batch(2,'-')|list capitalize
center center(5) count d d('x') d('x',true) default default(1) dictsort dictsort(true)
dictsort(by='value') dictsort(reverse=true) dictsort(by='x') e e|string escape escape|upper
first float float(2) forceescape format format(1) format(a=1) indent indent(2) indent(2,true)
indent(2,true,true) indent('> ') indent(width=1,first=true) int int(3) int(base=16) int(0,2)
items|list join join(',') join(attribute='role') join('-','role') last length list lower
map('upper')|list map(attribute='role')|list map(attribute='k',default='q')|list
map('nothing')|list map|list max max(attribute='n') min min(case_sensitive=true)
reject('odd')|list reject|list rejectattr('n')|list rejectattr('role','eq','user')|list
replace('l','L') replace('l','L',1) replace(1,2) replace reverse|list reverse|string|length
round round(1) round(1,'ceil') round(0,'floor') round(method='x') safe safe|string select|list
select('string')|list select('gt',1)|list select('nothing')|list selectattr('role')|list
selectattr('role','equalto','user')|list selectattr('x.y')|list selectattr|list slice(2)|list
slice(2,'-')|list slice(0)|list sort sort(reverse=true) sort(case_sensitive=true)
sort(attribute='role') sort(attribute='role,content') string sum sum(start=2) sum('n') title
tojson tojson(indent=2) tojson(indent='\\t') tojson(ensure_ascii=true) tojson(sort_keys=true)
tojson(separators=(',',':')) tojson(indent=0) tojson(none,2) trim trim('H ') truncate
truncate(5) truncate(5,true) truncate(6,false,'!',0) truncate(1) unique|list unique(true)|list
unique(attribute='role')|list upper upper(1) wordcount nothing
"""
FILTER_VALUES = [
    "s", "x", "n", "a", "b", "f", "t", "l", "d", "msgs", "zz", "''", "[]", "{}",
    "'a\\n\\nb\\n  c'", "'12.7'", "' -5 '", "'1_0'", "'0x1f'", "'101'", "'inf'", "[3,'a']",
    "['b','A','a','B']", "(1,2)", "[[1,2],[0,5]]", "'<a href=\"x\">&\\'</a>'", "2.5", "-2.5",
    "0.125", "1e17", "[0.1,0.2]", "range(4)", "d.items()", "l|reverse", "[none,1,'',0,'x']",
    "{'b':1,'A':[2],'c':'<é\\u2028>'}", "'one two-three {four [five} ŉew'", "s|safe",
    "[true,false]", "{1:2,none:3,true:4,1.5:6}",
]  # fmt: skip


def test_filters(driver: ChatDriver) -> None:
    sources = [f"{{{{ ({v})|{f} }}}}" for v in FILTER_VALUES for f in words_of(FILTERS)]
    sources = sources[::3]  # every filter with a third of the values
    assert compare(driver, sources) > len(sources) / 2


TESTS = """
defined undefined none boolean true false integer float number string mapping iterable sequence
callable odd even upper lower escaped filter test divisibleby(3) divisibleby sameas(none)
sameas(true) in([1,'x']) in('abc') in(none) eq(3) equalto('x') ==(1) ne(1) gt(1) ge(3) lt(3)
le(3) lessthan(5) greaterthan(0) nothing
"""


def test_tests(driver: ChatDriver) -> None:
    values = [*FILTER_VALUES, "3", "'upper'", "'defined'", "none", "loop", "range", "namespace()"]
    sources = [f"{{{{ ({v}) is {t} }}}}" for v in values for t in words_of(TESTS) if t != "==(1)"]
    compare(driver, sources[::2])
    compare(
        driver,
        [
            "{{ a is divisibleby 3 }}",
            "{{ a is not none and b is odd or c }}",
            "{{ a is in [1, 3] }}",
            "{{ 1 if a is defined else 2 }}",
            "{{ a is eq 3 and not a is eq 4 }}",
            "{{ a is sameas a }}",
            "{% if zz is filter %}{% endif %}{{ 'trim' is filter }}{{ 'nope' is test }}",
        ],
    )


# ---- statements ------------------------------------------------------------------------------

STATEMENTS = [
    (
        "{% for i in l %}{{ i }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
        "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}"
    ),
    "{% for i in l %}[{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}]{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in s %}{{ c }}.{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}",
    "{% for a, b in ['xy', [1, 2]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for i in n %}{% endfor %}",
    "{% for i in a %}{% endfor %}",
    "{% for i in zz %}x{% else %}empty{% endfor %}",
    "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if loop.index == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{% if j == i %}{% break %}{% endif %}{{ i }}{{ j }}{% endfor %}|{% endfor %}",
    "{% for i in l %}{% set q %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endset %}{{ q }}{% endfor %}",
    "{% break %}",
    "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in l recursive %}{{ i if i is number else loop(i) }}{% endfor %}",
    "{% for i in [1, [2, [3, 4]], 5] recursive %}{{ loop.depth }}:{{ i if i is number else '(' ~ loop(i) ~ ')' }} {% endfor %}",
    "{% for i in l %}{{ loop(l) }}{% endfor %}",
    "{% for loop in l %}{% endfor %}",
    "{% for i in l %}{% set loop = 1 %}{% endfor %}",
    "{% set q = 1 %}{% for i in l %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}",
    "{% set q = 1 %}{% if true %}{% set q = 2 %}{% endif %}{{ q }}",
    "{% set ns = namespace(q=1) %}{% for i in l %}{% set ns.q = ns.q + i %}{% endfor %}{{ ns.q }}",
    "{% set ns.q = 1 %}",
    "{% set d.q = 1 %}",
    "{% set ns = namespace() %}{% set ns._q = 1 %}",
    "{% set ns = namespace(x=1) %}{{ ns }}{{ ns['x'] }}{{ ns.y }}{% set ns.x, q = 5, 6 %}{{ ns.x }}{{ q }}",
    "{% set a, b = b, a %}{{ a }}{{ b }}",
    "{% set a, b = 1 %}",
    "{% set a, b = 1, 2, 3 %}",
    "{% set (a, b) = 'xy' %}{{ a }}{{ b }}",
    "{% set true = 1 %}",
    "{% set 'x' = 1 %}",
    "{% set a[0] = 1 %}",
    "{% set q %}a {{ s }} b{% endset %}[{{ q | upper }}]",
    "{% set q | upper | replace('A', '-') %}a {{ s }}{% endset %}[{{ q }}]",
    "{% set ns = namespace() %}{% set ns.q %}x{% endset %}{{ ns.q }}",
    "{% filter upper | trim %} a {{ s }} {% endfilter %}",
    "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% with q = 1, r = a %}{{ q }}{{ r }}{% set q = 2 %}{{ q }}{% endwith %}{{ q }}",
    "{% with %}{% set q = 1 %}{% endwith %}{{ q }}",
    "{% with q = 1, r = q %}{{ r }}{% endwith %}",
    "{% macro m(p, q=2, r=p) %}{{ p }}{{ q }}{{ r }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, r=4) }}{{ m(q=1, p=0) }}{{ m() }}",
    "{% macro m(p) %}{{ p }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(p) %}{{ p }}{% endmacro %}{{ m(z=2) }}",
    "{% macro m(p) %}{{ p }}{% endmacro %}{{ m(1, p=2) }}",
    "{% macro m(p=1, q) %}{% endmacro %}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(p) %}{{ p }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m(*[4, 5], **{'y': 6}) }}",
    "{% macro m(p) %}[{{ caller() }}{{ p }}]{% endmacro %}{% call m(1) %}body {{ s }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(x, y=5) m() %}{{ x }}{{ y }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}",
    "{% macro m() %}{{ caller }}{% endmacro %}[{{ m() }}]",
    "{% call a %}{% endcall %}",
    "{% macro m() %}{% set q = 5 %}{{ q }}{{ late }}{% endmacro %}{% set late = 7 %}{{ m() }}{{ q }}",
    (
        "{% macro even(k) %}{{ 'y' if k == 0 else odd(k - 1) }}{% endmacro %}"
        "{% macro odd(k) %}{{ 'n' if k == 0 else even(k - 1) }}{% endmacro %}{{ even(10) }}{{ even(7) }}"
    ),
    "{% macro m(k) %}{{ k }}{% if k > 0 %}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(20) }}",
    "{% macro m() %}{{ m.name }}{% endmacro %}{{ m() }}",
    "{% set f = s.upper %}{{ f() }}{{ f is callable }}",
    "{% for i in l %}{% set f = loop.cycle %}{{ f(1, 2) }}{% endfor %}",
    "{% if a %}1{% elif b %}2{% else %}3{% endif %}{% if c %}1{% elif n %}2{% else %}3{% endif %}",
    "{% if a == 3, %}1{% endif %}",
    "{% if %}{% endif %}",
    "{% if a %}",
    "{% endif %}",
    "{% for %}{% endfor %}",
    "{% for i in l %}{% endif %}",
    "{% nothing %}",
    "{% do l %}",
    "{% print a, b %}",
    "{% generation %}x{{ a }}{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{% if a: %}x{% endif %}",
    "{{ a }}{{",
    "{{ }}",
    "{% set q = none %}{{ q or 'x' }}{{ q is none }}{{ q is defined }}",
    "{% if zz | nothing %}{% endif %}",
    "{% if false %}{{ a | nothing }}{% endif %}ok",
    "{% if false %}{{ a is nothing }}{% endif %}ok",
    "{{ (a | nothing) if false else 'ok' }}",
    "{% if false %}{% for i in l %}{{ i | nothing }}{% endfor %}{% endif %}",
    "{{ (l | map('upper')) is iterable }}{% set g = l | select %}{{ g | list }}{{ g | list }}",
    "{% set g = d | items %}{% for k, v in g %}{{ k }}{% endfor %}{% for k, v in g %}{{ k }}{% endfor %}",
    "{% set big = [x, x, x] * 3 %}{{ big | length }}{{ big[4][0] }}",
    "{{ 'a' | safe + '<b>' }}{{ '<b>' + 'a' | safe }}{{ ('<i>' | safe) ~ '<b>' }}{{ '<' | e + '>' }}",
]


def test_statements(driver: ChatDriver) -> None:
    compare(driver, STATEMENTS)


def test_random_templates(driver: ChatDriver) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compare(driver, [random_template(seed) for seed in range(800)]) > 300
