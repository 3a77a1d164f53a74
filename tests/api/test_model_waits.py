"""Requests whose model is being loaded: given up, timed out, kept warm, drained. The fake runtime loads
as slowly as a test needs."""
import json
import signal
import socket
import threading
import urllib.request

import pytest
from conftest import SERVER, Server, held, oracle, program, sse, until

WAITING = "conifer_requests_waiting_for_model"
BODY = {"prompt": "abc", "max_tokens": 4}
LONG = {"CONIFER_FAKE_LOAD_MS": "600000"}


def send(s, body):
    c = s.connect()
    data = json.dumps(body).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return c


def waiting(s, n):
    until(lambda: s.metrics()[WAITING] == n)


@pytest.mark.parametrize("body", [BODY, {**BODY, "stream": True}, {**BODY, "pad": "x" * 100000}])
def test_clients_leave(start, body):
    s = start(env=LONG)
    clients = [send(s, body) for _ in range(8)]
    waiting(s, 8)
    for c in clients[:7]:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()
    waiting(s, 1)
    clients[7].close()
    waiting(s, 0)
    s.wait_idle(connections=1)


def test_deadline(start):
    s = start(env=LONG)
    status, a = s.post("/v1/completions", {**BODY, "deadline_ms": 100})
    assert status == 504 and a["error"]["code"] == "deadline_exceeded"
    waiting(s, 0)


def test_stream_is_kept_warm(start, go):
    """A proxy would give up on a stream that says nothing; the answer follows in the same stream."""
    s = start("--set", "server.heartbeat_s=0.1", env=held(go, **LONG))
    request = urllib.request.Request(s.url + "/v1/completions", json.dumps({**BODY, "stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
        data = b""
        while data.count(b": ") < 2:
            data += answer.readline()
        assert b"data" not in data
        go.touch()
        data += answer.read()
    assert data.startswith(b": ") and sse(data)[-1] == "[DONE]"
    assert "".join(e["choices"][0]["text"] for e in sse(data)[:-1]) == "abca"


def test_drain_waits_for_the_load(start, go):
    s = start(env=held(go, **LONG))
    got = []
    t = threading.Thread(target=lambda: got.append(s.post("/v1/completions", BODY)))
    t.start()
    waiting(s, 1)
    s.process.send_signal(signal.SIGTERM)
    until(lambda: "draining: " in s.text())
    go.touch()
    t.join()
    assert s.stop() == 0
    assert got[0][0] == 200 and got[0][1]["choices"][0]["text"] == "abca"


@pytest.mark.parametrize("stream", [False, True])
def test_drain_has_an_end(start, stream):
    s = start("--set", "server.drain_timeout_s=0.3", env=LONG)
    c = send(s, {**BODY, "stream": stream})
    waiting(s, 1)
    s.process.send_signal(signal.SIGTERM)
    data = b""
    while more := c.recv(4096):
        data += more
    assert data.startswith(b"HTTP/1.1 503 ") and b'"shutting_down"' in data
    assert s.stop() == 0


@pytest.fixture
def pair(tmp_path):
    """A daemon with a model of text and one of embeddings."""
    minilm = oracle("real/minilm-q8_0.gguf")
    llama = oracle("models/llama3-gqa.gguf")
    s = Server(program(SERVER), None, config=f"kv:\n  memory_bytes: 64MiB\nmodels:\n"
               f"  - name: text\n    path: {llama}\n  - name: vectors\n    path: {minilm}\n")
    yield s
    s.stop()


def test_text_and_vectors(pair):
    c = pair.client()
    alone = c.completions.create(model="text", prompt="abc", max_tokens=50, temperature=0,
                                 extra_body={"ignore_eos": True}).choices[0].text
    vector = c.embeddings.create(model="vectors", input=["hello world"]).data[0].embedding
    assert len(vector) == 384
    got = []

    def stream():
        with c.completions.create(model="text", prompt="abc", max_tokens=50, temperature=0, stream=True,
                                  extra_body={"ignore_eos": True}) as chunks:
            got.append("".join(x.choices[0].text for x in chunks if x.choices))
    threads = [threading.Thread(target=stream) for _ in range(4)]
    for t in threads:
        t.start()
    for _ in range(10):
        many = c.embeddings.create(model="vectors", input=["hello world"] * 8)
        assert all(d.embedding == vector for d in many.data)
    for t in threads:
        t.join()
    assert got == [alone] * 4
    for path, model, body in (("/v1/embeddings", "text", {"input": "x"}),
                              ("/v1/completions", "vectors", {"prompt": "x"})):
        status, a = pair.post(path, {**body, "model": model})
        assert status == 400 and a["error"]["param"] == "model", a
    pair.wait_idle(**{'conifer_kv_blocks{state="ready"}': 0})


def test_fetched_while_it_runs(tmp_path):
    """A name of the list need not be there at start; once the file is, it is served."""
    llama = oracle("models/llama3-gqa.gguf")
    (tmp_path / "models").mkdir()
    s = Server(program(SERVER), None, env={"CONIFER_HOME": str(tmp_path)},
               config=f"models:\n  - name: here\n    path: {llama}\n  - name: later\n")
    try:
        later = s.client().models.retrieve("later")
        assert later.state == "failed" and "later" in later.error and str(tmp_path) not in later.error
        status, a = s.post("/v1/completions", {**BODY, "model": "later"})
        assert status == 503 and a["error"]["code"] == "not_ready" and "models folder" in a["error"]["message"]
        assert s.post("/v1/completions", {**BODY, "model": "here"})[0] == 200
        (tmp_path / "models/later.gguf").symlink_to(llama)
        until(lambda: s.post("/v1/completions", {**BODY, "model": "later"})[0] == 200)
        assert s.client().models.retrieve("later").state == "loaded"
    finally:
        s.stop()
