/* Reader: calls as Python writes them, in a list: [f(a="x", b=[1, 2]), g()]. A call is kept until
 * it is complete, because models quote badly: a call that cannot be read is then text. Where the
 * model writes JSON instead, the reader of objects takes over. Llama's built-in tools are here too:
 * brave_search.call(query="..."). */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    START,  /* before a list or a call */
    NAME,   /* of a function */
    BEFORE, /* an argument, or the end of them */
    WORD,   /* a name of an argument, or the beginning of its value */
    EQUALS, /* after a word and white space */
    VALUE,
    AFTER,   /* an argument */
    BETWEEN, /* calls */
    OVER,    /* after the list */
};

static struct eng_wants wants(const struct eng_reader *rd)
{
    bool outside = rd->state == START || rd->state == BETWEEN || rd->state == OVER;
    uint32_t marks = ENG_BIT(CLOSE) | (outside ? ENG_BIT(OPEN) : 0);
    return (struct eng_wants){.text = outside ? marks : 0, .token = marks};
}

static bool in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_.-:", c)) || (c & 0x80);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int begin_name(struct eng_reader *rd, char c)
{
    eng_call_next(rd);
    rd->field[0] = c;
    rd->n_field = 1;
    rd->state = NAME;
    /* Without a mark the answer may be any text in brackets. */
    if (rd->bare && !eng_tool_begins(rd->reply->tools, (struct eng_str){rd->field, 1}))
        return ENG_STEP_AGAIN;
    return 0;
}

static int end_name(struct eng_reader *rd, struct eng_parts *out)
{
    static const char call[] = ".call";
    struct eng_str name = {rd->field, rd->n_field}, base = name;
    base.n -= CN_MIN(base.n, sizeof call - 1);
    bool built_in = !memcmp(base.p + base.n, call, CN_MIN(name.n, sizeof call - 1)) &&
                    eng_tool_find(rd->reply->tools, base);
    rd->state = BEFORE;
    return eng_call_name(rd, built_in ? base : name, out);
}

static int name_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (c == '(') return end_name(rd, out);
    if (!in_name(c) || rd->n_field == sizeof rd->field) return ENG_STEP_AGAIN;
    rd->field[rd->n_field++] = c;
    return 0;
}

static int end_call(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = eng_call_arguments(rd, rd->count ? "}" : "{}", rd->count ? 1 : 2, out);
    rd->ended = true;
    rd->state = BETWEEN;
    return rc ? rc : eng_call_end(rd, out);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int value_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    enum eng_lit_result is = eng_lit_byte(&rd->lit, c, &rd->made);
    int rc = eng_call_made(rd, out);
    if (rc || is == ENG_LIT_MORE) return rc;
    if (is == ENG_LIT_BAD) return ENG_STEP_AGAIN;
    rd->state = AFTER;
    return is == ENG_LIT_END ? rd->ops->byte(rd, c, out) : 0;
}

static int begin_value(struct eng_reader *rd, struct eng_str name, struct eng_parts *out)
{
    rd->state = VALUE;
    rd->text = false; /* nothing has come */
    eng_lit_init(&rd->lit, ENG_LIT_PYTHON, NULL);
    return eng_value_member(rd, name, out);
}

/* A value without a name: the schema's next property has it. */
static int begin_position(struct eng_reader *rd, struct eng_parts *out)
{
    const struct eng_schema *s = rd->tool ? rd->tool->parameters : NULL;
    struct eng_str name = eng_schema_property(s, rd->count);
    if (!name.n && rd->tool) return ENG_STEP_AGAIN;
    int rc = begin_value(rd, name, out);
    for (size_t i = 0; !rc && i < rd->n_key; i++)
        rc = value_byte(rd, rd->key[i], out);
    return rc;
}

static int before_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (c == ')') return end_call(rd, out);
    rd->n_key = 0;
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c & 0x80;
    if (word) {
        rd->key[rd->n_key++] = c;
        rd->state = WORD;
        return 0;
    }
    int rc = begin_position(rd, out);
    return rc ? rc : value_byte(rd, c, out);
}

static int word_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (c == '=') return begin_value(rd, (struct eng_str){rd->key, rd->n_key}, out);
    if (rd->state == WORD && in_name(c)) {
        if (rd->n_key == sizeof rd->key) return ENG_STEP_AGAIN;
        rd->key[rd->n_key++] = c;
        return 0;
    }
    if (eng_is_space(c)) {
        rd->state = EQUALS;
        return 0;
    }
    int rc = begin_position(rd, out);
    return rc ? rc : value_byte(rd, c, out);
}

/* ---- around them ----------------------------------------------------------------------------- */

static int start_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (c == '[' && !rd->list && rd->state == START) {
        rd->list = true;
        return 0;
    }
    if (c == '{' && !rd->any && !rd->bare) {
        rd->ops = &eng_objects_reader;
        rd->state = 0;
        return rd->ops->byte(rd, c, out);
    }
    if (c == ']' && rd->list) {
        rd->list = false;
        rd->state = OVER;
        if (rd->any) eng_call_forget(rd);
        return rd->bare ? ENG_STEP_LEAVE : 0;
    }
    if (c == ',' && rd->state == BETWEEN) {
        if (rd->any) eng_call_forget(rd);
        return 0;
    }
    bool word = in_name(c) && !(c >= '0' && c <= '9') && c != '.' && c != '-' && c != ':';
    return word ? begin_name(rd, c) : ENG_STEP_AGAIN;
}

static int byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (rd->state == NAME) return name_byte(rd, c, out);
    if (rd->state == WORD || rd->state == EQUALS) return word_byte(rd, c, out);
    if (rd->state == VALUE && (rd->text || !eng_is_space(c))) {
        rd->text = true;
        return value_byte(rd, c, out);
    }
    if (eng_is_space(c)) return 0;
    switch (rd->state) {
    case BEFORE:
        return before_byte(rd, c, out);
    case AFTER:
        if (c == ')') return end_call(rd, out);
        rd->state = BEFORE;
        return c == ',' ? 0 : ENG_STEP_AGAIN;
    case OVER:
        return ENG_STEP_AGAIN;
    }
    return start_byte(rd, c, out);
}

static int mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    if (role == ENG_R_OPEN) {
        eng_call_next(rd);
        rd->list = false;
        rd->state = START;
        return 0;
    }
    return ENG_STEP_LEAVE;
}

const struct eng_reader_ops eng_python_reader = {wants, byte, mark};
