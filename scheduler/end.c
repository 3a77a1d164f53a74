/* Launch and collect, and every way a choice or a request ends.
 *
 * A request's on_end comes when all its choices have ended and no step with rows of it is in
 * flight; its memory goes right after. */
#include "scheduler/internal.h"

#include <stdlib.h>

/* ---- ending ---------------------------------------------------------------------------------- */

void sch_seq_close(struct sch_choice *c, bool failed)
{
    if (failed)
        kv_seq_close_failed(c->seq);
    else
        kv_seq_close(c->seq);
    c->seq = NULL;
    sch_draft_free(c->draft); /* it gets a new one if it decodes again */
    c->draft = NULL;
}

void sch_choice_close(struct sch *s, struct sch_choice *c, bool failed)
{
    cn_assert(c->state == CH_RUNNING);
    sch_seq_close(c, failed);
    c->evict = c->yields = c->planned_now = c->skipped = false;
    c->n_draft = 0;
    for (uint32_t k = 0; k < SCH_MAX_DEPTH; k++) {
        struct sch_flight *f = s->flights[k];

        for (uint32_t i = 0; i < f->step.n_segments; i++) {
            if (f->recs[i].choice == c) f->recs[i].choice = NULL;
        }
    }
    c->in_flight = 0;
    sch_running_out(s, c);
}

static void release_siblings(struct sch_req *r)
{
    if (r->siblings_out) return;
    r->siblings_out = true;
    for (uint32_t i = 1; i < r->spec.n_choices; i++) {
        if (r->choices[i].state == CH_NEW) sch_queue_add(&r->choices[i], true);
    }
}

void sch_choice_stop(struct sch *s, struct sch_choice *c, enum sch_end reason, bool failed)
{
    struct sch_req *r = c->req;

    if (c->state == CH_ENDED) return;
    if (c->state == CH_RUNNING) sch_choice_close(s, c, failed);
    if (c->seq) sch_parked_close(s, c, failed);
    if (c->state == CH_WAITING) sch_queue_remove(c);
    c->state = CH_ENDED;
    if (s->solo == c) s->solo = NULL;
    sch_forget_kept(c);
    sch_forced_free(c);
    if (reason <= SCH_END_LENGTH && c->index == 0) release_siblings(r);
    if (--r->n_open == 0) {
        if (r->code == 0) r->reason = reason;
        sch_door_leave(s, r);
    }
    s->again = true;
    s->o.cb.on_choice_end(s->o.cb.arg, r->id, r->spec.user, c->index, reason);
}

/* Ends all of it; on_end follows in sch_req_settle. */
void sch_req_end(struct sch *s, struct sch_req *r, enum sch_end reason, int code)
{
    if (r->n_open == 0) return;
    r->reason = reason;
    r->code = code;
    for (uint32_t i = 0; i < r->spec.n_choices; i++)
        sch_choice_stop(s, &r->choices[i], reason, code == CN_ENUMERIC);
}

static void count_end(struct sch *s, struct sch_req *r)
{
    if (r->reason == SCH_END_CANCELLED) {
        s->stats.ended_cancelled++;
        s->stats.cancelled_tokens += r->usage.generated_tokens;
    } else if (r->code) {
        s->stats.ended_error++;
    } else {
        s->stats.ended_ok++;
    }
}

static void forget(struct sch *s, struct sch_req *r)
{
    struct sch_slot *slot = &s->slots[r->slot];

    sch_cancel_unlist(r);
    sch_deadline_clear(s, r);
    slot->req = NULL;
    slot->generation++;
    slot->next_free = s->free_slot;
    s->free_slot = r->slot;
    s->models[r->spec.model].n_reqs--;
    sch_tenant_closed(s, r->tenant);
}

void sch_req_settle(struct sch *s, struct sch_req *r)
{
    if (r->n_open || r->in_flight || r->ended) return;
    r->ended = true;
    r->usage.ended_ns = s->now;
    count_end(s, r);
    forget(s, r);
    s->o.cb.on_end(s->o.cb.arg, r->id, r->spec.user, r->reason, r->code, &r->usage);
    sch_req_free(r);
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* The flight has ended: its requests no longer have rows in it. */
static void release(struct sch *s, struct sch_flight *f)
{
    uint32_t n = f->step.n_segments;

    f->step.n_segments = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sch_req *r = f->recs[i].req;

        r->in_flight--;
        sch_req_settle(s, r);
    }
}

static void launch_failed(struct sch *s, struct sch_flight *f, int rc)
{
    uint32_t n = f->step.n_segments;

    for (uint32_t i = 0; i < n; i++)
        f->recs[i].req->in_flight++; /* keeps them until all are marked */
    for (uint32_t i = 0; i < n; i++)
        sch_req_end(s, f->recs[i].req, SCH_END_ERROR, rc);
    release(s, f);
    s->again = true;
}

bool sch_launch(struct sch *s, struct sch_flight *f)
{
    int rc;

    f->launched_ns = s->o.stepper.now(s->o.stepper.self);
    rc = s->o.stepper.launch(s->o.stepper.self, &f->step, &f->ticket);
    if (rc) {
        launch_failed(s, f, rc);
        return false;
    }
    f->number = ++s->n_launched;
    kv_pool_launched(s->o.pool, f->number);
    s->n_flights++;
    s->stats.steps++;
    s->stats.rows += f->step.n_rows;
    for (uint32_t i = 0; i < f->step.n_segments; i++) {
        const struct sch_segment *g = &f->segs[i];
        struct sch_choice *c = f->recs[i].choice;

        c->in_flight++;
        c->req->in_flight++;
        if (!c->req->usage.first_step_ns) c->req->usage.first_step_ns = f->launched_ns;
        if (g->n_sample) {
            c->last_ticket = f->ticket;
            c->last_row = g->first_row + g->n_rows - 1; /* of no use behind drafts */
        }
    }
    return true;
}

/* ---- collect --------------------------------------------------------------------------------- */

/* One segment's rows are there. rows: the results of its sampled ones, or NULL. */
static void take_segment(struct sch *s, const struct sch_rec *rec, const struct sch_segment *g,
                         const struct sch_row_result *rows)
{
    struct sch_choice *c = rec->choice;
    struct sch_req *r = c->req;

    c->n_draft = 0;
    if (rec->skipped) {
        sch_take_nothing(s, c, g);
        if (c->state == CH_RUNNING && c->evict && c->in_flight == 0) sch_preempt(s, c);
        return;
    }
    if (rows && rows->status) {
        sch_req_end(s, r, SCH_END_ERROR, rows->status);
        return;
    }
    sch_commit_rows(s, c, g->pos, g->n_rows - (rows ? g->n_sample - 1 : 0));
    if (c->index == 0 && kv_seq_length(c->seq) + 1 >= r->spec.n_prompt) release_siblings(r);
    if (rows) sch_take_tokens(s, rec, g, rows);
    if (c->state == CH_RUNNING && c->evict && c->in_flight == 0) sch_preempt(s, c);
}

static void learn_cost(struct sch *s, const struct sch_flight *f)
{
    /* with two in flight a step begins when the one before it ends */
    uint64_t begin = CN_MAX(f->launched_ns, s->stats.last_progress_ns);
    struct sch_model *m = &s->models[f->step.model];

    s->stats.last_step_ns = s->now - begin;
    s->stats.last_progress_ns = s->now;
    if (s->o.shared) sch_share_step(s, s->stats.last_step_ns);
    sch_cost_learn(m, f->step.n_rows, f->n_decode, (double)s->stats.last_step_ns);
    sch_cost_credit(m, f->n_decode ? f->step.n_rows - f->n_decode : 0, s->now);
    if (f->step.n_sample == f->step.n_rows)
        sch_curve_learn(m, f->step.n_segments, f->step.n_rows, (double)s->stats.last_step_ns);
    s->stats.step_base_ns = m->cost.base_ns;
    s->stats.step_row_ns = m->cost.row_ns;
}

static struct sch_flight *pop_flight(struct sch *s)
{
    struct sch_flight *f = s->flights[0];

    for (uint32_t i = 0; i + 1 < SCH_MAX_DEPTH; i++)
        s->flights[i] = s->flights[i + 1];
    s->flights[SCH_MAX_DEPTH - 1] = f; /* stays where ended choices are taken off */
    s->n_flights--;
    return f;
}

static void count_unseen(struct sch *s, struct sch_req *r, const struct sch_segment *g)
{
    uint32_t rows = g->n_rows - (g->n_sample ? g->n_sample - 1 : 0);

    s->stats.wasted += rows;
    r->usage.unseen_rows += rows;
}

/* Waits for the oldest step and hands out what it gave. */
void sch_collect(struct sch *s)
{
    struct sch_step_result res = {0};
    int rc = s->o.stepper.collect(s->o.stepper.self, s->flights[0]->ticket, &res);
    struct sch_flight *f = pop_flight(s);
    uint32_t k = 0, n = f->step.n_segments;

    s->now = s->o.stepper.now(s->o.stepper.self);
    if (!rc && res.n_rows != f->step.n_sample) rc = CN_EINTERNAL;
    if (!rc) learn_cost(s, f);
    kv_pool_retired(s->o.pool, f->number);
    for (uint32_t i = 0; i < n; i++) {
        if (f->recs[i].choice) f->recs[i].choice->in_flight--;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct sch_segment *g = &f->segs[i];
        const struct sch_row_result *rows = !rc && g->n_sample ? &res.rows[k] : NULL;
        struct sch_rec rec = f->recs[i];

        k += g->n_sample;
        f->recs[i].choice = NULL;
        if (!rec.choice)
            count_unseen(s, rec.req, g);
        else if (rc)
            sch_req_end(s, rec.req, SCH_END_ERROR, rc);
        else
            take_segment(s, &rec, g, rows);
    }
    release(s, f);
}
