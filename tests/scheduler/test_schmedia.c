/* Prompts with media over the simulated device: who shares what, media that are never cut between
 * steps, and what is refused. The device checks each segment, and rows that see each other both
 * ways hash all of their medium. With one and with two steps in flight. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { ONE_WAY = 2, BOTH_WAYS = 1 }; /* media of sim_add_media */

static struct sim_req *like(struct sim *m, const struct sim_req *of, uint64_t n_prompt)
{
    struct sim_req *r = sim_req_new(m, of->spec.tenant, n_prompt, 4);

    memcpy(r->prompt, of->prompt, sizeof(of->prompt));
    memcpy(r->media, of->media, sizeof(of->media));
    r->spec.media = r->media;
    r->spec.n_media = of->spec.n_media;
    return r;
}

static uint64_t run_one(struct sim *m, struct sim_req *r)
{
    assert_int_equal(sim_submit(m, r), 0);
    sim_run(m);
    simcase_sound(m);
    return r->usage.cached_tokens;
}

static void test_digest_decides(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sim_req *a, *b, *c;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 200, 4);
        sim_add_media(a, 40, 100, ONE_WAY);
        assert_int_equal(run_one(&m, a), 0);
        b = like(&m, a, 200);
        assert_int_equal(run_one(&m, b), 192);
        c = like(&m, a, 200);
        c->spec.n_media = 0;
        sim_add_media(c, 40, 100, ONE_WAY + 2);
        assert_int_equal(run_one(&m, c), 32 + 8); /* the tokens before it */
        simcase_finish(&m);
    }
}

/* Steps of 64 rows; blocks of 16. Wherever a medium of 50 positions stands, it is in one step;
 * beside others that decode and a target that gives prompts 16 rows, too. */
static void whole(uint32_t depth, uint32_t first, bool busy)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim m;
    struct sim_req *a, *b;

    o.n_slabs = 128;
    if (busy) o.sch.step_target_ns = 2600000; /* of a base of 1 ms, and 0.1 ms a row */
    sim_init(&m, &o);
    for (uint32_t i = 0; busy && i < 20; i++)
        sim_submit(&m, sim_req_new(&m, 1, 10, 200));
    for (uint32_t i = 0; busy && i < 60; i++)
        sim_iterate(&m);
    a = sim_req_new(&m, 0, 300, 4);
    sim_add_media(a, first, 50, BOTH_WAYS);
    sim_add_media(a, first + 50, 30, BOTH_WAYS);
    sim_add_media(a, first + 90, 60, BOTH_WAYS);
    a->spec.n_choices = 3;
    sim_submit(&m, a);
    for (uint32_t i = 0; i < 2; i++)
        sim_iterate(&m);
    b = like(&m, a, 290);
    sim_submit(&m, b);
    simcase_finish(&m);
}

static void test_never_cut(void **state)
{
    for (uint32_t first = 0; first < 40; first += 3) {
        whole(1, first, false);
        whole(2, first, true);
        whole(1, first, true);
    }
}

/* What is cached of such a medium counts when all of it is, and is not computed again for what
 * follows it in its last block. */
static void test_hit_is_whole(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sim_req *a, *b, *c;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 200, 4);
        sim_add_media(a, 40, 50, BOTH_WAYS);
        assert_int_equal(run_one(&m, a), 0);
        b = like(&m, a, 200);
        assert_int_equal(run_one(&m, b), 192);
        c = like(&m, a, 200);
        c->prompt[92] = 1000; /* another question behind it */
        assert_int_equal(run_one(&m, c), 92);
        simcase_finish(&m);
    }
}

static void refused(struct sim *m, struct sim_req *r, int code)
{
    struct cn_error err = {0};
    uint64_t id;

    assert_int_equal(sch_submit(m->sch, &r->spec, &id, &err), code);
    assert_string_equal(err.param, "prompt");
    assert_true(strlen(err.message) > 20);
}

static void test_refusals(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *r;

    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 200, 4);
    sim_add_media(r, 20, 65, BOTH_WAYS); /* a step has 64 rows */
    refused(&m, r, CN_EWINDOW);
    r = sim_req_new(&m, 0, 200, 4);
    sim_add_media(r, 20, 65, ONE_WAY);
    assert_int_equal(sim_submit(&m, r), 0);
    r = sim_req_new(&m, 0, 60, 4);
    sim_add_media(r, 20, 40, BOTH_WAYS); /* no token behind it */
    refused(&m, r, CN_EINVAL);
    r = sim_req_new(&m, 0, 60, 4);
    sim_add_media(r, 20, 30, BOTH_WAYS);
    r->spec.flags = SCH_PROMPT_LOGITS;
    refused(&m, r, CN_EUNSUPP);
    r = sim_req_new(&m, 0, 60, 4);
    sim_add_media(r, 20, 30, ONE_WAY);
    r->prompt[25] = 3; /* a token within */
    refused(&m, r, CN_EINVAL);
    for (uint32_t at = 10; at <= 50; at += 40) {
        r = sim_req_new(&m, 0, 60, 4);
        sim_add_media(r, 20, 30, ONE_WAY);
        r->prompt[at] = KV_MEDIA | 3; /* of no medium */
        refused(&m, r, CN_EINVAL);
    }
    r = sim_req_new(&m, 0, 60, 4);
    sim_add_media(r, 20, 30, ONE_WAY);
    sim_add_media(r, 40, 5, ONE_WAY);
    refused(&m, r, CN_EINVAL);
    r->media[1] = (struct sch_media){50, UINT64_MAX - 10, false};
    refused(&m, r, CN_EINVAL);
    r->media[1] = (struct sch_media){60, 1, false};
    refused(&m, r, CN_EINVAL);
    r->media[1] = (struct sch_media){55, 0, false};
    refused(&m, r, CN_EINVAL);
    simcase_finish(&m);
}

/* A choice has one sequence so far: a model that needs more is refused when it is added. */
static void test_one_sequence(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct cn_error err = {0};
    struct sim m;
    uint32_t model;

    sim_init(&m, &o);
    struct sch_model_opts mo = {.space = m.space[0],
                                .n_more = 1,
                                .more = m.space,
                                .context = 100,
                                .max_rows = 4,
                                .max_logit_rows = 4};
    assert_int_equal(sch_model_add(m.sch, &mo, &model, &err), CN_EUNSUPP);
    assert_non_null(strstr(err.message, "2 sequences"));
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest_decides), cmocka_unit_test(test_never_cut),
        cmocka_unit_test(test_hit_is_whole),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_one_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
