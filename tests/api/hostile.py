"""A hostile client, and one who behaves: each a process of its own, so that neither holds up the other.

    hostile.py attack '{"port": ..., "keys": [...], "seed": ..., "part": ..., "begin": ..., "until": ...}'
    hostile.py behave '{"port": ..., "key": ..., "begin": ..., "until": ...}'

`begin` and `until` are times of the monotonic clock, which all processes share. What was done is printed as
JSON. Routes and fields come from server/routes.def and server/params.def: what is new there is attacked as
well. A hostile client makes its requests before it begins, and sends them in any order: it has the lowest
priority and takes little of the processors, which it shares with the daemon only here."""
import collections
import itertools
import json
import os
import pathlib
import random
import re
import socket
import struct
import sys
import time

MIB = 1 << 20
READY = 400  # requests that a hostile client has ready
SERVER = pathlib.Path(__file__).resolve().parent.parent.parent / "server"
# Of whose fields a route's body is made; a route that is not here gets those of all.
ENDPOINTS = {"chat": "CHAT", "apply_template": "CHAT", "text": "TEXT", "embed": "EMBED", "tokenize": "TOK",
             "detokenize": "DETOK"}
NO_ROUTES = [("GET", "/nothing", None), ("DELETE", "/v1/models", None), ("OPTIONS", "/metrics", None)]

Field = collections.namedtuple("Field", "endpoints name type default low high words")


def nested(n):
    schema = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema, "b": schema if n < 12 else {}}, "required": ["a"]}
    return schema


# Forms of an answer that are costly to compile, to follow or both, and wrong ones.
SCHEMAS = [{}, {"type": "string"}, {"enum": [f"value {i}" for i in range(3000)]}, nested(11), nested(60),
           {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 1000} for i in range(200)}},
           {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}] * 20}}},
           {"allOf": [{"type": "string", "pattern": "a*"}, {"type": "string", "pattern": "(a|b){1,300}"}]},
           {"type": "integer", "minimum": -10**18, "maximum": 10**18}, {"type": "array", "minItems": 5000},
           {"type": "nothing"}, {"$ref": "#/$defs/none"}, True, []]
PATTERNS = ["a+", "((a*)*)*", "(a?){500}a{500}", "[a-z]{1,5000}", "(.*a.*b.*c.*){20}", "(a|b|ab)*c", "\\p{L}{1,1000}",
            "(" * 500 + "a" + ")" * 500, "[", "a{1000000000}", "x" * 100000]
GRAMMARS = ['root ::= "a"', 'root ::= root root | "a" |', 'root ::= "(" root ")" | "x"',
            "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | "{i}"' for i in range(300)) + '\nr300 ::= "z"\nroot ::= r0',
            'root ::= [^"]* ("a" | "b"){0,2000}', "start: /a+/ start | /b*/", 'root ::= none', "root ::=", "\0", "%" * 50000]
FORMS = {"SCHEMA": SCHEMAS, "REGEX": PATTERNS, "GRAMMAR": GRAMMARS,
         "CHOICE": [["a"], [], [""], ["a", "a"], [f"choice {i}" for i in range(3000)], ["x" * 50000] * 3, "a"]}
# Fields whose values are forms, besides those of FORM.
HOLDING_FORMS = {
    "response_format": [{"type": "json_object"}, *({"type": "json_schema", "json_schema": {"name": "x", "schema": v}}
                                                   for v in SCHEMAS)],
    "structured_outputs": [{kind: v} for kind, of in (("json", "SCHEMA"), ("regex", "REGEX"), ("choice", "CHOICE"),
                                                      ("grammar", "GRAMMAR")) for v in FORMS[of]],
    "tools": [[{"type": "function", "function": {"name": f"f{i}", "parameters": v}} for i in range(n)]
              for n, v in ((1, SCHEMAS[3]), (1, SCHEMAS[6]), (100, SCHEMAS[1]), (2, None))],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f0"}}]}


def table(name, macros):
    """The lines of a .def file that begin with these macros: the macro, and its arguments as text."""
    text = re.sub(r"/\*.*?\*/", "", (SERVER / name).read_text(), flags=re.S)
    for macro, args in re.findall(rf"^({'|'.join(macros)})\((.*?)\)$", text, re.M | re.S):
        yield macro, [a.strip() for a in re.findall(r'"(?:[^"\\]|\\.)*"|[^,"]+', args) if a.strip()]


def routes():
    """(method, path, handler), the paths of other APIs, and what is no route."""
    found = [(a[0], a[1].strip('"'), a[2]) for _, a in table("routes.def", ["ROUTE"])]
    other = [("POST", a[0].strip('"'), None) for _, a in table("routes.def", ["INSTEAD"])]
    return [(m, path.replace("*", "null"), handler) for m, path, handler in found + other] + NO_ROUTES


def fields():
    found = []
    for macro, a in table("params.def", ["PARAM", "LACK", "FORM"]):
        if macro == "PARAM":
            ends, name, kind, _, default, low, high = a[:7]
            found.append(Field(set(ends.split(" | ")), name.strip('"'), kind, *map(json.loads, (default, low, high)),
                               re.findall(r"`([^`]+)`", "".join(a[7:]))))
        else:
            kind = a[1] if macro == "FORM" else "ANY"
            found.append(Field({"CHAT", "TEXT", "EMBED"}, a[0].strip('"'), kind, 0, 0, 0, []))
    return found


def bounds(f):
    """Values at a field's bounds and just beyond them."""
    return FORMS.get(f.type, []) + HOLDING_FORMS.get(f.name, []) + bounds_of_type(f)


def bounds_of_type(f):
    if f.type == "INT":
        return [f.low, f.low - 1, f.high, f.high + 1, f.default, f.low + 0.5, 2**63, -2**63 - 1]
    if f.type == "NUM":
        return [f.low, f.high, f.default, f.low - 1e-9, f.high + 1e-9, -0.0, 5e-324, 1e308, (f.low + f.high) / 2]
    if f.type == "BOOL":
        return [True, False, 1, "true"]
    if f.type == "STR":
        return f.words + [w + "\0x" for w in f.words[:1]] + ["", "x" * 5000]
    if f.type == "ARR":
        return [[], [None], [0] * 20000, [[]] * 1000, [{}] * 1000]
    if f.type == "OBJ":
        return [{}, {"type": "text"}, {str(i): 1 for i in range(3000)}, {"": None}, {"a": [{}] * 1000}]
    return ["", "x", [], {}, ["x"] * 100, ["s" * 4096] * 16, "y" * 100000, 0, [0] * 5000, {"a": {"a": {}}}]


class Maker:
    """Requests. Those of odd turns have one field at a bound in a body that is right but for that; in the
    others anything may be wrong."""

    def __init__(self, seed, part):
        """Those of one seed have the same fields in the same order, and begin at different parts of it."""
        self.routes, self.fields = routes(), fields()
        every = [(route, f, v) for route in self.routes if route[0] == "POST" and route[2]
                 for f in self.fields if ENDPOINTS.get(route[2]) in f.endpoints | {None} for v in bounds(f)]
        random.Random(seed).shuffle(every)
        first = part * READY // 2 % len(every)
        self.turns = itertools.cycle(every[first:] + every[:first])
        self.others = itertools.cycle([(route, None, None) for route in self.routes])
        self.made = 0
        self.rnd = random.Random(f"{seed} {part}")

    def scalar(self):
        return self.rnd.choice([None, True, False, 0, -1, 1, 2, 8, 1024, 2**31, 2**63, 1e308, -0.5, 0.5, "", "x", "\0",
                                "x" * self.rnd.choice([1, 100, 5000]), "<|im_start|>", "\U0001f600" * 50])

    def value(self, depth=0):
        r = self.rnd
        kind = r.random()
        if kind < 0.6 or depth > 3:
            return self.scalar()
        if kind < 0.8:
            return [self.value(depth + 1) for _ in range(r.choice([0, 1, 3, 70]) if depth < 2 else 1)]
        return {str(self.scalar())[:40]: self.value(depth + 1) for _ in range(r.choice([0, 1, 5]))}

    def prompt(self):
        r = self.rnd
        return r.choice(["hello", "word " * r.choice([1, 1000, 30000]), list(range(r.choice([1, 500, 20000]))),
                         ["a"] * r.choice([1, 64, 1025]), [[1, 2, 3]] * r.choice([1, 200])])

    def right(self, handler):
        """What such a route takes, at a price."""
        r = self.rnd
        if handler in ("chat", "apply_template"):
            turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
            return {"messages": turns * r.choice([1, 150]) + turns[:1], "max_tokens": r.choice([1, 50, 2000])}
        if handler == "detokenize":
            return {"tokens": [100] * r.choice([1, 100000])}
        if handler == "embed":
            return {"input": self.prompt()}
        return {"prompt": self.prompt(), "max_tokens": r.choice([1, 50, 2000])}

    def costly(self, handler):
        r = self.rnd
        known = {"n": 8, "logprobs": True if handler == "chat" else 20, "echo": True, "stream": True,
                 "stop": ["s" * 4000] * 16, "return_token_strs": True, "ignore_eos": True, "return_token_ids": True,
                 "logit_bias": {str(i): 1 for i in range(1000)}, "temperature": 2, "presence_penalty": 1}
        if handler == "chat":
            known["top_logprobs"] = 20
        return {k: known[k] for k in r.sample(sorted(known), r.choice([0, 1, 3, 6]))}

    def body(self, handler, field=None, value=None):
        r = self.rnd
        body = {**self.right(handler), **self.costly(handler)}
        if field:
            body[field.name] = value
            if field.name == "tool_choice":
                body["tools"] = r.choice(HOLDING_FORMS["tools"])
            return body
        for f in r.sample(self.fields, r.choice([0, 1, 3])):
            body[f.name] = r.choice([self.value(), r.choice(bounds(f))])
        if r.random() < 0.2:
            body = {k: v if r.random() < 0.7 else self.value() for k, v in body.items()}
        return body

    def text(self, handler, field, value):
        r = self.rnd
        if field is None and r.random() < 0.1:
            return r.choice([b"{" * 60000, b"[" * 100000, b'{"prompt":', b'{"a":[' + b"{}," * 50000 + b"1]}",
                             b'{"prompt":"' + b"y" * (8 * MIB) + b'"}', r.randbytes(1000)])
        return json.dumps(self.body(handler, field, value)).encode()

    def framed(self, text):
        """The head's last lines and the body: with its length, in chunks, or with a length that is wrong."""
        r = self.rnd
        how = r.random()
        if how < 0.85:
            return f"Content-Length: {len(text)}\r\n\r\n".encode() + text
        if how < 0.95:
            size = r.choice([1, 100, 65536]) if len(text) < 5000 else 65536
            parts = [text[i:i + size] for i in range(0, len(text), size)]
            return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + \
                   r.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"", b"fffffffffffffffff\r\n"])
        return f"Content-Length: {r.choice([0, len(text) + 100, 2**40])}\r\n\r\n".encode() + text

    def one(self, key):
        """The bytes of one request."""
        r = self.rnd
        self.made += 1
        field = value = None
        if self.made % 2:
            (method, path, handler), field, value = next(self.turns)
        else:
            (method, path, handler), _, _ = next(self.others)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        for name in r.sample(["X-Deadline-Ms: 1", "X-Deadline-Ms: 50", "X-Deadline-Ms: x", "X-Request-Id: " + "i" * 64,
                              "Expect: 100-continue", "Connection: close", "Content-Encoding: gzip", "Origin: http://x",
                              "X-Forwarded-For: " + "1.2.3.4, " * 100, "X: " + "y" * 9000], r.random() < 0.2):
            head += name + "\r\n"
        if method != "POST":
            return head.encode() + b"\r\n"
        return (head + "Content-Type: application/json\r\n").encode() + self.framed(self.text(handler, field, value))

    def sent(self, key):
        """What goes out on one connection: a request, many in a row, or a part of one."""
        r = self.rnd
        data, how = self.one(key), r.random()
        if how < 0.15:  # pipelined
            data = data * r.choice([2, 300]) if len(data) < 500 else data + b"".join(self.one(key) for _ in range(9))
        elif how < 0.25:
            data = data[:r.randrange(len(data))]
        return data


def leave_the_processors():
    """To everybody else who wants them."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


class Attack:
    """Opens, sends, reads or does not, leaves; until the time is over."""

    def __init__(self, port, keys, seed, part, begin, until):
        self.port, self.begin, self.until = port, begin, until
        maker = Maker(seed, part)
        self.rnd = maker.rnd
        self.ready = [maker.sent(self.rnd.choice(keys)) for _ in range(READY)]
        self.unread, self.slow = [], []  # connections; (connection, what is left to send)
        self.done = collections.Counter()

    def connect(self):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.settimeout(2)
        c.connect(("127.0.0.1", self.port))
        return c

    def leave(self, c):
        """Closes: with a FIN, or with a reset."""
        if self.rnd.random() < 0.3:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()

    def send_slowly(self):
        """A few bytes of each that is sent slowly, in head or body."""
        r = self.rnd
        for at in range(len(self.slow) - 1, -1, -1):
            c, rest = self.slow[at]
            n = r.choice([1, 10, 1000])
            try:
                c.send(rest[:n])
                self.slow[at] = (c, rest[n:])
            except OSError:
                rest = b""
            if len(rest) <= n:
                del self.slow[at]
                self.leave(c)

    def once(self, c):
        r = self.rnd
        data = r.choice(self.ready)
        self.done["connections"] += 1
        what = r.random()
        if what < 0.15:
            self.done["slow"] += 1
            self.slow.append((c, data))
            return
        for at in range(0, len(data), 1 << 16):
            c.sendall(data[at:at + (1 << 16)])
        if what < 0.3:
            self.done["unread"] += 1
            self.unread.append(c)
            return
        if what < 0.4:
            self.done["half closed"] += 1
            c.shutdown(socket.SHUT_WR)
        while what > 0.5 and (part := c.recv(1 << 16)):
            if part.startswith(b"HTTP/1.1 "):
                self.done[part[9:12].decode()] += 1
            what = r.uniform(0.45, 1)
        self.leave(c)

    def run(self):
        r = self.rnd
        leave_the_processors()
        time.sleep(max(0, self.begin - time.monotonic()))
        while time.monotonic() < self.until:
            try:
                c = self.connect()
            except OSError:
                continue
            c.settimeout(r.choice([0.02, 0.1, 0.5]))
            try:
                self.once(c)
            except OSError:
                self.leave(c)
            self.send_slowly()
            for some, most in ((self.unread, 20), (self.slow, 20)):
                while len(some) > most:
                    c = some.pop(r.randrange(len(some)))
                    self.leave(c[0] if isinstance(c, tuple) else c)
        return self.done


class Behave:
    """Asks for a short streamed answer, over and over; what comes out is when each was asked for and how long
    its first token took, and what failed."""

    def __init__(self, port, key, begin, until):
        self.port, self.begin, self.until = port, begin, until
        self.first, self.failed = [], []
        body = json.dumps({"prompt": "a few words", "max_tokens": 8, "stream": True}).encode()
        self.data = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                     "Connection: close\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n").encode() + body

    def ask(self):
        with socket.socket() as c:
            c.settimeout(60)
            c.connect(("127.0.0.1", self.port))
            began, first, got = time.monotonic(), None, b""
            c.sendall(self.data)
            while part := c.recv(65536):
                got += part
                if first is None and b'"text":"' in got:
                    first = time.monotonic() - began
        if got.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in got and first is not None:
            self.first.append((began, first))
        else:
            self.failed.append(got[:300].decode(errors="replace"))

    def run(self):
        time.sleep(max(0, self.begin - time.monotonic()))
        while time.monotonic() < self.until:
            try:
                self.ask()
            except OSError as e:
                self.failed.append(repr(e))
            time.sleep(0.03)
        return {"first": self.first, "failed": self.failed}


def main():
    what, given = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps((Attack if what == "attack" else Behave)(**given).run()))


if __name__ == "__main__":
    main()
