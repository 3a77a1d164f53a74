/* Slabs of a pool that lends at load only: how many each group is due, and taking and giving them
 * when a space comes or goes. Cost: O(slabs x groups), never while serving. */
#include "kvpool/internal.h"

#define USUAL  1024u /* tokens of the sequences that a group's rest is for */
#define STATES 4u    /* blocks of state for each: its own, and snapshots */

static uint64_t slabs_of(const struct kv_grp *g, uint64_t n_tokens)
{
    return kv_div_up(kv_blocks_for(g, n_tokens, g->space->chunk_tokens), g->slab_blocks);
}

static uint64_t slabs_of_all(const struct kv_space *s, uint64_t n_tokens)
{
    uint64_t slabs = 0;

    for (uint32_t i = 0; i < s->n_groups; i++)
        slabs += slabs_of(&s->grp[i], n_tokens);
    return slabs;
}

/* The longest sequence, at most the one that is wanted, that takes no more than so many slabs. */
static uint64_t longest_in(const struct kv_space *s, uint64_t slabs)
{
    uint64_t lo = 0, hi = CN_MAX(s->longest, (uint64_t)1);

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;

        if (slabs_of_all(s, mid) <= slabs)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static double usual_bytes(const struct kv_grp *g)
{
    uint64_t blocks = kv_blocks_for(g, USUAL, g->space->chunk_tokens);

    return (double)g->block_bytes * (double)(g->span == KV_SPAN_STATE ? STATES : blocks);
}

/* What each group of a space is due of so many slabs. */
static void divide(struct kv_space *s, uint64_t slabs)
{
    uint64_t n_tokens = longest_in(s, slabs), left = slabs, rest;
    double all = 0;

    for (uint32_t i = 0; i < s->n_groups; i++) {
        s->grp[i].due = slabs_of(&s->grp[i], n_tokens);
        s->grp[i].least = 0;
        left -= s->grp[i].due;
        all += usual_bytes(&s->grp[i]);
    }
    rest = left;
    for (uint32_t i = 0; i < s->n_groups; i++) {
        uint64_t more = (uint64_t)((double)rest * usual_bytes(&s->grp[i]) / all);

        more = CN_MIN(more, left);
        s->grp[i].due += more;
        left -= more;
    }
    for (uint32_t i = 0; left; i = (i + 1) % s->n_groups, left--)
        s->grp[i].due++;
}

static void divide_all(struct kv_pool *p)
{
    uint32_t n = 0, k = 0;

    for (const struct kv_space *s = p->spaces; s; s = s->next)
        n++;
    for (struct kv_space *s = p->spaces; s; s = s->next, k++)
        divide(s, p->n_slabs / n + (k < p->n_slabs % n));
    for (const struct kv_seq *q = p->seqs; q; q = q->all_next) {
        for (uint32_t i = 0; i < q->space->n_groups; i++) {
            struct kv_grp *g = &q->space->grp[i];

            g->least = CN_MAX(g->least, slabs_of(g, q->max_tokens));
        }
    }
}

/* The group that lacks the largest part of what it is due; NULL: none lacks a slab. */
static struct kv_grp *poorest(struct kv_pool *p)
{
    struct kv_grp *best = NULL;
    double least = 1;

    for (struct kv_space *s = p->spaces; s; s = s->next) {
        for (uint32_t i = 0; i < s->n_groups; i++) {
            struct kv_grp *g = &s->grp[i];
            double part = g->due ? (double)g->n_slabs / (double)g->due : 1;

            if (part >= least) continue;
            least = part;
            best = g;
        }
    }
    return best;
}

int kv_deal(struct kv_pool *p)
{
    struct kv_grp *g;

    divide_all(p);
    for (uint32_t i = 0; i < p->n_slabs; i++) {
        struct kv_slab *s = &p->slabs[i];

        if (!s->grp || s->n_cached != s->n_used) continue;
        if (s->grp->n_slabs <= CN_MAX(s->grp->due, s->grp->least)) continue;
        if (kv_slab_empty(p, i, KV_NONE)) kv_slab_return(p, i);
    }
    while (p->n_slabs_free && (g = poorest(p))) {
        if (kv_slab_lend(p, g)) return CN_ENOMEM;
    }
    return 0;
}

void kv_deal_leave(struct kv_space *s)
{
    struct kv_pool *p = s->pool;

    for (uint32_t i = 0; i < p->n_slabs; i++) {
        if (p->slabs[i].grp && p->slabs[i].grp->space == s) kv_slab_return(p, i);
    }
}
