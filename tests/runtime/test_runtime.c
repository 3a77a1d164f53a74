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
    return (struct h_setup){.model = model, .threads = 1, .n_tenants = 4, .kv_bytes = 400u << 20};
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
    struct rt_request q = {.id = id,
                           .reply = &h->mail,
                           .tenant = tenant,
                           .priority = RT_NORMAL,
                           .n = 1,
                           .n_prompt = n_prompt,
                           .max_tokens = max_tokens};
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

/* Reads its events on the engine thread, as they are posted, and cancels or pauses at the first of
 * a kind: so that cannot come late however slow the tester is. */
struct watcher {
    struct h *h;
    struct cn_mailbox mail;
    enum rt_event_kind when;
    bool pause, acted;
    uint64_t id, completion_tokens;
    _Atomic size_t n_tokens;
    int code;
    _Atomic bool ended;
};

static void on_wake(void *arg)
{
    struct watcher *c = arg;
    for (struct cn_msg *m = cn_mailbox_take(&c->mail); m;) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        m = m->next;
        c->n_tokens += e->n_tokens;
        if (e->kind == c->when && !c->acted) {
            c->acted = true;
            if (c->pause)
                rt_pause(c->h->rt, &c->mail, c->id, true);
            else
                rt_cancel(c->h->rt, &c->mail, c->id);
        }
        if (e->kind == RT_EV_END) {
            c->code = e->code;
            c->completion_tokens = e->usage.completion_tokens;
            atomic_store(&c->ended, true);
        }
        rt_event_free(e);
    }
}

static void wait_end(struct watcher *c)
{
    for (int i = 0; i < 60000 && !atomic_load(&c->ended); i++)
        usleep(1000);
    assert_true(atomic_load(&c->ended));
}

static void cancel_at(struct h *h, enum rt_event_kind when, size_t n_prompt, size_t most_tokens)
{
    struct watcher c = {.h = h, .when = when, .id = 77};
    assert_int_equal(cn_mailbox_init(&c.mail, on_wake, &c), 0);
    struct rt_request q = plain(h, c.id, 0, 0, n_prompt, 0);
    q.reply = &c.mail;
    submit(h, q);
    wait_end(&c);
    assert_int_equal(c.code, CN_ECANCELLED);
    assert_true(c.n_tokens <= most_tokens);
    h_settle(h);
    cn_mailbox_fini(&c.mail);
}

/* A gauge read as soon as the runtime is there tells what is, not what its thread will say. */
static void test_blocks_are_told_from_the_start(void **state)
{
    struct h h;
    (void)state;
    struct h_setup s = small();
    h_start(&h, &s);
    assert_true(blocks_free(&h) > 0);
    h_stop(&h);
}

static void test_cancel_in_every_phase(void **state)
{
    struct h h;
    struct h_setup s = small();
    s.max_batch_rows = 16; /* prefill takes many steps */
    h_start(&h, &s);
    cancel_at(&h, RT_EV_TOKENS, 20, 2);                /* decoding: within one iteration */
    cancel_at(&h, RT_EV_ACCEPTED, window(&h) - 20, 0); /* queued, far from its first token */
    cancel_at(&h, RT_EV_ACCEPTED, 2, 1);
    rt_cancel(h.rt, &h.mail, 77); /* ids that are not, or no longer, known */
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
    /* The prefix once; each other request computes its 20 own tokens and at most a block of the
     * prefix. A state is kept where prompts part, which is known when the second one comes: that
     * computes all too if the first has passed the place. */
    bool has_state = h_has_span(&h, KR_SPAN_STATE);
    size_t others = has_state ? 14 : 15, whole = 16 - others;
    print_message("computed %g, cached %llu\n", computed, (unsigned long long)cached);
    assert_true(computed <= (double)(all * whole + others * (20 + 16)));
    assert_true(cached >= others * (shared - 16));
    /* Another tenant's identical prompt finds nothing. */
    submit(&h, plain(&h, 3, 1, shared, all, 4));
    struct rt_event *e = until_end(&h, &list, 3, NULL);
    assert_int_equal(e->usage.cached_tokens, 0);
    rt_event_free(e);
    submit(&h, plain(&h, 3, 0, shared, all, 4));
    e = until_end(&h, &list, 3, NULL);
    assert_true(e->usage.cached_tokens >= (has_state ? shared - 16 : shared));
    rt_event_free(e);
    h_stop(&h);
}

static void test_refusals(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
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
    q = plain(&h, 1, 0, 0, 4, 4);
    q.adapter = 3;
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_EUNSUPP);
    assert_string_equal(err.param, "adapter");
    rt_request_fini(&q);
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
    struct watcher c = {.h = &h, .when = RT_EV_TOKENS, .pause = true, .id = 5};
    assert_int_equal(cn_mailbox_init(&c.mail, on_wake, &c), 0);
    struct rt_request q = plain(&h, c.id, 0, 0, 10, 200);
    q.reply = &c.mail;
    submit(&h, q);
    while (!atomic_load(&c.n_tokens))
        usleep(1000);
    usleep(300000);
    assert_true(atomic_load(&c.n_tokens) <= 2); /* nothing after the iteration that was under way */
    assert_false(atomic_load(&c.ended));
    rt_pause(h.rt, &c.mail, c.id, false);
    wait_end(&c);
    assert_int_equal(c.code, 0);
    assert_int_equal(c.n_tokens, 200);
    assert_int_equal(c.completion_tokens, 200);
    h_settle(&h);
    cn_mailbox_fini(&c.mail);
    h_stop(&h);
}

/* Paused, so that only the deadline can end it. */
static void test_deadline(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct watcher c = {.h = &h, .when = RT_EV_TOKENS, .pause = true, .id = 6};
    assert_int_equal(cn_mailbox_init(&c.mail, on_wake, &c), 0);
    struct rt_request q = plain(&h, c.id, 0, 0, 10, 100);
    q.reply = &c.mail;
    uint64_t start = cn_now_ns();
    q.deadline_ns = start + 400000000;
    submit(&h, q);
    wait_end(&c);
    assert_int_equal(c.code, CN_EDEADLINE);
    assert_true(cn_now_ns() - start >= 400000000);
    assert_true(c.n_tokens >= 1 && c.n_tokens < 100);
    h_settle(&h);
    cn_mailbox_fini(&c.mail);
    h_stop(&h);
}

/* min_tokens holds back stop ids and stop strings as it does the end of generation. */
static void test_min_tokens(void **state)
{
    struct h h;
    struct h_setup s = small();
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    uint32_t ids[12];
    size_t n = 0;
    submit(&h, plain(&h, 1, 0, 0, 10, 12));
    for (bool end = false; !end;) {
        struct rt_event *e = next_event(&h, &list);
        for (size_t i = 0; i < e->n_tokens; i++)
            ids[n++] = e->tokens[i].id;
        end = e->kind == RT_EV_END;
        rt_event_free(e);
    }
    assert_int_equal(n, 12);
    struct rt_request q = plain(&h, 1, 0, 0, 10, 12); /* the same prompt: the same first token */
    struct rt_shared_in in = {.stop_ids = ids, .n_stop_ids = 1};
    assert_int_equal(rt_shared_new(&in, &q.shared), 0);
    submit(&h, q);
    n = 0;
    rt_event_free(until_end(&h, &list, 1, &n));
    assert_int_equal(n, 1); /* the token that ended it is reported */
    q = plain(&h, 1, 0, 0, 10, 12);
    assert_int_equal(rt_shared_new(&in, &q.shared), 0);
    q.sampling.min_tokens = 5;
    submit(&h, q);
    n = 0;
    rt_event_free(until_end(&h, &list, 1, &n));
    assert_true(n >= 6);
    h_stop(&h);
}

/* A file that changes under the daemon: requests end with an error, and it says so. */
static void test_changed_file(void **state)
{
    char path[] = "/tmp/conifer-test-XXXXXX";
    int fd = mkstemp(path);
    FILE *from = fopen(model, "rb"), *to = fdopen(fd, "wb");
    static char chunk[1 << 16];
    assert_true(from && to);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, from)) > 0;)
        assert_int_equal(fwrite(chunk, 1, n, to), n);
    fclose(from);
    fclose(to);
    struct h h;
    struct h_setup s = small();
    s.model = path;
    s.threads = 2;
    h_start(&h, &s);
    struct cn_msg *list = NULL;
    struct rt_health health;
    submit(&h, plain(&h, 1, 0, 0, 10, 3));
    struct rt_event *e = until_end(&h, &list, 1, NULL);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    assert_int_equal(truncate(path, 5000), 0);
    usleep(600000);
    submit(&h, plain(&h, 2, 0, 0, 10, 3));
    e = until_end(&h, &list, 2, NULL);
    assert_int_equal(e->code, CN_ENOTREADY);
    rt_event_free(e);
    rt_health(h.rt, &health);
    assert_true(health.failed);
    h_settle(&h);
    h_stop(&h);
    unlink(path);
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
        cmocka_unit_test(test_blocks_are_told_from_the_start),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_random_aborts),
        cmocka_unit_test(test_a_shared_cold_prefix_is_computed_once),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stop_ends_what_runs),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_changed_file),
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
