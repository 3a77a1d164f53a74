/* Tenants that come, change and go while the runtime serves others. usage: test_tenants MODEL */
#include "tests/runtime/harness.h"
#include "tests/runtime/spy.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define PROMPT 70
#define ANSWER 8
#define MOST   24 /* live requests */

static const char *model;

struct ask {
    bool live, doomed; /* doomed: its tenant or key was taken away, so it may end with that */
    uint64_t tenant, id;
    uint32_t prompt;
    bool first; /* of its tenant */
    uint32_t out[64];
    uint32_t n_out, code, max;
    struct rt_usage usage;
};

struct world {
    struct h h;
    struct cfg_tenants *now;
    struct ask asks[MOST];
    uint64_t rng, next_id, answers, refused;
    uint32_t alone[4][ANSWER]; /* what each prompt gives */
    struct rt_usage told;
    struct cn_msg *list;
};

static uint32_t below(struct world *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static void start(struct world *w, uint32_t n_tenants)
{
    struct h_setup s = {
        .model = model, .threads = 1, .n_tenants = n_tenants, .kv_bytes = 64u << 20};

    memset(w, 0, sizeof *w);
    w->rng = 11;
    h_start(&w->h, &s); /* its tenants are those of the config, for good */
    rt_free(w->h.rt);
    assert_int_equal(cfg_tenants_of(&w->h.cfg, &w->now, NULL), 0);
    struct rt_opts o = {.cfg = &w->h.cfg,
                        .metrics = &w->h.metrics,
                        .model_path = model,
                        .model_id = "test",
                        .tenants = w->now};
    struct cn_error err;
    if (rt_new(&o, &w->h.rt, &err)) fail_msg("%s", err.message);
}

static void stop(struct world *w)
{
    h_stop(&w->h);
    cfg_tenants_unref(w->now);
}

static struct cfg_tenant tenant_named(const char *name, double weight, double kv_share)
{
    struct cfg_tenant t;

    assert_int_equal(cfg_tenant_new(&t, name, NULL), 0);
    t.weight = weight;
    t.kv_share = kv_share;
    return t;
}

/* The tenants from now on. */
static void become(struct world *w, struct cfg_tenant *list, size_t n)
{
    struct cfg_tenants *next;

    assert_int_equal(cfg_tenants_next(w->now, list, n, &next, NULL), 0);
    assert_int_equal(rt_tenants_set(w->h.rt, next), 0);
    cfg_tenants_commit(w->now, next);
    cfg_tenants_unref(w->now);
    w->now = next;
}

static uint64_t id_of(const struct world *w, const char *name)
{
    for (uint32_t i = 0; i < w->now->n_slots; i++)
        if (w->now->seats[i].tenant && !strcmp(w->now->seats[i].tenant->name, name))
            return w->now->seats[i].id;
    return UINT64_MAX;
}

static struct ask *ask(struct world *w, uint64_t tenant, uint64_t key, uint32_t prompt,
                       uint32_t max)
{
    struct cn_error err;
    uint64_t at = w->next_id; /* in turn: one that has ended can be looked at for a while */

    while (at < w->next_id + MOST && w->asks[at % MOST].live)
        at++;
    assert_true(at < w->next_id + MOST);
    struct ask *a = &w->asks[at % MOST];
    *a = (struct ask){
        .live = true, .tenant = tenant, .id = ++w->next_id, .prompt = prompt, .max = max};
    struct rt_request q = {.id = a->id,
                           .reply = &w->h.mail,
                           .tenant = tenant,
                           .key = key,
                           .priority = RT_NORMAL,
                           .n = 1,
                           .n_prompt = PROMPT,
                           .max_tokens = max};
    q.prompt = cn_malloc_array(PROMPT, sizeof *q.prompt);
    for (uint32_t i = 0; i < PROMPT; i++)
        q.prompt[i] = ((prompt + 3) * 7919 + i * 31) % 200 + 3;
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    if (rt_submit(w->h.rt, &q, &err)) fail_msg("submit: %s", err.message);
    return a;
}

static void take_end(struct world *w, struct ask *a, const struct rt_event *e)
{
    a->code = (uint32_t)-e->code;
    a->usage = e->usage;
    a->live = false;
    w->answers += !e->code;
    w->refused += e->code == CN_EREVOKED;
    w->told.computed_tokens += e->usage.computed_tokens;
    w->told.cached_tokens += e->usage.cached_tokens;
    w->told.completion_tokens += e->usage.completion_tokens;
    w->told.recomputed_tokens += e->usage.recomputed_tokens;
    w->told.unseen_rows += e->usage.unseen_rows;
    w->told.preemptions += e->usage.preemptions;
    if (e->code) {
        if (!a->doomed) fail_msg("a request of another tenant ended with %d", e->code);
        return;
    }
    assert_int_equal(a->n_out, a->max);
    for (uint32_t i = 0; i < CN_MIN(a->max, ANSWER) && w->alone[a->prompt][0]; i++)
        assert_int_equal(a->out[i], w->alone[a->prompt][i]);
    if (a->first) assert_int_equal(e->usage.cached_tokens, 0);
    assert_int_equal(e->usage.computed_tokens + e->usage.cached_tokens, PROMPT + a->max - 1);
    assert_true(e->usage.submitted_ns <= e->usage.first_step_ns &&
                e->usage.first_step_ns <= e->usage.first_token_ns &&
                e->usage.first_token_ns <= e->usage.ended_ns);
}

/* Events that have come, or comes within a second. False: none did. */
static bool pump(struct world *w, bool wait)
{
    if (wait && !cn_mailbox_wait(&w->h.mail, 20000000000ull)) return false;
    struct cn_msg *list = cn_mailbox_take(&w->h.mail);
    bool some = list != NULL;

    while (list) {
        struct rt_event *e = CN_CONTAINER(list, struct rt_event, msg);
        struct ask *a = w->asks;
        list = list->next;
        while (a < w->asks + MOST && (!a->live || a->id != e->id))
            a++;
        assert_true(a < w->asks + MOST);
        for (size_t i = 0; e->kind == RT_EV_TOKENS && i < e->n_tokens && a->n_out < 64; i++)
            a->out[a->n_out++] = e->tokens[i].id;
        if (e->kind == RT_EV_END) take_end(w, a, e);
        rt_event_free(e);
    }
    return some;
}

static uint32_t n_live(const struct world *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MOST; i++)
        n += w->asks[i].live;
    return n;
}

static void finish(struct world *w, const struct ask *a)
{
    while (a ? a->live : n_live(w))
        assert_true(pump(w, true));
}

/* What each prompt gives, of a tenant each. */
static void learn(struct world *w)
{
    for (uint32_t p = 0; p < 4; p++) {
        struct ask *a = ask(w, w->now->first, 0, p, ANSWER);
        finish(w, a);
        memcpy(w->alone[p], a->out, sizeof w->alone[p]);
    }
}

static double blocks(struct h *h, bool used)
{
    return used ? h_metric(h, CN_M_kv_blocks_ready) + h_metric(h, CN_M_kv_blocks_filling)
                : h_metric(h, CN_M_kv_blocks_free);
}

/* Until the engine has left the slot of an id: somebody new has it. */
static void test_removed_and_planted(void **state)
{
    struct world w;
    struct ask *kept, *gone, *late;

    start(&w, 2);
    learn(&w);
    uint64_t old = id_of(&w, "t1");
    finish(&w, ask(&w, old, 0, 1, ANSWER));
    struct ask *again = ask(&w, old, 0, 1, ANSWER);
    finish(&w, again);
    assert_true(again->usage.cached_tokens > 0);
    kept = ask(&w, id_of(&w, "t0"), 0, 2, 60);
    do { /* one that is under way, however late this thread gets to see it */
        gone = ask(&w, old, 0, 1, 400);
        gone->doomed = true;
        while (!gone->n_out)
            assert_true(pump(&w, true));
    } while (!gone->live);
    struct cfg_tenant *list = cn_calloc(1, sizeof *list);
    list[0] = tenant_named("t0", 1, 0);
    become(&w, list, 1);
    late = ask(&w, old, 0, 1, 4); /* on its way when the tenant went */
    late->doomed = true;
    finish(&w, NULL);
    assert_int_equal(gone->code, -CN_EREVOKED);
    assert_int_equal(late->code, -CN_EREVOKED);
    assert_int_equal(kept->n_out, 60);
    uint64_t id = old;
    for (int i = 0; id >> 32 == 0 && i < 1000; i++) { /* names come until one gets the slot */
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        list = cn_calloc(2, sizeof *list);
        list[0] = tenant_named("t0", 1, 0);
        list[1] = tenant_named(name, 1, 0.5);
        become(&w, list, 2);
        id = id_of(&w, name);
    }
    assert_true(id >> 32 > 0);
    struct ask *planted = ask(&w, id, 0, 1, ANSWER);
    planted->first = true;
    finish(&w, planted);
    assert_int_equal(planted->usage.cached_tokens, 0);
    assert_true(planted->usage.written_tokens > 0);
    assert_int_equal(planted->usage.computed_tokens, PROMPT + ANSWER - 1);
    stop(&w);
}

static void test_keys_leases_and_flush(void **state)
{
    struct world w;
    struct ask *one, *two;

    start(&w, 2);
    learn(&w);
    uint64_t t0 = id_of(&w, "t0"), t1 = id_of(&w, "t1");
    one = ask(&w, t0, 11, 0, 400);
    two = ask(&w, t0, 22, 0, 30);
    one->doomed = true;
    assert_int_equal(rt_cancel_of(w.h.rt, t0, 11, CN_EREVOKED), 0);
    finish(&w, NULL);
    assert_int_equal(one->code, -CN_EREVOKED);
    assert_int_equal(two->n_out, 30);
    assert_int_equal(rt_lease(w.h.rt, 0, t1, 5), 0);
    one = ask(&w, t1, 0, 3, 20);
    one->doomed = true;
    finish(&w, one);
    assert_int_equal(one->code, -CN_EBUDGET);
    assert_int_equal(one->usage.completion_tokens, 5);
    assert_int_equal(rt_drop_cache(w.h.rt, t0), 0);
    two = ask(&w, t0, 0, 0, ANSWER);
    two->first = true;
    finish(&w, two);
    stop(&w);
}

struct revoked {
    uint32_t tokens;       /* of the request that has the key */
    uint64_t asked, ended; /* steps launched when the key was taken away; when its END came */
    uint32_t late;         /* tokens in between */
};

static void with_key(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    *out = (struct rt_request){
        .key = 11 * (i + 1), .priority = RT_NORMAL, .n = 1, .n_prompt = PROMPT, .max_tokens = 60};
    out->prompt = cn_malloc_array(PROMPT, sizeof *out->prompt);
    for (uint32_t k = 0; k < PROMPT; k++)
        out->prompt[k] = k + 3;
    eng_sampling_defaults(&out->sampling);
    out->sampling.ignore_eos = true;
}

/* On the engine thread, in the midst of an iteration. */
static void take_key(struct h_drive *d, const struct rt_event *e)
{
    struct revoked *r = d->arg;
    if (e->id == 0 && e->kind == RT_EV_ACCEPTED) h_send(d);
    if (e->id || (e->kind != RT_EV_TOKENS && e->kind != RT_EV_END)) return;
    if (e->kind == RT_EV_END) r->ended = spy_read().steps;
    r->tokens += (uint32_t)e->n_tokens;
    if (r->tokens > 10) r->late += (uint32_t)e->n_tokens;
    if (r->tokens != 10 || e->kind == RT_EV_END) return;
    r->asked = spy_read().steps;
    assert_int_equal(rt_cancel_of(d->h->rt, 0, 11, CN_EREVOKED), 0);
}

/* The next iteration ends it: no step is launched before, but the one that iteration launches where
 * one is in flight. */
static void test_a_key_goes_within_one_iteration(void **state)
{
    struct h_setup s = {
        .model = model, .threads = 1, .n_tenants = 1, .kv_bytes = 64u << 20, .delay_s = 0.002};
    struct revoked r = {0};
    struct h_result results[2];
    struct h h;
    h_start(&h, &s);
    uint32_t depth = h.rt->groups[0].stepper.depth;
    struct h_drive d = {
        .h = &h, .n = 2, .make = with_key, .arg = &r, .turn = take_key, .results = results};
    h_drive(&d);
    assert_int_equal(results[0].code, CN_EREVOKED);
    assert_int_equal(results[0].choices[0].n_ids, 10);
    assert_int_equal(r.late, 0);
    assert_in_range(r.ended - r.asked, 0, depth - 1);
    assert_int_equal(results[1].code, 0);
    assert_int_equal(results[1].choices[0].n_ids, 60);
    h_settle(&h);
    h_stop(&h);
    for (int i = 0; i < 2; i++)
        h_result_fini(&results[i]);
}

/* ---- many ------------------------------------------------------------------------------------ */

#define NAMES  400
#define TO_ADD 10000

struct plan {
    bool there[NAMES];
    bool fresh[NAMES];
    double weight[NAMES];
    uint32_t serial[NAMES];
};

static void name_of(const struct plan *p, uint32_t i, char out[32])
{
    snprintf(out, 32, "x%u.%u", i, p->serial[i]);
}

static void become_plan(struct world *w, struct plan *p)
{
    struct cfg_tenant *list = cn_calloc(NAMES + 1, sizeof *list);
    char name[32];
    size_t n = 1;

    list[0] = tenant_named("t0", 1, 0.1);
    for (uint32_t i = 0; i < NAMES; i++) {
        if (!p->there[i]) continue;
        name_of(p, i, name);
        list[n++] = tenant_named(name, p->weight[i], 0.0005 * (1 + i % 3));
    }
    become(w, list, n);
    for (uint32_t i = 0; i < MOST; i++)
        if (!cfg_tenants_find(w->now, w->asks[i].tenant)) w->asks[i].doomed = true;
}

static void ask_some(struct world *w, struct plan *p)
{
    char name[32];

    while (n_live(w) < MOST * 3 / 4) {
        uint32_t i = below(w, NAMES);
        if (!p->there[i] || !below(w, 3)) {
            ask(w, w->now->first, 0, below(w, 4), 1 + below(w, ANSWER));
            continue;
        }
        name_of(p, i, name);
        struct ask *a = ask(w, id_of(w, name), 0, below(w, 4), 1 + below(w, ANSWER));
        a->first = p->fresh[i];
        p->fresh[i] = false;
    }
}

static void test_ten_thousand(void **state)
{
    struct plan *p = calloc(1, sizeof *p);
    struct world w;
    uint32_t added = 0;

    assert_non_null(p);
    start(&w, 1);
    learn(&w);
    for (int i = 0; i < 500 && blocks(&w.h, true) > 0; i++)
        usleep(10000); /* the gauges come after the last event */
    double before = blocks(&w.h, false) + h_metric(&w.h, CN_M_kv_blocks_cached);
    while (added < TO_ADD) {
        for (uint32_t k = 0; k < 80; k++) {
            uint32_t i = below(&w, NAMES), what = below(&w, 3);
            p->weight[i] = 0.5 + below(&w, 8);
            if (p->there[i] && what == 0) continue; /* changed */
            if (p->there[i]) {
                p->there[i] = false;
                continue;
            }
            p->there[i] = p->fresh[i] = true;
            p->serial[i]++;
            added++;
        }
        become_plan(&w, p);
        ask_some(&w, p);
        pump(&w, false);
        if (below(&w, 4) == 0) finish(&w, &w.asks[below(&w, MOST)]);
    }
    finish(&w, NULL);
    assert_true(w.answers > 50);
    memset(p->there, 0, sizeof p->there);
    become_plan(&w, p);
    /* nothing is left of them: the next slots are old ones */
    for (int i = 0; i < 3; i++)
        finish(&w, ask(&w, w.now->first, 0, i, ANSWER));
    for (int i = 0; i < 500 && h_metric(&w.h, CN_M_tokens_generated) < w.told.completion_tokens;
         i++)
        usleep(10000); /* the counts come after the last event */
    usleep(100000);
    assert_int_equal(blocks(&w.h, true), 0);
    assert_true(w.now->n_slots < 8 * NAMES);
    if (!h_has_span(&w.h, KR_SPAN_STATE)) /* else blocks are cut anew from slabs: no such sum */
        assert_int_equal(blocks(&w.h, false) + h_metric(&w.h, CN_M_kv_blocks_cached), before);
    assert_int_equal(w.told.cached_tokens, h_metric(&w.h, CN_M_prompt_tokens_cached));
    assert_int_equal(w.told.completion_tokens, h_metric(&w.h, CN_M_tokens_generated));
    assert_int_equal(w.told.recomputed_tokens, h_metric(&w.h, CN_M_tokens_recomputed));
    assert_int_equal(w.told.unseen_rows, h_metric(&w.h, CN_M_tokens_wasted));
    assert_int_equal(w.told.preemptions, h_metric(&w.h, CN_M_preemptions));
    print_message("%u tenants added, %llu answers, %llu ended with their tenant, %u slots\n", added,
                  (unsigned long long)w.answers, (unsigned long long)w.refused, w.now->n_slots);
    stop(&w);
    free(p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_and_planted),
        cmocka_unit_test(test_keys_leases_and_flush),
        cmocka_unit_test(test_a_key_goes_within_one_iteration),
        cmocka_unit_test(test_ten_thousand),
    };

    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
