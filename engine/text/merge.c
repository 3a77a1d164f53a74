/* engine/text: merging of symbols, for byte-level BPE, BPE on characters and SentencePiece BPE.
 *
 * All three merge the adjacent pair of lowest rank, leftmost on ties, until none is left; they
 * differ in where a pair's rank comes from: a list of merges, or the score of the token that the
 * two make. Short pieces look for the minimum each time; long ones keep a queue whose stale entries
 * are known by their rank: O(n log n).
 * One eng_merge per call; the vocabulary is shared. */
#include "engine/text/heap.h"
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum { SHORT_PIECE = 40 }; /* symbols up to which the search beats the heap */

static int reserve(struct eng_merge *m, size_t n)
{
    if (n <= m->cap) return 0;
    size_t cap = n + n / 2 + 64;
    int rc = eng_pay(&m->tick, (cap - m->cap) * sizeof *m->s);
    if (rc) return rc;
    struct eng_symbol *s = cn_malloc_array(cap, sizeof *s);
    if (!s) return CN_ENOMEM;
    free(m->s);
    m->s = s;
    m->cap = cap;
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
            if (count % 4096 == 4095) eng_tick(&m->tick, 4096);
            m->s[count].sym = v->byte_sym[(uint8_t)p[count]];
            m->s[count].start = (uint32_t)count;
        }
    } else {
        uint32_t cp;
        for (size_t i = 0; i < n; count++) {
            size_t len = cn_utf8_decode(p + i, n - i, &cp);
            if (count % 1024 == 1023) eng_tick(&m->tick, 4096);
            if (len == 0) len = 1;
            m->s[count].sym = eng_strmap_get(&v->by_sym, &v->syms, p + i, len);
            m->s[count].start = (uint32_t)i;
            i += len;
        }
    }
    m->s[count].start = (uint32_t)n;
    *n_sym = count;
    return 0;
}

/* Rank and result of merging symbols l and r, which end at `end`. */
static inline void look_up(const struct eng_vocab *v, struct eng_symbol *l,
                           const struct eng_symbol *r, const char *p, uint32_t end)
{
    l->rank = ENG_NO_ID;
    if (v->model == ENG_MODEL_SPM) {
        size_t len = end - l->start;
        if (len > v->max_sym) return;
        uint32_t id = eng_strmap_get(&v->by_sym, &v->syms, p + l->start, len);
        if (id == ENG_NO_ID) return;
        l->rank = v->rank[id];
        l->into = id;
        return;
    }
    const struct eng_pair *pair = eng_bpe_pair(v, l->sym, r->sym);
    if (!pair) return;
    l->rank = pair->rank;
    l->into = pair->merged;
}

static size_t merge_short(const struct eng_vocab *v, struct eng_symbol *s, const char *p, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        look_up(v, &s[i], &s[i + 1], p, s[i + 2].start);
    while (n > 1) {
        size_t best = 0;
        uint32_t rank = s[0].rank;
        for (size_t i = 1; i + 1 < n; i++) {
            best = s[i].rank < rank ? i : best;
            rank = s[i].rank < rank ? s[i].rank : rank;
        }
        if (rank == ENG_NO_ID) break;
        s[best].sym = s[best].into;
        n--;
        for (size_t i = best + 1; i <= n; i++)
            s[i] = s[i + 1];
        if (best > 0) look_up(v, &s[best - 1], &s[best], p, s[best + 1].start);
        if (best + 1 < n) look_up(v, &s[best], &s[best + 1], p, s[best + 2].start);
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

static void sort_tick(void *tick)
{
    eng_tick(tick, ENG_TICK / 2);
}

static uint64_t *sort_pairs(uint64_t *h, uint64_t *tmp, size_t n, struct eng_tick *tick)
{
    return eng_radix_sort(h, tmp, n, sort_tick, tick);
}

enum { SHORT_HEAP = 64 }; /* popped rather than sorted */

static inline void push_pair(const struct eng_merge *m, struct queue *q, uint32_t l)
{
    if (m->s[l].rank != ENG_NO_ID)
        eng_heap_push(q->heap, &q->n_heap, (uint64_t)m->s[l].rank << 32 | l);
}

static inline bool pop_pair(struct queue *q, struct eng_tick *tick, uint64_t *key)
{
    if (q->at == q->n_run && q->n_heap > SHORT_HEAP) {
        uint64_t *sorted = sort_pairs(q->heap, q->run, q->n_heap, tick);
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
        int rc = eng_grow(&m->tick, &m->heap, &m->heap_cap, 4 * (size_t)n, sizeof *m->heap);
        if (rc) return rc;
    }
    *q = (struct queue){.run = m->heap, .heap = m->heap + 2 * (size_t)n};
    for (uint32_t i = 0; i < n; i++) {
        struct eng_symbol *s = &m->s[i];
        if (i % 512 == 511) eng_tick(&m->tick, 4096);
        s->prev = i - 1;
        s->next = i + 1;
        s->rank = ENG_NO_ID;
        if (i + 1 < n) look_up(v, s, s + 1, p, s[2].start);
        if (s->rank != ENG_NO_ID) q->run[q->n_run++] = (uint64_t)s->rank << 32 | i;
    }
    uint64_t *sorted = sort_pairs(q->run, q->heap, q->n_run, &m->tick);
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
    while (pop_pair(&q, &m->tick, &top)) {
        if ((rc = eng_tick(&m->tick, 8))) return rc;
        uint32_t at = (uint32_t)top;
        struct eng_symbol *l = &m->s[at];
        if (l->rank != top >> 32) continue; /* the pair is gone */
        struct eng_symbol *r = &m->s[l->next];
        l->sym = l->into;
        l->rank = r->rank = ENG_NO_ID;
        l->next = r->next;
        struct eng_symbol *after = &m->s[l->next];
        if (l->next != end) {
            after->prev = at;
            look_up(v, l, after, p, m->s[after->next].start);
        }
        if (at != 0) {
            look_up(v, &m->s[l->prev], l, p, after->start);
            push_pair(m, &q, l->prev);
        }
        push_pair(m, &q, at);
    }
    size_t left = 0;
    for (uint32_t i = 0, next; i != end; i = next, left++) {
        if (left % 4096 == 4095) eng_tick(&m->tick, 4096);
        next = m->s[i].next;
        m->s[left].sym = m->s[i].sym;
        m->s[left].start = m->s[i].start;
    }
    m->s[left].start = m->s[end].start;
    *n_left = left;
    return 0;
}

int eng_merge(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
              size_t *n_left)
{
    size_t n_sym;
    if (m->max_run && n > m->max_run) return CN_ELIMIT;
    int rc = first_symbols(v, m, p, n, &n_sym);
    if (rc) return rc;
    if (n_sym > SHORT_PIECE) return merge_long(v, m, p, n_sym, n_left);
    *n_left = merge_short(v, m->s, p, n_sym);
    return 0;
}
