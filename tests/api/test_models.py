"""Several models in one daemon: whose are loaded when, what a client sees of it."""
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import openai
import pytest

from conftest import CONIFER, GROUPS, SERVER, TEMPLATE, UNUSED, Server, oracle, program, until

KV = 16 << 20
FILES = {"llama": "llama3-gqa", "gemma": "gemma3", "mamba": "mamba2"}


def config(tmp_path, models, memory=0, rest=""):
    """models: {name: further lines}; every one with the tests' template."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    text = f"kv:\n  memory_bytes: {KV}\nengine:\n  memory_bytes: {memory}\n  swap_wait_s: 1\n{rest}models:\n"
    for name, lines in models.items():
        path = oracle(f"models/{FILES[name]}.gguf") if name in FILES else tmp_path / f"{name}.gguf"
        text += f"  - name: {name}\n    chat_template: {template}\n"
        if "path:" not in lines:
            text += f"    path: {path}\n"
        text += "".join(f"    {line}\n" for line in lines.splitlines())
    return text


@pytest.fixture
def serve(tmp_path):
    servers = []

    def begin(models, memory=0, rest="", **more):
        s = Server(program(SERVER), None, config=config(tmp_path, models, memory, rest), **more)
        servers.append(s)
        return s

    yield begin
    for s in servers:
        s.stop(expect=None)


def states(s):
    return {m.id: m.state for m in s.client().models.list() if m.id != UNUSED}


def say(s, model, n=4, **more):
    return s.client(timeout=60).chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=n,
        temperature=0, extra_body={"ignore_eos": True}, **more)


def idle(s):
    """Counts at idle are zero: nothing runs, and no block is in use."""
    s.wait_idle(**{'conifer_kv_blocks{state="ready"}': 0, 'conifer_kv_blocks{state="filling"}': 0})


def weights_of(s, model):
    """What one model takes, by what a refusal says of it is not exact: told by the log of a load."""
    say(s, model, 1)
    until(lambda: re.search(rf"{model} was loaded in .*\n", s.text()))  # logged after the answer
    return float(re.search(rf"{model} was loaded in .* (\S+) MiB", s.text()).group(1)) * (1 << 20)


def test_states_without_loading(serve):
    s = serve({"llama": "preload: true", "gemma": "pin: true", "gone": "path: /nonexistent/gone.gguf"})
    assert states(s) == {"llama": "loaded", "gemma": "unloaded", "gone": "failed"}
    gemma = s.client().models.retrieve("gemma")
    assert gemma.max_model_len == 512 and gemma.pinned is True and gemma.object == "model"
    gone = s.client().models.retrieve("gone")
    assert gone.max_model_len is None and gone.error.startswith("the model gone could")
    assert "gone.gguf" not in gone.error and gemma.sampling["from"] == "default" and not hasattr(gone, "sampling")
    m = s.metrics()
    assert m["conifer_model_loads_total"] == m["conifer_model_load_seconds_count"] == 1
    assert say(s, "gemma").model == "gemma"
    assert s.metrics()["conifer_model_load_seconds_count"] == 2
    assert states(s)["gemma"] == "loaded"
    assert s.get("/health/ready")[0] == 200
    with pytest.raises(openai.NotFoundError):
        s.client().models.retrieve("other")


def test_each_model_has_its_series(serve, tmp_path):
    s = serve({"llama": "", "gemma": "", "gone": "path: /nonexistent/gone.gguf"})
    for _ in range(2):
        assert say(s, "gemma", 5).usage.completion_tokens == 5
    m = s.ended(2)

    def of(name):
        return [m[f'conifer_model_{name}{{model="{model}"}}'] for model in ("llama", "gemma", "gone")]
    assert of("loaded") == [0, 1, 0] and of("loads_by_model_total") == [0, 1, 0]
    assert of("load_failures_by_model_total") == [0, 0, 1]
    assert of("generated_tokens_total") == [0, 10, 0]
    assert of("steps_total") == [0, m["conifer_engine_steps_total"], 0]
    assert of("requests_waiting") == [0, 0, 0]
    assert of("bytes")[0] == 0 and of("bytes")[1] > 1e5


def test_unknown_model(serve):
    s = serve({"llama": "", "gemma": ""})
    names = f"llama, {UNUSED}, gemma" if GROUPS else "llama, gemma"
    with pytest.raises(openai.NotFoundError) as e:
        say(s, "gpt-4o")
    assert e.value.code == "model_not_found" and e.value.param == "model"
    assert "the model gpt-4o does not exist; there are " + names in e.value.message
    with pytest.raises(openai.NotFoundError, match="this model does not exist; there are " + names):
        s.client().models.retrieve("gpt-4o")
    assert states(s) == {"llama": "unloaded", "gemma": "unloaded"}


def test_many_models_are_not_all_named(serve):
    s = serve({f"m{i}": f"path: {oracle('models/gemma3.gguf')}" for i in range(7)})
    with pytest.raises(openai.NotFoundError, match=r"there are m0, m1, m2, m3, m4,\.\.\.'"):
        say(s, "gpt-4o")


def test_a_value_that_is_no_number_is_told_with_the_model(serve, tmp_path):
    import gguf
    llama = oracle("models/llama3-gqa.gguf")
    data = bytearray(llama.read_bytes())
    norm = next(t for t in gguf.GGUFReader(llama).tensors if t.name == "output_norm.weight")
    data[norm.data_offset:norm.data_offset + 4] = b"\0\0\xc0\x7f"
    (tmp_path / "bad.gguf").write_bytes(data)
    s = serve({"odd": f"path: {tmp_path}/bad.gguf", "llama": ""})
    with pytest.raises(openai.InternalServerError, match="not a number"):
        say(s, "odd")
    assert say(s, "llama").usage.completion_tokens == 4
    said = [line for line in s.text().splitlines() if "not a number" in line and "error" in line]
    assert said and "odd: the model produced a value that is not a number: its file may be damaged" in said[0]


def test_unknown_model_is_the_default(serve):
    s = serve({"gemma": "", "llama": ""}, rest="server:\n  unknown_model: default\n")
    assert say(s, "gpt-4o").model == "gemma"
    assert say(s, "llama").model == "llama"
    assert {c.model for c in say(s, "anything", stream=True)} == {"gemma"}


def test_a_bad_request_loads_nothing(serve):
    s = serve({"llama": ""})
    status, body = s.post("/v1/chat/completions", {"model": "llama", "messages": "no list"})
    assert status == 400 and body["error"]["param"] == "messages"
    assert states(s) == {"llama": "unloaded"}


def test_failed_load_fails_only_its_own(serve, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(oracle("models/gemma3.gguf").read_bytes()[:200000])
    s = serve({"llama": "", "cut": f"path: {cut}"})
    for _ in range(3):
        status, headers, body = s.http("POST", "/v1/completions", {"model": "cut", "prompt": "x"})
        assert status == 503 and int(headers["Retry-After"]) >= 1
        assert b'"code":"not_ready"' in body and b"cut" in body and str(tmp_path).encode() not in body
        assert say(s, "llama").usage.completion_tokens == 4
    assert s.metrics()["conifer_model_load_failures_total"] == 1
    idle(s)
    m = s.metrics()
    assert m['conifer_http_refused_total{status="503",code="not_ready"}'] == 3


@pytest.mark.skipif(bool(GROUPS), reason="test_groups.py weighs them")
def test_plan_weighs_what_the_daemon_does(tmp_path):
    """All that are listed, by the daemon's rules; one that can never be loaded is told at start, too."""
    def figures(memory):
        f = tmp_path / "c.yaml"
        text = config(tmp_path, {"llama": "context: 64\npreload: true", "gemma": ""}, memory)
        f.write_text(text.replace(f"memory_bytes: {KV}", "memory_bytes: 0"))

        def plan(*args):
            out = subprocess.run([program(CONIFER), "plan", *args, "--config", str(f)], capture_output=True,
                                 text=True, timeout=60)
            kv = re.search(r"KV memory +([0-9.]+ MiB)", out.stdout)
            needs = re.findall(r"^(\S+), .*\n +weights\+scratch +([0-9.]+) MiB", out.stdout, re.MULTILINE)
            return out.returncode, kv and kv[1], needs, out.stdout + out.stderr
        status, kv, needs, said = plan()
        assert [m for m, _ in needs] == ["llama", "gemma"] and "llama, 64 tokens each" in said, said
        assert plan("gemma")[:3] == (status, kv, needs[1:])
        assert plan("--users", "100000")[0] == 1 and "100000  do not fit" in plan("--users", "100000")[3]
        s = Server(program(SERVER), None, config=f.read_text())
        log = s.text()
        s.stop()
        assert f"KV memory {kv} holds" in log, (said, log)
        assert ("its requests are refused" in log) == ("requests are refused" in said) == bool(status)
        return status, [float(need) for _, need in needs]

    status, (llama, gemma) = figures(12 << 20)
    assert status == 0 and llama < gemma
    assert figures(int((llama + gemma) / 2 * (1 << 20)))[0] == 1


def test_tokenize_of_each(serve):
    s = serve({"llama": "", "gemma": "", "mamba": ""})
    for name in ("llama", "gemma", "mamba"):
        status, body = s.post("/tokenize", {"model": name, "prompt": "Hello world, hello models"})
        assert status == 200
        status, back = s.post("/detokenize", {"model": name, "tokens": body["tokens"]})
        assert status == 200 and "Hello world, hello models" in back["prompt"]
        assert states(s)[name] == "loaded"


def test_large_body_finds_its_model(serve):
    """Bodies over 64 KB are parsed by a worker, so the model is known only then."""
    s = serve({"llama": "", "gemma": ""})
    status, body = s.post("/tokenize", {"model": "gemma", "prompt": "hello " * 20000})
    assert status == 200 and body["count"] > 1000
    assert states(s) == {"llama": "unloaded", "gemma": "loaded"}
    status, body = s.post("/tokenize", {"model": "nobody", "prompt": "hello " * 20000})
    assert status == 404


def both(serve, pins=""):
    """A server with room for llama or gemma, not both."""
    probe = serve({"llama": "", "gemma": ""})
    sizes = weights_of(probe, "llama"), weights_of(probe, "gemma")
    probe.stop()
    return serve({"llama": pins, "gemma": ""}, memory=int(KV + max(sizes) + (256 << 10)))


def test_one_makes_way_for_the_other(serve):
    s = both(serve)
    for name in ("llama", "gemma", "llama", "gemma"):
        first = say(s, name).choices[0].message.content
        assert say(s, name).choices[0].message.content == first
        assert states(s)[name] == "loaded" and list(states(s).values()).count("loaded") == 1
    assert s.metrics()["conifer_model_unloads_total"] == 3
    idle(s)


def test_a_file_that_was_replaced_is_measured_again(serve, tmp_path):
    """A larger file in the place of an unloaded model's: it is not loaded beyond the budget."""
    file, new = tmp_path / "swap.gguf", tmp_path / "new"
    shutil.copy(oracle("models/llama3-gqa.gguf"), file)
    probe = serve({"swap": "", "gemma": ""})
    sizes = weights_of(probe, "swap"), weights_of(probe, "gemma")
    probe.stop()
    s = serve({"swap": "", "gemma": ""}, memory=int(KV + max(sizes) + (256 << 10)))
    assert say(s, "swap") and say(s, "gemma") and states(s) == {"swap": "unloaded", "gemma": "loaded"}
    shutil.copy(oracle("models/granitehybrid.gguf"), new)
    new.rename(file)
    status, answer = s.post("/v1/completions", {"model": "swap", "prompt": "x", "max_tokens": 2})
    assert status == 503 and states(s)["swap"] == "failed", answer
    until(lambda: re.search(r"swap could not be loaded: it takes [\d.]+ MiB", s.text()))
    assert s.metrics()['conifer_model_bytes{model="swap"}'] == 0
    assert say(s, "gemma")
    idle(s)


def test_a_template_that_is_a_pipe_holds_up_nobody(serve, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = config(tmp_path, {"gemma": "", "piped": f"path: {oracle('models/llama3-gqa.gguf')}"})
    at = text.index("name: piped")
    text = text[:at] + re.sub(r"chat_template: \S+", f"chat_template: {tmp_path / 'pipe'}", text[at:], count=1)
    s = Server(program(SERVER), None, config=text)
    try:
        began = time.time()
        status, _ = s.post("/v1/completions", {"model": "piped", "prompt": "x", "max_tokens": 2})
        assert status == 503 and time.time() - began < 10
        until(lambda: "pipe: not a regular file" in s.text())
        assert say(s, "gemma")
    finally:
        assert s.stop() == 0


def test_swaps_do_not_wait_for_another_models_stream(serve):
    """On a device that works beside the engine: its queue is never empty while a stream runs."""
    models = {"llama": "", "gemma": "", "long": "path: 'null:context=100000'\npin: true"}
    probe = serve(models)
    small, large, long = sorted(weights_of(probe, m) for m in ("llama", "gemma")) + [weights_of(probe, "long")]
    probe.stop()
    s = serve(models, memory=int(KV + long + large + small / 2),
              rest="  device: async\n  async_delay_s: 0.005\n  min_stay_s: 0\n")
    say(s, "llama")
    with s.client().completions.create(model="long", prompt="x", max_tokens=90000, stream=True,
                                       extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        begun = time.time()
        for name in ("gemma", "llama", "gemma"):
            assert say(s, name).model == name
        assert time.time() - begun < 10 and s.metrics()["conifer_model_unloads_total"] == 3
        next(iter(stream))
    idle(s)


def test_a_model_at_work_is_waited_for_with_a_bound(serve):
    s = both(serve)
    with s.client().chat.completions.create(
            model="llama", messages=[{"role": "user", "content": "x"}], max_tokens=480, n=8,
            stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        s.process.poll()
        begun = time.time()
        status, headers, body = s.http("POST", "/v1/completions",
                                       {"model": "gemma", "prompt": "x", "max_tokens": 2})
        took = time.time() - begun
        # Either it took its turn when the streams were done, or it was told to come back.
        assert status == 200 or (status == 503 and int(headers["Retry-After"]) >= 1 and took >= 0.9)
    assert say(s, "gemma").model == "gemma"
    idle(s)


def test_pinned_model_stays(serve):
    s = both(serve, pins="pin: true\npreload: true")
    status, _, body = s.http("POST", "/v1/completions", {"model": "gemma", "prompt": "x"})
    assert status == 503 and b"pinned" in body
    assert states(s) == {"llama": "loaded", "gemma": "failed"}
    assert say(s, "llama").model == "llama"


def run_clients(s, model, n, n_tokens, results, started=None):
    """n streams at once; results gets the text of each, or the exception."""
    def one(i):
        try:
            text = ""
            for chunk in say(s, model, n_tokens, stream=True, seed=i):
                if chunk.choices and chunk.choices[0].delta.content:
                    text += chunk.choices[0].delta.content
                    if started:
                        started.set()
            results[model, i] = text
        except Exception as e:  # shown by the caller
            results[model, i] = e
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    return threads


def longest_gap(s):
    """The most steps from one token of a stream to its next, as far as the buckets tell."""
    name = "conifer_inter_token_steps"
    m = s.metrics()
    les = [k.split('"')[1] for k in m if k.startswith(name + "_bucket")]
    return next(le for le in les if m[f'{name}_bucket{{le="{le}"}}'] == m[name + "_count"])


@pytest.mark.parametrize("second", ["gemma", "mamba"])
def test_loaded_during_the_others_streams(serve, second):
    """16 clients on each of two models of different families, one of them loaded while the other
    streams: nobody fails, nobody waits longer than for one step of the other model, and every answer
    is what it is alone."""
    s = serve({"llama": "preload: true", second: ""})
    alone = {"llama": say(s, "llama", 300).choices[0].message.content}
    results, started = {}, threading.Event()
    threads = run_clients(s, "llama", 16, 300, results, started)
    assert started.wait(60)
    assert states(s)[second] == "unloaded"
    threads += run_clients(s, second, 16, 100, results)
    for t in threads:
        t.join(200)
    alone[second] = say(s, second, 100).choices[0].message.content
    failed = {k: v for k, v in results.items() if isinstance(v, Exception)}
    assert not failed and len(results) == 32
    for (model, _), text in results.items():
        assert text == alone[model]
    # One tenant: the models take turns, and whoever streams is in each step of its model; with two steps in
    # flight it may stay out of one, to wait for the id that its guesses follow.
    assert longest_gap(s) in (("1", "2", "3") if os.environ.get("CONIFER_DEVICE") else ("1", "2"))
    assert s.metrics()["conifer_model_loads_total"] == 2
    idle(s)


def test_swaps_with_clients_that_leave(serve):
    """Clients of both models on room for one, a third of them gone early: all is given back."""
    s = both(serve)

    def work(i):
        model = ("llama", "gemma")[i % 2]
        try:
            with say(s, model, 30, stream=True) as stream:
                for k, _ in enumerate(stream):
                    if i % 3 == 0 and k > i % 7:
                        break
        except openai.APIStatusError as e:
            assert e.status_code == 503
    threads = [threading.Thread(target=work, args=(i,)) for i in range(40)]
    for t in threads:
        t.start()
        time.sleep(0.02)
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    idle(s)
    assert say(s, "gemma").model == "gemma" and say(s, "llama").model == "llama"


def test_drain_serves_those_who_wait(serve):
    """SIGTERM while a request waits for its model: it is answered, then the daemon ends with 0."""
    s = serve({"llama": "", "gemma": ""})
    results = {}
    threads = run_clients(s, "gemma", 1, 8, results)
    end = time.time() + 60
    while not states(s)["gemma"].startswith("load") and time.time() < end:
        pass
    assert s.stop(busy=True) == 0
    for t in threads:
        t.join(60)
    assert all(not isinstance(r, Exception) for r in results.values()), results


@pytest.mark.parametrize("text, says", [
    ("models:\n  - path: /x.gguf\n", "models.name: a model needs a name"),
    ("models:\n  - name: a\n  - name: a\n", 'two models are named "a"'),
    ("models:\n  - name: a\n    pin: 1\n", "must be true or false"),
    ("models:\n  - name: a\n    kv_typ: f16\n", 'did you mean "kv_type"'),
    ("model:\n  path: /x.gguf\nmodels:\n  - name: a\n", "model.path: this is for one model"),
    ("models: llama\n", "must be a list of models"),
    ("modles:\n  - name: a\n", 'did you mean "model'),
])
def test_config_is_refused(tmp_path, text, says):
    import subprocess
    path = pathlib.Path(tmp_path) / "c.yaml"
    path.write_text(text)
    out = subprocess.run([program(SERVER), "--check-config", "--config", str(path)],
                         capture_output=True, text=True)
    assert out.returncode == 2 or out.returncode == 1
    assert says in out.stderr and f"{path}:" in out.stderr


def test_a_tenant_cannot_have_its_neighbours_model_unloaded_again_and_again(serve):
    """One asks for another model in turn while its neighbour asks fifteen times: unloads only as often as
    engine.min_stay_s lets it, and refusals that say how long they hold."""
    s = serve({"llama": "", "gemma": "", "mamba": ""})
    room = int(max(weights_of(s, m) for m in ("llama", "gemma", "mamba")) * 1.1)
    s.stop()
    names = {n: hashlib.sha256(n.encode()).hexdigest() for n in ("neighbour", "other")}
    tenants = "tenants:\n" + "".join(f"  - name: {n}\n    metrics: all\n    keys: [sha256:{h}]\n" for n, h in names.items())
    s = serve({"llama": "", "gemma": "", "mamba": ""}, memory=KV + room, rest=f"  min_stay_s: 30\n{tenants}")
    key = {n: {"Authorization": f"Bearer {n}"} for n in names}
    body = {"prompt": "hello", "max_tokens": 4}
    assert s.post("/v1/completions", {**body, "model": "llama"}, headers=key["neighbour"])[0] == 200
    stop, refused = threading.Event(), []

    def ask_in_turn():
        for model in itertools.cycle(("gemma", "mamba")):
            status, head, data = s.http("POST", "/v1/completions", {**body, "model": model}, key["other"])
            assert status == 503 and b"(engine.min_stay_s)" in data, data
            refused.append(int(head["Retry-After"]))
            if stop.is_set():
                return

    t = threading.Thread(target=ask_in_turn)
    t.start()
    worst = 0
    for _ in range(15):
        began = time.monotonic()
        assert s.post("/v1/completions", {**body, "model": "llama"}, headers=key["neighbour"])[0] == 200
        worst = max(worst, time.monotonic() - began)
        time.sleep(0.1)
    stop.set()
    t.join()
    m = s.metrics(key["neighbour"])
    assert m["conifer_model_unloads_total"] == 0 and worst < 2
    assert refused and all(1 <= r <= 31 for r in refused) and refused == sorted(refused, reverse=True)
    assert m['conifer_tenant_model_waits_total{tenant="other"}'] == len(refused)
    assert m['conifer_tenant_model_loads_total{tenant="neighbour"}'] == 1
