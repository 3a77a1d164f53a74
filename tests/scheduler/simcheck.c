/* What must hold when the simulation has come to rest; see sim.h. */
#include "tests/scheduler/sim.h"

#include <string.h>

static void check_choice(struct sim *m, const struct sim_req *r, uint32_t c)
{
    uint32_t want[SIM_MAX_LEN], n;
    bool stopped, whole;

    if (r->choice_ends[c] != 1) {
        sim_fail(m, "choice %u of request %d: %u ends", c, (int)(r - m->reqs), r->choice_ends[c]);
        return;
    }
    n = sim_solo(m, r, c, want, &stopped);
    whole = r->choice_reason[c] == SCH_END_STOP || r->choice_reason[c] == SCH_END_LENGTH;
    whole = whole && !r->cut;
    if (whole && r->spec.max_new && n != r->n_out[c])
        sim_fail(m, "request %d: %u tokens instead of %u", (int)(r - m->reqs), r->n_out[c], n);
    if (whole && (r->choice_reason[c] == SCH_END_STOP) != (stopped && n == r->n_out[c]))
        sim_fail(m, "request %d: ended for another reason", (int)(r - m->reqs));
    if (r->n_out[c] > n || memcmp(want, r->out[c], r->n_out[c] * sizeof(*want)))
        sim_fail(m, "request %d choice %u: other bytes than alone", (int)(r - m->reqs), c);
}

void sim_check_outputs(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_reqs && !m->failed; i++) {
        struct sim_req *r = &m->reqs[i];

        if (!r->submitted) continue;
        if (r->ends != 1) {
            sim_fail(m, "request %u has %u ends", i, r->ends);
            return;
        }
        for (uint32_t c = 0; c < r->spec.n_choices; c++)
            check_choice(m, r, c);
        if (r->usage.cached_tokens >= r->spec.n_prompt) sim_fail(m, "a prompt cached to the end");
    }
}

/* What requests are told adds up to what the scheduler counted. */
static void check_sums(struct sim *m, const struct sch_stats *ss)
{
    struct sch_usage u = m->told;

    if (u.cached_tokens != ss->prompt_cached || u.computed_tokens != ss->computed ||
        u.recomputed_tokens != ss->recomputed || u.written_tokens != ss->written ||
        u.generated_tokens != ss->generated || u.drafted_rows != ss->drafted ||
        u.right_rows != ss->drafts_right || u.unseen_rows != ss->wasted ||
        u.preemptions != ss->preemptions)
        sim_fail(m, "the requests' counts do not add up to the scheduler's");
}

void sim_check_idle(struct sim *m)
{
    struct cn_error err;
    struct kv_stats st;
    struct sch_stats ss;

    if (m->failed) return;
    if (kv_check(m->pool, &err) || sch_check(m->sch, &err)) sim_fail(m, "at rest: %s", err.message);
    kv_pool_stats(m->pool, &st);
    sch_stats(m->sch, &ss);
    if (st.n_seqs || st.blocks[KV_FILLING] || st.blocks[KV_READY] || st.blocks[KV_COPYING])
        sim_fail(m, "blocks in use at rest");
    if (m->kept || m->kept_words) sim_fail(m, "something is kept at rest");
    if (ss.running || ss.waiting || ss.paused || ss.in_flight || ss.waiting_tokens)
        sim_fail(m, "not at rest");
    if (ss.accepted != ss.ended_ok + ss.ended_error + ss.ended_cancelled)
        sim_fail(m, "accepted and ended requests differ");
    check_sums(m, &ss);
}
