/* spell: formats as expressions. See spell.h and format.def. */
#include "engine/text/grammar/spell.h"

#include <stdio.h>

enum { DAY = 24 * 60, QUARTER = 15, MOST_NESTED = 8 };

static const struct format {
    const char *name, *pattern;
} formats[] = {
#define FORMAT(name, pattern) {name, pattern},
#include "engine/text/grammar/format.def"
#undef FORMAT
};

/* ---- leap seconds ---------------------------------------------------------------------------- */

/* A leap second ends a day of UTC. With an offset it is at the time of day that 23:59 has there.
 * Only offsets of whole quarters of an hour are known. */
static void leap_seconds(struct cn_buf *b)
{
    cn_buf_puts(b, "(?:23:59:60" F_FRACTION "[Zz]");
    for (int offset = 0; offset < DAY; offset += QUARTER)
        for (int sign = -1; sign <= 1; sign += 2) {
            int local = (2 * DAY - 1 + sign * offset) % DAY;
            cn_buf_printf(b, "|%02d:%02d:60" F_FRACTION "%s%02d:%02d", local / 60, local % 60,
                          sign < 0 ? "-" : "\\+", offset / 60, offset % 60);
        }
    cn_buf_puts(b, ")");
}

/* ---- regular expressions --------------------------------------------------------------------- */

/* Ranges between two digits, or letters of one case, in the right order. */
static void ranges(struct cn_buf *b)
{
    static const char *const runs[] = {"09", "AZ", "az"};
    for (size_t i = 0; i < CN_ARRAY_LEN(runs); i++)
        for (char c = runs[i][0]; c <= runs[i][1]; c++)
            cn_buf_printf(b, "|%c-[%c-%c]", c, c, runs[i][1]);
}

/* The parts of a pattern, in which groups are nested at most `deep` times. */
static void regex_parts(struct cn_buf *b, int deep)
{
    static const char escape[] =
        "\\\\(?:[dDwWsStnrfv]|[\\^$\\\\.*+?()\\[\\]{}|/]|x" F_HEX "{2}|u" F_HEX "{4})";
    static const char count[] =
        "(?:(?:[*+?]|\\{(?:\\d{1,3},?|0,\\d|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]"
        "|8,[89]|9,9|\\d,[1-9]\\d{1,2})\\})[?]?)?";
    cn_buf_puts(b, "\\||[\\^$]|\\\\[bB]|(?:[^\\^$\\\\.*+?()\\[\\]{}|\\x00-\\x1F]|\\.|");
    cn_buf_printf(b, "%s|\\[\\^?(?:[^\\\\\\[\\]\\^\\-\\x00-\\x1F]|%s", escape, escape);
    ranges(b);
    cn_buf_puts(b, ")+\\]");
    if (deep) {
        cn_buf_puts(b, "|\\((?:\\?:)?(?:");
        regex_parts(b, deep - 1);
        cn_buf_puts(b, ")*\\)");
    }
    cn_buf_printf(b, ")%s", count);
}

/* Patterns that ECMA-262 has in common with other languages, with at most MOST_NESTED groups in
 * each other, and look-ahead outside of groups: without named groups, references, look-behind and
 * properties. */
static void regex(struct cn_buf *b)
{
    cn_buf_puts(b, "(?:");
    regex_parts(b, MOST_NESTED);
    cn_buf_puts(b, "|\\(\\?[=!](?:");
    regex_parts(b, MOST_NESTED - 1);
    cn_buf_puts(b, ")*\\))*");
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Appends the pattern of a format whose pattern is computed. False: the table has it. */
static bool made(const char *name, enum eng_spelling s, struct cn_buf *b)
{
    if (!strcmp(name, "regex")) {
        regex(b);
        return true;
    }
    if (s != ENG_SPELL_JSON_ANY || !strstr(name, "time")) return false;
    cn_buf_puts(b, !strcmp(name, "time") ? "(?:" : F_DATE "[Tt](?:");
    cn_buf_puts(b, F_TIME "|");
    leap_seconds(b);
    cn_buf_puts(b, ")");
    return true;
}

/* NULL: unknown. */
static const struct format *find(const char *name, size_t n)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(formats); i++)
        if (strlen(formats[i].name) == n && !memcmp(formats[i].name, name, n)) return &formats[i];
    return NULL;
}

static int unknown(const char *name, size_t n, struct cn_error *err)
{
    char known[400] = "";
    for (size_t i = 0, len = 0; i < CN_ARRAY_LEN(formats) && len < sizeof known; i++)
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "",
                                formats[i].name);
    return cn_fail(err, CN_ENOENT, "%.*s is not a known format; known are %s",
                   (int)CN_MIN(n, (size_t)60), name, known);
}

int eng_spell_format(struct eng_rx *r, enum eng_spelling s, const char *name, size_t n,
                     uint32_t *out, struct cn_error *err)
{
    const struct format *f = find(name, n);
    struct cn_buf b;
    int rc;
    if (n == 12 && !memcmp(name, "idn-hostname", n))
        return cn_fail(err, CN_EUNSUPP, "the format idn-hostname is not supported");
    if (!f) return unknown(name, n, err);
    cn_buf_init(&b, 0);
    if (!made(f->name, s, &b)) cn_buf_puts(&b, f->pattern);
    rc = b.failed ? cn_fail(err, CN_ENOMEM, "out of memory")
                  : eng_spell_pattern(r, s, b.data, b.len, true, out, err);
    cn_buf_fini(&b);
    return rc;
}
