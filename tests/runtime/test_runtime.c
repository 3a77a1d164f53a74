/* The runtime with a real (tiny) model: cancels in every phase, shared prefixes, isolation between
 * tenants, deadlines, refusals, drain, scores of prompts. usage: test_runtime MODEL [ABORTS] */
#include "tests/runtime/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *model;
static uint32_t n_aborts = 2000;

static struct h_setup small(void)
{
    return (struct h_setup){
        .model = model, .threads = 1, .n_tenants = 4, .kv_bytes = 32u << 20};
}

static size_t window(struct h *h)
{
    return CN_MIN(eng_model_info(rt_model(h->rt))->context, (uint64_t)2048);
}

static uint32_t vocab_size(struct h *h)
{
    return (uint32_t)eng_model_info(rt_model(h->rt))->n_vocab;
}

/* n_prompt tokens: `shared` of them the same for all, the rest from seed. */
static struct rt_request plain(struct h *h, uint64_t id, uint32_t tenant, size_t shared,
                               size_t n_prompt, uint64_t max_tokens)
{
    struct rt_request q = {.id = id, .reply = &h->mail, .tenant = tenant, .priority = RT_NORMAL,
                           .n = 1, .n_prompt = n_prompt, .max_tokens = max_tokens};
    q.prompt = cn_malloc_array(n_prompt, sizeof *q.prompt);
    for (size_t i = 0; i < n_prompt; i++) {
        uint64_t x = i < shared ? i * 37 + 11 : (id + 1) * 7919 + i * 31;
        q.prompt[i] = (uint32_t)(x * 2654435761u >> 9) % vocab_size(h);
    }
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    return q;
}

static void submit(struct h *h, struct rt_request q)
{
    struct cn_error err;
    if (rt_submit(h->rt, &q, &err)) fail_msg("submit: %s", err.message);
}

static struct rt_event *next_event(struct h *h, struct cn_msg **list)
{
    while (!*list) {
        if (!cn_mailbox_wait(&h->mail, 60ull * 1000000000)) fail_msg("no event for 60 s");
        *list = cn_mailbox_take(&h->mail);
    }
    struct rt_event *e = CN_CONTAINER(*list, struct rt_event, msg);
    *list = e->msg.next;
    return e;
}

/* Reads events until the END of `id`; counts its tokens. The others are dropped. */
static struct rt_event *until_end(struct h *h, struct cn_msg **list, uint64_t id, size_t *n_tokens)
{
    for (;;) {
        struct rt_event *e = next_event(h, list);
        if (e->id == id && e->kind == RT_EV_TOKENS && n_tokens) *n_tokens += e->n_tokens;
        if (e->id == id && e->kind == RT_EV_END) return e;
        rt_event_free(e);
    }
}

static struct rt_event *until_kind(struct h *h, struct cn_msg **list, uint64_t id,
                                   enum rt_event_kind kind)
{
    for (;;) {
        struct rt_event *e = next_event(h, list);
        if (e->id == id && e->kind == kind) return e;
        assert_true(e->kind != RT_EV_END || e->id != id);
        rt_event_free(e);
    }
}

static double blocks_free(struct h *h)
{
    return h_metric(h, CN_M_kv_blocks_free) + h_metric(h, CN_M_kv_blocks_cached);
}

static void test_cancel_in_every_phase(void **state)
{
    struct h h;
    struct h_setup s = small();
    s.max_batch_rows = 16; /* prefill takes many steps */
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    struct rt_event *e;
    /* decoding; a slow tester may come too late, so try until it does not */
    int code = 0;
    for (uint64_t id = 100; id < 200 && code == 0; id++) {
        submit(&h, plain(&h, id, 0, 0, 20, 0));
        rt_event_free(until_kind(&h, &list, id, RT_EV_TOKENS));
        rt_cancel(h.rt, &h.mail, id);
        e = until_end(&h, &list, id, NULL);
        code = e->code;
        rt_event_free(e);
    }
    assert_int_equal(code, CN_ECANCELLED);
    h_settle(&h);
    /* prefilling: accepted, and far from its first token */
    submit(&h, plain(&h, 2, 0, 0, window(&h) - 20, 5));
    rt_event_free(until_kind(&h, &list, 2, RT_EV_ACCEPTED));
    rt_cancel(h.rt, &h.mail, 2);
    size_t n = 0;
    e = until_end(&h, &list, 2, &n);
    assert_int_equal(e->code, CN_ECANCELLED);
    assert_int_equal(n, 0);
    rt_event_free(e);
    h_settle(&h);
    /* at once, before or while it is queued */
    submit(&h, plain(&h, 3, 0, 0, 100, 5)); /* may be done before the cancel is read */
    rt_cancel(h.rt, &h.mail, 3);
    e = until_end(&h, &list, 3, NULL);
    assert_true(e->code == CN_ECANCELLED || e->code == 0);
    rt_event_free(e);
    /* twice, an unknown id, and one that is done */
    rt_cancel(h.rt, &h.mail, 3);
    rt_cancel(h.rt, &h.mail, 999);
    h_settle(&h);
    h_stop(&h);
}

static void test_random_aborts(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    uint32_t rng = 7;
    size_t sent = 0, ended = 0, cancelled = 0;
    h_settle(&h);
    submit(&h, plain(&h, 1u << 30, 0, 0, 2, 2));
    rt_event_free(until_end(&h, &list, 1u << 30, NULL));
    h_settle(&h);
    double at_start = blocks_free(&h);
    while (ended < n_aborts) {
        while (sent < n_aborts && sent - ended < 24) {
            rng = rng * 1664525u + 1013904223u;
            struct rt_request q = plain(&h, sent, rng >> 9 & 3, (rng >> 11) % 150,
                                        150 + (rng >> 20) % 100, 1 + (rng >> 16) % 40);
            q.n = 1 + (rng >> 29);
            submit(&h, q);
            if (rng >> 27 & 1) rt_cancel(h.rt, &h.mail, sent);
            sent++;
        }
        struct rt_event *e = next_event(&h, &list);
        rng = rng * 1664525u + 1013904223u;
        if (e->kind == RT_EV_END) {
            ended++;
            cancelled += e->code == CN_ECANCELLED;
            assert_true(e->code == 0 || e->code == CN_ECANCELLED);
        } else if ((rng >> 24) % 8 == 0) {
            rt_cancel(h.rt, &h.mail, e->id);
        }
        rt_event_free(e);
    }
    assert_null(list);
    h_settle(&h);
    assert_true(cancelled > n_aborts / 4);
    /* With several groups the number of free blocks depends on which group has which slab. */
    if (eng_model_info(rt_model(h.rt))->exec->n_groups == 1)
        assert_true(blocks_free(&h) == at_start);
    assert_int_equal(rt_in_flight(h.rt), 0);
    h_stop(&h);
}

static void test_a_shared_cold_prefix_is_computed_once(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    size_t shared = CN_MIN((size_t)1500, window(&h) - 40), all = shared + 20;
    for (uint64_t i = 0; i < 16; i++)
        submit(&h, plain(&h, i, 0, shared, all, 4));
    uint64_t cached = 0;
    for (int ended = 0; ended < 16;) {
        struct rt_event *e = next_event(&h, &list);
        if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, 0);
            cached += e->usage.cached_tokens;
            ended++;
        }
        rt_event_free(e);
    }
    h_settle(&h);
    double computed = h_metric(&h, CN_M_prompt_tokens_computed);
    /* The prefix once; each other request computes its 20 own tokens and at most a block of the prefix */
    print_message("computed %g, cached %llu\n", computed, (unsigned long long)cached);
    assert_true(computed <= (double)all + 15 * (20 + 16));
    assert_true(cached >= 15 * (shared - 16));
    /* Another tenant's identical prompt finds nothing. */
    submit(&h, plain(&h, 3, 1, shared, all, 4));
    struct rt_event *e = until_end(&h, &list, 3, NULL);
    assert_int_equal(e->usage.cached_tokens, 0);
    rt_event_free(e);
    submit(&h, plain(&h, 3, 0, shared, all, 4));
    e = until_end(&h, &list, 3, NULL);
    assert_true(e->usage.cached_tokens >= shared);
    rt_event_free(e);
    h_stop(&h);
}

static void test_refusals(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    struct cn_error err;
    struct rt_request q = plain(&h, 1, 0, 0, eng_model_info(rt_model(h.rt))->context, 4);
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_EWINDOW);
    rt_request_fini(&q);
    q = plain(&h, 1, 0, 0, 4, 4);
    q.prompt[2] = vocab_size(&h);
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_ERANGE);
    assert_string_equal(err.param, "prompt");
    rt_request_fini(&q);
    q = plain(&h, 1, 0, 0, 4, 4);
    q.n = 9;
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_ERANGE);
    assert_string_equal(err.param, "n");
    rt_request_fini(&q);
    q = plain(&h, 1, 0, 0, 4, 4);
    q.sampling.top_p = NAN;
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_ERANGE);
    assert_string_equal(err.param, "top_p");
    rt_request_fini(&q);
    q = plain(&h, 5, 0, 0, 100, 0);
    q.deadline_ns = cn_now_ns() + 30000000;
    submit(&h, q);
    struct rt_event *e = until_end(&h, &list, 5, NULL);
    assert_true(e->code == CN_EDEADLINE || e->code == 0);
    rt_event_free(e);
    rt_drain(h.rt);
    q = plain(&h, 1, 0, 0, 4, 4);
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_EDRAIN);
    rt_request_fini(&q);
    h_stop(&h);
}

static void test_stop_ends_what_runs(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    for (uint64_t i = 0; i < 4; i++)
        submit(&h, plain(&h, i, 0, 0, 50, 0));
    rt_free(h.rt);
    int ended = 0;
    for (struct cn_msg *m = cn_mailbox_take(&h.mail); m;) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        m = m->next;
        if (e->kind == RT_EV_END) {
            assert_true(e->code == CN_EDRAIN || e->code == 0);
            ended++;
        }
        rt_event_free(e);
    }
    assert_int_equal(ended, 4);
    cn_mailbox_fini(&h.mail);
    cfg_fini(&h.cfg);
}

static void test_pause(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    submit(&h, plain(&h, 1, 0, 0, 10, 200));
    rt_event_free(until_kind(&h, &list, 1, RT_EV_TOKENS));
    rt_pause(h.rt, &h.mail, 1, true);
    usleep(100000); /* what was under way arrives */
    size_t before = 0, after = 0;
    while (list || (list = cn_mailbox_take(&h.mail))) {
        struct rt_event *e = next_event(&h, &list);
        before += e->n_tokens;
        rt_event_free(e);
    }
    usleep(200000);
    assert_null(cn_mailbox_take(&h.mail));
    rt_pause(h.rt, &h.mail, 1, false);
    struct rt_event *e = until_end(&h, &list, 1, &after);
    assert_int_equal(e->code, 0);
    assert_int_equal(e->usage.completion_tokens, 1 + before + after);
    rt_event_free(e);
    h_stop(&h);
}

/* A prompt's scores are those that its tokens had when they were generated: to the bit. */
static void test_prompt_scores(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    enum { P = 40, G = 30 };
    struct rt_request q = plain(&h, 1, 0, 0, P, G), all = plain(&h, 2, 0, 0, P, 1);
    free(all.prompt);
    all.prompt = cn_malloc_array(P + G, sizeof *all.prompt);
    memcpy(all.prompt, q.prompt, P * sizeof *all.prompt);
    all.n_prompt = P + G;
    q.sampling.logprobs = 3;
    float lp[G];
    size_t n = 0;
    submit(&h, q);
    for (bool end = false; !end;) {
        struct rt_event *e = next_event(&h, &list);
        for (size_t i = 0; i < e->n_tokens; i++) {
            all.prompt[P + n] = e->tokens[i].id;
            assert_int_equal(e->tokens[i].n_top, 3);
            assert_true(e->tokens[i].logprob <= e->top[e->tokens[i].top_at].logprob);
            assert_true(n < G);
            lp[n++] = e->tokens[i].logprob;
        }
        end = e->kind == RT_EV_END;
        rt_event_free(e);
    }
    assert_int_equal(n, G);
    all.prompt_logprobs = true;
    all.sampling.logprobs = 0;
    submit(&h, all);
    struct rt_event *e = until_kind(&h, &list, 2, RT_EV_PROMPT);
    assert_int_equal(e->n_tokens, P + G);
    assert_true(isnan(e->tokens[0].logprob));
    for (size_t i = 0; i < G; i++)
        assert_true(e->tokens[P + i].logprob == lp[i]);
    rt_event_free(e);
    e = until_end(&h, &list, 2, NULL);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    h_stop(&h);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_random_aborts),
        cmocka_unit_test(test_a_shared_cold_prefix_is_computed_once),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stop_ends_what_runs),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_prompt_scores),
    };
    model = argc > 1 ? argv[1] : NULL;
    model = h_model(model);
    if (argc > 2) n_aborts = (uint32_t)atoi(argv[2]);
    if (!model || access(model, R_OK)) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
