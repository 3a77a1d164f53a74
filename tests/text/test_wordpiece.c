/* WordPiece against BERT's rules, worked out by hand: cleaning, case, accents, punctuation, CJK,
 * longest match, unknown words. Real sentences are in tests/engine/test_vectors.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/text.h"

#define M "\xE2\x96\x81"
enum { PAD, UNK, CLS, SEP, UN, WANT, ED, RUN, ING, COMMA, NI, HAO, CAFE, BANG };
static const char *const tokens[] = {
    "[PAD]", "[UNK]", "[CLS]", "[SEP]",          M "un",           "want",   "ed",
    M "run", "ning",  M ",",   M "\xE4\xBD\xA0", M "\xE5\xA5\xBD", M "cafe", M "!"};

static struct eng_vocab *vocab(int lowercase)
{
    struct eng_str texts[CN_ARRAY_LEN(tokens)];
    int32_t types[CN_ARRAY_LEN(tokens)];
    struct eng_vocab *v;
    struct cn_error err;
    for (size_t i = 0; i < CN_ARRAY_LEN(tokens); i++) {
        texts[i] = (struct eng_str){tokens[i], strlen(tokens[i])};
        types[i] = i <= SEP ? ENG_TOKEN_CONTROL : ENG_TOKEN_NORMAL;
    }
    struct eng_vocab_spec spec = {.model = "bert",
                                  .n_tokens = CN_ARRAY_LEN(tokens),
                                  .tokens = texts,
                                  .types = types,
                                  .bos = CLS,
                                  .eos = -1,
                                  .eot = -1,
                                  .eom = -1,
                                  .unk = UNK,
                                  .sep = SEP,
                                  .pad = PAD,
                                  .fim_pre = -1,
                                  .fim_suf = -1,
                                  .fim_mid = -1,
                                  .fim_pad = -1,
                                  .fim_rep = -1,
                                  .fim_sep = -1,
                                  .add_bos = -1,
                                  .add_eos = -1,
                                  .add_space_prefix = -1,
                                  .lowercase = lowercase};
    assert_int_equal(eng_vocab_new(&spec, &v, &err), 0);
    return v;
}

static void expect(const struct eng_vocab *v, const char *text, size_t n, const uint32_t *want,
                   size_t n_want)
{
    struct eng_ids ids = {0};
    struct cn_error err;
    assert_int_equal(eng_tokenize(v, text, n, NULL, 0, ENG_TOKENIZE_SPECIAL, &ids, &err), 0);
    assert_int_equal(ids.n, n_want + 2);
    assert_int_equal(ids.v[0], CLS);
    assert_int_equal(ids.v[ids.n - 1], SEP);
    if (n_want) assert_memory_equal(ids.v + 1, want, n_want * sizeof(*want));
    eng_ids_fini(&ids);
}
#define EXPECT(v, text, ...)                                                                       \
    do {                                                                                           \
        const uint32_t want_[] = {__VA_ARGS__};                                                    \
        expect(v, text, sizeof(text) - 1, want_, CN_ARRAY_LEN(want_));                             \
    } while (0)

static void test_words(void **state)
{
    struct eng_vocab *v = vocab(-1);
    expect(v, "", 0, NULL, 0);
    expect(v, " \t\r\n\xC2\xA0", 6, NULL, 0);
    EXPECT(v, "UNwantED", UN, WANT, ED);
    EXPECT(v, "unwanted,running", UN, WANT, ED, COMMA, RUN, ING);
    EXPECT(v, "want", UNK); /* no beginning of a word */
    EXPECT(v, "unknown running", UNK, RUN, ING);
    EXPECT(v, "Caf\xC3\xA9!", CAFE, BANG); /* composed */
    EXPECT(v, "CAFE\xCC\x81", CAFE);       /* e and its accent apart */
    EXPECT(v, "\xE4\xBD\xA0\xE5\xA5\xBD", NI, HAO);
    EXPECT(v, "un\x01\xE2\x80\x8Bwant", UN, WANT); /* a control, a zero-width space: dropped */
    EXPECT(v, "un\xFFwant", UN, WANT);             /* no UTF-8 */
    EXPECT(v, "[SEP]un", UNK, UNK, UNK, UN);
    EXPECT(v, "$", UNK);
    eng_vocab_free(v);
    v = vocab(0);
    EXPECT(v, "UNwanted unwanted caf\xC3\xA9", UNK, UN, WANT, ED, UNK);
    eng_vocab_free(v);
}

static void test_long_words(void **state)
{
    struct eng_vocab *v = vocab(1);
    char text[2 * 1000 * 1000];
    for (size_t n = 98; n <= 103; n++) { /* "run" and "un" are no continuations: unknown anyway */
        memset(text, 'a', n);
        EXPECT(v, "un", UN);
        expect(v, text, n, (const uint32_t[]){UNK}, 1);
    }
    for (size_t i = 0; i < 96; i += 4) /* un + 24 times want: 98 characters */
        memcpy(text + 2 + i, "want", 4);
    memcpy(text, "un", 2);
    uint32_t want[25] = {UN};
    for (size_t i = 1; i < 25; i++)
        want[i] = WANT;
    expect(v, text, 98, want, 25);
    memcpy(text + 98, "wantwant", 8);
    expect(v, text, 102, (const uint32_t[]){UNK}, 1); /* 102 characters */
    memset(text, 'u', sizeof(text));
    expect(v, text, sizeof(text), (const uint32_t[]){UNK}, 1);
    eng_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words),
                                       cmocka_unit_test(test_long_words)};
    return cmocka_run_group_tests_name("wordpiece", tests, NULL, NULL);
}
