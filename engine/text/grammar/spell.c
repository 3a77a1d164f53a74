/* spell: characters and texts as expressions over bytes. See spell.h.
 *
 * A class is built form by form. A form writes all code points of a range with the same number of
 * digits (bytes of UTF-8, or hexadecimal ones), so that a class is a tree of digits. Equal subtrees
 * are the same expression, and the digits that lead to it are one set: the tree is a minimal
 * automaton. */
#include "engine/text/grammar/spell.h"

#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { MOST_DIGITS = 6, MOST_VALUES = 128, MOST_NESTED = 500, MOST_CP = 0x10FFFF };

/* A digit has 2^bits values. Value v is the byte base + v, or the hexadecimal digit base + v. */
struct digit {
    uint8_t bits, base;
    bool hex;
    bool again; /* another \u comes first */
};
struct form {
    uint32_t from, to, minus; /* code points, less `minus` when they are cut into digits */
    unsigned n;
    struct digit digit[MOST_DIGITS];
};

static const struct form utf8_forms[] = {
    {0, 0x7F, 0, 1, {{7, 0, false, false}}},
    {0x80, 0x7FF, 0, 2, {{5, 0xC0, false, false}, {6, 0x80, false, false}}},
    {0x800,
     0xFFFF,
     0,
     3,
     {{4, 0xE0, false, false}, {6, 0x80, false, false}, {6, 0x80, false, false}}},
    {0x10000,
     MOST_CP,
     0,
     4,
     {{3, 0xF0, false, false},
      {6, 0x80, false, false},
      {6, 0x80, false, false},
      {6, 0x80, false, false}}},
};
/* \uXXXX, and pairs of surrogates: \uD8xx to \uDBxx, then \uDCxx to \uDFxx. */
static const struct form hex_forms[] = {
    {0,
     0xFFFF,
     0,
     4,
     {{4, 0, true, false}, {4, 0, true, false}, {4, 0, true, false}, {4, 0, true, false}}},
    {0x10000,
     MOST_CP,
     0x10000,
     6,
     {{2, 8, true, false},
      {4, 0, true, false},
      {4, 0, true, false},
      {2, 12, true, true},
      {4, 0, true, false},
      {4, 0, true, false}}},
};

/* ---- classes --------------------------------------------------------------------------------- */

struct tree {
    struct eng_rx *r;
    const struct form *form;
    const struct eng_cp_range *v; /* ranges within the form, less `minus` */
    size_t n;
    uint32_t full[MOST_DIGITS + 1]; /* every text of the digits from this one on; 0: not built */
};

static void add_byte(struct eng_bytes *s, const struct digit *d, unsigned value)
{
    unsigned v = d->base + value;
    if (!d->hex) {
        eng_bytes_add(s, (uint8_t)v, (uint8_t)v);
    } else if (v < 10) {
        eng_bytes_add(s, (uint8_t)('0' + v), (uint8_t)('0' + v));
    } else {
        eng_bytes_add(s, (uint8_t)('a' + v - 10), (uint8_t)('a' + v - 10));
        eng_bytes_add(s, (uint8_t)('A' + v - 10), (uint8_t)('A' + v - 10));
    }
}

/* \u, and the first digit of a surrogate, which is a D. */
static uint32_t surrogate(struct eng_rx *r)
{
    struct eng_bytes d = {{0}};
    eng_bytes_add(&d, 'd', 'd');
    eng_bytes_add(&d, 'D', 'D');
    return eng_rx_cat(r, eng_rx_literal(r, "\\u", 2), eng_rx_set(r, &d));
}

/* The digit `level`, where value v is followed by next[v]. */
static uint32_t branch(struct tree *t, unsigned level, const uint32_t *next)
{
    const struct digit *d = &t->form->digit[level];
    unsigned values = 1u << d->bits, n = 0;
    uint32_t part[MOST_VALUES];
    bool done[MOST_VALUES] = {false};
    for (unsigned v = 0; v < values; v++) {
        struct eng_bytes bytes = {{0}};
        if (done[v] || next[v] == ENG_RX_NONE) continue;
        for (unsigned w = v; w < values; w++) {
            if (next[w] != next[v]) continue;
            add_byte(&bytes, d, w);
            done[w] = true;
        }
        part[n++] = eng_rx_cat(t->r, eng_rx_set(t->r, &bytes), next[v]);
    }
    uint32_t x = eng_rx_or_of(t->r, part, n);
    return d->again ? eng_rx_cat(t->r, surrogate(t->r), x) : x;
}

static uint32_t full(struct tree *t, unsigned level)
{
    uint32_t next[MOST_VALUES];
    if (level == t->form->n) return ENG_RX_EMPTY;
    if (t->full[level]) return t->full[level];
    uint32_t rest = full(t, level + 1);
    for (unsigned v = 0; v < 1u << t->form->digit[level].bits; v++)
        next[v] = rest;
    return t->full[level] = branch(t, level, next);
}

/* The class within the `span` code points from `base` on, which the digits from `level` on tell
 * apart. */
static uint32_t subtree(struct tree *t, unsigned level, uint32_t base, uint32_t span)
{
    uint32_t next[MOST_VALUES];
    size_t lo = 0, hi = t->n;
    while (lo < hi) { /* the first range that does not end before base */
        size_t mid = lo + (hi - lo) / 2;
        if (t->v[mid].to < base)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == t->n || t->v[lo].from > base + (span - 1) || t->r->code) return ENG_RX_NONE;
    if (t->v[lo].from <= base && t->v[lo].to >= base + (span - 1)) return full(t, level);
    uint32_t part = span >> t->form->digit[level].bits;
    for (unsigned v = 0; v < 1u << t->form->digit[level].bits; v++)
        next[v] = subtree(t, level + 1, base + v * part, part);
    return branch(t, level, next);
}

/* Appends what is in a..b of each range. */
static size_t clip(const struct eng_cp_range *ranges, size_t n, uint32_t a, uint32_t b,
                   uint32_t minus, struct eng_cp_range *out)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t from = CN_MAX(ranges[i].from, a), to = CN_MIN(ranges[i].to, b);
        if (from <= to) out[kept++] = (struct eng_cp_range){from - minus, to - minus};
    }
    return kept;
}

/* room has place for n ranges. */
static uint32_t of_form(struct eng_rx *r, const struct form *f, const struct eng_cp_range *ranges,
                        size_t n, struct eng_cp_range *room)
{
    struct tree t = {.r = r, .form = f, .v = room};
    unsigned bits = 0;
    t.n = clip(ranges, n, f->from, f->to, f->minus, room);
    for (unsigned i = 0; i < f->n; i++)
        bits += f->digit[i].bits;
    return t.n ? subtree(&t, 0, 0, 1u << bits) : ENG_RX_NONE;
}

static bool has(const struct eng_cp_range *ranges, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n && ranges[i].from <= cp; i++)
        if (cp <= ranges[i].to) return true;
    return false;
}

/* Characters of the ranges that are written with a backslash: ", \ and control characters; with
 * `slash` / as well. */
static uint32_t escaped(struct eng_rx *r, const struct eng_cp_range *ranges, size_t n, bool slash)
{
    char text[36][8];
    struct eng_str words[36];
    size_t n_words = 0;
    struct cn_buf b;
    for (uint32_t cp = 0; cp <= '\\'; cp++) {
        char c = (char)cp;
        bool with_backslash = cp < ' ' || c == '"' || c == '\\' || (slash && c == '/');
        if (!with_backslash || !has(ranges, n, cp)) continue;
        cn_buf_init(&b, sizeof text[0]);
        if (c == '/')
            cn_buf_puts(&b, "\\/");
        else
            cn_buf_json_text(&b, &c, 1);
        if (b.failed) {
            cn_buf_fini(&b);
            return eng_rx_fail(r, CN_ENOMEM);
        }
        memcpy(text[n_words], b.data, b.len);
        words[n_words] = (struct eng_str){text[n_words], b.len};
        n_words++;
        cn_buf_fini(&b);
    }
    return eng_rx_words(r, words, n_words);
}

/* Copies the ranges without surrogates and, if `json`, without characters that a JSON string cannot
 * hold as they are. out has place for n + 3. */
static size_t allowed(const struct eng_cp_range *ranges, size_t n, bool json,
                      struct eng_cp_range *out)
{
    static const struct eng_cp_range raw[] = {{0, 0xD7FF}, {0xE000, MOST_CP}};
    static const struct eng_cp_range plain[] = {
        {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, MOST_CP}};
    const struct eng_cp_range *in = json ? plain : raw;
    size_t n_in = json ? CN_ARRAY_LEN(plain) : CN_ARRAY_LEN(raw), kept = 0;
    for (size_t i = 0; i < n_in; i++)
        kept += clip(ranges, n, in[i].from, in[i].to, 0, out + kept);
    return kept;
}

uint32_t eng_spell_class(struct eng_rx *r, enum eng_spelling s, const struct eng_cp_range *ranges,
                         size_t n)
{
    uint32_t part[8], n_parts = 0;
    struct eng_cp_range *v = cn_malloc_array(2 * (n + 3), sizeof *v), *room = v + n + 3;
    if (!v) return eng_rx_fail(r, CN_ENOMEM);
    size_t n_v = allowed(ranges, n, s != ENG_SPELL_RAW, v);
    for (size_t i = 0; i < CN_ARRAY_LEN(utf8_forms); i++)
        part[n_parts++] = of_form(r, &utf8_forms[i], v, n_v, room);
    if (s != ENG_SPELL_RAW) part[n_parts++] = escaped(r, ranges, n, s == ENG_SPELL_JSON_ANY);
    if (s == ENG_SPELL_JSON_ANY) {
        n_v = allowed(ranges, n, false, v);
        part[n_parts++] =
            eng_rx_cat(r, eng_rx_literal(r, "\\u", 2), of_form(r, &hex_forms[0], v, n_v, room));
        part[n_parts++] = eng_rx_cat(r, surrogate(r), of_form(r, &hex_forms[1], v, n_v, room));
    }
    free(v);
    return eng_rx_or_of(r, part, n_parts);
}

uint32_t eng_spell_any(struct eng_rx *r, enum eng_spelling s)
{
    return eng_spell_class(r, s, &(struct eng_cp_range){0, MOST_CP}, 1);
}

uint32_t eng_spell_length(struct eng_rx *r, enum eng_spelling s, uint32_t lo, uint32_t hi)
{
    return eng_rx_repeat(r, eng_spell_any(r, s), lo, hi);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Bytes of the character that ends at p[n - 1]. */
static size_t last_len(const char *p, size_t n)
{
    size_t len = 1;
    while (len < n && len < 4 && ((uint8_t)p[n - len] & 0xC0) == 0x80)
        len++;
    return len;
}

static uint32_t one(struct eng_rx *r, enum eng_spelling s, const char *p, size_t n)
{
    uint32_t cp = 0;
    if (cn_utf8_decode(p, n, &cp) != n) return eng_rx_fail(r, CN_EINVAL);
    return eng_spell_class(r, s, &(struct eng_cp_range){cp, cp}, 1);
}

uint32_t eng_spell_text(struct eng_rx *r, enum eng_spelling s, const char *text, size_t n)
{
    uint32_t x = ENG_RX_EMPTY;
    struct cn_buf b;
    if (cn_utf8_valid_len(text, n) != n) return eng_rx_fail(r, CN_EINVAL);
    if (s == ENG_SPELL_RAW) return eng_rx_literal(r, text, n);
    if (s == ENG_SPELL_JSON_ANY) {
        for (size_t len; n && !r->code; n -= len) {
            len = last_len(text, n);
            x = eng_rx_cat(r, one(r, s, text + n - len, len), x);
        }
        return r->code ? ENG_RX_NONE : x;
    }
    cn_buf_init(&b, 0);
    cn_buf_json_text(&b, text, n);
    x = b.failed ? eng_rx_fail(r, CN_ENOMEM) : eng_rx_literal(r, b.data, b.len);
    cn_buf_fini(&b);
    return x;
}

static int by_bytes(const void *a, const void *b)
{
    const struct eng_str *x = a, *y = b;
    size_t n = CN_MIN(x->n, y->n);
    int c = memcmp(x->p, y->p, n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* Bytes of the characters that both begin with; the first `from` bytes are the same. */
static size_t in_common(const struct eng_str *a, const struct eng_str *b, size_t from)
{
    size_t n = CN_MIN(a->n, b->n);
    while (from < n && a->p[from] == b->p[from])
        from++;
    while (from && from < n && (((uint8_t)a->p[from] & 0xC0) == 0x80))
        from--;
    return from;
}

/* Bytes of the character at p. */
static size_t len_at(const struct eng_str *w, size_t at)
{
    uint32_t cp;
    return cn_utf8_decode(w->p + at, w->n - at, &cp);
}

/* Sorted texts whose first `skip` bytes are the same: whole characters that they share are one.
 * Beyond MOST_NESTED nothing is shared. */
static uint32_t share(struct eng_rx *r, enum eng_spelling s, const struct eng_str *w, size_t n,
                      size_t skip, unsigned depth)
{
    size_t to = in_common(&w[0], &w[n - 1], skip), begin = 0, n_parts = 0;
    if (n == 1) return eng_spell_text(r, s, w->p + skip, w->n - skip);
    uint32_t *part = cn_malloc_array(n, sizeof *part), x;
    if (!part) return eng_rx_fail(r, CN_ENOMEM);
    while (begin < n && !r->code) {
        size_t end = begin + 1, len = w[begin].n == to ? 0 : len_at(&w[begin], to);
        while (end < n &&
               (len ? depth <= MOST_NESTED && w[end].n > to && len_at(&w[end], to) == len &&
                          !memcmp(w[end].p + to, w[begin].p + to, len)
                    : w[end].n == to))
            end++;
        part[n_parts++] = len ? share(r, s, w + begin, end - begin, to, depth + 1) : ENG_RX_EMPTY;
        begin = end;
    }
    x = eng_rx_cat(r, eng_spell_text(r, s, w->p + skip, to - skip), eng_rx_or_of(r, part, n_parts));
    free(part);
    return x;
}

/* Every spelling of each: whole characters are shared. */
static uint32_t any_spelling(struct eng_rx *r, enum eng_spelling s, const struct eng_str *texts,
                             size_t n)
{
    struct eng_str *sorted = cn_malloc_array(n, sizeof *sorted);
    if (!sorted) return eng_rx_fail(r, CN_ENOMEM);
    for (size_t i = 0; i < n; i++)
        sorted[i] = (struct eng_str){texts[i].n ? texts[i].p : "", texts[i].n};
    qsort(sorted, n, sizeof *sorted, by_bytes);
    uint32_t x = n ? share(r, s, sorted, n, 0, 0) : ENG_RX_NONE;
    free(sorted);
    return x;
}

uint32_t eng_spell_texts(struct eng_rx *r, enum eng_spelling s, const struct eng_str *texts,
                         size_t n)
{
    struct cn_buf b;
    uint32_t x;
    for (size_t i = 0; i < n; i++)
        if (cn_utf8_valid_len(texts[i].p, texts[i].n) != texts[i].n)
            return eng_rx_fail(r, CN_EINVAL);
    if (s == ENG_SPELL_RAW) return eng_rx_words(r, texts, n);
    if (s == ENG_SPELL_JSON_ANY) return any_spelling(r, s, texts, n);
    struct eng_str *words = cn_malloc_array(n, sizeof *words);
    if (!words) return eng_rx_fail(r, CN_ENOMEM);
    cn_buf_init(&b, 0);
    for (size_t i = 0; i < n; i++) { /* the buffer moves as it grows: places first */
        words[i].n = b.len;
        cn_buf_json_text(&b, texts[i].p, texts[i].n);
    }
    for (size_t i = 0; i < n && !b.failed; i++) {
        size_t from = words[i].n, to = i + 1 < n ? words[i + 1].n : b.len;
        words[i] = (struct eng_str){b.data ? b.data + from : "", to - from};
    }
    x = b.failed ? eng_rx_fail(r, CN_ENOMEM) : eng_rx_words(r, words, n);
    free(words);
    cn_buf_fini(&b);
    return x;
}
