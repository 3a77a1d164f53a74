/* draw: what follows the forward pass of a step: its rows of logits become ids, some rows at a time
 * where there are more than are in memory at once. Engine thread outside, all threads inside. */
#include "kernels/cpu/cpu.h"

struct drawing {
    struct kr_cpu_exec *x;
    const struct kr_draw *draws;
};

static int draw_one(struct kr_draw_state *state, const struct kr_draw *d, uint32_t i, float *z,
                    struct kr_drawn *out)
{
    const uint32_t *mask = d->masks ? d->masks[i] : NULL;
    int rc = kr_draw_row(state, z, d->position + i, mask, out);
    return rc ? rc : kr_draw_state_accept(state, out->id);
}

/* One draw and those of its guesses, as long as they come true. */
static void work(void *arg, uint32_t i)
{
    const struct drawing *w = arg;
    const struct kr_draw *d = &w->draws[i];
    struct kr_cpu_exec *x = w->x;
    size_t n_vocab = x->base.info.n_vocab;
    float *z = kr_cpu_logits(x) + (d->row - x->first_logit) * n_vocab;
    struct kr_result *r = &x->results[d->row];
    if (!d->state) {
        r->status = kr_draw_score(x->dev->draw, z, n_vocab, d->score, d->n_top, &r->drawn);
        return;
    }
    for (uint32_t k = 0; k <= d->n_guesses; k++, z += n_vocab) {
        r[k].status = draw_one(d->state, d, k, z, &r[k].drawn);
        if (r[k].status || k == d->n_guesses || r[k].drawn.id != d->guesses[k]) break;
    }
}

/* How many of the draws have their rows within max_logit_rows from the first one's. */
static uint32_t at_once(const struct kr_cpu_exec *x, const struct kr_draw *draws, uint32_t n)
{
    uint32_t k = 0, end = draws[0].row + x->base.opts.max_logit_rows;
    while (k < n && draws[k].row + draws[k].n_guesses < end)
        k++;
    return k;
}

int kr_cpu_draw(struct kr_exec *base, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    if (!ticket || ticket != x->base.ticket || x->draw_rc != CN_EINVAL)
        return cn_fail(err, CN_EINVAL, "there is no step %llu to draw", (unsigned long long)ticket);
    x->draw_rc = 0;
    for (uint32_t i = 0; i < x->base.n_wanted; i++)
        x->results[i].status = CN_ECANCELLED;
    for (uint32_t k; n; draws += k, n -= k) {
        uint32_t first = draws[0].row;
        k = at_once(x, draws, n);
        uint32_t end = draws[k - 1].row + draws[k - 1].n_guesses + 1;
        if (end > x->first_logit + x->now.n_logits) kr_cpu_make_logits(x, first, end - first);
        kr_device_parallel(&x->dev->base, k, work, &(struct drawing){x, draws});
    }
    return 0;
}

int kr_cpu_collect_drawn(struct kr_exec *base, uint64_t ticket, const struct kr_result **out,
                         struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    if (!ticket || ticket != x->base.ticket || x->draw_rc)
        return cn_fail(err, CN_EINVAL, "there is no drawn step %llu", (unsigned long long)ticket);
    *out = x->results;
    return 0;
}
