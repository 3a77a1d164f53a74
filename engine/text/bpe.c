/* engine/text: byte-level BPE's byte map, and its list of merges as a table from a pair of symbols
 * to rank and result.
 *
 * Symbols are strings of bytes (the file's mapped characters undone), or of UTF-8 for the models
 * that merge characters. A merge may name strings that are no token: they become symbols without a
 * token, and what is left of them at the end is written as bytes. Built once, then read-only. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum {
    N_LOW = 0x21,        /* bytes below '!' */
    N_MID = 0xA1 - 0x7F, /* DEL, C1 and the no-break space */
    MAP_BASE = 0x100,    /* where the bytes without a character of their own go */
    MAP_SIZE = N_LOW + N_MID + 1,
};

uint32_t eng_byte_char(uint8_t b)
{
    if (b < N_LOW) return MAP_BASE + b;
    if (b >= 0x7F && b < 0xA1) return MAP_BASE + N_LOW + (b - 0x7Fu);
    if (b == 0xAD) return MAP_BASE + N_LOW + N_MID;
    return b;
}

/* The byte that a code point stands for, or -1. */
static int char_byte(uint32_t cp)
{
    if (cp < MAP_BASE) return eng_byte_char((uint8_t)cp) == cp ? (int)cp : -1;
    cp -= MAP_BASE;
    if (cp < N_LOW) return (int)cp;
    if (cp < N_LOW + N_MID) return (int)(cp - N_LOW + 0x7F);
    return cp < MAP_SIZE ? 0xAD : -1;
}

bool eng_bytes_unmap(const char *p, size_t n, char *out, size_t *out_n)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        uint8_t c = (uint8_t)p[i];
        int b;
        if (c < 0x80) {
            b = c > ' ' && c < 0x7F ? c : -1;
            i++;
        } else { /* two bytes reach U+07FF; the map ends at U+0143 */
            if (c < 0xC2 || c > 0xC5 || i + 1 >= n || ((uint8_t)p[i + 1] & 0xC0) != 0x80)
                return false;
            b = char_byte((c & 0x1Fu) << 6 | ((uint8_t)p[i + 1] & 0x3Fu));
            i += 2;
        }
        if (b < 0) return false;
        out[w++] = (char)b;
    }
    *out_n = w;
    return true;
}

static inline size_t pair_slot(const struct eng_pairs *t, uint64_t key)
{
    unsigned __int128 m = (unsigned __int128)key * t->mult;
    return ((size_t)m ^ (size_t)(m >> 64)) & t->mask;
}

static inline size_t maybe_bit(const struct eng_pairs *t, uint64_t key)
{
    return (key * t->mult) >> t->maybe_shift;
}

const struct eng_pair *eng_bpe_pair(const struct eng_vocab *v, uint32_t left, uint32_t right)
{
    const struct eng_pairs *t = &v->pairs;
    uint64_t key = (uint64_t)left << 32 | right;
    size_t bit = maybe_bit(t, key);
    if (!(t->maybe[bit / 64] >> bit % 64 & 1)) return NULL; /* most pairs, at little cost */
    for (size_t at = pair_slot(t, key); t->slot[at].rank != ENG_NO_ID; at = (at + 1) & t->mask) {
        if (t->slot[at].key == key) return &t->slot[at];
    }
    return NULL;
}

static int pairs_init(struct eng_pairs *t, size_t n)
{
    size_t cap = 64;
    while (cap < n + n / 3)
        cap *= 2;
    t->slot = cn_malloc_array(cap, sizeof *t->slot);
    if (!t->slot) return CN_ENOMEM;
    memset(t->slot, 0xff, cap * sizeof *t->slot);
    t->mask = cap - 1;
    cn_random(&t->mult, sizeof t->mult);
    t->mult |= 1;
    unsigned log = 10; /* bits: 8 to 16 times the pairs */
    while (log < 32 && (size_t)1 << log < 8 * n)
        log++;
    t->maybe_shift = 64 - log;
    t->maybe = cn_calloc((size_t)1 << (log - 6), sizeof *t->maybe);
    return t->maybe ? 0 : CN_ENOMEM;
}

/* The first of two equal merges counts. */
static void pairs_put(struct eng_pairs *t, struct eng_pair pair)
{
    size_t at = pair_slot(t, pair.key);
    for (; t->slot[at].rank != ENG_NO_ID; at = (at + 1) & t->mask) {
        if (t->slot[at].key == pair.key) return;
    }
    t->slot[at] = pair;
    size_t bit = maybe_bit(t, pair.key);
    t->maybe[bit / 64] |= (uint64_t)1 << bit % 64;
}

/* The symbol of a string, made if there is none. */
static int symbol(struct eng_vocab *v, const char *p, size_t n, uint32_t *out)
{
    uint32_t id = eng_strmap_get(&v->by_sym, &v->syms, p, n);
    if (id == ENG_NO_ID) {
        id = (uint32_t)v->syms.n;
        int rc = eng_keys_add(&v->syms, p, n);
        if (rc == 0) rc = eng_strmap_put(&v->by_sym, &v->syms, id, NULL);
        if (rc) return rc;
        v->max_sym = CN_MAX(v->max_sym, n);
        eng_joints_add(&v->joints, eng_key(&v->syms, id));
    }
    *out = id;
    return 0;
}

/* Writes a side of a merge as a symbol's bytes; false when no text can contain it. */
static bool side(const struct eng_vocab *v, const char *p, size_t n, char *out, size_t *out_n)
{
    if (n == 0) return false;
    if (v->model == ENG_MODEL_BPE) return eng_bytes_unmap(p, n, out, out_n);
    memcpy(out, p, n);
    *out_n = n;
    return true;
}

static int add_merge(struct eng_vocab *v, struct eng_str s, uint32_t rank, char *buf)
{
    const char *space = s.n > 1 ? memchr(s.p + 1, ' ', s.n - 1) : NULL;
    if (!space) return 0;
    size_t n_left = (size_t)(space - s.p), ln, rn;
    if (!side(v, s.p, n_left, buf, &ln) || !side(v, space + 1, s.n - n_left - 1, buf + ln, &rn))
        return 0;
    uint32_t left, right, merged;
    int rc = symbol(v, buf, ln, &left);
    if (rc == 0) rc = symbol(v, buf + ln, rn, &right);
    if (rc == 0) rc = symbol(v, buf, ln + rn, &merged);
    if (rc) return rc;
    pairs_put(&v->pairs, (struct eng_pair){(uint64_t)left << 32 | right, rank, merged});
    return 0;
}

int eng_bpe_load(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err)
{
    size_t longest = 0;
    if (spec->n_merges >= ENG_NO_ID)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.merges", "too many merges");
    for (size_t i = 0; i < spec->n_merges; i++)
        longest = CN_MAX(longest, spec->merges[i].n);
    char *buf = cn_malloc_array(longest + 1, 1);
    int rc = buf ? pairs_init(&v->pairs, spec->n_merges) : CN_ENOMEM;
    for (unsigned b = 0; b < 256 && rc == 0 && v->model == ENG_MODEL_BPE; b++) {
        char c = (char)b;
        rc = symbol(v, &c, 1, &v->byte_sym[b]);
    }
    for (size_t i = 0; i < spec->n_merges && rc == 0; i++)
        rc = add_merge(v, spec->merges[i], (uint32_t)i, buf);
    free(buf);
    if (rc)
        return cn_fail_param(err, rc, "tokenizer.ggml.merges", "the merges do not fit in memory");
    return 0;
}
