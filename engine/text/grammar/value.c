/* value: JSON values in one spelling, so that equal ones have equal bytes. See match.h.
 *
 * Numbers are digits without needless zeros and a power of ten ("15e-1"), strings are as
 * cn_buf_json_str writes them, members of objects are sorted by their names. */
#include "engine/text/grammar/match.h"
#include "engine/text/grammar/spell.h"

#include <stdlib.h>

enum { MOST_DEPTH = 512, MOST_DIGITS = 400 };

struct reader {
    const char *p, *end;
    unsigned depth;
};

static void skip_space(struct reader *r)
{
    while (r->p < r->end && memchr(" \t\r\n", *r->p, 4))
        r->p++;
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool read_hex(struct reader *r, uint32_t *out)
{
    uint32_t v = 0;
    if (r->end - r->p < 4) return false;
    for (int i = 0; i < 4; i++) {
        int d = cn_hex_digit(*r->p++);
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* Behind \u. */
static int read_unicode(struct reader *r, struct cn_buf *out)
{
    uint32_t c, low;
    char utf8[4];
    if (!read_hex(r, &c)) return CN_EINVAL;
    if ((c & 0xFC00) == 0xD800) {
        if (r->end - r->p < 6 || r->p[0] != '\\' || r->p[1] != 'u') return CN_EINVAL;
        r->p += 2;
        if (!read_hex(r, &low) || (low & 0xFC00) != 0xDC00) return CN_EINVAL;
        c = 0x10000 + ((c & 0x3FF) << 10 | (low & 0x3FF));
    }
    size_t n = cn_utf8_encode(c, utf8);
    return n ? cn_buf_append(out, utf8, n) : CN_EINVAL;
}

static int read_escape(struct reader *r, struct cn_buf *out)
{
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    if (r->p == r->end) return CN_EINVAL;
    char c = *r->p++;
    if (c == 'u') return read_unicode(r, out);
    const char *at = c ? strchr(names, c) : NULL;
    return at ? cn_buf_putc(out, bytes[at - names]) : CN_EINVAL;
}

/* Appends the characters of a literal. */
static int read_string(struct reader *r, struct cn_buf *out)
{
    int rc = 0;
    if (r->p == r->end || *r->p != '"') return CN_EINVAL;
    for (r->p++; !rc;) {
        if (r->p == r->end) return CN_EINVAL;
        char c = *r->p++;
        if (c == '"') break;
        rc = c == '\\' ? read_escape(r, out) : cn_buf_putc(out, c);
    }
    return rc;
}

int eng_value_string(const char *s, size_t n, struct cn_buf *out)
{
    struct reader r = {s, s + n, 0};
    skip_space(&r);
    return read_string(&r, out);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static int read_number(struct reader *r, struct cn_buf *out)
{
    const char *from = r->p;
    char room[MOST_DIGITS];
    struct eng_decimal d;
    while (r->p < r->end && memchr("+-.eE0123456789", *r->p, 15))
        r->p++;
    int rc = eng_decimal_parse(from, (size_t)(r->p - from), room, &d);
    if (rc == CN_ELIMIT) return cn_buf_append(out, from, (size_t)(r->p - from)); /* as it is */
    if (rc) return rc;
    long scale = (long)d.scale;
    while (d.n > 1 && d.digits[d.n - 1] == '0') {
        d.n--;
        scale--;
    }
    if (d.n == 1 && d.digits[0] == '0') return cn_buf_putc(out, '0');
    return cn_buf_printf(out, "%s%.*se%ld", d.negative ? "-" : "", (int)d.n, d.digits, -scale);
}

/* ---- values ---------------------------------------------------------------------------------- */

static int read_value(struct reader *r, struct cn_buf *out);

struct member {
    char *name, *value;
    size_t n_name, n_value;
};
struct members {
    struct member *v;
    size_t n, cap;
};

static int by_name(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = memcmp(x->name, y->name, CN_MIN(x->n_name, y->n_name));
    return c ? c : x->n_name < y->n_name ? -1 : x->n_name > y->n_name;
}

static int read_member(struct reader *r, struct members *l)
{
    struct cn_buf name, value;
    if (cn_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) return CN_ENOMEM;
    cn_buf_init(&name, 0);
    cn_buf_init(&value, 0);
    skip_space(r);
    int rc = read_string(r, &name);
    skip_space(r);
    if (!rc && (r->p == r->end || *r->p++ != ':')) rc = CN_EINVAL;
    if (!rc) rc = read_value(r, &value);
    l->v[l->n++] = (struct member){name.data, value.data, name.len, value.len};
    return rc;
}

static int write_members(const struct members *l, struct cn_buf *out)
{
    int rc = cn_buf_putc(out, '{');
    for (size_t i = 0; i < l->n && !rc; i++) {
        if (i) cn_buf_putc(out, ',');
        cn_buf_json_str(out, l->v[i].name ? l->v[i].name : "", l->v[i].n_name);
        cn_buf_putc(out, ':');
        rc = cn_buf_append(out, l->v[i].value, l->v[i].n_value);
    }
    return rc ? rc : cn_buf_putc(out, '}');
}

/* One step of a list: true while there is more; the closing bracket is taken. */
static bool more(struct reader *r, char close, bool first, int *rc)
{
    skip_space(r);
    if (r->p == r->end) {
        *rc = CN_EINVAL;
    } else if (*r->p == close) {
        r->p++;
        return false;
    } else if (!first && *r->p++ != ',') {
        *rc = CN_EINVAL;
    }
    return !*rc;
}

static int read_object(struct reader *r, struct cn_buf *out)
{
    struct members l = {0};
    int rc = 0;
    r->p++;
    while (more(r, '}', !l.n, &rc))
        rc = read_member(r, &l);
    if (!rc) {
        if (l.n) qsort(l.v, l.n, sizeof *l.v, by_name);
        rc = write_members(&l, out);
    }
    for (size_t i = 0; i < l.n; i++) {
        free(l.v[i].name);
        free(l.v[i].value);
    }
    free(l.v);
    return rc;
}

static int read_array(struct reader *r, struct cn_buf *out)
{
    int rc = cn_buf_putc(out, '[');
    r->p++;
    for (bool first = true; !rc && more(r, ']', first, &rc); first = false) {
        if (!first) rc = cn_buf_putc(out, ',');
        if (!rc) rc = read_value(r, out);
    }
    return rc ? rc : cn_buf_putc(out, ']');
}

/* JSON's names, and Python's. */
static const char *const words[][2] = {{"null", "None"}, {"true", "True"}, {"false", "False"}};

static int read_literal(struct reader *r, struct cn_buf *out)
{
    for (size_t i = 0; i < 2 * CN_ARRAY_LEN(words); i++) {
        const char *const *word = words[i / 2];
        size_t n = strlen(word[i % 2]);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, word[i % 2], n)) continue;
        r->p += n;
        return cn_buf_puts(out, word[0]);
    }
    return CN_EINVAL;
}

static int read_value(struct reader *r, struct cn_buf *out)
{
    struct cn_buf s;
    int rc;
    skip_space(r);
    if (r->p == r->end) return CN_EINVAL;
    switch (*r->p) {
    case '"':
        cn_buf_init(&s, 0);
        rc = read_string(r, &s);
        if (!rc) rc = cn_buf_json_str(out, s.data ? s.data : "", s.len);
        cn_buf_fini(&s);
        return rc;
    case '{':
    case '[':
        if (++r->depth > MOST_DEPTH) return CN_ELIMIT;
        rc = *r->p == '{' ? read_object(r, out) : read_array(r, out);
        r->depth--;
        return rc;
    case 'n':
    case 't':
    case 'f':
    case 'N':
    case 'T':
    case 'F':
        return read_literal(r, out);
    default:
        return read_number(r, out);
    }
}

int eng_value_canonical(const char *s, size_t n, struct cn_buf *out)
{
    struct reader r = {s, s + n, 0};
    return read_value(&r, out);
}

uint32_t eng_value_spellings(struct eng_rx *r, enum eng_spelling s, const char *p, size_t n)
{
    struct cn_buf text;
    char room[MOST_DIGITS];
    struct eng_decimal d;
    uint32_t x = ENG_RX_NONE, quote;
    if (p[0] == '"') {
        cn_buf_init(&text, 0);
        if (!eng_value_string(p, n, &text)) {
            quote = eng_rx_byte(r, '"', '"');
            x = eng_spell_text(r, s, text.data ? text.data : "", text.len);
            x = eng_rx_cat(r, quote, eng_rx_cat(r, x, quote));
        }
        cn_buf_fini(&text);
        return x;
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++)
        if (p[0] == words[i][0][0])
            return eng_rx_or(r, eng_rx_literal(r, p, n),
                             eng_rx_literal(r, words[i][1], strlen(words[i][1])));
    return eng_decimal_parse(p, n, room, &d) ? ENG_RX_NONE : eng_spell_equal(r, s, &d);
}
