/* Formats: the form in which a model writes calls and reasoning, found in its chat template, and
 * its marks as bytes and as tokens of the model's vocabulary. Immutable once made. */
#include "engine/text/reply/reply.h"

#include <string.h>

#define M(role, text) {ENG_R_##role, text}
#define F(flag)       ENG_F_##flag
#define HUNYUAN                                                                                    \
    M(THINK, "<think%>"), M(THINK_END, "</think%>"), M(OPEN, "<tool_calls%>"),                     \
        M(CALL, "<tool_call%>"), M(HEAD_END, "<tool_sep%>"), M(PARAM, "<arg_key%>"),               \
        M(KEY_END, "</arg_key%>"), M(VALUE, "<arg_value%>"), M(VALUE_END, "</arg_value%>"),        \
        M(CALL_END, "</tool_call%>"), M(CLOSE, "</tool_calls%>")

static const struct eng_form forms[] = {
#define FORM(name, reader, flags, order, has, also, ...)                                           \
    {name, ENG_FORM_##reader, flags, order, has, also, {__VA_ARGS__}},
#include "engine/text/reply/forms.def"
#undef FORM
};
/* The last one: what calls are looked for where a template has no form of its own. */
#define GENERIC (&forms[CN_ARRAY_LEN(forms) - 1])

static bool contains(struct eng_str s, const char *what)
{
    return s.p && memmem(s.p, s.n, what, strlen(what));
}

static const struct eng_form *find_form(struct eng_str source)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(forms); i++)
        if (contains(source, forms[i].has) && contains(source, forms[i].also)) return &forms[i];
    return GENERIC;
}

/* The text that Hunyuan's template puts before the > of its marks: its variable HYTK, else the text
 * at that place in <tool_sep...>. */
static struct eng_str find_suffix(struct eng_str source)
{
    static const char *const before[] = {"HYTK = '", "HYTK = \"", "<tool_sep"};
    for (size_t i = 0; i < CN_ARRAY_LEN(before); i++) {
        size_t len = strlen(before[i]), n = 0;
        const char *at = source.p ? memmem(source.p, source.n, before[i], len) : NULL;
        if (!at) continue;
        at += len;
        size_t left = source.n - (size_t)(at - source.p);
        while (n < left && n < 32 && !strchr("'\">\n", at[n]))
            n++;
        return (struct eng_str){at, n};
    }
    return (struct eng_str){"", 0};
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* The control or user-defined token with exactly this text, or -1. Other tokens may be merged with
 * the text around them. */
static int64_t special(const struct eng_vocab *v, const char *s, size_t n)
{
    int64_t id = v ? eng_vocab_find(v, s, n) : -1;
    return id >= 0 && eng_vocab_is_special(v, (uint32_t)id) ? id : -1;
}

/* The index of a token in the format's list, where it is added; -1: the list is full. */
static int token_index(struct eng_reply_format *f, uint32_t id, size_t text, size_t n)
{
    for (size_t i = 0; i < f->n_tokens; i++)
        if (f->tokens[i].id == id) return (int)i;
    if (f->n_tokens == ENG_REPLY_TOKENS) return -1;
    f->tokens[f->n_tokens].id = id;
    f->tokens[f->n_tokens].text = (uint16_t)text;
    f->tokens[f->n_tokens].n_text = (uint16_t)n;
    return (int)f->n_tokens++;
}

/* Text of a mark as symbols: the longest special token at each place, else a byte. */
static void put_symbols(struct eng_reply_format *f, struct eng_reply_mark *m,
                        const struct eng_vocab *v)
{
    const char *s = f->text + m->text;
    m->symbols = (uint16_t)f->n_symbols;
    for (size_t at = 0; at < m->n_text;) {
        size_t n = m->n_text - at;
        int64_t id = -1;
        while (n > 1 && (id = special(v, s + at, n)) < 0)
            n--;
        int token = id < 0 ? -1 : token_index(f, (uint32_t)id, m->text + at, n);
        if (token < 0) n = 1;
        m->token |= token >= 0;
        f->symbols[f->n_symbols++] = token >= 0 ? (uint16_t)(256 + token) : (unsigned char)s[at];
        at += n;
    }
    m->n_symbols = (uint16_t)(f->n_symbols - m->symbols);
    unsigned first = f->symbols[m->symbols];
    if (first < 256) f->first[first / 32] |= 1u << first % 32;
}

static void add_mark(struct eng_reply_format *f, const struct eng_vocab *v, enum eng_mark_role role,
                     const char *text, struct eng_str suffix)
{
    const char *percent = strchr(text, '%');
    size_t n = strlen(text), head = percent ? (size_t)(percent - text) : n;
    size_t all = percent ? n - 1 + suffix.n : n;

    cn_assert(f->n_marks < ENG_REPLY_MARKS);
    if (!all || all > ENG_REPLY_LEX || f->n_text + all > ENG_REPLY_TEXT) return;
    struct eng_reply_mark *m = &f->marks[f->n_marks++];
    char *to = f->text + f->n_text;
    *m = (struct eng_reply_mark){.role = (uint8_t)role,
                                 .at_start = role == ENG_R_TO,
                                 .text = (uint16_t)f->n_text,
                                 .n_text = (uint16_t)all};
    memcpy(to, text, head);
    if (percent) {
        memcpy(to + head, suffix.p, suffix.n);
        memcpy(to + head + suffix.n, percent + 1, n - head - 1);
    }
    f->n_text += all;
    f->roles |= 1u << role;
    put_symbols(f, m, v);
}

static void add_tags(struct eng_reply_format *f, const struct eng_vocab *v, struct eng_str source)
{
    static const struct {
        const char *has, *open, *close, *skip;
    } tags[] = {
#define TAGS(has, open, close, skip) {has, open, close, skip},
#include "engine/text/reply/tags.def"
#undef TAGS
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(tags); i++) {
        if (!contains(source, tags[i].has)) continue;
        add_mark(f, v, ENG_R_THINK, tags[i].open, (struct eng_str){"", 0});
        add_mark(f, v, ENG_R_THINK_END, tags[i].close, (struct eng_str){"", 0});
        f->skip = tags[i].skip;
        return;
    }
}

static void add_form(struct eng_reply_format *f, const struct eng_vocab *v, struct eng_str source)
{
    struct eng_str suffix = find_suffix(source);
    for (size_t i = 0; i < CN_ARRAY_LEN(f->form->marks) && f->form->marks[i].text; i++)
        add_mark(f, v, f->form->marks[i].role, f->form->marks[i].text, suffix);
}

/* Whether a vocabulary has what harmony cannot do without. */
static bool has_channels(const struct eng_reply_format *f)
{
    uint32_t tokens = 0;
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->marks[i].token) tokens |= 1u << f->marks[i].role;
    return tokens & ENG_BIT(CHANNEL) && tokens & ENG_BIT(MESSAGE);
}

struct eng_reply_format eng_reply_format(const struct eng_vocab *v, struct eng_str source)
{
    const uint32_t structure = ENG_BIT(THINK) | ENG_BIT(THINK_END) | ENG_BIT(WRAP) | ENG_BIT(TO);
    struct eng_reply_format f = {.form = find_form(source), .skip = ""};

    add_form(&f, v, source);
    if (f.form->reader == ENG_FORM_HARMONY) {
        f.kind = ENG_REPLY_HARMONY;
        if (!v || has_channels(&f)) return f;
        f = (struct eng_reply_format){.form = GENERIC, .skip = ""};
        add_form(&f, v, source);
    }
    if (!(f.roles & (ENG_BIT(THINK) | ENG_BIT(THINK_END)))) add_tags(&f, v, source);
    f.kind =
        f.roles & structure || f.form->flags & ENG_F_PROMPTED ? ENG_REPLY_TAGS : ENG_REPLY_PLAIN;
    return f;
}

const char *eng_reply_form(const struct eng_reply_format *f)
{
    return f->form ? f->form->name : GENERIC->name;
}

bool eng_reply_form_known(const struct eng_reply_format *f)
{
    return f->form && f->form != GENERIC;
}

bool eng_reply_needed(const struct eng_reply_format *f, const struct eng_tools *tools)
{
    return f->kind != ENG_REPLY_PLAIN || (f->form && tools && eng_tools_count(tools));
}

struct eng_str eng_role_text(const struct eng_reply_format *f, enum eng_mark_role role)
{
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->marks[i].role == role) return eng_mark_text(f, i);
    return (struct eng_str){"", 0};
}
