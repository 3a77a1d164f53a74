/* Saving preempted choices: their blocks are copied to host memory and brought back, so that
 * nothing is computed twice. What cannot be saved or brought back is computed again. */
#include "scheduler/internal.h"

void sch_forget_kept(struct sch_choice *c)
{
    struct sch_stepper *stepper = &c->req->s->o.stepper;

    if (c->kept) stepper->forget(stepper->self, c->kept);
    c->req->tenant->saved_bytes -= c->kept_bytes;
    c->kept = c->kept_bytes = 0;
}

/* Whether saving and restoring take no longer than computing n_tokens rows again, by the times
 * measured so far. */
static bool pays(const struct sch *s, const struct sch_model *m, uint64_t n_tokens, uint64_t bytes)
{
    const struct sch_stepper *stepper = &s->o.stepper;
    double rate = stepper->save_rate ? stepper->save_rate(stepper->self) : 0;

    if (rate <= 0 || m->cost.row_ns <= 0) return true; /* not measured */
    return 2e9 * (double)bytes / rate <= m->cost.row_ns * (double)n_tokens;
}

/* With several tenants one has at most half of the host memory. */
static bool may_save(const struct sch *s, const struct sch_tenant *t, uint64_t bytes)
{
    return s->n_known < 2 || t->saved_bytes + bytes <= s->o.stepper.save_bytes / 2;
}

/* The blocks of positions [from, to), in s->held; 0: none, or no memory for the list. */
static uint32_t list_held(struct sch *s, const struct sch_choice *c, uint64_t from, uint64_t to)
{
    uint32_t n = kv_seq_held(c->seq, from, to, NULL);

    if (!n || cn_grow(&s->held, &s->held_cap, n, sizeof *s->held)) return 0;
    return kv_seq_held(c->seq, from, to, s->held);
}

void sch_save(struct sch *s, struct sch_choice *c)
{
    struct sch_stepper *stepper = &s->o.stepper;
    const struct sch_model *m = choice_model(c);
    uint64_t n_tokens = kv_seq_length(c->seq), bytes;
    uint32_t n;

    if (!stepper->save || c->req->n_open == 0 || kv_seq_planned(c->seq) != n_tokens) return;
    cn_assert(!c->kept);
    bytes = kv_space_bytes(m->o.space, n_tokens, m->chunk);
    if (!may_save(s, c->req->tenant, bytes) || !pays(s, m, n_tokens, bytes)) return;
    n = list_held(s, c, 0, n_tokens);
    if (!n || stepper->save(stepper->self, c->req->spec.model, s->held, n, &c->kept)) {
        c->kept = 0;
        return;
    }
    c->kept_tokens = n_tokens;
    c->kept_bytes = bytes;
    c->req->tenant->saved_bytes += bytes;
    s->stats.saved++;
}

bool sch_restore(struct sch *s, struct sch_choice *c)
{
    struct sch_stepper *stepper = &s->o.stepper;
    uint64_t have;
    uint32_t n;
    int rc;

    cn_assert(c->kept);
    rc = kv_seq_resume(c->seq, c->ids, c->kept_tokens);
    have = kv_seq_length(c->seq);
    if (!rc && have < c->kept_tokens) {
        n = list_held(s, c, have, c->kept_tokens);
        rc = n ? stepper->restore(stepper->self, c->req->spec.model, c->kept, s->held, n)
               : CN_ENOMEM;
    }
    sch_forget_kept(c);
    if (rc) return false;
    if (have < c->kept_tokens)
        kv_seq_commit(c->seq, c->ids + have, (uint32_t)(c->kept_tokens - have));
    c->high = CN_MAX(c->high, c->kept_tokens);
    s->stats.restored++;
    return true;
}
