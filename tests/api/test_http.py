"""HTTP over real sockets: framing decisions, limits, time-outs, pipelining, one-byte segments."""
import json
import re
import socket
import subprocess
import time

import pytest
from conftest import quick as soon, unless_still, until

QUICK = "\n".join([
    "server:", "  header_timeout_s: 0.5", "  body_grace_s: 0.5", "  body_min_rate: 100000",
    "  idle_timeout_s: 1", "  max_body_bytes: 64KiB", "  slow_reader_timeout_s: 1",
    "  heartbeat_s: 0.3", "  stream_buffer_bytes: 16KiB", ""])
HOST = b"Host: localhost\r\n"
GET = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"


def body(text=b'{"prompt":"abcdef","max_tokens":3}'):
    return (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(text) + text)


def read_all(s, seconds=60):
    s.settimeout(seconds)
    data = b""
    try:
        while part := s.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def exchange(server, *pieces, end=True, delay=0):
    """All that comes back until the server closes (asked to with `end`, by half-closing)."""
    with server.connect() as s:
        for p in pieces:
            s.sendall(p)
            if delay:
                time.sleep(delay)
        if end:
            time.sleep(0.1)
            s.shutdown(socket.SHUT_WR)
        return read_all(s)


def statuses(data):
    return [int(x) for x in re.findall(rb"HTTP/1\.1 ([1-5]\d\d) ", data)]


def one_error(data, status):
    """Exactly one answer, of that status, with OpenAI's envelope."""
    assert statuses(data) == [status], data
    head, _, text = data.partition(b"\r\n\r\n")
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"Content-Type: application/json" in head
    return error


def served(config):
    from conftest import FAKE, Server, program, tiny_model
    s = Server(program(FAKE), tiny_model(), config=config, env={"CONIFER_FAKE_DELAY_US": "1000"})
    yield s
    s.wait_idle(connections=1)
    s.stop()


@pytest.fixture(scope="module")
def quick():
    """Whose limits of time come soon."""
    yield from served(QUICK)


@pytest.fixture(scope="module")
def patient():
    """Whose limits of time are not reached by a client that was stopped for a while."""
    yield from served("server:\n  max_body_bytes: 64KiB\n  body_min_rate: 1\n  stream_buffer_bytes: 16KiB\n")


# reliability.md 5.2: what a strict llhttp lets through, and the answer to each
DECISIONS = [
    ("no host", b"GET /health/live HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET /health/live HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    ("empty host", b"GET /health/live HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("host with a path", b"GET /health/live HTTP/1.1\r\nHost: localhost/?\r\n\r\n", 400),
    ("host with userinfo", b"GET /health/live HTTP/1.1\r\nHost: u@localhost\r\n\r\n", 400),
    ("length with zeros", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Length: 0001\r\n\r\n{", 400),
    ("gzip, chunked", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ("chunked in 1.0", b"POST /v1/completions HTTP/1.0\r\n" + HOST +
     b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("two authorizations", b"GET /health/live HTTP/1.1\r\n" + HOST +
     b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400),
    ("chunk extension 1 MiB", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2**20 + b"\r\n", 400),
    ("header 1 MiB", b"GET /health/live HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 2**20 + b"\r\n\r\n", 431),
    ("100,000 headers", b"GET /health/live HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100000 + b"\r\n", 431),
    ("long target", b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    ("target of another host", b"GET http://other/health/live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("backslash", b"GET /health\\live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("percent zero", b"GET /health/live%00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("obs-fold", b"GET /health/live HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", 400),
    ("space before colon", b"GET /health/live HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    ("bare LF", b"GET /health/live HTTP/1.1\nHost: a\n\n", 400),
    ("NUL", b"GET /health/live HTTP/1.1\r\n" + HOST + b"X: a\0\r\n\r\n", 400),
    ("both lengths", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("two lengths", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), 400),
    ("body above the limit", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Length: 65537\r\n\r\n", 413),
    ("chunked body above the limit", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 32768 + b"\r\n" +
     b"8001\r\n" + b"x" * 32769 + b"\r\n", 413),
    ("other media", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
    ("compressed", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    ("expectation", b"POST /v1/completions HTTP/1.1\r\n" + HOST +
     b"Expect: money\r\nContent-Length: 2\r\n\r\n{}", 417),
]


@pytest.mark.parametrize("name,data,status", DECISIONS, ids=[d[0] for d in DECISIONS])
def test_decisions(patient, name, data, status):
    one_error(exchange(patient, data, end=False), status)


def test_trailers_are_dropped(patient):
    data = exchange(patient, b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
                    b"d\r\n" + b'{"prompt":""}' + b"\r\n0\r\nAuthorization: x\r\nHost: evil\r\n\r\n", GET)
    assert statuses(data) == [200, 200]


def test_a_gigabyte_is_refused_at_its_head(patient):
    with patient.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 1073741824\r\n\r\n")
        data = soon(2, lambda: s.recv(65536))  # while not one byte of the body was sent
        assert statuses(data) == [413]
        # and the answer survives a client that goes on sending for a while
        for _ in range(20):
            s.sendall(b"x" * 65536)
        while part := s.recv(65536):
            data += part
    one_error(data, 413)


def test_methods_and_paths(patient):
    for method, path, want in (("GET", "/nowhere", 404), ("POST", "/health/live", 405),
                               ("GET", "/v1/completions", 405), ("DELETE", "/v1/models/x", 405),
                               ("GET", "/v1/models/", 404), ("GET", "/v1/../health/live", 404),
                               ("GET", "//health/live", 404), ("OPTIONS", "/v1/models", 405)):
        status, headers, data = patient.http(method, path)
        assert status == want, (method, path)
        assert json.loads(data)["error"]["code"]
        assert ("Allow" in headers) == (want == 405)
    status, headers, data = patient.http("HEAD", "/v1/models")
    assert status == 200 and data == b"" and int(headers["Content-Length"]) > 0
    model = json.loads(patient.get("/v1/models")[2])["data"][0]["id"]
    assert patient.get("/v1/models/" + "".join("%%%02x" % ord(c) for c in model))[0] == 200
    assert patient.get("/health/live?probe=1")[0] == 200


def test_request_ids(patient):
    assert patient.get("/health/live", headers={"X-Request-Id": "abc-1"})[1]["X-Request-Id"] == "abc-1"
    ids = {patient.get("/health/live")[1]["X-Request-Id"] for _ in range(5)}
    assert len(ids) == 5
    assert patient.get("/health/live", headers={"X-Request-Id": "a b\tc"})[1]["X-Request-Id"] != "a b\tc"


def test_keep_alive_and_pipelining(patient):
    data = exchange(patient, GET * 50)
    assert statuses(data) == [200] * 50
    post = body()
    with patient.connect() as s:
        s.sendall(post + GET + post + GET)
        data = b""
        while len(statuses(data)) < 4 or data.count(b"live") < 2:
            data += s.recv(65536)
    order = [m.group(1) for m in re.finditer(rb'("status":"live"|"text":"abc")', data)]
    assert order == [b'"text":"abc"', b'"status":"live"'] * 2


def test_one_byte_segments(patient):
    post = body()
    with patient.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(post)):
            s.sendall(post[i:i + 1])
        data = b""
        while b"total_tokens" not in data:
            data += s.recv(65536)
    assert statuses(data) == [200] and b'"text":"abc"' in data


def test_expect_continue(patient):
    post = body()
    head, text = post.split(b"\r\n\r\n", 1)
    with patient.connect() as s:
        s.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(text)
        data = s.recv(65536)
        assert statuses(data) == [200]


def test_http_1_0(patient):
    data = exchange(patient, b"GET /health/live HTTP/1.0\r\n\r\n", end=False)
    assert statuses(data) == [200] and b"chunked" not in data
    text = b'{"prompt":"abcdef","max_tokens":6,"stream":true}'
    data = exchange(patient, b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(text)
                    + text, end=False)
    assert b"chunked" not in data.lower() and data.endswith(b"data: [DONE]\n\n")


def test_time_outs(quick):
    def late(data):
        one_error(exchange(quick, data, end=False), 408)
    soon(3, lambda: late(b"GET /health"))
    soon(5, lambda: late(body()[:-5]))

    def idle():
        t = time.time()
        assert exchange(quick, GET, end=False).count(b"HTTP/1.1") == 1  # idle: closed without a word
        assert time.time() - t > 0.8
    soon(5, idle)


def test_dripping_does_not_help(quick):
    """The deadline is for the whole head: who sends a byte now and then for ever is not waited for."""
    def drip(s):
        s.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: ")
        s.settimeout(0.03)
        for _ in range(1000):
            s.sendall(b"a")
            try:
                return s.recv(65536)
            except TimeoutError:
                pass
        return b"no answer"
    with quick.connect() as s:
        assert statuses(soon(6, lambda: drip(s))) == [408]


def test_the_limit_of_connections(start):
    s = start("--set", "server.max_connections=4")
    held = [s.connect() for _ in range(4)]
    for c in held:
        c.sendall(GET)
        assert b"200" in c.recv(1000)
    beyond = exchange(s, GET, end=False)  # health is answered there, nothing else
    assert statuses(beyond) == [200] and b"Connection: close" in beyond
    refused = exchange(s, b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", end=False)
    error = one_error(refused, 503)
    assert error["code"] == "too_many_connections" and "server.max_connections" in error["message"]
    held[0].close()
    until(lambda: s.get("/v1/models")[0] == 200)
    for c in held[1:]:
        c.close()
    s.wait_idle(connections=1)


@unless_still
def test_few_descriptors(start):
    """At the limit of files the server neither spins nor stops serving."""
    import resource
    s = start("--set", "server.max_connections=100000",
              popen={"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))})
    held = []
    for _ in range(300):
        c = socket.socket()
        c.settimeout(2)
        c.connect(("127.0.0.1", s.port))
        held.append(c)

    def used():
        with open(f"/proc/{s.process.pid}/stat") as f:
            return sum(map(int, f.read().split()[13:15]))

    before = used()
    time.sleep(1)
    assert used() - before < 30  # hundredths of a second
    for c in held:
        c.close()
    time.sleep(0.3)
    assert s.get("/health/live")[0] == 200
    s.wait_idle(connections=1)


def test_curl(patient):
    out = subprocess.run(["curl", "-sS", "-N", patient.url + "/v1/chat/completions", "-H",
                          "Content-Type: application/json", "-d",
                          '{"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":3}'],
                         capture_output=True, timeout=30, check=True).stdout
    assert out.endswith(b"data: [DONE]\n\n")


def test_many_idle_connections(fake):
    """What an idle kept-alive connection costs: at most 2 KiB, but for sanitizers, which pad."""
    from conftest import BUILD

    def rss():
        with open(f"/proc/{fake.process.pid}/status") as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1))
    with fake.connect() as s:
        s.sendall(GET)
        s.recv(1000)
    before = rss()
    held = [fake.connect() for _ in range(800)]
    for c in held:
        c.sendall(GET)
        assert b"200" in c.recv(1000)
    grown = rss() - before
    for c in held:
        c.close()
    assert grown < 800 * (16 if "san" in str(BUILD) else 2)
