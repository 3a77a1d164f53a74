/* Replies taken apart: every format's cases with what they must give, each cut in every place and
 * fed byte by byte; marks as tokens and as text; what looks like a mark and is none. */
#include "small_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* In inputs {x} is the token x, everything else text. In results R C T A begin reasoning, content,
 * a call (its name) and its arguments, each in brackets. */
struct reply_case {
    const char *input, *want;
    bool opened;
};

static const char *const token_texts[] = {
    "<|channel|>",   "<|message|>", "<|start|>", "<|end|>",    "<|return|>", "<|call|>",
    "<|constrain|>", "<think>",     "</think>",  "<|channel>", "<channel|>",
};

static struct eng_vocab *make_vocab(size_t n_special)
{
    static struct token_list list;
    memset(&list, 0, sizeof list);
    add_bytes(&list);
    for (size_t i = 0; i < n_special; i++)
        add_token(&list, token_texts[i], strlen(token_texts[i]),
                  i == 7 || i == 8 ? ENG_TOKEN_USER : ENG_TOKEN_CONTROL);
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    use_tokens(&spec, &list);
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    return v;
}

static void show(const struct eng_parts *p, struct cn_buf *out)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        cn_buf_printf(out, "%c[%.*s]", "CRTIA"[p->runs[i].part], (int)(p->runs[i].end - at),
                      p->text.data + at);
        at = p->runs[i].end;
    }
    assert_int_equal(at, p->text.len);
}

/* Feeds the case, its text in pieces: cut before byte `cut` of the input, or with 0 byte by
 * byte. */
static void feed(const struct eng_vocab *v, const struct eng_reply_format *f,
                 const struct reply_case *c, size_t cut, struct cn_buf *out)
{
    struct eng_reply r;
    struct eng_parts p;
    eng_parts_init(&p);
    eng_reply_init(&r, f, NULL, c->opened);
    for (size_t i = 0, n = strlen(c->input); i < n;) {
        const char *s = c->input + i, *end = *s == '{' ? strchr(s, '}') : NULL;
        int64_t id = end ? eng_vocab_find(v, s + 1, (size_t)(end - s - 1)) : -1;
        if (id >= 0 && eng_reply_is_mark(&r, (uint32_t)id)) {
            assert_int_equal(eng_reply_mark(&r, (uint32_t)id, &p), 0);
            i += (size_t)(end - s) + 1;
            continue;
        }
        if (id >= 0) { /* no mark here: its text */
            struct eng_str text = eng_vocab_piece(v, (uint32_t)id, false);
            assert_int_equal(eng_reply_text(&r, text.p, text.n, &p), 0);
            i += (size_t)(end - s) + 1;
            continue;
        }
        size_t len = cut ? strcspn(s + 1, "{") + 1 : 1;
        if (cut > i && cut < i + len) len = cut - i;
        assert_int_equal(eng_reply_text(&r, s, len, &p), 0);
        i += len;
    }
    assert_int_equal(eng_reply_finish(&r, false, &p), 0);
    eng_reply_fini(&r);
    show(&p, out);
    eng_parts_fini(&p);
}

static void check(const struct eng_vocab *v, const char *source, const struct reply_case *cases,
                  size_t n)
{
    struct eng_reply_format f = eng_reply_format(v, (struct eng_str){source, strlen(source)});
    assert_int_not_equal(f.kind, ENG_REPLY_PLAIN);
    for (size_t i = 0; i < n; i++)
        for (size_t cut = 0; cut <= strlen(cases[i].input); cut++) {
            struct cn_buf got;
            cn_buf_init(&got, 0);
            feed(v, &f, &cases[i], cut, &got);
            assert_string_equal(cn_buf_cstr(&got), cases[i].want);
            cn_buf_fini(&got);
        }
}

static void test_harmony(void **state)
{
    static const char source[] = "<|start|>assistant<|channel|>final<|message|>";
    static const struct reply_case cases[] = {
        {"{<|channel|>}analysis{<|message|>}Let me "
         "see.{<|end|>}{<|start|>}assistant{<|channel|>}final"
         "{<|message|>}Four.{<|return|>}",
         "R[Let me see.]C[Four.]", false},
        {"{<|channel|>}final{<|message|>}a <|channel|> b", "C[a <|channel|> b]", false},
        /* calls, the recipient before or behind the channel */
        {"{<|channel|>}analysis{<|message|>}x{<|end|>}{<|start|>}assistant to=functions.get_time"
         "{<|channel|>}commentary json{<|message|>}{\"a\": 1}{<|call|>}",
         "R[x]T[get_time]A[{\"a\": 1}]", false},
        {"{<|channel|>}commentary to=functions.f {<|constrain|>}json{<|message|>}{}", "T[f]A[{}]",
         false},
        {" to=functions.f{<|channel|>}commentary{<|message|>}1", "T[f]A[1]", false},
        {"{<|channel|>}commentary to=functions.f{<|message|>}1{<|end|>}{<|start|>}assistant"
         "{<|channel|>}commentary to=browser.open{<|message|>}2",
         "T[f]A[1]T[browser.open]A[2]", false},
        {"{<|channel|>}commentary{<|message|>}I will "
         "look.{<|end|>}{<|start|>}assistant{<|channel|>}"
         "commentary to=functions.f{<|message|>}",
         "C[I will look.]T[f]", false},
        /* several of a kind */
        {"{<|channel|>}analysis{<|message|>}a{<|end|>}{<|start|>}assistant{<|channel|>}analysis"
         "{<|message|>}b{<|end|>}{<|start|>}assistant{<|channel|>}final{<|message|>}c",
         "R[a\nb]C[c]", false},
        /* without any mark, and cut off */
        {"Hello there", "C[Hello there]", false},
        {"  to the point", "C[  to the point]", false},
        {" to=", "C[ to=]", false},
        {"{<|channel|>}analysis{<|message|>}cut", "R[cut]", false},
        {"{<|channel|>}anal", "", false},
        {"", "", false},
        /* marks out of place */
        {"{<|channel|>}final{<|message|>}a{<|message|>}b{<|constrain|>}c", "C[abc]", false},
        {"{<|channel|>}analysis{<|message|>}a{<|channel|>}final{<|message|>}b", "R[a]C[b]", false},
        {"{<|channel|>}final{<|message|>}a{<|end|>} b", "C[a\nb]", false},
        {"{<|message|>}a", "C[a]", false},
        {"{<|channel|>}dreams{<|message|>}a", "C[a]", false},
    };
    struct eng_vocab *v = make_vocab(CN_ARRAY_LEN(token_texts));
    check(v, source, cases, CN_ARRAY_LEN(cases));

    char longer[600] = "{<|channel|>}";
    memset(longer + strlen(longer), 'x', 500);
    struct reply_case c = {longer, NULL, false};
    struct eng_reply_format f = eng_reply_format(v, (struct eng_str){source, strlen(source)});
    for (size_t cut = 0; cut < 400; cut += 57) { /* a header without end is text */
        struct cn_buf got;
        cn_buf_init(&got, 0);
        feed(v, &f, &c, cut, &got);
        assert_int_equal(got.len, 3 + 1 + 500); /* the channel's mark as a space */
        cn_buf_fini(&got);
    }
    eng_vocab_free(v);
}

static const struct reply_case tag_cases[] = {
    {"{<think>}\nHm.\n{</think>}\n\nFour.", "R[Hm.]C[Four.]", false},
    {"\nHm.\n{</think>}\n\nFour.\n", "R[Hm.]C[Four.\n]", true},
    {"{<think>}\n\n{</think>}\n\nFour.", "C[Four.]", false},
    {"{<think>}again{</think>}x", "R[again]C[x]", true}, /* though the template has opened it */
    {"Hm. \n\n More.  {</think>} Four.", "R[Hm. \n\n More.]C[Four.]", true},
    {"cut off \n", "R[cut off \n]", true},
    {"no marks <thin at all", "C[no marks <thin at all]", false},
    {" \n x", "C[ \n x]", false},
    {" ", "C[ ]", false},
    {"", "", false},
    {"", "", true},
};

static void test_tags_as_tokens(void **state)
{
    static const struct reply_case more[] = {
        {"<think>a</think>b", "C[<think>a</think>b]", false}, /* text, not the tokens */
        {"a</think>b", "R[a</think>b]", true},
        {"a{</think>}b{</think>}c", "R[a]C[b</think>c]", true},
        {"a{<think>}b{</think>}c{<think>}d{</think>}e", "C[a]R[b]C[\nc]R[\nd]C[\ne]", false},
    };
    struct eng_vocab *v = make_vocab(CN_ARRAY_LEN(token_texts));
    check(v, "{% if '</think>' in content %}", tag_cases, CN_ARRAY_LEN(tag_cases));
    check(v, "{% if '</think>' in content %}", more, CN_ARRAY_LEN(more));
    eng_vocab_free(v);
}

/* The same where the vocabulary has no such tokens. */
static void test_tags_as_text(void **state)
{
    static const struct reply_case more[] = {
        {"<think>\na < b </thin </think>\n c", "R[a < b </thin]C[c]", false},
        {"<think>a<</think>b", "R[a<]C[b]", false},
        {"<think>a</think </think>b", "R[a</think]C[b]", false},
        {"see <think>a</think>", "C[see <think>a</think>]", false},
        {"a</think>b</think>", "R[a]C[b</think>]", true},
        {"<think", "C[<think]", false},
        {"a </thi", "R[a </thi]", true},
    };
    struct eng_vocab *v = make_vocab(7);
    struct reply_case plain[CN_ARRAY_LEN(tag_cases)];
    char text[CN_ARRAY_LEN(tag_cases)][64];
    for (size_t i = 0; i < CN_ARRAY_LEN(tag_cases); i++) {
        size_t n = 0;
        for (const char *s = tag_cases[i].input; *s; s++)
            if (*s != '{' && *s != '}') text[i][n++] = *s;
        text[i][n] = 0;
        plain[i] = (struct reply_case){text[i], tag_cases[i].want, tag_cases[i].opened};
        if (i == 3)
            plain[i].want = "R[<think>again]C[x]"; /* as text it opens at the beginning only */
    }
    check(v, "{% if '</think>' in content %}", plain, CN_ARRAY_LEN(plain));
    check(v, "{% if '</think>' in content %}", more, CN_ARRAY_LEN(more));
    eng_vocab_free(v);
}

static void test_a_word_behind_the_mark(void **state)
{
    static const struct reply_case cases[] = {
        {"{<|channel>}thought\nHm.{<channel|>}Four.", "R[Hm.]C[Four.]", false},
        {"{<|channel>}thoughts{<channel|>}x", "R[thoughts]C[x]", false},
        {"{<|channel>}tho{<channel|>}x", "R[tho]C[x]", false},
        {"{<|channel>}th x{<channel|>}y", "R[th x]C[y]", false},
        {"thought\nHm.{<channel|>}Four.", "R[Hm.]C[Four.]", true},
        {"{<|channel>}tho", "R[tho]", false},
    };
    struct eng_vocab *v = make_vocab(CN_ARRAY_LEN(token_texts));
    check(v, "<|channel>thought\n<channel|>", cases, CN_ARRAY_LEN(cases));
    eng_vocab_free(v);
}

static enum eng_reply_start where(const struct eng_reply_format *f, const char *text, size_t mine,
                                  bool clients_end, bool continued)
{
    size_t n = strlen(text);
    struct eng_span spans[2] = {{mine, clients_end}, {n, !clients_end}};
    struct eng_rendered r = {.spans = spans, .n_spans = mine < n ? 2 : 1};

    cn_buf_init(&r.text, 0);
    cn_buf_append(&r.text, text, n);
    enum eng_reply_start start = eng_reply_where(f, &r, continued);
    cn_buf_fini(&r.text);
    return start;
}

/* Of a reply that begins there the text is this part. */
static void check_start(const struct eng_reply_format *f, enum eng_reply_start start,
                        const char *text, enum eng_part part, const char *want)
{
    struct eng_parts parts;
    struct eng_reply r;

    eng_parts_init(&parts);
    eng_reply_init(&r, f, NULL, start);
    assert_int_equal(eng_reply_text(&r, text, strlen(text), &parts), 0);
    assert_int_equal(eng_reply_finish(&r, false, &parts), 0);
    eng_reply_fini(&r);
    assert_int_equal(parts.n_runs, 1);
    assert_int_equal(parts.runs[0].part, part);
    assert_string_equal(cn_buf_cstr(&parts.text), want);
    eng_parts_fini(&parts);
}

/* A message that goes on, `mine` bytes of which the template wrote: its text says where it is. */
static void check_continued(const struct eng_reply_format *f)
{
    static const struct {
        const char *text;
        size_t mine;
        enum eng_reply_start want;
    } rows[] = {
        {"<a>Four", 3, ENG_REPLY_ANSWER},
        {"<a><think>", 3, ENG_REPLY_OPENED},
        {"<a><think>\n ", 3, ENG_REPLY_OPENED},
        {"<a><think>\nOkay", 3, ENG_REPLY_THOUGHT},
        {"<a><think>Okay</think>", 3, ENG_REPLY_CLOSED},
        {"<a><think>Okay</think>Four", 3, ENG_REPLY_ANSWER},
        {"<a></think><think>Okay", 3, ENG_REPLY_THOUGHT},
        {"<a><think>\nOkay", 11, ENG_REPLY_THOUGHT}, /* the template has opened it */
        {"<a><think>\nOkay</think>\n", 11, ENG_REPLY_CLOSED},
        {"<a><think>\n\n</think>\n\nFour", 22, ENG_REPLY_ANSWER},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        assert_int_equal(where(f, rows[i].text, rows[i].mine, true, true), rows[i].want);
        assert_int_equal(where(f, rows[i].text, rows[i].mine, true, false), ENG_REPLY_ANEW);
    }
    assert_int_equal(where(f, "<think>Okay", 0, true, true), ENG_REPLY_THOUGHT);
    assert_int_equal(where(f, "<a>\n<think>", 0, false, true), ENG_REPLY_OPENED); /* no text yet */

    check_start(f, ENG_REPLY_THOUGHT, " so", ENG_PART_REASONING, " so"); /* the thought's space */
    check_start(f, ENG_REPLY_CLOSED, "\n\nFour", ENG_PART_CONTENT, "Four");
    check_start(f, ENG_REPLY_ANSWER, "\n<think>", ENG_PART_CONTENT, "\n<think>");
}

/* Which format, and whether the prompt has opened it, is the template's to say. */
static void test_formats(void **state)
{
    struct eng_vocab *v = make_vocab(CN_ARRAY_LEN(token_texts)), *bare = make_vocab(0);
    struct eng_str harmony = {"<|channel|><|message|>", 22}, think = {"</think>", 8};
    assert_int_equal(eng_reply_format(v, harmony).kind, ENG_REPLY_HARMONY);
    assert_int_equal(eng_reply_format(bare, harmony).kind, ENG_REPLY_PLAIN);
    assert_int_equal(eng_reply_format(bare, think).kind, ENG_REPLY_TAGS);
    assert_int_equal(eng_reply_format(v, (struct eng_str){"<think>", 7}).kind, ENG_REPLY_PLAIN);

    struct eng_reply_format f = eng_reply_format(v, think);
    /* clang-format off */
    enum { ANEW = ENG_REPLY_ANEW, OPENED = ENG_REPLY_OPENED, CLOSED = ENG_REPLY_CLOSED };
    static const struct { const char *text; size_t mine; int want; } rows[] = {
        {"user<think>\n", 0, OPENED}, {"<think>", 0, OPENED},   {"<think>\n\n</think>\n\n", 0, CLOSED},
        {"user<think>", 12, ANEW},    {"say <think>", 11, ANEW}, {"say <think>", 4, OPENED},
        {"think>", 0, ANEW},          {"", 0, ANEW},             {"</think>", 0, CLOSED},
        {"say </think>", 12, ANEW},   {"say </think>", 4, CLOSED}, {"</think>.", 0, ANEW},
    };
    /* clang-format on */
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        int start = (int)where(&f, rows[i].text, rows[i].mine, false, false);
        assert_int_equal(start, rows[i].want);
    }
    check_continued(&f);
    f = eng_reply_format(v, harmony);
    assert_int_equal(where(&f, "<a>Four", 3, true, true), ENG_REPLY_ANSWER);
    assert_int_equal(where(&f, "<a>Four", 3, true, false), ENG_REPLY_ANEW);
    check_start(&f, ENG_REPLY_ANSWER, "to=all", ENG_PART_CONTENT, "to=all"); /* no header */
    eng_vocab_free(v);
    eng_vocab_free(bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_harmony),      cmocka_unit_test(test_tags_as_tokens),
        cmocka_unit_test(test_tags_as_text), cmocka_unit_test(test_a_word_behind_the_mark),
        cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
