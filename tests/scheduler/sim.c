/* The simulated device and model; see sim.h. */
#include "tests/scheduler/siminner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void *sim_alloc(struct sim *m, size_t size)
{
    void *p;

    if (m->device) *m->device = true;
    p = cn_calloc(1, size);
    if (m->device) *m->device = false;
    cn_assert(p);
    return p;
}

/* ---- a request alone ------------------------------------------------------------------------- */

uint32_t sim_solo(struct sim *m, const struct sim_req *r, uint32_t choice, uint32_t *out,
                  bool *stopped)
{
    static uint64_t kv[SIM_MAX_GROUPS][2 * SIM_MAX_LEN];
    static struct sim_ids forced;
    const struct sim_text *x = r->text[choice];
    uint32_t ids[2 * SIM_MAX_LEN], n_out = 0;
    uint64_t n = r->spec.n_prompt, limit = r->spec.max_new, state = 0;

    *stopped = false;
    forced.head = forced.n = 0;
    memcpy(ids, r->prompt, n * sizeof(*ids));
    if (!limit) limit = SIM_MAX_LEN;
    for (uint64_t pos = 0; pos < n; pos++) {
        uint64_t h = sim_row_begin(r, pos, ids[pos]);

        for (uint32_t g = 0; g < m->o.n_groups; g++) {
            if (sim_is_state(m, g)) {
                h = sim_mix(h, state);
                continue;
            }
            for (uint64_t k = sim_first_seen(&m->o.groups[g], pos); k < pos; k++)
                h = sim_mix(h, kv[g][k]);
        }
        for (uint32_t g = 0; g < m->o.n_groups; g++)
            kv[g][pos] = sim_mix(h, g);
        state = sim_mix(h, 1000);
        if (pos + 1 < n) continue;
        if (x && x->command[n_out])
            ids[n] = r->out[choice][n_out];
        else if (!sim_ids_next(&forced, &ids[n]))
            ids[n] = sim_pick(m, r, choice, pos, ids[pos], h);
        out[n_out] = ids[n];
        sim_script(m, r, choice, n_out++, ids[n], &forced);
        if (sim_stops(r, ids[n])) {
            *stopped = true;
            break;
        }
        if (n_out == limit || n_out == SIM_MAX_LEN) break;
        n++;
    }
    return n_out;
}
static uint64_t sim_now(void *self)
{
    return ((struct sim *)self)->clock;
}
/* ---- the world ------------------------------------------------------------------------------- */

void sim_init(struct sim *m, const struct sim_opts *o)
{
    struct kv_pool_opts po = {.slab_bytes = o->slab_bytes,
                              .n_slabs = o->n_slabs,
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
    m->max_running = o->sch.max_running ? o->sch.max_running : 256;
    m->slots = cn_calloc(m->max_running, sizeof(*m->slots));
    so.stepper = (struct sch_stepper){.self = m,
                                      .depth = o->depth,
                                      .launch = sim_launch,
                                      .draw = o->late ? sim_draw : NULL,
                                      .collect = sim_collect,
                                      .now = sim_now};
    if (o->host_words) {
        so.stepper.save = sim_save;
        so.stepper.restore = sim_restore;
        so.stepper.forget = sim_forget;
        so.stepper.save_bytes = o->host_words * 8;
        so.stepper.save_rate = sim_save_rate;
    }
    if (!so.speculation.propose)
        so.speculation = (struct sch_speculation){o->max_draft, o->guess ? sim_propose : NULL, m};
    so.cb.arg = m;
    so.cb.on_token = sim_on_token;
    so.cb.on_choice_end = sim_on_choice_end;
    so.cb.on_end = sim_on_end;
    cn_assert(kv_pool_new(&po, &m->pool, NULL) == 0);
    so.pool = m->pool;
    cn_assert(sch_new(&so, &m->sch, NULL) == 0);
    for (uint32_t i = 0; i < o->n_models; i++) {
        struct kv_space_opts ko = {.id = &i,
                                   .id_len = sizeof(i),
                                   .block_tokens = o->block_tokens,
                                   .n_groups = o->n_groups,
                                   .groups = o->groups};
        struct sch_model_opts mo = {
            .context = o->context, .max_rows = o->max_rows, .max_logit_rows = o->max_logit_rows};
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
    for (uint32_t i = 0; i < m->max_running; i++) {
        for (uint32_t g = 0; g < SIM_MAX_GROUPS; g++)
            free(m->slots[i].table[g]);
    }
    free(m->slots);
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        for (uint32_t c = 0; c < SIM_MAX_CHOICES; c++) {
            free(m->reqs[i].solo[c]);
            free(m->reqs[i].text[c]);
        }
    }
    free(m->reqs);
}

struct sim_req *sim_req_new(struct sim *m, uint32_t tenant, uint64_t n_prompt, uint64_t max_new)
{
    struct sim_req *r = &m->reqs[m->n_reqs++];

    cn_assert(m->n_reqs <= SIM_MAX_REQS && n_prompt <= SIM_MAX_LEN);
    r->spec = (struct sch_request){.tenant = tenant,
                                   .class = SCH_NORMAL,
                                   .prompt = r->prompt,
                                   .n_prompt = n_prompt,
                                   .max_new = max_new,
                                   .n_choices = 1,
                                   .user = r};
    for (uint64_t i = 0; i < n_prompt; i++)
        r->prompt[i] = sim_below(m, SIM_VOCAB);
    return r;
}

void sim_add_media(struct sim_req *r, uint64_t first, uint64_t n, uint8_t which)
{
    uint8_t digest[KV_DIGEST_BYTES];

    cn_assert(r->spec.n_media < SIM_MAX_MEDIA);
    for (uint8_t k = 0; k < KV_DIGEST_BYTES / 4; k++) { /* two media never have a word in common */
        digest[4 * k] = which;
        digest[4 * k + 1] = (uint8_t)n;
        digest[4 * k + 2] = (uint8_t)(n >> 8);
        digest[4 * k + 3] = (uint8_t)(k * 11);
    }
    kv_media_ids(digest, n, r->prompt + first);
    r->media[r->spec.n_media++] = (struct sch_media){first, n, which % 2};
    r->spec.media = r->media;
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

/* Masks of skipped draws are there. Whether any was. */
static bool bring_masks(struct sim *m, uint32_t one_in)
{
    bool any = false;

    for (uint32_t i = 0; i < m->n_reqs; i++) {
        struct sim_req *r = &m->reqs[i];

        if (!r->waits || sim_below(m, one_in)) continue;
        r->waits = false;
        any = true;
        sch_pause(m->sch, r->id, false);
    }
    return any;
}

bool sim_iterate(struct sim *m)
{
    m->iterations++;
    m->clock += 1000;
    if (m->o.skip) bring_masks(m, 4);
    return sch_iterate(m->sch) || (m->o.skip && bring_masks(m, 1));
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
