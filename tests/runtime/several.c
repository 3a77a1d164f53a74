#include "tests/runtime/several.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const files[N_FILES] = {
    "oracle:models/llama3-gqa.gguf", "oracle:models/gemma3.gguf", "oracle:models/qwen3moe.gguf",
    "oracle:models/mamba2.gguf"};
static const char *const names[N_FILES] = {"llama", "gemma", "qwen", "mamba"};
char sv_paths[N_FILES][4096];

int sv_find_files(void **state)
{
    for (int i = 0; i < N_FILES; i++) {
        const char *p = h_model(files[i]);
        if (!p) {
            print_message("%s is not here\n", files[i]);
            exit(77);
        }
        snprintf(sv_paths[i], sizeof sv_paths[i], "%s", p);
    }
    return 0;
}

/* The same models in the second of two groups. */
static void start_second(struct h *h, const struct rt_model_opts *list, struct h_setup s)
{
    static struct rt_model_opts all[N_FILES + 8];
    struct cfg_group groups[2] = {
        {.name = "first", .threads = 1, .memory_bytes = 64u << 20, .kv_memory_bytes = KV_BYTES},
        {.name = "second",
         .threads = 1,
         .memory_bytes = s.memory_bytes,
         .kv_memory_bytes = KV_BYTES}};
    assert_true(s.n_models < CN_ARRAY_LEN(all));
    for (size_t i = 0; i < s.n_models; i++) {
        all[i] = list[i];
        all[i].group = 1;
    }
    all[s.n_models++] = (struct rt_model_opts){.id = "unused", .path = "null:vocab=600,layers=2"};
    s.models = all;
    s.groups = groups;
    s.n_groups = 2;
    s.memory_bytes = s.kv_bytes = 0;
    h_start(h, &s);
}

static void start(struct h *h, struct rt_model_opts *list, struct h_setup s)
{
    for (size_t i = 0; i < s.n_models; i++) {
        if (!list[i].path) list[i].path = sv_paths[i];
        if (!list[i].id) list[i].id = names[i];
    }
    s.threads = 2;
    s.kv_bytes = KV_BYTES;
    s.models = list;
    s.lends_at_load = getenv("CONIFER_LENDS_AT_LOAD") != NULL;
    if (getenv("CONIFER_GROUPS"))
        start_second(h, list, s);
    else
        h_start(h, &s);
}

void sv_start(struct h *h, struct rt_model_opts *list, size_t n, uint64_t memory, double wait_s)
{
    start(h, list,
          (struct h_setup){
              .n_tenants = 1, .n_models = n, .memory_bytes = memory, .swap_wait_s = wait_s});
}

void sv_start_two(struct h *h, struct rt_model_opts *list, size_t n, uint64_t memory, double wait_s,
                  double stay_s)
{
    start(h, list,
          (struct h_setup){.n_tenants = 2,
                           .n_models = n,
                           .memory_bytes = memory,
                           .swap_wait_s = wait_s,
                           .min_stay_s = stay_s});
}

uint64_t sv_need(int file)
{
    struct kr_device *d;
    struct eng_model *m;
    struct cfg cfg;
    assert_int_equal(cfg_init(&cfg, NULL), 0);
    cfg.engine.threads = getenv("CONIFER_GROUPS") ? 1 : 2;
    assert_int_equal(cfg_set(&cfg, "engine.device", dev_kind(), NULL), 0);
    struct eng_model_opts o = {.prepare = rt_prepare_opts(&cfg)};
    assert_int_equal(rt_device_new(&cfg, &d, NULL), 0);
    o.device = d;
    assert_int_equal(eng_model_open(sv_paths[file], &o, &m, NULL), 0);
    const struct kr_exec_info *x = eng_model_info(m)->exec;
    uint64_t need = x->packed_bytes + x->scratch_bytes;
    eng_model_unref(m);
    kr_device_free(d);
    cfg_fini(&cfg);
    return need;
}

enum rt_model_state sv_state(struct h *h, size_t i)
{
    struct rt_model_status s;
    rt_model_status(rt_model_at(h->rt, i), &s);
    return s.state;
}

void sv_wait_unloaded(struct h *h, size_t i)
{
    struct rt_model *m = &h->rt->models[i];
    for (int k = 0; k < 60000; k++) {
        pthread_mutex_lock(&h->rt->models_lock);
        bool out = !m->model && m->state == RT_FAILED;
        pthread_mutex_unlock(&h->rt->models_lock);
        if (out) return;
        usleep(1000);
    }
    fail_msg("model %zu was not unloaded", i);
}

struct rt_event *sv_take(struct h *h)
{
    static struct cn_msg *list;
    if (!list) {
        if (!cn_mailbox_wait(&h->mail, 60 * SECOND)) fail_msg("no event for 60 s");
        list = cn_mailbox_take(&h->mail);
    }
    struct rt_event *e = CN_CONTAINER(list, struct rt_event, msg);
    list = list->next;
    return e;
}

int sv_get(struct h *h, size_t i, char message[512])
{
    struct cn_error err = {0};
    bool held;
    int rc = rt_acquire(rt_model_at(h->rt, i), 0, &h->mail, 1000 + i, &held, &err);
    if (message) snprintf(message, 512, "%s", err.message);
    if (rc || held) return rc;
    struct rt_event *e = sv_take(h);
    assert_int_equal(e->kind, RT_EV_MODEL);
    assert_int_equal(e->id, 1000 + i);
    rc = e->code;
    if (message) snprintf(message, 512, "%s", rt_event_reason(e).message);
    rt_event_free(e);
    return rc;
}

void sv_release(struct h *h, size_t i)
{
    rt_release(rt_model_at(h->rt, i));
}

void sv_ask(struct h *h, size_t i, uint64_t id, uint64_t max_tokens)
{
    struct cn_error err = {0};
    struct rt_request q = {.id = id,
                           .reply = &h->mail,
                           .model = (uint32_t)i,
                           .priority = RT_NORMAL,
                           .n_prompt = 8,
                           .n = 1,
                           .max_tokens = max_tokens};
    q.prompt = cn_malloc_array(8, sizeof *q.prompt);
    for (uint32_t k = 0; k < 8; k++)
        q.prompt[k] = 20 + (uint32_t)(id % 5) + k * 3;
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    q.sampling.logprobs = -1;
    if (rt_submit(h->rt, &q, &err)) fail_msg("submit: %s", err.message);
}

static bool at_rest(struct rt_model *m)
{
    pthread_mutex_lock(&m->rt->models_lock);
    bool rest = !m->uses && !m->waits &&
                (m->state == RT_LOADED ? m->model != NULL : !m->model && !m->bytes);
    pthread_mutex_unlock(&m->rt->models_lock);
    return rest;
}

void sv_check_idle(struct h *h)
{
    h_settle(h);
    for (size_t i = 0; i < h->rt->n_models; i++) {
        int tries = 60000;
        while (!at_rest(&h->rt->models[i]) && --tries)
            usleep(1000);
        assert_true(tries > 0);
    }
}

void sv_collect(struct h *h, uint64_t id, struct answer *a)
{
    for (bool done = false; !done;) {
        struct rt_event *e = sv_take(h);
        assert_int_equal(e->id, id);
        for (size_t k = 0; e->kind == RT_EV_TOKENS && k < e->n_tokens; k++) {
            assert_true(a->n < CN_ARRAY_LEN(a->ids));
            a->ids[a->n++] = e->tokens[k].id;
        }
        if (e->kind == RT_EV_END) assert_int_equal(e->code, 0);
        done = e->kind == RT_EV_END;
        rt_event_free(e);
    }
}

void sv_wait_end(struct h *h)
{
    for (bool done = false; !done;) {
        struct rt_event *e = sv_take(h);
        done = e->kind == RT_EV_END;
        assert_int_equal(done ? e->code : 0, 0);
        rt_event_free(e);
    }
}
