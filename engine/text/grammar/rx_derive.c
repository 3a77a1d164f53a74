/* rx: derivatives, and the questions that are answered by them. See rx.h.
 *
 * Bytes of one class are in the same sets, so that they have the same derivatives: a search tries
 * one byte of each class. Whether an expression with AND or NOT has any text, and how short it can
 * be, is found by searching its derivatives; both are known at once for all others. */
#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { MOST_DEPTH = 1000, MOST_COUNTED = 300 }; /* of recursion; of texts that are counted */

/* ---- cache ----------------------------------------------------------------------------------- */

static struct eng_rx_memo *memo_of(struct eng_rx *r, uint32_t x, uint16_t what)
{
    uint32_t h = (x * 0x9E3779B1u) ^ (what * 0x85EBCA6Bu);
    return &r->memo[(h ^ h >> 15) & (r->n_memo - 1)];
}

bool eng_rx_recall(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t *answer)
{
    const struct eng_rx_memo *m = memo_of(r, x, what);
    if (m->x != x || m->what != what) return false;
    *answer = m->answer;
    return true;
}

uint32_t eng_rx_keep(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t answer)
{
    if (!r->code) *memo_of(r, x, what) = (struct eng_rx_memo){x, what, answer};
    return answer;
}

/* Nodes of an older arena do not change. */
static struct eng_rx_node *own_node(struct eng_rx *r, uint32_t x)
{
    return x >= r->first ? &r->nodes[x - r->first] : NULL;
}

/* ---- derivatives ----------------------------------------------------------------------------- */

static uint32_t derive(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth);

static uint32_t derive_list(struct eng_rx *r, const struct eng_rx_node *n, uint8_t byte,
                            unsigned depth)
{
    bool is_or = n->kind == ENG_RX_OR;
    uint32_t few[64], count = n->b, kept = 0;
    uint32_t *list = count <= CN_ARRAY_LEN(few) ? few : cn_malloc_array(count, sizeof *list);
    struct eng_rx_node copy = *n; /* the arena may move */
    if (!list) return eng_rx_fail(r, CN_ENOMEM);
    for (uint32_t i = 0; i < count && !r->code; i++) {
        uint32_t y = derive(r, eng_rx_args(r, &copy)[i], byte, depth);
        if (y == ENG_RX_NONE && is_or) continue;
        if (y == ENG_RX_NONE) { /* of an AND */
            if (list != few) free(list);
            return ENG_RX_NONE;
        }
        list[kept++] = y;
    }
    uint32_t out = is_or ? eng_rx_or_of(r, list, kept) : eng_rx_and_of(r, list, kept);
    if (list != few) free(list);
    return out;
}

/* Of a chain of parts, each as long as those before it may be empty. */
static uint32_t derive_cat(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth)
{
    uint32_t out = ENG_RX_NONE;
    for (;;) {
        struct eng_rx_node n = *eng_rx_node(r, x);
        bool chain = x >= ENG_RX_FIRST && n.kind == ENG_RX_CAT;
        uint32_t part = chain ? n.a : x, rest = chain ? n.b : ENG_RX_EMPTY;
        uint32_t y = eng_rx_cat(r, derive(r, part, byte, depth), rest);
        out = out == ENG_RX_NONE ? y : eng_rx_or(r, out, y);
        if (!chain || !eng_rx_nullable(r, part) || r->code) return out;
        x = rest;
    }
}

static uint32_t derive(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth)
{
    struct eng_rx_node n;
    uint32_t y;
    if (x < ENG_RX_FIRST) return x == ENG_RX_ALL ? ENG_RX_ALL : ENG_RX_NONE;
    n = *eng_rx_node(r, x);
    if (n.kind == ENG_RX_SET)
        return eng_bytes_has(eng_rx_set_of(r, &n), byte) ? ENG_RX_EMPTY : ENG_RX_NONE;
    if (r->code) return ENG_RX_NONE;
    if (eng_rx_recall(r, x, byte, &y)) return y;
    if (depth > MOST_DEPTH || (r->max_work && r->work >= r->max_work))
        return eng_rx_fail(r, CN_ELIMIT);
    if (++r->work % 4096 == 0 && r->keep_going && !r->keep_going(r->arg))
        return eng_rx_fail(r, CN_ECANCELLED);
    switch (n.kind) {
    case ENG_RX_CAT:
        y = derive_cat(r, x, byte, depth + 1);
        break;
    case ENG_RX_REPEAT:
        y = derive(r, n.a, byte, depth + 1);
        if (y != ENG_RX_NONE)
            y = eng_rx_cat(
                r, y,
                eng_rx_repeat(r, n.a, n.lo ? n.lo - 1 : 0, n.hi == ENG_RX_INF ? n.hi : n.hi - 1));
        break;
    case ENG_RX_NOT:
        y = eng_rx_not(r, derive(r, n.a, byte, depth + 1));
        break;
    case ENG_RX_MULTIPLE:
        y = eng_rx_multiple_next(r, &n, byte);
        break;
    default:
        y = derive_list(r, &n, byte, depth + 1);
        break;
    }
    return r->code ? ENG_RX_NONE : eng_rx_keep(r, x, byte, y);
}

uint32_t eng_rx_derive(struct eng_rx *r, uint32_t x, uint8_t byte)
{
    return derive(r, x, byte, 0);
}

bool eng_rx_matches(struct eng_rx *r, uint32_t x, const char *s, size_t n)
{
    for (size_t i = 0; i < n && x != ENG_RX_NONE; i++)
        x = eng_rx_derive(r, x, (uint8_t)s[i]);
    return eng_rx_nullable(r, x);
}

/* ---- searches -------------------------------------------------------------------------------- */

/* One byte of each class: the first of each, but of printable ones the first printable one. */
static unsigned some_bytes(const struct eng_rx *r, uint8_t out[256])
{
    int16_t of[256];
    unsigned n = 0;
    memset(of, 0xFF, sizeof of);
    for (unsigned i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)(i + 'a'); /* letters first */
        if (of[r->classes[b]] >= 0) continue;
        of[r->classes[b]] = b;
        out[n++] = b;
    }
    return n;
}

/* Expressions that a search has met, by how many bytes lead there. */
struct seen {
    uint32_t *x, *parent; /* in order; parent: index */
    size_t n, cap, cap_parent;
    uint32_t *slot; /* hash table of indices + 1 */
    size_t n_slots;
};

static void seen_fini(struct seen *s)
{
    free(s->x);
    free(s->parent);
    free(s->slot);
}

static bool seen_grow(struct seen *s)
{
    size_t n = s->n_slots ? s->n_slots * 2 : 64;
    uint32_t *slot = cn_calloc(n, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = s->x[i] * 0x9E3779B1u & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(s->slot);
    s->slot = slot;
    s->n_slots = n;
    return true;
}

/* False without memory. */
static bool see(struct seen *s, uint32_t x, uint32_t parent)
{
    if (s->n * 2 >= s->n_slots && !seen_grow(s)) return false;
    size_t at = x * 0x9E3779B1u & (s->n_slots - 1);
    for (; s->slot[at]; at = (at + 1) & (s->n_slots - 1))
        if (s->x[s->slot[at] - 1] == x) return true;
    if (cn_grow(&s->x, &s->cap, s->n + 1, sizeof *s->x) ||
        cn_grow(&s->parent, &s->cap_parent, s->n + 1, sizeof *s->parent))
        return false;
    s->x[s->n] = x;
    s->parent[s->n] = parent;
    s->slot[at] = (uint32_t)++s->n;
    return true;
}

/* Whether a text is known to belong to x without a search. */
static bool is_known_live(const struct eng_rx *r, uint32_t x)
{
    return eng_rx_node(r, x)->live == ENG_RX_LIVE;
}

/* The newest one first, so that the search goes deep: texts are mostly found soon. */
static bool search_live(struct eng_rx *r, uint32_t x, struct seen *s)
{
    uint8_t bytes[256];
    unsigned n_bytes = some_bytes(r, bytes);
    uint32_t *stack = NULL;
    size_t n = 0, cap = 0, found = SIZE_MAX;
    if (!see(s, x, 0) || cn_grow(&stack, &cap, 1, sizeof *stack)) eng_rx_fail(r, CN_ENOMEM);
    if (!r->code) stack[n++] = 0;
    while (n && found == SIZE_MAX && !r->code) {
        uint32_t at = stack[--n];
        for (unsigned i = n_bytes; i-- && found == SIZE_MAX && !r->code;) {
            uint32_t y = eng_rx_derive(r, s->x[at], bytes[i]);
            size_t before = s->n;
            if (y == ENG_RX_NONE || eng_rx_node(r, y)->live == ENG_RX_DEAD) continue;
            if (!see(s, y, at) || cn_grow(&stack, &cap, n + 1, sizeof *stack)) {
                eng_rx_fail(r, CN_ENOMEM);
                break;
            }
            if (s->n == before) continue;
            stack[n++] = (uint32_t)before;
            if (is_known_live(r, y)) found = before;
        }
    }
    free(stack);
    if (found == SIZE_MAX) return false;
    for (; found; found = s->parent[found]) { /* all that lead there */
        struct eng_rx_node *own = own_node(r, s->x[found]);
        if (own) own->live = ENG_RX_LIVE;
    }
    return true;
}

bool eng_rx_live(struct eng_rx *r, uint32_t x)
{
    const struct eng_rx_node *n = eng_rx_node(r, x);
    uint32_t known = n->live;
    struct seen s = {0};
    if (known == ENG_RX_UNKNOWN && !eng_rx_recall(r, x, ENG_MEMO_LIVE, &known)) {
        bool live = search_live(r, x, &s);
        known = live ? ENG_RX_LIVE : ENG_RX_DEAD;
        for (size_t i = 0; !live && i < s.n && !r->code; i++) {
            struct eng_rx_node *own = own_node(r, s.x[i]);
            if (own) own->live = ENG_RX_DEAD;
        }
        if (!r->code && own_node(r, x)) own_node(r, x)->live = (uint8_t)known;
        if (!r->code) eng_rx_keep(r, x, ENG_MEMO_LIVE, known);
        seen_fini(&s);
    }
    return known == ENG_RX_LIVE && !r->code;
}

/* Breadth first: the first expression that the empty text belongs to is nearest, unless a plain one
 * that was met before has a text as short. */
static uint32_t search_min_len(struct eng_rx *r, uint32_t x)
{
    struct seen s = {0};
    uint8_t bytes[256];
    unsigned n_bytes = some_bytes(r, bytes);
    uint32_t best = UINT32_MAX, depth = 0;
    if (!see(&s, x, 0)) eng_rx_fail(r, CN_ENOMEM);
    for (size_t at = 0, end = 1; at < s.n && !r->code && depth < best; at++) {
        if (at == end) {
            end = s.n;
            if (++depth >= best) break;
        }
        for (unsigned i = 0; i < n_bytes && !r->code; i++) {
            uint32_t y = eng_rx_derive(r, s.x[at], bytes[i]);
            const struct eng_rx_node *n = eng_rx_node(r, y);
            if (y == ENG_RX_NONE) continue;
            if (n->min_len != UINT32_MAX) best = CN_MIN(best, depth + 1 + n->min_len);
            if (!see(&s, y, (uint32_t)at)) eng_rx_fail(r, CN_ENOMEM);
        }
    }
    seen_fini(&s);
    return best;
}

uint32_t eng_rx_min_len(struct eng_rx *r, uint32_t x)
{
    const struct eng_rx_node *n = eng_rx_node(r, x);
    uint32_t len = n->min_len;
    if (n->plain || len != UINT32_MAX || eng_rx_recall(r, x, ENG_MEMO_MIN_LEN, &len)) return len;
    len = search_min_len(r, x);
    if (r->code) return UINT32_MAX;
    if (own_node(r, x)) own_node(r, x)->min_len = len;
    return eng_rx_keep(r, x, ENG_MEMO_MIN_LEN, len);
}

int eng_rx_shortest(struct eng_rx *r, uint32_t x, struct cn_buf *out)
{
    uint8_t bytes[256];
    unsigned n_bytes = some_bytes(r, bytes);
    uint32_t len = eng_rx_min_len(r, x);
    while (len && len != UINT32_MAX && !r->code) {
        uint32_t best = UINT32_MAX, to = ENG_RX_NONE;
        uint8_t byte = 0;
        for (unsigned i = 0; i < n_bytes && best >= len; i++) {
            uint32_t y = eng_rx_derive(r, x, bytes[i]);
            uint32_t left = y == ENG_RX_NONE ? UINT32_MAX : eng_rx_min_len(r, y);
            if (left < best) best = left, to = y, byte = bytes[i];
        }
        if (best == UINT32_MAX || cn_buf_putc(out, (char)byte)) break;
        x = to;
        len = best;
    }
    return r->code ? r->code : out->failed ? CN_ENOMEM : 0;
}

/* ---- how many texts -------------------------------------------------------------------------- */

/* Adds the number of texts of x, depth first; false when there are more than `most`, or when one is
 * longer than anything that is counted. */
static bool count(struct eng_rx *r, uint32_t x, uint64_t most, uint64_t *n, unsigned depth)
{
    uint8_t bytes[256];
    unsigned n_bytes = some_bytes(r, bytes), in_class[256] = {0};
    if (depth > MOST_COUNTED) return false;
    if (eng_rx_nullable(r, x) && ++*n > most) return false;
    for (unsigned b = 0; b < 256; b++)
        in_class[r->classes[b]]++;
    for (unsigned i = 0; i < n_bytes; i++) {
        uint32_t y = eng_rx_derive(r, x, bytes[i]);
        uint64_t of_one = 0, all;
        if (y == ENG_RX_NONE || !eng_rx_live(r, y)) continue;
        if (!count(r, y, most, &of_one, depth + 1)) return false;
        if (!cn_mul_u64(of_one, in_class[r->classes[bytes[i]]], &all) || !cn_add_u64(*n, all, n) ||
            *n > most)
            return false;
    }
    return !r->code;
}

bool eng_rx_count(struct eng_rx *r, uint32_t x, uint64_t most, uint64_t *n)
{
    uint64_t c = 0;
    if (!eng_rx_live(r, x)) {
        *n = 0;
        return !r->code;
    }
    if (!count(r, x, most, &c, 0)) return false;
    *n = c;
    return true;
}
