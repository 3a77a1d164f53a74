/* sch_check: counts everything again and compares. For tests. */
#include "scheduler/internal.h"

#include <inttypes.h>

#define CHECK(cond, what, x, y)                                                                    \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return cn_fail(err, CN_EINTERNAL, "%s (%" PRIu64 ", %" PRIu64 ")", what,               \
                           (uint64_t)(x), (uint64_t)(y));                                          \
    } while (0)

struct sums {
    uint64_t running, waiting, tokens, choices, open, in_flight, started, queued, parked, paused;
    uint64_t saved;
};

static int check_req(const struct sch_req *r, struct sums *sum, struct cn_error *err)
{
    uint32_t running = 0, waiting = 0, open = 0;

    for (uint32_t i = 0; i < r->spec.n_choices; i++) {
        const struct sch_choice *c = &r->choices[i];

        running += c->state == CH_RUNNING;
        waiting += c->state == CH_WAITING;
        open += c->state != CH_ENDED;
        CHECK((c->seq != NULL) == (c->state == CH_RUNNING || c->park_at), "sequence and state", i,
              c->state);
        CHECK(!c->park_at || (c->state == CH_WAITING && c->resumed && !c->in_flight), "parked", i,
              c->state);
        sum->parked += c->park_at != NULL;
        sum->saved += c->kept_bytes;
        CHECK((c->kept == 0) == (c->kept_bytes == 0), "saved bytes of a choice", i, c->kept);
        CHECK(!c->in_flight || c->seq, "in flight and not running", i, c->in_flight);
        CHECK(c->n_forced <= r->limit - c->n_ids, "forced ids past the limit", i, c->n_forced);
        CHECK(c->state != CH_ENDED || !c->forced, "forced ids of a choice that ended", i, 0);
        if (!c->seq) continue;
        CHECK(kv_seq_planned(c->seq) <= c->n_ids + (c->in_flight ? CN_MAX(c->n_draft, 1u) : 1u),
              "planned too far", i, c->n_ids);
        CHECK(c->in_flight || kv_seq_planned(c->seq) == kv_seq_length(c->seq), "not run", i, 0);
    }
    CHECK(running == r->n_running && waiting == r->n_waiting && open == r->n_open,
          "choices of a request", r->n_running, r->n_waiting);
    CHECK(r->n_open || r->in_flight, "a request that did not end", r->number, 0);
    CHECK(r->siblings_out || r->spec.n_choices == 1 || !r->n_open ||
              r->choices[0].state != CH_ENDED,
          "siblings left behind", r->number, 0);
    sum->choices += running;
    sum->open++;
    sum->running += running > 0;
    sum->waiting += running == 0 && waiting > 0;
    if (running == 0 && waiting) sum->tokens += r->spec.n_prompt;
    sum->in_flight += r->in_flight;
    sum->started += r->started && r->n_open;
    sum->paused += r->started && r->n_open && r->paused;
    sum->queued += !r->started && r->n_open;
    return 0;
}

static int check_lists(const struct sch_tenant *t, struct cn_error *err)
{
    CHECK(t->unsaid_at || t->unsaid == 0, "served and in no list", t->index, 0);
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++) {
        for (const struct sch_choice *c = t->fresh[k].head; c; c = c->next) {
            CHECK(!c->req->started && !c->resumed, "a started request among the new", t->index, k);
            CHECK(!c->next || choice_older(c, c->next), "new ones out of order", t->index, k);
        }
        for (const struct sch_choice *c = t->resumed[k].head; c; c = c->next)
            CHECK(c->req->started && c->resumed, "a new request among the started", t->index, k);
        CHECK((t->heap_pos[k] != SCH_NONE) == tenant_may_start(t, k), "a tenant in the heap",
              t->index, k);
    }
    return 0;
}

/* Each running choice has a place of its own, and the others are free. */
static int check_places(const struct sch *s, struct cn_error *err)
{
    uint32_t n_free = 0;

    for (uint32_t i = s->free_place; i != SCH_NONE; i = s->places[i].next_free) {
        for (const struct sch_choice *c = s->running.head; c; c = c->next)
            CHECK(c->place != i, "a place that is free and taken", i, c->req->number);
        CHECK(++n_free <= s->o.max_running, "free places", n_free, i);
    }
    for (const struct sch_choice *c = s->running.head; c; c = c->next) {
        for (const struct sch_choice *d = c->next; d; d = d->next)
            CHECK(c->place != d->place, "a place of two choices", c->place, c->req->number);
    }
    CHECK(n_free + s->n_running == s->o.max_running, "places", n_free, s->n_running);
    return 0;
}

static int check_door(const struct sch *s, const struct sums *sum, struct cn_error *err)
{
    uint64_t queued = 0, tokens = 0, started = 0, kept = 0, kept_tokens = 0, paused = 0;
    uint64_t saved = 0;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct sch_tenant *t = s->tenants[i];
        int rc = t ? check_lists(t, err) : 0;

        if (rc) return rc;
        if (!t) continue;
        queued += t->n_queued;
        tokens += t->queued_tokens;
        started += t->n_started;
        paused += t->n_paused;
        saved += t->saved_bytes;
        kept += t->part > t->n_queued ? t->part - t->n_queued : 0;
        kept_tokens += t->part_tokens > t->queued_tokens ? t->part_tokens - t->queued_tokens : 0;
    }
    CHECK(queued == sum->queued && queued == s->n_queued, "the queue", queued, sum->queued);
    CHECK(tokens == s->queued_tokens, "tokens in the queue", tokens, s->queued_tokens);
    CHECK(started == sum->started, "started requests", started, sum->started);
    CHECK(paused == sum->paused && paused == s->stats.paused, "paused requests", paused,
          sum->paused);
    CHECK(saved == sum->saved, "saved bytes", saved, sum->saved);
    CHECK(queued <= s->o.max_queue, "more wait than may", queued, s->o.max_queue);
    CHECK(kept == s->kept && kept_tokens == s->kept_tokens, "parts", kept, kept_tokens);
    return 0;
}

int sch_check(const struct sch *s, struct cn_error *err)
{
    struct sums sum = {0};
    uint64_t open = 0, in_flight = 0, parked = 0;
    double weight = 0, all = 0, slack = 1e-6;
    uint32_t known = 0;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        int rc = s->slots[i].req ? check_req(s->slots[i].req, &sum, err) : 0;
        if (rc) return rc;
    }
    for (uint32_t i = 0; i < s->n_flights; i++)
        in_flight += s->flights[i]->step.n_segments;
    for (const struct sch_choice *c = s->parked; c; c = c->park_next)
        parked++;
    CHECK(sum.parked == parked, "parked choices", sum.parked, parked);
    CHECK(sum.choices == s->n_running, "running choices", sum.choices, s->n_running);
    CHECK(s->n_running <= s->o.max_running, "more run than may", s->n_running, s->o.max_running);
    CHECK(sum.running == s->stats.running, "running requests", sum.running, s->stats.running);
    CHECK(sum.waiting == s->stats.waiting, "waiting requests", sum.waiting, s->stats.waiting);
    CHECK(sum.tokens == s->stats.waiting_tokens, "waiting tokens", sum.tokens,
          s->stats.waiting_tokens);
    CHECK(sum.in_flight == in_flight, "segments in flight", sum.in_flight, in_flight);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct sch_tenant *t = s->tenants[i];

        if (!t) continue;
        known++;
        all += t->opts.weight;
        open += t->n_open;
        if (t->n_open) weight += t->opts.weight;
    }
    CHECK(open == sum.open, "open requests", open, sum.open);
    CHECK(known == s->n_known, "known tenants", known, s->n_known);
    CHECK(all - s->weight_known < slack && s->weight_known - all < slack, "all weights", known, 0);
    CHECK(weight - s->weight_active < 1e-6 && s->weight_active - weight < 1e-6, "weights", open, 0);
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++) {
        for (uint32_t i = 1; i < s->heap[k].n; i++)
            CHECK(s->heap[k].v[(i - 1) / 2]->counter <= s->heap[k].v[i]->counter, "heap", k, i);
    }
    if (check_places(s, err)) return CN_EINTERNAL;
    return check_door(s, &sum, err);
}
