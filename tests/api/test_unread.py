"""Streams that nobody reads take nothing from others: each gives up its place among max_running."""
import hashlib
import json
import socket
import time

from conftest import SERVER, Server, program, sse, until
from test_stream import dechunk

NAMES = ("deaf", "idle", "third")
CONFIG = "tenants:\n" + "".join(
    f"  - name: {n}\n    keys: [sha256:{hashlib.sha256(n.encode()).hexdigest()}]\n" for n in NAMES)
UNREAD = 70


def value(s, name):
    return s.metrics({"Authorization": f"Bearer {NAMES[2]}"})[f"conifer_requests_{name}"]


def ask(s, name, body, rcvbuf=None):
    c = s.connect(rcvbuf=rcvbuf) if rcvbuf else s.connect()
    data = json.dumps(body).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
              b"Authorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
              % (name.encode(), len(data)) + data)
    return c


def read_all(c):
    data = b""
    with c:
        while more := c.recv(1 << 20):
            data += more
    return data


def test_a_third_tenant_starts_at_once():
    """Two tenants with 70 streams each that are not read; nothing else is at work."""
    s = Server(program(SERVER), "null:vocab=512,context=8192", config=CONFIG,
               args=("--set", "server.stream_buffer_bytes=8KiB", "--set", "server.slow_reader_timeout_s=600",
                     "--set", "kv.memory_bytes=256MiB"))
    try:
        long = {"prompt": "abc", "max_tokens": 5000, "stream": True, "ignore_eos": True, "logprobs": 20}
        clients = [ask(s, name, long, rcvbuf=4096) for name in NAMES[:2] for _ in range(UNREAD)]
        until(lambda: value(s, "paused") >= 64, 60)
        until(lambda: value(s, "running") == 0, 60)
        worst = 0
        for _ in range(3):
            began = time.monotonic()
            c = ask(s, NAMES[2], {"prompt": "abc", "max_tokens": 4, "stream": True})
            while b"data: {" not in c.recv(65536):
                pass
            worst = max(worst, time.monotonic() - began)
            c.close()
        assert worst < 1, worst
        whole = read_all(clients[0])  # who reads on gets all of it
        events = sse(dechunk(whole.partition(b"\r\n\r\n")[2]))
        assert events.pop() == "[DONE]"
        assert sum(len(e["choices"][0]["logprobs"]["tokens"]) for e in events if e["choices"][0]["logprobs"]) == 5000
        for c in clients[1:]:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            c.close()
        until(lambda: value(s, "paused") + value(s, "running") + value(s, "waiting") == 0)
    finally:
        s.stop()
