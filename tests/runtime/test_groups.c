/* Two engine groups in one runtime, each with half of the threads: what one does is nothing to the
 * other, and what concerns a tenant or the daemon reaches both. */
#include "tests/runtime/several.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ONE, TWO, N_GROUPS };

struct setup {
    struct rt_model_opts models[4];
    size_t n_models;
    uint64_t memory[N_GROUPS]; /* beside KV memory; 0: enough */
    uint32_t n_tenants;
    int64_t max_running; /* of each */
    double delay_s;      /* of every step of both; 0: as fast as they are */
    int64_t lost_after;  /* the first one's device is, after so many steps; 0: it is not */
};

static void start(struct h *h, struct setup *s)
{
    struct cfg_group groups[N_GROUPS] = {{.name = "first"}, {.name = "second"}};
    for (int i = 0; i < N_GROUPS; i++) {
        groups[i].threads = 1;
        groups[i].kv_memory_bytes = KV_BYTES;
        groups[i].memory_bytes = KV_BYTES + (s->memory[i] ? s->memory[i] : 256u << 20);
    }
    if (s->lost_after || s->delay_s > 0) groups[ONE].device = CFG_DEVICE_async;
    if (s->delay_s > 0) groups[TWO].device = CFG_DEVICE_async;
    struct h_setup setup = {.models = s->models,
                            .n_models = s->n_models,
                            .groups = groups,
                            .n_groups = N_GROUPS,
                            .threads = 2,
                            .n_tenants = CN_MAX(s->n_tenants, 1),
                            .lost_after = s->lost_after,
                            .delay_s = s->delay_s,
                            .max_running = s->max_running};
    for (size_t i = 0; i < s->n_models; i++)
        if (!s->models[i].path) s->models[i].path = sv_paths[LLAMA];
    h_start(h, &setup);
}

/* What request `id` gets when it is alone in a runtime without groups. */
static void ask_alone(int file, uint64_t id, uint64_t n, struct answer *a)
{
    struct rt_model_opts list[1] = {{.id = "a", .path = sv_paths[file]}};
    struct h_setup s = {
        .models = list, .n_models = 1, .n_tenants = 1, .threads = 2, .kv_bytes = KV_BYTES};
    struct h h;
    h_start(&h, &s);
    assert_int_equal(sv_get(&h, 0, NULL), 0);
    sv_ask(&h, 0, id, n);
    sv_collect(&h, id, a);
    sv_release(&h, 0);
    h_stop(&h);
}

/* Room for one model in each group: swaps in one leave the other's alone, and each group refuses
 * and loads by its own budget. A pinned one of the one group does not count in the other. */
static void test_swap_apart(void **state)
{
    uint64_t one = CN_MAX(sv_need(LLAMA), sv_need(GEMMA)) + 4096;
    struct setup s = {.models = {{.id = "a", .path = sv_paths[LLAMA], .group = ONE},
                                 {.id = "b", .path = sv_paths[GEMMA], .group = ONE},
                                 {.id = "c", .path = sv_paths[LLAMA], .group = TWO, .pin = true},
                                 {.id = "d", .path = sv_paths[GEMMA], .group = TWO}},
                      .n_models = 4,
                      .memory = {one, one}};
    struct h h;
    start(&h, &s);
    assert_int_equal(sv_get(&h, 2, NULL), 0);
    sv_release(&h, 2);
    for (size_t k = 0; k < 6; k++) {
        assert_int_equal(sv_get(&h, k % 2, NULL), 0);
        assert_int_equal(sv_state(&h, k % 2), RT_LOADED);
        assert_int_equal(sv_state(&h, (k + 1) % 2), RT_UNLOADED);
        assert_int_equal(sv_state(&h, 2), RT_LOADED);
        sv_release(&h, k % 2);
    }
    assert_int_equal((int)h_metric(&h, CN_M_model_unloads), 5);
    assert_int_equal(sv_get(&h, 3, NULL), CN_ENOTREADY); /* the pinned one has all there is */
    assert_int_equal(sv_get(&h, 0, NULL), 0);
    sv_release(&h, 0);
    sv_check_idle(&h);
    h_stop(&h);
}

/* The same file in both groups, asked at the same time: the bytes of each request are those that it
 * has alone in a runtime without groups. */
static void same_bytes(int file)
{
    enum { N = 24, TOKENS = 40 };
    static struct answer alone[5], got[N];
    struct setup s = {.models = {{.id = "a", .path = sv_paths[file], .group = ONE},
                                 {.id = "b", .path = sv_paths[file], .group = TWO}},
                      .n_models = 2};
    struct h h;
    size_t left = N;
    memset(got, 0, sizeof got);
    memset(alone, 0, sizeof alone);
    for (uint64_t i = 0; i < CN_ARRAY_LEN(alone); i++)
        ask_alone(file, i, TOKENS, &alone[i]);
    start(&h, &s);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(sv_get(&h, i, NULL), 0);
    for (uint64_t i = 0; i < N; i++)
        sv_ask(&h, i % 2, i, TOKENS);
    while (left) {
        struct rt_event *e = sv_take(&h);
        struct answer *a = &got[e->id];
        for (size_t k = 0; e->kind == RT_EV_TOKENS && k < e->n_tokens; k++)
            a->ids[a->n++] = e->tokens[k].id;
        if (e->kind == RT_EV_END) assert_int_equal(e->code, 0);
        left -= e->kind == RT_EV_END;
        rt_event_free(e);
    }
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(got[i].n, TOKENS);
        assert_memory_equal(got[i].ids, alone[i % 5].ids, TOKENS * sizeof got[i].ids[0]);
    }
    for (size_t i = 0; i < 2; i++) {
        struct sch_stats st;
        sv_release(&h, i);
        h_settle(&h);
        sch_stats(h.rt->groups[i].sch, &st);
        assert_int_equal(st.ended_ok, N / 2);
    }
    sv_check_idle(&h);
    h_stop(&h);
}

static void test_same_bytes(void **state)
{
    for (int file = 0; file < N_FILES; file++)
        same_bytes(file);
}

/* Gauges are sums over the groups. */
static void test_sums(void **state)
{
    struct setup s = {.models = {{.id = "a", .path = "null:vocab=600,layers=2"},
                                 {.id = "b", .path = "null:vocab=600,layers=2", .group = TWO}},
                      .n_models = 2,
                      .delay_s = 0.002};
    struct h h;
    struct cn_buf page;
    start(&h, &s);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(sv_get(&h, i, NULL), 0);
    for (size_t i = 0; i < 2; i++)
        sv_ask(&h, i, i, 1000);
    for (int tries = 0; h_metric(&h, CN_M_requests_running) < 2; tries++) {
        assert_true(tries < 20000);
        usleep(1000);
    }
    uint64_t slabs = 0;
    for (size_t i = 0; i < 2; i++) {
        struct rt_group *g = &h.rt->groups[i];
        slabs += (uint64_t)g->tenants.kv_bytes;
        rt_cancel(h.rt, &h.mail, i);
    }
    assert_int_equal((uint64_t)h_metric(&h, CN_M_kv_bytes_total), slabs);
    for (int ends = 0; ends < 2;) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, CN_ECANCELLED);
            ends++;
        }
        rt_event_free(e);
    }
    h_settle(&h);
    assert_int_equal((int)h_metric(&h, CN_M_requests_running), 0);
    cn_buf_init(&page, 0);
    assert_int_equal(cn_metrics_render(&h.metrics, &page), 0);
    assert_non_null(
        strstr(cn_buf_cstr(&page), "conifer_group_requests_running{group=\"second\"} 0\n"));
    assert_non_null(
        strstr(cn_buf_cstr(&page), "conifer_group_kv_blocks{group=\"first\",state=\"free\"} "));
    cn_buf_fini(&page);
    for (size_t i = 0; i < 2; i++)
        sv_release(&h, i);
    h_stop(&h);
}

static void ask_as(struct h *h, size_t model, uint64_t id, uint64_t tenant)
{
    struct cn_error err = {0};
    struct rt_request q = {.id = id,
                           .reply = &h->mail,
                           .model = (uint32_t)model,
                           .tenant = tenant,
                           .priority = RT_NORMAL,
                           .n_prompt = 4,
                           .n = 1,
                           .max_is_bound = true};
    q.prompt = cn_calloc(4, sizeof *q.prompt);
    eng_sampling_defaults(&q.sampling);
    q.sampling.ignore_eos = true;
    if (rt_submit(h->rt, &q, &err)) fail_msg("submit: %s", err.message);
}

static void wait_code(struct h *h, uint64_t id, int code)
{
    for (bool done = false; !done;) {
        struct rt_event *e = sv_take(h);
        done = e->kind == RT_EV_END && e->id == id;
        if (done)
            assert_int_equal(e->code, code);
        else if (e->kind == RT_EV_END)
            fail_msg("request %d ended: %d", (int)e->id, e->code);
        rt_event_free(e);
    }
}

/* A removed tenant's requests end in both groups, and its slot is free once both have left it. */
static void test_tenants(void **state)
{
    struct setup s = {.models = {{.id = "a", .path = "null:vocab=600,layers=2"},
                                 {.id = "b", .path = "null:vocab=600,layers=2", .group = TWO}},
                      .n_models = 2,
                      .n_tenants = 1,
                      .delay_s = 0.002};
    struct cfg_tenants *now, *next;
    struct cfg_tenant *list;
    struct h h;
    start(&h, &s);
    now = cfg_tenants_ref(h.rt->groups[0].tenants.now);
    uint64_t first = now->first;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(sv_get(&h, i, NULL), 0);
    for (uint64_t i = 0; i < 4; i++)
        ask_as(&h, i % 2, i, first);
    rt_cancel_of(h.rt, first, 0, CN_EBUDGET);
    uint64_t sum = 0;
    for (int ends = 0; ends < 4;) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, CN_EBUDGET);
            sum += e->id;
            ends++;
        }
        rt_event_free(e);
    }
    assert_int_equal(sum, 6);
    for (uint64_t round = 0; round < 3; round++) { /* the same slot, another generation */
        uint64_t gone = now->first;
        for (uint64_t i = 0; i < 2; i++)
            ask_as(&h, i, i, gone);
        list = cn_calloc(1, sizeof *list);
        char name[16];
        snprintf(name, sizeof name, "new%d", (int)round);
        assert_int_equal(cfg_tenant_new(&list[0], name, NULL), 0);
        assert_int_equal(cfg_tenants_next(now, list, 1, &next, NULL), 0);
        cfg_tenants_commit(now, next);
        assert_int_equal(rt_tenants_set(h.rt, next), 0);
        cfg_tenants_unref(now);
        now = next;
        int ends = 0;
        while (ends < 2) {
            struct rt_event *e = sv_take(&h);
            if (e->kind == RT_EV_END) {
                assert_int_equal(e->code, CN_EREVOKED);
                ends++;
            }
            rt_event_free(e);
        }
    }
    /* Tokens are given by group. */
    assert_int_equal(rt_lease(h.rt, TWO, now->first, 5), 0);
    ask_as(&h, 1, 1, now->first);
    wait_code(&h, 1, CN_EBUDGET);
    ask_as(&h, 0, 0, now->first);
    usleep(100000);
    rt_cancel(h.rt, &h.mail, 0);
    wait_code(&h, 0, CN_ECANCELLED);
    assert_int_equal(rt_drop_cache(h.rt, now->first), 0);
    for (size_t i = 0; i < 2; i++)
        sv_release(&h, i);
    h_settle(&h);
    cfg_tenants_unref(now);
    h_stop(&h);
}

/* A tenant that has the second group to itself comes after another one in the first, where there is
 * a place for one of them. */
static void test_fair(void **state)
{
    struct setup s = {
        .models = {{.id = "a", .path = "null:vocab=600,context=100000"},
                   {.id = "b", .path = "null:vocab=600,context=100000", .group = TWO}},
        .n_models = 2,
        .n_tenants = 2,
        .delay_s = 0.0005,
        .max_running = 1};
    uint64_t tokens[3] = {0};
    struct h h;
    start(&h, &s);
    const struct cfg_tenants *now = h.rt->groups[0].tenants.now;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(sv_get(&h, i, NULL), 0);
    ask_as(&h, TWO, 2, now->seats[0].id);
    ask_as(&h, ONE, 0, now->seats[0].id);
    ask_as(&h, ONE, 1, now->seats[1].id);
    while (tokens[1] < 1500) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_TOKENS) tokens[e->id] += e->n_tokens;
        assert_int_not_equal(e->kind, RT_EV_END);
        rt_event_free(e);
    }
    assert_true(tokens[2] > 500); /* as fast as ever */
    assert_true(tokens[0] < tokens[1] / 2);
    for (size_t i = 0; i < 3; i++)
        rt_cancel(h.rt, &h.mail, i);
    for (int ends = 0; ends < 3;) {
        struct rt_event *e = sv_take(&h);
        ends += e->kind == RT_EV_END;
        rt_event_free(e);
    }
    for (size_t i = 0; i < 2; i++)
        sv_release(&h, i);
    h_settle(&h);
    print_message("the one with another group for itself: %d tokens of %d\n", (int)tokens[0],
                  (int)(tokens[0] + tokens[1]));
    h_stop(&h);
}

/* The device of one group is lost: the runtime has failed, and the requests of both are told
 * why. */
static void test_lost(void **state)
{
    struct setup s = {
        .models = {{.id = "a"},
                   {.id = "b", .path = "null:vocab=600,context=1000000", .group = TWO}},
        .n_models = 2,
        .lost_after = 3};
    struct h h;
    struct rt_health health;
    start(&h, &s);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(sv_get(&h, i, NULL), 0);
    rt_health(h.rt, &health);
    assert_false(health.failed);
    for (uint64_t i = 0; i < 4; i++)
        ask_as(&h, i < 2 ? TWO : ONE, i, 0);
    for (int ends = 0; ends < 4;) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, CN_EDEVICE);
            ends++;
        }
        rt_event_free(e);
    }
    rt_health(h.rt, &health);
    assert_true(health.failed);
    for (uint64_t i = 0; i < 2; i++) { /* nor is anything taken any more */
        ask_as(&h, i, i, 0);
        wait_code(&h, i, CN_EDEVICE);
    }
    for (size_t i = 0; i < 2; i++)
        sv_release(&h, i);
    h_stop(&h);
}

/* More memory than there is, and a group that cannot hold its models: refused, with the group and
 * its keys. */
static void test_refusals(void **state)
{
    static const struct {
        uint64_t memory[2], kv;
        const char *param, *text;
    } cases[] = {{{1ull << 50, 1u << 20},
                  1u << 18,
                  "groups.memory_bytes",
                  "the group first: groups.memory_bytes is"},
                 {{1u << 28, 1ull << 50},
                  1u << 20,
                  "groups.memory_bytes",
                  "the group second: groups.memory_bytes is"},
                 {{1u << 28, 1u << 28}, 4096, "groups.kv_memory_bytes", "the group first: "}};
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cfg_group groups[2] = {{.name = "first"}, {.name = "second"}};
        struct rt_model_opts list[2] = {{.id = "a", .path = sv_paths[LLAMA]},
                                        {.id = "b", .path = sv_paths[LLAMA], .group = TWO}};
        struct cn_error err = {0};
        struct cn_metrics *metrics = cn_calloc(1, sizeof *metrics);
        struct cfg cfg;
        struct rt *r;
        assert_int_equal(cfg_init(&cfg, NULL), 0);
        for (int k = 0; k < 2; k++) {
            groups[k].memory_bytes = cases[i].memory[k];
            groups[k].kv_memory_bytes = cases[i].kv;
        }
        cfg.groups = groups;
        cfg.n_groups = 2;
        struct rt_opts o = {.cfg = &cfg, .metrics = metrics, .models = list, .n_models = 2};
        assert_int_equal(rt_new(&o, &r, &err), CN_ENOMEM);
        assert_string_equal(err.param, cases[i].param);
        if (strncmp(err.message, cases[i].text, strlen(cases[i].text))) fail_msg("%s", err.message);
        cfg.groups = NULL;
        cfg.n_groups = 0;
        cfg_fini(&cfg);
        free(metrics);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swap_apart), cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_sums),       cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_fair),       cmocka_unit_test(test_lost),
        cmocka_unit_test(test_refusals)};
    setenv("CONIFER_GROUPS", "2", 1); /* sv_need: with one thread */
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return cmocka_run_group_tests_name("groups", tests, sv_find_files, NULL);
}
