"""Who may do what: keys and tenants, the route matrix, Host and Origin without keys."""
import hashlib
import json
import pathlib
import re
import subprocess

import openai
import pytest
from conftest import held, quick, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALPHA, BETA = "cnf_" + "a" * 43, "cnf_" + "b" * 43


def config(extra=""):
    out = ["tenants:"]
    for name, key in (("alpha", ALPHA), ("beta", BETA)):
        out += [f"  - name: {name}", "    keys:",
                f"      - sha256:{hashlib.sha256(key.encode()).hexdigest()}"]
    return "\n".join(out) + "\n" + extra


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed():
    from conftest import FAKE, Server, program, tiny_model
    s = Server(program(FAKE), tiny_model(), config=config())
    yield s
    s.stop()


def routes():
    text = (ROOT / "server/routes.def").read_text()
    found = re.findall(r'^ROUTE\((\w+), "([^"]+)", \w+, (\w+)\)', text, re.M)
    assert len(found) >= 11
    return found


@pytest.mark.parametrize("method,path,auth", routes())
def test_route_matrix(keyed, method, path, auth):
    path = path.replace("*", "x")
    body = {} if method == "POST" else None
    for headers in ({}, bearer("cnf_" + "x" * 43), bearer(""), {"Authorization": "Basic YTpi"},
                    {"x-api-key": "nonsense"}, bearer(ALPHA + "x"), bearer(ALPHA[:-1]),
                    {**bearer(ALPHA), "x-api-key": BETA}):
        status, got, data = keyed.http(method, path, body, headers)
        if auth == "OPEN":
            assert status == 200
            continue
        assert status == 401, (headers, status)
        assert json.loads(data)["error"]["code"] == "invalid_api_key"
        assert got["WWW-Authenticate"] == "Bearer"
    for headers in (bearer(ALPHA), bearer(BETA), {"x-api-key": BETA}, {"Authorization": "bearer " + BETA},
                    {**bearer(ALPHA), "x-api-key": ALPHA}):
        assert keyed.http(method, path, body, headers)[0] != 401


def test_unknown_paths_are_401_first(keyed):
    for path in ("/nowhere", "/", "/v1", "/admin", "/metrics/", "/health/", "/health/live/"):
        assert keyed.get(path)[0] == 401
        assert keyed.get(path, headers=bearer(ALPHA))[0] == 404
    assert keyed.http("DELETE", "/v1/models")[0] == 401


def test_unknown_paths_say_what_is_served(fake):
    for path, use in (("/v1/responses", "POST /v1/chat/completions"), ("/v1/responses/r1", "POST /v1/chat/completions"),
                      ("/v1/messages", "POST /v1/chat/completions"), ("/api/tags", "GET /v1/models"),
                      ("/chat/completions", "POST /v1/chat/completions"), ("/models", "GET /v1/models"),
                      ("/v1/v1/models", "GET /v1/models"), ("/v1/tokenize", "POST /tokenize"),
                      ("/v1/models/", "GET /v1/models"), ("/v1/chat/completions//?a=b", "POST /v1/chat/completions"),
                      ("/api/tags/", "GET /v1/models"), ("/api/embed//", "POST /v1/embeddings"),
                      ("/health/", "GET /health"), ("/health/x", "GET /health/live or GET /health/ready")):
        for method, body in (("POST", {}), ("GET", None)):
            status, head, data = fake.http(method, path, body)
            e = json.loads(data)["error"]
            assert status == 404 and head["Content-Type"] == "application/json", path
            assert e["type"] == "invalid_request_error" and e["code"] == "not_found" and e["param"] is None
            assert e["message"].endswith(f"use {use}"), (path, e)
    text = (ROOT / "server/routes.def").read_text()
    every = [f"{m} {p}" for m, p in re.findall(r'^ROUTE\((\w+), "([^"]+)"', text, re.M)]
    for path in ("/", "/index.html", "/v1", "/v1/audio/speech", "/" + "v1/" * 40, "/v1/", "//"):
        status, head, data = fake.get(path)
        message = json.loads(data)["error"]["message"]
        assert status == 404 and message == "no such path; there are " + ", ".join(every), path
    with pytest.raises(openai.NotFoundError, match="use POST /v1/chat/completions"):
        fake.client().responses.create(model="x", input="y")


def test_refused_before_the_body(keyed):
    with keyed.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_client(keyed):
    keyed.client(ALPHA).models.list()
    with pytest.raises(openai.AuthenticationError) as e:
        keyed.client("cnf_wrong").models.list()
    assert e.value.code == "invalid_api_key"


def test_no_key_in_log_or_answers(keyed):
    secret = "cnf_" + "s3cret" * 7 + "q"
    for path in ("/v1/models", "/nowhere"):
        assert secret.encode() not in keyed.get(path, headers=bearer(secret))[2]
    keyed.post("/v1/completions", {"prompt": "the canary sings"}, headers=bearer(ALPHA))
    assert secret not in keyed.text() and ALPHA not in keyed.text()
    assert "canary" not in keyed.text()


def test_hosts_do_not_matter_with_keys(keyed):
    assert keyed.get("/v1/models", headers={**bearer(ALPHA), "Host": "example.com"})[0] == 200


@pytest.mark.parametrize("host,want", [
    ("localhost", 200), ("localhost:8080", 200), ("127.0.0.1", 200), ("127.0.0.1:1", 200),
    ("[::1]:80", 200), ("LOCALHOST", 200), ("127.1.2.3", 200), ("evil.example", 403),
    ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403), ("10.0.0.1", 403),
    ("box.lan", 403)])
def test_host_without_keys(fake, host, want):
    assert fake.get("/v1/models", headers={"Host": host})[0] == want


@pytest.mark.parametrize("origin,want", [
    ("http://localhost:3000", 200), ("http://127.0.0.1", 200), ("https://[::1]:8443", 200),
    ("http://evil.example", 403), ("null", 403), ("http://localhost.evil.example", 403),
    ("http://localhost@evil.example", 403), ("file://", 403)])
def test_origin_without_keys(fake, origin, want):
    assert fake.get("/v1/models", headers={"Origin": origin})[0] == want
    assert fake.http("POST", "/tokenize", {"prompt": "x"}, {"Origin": origin})[0] == want


def test_no_cors(fake):
    """A page of another origin, were it a neighbour on this machine, may not read or preflight."""
    origin = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    status, headers, _ = fake.http("OPTIONS", "/v1/chat/completions", None, origin)
    assert status == 405 and headers["Allow"] == "POST"
    for h in (headers, fake.get("/v1/models", headers=origin)[1]):
        assert not [k for k in h if k.lower().startswith("access-control-")]


def test_allowed_hosts(start):
    s = start("--set", "server.allowed_hosts=box.lan")
    assert s.get("/v1/models", headers={"Host": "BOX.lan:80"})[0] == 200
    assert s.get("/v1/models", headers={"Host": "other.lan"})[0] == 403
    assert s.get("/health/live", headers={"Host": "other.lan"})[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_can_reach_it_only_with_keys(host):
    from conftest import FAKE, program, tiny_model
    out = subprocess.run([program(FAKE), "--model", tiny_model(), "--host", host, "--port", "0"],
                         capture_output=True, timeout=30, check=False)
    assert out.returncode != 0 and b"key" in out.stderr


def test_others_can_reach_it_with_keys(start):
    s = start("--host", "0.0.0.0", config=config())
    assert s.get("/v1/models", headers=bearer(ALPHA))[0] == 200
    assert s.get("/v1/models")[0] == 401


def test_limit_of_a_tenant(start, go):
    import concurrent.futures
    from collections import Counter
    text = config().replace("  - name: beta", "    max_concurrency: 2\n    max_queued: 1\n  - name: beta")
    s = start(config=text, env=held(go, CONIFER_FAKE_DELAY_US="600000000"))
    refused = 'conifer_http_refused_total{status="429",code="rate_limit_exceeded"}'
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        def one(_):
            return s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 10},
                          bearer(ALPHA))
        asked = [pool.submit(one, i) for i in range(8)]
        until(lambda: s.metrics(bearer(ALPHA)).get(refused) == 5)
        go.touch()
        got = [x.result() for x in asked]
    assert Counter(x[0] for x in got) == {200: 3, 429: 5}
    for status, headers, data in got:
        if status == 429:
            assert int(headers["Retry-After"]) >= 1
            error = json.loads(data)["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert error["message"] == ("this tenant's limit of 3 requests at once is reached: "
                                        "max_concurrency is 2 and max_queued 1")
    assert s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 1}, bearer(ALPHA))[0] == 200


def test_more_prompts_than_a_tenant_may_have(start):
    """It could never be taken: no 429, which says to ask again."""
    text = config().replace("  - name: beta", "    max_concurrency: 2\n    max_queued: 3\n  - name: beta")
    s = start.real(model="null:", config=text)
    for n, want in ((5, 200), (6, 400)):
        status, _, data = s.http("POST", "/v1/completions", {"prompt": ["abc"] * n, "max_tokens": 2}, bearer(ALPHA))
        assert status == want, data
    error = json.loads(data)["error"]
    assert (error["code"], error["param"]) == ("limit_exceeded", "prompt")
    assert "may have 5 prompts: max_concurrency is 2 and max_queued 3, got 6" in error["message"]


def test_limit_of_a_tenant_of_the_daemon(start):
    """Two run, one waits, five are refused; who waited is answered. Where one of them asks so late that
    others are done it is served as well, and never more than two run and one waits; then another try."""
    import threading
    text = config().replace("  - name: beta", "    max_concurrency: 2\n    max_queued: 1\n  - name: beta")
    s = start.real(config=text)

    def all_at_once():
        gate = threading.Barrier(8)
        got = []

        def one(i):
            body = {"prompt": f"{i} abc", "max_tokens": 480, "ignore_eos": True, "n": 4}
            gate.wait()
            got.append(s.http("POST", "/v1/completions", body, bearer(ALPHA)))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            m = s.metrics(bearer(BETA))
            assert m["conifer_requests_running"] <= 2 and m["conifer_requests_waiting"] <= 1
        for t in threads:
            t.join()
        return got
    for _ in range(10):
        got = all_at_once()
        found = sorted(x[0] for x in got)
        assert found[:3] == [200] * 3 and set(found) <= {200, 429}
        for status, headers, data in got:
            if status == 429:
                assert int(headers["Retry-After"]) >= 1
                assert json.loads(data)["error"]["code"] == "rate_limit_exceeded"
            else:
                assert json.loads(data)["usage"]["completion_tokens"] == 4 * 480
        if found.count(200) == 3:
            break
    assert found == [200] * 3 + [429] * 5
    assert s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 1}, bearer(ALPHA))[0] == 200


def test_log_line_of_a_request(start):
    """Who, what, how it ended, how much; nothing that was said."""
    s = start.real(config=config())
    secret = "unsayable words"
    status, answer = s.post("/v1/completions", {"prompt": secret, "max_tokens": 3, "ignore_eos": True},
                            headers=bearer(BETA))
    assert status == 200
    s.post("/v1/chat/completions", {"messages": [{"role": secret}]}, headers=bearer(ALPHA))
    quick(5, lambda: until(lambda: s.text().count(" request tenant=") >= 2))
    lines = [x for x in s.text().splitlines() if " request tenant=" in x]
    used = answer["usage"]["prompt_tokens"]
    assert (f"tenant=beta endpoint=/v1/completions model=llama3-gqa status=200 finish=length "
            f"prompt_tokens={used} cached_tokens=0 completion_tokens=3 ttft_ms=") in lines[0]
    assert "tenant=alpha endpoint=/v1/chat/completions" in lines[1] and "status=400" in lines[1]
    assert "unsayable" not in s.text()


def test_tenants_share_no_cache():
    from conftest import SERVER, Server, program, tiny_model
    s = Server(program(SERVER), tiny_model(), config=config())
    try:
        body = {"messages": [{"role": "user", "content": "a secret beginning " * 12}], "max_tokens": 2}

        def cached(key):
            status, a = s.post("/v1/chat/completions", body, headers=bearer(key))
            assert status == 200
            return a["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached(ALPHA) == 0
        assert cached(ALPHA) > 0
        assert cached(BETA) == 0
        assert cached(BETA) > 0
    finally:
        s.stop()
