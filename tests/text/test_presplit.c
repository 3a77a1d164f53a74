/* Pre-tokenisers: against Python's `regex` module (presplit.json, see make_presplit.py), and the
 * hand-written scanners against PCRE2 on the same expressions, with and without JIT. */
#include "engine/text/vocab_impl.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct pieces { size_t n, at, len[65536]; };

static int note(void *arg, size_t start, size_t len)
{
    struct pieces *p = arg;
    assert_int_equal(start, p->at); /* in order, without gaps */
    assert_true(len > 0);
    p->len[p->n++] = len;
    p->at += len;
    return 0;
}

static void split(const struct eng_pretok *pre, const char *text, size_t n, struct pieces *p)
{
    struct cn_error err = {0};
    p->n = p->at = 0;
    assert_int_equal(eng_pretok_split(pre, text, n, note, p, &err), 0);
    assert_int_equal(p->at, n);
}

static struct pieces got, want;

static void expect_same(const char *kind, const char *text, size_t n)
{
    if (got.n == want.n && memcmp(got.len, want.len, got.n * sizeof got.len[0]) == 0) return;
    fprintf(stderr, "%s:", kind);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %02x", (uint8_t)text[i]);
    fprintf(stderr, "\n got");
    for (size_t i = 0; i < got.n; i++)
        fprintf(stderr, " %zu", got.len[i]);
    fprintf(stderr, "\nwant");
    for (size_t i = 0; i < want.n; i++)
        fprintf(stderr, " %zu", want.len[i]);
    fprintf(stderr, "\n");
    fail();
}

static void fixtures(bool jit, bool regex_only)
{
    json_error_t why;
    json_t *cases =
        json_load_file(CONIFER_SOURCE_ROOT "/tests/text/presplit.json", JSON_ALLOW_NUL, &why);
    assert_non_null(cases);
    assert_true(json_array_size(cases) > 100);
    for (size_t k = 0; eng_pretok_kind(k); k++) {
        const char *kind = eng_pretok_kind(k);
        struct eng_pretok *pre = eng_pretok_by_kind(kind, jit, regex_only);
        assert_non_null(pre);
        size_t i;
        json_t *c;
        json_array_foreach(cases, i, c)
        {
            json_t *text = json_object_get(c, "text");
            const char *list = json_string_value(json_object_get(c, kind));
            assert_non_null(list); /* every kind has its expectation */
            want.n = 0;
            for (char *end; *list; list = end)
                want.len[want.n++] = strtoul(list, &end, 10);
            split(pre, json_string_value(text), json_string_length(text), &got);
            expect_same(kind, json_string_value(text), json_string_length(text));
        }
        eng_pretok_free(pre);
    }
    json_decref(cases);
}

static void test_fixtures(void **state)
{
    fixtures(true, false);
    fixtures(true, true);
    fixtures(false, true);
}

/* ---- differential ---------------------------------------------------------------------------- */

static uint64_t rng = 88172645463325252u;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* Characters of every class that the expressions tell apart, invalid bytes among them. */
/* clang-format off */
static const char *const alphabet[] = {
    "a", "b", "s", "t", "r", "e", "l", "v", "m", "d", "A", "S", "L", "E", "0", "1", "9", " ", " ",
    " ", "\t", "\n", "\n", "\r", "\r\n", "\v", "'", "'", "'s", "'LL", ".", ",", "/", "!", "$", "(",
    "|", "`", "_", "\\", "]", "\u00e9", "\u00c9", "\u017f", "\u03a9", "\u044f", "\u042f", "\u4e2d",
    "\u65e5", "\u3005", "\u3007", "\u3072", "\u30fc", "\ud55c", "\u0915", "\u093f", "\u094d",
    "\u0627", "\u0663", "\u00b2", "\u2167", "\u01c5", "\u02b0", "\u0301", "\u20dd", "\u20ac",
    "\u00a9", "\U0001f600", "\u200d", "\u00a0", "\u2003", "\u2028", "\u3000", "\xc2\x85", "\u180e",
    "\ufffd", "\U0001d49c", "\U0001d7d8", "\U00020000", "\u3002", "\u3001", "\uff0c", "\u2026", "\u2e85", "\u3021", "\uff21", "\ua9f0",
    "\U000110a0", "\U0001f1e6", "\x7f", "\x80", "\xc3", "\xf0\x9f", "\xff",
    "\xed\xa0\x80",
};
/* clang-format on */

static size_t random_text(char *out, size_t max)
{
    size_t n = 0, kinds = 2 + below(CN_ARRAY_LEN(alphabet) - 2), first = below(1000);
    size_t count = 1 + below(30);
    for (size_t i = 0; i < count; i++) {
        const char *c = alphabet[(first + below((uint32_t)kinds)) % CN_ARRAY_LEN(alphabet)];
        size_t len = strlen(c), times = below(8) ? 1 : 1 + below(6);
        for (; times > 0 && n + len <= max; times--, n += len)
            memcpy(out + n, c, len);
    }
    return n;
}

static void test_differential(void **state)
{
    char text[512];
    for (size_t k = 0; eng_pretok_kind(k); k++) {
        const char *kind = eng_pretok_kind(k);
        struct eng_pretok *fast = eng_pretok_by_kind(kind, true, false);
        struct eng_pretok *slow = eng_pretok_by_kind(kind, true, true);
        struct eng_pretok *plain = eng_pretok_by_kind(kind, false, true);
        for (int i = 0; i < 6000; i++) {
            size_t n = random_text(text, sizeof text);
            split(slow, text, n, &want);
            split(fast, text, n, &got);
            expect_same(kind, text, n);
            if (i % 8) continue;
            split(plain, text, n, &got);
            expect_same(kind, text, n);
        }
        eng_pretok_free(fast);
        eng_pretok_free(slow);
        eng_pretok_free(plain);
    }
}

/* Every character of blocks that all Unicode versions in use agree about, in four contexts. */
static void test_every_character(void **state)
{
    static const uint32_t blocks[][2] = {{0x1, 0x52F},       {0x5D0, 0x5EA},    {0x1E00, 0x1FFE},
                                         {0x2000, 0x2BFF},   {0x3000, 0x30FF},  {0x4E00, 0x4E40},
                                         {0xA960, 0xA97C},   {0xFE00, 0xFE0F},  {0xFF01, 0xFFFD},
                                         {0x1D400, 0x1D7FF}, {0x1F300, 0x1F64F}};
    for (size_t k = 0; eng_pretok_kind(k); k++) {
        const char *kind = eng_pretok_kind(k);
        struct eng_pretok *fast = eng_pretok_by_kind(kind, true, false);
        struct eng_pretok *slow = eng_pretok_by_kind(kind, true, true);
        for (size_t b = 0; b < CN_ARRAY_LEN(blocks); b++) {
            for (uint32_t cp = blocks[b][0]; cp <= blocks[b][1]; cp++) {
                char c[4], text[64];
                int len = (int)cn_utf8_encode(cp, c);
                int n = snprintf(text, sizeof text, "a%.*sb1%.*s2 %.*s %.*s%.*sX'%.*s", len, c, len,
                                 c, len, c, len, c, len, c, len, c);
                split(slow, text, (size_t)n, &want);
                split(fast, text, (size_t)n, &got);
                expect_same(kind, text, (size_t)n);
            }
        }
        eng_pretok_free(fast);
        eng_pretok_free(slow);
    }
}

static void test_names(void **state)
{
    struct eng_pretok *pre = NULL;
    struct cn_error err = {0};
    assert_int_equal(eng_pretok_new("smollm", true, &pre, &err), 0);
    eng_pretok_free(pre);
    pre = NULL;
    assert_int_equal(eng_pretok_new("no-such-thing", true, &pre, &err), CN_EUNSUPP);
    assert_null(pre);
    assert_non_null(strstr(err.message, "no-such-thing"));
    assert_non_null(strstr(err.message, "llama-bpe"));
    assert_string_equal(err.param, "tokenizer.ggml.pre");
    assert_int_equal(eng_pretok_new("chameleon", true, &pre, NULL), CN_EUNSUPP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_differential),
        cmocka_unit_test(test_every_character),
    };
    return cmocka_run_group_tests_name("presplit", tests, NULL, NULL);
}
