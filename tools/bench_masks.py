#!/usr/bin/env python3
"""How long masks take, beside llguidance and xgrammar: same schemas, texts, tokens and machine, one thread.

usage: tools/bench_masks.py [--build FOLDER] [--oracle FOLDER] [--vocab NAME] [--rounds N] [options]

For each schema of the oracle and each of its valid instances: a mask before each token of the instance and at
its end, then the token. Times are processor time of the thread, the median of the rounds for each single mask;
the engines take turns schema by schema. Rows:
  cold   the grammar is compiled for this text; nothing is kept from before
  warm   the grammar was followed along the schema's texts before, and begins anew: what the library keeps then
         (conifer keeps masks with the grammar, llguidance its lexer's tables, xgrammar computes masks when it
         compiles)
Columns: schemas; texts and masks; compile; first: the matcher's beginning and the first mask; mask; put: the
token is taken. llguidance and xgrammar are used where they are installed (pip install llguidance xgrammar);
xgrammar without torch and transformers, which it imports but does not need here. Only texts that conifer and
llguidance both take are compared; the row "all" has every text that conifer takes.
"""
import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
now = time.thread_time_ns


def pick(values, share):
    """The value below which this share of them lies."""
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0


class Conifer:
    name = "conifer"

    def __init__(self, build, vocab):
        program = str(build / "tests/text/bench_masks")
        self.vocab = Vocab(json.loads(subprocess.run([program, vocab, "--vocab"], check=True, capture_output=True).stdout))
        self.child = subprocess.Popen([program, vocab], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, schema, texts):
        self.child.stdin.write(json.dumps({"schema": schema, "texts": texts}) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            sys.exit("bench_masks ended")
        return json.loads(line)


class Vocab:
    """The tokens, and what other libraries want of them. Byte-level BPE only."""

    def __init__(self, found):
        self.texts, self.merges = found["tokens"], found["merges"]
        self.control, self.ends = set(found["control"]), found["ends"]
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        of = {chr(b): b for b in plain}
        of |= {chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}
        self.bytes = [b"" if i in self.control or i in self.ends or any(c not in of for c in t)
                      else bytes(of[c] for c in t) for i, t in enumerate(self.texts)]

    def huggingface(self):
        """The same as a tokenizer.json, cut as Llama 3 does."""
        cut = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
        special = [{"id": i, "content": self.texts[i], "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False, "special": True} for i in sorted(self.control | set(self.ends))]
        return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
                "added_tokens": special,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                          "ignore_merges": True, "vocab": {t: i for i, t in enumerate(self.texts)},
                          "merges": self.merges}}


class Llguidance:
    name = "llguidance"

    def __init__(self, vocab, slices):
        import llguidance
        import numpy
        self.lib = llguidance
        of = {"json": llguidance.LLTokenizer.json_slices, "general": llguidance.LLTokenizer.general_slices}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(vocab.huggingface(), f)
            f.flush()
            self.tokenizer = llguidance.LLTokenizer(f.name, n_vocab=len(vocab.texts), eos_token=vocab.ends,
                                                    slices=of[slices]())
        self.mask = numpy.zeros((len(vocab.texts) + 31) // 32, dtype=numpy.int32)
        self.at, self.size = self.mask.ctypes.data, self.mask.size * 4

    def compile(self, schema):
        """A matcher, and how long it took; None: refused."""
        text = json.dumps(schema)
        start = now()
        m = self.lib.LLMatcher(self.tokenizer, self.lib.LLMatcher.grammar_from_json_schema(text), log_level=0)
        taken = now() - start
        return (m, taken) if not m.is_error() else None

    def begin(self, m):
        m.reset()
        return m

    def follow(self, m, ids, begin):
        """Times along the tokens; None: the text is not one of the grammar."""
        masks, puts, ends = [], [], False
        for i in [*ids, None]:
            ends = i is None and m.is_accepting()
            start = now()
            m.unsafe_compute_mask_ptr(self.at, self.size)
            masks.append(now() - start)
            if i is None:
                break
            start = now()
            taken = m.consume_token(i)
            puts.append(now() - start)
            if not taken:
                return None
        return {"begin": begin, "mask": masks, "put": puts} if ends else None


class Xgrammar:
    name = "xgrammar"

    def __init__(self, vocab):
        import tvm_ffi  # noqa: F401: it asks for torch itself, and does without
        for missing in ("torch", "transformers"):
            try:
                __import__(missing)
            except ImportError:
                stand_in = types.ModuleType(missing)
                stand_in.__getattr__ = self.some_class
                sys.modules[missing] = stand_in
        import numpy
        import xgrammar
        self.lib = xgrammar
        info = xgrammar.TokenizerInfo(vocab.bytes, xgrammar.VocabType.RAW, stop_token_ids=vocab.ends)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = numpy.zeros((1, (len(vocab.texts) + 31) // 32), dtype=numpy.int32)

    @staticmethod
    def some_class(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})

    def compile(self, schema):
        text = json.dumps(schema)
        start = now()
        try:
            g = self.compiler.compile_json_schema(text, strict_mode=False)
        except RuntimeError:
            return None
        return g, now() - start

    def begin(self, g):
        return self.lib.GrammarMatcher(g)

    def follow(self, m, ids, begin):
        masks, puts = [], []
        if not isinstance(m, self.lib.GrammarMatcher):
            start = now()
            m = self.lib.GrammarMatcher(m)
            begin = now() - start
        for i in [*ids, None]:
            start = now()
            m.fill_next_token_bitmask(self.mask, 0)
            masks.append(now() - start)
            if i is None:
                break
            start = now()
            taken = m.accept_token(i)
            puts.append(now() - start)
            if not taken:
                return None
        ends = m.is_completed() if hasattr(m, "is_completed") else True
        return {"begin": begin, "mask": masks, "put": puts} if ends else None


def run_other(engine, schema, texts):
    """As the program for conifer answers; texts: lists of ids."""
    out = []
    kept = engine.compile(schema)
    if not kept:
        return None
    for ids in texts:
        one = engine.compile(schema)
        cold = engine.follow(one[0], ids, 0)
        if cold:
            cold["compile"] = one[1]
        out.append({"cold": cold})
    for _ in range(2):  # the first pass is not measured
        for i, ids in enumerate(texts):
            start = now()
            m = engine.begin(kept[0])
            out[i]["warm"] = engine.follow(m, ids, now() - start)
            if out[i]["warm"]:
                out[i]["warm"]["compile"] = 0
    return out


class Sums:
    """Rounds of one engine and mode: each text's times, one list a round."""

    def __init__(self):
        self.rounds = collections.defaultdict(list)

    def add(self, key, times):
        if times:
            self.rounds[key].append(times)

    def row(self, keys):
        masks, puts, compiles, firsts, worst, totals = [], [], [], [], None, []
        for key in keys:
            rounds = self.rounds[key]
            mask = [statistics.median(v) for v in zip(*(r["mask"] for r in rounds))]
            masks += mask
            puts += [statistics.median(v) for v in zip(*(r["put"] for r in rounds))]
            compiles.append(statistics.median(r["compile"] for r in rounds))
            firsts.append(statistics.median(r["begin"] + r["mask"][0] for r in rounds))
            totals.append(compiles[-1] + firsts[-1])
            if not worst or max(mask) > worst[0]:
                worst = max(mask), key
        us = lambda v: round(v / 1e3, 1)
        return {"schemas": len({k[0] for k in keys}), "texts": len(keys), "masks": len(masks),
                "compile": us(statistics.mean(compiles)), "first": us(statistics.mean(firsts)),
                "first_p99": us(pick(firsts, .99)), "ttfm": us(statistics.mean(totals)),
                "ttfm_p99": us(pick(totals, .99)), "mean": us(statistics.mean(masks)), "p50": us(pick(masks, .5)),
                "p99": us(pick(masks, .99)), "max": us(max(masks)), "put": us(statistics.mean(puts)),
                "put_p99": us(pick(puts, .99)), "worst": f"{worst[1][0]}/{worst[1][1]}"} if keys else None


HEADS = ["schemas", "texts", "masks", "compile", "first", "first_p99", "ttfm", "ttfm_p99", "mean", "p50", "p99", "max",
         "put", "put_p99", "worst"]


def table(rows):
    print(f"{'us':18}" + "".join(f"{h:>10}" for h in HEADS))
    for name, row in rows:
        if row:
            print(f"{name:18}" + "".join(f"{row[h]:>10}" for h in HEADS))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--oracle", type=pathlib.Path, default=pathlib.Path(os.environ.get("CONIFER_ORACLE", ROOT / "../shared/oracle")))
    p.add_argument("--vocab", default="llama-bpe")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--schemas", type=int, default=0, help="only so many of them")
    p.add_argument("--only", help="schemas whose names begin like this")
    p.add_argument("--slices", choices=["json", "general"], default="json", help="llguidance's")
    p.add_argument("--without", nargs="*", default=[], help="engines to leave out")
    p.add_argument("--json", type=pathlib.Path, help="every median, for a closer look")
    a = p.parse_args()
    schemas = json.loads((a.oracle / "schemas/schemas.json").read_text())["schemas"]
    schemas = [s for s in schemas if not a.only or s["name"].startswith(a.only)]
    if a.schemas:
        schemas = schemas[::max(1, len(schemas) // a.schemas)]
    ours = Conifer(a.build, str(a.oracle / f"vocab/ggml-vocab-{a.vocab}.gguf"))
    others = []
    for make in (lambda: Llguidance(ours.vocab, a.slices), lambda: Xgrammar(ours.vocab)):
        try:
            others.append(make())
        except ImportError as e:
            print(f"without: {e}", file=sys.stderr)
    others = [e for e in others if e.name not in a.without]
    times = collections.defaultdict(Sums)
    refused = collections.Counter()
    for n_round in range(a.rounds):
        for s in schemas:
            texts = [json.dumps(v, ensure_ascii=False) for v in s["valid"]]
            got = ours.run(s["schema"], texts)
            if "error" in got:
                refused[ours.name] += not n_round
                continue
            ids = [t["ids"] for t in got["texts"]]
            answers = {ours.name: got["texts"]}
            for e in others:
                answers[e.name] = run_other(e, s["schema"], ids)
                refused[e.name] += not n_round and answers[e.name] is None
            for name, answer in answers.items():
                for i, t in enumerate(answer or []):
                    for mode in ("cold", "warm"):
                        times[name, mode].add((s["name"], i), t[mode])
    load = os.getloadavg()[0]
    print(f"{len(schemas)} schemas, vocabulary {a.vocab} ({len(ours.vocab.texts)} tokens), {a.rounds} rounds, load {load:.1f}; "
          f"refused: {dict(refused)}")
    keys = {n: set(times[n, "warm"].rounds) & set(times[n, "cold"].rounds) for n in [ours.name] + [e.name for e in others]}
    both = sorted(set.intersection(*(keys[n] for n in keys if n != "xgrammar")))
    rows = []
    for mode in ("cold", "warm"):
        for name in keys:
            rows.append((f"{name} {mode}", times[name, mode].row([k for k in both if k in keys[name]])))
        rows.append((f"conifer {mode} all", times[ours.name, mode].row(sorted(keys[ours.name]))))
    table(rows)
    if a.json:
        dump = {f"{n} {m}": {f"{k[0]}/{k[1]}": {w: [statistics.median(v) for v in zip(*(r[w] for r in rounds))]
                                                for w in ("mask", "put")}
                             for k, rounds in t.rounds.items()} for (n, m), t in times.items()}
        a.json.write_text(json.dumps(dump))


if __name__ == "__main__":
    main()
