"""Clients that leave: FIN and RST, streaming and not, in every phase; everything is given back."""
import os
import random
import socket
import struct
import time

import pytest
from conftest import STILLS, quick, until
from test_stream import post

LONG = {"messages": [{"role": "user", "content": "tell me " * 20}], "max_tokens": 300,
        "ignore_eos": True, "temperature": 0}


def leave(s, how):
    if how == "rst":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "half":
        s.shutdown(socket.SHUT_WR)
        return
    s.close()


def blocks(m):
    return {k: m[k] for k in m if k.startswith("conifer_kv_blocks{") and
            ("free" in k or "filling" in k or "ready" in k)}


def in_use(m):
    """Blocks that some request holds: what is cached may be taken back any time."""
    return m['conifer_kv_blocks{state="filling"}'] + m['conifer_kv_blocks{state="ready"}']


NONE_IN_USE = {f'conifer_kv_blocks{{state="{s}"}}': 0 for s in ("filling", "ready")}


@pytest.fixture(scope="module")
def slow():
    from conftest import FAKE, Server, program, tiny_model
    s = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_DELAY_US": "60000000",
                                                 "CONIFER_FAKE_HOLD_MS": "300"})
    yield s  # what is not cancelled takes hours
    s.wait_idle(connections=1)
    s.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["fin", "rst", "half"])
@pytest.mark.parametrize("phase", ["head", "worker", "waiting", "decode"])
def test_every_phase(slow, how, stream, phase):
    before = slow.metrics()
    data = post("/v1/chat/completions", {**LONG, "stream": stream})
    s = slow.connect()
    if phase == "head":
        s.sendall(data[:len(data) // 2])
    else:
        s.sendall(data)
    made = "conifer_generated_tokens_total"
    if phase == "worker":
        time.sleep(0.001)
    elif phase == "waiting":
        until(lambda: slow.metrics()["conifer_requests_running"] == 1)
    elif phase == "decode":
        until(lambda: slow.metrics()[made] > before[made])

    def left():
        leave(s, how)
        if how == "half":
            while s.recv(65536):
                pass
            s.close()
        return slow.wait_idle(connections=1)
    m = quick(3, left)
    ended = 'conifer_requests_total{result="cancelled"}'
    if phase in ("waiting", "decode"):
        assert m[ended] == before[ended] + 1
    assert m['conifer_requests_total{result="ok"}'] == before['conifer_requests_total{result="ok"}']


def test_pipelined_behind_a_stream_that_is_left(slow):
    s = slow.connect()
    data = post("/v1/chat/completions", {**LONG, "stream": True})
    s.sendall(data * 3)
    until(lambda: slow.metrics()["conifer_requests_running"] == 1)
    leave(s, "rst")
    quick(5, lambda: slow.wait_idle(connections=1))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_blocks_come_back(tiny, how, stream):
    tiny.wait_idle(connections=None)
    for wait in (0, 0.002, 0.02, 0.1, 0.3):
        s = tiny.connect()
        s.sendall(post("/v1/chat/completions", {**LONG, "stream": stream}))
        time.sleep(wait)
        leave(s, how)
    quick(10, lambda: tiny.wait_idle(**NONE_IN_USE))


PHASES = {
    # 24 long prompts before it, one of which may run: it waits
    "queued": ("--set", "scheduler.max_running=1"),
    # a row a step: its prompt of some 160 tokens takes as many steps
    "prefill": ("--set", "engine.max_batch_rows=1", "--set", "scheduler.max_running=1"),
    "decode": (),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("phase", PHASES)
def test_daemon_in_every_phase(start, phase, how, stream):
    """The whole daemon: who leaves in this phase is cancelled there, and all is as it was. A try in
    which it was over before one could look says nothing, and another one follows."""
    server = start.real(*PHASES[phase], "--set", "limits.max_n=64")
    assert any(leave_in(server, phase, how, stream, i) for i in range(20))


def leave_in(server, phase, how, stream, i):
    """Whether one left in the phase, and was cancelled then; False where it cannot be told: nobody was
    seen in it, or the machine stood still since that look."""
    before = server.wait_idle(connections=1)
    ahead = []
    if phase == "queued":
        for k in range(24):
            ahead.append(server.connect())
            ahead[-1].sendall(post("/v1/completions", {"prompt": f"{k}" + " ahead" * 60, "stream": True,
                                                       "max_tokens": 120, "ignore_eos": True}))
    s = server.connect()
    # far longer than a look, and no beginning that is cached
    s.sendall(post("/v1/completions", {"prompt": f"{i}" + " tell me" * 20, "max_tokens": 300, "seed": 1,
                                       "n": 64, "ignore_eos": True, "stream": stream}))
    looked = quick(20, lambda: wait_for_phase(server, phase, before, 1 + len(ahead)))
    leave(s, how)
    for c in ahead:
        leave(c, how)
    m = quick(10, lambda: server.wait_idle(connections=1, **NONE_IN_USE))
    still = looked and STILLS.since(looked, time.monotonic())
    cancelled, ok = (m[of] - before[of] for of in (CANCELLED, DONE))
    assert cancelled + ok == 1 + len(ahead)
    assert in_use(m) == 0 and lent(m) == lent(before)
    assert m["conifer_connections"] == before["conifer_connections"]
    assert cancelled or still or not looked
    return looked and cancelled > 0


def lent(m):
    return m['conifer_kv_blocks{state="free"}'] + m['conifer_kv_blocks{state="cached"}']


CANCELLED = 'conifer_requests_total{result="cancelled"}'
DONE = 'conifer_requests_total{result="ok"}'


def wait_for_phase(server, phase, before, n):
    """Waits until all n requests are in and one was seen in the phase, and gives when that look began;
    None when they, or the phase, were over before one could look, as on a fast machine."""
    made = "conifer_generated_tokens_total"
    end = time.time() + 60
    while time.time() < end:
        looked = time.monotonic()
        m = server.metrics()
        running, waiting = m["conifer_requests_running"], m["conifer_requests_waiting"]
        done = m[DONE] - before[DONE]
        if done == n or (phase == "prefill" and m[made] > before[made]):
            return None
        if running + waiting + done < n:
            continue
        if (waiting >= 1 if phase == "queued" else
                running == 1 and (m[made] == before[made]) == (phase == "prefill")):
            return looked
    raise AssertionError(f"never {phase}: {m}")


def test_random_aborts(start):
    """Mixed requests, each left at a random moment in a random way; then all is as it was."""
    tiny = start.real()
    n = int(os.environ.get("CONIFER_ABORTS", "10000" if os.environ.get("CONIFER_LONG") else "400"))
    rng = random.Random(1)
    tiny.post("/v1/chat/completions", {**LONG, "max_tokens": 2})
    before = tiny.wait_idle(connections=1)
    live = []
    for i in range(n):
        kind = rng.randrange(40) % 5 if i % 20 == 0 else rng.randrange(4)
        body = {"max_tokens": rng.choice([1, 8, 300]), "stream": rng.random() < 0.5,
                "ignore_eos": True, "n": rng.choice([1, 1, 3])}
        if kind < 2:
            text = f"request {rng.randrange(50)} " * rng.randrange(1, 20)
            data = post("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]})
        elif kind == 4:  # so many that a worker submits them
            data = post("/v1/completions", {**body, "n": 8, "prompt": ["a b c " * 40] * 100})
        elif kind == 2:
            data = post("/v1/completions", {**body, "prompt": ["a b c " * rng.randrange(1, 30)] * 2})
        else:
            data = post("/tokenize", {"prompt": "x" * rng.randrange(1, 100000)})
        s = tiny.connect()
        s.sendall(data[:rng.randrange(1, len(data))] if rng.random() < 0.2 else data)
        live.append((time.time() + rng.choice([0, 0, 0.001, 0.01, 0.05]), s))
        while len(live) > 24 or (live and live[0][0] < time.time()):
            _, old = live.pop(0)
            leave(old, rng.choice(["fin", "rst"]))
    for _, s in live:
        leave(s, "rst")
    m = tiny.wait_idle(connections=1, **NONE_IN_USE)
    for gauge in ("conifer_connections", "conifer_requests_running", "conifer_requests_waiting"):
        assert m[gauge] == before[gauge]
    assert in_use(m) == in_use(before) == 0 and lent(m) == lent(before)
    answer = tiny.post("/v1/chat/completions", {**LONG, "max_tokens": 5})
    assert answer[0] == 200


def test_aborts_do_not_change_others(tiny):
    body = {**LONG, "max_tokens": 60}
    alone = tiny.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    leavers = []
    for i in range(20):
        s = tiny.connect()
        s.sendall(post("/v1/chat/completions", {**LONG, "stream": True}))
        leavers.append(s)
    with tiny.connect() as c:
        c.sendall(post("/v1/chat/completions", body))
        for s in leavers:
            leave(s, "rst")
            time.sleep(0.005)
        import json
        data = b""
        while b"total_tokens" not in data:
            data += c.recv(65536)
        assert json.loads(data.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == alone
    tiny.wait_idle()
