/* Opening models: what is refused and with which words; what a model says of itself. */
#include "parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

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
        *v = (struct part){"blk.1.ffn_down.weight",   2,     cases[i].type,
                           {cases[i].elems, 1, 1, 1}, block, cases[i].bytes};
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
    refused_u32("llama.block_count", 2048, CN_EFORMAT, "larger than the number of tensors");
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

/* ---- what a model says of itself ------------------------------------------------------------- */

static void test_info(void **state)
{
    struct eng_model *m, *other;
    struct cn_error err;
    const char *path = golden_oracle("models", "gemma3", ".gguf");
    if (!path) return;
    if (golden_try(parts_device(), path, &m, &err)) fail_msg("%s", err.message);
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
    if (golden_try(parts_device(), path, &other, &err)) fail_msg("%s", err.message);
    assert_string_equal(i->fingerprint, eng_model_info(other)->fingerprint);
    eng_model_unref(other);
    if (golden_try(parts_device(), golden_oracle("models", "qwen3", ".gguf"), &other, &err))
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
    struct eng_model_opts opts = {
        .device = parts_device(),
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 16, .max_logit_rows = 16}};
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
    describe_has(text, "mostly F16, by bytes");
    describe_has(text, "512 tokens");
    describe_has(text, "16 tokens in 6 of 7 layers");
    describe_has(text, "KV, 1 layer          128 B  a token (F16)"); /* 2 heads * 2 * 16 * 2 */
    describe_has(text, "KV, 6 layers         768 B");
    describe_has(text, "heads           4 of 16, 2 for keys and values\n");
    describe_has(text, "for steps of 16 rows");
    assert_int_equal(eng_model_measure(unknown_family(), &opts, &m, &err), CN_EUNSUPP);
    cn_buf_fini(&out);
}

/* Against sizes added up by hand: two heads of 16 and 16 values in f16, seven layers of which six
 * see 16 tokens. */
static void test_measure(void **state)
{
    struct eng_model_opts opts = {
        .device = parts_device(),
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 16, .max_logit_rows = 16}};
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
    assert_non_null(eng_model_template(m));
    uint64_t packed = x->packed_bytes, scratch = x->scratch_bytes, ticket;
    struct kr_batch batch = {0};
    assert_int_equal(kr_launch(eng_model_exec(m), NULL, &batch, &ticket, &err), CN_EINVAL);
    eng_model_unref(m);
    opts.template_text = "{% for %}"; /* invalid: the rest can be known all the same */
    opts.template_len = strlen(opts.template_text);
    if (eng_model_measure(path, &opts, &m, &err)) fail_msg("%s", err.message);
    assert_null(eng_model_template(m));
    eng_model_unref(m);
    if (golden_try(parts_device(), path, &m, &err)) fail_msg("%s", err.message);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_families), cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_refused_keys),     cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_refused_kinds),    cmocka_unit_test(test_info),
        cmocka_unit_test(test_describe),         cmocka_unit_test(test_measure),
        cmocka_unit_test(test_truncated_in_use),
    };
    return cmocka_run_group_tests_name("models", tests, parts_set_up, parts_tear_down);
}
