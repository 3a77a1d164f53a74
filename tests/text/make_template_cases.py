#!/usr/bin/env python3
"""Renders small templates with Jinja itself, set up as the common chat-template renderer sets it up:
the expectations of test_template_cases.c.
usage: make_template_cases.py > template_cases.json      (pip install jinja2)
       make_template_cases.py --random N SEED > x.json   (N expressions composed at random)"""
import datetime
import json
import random
import re
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
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

EXPRESSIONS = r'''
1 + 2 * 3
(1 + 2) * 3
7 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
1 / 3
10 / 2
1e3
1.5e-5
100000000000000000.0
1e16
123456789012345.0
0.1 + 0.2
1_000_000
0x1F + 0o17 + 0b11
big
tiny
1e100
f
-f
+n
1 == 1.0
1 == true
"1" == 1
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
"a" < "b"
[1, 2] < [1, 3]
(1, 2) == (1, 2)
[1] == (1,)
"a" in "abc"
"a" not in "abc"
1 in [1, 2]
"b" in d
3 in d.values()
"x" in none_such
1 < "a"
none < 1
1 + "a"
"a" + 1
[1] + [2]
(1,) + (2,)
[1] + (2,)
"ab" * 3
3 * "ab"
[0] * 3
"ab" * -1
"a" ~ 1 ~ none ~ true ~ 1.0 ~ [1, "x"]
"a" "b" 'c'
not true
not 0
not e
1 and 2
0 and 2
0 or 2
e or "default"
none or false or 0
1 if true else 2
1 if false
(1 if false) is defined
"x" if n > 40 else "y"
"a" if false else "b" if false else "c"
true
True
false
none
None
[1, "a", none, true, 1.5]
["it's", 'say "hi"', "both ' and \""]
{"a": 1, "b": [1, 2], 3: none, true: 4}
{}
()
(1,)
(1, 2)
[[], {}, ()]
{"k": {"n": (1, "x")}}
q
[q]
[u]
u
s[0]
s[-1]
s[100]
s[1:4]
s[:-3]
s[::-1]
s[::2]
s[-5:-1:2]
s[5:2:-1]
s[10:2]
u[2:6]
u[::-1]
u[5]
l[0]
l[-1]
l[1:]
l[::-1]
l[5]
l[5].x
(1, 2, 3)[1:]
range(5)[1:3]|list
range(10)[::3]|list
range(3)
range(1, 10, 3)
range(5, 0, -2)|list
range(0)|length
range(10)|length
range(10)[3]
range(200000)
range(1, 2, 0)
d.b
d["b"]
d.missing
d.missing is defined
d.missing.x
d["missing"]["x"]
d.items
nest.items
nest["items"]
nest.x.y[1].z
nest.x.y.0
nest["x"]["y"][0]
d.keys()
d.values()
d.items()
d.keys()|list
d.items()|list
d.get("b")
d.get("zz")
d.get("zz", "dflt")
d.get("zz") is none
d.copy()
d.pop("b")
d.update({})
d.clear()
d.setdefault("a", 1)
l.append(1)
l.pop()
l.sort()
l.append is defined
l.index(2)
l.index(9)
l.count(1)
l.copy()
(1, 1).count(1)
s.__class__
s.__class__ is defined
s.__class__.__mro__
s._x
d._x is defined
{"_x": 1}._x
undefined_name
undefined_name is defined
undefined_name.attr
undefined_name["x"]
undefined_name + 1
undefined_name ~ "x"
undefined_name|length
undefined_name|list
undefined_name()
undefined_name == undefined_name2
undefined_name < 1
undefined_name == none
[undefined_name]
undefined_name|upper
undefined_name|default("d")
undefined_name|int
undefined_name|tojson
undefined_name|join(",")
undefined_name|first
undefined_name is sequence
undefined_name is iterable
undefined_name is mapping
undefined_name is string
undefined_name is none
undefined_name is callable
"x" in [undefined_name]
s.upper()
s.lower()
u.upper()
u.lower()
u.title()
u.capitalize()
u.swapcase()
u.casefold()
"hello wORLD it's".title()
"hello wORLD".capitalize()
"".capitalize()
sp.strip()
sp.lstrip()
sp.rstrip()
"xxabxx".strip("x")
"xyabyx".lstrip("xy")
"ab..".rstrip(".")
"\u2003a\u00a0".strip()
sp.split()
sp.split(none, 1)
sp.rsplit(none, 1)
sp.split(maxsplit=1)
csv.split(",")
csv.split(",", 2)
csv.rsplit(",", 1)
csv.rsplit(",")
"a--b--c".split("--")
"".split()
"".split(",")
"a".split("")
multi.splitlines()
multi.splitlines(true)
s.startswith("Hell")
s.startswith(("x", "H"))
s.startswith("l", 2)
s.endswith("ld")
s.endswith(("x", "d"))
s.replace("l", "L")
s.replace("l", "L", 1)
s.replace("", "-")
"".replace("", "-")
s.find("o")
s.find("o", 5)
s.find("zz")
s.rfind("o")
u.find("日")
u.rfind("Σ")
s.index("W")
s.index("zz")
s.rindex("o")
s.count("l")
s.count("")
s.count("o", 5)
s.partition(", ")
s.rpartition("o")
s.partition("zz")
s.rpartition("zz")
s.removeprefix("Hello")
s.removesuffix("World")
s.removeprefix("zz")
", ".join(words)
"".join(["a"])
",".join([1])
"-".join("abc")
s.center(20)
s.center(21, "*")
s.ljust(15) ~ "|"
s.rjust(15, ".")
"42".zfill(5)
"-42".zfill(6)
"a\tb\tc".expandtabs(4)
"12".isdigit()
"1²".isdigit()
"1²".isdecimal()
"½".isnumeric()
"abc".isalpha()
"ab1".isalnum()
"ab 1".isalnum()
" \t".isspace()
"".isspace()
"ABC".isupper()
"abc".islower()
"Abc Def".istitle()
"abc".isidentifier()
"1bc".isidentifier()
"abc".isascii()
"é".isascii()
"".isascii()
"a\n".isprintable()
"{} {}".format(1, "b")
"{0} {1} {0}".format("a", "b")
"{a} {b[0]} {c.x}".format(a=1, b=[2], c={"x": 3})
"{:>5}|{:<5}|{:^5}|{:*^7}".format("a", "b", "c", "d")
"{:05d} {:+d} {:x} {:#X} {:b} {:,}".format(42, 42, 255, 255, 5, 1234567)
"{:.2f} {:e} {:g} {:%} {:10.3f}|".format(3.14159, 12345.678, 0.0001, 0.25, 2.5)
"{:.3} {:8} {:08.2f}".format(3.14159, 2.5, -1.5)
"{!r} {!s}".format("a", "b")
"{{}} {}".format(1)
"{:{}}|".format("a", 5)
"{}".format(none)
"{:>{w}}".format("x", w=4)
"{} {1}".format(1, 2)
"{".format(1)
"}".format(1)
"{2}".format(1)
"{x}".format(y=1)
"{:d}".format("x")
"{:5}".format(none)
"{:,.2f}".format(1234567.891)
"{:_}".format(1234567)
"{0.__class__}".format("a")
"{:s}".format("x")
"{:5}|{:<5}|".format(42, 42)
"{:=+8d}".format(42)
"{:c}".format(65)
"{:o}".format(8)
"{}".format(true)
"{:d}".format(true)
"{:.1f}".format(2)
"{:n}".format(5)
"%s and %d" % ("a", 5)
"%s" % "x"
"%s" % none
"%r" % "x"
"%s" % (1,)
"%s" % [1, 2]
"%d" % 3.9
"%5.2f|%-8s|%08.3f|%+d" % (3.14159, "ab", 2.5, 7)
"%x %X %o %#x %e %g" % (255, 255, 8, 255, 12345.678, 0.00001)
"%(a)s-%(b)d" % {"a": "x", "b": 2}
"%%" % ()
"100%%"|format
"%s %s" % ("a",)
"%s" % ("a", "b")
"%d" % "x"
"%c%c" % ("a", 66)
"%.2s" % "abcdef"
"%*d" % (5, 42)
"%5s|%-5s|" % ("é", "é")
"%i" % true
"%q" % 1
"%" % 1
"%s %s"|format("a", "b")
"%(x)s"|format(x=1)
neg|abs
(-1.5)|abs
"a"|abs
-1|abs
l|batch(2)|list
l|batch(2, "x")|list
[1,2,3,4,5,6,7]|slice(3)|list
[1,2,3,4,5,6,7]|slice(3, "f")|list
s|capitalize
s|center(20)
l|count
none_such|d("x")
none|default("x")
none|default("x", true)
e|default("x", boolean=true)
d|dictsort
d|dictsort(true)
d|dictsort(false, "value")
d|dictsort(by="value", reverse=true)
d|dictsort(by="zz")
[1]|dictsort
"<a href='x'>&\"</a>"|escape
"<"|e|e
"<"|forceescape
1000|filesizeformat
1024|filesizeformat(true)
123456789|filesizeformat
1|filesizeformat
0|filesizeformat
1500000000000|filesizeformat
l|first
le|first
"abc"|first
d|first
"3.5"|float
"x"|float
"x"|float(1.0)
"1e3"|float
" 2.5 "|float
true|float
"%d items"|format(3)
people|groupby("age")
people|groupby("age")|map("first")|list
people|groupby("city")|length
people|groupby("on", default=false)|map(attribute="grouper")|list
multi|indent
multi|indent(2)
multi|indent(2, true)
multi|indent(2, blank=true)
multi|indent("> ")
"x"|indent
e|indent
"42"|int
"42.9"|int
"x"|int
"x"|int(7)
"0x1f"|int(base=16)
"101"|int(0, 2)
3.99|int
-3.99|int
"-12"|int
" 5 "|int
"1_000"|int
true|int
none|int
"inf"|int
d|items|list
none_such|items|list
l|items|list
l|join
l|join(", ")
people|join(", ", attribute="name")
mixed|join("|")
"abc"|join("-")
l|last
le|last
"abc"|last
d|last
s|length
u|length
d|length
n|length
l|list
"abc"|list
d|list
s|lower
people|map(attribute="name")|list
people|map(attribute="zz", default="?")|list
people|map(attribute="city.0")|list
words|map("upper")|list
words|map("upper")|join
words|map("replace", "a", "z")|list
words|map("nope")|list
words|map("upper")
l|map
l|max
words|max
words|max(case_sensitive=true)
people|max(attribute="age")
le|max
l|min
words|min
people|min(attribute="age")
{"b": [1, "x"]}|pprint
"x"|pprint
l|reject("equalto", 1)|list
[0, 1, "", "a"]|reject|list
people|rejectattr("on")|map(attribute="name")|list
people|rejectattr("on", "defined")|map(attribute="name")|list
s|replace("l", "L")
s|replace("l", "L", 1)
123|replace("2", "x")
l|reverse|list
"abc"|reverse
d|reverse|list
2.5|round
3.5|round
2.567|round(2)
2.567|round(1, "floor")
2.511|round(1, "ceil")
42|round
1234.5|round(-2)
1250|round(-2)
"x"|round
0.5|round
2.675|round(2)
"<b>"|safe
"<b>"|safe + "<i>"
"<i>" + ("<b>"|safe)
("<b>%s"|safe) % "<i>"
("<b>{}"|safe).format("<i>")
("<b>"|safe) ~ "<i>"
("-"|safe).join(["<a>", "<b>"])
["<a>"|safe]
("<a>"|safe)|upper
("<a>"|safe).replace("a", "<")
("<a>"|safe) is escaped
"x"|safe is string
[0, 1, "", "a"]|select|list
l|select("odd")|list
l|select("gt", 1)|list
l|select(">", 1)|list
l|select("in", [1, 2])|list
people|selectattr("age", "equalto", 30)|map(attribute="name")|list
people|selectattr("on")|list|length
people|selectattr("age", "ge", 26)|map(attribute="name")|join(",")
people|selectattr("nope.deeper")|list
people|selectattr
l|select("nope")|list
words|sort
words|sort(case_sensitive=true)
words|sort(reverse=true)
people|sort(attribute="age")|map(attribute="name")|list
people|sort(attribute="age,name")|map(attribute="name")|list
people|sort(attribute="name", reverse=true)|map(attribute="name")|list
mixed|sort
n|string
mixed|string
html|striptags
l|sum
people|sum(attribute="age")
l|sum(start=10)
["a"]|sum
s|title
"hello-world (foo) it's"|title
u|title
sp|trim
"xxaxx"|trim("x")
n|trim
long|truncate(20)
long|truncate(20, true)
long|truncate(20, end="!")
long|truncate(130, leeway=10)
s|truncate(5, leeway=0)
s|truncate(1)
words|unique|list
words|unique(case_sensitive=true)|list
people|unique(attribute="age")|map(attribute="name")|list
s|upper
"a b/ü?&"|urlencode
{"a b": "c&d", "x": 1}|urlencode
"hello world foo-bar it's"|wordcount
long|wordwrap(20)
"abcdefghij kl"|wordwrap(4)
"abcdefghij kl"|wordwrap(4, false)
multi|wordwrap(6)
{"class": "a<", "id": none, "n": 1}|xmlattr
{"class": "a"}|xmlattr(false)
{"a b": 1}|xmlattr
d|tojson
mixed|tojson
u|tojson
u|tojson(ensure_ascii=true)
q|tojson
q|tojson(true)
nest|tojson(indent=2)
nest|tojson(indent="\t")
le|tojson(indent=2)
mixed|tojson(indent=1)
d|tojson(separators=(",", ":"))
d|tojson(sort_keys=true)
d|tojson(indent=0)
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
f|tojson
1e22|tojson
1.0|tojson
words|map("upper")|tojson
d.items()|tojson
range(3)|tojson
"</script>"|tojson
d|attr("items") is callable
d|attr("b")
s|attr("upper") is callable
s|nope
s|upper|nope
4 is even
3 is odd
4 is divisibleby 2
4 is divisibleby(3)
n is defined
n is not defined
n is undefined
none is none
none is not none
s is string
n is string
n is number
t is number
f is number
n is integer
t is integer
f is float
n is float
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
l is iterable
s is iterable
n is iterable
range(3) is iterable
range(3) is sequence
(words|map("upper")) is iterable
(words|map("upper")) is sequence
t is boolean
n is boolean
t is true
no is false
z is false
n is true
s is lower
"abc" is lower
"ABC" is upper
n is eq 42
n is equalto 42
n is == 42
n is ne 1
n is gt 41
n is lessthan 43
n is greaterthan(41)
n is in [1, 42]
n is not in [1]
n is sameas 42
none is sameas none
range is callable
s is callable
"upper" is filter
"nope" is filter
"odd" is test
s is nope
s is escaped
n is number and s is string
not n is string
n is divisibleby(2) or false
dict(a=1, b=2)
dict(a=1).a
dict([("a", 1)])
namespace(a=1).a
namespace(a=1)
namespace({"a": 1}, b=2).b
namespace(a=1).b is defined
namespace(a=1)["a"]
cycler("a", "b").next()
joiner(", ")()
strftime_now("%Y-%m-%d %H:%M:%S")
strftime_now("%d %b %Y, %A %j %p")
strftime_now("")
raise_exception("boom")
loop is defined
l.0
people.0.name
people[0]["name"]
people[1:][0].name
d["a"] + d["b"]
(d.items()|list)[0][1]
d.items()[0] is defined
d.items() is sequence
d.keys() is iterable
s.upper
"é" == "\u00e9"
"\x41\u0042\n\t\\\'\"\q"
'\101\0' ~ "x"
"a\
b"
1 .real
n.real
n.bit_length()
f.is_integer()
n.nope is defined
n()
s()
n.x.y
true + true
-true
"a"|upper ~ "b"|upper
1 + 2|string|length
(1, 2)|join("-")
{"a": 1}["a"]
{"a": 1}.a
[1, 2, 3][-2]
"abc"[1]
[[1, 2], [3]]|sum(start=[])
[1, 2]|sum * 2
9223372036854775807
1 is defined and 2 is odd
"b" ~ ("x" if no)
l|length > 2
l|length == 3 and "x" or "y"
messages|selectattr("role", "equalto", "user")|list|length
messages[-1].role
messages|map(attribute="content")|join("|")
messages|rejectattr("role", "in", ["user"])|first
(messages|first)["content"]|e
"a,b".split(",")|map("upper")|join(";")
"x".join(l|map("string"))
[1,2,3]|select("divisibleby", 2)|first
none|string|length
none|tojson
[none, true]|tojson
none.x
none["x"]
none.x.y
none is iterable
none|list
n|list
1.0
1.50
-0.0
5 // 0
5 % 0
5 / 0
5.0 // 0
0 ** -1
"a" - "b"
[1] - [1]
d + d
-"a"
"abc" * 1.5
1 in 5
1 in "1"
{"a": [1, 2]}.a|last
{[1]: 2}
d[[1]] is defined
l["a"] is defined
l["append"] is defined
s["upper"]() 
d["items"]() | list
"%s" % namespace(a=1).a
[1,2,3]|join(",")|length
"{}".format(undefined_name)
"%s" % undefined_name
"%d" % undefined_name
s|default
[] or "empty"
{} or "empty"
"a" in d
"items" in d
d == {"C": 3, "a": 2, "b": 1}
[1, [2, 3]] == [1, [2, 3]]
true == 1
"a" != "b"
not (1 == 2)
not 1 == 2
1 if not none else 2
(1, "a") in [(1, "a")]
none in [none]
'a' 'b' ~ 'c'
(lambda)
1 +
)
"unclosed
a b
1 2
x is is y
"a".upper(1)
"a".strip(1)
"a".split(1)
s|upper("x")
s|replace("a")
l|join(1, 2, 3)
l|batch
d.get()
range()
range("a")
s.startswith(1)
s.nope()
s[0:1:0]
s["a":]
l[none:2]
l[1:none]
d[1:2]
*l
f(**d)
dict(**{"x": 1})
dict(*[[("k", 1)]])
"{0}{1}".format(*["a", "b"])
"{x}".format(**{"x": 5})
'''.strip("\n").split("\n")

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
    "{{ 1, 2 }}", "{{ (1,) }}", "{% set x = [] %}{{ x.append(1) }}", "{{ {'a': 1,} }}{{ [1,] }}{{ dict(a=1,) }}",
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
