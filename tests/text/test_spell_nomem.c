/* Allocation failures: expressions of texts, patterns, formats and numbers with the k-th allocation
 * failing, for many k: CN_ENOMEM, nothing leaked (the sanitizer build sees that), and the right
 * expression as soon as none fails. PCRE2's own allocations are in a shared library and not
 * reached. */
#include "engine/text/grammar/spell.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static long countdown = -1; /* allocations until one fails; -1 = never */

static bool alloc_fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

#include "tests/wrap_alloc.h"

enum what { TEXTS, PATTERN, FORMAT, NUMBER };
struct row {
    enum what what;
    const char *given; /* pattern, format or multiple */
    const char *yes;   /* belongs to the expression */
};
static const struct row rows[] = {
    {TEXTS, "", "ab\\n"},
    {PATTERN, "^(?:\\ba(?:[b-d\\d]|\\p{Lu}x)?\\b ?)+$|(?=x)x{2,3}|foo|bar|\xC3\xA9", "ab aQx"},
    {PATTERN, "(?i)[^k-m]\\w\\p{sc=Greek}(?m:^a$)*(?:(?:b|c)\\b|-)*", "xy\xCE\xB1"},
    {FORMAT, "email", "a@b.c"},
    {FORMAT, "regex", "(a|b)*"},
    {FORMAT, "date-time", "2024-02-29T00:00:00Z"},
    {NUMBER, "0.07", "12.11"},
};

static int build(struct eng_rx *r, const struct row *row, enum eng_spelling s, uint32_t *x)
{
    static const struct eng_str texts[] = {{"ab\n", 3}, {"abc", 3}, {"\xC3\xA9", 2}, {"", 0}};
    char room[2][400];
    struct eng_decimal d[2];
    struct eng_number n = {.min = &d[0], .multiple_of = &d[1]};
    size_t len = strlen(row->given);
    struct cn_error err = {0};
    int rc = 0;
    switch (row->what) {
    case TEXTS:
        *x = eng_spell_texts(r, s, texts, CN_ARRAY_LEN(texts));
        return r->code;
    case PATTERN:
        rc = eng_spell_pattern(r, s, row->given, len, false, x, &err);
        break;
    case FORMAT:
        rc = eng_spell_format(r, s, row->given, len, x, &err);
        break;
    case NUMBER:
        assert_int_equal(eng_decimal_parse("-10.5", 5, room[0], &d[0]), 0);
        assert_int_equal(eng_decimal_parse(row->given, len, room[1], &d[1]), 0);
        rc = eng_spell_number(r, s, &n, x, &err);
        break;
    }
    assert_int_equal(err.code, rc);
    return rc;
}

static unsigned sweep(const struct row *row, enum eng_spelling s)
{
    const char *yes = row->what == TEXTS && s == ENG_SPELL_RAW ? "ab\n" : row->yes;
    for (long k = 0;; k += 1 + k / 10) {
        struct eng_rx r;
        uint32_t x = 77;
        countdown = k;
        int rc = eng_rx_init(&r, NULL, 64 << 20, 0);
        if (!rc) rc = build(&r, row, s, &x);
        bool failed = countdown < 0;
        countdown = -1;
        if (!rc) assert_true(eng_rx_matches(&r, x, yes, strlen(yes)));
        if (rc && row->what != TEXTS) assert_int_equal(x, 77);
        eng_rx_fini(&r);
        if (!failed) {
            assert_int_equal(rc, 0);
            return (unsigned)k;
        }
        /* without memory for a cache it is slower; all else is an error */
        if (rc) assert_int_equal(rc, CN_ENOMEM);
    }
}

static void test_allocations(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++)
        for (int s = 0; s < 3; s++)
            assert_true(sweep(&rows[i], (enum eng_spelling)s) > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
