"""Names of models and the models folder: pull, list, rm, run, serve; the bar on a terminal."""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest
from conftest import CONIFER, SERVER, program, tiny_model
from hub import gguf
from pulling import NAME, check, conifer, home, hub, left, other, pull, start


# ---- names, list, rm -------------------------------------------------------------------------------

def test_unknown_names(home):
    assert "did you mean" in pull("qwen3-30b", want=1)
    assert "qwen3-30b-a3b" in pull("qwen3-30b", want=1)
    assert "smollm2-135m" in pull("smolm2-135m", want=1)
    assert "phi-4-mini" in pull("phi4mini", want=1)
    assert "did you mean" not in pull("zzzzzzzzzz", want=1)
    assert "which model" in pull(want=2)
    assert '"a-b"; conifer list' in pull("a-b", want=1)


@pytest.mark.parametrize("source", [
    "hf:repo/file.gguf", "hf:org/repo", "hf:org/repo/file.bin", "hf:org/repo/../x.gguf", "hf:../repo/x.gguf",
    "hf:org/repo/a//x.gguf", "hf:org/re po/x.gguf", "hf:org/repo@/x.gguf", "hf:org/repo/.x.gguf",
    "hf:org/repo/a b.gguf", "https://host.invalid/", "https://host.invalid/x.bin", "ftp://host.invalid/x.gguf",
    "https://host.invalid/a%2fb%2f..%2f.gguf", "file:///etc/x.gguf", "pypi:a==1!b.gguf", "hf:", ":"])
def test_wrong_sources(home, source):
    out = pull(source, want=1)
    assert left(home) == []
    assert len(source) < 5 or out.count(source) <= 1, out  # told once


def test_list_and_rm(hub, home):
    assert "no model" in conifer("list", "--installed")
    assert "lfm2.5-1.2b" in conifer("list")
    home.mkdir(parents=True)
    shutil.copy(tiny_model(), home / "tiny.gguf")
    (home / "notes.txt").write_text("x")
    (home / "broken.gguf").write_text("x")
    (home / ".hidden.gguf").write_text("x")
    os.utime(home / "tiny.gguf", (1700000000, 1700000000))
    out = conifer("list", env={**os.environ, "TZ": "UTC"})
    here, catalog = out.split("Not here")
    assert re.search(r"tiny +\S+ [kM]B +\S+ +llama +2023-11-14 22:13", here)
    assert re.search(r"broken +1 B +\? +damaged", here)
    assert "notes" not in out and "hidden" not in out
    assert re.search(r"qwen3-30b-a3b +18\.6 GB +Q4_K_M +qwen3moe +Apache-2\.0", catalog)
    data = json.loads(conifer("list", "--json"))
    tiny = next(m for m in data if m["name"] == "tiny")
    assert tiny["installed"] and tiny["complete"] and tiny["runnable"]
    assert tiny["bytes"] == (home / "tiny.gguf").stat().st_size and tiny["modified"] == 1700000000
    assert not next(m for m in data if m["name"] == "qwen3-0.6b")["installed"]
    for wrong in ("../tiny", "a/b", "/etc/passwd", ".", "..", ".hidden", ""):
        assert "no model's name" in conifer("rm", "--", wrong, want=2)
    assert "tiny: " in conifer("rm", "tiny") and "freed" in conifer("rm", "broken.gguf")
    assert "no model" in conifer("rm", "tiny", want=1)
    assert left(home) == [".hidden.gguf", "notes.txt"]


def test_rm_of_what_was_begun(hub, home):
    data = gguf(200000)
    hub.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    pull("qwen3-0.6b", "--retries", "0", want=1)
    assert "100 kB of it are here" in conifer("list")
    assert "100 kB freed" in conifer("rm", "qwen3-0.6b")
    hub.once(lambda h, r: h.serve(r, send=150000) or True)
    pull(hub.add(NAME, "own.gguf", data), "--retries", "0", want=1)
    for args in ([], ["--installed"]):
        assert "own: 150 kB so far" in conifer("list", *args)
    assert "150 kB freed" in conifer("rm", "own")
    assert "own" not in conifer("list") and left(home) == []


def test_same_name_from_elsewhere(hub, other, home):
    pull(hub.add(NAME, "m.gguf", gguf(1000)))
    other.files["/m.gguf"] = gguf(1000, 2)
    assert "from hf:org/repo/m.gguf" in pull(f"{other.url}/m.gguf", want=1)
    assert "another sha256" in pull("hf:org/repo/m.gguf", "--sha256", "1" * 64, want=1)


# ---- run and serve ---------------------------------------------------------------------------------

def test_run_pulls(hub, home):
    data = pathlib.Path(tiny_model()).read_bytes()
    hub.add("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    out = conifer("run", "--model", "llama-3.2-1b", "--max-tokens", "3", "hello")
    assert "llama-3.2-1b: about 808 MB" in out
    check(home, "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    again = conifer("run", "--model", "llama-3.2-1b", "--max-tokens", "3", "hello")
    assert "about" not in again and len(hub.seen) == 1
    assert "no such file" in conifer("run", "--model", "llama-3.2-3b", "hello", want=1)


def test_serve_pulls_and_the_daemon_says(hub, home):
    data = pathlib.Path(tiny_model()).read_bytes()
    hub.add("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    out = subprocess.run([program(SERVER), "--model", "llama-3.2-1b", "--port", "0"], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 1 and "conifer pull llama-3.2-1b" in out.stderr
    assert not hub.seen
    p = start("serve", "--model", "llama-3.2-1b", "--port", "0")
    text, end = "", time.time() + 60
    while "serving llama-3.2-1b on" not in text and time.time() < end:
        assert select.select([p.stderr], [], [], 60)[0], text
        text += os.read(p.stderr.fileno(), 65536).decode()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 0 and len(hub.seen) == 1


def test_bar_on_a_terminal(hub, home):
    data = gguf(2000000)
    source = hub.add(NAME, "m.gguf", data)

    def slow(h, r):
        r.head(200, ETag=h.etag(r.path), Content_Length=len(data))
        for i in range(0, len(data), 100000):
            r.wfile.write(data[i:i + 100000])
            time.sleep(0.1)
        return True
    hub.once(slow)
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(program(CONIFER), ["conifer", "pull", source])
    shown = b""
    try:
        while True:
            shown += os.read(fd, 65536)
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    lines = [x for x in shown.decode().split("\r") if "[#" in x]
    assert len(lines) > 3
    assert any(re.search(r"m\.gguf \[#+\.+\] +\d+ % [\d.]+ [kM]B of 2\.0 MB, [\d.]+ [kM]B/s, 0:0\d left", x)
               for x in lines), lines
    check(home, "m.gguf", data)
