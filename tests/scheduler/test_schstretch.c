/* How much longer prompts make the steps of those that decode, over simulated steps that take a
 * base and so much a row. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define STEP_NS 4000000.0
#define ROW_NS  500000.0

struct world {
    double stretch;
    uint32_t depth, n_decode, n_prompts;
    uint32_t n_before;           /* streams that end before there is a prompt */
    double before_ns;            /* base of a step until then; 0: as later */
    uint32_t settle;             /* steps that are not looked at: estimates follow */
    uint32_t first_prompt, more; /* times that as many prompts come again */
    uint64_t key_ns;             /* what a key behind a row of a prompt takes */
    bool keys_once;              /* for all rows of a prompt together */
    /* of the steps in which all decode and a prompt is being read: */
    double longest_ns;
    uint32_t steps, without; /* all of them; those without a row of a prompt */
};

static bool all_read(const struct sim *m, const struct world *w)
{
    for (uint32_t i = w->first_prompt; i < w->first_prompt + w->n_prompts; i++) {
        if (!m->reqs[i].usage.ended_ns && !m->reqs[i].ends && !m->reqs[i].n_out[0]) return false;
    }
    return true;
}

static bool all_decode(const struct sim *m, const struct world *w)
{
    for (uint32_t i = 0; i < w->n_decode; i++) {
        if (m->reqs[i].ends || m->reqs[i].n_out[0] < 4) return false;
    }
    return true;
}

static bool all_ended(const struct sim *m, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) {
        if (!m->reqs[i].usage.ended_ns && !m->reqs[i].ends) return false;
    }
    return true;
}

static void submit_prompts(struct sim *m, struct world *w)
{
    w->first_prompt = m->n_reqs;
    for (uint32_t i = 0; i < w->n_prompts; i++) {
        struct sim_req *r = sim_req_new(m, 1, 400, 1);

        r->spec.flags = SCH_NO_CACHE_READ;
        assert_int_equal(sim_submit(m, r), 0);
    }
}

static void watch(struct sim *m, struct world *w)
{
    uint64_t seen = 0, settled = 0;
    struct sch_stats st;

    while (!all_read(m, w) || w->more) {
        if (all_read(m, w)) {
            submit_prompts(m, w);
            w->more--;
        }
        assert_true(sim_iterate(m));
        sch_stats(m->sch, &st);
        if (st.steps == seen || st.in_flight == w->depth) continue;
        seen = st.steps;
        if (!all_decode(m, w)) {
            if (w->more && w->steps) break;
            fail_msg("the streams ended before the prompts were read");
        }
        if (all_read(m, w) || ++settled < CN_MAX(w->settle, 4u)) continue;
        w->steps++;
        w->longest_ns = CN_MAX(w->longest_ns, (double)st.last_step_ns);
        w->without += (double)st.last_step_ns < STEP_NS + ROW_NS * (w->n_decode + 0.5);
    }
}

static void run(struct world *w)
{
    struct sim_opts o = simcase_opts(w->depth);
    struct sim m;

    o.step_ns = (uint64_t)(w->before_ns > 0 ? w->before_ns : STEP_NS);
    o.row_ns = (uint64_t)ROW_NS;
    o.n_slabs = 256;
    o.sch.step_stretch = w->stretch;
    o.sch.step_target_ns = 40000000;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < w->n_decode; i++)
        assert_int_equal(sim_submit(&m, sim_req_new(&m, 0, 1, 400)), 0);
    for (uint32_t i = 0; i < w->n_before; i++)
        assert_int_equal(sim_submit(&m, sim_req_new(&m, 0, 1, 30)), 0);
    while (!all_decode(&m, w) || !all_ended(&m, w->n_decode, w->n_before))
        assert_true(sim_iterate(&m));
    m.o.step_ns = (uint64_t)STEP_NS;
    m.o.key_ns = w->key_ns;
    m.o.keys_once = w->keys_once;
    submit_prompts(&m, w);
    watch(&m, w);
    simcase_sound(&m);
    simcase_finish(&m);
}

static double alone(const struct world *w)
{
    return STEP_NS + ROW_NS * w->n_decode;
}

/* Without the bound a step has as many rows as it may. */
static void test_no_bound(void **state)
{
    struct world w = {.depth = 1, .n_decode = 8, .n_prompts = 1};

    run(&w);
    assert_true(w.longest_ns > 3 * alone(&w));
    assert_int_equal(w.without, 0);
}

static void test_bound(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (double stretch = 0.25; stretch <= 1; stretch *= 2) {
            struct world w = {.stretch = stretch, .depth = depth, .n_decode = 8, .n_prompts = 1};
            double rows = stretch * alone(&w) / ROW_NS; /* that the prompt should get a step */

            run(&w);
            print_message("%u deep, %.2f: %.2f times as long, %u steps, %u without\n", depth,
                          stretch, w.longest_ns / alone(&w), w.steps, w.without);
            assert_true(w.longest_ns < (1 + stretch) * alone(&w) + ROW_NS);
            assert_true(w.steps < 1.3 * 400 / rows + 8); /* and it does get them */
            assert_true(w.without <= depth * (w.steps / 32 + 1));
        }
    }
}

/* As many prompts as streams: they get seven times the part. */
static void test_more_prompts_get_more(void **state)
{
    struct world w = {.stretch = 0.5, .depth = 1, .n_decode = 8, .n_prompts = 8};

    run(&w);
    assert_true(w.longest_ns > (1 + 0.5) * alone(&w) + ROW_NS);
    assert_true(w.longest_ns < (1 + 7 * 0.5) * alone(&w) + ROW_NS);
}

/* Decoding became cheaper while the bound did not seem to matter: it is found again. */
static void test_steps_become_shorter(void **state)
{
    for (double before = 3; before <= 9; before += 2) {
        struct world w = {.stretch = 0.5,
                          .depth = 1,
                          .n_decode = 8,
                          .n_prompts = 1,
                          .more = 40,
                          .before_ns = before * STEP_NS,
                          .settle = 300};

        run(&w);
        print_message("%.0f times as long before: %.2f of alone in %u steps\n", before,
                      w.longest_ns / alone(&w), w.steps);
        assert_true(w.steps > 20);
        assert_true(w.longest_ns < (1 + 0.5) * alone(&w) + ROW_NS);
    }
}

/* Most of the streams ended: what few of them take alone is not what the line through many says. */
static void test_few_are_left_of_many(void **state)
{
    struct world w = {.stretch = 0.5, .depth = 1, .n_decode = 4, .n_before = 48, .n_prompts = 1};

    run(&w);
    print_message("%.2f of alone in %u steps\n", w.longest_ns / alone(&w), w.steps);
    assert_true(w.longest_ns < (1 + 0.5) * alone(&w) + ROW_NS);
    assert_true(w.steps < 2 * 400 / (0.5 * alone(&w) / ROW_NS) + 8);
}

/* However small the part: a prompt gets on by two rows. */
static void test_never_starves(void **state)
{
    struct world w = {.stretch = 0.001, .depth = 1, .n_decode = 4, .n_prompts = 1};

    run(&w);
    assert_true(w.steps < 400 / 2 * 34 / 32 + 4);
    assert_true(w.longest_ns < alone(&w) + 2.5 * ROW_NS);
}

/* Keys make two rows of a prompt take more than the part. Where one keeps to it the prompt gets on
 * by one; where one takes as much as both, by two: the part cannot be kept. */
static void test_many_keys(void **state)
{
    struct world w = {.stretch = 0.25, .depth = 1, .n_decode = 8, .n_prompts = 1, .key_ns = 3000};

    run(&w);
    print_message("each for itself: %.2f of alone in %u steps\n", w.longest_ns / alone(&w),
                  w.steps);
    assert_true(w.longest_ns < (1 + 0.25) * alone(&w) + ROW_NS);
    assert_true(w.steps < 330);
    w = (struct world){.stretch = 0.5,
                       .depth = 1,
                       .n_decode = 8,
                       .n_prompts = 1,
                       .key_ns = 20000,
                       .keys_once = true};
    run(&w);
    print_message("for both at once: %.2f of alone in %u steps\n", w.longest_ns / alone(&w),
                  w.steps);
    assert_true(w.longest_ns < alone(&w) + 400 * 20000 + 2.5 * ROW_NS);
    assert_true(w.steps < 400 / 2 * 34 / 32 + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_bound),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_more_prompts_get_more),
        cmocka_unit_test(test_steps_become_shorter),
        cmocka_unit_test(test_few_are_left_of_many),
        cmocka_unit_test(test_never_starves),
        cmocka_unit_test(test_many_keys),
    };

    return cmocka_run_group_tests_name("schstretch", tests, NULL, NULL);
}
