/* Formats: against verdicts after the ABNF of the RFCs (format_cases.json, by
 * make_format_cases.py), the C library's calendar and addresses, and PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/grammar/spell.h"

#include <arpa/inet.h>
#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static uint32_t seed = 1;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static uint32_t format(struct eng_rx *r, enum eng_spelling s, const char *name)
{
    struct cn_error err = {0};
    uint32_t x = 77;
    assert_int_equal(eng_rx_init(r, NULL, 64 << 20, 0), 0);
    if (eng_spell_format(r, s, name, strlen(name), &x, &err)) fail_msg("%s: %s", name, err.message);
    return x;
}

static void expect(struct eng_rx *r, uint32_t x, const char *name, const char *text, bool want)
{
    if (eng_rx_matches(r, x, text, strlen(text)) != want)
        fail_msg("%s: %s: want %d", name, text, want);
}

/* ---- the table ------------------------------------------------------------------------------- */

static unsigned check_list(struct eng_rx *r, uint32_t x, enum eng_spelling s, const char *name,
                           const json_t *list, bool want)
{
    struct cn_buf b;
    size_t i;
    json_t *text;
    cn_buf_init(&b, 0);
    json_array_foreach(list, i, text)
    {
        cn_buf_reset(&b);
        if (s == ENG_SPELL_RAW)
            cn_buf_append(&b, json_string_value(text), json_string_length(text));
        else
            cn_buf_json_text(&b, json_string_value(text), json_string_length(text));
        cn_buf_cstr(&b);
        if (eng_rx_matches(r, x, b.data, b.len) != want)
            fail_msg("%s (spelling %d): %s: want %d", name, s, b.data, want);
    }
    cn_buf_fini(&b);
    return (unsigned)json_array_size(list);
}

static void test_table(void **state)
{
    json_t *all = json_load_file(CONIFER_SOURCE_ROOT "/tests/text/format_cases.json",
                                 JSON_ALLOW_NUL, NULL),
           *c;
    const char *name;
    unsigned n = 0;
    assert_non_null(all);
    json_object_foreach(all, name, c) for (int s = 0; s < 3; s++)
    {
        struct eng_rx r;
        uint32_t x = format(&r, (enum eng_spelling)s, name);
        n += check_list(&r, x, (enum eng_spelling)s, name, json_object_get(c, "yes"), true);
        n += check_list(&r, x, (enum eng_spelling)s, name, json_object_get(c, "no"), false);
        /* a model writes no leap second, a checker accepts it */
        n += check_list(&r, x, (enum eng_spelling)s, name, json_object_get(c, "leap"),
                        s == ENG_SPELL_JSON_ANY);
        assert_int_equal(r.code, 0);
        eng_rx_fini(&r);
    }
    json_decref(all);
    assert_true(n > 3000);
}

/* ---- the calendar ---------------------------------------------------------------------------- */

static void test_dates(void **state)
{
    static const int years[] = {1,    4,    100,  400,  999,  1000, 1600, 1700, 1896, 1900,
                                1999, 2000, 2023, 2024, 2100, 2400, 4000, 9996, 9999};
    struct eng_rx r;
    uint32_t x = format(&r, ENG_SPELL_JSON, "date");
    unsigned days = 0;
    char text[32];
    for (size_t i = 0; i < CN_ARRAY_LEN(years); i++)
        for (int month = 0; month <= 13; month++)
            for (int day = 0; day <= 32; day++) {
                struct tm t = {.tm_year = years[i] - 1900, .tm_mon = month - 1, .tm_mday = day};
                (void)timegm(&t);
                bool want =
                    t.tm_year == years[i] - 1900 && t.tm_mon == month - 1 && t.tm_mday == day;
                snprintf(text, sizeof text, "%04d-%02d-%02d", years[i], month, day);
                expect(&r, x, "date", text, want);
                days += want;
            }
    assert_in_range(days, 19 * 365, 19 * 366);
    expect(&r, x, "date", "0000-01-01", false);
    eng_rx_fini(&r);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* A text like an address: mostly groups and separators. */
static void random_address(char out[64])
{
    static const char *const parts[] = {":",     ":",   ":",  "::",   ".",       ".", "0",    "1",
                                        "255",   "256", "25", "99",   "01",      "f", "abcd", "ABC",
                                        "12345", "1:",  "1:", "1:2:", "1.2.3.4", "g", ""};
    size_t n = 0;
    for (unsigned k = 1 + rnd(12); k && n < 40; k--) {
        const char *p = parts[rnd(CN_ARRAY_LEN(parts))];
        n += (size_t)snprintf(out + n, 64 - n, "%s", p);
    }
}

static void test_addresses(void **state)
{
    static const int families[] = {AF_INET, AF_INET6};
    static const char *const names[] = {"ipv4", "ipv6"};
    for (int f = 0; f < 2; f++) {
        struct eng_rx r;
        uint32_t x = format(&r, ENG_SPELL_JSON, names[f]);
        unsigned yes = 0;
        char text[64];
        uint8_t room[16];
        for (unsigned i = 0; i < 20000; i++) {
            if (i & 1) {
                random_address(text);
            } else { /* one that is right, or nearly */
                for (int k = 0; k < 16; k++)
                    room[k] = (uint8_t)(rnd(2) ? 0 : rnd(256));
                inet_ntop(families[f], room, text, sizeof text);
                if (rnd(2)) text[rnd((uint32_t)strlen(text))] = "0:.1f"[rnd(5)];
            }
            bool want = inet_pton(families[f], text, room) == 1;
            expect(&r, x, names[f], text, want);
            yes += want;
        }
        assert_true(yes > 3000);
        eng_rx_fini(&r);
    }
}

/* ---- regular expressions --------------------------------------------------------------------- */

static bool compiles(const char *text, size_t n)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | PCRE2_ALT_BSUX, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* A text of x by a random walk, then the shortest way to an end. */
static void walk(struct eng_rx *r, uint32_t x, unsigned steps, struct cn_buf *out)
{
    cn_buf_reset(out);
    while (steps--) {
        uint32_t next[256], n = 0;
        uint8_t byte[256];
        for (unsigned b = 0; b < 256; b++) {
            uint32_t y = eng_rx_derive(r, x, (uint8_t)b);
            if (y == ENG_RX_NONE || (b > 0x7E && rnd(8))) continue;
            byte[n] = (uint8_t)b;
            next[n++] = y;
        }
        if (!n) break;
        uint32_t i = rnd(n);
        cn_buf_putc(out, (char)byte[i]);
        x = next[i];
    }
    assert_int_equal(eng_rx_shortest(r, x, out), 0);
}

static void test_regex(void **state)
{
    static const char *const yes[] = {"",
                                      "abc",
                                      "([abc])+\\s+$",
                                      "^a|b$",
                                      "a{2,13}?",
                                      "[^a-z0-9\\]]*",
                                      "(?=a)b(?!c)",
                                      "\\u00e9\\x41",
                                      "((((((((a))))))))",
                                      "a||b",
                                      "\\bx\\B"};
    static const char *const no[] = {"^(abc]",
                                     "(",
                                     ")",
                                     "*a",
                                     "a**",
                                     "[z-a]",
                                     "a{3,2}",
                                     "\\",
                                     "\\a",
                                     "[a",
                                     "^\\S(|(.|\\n)*\\S)\\Z",
                                     "(?<!a)",
                                     "\\k",
                                     "a{1"};
    struct eng_rx r;
    struct cn_buf b;
    uint32_t x = format(&r, ENG_SPELL_RAW, "regex");
    for (size_t i = 0; i < CN_ARRAY_LEN(yes); i++)
        expect(&r, x, "regex", yes[i], true);
    for (size_t i = 0; i < CN_ARRAY_LEN(no); i++)
        expect(&r, x, "regex", no[i], false);
    cn_buf_init(&b, 0);
    for (seed = 1; seed < 400u << 8;) {
        uint32_t was = seed;
        walk(&r, x, 4 + rnd(30), &b);
        assert_non_null(cn_buf_cstr(&b));
        assert_true(eng_rx_matches(&r, x, b.data, b.len));
        if (!compiles(b.data, b.len)) fail_msg("PCRE2 refuses %s", b.data);
        seed = was + 256;
    }
    cn_buf_fini(&b);
    eng_rx_fini(&r);
}

/* ---- others ---------------------------------------------------------------------------------- */

static void test_international_mail(void **state)
{
    struct eng_rx r;
    uint32_t x = format(&r, ENG_SPELL_JSON, "idn-email");
    expect(&r, x, "idn-email",
           "\xEC\x8B\xA4\xEB\xA1\x80@\xEC\x8B\xA4\xEB\xA1\x80.\xED\x85\x8C\xEC\x8A\xA4\xED\x8A\xB8",
           true);
    expect(&r, x, "idn-email", "joe.bloggs@example.com", true);
    expect(&r, x, "idn-email", "j\xC3\xB6@b\xC3\xBC\x63her.de", true);
    expect(&r, x, "idn-email", "j\xC3\xB6.@b\xC3\xBC.de", false);
    expect(&r, x, "idn-email", "j\xC3\xB6@-b\xC3\xBC.de", false);
    expect(&r, x, "idn-email", "2962", false);
    expect(&r, x, "idn-email", "a@\xE2\x82\xAC.de", false); /* a sign is no letter */
    eng_rx_fini(&r);
}

static void test_refused(void **state)
{
    struct eng_rx r;
    struct cn_error err = {0};
    uint32_t x = 77;
    assert_int_equal(eng_rx_init(&r, NULL, 1 << 20, 0), 0);
    assert_int_equal(eng_spell_format(&r, ENG_SPELL_JSON, "dat", 3, &x, &err), CN_ENOENT);
    assert_int_equal(eng_spell_format(&r, ENG_SPELL_JSON, "date ", 5, &x, &err), CN_ENOENT);
    assert_int_equal(eng_spell_format(&r, ENG_SPELL_JSON, "", 0, &x, &err), CN_ENOENT);
    assert_int_equal(eng_spell_format(&r, ENG_SPELL_JSON, "idn-hostname", 12, &x, &err),
                     CN_EUNSUPP);
    assert_non_null(strstr(err.message, "idn-hostname"));
    assert_int_equal(x, 77);
    assert_int_equal(r.code, 0);
    eng_rx_fini(&r);
    assert_int_equal(eng_rx_init(&r, NULL, 6000, 0), 0);
    assert_int_equal(eng_spell_format(&r, ENG_SPELL_JSON, "iri", 3, &x, &err), CN_ELIMIT);
    assert_int_equal(x, 77);
    eng_rx_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_international_mail),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
