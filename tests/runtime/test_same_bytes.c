/* Promise 1: a request's bytes depend on the model and the request alone.
 * usage: test_same_bytes MODEL [REQUESTS [f16|q8_0 [cross]]]
 * The same requests alone, 16 at once, chunked, from the prefix cache, preempted, with one thread
 * and two: ids, text and log-probabilities must be byte-identical to those of each alone with one
 * thread. With "cross" (or CONIFER_LONG set) each way runs with one thread and with two, and more
 * answers reach the window; else with one or the other. Exit 77 = skipped. */
#include "tests/runtime/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *model;
static uint32_t n_requests = 200;
static int kv_type;
static bool cross;
static struct h_result *alone;

/* Answers up to the window take most of the time: half of them are enough where that counts. */
static void request(struct h *h, uint32_t i, uint32_t tenant, struct rt_request *out)
{
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

static struct h_setup base(void)
{
    return (struct h_setup){.model = model,
                            .threads = 1,
                            .n_tenants = n_requests,
                            .kv_type = kv_type,
                            .kv_bytes = 256u << 20,
                            .context = 512};
}

static void compare(struct h *h, struct h_result *got, const char *what)
{
    uint32_t differ = 0;
    for (uint32_t i = 0; i < n_requests; i++) {
        if (!h_same(&alone[i], &got[i])) {
            if (!differ) print_error("%s: request %u differs\n", what, i);
            differ++;
        }
        h_result_fini(&got[i]);
    }
    h_settle(h);
    free(got);
    if (differ) fail_msg("%s: %u of %u requests differ", what, differ, n_requests);
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
    h_start(&h, &s);
    h_run(&h, n_requests, 1, own_tenant, NULL, alone);
    for (uint32_t i = 0; i < n_requests; i++) {
        assert_int_equal(alone[i].code, 0);
        assert_int_equal(alone[i].usage.cached_tokens, 0);
        assert_true(alone[i].usage.completion_tokens > 0);
    }
    h_settle(&h);
    h_stop(&h);
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

/* One run of all requests, each of a tenant of its own. */
static double run_pass(struct h_setup s, uint32_t at_once, const char *what)
{
    struct h h;
    char name[64];
    struct h_result *r = results_new();
    snprintf(name, sizeof name, "%s, %u thread%s", what, s.threads, s.threads > 1 ? "s" : "");
    h_start(&h, &s);
    h_run(&h, n_requests, at_once, own_tenant, NULL, r);
    double preempted = h_metric(&h, CN_M_preemptions);
    compare(&h, r, name);
    h_stop(&h);
    return preempted;
}

static void sixteen_at_once(struct h_setup s)
{
    run_pass(s, 16, "16 at once");
}

static void chunked(struct h_setup s)
{
    s.max_batch_rows = 32;
    run_pass(s, 4, "chunks of 32");
}

/* The first round finds what others computed before it, the second its whole prompts. */
static void prefix_cached(struct h_setup s)
{
    struct h h;
    h_start(&h, &s);
    for (int round = 0; round < 2; round++) {
        struct h_result *r = results_new();
        uint64_t cached = 0;
        h_run(&h, n_requests, round ? 16 : 6, one_tenant, NULL, r);
        for (uint32_t i = 0; i < n_requests; i++)
            cached += r[i].usage.cached_tokens;
        assert_true(cached > 0);
        compare(&h, r, round ? "cached, 16 at once" : "cached");
    }
    h_stop(&h);
}

static void preempted(struct h_setup s)
{
    struct h h;
    h_start(&h, &s);
    const struct kr_exec_info *x = eng_model_info(rt_model(h.rt))->exec;
    bool full = false; /* a model without layers that see everything needs hardly any memory */
    uint64_t one = 0; /* a sequence of the whole window: what the pool must hold in any case */
    for (uint32_t g = 0; g < x->n_groups; g++) {
        const struct kr_kv_group *kg = &x->groups[g];
        uint64_t tokens = s.context;
        full |= kg->span == KR_SPAN_ALL;
        if (kg->window_tokens) tokens = CN_MIN(tokens, kg->window_tokens + 528ull);
        one += kg->block_bytes * (kg->span == KR_SPAN_STATE ? 1 : tokens / 16 + 1);
    }
    h_stop(&h);
    s.kv_bytes = one * 3 / 2;
    double times = run_pass(s, 16, "preempted");
    print_message("preemptions: %g\n", times);
    assert_true(times > 0 || !full);
}

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
    each_threads(preempted, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen_at_once), cmocka_unit_test(test_chunked),
        cmocka_unit_test(test_prefix_cached), cmocka_unit_test(test_preempted)};
    model = argc > 1 ? argv[1] : NULL;
    model = h_model(model);
    if (argc > 2) n_requests = (uint32_t)atoi(argv[2]);
    if (argc > 3) kv_type = !strcmp(argv[3], "q8_0") ? CFG_KV_Q8_0 : CFG_KV_F16;
    cross = argc > 4 || getenv("CONIFER_LONG");
    if (!model || access(model, R_OK)) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, run_alone, free_alone);
}
