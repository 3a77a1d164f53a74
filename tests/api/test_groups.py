"""Engine groups: each with its own threads, memory, pool and queue, in one daemon."""
import json
import re
import signal
import subprocess
import threading
import time

import pytest
from conftest import CONIFER, SERVER, Server, program, tiny_model, until

CONFIG = """
groups:
  - {{name: left, threads: 1, memory_bytes: 64MiB, kv_memory_bytes: 16MiB{left}}}
  - {{name: right, threads: 1, memory_bytes: 64MiB, kv_memory_bytes: 16MiB{right}}}
{rest}
models:
  - {{name: a, path: {tiny}, group: left, preload: true}}
  - {{name: b, path: {tiny}, group: right}}
  - {{name: long-a, path: "null:context=100000", group: left}}
  - {{name: long-b, path: "null:context=100000", group: right}}
"""


SLOW = ", device: async"  # each step takes `delay` seconds


def config(left="", right="", rest="", delay=0):
    return CONFIG.format(left=left, right=right, rest=rest + f"\nengine: {{async_delay_s: {delay}}}" * bool(delay), tiny=tiny_model())


@pytest.fixture
def serve():
    servers = []

    def begin(**more):
        s = Server(program(SERVER), None, config=config(**more))
        servers.append(s)
        return s

    yield begin
    for s in servers:
        s.stop(expect=None)


def complete(s, model, n=24, key=None, **more):
    headers = {"Authorization": "Bearer " + key} if key else None
    body = {"model": model, "prompt": [5, 9, 12, 31], "max_tokens": n, "temperature": 0, "ignore_eos": True}
    return s.post("/v1/completions", {**body, **more}, headers=headers)


def test_both_answer_alike(serve):
    """The same file in two groups, alone and both at once: the same answers; the sums are of both."""
    s = serve()
    status, a = complete(s, "a")
    assert status == 200
    want, got = a["choices"][0]["text"], []

    def ask(model):
        for _ in range(8):
            got.append(complete(s, model)[1]["choices"][0]["text"])

    threads = [threading.Thread(target=ask, args=(m,)) for m in ("a", "b", "a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 32
    m = s.ended(33)
    steps = [m[f'conifer_group_steps_total{{group="{g}"}}'] for g in ("left", "right")]
    assert all(steps) and sum(steps) == m["conifer_engine_steps_total"]
    tokens = [m[f'conifer_group_generated_tokens_total{{group="{g}"}}'] for g in ("left", "right")]
    assert tokens == [17 * 24, 16 * 24] and m["conifer_generated_tokens_total"] == 33 * 24
    kv = [m[f'conifer_group_kv_bytes{{group="{g}"}}'] for g in ("left", "right")]
    assert sum(kv) == m["conifer_kv_bytes"] and 30 << 20 < sum(kv) <= 32 << 20


def test_plan_tells_each_group(tmp_path):
    f = tmp_path / "c.yaml"
    f.write_text(config())
    out = subprocess.run([program(CONIFER), "plan", "--config", str(f)], capture_output=True, text=True,
                         timeout=60)
    assert out.returncode == 0, out.stderr
    parts = re.findall(r"^group (\S+), 1 thread\n +its part +64.0 MiB\n +KV memory +16.0 MiB +groups.kv_memory_bytes",
                       out.stdout, re.M)
    assert parts == ["left", "right"], out.stdout
    assert "a (left), " in out.stdout and "b (right), " in out.stdout
    s = Server(program(SERVER), None, config=config())
    said = s.text()
    s.stop()
    assert "KV memory 16.0 MiB holds" in said


@pytest.mark.parametrize("text,says", [
    ("groups: [{name: g}]\nmodels: [{name: a, path: 'null:', group: h}]\n", 'there is no group "h"'),
    ("groups: [{name: g}, {name: h}]\nmodels: [{name: a, path: 'null:'}]\n", 'no model is in the group "h"'),
    ("groups: [{name: g}, {name: h}]\nmodels: [{name: a, path: 'null:'}, {name: b, path: /none, group: h}]\n",
     "none of the models of the group h can be served")])
def test_refusals(tmp_path, text, says):
    f = tmp_path / "c.yaml"
    f.write_text(text)
    out = subprocess.run([program(SERVER), "--check-config", "--config", str(f)], capture_output=True,
                         text=True, timeout=60)
    assert out.returncode and says in out.stderr, out.stderr


def test_tenants_of_both(serve, tmp_path):
    """SIGHUP: a key that is gone ends its streams in both groups."""
    keys = [subprocess.run([program(CONIFER), "key", "new"], capture_output=True, text=True, timeout=60).stdout
            for _ in range(2)]
    plain = [re.search(r"cnf_\S+", k)[0] for k in keys]
    hashes = [re.search(r"sha256:[0-9a-f]{64}", k)[0] for k in keys]
    tenants = ["tenants:\n" + "".join(f'  - {{name: t{i}, keys: ["{h}"]}}\n' for i, h in enumerate(hs))
               for hs in (hashes, hashes[1:])]
    tenants[1] = tenants[1].replace("t0", "t1")
    s = serve(rest=tenants[0], left=SLOW, right=SLOW, delay=0.002)
    ends = {}

    def stream(model, key):
        sock = s.connect()
        body = json.dumps({"model": model, "prompt": "x", "max_tokens": 90000, "stream": True,
                           "ignore_eos": True})
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                     f"Connection: close\r\n\r\n{body}".encode())
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
        ends[model, key] = data
        sock.close()

    long = ("long-a", "long-b")
    threads = [threading.Thread(target=stream, args=(model, plain[0])) for model in long]
    for t in threads:
        t.start()
    until(lambda: s.metrics({"Authorization": "Bearer " + plain[0]})["conifer_requests_running"] == 2)
    (s.path / "conifer.yaml").write_text(config(rest=tenants[1], left=SLOW, right=SLOW, delay=0.002))
    s.process.send_signal(signal.SIGHUP)
    for t in threads:
        t.join(60)
    for model in long:
        assert b"key_revoked" in ends[model, plain[0]], ends
    for model in ("a", "b"):
        assert complete(s, model, 4, plain[0])[0] == 401
        assert complete(s, model, 4, plain[1])[0] == 200


def test_a_lost_device_ends_all(serve):
    """As with one group: the daemon ends by itself, whichever group's device it was."""
    s = serve(left=", device: async", right=", device: cpu", rest="engine: {async_lost_after: 20}")
    assert complete(s, "b", 200)[0] == 200
    status, answer = complete(s, "a", 200)
    assert status == 503 and answer["error"]["code"] == "device_lost", answer
    until(lambda: s.process.poll() is not None)
    assert s.process.returncode == 1 and "the device of left is lost" in s.text()


def test_a_lost_device_is_told_to_both_groups(serve):
    """The other group is inside a step of a second when the server ends."""
    s = serve(left=SLOW, right=SLOW, rest="\nengine: {async_delay_s: 1.0, async_lost_after: 4}")
    got = {}
    threads = []
    for model, wait in (("long-a", 1.5), ("long-b", 0)):
        def ask(name=model):
            got[name] = s.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 50, "ignore_eos": True})
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        time.sleep(wait)
    for t in threads:
        t.join()
    assert {k: (status, a["error"]["code"]) for k, (status, a) in got.items()} == {
        "long-a": (503, "device_lost"), "long-b": (503, "device_lost")}
    assert s.process.wait(20) != 0
