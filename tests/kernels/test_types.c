/* Tensor types: the table, and dequantisation against values from elsewhere: gguf-py's (the
 * generated fixture) and the hand-made blocks whose values are known from the formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/dequant_k.h"
#include "tests/kernels/dequant_long.h"
#include "tests/kernels/dequant_short.h"

static void check_bits(enum kr_type type, const uint8_t *bytes, size_t n_bytes,
                       const uint32_t *bits, size_t n)
{
    float got[512];
    uint8_t moved[512 + 1];
    assert_true(n <= CN_ARRAY_LEN(got) && n_bytes < sizeof(moved));
    kr_dequantize_row(type, bytes, got, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, &got[i], 4);
        if (b != bits[i])
            fail_msg("%s[%zu]: %08x, not %08x", kr_type_info(type)->name, i, b, bits[i]);
    }
    /* Tensor data may lie at any address. */
    memcpy(moved + 1, bytes, n_bytes);
    float again[512];
    kr_dequantize_row(type, moved + 1, again, n);
    assert_memory_equal(got, again, n * sizeof(float));
}

static void test_fixture(void **state)
{
    (void)state;
#define CHECK(type, name)                                                                          \
    check_bits(type, name##_bytes, sizeof(name##_bytes), name##_bits, CN_ARRAY_LEN(name##_bits))
    CHECK(KR_F32, f32);
    CHECK(KR_F16, f16);
    CHECK(KR_BF16, bf16);
    CHECK(KR_Q4_0, q4_0);
    CHECK(KR_Q4_1, q4_1);
    CHECK(KR_Q5_0, q5_0);
    CHECK(KR_Q5_1, q5_1);
    CHECK(KR_Q8_0, q8_0);
    CHECK(KR_Q4_K, q4_k);
    CHECK(KR_Q5_K, q5_k);
    CHECK(KR_Q6_K, q6_k);
    CHECK(KR_IQ4_NL, iq4_nl);
    CHECK(KR_IQ3_S, iq3_s);
    CHECK(KR_IQ4_XS, iq4_xs);
    CHECK(KR_MXFP4, mxfp4);
    CHECK(KR_Q2_K, q2_k);
    CHECK(KR_Q3_K, q3_k);
    CHECK(KR_TQ1_0, tq1_0);
    CHECK(KR_TQ2_0, tq2_0);
#undef CHECK
}

/* Blocks of bytes (37 k + 11) mod 256, with d = 0.5 and m or dmin = -0.25 put in place. */
static void test_golden_blocks(void **state)
{
    (void)state;
    static const struct {
        enum kr_type type;
        int d_at, m_at; /* -1: none */
        float first[6], last;
        double sum;
    } cases[] = {
        {KR_Q4_0, 0, -1, {-1.5f, 1, 3.5f, -2, 0.5f, 3}, 0, -10.5},
        {KR_Q4_1, 0, 2, {7.25f, 1.75f, 4.25f, 6.75f, 1.25f, 3.75f}, 5.75f, 114.5},
        {KR_Q5_0, 0, -1, {4.5f, -1, 1.5f, -4, 6.5f, -7}, 0.5f, 7.5},
        {KR_Q5_1, 0, 2, {9.25f, 11.75f, 14.25f, 8.75f, 11.25f, 5.75f}, 2.25f, 244.5},
        {KR_Q8_0, 0, -1, {42.5f, 61, -48.5f, -30, -11.5f, 7}, -24, -88},
        {KR_Q4_K, 0, 2, {183.25f, 12.75f, 90.25f, 167.75f, 245.25f, 74.75f}, 41.75f, 31444},
        {KR_Q5_K, 0, 2, {431.25f, 12.75f, 338.25f, 167.75f, 493.25f, 74.75f}, 71.75f, 62332},
        {KR_Q6_K, 208, -1, {-715.5f, 848, 291.5f, -265, -821.5f, 742}, -30, 2306},
        {KR_IQ4_NL, 0, -1, {-17.5f, 12.5f, 56.5f, -24.5f, 6.5f, 44.5f}, 0.5f, -128.5},
        {KR_IQ4_XS, 0, -1, {32.5f, -0.5f, -34.5f, 41.5f, 5, -26.5f}, -8, -5502.5},
        {KR_Q2_K, 80, 82, {16.5f, 0, 5.5f, 11, 16.5f, 0}, 3.75f, 1869.5},
        {KR_Q3_K, 108, -1, {40.5f, -54, 13.5f, -27, 40.5f, -54}, 21, 479},
        {KR_TQ1_0, 52, -1, {-0.5f, -0.5f, -0.5f, 0, 0, 0.5f}, -0.5f, -1},
        {KR_TQ2_0, 64, -1, {1, -0.5f, 0, 0.5f, 1, -0.5f}, -0.5f, 64.5},
        {KR_MXFP4, -1, -1, {0, 3, -1, -6, 2, -0.5f}, 3, 12.5},
    };
    for (size_t c = 0; c < CN_ARRAY_LEN(cases); c++) {
        const struct kr_type_info *info = kr_type_info(cases[c].type);
        uint8_t block[256];
        float got[256];
        double sum = 0;
        for (uint32_t k = 0; k < info->block_bytes; k++)
            block[k] = (uint8_t)(37 * k + 11);
        if (cases[c].d_at >= 0)
            memcpy(block + cases[c].d_at, (uint8_t[]){0x00, 0x38}, 2);
        else
            block[0] = 127; /* MXFP4's exponent */
        if (cases[c].m_at >= 0) memcpy(block + cases[c].m_at, (uint8_t[]){0x00, 0xb4}, 2);
        kr_dequantize_row(cases[c].type, block, got, info->block_elems);
        for (uint32_t i = 0; i < info->block_elems; i++)
            sum += got[i];
        assert_memory_equal(got, cases[c].first, sizeof(cases[c].first));
        assert_true(got[info->block_elems - 1] == cases[c].last);
        assert_true(sum == cases[c].sum);
    }
}

static void test_table(void **state)
{
    (void)state;
    static const struct {
        uint32_t id, elems, bytes;
        const char *name;
    } known[] = {
        {0, 1, 4, "F32"},       {1, 1, 2, "F16"},        {2, 32, 18, "Q4_0"},
        {3, 32, 20, "Q4_1"},    {6, 32, 22, "Q5_0"},     {7, 32, 24, "Q5_1"},
        {8, 32, 34, "Q8_0"},    {10, 256, 84, "Q2_K"},   {11, 256, 110, "Q3_K"},
        {12, 256, 144, "Q4_K"}, {13, 256, 176, "Q5_K"},  {14, 256, 210, "Q6_K"},
        {20, 32, 18, "IQ4_NL"}, {21, 256, 110, "IQ3_S"}, {23, 256, 136, "IQ4_XS"},
        {30, 1, 2, "BF16"},     {34, 256, 54, "TQ1_0"},  {35, 256, 66, "TQ2_0"},
        {39, 32, 17, "MXFP4"},
    };
    size_t found = 0;
    for (uint32_t id = 0; id < 300; id++) {
        const struct kr_type_info *info = kr_type_info(id);
        if (!info) continue;
        assert_true(found < CN_ARRAY_LEN(known));
        assert_int_equal(id, known[found].id);
        assert_int_equal(info->block_elems, known[found].elems);
        assert_int_equal(info->block_bytes, known[found].bytes);
        assert_string_equal(info->name, known[found].name);
        assert_non_null(strstr(kr_type_list(), info->name));
        found++;
    }
    assert_int_equal(found, CN_ARRAY_LEN(known));
    assert_null(kr_type_info(UINT32_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture),
        cmocka_unit_test(test_golden_blocks),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests_name("kernel types", tests, NULL, NULL);
}
