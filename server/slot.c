/* Slots: a number and a generation stand for a record where other threads hand back an id. Loop
 * thread only. Invariant: an id of a slot that was given back finds nothing. */
#include "server/request.h"

int srv_slot_take(struct srv *s, struct srv_req *q, uint32_t sub, uint32_t *out)
{
    uint32_t i = s->free_slot;

    if (i != UINT32_MAX) {
        s->free_slot = s->slots[i].sub;
    } else {
        if (s->n_slots == UINT32_MAX - 1) return CN_ENOMEM;
        int rc = cn_grow(&s->slots, &s->cap_slots, s->n_slots + 1, sizeof *s->slots);
        if (rc) return rc;
        i = (uint32_t)s->n_slots++;
        s->slots[i].gen = 0;
    }
    s->slots[i].req = q;
    s->slots[i].sub = sub;
    s->slots[i].gen++;
    *out = i;
    return 0;
}

void srv_slot_give(struct srv *s, uint32_t i)
{
    s->slots[i].req = NULL;
    s->slots[i].sub = s->free_slot;
    s->free_slot = i;
}

uint64_t srv_slot_id(const struct srv *s, uint32_t i)
{
    return (uint64_t)s->slots[i].gen << 32 | i;
}

struct srv_req *srv_slot_find(const struct srv *s, uint64_t id, uint32_t *sub)
{
    uint32_t i = (uint32_t)id;

    if (i >= s->n_slots || !s->slots[i].req || s->slots[i].gen != id >> 32) return NULL;
    *sub = s->slots[i].sub;
    return s->slots[i].req;
}
