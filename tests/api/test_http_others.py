"""Where requests end, read by this server, by Python's h11 and by nginx: a corpus of malformed
requests (http_corpus.py) and mutations of it. Each may refuse what it likes; but what this server
reads as whole, no other may read as a request of another length, or as one that goes on, nor the
other way round: between two readings lies request smuggling.

CONIFER_LONG=1 runs a million mutations in place of some thousands."""
import os
import random
import re
import socket
import struct
import subprocess
import threading

import h11
import pytest
from conftest import BUILD, Nginx, program
from http_corpus import CASES, GET, HOST, OK, TE

FRAMES = BUILD / "tests/server/frame_http"
LONG = bool(os.environ.get("CONIFER_LONG"))
SEEDS = [data for _, data, _ in CASES if 0 < len(data) < 600]
GOOD = [data for _, data, want in CASES if want == OK and len(data) < 600]
BITS = [b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b"\x0b", b":", b";", b",", b"0", b"1", b"d", b"\xff",
        b"\r\n\r\n", b"0\r\n\r\n", HOST, TE, b"Content-Length: 13\r\n", b"Content-Length: 0\r\n",
        b"Connection: close\r\n", b"chunked", b"Transfer-Encoding: ", b"HTTP/1.0", b"HTTP/1.1", b"x", b"\"",
        b"Expect: 100-continue\r\n", b"Connection: keep-alive\r\n", b"GET / HTTP/1.1\r\n", b"d\r\n"]


def mutate(draw, data):
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(7)
        if kind == 0:
            data[at:at] = draw.choice(BITS)
        elif kind == 1:
            del data[at:at + draw.choice((1, 1, 2, 4, 20))]
        elif kind == 2:
            data[at:at + 1] = bytes([draw.randrange(256)])
        elif kind == 3:
            data[at:at + 1] = draw.choice(BITS)
        else:
            lines = bytes(data).split(b"\r\n")
            i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
            if kind == 4:
                lines[i], lines[j] = lines[j], lines[i]
            elif kind == 5:
                lines.insert(i, lines[j])
            else:
                other = draw.choice(SEEDS).split(b"\r\n")
                lines.insert(i, draw.choice(other))
            data = bytearray(b"\r\n".join(lines))
        if not data:
            data = bytearray(b"G")
    return bytes(data)


def conversations(n, seed):
    """The corpus, then mutations; a clean request behind each shows where it was thought to end.
    Without Expect: a refusal of that is no refusal of the framing, and each does it in its own way."""
    draw = random.Random(seed)
    fixed = SEEDS + [a + b for a in SEEDS[::7] for b in SEEDS[3::11]]
    for i in range(len(fixed) + n):
        data = fixed[i] if i < len(fixed) else mutate(draw, draw.choice(draw.choice((GOOD, GOOD, SEEDS))))
        if b"expect" not in data.lower():
            yield data + GET


def ours(batch):
    """[(requests, end)] as frame_http.c tells them."""
    text = b"".join(struct.pack("<I", len(d)) + d for d in batch) + b"\0\0\0\0"
    out = subprocess.run([program(FRAMES)], input=text, capture_output=True, check=True).stdout
    lines = out.split(b"\n")[:-1]
    assert len(lines) == len(batch)
    found = []
    for line in lines:
        frames, _, end = line.rpartition(b";")
        parts = [f.rsplit(b" ", 1) for f in frames.split(b"|")[:-1]]
        found.append(([(*head.split(b" ", 1), bytes.fromhex(body.decode())) for head, body in parts],
                      end.decode()))
    return found


def of_h11(data):
    c = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)
    c.receive_data(data)
    frames, head, body = [], None, b""
    try:
        while True:
            e = c.next_event()
            if isinstance(e, h11.Request):
                head, body = (e.method, e.target), b""
            elif isinstance(e, h11.Data):
                body += bytes(e.data)
            elif isinstance(e, h11.EndOfMessage):
                frames.append((*head, body))
                if head[0] == b"CONNECT":
                    return frames, "closed"
                c.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                c.send(h11.EndOfMessage())
                if c.our_state is not h11.DONE or c.their_state is not h11.DONE:
                    return frames, "closed"
                c.start_next_cycle()
            elif e is h11.PAUSED:
                return frames, "closed"
            else:
                return frames, "body" if c.their_state is h11.SEND_BODY else "head"
    except h11.RemoteProtocolError:
        return frames, "400"


def differ(mine, other, targets=True):
    """What is read differently, or None."""
    (a, a_end), (b, b_end) = mine, other
    for x, y in zip(a, b):
        if x[0] != y[0] or x[2] != y[2] or (targets and x[1] != y[1]):
            return f"{x} is read as {y}"
    if len(a) > len(b) and not (b_end.isdigit() or b_end == "closed"):
        return f"{a[len(b)]} is read as a request that goes on ({b_end})"
    if len(b) > len(a) and not (a_end.isdigit() or a_end == "closed"):
        return f"{b[len(a)]} of the other is taken for one that goes on ({a_end})"
    return None


def test_h11():
    todo = conversations(1000000 if LONG else 12000, 20261121)
    found, n, whole = [], 0, 0
    while batch := [d for _, d in zip(range(4000), todo)]:
        for data, mine in zip(batch, ours(batch)):
            n += 1
            whole += bool(mine[0])
            why = differ(mine, of_h11(data))
            if why:
                found.append(f"{data!r}: {why}")
    assert not found, f"{len(found)} of {n}:\n" + "\n".join(found[:20])
    assert whole > n // 8  # enough of them were read to the end to say something


# ---- nginx ----------------------------------------------------------------------------------------

class Upstream:
    """What nginx forwards, by the port of the client it came from."""

    def __init__(self):
        self.seen = {}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        data = b""
        with c:
            while True:
                while b"\r\n\r\n" not in data:
                    part = c.recv(65536)
                    if not part:
                        return
                    data += part
                head, _, data = data.partition(b"\r\n\r\n")
                found = re.search(rb"\r\ncontent-length: (\d+)", head.lower())
                length = int(found.group(1)) if found else 0
                while len(data) < length:
                    data += c.recv(65536)
                body, data = data[:length], data[length:]
                port = int(re.search(rb"\r\nx-client: (\d+)", head.lower()).group(1))
                method, target, _ = head.split(b"\r\n")[0].split(b" ", 2)
                self.seen.setdefault(port, []).append((method, target, body))
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    up = Upstream()
    front = Nginx(tmp_path_factory.mktemp("nginx"), """
        location / {
            proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header X-Client $remote_port; proxy_ignore_client_abort on;
        }
""", f"lingering_close off; upstream up {{ server 127.0.0.1:{up.port}; keepalive 8; }}")
    yield front.port, up
    front.stop()
    up.listener.close()


def of_nginx(port, up, data):
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        mine = s.getsockname()[1]
        up.seen.pop(mine, None)
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while part := s.recv(65536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    statuses = re.findall(rb"HTTP/1\.1 (\d\d\d) ", answer)
    frames = up.seen.pop(mine, [])
    if statuses and statuses[-1] >= b"400":
        return frames, statuses[-1].decode()
    closes = b"connection: close" in answer.lower() or b"HTTP/1.1" not in answer and answer
    return frames, "closed" if closes else "open"


def test_nginx(nginx):
    port, up = nginx
    batch = [d for d in conversations(20000 if LONG else 1200, 7) if b"Upgrade" not in d]
    found, whole = [], 0
    for data, mine in zip(batch, ours(batch)):
        other = of_nginx(port, up, data)
        whole += bool(mine[0] and other[0])
        why = differ(mine, other, targets=False)
        if why:
            found.append(f"{data!r}: {why}")
    assert not found, f"{len(found)} of {len(batch)}:\n" + "\n".join(found[:20])
    assert whole > len(batch) // 8
