/* Hardly any memory: requests that were preempted are cancelled, choices of one request push each
 * other out, requests are aborted at random; nothing is left behind, and no text changes.
 * usage: test_scarce MODEL [ABORTS]. Exit 77 = skipped. */
#include "tests/runtime/harness.h"
#include "tests/runtime/spy.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TOKENS = 200, PROMPT = 80, CHOICES = 4 };

static const char *model;
static uint32_t n_aborts = 600;

/* "Not known": whether a choice is saved must not depend on the clock here. Whether saving pays is
 * tested in tests/scheduler/test_schsave.c. */
double __wrap_rt_host_rate(const struct rt_host *h);
double __wrap_rt_host_rate(const struct rt_host *h)
{
    return 0;
}

static struct h_setup scarce(uint64_t tokens)
{
    struct h_setup s = {.model = model,
                        .threads = 2,
                        .n_tenants = 4,
                        .max_batch_rows = 16,
                        .kv_bytes = 64u << 20,
                        .context = 512,
                        .step_target_ms = 60000};
    s.kv_bytes = h_least_memory(&s, tokens);
    return s;
}

static void plain(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    uint32_t n_vocab = (uint32_t)eng_model_info(rt_model(h->rt))->n_vocab;
    struct rt_request q = {
        .priority = RT_NORMAL, .n = 1, .n_prompt = PROMPT, .max_tokens = TOKENS - PROMPT};
    q.prompt = cn_malloc_array(PROMPT, sizeof *q.prompt);
    for (uint32_t k = 0; k < PROMPT; k++)
        q.prompt[k] = ((k + i * 7919) * 2654435761u >> 9) % n_vocab;
    eng_sampling_defaults(&q.sampling);
    q.sampling.seed = i;
    q.sampling.ignore_eos = true;
    *out = q;
}

/* Everything given back: no blocks in use, no sequence open. */
static void check_nothing_left(struct h *h)
{
    h_settle(h);
    struct kv_stats kv = spy_read().pool;
    assert_int_equal(kv.n_seqs, 0);
    assert_int_equal(kv.blocks[KV_FILLING] + kv.blocks[KV_COPYING] + kv.blocks[KV_READY], 0);
    assert_int_equal(kv.bytes[KV_FREE] + kv.bytes[KV_CACHED], kv.n_slabs * kv.slab_bytes);
    assert_true(h_metric(h, CN_M_kv_saved_bytes) == 0);
}

/* ---- cancelled while preempted --------------------------------------------------------------- */

struct plan {
    size_t tokens[2];
    enum rt_event_kind when; /* of the second request: then the first is cancelled */
    bool paused, cancelled;
};

static void push_out(struct h_drive *d, const struct rt_event *e)
{
    struct plan *p = d->arg;
    p->tokens[e->id] += e->n_tokens;
    if (!p->paused && p->tokens[0] >= 100) {
        p->paused = true;
        rt_pause(d->h->rt, &d->mail, 0, true);
        h_send(d);
    }
    if (e->id == 1 && e->kind == p->when && !p->cancelled) {
        p->cancelled = true;
        rt_cancel(d->h->rt, &d->mail, 0);
    }
}

static void test_cancelled_while_preempted(void **state)
{
    struct h_setup s = scarce(TOKENS);
    for (int k = 0; k < 2; k++) {
        struct plan p = {.when = k ? RT_EV_END : RT_EV_TOKENS};
        struct h_result r[2];
        struct h h;
        h_start(&h, &s);
        struct h_drive d = {
            .h = &h, .n = 2, .make = plain, .arg = &p, .turn = push_out, .results = r};
        h_drive(&d);
        assert_int_equal(r[0].code, CN_ECANCELLED);
        assert_int_equal(r[0].choices[0].finish, RT_FINISH_CANCELLED);
        assert_in_range(r[0].usage.completion_tokens, 100, 101);
        assert_int_equal(r[1].code, 0);
        assert_int_equal(r[1].usage.completion_tokens, TOKENS - PROMPT);
        assert_true(h_metric(&h, CN_M_preemptions) == 1);
        check_nothing_left(&h);
        h_stop(&h);
        h_result_fini(&r[0]);
        h_result_fini(&r[1]);
    }
}

/* ---- choices of one request ------------------------------------------------------------------ */

static void many(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    plain(h, i, out, arg);
    out->n = CHOICES;
}

/* In memory for one and a half the choices are as in memory for all. Where hardly any of it is for
 * the answer, but for windows or a state, they wait for each other instead. */
static void test_choices(void **state)
{
    struct h_result want, got;
    struct h_setup s = scarce(TOKENS * 3 / 2), roomy = s;
    struct h h;
    roomy.kv_bytes = 64u << 20;
    h_start(&h, &roomy);
    bool has_state = h_has_span(&h, KR_SPAN_STATE);
    bool grows = h_has_span(&h, KR_SPAN_ALL) && !h_has_span(&h, KR_SPAN_WINDOW);
    h_run(&h, 1, 1, many, NULL, &want);
    assert_true(h_metric(&h, CN_M_preemptions) == 0);
    assert_int_equal(want.code, 0);
    /* the prompt was computed once, but for what follows the last place of a shared block or
     * state */
    double computed = h_metric(&h, CN_M_prompt_tokens_computed);
    assert_true(computed <= PROMPT + (CHOICES - 1) * 1.0 * H_BLOCK_TOKENS);
    if (has_state) assert_true(spy_read().pool.snapshots_used >= CHOICES - 1);
    check_nothing_left(&h);
    h_stop(&h);
    for (uint32_t i = 1; i < CHOICES; i++) /* they differ, or nothing would be shown */
        assert_memory_not_equal(want.choices[0].ids, want.choices[i].ids,
                                (TOKENS - PROMPT) * sizeof(uint32_t));
    h_start(&h, &s);
    h_run(&h, 1, 1, many, NULL, &got);
    assert_true(h_same(&want, &got));
    print_message("choices: %g preemptions\n", h_metric(&h, CN_M_preemptions));
    assert_true(!grows || h_metric(&h, CN_M_preemptions) > 0);
    check_nothing_left(&h);
    h_stop(&h);
    h_result_fini(&want);
    h_result_fini(&got);
}

/* Preempted choices keep their blocks outside of the pool and get them back: the same as when they
 * are computed again, and as when there is room; also where only one of them has room there, or
 * none. */
static void test_saved(void **state)
{
    struct h_setup s = scarce(TOKENS * 3 / 2), roomy = s;
    struct h_result want, got;
    double recomputed = 0;
    struct h h;
    roomy.kv_bytes = 64u << 20;
    h_start(&h, &roomy);
    bool grows = h_has_span(&h, KR_SPAN_ALL) && !h_has_span(&h, KR_SPAN_WINDOW);
    h_run(&h, 1, 1, many, NULL, &want);
    h_stop(&h);
    const uint64_t rooms[] = {0, 4096, h_least_memory(&s, TOKENS), 64u << 20};
    for (size_t i = 0; i < CN_ARRAY_LEN(rooms); i++) {
        s.host_bytes = rooms[i];
        h_start(&h, &s);
        h_run(&h, 1, 1, many, NULL, &got);
        assert_true(h_same(&want, &got));
        double saves = h_metric(&h, CN_M_saves), restores = h_metric(&h, CN_M_restores);
        print_message("saved in %llu KiB: %g of %g, %g restored, %g tokens computed again\n",
                      (unsigned long long)rooms[i] / 1024, saves, h_metric(&h, CN_M_preemptions),
                      restores, h_metric(&h, CN_M_tokens_recomputed));
        if (i == 0) recomputed = h_metric(&h, CN_M_tokens_recomputed);
        assert_true(i > 1 || (saves == 0 && restores == 0));
        assert_true(restores <= saves && saves <= h_metric(&h, CN_M_preemptions));
        if (grows && rooms[i] == 64u << 20) {
            assert_true(saves > 0 && restores == saves); /* all that had computed anything */
            assert_true(h_metric(&h, CN_M_tokens_recomputed) < recomputed);
        }
        check_nothing_left(&h);
        h_stop(&h);
        h_result_fini(&got);
    }
    h_result_fini(&want);
}

/* Pauses request 0 when it is under way, so that 1 takes its blocks, and lets it go on after that.
 */
static void step_aside(struct h_drive *d, const struct rt_event *e)
{
    struct plan *p = d->arg;
    p->tokens[e->id] += e->n_tokens;
    if (!p->paused && p->tokens[0] >= 100) {
        p->paused = true;
        rt_pause(d->h->rt, &d->mail, 0, true);
        h_send(d);
    }
    if (e->id == 1 && e->kind == RT_EV_END) rt_pause(d->h->rt, &d->mail, 0, false);
}

/* Every kind of model: windows and states too are brought back as they were. */
static void test_saved_while_paused(void **state)
{
    struct h_setup s = scarce(TOKENS);
    struct h_result first = {0};
    for (int k = 0; k < 2; k++) {
        struct plan p = {0};
        struct h_result r[2];
        struct h h;
        s.host_bytes = k ? 64u << 20 : 0;
        h_start(&h, &s);
        struct h_drive d = {
            .h = &h, .n = 2, .make = plain, .arg = &p, .turn = step_aside, .results = r};
        h_drive(&d);
        assert_true(r[0].code == 0 && r[1].code == 0);
        assert_true(h_metric(&h, CN_M_preemptions) == 1);
        assert_true(h_metric(&h, CN_M_saves) == k && h_metric(&h, CN_M_restores) == k);
        assert_true((h_metric(&h, CN_M_tokens_recomputed) == 0) == k);
        if (k) assert_true(h_same(&first, &r[0]));
        check_nothing_left(&h);
        h_stop(&h);
        h_result_fini(&r[1]);
        if (k)
            h_result_fini(&r[0]);
        else
            first = r[0];
    }
    h_result_fini(&first);
}

/* ---- aborts ---------------------------------------------------------------------------------- */

static void some(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    h_request(h, i, i % 4, out);
    if (i % 3 == 0) out->n = 1 + i % 7;
    if (i % 5 == 0) out->priority = i % 2 ? RT_BACKGROUND : RT_INTERACTIVE;
}

/* About every fifth request is cancelled at its door, others at any of their events. */
static void abort_some(struct h_drive *d, const struct rt_event *e)
{
    uint32_t *rng = d->arg;
    *rng = *rng * 1664525u + 1013904223u;
    uint32_t x = *rng >> 16;
    if (e->kind == RT_EV_ACCEPTED ? x % 5 == 0 : x % 64 == 0) rt_cancel(d->h->rt, &d->mail, e->id);
    while (d->sent < d->n && d->sent - d->ended < 24 && !d->failed)
        h_send(d);
}

static void aborts(uint64_t host_bytes)
{
    struct h_setup s = scarce(400);
    s.host_bytes = host_bytes;
    struct h_result *r = cn_calloc(n_aborts, sizeof *r);
    uint32_t rng = 7, cancelled = 0;
    struct h h;
    h_start(&h, &s);
    bool full = h_has_span(&h, KR_SPAN_ALL);
    struct h_drive d = {
        .h = &h, .n = n_aborts, .make = some, .arg = &rng, .turn = abort_some, .results = r};
    h_drive(&d);
    for (uint32_t i = 0; i < n_aborts; i++) {
        assert_true(r[i].code == 0 || r[i].code == CN_ECANCELLED);
        cancelled += r[i].code != 0;
        h_result_fini(&r[i]);
    }
    print_message("aborts: %u of %u cancelled, %g preemptions\n", cancelled, n_aborts,
                  h_metric(&h, CN_M_preemptions));
    assert_true(cancelled > n_aborts / 8 && cancelled < n_aborts * 7 / 8);
    assert_true(!full || h_metric(&h, CN_M_preemptions) > 0);
    check_nothing_left(&h);
    h_stop(&h);
    free(r);
}

static void test_aborts(void **state)
{
    aborts(0);
}

static void test_aborts_of_saved(void **state)
{
    aborts(2u << 20);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cancelled_while_preempted),
                                       cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_saved),
                                       cmocka_unit_test(test_saved_while_paused),
                                       cmocka_unit_test(test_aborts_of_saved),
                                       cmocka_unit_test(test_aborts)};
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (argc > 2) n_aborts = (uint32_t)atoi(argv[2]);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
