"""Servers for the API tests.

CONIFER_BUILD is the build folder (default: build). `fake` is the daemon over a stand-in for the
runtime (tests/server/fake_runtime.c), which answers exactly: token i of choice c is prompt token
(i + c) mod n. `tiny` is the whole daemon on a tiny random model of the oracle; `real` on SmolLM2.

A test's machine may stand still for seconds at any point, so that none relies on being somewhere in
time: what is to be seen on its way is held there until it was seen (`go`), a limit that ends a wait is
far above what is waited for, and times in which it stood still do not count (`quick`, `unless_still`).
"""
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

DEVICE = os.environ.get("CONIFER_DEVICE")  # all of the suite on another device than the config's
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("CONIFER_BUILD", ROOT / "build"))
ORACLE = pathlib.Path(os.environ.get("CONIFER_ORACLE", ROOT / "../shared/oracle"))
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
            "{% if tools %}[{{ tools | length }} tools]{% endif %}"
            "{% if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif %}"
            "{% if colour is defined %}[{{ colour }}]{% endif %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")
# All models of a list in the second of two engine groups, with half of the threads.
GROUPS = os.environ.get("CONIFER_GROUPS")
UNUSED = "unused"  # the first group's model, behind the others
CONIFER = BUILD / "cli/conifer"
SERVER = BUILD / "cli/conifer-server"
FAKE = BUILD / "tests/server/fake_server"
os.environ["CONIFER_HISTORY"] = ""  # chats of tests are not kept in the user's history


def pytest_collection_modifyitems(config, items):
    """On another device: tests that are seen to be of the stand-in are left out, as it has none; others
    are skipped when they start it (Server)."""
    def of_fake(item):
        at = getattr(item, "callspec", None)
        return {"fake", "slow"} & set(item.fixturenames) or at and "fake" in at.params.values()

    gone = [i for i in items if DEVICE and of_fake(i)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [i for i in items if i not in gone]


def program(path):
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return str(path)


def oracle(name):
    """A file of the reference data. The test is skipped where there is none of that data at all; a
    file that is missing from it is an error."""
    if not ORACLE.exists():
        pytest.skip("the oracle is not here")
    assert (ORACLE / name).exists(), f"{ORACLE / name} is missing from the reference data"
    return ORACLE / name


def oracle_files(pattern):
    """Such files for a parametrized test; none, which skips it, where that data is not here."""
    found = sorted(ORACLE.glob(pattern))
    assert found or not ORACLE.exists(), f"no {pattern} in the reference data at {ORACLE}"
    return found


def tiny_model():
    return str(oracle("models/llama3-gqa.gguf"))


def copy_tiny(path, change=lambda name, value: value, add=lambda writer: None):
    """The tiny model as another file. change(name, value): a key's value there, None to leave it out;
    add(writer): further keys."""
    import gguf
    import numpy as np
    data = pathlib.Path(tiny_model()).read_bytes()
    reader = gguf.GGUFReader(tiny_model())
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = change(field.name, field.contents())
        if value is not None:
            writer.add_key_value(field.name, value, field.types[0],
                                 field.types[-1] if len(field.types) > 1 else None)
    add(writer)
    for t in reader.tensors:
        raw = np.frombuffer(data[t.data_offset:t.data_offset + t.n_bytes], t.data.dtype)
        writer.add_tensor(t.name, raw.reshape(t.data.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def until(what, seconds=60):
    """Waits until what() is true, and gives it."""
    end = time.time() + seconds
    while not (found := what()):
        assert time.time() < end, "this never came"
        time.sleep(0.01)
    return found


class Stills(threading.Thread):
    """Sees the machine stand still: it asks to sleep for 20 ms, over and over, and notes when that took
    over 100 ms more."""

    def __init__(self):
        super().__init__(daemon=True)
        self.gaps = []
        self.start()

    def run(self):
        while True:
            began = time.monotonic()
            time.sleep(0.02)
            due, now = began + 0.02, time.monotonic()
            if now - due > 0.1:
                self.gaps.append((due, now))

    def since(self, began, end):
        """For how many of these seconds it stood still."""
        time.sleep(0.05)  # the last of it is noted
        return sum(max(0, min(woken, end) - max(due, began)) for due, woken in self.gaps)


STILLS = Stills()


def quick(limit_s, what):
    """What what() gives, in less than limit_s without the time in which the machine stood still."""
    began = time.monotonic()
    found = what()
    end = time.monotonic()
    took, still = end - began, STILLS.since(began, end)
    assert took - still < limit_s, f"took {took:.3f} s, {still:.3f} s of them the machine stood still"
    return found


def unless_still(test):
    """A test that reads clocks, of itself or of what it tests, and says nothing where the machine stood
    still in it: then, and only then, it is done again."""
    @functools.wraps(test)
    def again(*args, **more):
        for _ in range(5):
            began = time.monotonic()
            try:
                return test(*args, **more)
            except (AssertionError, TimeoutError):
                if not STILLS.since(began, time.monotonic()):
                    raise
        return test(*args, **more)
    return again


class Nginx:
    """An nginx whose server has this configuration. Its port is held for it while it starts."""

    def __init__(self, path, server, more=""):
        binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
        if not binary:
            pytest.skip("nginx is not installed")
        with socket.socket() as holder:  # bound, and not listening
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("127.0.0.1", 0))
            self.port = holder.getsockname()[1]
            (path / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {path}/pid; error_log {path}/error.log crit;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
    fastcgi_temp_path {path}/f; uwsgi_temp_path {path}/u; scgi_temp_path {path}/s;
    {more}
    server {{
        listen 127.0.0.1:{self.port} reuseport;
        {server}
    }}
}}
""")
            self.process = subprocess.Popen([binary, "-c", str(path / "nginx.conf"), "-p", str(path)],
                                            stderr=subprocess.DEVNULL)
            until(self.listens)
        self.url = f"http://127.0.0.1:{self.port}"

    def listens(self):
        assert self.process.poll() is None, "nginx did not start"
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def stop(self):
        self.process.terminate()
        self.process.wait()


def in_second_group(config):
    """The config with its models in the second group, which has the memory that it names."""
    import yaml
    c = yaml.safe_load(config)
    if not c.get("models") or "groups" in c:
        return config
    memory, kv = c.get("engine", {}).pop("memory_bytes", 0), c.get("kv", {}).pop("memory_bytes", 0)
    c["groups"] = [{"name": "first", "device": "cpu", "threads": 1, "memory_bytes": "64MiB",
                    "kv_memory_bytes": "8MiB"},
                   {"name": "second", "threads": 1, "memory_bytes": memory, "kv_memory_bytes": kv}]
    for m in c["models"]:
        m["group"] = "second"
    c["models"].insert(-1, {"name": UNUSED, "path": "null:"})  # so a place in the group is not the one in the list
    return yaml.safe_dump(c, sort_keys=False)


class Server:
    """One daemon of its own: started on a free port, stopped with SIGTERM, its log checked."""

    def __init__(self, binary, model, args=(), env=None, config=None, wait=True, popen=None,
                 template=True):
        if DEVICE and str(binary) == str(FAKE):
            pytest.skip("the stand-in has no device")
        self.dir = tempfile.TemporaryDirectory(prefix="conifer-test-")
        self.path = pathlib.Path(self.dir.name)
        (self.path / "template.jinja").write_text(TEMPLATE)
        self.log_path = self.path / "log"
        cmd = [str(binary), "--port", "0"]
        if model is not None:  # else the config says which
            cmd += ["--model", str(model)]
            if template and "smollm2" not in str(model).lower():
                cmd += ["--chat-template", str(self.path / "template.jinja")]
        if config is not None and GROUPS and binary == str(SERVER):
            config = in_second_group(config)
        if config is not None:
            (self.path / "conifer.yaml").write_text(config)
            cmd += ["--config", str(self.path / "conifer.yaml")]
        if DEVICE:
            cmd += ["--set", "engine.device=" + DEVICE]  # a test may name another one
        cmd += list(args)
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(cmd, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {})}, **(popen or {}))
        self.port = None
        self.clients = []
        self.stopped = False
        if wait:
            self.wait_ready()

    def text(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            found = re.search(r"serving \S+ on http://\S*:(\d+)", self.text())
            if found:
                self.port = int(found.group(1))
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("the server did not start:\n" + self.text())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def client(self, key="none", **more):
        import openai
        more.setdefault("max_retries", 0)
        self.clients.append(openai.OpenAI(base_url=self.url + "/v1", api_key=key, **more))
        return self.clients[-1]

    def http(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes); errors are answers too."""
        data = None
        headers = dict(headers or {})
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        req = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(req, timeout=timeout) as r:
                return r.status, dict(r.headers), r.read()
        except urllib.error.HTTPError as e:
            return e.code, dict(e.headers), e.read()

    def get(self, path, **more):
        return self.http("GET", path, **more)

    def post(self, path, body, **more):
        status, _, data = self.http("POST", path, body, **more)
        return status, json.loads(data)

    def connect(self, rcvbuf=None):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(60)
        s.connect(("127.0.0.1", self.port))
        return s

    def metrics(self, headers=None):
        text = self.get("/metrics", headers=headers)[2].decode()
        return {k: float(v) for k, v in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.M)}

    def wait_idle(self, seconds=60, connections=None, **want):
        """Nothing runs or waits; with `connections`, at most so many are open, this page's included
        (clients that keep theirs alive are not to be counted)."""
        end = time.time() + seconds
        m = {}
        while time.time() < end:
            m = self.metrics()
            if (m["conifer_requests_running"] == 0 and m["conifer_requests_waiting"] == 0
                    and (connections is None or m["conifer_connections"] <= connections)
                    and all(m[k] == v for k, v in want.items())):
                return m
            time.sleep(0.05)
        shown = {k: v for k, v in m.items() if "bucket" not in k}
        raise AssertionError(f"not idle: {shown}, wanted {want}")

    def ended(self, n):
        """The metrics when n requests in all have ended there: an answer is out before they tell."""
        until(lambda: sum(v for k, v in self.metrics().items() if k.startswith("conifer_requests_total")
                          and "refused" not in k) >= n)
        return self.metrics()

    def stop(self, expect=0, seconds=60, busy=False):
        """busy: clients are at work. The others hang up first: a connection that is kept, and not
        closed by its client, holds the end up for the server's 5 s."""
        if self.stopped:
            return self.process.returncode
        self.stopped = True
        for c in () if busy else self.clients:
            c.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            rc = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not stop:\n" + self.text()) from None
        finally:
            self.log.close()
            text = self.text()
            self.dir.cleanup()
        assert "Sanitizer" not in text and "runtime error:" not in text, text
        if expect is not None:
            assert rc == expect, f"exit status {rc}\n{text}"
        return rc


@pytest.fixture
def start():
    """start(...): a fake server that ends with the test. start.real(...): the whole daemon."""
    servers = []

    def begin(*args, binary=None, model=None, **more):
        s = Server(binary or program(FAKE), model or tiny_model(), args, **more)
        servers.append(s)
        return s

    def real(*args, **more):
        return begin(*args, binary=program(SERVER), **more)

    begin.real = real
    yield begin
    for s in servers:
        s.stop(expect=None)


@pytest.fixture
def go(tmp_path):
    """A file to be made: with env=held(go, ...) the stand-in holds, delays, loads and stands still until
    it is there."""
    return tmp_path / "go"


def held(go, **more):
    return {"CONIFER_FAKE_GO": str(go), **more}


@pytest.fixture(scope="session")
def fake():
    s = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_DELAY_US": "500"})
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(scope="session")
def tiny():
    s = Server(program(SERVER), tiny_model())
    yield s
    s.wait_idle()
    s.stop()


def real_model_path():
    home = os.environ.get("CONIFER_HOME")
    data = os.environ.get("XDG_DATA_HOME", os.path.expanduser("~/.local/share"))
    models = pathlib.Path(home) / "models" if home else pathlib.Path(data) / "conifer/models"
    path = models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not here (tools/fetch_models.py smollm2-135m)")
    return path


@pytest.fixture(scope="session")
def real():
    s = Server(program(SERVER), real_model_path())
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(params=["fake", "tiny", pytest.param("real", marks=pytest.mark.real_model)])
def any_server(request):
    """Each kind in turn: what holds for all of them."""
    return request.getfixturevalue(request.param)


def sse(data):
    """Events of a stream's bytes: decoded JSON, or the text of [DONE]."""
    out = []
    for block in data.decode().split("\n\n"):
        for line in block.split("\n"):  # texts may contain other line ends
            if line.startswith("data: "):
                text = line[6:]
                out.append(text if text == "[DONE]" else json.loads(text))
    return out
