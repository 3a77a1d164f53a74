#!/usr/bin/env python3
"""Makes format_cases.json: texts that are of a format and texts that are not, judged by a parser of
ABNF (the package abnf) with the grammars of the RFCs; what ABNF cannot say (that a date exists, how
long a name may be) is checked here.

usage: tests/text/make_format_cases.py > tests/text/format_cases.json      (pip install abnf==2.9.1)

The texts are mutations of examples, from a fixed seed."""
import datetime
import json
import random
import re

from abnf.grammars import rfc3339, rfc3986, rfc3987
from abnf.parser import ParseError, Rule

COUNT = 120
random.seed(20261)


class Mail(Rule):
    """RFC 5321, sections 4.1.2 and 4.1.3, without General-address-literal: no tag is registered."""


class Template(Rule):
    """RFC 6570, sections 1.5 and 2; ucschar and iprivate as in RFC 3987."""


class Small(Rule):
    """RFC 3339 appendix A (without nominal weeks among others), RFC 6901, the draft of relative
    JSON pointers, RFC 1123 (names), RFC 9562 (UUIDs)."""


Mail.load_grammar("\r\n".join([
    'Mailbox = Local-part "@" ( Domain / address-literal )',
    'Local-part = Dot-string / Quoted-string',
    'Dot-string = Atom *("." Atom)',
    'Atom = 1*atext',
    'atext = ALPHA / DIGIT / "!" / "#" / "$" / "%" / "&" / "\'" / "*" / "+" / "-" / "/" / "=" / "?" / "^" / "_" / "`" / "{" / "|" / "}" / "~"',
    'Quoted-string = DQUOTE *QcontentSMTP DQUOTE',
    'QcontentSMTP = qtextSMTP / quoted-pairSMTP',
    'quoted-pairSMTP = %d92 %d32-126',
    'qtextSMTP = %d32-33 / %d35-91 / %d93-126',
    'Domain = sub-domain *("." sub-domain)',
    'sub-domain = 1*(ALPHA / DIGIT / "-")',
    'address-literal = "[" ( IPv4-address-literal / IPv6-address-literal ) "]"',
    'IPv4-address-literal = Snum 3("." Snum)',
    'IPv6-address-literal = "IPv6:" IPv6-addr',
    'IPv6-addr = IPv6-full / IPv6-comp / IPv6v4-full / IPv6v4-comp',
    'IPv6-hex = 1*4HEXDIG',
    'IPv6-full = IPv6-hex 7(":" IPv6-hex)',
    'IPv6-comp = [IPv6-hex *5(":" IPv6-hex)] "::" [IPv6-hex *5(":" IPv6-hex)]',
    'IPv6v4-full = IPv6-hex 5(":" IPv6-hex) ":" IPv4-address-literal',
    'IPv6v4-comp = [IPv6-hex *3(":" IPv6-hex)] "::" [IPv6-hex *3(":" IPv6-hex) ":"] IPv4-address-literal',
    'Snum = 1*3DIGIT',
]) + "\r\n")
Template.load_grammar("\r\n".join([
    'URI-Template = *( literals / expression )',
    'literals = %x21 / %x23-24 / %x26 / %x28-3B / %x3D / %x3F-5B / %x5D / %x5F / %x61-7A / %x7E / ucschar / iprivate / pct-encoded',
    'ucschar = %xA0-D7FF / %xF900-FDCF / %xFDF0-FFEF / %x10000-1FFFD / %x20000-2FFFD / %xE1000-EFFFD',
    'iprivate = %xE000-F8FF / %xF0000-FFFFD / %x100000-10FFFD',
    'pct-encoded = "%" HEXDIG HEXDIG',
    'expression = "{" [ operator ] variable-list "}"',
    'operator = "+" / "#" / "." / "/" / ";" / "?" / "&" / "=" / "," / "!" / "@" / "|"',
    'variable-list = varspec *( "," varspec )',
    'varspec = varname [ modifier-level4 ]',
    'varname = varchar *( ["."] varchar )',
    'varchar = ALPHA / DIGIT / "_" / pct-encoded',
    'modifier-level4 = prefix / explode',
    'prefix = ":" max-length',
    'max-length = %x31-39 *3DIGIT',
    'explode = "*"',
]) + "\r\n")
Small.load_grammar("\r\n".join([
    'duration = "P" ( dur-week / dur-date / dur-time )',
    'dur-second = 1*DIGIT "S"',
    'dur-minute = 1*DIGIT "M" [dur-second]',
    'dur-hour = 1*DIGIT "H" [dur-minute]',
    'dur-time = "T" (dur-hour / dur-minute / dur-second)',
    'dur-day = 1*DIGIT "D"',
    'dur-week = 1*DIGIT "W"',
    'dur-month = 1*DIGIT "M" [dur-day]',
    'dur-year = 1*DIGIT "Y" [dur-month]',
    'dur-date = (dur-day / dur-month / dur-year) [dur-time]',
    'json-pointer = *( "/" reference-token )',
    'reference-token = *( unescaped / escaped )',
    'unescaped = %x00-2E / %x30-7D / %x7F-10FFFF',
    'escaped = "~" ( "0" / "1" )',
    'relative-json-pointer = non-negative-integer "#" / non-negative-integer json-pointer',
    'non-negative-integer = %x30 / %x31-39 *DIGIT',
    'hostname = label *( "." label )',
    'label = 1*( ALPHA / DIGIT / "-" )',
    'uuid = 8HEXDIG "-" 4HEXDIG "-" 4HEXDIG "-" 4HEXDIG "-" 12HEXDIG',
]) + "\r\n")


def parses(rule, text):
    try:
        rule.parse_all(text)
        return True
    except ParseError:
        return False


def labels(name, most):
    return len(name) <= most and all(0 < len(x) <= 63 and x[0] != "-" and x[-1] != "-" for x in name.split("."))


def is_mail(s):
    if not parses(Mail("Mailbox"), s):
        return False
    local, host = s.rsplit("@", 1)
    if len(local) > 64 or (local[0] == '"' and "\\" in local and len(local) > 33):
        return None  # RFC: 64; of quoted ones with backslashes fewer are accepted
    if host[0] != "[":
        return labels(host, 255)
    if any(int(n) > 255 or (len(n) > 1 and n[0] == "0") for n in re.findall(r"(?<![0-9A-Fa-f:])\d+(?=\.)|(?<=\.)\d+|(?<=:)\d+(?=\.)", host)):
        return None if any(len(n) > 1 and n[0] == "0" for n in re.findall(r"\d+", host)) else False
    if "::" not in host:
        return True
    groups = [g for g in host[6:-1].split(":") if g]
    return len(groups) <= (4 + 1 if "." in host else 6)


def is_time(s):
    m = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|([+-])(\d\d):(\d\d))", s, re.ASCII)
    if not m or not parses(rfc3339.Rule("full-time"), s.upper()):
        return False
    hour, minute, second = int(m[1]), int(m[2]), int(m[3])
    offset = (int(m[5]) * 60 + int(m[6])) * (-1 if m[4] == "-" else 1) if m[4] else 0
    if hour > 23 or minute > 59 or (m[4] and (int(m[5]) > 23 or int(m[6]) > 59)):
        return False
    if second == 60:
        return "leap" if (hour * 60 + minute - offset) % 1440 == 1439 else False
    return second < 60


def is_date(s):
    try:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", s, re.ASCII) is not None and bool(datetime.date.fromisoformat(s))
    except ValueError:
        return False


FORMATS = {
    "uri": (lambda s: parses(rfc3986.Rule("URI"), s), [
        "http://foo.bar/?baz=qux#quux", "ftp://u:p@[2001:db8::7]:21/a//b;c?d/e#f?", "mailto:John.Doe@example.com", "urn:a:b", "x:", "a+b-c.1://h:/", "http://a%20b/%7e", "tel:+1-816-555", "file:///etc/x", "http://[v1.a:b]/"]),
    "uri-reference": (lambda s: parses(rfc3986.Rule("URI-reference"), s), [
        "//foo.bar/?q#f", "/abc/../d", "abc:d", "./a:b", "a/b:c", "?x", "#y", "", "//", "///", "http://h", "%41", "a@b"]),
    "iri": (lambda s: parses(rfc3987.Rule("IRI"), s), [
        "http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:é", "http://例え.jp/ひ?\ue000", "x:\U0001F600", "http://[::1]/é"]),
    "iri-reference": (lambda s: parses(rfc3987.Rule("IRI-reference"), s), ["//ƒøø/é", "/âππ", "é:", "#ƒräg", "?\ue000", "é/b:c"]),
    "uri-template": (lambda s: parses(Template("URI-Template"), s), [
        "http://e.com/{term:1}/{t}", "{+path*}x{?a,b.c,d:20}", "{#x%41}", "a%20{/b}", "é{;c*}", "[]{&_1}", "{a,b,c}"]),
    "email": (is_mail, [
        "joe.bloggs@example.com", "te~st@a-b.c", '"joe b@x"@example.com', '"a\\"b"@c', "x@[127.0.0.1]", "x@[IPv6:::1]", "x@[IPv6:1:2:3:4:5:6:7:8]", "x@[IPv6:1::2:3.4.5.6]", "x@[IPv6:1:2:3:4:5:6:7.8.9.10]", "a+b@c.de", "!#$%&'*+-/=?^_`{|}~@x",
        "x@[IPv6:1:2:3:4:5:6::]", "x@[IPv6:1:2:3:4:5::7:8]", "a" * 64 + "@b.c", "a" * 65 + "@b.c", "a@" + "b" * 63 + ".c", "a@" + "b" * 64 + ".c"]),
    "hostname": (lambda s: parses(Small("hostname"), s) and labels(s, 253), [
        "www.example.com", "xn--4gbwdl.xn--wgbh1c", "a-b.c1", "1host", "x", "a" * 63 + ".b", "a" * 64 + ".b", ".".join(["a" * 62] * 4) + ".b", ".".join(["a" * 62] * 4) + ".bc"]),
    "duration": (lambda s: parses(Small("duration"), s) and s.upper() == s, ["P4DT12H30M5S", "P1Y2M3D", "PT0S", "P2W", "P1M", "PT36H", "P1YT1S", "P1Y1D", "PT1H1S"]),
    "json-pointer": (lambda s: parses(Small("json-pointer"), s), ["/foo/bar~0/baz~1/%a", "", "/", "//a", "/~01é", "/ \"\\"]),
    "relative-json-pointer": (lambda s: parses(Small("relative-json-pointer"), s), ["1", "0/foo/bar", "2#", "120/a~1", "0", "10#"]),
    "uuid": (lambda s: parses(Small("uuid"), s), ["2eb8aa08-AA98-11ea-b4aa-73B441D16380", "00000000-0000-0000-0000-000000000000"]),
    "time": (is_time, ["08:30:06.283185Z", "23:59:59+23:59", "00:00:00z", "23:59:60Z", "15:59:60-08:00", "01:29:60.5+01:30", "23:29:60+23:30", "22:59:60Z", "23:58:60Z"]),
    "date-time": (lambda s: s[10:11] in ("T", "t") and is_date(s[:10]) and is_time(s[11:]), [
        "1963-06-19T08:30:06.283185Z", "1998-12-31t23:59:60Z", "2020-02-29T00:00:00+00:20", "1990-12-31T15:59:60.123-08:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]),
    "date": (is_date, ["2020-02-29", "1900-02-28", "2000-02-29", "0001-01-01", "1963-06-19", "0000-01-01", "2021-11-30", "2021-12-31"]),
}
SPECIALS = "/:?#[]@!$&'()*+,;=%-._~ \"\\<>^`{|}0129aAfgGzZéπ\u0000\u007f\ue000T"


def mutated(text):
    s = list(text)
    for _ in range(random.choice([0, 1, 1, 1, 2, 2, 3])):
        at = random.randrange(len(s) + 1)
        kind = random.randrange(5)
        if kind == 0:
            s.insert(at, random.choice(SPECIALS))
        elif kind == 1 and at < len(s):
            del s[at]
        elif kind == 2 and at < len(s):
            s[at] = random.choice(SPECIALS)
        elif kind == 3 and at < len(s):
            s[at] = str(random.randrange(10))
        elif kind == 4 and s:
            a = random.randrange(len(s))
            s[at:at] = s[a:a + random.randrange(6)]
    return "".join(s)


def main():
    out = {}
    for name, (judge, examples) in FORMATS.items():
        found = {}
        for text in examples + [mutated(random.choice(examples)) for _ in range(3 * COUNT)]:
            verdict = judge(text)
            if verdict is None or text in found:
                continue
            same = sum(v == verdict for v in found.values())
            if same < COUNT / 2:
                found[text] = verdict
        out[name] = {"yes": [t for t, v in found.items() if v is True], "leap": [t for t, v in found.items() if v == "leap"],
                     "no": [t for t, v in found.items() if not v]}
    print("{\n" + ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in out.items()) + "\n}")


if __name__ == "__main__":
    main()
