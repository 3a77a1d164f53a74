/* A guide that takes 300 ms for a mask: others go on meanwhile, and a request that ends before the
 * mask is there stays until its guide is no longer asked.
 *
 * usage: test_aside MODEL */
#include "tests/runtime/harness.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { SLOW_AT = 5, SLOW_US = 300000, TOKENS = 200 };

static const char *model;
static struct h h;
static uint32_t n_put;
static double before, during;                    /* tokens of others, while a mask was made */
static atomic_bool asked, early, stop, given_up; /* early: an END came while the guide was asked */
static const struct cn_mailbox *_Atomic mail;

static int mask(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                uint64_t max_ns, uint32_t *bits)
{
    if (n_put == SLOW_AT && max_ns != UINT64_MAX) {
        before = h_metric(&h, CN_M_tokens_generated);
        return RT_NO_TIME;
    }
    if (n_put == SLOW_AT) {
        atomic_store(&asked, true);
        if (atomic_load(&stop)) rt_cancel(h.rt, atomic_load(&mail), 0);
        for (int us = 0; us < SLOW_US && !atomic_load(&given_up); us += 1000)
            usleep(1000);
        during = h_metric(&h, CN_M_tokens_generated) - before;
        atomic_store(&asked, false);
    }
    return RT_ALL_IDS;
}

static uint32_t put(void *arg, uint32_t choice, uint32_t id, const uint32_t **forced)
{
    n_put++;
    return 0;
}

static void give_up(void *arg)
{
    atomic_store(&given_up, true);
}

static const struct rt_guide guide = {.mask = mask, .put = put, .stop = give_up};

/* Request 0 is guided. */
static void make(struct h *on, uint32_t i, struct rt_request *out, void *arg)
{
    h_request(on, i, 0, out);
    out->n = 1;
    out->max_tokens = i ? TOKENS : 10;
    out->sampling.ignore_eos = true;
    if (!i) out->guide = &guide;
}

static void turn(struct h_drive *d, const struct rt_event *e)
{
    atomic_store(&mail, &d->mail);
    if (e->kind == RT_EV_END && e->id == 0 && atomic_load(&asked)) atomic_store(&early, true);
    while (d->sent < d->n)
        h_send(d);
}

static void run(struct h_result *r)
{
    struct h_setup s = {
        .model = model, .threads = 1, .n_tenants = 1, .kv_bytes = 64u << 20, .context = 512};
    struct h_drive d = {.h = &h, .n = 2, .make = make, .turn = turn, .results = r};
    n_put = 0;
    during = -1;
    h_start(&h, &s);
    h_drive(&d);
    assert_true(h_metric(&h, CN_M_masks_aside) == 1);
    h_stop(&h);
    assert_true(during >= 0);
    assert_false(atomic_load(&early));
}

static void test_others_go_on(void **state)
{
    struct h_result r[2];
    run(r);
    assert_int_equal(r[0].code, 0);
    assert_int_equal(r[0].choices[0].n_ids, 10);
    assert_int_equal(r[1].choices[0].n_ids, TOKENS);
    assert_true(during > 20);
    h_result_fini(&r[0]);
    h_result_fini(&r[1]);
}

static void test_an_end_waits_for_the_guide(void **state)
{
    struct h_result r[2];
    atomic_store(&stop, true);
    run(r);
    atomic_store(&stop, false);
    assert_true(atomic_load(&given_up));
    assert_int_equal(r[0].code, CN_ECANCELLED);
    assert_int_equal(r[0].choices[0].n_ids, SLOW_AT);
    assert_int_equal(r[1].code, 0);
    h_result_fini(&r[0]);
    h_result_fini(&r[1]);
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

static char order[32];
static atomic_int n_done;
static atomic_bool begun, go;

static int noted(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                 uint64_t max_ns, uint32_t *bits)
{
    atomic_store(&begun, true);
    while (!atomic_load(&go))
        usleep(100);
    order[atomic_load(&n_done)] = *(const char *)arg;
    atomic_fetch_add(&n_done, 1);
    return RT_ALL_IDS;
}

/* A tenant with many masks waits behind those with few, and one that was dropped is not made. */
static void test_tenants_take_turns(void **state)
{
    static const char names[] = "aaaaaabbc";
    struct rt_guide guides[sizeof names];
    struct rt_mask_job jobs[sizeof names] = {0};
    const uint32_t *masks[sizeof names];
    uint32_t words[sizeof names];
    struct rt_masks m;
    rt_masks_init(&m, "test");
    m.by_turns = true;
    for (size_t i = 0; names[i]; i++) {
        guides[i] = (struct rt_guide){.arg = (void *)&names[i], .mask = noted};
        jobs[i].guide = &guides[i];
        jobs[i].tenant = (uint64_t)names[i];
        jobs[i].masks = &masks[i];
        jobs[i].words = &words[i];
        jobs[i].n_words = 1;
        rt_masks_ask(&m, &jobs[i]);
        while (!atomic_load(&begun)) /* the first runs: it is no longer on the list */
            usleep(100);
    }
    assert_false(rt_masks_drop(&m, &jobs[0]));
    assert_true(rt_masks_drop(&m, &jobs[5]));
    atomic_store(&go, true);
    for (size_t i = 0; names[i]; i++)
        if (i != 5) rt_masks_wait(&m, &jobs[i]);
    rt_masks_fini(&m);
    assert_string_equal(order, "aabcabaa");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others_go_on),
        cmocka_unit_test(test_an_end_waits_for_the_guide),
        cmocka_unit_test(test_tenants_take_turns),
    };
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        printf("the reference data is not here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
