"""Answers larger than a descriptor, a buffer or a 32-bit number takes at once: they go out in chunks, as they
are read."""
import itertools
import json
import re
import time

import pytest
from conftest import SERVER, Server, program
from test_cost import sanitized
from test_stream import post

pytestmark = pytest.mark.alone
MIB = 1 << 20
KEPT = 256 * MIB  # server.memory_bytes


@pytest.fixture(scope="module")
def server():
    binary = program(SERVER)
    if sanitized():
        pytest.skip("with sanitizers this takes minutes")
    s = Server(binary, "null:vocab=49152,context=131072", template=False, args=(
        "--set", "limits.max_n=128", "--set", f"server.memory_bytes={KEPT}"))
    yield s
    s.wait_idle()
    s.stop()


class Chunks:
    """A chunked answer's body, in the order of its coming, whose framing is checked on the way."""

    def __init__(self, connection):
        self.file = connection.makefile("rb", buffering=MIB)
        self.n = self.bytes = 0
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            line = self.file.readline()
            assert line, self.head
            self.head += line

    def __iter__(self):
        while True:
            line = self.file.readline()
            assert line.endswith(b"\r\n") and line[:-2].lower() == b"%x" % int(line, 16), line
            size = int(line, 16)
            data = self.file.read(size + 2)
            assert len(data) == size + 2 and data.endswith(b"\r\n"), (size, len(data))
            if not size:
                return
            self.n += 1
            self.bytes += size
            yield memoryview(data)[:-2]


def alike(chunks, wanted):
    """That the chunks are the wanted pieces, one behind the other; gives what follows them."""
    pieces = iter(wanted)
    piece, at, rest = memoryview(next(pieces)), 0, b""
    for chunk in chunks:
        while len(chunk) and piece is not None:
            n = min(len(chunk), len(piece) - at)
            assert chunk[:n] == piece[at:at + n], (bytes(chunk[:100]), bytes(piece[at:at + 100]))
            chunk, at = chunk[n:], at + n
            if at == len(piece):
                piece, at = next(pieces, None), 0
                piece = piece and memoryview(piece)
        rest += bytes(chunk)
    assert piece is None
    return rest


def without_ids(head):
    return re.sub(rb'"id":"cmpl-[0-9a-f]{24}"|"created":[0-9]+', b"", head)


def resident(s):
    """Bytes now, and at most so far."""
    with open(f"/proc/{s.process.pid}/status") as f:
        lines = dict(line.split(":", 1) for line in f)
    return [int(lines[k].split()[0]) * 1024 for k in ("VmRSS", "VmHWM")]


def test_an_answer_of_more_than_a_gib(server):
    """800 choices, each an echo of the same 110,000 tokens with their ids: each is what one alone is. Such an
    answer was cut at 1 GiB once, in the middle of a chunk."""
    prompt, body = list(range(10000, 48000)) * 3, {"max_tokens": 0, "echo": True, "return_token_ids": True}
    prompt = prompt[:110000]
    _, _, data = server.http("POST", "/v1/completions", {**body, "prompt": prompt})
    before, choice, _ = re.fullmatch(rb'(.*"choices":\[)\{"index":0,(.*\})\],"usage":(.*)\}', data).groups()
    assert json.loads(b"{" + choice)["prompt_token_ids"] == prompt
    kept = resident(server)[0]
    with server.connect() as c:
        c.settimeout(60)
        c.sendall(post("/v1/completions", {**body, "prompt": [prompt] * 8, "n": 100}) +
                  b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began = time.monotonic()
        chunks = Chunks(c)
        assert chunks.head.startswith(b"HTTP/1.1 200 OK\r\n") and b"\r\nTransfer-Encoding: chunked\r\n" in chunks.head
        whole = iter(chunks)
        first = bytes(next(whole))
        at = first.index(b'"choices":[') + len(b'"choices":[')
        assert without_ids(first[:at]) == without_ids(before)
        rest = alike(itertools.chain([memoryview(first)[at:]], whole),
                     itertools.chain.from_iterable((b'%b{"index":%d,' % (b"," if i else b"", i), choice)
                                                   for i in range(800)))
        usage = json.loads(re.fullmatch(rb'\],"usage":(.*)\}', rest)[1])
        assert usage["prompt_tokens"] == 8 * len(prompt) and usage["completion_tokens"] == 0
        took, grew = time.monotonic() - began, resident(server)[1] - kept
        print(f"{chunks.bytes / MIB:.0f} MiB in {chunks.n} chunks, {took:.1f} s, "
              f"{grew / MIB:.0f} MiB more resident at most")
        assert chunks.bytes > 1024 * MIB
        assert chunks.file.readline() == b"HTTP/1.1 200 OK\r\n"  # of the next request
    assert grew < KEPT
    assert server.metrics()["conifer_loop_turn_max_seconds"] < 0.005
