/* Tenants that come, change and go while others are served: numbers that are used again, and leases
 * of output tokens. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static uint64_t lease_of(struct sim *m, uint32_t tenant)
{
    struct sch_tenant_stats st;

    sch_tenant_stats(m->sch, tenant, &st);
    return st.lease;
}

static uint64_t generated_of(struct sim *m, uint32_t tenant)
{
    struct sch_tenant_stats st;

    sch_tenant_stats(m->sch, tenant, &st);
    return st.generated;
}

/* ---- leases ---------------------------------------------------------------------------------- */

static struct sim_req *ask(struct sim *m, uint32_t tenant, uint64_t n_prompt, uint64_t max_new)
{
    struct sim_req *r = sim_req_new(m, tenant, n_prompt, max_new);

    assert_int_equal(sim_submit(m, r), 0);
    return r;
}

/* Many at once on a lease for some: exactly that many tokens, whoever gets them. */
static void lease_to_the_token(uint32_t depth, uint64_t lease, uint32_t drafts)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim_req *r[16], *other;
    struct sim m;
    uint64_t out = 0;

    o.max_draft = drafts;
    o.guess = drafts > 0;
    sim_init(&m, &o);
    assert_int_equal(lease_of(&m, 1), SCH_NO_LEASE);
    assert_int_equal(sch_tenant_lease(m.sch, 1, lease), 0);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(r); i++)
        r[i] = ask(&m, 1, 20 + i, 10);
    other = ask(&m, 2, 30, 40);
    sim_run(&m);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(r); i++) {
        out += r[i]->usage.generated_tokens;
        if (r[i]->usage.generated_tokens == 10)
            assert_int_equal(r[i]->reason, SCH_END_LENGTH);
        else
            assert_int_equal(r[i]->code, CN_EBUDGET);
    }
    assert_int_equal(out, CN_MIN(lease, 160));
    assert_int_equal(generated_of(&m, 1), out);
    assert_int_equal(lease_of(&m, 1), lease - out);
    assert_int_equal(other->usage.generated_tokens, 40);
    simcase_finish(&m);
}

static void test_lease_to_the_token(void **state)
{
    static const uint64_t leases[] = {1, 9, 10, 37, 159, 160, 161};

    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (size_t i = 0; i < CN_ARRAY_LEN(leases); i++) {
            lease_to_the_token(depth, leases[i], 0);
            lease_to_the_token(depth, leases[i], 4);
        }
    }
}

static void test_lease_is_topped_up(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim_req *r, *vector;
        struct sim m;

        sim_init(&m, &o);
        assert_int_equal(sch_tenant_lease(m.sch, 0, 5), 0);
        r = ask(&m, 0, 20, 100);
        while (r->n_out[0] < 3)
            sim_iterate(&m);
        assert_int_equal(sch_tenant_lease(m.sch, 0, 10), 0);
        sim_run(&m);
        assert_int_equal(r->usage.generated_tokens, 15);
        assert_int_equal(r->code, CN_EBUDGET);
        assert_int_equal(r->reason, SCH_END_ERROR);
        r = sim_req_new(&m, 0, 20, 5); /* refused before any work */
        assert_int_equal(sim_submit(&m, r), CN_EBUDGET);
        vector = sim_req_new(&m, 0, 20, 1); /* puts out no tokens */
        vector->spec.flags = SCH_NO_OUTPUT;
        assert_int_equal(sim_submit(&m, vector), 0);
        sim_run(&m);
        assert_int_equal(vector->code, 0);
        assert_int_equal(sch_tenant_lease(m.sch, 0, SCH_NO_LEASE), 0);
        assert_int_equal(sim_submit(&m, r), 0);
        sim_run(&m);
        assert_int_equal(r->usage.generated_tokens, 5);
        assert_int_equal(sch_tenant_lease(m.sch, 0, SCH_NO_LEASE - 1), 0); /* saturates */
        assert_int_equal(sch_tenant_lease(m.sch, 0, SCH_NO_LEASE - 1), 0);
        assert_int_equal(lease_of(&m, 0), SCH_NO_LEASE - 1);
        simcase_finish(&m);
    }
}

/* What waits and what is read ends, too, before anything more is computed. */
static void test_spent_tenant_computes_nothing(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *r, *reads, *waits;
    struct sch_stats before, after;
    struct sim m;

    o.sch.max_running = 2;
    sim_init(&m, &o);
    assert_int_equal(sch_tenant_lease(m.sch, 0, 3), 0);
    r = ask(&m, 0, 20, 50);
    reads = ask(&m, 0, 400, 50);
    waits = ask(&m, 0, 20, 50);
    while (r->n_out[0] < 3)
        sim_iterate(&m);
    sch_stats(m.sch, &before);
    sim_iterate(&m);
    assert_int_equal(r->code, CN_EBUDGET);
    assert_int_equal(reads->code, CN_EBUDGET);
    assert_int_equal(waits->code, CN_EBUDGET);
    sch_stats(m.sch, &after);
    assert_int_equal(after.rows, before.rows);
    simcase_finish(&m);
}

/* ---- coming and going ------------------------------------------------------------------------ */

static void test_number_is_used_again(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sch_tenant_opts opts = {.weight = 3, .max_concurrent = 1, .kv_reserve_bytes = 4096};
        struct sim_req *a, *b, *planted;
        struct sch_tenant_stats st;
        struct sim m;

        sim_init(&m, &o);
        assert_int_equal(sch_tenant_set(m.sch, 1, &opts), 0);
        assert_int_equal(sch_tenant_lease(m.sch, 1, 1000), 0);
        a = ask(&m, 1, 100, 50);
        b = ask(&m, 0, 100, 50);
        while (a->n_out[0] < 5)
            sim_iterate(&m);
        assert_int_equal(sch_tenant_end(m.sch, 1), CN_EBUSY);
        sch_cancel(m.sch, a->id);
        while (sch_tenant_end(m.sch, 1))
            sim_iterate(&m);
        assert_int_equal(a->code, CN_ECANCELLED);
        assert_true(b->ends == 0);
        simcase_sound(&m);
        sch_tenant_stats(m.sch, 1, &st);
        assert_int_equal(st.generated, 0);
        assert_int_equal(st.lease, SCH_NO_LEASE);
        planted = sim_req_new(&m, 1, 100, 20);
        memcpy(planted->prompt, a->prompt, sizeof a->prompt);
        assert_int_equal(sim_submit(&m, planted), 0);
        sim_run(&m);
        assert_int_equal(planted->usage.cached_tokens, 0);
        assert_int_equal(planted->usage.written_tokens, 100);
        assert_int_equal(b->usage.generated_tokens, 50);
        assert_int_equal(sch_tenant_end(m.sch, 77), 0); /* nobody */
        simcase_finish(&m);
    }
}

#define NUMBERS 200 /* of tenants at once */
#define KEEPERS 4   /* the first of them stay */
#define PROMPTS 8

struct crowd {
    struct sim m;
    struct { bool used, leaving, fresh; } at[NUMBERS];
    uint32_t added, removed, changed, prompts[PROMPTS][SIM_MAX_LEN];
    bool first[SIM_MAX_REQS], left[SIM_MAX_REQS]; /* of its tenant; which was then removed */
};

static void set(struct crowd *w, uint32_t t)
{
    struct sch_tenant_opts o = {.weight = 0.5 + sim_below(&w->m, 8),
                                .max_concurrent = sim_below(&w->m, 3),
                                .kv_reserve_bytes = sim_below(&w->m, 2) * 128};

    if (t < KEEPERS) o.max_concurrent = 0;
    assert_int_equal(sch_tenant_set(w->m.sch, t, &o), 0);
}

static void cancel_of(struct crowd *w, uint32_t t)
{
    w->at[t].leaving = true;
    for (uint32_t i = 0; i < w->m.n_reqs; i++) {
        struct sim_req *r = &w->m.reqs[i];

        if (!r->submitted || r->spec.tenant != t || r->ends) continue;
        w->left[i] = true;
        sch_cancel(w->m.sch, r->id);
    }
}

static void end_leaving(struct crowd *w)
{
    for (uint32_t t = 0; t < NUMBERS; t++) {
        if (!w->at[t].leaving || sch_tenant_end(w->m.sch, t)) continue;
        w->at[t].used = w->at[t].leaving = false;
        w->removed++;
    }
}

static void add_change_or_remove(struct crowd *w)
{
    uint32_t t = KEEPERS + sim_below(&w->m, NUMBERS - KEEPERS);

    if (!w->at[t].used) {
        w->at[t].used = w->at[t].fresh = true;
        set(w, t);
        w->added++;
    } else if (!w->at[t].leaving && sim_below(&w->m, 2)) {
        set(w, t);
        w->changed++;
    } else if (!w->at[t].leaving) {
        cancel_of(w, t);
    }
}

/* Everybody asks with the same few prompts. */
static void ask_something(struct crowd *w)
{
    uint32_t t = sim_below(&w->m, sim_below(&w->m, 4) ? NUMBERS : KEEPERS), i = w->m.n_reqs;
    struct sim_req *r;

    if (i == SIM_MAX_REQS || !w->at[t].used || w->at[t].leaving) return;
    r = sim_req_new(&w->m, t, 24 + sim_below(&w->m, 40), 1 + sim_below(&w->m, 8));
    memcpy(r->prompt, w->prompts[sim_below(&w->m, PROMPTS)], sizeof r->prompt);
    w->left[i] = false;
    w->first[i] = w->at[t].fresh;
    w->at[t].fresh = false;
    assert_int_equal(sim_submit(&w->m, r), 0);
}

/* All that were asked have ended as they should; the next requests take their places. */
static void look(struct crowd *w)
{
    struct sim *m = &w->m;

    sim_run(m);
    sim_check_outputs(m);
    sim_check_idle(m);
    simcase_sound(m);
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        if (!w->left[i]) assert_int_equal(m->reqs[i].code, 0);
        if (w->first[i]) assert_int_equal(m->reqs[i].usage.cached_tokens, 0);
    }
    memset(m->reqs, 0, SIM_MAX_REQS * sizeof *m->reqs);
    m->n_reqs = 0;
}

static void remove_all(struct crowd *w)
{
    struct kv_stats st;

    for (uint32_t t = 0; t < NUMBERS; t++)
        if (w->at[t].used && !w->at[t].leaving) cancel_of(w, t);
    sim_run(&w->m);
    look(w);
    end_leaving(w);
    kv_pool_stats(w->m.pool, &st);
    assert_int_equal(st.n_nodes, 0);
    assert_int_equal(st.n_slabs_free, st.n_slabs);
    for (uint32_t t = 0; t < KEEPERS; t++) {
        w->at[t].used = true;
        set(w, t);
    }
}

static uint64_t heap_bytes(void)
{
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

static void ten_thousand(uint32_t depth)
{
    struct sim_opts o = simcase_opts(depth);
    struct crowd *w = calloc(1, sizeof *w);
    uint64_t heap = 0;
    uint32_t rounds = 0;

    assert_non_null(w);
    o.n_slabs = 200;
    sim_init(&w->m, &o);
    for (uint32_t i = 0; i < PROMPTS; i++)
        for (uint32_t k = 0; k < SIM_MAX_LEN; k++)
            w->prompts[i][k] = sim_below(&w->m, 251);
    remove_all(w);
    while (w->added < 10000) {
        for (uint32_t k = sim_below(&w->m, 3); k > 0; k--)
            add_change_or_remove(w);
        ask_something(w);
        sim_iterate(&w->m);
        end_leaving(w);
        if (w->m.n_reqs == SIM_MAX_REQS) look(w);
        if (w->added / 2000 == rounds) continue;
        rounds++;
        look(w);
        remove_all(w);
        if (rounds == 1) heap = heap_bytes();
    }
    look(w);
    remove_all(w);
    uint64_t now = heap_bytes();
    assert_true(now <= heap + 65536);
    assert_true(w->removed >= w->added && w->changed > 1000);
    sim_fini(&w->m);
    free(w);
}

static void test_ten_thousand_tenants(void **state)
{
    ten_thousand(1);
    ten_thousand(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease_to_the_token),
        cmocka_unit_test(test_lease_is_topped_up),
        cmocka_unit_test(test_spent_tenant_computes_nothing),
        cmocka_unit_test(test_number_is_used_again),
        cmocka_unit_test(test_ten_thousand_tenants),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
