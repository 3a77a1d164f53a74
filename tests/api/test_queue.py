"""Waiting in the queue: a limit of its own, and what a client that waited too long is told."""
import threading
import time

import pytest

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
    s.release = stop.set
    yield s
    stop.set()
    t.join()


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
    busy.release()
    busy.wait_idle()
    assert busy.metrics()['conifer_requests_total{result="ok"}'] >= 1
    assert 200 in busy.long
