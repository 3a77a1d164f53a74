/* The engine thread: takes messages, iterates the scheduler, keeps gauges and progress. */
#include "runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MODEL_NS 500000000u

enum cmd_kind { CMD_SUBMIT, CMD_CANCEL, CMD_PAUSE, CMD_STOP };
struct rt_cmd {
    struct cn_msg msg;
    enum cmd_kind kind;
    struct rt_req *req;            /* SUBMIT: moved */
    const struct cn_mailbox *reply;
    uint64_t id;
    bool paused;
};

/* ---- live requests, by (mailbox, caller's id) ----------------------------------------------------- */

static size_t slot_of(const struct rt *r, const struct cn_mailbox *reply, uint64_t id)
{
    uint64_t h = ((uint64_t)(uintptr_t)reply ^ id * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (size_t)(h >> 32) & (r->table_size - 1);
}

static struct rt_req *find(const struct rt *r, const struct cn_mailbox *reply, uint64_t id)
{
    struct rt_req *q = r->table[slot_of(r, reply, id)];
    while (q && (q->q.reply != reply || q->q.id != id))
        q = q->next;
    return q;
}

static void remember(struct rt *r, struct rt_req *req)
{
    if (r->n_live >= r->table_size) { /* a table that cannot grow only gets longer chains */
        struct rt_req **old = r->table, **t = cn_calloc(r->table_size * 2, sizeof *t);
        size_t n = r->table_size;
        if (t) {
            r->table = t;
            r->table_size *= 2;
            for (size_t i = 0; i < n; i++)
                while (old[i]) {
                    struct rt_req *q = old[i];
                    old[i] = q->next;
                    size_t s = slot_of(r, q->q.reply, q->q.id);
                    q->next = r->table[s];
                    r->table[s] = q;
                }
            free(old);
        }
    }
    size_t s = slot_of(r, req->q.reply, req->q.id);
    req->next = r->table[s];
    r->table[s] = req;
    r->n_live++;
}

void rt_forget(struct rt *r, struct rt_req *req)
{
    struct rt_req **at = &r->table[slot_of(r, req->q.reply, req->q.id)];
    while (*at && *at != req)
        at = &(*at)->next;
    if (!*at) return;
    *at = req->next;
    r->n_live--;
}

/* ---- engine thread ---------------------------------------------------------------------------------- */

static void refuse(struct rt *r, struct rt_req *req, int code, const struct cn_error *err)
{
    struct rt_event *e = req->end;
    req->end = NULL;
    e->code = code;
    memcpy(e->param, err->param, sizeof e->param);
    memcpy(e->message, err->message, sizeof e->message);
    cn_metric_add(r->metrics, CN_M_requests_refused, 1);
    cn_tenant_add(r->metrics, req->q.tenant, CN_TM_refused, 1);
    cn_mailbox_post(req->q.reply, &e->msg);
    rt_req_free(req, false);
    atomic_fetch_sub(&r->in_flight, 1);
}

/* As the scheduler, which would refuse it too, but with the field and with bytes. */
static int fit(struct rt *r, const struct rt_request *q, uint64_t *max_tokens, struct cn_error *err)
{
    struct kv_stats kv;
    uint32_t rows = (uint32_t)r->cfg->engine.max_batch_rows * r->stepper.depth;
    kv_pool_stats(r->pool, &kv);
    return rt_memory_fit(q, kv_space_max_tokens(r->space, q->tenant, rows),
                         (uint64_t)kv.n_slabs * kv.slab_bytes, max_tokens, err);
}

static void submit(struct rt *r, struct rt_req *req)
{
    const struct rt_request *q = &req->q;
    struct cn_error err = {0};
    static const enum sch_class class[] = {[RT_INTERACTIVE] = SCH_INTERACTIVE,
                                           [RT_NORMAL] = SCH_NORMAL,
                                           [RT_BACKGROUND] = SCH_BACKGROUND};
    struct rt_event *accepted = rt_event_new(q->id, RT_EV_ACCEPTED, 0, NULL);
    struct sch_request s = {.tenant = q->tenant,
                            .class = class[q->priority],
                            .prompt = q->prompt,
                            .n_prompt = q->n_prompt,
                            .marks = req->marks,
                            .n_marks = req->n_marks,
                            .max_new = q->max_tokens,
                            .n_choices = q->n,
                            .deadline_ns = q->deadline_ns,
                            .user = req};
    if (q->prompt_logprobs) s.flags = SCH_PROMPT_LOGITS | SCH_NO_CACHE_READ;
    int rc = accepted ? 0 : cn_fail(&err, CN_ENOMEM, "out of memory for a request");
    if (!rc && r->stopping) rc = cn_fail(&err, CN_EDRAIN, "the server is shutting down");
    if (!rc && atomic_load(&r->failed))
        rc = cn_fail(&err, CN_ENOTREADY, "the model's file changed while it was served");
    if (!rc) rc = fit(r, q, &s.max_new, &err);
    if (!rc) rc = sch_submit(r->sch, &s, &req->sch_id, &err);
    if (rc) {
        rt_event_free(accepted);
        refuse(r, req, rc, &err);
        return;
    }
    remember(r, req);
    rt_tenant_changed(r, q->tenant);
    cn_tenant_add(r->metrics, q->tenant, CN_TM_prompt_tokens, q->n_prompt);
    cn_mailbox_post(q->reply, &accepted->msg);
}

/* error: what the requests are told; 0 leaves it to the cancel. */
static void cancel_all(struct rt *r, int error)
{
    for (size_t i = 0; i < r->table_size; i++)
        for (struct rt_req *req = r->table[i]; req; req = req->next) {
            if (error) req->error = error;
            sch_cancel(r->sch, req->sch_id);
        }
}

/* A model file that was cut short or rewritten gives wrong numbers, not a crash. What was handed out
 * since the last look may be made of them: at most CHECK_MODEL_NS of it, and its request ends with
 * an error. */
static void check_model(struct rt *r)
{
    uint64_t now = cn_now_ns();
    if (now - r->checked_ns < CHECK_MODEL_NS || atomic_load(&r->failed)) return;
    r->checked_ns = now;
    if (eng_model_intact(r->model)) return;
    atomic_store(&r->failed, true);
    cn_log(CN_LOG_ERROR, "engine", "%s: the model's file changed while it was served; restart to "
           "load it again", r->model_id);
    cancel_all(r, CN_ENOTREADY);
}

static void handle(struct rt *r, struct rt_cmd *c)
{
    struct rt_req *req;
    switch (c->kind) {
    case CMD_SUBMIT:
        submit(r, c->req);
        break;
    case CMD_CANCEL:
        if ((req = find(r, c->reply, c->id))) sch_cancel(r->sch, req->sch_id);
        break;
    case CMD_PAUSE:
        if ((req = find(r, c->reply, c->id))) sch_pause(r->sch, req->sch_id, c->paused);
        break;
    case CMD_STOP:
        r->stopping = true;
        cancel_all(r, 0);
        break;
    }
    free(c);
}

static void update_gauges(struct rt *r)
{
    struct cn_metrics *m = r->metrics;
    struct kv_stats kv;
    struct sch_stats s, *l = &r->last_stats;
    kv_pool_stats(r->pool, &kv);
    sch_stats(r->sch, &s);
    cn_metric_set(m, CN_M_requests_running, (double)s.running);
    cn_metric_set(m, CN_M_requests_waiting, (double)s.waiting);
    cn_metric_set(m, CN_M_kv_blocks_free, (double)kv.blocks[KV_FREE]);
    cn_metric_set(m, CN_M_kv_blocks_filling, (double)kv.blocks[KV_FILLING]);
    cn_metric_set(m, CN_M_kv_blocks_copying, (double)kv.blocks[KV_COPYING]);
    cn_metric_set(m, CN_M_kv_blocks_ready, (double)kv.blocks[KV_READY]);
    cn_metric_set(m, CN_M_kv_blocks_cached, (double)kv.blocks[KV_CACHED]);
    cn_metric_set(m, CN_M_engine_last_step_seconds, (double)s.last_step_ns * 1e-9);
    if (s.steps > l->steps) cn_metric_observe(m, CN_H_step, s.last_step_ns);
    cn_metric_add(m, CN_M_steps, s.steps - l->steps);
    cn_metric_add(m, CN_M_prompt_tokens, s.prompt_tokens - l->prompt_tokens);
    cn_metric_add(m, CN_M_prompt_tokens_computed, s.prompt_computed - l->prompt_computed);
    cn_metric_add(m, CN_M_prompt_tokens_cached, s.prompt_cached - l->prompt_cached);
    cn_metric_add(m, CN_M_tokens_recomputed, s.recomputed - l->recomputed);
    cn_metric_add(m, CN_M_tokens_generated, s.generated - l->generated);
    cn_metric_add(m, CN_M_tokens_cancelled, s.cancelled_tokens - l->cancelled_tokens);
    cn_metric_add(m, CN_M_tokens_wasted, s.wasted - l->wasted);
    cn_metric_add(m, CN_M_preemptions, s.preemptions - l->preemptions);
    cn_metric_add(m, CN_M_requests_ok, s.ended_ok - l->ended_ok);
    cn_metric_add(m, CN_M_requests_error, s.ended_error - l->ended_error);
    cn_metric_add(m, CN_M_requests_cancelled, s.ended_cancelled - l->ended_cancelled);
    cn_metric_add(m, CN_M_evictions, kv.evictions - r->last_evictions);
    r->last_evictions = kv.evictions;
    rt_tenants_tell(r);
    atomic_store(&r->retry_after_s, sch_retry_after_s(r->sch));
    *l = s;
}

static void *engine_main(void *arg)
{
    struct rt *r = arg;
    for (;;) {
        rt_watch_begin(&r->watch, cn_now_ns());
        check_model(r);
        struct cn_msg *list = cn_mailbox_take(&r->inbox);
        while (list) {
            struct rt_cmd *c = CN_CONTAINER(list, struct rt_cmd, msg);
            list = list->next;
            handle(r, c);
        }
        bool more = sch_iterate(r->sch);
        update_gauges(r);
        if (more) continue;
        if (r->stopping && !r->n_live) return NULL;
        rt_watch_idle(&r->watch);
        uint64_t wake = sch_next_wake(r->sch), now = cn_now_ns();
        uint64_t wait = wake == UINT64_MAX ? UINT64_MAX : wake > now ? wake - now : 0;
        cn_mailbox_wait(&r->inbox, wait);
    }
}

/* ---- from other threads ------------------------------------------------------------------------------- */

static int send_cmd(struct rt *r, struct rt_cmd c)
{
    struct rt_cmd *m = cn_malloc_array(1, sizeof *m);
    if (!m) return CN_ENOMEM;
    *m = c;
    cn_mailbox_post(&r->inbox, &m->msg);
    return 0;
}

int rt_submit(struct rt *r, struct rt_request *q, struct cn_error *err)
{
    struct rt_req *req;
    if (atomic_load(&r->draining)) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    int rc = rt_req_new(r, q, &req, err);
    if (rc) return rc;
    atomic_fetch_add(&r->in_flight, 1);
    rc = send_cmd(r, (struct rt_cmd){.kind = CMD_SUBMIT, .req = req});
    if (rc) {
        atomic_fetch_sub(&r->in_flight, 1);
        rt_req_free(req, true);
        return cn_fail(err, rc, "out of memory for a request");
    }
    *q = (struct rt_request){0};
    return 0;
}

void rt_cancel(struct rt *r, const struct cn_mailbox *reply, uint64_t id)
{
    if (send_cmd(r, (struct rt_cmd){.kind = CMD_CANCEL, .reply = reply, .id = id}))
        cn_log(CN_LOG_ERROR, "engine", "out of memory: a cancel was not sent");
}

void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused)
{
    if (send_cmd(r, (struct rt_cmd){.kind = CMD_PAUSE, .reply = reply, .id = id, .paused = paused}))
        cn_log(CN_LOG_ERROR, "engine", "out of memory: a pause was not sent");
}

void rt_drain(struct rt *r)
{
    atomic_store(&r->draining, true);
}

uint64_t rt_in_flight(const struct rt *r)
{
    return atomic_load(&((struct rt *)r)->in_flight);
}

uint32_t rt_retry_after_s(const struct rt *r)
{
    return CN_MAX(atomic_load(&((struct rt *)r)->retry_after_s), 1u);
}

struct eng_model *rt_model(const struct rt *r)
{
    return r->model;
}

const char *rt_model_id(const struct rt *r)
{
    return r->model_id;
}

int64_t rt_model_created_s(const struct rt *r)
{
    return r->created_s;
}

const char *rt_fingerprint(const struct rt *r)
{
    return eng_model_info(r->model)->fingerprint;
}

void rt_health(const struct rt *r, struct rt_health *out)
{
    struct rt *m = (struct rt *)r;
    out->draining = atomic_load(&m->draining);
    out->failed = atomic_load(&m->failed);
    rt_watch_read(&m->watch, cn_now_ns(), out);
}

/* ---- start and end ---------------------------------------------------------------------------------------- */

int rt_check_model(const struct cfg *cfg, const char *model_path, struct cn_error *err)
{
    uint64_t trained, asked = (uint64_t)cfg->model.context;
    struct eng_str arch;
    struct eng_gguf *g;
    char key[96];
    int rc = eng_gguf_open(model_path, &g, err);
    if (rc) return rc;
    /* What is missing or odd here is told by eng_model_open. */
    if (!eng_gguf_str(g, "general.architecture", &arch, NULL) && arch.n < 64) {
        snprintf(key, sizeof key, "%.*s.context_length", (int)arch.n, arch.p);
        if (!eng_gguf_u64(g, key, &trained, NULL) && trained && asked > trained)
            rc = cn_fail_param(err, CN_ERANGE, "model.context",
                               "model.context is %llu tokens, but the model was trained for %llu: "
                               "ask for at most that, or leave it out",
                               (unsigned long long)asked, (unsigned long long)trained);
    }
    eng_gguf_close(g);
    return rc;
}

static int read_text_file(const char *path, struct cn_buf *out, struct cn_error *err)
{
    FILE *f = fopen(path, "rbe");
    char chunk[65536];
    size_t n;
    if (!f) return cn_fail_param(err, CN_EIO, "model.chat_template", "cannot read %s", path);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        if (cn_buf_append(out, chunk, n)) break;
    bool bad = ferror(f) || out->failed;
    fclose(f);
    if (bad) return cn_fail_param(err, CN_EIO, "model.chat_template", "cannot read %s", path);
    return 0;
}

static int open_model(struct rt *r, const struct rt_opts *o, struct cn_error *err)
{
    const struct cfg *cfg = o->cfg;
    int rc = rt_check_model(cfg, o->model_path, err);
    if (!rc) rc = rt_device_new(cfg, &r->device, err);
    if (rc) return rc;
    struct cn_buf text;
    cn_buf_init(&text, 4u << 20);
    if (cfg->model.chat_template) rc = read_text_file(cfg->model.chat_template, &text, err);
    struct eng_model_opts opts = {
        .device = r->device,
        .prepare = rt_prepare_opts(cfg),
        .template_text = cfg->model.chat_template ? cn_buf_cstr(&text) : NULL,
        .template_len = text.len};
    opts.prepare.progress = o->progress;
    opts.prepare.progress_arg = o->progress_arg;
    if (!rc) rc = eng_model_open(o->model_path, &opts, &r->model, err);
    cn_buf_fini(&text);
    return rc;
}

static int make_pool(struct rt *r, struct cn_error *err)
{
    static const enum kv_span span[] = {[KR_SPAN_ALL] = KV_SPAN_ALL,
                                        [KR_SPAN_WINDOW] = KV_SPAN_WINDOW,
                                        [KR_SPAN_CHUNK] = KV_SPAN_CHUNK,
                                        [KR_SPAN_BOTH] = KV_SPAN_ALL,
                                        [KR_SPAN_STATE] = KV_SPAN_STATE};
    const struct cfg *cfg = r->cfg;
    const struct eng_model_info *info = eng_model_info(r->model);
    struct rt_memory_plan plan;
    int rc = rt_memory_plan(info->exec, (uint32_t)cfg->kv.block_tokens, info->context,
                            (uint32_t)cfg->scheduler.max_running, cfg->kv.memory_bytes,
                            cfg_free_memory(), &plan, err);
    if (rc) return rc;
    rc = kr_kv_mem_new(r->device, plan.slab_bytes, plan.n_slabs, &r->kv_mem, err);
    if (rc) return rc;
    rc = kv_pool_new(&(struct kv_pool_opts){.slab_bytes = plan.slab_bytes, .n_slabs = plan.n_slabs},
                     &r->pool, err);
    if (rc) return rc;
    uint32_t n = info->exec->n_groups;
    struct kv_group *groups = cn_calloc(n, sizeof *groups);
    if (!groups) return cn_fail(err, CN_ENOMEM, "out of memory for the pool");
    for (uint32_t g = 0; g < n; g++)
        groups[g] = (struct kv_group){.span = span[info->exec->groups[g].span],
                                      .tokens = info->exec->groups[g].window_tokens,
                                      .block_bytes = info->exec->groups[g].block_bytes};
    char id[64];
    int len = snprintf(id, sizeof id, "%s/%d", info->fingerprint, cfg->model.kv_type);
    struct kv_space_opts space = {.id = id,
                                  .id_len = (size_t)len,
                                  .block_tokens = (uint32_t)cfg->kv.block_tokens,
                                  .n_groups = n,
                                  .groups = groups};
    rc = kv_space_add(r->pool, &space, &r->space, err);
    free(groups);
    cn_metric_set(r->metrics, CN_M_kv_bytes_total, (double)plan.total_bytes);
    if (rc) return rc;
    uint64_t state = kv_space_state_bytes(r->space), tokens = kv_space_max_tokens(r->space, 0, 1);
    if (!state || kv_space_block_bytes(r->space) != state)
        cn_log(CN_LOG_INFO, "engine", "%s: %.1f MiB of weights, %.1f MiB of KV memory for %llu tokens",
               r->model_id, (double)info->exec->packed_bytes / 1048576,
               (double)plan.total_bytes / 1048576, (unsigned long long)tokens);
    if (state)
        cn_log(CN_LOG_INFO, "engine", "%s: %.2f MiB of recurrent state for each sequence, room for "
               "%llu", r->model_id, (double)state / 1048576,
               (unsigned long long)(plan.total_bytes / state));
    return 0;
}

static int set_tenants(struct rt *r, uint64_t kv_bytes)
{
    for (size_t i = 0; i < r->cfg->n_tenants; i++) {
        const struct cfg_tenant *t = &r->cfg->tenants[i];
        struct sch_tenant_opts o = {.weight = t->weight,
                                    .max_concurrent = (uint32_t)t->max_concurrency,
                                    .max_queued = (uint32_t)t->max_queued,
                                    .ceiling = (enum sch_class)t->priority,
                                    .kv_reserve_bytes = (uint64_t)(t->kv_share * (double)kv_bytes)};
        int rc = sch_tenant_set(r->sch, (uint32_t)i, &o);
        if (rc) return rc;
    }
    return 0;
}

static int make_scheduler(struct rt *r, struct cn_error *err)
{
    const struct cfg *cfg = r->cfg;
    const struct eng_model_info *info = eng_model_info(r->model);
    rt_stepper_init(&r->stepper, r);
    struct sch_opts o = {.pool = r->pool,
                         .stepper = rt_stepper_interface(&r->stepper),
                         .cb = {.arg = r,
                                .on_token = rt_on_token,
                                .on_choice_end = rt_on_choice_end,
                                .on_end = rt_on_end},
                         .max_running = (uint32_t)cfg->scheduler.max_running,
                         .max_queue = (uint32_t)cfg->scheduler.queue_requests,
                         .max_queue_tokens = (uint64_t)cfg->scheduler.queue_tokens,
                         .step_target_ns = (uint64_t)(cfg->engine.step_target_ms * 1e6),
                         .max_choices = (uint32_t)cfg->limits.max_n};
    int rc = sch_new(&o, &r->sch, err);
    if (rc) return rc;
    uint32_t model, max_rows = (uint32_t)cfg->engine.max_batch_rows;
    struct sch_model_opts m = {.space = r->space,
                               .context = info->context,
                               .max_rows = max_rows,
                               .max_logit_rows = CN_MIN(max_rows, 64u)};
    rc = sch_model_add(r->sch, &m, &model, err);
    if (rc) return rc;
    struct kv_stats kv;
    kv_pool_stats(r->pool, &kv);
    rc = set_tenants(r, kv.n_slabs * kv.slab_bytes);
    if (!rc) rc = rt_tenants_init(&r->tenants, (uint32_t)cfg->n_tenants);
    return rc ? cn_fail(err, rc, "the tenants cannot be set up") : 0;
}

int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err)
{
    struct rt *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    r->cfg = opts->cfg;
    r->metrics = opts->metrics;
    r->created_s = cn_wall_s();
    r->table_size = 64;
    r->table = cn_calloc(r->table_size, sizeof *r->table);
    r->model_id = strdup(opts->model_id);
    r->stop = cn_calloc(1, sizeof *r->stop); /* made now, so that stopping cannot fail */
    if (r->stop) r->stop->kind = CMD_STOP;
    int rc = r->table && r->model_id && r->stop ? 0 : cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    if (!rc && !(rc = cn_mailbox_init(&r->inbox, NULL, NULL))) r->mailbox_ready = true;
    if (!rc) rc = open_model(r, opts, err);
    if (!rc) rc = make_pool(r, err);
    if (!rc) rc = make_scheduler(r, err);
    if (!rc) {
        const struct kr_exec_info *x = eng_model_info(r->model)->exec;
        rt_watch_init(&r->watch, x->weight_bytes + x->expert_bytes * x->n_experts, cn_now_ns());
        if (pthread_create(&r->thread, NULL, engine_main, r))
            rc = cn_fail(err, CN_ENOMEM, "the engine thread cannot be started");
        else
            r->thread_started = true;
    }
    if (rc) {
        rt_free(r);
        return rc;
    }
    pthread_setname_np(r->thread, "engine");
    *out = r;
    return 0;
}

void rt_free(struct rt *r)
{
    if (!r) return;
    atomic_store(&r->draining, true);
    if (r->thread_started) {
        cn_mailbox_post(&r->inbox, &r->stop->msg);
        r->stop = NULL; /* freed by the engine thread */
        pthread_join(r->thread, NULL);
    }
    sch_free(r->sch);
    rt_stepper_fini(&r->stepper);
    rt_tenants_fini(&r->tenants);
    kv_pool_free(r->pool);
    kr_kv_mem_free(r->kv_mem);
    eng_model_unref(r->model);
    kr_device_free(r->device);
    if (r->mailbox_ready) cn_mailbox_fini(&r->inbox);
    free(r->stop);
    free(r->table);
    free(r->model_id);
    free(r);
}
