/* source: reading grammars. See source.h. */
#include "engine/text/grammar/source.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { TICKS = 1024, LAST_CP = 0x10FFFF };

/* ---- errors ---------------------------------------------------------------------------------- */

int eng_source_init(struct eng_source *s, const char *text, size_t n, struct cn_error *err)
{
    *s = (struct eng_source){.text = text, .n = n, .err = err};
    if (n > ENG_SOURCE_MAX)
        return eng_source_stop(s, CN_ELIMIT, "the grammar has %zu bytes (at most %u)", n,
                               ENG_SOURCE_MAX);
    size_t valid = cn_utf8_valid_len(text, n);
    if (valid < n) return eng_source_fail(s, valid, CN_EINVAL, "not valid UTF-8");
    return 0;
}

static int vfail(struct eng_source *s, int code, const char *place, const char *fmt, va_list ap)
{
    char text[400];
    if (s->rc) return s->rc;
    vsnprintf(text, sizeof text, fmt, ap);
    return s->rc = cn_fail(s->err, code, "%s%s", place, text);
}

int eng_source_fail(struct eng_source *s, size_t at, int code, const char *fmt, ...)
{
    char place[64];
    size_t line = 1, column = 1;
    va_list ap;
    if (s->rc) return s->rc;
    for (size_t i = 0; i < at && i < s->n; i++) {
        bool ends = s->text[i] == '\n';
        line += ends;
        column = ends ? 1 : column + ((s->text[i] & 0xC0) != 0x80);
    }
    snprintf(place, sizeof place, "line %zu, column %zu: ", line, column);
    va_start(ap, fmt);
    vfail(s, code, place, fmt, ap);
    va_end(ap);
    return s->rc;
}

int eng_source_stop(struct eng_source *s, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(s, code, "", fmt, ap);
    va_end(ap);
    return s->rc;
}

bool eng_source_alive(struct eng_source *s)
{
    if (s->rc) return false;
    if (++s->ticks % TICKS || !s->keep_going || s->keep_going(s->arg)) return true;
    eng_source_stop(s, CN_ECANCELLED, "%s", cn_err_info(CN_ECANCELLED)->text);
    return false;
}

/* ---- words and numbers ----------------------------------------------------------------------- */

bool eng_source_is(const struct eng_source *s, const char *word)
{
    size_t n = strlen(word);
    return n <= s->n - s->at && !memcmp(s->text + s->at, word, n);
}

bool eng_source_take(struct eng_source *s, const char *word)
{
    bool is = eng_source_is(s, word);
    if (is) s->at += strlen(word);
    return is;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool eng_source_number(struct eng_source *s, uint32_t *out)
{
    size_t from = s->at;
    uint64_t v;
    while (is_digit(eng_source_peek(s, 0)))
        s->at++;
    if (s->at == from) return eng_source_fail(s, from, CN_EINVAL, "expected a number"), false;
    if (!cn_parse_u64(s->text + from, s->at - from, &v) || v >= ENG_RX_INF)
        return eng_source_fail(s, from, CN_ELIMIT, "the number is too large"), false;
    *out = (uint32_t)v;
    return true;
}

static void skip_blanks(struct eng_source *s)
{
    while (!eng_source_done(s) && strchr(" \t\r\n", s->text[s->at]) && s->text[s->at])
        s->at++;
}

bool eng_source_bounds(struct eng_source *s, bool open, uint32_t *lo, uint32_t *hi)
{
    size_t from = s->at;
    *lo = 0;
    skip_blanks(s);
    bool no_first = open && eng_source_is(s, ",");
    if (!no_first && !eng_source_number(s, lo)) return false;
    *hi = *lo;
    skip_blanks(s);
    if (eng_source_take(s, ",")) {
        skip_blanks(s);
        *hi = ENG_RX_INF;
        if ((no_first || !eng_source_is(s, "}")) && !eng_source_number(s, hi)) return false;
        skip_blanks(s);
    }
    if (!eng_source_take(s, "}")) {
        eng_source_fail(s, s->at, CN_EINVAL, "expected `}` after the bounds of a repetition");
    } else if (*hi < *lo) {
        eng_source_fail(s, from, CN_EINVAL, "a repetition of at least %u and at most %u", *lo, *hi);
    }
    return !s->rc;
}

/* ---- characters ------------------------------------------------------------------------------ */

static bool hex(struct eng_source *s, unsigned digits, uint32_t *out)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < digits; i++, s->at++) {
        int d = cn_hex_digit(eng_source_peek(s, 0));
        if (d < 0)
            return eng_source_fail(s, s->at, CN_EINVAL, "expected %u hexadecimal digits", digits),
                   false;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* After \u: two halves of a surrogate pair are one character. */
static bool utf16(struct eng_source *s, size_t from, uint32_t *cp)
{
    uint32_t low;
    if (!hex(s, 4, cp)) return false;
    if (*cp >= 0xD800 && *cp < 0xDC00 && eng_source_take(s, "\\u")) {
        if (!hex(s, 4, &low)) return false;
        if (low >= 0xDC00 && low < 0xE000)
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        else
            eng_source_fail(s, from, CN_EINVAL, "half of a surrogate pair");
    }
    return !s->rc;
}

static bool escape(struct eng_source *s, uint32_t *cp)
{
    static const char names[] = "nrtvfab0", means[] = "\n\r\t\v\f\a\b";
    size_t from = s->at++;
    char c = eng_source_peek(s, 0);
    const char *known = c ? strchr(names, c) : NULL;
    s->at += !eng_source_done(s);
    if (c == 'x') return hex(s, 2, cp);
    if (c == 'u' && !utf16(s, from, cp)) return false;
    if (c == 'U' && !hex(s, 8, cp)) return false;
    if (c == 'u' || c == 'U') {
        if (*cp > LAST_CP || (*cp & 0xFFFFF800) == 0xD800)
            eng_source_fail(s, from, CN_EINVAL, "not a character of Unicode");
    } else if (known) {
        *cp = (uint8_t)means[known - names];
    } else if (c > ' ' && c < 0x7F && !is_digit(c) && !((c | 32) >= 'a' && (c | 32) <= 'z')) {
        *cp = (uint8_t)c;
    } else {
        eng_source_fail(s, from, CN_EINVAL,
                        "unknown escape (known: \\n \\r \\t \\v \\f \\a \\b \\0 \\xHH \\uHHHH "
                        "\\UHHHHHHHH, and \\ before a punctuation mark)");
    }
    return !s->rc;
}

bool eng_source_char(struct eng_source *s, uint32_t *cp)
{
    if (eng_source_done(s))
        return eng_source_fail(s, s->at, CN_EINVAL, "expected a character"), false;
    if (eng_source_is(s, "\\")) return escape(s, cp);
    s->at += cn_utf8_decode(s->text + s->at, s->n - s->at, cp); /* valid, as was checked */
    return true;
}

bool eng_source_literal(struct eng_source *s, size_t from, struct cn_buf *out)
{
    while (eng_source_alive(s) && !eng_source_take(s, "\"")) {
        uint32_t cp;
        char bytes[4];
        if (eng_source_done(s)) {
            eng_source_fail(s, from, CN_EINVAL, "a literal without its closing `\"`");
            break;
        }
        if (!eng_source_char(s, &cp)) break;
        if (cn_buf_append(out, bytes, cn_utf8_encode(cp, bytes)))
            eng_source_stop(s, CN_ENOMEM, "out of memory");
    }
    return !s->rc;
}
