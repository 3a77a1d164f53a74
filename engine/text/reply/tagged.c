/* Reader: calls with a tag for each parameter: <function=f><parameter=k>v</parameter></function>.
 * Values have no types of their own, so the schema says what they are; strings go out as they come.
 * Text between parameters, other than white space, is text of the answer; the call continues after
 * it. */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    SECTION, /* between calls */
    NAME,
    ATTRIBUTE, /* after the name: an attribute that says nothing */
    BETWEEN,   /* parameters */
    KEY,
    TYPE, /* of the parameter */
    GAP,  /* from KEY_END to VALUE */
    VALUE,
};

static struct eng_wants wants(const struct eng_reader *rd)
{
    const uint32_t ends = ENG_BIT(CALL_END) | ENG_BIT(CLOSE);
    const uint32_t begins = ENG_BIT(OPEN) | ENG_BIT(CALL);
    uint32_t text = 0, token = 0;
    switch (rd->state) {
    case SECTION:
        text = begins | ENG_BIT(CLOSE);
        break;
    case NAME:
        text = ENG_BIT(HEAD_END) | ENG_BIT(NEXT) | ENG_BIT(PARAM) | ends;
        break;
    case ATTRIBUTE:
    case TYPE:
        text = ENG_BIT(HEAD_END);
        break;
    case BETWEEN:
        text = begins | ENG_BIT(PARAM) | ends;
        break;
    case KEY:
        text = ENG_BIT(KEY_END) | ENG_BIT(HEAD_END);
        break;
    case GAP:
        text = ENG_BIT(VALUE);
        break;
    case VALUE:
        text = ENG_BIT(VALUE_END);
        token = ENG_BIT(PARAM) | ends; /* models forget the closing one */
        break;
    }
    return (struct eng_wants){.text = text, .token = text | token};
}

/* &amp; and &quot; in a name. */
static struct eng_str decoded(struct eng_reader *rd, char *s, size_t n)
{
    static const char *const names[] = {"&amp;", "&quot;", "&lt;", "&gt;"};
    size_t to = 0;
    if (!(rd->form->flags & ENG_F_ENTITIES)) return (struct eng_str){s, n};
    for (size_t i = 0; i < n;) {
        size_t k = 0, len = 1;
        char c = s[i];
        for (; k < CN_ARRAY_LEN(names); k++) {
            len = strlen(names[k]);
            if (n - i >= len && !memcmp(s + i, names[k], len)) break;
        }
        if (k < CN_ARRAY_LEN(names)) c = "&\"<>"[k];
        s[to++] = c;
        i += k < CN_ARRAY_LEN(names) ? len : 1;
    }
    return (struct eng_str){s, to};
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int begin_call(struct eng_reader *rd)
{
    eng_call_next(rd);
    rd->state = NAME;
    return 0;
}

static int end_name(struct eng_reader *rd, int state, struct eng_parts *out)
{
    size_t n = rd->n_field;
    while (n && eng_is_space(rd->field[n - 1]))
        n--;
    int rc = eng_call_name(rd, decoded(rd, rd->field, n), out);
    if (!rc) rc = eng_call_commit(rd, out);
    rd->state = state;
    return rc;
}

static int end_call(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = eng_call_arguments(rd, rd->count ? "}" : "{}", rd->count ? 1 : 2, out);
    rd->ended = true;
    rd->state = SECTION;
    return rc ? rc : eng_call_end(rd, out);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static int end_key(struct eng_reader *rd, struct eng_parts *out)
{
    struct eng_str name = decoded(rd, rd->key, rd->n_key);
    const struct eng_schema *parameters = rd->tool ? rd->tool->parameters : NULL;
    rd->schema = eng_schema_member(parameters, name, NULL);
    rd->n_field = 0;
    return eng_value_member(rd, name, out);
}

static int begin_value(struct eng_reader *rd, struct eng_parts *out)
{
    static const char *const text[] = {"true", "string"};
    unsigned types = eng_schema_types(rd->schema);
    struct eng_str type = {rd->field, rd->n_field};

    if (rd->form->flags & ENG_F_TYPED && type.n) {
        types = ENG_T_ANY & ~ENG_T_STRING;
        for (size_t i = 0; i < CN_ARRAY_LEN(text); i++)
            if (type.n == strlen(text[i]) && !memcmp(type.p, text[i], type.n)) types = ENG_T_STRING;
    }
    rd->state = VALUE;
    rd->newline = false;
    rd->text = false; /* nothing of the value has come */
    return eng_value_begin(rd, types, out);
}

static int value_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    bool lines = rd->form->flags & ENG_F_LINES, first = !rd->text;
    int rc = 0;
    rd->text = true;
    if (lines && first && c == '\n') return 0;
    if (rd->newline) rc = eng_value_byte(rd, '\n', out);
    rd->newline = lines && c == '\n';
    return rc || rd->newline ? rc : eng_value_byte(rd, c, out);
}

/* ---- the reader ------------------------------------------------------------------------------ */

static int keep(char *to, size_t *n, char c)
{
    if (*n == ENG_NAME_BYTES) return ENG_STEP_AGAIN;
    to[(*n)++] = c;
    return 0;
}

static int byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    switch (rd->state) {
    case NAME:
        if (!rd->n_field && eng_is_space(c)) return 0;
        /* Where no mark ends the name, white space does. */
        if (eng_is_space(c)) return end_name(rd, BETWEEN, out);
        return keep(rd->field, &rd->n_field, c);
    case KEY:
        return keep(rd->key, &rd->n_key, c);
    case TYPE:
        return keep(rd->field, &rd->n_field, c);
    case ATTRIBUTE:
        return 0;
    case VALUE:
        return value_byte(rd, c, out);
    }
    if (eng_is_space(c) && !rd->over) return 0;
    if (rd->state != BETWEEN || rd->mode != ENG_CALL_CERTAIN) return ENG_STEP_AGAIN;
    rd->over = true; /* text has begun */
    return eng_put(rd->reply, ENG_PART_CONTENT, &c, 1, out);
}

/* A mark between parameters, or where a name ends at one. */
static int between_mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    int rc = 0;
    rd->over = false;
    if (role == ENG_R_PARAM) {
        rd->state = KEY;
        rd->n_key = 0;
        return 0;
    }
    if (role == ENG_R_HEAD_END) return 0;
    rc = end_call(rd, out);
    if (rc || role == ENG_R_CALL_END) return rc;
    return rd->ops->mark(rd, role, out);
}

static int section_mark(struct eng_reader *rd, enum eng_mark_role role)
{
    if (role == ENG_R_CALL) return begin_call(rd);
    if (role == ENG_R_CLOSE) return ENG_STEP_LEAVE;
    if (role == ENG_R_OPEN) eng_call_next(rd);
    return 0;
}

static int mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    int rc = 0;
    switch (rd->state) {
    case SECTION:
        return section_mark(rd, role);
    case NAME:
        rc = end_name(rd, role == ENG_R_NEXT ? ATTRIBUTE : BETWEEN, out);
        return rc || role == ENG_R_NEXT ? rc : between_mark(rd, role, out);
    case ATTRIBUTE:
        rd->state = BETWEEN;
        return 0;
    case BETWEEN:
        return between_mark(rd, role, out);
    case KEY:
        rc = end_key(rd, out);
        if (rc || role == ENG_R_HEAD_END) return rc ? rc : begin_value(rd, out);
        rd->state = rd->reply->format->roles & ENG_BIT(VALUE) ? GAP : TYPE;
        return 0;
    case TYPE:
    case GAP:
        return begin_value(rd, out);
    }
    rd->state = BETWEEN;
    rc = eng_value_end(rd, out);
    return rc || role == ENG_R_VALUE_END ? rc : between_mark(rd, role, out);
}

const struct eng_reader_ops eng_tagged_reader = {wants, byte, mark};
