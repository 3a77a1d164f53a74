/* Calls that are required: what the template of each family writes for calls must be what its
 * answers are held to (grammar/calls.def). Each reply of the oracle that consists of calls goes
 * through a guide, token by token, marks as tokens and text as bytes. Skipped where the oracle is
 * absent. */
#include "tests/text/small_vocab.h"
#include "tests/text/vocab_file.h"

#include <glob.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct family {
    json_t *doc;
    char *source;
    struct eng_vocab *vocab; /* bytes, the marks, and an end of generation */
    struct eng_reply_format format;
    struct eng_grammar *grammar;
    struct eng_ids ids; /* of the case at hand */
};

static const char *oracle(void)
{
    const char *env = getenv("CONIFER_ORACLE");
    return env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle";
}

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static uint32_t eos_of(const struct eng_vocab *v)
{
    int64_t id = eng_vocab_find(v, "<test end>", 10);
    assert_true(id >= 0);
    return (uint32_t)id;
}

static struct eng_vocab *vocab_of(const json_t *marks)
{
    static struct token_list list;
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    const json_t *one;
    size_t i;

    memset(&list, 0, sizeof list);
    add_bytes(&list);
    json_array_foreach(marks, i, one)
        add_token(&list, json_string_value(one), json_string_length(one), ENG_TOKEN_USER);
    spec.eos = (int64_t)list.n;
    /* with these <|end|> ends a message, and not the reply */
    static const char *const ends[] = {"<test end>", "<|return|>", "<|call|>"};
    for (i = 0; i < CN_ARRAY_LEN(ends); i++)
        add_token(&list, ends[i], strlen(ends[i]), ENG_TOKEN_CONTROL);
    use_tokens(&spec, &list);
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    return v;
}

static void compile(struct family *f)
{
    const struct eng_grammar_in in = {.kind = ENG_GRAMMAR_CALLS,
                                      .json = json_object_get(f->doc, "tools"),
                                      .any_spelling = true,
                                      .any_order = true,
                                      .many = true,
                                      .reply = &f->format,
                                      .vocab = f->vocab};
    struct cn_error err = {0};
    if (eng_grammar_compile(&in, &f->grammar, &err))
        fail_msg("%s: %s: %s", str(f->doc, "template"), err.param, err.message);
}

static bool has_pieces(const json_t *doc)
{
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(doc, "cases"), i,
                       c) if (json_object_get(c, "pieces")) return true;
    return false;
}

static void family_init(struct family *f, const char *path)
{
    char source[4352];
    size_t n;
    json_error_t e;
    *f = (struct family){0};
    f->doc = json_load_file(path, JSON_DECODE_INT_AS_REAL, &e);
    assert_non_null(f->doc);
    snprintf(source, sizeof source, "%s/templates/%s.jinja", oracle(), str(f->doc, "template"));
    f->source = read_file(source, &n);
    assert_non_null(f->source);
    /* where no case has its marks apart from its text, marks are text */
    f->vocab = vocab_of(has_pieces(f->doc) ? json_object_get(f->doc, "marks") : NULL);
    f->format = eng_reply_format(f->vocab, (struct eng_str){f->source, n});
    compile(f);
}

static void family_fini(struct family *f)
{
    eng_grammar_unref(f->grammar);
    eng_vocab_free(f->vocab);
    free(f->source);
    free(f->ids.v);
    json_decref(f->doc);
}

static enum eng_reply_start start_of(const struct eng_reply_format *f, const json_t *c)
{
    const char *prompt = str(c, "generation_prompt");
    struct eng_span span = {strlen(prompt), true};
    struct eng_rendered r = {.spans = &span, .n_spans = 1};
    cn_buf_append(&r.text, prompt, span.end);
    enum eng_reply_start start = eng_reply_where(f, &r, false);
    cn_buf_fini(&r.text);
    return start;
}

static void add_id(struct eng_ids *ids, uint32_t id)
{
    assert_int_equal(cn_grow(&ids->v, &ids->cap, ids->n + 1, sizeof *ids->v), 0);
    ids->v[ids->n++] = id;
}

static void add_text(struct family *f, const char *s)
{
    for (; *s; s++) {
        char byte[4];
        size_t n = cn_utf8_encode(eng_byte_char((uint8_t)*s), byte);
        add_id(&f->ids, (uint32_t)eng_vocab_find(f->vocab, byte, n));
    }
}

static void tokens_of(struct family *f, const json_t *c)
{
    const json_t *pieces = json_object_get(c, "pieces"), *piece;
    size_t i;
    f->ids.n = 0;
    if (!pieces) add_text(f, str(c, "raw"));
    json_array_foreach(pieces, i, piece)
    {
        const char *s = json_string_value(json_array_get(piece, 1));
        if (!strcmp(json_string_value(json_array_get(piece, 0)), "mark")) {
            add_id(&f->ids, (uint32_t)eng_vocab_find(f->vocab, s, strlen(s)));
        } else {
            add_text(f, s);
        }
    }
    add_id(&f->ids, eos_of(f->vocab));
}

/* The tokens that the guide lets pass. */
static size_t passes(struct family *f, const json_t *c)
{
    static uint32_t mask[64];
    const struct eng_guide_in in = {.grammar = f->grammar,
                                    .vocab = f->vocab,
                                    .reply = &f->format,
                                    .start = (int)start_of(&f->format, c),
                                    .n = 1,
                                    .max_tokens = UINT64_MAX,
                                    .max_reasoning = UINT64_MAX};
    struct eng_guide *g;
    size_t i = 0;
    assert_int_equal(eng_guide_new(&in, &g), 0);
    for (; i < f->ids.n; i++) {
        const uint32_t *forced;
        uint32_t id = f->ids.v[i];
        memset(mask, 0, sizeof mask);
        if (eng_guide_mask(g, 0, NULL, 0, UINT64_MAX, mask) && !(mask[id >> 5] >> (id & 31) & 1))
            break;
        eng_guide_put(g, 0, id, &forced);
    }
    eng_guide_free(g);
    return i;
}

/* What a family's answers are not held to: cases that no guide lets pass, and why. */
static const struct {
    const char *family;
    size_t cases;
    const char *why;
} left_out[] = {
    {"ByteDance-Seed-OSS", 9, "strings within lists in single quotes"},
    {"LFM2.5-8B-A1B", 23, "strings in single quotes"},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", 5, "two blanks after a colon"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", 1, "the mark of the turn's end behind calls"},
    {"upstage-Solar-Open-100B", 5, "<|begin|>, which is no token there, after thoughts"},
    {"google-gemma-4-31B-it-interleaved", 1, "a name without characters"},
};

static size_t n_left_out(const char *family)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(left_out); i++)
        if (!strcmp(left_out[i].family, family)) return left_out[i].cases;
    return 0;
}

static bool of_calls(const struct family *f, const json_t *c)
{
    const json_t *expect = json_object_get(c, "expect");
    bool told = !strcmp(str(c, "level"), "text") || !strcmp(str(c, "level"), "token");
    return told && (json_object_get(c, "pieces") || !has_pieces(f->doc)) &&
           !*str(expect, "content") && json_array_size(json_object_get(expect, "tool_calls")) &&
           strncmp(str(c, "name"), "hand_", 5) != 0;
}

static void test_oracle(void **state)
{
    char pattern[4352];
    glob_t found;
    size_t wrong = 0, not_listed = 0;
    if (!vocab_here()) skip();
    snprintf(pattern, sizeof pattern, "%s/tools/*.json", oracle());
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct family f;
        const json_t *c;
        size_t k, n = 0, good = 0, out;
        family_init(&f, found.gl_pathv[i]);
        json_array_foreach(json_object_get(f.doc, "cases"), k, c)
        {
            if (!of_calls(&f, c)) continue;
            tokens_of(&f, c);
            size_t at = passes(&f, c);
            if (!strcmp(str(c, "name"), "not_in_schema")) { /* no argument beside those listed */
                not_listed += at == f.ids.n;
                continue;
            }
            n++;
            good += at == f.ids.n;
            if (at == f.ids.n) continue;
            printf("   %s: %zu of %zu: ", str(c, "name"), at, f.ids.n);
            for (size_t j = at > 40 ? at - 40 : 0; j < f.ids.n && j < at + 10; j++) {
                struct eng_str s = eng_vocab_piece(f.vocab, f.ids.v[j], true);
                printf("%s%.*s", j == at ? " ### " : "", (int)s.n, s.p);
            }
            printf("\n");
        }
        out = n_left_out(str(f.doc, "template"));
        printf("%-48s %-16s %3zu of %3zu%s\n", str(f.doc, "template"), eng_reply_form(&f.format),
               good, n, good + out == n ? "" : " WRONG");
        wrong += good + out != n;
        family_fini(&f);
    }
    globfree(&found);
    assert_int_equal(wrong, 0);
    assert_int_equal(not_listed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oracle)};
    return cmocka_run_group_tests_name("required", tests, NULL, NULL);
}
