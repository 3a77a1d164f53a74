"""What one client can take of the process: memory, time of the loop, places. Each test does what once
took hundreds of MiB or seconds, and holds the growth of the daemon's memory and how long its health and
a neighbour wait. The model is the null one, whose engine is no bottleneck."""
import hashlib
import json
import threading
import time

import pytest
from conftest import SERVER, Server, program, tiny_model, unless_still, until
from test_cost import sanitized
from test_stream import post

pytestmark = pytest.mark.alone

MIB = 1 << 20
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Watched:
    """A daemon whose memory and health are looked at while something is done to it."""

    def __init__(self, server):
        self.s = server
        self.health = []
        self.most = 0

    def rss(self):
        with open(f"/proc/{self.s.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) * 1024

    def look(self):
        self.most = max(self.most, self.rss())
        with self.s.connect() as c:
            c.settimeout(20)
            began = time.monotonic()
            c.sendall(GET.format("/health/live").encode())
            assert c.recv(4096).startswith(b"HTTP/1.1 200")
            self.health.append(time.monotonic() - began)

    def during(self, do, least=0.0):
        """What do() gives, run beside looks at memory and health."""
        found, began = [], time.monotonic()
        self.health, self.most = [], 0
        before = self.rss()
        t = threading.Thread(target=lambda: found.append(do()))
        t.start()
        while t.is_alive() or time.monotonic() - began < least:
            self.look()
            time.sleep(0.01)
        t.join()
        self.grew = 0 if sanitized() else self.most - before  # sanitizers keep what was freed
        self.worst = max(self.health)
        turn = 0 if sanitized() else self.s.metrics()["conifer_loop_turn_max_seconds"]
        print(f"grew {self.grew / MIB:.1f} MiB, health at worst {self.worst * 1e3:.0f} ms, "
              f"turn at most {turn * 1e3:.2f} ms")
        assert turn < 0.005
        return found[0]


@pytest.fixture
def null():
    s = Server(program(SERVER), "null:vocab=49152,context=131072", template=False)
    yield Watched(s)
    s.wait_idle()
    s.stop()


def flood(s, data, seconds, rate=0):
    """Sends data over and over, reads `rate` bytes a second; how much was sent."""
    with s.connect(rcvbuf=4096) as c:
        c.settimeout(0.05)
        sent, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                sent += c.send(data)
            except TimeoutError:
                pass
            if rate:
                try:
                    c.recv(rate // 20)
                except TimeoutError:
                    pass
        return sent


@pytest.mark.parametrize("path,rate", [("/health/live", 0), ("/metrics", 0), ("/metrics", 240000)])
@unless_still
def test_pipelined_and_not_read(null, path, rate):
    null.during(lambda: flood(null.s, GET.format(path).encode() * 500, 2, rate))
    assert null.grew < 32 * MIB
    assert null.worst < 0.15


def whole(s, path, body, timeout=120):
    """Status, and the parsed body."""
    status, _, data = s.http("POST", path, body, timeout=timeout)
    return status, json.loads(data)


@unless_still
def test_long_log_probabilities(null):
    """echo + logprobs + n over 8,000 tokens: the answer of some 35 MB is written by a worker."""
    body = {"prompt": list(range(100, 8100)), "max_tokens": 1, "echo": True, "logprobs": 20, "n": 8}
    status, answer = null.during(lambda: whole(null.s, "/v1/completions", body))
    assert status == 200 and len(answer["choices"]) == 8
    for c in answer["choices"]:
        lp = c["logprobs"]
        assert [len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [8001] * 4
    assert null.worst < 0.15
    assert null.grew < 100 * MIB


@unless_still
def test_long_log_probabilities_streamed(null):
    body = {"prompt": list(range(100, 8100)), "max_tokens": 1, "echo": True, "logprobs": 20, "n": 4}
    events = null.during(lambda: null.s.http("POST", "/v1/completions", {**body, "stream": True})[2])
    counts = [0] * 4
    for line in events.split(b"\n\n"):
        if line.startswith(b"data: {"):
            for c in json.loads(line[6:])["choices"]:
                counts[c["index"]] += len((c["logprobs"] or {"tokens": []})["tokens"])
    assert counts == [8001] * 4 and events.endswith(b"data: [DONE]\n\n")
    assert null.worst < 0.15
    assert null.grew < 100 * MIB


@unless_still
def test_many_prompts_of_log_probabilities_not_read(null):
    """24 such prompts, whose answer nobody reads: it is written as far as it is read."""
    prompts = 6 if sanitized() else 24  # there it takes 20 s more, and shows no more
    body = {"prompt": [list(range(100, 8100))] * prompts, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 8}

    def ask():
        with null.s.connect(rcvbuf=4096) as c:
            c.sendall(post("/v1/completions", body))
            time.sleep(4)
            return c.recv(4096)
    assert null.during(ask).startswith(b"HTTP/1.1 200 OK\r\n")
    assert null.worst < 0.15
    assert null.grew < 400 * MIB


def at_once(n, do):
    """What do(i) gives for each i, run together."""
    found = [None] * n

    def one(i):
        found[i] = do(i)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


@unless_still
def test_dense_bodies(null):
    """80 bodies that weigh 70 times their bytes when parsed."""
    body = {"prompt": "x", "max_tokens": 1, "metadata": {"a": [{}] * 85000}}
    got = null.during(lambda: statuses_of(null.s, "/v1/completions", body, 80))
    assert set(got) <= {200, 429, 503}, set(got)
    assert got.count(200) > 0
    assert null.grew < 400 * MIB
    assert null.worst < 0.3


def statuses_of(s, path, body, n):
    """The statuses of n requests at once, each on a connection of its own, by one thread."""
    data = post(path, body)
    all_of_them = [s.connect() for _ in range(n)]
    try:
        for c in all_of_them:
            c.sendall(data)
        return [int(c.recv(4096)[9:12]) for c in all_of_them]
    finally:
        for c in all_of_them:
            c.close()


@unless_still
def test_many_bodies_below_the_bound(null):
    """300 bodies of 64 KB of small values: none of that size is parsed on the loop."""
    body = {"prompt": "x", "max_tokens": 1, "metadata": {"a": [{}] * 16000}}
    assert 60000 < len(json.dumps(body)) < 65536
    got = null.during(lambda: statuses_of(null.s, "/v1/completions", body, 100) +
                      statuses_of(null.s, "/v1/completions", body, 200))
    assert set(got) <= {200, 429, 503} and got.count(200) > 30
    assert null.worst < 0.3
    assert null.grew < 400 * MIB


@unless_still
def test_long_token_lists_read_slowly(null):
    """Eight answers of /tokenize of 13 MB each, whose readers take little."""
    body = json.dumps({"prompt": "ab " * 340000, "return_token_strs": True}).encode()
    head = (f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()

    def ask(i):
        with null.s.connect(rcvbuf=4096) as c:
            c.sendall(head + body)
            got, end = b"", time.monotonic() + 6
            while time.monotonic() < end:
                got += c.recv(4096)
                time.sleep(0.05)
            return got[:12]
    got = null.during(lambda: at_once(8, ask))
    assert set(got) <= {b"HTTP/1.1 200", b"HTTP/1.1 429", b"HTTP/1.1 503"} and b"HTTP/1.1 200" in got
    assert null.grew < 350 * MIB
    assert null.worst < 0.3


@unless_still
def test_long_words_are_paid_for():
    """Merging a word takes up to 180 times its bytes: 16 of 1 MB at once, all of them charged."""
    s = Server(program(SERVER), tiny_model(), args=("--set", "server.memory_bytes=160MiB"))
    body = {"prompt": "ab" * 500000}
    try:
        w = Watched(s)
        got = w.during(lambda: at_once(16, lambda i: s.http("POST", "/tokenize", body, timeout=120)[0]))
        assert set(got) <= {200, 429, 503} and got.count(200) >= 1, got
        assert w.grew < 200 * MIB
        assert w.worst < 0.3
    finally:
        s.wait_idle()
        s.stop()


@unless_still
def test_each_of_many_large_bodies_is_answered():
    """Bodies that do not all have room: who is refused is told so, however little of it was read."""
    s = Server(program(SERVER), "null:", template=False, args=("--set", "server.memory_bytes=32MiB"))
    data = post("/tokenize", {"prompt": "a" * (7 << 20)})

    def ask(i):
        got = []
        for _ in range(12):
            with s.connect() as c:
                c.sendall(data)
                got.append(c.recv(4096)[9:12])
        return got
    try:
        w = Watched(s)
        got = sum(w.during(lambda: at_once(8, ask)), [])
        assert set(got) <= {b"200", b"400", b"429", b"503"}, set(got)
        assert {b"429", b"503"} & set(got)
        assert w.worst < 0.3
    finally:
        s.wait_idle()
        s.stop()


class Part:
    """A body of n bytes of a tenant's, of which 1 MiB has come: all of it has its room, or none of it."""

    def __init__(self, s, key, n):
        self.c = s.connect()
        self.c.sendall(post("/tokenize", {"prompt": "a" * n}).replace(
            b"\r\n", b"\r\nAuthorization: Bearer " + key.encode() + b"\r\n", 1)[:MIB])

    def refusal(self):
        head, _, body = self.c.recv(4096).partition(b"\r\n\r\n")
        return int(head[9:12]), json.loads(body)["error"]


def three_tenants():
    """A server, its tenants' keys, and a function for what one of them holds. Of 32 MiB 16 are lent; 4 are for
    connections, and each tenant has 4 and may borrow 8."""
    keys = {name: "cnf_" + name * 43 for name in "abc"}
    tenants = "".join(f'  - {{name: {n}, keys: ["sha256:{hashlib.sha256(k.encode()).hexdigest()}"]}}\n'
                      for n, k in keys.items())
    s = Server(program(SERVER), "null:", template=False,
               config=f"server: {{memory_bytes: 32MiB}}\ntenants:\n{tenants}")

    def held(name):
        head = {"Authorization": "Bearer " + keys[name]}
        return s.metrics(headers=head)[f'conifer_tenant_request_memory_bytes{{tenant="{name}"}}']
    return s, keys, held


def test_memory_that_others_hold():
    """429 where it is the tenant's own, 503 where it is the others'; what is kept for a tenant is its own."""
    s, keys, held = three_tenants()
    try:
        first = Part(s, keys["a"], 10 * MIB)
        until(lambda: held("a") >= 10 * MIB)
        status, error = Part(s, keys["a"], 5 * MIB).refusal()
        assert (status, error["code"], error["type"]) == (429, "memory_in_use", "rate_limit_error")
        assert "this tenant's running requests" in error["message"] and "server.memory_bytes" in error["message"]
        status, error = Part(s, keys["b"], 10 * MIB).refusal()
        assert (status, error["code"], error["type"]) == (503, "memory_full", "server_error")
        assert "server.memory_bytes" in error["message"]
        status, error = Part(s, keys["c"], 13 * MIB).refusal()
        assert (status, error["code"]) == (413, "too_much_memory")
        small = Part(s, keys["b"], 3 * MIB)  # of its own part
        until(lambda: held("b") >= 3 * MIB)
        first.c.close()
        until(lambda: held("a") < MIB)
        again = Part(s, keys["b"], 10 * MIB)  # 3 and 10 are more than 12
        assert again.refusal()[0] == 429
        small.c.close()
        until(lambda: held("b") < MIB)
        again = Part(s, keys["b"], 10 * MIB)
        until(lambda: held("b") >= 10 * MIB)
        m = s.metrics(headers={"Authorization": "Bearer " + keys["a"]})
        refused = {k.split('code="')[1].split('"')[0]: v for k, v in m.items() if "http_refused_total" in k and v}
        assert refused == {"memory_in_use": 2, "memory_full": 1}
        again.c.close()
    finally:
        s.stop()


def test_memory_of_kept_grammars():
    """Grammars that are kept for later requests give way to what needs the memory, the tenant's own or another's."""
    s, keys, held = three_tenants()
    head = {"Authorization": "Bearer " + keys["a"]}

    def keep_many():
        for i in range(14):
            body = {"prompt": "x", "max_tokens": 3, "structured_outputs": {"regex": f"a{i}b*"}}
            assert s.http("POST", "/v1/completions", body, headers=head)[0] == 200
        kept = s.metrics(headers=head)['conifer_request_memory_bytes{state="kept"}']
        assert held("a") >= kept > 9 * MIB
    try:
        keep_many()
        for name in "ba":
            body = Part(s, keys[name], 10 * MIB)
            until(lambda: held(name) >= 10 * MIB)
            body.c.close()
            until(lambda: held("b") < MIB)
            keep_many()
    finally:
        s.stop()


def test_what_takes_too_much_is_refused_as_that():
    """413 for what could never fit, with the setting's name; a neighbour's reserve stays."""
    s = Server(program(SERVER), "null:", template=False, args=("--set", "server.memory_bytes=16MiB"))
    try:
        body = b'{"prompt":"x","metadata":{"a":[' + b",".join([b"{}"] * 60000) + b"]}}"
        status, answer = whole(s, "/v1/completions", body)
        assert status == 413 and answer["error"]["code"] == "too_much_memory"
        assert "server.memory_bytes" in answer["error"]["message"]
        assert whole(s, "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
        m = s.metrics()
        assert m["conifer_requests_running"] == 0
    finally:
        s.wait_idle()
        s.stop()
