#!/usr/bin/env python3
"""Writes GGUF files with the shapes of real models and random weights.

usage: tools/synthetic_gguf.py SHAPE OUT.gguf [--layers N] [--type TYPE] [--head-type TYPE]
                               [--experts N] [--vocab N] [--seed N]
       tools/synthetic_gguf.py --list

For measuring and testing without a download: a model's cost depends on its shape, not on what it
learned. Layers are cut to the number in the table below (--layers all: as many as the model has);
everything else is the real model's: widths, heads, experts, vocabulary size, keys. TYPE is any
weight type of the server or Q4_K_M, the mixture most published files use. A matrix whose rows are
no whole number of blocks gets the nearest type that fits, as other quantisers do it; what was done
is printed. The weights are random blocks of the type itself, scaled so that activations stay near
1 and the logits' spread is like a real model's. The vocabulary is a small one that can be read
(bytes, common English, made-up words up to the real size), with as many merges as a real one.

The file is written as a stream; memory stays below 300 MB whatever the size. Needs numpy and gguf
(tests/requirements.txt)."""
import argparse
import itertools
import os
import sys
import time

import gguf
import numpy as np

# ---- the table -------------------------------------------------------------------------------
# dims: what the tensors' sizes are made of. keys: metadata beside the usual, with the family's
# prefix. attention_at: the layers with attention in hybrids; None: all.

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
          "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
          "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
GRANITE = ("{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}"
           "<|end_of_text|>\n{% endfor %}{% if add_generation_prompt %}"
           "<|start_of_role|>assistant<|end_of_role|>{% endif %}")
DEEPSEEK = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}Assistant: "
            "{{ m.content }}{{ eos_token }}{% else %}{{ 'User: ' if m.role == 'user' }}{{ m.content }}"
            "\n\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}")

SHAPES = {
    "qwen3-30b-a3b": {
        "arch": "qwen3moe", "layers": 48, "cut": 4, "context": 40960, "eps": 1e-6,
        "embd": 2048, "heads": 32, "kv_heads": 4, "head": 128, "ff": 6144,
        "experts": 128, "used": 8, "expert_ff": 768, "tied": False,
        "keys": {"rope.freq_base": 1e6, "attention.key_length": 128, "attention.value_length": 128,
                 "expert_feed_forward_length": 768},
        "vocab": 151936, "pre": "qwen2", "bos": 151643, "eos": 151645, "add_bos": False,
        "special": {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"},
        "template": CHATML,
    },
    "granite-4.0-h-tiny": {
        "arch": "granitehybrid", "layers": 40, "cut": 8, "context": 1048576, "eps": 1e-5,
        "embd": 1536, "heads": 12, "kv_heads": 4, "head": 128, "ff": 512,
        "experts": 64, "used": 6, "expert_ff": 512, "shared_ff": 1024, "tied": True,
        "attention_at": (5, 15, 25, 35),
        "inner": 3072, "state": 128, "ssm_heads": 48, "groups": 1, "taps": 4, "logit_gain": 6,
        "branch_gain": 12,  # residual_scale makes branches small beside the scaled embedding
        "keys": {"rope.freq_base": 10000.0, "rope.dimension_count": 128,
                 "rope.scaling.finetuned": False, "attention.scale": 0.0078125,
                 "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 6.0,
                 "expert_shared_feed_forward_length": 1024, "ssm.conv_kernel": 4,
                 "ssm.state_size": 128, "ssm.group_count": 1, "ssm.inner_size": 3072,
                 "ssm.time_step_rank": 48},
        "vocab": 100352, "pre": "dbrx", "bos": 100257, "eos": 100257, "add_bos": False,
        "special": {100257: "<|end_of_text|>", 100264: "<|start_of_role|>", 100265: "<|end_of_role|>"},
        "template": GRANITE,
    },
    "deepseek-v2-lite": {
        "arch": "deepseek2", "layers": 27, "cut": 4, "context": 163840, "eps": 1e-6,
        "embd": 2048, "heads": 16, "kv_heads": 1, "ff": 10944,
        "experts": 64, "used": 6, "expert_ff": 1408, "shared_ff": 2816, "dense": 1, "tied": False,
        "latent": 512, "nope": 128, "rope": 64, "value": 128,
        "keys": {"rope.freq_base": 10000.0, "rope.dimension_count": 64,
                 "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
                 "rope.scaling.original_context_length": 4096,
                 "rope.scaling.yarn_log_multiplier": 0.0707,
                 "attention.kv_lora_rank": 512, "attention.key_length": 576,
                 "attention.value_length": 512, "attention.key_length_mla": 192,
                 "attention.value_length_mla": 128, "leading_dense_block_count": 1,
                 "expert_feed_forward_length": 1408, "expert_shared_count": 2,
                 "expert_weights_scale": 1.0, "expert_weights_norm": False,
                 "expert_gating_func": 1},
        "vocab": 102400, "pre": "deepseek-llm", "bos": 100000, "eos": 100001, "add_bos": True,
        "special": {100000: "<｜begin▁of▁sentence｜>", 100001: "<｜end▁of▁sentence｜>"},
        "template": DEEPSEEK,
    },
    "lfm2-1.2b": {
        "arch": "lfm2", "layers": 16, "cut": 16, "context": 128000, "eps": 1e-5,
        "embd": 2048, "heads": 32, "kv_heads": 8, "head": 64, "ff": 8192, "tied": True,
        "attention_at": (2, 5, 8, 10, 12, 14), "taps": 3,
        "keys": {"rope.freq_base": 1e6, "shortconv.l_cache": 3},
        "vocab": 65536, "pre": "lfm2", "bos": 1, "eos": 7, "add_bos": True,
        "special": {0: "<|pad|>", 1: "<|startoftext|>", 2: "<|endoftext|>", 6: "<|im_start|>",
                    7: "<|im_end|>"},
        "template": "{{ bos_token }}" + CHATML,
    },
    "llama-3.2-1b": {
        "arch": "llama", "layers": 16, "cut": 16, "context": 131072, "eps": 1e-5,
        "embd": 2048, "heads": 32, "kv_heads": 8, "head": 64, "ff": 8192, "tied": True,
        "rope_freqs": (500000.0, 32.0, 1.0, 4.0, 8192),
        "keys": {"rope.freq_base": 500000.0, "rope.dimension_count": 64},
        "vocab": 128256, "pre": "llama-bpe", "bos": 128000, "eos": 128009, "add_bos": True,
        "special": {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>",
                    128006: "<|start_header_id|>", 128007: "<|end_header_id|>",
                    128008: "<|eom_id|>", 128009: "<|eot_id|>"},
        "template": LLAMA3,
    },
}

# Tensors of a layer: (part, name, sizes with the fastest first, inputs summed, kind). A size is a
# number, the name of one of the shape's dims, or a function of them. The kind says how the values
# are made; only "matrix" is quantised.
def times(*names):
    return lambda s: int(np.prod([s[n] for n in names]))


def mixed(s):
    return s["inner"] + 2 * s["groups"] * s["state"]


LAYER = [
    ("all", "attn_norm.weight", ["embd"], None, "ones"),
    ("gqa", "attn_q.weight", ["embd", times("heads", "head")], "embd", "matrix"),
    ("gqa", "attn_k.weight", ["embd", times("kv_heads", "head")], "embd", "matrix"),
    ("gqa", "attn_v.weight", ["embd", times("kv_heads", "head")], "embd", "matrix"),
    ("gqa", "attn_output.weight", [times("heads", "head"), "embd"], times("heads", "head"), "matrix"),
    ("qk_norm", "attn_q_norm.weight", ["head"], None, "ones"),
    ("qk_norm", "attn_k_norm.weight", ["head"], None, "ones"),
    ("mla", "attn_q.weight", ["embd", lambda s: s["heads"] * (s["nope"] + s["rope"])], "embd",
     "matrix"),
    ("mla", "attn_kv_a_mqa.weight", ["embd", lambda s: s["latent"] + s["rope"]], "embd", "matrix"),
    ("mla", "attn_kv_a_norm.weight", ["latent"], None, "ones"),
    ("mla", "attn_k_b.weight", ["nope", "latent", "heads"], "latent", "matrix"),
    ("mla", "attn_v_b.weight", ["latent", "value", "heads"], "latent", "matrix"),
    ("mla", "attn_output.weight", [times("heads", "value"), "embd"], times("heads", "value"),
     "matrix"),
    ("conv", "shortconv.in_proj.weight", ["embd", lambda s: 3 * s["embd"]], "embd", "matrix"),
    ("conv", "shortconv.conv.weight", ["taps", "embd"], "taps", "floats"),
    ("conv", "shortconv.out_proj.weight", ["embd", "embd"], "embd", "matrix"),
    ("mamba2", "ssm_in.weight",
     ["embd", lambda s: s["inner"] + mixed(s) + s["ssm_heads"]], "embd", "matrix"),
    ("mamba2", "ssm_conv1d.weight", ["taps", mixed], "taps", "floats"),
    ("mamba2", "ssm_conv1d.bias", [mixed], None, "zeros"),
    ("mamba2", "ssm_dt.bias", ["ssm_heads"], None, "time_steps"),
    ("mamba2", "ssm_a", [1, "ssm_heads"], None, "decays"),
    ("mamba2", "ssm_d", [1, "ssm_heads"], None, "ones"),
    ("mamba2", "ssm_norm.weight", [lambda s: s["inner"] // s["groups"], "groups"], None, "ones"),
    ("mamba2", "ssm_out.weight", ["inner", "embd"], "inner", "matrix"),
    ("all", "ffn_norm.weight", ["embd"], None, "ones"),
    ("dense", "ffn_gate.weight", ["embd", "ff"], "embd", "matrix"),
    ("dense", "ffn_up.weight", ["embd", "ff"], "embd", "matrix"),
    ("dense", "ffn_down.weight", ["ff", "embd"], "ff", "matrix"),
    ("moe", "ffn_gate_inp.weight", ["embd", "experts"], "embd", "floats"),
    ("moe", "ffn_gate_exps.weight", ["embd", "expert_ff", "experts"], "embd", "matrix"),
    ("moe", "ffn_up_exps.weight", ["embd", "expert_ff", "experts"], "embd", "matrix"),
    ("moe", "ffn_down_exps.weight", ["expert_ff", "embd", "experts"], "expert_ff", "matrix"),
    ("shared", "ffn_gate_shexp.weight", ["embd", "shared_ff"], "embd", "matrix"),
    ("shared", "ffn_up_shexp.weight", ["embd", "shared_ff"], "embd", "matrix"),
    ("shared", "ffn_down_shexp.weight", ["shared_ff", "embd"], "shared_ff", "matrix"),
]
QK_NORMED = {"qwen3moe", "lfm2"}


def parts_of(shape, layer):
    """Which parts of LAYER this layer has."""
    parts = {"all"}
    if "attention_at" in shape and layer not in shape["attention_at"]:
        parts.add("mamba2" if "inner" in shape else "conv")
    else:
        parts.add("mla" if "latent" in shape else "gqa")
        if shape["arch"] in QK_NORMED:
            parts.add("qk_norm")
    if shape.get("experts") and layer >= shape.get("dense", 0):
        parts |= {"moe", "shared"} if "shared_ff" in shape else {"moe"}
    else:
        parts.add("dense")
    return parts


def size(shape, what):
    return what(shape) if callable(what) else shape[what] if isinstance(what, str) else what


# ---- weight types ------------------------------------------------------------------------------
# Random blocks: every byte random, then the scales' fields are set. `fill` returns what each f16
# scale field is, as a multiple of the block's scale; types with a minimum get the one that makes a
# block's mean zero, the others a random sign, so that no matrix has a mean of its own.

F16_FIELDS = {  # type: offsets of f16 fields and their multiples of the scale
    "Q4_0": {0: 1}, "Q4_1": {0: 1, 2: -7.5}, "Q5_0": {0: 1}, "Q5_1": {0: 1, 2: -15.5},
    "Q8_0": {0: 1}, "Q2_K": {80: 1, 82: 1.5}, "Q3_K": {108: 1}, "Q4_K": {0: 1, 2: 7.5},
    "Q5_K": {0: 1, 2: 15.5}, "Q6_K": {208: 1}, "IQ4_NL": {0: 1}, "IQ4_XS": {0: 1},
    "IQ3_S": {0: 1}, "TQ1_0": {52: 1}, "TQ2_0": {64: 1},
}
SIGNED = {"Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ3_S", "TQ1_0", "TQ2_0"}
FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
             "IQ4_XS": "IQ4_NL", "IQ3_S": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}
TYPES = ["F32", "F16", "BF16", "MXFP4", *F16_FIELDS]


def blocks_of(kind):
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


def fitting(kind, row):
    """The type, or the nearest one whose blocks fill a row of so many values."""
    while row % blocks_of(kind)[0]:
        kind = FALLBACKS.get(kind, "F16") if blocks_of(kind)[0] > 32 else "F16"
    return kind


def random_blocks(kind, n, rng, scale):
    """n blocks as bytes [n, block bytes]; the values' spread is what `scale` gives."""
    _, nbytes = blocks_of(kind)
    b = rng.integers(0, 256, size=(n, nbytes), dtype=np.uint8)
    if kind in ("Q4_K", "Q5_K"):  # 6-bit scales and minima in 12 bytes: each minimum is its scale
        b[:, 8:12] = b[:, 4:8]
        b[:, 12:16] = (b[:, 12:16] & 15) * 17
    elif kind == "Q2_K":
        b[:, :16] = (b[:, :16] & 15) * 17
    elif kind == "MXFP4":  # an exponent for every 32
        b[:, 0] = np.uint8(int(np.clip(round(np.log2(scale)) + 127, 2, 253)))
    for at, multiple in F16_FIELDS.get(kind, {}).items():
        d = np.full(n, scale * multiple, np.float32)
        if kind in SIGNED:
            d *= rng.integers(0, 2, size=n, dtype=np.int8) * 2 - 1
        b[:, at:at + 2] = d.astype(np.float16).view(np.uint8).reshape(n, 2)
    return b


_unit = {}


def unit_spread(kind):
    """The standard deviation of this type's random blocks at scale 1, from its own dequantiser."""
    if kind not in _unit:
        b = random_blocks(kind, 4096, np.random.default_rng(1), 1.0)
        values = gguf.quants.dequantize(b, gguf.GGMLQuantizationType[kind])
        _unit[kind] = float(np.std(values.astype(np.float64)))
    return _unit[kind]


def matrix_bytes(kind, count, sigma, rng, chunk=1 << 23):
    """The bytes of `count` random values of this type and spread, piece by piece."""
    while count:
        n = min(count, chunk)
        count -= n
        if kind in ("F32", "F16", "BF16"):
            x = rng.standard_normal(n, dtype=np.float32) * np.float32(sigma)
            if kind == "BF16":
                x = (x.view(np.uint32) >> 16).astype(np.uint16)
            yield x.astype(np.float16).tobytes() if kind == "F16" else x.tobytes()
        else:
            per = blocks_of(kind)[0]
            yield random_blocks(kind, n // per, rng, sigma / unit_spread(kind)).tobytes()


def vector(kind, n, fan_in, rng):
    if kind == "zeros":
        return np.zeros(n, np.float32)
    if kind == "ones":
        return rng.uniform(0.9, 1.1, n).astype(np.float32)
    if kind == "signs":  # the last norm of tied models: else the likeliest token is the one just read
        return (rng.uniform(0.9, 1.1, n) * rng.choice((-1, 1), n)).astype(np.float32)
    if kind == "decays":
        return -rng.uniform(1, 16, n).astype(np.float32)
    if kind == "time_steps":  # softplus of it is a step between 0.001 and 0.1
        dt = np.exp(rng.uniform(np.log(0.001), np.log(0.1), n))
        return np.log(np.expm1(dt)).astype(np.float32)
    return (rng.standard_normal(n) / np.sqrt(fan_in)).astype(np.float32)


def rope_factors(base, factor, low, high, original, n_rot):
    """Llama 3.1's: long wavelengths are stretched, short ones kept, those between in between."""
    wave = 2 * np.pi * base ** (2 * np.arange(n_rot // 2) / n_rot)
    smooth = (original / wave - low) / (high - low)
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < original / high, 1, np.where(wave > original / low, factor, middle))


# ---- vocabulary ---------------------------------------------------------------------------------
WORDS = """the of and to in a is that it for was on are as with his they at be this have from or
one had by word but not what all were we when your can said there use an each which she do how
their if will up other about out many then them these so some her would make like him into time
has look two more write go see number no way could people my than first water been call who oil
its now find long down day did get come made may part over new sound take only little work know
place year live me back give most very after thing our just name good sentence man think say great
where help through much before line right too mean old any same tell boy follow came want show
also around form three small set put end does another well large must big even such because turn
here why ask went men read need land different home us move try kind hand picture again change off
play spell air away animal house point page letter mother answer found study still learn should
hello world user assistant system question model language token""".split()


def byte_letters():
    """The letter that stands for each byte in byte-level BPE."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in plain}
    for i, b in enumerate(b for b in range(256) if b not in letters):
        letters[b] = chr(256 + i)
    return [letters[b] for b in range(256)]


def english_merges():
    """Byte-pair merges of the words above: the commonest pair first."""
    words = [list("Ġ" + w) for w in WORDS] + [list(w) for w in WORDS]
    while True:
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            return
        best = max(pairs, key=lambda p: (pairs[p], p))
        yield best
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i:i + 2] = [w[i] + w[i + 1]]
                i += 1


def made_up_merges():
    """Endless: syllables, then words of two, three ... of them, each a merge of two tokens."""
    syllables = ["".join(p) for p in itertools.product("bdfgklmnprstvz", "aeiou")]
    for s in syllables:
        yield s[0], s[1]
    level = [s for s in syllables]
    yield from (("Ġ", s) for s in syllables)
    while True:
        nxt = []
        for a, s in itertools.product(level, syllables):
            yield a, s
            yield "Ġ" + a, s
            nxt.append(a + s)
        level = nxt


def vocabulary(shape):
    """(tokens, types, merges) of the shape's size."""
    n, special = shape["vocab"], shape["special"]
    texts, merges, seen = byte_letters(), [], set()
    seen.update(texts)
    room = n - len(special)
    for a, b in itertools.chain(english_merges(), made_up_merges()):
        if len(texts) >= room:
            break
        if a + b in seen or a not in seen or b not in seen:
            continue
        seen.add(a + b)
        texts.append(a + b)
        merges.append(f"{a} {b}")
    plain = iter(texts)
    tokens = [special[i] if i in special else next(plain) for i in range(n)]
    types = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(n)]
    return tokens, types, merges


# ---- the file -----------------------------------------------------------------------------------
def add_keys(w, shape, layers):
    arch = shape["arch"]
    w.add_block_count(layers)
    w.add_context_length(shape["context"])
    w.add_embedding_length(shape["embd"])
    w.add_feed_forward_length(shape["ff"])
    w.add_head_count(shape["heads"])
    kv = shape["kv_heads"]
    w.add_head_count_kv([kv if i in shape["attention_at"] else 0 for i in range(layers)]
                        if "attention_at" in shape else kv)
    w.add_layer_norm_rms_eps(shape["eps"])
    w.add_vocab_size(shape["vocab"])
    if shape.get("experts"):
        w.add_expert_count(shape["experts"])
        w.add_expert_used_count(shape["used"])
    for key, value in shape["keys"].items():
        add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string}
        add[type(value)](f"{arch}.{key}", value)
    w.add_quantization_version(2)


def add_vocabulary(w, shape):
    tokens, types, merges = vocabulary(shape)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(shape["pre"])
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(shape["bos"])
    w.add_eos_token_id(shape["eos"])
    w.add_add_bos_token(shape["add_bos"])
    w.add_chat_template(shape["template"])


def tensors(shape, layers):
    """(name, sizes, inputs summed, kind) of every tensor, in the file's order."""
    gain = 3.0 * shape.get("logit_gain", 1)  # the logits' spread
    head_in = shape["embd"] / gain ** 2
    last = "token_embd_norm" if shape["arch"] == "lfm2" else "output_norm"
    yield "token_embd.weight", [shape["embd"], shape["vocab"]], \
        head_in if shape["tied"] else shape["embd"], "matrix"
    if "rope_freqs" in shape:
        yield "rope_freqs.weight", [shape["head"] // 2], None, "rope"
    for layer in range(layers):
        parts = parts_of(shape, layer)
        for part, name, sizes, fan_in, kind in LAYER:
            if part in parts:
                inputs = size(shape, fan_in)
                if name.startswith(("attn_output", "ssm_out", "ffn_down")):
                    inputs /= shape.get("branch_gain", 1) ** 2
                yield f"blk.{layer}.{name}", [size(shape, s) for s in sizes], inputs, kind
    yield f"{last}.weight", [shape["embd"]], None, "signs" if shape["tied"] else "ones"
    if not shape["tied"]:
        yield "output.weight", [shape["embd"], shape["vocab"]], head_in, "matrix"


def wanted_type(name, args, layers):
    head = name.startswith(("token_embd", "output.w"))
    if head and args.head_type:
        return args.head_type
    if args.type != "Q4_K_M":
        return args.type
    if head:
        return "Q6_K"
    i = int(name.split(".")[1]) if name.startswith("blk.") else 0
    more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
    heavy = any(part in name for part in ("attn_v", "ffn_down"))
    return "Q6_K" if heavy and more else "Q4_K"


def write(shape, args, path, say):
    layers = shape["layers"] if args.layers == "all" else int(args.layers or shape["cut"])
    rng = np.random.Generator(np.random.SFC64(args.seed))
    w = gguf.GGUFWriter(path, shape["arch"])
    w.add_name(f"synthetic {args.shape}, {layers} layers")
    add_keys(w, shape, layers)
    add_vocabulary(w, shape)
    todo, replaced = [], {}
    for name, sizes, fan_in, kind in tensors(shape, layers):
        kind_of = "F32"
        if kind == "matrix":
            wish = wanted_type(name, args, layers)
            kind_of = fitting(wish, sizes[0])
            if kind_of != wish:
                key = (".".join(name.split(".")[2:]) or name, sizes[0], wish, kind_of)
                replaced[key] = replaced.get(key, 0) + 1
        per, nbytes = blocks_of(kind_of)
        count = int(np.prod(sizes))
        dtype = np.float32 if kind_of == "F32" else np.uint8
        raw = None if kind_of == "F32" else gguf.GGMLQuantizationType[kind_of]
        shown = sizes[::-1] if raw is None else [*sizes[:0:-1], sizes[0] // per * nbytes]
        w.add_tensor_info(name, shown, np.dtype(dtype), count // per * nbytes, raw_dtype=raw)
        todo.append((kind, kind_of, count, fan_in))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for (name, row, wish, got), n in replaced.items():
        say(f"{name}: rows of {row} are no whole number of {wish} blocks: {got} ({n} tensors)")
    out = w.fout[0]
    w.write_padding(out, out.tell())
    for kind, kind_of, count, fan_in in todo:
        if kind == "rope":
            out.write(rope_factors(*shape["rope_freqs"], shape["head"]).astype(np.float32).tobytes())
        elif kind != "matrix":
            out.write(vector(kind, count, fan_in, rng).tobytes())
        else:
            for piece in matrix_bytes(kind_of, count, fan_in ** -0.5, rng):
                out.write(piece)
        w.write_padding(out, out.tell())
    w.close()
    return layers


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--list", action="store_true", help="the shapes, one a line")
    p.add_argument("shape", nargs="?", choices=sorted(SHAPES))
    p.add_argument("out", nargs="?")
    p.add_argument("--layers", help="a number, or all")
    p.add_argument("--type", default="Q4_K", choices=["Q4_K_M", *TYPES])
    p.add_argument("--head-type", choices=TYPES, help="of token_embd and output; default: TYPE's")
    p.add_argument("--experts", type=int, help="fewer experts than the model has")
    p.add_argument("--vocab", type=int, help="fewer tokens than the model has; its special ones move")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    if not args.list and not args.out:
        p.error("a shape and a file are needed (or --list)")
    return p, args


def cut_vocabulary(shape, n, p):
    """The same special tokens, at the end of a vocabulary of n."""
    first = n - len(shape["special"])
    if first < 512:
        p.error("--vocab: at least 520")
    if n >= shape["vocab"]:
        p.error(f"--vocab: the model has {shape['vocab']}")
    at = {old: first + i for i, old in enumerate(sorted(shape["special"]))}
    return {**shape, "vocab": n, "bos": at[shape["bos"]], "eos": at[shape["eos"]],
            "special": {at[i]: text for i, text in shape["special"].items()}}


def main():
    p, args = options()
    if args.list:
        for name, s in SHAPES.items():
            print(f"{name:22} {s['arch']:14} {s['layers']} layers, cut to {s['cut']}")
        return 0
    shape = SHAPES[args.shape]
    if args.layers not in (None, "all") and not 1 <= int(args.layers) <= shape["layers"]:
        p.error(f"--layers: 1 to {shape['layers']}, or all")
    if args.experts:
        if not shape.get("used", 0) < args.experts <= shape.get("experts", 0):
            p.error("--experts: more than are used at once, at most the model's")
        shape = {**shape, "experts": args.experts}
    if args.vocab:
        shape = cut_vocabulary(shape, args.vocab, p)
    begun, part = time.time(), args.out + ".part"
    try:
        layers = write(shape, args, part, lambda text: print(text, file=sys.stderr))
        os.replace(part, args.out)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    print(f"{args.out}: {args.shape}, {layers} of {shape['layers']} layers, {args.type}, "
          f"{os.path.getsize(args.out) / 1e6:.0f} MB in {time.time() - begun:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
