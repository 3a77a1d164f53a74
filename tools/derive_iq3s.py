#!/usr/bin/env python3
"""Derives the code book of IQ3_S from a model in float32 and the same model in IQ3_S, and writes
kernels/iq3s_grid.c.

An IQ3_S index stands for four odd magnitudes of 1 to 15. Whoever wrote the file gave each four
weights the index whose magnitudes are the nearest to theirs, the largest weights counting most. So:
begin with the average of what each index was given for; then move entries, one step in any of the
four, as long as that makes the file's choices more nearly the nearest ones. It ends with entries in
ascending order, which was never asked for: a sign that they are the ones. The tests compare with
values from elsewhere.

usage: derive_iq3s.py FLOATS.gguf IQ3_S.gguf > kernels/iq3s_grid.c   (needs numpy, gguf; a minute)
"""
import itertools
import sys

import gguf
import numpy as np

N, SAMPLE = 512, 50000
DIGITS = np.array([1, 8, 64, 512])


def read(floats, quantised):
    """For every four weights: their index, and the magnitudes in units of the stored scale."""
    exact = {t.name: t for t in gguf.GGUFReader(floats).tensors}
    index, x = [], []
    for t in gguf.GGUFReader(quantised).tensors:
        if t.tensor_type.name != "IQ3_S":
            continue
        b = t.data.reshape(-1, 110)
        d = b[:, :2].copy().view("<f2").astype(float)
        low, high, signs, scales = b[:, 2:66], b[:, 66:74], b[:, 74:106], b[:, 106:110]
        ninth = np.unpackbits(high, axis=1, bitorder="little")
        negative = np.unpackbits(signs, axis=1, bitorder="little").astype(float)
        scale = d * (1 + 2 * np.stack([scales & 15, scales >> 4], -1).reshape(-1, 8))
        w = np.array(exact[t.name].data, float).reshape(-1, 8, 32)
        w = w * (1 - 2 * negative.reshape(-1, 8, 32)) / scale[:, :, None]
        index.append((low | ninth.astype(int) << 8).reshape(-1))
        x.append(w.reshape(-1, 4))
    return np.concatenate(index), np.concatenate(x)


def magnitude(digit):
    return 2.0 * digit + 1


def in_units(book, index, x):
    """The stored scales are rounded; what the choices were made with fitted the choices best."""
    want, have = magnitude(book)[index].reshape(-1, 32), x.reshape(-1, 32)
    fit = (have ** 3 * want).sum(1) / (have ** 2 * want ** 2).sum(1)
    return (have / fit[:, None]).reshape(-1, 4)


def averages(index, x):
    book, y, count = None, x, np.bincount(index, minlength=N)[:, None]
    for _ in range(6):
        total = np.zeros((N, 4))
        np.add.at(total, index, y)
        book = np.clip(np.round((total / count - 1) / 2), 0, 7).astype(int)
        y = in_units(book, index, x)
    return book


def improve(book, index, x):
    """One pass over all entries; returns how many moved."""
    share = np.random.default_rng(1).random(len(index)) * np.bincount(index)[index]
    some = np.argsort(share)[:SAMPLE]
    index, x, row = index[some], x[some], np.arange(SAMPLE)
    weight = np.abs(x) / np.abs(x).sum(1, keepdims=True)
    away = np.stack([(weight * (x - magnitude(p)) ** 2).sum(1) for p in book], 1)
    taken, moves, stale = set(map(tuple, book)), 0, True
    for i in range(N):
        if stale:
            nearest = away.argmin(1)
            rest = away.copy()
            rest[row, nearest] = np.inf
            least, second, stale = away[row, nearest], rest.min(1), False
        mine, others = index == i, np.where(nearest == i, second, least)
        chosen, here, best = away[row, index], tuple(book[i]), None
        near = [[v for v in (p - 1, p, p + 1) if 0 <= v <= 7] for p in here]
        for p in itertools.product(*near):
            if p != here and p in taken:
                continue
            now = (weight * (x - magnitude(np.array(p))) ** 2).sum(1)
            cost = (np.where(mine, now, chosen) - np.minimum(others, now)).sum()
            if best is None or cost < best[0]:
                best = cost, p, now
        if best[1] != here:
            taken.symmetric_difference_update({here, best[1]})
            book[i], away[:, i], stale, moves = best[1], best[2], True, moves + 1
    return moves


def main():
    index, x = read(sys.argv[1], sys.argv[2])
    book = averages(index, x)
    while improve(book, index, in_units(book, index, x)):
        pass
    entries = book @ DIGITS
    if (np.diff(entries) <= 0).any():
        sys.exit("the entries are not in ascending order: too few weights to tell them apart")
    print("/* The code book of IQ3_S. Made by tools/derive_iq3s.py; do not edit. */")
    print(f'#include "kernels/blocks.h"\n\nconst uint16_t kr_iq3s_grid[{N}] = {{')
    for i in range(0, N, 12):
        print("    " + " ".join(f"0{e:04o}," for e in entries[i:i + 12]))
    print("};")


main()
