#!/usr/bin/env python3
"""Logits of oracle/models/deepseek32-dsa by an implementation of its own, for tests/engine/test_golden.c.

The indexer's scores are sums of max(0, .): several keys can have exactly 0, and then which of them
belong to the best top_k is for the implementation to say. transformers leaves it to C++'s nth_element
over a row padded with -inf, which no engine that cuts prompts into chunks can follow; ours takes the
lower position. This computes the model in float64 with numpy, shows that with nth_element's choice it
has transformers' logits, and writes those of the lower position's.

  pip install numpy gguf;  python3 tests/engine/make_dsa_fixture.py ORACLE tests/engine/fixtures
Needs g++ (for nth_element).
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader, dequantize

NTH_ELEMENT = r"""
#include <algorithm>
#include <utility>
#include <vector>
extern "C" void best(const float *v, int n, int k, long *out)
{
    std::vector<std::pair<float, long>> q(n);
    for (int i = 0; i < n; i++) q[i] = {v[i], i};
    auto more = [](const std::pair<float, long> &x, const std::pair<float, long> &y) {
        return x.first > y.first;
    };
    if (k * 64 <= n) std::partial_sort(q.begin(), q.begin() + k, q.end(), more);
    else std::nth_element(q.begin(), q.begin() + k - 1, q.end(), more);
    for (int i = 0; i < k; i++) out[i] = q[i].second;
}
"""
LAYERS, HEADS, NOPE, ROPE, RANK = 4, 4, 16, 8, 32
INDEX_HEADS, INDEX_DIM, TOP_K = 4, 64, 12
GROUPS, GROUPS_USED, EXPERTS_USED, SCALE, EPS = 4, 2, 3, 2.5, 1e-5


def nth_element():
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "nth.cpp"), os.path.join(folder, "nth.so")
    with open(source, "w") as f:
        f.write(NTH_ELEMENT)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    best = ctypes.CDLL(library).best

    def choose(scores, t, n):
        row = np.full(n, -np.inf, dtype=np.float32)
        row[: t + 1] = scores
        out = (ctypes.c_long * TOP_K)()
        best(row.ctypes.data_as(ctypes.c_void_p), n, min(TOP_K, n), out)
        return [i for i in out if i <= t]

    return choose


def lower_position(scores, t, n):
    return np.argsort(-scores, kind="stable")[:TOP_K]


def rms(x, w):
    return x * w / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def layer_norm(x, w, b):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-6) * w + b


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, path, choose):
        self.w = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64)
                  for t in GGUFReader(path).tensors}
        self.choose = choose

    def angles(self, n, ndim):
        a = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, ROPE, 2) / ROPE)
        shape = (n,) + (1,) * (ndim - 2) + (ROPE // 2,)
        return np.cos(a).reshape(shape), np.sin(a).reshape(shape)

    def turn_pairs(self, x):
        c, s = self.angles(len(x), x.ndim)
        y, a, b = x.copy(), x[..., 0::2], x[..., 1::2]
        y[..., 0::2], y[..., 1::2] = a * c - b * s, a * s + b * c
        return y

    def turn_halves(self, x):
        c, s = self.angles(len(x), x.ndim)
        h = ROPE // 2
        y, a, b = x.copy(), x[..., :h], x[..., h:ROPE]
        y[..., :h], y[..., h:ROPE] = a * c - b * s, a * s + b * c
        return y

    def selection(self, p, n, qr):
        rows = len(n)
        q = self.turn_halves((qr @ self.w[p + "indexer.attn_q_b.weight"].T)
                             .reshape(rows, INDEX_HEADS, INDEX_DIM))
        k = layer_norm(n @ self.w[p + "indexer.attn_k.weight"].T,
                       self.w[p + "indexer.k_norm.weight"], self.w[p + "indexer.k_norm.bias"])
        k = self.turn_halves(k)
        dots = np.maximum(np.einsum("thd,jd->thj", q, k), 0)
        scores = np.einsum("th,thj->tj", n @ self.w[p + "indexer.proj.weight"].T, dots)
        scores /= np.sqrt(INDEX_HEADS * INDEX_DIM)
        mask = np.full((rows, rows), -np.inf)
        for t in range(rows):
            mask[t, self.choose(scores[t, : t + 1], t, rows)] = 0
        return mask

    def attention(self, p, x):
        rows, w = len(x), self.w
        n = rms(x, w[p + "attn_norm.weight"])
        qr = rms(n @ w[p + "attn_q_a.weight"].T, w[p + "attn_q_a_norm.weight"])
        q = (qr @ w[p + "attn_q_b.weight"].T).reshape(rows, HEADS, NOPE + ROPE)
        kv = n @ w[p + "attn_kv_a_mqa.weight"].T
        c, kr = rms(kv[:, :RANK], w[p + "attn_kv_a_norm.weight"]), self.turn_pairs(kv[:, RANK:])
        absorbed = np.einsum("hrd,thd->thr", w[p + "attn_k_b.weight"], q[..., :NOPE])
        s = np.einsum("thr,jr->thj", absorbed, c)
        s += np.einsum("thr,jr->thj", self.turn_pairs(q[..., NOPE:]), kr)
        s = s / np.sqrt(NOPE + ROPE) + self.selection(p, n, qr)[:, None, :]
        a = np.exp(s - s.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        u = np.einsum("thj,jr->thr", a, c)
        o = np.einsum("hdr,thr->thd", w[p + "attn_v_b.weight"], u).reshape(rows, -1)
        return o @ w[p + "attn_output.weight"].T

    def gated(self, n, gate, up, down):
        return (silu(n @ gate.T) * (n @ up.T)) @ down.T

    def experts(self, p, n):
        w, y = self.w, np.zeros_like(n)
        weights = 1 / (1 + np.exp(-(n @ w[p + "ffn_gate_inp.weight"].T)))
        biased = weights + w[p + "exp_probs_b.bias"]
        for t in range(len(n)):
            groups = biased[t].reshape(GROUPS, -1)
            best = np.argsort(-np.sort(groups, 1)[:, -2:].sum(1), kind="stable")[:GROUPS_USED]
            allowed = np.full(groups.shape, -np.inf)
            allowed[best] = groups[best]
            chosen = np.argsort(-allowed.ravel(), kind="stable")[:EXPERTS_USED]
            total = weights[t][chosen].sum()
            for e in chosen:
                y[t] += SCALE * weights[t][e] / total * self.gated(
                    n[t], w[p + "ffn_gate_exps.weight"][e], w[p + "ffn_up_exps.weight"][e],
                    w[p + "ffn_down_exps.weight"][e])
        return y + self.gated(n, w[p + "ffn_gate_shexp.weight"], w[p + "ffn_up_shexp.weight"],
                              w[p + "ffn_down_shexp.weight"])

    def logits(self, ids):
        w = self.w
        x = w["token_embd.weight"][ids]
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            x = x + self.attention(p, x)
            n = rms(x, w[p + "ffn_norm.weight"])
            if layer:
                x = x + self.experts(p, n)
            else:
                x = x + self.gated(n, w[p + "ffn_gate.weight"], w[p + "ffn_up.weight"],
                                   w[p + "ffn_down.weight"])
        return rms(x, w["output_norm.weight"]) @ w["output.weight"].T


def main(oracle, out):
    base = os.path.join(oracle, "models", "deepseek32-dsa")
    with open(base + ".json") as f:
        doc = json.load(f)
    prompt, first = doc["prompt"], doc["logits_positions"][0]
    want = np.fromfile(base + ".logits.f32", dtype=np.float32).reshape(doc["logits_shape"])
    same = Model(base + ".gguf", nth_element()).logits(prompt)[first:]
    error = np.abs(same - want).max() / want.std()
    print(f"with nth_element's choice: largest error {error:.2g} standard deviations")
    assert error < 1e-3

    model, ids, greedy, margins = Model(base + ".gguf", lower_position), list(prompt), [], []
    logits = model.logits(ids)
    logits[first:].astype(np.float32).tofile(os.path.join(out, "deepseek32-dsa.logits.f32"))
    for _ in range(len(doc["greedy"])):
        last = np.sort(logits[-1])
        greedy.append(int(logits[-1].argmax()))
        margins.append(round(float(last[-1] - last[-2]), 5))
        ids.append(greedy[-1])
        logits = model.logits(ids)
    keys = ("logits_positions", "logits_shape", "gguf_sha256")
    fixture = {"prompt": prompt, "greedy": greedy, "greedy_margin": margins,
               "logit_std": round(float(want.std()), 4)} | {k: doc[k] for k in keys}
    with open(os.path.join(out, "deepseek32-dsa.json"), "w") as f:
        json.dump(fixture, f)
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
