/* Parked choices. A choice that is paused, or whose slot another tenant gets for a turn, gives
 * up its slot in max_running and keeps its blocks while there is memory. It waits with its
 * sequence open, and comes first in its tenant's order once it may continue. When blocks are
 * short, paused choices are the first to lose them; those that wait for their turn lose them by
 * the same rule as running ones. Either then starts again like a preempted choice. */
#include "scheduler/internal.h"

void sch_charge_blocks(struct sch *s, struct sch_choice *c)
{
    double seconds = (double)(s->now - c->charged_ns) / 1e9;

    c->charged_ns = s->now;
    if (seconds > 0)
        sch_charge(s, c->req->tenant,
                   seconds * (double)kv_seq_bytes(c->seq) / (double)choice_model(c)->block_bytes *
                       s->o.block_cost);
}

void sch_running_in(struct sch *s, struct sch_choice *c)
{
    struct sch_req *r = c->req;

    cn_assert(s->free_place != SCH_NONE);
    c->place = s->free_place;
    s->free_place = s->places[c->place].next_free;
    s->places[c->place].generation++;
    c->state = CH_RUNNING;
    sch_list_push(&s->running, c);
    s->n_running++;
    s->n_running_class[r->class]++;
    r->tenant->n_running++;
    r->tenant->n_running_background += r->class == SCH_BACKGROUND;
    sch_req_phase(r, 1, 0);
}

void sch_running_out(struct sch *s, struct sch_choice *c)
{
    struct sch_req *r = c->req;

    sch_list_remove(&s->running, c);
    s->places[c->place].next_free = s->free_place;
    s->free_place = c->place;
    s->n_running--;
    s->n_running_class[r->class]--;
    r->tenant->n_running--;
    r->tenant->n_running_background -= r->class == SCH_BACKGROUND;
    s->stale = true;
    sch_req_phase(r, -1, 0);
}

static void park(struct sch *s, struct sch_choice *c)
{
    sch_charge_blocks(s, c);
    sch_running_out(s, c);
    c->yielded = c->yields && !c->req->paused;
    c->evict = c->yields = c->displaced = c->planned_now = false;
    c->n_draft = 0;
    c->park_next = s->parked;
    c->park_at = &s->parked;
    if (c->park_next) c->park_next->park_at = &c->park_next;
    s->parked = c;
    sch_queue_add(c, true);
}

void sch_unpark(struct sch *s, struct sch_choice *c)
{
    cn_assert(c->state == CH_WAITING && c->seq);
    *c->park_at = c->park_next;
    if (c->park_next) c->park_next->park_at = c->park_at;
    c->park_next = NULL;
    c->park_at = NULL;
    sch_charge_blocks(s, c); /* for all of the time that it lay there */
}

void sch_parked_close(struct sch *s, struct sch_choice *c, bool failed)
{
    sch_unpark(s, c);
    sch_seq_close(c, failed);
    s->stale = true;
}

void sch_park_all(struct sch *s)
{
    struct sch_choice *next;

    for (struct sch_choice *c = s->running.head; c; c = next) {
        next = c->next;
        if ((c->req->paused || c->yields) && !c->in_flight) park(s, c);
    }
}
