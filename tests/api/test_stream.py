"""Streams on the wire: heads, heartbeats, errors, slow readers, health."""
import json
import signal
import time

import pytest
from conftest import held, quick, sse, unless_still, until
from test_http import read_all, statuses


def post(path, body):
    text = json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text)


def dechunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return out
        out, data = out + data[:n], data[n + 2:]
    return out


def stream(server, seconds=60, path="/v1/completions", **body):
    """Head and events of one stream, read until its end."""
    body = {"prompt": "abcdef", "max_tokens": 6, "stream": True, **body}
    with server.connect() as s:
        s.settimeout(seconds)
        s.sendall(post(path, body))
        data = b""
        while b"0\r\n\r\n" not in data[-5:]:
            part = s.recv(65536)
            if not part:
                break
            data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, dechunk(rest)


def test_head(fake):
    head, data = stream(fake)
    assert b"200 OK" in head and b"Content-Type: text/event-stream" in head
    assert b"X-Accel-Buffering: no" in head and b"Cache-Control: no-cache" in head
    assert b"Transfer-Encoding: chunked" in head
    events = sse(data)
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "abcdef"
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]].count("length") == 1


def test_keep_alive_after_a_stream(fake):
    with fake.connect() as s:
        for _ in range(3):
            s.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 3, "stream": True}))
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += s.recv(65536)
            assert b"[DONE]" in data


def test_head_and_heartbeats_come_early(start, go):
    s = start("--set", "server.heartbeat_s=0.4", env=held(go, CONIFER_FAKE_HOLD_MS="600000"))
    ask = post("/v1/completions", {"prompt": "abc", "max_tokens": 3, "stream": True})

    def head():
        with s.connect() as c:
            c.sendall(ask)
            data = c.recv(65536)
            assert b"200 OK" in data and b"\n\n" in data
    quick(1.3, head)
    with s.connect() as c:
        c.sendall(ask)

        def heartbeats():
            data = b""
            while data.count(b"\n: waiting\n\n") < 3:
                data += c.recv(65536)
            return data
        data = quick(2.5, heartbeats)
        assert b"data: " not in data  # the engine has said nothing so far
        go.touch()
        while b"[DONE]" not in data:
            data += c.recv(65536)
    events = sse(dechunk(data.partition(b"\r\n\r\n")[2]))
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "abc"


def test_a_refusal_has_its_status(start):
    s = start(env={"CONIFER_FAKE_QUEUE": "1", "CONIFER_FAKE_DELAY_US": "60000000"})
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 200, "stream": True}))
        assert b"200 OK" in c.recv(65536)
        for more in ({}, {"stream": True}):
            status, headers, data = s.http("POST", "/v1/completions", {"prompt": "abc", **more})
            assert status == 429 and headers["Retry-After"] == "7"  # what the runtime says
            assert json.loads(data)["error"]["code"] == "queue_full"
    assert s.metrics()['conifer_http_refused_total{status="429",code="queue_full"}'] == 2


def test_one_refused_prompt_refuses_all(start):
    """Of several prompts, the third finds the queue full: the answer has that status, streamed too,
    and the others run no further."""
    s = start(env={"CONIFER_FAKE_QUEUE": "2", "CONIFER_FAKE_DELAY_US": "60000000"})
    for stream in (False, True):
        body = {"prompt": ["abc", "abd", "abe"], "max_tokens": 400, "stream": stream}
        status, headers, data = s.http("POST", "/v1/completions", body)
        assert status == 429 and headers["Content-Type"] == "application/json"
        assert json.loads(data)["error"]["code"] == "queue_full"
        quick(2, s.wait_idle)


@pytest.mark.parametrize("stream", [False, True])
def test_refused_by_the_scheduler_before_the_head(start, stream):
    """The whole daemon: one runs, one may wait, so that most of 16 prompts are refused, after some
    were accepted. No 200 may go out before."""
    s = start.real("--set", "scheduler.max_running=1", "--set", "scheduler.queue_requests=1")
    body = {"prompt": [f"{i} prompt" for i in range(16)], "max_tokens": 200, "stream": stream,
            "ignore_eos": True}
    status, headers, data = s.http("POST", "/v1/completions", body)
    assert status == 429 and int(headers["Retry-After"]) >= 1
    assert json.loads(data)["error"]["code"] == "queue_full"
    assert b"the limit (scheduler.queue_requests) is 1" in data, data
    none = {'conifer_kv_blocks{state="filling"}': 0, 'conifer_kv_blocks{state="ready"}': 0}
    quick(5, lambda: s.wait_idle(**none))


def test_several_prompts_streamed(fake):
    """All choices come, each whole, whichever was accepted first."""
    prompts = ["abcdef", "ghijkl", "mnopqr"]
    whole = fake.post("/v1/completions", {"prompt": prompts, "max_tokens": 5})[1]
    status, _, data = fake.http("POST", "/v1/completions",
                                {"prompt": prompts, "max_tokens": 5, "stream": True})
    assert status == 200
    events = sse(data)
    assert events.pop() == "[DONE]"
    for choice in whole["choices"]:
        mine = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]


def test_error_in_the_midst(start):
    s = start(env={"CONIFER_FAKE_FAIL_AT": "3"})
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abcdef", "max_tokens": 6, "stream": True}))
        data = read_all(c)  # the connection is closed afterwards
    events = sse(dechunk(data.partition(b"\r\n\r\n")[2]))
    assert "[DONE]" not in events
    assert events[-1]["error"]["code"] == "numeric_error"
    assert sum("error" in e for e in events) == 1
    status, answer = s.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 6})
    assert status == 500 and answer["error"]["code"] == "numeric_error"
    import openai
    with pytest.raises(openai.APIError):
        for _ in s.client().completions.create(model="llama3-gqa", prompt="abcdef", max_tokens=6,
                                               stream=True):
            pass


def test_deadline(start):
    s = start(env={"CONIFER_FAKE_DELAY_US": "60000000"})
    for headers, body in (({"X-Deadline-Ms": "300"}, {}), ({}, {"deadline_ms": 300}),
                          ({"X-Deadline-Ms": "300"}, {"deadline_ms": 60000})):
        def ask(headers=headers, body=body):
            status, answer = s.post("/v1/completions", {"prompt": "abc", "max_tokens": 500, **body},
                                    headers=headers)
            assert status == 504 and answer["error"]["code"] == "deadline_exceeded"
        quick(1.3, ask)


# as much as the tiny model's window gives: megabytes
MUCH = {"prompt": "abcdef", "stream": True, "max_tokens": 500, "n": 8, "logprobs": 10}


def test_slow_reader_is_paused_then_cut(start):
    """A client that stops reading costs a bounded buffer, and is let go after the time-out."""
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=1.5")
    c = s.connect(rcvbuf=4096)
    c.sendall(post("/v1/completions", MUCH))
    quick(20, lambda: until(lambda: s.metrics()['conifer_requests_total{result="cancelled"}'] == 1))
    s.wait_idle(connections=1)
    c.close()


def test_slow_reader_who_goes_on_loses_nothing(start):
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=600")
    with s.connect(rcvbuf=4096) as c:
        c.sendall(post("/v1/completions", MUCH))
        time.sleep(1.5)
        assert s.metrics()["conifer_requests_running"] == 1  # it waits
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            part = c.recv(1 << 20)
            assert part
            data += part
    events = sse(dechunk(data.partition(b"\r\n\r\n")[2]))
    assert events[-1] == "[DONE]"
    texts = [""] * 8
    for e in events[:-1]:
        texts[e["choices"][0]["index"]] += e["choices"][0]["text"]
    for i, text in enumerate(texts):
        assert len(text) > 400 and text == ("abcdef" * 200)[i % 6:][:len(text)]


def test_others_are_not_slowed_by_one_that_does_not_read(start):
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=600",
              env={"CONIFER_FAKE_DELAY_US": "200"})
    full = [s.connect(rcvbuf=4096) for _ in range(10)]
    for c in full:
        c.sendall(post("/v1/completions", MUCH))
    until(lambda: s.metrics()["conifer_requests_running"] == len(full))
    time.sleep(0.5)

    def another():
        _, data = stream(s, max_tokens=100)
        assert sse(data)[-1] == "[DONE]"
    quick(5, another)
    assert s.metrics()["conifer_requests_running"] == len(full)  # they wait all the same
    for c in full:
        c.close()
    s.wait_idle(connections=1)


def test_large_answer_to_a_slow_reader(fake):
    """Not a stream: a long answer is written in pieces as it is read, and comes out unharmed."""
    text = "x" * 400000
    with fake.connect(rcvbuf=4096) as c:
        c.sendall(post("/tokenize", {"prompt": text, "return_token_strs": True}))
        time.sleep(0.5)
        data = b""
        while b"\r\n\r\n" not in data:
            data += c.recv(4096)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            rest += c.recv(1 << 20)
    answer = json.loads(dechunk(rest))
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > 1000
    assert "".join(answer["token_strs"]) == text


def test_a_client_that_reads_nothing_is_closed_and_logged(start):
    s = start("--set", "server.slow_reader_timeout_s=1")
    with s.connect(rcvbuf=4096) as c:
        c.sendall(post("/tokenize", {"prompt": "x" * 400000, "return_token_strs": True}))
        until(lambda: "connections closed because their clients read less than 1024 bytes a second: 1 "
                      "(server.slow_reader_timeout_s)" in s.text(), 30)
    s.wait_idle(connections=1)


def test_ready_allows_long_steps(start, go):
    """A step that may take long is no standstill: what is stuck is the runtime's to say."""
    s = start(env=held(go, CONIFER_FAKE_STALL_MS="600000", CONIFER_FAKE_STUCK_MS="600000"))
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 2}))
        until(lambda: s.metrics()["conifer_requests_running"])
        end = time.time() + 3
        while time.time() < end:
            assert s.get("/health/ready")[0] == 200
            time.sleep(0.05)
        go.touch()
        assert statuses(c.recv(65536)) == [200]
    assert "stuck" not in s.text()


@unless_still
def test_ready_follows_progress(start, go):
    go.unlink(missing_ok=True)  # of a try in which the machine stood still
    s = start(env=held(go, CONIFER_FAKE_STALL_MS="600000"))
    assert s.get("/health/ready")[0] == 200
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 2}))
        took = []

        def not_ready():  # asked while the engine stands still: health needs none
            began = time.time()
            status, _, data = s.get("/health/ready")
            assert s.get("/health/live")[0] == 200
            took.append(time.time() - began)
            return status == 503 and data
        assert json.loads(quick(4, lambda: until(not_ready)))["reason"] == "no progress"
        assert max(took) < 0.5
        until(lambda: "stuck: no progress for 2." in s.text(), 4)  # told by the next tick
        go.touch()
        assert statuses(c.recv(65536)) == [200]
    assert s.get("/health/ready")[0] == 200
    time.sleep(0.3)
    assert "moves again" in s.text()


def test_a_pause_of_the_process_is_nobodys_fault(start, go):
    """A machine that was put to sleep: what clients sent meanwhile came in time, and the engine, which
    could not move, is not stuck. After that it is, when it does not."""
    s = start("--set", "server.header_timeout_s=1", "--set", "server.body_grace_s=1",
              "--set", "server.body_min_rate=1000000", "--set", "server.idle_timeout_s=1",
              env=held(go, CONIFER_FAKE_STALL_MS="600000", CONIFER_FAKE_STUCK_MS="4000"))
    ask = post("/v1/completions", {"prompt": "abc", "max_tokens": 3})
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ready = live.replace(b"live", b"ready")

    def paused(seconds, clients):
        s.process.send_signal(signal.SIGSTOP)
        for c, data in clients:
            c.sendall(data)
        time.sleep(seconds)
        s.process.send_signal(signal.SIGCONT)
        return [statuses(c.recv(65536)) for c, _ in clients]

    def in_time():
        with s.connect() as head, s.connect() as body, s.connect() as idle, s.connect() as kept:
            head.sendall(live[:20])
            body.sendall(post("/tokenize", {"prompt": "abc"})[:-5])
            kept.sendall(live)
            assert statuses(kept.recv(65536)) == [200]
            return paused(2, [(head, live[20:]), (body, post("/tokenize", {"prompt": "abc"})[-5:]),
                              (idle, live), (kept, live)]) == [[200]] * 4
    assert any(in_time() for _ in range(5))  # some may come too late before the pause
    with s.connect() as work:
        work.sendall(ask)
        until(lambda: s.metrics()["conifer_requests_running"])
        with s.connect() as c:
            assert paused(5, [(c, ready)]) == [[200]]
        until(lambda: s.get("/health/ready")[0] == 503)
        go.touch()
        assert statuses(work.recv(65536)) == [200]
