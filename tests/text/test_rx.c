/* Expressions over bytes: random ones against a recogniser that follows their structure, over all
 * short texts of three letters; limits; an arena that continues another one. */
#include "engine/text/grammar/rx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { LETTERS = 3, LENGTH = 6, TRIES = 3000 };

/* ---- expressions as trees, for the recogniser ------------------------------------------------ */

struct tree {
    char kind; /* s: set, e: empty, n: none, . : cat, |, &, !, * : repeat */
    unsigned set;
    struct tree *a, *b;
    uint32_t lo, hi;
};
static struct tree pool[4096];
static unsigned used;
static uint32_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static struct tree *make(int depth)
{
    struct tree *t = &pool[used++];
    *t = (struct tree){.kind = depth ? "s.|&!*.|*s"[rnd(10)] : "sssssen"[rnd(7)]};
    if (t->kind == 's') t->set = 1 + rnd(7);
    if (strchr(".|&!*", t->kind)) t->a = make(depth - 1);
    if (strchr(".|&", t->kind)) t->b = make(depth - 1);
    if (t->kind == '*') {
        t->lo = rnd(3);
        t->hi = rnd(2) ? ENG_RX_INF : t->lo + rnd(3);
    }
    return t;
}

static bool is_in(const struct tree *t, const char *s, size_t n);

static bool repeats(const struct tree *t, const char *s, size_t n, uint32_t lo, uint32_t hi)
{
    if (!n && (!lo || is_in(t, s, 0))) return true;
    if (!hi) return false;
    for (size_t k = 1; k <= n; k++)
        if (is_in(t, s, k) &&
            repeats(t, s + k, n - k, lo ? lo - 1 : 0, hi == ENG_RX_INF ? hi : hi - 1))
            return true;
    return lo && is_in(t, s, 0) && repeats(t, s, n, 0, hi); /* the first ones were empty */
}

static bool is_in(const struct tree *t, const char *s, size_t n)
{
    switch (t->kind) {
    case 's':
        return n == 1 && t->set >> (*s - 'a') & 1;
    case 'e':
        return n == 0;
    case 'n':
        return false;
    case '|':
        return is_in(t->a, s, n) || is_in(t->b, s, n);
    case '&':
        return is_in(t->a, s, n) && is_in(t->b, s, n);
    case '!':
        return !is_in(t->a, s, n);
    case '*':
        return repeats(t->a, s, n, t->lo, t->hi);
    }
    for (size_t k = 0; k <= n; k++)
        if (is_in(t->a, s, k) && is_in(t->b, s + k, n - k)) return true;
    return false;
}

static uint32_t build(struct eng_rx *r, const struct tree *t)
{
    struct eng_bytes set = {{0}};
    switch (t->kind) {
    case 'e':
        return ENG_RX_EMPTY;
    case 'n':
        return ENG_RX_NONE;
    case '.':
        return eng_rx_cat(r, build(r, t->a), build(r, t->b));
    case '|':
        return eng_rx_or(r, build(r, t->a), build(r, t->b));
    case '&':
        return eng_rx_and(r, build(r, t->a), build(r, t->b));
    case '!':
        return eng_rx_not(r, build(r, t->a));
    case '*':
        return eng_rx_repeat(r, build(r, t->a), t->lo, t->hi);
    }
    for (unsigned i = 0; i < LETTERS; i++)
        if (t->set >> i & 1) eng_bytes_add(&set, (uint8_t)('a' + i), (uint8_t)('a' + i));
    return eng_rx_set(r, &set);
}

/* The k-th text over the letters, shortest first; its length. */
static size_t text_of(unsigned k, char out[LENGTH])
{
    size_t n = 0;
    for (unsigned count = 1; k >= count; count *= LETTERS, n++)
        k -= count;
    for (size_t i = 0; i < n; i++, k /= LETTERS)
        out[i] = (char)('a' + k % LETTERS);
    return n;
}

static unsigned texts_up_to(size_t n)
{
    unsigned all = 0, count = 1;
    for (size_t i = 0; i <= n; i++, count *= LETTERS)
        all += count;
    return all;
}

static void check_texts(struct eng_rx *r, uint32_t x, const struct tree *t, unsigned *accepted)
{
    char s[LENGTH];
    for (unsigned k = 0; k < texts_up_to(4); k++) {
        size_t n = text_of(k, s);
        bool want = is_in(t, s, n);
        if (eng_rx_matches(r, x, s, n) != want) fail_msg("text %.*s: want %d", (int)n, s, want);
        *accepted += want;
    }
}

/* Least length, and a text that has it. */
static void check_shortest(struct eng_rx *r, uint32_t x, const struct tree *t)
{
    char s[LENGTH];
    struct cn_buf shortest;
    uint32_t len = eng_rx_min_len(r, x), want = UINT32_MAX;
    for (unsigned k = 0; k < texts_up_to(LENGTH) && want == UINT32_MAX; k++) {
        size_t n = text_of(k, s);
        if (is_in(t, s, n)) want = (uint32_t)n;
    }
    assert_int_equal(eng_rx_live(r, x), len != UINT32_MAX);
    if (want != UINT32_MAX) assert_int_equal(len, want);
    if (len == UINT32_MAX) assert_int_equal(want, UINT32_MAX);
    if (len > LENGTH) return;
    cn_buf_init(&shortest, 0);
    assert_int_equal(eng_rx_shortest(r, x, &shortest), 0);
    assert_int_equal(shortest.len, len);
    assert_true(is_in(t, shortest.data, shortest.len));
    cn_buf_fini(&shortest);
}

static void test_random(void **state)
{
    unsigned accepted = 0;
    for (seed = 1; seed <= TRIES; seed++) {
        struct eng_rx r, later;
        uint32_t keep = seed;
        used = 0;
        struct tree *t = make(1 + (int)(keep % 4)), all = {.kind = '*', .hi = ENG_RX_INF},
                    letters = {.kind = 's', .set = 7}, within = {.kind = '&', .a = t, .b = &all};
        all.a = &letters; /* so that texts of other letters do not count */
        assert_int_equal(eng_rx_init(&r, NULL, 64 << 20, 0), 0);
        uint32_t x = build(&r, &within);
        assert_int_equal(eng_rx_init(&later, &r, 64 << 20, 0), 0);
        check_texts(&later, x, &within, &accepted);
        check_shortest(keep % 2 ? &later : &r, x, &within);
        assert_int_equal(build(&later, &within), x); /* the same again */
        assert_int_equal(later.code, 0);
        eng_rx_fini(&later);
        eng_rx_fini(&r);
        seed = keep;
    }
    print_message("%u texts accepted\n", accepted);
    assert_true(accepted > TRIES);
}

static void test_count(void **state)
{
    struct eng_rx r;
    uint64_t n;
    assert_int_equal(eng_rx_init(&r, NULL, 1 << 20, 0), 0);
    uint32_t abc = eng_rx_byte(&r, 'a', 'c');
    uint32_t some = eng_rx_repeat(&r, abc, 0, 3);
    assert_true(eng_rx_count(&r, some, 40, &n) && n == 1 + 3 + 9 + 27);
    assert_false(eng_rx_count(&r, some, 39, &n));
    assert_false(eng_rx_count(&r, eng_rx_repeat(&r, abc, 0, ENG_RX_INF), 1000000, &n));
    uint32_t without = eng_rx_and(&r, some, eng_rx_not(&r, eng_rx_literal(&r, "abc", 3)));
    assert_true(eng_rx_count(&r, without, 40, &n) && n == 39);
    assert_true(eng_rx_count(&r, ENG_RX_NONE, 0, &n) && n == 0);
    eng_rx_fini(&r);
}

static void test_words(void **state)
{
    const struct eng_str words[] = {{"car", 3}, {"cart", 4}, {"", 0},  {"carton", 6},
                                    {"dog", 3}, {"cart", 4}, {"d", 1}, {"do", 2}};
    struct eng_rx r;
    uint64_t n;
    assert_int_equal(eng_rx_init(&r, NULL, 1 << 20, 0), 0);
    uint32_t x = eng_rx_words(&r, words, CN_ARRAY_LEN(words));
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++)
        assert_true(eng_rx_matches(&r, x, words[i].p, words[i].n));
    assert_false(eng_rx_matches(&r, x, "ca", 2));
    assert_false(eng_rx_matches(&r, x, "carto", 5));
    assert_true(eng_rx_count(&r, x, 100, &n) && n == 7);
    assert_int_equal(eng_rx_words(&r, NULL, 0), ENG_RX_NONE);
    eng_rx_fini(&r);
}

/* Words that are each the beginning of the next: neither the stack nor the time grows out of hand.
 */
static void test_nested_words(void **state)
{
    enum { N = 3000 };
    struct eng_str *words = cn_calloc(N, sizeof *words);
    char *text = cn_calloc(N, 1);
    struct eng_rx r;
    memset(text, 'x', N);
    for (size_t i = 0; i < N; i++)
        words[i] = (struct eng_str){text, i};
    assert_int_equal(eng_rx_init(&r, NULL, 512 << 20, 0), 0);
    uint32_t x = eng_rx_words(&r, words, N);
    assert_int_equal(r.code, 0);
    assert_true(eng_rx_matches(&r, x, text, N - 1));
    assert_false(eng_rx_matches(&r, x, text, N));
    eng_rx_fini(&r);
    free(words);
    free(text);
}

/* What explodes ends with CN_ELIMIT, within its memory and work. */
static void test_limits(void **state)
{
    struct eng_rx r;
    assert_int_equal(eng_rx_init(&r, NULL, 256 << 10, 20000), 0);
    uint32_t any = eng_rx_byte(&r, 'a', 'b'), x = eng_rx_byte(&r, 'a', 'a');
    x = eng_rx_cat(&r, eng_rx_repeat(&r, any, 0, ENG_RX_INF),
                   eng_rx_cat(&r, x, eng_rx_repeat(&r, any, 60, 60)));
    for (uint32_t i = 0; i < 100000 && !r.code; i++)
        x = eng_rx_derive(&r, x, i * 2654435761u >> 31 ? 'a' : 'b');
    assert_int_equal(r.code, CN_ELIMIT);
    assert_true(eng_rx_bytes(&r) < 1 << 20);
    assert_int_equal(eng_rx_byte(&r, 'z', 'z'), ENG_RX_NONE);
    eng_rx_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_count), cmocka_unit_test(test_words),
        cmocka_unit_test(test_nested_words), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
