"""conifer's commands."""
import hashlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from conftest import CONIFER, ORACLE, TEMPLATE, program, real_model_path, tiny_model


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
    for command in ("run", "serve", "show", "bench", "tokenize", "key"):
        assert b"usage" in conifer(command, "--help")
        assert conifer(command, "--nonsense", want=2)
    assert re.fullmatch(rb"conifer \d+\.\d+\.\d+\n", conifer("version"))


def test_key():
    key, line = conifer("key", "new").decode().split()
    assert re.fullmatch(r"cnf_[A-Za-z0-9_-]{43}", key)
    assert line == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert conifer("key", "new").decode().split()[0] != key
    assert conifer("key", want=2)


VOCABS = sorted((ORACLE / "vocab").glob("*.gguf")) if ORACLE.exists() else []


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


def test_bench():
    out = json.loads(conifer("bench", tiny_model(), "--rounds", "1", "--json", "--prompt-tokens", "32",
                             "--new-tokens", "8"))
    assert out["prompt_tokens"] == 32 and out["new_tokens"] == 8 and out["rounds"] == 1
    assert out["prefill_tok_s"] > 0 and out["decode_tok_s"] > 0
    assert out["ttft_ms"] == pytest.approx(32000 / out["prefill_tok_s"], rel=0.01)
    assert b"decode" in conifer("bench", tiny_model(), "--rounds", "1", "--prompt-tokens", "8",
                                "--new-tokens", "4")
    assert conifer("bench", tiny_model(), "--rounds", "x", want=2)


def test_run_once(template):
    args = ["run", "--model", tiny_model(), "--chat-template", template, "--temperature", "0",
            "--max-tokens", "12"]
    a = conifer(*args, "hello", "there")
    assert a.endswith(b"\n") and len(a) > 1
    assert conifer(*args, "hello there") == a
    assert conifer(*args, stdin=b"hello there\n") == a  # not a terminal: standard input is the prompt
    assert b"no prompt" in conifer(*args, want=1)
    assert b"\x1b" not in a
    seeded = [conifer(*args[:-4], "--max-tokens", "12", "--seed", s, "x") for s in ("1", "1", "2")]
    assert seeded[0] == seeded[1] != seeded[2]
    assert conifer(*args, "--temperature", "9", "x", want=2)
    assert conifer(*args, "\udcff" if False else b"\xff", want=1)


def read_until(fd, what, seconds=20):
    data, end = b"", time.time() + seconds
    while what not in data:
        assert time.time() < end, data
        if select.select([fd], [], [], 0.2)[0]:
            data += os.read(fd, 65536)
    return data


def test_run_chat(template):
    """In a terminal: two turns, Ctrl-C stops an answer, the end of input ends the chat."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(program(CONIFER), ["conifer", "run", "--model", tiny_model(), "--chat-template",
                                    template, "--temperature", "0", "--max-tokens", "20"])
    try:
        read_until(fd, b">>>")
        os.write(fd, b"hello\n")
        read_until(fd, b">>>")
        os.write(fd, b"again\n")
        read_until(fd, b">>>")
        os.write(fd, b"/new\n")
        read_until(fd, b">>>")
        os.write(fd, b"\x04")
        end = time.time() + 20
        done = (0, 0)
        while done[0] == 0 and time.time() < end:
            done = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        assert done[0] == pid and os.waitstatus_to_exitcode(done[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(fd)


@pytest.mark.real_model
def test_ctrl_c_stops_an_answer():
    pid, fd = pty.fork()
    model = str(real_model_path())
    if pid == 0:
        os.execv(program(CONIFER), ["conifer", "run", "--model", model])
    try:
        read_until(fd, b">>>")
        os.write(fd, b"Tell me a very long story about the sea and the mountains.\n")
        time.sleep(1.5)
        os.write(fd, b"\x03")
        assert b"(stopped)" in read_until(fd, b">>>", 10)
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
