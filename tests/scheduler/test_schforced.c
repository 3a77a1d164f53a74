/* Ids that are put out without a draw, and draws that are asked for after the launch. The simulator
 * checks every draw and every token; here is what single cases must look like beside that. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { STOP_ID = 100000 };

static struct sim_opts opts(uint32_t depth)
{
    struct sim_opts o = simcase_opts(depth);

    o.late = true;
    return o;
}

static uint64_t steps_of(struct sim *m)
{
    struct sch_stats st;

    sch_stats(m->sch, &st);
    return st.steps;
}

/* ---- the same as masks of one id ------------------------------------------------------------- */

struct case_ {
    uint32_t depth, draft, n, behind;
    bool state;
};

/* The output of one request whose text is forced, or comes by masks; *steps that it took. */
static void run_one(const struct case_ *k, bool masks, uint32_t *out, uint32_t *n, uint64_t *steps)
{
    struct sim_opts o = opts(k->depth);
    struct sim m;
    struct sim_req *r;

    o.max_draft = k->draft;
    o.guess = k->draft > 0;
    if (k->state) {
        o.n_groups = 2;
        o.groups[1] = (struct kv_group){KV_SPAN_STATE, 32, SIMCASE_BLOCK_BYTES};
    }
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 20, 400);
    r->force_behind = k->behind;
    r->force_n = k->n;
    r->force_masks = masks;
    r->mask_mod = 3;
    assert_int_equal(sim_submit(&m, r), 0);
    sim_run(&m);
    *steps = steps_of(&m);
    *n = r->n_out[0];
    memcpy(out, r->out[0], *n * sizeof(*out));
    simcase_finish(&m);
}

static void test_forced_ids_equal_masks_of_one_id(void **state)
{
    static const uint32_t lengths[] = {1, 2, 15, 16, 17, 100, 257, 390};
    uint32_t a[SIM_MAX_LEN], b[SIM_MAX_LEN], n_a, n_b;
    uint64_t steps_a, steps_b;

    for (uint32_t i = 0; i < CN_ARRAY_LEN(lengths) * 16; i++) {
        struct case_ k = {1 + i % 2, i & 2 ? 5 : 0, lengths[i / 16], i & 4 ? 1 : 9, i & 8};

        if (k.state) k.draft = 0;
        run_one(&k, false, a, &n_a, &steps_a);
        run_one(&k, true, b, &n_b, &steps_b);
        assert_int_equal(n_a, 400);
        assert_int_equal(n_b, 400);
        assert_memory_equal(a, b, n_a * sizeof(*a));
        if (!k.draft) assert_true(steps_a + k.n <= steps_b + k.n / 16 + 4);
    }
}

/* ---- how many steps, and when ---------------------------------------------------------------- */

static void test_rows_of_forced_ids_share_a_step(void **state)
{
    struct sim_opts o = opts(1);
    struct sim m;
    struct sim_req *r;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 20, 30);
    r->force_behind = 5;
    r->force_n = 12;
    sim_submit(&m, r);
    while (r->n_out[0] < 5)
        sim_iterate(&m);
    assert_int_equal(r->n_out[0], 17); /* before any row of theirs has run */
    assert_int_equal(m.rows, 20 + 4);
    sim_iterate(&m);
    assert_int_equal(m.rows, 20 + 4 + 13);
    assert_int_equal(r->n_out[0], 18);
    sim_run(&m);
    assert_int_equal(steps_of(&m), 30 - 12);
    assert_int_equal(r->usage.generated_tokens, 30);
    assert_int_equal(r->usage.computed_tokens, 20 + 29);
    simcase_finish(&m);
}

/* Beside others a long text takes a block of tokens a step more, and delays nobody's next token by
 * more than step_stretch lets a prompt. */
static void test_forced_rows_beside_others_are_few(void **state)
{
    for (uint32_t stretch = 0; stretch < 2; stretch++) {
        struct sim_opts o = opts(1);
        struct sim m;
        struct sim_req *r;

        o.sch.step_stretch = stretch * 0.4;
        sim_init(&m, &o);
        for (uint32_t i = 0; i < 5; i++) {
            r = sim_req_new(&m, i, 20, 300);
            if (i == 4) r->force_behind = r->force_n = 100;
            sim_submit(&m, r);
        }
        while (r->n_out[0] < 100)
            sim_iterate(&m);
        for (uint32_t i = 0; i < 6; i++) {
            uint64_t rows = m.rows, ns = m.clock;

            sim_iterate(&m);
            assert_true(m.rows - rows > 5);
            assert_true(m.rows - rows <= 5 + SIMCASE_BLOCK_TOKENS);
            /* 1 ms and 0.1 ms a row */
            if (stretch) assert_true(m.clock - ns <= 1500000 * 1.4 + 200000);
        }
        simcase_finish(&m);
    }
}

/* ---- ends in the midst ----------------------------------------------------------------------- */

static void run_until(struct sim *m, const struct sim_req *r, uint32_t n)
{
    while (r->n_out[0] < n && !r->ends)
        sim_iterate(m);
}

static void test_a_forced_id_may_stop(void **state)
{
    static const uint32_t ids[] = {7, 8, STOP_ID, 9, 10};

    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = opts(depth);
        struct sim m;
        struct sim_req *r;

        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 20, 100);
        r->stop_mod = STOP_ID;
        r->prompt[0] = 1;
        sim_submit(&m, r);
        run_until(&m, r, 5);
        if (r->ends) fail_msg("it drew the id 0");
        assert_int_equal(sim_force(&m, r, 0, ids, 5), 0);
        sim_run(&m);
        assert_int_equal(r->reason, SCH_END_STOP);
        assert_int_equal(r->out[0][r->n_out[0] - 1], STOP_ID);
        assert_int_equal(r->out[0][r->n_out[0] - 3], 7);
        assert_int_equal(sch_force(m.sch, r->id, 0, ids, 5), CN_ENOENT);
        simcase_finish(&m);
    }
}

static void test_forced_ids_end_at_the_limit(void **state)
{
    uint32_t ids[200] = {0};

    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = opts(depth);
        struct sim m;
        struct sim_req *r;

        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 20, 50);
        sim_submit(&m, r);
        run_until(&m, r, 5);
        assert_int_equal(sim_force(&m, r, 0, ids, 100), 0);
        assert_int_equal(sim_force(&m, r, 0, ids, 200), 0);
        sim_run(&m);
        assert_int_equal(r->reason, SCH_END_LENGTH);
        assert_int_equal(r->n_out[0], 50);
        assert_int_equal(r->usage.generated_tokens, 50);
        simcase_finish(&m);
    }
}

static void test_ids_that_wait_are_dropped_with_a_cancel(void **state)
{
    static const uint32_t ids[] = {7, 8};
    struct sim_opts o = opts(2);
    struct sim m;
    struct sim_req *r;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 20, 50);
    sim_submit(&m, r);
    run_until(&m, r, 5);
    assert_int_equal(sim_force(&m, r, 0, ids, 2), 0);
    assert_int_equal(sch_force(m.sch, r->id, 1, ids, 2), CN_ERANGE);
    sch_cancel(m.sch, r->id);
    sim_run(&m);
    assert_int_equal(r->reason, SCH_END_CANCELLED);
    simcase_finish(&m);
}

/* ---- from outside ---------------------------------------------------------------------------- */

/* Ids that are there before the first token wait until the prompt is read. */
static void test_forced_before_the_first_token(void **state)
{
    static const uint32_t ids[] = {5, 6, 7};

    for (uint32_t way = 0; way < 4; way++) {
        struct sim_opts o = opts(1 + way % 2);
        struct sim m;
        struct sim_req *r;

        o.late = way < 2;
        o.max_rows = o.max_logit_rows = 32;
        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 100, 10);
        r->spec.n_choices = 3;
        sim_submit(&m, r);
        assert_int_equal(sim_force(&m, r, 0, ids, 3), 0);
        assert_int_equal(sim_force(&m, r, 2, ids, 3), 0);
        sim_iterate(&m);
        sim_iterate(&m);
        assert_int_equal(r->n_out[0], 0);
        sim_run(&m);
        assert_memory_equal(r->out[0], ids, sizeof(ids));
        assert_memory_equal(r->out[2], ids, sizeof(ids));
        assert_true(r->usage.first_token_ns > r->usage.first_step_ns);
        simcase_finish(&m);
    }
}

static void test_forced_ids_outlive_a_pause_and_a_preemption(void **state)
{
    static const uint32_t ids[] = {5, 6, 7};

    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = opts(depth);
        struct sim m;
        struct sim_req *r, *big;
        uint32_t n;

        o.n_slabs = 4; /* 512 tokens */
        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 100, 100);
        sim_submit(&m, r);
        run_until(&m, r, 10);
        sch_pause(m.sch, r->id, true);
        while (sim_iterate(&m))
            ;
        n = r->n_out[0];
        assert_int_equal(sim_force(&m, r, 0, ids, 3), 0);
        big = sim_req_new(&m, 1, 470, 10);
        sim_submit(&m, big);
        for (uint32_t i = 0; i < 1000 && !big->ends; i++)
            sim_iterate(&m);
        assert_int_equal(big->reason, SCH_END_LENGTH);
        assert_int_equal(r->n_out[0], n);
        sch_pause(m.sch, r->id, false);
        sim_run(&m);
        assert_true(r->usage.preemptions > 0);
        assert_memory_equal(r->out[0] + n, ids, sizeof(ids));
        assert_int_equal(r->n_out[0], 100);
        simcase_finish(&m);
    }
}

/* ---- the cache, the device ------------------------------------------------------------------- */

static void test_forced_ids_enter_the_tree(void **state)
{
    struct sim_opts o = opts(1);
    struct sim m;
    struct sim_req *r, *next;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 20, 100);
    r->force_behind = 3;
    r->force_n = 90;
    sim_submit(&m, r);
    sim_run(&m);
    next = sim_req_new(&m, 0, 110, 5);
    memcpy(next->prompt, r->prompt, 20 * sizeof(*r->prompt));
    memcpy(next->prompt + 20, r->out[0], 90 * sizeof(*r->prompt));
    sim_submit(&m, next);
    sim_run(&m);
    assert_true(next->usage.cached_tokens >= 96);
    simcase_finish(&m);
}

static void test_a_failed_draw_fails_its_step(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = opts(depth);
        struct sim m;
        struct sim_req *r, *next;

        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 20, 50);
        sim_submit(&m, r);
        run_until(&m, r, 5);
        m.o.fail_draw = 1;
        run_until(&m, r, 50);
        assert_int_equal(r->reason, SCH_END_ERROR);
        assert_int_equal(r->code, CN_EIO);
        m.o.fail_draw = 0;
        next = sim_req_new(&m, 0, 20, 50);
        sim_submit(&m, next);
        sim_run(&m);
        assert_int_equal(next->reason, SCH_END_LENGTH);
        simcase_finish(&m);
    }
}

/* Every row of a step may be drawn. */
static void test_a_step_may_draw_all_its_rows(void **state)
{
    struct sim_opts o = opts(1);
    struct sim m;
    uint64_t rows;

    sim_init(&m, &o);
    for (uint32_t i = 0; i < 64; i++)
        sim_submit(&m, sim_req_new(&m, 0, 1, 20));
    for (uint32_t i = 0; i < 5; i++)
        sim_iterate(&m);
    rows = m.rows;
    sim_iterate(&m);
    assert_int_equal(m.rows - rows, 64);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced_ids_equal_masks_of_one_id),
        cmocka_unit_test(test_rows_of_forced_ids_share_a_step),
        cmocka_unit_test(test_forced_rows_beside_others_are_few),
        cmocka_unit_test(test_a_forced_id_may_stop),
        cmocka_unit_test(test_forced_ids_end_at_the_limit),
        cmocka_unit_test(test_ids_that_wait_are_dropped_with_a_cancel),
        cmocka_unit_test(test_forced_before_the_first_token),
        cmocka_unit_test(test_forced_ids_outlive_a_pause_and_a_preemption),
        cmocka_unit_test(test_forced_ids_enter_the_tree),
        cmocka_unit_test(test_a_failed_draw_fails_its_step),
        cmocka_unit_test(test_a_step_may_draw_all_its_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
