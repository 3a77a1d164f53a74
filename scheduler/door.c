/* Submission: refusals, the quotas of the queue, and counts of waiting and started requests.
 *
 * Half of the queue is divided among all known tenants by weight, at least one request each; the
 * rest is first come, first served. A tenant below its quota is never refused because of others'
 * requests: beyond its quota a tenant is accepted only while the quotas of all others still have
 * room, and with several tenants none may have more than half. A request is in the queue until its
 * first start; preempted ones are not. */
#include "scheduler/internal.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- parts of the queue ---------------------------------------------------------------------- */

static uint64_t unused(uint64_t part, uint64_t used)
{
    return part > used ? part - used : 0;
}

/* Recomputed when a tenant or a weight is new, or a tenant has ended. */
static void divide_queue(struct sch *s)
{
    uint64_t half = ((uint64_t)s->o.max_queue + 1) / 2, least = s->n_known <= half ? 1 : 0;
    double weight = 0, n = (double)(half - least * s->n_known);

    if (!s->parts_stale) return;
    s->parts_stale = false;
    s->kept = s->kept_tokens = 0;
    for (uint32_t i = 0; i < s->n_tenants; i++)
        if (s->tenants[i]) weight += s->tenants[i]->opts.weight;
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        struct sch_tenant *t = s->tenants[i];
        double share;

        if (!t) continue;
        share = t->opts.weight / weight;
        t->part = least ? 1 + (uint64_t)(n * share) : 0;
        t->part_tokens = (uint64_t)((double)(s->o.max_queue_tokens / 2) * share);
        s->kept += unused(t->part, t->n_queued);
        s->kept_tokens += unused(t->part_tokens, t->queued_tokens);
    }
}

static void count(struct sch *s, struct sch_tenant *t, uint64_t tokens, bool in)
{
    s->kept -= unused(t->part, t->n_queued);
    s->kept_tokens -= unused(t->part_tokens, t->queued_tokens);
    if (in) {
        t->n_queued++;
        t->queued_tokens += tokens;
        s->n_queued++;
        s->queued_tokens += tokens;
    } else {
        t->n_queued--;
        t->queued_tokens -= tokens;
        s->n_queued--;
        s->queued_tokens -= tokens;
    }
    s->kept += unused(t->part, t->n_queued);
    s->kept_tokens += unused(t->part_tokens, t->queued_tokens);
}

void sch_door_enter(struct sch *s, struct sch_req *r)
{
    count(s, r->tenant, r->spec.n_prompt, true);
}

static void count_started(struct sch *s, struct sch_req *r, bool in)
{
    struct sch_tenant *t = r->tenant;
    uint32_t background = r->class == SCH_BACKGROUND;

    t->n_started = in ? t->n_started + 1 : t->n_started - 1;
    t->n_started_background =
        in ? t->n_started_background + background : t->n_started_background - background;
    if (t->opts.max_concurrent) sch_queue_sync(s, t);
}

void sch_door_start(struct sch *s, struct sch_req *r)
{
    count(s, r->tenant, r->spec.n_prompt, false);
    r->started = true;
    count_started(s, r, true);
    /* it waited when the last one started: this is the pace of the queue */
    if (s->last_start_ns && r->usage.submitted_ns <= s->last_start_ns) {
        double gap = (double)(s->now - s->last_start_ns);

        s->start_gap_ns += (gap - s->start_gap_ns) * (s->start_gap_ns > 0 ? 0.05 : 1);
    }
    s->last_start_ns = s->now;
}

void sch_door_pause(struct sch *s, struct sch_req *r, bool paused)
{
    r->tenant->n_paused = paused ? r->tenant->n_paused + 1 : r->tenant->n_paused - 1;
    s->stats.paused = paused ? s->stats.paused + 1 : s->stats.paused - 1;
    sch_queue_sync(s, r->tenant);
}

void sch_door_leave(struct sch *s, struct sch_req *r)
{
    if (r->started && r->paused) sch_door_pause(s, r, false);
    if (r->started)
        count_started(s, r, false);
    else
        count(s, r->tenant, r->spec.n_prompt, false);
}

/* With several tenants one may have half of the slots, or its share by weight or its own limit if
 * that is more. A lone tenant leaves an eighth free, and so does background work, which can be
 * preempted. */
uint32_t sch_door_places(const struct sch *s, const struct sch_tenant *t, enum sch_class class)
{
    uint32_t all = s->o.max_running, eighth = all < 8 ? 0 : all / 8, own;

    if (s->n_known == 1 || class == SCH_BACKGROUND) return all - eighth;
    own = (uint32_t)((double)(all - eighth) * t->opts.weight / s->weight_known);
    return CN_MAX(CN_MAX((all + 1) / 2, own), CN_MIN(t->opts.max_concurrent, all));
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* The most tokens of prompt and output together: by window, memory and the request. */
int sch_door_size(struct sch *s, const struct sch_request *r, uint64_t *max_new,
                  struct cn_error *err)
{
    const struct sch_model *m = &s->models[r->model];
    uint32_t rows_most = m->o.max_rows;
    uint64_t fit = kv_space_max_tokens(m->o.space, r->tenant, m->chunk), need, have, rows;

    if (r->n_prompt >= m->o.context)
        return cn_fail(err, CN_EWINDOW,
                       "the prompt has %" PRIu64 " tokens and the context window is %" PRIu64
                       " tokens, of which at least one is for the answer",
                       r->n_prompt, m->o.context);
    if (r->max_new > m->o.context - r->n_prompt)
        return cn_fail_param(err, CN_EWINDOW, "max_tokens",
                             "%" PRIu64 " prompt tokens and %" PRIu64
                             " output tokens are more than the context window of %" PRIu64,
                             r->n_prompt, r->max_new, m->o.context);
    if (r->flags & SCH_PROMPT_LOGITS) rows_most = CN_MIN(rows_most, m->o.max_logit_rows);
    if ((r->flags & SCH_ONE_STEP) && r->n_prompt > rows_most)
        return cn_fail(err, CN_EWINDOW,
                       "the prompt has %" PRIu64
                       " tokens; the model reads it in one step, and that has at most %u",
                       r->n_prompt, rows_most);
    /* the last generated token needs no block */
    rows = r->n_prompt + (r->max_new ? r->max_new - 1 : 0);
    if (rows > fit) {
        kv_space_need(m->o.space, r->tenant, rows, m->chunk, &need, &have);
        return cn_fail(err, CN_ENEVERFIT,
                       "%" PRIu64 " tokens need %" PRIu64
                       " slabs of KV memory and there are %" PRIu64 " (for %" PRIu64 " tokens)",
                       rows, need, have, fit);
    }
    *max_new = r->max_new;
    if (r->flags & SCH_ONE_STEP)
        *max_new = 1;
    else if (!r->max_new)
        *max_new = CN_MIN(m->o.context - r->n_prompt, fit - r->n_prompt + 1);
    return 0;
}

/* With several tenants one has at most half of the queue, or its own limit if that is more. */
static bool has_half(const struct sch *s, const struct sch_tenant *t)
{
    uint64_t half = ((uint64_t)s->o.max_queue + 1) / 2, own = t->opts.max_queued;

    if (own) own += t->opts.max_concurrent; /* these may start */
    return s->n_known > 1 && t->n_queued >= CN_MAX(half, own);
}

static bool more_than_half(const struct sch *s, const struct sch_tenant *t, uint64_t tokens)
{
    return s->n_known > 1 && t->queued_tokens + tokens > s->o.max_queue_tokens / 2;
}

/* Requests beyond its quota; with more tenants than entries none may have more than is left. */
static bool has_place(const struct sch *s, const struct sch_tenant *t)
{
    if (s->n_queued >= s->o.max_queue) return false;
    if (t->n_queued < t->part) return true;
    if (!t->part) return t->n_queued < s->o.max_queue - s->n_queued;
    if (has_half(s, t)) return false;
    return s->n_queued + s->kept < s->o.max_queue;
}

static bool has_place_for(const struct sch *s, const struct sch_tenant *t, uint64_t tokens)
{
    uint64_t others = s->queued_tokens + s->kept_tokens - unused(t->part_tokens, t->queued_tokens);

    if (t->n_queued == 0 || t->queued_tokens + tokens <= t->part_tokens) return true;
    if (more_than_half(s, t, tokens)) return false;
    return others <= s->o.max_queue_tokens && tokens <= s->o.max_queue_tokens - others;
}

static const char *waits(uint64_t n)
{
    return n == 1 ? "waits" : "wait";
}

/* The limit is that of the whole queue. The message gives the sum: what waits, what is reserved for
 * others, and what this request would add. */
static int queue_full(struct cn_error *err, const char *what, uint64_t adds, uint64_t waiting,
                      uint64_t own, uint64_t kept, const char *key, uint64_t most)
{
    kept = CN_MIN(kept, most - CN_MIN(most, waiting));
    return cn_fail(err, CN_EQUEUE,
                   "the server's queue is full: %" PRIu64 " %s%s %s, %" PRIu64 " of them this "
                   "tenant's, %" PRIu64 " %s kept for other tenants, and this one would add "
                   "%" PRIu64 "; the limit (%s) is %" PRIu64,
                   waiting, what, waiting == 1 ? "" : "s", waits(waiting), own, kept,
                   kept == 1 ? "is" : "are", adds, key, most);
}

int sch_door_limits(struct sch *s, const struct sch_request *r, const struct sch_tenant *t,
                    struct cn_error *err)
{
    enum sch_class class = CN_MAX(r->class, t->opts.ceiling);
    uint32_t runs = tenant_started(t, class), most = t->opts.max_concurrent;
    uint32_t may_start = most > runs ? most - runs : 0;
    char beside[64] = "";

    divide_queue(s);
    if (t->lease == 0 && !(r->flags & SCH_NO_OUTPUT))
        return cn_fail(err, CN_EBUDGET, "%s", cn_err_info(CN_EBUDGET)->text);
    if (t->opts.max_queued && t->n_queued >= (uint64_t)t->opts.max_queued + may_start) {
        if (most) snprintf(beside, sizeof beside, " beside those that may start (%u)", may_start);
        return cn_fail(err, CN_ERATE,
                       "this tenant's limit of waiting requests (max_queued) is reached: it is %u"
                       "%s, and %u %s",
                       t->opts.max_queued, beside, t->n_queued, waits(t->n_queued));
    }
    if (!has_place(s, t)) /* see has_place: without a quota it may have as much as it leaves */
        return queue_full(err, "request", 1, s->n_queued, t->n_queued,
                          t->part && !has_half(s, t) ? s->kept - unused(t->part, t->n_queued)
                                                     : s->o.max_queue,
                          "scheduler.queue_requests", s->o.max_queue);
    if (!has_place_for(s, t, r->n_prompt))
        return queue_full(err, "prompt token", r->n_prompt, s->queued_tokens, t->queued_tokens,
                          more_than_half(s, t, r->n_prompt)
                              ? s->o.max_queue_tokens
                              : s->kept_tokens - unused(t->part_tokens, t->queued_tokens),
                          "scheduler.queue_tokens", s->o.max_queue_tokens);
    return 0;
}

/* The time until an eighth of the queue has started (not just one: all refused requests come
 * again), or as long as nothing has started. Before any start was seen: until all prompts are
 * computed. */
uint32_t sch_retry_after_s(const struct sch *s)
{
    double ns = s->start_gap_ns * (1 + (double)s->n_queued / 8), sec;

    if (ns == 0) ns = (double)s->queued_tokens * s->stats.step_row_ns;
    if (s->n_queued && s->last_start_ns) ns = CN_MAX(ns, (double)(s->now - s->last_start_ns));
    sec = ns / 1e9;
    return sec < 1 ? 1 : sec >= 60 ? 60 : (uint32_t)sec + 1;
}
