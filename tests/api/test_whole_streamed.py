"""An answer is the same whole and streamed, piece by piece, however it is cut; and clients who leave at any
byte of it leave nothing behind. Large answers are written by workers in pieces, small ones by the loop."""
import json
import random
import signal
import socket
import struct
import threading
import time

import pytest
from conftest import SERVER, Server, program, sse, tiny_model, until
from test_cost import sanitized
from test_stream import post


@pytest.fixture(scope="module", params=["null", "tiny"])
def served(request):
    model = "null:vocab=49152,context=32768" if request.param == "null" else tiny_model()
    s = Server(program(SERVER), model, template=request.param == "tiny")
    s.longest = 3000 if request.param == "null" else 60
    yield s
    s.wait_idle()
    s.stop()


def held_bytes(s):
    return s.metrics()['conifer_request_memory_bytes{state="held"}']


def nothing_held(s):
    """What is charged to clients is what the connection that asks takes, once the others are gone."""
    s.wait_idle(connections=1)
    until(lambda: held_bytes(s) <= 16384)


def random_body(r, longest, chat):
    n = r.choice([1, 1, 2, 5])
    body = {"n": n, "max_tokens": r.choice([1, 2, 17, 40]), "seed": r.randrange(1000),
            "temperature": r.choice([0, 0.9])}
    if chat:
        body["messages"] = [{"role": "user", "content": "ab cd " * r.choice([1, 9])}]
        if r.random() < 0.5:
            body.update(logprobs=True, top_logprobs=r.choice([0, 1, 20]))
    else:
        ids = [r.randrange(100, 250) for _ in range(r.choice([1, 20, longest]))]
        body["prompt"] = r.choice([ids, [ids, ids[:3]], "some text ", ["é€😀 x", "y"]])
        body["echo"] = r.random() < 0.5
        if r.random() < 0.6:
            body["logprobs"] = r.choice([0, 1, 20])
    if r.random() < 0.3:
        body["return_token_ids"] = True
    if r.random() < 0.3:
        body["stop"] = [r.choice("aeinst0 "), "zzzz"]
    return body


def add(into, more):
    """A chunk's part of a choice, put behind what came before: texts and lists grow, the rest is the last."""
    for key, value in more.items():
        if isinstance(value, dict):
            add(into.setdefault(key, {}) if into.get(key) is not None else into.update({key: {}}) or into[key],
                value)
        elif isinstance(value, (str, list)) and isinstance(into.get(key), type(value)) and key != "role":
            into[key] = into[key] + value
        elif value is not None or key not in into:
            into[key] = value


def joined(data):
    """The choices of a stream's bytes, and its usage."""
    events = sse(data)
    assert events[-1] == "[DONE]"
    choices, usage = {}, None
    for e in events[:-1]:
        assert "error" not in e, e
        usage = e.get("usage") or usage
        for c in e["choices"]:
            c = dict(c)
            if "delta" in c:
                c["message"] = c.pop("delta")
            add(choices.setdefault(c.pop("index"), {}), c)
    return choices, usage


def without_empty(value):
    """A whole answer says null, or nothing, where a stream has sent nothing."""
    if isinstance(value, dict):
        return {k: without_empty(v) for k, v in value.items() if v not in (None, [], "", {})}
    if isinstance(value, list):
        return [without_empty(v) for v in value]
    return value


def paths(r):
    return r.choice([("/v1/completions", False), ("/v1/chat/completions", True)])


@pytest.mark.parametrize("seed", range(3))
def test_the_same_whole_and_streamed(served, seed):
    r = random.Random(seed)
    for _ in range(12):
        path, chat = paths(r)
        if chat and served.longest == 3000:  # the null model has no template
            path, chat = "/v1/completions", False
        body = random_body(r, served.longest, chat)
        status, whole = served.post(path, body)
        assert status == 200, (body, whole)
        data = served.http("POST", path, {**body, "stream": True,
                                          "stream_options": {"include_usage": True}})[2]
        choices, usage = joined(data)
        if chat:  # a whole chat tells its prompt beside the choices
            for c in choices.values():
                assert c.pop("prompt_token_ids", None) == whole.get("prompt_token_ids"), body
        want = {c.pop("index"): without_empty(c) for c in whole["choices"]}
        assert {i: without_empty(c) for i, c in choices.items()} == want, body
        assert {k: usage[k] for k in ("prompt_tokens", "completion_tokens")} == {
            k: whole["usage"][k] for k in ("prompt_tokens", "completion_tokens")}, body


def test_ids_of_a_long_prompt(served):
    """They come in several chunks, none of them long; the role once."""
    if served.longest < 3000:
        pytest.skip("its window is short")
    ids = list(range(20000))
    body = {"prompt": ids, "max_tokens": 2, "return_token_ids": True, "stream": True, "n": 2}
    events = [e for e in sse(served.http("POST", "/v1/completions", body)[2]) if e != "[DONE]"]
    got = {0: [], 1: []}
    for e in events:
        for c in e["choices"]:
            assert len(c.get("prompt_token_ids") or []) <= 4096
            got[c["index"]] += c.get("prompt_token_ids") or []
    assert got == {0: ids, 1: ids}


def cut(s, data, after, reset):
    """Asks, reads so many bytes, and hangs up."""
    with s.connect(rcvbuf=4096) as c:
        if reset:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.sendall(data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        got = 0
        while got < after:
            part = c.recv(min(4096, after - got))
            if not part:
                break
            got += len(part)


def test_who_leaves_in_the_midst_leaves_nothing(served):
    big = {"prompt": list(range(100, 100 + min(150, served.longest))) * (served.longest // 150 or 1),
           "echo": True, "logprobs": 20, "n": 8, "max_tokens": 2, "temperature": 0}

    def some(seed):
        r = random.Random(seed)
        for _ in range(8 if sanitized() else 25):
            body = {**(big if r.random() < 0.5 else random_body(r, served.longest, False)),
                    "stream": r.random() < 0.5}
            cut(served, post("/v1/completions", body), r.choice([0, 1, 100, 5000, 300000]),
                r.random() < 0.5)

    status, before = served.post("/v1/completions", big)
    assert status == 200
    threads = [threading.Thread(target=some, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    nothing_held(served)
    assert served.post("/v1/completions", big)[1]["choices"] == before["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_being_read_ends_before_the_daemon(stream):
    """SIGTERM while a large answer is under way: its reader gets all of it, then the daemon ends."""
    s = Server(program(SERVER), "null:vocab=49152,context=32768", template=False)
    body = {"prompt": list(range(100, 5100)), "echo": True, "logprobs": 20, "n": 4, "max_tokens": 2,
            "stream": stream}
    with s.connect(rcvbuf=65536) as c:
        c.sendall(post("/v1/completions", body))
        got = c.recv(65536)
        s.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while part := c.recv(1 << 20):
            got += part
            if got.endswith(b"0\r\n\r\n"):
                break
        assert got.startswith(b"HTTP/1.1 200") and got.endswith(b"0\r\n\r\n"), got[-200:]
        assert time.monotonic() - began < 30
    s.process.wait(60)  # another signal now might find no handler any more
    s.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_there_before_its_call_was_handed_over(start, stream):
    """The engine is done with all parts while a worker has the call yet."""
    s = start(env={"CONIFER_FAKE_SUBMIT_MS": "50"})
    body = {"prompt": ["some words %d" % i for i in range(16)], "n": 8, "max_tokens": 30, "stream": stream}
    for _ in range(2):
        status, _, data = s.http("POST", "/v1/completions", body)
        assert status == 200
        if stream:
            assert len(joined(data)[0]) == 128
        else:
            assert len(json.loads(data)["choices"]) == 128
    nothing_held(s)
