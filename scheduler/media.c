/* Prompts that hold media: what is refused, and ranges whose rows see each other both ways, which
 * are never cut between steps. A prompt of tokens alone costs one look at its ids. */
#include "scheduler/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is refused ------------------------------------------------------------------------- */

/* The top bits of ids [from, to), all of them together. */
static uint32_t any_media(const uint32_t *ids, uint64_t from, uint64_t to)
{
    uint32_t all = 0;

    for (uint64_t i = from; i < to; i++)
        all |= ids[i];
    return all & KV_MEDIA;
}

static bool all_media(const uint32_t *ids, uint64_t from, uint64_t to)
{
    uint32_t all = KV_MEDIA;

    for (uint64_t i = from; i < to; i++)
        all &= ids[i];
    return all != 0;
}

static int check_joined(const struct sch_model *m, const struct sch_request *r,
                        const struct sch_media *x, struct cn_error *err)
{
    if (!x->both) return 0;
    if (x->n > m->o.max_rows)
        return cn_fail_param(err, CN_EWINDOW, "prompt",
                             "a medium of %" PRIu64 " positions at %" PRIu64
                             " is read in one step, "
                             "since they see each other both ways, and a step has at most %u rows",
                             x->n, x->first, m->o.max_rows);
    if (x->first + x->n >= r->n_prompt)
        return cn_fail_param(err, CN_EINVAL, "prompt",
                             "a medium whose positions see each other both ways ends the prompt: "
                             "a token must follow");
    if (r->flags & SCH_PROMPT_LOGITS)
        return cn_fail_param(err, CN_EUNSUPP, "prompt",
                             "a prompt with media whose positions see each other both ways is not "
                             "scored");
    return 0;
}

int sch_media_check(const struct sch_model *m, const struct sch_request *r, struct cn_error *err)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < r->n_media; i++) {
        const struct sch_media *x = &r->media[i];
        int rc;

        if (!x->n || x->first < at || x->first >= r->n_prompt || x->n > r->n_prompt - x->first)
            return cn_fail_param(err, CN_EINVAL, "prompt",
                                 "medium %u is at positions %" PRIu64 " to %" PRIu64
                                 ", behind the end of the prompt or in another one",
                                 i, x->first, x->first + x->n);
        if (any_media(r->prompt, at, x->first) || !all_media(r->prompt, x->first, x->first + x->n))
            return cn_fail_param(err, CN_EINVAL, "prompt", "medium %u and its items do not agree",
                                 i);
        rc = check_joined(m, r, x, err);
        if (rc) return rc;
        at = x->first + x->n;
    }
    if (any_media(r->prompt, at, r->n_prompt))
        return cn_fail_param(err, CN_EINVAL, "prompt", "an item of a medium that is not there");
    return 0;
}

int sch_media_copy(struct sch_req *r, const struct sch_request *spec)
{
    struct sch_media *media;

    if (!spec->n_media) return 0;
    r->spec.media = media = cn_malloc_array(spec->n_media, sizeof(*media));
    r->joined = cn_malloc_array(spec->n_media, sizeof(*r->joined));
    if (!media || !r->joined) return CN_ENOMEM;
    memcpy(media, spec->media, spec->n_media * sizeof(*media));
    for (uint32_t i = 0; i < spec->n_media; i++)
        if (media[i].both) r->joined[r->n_joined++] = (struct kv_range){media[i].first, media[i].n};
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

void sch_media_of(const struct sch_req *r, struct sch_segment *g)
{
    const struct sch_media *v = r->spec.media;
    uint32_t lo = 0, hi = r->spec.n_media; /* the first one that ends behind pos */

    if (g->pos >= r->spec.n_prompt) return;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (v[mid].first + v[mid].n <= g->pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (g->media = lo; lo < r->spec.n_media && v[lo].first < g->pos + g->n_rows; lo++)
        g->n_media++;
}

bool sch_media_is_next(const struct sch_choice *c, uint64_t pos)
{
    const struct sch_req *r = c->req;
    const struct kv_range *x = r->n_joined ? kv_range_cut(r->joined, r->n_joined, pos + 1) : NULL;

    return x && x->first == pos;
}

uint32_t sch_media_uncut(const struct sch_choice *c, uint64_t pos, uint32_t n, uint32_t room)
{
    const struct sch_req *r = c->req;
    const struct kv_range *x = r->n_joined ? kv_range_cut(r->joined, r->n_joined, pos + n) : NULL;

    if (!x) return n;
    if (x->first > pos) return (uint32_t)(x->first - pos);
    return x->n <= room ? (uint32_t)x->n : 0;
}
