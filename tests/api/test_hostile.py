"""Hostile clients beside two who behave. For a while random requests on every route, with every field at
and beyond its bounds, slow, cut short, pipelined, unread; what is written down is that the daemon stays
within what its plan says, that the two others are served, all of them, and about as soon as alone.

How soon is what the two see: seconds from the last byte sent to the first token. The hostile clients are
processes of their own. Here they share the processors with the daemon, in truth they are on other
machines. So they have the lowest priority, and what they send is made before they begin: what they compute
is not to count. What the daemon computes for them counts, all of it. "Alone" is the same two clients, the
same way, beside nothing, in turns with the attacks, so that whatever else the machine does is in both. The bound
is twice that and one step; the daemon's histogram of steps says how long one was while it was attacked, so
that on a busy machine the bound is wider.

CONIFER_LONG makes it 30 minutes; CONIFER_SEED gives the seed of a run that failed."""
import collections
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time

import hostile
import pytest
from conftest import SERVER, STILLS, Server, program, until
from test_cost import sanitized

pytestmark = pytest.mark.alone

MIB = 1 << 20
LONG = bool(os.environ.get("CONIFER_LONG"))
# Of each test: rounds, and of each round the seconds of the two alone and of the attack.
ROUNDS, ALONE, ATTACK = (30, 8, 30) if LONG else (1, 3, 15) if sanitized() else (3, 7, 20)
BUDGET = 128 * MIB  # server.memory_bytes
KV = 64 * MIB
HOSTILE = 4  # processes
MODEL = "null:vocab=49152,context=32768"
KEYS = ["cnf_" + format(i, "043d") for i in range(102)]
HEAD = {"Authorization": "Bearer " + KEYS[0]}
MAKING_S = 3  # until the hostile ones have made their requests


def hashed(key):
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def config(tenants):
    lines = "".join(f'  - {{name: t{i}, keys: ["{hashed(KEYS[i])}"]}}\n' for i in range(2 + tenants))
    return (f"server: {{memory_bytes: {BUDGET}, max_connections: 300}}\nkv: {{memory_bytes: {KV}}}\n"
            f"tenants:\n{lines}")


class Clients:
    """Processes of hostile.py: so many seconds from `begin` on."""

    def __init__(self, s, what, begin, seconds, given):
        same = {"port": s.port, "begin": begin, "until": begin + seconds}
        self.all = [subprocess.Popen([sys.executable, hostile.__file__, what, json.dumps({**same, **g})],
                                     stdout=subprocess.PIPE) for g in given]

    def ended(self):
        out = []
        for p in self.all:
            text = p.communicate()[0]
            assert p.returncode == 0
            out.append(json.loads(text))
        return out


class Neighbours:
    """What the two saw, in all rounds: without the times in which all of the machine stood still."""

    def __init__(self):
        self.first, self.failed = ([], []), []

    def add(self, seen):
        gaps = list(STILLS.gaps)
        for first, one in zip(self.first, seen):
            first += [took for began, took in one["first"]
                      if not any(due < began + took and began < woken for due, woken in gaps)]
            self.failed += one["failed"]

    def p99(self):
        return [sorted(first)[int(len(first) * 0.99)] for first in self.first]


def behave(s, begin, seconds):
    return Clients(s, "behave", begin, seconds, [{"key": key} for key in KEYS[:2]])


def told(s, what):
    """Bytes that the log tells of the plan."""
    return float(re.search(rf"{what} ([\d.]+) MiB", s.text())[1]) * MIB


def resident(s):
    """Resident bytes: all, and those beside the KV memory, which is the mapping of the size that the log tells."""
    kv = told(s, "KV memory")
    total = beside = size = 0
    with open(f"/proc/{s.process.pid}/smaps") as f:
        for line in f:
            word = line.split()
            if word[0] == "Size:":
                size = int(word[1]) * 1024
            elif word[0] == "Rss:":
                total += int(word[1]) * 1024
                beside += int(word[1]) * 1024 if size != kv else 0
    return total, beside


class Steps:
    """The engine's steps while it was attacked: how many of which length, and their time."""

    def __init__(self):
        self.counts, self.seconds = collections.Counter(), 0

    def add(self, before, after):
        bounds = [k for k in after if k.startswith("conifer_step_seconds_bucket")]
        below = 0
        for k in bounds:
            n = after[k] - before[k]
            self.counts[float(k.split('"')[1])] += n - below
            below = n
        self.seconds += after["conifer_step_seconds_sum"] - before["conifer_step_seconds_sum"]

    def length(self):
        """Of 100 moments of the engine's work 99 are in a step no longer than this, as the histogram's bounds
        have it: a request that comes at any moment waits for the step that is at work then."""
        bounds = sorted(self.counts)
        tail = 0
        for shorter, bound in reversed(list(zip(bounds, bounds[1:]))):
            tail += self.counts[bound] * shorter
            if tail > 0.01 * self.seconds:
                return bound
        return bounds[0]


def test_all_routes_and_fields_are_attacked():
    """None is lost on the way from the .def files."""
    lines = (hostile.SERVER / "params.def").read_text()
    assert len(hostile.fields()) == len(re.findall(r"^(?:PARAM|LACK|FORM)\(", lines, re.M)) > 60
    lines = (hostile.SERVER / "routes.def").read_text()
    assert len(hostile.routes()) == len(re.findall(r"^(?:ROUTE|INSTEAD)\(", lines, re.M)) + len(hostile.NO_ROUTES)
    seed = next(f for f in hostile.fields() if f.name == "seed")
    assert (seed.endpoints, seed.low, seed.high) == ({"CHAT", "TEXT"}, -2**63 + 1, 2**63 - 1)


def is_idle(s):
    m = s.metrics(headers=HEAD)
    held = m['conifer_request_memory_bytes{state="held"}'] - m['conifer_request_memory_bytes{state="kept"}']
    return m["conifer_requests_running"] == 0 and m["conifer_requests_waiting"] == 0 and held < 65536


class Round:
    """The two alone, and then beside an attack."""

    def __init__(self, s, seed, number, keys):
        self.alone = behave(s, time.monotonic() + 0.5, ALONE).ended()
        before, begin = s.metrics(headers=HEAD), time.monotonic() + MAKING_S
        both = behave(s, begin, ATTACK)
        attack = Clients(s, "attack", begin, ATTACK, [
            {"keys": keys, "seed": seed, "part": number * HOSTILE + i} for i in range(HOSTILE)])
        self.most = (0, 0)
        while time.monotonic() < begin + ATTACK:
            assert s.process.poll() is None, s.text()[-3000:]
            self.most = tuple(map(max, self.most, resident(s)))
            time.sleep(0.2)
        self.metrics = before, s.metrics(headers=HEAD)
        self.beside, did = both.ended(), attack.ended()
        self.connections = sum(d["connections"] for d in did)


@pytest.mark.parametrize("tenants", [1, 100])
def test_hostile_clients_beside_two_who_behave(tenants):
    seed = int(os.environ.get("CONIFER_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    s = Server(program(SERVER), MODEL, template=False, config=config(tenants))
    keys = KEYS[2:2 + tenants] + ([None] if tenants == 1 else [])
    alone, beside, steps, most, connections = Neighbours(), Neighbours(), Steps(), (0, 0), 0
    try:
        base = resident(s)[1]
        plan = base + sum(told(s, part) for part in ("weights", "scratch", "KV memory")) + BUDGET
        for number in range(ROUNDS):
            r = Round(s, seed, number, keys)
            alone.add(r.alone)
            beside.add(r.beside)
            steps.add(*r.metrics)
            most, connections = tuple(map(max, most, r.most)), connections + r.connections
            until(lambda: is_idle(s))
        turn = r.metrics[1]["conifer_loop_turn_max_seconds"]
        print(f"p99 of the first token: alone {[f'{t * 1e3:.1f}' for t in alone.p99()]} ms, beside "
              f"{[f'{t * 1e3:.1f}' for t in beside.p99()]} ms of {[len(f) for f in beside.first]}; "
              f"a step {steps.length() * 1e3:.1f} ms; {connections} hostile connections; "
              f"resident {most[0] / MIB:.0f} MiB, planned {plan / MIB:.0f}, beside KV memory {base / MIB:.0f} and "
              f"{(most[1] - base) / MIB:.0f} more; a turn of the loop at most {turn * 1e3:.1f} ms")
        assert not alone.failed and not beside.failed, (alone.failed + beside.failed)[:3]
        assert connections > 40 * ROUNDS
        if sanitized():  # they keep what was freed, and have clocks of their own
            assert all(b < 2 * a + 0.5 for a, b in zip(alone.p99(), beside.p99()))
            return
        assert most[0] < plan and most[1] - base < BUDGET
        assert turn < 0.005
        assert all(b < 2 * a + steps.length() for a, b in zip(alone.p99(), beside.p99()))
    finally:
        s.stop()
