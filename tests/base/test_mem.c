/* base/mem.c and base/error.c: allocation helpers, arena, buffer, JSON strings, errors; every
 * allocation of each is made to fail in turn (malloc, calloc and realloc are wrapped). */
#include "base/base.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static long fail_after = -1; /* allocations until one fails; -1 = never */

static bool alloc_fails(void)
{
    return fail_after >= 0 && fail_after-- == 0;
}

#include "tests/wrap_alloc.h"

static void helpers_check_products(void **state)
{
    volatile size_t half = SIZE_MAX / 2 + 1; /* so that the compiler does not see the overflow */
    void *p;

    assert_null(cn_calloc(half, 2));
    assert_null(cn_malloc_array(half, 2));
    assert_null(cn_realloc_array(NULL, half, 2));
    p = cn_calloc(0, 8);
    assert_non_null(p);
    free(p);
    p = cn_malloc_array(8, 0);
    assert_non_null(p);
    p = cn_realloc_array(p, 0, 4);
    assert_non_null(p);
    free(p);
}

static void grow_doubles_and_keeps(void **state)
{
    uint32_t *v = NULL;
    size_t cap = 0, moves = 0;

    for (uint32_t i = 0; i < 10000; i++) {
        size_t before = cap;
        assert_int_equal(cn_grow(&v, &cap, i + 1, sizeof *v), 0);
        moves += cap != before;
        v[i] = i;
    }
    assert_in_range(moves, 1, 16);
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(v[i], i);
    uint32_t *old = v;
    size_t old_cap = cap;
    assert_int_equal(cn_grow(&v, &cap, SIZE_MAX / 2, sizeof *v), CN_ENOMEM);
    fail_after = 0;
    assert_int_equal(cn_grow(&v, &cap, cap + 1, sizeof *v), CN_ENOMEM);
    fail_after = -1;
    assert_ptr_equal(v, old);
    assert_int_equal(cap, old_cap);
    free(v);
}

static void arena_gives_aligned_zeroed_separate_pieces(void **state)
{
    struct cn_arena a;
    uint8_t *p[2000];
    size_t size[2000];
    unsigned seed = 1;

    cn_arena_init(&a, 0);
    for (int i = 0; i < 2000; i++) {
        size[i] = (size_t)(rand_r(&seed) % (i % 50 ? 200 : 300000));
        p[i] = cn_arena_alloc(&a, size[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal(p[i][k], 0);
        memset(p[i], i & 0xff, size[i]);
    }
    for (int i = 0; i < 2000; i++)
        for (size_t k = 0; k < size[i]; k += 7)
            assert_int_equal(p[i][k], i & 0xff);
    char *s = cn_arena_strn(&a, "hello world", 5);
    assert_string_equal(s, "hello");
    assert_memory_equal(cn_arena_copy(&a, "ab\0c", 4), "ab\0c", 4);
    cn_arena_fini(&a);
    cn_arena_fini(&a); /* twice does no harm */
    cn_arena_fini(NULL);
}

static void arena_cap_is_hard(void **state)
{
    struct cn_arena a;
    size_t total = 0;

    cn_arena_init(&a, 10000);
    assert_null(cn_arena_alloc(&a, 10001));
    assert_null(cn_arena_alloc(&a, SIZE_MAX));
    assert_null(cn_arena_alloc(&a, SIZE_MAX - 40));
    assert_null(cn_arena_strn(&a, "", SIZE_MAX));
    while (cn_arena_alloc(&a, 48))
        total += 48;
    assert_in_range(total, 10000 - 48, 10000);
    assert_in_range(a.used, total, 10000);
    assert_non_null(cn_arena_alloc(&a, 1)); /* the last 16 bytes are there */
    assert_null(cn_arena_alloc(&a, 1));
    cn_arena_fini(&a);
    cn_arena_init(&a, 0);
    fail_after = 0;
    assert_null(cn_arena_alloc(&a, 8));
    fail_after = -1;
    assert_non_null(cn_arena_alloc(&a, 8));
    cn_arena_fini(&a);
}

static void buffer_cap_and_sticky_failure(void **state)
{
    struct cn_buf b;

    cn_buf_init(&b, 10);
    assert_int_equal(cn_buf_puts(&b, "12345"), 0);
    assert_int_equal(cn_buf_append(&b, "678901", 6), CN_ELIMIT);
    assert_true(b.failed);
    assert_int_equal(b.len, 5);
    assert_int_not_equal(cn_buf_putc(&b, 'x'), 0); /* fits, but the series has failed */
    assert_int_equal(b.len, 5);
    assert_null(cn_buf_cstr(&b));
    cn_buf_reset(&b);
    assert_int_equal(cn_buf_printf(&b, "%s-%d", "abcd", 12345), 0);
    assert_int_equal(b.len, 10); /* exactly the cap, and the NUL is not under it */
    assert_string_equal(cn_buf_cstr(&b), "abcd-12345");
    assert_int_equal(cn_buf_putc(&b, '!'), CN_ELIMIT);
    assert_int_equal(cn_buf_reserve(&b, SIZE_MAX), CN_ELIMIT);
    cn_buf_fini(&b);
    cn_buf_fini(&b);

    cn_buf_init(&b, 0);
    assert_string_equal(cn_buf_cstr(&b), "");
    char long_text[5000];
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    for (int i = 0; i < 20; i++)
        assert_int_equal(cn_buf_printf(&b, "[%s]", long_text), 0);
    assert_int_equal(b.len, 20 * 5001);
    assert_int_equal(cn_buf_append(&b, NULL, 0), 0);
    cn_buf_fini(&b);
}

static void buffer_survives_failing_allocations(void **state)
{
    char long_text[700];
    memset(long_text, 'z', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    for (long n = 0;; n++) {
        struct cn_buf b;
        bool hit;

        cn_buf_init(&b, 0);
        fail_after = n;
        cn_buf_puts(&b, "start");
        cn_buf_printf(&b, "%s", long_text);
        cn_buf_json_str(&b, long_text, strlen(long_text));
        hit = fail_after < 0; /* the n-th allocation was reached and refused */
        fail_after = -1;
        assert_true(hit == b.failed);
        cn_buf_fini(&b);
        if (!hit) {
            assert_in_range(n, 3, 100);
            break;
        }
    }
}

static void json_strings(void **state)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {"a\xff", 2, "\"a\xef\xbf\xbd\""},
        /* one replacement per cut sequence, as Unicode recommends: E2 82 is one, then 41 */
        {"\xe2\x82\x41", 3, "\"\xef\xbf\xbd\x41\""},
        {"\xf0\x9f\x98", 3, "\"\xef\xbf\xbd\""},
        /* a surrogate is three bytes of which none begins anything */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cn_buf b;
        cn_buf_init(&b, 0);
        assert_int_equal(cn_buf_json_str(&b, cases[i].in, cases[i].n), 0);
        assert_string_equal(cn_buf_cstr(&b), cases[i].out);
        cn_buf_fini(&b);
        /* with a cap one below, nothing of it stays */
        cn_buf_init(&b, strlen(cases[i].out) + 1);
        cn_buf_puts(&b, "xy");
        assert_int_equal(cn_buf_json_str(&b, cases[i].in, cases[i].n), CN_ELIMIT);
        assert_int_equal(b.len, 2);
        cn_buf_fini(&b);
    }
}

static void errors_are_clean_lines(void **state)
{
    struct cn_error e = {0};
    char big[2000];

    assert_int_equal(cn_fail(&e, CN_EWINDOW, "a\nb\x1b[31m %d", 7), CN_EWINDOW);
    assert_int_equal(e.code, CN_EWINDOW);
    assert_string_equal(e.message, "a?b?[31m 7");
    assert_string_equal(e.param, "");
    assert_int_equal(cn_fail_param(&e, CN_ETYPE, "messages[0]\n", "wrong"), CN_ETYPE);
    assert_string_equal(e.param, "messages[0]?");
    cn_fail(&e, CN_EIO,
            "\xc2\x9b\x33\x31m \xc2\x85 \xc2\xa0 \x80 \x7f"); /* C1 as well; not U+00A0 */
    assert_string_equal(e.message, "??31m ?? \xc2\xa0 ? ?");
    cn_fail_param(&e, CN_ETYPE, "messages[0]", "wrong");
    cn_error_wrap(&e, "file %s", "x.gguf");
    assert_string_equal(e.message, "file x.gguf: wrong");
    assert_int_equal(e.code, CN_ETYPE);
    /* an argument may be the error's own text */
    cn_fail(&e, CN_EIO, "outer (%s)", e.message);
    assert_string_equal(e.message, "outer (file x.gguf: wrong)");
    /* too long: cut, and not inside a character */
    for (size_t i = 0; i + 2 < sizeof big; i += 3)
        memcpy(big + i, "\xe2\x82\xac", 3);
    big[sizeof big - 2] = '\0';
    cn_fail_param(&e, CN_EIO, big, "%s", big);
    assert_int_equal(strlen(e.message), 510);
    assert_int_equal(cn_utf8_valid_len(e.message, 510), 510);
    assert_int_equal(strlen(e.param), 126);
    cn_error_wrap(&e, "%s", big);
    assert_int_equal(cn_utf8_valid_len(e.message, strlen(e.message)), strlen(e.message));
    assert_int_equal(cn_fail(NULL, CN_EIO, "x"), CN_EIO);
    cn_error_wrap(NULL, "x");
}

static void the_error_table(void **state)
{
    assert_int_equal(cn_err_info(CN_EAUTH)->status, 401);
    assert_string_equal(cn_err_info(CN_EAUTH)->name, "EAUTH");
    assert_string_equal(cn_err_info(CN_EWINDOW)->slug, "context_length_exceeded");
    assert_int_equal(cn_err_info(-9999)->code, CN_EINTERNAL);
    assert_int_equal(cn_err_info(0)->code, CN_EINTERNAL);
    for (int code = -1; code > -100; code--) {
        const struct cn_err_info *i = cn_err_info(code);
        if (i->code != code) continue;
        assert_in_range(i->status, 400, 504);
        assert_true(*i->type && *i->slug && *i->text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_check_products),
        cmocka_unit_test(grow_doubles_and_keeps),
        cmocka_unit_test(arena_gives_aligned_zeroed_separate_pieces),
        cmocka_unit_test(arena_cap_is_hard),
        cmocka_unit_test(buffer_cap_and_sticky_failure),
        cmocka_unit_test(buffer_survives_failing_allocations),
        cmocka_unit_test(json_strings),
        cmocka_unit_test(errors_are_clean_lines),
        cmocka_unit_test(the_error_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
