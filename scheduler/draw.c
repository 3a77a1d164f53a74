/* The draws of a step, the tokens that they give, and the ids that are put out without a draw.
 *
 * Ids that were forced wait in the choice until a token of it is due; then they go to on_token one
 * after the other and are known ids, as those of a prompt are: their rows are computed later, and
 * only the last one is drawn. A row in flight whose draw is about a position that is known by then
 * stays valid, and its result is not looked at. */
#include "scheduler/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is drawn --------------------------------------------------------------------------- */

static struct sch_draw draw_of(const struct sch_flight *f, uint32_t i)
{
    const struct sch_segment *g = &f->segs[i];
    const struct sch_choice *c = f->recs[i].choice;
    uint64_t pos = g->pos + g->n_rows - g->n_sample + 1;
    struct sch_draw d = {.segment = i, .only = SCH_NO_ID, .ended = !c};

    if (c && pos < c->n_ids)
        d.only = c->ids[pos];
    else if (c && f->recs[i].forced)
        d.only = c->forced[c->forced_at];
    return d;
}

void sch_draw_step(struct sch *s, struct sch_flight *f)
{
    uint32_t n = 0;
    int rc;

    if (f->drawn) return;
    f->drawn = true;
    for (uint32_t i = 0; i < f->step.n_segments; i++) {
        struct sch_rec *rec = &f->recs[i];

        if (!f->segs[i].n_sample) continue;
        rec->forced = rec->choice && rec->choice->n_forced > 0;
        s->draws[n++] = draw_of(f, i);
    }
    if (!s->o.stepper.draw) return;
    rc = s->o.stepper.draw(s->o.stepper.self, f->ticket, s->draws, n);
    for (uint32_t i = 0; rc && i < f->step.n_segments; i++) {
        if (f->recs[i].choice) sch_req_end(s, f->recs[i].req, SCH_END_ERROR, rc);
    }
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct sch_rec *rec = &f->recs[s->draws[i].segment];

        rec->skipped = s->draws[i].skipped && rec->choice && s->draws[i].only == SCH_NO_ID;
        if (rec->skipped) rec->choice->skipped = true;
    }
}

/* ---- forced ids ------------------------------------------------------------------------------ */

void sch_forced_free(struct sch_choice *c)
{
    free(c->forced);
    c->forced = NULL;
    c->forced_cap = 0;
    c->forced_at = c->n_forced = 0;
}

int sch_force(struct sch *s, uint64_t id, uint32_t choice, const uint32_t *ids, uint32_t n)
{
    struct sch_req *r = sch_find(s, id);
    struct sch_choice *c;
    uint64_t room;

    if (!r) return CN_ENOENT;
    if (choice >= r->spec.n_choices) return CN_ERANGE;
    c = &r->choices[choice];
    if (c->state == CH_ENDED) return CN_ENOENT;
    room = r->limit - c->n_ids - c->n_forced;
    n = (uint32_t)CN_MIN((uint64_t)n, room);
    if (n == 0) return 0;
    if (c->forced_at) memmove(c->forced, c->forced + c->forced_at, c->n_forced * sizeof(*ids));
    c->forced_at = 0;
    if (cn_grow(&c->forced, &c->forced_cap, (size_t)(c->n_forced + n), sizeof(*ids)))
        return CN_ENOMEM;
    memcpy(c->forced + c->n_forced, ids, n * sizeof(*ids));
    c->n_forced += n;
    return 0;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

void sch_commit_rows(struct sch *s, struct sch_choice *c, uint64_t pos, uint32_t n)
{
    struct sch_req *r = c->req;
    uint64_t to = pos + n, from = CN_MIN(CN_MAX(pos, c->high), to);
    uint64_t prompt_to = CN_MIN(to, r->spec.n_prompt);
    uint64_t prompt = prompt_to > from ? prompt_to - from : 0;

    kv_seq_commit(c->seq, c->ids + pos, n);
    r->usage.computed_tokens += to - from;
    r->usage.recomputed_tokens += from - pos;
    s->stats.computed += to - from;
    s->stats.recomputed += from - pos;
    s->stats.prompt_computed += prompt;
    r->tenant->prompt_computed += prompt;
    c->high = CN_MAX(c->high, to);
    uint64_t cached = CN_MIN(kv_seq_cached(c->seq), r->spec.n_prompt);
    if (cached > c->shared) {
        r->usage.written_tokens += cached - c->shared;
        s->stats.written += cached - c->shared;
        c->shared = cached;
    }
    c->scored = CN_MAX(c->scored, to);
}

/* A token of r's is about to be put out; false when its tenant has none left: then r has ended. */
static bool take_lease(struct sch *s, struct sch_req *r)
{
    struct sch_tenant *t = r->tenant;

    if (t->lease == SCH_NO_LEASE || (r->spec.flags & SCH_NO_OUTPUT)) return true;
    if (t->lease == 0) {
        sch_req_end(s, r, SCH_END_ERROR, CN_EBUDGET);
        return false;
    }
    if (--t->lease == 0) s->spent = true;
    return true;
}

/* row: NULL of a forced one. False: it was not put out. */
static bool deliver(struct sch *s, struct sch_choice *c, uint32_t token,
                    const struct sch_row_result *row)
{
    struct sch_req *r = c->req;
    struct sch_token t = {.request = r->id,
                          .user = r->spec.user,
                          .choice = c->index,
                          .index = choice_generated(c),
                          .position = c->n_ids,
                          .token = token,
                          .forced = !row,
                          .drawn = row ? row->drawn : NULL};
    enum sch_verdict v;

    if (!take_lease(s, r)) return false;
    c->ids[c->n_ids++] = token;
    r->usage.generated_tokens++;
    r->tenant->generated++;
    s->stats.generated++;
    s->stats.forced += !row;
    if (!r->usage.first_token_ns) r->usage.first_token_ns = s->now;
    v = s->o.cb.on_token(s->o.cb.arg, &t);
    if (v == SCH_STOP)
        sch_choice_stop(s, c, SCH_END_STOP, false);
    else if (c->n_ids == r->limit)
        sch_choice_stop(s, c, SCH_END_LENGTH, false);
    return true;
}

static void deliver_forced(struct sch *s, struct sch_choice *c)
{
    for (uint32_t i = 0; i < SCH_FORCE_BURST && c->n_forced && c->state == CH_RUNNING; i++) {
        if (c->req->cancelled) return;
        c->n_forced--;
        deliver(s, c, c->forced[c->forced_at++], NULL);
    }
    if (!c->n_forced) sch_forced_free(c);
}

/* Hands out the draws up to the first that is not the draft behind it. A row of a draft counts as
 * computed once its token has come true; the rows behind are forgotten. */
static void take_drawn(struct sch *s, struct sch_choice *c, const struct sch_segment *g,
                       const struct sch_row_result *rows)
{
    uint64_t pos = g->pos + g->n_rows - g->n_sample + 1; /* of the first draft */

    for (uint32_t i = 0;; i++) {
        bool right = i + 1 < g->n_sample && c->ids[pos + i] == rows[i].token;

        if (!deliver(s, c, rows[i].token, &rows[i])) break;
        if (right) {
            s->stats.drafts_right++;
            c->req->usage.right_rows++;
        }
        if (!right || c->n_forced || c->state != CH_RUNNING) break;
        if (rows[i + 1].status == CN_ECANCELLED) break;
        if (rows[i + 1].status) {
            sch_req_end(s, c->req, SCH_END_ERROR, rows[i + 1].status);
            break;
        }
        sch_commit_rows(s, c, pos + i, 1);
        sch_charge(s, c->req->tenant, s->o.decode_cost);
    }
}

void sch_take_nothing(struct sch *s, struct sch_choice *c, const struct sch_segment *g)
{
    bool whole = c->req->spec.flags & SCH_ONE_STEP; /* all of its rows again */
    uint32_t lost = whole ? g->n_rows : 1;

    c->skipped = false;
    s->stats.wasted += lost;
    c->req->usage.unseen_rows += lost;
    s->stats.drafted += g->n_sample - 1;
    c->req->usage.drafted_rows += g->n_sample - 1;
    sch_commit_rows(s, c, g->pos, whole ? 0 : g->n_rows - g->n_sample);
    if (!kv_seq_truncate(c->seq, kv_seq_length(c->seq))) return;
    /* the recurrent state includes those rows and cannot be rewound: the choice starts again from
     * its last snapshot */
    sch_choice_close(s, c, false);
    sch_queue_add(c, true);
    s->again = true;
}

void sch_take_tokens(struct sch *s, const struct sch_rec *rec, const struct sch_segment *g,
                     const struct sch_row_result *rows)
{
    struct sch_choice *c = rec->choice;

    s->stats.drafted += g->n_sample - 1;
    c->req->usage.drafted_rows += g->n_sample - 1;
    if (g->pos + g->n_rows - g->n_sample + 1 < c->n_ids) return; /* it was forced since */
    if (!rec->forced) take_drawn(s, c, g, rows);
    if (c->state == CH_RUNNING) deliver_forced(s, c);
    if (c->state == CH_RUNNING && g->n_sample > 1) kv_seq_truncate(c->seq, kv_seq_length(c->seq));
}
