"""What a call of many prompts and choices takes is held once for the call, or is little for each choice."""
import json

import pytest

PROMPTS = 1024


def kib(server, name):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name + ":"))


def grown(server, body):
    """By how many MiB the peak of the daemon's memory grew for a request of this body."""
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as f:
        f.write("5")  # the peak begins anew
    before = kib(server, "VmRSS")
    status, _, data = server.http("POST", "/v1/completions", body, timeout=120)
    answer = json.loads(data)
    assert status == 200, answer
    return (kib(server, "VmHWM") - before) / 1024, answer


@pytest.fixture(scope="module")
def server():
    from conftest import SERVER, Server, program
    s = Server(program(SERVER), "null:context=65536,vocab=40000", ["--set", "limits.max_n=1024",
                                                        "--set", "kv.memory_bytes=1GiB"], template=False)
    s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    yield s
    s.wait_idle()
    s.stop()


def test_stops_are_held_once_for_a_call(server):
    stops = [chr(97 + i % 26) * (4095 - i) + "!" for i in range(64)]
    mib, answer = grown(server, {"prompt": ["hello"] * PROMPTS, "stop": stops, "max_tokens": 2})
    assert len(answer["choices"]) == PROMPTS
    assert mib < 150, f"grew by {mib:.0f} MiB"
