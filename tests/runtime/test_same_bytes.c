/* Promise 1: a request's bytes depend on the model and the request alone.
 * usage: test_same_bytes MODEL [REQUESTS [f16|q8_0|q4_0 [cross|drafts|guesses]]]
 * The same requests alone, 16 at once, in chunks of 1, 7 and 16 rows, from the prefix cache (or a
 * snapshot of the state), preempted, with one thread and two: ids, text and log-probabilities must
 * be byte-identical to those of each alone with one thread. A way that did not come about is a
 * failure too. With "cross" (or CONIFER_LONG set) each way runs with one thread and with two, and
 * more answers reach the window; else with one or the other. With "drafts" every step of each way
 * tests guesses at the next tokens, some of which are right and some wrong, and two more ways do
 * so: alone, and as the scheduler itself guesses; the reference does not. "guesses" is "drafts" for
 * a model whose answers repeat themselves: the scheduler must have guessed right. Exit 77 =
 * skipped. */
#include "tests/runtime/harness.h"
#include "tests/runtime/spy.h"

#include "runtime/rt.h"
#include "tests/runtime/guess.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    N_STEADY = 6,        /* the first requests: long answers to short prompts, in pairs */
    STEADY_TOKENS = 200, /* of both together */
    N_SLOW = 12,         /* so many of the requests are run in chunks of a few rows */
    CONTEXT = 512,
    CHUNK = 16,        /* rows of a step where memory is scarce */
    STATE_TOKENS = 32, /* between snapshots of a state */
};

static const char *model;
static uint32_t n_requests = 200;
static int kv_type;
static bool cross, drafts, guesses;
static uint32_t depth; /* steps in flight, of the last start */
static struct h_result *alone;

/* ---- requests -------------------------------------------------------------------------------- */

static void steady(struct h *h, uint32_t i, uint32_t tenant, struct rt_request *out)
{
    uint32_t n_vocab = (uint32_t)eng_model_info(rt_model(h->rt))->n_vocab;
    struct rt_request q = {.id = i, .tenant = tenant, .priority = RT_NORMAL, .n = 1};
    q.n_prompt = 64 + i * 13 % 33;
    q.max_tokens = STEADY_TOKENS - q.n_prompt;
    q.prompt = cn_malloc_array(q.n_prompt, sizeof *q.prompt);
    for (uint32_t k = 0; k < q.n_prompt; k++)
        q.prompt[k] = ((k < 40 ? k : k * 7 + i * 7919) * 2654435761u >> 9) % n_vocab;
    eng_sampling_defaults(&q.sampling);
    q.sampling.seed = i;
    q.sampling.temperature = i % 2 ? 0.0f : 0.8f;
    q.sampling.ignore_eos = true;
    q.sampling.logprobs = i % 3 ? -1 : 2;
    q.sampling.frequency_penalty = i % 2 ? 0.0f : 0.5f;
    q.sampling.repetition_penalty = i % 4 ? 1.0f : 1.2f;
    *out = q;
}

/* Answers up to the window take most of the time: half of them are enough where that counts. */
static void request(struct h *h, uint32_t i, uint32_t tenant, struct rt_request *out)
{
    if (i < N_STEADY) {
        steady(h, i, tenant, out);
        return;
    }
    h_request(h, i, tenant, out);
    if (!cross && !out->max_tokens && i % 2) out->max_tokens = 4 + i % 28;
}

static void own_tenant(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    request(h, i, i, out); /* no tenant sees another's cache */
}

static void one_tenant(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    request(h, i, 0, out);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Steps are not cut by the time they take, which would make chunks shorter on a slow machine. */
static struct h_setup base(void)
{
    return (struct h_setup){.model = model,
                            .threads = 1,
                            .n_tenants = n_requests,
                            .kv_type = kv_type,
                            .kv_bytes = 256u << 20,
                            .step_target_ms = 60000,
                            .speculation = drafts,
                            .context = CONTEXT};
}

static void start(struct h *h, const struct h_setup *s)
{
    h_start(h, s);
    assert_int_equal(kr_device_threads(h->rt->groups[0].device), s->threads);
    depth = h->rt->groups[0].stepper.depth;
    spy_reset();
}

static void compare(struct h *h, struct h_result *got, uint32_t n, const char *what)
{
    uint32_t differ = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!h_same(&alone[i], &got[i])) {
            if (!differ) print_error("%s: request %u differs, code %d\n", what, i, got[i].code);
            differ++;
        }
        h_result_fini(&got[i]);
    }
    h_settle(h);
    free(got);
    if (differ) fail_msg("%s: %u of %u requests differ", what, differ, n);
}

static struct h_result *results_new(void)
{
    return cn_calloc(n_requests, sizeof(struct h_result));
}

static int run_alone(void **state)
{
    struct h h;
    struct h_setup s = base();
    alone = results_new();
    s.speculation = false;
    s.device = dev_reference();
    start(&h, &s);
    h_run(&h, n_requests, 1, own_tenant, NULL, alone);
    for (uint32_t i = 0; i < n_requests; i++) {
        assert_int_equal(alone[i].code, 0);
        assert_int_equal(alone[i].usage.cached_tokens, 0);
        assert_true(alone[i].usage.completion_tokens > 0);
    }
    h_settle(&h);
    h_stop(&h);
    if (drafts) guess_from(alone, n_requests);
    return 0;
}

static int free_alone(void **state)
{
    for (uint32_t i = 0; i < n_requests; i++)
        h_result_fini(&alone[i]);
    free(alone);
    return 0;
}

/* With so many threads, and when crossed with the other number too. */
static void each_threads(void (*pass)(struct h_setup s), uint32_t threads)
{
    for (uint32_t i = 0; i < (cross ? 2 : 1); i++) {
        struct h_setup s = base();
        s.threads = i ? 3 - threads : threads;
        pass(s);
    }
}

/* There were right guesses and wrong ones, where there can be any. */
static void check_drafts(struct h *h, const struct h_setup *s)
{
    double right = h_metric(h, CN_M_drafts_right), wrong = h_metric(h, CN_M_drafts_wrong);
    if (!drafts || h_has_span(h, KR_SPAN_STATE) || s->max_batch_rows == 1) {
        assert_true(right == 0 && wrong == 0);
        return;
    }
    print_message("%g right guesses, %g wrong\n", right, wrong);
    assert_true(right > 0 && wrong > 0);
}

/* The first n requests, each of a tenant of its own; the preemptions. */
static double run_pass(struct h_setup s, uint32_t n, uint32_t at_once, const char *what)
{
    struct h h;
    char name[64];
    struct h_result *r = results_new();
    snprintf(name, sizeof name, "%s, %u thread%s", what, s.threads, s.threads > 1 ? "s" : "");
    start(&h, &s);
    h_run(&h, n, at_once, own_tenant, NULL, r);
    compare(&h, r, n, name);
    double preempted = h_metric(&h, CN_M_preemptions);
    check_drafts(&h, &s);
    h_stop(&h);
    return preempted;
}

/* With two steps in flight, and only then, rows name ids that were not known yet. */
static void check_tickets(void)
{
    assert_true(depth > 1 ? spy_read().tickets > 0 : spy_read().tickets == 0);
}

static void sixteen_at_once(struct h_setup s)
{
    run_pass(s, n_requests, 16, "16 at once");
    struct spy y = spy_read();
    assert_true(y.most_seqs >= 16);
    assert_true(y.mixed > 0); /* prompts beside answers */
    check_tickets();
    uint64_t choices = 0;
    for (uint32_t i = 0; i < n_requests; i++)
        choices += alone[i].n;
    assert_int_equal(y.opened, choices); /* each was sent once, and changed afterwards */
    assert_int_equal(y.opened_late, 0);
}

static void chunked(struct h_setup s)
{
    static const uint32_t rows[] = {1, 7, 16};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[32];
        uint32_t n = rows[i] < 16 ? CN_MIN(n_requests, (uint32_t)N_SLOW) : n_requests;
        s.max_batch_rows = rows[i];
        snprintf(name, sizeof name, "chunks of %u", rows[i]);
        run_pass(s, n, 4, name);
        assert_int_equal(spy_read().most_rows, rows[i]);
    }
}

static void one_by_one(struct h_setup s)
{
    run_pass(s, n_requests, 1, "alone");
    check_tickets();
}

static void own_guesses(struct h_setup s)
{
    guess_from(NULL, 0);
    s.speculation = true;
    struct h h;
    struct h_result *r = results_new();
    start(&h, &s);
    h_run(&h, n_requests, 4, own_tenant, NULL, r);
    compare(&h, r, n_requests, "its own guesses");
    double right = h_metric(&h, CN_M_drafts_right), wrong = h_metric(&h, CN_M_drafts_wrong);
    print_message("its own: %g right guesses, %g wrong\n", right, wrong);
    if (guesses) assert_true(right > 0);
    h_stop(&h);
    guess_from(alone, n_requests);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* A prompt that was there before is found up to its last whole block; where there is a state up to
 * a snapshot, and these are so far apart. */
static void check_cached(const struct h_result *r, uint32_t i, bool has_state)
{
    uint64_t most = (r->usage.prompt_tokens - 1) / H_BLOCK_TOKENS * H_BLOCK_TOKENS;
    uint64_t least = has_state ? most - CN_MIN(most, STATE_TOKENS - H_BLOCK_TOKENS) : most;
    if (has_state && most < STATE_TOKENS) least = 0;
    if (r->usage.cached_tokens < least)
        fail_msg("request %u: %llu of %llu prompt tokens found", i,
                 (unsigned long long)r->usage.cached_tokens,
                 (unsigned long long)r->usage.prompt_tokens);
}

/* The first round finds what others computed before it, the second its whole prompts. */
static void prefix_cached(struct h_setup s)
{
    struct h h;
    s.kv_bytes = (uint64_t)n_requests << 24; /* nothing is evicted; what is not used is not there */
    start(&h, &s);
    bool has_state = h_has_span(&h, KR_SPAN_STATE);
    for (int round = 0; round < 2; round++) {
        struct h_result *r = results_new();
        uint64_t cached = 0, used = spy_read().pool.snapshots_used;
        h_run(&h, n_requests, round ? 16 : 6, one_tenant, NULL, r);
        for (uint32_t i = 0; i < n_requests; i++) {
            cached += r[i].usage.cached_tokens;
            if (round) check_cached(&r[i], i, has_state);
        }
        assert_true(cached > 0);
        compare(&h, r, n_requests, round ? "cached, 16 at once" : "cached");
        used = spy_read().pool.snapshots_used - used;
        assert_true(has_state ? used > 0 : used == 0);
        if (round && has_state) print_message("snapshots used: %llu\n", (unsigned long long)used);
    }
    h_stop(&h);
}

/* ---- hardly any memory ----------------------------------------------------------------------- */

/* Their answers grow until not all fit any more: only where memory grows with the answer. */
static void grown(struct h_setup s)
{
    struct h h;
    start(&h, &s);
    bool full = h_has_span(&h, KR_SPAN_ALL);
    h_stop(&h);
    if (!full) return;
    s.max_batch_rows = CHUNK;
    s.kv_bytes = h_least_memory(&s, STEADY_TOKENS * 5 / 2); /* in less, admission waits for room */
    double times = run_pass(s, N_STEADY, N_STEADY, "grown");
    print_message("grown: %g preemptions\n", times);
    assert_true(times > 0);
}

/* When the first of a pair has put out three quarters it is paused, and the second comes; the next
 * pair when both have ended. */
static void in_pairs(struct h_drive *d, const struct rt_event *e)
{
    uint32_t *tokens = d->arg;
    uint64_t max = STEADY_TOKENS - (64 + e->id * 13 % 33); /* as in steady */
    if (e->kind == RT_EV_TOKENS && e->id % 2 == 0) {
        tokens[e->id] += (uint32_t)e->n_tokens;
        if (tokens[e->id] == max * 3 / 4) {
            rt_pause(d->h->rt, &d->mail, e->id, true);
            h_send(d);
        }
    }
    if (e->kind != RT_EV_END) return;
    if (e->id % 2)
        rt_pause(d->h->rt, &d->mail, e->id - 1, false);
    else
        h_send(d);
}

/* There is room for one only: the second of a pair takes that of the first. */
static void gave_way(struct h_setup s)
{
    struct h h;
    uint32_t tokens[N_STEADY] = {0};
    struct h_result *r = results_new();
    s.max_batch_rows = CHUNK;
    s.kv_bytes = h_least_memory(&s, STEADY_TOKENS);
    start(&h, &s);
    struct h_drive d = {
        .h = &h, .n = N_STEADY, .make = own_tenant, .arg = tokens, .turn = in_pairs, .results = r};
    h_drive(&d);
    compare(&h, r, N_STEADY, "gave way");
    double times = h_metric(&h, CN_M_preemptions), again = h_metric(&h, CN_M_tokens_recomputed);
    print_message("gave way: %g preemptions, %g tokens computed again\n", times, again);
    assert_true(times >= N_STEADY / 2);
    assert_true(again > 0);
    assert_true(spy_read().opened_late >= N_STEADY / 2); /* what was put out is sent anew */
    h_stop(&h);
}

/* Slabs that were dealt when the model was loaded stay where they are: in much memory, and in so
 * little that sequences push each other out. */
static void dealt(struct h_setup s)
{
    struct h h;
    struct kr_device_info info;
    s.lends_at_load = true;
    start(&h, &s);
    kr_device_info(h.rt->groups[0].device, &info);
    h_stop(&h);
    if (!info.lends_at_load) {
        print_message("skipped on %s: it lends at any time\n", dev_kind());
        skip();
    }
    run_pass(s, n_requests, 16, "dealt at load");
    assert_int_equal(spy_read().pool.n_slabs_free, 0);
    s.max_batch_rows = CHUNK;
    s.context = STEADY_TOKENS * 2;
    s.kv_bytes = h_least_memory(&s, STEADY_TOKENS * 2);
    double times = run_pass(s, N_STEADY, N_STEADY, "dealt at load, little memory");
    print_message("dealt at load: %g preemptions\n", times);
    assert_int_equal(spy_read().pool.n_slabs_free, 0);
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* The reference has one thread; so has the cache's, where sixteen run at once too. */
static void test_sixteen_at_once(void **state)
{
    each_threads(sixteen_at_once, 2);
}

static void test_chunked(void **state)
{
    each_threads(chunked, 2);
}

static void test_prefix_cached(void **state)
{
    each_threads(prefix_cached, 1);
}

static void test_preempted(void **state)
{
    each_threads(grown, 1);
    each_threads(gave_way, 2);
}

static void test_dealt_at_load(void **state)
{
    each_threads(dealt, 2);
}

static void test_drafts(void **state)
{
    each_threads(one_by_one, 1);
    each_threads(own_guesses, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen_at_once), cmocka_unit_test(test_chunked),
        cmocka_unit_test(test_prefix_cached), cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_dealt_at_load)};
    const struct CMUnitTest with_drafts[] = {
        cmocka_unit_test(test_sixteen_at_once), cmocka_unit_test(test_chunked),
        cmocka_unit_test(test_prefix_cached), cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_drafts)};
    model = argc > 1 ? argv[1] : NULL;
    model = h_model(model);
    if (argc > 2) n_requests = CN_MAX((uint32_t)atoi(argv[2]), 16u);
    if (argc > 3)
        kv_type = !strcmp(argv[3], "q8_0")   ? CFG_KV_Q8_0
                  : !strcmp(argv[3], "q4_0") ? CFG_KV_Q4_0
                                             : CFG_KV_F16;
    guesses = argc > 4 && !strcmp(argv[4], "guesses");
    drafts = guesses || (argc > 4 && !strcmp(argv[4], "drafts"));
    cross = (argc > 4 && !drafts) || getenv("CONIFER_LONG");
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return drafts ? cmocka_run_group_tests(with_drafts, run_alone, free_alone)
                  : cmocka_run_group_tests(tests, run_alone, free_alone);
}
