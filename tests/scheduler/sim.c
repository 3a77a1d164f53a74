/* The simulated device and model; see sim.h. */
#include "tests/scheduler/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 251u

struct sim_step {
    const struct sch_step *step;
    uint64_t ticket;
    uint32_t *sampled;       /* per row: the token, when it was sampled */
    bool lost;               /* collect will fail */
};

uint64_t sim_rnd(struct sim *m)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng * 0x2545f4914f6cdd1dull >> 16;
}

uint32_t sim_below(struct sim *m, uint32_t n)
{
    return (uint32_t)(sim_rnd(m) % n);
}

void sim_fail(struct sim *m, const char *fmt, ...)
{
    va_list ap;

    if (m->failed) return;
    m->failed = true;
    va_start(ap, fmt);
    vsnprintf(m->what, sizeof(m->what), fmt, ap);
    va_end(ap);
}

/* ---- the model: what a row writes and draws -------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static uint64_t row_begin(const struct sim_req *r, uint64_t pos, uint32_t token)
{
    return mix(mix(mix(7, r->spec.model), pos), token);
}

static uint32_t draw(const struct sim *m, const struct sim_req *r, uint32_t choice, uint64_t pos,
                     uint64_t h)
{
    if (r->parrot) return r->prompt[(pos + 1) % r->spec.n_prompt];
    return (uint32_t)(mix(mix(h, r->spec.salt + 3), choice) % (m->o.vocab ? m->o.vocab : VOCAB));
}

static uint64_t first_seen(const struct kv_group *g, uint64_t pos)
{
    if (g->span == KV_SPAN_WINDOW) return pos + 1 > g->tokens ? pos + 1 - g->tokens : 0;
    return g->span == KV_SPAN_CHUNK ? pos / g->tokens * g->tokens : 0;
}

static bool is_state(const struct sim *m, uint32_t g)
{
    return m->o.groups[g].span == KV_SPAN_STATE;
}

static bool stops(const struct sim_req *r, uint32_t token)
{
    return r->stop_mod && token % r->stop_mod == 0;
}

uint32_t sim_solo(struct sim *m, const struct sim_req *r, uint32_t choice, uint32_t *out,
                  bool *stopped)
{
    static uint64_t kv[SIM_MAX_GROUPS][2 * SIM_MAX_LEN];
    uint32_t ids[2 * SIM_MAX_LEN], n_out = 0;
    uint64_t n = r->spec.n_prompt, limit = r->spec.max_new, state = 0;

    *stopped = false;
    memcpy(ids, r->prompt, n * sizeof(*ids));
    if (!limit) limit = SIM_MAX_LEN;
    for (uint64_t pos = 0; pos < n; pos++) {
        uint64_t h = row_begin(r, pos, ids[pos]);

        for (uint32_t g = 0; g < m->o.n_groups; g++) {
            if (is_state(m, g)) {
                h = mix(h, state);
                continue;
            }
            for (uint64_t k = first_seen(&m->o.groups[g], pos); k < pos; k++)
                h = mix(h, kv[g][k]);
        }
        for (uint32_t g = 0; g < m->o.n_groups; g++)
            kv[g][pos] = mix(h, g);
        state = mix(h, 1000);
        if (pos + 1 < n) continue;
        out[n_out++] = ids[n] = draw(m, r, choice, pos, h);
        if (stops(r, ids[n])) {
            *stopped = true;
            break;
        }
        if (n_out == limit || n_out == SIM_MAX_LEN) break;
        n++;
    }
    return n_out;
}

/* ---- the device ------------------------------------------------------------------------------ */

static struct sim_req *req_of(void *user)
{
    return user;
}

static uint64_t *word(struct sim *m, uint32_t g, uint32_t block, uint64_t i)
{
    uint64_t unit = m->o.groups[g].block_bytes / 8;
    uint64_t at = (uint64_t)(block >> KV_BLOCK_INDEX_BITS) * m->slab_units +
                  (block & ((1u << KV_BLOCK_INDEX_BITS) - 1)) * unit + i;

    return &m->mem[at];
}

/* Per block: at most 64 of a slab are told apart, which a simulated slab never exceeds. */
static uint64_t user_index(uint32_t block)
{
    uint32_t index = block & ((1u << KV_BLOCK_INDEX_BITS) - 1);

    cn_assert(index < 64);
    return (uint64_t)(block >> KV_BLOCK_INDEX_BITS) * 64 + index;
}

static bool in_flight(const struct sim *m, uint64_t ticket)
{
    for (uint32_t i = 0; i < m->n_steps; i++) {
        if (m->steps[i]->ticket == ticket) return true;
    }
    return false;
}

/* A block that is written must not be one that another sequence's step in flight still reads. */
static void may_write(struct sim *m, uint32_t block, uint64_t owner)
{
    uint64_t u = block == KV_NO_BLOCK ? 0 : user_index(block);

    if (block == KV_NO_BLOCK) sim_fail(m, "a row has no block to write to");
    if (in_flight(m, m->users[u].ticket) && m->users[u].owner != owner)
        sim_fail(m, "block %x is written while a step in flight reads it", block);
}

static uint64_t owner_of(const struct sch_segment *s)
{
    return s->request * 16 + s->choice + 1;
}

/* Every word of the block carries the state, in another form each. */
static uint64_t read_state(struct sim *m, uint32_t g, uint32_t block, uint64_t pos)
{
    uint64_t state = pos ? *word(m, g, block, 0) : 0;

    for (uint64_t i = 1; pos && i < m->o.groups[g].block_bytes / 8; i++) {
        if (*word(m, g, block, i) != state + i) sim_fail(m, "half a state at %" PRIu64, pos);
    }
    return state;
}

static void write_state(struct sim *m, uint32_t g, uint32_t block, uint64_t state)
{
    for (uint64_t i = 0; i < m->o.groups[g].block_bytes / 8; i++)
        *word(m, g, block, i) = state + i;
}

static uint32_t run_row(struct sim *m, const struct sch_segment *s, uint64_t pos, uint32_t token)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    struct sim_req *r = req_of(s->user);
    uint64_t h = row_begin(r, pos, token);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        if (is_state(m, g)) {
            h = mix(h, read_state(m, g, t[g][0], pos));
            continue;
        }
        for (uint64_t k = first_seen(&m->o.groups[g], pos); k < pos; k++) {
            if (t[g][k / bt] == KV_NO_BLOCK) {
                sim_fail(m, "position %" PRIu64 " does not find %" PRIu64, pos, k);
                return 0;
            }
            h = mix(h, *word(m, g, t[g][k / bt], k % bt));
        }
    }
    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        if (is_state(m, g))
            write_state(m, g, t[g][0], mix(h, 1000));
        else
            *word(m, g, t[g][pos / bt], pos % bt) = mix(h, g);
    }
    return draw(m, r, s->choice, pos, h);
}

static void check_segment(struct sim *m, const struct sch_segment *s)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        uint64_t b = is_state(m, g) ? 0 : s->pos / bt;
        uint64_t last = is_state(m, g) ? 0 : (s->pos + s->n_rows - 1) / bt;

        for (; b <= last; b++)
            may_write(m, t[g][b], owner_of(s));
    }
}

static void mark_segment(struct sim *m, const struct sch_segment *s, uint64_t ticket)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        uint64_t b = is_state(m, g) ? 0 : first_seen(&m->o.groups[g], s->pos) / bt;
        uint64_t last = is_state(m, g) ? 0 : (s->pos + s->n_rows - 1) / bt;

        for (; b <= last; b++) {
            uint64_t u = t[g][b] == KV_NO_BLOCK ? 0 : user_index(t[g][b]);
            bool other = m->users[u].ticket == ticket && m->users[u].owner != owner_of(s);

            m->users[u].ticket = ticket;
            m->users[u].owner = other ? 0 : owner_of(s);
        }
    }
}

static void run_segment(struct sim *m, struct sim_step *st, const struct sch_segment *s)
{
    struct sim_req *r = req_of(s->user);

    if (r->ends) sim_fail(m, "rows for a request that has ended");
    r->had_rows = true;
    if ((r->spec.flags & SCH_ONE_STEP) && (s->pos || s->n_rows != r->spec.n_prompt))
        sim_fail(m, "a part of a prompt that needs one step");
    if (s->n_sample > s->n_logits || s->n_logits > s->n_rows) sim_fail(m, "logits of a segment");
    if (s->n_sample > 1 && (s->n_sample != s->n_rows || s->n_sample > m->o.max_draft + 1 ||
                            s->pos < r->spec.n_prompt))
        sim_fail(m, "a segment of %u rows and %u draws", s->n_rows, s->n_sample);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint64_t pos = s->pos + i;
        uint32_t token = 0;

        if (s->tokens) {
            token = s->tokens[i];
        } else {
            for (uint32_t k = 0; k < m->n_steps; k++) {
                if (m->steps[k]->ticket == s->from_ticket)
                    token = m->steps[k]->sampled[s->from_row];
            }
            if (!in_flight(m, s->from_ticket)) sim_fail(m, "a token of a step that is gone");
        }
        if (pos < r->spec.n_prompt && token != r->prompt[pos]) sim_fail(m, "a wrong prompt token");
        if (i + s->n_logits >= s->n_rows && pos < r->spec.n_prompt && s->choice == 0)
            r->scored[pos]++;
        st->sampled[s->first_row + i] = run_row(m, s, pos, token);
        m->prompt_rows += pos < r->spec.n_prompt;
    }
}

static void check_step(struct sim *m, const struct sch_step *step)
{
    uint32_t rows = 0, logits = 0, sample = 0, background = 0, drafts = 0, reads = 0;

    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *s = &step->segments[i];

        if (s->first_row != rows || !s->n_rows) sim_fail(m, "rows of a segment");
        if (req_of(s->user)->spec.model != step->model) sim_fail(m, "a step of two models");
        background += req_of(s->user)->spec.class == SCH_BACKGROUND;
        if (!s->tokens && s->n_rows != 1) sim_fail(m, "more than one row from a ticket");
        rows += s->n_rows;
        logits += s->n_logits;
        sample += s->n_sample;
        drafts += s->n_sample > 1 ? s->n_sample - 1 : 0;
        reads += s->pos + 1 < req_of(s->user)->spec.n_prompt;
    }
    if (drafts && reads && !m->o.guess) sim_fail(m, "drafts beside a prompt");
    if (rows != step->n_rows || logits != step->n_logits || sample != step->n_sample)
        sim_fail(m, "sums of a step");
    if (background && background != step->n_segments) sim_fail(m, "background rows beside others");
    if (rows > m->o.max_rows || logits > m->o.max_logit_rows || !rows)
        sim_fail(m, "a step of %u rows and %u logits", rows, logits);
}

static void start_step(struct sim *m, const struct sch_step *step, struct sim_step *st)
{
    st->sampled = cn_calloc(step->n_rows, sizeof(*st->sampled));
    st->step = step;
    st->ticket = ++m->tickets;
    st->lost = m->o.fail_collect && sim_below(m, m->o.fail_collect) == 0;
}

static int sim_launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct sim *m = self;
    struct sim_step *st;

    check_step(m, step);
    if (m->n_steps == m->o.depth) sim_fail(m, "too many steps in flight");
    if (m->o.fail_launch && sim_below(m, m->o.fail_launch) == 0) return CN_EIO;
    for (uint32_t i = 0; i < step->n_segments; i++)
        check_segment(m, &step->segments[i]);
    if (m->failed) return CN_EIO;
    if (m->device) *m->device = true;
    st = cn_calloc(1, sizeof(*st));
    start_step(m, step, st);
    if (m->device) *m->device = false;
    *ticket = st->ticket;
    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct kv_copy *c = &step->copies[i];

        uint64_t words = is_state(m, c->group) ? m->o.groups[c->group].block_bytes / 8
                                               : c->n_tokens;

        for (uint64_t k = 0; k < words; k++)
            *word(m, c->group, c->dst, k) = *word(m, c->group, c->src, k);
    }
    for (uint32_t i = 0; i < step->n_segments; i++) {
        run_segment(m, st, &step->segments[i]);
        mark_segment(m, &step->segments[i], st->ticket);
    }
    m->steps[m->n_steps++] = st;
    m->rows += step->n_rows;
    return 0;
}

static uint64_t keys_read(const struct sim *m, const struct sch_step *step)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *s = &step->segments[i];
        if (s->pos + s->n_rows > req_of(s->user)->spec.n_prompt) continue;
        n += (s->pos + 1) * (m->o.keys_once ? 1 : s->n_rows);
    }
    return n;
}

static int sim_collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct sim *m = self;
    struct sim_step *st = m->steps[0];
    uint32_t n = 0;
    bool lost = st->lost;

    if (!m->n_steps || st->ticket != ticket) sim_fail(m, "collected out of order");
    for (uint32_t i = 0; i < st->step->n_segments; i++) {
        const struct sch_segment *s = &st->step->segments[i];

        if (req_of(s->user)->ends) sim_fail(m, "a request has ended with rows in flight");
        for (uint32_t k = 0; k < s->n_sample; k++) {
            uint32_t row = s->first_row + s->n_rows - s->n_sample + k;
            bool nan = m->o.fail_row && sim_below(m, m->o.fail_row) == 0;

            m->results[n++] = (struct sch_row_result){
                .status = nan ? CN_ENUMERIC : 0,
                .token = st->sampled[row]};
            if (k + 1 == s->n_sample || st->sampled[row] == s->tokens[k + 1]) continue;
            for (k++; k < s->n_sample; k++) /* nobody is to look at these */
                m->results[n++] = (struct sch_row_result){.status = CN_EINTERNAL, .token = ~0u};
        }
    }
    m->clock += m->o.step_ns + m->o.row_ns * st->step->n_rows;
    m->clock += m->o.key_ns * keys_read(m, st->step);
    *out = (struct sch_step_result){n, m->results};
    m->steps[0] = m->steps[1];
    m->n_steps--;
    free(st->sampled);
    free(st);
    return lost ? CN_EIO : 0;
}

static uint64_t sim_now(void *self)
{
    return ((struct sim *)self)->clock;
}

/* Wrong and right ones, in runs; more or fewer than could be used. */
static uint32_t sim_propose(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out)
{
    struct sim *m = arg;
    struct sim_req *r = req_of(d->user);
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

        out[k] = right ? r->solo[d->choice][at + k] : sim_below(m, VOCAB);
    }
    return sim_below(m, 5) ? n : 0;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static enum sch_verdict on_token(void *arg, const struct sch_token *t)
{
    struct sim *m = arg;
    struct sim_req *r = req_of(t->user);

    if (r->ends || r->choice_ends[t->choice]) sim_fail(m, "a token after the end");
    if (t->index != r->n_out[t->choice] || t->position != r->spec.n_prompt + t->index)
        sim_fail(m, "a token out of order");
    if (r->n_out[t->choice] < SIM_MAX_LEN) r->out[t->choice][r->n_out[t->choice]++] = t->token;
    return stops(r, t->token) ? SCH_STOP : SCH_CONTINUE;
}

static void on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason)
{
    struct sim_req *r = req_of(user);

    if (r->ends || r->choice_ends[choice]++) sim_fail(arg, "a choice that ended twice");
    r->choice_reason[choice] = reason;
}

static void on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                   const struct sch_usage *usage)
{
    struct sim *m = arg;
    struct sim_req *r = req_of(user);
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
}

/* ---- the world ------------------------------------------------------------------------------- */

void sim_init(struct sim *m, const struct sim_opts *o)
{
    struct kv_pool_opts po = {.slab_bytes = o->slab_bytes, .n_slabs = o->n_slabs,
                              .key = (const uint8_t *)"0123456789abcdef"};
    struct sch_opts so = o->sch;

    memset(m, 0, sizeof(*m));
    m->o = *o;
    m->rng = o->seed * 0x9e3779b97f4a7c15ull + 99;
    for (int i = 0; i < 8; i++)
        sim_rnd(m);
    m->clock = 1000000;
    m->slab_units = o->slab_bytes / 8;
    m->mem = cn_calloc(m->slab_units * o->n_slabs, 8);
    m->users = cn_calloc((size_t)o->n_slabs * 64, sizeof(*m->users));
    m->results = cn_calloc(o->max_rows, sizeof(*m->results));
    m->reqs = cn_calloc(SIM_MAX_REQS, sizeof(*m->reqs));
    so.stepper = (struct sch_stepper){.self = m, .depth = o->depth, .launch = sim_launch,
                                      .collect = sim_collect, .now = sim_now};
    if (!so.speculation.propose)
        so.speculation = (struct sch_speculation){o->max_draft, o->guess ? sim_propose : NULL, m};
    so.cb.arg = m;
    so.cb.on_token = on_token;
    so.cb.on_choice_end = on_choice_end;
    so.cb.on_end = on_end;
    cn_assert(kv_pool_new(&po, &m->pool, NULL) == 0);
    so.pool = m->pool;
    cn_assert(sch_new(&so, &m->sch, NULL) == 0);
    for (uint32_t i = 0; i < o->n_models; i++) {
        struct kv_space_opts ko = {.id = &i, .id_len = sizeof(i), .block_tokens = o->block_tokens,
                                   .n_groups = o->n_groups, .groups = o->groups};
        struct sch_model_opts mo = {.context = o->context, .max_rows = o->max_rows,
                                    .max_logit_rows = o->max_logit_rows};
        uint32_t model;

        cn_assert(kv_space_add(m->pool, &ko, &m->space[i], NULL) == 0);
        mo.space = m->space[i];
        cn_assert(sch_model_add(m->sch, &mo, &model, NULL) == 0 && model == i);
    }
}

void sim_fini(struct sim *m)
{
    sch_free(m->sch);
    kv_pool_free(m->pool);
    free(m->mem);
    free(m->users);
    free(m->results);
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        for (uint32_t c = 0; c < SIM_MAX_CHOICES; c++)
            free(m->reqs[i].solo[c]);
    }
    free(m->reqs);
}

struct sim_req *sim_req_new(struct sim *m, uint32_t tenant, uint64_t n_prompt, uint64_t max_new)
{
    struct sim_req *r = &m->reqs[m->n_reqs++];

    cn_assert(m->n_reqs <= SIM_MAX_REQS && n_prompt <= SIM_MAX_LEN);
    r->spec = (struct sch_request){.tenant = tenant, .class = SCH_NORMAL, .prompt = r->prompt,
                                   .n_prompt = n_prompt, .max_new = max_new, .n_choices = 1,
                                   .user = r};
    for (uint64_t i = 0; i < n_prompt; i++)
        r->prompt[i] = sim_below(m, VOCAB);
    return r;
}

int sim_submit(struct sim *m, struct sim_req *r)
{
    struct cn_error err;
    int rc = sch_submit(m->sch, &r->spec, &r->id, &err);

    if (rc == 0) r->submitted = true;
    if (!m->device && (rc == CN_ENOMEM || rc == CN_EINTERNAL))
        sim_fail(m, "submit: %s", err.message);
    return rc;
}

bool sim_iterate(struct sim *m)
{
    m->iterations++;
    m->clock += 1000;
    return sch_iterate(m->sch);
}

void sim_run(struct sim *m)
{
    struct sch_stats st;
    uint64_t most = m->iterations + 200000;

    while (!m->failed && m->iterations < most) {
        if (sim_iterate(m)) continue;
        sch_stats(m->sch, &st);
        if (!st.running && !st.waiting && !st.in_flight) return;
        if (sch_next_wake(m->sch) == UINT64_MAX) {
            sim_fail(m, "stuck: %" PRIu64 " run, %" PRIu64 " wait", st.running, st.waiting);
            return;
        }
        m->clock = CN_MAX(m->clock, sch_next_wake(m->sch));
    }
    if (!m->failed) sim_fail(m, "no end after %" PRIu64 " iterations", m->iterations);
}
