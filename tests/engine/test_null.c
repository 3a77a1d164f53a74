/* The null model: what its line of text may say, its vocabulary, and its logits against the formula
 * computed here, in any chunks. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "engine/gguf.h"

enum { END = 257, ANSWERS = 338 };

static uint32_t expected(uint32_t token, uint32_t pos, uint32_t vocab, uint32_t answer)
{
    if (answer && (pos + 1) % answer == 0) return END;
    uint32_t h = token * 0x9e3779b1u + pos * 0x85ebca77u;
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    return ANSWERS + (h ^ (h >> 12)) % (vocab - ANSWERS);
}

static void check_logits(const char *text, uint32_t vocab, uint32_t answer, size_t chunk,
                         uint32_t threads)
{
    enum { N = 300 };
    struct golden g;
    uint32_t ids[N];
    assert_int_equal(golden_open(&g, text, KR_ISA_AUTO, threads, 512, KR_F16), 0);
    assert_int_equal(g.n_vocab, vocab);
    float *logits = malloc((size_t)N * vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = i * 7919 % vocab;
    golden_feed(&g, ids, N, chunk, 0, logits);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t want = expected(ids[i], i, vocab, answer);
        for (uint32_t k = 0; k < vocab; k++)
            if (logits[(size_t)i * vocab + k] != (k == want ? 32.0f : 0.0f))
                fail_msg("%s: position %u: logit %u is %g, the peak is at %u", text, i, k,
                         (double)logits[(size_t)i * vocab + k], want);
    }
    free(logits);
    golden_close(&g);
}

static void test_logits(void **state)
{
    check_logits("null", 1024, 0, 256, 1);
    check_logits("null:", 1024, 0, 7, 2);
    check_logits("null:vocab=512,layers=3,kv_heads=2,head_dim=64", 512, 0, 1, 1);
    check_logits("null:answer=16,vocab=40000", 40000, 16, 100, 2);
}

static void test_memory(void **state)
{
    struct golden g;
    assert_int_equal(
        golden_open(&g, "null:layers=5,kv_heads=3,head_dim=64", KR_ISA_AUTO, 1, 512, KR_F16), 0);
    const struct kr_exec_info *x = kr_exec_info(g.exec);
    assert_int_equal(x->n_groups, 1);
    /* keys and values, 2 bytes each */
    assert_int_equal(x->groups[0].block_bytes, GOLDEN_BLOCK_TOKENS * 5 * 3 * 64 * 2 * 2);
    golden_close(&g);
}

static void test_fingerprint(void **state)
{
    static const char *const texts[] = {"null:", "null:layers=2", "null:vocab=2000",
                                        "null:answer=9"};
    char prints[CN_ARRAY_LEN(texts)][40];
    for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++) {
        struct golden g;
        for (int again = 0; again < 2; again++) {
            assert_int_equal(golden_open(&g, texts[i], KR_ISA_AUTO, 1, 512, KR_F16), 0);
            const char *print = eng_model_info(g.model)->fingerprint;
            if (again) assert_string_equal(print, prints[i]);
            memcpy(prints[i], print, sizeof prints[i]);
            golden_close(&g);
        }
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(prints[i], prints[j]);
    }
}

/* A word alone is one token: the merges lead there. */
static void check_word(const struct eng_vocab *v, uint32_t id, struct eng_str word)
{
    struct eng_ids ids = {0};
    assert_int_equal(eng_tokenize(v, word.p, word.n, NULL, 0, 0, &ids, NULL), 0);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.v[0], id);
    eng_ids_fini(&ids);
}

/* Every token has a text of its own, those of answers are words in ASCII, and any text comes
 * back. */
static void check_vocabulary(const char *text, size_t vocab)
{
    struct eng_gguf *g;
    struct eng_vocab *v;
    struct eng_template *t;
    struct cn_error err;
    if (eng_gguf_open(text, &g, &err)) fail_msg("%s", err.message);
    if (eng_gguf_vocab(g, &v, &err)) fail_msg("%s", err.message);
    if (eng_gguf_template(g, &t, &err)) fail_msg("%s", err.message);
    assert_non_null(t);
    assert_int_equal(eng_vocab_size(v), vocab);
    assert_true(eng_vocab_is_eog(v, END));
    for (uint32_t id = ANSWERS; id < vocab; id++) {
        struct eng_str word = eng_vocab_piece(v, id, false);
        assert_true(word.n >= 3 && word.p[0] == ' ');
        for (size_t i = 1; i < word.n; i++)
            assert_true(word.p[i] >= 'a' && word.p[i] <= 'z');
        if (id % 97 == 0) check_word(v, id, word);
    }
    eng_template_free(t);
    eng_vocab_free(v);
    eng_gguf_close(g);
}

static void test_vocabulary(void **state)
{
    check_vocabulary("null:vocab=512", 512);
    check_vocabulary("null:vocab=20000", 20000);
    check_vocabulary("null:vocab=1048576", 1048576);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"null:layer=2", CN_EINVAL, "no parameter \"layer\""},
        {"null:layers", CN_EINVAL, "no value (NAME=VALUE) for \"layers\""},
        {"null:layers=1,layers=1", CN_EINVAL, "twice the parameter \"layers\""},
        {"null:script=", CN_EINVAL, "no value (NAME=VALUE) for \"script\""},
        {"null:script", CN_EINVAL, "no value (NAME=VALUE) for \"script\""},
        {"null:script=/none,script=/none", CN_EINVAL, "twice the parameter \"script\""},
        {"null:script=/none,vocab=9", CN_ERANGE, "vocab=9"},
        {"null:script=/none", CN_EIO, "the script: No such file"},
        {"null:layers=1,", CN_EINVAL, "no parameter \"\""},
        {"null:,layers=1", CN_EINVAL, "no parameter \"\""},
        {"null:=1", CN_EINVAL, "no parameter \"\""},
        {"null:layers=0", CN_ERANGE, "layers=0: it must be a number from 1 to 2048"},
        {"null:layers=", CN_ERANGE, "layers="},
        {"null:layers=-1", CN_ERANGE, "layers=-1"},
        {"null:layers=+1", CN_ERANGE, "layers=+1"},
        {"null:layers= 1", CN_ERANGE, "layers= 1"},
        {"null:layers=1x", CN_ERANGE, "layers=1x"},
        {"null:layers=2049", CN_ERANGE, "2048"},
        {"null:layers=18446744073709551617", CN_ERANGE, "2048"},
        {"null:layers=99999999999999999999999999999999999999999999999999999999", CN_ERANGE, "2048"},
        {"null:vocab=511", CN_ERANGE, "vocab=511"},
        {"null:vocab=1048577", CN_ERANGE, "1048576"},
        {"null:head_dim=33", CN_ERANGE, "even"},
        {"null:kv_heads=0", CN_ERANGE, "kv_heads=0"},
        {"null:context=15", CN_ERANGE, "context=15"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct eng_gguf *g;
        struct cn_error err = {0};
        int rc = eng_gguf_open(cases[i].text, &g, &err);
        if (rc != cases[i].code || !strstr(err.message, cases[i].says))
            fail_msg("%s: %d \"%s\"", cases[i].text, rc, err.message);
        assert_string_equal(err.param, "model");
    }
}

/* What is not the null model's name is a file's. */
static void test_names(void **state)
{
    static const char *const files[] = {"./null", "nullx", "nul", "./null:layers=1", "nulls:"};
    for (size_t i = 0; i < CN_ARRAY_LEN(files); i++) {
        struct eng_gguf *g;
        struct cn_error err = {0};
        assert_int_equal(eng_gguf_open(files[i], &g, &err), CN_ENOENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
