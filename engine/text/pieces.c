/* engine/text: from the pieces of a text to ids.
 *
 * A piece is looked up in what this call has seen already, then among the tokens, then cut where no
 * merge can cross (joints.c), and its parts are merged. A piece that is a token, and that merging
 * would turn into that token, needs no merging; which tokens are such is found out once each
 * (v->whole).
 * Texts are small words said again and again: a table of short pieces answers for most of them. It
 * holds what one call wrote, so that no call can tell by the time it takes what another one's text
 * was. One eng_merge per call; the vocabulary is shared. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum whole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };
enum kind { KIND_PIECE, KIND_PART }; /* a token may be emitted for the one and not for the other */
enum {
    LOG_KNOWN = 12,             /* 4096 pieces in 128 KiB */
    MAX_KEPT_BYTES = 256 << 10, /* of what grows with a piece, between calls */
};

static const char space_mark[3] = {'\xE2', '\x96', '\x81'};

/* ---- work memory ----------------------------------------------------------------------------- */

void eng_merge_free(struct eng_merge *m)
{
    if (!m) return;
    free(m->s);
    free(m->heap);
    free(m->text);
    free(m->known);
    free(m);
}

struct eng_merge *eng_merge_take(const struct eng_vocab *v)
{
    struct eng_merge *m = NULL;
    for (size_t i = 0; i < CN_ARRAY_LEN(v->spares->spare) && !m; i++)
        m = atomic_exchange(&v->spares->spare[i], NULL);
    if (!m) {
        m = cn_calloc(1, sizeof *m);
        if (m) m->known = cn_calloc((size_t)1 << LOG_KNOWN, sizeof *m->known);
        if (!m || !m->known) {
            eng_merge_free(m);
            return NULL;
        }
    }
    if (++m->call == 0) { /* entries of 2^32 calls ago */
        memset(m->known, 0, sizeof *m->known << LOG_KNOWN);
        m->call = 1;
    }
    return m;
}

void eng_merge_give(const struct eng_vocab *v, struct eng_merge *m)
{
    if (m->cap * sizeof *m->s + m->heap_cap * sizeof *m->heap + m->text_cap > MAX_KEPT_BYTES) {
        free(m->s);
        free(m->heap);
        free(m->text);
        *m = (struct eng_merge){.known = m->known, .call = m->call};
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(v->spares->spare); i++) {
        struct eng_merge *none = NULL;
        if (atomic_compare_exchange_strong(&v->spares->spare[i], &none, m)) return;
    }
    eng_merge_free(m);
}

/* ---- what is known --------------------------------------------------------------------------- */

struct eng_known *eng_known_get(const struct eng_merge *m, const char *p, size_t n, const char *end,
                                unsigned kind, uint64_t key[2], bool *hit)
{
    *hit = false;
    if (n > ENG_KNOWN_BYTES) return NULL;
    key[0] = key[1] = 0;
    if (end - p < 16) {
        memcpy(key, p, n);
    } else {
        memcpy(key, p, 16);
        unsigned unused = 8 * (unsigned)(16 - n);
        if (unused >= 64) {
            key[0] = unused == 64 ? key[0] : key[0] << (unused - 64) >> (unused - 64);
            key[1] = 0;
        } else {
            key[1] = key[1] << unused >> unused;
        }
    }
    key[1] |= (uint64_t)(n | kind << 4) << 56;
    uint64_t h = (key[0] ^ key[1] * 0x9fb21c651e98df25u) * 0x9e3779b97f4a7c15u;
    struct eng_known *k = &m->known[h >> (64 - LOG_KNOWN)];
    *hit = k->key[0] == key[0] && k->key[1] == key[1] && k->call == m->call;
    return k;
}

void eng_known_put(const struct eng_merge *m, struct eng_known *k, const uint64_t key[2],
                   const struct eng_ids *ids, size_t from)
{
    size_t n = ids->n - from;
    if (!k || n == 0 || n > ENG_KNOWN_IDS) return;
    *k = (struct eng_known){.key = {key[0], key[1]}, .call = m->call};
    for (size_t i = 0; i < ENG_KNOWN_IDS; i++)
        k->id[i] = i < n ? ids->v[from + i] : ENG_NO_ID;
}

int eng_known_push(const struct eng_known *k, struct eng_ids *ids)
{
    int rc = eng_ids_push(ids, k->id[0]);
    for (size_t i = 1; i < ENG_KNOWN_IDS && k->id[i] != ENG_NO_ID && rc == 0; i++)
        rc = eng_ids_push(ids, k->id[i]);
    return rc;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Whether merging the token's own bytes gives the token. */
static int is_whole(const struct eng_vocab *v, struct eng_merge *m, uint32_t id, bool *yes)
{
    uint8_t known = atomic_load_explicit(&v->whole[id], memory_order_relaxed);
    if (known == WHOLE_UNKNOWN) {
        struct eng_str s = eng_key(&v->syms, id);
        size_t left;
        int rc = eng_merge(v, m, s.p, s.n, &left);
        if (rc) return rc;
        known = left == 1 && m->s[0].sym == id ? WHOLE_YES : WHOLE_NO;
        atomic_store_explicit(&v->whole[id], known, memory_order_relaxed);
    }
    *yes = known == WHOLE_YES;
    return 0;
}

static int push_symbol(const struct eng_vocab *v, uint32_t sym, const char *p, size_t n,
                       struct eng_ids *ids)
{
    if (sym < v->n) return eng_ids_push(ids, sym);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = v->byte_id[(uint8_t)p[i]];
        int rc = id == ENG_NO_ID ? 0 : eng_ids_push(ids, id);
        if (rc) return rc;
    }
    return 0;
}

/* The token that these bytes are, if it may be emitted without merging. */
static int whole_token(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                       bool any, uint32_t *id)
{
    bool yes = any;
    int rc = 0;
    *id = n <= v->max_sym ? eng_strmap_get(&v->by_sym, &v->syms, p, n) : ENG_NO_ID;
    if (*id >= v->n)
        yes = false;
    else if (!yes)
        rc = is_whole(v, m, *id, &yes);
    if (!yes) *id = ENG_NO_ID;
    return rc;
}

static int merge_part(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                      struct eng_ids *ids)
{
    uint32_t id;
    size_t left;
    int rc = whole_token(v, m, p, n, false, &id);
    if (rc) return rc;
    if (id != ENG_NO_ID) return eng_ids_push(ids, id);
    rc = eng_merge(v, m, p, n, &left);
    for (size_t i = 0; i < left && rc == 0; i++) {
        if (i % 1024 == 1023 && (rc = eng_tick(&m->tick, 1024))) break;
        rc = push_symbol(v, m->s[i].sym, p + m->s[i].start, m->s[i + 1].start - m->s[i].start, ids);
    }
    return rc;
}

/* Writes p with U+2581 for each space to m->text, after one more of them if prefix. */
static int escape(struct eng_merge *m, const char *p, size_t n, bool prefix, size_t *out_n)
{
    uint64_t need;
    if (!cn_mul_u64(n + 1, 3, &need)) return CN_ENOMEM;
    if (need > m->text_cap) {
        int rc = eng_grow(&m->tick, &m->text, &m->text_cap, need, 1);
        if (rc) return rc;
    }
    char *out = m->text;
    if (prefix) {
        memcpy(out, space_mark, 3);
        out += 3;
    }
    for (size_t i = 0; i < n; i++) {
        if (i % ENG_TICK == ENG_TICK - 1) eng_tick(&m->tick, ENG_TICK);
        if (p[i] == ' ') {
            memcpy(out, space_mark, 3);
            out += 3;
        } else {
            *out++ = p[i];
        }
    }
    *out_n = (size_t)(out - m->text);
    return *out_n > UINT32_MAX ? CN_ELIMIT : 0;
}

/* A part that no merge leaves. */
static int part(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                struct eng_ids *ids)
{
    uint64_t key[2];
    bool hit;
    struct eng_known *k = eng_known_get(m, p, n, m->end, KIND_PART, key, &hit);
    if (hit) return eng_known_push(k, ids);
    size_t before = ids->n;
    int rc = 0;
    if (v->joints.marks) {
        rc = escape(m, p, n, false, &n);
        p = m->text;
    }
    if (rc == 0) rc = merge_part(v, m, p, n, ids);
    if (rc == 0) eng_known_put(m, k, key, ids, before);
    return rc;
}

static int parts(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                 struct eng_ids *ids)
{
    int rc = 0;
    for (size_t len; n > 0 && rc == 0; p += len, n -= len) {
        len = eng_joints_cut(&v->joints, p, p + n, &m->tick);
        rc = eng_tick(&m->tick, len);
        if (rc == 0) rc = part(v, m, p, len, ids);
    }
    return rc;
}

int eng_piece(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
              struct eng_ids *ids)
{
    uint64_t key[2];
    bool hit, any = v->ignore_merges || (v->newlines_whole && p[0] == '\n' && p[n - 1] == '\n');
    if (v->joints.marks && !any) return parts(v, m, p, n, ids); /* a line, not a word */
    struct eng_known *k = eng_known_get(m, p, n, m->end, KIND_PIECE, key, &hit);
    if (hit) return eng_known_push(k, ids);
    size_t before = ids->n;
    uint32_t id;
    int rc = whole_token(v, m, p, n, any, &id);
    if (rc == 0) rc = id != ENG_NO_ID ? eng_ids_push(ids, id) : parts(v, m, p, n, ids);
    if (rc == 0) eng_known_put(m, k, key, ids, before);
    return rc;
}

int eng_line(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n, bool prefix,
             struct eng_ids *ids)
{
    size_t first = 0;
    if (prefix) {
        size_t len;
        first = eng_joints_cut(&v->joints, p, p + n, &m->tick);
        int rc = escape(m, p, first, true, &len);
        if (rc == 0) rc = merge_part(v, m, m->text, len, ids);
        if (rc) return rc;
    }
    return parts(v, m, p + first, n - first, ids);
}
