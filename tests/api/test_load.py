"""conifer-load: against the daemon, whose own counts it must agree with, and against a stand-in
that misbehaves in every way a server can."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import BUILD, program, unless_still

LOAD = BUILD / "loadtest/conifer-load"


def load(url, *args, scenario=None, tmp_path=None, expect=0):
    cmd = [program(LOAD), "--json", "--quiet"]
    if scenario is not None:
        (tmp_path / "scenario.yaml").write_text(scenario)
        cmd += ["-s", str(tmp_path / "scenario.yaml")]
    out = subprocess.run([*cmd, *args, url], capture_output=True, text=True, timeout=120, check=False)
    assert out.returncode == expect, out.stdout + out.stderr
    assert "Sanitizer" not in out.stderr and "runtime error" not in out.stderr, out.stderr
    return json.loads(out.stdout) if out.stdout else out.stderr


# ids that the tiny model has
IDS = ["--ids-from", "5", "--ids-to", "100"]


# ---- against the daemon ----------------------------------------------------------------------

def test_counts_agree_with_the_server(start):
    server = start.real()
    before = server.metrics()
    r = load(server.url, *IDS, "--clients", "4", "--requests", "12", "--prompt-tokens", "9",
             "--answer-tokens", "7", "--warmup-requests", "2")
    c = r["classes"][0]
    assert (c["sent"], c["done"], c["failed"], c["warmup"]) == (12, 12, 0, 2)
    assert c["prompt_tokens"] == 12 * 9 and c["answer_tokens"] == 12 * 7
    assert c["ttft_ms"]["n"] == c["total_ms"]["n"] == 12
    assert 0 < c["ttft_ms"]["p50"] <= c["total_ms"]["max"] <= r["wall_s"] * 1000 + 1
    # four clients keep their connections; one more may have asked for the model's name
    assert r["connections"] <= 5 and r["connections_reused"] >= 10
    after = server.wait_idle()
    made = "conifer_generated_tokens_total"
    assert after[made] - before[made] == 14 * 7


def test_each_kind_of_request(start):
    server = start.real()
    for endpoint in ("completions", "chat"):
        for stream in ("true", "false"):
            r = load(server.url + "/v1", *IDS, "--endpoint", endpoint, "--stream", stream,
                     "--requests", "3", "--answer-tokens", "5", "--prompt-tokens", "6",
                     "--keep-alive", "false")
            c = r["classes"][0]
            assert (c["done"], c["failed"]) == (3, 0), c
            assert c["answer_tokens"] == 15
            assert r["connections_reused"] == 0
            assert ("ttft_ms" in c) == (stream == "true")


def test_open_loop_aborts_and_slow_readers(start):
    server = start.real()
    r = load(server.url, *IDS, "--rate", "40", "--arrival", "even", "--requests", "20",
             "--answer-tokens", "40", "--prompt-tokens", "4", "--abort-share", "0.5",
             "--abort-events", "1..3", "--slow-share", "0.3", "--slow-bytes-per-s", "40000",
             "--seed", "3")
    c = r["classes"][0]
    assert c["done"] + c["aborted"] == 20 and c["failed"] == 0
    assert c["aborted"] > 3 and c["slow"] > 0
    assert c["total_ms"]["n"] == c["done"] - c["slow"]
    assert r["wall_s"] >= 19 / 40
    m = server.wait_idle()  # nothing of an abort stays
    assert m["conifer_requests_running"] == 0


@unless_still
def test_background_is_cut_and_gaps_are_told_apart(start, tmp_path):
    server = start.real()
    r = load(server.url, tmp_path=tmp_path, scenario="""
name: two
classes:
  - {name: streams, clients: 2, background: true, split_by: prompts, prompt_tokens: 4,
     answer_tokens: 200, ids_from: 5, ids_to: 100}
  - {name: prompts, requests: 3, start_s: 0.3, prompt_tokens: 60, answer_tokens: 1, ids_from: 5,
     ids_to: 100}
""")
    streams, prompts = r["classes"]
    assert prompts["done"] == 3 and prompts["failed"] == 0
    assert streams["failed"] == 0 and streams["cut"] == 2
    assert streams["itl_alone_ms"]["n"] > 0
    assert streams["alone_s"] + streams["beside_s"] == pytest.approx(r["window_s"], abs=0.01)


def test_tenants_have_their_share(start, tmp_path):
    out = [subprocess.run([program(BUILD / "cli/conifer"), "key", "new"], capture_output=True,
                          text=True, check=True).stdout for _ in range(2)]
    keys = [re.search(r"cnf_[\w-]+", t)[0] for t in out]
    hashes = [re.search(r"sha256:[0-9a-f]{64}", t)[0] for t in out]
    server = start.real(config="tenants:\n" + "".join(
        f"  - name: t{i}\n    keys: ['{h}']\n" for i, h in enumerate(hashes)))
    r = load(server.url, tmp_path=tmp_path, scenario=f"""
seed: 5
tenants: [{{name: a, key: {keys[0]}, share: 3}}, {{name: b, key: {keys[1]}}}, {{name: c, key: x, share: 0.5}}]
classes:
  - {{clients: 4, requests: 60, prompt_tokens: 4, answer_tokens: 3, ids_from: 5, ids_to: 100}}
""")
    a, b, c = r["tenants"]
    assert a["failed"] == b["failed"] == 0 and a["sent"] > b["sent"] > 0
    assert c["done"] == 0 and c["failed"] == c["sent"] > 0
    assert r["classes"][0]["statuses"] == {"401": c["sent"]}
    assert a["answer_tokens"] == 3 * a["sent"]
    assert load(server.url, "--requests", "1", expect=1).startswith("conifer-load: GET /v1/models: status 401")


# ---- against a stand-in ------------------------------------------------------------------------

def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text):
    return chunk(b"data: " + text + b"\n\n")


HEAD = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
TEXT = b'{"choices":[{"text":"a","finish_reason":null}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}'
END = event(b"[DONE]") + b"0\r\n\r\n"


def reply(body, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class StandIn(threading.Thread):
    """Answers request i with answers[i mod n]: bytes, or a function of the socket. Closes after an
    answer that says so by being a pair (bytes, "close")."""

    def __init__(self, answers):
        super().__init__(daemon=True)
        self.answers, self.count, self.lock = answers, 0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests = []
        self.start()

    def run(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        data = b""
        with s:
            try:
                while True:
                    while b"\r\n\r\n" not in data:
                        part = s.recv(65536)
                        if not part:
                            return
                        data += part
                    head, _, data = data.partition(b"\r\n\r\n")
                    length = int((re.search(rb"Content-Length: (\d+)", head) or [0, 0])[1])
                    while len(data) < length:
                        part = s.recv(65536)
                        if not part:
                            return
                        data += part
                    body, data = data[:length], data[length:]
                    with self.lock:
                        self.requests.append((head, body))
                        answer = self.answers[self.count % len(self.answers)]
                        self.count += 1
                    close = isinstance(answer, tuple)
                    answer = answer[0] if close else answer
                    if callable(answer):
                        answer(s)
                    else:
                        s.sendall(answer)
                    if close:
                        return
            except OSError:
                return

    def stop(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # ends an accept under way
        except OSError:
            pass
        self.listener.close()


@pytest.fixture
def stand_in():
    made = []

    def begin(*answers):
        made.append(StandIn(answers))
        return made[-1]

    yield begin
    for s in made:
        s.stop()


GOOD = HEAD + event(TEXT) * 3 + event(USAGE % 3) + END


@pytest.mark.parametrize("answer, kind", [
    ((HEAD + event(TEXT), "close"), "closed"),
    ((b"", "close"), "closed"),
    ((HEAD[:20], "close"), "closed"),
    (HEAD + event(TEXT) + b"0\r\n\r\n", "truncated"),
    (HEAD + event(TEXT) + event(b'{"error":{"message":"it broke"}}') + END, "error"),
    (HEAD + event(b"{not json") + END, "bad"),
    (HEAD + event(TEXT) * 2 + event(USAGE % 2) + END, "short"),
    ((b"SSH-2.0-x\r\n\r\n", "close"), "bad"),
    (reply(b'{"error":{"message":"slow down"}}', b"429 Too Many"), "status"),
    (reply(b"<html>", b"502 Bad Gateway"), "status"),
    (reply(b"{}", b"799 Odd"), "status"),
    (HEAD + END, "bad"),
    (lambda s: time.sleep(3), "timeout"),
])
@unless_still
def test_failures_by_kind(stand_in, answer, kind):
    server = stand_in(GOOD, answer)
    r = load(server.url, "--model", "m", "--requests", "4", "--answer-tokens", "3", "--timeout-s", "1",
             "--keep-alive", "false")
    c = r["classes"][0]
    assert (c["sent"], c["done"], c["failed"]) == (4, 2, 2), c
    assert c["failures"] == {kind: 2}, c
    assert c["first_failure"]
    if kind == "status":
        assert sum(c["statuses"].values()) == 2
    if kind == "error":
        assert "it broke" in c["first_failure"]


def test_all_failed_is_a_failure(stand_in):
    server = stand_in(reply(b"{}", b"500 No"))
    load(server.url, "--model", "m", "--requests", "2", expect=1)
    server.stop()
    assert "refused" in load(server.url, "--requests", "2", expect=1)
    r = load(server.url, "--model", "m", "--requests", "2", expect=1)
    assert r["classes"][0]["failures"] == {"connect": 2}


def test_a_kept_connection_that_closed_is_replaced(stand_in):
    """The server says keep-alive and closes all the same: no request may fail by it."""
    server = stand_in((GOOD, "close"))
    r = load(server.url, "--model", "m", "--requests", "6", "--answer-tokens", "3", "--think-s", "0.05")
    c = r["classes"][0]
    assert (c["done"], c["failed"]) == (6, 0), c


def test_bodies_that_end_with_the_connection(stand_in):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    text = b"data: " + TEXT + b"\n\n"
    server = stand_in((head + text * 3 + b"data: [DONE]\n\n", "close"))
    r = load(server.url, "--model", "m", "--requests", "3", "--answer-tokens", "3")
    assert (r["classes"][0]["done"], r["classes"][0]["answer_tokens"]) == (3, 9)


def test_whole_answers_without_usage(stand_in):
    server = stand_in(reply(b'{"choices":[{"message":{"content":"all of it"},"finish_reason":"stop"}]}'),
                      reply(b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}'))
    r = load(server.url, "--model", "m", "--requests", "2", "--endpoint", "chat", "--stream", "false")
    c = r["classes"][0]
    assert (c["done"], c["answer_tokens"], c["failures"]) == (1, 1, {"bad": 1})


def test_a_long_name_is_sent_whole(stand_in):
    server, name = stand_in(GOOD), "/models/" + "x" * 1000 + ".gguf"
    load(server.url, "--model", name, "--requests", "1", "--answer-tokens", "3")
    assert json.loads(server.requests[0][1])["model"] == name
    assert "model: longer than" in load(server.url, "--model", "x" * 5000, "--requests", "1", expect=1)


def test_the_table_has_the_field_s_words(stand_in):
    server = stand_in(GOOD)
    out = subprocess.run([program(LOAD), "--model", "m", "--requests", "2", "--answer-tokens", "3", server.url],
                         capture_output=True, text=True, timeout=120, check=True).stdout
    assert [row for row in ("TTFT", "ITL", "TPOT", "answer", "sent late") if f"\n  {row} " not in out] == []


def test_requests_as_sent(stand_in):
    server = stand_in(reply(b'{"data":[{"id":"the model"}]}'), GOOD)
    r = load(server.url + "/base/v1", "--requests", "1", "--answer-tokens", "3", "--key", "cnf_k",
             "--prompt-tokens", "5", "--seed", "4")
    assert r["model"] == "the model" and r["seed"] == 4
    (ask, _), (head, body) = server.requests
    assert ask.startswith(b"GET /base/v1/models HTTP/1.1\r\n")
    assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer cnf_k" in head
    body = json.loads(body)
    assert body["model"] == "the model" and len(body["prompt"]) == 5 and body["max_tokens"] == 3
    assert body["stream"] and body["stream_options"] == {"include_usage": True}


def test_latency_counts_from_when_a_request_was_due(stand_in):
    """The server stops for a second: an open loop must see all the requests that were due in it
    wait, not only the one that was on its way."""
    def freeze(s):
        with server.lock:  # nobody else is answered either
            time.sleep(1)
        s.sendall(GOOD)
    server = stand_in(*[GOOD] * 20, freeze, *[GOOD] * 1000)
    r = load(server.url, "--model", "m", "--rate", "50", "--arrival", "even", "--requests", "100",
             "--answer-tokens", "3")
    c = r["classes"][0]
    assert c["done"] == 100 and c["failed"] == 0
    # 50 were due in that second: a tenth of all waited more than 0.8 s, half of it less than 0.5
    assert c["total_ms"]["p90"] > 700, c["total_ms"]
    assert c["total_ms"]["max"] >= 1000


# a thousand million ids a second, which no machine writes
TOO_FAST = ["--model", "m", "--rate", "50000", "--prompt-tokens", "20000"]


def test_a_rate_that_cannot_be_made_ends_all_the_same(stand_in):
    server = stand_in(GOOD)
    server.stop()  # nobody listens
    r = load(server.url, *TOO_FAST, "--duration-s", "1", expect=1)
    c = r["classes"][0]
    assert 0 < c["sent"] < 50000 and c["failures"] == {"connect": c["sent"]}
    # how late it was, and what it never sent
    assert c["lag_ms"]["n"] == c["sent"] and c["behind_s"] > 0
    out = subprocess.run([program(LOAD), *TOO_FAST, "--duration-s", "1", server.url], capture_output=True,
                         text=True, timeout=120, check=False).stdout
    assert "s behind at the end" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_is_told(stand_in, number):
    def names_and_goes(s):
        s.sendall(reply(b'{"data":[{"id":"m"}]}'))
        server.stop()
    server = stand_in(names_and_goes)
    p = subprocess.Popen([program(LOAD), "--json", "--quiet", *TOO_FAST[2:], "--duration-s", "600", server.url],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not server.requests:  # from then on it minds signals
            assert p.poll() is None, p.stderr.read()
            time.sleep(0.01)
        time.sleep(0.5)  # and is at its sending
        p.send_signal(number)
        out, err = p.communicate(timeout=60)
    finally:
        p.kill()
    assert p.returncode in (0, 1) and not err  # 0: some were under way, and cut
    assert json.loads(out)["interrupted"] is True


@unless_still
def test_the_window_ends_when_sending_does(stand_in, tmp_path):
    """A request that runs on after that was beside nothing that is counted."""
    server = stand_in(paced(30, 0.05), lambda s: (time.sleep(2), s.sendall(GOOD)))
    r = load(server.url, tmp_path=tmp_path, scenario="""
model: m
duration_s: 1
classes:
  - {name: streams, requests: 1, split_by: prompts, answer_tokens: 30}
  - {name: prompts, requests: 1, start_s: 0.6, answer_tokens: 3}
""")
    streams = r["classes"][0]
    assert r["window_s"] == pytest.approx(1, abs=0.001)
    assert streams["alone_s"] >= 0.599 and streams["alone_s"] + streams["beside_s"] == pytest.approx(1, abs=0.002)


def paced(n, gap_s):
    """A stream of n tokens, one after each gap."""
    def answer(s):
        s.sendall(HEAD)
        for _ in range(n):
            time.sleep(gap_s)
            s.sendall(event(TEXT))
        s.sendall(event(USAGE % n) + END)
    return answer


@unless_still
def test_a_class_has_a_time_of_its_own(stand_in, tmp_path):
    """One that is done early, and one that begins late, had their tokens in their own time."""
    server = stand_in(paced(10, 0.02))
    r = load(server.url, tmp_path=tmp_path, scenario="""
model: m
classes:
  - {name: early, requests: 1, split_by: late, answer_tokens: 10}
  - {name: late, requests: 2, start_s: 0.8, answer_tokens: 10}
""")
    early, late = r["classes"]
    assert r["window_s"] > 1.2 and early["window_s"] == pytest.approx(early["total_ms"]["max"] / 1e3, abs=0.05)
    assert late["window_s"] == pytest.approx(r["window_s"] - 0.8, abs=0.001)
    for c, n in ((early, 10), (late, 20)):
        assert c["tokens_per_s"] == pytest.approx(n / c["window_s"], rel=0.001)
        assert c["answers_per_s"] == pytest.approx(n / 10 / c["window_s"], rel=0.001)
    assert early["beside_s"] == early["beside_tokens_per_s"] == 0  # it was over when the other began
    assert early["alone_s"] == pytest.approx(early["window_s"], abs=0.001)
    assert early["alone_tokens_per_s"] == pytest.approx(early["tokens_per_s"], rel=0.01)
    out = subprocess.run([program(LOAD), "-s", str(tmp_path / "scenario.yaml"), "--quiet", server.url], capture_output=True,
                         text=True, timeout=60, check=True).stdout
    assert len(re.findall(r"tokens/s, .* answers/s in its \d\.\d\d s;", out)) == 2


@unless_still
def test_what_was_beside_is_of_its_own_time(stand_in, tmp_path):
    """Of what the other class does nothing counts that was before this one began or after it ended."""
    server = stand_in(paced(30, 0.05), paced(10, 0.02))
    r = load(server.url, tmp_path=tmp_path, scenario="""
model: m
classes:
  - {name: long, requests: 1, answer_tokens: 30}
  - {name: short, requests: 1, start_s: 0.5, split_by: long, answer_tokens: 10}
""")
    short = r["classes"][1]
    assert r["window_s"] > 1.4 and short["window_s"] == pytest.approx(short["total_ms"]["max"] / 1e3, abs=0.05)
    assert short["alone_s"] == pytest.approx(0, abs=0.002)
    assert short["beside_s"] == pytest.approx(short["window_s"], abs=0.002)
    assert short["beside_tokens_per_s"] == pytest.approx(10 / short["window_s"], rel=0.01)


@pytest.mark.parametrize("stream", ["true", "false"])
@unless_still
def test_answers_that_end_after_the_sending(stand_in, tmp_path, stream):
    """Of their tokens those count that came, or, where nobody sees them come, are due to the time inside."""
    whole = b'{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":40}}'
    server = stand_in(paced(40, 0.05) if stream == "true" else lambda s: (time.sleep(2), s.sendall(reply(whole))))
    r = load(server.url, "--model", "m", "--duration-s", "1", "--requests", "1", "--answer-tokens", "40",
             "--stream", stream)
    c = r["classes"][0]
    assert (c["done"], c["answer_tokens"]) == (1, 40) and c["window_s"] == pytest.approx(1, abs=0.001)
    assert c["tokens_per_s"] == pytest.approx(40 / c["total_ms"]["max"] * 1e3, rel=0.15)
    assert c["answers_per_s"] == 0  # none became whole inside


def test_many_connections(stand_in):
    """2,000 at once, each of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("too few descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    everyone = threading.Barrier(2000)

    def hold(s):
        s.sendall(HEAD + event(TEXT))
        everyone.wait(60)
        s.sendall(event(TEXT) * 2 + END)
    threading.stack_size(256 * 1024)
    try:
        server = stand_in(hold)
        r = load(server.url, "--model", "m", "--clients", "2000", "--requests", "2000",
                 "--answer-tokens", "3")
    finally:
        threading.stack_size(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (r["classes"][0]["done"], r["classes"][0]["failed"]) == (2000, 0)
    assert r["connections"] == 2000


# ---- options ------------------------------------------------------------------------------------

def test_options_that_are_wrong(tmp_path):
    bad = tmp_path / "s.yaml"
    bad.write_text("classes:\n  - clients: many\n")
    good = tmp_path / "t.yaml"
    good.write_text("classes:\n  - clients: 1\n    requests: 1\n")
    for args, message in [
            ([], "which server?"), (["--requests"], "needs a value"), (["--colour", "1", "x"], "unknown option"),
            (["-s", str(bad), "http://h"], f"{bad}:2:14: clients: must be a whole number"),
            (["--requests", "x", "http://h"], "must be a whole number"),
            (["--set", "a=b", "http://h"], "CLASS.KEY=VALUE"), (["http://h"], "how many?"),
            (["-s", "nowhere.yaml", "http://h"], "cannot be opened"),
            (["--scenario=nowhere.yaml", "http://h"], "nowhere.yaml: cannot be opened"),
            (["-s", str(good), f"--scenario={good}", "http://h"], "one scenario at a time"),
            (["--key=K", "--clients=1", "--requests=1", "a", "b"], "one server at a time"),
            (["--key", "a\r\nX: y", "--requests", "1", "http://h"], "must be one line")]:
        out = subprocess.run([program(LOAD), *args], capture_output=True, text=True, check=False)
        assert out.returncode == 2 and message in out.stderr, (args, out.stderr)
    out = subprocess.run([program(LOAD), "--requests", "1", "https://h"], capture_output=True,
                         text=True, check=False)
    assert out.returncode == 1 and "only http://" in out.stderr
    out = subprocess.run([program(LOAD), "--requests", "1", "http://h"], capture_output=True, text=True,
                         env={**os.environ, "OPENAI_API_KEY": "key\n"}, check=False)
    assert out.returncode == 2 and "must be one line" in out.stderr
    out = subprocess.run([program(LOAD), "--help"], capture_output=True, text=True, check=True).stdout
    assert "--prefix-tokens" in out and "--duration-s" in out
    options = re.findall(r"^  (--[\w-]+)", out, re.M)
    assert len(options) == len(set(options)) > 30
