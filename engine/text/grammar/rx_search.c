/* rx: questions that are answered by searching derivatives. See rx.h.
 *
 * Bytes of one class are in the same sets, so that they have the same derivatives: a search tries
 * one byte of each class. How short a text can be is known at once for expressions without AND and
 * NOT, and follows from the parts for the others; only an AND and a NOT themselves are searched.
 * The search takes the expression next that promises the shortest text (A*: P. Hart, N. Nilsson and
 * B. Raphael, "A formal basis for the heuristic determination of minimum cost paths", 1968), by the
 * least length that its parts need. */
#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum {
    MOST_DEPTH = 1000,  /* of recursion */
    MOST_COUNTED = 300, /* of texts that are counted */
    MOST_LOOKS = 20000, /* at parts, for the first bytes of an expression */
};

/* Nodes of an older arena do not change. */
static struct eng_rx_node *own_node(struct eng_rx *r, uint32_t x)
{
    return x >= r->first ? &r->nodes[x - r->first] : NULL;
}

/* ---- first bytes ----------------------------------------------------------------------------- */

/* Adds the bytes that texts of x may begin with, and after so many looks at parts any byte: parts
 * that are shared are looked at again for each of their uses. */
static void first(const struct eng_rx *r, uint32_t x, struct eng_bytes *out, unsigned depth,
                  unsigned *left);

static void first_of_all(const struct eng_rx *r, const struct eng_rx_node *n, struct eng_bytes *out,
                         unsigned depth, unsigned *left)
{
    struct eng_bytes both = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    for (uint32_t i = 0; i < n->b; i++) {
        struct eng_bytes one = {{0}};
        first(r, eng_rx_args(r, n)[i], &one, depth, left);
        for (int k = 0; k < 4; k++)
            both.bits[k] &= one.bits[k];
    }
    for (int k = 0; k < 4; k++)
        out->bits[k] |= both.bits[k];
}

static void first(const struct eng_rx *r, uint32_t x, struct eng_bytes *out, unsigned depth,
                  unsigned *left)
{
    const struct eng_rx_node *n = eng_rx_node(r, x);
    for (; x >= ENG_RX_FIRST && n->kind == ENG_RX_CAT; n = eng_rx_node(r, x)) {
        first(r, n->a, out, depth + 1, left);
        if (!eng_rx_nullable(r, n->a)) return;
        x = n->b;
    }
    if (x == ENG_RX_NONE || x == ENG_RX_EMPTY) return;
    if (x != ENG_RX_ALL && depth < MOST_DEPTH && *left) {
        --*left;
        switch (n->kind) {
        case ENG_RX_SET:
            for (int k = 0; k < 4; k++)
                out->bits[k] |= eng_rx_set_of(r, n)->bits[k];
            return;
        case ENG_RX_REPEAT:
            first(r, n->a, out, depth + 1, left);
            return;
        case ENG_RX_OR:
            for (uint32_t i = 0; i < n->b; i++)
                first(r, eng_rx_args(r, n)[i], out, depth + 1, left);
            return;
        case ENG_RX_AND:
            first_of_all(r, n, out, depth + 1, left);
            return;
        case ENG_RX_MULTIPLE:
            eng_bytes_add(out, '0', '9');
            eng_bytes_add(out, '.', '.');
            return;
        }
    }
    memset(out, 0xFF, sizeof *out);
}

void eng_rx_first(const struct eng_rx *r, uint32_t x, struct eng_bytes *out)
{
    unsigned left = MOST_LOOKS;
    first(r, x, out, 0, &left);
}

/* One byte of each class that texts of x may begin with: the first of each, but of printable ones
 * the first printable one. */
static unsigned some_bytes(const struct eng_rx *r, uint32_t x, uint8_t out[256])
{
    struct eng_bytes may = {{0}};
    bool seen[256] = {false};
    unsigned n = 0;
    eng_rx_first(r, x, &may);
    for (unsigned i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)(i + 'a'); /* letters first */
        if (seen[r->classes[b]] || !eng_bytes_has(&may, b)) continue;
        seen[r->classes[b]] = true;
        out[n++] = b;
    }
    return n;
}

/* ---- searches -------------------------------------------------------------------------------- */

/* An expression that a search has met. */
struct met { uint32_t x, parent, steps; }; /* parent: index; steps: bytes that lead here */
struct search {
    struct met *met;
    size_t n, cap;
    uint32_t *slot; /* hash table of indices + 1 */
    size_t n_slots;
    struct open { uint32_t promise, steps, at; } *heap; /* promise: bytes of the shortest text */
    size_t n_heap, cap_heap;
};

static void search_fini(struct search *s)
{
    free(s->met);
    free(s->slot);
    free(s->heap);
}

static bool grow_slots(struct search *s)
{
    size_t n = s->n_slots ? s->n_slots * 2 : 64;
    uint32_t *slot = cn_calloc(n, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = s->met[i].x * 0x9E3779B1u & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(s->slot);
    s->slot = slot;
    s->n_slots = n;
    return true;
}

/* The deeper one of two that promise the same is nearer to its end. */
static bool is_before(const struct open *a, const struct open *b)
{
    return a->promise != b->promise ? a->promise < b->promise : a->steps > b->steps;
}

static bool push(struct search *s, struct open o)
{
    if (cn_grow(&s->heap, &s->cap_heap, s->n_heap + 1, sizeof *s->heap)) return false;
    size_t i = s->n_heap++;
    for (; i && is_before(&o, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = o;
    return true;
}

static struct open pop(struct search *s)
{
    struct open out = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0, kid;
    for (; (kid = 2 * i + 1) < s->n_heap; i = kid) {
        kid += kid + 1 < s->n_heap && is_before(&s->heap[kid + 1], &s->heap[kid]);
        if (!is_before(&s->heap[kid], &last)) break;
        s->heap[i] = s->heap[kid];
    }
    s->heap[i] = last;
    return out;
}

/* x has been met after so many bytes. False without memory. */
static bool meet(struct eng_rx *r, struct search *s, uint32_t x, uint32_t parent, uint32_t steps)
{
    const struct eng_rx_node *node = eng_rx_node(r, x);
    uint32_t rest = node->min_len != UINT32_MAX ? node->min_len : node->least;
    if (s->n * 2 >= s->n_slots && !grow_slots(s)) return false;
    size_t at = x * 0x9E3779B1u & (s->n_slots - 1);
    for (; s->slot[at]; at = (at + 1) & (s->n_slots - 1))
        if (s->met[s->slot[at] - 1].x == x) break;
    uint32_t i = s->slot[at] ? s->slot[at] - 1 : (uint32_t)s->n;
    if (s->slot[at] && s->met[i].steps <= steps) return true;
    if (!s->slot[at]) {
        if (cn_grow(&s->met, &s->cap, s->n + 1, sizeof *s->met)) return false;
        s->slot[at] = (uint32_t)++s->n;
    }
    s->met[i] = (struct met){x, parent, steps};
    return rest == UINT32_MAX || push(s, (struct open){steps + rest, steps, i});
}

/* All that lead to a text are live, and their least lengths are known. */
static void mark_path(struct eng_rx *r, const struct search *s, uint32_t at, uint32_t len)
{
    for (;; at = s->met[at].parent) {
        struct eng_rx_node *own = own_node(r, s->met[at].x);
        if (own) own->live = ENG_RX_LIVE, own->min_len = len - s->met[at].steps;
        if (!at) return;
    }
}

static uint32_t search_min_len(struct eng_rx *r, uint32_t x)
{
    struct search s = {0};
    uint8_t bytes[256];
    uint32_t found = UINT32_MAX;
    if (!meet(r, &s, x, 0, 0)) eng_rx_fail(r, CN_ENOMEM);
    while (s.n_heap && !r->code && found == UINT32_MAX) {
        struct open o = pop(&s);
        uint32_t y = s.met[o.at].x;
        if (o.steps > s.met[o.at].steps) continue; /* a shorter way was found since */
        if (eng_rx_node(r, y)->min_len != UINT32_MAX) {
            found = o.promise;
            mark_path(r, &s, o.at, found);
            break;
        }
        unsigned n_bytes = some_bytes(r, y, bytes);
        for (unsigned i = 0; i < n_bytes && !r->code; i++) {
            uint32_t z = eng_rx_derive(r, y, bytes[i]);
            if (z == ENG_RX_NONE || eng_rx_node(r, z)->live == ENG_RX_DEAD) continue;
            if (!meet(r, &s, z, o.at, o.steps + 1)) eng_rx_fail(r, CN_ENOMEM);
        }
    }
    for (size_t i = 0; found == UINT32_MAX && i < s.n && !r->code; i++) {
        struct eng_rx_node *own = own_node(r, s.met[i].x);
        if (own) own->live = ENG_RX_DEAD;
    }
    search_fini(&s);
    return found;
}

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

static uint32_t min_len(struct eng_rx *r, uint32_t x, unsigned depth)
{
    const struct eng_rx_node *known = eng_rx_node(r, x);
    struct eng_rx_node n = *known;
    uint32_t len = n.min_len, y = x;
    if (n.plain || len != UINT32_MAX || n.live == ENG_RX_DEAD) return len;
    if (eng_rx_recall(r, x, ENG_MEMO_MIN_LEN, &len)) return len;
    if (depth > MOST_DEPTH) return search_min_len(r, x);
    switch (n.kind) {
    case ENG_RX_CAT:
        for (len = 0; len != UINT32_MAX && y >= ENG_RX_FIRST; y = n.b) {
            n = *eng_rx_node(r, y);
            if (n.kind != ENG_RX_CAT || n.min_len != UINT32_MAX) break;
            len = sum(len, min_len(r, n.a, depth + 1));
        }
        if (len != UINT32_MAX) len = sum(len, min_len(r, y, depth + 1));
        break;
    case ENG_RX_REPEAT: /* at least once: else it was known */
        len = min_len(r, n.a, depth + 1);
        if (len != UINT32_MAX && __builtin_mul_overflow(len, n.lo, &len)) len = UINT32_MAX;
        break;
    case ENG_RX_OR:
        for (uint32_t i = 0; i < n.b; i++) {
            y = eng_rx_args(r, &n)[i];
            if (eng_rx_node(r, y)->least < len) len = CN_MIN(len, min_len(r, y, depth + 1));
        }
        break;
    default:
        len = search_min_len(r, x);
        break;
    }
    if (r->code) return UINT32_MAX;
    if (own_node(r, x)) {
        own_node(r, x)->min_len = len;
        own_node(r, x)->live = len == UINT32_MAX ? ENG_RX_DEAD : ENG_RX_LIVE;
    }
    return eng_rx_keep(r, x, ENG_MEMO_MIN_LEN, len);
}

uint32_t eng_rx_min_len(struct eng_rx *r, uint32_t x)
{
    return min_len(r, x, 0);
}

bool eng_rx_live(struct eng_rx *r, uint32_t x)
{
    uint8_t live = eng_rx_node(r, x)->live;
    if (live == ENG_RX_UNKNOWN) return min_len(r, x, 0) != UINT32_MAX && !r->code;
    return live == ENG_RX_LIVE && !r->code;
}

int eng_rx_shortest(struct eng_rx *r, uint32_t x, struct cn_buf *out)
{
    uint8_t bytes[256];
    uint32_t len = eng_rx_min_len(r, x);
    while (len && len != UINT32_MAX && !r->code) {
        uint32_t best = UINT32_MAX, to = ENG_RX_NONE;
        uint8_t byte = 0;
        unsigned n_bytes = some_bytes(r, x, bytes);
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
    unsigned n_bytes = some_bytes(r, x, bytes), in_class[256] = {0};
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

/* ---- many texts ------------------------------------------------------------------------------ */

static bool has_chars(const struct eng_rx *r, uint32_t x, uint32_t a_char, uint32_t times);

/* A part of which there are many texts: at least so many of the characters, or more of them than
 * are barred. */
static bool is_chars(const struct eng_rx *r, uint32_t x, uint32_t a_char, uint32_t times)
{
    const struct eng_rx_node *n = eng_rx_node(r, x);
    uint32_t unlike = 0;
    if (x < ENG_RX_FIRST) return false;
    if (n->kind == ENG_RX_REPEAT) return n->a == a_char && n->hi >= times;
    if (n->kind != ENG_RX_AND) return false;
    for (uint32_t i = 0; i < n->b; i++) {
        uint32_t arg = eng_rx_args(r, n)[i];
        const struct eng_rx_node *k = eng_rx_node(r, arg);
        if (arg >= ENG_RX_FIRST && k->kind == ENG_RX_NOT) {
            if (eng_rx_max_len(r, k->a) == UINT32_MAX) return false;
        } else if (unlike++ || !has_chars(r, arg, a_char, ENG_RX_INF)) {
            return false;
        }
    }
    return unlike > 0;
}

static bool has_chars(const struct eng_rx *r, uint32_t x, uint32_t a_char, uint32_t times)
{
    for (const struct eng_rx_node *n;; x = n->b) {
        n = eng_rx_node(r, x);
        bool chain = x >= ENG_RX_FIRST && n->kind == ENG_RX_CAT;
        if (is_chars(r, chain ? n->a : x, a_char, times)) return true;
        if (!chain) return false;
    }
}

bool eng_rx_has_two(const struct eng_rx *r, uint32_t x, uint32_t a_char)
{
    return a_char && has_chars(r, x, a_char, 2);
}
