/* What the scheduler promises, case by case, over the simulated device. test_schrandom.c does the
 * combinations. Each test runs with one and with two steps in flight. */
#include "tests/scheduler/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BT 16u
#define BLOCK_BYTES (BT * 8u)

static struct sim_opts base_opts(uint32_t depth)
{
    struct sim_opts o = {.seed = 7, .depth = depth, .block_tokens = BT, .n_groups = 1,
                         .n_models = 1, .slab_bytes = BLOCK_BYTES * 8, .n_slabs = 64,
                         .max_rows = 64,
                         .max_logit_rows = 64, .context = 500, .step_ns = 1000000,
                         .row_ns = 100000};

    o.groups[0].block_bytes = BLOCK_BYTES;
    o.sch.step_target_ns = 1000000000;
    return o;
}

static void sound(struct sim *m)
{
    if (m->failed) fail_msg("%s", m->what);
}

static void finish(struct sim *m)
{
    sim_run(m);
    sim_check_outputs(m);
    sim_check_idle(m);
    sound(m);
    sim_fini(m);
}

static uint64_t in_use(struct sim *m)
{
    struct kv_stats st;

    kv_pool_stats(m->pool, &st);
    return st.blocks[KV_FILLING] + st.blocks[KV_READY] + st.blocks[KV_COPYING];
}

/* ---- at the door ----------------------------------------------------------------------------- */

static int refused(struct sim *m, struct sim_req *r)
{
    struct sch_stats a, b;
    int rc;

    sch_stats(m->sch, &a);
    rc = sim_submit(m, r);
    sch_stats(m->sch, &b);
    assert_int_equal(b.refused - a.refused, rc != 0);
    m->n_reqs--; /* its place is used again */
    return rc;
}

static void test_refusals(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sch_tenant_opts two = {.max_concurrent = 1, .max_queued = 1},
                           queue = {.max_queued = 1};
    struct sch_stats st;
    struct sim m;
    struct sim_req *r;

    o.n_slabs = 4; /* 32 blocks = 512 tokens */
    o.context = 1000;
    o.sch.max_queue = 4;
    o.sch.max_queue_tokens = 1200;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 901);
    assert_int_equal(refused(&m, r), CN_EWINDOW);
    r = sim_req_new(&m, 0, 100, 414);
    assert_int_equal(refused(&m, r), CN_ENEVERFIT);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_choices = 9;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_choices = 0;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_prompt = 0;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.model = 3;
    assert_int_equal(refused(&m, r), CN_EMODEL);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.deadline_ns = 5;
    assert_int_equal(refused(&m, r), CN_EDEADLINE);

    sch_tenant_set(m.sch, 1, &two);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 1, 10, 5)), 0);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 1, 10, 5)), 0);
    assert_int_equal(refused(&m, sim_req_new(&m, 1, 10, 5)), CN_ERATE);
    sch_tenant_set(m.sch, 2, &queue);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 2, 10, 5)), 0);
    assert_int_equal(refused(&m, sim_req_new(&m, 2, 10, 5)), CN_ERATE);
    assert_int_equal(refused(&m, sim_req_new(&m, 3, 490, 5)), 0);
    m.n_reqs++;
    assert_int_equal(refused(&m, sim_req_new(&m, 3, 10, 5)), CN_EQUEUE); /* five would wait */
    do {
        sim_iterate(&m);
        sch_stats(m.sch, &st);
    } while (st.waiting > 2);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 3, 10, 5)), 0);
    assert_true(sch_retry_after_s(m.sch) >= 1);
    finish(&m);
}

static void test_queue_tokens(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;

    o.sch.max_queue_tokens = 100;
    sim_init(&m, &o);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 0, 150, 5)), 0); /* alone it may be longer */
    assert_int_equal(refused(&m, sim_req_new(&m, 0, 10, 5)), CN_EQUEUE);
    finish(&m);
}

static void test_open_ended_runs_to_what_fits(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *r;

    o.n_slabs = 2; /* 256 tokens */
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 0);
    assert_int_equal(sim_submit(&m, r), 0);
    sim_run(&m);
    sound(&m);
    assert_int_equal(r->reason, SCH_END_LENGTH);
    assert_int_equal(r->n_out[0], 157); /* 256 rows, and the last token has none */
    finish(&m);
}

/* ---- shared prefixes ------------------------------------------------------------------------- */

static void burst(uint32_t depth, uint32_t max_rows)
{
    struct sim_opts o = base_opts(depth);
    struct sim m;
    struct sch_stats st;

    o.max_rows = o.max_logit_rows = max_rows;
    o.n_slabs = 128;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 16; i++) {
        struct sim_req *r = sim_req_new(&m, 0, 320 + 5, 8);

        memcpy(r->prompt, m.reqs[0].prompt, 320 * sizeof(*r->prompt));
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_run(&m);
    sound(&m);
    assert_int_equal(m.prompt_rows, 320 + 16 * 5);
    sch_stats(m.sch, &st);
    assert_int_equal(st.prompt_computed, 320 + 16 * 5);
    assert_int_equal(st.prompt_cached, 15 * 320);
    finish(&m);
}

static void test_burst_computes_a_prefix_once(void **state)
{
    burst(1, 64);
    burst(2, 64);
    burst(1, 32);
    burst(2, 17);
}

static void test_cancelled_filler_is_followed(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = base_opts(depth);
        struct sim m;
        struct sim_req *a, *b, *c;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 330, 4);
        b = sim_req_new(&m, 0, 330, 4);
        c = sim_req_new(&m, 0, 330, 4);
        memcpy(b->prompt, a->prompt, sizeof(a->prompt));
        memcpy(c->prompt, a->prompt, sizeof(a->prompt));
        sim_submit(&m, a);
        sim_submit(&m, b);
        sim_submit(&m, c);
        sim_iterate(&m);
        sim_iterate(&m);
        sch_cancel(m.sch, a->id);
        sim_iterate(&m);
        assert_int_equal(a->ends, 1);
        assert_int_equal(a->reason, SCH_END_CANCELLED);
        sim_run(&m);
        sound(&m);
        assert_int_equal(b->reason, SCH_END_LENGTH);
        /* what a had finished is not computed again, but for the steps in flight */
        assert_true(m.prompt_rows <= 330 + 64 * depth + 2 * BT);
        finish(&m);
    }
}

static void test_other_tenant_finds_nothing(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *a, *b, *c, *d;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 200, 4);
    b = sim_req_new(&m, 1, 200, 4);
    c = sim_req_new(&m, 0, 200, 4);
    d = sim_req_new(&m, 0, 200, 4);
    memcpy(b->prompt, a->prompt, sizeof(a->prompt));
    memcpy(c->prompt, a->prompt, sizeof(a->prompt));
    memcpy(d->prompt, a->prompt, sizeof(a->prompt));
    d->spec.flags = SCH_NO_CACHE_READ;
    sim_submit(&m, a);
    sim_run(&m);
    sim_submit(&m, b);
    sim_submit(&m, c);
    sim_submit(&m, d);
    sim_run(&m);
    assert_int_equal(a->usage.cached_tokens, 0);
    assert_int_equal(b->usage.cached_tokens, 0);
    assert_int_equal(b->usage.computed_tokens, 203);
    assert_int_equal(c->usage.cached_tokens, 192); /* whole blocks */
    assert_int_equal(d->usage.cached_tokens, 0);
    finish(&m);
}

static void test_choices_share_the_prompt(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = base_opts(depth);
        struct sim m;
        struct sim_req *r;
        bool together = false;

        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 205, 30);
        r->spec.n_choices = 4;
        sim_submit(&m, r);
        while (!r->ends && sim_iterate(&m))
            together = together || (r->n_out[0] && r->n_out[3] && !r->choice_ends[0]);
        assert_true(together);
        assert_int_equal(m.prompt_rows, 205 + 3); /* each its own last row */
        finish(&m);
    }
}

static void test_reserve_survives_a_flood(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sch_tenant_opts keep = {.kv_reserve_bytes = 14 * BLOCK_BYTES};
    struct sim m;
    struct sim_req *warm, *again;

    o.n_slabs = 4;
    sim_init(&m, &o);
    sch_tenant_set(m.sch, 0, &keep);
    warm = sim_req_new(&m, 0, 200, 2);
    sim_submit(&m, warm);
    sim_run(&m);
    for (uint32_t i = 0; i < 20; i++) { /* each of them most of the pool */
        sim_submit(&m, sim_req_new(&m, 1, 270, 1));
        sim_run(&m);
    }
    again = sim_req_new(&m, 0, 200, 2);
    memcpy(again->prompt, warm->prompt, sizeof(warm->prompt));
    sim_submit(&m, again);
    sim_run(&m);
    assert_true(again->usage.cached_tokens >= 192);
    finish(&m);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void cancel_after(uint32_t depth, uint32_t iterations, bool two)
{
    struct sim_opts o = base_opts(depth);
    struct sim m;
    struct sim_req *r, *other = NULL;

    o.max_rows = o.max_logit_rows = 32;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 200, 100);
    if (two) { /* r waits for a block that the other one fills */
        other = sim_req_new(&m, 0, 200, 3);
        memcpy(r->prompt, other->prompt, sizeof(r->prompt));
        sim_submit(&m, other);
    }
    sim_submit(&m, r);
    for (uint32_t i = 0; i < iterations; i++)
        sim_iterate(&m);
    assert_int_equal(r->ends, 0);
    sch_cancel(m.sch, r->id);
    sim_iterate(&m);
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->reason, SCH_END_CANCELLED);
    assert_int_equal(r->code, CN_ECANCELLED);
    if (!two) assert_int_equal(in_use(&m), 0);
    sch_cancel(m.sch, r->id); /* stale now */
    sch_pause(m.sch, r->id, true);
    sim_run(&m);
    if (two) assert_int_equal(other->reason, SCH_END_LENGTH);
    finish(&m);
}

static void test_cancel_in_every_phase(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (uint32_t i = 0; i < 40; i++) {
            cancel_after(depth, i, false);
            cancel_after(depth, i, true);
        }
    }
}

static void test_deadlines(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *a, *b, *c;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 100, 300);
    b = sim_req_new(&m, 0, 100, 5);
    c = sim_req_new(&m, 0, 100, 5);
    a->spec.deadline_ns = m.clock + 100000000;
    b->spec.queue_deadline_ns = m.clock + 20000000;
    sim_submit(&m, a);
    sim_submit(&m, b);
    sim_submit(&m, c);
    sim_run(&m);
    assert_int_equal(a->reason, SCH_END_DEADLINE);
    assert_int_equal(a->code, CN_EDEADLINE);
    assert_true(a->n_out[0] > 10);
    assert_true(a->usage.ended_ns <= a->spec.deadline_ns + 20000000);
    assert_int_equal(b->reason, SCH_END_DEADLINE);
    assert_int_equal(b->n_out[0], 0);
    assert_int_equal(c->reason, SCH_END_LENGTH);
    finish(&m);
}

static void test_deadline_of_a_paused_request_wakes(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *a;
    uint32_t before;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 20, 300);
    a->spec.deadline_ns = m.clock + 1000000000;
    sim_submit(&m, a);
    for (int i = 0; i < 5; i++)
        sim_iterate(&m);
    sch_pause(m.sch, a->id, true);
    before = a->n_out[0];
    assert_false(sim_iterate(&m));
    assert_int_equal(a->n_out[0], before);
    assert_int_equal(sch_next_wake(m.sch), a->spec.deadline_ns);
    m.clock = a->spec.deadline_ns;
    sim_iterate(&m);
    assert_int_equal(a->reason, SCH_END_DEADLINE);
    assert_int_equal(sch_next_wake(m.sch), UINT64_MAX);
    finish(&m);
}

static void test_numeric_error_fails_one_and_is_not_cached(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *r;

    o.fail_row = 1;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 5);
    sim_submit(&m, r);
    sim_run(&m);
    assert_int_equal(r->reason, SCH_END_ERROR);
    assert_int_equal(r->code, CN_ENUMERIC);
    assert_int_equal(kv_space_peek(m.space[0], 0, 0, r->prompt, 100, NULL), 0);
    finish(&m);
}

static void test_device_errors_end_the_step_only(void **state)
{
    for (int which = 0; which < 2; which++) {
        struct sim_opts o = base_opts(1);
        struct sim m;
        struct sim_req *a, *b;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 10, 5);
        sim_submit(&m, a);
        if (which)
            m.o.fail_launch = 1;
        else
            m.o.fail_collect = 1;
        sim_run(&m);
        assert_int_equal(a->reason, SCH_END_ERROR);
        assert_int_equal(a->code, CN_EIO);
        m.o.fail_launch = m.o.fail_collect = 0;
        b = sim_req_new(&m, 0, 10, 5);
        sim_submit(&m, b);
        sim_run(&m);
        assert_int_equal(b->reason, SCH_END_LENGTH);
        finish(&m);
    }
}

static void test_free_ends_what_is_left(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = base_opts(depth);
        struct sim m;
        struct sim_req *a, *b;

        o.sch.max_running = 1;
        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 100, 50);
        b = sim_req_new(&m, 0, 100, 50);
        sim_submit(&m, a);
        sim_submit(&m, b);
        for (int i = 0; i < 6; i++)
            sim_iterate(&m);
        sch_free(m.sch);
        m.sch = NULL;
        assert_int_equal(a->ends, 1);
        assert_int_equal(b->ends, 1);
        assert_int_equal(in_use(&m), 0);
        sound(&m);
        sim_fini(&m);
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_decode_goes_on_beside_a_long_prompt(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *a, *b;
    uint32_t steps = 0, before;

    o.sch.step_target_ns = 3000000; /* 20 rows */
    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 10, 300);
    b = sim_req_new(&m, 1, 480, 3);
    sim_submit(&m, a);
    for (int i = 0; i < 60; i++)
        sim_iterate(&m);
    sim_submit(&m, b);
    before = a->n_out[0];
    while (!b->n_out[0] && sim_iterate(&m))
        steps++;
    assert_true(steps >= 480 / 32);          /* in chunks that keep to the target */
    assert_true(a->n_out[0] - before >= steps - 1); /* and a got a token in each */
    finish(&m);
}

static void test_background_runs_when_idle(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *bg, *fg;
    uint32_t had;

    sim_init(&m, &o);
    bg = sim_req_new(&m, 0, 50, 40);
    bg->spec.class = SCH_BACKGROUND;
    sim_submit(&m, bg);
    for (int i = 0; i < 5; i++)
        sim_iterate(&m);
    had = bg->n_out[0];
    assert_true(had > 0);
    fg = sim_req_new(&m, 1, 50, 40);
    sim_submit(&m, fg);
    sim_iterate(&m);
    had = bg->n_out[0];
    while (!fg->ends)
        sim_iterate(&m);
    assert_int_equal(bg->n_out[0], had);
    sim_run(&m);
    assert_int_equal(bg->reason, SCH_END_LENGTH);
    finish(&m);
}

static void test_ceiling(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sch_tenant_opts low = {.ceiling = SCH_BACKGROUND};
    struct sim m;
    struct sim_req *a, *b;

    sim_init(&m, &o);
    sch_tenant_set(m.sch, 0, &low);
    a = sim_req_new(&m, 0, 50, 5);
    a->spec.class = SCH_BACKGROUND; /* for the simulator's own check */
    b = sim_req_new(&m, 1, 50, 5);
    a->spec.class = SCH_INTERACTIVE;
    sim_submit(&m, a);
    a->spec.class = SCH_BACKGROUND;
    sim_submit(&m, b);
    while (!a->ends)
        sim_iterate(&m);
    assert_int_equal(b->ends, 1);
    finish(&m);
}

static void test_longest_prefix_first_but_not_for_ever(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *warm, *cold, *hits[20];
    uint32_t first = 0;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    warm = sim_req_new(&m, 0, 200, 1);
    sim_submit(&m, warm);
    sim_run(&m);
    cold = sim_req_new(&m, 0, 200, 1);
    sim_submit(&m, cold);
    for (uint32_t i = 0; i < 20; i++) {
        hits[i] = sim_req_new(&m, 0, 210, 1);
        memcpy(hits[i]->prompt, warm->prompt, 200 * sizeof(*warm->prompt));
        sim_submit(&m, hits[i]);
    }
    while (!cold->ends)
        sim_iterate(&m);
    for (uint32_t i = 0; i < 20; i++)
        first += hits[i]->ends;
    assert_true(first >= 4 && first <= 10);
    finish(&m);
}

static void test_preemption_keeps_bytes_and_bounds(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = base_opts(depth);
        struct sim m;
        struct sch_stats st;

        o.n_slabs = 5; /* 40 blocks; eight that grow to 11 each */
        sim_init(&m, &o);
        for (uint32_t i = 0; i < 12; i++)
            sim_submit(&m, sim_req_new(&m, i % 3, 20, 150));
        sim_run(&m);
        sch_stats(m.sch, &st);
        assert_true(st.preemptions > 0);
        for (uint32_t i = 0; i < m.n_reqs; i++) {
            assert_int_equal(m.reqs[i].reason, SCH_END_LENGTH);
            assert_true(m.reqs[i].usage.preemptions <= 4);
        }
        finish(&m);
    }
}

/* ---- fairness -------------------------------------------------------------------------------- */

/* Keeps `n` requests of each tenant in the queue until `steps` iterations are done; the largest
 * difference of weighted service between two tenants, and the bound that it must keep to. */
static void backlog(uint64_t seed, double *worst, double *bound)
{
    struct sim_opts o = base_opts(1 + seed % 2);
    struct sim m;
    uint32_t n_tenants, longest = 0, out[4], len[4];
    double w[4], least = 1e9, begin[4];

    o.seed = seed;
    o.sch.max_running = 4 + seed % 13;
    o.max_rows = o.max_logit_rows = 16 + seed % 49;
    o.sch.quantum = 64;
    sim_init(&m, &o);
    n_tenants = 2 + sim_below(&m, 3);
    for (uint32_t t = 0; t < n_tenants; t++) {
        struct sch_tenant_opts to = {.weight = 1 + sim_below(&m, 4)};

        sch_tenant_set(m.sch, t, &to);
        w[t] = to.weight;
        least = CN_MIN(least, w[t]);
        len[t] = 1 + sim_below(&m, 150);
        out[t] = 1 + sim_below(&m, 40);
        longest = CN_MAX(longest, len[t] + 2 * out[t]);
        for (uint32_t k = 0; k < 16; k++)
            sim_submit(&m, sim_req_new(&m, t, len[t], out[t]));
    }
    *worst = 0;
    for (uint32_t step = 0; step < 1500 && !m.failed; step++) {
        double lo = 1e18, hi = -1e18;

        sim_iterate(&m);
        for (uint32_t i = 0; i < m.n_reqs; i++) {
            struct sim_req *r = &m.reqs[i];
            struct sch_request spec = r->spec;

            if (!r->ends) continue;
            memset(r, 0, sizeof(*r)); /* another in its place */
            r->spec = spec;
            for (uint32_t k = 0; k < len[spec.tenant]; k++)
                r->prompt[k] = sim_below(&m, 251);
            sim_submit(&m, r);
        }
        for (uint32_t t = 0; t < n_tenants; t++) {
            struct sch_tenant_stats ts;

            sch_tenant_stats(m.sch, t, &ts);
            if (step == 200) begin[t] = ts.served / w[t];
            if (step <= 200) continue;
            lo = CN_MIN(lo, ts.served / w[t] - begin[t]);
            hi = CN_MAX(hi, ts.served / w[t] - begin[t]);
        }
        if (step > 200) *worst = CN_MAX(*worst, hi - lo);
    }
    /* VTC: twice the larger of a request's input and what a batch can hold, over the weight */
    *bound = (2 * CN_MAX((double)longest, 2.0 * o.sch.max_running * 40) + 64) / least;
    sound(&m);
    for (uint32_t i = 0; i < m.n_reqs; i++)
        sch_cancel(m.sch, m.reqs[i].id);
    sim_run(&m);
    sim_check_idle(&m);
    sound(&m);
    sim_fini(&m);
}

static void test_weighted_fairness_bound(void **state)
{
    double most = 0;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        double worst, bound;

        backlog(seed, &worst, &bound);
        if (worst > bound) fail_msg("seed %d: %f over the bound of %f", (int)seed, worst, bound);
        most = CN_MAX(most, worst / bound);
    }
    print_message("largest difference: %.2f of the bound\n", most);
}

static uint32_t steps_to_first_token(uint32_t flood)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sim_req *light;
    uint32_t steps = 0;

    o.sch.max_running = 16;
    o.n_slabs = 40;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < flood; i++)
        sim_submit(&m, sim_req_new(&m, 0, 200, 200));
    for (uint32_t i = 0; flood && i < 100; i++)
        sim_iterate(&m);
    light = sim_req_new(&m, 1, 100, 5);
    sim_submit(&m, light);
    while (!light->n_out[0]) {
        sim_iterate(&m);
        steps++;
    }
    finish(&m);
    return steps;
}

static void test_places_are_shared_at_once(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sch_tenant_stats a, b;

    o.sch.max_running = 8;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 32; i++)
        sim_submit(&m, sim_req_new(&m, i / 16, 100, 20));
    sim_iterate(&m);
    sch_tenant_stats(m.sch, 0, &a);
    sch_tenant_stats(m.sch, 1, &b);
    assert_int_equal(a.running, 4);
    assert_int_equal(b.running, 4);
    finish(&m);
}

static void test_light_tenant_under_a_flood(void **state)
{
    assert_true(steps_to_first_token(50) <= 2 * steps_to_first_token(0) + 1);
}

static void test_returning_tenant_has_no_credit(void **state)
{
    struct sim_opts o = base_opts(1);
    struct sim m;
    struct sch_tenant_stats a, b;

    o.sch.max_running = 2;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 20; i++)
        sim_submit(&m, sim_req_new(&m, 0, 100, 20));
    for (uint32_t i = 0; i < 200; i++)
        sim_iterate(&m);
    sim_submit(&m, sim_req_new(&m, 1, 100, 20));
    sch_tenant_stats(m.sch, 0, &a);
    sch_tenant_stats(m.sch, 1, &b);
    assert_true(b.counter > 0.5 * a.counter);
    finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_queue_tokens),
        cmocka_unit_test(test_open_ended_runs_to_what_fits),
        cmocka_unit_test(test_burst_computes_a_prefix_once),
        cmocka_unit_test(test_cancelled_filler_is_followed),
        cmocka_unit_test(test_other_tenant_finds_nothing),
        cmocka_unit_test(test_choices_share_the_prompt),
        cmocka_unit_test(test_reserve_survives_a_flood),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_deadline_of_a_paused_request_wakes),
        cmocka_unit_test(test_numeric_error_fails_one_and_is_not_cached),
        cmocka_unit_test(test_device_errors_end_the_step_only),
        cmocka_unit_test(test_free_ends_what_is_left),
        cmocka_unit_test(test_decode_goes_on_beside_a_long_prompt),
        cmocka_unit_test(test_background_runs_when_idle),
        cmocka_unit_test(test_ceiling),
        cmocka_unit_test(test_longest_prefix_first_but_not_for_ever),
        cmocka_unit_test(test_preemption_keeps_bytes_and_bounds),
        cmocka_unit_test(test_weighted_fairness_bound),
        cmocka_unit_test(test_places_are_shared_at_once),
        cmocka_unit_test(test_light_tenant_under_a_flood),
        cmocka_unit_test(test_returning_tenant_has_no_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
