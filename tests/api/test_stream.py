"""Streams on the wire: heads, heartbeats, errors, slow readers, health."""
import json
import time

import pytest
from conftest import sse
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


def stream(server, seconds=20, path="/v1/completions", **body):
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


@pytest.mark.alone
def test_head_and_heartbeats_come_early(start):
    s = start("--set", "server.heartbeat_s=0.4", env={"CONIFER_FAKE_HOLD_MS": "2500"})
    with s.connect() as c:
        t = time.time()
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 3, "stream": True}))
        data = c.recv(65536)
        assert time.time() - t < 1.3 and b"200 OK" in data and b"\n\n" in data
        while b"data: " not in data:
            data += c.recv(65536)
        assert time.time() - t > 2.3
        assert data.count(b"\n: waiting\n\n") >= 3
        while b"[DONE]" not in data:
            data += c.recv(65536)


def test_a_refusal_has_its_status(start):
    s = start(env={"CONIFER_FAKE_QUEUE": "1", "CONIFER_FAKE_DELAY_US": "20000"})
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
    s = start(env={"CONIFER_FAKE_QUEUE": "2", "CONIFER_FAKE_DELAY_US": "20000"})
    for stream in (False, True):
        body = {"prompt": ["abc", "abd", "abe"], "max_tokens": 400, "stream": stream}
        status, headers, data = s.http("POST", "/v1/completions", body)
        assert status == 429 and headers["Content-Type"] == "application/json"
        assert json.loads(data)["error"]["code"] == "queue_full"
        s.wait_idle(seconds=2)


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
    m = s.wait_idle(seconds=5)
    assert m['conifer_kv_blocks{state="filling"}'] + m['conifer_kv_blocks{state="ready"}'] == 0


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
    s = start(env={"CONIFER_FAKE_DELAY_US": "20000"})
    t = time.time()
    for headers, body in (({"X-Deadline-Ms": "300"}, {}), ({}, {"deadline_ms": 300}),
                          ({"X-Deadline-Ms": "300"}, {"deadline_ms": 60000})):
        status, answer = s.post("/v1/completions", {"prompt": "abc", "max_tokens": 500, **body},
                                headers=headers)
        assert status == 504 and answer["error"]["code"] == "deadline_exceeded"
    assert time.time() - t < 4


# as much as the tiny model's window gives: megabytes
MUCH = {"prompt": "abcdef", "stream": True, "max_tokens": 500, "n": 8, "logprobs": 10}


def test_slow_reader_is_paused_then_cut(start):
    """A client that stops reading costs a bounded buffer, and is let go after the time-out."""
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=1.5")
    c = s.connect(rcvbuf=4096)
    c.sendall(post("/v1/completions", MUCH))
    end = time.time() + 20
    while time.time() < end:
        m = s.metrics()
        if m['conifer_requests_total{result="cancelled"}'] == 1:
            break
        time.sleep(0.1)
    assert time.time() < end
    s.wait_idle(connections=1)
    c.close()


def test_slow_reader_who_goes_on_loses_nothing(start):
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=20")
    with s.connect(rcvbuf=4096) as c:
        c.settimeout(30)
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
    s = start("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=60",
              env={"CONIFER_FAKE_DELAY_US": "200"})
    held = [s.connect(rcvbuf=4096) for _ in range(10)]
    for c in held:
        c.sendall(post("/v1/completions", MUCH))
    time.sleep(0.5)
    t = time.time()
    head, data = stream(s, max_tokens=100)
    assert sse(data)[-1] == "[DONE]" and time.time() - t < 5
    for c in held:
        c.close()
    s.wait_idle(connections=1)


def test_large_answer_to_a_slow_reader(fake):
    """Not a stream: the whole answer waits in the server's buffer and comes out unharmed."""
    text = "x" * 400000
    with fake.connect(rcvbuf=4096) as c:
        c.sendall(post("/tokenize", {"prompt": text, "return_token_strs": True}))
        time.sleep(0.5)
        data = b""
        c.settimeout(30)
        while b"\r\n\r\n" not in data:
            data += c.recv(4096)
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(rest) < length:
            rest += c.recv(1 << 20)
    assert json.loads(rest)["count"] > 1000


@pytest.mark.alone
def test_ready_allows_long_steps(start):
    """A step that may take long is no standstill: what is stuck is the runtime's to say."""
    s = start(env={"CONIFER_FAKE_STALL_MS": "3500", "CONIFER_FAKE_STUCK_MS": "9000"})
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 2}))
        end = time.time() + 3
        while time.time() < end:
            assert s.get("/health/ready")[0] == 200
            time.sleep(0.05)
        c.settimeout(20)
        assert statuses(c.recv(65536)) == [200]
    assert "stuck" not in s.text()


@pytest.mark.alone
def test_ready_follows_progress(start):
    s = start(env={"CONIFER_FAKE_STALL_MS": "4000"})
    assert s.get("/health/ready")[0] == 200
    with s.connect() as c:
        c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 2}))
        end = time.time() + 4
        seen = None
        while time.time() < end and seen != 503:
            t = time.time()
            seen, _, data = s.get("/health/ready")
            assert s.get("/health/live")[0] == 200
            assert time.time() - t < 0.5  # health needs no engine
            time.sleep(0.05)
        assert seen == 503 and json.loads(data)["reason"] == "no progress"
        c.settimeout(20)
        assert statuses(c.recv(65536)) == [200]
    assert s.get("/health/ready")[0] == 200
    time.sleep(0.3)
    assert "stuck: no progress for 2." in s.text() and "moves again" in s.text()
