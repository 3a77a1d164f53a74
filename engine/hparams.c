/* hparams: a model's numbers from the file's keys. Nothing is trusted: each number is bounded here
 * by what the file's tensors can be, so that later code may multiply two of them in 64 bits, and
 * every message names the key. Tensor shapes are compared in weights.c. */
#include "engine/arch/arch.h"

#include "engine/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_LAYERS   2048u /* ten times what any model has: preparing is quadratic in layers */
#define MAX_HEADS    65536u
#define MAX_HEAD_DIM 65536u
#define MAX_WIDTH    (1u << 30)
/* Positions are 32-bit and exact in float32 up to here. */
#define MAX_CONTEXT (1u << 24)

struct key { char text[160]; };

static struct key key_of(const struct eng_builder *b, const char *suffix)
{
    struct key k;
    snprintf(k.text, sizeof(k.text), "%s.%s", b->arch->name, suffix);
    return k;
}

/* The key, or its alias when only that one is in the file. */
static struct key find_key(const struct eng_builder *b, const char *suffix)
{
    struct key k = key_of(b, suffix);
    const struct eng_gguf_kvs *kvs = &b->g->shards[0].kvs;
    if (eng_gguf_kvs_find(kvs, k.text)) return k;
    for (const char *const *a = b->arch->aliases; a && *a; a += 2) {
        struct key other = key_of(b, a[1]);
        if (!strcmp(a[0], suffix) && eng_gguf_kvs_find(kvs, other.text)) return other;
    }
    return k;
}

bool eng_b_failed(const struct eng_builder *b)
{
    return b->error.code != CN_OK;
}

/* True when the value was there; other errors than absence are kept. */
static bool took(struct eng_builder *b, int rc, const struct cn_error *err)
{
    if (rc && rc != CN_ENOENT) b->error = *err;
    return rc == CN_OK;
}

bool eng_b_u64(struct eng_builder *b, const char *suffix, uint64_t *out)
{
    struct key k = find_key(b, suffix);
    struct cn_error err;
    return !eng_b_failed(b) && took(b, eng_gguf_u64(b->g, k.text, out, &err), &err);
}

bool eng_b_f32(struct eng_builder *b, const char *suffix, float *out)
{
    struct key k = find_key(b, suffix);
    struct cn_error err;
    return !eng_b_failed(b) && took(b, eng_gguf_f32(b->g, k.text, out, &err), &err);
}

bool eng_b_bool(struct eng_builder *b, const char *suffix, bool *out)
{
    struct key k = find_key(b, suffix);
    struct cn_error err;
    return !eng_b_failed(b) && took(b, eng_gguf_bool(b->g, k.text, out, &err), &err);
}

void eng_b_refuse_key(struct eng_builder *b, int code, const char *suffix, const char *what)
{
    struct key k = find_key(b, suffix);
    if (!eng_b_failed(b)) cn_fail_param(&b->error, code, k.text, "key \"%s\" %s", k.text, what);
}

/* A number that must be there (fallback 0) or has a default, within 1..max. */
uint64_t eng_b_bounded(struct eng_builder *b, const char *suffix, uint64_t fallback, uint64_t max)
{
    char text[96];
    uint64_t value = fallback;
    bool there = eng_b_u64(b, suffix, &value);
    if (eng_b_failed(b)) return 1;
    if (!there && !fallback) {
        eng_b_refuse_key(b, CN_EFORMAT, suffix, "is missing");
    } else if (value < 1 || value > max) {
        snprintf(text, sizeof(text), "is %llu, it must be 1 to %llu", (unsigned long long)value,
                 (unsigned long long)max);
        eng_b_refuse_key(b, CN_EFORMAT, suffix, text);
    } else {
        return value;
    }
    return 1;
}

float eng_b_positive(struct eng_builder *b, const char *suffix, float fallback, bool above_zero)
{
    float value = fallback;
    eng_b_f32(b, suffix, &value);
    if (!isfinite(value) || value < 0 || (above_zero && value == 0))
        eng_b_refuse_key(b, CN_EFORMAT, suffix, "must be finite and not negative");
    return value;
}

/* A key that holds one number for all layers or an array with one for each. */
bool eng_b_per_layer(struct eng_builder *b, const char *suffix, uint32_t layer, uint64_t *out)
{
    struct key k = find_key(b, suffix);
    const struct eng_gguf_kv *kv = eng_gguf_kvs_find(&b->g->shards[0].kvs, k.text);
    struct cn_error err;
    if (!kv || eng_b_failed(b)) return false;
    if (kv->type != ENG_GGUF_ARRAY) return eng_b_u64(b, suffix, out);
    if (kv->n < b->h.n_layers || kv->n > b->h.n_blocks) {
        eng_b_refuse_key(b, CN_EFORMAT, suffix,
                         kv->n < b->h.n_layers ? "has fewer elements than the model has layers"
                                               : "has more elements than the model has layers");
        return false;
    }
    return took(b, eng_gguf_array_u64(b->g, k.text, layer, out, &err), &err);
}

static uint32_t layer_number(struct eng_builder *b, const char *suffix, uint32_t layer,
                             uint64_t fallback, uint64_t min, uint64_t max)
{
    char text[112];
    uint64_t value = fallback;
    eng_b_per_layer(b, suffix, layer, &value);
    if (!eng_b_failed(b) && (value < min || value > max)) {
        snprintf(text, sizeof(text), "is %llu for layer %u, it must be %llu to %llu",
                 (unsigned long long)value, layer, (unsigned long long)min,
                 (unsigned long long)max);
        eng_b_refuse_key(b, CN_EFORMAT, suffix, text);
    }
    return eng_b_failed(b) ? (uint32_t)min : (uint32_t)value;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Period or list; the family's own period when the file has a window but no pattern. */
static bool layer_windowed(struct eng_builder *b, uint32_t layer)
{
    uint64_t value, window = b->arch->default_window;
    struct key k = find_key(b, "attention.sliding_window_pattern");
    const struct eng_gguf_kv *kv = eng_gguf_kvs_find(&b->g->shards[0].kvs, k.text);

    eng_b_u64(b, "attention.sliding_window", &window);
    if (!window) return false;
    if (!kv)
        value = b->arch->window_period;
    else if (!eng_b_per_layer(b, "attention.sliding_window_pattern", layer, &value))
        return false;
    else if (kv->type == ENG_GGUF_ARRAY)
        return value != 0;
    return value == 0 || layer % value < value - 1;
}

/* "attention.key_length", or "attention.key_length_swa" where a windowed layer has its own. */
static uint32_t head_number(struct eng_builder *b, const char *suffix, bool windowed,
                            uint32_t fallback)
{
    char own[64];
    uint64_t value = eng_b_bounded(b, suffix, fallback, MAX_HEAD_DIM);
    snprintf(own, sizeof(own), "%s_swa", suffix);
    if (windowed) value = eng_b_bounded(b, own, value, MAX_HEAD_DIM);
    return (uint32_t)value;
}

static void read_head_dims(struct eng_builder *b, struct eng_layer *l)
{
    uint32_t dim = b->h.embd_dim / l->n_heads;
    bool exact = b->h.embd_dim % l->n_heads == 0;
    uint64_t unused;
    if (!exact && !eng_b_u64(b, "attention.key_length", &unused))
        eng_b_refuse_key(b, CN_EFORMAT, "embedding_length",
                         "is not a multiple of attention.head_count");
    l->k_dim = head_number(b, "attention.key_length", l->windowed, dim);
    l->v_dim = head_number(b, "attention.value_length", l->windowed, exact ? dim : l->k_dim);
    l->n_rot = head_number(b, "rope.dimension_count", l->windowed, l->k_dim);
    if (eng_b_failed(b)) return;
    if (l->n_rot > l->k_dim || (l->n_rot != l->k_dim && !b->arch->partial_rope))
        eng_b_refuse_key(
            b, CN_EUNSUPP, "rope.dimension_count",
            "differs from the head size (attention.key_length); this family rotates whole heads");
    if (!eng_b_failed(b) && l->n_rot % 2)
        eng_b_refuse_key(b, CN_EFORMAT, "attention.key_length", "is odd, RoPE turns pairs");
}

static void read_layer(struct eng_builder *b, uint32_t i)
{
    struct eng_layer *l = &b->h.layers[i];
    uint64_t least = b->arch->recurrent ? 0 : 1;
    *l = (struct eng_layer){.kv_layer = -1};
    l->n_heads = layer_number(b, "attention.head_count", i, 0, least, MAX_HEADS);
    l->n_kv_heads = layer_number(b, "attention.head_count_kv", i, l->n_heads, least, MAX_HEADS);
    l->ff_dim =
        layer_number(b, "feed_forward_length", i, 0, b->arch->experts ? 0 : least, MAX_WIDTH);
    l->windowed = layer_windowed(b, i);
    if (eng_b_failed(b) || !l->n_kv_heads || !l->n_heads) {
        l->n_heads = l->n_kv_heads = 0;
        return;
    }
    if (l->n_heads % l->n_kv_heads)
        eng_b_refuse_key(b, CN_EFORMAT, "attention.head_count",
                         "is not a multiple of attention.head_count_kv");
    else
        read_head_dims(b, l);
}

static void read_layers(struct eng_builder *b)
{
    struct eng_hparams *h = &b->h;
    uint64_t n_tensors = eng_gguf_n_tensors(b->g), blocks, extra = 0;

    blocks = eng_b_bounded(b, "block_count", 0, MAX_LAYERS);
    if (!eng_b_failed(b) && blocks > n_tensors)
        eng_b_refuse_key(b, CN_EFORMAT, "block_count",
                         "is larger than the number of tensors in the file");
    eng_b_u64(b, "nextn_predict_layers", &extra);
    if (!eng_b_failed(b) && extra >= blocks)
        eng_b_refuse_key(b, CN_EFORMAT, "nextn_predict_layers", "leaves no layer");
    if (eng_b_failed(b)) return;

    h->n_blocks = (uint32_t)blocks;
    h->n_layers = (uint32_t)(blocks - extra);
    h->layers = cn_arena_alloc(b->arena, h->n_layers * sizeof(*h->layers)); /* <= n_tensors */
    if (!h->layers) {
        cn_fail(&b->error, CN_ENOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < h->n_layers && !eng_b_failed(b); i++)
        read_layer(b, i);
}

static void read_scaling(struct eng_builder *b, bool *has_scaling)
{
    struct eng_hparams *h = &b->h;
    struct key k = find_key(b, "rope.scaling.type");
    struct eng_str type = {"linear", 6};
    struct cn_error err;
    char shown[ENG_GGUF_SHOWN], text[ENG_GGUF_SHOWN + 80];

    *has_scaling = took(b, eng_gguf_str(b->g, k.text, &type, &err), &err);
    h->scaling_factor = 1;
    if (eng_b_f32(b, "rope.scaling.factor", &h->scaling_factor) ||
        eng_b_f32(b, "rope.scale_linear", &h->scaling_factor))
        *has_scaling = true;
    if (!*has_scaling && eng_b_has(b, ENG_GLOBAL, "rope_factors_long.weight"))
        type = (struct eng_str){"longrope", 8};
    if (h->scaling_factor == 0) h->scaling_factor = 1; /* some writers' "none" */
    if (!isfinite(h->scaling_factor) || h->scaling_factor < 0)
        eng_b_refuse_key(b, CN_EFORMAT, "rope.scaling.factor", "must be finite and not negative");
    h->attn_factor = eng_b_positive(b, "rope.scaling.attn_factor", 1, true);
    h->has_yarn_log_mul = eng_b_f32(b, "rope.scaling.yarn_log_multiplier", &h->yarn_log_mul);
    if (h->has_yarn_log_mul && !isfinite(h->yarn_log_mul))
        eng_b_refuse_key(b, CN_EFORMAT, "rope.scaling.yarn_log_multiplier", "is not a number");
    h->yarn_fast = eng_b_positive(b, "rope.scaling.yarn_beta_fast", 32, true);
    h->yarn_slow = eng_b_positive(b, "rope.scaling.yarn_beta_slow", 1, true);
    h->original_context =
        eng_b_bounded(b, "rope.scaling.original_context_length", h->train_context, MAX_CONTEXT);

    if (type.n == 6 && !memcmp(type.p, "linear", 6)) {
        h->scaling = h->scaling_factor != 1 ? ENG_ROPE_LINEAR : ENG_ROPE_NONE;
    } else if (type.n == 4 && !memcmp(type.p, "yarn", 4)) {
        h->scaling = ENG_ROPE_YARN;
    } else if (type.n == 8 && !memcmp(type.p, "longrope", 8)) {
        h->scaling = ENG_ROPE_LONG;
    } else if (type.n == 4 && !memcmp(type.p, "none", 4)) {
        h->scaling = ENG_ROPE_NONE;
    } else {
        snprintf(text, sizeof(text),
                 "is %s, which is not supported (supported: none, linear, yarn, longrope)",
                 eng_gguf_show(type, shown));
        eng_b_refuse_key(b, CN_EUNSUPP, "rope.scaling.type", text);
    }
}

static void read_vocab_size(struct eng_builder *b)
{
    struct eng_hparams *h = &b->h;
    enum eng_gguf_type type;
    struct cn_error err;
    const struct kr_tensor *embd = eng_gguf_find(b->g, "token_embd.weight");
    if (eng_b_failed(b)) return;
    if (!embd) {
        cn_fail_param(&b->error, CN_EFORMAT, "token_embd.weight",
                      "the tensor \"token_embd.weight\" is missing");
        return;
    }
    took(b, eng_gguf_array(b->g, "tokenizer.ggml.tokens", &type, &h->n_file_vocab, &err), &err);
    h->n_vocab = embd->ne[1];
    uint64_t said = 0; /* advisory: the tokens decide; but there cannot be more than embeddings */
    if (eng_b_u64(b, "vocab_size", &said) && said > h->n_vocab && !b->arch->cut_vocabulary)
        eng_b_refuse_key(b, CN_EFORMAT, "vocab_size",
                         "is more than tensor \"token_embd.weight\" has rows");
    if (!h->n_file_vocab || h->n_file_vocab == h->n_vocab) return;
    if (h->n_file_vocab < h->n_vocab) {
        h->n_vocab = h->n_file_vocab; /* rows past the last token have no text: leave them out */
    } else if (!b->arch->cut_vocabulary) {
        cn_fail_param(&b->error, CN_EFORMAT, "tokenizer.ggml.tokens",
                      "key \"tokenizer.ggml.tokens\" has %llu tokens, tensor "
                      "\"token_embd.weight\" has %llu rows",
                      (unsigned long long)h->n_file_vocab, (unsigned long long)h->n_vocab);
    }
}

/* What the recorded ops do not compute must not be skipped silently. */
static void refuse_unsupported(struct eng_builder *b)
{
    uint64_t experts = 0;
    bool causal = true;
    struct cn_error err;
    struct key k = find_key(b, "attention.causal");
    eng_b_u64(b, "expert_count", &experts);
    if (experts && !b->arch->experts)
        eng_b_refuse_key(b, CN_EUNSUPP, "expert_count",
                         "is not 0: this family has no mixtures of experts");
    took(b, eng_gguf_bool(b->g, k.text, &causal, &err), &err);
    if (!causal && !b->arch->encoder)
        eng_b_refuse_key(b, CN_EUNSUPP, "attention.causal", "is false: this family is no encoder");
}

static void read_pooling(struct eng_builder *b)
{
    enum { KEY_NONE, KEY_MEAN, KEY_CLS, KEY_LAST };
    static const enum eng_pooling kinds[] = {[KEY_NONE] = ENG_POOL_NONE,
                                             [KEY_MEAN] = ENG_POOL_MEAN,
                                             [KEY_CLS] = ENG_POOL_CLS,
                                             [KEY_LAST] = ENG_POOL_LAST};
    uint64_t key = KEY_NONE;
    eng_b_u64(b, "pooling_type", &key);
    if (key > KEY_LAST) {
        eng_b_refuse_key(b, CN_EUNSUPP, "pooling_type",
                         "is not one that is supported (1 mean, 2 first, 3 last)");
        return;
    }
    b->h.pooling = kinds[key];
    if (b->arch->encoder && !b->h.pooling) b->h.pooling = ENG_POOL_MEAN;
}

static void read_experts(struct eng_builder *b)
{
    struct eng_hparams *h = &b->h;
    uint64_t n = 0;
    if (!b->arch->experts || !eng_b_u64(b, "expert_count", &n) || !n) return;
    h->n_experts = (uint32_t)eng_b_bounded(b, "expert_count", 0, MAX_HEADS);
    /* Mixtral's and Granite's experts are as wide as the key of the dense part says. */
    h->expert_ff_dim = (uint32_t)eng_b_bounded(b, "expert_feed_forward_length",
                                               CN_MAX(h->layers[0].ff_dim, 1u), MAX_WIDTH);
}

/* How many positions a windowed row can see on one side, its own included. */
static uint64_t sight(const struct eng_builder *b)
{
    return b->arch->encoder ? b->h.window_tokens / 2 + 1 : b->h.window_tokens;
}

/* A list of windowed layers without the window's length is not a model that sees everything. */
static void refuse_windowless(struct eng_builder *b)
{
    struct key k = find_key(b, "attention.sliding_window_pattern");
    const struct eng_gguf_kv *kv = eng_gguf_kvs_find(&b->g->shards[0].kvs, k.text);
    bool windowed = b->arch->window_needed;
    for (uint32_t l = 0; kv && kv->type == ENG_GGUF_ARRAY && l < b->h.n_layers; l++) {
        uint64_t value = 0;
        eng_b_per_layer(b, "attention.sliding_window_pattern", l, &value);
        windowed |= value != 0;
    }
    if (windowed) eng_b_refuse_key(b, CN_EFORMAT, "attention.sliding_window", "is missing or 0");
}

int eng_b_hparams(struct eng_builder *b, uint64_t max_context)
{
    struct eng_hparams *h = &b->h;
    bool has_scaling = false;

    refuse_unsupported(b);
    h->train_context = eng_b_bounded(b, "context_length", 0, MAX_CONTEXT);
    h->context = max_context ? CN_MIN(max_context, h->train_context) : h->train_context;
    h->embd_dim = (uint32_t)eng_b_bounded(b, "embedding_length", 0, MAX_WIDTH);
    if (!eng_b_failed(b)) read_layers(b);
    if (eng_b_failed(b)) return b->error.code;

    const char *eps_key =
        b->arch->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    float eps = b->arch->default_eps;
    if (!eng_b_f32(b, eps_key, &eps) && eps == 0)
        eng_b_refuse_key(b, CN_EFORMAT, eps_key, "is missing");
    h->eps = eng_b_positive(b, eps_key, eps, false);
    h->logit_scale = 1;
    read_experts(b);
    read_pooling(b);
    float base = b->arch->default_freq_base ? b->arch->default_freq_base : 1e4f;
    h->freq_base = eng_b_positive(b, "rope.freq_base", base, true);
    bool own = b->arch->window_rope == ENG_WINDOW_ROPE_OWN;
    h->freq_base_windowed =
        eng_b_positive(b, "rope.freq_base_swa", own ? 1e4f : h->freq_base, true);
    h->attn_softcap =
        eng_b_positive(b, "attn_logit_softcapping", b->arch->default_attn_softcap, false);
    h->final_softcap =
        eng_b_positive(b, "final_logit_softcapping", b->arch->default_final_softcap, false);
    h->window_tokens = b->arch->default_window;
    eng_b_u64(b, "attention.sliding_window", &h->window_tokens);
    if (!h->window_tokens) refuse_windowless(b);
    if (sight(b) >= h->context) h->window_tokens = 0; /* nothing is ever out of sight */
    read_scaling(b, &has_scaling);
    read_vocab_size(b);
    if (!eng_b_failed(b) && b->arch->adjust) b->arch->adjust(h, has_scaling);
    return b->error.code;
}
