/* Calls that nobody wrote: for every form of reply/forms.def, tokens are drawn from those that the
 * grammar of calls allows, and the form's reader must find calls in them whose arguments satisfy
 * the tools' schemas: where calls are required, and where they need not be and one begins. Marks as
 * tokens of the vocabulary, and as text. */
#include "engine/text/grammar/calls.h"
#include "engine/text/reply/reply.h"
#include "tests/text/small_vocab.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define M(role, text) text
#define F(flag)       0
#define HUNYUAN                                                                                    \
    "<think:x>", "</think:x>", "<tool_calls:x>", "<tool_call:x>", "<tool_sep:x>", "<arg_key:x>",   \
        "</arg_key:x>", "<arg_value:x>", "</arg_value:x>", "</tool_call:x>", "</tool_calls:x>"
static const struct {
    const char *name, *has, *also, *marks[17];
} forms[] = {
#define FORM(name, reader, flags, order, has, also, ...) {name, has, also, {__VA_ARGS__}},
#include "engine/text/reply/forms.def"
#undef FORM
};

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
    "\"object\","
    "\"properties\": {\"s\": {\"type\": \"string\", \"maxLength\": 9}, \"n\": {\"type\": "
    "\"integer\"},"
    "\"b\": {\"type\": \"boolean\"}, \"u\": {\"type\": [\"string\", \"null\"], \"maxLength\": 5},"
    "\"e\": {\"enum\": [\"a b\", \"it's\", \"say \\\"x\\\"\", \"1\"]},"
    "\"o\": {\"type\": \"object\", \"properties\": {\"k\": {\"type\": \"string\", \"maxLength\": "
    "4},"
    "\"m\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"maxItems\": 3},"
    "\"z\": {\"type\": \"null\"}}, \"required\": [\"k\"], \"additionalProperties\": false},"
    "\"l\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 3}, "
    "\"minItems\": 1,"
    "\"maxItems\": 3}, \"free\": {\"type\": \"object\", \"maxProperties\": 3,"
    "\"additionalProperties\": {\"type\": \"boolean\"}}}, \"required\": [\"s\", \"o\", \"l\"],"
    "\"additionalProperties\": false}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": {\"type\": "
    "\"object\","
    "\"properties\": {\"n\": {\"type\": \"number\"}}, \"additionalProperties\": false}}}]";

struct world {
    const char *form;
    json_t *tools;
    struct eng_tools *types;
    struct eng_vocab *vocab;
    struct eng_reply_format format;
    struct eng_grammar *grammar, *schemas[2]; /* of calls; of arguments, in any spelling */
    bool free, silent;                        /* silent: no call need be there */
    struct eng_ids ids;
};

static uint64_t random_state;
static size_t below(size_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(random_state >> 33) % n;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

static void add_mark(struct token_list *list, const char *s, size_t n)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->text[i].n == n && !memcmp(list->text[i].p, s, n)) return;
    add_token(list, s, n, ENG_TOKEN_USER);
}

/* What of a mark is a token: <all of it>, [all of it], or its parts that look like tokens. */
static void add_marks(struct token_list *list, const char *mark)
{
    static const char *const pairs[][2] = {{"<|", "|>"},
                                           {"<｜", "｜>"},
                                           {"｜DSML", "｜"},
                                           {"]<]", "[>["},
                                           {"<atem", "function_calls>"}};
    size_t n = strlen(mark);
    if ((*mark == '<' || *mark == '[') && strlen(mark) > 3 && strchr(">]", mark[n - 1]) &&
        !strpbrk(mark, " |\"") && !strstr(mark, "｜") && strcspn(mark + 1, "<") == n - 1) {
        add_mark(list, mark, n);
        return;
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(pairs); i++)
        for (const char *s = mark, *end; (s = strstr(s, pairs[i][0])); s = end) {
            end = strstr(s + strlen(pairs[i][0]), pairs[i][1]);
            if (!end) break;
            end += strlen(pairs[i][1]);
            add_mark(list, s, (size_t)(end - s));
        }
}

static struct eng_vocab *vocab_of(size_t form, bool tokens)
{
    static const char *const ends[] = {"<test end>", "<|return|>", "<|call|>"};
    static struct token_list list;
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    memset(&list, 0, sizeof list);
    add_bytes(&list);
    for (size_t i = 0; tokens && forms[form].marks[i]; i++)
        add_marks(&list, forms[form].marks[i]);
    spec.eos = (int64_t)list.n;
    for (size_t i = 0; i < CN_ARRAY_LEN(ends); i++)
        add_token(&list, ends[i], strlen(ends[i]), ENG_TOKEN_CONTROL);
    use_tokens(&spec, &list);
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    return v;
}

/* ---- a form ---------------------------------------------------------------------------------- */

static struct eng_grammar *compile(const struct eng_grammar_in *in, const char *form)
{
    struct eng_grammar *g;
    struct cn_error err = {0};
    if (eng_grammar_compile(in, &g, &err)) fail_msg("%s: %s: %s", form, err.param, err.message);
    return g;
}

static void world_init(struct world *w, size_t form, bool tokens, bool free)
{
    char source[256];
    json_t *tool;
    size_t i;
    *w = (struct world){.form = forms[form].name, .free = free};
    w->tools = json_loads(tools, 0, NULL);
    assert_non_null(w->tools);
    assert_int_equal(eng_tools_new(w->tools, &w->types, NULL), 0);
    w->vocab = vocab_of(form, tokens);
    snprintf(source, sizeof source, "%s %s%s", forms[form].has, forms[form].also,
             !strcmp(w->form, "hy3") ? " HYTK = ':x'" : "");
    w->format = eng_reply_format(w->vocab, (struct eng_str){source, strlen(source)});
    const struct eng_grammar_in calls = {.kind = ENG_GRAMMAR_CALLS,
                                         .json = w->tools,
                                         .many = true,
                                         .free = free,
                                         .reply = &w->format,
                                         .vocab = w->vocab};
    w->grammar = compile(&calls, w->form);
    json_array_foreach(w->tools, i, tool)
    {
        const struct eng_grammar_in schema = {
            .kind = ENG_GRAMMAR_SCHEMA,
            .json = json_object_get(json_object_get(tool, "function"), "parameters"),
            .any_order = true,
            .any_spelling = true};
        w->schemas[i] = compile(&schema, w->form);
    }
}

static void world_fini(struct world *w)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(w->schemas); i++)
        eng_grammar_unref(w->schemas[i]);
    eng_grammar_unref(w->grammar);
    eng_vocab_free(w->vocab);
    eng_tools_free(w->types);
    json_decref(w->tools);
    free(w->ids.v);
}

/* ---- an answer ------------------------------------------------------------------------------- */

static void put(struct world *w, uint32_t id)
{
    assert_int_equal(cn_grow(&w->ids.v, &w->ids.cap, w->ids.n + 1, sizeof *w->ids.v), 0);
    w->ids.v[w->ids.n++] = id;
}

/* One of the tokens of the mask; mostly one that is no byte of a long text. */
static uint32_t draw(const struct world *w, const uint32_t *mask)
{
    uint32_t of[1024], n = 0, size = eng_vocab_size(w->vocab);
    for (uint32_t id = 0; id < size; id++)
        if (mask[id >> 5] >> (id & 31) & 1) of[n++] = id;
    assert_true(n);
    return of[below(n)];
}

/* Draws a whole answer, after the tokens that are there already. False: it took too many. */
static bool answer(struct world *w, enum eng_reply_start start)
{
    static uint32_t mask[64];
    const struct eng_guide_in in = {.grammar = w->grammar,
                                    .free = w->free,
                                    .vocab = w->vocab,
                                    .reply = &w->format,
                                    .start = (int)start,
                                    .n = 1,
                                    .max_tokens = 1200,
                                    .max_reasoning = UINT64_MAX};
    struct eng_guide *g;
    const uint32_t *forced;
    struct cn_error err = {0};
    bool ended = false;
    assert_int_equal(eng_guide_new(&in, &g), 0);
    for (size_t i = 0; i < w->ids.n; i++)
        eng_guide_put(g, 0, w->ids.v[i], &forced);
    while (w->ids.n < 1200 && !ended) {
        memset(mask, 0, sizeof mask);
        /* where anything may come, no thoughts are drawn: they might never end */
        if (!eng_guide_mask(g, 0, NULL, 0, UINT64_MAX, mask)) break;
        uint32_t id = draw(w, mask);
        ended = eng_vocab_is_eog(w->vocab, id);
        eng_guide_put(g, 0, id, &forced);
        if (!ended) put(w, id);
    }
    if (eng_guide_error(g, 0, &err)) fail_msg("%s: %s", w->form, err.message);
    eng_guide_free(g);
    return ended;
}

/* ---- what is in it --------------------------------------------------------------------------- */

static void check_call(const struct world *w, const char *name, struct eng_str arguments,
                       const char *raw)
{
    size_t taken;
    bool whole;
    const struct eng_grammar *schema = w->schemas[strcmp(name, "f") != 0];
    assert_int_equal(
        eng_grammar_check(schema, NULL, arguments.p, arguments.n, &taken, &whole, NULL), 0);
    if (!whole)
        fail_msg("%s: %s: %.*s\nfrom %s", w->form, name, (int)arguments.n, arguments.p, raw);
}

/* Reads the answer: how many calls there are. */
static size_t read_calls(const struct world *w, enum eng_reply_start start)
{
    struct eng_reply r;
    struct eng_parts parts;
    struct cn_buf raw;
    char name[8] = "";
    size_t at = 0, n = 0, from = SIZE_MAX;
    eng_parts_init(&parts);
    cn_buf_init(&raw, 0);
    eng_reply_init(&r, &w->format, w->types, start);
    for (size_t i = 0; i < w->ids.n; i++) {
        uint32_t id = w->ids.v[i];
        struct eng_str s = eng_vocab_piece(w->vocab, id, true);
        cn_buf_append(&raw, s.p, s.n);
        assert_int_equal(eng_reply_is_mark(&r, id) ? eng_reply_mark(&r, id, &parts)
                                                   : eng_reply_text(&r, s.p, s.n, &parts),
                         0);
    }
    assert_int_equal(eng_reply_finish(&r, false, &parts), 0);
    if (eng_reply_calls(&r) == ENG_CALLS_CUT) fail_msg("%s: cut: %s", w->form, cn_buf_cstr(&raw));
    for (size_t i = 0; i <= parts.n_runs; i++) {
        enum eng_part part = i < parts.n_runs ? parts.runs[i].part : ENG_PART_CALL;
        bool more = i < parts.n_runs && part == ENG_PART_ARGUMENTS;
        if (more && from == SIZE_MAX) from = at;
        if (!more && from != SIZE_MAX) {
            check_call(w, name, (struct eng_str){parts.text.data + from, at - from},
                       cn_buf_cstr(&raw));
            from = SIZE_MAX;
        }
        if (i == parts.n_runs) break;
        if (part == ENG_PART_CALL) {
            n++;
            snprintf(name, sizeof name, "%.*s", (int)(parts.runs[i].end - at),
                     parts.text.data + at);
        }
        at = parts.runs[i].end;
    }
    if (!n && !w->silent) fail_msg("%s: no call in %s", w->form, cn_buf_cstr(&raw));
    eng_reply_fini(&r);
    eng_parts_fini(&parts);
    cn_buf_fini(&raw);
    return n;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static enum eng_reply_start start_of(const struct world *w)
{
    bool prompted = w->format.form->flags & ENG_F_PROMPTED;
    return prompted ? ENG_REPLY_CALL : ENG_REPLY_ANEW;
}

static void test_required(void **state)
{
    size_t times = getenv("CONIFER_LONG") ? 400 : 12;
    for (size_t form = 0; form < CN_ARRAY_LEN(forms); form++) {
        for (int tokens = 0; tokens < 2; tokens++) {
            struct world w;
            size_t calls = 0, ended = 0;
            world_init(&w, form, tokens, false);
            for (size_t i = 0; i < times; i++) {
                w.ids.n = 0;
                if (!answer(&w, start_of(&w))) continue;
                ended++;
                calls += read_calls(&w, start_of(&w));
            }
            printf("%-16s %s %zu calls in %zu of %zu answers\n", w.form,
                   tokens ? "tokens" : "text  ", calls, ended, times);
            assert_true(ended);
            world_fini(&w);
        }
    }
}

static void put_byte(struct world *w, uint8_t byte)
{
    char c[4];
    size_t n = cn_utf8_encode(eng_byte_char(byte), c);
    put(w, (uint32_t)eng_vocab_find(w->vocab, c, n));
}

/* Text, and the mark of a call. */
static void begin_call(struct world *w, size_t mark)
{
    const struct eng_reply_mark *m = &w->format.marks[mark];
    w->ids.n = 0;
    for (const char *s = "Hm. "; *s; s++)
        put_byte(w, (uint8_t)*s);
    for (size_t i = 0; i < m->n_symbols; i++) {
        unsigned symbol = w->format.symbols[m->symbols + i];
        if (symbol < 256)
            put_byte(w, (uint8_t)symbol);
        else
            put(w, w->format.tokens[symbol - 256].id);
    }
}

static void check_free(struct world *w, size_t times)
{
    size_t marks[ENG_CALLS_OPENINGS], n = eng_calls_openings(&w->format, marks), ended = 0;
    bool whole = eng_calls_whole(&w->format);
    w->silent = whole; /* any text may come instead */
    for (size_t i = 0; i < times * (whole ? 1 : n); i++) {
        w->ids.n = 0;
        if (!whole) begin_call(w, marks[i % n]);
        if (!answer(w, whole ? start_of(w) : ENG_REPLY_ANEW)) continue;
        ended++;
        read_calls(w, whole ? start_of(w) : ENG_REPLY_ANEW);
    }
    assert_true(ended);
}

static void test_not_required(void **state)
{
    size_t times = getenv("CONIFER_LONG") ? 400 : 8;
    for (size_t form = 0; form < CN_ARRAY_LEN(forms); form++) {
        for (int tokens = 0; tokens < 2; tokens++) {
            struct world w;
            world_init(&w, form, tokens, true);
            bool bare = w.format.form->flags & ENG_F_BARE;
            assert_int_equal(eng_grammar_may_wait(&w.format), !bare);
            if (!bare) check_free(&w, times);
            world_fini(&w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests_of[] = {cmocka_unit_test(test_required),
                                          cmocka_unit_test(test_not_required)};
    return cmocka_run_group_tests_name("made calls", tests_of, NULL, NULL);
}
