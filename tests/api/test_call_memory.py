"""What a call of many prompts and choices takes is held once for the call, or is little for each choice."""
import json

import pytest
from conftest import SERVER, Server, program, until

PROMPTS = 1024


def rss(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS:"))


def grown(server, body, prompts):
    """By how many MiB the daemon has grown when all prompts of a request are with the engine; then its
    client goes."""
    body = json.dumps(body).encode()
    before = rss(server)
    s = server.connect()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    try:
        def all_there():
            m = server.metrics()
            return m["conifer_requests_running"] + m["conifer_requests_waiting"] >= prompts
        until(all_there)
        return rss(server) - before
    finally:
        s.close()
        server.wait_idle()


@pytest.fixture(scope="module")
def server():
    s = Server(program(SERVER), "null:context=65536,vocab=40000", ["--set", "limits.max_n=1024"],
               template=False)
    s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    yield s
    s.stop()


def test_stops_are_held_once_for_a_call(server):
    stops = [chr(97 + i % 26) * (4095 - i) + "!" for i in range(64)]
    mib = grown(server, {"prompt": ["hello"] * PROMPTS, "stop": stops, "max_tokens": 20000,
                         "ignore_eos": True}, PROMPTS)
    assert mib < 150, f"grew by {mib:.0f} MiB"


def test_biases_and_penalties_are_little_for_each_choice(server):
    """8 prompts of 8,000 different tokens, 128 choices of each, with a penalty that counts the prompt's
    tokens, and a bias on 1,024 tokens."""
    prompts = [[(7919 * i + j * 3) % 30000 for j in range(8000)] for i in range(8)]
    bias = {str(3 * i): 1.5 for i in range(1024)}
    mib = grown(server, {"prompt": prompts, "n": 128, "max_tokens": 20000, "logit_bias": bias,
                         "repetition_penalty": 1.3, "logprobs": 1, "ignore_eos": True}, len(prompts))
    assert mib < 60, f"grew by {mib:.0f} MiB"


def held(server):
    return server.metrics()['conifer_request_memory_bytes{state="held"}']


def test_more_held_answers_than_fit_are_refused_at_the_door():
    """Each takes 512 KiB from the beginning on: none fails in the midst for want of it."""
    s = Server(program(SERVER), "null:", ["--set", "limits.max_n=1024", "--set", "server.memory_bytes=32MiB"], template=False)
    try:
        for body in {"n": 500}, {"prompt": ["x"] * 100, "n": 5}, {"n": 500, "stream": True}:
            status, a = s.post("/v1/completions", {"prompt": "x", "guided_choice": ["red"], **body})
            assert (status, a["error"]["param"]) == (413, "guided_choice"), a
            assert "500 answers" in a["error"]["message"] and "server.memory_bytes" in a["error"]["message"]
        status, a = s.post("/v1/completions", {"prompt": "x", "guided_choice": ["red"], "n": 40})
        assert status == 200 and {c["text"] for c in a["choices"]} == {"red"}
    finally:
        s.wait_idle()
        s.stop()


def test_a_held_answer_that_has_ended_gives_its_memory_back():
    s = Server(program(SERVER), "null:context=65536", ["--set", "limits.max_n=64"], template=False)
    try:
        body = {"prompt": "x", "guided_regex": "a|b{60000,}", "n": 32, "seed": 1, "temperature": 1, "max_tokens": 60000,
                "top_p": 1, "min_p": 0}
        with s.client().completions.create(model="null", stream=True, extra_body={"guided_regex": body.pop("guided_regex"), "min_p": 0},
                                           **{k: v for k, v in body.items() if k != "min_p"}) as stream:
            ended, longer = set(), set()
            for chunk in stream:
                for c in chunk.choices:
                    ended |= {c.index} if c.finish_reason else set()
                    longer |= {c.index} if len(c.text) > 0 and c.text != "a" else set()
                if len(ended) + len(longer - ended) == 32 and len(ended) >= 4:
                    break
            running = 32 - len(ended)
            until(lambda: running * 2**19 < held(s) < (running + 2) * 2**19 + 2**20)
    finally:
        s.wait_idle()
        s.stop()
