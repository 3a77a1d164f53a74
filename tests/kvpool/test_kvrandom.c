/* Random sequences over a pool whose memory is simulated: every row written carries the hash of its
 * sequence's tokens up to it, and every step checks that each position a row can see carries the
 * right one. The state of a sequence likewise: a block of it carries the hash of all its tokens so
 * far, in every word another, and a row checks and replaces it. So a wrong table, share, copy, or a
 * block freed too early is seen at once. After each operation kv_check counts everything again.
 * A copy of each table, to which changed entries alone are copied before a step, must be the table.
 *
 *   test_kvrandom [--runs N] [--seed S]     S alone = that one run */
#include "kvpool/kvpool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQS   8
#define MAX_LEN    96
#define MAX_GROUPS 3

struct live {
    struct kv_seq *q;
    uint32_t ids[MAX_LEN];
    uint64_t n_ids; /* known items */
    uint32_t tenant, flags, salt, adapter, space;
    uint32_t in_flight[2]; /* rows in each launched step */
    bool waiting;
    uint32_t copy[MAX_GROUPS][MAX_LEN]; /* of the tables, from what is said to have changed */
};

struct world {
    uint64_t rng, seed;
    uint32_t bt, n_groups, n_spaces, n_tenants;
    struct kv_group groups[2][MAX_GROUPS];
    struct kv_pool *pool;
    struct kv_space *space[2];
    struct live seqs[MAX_SEQS];
    uint64_t *mem; /* [slab][offset in units of 64 bytes of the slab] */
    uint64_t slab_units;
    uint64_t tickets[2];
    uint32_t n_tickets, depth;
    uint64_t ticket;
    uint64_t waits;
    bool at_load;      /* slabs are lent at load only: */
    uint32_t *lent_to; /* by slab, the group that had it, from 1; 0: none was seen */
};

static struct { uint64_t waits, taken, used, rewound, entries, copied; } totals;

static uint64_t rnd(struct world *w)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return w->rng * 0x2545f4914f6cdd1dull >> 16;
}
static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(rnd(w) % n);
}

#define FAIL(w, ...)                                                                               \
    do {                                                                                           \
        printf("seed %" PRIu64 ": ", (w)->seed);                                                   \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)

/* What a row at position pos of this sequence writes. */
static uint64_t value_at(const struct live *l, uint64_t pos)
{
    uint64_t h = 1469598103934665603ull + l->space * 7919u + l->tenant * 104729u + l->salt * 31u +
                 l->adapter * 37u;

    for (uint64_t i = 0; i <= pos; i++)
        h = (h ^ (l->ids[i] + 1)) * 1099511628211ull;
    return h;
}

/* The memory of a block is block_bytes of its slab: one word per token at its start. */
static uint64_t *slot(struct world *w, const struct live *l, uint32_t g, uint32_t block, uint64_t i)
{
    uint64_t unit = w->groups[l->space][g].block_bytes / 8;
    uint64_t at = (uint64_t)(block >> KV_BLOCK_INDEX_BITS) * w->slab_units +
                  (block & ((1u << KV_BLOCK_INDEX_BITS) - 1)) * unit + i;

    return &w->mem[at];
}

static uint64_t first_seen(const struct kv_group *g, uint64_t pos)
{
    if (g->span == KV_SPAN_WINDOW) return pos + 1 > g->tokens ? pos + 1 - g->tokens : 0;
    return g->span == KV_SPAN_CHUNK ? pos / g->tokens * g->tokens : 0;
}

/* The row at pos finds the state after the row before it, and leaves its own. */
static void step_state(struct world *w, struct live *l, uint32_t g, uint32_t block, uint64_t pos)
{
    uint64_t words = w->groups[l->space][g].block_bytes / 8;

    if (block == KV_NO_BLOCK) FAIL(w, "row %" PRIu64 " has no state", pos);
    for (uint64_t i = 0; i < words; i++) {
        uint64_t *at = slot(w, l, g, block, i);

        if (pos && *at != value_at(l, pos - 1) + i)
            FAIL(w, "row %" PRIu64 " finds another state, word %" PRIu64, pos, i);
        *at = value_at(l, pos) + i;
    }
}

static void check_rows(struct world *w, struct live *l, uint64_t from, uint64_t to)
{
    const uint32_t *const *t = kv_seq_tables(l->q);

    for (uint64_t pos = from; pos < to; pos++) {
        for (uint32_t g = 0; g < w->n_groups; g++) {
            const struct kv_group *kg = &w->groups[l->space][g];

            if (kg->span == KV_SPAN_STATE) {
                step_state(w, l, g, t[g][0], pos);
                continue;
            }
            *slot(w, l, g, t[g][pos / w->bt], pos % w->bt) = value_at(l, pos);
            for (uint64_t k = first_seen(kg, pos); k <= pos; k++) {
                if (t[g][k / w->bt] == KV_NO_BLOCK)
                    FAIL(w, "row %" PRIu64 " does not see %" PRIu64, pos, k);
                if (*slot(w, l, g, t[g][k / w->bt], k % w->bt) != value_at(l, k))
                    FAIL(w, "row %" PRIu64 " sees wrong data at %" PRIu64 ", group %u", pos, k, g);
            }
        }
    }
}

/* As a device does that keeps tables: it is sent what changed, before each step that uses them. */
static void follow_tables(struct world *w, struct live *l)
{
    const uint32_t *const *t = kv_seq_tables(l->q);

    for (uint32_t g = 0; g < w->n_groups; g++) {
        bool state = w->groups[l->space][g].span == KV_SPAN_STATE;
        uint64_t n = state ? 1 : (kv_seq_planned(l->q) + w->bt - 1) / w->bt;
        uint32_t from = kv_seq_changed(l->q, g);

        for (uint64_t i = from; i < n; i++, totals.copied++)
            l->copy[g][i] = t[g][i];
        for (uint64_t i = 0; i < n; i++, totals.entries++) {
            if (t[g][i] != KV_NO_BLOCK && l->copy[g][i] != t[g][i])
                FAIL(w, "group %u: block %" PRIu64 " has changed, told from %u on", g, i, from);
        }
        if (kv_seq_changed(l->q, g) != UINT32_MAX) FAIL(w, "a change that is told twice");
    }
}

static void op_open(struct world *w, struct live *l)
{
    struct kv_seq_opts o = {0};
    uint64_t marks[4];

    memset(l, 0, sizeof(*l));
    memset(l->copy, 0xff, sizeof(l->copy));
    l->tenant = below(w, w->n_tenants);
    l->space = below(w, w->n_spaces);
    l->salt = below(w, 8) == 0;
    l->adapter = below(w, 4) == 0;
    l->n_ids = 1 + below(w, MAX_LEN / 2);
    for (uint64_t i = 0; i < l->n_ids; i++)
        l->ids[i] = below(w, 12) ? 1 : 2 + below(w, 2);
    if (below(w, 12) == 0) o.flags |= KV_SEQ_NO_READ;
    if (below(w, 12) == 0) o.flags |= KV_SEQ_NO_WRITE;
    if (below(w, 12) == 0) o.share_tokens = 1 + below(w, MAX_LEN);
    o.tenant = l->tenant;
    o.salt = l->salt;
    o.adapter = l->adapter;
    o.max_tokens = MAX_LEN;
    for (uint32_t i = 0; i < CN_ARRAY_LEN(marks); i++)
        marks[i] = (i ? marks[i - 1] : 0) + below(w, 24);
    o.marks = marks;
    o.n_marks = below(w, CN_ARRAY_LEN(marks) + 1);
    if (below(w, 12) == 0) o.flags |= KV_SEQ_NO_LEAD;
    l->flags = o.flags;
    if (kv_seq_open(w->space[l->space], &o, &l->q)) FAIL(w, "open failed");
}

static void run_copies(struct world *w, struct live *l)
{
    const struct kv_copy *c;
    uint32_t n = kv_seq_copies(l->q, &c);

    for (uint32_t i = 0; i < n; i++) {
        const struct kv_group *g = &w->groups[l->space][c[i].group];
        uint64_t words = g->span == KV_SPAN_STATE ? g->block_bytes / 8 : c[i].n_tokens;

        for (uint64_t k = 0; k < words; k++)
            *slot(w, l, c[i].group, c[i].dst, k) = *slot(w, l, c[i].group, c[i].src, k);
    }
}

static void op_launch(struct world *w)
{
    uint32_t from[MAX_SEQS], to[MAX_SEQS], planned = 0;

    if (w->n_tickets == w->depth) return;
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        struct live *l = &w->seqs[s];
        uint32_t n;

        from[s] = to[s] = 0;
        if (!l->q || below(w, 3) == 0) continue;
        if (below(w, 20) == 0) kv_seq_no_wait(l->q);
        if (kv_seq_match(l->q, l->ids, l->n_ids, NULL) == KV_WAIT) {
            w->waits++;
            continue;
        }
        from[s] = to[s] = (uint32_t)kv_seq_planned(l->q);
        if (from[s] >= l->n_ids) continue;
        n = 1 + below(w, CN_MIN((uint32_t)l->n_ids - from[s], 20u));
        if (below(w, 8)) n = (uint32_t)CN_MIN(n, kv_seq_room(l->q));
        if (kv_seq_extend(l->q, n, below(w, 8) ? l->ids + from[s] : NULL)) continue;
        to[s] = from[s] + n;
        planned++;
    }
    if (!planned) return;
    w->tickets[w->n_tickets] = ++w->ticket;
    kv_pool_launched(w->pool, w->ticket);
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        if (w->seqs[s].q && to[s] > from[s]) run_copies(w, &w->seqs[s]);
    }
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        if (!w->seqs[s].q) continue;
        if (to[s] > from[s]) follow_tables(w, &w->seqs[s]);
        w->seqs[s].in_flight[w->n_tickets] = to[s] - from[s];
        check_rows(w, &w->seqs[s], from[s], to[s]);
    }
    w->n_tickets++;
}

static void op_collect(struct world *w)
{
    if (!w->n_tickets) return;
    kv_pool_retired(w->pool, w->tickets[0]);
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        struct live *l = &w->seqs[s];

        if (!l->q) continue;
        if (l->in_flight[0]) kv_seq_commit(l->q, l->ids + kv_seq_length(l->q), l->in_flight[0]);
        l->in_flight[0] = l->in_flight[1];
        l->in_flight[1] = 0;
        /* a decoded token */
        if (kv_seq_planned(l->q) == l->n_ids && l->n_ids < MAX_LEN && below(w, 4))
            l->ids[l->n_ids++] = below(w, 12) ? 1 : 2 + below(w, 2);
    }
    w->tickets[0] = w->tickets[1];
    w->n_tickets--;
}

static void op_fork(struct world *w, struct live *l)
{
    struct live *c = NULL;
    uint64_t n = kv_seq_length(l->q);

    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        if (!w->seqs[s].q) c = &w->seqs[s];
    }
    if (!c || !n) return;
    n = 1 + below(w, (uint32_t)n);
    *c = *l;
    memset(c->copy, 0xff, sizeof(c->copy));
    c->in_flight[0] = c->in_flight[1] = 0;
    c->n_ids = CN_MIN(n + 1, l->n_ids);
    if (kv_seq_fork(l->q, l->ids, n, MAX_LEN, &c->q)) FAIL(w, "fork failed");
    if (kv_seq_length(c->q) > n) FAIL(w, "a fork that is too long");
}

static void op_truncate(struct world *w, struct live *l)
{
    uint64_t n = kv_seq_planned(l->q), len = kv_seq_length(l->q);

    if (l->in_flight[0] || l->in_flight[1] || n < 2) return;
    n = 1 + below(w, (uint32_t)n);
    if (n > w->bt && below(w, 2)) n -= n % w->bt; /* where a snapshot may be */
    if (kv_seq_truncate(l->q, n)) {
        if (kv_seq_length(l->q) != len) FAIL(w, "a failed truncate that did something");
        return;
    }
    for (uint32_t g = 0; g < w->n_groups; g++)
        totals.rewound += w->groups[l->space][g].span == KV_SPAN_STATE && n < len;
    l->n_ids = n; /* another continuation */
    if (n < MAX_LEN) l->ids[l->n_ids++] = below(w, 12) ? 1 : 2 + below(w, 2);
}

static void world_init(struct world *w, uint64_t seed)
{
    static const uint32_t windows[] = {1, 3, 4, 5, 9, 16, 33};
    struct kv_pool_opts po = {0};
    uint32_t unit;

    memset(w, 0, sizeof(*w));
    w->seed = seed;
    w->rng = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    for (int i = 0; i < 8; i++)
        rnd(w);
    w->bt = 1u << (1 + below(w, 3));
    unit = w->bt * 8;
    w->depth = 1 + below(w, 2);
    w->n_groups = 1 + below(w, MAX_GROUPS);
    w->n_spaces = 1 + below(w, 2);
    w->n_tenants = 1 + below(w, 3);
    po.slab_bytes = unit * (4 + below(w, 12));
    po.n_slabs = 4 + below(w, 60);
    po.hash_bits = below(w, 2) ? 3 : 0;
    if (below(w, 4) == 0) po.max_thin_nodes = 1 + below(w, 60);
    w->at_load = po.lend_at_load = seed % 4 == 3;
    w->lent_to = cn_calloc(po.n_slabs, sizeof *w->lent_to);
    w->slab_units = po.slab_bytes / 8;
    w->mem = cn_calloc(po.n_slabs * w->slab_units, 8);
    if (kv_pool_new(&po, &w->pool, NULL)) FAIL(w, "pool");
    for (uint32_t s = 0; s < w->n_spaces; s++) {
        struct kv_space_opts so = {.id = &s,
                                   .id_len = sizeof(s),
                                   .block_tokens = w->bt,
                                   .n_groups = w->n_groups,
                                   .groups = w->groups[s]};

        for (uint32_t g = 0; g < w->n_groups; g++) {
            w->groups[s][g].span = below(w, 2) ? KV_SPAN_ALL : 1 + below(w, 2);
            w->groups[s][g].tokens = windows[below(w, 7)]; /* of a state: how sparse */
            w->groups[s][g].block_bytes = unit * (1 + below(w, 3));
        }
        if (below(w, 2)) w->groups[s][below(w, w->n_groups)].span = KV_SPAN_STATE;
        if (kv_space_add(w->pool, &so, &w->space[s], NULL)) FAIL(w, "space");
    }
    if (below(w, 2)) kv_pool_reserve(w->pool, 0, po.slab_bytes * (po.n_slabs / 3));
}

/* No slab is used by one group after another. */
static void check_lent(struct world *w, const struct live *l)
{
    struct kv_held held[MAX_GROUPS * MAX_LEN];
    uint32_t n = kv_seq_held(l->q, 0, kv_seq_planned(l->q), NULL);

    if (n > CN_ARRAY_LEN(held)) FAIL(w, "%u blocks are held", n);
    n = kv_seq_held(l->q, 0, kv_seq_planned(l->q), held);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *to = &w->lent_to[held[i].block >> KV_BLOCK_INDEX_BITS];
        uint32_t group = 1 + l->space * MAX_GROUPS + held[i].group;

        if (*to && *to != group) FAIL(w, "a slab was lent again");
        *to = group;
    }
}

static void world_check(struct world *w, const char *after)
{
    struct cn_error err;

    for (uint32_t i = 0; w->at_load && i < MAX_SEQS; i++) {
        if (w->seqs[i].q) check_lent(w, &w->seqs[i]);
    }

    if (kv_check(w->pool, &err)) FAIL(w, "after %s: %s", after, err.message);
}

static void world_fini(struct world *w)
{
    struct kv_stats st;

    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        kv_seq_close(w->seqs[s].q);
        w->seqs[s].q = NULL;
    }
    while (w->n_tickets) {
        kv_pool_retired(w->pool, w->tickets[0]);
        w->tickets[0] = w->tickets[1];
        w->n_tickets--;
    }
    world_check(w, "the end");
    kv_pool_stats(w->pool, &st);
    if (st.blocks[KV_FILLING] || st.blocks[KV_READY] || st.blocks[KV_COPYING] || st.n_seqs)
        FAIL(w, "blocks in use at idle");
    totals.waits += w->waits;
    totals.taken += st.snapshots_taken;
    totals.used += st.snapshots_used;
    kv_pool_make_room(w->pool, 0, true);
    kv_pool_stats(w->pool, &st);
    if (st.n_nodes) FAIL(w, "nodes left in an empty pool");
    if (st.n_slabs_free != (w->at_load ? 0 : st.n_slabs)) FAIL(w, "slabs are lent");
    kv_pool_free(w->pool);
    free(w->lent_to);
    free(w->mem);
}

static void run(uint64_t seed)
{
    static const char *names[] = {"open", "launch", "collect", "close", "fork", "truncate"};
    struct world w;
    uint32_t n;

    world_init(&w, seed);
    n = 20 + below(&w, 60);
    for (uint32_t i = 0; i < n; i++) {
        struct live *l = &w.seqs[below(&w, MAX_SEQS)];
        uint32_t op = below(&w, 12);

        if (op < 2 && !l->q) {
            op_open(&w, l);
            op = 0;
        } else if (op < 6) {
            op_launch(&w);
            op = 1;
        } else if (op < 9) {
            op_collect(&w);
            op = 2;
        } else if (op == 9 && l->q) {
            if (below(&w, 6))
                kv_seq_close(l->q);
            else
                kv_seq_close_failed(l->q);
            memset(l, 0, sizeof(*l));
            op = 3;
        } else if (op == 10 && l->q) {
            op_fork(&w, l);
            op = 4;
        } else if (l->q) {
            op_truncate(&w, l);
            op = 5;
        } else {
            continue;
        }
        if (below(&w, 4) == 0 || i < 10) world_check(&w, names[op]);
    }
    world_fini(&w);
}

int main(int argc, char **argv)
{
    uint64_t runs = 2000, seed = 1;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--runs")) runs = strtoull(argv[i + 1], NULL, 0);
        if (!strcmp(argv[i], "--seed")) {
            seed = strtoull(argv[i + 1], NULL, 0);
            runs = 1;
        }
    }
    for (uint64_t i = 0; i < runs; i++)
        run(seed + i);
    printf("%" PRIu64 " random runs: %" PRIu64 " waits, %" PRIu64 " snapshots, used %" PRIu64
           " times, %" PRIu64 " states rewound, %" PRIu64 " of %" PRIu64 " entries copied\n",
           runs, totals.waits, totals.taken, totals.used, totals.rewound, totals.copied,
           totals.entries);
    return 0;
}
