/* Admission and preemption: which waiting choice starts, who gives blocks back.
 *
 * The tenant with the lowest counter goes first; within a tenant preempted choices, then the one
 * with the longest cached prefix. A tenant that already runs as many requests as it may is in the
 * heap only with choices that it started before. A tenant's share of the pool is its reserve or its
 * part by weight among the busy tenants, whichever is larger. The tenant furthest over its share
 * gives blocks back first. */
#include "scheduler/internal.h"

#include <stdlib.h>
#include <string.h>

/* How often a request may be overtaken before room is kept for it: one within its tenant's share,
 * and one beyond it. */
#define MAX_OVERTAKEN 16
#define MAX_BEYOND    256
#define LOOK_BEHIND   8 /* tenants that are tried if the first one's choice has no room */
/* Cost that a tenant is served in a turn, if there are fewer slots than tenants. */
#define TURN_COST 128

/* ---- shares and victims ---------------------------------------------------------------------- */

/* Bytes in use beyond the tenant's share; negative: it may take more. */
double sch_over_share(const struct sch *s, const struct sch_tenant *t)
{
    struct kv_tenant_stats ts;
    struct kv_stats ps;
    double share;

    kv_tenant_stats(s->o.pool, t->index, &ts);
    kv_pool_stats(s->o.pool, &ps);
    share = (double)(ps.n_slabs * ps.slab_bytes) * t->opts.weight /
            CN_MAX(s->weight_active, t->opts.weight);
    return (double)(ts.held_bytes - ts.cached_bytes) - CN_MAX(share, (double)ts.reserve_bytes);
}

struct sch_choice *sch_oldest(const struct sch *s)
{
    struct sch_choice *best = NULL;

    for (struct sch_choice *c = s->running.head; c; c = c->next) {
        if (!c->req->paused && (!best || choice_older(c, best))) best = c;
    }
    return best;
}

/* Choices that give way to every other one come first: background ones, then paused ones. A choice
 * that only waits for its next turn ranks like a running one. */
enum { RANK_SAME, RANK_PAUSED, RANK_BACKGROUND };

static int rank(const struct sch_choice *v, const struct sch_choice *c)
{
    if (v->req->class == SCH_BACKGROUND && c->req->class != SCH_BACKGROUND) return RANK_BACKGROUND;
    return v->req->paused || (v->state == CH_WAITING && !v->yielded) ? RANK_PAUSED : RANK_SAME;
}

/* Walks over the running choices, then over the parked ones. */
static struct sch_choice *next_victim(const struct sch *s, const struct sch_choice *v)
{
    if (v->state == CH_WAITING) return v->park_next;
    return v->next ? v->next : s->parked;
}

static struct sch_choice *victims_from(const struct sch *s)
{
    return s->running.head ? s->running.head : s->parked;
}

/* place: only those that have one. */
static struct sch_choice *victim(struct sch *s, struct sch_choice *c, bool force, bool place)
{
    struct sch_choice *oldest = sch_oldest(s), *best = NULL;
    double best_over = 0;
    int best_rank = 0;

    for (struct sch_choice *v = victims_from(s); v; v = next_victim(s, v)) {
        int r = rank(v, c);
        double over;

        if (v->state == CH_WAITING && (v == c || place)) continue;
        /* never the oldest, so that some work always ends, unless that is background work */
        if (v == oldest && r != RANK_BACKGROUND) continue;
        if (v->planned_now || v->evict || (v == c && v->in_flight)) continue;
        if (!force && !r && v->preemptions >= s->o.max_preemptions) continue;
        if (!force && c->req->class == SCH_BACKGROUND && v->req->class != SCH_BACKGROUND) continue;
        over = sch_over_share(s, v->req->tenant);
        if (best) {
            if (r != best_rank) {
                if (r < best_rank) continue;
            } else if (over != best_over) {
                if (over < best_over) continue;
            } else if (choice_older(v, best)) {
                continue;
            }
        }
        best = v;
        best_over = over;
        best_rank = r;
    }
    return best;
}

struct sch_choice *sch_victim(struct sch *s, struct sch_choice *c, bool force)
{
    return victim(s, c, force, false);
}

void sch_preempt(struct sch *s, struct sch_choice *c)
{
    bool parked = c->state == CH_WAITING;

    cn_assert(c->in_flight == 0);
    sch_save(s, c);
    if (parked)
        sch_parked_close(s, c, false);
    else
        sch_choice_close(s, c, false);
    if (!c->displaced) c->preemptions++;
    c->displaced = false;
    c->req->usage.preemptions++;
    s->stats.preemptions++;
    if (!parked) sch_queue_add(c, true);
    s->again = true;
}

void sch_evict(struct sch *s, struct sch_choice *v)
{
    if (v->in_flight)
        v->evict = true;
    else
        sch_preempt(s, v);
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Tokens that c should have room for when it starts: its ids so far, and some to grow. Each
 * preemption makes the room to grow four times as large, so that it does not thrash. */
static uint64_t wanted_tokens(const struct sch_choice *c)
{
    uint64_t grow = (uint64_t)choice_model(c)->block_tokens << 2 * CN_MIN(c->preemptions, 8u);

    return CN_MIN(c->n_ids + grow, c->req->limit);
}

static int open_seq(struct sch *s, struct sch_choice *c)
{
    struct sch_req *r = c->req;
    struct sch_choice *first = &r->choices[0];
    struct kv_seq_opts o = {.tenant = r->spec.tenant,
                            .salt = r->spec.salt,
                            .adapter = r->spec.adapter,
                            .max_tokens = r->limit,
                            .marks = r->spec.marks,
                            .n_marks = r->spec.n_marks,
                            .joined = r->joined,
                            .n_joined = r->n_joined};
    uint64_t n = r->spec.n_prompt - 1;

    if (!c->ids) {
        c->ids = cn_malloc_array(r->limit, sizeof(*c->ids));
        if (!c->ids) return CN_ENOMEM;
        memcpy(c->ids, r->spec.prompt, r->spec.n_prompt * sizeof(*c->ids));
        c->n_ids = r->spec.n_prompt;
    }
    if (c != first && !c->kept && n && first->seq && kv_seq_length(first->seq) >= n) {
        int rc = kv_seq_fork(first->seq, c->ids, n, r->limit, &c->seq);
        if (rc) return rc;
        c->high = CN_MAX(c->high, kv_seq_length(c->seq));
        c->shared = CN_MAX(c->shared, kv_seq_length(c->seq));
        return 0;
    }
    if (c == first && (r->spec.flags & SCH_NO_CACHE_READ)) o.flags |= KV_SEQ_NO_READ;
    if (r->spec.flags & SCH_NO_CACHE_WRITE) o.flags |= KV_SEQ_NO_WRITE;
    if (r->spec.flags & SCH_ONE_STEP) o.flags |= KV_SEQ_NO_READ | KV_SEQ_NO_WRITE;
    if (r->class == SCH_BACKGROUND) o.flags |= KV_SEQ_NO_LEAD; /* others do not wait for it */
    return kv_seq_open(s->models[r->spec.model].o.space, &o, &c->seq);
}

static int open_again(struct sch *s, struct sch_choice *c)
{
    kv_seq_close_failed(c->seq);
    c->seq = NULL;
    return open_seq(s, c);
}

static void start(struct sch *s, struct sch_choice *c)
{
    struct sch_req *r = c->req;
    struct sch_choice *head = r->tenant->fresh[r->class].head;
    uint64_t left = r->spec.n_prompt - r->peeked;
    int rc = 0;

    if (head && !c->resumed && head != c) head->req->skips++;
    if (c->seq) {
        sch_unpark(s, c);
        left = c->n_ids - CN_MIN(c->n_ids, kv_seq_planned(c->seq));
    } else {
        c->charged_ns = s->now;
        c->looked = false;
        rc = open_seq(s, c);
        if (!rc && c->kept) {
            if (sch_restore(s, c))
                left = c->n_ids - kv_seq_length(c->seq);
            else
                rc = open_again(s, c);
        }
    }
    if (rc) {
        sch_req_end(s, r, SCH_END_ERROR, rc);
        sch_req_settle(s, r);
        return;
    }
    sch_queue_remove(c);
    c->promised = wanted_tokens(c);
    sch_running_in(s, c);
    if (!r->started) {
        sch_door_start(s, r);
        sch_deadline_set(s, r);
    }
    if (r->tenant->round != s->rounds) r->tenant->started = 0;
    r->tenant->round = s->rounds;
    r->tenant->started += ((double)left + s->o.decode_cost) / r->tenant->opts.weight;
    s->last_admitted = r->tenant;
    s->admissions++;
}

/* ---- who starts ------------------------------------------------------------------------------ */

static bool anything_runs(const struct sch *s)
{
    return sch_oldest(s) != NULL || s->n_flights;
}

/* Bytes promised to running choices that they have not taken yet. */
static uint64_t promised_bytes(const struct sch *s)
{
    uint64_t bytes = 0;

    for (const struct sch_choice *c = s->running.head; c; c = c->next) {
        const struct sch_model *m = choice_model(c);
        uint64_t planned = kv_seq_planned(c->seq);

        if (c->promised > planned)
            bytes += kv_space_bytes(m->o.space, c->promised, m->chunk) -
                     kv_space_bytes(m->o.space, planned, m->chunk);
    }
    return bytes;
}

/* Bytes that c needs to start, beyond the blocks that are in use already. */
static uint64_t needed_bytes(const struct sch *s, const struct sch_choice *c)
{
    const struct sch_req *r = c->req;
    const struct sch_model *m = &s->models[r->spec.model];
    uint64_t need = kv_space_bytes(m->o.space, wanted_tokens(c), m->chunk);
    uint64_t have =
        kv_space_bytes(m->o.space, c->seq ? kv_seq_planned(c->seq) : r->peeked_in_use, m->chunk);

    if (have && !c->seq) have -= kv_space_state_bytes(m->o.space); /* that is its own */
    return need - CN_MIN(need, have);
}

static bool has_room(const struct sch *s, const struct sch_choice *c)
{
    uint64_t grow = choice_model(c)->block_bytes * ((s->n_running + 3) / 4);
    struct kv_stats st;

    kv_pool_stats(s->o.pool, &st);
    return st.bytes[KV_FREE] + st.bytes[KV_CACHED] >= needed_bytes(s, c) + grow + promised_bytes(s);
}

/* Takes blocks back from tenants over their share for one that is below its own. */
static bool make_room(struct sch *s, struct sch_choice *c)
{
    while (!has_room(s, c)) {
        struct sch_choice *v = sch_victim(s, c, false);
        struct sch_tenant *t = c->req->tenant;

        if (!v) return false;
        if (rank(v, c) == 0) {
            if (v->req->tenant == t || v->req->tenant->counter <= t->counter) return false;
            if (sch_over_share(s, v->req->tenant) <= 0 || sch_over_share(s, t) >= 0) return false;
        }
        sch_evict(s, v);
        if (v->evict) return false; /* its blocks are freed when its step is done */
    }
    return true;
}

/* The tenant's counter once the prompts admitted in this round are computed. */
static double due(const struct sch *s, const struct sch_tenant *t)
{
    return t->counter + (t->round == s->rounds ? t->started : 0);
}

/* The tenant's slots over its weight, with `more` added. */
static double places(const struct sch_tenant *t, double more)
{
    return (t->n_running + more) / t->opts.weight;
}

/* Whether `from`, which was served more, has to give a slot to t: because it then still has at
 * least as many as t; or because there are fewer slots than tenants, and it was served a turn
 * more. */
static bool is_turn(const struct sch *s, const struct sch_tenant *from, const struct sch_tenant *t)
{
    double more = from->counter - due(s, t);

    if (places(from, -1) >= places(t, 1)) return more > 0;
    return places(from, 0) > places(t, 0) && more > TURN_COST / t->opts.weight;
}

/* The newest choice of the tenant with the most slots; among equals, of the most served one. */
static struct sch_choice *who_yields(const struct sch *s)
{
    struct sch_choice *best = NULL;

    for (struct sch_choice *v = s->running.head; v; v = v->next) {
        const struct sch_tenant *t = v->req->tenant, *b = best ? best->req->tenant : NULL;
        double more = b ? places(t, 0) - places(b, 0) : 1;

        if (more < 0) continue;
        if (more == 0 && (t == b ? choice_older(v, best) : t->counter <= b->counter)) continue;
        best = v;
    }
    return best;
}

/* Makes sure of a slot for c. If all are taken, a background choice gives up its slot, or a choice
 * of a tenant that has more slots. */
static bool make_place(struct sch *s, struct sch_choice *c)
{
    struct sch_choice *v;

    if (s->n_running < s->o.max_running) return true;
    for (v = s->running.head; v; v = v->next) {
        if (v->evict || v->yields) return false; /* a slot is freed when its step is done */
    }
    v = victim(s, c, false, true);
    if (v && rank(v, c) == RANK_BACKGROUND) {
        v->displaced = true;
        sch_evict(s, v);
        return !v->evict;
    }
    v = who_yields(s);
    if (!is_turn(s, v->req->tenant, c->req->tenant)) return false;
    if (!has_room(s, c) && !make_room(s, c)) return false;
    if (s->n_running < s->o.max_running) return true; /* make_room preempted one */
    v->yields = true;
    sch_park_all(s);
    return v->state == CH_WAITING;
}

/* Slots of the tenant that count against its limit for this class. */
static uint32_t keep_places(const struct sch_tenant *t, enum sch_class class)
{
    return class == SCH_BACKGROUND ? t->n_running : t->n_running - t->n_running_background;
}

/* If all slots are taken: the tenant with the lowest counter among those whose turn it is to get
 * another tenant's slot. */
static struct sch_tenant *pick_turn(struct sch *s, enum sch_class class)
{
    const struct sch_theap *h = &s->heap[class];
    const struct sch_tenant *from = h->n ? who_yields(s)->req->tenant : NULL;
    struct sch_tenant *top = NULL;

    for (uint32_t i = 0; i < h->n && i < 16; i++) {
        struct sch_tenant *t = h->v[i];

        if (is_turn(s, from, t) && (!top || due(s, t) < due(s, top))) top = t;
    }
    return top;
}

/* The tenant to serve: the one with the lowest counter. The last one is served again, at most a
 * quantum beyond that, if most of its prompt is cached. Tenants that have all the slots they may
 * take are left out. */
static struct sch_tenant *pick_tenant(struct sch *s, enum sch_class class)
{
    struct sch_theap *h = &s->heap[class];
    struct sch_tenant *top = NULL, *last = s->last_admitted;

    for (uint32_t i = 0; i < h->n && i < 16; i++) {
        if (keep_places(h->v[i], class) >= sch_door_places(s, h->v[i], class)) continue;
        if (!top || due(s, h->v[i]) < due(s, top)) top = h->v[i];
    }
    if (!top || !last || last == top || last->heap_pos[class] == SCH_NONE) return top;
    if (due(s, last) <= due(s, top) + (double)s->o.quantum / last->opts.weight) {
        struct sch_choice *c = sch_queue_best(s, last, class);

        if (c->req->peeked > c->req->spec.n_prompt / 2 &&
            keep_places(last, class) < sch_door_places(s, last, class))
            return last;
    }
    return top;
}

static bool within_share(const struct sch *s, const struct sch_choice *c)
{
    return sch_over_share(s, c->req->tenant) + (double)needed_bytes(s, c) <= 0;
}

/* There is no room for c, whose turn it is. Starts another tenant's choice that has room and stays
 * within its share. c is overtaken at most MAX_OVERTAKEN times if its need is within its tenant's
 * share, and MAX_BEYOND times otherwise; then the others wait until it has room. */
static bool overtake(struct sch *s, struct sch_choice *c, enum sch_class class)
{
    const struct sch_theap *h = &s->heap[class];

    if (s->n_running >= s->o.max_running) return false;
    if (c->req->overtaken >= (within_share(s, c) ? MAX_OVERTAKEN : MAX_BEYOND)) return false;
    for (uint32_t i = 0; i < h->n && i < LOOK_BEHIND; i++) {
        struct sch_tenant *t = h->v[i];
        struct sch_choice *other;

        if (t == c->req->tenant || keep_places(t, class) >= sch_door_places(s, t, class)) continue;
        other = sch_queue_best(s, t, class);
        if (!within_share(s, other) || !has_room(s, other)) continue;
        c->req->overtaken++;
        start(s, other);
        return true;
    }
    return false;
}

static bool admit_one(struct sch *s, enum sch_class class)
{
    bool full = s->n_running >= s->o.max_running;
    struct sch_tenant *t;
    struct sch_choice *c;

    if (full && class == SCH_BACKGROUND) return false;
    t = full && !s->n_running_class[SCH_BACKGROUND] ? pick_turn(s, class) : pick_tenant(s, class);
    if (!t) return false;
    c = sch_queue_best(s, t, class);
    if (!make_place(s, c)) return false;
    if (anything_runs(s) && !has_room(s, c) && !make_room(s, c)) return overtake(s, c, class);
    start(s, c);
    return true;
}

static bool others_run(const struct sch *s)
{
    if (s->n_running_class[SCH_BACKGROUND] == s->n_running) return false;
    for (const struct sch_choice *c = s->running.head; c; c = c->next) {
        if (c->req->class != SCH_BACKGROUND && !c->req->paused) return true;
    }
    return false;
}

static void admit_all(struct sch *s)
{
    for (;;) {
        /* one admission in four takes the normal class first */
        enum sch_class first = s->admissions % 4 == 3 ? SCH_NORMAL : SCH_INTERACTIVE;
        enum sch_class then = first == SCH_NORMAL ? SCH_INTERACTIVE : SCH_NORMAL;
        if (s->heap[first].n) {
            if (!admit_one(s, first)) return;
        } else if (s->heap[then].n) {
            if (!admit_one(s, then)) return;
        } else if (others_run(s) || !admit_one(s, SCH_BACKGROUND)) {
            return;
        }
    }
}

void sch_admit(struct sch *s)
{
    s->stale = false;
    for (struct sch_choice *c = s->running.head; c; c = c->next)
        c->planned_now = false; /* of the last step */
    if (s->solo && s->solo->req->paused) s->solo = NULL;
    sch_park_all(s);
    if (s->solo) {
        if (s->solo->state == CH_WAITING && s->n_running == 0) start(s, s->solo);
    } else {
        admit_all(s);
    }
}
