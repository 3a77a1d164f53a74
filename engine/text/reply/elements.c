/* Reader: calls in which each value has a tag, and the tags are nested as the values are (MiniMax
 * M3). Every tag follows one token:
 *     ]<]minimax[>[<invoke name="f">]<]minimax[>[<k>v]<]minimax[>[</k>]<]minimax[>[</invoke>
 * The items of a list are tags `item`. What a tag holds, the schema says; where it does not, tags
 * inside make it a list or an object, and text a value. */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    SECTION, /* outside calls */
    TAG,     /* in a tag; its text is kept */
    CONTENT, /* of an element */
};
enum { UNKNOWN, STRING, OBJECT, LIST };

static struct eng_wants wants(const struct eng_reader *rd)
{
    uint32_t marks = rd->state == TAG ? 0 : ENG_BIT(PARAM);
    return (struct eng_wants){.text = marks, .token = marks};
}

static bool is(struct eng_str s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

/* ---- elements -------------------------------------------------------------------------------- */

static int put(struct eng_reader *rd, const char *s, struct eng_parts *out)
{
    return eng_call_arguments(rd, s, strlen(s), out);
}

/* An element begins. Its schema may say what it is. */
static int push(struct eng_reader *rd, struct eng_str tag, const struct eng_schema *schema,
                struct eng_parts *out)
{
    unsigned types = eng_schema_types(schema);
    size_t top = rd->n_elements;
    if (top == ENG_ELEMENTS) return ENG_STEP_AGAIN;
    rd->elements[top].schema = schema;
    rd->elements[top].count = 0;
    rd->elements[top].name = rd->names.len;
    rd->elements[top].kind = types == ENG_T_STRING ? STRING : UNKNOWN;
    rd->n_elements++;
    int rc = cn_buf_append(&rd->names, tag.p, tag.n);
    return rc ? rc : eng_value_begin(rd, types, out);
}

/* A tag inside makes the element a list or an object. */
static void become(struct eng_reader *rd, struct eng_str tag)
{
    size_t top = rd->n_elements - 1;
    unsigned types = eng_schema_types(rd->elements[top].schema);
    bool list = types & ENG_T_ARRAY, object = types & ENG_T_OBJECT;
    if (rd->elements[top].kind != UNKNOWN) return;
    if (list == object) list = is(tag, "item");
    rd->elements[top].kind = list ? LIST : OBJECT;
}

static int open_element(struct eng_reader *rd, struct eng_str tag, struct eng_parts *out)
{
    become(rd, tag);
    size_t top = rd->n_elements - 1;
    bool list = rd->elements[top].kind == LIST;
    const struct eng_schema *of = rd->elements[top].schema;
    rd->count = rd->elements[top].count++;
    int rc = list ? put(rd, rd->count ? ", " : "[", out) : eng_value_member(rd, tag, out);
    if (rc) return rc;
    of = list ? eng_schema_items(of) : eng_schema_member(of, tag, NULL);
    return push(rd, tag, of, out);
}

static int close_element(struct eng_reader *rd, struct eng_parts *out)
{
    size_t top = --rd->n_elements;
    int rc;
    if (rd->elements[top].kind == OBJECT || rd->elements[top].kind == LIST)
        rc = put(rd, rd->elements[top].kind == OBJECT ? "}" : "]", out);
    else
        rc = eng_value_end(rd, out);
    if (top) rd->names.len = rd->elements[top].name;
    return rc;
}

static int end_call(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = 0;
    while (!rc && rd->n_elements > 1)
        rc = close_element(rd, out);
    if (!rc) rc = put(rd, rd->elements[0].count ? "}" : "{}", out);
    rd->n_elements = 0;
    rd->ended = true;
    rd->state = SECTION;
    return rc ? rc : eng_call_end(rd, out);
}

/* ---- tags ------------------------------------------------------------------------------------ */

/* <invoke name="f">: the name, n 0: it is another tag. */
static struct eng_str invoked(struct eng_str tag)
{
    static const char head[] = "invoke name=\"";
    size_t n = sizeof head - 1;
    if (tag.n <= n || memcmp(tag.p, head, n) || tag.p[tag.n - 1] != '"')
        return (struct eng_str){"", 0};
    return (struct eng_str){tag.p + n, tag.n - n - 1};
}

static int section_tag(struct eng_reader *rd, struct eng_str tag, struct eng_parts *out)
{
    struct eng_str name = invoked(tag);
    rd->state = SECTION;
    if (is(tag, "/tool_call")) return ENG_STEP_LEAVE;
    if (is(tag, "tool_call")) return 0;
    if (!name.n) return ENG_STEP_AGAIN;
    eng_call_next(rd);
    int rc = eng_call_name(rd, name, out);
    if (!rc) rc = eng_call_commit(rd, out);
    if (rc) return rc;
    cn_buf_reset(&rd->names);
    rd->n_elements = 1;
    rd->elements[0].schema = rd->tool ? rd->tool->parameters : NULL;
    rd->elements[0].count = 0;
    rd->elements[0].kind = OBJECT;
    rd->state = CONTENT;
    return 0;
}

/* A tag as a part of a string. */
static int text_tag(struct eng_reader *rd, struct eng_str tag, struct eng_parts *out)
{
    struct eng_str mark = eng_role_text(rd->reply->format, ENG_R_PARAM);
    int rc = 0;
    for (size_t i = 0; !rc && i < mark.n; i++)
        rc = eng_value_byte(rd, mark.p[i], out);
    for (size_t i = 0; !rc && i < tag.n; i++)
        rc = eng_value_byte(rd, tag.p[i], out);
    return rc ? rc : eng_value_byte(rd, '>', out);
}

static int end_tag(struct eng_reader *rd, struct eng_parts *out)
{
    struct eng_str tag = {rd->key, rd->n_key};
    if (!rd->n_elements) return section_tag(rd, tag, out);
    size_t top = rd->n_elements - 1;
    rd->state = CONTENT;
    if (is(tag, "/invoke")) return end_call(rd, out);
    struct eng_str own = eng_str_of(&rd->names);
    own.p += rd->elements[top].name;
    own.n -= rd->elements[top].name;
    bool closes = tag.n && *tag.p == '/';
    if (top && closes && tag.n - 1 == own.n && !memcmp(tag.p + 1, own.p, own.n))
        return close_element(rd, out);
    /* In a string, and in a value that has gone out as one, a tag is text. */
    if (rd->elements[top].kind == STRING || (rd->elements[top].kind == UNKNOWN && rd->streams))
        return text_tag(rd, tag, out);
    return closes ? 0 : open_element(rd, tag, out); /* a closing tag of nothing is ignored */
}

/* ---- the reader ------------------------------------------------------------------------------ */

static int byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (rd->state == TAG) {
        if (c == '>') return end_tag(rd, out);
        if (rd->n_key == sizeof rd->key) return ENG_STEP_AGAIN;
        rd->key[rd->n_key++] = c;
        return 0;
    }
    if (rd->state == SECTION) return eng_is_space(c) ? 0 : ENG_STEP_AGAIN;
    uint8_t kind = rd->elements[rd->n_elements - 1].kind;
    if (kind == STRING || kind == UNKNOWN) return eng_value_byte(rd, c, out);
    return 0; /* text next to tags means nothing */
}

static int mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    if (role == ENG_R_OPEN) {
        eng_call_next(rd);
        return 0;
    }
    rd->state = TAG;
    rd->n_key = 0;
    return 0;
}

const struct eng_reader_ops eng_elements_reader = {wants, byte, mark};
