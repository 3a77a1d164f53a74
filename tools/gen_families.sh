#!/bin/sh
# Writes docs/FAMILIES.md from what the golden tests measure on this machine.
# usage: tools/gen_families.sh BUILD_DIR   (a release build)
set -eu
build=$1
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
ninja -C "$build" tests/engine/test_engine_golden tests/engine/test_engine_vectors \
    tests/kernels/bench_ops >&2
CONIFER_FAMILIES=$rows "$build/tests/engine/test_engine_golden" >&2
CONIFER_FAMILIES=$rows "$build/tests/engine/test_engine_vectors" >&2
{
    cat <<'HEAD'
# Families

<!-- Made by tools/gen_families.sh from tests/engine/test_golden.c and test_vectors.c; do not edit. -->

Every family is run as a tiny model whose logits were computed by transformers in float32, on each
instruction set of the machine, with one thread and two, whole and in chunks: bytes are equal among
these, and the worst error is the largest difference of a logit (of a row's vector in families that
give embeddings, and whole only), in standard deviations of the reference's (the tests refuse more than
0.01). "long" prompts are eleven windows. KV bytes are of this tiny model, per token and group of
layers, in f16; state bytes are float32, per sequence. Speed is that of its prompt over the generic C
(one thread, best of 20): tiny matrices show less of the vector units than real ones do. The tests
refuse a plan that runs any op in generic C where the processor has AVX2.

`bert` is not in the table: it is checked with a real model, MiniLM in Q8_0, whose vectors have a cosine
of at least 0.9985 to those of transformers for every sentence, and 0.9994 on average (the bounds of
tests/engine/test_vectors.c).

| family | shape | checked against | worst error | KV bytes a token | state bytes | speed over generic C |
|---|---|---|---|---|---|---|
HEAD
    sed 's/^/| /; s/$/ |/' "$rows"
    cat <<'OPS'

## Ops

Every op has a variant for AVX2, for AVX-512 and for NEON, chosen when the model is prepared. NEON's are
checked in the same ways under emulation (`./check --all`), and were never timed on hardware.
Times are those of one op over 32 rows of one sequence, behind 1024 others, with one thread
(tests/kernels/bench_ops.c); the factor is the generic C's time over the variant's. Ops that only move
data run at the speed of the cache in all three, and storing quantised keys and values is one piece of C
that compilers vectorise for any target.

| op | shape | generic C | AVX2 | AVX-512 |
|---|---|---|---|---|
OPS
    "$build/tests/kernels/bench_ops"
} >docs/FAMILIES.md
