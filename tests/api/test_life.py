"""Start, stop, drain, sockets from systemd, Unix sockets, settings that are wrong."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import FAKE, SERVER, Server, held, program, quick, sse, tiny_model, until
from test_stream import dechunk, post


def open_stream(s, n=500):
    c = s.connect()
    c.sendall(post("/v1/completions", {"prompt": "abcdef", "max_tokens": n, "stream": True}))
    data = b""
    while b"data: " not in data:
        data += c.recv(65536)
    return c, data


def rest(c, data):
    while part := c.recv(65536):
        data += part
    return data


def refuses(s):
    """Nobody listens at its port any more: it drains."""
    try:
        s.connect().close()
    except OSError:
        return True
    return False


def test_idle_stop(start):
    s = start()
    quick(3, lambda: s.stop(expect=0))


def test_kept_alive_connections_do_not_hold_it_up(start):
    s = start()
    c = s.connect()
    c.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200" in c.recv(1000)

    def stop():
        s.process.send_signal(signal.SIGTERM)
        assert c.recv(1000) == b""  # told at once
        c.close()
        s.stop(expect=0)
    quick(3, stop)


def test_drain_lets_streams_end(start, go):
    s = start(env=held(go, CONIFER_FAKE_DELAY_US="600000000"))
    c, data = open_stream(s, 100)
    idle = s.connect()
    half = s.connect()
    half.sendall(b"GET /health/ready HTTP/1.1\r\nHost: lo")
    until(lambda: s.metrics()["conifer_connections"] >= 4)  # these, whose bytes were read, and the one that asks
    s.process.send_signal(signal.SIGTERM)
    until(lambda: refuses(s))
    half.sendall(b"calhost\r\n\r\n")  # a connection that was at work hears that it is not ready
    assert half.recv(1000).startswith(b"HTTP/1.1 503 ")
    go.touch()
    data = rest(c, data)
    events = sse(dechunk(data.partition(b"\r\n\r\n")[2]))
    assert events[-1] == "[DONE]"
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == ("abcdef" * 17)[:100]
    for x in (c, idle, half):
        x.close()
    s.stop(expect=0)


def test_drain_delay(start, go):
    """For drain_delay_s a balancer sees that the server is not ready: health is answered, on a kept
    connection and on new ones, work is refused, and what runs goes on. Then nobody listens."""
    s = start("--set", "server.drain_delay_s=2", env=held(go, CONIFER_FAKE_DELAY_US="600000000"))
    c, data = open_stream(s, 100)
    kept = s.connect()
    kept.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in kept.recv(1000)
    began = time.time()
    s.process.send_signal(signal.SIGTERM)
    until(lambda: s.get("/health/ready")[0] == 503)
    assert s.get("/health/live")[0] == 200
    kept.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = kept.recv(1000)
    assert b" 503 " in answer and b"Connection: close" in answer and b"draining" in answer
    status, refused = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert status == 503 and refused["error"]["code"] == "shutting_down"
    go.touch()
    assert sse(dechunk(rest(c, data).partition(b"\r\n\r\n")[2]))[-1] == "[DONE]"
    until(lambda: refuses(s))
    assert time.time() - began > 1.9  # though nothing ran any more
    for x in (c, kept):
        x.close()
    s.stop(expect=0)


def test_drain_delay_ends_at_once(start):
    """A second signal does not wait for it."""
    s = start("--set", "server.drain_delay_s=600", "--set", "server.drain_timeout_s=600")
    s.process.send_signal(signal.SIGTERM)
    until(lambda: s.get("/health/ready")[0] == 503)
    quick(5, lambda: s.stop(expect=0))


def test_drain_has_a_deadline(start):
    s = start("--set", "server.drain_timeout_s=0.5", env={"CONIFER_FAKE_DELAY_US": "600000000"})
    c, data = open_stream(s)

    def drain():
        t = time.time()
        s.process.send_signal(signal.SIGTERM)
        events = sse(dechunk(rest(c, data).partition(b"\r\n\r\n")[2]))
        assert events[-1]["error"]["code"] == "shutting_down" and "[DONE]" not in events
        c.close()
        s.stop(expect=0)
        assert time.time() - t > 0.4
    quick(5, drain)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(start, second):
    s = start("--set", "server.drain_timeout_s=600", env={"CONIFER_FAKE_DELAY_US": "600000000"})
    c, data = open_stream(s)
    whole = s.connect()
    whole.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 500}))
    until(lambda: s.metrics()["conifer_requests_running"] == 2)

    def end():
        s.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(s))
        time.sleep(0.3)
        assert s.process.poll() is None
        s.process.send_signal(second)
        events = sse(dechunk(rest(c, data).partition(b"\r\n\r\n")[2]))
        assert events[-1]["error"]["code"] == "shutting_down"
        assert whole.recv(1000).startswith(b"HTTP/1.1 503 ")
        c.close()
        whole.close()
        s.stop(expect=0)
    quick(5, end)


def test_hangup_is_survived(start):
    s = start()
    s.process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert s.get("/health/live")[0] == 200


def test_its_terminal_is_closed(tmp_path):
    """That ends a server that was started in one; a signal of somebody's while it is open does not."""
    port = socket.create_server(("127.0.0.1", 0))
    n = port.getsockname()[1]
    port.close()
    log = open(tmp_path / "log", "wb")
    child, terminal = os.forkpty()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.dup2(log.fileno(), 2)
        os.execv(program(SERVER), [program(SERVER), "--model", "null:", "--port", str(n)])
    text = (tmp_path / "log").read_text
    until(lambda: "serving" in text())
    os.kill(child, signal.SIGHUP)
    until(lambda: "SIGHUP" in text())
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.close(terminal)
    until(lambda: "the terminal is closed" in text())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_real_drain(start):
    s = start.real()
    c = s.connect()
    c.sendall(post("/v1/completions", {"prompt": "abcdef", "max_tokens": 300, "stream": True,
                                       "ignore_eos": True}))
    data = c.recv(65536)
    s.process.send_signal(signal.SIGTERM)
    assert b"[DONE]" in rest(c, data)
    c.close()
    s.stop(expect=0)


@pytest.mark.alone
def test_ready_after_a_silence(start):
    """Time without work is no lack of progress: the first request after it is not stuck."""
    s = start.real()
    assert s.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})[0] == 200
    time.sleep(4)
    done = 'conifer_requests_total{result="ok"}'
    for _ in range(50):  # until it was at work at a look; those that look late find it done
        before = s.metrics()[done]
        with s.connect() as c:
            c.sendall(post("/v1/completions", {"prompt": "abcdef", "max_tokens": 480, "stream": True, "n": 8,
                                               "ignore_eos": True}))
            seen, over = 0, False
            while not over and seen < 10:
                status, _, data = s.get("/health/ready")
                assert status == 200, data
                m = s.metrics()
                seen += m["conifer_requests_running"] > 0
                over = m[done] > before
        if seen:
            return
    assert seen


def unix_get(path, request):
    with socket.socket(socket.AF_UNIX) as c:
        c.settimeout(60)
        c.connect(str(path))
        c.sendall(request)
        return c.recv(65536)


def test_unix_socket(start, tmp_path):
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # a file that nobody listens on is taken over
    s = start("--unix-socket", str(path))
    assert oct(path.stat().st_mode)[-3:] == "660"
    data = unix_get(path, b"GET /v1/models HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 200 ")
    out = subprocess.run([program(FAKE), "--model", tiny_model(), "--port", "0", "--unix-socket",
                          str(path)], capture_output=True, timeout=60, check=False)
    assert out.returncode == 1 and b"in use" in out.stderr  # one that is served is not
    s.stop(expect=0)
    assert not path.exists()


def test_port_taken(fake):
    def taken():
        out = subprocess.run([program(SERVER), "--model", tiny_model(), "--port", str(fake.port)],
                             capture_output=True, timeout=60, check=False)
        assert out.returncode == 1 and b"in use" in out.stderr
    quick(10, taken)


def test_handed_sockets(tmp_path):
    """As systemd hands them over: descriptors from 3 on."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(tmp_path / "u"))
    local.listen()
    script = ('import fcntl,os,sys\nfds=[int(x) for x in sys.argv[1].split(",")]\n'
              'tmp=[fcntl.fcntl(f,fcntl.F_DUPFD,20) for f in fds]\n'
              'for i,f in enumerate(tmp): os.dup2(f,3+i,inheritable=True)\n'
              'os.environ["LISTEN_PID"]=str(os.getpid())\nos.environ["LISTEN_FDS"]=str(len(fds))\n'
              'os.execv(sys.argv[2],sys.argv[2:])\n')
    fds = [listener.fileno(), local.fileno()]
    p = subprocess.Popen([os.sys.executable, "-c", script, ",".join(map(str, fds)), program(FAKE),
                          "--model", tiny_model(), "--port", "1"], pass_fds=fds,
                         stderr=subprocess.DEVNULL)
    try:
        request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as c:
            c.sendall(request)
            assert c.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert unix_get(tmp_path / "u", request).startswith(b"HTTP/1.1 200 ")
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0
        listener.close()
        local.close()


def test_notify(tmp_path, go):
    """READY, WATCHDOG while there is progress, STOPPING."""
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.bind(str(tmp_path / "n"))
    box.settimeout(60)
    s = Server(program(FAKE), tiny_model(), wait=False,
               env=held(go, NOTIFY_SOCKET=str(tmp_path / "n"), WATCHDOG_USEC="1000000",
                        CONIFER_FAKE_STALL_MS="600000", CONIFER_FAKE_STUCK_MS="500"))
    try:
        first = box.recv(1000)
        if not first:
            pytest.skip("built without libsystemd")
        assert first == b"READY=1"
        s.wait_ready()
        for _ in range(3):
            assert box.recv(1000) == b"WATCHDOG=1"
        with s.connect() as c:  # the engine stands still: no more pings
            c.sendall(post("/v1/completions", {"prompt": "abc", "max_tokens": 1}))
            until(lambda: "is stuck: " in s.text())
            box.setblocking(False)
            try:
                while box.recv(1000):
                    pass
            except BlockingIOError:
                pass
            time.sleep(0.8)
            with pytest.raises(BlockingIOError):
                box.recv(1000)
            box.settimeout(60)
            go.touch()
            assert box.recv(1000) == b"WATCHDOG=1"  # and it moves again
    finally:
        stop = threading.Thread(target=s.stop)
        stop.start()
        seen = set()
        while b"STOPPING=1" not in seen:
            seen.add(box.recv(1000))
        stop.join()


@pytest.mark.parametrize("args,want", [
    (["--check-config"], 0), (["--help"], 0), (["--version"], 0), (["--nonsense"], 2),
    (["extra"], 1), (["one", "two"], 2), (["--port", "x"], 2), (["--port"], 2), (["--set", "nokey=1"], 2),
    (["--host", "0.0.0.0"], 2), (["--config", "/nonexistent"], 1),
    (["--model", "/nonexistent.gguf"], 1), (["--model", "no-such-name"], 1)])
def test_arguments(args, want):
    if args == ["--check-config"]:
        args = [*args, "--model", tiny_model()]  # none was fetched, maybe
    out = subprocess.run([program(SERVER), *args], capture_output=True, timeout=60, check=False)
    assert out.returncode == want, out
    assert (out.stderr if want else out.stdout).strip()


def test_config_errors_have_a_place(tmp_path):
    f = tmp_path / "c.yaml"
    f.write_text("server:\n  port: 80\n  colour: red\n")
    out = subprocess.run([program(SERVER), "--check-config", "--config", str(f)], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 2 and "c.yaml:3:3" in out.stderr and "colour" in out.stderr


def test_rules_between_keys_have_a_place(tmp_path):
    f = tmp_path / "c.yaml"
    f.write_text("server:\n  port: 80\n  host: 0.0.0.0\n")
    out = subprocess.run([program(SERVER), "--check-config", "--config", str(f)], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 2 and "c.yaml:3:3: server.host" in out.stderr
    f.write_text("model:\n    name: no-such-name\n")
    out = subprocess.run([program(SERVER), "--check-config", "--config", str(f)], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 1 and "c.yaml:2:5: there is no model" in out.stderr


@pytest.mark.parametrize("check", [["--check-config"], ["--port", "0"]])
def test_every_error_is_told(tmp_path, check):
    """Those of the file, of the rules between its keys, and of the model: one round of mending is enough."""
    f = tmp_path / "c.yaml"
    f.write_text(f"server:\n  host: 0.0.0.0\n  idle_timeout_s: soon\n  colour: red\n"
                 f"model:\n  path: {tmp_path}/none.gguf\n  kv_type: f17\n")
    out = subprocess.run([program(SERVER), *check, "--threads", "x", "--config", str(f)],
                         capture_output=True, text=True, timeout=60, check=False)
    lines = out.stderr.splitlines()
    want = ["c.yaml:3:19: server.idle_timeout_s:", "c.yaml:4:3: server.colour:", "c.yaml:7:12: model.kv_type:",
            "--threads", "c.yaml:2:3: server.host", "c.yaml:6:3: model.path"]
    assert out.returncode == 2 and len(lines) == len(want), out.stderr
    for line, text in zip(lines, want):
        assert line.startswith("conifer-server: ") or "/conifer-server: " in line
        assert text in line


@pytest.mark.parametrize("check", [["--check-config"], ["--port", "0"]])
def test_context_beyond_training_is_refused(tmp_path, check):
    """Nothing is silently cut: not the window either."""
    f = tmp_path / "c.yaml"
    f.write_text(f"model:\n  path: {tiny_model()}\n  context: 99999\n")
    args = [program(SERVER), *check, "--config", str(f)]
    out = subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 1
    assert re.search(r"c\.yaml:3:3: model\.context is 99999 tokens, but .* trained for \d+:", out.stderr)
    out = subprocess.run([*args, "--context", "99998"], capture_output=True, text=True, timeout=60,
                         check=False)
    assert out.returncode == 1 and "--context: model.context is 99998 tokens" in out.stderr


def test_context_of_all_that_was_trained(start):
    out = subprocess.run([program(SERVER), "--model", tiny_model(), "--port", "0", "--context", "99999"],
                         capture_output=True, text=True, timeout=60, check=False)
    trained = int(re.search(r"trained for (\d+):", out.stderr).group(1))
    s = start.real("--context", str(trained))
    assert s.get("/v1/models")[0] == 200
    assert json.loads(s.get("/v1/models")[2])["data"][0]["max_model_len"] == trained


def test_bad_template(tmp_path):
    f = tmp_path / "t.jinja"
    f.write_text("{% for %}")
    out = subprocess.run([program(SERVER), "--model", tiny_model(), "--port", "0", "--chat-template",
                          str(f)], capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 1 and "line 1" in out.stderr
    missing = subprocess.run([program(SERVER), "--model", tiny_model(), "--port", "0",
                              "--chat-template", str(f) + "x"], capture_output=True, text=True,
                             timeout=60, check=False)
    assert missing.returncode == 1 and "t.jinjax" in missing.stderr


def test_pages(fake):
    v = json.loads(fake.get("/version")[2])
    assert v["version"] and v["model"] and v["system_fingerprint"]
    text = fake.get("/metrics")[2].decode()
    for name in ("conifer_requests_running", "conifer_requests_waiting", "conifer_connections",
                 'conifer_kv_blocks{state="free"}', "conifer_time_to_first_token_seconds_count"):
        assert name in text
