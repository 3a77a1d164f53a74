/* Prompts with media: what is refused on the caller's thread, and what their rows hold in a step. A
 * prompt of tokens alone pays nothing. */
#include "runtime/rt.h"

#include <stdlib.h>

void rt_media_free(struct rt_request *q)
{
    for (size_t i = 0; i < q->n_media; i++)
        free(q->media[i].embeds);
    free(q->media);
    free(q->turns);
}

static int check_can(const struct kr_exec_info *x, const struct rt_request *q, struct cn_error *err)
{
    bool both = false;
    for (size_t i = 0; i < q->n_media; i++)
        both |= q->media[i].both;
    if (q->n_media && !x->embeds)
        return cn_fail_param(err, CN_EUNSUPP, "prompt",
                             "this model takes no embeddings in a prompt");
    if (both && !x->both_ways)
        return cn_fail_param(err, CN_EUNSUPP, "prompt",
                             "media whose positions see each other both ways are not supported");
    if (q->turns && !x->turns)
        return cn_fail_param(err, CN_EUNSUPP, "prompt",
                             "positions of three numbers are not supported");
    if (q->embed || q->prompt_logprobs)
        return cn_fail_param(err, CN_EUNSUPP, "prompt",
                             "a prompt with media has no embedding and is not scored");
    return 0;
}

int rt_media_check(const struct kr_exec_info *x, const struct rt_request *q, struct cn_error *err)
{
    size_t at = 0;
    if (!q->n_media && !q->turns) return 0;
    int rc = check_can(x, q, err);
    for (size_t i = 0; !rc && i < q->n_media; i++) {
        const struct rt_media *m = &q->media[i];
        if (!m->n || m->first < at || m->first >= q->n_prompt || m->n > q->n_prompt - m->first)
            return cn_fail_param(
                err, CN_EINVAL, "prompt",
                "medium %zu begins at %zu: behind the end of the prompt of %zu, or "
                "in another one",
                i, m->first, q->n_prompt);
        at = m->first + m->n;
    }
    return rc;
}

int rt_media_take(struct rt_req *req)
{
    const struct rt_request *q = &req->q;
    if (!q->n_media) return 0;
    req->media = cn_malloc_array(q->n_media, sizeof *req->media);
    if (!req->media) return CN_ENOMEM;
    for (size_t i = 0; i < q->n_media; i++) {
        const struct rt_media *m = &q->media[i];
        kv_media_ids(m->digest, m->n, q->prompt + m->first);
        req->media[i] = (struct sch_media){.first = m->first, .n = m->n, .both = m->both};
    }
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void fill_one(struct kr_row *rows, const struct sch_segment *g, const struct rt_media *m,
                     uint64_t width)
{
    uint64_t from = CN_MAX((uint64_t)m->first, g->pos);
    uint64_t to = CN_MIN((uint64_t)m->first + m->n, g->pos + g->n_rows);
    for (uint64_t pos = from; pos < to; pos++) {
        struct kr_row *row = &rows[pos - g->pos];
        row->src = KR_ROW_EMBED;
        row->embed = m->embeds + (pos - m->first) * width;
        row->both_until = m->both ? (uint32_t)(m->first + m->n) : 0;
    }
}

void rt_media_rows(const struct rt_req *req, const struct sch_segment *g, struct kr_row *rows,
                   uint64_t width)
{
    for (uint32_t i = 0; i < g->n_media; i++)
        fill_one(rows, g, &req->q.media[g->media + i], width);
}

int rt_media_turns(struct rt_flight *f, uint32_t n_rows)
{
    bool any = false;
    for (uint32_t i = 0; i < f->step->n_segments; i++)
        any |= ((const struct rt_req *)f->step->segments[i].user)->q.turns != NULL;
    if (!any) return 0;
    int rc = cn_grow(&f->turns, &f->turns_cap, n_rows, sizeof *f->turns);
    for (uint32_t i = 0; !rc && i < f->step->n_segments; i++) {
        const struct sch_segment *g = &f->step->segments[i];
        const struct rt_request *q = &((const struct rt_req *)g->user)->q;
        const uint32_t *last = q->turns ? q->turns[q->n_prompt - 1] : NULL;
        for (uint32_t k = 0; last && k < g->n_rows; k++) {
            uint64_t pos = g->pos + k, behind = pos < q->n_prompt ? 0 : pos - q->n_prompt + 1;
            uint32_t *t = f->turns[g->first_row + k];
            for (int j = 0; j < 3; j++)
                t[j] = behind ? last[j] + (uint32_t)behind : q->turns[pos][j];
            f->rows[g->first_row + k].turns = t;
        }
    }
    return rc;
}
