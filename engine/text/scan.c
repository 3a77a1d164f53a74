/* engine/text: hand-written scanners that cut text as the pre-tokenisers' regular expressions do.
 *
 * Each is the exact equivalent of a leftmost-first backtracking match, written without
 * backtracking: a character is looked at a bounded number of times, so that the time is linear for
 * every input. tests/text/test_presplit.c holds them against PCRE2.
 * Pure functions of their arguments; any thread. */
#include "engine/text/vocab_impl.h"

#include <utf8proc.h>

/* Classes of a character. END is no character at all; none of the bits means "something else":
 * controls, unassigned, and punctuation and symbols where they have no bit. */
enum {
    C_L = 1,
    C_M = 2,
    C_N = 4,
    C_WS = 8,
    C_NL = 16,
    C_UP = 32,   /* \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}, but HAN where that has a bit */
    C_LO = 64,   /* \p{Ll} \p{Lm} \p{Lo} \p{M}, likewise */
    C_OWN = 128, /* of a family: the Han script, or \p{P} and \p{S} */
    C_END = 256,
};

static const uint8_t ascii_class[128] = {
    ['A' ... 'Z'] = C_L | C_UP,
    ['a' ... 'z'] = C_L | C_LO,
    ['0' ... '9'] = C_N,
    ['\t'] = C_WS,
    ['\n'] = C_WS | C_NL,
    ['\v'] = C_WS,
    ['\f'] = C_WS,
    ['\r'] = C_WS | C_NL,
    [' '] = C_WS,
};

static const uint8_t category_class[32] = {
    [UTF8PROC_CATEGORY_LU] = C_L | C_UP,
    [UTF8PROC_CATEGORY_LL] = C_L | C_LO,
    [UTF8PROC_CATEGORY_LT] = C_L | C_UP,
    [UTF8PROC_CATEGORY_LM] = C_L | C_UP | C_LO,
    [UTF8PROC_CATEGORY_LO] = C_L | C_UP | C_LO,
    [UTF8PROC_CATEGORY_MN] = C_M | C_UP | C_LO,
    [UTF8PROC_CATEGORY_MC] = C_M | C_UP | C_LO,
    [UTF8PROC_CATEGORY_ME] = C_M | C_UP | C_LO,
    [UTF8PROC_CATEGORY_ND] = C_N,
    [UTF8PROC_CATEGORY_NL] = C_N,
    [UTF8PROC_CATEGORY_NO] = C_N,
    [UTF8PROC_CATEGORY_ZS] = C_WS,
    [UTF8PROC_CATEGORY_ZL] = C_WS,
    [UTF8PROC_CATEGORY_ZP] = C_WS,
};

enum eng_common eng_scan_common(const char *p, size_t n)
{
    size_t i = n > 1 && p[0] == ' ';
    uint8_t c = (uint8_t)p[i];
    if (c <= ' ' || c >= 0x7F) return ENG_COMMON_NONE;
    unsigned kind = ascii_class[c] & (C_L | C_N);
    if (kind == C_N) return ENG_COMMON_NONE;
    for (i++; i < n; i++) {
        c = (uint8_t)p[i];
        if (c <= ' ' || c >= 0x7F || (ascii_class[c] & (C_L | C_N)) != kind) return ENG_COMMON_NONE;
    }
    return kind ? ENG_COMMON_LETTERS : ENG_COMMON_MARKS;
}

bool eng_scan_in(const struct eng_scan_set *set, uint32_t cp)
{
    bool in = set->categories >> (utf8proc_category((utf8proc_int32_t)cp) & 31) & 1;
    for (size_t i = 0; i < set->n_ranges && !in; i++)
        in = cp >= set->ranges[i][0] && cp <= set->ranges[i][1];
    return in != set->outside;
}

/* Outside the separators White_Space has only U+0085 beyond ASCII. */
static unsigned class_of(const struct eng_scan_words *w, uint32_t cp)
{
    unsigned c = cp < 128     ? ascii_class[cp]
                 : cp == 0x85 ? C_WS
                              : category_class[utf8proc_category((utf8proc_int32_t)cp) & 31];
    if (!w || !w->own || !eng_scan_in(w->own, cp)) return c;
    return C_OWN | (w->own_runs ? c & ~(unsigned)(C_UP | C_LO) : c);
}

void eng_scan_classes(const struct eng_scan_words *w, struct eng_classes *t)
{
    t->words = w;
    for (uint32_t cp = 0; cp < ENG_N_CLASSES; cp++)
        t->of[cp] = (uint8_t)class_of(w, cp);
}

/* Whether a match of the step, which is no RUN, may have such a character. */
static bool touches(const struct eng_scan *s, const struct eng_classes *t, uint32_t cp)
{
    if (s->op == ENG_SCAN_NUMBERS) return t->of[cp] & C_N;
    return s->op != ENG_SCAN_TRAILING || t->of[cp] & C_WS;
}

void eng_scan_touch(const struct eng_scan *s, const struct eng_classes *t, unsigned step,
                    struct eng_touch *touch)
{
    const uint8_t bit = (uint8_t)(1u << step);
    if (s->op != ENG_SCAN_RUN) {
        for (uint32_t cp = 0; cp < ENG_N_CLASSES; cp++)
            touch->of[cp] |= touches(s, t, cp) ? bit : 0;
        return;
    }
    const struct eng_scan_set *set = s->set, categories = {.categories = set->categories};
    for (uint32_t cp = 0; cp < ENG_N_CLASSES && set->categories; cp++)
        touch->of[cp] |= eng_scan_in(&categories, cp) ? bit : 0;
    for (size_t i = 0; i < set->n_ranges; i++) {
        for (uint32_t cp = set->ranges[i][0]; cp <= set->ranges[i][1] && cp < ENG_N_CLASSES; cp++)
            touch->of[cp] |= bit;
    }
    for (uint32_t cp = 0; cp < ENG_N_CLASSES && set->outside; cp++)
        touch->of[cp] ^= bit;
}

/* Class and length of the character at p. A byte that is not UTF-8 is "something else". */
static inline unsigned class_at(const struct eng_classes *t, const char *p, const char *end,
                                size_t *len)
{
    *len = 1;
    if (p >= end) return C_END;
    uint8_t c = (uint8_t)*p;
    if (c < 128) return t->of[c];
    uint32_t cp;
    size_t n = eng_decode(p, end, &cp);
    if (n == 0) return 0;
    *len = n;
    return cp < ENG_N_CLASSES ? t->of[cp] : class_of(t->words, cp);
}

/* Past the longest run of characters in `mask`. */
static inline const char *run_of(const struct eng_classes *t, const char *p, const char *end,
                                 unsigned mask)
{
    size_t len;
    while (class_at(t, p, end, &len) & mask)
        p += len;
    return p;
}

static inline const char *run_outside(const struct eng_classes *t, const char *p, const char *end,
                                      unsigned mask)
{
    size_t len;
    while (!(class_at(t, p, end, &len) & (mask | C_END)))
        p += len;
    return p;
}

static inline bool is_letter(char c, char lower, bool any_case)
{
    return c == lower || (any_case && c == lower - 32);
}

/* 's 't 're 've 'm 'll 'd at p: the length or 0. U+017F folds to "s". */
static size_t contraction(const struct eng_scan_words *w, const char *p, const char *end)
{
    bool any = w->contract == ENG_CONTRACT_ANY;
    size_t n = (size_t)(end - p);
    if (w->contract == ENG_CONTRACT_NONE || n < 2 || *p != '\'') return 0;
    if (is_letter(p[1], 's', any) || is_letter(p[1], 't', any) || is_letter(p[1], 'm', any) ||
        is_letter(p[1], 'd', any))
        return 2;
    if (n < 3) return 0;
    if (any && (uint8_t)p[1] == 0xC5 && (uint8_t)p[2] == 0xBF) return 3;
    if ((is_letter(p[1], 'r', any) || is_letter(p[1], 'v', any)) && is_letter(p[2], 'e', any))
        return 3;
    if (is_letter(p[1], 'l', any) && is_letter(p[2], 'l', any)) return 3;
    return 0;
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at p: its end or NULL. The first class
 * takes all it can; where no lower-case letter follows, it gives back up to the last character
 * that is of both classes, and the second one can take no more than that. */
static const char *upper_then_lower(const struct eng_classes *t, const char *p, const char *end)
{
    const char *both = NULL;
    size_t len;
    unsigned c;
    while ((c = class_at(t, p, end, &len)) & C_UP) {
        p += len;
        if (c & C_LO) both = p;
    }
    if (c & C_LO) return run_of(t, p, end, C_LO);
    return both;
}

/* A word of the cased family at p, whose class is c; NULL when none starts here.
 * `[^\r\n\p{L}\p{N}]?U*L+` is tried with the prefix, then without, then `...?U+L*` likewise; as the
 * latter is reached only where the former failed, its lower-case part is empty. */
static const char *cased_word(const struct eng_scan_words *w, const struct eng_classes *t,
                              const char *p, const char *end, unsigned c, size_t len)
{
    bool prefix = !(c & (C_L | C_N | C_NL | C_END));
    const char *e = NULL;
    if (prefix) e = upper_then_lower(t, p + len, end);
    if (!e) e = upper_then_lower(t, p, end);
    if (!e && prefix) {
        e = run_of(t, p + len, end, C_UP);
        if (e == p + len) e = NULL;
    }
    if (!e) {
        e = run_of(t, p, end, C_UP);
        if (e == p) return NULL;
    }
    return w->contract_suffix ? e + contraction(w, e, end) : e;
}

/* `P?W+`, P being any character but CR, LF, letters and numbers, or only the space. */
static const char *plain_word(const struct eng_scan_words *w, const struct eng_classes *t,
                              const char *p, const char *end, unsigned c, size_t len)
{
    unsigned word = w->marks ? C_L | C_M : C_L;
    bool prefix = w->any_prefix ? !(c & (C_L | C_N | C_NL)) : *p == ' ';
    size_t next;
    if (c & word) return run_of(t, p + len, end, word);
    if (prefix && class_at(t, p + len, end, &next) & word)
        return run_of(t, p + len + next, end, word);
    return NULL;
}

/* ` ?\p{N}+` or `\p{N}{1,max}`. */
static const char *number(const struct eng_scan_words *w, const struct eng_classes *t,
                          const char *p, const char *end, unsigned c, size_t len)
{
    size_t next;
    if (w->spaced_numbers) {
        if (*p == ' ' && class_at(t, p + 1, end, &next) & C_N) return run_of(t, p + 1, end, C_N);
        return c & C_N ? run_of(t, p, end, C_N) : NULL;
    }
    if (!(c & C_N)) return NULL;
    if (w->max_digits == 0) return run_of(t, p, end, C_N);
    p += len;
    for (unsigned i = 1; i < w->max_digits && class_at(t, p, end, &next) & C_N; i++)
        p += next;
    return p;
}

/* ` ?[^\s\p{L}\p{N}]+` and what may follow: CR, LF, slashes. */
static const char *other(const struct eng_scan_words *w, const struct eng_classes *t, const char *p,
                         const char *end, unsigned c)
{
    unsigned outside = C_L | C_N | C_WS | (w->marks ? C_M : 0);
    size_t next;
    if (c & outside) {
        if (*p != ' ' || class_at(t, p + 1, end, &next) & (outside | C_END)) return NULL;
        p++;
    }
    p = run_outside(t, p, end, outside);
    if (w->tail == ENG_TAIL_NONE) return p;
    while (p < end && (*p == '\r' || *p == '\n' || (w->tail == ENG_TAIL_CRLF_SLASH && *p == '/')))
        p++;
    return p;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+` at a white-space character: up to the last CR or LF of the run; else
 * the run without its last character where something follows it; else the one character. */
static const char *space(const struct eng_scan_words *w, const struct eng_classes *t, const char *p,
                         const char *end)
{
    const char *last = p, *newline = NULL, *q = p;
    size_t len;
    unsigned c;
    while ((c = class_at(t, q, end, &len)) & C_WS) {
        last = q;
        q += len;
        if (c & C_NL) newline = q;
    }
    if (w->newlines && newline) return newline;
    return c == C_END || last == p ? q : last;
}

/* DeepSeek's: `A[A-Za-z]+` with A a punctuation mark or symbol of ASCII, `[^\r\n\p{L}\p{P}\p{S}]?`
 * and letters or marks, ` ?[\p{P}\p{S}]+[\r\n]*`, white space; NULL where none of them starts. */
static const char *symbols_word(const struct eng_scan_words *w, const struct eng_classes *t,
                                const char *p, const char *end, unsigned c, size_t len)
{
    const char *q = p + len;
    size_t next;
    unsigned after = class_at(t, q, end, &next);
    if (c & C_OWN && (uint8_t)*p < 128 && after & C_L && (uint8_t)*q < 128) {
        while (q < end && (uint8_t)*q < 128 && t->of[(uint8_t)*q] & C_L)
            q++;
        return q;
    }
    if (c & (C_L | C_M)) return run_of(t, q, end, C_L | C_M);
    if (!(c & (C_OWN | C_NL)) && after & (C_L | C_M)) return run_of(t, q + next, end, C_L | C_M);
    if (c & C_OWN || (*p == ' ' && after & C_OWN)) {
        q = run_of(t, q, end, C_OWN);
        while (q < end && (*q == '\r' || *q == '\n'))
            q++;
        return q;
    }
    return c & C_WS ? space(w, t, p, end) : NULL;
}

/* A match, or the gap before the next one: a place where nothing starts is known at once. */
static const char *symbols_or_gap(const struct eng_scan_words *w, const struct eng_classes *t,
                                  const char *p, const char *end)
{
    size_t len;
    unsigned c = class_at(t, p, end, &len);
    const char *e = symbols_word(w, t, p, end, c, len);
    if (e) return e;
    do {
        p += len;
        c = class_at(t, p, end, &len);
    } while (c != C_END && !symbols_word(w, t, p, end, c, len));
    return p;
}

size_t eng_scan_word(const struct eng_scan_words *w, const struct eng_classes *t, const char *p,
                     size_t n)
{
    const char *end = p + n, *e = NULL;
    size_t len;
    if (w->symbols) return (size_t)(symbols_or_gap(w, t, p, end) - p);
    unsigned c = class_at(t, p, end, &len);
    if (w->own_runs && c & C_OWN) return (size_t)(run_of(t, p + len, end, C_OWN) - p);
    if (*p == '\'' && !w->contract_suffix) {
        len = contraction(w, p, end);
        if (len) return len;
        len = 1;
    }
    e = w->cased ? cased_word(w, t, p, end, c, len) : plain_word(w, t, p, end, c, len);
    if (!e) e = number(w, t, p, end, c, len);
    if (!e) e = other(w, t, p, end, c);
    if (!e) e = space(w, t, p, end);
    return (size_t)(e - p);
}

static bool is_decimal(const char *p, const char *end, size_t *len)
{
    uint32_t cp;
    *len = 1;
    if (p >= end) return false;
    if ((uint8_t)*p < 128) return *p >= '0' && *p <= '9';
    size_t n = cn_utf8_decode(p, (size_t)(end - p), &cp);
    if (n == 0) return false;
    *len = n;
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

/* Cuts runs of digits in groups of three from the right. *left: digits of the run from the last
 * cut on, a multiple of three. */
static bool find_threes(const char *p, const char *end, size_t *left, const char **at)
{
    size_t len, n;
    for (int i = 0; *left > 0 && i < 3; i++, --*left) {
        is_decimal(p, end, &len);
        p += len;
    }
    while (*left == 0) {
        while (p < end && !is_decimal(p, end, &len))
            p += len;
        if (p >= end) return false;
        const char *q = p;
        for (n = 0; is_decimal(q, end, &len); n++)
            q += len;
        if (n < 3) {
            p = q;
            continue;
        }
        for (*left = n; *left % 3; --*left) {
            is_decimal(p, end, &len);
            p += len;
        }
    }
    *at = p;
    return true;
}

static bool find_numbers(const struct eng_classes *t, const char *p, const char *end, unsigned max,
                         const char **at, const char **e)
{
    size_t len;
    p = run_outside(t, p, end, C_N);
    if (p >= end) return false;
    *at = p;
    for (unsigned i = 0; (max == 0 || i < max) && class_at(t, p, end, &len) & C_N; i++)
        p += len;
    *e = p;
    return true;
}

static bool find_trailing(const struct eng_classes *t, const char *p, const char *end,
                          size_t *state, const char **at)
{
    size_t len;
    if (*state) return false;
    *state = 1;
    const char *start = NULL;
    while (p < end) {
        if (!(class_at(t, p, end, &len) & C_WS))
            start = NULL;
        else if (!start)
            start = p;
        p += len;
    }
    *at = start;
    return start != NULL;
}

/* Which steps touch the character at p; a byte that is not UTF-8 counts as U+007F. Beyond the table
 * only whether `step` has it is known. */
static inline unsigned touch_at(const struct eng_scan_set *set, const struct eng_touch *touch,
                                unsigned step, const char *p, const char *end, size_t *len)
{
    uint32_t cp = (uint8_t)*p;
    *len = 1;
    if (cp < 128) return touch->of[cp];
    *len = eng_decode(p, end, &cp);
    if (*len == 0) {
        *len = 1;
        return touch->of[0x7F];
    }
    if (cp < ENG_N_CLASSES) return touch->of[cp];
    return ~(eng_scan_in(set, cp) ? 0 : 1u << step);
}

bool eng_scan_run(const struct eng_scan *s, const struct eng_classes *t,
                  const struct eng_touch *touch, unsigned step, const char *p, const char *end,
                  struct eng_scan_match *run)
{
    const unsigned bit = 1u << step;
    size_t len = 1, before = 0;
    unsigned c = 0, all = 0;
    for (; p < end && !((c = touch_at(s->set, touch, step, p, end, &len)) & bit); p += len) {
        before = len;
        all |= c;
    }
    run->gap = all;
    if (p >= end) return false;
    run->at = p;
    all = 0;
    if (before && s->max == ENG_RUN_AFTER_SPACE && p[-1] == ' ') run->at = p - 1;
    if (before && s->max == ENG_RUN_AFTER_WHITE) {
        size_t white;
        if (p[-1] == ' ') {
            run->at = p - 1;
        } else if (class_at(t, p - before, end, &white) & C_WS) {
            run->at = p - before;
            all = ~0u;
        }
    }
    for (; p < end && (c = touch_at(s->set, touch, step, p, end, &len)) & bit; p += len)
        all |= c;
    run->match = all;
    run->end = p;
    return true;
}

/* `[0-9][0-9][0-9]` */
static bool find_three(const char *p, const char *end, const char **at)
{
    for (unsigned run = 0; p < end; p++) {
        run = *p >= '0' && *p <= '9' ? run + 1 : 0;
        if (run < 3) continue;
        *at = p - 2;
        return true;
    }
    return false;
}

bool eng_scan_find(const struct eng_scan *s, const struct eng_classes *t, const char *p, size_t n,
                   size_t from, size_t *state, size_t *start, size_t *len)
{
    const char *end = p + n, *q = p + from, *e = end;
    switch (s->op) {
    case ENG_SCAN_NUMBERS:
        if (!find_numbers(t, q, end, s->max, &q, &e)) return false;
        break;
    case ENG_SCAN_CRLF:
        while (q < end && *q != '\r' && *q != '\n')
            q++;
        e = q + 1;
        break;
    case ENG_SCAN_LINES:
        if (q >= end) return false;
        e = q;
        if (*q == '\n') {
            while (e < end && *e == '\n')
                e++;
        } else {
            e = memchr(q, '\n', (size_t)(end - q));
            if (!e) e = end;
        }
        break;
    case ENG_SCAN_TRAILING:
        if (!find_trailing(t, q, end, state, &q)) return false;
        break;
    case ENG_SCAN_THREES:
        if (!find_threes(q, end, state, &q)) return false;
        e = q;
        break;
    case ENG_SCAN_THREE:
        if (!find_three(q, end, &q)) return false;
        e = q + 3;
        break;
    case ENG_SCAN_NONE:
    case ENG_SCAN_WORDS:
    case ENG_SCAN_RUN:
        return false;
    }
    if (q >= end) return false;
    *start = (size_t)(q - p);
    *len = (size_t)(e - q);
    return true;
}
