"""Waiting in the queue: a limit of its own, and what a client that waited too long is told."""
import json
import signal
import threading
import time
from collections import Counter

import pytest
from test_stream import post

ONE = ("--set", "scheduler.max_running=1", "--set", "scheduler.queue_timeout_s=0.5")
LONG = {"prompt": "abc", "max_tokens": 480, "ignore_eos": True, "n": 8}


@pytest.fixture
def busy(start):
    """A server whose only place is taken until `release`."""
    s = start.real(*ONE, "--set", "limits.max_n=64")
    stop = threading.Event()
    s.long = []

    def keep():
        while not stop.is_set():
            s.long.append(s.post("/v1/completions", {**LONG, "n": 64})[0])

    t = threading.Thread(target=keep)
    t.start()
    end = time.time() + 60
    while not s.metrics()["conifer_requests_running"]:
        assert time.time() < end
    def release():
        stop.set()
        t.join()

    s.release = release
    yield s
    release()


def until_refused(s, body):
    """The place is free for a moment between two of the long ones; who comes then is served."""
    for _ in range(50):
        begun = time.time()
        status, headers, data = s.http("POST", "/v1/completions", body)
        if b'"error"' in data:
            return status, headers, data, time.time() - begun
    raise AssertionError("always served")


@pytest.mark.parametrize("stream", [False, True])
def test_a_wait_has_an_end(busy, stream):
    status, headers, data, took = until_refused(
        busy, {"prompt": "abc", "max_tokens": 2, "stream": stream})
    assert b"waited 0.5 s without being started" in data and b'"queue_full"' in data, data
    assert b"(scheduler.queue_timeout_s)" in data
    assert took > 0.4
    if not stream:
        assert status == 429 and int(headers["Retry-After"]) >= 1


def test_the_shorter_of_two_deadlines(busy):
    status, _, data, _ = until_refused(
        busy, {"prompt": "abc", "max_tokens": 2, "deadline_ms": 100})
    assert status == 504 and b'"deadline_exceeded"' in data


def test_what_was_started_is_not_timed(busy):
    """The long ones take longer than anyone may wait: the one beside them was told so."""
    until_refused(busy, {"prompt": "abc", "max_tokens": 2})
    busy.release()  # and the last long one has its answer
    assert 200 in busy.long
    assert busy.ended(2)['conifer_requests_total{result="ok"}'] >= 1


def test_of_a_burst_none_is_refused_while_places_are_free(start):
    """Four run and six wait: of twelve at once two are refused, however the daemon takes them in. In
    every other round all of them are there before it looks."""
    s = start.real("--set", "scheduler.max_running=4", "--set", "scheduler.queue_requests=6")

    def answer(c):
        data = b""
        while not (head := data.partition(b"\r\n\r\n"))[1]:
            data += c.recv(65536)
        length = int(head[0].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        data = head[2]
        while len(data) < length:
            data += c.recv(65536)
        return int(head[0].split()[1]), json.loads(data)
    for i in range(8):
        clients = [s.connect() for _ in range(12)]
        if i % 2:
            s.process.send_signal(signal.SIGSTOP)
        for k, c in enumerate(clients):
            c.sendall(post("/v1/completions", {"prompt": f"{i} {k} abc", "max_tokens": 480, "ignore_eos": True}))
        if i % 2:
            s.process.send_signal(signal.SIGCONT)
        got = [answer(c) for c in clients]
        for status, told in got:
            if status == 429:
                assert told["error"]["code"] == "queue_full"
            else:
                assert told["usage"]["completion_tokens"] == 480
        found = Counter(status for status, _ in got)
        assert found[200] >= 10 and found[200] + found[429] == 12
        for c in clients:
            c.close()
        s.wait_idle()
