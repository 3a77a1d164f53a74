/* Fairness over two schedulers with the same tenants, each on a simulated device of its own. */
#include "scheduler/internal.h"
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_TENANTS 4
#define N_SIMS      2

struct pair {
    struct sim m[N_SIMS];
    uint32_t n_tenants;
    double w[MAX_TENANTS];
    double seconds[MAX_TENANTS]; /* served, in both */
    bool apart;                  /* nothing is told */
};

/* Tells what m[k] served to the other one, as at the end of a step. */
static void tell(struct pair *p, uint32_t k)
{
    struct sch_served v[2];
    uint32_t n;

    while ((n = sch_served_take(p->m[k].sch, v, CN_ARRAY_LEN(v))))
        for (uint32_t i = 0; i < n; i++) {
            p->seconds[v[i].tenant] += v[i].seconds;
            if (!p->apart) sch_served_elsewhere(p->m[1 - k].sch, &v[i], sch_burst_s(p->m[k].sch));
        }
}

static void answer_again(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_reqs; i++) {
        struct sim_req *r = &m->reqs[i];
        struct sch_request spec = r->spec;

        if (!r->ends) continue;
        memset(r, 0, sizeof(*r)); /* another in its place */
        r->spec = spec;
        for (uint64_t k = 0; k < spec.n_prompt; k++)
            r->prompt[k] = sim_below(m, 251);
        sim_submit(m, r);
    }
}

/* One iteration of the one whose clock is behind; what ended is asked again. */
static void advance(struct pair *p)
{
    uint32_t k = p->m[0].clock > p->m[1].clock;
    struct sim *m = &p->m[k];

    if (!sim_iterate(m)) m->clock = CN_MAX(m->clock, p->m[1 - k].clock) + 1000;
    tell(p, k);
    answer_again(m);
}

static void start(struct pair *p, uint64_t seed, uint32_t n_tenants)
{
    *p = (struct pair){.n_tenants = n_tenants};
    for (uint32_t k = 0; k < N_SIMS; k++) {
        struct sim_opts o = simcase_opts(1 + (seed + k) % 2);

        o.seed = seed * 2 + k;
        o.sch.shared = true;
        o.sch.max_running = 4 + (seed / (k + 1)) % 13;
        o.max_rows = o.max_logit_rows = 16 + (seed * (k + 3)) % 49;
        o.sch.quantum = 64;
        o.step_ns *= 1 + k * (seed % 4); /* one is up to four times as fast */
        o.row_ns *= 1 + k * (seed % 4);
        sim_init(&p->m[k], &o);
    }
    for (uint32_t t = 0; t < n_tenants; t++) {
        p->w[t] = 1 + sim_below(&p->m[0], 4);
        for (uint32_t k = 0; k < N_SIMS; k++)
            sch_tenant_set(p->m[k].sch, t,
                           &(struct sch_tenant_opts){.weight = p->w[t], .max_concurrent = 16});
    }
}

static void finish(struct pair *p)
{
    for (uint32_t k = 0; k < N_SIMS; k++) {
        simcase_sound(&p->m[k]);
        simcase_cancel(&p->m[k]);
    }
}

static double worth(const struct sim *m)
{
    return m->sch->worth_cost / m->sch->worth_s;
}

/* What one scheduler's bound is, in seconds, of the one where it is most; and a step of each. */
static double bound_of(const struct pair *p, double longest)
{
    double most = 0, steps = 0, least = 1e9;

    for (uint32_t t = 0; t < p->n_tenants; t++)
        least = CN_MIN(least, p->w[t]);
    for (uint32_t k = 0; k < N_SIMS; k++) {
        const struct sim *m = &p->m[k];
        double batch = 2.0 * m->o.sch.max_running * 40;

        most = CN_MAX(most, (2 * CN_MAX(longest, batch) + 64) / worth(m));
        steps += m->o.max_rows / worth(m);
    }
    return (most + steps) / least;
}

/* Every tenant has work waiting in both, of other lengths in each. */
static void backlog(uint64_t seed, bool apart, double *worst, double *bound)
{
    struct pair p;
    double longest = 0, begin[MAX_TENANTS] = {0};

    start(&p, seed, 2 + seed % 3);
    p.apart = apart;
    for (uint32_t k = 0; k < N_SIMS; k++)
        for (uint32_t t = 0; t < p.n_tenants; t++) {
            uint32_t len = 1 + sim_below(&p.m[k], 150), out = 1 + sim_below(&p.m[k], 40);
            longest = CN_MAX(longest, len + 2.0 * out);
            for (uint32_t i = 0; i < 16; i++)
                sim_submit(&p.m[k], sim_req_new(&p.m[k], t, len, out));
        }
    *worst = 0;
    for (uint32_t step = 0; step < 3000; step++) {
        double lo = 1e18, hi = -1e18;

        advance(&p);
        for (uint32_t t = 0; t < p.n_tenants; t++) {
            if (step == 600) begin[t] = p.seconds[t] / p.w[t];
            lo = CN_MIN(lo, p.seconds[t] / p.w[t] - begin[t]);
            hi = CN_MAX(hi, p.seconds[t] / p.w[t] - begin[t]);
        }
        if (step > 600) *worst = CN_MAX(*worst, hi - lo);
    }
    *bound = bound_of(&p, longest);
    finish(&p);
}

static void test_bound_over_both(void **state)
{
    double most = 0;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        double worst, bound;

        backlog(seed, false, &worst, &bound);
        if (worst > bound) fail_msg("seed %d: %f over the bound of %f", (int)seed, worst, bound);
        most = CN_MAX(most, worst / bound);
    }
    print_message("largest difference: %.2f of the bound\n", most);
}

/* One tenant has work in both, each of the others in one of them alone. */
static void only_one_in_both(uint64_t seed, bool apart, double *worst, double *bound)
{
    struct pair p;
    double longest = 0, begin[MAX_TENANTS] = {0};

    start(&p, seed, 3);
    p.apart = apart;
    for (uint32_t t = 0; t < 3; t++) {
        p.w[t] = 1;
        for (uint32_t k = 0; k < N_SIMS; k++) {
            uint32_t len = 1 + sim_below(&p.m[k], 150), out = 1 + sim_below(&p.m[k], 40);
            sch_tenant_set(p.m[k].sch, t,
                           &(struct sch_tenant_opts){.weight = 1, .max_concurrent = 16});
            longest = CN_MAX(longest, len + 2.0 * out);
            for (uint32_t i = 0; i < 16 && (t == 0 || k == t - 1); i++)
                sim_submit(&p.m[k], sim_req_new(&p.m[k], t, len, out));
        }
    }
    *worst = 0;
    for (uint32_t step = 0; step < 6000; step++) {
        advance(&p);
        for (uint32_t t = 0; t < 3; t++) {
            if (step == 600) begin[t] = p.seconds[t];
            double more = (p.seconds[0] - begin[0]) - (p.seconds[t] - begin[t]);
            if (step > 600) *worst = CN_MAX(*worst, CN_MAX(more, -more));
        }
    }
    *bound = bound_of(&p, longest);
    finish(&p);
}

static void test_service_elsewhere_counts(void **state)
{
    double most = 0, least = 1e9;

    for (uint64_t seed = 1; seed <= 30; seed++) {
        double worst, bound, apart;

        only_one_in_both(seed, true, &apart, &bound);
        only_one_in_both(seed, false, &worst, &bound);
        if (worst > bound) fail_msg("seed %d: %f over the bound of %f", (int)seed, worst, bound);
        most = CN_MAX(most, worst / bound);
        least = CN_MIN(least, apart / worst);
    }
    print_message("largest difference: %.2f of the bound; without: at least %.1f times it\n", most,
                  least);
}

static void fill(struct sim *m, uint32_t tenant, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sim_submit(m, sim_req_new(m, tenant, 40, 20));
}

static double counter_of(const struct sim *m, uint32_t tenant)
{
    struct sch_tenant_stats ts;

    sch_tenant_stats(m->sch, tenant, &ts);
    return ts.counter;
}

/* Who has one scheduler to itself is served there as if there were no other; that is held against
 * it in the other one while somebody waits there, by a prompt or a batch at most. */
static void alone_elsewhere(bool apart, uint64_t *rows, uint64_t *clock)
{
    struct pair p;
    double debt = 0, most;

    start(&p, 4, 2);
    p.apart = apart;
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t k = 0; k < N_SIMS; k++)
            sch_tenant_set(p.m[k].sch, t,
                           &(struct sch_tenant_opts){.weight = 1, .max_concurrent = 16});
    fill(&p.m[0], 0, 16);
    fill(&p.m[0], 1, 16);
    fill(&p.m[1], 0, 16);
    while (p.m[1].iterations < 4000) {
        advance(&p);
        if (p.m[0].iterations < 100) continue;
        debt = CN_MAX(debt, counter_of(&p.m[0], 0) - p.m[0].sch->vtime);
    }
    most = CN_MAX(sch_burst_s(p.m[0].sch), sch_burst_s(p.m[1].sch)) * worth(&p.m[0]);
    if (!apart && debt > most + 200) fail_msg("%f behind, at most %f", debt, most);
    if (!apart)
        assert_true(p.seconds[0] < 1.2 * p.seconds[1]); /* it has no more than the other one */
    *rows = p.m[1].rows;
    *clock = p.m[1].clock;
    finish(&p);
}

static void test_alone_there_as_without(void **state)
{
    uint64_t rows[2], clock[2];

    for (int apart = 0; apart < 2; apart++)
        alone_elsewhere(apart, &rows[apart], &clock[apart]);
    assert_int_equal(rows[0], rows[1]);
    assert_int_equal(clock[0], clock[1]);
}

/* A tenant that was served elsewhere for long, and is no more, is served here again before the
 * others had more than a burst. */
static void test_debt_ends(void **state)
{
    struct pair p;
    double before, most;

    start(&p, 4, 2);
    for (uint32_t t = 0; t < 2; t++)
        sch_tenant_set(p.m[0].sch, t, &(struct sch_tenant_opts){.weight = 1, .max_concurrent = 16});
    fill(&p.m[0], 1, 16);
    fill(&p.m[1], 0, 16);
    while (p.m[1].iterations < 4000)
        advance(&p);
    for (uint32_t i = 0; i < p.m[1].n_reqs; i++)
        sch_cancel(p.m[1].sch, p.m[1].reqs[i].id);
    sim_run(&p.m[1]);
    tell(&p, 1);
    before = p.m[0].sch->tenants[1]->served;
    most = CN_MAX(sch_burst_s(p.m[0].sch), sch_burst_s(p.m[1].sch)) * worth(&p.m[0]);
    fill(&p.m[0], 0, 16);
    while (p.m[0].sch->tenants[0]->served == 0 && !p.m[0].failed) {
        sim_iterate(&p.m[0]);
        tell(&p, 0);
        answer_again(&p.m[0]);
    }
    if (p.m[0].sch->tenants[1]->served - before > most + 200)
        fail_msg("%f later, at most %f", p.m[0].sch->tenants[1]->served - before, most);
    finish(&p);
}

/* Tenants come and go in either at random, ended ones too; counts agree and answers are right. */
static void test_come_and_go(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct pair p;

        start(&p, seed, MAX_TENANTS);
        for (uint32_t step = 0; step < 1500; step++) {
            uint32_t k = p.m[0].clock > p.m[1].clock;
            struct sim *m = &p.m[k];
            struct cn_error err;

            if (sim_below(m, 8) == 0 && m->n_reqs < SIM_MAX_REQS)
                sim_submit(m, sim_req_new(m, sim_below(m, MAX_TENANTS), 1 + sim_below(m, 100),
                                          1 + sim_below(m, 30)));
            if (!sim_iterate(m)) m->clock = CN_MAX(m->clock, p.m[1 - k].clock) + 1000;
            if (sim_below(m, 50) == 0) sch_tenant_end(m->sch, sim_below(m, MAX_TENANTS));
            if (sim_below(m, 3)) tell(&p, k);
            if (step % 16 == 0 && sch_check(m->sch, &err)) fail_msg("%s", err.message);
        }
        for (uint32_t k = 0; k < N_SIMS; k++)
            simcase_finish(&p.m[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_over_both), cmocka_unit_test(test_service_elsewhere_counts),
        cmocka_unit_test(test_alone_there_as_without), cmocka_unit_test(test_debt_ends),
        cmocka_unit_test(test_come_and_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
