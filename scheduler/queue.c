/* Who waits: per tenant and class a list of preempted choices (oldest first) and one of new ones,
 * per class a heap of the tenants that may start one, lowest counter first. And the heap of
 * deadlines. */
#include "scheduler/internal.h"

#define LOOK      4          /* new requests of a tenant compared for their cached prefix */
#define MAX_SKIPS 8          /* then it goes, whatever it has cached */
#define PEEK_NS   100000000u /* a look at the tree is good for so long */

/* ---- lists ----------------------------------------------------------------------------------- */

void sch_list_push(struct sch_list *l, struct sch_choice *c)
{
    c->next = NULL;
    c->prev = l->tail;
    if (l->tail)
        l->tail->next = c;
    else
        l->head = c;
    l->tail = c;
}

void sch_list_remove(struct sch_list *l, struct sch_choice *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        l->head = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        l->tail = c->prev;
    c->prev = c->next = NULL;
}

static void list_insert_by_age(struct sch_list *l, struct sch_choice *c)
{
    struct sch_choice *after = l->tail;

    while (after && choice_older(c, after))
        after = after->prev;
    if (!after) {
        c->prev = NULL;
        c->next = l->head;
        if (l->head)
            l->head->prev = c;
        else
            l->tail = c;
        l->head = c;
        return;
    }
    c->prev = after;
    c->next = after->next;
    if (after->next)
        after->next->prev = c;
    else
        l->tail = c;
    after->next = c;
}

/* ---- heap of tenants that wait --------------------------------------------------------------- */

static void heap_set(struct sch_theap *h, uint32_t k, uint32_t i, struct sch_tenant *t)
{
    h->v[i] = t;
    t->heap_pos[k] = i;
}

static void heap_fix(struct sch_theap *h, uint32_t k, uint32_t i)
{
    struct sch_tenant *t = h->v[i];

    while (i > 0 && h->v[(i - 1) / 2]->counter > t->counter) {
        heap_set(h, k, i, h->v[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t c = 2 * i + 1;

        if (c >= h->n) break;
        if (c + 1 < h->n && h->v[c + 1]->counter < h->v[c]->counter) c++;
        if (h->v[c]->counter >= t->counter) break;
        heap_set(h, k, i, h->v[c]);
        i = c;
    }
    heap_set(h, k, i, t);
}

static bool is_busy(const struct sch_tenant *t)
{
    bool busy = t->n_running > 0;

    for (uint32_t k = 0; k < SCH_N_CLASSES; k++)
        busy = busy || t->heap_pos[k] != SCH_NONE;
    return busy;
}

/* A tenant stands in the heap while it has something that may start. */
static void heap_sync(struct sch *s, struct sch_tenant *t, uint32_t k)
{
    struct sch_theap *h = &s->heap[k];
    bool want = tenant_may_start(t, k);
    uint32_t i = t->heap_pos[k];

    if (want && i == SCH_NONE) {
        /* what it had was paused: no credit for that time */
        if (!is_busy(t)) t->counter = CN_MAX(t->counter, s->vtime);
        heap_set(h, k, h->n, t);
        heap_fix(h, k, h->n++);
    } else if (!want && i != SCH_NONE) {
        struct sch_tenant *last = h->v[--h->n];

        t->heap_pos[k] = SCH_NONE;
        if (last == t) return;
        heap_set(h, k, i, last);
        heap_fix(h, k, i);
    }
}

void sch_queue_sync(struct sch *s, struct sch_tenant *t)
{
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++)
        heap_sync(s, t, k);
}

/* Room for every tenant in every heap, so that queueing cannot fail. */
int sch_queue_room(struct sch *s)
{
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++) {
        if (cn_grow(&s->heap[k].v, &s->heap_cap[k], s->n_tenants, sizeof(struct sch_tenant *)))
            return CN_ENOMEM;
    }
    return 0;
}

void sch_act_down(struct sch_tenant **v, uint32_t n, uint32_t i)
{
    struct sch_tenant *t = v[i];

    for (;;) {
        uint32_t c = 2 * i + 1;

        if (c >= n) break;
        if (c + 1 < n && v[c + 1]->counter < v[c]->counter) c++;
        if (v[c]->counter >= t->counter) break;
        v[i] = v[c];
        i = c;
    }
    v[i] = t;
}

/* ---- queue ----------------------------------------------------------------------------------- */

enum phase { PHASE_NONE, PHASE_WAITING, PHASE_RUNNING };

static enum phase phase_of(const struct sch_req *r)
{
    return r->n_running ? PHASE_RUNNING : r->n_waiting ? PHASE_WAITING : PHASE_NONE;
}

void sch_req_phase(struct sch_req *r, int running, int waiting)
{
    struct sch_stats *st = &r->s->stats;
    enum phase was = phase_of(r), is;

    r->n_running += (uint32_t)running;
    r->n_waiting += (uint32_t)waiting;
    is = phase_of(r);
    if (was == is) return;
    if (was == PHASE_RUNNING) st->running--;
    if (is == PHASE_RUNNING) st->running++;
    if (was == PHASE_WAITING) {
        r->tenant->n_waiting--;
        st->waiting--;
        st->waiting_tokens -= r->spec.n_prompt;
    }
    if (is == PHASE_WAITING) {
        r->tenant->n_waiting++;
        st->waiting++;
        st->waiting_tokens += r->spec.n_prompt;
    }
}

static void link_in(struct sch_choice *c)
{
    struct sch_req *r = c->req;

    list_insert_by_age(c->resumed ? &r->tenant->resumed[r->class] : &r->tenant->fresh[r->class], c);
    heap_sync(r->s, r->tenant, r->class);
}

static void link_out(struct sch_choice *c)
{
    struct sch_req *r = c->req;

    sch_list_remove(c->resumed ? &r->tenant->resumed[r->class] : &r->tenant->fresh[r->class], c);
    heap_sync(r->s, r->tenant, r->class);
}

void sch_queue_add(struct sch_choice *c, bool resumed)
{
    c->state = CH_WAITING;
    c->resumed = resumed;
    sch_req_phase(c->req, 0, 1);
    if (!c->req->paused) link_in(c);
}

void sch_queue_remove(struct sch_choice *c)
{
    cn_assert(c->state == CH_WAITING);
    sch_req_phase(c->req, 0, -1);
    if (!c->req->paused) link_out(c);
}

/* A paused request waits outside the queue, and comes back to where its age puts it; if it runs its
 * place goes with the next admission. */
void sch_queue_pause(struct sch_req *r, bool paused)
{
    if (r->paused == paused) return;
    r->paused = paused;
    if (r->started && r->n_open) sch_door_pause(r->s, r, paused);
    r->s->stale = true;
    for (uint32_t i = 0; i < r->spec.n_choices; i++) {
        struct sch_choice *c = &r->choices[i];

        if (c->state != CH_WAITING) continue;
        if (paused)
            link_out(c);
        else
            link_in(c);
    }
}

static void peek(struct sch *s, struct sch_req *r)
{
    struct kv_seq_opts as = {.tenant = r->spec.tenant,
                             .salt = r->spec.salt,
                             .adapter = r->spec.adapter,
                             .joined = r->joined,
                             .n_joined = r->n_joined};

    if (r->peek_ns && s->now - r->peek_ns < PEEK_NS) return;
    r->peek_ns = CN_MAX(s->now, 1u);
    r->peeked = r->peeked_in_use = 0;
    if (r->spec.flags & (SCH_NO_CACHE_READ | SCH_ONE_STEP)) return;
    r->peeked = kv_space_peek(s->models[r->spec.model].o.space, &as, r->spec.prompt,
                              r->spec.n_prompt, &r->peeked_in_use);
}

struct sch_choice *sch_queue_best(struct sch *s, struct sch_tenant *t, enum sch_class class)
{
    struct sch_choice *best, *c;
    uint32_t n = 1;

    if (t->resumed[class].head) {
        peek(s, t->resumed[class].head->req);
        return t->resumed[class].head;
    }
    best = t->fresh[class].head;
    if (!best) return NULL;
    peek(s, best->req);
    if (best->req->skips >= MAX_SKIPS) return best;
    for (c = best->next; c && n < LOOK; c = c->next, n++) {
        peek(s, c->req);
        if (c->req->peeked > best->req->peeked) best = c;
    }
    return best;
}

/* ---- counters -------------------------------------------------------------------------------- */

void sch_charge(struct sch *s, struct sch_tenant *t, double cost)
{
    t->served += cost;
    if (s->o.shared) sch_share_charge(s, t, cost);
    sch_counter_set(s, t, t->counter + cost / t->opts.weight);
}

void sch_counter_set(struct sch *s, struct sch_tenant *t, double counter)
{
    t->counter = counter;
    for (uint32_t k = 0; k < SCH_N_CLASSES; k++) {
        if (t->heap_pos[k] != SCH_NONE) heap_fix(&s->heap[k], k, t->heap_pos[k]);
    }
}

/* vtime follows the lowest counter of those that are busy; no busy tenant is below it. */
void sch_tenant_opened(struct sch *s, struct sch_tenant *t)
{
    if (t->n_open++) return;
    s->weight_active += t->opts.weight;
    if (t->counter < s->vtime) t->counter = s->vtime;
}

void sch_tenant_closed(struct sch *s, struct sch_tenant *t)
{
    if (--t->n_open) return;
    s->weight_active -= t->opts.weight;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static void dl_set(struct sch *s, uint32_t i, struct sch_req *r)
{
    s->dl[i] = r;
    r->heap_pos = i;
}

static void dl_fix(struct sch *s, uint32_t i)
{
    struct sch_req *r = s->dl[i];

    while (i > 0 && s->dl[(i - 1) / 2]->wake_ns > r->wake_ns) {
        dl_set(s, i, s->dl[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t c = 2 * i + 1;

        if (c >= s->n_dl) break;
        if (c + 1 < s->n_dl && s->dl[c + 1]->wake_ns < s->dl[c]->wake_ns) c++;
        if (s->dl[c]->wake_ns >= r->wake_ns) break;
        dl_set(s, i, s->dl[c]);
        i = c;
    }
    dl_set(s, i, r);
}

/* Room for one deadline in each of n slots. */
int sch_deadline_room(struct sch *s, uint32_t n)
{
    return cn_grow(&s->dl, &s->dl_cap, n, sizeof(struct sch_req *));
}

void sch_deadline_clear(struct sch *s, struct sch_req *r)
{
    uint32_t i = r->heap_pos;
    struct sch_req *last;

    if (i == SCH_NONE) return;
    r->heap_pos = SCH_NONE;
    last = s->dl[--s->n_dl];
    if (last == r) return;
    dl_set(s, i, last);
    dl_fix(s, i);
}

void sch_deadline_set(struct sch *s, struct sch_req *r)
{
    uint64_t a = r->started ? 0 : r->spec.queue_deadline_ns, b = r->spec.deadline_ns;

    sch_deadline_clear(s, r);
    r->wake_ns = !a ? b : !b ? a : CN_MIN(a, b);
    if (!r->wake_ns) return;
    dl_set(s, s->n_dl, r);
    dl_fix(s, s->n_dl++);
}
