/* recurrent ops: the kernels of every ISA alone: guards around what they write at every number of
 * lanes, inputs at odd addresses, and numbers far out or not numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/tiny.h"

enum { GUARD = 32 };
static const enum kr_isa isas[] = {KR_ISAS};

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* n floats between guards, at an address that is 4 but not 8 byte aligned. */
struct area {
    float *mem, *data;
    size_t n;
};

static struct area new_area(size_t n, uint64_t *seed)
{
    struct area a = {.mem = calloc(n + 2 * GUARD + 1, sizeof(float)), .n = n};
    assert_non_null(a.mem);
    a.data = a.mem + GUARD + 1;
    for (size_t i = 0; i < n + 2 * GUARD + 1; i++)
        a.mem[i] = -12345.0f;
    for (size_t i = 0; i < n; i++)
        a.data[i] = tiny_uniform(seed);
    return a;
}

static void end_area(struct area *a)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_true(a->data[(ptrdiff_t)i - GUARD] == -12345.0f);
        assert_true(a->data[a->n + i] == -12345.0f);
    }
    for (size_t i = 0; i < a->n; i++)
        assert_true(isfinite(a->data[i]));
    free(a->mem);
}

static void guards_of(const struct kr_recurrent_ops *o, uint32_t lanes, uint32_t n)
{
    uint64_t seed = lanes * 100 + n;
    enum { R = 19 };
    struct area in = new_area(R * (lanes + n), &seed), w = new_area((lanes + 2) * (n + 2), &seed);
    struct area st = new_area(lanes * n, &seed), y = new_area(R * lanes, &seed);
    const float *rows[4] = {in.data, in.data + 1, in.data + 2, in.data + 3};
    o->conv(y.data, rows, w.data, lanes, NULL, 2 + n % 3, n & 1, lanes);
    struct kr_scan_part s = {.n_rows = R,
                             .n_state = n,
                             .lanes = CN_MIN(lanes, KR_SCAN_LANES),
                             .state = st.data,
                             .a = w.data,
                             .d = w.data,
                             .dt_bias = w.data,
                             .x = in.data,
                             .dt = in.data,
                             .b = in.data,
                             .c = in.data,
                             .y = y.data,
                             .x_stride = lanes,
                             .dt_stride = lanes,
                             .b_stride = n,
                             .c_stride = n,
                             .y_stride = lanes};
    o->scan(&s);
    s.each = true;
    o->scan(&s);
    struct kr_delta_part d = {.n_rows = R,
                              .n_state = n,
                              .lanes = lanes,
                              .state = st.data,
                              .decay = -1,
                              .q = in.data,
                              .k = in.data,
                              .v = in.data,
                              .a = in.data,
                              .b = in.data,
                              .y = y.data,
                              .q_stride = 0,
                              .k_stride = 0,
                              .v_stride = lanes,
                              .a_stride = 1,
                              .b_stride = 1,
                              .y_stride = lanes};
    for (uint32_t i = 0; i < n; i++)
        in.data[i] /= (float)n;
    o->delta(&d);
    end_area(&in);
    end_area(&w);
    end_area(&st);
    end_area(&y);
}

static void test_guards(void **state)
{
    DEV_CPU_ONLY("calls the CPU's loops");
    for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
        struct kr_cpu_ops o;
        if (!kr_ops_fill(isas[k], &o)) continue;
        for (uint32_t lanes = 1; lanes <= KR_DELTA_LANES; lanes++)
            for (uint32_t n = 1; n < 36; n += 1 + n / 8)
                guards_of(&o.recurrent, lanes, n);
    }
}

/* Not a number stays one and does not spread to other lanes; far ends of softplus. */
static void test_odd_numbers(void **state)
{
    DEV_CPU_ONLY("calls the CPU's loops");
    for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
        struct kr_cpu_ops o;
        if (!kr_ops_fill(isas[k], &o)) continue;
        enum { L = 13 };
        static const float dts[L] = {-200,  -90,   -50, -20, -1e-3f, 0, 1,
                                     19.9f, 20.1f, 50,  100, 1e4f,   0};
        float st[L] = {0}, x[L], dt[L], a[L], d[L] = {0}, y[L], one = 1;
        for (int i = 0; i < L; i++) {
            x[i] = 1;
            dt[i] = dts[i];
            a[i] = -1;
        }
        dt[12] = NAN;
        struct kr_scan_part s = {.n_rows = 1,
                                 .n_state = 1,
                                 .lanes = L,
                                 .each = true,
                                 .state = st,
                                 .a = a,
                                 .d = d,
                                 .x = x,
                                 .dt = dt,
                                 .b = &one,
                                 .c = &one,
                                 .y = y};
        for (int step = 0; step < 2; step++) {
            o.recurrent.scan(&s);
            for (int i = 0; i < 12; i++) {
                double sp = softplus(dts[i]), want = step ? sp * (1 + exp(-sp)) : sp;
                if (!(fabs(y[i] - want) <= 5e-7 * want + 1e-37))
                    fail_msg("%s: softplus at %g: %.9g, not %.9g", kr_isa_name(isas[k]),
                             (double)dts[i], (double)y[i], want);
            }
            assert_true(isnan(y[12]));
        }
    }
}

/* A state of more than a megabyte, which threads copy in pieces: the copy goes on as the first
 * does. */
static void test_large_state(void **state)
{
    enum { WIDTH = 100000, ROWS = 6 };
    struct tiny *t = calloc(1, sizeof *t);
    struct cn_error err;
    struct kr_device *d;
    struct kr_exec *x;
    struct kr_kv_mem *mem;
    t->plan = kr_plan_new();
    t->seed = 5;
    struct kr_tensor table = tiny_matrix(t, "table", KR_F32, 4, WIDTH, 1);
    struct kr_tensor w = tiny_matrix(t, "w", KR_F32, WIDTH, 4, 1);
    int at = kr_plan_state(t->plan, WIDTH * 3);
    int y = kr_op_conv(t->plan, kr_op_embed(t->plan, &table, 1), at, &w, NULL, KR_ACT_NONE);
    kr_plan_output(t->plan, kr_op_take_logits(t->plan, y));
    assert_int_equal(kr_plan_finish(t->plan, &err), 0);
    assert_int_equal(dev_new(KR_ISA_AUTO, 3, &d, &err), 0);
    struct kr_prepare_opts o = {.kv_type = KR_F16,
                                .block_tokens = 16,
                                .max_rows = ROWS,
                                .max_logit_rows = 1,
                                .max_context = 64};
    assert_int_equal(kr_prepare(d, t->plan, &o, &x, &err), 0);
    uint64_t bytes = kr_exec_info(x)->groups[0].block_bytes;
    assert_true(bytes >= WIDTH * 3 * sizeof(float));
    assert_int_equal(kr_kv_mem_new(d, bytes, 2, &mem, &err), 0);
    float *out[2];
    for (uint32_t which = 0; which < 2; which++) {
        uint32_t block = which << KR_BLOCK_INDEX_BITS;
        const uint32_t *tables[1] = {&block};
        struct kr_seq seq = {.tables = tables};
        for (uint32_t r = which ? ROWS - 1 : 0; r < ROWS; r++) {
            struct kr_row row = {.pos = r, .token = r % 4, .logits = r == ROWS - 1};
            struct kr_batch batch = {.n_rows = 1, .n_seqs = 1, .rows = &row, .seqs = &seq};
            uint64_t ticket;
            float *logits;
            /* what the copy goes on from is the state before the last row */
            if (!which && r == ROWS - 1)
                assert_int_equal(kr_kv_copy(x, mem, 0, 1u << KR_BLOCK_INDEX_BITS, 0, 0), 0);
            assert_int_equal(kr_launch(x, mem, &batch, &ticket, &err), 0);
            assert_int_equal(kr_collect(x, ticket, &logits, &err), 0);
            if (r < ROWS - 1) continue;
            out[which] = malloc(WIDTH * sizeof(float));
            memcpy(out[which], logits, WIDTH * sizeof(float));
        }
    }
    assert_memory_equal(out[0], out[1], WIDTH * sizeof(float));
    free(out[0]);
    free(out[1]);
    kr_kv_mem_free(mem);
    kr_exec_free(x);
    kr_device_free(d);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guards),
        cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_large_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
