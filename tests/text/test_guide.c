/* Guides that get little time for a mask: asked again, they give what one that had all the time
 * gives, with drafts and near the answer's end too. And the memory that guides hold. */
#include "engine/text/grammar/grammar.h"
#include "engine/text/text.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 40, RUNS = 12 };

static struct eng_vocab *v;
static uint64_t seed = 7;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static const struct {
    enum eng_grammar_kind kind;
    const char *text;
} grammars[] = {
    {ENG_GRAMMAR_REGEX, "((a|b|ab|ba)*(c|d)?){1,40}[a-z ]*(x|y|z){3,9}"},
    {ENG_GRAMMAR_REGEX, "(.*(foo|bar|baz).*){2,6}&?"},
    {ENG_GRAMMAR_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\","
                         "\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^(a|bc)*d?$\"},"
                         "\"b\":{\"multipleOf\":7},\"c\":{\"enum\":[\"x\",\"xy\",\"xyz\",null]}},"
                         "\"required\":[\"a\"]}}"},
    {ENG_GRAMMAR_GBNF, "root ::= e\ne ::= e \"+\" e | e \"*\" e | \"(\" e \")\" | [0-9]+"},
};

/* An id of the mask that is not an end of text; UINT32_MAX: there is none. */
static uint32_t draw(const uint32_t *mask, size_t n_vocab)
{
    uint32_t chosen = UINT32_MAX, n = 0, most = 1 + rnd(6);
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (!(mask[id >> 5] >> (id & 31) & 1) || eng_vocab_is_eog(v, id)) continue;
        if (eng_vocab_piece(v, id, false).n > most && n) continue;
        if (!rnd(++n)) chosen = id;
    }
    return chosen;
}

static struct eng_guide *guide_of(struct eng_grammar *g, uint64_t max_tokens)
{
    struct eng_guide_in in = {.grammar = g,
                              .vocab = v,
                              .n = 1,
                              .max_tokens = max_tokens,
                              .max_reasoning = UINT64_MAX,
                              .max_ns = 60000000000u};
    struct eng_guide *guide;
    assert_int_equal(eng_guide_new(&in, &guide), 0);
    return guide;
}

/* How often the time was too short. */
static unsigned mask_in_pieces(struct eng_guide *g, const uint32_t *drafts, uint32_t n,
                               uint32_t *mask, size_t n_words)
{
    unsigned late = 0;
    for (uint64_t ns = 1 + rnd(4000);; ns = rnd(3) ? 2 * ns : UINT64_MAX) {
        memset(mask, 0, n_words * sizeof *mask);
        if (eng_guide_mask(g, 0, drafts, n, ns, mask) != ENG_NO_TIME) return late;
        late++;
    }
}

static unsigned walk(struct eng_grammar *g, uint64_t max_tokens)
{
    size_t n_vocab = eng_vocab_size(v), n_words = (n_vocab + 31) / 32;
    uint32_t *a = cn_calloc(2 * n_words, sizeof *a), *b = a + n_words, id;
    struct eng_guide *hurried = guide_of(g, max_tokens), *calm = guide_of(g, max_tokens);
    const uint32_t *forced;
    struct cn_error err = {0};
    unsigned late = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        late += mask_in_pieces(hurried, NULL, 0, a, n_words);
        memset(b, 0, n_words * sizeof *b);
        eng_guide_mask(calm, 0, NULL, 0, UINT64_MAX, b);
        assert_memory_equal(a, b, n_words * sizeof *a);
        if ((id = draw(a, n_vocab)) == UINT32_MAX) break;
        late += mask_in_pieces(hurried, &id, 1, a, n_words);
        memset(b, 0, n_words * sizeof *b);
        eng_guide_mask(calm, 0, &id, 1, UINT64_MAX, b);
        assert_memory_equal(a, b, n_words * sizeof *a);
        eng_guide_put(calm, 0, id, &forced);
        eng_guide_put(hurried, 0, id, &forced);
    }
    assert_int_equal(eng_guide_error(calm, 0, &err), 0);
    if (eng_guide_error(hurried, 0, &err)) fail_msg("%s", err.message);
    eng_guide_free(hurried);
    eng_guide_free(calm);
    free(a);
    return late;
}

static void test_masks_in_little_time(void **state)
{
    unsigned late = 0;
    if (!v) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(grammars); i++) {
        struct eng_grammar_in in = {.kind = grammars[i].kind,
                                    .text = grammars[i].text,
                                    .n = strlen(grammars[i].text),
                                    .vocab = v};
        for (int run = 0; run < RUNS; run++) {
            struct eng_grammar *g; /* compiled anew: no masks are kept */
            struct cn_error err;
            if (eng_grammar_compile(&in, &g, &err)) fail_msg("%s", err.message);
            late += walk(g, run & 1 ? UINT64_MAX : 60 + rnd(40));
            eng_grammar_unref(g);
        }
    }
    printf("%u times too little time\n", late);
    assert_true(late > 100);
}

/* Memory is there for each choice from the beginning on, and goes when the choice ends. */
static void test_memory(void **state)
{
    enum { N = 3 };
    const struct cn_share all = {1, true};
    const uint64_t first = eng_guide_bytes(v, N, true), budget = 4 * first;
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_REGEX, .text = "a{1,900}b", .n = 9, .vocab = v};
    struct eng_guide_in guide = {.vocab = v, .n = N, .max_tokens = 20};
    struct cn_budget *b;
    struct eng_guide *g;
    struct cn_error err;
    const uint32_t *forced;
    if (!v) skip();
    assert_int_equal(cn_budget_new(budget, &all, 1, &b), 0);
    struct cn_account *a = guide.account = cn_budget_account(b, 0);
    if (eng_grammar_compile(&in, &guide.grammar, &err)) fail_msg("%s", err.message);

    assert_int_equal(cn_account_take(a, budget - first + 1), 0);
    assert_int_equal(eng_guide_new(&guide, &g), CN_EHELD); /* all of it, or nothing */
    assert_int_equal(cn_account_held(a), budget - first + 1);
    cn_account_give(a, budget - first + 1);

    size_t n_words = (eng_vocab_size(v) + 31) / 32;
    uint32_t *mask = cn_calloc(n_words, sizeof *mask), id = (uint32_t)eng_vocab_find(v, "a", 1);
    assert_int_equal(eng_guide_new(&guide, &g), 0);
    assert_int_equal(cn_account_held(a), first);
    for (int i = 0; i < 18; i++) {
        memset(mask, 0, n_words * sizeof *mask);
        assert_int_equal(eng_guide_mask(g, 1, NULL, 0, UINT64_MAX, mask), ENG_SOME_IDS);
        assert_true(mask[id >> 5] >> (id & 31) & 1);
        eng_guide_put(g, 1, id, &forced);
    }
    assert_false(eng_guide_hurried(g, 1));
    memset(mask, 0, n_words * sizeof *mask);
    assert_int_equal(eng_guide_mask(g, 1, NULL, 0, UINT64_MAX, mask), ENG_SOME_IDS);
    assert_false(mask[id >> 5] >> (id & 31) & 1); /* a b has to come now */
    uint64_t held = cn_account_held(a);
    assert_in_range(held, first, budget);
    eng_guide_end(g, 1);
    assert_in_range(held - cn_account_held(a), 1 << 19, budget);
    assert_true(eng_guide_hurried(g, 1));
    assert_false(eng_guide_hurried(g, 0));
    eng_guide_free(g);
    assert_int_equal(cn_account_held(a), 0);
    eng_grammar_unref(guide.grammar);
    cn_budget_free(b);
    free(mask);
}

static struct eng_grammar *grammar_of(enum eng_grammar_kind kind, const char *text)
{
    struct eng_grammar_in in = {.kind = kind, .text = text, .n = strlen(text), .vocab = v};
    struct eng_grammar *g;
    struct cn_error err;
    if (eng_grammar_compile(&in, &g, &err)) fail_msg("%s", err.message);
    return g;
}

/* A put that has no time fails the answer, whatever time the masks behind it have. */
static void test_a_put_without_time(void **state)
{
    if (!v) skip();
    struct eng_grammar *g = grammar_of(ENG_GRAMMAR_REGEX, "((a|b)*a(a|b){14}|(b|c)*b(b|c){14})+");
    struct eng_guide_in in = {
        .grammar = g, .vocab = v, .n = 1, .max_tokens = UINT64_MAX, .max_ns = 60000000000u};
    size_t n_words = (eng_vocab_size(v) + 31) / 32;
    uint32_t *mask = cn_calloc(n_words, sizeof *mask), id;
    const uint32_t *forced;
    struct eng_guide *guide;
    struct cn_error err = {0};
    assert_int_equal(eng_guide_new(&in, &guide), 0);
    eng_guide_stop(guide); /* no work that looks at the clock is done from now on */
    for (int i = 0; i < 400 && !eng_guide_error(guide, 0, &err); i++) {
        id = (uint32_t)eng_vocab_find(v, i % 3 ? "ab" : "bb", 2);
        eng_guide_put(guide, 0, id, &forced);
    }
    assert_int_equal(eng_guide_error(guide, 0, &err), CN_ELIMIT);
    assert_int_equal(eng_guide_mask(guide, 0, NULL, 0, 1000, mask), ENG_SOME_IDS);
    for (size_t i = 0; i < n_words; i++)
        assert_int_equal(mask[i], 0);
    assert_int_equal(eng_guide_error(guide, 0, &err), CN_ELIMIT);
    assert_non_null(strstr(err.message, "limits.mask_ms"));
    free(mask);
    eng_guide_free(guide);
    eng_grammar_unref(g);
}

/* Puts `text` byte by byte, after masks with drafts that do not come true where `drafts` says so.
 */
static bool hurried(const char *regex, const char *text, uint64_t max_tokens, uint32_t drafts)
{
    struct eng_grammar *g = grammar_of(ENG_GRAMMAR_REGEX, regex);
    struct eng_guide *guide = guide_of(g, UINT64_MAX);
    size_t n_words = (eng_vocab_size(v) + 31) / 32;
    uint32_t *mask = cn_calloc(n_words, sizeof *mask), wrong[8];
    const uint32_t *forced;
    eng_guide_limit(guide, max_tokens);
    for (uint32_t i = 0; i < 8; i++)
        wrong[i] = (uint32_t)eng_vocab_find(v, "a", 1);
    for (size_t i = 0; i <= strlen(text); i++) {
        for (uint32_t k = 0; k <= drafts; k++) {
            memset(mask, 0, n_words * sizeof *mask);
            eng_guide_mask(guide, 0, wrong, k, UINT64_MAX, mask);
        }
        if (text[i]) eng_guide_put(guide, 0, (uint32_t)eng_vocab_find(v, text + i, 1), &forced);
    }
    bool is = eng_guide_hurried(guide, 0);
    free(mask);
    eng_guide_free(guide);
    eng_grammar_unref(g);
    return is;
}

static void test_closed_early(void **state)
{
    if (!v) skip();
    for (uint32_t drafts = 0; drafts <= 5; drafts += 5) {
        assert_false(hurried("a{1,900}b", "ab", 8, drafts));
        assert_true(hurried("a{1,900}b", "aaaaaab", 8, drafts));
        assert_true(hurried("a+", "aaaaaaa", 8, drafts)); /* its length is the limit's */
        assert_false(hurried("a+", "aaaa", 8, drafts));
        assert_false(hurried("a{7}", "aaaaaaa", 8, drafts));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_in_little_time), cmocka_unit_test(test_a_put_without_time),
        cmocka_unit_test(test_closed_early), cmocka_unit_test(test_memory)};
    v = vocab_here() ? vocab_open("llama-bpe") : NULL;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eng_vocab_free(v);
    return failed;
}
