/* Characters as Python's str methods see them: classes, full case mapping, stripping, lines. */
#include "engine/text/jinja/value.h"

#include <string.h>
#include <utf8proc.h>

struct full_case {
    uint32_t cp;
    uint32_t to[3];
};
#include "engine/text/jinja/case.inc"

bool eng_j_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool eng_j_is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static int category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

static bool in_ranges(const uint32_t (*t)[2], size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n && t[i][0] <= cp; i++)
        if (cp <= t[i][1]) return true;
    return false;
}

bool eng_j_is_alpha(uint32_t cp)
{
    int k = category(cp);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool eng_j_is_decimal(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool eng_j_is_digit(uint32_t cp)
{
    return eng_j_is_decimal(cp) ||
           in_ranges(digits_not_decimal, CN_ARRAY_LEN(digits_not_decimal), cp);
}

bool eng_j_is_numeric(uint32_t cp)
{
    int k = category(cp);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO ||
           in_ranges(numeric_not_n, CN_ARRAY_LEN(numeric_not_n), cp);
}

bool eng_j_is_word(uint32_t cp)
{
    if (cp < 0x80)
        return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
    return eng_j_is_alpha(cp) || eng_j_is_numeric(cp);
}

bool eng_j_is_printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 32;
    int k = category(cp);
    return k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_CC && k != UTF8PROC_CATEGORY_CF &&
           k != UTF8PROC_CATEGORY_CS && k != UTF8PROC_CATEGORY_CO && k != UTF8PROC_CATEGORY_ZS &&
           k != UTF8PROC_CATEGORY_ZL && k != UTF8PROC_CATEGORY_ZP;
}

static size_t full(const struct full_case *t, size_t n, uint32_t cp, uint32_t out[3])
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || t[lo].cp != cp) return 0;
    memcpy(out, t[lo].to, sizeof(t[lo].to));
    return t[lo].to[2] ? 3 : 2;
}

size_t eng_j_case(uint32_t cp, enum eng_jcase how, uint32_t out[3])
{
    size_t n = 0;
    if (cp < 0x80) {
        bool lower = cp >= 'a' && cp <= 'z', upper = cp >= 'A' && cp <= 'Z';
        bool up = how == J_UPPER || how == J_TITLE;
        out[0] = (up && lower) || (!up && upper) ? cp ^ 0x20 : cp;
        return 1;
    }
    switch (how) {
    case J_UPPER:
        n = full(full_upper, CN_ARRAY_LEN(full_upper), cp, out);
        out[0] = n ? out[0] : (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
        break;
    case J_TITLE:
        n = full(full_title, CN_ARRAY_LEN(full_title), cp, out);
        out[0] = n ? out[0] : (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
        break;
    case J_FOLD:
        n = full(full_fold, CN_ARRAY_LEN(full_fold), cp, out);
        if (n) break;
        out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        for (size_t i = 0; i < CN_ARRAY_LEN(single_fold); i++)
            if (single_fold[i][0] == cp) out[0] = single_fold[i][1];
        break;
    case J_LOWER:
        n = full(full_lower, CN_ARRAY_LEN(full_lower), cp, out);
        out[0] = n ? out[0] : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        break;
    }
    return n ? n : 1;
}

/* Case-ignorable for the rule of the final sigma: marks, modifiers, format characters and the
 * like. */
static bool ignorable(uint32_t cp)
{
    int k = category(cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024 || cp == 0x2027;
}

static bool cased(uint32_t cp)
{
    int k = category(cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* A capital sigma at [at, next) of the whole string ends a word. */
static bool final_sigma(const struct eng_jstr *s, size_t at, size_t next)
{
    uint32_t cp = 0;
    bool before = false;
    for (size_t i = at; i > 0;) {
        do
            i--;
        while (i > 0 && ((unsigned char)s->p[i] & 0xc0) == 0x80);
        size_t k = i;
        cp = eng_j_cp_next(s, &k);
        if (ignorable(cp)) continue;
        before = cased(cp);
        break;
    }
    if (!before) return false;
    while (next < s->n) {
        cp = eng_j_cp_next(s, &next);
        if (!ignorable(cp)) return !cased(cp);
    }
    return true;
}

void eng_j_put_cased(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t off,
                     size_t n, enum eng_jcase how)
{
    size_t run_end = 0;
    bool trusted = true;
    char block[256];
    size_t k = 0;
    for (size_t i = off; i < off + n;) {
        size_t at = i;
        if (at >= run_end || at == off) {
            eng_j_put(c, b, block, k, trusted);
            k = 0;
            trusted = eng_j_run(s, at, &run_end);
        }
        uint32_t cp = eng_j_cp_next(s, &i), to[3];
        size_t m = eng_j_case(cp, how, to);
        if (cp == 0x3a3 && how == J_LOWER && final_sigma(s, at, i)) to[0] = 0x3c2;
        for (size_t q = 0; q < m; q++)
            k += cn_utf8_encode(to[q], block + k);
        if (k + 12 > sizeof(block)) {
            eng_j_put(c, b, block, k, trusted);
            k = 0;
        }
    }
    eng_j_put(c, b, block, k, trusted);
}

static bool strips(const struct eng_jstr *chars, uint32_t cp)
{
    if (!chars) return eng_j_is_space(cp);
    for (size_t i = 0; i < chars->n;)
        if (eng_j_cp_next(chars, &i) == cp) return true;
    return false;
}

const struct eng_jstr *eng_j_strip(struct eng_jctx *c, const struct eng_jstr *s,
                                   const struct eng_jstr *chars, bool left, bool right)
{
    size_t from = 0, to = s->n, cost = 1 + (chars ? chars->n : 0);
    while (left && from < to) {
        size_t i = from;
        if (!strips(chars, eng_j_cp_next(s, &i))) break;
        from = i;
        eng_j_work(c, cost);
    }
    while (right && to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)s->p[i] & 0xc0) == 0x80)
            i--;
        size_t k = i;
        if (!strips(chars, eng_j_cp_next(s, &k))) break;
        to = i;
        eng_j_work(c, cost);
    }
    return eng_j_sub(c, s, from, to - from);
}

bool eng_j_line(const struct eng_jstr *s, size_t off, size_t *n, size_t *n_with_end)
{
    if (off >= s->n) return false;
    size_t i = off;
    while (i < s->n) {
        size_t at = i;
        uint32_t cp = eng_j_cp_next(s, &i);
        if (!eng_j_is_line_end(cp)) continue;
        if (cp == '\r' && i < s->n && s->p[i] == '\n') i++;
        *n = at - off;
        *n_with_end = i - off;
        return true;
    }
    *n = *n_with_end = s->n - off;
    return true;
}
