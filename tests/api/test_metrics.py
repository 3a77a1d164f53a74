"""/metrics: what each tenant's series say, and who may see them."""
import hashlib
import re
import time

import pytest
from conftest import SERVER, Server, program, tiny_model, until

KEYS = {name: "cnf_" + name[0] * 43 for name in ("alpha", "beta", "watcher")}


def config(**more):
    out = ["tenants:"]
    for name, key in KEYS.items():
        out += [f"  - name: {name}", f"    keys: [sha256:{hashlib.sha256(key.encode()).hexdigest()}]"]
        out += [f"    {k}: {v}" for k, v in more.get(name, {}).items()]
    return "\n".join(out) + "\n"


def bearer(name):
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def served():
    s = Server(program(SERVER), tiny_model(), config=config(watcher={"metrics": "all"}))
    yield s
    s.stop()


def settled(s, want):
    """The watcher's page once `want` holds, or as it is after a minute."""
    end = time.time() + 60
    while True:
        m = s.metrics(bearer("watcher"))
        if time.time() > end or all(m.get(k) == v for k, v in want.items()):
            return m
        time.sleep(0.05)


def of(name, tenant, labels=""):
    return f'conifer_tenant_{name}{{tenant="{tenant}"{labels}}}'


def test_each_tenant_has_its_own(served):
    prompt = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    usage = []
    for i in range(3):
        status, data = served.post("/v1/completions", {"prompt": prompt, "max_tokens": 4 + i,
                                                       "ignore_eos": True}, headers=bearer("alpha"))
        assert status == 200
        usage.append(data["usage"])
    for body in ({"prompt": "x", "max_tokens": -1}, {"prompt": "x", "n": 10000}, {"prompt": 5},
                 {"prompt": "a " * 100000}, b"{", {"prompt": "x", "model": "nope"}):
        assert served.post("/v1/completions", body, headers=bearer("beta"))[0] in (400, 404)
    assert served.http("POST", "/tokenize", {}, bearer("beta"))[0] == 400  # no request of the engine's
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    assert cached > 0
    prompts = sum(u["prompt_tokens"] for u in usage)
    want = {of("requests_total", "alpha", ',result="ok"'): 3,
            of("requests_total", "alpha", ',result="refused"'): 0,
            of("prompt_tokens_total", "alpha"): prompts,
            of("prompt_tokens_cached_total", "alpha"): cached,
            of("prompt_tokens_computed_total", "alpha"): prompts - cached,
            of("generated_tokens_total", "alpha"): sum(u["completion_tokens"] for u in usage),
            of("queue_seconds_count", "alpha"): 3,
            of("time_to_first_token_seconds_count", "alpha"): 3,
            of("inter_token_seconds_count", "alpha"): sum(u["completion_tokens"] - 1 for u in usage),
            of("running", "alpha"): 0, of("waiting", "alpha"): 0,
            of("requests_total", "beta", ',result="refused"'): 6,
            of("requests_total", "beta", ',result="ok"'): 0,
            of("prompt_tokens_total", "beta"): 0,
            'conifer_requests_total{result="refused"}': 6}
    m = settled(served, want)
    assert {k: m.get(k) for k in want} == want


def test_a_cancelled_and_a_running_one(served):
    assert any(left_in_the_midst(served) for _ in range(20))


def left_in_the_midst(served):
    """Whether one was seen running and cancelled: it may have been done before either."""
    before = served.metrics(bearer("watcher"))
    ended = [of("requests_total", "beta", f',result="{how}"') for how in ("cancelled", "ok")]
    with served.connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Authorization: Bearer " + KEYS["beta"].encode() + b"\r\nContent-Length: 73\r\n\r\n"
                  b'{"prompt": "abc", "max_tokens": 400, "ignore_eos": true, "stream": true }')
        assert b"data: " in c.recv(65536) + c.recv(65536)
        during = served.metrics(bearer("watcher"))
        assert during[of("running", "beta")] <= 1 and during[of("running", "alpha")] == 0
    until(lambda: sum(served.metrics(bearer("watcher"))[k] - before[k] for k in ended) == 1)
    m = settled(served, {of("running", "beta"): 0})
    assert m[of("running", "beta")] == 0
    assert m[of("generated_tokens_total", "beta")] > before[of("generated_tokens_total", "beta")]
    return during[of("running", "beta")] == 1 and m[ended[0]] == before[ended[0]] + 1


def test_a_key_sees_its_own_alone(served):
    for name in ("alpha", "beta"):
        text = served.get("/metrics", headers=bearer(name))[2].decode()
        assert set(re.findall(r'tenant="([^"]*)"', text)) == {name}
        assert "conifer_requests_total" in text
    text = served.get("/metrics", headers=bearer("watcher"))[2].decode()
    assert set(re.findall(r'tenant="([^"]*)"', text)) == set(KEYS)


def test_without_keys_all_is_seen(start):
    s = start.real(config="tenants:\n  - name: home\n")
    assert s.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})[0] == 200
    m = s.wait_idle(**{of("requests_total", "home", ',result="ok"'): 1})
    assert m[of("prompt_tokens_total", "home")] > 0


def test_without_tenants_there_are_no_labels(tiny):
    assert "tenant" not in tiny.get("/metrics")[2].decode()


def test_the_load_at_start_is_timed(start):
    m = start.real().metrics()
    assert m["conifer_model_load_seconds_count"] == m["conifer_model_loads_total"] == 1
    assert m["conifer_model_load_seconds_sum"] > 0


def test_turns_of_the_loop_are_measured(start):
    """CPU time, so that idle waiting does not count; the longest lies in the topmost bucket that is used."""
    s = start.real()
    before = s.metrics()
    time.sleep(0.3)
    for _ in range(20):
        assert s.get("/health/live")[0] == 200
    m = s.metrics()
    turns, took, longest = (m[f"conifer_loop_turn_{x}"] for x in ("seconds_count", "seconds_sum", "max_seconds"))
    assert turns >= before["conifer_loop_turn_seconds_count"] + 20
    assert took - before["conifer_loop_turn_seconds_sum"] < 0.2
    assert longest >= before["conifer_loop_turn_max_seconds"] > 0
    assert took / turns <= longest <= took
    buckets = {float(k.split('"')[1]): v for k, v in m.items() if k.startswith("conifer_loop_turn_seconds_bucket")}
    assert min(le for le, v in buckets.items() if v == turns) >= longest


def test_answers_by_route_and_code(start):
    """Paths of clients make no series; what is refused counts where it was sent to."""
    s = start.real()
    for method, path, body, status in (
            ("GET", "/health/live", None, 200), ("GET", "/health/live", None, 200), ("GET", "/v1/models/none", None, 404),
            ("GET", "/v1/completions", None, 405), ("POST", "/v1/completions", b"{", 400),
            ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, 200),
            ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "stream": True}, 200),
            ("GET", "/a", None, 404), ("GET", "/b", None, 404)):
        assert s.http(method, path, body)[0] == status
    m = s.metrics()
    got = {k[k.index("{"):]: v for k, v in m.items() if k.startswith("conifer_http_responses_total")}
    assert got.pop('{route="/health/ready",code="200"}', 1) and got == {
        '{route="/health/live",code="200"}': 2, '{route="/v1/models/*",code="404"}': 1,
        '{route="/v1/completions",code="405"}': 1, '{route="/v1/completions",code="400"}': 1,
        '{route="/v1/completions",code="200"}': 2, '{route="other",code="404"}': 2}
    build = [k for k in m if k.startswith("conifer_build_info")]
    assert len(build) == 1 and m[build[0]] == 1 and 'version="' in build[0]
    assert abs(m["process_start_time_seconds"] - time.time()) < 60
    assert m["process_open_fds"] > 3 and m["process_resident_memory_bytes"] > 1 << 20
    assert 0 < m["process_cpu_seconds_total"] < 60 and m["process_max_fds"] >= m["process_open_fds"]
