/* Values that a model writes without quotes: JSON made of them by the types that the schema allows.
 * Strings go out as they come; anything else is kept until it is complete, because only then it is
 * known what it is. One value at a time, of the call that the reader is in. */
#include "engine/text/reply/reply.h"

#include <string.h>

/* ---- strings of JSON ------------------------------------------------------------------------- */

enum { PLAIN, ESCAPED, HEX };

static int put_code_point(struct eng_unescape *u, char *out)
{
    int n = 0;
    if (u->high && u->cp >= 0xDC00 && u->cp < 0xE000) {
        u->cp = 0x10000 + ((u->high - 0xD800) << 10) + (u->cp - 0xDC00);
        u->high = 0;
    }
    if (u->high) n = (int)cn_utf8_encode(0xFFFD, out);
    u->high = 0;
    if (u->cp >= 0xD800 && u->cp < 0xDC00)
        u->high = u->cp;
    else
        n += (int)cn_utf8_encode(u->cp >= 0xDC00 && u->cp < 0xE000 ? 0xFFFD : u->cp, out + n);
    return n;
}

int eng_unescape(struct eng_unescape *u, char c, char out[8])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (u->state == PLAIN && c == '\\') {
        u->state = ESCAPED;
        return 0;
    }
    if (u->state == HEX) {
        if (cn_hex_digit(c) < 0) return -2;
        u->cp = u->cp << 4 | (uint32_t)cn_hex_digit(c);
        if (++u->n < 4) return 0;
        u->state = PLAIN;
        return put_code_point(u, out);
    }
    if (u->state == ESCAPED) {
        if (c == 'u') {
            u->state = HEX;
            u->n = 0;
            u->cp = 0;
            return 0;
        }
        const char *at = c ? strchr(from, c) : NULL;
        if (!at) return -2;
        u->state = PLAIN;
        c = to[at - from];
    } else if (c == '"') {
        return -1;
    }
    int n = u->high ? (int)cn_utf8_encode(0xFFFD, out) : 0;
    u->high = 0;
    out[n] = c;
    return n + 1;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int start_string(struct eng_reader *rd, struct eng_parts *out)
{
    rd->streams = true;
    cn_buf_putc(&rd->made, '"');
    for (size_t i = 0; i < rd->value.len; i++)
        eng_lit_escape(rd->value.data[i], &rd->made);
    cn_buf_reset(&rd->value);
    return eng_call_made(rd, out);
}

/* Whether a string or null may still be null. */
static bool may_be_null(const struct cn_buf *v)
{
    return v->len <= 4 && (!memcmp(v->data, "null", v->len) || !memcmp(v->data, "None", v->len));
}

int eng_value_begin(struct eng_reader *rd, unsigned types, struct eng_parts *out)
{
    rd->types = types;
    rd->streams = false;
    cn_buf_reset(&rd->value);
    return types == ENG_T_STRING ? start_string(rd, out) : 0;
}

int eng_value_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (rd->streams) {
        eng_lit_escape(c, &rd->made);
        return eng_call_made(rd, out);
    }
    int rc = cn_buf_append(&rd->value, &c, 1);
    if (rc) return rc;
    bool decided = rd->types == (ENG_T_STRING | ENG_T_NULL) && !may_be_null(&rd->value);
    return decided || rd->value.len > ENG_REPLY_HELD ? start_string(rd, out) : 0;
}

static unsigned type_at(char c)
{
    switch (c) {
        /* clang-format off */
    case '{': return ENG_T_OBJECT;
    case '[': return ENG_T_ARRAY;
    case '"': return ENG_T_STRING;
    case 't': case 'f': return ENG_T_BOOLEAN;
    case 'n': return ENG_T_NULL;
    default: return ENG_T_NUMBER;
        /* clang-format on */
    }
}

/* What an empty text is. */
static const char *empty_value(unsigned types)
{
    if (types & ENG_T_STRING) return "\"\"";
    if (types & ENG_T_OBJECT) return "{}";
    if (types & ENG_T_ARRAY) return "[]";
    return types & ENG_T_NULL ? "null" : "\"\"";
}

static bool is_null(struct eng_str s)
{
    return s.n == 4 && (!memcmp(s.p, "null", 4) || !memcmp(s.p, "None", 4));
}

/* Where a string is not expected, Python is read too. Where it is one of several types, the text is
 * only then something else if it is JSON of another one of them. */
static bool put_typed(struct eng_str s, unsigned types, struct cn_buf *out)
{
    bool text = types & ENG_T_STRING;
    if (is_null(s) && types & ENG_T_NULL) return !cn_buf_puts(out, "null");
    if (text && types != ENG_T_ANY && !(type_at(*s.p) & types & ~ENG_T_STRING)) return false;
    return eng_lit_whole(s.p, s.n, false, out) || (!text && eng_lit_whole(s.p, s.n, true, out));
}

int eng_value_end(struct eng_reader *rd, struct eng_parts *out)
{
    struct eng_str s = eng_str_of(&rd->value);
    if (rd->streams) {
        cn_buf_putc(&rd->made, '"');
        return eng_call_made(rd, out);
    }
    while (s.n && eng_is_space(s.p[s.n - 1]))
        s.n--;
    while (s.n && eng_is_space(*s.p)) {
        s.p++;
        s.n--;
    }
    if (!rd->value.len || (!s.n && !(rd->types & ENG_T_STRING)))
        cn_buf_puts(&rd->made, empty_value(rd->types));
    else if (!s.n || !put_typed(s, rd->types, &rd->made)) {
        int rc = start_string(rd, out);
        cn_buf_putc(&rd->made, '"');
        if (rc) return rc;
    }
    cn_buf_reset(&rd->value);
    return eng_call_made(rd, out);
}

int eng_value_member(struct eng_reader *rd, struct eng_str name, struct eng_parts *out)
{
    cn_buf_puts(&rd->made, rd->count++ ? ", \"" : "{\"");
    for (size_t i = 0; i < name.n; i++)
        eng_lit_escape(name.p[i], &rd->made);
    cn_buf_puts(&rd->made, "\": ");
    return eng_call_made(rd, out);
}
