/* Which of a tenant's prompts is read first, over the simulated device. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_EQUAL 12u
#define N_SHORT 8u

/* Whether the requests have their first tokens evenly spread from the first step to the last: then
 * they are at half of it on the average. */
static void one_after_the_other(struct sim *m, struct sim_req *const *r, uint32_t n)
{
    uint64_t step = 0, sum = 0;
    uint32_t n_first = 0;

    while (n_first < n && ++step < 1000) {
        uint32_t before = n_first;

        sim_iterate(m);
        n_first = 0;
        for (uint32_t i = 0; i < n; i++)
            n_first += r[i]->n_out[0] > 0;
        sum += step * (n_first - before);
    }
    assert_int_equal(n_first, n);
    print_message("%.2f of %u steps\n", (double)sum / n / (double)step, (unsigned)step);
    assert_true(sum * 10 < 6 * n * step);
}

static struct sim_opts order_opts(uint32_t depth, bool with_state)
{
    struct sim_opts o = simcase_opts(depth);

    o.n_slabs = 512;
    if (with_state) {
        o.groups[1] = (struct kv_group){KV_SPAN_STATE, 0, 2 * SIMCASE_BLOCK_BYTES};
        o.n_groups = 2;
    }
    return o;
}

/* Equal prompts that come together are read one after the other: taking turns, all would have their
 * first token near the end. */
static void test_equal_prompts_do_not_take_turns(void **state)
{
    for (uint32_t k = 0; k < 4; k++) {
        struct sim_opts o = order_opts(1 + k / 2, k % 2);
        struct sim m;
        struct sim_req *r[N_EQUAL];

        sim_init(&m, &o);
        for (uint32_t i = 0; i < N_EQUAL; i++) {
            r[i] = sim_req_new(&m, 0, 200, 40);
            assert_int_equal(sim_submit(&m, r[i]), 0);
        }
        one_after_the_other(&m, r, N_EQUAL);
        simcase_finish(&m);
    }
}

/* Steps until a long prompt has its first token, beside short ones that never end; `every`th of
 * them has a class above its own, or is of another model. */
static uint64_t steps_of_long(uint32_t every, bool other_model)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *large;
    uint64_t step = 0;

    o.n_slabs = 512;
    o.max_rows = o.max_logit_rows = 32;
    o.n_models = other_model ? 2 : 1;
    sim_init(&m, &o);
    large = sim_req_new(&m, 0, 480, 4);
    large->spec.class = SCH_NORMAL;
    assert_int_equal(sim_submit(&m, large), 0);
    for (uint32_t i = 0; i < N_SHORT; i++) {
        struct sim_req *r = sim_req_new(&m, 0, 90, 1);

        r->spec.class = SCH_NORMAL;
        if (every && i % every == 0) {
            if (other_model)
                r->spec.model = 1;
            else
                r->spec.class = SCH_INTERACTIVE;
        }
        assert_int_equal(sim_submit(&m, r), 0);
    }
    while (!large->n_out[0] && step < 1000) {
        sim_iterate(&m);
        step++;
        for (uint32_t i = 0; i < m.n_reqs; i++) {
            struct sim_req *r = &m.reqs[i];
            struct sch_request spec = r->spec;

            if (!r->ends || r == large) continue;
            memset(r, 0, sizeof(*r)); /* another in its place */
            r->spec = spec;
            for (uint32_t k = 0; k < 90; k++)
                r->prompt[k] = sim_below(&m, 251);
            assert_int_equal(sim_submit(&m, r), 0);
        }
    }
    simcase_cancel(&m);
    return step;
}

static void test_a_long_prompt_is_not_left_behind(void **state)
{
    uint64_t alone = steps_of_long(0, false), classes = steps_of_long(2, false);
    uint64_t models = steps_of_long(2, true);

    print_message("%u steps, %u beside a class above, %u beside another model\n", (unsigned)alone,
                  (unsigned)classes, (unsigned)models);
    /* a fifth of all rows is its, at least; of those of every fourth step; of every other step */
    assert_true(alone <= 5 * 480 / 32 + 10);
    assert_true(classes <= 4 * (5 * 480 / 32 + 10));
    assert_true(models <= 2 * (5 * 480 / 32 + 10));
}

/* A short prompt that comes later does not wait for a long one. */
static void test_a_short_prompt_overtakes(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *large, *small;
    uint64_t step = 0;

    sim_init(&m, &o);
    large = sim_req_new(&m, 0, 480, 4);
    assert_int_equal(sim_submit(&m, large), 0);
    sim_iterate(&m);
    small = sim_req_new(&m, 0, 60, 4);
    assert_int_equal(sim_submit(&m, small), 0);
    while (!small->n_out[0] && step < 100) {
        sim_iterate(&m);
        step++;
    }
    assert_true(step <= 3);
    assert_int_equal(large->n_out[0], 0);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_prompts_do_not_take_turns),
        cmocka_unit_test(test_a_long_prompt_is_not_left_behind),
        cmocka_unit_test(test_a_short_prompt_overtakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
