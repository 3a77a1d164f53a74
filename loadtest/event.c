/* What a chunk or an answer says: a scan of its JSON that allocates nothing. It reads what servers
 * send, and is no judge of their JSON: what it does not look for it passes over by its brackets. */
#include "loadtest/loadtest.h"

#include <string.h>

struct cursor {
    const char *p, *end;
    bool bad;
};

static int peek(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\t' || *c->p == '\r'))
        c->p++;
    if (c->p == c->end) c->bad = true;
    return c->bad ? -1 : (unsigned char)*c->p;
}

static bool take(struct cursor *c, char ch)
{
    if (peek(c) != ch) return false;
    c->p++;
    return true;
}

/* The inside of a string, escapes left as they are. */
static bool string(struct cursor *c, const char **s, size_t *n)
{
    if (!take(c, '"')) return !(c->bad = true);
    *s = c->p;
    while (c->p < c->end && *c->p != '"')
        c->p += *c->p == '\\' && c->end - c->p > 1 ? 2 : 1;
    if (c->p >= c->end) return !(c->bad = true);
    *n = (size_t)(c->p++ - *s);
    return true;
}

static void skip(struct cursor *c)
{
    const char *s;
    size_t n, depth = 0;

    do {
        int ch = peek(c);

        if (c->bad) return;
        if (ch == '"') {
            string(c, &s, &n);
        } else if (ch == '{' || ch == '[') {
            depth++;
            c->p++;
        } else if (ch == '}' || ch == ']') {
            if (!depth) {
                c->bad = true; /* a value is missing */
                return;
            }
            depth--;
            c->p++;
        } else if (depth) {
            c->p++;
        } else {
            while (c->p < c->end && !strchr(",]} \t\r\n", *c->p))
                c->p++;
        }
    } while (depth && !c->bad);
}

/* The next member of an object: its key; the cursor is at the value then. *n_members counts. */
static bool member(struct cursor *c, size_t *n_members, const char **key, size_t *n)
{
    if (take(c, '}') || c->bad) return false;
    if ((*n_members)++ && !take(c, ',')) c->bad = true;
    if (!c->bad && string(c, key, n) && !take(c, ':')) c->bad = true;
    return !c->bad;
}

/* Goes to the next item of an array. */
static bool item(struct cursor *c, size_t *n_items)
{
    if (take(c, ']') || c->bad) return false;
    if ((*n_items)++ && !take(c, ',')) c->bad = true;
    return !c->bad;
}

static bool is(const char *key, size_t n, const char *word)
{
    return strlen(word) == n && !memcmp(key, word, n);
}

static uint64_t number(struct cursor *c)
{
    uint64_t v = 0;

    peek(c);
    for (const char *p = c->p; p < c->end && *p >= '0' && *p <= '9'; p++)
        if (!cn_mul_u64(v, 10, &v) || !cn_add_u64(v, (uint64_t)(*p - '0'), &v)) v = UINT64_MAX;
    skip(c);
    return v;
}

/* True when the value is a string that is not empty, or an array or object that is not. */
static bool holds_something(struct cursor *c)
{
    const char *s;
    size_t n = 0;
    int ch = peek(c);

    if (ch == '"') return string(c, &s, &n) && n > 0;
    if (ch == '[' || ch == '{') {
        struct cursor in = {c->p + 1, c->end, false};
        int first = peek(&in);

        skip(c);
        return first != ']' && first != '}';
    }
    skip(c);
    return false;
}

/* The value is an object, and c now within it; false: it was something else, and is skipped. */
static bool enter_object(struct cursor *c)
{
    if (peek(c) == '{') return take(c, '{');
    skip(c);
    return false;
}

static void read_delta(struct cursor *c, struct lt_event *e)
{
    size_t count = 0, n;
    const char *key;

    if (!enter_object(c)) return;
    while (member(c, &count, &key, &n)) {
        if (is(key, n, "content") || is(key, n, "reasoning_content") || is(key, n, "reasoning") ||
            is(key, n, "tool_calls"))
            e->text |= holds_something(c);
        else
            skip(c);
    }
}

static void read_choice(struct cursor *c, struct lt_event *e)
{
    size_t count = 0, n;
    const char *key;

    if (!enter_object(c)) return;
    while (member(c, &count, &key, &n)) {
        if (is(key, n, "text"))
            e->text |= holds_something(c);
        else if (is(key, n, "delta") || is(key, n, "message"))
            read_delta(c, e);
        else if (is(key, n, "finish_reason"))
            e->finish |= holds_something(c);
        else
            skip(c);
    }
}

static void read_choices(struct cursor *c, struct lt_event *e)
{
    size_t count = 0;

    if (!take(c, '[')) {
        skip(c);
        return;
    }
    while (item(c, &count))
        read_choice(c, e);
}

static void read_usage(struct cursor *c, struct lt_event *e)
{
    size_t count = 0, inner = 0, n;
    const char *key;

    if (!take(c, '{')) { /* null in the chunks before the last */
        skip(c);
        return;
    }
    e->usage = true;
    while (member(c, &count, &key, &n)) {
        if (is(key, n, "prompt_tokens")) {
            e->prompt_tokens = number(c);
        } else if (is(key, n, "completion_tokens")) {
            e->completion_tokens = number(c);
        } else if (is(key, n, "prompt_tokens_details") && take(c, '{')) {
            while (member(c, &inner, &key, &n)) {
                if (is(key, n, "cached_tokens"))
                    e->cached_tokens = number(c);
                else
                    skip(c);
            }
        } else {
            skip(c);
        }
    }
}

static void read_error(struct cursor *c, struct lt_event *e)
{
    size_t count = 0, n, len;
    const char *key, *s;

    if (peek(c) == 'n') { /* "error": null */
        skip(c);
        return;
    }
    e->error = true;
    if (!take(c, '{')) {
        skip(c);
        return;
    }
    while (member(c, &count, &key, &n)) {
        if (!is(key, n, "message") || peek(c) != '"') {
            skip(c);
            continue;
        }
        if (!string(c, &s, &len)) break;
        len = CN_MIN(len, sizeof e->message - 1);
        memcpy(e->message, s, len);
        e->message[len] = '\0';
    }
}

bool lt_event_read(const char *p, size_t n, struct lt_event *out)
{
    struct cursor c = {p, p + n, false};
    size_t count = 0, len;
    const char *key;

    memset(out, 0, sizeof *out);
    if (!take(&c, '{')) return false;
    while (member(&c, &count, &key, &len)) {
        if (is(key, len, "choices"))
            read_choices(&c, out);
        else if (is(key, len, "usage"))
            read_usage(&c, out);
        else if (is(key, len, "error"))
            read_error(&c, out);
        else
            skip(&c);
    }
    return !c.bad;
}
