/* Tensors that a family's formula needs, though the format lets others go without: a file that
 * lacks one is refused by its name. The tensor is renamed in a copy of an oracle model. */
#include "golden.h"
#include "sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct kr_device *device;

/* Where the tensor's name stands in the header. */
static size_t find_name(const uint8_t *data, size_t n, const char *name)
{
    uint64_t len = strlen(name);
    for (size_t i = 8; i + len < n; i++)
        if (!memcmp(data + i, name, len) && !memcmp(data + i - 8, &len, 8)) return i;
    fail_msg("no tensor %s", name);
    return 0;
}

/* A copy of an oracle model in which one name is another; the caller unlinks and frees the path. */
static char *renamed(const char *model, const char *name)
{
    char *path = strdup("/tmp/conifer-needs-XXXXXX");
    size_t n;
    uint8_t *data = sweep_read_file(golden_oracle("models", model, ".gguf"), &n);
    data[find_name(data, n, name)] ^= 0x20;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
    free(data);
    return path;
}

static int open_without(const char *model, const char *tensor, struct cn_error *err)
{
    char *path = renamed(model, tensor);
    struct eng_model *m = NULL;
    int rc = golden_try(device, path, &m, err);
    if (!rc) eng_model_unref(m);
    unlink(path);
    free(path);
    return rc;
}

static void test_needs(void **state)
{
    static const struct {
        const char *model, *tensor;
    } needs[] = {
        {"jamba", "blk.0.ssm_dt_norm.weight"},   {"jamba", "blk.0.ssm_b_norm.weight"},
        {"jamba", "blk.0.ssm_c_norm.weight"},    {"jamba", "blk.0.ssm_dt.bias"},
        {"jamba", "blk.0.ssm_conv1d.bias"},      {"mamba", "blk.1.ssm_dt.bias"},
        {"mamba", "blk.1.ssm_conv1d.bias"},      {"mamba2", "blk.0.ssm_norm.weight"},
        {"mamba2", "blk.0.ssm_conv1d.bias"},     {"granitehybrid", "blk.0.ssm_norm.weight"},
        {"gpt-oss", "blk.1.attn_sinks.weight"},  {"gpt-oss", "blk.1.attn_q.bias"},
        {"gpt-oss", "blk.1.attn_k.bias"},        {"gpt-oss", "blk.1.attn_v.bias"},
        {"gpt-oss", "blk.1.attn_output.bias"},   {"gpt-oss", "blk.1.ffn_gate_inp.bias"},
        {"gpt-oss", "blk.1.ffn_gate_exps.bias"}, {"gpt-oss", "blk.1.ffn_up_exps.bias"},
        {"gpt-oss", "blk.1.ffn_down_exps.bias"}, {"starcoder2", "blk.0.attn_norm.bias"},
        {"starcoder2", "blk.0.ffn_norm.bias"},   {"starcoder2", "output_norm.bias"},
        {"qwen2", "blk.0.attn_k.bias"},
    };
    struct cn_error err;
    if (!golden_oracle("models", "jamba", ".gguf")) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(needs); i++) {
        assert_int_equal(open_without(needs[i].model, needs[i].tensor, &err), CN_EFORMAT);
        if (strcmp(err.param, needs[i].tensor))
            fail_msg("%s without %s: %s", needs[i].model, needs[i].tensor, err.message);
    }
}

/* The choice of experts has a bias in the first layer that has any. */
static void test_bias_of_choice(void **state)
{
    struct cn_error err;
    if (!golden_oracle("models", "lfm2moe", ".gguf")) return;
    assert_int_equal(open_without("lfm2moe", "blk.2.exp_probs_b.bias", &err), CN_EFORMAT);
    assert_string_equal(err.param, "blk.2.exp_probs_b.bias");
}

static float *logits_of(const char *path, const uint32_t *ids, size_t n, size_t *size)
{
    struct golden g;
    assert_int_equal(golden_open(&g, path, KR_ISA_AUTO, 1, 64, KR_F16), 0);
    *size = g.n_vocab * sizeof(float);
    float *out = malloc(*size);
    golden_feed(&g, ids, n, n, (uint32_t)n - 1, out);
    golden_close(&g);
    return out;
}

/* Files of GLM 4.7 Flash do not say that their experts' weights are sigmoids: the bias does. */
static void test_unsaid_gating(void **state)
{
    static const uint32_t ids[] = {5, 17, 40, 99, 7, 200};
    const char *plain = golden_oracle("models", "deepseek3", ".gguf");
    size_t n, m;
    if (!plain) return;
    float *want = logits_of(plain, ids, CN_ARRAY_LEN(ids), &n);
    char *path = renamed("deepseek3", "deepseek2.expert_gating_func");
    float *got = logits_of(path, ids, CN_ARRAY_LEN(ids), &m);
    assert_int_equal(n, m);
    assert_memory_equal(got, want, n);
    unlink(path);
    free(path);
    free(got);
    free(want);
}

static int set_up(void **state)
{
    struct cn_error err;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return dev_new(KR_ISA_AUTO, 1, &device, &err);
}

static int tear_down(void **state)
{
    kr_device_free(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_needs),
                                       cmocka_unit_test(test_bias_of_choice),
                                       cmocka_unit_test(test_unsaid_gating)};
    return cmocka_run_group_tests_name("needed tensors", tests, set_up, tear_down);
}
