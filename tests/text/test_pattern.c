/* Patterns against a JavaScript engine's verdicts (pattern_cases.json, by make_pattern_cases.mjs)
 * and against PCRE2; what is refused, by name; costs. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/grammar/spell.h"

#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t seed = 1;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static void start(struct eng_rx *r)
{
    assert_int_equal(eng_rx_init(r, NULL, 64 << 20, 0), 0);
}

/* The text in a spelling: with ENG_SPELL_JSON_ANY some characters become \uXXXX. */
static void spell(enum eng_spelling s, const char *text, size_t n, struct cn_buf *out)
{
    cn_buf_reset(out);
    for (size_t len; n; text += len, n -= len) {
        uint32_t cp;
        len = cn_utf8_decode(text, n, &cp);
        if (s == ENG_SPELL_RAW)
            cn_buf_append(out, text, len);
        else if (s == ENG_SPELL_JSON || rnd(2))
            cn_buf_json_text(out, text, len);
        else if (cp < 0x10000)
            cn_buf_printf(out, "\\u%04X", cp);
        else
            cn_buf_printf(out, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
    }
    assert_non_null(cn_buf_cstr(out));
}

/* ---- a JavaScript engine's verdicts ---------------------------------------------------------- */

struct tally { unsigned patterns, texts, hits, refused; };

static void judge(const json_t *c, const char *pattern, enum eng_spelling s, bool whole,
                  struct tally *t)
{
    const char *verdicts = json_string_value(json_object_get(c, whole ? "whole" : "any"));
    struct cn_error err = {0};
    struct cn_buf b;
    struct eng_rx r;
    uint32_t x = 77;
    size_t i;
    json_t *text;
    start(&r);
    cn_buf_init(&b, 0);
    int rc = eng_spell_pattern(&r, s, pattern, strlen(pattern), whole, &x, &err);
    if (rc) fail_msg("%s: %d %s", pattern, rc, err.message);
    json_array_foreach(json_object_get(c, "t"), i, text)
    {
        bool want = verdicts[i] == '1';
        spell(s, json_string_value(text), json_string_length(text), &b);
        if (eng_rx_matches(&r, x, b.data, b.len) != want)
            fail_msg("%s (whole %d, spelling %d) on %s: want %d", pattern, whole, s, b.data, want);
        t->hits += want;
        t->texts++;
    }
    assert_int_equal(r.code, 0);
    cn_buf_fini(&b);
    eng_rx_fini(&r);
}

static void test_cases(void **state)
{
    json_t *all = json_load_file(CONIFER_SOURCE_ROOT "/tests/text/pattern_cases.json",
                                 JSON_ALLOW_NUL, NULL),
           *c;
    struct tally t = {0};
    size_t i;
    assert_non_null(all);
    json_array_foreach(all, i, c)
    {
        char pattern[400];
        const char *flags = json_string_value(json_object_get(c, "f"));
        snprintf(pattern, sizeof pattern, *flags ? "(?%s)%s" : "%s%s", flags,
                 json_string_value(json_object_get(c, "p")));
        for (int s = 0; s < 3; s++)
            for (int whole = 0; whole < 2; whole++)
                judge(c, pattern, (enum eng_spelling)s, whole, &t);
        t.patterns++;
    }
    json_decref(all);
    printf("%u patterns, %u verdicts, %u of them matches\n", t.patterns, t.texts, t.hits);
    assert_true(t.patterns > 600 && t.hits > t.texts / 10 && t.hits < t.texts / 10 * 9);
}

/* ---- PCRE2's verdicts -------------------------------------------------------------------------
 */

/* Appends a random pattern of what both mean the same by. `in_loop`: no look-ahead. */
static void random_pattern(struct cn_buf *b, unsigned depth, bool in_loop)
{
    static const char *const atoms[] = {
        "a", "b",   "ab",  "-",    " ",    "\\n",    "\xC3\xA9",
        "_", "\\w", "\\W", "[ab]", "[^a]", "[^\\w]", "\\d",
        "^", "$",   "\\b", "\\B",  "\\b",  "1",      "\xF0\x9F\x98\x80"};
    static const char *const counts[] = {"*",     "+",    "?",  "{2}", "{1,3}",
                                         "{0,2}", "{2,}", "*?", "{0}"};
    unsigned kind = rnd(14);
    if (!depth || kind < 4) {
        cn_buf_puts(b, atoms[rnd(CN_ARRAY_LEN(atoms))]);
    } else if (kind < 8) {
        for (unsigned n = 2 + rnd(2); n; n--)
            random_pattern(b, depth - 1, in_loop);
    } else if (kind < 10) {
        cn_buf_puts(b, "(?:");
        random_pattern(b, depth - 1, in_loop);
        cn_buf_puts(b, "|");
        random_pattern(b, depth - 1, in_loop);
        cn_buf_puts(b, ")");
    } else if (kind < 13 || in_loop) {
        cn_buf_puts(b, "(?:");
        random_pattern(b, depth - 1, true);
        cn_buf_printf(b, ")%s", counts[rnd(CN_ARRAY_LEN(counts))]);
    } else {
        cn_buf_puts(b, rnd(2) ? "(?=" : "(?!");
        random_pattern(b, depth - 1, false);
        cn_buf_puts(b, ")");
    }
}

/* 1: a match; 0: none; -1: PCRE2 gave up. */
static int pcre(const pcre2_code *code, pcre2_match_data *m, const char *s, size_t n)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)s, n, 0, 0, m, NULL);
    return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
}

static void against_pcre(const char *pattern, bool multiline, struct tally *t)
{
    static const char *const letters[] = {"a",  "b",        "a", "-", " ",
                                          "\n", "\xC3\xA9", "_", "1", "\xF0\x9F\x98\x80"};
    char ours[600], text[64];
    int code;
    PCRE2_SIZE at;
    struct cn_error err = {0};
    struct eng_rx r;
    uint32_t x;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_DOLLAR_ENDONLY |
                                      (multiline ? PCRE2_MULTILINE | PCRE2_ALT_CIRCUMFLEX : 0),
                                  &code, &at, NULL);
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    assert_non_null(c);
    assert_non_null(m);
    snprintf(ours, sizeof ours, "%s%s", multiline ? "(?m)" : "", pattern);
    start(&r);
    int rc = eng_spell_pattern(&r, ENG_SPELL_RAW, ours, strlen(ours), false, &x, &err);
    if (rc) fail_msg("%s: %s", ours, err.message);
    for (int i = 0; i < 30; i++) {
        size_t n = 0;
        for (unsigned k = rnd(9); k; k--)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s",
                                  letters[rnd(CN_ARRAY_LEN(letters))]);
        int want = pcre(c, m, text, n);
        if (want < 0) continue;
        if (eng_rx_matches(&r, x, text, n) != want) fail_msg("%s on %s: want %d", ours, text, want);
        t->texts++;
        t->hits += (unsigned)want;
    }
    assert_int_equal(r.code, 0);
    t->patterns++;
    eng_rx_fini(&r);
    pcre2_match_data_free(m);
    pcre2_code_free(c);
}

static void test_pcre(void **state)
{
    struct tally t = {0};
    struct cn_buf b;
    unsigned rounds = getenv("CONIFER_LONG") ? 40000 : 1000;
    cn_buf_init(&b, 0);
    for (unsigned i = 1; i <= rounds; i++) {
        seed = i * 7919;
        cn_buf_reset(&b);
        random_pattern(&b, 2 + rnd(3), false);
        if (b.len < 400) against_pcre(cn_buf_cstr(&b), !rnd(4), &t);
    }
    cn_buf_fini(&b);
    printf("%u patterns, %u verdicts, %u of them matches\n", t.patterns, t.texts, t.hits);
    assert_true(t.hits > t.texts / 10 && t.hits < t.texts / 10 * 9);
}

/* ---- what is refused --------------------------------------------------------------------------
 */

struct refused {
    const char *pattern;
    int code;
    const char *says; /* part of the message */
};
static const struct refused refused[] = {
    {"a(", CN_EINVAL, "a group that is not closed, at offset 1"},
    {"a)", CN_EINVAL, "a closing parenthesis without an opening one, at offset 1"},
    {"ab[c", CN_EINVAL, "a class that is not closed, at offset 2"},
    {"[b-a]", CN_EINVAL, "a range that ends before it begins, at offset 1"},
    {"*a", CN_EINVAL, "a quantifier with nothing to repeat, at offset 0"},
    {"a**", CN_EINVAL, "nothing to repeat"},
    {"a{2}{3}", CN_EINVAL, "nothing to repeat"},
    {"^*", CN_EINVAL, "nothing to repeat"},
    {"(?=a)*", CN_EINVAL, "nothing to repeat"},
    {"\\b+", CN_EINVAL, "nothing to repeat"},
    {"|{2}", CN_EINVAL, "nothing to repeat"},
    {"a{3,2}", CN_EINVAL, "bounds are in the wrong order, at offset 1"},
    {"a{1000001}", CN_ELIMIT, "a repetition of more than 1000000"},
    {"a{0,99999999999999999999}", CN_ELIMIT, "a repetition of more than 1000000"},
    {"a\\", CN_EINVAL, "a backslash at the end, at offset 1"},
    {"\\a", CN_EINVAL, "unknown escape \\a"},
    {"\\Z", CN_EINVAL, "unknown escape \\Z"},
    {"\\q", CN_EINVAL, "unknown escape \\q"},
    {"[\\q]", CN_EINVAL, "unknown escape \\q in a class"},
    {"[\\1]", CN_EINVAL, "unknown escape \\1 in a class"},
    {"\\01", CN_EINVAL, "unknown escape \\0"},
    {"\\xg0", CN_EINVAL, "\\x needs hexadecimal digits"},
    {"\\u12", CN_EINVAL, "\\u needs hexadecimal digits"},
    {"\\u{110000}", CN_EINVAL, "\\u needs a code point in its braces"},
    {"\\u{}", CN_EINVAL, "\\u needs a code point in its braces"},
    {"\\p", CN_EINVAL, "\\p needs a property in braces"},
    {"\\p{", CN_EINVAL, "\\p needs a property in braces"},
    {"a\\p{Nothing}", CN_EINVAL, "unknown property Nothing, at offset 1"},
    {"\\p{gc=Nothing}", CN_EINVAL, "unknown property"},
    {"\\p{Scrip=Latin}", CN_EINVAL, "unknown property"},
    {"\\p{L}\\p{}", CN_EINVAL, "unknown property"},
    {"\\P{sc=La}tin}", CN_EINVAL, "unknown property"},
    {"\\p{L}\\p{sc=a(b}", CN_EINVAL, "unknown property"},
    {"\xFF", CN_EINVAL, "not valid UTF-8, at offset 0"},
    {"[a\xC3]", CN_EINVAL, "not valid UTF-8"},
    {"\\\xC3", CN_EINVAL, "not valid UTF-8"},
    {"(a)\\1", CN_EUNSUPP, "back references are not supported, at offset 3"},
    {"(?<n>a)\\k<n>", CN_EUNSUPP, "back references"},
    {"(?P<n>a)(?P=n)", CN_EUNSUPP, "back references"},
    {"(?<=a)b", CN_EUNSUPP, "look-behind is not supported, at offset 0"},
    {"(?<!a)b", CN_EUNSUPP, "look-behind"},
    {"(?:a(?!b))*", CN_EUNSUPP, "look-ahead in a repetition without bound"},
    {"(?:a(?=b)){2,}", CN_EUNSUPP, "look-ahead in a repetition without bound"},
    {"(?>a)", CN_EUNSUPP, "atomic groups"},
    {"(?(1)a)", CN_EUNSUPP, "conditional groups"},
    {"a++", CN_EUNSUPP, "possessive quantifiers"},
    {"(?x)a", CN_EUNSUPP, "the flag x"},
    {"\\bk(?i)\\b", CN_EUNSUPP, "\\b both with and without the flag i"},
    {"(?", CN_EINVAL, "not closed"},
    {"(?q)", CN_EINVAL, "an unknown kind of group"},
    {"(?#a)", CN_EINVAL, "an unknown kind of group"},
    {"(?<1>a)", CN_EINVAL, "a group's name that is not valid"},
    {"(?<>a)", CN_EINVAL, "a group's name that is not valid"},
    {"(?)", CN_EINVAL, "an unknown kind of group"},
};

static void test_refused(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(refused); i++) {
        struct cn_error err = {0};
        struct eng_rx r;
        uint32_t x = 77;
        start(&r);
        int rc = eng_spell_pattern(&r, ENG_SPELL_JSON, refused[i].pattern,
                                   strlen(refused[i].pattern), false, &x, &err);
        if (rc != refused[i].code || !strstr(err.message, refused[i].says))
            fail_msg("%s: %d %s", refused[i].pattern, rc, err.message);
        assert_int_equal(err.code, rc);
        assert_int_equal(x, 77);
        assert_int_equal(r.code, 0);
        eng_rx_fini(&r);
    }
}

/* Syntax beyond ECMA-262: of Rust's regex crate and of Python. */
static void test_beyond(void **state)
{
    static const struct {
        const char *pattern, *yes, *no;
    } more[] = {
        {"^(?P<n>a)$", "a", "b"},
        {"\\Aab\\z", "ab", "xab"},
        {"^\\x{e9}$", "\xC3\xA9", "e"},
        {"^\\U000000e9$", "\xC3\xA9", "e"},
        {"^\\pL$", "a", "1"},
        {"^\\PL$", "1", "a"},
        {"^\\p{Greek}$", "\xCE\xB1", "a"},
        {"^\\p{han}$", "\xE4\xB8\xAD", "a"},
        {"^\\p{General_Category=lu}$", "A", "a"},
        {"^a(?i)b$", "aB", "AB"},
        {"^a(?i:b)c$", "aBc", "aBC"},
        {"^(?i)a(?-i:b)c$", "AbC", "ABC"},
        {"^(?s:.)$", "\n", "ab"},
        {"(?m:^a$)\n", "b\na\nc", "ba\nc"},
        {"^(?u)\\w$", "a", "\xC3\xA9"},
        {"^(a(?i)b|c)d$", "Cd", "CD"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(more); i++) {
        struct cn_error err = {0};
        struct eng_rx r;
        uint32_t x;
        start(&r);
        if (eng_spell_pattern(&r, ENG_SPELL_RAW, more[i].pattern, strlen(more[i].pattern), false,
                              &x, &err))
            fail_msg("%s: %s", more[i].pattern, err.message);
        if (!eng_rx_matches(&r, x, more[i].yes, strlen(more[i].yes)) ||
            eng_rx_matches(&r, x, more[i].no, strlen(more[i].no)))
            fail_msg("%s", more[i].pattern);
        eng_rx_fini(&r);
    }
}

/* ---- costs ------------------------------------------------------------------------------------
 */

/* A pattern of as many parts as fit into n bytes. */
static int build(const char *before, const char *part, const char *after, size_t n,
                 struct eng_rx *r, struct cn_error *err)
{
    struct cn_buf b;
    uint32_t x = 77;
    cn_buf_init(&b, 0);
    cn_buf_puts(&b, before);
    while (b.len + strlen(part) + strlen(after) <= n)
        cn_buf_puts(&b, part);
    cn_buf_puts(&b, after);
    int rc = eng_spell_pattern(r, ENG_SPELL_JSON, b.data, b.len, false, &x, err);
    if (rc) assert_int_equal(x, 77);
    cn_buf_fini(&b);
    return rc;
}

/* As long as they may be, of parts that are hard for others: no more memory than the arena may
 * have, and either an expression or a typed error. */
static void test_long(void **state)
{
    static const char *const parts[] = {"a",         "[^a]",       "\\p{L}",      "[\\p{L}b]",
                                        "(?i:k)",    "(?=a)",      "|a",          "|[ab]c",
                                        "\\b",       "a?",         "a*b*",        "(a+)+",
                                        "(a|b)*\\b", "\\p{L}{9}x", "(?:\\ba){9}", "a{0,99999}"};
    for (size_t i = 0; i < CN_ARRAY_LEN(parts); i++) {
        struct cn_error err = {0};
        struct eng_rx r;
        assert_int_equal(eng_rx_init(&r, NULL, 8 << 20, 500000), 0);
        int rc = build("", parts[i], "b", 64 << 10, &r, &err);
        if (rc != 0 && rc != CN_ELIMIT) fail_msg("%s: %d %s", parts[i], rc, err.message);
        assert_true(eng_rx_bytes(&r) <= 2 * (8 << 20));
        eng_rx_fini(&r);
    }
}

static void test_limits(void **state)
{
    static const struct {
        const char *before, *part, *after;
        size_t n;
        int code;
    } rows[] = {
        {"", "a", "", 64 << 10, 0},
        {"", "a", "", (64 << 10) + 1, CN_ELIMIT},
        {"", "(", "", 200, CN_EINVAL},
        {"", "(", "", 201, CN_ELIMIT},
        {"(\\ba|b){1000000}", "a", "", 30, CN_ELIMIT},
        {"((a{1000000}){1000000}){1000000}", "a", "", 50, 0},
        {"(a{0,1000000}){0,1000000}", "a", "", 50, 0},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct cn_error err = {0};
        struct eng_rx r;
        start(&r);
        int rc = build(rows[i].before, rows[i].part, rows[i].after, rows[i].n, &r, &err);
        if (rc != rows[i].code) fail_msg("row %zu: %d %s", i, rc, err.message);
        eng_rx_fini(&r);
    }
}

/* Properties are found by a search that counts as work. */
static void test_properties_cost(void **state)
{
    struct cn_error err = {0};
    struct eng_rx r;
    uint32_t x;
    assert_int_equal(eng_rx_init(&r, NULL, 8 << 20, 120000), 0);
    assert_int_equal(
        eng_spell_pattern(&r, ENG_SPELL_JSON, "\\p{Lu}\\p{Ll}\\p{Lu}", 18, true, &x, &err), 0);
    assert_int_equal(eng_spell_pattern(&r, ENG_SPELL_JSON, "\\p{Nd}", 6, true, &x, &err),
                     CN_ELIMIT);
    eng_rx_fini(&r);
}

/* A repetition at the edge of a pattern without anchors is no longer than it must be, so that few
 * expressions can follow. */
static void test_trimmed(void **state)
{
    static const struct {
        const char *a, *b;
    } same[] = {
        {"a{3,9}", "a{3}"},  {"a*", ""},
        {"a+b+", "ab"},      {"^a+", "^a"},
        {"a{2,}$", "a{2}$"}, {"(?:ab*)+", "a"},
        {"x?a|b+", "a|b"},   {"(?:a{0,1000}){0,1000}", ""},
        {"\\ba*", "\\b"},    {"(a{2}){3}", "a{6}"},
    };
    struct eng_rx r;
    start(&r);
    for (size_t i = 0; i < CN_ARRAY_LEN(same); i++) {
        uint32_t x = 77, y = 78;
        assert_int_equal(
            eng_spell_pattern(&r, ENG_SPELL_JSON, same[i].a, strlen(same[i].a), false, &x, NULL),
            0);
        assert_int_equal(
            eng_spell_pattern(&r, ENG_SPELL_JSON, same[i].b, strlen(same[i].b), false, &y, NULL),
            0);
        if (x != y) fail_msg("%s is not %s", same[i].a, same[i].b);
    }
    eng_rx_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_pcre),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_beyond),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_properties_cost),
        cmocka_unit_test(test_trimmed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
