/* script: reads a null model's script (script.h has the format). The file is an operator's: its
 * content is trusted, its size and counts are bounded. Used by one thread while a model is opened.
 */
#include "engine/script.h"

#include <stdlib.h>
#include <string.h>

#define SECTION "=== "

enum list { MARKS, CONTROL, ENDS, N_LISTS };

struct reader {
    struct eng_script *s;
    char *at, *end;
    size_t line;
    size_t cap[N_LISTS], cap_answers;
    bool listed[N_LISTS]; /* the setting was read */
    struct cn_error *err;
};

static bool is(struct eng_str s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

static bool begins(struct eng_str s, const char *text)
{
    return s.n >= strlen(text) && !memcmp(s.p, text, strlen(text));
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct eng_str trimmed(struct eng_str s)
{
    while (s.n && blank(s.p[s.n - 1]))
        s.n--;
    while (s.n && blank(*s.p))
        s.p++, s.n--;
    return s;
}

static int bad(struct reader *r, const char *what, struct eng_str s)
{
    return cn_fail_param(r->err, CN_EFORMAT, "model", "script, line %zu: %s \"%.*s\"", r->line,
                         what, (int)CN_MIN(s.n, (size_t)60), s.p);
}

static int no_memory(struct cn_error *err)
{
    return cn_fail(err, CN_ENOMEM, "out of memory");
}

/* ---- settings -------------------------------------------------------------------------------- */

static bool has(const struct eng_str *list, size_t n, struct eng_str text)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].n == text.n && !memcmp(list[i].p, text.p, text.n)) return true;
    return false;
}

/* Adds a token unless one of the lists has it. Single characters may be the texts of byte
 * tokens. */
static int add_token(struct reader *r, enum list to, struct eng_str text)
{
    struct eng_script *s = r->s;
    if (has(s->marks, s->n_marks, text) || has(s->control, s->n_control, text)) return CN_OK;
    uint32_t cp;
    if (!text.n || cn_utf8_decode(text.p, text.n, &cp) == text.n || text.n > ENG_SCRIPT_TOKEN_BYTES)
        return bad(r, "a token has at least 2 characters and at most 128 bytes, not", text);
    if (s->n_marks + s->n_control == ENG_SCRIPT_MAX_TOKENS)
        return cn_fail_param(r->err, CN_ELIMIT, "model", "script, line %zu: more than %d tokens",
                             r->line, ENG_SCRIPT_MAX_TOKENS);
    struct eng_str **list = to == CONTROL ? &s->control : &s->marks;
    size_t *n = to == CONTROL ? &s->n_control : &s->n_marks;
    if (cn_grow(list, &r->cap[to], *n + 1, sizeof **list)) return no_memory(r->err);
    (*list)[(*n)++] = text;
    return CN_OK;
}

static int add_end(struct reader *r, struct eng_str text)
{
    struct eng_script *s = r->s;
    int rc = add_token(r, MARKS, text);
    if (rc || has(s->ends, s->n_ends, text)) return rc;
    if (cn_grow(&s->ends, &r->cap[ENDS], s->n_ends + 1, sizeof *s->ends)) return no_memory(r->err);
    s->ends[s->n_ends++] = text;
    return CN_OK;
}

/* The text up to a blank, or between quotes (if the second one is missing, the rest). */
static struct eng_str first_word(struct eng_str words)
{
    struct eng_str word = words;
    if (*words.p == '"') {
        const char *end = memchr(words.p + 1, '"', words.n - 1);
        return (struct eng_str){words.p + 1, end ? (size_t)(end - words.p) - 1 : words.n - 1};
    }
    for (word.n = 0; word.n < words.n && !blank(words.p[word.n]);)
        word.n++;
    return word;
}

static int add_tokens(struct reader *r, enum list to, struct eng_str words)
{
    int rc = CN_OK;
    r->listed[to] = true;
    while (!rc && words.n) {
        struct eng_str word = first_word(words);
        bool quoted = *words.p == '"';
        size_t n = word.n + 2 * quoted;
        if (quoted && (n > words.n || (n < words.n && !blank(words.p[n]))))
            return bad(r, "no end of the quotes in", words);
        rc = to == ENDS ? add_end(r, word) : add_token(r, to, word);
        words = trimmed((struct eng_str){words.p + n, words.n - n});
    }
    return rc;
}

static int setting(struct reader *r, struct eng_str line)
{
    static const char *const lists[N_LISTS] = {"marks", "control", "prompt_ends"};
    const char *colon = memchr(line.p, ':', line.n);
    struct eng_script *s = r->s;
    if (!colon) return bad(r, "no setting (NAME: VALUE) and no section:", line);
    struct eng_str name = {line.p, (size_t)(colon - line.p)};
    struct eng_str value = trimmed((struct eng_str){colon + 1, line.n - name.n - 1}),
                   *single = NULL;
    for (int i = 0; i < N_LISTS; i++)
        if (is(name, lists[i]))
            return r->listed[i] ? bad(r, "twice the setting", name)
                                : add_tokens(r, (enum list)i, value);
    if (is(name, "end")) single = &s->end;
    if (is(name, "bos")) single = &s->bos;
    if (is(name, "break")) single = &s->gap;
    if (is(name, "template")) single = &s->template_path;
    if (!single)
        return bad(r,
                   "no setting (there are: marks, control, prompt_ends, end, bos, break, template)",
                   name);
    if (single->n) return bad(r, "twice the setting", name);
    if (!value.n) return bad(r, "no value for", name);
    *single = value;
    return single == &s->end || single == &s->bos ? add_token(r, CONTROL, value) : CN_OK;
}

/* ---- sections -------------------------------------------------------------------------------- */

static int condition(struct reader *r, struct eng_script_answer *a, struct eng_str *rest)
{
    size_t n = 0;
    while (n < rest->n && !blank(rest->p[n]))
        n++;
    struct eng_str word = {rest->p, n};
    bool step = begins(word, "step=");
    uint64_t *number = step ? &a->step : &a->turn;
    if (begins(word, "user=")) {
        a->user = (struct eng_str){rest->p + 5, rest->n - 5};
        rest->n = 0;
        return a->user.n ? CN_OK : bad(r, "no text in the condition", word);
    }
    if (!step && !begins(word, "turn="))
        return bad(r, "no condition of an answer (turn=N, step=N, user=TEXT):", word);
    if (*number || !cn_parse_u64(word.p + 5, n - 5, number) || !*number)
        return bad(r, "not one number of 1 or more:", word);
    *rest = trimmed((struct eng_str){rest->p + n, rest->n - n});
    return CN_OK;
}

/* The lines up to the next section; removing a backslash moves the rest of the text. */
static struct eng_str body(struct reader *r)
{
    char *out = r->at, *from = r->at;
    while (r->at < r->end) {
        char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
        struct eng_str line = {r->at, (size_t)((newline ? newline + 1 : r->end) - r->at)};
        if (begins(line, SECTION)) break;
        r->at += line.n;
        r->line++;
        bool escaped = begins(line, "\\" SECTION);
        memmove(out, line.p + escaped, line.n - escaped);
        out += line.n - escaped;
    }
    if (out > from && out[-1] == '\n') out--; /* of the last line */
    return (struct eng_str){from, (size_t)(out - from)};
}

static int section(struct reader *r, struct eng_str head)
{
    struct eng_script *s = r->s;
    struct eng_script_answer a = {0};
    struct eng_str rest = trimmed((struct eng_str){head.p + 4, head.n - 4});
    int rc = CN_OK;
    if (is(rest, "template")) {
        if (s->source.p || s->template_path.n) return bad(r, "a second template:", head);
        s->source = body(r);
        return CN_OK;
    }
    if (!is(rest, "answer") && !begins(rest, "answer "))
        return bad(r, "a section is \"=== answer\" or \"=== template\", not", head);
    rest = trimmed((struct eng_str){rest.p + 6, rest.n - 6});
    while (!rc && rest.n)
        rc = condition(r, &a, &rest);
    if (rc) return rc;
    if (s->n_answers == ENG_SCRIPT_MAX_ANSWERS)
        return cn_fail_param(r->err, CN_ELIMIT, "model", "script, line %zu: more than %d answers",
                             r->line, ENG_SCRIPT_MAX_ANSWERS);
    if (cn_grow(&s->answers, &r->cap_answers, s->n_answers + 1, sizeof *s->answers))
        return no_memory(r->err);
    a.text = body(r);
    s->answers[s->n_answers++] = a;
    return CN_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int read_lines(struct reader *r)
{
    int rc = CN_OK;
    bool sections = false;
    while (!rc && r->at < r->end) {
        char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
        struct eng_str line = {r->at, (size_t)((newline ? newline : r->end) - r->at)};
        r->at = newline ? newline + 1 : r->end;
        r->line++;
        sections |= begins(line, SECTION); /* body() reads the other lines of a section */
        if (sections)
            rc = section(r, line);
        else if (trimmed(line).n && *line.p != '#')
            rc = setting(r, trimmed(line));
    }
    return rc;
}

/* Adds the defaults, and checks that there is an answer. */
static int complete(struct reader *r)
{
    static const char *const marks[] = {"<think>",      "</think>",        "<tool_call>",
                                        "</tool_call>", "<tool_response>", "</tool_response>"};
    static const struct eng_str start = {"<|im_start|>", 12}, end = {"<|im_end|>", 10};
    int rc = add_token(r, CONTROL, start);
    if (!rc) rc = add_token(r, CONTROL, end);
    for (size_t i = 0; !rc && !r->listed[MARKS] && i < CN_ARRAY_LEN(marks); i++)
        rc = add_token(r, MARKS, (struct eng_str){marks[i], strlen(marks[i])});
    if (!r->s->end.n) r->s->end = end;
    if (!rc && !r->s->n_answers)
        rc = cn_fail_param(r->err, CN_EFORMAT, "model", "script: no section \"=== answer\"");
    return rc;
}

int eng_script_parse(struct cn_buf *text, struct eng_script *out, struct cn_error *err)
{
    struct eng_script s = {.text = *text};
    char none[1] = "";
    struct reader r = {.s = &s, .at = text->data ? text->data : none, .err = err};
    int rc = CN_OK;
    cn_buf_init(text, 0);
    r.end = r.at + s.text.len;
    if (s.text.len > ENG_SCRIPT_MAX_BYTES)
        rc = cn_fail_param(err, CN_ELIMIT, "model", "a script has at most %s",
                           cn_size(ENG_SCRIPT_MAX_BYTES).text);
    else if (cn_utf8_valid_len(r.at, s.text.len) < s.text.len || memchr(r.at, 0, s.text.len))
        rc = cn_fail_param(err, CN_EFORMAT, "model", "a script is UTF-8 text without NUL");
    if (!rc) rc = read_lines(&r);
    if (!rc) rc = complete(&r);
    if (rc)
        eng_script_fini(&s);
    else
        *out = s;
    return rc;
}

/* Reads a file. The error message does not contain its path. */
static int read_file(const char *path, const char *what, struct cn_buf *out, struct cn_error *err)
{
    struct cn_error why = {0};
    int rc = cn_file_read(path, false, ENG_SCRIPT_MAX_BYTES, out, &why);
    size_t n = strlen(path);
    const char *text = why.message;
    if (!strncmp(text, path, n) && text[n] == ':') text += n + 1 + strspn(text + n + 1, " ");
    if (!rc && out->len > ENG_SCRIPT_MAX_BYTES)
        return cn_fail_param(err, CN_ELIMIT, "model", "null model: %s has more than %s", what,
                             cn_size(ENG_SCRIPT_MAX_BYTES).text);
    if (rc) return cn_fail_param(err, rc, "model", "null model: %s: %s", what, text);
    return CN_OK;
}

static int read_template(const char *path, struct eng_script *s, struct cn_error *err)
{
    const char *slash = strrchr(path, '/');
    struct cn_buf name;
    cn_buf_init(&name, 0);
    if (slash && *s->template_path.p != '/') cn_buf_append(&name, path, (size_t)(slash - path) + 1);
    cn_buf_append(&name, s->template_path.p, s->template_path.n);
    const char *whole = cn_buf_cstr(&name);
    int rc = whole ? read_file(whole, "the script's template", &s->file, err) : no_memory(err);
    cn_buf_fini(&name);
    s->source = (struct eng_str){s->file.data ? s->file.data : "", s->file.len};
    return rc;
}

int eng_script_read(const char *path, struct eng_script *out, struct cn_error *err)
{
    struct eng_script s;
    struct cn_buf text;
    cn_buf_init(&text, 0);
    int rc = read_file(path, "the script", &text, err);
    if (!rc) rc = eng_script_parse(&text, &s, err);
    cn_buf_fini(&text);
    if (rc) return rc;
    if (s.template_path.n) rc = read_template(path, &s, err);
    if (rc)
        eng_script_fini(&s);
    else
        *out = s;
    return rc;
}

void eng_script_fini(struct eng_script *s)
{
    cn_buf_fini(&s->text);
    cn_buf_fini(&s->file);
    free(s->marks);
    free(s->control);
    free(s->ends);
    free(s->answers);
    *s = (struct eng_script){0};
}
