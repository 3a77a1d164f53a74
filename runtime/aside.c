/* Masks that take longer than a step waits for them. See guide.h.
 *
 * The memory for one is kept with its choice, since it outlives the step that skipped the draw: a
 * bit for each id, which the guide's account pays (eng_guide_bytes). A request that ends meanwhile
 * stays until the second thread has done with its guide. */
#include "runtime/rt.h"

#include <stdlib.h>

struct rt_aside {
    struct rt_cmd cmd; /* what says that it is done */
    struct rt_mask_job job;
    uint64_t position; /* of the id that the mask is of */
    bool runs, ready;
    const uint32_t *mask; /* where job.masks points; NULL: all ids may be drawn */
    uint32_t words[];
};

int rt_aside_start(struct rt_stepper *s, struct rt_req *req, uint32_t choice, uint64_t position,
                   uint32_t n_words)
{
    struct rt_choice *c = &req->choices[choice];
    struct rt_aside *a = c->aside;
    if (!a) a = c->aside = cn_calloc(1, sizeof *a + (size_t)n_words * sizeof a->words[0]);
    if (!a) return CN_ENOMEM;
    a->cmd = (struct rt_cmd){.kind = RT_CMD_MASK, .req = req, .choice = choice};
    a->position = position;
    a->runs = true;
    a->ready = false;
    a->job = (struct rt_mask_job){.guide = req->q.guide,
                                  .tenant = req->q.tenant,
                                  .choice = choice,
                                  .n_words = n_words,
                                  .words = a->words,
                                  .masks = &a->mask,
                                  .tell = &s->group->inbox,
                                  .told = &a->cmd.msg};
    req->n_aside++;
    s->n_aside++;
    cn_metric_add(s->group->rt->metrics, CN_M_masks_aside, 1);
    rt_req_pause(req, RT_PAUSE_MASK, true);
    rt_masks_ask(&s->asides, &a->job);
    return 0;
}

void rt_aside_done(struct rt_stepper *s, struct rt_cmd *c)
{
    struct rt_req *req = c->req;
    struct rt_aside *a = req->choices[c->choice].aside;
    a->runs = false;
    a->ready = a->job.n_made > 0;
    s->n_aside--;
    rt_pace_charge(&s->group->pace, req->q.tenant, a->job.ns);
    if (--req->n_aside) return;
    if (req->over)
        rt_req_leave(req);
    else
        rt_req_pause(req, RT_PAUSE_MASK, false);
}

void rt_aside_drop(struct rt_stepper *s, struct rt_req *req)
{
    for (uint32_t i = 0; req->n_aside && i < req->q.n; i++) {
        struct rt_aside *a = req->choices[i].aside;
        if (!a || !a->runs || !rt_masks_drop(&s->asides, &a->job)) continue;
        a->runs = false;
        req->n_aside--;
        s->n_aside--;
    }
    if (req->n_aside && req->q.guide->stop) req->q.guide->stop(req->q.guide->arg);
}

void rt_aside_end(struct rt_req *req, uint32_t choice)
{
    struct rt_choice *c = &req->choices[choice];
    if (!c->aside || c->aside->runs) return;
    free(c->aside);
    c->aside = NULL;
}

void rt_aside_use(const struct rt_aside *a, uint64_t position, struct rt_mask_job *j)
{
    if (!a || !a->ready || a->position != position) return;
    j->masks[0] = a->mask;
    j->n_made = 1;
    j->asked = j->n_guesses == 0;
    if (j->asked) atomic_store(&j->done, true);
}
