"""Devices: a device that computes beside the engine gives the bytes of the CPU, and one that is lost ends the
daemon, with a typed error for who waits."""
import json

import pytest
from conftest import tiny_model

CPU, ASYNC = ("--set", "engine.device=cpu"), ("--set", "engine.device=async")
BODIES = [{"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "seed": 3, "logprobs": 2},
          {"prompt": "abc" * 90, "max_tokens": 30, "ignore_eos": True, "seed": 4, "n": 3},
          {"prompt": "the quick brown fox", "max_tokens": 30, "temperature": 0, "presence_penalty": 1.0,
           "frequency_penalty": 0.5, "repetition_penalty": 1.2, "ignore_eos": True},
          {"prompt": "to be or not", "max_tokens": 20, "echo": True, "logprobs": 3, "seed": 5},
          {"prompt": "stop here", "max_tokens": 60, "stop": ["a", "e"], "seed": 6},
          {"prompt": "biased", "max_tokens": 20, "min_tokens": 10, "logit_bias": {"9": 30}, "seed": 7}]


@pytest.fixture(autouse=True)
def no_device_of_the_environment(monkeypatch):
    monkeypatch.delenv("CONIFER_DEVICE", raising=False)


def answers(s):
    out = []
    for body in BODIES:
        status, _, data = s.http("POST", "/v1/completions", body)
        assert status == 200, data
        out.append(json.loads(data)["choices"])
    return out


def test_the_same_bytes(start):
    want = answers(start.real(*CPU, model=tiny_model()))
    assert answers(start.real(*ASYNC, model=tiny_model())) == want
    slow = start.real(*ASYNC, "--set", "engine.async_delay_s=0.003", model=tiny_model())
    assert answers(slow) == want


def test_a_lost_device_ends_the_daemon(start):
    s = start.real(*ASYNC, "--set", "engine.async_lost_after=5", model=tiny_model())
    status, _, data = s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 100, "ignore_eos": True})
    assert status == 503 and json.loads(data)["error"]["code"] == "device_lost"
    assert s.process.wait(30) not in (0, None)
    assert "the device is lost" in s.text()
    s.stopped = True
