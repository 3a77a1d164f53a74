/* The text of one member of a JSON object that comes in pieces. Any other shape of the value is
 * given as it is written. */
#include "engine/text/reply/reply.h"

#include <string.h>

enum {
    BETWEEN, /* outside of strings, of any value but ours */
    STRING,  /* in a string of another value, or a key that is not ours */
    KEY,     /* in a key that is ours so far */
    NAMED,   /* our key was read: up to its value */
    TEXT,    /* in our string */
    RAW,     /* in our value, which is no string: outside of its strings */
    QUOTED,  /* and inside of them */
    OVER,
};

void eng_extract_init(struct eng_extract *m, const char *name)
{
    *m = (struct eng_extract){.name = name};
}

static void brackets(struct eng_extract *m, char c)
{
    if (c == '{' || c == '[') m->depth++;
    if ((c == '}' || c == ']') && m->depth) m->depth--;
}

static void between(struct eng_extract *m, char c)
{
    brackets(m, c);
    if (c == ':' && m->depth == 1) m->in_value = true;
    if ((c == ',' || c == '{') && m->depth == 1) m->in_value = false;
    if (c != '"') return;
    m->state = m->depth == 1 && !m->in_value ? KEY : STRING;
    m->n_key = 0;
    m->escaped = false;
}

/* A byte of a string that is passed over; true: its end. */
static bool pass(struct eng_extract *m, char c)
{
    bool end = c == '"' && !m->escaped;
    m->escaped = c == '\\' && !m->escaped;
    return end;
}

static void key_byte(struct eng_extract *m, char c)
{
    if (c == '"' && !m->name[m->n_key]) {
        m->state = NAMED;
    } else if (c && c == m->name[m->n_key] && c != '"' && c != '\\') {
        m->n_key++;
    } else {
        m->state = STRING;
        if (pass(m, c)) m->state = BETWEEN;
    }
}

static int text_byte(struct eng_extract *m, char c, struct cn_buf *out)
{
    char bytes[8];
    int n = eng_unescape(&m->unescape, c, bytes);
    if (n == -1) m->state = OVER;
    if (n == -2) { /* no escape of JSON's */
        m->unescape = (struct eng_unescape){0};
        bytes[0] = c;
        n = 1;
    }
    return n > 0 ? cn_buf_append(out, bytes, (size_t)n) : 0;
}

static int raw_byte(struct eng_extract *m, char c, struct cn_buf *out)
{
    if (m->state == QUOTED) {
        if (pass(m, c)) m->state = RAW;
        return cn_buf_append(out, &c, 1);
    }
    if (m->depth == 1 && (c == ',' || c == '}')) {
        m->state = OVER;
        return 0;
    }
    brackets(m, c);
    if (c == '"') {
        m->state = QUOTED;
        m->escaped = false;
    }
    return cn_buf_append(out, &c, 1);
}

static int value_byte(struct eng_extract *m, char c, struct cn_buf *out)
{
    if (eng_is_space(c) || c == ':') return 0;
    m->found = true;
    m->state = c == '"' ? TEXT : RAW;
    return c == '"' ? 0 : raw_byte(m, c, out);
}

int eng_extract_push(struct eng_extract *m, const char *s, size_t n, struct cn_buf *out)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc && m->state != OVER; i++) {
        switch (m->state) {
        case BETWEEN:
            between(m, s[i]);
            break;
        case STRING:
            if (pass(m, s[i])) m->state = BETWEEN;
            break;
        case KEY:
            key_byte(m, s[i]);
            break;
        case NAMED:
            rc = value_byte(m, s[i], out);
            break;
        case TEXT:
            rc = text_byte(m, s[i], out);
            break;
        default:
            rc = raw_byte(m, s[i], out);
            break;
        }
    }
    return rc;
}
