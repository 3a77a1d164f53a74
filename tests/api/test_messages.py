"""What commands and refusals say, and with which exit status: output that is lost, models that are
damaged or not there, lists and options that contradict each other, progress of a long command."""
import json
import os
import pathlib
import pty
import re
import subprocess

import pytest
from conftest import CONIFER, SERVER, Server, program, real_model_path, tiny_model

NULL = "null:vocab=1000"
QUICK = ["--rounds", "2", "--prompt-tokens", "16", "--new-tokens", "8"]


def run(*args, path=CONIFER, **more):
    more.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([program(path), *map(str, args)], stdin=subprocess.DEVNULL, timeout=120, check=False,
                          **more)


@pytest.mark.parametrize("args", [["key", "new"], ["list"], ["version"], ["--help"], ["show", NULL],
                                  ["run", "--max-tokens", "5", NULL, "hi"],
                                  ["bench", NULL, "--json", "--batch", "0", "--depth", "0", *QUICK]],
                         ids=lambda a: a[0])
def test_lost_output_is_an_error(args):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        out = run(*args, stdout=full)
    assert out.returncode == 1 and out.stderr.count(b"standard output: ") == 1, out
    assert run(*args, stdout=subprocess.DEVNULL).returncode == 0


def test_lost_output_of_the_daemon():
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        assert run("--version", path=SERVER, stdout=full).returncode == 1


def check_config(tmp_path, models):
    text = "models:\n" + "".join(f"  - name: {n}\n    path: {json.dumps(str(p))}\n{more}"
                                 for n, p, more in models)
    (tmp_path / "c.yaml").write_text(text)
    return run("--check-config", "--config", tmp_path / "c.yaml", path=SERVER, stdout=subprocess.PIPE)


def test_one_damaged_model_stops_no_service(tmp_path):
    """The check of the settings says what the daemon does: it starts, and that model's requests fail."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    good, wide = pathlib.Path(tiny_model()), "    context: 99999\n"
    for models in ([("good", good, ""), ("bad", bad, "")], [("bad", bad, ""), ("good", good, "")],
                   [("good", good, ""), ("wide", good, wide)]):
        out = check_config(tmp_path, models)
        assert out.returncode == 0 and b"warning: " in out.stderr and b"c.yaml:" in out.stderr, out
        s = Server(program(SERVER), None, config=(tmp_path / "c.yaml").read_text())
        try:
            for name, *_ in models:
                status, _ = s.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
                assert status == (200 if name == "good" else 503)
        finally:
            s.stop()


def test_no_model_left_is_an_error(tmp_path):
    """The check refuses what the daemon refuses: missing or damaged, preloaded or not."""
    bad, gone, preload = tmp_path / "bad.gguf", tmp_path / "gone.gguf", "    preload: true\n"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    for models in ([("bad", bad, ""), ("gone", gone, "")], [("gone", gone, "")], [("gone", gone, preload)],
                   [("bad", bad, preload)]):
        out = check_config(tmp_path, models)
        assert out.returncode == 1 and b"none of the models" in out.stderr, out
        assert b"is valid" not in out.stdout and b"c.yaml:2:5: " in out.stderr
        daemon = run("--config", tmp_path / "c.yaml", "--port", "0", path=SERVER, stdout=subprocess.PIPE)
        assert daemon.returncode == 1
    out = check_config(tmp_path, [("gone", gone, preload), ("good", tiny_model(), "")])
    assert out.returncode == 0 and b"warning: " in out.stderr and b"gone.gguf" in out.stderr, out
    s = Server(program(SERVER), None, config=(tmp_path / "c.yaml").read_text())
    try:
        status, _ = s.post("/v1/completions", {"model": "good", "prompt": "a", "max_tokens": 1})
        assert status == 200
    finally:
        s.stop()


def refusal(server, path, **body):
    status, answer = server.post(path, body)
    assert status == 400 and answer["error"]["code"] == "out_of_range"
    return answer["error"]["message"]


def test_bounds_of_max_tokens(fake):
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for value in (0, -1):
        for name in ("max_tokens", "max_completion_tokens"):
            assert refusal(fake, "/v1/chat/completions", **chat, **{name: value}) == \
                f"{name} must be at least 1, got {value}"
    assert refusal(fake, "/v1/completions", prompt="a", max_tokens=-1) == "max_tokens must be at least 0, got -1"
    assert refusal(fake, "/v1/completions", prompt="a", max_tokens=0) == \
        "max_tokens must be at least 1, or 0 with echo"
    status, answer = fake.post("/v1/completions", {"prompt": "a", "max_tokens": 0, "echo": True})
    assert status == 200 and answer["choices"][0]["text"] == "a"
    page = (pathlib.Path(__file__).resolve().parent.parent.parent / "docs/API.md").read_text()
    assert "| `max_tokens` | chat | whole number, from 1 |" in page
    assert re.search(r"\| `max_tokens` \| completions \| whole number, from 0 \|.*`echo`", page)


@pytest.mark.parametrize("args,says", [
    (["--batch", "1,,2"], b"--batch 1,,2"), (["--batch", ",2"], b"--batch ,2"), (["--depth", "1k,"], b"--depth 1k,"),
    (["--batch", ""], b"numbers"), (["--ladder", "--probe"], b"do not go together")])
def test_bench_refuses(args, says):
    out = run("bench", NULL, *args, stdout=subprocess.PIPE)
    assert out.returncode == 2 and says in out.stderr and not out.stdout


@pytest.mark.parametrize("words", [["missing.gguf"], ["missing.gguf", "hi"], ["./no/such", "hi"]])
def test_a_file_that_is_not_there(words):
    out = run("run", *words, stdout=subprocess.PIPE)
    assert out.returncode == 2 and f"there is no file {words[0]}".encode() in out.stderr and not out.stdout


def bench_on_a_terminal(*args):
    """(standard output, what the terminal that standard error is got)"""
    master, slave = pty.openpty()
    with subprocess.Popen([program(CONIFER), "bench", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=slave) as p:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # the other end is gone
            pass
        os.close(master)
        said = p.stdout.read()
        assert p.wait(120) == 0, shown
    return said.decode(), shown.decode()


def test_bench_shows_where_it_is():
    args = [NULL, "--batch", "3", "--depth", "40", *QUICK]
    said, shown = bench_on_a_terminal(*args)
    for stage in ("first run", "round 1 of 2", "round 2 of 2"):
        for point in ("decode behind 16 tokens", "decode, streams: 3", "decode behind 40 tokens"):
            assert f"\r{stage}: {point}\033[K" in shown
    assert shown.endswith("\r\033[K") and "\n" not in shown
    assert "round 1" not in said
    quiet = run("bench", *args, stdout=subprocess.PIPE)
    assert quiet.returncode == 0 and quiet.stderr == b""
    _, shown = bench_on_a_terminal("--ladder", tiny_model(), "--threads", "1")
    assert "\rKV cache\033[K" in shown and shown.endswith("\r\033[K")


def test_bench_says_which_model(tmp_path):
    real_model_path()
    out = run("bench", "--batch", "0", "--depth", "0", *QUICK, "--rounds", "1", stdout=subprocess.PIPE)
    assert out.returncode == 0 and b"the default, smollm2-135m" in out.stderr
    (tmp_path / "c.yaml").write_text("model:\n  path: null:vocab=1000\n")
    out = run("bench", "--config", tmp_path / "c.yaml", "--batch", "0", "--depth", "0", *QUICK,
              stdout=subprocess.PIPE)
    assert out.returncode == 0 and b"default" not in out.stderr


def test_bench_fits_a_terminal():
    said, _ = bench_on_a_terminal(tiny_model(), *QUICK, "--batch", "16", "--depth", "200")
    table = [x for x in said.splitlines() if "not measured: " not in x]
    assert any(x.startswith("  first token, prompt of 16") for x in table)
    assert max(map(len, table)) <= 80, said
    assert "Above 1:\nthe processor's last cache" in said
