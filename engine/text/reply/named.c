/* Reader: calls with a header that has the function's name, and then the arguments as JSON (or in
 * Gemma's own syntax): <call>f<args>{...}<end>. The header is kept and read when the arguments
 * begin, which is at the first {. */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    SECTION,   /* between calls */
    HEAD,      /* in a header: the field `what` */
    ARGUMENTS, /* after the header, and in them */
    TAIL,      /* after the arguments */
};
enum { MAX_HEAD = 512 };

static struct eng_wants wants(const struct eng_reader *rd)
{
    static const uint32_t marks[] = {
        [SECTION] = ENG_BIT(CALL) | ENG_BIT(CLOSE) | ENG_BIT(OPEN),
        [HEAD] = ENG_BIT(NEXT) | ENG_BIT(LAST) | ENG_BIT(CALL_END) | ENG_BIT(CLOSE),
        [ARGUMENTS] = ENG_BIT(CALL_END) | ENG_BIT(CLOSE) | ENG_BIT(QUOTE),
        [TAIL] = ENG_BIT(CALL_END) | ENG_BIT(CALL) | ENG_BIT(CLOSE),
    };
    uint32_t text = marks[rd->state];
    if (rd->state == ARGUMENTS) text = rd->started ? ENG_BIT(QUOTE) : 0;
    return (struct eng_wants){.text = text, .token = marks[rd->state]};
}

/* ---- headers --------------------------------------------------------------------------------- */

static struct eng_str trim(struct eng_str s)
{
    while (s.n && eng_is_space(*s.p)) {
        s.p++;
        s.n--;
    }
    while (s.n && eng_is_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

static struct eng_str skip(struct eng_str s, const char *prefix)
{
    size_t n = strlen(prefix);
    bool has = s.n >= n && !memcmp(s.p, prefix, n);
    return has ? (struct eng_str){s.p + n, s.n - n} : s;
}

/* A fence may begin after the name. */
static struct eng_str without_fence(struct eng_str s)
{
    size_t n = 0;
    while (n < s.n && !eng_is_space(s.p[n]) && s.p[n] != '`')
        n++;
    struct eng_str rest = trim((struct eng_str){s.p + n, s.n - n});
    rest = skip(rest, "```");
    rest = skip(rest, "json");
    return rest.n ? s : (struct eng_str){s.p, n};
}

/* Kimi's functions.NAME:N. Models write it in other ways too: what is left is looked for among the
 * tools in turn. *whole: it is written as it ought to be. */
static struct eng_str kimi_name(const struct eng_tools *t, struct eng_str s, bool *whole)
{
    static const char *const prefixes[] = {"functions.", "functions_", "functions:", "functions",
                                           ""};
    *whole = false;
    for (size_t i = 0; i < CN_ARRAY_LEN(prefixes); i++) {
        struct eng_str name = skip(s, prefixes[i]);
        size_t digits = 0;
        if (name.p == s.p && *prefixes[i]) continue;
        while (digits < name.n && name.p[name.n - 1 - digits] >= '0' &&
               name.p[name.n - 1 - digits] <= '9')
            digits++;
        size_t n = name.n - digits;
        bool colon = n && name.p[n - 1] == ':';
        struct eng_str bare = {name.p, n}, cut = {name.p, n ? n - 1 : 0};
        *whole = !i && digits && colon;
        if (digits && n && strchr(":_.-", name.p[n - 1]) && eng_tool_find(t, cut)) return cut;
        *whole = false;
        if (eng_tool_find(t, name)) return name;
        if (digits && eng_tool_find(t, bare)) return bare;
    }
    return s;
}

static int read_field(struct eng_reader *rd, size_t i, struct eng_str s, struct eng_parts *out)
{
    bool whole = true;
    char what = i < strlen(rd->form->order) ? rd->form->order[i] : '-';
    s = trim(s);
    if (what == '-') return 0;
    if (what == 'g') {
        struct eng_str name = skip(s, "call:");
        return name.p == s.p ? ENG_STEP_AGAIN : eng_call_name(rd, name, out);
    }
    struct eng_str name = what == 'k' ? kimi_name(rd->reply->tools, s, &whole) : s;
    if (what != 'n' && whole) {
        rd->n_id = CN_MIN(s.n, sizeof rd->id);
        memcpy(rd->id, s.p, rd->n_id);
    }
    if (what != 'n') return what == 'k' ? eng_call_name(rd, name, out) : 0;
    if (rd->form->flags & ENG_F_FENCED) s = without_fence(s);
    return s.n ? eng_call_name(rd, s, out) : ENG_STEP_AGAIN;
}

/* The header is complete: rd->value holds it, fields end with NUL. */
static int end_head(struct eng_reader *rd, struct eng_parts *out)
{
    struct eng_str head = eng_str_of(&rd->value);
    const char *s = head.p, *end = s + head.n;
    int rc = cn_buf_code(&rd->value);
    for (size_t i = 0; !rc && s < end; i++) {
        const char *stop = memchr(s, 0, (size_t)(end - s));
        if (!stop) stop = end;
        rc = read_field(rd, i, (struct eng_str){s, (size_t)(stop - s)}, out);
        s = stop + 1;
    }
    if (!rc && !rd->named && rd->mode == ENG_CALL_OPEN) rc = ENG_STEP_AGAIN;
    cn_buf_reset(&rd->value);
    return rc;
}

static int begin_head(struct eng_reader *rd)
{
    eng_call_next(rd);
    rd->state = HEAD;
    cn_buf_reset(&rd->value);
    return 0;
}

/* Functionary's headers begin with >>>, which is also text: anything but the beginning of a name is
 * looked at no further. */
static bool may_be_name(const struct eng_reader *rd)
{
    static const char all[] = "all";
    struct eng_str s = eng_str_of(&rd->value);
    if (!(rd->form->flags & ENG_F_PROMPTED)) return rd->value.len <= MAX_HEAD;
    return eng_tool_begins(rd->reply->tools, s) || (s.n < sizeof all && !memcmp(s.p, all, s.n));
}

static int head_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (c != '{') {
        int rc = c ? cn_buf_append(&rd->value, &c, 1) : 0;
        if (rc) return rc;
        return c && may_be_name(rd) ? 0 : ENG_STEP_AGAIN;
    }
    int rc = end_head(rd, out);
    if (rc) return rc;
    rd->state = ARGUMENTS;
    return rd->ops->byte(rd, c, out);
}

static int head_mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    if (role == ENG_R_NEXT) return cn_buf_append(&rd->value, "", 1);
    if (role != ENG_R_LAST) return ENG_STEP_AGAIN;
    if (rd->form->flags & ENG_F_PROMPTED && rd->value.len == 3 && !memcmp(rd->value.data, "all", 3))
        return ENG_STEP_ALL;
    rd->state = ARGUMENTS;
    return end_head(rd, out);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int lit_result(struct eng_reader *rd, enum eng_lit_result is, struct eng_parts *out)
{
    int rc = eng_call_made(rd, out);
    if (!rc) rc = eng_call_commit(rd, out);
    if (rc || is == ENG_LIT_MORE) return rc;
    if (is != ENG_LIT_DONE) return ENG_STEP_AGAIN;
    rd->ended = true;
    rd->state = TAIL;
    return eng_call_end(rd, out);
}

static int argument_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (!rd->started) {
        if (eng_is_space(c)) return 0;
        if (c != '{') return ENG_STEP_AGAIN;
        bool own = rd->form->flags & ENG_F_OWN_VALUES;
        eng_lit_init(&rd->lit, own ? ENG_LIT_OWN : 0, rd->tool ? rd->tool->parameters : NULL);
        rd->started = true;
    }
    return lit_result(rd, eng_lit_byte(&rd->lit, c, &rd->made), out);
}

static int tail_byte(struct eng_reader *rd, char c)
{
    bool fence = c == '`' && rd->form->flags & ENG_F_FENCED;
    return eng_is_space(c) || fence ? 0 : ENG_STEP_AGAIN;
}

static int byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    switch (rd->state) {
    case HEAD:
        return head_byte(rd, c, out);
    case ARGUMENTS:
        return argument_byte(rd, c, out);
    case TAIL:
        return tail_byte(rd, c);
    }
    return eng_is_space(c) ? 0 : ENG_STEP_AGAIN;
}

static int mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    if (role == ENG_R_OPEN) {
        eng_call_next(rd);
        return 0;
    }
    if (rd->state == HEAD) return head_mark(rd, role, out);
    if (role == ENG_R_QUOTE) return lit_result(rd, eng_lit_quote(&rd->lit, &rd->made), out);
    if (role == ENG_R_CALL) return begin_head(rd);
    if (role == ENG_R_CLOSE || rd->state == ARGUMENTS) return ENG_STEP_LEAVE;
    rd->state = SECTION; /* CALL_END */
    if (rd->any) eng_call_forget(rd);
    bool alone = !eng_role_text(rd->reply->format, ENG_R_OPEN).n;
    return alone ? ENG_STEP_LEAVE : 0;
}

const struct eng_reader_ops eng_named_reader = {wants, byte, mark};
