"""The process around the server: descriptors 0 to 2, a log nobody reads or that moves, an engine that is stuck."""
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import time

import pytest
from conftest import CONIFER, SERVER, held, program, quick, tiny_model, until

NULL = "null:context=4096"


# ---- descriptors that are closed at the start

def shell(text, **more):
    return subprocess.run(["sh", "-c", text], capture_output=True, timeout=60, check=False, **more)


def test_a_closed_standard_input_is_empty():
    """The model file, or what else is opened first, is not read as the prompt."""
    ask = f"exec {program(CONIFER)} run {tiny_model()} hello --max-tokens 4 --seed 1"
    closed, empty = shell(f"{ask} <&-"), shell(f"{ask} </dev/null")
    assert (closed.returncode, closed.stdout) == (empty.returncode, empty.stdout) and empty.returncode == 0, closed


def test_a_closed_standard_output_is_an_error():
    for closed in (">&-", "<&- >&-"):
        out = shell(f"exec {program(CONIFER)} run null: hello --max-tokens 4 {closed}")
        assert out.returncode == 1 and b"standard output" in out.stderr, out
    assert shell(f"exec {program(CONIFER)} run null: hello --max-tokens 4 2>&-").stdout.strip()


def test_a_server_without_standard_files(start, tmp_path):
    script = tmp_path / "closed"
    script.write_text(f'#!/bin/sh\nexec {program(SERVER)} "$@" <&- >&- 2>&-\n')
    script.chmod(0o755)
    log = tmp_path / "out.log"
    s = start("--set", f"log.file={log}", binary=script, model=NULL, wait=False)
    found = until(lambda: log.exists() and re.search(r"http://127.0.0.1:(\d+)", log.read_text()))
    s.port = int(found.group(1))
    assert s.get("/health/live")[0] == 200
    files = [os.readlink(f"/proc/{s.process.pid}/fd/{fd}") for fd in range(3)]
    assert files == ["/dev/null"] * 3
    assert s.stop() == 0


# ---- a log that nobody reads

def requests(s, n, headers=None, tokens=1):
    """The statuses of n completions over one connection."""
    body = json.dumps({"prompt": "abc", "max_tokens": tokens, "ignore_eos": True}).encode()
    more = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
    one = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{more}Content-Type: application/json\r\n" \
          f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    good = 0
    with s.connect() as c:
        for at in range(0, n, 20):
            c.sendall(one * min(20, n - at))
            data, want = b"", min(20, n - at)
            while data.count(b'"total_tokens"') < want:
                part = c.recv(1 << 20)
                assert part, data[-2000:]
                data += part
            good += data.count(b"HTTP/1.1 200 ")
    return good


@pytest.fixture
def unread(start, tmp_path):
    """unread(...): a daemon whose standard error is a pipe of one page, read until it serves and then no more;
    and the pipe."""
    def begin(*args):
        out, end = os.pipe()
        fcntl.fcntl(end, 1031, 4096)  # F_SETPIPE_SZ
        script = tmp_path / "unread"
        script.write_text(f'#!/bin/bash\nexec {program(SERVER)} "$@" 2>&{end} {end}>&-\n')
        script.chmod(0o755)
        s = start(*args, binary=script, model=NULL, wait=False, popen={"pass_fds": (end,)})
        os.close(end)
        data = b""
        while not (found := re.search(rb"http://127.0.0.1:(\d+)", data)):
            part = os.read(out, 4096)
            assert part, data
            data += part
        s.port = int(found.group(1))
        pipes.append(out)
        return s, out
    pipes = []
    yield begin
    for out in pipes:
        os.close(out)


def test_a_log_that_nobody_reads(unread):
    s, _ = unread()
    assert requests(s, 1200) == 1200
    for _ in range(20):
        quick(0.5, lambda: s.get("/health/live"))
    assert s.get("/health/ready")[0] == 200
    s.process.send_signal(signal.SIGUSR1)
    s.process.send_signal(signal.SIGHUP)
    assert requests(s, 10) == 10
    quick(10, lambda: s.stop(expect=0))


def test_lines_that_were_dropped_are_told(unread):
    """The ring holds 1 MiB; then lines are dropped and counted, and whoever reads again is told how many."""
    s, out = unread()
    name = {"X-Request-Id": "x" * 128}
    n = 0
    while not s.metrics()["conifer_log_lines_dropped_total"]:
        n += requests(s, 1000, name)
        assert n < 40000
    n += requests(s, 100, name)
    data = b""
    while not (said := re.search(rb"log: (\d+) log lines dropped", data)):
        data += os.read(out, 65536)
    lost = s.metrics()["conifer_log_lines_dropped_total"]
    assert int(said.group(1)) == lost > 0
    while data.count(b"request tenant=") + lost < n:
        data += os.read(out, 65536)
    assert data.count(b"request tenant=") + lost == n
    assert s.stop() == 0


# ---- a log file, and signals

def lines(path, word):
    return [x for x in path.read_text().splitlines() if word in x] if path.exists() else []


def test_a_log_file_is_reopened(start, tmp_path):
    log, old = tmp_path / "log", tmp_path / "log.1"
    s = start.real("--set", f"log.file={log}", model=NULL, wait=False, popen={"umask": 0o022})
    s.port = int(until(lambda: log.exists() and re.search(r"http://127.0.0.1:(\d+)", log.read_text())).group(1))
    assert log.stat().st_mode & 0o777 == 0o640
    requests(s, 5)
    until(lambda: len(lines(log, "request tenant=")) == 5)
    for turn, name in enumerate(("SIGUSR1", "SIGHUP")):
        log.rename(old)
        requests(s, 2)
        s.process.send_signal(signal.Signals[name])
        until(lambda: lines(log, "was reopened"))
        requests(s, 3)
        until(lambda: len(lines(log, "request tenant=")) == 3)
        assert len(lines(old, "request tenant=")) == (7, 5)[turn]
        told = {x for f in (old, log) for word in (name, "reopened", "anew") for x in lines(f, word)}
        assert len(told) == 1 + turn, told  # the old file has the turn before it
    assert len(lines(old, "restart the server to change") + lines(log, "restart the server to change")) == 1
    log.unlink()
    log.mkdir()  # it cannot be opened: the file in use is kept, and nothing ends
    s.process.send_signal(signal.SIGUSR1)
    assert requests(s, 2) == 2
    assert "request tenant=" not in s.text()
    assert s.stop() == 0


def test_signals_without_a_log_file(start):
    s = start.real(model=NULL)
    s.process.send_signal(signal.SIGUSR1)
    until(lambda: "SIGUSR1: there is no log.file" in s.text())
    s.process.send_signal(signal.SIGHUP)
    until(lambda: re.search(r"SIGHUP: .*settings are read at start only", s.text()))
    assert requests(s, 1) == 1
    assert s.stop() == 0


def test_a_signal_while_it_starts_or_ends(start):
    """Whenever it comes, SIGUSR1 kills nobody."""
    s = start.real(model=NULL, wait=False)
    # Until its own program runs, a child of Python's blocks every signal as well.
    until(lambda: os.readlink(f"/proc/{s.process.pid}/exe") == os.path.realpath(program(SERVER)))
    until(lambda: re.search(r"SigBlk:\s*\w*[2367abef]\w\w\n",
                            open(f"/proc/{s.process.pid}/status").read()) or "serving" in s.text())
    for _ in range(50):
        s.process.send_signal(signal.SIGUSR1)
        time.sleep(0.002)
    s.wait_ready()
    until(lambda: "SIGUSR1: " in s.text())
    s.process.send_signal(signal.SIGTERM)
    while s.process.poll() is None:
        s.process.send_signal(signal.SIGUSR1)
    assert s.process.returncode == 0


def test_a_log_file_that_cannot_be_opened(tmp_path):
    out = subprocess.run([program(SERVER), "--model", NULL, "--port", "0", "--set", f"log.file={tmp_path}"],
                         capture_output=True, timeout=60, check=False)
    assert out.returncode == 1 and b"log.file" in out.stderr, out


def test_a_full_disk_ends_nothing(start):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    s = start.real("--set", "log.file=/dev/full", model=NULL, wait=False)
    until(lambda: s.process.poll() is not None or listens(s))
    assert requests(s, 50) == 50
    assert s.metrics()["conifer_log_lines_dropped_total"] >= 50
    assert s.stop() == 0


def listens(s):
    """The port, from the kernel: there is no line of the log to tell."""
    inodes = set()
    for fd in os.listdir(f"/proc/{s.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            inodes.add(os.readlink(f"/proc/{s.process.pid}/fd/{fd}"))
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        f = line.split()
        if f[3] == "0A" and f"socket:[{f[9]}]" in inodes:
            s.port = int(f[1].split(":")[1], 16)
            return True
    return False


# ---- an engine that is stuck

def test_a_stuck_engine_ends_the_process(start, go):
    """Outside systemd too, with a status of its own."""
    s = start("--set", "engine.stuck_exit_s=1",
              env=held(go, CONIFER_FAKE_STALL_MS="600000", CONIFER_FAKE_STUCK_MS="500"))
    body = b'{"prompt":"abc","max_tokens":2}'
    with s.connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        c.recv(65536)  # nobody waits for ever
        assert quick(20, lambda: s.process.wait(60)) == 70
    assert "exit status 70" in s.text() and "engine.stuck_exit_s" in s.text()
