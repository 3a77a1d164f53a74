#!/usr/bin/env python3
"""What the server costs, measured on the null model (docs/NULL.md): everything but the kernels.

usage: tools/measure_server.py [--build FOLDER] WHAT [options]

health   requests a second of GET /health/live with keep-alive, one loop thread, beside one nginx worker
         with an empty reply, in alternated rounds with wrk: both and the ratio, medians
idle     growth of the daemon's RssAnon per accepted stream that waits for its turn
tokens   processor time per token with 1, 16 and 256 streams, thread by thread
idlers   processor time per token beside 10 to 9,000 idle connections, and its log-log slope
latency  time from a token's logits to the client's socket, one stream, steps of 1 ms
busy     time that /health/live takes while the engine is saturated (--model names a real one)

Prints a line for people and, with --json, one JSON object.
"""
import argparse
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import http.client

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Daemon:
    """A conifer-server of its own on a free port."""

    wait_s = 120  # for it to start

    def __init__(self, build, model="null:", *args):
        self.dir = tempfile.TemporaryDirectory(prefix="conifer-measure-")
        self.log = pathlib.Path(self.dir.name) / "log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                [str(build / "cli/conifer-server"), "--port", "0", "--model", model,
                 "--set", "scheduler.speculation=off", *args],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            self.port = self.wait_port()
        except BaseException:
            self.__exit__()
            raise

    def wait_port(self):
        end = time.time() + self.wait_s
        while time.time() < end and self.process.poll() is None:
            found = re.search(r"serving \S+ on http://\S*:(\d+)", self.log.read_text(errors="replace"))
            if found:
                return int(found[1])
            time.sleep(0.02)
        raise RuntimeError("the server did not start:\n" + self.log.read_text(errors="replace"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.dir.cleanup()

    def cpu_ns(self):
        """Processor time of each thread so far, by its name."""
        out = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            name = "loop" if task.name == str(self.process.pid) else name
            ns = int((task / "schedstat").read_text().split()[0])
            out[name] = out.get(name, 0) + ns
        return out

    def rss_anon(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) * 1024

    def metrics(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return {k: float(v) for k, v in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


class Streams:
    """tests/server/streams, holding connections or streams open."""

    def __init__(self, build, port, mode, n, tokens=0):
        self.process = subprocess.Popen([str(build / "tests/server/streams"), str(port), mode, str(n),
                                         str(tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            if self.process.stdout.readline() != b"ready\n":
                raise RuntimeError("the streams did not come about")
        except BaseException:
            self.process.kill()
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


def run_streams(build, port, n, tokens):
    out = subprocess.run([str(build / "tests/server/streams"), str(port), "run", str(n), str(tokens)],
                         capture_output=True, text=True, check=True, timeout=600)
    return json.loads(out.stdout)


def slope(sizes, costs):
    x, y = [math.log(s) for s in sizes], [math.log(c) for c in costs]
    mx, my = statistics.mean(x), statistics.mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


# ---- tokens ---------------------------------------------------------------------------------------

def token_cost(daemon, build, streams, tokens):
    """ns of processor time per token, by thread; and tokens a second of wall time. A chunk has several
    where the loop falls behind."""
    run_streams(build, daemon.port, streams, 64)
    before = daemon.cpu_ns()
    got = run_streams(build, daemon.port, streams, tokens)
    after = daemon.cpu_ns()
    got["events"] = streams * tokens
    cost = {k: (after[k] - before.get(k, 0)) / got["events"] for k in after}
    cost = {k: v for k, v in cost.items() if v > 1}
    return {"streams": streams, "events": got["events"], "events_s": got["events"] / got["seconds"],
            "bytes": got["bytes"] / got["events"], "ns": cost, "ns_all": sum(cost.values())}


def tokens(a):
    args = ["--threads", "1", "--set", "scheduler.max_running=256"]
    out = []
    with Daemon(a.build, "null:context=262144", *args) as d:
        for n in a.streams:
            rounds = [token_cost(d, a.build, n, max(200, a.events // n)) for _ in range(a.rounds)]
            best = min(rounds, key=lambda r: r["ns_all"])
            out.append(best)
            parts = ", ".join(f"{k} {v:.0f}" for k, v in sorted(best["ns"].items()))
            print(f"{n:5} streams: {best['ns_all']:6.0f} ns of processor time per token ({parts}); "
                  f"{best['bytes']:.0f} bytes each, {best['events_s']:.0f} tokens/s")
    return {"tokens": out}


# ---- idle connections -----------------------------------------------------------------------------

def idlers(a):
    args = ["--threads", "1", "--set", "server.max_connections=20000"]
    best = {n: math.inf for n in a.connections}
    with Daemon(a.build, "null:context=262144", *args) as d:
        for _ in range(a.rounds):
            for n in best:
                with Streams(a.build, d.port, "live", n):
                    best[n] = min(best[n], token_cost(d, a.build, 16, a.events // 16)["ns_all"])
    s = slope(list(best), list(best.values()))
    print("idle connections: " + ", ".join(f"{n}: {v:.0f} ns per token" for n, v in best.items()) +
          f"; slope {s:.3f}")
    return {"idlers": {"ns": best, "slope": s}}


# ---- memory of waiting streams --------------------------------------------------------------------

def idle(a):
    with Daemon(a.build, "null:context=16777216,vocab=1048576", "--threads", "1",
                "--set", "scheduler.queue_requests=10000", "--set", "scheduler.max_running=1",
                "--set", "server.max_connections=20000", "--set", "server.heartbeat_s=3600") as d:
        # One stream runs for as long as it takes, in long steps, and the others wait; a few
        # are warm already.
        with Streams(a.build, d.port, "read", 1, 16777000):
            with Streams(a.build, d.port, "hold", 100, 100):
                pass
            wait_for(d, 'conifer_requests_waiting', 0)
            before = d.rss_anon()
            with Streams(a.build, d.port, "hold", a.count, 100):
                wait_for(d, 'conifer_requests_waiting', a.count)
                grown = (d.rss_anon() - before) / a.count
    print(f"{a.count} accepted streams that wait: {grown:.0f} bytes of RssAnon each")
    return {"idle": {"streams": a.count, "bytes": grown}}


def wait_for(d, name, value):
    end = time.time() + 60
    while time.time() < end:
        if d.metrics()[name] == value:
            return
        time.sleep(0.05)
    raise RuntimeError(f"{name} is {d.metrics()[name]}, not {value}")


# ---- /health/live ---------------------------------------------------------------------------------

NGINX = """daemon off; master_process off; worker_processes 1; pid {dir}/pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 75s;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
    server {{ listen 127.0.0.1:{port}; location / {{ return 200; }} }}
}}
"""


def wrk(url, seconds, pin):
    out = subprocess.run([*pin, "wrk", "-t1", "-c32", f"-d{seconds}s", url], capture_output=True,
                         text=True, check=True, timeout=seconds + 30).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])


def health(a):
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if not nginx or not shutil.which("wrk"):
        print("nginx and wrk are needed (Debian: nginx-light, wrk)", file=sys.stderr)
        return None
    two = len(os.sched_getaffinity(0)) > 1
    cores = sorted(os.sched_getaffinity(0))
    pins = [["taskset", "-c", str(c)] if two else [] for c in (cores[0], cores[-1])]
    rates = {"nginx": [], "conifer": []}
    with tempfile.TemporaryDirectory(prefix="conifer-measure-") as folder:
        port = free_port()
        conf = pathlib.Path(folder) / "nginx.conf"
        conf.write_text(NGINX.format(dir=folder, port=port))
        front = subprocess.Popen([*pins[0], nginx, "-c", str(conf), "-p", folder])
        try:
            with Daemon(a.build, "null:", "--threads", "1") as d:
                if two:
                    subprocess.run(["taskset", "-acp", str(cores[0]), str(d.process.pid)], check=True,
                                   stdout=subprocess.DEVNULL)
                urls = [("nginx", f"http://127.0.0.1:{port}/"),
                        ("conifer", f"http://127.0.0.1:{d.port}/health/live")]
                for name, url in urls:
                    wrk(url, 1, pins[1])
                for i in range(a.rounds):
                    for name, url in urls if i % 2 else urls[::-1]:
                        rates[name].append(wrk(url, a.seconds, pins[1]))
        finally:
            front.terminate()
            front.wait()
    ratios = [c / n for c, n in zip(rates["conifer"], rates["nginx"])]
    m = {k: statistics.median(v) for k, v in rates.items()}
    print(f"/health/live: {m['conifer']:.0f} requests/s, an nginx worker {m['nginx']:.0f}; "
          f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, "
          f"{a.rounds} rounds)")
    return {"health": {"rates": rates, "ratio": statistics.median(ratios)}}


def latency(a):
    runs = [json.loads(subprocess.run([str(a.build / "tests/server/token_latency")], check=True, text=True,
                                      capture_output=True, timeout=120).stdout) for _ in range(a.rounds)]
    m = {k: statistics.median(r[k] for r in runs) for k in ("p50_us", "p90_us", "p99_us")}
    print(f"from logits to the client: p50 {m['p50_us']:.1f} us, p90 {m['p90_us']:.1f}, "
          f"p99 {m['p99_us']:.1f} (median of {a.rounds} runs)")
    return {"latency": m}


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---- /health/live beside a saturated engine -------------------------------------------------------

def probe(d, seconds, gap=0.002):
    """Seconds that each of many requests took, one after the other on one connection."""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        c.request("GET", "/health/live")
        c.getresponse().read()
        took.append(time.perf_counter() - t)
        time.sleep(gap)
    c.close()
    return sorted(took)


def busy(a):
    with Daemon(a.build, a.model) as d:
        quiet = probe(d, 2)
        load = subprocess.Popen([str(a.build / "tests/server/streams"), str(d.port), "run", "8", "1500"],
                                stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            saturated = probe(d, a.seconds)
            running = d.metrics()["conifer_requests_running"]
        finally:
            load.terminate()
            load.wait()

    def at(v, q):
        return v[min(len(v) - 1, int(len(v) * q))] * 1e3
    for name, v in (("idle", quiet), (f"{running:.0f} running", saturated)):
        print(f"/health/live, engine {name}: p50 {at(v, .5):.2f} ms, p99 {at(v, .99):.2f} ms, "
              f"most {v[-1] * 1e3:.2f} ms of {len(v)}")
    return {"busy": {"p50_ms": at(saturated, .5), "p99_ms": at(saturated, .99), "running": running}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["health", "idle", "tokens", "idlers", "latency", "busy"])
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--json", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=int, default=2)
    p.add_argument("--events", type=int, default=200000)
    p.add_argument("--streams", type=int, nargs="+", default=[1, 16, 256])
    p.add_argument("--connections", type=int, nargs="+", default=[10, 100, 1000, 9000])
    p.add_argument("--count", type=int, default=9000)
    p.add_argument("--model", default="null:")
    a = p.parse_args()
    out = globals()[a.what](a)
    if a.json and out:
        print(json.dumps(out))
    return 0 if out else 77


if __name__ == "__main__":
    sys.exit(main())
