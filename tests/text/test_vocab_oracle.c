/* Ids of the oracle's vocabularies: every text of every .inp file gives the ids of its .out line.
 * The expected ids were made by another implementation, without special tokens. */
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The first N_REQUIRED are in the oracle; the others run where someone has put them beside. */
#define N_REQUIRED 7
static const char *const names[] = {
    "deepseek-llm", "falcon",         "gpt-2",   "llama-bpe", "llama-spm", "phi-3",  "qwen35",
    "command-r",    "deepseek-coder", "gemma-4", "mpt",       "qwen2",     "refact", "starcoder",
};

static void expect_ids(const struct eng_vocab *v, const char *name, const char *text, size_t n,
                       const char *line)
{
    struct eng_ids ids = {0};
    struct cn_error err = {0};
    assert_int_equal(eng_tokenize(v, text, n, NULL, 0, 0, &ids, &err), 0);
    char got[65536] = "", want[65536];
    size_t used = 0;
    for (size_t i = 0; i < ids.n; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%u", i ? " " : "", ids.v[i]);
    while (*line == ' ')
        line++;
    size_t len = strcspn(line, "\n");
    while (len > 0 && line[len - 1] == ' ')
        len--;
    snprintf(want, sizeof want, "%.*s", (int)len, line);
    if (strcmp(got, want)) fprintf(stderr, "%s: \"%.*s\"\n", name, (int)n, text);
    assert_string_equal(got, want);
    eng_ids_fini(&ids);
}

static void test_vocab(void **state)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    const char *name = *state;
    struct eng_vocab *v = vocab_open(name);
    if (!v) {
        bool required = false;
        for (size_t i = 0; i < N_REQUIRED; i++)
            required |= !strcmp(name, names[i]);
        if (required && vocab_here()) fail_msg("%s is missing", vocab_path(name, ""));
        skip();
    }
    size_t n_in, n_out, cases = 0;
    char *in = read_file(vocab_path(name, ".inp"), &n_in);
    char *out = read_file(vocab_path(name, ".out"), &n_out);
    assert_non_null(in);
    assert_non_null(out);
    const char *line = out, *text = in;
    while (text < in + n_in) {
        const char *end = strstr(text, separator);
        if (!end) end = in + n_in; /* some files lack the last separator */
        assert_true(line < out + n_out);
        expect_ids(v, name, text, (size_t)(end - text), line);
        line += strcspn(line, "\n");
        line += *line == '\n';
        cases++;
        if (end == in + n_in) break;
        text = end + sizeof separator - 1;
    }
    assert_true(line == out + n_out);
    assert_true(cases >= 40);
    free(in);
    free(out);
    eng_vocab_free(v);
}

int main(void)
{
    struct CMUnitTest tests[sizeof names / sizeof names[0]];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        tests[i] = (struct CMUnitTest){names[i], test_vocab, NULL, NULL, (void *)names[i]};
    return cmocka_run_group_tests_name("vocab_oracle", tests, NULL, NULL);
}
