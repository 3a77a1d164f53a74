/* Random schedules: random tenants, weights, classes, prompts that share prefixes, adapters, media,
 * several choices, windows, tiny pools, cancels, deadlines, pauses, device errors, one and two
 * steps in flight, masks that come after the launch, ids that are forced by sch_force or by masks
 * of one id. Every output is compared with the same request run alone.
 *
 *   test_schrandom [--runs N] [--seed S] [--shrink S]
 * --seed S runs that one schedule; --shrink S finds the fewest requests with which it fails. */
#include "tests/scheduler/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t max_reqs = 10;

static uint32_t pick(struct sim *m, const uint32_t *v, uint32_t n)
{
    return v[sim_below(m, n)];
}

static struct sim_opts random_opts(uint64_t seed)
{
    static const uint32_t windows[] = {1, 2, 4, 7, 12, 30}, rows[] = {1, 3, 8, 16, 48},
                          blocks[] = {2, 4, 8}, running[] = {1, 2, 3, 8, 32};
    struct sim d = {.rng = seed * 0xd1342543de82ef95ull + 12345};
    struct sim_opts o = {.seed = seed};
    uint32_t unit;

    for (int i = 0; i < 8; i++)
        sim_rnd(&d);
    o.depth = 1 + sim_below(&d, 2);
    o.block_tokens = pick(&d, blocks, 3);
    o.n_groups = 1 + sim_below(&d, SIM_MAX_GROUPS);
    o.n_models = 1 + (sim_below(&d, 4) == 0);
    unit = o.block_tokens * 8;
    for (uint32_t g = 0; g < o.n_groups; g++) {
        o.groups[g].span = sim_below(&d, 2) ? KV_SPAN_ALL : 1 + sim_below(&d, 2);
        o.groups[g].tokens = pick(&d, windows, 6); /* of a state: how sparse */
        o.groups[g].block_bytes = unit * (1 + sim_below(&d, 2));
    }
    if (sim_below(&d, 2)) o.groups[sim_below(&d, o.n_groups)].span = KV_SPAN_STATE;
    o.slab_bytes = unit * (2 + sim_below(&d, 14));
    o.n_slabs = 6 + sim_below(&d, sim_below(&d, 3) ? 20 : 80);
    o.max_rows = pick(&d, rows, 5);
    o.max_logit_rows = 1 + sim_below(&d, o.max_rows);
    o.context = 24 + sim_below(&d, 60);
    o.step_ns = 1000000 * (uint64_t)sim_below(&d, 20);
    o.row_ns = 1 + 100000 * (uint64_t)sim_below(&d, 20);
    o.sch.step_stretch = sim_below(&d, 3) * 0.4;
    o.sch.short_prompt = sim_below(&d, 3) * 16;
    o.sch.max_running = pick(&d, running, 5);
    o.sch.step_target_ns = 1 + 1000000 * (uint64_t)sim_below(&d, 60);
    if (sim_below(&d, 16) == 0) o.fail_launch = 30;
    if (sim_below(&d, 16) == 0) o.fail_collect = 30;
    if (sim_below(&d, 16) == 0) o.fail_row = 40;
    if (sim_below(&d, 8) == 0) o.sch.max_queue = 1 + sim_below(&d, 8);
    if (sim_below(&d, 8) == 0) o.sch.max_queue_tokens = 1 + sim_below(&d, 200);
    if (sim_below(&d, 2)) {
        o.max_draft = 1 + sim_below(&d, 12);
        o.guess = sim_below(&d, 4) != 0;
        if (!o.guess) o.vocab = 2 + sim_below(&d, 3); /* so that something comes back */
    }
    o.late = sim_below(&d, 3) != 0;
    if (sim_below(&d, 2)) o.jitter = 1 + sim_below(&d, 20000000);
    if (o.late && sim_below(&d, 16) == 0) o.fail_draw = 30;
    if (sim_below(&d, 2)) o.host_words = o.slab_bytes / 8 * (1 + sim_below(&d, 2 * o.n_slabs));
    if (sim_below(&d, 4) == 0) o.fail_save = 2 + sim_below(&d, 6);
    if (o.late && sim_below(&d, 3) == 0) o.skip = 2 + sim_below(&d, 30);
    return o;
}

static void set_tenants(struct sim *m, uint32_t n, uint32_t *limits)
{
    for (uint32_t t = 0; t < n; t++) {
        struct sch_tenant_opts o = {.weight = 1 + sim_below(m, 4)};

        if (sim_below(m, 4) == 0)
            o.kv_reserve_bytes = m->o.slab_bytes * m->o.n_slabs / (2 + sim_below(m, 6)) / n;
        if (sim_below(m, 3) == 0) o.max_concurrent = 1 + sim_below(m, 3);
        if (sim_below(m, 6) == 0) o.max_queued = 1 + sim_below(m, 3);
        if (sim_below(m, 8) == 0) o.ceiling = SCH_NORMAL;
        limits[t] = o.max_concurrent;
        cn_assert(sch_tenant_set(m->sch, t, &o) == 0);
    }
}

/* A prefix of an earlier one that cuts no medium, or what followed it; how long. */
static uint32_t begin_alike(struct sim *m, struct sim_req *r, uint32_t len)
{
    const struct sim_req *like = &m->reqs[sim_below(m, m->n_reqs - 1)];
    uint32_t n = CN_MIN(len, 1 + sim_below(m, (uint32_t)like->spec.n_prompt)), k = 0;

    for (; k < like->spec.n_media && like->media[k].first < n; k++) {
        r->media[k] = like->media[k];
        if (like->media[k].first + like->media[k].n > n) n = (uint32_t)like->media[k].first;
    }
    while (k && r->media[k - 1].first >= n)
        k--;
    r->spec.n_media = k;
    r->spec.media = r->media;
    memcpy(r->prompt, like->prompt, n * sizeof(*r->prompt));
    if (n < like->spec.n_prompt) return n;
    k = CN_MIN(like->n_out[0], len - n);
    memcpy(r->prompt + n, like->out[0], k * sizeof(*r->prompt));
    return n + k;
}

static void add_media(struct sim *m, struct sim_req *r, uint32_t from, uint32_t len)
{
    while (r->spec.n_media < SIM_MAX_MEDIA && from + 1 < len) {
        uint32_t first = from + sim_below(m, CN_MIN(len - from - 1, 6u));
        uint32_t n = 1 + sim_below(m, CN_MIN(len - 1 - first, 14u));

        sim_add_media(r, first, n, (uint8_t)sim_below(m, 4));
        from = first + n;
        if (sim_below(m, 2)) return;
    }
}

static void submit_random(struct sim *m, uint32_t n_tenants)
{
    uint32_t len = 1 + sim_below(m, 40);
    struct sim_req *r = sim_req_new(m, sim_below(m, n_tenants), len, sim_below(m, 20));
    uint32_t n = 0;

    r->spec.model = sim_below(m, m->o.n_models);
    r->spec.class = (enum sch_class)sim_below(m, SCH_N_CLASSES);
    if (sim_below(m, 3) == 0) r->spec.n_choices = 1 + sim_below(m, SIM_MAX_CHOICES);
    if (sim_below(m, 10) == 0) r->spec.salt = 1;
    if (sim_below(m, 4) == 0) r->spec.adapter = 1 + sim_below(m, 2);
    if (sim_below(m, 10) == 0) r->spec.flags |= SCH_NO_CACHE_READ;
    if (sim_below(m, 10) == 0) r->spec.flags |= SCH_NO_CACHE_WRITE;
    if (sim_below(m, 10) == 0) r->spec.flags |= SCH_PROMPT_LOGITS;
    if (sim_below(m, 3) == 0) {
        for (uint32_t i = 0; i < CN_ARRAY_LEN(r->marks); i++)
            r->marks[i] = (i ? r->marks[i - 1] : 0) + sim_below(m, len);
        r->spec.marks = r->marks;
        r->spec.n_marks = CN_ARRAY_LEN(r->marks);
    }
    if (sim_below(m, 10) == 0) {
        r->spec.flags |= SCH_ONE_STEP;
        r->spec.n_choices = 1;
        r->spec.max_new = sim_below(m, 2);
    }
    if (sim_below(m, 8) == 0) r->spec.deadline_ns = m->clock + sim_below(m, 400000000);
    if (sim_below(m, 8) == 0) r->spec.queue_deadline_ns = m->clock + sim_below(m, 200000000);
    if (sim_below(m, 2)) r->stop_mod = 3 + sim_below(m, 30);
    if (sim_below(m, 2)) r->force_mod = 4 + sim_below(m, 12);
    if (m->o.late || m->o.depth == 1) {
        r->force_masks = r->force_mod && sim_below(m, 3) == 0;
        if (sim_below(m, 3) == 0) r->mask_mod = 2 + sim_below(m, 4);
    }
    if (m->n_reqs > 1 && sim_below(m, 4)) n = begin_alike(m, r, len);
    if (sim_below(m, 3) == 0) add_media(m, r, n, len);
    sim_submit(m, r);
}

static void check_cancelled(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        struct sim_req *r = &m->reqs[i];

        if (r->cancelled && !r->ends && m->iterations > r->cancel_iteration)
            sim_fail(m, "request %u goes on after its cancel", i);
    }
}

static void meddle(struct sim *m)
{
    struct sim_req *r = &m->reqs[sim_below(m, m->n_reqs)];
    uint32_t what = sim_below(m, 12);

    if (what == 0 && r->submitted && !r->ends && !r->cancelled) {
        sch_cancel(m->sch, r->id);
        r->cancelled = true;
        r->cancel_iteration = m->iterations;
    } else if (what == 1) {
        sch_pause(m->sch, r->id, true);
    } else if (what <= 3) {
        sch_pause(m->sch, r->id, false);
    } else if (what == 4) {
        sch_cancel(m->sch, r->id ^ (uint64_t)1 << 40); /* never existed */
    } else if (what == 5 && r->submitted) {
        uint32_t choice = sim_below(m, r->spec.n_choices), n = 1 + sim_below(m, 6), ids[6];
        bool ended = r->choice_ends[choice] > 0;

        for (uint32_t i = 0; i < n; i++)
            ids[i] = sim_below(m, m->o.vocab ? m->o.vocab : 251);
        if (sim_force(m, r, choice, ids, n) != (ended ? CN_ENOENT : 0))
            sim_fail(m, "ids could not be forced");
    }
}

/* No tenant has more requests at work than it may: those that had a step and have not ended. */
static void check_limits(struct sim *m, const uint32_t *limits, uint32_t n_tenants)
{
    uint32_t n[4][2] = {{0}};

    for (uint32_t i = 0; i < m->n_reqs; i++) {
        const struct sim_req *r = &m->reqs[i];
        uint32_t ended = 0;

        for (uint32_t c = 0; c < r->spec.n_choices; c++)
            ended += r->choice_ends[c];
        if (r->submitted && r->had_rows && ended < r->spec.n_choices)
            n[r->spec.tenant][r->spec.class == SCH_BACKGROUND]++;
    }
    for (uint32_t t = 0; t < n_tenants; t++) {
        if (limits[t] && (n[t][0] > limits[t] || n[t][1] > limits[t]))
            sim_fail(m, "tenant %u runs %u and %u in the background", t, n[t][0], n[t][1]);
    }
}

static void check_world(struct sim *m)
{
    struct cn_error err;

    if (kv_check(m->pool, &err)) sim_fail(m, "pool: %s", err.message);
    if (sch_check(m->sch, &err)) sim_fail(m, "scheduler: %s", err.message);
}

static void check_scores(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        struct sim_req *r = &m->reqs[i];

        if (!(r->spec.flags & SCH_PROMPT_LOGITS) || !(r->spec.flags & SCH_NO_CACHE_READ)) continue;
        if (!r->ends || r->n_out[0] == 0) continue;
        for (uint64_t p = 0; p < r->spec.n_prompt; p++) {
            if (!r->scored[p]) sim_fail(m, "request %u: prompt row %" PRIu64 " not scored", i, p);
        }
    }
}

struct totals {
    uint64_t two, forced, drafted, right, steps, rows, preemptions, cached, recomputed, ends, over,
        taken, used;
    uint64_t saved, restored; /* choices, at preemptions */
    uint64_t beside, masked;  /* steps launched beside another one; rows drawn with late masks */
    uint64_t skipped;         /* draws */
};

static bool run(uint64_t seed, struct totals *tot, bool loud)
{
    struct sim_opts o = random_opts(seed);
    struct sim m;
    struct sch_stats st;
    struct kv_stats kv;
    uint32_t n_tenants, n, left, limits[4];
    bool failed;

    sim_init(&m, &o);
    n_tenants = 1 + sim_below(&m, 4);
    set_tenants(&m, n_tenants, limits);
    n = 1 + sim_below(&m, 10);
    for (left = CN_MIN(n, max_reqs); left && !m.failed;) {
        uint32_t burst = sim_below(&m, 3) ? 1 : 1 + sim_below(&m, left);

        for (; burst; burst--, left--)
            submit_random(&m, n_tenants);
        for (uint32_t i = sim_below(&m, 6); i && !m.failed; i--) {
            sim_iterate(&m);
            check_cancelled(&m);
            check_limits(&m, limits, n_tenants);
            meddle(&m);
            if (sim_below(&m, 3) == 0) check_world(&m);
            if (sim_below(&m, 6) == 0) m.clock += sim_below(&m, 50000000);
        }
    }
    for (uint32_t i = sim_below(&m, 40); i && !m.failed; i--) {
        sim_iterate(&m);
        check_cancelled(&m);
        check_limits(&m, limits, n_tenants);
        meddle(&m);
        if (sim_below(&m, 3) == 0) check_world(&m);
    }
    for (uint32_t i = 0; i < m.n_reqs; i++)
        sch_pause(m.sch, m.reqs[i].id, false);
    sim_run(&m);
    sim_check_outputs(&m);
    check_scores(&m);
    sim_check_idle(&m);
    sch_stats(m.sch, &st);
    tot->steps += st.steps;
    tot->two += o.depth == 2;
    tot->beside += m.n_beside;
    tot->masked += m.n_masked;
    tot->skipped += m.n_skipped;
    tot->drafted += st.drafted;
    tot->right += st.drafts_right;
    tot->forced += st.forced;
    tot->rows += st.rows;
    tot->preemptions += st.preemptions;
    tot->cached += st.prompt_cached;
    tot->recomputed += st.recomputed;
    tot->saved += st.saved;
    tot->restored += st.restored;
    tot->ends += st.ended_ok + st.ended_error + st.ended_cancelled;
    for (uint32_t i = 0; i < m.n_reqs; i++) /* more often than is meant: forced */
        tot->over += m.reqs[i].usage.preemptions > 4 * m.reqs[i].spec.n_choices;
    kv_pool_stats(m.pool, &kv);
    tot->taken += kv.snapshots_taken;
    tot->used += kv.snapshots_used;
    failed = m.failed;
    if (failed && loud) printf("seed %" PRIu64 ": %s\n", seed, m.what);
    sim_fini(&m);
    return !failed;
}

int main(int argc, char **argv)
{
    uint64_t runs = 2000, seed = 1, shrink = 0;
    struct totals tot = {0};

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--runs")) runs = strtoull(argv[i + 1], NULL, 0);
        if (!strcmp(argv[i], "--seed")) {
            seed = strtoull(argv[i + 1], NULL, 0);
            runs = 1;
        }
        if (!strcmp(argv[i], "--shrink")) shrink = strtoull(argv[i + 1], NULL, 0);
    }
    for (max_reqs = 1; shrink && max_reqs <= 10; max_reqs++) {
        if (!run(shrink, &tot, true)) {
            printf("fails with %u requests\n", max_reqs);
            return 1;
        }
    }
    max_reqs = 10;
    for (uint64_t i = 0; i < runs; i++) {
        if (!run(seed + i, &tot, true)) return 1;
    }
    if (runs >= 2000 && (!tot.drafted || !tot.right || tot.right == tot.drafted)) {
        printf("drafts: %" PRIu64 ", right: %" PRIu64 "\n", tot.drafted, tot.right);
        return 1;
    }
    if (runs >= 2000 && (!tot.saved || !tot.restored || tot.restored >= tot.saved)) {
        printf("saved: %" PRIu64 ", restored: %" PRIu64 "\n", tot.saved, tot.restored);
        return 1;
    }
    if (runs >= 2000 &&
        (!tot.forced || !tot.masked || !tot.skipped || tot.beside < tot.steps / 10)) {
        printf("forced ids: %" PRIu64 ", late masks: %" PRIu64 ", skipped draws: %" PRIu64
               ", steps beside others: %" PRIu64 " of %" PRIu64 "\n",
               tot.forced, tot.masked, tot.skipped, tot.beside, tot.steps);
        return 1;
    }
    printf("%" PRIu64 " schedules (%" PRIu64 " of depth 2: %" PRIu64
           " steps beside others): %" PRIu64 " requests, %" PRIu64 " steps, %" PRIu64
           " rows, %" PRIu64 " cached, %" PRIu64 " recomputed, %" PRIu64 " preemptions, %" PRIu64
           " saved, %" PRIu64 " restored, %" PRIu64
           " requests preempted more than 4 times, %" PRIu64 " snapshots, used %" PRIu64
           " times, %" PRIu64 " drafts, %" PRIu64 " right, %" PRIu64 " forced ids, %" PRIu64
           " rows with late masks, %" PRIu64 " skipped draws\n",
           runs, tot.two, tot.beside, tot.ends, tot.steps, tot.rows, tot.cached, tot.recomputed,
           tot.preemptions, tot.saved, tot.restored, tot.over, tot.taken, tot.used, tot.drafted,
           tot.right, tot.forced, tot.masked, tot.skipped);
    return 0;
}
