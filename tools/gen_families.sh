#!/bin/sh
# Writes docs/FAMILIES.md from what the golden tests measure on this machine.
# usage: tools/gen_families.sh BUILD_DIR   (a release build)
set -eu
build=$1
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
ninja -C "$build" tests/engine/test_engine_golden tests/engine/test_engine_vectors >&2
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

| family | reference | worst error | KV bytes a token | state bytes | speed over generic C |
|---|---|---|---|---|---|
HEAD
    sed 's/^/| /; s/$/ |/' "$rows"
} >docs/FAMILIES.md
