/* The matcher of grammars: random context-free grammars, left recursion and empty parts included,
 * against a recogniser that fills a table over all spans of a text; distances to the end; and masks
 * against steps over each token's bytes. */
#include "engine/text/grammar/mask.h"
#include "tests/text/small_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { RULES = 4, LENGTH = 6, TRIES = 1500, MAX_SYMS = 3, MAX_SEQS = 3 };

/* ---- grammars -------------------------------------------------------------------------------- */

/* Terminals: written for the matcher as expressions, for the table by hand. */
static bool is_a(const char *s, size_t n)
{
    return n == 1 && *s == 'a';
}
static bool is_b(const char *s, size_t n)
{
    return n == 1 && *s == 'b';
}
static bool is_ca(const char *s, size_t n)
{
    return n == 2 && !memcmp(s, "ca", 2);
}
static bool is_as(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != 'a') return false;
    return true;
}
static bool is_bs(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != 'b') return false;
    return n > 0;
}
/* What an `a` leaves of it is all of it again. */
static bool is_as_b(const char *s, size_t n)
{
    return n && is_as(s, n - 1) && s[n - 1] == 'b';
}
static bool (*const terminals[])(const char *s, size_t n) = {is_a,  is_b,  is_ca,
                                                             is_as, is_bs, is_as_b};
enum { TERMINALS = 6 };

struct grammar {
    unsigned n_seqs[RULES], n_syms[RULES][MAX_SEQS];
    unsigned sym[RULES][MAX_SEQS][MAX_SYMS]; /* below RULES: a rule; else a terminal */
};
static uint32_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static void make(struct grammar *g)
{
    for (unsigned r = 0; r < RULES; r++) {
        g->n_seqs[r] = 1 + rnd(MAX_SEQS);
        for (unsigned i = 0; i < g->n_seqs[r]; i++) {
            g->n_syms[r][i] = rnd(MAX_SYMS + 1);
            for (unsigned k = 0; k < g->n_syms[r][i]; k++)
                g->sym[r][i][k] = rnd(RULES + TERMINALS + 2) % (RULES + TERMINALS);
        }
    }
}

static int compile(const struct grammar *g, struct eng_ir *ir, struct cn_error *err)
{
    struct eng_sym rules[RULES], leaf[TERMINALS];
    assert_int_equal(eng_ir_init(ir, ENG_SPELL_RAW, 16 << 20, 0), 0);
    struct eng_rx *r = &ir->rx;
    uint32_t a = eng_rx_byte(r, 'a', 'a'), b = eng_rx_byte(r, 'b', 'b');
    leaf[0] = eng_ir_lexeme(ir, a, false);
    leaf[1] = eng_ir_lexeme(ir, b, false);
    leaf[2] = eng_ir_lexeme(ir, eng_rx_literal(r, "ca", 2), false);
    leaf[3] = eng_ir_lexeme(ir, eng_rx_repeat(r, a, 0, ENG_RX_INF), false);
    leaf[4] = eng_ir_lexeme(ir, eng_rx_repeat(r, b, 1, ENG_RX_INF), false);
    leaf[5] = eng_ir_lexeme(ir, eng_rx_cat(r, eng_rx_repeat(r, a, 0, ENG_RX_INF), b), false);
    for (unsigned i = 0; i < RULES; i++)
        rules[i] = eng_ir_rule(ir);
    for (unsigned i = 0; i < RULES; i++)
        for (unsigned k = 0; k < g->n_seqs[i]; k++) {
            struct eng_sym syms[MAX_SYMS];
            for (unsigned j = 0; j < g->n_syms[i][k]; j++) {
                unsigned s = g->sym[i][k][j];
                syms[j] = s < RULES ? rules[s] : leaf[s - RULES];
            }
            eng_ir_add(ir, rules[i], syms, g->n_syms[i][k]);
        }
    return eng_ir_finish(ir, rules[0], err);
}

/* ---- the table ------------------------------------------------------------------------------- */

struct table { bool is[RULES][LENGTH + 1][LENGTH + 1]; };

static bool sym_is(const struct table *t, unsigned s, const char *text, size_t i, size_t j)
{
    return s < RULES ? t->is[s][i][j] : terminals[s - RULES](text + i, j - i);
}

static bool seq_is(const struct table *t, const unsigned *syms, unsigned n, const char *text,
                   size_t i, size_t j)
{
    if (!n) return i == j;
    for (size_t k = i; k <= j; k++)
        if (sym_is(t, syms[0], text, i, k) && seq_is(t, syms + 1, n - 1, text, k, j)) return true;
    return false;
}

static bool is_in(const struct grammar *g, const char *text, size_t n)
{
    struct table t = {0};
    for (bool more = true; more;) {
        more = false;
        for (unsigned r = 0; r < RULES; r++)
            for (size_t i = 0; i <= n; i++)
                for (size_t j = i; j <= n; j++)
                    for (unsigned k = 0; k < g->n_seqs[r] && !t.is[r][i][j]; k++)
                        if (seq_is(&t, g->sym[r][k], g->n_syms[r][k], text, i, j))
                            t.is[r][i][j] = more = true;
    }
    return t.is[0][0][n];
}

static size_t text_of(unsigned k, char *out)
{
    size_t n = 0;
    for (unsigned count = 1; k >= count; count *= 3, n++)
        k -= count;
    for (size_t i = 0; i < n; i++, k /= 3)
        out[i] = (char)('a' + k % 3);
    return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* A text that is in has prefixes that may go on; from one that may go on an end is as near as the
 * distance says. */
static void check(const struct grammar *g, const struct eng_ir *ir, unsigned *in)
{
    char text[LENGTH + 1];
    for (unsigned k = 0; k < 1 + 3 + 9 + 27 + 81 + 243; k++) {
        struct eng_match m;
        size_t n = text_of(k, text);
        bool want = is_in(g, text, n);
        assert_int_equal(eng_match_init(&m, ir, 16 << 20, ENG_RX_EMPTY), 0);
        size_t took = eng_match_bytes_in(&m, text, n);
        assert_int_equal(m.code, 0);
        bool got = took == n && eng_match_accepts(&m, &m.now);
        if (got != want) fail_msg("seed %u, text %.*s: want %d", seed, (int)n, text, want);
        *in += want;
        if (took == n) {
            uint32_t d = eng_match_distance(&m, &m.now);
            bool found = false;
            assert_true(d != UINT32_MAX && (d == 0) == got);
            for (unsigned j = 0; j < 1093 && n + d <= LENGTH && !found; j++) {
                char more[LENGTH];
                size_t len = text_of(j, more);
                if (len != d) continue;
                memcpy(text + n, more, len);
                found = is_in(g, text, n + d);
            }
            assert_true(found || n + d > LENGTH);
        }
        eng_match_fini(&m);
    }
}

static void test_random(void **state)
{
    unsigned in = 0, compiled = 0, empty = 0, hidden = 0;
    for (uint32_t i = 1; i <= TRIES; i++) {
        struct grammar g;
        struct eng_ir ir;
        struct cn_error err = {0};
        seed = i * 7919;
        make(&g);
        int rc = compile(&g, &ir, &err);
        if (!rc) check(&g, &ir, &in);
        compiled += !rc;
        empty += rc == CN_EINVAL;
        hidden += rc == CN_EUNSUPP;
        assert_true(rc == 0 || rc == CN_EINVAL || rc == CN_EUNSUPP);
        eng_ir_fini(&ir);
    }
    print_message("%u grammars, %u texts in them; %u empty, %u refused\n", compiled, in, empty,
                  hidden);
    assert_true(compiled > TRIES / 2 && in > TRIES && empty > 0);
}

static struct eng_vocab *vocab(void)
{
    static struct token_list l;
    struct eng_vocab_spec s = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    l = (struct token_list){0};
    add_bytes(&l);
    for (const char *const *p =
             (const char *const[]){"aa", "ab", "ba", "ca", "aaa", "bca", "cab", "caca", "bb",
                                   "abab", "acab", "x", "aax", NULL};
         *p; p++)
        add_token(&l, *p, strlen(*p), ENG_TOKEN_NORMAL);
    add_token(&l, "<eos>", 5, ENG_TOKEN_CONTROL);
    add_token(&l, "<call>", 6, ENG_TOKEN_CONTROL);
    use_tokens(&s, &l);
    s.eos = (int64_t)l.n - 2;
    assert_int_equal(eng_vocab_new(&s, &v, NULL), 0);
    return v;
}

/* A token may come if its bytes may; an end if the text may end. With so many bytes left, if in
 * addition the end is near enough behind it. */
static void check_mask(struct eng_match *m, const struct eng_vocab *v, const uint32_t *mask,
                       uint64_t left)
{
    struct eng_places at[2] = {{0}, {0}};
    for (uint32_t id = 0; id < eng_vocab_size(v); id++) {
        struct eng_str s = eng_vocab_piece(v, id, false);
        bool want = s.n > 0, got = mask[id >> 5] >> (id & 31) & 1;
        const struct eng_places *from = &m->now;
        for (size_t i = 0; i < s.n && want; i++) {
            want = eng_match_step(m, from, (uint8_t)s.p[i], &at[i & 1]);
            from = &at[i & 1];
        }
        if (want && left != UINT64_MAX) want = eng_match_distance(m, from) <= left - 1;
        if (eng_vocab_is_eog(v, id)) want = eng_match_accepts(m, &m->now);
        if (got != want) fail_msg("seed %u, token %u: want %d", seed, id, want);
    }
    free(at[0].v);
    free(at[1].v);
}

static void test_masks(void **state)
{
    struct eng_vocab *v = vocab();
    const struct eng_trie *t;
    struct eng_masks *masks;
    uint32_t mask[32];
    uint64_t made = 0, found = 0;
    t = eng_vocab_trie(v);
    assert_non_null(t);
    assert_ptr_equal(eng_vocab_trie(v), t);
    for (uint32_t i = 1; i <= TRIES / 3; i++) {
        struct grammar g;
        struct eng_ir ir;
        seed = i * 104729;
        make(&g);
        if (!compile(&g, &ir, NULL)) {
            assert_int_equal(eng_masks_new(1 << 20, &masks), 0);
            for (int again = 0; again < 2; again++) {
                struct eng_match m;
                struct eng_masker k;
                assert_int_equal(eng_match_init(&m, &ir, 16 << 20, ENG_RX_EMPTY), 0);
                assert_int_equal(eng_masker_init(&k, t, masks), 0);
                for (int step = 0; step < 8; step++) {
                    memset(mask, 0, sizeof mask);
                    assert_int_equal(eng_mask(&k, &m, &m.now, UINT64_MAX, mask), 0);
                    check_mask(&m, v, mask, UINT64_MAX);
                    uint64_t left = eng_match_distance(&m, &m.now) + (uint64_t)rnd(3);
                    if (left) {
                        memset(mask, 0, sizeof mask);
                        assert_int_equal(eng_mask(&k, &m, &m.now, left, mask), 0);
                        check_mask(&m, v, mask, left);
                    }
                    char c = (char)('a' + (i + (unsigned)step * 7) % 3);
                    eng_match_bytes_in(&m, &c, 1);
                    if (rnd(4) == 0) eng_match_compact(&m);
                }
                made += k.made;
                found += k.found;
                eng_masker_fini(&k);
                eng_match_fini(&m);
            }
            eng_masks_free(masks);
        }
        eng_ir_fini(&ir);
    }
    print_message("%llu masks made, %llu found\n", (unsigned long long)made,
                  (unsigned long long)found);
    assert_true(found > made);
    eng_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_masks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
