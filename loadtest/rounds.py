"""What every comparison here has in common: alternated rounds that can be cut and resumed, probes of
the machine around each piece, medians with their spread."""
import hashlib
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

NOT_DONE = 75  # exit status: out of time, call again to go on


class OutOfTime(Exception):
    """The time that was given is over; what was measured is kept."""


class Store:
    """One JSON line for each piece that was measured. A piece is found again by its key, so that a
    comparison goes on where it was cut; `tag` keeps those of other programs apart. `limit_s` (0: none)
    ends a call between two pieces."""

    def __init__(self, path, limit_s=0, tag=""):
        self.path = pathlib.Path(path) if path else None
        self.tag = tag
        self.end = time.monotonic() + limit_s if limit_s else None
        self.done = {}
        if self.path and self.path.exists():
            text = self.path.read_text()
            whole = text[:text.rfind("\n") + 1]
            if whole != text:  # cut while it was written: that piece is measured again
                self.path.write_text(whole)
            for line in whole.splitlines():
                record = json.loads(line)
                self.done[json.dumps(record["key"])] = record

    def take(self, key, measure):
        """The record of a piece: kept, or measured now. A piece that fails is kept with its error."""
        key = [*key, self.tag]
        name = json.dumps(key)
        if name in self.done:
            return self.done[name]
        if self.end and time.monotonic() > self.end:
            raise OutOfTime
        record = {"key": key, **measure()}
        self.done[name] = record
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as f:
                f.write(json.dumps(record) + "\n")
        return record


def order(items, number):
    """Round `number`'s order: forward, backward, backward, forward (ABBA), so that what drifts in
    the machine meets all alike."""
    return list(items) if number % 4 in (0, 3) else list(reversed(items))


def names_of(pairs):
    """The names, each of which must be one's own."""
    names = [name for name, *_ in pairs]
    for name in names:
        if names.count(name) > 1:
            sys.exit(f"{name}: two have this name")
    return names


def need_files(*paths):
    for path in paths:
        if not os.path.exists(path):
            more = "" if "/tests/" not in str(path) else (
                ": `meson configure BUILD -Dtests=true && ninja -C BUILD` makes it")
            sys.exit(f"{path}: no such file{more}")


def counts(default, given, names):
    """How many rounds each of names has, of NAME=N in `given`; the others have `default`."""
    out = {}
    if default < 1:
        sys.exit("at least one round is needed")
    for text in given:
        name, _, n = text.rpartition("=")
        if not name or not n.isdecimal() or not int(n):
            sys.exit(f"{text}: not NAME=ROUNDS")
        if name not in names:
            sys.exit(f"{text}: nothing has this name")
        out[name] = int(n)
    return lambda name: out.get(name, default)


def config_hash(*parts):
    """Records of other settings are not mixed with these."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def found(command):
    """The command with its program's whole path, so that it can run in a folder of its own: some leave
    a log where they run."""
    program = shutil.which(command[0])
    return [os.path.abspath(program), *command[1:]] if program else command


def stamp(*words):
    """The files among the words, by size and time: one that was made anew under the same name is
    another."""
    out = []
    for word in words:
        try:
            at = os.stat(shutil.which(word) or word)
            out.append([at.st_size, at.st_mtime_ns])
        except (OSError, ValueError):
            pass
    return out


def build_tag(build):
    """The programs that are measured: another build is measured anew, peers and all."""
    h = hashlib.sha256()
    for name in ("cli/conifer", "cli/conifer-server", "loadtest/conifer-load"):
        file = pathlib.Path(build) / name
        h.update(file.read_bytes() if file.exists() else b"-")
    return h.hexdigest()[:12]


def probe(command):
    """What the machine reaches now, by `conifer bench --probe --json`; {} without a command."""
    if not command:
        return {}
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.exit(f"the probe failed: {' '.join(command)}\n{out.stderr}")
    return {k: v for k, v in json.loads(out.stdout).items() if isinstance(v, (int, float))}


last_probe = {"at": 0.0}  # the one after a piece is the one before the next


def bracketed(command, measure):
    """measure()'s record with the probes before and after it."""
    fresh = last_probe.get("command") == command and time.monotonic() - last_probe["at"] < 0.5
    before = last_probe["values"] if fresh else probe(command)
    record = measure()
    after = probe(command)
    last_probe.update(command=command, at=time.monotonic(), values=after)
    return {**record, "before": before, "after": after, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def unsteady(record, name="read_bytes_s"):
    """How far the two probes of a piece are apart, as a share of the larger."""
    a, b = record.get("before", {}).get(name), record.get("after", {}).get(name)
    return abs(a - b) / max(a, b) if a and b else 0.0


def spread(values):
    """Median, least, most; None of nothing."""
    values = [v for v in values if v is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def interval(values, tries=4000):
    """95 % bootstrap interval of the median, from a fixed seed: the same data give the same."""
    if len(values) < 3:
        return min(values), max(values)
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(tries))
    return medians[int(tries * 0.025)], medians[int(tries * 0.975)]


def ratio(ours, theirs):
    """Of two lists by round: the median of the rounds' ratios and its interval. Rounds that one of
    them lacks are left out."""
    pairs = [a / b for a, b in zip(ours, theirs) if a and b]
    if not pairs:
        return None
    low, high = interval(pairs)
    return {**spread(pairs), "low": low, "high": high}


def number(v):
    """A figure with three digits that count, or so."""
    if v is None:
        return "-"
    if v >= 100:
        return f"{v:,.0f}"
    return f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def show_spread(s):
    if not s:
        return "-"
    return number(s["median"]) + (f" ({number(s['min'])} to {number(s['max'])})" if s["n"] > 1 else "")


def show_unsteady(rows):
    """A line about pieces whose two probes disagree, "" when there are none. rows: (name, of all)."""
    parts = [f"{r['unsteady']} of {r['rounds']} of {name}" for name, r in rows if r["unsteady"]]
    return f"Between probes more than 10 % apart: {', '.join(parts)}." if parts else ""


def show_ratio(r):
    if not r:
        return "-"
    return number(r["median"]) + (f" ({number(r['low'])} to {number(r['high'])})" if r["n"] > 1 else "")


def machine():
    """The processor and its count, for reports."""
    name = "unknown processor"
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {"processor": name, "processors": os.cpu_count()}
