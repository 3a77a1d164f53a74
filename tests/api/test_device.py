"""Devices: a device that computes beside the engine gives the bytes of the CPU, and one that is lost ends the
daemon, with a typed error for who waits."""
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import CONIFER, ORACLE, SERVER, TEMPLATE, Server, program, tiny_model, until

CPU, ASYNC = ("--set", "engine.device=cpu"), ("--set", "engine.device=async")
BODIES = [{"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "seed": 3, "logprobs": 2},
          {"prompt": "abc" * 90, "max_tokens": 30, "ignore_eos": True, "seed": 4, "n": 3},
          {"prompt": "the quick brown fox", "max_tokens": 30, "temperature": 0, "presence_penalty": 1.0,
           "frequency_penalty": 0.5, "repetition_penalty": 1.2, "ignore_eos": True},
          {"prompt": "to be or not", "max_tokens": 20, "echo": True, "logprobs": 3, "seed": 5},
          {"prompt": "stop here", "max_tokens": 60, "stop": ["a", "e"], "seed": 6},
          {"prompt": "biased", "max_tokens": 20, "min_tokens": 10, "logit_bias": {"9": 30}, "seed": 7}]


@pytest.fixture(autouse=True)
def no_device_of_the_environment(monkeypatch):
    monkeypatch.delenv("CONIFER_DEVICE", raising=False)


def answers(s):
    out = []
    for body in BODIES:
        status, _, data = s.http("POST", "/v1/completions", body)
        assert status == 200, data
        out.append(json.loads(data)["choices"])
    return out


def test_the_same_bytes(start):
    want = answers(start.real(*CPU, model=tiny_model()))
    assert answers(start.real(*ASYNC, model=tiny_model())) == want
    slow = start.real(*ASYNC, "--set", "engine.async_delay_s=0.003", model=tiny_model())
    assert answers(slow) == want


def test_a_lost_device_ends_the_daemon(start):
    s = start.real(*ASYNC, "--set", "engine.async_lost_after=5", model=tiny_model())
    status, _, data = s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 100, "ignore_eos": True})
    assert status == 503 and json.loads(data)["error"]["code"] == "device_lost"
    assert s.process.wait(30) not in (0, None)
    assert "the device is lost" in s.text()
    s.stopped = True


# ---- memory of its own ----------------------------------------------------------------------------

MIB = 1 << 20
FILES = [ORACLE / f"models/{name}.gguf" for name in ("llama3-gqa", "gemma3", "mamba2")]
needs_oracle = pytest.mark.skipif(not ORACLE.exists(), reason="the oracle is not here")


def told(*args):
    """What `show` or `plan` print of a model on a device, and their exit status."""
    out = subprocess.run([program(CONIFER), *args], capture_output=True, text=True, timeout=60)
    return out.returncode, out.stdout + out.stderr


@needs_oracle
def test_plans_have_the_device_s_figures():
    here = [str(FILES[0]), *ASYNC, "--set", "engine.async_memory=1GiB"]
    for command in ("plan", "show"):
        rc, text = told(command, *here)
        assert rc == 0, text
        assert re.search(r"device +1024\.0 MiB  of the device's own memory", text), text
        weights, scratch, rest = (float(re.search(rf"{what} +([\d.]+) MiB", text)[1])
                                  for what in ("weights", "scratch", "left"))
        assert abs(1024 - weights - scratch - rest) < 0.2
    memory = json.loads(told("show", "--json", *here)[1])["memory"]
    small = int((memory["weight_bytes"] + memory["scratch_bytes"]) * 0.9)
    here[-1] = f"engine.async_memory={small}"
    rc, text = told("plan", *here)
    assert rc != 0 and "than the device has" in text, text
    assert json.loads(told("show", "--json", *here)[1])["memory"]["fits"] is False
    here[-1] = f"engine.async_memory={small * 10 // 9 + 5 * memory['window_bytes'] // 2}"
    memory = json.loads(told("show", "--json", *here)[1])["memory"]
    assert memory["fits"] and memory["users"] == 2 and memory["kv_bytes"] <= 2.5 * memory["window_bytes"]


@needs_oracle
def test_a_model_larger_than_the_device_is_refused(start):
    s = start.real(*ASYNC, "--set", "engine.async_memory=256KiB", model=FILES[0], wait=False)
    assert s.process.wait(30) not in (0, None)
    assert "and the device has 256.0 KiB free of 256.0 KiB" in s.text()
    s.stopped = True


@pytest.fixture
def take_turns(tmp_path):
    """take_turns(memory, upload): a daemon with three models on such a device."""
    servers = []

    def begin(memory, upload, more=""):
        template = tmp_path / "template.jinja"
        template.write_text(TEMPLATE)
        models = "".join(f"  - {{name: {f.stem}, path: {f}, chat_template: {template}}}\n" for f in FILES)
        s = Server(program(SERVER), None, config=(
            f"engine: {{device: async, async_memory: {memory}, async_upload: {upload}, min_stay_s: 0}}\n"
            f"kv: {{memory_bytes: 8MiB}}\n{more}models:\n{models}"))
        servers.append(s)
        return s

    yield begin
    for s in servers:
        s.stop(expect=None)


def ask(s, model):
    status, _, data = s.http("POST", "/v1/completions", {"model": model, "prompt": "abc", "max_tokens": 8, "seed": 1,
                                                         "ignore_eos": True})
    assert status == 200, data
    return json.loads(data)["choices"][0]["text"]


@needs_oracle
def test_models_take_turns_in_the_device_s_memory(take_turns):
    """KV memory and one model go in, two do not; a load takes as long as its bytes take to arrive."""
    need = [sum(json.loads(told("show", "--json", str(f))[1])["memory"][k] for k in ("weight_bytes", "scratch_bytes"))
            for f in FILES]
    memory = 8 * MIB + max(need) + min(need) // 2
    s = take_turns(memory, 10 * MIB)
    first = [ask(s, f.stem) for f in FILES]
    assert [ask(s, f.stem) for f in FILES] == first
    m = s.metrics()
    assert m["conifer_model_loads_total"] == 6 and m["conifer_model_unloads_total"] == 5
    packed = sum(json.loads(told("show", "--json", str(f))[1])["memory"]["weight_bytes"] for f in FILES)
    assert m["conifer_model_load_seconds_sum"] >= 2 * packed / (10 * MIB)


@needs_oracle
def test_a_slow_upload_does_not_hold_up_the_end(take_turns):
    s = take_turns(64 * MIB, 1000, "server: {drain_timeout_s: 1}\n")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(s.post, "/v1/completions", {"model": FILES[0].stem, "prompt": "a", "max_tokens": 1})
        until(lambda: any(m.state == "loading" for m in s.client().models.list()))
        s.stop(seconds=20)
        assert answer.result(20)[0] == 503


# ---- blocks that are saved on the host ------------------------------------------------------------

def at_once(s, n):
    def one(i):
        status, _, data = s.http("POST", "/v1/completions", {
            "prompt": f"number {i} of some", "max_tokens": 200, "ignore_eos": True, "seed": i})
        assert status == 200, data
        return json.loads(data)["choices"][0]["text"]

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


@needs_oracle
@pytest.mark.parametrize("device", [CPU, ASYNC], ids=["cpu", "async"])
def test_preempted_requests_may_be_saved(start, device):
    """Whether saving pays is for the measured speeds to say (scheduler/save.c), and so for the clock: what it
    spares is held by tests/runtime/test_scarce.c, which sets these. Here the answers are the same, whatever was
    saved, and nothing of it stays."""
    memory = json.loads(told("show", "--json", str(FILES[0]))[1])["memory"]
    scarce = [*device, "--set", f"kv.memory_bytes={memory['window_bytes'] * 3 // 4}"]
    want = at_once(start.real(model=FILES[0]), 6)
    again = start.real(*scarce, model=FILES[0])
    assert at_once(again, 6) == want
    saved = start.real(*scarce, "--set", "kv.host_memory_bytes=16MiB", model=FILES[0])
    assert at_once(saved, 6) == want
    a, b = again.ended(6), saved.ended(6)
    assert a["conifer_preemptions_total"] > 0 and a["conifer_recomputed_tokens_total"] > 0
    assert a["conifer_kv_saves_total"] == a["conifer_kv_restores_total"] == 0
    assert 0 <= b["conifer_kv_restores_total"] <= b["conifer_kv_saves_total"] <= b["conifer_preemptions_total"]
    assert b["conifer_preemptions_total"] > 0 and b["conifer_kv_saved_bytes"] == 0


@needs_oracle
def test_saved_blocks_are_in_the_plan(start):
    rc, text = told("plan", str(FILES[0]), "--set", "kv.host_memory_bytes=64MiB")
    assert rc == 0 and re.search(r"saved blocks +64\.0 MiB  kv\.host_memory_bytes", text), text
    s = start.real("--set", "kv.host_memory_bytes=1000TiB", model=FILES[0], wait=False)
    assert s.process.wait(30) not in (0, None)
    assert "kv.host_memory_bytes is" in s.text() and "the machine has only" in s.text()
    s.stopped = True
