#include "tests/runtime/harness.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void set_groups(struct cfg *c, const struct h_setup *s)
{
    c->n_groups = s->n_groups;
    c->groups = s->n_groups ? cn_calloc(s->n_groups, sizeof *c->groups) : NULL;
    for (size_t i = 0; i < s->n_groups; i++) {
        c->groups[i] = s->groups[i];
        c->groups[i].name = strdup(s->groups[i].name);
    }
}

/* Before any thread counts. */
static void name_series(struct h *h)
{
    const char *names[CFG_MAX_GROUPS];
    for (size_t i = 0; i < h->cfg.n_groups; i++)
        names[i] = h->cfg.groups[i].name;
    if (h->cfg.n_groups)
        assert_int_equal(cn_metrics_groups(&h->metrics, names, h->cfg.n_groups), 0);
}

void h_start(struct h *h, const struct h_setup *s)
{
    struct cn_error err = {0};
    char text[16];
    memset(h, 0, sizeof *h);
    assert_int_equal(cfg_init(&h->cfg, &err), 0);
    h->cfg.engine.threads = s->threads;
    h->cfg.engine.isa = s->isa;
    h->cfg.engine.async_lost_after = s->lost_after;
    if (s->max_running) h->cfg.scheduler.max_running = s->max_running;
    h->cfg.engine.async_delay_s = s->delay_s;
    h->cfg.engine.async_lends_at_load = s->lends_at_load;
    const char *device = s->device ? s->device : dev_kind();
    assert_int_equal(cfg_set(&h->cfg, "engine.device", device, &err), 0);
    if (s->max_batch_rows) h->cfg.engine.max_batch_rows = s->max_batch_rows;
    if (s->step_target_ms > 0) {
        h->cfg.engine.step_target_ms = s->step_target_ms;
        h->cfg.engine.step_stretch = 0;
    }
    h->cfg.kv.memory_bytes = s->kv_bytes;
    h->cfg.kv.host_memory_bytes = s->host_bytes;
    h->cfg.scheduler.speculation = s->speculation ? CFG_SPECULATION_AUTO : CFG_SPECULATION_OFF;
    h->cfg.model.kv_type = s->kv_type;
    h->cfg.model.context = (int64_t)s->context;
    h->cfg.limits.max_n = 8;
    h->cfg.n_tenants = s->n_tenants;
    h->cfg.tenants = cn_calloc(s->n_tenants, sizeof *h->cfg.tenants);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        snprintf(text, sizeof text, "t%u", i);
        h->cfg.tenants[i].name = strdup(text);
        h->cfg.tenants[i].weight = 1;
        h->cfg.tenants[i].priority = CFG_NORMAL;
    }
    h->cfg.engine.memory_bytes = s->memory_bytes;
    set_groups(&h->cfg, s);
    name_series(h);
    if (s->swap_wait_s > 0) h->cfg.engine.swap_wait_s = s->swap_wait_s;
    if (s->min_stay_s > 0) h->cfg.engine.min_stay_s = s->min_stay_s;
    assert_int_equal(cn_mailbox_init(&h->mail, NULL, NULL), 0);
    struct rt_opts o = {.cfg = &h->cfg,
                        .metrics = &h->metrics,
                        .model_path = s->model,
                        .model_id = "test",
                        .models = s->models,
                        .n_models = s->n_models};
    if (rt_new(&o, &h->rt, &err)) fail_msg("rt_new: %s: %s", err.param, err.message);
}

void h_stop(struct h *h)
{
    rt_free(h->rt);
    cn_mailbox_fini(&h->mail);
    cn_metrics_fini(&h->metrics);
    cfg_fini(&h->cfg);
}

double h_metric(struct h *h, enum cn_metric id)
{
    return cn_metric_get(&h->metrics, id);
}

bool h_has_span(const struct h *h, enum kr_span span)
{
    const struct kr_exec_info *x = eng_model_info(rt_model(h->rt))->exec;
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (x->groups[g].span == span) return true;
    return false;
}

/* Slabs that a sequence takes: whole slabs for each group. */
static uint64_t slabs_of(const struct kr_exec_info *x, uint64_t slab_bytes, uint64_t tokens,
                         uint32_t rows)
{
    uint64_t slabs = 0;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        const struct kr_kv_group *kg = &x->groups[g];
        uint64_t blocks = (tokens + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS;
        uint64_t seen = (kg->window_tokens - 1ull + rows + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS + 1;
        if (kg->span == KR_SPAN_STATE)
            blocks = 1;
        else if (kg->window_tokens)
            blocks = CN_MIN(blocks, seen);
        uint64_t in_slab = slab_bytes / kg->block_bytes;
        slabs += (blocks + in_slab - 1) / in_slab;
    }
    return slabs;
}

uint64_t h_least_memory(const struct h_setup *s, uint64_t tokens)
{
    struct h h;
    struct rt_memory_plan plan;
    uint64_t bytes = 512;
    assert_true(s->max_batch_rows > 0);
    h_start(&h, s);
    const struct eng_model_info *info = eng_model_info(rt_model(h.rt));
    do
        bytes += bytes / 32;
    while (rt_memory_plan(info->exec, H_BLOCK_TOKENS, info->context, 256, bytes, 0, false, &plan,
                          NULL) ||
           slabs_of(info->exec, plan.slab_bytes, tokens,
                    s->max_batch_rows * h.rt->groups[0].stepper.depth) > plan.n_slabs);
    h_stop(&h);
    return bytes;
}

void h_request(struct h *h, uint32_t seed, uint32_t tenant, struct rt_request *out)
{
    uint32_t s = seed * 2654435761u + 17;
    const struct eng_model_info *info = eng_model_info(rt_model(h->rt));
    uint64_t room = CN_MIN(info->context, (uint64_t)400);
    struct rt_request q = {.id = seed, .reply = &h->mail, .tenant = tenant, .priority = RT_NORMAL};
    size_t shared = next(&s) % (room / 2), own = 1 + next(&s) % (room / 4);
    q.n_prompt = shared + own;
    q.prompt = cn_malloc_array(q.n_prompt, sizeof *q.prompt);
    uint32_t family = next(&s) % 3; /* prompts of a family begin alike */
    for (size_t i = 0; i < q.n_prompt; i++) {
        uint32_t at = i < shared ? family * 7919u + (uint32_t)i * 31u + 5u : next(&s);
        q.prompt[i] = (at * 2246822519u >> 7) % (uint32_t)info->n_vocab;
    }
    q.n = next(&s) % 5 == 0 ? 2 : 1;
    q.max_tokens = next(&s) % 8 ? 4 + next(&s) % 28 : 0; /* 0: up to the window */
    eng_sampling_defaults(&q.sampling);
    q.sampling.seed = seed;
    q.sampling.temperature = next(&s) % 3 == 0 ? 0.0f : 0.5f + (float)(next(&s) % 10) / 10;
    if (next(&s) % 3 == 0) q.sampling.top_p = 0.9f;
    if (next(&s) % 3 == 0) q.sampling.top_k = 1 + next(&s) % 50;
    if (next(&s) % 4 == 0) q.sampling.repetition_penalty = 1.2f;
    if (next(&s) % 4 == 0) q.sampling.frequency_penalty = 0.5f;
    q.sampling.logprobs = next(&s) % 3 == 0 ? 2 : -1;
    q.sampling.ignore_eos = next(&s) % 2;
    struct rt_shared_in in = {0};
    const char *stop;
    if (next(&s) % 4 == 0) {
        stop = next(&s) % 2 ? "e" : "th";
        in.stop = &stop;
        in.n_stop = 1;
    }
    struct cn_bias bias[2];
    uint32_t stop_id = next(&s) % (uint32_t)info->n_vocab;
    if (next(&s) % 4 == 0) {
        bias[0] = (struct cn_bias){.id = next(&s) % (uint32_t)info->n_vocab, .add = 2};
        bias[1] = (struct cn_bias){.id = next(&s) % (uint32_t)info->n_vocab, .add = -30};
        in.bias = bias;
        in.n_bias = 2;
    }
    if (next(&s) % 4 == 0) {
        in.stop_ids = &stop_id;
        in.n_stop_ids = 1;
        q.sampling.min_tokens = next(&s) % 8;
    }
    if (rt_shared_new(&in, &q.shared)) abort();
    *out = q;
}

static void keep_tokens(struct h_answer *a, const struct rt_event *e)
{
    assert_int_equal(cn_grow(&a->ids, &a->ids_cap, a->n_ids + e->n_tokens, sizeof *a->ids), 0);
    assert_int_equal(cn_grow(&a->logprobs, &a->lp_cap, a->n_ids + e->n_tokens, sizeof(float)), 0);
    for (size_t i = 0; i < e->n_tokens; i++) {
        a->logprobs[a->n_ids] = e->tokens[i].logprob;
        a->ids[a->n_ids++] = e->tokens[i].id;
    }
    assert_int_equal(cn_buf_append(&a->text, e->text, e->text_len), 0);
    assert_int_equal(cn_utf8_valid_len(e->text, e->text_len), e->text_len);
}

/* Every rule of runtime.h about the order of events is asserted here. */
static void keep(struct h_result *r, const struct rt_event *e)
{
    r->n_events++;
    assert_false(r->done);
    if (e->kind != RT_EV_ACCEPTED && e->kind != RT_EV_END) assert_true(r->accepted);
    switch (e->kind) {
    case RT_EV_ACCEPTED:
        assert_false(r->accepted);
        r->accepted = true;
        break;
    case RT_EV_PROMPT:
        break;
    case RT_EV_EMBEDDING:
        assert_true(!r->vector && !r->choices[0].ended);
        r->n_vector = e->n_vector;
        r->vector = cn_malloc_array(e->n_vector, sizeof *r->vector);
        memcpy(r->vector, e->vector, e->n_vector * sizeof *r->vector);
        break;
    case RT_EV_MODEL:
        fail_msg("nobody asked for a model");
        break;
    case RT_EV_TOKENS:
        assert_true(e->choice < r->n && !r->choices[e->choice].ended);
        keep_tokens(&r->choices[e->choice], e);
        break;
    case RT_EV_CHOICE_END:
        assert_true(e->choice < r->n && !r->choices[e->choice].ended);
        r->choices[e->choice].ended = true;
        r->choices[e->choice].finish = e->finish;
        break;
    case RT_EV_END:
        for (uint32_t i = 0; r->accepted && i < r->n; i++)
            assert_true(r->choices[i].ended);
        r->done = true;
        r->code = e->code;
        r->usage = e->usage;
        break;
    }
}

void h_send(struct h_drive *d)
{
    struct h_result *r = &d->results[d->sent];
    struct rt_request q;
    if (d->sent == d->n) return;
    d->make(d->h, d->sent, &q, d->arg);
    q.id = d->sent++;
    q.reply = &d->mail;
    r->n = q.n;
    r->choices = cn_calloc(q.n, sizeof *r->choices);
    for (uint32_t c = 0; c < q.n; c++)
        cn_buf_init(&r->choices[c].text, 0);
    if (!rt_submit(d->h->rt, &q, &d->error)) return;
    rt_request_fini(&q);
    atomic_store(&d->failed, true);
}

/* The wake of the run's mailbox: on the engine thread, for each event that is posted. */
static void on_event(void *arg)
{
    struct h_drive *d = arg;
    for (struct cn_msg *m = cn_mailbox_take(&d->mail), *next; m; m = next) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        next = m->next;
        d->ended += e->kind == RT_EV_END;
        if (d->turn) d->turn(d, e);
        while (!d->turn && d->sent < d->n && d->sent - d->ended < d->at_once && !d->failed)
            h_send(d);
        cn_mailbox_post(&d->h->mail, &e->msg);
    }
}

void h_drive(struct h_drive *d)
{
    uint32_t done = 0, waited_s = 0;
    d->sent = d->ended = 0;
    memset(d->results, 0, d->n * sizeof *d->results);
    assert_int_equal(cn_mailbox_init(&d->mail, on_event, d), 0);
    h_send(d);
    while (done < d->n) {
        if (atomic_load(&d->failed)) fail_msg("submit %u: %s", d->sent - 1, d->error.message);
        if (!cn_mailbox_wait(&d->h->mail, 1000000000)) {
            if (++waited_s > 120) fail_msg("no event for 120 s");
            continue;
        }
        waited_s = 0;
        for (struct cn_msg *m = cn_mailbox_take(&d->h->mail), *next; m; m = next) {
            struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
            next = m->next;
            assert_true(e->id < d->n);
            keep(&d->results[e->id], e);
            done += e->kind == RT_EV_END;
            rt_event_free(e);
        }
    }
    for (int i = 0; i < 10000 && rt_in_flight(d->h->rt); i++) /* the mailbox is still in use */
        usleep(1000);
    assert_int_equal(rt_in_flight(d->h->rt), 0);
    cn_mailbox_fini(&d->mail);
}

void h_run(struct h *h, uint32_t n, uint32_t at_once,
           void (*make)(struct h *h, uint32_t i, struct rt_request *out, void *arg), void *arg,
           struct h_result *results)
{
    struct h_drive d = {
        .h = h, .n = n, .at_once = at_once, .make = make, .arg = arg, .results = results};
    h_drive(&d);
}

void h_result_fini(struct h_result *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        free(r->choices[i].ids);
        free(r->choices[i].logprobs);
        cn_buf_fini(&r->choices[i].text);
    }
    free(r->choices);
    free(r->vector);
    memset(r, 0, sizeof *r);
}

bool h_same(const struct h_result *a, const struct h_result *b)
{
    if (a->code != b->code || a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct h_answer *x = &a->choices[i], *y = &b->choices[i];
        if (x->n_ids != y->n_ids || x->finish != y->finish || x->text.len != y->text.len)
            return false;
        if (x->n_ids && memcmp(x->ids, y->ids, x->n_ids * sizeof *x->ids)) return false;
        if (x->n_ids && memcmp(x->logprobs, y->logprobs, x->n_ids * sizeof(float))) return false;
        if (x->text.len && memcmp(x->text.data, y->text.data, x->text.len)) return false;
    }
    return true;
}

void h_settle(struct h *h)
{
    for (int i = 0; i < 10000; i++) {
        if (!rt_in_flight(h->rt) && h_metric(h, CN_M_requests_running) == 0 &&
            h_metric(h, CN_M_requests_waiting) == 0 && h_metric(h, CN_M_kv_blocks_ready) == 0 &&
            h_metric(h, CN_M_kv_blocks_filling) == 0)
            return;
        usleep(1000);
    }
    fail_msg("not idle after 10 s: %g running, %g waiting, %g blocks in use",
             h_metric(h, CN_M_requests_running), h_metric(h, CN_M_requests_waiting),
             h_metric(h, CN_M_kv_blocks_ready));
}

const char *h_model(const char *name)
{
    static char path[4096];
    if (name && !strncmp(name, "null:", 5)) return name; /* no file */
    const char *oracle = getenv("CONIFER_ORACLE"), *models = getenv("CONIFER_TEST_MODELS");
    const char *home = getenv("HOME");
    if (!name) return NULL;
    if (!strncmp(name, "oracle:", 7)) {
        if (!oracle) oracle = CONIFER_SOURCE_ROOT "/../shared/oracle";
        snprintf(path, sizeof path, "%s/%s", oracle, name + 7);
        if (!access(oracle, R_OK) && access(path, R_OK)) {
            fprintf(stderr, "%s is missing from the reference data\n", path);
            exit(1);
        }
    } else if (!strncmp(name, "models:", 7)) {
        if (models)
            snprintf(path, sizeof path, "%s/%s", models, name + 7);
        else
            snprintf(path, sizeof path, "%s/.local/share/conifer/models/%s", home ? home : "",
                     name + 7);
    } else {
        snprintf(path, sizeof path, "%s", name);
    }
    return access(path, R_OK) ? NULL : path;
}
