/* GGUF reader, from memory: values, tensors, and one refusal per kind of damage. */
#include "gguf_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const uint64_t dims_32[1] = {32};

static int open_mem(const struct gw *w, struct eng_gguf **g, struct cn_error *err)
{
    memset(err, 0, sizeof(*err));
    return eng_gguf_open_memory(w->b.data, w->b.len, "test.gguf", g, err);
}

/* Must be refused with the code, and the message must hold both texts. */
static void refused(struct gw *w, int code, const char *has, const char *also)
{
    struct eng_gguf *g = NULL;
    struct cn_error err;
    int rc = open_mem(w, &g, &err);
    if (rc != code || !strstr(err.message, has) || !strstr(err.message, also))
        fail_msg("code %d, message \"%s\"; expected %d, \"%s\", \"%s\"", rc, err.message, code, has,
                 also);
    assert_int_equal(err.code, code);
    assert_null(g);
    cn_buf_fini(&w->b);
}

static struct eng_gguf *opened(struct gw *w)
{
    struct eng_gguf *g = NULL;
    struct cn_error err;
    if (open_mem(w, &g, &err)) fail_msg("refused: %s", err.message);
    return g;
}

/* ---- what is right --------------------------------------------------------------------------- */

static void put_scalars(struct gw *w)
{
    gw_key(w, "a.u8", ENG_GGUF_U8);
    gw_bytes(w, "\xff", 1);
    gw_key(w, "a.i8", ENG_GGUF_I8);
    gw_bytes(w, "\x80", 1);
    gw_key(w, "a.u16", ENG_GGUF_U16);
    gw_bytes(w, "\xff\xff", 2);
    gw_key(w, "a.i16", ENG_GGUF_I16);
    gw_bytes(w, "\xff\x7f", 2);
    gw_kv_u32(w, "a.u32", 0xffffffffu);
    gw_key(w, "a.i32", ENG_GGUF_I32);
    gw_u32(w, 7);
    gw_kv_f32(w, "a.f32", 1.5f);
    gw_key(w, "a.bool", ENG_GGUF_BOOL);
    gw_bytes(w, "\1", 1);
    gw_kv_str(w, "a.str", "h\xc3\xa9");
    gw_key(w, "a.u64", ENG_GGUF_U64);
    gw_u64(w, UINT64_MAX);
    gw_key(w, "a.i64", ENG_GGUF_I64);
    gw_u64(w, (uint64_t)INT64_MIN);
    double d = -2.25;
    gw_key(w, "a.f64", ENG_GGUF_F64);
    gw_bytes(w, &d, 8);
    gw_kv_array(w, "a.ints", ENG_GGUF_I16, 3);
    gw_bytes(w, "\1\0\2\0\xff\xff", 6);
    gw_kv_array(w, "a.strs", ENG_GGUF_STRING, 3);
    gw_str(w, "x", 1);
    gw_str(w, "", 0);
    gw_str(w, "yz", 2);
    gw_kv_array(w, "a.none", ENG_GGUF_U32, 0);
}

static void check_u64(const struct eng_gguf *g, const char *key, int rc, uint64_t value)
{
    uint64_t v = 0;
    struct cn_error err;
    assert_int_equal(eng_gguf_u64(g, key, &v, &err), rc);
    if (!rc) assert_true(v == value);
    if (rc) assert_string_equal(err.param, key);
}

static void test_values(void **state)
{
    struct gw w;
    gw_begin(&w);
    put_scalars(&w);
    gw_end(&w, 32, 0);
    struct eng_gguf *g = opened(&w);

    check_u64(g, "a.u8", 0, 255);
    check_u64(g, "a.u16", 0, 65535);
    check_u64(g, "a.i16", 0, 32767);
    check_u64(g, "a.u32", 0, 0xffffffffu);
    check_u64(g, "a.i32", 0, 7);
    check_u64(g, "a.u64", 0, UINT64_MAX);
    check_u64(g, "a.i8", CN_EFORMAT, 0); /* negative */
    check_u64(g, "a.i64", CN_EFORMAT, 0);
    check_u64(g, "a.f32", CN_EFORMAT, 0);
    check_u64(g, "a.bool", CN_EFORMAT, 0);
    check_u64(g, "a.str", CN_EFORMAT, 0);
    check_u64(g, "a.ints", CN_EFORMAT, 0);
    check_u64(g, "a.other", CN_ENOENT, 0);

    float f;
    bool b;
    struct eng_str s;
    assert_int_equal(eng_gguf_f32(g, "a.f32", &f, NULL), 0);
    assert_true(f == 1.5f);
    assert_int_equal(eng_gguf_f32(g, "a.f64", &f, NULL), 0);
    assert_true(f == -2.25f);
    assert_int_equal(eng_gguf_f32(g, "a.u8", &f, NULL), CN_EFORMAT);
    assert_int_equal(eng_gguf_f32(g, "a.x", &f, NULL), CN_ENOENT);
    assert_int_equal(eng_gguf_bool(g, "a.bool", &b, NULL), 0);
    assert_true(b);
    assert_int_equal(eng_gguf_bool(g, "a.u8", &b, NULL), CN_EFORMAT);
    assert_int_equal(eng_gguf_str(g, "a.str", &s, NULL), 0);
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "h\xc3\xa9", 3);
    assert_int_equal(eng_gguf_str(g, "a.u8", &s, NULL), CN_EFORMAT);
    eng_gguf_close(g);
    cn_buf_fini(&w.b);
}

static void test_arrays(void **state)
{
    struct gw w;
    gw_begin(&w);
    put_scalars(&w);
    gw_end(&w, 32, 0);
    struct eng_gguf *g = opened(&w);
    enum eng_gguf_type type;
    uint64_t n, v;
    struct eng_str *strs;
    int32_t *ints;
    size_t count;

    assert_int_equal(eng_gguf_array(g, "a.ints", &type, &n, NULL), 0);
    assert_int_equal(type, ENG_GGUF_I16);
    assert_int_equal(n, 3);
    assert_int_equal(eng_gguf_array_u64(g, "a.ints", 1, &v, NULL), 0);
    assert_int_equal(v, 2);
    assert_int_equal(eng_gguf_array_u64(g, "a.ints", 2, &v, NULL), CN_EFORMAT); /* -1 */
    assert_int_equal(eng_gguf_array_u64(g, "a.ints", 3, &v, NULL), CN_EFORMAT); /* past the end */
    assert_int_equal(eng_gguf_array_u64(g, "a.strs", 0, &v, NULL), CN_EFORMAT);
    assert_int_equal(eng_gguf_array_u64(g, "a.u8", 0, &v, NULL), CN_EFORMAT);
    assert_int_equal(eng_gguf_array(g, "a.u8", &type, &n, NULL), CN_EFORMAT);
    assert_int_equal(eng_gguf_array(g, "a.q", &type, &n, NULL), CN_ENOENT);

    assert_int_equal(eng_gguf_strings(g, "a.strs", &strs, &count, NULL), 0);
    assert_int_equal(count, 3);
    assert_true(strs[0].n == 1 && strs[0].p[0] == 'x');
    assert_int_equal(strs[1].n, 0);
    assert_true(strs[2].n == 2 && !memcmp(strs[2].p, "yz", 2));
    free(strs);
    assert_int_equal(eng_gguf_int32s(g, "a.ints", &ints, &count, NULL), 0);
    assert_int_equal(ints[2], -1);
    free(ints);
    assert_int_equal(eng_gguf_int32s(g, "a.none", &ints, &count, NULL), 0);
    assert_int_equal(count, 0);
    free(ints);
    eng_gguf_close(g);
    cn_buf_fini(&w.b);
}

/* Order and gaps are free; an unknown extra type does not make the file unreadable. */
static void test_tensors(void **state)
{
    const uint64_t matrix[2] = {64, 3};
    struct gw w;
    gw_begin(&w);
    gw_tensor(&w, "second", 2, matrix, 2, 128); /* Q4_0: 2 blocks of 18 bytes a row */
    gw_tensor(&w, "first", 1, dims_32, 0, 0);
    gw_tensor(&w, "strange", 1, dims_32, 777, 256);
    gw_tensor(&w, "scalar", 0, NULL, 0, 256);
    gw_end(&w, 32, 260);
    struct eng_gguf *g = opened(&w);

    assert_int_equal(eng_gguf_n_tensors(g), 4);
    const struct kr_tensor *t = eng_gguf_find(g, "second");
    assert_non_null(t);
    assert_int_equal(t->type, KR_Q4_0);
    assert_int_equal(t->bytes, 3 * 2 * 18);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[1], 3);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(*(const uint8_t *)t->data, 128);
    t = eng_gguf_find(g, "first");
    assert_int_equal(t->bytes, 128);
    assert_int_equal(((const uint8_t *)t->data)[127], 127);
    assert_int_equal(eng_gguf_find(g, "scalar")->bytes, 4);
    assert_int_equal((int)eng_gguf_find(g, "strange")->type, 777);
    assert_null(eng_gguf_find(g, "third"));
    assert_null(eng_gguf_find(g, ""));
    assert_null(eng_gguf_tensor(g, 4));
    eng_gguf_close(g);
    cn_buf_fini(&w.b);
}

/* Enough names that the index grows several times and slots collide. */
static void test_many_names(void **state)
{
    struct gw w;
    char name[32];
    gw_begin(&w);
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "key.%u", i);
        gw_kv_u32(&w, name, i);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "t.%u", i);
        gw_tensor(&w, name, 1, dims_32, 8 == i % 9 ? 8 : 0, 0);
    }
    gw_end(&w, 32, 128);
    struct eng_gguf *g = opened(&w);
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "key.%u", i);
        check_u64(g, name, 0, i);
        snprintf(name, sizeof(name), "t.%u", i);
        assert_ptr_equal(eng_gguf_find(g, name), eng_gguf_tensor(g, i));
    }
    eng_gguf_close(g);
    cn_buf_fini(&w.b);
}

/* ---- header ---------------------------------------------------------------------------------- */

static void patch(struct gw *w, size_t at, const void *p, size_t n)
{
    memcpy(w->b.data + at, p, n);
}

static void test_not_gguf(void **state)
{
    struct gw w;
    gw_begin(&w);
    gw_end(&w, 32, 0);
    patch(&w, 0, "GGML", 4);
    refused(&w, CN_EFORMAT, "not a GGUF file", "test.gguf");
}

static void test_versions(void **state)
{
    static const uint32_t bad[] = {0, 1, 4, 0x80000000u, 0xffffffffu};
    struct gw w;
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++) {
        gw_begin(&w);
        gw_end(&w, 32, 0);
        patch(&w, 4, &bad[i], 4);
        char number[24];
        snprintf(number, sizeof(number), "%u", bad[i]);
        if (bad[i] == 0x80000000u)
            refused(&w, CN_EUNSUPP, "big-endian", "offset 4");
        else
            refused(&w, CN_EUNSUPP, number, "supported are 2 and 3");
    }
    const uint32_t big = 0x03000000;
    gw_begin(&w);
    gw_end(&w, 32, 0);
    patch(&w, 4, &big, 4);
    refused(&w, CN_EUNSUPP, "big-endian", "offset 4");
    const uint32_t two = 2;
    gw_begin(&w);
    gw_end(&w, 32, 0);
    patch(&w, 4, &two, 4);
    eng_gguf_close(opened(&w));
    cn_buf_fini(&w.b);
}

static void test_lying_counts(void **state)
{
    static const uint64_t lies[] = {1, 65536, 65537, 1000001, 1ull << 31, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < CN_ARRAY_LEN(lies); i++) {
        for (size_t at = 8; at <= 16; at += 8) {
            struct gw w;
            gw_begin(&w);
            gw_end(&w, 8, 0); /* no padding: nothing follows the header */
            patch(&w, at, &lies[i], 8);
            bool over = lies[i] > (at == 8 ? 1000000 : 65536);
            refused(&w, CN_EFORMAT, over ? "the limit is" : "cut off", at == 8 ? "tensor" : "key");
        }
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void test_bad_keys(void **state)
{
    struct gw w;
    gw_begin(&w);
    gw_kv_u32(&w, "", 1);
    gw_end(&w, 32, 0);
    refused(&w, CN_EFORMAT, "offset 24", "is empty");

    gw_begin(&w);
    gw_kv_u32(&w, "twice.x", 1);
    gw_kv_u32(&w, "twice.x", 1);
    gw_end(&w, 32, 0);
    refused(&w, CN_EFORMAT, "\"twice.x\" is there twice", "offset 47");

    gw_begin(&w);
    gw_key(&w, "odd.type", 13);
    gw_u64(&w, 0);
    gw_end(&w, 32, 0);
    refused(&w, CN_EFORMAT, "odd.type", "unknown value type 13");

    gw_begin(&w);
    gw_u64(&w, UINT64_MAX - 3); /* the key's length: pos + length wraps */
    w.n_kvs = 1;
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "offset 24", "18446744073709551612");

    gw_begin(&w);
    gw_kv_u32(&w, "ev\x1b[31m\"il", 1);
    gw_kv_u32(&w, "ev\x1b[31m\"il", 1);
    gw_end(&w, 32, 0);
    refused(&w, CN_EFORMAT, "\"ev\\x1b[31m\\x22il\"", "twice");
}

static void test_bad_arrays(void **state)
{
    struct gw w;
    gw_begin(&w);
    gw_kv_array(&w, "nested", ENG_GGUF_ARRAY, 1);
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "nested", "array of arrays");

    gw_begin(&w);
    gw_kv_array(&w, "long", ENG_GGUF_U64, (1ull << 61) + 1); /* n * 8 wraps to 8 */
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "long", "2305843009213693953 elements");

    gw_begin(&w);
    gw_kv_array(&w, "bytes", ENG_GGUF_U8, UINT64_MAX);
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "bytes", "cut off");

    gw_begin(&w);
    gw_kv_array(&w, "strings", ENG_GGUF_STRING, 1ull << 40);
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "strings", "");

    gw_begin(&w);
    gw_kv_array(&w, "types", 99, 1);
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "types", "unknown value type 99");
}

static void test_alignment(void **state)
{
    static const uint32_t bad[] = {0, 1, 2, 4, 7, 24, 33, 0xffffffffu};
    struct gw w;
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++) {
        gw_begin(&w);
        gw_kv_u32(&w, "general.alignment", bad[i]);
        gw_end(&w, 32, 0);
        refused(&w, CN_EFORMAT, "general.alignment", "power of two");
    }
    gw_begin(&w);
    gw_kv_u32(&w, "general.alignment", 64);
    gw_tensor(&w, "t", 1, dims_32, 0, 64);
    gw_end(&w, 64, 192);
    struct eng_gguf *g = opened(&w);
    assert_int_equal(*(const uint8_t *)eng_gguf_find(g, "t")->data, 64);
    eng_gguf_close(g);
    cn_buf_fini(&w.b);
    gw_begin(&w);
    gw_kv_u32(&w, "general.alignment", 0x80000000u); /* the section starts past the end */
    gw_tensor(&w, "t", 1, dims_32, 0, 0);
    gw_end(&w, 32, 192);
    refused(&w, CN_EFORMAT, "\"t\"", "cut off");
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void one_tensor(const uint64_t *ne, uint32_t n_dims, uint32_t type, uint64_t offset,
                       size_t data, const char *has)
{
    struct gw w;
    gw_begin(&w);
    gw_tensor(&w, "blk.0.x", n_dims, ne, type, offset);
    gw_end(&w, 32, data);
    refused(&w, CN_EFORMAT, "blk.0.x", has);
}

static void test_bad_tensors(void **state)
{
    const uint64_t zero[3] = {32, 0, 1};
    const uint64_t wraps[4] = {1ull << 32, 1ull << 32, 1, 1};    /* product 2^64 = 0 */
    const uint64_t exabytes[4] = {1ull << 30, 1ull << 30, 4, 1}; /* elements fit, bytes do not */
    const uint64_t negative[1] = {UINT64_MAX};
    const uint64_t odd[1] = {33};
    const uint64_t two_max[2] = {INT64_MAX, 2};

    one_tensor(zero, 3, 0, 0, 256, "dimension 1 is 0");
    one_tensor(wraps, 4, 0, 0, 256, "too large");
    one_tensor(exabytes, 4, 0, 0, 256, "too large");
    one_tensor(negative, 1, 0, 0, 256, "too large");
    one_tensor(two_max, 2, 0, 0, 256, "too large");
    one_tensor(odd, 1, 2, 0, 256, "multiple of 32");
    one_tensor(dims_32, 1, 0, 16, 256, "not a multiple of the alignment");
    one_tensor(dims_32, 1, 0, 160, 256, "cut off");
    one_tensor(dims_32, 1, 0, 0, 127, "cut off");
    one_tensor(dims_32, 1, 0, UINT64_MAX - 31, 256, "cut off"); /* offset + size wraps */
    one_tensor(dims_32, 1, 0, 0, 0, "cut off");

    struct gw w;
    const uint64_t five[5] = {1, 1, 1, 1, 1};
    gw_begin(&w);
    gw_tensor(&w, "five", 5, five, 0, 0);
    gw_end(&w, 32, 64);
    refused(&w, CN_EFORMAT, "\"five\" has 5 dimensions", "offset 36");
    gw_begin(&w);
    gw_tensor(&w, "same", 1, dims_32, 0, 0);
    gw_tensor(&w, "same", 1, dims_32, 0, 0);
    gw_end(&w, 32, 256);
    refused(&w, CN_EFORMAT, "\"same\" is there twice", "offset");
    gw_begin(&w);
    gw_tensor(&w, "", 1, dims_32, 0, 0);
    gw_end(&w, 32, 256);
    refused(&w, CN_EFORMAT, "tensor 0 has the name \"\"", "offset 24");
}

static void test_names(void **state)
{
    struct gw w;
    gw_begin(&w);
    gw_str(&w, "nul\0inside", 10);
    gw_u32(&w, 1);
    gw_u64(&w, 32);
    gw_u32(&w, 0);
    gw_u64(&w, 0);
    w.n_tensors = 1;
    gw_end(&w, 32, 128);
    refused(&w, CN_EFORMAT, "nul\\x00inside", "tensor 0");

    char name[300];
    memset(name, 'n', sizeof(name));
    name[256] = '\0';
    gw_begin(&w);
    gw_tensor(&w, name, 1, dims_32, 0, 0);
    gw_end(&w, 32, 128);
    refused(&w, CN_EFORMAT, "length of 256 bytes", "the limit is 255");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_not_gguf),     cmocka_unit_test(test_versions),
        cmocka_unit_test(test_lying_counts), cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_arrays),   cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_bad_tensors),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
