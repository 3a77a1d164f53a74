/* Who may wait and who may start: each tenant's part of the queue, limits of a tenant, and what a
 * refused request is told. Over the simulated device. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void set(struct sim *m, uint32_t tenant, double weight, uint32_t concurrent, uint32_t queued)
{
    struct sch_tenant_opts o = {
        .weight = weight, .max_concurrent = concurrent, .max_queued = queued};

    assert_int_equal(sch_tenant_set(m->sch, tenant, &o), 0);
}

static int submit(struct sim *m, uint32_t tenant, uint64_t n_prompt)
{
    int rc = sim_submit(m, sim_req_new(m, tenant, n_prompt, 5));

    if (rc) m->n_reqs--; /* its place is used again */
    simcase_sound(m);
    return rc;
}

/* How many of at most `most` are accepted; a refusal has code rc. */
static uint32_t fill(struct sim *m, uint32_t tenant, uint64_t n_prompt, uint32_t most, int want)
{
    for (uint32_t n = 0; n < most; n++) {
        int rc = submit(m, tenant, n_prompt);

        if (rc) assert_int_equal(rc, want);
        if (rc) return n;
    }
    return most;
}

static uint64_t started(const struct sim *m, uint32_t tenant)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < m->n_reqs; i++)
        n += m->reqs[i].spec.tenant == tenant && m->reqs[i].had_rows;
    return n;
}

static uint64_t at_work(const struct sim *m, uint32_t tenant)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < m->n_reqs; i++)
        n += m->reqs[i].spec.tenant == tenant && m->reqs[i].had_rows && !m->reqs[i].ends;
    return n;
}

/* ---- parts of the queue ---------------------------------------------------------------------- */

static void test_one_tenant_has_the_whole_queue(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue = 20;
    sim_init(&m, &o);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 20);
    simcase_finish(&m);
}

/* 20 places: a flood has half of them. With its own limit it has more: 10 are divided 1:1 (5 each),
 * so it leaves 5; 1:3 leaves more to the heavy one. */
static void test_a_flood_leaves_the_others_their_part(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue = 20;
    sim_init(&m, &o);
    set(&m, 0, 1, 0, 0);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 10);
    set(&m, 0, 1, 0, 60);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 5);
    assert_int_equal(fill(&m, 1, 10, 60, CN_EQUEUE), 5);
    assert_int_equal(submit(&m, 0, 10), CN_EQUEUE);
    simcase_finish(&m);

    sim_init(&m, &o);
    set(&m, 0, 1, 0, 60);
    set(&m, 1, 3, 0, 0);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 13); /* kept: 1 + 8 x 3/4 */
    assert_int_equal(fill(&m, 1, 10, 60, CN_EQUEUE), 7);
    simcase_finish(&m);
}

/* In whatever order floods come, and while the queue drains. */
static void test_below_its_part_nobody_is_refused(void **state)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct sim_opts o = simcase_opts(1);
        struct sim m;
        uint32_t n_tenants;

        o.seed = seed;
        o.sch.max_queue = 16;
        o.sch.max_running = 2;
        sim_init(&m, &o);
        n_tenants = 2 + sim_below(&m, 7);
        for (uint32_t t = 0; t < n_tenants; t++)
            set(&m, t, 1, 0, 0);
        while (m.n_reqs < SIM_MAX_REQS) {
            uint32_t t = sim_below(&m, 3) ? 0 : sim_below(&m, n_tenants);
            struct sch_tenant_stats ts;
            struct sch_stats st;
            int rc;

            sch_tenant_stats(m.sch, t, &ts);
            rc = submit(&m, t, 1 + sim_below(&m, 30));
            if (rc) assert_true(rc == CN_EQUEUE && ts.waiting >= 8 / n_tenants);
            sch_stats(m.sch, &st);
            assert_true(st.waiting - st.preemptions <= 16);
            if (sim_below(&m, 4) == 0 || rc) sim_iterate(&m);
        }
        simcase_finish(&m);
    }
}

static void test_parts_of_the_tokens(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue_tokens = 400;
    sim_init(&m, &o);
    set(&m, 0, 1, 0, 0);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 20, 60, CN_EQUEUE), 10); /* half of them */
    assert_int_equal(fill(&m, 1, 20, 60, CN_EQUEUE), 10);
    simcase_finish(&m);

    sim_init(&m, &o);
    set(&m, 0, 1, 0, 0);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 20, 60, CN_EQUEUE), 10);
    assert_int_equal(submit(&m, 1, 300), 0); /* the only one it has there */
    assert_int_equal(submit(&m, 1, 20), CN_EQUEUE);
    simcase_finish(&m);
}

static void test_more_tenants_than_places(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue = 8;
    sim_init(&m, &o);
    set(&m, 99, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 4);
    assert_int_equal(fill(&m, 1, 10, 60, CN_EQUEUE), 2);
    assert_int_equal(fill(&m, 2, 10, 60, CN_EQUEUE), 1);
    assert_int_equal(fill(&m, 99, 10, 60, CN_EQUEUE), 1);
    simcase_finish(&m);
}

/* What was divided before counts anew when a tenant comes or its weight changes. */
static void test_parts_follow_the_weights(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue = 20;
    sim_init(&m, &o);
    set(&m, 0, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 10, 8, CN_EQUEUE), 8);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 10, 60, CN_EQUEUE), 2); /* half of them */
    set(&m, 0, 1, 0, 15);                                /* unless its own limit says more */
    assert_int_equal(fill(&m, 0, 10, 60, CN_ERATE), 5);
    set(&m, 1, 3, 0, 0);
    assert_int_equal(submit(&m, 0, 10), CN_ERATE);
    assert_int_equal(fill(&m, 1, 10, 60, CN_EQUEUE), 5);
    simcase_finish(&m);
}

/* ---- limits of a tenant ---------------------------------------------------------------------- */

static void test_max_concurrent_holds_back(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    sim_init(&m, &o);
    set(&m, 0, 1, 2, 0);
    assert_int_equal(fill(&m, 0, 10, 12, 0), 12);
    assert_int_equal(fill(&m, 1, 10, 4, 0), 4);
    while (m.reqs[11].ends == 0) {
        struct sch_tenant_stats ts;

        assert_true(sim_iterate(&m));
        simcase_sound(&m);
        sch_tenant_stats(m.sch, 0, &ts);
        assert_true(at_work(&m, 0) <= 2 && ts.running <= 2);
        if (m.iterations == 2) assert_int_equal(started(&m, 1), 4); /* nobody else waits for it */
    }
    simcase_finish(&m);
}

static void test_max_queued(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    sim_init(&m, &o);
    set(&m, 0, 1, 2, 3);
    set(&m, 1, 1, 0, 3);
    assert_int_equal(fill(&m, 0, 10, 60, CN_ERATE), 5); /* two of them may start at once */
    assert_int_equal(fill(&m, 1, 10, 60, CN_ERATE), 3);
    sim_iterate(&m);
    assert_int_equal(submit(&m, 0, 10), CN_ERATE); /* three wait */
    assert_int_equal(fill(&m, 1, 10, 60, CN_ERATE), 3);
    while (at_work(&m, 0) == 2)
        sim_iterate(&m);
    sim_iterate(&m);
    assert_int_equal(submit(&m, 0, 10), 0);
    simcase_finish(&m);
}

/* A refusal names the limit as conifer.yaml does, its value and whose it is, with what adds up to
 * it. */
static void test_refusals_name_the_limit(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct cn_error err;
    struct sim m;
    struct sim_req *r;

    o.sch.max_queue = 8;
    o.sch.max_queue_tokens = 100;
    sim_init(&m, &o);
    set(&m, 0, 1, 2, 3);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 1, 60, CN_ERATE), 5);
    r = sim_req_new(&m, 0, 1, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_ERATE);
    assert_string_equal(err.message,
                        "this tenant's limit of waiting requests (max_queued) is reached: "
                        "it is 3 beside those that may start (2), and 5 wait");
    m.n_reqs--; /* its place is used again */
    set(&m, 0, 1, 0, 60);
    assert_int_equal(submit(&m, 0, 1), 0);
    r = sim_req_new(&m, 0, 1, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_EQUEUE);
    assert_string_equal(err.message,
                        "the server's queue is full: 6 requests wait, 6 of them this "
                        "tenant's, 2 are kept for other tenants, and this one would add 1; "
                        "the limit (scheduler.queue_requests) is 8");
    m.n_reqs--;
    assert_int_equal(submit(&m, 1, 90), 0);
    r = sim_req_new(&m, 1, 5, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_EQUEUE);
    assert_string_equal(err.message,
                        "the server's queue is full: 96 prompt tokens wait, 90 of them "
                        "this tenant's, 4 are kept for other tenants, and this one would "
                        "add 5; the limit (scheduler.queue_tokens) is 100");
    m.n_reqs--;
    simcase_finish(&m);
}

/* With more tenants than half the queue has places nobody has a part: what a tenant may not have is
 * as much as is left. Of one it is told as of one, and of places of another kind nothing. */
static void test_refusals_count_right(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct cn_error err;
    struct sim m;
    struct sim_req *r;

    o.sch.max_queue = 8;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 5; i++)
        set(&m, i, 1, 0, 0);
    assert_int_equal(fill(&m, 0, 1, 60, CN_EQUEUE), 4);
    r = sim_req_new(&m, 0, 1, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_EQUEUE);
    assert_string_equal(err.message,
                        "the server's queue is full: 4 requests wait, 4 of them this "
                        "tenant's, 4 are kept for other tenants, and this one would add 1; "
                        "the limit (scheduler.queue_requests) is 8");
    m.n_reqs--;
    set(&m, 1, 1, 0, 1);
    assert_int_equal(submit(&m, 1, 1), 0);
    r = sim_req_new(&m, 1, 1, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_ERATE);
    assert_string_equal(err.message,
                        "this tenant's limit of waiting requests (max_queued) is reached: "
                        "it is 1, and 1 waits");
    m.n_reqs--;
    simcase_finish(&m);

    o.sch.max_queue = 2;
    sim_init(&m, &o);
    set(&m, 0, 1, 0, 0);
    set(&m, 1, 1, 0, 0);
    assert_int_equal(submit(&m, 0, 1), 0);
    r = sim_req_new(&m, 0, 1, 5);
    assert_int_equal(sch_submit(m.sch, &r->spec, &r->id, &err), CN_EQUEUE);
    assert_string_equal(err.message,
                        "the server's queue is full: 1 request waits, 1 of them this "
                        "tenant's, 1 is kept for other tenants, and this one would add 1; "
                        "the limit (scheduler.queue_requests) is 2");
    m.n_reqs--;
    simcase_finish(&m);
}

static void test_all_that_waits_is_held_back(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *r;
    uint64_t wake;

    sim_init(&m, &o);
    set(&m, 0, 1, 1, 0);
    assert_int_equal(submit(&m, 0, 10), 0);
    sim_iterate(&m);
    sch_pause(m.sch, m.reqs[0].id, true);
    r = sim_req_new(&m, 0, 10, 5);
    assert_int_equal(sim_submit(&m, r), 0);
    for (uint32_t i = 0; i < 5; i++)
        sim_iterate(&m);
    assert_false(sim_iterate(&m));
    assert_true(sch_next_wake(m.sch) == UINT64_MAX);
    assert_false(r->had_rows);
    r = sim_req_new(&m, 0, 10, 5);
    wake = r->spec.queue_deadline_ns = m.clock + 5000000;
    assert_int_equal(sim_submit(&m, r), 0);
    assert_false(sim_iterate(&m));
    assert_true(sch_next_wake(m.sch) == wake);
    m.clock = wake;
    sim_iterate(&m);
    assert_int_equal(r->code, CN_EDEADLINE);
    assert_false(sim_iterate(&m));
    set(&m, 0, 1, 2, 0); /* a raised limit lets it go */
    assert_true(sim_iterate(&m));
    assert_true(m.reqs[1].had_rows);
    sch_pause(m.sch, m.reqs[0].id, false);
    simcase_finish(&m);
}

/* A request that never started goes behind the limit again when its pause ends. */
static void test_pause_does_not_pass_the_limit(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    sim_init(&m, &o);
    set(&m, 0, 1, 1, 0);
    assert_int_equal(fill(&m, 0, 40, 4, 0), 4);
    sch_pause(m.sch, m.reqs[0].id, true);
    sim_iterate(&m);
    assert_true(m.reqs[1].had_rows && !m.reqs[0].had_rows);
    sch_pause(m.sch, m.reqs[0].id, false);
    simcase_sound(&m);
    while (!m.reqs[1].ends) {
        assert_int_equal(at_work(&m, 0), 1);
        sim_iterate(&m);
    }
    sim_iterate(&m);
    assert_true(m.reqs[0].had_rows && !m.reqs[2].had_rows); /* its age */
    simcase_finish(&m);
}

/* A background request that gets no rows does not keep its tenant's others out. */
static void test_background_does_not_fill_the_limit(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *r;

    sim_init(&m, &o);
    set(&m, 0, 1, 1, 0);
    for (uint32_t i = 0; i < 2; i++) {
        r = sim_req_new(&m, 0, 200, 50);
        r->spec.class = SCH_BACKGROUND;
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_iterate(&m);
    assert_true(m.reqs[0].had_rows);
    assert_int_equal(fill(&m, 1, 10, 1, 0), 1);
    assert_int_equal(fill(&m, 0, 10, 2, 0), 2);
    sim_iterate(&m);
    sim_iterate(&m);
    assert_true(m.reqs[3].had_rows && !m.reqs[4].had_rows && !m.reqs[1].had_rows);
    simcase_finish(&m);
}

/* What a held back tenant did not use it does not get later. */
static void test_no_credit_for_a_pause(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sch_tenant_stats a, b;

    o.sch.max_running = 2;
    sim_init(&m, &o);
    assert_int_equal(submit(&m, 1, 100), 0);
    sch_pause(m.sch, m.reqs[0].id, true);
    assert_int_equal(fill(&m, 0, 100, 20, 0), 20);
    for (uint32_t i = 0; i < 60; i++)
        sim_iterate(&m);
    sch_pause(m.sch, m.reqs[0].id, false);
    sch_tenant_stats(m.sch, 0, &a);
    sch_tenant_stats(m.sch, 1, &b);
    assert_true(a.counter > 0 && b.counter > 0.5 * a.counter);
    simcase_sound(&m);
    simcase_finish(&m);
}

/* ---- Retry-After ----------------------------------------------------------------------------- */

static uint32_t retry_after(uint64_t step_ns, uint32_t waiting)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    uint32_t s;

    o.step_ns = step_ns;
    o.sch.max_running = 1;
    sim_init(&m, &o);
    assert_int_equal(sch_retry_after_s(m.sch), 1);
    assert_int_equal(fill(&m, 0, 10, waiting + 4, 0), waiting + 4);
    while (started(&m, 0) < 4)
        sim_iterate(&m);
    s = sch_retry_after_s(m.sch);
    simcase_finish(&m);
    return s;
}

/* Each request has five steps or six and runs alone: that long is from one start to the next. */
static void test_retry_after_follows_the_rate(void **state)
{
    uint32_t s;

    assert_int_equal(retry_after(1000000, 16), 1);
    s = retry_after(1000000000, 0);
    assert_true(s >= 5 && s <= 7);
    s = retry_after(1000000000, 16); /* and two more of sixteen */
    assert_true(s >= 15 && s <= 21);
    assert_int_equal(retry_after(100000000000, 16), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_tenant_has_the_whole_queue),
        cmocka_unit_test(test_a_flood_leaves_the_others_their_part),
        cmocka_unit_test(test_below_its_part_nobody_is_refused),
        cmocka_unit_test(test_parts_of_the_tokens),
        cmocka_unit_test(test_more_tenants_than_places),
        cmocka_unit_test(test_parts_follow_the_weights),
        cmocka_unit_test(test_max_concurrent_holds_back),
        cmocka_unit_test(test_max_queued),
        cmocka_unit_test(test_refusals_name_the_limit),
        cmocka_unit_test(test_refusals_count_right),
        cmocka_unit_test(test_all_that_waits_is_held_back),
        cmocka_unit_test(test_pause_does_not_pass_the_limit),
        cmocka_unit_test(test_background_does_not_fill_the_limit),
        cmocka_unit_test(test_no_credit_for_a_pause),
        cmocka_unit_test(test_retry_after_follows_the_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
