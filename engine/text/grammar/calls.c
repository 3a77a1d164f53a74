/* calls: see calls.h. The texts of calls.def become sequences of symbols; what stands between them
 * is fixed, so that most of a call's markup needs no choice of the model. */
#include "engine/text/grammar/calls_impl.h"

#include "engine/text/grammar/rx_impl.h"
#include "engine/text/grammar/spell.h"
#include "engine/text/grammar/trie.h"

#include <stdlib.h>

#define STYLE_JSON     ENG_STYLE_JSON, false
#define STYLE_PYTHON   ENG_STYLE_PYTHON, false
#define STYLE_EITHER   ENG_STYLE_EITHER, false
#define STYLE_BARE     ENG_STYLE_BARE, false
#define STYLE_ELEMENTS ENG_STYLE_JSON, true

static const struct eng_calls_text texts[] = {
#define WHOLE(form, think, think_end, answer, answer_end, aside, aside_end)
#define CALLS(form, values, before, call, between, after, text_param, other_param)                 \
    {form, STYLE_##values, before, call, between, after, text_param, other_param},
#include "engine/text/grammar/calls.def"
#undef CALLS
#undef WHOLE
};

/* Forms of which the grammar is one of the whole reply. */
struct whole { const char *form, *think, *think_end, *answer, *answer_end, *aside, *aside_end; };
static const struct whole wholes[] = {
#define CALLS(form, values, before, call, between, after, text_param, other_param)
#define WHOLE(form, think, think_end, answer, answer_end, aside, aside_end)                        \
    {form, think, think_end, answer, answer_end, aside, aside_end},
#include "engine/text/grammar/calls.def"
#undef CALLS
#undef WHOLE
};

/* The form's line after t; NULL: there are no more. t NULL: the first. */
static const struct eng_calls_text *next_line(const struct eng_reply_format *f,
                                              const struct eng_calls_text *t)
{
    const char *name = eng_reply_form(f);
    for (t = t ? t + 1 : texts; t < texts + CN_ARRAY_LEN(texts); t++)
        if (!strcmp(t->form, name)) return t;
    return NULL;
}

static const struct whole *find_whole(const struct eng_reply_format *f)
{
    const char *name = eng_reply_form(f);
    for (size_t i = 0; i < CN_ARRAY_LEN(wholes); i++)
        if (!strcmp(wholes[i].form, name)) return &wholes[i];
    return NULL;
}

bool eng_calls_known(const struct eng_reply_format *f)
{
    return next_line(f, NULL) != NULL;
}

bool eng_calls_whole(const struct eng_reply_format *f)
{
    return find_whole(f) != NULL;
}

static bool has_flag(const struct eng_reply_format *f, unsigned flag)
{
    return f->form && f->form->flags & flag;
}

/* ---- where calls begin ----------------------------------------------------------------------- */

/* The suffix that the template gives its marks (Hunyuan 3). */
static struct eng_str suffix_of(const struct eng_reply_format *f)
{
    struct eng_str s = eng_role_text(f, ENG_R_HEAD_END);
    size_t head = sizeof "<tool_sep" - 1;
    return s.n > head ? (struct eng_str){s.p + head, s.n - head - 1} : (struct eng_str){"", 0};
}

/* Whether a text of calls.def begins with the mark. */
static bool begins(const struct eng_reply_format *f, const char *s, struct eng_str mark)
{
    struct eng_str suffix = suffix_of(f);
    for (size_t i = 0; i < mark.n; s++) {
        if (s[0] == '%' && s[1] == 'S') {
            if (mark.n - i < suffix.n || memcmp(mark.p + i, suffix.p, suffix.n) != 0) return false;
            i += suffix.n;
            s++;
        } else if (*s != mark.p[i++]) {
            return false;
        }
    }
    return mark.n;
}

/* Whether the line can be used. Markup before calls must be a token: as text the reply's reader
 * would hold it back. With one that ends generation nothing would come after it. */
static bool is_usable(const struct eng_calls_in *in, const struct eng_calls_text *t)
{
    const struct eng_reply_format *f = in->format;
    for (size_t i = 0; i < f->n_marks; i++) {
        unsigned first = f->symbols[f->marks[i].symbols];
        if (f->marks[i].role != ENG_R_WRAP || !begins(f, t->before, eng_mark_text(f, i))) continue;
        if (first < 256) continue;
        return !eng_vocab_is_eog(in->vocab, f->tokens[first - 256].id);
    }
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->marks[i].role == ENG_R_WRAP && begins(f, t->before, eng_mark_text(f, i)))
            return false;
    return true;
}

/* The longest mark that the text begins with; n_marks: none. */
static size_t opening_of(const struct eng_reply_format *f, const char *s)
{
    size_t best = f->n_marks, n = 0;
    for (size_t i = 0; i < f->n_marks; i++) {
        struct eng_str mark = eng_mark_text(f, i);
        bool opens = f->marks[i].role == ENG_R_OPEN || f->marks[i].role == ENG_R_CALL;
        if (!opens || mark.n <= n || !begins(f, s, mark)) continue;
        best = i;
        n = mark.n;
    }
    return best;
}

/* Where in the text of a call the mark is with which it begins if models leave out what is before;
 * NULL: they do not. */
static const char *alone_at(const struct eng_reply_format *f, const char *call)
{
    struct eng_str mark = eng_role_text(f, ENG_R_CALL);
    if (!has_flag(f, ENG_F_CALL_ALONE) || !mark.n) return NULL;
    return memmem(call, strlen(call), mark.p, mark.n);
}

static size_t add_opening(const struct eng_reply_format *f, const char *s, size_t n,
                          size_t marks[ENG_CALLS_OPENINGS])
{
    size_t mark = opening_of(f, s);
    if (mark == f->n_marks) return n; /* the mark of another line is in it */
    for (size_t i = 0; i < n; i++)
        if (marks[i] == mark) return n;
    cn_assert(n < ENG_CALLS_OPENINGS);
    marks[n] = mark;
    return n + 1;
}

size_t eng_calls_openings(const struct eng_reply_format *f, size_t marks[ENG_CALLS_OPENINGS])
{
    size_t n = 0;
    if (find_whole(f) || has_flag(f, ENG_F_BARE)) return 0;
    for (const struct eng_calls_text *t = NULL; (t = next_line(f, t));) {
        const char *alone = alone_at(f, t->call);
        n = add_opening(f, t->before[0] ? t->before : t->call, n, marks);
        if (alone) n = add_opening(f, alone, n, marks);
    }
    return n;
}

/* ---- text ------------------------------------------------------------------------------------ */

int eng_calls_push(struct eng_calls_build *b, struct eng_sym s)
{
    if (cn_grow(&b->syms, &b->cap, b->n + 1, sizeof *b->syms)) return CN_ENOMEM;
    b->syms[b->n++] = s;
    return b->ir->rx.code;
}

/* The token of the format's marks that begins the text; its length, 0: none does. */
static size_t token_at(const struct eng_reply_format *f, const char *s, size_t n, uint32_t *id)
{
    size_t best = 0;
    for (size_t i = 0; i < f->n_tokens; i++) {
        size_t len = f->tokens[i].n_text;
        if (len <= best || len > n || memcmp(f->text + f->tokens[i].text, s, len)) continue;
        best = len;
        *id = f->tokens[i].id;
    }
    return best;
}

/* Markup: as it is, but tokens as the tree of tokens has them (trie.h). */
static uint32_t markup(struct eng_calls_build *b, const char *s, size_t n)
{
    uint32_t x = ENG_RX_EMPTY, id = 0;
    struct eng_rx *r = &b->ir->rx;
    for (size_t i = 0, len; i < n; i += len) {
        char token[5];
        uint32_t part;
        len = token_at(b->in->format, s + i, n - i, &id);
        if (len && eng_vocab_is_special(b->in->vocab, id)) {
            part = eng_rx_literal(r, token, eng_trie_name(id, token));
        } else if (s[i] == '%' && i + 1 < n && s[i + 1] == 'n') {
            part = eng_rx_repeat(r, eng_rx_byte(r, '\n', '\n'), 0, 1);
            len = 2;
        } else {
            if (!len) len = 1;
            part = eng_rx_literal(r, s + i, len);
        }
        x = eng_rx_cat(r, x, part);
    }
    return x;
}

/* The same with the suffix in its places. */
static uint32_t with_suffix(struct eng_calls_build *b, const char *s, size_t n)
{
    struct eng_str suffix = suffix_of(b->in->format);
    struct cn_buf text;
    uint32_t x;
    if (!memmem(s, n, "%S", 2)) return markup(b, s, n);
    cn_buf_init(&text, 0);
    for (size_t i = 0; i < n; i++) {
        bool here = s[i] == '%' && i + 1 < n && s[i + 1] == 'S';
        cn_buf_append(&text, here ? suffix.p : s + i, here ? suffix.n : 1);
        i += here;
    }
    x = text.failed ? eng_rx_fail(&b->ir->rx, CN_ENOMEM) : markup(b, text.data, text.len);
    cn_buf_fini(&text);
    return x;
}

int eng_calls_markup(struct eng_calls_build *b, const char *s, size_t n)
{
    uint32_t x = n ? with_suffix(b, s, n) : ENG_RX_EMPTY;
    if (x == ENG_RX_EMPTY) return b->ir->rx.code;
    struct eng_sym lexeme = eng_ir_lexeme(b->ir, x, false);
    if (b->ir->rx.code || !eng_rx_nullable(&b->ir->rx, x)) return eng_calls_push(b, lexeme);
    struct eng_sym maybe = eng_ir_rule(b->ir); /* a lexeme is never empty */
    eng_ir_add(b->ir, maybe, &lexeme, 1);
    eng_ir_add(b->ir, maybe, NULL, 0);
    return eng_calls_push(b, maybe);
}

int eng_calls_name(struct eng_calls_build *b, const char *name, size_t n, bool quoted)
{
    static const char from[] = "&\"<>", *const to[] = {"&amp;", "&quot;", "&lt;", "&gt;"};
    bool entities = has_flag(b->in->format, ENG_F_ENTITIES);
    struct cn_buf text;
    int rc = 0;
    cn_buf_init(&text, 0);
    if (quoted && !entities) rc = cn_buf_json_text(&text, name, n);
    for (size_t i = 0; i < n && !rc && (!quoted || entities); i++) {
        const char *at = entities && name[i] ? strchr(from, name[i]) : NULL;
        rc = at ? cn_buf_puts(&text, to[at - from]) : cn_buf_putc(&text, name[i]);
    }
    if (!rc)
        rc = eng_calls_push(
            b, eng_ir_lexeme(b->ir, eng_rx_literal(&b->ir->rx, text.data, text.len), false));
    cn_buf_fini(&text);
    return rc;
}

/* An id, or a number. */
static int push_id(struct eng_calls_build *b, char kind)
{
    struct eng_rx *r = &b->ir->rx;
    struct eng_bytes set = {{0}};
    eng_bytes_add(&set, '0', '9');
    if (kind != 'D') eng_bytes_add(&set, 'a', 'z');
    if (kind == '9') eng_bytes_add(&set, 'A', 'Z');
    uint32_t lo = kind == 'D' ? 1 : 9, hi = kind == 'D' ? 3 : kind == '9' ? 9 : 10;
    return eng_calls_push(
        b, eng_ir_lexeme(b->ir, eng_rx_repeat(r, eng_rx_set(r, &set), lo, hi), false));
}

int eng_calls_head(const struct eng_reply_format *f, const struct eng_vocab *v,
                   enum eng_reply_start start, struct cn_buf *out)
{
    const struct whole *w = find_whole(f);
    bool thinks = start == ENG_REPLY_OPENED || start == ENG_REPLY_THOUGHT;
    const char *s = !w ? "" : thinks ? w->think : start == ENG_REPLY_ANSWER ? w->answer : "";
    int rc = 0;
    for (size_t n = strlen(s), len; n && !rc; s += len, n -= len) {
        char token[5];
        uint32_t id = 0;
        len = token_at(f, s, n, &id);
        bool named = len && eng_vocab_is_special(v, id);
        if (!len) len = 1;
        rc = named ? cn_buf_append(out, token, eng_trie_name(id, token))
                   : cn_buf_append(out, s, len);
    }
    return rc;
}

struct eng_str eng_calls_think_end(const struct eng_reply_format *f)
{
    const struct whole *w = find_whole(f);
    return w ? (struct eng_str){w->think_end, strlen(w->think_end)} : (struct eng_str){"", 0};
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Bytes up to the next field that is no markup. */
static size_t to_field(const char *s)
{
    size_t n = 0;
    while (s[n] && !(s[n] == '%' && s[n + 1] != 'n' && s[n + 1] != 'S'))
        n++;
    return n;
}

/* Python's readers take these for a name. */
static bool is_python_name(struct eng_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c & 0x80;
        if (!letter && (!i || !((c >= '0' && c <= '9') || strchr(".-:", c)))) return false;
    }
    return true;
}

/* The call of the function at hand, from `text` on. */
static int push_call(struct eng_calls_build *b, const char *text)
{
    int rc = 0;
    if (b->t->style == ENG_STYLE_PYTHON && !is_python_name(b->name))
        return eng_calls_refuse(b, CN_EUNSUPP, NULL,
                                "the function's name cannot be written in the form in which this "
                                "model calls");
    for (const char *s = text; *s && !rc;) {
        size_t n = to_field(s);
        rc = eng_calls_markup(b, s, n);
        if (rc || !s[n]) break;
        switch (s[n + 1]) {
        case 'N':
            rc = eng_calls_name(b, b->name.p, b->name.n, n && s[n - 1] == '"');
            break;
        case 'A':
            rc = eng_calls_arguments(b);
            break;
        case 'P':
            rc = eng_calls_parameters(b);
            break;
        default:
            rc = push_id(b, s[n + 1]);
            break;
        }
        s += n + 2;
    }
    return rc;
}

/* A rule that is a call of any of the tools. */
static int any_call(struct eng_calls_build *b, const char *text, struct eng_sym *out)
{
    *out = eng_ir_rule(b->ir);
    json_array_foreach(b->in->tools, b->index, b->tool)
    {
        json_t *p = json_object_get(json_object_get(b->tool, "function"), "parameters");
        json_t *name = json_object_get(json_object_get(b->tool, "function"), "name");
        b->parameters = json_is_object(p) ? p : NULL;
        b->name = (struct eng_str){json_string_value(name), json_string_length(name)};
        b->n = 0;
        int rc = push_call(b, text);
        if (rc) return rc;
        eng_ir_add(b->ir, *out, b->syms, b->n);
    }
    return b->ir->rx.code;
}

/* `before`, a call, more, and what ends them, as an alternative of root. */
static int add_section(struct eng_calls_build *b, const char *before, struct eng_sym call,
                       struct eng_sym more, struct eng_sym root)
{
    b->n = 0;
    int rc = eng_calls_markup(b, before, strlen(before));
    if (!rc) rc = eng_calls_push(b, call);
    if (!rc) rc = eng_calls_push(b, more);
    if (!rc) rc = eng_calls_markup(b, b->t->after, strlen(b->t->after));
    if (!rc) eng_ir_add(b->ir, root, b->syms, b->n);
    return rc ? rc : b->ir->rx.code;
}

/* A call that may also begin later than its text does: *alone from there on. */
static int whole_call(struct eng_calls_build *b, const char *at, struct eng_sym *call,
                      struct eng_sym *alone)
{
    int rc = any_call(b, at, alone);
    b->n = 0;
    if (!rc) rc = eng_calls_markup(b, b->t->call, (size_t)(at - b->t->call));
    if (!rc) rc = eng_calls_push(b, *alone);
    *call = eng_ir_rule(b->ir);
    if (!rc) eng_ir_add(b->ir, *call, b->syms, b->n);
    return rc;
}

/* White space that a model may write behind its last call. Without it a line end there, with which
 * the next call begins, could only be followed by that call. */
static void add_blanks(struct eng_calls_build *b, struct eng_sym more)
{
    struct eng_rx *r = &b->ir->rx;
    struct eng_bytes blanks = {{0}};
    for (const char *p = " \t\r\n"; *p; p++)
        eng_bytes_add(&blanks, (uint8_t)*p, (uint8_t)*p);
    struct eng_sym s = eng_ir_lexeme(b->ir, eng_rx_repeat(r, eng_rx_set(r, &blanks), 1, 4), false);
    eng_ir_add(b->ir, more, &s, 1);
}

/* The calls of a line, as alternatives of root. */
static int add_line(struct eng_calls_build *b, struct eng_sym root)
{
    struct eng_sym call, alone, more = eng_ir_rule(b->ir);
    const char *between = b->t->between;
    const char *at = b->in->free ? alone_at(b->in->format, b->t->call) : NULL;
    int rc = at ? whole_call(b, at, &call, &alone) : any_call(b, b->t->call, &call);
    b->n = 0;
    eng_ir_add(b->ir, more, NULL, 0);
    if (!rc && b->in->many && between && !b->t->after[0]) add_blanks(b, more);
    if (!rc && b->in->many && between) { /* more: nothing, or between, a call, and more */
        rc = eng_calls_markup(b, between, strlen(between));
        if (!rc) rc = eng_calls_push(b, call);
        if (!rc) rc = eng_calls_push(b, more);
        if (!rc) eng_ir_add(b->ir, more, b->syms, b->n);
    }
    if (!rc) rc = add_section(b, b->t->before, call, more, root);
    if (!rc && at) rc = add_section(b, "", alone, more, root);
    return rc;
}

/* Markup and texts of the quotes around strings, where they are marks. */
static void set_style(struct eng_calls_build *b)
{
    const struct eng_reply_format *f = b->in->format;
    b->opts = *b->in->opts;
    b->opts.style = b->t->style;
    if (b->t->style != ENG_STYLE_BARE) return;
    struct eng_str quote = eng_role_text(f, ENG_R_QUOTE);
    b->opts.any_order = true; /* models sort the names */
    b->opts.quote = markup(b, quote.p, quote.n);
    b->opts.barred = ENG_RX_NONE;
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->marks[i].role == ENG_R_QUOTE && !f->marks[i].token)
            b->opts.barred = eng_calls_holding(&b->ir->rx, quote.p, quote.n);
}

/* What one line cannot write another one may. */
static int all_calls(struct eng_calls_build *b, struct eng_sym *root)
{
    struct cn_error first = {0};
    size_t n = 0;
    *root = eng_ir_rule(b->ir);
    for (b->t = NULL; (b->t = next_line(b->in->format, b->t));) {
        struct cn_error why = {0};
        if (!is_usable(b->in, b->t)) continue;
        set_style(b);
        b->err = &why;
        int rc = add_line(b, *root);
        n += !rc;
        if (rc && !first.code) first = why;
        if (rc && rc != CN_EUNSUPP) {
            *b->in_err = why;
            return rc;
        }
    }
    if (!n) *b->in_err = first;
    return n ? b->ir->rx.code : first.code;
}

/* ---- whole replies --------------------------------------------------------------------------- */

/* Any text that the reply's reader takes for nothing else. */
static struct eng_sym prose(struct eng_calls_build *b)
{
    const struct eng_reply_format *f = b->in->format;
    const uint32_t ends = ENG_BIT(OPEN) | ENG_BIT(CALL) | ENG_BIT(THINK_END) | ENG_BIT(WRAP);
    struct eng_rx *r = &b->ir->rx;
    uint32_t x = eng_rx_repeat(r, eng_spell_any(r, ENG_SPELL_RAW), 0, ENG_RX_INF);
    for (size_t i = 0; i < f->n_marks; i++) {
        struct eng_str mark = eng_mark_text(f, i);
        if (f->marks[i].token || !(ends >> f->marks[i].role & 1)) continue;
        x = eng_rx_and(r, x, eng_rx_not(r, eng_calls_holding(r, mark.p, mark.n)));
    }
    struct eng_sym text = eng_ir_rule(b->ir), some = eng_ir_lexeme(b->ir, x, false);
    eng_ir_add(b->ir, text, &some, 1);
    return text;
}

static int push_prose(struct eng_calls_build *b, const char *before, const char *after)
{
    int rc = eng_calls_markup(b, before, strlen(before));
    if (!rc) rc = eng_calls_push(b, prose(b));
    return rc ? rc : eng_calls_markup(b, after, strlen(after));
}

/* An alternative of rule from the symbols that were pushed. */
static void add_pushed(struct eng_calls_build *b, struct eng_sym rule)
{
    eng_ir_add(b->ir, rule, b->syms, b->n);
    b->n = 0;
}

/* Thoughts, or none, and then an answer or calls. */
static int whole_reply(struct eng_calls_build *b, const struct whole *w, struct eng_sym calls,
                       struct eng_sym *root)
{
    struct eng_sym thoughts = eng_ir_rule(b->ir), last = eng_ir_rule(b->ir);
    int rc = 0;
    b->n = 0;
    add_pushed(b, thoughts);
    if (w->think[0]) {
        rc = push_prose(b, w->think, w->think_end);
        if (!rc) add_pushed(b, thoughts);
    }
    eng_ir_add(b->ir, last, &calls, 1);
    if (!rc && b->in->answer) {
        rc = eng_calls_markup(b, w->answer, strlen(w->answer));
        if (!rc) rc = eng_calls_push(b, *b->in->answer);
        if (!rc) rc = eng_calls_markup(b, w->answer_end, strlen(w->answer_end));
        if (!rc) add_pushed(b, last);
    } else if (!rc && b->in->free) {
        rc = push_prose(b, w->answer, w->answer_end);
        if (!rc) add_pushed(b, last);
        if (!rc) rc = push_prose(b, w->aside, w->aside_end);
        if (!rc) rc = eng_calls_push(b, calls);
        if (!rc) add_pushed(b, last);
    }
    *root = eng_ir_rule(b->ir);
    const struct eng_sym both[] = {thoughts, last};
    if (!rc) eng_ir_add(b->ir, *root, both, CN_ARRAY_LEN(both));
    return rc ? rc : b->ir->rx.code;
}

int eng_calls_compile(struct eng_ir *ir, const struct eng_calls_in *in, struct eng_sym *root,
                      struct cn_error *err)
{
    struct cn_error ignored = {0};
    struct eng_calls_build b = {.ir = ir, .in = in, .in_err = err ? err : &ignored};
    const struct whole *w = find_whole(in->format);
    if (!eng_calls_known(in->format))
        return cn_fail(err, CN_EUNSUPP,
                       "calls in this model's form (%s) cannot be required: let the model choose",
                       eng_reply_form(in->format));
    int rc = eng_tools_new(in->tools, &b.tools, err);
    b.arguments = cn_calloc(json_array_size(in->tools) + 1, sizeof *b.arguments);
    if (!rc && !b.arguments) rc = CN_ENOMEM;
    if (!rc) rc = all_calls(&b, root);
    if (!rc && w) rc = whole_reply(&b, w, *root, root);
    eng_tools_free(b.tools);
    free(b.arguments);
    free(b.syms);
    if (rc && err && !err->code) cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    return rc;
}
