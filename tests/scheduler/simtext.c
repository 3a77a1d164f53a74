/* The client of the simulation: what may be drawn, what is forced, and what it is told; see sim.h.
 *
 * A mask depends on the token before, so it is known only when that was put out. Ids are forced by
 * a script that depends on the token before as well: either by sch_force from on_token, or by masks
 * of one id. Both must give the same output. */
#include "tests/scheduler/siminner.h"

#include <stdlib.h>
#include <string.h>

/* ---- masks and scripts ----------------------------------------------------------------------- */

static uint32_t vocab_of(const struct sim *m)
{
    return m->o.vocab ? m->o.vocab : SIM_VOCAB;
}

bool sim_has_masks(const struct sim_req *r)
{
    return r->mask_mod || (r->force_masks && (r->force_mod || r->force_n));
}

uint32_t sim_pick(const struct sim *m, const struct sim_req *r, uint32_t choice, uint64_t pos,
                  uint32_t token, uint64_t hash)
{
    uint64_t shift = sim_mix(pos, token);
    uint32_t id;

    if (r->parrot) return r->prompt[(pos + 1) % r->spec.n_prompt];
    id = (uint32_t)(sim_mix(sim_mix(hash, r->spec.salt + 3), choice) % vocab_of(m));
    while (r->mask_mod && (id + shift) % r->mask_mod == 0)
        id = (id + 1) % vocab_of(m);
    return id;
}

bool sim_ids_next(struct sim_ids *q, uint32_t *id)
{
    if (!q->n) return false;
    *id = q->id[q->head++];
    if (--q->n == 0) q->head = 0;
    return true;
}

/* More than can ever be put out is left out. */
static void ids_add(struct sim_ids *q, const uint32_t *ids, uint32_t n, bool command)
{
    if (q->head + q->n + n > SIM_MAX_IDS) {
        memmove(q->id, q->id + q->head, q->n * sizeof(q->id[0]));
        memmove(q->command, q->command + q->head, q->n * sizeof(q->command[0]));
        q->head = 0;
    }
    n = CN_MIN(n, SIM_MAX_IDS - q->head - q->n);
    for (uint32_t i = 0; i < n; i++, q->n++) {
        q->id[q->head + q->n] = ids[i];
        q->command[q->head + q->n] = command;
    }
}

static uint32_t script(const struct sim *m, const struct sim_req *r, uint32_t choice,
                       uint64_t index, uint32_t token, uint32_t *ids)
{
    uint64_t h = sim_mix(sim_mix(sim_mix(11, choice), index), token);
    uint32_t n;

    if (r->force_n && index + 1 == r->force_behind)
        n = r->force_n;
    else if (r->force_mod && h % r->force_mod == 0)
        n = 1 + (uint32_t)(h >> 8) % ((h >> 16) % 8 ? 6 : 40);
    else
        return 0;
    cn_assert(n <= SIM_MAX_LEN);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(sim_mix(h, i) % vocab_of(m));
    return n;
}

uint32_t sim_script(const struct sim *m, const struct sim_req *r, uint32_t choice, uint64_t index,
                    uint32_t token, struct sim_ids *q)
{
    uint32_t ids[SIM_MAX_LEN], n = script(m, r, choice, index, token, ids);

    ids_add(q, ids, n, false);
    return n;
}

struct sim_text *sim_text_of(struct sim *m, struct sim_req *r, uint32_t choice)
{
    if (!r->text[choice]) r->text[choice] = sim_alloc(m, sizeof(*r->text[choice]));
    return r->text[choice];
}

int sim_force(struct sim *m, struct sim_req *r, uint32_t choice, const uint32_t *ids, uint32_t n)
{
    struct sim_text *x = sim_text_of(m, r, choice);
    int rc = sch_force(m->sch, r->id, choice, ids, n);

    if (rc) return rc;
    if (!x->due.n) x->late = sim_draw_in_flight(m, r, choice);
    ids_add(&x->due, ids, n, true);
    return 0;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

/* Which tokens were forced, and in what order. */
static void check_token(struct sim *m, struct sim_req *r, const struct sch_token *t)
{
    struct sim_text *x = r->text[t->choice];
    uint32_t want;

    if (t->forced != !t->drawn) sim_fail(m, "a token that is neither forced nor drawn");
    if (!t->forced) {
        if (x && x->due.n && !x->late) sim_fail(m, "a token was drawn that ids were forced before");
        if (x) x->late = false;
        if (x && sim_ids_next(&x->mask, &want) && t->token != want)
            sim_fail(m, "a mask of one id was left aside");
        return;
    }
    if (!x || !x->due.n) {
        sim_fail(m, "a token was forced by nobody");
        return;
    }
    x->command[t->index % SIM_MAX_LEN] = x->due.command[x->due.head];
    sim_ids_next(&x->due, &want);
    if (t->token != want) sim_fail(m, "forced ids in another order");
}

/* The script goes on after a token; false when there was no memory for it. */
static bool go_on(struct sim *m, struct sim_req *r, const struct sch_token *t)
{
    uint32_t ids[SIM_MAX_LEN], n = script(m, r, t->choice, t->index, t->token, ids);
    struct sim_text *x = n ? sim_text_of(m, r, t->choice) : NULL;

    if (!n) return true;
    ids_add(r->force_masks ? &x->mask : &x->due, ids, n, false);
    return r->force_masks || sch_force(m->sch, r->id, t->choice, ids, n) == 0;
}

enum sch_verdict sim_on_token(void *arg, const struct sch_token *t)
{
    struct sim *m = arg;
    struct sim_req *r = sim_req_of(t->user);

    if (r->ends || r->choice_ends[t->choice]) sim_fail(m, "a token after the end");
    if (t->index != r->n_out[t->choice] || t->position != r->spec.n_prompt + t->index)
        sim_fail(m, "a token out of order");
    check_token(m, r, t);
    if (r->n_out[t->choice] < SIM_MAX_LEN) r->out[t->choice][r->n_out[t->choice]++] = t->token;
    if (!go_on(m, r, t)) {
        r->cut = true;
        return SCH_STOP;
    }
    return sim_stops(r, t->token) ? SCH_STOP : SCH_CONTINUE;
}

void sim_on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason)
{
    struct sim_req *r = sim_req_of(user);

    if (r->ends || r->choice_ends[choice]++) sim_fail(arg, "a choice that ended twice");
    r->choice_reason[choice] = reason;
}

static void add_usage(struct sim *m, const struct sch_usage *u)
{
    struct sch_usage *all = &m->told;

    all->cached_tokens += u->cached_tokens;
    all->computed_tokens += u->computed_tokens;
    all->recomputed_tokens += u->recomputed_tokens;
    all->written_tokens += u->written_tokens;
    all->generated_tokens += u->generated_tokens;
    all->drafted_rows += u->drafted_rows;
    all->right_rows += u->right_rows;
    all->unseen_rows += u->unseen_rows;
    all->preemptions += u->preemptions;
    if (u->written_tokens > u->computed_tokens) sim_fail(m, "more was cached than computed");
    if (u->first_step_ns && (u->first_step_ns < u->submitted_ns || u->ended_ns < u->first_step_ns))
        sim_fail(m, "time stamps out of order");
}

void sim_on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                const struct sch_usage *usage)
{
    struct sim *m = arg;
    struct sim_req *r = sim_req_of(user);
    uint64_t out = 0;

    for (uint32_t i = 0; i < r->spec.n_choices; i++) {
        if (r->choice_ends[i] != 1) sim_fail(m, "the end before a choice's end");
        out += r->n_out[i];
    }
    if (r->ends++ || r->id != id) sim_fail(m, "a request that ended twice");
    if (usage->generated_tokens != out) sim_fail(m, "usage counts other tokens than were given");
    r->reason = reason;
    r->code = code;
    r->usage = *usage;
    add_usage(m, usage);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Wrong and right ones, in runs; more or fewer than could be used. */
uint32_t sim_propose(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out)
{
    struct sim *m = arg;
    struct sim_req *r = sim_req_of(d->user);
    uint32_t n = 1 + sim_below(m, most), known, k = 0;
    uint64_t at = d->n_ids - r->spec.n_prompt;
    bool stopped;

    if (most > m->o.max_draft) sim_fail(m, "more drafts wanted than may be");
    if (at != r->n_out[d->choice] || memcmp(d->ids, r->prompt, r->spec.n_prompt * sizeof(*out)))
        sim_fail(m, "drafts wanted for other ids");
    if (!r->solo[d->choice]) {
        r->solo[d->choice] = cn_calloc(SIM_MAX_LEN, sizeof(*out));
        sim_solo(m, r, d->choice, r->solo[d->choice], &stopped);
    }
    known = (uint32_t)(SIM_MAX_LEN - at);
    for (; k < n; k++) {
        bool right = k < known && sim_below(m, 4);

        out[k] = right ? r->solo[d->choice][at + k] : sim_below(m, SIM_VOCAB);
    }
    return sim_below(m, 5) ? n : 0;
}
