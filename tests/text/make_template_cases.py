#!/usr/bin/env python3
"""Renders small templates with Jinja itself, set up as the common chat-template renderer sets it up:
the expectations of test_template_cases.c.
usage: make_template_cases.py > template_cases.json      (pip install jinja2)
       make_template_cases.py --random N SEED > x.json   (N expressions composed at random)"""
import datetime
import json
import pathlib
import random
import re
import sys
import types

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    if isinstance(x, types.GeneratorType):
        x = list(x)  # the renderer refuses it; a template of DeepSeek R1 means the list
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


class Names(jinja2.utils.Namespace):
    """Attributes that begin with an underscore are refused."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        jinja2.utils.Namespace.__init__(self)
        for k, v in dict(*args, **kwargs).items():
            self[k] = v

    def __setitem__(self, name, value):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """As the renderer's, which refuses what the templates of Kimi K2 do: they change lists."""

    def is_safe_attribute(self, obj, attr, value):
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


def environment():
    env = Sandbox(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["namespace"] = Names
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


VARS = {
    "messages": [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "yo"}],
    "s": "Hello, World",
    "u": "Straße ÄÖÜ éà 日本語 😀 ŉ ﬁ İI ΑΣ ΑΣΑ",
    "q": "it's \"quoted\"\n\t\\ \u00ad\u2028\x7f\x1b",
    "n": 42, "neg": -7, "z": 0, "f": 3.14159, "big": 1e22, "tiny": 1.5e-7, "t": True, "no": False,
    "none": None, "e": "", "l": [3, 1, 2], "le": [], "words": ["b", "A", "c", "a", "B"],
    "mixed": [1, "a", None, True, 2.5, [1], {"k": "v"}],
    "d": {"b": 1, "a": 2, "C": 3}, "de": {}, "nest": {"x": {"y": [10, {"z": "deep"}]}, "items": "own"},
    "people": [{"name": "Zoe", "age": 30, "city": "Rome"}, {"name": "adam", "age": 25, "city": "rome"},
               {"name": "Bob", "age": 30, "city": "Oslo", "on": True}],
    "multi": "line one\nline two\r\n\nline four\n", "sp": "  a  b \t c\n ", "csv": "a,b,,c,",
    "html": "<p>Hello &amp; <!-- no --> <b>you</b></p>", "long": "The quick brown fox jumps over it " * 4,
}

# One expression a line, by what they are about; the order is that of the cases.
EXPRESSIONS = [line for part in ["values", "methods", "filters", "tests_calls"]
               for line in (HERE / f"expressions/{part}.txt").read_text("utf-8")[:-1].split("\n")]

TEMPLATES = [
    "", "\n", "a\n", "a\n\n", "a\r\nb\r", "{{ 1 }}\n", "{{ 1 }}\n\n", "  {{ 1 }}  \n x",
    "{% if t %}\nx\n{% endif %}\ny", "  {% if t %}\n  x\n  {% endif %}\n  y",
    "a  {% if t %}x{% endif %}  b", "a\n  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}",
    "a \n {%- if t -%} \n x \n {%- endif -%} \n b", "a {{- 1 -}} b", "a {{+ 1 }} b",
    "a{# c #}b", "a\n  {# c #}\nb", "a {#- c -#} b", "{# {{ x }} {% if %} #}z", "{# a\n#}\nb", "{#",
    "a{# c +#}\nb", "{#-#}x", "{##}x", "{{", "{{ 1", "{%", "{% if", "{{}}", "{{ }}", "{%%}", "{% %}",
    "{ {", "{", "}}", "%}", "#}", "{{ '}}' }}", "{{ {'a': {}} }}", "{{ {'a': {'b': 1}}}}", "{{ '%}' }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw %}\n a {% endraw %}\nb", "{%- raw -%} a {%- endraw -%} b",
    "x\n  {% raw %} y\n  {% endraw %}\nz", "{% raw %}", "{% raw %}{% endraw", "{%+ raw %} a {%+ endraw +%}\nb",
    "{% if t %}a{% elif n %}b{% else %}c{% endif %}", "{% if no %}a{% elif n %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif z %}b{% else %}c{% endif %}", "{% if t: %}a{% endif %}", "{% if t %}a", "{% endif %}",
    "{% else %}", "{% if %}{% endif %}", "{% for %}{% endfor %}", "{% nope %}", "{% if t, no %}x{% endif %}",
    "{% for i in l %}{{ i }},{% endfor %}", "{% for i in le %}x{% else %}none{% endfor %}",
    "{% for i in l %}{{ i }}{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}",
    "{% for i in l if i > 9 %}x{% else %}none{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for i in [1,1,2,2,1] %}{{ loop.changed(i) }} {% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% set o = loop %}{% for j in [1] %}{{ o.index }}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% for i in l %}{{ loop }}{% endfor %}", "{% for i in l %}{{ loop|length }}{% endfor %}",
    "{% for i in l %}{{ loop.nope is defined }}{% endfor %}", "{% for i in l %}{{ loop.nope }}{% endfor %}",
    "{% for i in words|map('upper') %}{{ i }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in words|map('upper') %}{{ loop.length }}{{ i }}{{ loop.nextitem }} {% endfor %}",
    "{% for i in range(5) if i is odd %}{{ i }}{{ loop.revindex }}{{ loop.last }} {% endfor %}",
    "{% for i in none_such %}x{% else %}e{% endfor %}", "{% for i in none %}x{% endfor %}", "{% for i in n %}x{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}-{{ b }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{% break %}{% endfor %}{{ i }}{% endfor %}", "{% break %}",
    "{% for i in l recursive %}{{ i }}{% endfor %}",
    "{% for i in [[1, [2, [3]]], 4] recursive %}{% if i is sequence %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for i in l %}{{ loop(i) }}{% endfor %}", "{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}",
    "{% set ns = namespace(c=0) %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}",
    "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace() %}{% set ns.a.b = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ 1 }}{% endset %}[{{ a }}]", "{% set a | upper %}x{{ 1 }}y{% endset %}{{ a }}",
    "{% set a | upper | replace('X', 'z') %}x{% endset %}{{ a }}", "{% set a %}{% set b = 1 %}{% endset %}{{ b is defined }}",
    "{% set ns = namespace(a=1) %}{% set ns.a %}blk{% endset %}{{ ns.a }}", "{% set true = 1 %}", "{% set 1 = 2 %}",
    "{% set x = x | default('d') %}{{ x }}", "{% if t %}{% set q2 = 5 %}{% endif %}{{ q2 }}", "{% set a = b = 1 %}",
    "{% set ns = namespace(a=1) %}{% set ns._b = 1 %}{{ ns._b }}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=9) }}{{ m(a=5) }}",
    "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m(1) }}",
    "{% macro m() %}x{% endmacro %}{{ m(z=1) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a, b) %}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}",
    "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(x, y=5) m() %}{{ x }}{{ y }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}c{% endcall %}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{{ outer }}{% endmacro %}{% set outer = 7 %}{{ m() }}", "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m() %}  x  {% endmacro %}{{ m()|trim }}{{ m() ~ '|' }}", "{% macro m() %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m is callable }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ i }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{% filter upper %}abc{{ 'x' }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aaa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}{% endwith %}",
    "{% generation %}x{{ 1 }}{% endgeneration %}", "{% generation %}{% set g = 1 %}{% endgeneration %}{{ g is defined }}",
    "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}", "{% do 1 %}", "{% print 1, 2 %}",
    "{% if no %}{{ s|nope }}{% endif %}ok", "{{ s|nope if no else 'ok' }}", "{% if no %}{{ s is nope }}{% endif %}ok",
    "{% if no %}{% for i in l %}{{ i|nope }}{% endfor %}{% endif %}ok", "{% if t %}{{ s|nope }}{% endif %}", "{{ 'a' if t else s|nope }}",
    "{{ 1, 2 }}", "{{ (1,) }}", "{% set x = [] %}{{ x.append(1) }}",
    "{% set x = [] %}{% for i in l %}{% set _ = x.append(i * 2) %}{% endfor %}{{ x }}{{ x.pop(0) }}{{ x.pop() }}{{ x.pop(-1) }}{{ x }}",
    "{% set x = [1, 2, 3] %}{% set y = x.copy() %}{{ x.pop(1) }}{{ x }}{{ y }}{{ (x|list).append(4) }}{{ x }}",
    "{% set x = [] %}{{ x.pop() }}", "{% set x = [1] %}{{ x.pop(1) }}", "{% set x = [1] %}{{ x.pop(-2) }}", "{{ (1, 2).pop() }}",
    "{% set x = [1] %}{% set y = x %}{% set _ = y.append('a') %}{{ x }}{{ x|length }}", "{% set x = [3] %}{% for i in x if i < 5 %}{% set _ = x.append(i + 1) %}{{ i }}{% endfor %}",
    "{{ l|map('string')|tojson }}{% set g = l|map('string') %}{{ g|tojson }}{{ g|tojson }}", "{{ {'a': 1,} }}{{ [1,] }}{{ dict(a=1,) }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{% set g = words|map('upper') %}{{ g|list }}{{ g|list }}", "{% set g = words|select %}{% for x in g %}{{ x }}{% break %}{% endfor %}{{ g|list }}",
    "{% set ns = namespace(go=true) %}{% for i in l if ns.go %}{{ i }}{% set ns.go = false %}{% endfor %}",
    "{{ messages|length }}{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m['content'] | trim }}{{ '\\n' }}{% endfor %}",
    "{% for m in messages %}{{ loop.index0 % 2 == 0 }}{{ (m.role == 'user') != (loop.index0 % 2 == 0) }}{% endfor %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}",
    "{% for k, v in people|groupby('city', case_sensitive=true) %}{{ k }}{{ v|length }}{% endfor %}",
    "{%- for i in l -%}\n {{ i }}\n{%- endfor -%}\n", "a\n\n{% set x = 1 %}\n\nb", "{% set x = 1 -%}   \n  b", "a{% set x = 1 %}  \nb",
    "{{ 'a\\\\nb' }}", "{{ 'a\\nb' }}", "é{{ 'ü' }}\u2028{{ u[0:3] }}", "x \u2003\n\u2003{%- if t %}y{% endif %}", "\u00a0{% if t %}y{% endif %}",
    "{{ '' if t }}", "{% if 1 < n < 100 and s is string or nope.x %}y{% endif %}", "{{ n if n is divisibleby 2 else 'odd' }}",
    "{{ not n is odd }}", "{{ n is not odd and t }}", "{{ - 5 | abs }}", "{{ 2 - -2 }}", "{{ 5 -3 }}", "{{ l [0] }}", "{{ s . upper ( ) }}",
    "{{ [1,\n2,\n3] }}", "{{ {\n'a': 1\n} }}", "{%\nif t\n%}x{%\nendif\n%}", "{{ s|upper|lower|title }}", "{{ (s|upper)[0:3] }}", "{{ s|list|length }}",
    "{% set s = 'x' %}{{ s }}", "{{ x.y is defined }}", "{{ d.x.y is defined }}", "{{ d.x is defined and d.x.y }}",
    "{% for i in range(3) %}{% set last = loop.last %}{{ last }}{% endfor %}", "{% for i in 'ab' %}{% else %}{% endfor %}",
    "{% for i in {'x': 1}.items() %}{{ i }}{{ i[0] }}{% endfor %}", "{{ [1, 2, 3, 4][1:3]|map('string')|join('+') }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% set f = 'x'.upper %}{{ f() }}",
    "{%- macro render(items, level=0) -%}{%- for i in items -%}{{ '  ' * level }}{{ i if i is string else render(i, level + 1) }}{{ '\\n' }}{%- endfor -%}{%- endmacro -%}{{ render(['a', ['b', ['c']]]) }}",
    "{{ raise_exception('bad ' ~ n) }}", "{% if messages[0]['role'] == 'user' %}{{ raise_exception('no') }}{% endif %}",
    "{{ '%s' % ('<b>'|safe) }}{{ '<' ~ ('<b>'|safe) }}", "{{ ('<b>'|safe)[0] + '<' }}", "{{ ('<b>'|safe).split('b')[0] + '<' }}",
    "{% set x = '<b>'|safe %}{% set y = x + '<' %}{{ y }}", "{{ ('a'|safe) * 2 + '<' }}", "{{ '<b>' | tojson | safe }}",
    "{{ ('<i>'|e) + '<' }}", "{{ '<i>'|e|length }}", "{{ ('<'|safe) in '<' }}", "{{ {'<'|safe: 1}['<'] }}", "{{ ('<'|safe) == '<' }}",
    "{% for c in 'a<'|safe %}{{ c + '<' }}{% endfor %}", "{{ ('<'|safe)|string + '<' }}", "{{ ('%s<'|safe)|format('<') }}", "{{ ('a b'|safe)|title + '<' }}",
    "{{ ('a\nb'|safe)|indent + '<' }}", "{{ (' a '|safe)|trim + '<' }}", "{{ ('a'|safe).upper() + '<' }}", "{{ ('a'|safe)|replace('a', '<') + '<' }}",
]


class Composer:
    """Random expressions of the language's parts; most of them render."""

    def __init__(self, rng):
        self.rng, self.env = rng, environment()
        self.tails = sorted({m.group(0) for e in EXPRESSIONS for m in re.finditer(
            r"""(?:\|[a-z]+|\.[a-z]+|\bis (?:not )?[a-z]+)(?:\([^()]*\))?$""", e)})
        self.atoms = sorted(VARS) * 3 + [e for e in EXPRESSIONS if len(e) < 14 and e[0] in "'\"[({0123456789-"]

    def atom(self):
        return self.rng.choice(self.atoms)

    def slice(self):
        part = lambda: self.rng.choice(["", "0", "1", "2", "-1", "-2", "5", "100", "-100"])
        return "[" + ":".join(part() for _ in range(self.rng.choice([2, 3]))) + "]"

    def renders(self, expr):
        try:
            self.env.from_string("{{ %s }}" % expr).render(**json.loads(json.dumps(VARS)))
            return True
        except Exception:
            return False

    def expr(self, depth):
        """An expression; mostly one that renders, since errors hide what stands around them."""
        for _ in range(6):
            e = self.any_expr(depth)
            if self.renders(e):
                break
        return e

    def any_expr(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.1:
            return self.atom()
        if r < 0.5:
            return "(" + self.expr(depth - 1) + ")" + self.tail()
        if r < 0.6:
            # text or lists only: of constants that cannot be sliced Jinja's optimizer makes undefined
            return "((" + self.expr(depth - 1) + ")|" + self.rng.choice(["string", "list"]) + ")" + self.slice()
        if r < 0.9:
            op = self.rng.choice(["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in",
                                  "not in", "and", "or", ","] + ["~"] * 12 + ["==", "and", "or"] * 3)
            return "(%s) %s (%s)" % (self.expr(depth - 1), op, self.expr(depth - 1))
        return "(%s) if (%s) else (%s)" % tuple(self.expr(depth - 1) for _ in range(3))

    def tail(self):
        t = self.rng.choice(self.tails)
        return " " + t if t.startswith("is") else t


def random_templates(n, seed):
    c = Composer(random.Random(seed))
    for _ in range(n):
        yield "{{ %s }}" % c.expr(c.rng.choice([1, 2, 3, 4]))


def main():
    env, out = environment(), []
    templates = ["{{ %s }}" % e for e in EXPRESSIONS] + TEMPLATES
    if len(sys.argv) == 4 and sys.argv[1] == "--random":
        templates = random_templates(int(sys.argv[2]), int(sys.argv[3]))
    for text in templates:
        case = {"template": text}
        try:
            case["output"] = env.from_string(text).render(**json.loads(json.dumps(VARS)))
        except Exception as e:
            case["error"] = f"{type(e).__name__}: {e}"[:120]
        if " at 0x" in case.get("output", ""):
            continue  # an address: nothing to compare with
        out.append(case)
    json.dump({"jinja": jinja2.__version__, "now": int(NOW.replace(tzinfo=datetime.timezone.utc)
              .timestamp()), "variables": VARS, "cases": out}, sys.stdout, indent=0)
    print()
    print(len(out), "cases,", sum("error" in c for c in out), "errors", file=sys.stderr)


main()
