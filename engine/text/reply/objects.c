/* Reader: calls as JSON objects with the function's name and its arguments, alone, one after the
 * other, or in a list: {"name": "f", "arguments": {...}}. Members may come in any order; of the
 * arguments the bytes go out as they are. Llama writes objects without a mark, at the beginning of
 * the answer. */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    BETWEEN, /* objects */
    MEMBER,  /* before the name of a member, or the object's end */
    KEY,     /* in it */
    COLON,
    VALUE, /* before a value */
    TEXT,  /* in a string: the name or the id */
    ARGUMENTS,
    QUOTED, /* arguments as a string that holds JSON */
    OTHER,  /* in the value of a member that says nothing */
    NEXT,   /* after a value */
};
enum { IS_OTHER, IS_NAME, IS_ID, IS_ARGUMENTS };

static struct eng_wants wants(const struct eng_reader *rd)
{
    uint32_t marks = rd->state == BETWEEN ? ENG_BIT(OPEN) | ENG_BIT(CLOSE) : ENG_BIT(CLOSE);
    return (struct eng_wants){.text = rd->state == BETWEEN ? marks : 0, .token = marks};
}

static int what_is(const struct eng_reader *rd)
{
    static const struct {
        const char *name;
        int is;
    } keys[] = {{"name", IS_NAME},           {"tool_name", IS_NAME},       {"function", IS_NAME},
                {"arguments", IS_ARGUMENTS}, {"parameters", IS_ARGUMENTS}, {"id", IS_ID}};
    if (rd->form->flags & ENG_F_KEY_IS_NAME) return rd->named ? IS_OTHER : IS_ARGUMENTS;
    for (size_t i = 0; i < CN_ARRAY_LEN(keys); i++)
        if (rd->n_key == strlen(keys[i].name) && !memcmp(rd->key, keys[i].name, rd->n_key))
            return keys[i].is != IS_ID || rd->form->flags & ENG_F_IDS ? keys[i].is : IS_OTHER;
    return IS_OTHER;
}

/* An answer in JSON begins like Llama's calls; unless its first member is one of a call's, it need
 * not be kept back. */
static bool begins_call(const struct eng_reader *rd)
{
    static const char type[] = "type";
    return rd->what != IS_OTHER || rd->count ||
           (rd->n_key == sizeof type - 1 && !memcmp(rd->key, type, rd->n_key));
}

static bool waits(const struct eng_reader *rd)
{
    return rd->form->flags & ENG_F_WAIT_ID && !rd->n_id;
}

static int end_object(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = 0;
    rd->state = BETWEEN;
    if (!rd->named || (!rd->started && rd->bare)) {
        rc = eng_call_is_text(rd, out);
        if (rc || rd->mode != ENG_CALL_TEXT || !rd->bare) return rc;
        return ENG_STEP_LEAVE;
    }
    if (!rd->started) rc = eng_call_arguments(rd, "{}", 2, out);
    rd->ended = true;
    return rc ? rc : eng_call_end(rd, out);
}

/* ---- between objects ------------------------------------------------------------------------- */

static int begin_object(struct eng_reader *rd)
{
    eng_call_next(rd);
    rd->state = MEMBER;
    return 0;
}

static int between(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (eng_is_space(c)) return 0;
    if (c == '{' && !rd->over) return begin_object(rd);
    if (c == '[' && !rd->list && !rd->over && !rd->any) {
        rd->list = true;
        return 0;
    }
    if (c == ']' && rd->list) {
        rd->list = false;
        rd->over = true;
        if (rd->any) eng_call_forget(rd);
        return eng_role_text(rd->reply->format, ENG_R_CLOSE).n && !rd->bare ? 0 : ENG_STEP_LEAVE;
    }
    if (c == ',' && rd->list) {
        if (rd->any) eng_call_forget(rd);
        return 0;
    }
    if ((c == ';' || c == ',') && rd->any && rd->bare && !rd->over) return 0;
    if (rd->form->flags & ENG_F_BUILT_IN && !rd->any && !rd->bare && !rd->list) {
        rd->ops = &eng_python_reader;
        rd->state = 0;
        return rd->ops->byte(rd, c, out);
    }
    return ENG_STEP_AGAIN;
}

/* ---- members --------------------------------------------------------------------------------- */

static int key_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    char text[8];
    int n = eng_unescape(&rd->unescape, c, text);
    if (n == -2) return ENG_STEP_AGAIN;
    if (n >= 0) {
        size_t room = sizeof rd->key - rd->n_key;
        memcpy(rd->key + rd->n_key, text, CN_MIN((size_t)n, room));
        rd->n_key += CN_MIN((size_t)n, room); /* no member of a call has so long a name */
        return 0;
    }
    rd->what = what_is(rd);
    rd->state = COLON;
    if (rd->bare && !begins_call(rd)) return eng_call_is_text(rd, out);
    rd->count++;
    if (!(rd->form->flags & ENG_F_KEY_IS_NAME) || rd->what != IS_ARGUMENTS) return 0;
    return eng_call_name(rd, (struct eng_str){rd->key, rd->n_key}, out);
}

static int lit_step(struct eng_reader *rd, char c, struct eng_parts *out);

static int begin_value(struct eng_reader *rd, char c, struct eng_parts *out)
{
    rd->unescape = (struct eng_unescape){0};
    rd->n_field = 0;
    if (rd->what == IS_ARGUMENTS && !rd->started && c == '"') {
        rd->state = QUOTED;
        eng_lit_init(&rd->lit, 0, NULL);
        return 0;
    }
    if ((rd->what == IS_NAME || rd->what == IS_ID) && c == '"') {
        rd->state = TEXT;
        return 0;
    }
    if (rd->what == IS_ARGUMENTS && c != '{' && c != 'n') {
        int rc = eng_call_is_text(rd, out);
        if (rc) return rc;
    }
    rd->state = rd->what == IS_ARGUMENTS && c == '{' && !rd->started ? ARGUMENTS : OTHER;
    eng_lit_init(&rd->lit, 0, NULL);
    return lit_step(rd, c, out);
}

/* The name or id. */
static int text_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    char text[8];
    int n = eng_unescape(&rd->unescape, c, text);
    if (n == -2) return ENG_STEP_AGAIN;
    if (n >= 0) {
        size_t room = sizeof rd->field - rd->n_field;
        memcpy(rd->field + rd->n_field, text, CN_MIN((size_t)n, room));
        rd->n_field += CN_MIN((size_t)n, room);
        return 0;
    }
    rd->state = NEXT;
    if (rd->what == IS_NAME && !rd->named)
        return eng_call_name(rd, (struct eng_str){rd->field, rd->n_field}, out);
    if (rd->what == IS_ID && rd->mode == ENG_CALL_OPEN && rd->n_field < sizeof rd->id) {
        memcpy(rd->id, rd->field, rd->n_field);
        rd->n_id = rd->n_field;
    }
    return 0;
}

/* Arguments may go out as soon as name and, where it comes, id are known. */
static int may_commit(struct eng_reader *rd, struct eng_parts *out)
{
    return rd->named && rd->started && !waits(rd) ? eng_call_commit(rd, out) : 0;
}

static int lit_step(struct eng_reader *rd, char c, struct eng_parts *out)
{
    enum eng_lit_result is = eng_lit_byte(&rd->lit, c, &rd->made);
    int rc = cn_buf_code(&rd->made);
    if (rd->state == OTHER)
        cn_buf_reset(&rd->made);
    else
        rc = eng_call_made(rd, out);
    if (!rc) rc = may_commit(rd, out);
    if (rc) return rc;
    if (is == ENG_LIT_BAD) return ENG_STEP_AGAIN;
    if (is == ENG_LIT_MORE) return 0;
    if (rd->state == ARGUMENTS) rd->ended = true;
    rd->state = NEXT;
    return is == ENG_LIT_END ? rd->ops->byte(rd, c, out) : 0;
}

/* A byte of the JSON that is in a string. */
static int quoted_json(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (rd->ended) return eng_is_space(c) ? 0 : ENG_STEP_AGAIN;
    if (!rd->started && eng_is_space(c)) return 0;
    if (!rd->started && c != '{') {
        rd->state = OTHER; /* to the end of the string */
        return eng_call_is_text(rd, out);
    }
    enum eng_lit_result is = eng_lit_byte(&rd->lit, c, &rd->made);
    int rc = eng_call_made(rd, out);
    if (!rc) rc = may_commit(rd, out);
    if (!rc && is == ENG_LIT_DONE) rd->ended = true;
    return rc ? rc : is == ENG_LIT_BAD ? ENG_STEP_AGAIN : 0;
}

static int quoted_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    char text[8];
    int n = eng_unescape(&rd->unescape, c, text), rc = 0;
    if (n == -2) return ENG_STEP_AGAIN;
    if (n == -1) {
        rd->state = NEXT;
        if (!rd->started) rc = eng_call_arguments(rd, "{}", 2, out);
        if (rd->lit.depth == 0) rd->ended = true;
        return rd->ended || rc ? rc : ENG_STEP_AGAIN;
    }
    for (int i = 0; i < n && !rc; i++)
        rc = quoted_json(rd, text[i], out);
    if (rd->state == OTHER) { /* no JSON: the rest of the string is read as one */
        eng_lit_init(&rd->lit, 0, NULL);
        eng_lit_byte(&rd->lit, '"', &rd->made);
        cn_buf_reset(&rd->made);
    }
    return rc;
}

static int byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    switch (rd->state) {
    case BETWEEN:
        return between(rd, c, out);
    case KEY:
        return key_byte(rd, c, out);
    case TEXT:
        return text_byte(rd, c, out);
    case ARGUMENTS:
    case OTHER:
        return lit_step(rd, c, out);
    case QUOTED:
        return quoted_byte(rd, c, out);
    }
    if (eng_is_space(c)) return 0;
    if (rd->state == VALUE) return begin_value(rd, c, out);
    if (rd->state == COLON) {
        rd->state = VALUE;
        return c == ':' ? 0 : ENG_STEP_AGAIN;
    }
    if (c == '}') return end_object(rd, out);
    if (rd->state == NEXT) {
        rd->state = MEMBER;
        return c == ',' ? 0 : ENG_STEP_AGAIN;
    }
    rd->unescape = (struct eng_unescape){0};
    rd->n_key = 0;
    rd->state = KEY;
    return c == '"' ? 0 : ENG_STEP_AGAIN;
}

static int mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    if (role == ENG_R_OPEN) {
        eng_call_next(rd);
        rd->list = rd->over = false;
        return 0;
    }
    /* As a token it also ends an object that the model did not close. */
    if (rd->state != BETWEEN && rd->mode == ENG_CALL_CERTAIN && rd->ended) {
        int rc = eng_call_end(rd, out);
        if (rc) return rc;
    }
    return ENG_STEP_LEAVE;
}

const struct eng_reader_ops eng_objects_reader = {wants, byte, mark};
