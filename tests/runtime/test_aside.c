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
static double during;                  /* tokens of others while a mask was made */
static atomic_bool asked, early, stop; /* early: an END came while the guide was asked */
static const struct cn_mailbox *mail;

static int mask(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                uint64_t max_ns, uint32_t *bits)
{
    if (n_put == SLOW_AT && max_ns != UINT64_MAX) return RT_NO_TIME;
    if (n_put == SLOW_AT) {
        double before = h_metric(&h, CN_M_tokens_generated);
        atomic_store(&asked, true);
        if (atomic_load(&stop)) rt_cancel(h.rt, mail, 0);
        usleep(SLOW_US);
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

static const struct rt_guide guide = {.mask = mask, .put = put};

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
    mail = &d->mail;
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
    assert_true(during > 0);
    h_result_fini(&r[0]);
    h_result_fini(&r[1]);
}

static void test_an_end_waits_for_the_guide(void **state)
{
    struct h_result r[2];
    atomic_store(&stop, true);
    run(r);
    atomic_store(&stop, false);
    assert_int_equal(r[0].code, CN_ECANCELLED);
    assert_int_equal(r[0].choices[0].n_ids, SLOW_AT);
    assert_int_equal(r[1].code, 0);
    h_result_fini(&r[0]);
    h_result_fini(&r[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others_go_on),
        cmocka_unit_test(test_an_end_waits_for_the_guide),
    };
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        printf("the reference data is not here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
