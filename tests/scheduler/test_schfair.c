/* Fairness between tenants over the simulated device: the bound of weighted service, a light tenant
 * beside a flood, one that comes back. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Keeps `n` requests of each tenant in the queue until `steps` iterations are done; the largest
 * difference of weighted service between two tenants, and the bound that it must keep to. */
static void backlog(uint64_t seed, double *worst, double *bound)
{
    struct sim_opts o = simcase_opts(1 + seed % 2);
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
        /* as many places as it can use: half of them are not enough for a large weight */
        struct sch_tenant_opts to = {.weight = 1 + sim_below(&m, 4), .max_concurrent = 16};

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
    simcase_sound(&m);
    simcase_cancel(&m);
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
    struct sim_opts o = simcase_opts(1);
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
    simcase_finish(&m);
    return steps;
}

static void test_places_are_shared_at_once(void **state)
{
    struct sim_opts o = simcase_opts(1);
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
    simcase_finish(&m);
}

static void test_light_tenant_under_a_flood(void **state)
{
    assert_true(steps_to_first_token(50) <= 2 * steps_to_first_token(0) + 1);
}

static void test_returning_tenant_has_no_credit(void **state)
{
    struct sim_opts o = simcase_opts(1);
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
    simcase_finish(&m);
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Two models stream, two requests each, of tenants with these weights; the most steps from one
 * token of a stream to its next. */
static uint32_t longest_gap(double weight0, double weight1, bool one_tenant)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *r[4];
    uint32_t last[4] = {0}, seen[4] = {0}, worst = 0;
    struct sim m;

    o.n_models = 2;
    sim_init(&m, &o);
    sch_tenant_set(m.sch, 0, &(struct sch_tenant_opts){.weight = weight0});
    sch_tenant_set(m.sch, 1, &(struct sch_tenant_opts){.weight = weight1});
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = sim_req_new(&m, one_tenant ? 0 : i % 2, 8, 100);
        r[i]->spec.model = i % 2;
        sim_submit(&m, r[i]);
    }
    for (uint32_t step = 1; !r[0]->ends && !r[1]->ends; step++) {
        sim_iterate(&m);
        for (uint32_t i = 0; i < 4; i++) {
            if (r[i]->n_out[0] == seen[i]) continue;
            if (seen[i]) worst = CN_MAX(worst, step - last[i]);
            seen[i] = r[i]->n_out[0];
            last[i] = step;
        }
    }
    simcase_finish(&m);
    return worst;
}

static void test_models_take_turns(void **state)
{
    assert_int_equal(longest_gap(1, 1, true), 2);
    /* What the time costs that blocks are held may tip the balance for a step. */
    assert_in_range(longest_gap(1, 1, false), 2, 3);
    /* A tenant of hardly any weight, alone on its model, waits for four steps of the other's. */
    assert_int_equal(longest_gap(1, 1000, false), 5);
    assert_int_equal(longest_gap(1000, 1, false), 5);
}

/* While one model decodes, the other's prompts are read in steps of the target, the first of a
 * block. */
static void test_prompts_beside_another_model(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *stream, *r;
    uint64_t rows, most = 0, first = 0;
    struct sim m;

    o.n_models = 2;
    o.sch.step_target_ns = 3 * o.step_ns;
    sim_init(&m, &o);
    stream = sim_req_new(&m, 0, 8, 200);
    sim_submit(&m, stream);
    for (int i = 0; i < 10; i++)
        sim_iterate(&m);
    r = sim_req_new(&m, 0, 250, 1);
    r->spec.model = 1;
    sim_submit(&m, r);
    while (!r->ends) {
        rows = m.rows;
        sim_iterate(&m);
        rows = m.rows - rows;
        if (rows > 1 && !first) first = rows;
        most = CN_MAX(most, rows);
    }
    assert_false(stream->ends);
    assert_int_equal(first, o.block_tokens);
    /* (3 - 1) ms / 0.1 ms a row: */
    assert_in_range(most, 10, 20);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weighted_fairness_bound),
        cmocka_unit_test(test_places_are_shared_at_once),
        cmocka_unit_test(test_light_tenant_under_a_flood),
        cmocka_unit_test(test_returning_tenant_has_no_credit),
        cmocka_unit_test(test_models_take_turns),
        cmocka_unit_test(test_prompts_beside_another_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
