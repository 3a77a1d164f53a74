/* Tokenising takes linear time on hostile input: runs of one class, alternations that invite
 * backtracking, invalid bytes, runs of special tokens. A text and its sixteenth part are timed; a
 * quadratic algorithm would need 256 times as long for the whole. */
#include "engine/text/vocab_impl.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <malloc.h>

#ifdef __SANITIZE_ADDRESS__
#define INSTRUMENTED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define INSTRUMENTED 1
#endif
#endif
#ifdef INSTRUMENTED /* some ten times slower: smaller texts, the same ratio */
enum { SPLIT_BYTES = 64 << 10, VOCAB_BYTES = 128 << 10 };
#else
enum { SPLIT_BYTES = 256 << 10, VOCAB_BYTES = 1 << 20 };
#endif
enum { TRIES = 20 };
static const uint64_t ms = 1000000;

static const char *const split_units[] = {
    " ",        "a",  "A",      "1",       "\n",     "\r",     " \n", "\u0301", "\xff",
    "\xf0\x9f", "'s", "aA",     "A\u0301", "\u4e2d", " a",     "  a", "-",      "/\n",
    "\u00a0",   "1a", "\u3000", "0\u00b2", "\x7f",   "\u01c5", NULL,
};
static const char *const vocab_units[] = {
    " ", "a", "-", "1", "\n", "\u0301", "\xff", "\u2581", "abc", "</s", "<|eot_id|>", " a", NULL,
};

static char *text_of(const char *unit, size_t n)
{
    char *text = malloc(n);
    size_t len = strlen(unit);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
    return text;
}

static int count(void *arg, size_t start, size_t len)
{
    ++*(size_t *)arg;
    return 0;
}

struct job {
    const struct eng_pretok *pre;
    const struct eng_vocab *vocab;
};

/* Processor time of this thread: others on the machine do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t timed(const struct job *j, const char *text, size_t n)
{
    uint64_t start = cpu_ns();
    if (j->pre) {
        size_t pieces = 0;
        assert_int_equal(eng_pretok_split(j->pre, text, n, count, &pieces, NULL), 0);
    } else {
        struct eng_ids ids = {0};
        assert_int_equal(eng_tokenize(j->vocab, text, n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL),
                         0);
        eng_ids_fini(&ids);
    }
    return cpu_ns() - start;
}

static uint64_t limit(uint64_t small)
{
#ifdef INSTRUMENTED /* what is instrumented takes its own time: only a square is told */
    return 16 * 5 * small + 20 * ms;
#else
    return 16 * 3 * small + ms;
#endif
}

/* The least of up to TRIES tries, of either size by itself: processor time is only ever too long,
 * by what else runs on the core and its caches, and what the text costs is there in every try. With
 * all tries done, 528 texts take 0.9 to 2.1 times the sixteenth part's time a byte, some of it by
 * caches that the whole does not fit; a fifth more in the exponent would be 1.7 times as much
 * again. */
static void expect_linear(const struct job *j, const char *what)
{
    const size_t large_n = j->pre ? SPLIT_BYTES : VOCAB_BYTES, small_n = large_n / 16;
    uint64_t worst = 0;
    const char *which = "";
    const char *const *units = j->pre ? split_units : vocab_units;
    for (size_t u = 0; units[u]; u++) {
        char *text = text_of(units[u], large_n);
        uint64_t small = UINT64_MAX, large = UINT64_MAX;
        for (int i = 0; i < TRIES; i++) {
            small = CN_MIN(small, timed(j, text, small_n));
            large = CN_MIN(large, timed(j, text, large_n));
            if (large < limit(small)) break;
        }
        if (large > worst) {
            worst = large;
            which = units[u];
        }
        if (large >= limit(small) || large >= 5000 * ms) {
            fprintf(stderr, "%s: \"%s\": %.1f ms for %zu bytes, %.1f ms for %zu\n", what, units[u],
                    (double)small / 1e6, small_n, (double)large / 1e6, large_n);
            fail();
        }
        free(text);
    }
    printf("%-24s worst %7.1f ms for %zu bytes of \"%s\"\n", what, (double)worst / 1e6, large_n,
           which[0] == '\n' ? "\\n" : which);
}

static void test_split(void **state)
{
    for (size_t k = 0; eng_pretok_kind(k); k++) {
        for (int jit = 0; jit < 2; jit++) {
            struct job j = {.pre = eng_pretok_by_kind(eng_pretok_kind(k), jit, false)};
            if (!jit && !eng_pretok_has_regex(j.pre)) { /* the same code as with JIT */
                eng_pretok_free((struct eng_pretok *)j.pre);
                continue;
            }
            char what[64];
            snprintf(what, sizeof what, "%s%s", eng_pretok_kind(k), jit ? "" : " (no JIT)");
            expect_linear(&j, what);
            eng_pretok_free((struct eng_pretok *)j.pre);
        }
    }
}

static void test_vocab(void **state)
{
    struct eng_vocab *v = vocab_open(*state);
    if (!v) skip();
    expect_linear(&(struct job){.vocab = v}, *state);
    eng_vocab_free(v);
}

/* Special tokens that are runs of one character, as Gemma has them for newlines. */
static void test_runs(void **state)
{
    struct eng_str tokens[256 + 3 * 64];
    int32_t types[CN_ARRAY_LEN(tokens)];
    static char text[256 + 3 * 64][72];
    size_t n = 0;
    for (unsigned b = 0; b < 256; b++, n++) {
        size_t len = cn_utf8_encode(eng_byte_char((uint8_t)b), text[n]);
        tokens[n] = (struct eng_str){text[n], len};
        types[n] = ENG_TOKEN_NORMAL;
    }
    for (int i = 0; i < 3 * 64; i++, n++) {
        memset(text[n], "\na<"[i % 3], sizeof text[n]);
        tokens[n] = (struct eng_str){text[n], 2 + (size_t)i / 3};
        types[n] = ENG_TOKEN_USER;
    }
    /* clang-format off */
    struct eng_vocab_spec spec = {
        .model = "gpt2", .pre = "gpt-2", .n_tokens = n, .tokens = tokens, .types = types,
        .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unk = -1, .fim_pad = -1, .fim_rep = -1,
        .fim_sep = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
    struct eng_vocab *v = NULL;
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    expect_linear(&(struct job){.vocab = v}, "runs of special tokens");
    eng_vocab_free(v);
}

int main(void)
{
    mallopt(M_PERTURB, 0); /* meson has memory filled, which takes more where there is more of it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_runs),
        {"gpt-2", test_vocab, NULL, NULL, "gpt-2"},
        {"llama-bpe", test_vocab, NULL, NULL, "llama-bpe"},
        {"llama-spm", test_vocab, NULL, NULL, "llama-spm"},
        {"gemma-4", test_vocab, NULL, NULL, "gemma-4"},
    };
    /* clang-format on */
    return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}
