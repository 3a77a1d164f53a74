"""Connections that give nothing: silent ones, those without a key, slow ones; and who answers beside
them, after how long."""
import json
import resource
import socket
import threading
import time

import pytest
from conftest import FAKE, Server, program, quick, tiny_model, until
from test_auth import ALPHA, BETA, bearer, config

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASK = {"prompt": "abc", "max_tokens": 3}


def start(extra="", **more):
    return Server(program(FAKE), tiny_model(), config=config(extra), **more)


@pytest.fixture
def keyed():
    servers = []

    def begin(extra="", **more):
        servers.append(start(extra, **more))
        return servers[-1]

    yield begin
    for s in servers:
        s.stop(expect=None)


def open_many(server, n):
    """n connections that say nothing; the server's place to take them is the kernel's until it does."""
    held = []
    for _ in range(n):
        c = socket.socket()
        c.settimeout(10)
        c.connect(("127.0.0.1", server.port))
        held.append(c)
    return held


def is_open(c):
    c.setblocking(False)
    try:
        return bool(c.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_silent_connections(keyed):
    """1,024 of them, at once and again while they are there: health and a tenant within 2 s."""
    s = keyed()
    held = open_many(s, 1024)
    for _ in range(3):
        assert quick(2, lambda: s.get("/health/live", timeout=10))[0] == 200
        assert quick(2, lambda: s.post("/v1/completions", ASK, headers=bearer(ALPHA), timeout=10))[0] == 200
        time.sleep(0.3)
    held += open_many(s, 300)
    assert quick(2, lambda: s.get("/health/ready", timeout=10))[0] == 200
    assert quick(2, lambda: s.post("/v1/completions", ASK, headers=bearer(ALPHA), timeout=10))[0] == 200
    for c in held:
        c.close()


def test_the_first_byte_has_a_deadline(keyed):
    s = keyed("server: {header_timeout_s: 1, idle_timeout_s: 60}")
    silent, served = s.connect(), s.connect()
    served.sendall(GET)
    assert b"200" in served.recv(1000)
    assert quick(4, lambda: silent.recv(1)) == b""
    assert is_open(served)  # it may be idle for longer
    served.close()
    silent.close()


def test_a_body_has_a_deadline(keyed):
    """However steadily it comes: 20 KB/s is far above the least rate."""
    s = keyed("server: {body_timeout_s: 1, body_grace_s: 0.2, body_min_rate: 1000}")
    with s.connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\nX-Api-Key: "
                  + ALPHA.encode() + b"\r\n\r\n")
        c.settimeout(0.05)

        def drip():
            for _ in range(1000):
                c.sendall(b" " * 1000)
                try:
                    return c.recv(1000)
                except TimeoutError:
                    pass
        answer = quick(4, drip)
        assert b" 408 " in answer and b"server.body_timeout_s" in answer


def error_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(body)["error"]


def test_refusals_name_the_limit(keyed):
    """Of a body, announced or in chunks, of its chunks and of the time for a head: the key, and its value."""
    s = keyed("server: {max_body_bytes: 5000}")

    def refused(*parts, server=s):
        with server.connect() as c:
            for part in parts:
                c.sendall(part)
            return error_of(c.recv(4096))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + ALPHA.encode() + b"\r\n"
    in_chunks = head + b"Transfer-Encoding: chunked\r\n\r\n"
    said = "the body is longer than 5000 bytes (server.max_body_bytes)"
    for parts in ((head + b"Content-Length: 5001\r\n\r\n",), (in_chunks, b"1389\r\n"),
                  (in_chunks, b"1388\r\n" + b" " * 5000 + b"\r\n1\r\n ")):
        status, error = refused(*parts)
        assert (status, error["code"], error["message"]) == (413, "body_too_large", said)
    status, error = refused(in_chunks, (b"1;" + b"x" * 60 + b"\r\n \r\n") * 80)
    assert status == 400 and error["message"] == "chunk extensions are longer than 4096 bytes"
    status, error = refused(in_chunks, (b"0" * 60 + b"1\r\n \r\n") * 2000)
    assert status == 413 and error["message"] == "the body's chunks take more than 75536 bytes, for 5000 at most"
    # A route without a key has a limit of its own.
    status, error = refused(b"GET /health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 4097\r\n\r\n")
    assert (status, error["message"]) == (413, "the body is longer than 4096 bytes (the limit of this route)")
    status, error = refused(b"GET /health/live HTT", server=keyed("server: {header_timeout_s: 1}"))
    assert (status, error["code"]) == (408, "request_timeout")
    assert error["message"] == "the request's head took too long to arrive (server.header_timeout_s)"


@pytest.mark.parametrize("limit", [5, 1])
def test_accept_fails(keyed, limit):
    """With no descriptor left, not even to turn a connection away: a log line a second, and the loop
    goes on for those that are connected."""
    s = keyed()
    pid = s.process.pid
    kept = s.connect()
    kept.sendall(GET)
    assert b"200" in kept.recv(1000)
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    waiting = s.connect()
    until(lambda: "accept: too many open files" in s.text())
    for _ in range(5):
        kept.sendall(GET)
        assert b"200" in kept.recv(1000)
        time.sleep(0.3)
    assert s.text().count("accept: too many open files") <= 4
    resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
    waiting.sendall(GET)
    assert b"200" in waiting.recv(1000)
    kept.close()
    waiting.close()


def test_an_address_keeps_the_newest(keyed):
    """Those of an address beyond its part go, the oldest first; who showed a key stays."""
    s = keyed("server: {max_connections_per_address: 16}")
    first = s.connect()
    first.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + ALPHA.encode() + b"\r\n\r\n")
    assert b"200" in first.recv(1000)
    old = open_many(s, 16)
    time.sleep(1.5)
    new = open_many(s, 16)
    until(lambda: not any(map(is_open, old)), 10)
    assert all(map(is_open, new)) and is_open(first)
    until(lambda: "others needed their places" in s.text())
    for c in [first] + new:
        c.close()


def test_failed_keys(keyed):
    """An address that fails too often is told to wait and loses its connection; a valid key of the
    same address is let in."""
    s = keyed("server: {failed_keys_per_minute: 5}")
    for _ in range(5):
        assert s.get("/v1/models", headers=bearer("cnf_wrong"))[0] == 401
    status, head, data = s.get("/v1/models", headers=bearer("cnf_wrong"))
    assert status == 429 and b"too_many_failed_keys" in data and b"server.failed_keys_per_minute" in data
    assert 1 <= int(head["Retry-After"]) <= 60 and head["Connection"] == "close"
    assert s.get("/v1/models", headers=bearer(ALPHA))[0] == 200
    assert s.get("/health/live")[0] == 200


def test_failed_keys_behind_a_proxy(keyed):
    """Behind a trusted proxy it is the client who fails, not the proxy."""
    s = keyed("server: {failed_keys_per_minute: 3, trusted_proxies: [127.0.0.1]}")

    def ask(client):
        return s.get("/v1/models", headers={**bearer("cnf_wrong"), "X-Forwarded-For": f"1.2.3.4, {client}"})[0]
    assert [ask("192.0.2.1") for _ in range(4)] == [401] * 3 + [429]
    assert [ask("192.0.2.2") for _ in range(3)] == [401] * 3
    for _ in range(10):  # the proxy itself
        assert s.get("/v1/models", headers=bearer("cnf_wrong"))[0] == 401


def test_no_body_without_a_key(keyed):
    """Who has no key has no memory for a body."""
    s = keyed()
    with s.connect() as c:
        c.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        assert b" 413 " in c.recv(1000)
    with s.connect() as c:
        c.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        c.sendall(b"ff0\r\n" + b"x" * 0xff0 + b"\r\n20\r\n" + b"x" * 0x20)
        assert b" 413 " in c.recv(1000)


def test_one_tenant_does_not_hold_all(keyed):
    """A tenant with as many connections as there are places, idle or with a body on its way: another
    one is served within 2 s."""
    s = keyed("server: {max_connections: 64}")
    ask = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + ALPHA.encode() + b"\r\n"
    for more in (b"\r\n", b"Content-Length: 10000\r\n\r\nx"):
        held = open_many(s, 64)
        for c in held:
            c.sendall(ask + more)
        time.sleep(0.7)
        for _ in range(3):
            assert quick(2, lambda: s.get("/version", headers=bearer(BETA), timeout=10))[0] == 200
        for c in held:
            c.close()


def test_a_burst_of_tenants(keyed):
    """Four hundred connections of one address, opened before any of them speaks, are all served."""
    s = keyed()
    held = open_many(s, 400)
    ask = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + ALPHA.encode() + b"\r\n\r\n"
    for c in held:
        c.sendall(ask)
    for c in held:
        assert b" 200 " in c.recv(1000)
        c.close()
