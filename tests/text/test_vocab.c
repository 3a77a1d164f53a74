/* Vocabularies from files that cannot be trusted, what tokens mean, and detokenising. */
#include "tests/text/small_vocab.h"
#include "tests/text/vocab_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

static uint64_t rng = 0x13198a2e03707344u;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

static struct token_list list;

static void add(const char *text, int32_t type)
{
    add_token(&list, text, strlen(text), type);
}

static struct eng_vocab *open_list(struct eng_vocab_spec *spec)
{
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    use_tokens(spec, &list);
    if (eng_vocab_new(spec, &v, &err)) fprintf(stderr, "%s\n", err.message);
    assert_non_null(v);
    return v;
}

static void clear(void)
{
    list.n = list.used = 0;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_refusal(struct eng_vocab_spec spec, int code, const char *param,
                           const char *part)
{
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    assert_int_equal(eng_vocab_new(&spec, &v, &err), code);
    assert_null(v);
    assert_int_equal(err.code, code);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, part));
}

static void test_refusals(void **state)
{
    clear();
    add_bytes(&list);
    static const char *const models[] = {"t5", "rwkv", "plamo2", "none", ""};
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    use_tokens(&spec, &list);
    for (size_t i = 0; i < CN_ARRAY_LEN(models); i++) {
        spec.model = models[i];
        expect_refusal(spec, CN_EUNSUPP, "tokenizer.ggml.model", models[i]);
        expect_refusal(spec, CN_EUNSUPP, "tokenizer.ggml.model", "llama, gpt2");
    }
    spec.model = NULL;
    expect_refusal(spec, CN_EFORMAT, "tokenizer.ggml.model", "missing");
    spec.model = "gpt2";
    spec.pre = "youtu";
    expect_refusal(spec, CN_EUNSUPP, "tokenizer.ggml.pre", "youtu");
    spec.pre = "gpt-2";
    spec.n_tokens = 0;
    expect_refusal(spec, CN_EFORMAT, "tokenizer.ggml.tokens", "0 tokens");
    spec.n_tokens = list.n;
    spec.add_bos = 1;
    expect_refusal(spec, CN_EFORMAT, "tokenizer.ggml.bos_token_id", "BOS");
    spec.bos = 100000; /* past the vocabulary: as if it were not there */
    expect_refusal(spec, CN_EFORMAT, "tokenizer.ggml.bos_token_id", "BOS");
    spec.add_bos = -1;
    spec.add_eos = 1;
    expect_refusal(spec, CN_EFORMAT, "tokenizer.ggml.eos_token_id", "EOS");
}

/* ---- what files may say ---------------------------------------------------------------------- */

static struct eng_str str(const char *s)
{
    return (struct eng_str){s, strlen(s)};
}

/* Random bytes as tokens, types, ids and merges: a typed error or a vocabulary that works. */
static void test_hostile(void **state)
{
    static const char *const models[] = {"llama", "gpt2", "gemma4"};
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    for (int round = 0; round < 1500; round++) {
        struct eng_str merges[40];
        char merge_text[40][12];
        clear();
        if (below(2)) add_bytes(&list);
        for (uint32_t i = below(60); i > 0; i--) {
            char text[12];
            size_t n = below(8) ? below(6) : 0;
            for (size_t k = 0; k < n; k++)
                text[k] = below(3) ? "ab <>\xC4\xA0\xE2\x96\x81"[below(10)] : (char)below(256);
            add_token(&list, text, n, (int32_t)below(9) - 1);
            static const float odd[] = {0, -1, -2.5f, 1e30f};
            list.score[list.n - 1] = below(20) ? odd[below(4)] : below(2) ? NAN : -INFINITY;
        }
        if (below(4) == 0) add("<|im_end|>", (int32_t)below(6));
        if (below(4) == 0) add("<0x41>", ENG_TOKEN_BYTE);
        struct eng_vocab_spec spec = bare_spec(models[below(3)], below(2) ? "gpt-2" : "llama-bpe");
        use_tokens(&spec, &list);
        spec.n_merges = below(40);
        for (size_t i = 0; i < spec.n_merges; i++) {
            size_t n = below(10);
            for (size_t k = 0; k < n; k++)
                merge_text[i][k] = below(8) ? "ab \xC4\xA0"[below(5)] : (char)below(256);
            merges[i] = (struct eng_str){merge_text[i], n};
        }
        spec.merges = merges;
        uint32_t eos_ids[2] = {below(400), UINT32_MAX};
        spec.eos_ids = eos_ids;
        spec.n_eos_ids = 2;
        spec.bos = (int64_t)below(400) - 1;
        spec.eos = below(2) ? INT64_MAX : (int64_t)below(400);
        spec.unk = (int64_t)below(400) - 100;
        if (spec.unk < 0) spec.unk = -1;
        spec.add_bos = (int)below(3) - 1;
        spec.add_space_prefix = (int)below(3) - 1;
        struct eng_vocab *v = NULL;
        struct cn_error err = {0};
        int rc = eng_vocab_new(&spec, &v, &err);
        if (rc) {
            assert_true(err.message[0] != '\0');
            continue;
        }
        for (uint32_t id = 0; id < v->n; id++) {
            eng_vocab_piece(v, id, true);
            struct eng_str t = eng_vocab_text(v, id);
            int64_t found = eng_vocab_find(v, t.p, t.n);
            assert_true(t.n == 0 ? found == -1 : found >= 0 && found <= (int64_t)id);
        }
        for (int i = 0; i < 8; i++) {
            char text[100];
            size_t n = below(sizeof text);
            for (size_t k = 0; k < n; k++)
                text[k] = below(4) ? "ab <>"[below(5)] : (char)below(256);
            struct eng_ids ids = {0};
            assert_int_equal(eng_tokenize(v, text, n, NULL, 0, below(4), &ids, &err), 0);
            for (size_t k = 0; k < ids.n; k++)
                assert_true(ids.v[k] < v->n);
            eng_ids_fini(&ids);
        }
        eng_vocab_free(v);
    }
    cn_log_setup(CN_LOG_INFO, CN_LOG_TEXT);
}

/* A merge whose result is no token is still merged, and comes out as its bytes. */
static void test_merges(void **state)
{
    clear();
    add_bytes(&list);
    add("abc", ENG_TOKEN_NORMAL); /* 256 */
    add("\u0120a", ENG_TOKEN_NORMAL);
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_str merges[] = {str("a b"), str("ab c"), str("b c"), str("\u0120 a"), str("nospace"),
                               str(""),    str("a b"),  str("x "),  str(" x")};
    spec.merges = merges;
    spec.n_merges = CN_ARRAY_LEN(merges);
    struct eng_vocab *v = open_list(&spec);
    struct eng_ids ids = {0};
    assert_int_equal(eng_tokenize(v, "ab abc", 6, NULL, 0, 0, &ids, NULL), 0);
    assert_int_equal(ids.v[0], 'a');
    assert_int_equal(ids.v[1], 'b');
    /* " abc": "a b" goes before "\u0120 a", then "ab c" */
    assert_int_equal(ids.n, 4);
    assert_int_equal(ids.v[2], ' ');
    assert_int_equal(ids.v[3], 256);
    eng_ids_fini(&ids);
    eng_vocab_free(v);
}

/* Merges that spell a control token's text do not make the control token. */
static void test_no_forgery(void **state)
{
    clear();
    add_bytes(&list);
    add("<x>", ENG_TOKEN_CONTROL); /* 256 */
    add("<x", ENG_TOKEN_NORMAL);
    struct eng_str merges[] = {str("< x"), str("<x >")};
    static const char *const pres[] = {"poro-chat", "llama-bpe"};
    for (int i = 0; i < 2; i++) { /* the latter takes whole pieces for tokens */
        struct eng_vocab_spec spec = bare_spec("gpt2", pres[i]);
        spec.merges = merges;
        spec.n_merges = 2;
        struct eng_vocab *v = open_list(&spec);
        struct eng_ids ids = {0};
        assert_int_equal(eng_tokenize(v, "<x>", 3, NULL, 0, 0, &ids, NULL), 0);
        for (size_t k = 0; k < ids.n; k++)
            assert_int_not_equal(ids.v[k], 256);
        ids.n = 0;
        assert_int_equal(eng_tokenize(v, "<x>", 3, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL), 0);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.v[0], 256);
        eng_ids_fini(&ids);
        eng_vocab_free(v);
    }
    clear(); /* SentencePiece: the score of a control token does not count either */
    add("<unk>", ENG_TOKEN_UNKNOWN);
    add("<s>", ENG_TOKEN_CONTROL);
    add("</s>", ENG_TOKEN_CONTROL);
    add("<", ENG_TOKEN_NORMAL);
    add("s", ENG_TOKEN_NORMAL);
    add(">", ENG_TOKEN_NORMAL);
    add("<s", ENG_TOKEN_NORMAL);
    struct eng_vocab_spec spec = bare_spec("llama", NULL);
    spec.add_space_prefix = 0;
    struct eng_vocab *v = open_list(&spec);
    struct eng_ids ids = {0};
    assert_int_equal(eng_tokenize(v, "<s>", 3, NULL, 0, 0, &ids, NULL), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.v[0], 6);
    assert_int_equal(ids.v[1], 5);
    eng_ids_fini(&ids);
    eng_vocab_free(v);
}

/* A byte that no token stands for is left out where the file's unknown token ends the text. */
static void test_unknown_bytes(void **state)
{
    /* clang-format off */
    static const struct { const char *unk; int32_t type; size_t n; } cases[] = {
        {"<|endoftext|>", ENG_TOKEN_CONTROL, 2}, {"<|endoftext|>", ENG_TOKEN_NORMAL, 2},
        {"<|endoftext|>", ENG_TOKEN_UNKNOWN, 2}, {"<|im_start|>", ENG_TOKEN_CONTROL, 2},
        {"<unk>", ENG_TOKEN_UNKNOWN, 4}};
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        clear();
        add("a", ENG_TOKEN_NORMAL);
        add("b", ENG_TOKEN_NORMAL);
        add(cases[i].unk, cases[i].type);
        struct eng_vocab_spec spec = bare_spec("gpt2", "smollm");
        spec.unk = 2;
        struct eng_vocab *v = open_list(&spec);
        struct eng_ids ids = {0};
        assert_int_equal(eng_tokenize(v, "a\xf1\xf2" "b", 4, NULL, 0, 0, &ids, NULL), 0);
        assert_int_equal(ids.n, cases[i].n);
        assert_int_equal(ids.v[0], 0);
        assert_int_equal(ids.v[ids.n - 1], 1);
        if (ids.n == 4) assert_int_equal(ids.v[1], 2);
        eng_ids_fini(&ids);
        eng_vocab_free(v);
    }
    /* clang-format on */
}

/* The pre-tokeniser of a file that names none. */
static void test_default_pre(void **state)
{
    clear();
    add_bytes(&list);
    struct eng_vocab_spec spec = bare_spec("gpt2", NULL);
    struct eng_vocab *v = open_list(&spec);
    assert_false(v->ignore_merges);
    assert_false(eng_vocab_adds_bos(v));
    eng_vocab_free(v);
    static struct eng_str tokens[128256];
    static char names[128256][8];
    for (size_t i = 0; i < CN_ARRAY_LEN(tokens); i++)
        tokens[i] = (struct eng_str){names[i], (size_t)snprintf(names[i], 8, "t%zu", i)};
    tokens[128009] = str("<|eot_id|>");
    for (int i = 0; i < 2; i++) {
        spec = bare_spec("gpt2", i ? "default" : NULL);
        spec.tokens = tokens;
        spec.n_tokens = CN_ARRAY_LEN(tokens);
        spec.bos = 128000;
        assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
        assert_true(v->ignore_merges);
        assert_true(eng_vocab_adds_bos(v));
        eng_vocab_free(v);
    }
}

/* ---- the end of generation ------------------------------------------------------------------- */

static bool ends(const struct eng_vocab *v, const char *text)
{
    return eng_vocab_is_eog(v, (uint32_t)eng_vocab_find(v, text, strlen(text)));
}

static bool controls(const struct eng_vocab *v, const char *text)
{
    return eng_vocab_is_control(v, (uint32_t)eng_vocab_find(v, text, strlen(text)));
}

static void test_end(void **state)
{
    clear(); /* harmony: <|end|> closes a message, not the answer */
    add_bytes(&list);
    add("<|end|>", ENG_TOKEN_CONTROL);
    add("<|return|>", ENG_TOKEN_CONTROL);
    add("<|call|>", ENG_TOKEN_CONTROL);
    add("<|fim_pad|>", ENG_TOKEN_NORMAL);
    add("<|file_sep|>", ENG_TOKEN_USER);
    add("</s>", ENG_TOKEN_USER);
    add("stop", ENG_TOKEN_NORMAL);
    add("halt", ENG_TOKEN_USER);
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-4o");
    spec.eos = '\n'; /* an ordinary token stays one that text may hold */
    spec.eot = (int64_t)list.n - 1;
    uint32_t more[] = {(uint32_t)list.n - 2};
    spec.eos_ids = more;
    spec.n_eos_ids = 1;
    struct eng_vocab *v = open_list(&spec);
    assert_false(ends(v, "<|end|>"));
    assert_true(controls(v, "<|end|>"));
    assert_true(ends(v, "<|return|>") && ends(v, "<|call|>") && ends(v, "</s>"));
    assert_true(ends(v, "<|fim_pad|>") && controls(v, "<|fim_pad|>"));
    assert_true(ends(v, "<|file_sep|>") && controls(v, "<|file_sep|>"));
    assert_true(ends(v, "halt") && controls(v, "halt"));
    assert_true(ends(v, "stop") && !controls(v, "stop"));
    assert_true(eng_vocab_is_eog(v, '\n') && !eng_vocab_is_control(v, '\n'));
    eng_vocab_free(v);

    clear();
    add_bytes(&list);
    add("<|tool_response>", ENG_TOKEN_CONTROL);
    add("</s>", ENG_TOKEN_USER);
    add("<|end|>", ENG_TOKEN_CONTROL);
    add("<turn|>", ENG_TOKEN_CONTROL);
    spec = bare_spec("gpt2", "gpt-2");
    v = open_list(&spec);
    assert_false(ends(v, "</s>") || controls(v, "</s>"));
    assert_true(ends(v, "<|tool_response>") && ends(v, "<|end|>") && ends(v, "<turn|>"));
    eng_vocab_free(v);
}

/* ---- rendering ------------------------------------------------------------------------------- */

static void detok_all(const struct eng_vocab *v, const struct eng_ids *ids, bool special,
                      bool strip, struct cn_buf *out)
{
    struct eng_detok d;
    eng_detok_init(&d, v, special, strip);
    for (size_t i = 0; i < ids->n; i++) {
        assert_int_equal(eng_detok_push(&d, ids->v[i], out), 0);
        assert_int_equal(cn_utf8_valid_len(out->data, out->len), out->len); /* at every moment */
    }
    assert_int_equal(eng_detok_flush(&d, out), 0);
    assert_int_equal(cn_utf8_valid_len(out->data, out->len), out->len);
}

static size_t random_utf8(char *text, size_t max)
{
    static const uint32_t top[] = {0x80, 0x80, 0x80, 0x800, 0x3000, 0x10000, 0x110000};
    size_t n = 0;
    while (n + 4 <= max && below(40)) {
        n += cn_utf8_encode(below(top[below(7)]), text + n); /* surrogates add nothing */
    }
    return n;
}

static void test_round_trip(void **state)
{
    static const char *const names[] = {"gpt-2",        "llama-bpe", "qwen35", "falcon",
                                        "deepseek-llm", "llama-spm", "phi-3"};
    for (size_t k = 0; k < CN_ARRAY_LEN(names); k++) {
        struct eng_vocab *v = vocab_open(names[k]);
        if (!v) skip();
        bool spm = v->model == ENG_MODEL_SPM;
        int tried = 0;
        for (int i = 0; i < 1500; i++) {
            char text[256];
            size_t n = random_utf8(text, sizeof text);
            if (i == 0) { /* user-defined and control texts as a client may write them */
                static const char hard[] = " <|im_end|></s>[PAD151646] <s>\n <0x41>";
                n = sizeof hard - 1;
                memcpy(text, hard, n);
            }
            bool speakable = true; /* falcon and deepseek-llm lack tokens for some bytes */
            for (size_t j = 0; j < n; j++)
                speakable &= v->byte_id[(uint8_t)text[j]] != ENG_NO_ID;
            if (!speakable) continue;
            tried++;
            struct eng_ids ids = {0};
            struct cn_buf out;
            cn_buf_init(&out, 0);
            assert_int_equal(eng_tokenize(v, text, n, NULL, 0, 0, &ids, NULL), 0);
            detok_all(v, &ids, false, true, &out);
            bool mark = spm && memmem(text, n, "\u2581", 3); /* becomes a space there */
            if (!mark) {
                assert_int_equal(out.len, n);
                if (n) assert_memory_equal(out.data, text, n);
            }
            cn_buf_fini(&out);
            eng_ids_fini(&ids);
        }
        assert_true(tried > 100);
        eng_vocab_free(v);
    }
}

/* Bytes that are no UTF-8: every byte is there in the pieces. */
static void test_any_bytes(void **state)
{
    static const char *const names[] = {"gpt-2", "llama-bpe", "qwen35", "llama-spm"};
    for (size_t k = 0; k < CN_ARRAY_LEN(names); k++) {
        struct eng_vocab *v = vocab_open(names[k]);
        if (!v) skip();
        for (int i = 0; i < 1500; i++) {
            char text[64];
            struct cn_buf out;
            size_t n = below(sizeof text);
            for (size_t j = 0; j < n; j++)
                text[j] = below(3) ? (char)below(256) : (char)('a' + below(3));
            cn_buf_init(&out, 0);
            struct eng_ids ids = {0};
            assert_int_equal(eng_tokenize(v, text, n, NULL, 0, 0, &ids, NULL), 0);
            for (size_t j = 0; j < ids.n; j++) {
                struct eng_str s = eng_vocab_piece(v, ids.v[j], false);
                cn_buf_append(&out, s.p, s.n);
            }
            size_t skip_space = v->model == ENG_MODEL_SPM && n > 0;
            assert_int_equal(out.len, n + skip_space);
            if (n) assert_memory_equal(out.data + skip_space, text, n);
            cn_buf_fini(&out);
            eng_ids_fini(&ids);
        }
        eng_vocab_free(v);
    }
}

/* Bytes pushed one or several at a time; expectations as Python's decode(errors="replace"). */
static void test_detok(void **state)
{
    /* clang-format off */
    static const struct { const char *in, *out; } cases[] = {
        {"a\xE2\x82\xAC" "b", "a\u20acb"},
        {"\xE2\x82", "\ufffd"},
        {"\xE2\x82" "a", "\ufffda"},
        {"\xE2\x82\xE2\x82\xAC", "\ufffd\u20ac"},
        {"\xF0\x9F\x98\x81", "\U0001f601"},
        {"\xF0\x9F\x98" "A", "\ufffdA"},
        {"\xF0\x9F\x41", "\ufffdA"},
        {"\xED\xA0\x80", "\ufffd\ufffd\ufffd"},
        {"\xC0\xAF", "\ufffd\ufffd"},
        {"\xF4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xFF\x80x", "\ufffd\ufffdx"},
        {"\xE0\x80\x80", "\ufffd\ufffd\ufffd"},
        {"\xF0\x9F\xF0\x9F\x98\x81", "\ufffd\U0001f601"},
        {"\xC3\xC3\xA9", "\ufffd\u00e9"},
    };
    /* clang-format on */
    clear();
    add_bytes(&list);
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) { /* and a token of each whole case */
        char text[32];
        size_t n = 0;
        for (const char *p = cases[i].in; *p; p++)
            n += cn_utf8_encode(eng_byte_char((uint8_t)*p), text + n);
        add_token(&list, text, n, ENG_TOKEN_NORMAL);
    }
    add("<end>", ENG_TOKEN_CONTROL);
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v = open_list(&spec);
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        for (size_t hold = 0; hold < 3; hold++) { /* alone; as one token; after a first byte */
            struct cn_buf out;
            uint32_t seq[16], n = 0;
            const char *p = cases[i].in;
            cn_buf_init(&out, 0);
            if (hold == 1) seq[n++] = 256 + (uint32_t)i;
            if (hold == 2) seq[n++] = (uint8_t)0xF0;
            if (hold == 2) seq[n++] = 256 + (uint32_t)i;
            for (; hold == 0 && *p; p++)
                seq[n++] = (uint8_t)*p;
            struct eng_ids ids = {.v = seq, .n = n};
            detok_all(v, &ids, false, false, &out);
            size_t skip_bytes = hold == 2 ? 3 : 0;
            assert_int_equal(out.len, strlen(cases[i].out) + skip_bytes);
            assert_memory_equal(out.data + skip_bytes, cases[i].out, out.len - skip_bytes);
            cn_buf_fini(&out);
        }
    }
    struct eng_detok d;
    struct cn_buf out;
    cn_buf_init(&out, 0);
    uint32_t end = (uint32_t)v->n - 1;
    eng_detok_init(&d, v, false, false);
    assert_int_equal(eng_detok_push(&d, end, &out), 0);
    assert_int_equal(out.len, 0);
    eng_detok_init(&d, v, true, false);
    assert_int_equal(eng_detok_push(&d, end, &out), 0);
    assert_string_equal(cn_buf_cstr(&out), "<end>");
    assert_int_equal(eng_detok_push(&d, end + 1, &out), CN_ERANGE);
    cn_buf_fini(&out);
    eng_vocab_free(v);
}

static void test_spm_prefix(void **state)
{
    struct eng_vocab *v = vocab_open("llama-spm");
    if (!v) skip();
    uint32_t seq[] = {1, 15043, 3186}; /* <s> Hello world */
    struct eng_ids ids = {.v = seq, .n = 3};
    struct cn_buf out;
    cn_buf_init(&out, 0);
    detok_all(v, &ids, false, true, &out);
    assert_string_equal(cn_buf_cstr(&out), "Hello world");
    cn_buf_reset(&out);
    detok_all(v, &ids, true, false, &out);
    assert_string_equal(cn_buf_cstr(&out), "<s> Hello world");
    cn_buf_fini(&out);
    eng_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_merges),        cmocka_unit_test(test_no_forgery),
        cmocka_unit_test(test_unknown_bytes), cmocka_unit_test(test_default_pre),
        cmocka_unit_test(test_end),           cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_bytes),     cmocka_unit_test(test_detok),
        cmocka_unit_test(test_spm_prefix),
    };
    return cmocka_run_group_tests_name("vocab", tests, NULL, NULL);
}
