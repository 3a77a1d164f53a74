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

    def keep():
        while not stop.is_set():
            s.post("/v1/completions", {**LONG, "n": 64})

    t = threading.Thread(target=keep)
    t.start()
    end = time.time() + 10
    while not s.metrics()["conifer_requests_running"]:
        assert time.time() < end
    s.release = stop.set
    yield s
    stop.set()
    t.join()


@pytest.mark.parametrize("stream", [False, True])
def test_a_wait_has_an_end(busy, stream):
    t = time.time()
    status, headers, data = busy.http("POST", "/v1/completions",
                                      {"prompt": "abc", "max_tokens": 2, "stream": stream})
    took = time.time() - t
    if status == 200 and not stream:
        pytest.skip("the place was free")  # between two of the long ones
    assert b"waited 0.5 s without being started" in data and b'"queue_full"' in data, data
    assert 0.4 < took < 3
    if not stream:
        assert status == 429 and int(headers["Retry-After"]) >= 1


def test_the_shorter_of_two_deadlines(busy):
    status, data = busy.post("/v1/completions", {"prompt": "abc", "max_tokens": 2, "deadline_ms": 100})
    assert status == 504 and data["error"]["code"] == "deadline_exceeded"


def test_what_was_started_is_not_timed(start):
    s = start.real("--set", "scheduler.queue_timeout_s=0.05", "--set", "limits.max_n=64")
    t = time.time()
    status, data = s.post("/v1/completions", {**LONG, "n": 64})
    assert status == 200 and data["usage"]["completion_tokens"] == 480 * 64
    assert time.time() - t > 0.1  # it took longer than it could have waited
