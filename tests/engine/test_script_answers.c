/* The answers of a null model with a script: in any chunks, from any place, after any tokens that
 * spell the same bytes, and after a draw of another token. Truth: the script's text, and the rules
 * of docs/NULL.md. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "engine/script.h"

static char path[] = "/tmp/conifer-answers-XXXXXX";

/* Opens a model with this script; NULL: the committed one. */
static void open_script(struct golden *g, const char *text, uint32_t threads)
{
    char name[256];
    snprintf(name, sizeof name, "null:vocab=1200,layers=2,script=%s",
             text ? path : CONIFER_SOURCE_ROOT "/tests/engine/fixtures/script.txt");
    if (text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    assert_int_equal(golden_open(g, name, KR_ISA_AUTO, threads, 4096, KR_F16), 0);
}

static void tokenize(const struct golden *g, const char *text, size_t n, struct eng_ids *ids)
{
    ids->n = 0;
    assert_int_equal(
        eng_tokenize(eng_model_vocab(g->model), text, n, NULL, 0, ENG_TOKENIZE_PARSE, ids, NULL),
        0);
}

static void feed(struct golden *g, const char *text, size_t chunk, float *logits)
{
    struct eng_ids ids = {0};
    tokenize(g, text, strlen(text), &ids);
    assert_true(ids.n > 0);
    golden_feed(g, ids.v, ids.n, chunk, g->pos + (uint32_t)ids.n - 1, logits);
    eng_ids_fini(&ids);
}

/* Greedy decoding to the end. Returns the text with marks, in a static buffer. */
static const char *answer(struct golden *g, float *logits)
{
    static char out[8192];
    const struct eng_vocab *v = eng_model_vocab(g->model);
    size_t n = 0;
    for (;;) {
        uint32_t id = golden_argmax(logits, g->n_vocab);
        if (eng_vocab_is_eog(v, id)) break;
        struct eng_str piece = eng_vocab_piece(v, id, true);
        assert_true(n + piece.n < sizeof out);
        memcpy(out + n, piece.p, piece.n);
        n += piece.n;
        golden_feed(g, &id, 1, 1, g->pos, logits);
    }
    out[n] = 0;
    return out;
}

static const char *const fixture_answers[] = {
    "[The script has no answer to this conversation.]",
    "<think>\nThe user asks for the weather: I need the function for it. The city is "
    "Paris.\n</think>"
    "\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
    "[1, 2, "
    "3], \"unit\": \"°C\"}}\n</tool_call>",
    "It is sunny in Paris, 21 °C.\n\nA list of what to do:\n1. go to the river\n2. read a book; "
    "読書、本",
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"a <tool_call> is no call\", "
    "\"tags\": [\"old\", \"art\"]}}\n</tool_call>",
};

static void test_answers(void **state)
{
    static const size_t chunks[] = {256, 7, 1};
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct golden g;
        open_script(&g, NULL, threads);
        float *logits = malloc(g.n_vocab * sizeof *logits);
        assert_non_null(logits);
        for (size_t i = 0; i < CN_ARRAY_LEN(fixture_answers) * CN_ARRAY_LEN(chunks); i++) {
            size_t which = i % CN_ARRAY_LEN(fixture_answers);
            char prompt[256];
            snprintf(prompt, sizeof prompt, "<|script:4|>said before<|im_start|>%s<|script:%zu|>",
                     "assistant\nThe way of a request, with <tool_call> in it, it reads ", which);
            golden_restart(&g);
            feed(&g, prompt, chunks[i % CN_ARRAY_LEN(chunks)], logits);
            assert_string_equal(answer(&g, logits), fixture_answers[which]);
        }
        golden_restart(&g);
        feed(&g, "<|script:5|>", 1, logits);
        assert_string_equal(answer(&g, logits), "");
        golden_restart(&g);
        feed(&g, "<|script:6|>", 1, logits);
        assert_string_equal(answer(&g, logits), "a");
        free(logits);
        golden_close(&g);
    }
}

/* Each mark is one token; a text that spells a mark across a `break` is not. */
static void test_marks(void **state)
{
    struct golden g;
    open_script(&g, NULL, 1);
    const struct eng_vocab *v = eng_model_vocab(g.model);
    int64_t call = eng_vocab_find(v, "<tool_call>", 11), note = eng_vocab_find(v, "<|note|>", 8);
    float *logits = malloc(g.n_vocab * sizeof *logits);
    size_t calls = 0, notes = 0;
    assert_non_null(logits);
    assert_true(call > 0 && note > 0 && eng_vocab_is_control(v, (uint32_t)note) &&
                !eng_vocab_is_control(v, (uint32_t)call));
    for (int which = 3; which <= 4; which++) {
        golden_restart(&g);
        feed(&g, which == 3 ? "<|script:3|>" : "<|script:4|>", 1, logits);
        for (uint32_t id; !eng_vocab_is_eog(v, id = golden_argmax(logits, g.n_vocab));) {
            calls += id == (uint32_t)call;
            notes += id == (uint32_t)note;
            golden_feed(&g, &id, 1, 1, g.pos, logits);
        }
    }
    assert_true(calls == 2 && notes == 1);
    free(logits);
    golden_close(&g);
}

static uint64_t seed = 7;

/* Feeds a text in random pieces, each tokenised on its own. Marks stay whole. */
static void feed_in_pieces(struct golden *g, const char *text, size_t n, float *logits)
{
    struct eng_ids ids = {0};
    while (n) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t most = seed >> 40 & 1 ? 1 : 12, now = 1 + (seed >> 33) % most;
        size_t before = strcspn(text, "<");
        now = before ? CN_MIN(now, before) : strcspn(text, ">") + 1;
        now = CN_MIN(now, n);
        tokenize(g, text, now, &ids);
        golden_feed(g, ids.v, ids.n, 64, g->pos + (uint32_t)ids.n - 1, logits);
        text += now;
        n -= now;
    }
    eng_ids_fini(&ids);
}

/* The answer continues from any place, whatever tokens the bytes before it came in. */
static void test_any_tokens(void **state)
{
    struct golden g;
    open_script(&g, NULL, 1);
    float *logits = malloc(g.n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (size_t which = 1; which <= 2; which++) {
        const char *text = fixture_answers[which], *mark = NULL;
        char begin[32];
        snprintf(begin, sizeof begin, "<|script:%zu|>", which);
        for (size_t n = 1; n < strlen(text); n++) {
            if (text[n - 1] == '<') mark = text + n;
            if (mark && !memchr(mark, '>', (size_t)(text + n - mark))) continue; /* inside a mark */
            golden_restart(&g);
            feed(&g, begin, 1, logits);
            feed_in_pieces(&g, text, n, logits);
            assert_string_equal(answer(&g, logits), text + n);
        }
    }
    free(logits);
    golden_close(&g);
}

/* The gap to the second token is too wide for any sampling parameter. */
static void test_peak(void **state)
{
    struct golden g;
    open_script(&g, NULL, 1);
    const struct eng_vocab *v = eng_model_vocab(g.model);
    float *logits = malloc(g.n_vocab * sizeof *logits);
    assert_non_null(logits);
    feed(&g, "<|script:4|>", 1, logits);
    for (uint32_t id = 0; !eng_vocab_is_eog(v, id);) {
        float second = 0;
        id = golden_argmax(logits, g.n_vocab);
        for (uint32_t i = 0; i < g.n_vocab; i++)
            if (i != id) second = CN_MAX(second, logits[i]);
        assert_true(logits[id] == 4096 && second <= 512);
        golden_feed(&g, &id, 1, 1, g.pos, logits);
    }
    free(logits);
    golden_close(&g);
}

/* Greedy decoding under a mask that allows the text `only` and then the end. Returns the text, in a
 * static buffer. */
static const char *answer_masked(struct golden *g, float *logits, const char *only)
{
    static char out[1024];
    const struct eng_vocab *v = eng_model_vocab(g->model);
    size_t n = 0, len = strlen(only);
    for (;;) {
        int64_t best = -1;
        for (uint32_t id = 0; id < g->n_vocab; id++) {
            struct eng_str p = eng_vocab_piece(v, id, true);
            bool end = eng_vocab_is_eog(v, id);
            bool may = end ? n == len : p.n && p.n <= len - n && !memcmp(only + n, p.p, p.n);
            if (may && (best < 0 || logits[id] > logits[best])) best = id;
        }
        assert_true(best >= 0);
        if (eng_vocab_is_eog(v, (uint32_t)best)) break;
        struct eng_str p = eng_vocab_piece(v, (uint32_t)best, true);
        memcpy(out + n, p.p, p.n);
        n += p.n;
        golden_feed(g, &(uint32_t){(uint32_t)best}, 1, 1, g->pos, logits);
    }
    out[n] = 0;
    return out;
}

/* How the answer continues after tokens that differ from it. */
static void test_divergence(void **state)
{
    static const struct {
        const char *prompt, *text, *fed, *next;
    } cases[] = {
        /* the end of the prompt may be the beginning of the answer */
        {"", "<think>why</think>yes", "", "<think>why</think>yes"},
        {"<think>\n", "<think>\nwhy</think>yes", "", "why</think>yes"},
        {"<think>\n", "why</think>yes", "", "why</think>yes"},
        {"<think>\n\n</think>\n\n", "<think>\nwhy</think>\n\nyes", "", "yes"},
        {"<think>", "yes <think>", "", "yes <think>"}, /* a different mark */
        /* white space that is missing or added */
        {"", "{ \"a\" : 1 }", "{\"a\":1", " }"},
        {"", "{\"a\":1}", "{ \"a\" :  1 ", "}"},
        /* text that is missing, added or replaced */
        {"", "Sure: {\"a\": 1}", "{\"", "a\": 1}"},
        {"", "one two three", "one 2", "two three"},
        {"", "one two three four", "one three", " four"},
        {"", "one two", "xyz", "one two"},
        /* marks are found at any distance, text only nearby */
        {"", "0123456789 0123456789 0123456789 0123456789</think>yes", "01</think>", "yes"},
        {"", "0123456789 0123456789 0123456789 0123456789 x yes", "01x",
         "23456789 0123456789 0123456789 0123456789 x yes"},
        {"", "a<tool_call>b</tool_call>c", "<tool_call>b</tool_call>", "c"},
        {"", "one two", "one</think>", " two"}, /* only the other answer has this mark */
        {"", "abc", "abcabc", ""},              /* nothing comes after the end */
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct golden g;
        char text[512];
        snprintf(text, sizeof text, "=== answer\n%s\n=== answer\nanother one: xyz, 2 </think>\n",
                 cases[i].text);
        open_script(&g, text, 1);
        float *logits = malloc(g.n_vocab * sizeof *logits);
        assert_non_null(logits);
        snprintf(text, sizeof text, "<|script:1|>%s%s", cases[i].prompt, cases[i].fed);
        feed(&g, text, 3, logits);
        const char *got = answer(&g, logits);
        if (strcmp(got, cases[i].next)) fail_msg("case %zu: \"%s\"", i, got);
        free(logits);
        golden_close(&g);
    }
}

/* A mask that leaves only one text gets that text. */
static void test_masked(void **state)
{
    static const struct {
        const char *text, *only;
    } cases[] = {
        {"Sure! {\"a\": 1}", "{\"a\": 1}"},
        {"{ \"a\" : [ 1, 2 ] }", "{\"a\":[1,2]}"},
        {"{\"b\": 1}", "{\"a\": 22}"},
        {"no JSON at all", "[true, \"x\"]"},
        {"Let me see.\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
         "<tool_call>\n{\"name\": \"g\"}\n</tool_call>"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct golden g;
        char text[256];
        snprintf(text, sizeof text, "=== answer\n%s", cases[i].text);
        open_script(&g, text, 1);
        float *logits = malloc(g.n_vocab * sizeof *logits);
        assert_non_null(logits);
        feed(&g, "<|script:1|>", 1, logits);
        assert_string_equal(answer_masked(&g, logits, cases[i].only), cases[i].only);
        free(logits);
        golden_close(&g);
    }
}

/* The order of tokens that are not the script's: the end, then bytes that close JSON. */
static void test_rest(void **state)
{
    static const char order[] = "\"}]0";
    struct golden g;
    open_script(&g, "=== answer\nx", 1);
    const struct eng_vocab *v = eng_model_vocab(g.model);
    float *logits = malloc(g.n_vocab * sizeof *logits);
    assert_non_null(logits);
    feed(&g, "<|script:1|>x", 1, logits);
    uint32_t end = golden_argmax(logits, g.n_vocab);
    assert_true(eng_vocab_is_eog(v, end));
    logits[end] = 0;
    for (size_t i = 0; i < sizeof order - 1; i++) {
        uint32_t id = golden_argmax(logits, g.n_vocab);
        assert_int_equal(id, order[i]); /* ids of bytes are the bytes */
        assert_true(logits[id] > 0);
        logits[id] = 0;
    }
    for (uint32_t id = 0; id < g.n_vocab; id++)
        assert_true(logits[id] == 0);
    free(logits);
    golden_close(&g);
}

/* Without an answer's token the model says made-up words, like any null model. */
static void test_no_mark(void **state)
{
    struct golden g;
    open_script(&g, NULL, 1);
    const struct eng_vocab *v = eng_model_vocab(g.model);
    float *logits = malloc(g.n_vocab * sizeof *logits);
    assert_non_null(logits);
    feed(&g, "<|im_start|>user\nweather<|im_end|>\n<|im_start|>assistant\n", 5, logits);
    for (int i = 0; i < 50; i++) {
        uint32_t id = golden_argmax(logits, g.n_vocab);
        struct eng_str piece = eng_vocab_piece(v, id, false);
        assert_true(logits[id] == 32 && piece.n >= 3 && *piece.p == ' ');
        golden_feed(&g, &id, 1, 1, g.pos, logits);
    }
    free(logits);
    golden_close(&g);
}

/* Client text never becomes an answer's token or a control token, but may become a mark. */
static void test_client_text(void **state)
{
    struct golden g;
    open_script(&g, NULL, 1);
    const struct eng_vocab *v = eng_model_vocab(g.model);
    static const char text[] = "<|script:1|><|im_end|><|note|><tool_call>";
    struct eng_span span = {sizeof text - 1, false};
    struct eng_ids ids = {0};
    assert_int_equal(
        eng_tokenize(v, text, sizeof text - 1, &span, 1, ENG_TOKENIZE_PARSE, &ids, NULL), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_true(!eng_vocab_is_control(v, ids.v[i]));
    assert_int_equal(ids.v[ids.n - 1], eng_vocab_find(v, "<tool_call>", 11));
    eng_ids_fini(&ids);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),     cmocka_unit_test(test_marks),
        cmocka_unit_test(test_any_tokens),  cmocka_unit_test(test_peak),
        cmocka_unit_test(test_divergence),  cmocka_unit_test(test_masked),
        cmocka_unit_test(test_rest),        cmocka_unit_test(test_no_mark),
        cmocka_unit_test(test_client_text),
    };
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
