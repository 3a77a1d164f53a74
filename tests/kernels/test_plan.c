/* plan: every shape that does not fit is refused with the tensor's name, the first error is the one
 * that stays, and what was recorded is what describe prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/kernels/tiny.h"

static float floats[4096];

static struct kr_tensor tensor(const char *name, enum kr_type type, uint64_t cols, uint64_t rows)
{
    const struct kr_type_info *ti = kr_type_info((uint32_t)type);
    return (struct kr_tensor){.name = name,
                              .type = type,
                              .n_dims = rows ? 2 : 1,
                              .ne = {cols, rows ? rows : 1, 1, 1},
                              .data = floats,
                              .bytes =
                                  cols / ti->block_elems * ti->block_bytes * (rows ? rows : 1)};
}

/* A plan with one value of 64 on its way; the caller spoils it. */
static struct kr_plan *begin(int *x)
{
    struct kr_plan *p = kr_plan_new();
    assert_non_null(p);
    struct kr_tensor table = tensor("table", KR_F32, 64, 8);
    *x = kr_op_embed(p, &table, 1);
    assert_true(*x >= 0);
    return p;
}

static void expect(struct kr_plan *p, int code, const char *param, const char *text)
{
    struct cn_error err = {0};
    assert_int_equal(kr_plan_finish(p, &err), code);
    assert_int_equal(err.code, code);
    if (param) assert_string_equal(err.param, param);
    if (!strstr(err.message, text)) fail_msg("'%s' does not say '%s'", err.message, text);
    kr_plan_free(p);
}

static void test_tensors(void **state)
{
    int x;
    struct kr_plan *p = begin(&x);
    struct kr_tensor w = tensor("w", KR_F32, 32, 4);
    assert_int_equal(kr_op_matmul(p, x, &w, NULL), -1);
    assert_int_equal(kr_op_add(p, x, x), -1); /* nothing after the first error */
    expect(p, CN_EFORMAT, "w", "32 columns");

    p = begin(&x);
    w = tensor("short", KR_Q8_0, 64, 4);
    w.bytes--;
    kr_op_matmul(p, x, &w, NULL);
    expect(p, CN_EFORMAT, "short", "fewer bytes");

    p = begin(&x);
    w = tensor("q", KR_Q8_0, 64, 4);
    w.ne[0] = 40;
    kr_op_matmul(p, x, &w, NULL);
    expect(p, CN_EFORMAT, "q", "multiple");

    p = begin(&x);
    w = tensor("odd", KR_F32, 64, 4);
    w.type = (enum kr_type)4;
    kr_op_matmul(p, x, &w, NULL);
    expect(p, CN_EUNSUPP, "odd", "Q4_K");

    p = begin(&x);
    w = tensor("huge", KR_F32, 64, 4);
    w.n_dims = 4;
    w.ne[1] = w.ne[2] = w.ne[3] = UINT64_C(1) << 40;
    kr_op_matmul(p, x, &w, NULL);
    expect(p, CN_EFORMAT, "huge", "shape");

    p = begin(&x);
    w = tensor("cube", KR_F32, 64, 2);
    w.n_dims = 3;
    w.ne[2] = 2;
    w.bytes *= 2;
    kr_op_matmul(p, x, &w, NULL);
    expect(p, CN_EFORMAT, "cube", "not a matrix");

    p = begin(&x);
    w = tensor("w", KR_F32, 64, 4);
    struct kr_tensor b = tensor("bias", KR_F32, 5, 0);
    kr_op_matmul(p, x, &w, &b);
    expect(p, CN_EFORMAT, "bias", "5 values where 4");

    p = begin(&x);
    b = tensor("norm16", KR_F16, 64, 0);
    kr_op_rms_norm(p, x, &b, 1e-5f, 1);
    expect(p, CN_EUNSUPP, "norm16", "must be F32");

    p = begin(&x);
    b = tensor("norm", KR_F32, 64, 0);
    b.data = NULL;
    kr_op_rms_norm(p, x, &b, 1e-5f, 1);
    expect(p, CN_EFORMAT, "norm", "fewer bytes");
}

static void test_values(void **state)
{
    int x;
    struct kr_plan *p = begin(&x);
    kr_op_add(p, x, 77);
    expect(p, CN_EINVAL, NULL, "77");

    p = begin(&x);
    kr_op_add(p, x, -1);
    expect(p, CN_EINVAL, NULL, "-1");

    p = begin(&x);
    kr_op_rms_norm(p, x, NULL, 1e-5f, 7);
    expect(p, CN_EFORMAT, NULL, "64 values in 7");

    p = begin(&x);
    struct kr_tensor w = tensor("w", KR_F32, 64, 32);
    kr_op_glu(p, x, kr_op_matmul(p, x, &w, NULL), KR_ACT_SILU);
    expect(p, CN_EFORMAT, NULL, "64 values for rows of 32");

    p = begin(&x);
    kr_op_add(p, x, kr_op_take_logits(p, x));
    expect(p, CN_EFORMAT, NULL, "take_logits");

    p = begin(&x);
    kr_op_scale(p, x, NAN);
    expect(p, CN_EINVAL, NULL, "finite");

    p = begin(&x);
    kr_op_softcap(p, x, 0);
    expect(p, CN_EINVAL, NULL, "above 0");

    p = begin(&x);
    expect(p, CN_EINVAL, NULL, "no output");

    p = begin(&x);
    kr_plan_output(p, x);
    expect(p, CN_EINVAL, NULL, "after take_logits");

    p = begin(&x);
    x = kr_op_take_logits(p, x);
    kr_plan_output(p, x);
    kr_plan_output(p, x);
    expect(p, CN_EINVAL, NULL, "two outputs");

    p = begin(&x);
    kr_op_take_logits(p, kr_op_take_logits(p, x));
    expect(p, CN_EINVAL, NULL, "already");
}

static void test_rope(void **state)
{
    static const float inv[32] = {1};
    static const float bad[32] = {INFINITY};
    static const struct kr_rope ropes[] = {
        {.head_dim = 48, .n_rot = 32, .inv_freq = inv, .amplitude = 1},
        {.head_dim = 0, .n_rot = 32, .inv_freq = inv, .amplitude = 1},
        {.head_dim = 32, .n_rot = 31, .inv_freq = inv, .amplitude = 1},
        {.head_dim = 32, .n_rot = 64, .inv_freq = inv, .amplitude = 1},
        {.head_dim = 32, .n_rot = 0, .inv_freq = inv, .amplitude = 1},
        {.head_dim = 32, .n_rot = 32, .inv_freq = NULL, .amplitude = 1},
        {.head_dim = 32, .n_rot = 32, .inv_freq = bad, .amplitude = 1},
        {.head_dim = 32, .n_rot = 32, .inv_freq = inv, .amplitude = NAN},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(ropes); i++) {
        int x;
        struct kr_plan *p = begin(&x);
        assert_int_equal(kr_op_rope(p, x, &ropes[i]), -1);
        struct cn_error err;
        assert_int_not_equal(kr_plan_finish(p, &err), 0);
        assert_non_null(strstr(err.message, "rope"));
        kr_plan_free(p);
    }
}

static void test_kv(void **state)
{
    int x;
    struct kr_plan *p = begin(&x);
    kr_plan_kv_layer(p, 0, 1, 64, 64);
    expect(p, CN_EINVAL, NULL, "group 0");

    p = begin(&x);
    kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 0, 64, 64);
    expect(p, CN_EINVAL, NULL, "0 heads");

    p = begin(&x);
    int l = kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 1, 32, 64);
    kr_op_kv_write(p, l, x, x);
    expect(p, CN_EFORMAT, NULL, "kv_write");

    p = begin(&x);
    kr_op_kv_write(p, 3, x, x);
    expect(p, CN_EINVAL, NULL, "layer 3");

    struct kr_attn a = {.n_heads = 2, .scale = 1};
    p = begin(&x);
    a.kv_layer = kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 1, 64, 64);
    kr_op_attention(p, x, &a);
    expect(p, CN_EINVAL, NULL, "not been written");

    p = begin(&x);
    a.kv_layer = kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 1, 64, 64);
    kr_op_kv_write(p, a.kv_layer, x, x);
    kr_op_attention(p, x, &a);
    expect(p, CN_EFORMAT, NULL, "2 heads of 64");

    p = begin(&x);
    a.kv_layer = kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 2, 32, 32);
    a.n_heads = 3;
    kr_op_kv_write(p, a.kv_layer, x, x);
    kr_op_attention(p, x, &a);
    expect(p, CN_EFORMAT, NULL, "3 query heads for 2");

    p = begin(&x);
    kr_op_kv_write(p, kr_plan_kv_layer(p, kr_plan_kv_group(p, KR_SPAN_ALL, 0), 1, 64, 64), x, x);
    kr_op_kv_write(p, 0, x, x);
    expect(p, CN_EINVAL, NULL, "twice");
}

static void test_prepare_options(void **state)
{
    struct tiny_shape shape = {.n_layers = 1,
                               .width = 32,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 32,
                               .ffn = 32,
                               .vocab = 4,
                               .weights = KR_F32,
                               .head = KR_F32};
    struct tiny *t = tiny_new(&shape, 1);
    struct kr_device *d;
    struct cn_error err;
    assert_int_equal(dev_new(KR_ISA_AUTO, 1, &d, &err), 0);
    const struct kr_prepare_opts good = {.kv_type = KR_F16,
                                         .block_tokens = 16,
                                         .max_rows = 8,
                                         .max_logit_rows = 8,
                                         .max_context = 64};
    for (int i = 0; i < 7; i++) {
        struct kr_prepare_opts o = good;
        struct kr_exec *x = NULL;
        if (i == 0) o.kv_type = KR_F32;
        if (i == 1) o.block_tokens = 24;
        if (i == 2) o.max_rows = 0;
        if (i == 3) o.max_logit_rows = 9;
        if (i == 4) o.max_context = 0;
        if (i == 5) o.max_context = UINT64_C(1) << 40;
        if (i == 6) o.max_rows = UINT32_MAX;
        assert_int_not_equal(kr_prepare(d, t->plan, &o, &x, &err), 0);
        assert_null(x);
        assert_true(err.message[0] != 0);
    }
    struct kr_plan *unfinished = kr_plan_new();
    struct kr_exec *x = NULL;
    assert_int_equal(kr_prepare(d, unfinished, &good, &x, &err), CN_EINVAL);
    kr_plan_free(unfinished);
    assert_int_equal(kr_prepare(d, t->plan, &good, &x, &err), 0);
    const struct kr_exec_info *info = kr_exec_info(x);
    assert_int_equal(info->n_vocab, 4);
    assert_int_equal(info->embd_dim, 32);
    assert_int_equal(info->n_groups, 1);
    assert_int_equal(info->groups[0].n_layers, 1);
    assert_int_equal(info->groups[0].block_bytes, 2 * 32 * 16 * 2);
    assert_true(info->packed_bytes >= 8 * 32 * 32 * 4 / 2 && info->scratch_bytes > 0);
    struct cn_buf out;
    cn_buf_init(&out, 0);
    assert_int_equal(kr_exec_describe(x, &out), 0);
    const char *text = cn_buf_cstr(&out);
    static const char *const lines[] = {"embed",       "rms_norm",  "matmul", "rope",
                                        "kv_write",    "attention", "glu",    "add",
                                        "take_logits", "F32[32,32]"};
    for (size_t i = 0; i < CN_ARRAY_LEN(lines); i++)
        assert_non_null(strstr(text, lines[i]));
    cn_buf_fini(&out);
    struct kr_kv_mem *m;
    assert_int_equal(kr_kv_mem_new(d, 0, 1, &m, &err), CN_EINVAL);
    assert_int_equal(kr_kv_mem_new(d, 100, 1, &m, &err), CN_EINVAL);
    assert_int_equal(kr_kv_mem_new(d, 64, 0, &m, &err), CN_EINVAL);
    assert_int_not_equal(kr_kv_mem_new(d, UINT64_MAX & ~63ull, 1000, &m, &err), 0);
    kr_exec_free(x);
    kr_device_free(d);
    tiny_free(t);
}

static void mark(void *arg, uint32_t i)
{
    ((uint8_t *)arg)[i]++;
}

static void test_parallel(void **state)
{
    struct kr_device *d;
    static uint8_t seen[3000];
    assert_int_equal(dev_new(KR_ISA_AUTO, 3, &d, NULL), 0);
    assert_int_equal(kr_device_threads(d), 3);
    kr_device_parallel(d, sizeof seen, mark, seen);
    kr_device_parallel(d, 0, mark, seen);
    for (size_t i = 0; i < sizeof seen; i++)
        assert_int_equal(seen[i], 1);
    kr_device_free(d);
}

/* Outputs beside the first have names of their own; a device that gives one says which it lacks. */
static void test_outputs(void **state)
{
    int x;
    struct kr_plan *p = begin(&x);
    kr_plan_output_more(p, "hidden", x);
    expect(p, CN_EINVAL, NULL, "hidden must come after take_logits");

    p = begin(&x);
    x = kr_op_take_logits(p, x);
    kr_plan_output(p, x);
    kr_plan_output_more(p, "hidden", x);
    kr_plan_output_more(p, "hidden", x);
    expect(p, CN_EINVAL, NULL, "two outputs hidden");

    p = begin(&x);
    x = kr_op_take_logits(p, x);
    kr_plan_output_more(p, "hidden", x);
    expect(p, CN_EINVAL, NULL, "no output");

    p = begin(&x);
    x = kr_op_take_logits(p, x);
    kr_plan_output(p, x);
    kr_plan_output_more(p, "hidden", x);
    struct kr_prepare_opts o = {.kv_type = KR_F16,
                                .block_tokens = 16,
                                .max_rows = 4,
                                .max_logit_rows = 4,
                                .max_context = 256};
    struct kr_device *d;
    struct kr_exec *exec;
    struct cn_error err;
    assert_int_equal(kr_plan_finish(p, &err), 0);
    assert_int_equal(kr_cpu_new(&(struct kr_cpu_opts){.n_threads = 1}, &d, NULL), 0);
    assert_int_equal(kr_prepare(d, p, &o, &exec, &err), CN_EUNSUPP);
    assert_non_null(strstr(err.message, "hidden"));
    kr_plan_free(p);
    p = begin(&x);
    kr_plan_output(p, kr_op_take_logits(p, x));
    assert_int_equal(kr_plan_finish(p, &err), 0);
    assert_int_equal(kr_prepare(d, p, &o, &exec, &err), 0);
    assert_int_equal(kr_exec_info(exec)->n_outputs, 1);
    kr_exec_free(exec);
    kr_plan_free(p);
    kr_device_free(d);
}

/* q grows with the position: by steps at multiples of the period, one early with an offset of 1. */
static void test_pos_scale(void **state)
{
    static const uint32_t at[] = {0, 1, 8190, 8191, 8192, 16382, 16383, 16384, 1000000};
    enum { N = 9, WIDTH = 64 };
    for (uint32_t i = 0; i < WIDTH * N; i++)
        floats[i] = (float)i - 100;
    for (int isa = KR_ISA_GENERIC; isa < KR_N_ISAS; isa++) {
        struct kr_device *d;
        if (dev_new((enum kr_isa)isa, 1, &d, NULL)) continue;
        for (uint32_t offset = 0; offset < 2; offset++) {
            int x;
            struct kr_plan *p = begin(&x);
            struct kr_exec *exec;
            struct cn_error err;
            kr_plan_output(p, kr_op_take_logits(p, kr_op_pos_scale(p, x, 0.1f, offset, 8192)));
            struct kr_prepare_opts o = {.kv_type = KR_F16,
                                        .block_tokens = 16,
                                        .max_rows = N,
                                        .max_logit_rows = N,
                                        .max_context = 1 << 20};
            assert_int_equal(kr_plan_finish(p, &err), 0);
            assert_int_equal(kr_prepare(d, p, &o, &exec, &err), 0);
            struct kr_row rows[N];
            struct kr_seq seqs[N] = {{0}};
            for (uint32_t i = 0; i < N; i++)
                rows[i] = (struct kr_row){.seq = i,
                                          .pos = at[i],
                                          .src = KR_ROW_EMBED,
                                          .logits = true,
                                          .embed = floats + i * WIDTH};
            struct kr_batch batch = {.n_rows = N, .n_seqs = N, .rows = rows, .seqs = seqs};
            uint64_t ticket;
            float *got;
            if (kr_launch(exec, NULL, &batch, &ticket, &err)) fail_msg("%s", err.message);
            assert_int_equal(kr_collect(exec, ticket, &got, &err), 0);
            for (uint32_t i = 0; i < N * WIDTH; i++) {
                uint64_t turns = ((uint64_t)at[i / WIDTH] + offset) / 8192;
                double want = (double)floats[i] * (1 + (double)0.1f * log(1.0 + (double)turns));
                assert_true(fabs((double)got[i] - want) <= 1e-6 * fabs(want));
            }
            kr_exec_free(exec);
            kr_plan_free(p);
        }
        kr_device_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_kv),
        cmocka_unit_test(test_prepare_options),
        cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_pos_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
