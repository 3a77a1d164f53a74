"""Texts of seconds of work: they run in slices, so that another tenant's request does not wait for them,
and end where their client goes."""
import hashlib
import json
import threading
import time

import pytest
from conftest import quick, unless_still

MIB = 1 << 20
KEYS = {"hostile": "cnf_" + "a" * 43, "good": "cnf_" + "b" * 43}
TEXTS = {
    "words": ("-" * MIB + " ") * 15,
    "prose": "The cat sat on the mat, and 12 of them said so. " * (15 * MIB // 48),
    "escapes": "\\u00e9\\n" * (15 * MIB // 8),
}


def config():
    tenants = "".join(f'  - name: {name}\n    keys: ["sha256:{hashlib.sha256(key.encode()).hexdigest()}"]\n'
                      for name, key in KEYS.items())
    return ("server:\n  text_workers: 2\n  max_body_bytes: 16MiB\n  memory_bytes: 2GiB\n"
            "limits:\n  max_tokenize_tokens: 16777216\ntenants:\n" + tenants)


@pytest.fixture
def server(start):
    return start.real(model="null:vocab=4000,context=4096", config=config(), template=False)


def send(server, body):
    """A /tokenize whose answer is left where it is."""
    s = server.connect()
    s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Authorization: Bearer " + KEYS["hostile"].encode() + b"\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return s


def ask(server, who="good"):
    """Seconds that one token takes."""
    began = time.monotonic()
    status, _, data = server.http("POST", "/v1/completions", {"prompt": "one", "max_tokens": 1},
                                  headers={"Authorization": f"Bearer {KEYS[who]}"})
    assert status == 200, data
    return time.monotonic() - began


@pytest.mark.alone
@pytest.mark.parametrize("kind", TEXTS)
@unless_still
def test_another_tenant_does_not_wait_for_texts(server, kind):
    ask(server)
    body = b'{"prompt": "' + TEXTS[kind].encode() + b'"}'
    sockets = []
    threads = [threading.Thread(target=lambda: sockets.append(send(server, body))) for _ in range(6)]
    for t in threads:
        t.start()
    times, end = [], time.monotonic() + 2
    while time.monotonic() < end or any(t.is_alive() for t in threads):
        times.append(ask(server))
    for t in threads:
        t.join()
    for s in sockets:
        s.close()
    assert max(times) < 0.6, sorted(times)[-5:]
    quick(1, lambda: ask(server, "hostile"))  # what it left behind holds nobody up


def test_tokens_of_tokenize_are_bounded(start):
    s = start.real("--set", "limits.max_tokenize_tokens=1000", model="null:vocab=1000", template=False)
    status, answer = s.post("/tokenize", {"prompt": "-a" * 400})
    assert status == 200 and answer["count"] == 800
    status, answer = s.post("/tokenize", {"prompt": "-a" * 600})
    assert status == 400 and answer["error"]["code"] == "limit_exceeded"
    assert "limits.max_tokenize_tokens" in answer["error"]["message"]
    status, answer = s.post("/tokenize", {"messages": [{"role": "user", "content": "-a" * 600}]})
    assert status == 400 and answer["error"]["code"] == "limit_exceeded", json.dumps(answer)
