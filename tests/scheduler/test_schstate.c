/* Models with recurrent state over the simulated device: prefixes found again by snapshots, sharing
 * in a burst, every end gives states back, prompts that need one step. With one and with two steps
 * in flight, with KV beside the state and without. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define BT          SIMCASE_BLOCK_TOKENS
#define STATE_BYTES (2 * SIMCASE_BLOCK_BYTES)

/* kinds: KV and state, state alone, chunks and state */
enum { HYBRID, PURE, CHUNKS, N_KINDS };

static struct sim_opts state_opts(uint32_t depth, int kind)
{
    struct sim_opts o = simcase_opts(depth);
    struct kv_group st = {KV_SPAN_STATE, 0, STATE_BYTES};

    if (kind == CHUNKS) o.groups[0] = (struct kv_group){KV_SPAN_CHUNK, 40, SIMCASE_BLOCK_BYTES};
    o.groups[kind == PURE ? 0 : 1] = st;
    o.n_groups = kind == PURE ? 1 : 2;
    o.n_slabs = 128;
    return o;
}

static struct sim_req *like(struct sim *m, const struct sim_req *of, uint64_t shared, uint64_t n,
                            uint64_t max_new)
{
    struct sim_req *r = sim_req_new(m, of->spec.tenant, n, max_new);

    memcpy(r->prompt, of->prompt, shared * sizeof(*r->prompt));
    if (n > shared && shared) r->prompt[shared] = of->prompt[shared] + 1;
    return r;
}

/* Submits it, runs it to its end; the prompt tokens that it found. */
static uint64_t run_one(struct sim *m, struct sim_req *r)
{
    assert_int_equal(sim_submit(m, r), 0);
    sim_run(m);
    simcase_sound(m);
    return r->usage.cached_tokens;
}

static void each(void (*fn)(struct sim_opts o))
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (int kind = 0; kind < N_KINDS; kind++)
            fn(state_opts(depth, kind));
    }
}

/* ---- found again ----------------------------------------------------------------------------- */

static void repeated(struct sim_opts o)
{
    struct sim_req *a, *b, *c;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 200, 4);
    assert_int_equal(run_one(&m, a), 0);
    b = like(&m, a, 200, 200, 4);
    assert_int_equal(run_one(&m, b), 192);
    assert_int_equal(b->usage.computed_tokens, 8 + 3);
    c = like(&m, a, 200, 260, 4); /* a longer one */
    assert_int_equal(run_one(&m, c), 192);
    simcase_finish(&m);
}

static void test_a_repeated_prompt_is_not_computed_again(void **state)
{
    each(repeated);
}

static void conversation(struct sim_opts o)
{
    struct sim_req *turn[4];
    struct sim m;
    uint64_t n = 100, end = 0;

    sim_init(&m, &o);
    for (uint32_t i = 0; i < 4; i++) {
        turn[i] = sim_req_new(&m, 0, n, 20);
        if (i) {
            const struct sim_req *before = turn[i - 1];
            uint64_t len = before->spec.n_prompt;

            memcpy(turn[i]->prompt, before->prompt, len * 4);
            memcpy(turn[i]->prompt + len, before->out[0], before->n_out[0] * sizeof(uint32_t));
        }
        run_one(&m, turn[i]);
        if (i) assert_int_equal(turn[i]->usage.cached_tokens, (end - 1) / BT * BT);
        end = n;
        n += 20 + 50; /* the answer, and what is said to it */
    }
    simcase_finish(&m);
}

static void test_a_conversation_goes_on_from_its_last_turn(void **state)
{
    each(conversation);
}

static void marked(struct sim_opts o)
{
    struct sim_req *a, *b;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 300, 2);
    a->marks[0] = 100; /* instructions that others share */
    a->spec.marks = a->marks;
    a->spec.n_marks = 1;
    run_one(&m, a);
    b = like(&m, a, 100, 200, 2);
    assert_int_equal(run_one(&m, b), 96);
    simcase_finish(&m);
}

static void test_marks_are_found_at_the_first_visit(void **state)
{
    each(marked);
}

static void branch(struct sim_opts o)
{
    struct sim_req *a, *b, *c;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 300, 2);
    run_one(&m, a);
    b = like(&m, a, 170, 250, 2);
    assert_int_equal(run_one(&m, b), 0);
    c = like(&m, a, 165, 240, 2);
    assert_int_equal(run_one(&m, c), 160);
    simcase_finish(&m);
}

static void test_a_branch_is_found_at_the_third_visit(void **state)
{
    each(branch);
}

/* ---- bursts ---------------------------------------------------------------------------------- */

static void burst_of(struct sim_opts o, uint64_t shared, uint64_t n, uint32_t max_rows)
{
    struct sim_req *first;
    struct sim m;

    o.max_rows = o.max_logit_rows = max_rows;
    o.n_slabs = 256;
    sim_init(&m, &o);
    first = sim_req_new(&m, 0, n, 3);
    assert_int_equal(sim_submit(&m, first), 0);
    for (uint32_t i = 1; i < 16; i++) {
        struct sim_req *r = sim_req_new(&m, 0, n, 3);

        memcpy(r->prompt, first->prompt, shared * sizeof(*r->prompt));
        r->prompt[shared] = 1000 + i;
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_run(&m);
    simcase_sound(&m);
    assert_int_equal(m.prompt_rows, shared / BT * BT + 16 * (n - shared / BT * BT));
    simcase_finish(&m);
}

static void bursts(struct sim_opts o)
{
    burst_of(o, 320, 325, 64); /* they part where the prompt's last place is */
    burst_of(o, 100, 140, 64); /* and before it */
    burst_of(o, 100, 140, 17);
}

static void test_a_burst_computes_a_prefix_once(void **state)
{
    each(bursts);
}

/* Prompts that come together, each second one with the beginning of the one before: that is
 * computed once though many others are read between, the second ones' too, which are shorter; and
 * the first tokens do not all come at the end. */
static void pairs(struct sim_opts o)
{
    enum { PAIRS = 12, SHARED = 256, ALL = 290, SECOND = 275 };
    struct sim m;
    struct sim_req *r[2 * PAIRS];
    uint64_t steps = 0, sum = 0;
    uint32_t n_first = 0;

    o.n_slabs = 1024;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 2 * PAIRS; i++) {
        r[i] = i % 2 ? like(&m, r[i - 1], SHARED, SECOND, 4) : sim_req_new(&m, 0, ALL, 4);
        assert_int_equal(sim_submit(&m, r[i]), 0);
    }
    while (n_first < 2 * PAIRS && ++steps < 1000) {
        uint32_t before = n_first;

        sim_iterate(&m);
        n_first = 0;
        for (uint32_t i = 0; i < 2 * PAIRS; i++)
            n_first += r[i]->n_out[0] > 0;
        sum += steps * (n_first - before);
    }
    print_message("%u rows, first tokens at %.2f of %u steps\n", (unsigned)m.prompt_rows,
                  (double)sum / (2 * PAIRS) / (double)steps, (unsigned)steps);
    assert_int_equal(m.prompt_rows, PAIRS * (ALL + SECOND - SHARED));
    assert_true(sum * 4 < 3 * 2 * PAIRS * steps);
    simcase_finish(&m);
}

static void test_pairs_compute_what_they_share_once(void **state)
{
    each(pairs);
}

static void cancelled_leader(struct sim_opts o)
{
    struct sim_req *a, *b, *c;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 330, 4);
    b = like(&m, a, 330, 330, 4);
    c = like(&m, a, 330, 330, 4);
    sim_submit(&m, a);
    sim_submit(&m, b);
    sim_submit(&m, c);
    sim_iterate(&m);
    sim_iterate(&m);
    sch_cancel(m.sch, a->id);
    sim_run(&m);
    simcase_sound(&m);
    assert_int_equal(b->reason, SCH_END_LENGTH);
    assert_int_equal(c->reason, SCH_END_LENGTH);
    assert_true(m.prompt_rows <= 330 + 330 + 2 * BT); /* b or c, not both */
    simcase_finish(&m);
}

static void test_a_cancelled_leader_is_followed(void **state)
{
    each(cancelled_leader);
}

static void paused_leader(struct sim_opts o)
{
    struct sim_req *a, *b;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 330, 4);
    b = like(&m, a, 330, 330, 4);
    sim_submit(&m, a);
    sim_iterate(&m);
    sim_submit(&m, b);
    sim_iterate(&m);
    sch_pause(m.sch, a->id, true);
    for (uint32_t i = 0; i < 100 && !b->ends; i++)
        sim_iterate(&m);
    assert_int_equal(b->reason, SCH_END_LENGTH);
    assert_int_equal(b->ends, 1);
    assert_int_equal(a->ends, 0);
    sch_pause(m.sch, a->id, false);
    simcase_finish(&m);
}

static void test_a_paused_leader_holds_nobody_up(void **state)
{
    each(paused_leader);
}

static void background_leader(struct sim_opts o)
{
    struct sim_req *a, *b;
    struct sim m;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 330, 4);
    a->spec.class = SCH_BACKGROUND;
    b = like(&m, a, 330, 330, 4);
    sim_submit(&m, a);
    sim_iterate(&m);
    sim_submit(&m, b);
    for (uint32_t i = 0; i < 16 && !b->ends; i++)
        sim_iterate(&m);
    assert_int_equal(b->ends, 1); /* 6 steps of its prompt, 3 of its answer, those before it */
    simcase_finish(&m);
}

static void test_background_work_leads_nobody(void **state)
{
    each(background_leader);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void in_use_is_exact(struct sim_opts o)
{
    struct sim m;
    bool seen = false;

    sim_init(&m, &o);
    for (uint32_t i = 0; i < 3; i++) /* each one's own: nothing is shared */
        sim_submit(&m, sim_req_new(&m, i, 100 + 30 * i, 40));
    while (sim_iterate(&m)) {
        struct kv_stats st;
        uint64_t used, most = 0, states = 0;

        kv_pool_stats(m.pool, &st);
        used = st.bytes[KV_FILLING] + st.bytes[KV_READY];
        for (uint32_t i = 0; i < m.n_reqs; i++) {
            const struct sim_req *r = &m.reqs[i];
            uint64_t n = r->spec.n_prompt + r->n_out[0];

            if (r->ends || !r->n_out[0]) continue;
            most += kv_space_bytes(m.space[0], n, o.max_rows * o.depth);
            states++;
        }
        if (states < 3) continue;
        assert_true(used <= most && used >= 3 * (uint64_t)STATE_BYTES);
        if (o.n_groups == 1) assert_int_equal(used, 3 * STATE_BYTES);
        seen = true;
    }
    assert_true(seen);
    simcase_finish(&m);
}

static void test_what_is_in_use_is_what_was_reckoned(void **state)
{
    each(in_use_is_exact);
}

/* A pool for a few states: requests wait, are preempted, and all end with their own bytes. */
static void crowded(struct sim_opts o)
{
    struct sch_stats st;
    struct sim m;

    o.slab_bytes = 4 * SIMCASE_BLOCK_BYTES; /* two states, or four blocks */
    o.n_slabs = o.n_groups == 1 ? 2 : 10;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 12; i++) {
        struct sim_req *r = sim_req_new(&m, i % 3, 60, 60);

        if (i > 2) memcpy(r->prompt, m.reqs[i % 3].prompt, 40 * sizeof(*r->prompt));
        r->spec.n_choices = 1 + i % 3;
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_run(&m);
    sch_stats(m.sch, &st);
    if (o.groups[0].span == KV_SPAN_ALL) assert_true(st.preemptions > 0);
    assert_int_equal(st.ended_ok, 12);
    simcase_finish(&m);
}

static void test_few_states_for_many(void **state)
{
    each(crowded);
}

static void choices(struct sim_opts o)
{
    struct sim_req *r;
    struct sim m;
    bool together = false;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 205, 30);
    r->spec.n_choices = 4;
    sim_submit(&m, r);
    while (!r->ends && sim_iterate(&m))
        together = together || (r->n_out[0] && r->n_out[3] && !r->choice_ends[0]);
    assert_true(together);
    assert_int_equal(m.prompt_rows, 205 + 3 * (205 - 192)); /* each from the last snapshot */
    simcase_finish(&m);
}

static void test_choices_share_the_prompt(void **state)
{
    each(choices);
}

static void cancel_after(struct sim_opts o, uint32_t iterations)
{
    struct sim_req *r, *other;
    struct sim m;

    o.max_rows = o.max_logit_rows = 32;
    sim_init(&m, &o);
    other = sim_req_new(&m, 0, 200, 3);
    r = like(&m, other, 200, 200, 100);
    r->spec.n_choices = 2;
    sim_submit(&m, other);
    sim_submit(&m, r);
    for (uint32_t i = 0; i < iterations; i++)
        sim_iterate(&m);
    assert_int_equal(r->ends, 0);
    sch_cancel(m.sch, r->id);
    sim_iterate(&m);
    assert_int_equal(r->ends, 1);
    sim_run(&m);
    assert_int_equal(other->reason, SCH_END_LENGTH);
    assert_int_equal(simcase_in_use(&m), 0);
    simcase_finish(&m);
}

static void cancels(struct sim_opts o)
{
    for (uint32_t i = 0; i < 40; i++)
        cancel_after(o, i);
}

static void test_cancel_in_every_phase(void **state)
{
    each(cancels);
}

/* A sequence pays for its state as for so many blocks of tokens. */
static void test_memory_is_charged_by_bytes(void **state)
{
    struct sch_tenant_stats kv, both;
    struct sim_req *a, *b;
    struct sim m;

    for (int k = 0; k < 2; k++) {
        struct sim_opts o = k ? state_opts(1, HYBRID) : simcase_opts(1);

        o.sch.decode_cost = 1e-9;
        o.sch.block_cost = 1;
        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 1, 1);
        b = sim_req_new(&m, 1, 10, 2);
        run_one(&m, a);
        sim_submit(&m, b);
        sim_iterate(&m); /* its prompt is computed, it holds a block */
        m.clock += 1000000000;
        sim_run(&m);
        sch_tenant_stats(m.sch, 1, k ? &both : &kv);
        simcase_finish(&m);
    }
    assert_true(kv.served > 10.9 && kv.served < 11.2);
    assert_true(both.served > 12.9 && both.served < 13.2); /* the state is two blocks */
}

/* ---- prompts that need one step -------------------------------------------------------------- */

static void test_one_step_or_none(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *r, *again;
    struct cn_error err;
    struct sim m;
    uint64_t id;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 65, 1);
    r->spec.flags = SCH_ONE_STEP;
    assert_int_equal(sch_submit(m.sch, &r->spec, &id, &err), CN_EWINDOW);
    assert_non_null(strstr(err.message, "65"));
    assert_non_null(strstr(err.message, "64"));
    r = sim_req_new(&m, 0, 64, 2);
    r->spec.flags = SCH_ONE_STEP;
    assert_int_equal(sch_submit(m.sch, &r->spec, &id, &err), CN_ERANGE);
    assert_string_equal(err.param, "max_tokens");
    r->spec.max_new = 0;
    r->spec.n_choices = 2;
    assert_int_equal(sch_submit(m.sch, &r->spec, &id, &err), CN_ERANGE);
    assert_string_equal(err.param, "n");
    r->spec.n_choices = 1;
    assert_int_equal(run_one(&m, r), 0);
    assert_int_equal(r->n_out[0], 1);
    again = like(&m, r, 64, 64, 1);
    again->spec.flags = SCH_ONE_STEP;
    assert_int_equal(run_one(&m, again), 0); /* nothing entered the tree */
    simcase_finish(&m);
}

static void test_one_step_among_others(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *r;
    struct sim m;
    uint32_t waited = 0;

    o.n_slabs = 512;
    o.sch.step_target_ns = 1; /* chunks as small as they get */
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 20; i++)
        sim_submit(&m, sim_req_new(&m, i % 4, 10, 200));
    for (uint32_t i = 0; i < 30; i++)
        sim_iterate(&m);
    for (uint32_t i = 0; i < 6; i++) {
        r = sim_req_new(&m, i % 5, 40 + 4 * i, 1); /* 20 rows a step decode */
        r->spec.flags = SCH_ONE_STEP;
        sim_submit(&m, r);
    }
    while (!r->ends && waited < 200) {
        sim_iterate(&m);
        waited++;
    }
    assert_true(waited < 40);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_repeated_prompt_is_not_computed_again),
        cmocka_unit_test(test_a_conversation_goes_on_from_its_last_turn),
        cmocka_unit_test(test_marks_are_found_at_the_first_visit),
        cmocka_unit_test(test_a_branch_is_found_at_the_third_visit),
        cmocka_unit_test(test_a_burst_computes_a_prefix_once),
        cmocka_unit_test(test_pairs_compute_what_they_share_once),
        cmocka_unit_test(test_a_cancelled_leader_is_followed),
        cmocka_unit_test(test_a_paused_leader_holds_nobody_up),
        cmocka_unit_test(test_background_work_leads_nobody),
        cmocka_unit_test(test_what_is_in_use_is_what_was_reckoned),
        cmocka_unit_test(test_few_states_for_many),
        cmocka_unit_test(test_choices_share_the_prompt),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_memory_is_charged_by_bytes),
        cmocka_unit_test(test_one_step_or_none),
        cmocka_unit_test(test_one_step_among_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
