#!/usr/bin/env python3
"""Times conifer beside llama.cpp's llama-bench on one file, and many clients beside one.

usage: tools/bench_peers.py MODEL.gguf [--llama-bench PATH] [--build DIR] [--threads N] [--rounds N]
                            [--clients N] [--prompt-tokens N] [--json]

Each round runs one after the other, in turn, what is compared: prefill of 512 tokens and decode of
128 for both programs; then, through HTTP, one client and N clients (128 tokens in unless told
otherwise, 128 out, greedy, prompts without a common beginning). Quoted are medians over the rounds and the ratio of each round.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import threading
import time

PROMPT, DECODE, OUT = 512, 128, 128


def conifer_bench(args):
    out = subprocess.run([f"{args.build}/cli/conifer", "bench", args.model, "--rounds", "1",
                          "--threads", str(args.threads), "--prompt-tokens", str(PROMPT),
                          "--new-tokens", str(DECODE), "--json"],
                         check=True, capture_output=True, text=True).stdout
    d = json.loads(out)
    return d["prefill_tok_s"], d["decode_tok_s"]


def llama_bench(args):
    out = subprocess.run([args.llama_bench, "-m", args.model, "-t", str(args.threads), "-p",
                          str(PROMPT), "-n", str(DECODE), "-r", "1", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    return (next(r["avg_ts"] for r in rows if r["n_prompt"]),
            next(r["avg_ts"] for r in rows if r["n_gen"]))


class Server:
    def __init__(self, args):
        self.process = subprocess.Popen(
            [f"{args.build}/cli/conifer-server", "--model", args.model, "--port", "0", "--threads",
             str(args.threads)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            m = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if m:
                self.port = int(m[1])
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.wait_ready()

    def wait_ready(self):
        for _ in range(600):
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health/ready")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit("the server does not get ready")

    def complete(self, ids):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"model": "any", "prompt": ids, "max_tokens": OUT, "temperature": 0,
                "ignore_eos": True}
        body["model"] = self.model()
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(c.getresponse().read())
        assert answer["usage"]["completion_tokens"] == OUT, answer

    def model(self):
        if not hasattr(self, "name"):
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            c.request("GET", "/v1/models")
            self.name = json.loads(c.getresponse().read())["data"][0]["id"]
        return self.name

    def rate(self, clients, n_prompt, rng):
        prompts = [[rng.randrange(1000, 40000) for _ in range(n_prompt)] for _ in range(clients)]
        threads = [threading.Thread(target=self.complete, args=(p,)) for p in prompts]
        start = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return clients * OUT / (time.monotonic() - start)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def median(rows, i):
    return statistics.median(r[i] for r in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=lambda s: str(pathlib.Path(s).resolve()))
    p.add_argument("--llama-bench")
    p.add_argument("--build", default="build")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--prompt-tokens", type=int, default=128)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    rng, ours, theirs, one, many = random.Random(1), [], [], [], []
    for k in range(args.rounds):
        pair = [lambda: ours.append(conifer_bench(args))]
        if args.llama_bench:
            pair.append(lambda: theirs.append(llama_bench(args)))
        for run in pair if k % 2 == 0 else reversed(pair):
            run()
    server = Server(args)
    try:
        for k in range(args.rounds):
            one.append(server.rate(1, args.prompt_tokens, rng))
            many.append(server.rate(args.clients, args.prompt_tokens, rng))
    finally:
        server.stop()
    result = {"rounds": args.rounds, "threads": args.threads, "prompt_tokens": args.prompt_tokens,
              "conifer": {"prefill": median(ours, 0), "decode": median(ours, 1)},
              "one_client": statistics.median(one), "clients": args.clients,
              "many_clients": statistics.median(many),
              "many_over_one": statistics.median(m / o for m, o in zip(many, one))}
    if theirs:
        result["llama_bench"] = {"prefill": median(theirs, 0), "decode": median(theirs, 1)}
        for i, what in enumerate(("prefill", "decode")):
            ratios = sorted(o[i] / t[i] for o, t in zip(ours, theirs))
            result[f"{what}_ratio"] = {"median": statistics.median(ratios), "min": ratios[0],
                                       "max": ratios[-1]}
    print(json.dumps(result, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
