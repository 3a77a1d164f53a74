/* Calls of tools in the text of models: every reply of the oracle, as text and with its marks as
 * tokens, in random pieces, and cut off anywhere. Prints how many cases of each template agree.
 * Skipped where the oracle is absent. CONIFER_LONG: 1000 random cuttings each, and every cut. */
#include "tests/text/small_vocab.h"
#include "tests/text/vocab_file.h"

#include <glob.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[4096];

/* ---- a reply as a message -------------------------------------------------------------------- */

enum { MAX_CALLS = 16 };
struct call { struct cn_buf name, id, arguments; };
struct message {
    struct cn_buf content, reasoning;
    struct call calls[MAX_CALLS];
    size_t n_calls;
    enum eng_reply_calls end;
};

static void message_fini(struct message *m)
{
    cn_buf_fini(&m->content);
    cn_buf_fini(&m->reasoning);
    for (size_t i = 0; i < m->n_calls; i++) {
        cn_buf_fini(&m->calls[i].name);
        cn_buf_fini(&m->calls[i].id);
        cn_buf_fini(&m->calls[i].arguments);
    }
}

static void message_take(struct message *m, const struct eng_parts *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        const char *s = p->text.data + at;
        size_t n = p->runs[i].end - at;
        struct cn_buf *to = p->runs[i].part == ENG_PART_CONTENT ? &m->content : &m->reasoning;
        if (p->runs[i].part == ENG_PART_CALL) {
            assert_true(m->n_calls < MAX_CALLS);
            to = &m->calls[m->n_calls++].name;
        } else if (p->runs[i].part > ENG_PART_CALL) {
            assert_true(m->n_calls);
            struct call *c = &m->calls[m->n_calls - 1];
            to = p->runs[i].part == ENG_PART_CALL_ID ? &c->id : &c->arguments;
            assert_false(to == &c->id && c->arguments.len); /* ids come before arguments */
        }
        assert_int_equal(cn_buf_append(to, s, n), 0);
        at = p->runs[i].end;
    }
    assert_int_equal(at, p->text.len);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* A template with what its cases have in common. */
struct family {
    const char *name;
    json_t *doc;
    struct eng_str source;
    char *text;
    struct eng_tools *tools;
    struct eng_vocab *tokens; /* the marks, and nothing else */
    struct eng_reply_format as_text, as_tokens;
    bool token_marks; /* the input is the case's pieces */
};

static const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
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
    use_tokens(&spec, &list);
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    return v;
}

static void family_init(struct family *f, const char *path)
{
    char source[4224];
    size_t n;
    json_error_t e;
    struct cn_error err;

    *f = (struct family){0};
    f->doc = json_load_file(path, JSON_DECODE_INT_AS_REAL, &e);
    assert_non_null(f->doc);
    f->name = str(f->doc, "template");
    snprintf(source, sizeof source, "%s/templates/%s.jinja", dir, f->name);
    f->text = read_file(source, &n);
    assert_non_null(f->text);
    f->source = (struct eng_str){f->text, n};
    assert_int_equal(eng_tools_new(json_object_get(f->doc, "tools"), &f->tools, &err), 0);
    f->tokens = vocab_of(json_object_get(f->doc, "marks"));
    f->as_text = eng_reply_format(NULL, f->source);
    f->as_tokens = eng_reply_format(f->tokens, f->source);
}

static void family_fini(struct family *f)
{
    eng_vocab_free(f->tokens);
    eng_tools_free(f->tools);
    free(f->text);
    json_decref(f->doc);
}

/* Where the reply starts after the case's generation prompt. */
static enum eng_reply_start start_of(const struct eng_reply_format *f, const json_t *c)
{
    const char *prompt = str(c, "generation_prompt");
    struct eng_span span = {prompt ? strlen(prompt) : 0, true};
    struct eng_rendered r = {.spans = &span, .n_spans = 1};
    if (!prompt) return ENG_REPLY_ANEW;
    cn_buf_append(&r.text, prompt, span.end);
    enum eng_reply_start start = eng_reply_where(f, &r, false);
    cn_buf_fini(&r.text);
    return start;
}

/* ---- feeding --------------------------------------------------------------------------------- */

static uint64_t random_state;
static size_t below(size_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(random_state >> 33) % n;
}

static void feed_text(struct eng_reply *r, const char *s, size_t n, size_t most,
                      struct eng_parts *out)
{
    for (size_t i = 0; i < n;) {
        size_t len = most ? 1 + below(most) : n;
        len = CN_MIN(len, n - i);
        assert_int_equal(eng_reply_text(r, s + i, len, out), 0);
        i += len;
    }
}

/* The first `limit` bytes of a reply; most: the longest piece, 0 = as it is. */
static void feed(const struct family *f, const json_t *c, size_t most, size_t limit, bool cut,
                 struct eng_parts *out, enum eng_reply_calls *end)
{
    const struct eng_reply_format *format = f->token_marks ? &f->as_tokens : &f->as_text;
    const json_t *pieces = json_object_get(c, "pieces"), *piece;
    const char *raw = str(c, "raw");
    struct eng_reply r;
    size_t i;

    eng_reply_init(&r, format, f->tools, start_of(format, c));
    if (!f->token_marks) {
        feed_text(&r, raw, CN_MIN(strlen(raw), limit), most, out);
    } else {
        json_array_foreach(pieces, i, piece)
        {
            const char *s = json_string_value(json_array_get(piece, 1));
            size_t n = CN_MIN(strlen(s), limit);
            int64_t id = eng_vocab_find(f->tokens, s, strlen(s));
            limit -= n;
            bool mark = !strcmp(json_string_value(json_array_get(piece, 0)), "mark");
            if (mark && n && eng_reply_is_mark(&r, (uint32_t)id))
                assert_int_equal(eng_reply_mark(&r, (uint32_t)id, out), 0);
            else
                feed_text(&r, s, n, most, out);
        }
    }
    assert_int_equal(eng_reply_finish(&r, cut, out), 0);
    *end = eng_reply_calls(&r);
    eng_reply_fini(&r);
}

static void read_reply(const struct family *f, const json_t *c, size_t limit, bool cut,
                       struct message *m)
{
    struct eng_parts parts;
    eng_parts_init(&parts);
    *m = (struct message){0};
    feed(f, c, 0, limit, cut, &parts, &m->end);
    message_take(m, &parts);
    eng_parts_fini(&parts);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* White space at both ends is markup. */
static bool same_text(const struct cn_buf *got, const char *want)
{
    const char *s = got->data ? got->data : "";
    size_t n = got->len, m = strlen(want);
    for (; n && is_space(s[n - 1]); n--)
        ;
    for (; n && is_space(*s); s++)
        n--;
    for (; m && is_space(want[m - 1]); m--)
        ;
    for (; m && is_space(*want); want++)
        m--;
    return n == m && !memcmp(s, want, n);
}

static json_t *parse(const struct cn_buf *b)
{
    json_error_t e;
    return json_loadb(b->data ? b->data : "", b->len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &e);
}

static bool is_text(const struct cn_buf *got, const char *want)
{
    return got->len == strlen(want) && (!got->len || !memcmp(got->data, want, got->len));
}

/* Each call has whole JSON; an object. */
static bool all_whole(const struct message *m)
{
    bool whole = m->end != ENG_CALLS_CUT;
    for (size_t i = 0; i < m->n_calls; i++) {
        json_t *got = parse(&m->calls[i].arguments);
        whole = whole && json_is_object(got);
        json_decref(got);
    }
    return whole;
}

static bool same_call(const struct call *got, const json_t *want)
{
    const char *id = str(want, "id"), *text = str(want, "arguments_text");
    json_t *arguments = parse(&got->arguments);
    bool same = is_text(&got->name, str(want, "name")) &&
                json_equal(arguments, json_object_get(want, "arguments")) &&
                (!id || is_text(&got->id, id)) && (!text || is_text(&got->arguments, text));
    json_decref(arguments);
    return same;
}

static bool same_message(const struct message *got, const json_t *want)
{
    const json_t *calls = json_object_get(want, "tool_calls");
    bool same = got->n_calls == json_array_size(calls) && all_whole(got) &&
                same_text(&got->content, str(want, "content")) &&
                same_text(&got->reasoning, str(want, "reasoning"));
    for (size_t i = 0; same && i < got->n_calls; i++)
        same = same_call(&got->calls[i], json_array_get(calls, i));
    return same;
}

static void show(const struct family *f, const json_t *c, const struct message *m)
{
    char *want = json_dumps(json_object_get(c, "expect"), JSON_COMPACT);
    printf("%s %s %s%s\n   raw  %s\n   want %s\n   got  content [%.*s] reasoning [%.*s]", f->name,
           str(c, "name"), str(c, "level"), f->token_marks ? " (tokens)" : "", str(c, "raw"), want,
           (int)m->content.len, m->content.data, (int)m->reasoning.len, m->reasoning.data);
    for (size_t i = 0; i < m->n_calls; i++)
        printf("\n        %.*s %.*s %.*s", (int)m->calls[i].name.len, m->calls[i].name.data,
               (int)m->calls[i].id.len, m->calls[i].id.data, (int)m->calls[i].arguments.len,
               m->calls[i].arguments.data);
    printf("\n        calls %d\n", (int)m->end);
    free(want);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void each_family(void (*test)(struct family *f))
{
    char pattern[4224];
    glob_t found;
    if (!vocab_here()) skip();
    snprintf(pattern, sizeof pattern, "%s/tools/*.json", dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct family f;
        family_init(&f, found.gl_pathv[i]);
        test(&f);
        family_fini(&f);
    }
    globfree(&found);
}

static bool is_level(const json_t *c, const char *level)
{
    return !strcmp(str(c, "level"), level);
}

static size_t n_exact, n_valid, n_errors, n_wrong;

/* As text, and as tokens; where the oracle says so, exactly what is expected. */
static void check_family(struct family *f)
{
    const json_t *cases = json_object_get(f->doc, "cases"), *c;
    size_t i, exact = 0, must = 0, valid = 0, other = 0;

    assert_string_equal(eng_reply_form(&f->as_text), str(f->doc, "form"));
    assert_string_equal(eng_reply_form(&f->as_tokens), str(f->doc, "form"));
    json_array_foreach(cases, i, c)
    {
        bool error = json_object_get(c, "error");
        n_errors += error;
        for (int tokens = 0; !error && tokens < 2; tokens++) {
            struct message m;
            if (tokens && !json_object_get(c, "pieces")) continue;
            f->token_marks = tokens;
            bool strict = is_level(c, "text") || (tokens && is_level(c, "token"));
            read_reply(f, c, SIZE_MAX, false, &m);
            bool same = same_message(&m, json_object_get(c, "expect"));
            bool good = strict ? same : all_whole(&m);
            *(strict ? &must : &other) += 1;
            *(strict ? &exact : &valid) += good;
            if (!good) show(f, c, &m);
            message_fini(&m);
        }
    }
    printf("%-48s %-16s %4zu of %4zu exact", f->name, eng_reply_form(&f->as_text), exact, must);
    printf(other ? ", %zu of %zu others valid\n" : "\n", valid, other);
    n_exact += exact;
    n_valid += valid;
    n_wrong += must - exact + other - valid;
}

static void test_oracle(void **state)
{
    each_family(check_family);
    printf("%zu readings exact, %zu others valid, %zu wrong; %zu refused by the template\n",
           n_exact, n_valid, n_wrong, n_errors);
    assert_int_equal(n_wrong, 0);
}

static void same_parts(const struct eng_parts *a, const struct eng_parts *b)
{
    assert_int_equal(a->n_runs, b->n_runs);
    assert_int_equal(a->text.len, b->text.len);
    if (a->text.len) assert_memory_equal(a->text.data, b->text.data, a->text.len);
    for (size_t i = 0; i < a->n_runs; i++)
        assert_true(a->runs[i].end == b->runs[i].end && a->runs[i].part == b->runs[i].part);
}

/* However a reply is cut into pieces, the events are the same. */
static void split_case(struct family *f, const json_t *c, size_t times)
{
    struct eng_parts whole, pieces;
    enum eng_reply_calls end, again;
    eng_parts_init(&whole);
    feed(f, c, 0, SIZE_MAX, false, &whole, &end);
    for (size_t i = 0; i < times; i++) {
        eng_parts_init(&pieces);
        feed(f, c, i ? 1 + below(i % 2 ? 4 : 40) : 1, SIZE_MAX, false, &pieces, &again);
        same_parts(&whole, &pieces);
        assert_int_equal(end, again);
        eng_parts_fini(&pieces);
    }
    eng_parts_fini(&whole);
}

static void split_family(struct family *f)
{
    const json_t *cases = json_object_get(f->doc, "cases"), *c;
    size_t i, times = getenv("CONIFER_LONG") ? 1000 : 4;
    json_array_foreach(cases, i, c)
    {
        f->token_marks = false;
        if (json_object_get(c, "raw")) split_case(f, c, times);
        f->token_marks = true;
        if (json_object_get(c, "pieces")) split_case(f, c, times);
    }
}

static void test_pieces(void **state)
{
    each_family(split_family);
}

static void cut_case(struct family *f, const json_t *c, const struct message *whole, size_t at)
{
    struct message m;
    read_reply(f, c, at, true, &m);
    assert_true(m.n_calls <= whole->n_calls);
    for (size_t i = 0; i < m.n_calls; i++) {
        const struct call *got = &m.calls[i], *want = &whole->calls[i];
        bool last = i + 1 == m.n_calls;
        assert_int_equal(got->name.len, want->name.len);
        assert_memory_equal(got->name.data, want->name.data, want->name.len);
        assert_true(got->arguments.len == want->arguments.len ||
                    (last && got->arguments.len < want->arguments.len));
        if (got->arguments.len)
            assert_memory_equal(got->arguments.data, want->arguments.data, got->arguments.len);
        if (got->arguments.len < want->arguments.len) assert_int_equal(m.end, ENG_CALLS_CUT);
    }
    message_fini(&m);
}

/* Ended where its first call is whole: one call, as it was written, and no markup is text. */
static void first_case(struct family *f, const json_t *c, const struct message *whole)
{
    const struct call *want = &whole->calls[0];
    size_t n = strlen(str(c, "raw")), at = want->arguments.len > 4 ? want->arguments.len / 2 : 1;
    struct message m;
    for (; at <= n; at++, message_fini(&m)) {
        read_reply(f, c, at, true, &m);
        if (m.end == ENG_CALLS_WHOLE) break;
    }
    assert_true(at <= n);
    bool same = m.n_calls == 1 && m.calls[0].arguments.len == want->arguments.len &&
                !memcmp(m.calls[0].arguments.data, want->arguments.data, want->arguments.len) &&
                m.content.len <= whole->content.len &&
                (!m.content.len || !memcmp(m.content.data, whole->content.data, m.content.len));
    if (!same) show(f, c, &m);
    assert_true(same);
    message_fini(&m);
}

static void first_family(struct family *f)
{
    const json_t *cases = json_object_get(f->doc, "cases"), *c;
    bool all = getenv("CONIFER_LONG");
    size_t i;
    f->token_marks = false;
    json_array_foreach(cases, i, c)
    {
        struct message whole;
        if ((!all && i % 3) || !str(c, "raw") || !is_level(c, "text")) continue;
        read_reply(f, c, SIZE_MAX, false, &whole);
        if (whole.n_calls) first_case(f, c, &whole);
        message_fini(&whole);
    }
}

static void test_the_first_call(void **state)
{
    each_family(first_family);
}

/* Cut off anywhere: the calls so far are whole, the last one's arguments begin as they should. */
static void cut_family(struct family *f)
{
    const json_t *cases = json_object_get(f->doc, "cases"), *c;
    bool all = getenv("CONIFER_LONG");
    size_t i;
    json_array_foreach(cases, i, c)
    {
        const char *raw = str(c, "raw");
        struct message whole;
        f->token_marks = false;
        if (!raw || is_level(c, "token") || is_level(c, "ambiguous")) continue;
        read_reply(f, c, SIZE_MAX, false, &whole);
        size_t n = strlen(raw), step = all ? 1 : 1 + n / 24;
        for (size_t at = below(step); at < n; at += step)
            cut_case(f, c, &whole, at);
        message_fini(&whole);
    }
}

static void test_cut(void **state)
{
    each_family(cut_family);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_the_first_call),
        cmocka_unit_test(test_cut),
    };
    const char *env = getenv("CONIFER_ORACLE");
    snprintf(dir, sizeof dir, "%s", env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
