#!/bin/sh
# Writes docs/KV.md from what tests/engine/test_needle.c measures on this machine: several minutes.
# usage: tools/gen_kv.sh BUILD_DIR [COMMAND...]   (a release build; COMMAND is put before each run)
set -eu
build=$1
shift
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
"$@" ninja -C "$build" tests/engine/test_engine_needle >&2

# needle FILE CONTEXT CASES: keys at five depths in each case
needle() {
    model=$1 context=$2 cases=$3
    shift 3
    "$@" "$build/tests/engine/test_engine_needle" "$model" "$context" "$cases" | tee -a "$rows" >&2
}
for run in 512:8 1024:4 2048:4 4096:2 8000:1; do
    needle SmolLM2-135M-Instruct.Q4_1.gguf ${run%:*} ${run#*:} "$@"
done
for run in 512:8 2048:4 8000:2 16000:1; do
    needle gemma-3-270m-q4_k_m.gguf ${run%:*} ${run#*:} "$@"
done
{
    cat <<'HEAD'
# Types of keys and values

<!-- Made by tools/gen_kv.sh from tests/engine/test_needle.c; do not edit. -->

`kv_type` says how the pool stores keys and values: `f16` (the default), `q8_0` (8 bits, one scale for
32 values) or `q4_0` (4 bits). A smaller type holds more tokens in the same memory. This page shows
what it costs. A pass key of five digits is hidden in a made-up story, at five depths; then the model
is asked for it. The table gives the keys whose every digit is the likeliest token, the mean
log-probability of a digit and, over all question and answer tokens, the mean KL(f16 || type) in nats
and how often the likeliest token matches f16's.

Both models are very small; larger ones were not measured. The tests require `q8_0` to find as many
keys as f16 less one, with a divergence below 0.01, and `q4_0` to find half as many as f16.

| model | context | type | bytes a token | depth 10 % | 30 % | 50 % | 70 % | 90 % | keys found | log p of a digit | divergence | same token |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
HEAD
    cat "$rows"
} >docs/KV.md
