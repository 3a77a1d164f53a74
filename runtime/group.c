/* An engine group: its thread takes messages, iterates the scheduler, keeps gauges and progress. */
#include "runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MODEL_NS 500000000u

/* ---- live requests, by (mailbox, caller's id) ------------------------------------------------ */

static size_t slot_of(const struct rt_group *g, const struct cn_mailbox *reply, uint64_t id)
{
    uint64_t h = ((uint64_t)(uintptr_t)reply ^ id * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (size_t)(h >> 32) & (g->table_size - 1);
}

static struct rt_req *find(const struct rt_group *g, const struct cn_mailbox *reply, uint64_t id)
{
    struct rt_req *q = g->table[slot_of(g, reply, id)];
    while (q && (q->q.reply != reply || q->q.id != id))
        q = q->next;
    return q;
}

static void remember(struct rt_group *g, struct rt_req *req)
{
    if (g->n_live >= g->table_size) { /* a table that cannot grow only gets longer chains */
        struct rt_req **old = g->table, **t = cn_calloc(g->table_size * 2, sizeof *t);
        size_t n = g->table_size;
        if (t) {
            g->table = t;
            g->table_size *= 2;
            for (size_t i = 0; i < n; i++)
                while (old[i]) {
                    struct rt_req *q = old[i];
                    old[i] = q->next;
                    size_t s = slot_of(g, q->q.reply, q->q.id);
                    q->next = g->table[s];
                    g->table[s] = q;
                }
            free(old);
        }
    }
    size_t s = slot_of(g, req->q.reply, req->q.id);
    req->next = g->table[s];
    g->table[s] = req;
    g->n_live++;
}

void rt_forget(struct rt_group *g, struct rt_req *req)
{
    struct rt_req **at = &g->table[slot_of(g, req->q.reply, req->q.id)];
    while (*at && *at != req)
        at = &(*at)->next;
    if (!*at) return;
    *at = req->next;
    g->n_live--;
}

/* ---- engine thread --------------------------------------------------------------------------- */

static void refuse(struct rt_group *g, struct rt_req *req, int code, const struct cn_error *err)
{
    struct rt_event *e = req->end;
    req->end = NULL;
    rt_event_fail(e, err);
    e->code = code;
    cn_metric_add(g->rt->metrics, CN_M_requests_refused, 1);
    cn_tenant_add(g->rt->metrics, cfg_slot(req->q.tenant), CN_TM_refused, 1);
    cn_mailbox_post(req->q.reply, &e->msg);
    rt_req_free(req, false);
    atomic_fetch_sub(&g->rt->in_flight, 1);
}

/* As the scheduler, which would refuse it too, but with the field and with bytes. */
static int fit(const struct rt_model *m, const struct rt_request *q, uint64_t *max_tokens,
               struct cn_error *err)
{
    struct rt_group *g = m->group;
    struct kv_stats kv;
    uint32_t rows = (uint32_t)g->rt->cfg->engine.max_batch_rows * g->stepper.depth;
    kv_pool_stats(g->pool, &kv);
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

static void submit(struct rt_group *g, struct rt_req *req)
{
    const struct rt_request *q = &req->q;
    struct cn_error err = {0};
    static const enum sch_class class[] = {[RT_INTERACTIVE] = SCH_INTERACTIVE,
                                           [RT_NORMAL] = SCH_NORMAL,
                                           [RT_BACKGROUND] = SCH_BACKGROUND};
    struct rt_event *accepted = rt_event_new(q->id, RT_EV_ACCEPTED, 0, NULL);
    struct sch_request s = {.tenant = cfg_slot(q->tenant),
                            .model = req->m->sch_model,
                            .adapter = q->adapter,
                            .class = class[q->priority],
                            .prompt = q->prompt,
                            .n_prompt = q->n_prompt,
                            .media = req->media,
                            .n_media = (uint32_t)q->n_media,
                            .marks = req->marks,
                            .n_marks = req->n_marks,
                            .max_new = q->max_tokens,
                            .n_choices = q->n,
                            .deadline_ns = q->deadline_ns,
                            .user = req};
    uint64_t wait_ns = (uint64_t)(g->rt->cfg->scheduler.queue_timeout_s * 1e9);
    if (wait_ns) s.queue_deadline_ns = cn_now_ns() + wait_ns;
    if (q->embed) s.flags = embed_flags(req->m) | SCH_NO_OUTPUT;
    if (q->prompt_logprobs) s.flags = SCH_PROMPT_LOGITS | SCH_NO_CACHE_READ;
    int rc = accepted ? 0 : cn_fail(&err, CN_ENOMEM, "out of memory for a request");
    if (!rc && g->stopping) rc = cn_fail(&err, CN_EDRAIN, "the server is shutting down");
    if (!rc && atomic_load(&g->rt->lost))
        rc = cn_fail(&err, CN_EDEVICE, "%s", cn_err_info(CN_EDEVICE)->text);
    if (!rc && (atomic_load(&g->rt->failed) || model_broken(req->m)))
        rc = cn_fail(&err, CN_ENOTREADY, "the model's file changed while it was served");
    if (!rc) rc = rt_tenants_check(g, q->tenant, &err);
    if (!rc) rc = fit(req->m, q, &s.max_new, &err);
    if (!rc) rc = sch_submit(g->sch, &s, &req->sch_id, &err);
    if ((rc == CN_EQUEUE || rc == CN_ERATE) && sch_let_in(g->sch))
        rc = sch_submit(g->sch, &s, &req->sch_id, &err);
    if (rc) {
        rt_event_free(accepted);
        refuse(g, req, rc, &err);
        return;
    }
    remember(g, req);
    if (q->guide && q->guide->limit)
        q->guide->limit(q->guide->arg, sch_max_new(g->sch, req->sch_id));
    if (q->guide && rt_pace_waits(&g->pace, q->tenant)) rt_req_pause(req, RT_PAUSE_PACE, true);
    rt_tenant_changed(g, cfg_slot(q->tenant));
    cn_tenant_add(g->rt->metrics, cfg_slot(q->tenant), CN_TM_prompt_tokens, q->n_prompt);
    cn_mailbox_post(q->reply, &accepted->msg);
}

/* error: the code that the requests end with; 0: as cancelled ones. of: NULL = of every model. */
static void cancel_all(struct rt_group *g, const struct rt_model *of, int error)
{
    for (size_t i = 0; i < g->table_size; i++)
        for (struct rt_req *req = g->table[i]; req; req = req->next) {
            if (of && req->m != of) continue;
            if (error) req->error = error;
            sch_cancel(g->sch, req->sch_id);
        }
}

void rt_cancel_those(struct rt_group *g, uint64_t tenant, uint64_t key, int code)
{
    for (size_t i = 0; i < g->table_size; i++)
        for (struct rt_req *req = g->table[i]; req; req = req->next) {
            const struct rt_tenant *v = &g->tenants.v[cfg_slot(req->q.tenant)];
            bool theirs = tenant == UINT64_MAX ? v->leaving : req->q.tenant == tenant;
            if (!theirs || (key && req->q.key != key)) continue;
            if (!req->error) req->error = code;
            sch_cancel(g->sch, req->sch_id);
        }
}

/* One of several is given up, and may be loaded again; the one model ends the daemon. */
static void give_up(struct rt_group *g, struct rt_model *m)
{
    if (!g->rt->several) atomic_store(&g->rt->failed, true);
    pthread_mutex_lock(&g->rt->models_lock);
    m->broken = true;
    cn_fail(&m->error, CN_ENOTREADY, RT_FILE_CHANGED, m->id);
    pthread_mutex_unlock(&g->rt->models_lock);
    cn_log(CN_LOG_ERROR, "engine", "%s: the model's file changed while it was served%s", m->id,
           g->rt->several ? "" : "; restart to load it again");
    cancel_all(g, m, CN_ENOTREADY);
    if (g->rt->several) rt_loader_poke(g);
}

void rt_device_lost(struct rt_group *g)
{
    const char *why = "";
    if (g->lost) return;
    g->lost = true;
    atomic_store(&g->rt->failed, true);
    atomic_store(&g->rt->lost, true);
    kr_device_lost(g->device, &why);
    cn_log(CN_LOG_ERROR, "engine", "the device%s%s is lost: %s", g->rt->n_groups > 1 ? " of " : "",
           g->rt->n_groups > 1 ? cfg_group_name(g->rt->cfg, g->index) : "", why);
    cancel_all(g, NULL, CN_EDEVICE);
}

/* If another group's device is lost, the daemon ends, and so do this group's requests, with
 * CN_EDEVICE. */
static void check_lost(struct rt_group *g)
{
    if (g->lost || !atomic_load(&g->rt->lost)) return;
    g->lost = true;
    cancel_all(g, NULL, CN_EDEVICE);
}

/* A model file that was cut short or rewritten gives wrong numbers, not a crash. What was handed
 * out since the last look may be made of them: at most CHECK_MODEL_NS of it, and its request ends
 * with an error. */
static void check_models(struct rt_group *g)
{
    uint64_t now = cn_now_ns();
    if (now - g->checked_ns < CHECK_MODEL_NS) return;
    g->checked_ns = now;
    for (size_t i = 0; i < g->n_models; i++) {
        struct rt_model *m = g->models[i];
        if (!m->in_sch || eng_model_intact(m->model) || model_broken(m)) continue;
        give_up(g, m);
    }
}

static void answer(struct rt_model *m)
{
    m->answer = m->cmd.kind == RT_CMD_ATTACH ? rt_attach(m, &m->answer_error) : rt_detach(m);
    struct rt_group *g = m->group;
    if (m->cmd.kind == RT_CMD_DETACH) kr_draw_rooms_trim(&g->stepper.rooms);
    atomic_store(&m->answered, true); /* from here on the loader may do with m as it likes */
    rt_loader_poke(g);
}

void rt_req_pause(struct rt_req *req, enum rt_pause why, bool paused)
{
    unsigned now = paused ? req->paused | (unsigned)why : req->paused & ~(unsigned)why;
    if (!now != !req->paused) sch_pause(req->group->sch, req->sch_id, now != 0);
    req->paused = (uint8_t)now;
}

static void handle(struct rt_group *g, struct rt_cmd *c)
{
    struct rt_req *req;
    switch (c->kind) {
    case RT_CMD_SUBMIT:
        submit(g, c->req);
        break;
    case RT_CMD_CANCEL:
        if ((req = find(g, c->reply, c->id))) sch_cancel(g->sch, req->sch_id);
        break;
    case RT_CMD_PAUSE:
        if ((req = find(g, c->reply, c->id))) rt_req_pause(req, RT_PAUSE_READER, c->paused);
        break;
    case RT_CMD_ATTACH:
    case RT_CMD_DETACH:
        answer(c->m);
        return;
    case RT_CMD_TENANTS:
        rt_tenants_apply(g, c->tenants);
        break;
    case RT_CMD_CANCEL_OF:
        rt_cancel_those(g, c->tenant, c->key, c->code);
        break;
    case RT_CMD_DROP_CACHE:
        if (!rt_tenants_check(g, c->tenant, NULL)) kv_pool_drop_cache(g->pool, cfg_slot(c->tenant));
        break;
    case RT_CMD_LEASE:
        if (!rt_tenants_check(g, c->tenant, NULL))
            sch_tenant_lease(g->sch, cfg_slot(c->tenant), c->tokens); /* known: needs no memory */
        break;
    case RT_CMD_MASK:
        rt_aside_done(&g->stepper, c);
        return;
    case RT_CMD_STOP:
        g->stopping = true;
        cancel_all(g, NULL, 0);
        break;
    }
    free(c);
}

/* Adds the change of this group's part to a gauge that is a sum over the groups. */
static void shift(struct rt_group *g, enum cn_metric id, double *told, uint64_t now)
{
    cn_metric_shift(g->rt->metrics, id, (double)now - *told);
    *told = (double)now;
}

static void tell_blocks(struct rt_group *g, const struct kv_stats *kv)
{
    static const enum cn_metric sum[] = {[KV_FREE] = CN_M_kv_blocks_free,
                                         [KV_FILLING] = CN_M_kv_blocks_filling,
                                         [KV_COPYING] = CN_M_kv_blocks_copying,
                                         [KV_READY] = CN_M_kv_blocks_ready,
                                         [KV_CACHED] = CN_M_kv_blocks_cached};
    static const enum cn_group_metric own[] = {[KV_FREE] = CN_GM_kv_blocks_free,
                                               [KV_FILLING] = CN_GM_kv_blocks_filling,
                                               [KV_COPYING] = CN_GM_kv_blocks_copying,
                                               [KV_READY] = CN_GM_kv_blocks_ready,
                                               [KV_CACHED] = CN_GM_kv_blocks_cached};
    for (size_t i = 0; i < CN_ARRAY_LEN(sum); i++) {
        shift(g, sum[i], &g->told.blocks[i], kv->blocks[i]);
        cn_group_set(g->rt->metrics, g->index, own[i], kv->blocks[i]);
    }
}

static void tell_requests(struct rt_group *g, const struct sch_stats *s)
{
    uint64_t waiting = s->waiting - CN_MIN(s->paused, s->waiting);
    shift(g, CN_M_requests_running, &g->told.running, s->running);
    shift(g, CN_M_requests_waiting, &g->told.waiting, waiting);
    shift(g, CN_M_requests_paused, &g->told.paused, s->paused);
    cn_group_set(g->rt->metrics, g->index, CN_GM_running, s->running);
    cn_group_set(g->rt->metrics, g->index, CN_GM_waiting, waiting);
}

static void update_gauges(struct rt_group *g)
{
    struct cn_metrics *m = g->rt->metrics;
    struct kv_stats kv;
    struct sch_stats s, *l = &g->last_stats;
    kv_pool_stats(g->pool, &kv);
    sch_stats(g->sch, &s);
    s.generated -= g->embedded;
    tell_blocks(g, &kv);
    cn_metric_set(m, CN_M_engine_last_step_seconds, (double)s.last_step_ns * 1e-9);
    if (s.steps - s.in_flight > l->steps - l->in_flight) { /* one was collected */
        cn_metric_observe(m, CN_H_step, s.last_step_ns);
        g->stepper.model->base_ns = s.step_base_ns;
        g->stepper.model->row_ns = s.step_row_ns;
    }
    cn_metric_add(m, CN_M_steps, s.steps - l->steps);
    cn_group_add(m, g->index, CN_GM_steps, s.steps - l->steps);
    cn_group_add(m, g->index, CN_GM_generated, s.generated - l->generated);
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
    cn_metric_add(m, CN_M_saves, s.saved - l->saved);
    cn_metric_add(m, CN_M_restores, s.restored - l->restored);
    cn_metric_add(m, CN_M_evictions, kv.evictions - g->last_evictions);
    g->last_evictions = kv.evictions;
    rt_tenants_tell(g);
    /* Last, and first on the page: one that shows that a request has ended shows all that it
     * did. */
    cn_metric_add(m, CN_M_requests_ok, s.ended_ok - l->ended_ok);
    cn_metric_add(m, CN_M_requests_error, s.ended_error - l->ended_error);
    cn_metric_add(m, CN_M_requests_cancelled, s.ended_cancelled - l->ended_cancelled);
    tell_requests(g, &s);
    atomic_store(&g->retry_after_s, sch_retry_after_s(g->sch));
    *l = s;
}

static void *engine_main(void *arg)
{
    struct rt_group *g = arg;
    for (;;) {
        rt_watch_begin(&g->watch, cn_now_ns());
        check_models(g);
        check_lost(g);
        struct cn_msg *list = cn_mailbox_take(&g->inbox);
        while (list) {
            struct rt_cmd *c = CN_CONTAINER(list, struct rt_cmd, msg);
            list = list->next;
            handle(g, c);
        }
        if (g->tenants.next_up) rt_tenants_apply(g, g->tenants.next_up);
        rt_exchange_listen(g);
        uint64_t due = rt_pace(g, cn_now_ns());
        bool more = sch_iterate(g->sch);
        rt_exchange_tell(g);
        update_gauges(g);
        more |= rt_tenants_leave(g, more);
        if (more) continue;
        if (g->stopping && !g->n_live && !g->stepper.n_aside) return NULL;
        if (!g->n_live) kr_draw_rooms_trim(&g->stepper.rooms);
        rt_watch_idle(&g->watch);
        uint64_t wake = sch_next_wake(g->sch), now = cn_now_ns();
        wake = CN_MIN(wake, due);
        uint64_t wait = wake == UINT64_MAX ? UINT64_MAX : wake > now ? wake - now : 0;
        cn_mailbox_wait(&g->inbox, wait);
    }
}

/* ---- start and end --------------------------------------------------------------------------- */

int rt_send(struct rt_group *g, struct rt_cmd c)
{
    struct rt_cmd *m = cn_malloc_array(1, sizeof *m);
    if (!m) return CN_ENOMEM;
    *m = c;
    cn_mailbox_post(&g->inbox, &m->msg);
    return 0;
}

int rt_send_all(struct rt *r, struct rt_cmd c)
{
    struct rt_cmd *all[CFG_MAX_GROUPS];
    uint32_t n = 0;
    while (n < r->n_groups && (all[n] = cn_malloc_array(1, sizeof *all[n])))
        *all[n++] = c;
    if (n < r->n_groups) {
        while (n)
            free(all[--n]);
        return CN_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (c.tenants) cfg_tenants_ref(c.tenants);
        cn_mailbox_post(&r->groups[i].inbox, &all[i]->msg);
    }
    return 0;
}

int rt_group_init(struct rt_group *g, struct rt *r, uint32_t index, struct cn_error *err)
{
    int rc = 0;
    g->rt = r;
    g->index = index;
    g->table_size = 64;
    g->table = cn_calloc(g->table_size, sizeof *g->table);
    g->stop = cn_calloc(1, sizeof *g->stop); /* made now, so that stopping cannot fail */
    if (g->stop) g->stop->kind = RT_CMD_STOP;
    g->kept = rt_kept_new();
    eng_parts_init(&g->token_text);
    rt_stepper_init(&g->stepper, g);
    if (!g->table || !g->stop || !g->kept || rt_heard_init(&g->heard))
        rc = cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    if (!rc && !(rc = cn_mailbox_init(&g->inbox, NULL, NULL))) g->mailbox_ready = true;
    if (!rc && !(rc = cn_mailbox_init(&g->loader_inbox, NULL, NULL))) g->loader_mail_ready = true;
    return rc;
}

int rt_group_start(struct rt_group *g, struct cn_error *err)
{
    rt_watch_init(&g->watch, 0, cn_now_ns());
    update_gauges(g); /* so that /metrics shows all of the memory from the first answer on */
    if (pthread_create(&g->thread, NULL, engine_main, g))
        return cn_fail(err, CN_ENOMEM, "the engine thread cannot be started");
    g->thread_started = true;
    char name[16] = "engine";
    if (g->rt->n_groups > 1) snprintf(name, sizeof name, "engine-%u", g->index);
    pthread_setname_np(g->thread, name);
    return g->rt->several ? rt_loader_start(g, err) : 0;
}

void rt_group_stop(struct rt_group *g)
{
    rt_loader_stop(g);
    if (!g->thread_started) return;
    cn_mailbox_post(&g->inbox, &g->stop->msg);
    g->stop = NULL; /* freed by the engine thread */
}

void rt_group_join(struct rt_group *g)
{
    if (g->thread_started) pthread_join(g->thread, NULL);
    g->thread_started = false;
}

void rt_group_fini(struct rt_group *g)
{
    sch_free(g->sch);
    rt_stepper_fini(&g->stepper);
    eng_parts_fini(&g->token_text);
    rt_kept_close(g->kept);
    rt_tenants_fini(&g->tenants);
    rt_pace_fini(&g->pace);
    rt_heard_fini(&g->heard);
    kv_pool_free(g->pool);
    rt_host_fini(g);
    kr_kv_mem_free(g->kv_mem);
    for (size_t i = 0; i < g->n_models; i++)
        eng_model_unref(g->models[i]->model);
    free(g->models);
    kr_device_free(g->device);
    if (g->loader_mail_ready) {
        cn_mailbox_take(&g->loader_inbox); /* a poke that came after the loader */
        cn_mailbox_fini(&g->loader_inbox);
    }
    if (g->mailbox_ready) cn_mailbox_fini(&g->inbox);
    free(g->stop);
    free(g->table);
}
