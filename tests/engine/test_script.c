/* Scripts of the null model: their format and the chat template. Truth: the format's description in
 * docs/NULL.md; for templates the family's template alone, without the script's code around it. */
#include "golden.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "engine/gguf.h"
#include "engine/script.h"

static int parse(const char *text, size_t n, struct eng_script *s, struct cn_error *err)
{
    struct cn_buf b;
    cn_buf_init(&b, 0);
    assert_int_equal(cn_buf_append(&b, text, n), 0);
    int rc = eng_script_parse(&b, s, err);
    assert_null(b.data); /* the parser owns it */
    return rc;
}

static void good(const char *text, struct eng_script *s)
{
    struct cn_error err = {0};
    if (parse(text, strlen(text), s, &err)) fail_msg("%s\n%s", text, err.message);
}

static void is(struct eng_str s, const char *want)
{
    if (s.n != strlen(want) || memcmp(s.p, want, s.n))
        fail_msg("\"%.*s\" is not \"%s\"", (int)s.n, s.p, want);
}

static void lists(const struct eng_str *list, size_t n, const char *want)
{
    char text[512] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.*s", i ? " " : "",
                 (int)list[i].n, list[i].p);
    assert_string_equal(text, want);
}

static void test_parsed(void **state)
{
    struct eng_script s;
    good("# said first\n\nmarks: <a>  \"b c\"\t<b> <a>\r\ncontrol: <|c|>\nprompt_ends: <b> \"x "
         "y:\"\n"
         "end: <|c|>\nbos: <s>\nbreak:  ~~ \n"
         "=== template\n{{ x }}\n\\=== y\n\n"
         "=== answer turn=2 step=13 user= the \"weather\" in 'x'  \n"
         "one\ntwo ~~\n\n"
         "=== answer\n=== answer step=1\n\\=== \n==== no section\n# text\n\\\\=== as it is\n ===",
         &s);
    lists(s.marks, s.n_marks, "<a> b c <b> x y:");
    lists(s.control, s.n_control, "<|c|> <s> <|im_start|> <|im_end|>");
    lists(s.ends, s.n_ends, "<b> x y:");
    is(s.end, "<|c|>");
    is(s.bos, "<s>");
    is(s.gap, "~~");
    is(s.source, "{{ x }}\n=== y\n");
    assert_int_equal(s.n_answers, 3);
    assert_true(s.answers[0].turn == 2 && s.answers[0].step == 13);
    is(s.answers[0].user, " the \"weather\" in 'x'");
    is(s.answers[0].text, "one\ntwo ~~\n");
    assert_true(!s.answers[1].turn && !s.answers[1].step && !s.answers[1].user.n);
    is(s.answers[1].text, "");
    is(s.answers[2].text, "=== \n==== no section\n# text\n\\\\=== as it is\n ===");
    eng_script_fini(&s);
    good("=== answer\nx", &s);
    lists(s.marks, s.n_marks,
          "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>");
    lists(s.control, s.n_control, "<|im_start|> <|im_end|>");
    is(s.end, "<|im_end|>");
    assert_true(!s.bos.n && !s.gap.n && !s.source.p && !s.template_path.n && !s.n_ends);
    eng_script_fini(&s);
    good("marks:\ntemplate: a b/c.jinja\n=== answer\n", &s);
    assert_int_equal(s.n_marks, 0);
    is(s.template_path, "a b/c.jinja");
    is(s.answers[0].text, "");
    eng_script_fini(&s);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", CN_EFORMAT, "no section \"=== answer\""},
        {"marks: <a>\n", CN_EFORMAT, "no section \"=== answer\""},
        {"=== template\nx\n", CN_EFORMAT, "no section \"=== answer\""},
        {"\nhello\n=== answer\n", CN_EFORMAT, "line 2: no setting (NAME: VALUE)"},
        {"mark: x\n", CN_EFORMAT, "line 1: no setting (there are: marks, control"},
        {"marks: <a>\nmarks: <b>\n", CN_EFORMAT, "line 2: twice the setting \"marks\""},
        {"marks:\nmarks:\n", CN_EFORMAT, "line 2: twice"},
        {"end: <a>\nend: <a>\n", CN_EFORMAT, "line 2: twice the setting \"end\""},
        {"marks: <a> \"b c\n", CN_EFORMAT, "line 1: no end of the quotes in \"\"b c\""},
        {"marks: \"\n", CN_EFORMAT, "line 1: no end of the quotes"},
        {"marks: \"b c\"d\n", CN_EFORMAT, "line 1: no end of the quotes"},
        {"marks: \"\"\n", CN_EFORMAT, "line 1: a token has at least 2 characters"},
        {"break: \n", CN_EFORMAT, "line 1: no value for \"break\""},
        {"control: a\n", CN_EFORMAT, "line 1: a token has at least 2 characters"},
        {"end: \u0120\n", CN_EFORMAT, "not \"\u0120\""},
        {"template: a\n=== template\n", CN_EFORMAT, "line 2: a second template"},
        {"=== template\nx\n=== template\n", CN_EFORMAT, "line 3: a second template"},
        {"=== template\n\n=== template\n", CN_EFORMAT, "line 3: a second template"},
        {"=== answers\n", CN_EFORMAT, "line 1: a section is"},
        {"=== \n", CN_EFORMAT, "line 1: a section is"},
        {"=== answer\nx\ny\n=== Answer\n", CN_EFORMAT, "line 4: a section is"},
        {"=== answer turn=0\n", CN_EFORMAT, "line 1: not one number of 1 or more: \"turn=0\""},
        {"=== answer turn=\n", CN_EFORMAT, "not one number"},
        {"=== answer turn=1x\n", CN_EFORMAT, "not one number"},
        {"=== answer turn=-1\n", CN_EFORMAT, "not one number"},
        {"=== answer turn=1 turn=2\n", CN_EFORMAT, "not one number"},
        {"=== answer step=99999999999999999999\n", CN_EFORMAT, "not one number"},
        {"=== answer user=\n", CN_EFORMAT, "no text in the condition"},
        {"=== answer users=x\n", CN_EFORMAT, "no condition of an answer"},
        {"=== answer 1\n", CN_EFORMAT,
         "no condition of an answer (turn=N, step=N, user=TEXT): \"1\""},
        {"=== answer\n\xff\n", CN_EFORMAT, "UTF-8"},
        {"=== answer\n\xed\xa0\x80\n", CN_EFORMAT, "UTF-8"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cn_error err = {0};
        struct eng_script s = {.n_marks = 77};
        int rc = parse(cases[i].text, strlen(cases[i].text), &s, &err);
        if (rc != cases[i].code || !strstr(err.message, cases[i].says))
            fail_msg("%s: %d \"%s\"", cases[i].text, rc, err.message);
        assert_string_equal(err.param, "model");
        assert_int_equal(s.n_marks, 77); /* untouched */
    }
    struct cn_error err = {0};
    struct eng_script s;
    assert_int_equal(parse("=== answer\na\0b", 14, &s, &err), CN_EFORMAT);
}

/* Each size at its limit, and one more. */
static void test_limits(void **state)
{
    for (size_t more = 0; more < 2; more++) {
        struct eng_script s = {0};
        struct cn_error err = {0};
        struct cn_buf b;
        cn_buf_init(&b, 0);
        for (size_t i = 0; i < ENG_SCRIPT_MAX_ANSWERS + more; i++)
            cn_buf_puts(&b, "=== answer\nx\n");
        assert_int_equal(eng_script_parse(&b, &s, &err), more ? CN_ELIMIT : 0);
        if (!more) assert_int_equal(s.n_answers, ENG_SCRIPT_MAX_ANSWERS);
        eng_script_fini(&s);
        cn_buf_puts(&b, "marks:");
        for (size_t i = 0; i < ENG_SCRIPT_MAX_TOKENS - 2 + more; i++) /* ChatML's two are added */
            cn_buf_printf(&b, " <%zu>", i);
        cn_buf_puts(&b, "\n=== answer\nx\n");
        assert_int_equal(eng_script_parse(&b, &s, &err), more ? CN_ELIMIT : 0);
        eng_script_fini(&s);
        cn_buf_puts(&b, "control: ");
        for (size_t i = 0; i < ENG_SCRIPT_TOKEN_BYTES + more; i++)
            cn_buf_putc(&b, 'x');
        cn_buf_puts(&b, "\n=== answer\nx\n");
        assert_int_equal(eng_script_parse(&b, &s, &err), more ? CN_EFORMAT : 0);
        eng_script_fini(&s);
        cn_buf_puts(&b, "=== answer\n");
        while (b.len < ENG_SCRIPT_MAX_BYTES + more)
            cn_buf_putc(&b, 'x');
        assert_int_equal(eng_script_parse(&b, &s, &err), more ? CN_ELIMIT : 0);
        eng_script_fini(&s);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static char dir[] = "/tmp/conifer-script-XXXXXX";

static const char *const names[] = {"s.txt", "t.jinja", "l.txt"};

static const char *file(const char *name, const char *text)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void test_files(void **state)
{
    struct eng_script s;
    struct cn_error err = {0};
    char path[128], missing[128];
    snprintf(missing, sizeof missing, "%s/none.txt", dir);
    assert_int_equal(eng_script_read(missing, &s, &err), CN_EIO);
    assert_non_null(strstr(err.message, "the script: No such file"));
    assert_null(strstr(err.message, dir)); /* clients see some messages */
    assert_int_equal(eng_script_read(dir, &s, &err), CN_EIO);
    assert_null(strstr(err.message, dir));
    snprintf(path, sizeof path, "%s", file("s.txt", "template: t.jinja\n=== answer\nx\n"));
    assert_int_equal(eng_script_read(path, &s, &err), CN_EIO);
    assert_non_null(strstr(err.message, "the script's template: No such file"));
    assert_null(strstr(err.message, dir));
    file("t.jinja", "{{ messages[0].content }}\n");
    assert_int_equal(eng_script_read(path, &s, &err), 0);
    is(s.source, "{{ messages[0].content }}\n");
    eng_script_fini(&s);
    file("t.jinja", ""); /* empty, but not the built-in one */
    assert_int_equal(eng_script_read(path, &s, &err), 0);
    assert_true(s.source.p && !s.source.n);
    eng_script_fini(&s);
    char *large = calloc(1, ENG_SCRIPT_MAX_BYTES + 2);
    assert_non_null(large);
    memset(large, 'x', ENG_SCRIPT_MAX_BYTES + 1);
    file("t.jinja", large);
    assert_int_equal(eng_script_read(path, &s, &err), CN_ELIMIT);
    assert_int_equal(eng_script_read(file("l.txt", large), &s, &err), CN_ELIMIT);
    free(large);
}

/* ---- chat templates -------------------------------------------------------------------------- */

/* The chat template of a model with this script. */
static struct eng_template *chat_of(const struct eng_script *s, const char *name)
{
    struct eng_template *t = NULL;
    struct cn_error err = {0};
    struct cn_buf b;
    cn_buf_init(&b, 0);
    assert_int_equal(eng_script_chat(s, &b), 0);
    if (eng_template_new(b.data, b.len, &t, &err)) print_error("%s: %s\n", name, err.message);
    cn_buf_fini(&b);
    return t;
}

static int render(const struct eng_template *t, json_t *input, struct eng_rendered *r,
                  struct cn_error *err)
{
    json_t *kwargs = json_copy(input);
    struct eng_template_in in = {
        .messages = json_object_get(input, "messages"),
        .tools = json_object_get(input, "tools"),
        .add_generation_prompt = json_is_true(json_object_get(input, "add_generation_prompt")),
        .bos_token = {"<BOS>", 5},
        .eos_token = {"<EOS>", 5},
        .now_s = 1767323045,
        .limits = {.max_ns = 60000000000},
    };
    json_object_del(kwargs, "messages");
    json_object_del(kwargs, "tools");
    json_object_del(kwargs, "add_generation_prompt");
    in.kwargs = kwargs;
    *r = (struct eng_rendered){0};
    int rc = eng_template_render(t, &in, r, err);
    json_decref(kwargs);
    return rc;
}

static bool trusted(const struct eng_rendered *r, size_t at)
{
    size_t i = 0;
    while (i < r->n_spans && r->spans[i].end <= at)
        i++;
    return i < r->n_spans && r->spans[i].trusted;
}

/* The second one fits every conversation in these tests. */
static struct eng_script_answer two_answers[] = {{.user = {"never said", 10}, .text = {"x", 1}},
                                                 {.text = {"x", 1}}};

/* Whether `with` is `plain` with the answer's token inserted, every byte with the same origin and
 * the token trusted. */
static bool same_but_mark(const struct eng_rendered *plain, const struct eng_rendered *with,
                          bool asked)
{
    const char *mark = asked ? "<|script:2|>" : "";
    size_t n = strlen(mark), at = 0;
    if (with->text.len != plain->text.len + n) return false;
    if (!with->text.len) return true; /* no bytes, no buffer */
    while (at < plain->text.len && with->text.data[at] == plain->text.data[at])
        at++;
    while (at &&
           memcmp(with->text.data + at, mark, n)) /* the text there may begin as the token does */
        at--;
    if (memcmp(with->text.data + at, mark, n) ||
        (at < plain->text.len &&
         memcmp(with->text.data + at + n, plain->text.data + at, plain->text.len - at)))
        return false;
    for (size_t i = 0; i < with->text.len; i++) {
        bool own = i >= at && i < at + n;
        size_t there = i < at ? i : i - n;
        if (trusted(with, i) != (own || trusted(plain, there))) return false;
    }
    return true;
}

static bool same_case(const struct eng_template *plain, const struct eng_template *with,
                      const struct eng_reply_format *f, json_t *input)
{
    struct eng_rendered a, b;
    struct cn_error err;
    int rc = render(plain, input, &a, NULL);
    bool asked = json_is_true(json_object_get(input, "add_generation_prompt"));
    bool ok = render(with, input, &b, &err) == rc;
    if (ok && !rc)
        ok = same_but_mark(&a, &b, asked) &&
             (f->kind != ENG_REPLY_TAGS ||
              eng_reply_where(f, &a, false) == eng_reply_where(f, &b, false));
    if (!ok) print_error("rc %d (%s)\n", rc, rc ? "" : b.text.data);
    if (!rc) {
        eng_rendered_fini(&a);
        eng_rendered_fini(&b);
    }
    return ok;
}

/* Both templates take messages in the same form, as far as can be learnt of them. */
static bool same_forms(const struct eng_template *a, const struct eng_template *b)
{
    static const char odd[] =
        "[{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": "
        "[{\"type\": "
        "\"text\", \"text\": \"b\"}, {\"type\": \"text\", \"text\": \"c\"}]}, {\"role\": \"user\", "
        "\"content\": [{\"type\": \"text\", \"text\": \"d\"}]}, {\"role\": \"assistant\", "
        "\"content\": null, "
        "\"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": "
        "\"f\", "
        "\"arguments\": {\"x\": 1}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call00001\", "
        "\"content\": "
        "[{\"type\": \"text\", \"text\": \"e\"}]}, {\"role\": \"system\", \"content\": \"f\"}, "
        "{\"role\": "
        "\"user\", \"content\": \"g\"}]";
    json_t *fit[2];
    bool same = eng_template_null_content(a) == eng_template_null_content(b) &&
                eng_template_text_arguments(a) == eng_template_text_arguments(b) &&
                eng_template_takes_tools(a) == eng_template_takes_tools(b);
    for (int role = 0; role < ENG_N_ROLES; role++)
        same &= eng_template_takes_parts(a, (enum eng_role)role) ==
                eng_template_takes_parts(b, (enum eng_role)role);
    for (int i = 0; i < 2; i++) {
        fit[i] = json_loads(odd, 0, NULL);
        assert_non_null(fit[i]);
        assert_int_equal(eng_template_fit(i ? b : a, fit[i], NULL), 0);
    }
    same &= json_equal(fit[0], fit[1]);
    json_decref(fit[0]);
    json_decref(fit[1]);
    return same;
}

static bool same_file(const char *json, const struct eng_vocab *v, size_t *cases, size_t *opened)
{
    struct eng_template *plain = NULL;
    char path[4096];
    struct cn_buf source;
    struct cn_error err = {0};
    json_t *doc = golden_json(json), *tests = json_object_get(doc, "cases");
    bool ok = true;
    cn_buf_init(&source, 0);
    snprintf(path, sizeof path, "%.*s.jinja", (int)(strlen(json) - 5), json);
    assert_int_equal(cn_file_read(path, false, 1 << 22, &source, &err), 0);

    /* Prompts of Functionary end with the mark of a call, of Hunyuan with one of its own. */
    struct eng_str ends[] = {{">>>", 3}, {"</think:opensource>", 19}};
    struct eng_script s = {.source = {source.data, source.len},
                           .answers = two_answers,
                           .n_answers = 2,
                           .ends = ends,
                           .n_ends = CN_ARRAY_LEN(ends)};
    assert_int_equal(eng_template_new(source.data, source.len, &plain, &err), 0);
    struct eng_template *with = chat_of(&s, json);
    struct eng_reply_format f = eng_reply_format(v, s.source);
    ok = with && same_forms(plain, with);
    if (!ok) print_error("%s: another form of messages\n", json);
    for (size_t i = 0; with && i < json_array_size(tests); i++) {
        json_t *test = json_array_get(tests, i), *input = json_object_get(test, "input");
        bool same = same_case(plain, with, &f, input);
        if (!same) print_error("%s/%s\n", json, json_string_value(json_object_get(test, "name")));
        ok &= same;
        ++*cases;
    }
    struct eng_rendered r;
    json_t *hello = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "x",
                              "add_generation_prompt", 1);
    if (with && f.kind == ENG_REPLY_TAGS && !render(with, hello, &r, NULL)) {
        *opened += eng_reply_where(&f, &r, false) == ENG_REPLY_OPENED;
        eng_rendered_fini(&r);
    }
    json_decref(hello);
    eng_template_free(plain);
    eng_template_free(with);
    cn_buf_fini(&source);
    json_decref(doc);
    return ok && with;
}

/* Every template of the oracle renders the same apart from the answer's token, and the parser of
 * replies finds the same beginning. */
static void test_oracle_templates(void **state)
{
    const char *root = getenv("CONIFER_ORACLE");
    char pattern[4096];
    glob_t g;
    struct eng_gguf *gguf;
    struct eng_vocab *v;
    struct cn_error err;
    size_t cases = 0, opened = 0, bad = 0;
    snprintf(pattern, sizeof pattern, "%s/templates/*.json",
             root ? root : CONIFER_SOURCE_ROOT "/../shared/oracle");
    if (glob(pattern, 0, NULL, &g) || !g.gl_pathc) skip();
    assert_int_equal(eng_gguf_open("null", &gguf, &err), 0);
    assert_int_equal(eng_gguf_vocab(gguf, &v, &err), 0);
    for (size_t i = 0; i < g.gl_pathc; i++)
        bad += !same_file(g.gl_pathv[i], v, &cases, &opened);
    print_message("%zu templates, %zu cases; %zu prompts open reasoning\n", (size_t)g.gl_pathc,
                  cases, opened);
    assert_true(cases > 300 && opened >= 5); /* some prompts end with a mark */
    assert_int_equal(bad, 0);
    eng_vocab_free(v);
    eng_gguf_close(gguf);
    globfree(&g);
}

/* White space at the ends of a template has the same effect with and without the script's code. */
static void test_edges(void **state)
{
    static const char *const sources[] = {
        "",
        "\n",
        "\n\nx\n\n",
        "  {% if true %}\n  x{% endif %}  ",
        "  {%- if true %}x\n  {% endif %}\n\n",
        "{# c #}\n x\n ",
        " {{ 'x' }}\n {{- 'y' -}} \n",
        "{% for m in messages %}{{ m.content }}\n{% endfor %}\n   ",
        "x{% if add_generation_prompt %}<think>\n\n{% endif %}",
        "x{% if add_generation_prompt %}<think></think>{% endif %}",
    };
    struct eng_reply_format f = eng_reply_format(NULL, (struct eng_str){"</think>", 8});
    for (size_t i = 0; i < 2 * CN_ARRAY_LEN(sources); i++) {
        const char *source = sources[i / 2];
        struct eng_script s = {
            .source = {source, strlen(source)}, .answers = two_answers, .n_answers = 2};
        struct eng_template *plain, *with = chat_of(&s, source);
        struct cn_error err = {0};
        assert_int_equal(eng_template_new(source, s.source.n, &plain, &err), 0);
        json_t *in = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "y",
                               "add_generation_prompt", (int)(i % 2));
        if (!with || !same_case(plain, with, &f, in)) fail_msg("\"%s\"", source);
        json_decref(in);
        eng_template_free(plain);
        eng_template_free(with);
    }
}

/* Asserts the answer of a conversation. A message is u (user), a (assistant) or t (tool), then its
 * text; "|" before the text makes it a list of parts. */
static void chosen(const struct eng_template *t, const char *const *messages, const char *want)
{
    json_t *list = json_array(),
           *input = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", 1);
    for (; *messages; messages++) {
        const char *role = **messages == 'u' ? "user" : **messages == 'a' ? "assistant" : "tool";
        json_t *text;
        if ((*messages)[1] == '|') /* parts */
            text = json_pack("[{s:s, s:s}, {s:s}, {s:s, s:s}]", "type", "text", "text", "the we",
                             "type", "image", "type", "text", "text", *messages + 2);
        else
            text = strcmp(*messages + 1, "null") ? json_string(*messages + 1) : json_null();
        json_array_append_new(list, json_pack("{s:s, s:o}", "role", role, "content", text));
    }
    struct eng_rendered r;
    struct cn_error err = {0};
    if (render(t, input, &r, &err)) fail_msg("%s", err.message);
    size_t n = strlen(want);
    if (r.text.len < n || memcmp(r.text.data + r.text.len - n, want, n))
        fail_msg("%.*s: does not end in %s", (int)r.text.len, r.text.data, want);
    eng_rendered_fini(&r);
    json_decref(input);
}

static void test_choice(void **state)
{
    struct eng_script s;
    good("=== answer turn=1 user=weather\n=== answer step=2 user=it's a \\ \"quote\"\n"
         "=== answer turn=2 step=2\n=== answer turn=3 step=1\n=== answer turn=7\n",
         &s);
    struct eng_template *t = chat_of(&s, "choice");
    assert_non_null(t);
    const struct {
        const char *messages[8], *want;
    } cases[] = {
        {{"uthe weather?"}, "<|script:1|>"},
        {{"u|ather?"}, "<|script:1|>"}, /* in two parts */
        {{"uthe news?"}, "<|script:0|>"},
        {{"unull"}, "<|script:0|>"},
        {{"uweather", "ax", "unews"}, "<|script:0|>"}, /* turn 2, step 1 */
        {{"unews", "ax", "uweather"}, "<|script:0|>"},
        {{"uweather", "ax", "ty"}, "<|script:3|>"},
        {{"uit's a \\ \"quote\"", "anull", "ty", "tz"}, "<|script:2|>"},
        {{"ux", "ax", "uit's a \\ \"quote\"", "anull", "ty"}, "<|script:2|>"},
        {{"ux", "ax", "ux", "ax", "ux"}, "<|script:4|>"},
        {{"ux", "ax", "ux", "ax", "tx"}, "<|script:0|>"},
        {{"ux", "ax", "ax", "ax", "ax", "ax", "ax"}, "<|script:5|>"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        chosen(t, cases[i].messages, cases[i].want);
    eng_template_free(t);
    eng_script_fini(&s);
}

/* The built-in template against the form of Qwen's. */
static void test_built_in(void **state)
{
    static const char input[] =
        "{\"add_generation_prompt\": true, \"tools\": [{\"type\": \"function\", \"function\": "
        "{\"name\": \"f\"}}], \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
        "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"U\"}]}, {\"role\": "
        "\"assistant\", \"content\": null, \"reasoning_content\": \"R\", \"tool_calls\": "
        "[{\"type\": "
        "\"function\", \"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}, "
        "{\"type\": \"function\", \"id\": \"2\", \"function\": {\"name\": \"g\", \"arguments\": "
        "\"{}\"}}]}, {\"role\": \"tool\", \"content\": \"T1\"}, {\"role\": \"tool\", \"content\": "
        "\"T2\"}], \"enable_thinking\": false}";
    /* Everything but the sentence that explains how to call. */
    static const char head[] =
        "<|im_start|>system\nS\n\n# Tools\n\nYou may call these functions to answer the user:\n"
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>\n\n";
    static const char tail[] =
        "\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nR\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
        "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n<|script:1|></think>\n\n";
    struct eng_script s;
    struct eng_rendered r;
    struct cn_error err = {0};
    good("=== answer\n", &s);
    struct eng_template *t = chat_of(&s, "built in");
    assert_non_null(t);
    assert_true(eng_template_takes_tools(t));
    json_t *in = json_loads(input, 0, NULL);
    assert_non_null(in);
    if (render(t, in, &r, &err)) fail_msg("%s", err.message);
    assert_true(r.text.len > sizeof head + sizeof tail);
    assert_memory_equal(r.text.data, head, sizeof head - 1);
    assert_memory_equal(r.text.data + r.text.len - (sizeof tail - 1), tail, sizeof tail - 1);
    eng_rendered_fini(&r);
    json_decref(in);
    eng_template_free(t);
    eng_script_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsed), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_files),
        cmocka_unit_test(test_choice), cmocka_unit_test(test_built_in),
        cmocka_unit_test(test_edges),  cmocka_unit_test(test_oracle_templates),
    };
    if (!mkdtemp(dir)) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return rc;
}
