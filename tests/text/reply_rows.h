/* Rows of replies with what must come of them, for tests of calls: included once by a program. Each
 * is fed whole, byte by byte and cut in every place. */
#ifndef TESTS_TEXT_REPLY_ROWS_H
#define TESTS_TEXT_REPLY_ROWS_H

#include "small_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* {x}: the token x, if the vocabulary has it; everything else is text. In results C R T I A begin
 * content, reasoning, a call's name, its id and its arguments. */
struct row { const char *input, *want; };

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"o\":{\"type\":\"object\"},\"u\":{\"type\":[\"string\",\"null\"]},"
    "\"m\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},"
    "\"r\":{\"$ref\":\"#/$defs/text\"},\"e\":{\"enum\":[\"1\",\"2\"]}},"
    "\"$defs\":{\"text\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"web-browsing\"}},"
    "{\"name\":\"g\"}]";

static struct eng_tools *make_tools(const char *text)
{
    struct eng_tools *t = NULL;
    struct cn_error err;
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    assert_int_equal(eng_tools_new(j, &t, &err), 0);
    json_decref(j);
    return t;
}

/* tokens: texts separated by a space. */
static struct eng_vocab *make_vocab(const char *tokens)
{
    static struct token_list list;
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    memset(&list, 0, sizeof list);
    add_bytes(&list);
    for (const char *s = tokens; *s;) {
        size_t n = strcspn(s, " ");
        add_token(&list, s, n, ENG_TOKEN_CONTROL);
        s += n + (s[n] == ' ');
    }
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
}

struct setting {
    const struct eng_vocab *v;
    struct eng_reply_format format;
    const struct eng_tools *tools;
    enum eng_reply_start start;
    bool cut; /* the end is a limit's */
};

/* The token that the input has here, or -1. */
static int64_t token_at(const struct setting *s, const char *at, size_t *len)
{
    const char *end = *at == '{' ? strchr(at, '}') : NULL;
    if (!end) return -1;
    *len = (size_t)(end - at) + 1;
    return eng_vocab_find(s->v, at + 1, *len - 2);
}

/* Cut before byte `cut` of the input; 0: byte by byte. */
static void feed(const struct setting *s, const char *input, size_t cut, struct cn_buf *out)
{
    struct eng_reply r;
    struct eng_parts p;
    eng_parts_init(&p);
    eng_reply_init(&r, &s->format, s->tools, s->start);
    for (size_t i = 0, n = strlen(input), len = 0; i < n; i += len) {
        int64_t id = token_at(s, input + i, &len);
        if (id >= 256) {
            if (eng_reply_is_mark(&r, (uint32_t)id))
                assert_int_equal(eng_reply_mark(&r, (uint32_t)id, &p), 0);
            continue; /* a control token that is not a mark here has no text */
        }
        size_t skip;
        for (len = 1; cut && i + len < n && i + len != cut; len++)
            if (token_at(s, input + i + len, &skip) >= 256) break;
        assert_int_equal(eng_reply_text(&r, input + i, len, &p), 0);
    }
    assert_int_equal(eng_reply_finish(&r, s->cut, &p), 0);
    eng_reply_fini(&r);
    show(&p, out);
    eng_parts_fini(&p);
}

static void check_in(struct setting *s, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t cut = 0; cut <= strlen(rows[i].input); cut++) {
            struct cn_buf got;
            cn_buf_init(&got, 0);
            feed(s, rows[i].input, cut, &got);
            assert_string_equal(cn_buf_cstr(&got), rows[i].want);
            cn_buf_fini(&got);
        }
}

#define HERMES(json) "<tool_call>\n" json "\n</tool_call>"

#endif
