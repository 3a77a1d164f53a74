"""conifer's commands."""
import fcntl
import hashlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest
from conftest import (CONIFER, ROOT, SERVER, Server, TEMPLATE, copy_tiny, oracle, oracle_files,
                      program, quick, real_model_path, tiny_model, unless_still)


def conifer(*args, stdin=b"", want=0, timeout=60):
    out = subprocess.run([program(CONIFER), *args], input=stdin, capture_output=True, timeout=timeout,
                         check=False)
    assert out.returncode == want, out
    return out.stdout if want == 0 else out.stderr


@pytest.fixture
def template(tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    return str(tmp_path / "t.jinja")


def test_usage():
    assert b"usage" in conifer(want=2)
    assert b"usage" in conifer("--help")
    assert b"nonsense" in conifer("nonsense", want=2)
    for command in ("run", "serve", "pull", "list", "rm", "show", "plan", "bench", "tokenize", "reply",
                    "key", "version"):
        assert b"usage" in conifer(command, "--help")
        assert conifer(command, "-h") == conifer(command, "--help")
        assert conifer(command, "--nonsense", want=2)
    assert re.fullmatch(rb"conifer \d+\.\d+\.\d+\n", conifer("version"))


def test_key():
    key, line = conifer("key", "new").decode().split()
    assert re.fullmatch(r"cnf_[A-Za-z0-9_-]{43}", key)
    assert line == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert conifer("key", "new").decode().split()[0] != key
    assert conifer("key", want=2)


VOCABS = oracle_files("vocab/*.gguf")


@pytest.mark.parametrize("path", VOCABS, ids=lambda p: p.stem)
def test_tokenize_oracle(path):
    texts = pathlib.Path(str(path) + ".inp")
    if not texts.exists():
        texts = path.with_suffix(".inp")
    if not texts.exists():
        pytest.skip("no texts for this vocabulary")
    want = [x.split() for x in texts.with_suffix(".out").read_text().splitlines()]
    cases = texts.read_bytes().split(b"\n__ggml_vocab_test__\n")
    out = subprocess.run([program(CONIFER), "tokenize", str(path), "--ids", "--no-special"], input=b"",
                         capture_output=True, check=False)
    if b"support" in out.stderr:
        pytest.skip("refused by name: " + out.stderr.decode().strip())
    n = min(len(cases), len(want))
    assert n > 10
    for i in list(range(0, n, max(1, n // 12))):
        assert conifer("tokenize", str(path), "--ids", "--no-special", stdin=cases[i]).decode().split() \
            == want[i]


def test_tokenize_lines():
    text = "Hello there \U0001f600\n"
    ids = conifer("tokenize", tiny_model(), "--ids", "--no-special", stdin=text.encode()).decode()
    assert ids.endswith("\n") and ids.count("\n") == 1
    lines = conifer("tokenize", tiny_model(), "--no-special", stdin=text.encode()).decode().split("\n")
    pairs = [x.split("\t") for x in lines if x]
    assert [p[0] for p in pairs] == ids.split()
    assert all(isinstance(json.loads(p[1]), str) for p in pairs)
    assert "".join(json.loads(p[1]) for p in pairs).startswith("Hello there ")
    assert conifer("tokenize", tiny_model(), "--ids", "--no-special") == b"\n"
    assert conifer("tokenize", want=2)
    assert conifer("tokenize", "/nonexistent", want=1)
    assert conifer("tokenize", __file__, want=1)


def test_show():
    out = conifer("show", tiny_model()).decode()
    assert "llama" in out and "context" in out and "memory" in out
    assert conifer("show", "--model", tiny_model()).decode().splitlines()[:5] == out.splitlines()[:5]
    assert conifer("show", "/nonexistent.gguf", want=1)
    assert conifer("show", want=2)
    assert "99999 asked for" in conifer("show", tiny_model(), "--context", "99999").decode()


def test_plan(tmp_path):
    out = conifer("plan", tiny_model(), "--users", "3").decode()
    assert "fit" in out and "weights" in out and "do not fit" not in out
    conifer("plan", tiny_model(), "--users", "1000000000", want=1)
    assert b"was trained for" in conifer("plan", tiny_model(), "--context", "99999", want=1)
    for command in ("plan", "show", "tokenize"):
        said = conifer(command, want=2).decode().splitlines()
        assert said[0].startswith(f"conifer {command}: which model? Give a GGUF file") and len(said) == 2
    for command in ("plan", "show", "tokenize", "bench"):
        assert b"tiny.gguf is one more" in conifer(command, "a.gguf", "tiny.gguf", want=2)
    assert conifer("plan", tiny_model(), "--users", "none", want=2)
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {{path: {tiny_model()}}}\n")
    assert conifer("plan", "--config", str(config)).decode().splitlines()[0] == out.splitlines()[0]


def test_bench():
    out = json.loads(conifer("bench", tiny_model(), "--rounds", "2", "--json", "--prompt-tokens", "32",
                             "--new-tokens", "400", "--batch", "1,3", "--depth", "64,90k"))
    assert out["prompt_tokens"] == 32 and out["new_tokens"] == 400 and out["rounds"] == 2
    assert out["prefill_tok_s"] > 0 and out["decode_tok_s"] > 0
    machine = out["machine"]
    for key in ("read_bytes_s", "read_again_bytes_s", "int8_ops_s", "fma_flops_s"):
        assert 0 < machine[key]["min"] <= machine[key]["median"] <= machine[key]["max"]
    ttft, prefill, one, *batches, deep, too_deep = out["points"]
    assert [p["what"] for p in (ttft, prefill, one)] == ["ttft", "prefill", "decode"]
    assert [p["streams"] for p in batches] == [1, 3]
    assert deep["prompt_tokens"] == 64 and "window" in too_deep["why_not"]
    assert ttft["read_share"] is None and prefill["read_share"] is None
    for p in (ttft, prefill, one, *batches, deep):
        assert 0 < p["min"] <= p["median"] <= p["max"]
        assert p["rounds"] + p["left_out"] == 2
    for p in (one, *batches, deep):
        bound = machine["read_bytes_s"]["median"] * p["streams"] / p["median"]
        assert p["read_share"] * bound >= out["weight_bytes"] * 0.99  # of a step: the weights, and KV
        assert p["int8_share"] > 0
    text = conifer("bench", tiny_model(), "--rounds", "1", "--prompt-tokens", "8", "--new-tokens", "4",
                   "--batch", "0", "--depth", "0")
    assert b"decode behind 8 tokens" in text and b"streams" not in text
    assert b"--rounds x: not a number" in conifer("bench", tiny_model(), "--rounds", "x", want=2)
    assert b"--batch x: not a number" in conifer("bench", tiny_model(), "--batch", "2,x", want=2)
    for option, value, says in (("batch", "0,foo", b"--batch 0: numbers in a list must be from 1 to"), ("batch", "4,0", b"--batch 0: "),
                                ("batch", "5k", b"--batch 5k: must be from 1 to 1024"), ("batch", "k", b"--batch k: not a"),
                                ("batch", "1,-2", b"--batch -2: must not be negative"), ("depth", "1k,2kk", b"--depth 2kk: not"),
                                ("batch", "1,,2", b"--batch 1,,2: a number is missing"), ("depth", "0k", b"--depth 0k: numbers in a list"),
                                ("depth", "9" * 30 + "k", b"99k: must be from 1 to 16777216")):
        said = conifer("bench", tiny_model(), f"--{option}", value, want=2)
        assert says in said, said
    assert b"window" in conifer("bench", tiny_model(), "--prompt-tokens", "90000", want=2)


def test_bench_says_what_it_measures_before_it_loads(tmp_path):
    """Who named no model learns which one it is before it is waited for; here it cannot be loaded."""
    name, file = re.search(r'^MODEL\("([^"]+)", "([^"]+)"', (ROOT / "config/catalog.def").read_text(), re.M).groups()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / file).write_bytes(b"GGUF and nothing else")
    out = subprocess.run([program(CONIFER), "bench"], capture_output=True, text=True, check=False, timeout=60,
                         env={**os.environ, "CONIFER_HOME": str(tmp_path)})
    told, error = out.stderr.splitlines()
    assert out.returncode == 1 and told.endswith(f"no model is named; measuring the default, {name}"), out
    assert file in error


def test_bench_null():
    """No arithmetic, so no shares of any."""
    out = json.loads(conifer("bench", "null:layers=2,vocab=1000", "--rounds", "1", "--json",
                             "--prompt-tokens", "32", "--new-tokens", "6000", "--batch", "2", "--depth", "0"))
    assert out["decode_tok_s"] > 0  # long answers: of short ones one is done before the other begins
    assert all(p["read_share"] is None and p["int8_share"] is None for p in out["points"])


def test_bench_ladder():
    out = json.loads(conifer("bench", "--ladder", tiny_model(), "--json", "--threads", "2"))
    rungs = {r["rung"]: r for r in out["ladder"]}
    assert list(rungs) == ["no_cache", "cache", "simd", "threads", "q8_0", "own", "batch"]
    assert rungs["no_cache"]["factor"] is None
    assert all(r["tok_s"] > 0 for r in rungs.values())
    assert b"in all" in conifer("bench", "--ladder", tiny_model(), "--threads", "1")
    assert b"no weights" in conifer("bench", "--ladder", "null:layers=1,vocab=1000", want=1)
    assert conifer("bench", "--ladder", "/no/such.gguf", want=1)
    vectors = oracle("real/minilm-q8_0.gguf")
    assert b"generates no text" in conifer("bench", "--ladder", str(vectors), want=1)


def test_bench_probe():
    out = json.loads(conifer("bench", "--probe", "--json", "--threads", "1"))
    assert out["threads"] == 1 and out["device"].startswith("cpu-")
    assert min(out[key] for key in ("read_bytes_s", "int8_ops_s", "fma_flops_s")) > 1e6
    text = conifer("bench", "--probe", "--isa", "generic")
    assert b"cpu-generic" in text and b"GB/s" in text


def windows_of_run(path, *args):
    """MiB of KV memory of `conifer run`, and how many windows they hold."""
    out = subprocess.run([program(CONIFER), "run", "--model", str(path), "--log-level", "info",
                          "--max-tokens", "1", "--threads", "1", *args, "a"], input=b"",
                         capture_output=True, timeout=60, check=False)
    said = out.stderr.decode()
    held = re.search(r"KV memory ([\d.]+) MiB holds ([\d.]+) of them", said)
    assert out.returncode == 0 and held and "requests are refused" not in said, said
    return float(held[1]), float(held[2])


@pytest.mark.parametrize("name", ["llama3-gqa", "gemma3", "deepseek2", "falcon-mamba", "jamba", "lfm2"])
def test_run_keeps_memory_for_one(name):
    """Two windows, not the 64 of a daemon's users; and a whole window fits, whatever layers a model has:
    all that see everything, sliding windows, latents, recurrent state alone and beside KV, convolutions."""
    mib, windows = windows_of_run(pathlib.Path(tiny_model()).with_name(name + ".gguf"))
    # what recurrent layers keep beside a window counts, and small pools are rounded up
    assert windows >= 2 and (windows < 4 or mib < 8)


def test_run_keeps_memory_as_told(tmp_path):
    """Unless the options or a file say for how many."""
    of_two, _ = windows_of_run(tiny_model())
    of_many, _ = windows_of_run(tiny_model(), "--set", "scheduler.max_running=2000")
    (tmp_path / "c.yaml").write_text("scheduler: {max_running: 2000}\n")
    assert of_many > of_two
    assert windows_of_run(tiny_model(), "--config", str(tmp_path / "c.yaml"))[0] == of_many


def test_serve_fetches_a_name_before_it_warns(tmp_path, monkeypatch):
    """Beside another error nothing is said of a model that a start would fetch; the daemon would not."""
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    said = conifer("serve", "--model", "smollm2-135m", "--port", "x", want=2).decode()
    assert len(said.splitlines()) == 1 and "--port" in said
    out = subprocess.run([program(SERVER), "--model", "smollm2-135m", "--port", "x"], capture_output=True,
                         text=True, timeout=60, check=False)
    said = out.stderr.splitlines()
    assert out.returncode == 2 and len(said) == 2 and "smollm2-135m" in said[1] and "warning" not in said[1]


@pytest.mark.parametrize("text", ["", "model: {name: smollm2-135m}\n", "models: [{name: smollm2-135m}]\n",
                                  "models: [{name: nope}, {name: smollm2-135m}]\n"])
def test_check_of_models_that_have_not_arrived(tmp_path, monkeypatch, text):
    """An error for the daemon, which fetches none; one model or a list makes no difference."""
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text(text)
    for command, code in (([CONIFER, "serve"], 0), ([SERVER], 1)):
        out = subprocess.run([program(command[0]), *command[1:], "--check-config", "--config",
                              str(tmp_path / "c.yaml")], capture_output=True, text=True, timeout=60, check=False)
        assert out.returncode == code and "smollm2-135m" in out.stderr, out
        assert ("is valid" in out.stdout) == (code == 0)
        assert "warning" in out.stderr if code == 0 else "warning" not in out.stderr.splitlines()[-1]


def test_check_of_models_that_nobody_knows(tmp_path, monkeypatch):
    """No fetching helps them, and so it is an error everywhere."""
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    for text in ("model: {name: nope}\n", "models: [{name: nope}]\n", "model: {path: /none.gguf}\n",
                 "models: [{name: smollm2-135m, path: /none.gguf}]\n"):
        (tmp_path / "c.yaml").write_text(text)
        for command in ([CONIFER, "serve"], [SERVER]):
            out = subprocess.run([program(command[0]), *command[1:], "--check-config", "--config",
                                  str(tmp_path / "c.yaml")], capture_output=True, timeout=60, check=False)
            assert out.returncode == 1 and b"is valid" not in out.stdout, out


def test_wrong_numbers_are_named():
    for args, what in ((["--max-tokens", "x"], b"--max-tokens x: not a number"),
                       (["--temperature", "3"], b"--temperature 3: must be from 0 to 2"),
                       (["--top-p", "0"], b"above 0"), (["--seed", "-1"], b"not be negative"),
                       (["--top-k"], b"--top-k needs a value"), (["-z"], b"unknown option -z"),
                       (["--nonsense=1"], b"--nonsense")):
        assert what in conifer("run", "hello", *args, want=2)


def test_model_names(tmp_path, monkeypatch):
    """A name of the models folder does wherever a file does; an unknown one is told what there is."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.gguf").symlink_to(pathlib.Path(tiny_model()).resolve())
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    assert conifer("tokenize", "tiny", "--ids", stdin=b"x") == \
        conifer("tokenize", tiny_model(), "--ids", stdin=b"x")
    assert b"llama" in conifer("show", "tiny")
    for command in ("show", "tokenize", "bench"):
        err = conifer(command, "nope", want=1)
        assert b"nope" in err and b"tiny" in err and b"conifer list" in err
    assert b"defaults are valid" in conifer("serve", "--check-config")
    out = subprocess.run([program(CONIFER), "serve", "--check-config"], capture_output=True, check=True)
    assert b"warning" in out.stderr and b"smollm2-135m" in out.stderr
    assert b"tiny" in conifer("serve", "--check-config", "--model", "nope", want=1)
    (tmp_path / "c.yaml").write_text("model: {name: tiny}\n")
    assert b"configuration is valid" in conifer("serve", "--check-config", "--config",
                                                str(tmp_path / "c.yaml"))


@pytest.mark.parametrize("command", [["run", "hello"], ["bench"], ["serve", "--port", "0"]])
def test_context_beyond_training_is_refused(command):
    out = conifer(*command, "--model", tiny_model(), "--context", "99999", want=1)
    assert b"--context: model.context is 99999 tokens" in out and b"trained for" in out


def test_model_without_template(tmp_path):
    """No token of its file ends generation: its weights are random, and might draw one at once."""
    def change(name, value):
        if name == "tokenizer.ggml.tokens":
            return [t.replace("<|im_end|>", "<|no_end|>") for t in value]
        return None if name in ("tokenizer.chat_template", "tokenizer.ggml.eos_token_id") else value

    base = copy_tiny(tmp_path / "base.gguf", change)
    out = subprocess.run([program(CONIFER), "run", "--model", str(base), "--max-tokens", "3", "hello"],
                         input=b"", capture_output=True, timeout=60, check=True)
    assert out.stderr.count(b"no chat template") == 1 and b"cut off at 3" in out.stderr


def test_run_once(template):
    args = ["run", "--model", tiny_model(), "--chat-template", template, "--temperature", "0",
            "--max-tokens", "12"]
    a = conifer(*args, "hello there")
    assert a.endswith(b"\n") and len(a) > 1
    assert conifer("run", "hello there", *args[1:]) == a  # options may follow
    assert conifer(*args, "--", "hello there") == a
    assert conifer("run", tiny_model(), "hello there", *args[3:]) == a  # the model, unnamed
    assert b"quotes" in conifer(*args, "hello", "there", want=2)
    assert b"quotes" in conifer("run", "hello", "there", want=2)
    assert conifer(*args, "--", "--seed") != a
    assert conifer(*args, stdin=b"hello there\n") == a  # not a terminal: standard input is the prompt
    assert conifer(*args, "hello", stdin=b"there\n") == conifer(*args, stdin=b"hello\n\nthere") != a
    assert b"no prompt" in conifer(*args, want=1)
    assert b"\x1b" not in a
    seeded = [conifer(*args[:-4], "--max-tokens", "12", "--seed", s, "x") for s in ("1", "1", "2")]
    assert seeded[0] == seeded[1] != seeded[2]
    assert conifer(*args, "--temperature", "9", "x", want=2)
    assert conifer(*args, "\udcff" if False else b"\xff", want=1)


def test_run_in_a_small_window():
    """The default of an answer's length is cut where window or memory end; what was asked for is refused."""
    small = ["run", "null:layers=2,vocab=600,context=64"]
    little = ["run", "null:layers=2,vocab=600,context=8192", "--set", "kv.memory_bytes=256KiB"]

    def answered(command, what):
        out = subprocess.run([program(CONIFER), *command, "hello"], input=b"", capture_output=True,
                             timeout=60, check=True)
        assert out.stdout and what in out.stderr
    for more in ([], ["--max-tokens", "0"]):
        answered(small + more, b"the window of 64 tokens is full")
        answered(little + more, b"the KV memory is full")
    for command in (small, little):
        assert b"9999" in conifer(*command, "--max-tokens", "9999", "hello", want=1)
    assert b"must hold it and at least one more" in conifer(*small, "hello " * 80, want=1)


def test_run_names(template, tmp_path):
    """One word: a prompt, a model of the config or of the catalog, or a slip of the pen."""
    err = conifer("run", "smolm2-135m", want=2)
    assert b"did you mean" in err and b"smollm2-135m" in err and b" -- " not in err
    args = ["--chat-template", template, "--temperature", "0", "--max-tokens", "5"]
    word = ["run", "--model", tiny_model(), *args, "smolm2-135m"]
    assert conifer(*word)  # the model is given: it is a prompt
    (tmp_path / "c.yaml").write_text(
        f"models: [{{name: mine, path: {tiny_model()}, chat_template: {template}}}]\n")
    config = ["run", "--config", str(tmp_path / "c.yaml"), *args[2:]]
    assert conifer(*config, "mine", "hello") == conifer(*config, "mine", stdin=b"hello") == \
        conifer(*config, "hello")
    assert b"no model" in conifer(*config, "yours", "hello", want=2)
    assert conifer(*config, "--", "mine") != conifer(*config, "hello")


def test_addresses(tmp_path):
    (tmp_path / "c.yaml").write_text("tenants: [{name: a, keys: ['sha256:%s']}]\n" % ("0" * 64))
    err = conifer("serve", "--model", tiny_model(), "--config", str(tmp_path / "c.yaml"), "--host",
                  "foo.invalid", want=1)
    assert b"cannot resolve foo.invalid" in err
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    s = Server(program(SERVER), tiny_model(), ["--host", "::1"])
    assert f"http://[::1]:{s.port}" in s.text()
    s.stop()


def read_until(fd, what, seconds=60):
    data, end = b"", time.time() + seconds
    while what not in data:
        assert time.time() < end, data
        if select.select([fd], [], [], 0.2)[0]:
            data += os.read(fd, 65536)
    return data


class Terminal:
    """`conifer run` in a terminal of its own, with no history of others."""

    def __init__(self, *args, term="xterm", env=None, rows=24, columns=0):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if columns:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            for name, value in {"TERM": term, "CONIFER_HISTORY": "", **(env or {})}.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            os.execv(program(CONIFER), ["conifer", "run", *args])

    def __enter__(self):
        self.rest = b""
        self.prompt()
        return self

    def prompt(self):
        """Waits until it asks: what is typed earlier may be taken for something else."""
        if b">>>" not in self.rest:
            self.rest = read_until(self.fd, b">>>")

    def __exit__(self, *exc):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def send(self, keys, until=b">>>"):
        self.prompt()
        os.write(self.fd, keys)
        data = read_until(self.fd, until)
        self.rest = data[data.index(until):]
        return data

    def ends(self, keys=b""):
        """Its exit status; `keys` are typed until it ends, as it may not listen for them yet."""
        end, typed = time.time() + 60, 0
        while time.time() < end:
            if keys and time.time() > typed + 0.5:
                os.write(self.fd, keys)
                typed = time.time()
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it goes on")


@pytest.fixture
def echo_args(tmp_path):
    """A template that fails with the message in the error: what the model would be sent is seen."""
    (tmp_path / "t.jinja").write_text("{{ raise_exception('<' + messages[-1].content + '>') }}")
    return ["--model", tiny_model(), "--chat-template", str(tmp_path / "t.jinja")]


def test_run_chat(template):
    """In a terminal: two turns, the end of input ends the chat."""
    for term in ("xterm", "dumb"):
        with Terminal("--model", tiny_model(), "--chat-template", template, "--temperature", "0",
                      "--max-tokens", "20", term=term) as t:
            t.send(b"hello\n")
            t.send(b"again\n")
            t.send(b"/new\n", b"forgotten")
            t.prompt()
            assert t.ends(b"\x04") == 0


def test_chat_commands(echo_args):
    with Terminal(*echo_args) as t:
        assert b"no command /nonsense" in t.send(b"/nonsense\n", b"lists them")
        assert b"/clear" in t.send(b"/help\n", b"space in")
        t.send(b"/etc/hosts: what is it?\n", b"</etc/hosts: what is it?>")
        t.send(b" /exit\n", b"< /exit>")
        t.prompt()
        os.write(t.fd, b"/exit\n")
        assert t.ends() == 0


def test_several_lines(echo_args):
    """A text between three quotes may have several lines, each asked for by dots; Ctrl-C drops what there
    is of it. (Errors show line ends as spaces.)"""
    for term in ("xterm", "dumb"):
        with Terminal(*echo_args, term=term) as t:
            assert b">>>" not in t.send(b'"""one\n', b"...")
            os.write(t.fd, b"\n")
            assert b">>>" not in read_until(t.fd, b"...")
            os.write(t.fd, b'/exit """\n')
            t.rest = read_until(t.fd, b"<one  /exit >")
            assert b"..." not in t.send(b'"""alone"""\n', b"<alone>")
            t.send(b'"""dropped\n', b"...")
            os.write(t.fd, b"\x03")
            t.rest = read_until(t.fd, b"ends)")
            t.send(b"whole\n", b"<whole>")


def has_editor():
    return b"libedit" in subprocess.run(["ldd", program(CONIFER)], capture_output=True, check=False).stdout


@pytest.fixture
def json_args(tmp_path):
    """As echo_args, the end of the message as JSON, where line ends are seen, and its length."""
    (tmp_path / "t.jinja").write_text("{{ raise_exception('<' + (messages[-1].content | tojson)[-200:] + '>' + "
                                      "(messages[-1].content | length | string)) }}")
    return ["--model", tiny_model(), "--chat-template", str(tmp_path / "t.jinja")]


def test_a_paste_is_one_message(json_args):
    """However many lines it has; what is typed around it is of the same message."""
    if not has_editor():
        pytest.skip("built without libedit")

    def pasted(data):
        return b"\033[200~" + data + b"\033[201~"
    with Terminal(*json_args) as t:
        assert b"\033[?2004h" in t.rest  # the terminal is asked for the marks
        data = t.send(b"look: " + pasted(b"one\n\n\ttwo\nthree\r") + b"end\n", rb'<"look: one\n\n\ttwo\nthree\nend">')
        assert b"\033[?2004l" in data  # and is as it was while the model answers
        t.send(pasted(b"/exit\nis no command\n") + b"\n", rb'<"/exit\nis no command">')
        t.send(pasted('grüße\n日本語 "x"'.encode()) + b"\n", 'grüße\\n日本語'.encode())
        t.send(pasted(b"") + pasted(b"a\x01\x1b[A\x7f\xffb") + b"\n", b'<"ab">')
        many = b"\n".join(b"line %d" % i for i in range(400))
        t.send(pasted(many) + b"\n", many.replace(b"\n", b"\\n")[-199:] + b'">%d' % len(many))
        t.send(b"\033[A\033[A again\n", rb'<"ab again">')  # history has them whole
        t.prompt()
        for piece in (b"\033[20", b"0~in pie", b"ces\nof it\033[2", b"01", b"~\n"):
            os.write(t.fd, piece)
            time.sleep(0.1)
        t.rest = read_until(t.fd, rb'<"in pieces\nof it">')
        t.prompt()
        os.write(t.fd, b"\033[200~never ended\n")
        time.sleep(0.5)
        t.send(b"\x03")
        t.send(b"whole\n", b'<"whole">')
        t.prompt()
        assert t.ends(b"\x04") == 0


def test_line_editing(echo_args):
    """Keys move in the line and its history, and none of their bytes reach the model."""
    left, right, up, down, home, end = b"\033[D", b"\033[C", b"\033[A", b"\033[B", b"\033[H", b"\033[F"
    with Terminal(*echo_args) as t:
        if not has_editor():
            pytest.skip("built without libedit")
        t.send(b"ac" + left + b"b" + right + b"d\n", b"<abcd>")
        t.send(b"world" + home + b"hello " + end + b"!\n", b"<hello world!>")
        t.send(up + up + b"e\n", b"<abcde>")
        t.send(up + up + up + down + b"\x01x\x0b\n", b"<x>")  # C-a, then C-k
        t.send("grüße 日本x\x7f\x7f語\n".encode(), "<grüße 日語>".encode())
        t.prompt()
        os.write(t.fd, b"half a line")
        time.sleep(0.5)
        t.send(b"\x03")
        t.send(b"whole\n", b"<whole>")
        t.send(b"\x03", b"again")
        assert t.ends(b"\x03") == 0


def test_plain_terminal_takes_no_sequences(echo_args):
    with Terminal(*echo_args, term="dumb") as t:
        t.send(b"a\033[Db\033OHc\x01d\n", b"<abcd>")
        t.send(b"\x03", b"again")
        assert t.ends(b"\x03") == 0


@pytest.mark.real_model
@unless_still
def test_ctrl_c_stops_an_answer():
    """One of thousands of letters, the same each time."""
    pid, fd = pty.fork()
    model = str(real_model_path())
    if pid == 0:
        os.execv(program(CONIFER), ["conifer", "run", "--model", model, "--temperature", "0"])
    try:
        read_until(fd, b">>>")
        os.write(fd, b"Tell me a very long story about the sea and the mountains.\n")
        read_until(fd, b"mountains.")
        said = b""
        while len(said) < 60:  # it has begun
            said += os.read(fd, 65536)
        os.write(fd, b"\x03")
        assert b"(stopped)" in quick(10, lambda: read_until(fd, b">>>"))
        os.write(fd, b"/bye\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(fd)


@pytest.mark.real_model
def test_show_and_run_a_real_model():
    model = str(real_model_path())
    assert "Q4_1" in conifer("show", model).decode()
    assert b"Paris" in conifer("run", "--model", model, "--temperature", "0", "--max-tokens", "30",
                               "Repeat after me: Paris is the capital of France.")
