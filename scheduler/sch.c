/* Set-up, submission (refusals: door.c), cancel, the iteration, statistics. */
#include "scheduler/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- new and free ---------------------------------------------------------------------------- */

static void set_defaults(struct sch_opts *o)
{
    if (!o->max_running) o->max_running = 256;
    if (!o->max_queue) o->max_queue = 1024;
    if (!o->max_queue_tokens) o->max_queue_tokens = 4194304;
    if (!o->step_target_ns) o->step_target_ns = 100000000;
    if (!o->max_choices) o->max_choices = 8;
    if (!o->max_preemptions) o->max_preemptions = 4;
    if (o->decode_cost <= 0) o->decode_cost = 2;
    if (o->block_cost <= 0) o->block_cost = 0.05;
    if (!o->quantum) o->quantum = 512;
    if (!o->stepper.depth) o->stepper.depth = 1;
}

int sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err)
{
    struct sch *s;

    if (opts->stepper.depth > SCH_MAX_DEPTH)
        return cn_fail(err, CN_ERANGE, "at most %d steps in flight", SCH_MAX_DEPTH);
    s = cn_calloc(1, sizeof(*s));
    if (!s) return cn_fail(err, CN_ENOMEM, "no memory for the scheduler");
    s->o = *opts;
    set_defaults(&s->o);
    s->free_slot = SCH_NONE;
    s->act = cn_calloc(s->o.max_running, sizeof(struct sch_tenant *));
    s->draws = cn_calloc(s->o.max_running, sizeof(*s->draws));
    s->places = cn_calloc(s->o.max_running, sizeof(*s->places));
    if (!s->act || !s->draws || !s->places) {
        sch_free(s);
        return cn_fail(err, CN_ENOMEM, "no memory for the scheduler");
    }
    for (uint32_t i = 0; i < s->o.max_running; i++)
        s->places[i].next_free = i + 1 < s->o.max_running ? i + 1 : SCH_NONE;
    for (uint32_t i = 0; i < SCH_MAX_DEPTH; i++) {
        s->flights[i] = &s->store[i];
        s->store[i].segs = cn_calloc(s->o.max_running, sizeof(struct sch_segment));
        s->store[i].recs = cn_calloc(s->o.max_running, sizeof(struct sch_rec));
        if (!s->store[i].segs || !s->store[i].recs) {
            sch_free(s);
            return cn_fail(err, CN_ENOMEM, "no memory for the scheduler");
        }
    }
    *out = s;
    return 0;
}

void sch_req_free(struct sch_req *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->spec.n_choices; i++) {
        free(r->choices[i].ids);
        sch_draft_free(r->choices[i].draft);
        sch_forced_free(&r->choices[i]);
    }
    free((void *)r->spec.prompt);
    free((void *)r->spec.marks);
    free((void *)r->spec.media);
    free(r->joined);
    free(r);
}

void sch_free(struct sch *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct sch_req *r = s->slots[i].req;

        if (!r) continue;
        sch_req_end(s, r, SCH_END_CANCELLED, CN_ECANCELLED);
        sch_req_settle(s, r);
    }
    for (uint32_t i = 0; s->o.stepper.cancel && i < s->n_flights; i++)
        s->o.stepper.cancel(s->o.stepper.self, s->flights[i]->ticket);
    while (s->n_flights)
        sch_collect(s);
    for (uint32_t i = 0; i < s->n_tenants; i++)
        free(s->tenants[i]);
    free(s->held);
    for (uint32_t i = 0; i < SCH_MAX_DEPTH; i++) {
        free(s->store[i].segs);
        free(s->store[i].recs);
        free(s->store[i].copies);
    }
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++)
        free(s->heap[k].v);
    free(s->tenants);
    free(s->slots);
    free(s->dl);
    for (uint32_t i = 0; i < s->n_models; i++)
        free(s->models[i].curve);
    free(s->models);
    free(s->guessers);
    free(s->act);
    free(s->draws);
    free(s->places);
    free(s);
}

/* ---- models and tenants ---------------------------------------------------------------------- */

int sch_model_add(struct sch *s, const struct sch_model_opts *o, uint32_t *model,
                  struct cn_error *err)
{
    uint32_t i = 0, n_groups = kv_space_n_groups(o->space);
    struct sch_model *m;

    if (o->n_more)
        return cn_fail(err, CN_EUNSUPP, "a model whose choices have %u sequences: 1 is possible",
                       o->n_more + 1);
    while (i < s->n_models && s->models[i].used)
        i++;
    if (i == SCH_MAX_MODELS || !o->max_rows || !o->max_logit_rows || !o->context)
        return cn_fail(err, CN_ERANGE,
                       "a model needs rows, logit rows and a context; at most %d models",
                       SCH_MAX_MODELS);
    if (cn_grow(&s->models, &s->models_cap, (size_t)i + 1, sizeof(*s->models)))
        return cn_fail(err, CN_ENOMEM, "no memory for a model's schedule");
    for (uint32_t k = 0; k < SCH_MAX_DEPTH; k++) {
        if (cn_grow(&s->store[k].copies, &s->store[k].copies_cap,
                    (size_t)s->o.max_running * (n_groups + 1), sizeof(struct kv_copy)))
            return cn_fail(err, CN_ENOMEM, "no memory for a model's schedule");
    }
    if (i == s->n_models) s->n_models++;
    m = &s->models[i];
    *m = (struct sch_model){.used = true,
                            .o = *o,
                            .n_groups = n_groups,
                            .block_tokens = kv_space_block_tokens(o->space),
                            .block_bytes = kv_space_block_bytes(o->space)};
    m->chunk = (uint32_t)CN_MIN((uint64_t)o->max_rows * s->o.stepper.depth, 1u << 30);
    sch_cost_init(m);
    if (sch_curve_new(s, m)) {
        m->used = false;
        return cn_fail(err, CN_ENOMEM, "no memory for a model's schedule");
    }
    *model = i;
    return 0;
}

int sch_model_drop(struct sch *s, uint32_t model)
{
    if (model >= s->n_models || !s->models[model].used) return CN_EMODEL;
    if (s->models[model].n_reqs) return CN_EBUSY;
    s->models[model].used = false;
    free(s->models[model].curve);
    s->models[model].curve = NULL;
    return 0;
}

static struct sch_tenant *tenant_new(struct sch *s, uint32_t index)
{
    struct sch_tenant *t = cn_calloc(1, sizeof(*t));

    if (!t) return NULL;
    t->index = index;
    t->opts.weight = 1;
    t->lease = SCH_NO_LEASE;
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++)
        t->heap_pos[k] = SCH_NONE;
    t->most_paused = CN_MAX((s->o.max_running + 1) / 2, (uint32_t)SCH_LEAST_PAUSED);
    s->tenants[index] = t;
    s->n_known++;
    s->parts_stale = true;
    s->weight_known += t->opts.weight;
    return t;
}

int sch_tenant_get(struct sch *s, uint32_t index, struct sch_tenant **out)
{
    if (index >= 1u << 20) return CN_ERANGE;
    if (cn_grow(&s->tenants, &s->tenants_cap, (size_t)index + 1, sizeof(*s->tenants)))
        return CN_ENOMEM;
    for (; s->n_tenants <= index; s->n_tenants++)
        if (!tenant_new(s, s->n_tenants)) return CN_ENOMEM;
    if (!s->tenants[index] && !tenant_new(s, index)) return CN_ENOMEM; /* one was ended */
    *out = s->tenants[index];
    return sch_queue_room(s);
}

int sch_tenant_set(struct sch *s, uint32_t tenant, const struct sch_tenant_opts *o)
{
    struct sch_tenant *t;
    int rc = sch_tenant_get(s, tenant, &t);

    if (!rc) rc = kv_pool_reserve(s->o.pool, tenant, o->kv_reserve_bytes);
    if (rc) return rc;
    if (t->n_open) s->weight_active -= t->opts.weight;
    s->weight_known -= t->opts.weight;
    t->opts = *o;
    if (!(t->opts.weight > 0)) t->opts.weight = 1;
    s->weight_known += t->opts.weight;
    if (t->n_open) s->weight_active += t->opts.weight;
    s->parts_stale = true;
    sch_queue_sync(s, t);
    return 0;
}

int sch_tenant_end(struct sch *s, uint32_t tenant)
{
    struct sch_tenant *t = tenant < s->n_tenants ? s->tenants[tenant] : NULL;
    int rc = t && t->n_open ? CN_EBUSY : kv_pool_tenant_end(s->o.pool, tenant);

    if (rc || !t) return rc;
    s->tenants[tenant] = NULL;
    s->n_known--;
    s->weight_known = s->n_known ? s->weight_known - t->opts.weight : 0;
    s->parts_stale = true;
    s->kept -= t->part;
    s->kept_tokens -= t->part_tokens;
    if (s->last_admitted == t) s->last_admitted = NULL;
    sch_share_unlist(t);
    free(t);
    return 0;
}

int sch_tenant_lease(struct sch *s, uint32_t tenant, uint64_t tokens)
{
    struct sch_tenant *t;
    int rc = sch_tenant_get(s, tenant, &t);

    if (rc) return rc;
    if (tokens == SCH_NO_LEASE || t->lease == SCH_NO_LEASE)
        t->lease = tokens;
    else
        t->lease = tokens < SCH_NO_LEASE - 1 - t->lease ? t->lease + tokens : SCH_NO_LEASE - 1;
    if (t->lease == 0) s->spent = true;
    return 0;
}

/* ---- submit ---------------------------------------------------------------------------------- */

static struct sch_req *req_new(const struct sch_request *spec)
{
    struct sch_req *r = cn_calloc(1, sizeof(*r) + spec->n_choices * sizeof(r->choices[0]));
    uint32_t *prompt = cn_malloc_array(spec->n_prompt, sizeof(*prompt));
    uint64_t *marks = cn_malloc_array(spec->n_marks, sizeof(*marks));

    if (!r || !prompt || !marks) {
        free(r);
        free(prompt);
        free(marks);
        return NULL;
    }
    memcpy(prompt, spec->prompt, spec->n_prompt * sizeof(*prompt));
    if (spec->n_marks) memcpy(marks, spec->marks, spec->n_marks * sizeof(*marks));
    r->spec = *spec;
    r->spec.prompt = prompt;
    r->spec.marks = marks;
    r->spec.media = NULL;
    r->heap_pos = SCH_NONE;
    r->n_open = spec->n_choices;
    for (uint32_t i = 0; i < spec->n_choices; i++) {
        r->choices[i].req = r;
        r->choices[i].index = i;
        r->choices[i].n_ids = spec->n_prompt;
    }
    return r;
}

static int take_slot(struct sch *s, struct sch_req *r)
{
    uint32_t i = s->free_slot;

    if (i == SCH_NONE) {
        if (cn_grow(&s->slots, &s->slots_cap, (size_t)s->n_slots + 1, sizeof(*s->slots)) ||
            sch_deadline_room(s, s->n_slots + 1))
            return CN_ENOMEM;
        s->slots[s->n_slots] = (struct sch_slot){.generation = 1, .next_free = SCH_NONE};
        s->free_slot = i = s->n_slots++;
    }
    s->free_slot = s->slots[i].next_free;
    s->slots[i].req = r;
    r->slot = i;
    r->id = (uint64_t)s->slots[i].generation << 32 | i;
    return 0;
}

static int accept(struct sch *s, const struct sch_request *spec, struct sch_tenant *t,
                  uint64_t max_new, uint64_t *id)
{
    struct sch_req *r = req_new(spec);

    if (!r || sch_media_copy(r, spec) || take_slot(s, r)) {
        sch_req_free(r);
        return CN_ENOMEM;
    }
    r->s = s;
    r->number = ++s->next_number;
    r->tenant = t;
    r->class = CN_MAX(spec->class, t->opts.ceiling);
    r->max_new = max_new;
    r->limit = spec->n_prompt + max_new;
    r->usage.prompt_tokens = spec->n_prompt;
    r->usage.submitted_ns = s->o.stepper.now(s->o.stepper.self);
    s->models[spec->model].n_reqs++;
    s->stats.accepted++;
    s->stats.prompt_tokens += spec->n_prompt;
    s->longest = CN_MAX(s->longest, (double)spec->n_prompt);
    sch_tenant_opened(s, t);
    sch_deadline_set(s, r);
    sch_door_enter(s, r);
    sch_queue_add(&r->choices[0], false);
    s->stale = true;
    *id = r->id;
    return 0;
}

int sch_submit(struct sch *s, const struct sch_request *r, uint64_t *id, struct cn_error *err)
{
    uint64_t max_new = 0, now = s->o.stepper.now(s->o.stepper.self);
    struct sch_tenant *t;
    int rc = 0;

    if (r->model >= s->n_models || !s->models[r->model].used)
        rc = cn_fail(err, CN_EMODEL, "the model does not exist");
    else if (r->n_choices == 0 || r->n_choices > s->o.max_choices)
        rc = cn_fail_param(err, CN_ERANGE, "n", "n is 1 to %u", s->o.max_choices);
    else if ((r->flags & SCH_ONE_STEP) && (r->n_choices > 1 || r->max_new > 1))
        rc = cn_fail_param(err, CN_ERANGE, r->n_choices > 1 ? "n" : "max_tokens",
                           "what is read in one step has one result");
    else if (r->n_prompt == 0)
        rc = cn_fail_param(err, CN_ERANGE, "prompt", "the prompt has no tokens");
    else if (r->class >= SCH_N_CLASSES)
        rc = cn_fail(err, CN_ERANGE, "the priority class does not exist");
    else if (sch_tenant_get(s, r->tenant, &t))
        rc = cn_fail(err, CN_ENOMEM, "no memory for a tenant");
    if (!rc) rc = sch_door_size(s, r, &max_new, err);
    if (!rc) rc = sch_media_check(&s->models[r->model], r, err);
    if (!rc) rc = sch_door_limits(s, r, t, err);
    if (!rc && ((r->deadline_ns && r->deadline_ns <= now) ||
                (r->queue_deadline_ns && r->queue_deadline_ns <= now)))
        rc = cn_fail(err, CN_EDEADLINE, "the deadline has passed");
    if (!rc && accept(s, r, t, max_new, id))
        rc = cn_fail(err, CN_ENOMEM, "no memory for the request");
    if (rc) s->stats.refused++;
    return rc;
}

struct sch_req *sch_find(const struct sch *s, uint64_t id)
{
    uint32_t slot = (uint32_t)id;

    if (slot >= s->n_slots || s->slots[slot].generation != id >> 32) return NULL;
    return s->slots[slot].req;
}

uint64_t sch_max_new(const struct sch *s, uint64_t id)
{
    const struct sch_req *r = sch_find(s, id);

    return r ? r->max_new : 0;
}

void sch_cancel(struct sch *s, uint64_t id)
{
    struct sch_req *r = sch_find(s, id);

    if (!r || r->cancelled) return;
    r->cancelled = true;
    r->cancel_next = s->cancels;
    if (r->cancel_next) r->cancel_next->cancel_at = &r->cancel_next;
    r->cancel_at = &s->cancels;
    s->cancels = r;
}

void sch_cancel_unlist(struct sch_req *r)
{
    if (!r->cancel_at) return;
    *r->cancel_at = r->cancel_next;
    if (r->cancel_next) r->cancel_next->cancel_at = r->cancel_at;
    r->cancel_at = NULL;
}

void sch_pause(struct sch *s, uint64_t id, bool paused)
{
    struct sch_req *r = sch_find(s, id);

    if (r) sch_queue_pause(r, paused);
}

/* ---- the iteration --------------------------------------------------------------------------- */

static void expire(struct sch *s)
{
    while (s->cancels) {
        struct sch_req *r = s->cancels;

        sch_cancel_unlist(r);
        sch_req_end(s, r, SCH_END_CANCELLED, CN_ECANCELLED);
        sch_req_settle(s, r);
    }
    while (s->n_dl && s->dl[0]->wake_ns <= s->now) {
        struct sch_req *r = s->dl[0];

        sch_deadline_clear(s, r);
        sch_req_end(s, r, SCH_END_DEADLINE, CN_EDEADLINE);
        sch_req_settle(s, r);
    }
}

/* Ends the requests of tenants whose lease of output tokens is spent (requests
 * without output continue). */
static void end_spent(struct sch *s)
{
    if (!s->spent) return;
    s->spent = false;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct sch_req *r = s->slots[i].req;

        if (!r || r->tenant->lease || (r->spec.flags & SCH_NO_OUTPUT)) continue;
        sch_req_end(s, r, SCH_END_ERROR, CN_EBUDGET);
        sch_req_settle(s, r);
    }
}

/* Nothing could be composed and nothing is in flight: force the oldest choice to run. */
static bool run_alone(struct sch *s, struct sch_flight *f)
{
    struct sch_choice *c = sch_oldest(s);
    struct sch_req *r;
    bool composed;

    if (!c) return false;
    r = c->req;
    r->in_flight++; /* it may end in there */
    composed = sch_compose_alone(s, f, c);
    r->in_flight--;
    sch_req_settle(s, r);
    return composed;
}

bool sch_iterate(struct sch *s)
{
    struct sch_flight *f = s->flights[s->n_flights];
    bool launched = false;

    s->again = false;
    s->now = s->o.stepper.now(s->o.stepper.self);
    expire(s);
    end_spent(s);
    sch_admit(s);
    s->rounds++;
    if (sch_compose(s, f) || (s->n_flights == 0 && run_alone(s, f))) launched = sch_launch(s, f);
    /* the first in flight: the tokens of the step before it were delivered */
    if (s->n_flights) sch_draw_step(s, s->flights[0]);
    if (s->n_flights == s->o.stepper.depth || (!launched && s->n_flights)) {
        sch_collect(s);
        if (s->n_flights) sch_draw_step(s, s->flights[0]);
        return true;
    }
    return launched || s->again;
}

bool sch_let_in(struct sch *s)
{
    s->now = s->o.stepper.now(s->o.stepper.self);
    if (!s->stale && !s->cancels && sch_next_wake(s) > s->now) return false;
    expire(s);
    sch_admit(s);
    return true;
}

uint64_t sch_next_wake(const struct sch *s)
{
    return s->n_dl ? s->dl[0]->wake_ns : UINT64_MAX;
}

/* ---- statistics ------------------------------------------------------------------------------ */

void sch_stats(const struct sch *s, struct sch_stats *out)
{
    *out = s->stats;
    out->in_flight = s->n_flights;
}

void sch_tenant_stats(const struct sch *s, uint32_t tenant, struct sch_tenant_stats *out)
{
    const struct sch_tenant *t = tenant < s->n_tenants ? s->tenants[tenant] : NULL;

    *out = (struct sch_tenant_stats){.lease = SCH_NO_LEASE};
    if (!t) return;
    out->counter = t->counter;
    out->served = t->served;
    out->running = t->n_running;
    out->waiting = t->n_waiting;
    out->paused = t->n_paused;
    out->prompt_computed = t->prompt_computed;
    out->cached = t->cached;
    out->generated = t->generated;
    out->lease = t->lease;
    out->saved_bytes = t->saved_bytes;
}
