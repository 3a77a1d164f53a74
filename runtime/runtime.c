/* The engine thread: takes messages, iterates the scheduler, keeps gauges and progress. */
#include "runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MODEL_NS 500000000u

/* ---- live requests, by (mailbox, caller's id) ------------------------------------------------ */

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

/* ---- engine thread --------------------------------------------------------------------------- */

static void refuse(struct rt *r, struct rt_req *req, int code, const struct cn_error *err)
{
    struct rt_event *e = req->end;
    req->end = NULL;
    rt_event_fail(e, err);
    e->code = code;
    cn_metric_add(r->metrics, CN_M_requests_refused, 1);
    cn_tenant_add(r->metrics, cfg_slot(req->q.tenant), CN_TM_refused, 1);
    cn_mailbox_post(req->q.reply, &e->msg);
    rt_req_free(req, false);
    atomic_fetch_sub(&r->in_flight, 1);
}

/* As the scheduler, which would refuse it too, but with the field and with bytes. */
static int fit(const struct rt_model *m, const struct rt_request *q, uint64_t *max_tokens,
               struct cn_error *err)
{
    struct rt *r = m->rt;
    struct kv_stats kv;
    uint32_t rows = (uint32_t)r->cfg->engine.max_batch_rows * r->stepper.depth;
    kv_pool_stats(r->pool, &kv);
    return rt_memory_fit(q, kv_space_max_tokens(m->space, cfg_slot(q->tenant), rows),
                         (uint64_t)kv.n_slabs * kv.slab_bytes, max_tokens, err);
}

static bool model_broken(struct rt_model *m)
{
    pthread_mutex_lock(&m->rt->models_lock);
    bool broken = m->broken;
    pthread_mutex_unlock(&m->rt->models_lock);
    return broken;
}

/* The last row of a causal model is as good from the prefix cache; every other way of pooling looks
 * at rows that a cached block would hide, and what encoders compute holds for one prompt only. */
static uint32_t embed_flags(const struct rt_model *m)
{
    const struct eng_model_info *info = eng_model_info(m->model);
    uint32_t flags = SCH_PROMPT_LOGITS | SCH_NO_CACHE_READ | SCH_NO_CACHE_WRITE;
    if (rt_reads_whole(info->exec)) return flags | SCH_ONE_STEP;
    return info->pooling == ENG_POOL_LAST ? 0 : flags;
}

static void submit(struct rt *r, struct rt_req *req)
{
    const struct rt_request *q = &req->q;
    struct cn_error err = {0};
    static const enum sch_class class[] = {[RT_INTERACTIVE] = SCH_INTERACTIVE,
                                           [RT_NORMAL] = SCH_NORMAL,
                                           [RT_BACKGROUND] = SCH_BACKGROUND};
    struct rt_event *accepted = rt_event_new(q->id, RT_EV_ACCEPTED, 0, NULL);
    struct sch_request s = {.tenant = cfg_slot(q->tenant),
                            .model = req->m->sch_model,
                            .class = class[q->priority],
                            .prompt = q->prompt,
                            .n_prompt = q->n_prompt,
                            .marks = req->marks,
                            .n_marks = req->n_marks,
                            .max_new = q->max_tokens,
                            .n_choices = q->n,
                            .deadline_ns = q->deadline_ns,
                            .user = req};
    uint64_t wait_ns = (uint64_t)(r->cfg->scheduler.queue_timeout_s * 1e9);
    if (wait_ns) s.queue_deadline_ns = cn_now_ns() + wait_ns;
    if (q->embed) s.flags = embed_flags(req->m) | SCH_NO_OUTPUT;
    if (q->prompt_logprobs) s.flags = SCH_PROMPT_LOGITS | SCH_NO_CACHE_READ;
    int rc = accepted ? 0 : cn_fail(&err, CN_ENOMEM, "out of memory for a request");
    if (!rc && r->stopping) rc = cn_fail(&err, CN_EDRAIN, "the server is shutting down");
    if (!rc && (atomic_load(&r->failed) || model_broken(req->m)))
        rc = cn_fail(&err, CN_ENOTREADY, "the model's file changed while it was served");
    if (!rc) rc = rt_tenants_check(r, q->tenant, &err);
    if (!rc) rc = fit(req->m, q, &s.max_new, &err);
    if (!rc) rc = sch_submit(r->sch, &s, &req->sch_id, &err);
    if ((rc == CN_EQUEUE || rc == CN_ERATE) && sch_let_in(r->sch))
        rc = sch_submit(r->sch, &s, &req->sch_id, &err);
    if (rc) {
        rt_event_free(accepted);
        refuse(r, req, rc, &err);
        return;
    }
    remember(r, req);
    rt_tenant_changed(r, cfg_slot(q->tenant));
    cn_tenant_add(r->metrics, cfg_slot(q->tenant), CN_TM_prompt_tokens, q->n_prompt);
    cn_mailbox_post(q->reply, &accepted->msg);
}

/* error: what the requests are told; 0 leaves it to the cancel. of: NULL = of every model. */
static void cancel_all(struct rt *r, const struct rt_model *of, int error)
{
    for (size_t i = 0; i < r->table_size; i++)
        for (struct rt_req *req = r->table[i]; req; req = req->next) {
            if (of && req->m != of) continue;
            if (error) req->error = error;
            sch_cancel(r->sch, req->sch_id);
        }
}

void rt_cancel_those(struct rt *r, uint64_t tenant, uint64_t key, int code)
{
    for (size_t i = 0; i < r->table_size; i++)
        for (struct rt_req *req = r->table[i]; req; req = req->next) {
            const struct rt_tenant *v = &r->tenants.v[cfg_slot(req->q.tenant)];
            bool theirs = tenant == UINT64_MAX ? v->leaving : req->q.tenant == tenant;
            if (!theirs || (key && req->q.key != key)) continue;
            if (!req->error) req->error = code;
            sch_cancel(r->sch, req->sch_id);
        }
}

/* One of several is given up, and may be loaded again; the one model ends the daemon. */
static void give_up(struct rt *r, struct rt_model *m)
{
    if (!r->several) atomic_store(&r->failed, true);
    pthread_mutex_lock(&r->models_lock);
    m->broken = true;
    cn_fail(&m->error, CN_ENOTREADY, "the file of the model %s changed while it was served", m->id);
    pthread_mutex_unlock(&r->models_lock);
    cn_log(CN_LOG_ERROR, "engine", "%s: the model's file changed while it was served%s", m->id,
           r->several ? "" : "; restart to load it again");
    cancel_all(r, m, CN_ENOTREADY);
    if (r->several) rt_loader_poke(r);
}

void rt_device_lost(struct rt *r)
{
    const char *why = "";
    if (atomic_exchange(&r->failed, true)) return;
    kr_device_lost(r->device, &why);
    cn_log(CN_LOG_ERROR, "engine", "the device is lost: %s", why);
    cancel_all(r, NULL, CN_EDEVICE);
}

/* A model file that was cut short or rewritten gives wrong numbers, not a crash. What was handed
 * out since the last look may be made of them: at most CHECK_MODEL_NS of it, and its request ends
 * with an error. */
static void check_models(struct rt *r)
{
    uint64_t now = cn_now_ns();
    if (now - r->checked_ns < CHECK_MODEL_NS) return;
    r->checked_ns = now;
    for (size_t i = 0; i < r->n_models; i++) {
        struct rt_model *m = &r->models[i];
        if (!m->in_sch || eng_model_intact(m->model) || model_broken(m)) continue;
        give_up(r, m);
    }
}

static void answer(struct rt_model *m)
{
    m->answer = m->cmd.kind == RT_CMD_ATTACH ? rt_attach(m, &m->answer_error) : rt_detach(m);
    struct rt *r = m->rt;
    if (m->cmd.kind == RT_CMD_DETACH) kr_draw_rooms_trim(&r->stepper.rooms);
    atomic_store(&m->answered, true); /* from here on the loader may do with m as it likes */
    rt_loader_poke(r);
}

static void handle(struct rt *r, struct rt_cmd *c)
{
    struct rt_req *req;
    switch (c->kind) {
    case RT_CMD_SUBMIT:
        submit(r, c->req);
        break;
    case RT_CMD_CANCEL:
        if ((req = find(r, c->reply, c->id))) sch_cancel(r->sch, req->sch_id);
        break;
    case RT_CMD_PAUSE:
        if ((req = find(r, c->reply, c->id))) sch_pause(r->sch, req->sch_id, c->paused);
        break;
    case RT_CMD_ATTACH:
    case RT_CMD_DETACH:
        answer(c->m);
        return;
    case RT_CMD_TENANTS:
        rt_tenants_apply(r, c->tenants);
        break;
    case RT_CMD_CANCEL_OF:
        rt_cancel_those(r, c->tenant, c->key, c->code);
        break;
    case RT_CMD_DROP_CACHE:
        if (!rt_tenants_check(r, c->tenant, NULL))
            kv_pool_drop_cache(r->pool, cfg_slot(c->tenant));
        break;
    case RT_CMD_LEASE:
        if (!rt_tenants_check(r, c->tenant, NULL))
            sch_tenant_lease(r->sch, cfg_slot(c->tenant), c->tokens); /* known: needs no memory */
        break;
    case RT_CMD_STOP:
        r->stopping = true;
        cancel_all(r, NULL, 0);
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
    s.generated -= r->embedded;
    cn_metric_set(m, CN_M_kv_blocks_free, (double)kv.blocks[KV_FREE]);
    cn_metric_set(m, CN_M_kv_blocks_filling, (double)kv.blocks[KV_FILLING]);
    cn_metric_set(m, CN_M_kv_blocks_copying, (double)kv.blocks[KV_COPYING]);
    cn_metric_set(m, CN_M_kv_blocks_ready, (double)kv.blocks[KV_READY]);
    cn_metric_set(m, CN_M_kv_blocks_cached, (double)kv.blocks[KV_CACHED]);
    cn_metric_set(m, CN_M_engine_last_step_seconds, (double)s.last_step_ns * 1e-9);
    if (s.steps - s.in_flight > l->steps - l->in_flight) { /* one was collected */
        cn_metric_observe(m, CN_H_step, s.last_step_ns);
        r->stepper.model->base_ns = s.step_base_ns;
        r->stepper.model->row_ns = s.step_row_ns;
    }
    cn_metric_add(m, CN_M_steps, s.steps - l->steps);
    cn_metric_add(m, CN_M_prompt_tokens, s.prompt_tokens - l->prompt_tokens);
    cn_metric_add(m, CN_M_prompt_tokens_computed, s.prompt_computed - l->prompt_computed);
    cn_metric_add(m, CN_M_prompt_tokens_cached, s.prompt_cached - l->prompt_cached);
    cn_metric_add(m, CN_M_tokens_recomputed, s.recomputed - l->recomputed);
    cn_metric_add(m, CN_M_tokens_generated, s.generated - l->generated);
    cn_metric_add(m, CN_M_tokens_cancelled, s.cancelled_tokens - l->cancelled_tokens);
    cn_metric_add(m, CN_M_tokens_wasted, s.wasted - l->wasted);
    cn_metric_add(m, CN_M_drafts_right, s.drafts_right - l->drafts_right);
    cn_metric_add(m, CN_M_drafts_wrong,
                  s.drafted - l->drafted - (s.drafts_right - l->drafts_right));
    cn_metric_add(m, CN_M_preemptions, s.preemptions - l->preemptions);
    cn_metric_add(m, CN_M_evictions, kv.evictions - r->last_evictions);
    r->last_evictions = kv.evictions;
    rt_tenants_tell(r);
    /* Last, and first on the page: one that shows that a request has ended shows all that it did. */
    cn_metric_add(m, CN_M_requests_ok, s.ended_ok - l->ended_ok);
    cn_metric_add(m, CN_M_requests_error, s.ended_error - l->ended_error);
    cn_metric_add(m, CN_M_requests_cancelled, s.ended_cancelled - l->ended_cancelled);
    cn_metric_set(m, CN_M_requests_running, (double)s.running);
    cn_metric_set(m, CN_M_requests_waiting, (double)(s.waiting - CN_MIN(s.paused, s.waiting)));
    cn_metric_set(m, CN_M_requests_paused, (double)s.paused);
    atomic_store(&r->retry_after_s, sch_retry_after_s(r->sch));
    *l = s;
}

static void *engine_main(void *arg)
{
    struct rt *r = arg;
    for (;;) {
        rt_watch_begin(&r->watch, cn_now_ns());
        check_models(r);
        struct cn_msg *list = cn_mailbox_take(&r->inbox);
        while (list) {
            struct rt_cmd *c = CN_CONTAINER(list, struct rt_cmd, msg);
            list = list->next;
            handle(r, c);
        }
        if (r->tenants.next_up) rt_tenants_apply(r, r->tenants.next_up);
        bool more = sch_iterate(r->sch);
        update_gauges(r);
        more |= rt_tenants_leave(r, more);
        if (more) continue;
        if (r->stopping && !r->n_live) return NULL;
        if (!r->n_live) kr_draw_rooms_trim(&r->stepper.rooms);
        rt_watch_idle(&r->watch);
        uint64_t wake = sch_next_wake(r->sch), now = cn_now_ns();
        uint64_t wait = wake == UINT64_MAX ? UINT64_MAX : wake > now ? wake - now : 0;
        cn_mailbox_wait(&r->inbox, wait);
    }
}

/* ---- from other threads ---------------------------------------------------------------------- */

int rt_send(struct rt *r, struct rt_cmd c)
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
    rc = rt_send(r, (struct rt_cmd){.kind = RT_CMD_SUBMIT, .req = req});
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
    if (rt_send(r, (struct rt_cmd){.kind = RT_CMD_CANCEL, .reply = reply, .id = id}))
        cn_log(CN_LOG_ERROR, "engine", "out of memory: a cancel was not sent");
}

void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused)
{
    if (rt_send(r,
                 (struct rt_cmd){.kind = RT_CMD_PAUSE, .reply = reply, .id = id, .paused = paused}))
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

void rt_health(const struct rt *r, struct rt_health *out)
{
    struct rt *m = (struct rt *)r;
    out->draining = atomic_load(&m->draining);
    out->failed = atomic_load(&m->failed);
    rt_watch_read(&m->watch, cn_now_ns(), out);
}

/* ---- start and end --------------------------------------------------------------------------- */

/* A runtime that knows its models' names, without device and threads. *out is to be freed, however
 * far this came. */
static int make(const struct rt_opts *opts, struct rt **out, struct cn_error *err)
{
    struct rt *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    *out = r;
    r->cfg = opts->cfg;
    r->metrics = opts->metrics;
    r->created_s = cn_wall_s();
    r->table_size = 64;
    r->table = cn_calloc(r->table_size, sizeof *r->table);
    r->stop = cn_calloc(1, sizeof *r->stop); /* made now, so that stopping cannot fail */
    if (r->stop) r->stop->kind = RT_CMD_STOP;
    r->kept = rt_kept_new();
    rt_stepper_init(&r->stepper, r); /* rt_free ends it, however far this comes */
    int rc = 0;
    if (!r->table || !r->stop || !r->kept)
        rc = cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    if (!rc && !(rc = cn_mailbox_init(&r->inbox, NULL, NULL))) r->mailbox_ready = true;
    if (!rc && !(rc = cn_mailbox_init(&r->loader_inbox, NULL, NULL))) r->loader_mail_ready = true;
    if (!rc && opts->tenants)
        r->first_tenants = cfg_tenants_ref(opts->tenants);
    else if (!rc)
        rc = cfg_tenants_of(r->cfg, &r->first_tenants, err);
    return rc ? rc : rt_models_init(r, opts, err);
}

int rt_weigh(const struct rt_opts *opts, struct rt_weights *out, struct rt_model_weight *each,
             struct cn_error *err)
{
    struct rt *r = NULL;
    int rc = make(opts, &r, err);
    if (!rc) rc = rt_weigh_all(r, out, each, err);
    rt_free(r);
    return rc;
}

int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err)
{
    struct rt *r = NULL;
    int rc = make(opts, &r, err);
    if (!rc) rc = rt_open_all(r, opts, err);
    if (!rc) {
        rt_watch_init(&r->watch, 0, cn_now_ns());
        update_gauges(r); /* who asks as soon as it answers is told of all of the memory */
        if (pthread_create(&r->thread, NULL, engine_main, r))
            rc = cn_fail(err, CN_ENOMEM, "the engine thread cannot be started");
        else
            r->thread_started = true;
    }
    if (!rc) pthread_setname_np(r->thread, "engine");
    if (!rc && r->several) rc = rt_loader_start(r, err);
    if (rc) {
        rt_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void rt_free(struct rt *r)
{
    if (!r) return;
    atomic_store(&r->draining, true);
    rt_loader_stop(r);
    if (r->thread_started) {
        cn_mailbox_post(&r->inbox, &r->stop->msg);
        r->stop = NULL; /* freed by the engine thread */
        pthread_join(r->thread, NULL);
    }
    sch_free(r->sch);
    rt_stepper_fini(&r->stepper);
    eng_parts_fini(&r->token_text);
    rt_kept_close(r->kept);
    cfg_tenants_unref(r->first_tenants);
    rt_tenants_fini(&r->tenants);
    kv_pool_free(r->pool);
    kr_kv_mem_free(r->kv_mem);
    rt_models_fini(r);
    kr_device_free(r->device);
    if (r->loader_mail_ready) {
        cn_mailbox_take(&r->loader_inbox); /* a poke that came after the loader */
        cn_mailbox_fini(&r->loader_inbox);
    }
    if (r->mailbox_ready) cn_mailbox_fini(&r->inbox);
    free(r->stop);
    free(r->table);
    free(r);
}
