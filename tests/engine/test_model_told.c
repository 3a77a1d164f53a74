/* Equal models told in different ways: fused projections, split files, other types of vectors,
 * older and newer forms of a family, other names of keys; vocabularies and lists that do not
 * fit. */
#include "parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

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

/* Norms stored as float16 (exact here: they are float16 numbers), extra tensors of unknown
 * types. */
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
    if (golden_try(parts_device(), path, &m, &err)) fail_msg("%s", err.message);
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
    same_logits(put_together(&p, "x.gguf"), parts_temp("gemma.gguf"));
    take_apart(&p, "gemma3", NULL);
    gw_kv_array(&p.w, "gemma3.attention.sliding_window_pattern", ENG_GGUF_BOOL, 3);
    gw_bytes(&p.w, "\1\1\1", 3);
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "sliding_window_pattern", "fewer elements");
}

/* ---- the two generations of files with latent attention -------------------------------------- */

enum { HEADS = 4, NOPE = 16, VALUE = 16, LATENT = 32 };

/* attn_kv_b of the older generation: per head the rows of keys, which the newer has transposed, and
 * those of values. All in float16, so nothing is rounded. */
static void join_kv_b(struct parts *p, int l, uint16_t *out)
{
    char name[64];
    snprintf(name, sizeof(name), "blk.%d.attn_k_b.weight", l);
    const struct part *k = part_of(p, name);
    snprintf(name, sizeof(name), "blk.%d.attn_v_b.weight", l);
    const struct part *v = part_of(p, name);
    assert_true(k->type == KR_F16 && v->type == KR_F16);
    assert_int_equal(k->bytes, HEADS * NOPE * LATENT * 2);
    assert_int_equal(v->bytes, HEADS * VALUE * LATENT * 2);
    const uint16_t *kb = k->data, *vb = v->data;
    for (int h = 0; h < HEADS; h++) {
        uint16_t *rows = out + h * (NOPE + VALUE) * LATENT;
        for (int r = 0; r < NOPE; r++)
            for (int c = 0; c < LATENT; c++)
                rows[r * LATENT + c] = kb[(h * LATENT + c) * NOPE + r];
        memcpy(rows + NOPE * LATENT, vb + h * VALUE * LATENT, VALUE * LATENT * 2);
    }
}

/* What is measured of a file is what loading it takes, though no weight is made anew for that. */
static void same_measure(const char *path)
{
    struct eng_model_opts opts = {
        .device = parts_device(),
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 16, .max_logit_rows = 16}};
    struct eng_model *m, *loaded;
    struct cn_error err;
    if (eng_model_measure(path, &opts, &m, &err)) fail_msg("%s", err.message);
    if (eng_model_open(path, &opts, &loaded, &err)) fail_msg("%s", err.message);
    const struct kr_exec_info *a = eng_model_info(m)->exec, *b = eng_model_info(loaded)->exec;
    assert_int_equal(a->packed_bytes, b->packed_bytes);
    assert_int_equal(a->scratch_bytes, b->scratch_bytes);
    eng_model_unref(m);
    eng_model_unref(loaded);
}

static void test_mla_generations(void **state)
{
    static uint16_t joined[4][HEADS * (NOPE + VALUE) * LATENT];
    static const char *const names[] = {"deepseek2", "deepseek3"};
    const char *const without[] = {
        "deepseek2.attention.head_count_kv",    "deepseek2.attention.key_length",
        "deepseek2.attention.value_length",     "deepseek2.attention.key_length_mla",
        "deepseek2.attention.value_length_mla", NULL};
    if (!golden_oracle("models", "deepseek2", ".gguf")) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        struct parts p;
        take_apart(&p, names[i], without);
        gw_kv_u32(&p.w, "deepseek2.attention.head_count_kv", HEADS);
        gw_kv_u32(&p.w, "deepseek2.attention.key_length", NOPE + 8);
        gw_kv_u32(&p.w, "deepseek2.attention.value_length", VALUE);
        for (int l = 0; l < 4; l++) {
            struct part all = {.n_dims = 2,
                               .type = KR_F16,
                               .ne = {LATENT, HEADS * (NOPE + VALUE), 1, 1},
                               .data = joined[l],
                               .bytes = sizeof(joined[l])};
            char name[64];
            join_kv_b(&p, l, joined[l]);
            snprintf(all.name, sizeof(all.name), "blk.%d.attn_kv_b.weight", l);
            for (const char *x = "kv"; *x; x++) {
                snprintf(name, sizeof(name), "blk.%d.attn_%c_b.weight", l, *x);
                drop_part(&p, name);
            }
            p.v[p.n++] = all;
        }
        const char *older = put_together(&p, "older.gguf");
        same_measure(older);
        same_logits(older, golden_oracle("models", names[i], ".gguf"));
    }
}

/* ---- the ends of YaRN's ramp ----------------------------------------------------------------- */

/* Files that say them say 32 and 1 as a rule; others move the ramp. */
static void test_yarn_ramp(void **state)
{
    const char *const none[] = {NULL};
    const char *plain = golden_oracle("models", "llama-yarn", ".gguf");
    if (!plain) return;
    for (int other = 0; other < 2; other++) {
        struct parts p;
        take_apart(&p, "llama-yarn", none);
        gw_kv_f32(&p.w, "llama.rope.scaling.yarn_beta_fast", 32);
        gw_kv_f32(&p.w, "llama.rope.scaling.yarn_beta_slow", other ? 0.05f : 1);
        const char *path = put_together(&p, "yarn.gguf");
        (other ? other_logits : same_logits)(path, plain);
    }
    struct parts p;
    take_apart(&p, "llama-yarn", none);
    gw_kv_f32(&p.w, "llama.rope.scaling.yarn_beta_slow", -1);
    refused(put_together(&p, "x.gguf"), CN_EFORMAT, "rope.scaling.yarn_beta_slow", "");
}

/* ---- lists with one element per layer -------------------------------------------------------- */

/* Every such list of the model with one element less, and with one more. */
static void check_lengths(const char *name, const char *key, size_t n_layers)
{
    const char *const without[] = {key, NULL};
    for (int more = -1; more <= 1; more += 2) {
        struct parts p;
        take_apart(&p, name, without);
        const struct eng_gguf_kv *kv = eng_gguf_kvs_find(&p.g->shards[0].kvs, key);
        assert_non_null(kv);
        assert_int_equal(kv->type, ENG_GGUF_ARRAY);
        assert_int_equal(kv->n, n_layers);
        uint64_t size = kv->bytes / kv->n, n = (uint64_t)((int64_t)kv->n + more);
        gw_kv_array(&p.w, key, kv->elem, n);
        gw_bytes(&p.w, kv->value, CN_MIN(n, kv->n) * size);
        if (more > 0) gw_bytes(&p.w, kv->value, size);
        refused(put_together(&p, "x.gguf"), CN_EFORMAT, key,
                more < 0 ? "fewer elements than the model has layers"
                         : "more elements than the model has layers");
    }
}

static void test_pattern_lengths(void **state)
{
    if (!golden_oracle("models", "lfm2", ".gguf")) return;
    check_lengths("lfm2", "lfm2.attention.head_count_kv", 4);
    check_lengths("lfm2moe", "lfm2moe.attention.head_count_kv", 4);
    check_lengths("jamba", "jamba.attention.head_count_kv", 4);
    check_lengths("granitehybrid", "granitehybrid.attention.head_count_kv", 4);
    check_lengths("gemma4", "gemma4.attention.sliding_window_pattern", 6);
    check_lengths("qwen3next", "qwen3next.attention.recurrent_layers", 4);
    check_lengths("qwen35", "qwen35.attention.recurrent_layers", 4);
    check_lengths("qwen35moe", "qwen35moe.attention.recurrent_layers", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused),           cmocka_unit_test(test_split_model),
        cmocka_unit_test(test_other_vectors),   cmocka_unit_test(test_long_vocabulary),
        cmocka_unit_test(test_gemma_spellings), cmocka_unit_test(test_mla_generations),
        cmocka_unit_test(test_yarn_ramp),       cmocka_unit_test(test_pattern_lengths),
    };
    return cmocka_run_group_tests_name("models told differently", tests, parts_set_up,
                                       parts_tear_down);
}
