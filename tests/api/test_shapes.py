"""Real models' shapes with random weights (tools/synthetic_gguf.py): they load, fit in the memory
they should, and serve several clients at once; each answer is the one it would be alone.

Normally with few layers and experts; CONIFER_LONG=1: cut as the tool's table says."""
import concurrent.futures
import json
import math
import os
import re
import subprocess
import sys

import pytest
from conftest import CONIFER, ROOT, SERVER, Server, program, real_model_path, sse

pytestmark = pytest.mark.real_model

LONG = bool(os.environ.get("CONIFER_LONG"))
# shape: what the short form is cut to, and what `show` has to say of it
SHAPES = {
    "qwen3-30b-a3b": (["--layers", "1", "--experts", "16"], "qwen3moe", 151936, "32 of 128, 4"),
    "granite-4.0-h-tiny": (["--layers", "6", "--experts", "12"], "granitehybrid", 100352, "12 of 128, 4"),
    "deepseek-v2-lite": (["--layers", "2", "--experts", "12"], "deepseek2", 102400, "16 of 576, 1"),
    "lfm2-1.2b": (["--layers", "3"], "lfm2", 65536, "32 of 64, 8"),
    "llama-3.2-1b": (["--layers", "2", "--type", "Q4_K_M"], "llama", 128256, "32 of 64, 8"),
}
CLIENTS = 6


@pytest.fixture(scope="module", params=sorted(SHAPES))
def shape(request, tmp_path_factory):
    """(name, file)"""
    path = tmp_path_factory.mktemp("shape") / f"{request.param}.gguf"
    cut = [] if LONG else SHAPES[request.param][0]
    subprocess.run([sys.executable, ROOT / "tools/synthetic_gguf.py", request.param, path, *cut],
                   check=True, capture_output=True)
    yield request.param, path
    path.unlink()


@pytest.fixture(scope="module")
def served(shape):
    s = Server(program(SERVER), shape[1], template=False)
    yield s
    s.wait_idle()
    s.stop()


def test_show_and_plan(shape):
    name, path = shape
    _, arch, vocabulary, heads = SHAPES[name]
    text = subprocess.run([program(CONIFER), "show", path], check=True, capture_output=True, text=True).stdout
    assert re.search(rf"^architecture +{arch}$", text, re.M), text
    assert re.search(rf"^vocabulary +{vocabulary} tokens$", text, re.M), text
    assert re.search(rf"^heads +{heads} for keys and values", text, re.M), text
    plan = [program(CONIFER), "plan", path, "--context", "2048", "--users"]
    fits = subprocess.run([*plan, "2"], capture_output=True, text=True, check=False)
    assert fits.returncode == 0, fits.stdout + fits.stderr
    too_many = subprocess.run([*plan, "100000000"], capture_output=True, text=True, check=False)
    assert too_many.returncode == 1 and "do not fit" in too_many.stdout


def status_kib(server, key):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(rf"^{key}:\s+(\d+) kB", f.read(), re.M).group(1))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_memory(shape, served):
    """Once it is loaded: the file's pages were left behind as their weights were repacked."""
    file_kib = shape[1].stat().st_size / 1024
    found = re.search(r"weights ([\d.]+) MiB", served.text())
    assert found, served.text()
    weights_kib = float(found.group(1)) * 1024
    assert status_kib(served, "RssFile") < 0.05 * file_kib + 48 * 1024
    assert status_kib(served, "VmHWM") < 1.15 * weights_kib + (0 if LONG else 96 * 1024)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_memory_of_a_small_model():
    """Where the file is small the program itself counts: its libraries, the vocabulary's tables, the
    file's pages that are being repacked. Room for other machines' libraries: 2 MiB."""
    path = real_model_path()
    s = Server(program(SERVER), path, ["--threads", "2"])  # each maps some of the file
    peak = status_kib(s, "VmHWM")
    maps = open(f"/proc/{s.process.pid}/maps").read()
    s.stop()
    assert "libcurl" not in maps  # 26 libraries with it, 4 MiB
    assert peak < 1.15 * path.stat().st_size / 1024 + 2048


def chat(server, i, stream, tokens=20):
    """(text, usage, ids) of a chat of its own."""
    body = {"messages": [{"role": "user", "content": f"hello world, question {i} about the house"}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream,
            "return_token_ids": True, "logprobs": True, "top_logprobs": 5}
    if stream:
        body["stream_options"] = {"include_usage": True}
    status, _, data = server.http("POST", "/v1/chat/completions", body, timeout=300)
    assert status == 200, data
    if not stream:
        answer = json.loads(data)
        choice = answer["choices"][0]
        return choice["message"]["content"], answer["usage"], choice["token_ids"], choice["logprobs"]["content"]
    events = sse(data)
    assert events[-1] == "[DONE]"
    text, ids, logprobs, usage = "", [], [], None
    for e in events[:-1]:
        usage = e.get("usage") or usage
        for c in e["choices"]:
            text += c["delta"].get("content") or ""
            ids += c.get("token_ids") or []
            logprobs += (c.get("logprobs") or {}).get("content") or []
    return text, usage, ids, logprobs


def test_concurrent_streams(served):
    alone = [chat(served, i, stream=False) for i in range(2)]
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda i: chat(served, i, stream=True), range(CLIENTS)))
    m = served.wait_idle()
    assert all(m[f'conifer_kv_blocks{{state="{s}"}}'] == 0 for s in ("filling", "copying", "ready"))
    for i, (text, usage, ids, logprobs) in enumerate(together):
        assert usage["completion_tokens"] == 20 == len(ids) and text
        spread = [t["logprob"] for t in logprobs]
        assert all(math.isfinite(v) and -30 < v <= 0 for v in spread), spread
        # neither one certain token nor all alike: the scales of the made-up weights are sane
        assert any(v < -0.01 for v in spread) and len({round(v, 4) for v in spread}) > 5
        if i < len(alone):
            assert (text, ids) == (alone[i][0], alone[i][2])
    # The prompt matters: to the probabilities, where two of the made-up answers are alike too.
    assert len({(text, *(t["logprob"] for t in logprobs)) for text, _, _, logprobs in together}) == CLIENTS
