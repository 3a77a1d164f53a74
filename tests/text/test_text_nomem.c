/* Allocation failures: building a vocabulary, tokenising, detokenising and taking replies apart
 * with the k-th allocation failing, for every k: CN_ENOMEM, nothing leaked (the sanitizer build
 * sees that), results as before once memory is there again. PCRE2's own allocations are in a shared
 * library and not reached. */
#include "tests/text/small_vocab.h"

#include <setjmp.h>
#include <cmocka.h>

static long countdown = -1; /* allocations until one fails; -1 = never */

static bool alloc_fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

#include "tests/wrap_alloc.h"

static const char text[] =
    "<|a|> ab ab\n\n abababababababababababababababababababababababababababab"
    "ababababababab \xff\u00e9 <|a|>12345";

static int work(const struct eng_vocab_spec *spec, struct eng_ids *ids, struct cn_buf *out,
                struct cn_error *err)
{
    struct eng_vocab *v = NULL;
    int rc = eng_vocab_new(spec, &v, err);
    if (rc) {
        assert_null(v);
        return rc;
    }
    rc = eng_tokenize(v, text, sizeof text - 1, NULL, 0, ENG_TOKENIZE_PARSE, ids, err);
    if (rc) {
        assert_int_equal(ids->n, 0);
    } else {
        struct eng_detok d;
        eng_detok_init(&d, v, true, true);
        for (size_t i = 0; i < ids->n && rc == 0; i++)
            rc = eng_detok_push(&d, ids->v[i], out);
        if (rc == 0) rc = eng_detok_flush(&d, out);
    }
    eng_vocab_free(v);
    return rc;
}

static void sweep(const char *model, const char *pre)
{
    static struct token_list l;
    l.n = l.used = 0;
    add_bytes(&l);
    add_token(&l, "ab", 2, ENG_TOKEN_NORMAL);
    add_token(&l, "abab", 4, ENG_TOKEN_NORMAL);
    add_token(&l, "<|a|>", 5, ENG_TOKEN_CONTROL);
    add_token(&l, "\n\n", 2, ENG_TOKEN_USER);
    struct eng_str merges[] = {{"a b", 3}, {"ab ab", 5}, {"x y", 3}};
    struct eng_vocab_spec spec = bare_spec(model, pre);
    use_tokens(&spec, &l);
    spec.merges = merges;
    spec.n_merges = 3;

    struct eng_ids want = {0};
    struct cn_buf text_want;
    cn_buf_init(&text_want, 0);
    assert_int_equal(work(&spec, &want, &text_want, NULL), 0);
    long k = 0;
    for (int rc = CN_ENOMEM; rc; k++) {
        struct eng_ids ids = {0};
        struct cn_error err = {0};
        struct cn_buf out;
        cn_buf_init(&out, 0);
        countdown = k;
        rc = work(&spec, &ids, &out, &err);
        bool reached = countdown < 0;
        countdown = -1;
        assert_int_equal(rc, reached ? CN_ENOMEM : 0);
        if (rc == 0) {
            assert_int_equal(ids.n, want.n);
            assert_memory_equal(ids.v, want.v, ids.n * sizeof *ids.v);
            assert_int_equal(out.len, text_want.len);
            assert_memory_equal(out.data, text_want.data, out.len);
        }
        cn_buf_fini(&out);
        eng_ids_fini(&ids);
        assert_true(k < 1000);
    }
    assert_true(k > 15);
    cn_buf_fini(&text_want);
    eng_ids_fini(&want);
}

static void test_bpe(void **state)
{
    sweep("gpt2", "llama-bpe");
    sweep("gpt2", "deepseek-llm");
}

static void test_raw(void **state)
{
    sweep("gemma4", NULL);
}

static void test_spm(void **state)
{
    sweep("llama", NULL);
}

/* ---- replies --------------------------------------------------------------------------------- */

static int read_reply(const json_t *offered, const char *source, const char *reply,
                      struct eng_parts *out)
{
    struct eng_reply_format f = eng_reply_format(NULL, (struct eng_str){source, strlen(source)});
    struct eng_tools *tools = NULL;
    struct eng_reply r;
    struct cn_error err;
    int rc = eng_tools_new(offered, &tools, &err);

    eng_reply_init(&r, &f, tools, ENG_REPLY_ANEW);
    for (size_t i = 0, n = strlen(reply); !rc && i < n; i += 5)
        rc = eng_reply_text(&r, reply + i, CN_MIN(n - i, (size_t)5), out);
    if (!rc) rc = eng_reply_finish(&r, false, out);
    eng_reply_fini(&r);
    eng_tools_free(tools);
    return rc;
}

static void test_replies(void **state)
{
    static const char *const rows[][2] = {
        {"<tool_call>", "Hm <tool_call>{\"x\": [1], \"arguments\": {\"s\": \"a\"}, \"name\": "
                        "\"f\"}</tool_call>\n<tool_call>{\"name\": \"no\"}</tool_call> so"},
        {"<arg_key>", "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>o</arg_key>"
                      "<arg_value>{'a': [1]}</arg_value></tool_call>"},
        {"<|tool_calls_section_begin|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
        {"]<]minimax[>[",
         "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<o>]<]minimax[>[<k>1"
         "]<]minimax[>[</k>]<]minimax[>[</o>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"},
        {"<|tool_call_start|>", "<|tool_call_start|>[f(s='a')]<|tool_call_end|>"},
    };
    json_t *offered = json_loads(
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, "
        "\"o\": "
        "{\"anyOf\": [{\"type\": \"object\"}, {\"$ref\": \"#/$defs/a\"}]}}, \"$defs\": {\"a\": "
        "{\"items\": {\"type\": \"null\"}}}}}]",
        0, NULL);
    assert_non_null(offered);
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        long k = 0;
        for (int rc = CN_ENOMEM; rc; k++) {
            struct eng_parts parts;
            eng_parts_init(&parts);
            countdown = k;
            rc = read_reply(offered, rows[i][0], rows[i][1], &parts);
            bool reached = countdown < 0;
            countdown = -1;
            assert_int_equal(rc, reached ? CN_ENOMEM : 0);
            eng_parts_fini(&parts);
            assert_true(k < 1000);
        }
        assert_true(k > 8);
    }
    json_decref(offered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bpe), cmocka_unit_test(test_raw),
                                       cmocka_unit_test(test_spm), cmocka_unit_test(test_replies)};
    return cmocka_run_group_tests_name("text_nomem", tests, NULL, NULL);
}
