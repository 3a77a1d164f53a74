/* Characters and texts as expressions: every character in every spelling, against a table of what
 * JSON has; texts against their spellings. */
#include "engine/text/grammar/spell.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t seed;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static void start(struct eng_rx *r)
{
    assert_int_equal(eng_rx_init(r, NULL, 64 << 20, 0), 0);
}

static bool is_surrogate(uint32_t cp)
{
    return cp >= 0xD800 && cp <= 0xDFFF;
}

static bool matches(struct eng_rx *r, uint32_t x, const char *s)
{
    return eng_rx_matches(r, x, s, strlen(s));
}

/* ---- the ways to write a character ----------------------------------------------------------- */

/* The code point as UTF-8, a surrogate as if it were a character. */
static void utf8(uint32_t cp, char out[8])
{
    size_t n = cn_utf8_encode(cp, out);
    if (!n) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 63));
        out[2] = (char)(0x80 | (cp & 63));
        n = 3;
    }
    out[n] = 0;
}

static void hex(uint32_t cp, bool upper, char out[16])
{
    if (cp < 0x10000)
        snprintf(out, 16, upper ? "\\u%04X" : "\\u%04x", cp);
    else
        snprintf(out, 16, upper ? "\\u%04X\\u%04X" : "\\u%04x\\u%04x",
                 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + (cp & 0x3FF));
}

/* The escape of two characters that JSON has for it, or "". */
static const char *named(uint32_t cp)
{
    static const char names[] = "\"\"\\\\//\bb\ff\nn\rr\tt";
    static char out[3] = "\\?";
    for (const char *p = names; *p; p += 2)
        if ((uint32_t)(uint8_t)*p == cp) {
            out[1] = p[1];
            return out;
        }
    return "";
}

/* Which way is the only one with ENG_SPELL_JSON. */
static char canonical(uint32_t cp)
{
    if (cp != '/' && *named(cp)) return 'n';
    return cp < 0x20 ? 'h' : 'u';
}

static void check_char(struct eng_rx *r, const uint32_t x[3], uint32_t cp, bool inside)
{
    char u[8], h[16], upper[16];
    bool raw = inside && !is_surrogate(cp), as_is = cp >= 0x20 && cp != '"' && cp != '\\';
    const char *n = named(cp);
    utf8(cp, u);
    hex(cp, false, h);
    hex(cp, true, upper);
    size_t u_len = cp ? strlen(u) : 1;
    bool got[] = {eng_rx_matches(r, x[ENG_SPELL_RAW], u, u_len),
                  eng_rx_matches(r, x[ENG_SPELL_JSON], u, u_len),
                  eng_rx_matches(r, x[ENG_SPELL_JSON_ANY], u, u_len),
                  matches(r, x[ENG_SPELL_JSON], h),
                  matches(r, x[ENG_SPELL_JSON_ANY], h),
                  matches(r, x[ENG_SPELL_JSON_ANY], upper),
                  *n && matches(r, x[ENG_SPELL_JSON], n),
                  *n && matches(r, x[ENG_SPELL_JSON_ANY], n)};
    bool want[] = {raw, raw && canonical(cp) == 'u', raw && as_is, raw && canonical(cp) == 'h', raw,
                   raw, raw && canonical(cp) == 'n', raw && *n};
    for (size_t i = 0; i < CN_ARRAY_LEN(got); i++)
        if (got[i] != want[i]) fail_msg("U+%04X: way %zu: %d", cp, i, got[i]);
}

/* ---- classes --------------------------------------------------------------------------------- */

enum { RANGES = 6 };

/* Ascending and disjoint, with edges where forms begin and end. */
static size_t random_ranges(struct eng_cp_range out[RANGES])
{
    static const uint32_t edges[] = {0x1F,   0x22,    0x2F,    0x5C,    0x7F,    0x80,    0x7FF,
                                     0x800,  0xFFF,   0x1000,  0xD7FF,  0xD800,  0xDFFF,  0xE000,
                                     0xFFFF, 0x10000, 0x1FFFF, 0x40000, 0xFFFFF, 0x10FFFF};
    uint32_t v[2 * RANGES];
    size_t n = 1 + rnd(RANGES), kept = 0;
    for (size_t i = 0; i < 2 * n; i++) {
        v[i] = rnd(2) ? edges[rnd(CN_ARRAY_LEN(edges))] : rnd(rnd(2) ? 0x300 : 0x110000);
        for (size_t k = i; k && v[k - 1] > v[k]; k--) {
            uint32_t t = v[k];
            v[k] = v[k - 1];
            v[k - 1] = t;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (!kept || v[2 * i] > out[kept - 1].to)
            out[kept++] = (struct eng_cp_range){v[2 * i], v[2 * i + 1]};
    return kept;
}

static bool in_ranges(const struct eng_cp_range *v, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n; i++)
        if (cp >= v[i].from && cp <= v[i].to) return true;
    return false;
}

static void test_classes(void **state)
{
    for (seed = 1; seed < 200u << 8;) {
        struct eng_cp_range v[RANGES];
        struct eng_rx r;
        uint32_t x[3], seed_was = seed;
        start(&r);
        size_t n = random_ranges(v);
        for (int s = 0; s < 3; s++)
            x[s] = eng_spell_class(&r, (enum eng_spelling)s, v, n);
        for (size_t i = 0; i < n; i++)
            for (int d = -1; d <= 1; d++) {
                uint32_t a = v[i].from + (uint32_t)d, b = v[i].to + (uint32_t)d;
                if (a <= 0x10FFFF) check_char(&r, x, a, in_ranges(v, n, a));
                if (b <= 0x10FFFF) check_char(&r, x, b, in_ranges(v, n, b));
            }
        for (int i = 0; i < 60; i++) {
            uint32_t cp = rnd(rnd(2) ? 0x180 : 0x110000);
            check_char(&r, x, cp, in_ranges(v, n, cp));
        }
        assert_int_equal(r.code, 0);
        eng_rx_fini(&r);
        seed = seed_was + 256;
    }
}

/* Each character by itself, and all of them. */
static void test_every_character(void **state)
{
    struct eng_rx r;
    uint32_t all[3], none[3];
    uint64_t n;
    start(&r);
    for (int s = 0; s < 3; s++) {
        all[s] = eng_spell_any(&r, (enum eng_spelling)s);
        none[s] = eng_spell_class(&r, (enum eng_spelling)s, NULL, 0);
        assert_int_equal(none[s], ENG_RX_NONE);
    }
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp += cp < 0x3000 ? 1 : 97)
        check_char(&r, all, cp, true);
    /* nothing else belongs to them: as many texts as there are characters */
    assert_true(eng_rx_count(&r, all[ENG_SPELL_RAW], 2000000, &n));
    assert_int_equal(n, 0x110000 - 0x800);
    assert_true(eng_rx_count(&r, all[ENG_SPELL_JSON], 2000000, &n));
    assert_int_equal(n, 0x110000 - 0x800);
    eng_rx_fini(&r);
}

/* The complement within all characters is the class of the others. */
static void test_complement(void **state)
{
    const struct eng_cp_range letters[] = {
        {'/', '/'}, {'a', 'z'}, {0x3B1, 0x3C9}, {0x1F600, 0x1F64F}};
    const struct eng_cp_range others[] = {
        {0, '.'}, {'0', '`'}, {'{', 0x3B0}, {0x3CA, 0x1F5FF}, {0x1F650, 0x10FFFF}};
    for (int s = 0; s < 3; s++) {
        struct eng_rx r;
        start(&r);
        uint32_t in = eng_spell_class(&r, (enum eng_spelling)s, letters, CN_ARRAY_LEN(letters));
        uint32_t out = eng_spell_class(&r, (enum eng_spelling)s, others, CN_ARRAY_LEN(others));
        uint32_t all = eng_spell_any(&r, (enum eng_spelling)s);
        assert_false(eng_rx_live(&r, eng_rx_and(&r, in, out)));
        assert_false(eng_rx_live(&r, eng_rx_and(&r, all, eng_rx_not(&r, eng_rx_or(&r, in, out)))));
        assert_false(eng_rx_live(&r, eng_rx_and(&r, eng_rx_or(&r, in, out), eng_rx_not(&r, all))));
        eng_rx_fini(&r);
    }
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const char *const texts[] = {"",
                                    "a",
                                    "ab",
                                    "abc",
                                    "b\"\\/\n\x01z",
                                    "\xC3\xA9",
                                    "\xC3\xA8",
                                    "\xC3\xA9t\xC3\xA9",
                                    "\xF0\x9F\x98\x80",
                                    "\xF0\x9F\x98\x81x",
                                    "ab",
                                    "\x7F"};

/* A text in a random spelling, or in the one of ENG_SPELL_JSON. */
static void spell(const char *text, bool any, struct cn_buf *out)
{
    cn_buf_reset(out);
    for (size_t n = strlen(text), len; n; text += len, n -= len) {
        uint32_t cp;
        char h[16];
        len = cn_utf8_decode(text, n, &cp);
        hex(cp, rnd(2), h);
        if (any ? rnd(2) : canonical(cp) == 'h')
            cn_buf_puts(out, any ? h : (hex(cp, false, h), h));
        else if (any ? *named(cp) && (cp != '/' || rnd(2)) : canonical(cp) == 'n')
            cn_buf_puts(out, named(cp));
        else if (cp < 0x20)
            cn_buf_puts(out, h);
        else
            cn_buf_append(out, text, len);
    }
    assert_non_null(cn_buf_cstr(out));
}

static void test_texts(void **state)
{
    struct eng_str list[CN_ARRAY_LEN(texts)];
    struct cn_buf b;
    cn_buf_init(&b, 0);
    for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++)
        list[i] = (struct eng_str){texts[i], strlen(texts[i])};
    for (seed = 1; seed < 40; seed++) {
        struct eng_rx r;
        start(&r);
        for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++)
            for (int s = 0; s < 3; s++) {
                enum eng_spelling spelling = (enum eng_spelling)s;
                uint32_t one = eng_spell_text(&r, spelling, list[i].p, list[i].n);
                uint32_t all = eng_spell_texts(&r, spelling, list, CN_ARRAY_LEN(list));
                uint32_t less = eng_spell_texts(&r, spelling, list, i);
                if (spelling == ENG_SPELL_RAW) {
                    cn_buf_reset(&b);
                    cn_buf_puts(&b, texts[i]);
                    cn_buf_cstr(&b);
                } else {
                    spell(texts[i], spelling == ENG_SPELL_JSON_ANY, &b);
                }
                assert_true(eng_rx_matches(&r, one, b.data, b.len));
                assert_true(eng_rx_matches(&r, all, b.data, b.len));
                assert_int_equal(eng_rx_matches(&r, less, b.data, b.len), i == 10);
                cn_buf_putc(&b, 'a'); /* one character too many */
                assert_false(eng_rx_matches(&r, one, b.data, b.len));
            }
        eng_rx_fini(&r);
    }
    cn_buf_fini(&b);
}

/* Two spellings have one text in common, and JSON's is one of ENG_SPELL_JSON_ANY. */
static void test_one_spelling(void **state)
{
    struct eng_rx r;
    uint64_t n;
    start(&r);
    for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++) {
        uint32_t one = eng_spell_text(&r, ENG_SPELL_JSON, texts[i], strlen(texts[i]));
        uint32_t any = eng_spell_text(&r, ENG_SPELL_JSON_ANY, texts[i], strlen(texts[i]));
        assert_true(eng_rx_count(&r, one, 10, &n) && n == 1);
        assert_true(eng_rx_count(&r, eng_rx_and(&r, one, any), 10, &n) && n == 1);
    }
    eng_rx_fini(&r);
}

static void test_lengths(void **state)
{
    struct eng_rx r;
    start(&r);
    uint32_t raw = eng_spell_length(&r, ENG_SPELL_RAW, 2, 3);
    uint32_t json = eng_spell_length(&r, ENG_SPELL_JSON, 2, 3);
    uint32_t any = eng_spell_length(&r, ENG_SPELL_JSON_ANY, 2, 3);
    assert_true(matches(&r, raw, "\xF0\x9F\x98\x80\xC3\xA9") && matches(&r, raw, "abc"));
    assert_false(matches(&r, raw, "\xF0\x9F\x98\x80") || matches(&r, raw, "abcd"));
    assert_true(matches(&r, json, "\\n\\u0001") && matches(&r, json, "ab\\\""));
    assert_false(matches(&r, json, "\\n") || matches(&r, json, "\\u0041\\u0042"));
    assert_true(matches(&r, any, "\\u0041\\u0042") && matches(&r, any, "\\ud83d\\uDE00x"));
    assert_false(matches(&r, any, "\\ud83d\\ude00") || matches(&r, any, "\\ud83dx"));
    eng_rx_fini(&r);
}

/* Bytes that are not UTF-8, and a budget that is too small. */
static void test_refused(void **state)
{
    static const char *const bad[] = {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80",
                                      "\xF4\x90\x80\x80"};
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++)
        for (int s = 0; s < 3; s++) {
            struct eng_str list[] = {{"fine", 4}, {bad[i], strlen(bad[i])}};
            struct eng_rx r;
            start(&r);
            assert_int_equal(eng_spell_text(&r, (enum eng_spelling)s, bad[i], strlen(bad[i])), 0);
            assert_int_equal(r.code, CN_EINVAL);
            eng_rx_fini(&r);
            start(&r);
            assert_int_equal(eng_spell_texts(&r, (enum eng_spelling)s, list, 2), ENG_RX_NONE);
            assert_int_equal(r.code, CN_EINVAL);
            eng_rx_fini(&r);
        }
    for (int s = 0; s < 3; s++) {
        struct eng_rx r;
        char text[3000];
        memset(text, 'x', sizeof text);
        assert_int_equal(eng_rx_init(&r, NULL, 20000, 0), 0);
        assert_int_equal(eng_spell_text(&r, (enum eng_spelling)s, text, sizeof text), ENG_RX_NONE);
        assert_int_equal(r.code, CN_ELIMIT);
        eng_rx_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),      cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_complement),   cmocka_unit_test(test_texts),
        cmocka_unit_test(test_one_spelling), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
