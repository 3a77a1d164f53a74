/* rx: the arena of expressions and their constructors. See rx.h; rx_derive.c has the questions.
 *
 * Nodes are found by their hash, first in the older arena, then in this one. The arguments of OR
 * and AND are sorted by hash, which does not depend on an arena, so that equal sets of arguments
 * are equal nodes. */
#include "engine/text/grammar/rx.h"

#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { FIRST_HEADS = 64, FIRST_MEMO = 128, MOST_MEMO = 1 << 16 };

/* ---- the arena ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

const struct eng_rx_node *eng_rx_node(const struct eng_rx *r, uint32_t x)
{
    while (x < r->first)
        r = r->base;
    return &r->nodes[x - r->first];
}

const struct eng_bytes *eng_rx_set_of(const struct eng_rx *r, const struct eng_rx_node *n)
{
    while (n->a < r->first_set)
        r = r->base;
    return &r->sets[n->a - r->first_set];
}

const uint32_t *eng_rx_args(const struct eng_rx *r, const struct eng_rx_node *n)
{
    while (n->a < r->first_arg)
        r = r->base;
    return &r->args[n->a - r->first_arg];
}

size_t eng_rx_bytes(const struct eng_rx *r)
{
    return r->nodes_cap * sizeof *r->nodes + r->sets_cap * sizeof *r->sets +
           r->args_cap * sizeof *r->args + r->n_heads * sizeof *r->heads +
           r->n_memo * sizeof *r->memo;
}

uint32_t eng_rx_fail(struct eng_rx *r, int code)
{
    if (!r->code) r->code = code;
    return ENG_RX_NONE;
}

int eng_rx_init(struct eng_rx *r, const struct eng_rx *base, size_t max_bytes, uint64_t max_work)
{
    *r = (struct eng_rx){.base = base, .max_bytes = max_bytes, .max_work = max_work};
    r->n_classes = 1;
    if (base) {
        r->first = r->n_nodes = base->n_nodes;
        r->first_set = r->n_sets = base->n_sets;
        r->first_arg = r->n_args = base->n_args;
        r->n_classes = base->n_classes;
        memcpy(r->classes, base->classes, sizeof r->classes);
    }
    r->heads = cn_calloc(FIRST_HEADS, sizeof *r->heads);
    r->memo = cn_calloc(FIRST_MEMO, sizeof *r->memo);
    if (!r->heads || !r->memo) {
        eng_rx_fini(r);
        return CN_ENOMEM;
    }
    r->n_heads = FIRST_HEADS;
    r->n_memo = FIRST_MEMO;
    if (base) return 0;
    if (cn_grow(&r->nodes, &r->nodes_cap, ENG_RX_FIRST, sizeof *r->nodes)) {
        eng_rx_fini(r);
        return CN_ENOMEM;
    }
    const struct eng_rx_node known[ENG_RX_FIRST] = {
        [ENG_RX_NONE] = {.kind = ENG_RX_OR,
                         .live = ENG_RX_DEAD,
                         .plain = true,
                         .hash = 11,
                         .least = UINT32_MAX,
                         .min_len = UINT32_MAX},
        [ENG_RX_EMPTY] =
            {.kind = ENG_RX_CAT, .nullable = true, .live = ENG_RX_LIVE, .plain = true, .hash = 13},
        [ENG_RX_ALL] =
            {.kind = ENG_RX_NOT, .nullable = true, .live = ENG_RX_LIVE, .plain = true, .hash = 17},
    };
    memcpy(r->nodes, known, sizeof known);
    r->n_nodes = ENG_RX_FIRST;
    return 0;
}

void eng_rx_fini(struct eng_rx *r)
{
    if (!r) return;
    free(r->nodes);
    free(r->sets);
    free(r->args);
    free(r->heads);
    free(r->memo);
    *r = (struct eng_rx){0};
}

/* Room for one more of each; the hash table grows with the nodes. */
static bool make_room(struct eng_rx *r, size_t n_args)
{
    uint32_t own = r->n_nodes - r->first;
    size_t args = r->n_args - r->first_arg + n_args;
    if (r->code) return false;
    bool full = eng_rx_bytes(r) > r->max_bytes;
    r->full |= full;
    if (r->n_nodes == UINT32_MAX - 1 || full) return eng_rx_fail(r, CN_ELIMIT), false;
    if (cn_grow(&r->nodes, &r->nodes_cap, (size_t)own + 1, sizeof *r->nodes) ||
        cn_grow(&r->sets, &r->sets_cap, r->n_sets - r->first_set + (size_t)1, sizeof *r->sets) ||
        cn_grow(&r->args, &r->args_cap, args, sizeof *r->args))
        return eng_rx_fail(r, CN_ENOMEM), false;
    if (own < r->n_heads) return true;
    uint32_t n = r->n_heads * 2, *heads = cn_calloc(n, sizeof *heads);
    if (!heads) return eng_rx_fail(r, CN_ENOMEM), false;
    for (uint32_t i = 0; i < own; i++) {
        struct eng_rx_node *node = &r->nodes[i];
        uint32_t *head = &heads[node->hash & (n - 1)];
        node->next = *head;
        *head = r->first + i;
    }
    free(r->heads);
    r->heads = heads;
    r->n_heads = n;
    if (n > r->n_memo && r->n_memo < MOST_MEMO) {
        struct eng_rx_memo *memo = cn_calloc(n, sizeof *memo); /* without it: slower */
        if (memo) {
            free(r->memo);
            r->memo = memo;
            r->n_memo = n;
        }
    }
    return true;
}

/* Arguments of OR and AND. */
struct list {
    struct eng_rx_arg *v;
    size_t n, cap;
};

/* What a node is compared by. */
struct wanted {
    struct eng_rx_node node;
    const struct eng_bytes *set;
    const struct eng_rx_arg *args;
};

static bool is_same(const struct eng_rx *r, const struct eng_rx_node *n, const struct wanted *w)
{
    if (n->hash != w->node.hash || n->kind != w->node.kind) return false;
    switch (w->node.kind) {
    case ENG_RX_SET:
        return !memcmp(eng_rx_set_of(r, n), w->set, sizeof *w->set);
    case ENG_RX_OR:
    case ENG_RX_AND:
        if (n->b != w->node.b) return false;
        for (uint32_t i = 0; i < n->b; i++)
            if (eng_rx_args(r, n)[i] != w->args[i].x) return false;
        return true;
    default:
        return n->a == w->node.a && n->b == w->node.b && n->lo == w->node.lo && n->hi == w->node.hi;
    }
}

/* The constants are in no chain. */
static uint32_t find(const struct eng_rx *r, const struct wanted *w)
{
    for (; r; r = r->base)
        for (uint32_t x = r->heads[w->node.hash & (r->n_heads - 1)]; x;) {
            const struct eng_rx_node *n = &r->nodes[x - r->first];
            if (is_same(r, n, w)) return x;
            x = n->next;
        }
    return 0;
}

/* Splits the classes of bytes so that each is wholly inside or wholly outside the set. */
static void split_classes(struct eng_rx *r, const struct eng_bytes *s)
{
    uint16_t in[256], out[256], n = 0;
    memset(in, 0xFF, sizeof in);
    memset(out, 0xFF, sizeof out);
    for (unsigned b = 0; b < 256; b++) {
        uint16_t *to = eng_bytes_has(s, (uint8_t)b) ? &in[r->classes[b]] : &out[r->classes[b]];
        if (*to == UINT16_MAX) *to = n++;
        r->classes[b] = (uint8_t)*to;
    }
    r->n_classes = n;
}

static uint32_t add(struct eng_rx *r, struct wanted *w)
{
    bool list = w->node.kind == ENG_RX_OR || w->node.kind == ENG_RX_AND;
    uint32_t x = find(r, w);
    if (x) return x;
    if (!make_room(r, list ? w->node.b : 0)) return ENG_RX_NONE;
    if (w->set) {
        w->node.a = r->n_sets;
        r->sets[r->n_sets++ - r->first_set] = *w->set;
        split_classes(r, w->set);
    }
    if (list) {
        w->node.a = r->n_args;
        for (uint32_t i = 0; i < w->node.b; i++)
            r->args[r->n_args++ - r->first_arg] = w->args[i].x;
    }
    x = r->n_nodes++;
    uint32_t *head = &r->heads[w->node.hash & (r->n_heads - 1)];
    w->node.next = *head;
    *head = x;
    r->nodes[x - r->first] = w->node;
    return x;
}

uint32_t eng_rx_leaf(struct eng_rx *r, struct eng_rx_node node)
{
    struct wanted w = {.node = node};
    w.node.hash = mix(mix(mix(mix(mix(1, node.kind), node.a), node.b), node.lo), node.hi);
    return add(r, &w);
}

/* ---- constructors ---------------------------------------------------------------------------- */

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

uint32_t eng_rx_set(struct eng_rx *r, const struct eng_bytes *s)
{
    struct wanted w = {
        .node = {.kind = ENG_RX_SET, .live = ENG_RX_LIVE, .plain = true, .least = 1, .min_len = 1},
        .set = s};
    if (!(s->bits[0] | s->bits[1] | s->bits[2] | s->bits[3])) return ENG_RX_NONE;
    w.node.hash = mix(1, ENG_RX_SET);
    for (int i = 0; i < 4; i++)
        w.node.hash = mix(w.node.hash, s->bits[i]);
    return add(r, &w);
}

uint32_t eng_rx_byte(struct eng_rx *r, uint8_t from, uint8_t to)
{
    struct eng_bytes s = {{0}};
    eng_bytes_add(&s, from, to);
    return eng_rx_set(r, &s);
}

/* a is neither a CAT nor a constant. */
static uint32_t cat_one(struct eng_rx *r, uint32_t a, uint32_t b)
{
    const struct eng_rx_node *na = eng_rx_node(r, a), *nb = eng_rx_node(r, b);
    struct wanted w = {.node = {.kind = ENG_RX_CAT, .a = a, .b = b}};
    /* x* x* is x*; every text, and then nothing or something, is every text */
    bool any_number =
        a >= ENG_RX_FIRST && na->kind == ENG_RX_REPEAT && na->lo == 0 && na->hi == ENG_RX_INF;
    if (a == ENG_RX_ALL && nb->nullable) return a;
    if ((any_number || a == ENG_RX_ALL) &&
        (a == b || (b >= ENG_RX_FIRST && nb->kind == ENG_RX_CAT && nb->a == a)))
        return b;
    w.node.nullable = na->nullable && nb->nullable;
    w.node.plain = na->plain && nb->plain;
    if (na->live == ENG_RX_LIVE && nb->live == ENG_RX_LIVE) w.node.live = ENG_RX_LIVE;
    w.node.min_len = sum(na->min_len, nb->min_len);
    w.node.least = sum(na->least, nb->least);
    w.node.hash = mix(mix(mix(1, ENG_RX_CAT), na->hash), nb->hash);
    return add(r, &w);
}

uint32_t eng_rx_cat(struct eng_rx *r, uint32_t a, uint32_t b)
{
    uint32_t few[32], *list = few, n = 0;
    size_t cap = 0;
    if (a == ENG_RX_NONE || b == ENG_RX_NONE) return ENG_RX_NONE;
    if (a == ENG_RX_EMPTY) return b;
    if (b == ENG_RX_EMPTY) return a;
    for (;; n++) { /* a's parts, then b from the last one on */
        const struct eng_rx_node *node = eng_rx_node(r, a);
        bool more = a >= ENG_RX_FIRST && node->kind == ENG_RX_CAT;
        if (n == CN_ARRAY_LEN(few) && list == few) {
            list = NULL;
            if (!cn_grow(&list, &cap, 2 * n, sizeof *list)) memcpy(list, few, sizeof few);
        } else if (list != few && cn_grow(&list, &cap, n + 1, sizeof *list)) {
            free(list);
            list = NULL;
        }
        if (!list) return eng_rx_fail(r, CN_ENOMEM);
        list[n] = more ? node->a : a;
        if (!more) break;
        a = node->b;
    }
    for (uint32_t i = n + 1; i-- && b != ENG_RX_NONE;)
        b = cat_one(r, list[i], b);
    if (list != few) free(list);
    return b;
}

uint32_t eng_rx_literal(struct eng_rx *r, const char *s, size_t n)
{
    uint32_t x = ENG_RX_EMPTY;
    while (n-- && !r->code)
        x = eng_rx_cat(r, eng_rx_byte(r, (uint8_t)s[n], (uint8_t)s[n]), x);
    return r->code ? ENG_RX_NONE : x;
}

/* Whether lo to hi times (l to h times x) is lo l to hi h times x: no number in between is left
 * out. Then it replaces lo and hi. */
static bool multiply(const struct eng_rx_node *of, uint32_t *lo, uint32_t *hi)
{
    uint64_t l = of->lo, h = of->hi, least = *lo * l, most = *hi * h;
    bool endless = *hi == ENG_RX_INF || h == ENG_RX_INF;
    bool joined = *lo == *hi ||
                  (*lo == 0 ? l <= 1 : h == ENG_RX_INF || ((uint64_t)*lo + 1) * l <= *lo * h + 1);
    if (!joined || least >= ENG_RX_INF || (!endless && most >= ENG_RX_INF)) return false;
    *lo = (uint32_t)least;
    *hi = endless ? ENG_RX_INF : (uint32_t)most;
    return true;
}

uint32_t eng_rx_repeat(struct eng_rx *r, uint32_t a, uint32_t lo, uint32_t hi)
{
    const struct eng_rx_node *na = eng_rx_node(r, a);
    struct wanted w = {.node = {.kind = ENG_RX_REPEAT, .a = a, .hi = hi}};
    struct eng_bytes all = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    if (r->code) return ENG_RX_NONE;
    if (a == ENG_RX_NONE) return lo ? ENG_RX_NONE : ENG_RX_EMPTY;
    if (hi == 0 || a == ENG_RX_EMPTY) return ENG_RX_EMPTY;
    if (lo == 1 && hi == 1) return a;
    if (a == ENG_RX_ALL) return a;
    if (na->nullable) lo = 0; /* the others may be empty */
    if (a >= ENG_RX_FIRST && na->kind == ENG_RX_REPEAT && multiply(na, &lo, &hi))
        return eng_rx_repeat(r, na->a, lo, hi);
    if (lo == 0 && hi == ENG_RX_INF && na->kind == ENG_RX_SET &&
        !memcmp(eng_rx_set_of(r, na), &all, sizeof all))
        return ENG_RX_ALL;
    w.node.lo = lo;
    w.node.nullable = lo == 0;
    w.node.plain = na->plain;
    w.node.live = lo == 0 ? ENG_RX_LIVE : na->live;
    if (lo == 0)
        w.node.min_len = 0;
    else if (na->min_len == UINT32_MAX || __builtin_mul_overflow(na->min_len, lo, &w.node.min_len))
        w.node.min_len = UINT32_MAX;
    if (__builtin_mul_overflow(na->least, lo, &w.node.least)) w.node.least = UINT32_MAX - 1;
    w.node.hash = mix(mix(mix(mix(1, ENG_RX_REPEAT), na->hash), lo), hi);
    return add(r, &w);
}

uint32_t eng_rx_not(struct eng_rx *r, uint32_t a)
{
    const struct eng_rx_node *na = eng_rx_node(r, a);
    struct wanted w = {.node = {.kind = ENG_RX_NOT, .a = a, .min_len = UINT32_MAX}};
    if (r->code) return ENG_RX_NONE;
    if (a == ENG_RX_NONE) return ENG_RX_ALL;
    if (a == ENG_RX_ALL) return ENG_RX_NONE;
    if (a >= ENG_RX_FIRST && na->kind == ENG_RX_NOT) return na->a;
    w.node.nullable = !na->nullable;
    w.node.least = na->nullable;
    if (w.node.nullable) w.node.live = ENG_RX_LIVE, w.node.min_len = 0;
    w.node.hash = mix(mix(1, ENG_RX_NOT), na->hash);
    return add(r, &w);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int by_hash(const void *a, const void *b)
{
    const struct eng_rx_arg *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->x < y->x ? -1 : x->x > y->x;
}

/* Copies the arguments, those of a nested list of the same kind in its place. */
static bool flatten(struct eng_rx *r, enum eng_rx_kind kind, const uint32_t *x, size_t n,
                    struct list *out)
{
    for (size_t i = 0; i < n; i++) {
        const struct eng_rx_node *node = eng_rx_node(r, x[i]);
        bool nested = x[i] >= ENG_RX_FIRST && node->kind == kind;
        const uint32_t *from = nested ? eng_rx_args(r, node) : &x[i];
        size_t more = nested ? node->b : 1;
        if (cn_grow(&out->v, &out->cap, out->n + more, sizeof *out->v))
            return eng_rx_fail(r, CN_ENOMEM), false;
        for (size_t k = 0; k < more; k++)
            out->v[out->n++] = (struct eng_rx_arg){eng_rx_node(r, from[k])->hash, from[k]};
    }
    return true;
}

/* The sets among the arguments become one. False: the list of an AND has no text. */
static bool join_sets(struct eng_rx *r, enum eng_rx_kind kind, struct list *l)
{
    struct eng_bytes s = {{0}};
    size_t kept = 0, n_sets = 0;
    if (kind == ENG_RX_AND) memset(&s, 0xFF, sizeof s);
    for (size_t i = 0; i < l->n; i++) {
        const struct eng_rx_node *node = eng_rx_node(r, l->v[i].x);
        if (l->v[i].x < ENG_RX_FIRST || node->kind != ENG_RX_SET) {
            l->v[kept++] = l->v[i];
            continue;
        }
        const struct eng_bytes *of = eng_rx_set_of(r, node);
        for (int k = 0; k < 4; k++)
            s.bits[k] = kind == ENG_RX_OR ? s.bits[k] | of->bits[k] : s.bits[k] & of->bits[k];
        n_sets++;
    }
    l->n = kept;
    if (!n_sets) return true;
    uint32_t x = eng_rx_set(r, &s);
    if (x == ENG_RX_NONE) return kind == ENG_RX_OR;
    /* at least one place became free */
    l->v[l->n++] = (struct eng_rx_arg){eng_rx_node(r, x)->hash, x};
    return true;
}

/* Sorted, each once, without `drop`; false if `all` is among them, which then is the result. */
static bool tidy(struct list *l, uint32_t drop, uint32_t all)
{
    size_t kept = 0;
    if (l->n) qsort(l->v, l->n, sizeof *l->v, by_hash);
    for (size_t i = 0; i < l->n; i++) {
        uint32_t x = l->v[i].x;
        if (x == all) return false;
        if (x != drop && (!kept || l->v[kept - 1].x != x)) l->v[kept++] = l->v[i];
    }
    l->n = kept;
    return true;
}

/* Whether an argument is the complement of another one: x and not x. */
static bool has_opposites(const struct eng_rx *r, const struct list *l)
{
    for (size_t i = 0; i < l->n && l->n <= 64; i++) {
        const struct eng_rx_node *node = eng_rx_node(r, l->v[i].x);
        if (l->v[i].x < ENG_RX_FIRST || node->kind != ENG_RX_NOT) continue;
        for (size_t k = 0; k < l->n; k++)
            if (l->v[k].x == node->a) return true;
    }
    return false;
}

static bool holds_empty(const struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].x == ENG_RX_EMPTY) return true;
    return false;
}

static bool all_nullable(const struct eng_rx *r, const struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (!eng_rx_nullable(r, l->v[i].x)) return false;
    return true;
}

static uint32_t list_node(struct eng_rx *r, enum eng_rx_kind kind, const struct list *l)
{
    bool is_or = kind == ENG_RX_OR;
    struct wanted w = {.args = l->v,
                       .node = {.kind = (uint8_t)kind,
                                .b = (uint32_t)l->n,
                                .nullable = !is_or,
                                .plain = is_or,
                                .least = is_or ? UINT32_MAX : 0,
                                .min_len = UINT32_MAX}};
    w.node.hash = mix(mix(1, kind), l->n);
    for (size_t i = 0; i < l->n; i++) {
        const struct eng_rx_node *node = eng_rx_node(r, l->v[i].x);
        w.node.nullable =
            is_or ? w.node.nullable || node->nullable : w.node.nullable && node->nullable;
        w.node.plain = w.node.plain && node->plain;
        if (is_or && node->live == ENG_RX_LIVE) w.node.live = ENG_RX_LIVE;
        if (is_or) w.node.min_len = CN_MIN(w.node.min_len, node->min_len);
        w.node.least =
            is_or ? CN_MIN(w.node.least, node->least) : CN_MAX(w.node.least, node->least);
        w.node.hash = mix(w.node.hash, node->hash);
    }
    /* an argument whose least length is not known yet might be shorter */
    if (!w.node.plain) w.node.min_len = UINT32_MAX;
    if (w.node.nullable) w.node.live = ENG_RX_LIVE, w.node.min_len = 0;
    return add(r, &w);
}

static uint32_t list_of(struct eng_rx *r, enum eng_rx_kind kind, const uint32_t *x, size_t n)
{
    uint32_t none = kind == ENG_RX_OR ? ENG_RX_NONE : ENG_RX_ALL;
    uint32_t all = kind == ENG_RX_OR ? ENG_RX_ALL : ENG_RX_NONE;
    struct list l = {0};
    uint32_t out = ENG_RX_NONE;
    if (r->code) return ENG_RX_NONE;
    if (flatten(r, kind, x, n, &l)) {
        if (!join_sets(r, kind, &l) || !tidy(&l, none, all) || has_opposites(r, &l))
            out = all;
        else if (kind == ENG_RX_AND && holds_empty(&l))
            out = all_nullable(r, &l) ? ENG_RX_EMPTY : ENG_RX_NONE;
        else
            out = l.n == 0 ? none : l.n == 1 ? l.v[0].x : list_node(r, kind, &l);
    }
    free(l.v);
    return r->code ? ENG_RX_NONE : out;
}

uint32_t eng_rx_or_of(struct eng_rx *r, const uint32_t *x, size_t n)
{
    return list_of(r, ENG_RX_OR, x, n);
}

uint32_t eng_rx_and_of(struct eng_rx *r, const uint32_t *x, size_t n)
{
    return list_of(r, ENG_RX_AND, x, n);
}

uint32_t eng_rx_or(struct eng_rx *r, uint32_t a, uint32_t b)
{
    return eng_rx_or_of(r, (uint32_t[]){a, b}, 2);
}

uint32_t eng_rx_and(struct eng_rx *r, uint32_t a, uint32_t b)
{
    return eng_rx_and_of(r, (uint32_t[]){a, b}, 2);
}
