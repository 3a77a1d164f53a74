"""A KV pool too small for what is asked: refused with the field and the numbers, or, where nobody
asked for so much, answered with what there is room for."""
import re

import pytest
from conftest import SERVER, Server, program, tiny_model

POOL = ("--set", "kv.memory_bytes=64KiB", "--set", "engine.max_batch_rows=32")  # 128 tokens of 512 B


@pytest.fixture(scope="module", params=[None, 400], ids=["unlimited", "limits.max_tokens"])
def small(request):
    more = ("--set", f"limits.max_tokens={request.param}") if request.param else ()
    s = Server(program(SERVER), tiny_model(), (*POOL, *more))
    yield s
    s.wait_idle()
    s.stop()


HI = {"messages": [{"role": "user", "content": "hello"}]}


def refused(s, path, body):
    status, data = s.post(path, body)
    assert status == 400, data
    error = data["error"]
    assert error["code"] == "request_too_large" and error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_output_than_memory(small, field, stream):
    prompt = list(range(5, 25))
    body = {"prompt": prompt, "ignore_eos": True, "stream": stream}
    if field == "max_completion_tokens":
        body = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True, "stream": stream}
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    error = refused(small, path, {**body, field: 300})
    assert error["param"] == field
    found = re.search(field + r": 300 tokens after a prompt of (\d+) are more than the KV memory of 0\.1 MiB "
                      r"holds .*, (\d+) tokens: at most (\d+) can be asked for", error["message"])
    assert found, error
    n, fit, most = map(int, found.groups())
    assert fit == 128 and most == fit - n + 1
    if "prompt" in body:
        assert n == len(prompt)
    # what the message offers is there, and one more is not
    assert refused(small, path, {**body, field: most + 1})["param"] == field
    status, data = small.post(path, {**body, field: most, "stream": False})
    assert status == 200 and data["usage"]["completion_tokens"] == most
    assert data["choices"][0]["finish_reason"] == "length"


def test_a_prompt_beyond_memory(small):
    error = refused(small, "/v1/completions", {"prompt": [5] * 129, "max_tokens": 1})
    assert error["param"] == "prompt"
    assert "the prompt has 129 tokens" in error["message"] and "128 tokens" in error["message"]
    error = refused(small, "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": "one two three " * 25}]})
    assert error["param"] == "messages"
    status, data = small.post("/v1/completions", {"prompt": [5] * 128, "max_tokens": 1})
    assert status == 200 and data["usage"]["completion_tokens"] == 1


def test_nothing_asked_for_is_what_there_is_room_for(small):
    """limits.max_tokens is a bound, no wish: it gives way to memory as it does to the window."""
    status, data = small.post("/v1/chat/completions", {**HI, "ignore_eos": True})
    assert status == 200, data
    assert data["usage"]["completion_tokens"] == 128 - data["usage"]["prompt_tokens"] + 1
    status, data = small.post("/v1/completions", {"prompt": [5] * 120, "ignore_eos": True})
    assert status == 200 and data["usage"]["completion_tokens"] == 9
    assert data["choices"][0]["finish_reason"] == "length"


def test_a_limit_below_memory(start):
    s = start.real(*POOL, "--set", "limits.max_tokens=30")
    status, data = s.post("/v1/chat/completions", {**HI, "ignore_eos": True})
    assert status == 200 and data["usage"]["completion_tokens"] == 30
    status, data = s.post("/v1/completions", {"prompt": [5] * 20, "max_tokens": 31})
    assert status == 400 and data["error"]["param"] == "max_tokens" and "30" in data["error"]["message"]
