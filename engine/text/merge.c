/* engine/text: merging of symbols, for byte-level BPE, BPE on characters and SentencePiece BPE.
 *
 * All three merge the adjacent pair of lowest rank, leftmost on ties, until none is left; they
 * differ in where a pair's rank comes from: a list of merges, or the score of the token that the
 * two make. Short pieces look for the minimum each time; long ones keep a queue whose stale entries
 * are known by their rank: O(n log n). A piece that is a token, and that merging would turn into
 * that token, needs neither; which tokens are such is found out once each (v->whole).
 * One eng_merge per call; the vocabulary is shared. */
#include "engine/text/heap.h"
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum { SHORT_PIECE = 40 }; /* symbols up to which the search beats the heap */
enum whole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

static const char space_mark[3] = {'\xE2', '\x96', '\x81'};

void eng_merge_fini(struct eng_merge *m)
{
    free(m->sym);
    free(m->heap);
    free(m->text);
    *m = (struct eng_merge){0};
}

/* Six arrays in one block. */
static int reserve(struct eng_merge *m, size_t n)
{
    if (n <= m->cap) return 0;
    size_t cap = n + n / 2 + 64;
    uint32_t *block = cn_malloc_array(cap, 6 * sizeof *block);
    if (!block) return CN_ENOMEM;
    free(m->sym);
    m->sym = block;
    m->start = block + cap;
    m->prev = block + 2 * cap;
    m->next = block + 3 * cap;
    m->rank = block + 4 * cap;
    m->into = block + 5 * cap;
    m->cap = cap;
    return 0;
}

int eng_merge_escape(struct eng_merge *m, const char *text, size_t n, bool prefix, size_t *out_n)
{
    uint64_t need;
    if (!cn_mul_u64(n + 1, 3, &need)) return CN_ENOMEM;
    if (need > m->text_cap) {
        int rc = cn_grow(&m->text, &m->text_cap, need, 1);
        if (rc) return rc;
    }
    char *out = m->text;
    if (prefix) {
        memcpy(out, space_mark, 3);
        out += 3;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            memcpy(out, space_mark, 3);
            out += 3;
        } else {
            *out++ = text[i];
        }
    }
    *out_n = (size_t)(out - m->text);
    return 0;
}

/* First symbols: bytes, or characters; a byte that is not UTF-8 is one of its own. */
static int first_symbols(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                         size_t *n_sym)
{
    size_t count = 0;
    int rc = reserve(m, n + 1);
    if (rc) return rc;
    if (v->model == ENG_MODEL_BPE) {
        for (; count < n; count++) {
            m->sym[count] = v->byte_sym[(uint8_t)p[count]];
            m->start[count] = (uint32_t)count;
        }
    } else {
        uint32_t cp;
        for (size_t i = 0; i < n; count++) {
            size_t len = cn_utf8_decode(p + i, n - i, &cp);
            if (len == 0) len = 1;
            m->sym[count] = eng_strmap_get(&v->by_sym, &v->syms, p + i, len);
            m->start[count] = (uint32_t)i;
            i += len;
        }
    }
    m->start[count] = (uint32_t)n;
    *n_sym = count;
    return 0;
}

/* Rank and result of merging symbols l and r, which end at `end`. */
static inline void look_up(const struct eng_vocab *v, struct eng_merge *m, const char *p,
                           uint32_t l, uint32_t r, uint32_t end)
{
    m->rank[l] = ENG_NO_ID;
    if (v->model == ENG_MODEL_SPM) {
        size_t len = end - m->start[l];
        if (len > v->max_sym) return;
        uint32_t id = eng_strmap_get(&v->by_sym, &v->syms, p + m->start[l], len);
        if (id == ENG_NO_ID) return;
        m->rank[l] = v->rank[id];
        m->into[l] = id;
        return;
    }
    const struct eng_pair *pair = eng_bpe_pair(v, m->sym[l], m->sym[r]);
    if (!pair) return;
    m->rank[l] = pair->rank;
    m->into[l] = pair->merged;
}

static size_t merge_short(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        look_up(v, m, p, i, i + 1, m->start[i + 2]);
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++) {
            if (m->rank[i] < m->rank[best]) best = i;
        }
        if (m->rank[best] == ENG_NO_ID) break;
        m->sym[best] = m->into[best];
        size_t tail = --n - best - 1;
        memmove(m->sym + best + 1, m->sym + best + 2, tail * sizeof *m->sym);
        memmove(m->start + best + 1, m->start + best + 2, (tail + 1) * sizeof *m->start);
        memmove(m->rank + best, m->rank + best + 1, tail * sizeof *m->rank);
        memmove(m->into + best, m->into + best + 1, tail * sizeof *m->into);
        if (best > 0) look_up(v, m, p, best - 1, best, m->start[best + 1]);
        if (best + 1 < n) look_up(v, m, p, best, best + 1, m->start[best + 2]);
    }
    return n;
}

/* The pairs that wait, by rank and place: a sorted run that is read from its start, and a heap of
 * what was made since. When the run is used up the heap becomes the next one. Most new pairs come
 * in order, so this costs little more than reading memory in sequence. */
struct queue {
    uint64_t *run, *heap;
    size_t at, n_run, n_heap;
};

enum { SHORT_HEAP = 64 }; /* popped rather than sorted */

static inline void push_pair(const struct eng_merge *m, struct queue *q, uint32_t l)
{
    if (m->rank[l] != ENG_NO_ID)
        eng_heap_push(q->heap, &q->n_heap, (uint64_t)m->rank[l] << 32 | l);
}

static inline bool pop_pair(struct queue *q, uint64_t *key)
{
    if (q->at == q->n_run && q->n_heap > SHORT_HEAP) {
        uint64_t *sorted = eng_radix_sort(q->heap, q->run, q->n_heap);
        if (sorted == q->heap) q->heap = q->run;
        q->run = sorted;
        q->n_run = q->n_heap;
        q->at = q->n_heap = 0;
    }
    bool from_run = q->at < q->n_run;
    if (!from_run && q->n_heap == 0) return false;
    if (from_run && (q->n_heap == 0 || q->run[q->at] <= q->heap[0]))
        *key = q->run[q->at++];
    else
        *key = eng_heap_pop(q->heap, &q->n_heap);
    return true;
}

/* Looks up the pairs of the first symbols. A merge takes one pair out and puts at most two in: no
 * more than 2n wait at any time. */
static int first_pairs(const struct eng_vocab *v, struct eng_merge *m, const char *p, uint32_t n,
                       struct queue *q)
{
    if (4 * (size_t)n > m->heap_cap) {
        int rc = cn_grow(&m->heap, &m->heap_cap, 4 * (size_t)n, sizeof *m->heap);
        if (rc) return rc;
    }
    *q = (struct queue){.run = m->heap, .heap = m->heap + 2 * (size_t)n};
    for (uint32_t i = 0; i < n; i++) {
        m->prev[i] = i - 1;
        m->next[i] = i + 1;
        m->rank[i] = ENG_NO_ID;
        if (i + 1 < n) look_up(v, m, p, i, i + 1, m->start[i + 2]);
        if (m->rank[i] != ENG_NO_ID) q->run[q->n_run++] = (uint64_t)m->rank[i] << 32 | i;
    }
    uint64_t *sorted = eng_radix_sort(q->run, q->heap, q->n_run);
    if (sorted == q->heap) q->heap = q->run;
    q->run = sorted;
    return 0;
}

static int merge_long(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                      size_t *n_left)
{
    const uint32_t end = (uint32_t)n;
    struct queue q;
    uint64_t top;
    int rc = first_pairs(v, m, p, end, &q);
    if (rc) return rc;
    while (pop_pair(&q, &top)) {
        uint32_t l = (uint32_t)top;
        if (m->rank[l] != top >> 32) continue; /* the pair is gone */
        uint32_t r = m->next[l], after = m->next[r];
        m->sym[l] = m->into[l];
        m->rank[l] = m->rank[r] = ENG_NO_ID;
        m->next[l] = after;
        if (after != end) {
            m->prev[after] = l;
            look_up(v, m, p, l, after, m->start[m->next[after]]);
        }
        if (l != 0) {
            uint32_t before = m->prev[l];
            look_up(v, m, p, before, l, m->start[after]);
            push_pair(m, &q, before);
        }
        push_pair(m, &q, l);
    }
    size_t left = 0;
    for (uint32_t i = 0; i != end; i = m->next[i], left++) {
        m->sym[left] = m->sym[i];
        m->start[left] = m->start[i];
    }
    m->start[left] = m->start[end];
    *n_left = left;
    return 0;
}

static int merge(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                 size_t *n_left)
{
    size_t n_sym;
    int rc = first_symbols(v, m, p, n, &n_sym);
    if (rc) return rc;
    if (n_sym > SHORT_PIECE) return merge_long(v, m, p, n_sym, n_left);
    *n_left = merge_short(v, m, p, n_sym);
    return 0;
}

/* Whether merging the token's own bytes gives the token. */
static int is_whole(const struct eng_vocab *v, struct eng_merge *m, uint32_t id, bool *yes)
{
    uint8_t known = atomic_load_explicit(&v->whole[id], memory_order_relaxed);
    if (known == WHOLE_UNKNOWN) {
        struct eng_str s = eng_key(&v->syms, id);
        size_t left;
        int rc = merge(v, m, s.p, s.n, &left);
        if (rc) return rc;
        known = left == 1 && m->sym[0] == id ? WHOLE_YES : WHOLE_NO;
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

int eng_merge_piece(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                    struct eng_ids *ids)
{
    size_t left;
    int rc;
    if (n <= v->max_sym) {
        uint32_t id = eng_strmap_get(&v->by_sym, &v->syms, p, n);
        bool yes = v->ignore_merges || (v->newlines_whole && p[0] == '\n' && p[n - 1] == '\n');
        if (id < v->n) {
            rc = yes ? 0 : is_whole(v, m, id, &yes);
            if (rc) return rc;
            if (yes) return eng_ids_push(ids, id);
        }
    }
    rc = merge(v, m, p, n, &left);
    for (size_t i = 0; i < left && rc == 0; i++)
        rc = push_symbol(v, m->sym[i], p + m->start[i], m->start[i + 1] - m->start[i], ids);
    return rc;
}

/* Whether U+2581 is at p + i, and not as part of a run of them. */
static bool mark_begins(const char *p, size_t n, size_t i)
{
    return i + 3 <= n && memcmp(p + i, space_mark, 3) == 0 &&
           (i < 3 || memcmp(p + i - 3, space_mark, 3) != 0);
}

void eng_merge_note(struct eng_vocab *v, struct eng_str s)
{
    for (size_t i = 1; i + 3 <= s.n; i++) {
        if (mark_begins(s.p, s.n, i)) v->joins_space[(uint8_t)s.p[i - 1]] = true;
    }
}

int eng_merge_spaced(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
                     struct eng_ids *ids)
{
    size_t from = 0;
    for (size_t i = 1; i < n; i++) {
        if (p[i] != space_mark[0] || !mark_begins(p, n, i)) continue;
        if (v->joins_space[(uint8_t)p[i - 1]]) continue;
        int rc = eng_merge_piece(v, m, p + from, i - from, ids);
        if (rc) return rc;
        from = i;
    }
    return from < n ? eng_merge_piece(v, m, p + from, n - from, ids) : 0;
}
