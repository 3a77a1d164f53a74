/* Opening models: what is refused and with which words, equal models told in different ways (fused
 * projections, split files, other types of vectors), vocabularies and templates, describe. */
#include "golden.h"
#include "gguf_write.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];

static const char *temp(const char *name)
{
    static char paths[4][160];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* ---- a model taken apart, to be put together differently ------------------------------------- */

struct part {
    char name[64];
    uint32_t n_dims, type;
    uint64_t ne[4];
    const void *data;
    uint64_t bytes;
};
struct parts {
    struct eng_gguf *g;
    struct part v[256];
    size_t n;
    struct gw w; /* keys so far */
};

static void take_apart(struct parts *p, const char *name, const char *const *without)
{
    struct cn_error err;
    memset(p, 0, sizeof(*p));
    if (eng_gguf_open(golden_oracle("models", name, ".gguf"), &p->g, &err))
        fail_msg("%s", err.message);
    gw_begin(&p->w);
    const struct eng_gguf_kvs *kvs = &p->g->shards[0].kvs;
    for (size_t i = 0; i < kvs->n; i++) {
        const struct eng_gguf_kv *kv = &kvs->v[i];
        bool drop = false;
        for (const char *const *k = without; k && *k; k++)
            drop |= kv->key.n == strlen(*k) && !memcmp(kv->key.p, *k, kv->key.n);
        if (drop) continue;
        gw_str(&p->w, kv->key.p, kv->key.n);
        gw_u32(&p->w, kv->type);
        if (kv->type == ENG_GGUF_ARRAY) {
            gw_u32(&p->w, kv->elem);
            gw_u64(&p->w, kv->n);
        }
        gw_bytes(&p->w, kv->value, kv->bytes);
        p->w.n_kvs++;
    }
    for (uint64_t i = 0; i < eng_gguf_n_tensors(p->g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(p->g, i);
        struct part *v = &p->v[p->n++];
        snprintf(v->name, sizeof(v->name), "%s", t->name);
        v->n_dims = t->n_dims;
        v->type = (uint32_t)t->type;
        memcpy(v->ne, t->ne, sizeof(v->ne));
        v->data = t->data;
        v->bytes = t->bytes;
    }
}

static struct part *part_of(struct parts *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->v[i].name, name)) return &p->v[i];
    fail_msg("no %s", name);
    return NULL;
}

static void drop_part(struct parts *p, const char *name)
{
    struct part *v = part_of(p, name);
    *v = p->v[--p->n];
}

/* Writes tensors [first, last) and their data after the keys that w holds. */
static const char *write_parts(struct gw *w, const struct parts *p, size_t first, size_t last,
                               const char *file)
{
    uint64_t offset = 0;
    const char *path = temp(file);
    for (size_t i = first; i < last; i++) {
        gw_tensor(w, p->v[i].name, p->v[i].n_dims, p->v[i].ne, p->v[i].type, offset);
        offset += (p->v[i].bytes + 31) / 32 * 32;
    }
    gw_end(w, 32, 0);
    for (size_t i = first; i < last; i++) {
        gw_bytes(w, p->v[i].data, p->v[i].bytes);
        while (w->b.len % 32)
            cn_buf_putc(&w->b, 0);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(w->b.data, 1, w->b.len, f), w->b.len);
    fclose(f);
    cn_buf_fini(&w->b);
    return path;
}

static const char *put_together(struct parts *p, const char *file)
{
    const char *path = write_parts(&p->w, p, 0, p->n, file);
    eng_gguf_close(p->g);
    return path;
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct kr_device *device;

static void refused(const char *path, int code, const char *has, const char *also)
{
    struct eng_model *m;
    struct cn_error err;
    int rc = golden_try(device, path, &m, &err);
    if (rc != code || !strstr(err.message, has) || !strstr(err.message, also))
        fail_msg("%s: code %d, message \"%s\"; expected %d, \"%s\", \"%s\"", path, rc, err.message,
                 code, has, also);
    assert_null(m);
}

/* Logits of a short prompt, malloc'd. */
static float *logits_of(const char *path, size_t *n)
{
    static const uint32_t ids[] = {0,  194, 232, 10,  233, 137, 150, 182, 85, 282,
                                   19, 82,  112, 166, 120, 41,  16,  4,   17, 46};
    struct golden g;
    assert_int_equal(golden_open(&g, path, KR_ISA_AUTO, 1, 256, KR_F16), 0);
    *n = g.n_vocab * CN_ARRAY_LEN(ids);
    float *out = malloc(*n * sizeof(*out));
    golden_feed(&g, ids, CN_ARRAY_LEN(ids), 20, 0, out);
    golden_close(&g);
    return out;
}

static void same_logits(const char *path, const char *other)
{
    size_t n, m;
    float *a = logits_of(path, &n), *b = logits_of(other, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof(*a));
    free(a);
    free(b);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const char *unknown_family(void)
{
    const char *const without[] = {"general.architecture", NULL};
    struct parts p;
    take_apart(&p, "llama-mha", without);
    gw_kv_str(&p.w, "general.architecture", "rwkv9");
    return put_together(&p, "x.gguf");
}

static void test_refused_families(void **state)
{
    if (!golden_oracle("models", "llama-mha", ".gguf")) return;
    refused(unknown_family(), CN_EUNSUPP, "\"rwkv9\" is not supported", "(supported: llama, ");
    struct parts p;
    take_apart(&p, "qwen2", NULL);
    gw_kv_u32(&p.w, "qwen2.expert_count", 8);
    refused(put_together(&p, "x.gguf"), CN_EUNSUPP, "qwen2.expert_count", "no mixtures of experts");
    refused(golden_oracle("vocab", "ggml-vocab-llama-spm", ".gguf"), CN_EFORMAT, "vocabulary only",
            "no weights");
    refused("/nowhere/x.gguf", CN_ENOENT, "/nowhere/x.gguf", "No such file");
}

/* Types whose numbers are other people's code books, and numbers that name no type. */
static void test_refused_types(void **state)
{
    static const uint8_t block[128];
    static const struct {
        uint32_t type, elems, bytes;
        const char *name;
    } cases[] = {
        {16, 256, 66, "IQ2_XXS"}, {17, 256, 74, "IQ2_XS"}, {18, 256, 98, "IQ3_XXS"},
        {19, 256, 50, "IQ1_S"},   {22, 256, 82, "IQ2_S"},  {29, 256, 56, "IQ1_M"},
        {40, 64, 36, "NVFP4"},    {41, 128, 18, "Q1_0"},   {42, 64, 18, "Q2_0"},
        {24, 1, 1, "I8"},
    };
    if (!golden_oracle("models", "llama-mha", ".gguf")) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        char has[96];
        struct parts p;
        take_apart(&p, "llama-mha", NULL);
        struct part *v = part_of(&p, "blk.1.ffn_down.weight");
        *v = (struct part){"blk.1.ffn_down.weight", 2, cases[i].type, {cases[i].elems, 1, 1, 1},
                           block, cases[i].bytes};
        snprintf(has, sizeof(has), "\"blk.1.ffn_down.weight\" has the weight type %s (%u)",
                 cases[i].name, (unsigned)cases[i].type);
        refused(put_together(&p, "x.gguf"), CN_EUNSUPP, has, "(supported: F32, F16, BF16, Q4_0");
    }
}

/* One key of llama-mha replaced. */
static void refused_u32(const char *key, uint32_t value, int code, const char *has)
{
    const char *const without[] = {key, NULL};
    struct parts p;
    take_apart(&p, "llama-mha", without);
    gw_kv_u32(&p.w, key, value);
    refused(put_together(&p, "key.gguf"), code, has, "key");
}

static void refused_f32(const char *key, float value, const char *has)
{
    const char *const without[] = {key, NULL};
    struct parts p;
    take_apart(&p, "llama-mha", without);
    gw_kv_f32(&p.w, key, value);
    refused(put_together(&p, "key.gguf"), CN_EFORMAT, has, key);
}

static void refused_without(const char *key, int code, const char *has)
{
    const char *const without[] = {key, NULL};
    struct parts p;
    take_apart(&p, "llama-mha", without);
    refused(put_together(&p, "key.gguf"), code, has, key);
}

static void test_refused_keys(void **state)
{
    if (!golden_oracle("models", "llama-mha", ".gguf")) return;
    refused_u32("llama.attention.head_count", 0, CN_EFORMAT, "head_count");
    refused_u32("llama.attention.head_count", 3, CN_EFORMAT, "head_count_kv");
    refused_u32("llama.attention.head_count_kv", 0, CN_EFORMAT, "head_count_kv");
    refused_u32("llama.attention.head_count_kv", 3, CN_EFORMAT, "head_count_kv");
    refused_u32("llama.block_count", 0, CN_EFORMAT, "block_count");
    refused_u32("llama.block_count", 1u << 31, CN_EFORMAT, "it must be 1 to 2048");
    refused_u32("llama.context_length", 0, CN_EFORMAT, "context_length");
    refused_u32("llama.context_length", UINT32_MAX, CN_EFORMAT, "context_length");
    refused_u32("llama.rope.dimension_count", 8, CN_EUNSUPP, "rope.dimension_count");
    refused_f32("llama.rope.freq_base", 0, "rope.freq_base");
    refused_f32("llama.rope.freq_base", NAN, "rope.freq_base");
    refused_f32("llama.rope.freq_base", -1, "rope.freq_base");
    refused_f32("llama.attention.layer_norm_rms_epsilon", INFINITY, "layer_norm_rms_epsilon");
    refused_without("general.architecture", CN_EFORMAT, "missing");
    refused_without("llama.context_length", CN_EFORMAT, "missing");
    refused_without("llama.embedding_length", CN_EFORMAT, "missing");
    refused_without("llama.attention.layer_norm_rms_epsilon", CN_EFORMAT, "missing");
    refused_without("tokenizer.ggml.tokens", CN_EFORMAT, "no vocabulary");
    refused_without("tokenizer.ggml.model", CN_EFORMAT, "no tokenizer");
}

static void test_refused_shapes(void **state)
{
    if (!golden_oracle("models", "llama-mha", ".gguf")) return;
    refused_u32("llama.embedding_length", 128, CN_EFORMAT,
                "token_embd.weight\" is [64, 288, 1, 1], the model's keys");
    refused_u32("llama.feed_forward_length", 129, CN_EFORMAT, "blk.0.ffn_gate.weight");
    refused_u32("llama.attention.key_length", 0, CN_EFORMAT, "key_length");

    struct parts p;
    take_apart(&p, "llama-mha", NULL);
    drop_part(&p, "blk.3.ffn_up.weight");
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "\"blk.3.ffn_up.weight\" is missing", "");
    take_apart(&p, "qwen2", NULL);
    drop_part(&p, "blk.1.attn_k.bias");
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "\"blk.1.attn_k.bias\" is missing", "");
    take_apart(&p, "llama-mha", NULL);
    part_of(&p, "blk.2.attn_norm.weight")->ne[0] = 63;
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "blk.2.attn_norm.weight", "[64, 1]");
}

static void test_refused_kinds(void **state)
{
    const char *const kind[] = {"general.type", NULL};
    const char *const scaling[] = {"llama.rope.scaling.type", NULL};
    const char *const model[] = {"tokenizer.ggml.model", NULL};
    struct parts p;
    if (!golden_oracle("models", "llama-mha", ".gguf")) return;
    take_apart(&p, "llama-mha", kind);
    gw_kv_str(&p.w, "general.type", "mmproj");
    refused(put_together(&p, "x.gguf"), CN_EUNSUPP, "\"mmproj\"", "general.type");
    take_apart(&p, "llama-yarn", scaling);
    gw_kv_str(&p.w, "llama.rope.scaling.type", "dynamic");
    refused(put_together(&p, "x.gguf"), CN_EUNSUPP, "\"dynamic\"", "none, linear, yarn, longrope");
    take_apart(&p, "llama-mha", model);
    gw_kv_str(&p.w, "tokenizer.ggml.model", "rwkv");
    refused(put_together(&p, "x.gguf"), CN_EUNSUPP, "rwkv", "");
    const char *const template[] = {"tokenizer.chat_template", NULL};
    take_apart(&p, "llama-mha", template);
    gw_kv_str(&p.w, "tokenizer.chat_template", "{% for x in %}");
    refused(put_together(&p, "x.gguf"), CN_ETEMPLATE, "tokenizer.chat_template", "");
}

/* ---- the same model, told differently -------------------------------------------------------- */

/* attn_q, attn_k, attn_v and their biases in one tensor each. */
static void test_fused(void **state)
{
    static uint8_t joined[4][2][1 << 17];
    struct parts p;
    if (!golden_oracle("models", "qwen2", ".gguf")) return;
    take_apart(&p, "qwen2", NULL);
    for (int l = 0; l < 4; l++) {
        for (int bias = 0; bias < 2; bias++) {
            struct part all = {.n_dims = bias ? 1 : 2, .type = bias ? 0 : 1, .ne = {64, 1, 1, 1}};
            const char *suffix = bias ? "bias" : "weight";
            uint64_t rows = 0;
            snprintf(all.name, sizeof(all.name), "blk.%d.attn_qkv.%s", l, suffix);
            for (int i = 0; i < 3; i++) {
                char name[64];
                snprintf(name, sizeof(name), "blk.%d.attn_%c.%s", l, "qkv"[i], suffix);
                const struct part *one = part_of(&p, name);
                memcpy(joined[l][bias] + all.bytes, one->data, one->bytes);
                all.bytes += one->bytes;
                rows += one->ne[bias ? 0 : 1];
                drop_part(&p, name);
            }
            all.ne[bias ? 0 : 1] = rows;
            all.data = joined[l][bias];
            p.v[p.n++] = all;
        }
    }
    same_logits(put_together(&p, "fused.gguf"), golden_oracle("models", "qwen2", ".gguf"));
}

static void put_split(struct gw *w, uint32_t no, uint32_t count, uint32_t total)
{
    gw_kv_u32(w, "split.no", no);
    gw_kv_u32(w, "split.count", count);
    gw_kv_u32(w, "split.tensors.count", total);
}

static void test_split_model(void **state)
{
    struct parts p;
    char first[160];
    if (!golden_oracle("models", "llama3-gqa", ".gguf")) return;
    take_apart(&p, "llama3-gqa", NULL);
    put_split(&p.w, 0, 2, (uint32_t)p.n);
    snprintf(first, sizeof(first), "%s",
             write_parts(&p.w, &p, 0, p.n / 2, "s-00001-of-00002.gguf"));
    struct gw second;
    gw_begin(&second);
    put_split(&second, 1, 2, (uint32_t)p.n);
    write_parts(&second, &p, p.n / 2, p.n, "s-00002-of-00002.gguf");
    eng_gguf_close(p.g);
    same_logits(first, golden_oracle("models", "llama3-gqa", ".gguf"));
}

/* The float16 of a float32 that is one exactly (normal numbers). */
static bool to_half(float f, uint16_t *out)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    int exponent = (int)(bits >> 23 & 255) - 127;
    *out = (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)((exponent + 15) << 10 & 0x7c00) |
           (uint16_t)(bits >> 13 & 0x3ff);
    return !(bits & 0x1fff) && exponent >= -14 && exponent <= 15;
}

/* Norms stored as float16 (exact here: they are float16 numbers), extra tensors of unknown types.
 */
static void test_other_vectors(void **state)
{
    static uint16_t half[64][64];
    static const uint8_t junk[64];
    struct parts p;
    size_t used = 0;
    if (!golden_oracle("models", "qwen3", ".gguf")) return;
    take_apart(&p, "qwen3", NULL);
    for (size_t i = 0; i < p.n; i++) {
        struct part *v = &p.v[i];
        if (v->n_dims != 1 || !strstr(v->name, "norm")) continue;
        bool exact = true;
        for (uint64_t k = 0; k < v->ne[0]; k++)
            exact &= to_half(((const float *)v->data)[k], &half[used][k]);
        if (!exact) continue;
        v->type = KR_F16;
        v->data = half[used++];
        v->bytes = v->ne[0] * 2;
    }
    assert_true(used > 0);
    p.v[p.n++] = (struct part){"v.blk.0.extra", 1, 4711, {8, 1, 1, 1}, junk, 64};
    p.v[p.n++] = (struct part){"mm.extra", 2, 0, {4, 4, 1, 1}, junk, 64};
    same_logits(put_together(&p, "vectors.gguf"), golden_oracle("models", "qwen3", ".gguf"));
}

/* ---- vocabularies longer than the embeddings ------------------------------------------------- */

static void add_token(struct parts *p)
{
    const char *const keys[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type"};
    struct eng_str *tokens;
    int32_t *types;
    size_t n;
    assert_int_equal(eng_gguf_strings(p->g, keys[0], &tokens, &n, NULL), 0);
    gw_kv_array(&p->w, keys[0], ENG_GGUF_STRING, n + 1);
    for (size_t i = 0; i < n; i++)
        gw_str(&p->w, tokens[i].p, tokens[i].n);
    gw_str(&p->w, "<one more>", 10);
    free(tokens);
    assert_int_equal(eng_gguf_int32s(p->g, keys[1], &types, &n, NULL), 0);
    gw_kv_array(&p->w, keys[1], ENG_GGUF_I32, n + 1);
    gw_bytes(&p->w, types, n * 4);
    gw_u32(&p->w, 3);
    free(types);
}

static void test_long_vocabulary(void **state)
{
    const char *const without[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", NULL};
    struct parts p;
    struct eng_model *m;
    struct cn_error err;
    if (!golden_oracle("models", "gemma3", ".gguf")) return;
    take_apart(&p, "llama-mha", without);
    add_token(&p);
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "has 289 tokens", "288 rows");
    take_apart(&p, "gemma3", without);
    add_token(&p);
    const char *path = put_together(&p, "gemma.gguf");
    if (golden_try(device, path, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(eng_vocab_size(eng_model_vocab(m)), 288);
    assert_int_equal(eng_model_info(m)->n_vocab, 288);
    assert_int_equal(kr_exec_info(eng_model_exec(m))->n_vocab, 288);
    eng_model_unref(m);
    same_logits(path, golden_oracle("models", "gemma3", ".gguf"));
}

/* A pattern given as a list, and ollama's names of the keys, are the same model. */
static void test_gemma_spellings(void **state)
{
    const char *const without[] = {"gemma3.rope.freq_base", "gemma3.rope.freq_base_swa", NULL};
    const char *const eps[] = {"gemma3.attention.layer_norm_rms_epsilon", NULL};
    struct parts p;
    if (!golden_oracle("models", "gemma3", ".gguf")) return;
    take_apart(&p, "gemma3", without);
    gw_kv_f32(&p.w, "gemma3.rope.global.freq_base", 1e6f);
    gw_kv_f32(&p.w, "gemma3.rope.local.freq_base", 1e4f);
    gw_kv_array(&p.w, "gemma3.attention.sliding_window_pattern", ENG_GGUF_BOOL, 7);
    gw_bytes(&p.w, "\1\1\1\1\1\0\1", 7);
    same_logits(put_together(&p, "x.gguf"), golden_oracle("models", "gemma3", ".gguf"));
    take_apart(&p, "gemma3", eps);
    gw_kv_f32(&p.w, eps[0], 1e-6f);
    put_together(&p, "gemma.gguf");
    take_apart(&p, "gemma3", eps);
    same_logits(put_together(&p, "x.gguf"), temp("gemma.gguf"));
    take_apart(&p, "gemma3", NULL);
    gw_kv_array(&p.w, "gemma3.attention.sliding_window_pattern", ENG_GGUF_BOOL, 3);
    gw_bytes(&p.w, "\1\1\1", 3);
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "sliding_window_pattern", "fewer elements");
}

/* ---- what a model says of itself ------------------------------------------------------------- */

static void test_info(void **state)
{
    struct eng_model *m, *other;
    struct cn_error err;
    const char *path = golden_oracle("models", "gemma3", ".gguf");
    if (!path) return;
    if (golden_try(device, path, &m, &err)) fail_msg("%s", err.message);
    const struct eng_model_info *i = eng_model_info(m);
    assert_string_equal(i->arch, "gemma3");
    assert_string_equal(i->name, "Gemma3");
    assert_string_equal(i->file_type, "F16");
    assert_int_equal(i->n_layers, 7);
    assert_int_equal(i->n_heads, 4);
    assert_int_equal(i->n_kv_heads, 2);
    assert_int_equal(i->embd_dim, 64);
    assert_int_equal(i->context, 512);
    assert_int_equal(i->exec->n_groups, 2);
    assert_int_equal(i->exec->groups[0].window_tokens + i->exec->groups[1].window_tokens, 16);
    assert_int_equal(i->exec->groups[0].n_layers, 6); /* the windowed ones come first */
    assert_non_null(eng_model_template(m));
    assert_true(eng_model_intact(m));
    if (golden_try(device, path, &other, &err)) fail_msg("%s", err.message);
    assert_string_equal(i->fingerprint, eng_model_info(other)->fingerprint);
    eng_model_unref(other);
    if (golden_try(device, golden_oracle("models", "qwen3", ".gguf"), &other, &err))
        fail_msg("%s", err.message);
    assert_string_not_equal(i->fingerprint, eng_model_info(other)->fingerprint);
    eng_model_unref(other);
    assert_ptr_equal(eng_model_ref(m), m);
    eng_model_unref(m);
    assert_string_equal(eng_model_info(m)->arch, "gemma3");
    eng_model_unref(m);
}

static void describe_has(const char *text, const char *what)
{
    assert_non_null(text);
    if (text && !strstr(text, what)) fail_msg("no \"%s\" in:\n%s", what, text);
}

static void test_describe(void **state)
{
    struct eng_model_opts opts = {.device = device,
                                  .prepare = {.kv_type = KR_F16,
                                              .block_tokens = 16,
                                              .max_rows = 16,
                                              .max_logit_rows = 16}};
    struct cn_error err;
    struct eng_model *m;
    struct cn_buf out;
    const char *path = golden_oracle("models", "gemma3", ".gguf");
    if (!path) return;
    cn_buf_init(&out, 0);
    if (eng_model_measure(path, &opts, &m, &err)) fail_msg("%s", err.message);
    if (eng_model_describe(m, &opts.prepare, &out, &err)) fail_msg("%s", err.message);
    eng_model_unref(m);
    const char *text = cn_buf_cstr(&out);
    describe_has(text, "architecture    gemma3");
    describe_has(text, "mostly F16");
    describe_has(text, "512 tokens");
    describe_has(text, "16 tokens in 6 of 7 layers");
    describe_has(text, "KV, 1 layer          128 B  a token (F16)"); /* 2 heads * 2 * 16 * 2 */
    describe_has(text, "KV, 6 layers         768 B");
    describe_has(text, "heads           4 of 16, 2 for keys and values\n");
    describe_has(text, "for steps of 16 rows");
    assert_int_equal(eng_model_measure(unknown_family(), &opts, &m, &err), CN_EUNSUPP);
    cn_buf_fini(&out);
}

/* Against sizes added up by hand: two heads of 16 and 16 values in f16, seven layers of which six see
 * 16 tokens. */
static void test_measure(void **state)
{
    struct eng_model_opts opts = {.device = device,
                                  .prepare = {.kv_type = KR_F16,
                                              .block_tokens = 16,
                                              .max_rows = 16,
                                              .max_logit_rows = 16}};
    struct cn_error err;
    struct eng_model *m;
    const char *path = golden_oracle("models", "gemma3", ".gguf");
    if (!path) return;
    if (eng_model_measure(path, &opts, &m, &err)) fail_msg("%s", err.message);
    const struct kr_exec_info *x = eng_model_info(m)->exec;
    assert_int_equal(eng_sequence_bytes(x, 16, 0), 0);
    assert_int_equal(eng_sequence_bytes(x, 16, 1), 7 * 128 * 16);
    assert_int_equal(eng_sequence_bytes(x, 16, 320), 128 * 320 + 6 * 128 * 32);
    assert_int_equal(eng_sequence_bytes(x, 16, UINT64_MAX), UINT64_MAX);
    assert_int_equal(eng_tokens_in(x, 16, 128 * 320 + 6 * 128 * 32), 320);
    assert_int_equal(eng_tokens_in(x, 16, 128 * 320 + 6 * 128 * 32 - 1), 304);
    uint64_t packed = x->packed_bytes, scratch = x->scratch_bytes, ticket;
    struct kr_batch batch = {0};
    assert_int_equal(kr_launch(eng_model_exec(m), NULL, &batch, &ticket, &err), CN_EINVAL);
    eng_model_unref(m);
    if (golden_try(device, path, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(eng_model_info(m)->exec->packed_bytes, packed);
    assert_int_equal(eng_model_info(m)->exec->scratch_bytes, scratch);
    eng_model_unref(m);
}

/* The file is cut short while the model is in use: no signal, the owner can see it, another model
 * of the same kind goes on. */
static void test_truncated_in_use(void **state)
{
    static const uint32_t ids[] = {1, 2, 3, 287, 100};
    struct golden g;
    struct parts p;
    if (!golden_oracle("models", "llama-mqa", ".gguf")) return;
    take_apart(&p, "llama-mqa", NULL);
    const char *path = put_together(&p, "x.gguf");
    assert_int_equal(golden_open(&g, path, KR_ISA_AUTO, 1, 64, KR_F16), 0);
    float *logits = malloc(g.n_vocab * sizeof(*logits));
    golden_feed(&g, ids, 5, 5, 4, logits);
    assert_true(eng_model_intact(g.model));
    assert_int_equal(truncate(path, 1000), 0);
    assert_false(eng_model_intact(g.model));
    golden_feed(&g, ids, 5, 5, 9, logits);
    for (uint64_t i = 0; i < g.n_vocab; i++)
        assert_true(isfinite(logits[i]));
    free(logits);
    golden_close(&g);
}

/* ---- group ----------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct kr_cpu_opts opts = {.isa = KR_ISA_AUTO, .n_threads = 1};
    struct cn_error err;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    snprintf(dir, sizeof(dir), "/tmp/conifer-model-XXXXXX");
    return mkdtemp(dir) && !kr_cpu_new(&opts, &device, &err) ? 0 : -1;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"key.gguf",
                                        "x.gguf",
                                        "fused.gguf",
                                        "s-00001-of-00002.gguf",
                                        "s-00002-of-00002.gguf",
                                        "vectors.gguf",
                                        "gemma.gguf",
                                        "sweep.gguf"};
    kr_device_free(device);
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++)
        unlink(temp(names[i]));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_families),
        cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_refused_keys),
        cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_refused_kinds),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_split_model),
        cmocka_unit_test(test_other_vectors),
        cmocka_unit_test(test_long_vocabulary),
        cmocka_unit_test(test_gemma_spellings),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_truncated_in_use),

    };
    return cmocka_run_group_tests_name("models", tests, set_up, tear_down);
}
