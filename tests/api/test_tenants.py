"""Tenants and keys that change while the server runs: SIGHUP reads them again."""
import hashlib
import http.client
import json
import os
import random
import re
import signal
import threading
import time

from conftest import sse, until
from test_cost import sanitized

NAMES = ("alpha", "beta", "gamma", "delta")


def key(name, n=0):
    return "cnf_" + hashlib.sha256(f"{name}.{n}".encode()).hexdigest()[:43]


def bearer(name, n=0):
    return {"Authorization": f"Bearer {key(name, n)}"}


def config(tenants, extra=""):
    """tenants: {name: {"keys": numbers of its keys, other settings}}"""
    out = [extra, "tenants:"]
    for name, more in tenants.items():
        out += [f"  - name: {name}", "    keys:"]
        out += [f"      - sha256:{hashlib.sha256(key(name, n).encode()).hexdigest()}"
                for n in more.get("keys", (0,))]
        out += [f"    {k}: {v}" for k, v in more.items() if k != "keys"]
    return "\n".join(out) + "\n"


def reread(s, text, want=r"tenants: \d+ added"):
    """Gives the server another file; its one line about it."""
    (s.path / "conifer.yaml").write_text(text)
    n = len(re.findall(r"server: (?:tenants: \d|tenants and keys were not)", s.text()))
    s.process.send_signal(signal.SIGHUP)
    until(lambda: len(re.findall(r"server: (?:tenants: \d|tenants and keys were not)", s.text())) > n)
    line = re.findall(r"server: (tenants.*)", s.text())[-1]
    assert re.search(want, line), line
    return line


def models(s, name, n=0):
    return s.get("/v1/models", headers=bearer(name, n))[0]


def ask(s, name, n=0, **more):
    return s.post("/v1/completions", {"prompt": "one two", "max_tokens": 4, **more}, headers=bearer(name, n))


class Stream:
    """A stream that is read to its end by a thread."""

    def __init__(self, s, name, n=0, **more):
        self.conn = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        body = {"prompt": "one two three", "max_tokens": 400, "stream": True, **more}
        self.conn.request("POST", "/v1/completions", json.dumps(body),
                          {"Content-Type": "application/json", **bearer(name, n)})
        self.answer = self.conn.getresponse()
        assert self.answer.status == 200
        self.data = self.answer.readline()
        self.ended = None
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        try:
            while chunk := self.answer.read1(65536):
                self.data += chunk
        finally:
            self.ended = time.time()

    def end(self):
        self.thread.join()
        self.conn.close()
        return sse(self.data)


SLOW = {"CONIFER_FAKE_DELAY_US": "20000"}


def test_a_tenant_comes(start):
    s = start.real(config=config({"alpha": {}}), model="null:", template=False)
    assert models(s, "alpha") == 200 and models(s, "beta") == 401
    line = reread(s, config({"alpha": {}, "beta": {"keys": (0, 1)}}))
    assert "1 added, 0 changed, 0 removed; 0 keys revoked" in line
    assert models(s, "beta") == models(s, "beta", 1) == models(s, "alpha") == 200
    assert ask(s, "beta", 1)[0] == 200
    assert 'conifer_tenant_requests_total{tenant="beta",result="ok"} 1' in \
        s.get("/metrics", headers=bearer("beta"))[2].decode()
    until(lambda: "request tenant=beta" in s.text())
    assert s.stop() == 0


def test_a_key_goes(start):
    """Its streams end at once with key_revoked; those of other keys, and of the tenant's others, go on."""
    s = start(config=config({"alpha": {"keys": (0, 1)}, "beta": {}}), env=SLOW)
    doomed = [Stream(s, "alpha", 0) for _ in range(3)]
    others = [Stream(s, "alpha", 1, max_tokens=200), Stream(s, "beta", max_tokens=200)]
    whole = {}
    waits = threading.Thread(target=lambda: whole.update(answer=ask(s, "alpha", 0, max_tokens=400)))
    waits.start()
    time.sleep(0.3)
    line = reread(s, config({"alpha": {"keys": (1,)}, "beta": {}}))
    told = time.time()
    assert "0 added, 0 changed, 0 removed; 1 keys revoked, 4 requests ended" in line
    for d in doomed:
        events = d.end()
        assert events[-1]["error"]["code"] == "key_revoked", events[-1]
        assert d.ended < told + 2
    waits.join()
    assert whole["answer"][0] == 401 and whole["answer"][1]["error"]["code"] == "key_revoked"
    for o in others:
        events = o.end()
        assert events[-1] == "[DONE]" and not any("error" in e for e in events[:-1])
    assert models(s, "alpha", 0) == 401 and models(s, "alpha", 1) == 200
    assert s.stop() == 0


def test_a_key_goes_before_the_next_step(start):
    """Steps of half a second each: streams end without waiting for the one that runs, and the engine has
    left them after it."""
    s = start.real("--set", "engine.device=async", "--set", "engine.async_delay_s=0.5",
                   config=config({"alpha": {"keys": (0, 1)}}), model="null:", template=False)

    def steps():
        return s.metrics(bearer("alpha", 1))["conifer_engine_steps_total"]

    doomed = [Stream(s, "alpha", 0) for _ in range(3)]
    reread(s, config({"alpha": {"keys": (1,)}}))
    before = steps()
    for d in doomed:
        assert d.end()[-1]["error"]["code"] == "key_revoked"
    assert steps() <= before + 1
    until(lambda: s.metrics(bearer("alpha", 1))["conifer_requests_running"] == 0)
    assert steps() <= before + 2  # those that were in flight
    assert s.stop() == 0


def test_a_tenant_goes_and_its_name_comes_again(start):
    s = start.real(config=config({"alpha": {}, "beta": {}}), model="null:context=1000000", template=False)
    kept = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    kept.request("GET", "/v1/models", headers=bearer("beta"))
    assert kept.getresponse().read()
    doomed = Stream(s, "beta", max_tokens=900000)
    line = reread(s, config({"alpha": {}}))
    assert "1 removed; 1 keys revoked, 1 requests ended" in line
    assert doomed.end()[-1]["error"]["code"] == "key_revoked"
    assert models(s, "beta") == 401 and ask(s, "alpha")[0] == 200
    until(lambda: kept.sock.recv(1) == b"")  # its idle connection is closed
    until(lambda: 'tenant="beta"' not in s.get("/metrics", headers=bearer("alpha"))[2].decode())
    for _ in range(3):  # names come and go, slots are used again
        reread(s, config({"alpha": {}, "beta": {}, "gamma": {}}))
        assert ask(s, "beta")[0] == ask(s, "gamma")[0] == 200
        reread(s, config({"alpha": {}, "gamma": {}}))
        assert models(s, "beta") == 401 and ask(s, "gamma")[0] == 200
        reread(s, config({"alpha": {}}))
        time.sleep(0.2)
    assert s.stop() == 0


def test_a_new_tenant_finds_nothing_of_the_old_one(start):
    s = start.real(config=config({"alpha": {}, "beta": {}}), model="null:", template=False)

    def cached(name):
        return ask(s, name, prompt="word " * 300)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached("beta") == 0 and cached("beta") > 200
    for i in range(6):
        name = f"t{i}"  # one of them gets beta's slot
        reread(s, config({"alpha": {}, name: {}}))
        time.sleep(0.25)
        assert cached(name) == 0 and cached(name) > 200
    assert cached("alpha") == 0
    assert s.stop() == 0


def test_a_bad_file_changes_nothing(start):
    good = config({"alpha": {}, "beta": {}})
    s = start.real(config=good, model="null:", template=False)
    for bad, want in (("tenants: [", r"conifer.yaml:\d+:\d+"),
                      (good + "nonsense: {}\n", "nonsense"),
                      (config({"alpha": {"weight": -1}}), r"conifer.yaml:\d+:\d+: tenants.weight"),
                      (config({"alpha": {}}) + "  - {name: alpha}\n", "no key|named"),
                      (good.replace("name: beta", "name: alpha"), "two tenants are named"),
                      ("server: {port: 0}\n", "restart"), (config({"alpha": {}}, "server: {host: ''}"), "host")):
        line = reread(s, bad, "were not changed")
        assert re.search(want, line), line
        assert models(s, "alpha") == models(s, "beta") == 200
    (s.path / "conifer.yaml").unlink()
    s.process.send_signal(signal.SIGHUP)
    until(lambda: s.text().count("were not changed") == 8)
    assert models(s, "alpha") == 200
    reread(s, config({"beta": {}}))
    assert models(s, "alpha") == 401 and models(s, "beta") == 200
    assert s.stop() == 0


def test_a_request_of_a_removed_tenant_is_answered(start):
    """One that is not a stream: its client reads the error before the connection closes."""
    s = start.real(config=config({"alpha": {}, "beta": {}}), model="null:context=1000000", template=False)
    for _ in range(5):
        got = {}
        waits = threading.Thread(target=lambda: got.update(answer=ask(s, "beta", max_tokens=900000, ignore_eos=True)))
        waits.start()
        until(lambda: s.metrics(headers=bearer("alpha"))["conifer_requests_running"] == 1)
        reread(s, config({"alpha": {}}))
        waits.join()
        assert got["answer"][0] == 401 and got["answer"][1]["error"]["code"] == "key_revoked", got
        reread(s, config({"alpha": {}, "beta": {}}))
    assert s.stop() == 0


def test_signals_do_not_kill(start):
    """SIGHUP and SIGUSR1 at any moment: from the start on, and until the process has ended."""
    for i in range(8):
        s = start.real(config=config({"alpha": {}}), model="null:", template=False, wait=False)
        until(s.text)  # it has read its config
        for _ in range(3 * i):
            s.process.send_signal(random.choice((signal.SIGHUP, signal.SIGUSR1)))
            time.sleep(0.01)
            if "serving" in s.text():
                break
        s.wait_ready()
        reread(s, config({"alpha": {}, "beta": {}}))  # libuv has its threads from here on
        s.process.send_signal(signal.SIGTERM)
        while s.process.poll() is None:
            s.process.send_signal(random.choice((signal.SIGHUP, signal.SIGUSR1)))
            time.sleep(0.0005)
        assert s.process.returncode == 0, (i, s.process.returncode, s.text()[-500:])
        assert s.stop() == 0


def test_what_is_no_file_holds_up_nothing(start):
    """A pipe without a writer, or a terminal, in the config's place: refused at once, and read again later."""
    good = config({"alpha": {}, "beta": {}})
    s = start.real(config=good, model="null:", template=False)
    path = s.path / "conifer.yaml"
    for i, make in enumerate((os.mkfifo, lambda p: os.symlink("/dev/ptmx", p), os.mkdir)):
        path.unlink()
        make(path)
        s.process.send_signal(signal.SIGHUP)
        until(lambda n=i: s.text().count("were not changed") == n + 1)
        assert re.findall(r"were not changed: .*", s.text())[-1].endswith("conifer.yaml: not a regular file")
        assert models(s, "alpha") == models(s, "beta") == 200
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_text(good)
    reread(s, config({"beta": {}}))
    assert models(s, "alpha") == 401 and models(s, "beta") == 200
    assert s.stop() == 0


def test_a_name_that_comes_again_at_once_has_one_set_of_series(start):
    """The old tenant still has a stream that nobody reads."""
    s = start.real("--set", "server.stream_buffer_bytes=8KiB", config=config({"alpha": {"metrics": "all"}, "beta": {}}),
                   model="null:context=1000000", template=False)
    with s.connect(rcvbuf=4096) as c:
        body = json.dumps({"prompt": "one", "max_tokens": 900000, "stream": True, "ignore_eos": True})
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key('beta')}\r\n"
                  f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: s.metrics(headers=bearer("alpha"))["conifer_requests_paused"] == 1)
        reread(s, config({"alpha": {"metrics": "all"}}))
        reread(s, config({"alpha": {"metrics": "all"}, "beta": {}}))
        assert models(s, "beta") == 200
        page = s.get("/metrics", headers=bearer("alpha"))[2].decode()
        names = [line.rsplit(" ", 1)[0] for line in page.splitlines() if line[:1] != "#"]
        assert len(names) == len(set(names))
        assert sum('tenant="beta"' in n for n in names) == sum('tenant="alpha"' in n for n in names)
    assert s.stop() == 0


def test_other_settings_are_told(start):
    s = start.real(config=config({"alpha": {}}), model="null:", template=False)
    line = reread(s, config({"alpha": {}}, "server: {max_connections: 99}\nlimits: {max_n: 3}"))
    assert "takes a restart: server.max_connections, limits.max_n" in line
    assert "0 added, 0 changed, 0 removed" in line
    assert ask(s, "alpha", n=0)[0] == 200
    assert s.stop() == 0


def test_a_limit_takes_effect_at_once(start):
    s = start(config=config({"alpha": {"max_concurrency": 1, "max_queued": 1}, "beta": {}}), env=SLOW)
    first = [Stream(s, "alpha", max_tokens=150) for _ in range(2)]
    assert ask(s, "alpha")[0] == 429
    line = reread(s, config({"alpha": {"max_concurrency": 2, "max_queued": 2, "weight": 3}, "beta": {}}))
    assert "0 added, 1 changed, 0 removed; 0 keys revoked, 0 requests ended" in line
    assert ask(s, "alpha")[0] == 200
    for f in first:
        assert f.end()[-1] == "[DONE]"
    assert s.stop() == 0


def test_a_burst_of_hangups_under_load(start):
    """Files that change all the time; the tenant that stays has every answer, and the same bytes."""
    more = "server: {failed_keys_per_minute: 0}"
    s = start.real(config=config({"alpha": {}}, more), model="null:", template=False)
    want = ask(s, "alpha", max_tokens=32, temperature=0)[1]["choices"][0]["text"]
    over, wrong, codes = threading.Event(), [], set()

    def steady():
        while not over.is_set():
            status, answer = ask(s, "alpha", max_tokens=32, temperature=0)
            if status != 200 or answer["choices"][0]["text"] != want:
                wrong.append(answer)

    def guest(name):
        while not over.is_set():
            status, answer = ask(s, name, max_tokens=32)
            codes.add(answer["error"]["code"] if status != 200 else 200)

    threads = [threading.Thread(target=steady) for _ in range(2)]
    threads += [threading.Thread(target=guest, args=(name,)) for name in NAMES[1:]]
    for t in threads:
        t.start()
    rng = random.Random(5)
    for i in range(60):
        there = {"alpha": {}} | {n: {"weight": rng.choice((1, 2, 5))} for n in NAMES[1:] if rng.random() < 0.5}
        (s.path / "new.yaml").write_text(config(there, more))
        (s.path / "new.yaml").rename(s.path / "conifer.yaml")
        for _ in range(rng.choice((1, 1, 8))):
            s.process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    reread(s, config({n: {} for n in NAMES}, more))
    over.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[:2]
    assert codes <= {200, "invalid_api_key", "key_revoked"}, codes
    assert all(ask(s, n)[0] == 200 for n in NAMES)
    assert "were not changed" not in s.text()
    assert s.stop() == 0


def test_ten_thousand_come_and_go(start):
    """By 2,000 at a time, beside one that stays; memory and blocks return to what they were."""
    more = "server: {failed_keys_per_minute: 0}"
    s = start.real(config=config({"alpha": {}}, more), model="null:", template=False)
    want = ask(s, "alpha", max_tokens=32, temperature=0)[1]["choices"][0]["text"]
    over, wrong = threading.Event(), []

    def rss():
        return int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4096 / 2**20

    def steady():
        while not over.is_set():
            status, answer = ask(s, "alpha", max_tokens=32, temperature=0)
            if status != 200 or answer["choices"][0]["text"] != want:
                wrong.append(answer)

    def blocks():
        m = s.metrics(bearer("alpha"))
        return sum(m[f'conifer_kv_blocks{{state="{k}"}}'] for k in ("filling", "ready", "copying", "cached"))

    thread = threading.Thread(target=steady)
    thread.start()
    sizes = [rss()]  # before any of them came
    for turn in range(5):
        line = reread(s, config({"alpha": {}} | {f"t{turn}.{i}": {} for i in range(2000)}, more))
        assert "2000 added, 0 changed, 0 removed" in line
        for i in range(0, 2000, 250):
            assert ask(s, f"t{turn}.{i}", prompt="word " * 300)[0] == 200
        assert blocks() > 8 * 10
        assert "2000 removed; 2000 keys revoked" in reread(s, config({"alpha": {}}, more))
        until(lambda: blocks() <= 4)  # alpha's alone
        sizes.append(rss())
    over.set()
    thread.join()
    assert not wrong, wrong[:2]
    if not sanitized():  # these keep what was freed
        assert max(sizes) < sizes[0] + 16, sizes  # the tables for 2,000 stay
        assert sizes[-1] < sizes[1] + 8, sizes
    assert s.stop() == 0
