/* Long texts ask whether to go on: often enough on every kind of text, and end where the answer is
 * no. CONIFER_GOING_BYTES: how long the texts are; the longest stretch of each is printed. */
#include "engine/text/text.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <malloc.h>

static const char *const vocabs[] = {"llama-spm", "llama-bpe", "gpt-2",        "phi-3",
                                     "qwen35",    "falcon",    "deepseek-llm", NULL};
/* clang-format off */
static const char *const units[] = {
    "a", "aB", " ", "\n", "1", "-", "\xff", "\u4e2d\u56fd", "</s>", "<|eot_id|>", "the cat sat. ",
    "<|eot_id|", "\u0301", NULL,
};
/* clang-format on */

/* Sanitized code takes seven milliseconds where the other takes three. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MOST_NS 30000000u
#else
#define MOST_NS 10000000u
#endif

struct watch {
    uint64_t last, longest;
    size_t calls, end_at; /* the call that says no; 0: none */
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool going(void *arg)
{
    struct watch *w = arg;
    uint64_t now = cpu_ns();
    w->longest = CN_MAX(w->longest, now - w->last);
    w->last = now;
    return !w->end_at || ++w->calls < w->end_at;
}

static char *text_of(const char *unit, size_t n)
{
    char *text = malloc(n);
    size_t len = strlen(unit);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
    return text;
}

static int run(const struct eng_vocab *v, const char *text, size_t n, struct watch *w, uint64_t *ns)
{
    struct eng_ids ids = {.keep_going = going, .arg = w};
    struct cn_error err = {0};
    uint64_t since = w->last = cpu_ns();
    int rc = eng_tokenize(v, text, n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, &err);
    *ns = cpu_ns() - since;
    assert_int_equal(rc, err.code);
    if (rc) assert_int_equal(ids.n, 0);
    eng_ids_fini(&ids);
    return rc;
}

static void each(void (*check)(const char *name, const struct eng_vocab *v, const char *unit,
                               const char *text, size_t n),
                 size_t n)
{
    for (size_t i = 0; vocabs[i]; i++) {
        struct eng_vocab *v = vocab_open(vocabs[i]);
        if (!v) skip();
        for (size_t j = 0; units[j]; j++) {
            char *text = text_of(units[j], n);
            check(vocabs[i], v, units[j], text, n);
            free(text);
        }
        eng_vocab_free(v);
    }
}

/* What work takes is asked for before, and given back; where it is refused the call ends with
 * that. */
struct purse { size_t has, held, most; };

static int pay(void *arg, size_t n)
{
    struct purse *p = arg;
    if (n > p->has - p->held) return CN_EHELD;
    p->held += n;
    p->most = CN_MAX(p->most, p->held);
    return 0;
}

static void get_back(void *arg, size_t n)
{
    struct purse *p = arg;
    assert_true(n <= p->held);
    p->held -= n;
}

static void check_paid(const char *name, const struct eng_vocab *v, const char *unit,
                       const char *text, size_t n)
{
    struct purse all = {.has = SIZE_MAX}, none = {.has = 0};
    struct eng_ids ids = {.take = pay, .give = get_back, .arg = &all};

    assert_int_equal(eng_tokenize(v, text, n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL), 0);
    assert_int_equal(all.held, 0);
    if (all.most > 192 * n + 65536) fail_msg("%s, %s: %zu bytes for %zu", name, unit, all.most, n);
    if (!strcmp(unit, "a") && strcmp(name, "llama-spm")) assert_true(all.most > 40 * n);
    ids.n = 0;
    ids.arg = &none;
    /* a little is kept with the vocabulary between calls, so that the second may need no more */
    int rc = eng_tokenize(v, text, n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL);
    assert_int_equal(rc, all.most > 1 << 20 ? CN_EHELD : rc);
    assert_true(rc == 0 || (rc == CN_EHELD && ids.n == 0));
    eng_ids_fini(&ids);
}

/* A stretch may be part of the whole for a scan or two over the text, which are fast. */
static void check_often(const char *name, const struct eng_vocab *v, const char *unit,
                        const char *text, size_t n)
{
    uint64_t ns, best = UINT64_MAX;
    for (int i = 0; i < 3 && best > MOST_NS; i++) { /* pages that come are the machine's */
        struct watch w = {0};
        assert_int_equal(run(v, text, n, &w, &ns), 0);
        best = CN_MIN(best, w.longest);
    }
    if (getenv("CONIFER_GOING_BYTES"))
        printf("%-14s %-14s %8.1f ms, longest stretch %6.2f ms\n", name, unit, (double)ns / 1e6,
               (double)best / 1e6);
    else
        assert_true(best < MOST_NS);
}

static void check_end(const char *name, const struct eng_vocab *v, const char *unit,
                      const char *text, size_t n)
{
    for (size_t at = 1; at <= 64; at *= 2) {
        struct watch w = {.end_at = at};
        uint64_t ns;
        int rc = run(v, text, n, &w, &ns);
        assert_true(rc == CN_ECANCELLED || (rc == 0 && w.calls < at));
    }
}

static void test_asks_often(void **state)
{
    const char *bytes = getenv("CONIFER_GOING_BYTES");
    each(check_often, bytes ? (size_t)atol(bytes) : 512 << 10);
}

static void test_ends(void **state)
{
    each(check_end, 256 << 10);
}

static void test_is_paid(void **state)
{
    each(check_paid, 256 << 10);
}

/* A short text is done before the first question. */
static void test_short(void **state)
{
    struct eng_vocab *v = vocab_open("llama-bpe");
    if (!v) skip();
    char *text = text_of("the cat sat. ", 4096);
    struct watch w = {.end_at = 1};
    uint64_t ns;
    assert_int_equal(run(v, text, 4096, &w, &ns), 0);
    assert_int_equal(w.calls, 0);
    free(text);
    eng_vocab_free(v);
}

int main(void)
{
    mallopt(M_PERTURB, 0); /* filling blocks takes longer than all else here */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asks_often),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_is_paid),
        cmocka_unit_test(test_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
