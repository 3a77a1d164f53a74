"""Lines of the log about requests: whose id they have, what was refused, their form in JSON."""
import hashlib
import json
import re
import socket
import time

import pytest

from conftest import until
from test_auth import ALPHA, BETA, bearer, config

NULL = "null:context=4096"


def logged(s, word, count=1, seconds=60):
    """Lines about `word` (request or refused), as soon as there are so many."""
    end = time.time() + seconds
    while True:
        lines = [x for x in s.text().splitlines() if re.search(rf'server: {word} |"{word}"', x)]
        if len(lines) >= count:
            return lines
        assert time.time() < end, s.text()
        time.sleep(0.02)


def fields(line):
    return dict(re.findall(r"(\w+)=(\S*)", line))


def ask(s, headers=None, stream=False):
    status, got, _ = s.http("POST", "/v1/completions",
                            {"prompt": "abc", "max_tokens": 3, "ignore_eos": True, "stream": stream}, headers)
    assert status == 200
    return got["X-Request-Id"]


@pytest.mark.parametrize("form", ["text", "json", "journal"])
def test_id_of_a_request(start, form):
    s = start.real("--log-format", form, model=NULL)
    ids = [ask(s, {"X-Request-Id": "client:7.a_b-c"}), ask(s),
           ask(s, {"X-Request-Id": 'x status=500 id=y "'}), ask(s, {"X-Request-Id": "s1"}, stream=True)]
    assert ids[0] == "client:7.a_b-c" and ids[3] == "s1"
    assert all(re.fullmatch(r"req-[0-9a-f]{24}", x) for x in ids[1:3])
    lines = logged(s, "request", 4)
    shown = [json.loads(x)["id"] if form == "json" else fields(x)["id"] for x in lines]
    assert shown == ids
    assert all(x.startswith("<6>server: request tenant=") for x in lines) == (form == "journal")


def test_members_in_json(start):
    s = start.real("--log-format", "json", model=NULL)
    ask(s)
    s.http("POST", "/v1/completions", {"prompt": 7.5})
    s.http("GET", '/"nowhere')
    done, bad = [json.loads(x) for x in logged(s, "request", 2)]
    assert done.keys() == {"time", "level", "component", "message", "tenant", "endpoint", "model", "status",
                           "finish", "prompt_tokens", "cached_tokens", "completion_tokens", "ttft_ms",
                           "total_ms", "bytes", "method", "key", "peer", "id"}
    assert (done["message"], done["endpoint"], done["level"]) == ("request", "/v1/completions", "info")
    assert (done["status"], done["completion_tokens"], done["finish"]) == (200, 3, "length")
    assert 0 < done["ttft_ms"] <= done["total_ms"]
    assert bad["status"] == 400 and bad["ttft_ms"] is None and bad["completion_tokens"] == 0
    refused = json.loads(logged(s, "refused")[0])
    assert refused["message"] == "refused" and refused["status"] == 400


def raw(s, data):
    with s.connect() as c:
        c.sendall(data)
        while c.recv(65536):
            pass


def test_refused_requests(start):
    s = start.real("--set", "server.max_body_bytes=4096", model=NULL, config=config())
    who = bearer(ALPHA)
    asked = [
        (401, "warn", "POST", "/v1/completions", {"body": {}, "headers": {"X-Request-Id": "mine"}}),
        (401, "warn", "GET", "/nowhere", {"headers": bearer("cnf_" + "x" * 43)}),
        (404, "info", "GET", "/nowhere/a%20b?key=secret", {"headers": who}),
        (404, "info", "GET", "/v1/models/none", {"headers": who}),
        (405, "info", "GET", "/v1/completions", {"headers": who}),
        (413, "info", "POST", "/v1/completions", {"headers": who, "body": b" " * 5000}),
        (415, "info", "POST", "/v1/completions", {"headers": {**who, "Content-Type": "text/csv"}, "body": b"1"}),
    ]
    for status, _, method, path, more in asked:
        assert s.http(method, path, **more)[0] == status
    lines = logged(s, "refused", len(asked))
    assert len(lines) == len(asked)
    for line, (status, level, method, path, more) in zip(lines, asked):
        f = fields(line)
        assert f["status"] == str(status) and f" {level}" in line
        assert (f["method"], f["path"]) == (method, path.split("?")[0])
        assert re.fullmatch(r"127\.0\.0\.1:\d+", f["peer"])
        assert f["tenant"] == ("-" if status == 401 else "alpha")
        assert f["id"]
    assert fields(lines[0])["id"] == "mine" and fields(lines[0])["code"] == "invalid_api_key"
    assert "secret" not in s.text() and "xxxx" not in s.text()


def test_refused_lines_cannot_be_forged(start):
    s = start.real(model=NULL)
    assert s.http("GET", "/version", headers={"Host": "evil.example"})[0] == 403
    raw(s, b"GET /a\x1b[2J\xff\\ HTTP/1.1\r\nHost: x\r\n\r\n")
    raw(s, b"GET http://user:pass@host/ HTTP/1.1\r\nHost: x\r\n\r\n")
    raw(s, b"GET /" + b"y" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    raw(s, b"nonsense\r\n\r\n")
    lines = logged(s, "refused", 5)
    assert len(lines) == 5
    assert " warn " in lines[0] and fields(lines[0])["code"] == "forbidden"
    assert all(re.fullmatch(r"[ -~]+", x) and len(fields(x)) == 8 for x in lines), lines
    assert "pass" not in s.text()
    assert fields(lines[3])["path"] == "/" + "y" * 127
    assert [fields(x)["status"] for x in lines] == ["403", "400", "400", "404", "400"]


def test_refused_lines_are_bounded(start):
    """Whoever asks without a key cannot fill the disk: some lines of a second, and how many there were."""
    s = start.real(model=NULL, config=config("server: {failed_keys_per_minute: 0}"))
    began, n = time.time(), 3000
    one = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with s.connect() as c:
        for _ in range(n // 100):
            c.sendall(one * 100)
            got = b""
            while got.count(b'"code":"invalid_api_key"}}') < 100:
                part = c.recv(1 << 20)
                assert part, "the server closed"
                got += part
    took = time.time() - began
    end = time.time() + 60
    while True:
        told = len(logged(s, "refused"))
        left = sum(map(int, re.findall(r"server: (\d+) more requests were refused", s.text())))
        if told + left == n:
            break
        assert told + left < n and time.time() < end, (told, left)
        time.sleep(0.05)
    assert told <= 20 * (took + 2)


def test_lines_of_requests_that_came_to_nothing_are_bounded(start):
    """Wrong requests are as cheap as refused ones; those that were answered have their lines all the same."""
    s = start.real(model=NULL)
    began, n = time.time(), 600
    for _ in range(n):
        assert s.http("POST", "/v1/completions", {"prompt": "a", "max_tokens": -1})[0] == 400
    ask(s)
    took = time.time() - began
    time.sleep(1.5)
    ask(s)
    of_200 = lambda: sum("status=200" in x for x in logged(s, "request"))
    until(lambda: of_200() == 2)  # the line of the last answer follows it
    lines = logged(s, "request")
    told = sum(fields(x)["status"] == "400" for x in lines)
    assert 20 <= told <= 20 * (took + 3)
    left = sum(map(int, re.findall(r"server: (\d+) more requests failed or were given up", s.text())))
    assert told + left == n


def test_a_tenant_hides_no_other_ones_failures(start, tmp_path):
    (tmp_path / "c.yaml").write_text(config())
    s = start.real("--config", tmp_path / "c.yaml", model=NULL)

    def fail(key):
        assert s.http("POST", "/v1/completions", {"prompt": "a", "max_tokens": -1}, bearer(key))[0] == 400

    for _ in range(200):
        fail(ALPHA)
    fail(BETA)
    until(lambda: [x for x in logged(s, "request") if fields(x)["tenant"] == "beta"])
    until(lambda: re.search(r"more requests failed or were given up within a second, of tenant alpha", s.text()))


def test_a_key_in_a_path_is_not_shown(start):
    s = start.real(model=NULL)
    for path in ("/v1/models/" + ALPHA, "/" + "x" * 100 + ALPHA, "/" + ALPHA + "/" + ALPHA + "?" + ALPHA):
        assert s.http("GET", path)[0] == 404
    paths = [fields(x)["path"] for x in logged(s, "refused", 3)]
    assert paths[0] == "/v1/models/cnf_" + "*" * 43 and ALPHA[4:12] not in s.text()


def test_refused_for_a_limit(start):
    text = config().replace("  - name: alpha\n", "  - name: alpha\n    max_concurrency: 1\n    max_queued: 1\n")
    s = start.real(model="null:context=300000", config=text)
    socks = []
    body = json.dumps({"prompt": "abc", "max_tokens": 290000, "ignore_eos": True, "stream": True}).encode()
    for _ in range(2):
        c = s.connect()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + ALPHA.encode() +
                  b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        socks.append(c)
    end = time.time() + 60
    while True:
        m = s.metrics(bearer(ALPHA))
        if m['conifer_tenant_running{tenant="alpha"}'] + m['conifer_tenant_waiting{tenant="alpha"}'] == 2:
            break
        assert time.time() < end, m
    status = s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 1}, bearer(ALPHA))[0]
    for c in socks:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()
    assert status == 429
    f = fields(logged(s, "refused")[0])
    assert (f["tenant"], f["code"], f["status"]) == ("alpha", "rate_limit_exceeded", "429")


def key_id(key):
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def test_each_request_has_a_line(start):
    """Who asked with which key from where, what came of it and how much was sent; probes only where asked for."""
    s = start.real("--set", "log.level=debug", "--set", "server.trusted_proxies=127.0.0.1", model=NULL,
                   config=config())
    who = {**bearer(ALPHA), "X-Forwarded-For": "203.0.113.9, 192.0.2.77"}
    status, _, body = s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 3, "ignore_eos": True}, who)
    assert status == 200
    done = fields(logged(s, "request")[0])
    assert (done["tenant"], done["key"], done["peer"]) == ("alpha", key_id(ALPHA), "192.0.2.77")
    assert (done["method"], done["status"], int(done["bytes"])) == ("POST", "200", len(body))
    status, _, body = s.http("GET", "/v1/models", headers=who)
    assert status == 200 and s.http("GET", "/health/live")[0] == 200
    assert s.http("GET", "/nowhere", headers=who)[0] == 404
    refused = fields(logged(s, "refused")[0])
    assert (refused["tenant"], refused["key"], refused["peer"]) == ("alpha", key_id(ALPHA), "192.0.2.77")
    lines = [x for x in logged(s, "page", 2) if "/health/ready" not in x]
    models, live = [fields(x) for x in lines if "/v1/models" in x or "/health/live" in x][:2]
    if models["path"] != "/v1/models":
        models, live = live, models
    assert (models["tenant"], models["key"], models["peer"]) == ("alpha", key_id(ALPHA), "192.0.2.77")
    assert (models["status"], int(models["bytes"])) == ("200", len(body)) and float(models["total_ms"]) >= 0
    assert (live["tenant"], live["key"]) == ("-", "-") and " debug" in [x for x in lines if "/health/live" in x][0]
    assert ALPHA not in s.text() and ALPHA[4:] not in s.text()


@pytest.mark.parametrize("access, words", [("all", {"request", "page", "refused"}), ("errors", {"refused"}),
                                           ("off", set())])
def test_which_requests_have_a_line(start, access, words):
    s = start.real("--set", f"log.access={access}", model=NULL)
    ask(s)
    for path, status in (("/health/live", 200), ("/v1/models", 200), ("/nowhere", 404)):
        assert s.http("GET", path)[0] == status
    time.sleep(0.3)
    assert {w for w in ("request", "page", "refused") if re.search(f"server: {w} ", s.text())} == words
    assert "/health/live" not in s.text()
