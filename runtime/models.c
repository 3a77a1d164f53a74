/* The table of models: which requests hold a model, which wait for one, and the events that
 * these get. Any thread. Invariant, under models_lock: a held model (uses > 0) is loaded and
 * stays loaded; each entry of `waits` gets exactly one event, or was taken out before it. */
#include "runtime/rt.h"

#include <stdlib.h>
#include <string.h>

static void lock(struct rt *r)
{
    pthread_mutex_lock(&r->models_lock);
}

static void unlock(struct rt *r)
{
    pthread_mutex_unlock(&r->models_lock);
}

/* ---- the list -------------------------------------------------------------------------------- */

static int copy_text(const char *from, char **to)
{
    *to = from ? strdup(from) : NULL;
    return from && !*to ? CN_ENOMEM : 0;
}

static int init_one(struct rt *r, uint32_t i, const struct rt_model_opts *o, struct cn_error *err)
{
    struct rt_model *m = &r->models[i];
    m->rt = r;
    m->group = &r->groups[o->group];
    m->index = i;
    m->only = RT_NOBODY;
    m->asked_context = o->context;
    m->kv_type = o->kv_type;
    m->tools_fallback = o->tools_fallback;
    m->pin = o->pin;
    m->preload = o->preload;
    if (copy_text(o->id, &m->id) || copy_text(o->path, &m->path) ||
        copy_text(o->chat_template, &m->chat_template))
        return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    int rc = cfg_sampling_read(o->sampling, &m->asked_sampling, err);
    if (rc) cn_error_wrap(err, "the sampling of %s", m->id);
    return rc;
}

int rt_models_init(struct rt *r, const struct rt_opts *o, struct cn_error *err)
{
    const struct cfg *c = r->cfg;
    struct rt_model_opts one = {.id = o->model_id,
                                .path = o->model_path,
                                .chat_template = c->model.chat_template,
                                .context = (uint64_t)c->model.context,
                                .kv_type = c->model.kv_type,
                                .sampling = c->model.sampling,
                                .tools_fallback = c->model.tools_fallback,
                                .pin = true,
                                .preload = true};
    const struct rt_model_opts *all = o->n_models ? o->models : &one;
    size_t n = CN_MAX(o->n_models, (size_t)1);
    if (n > RT_MAX_MODELS)
        return cn_fail(err, CN_ELIMIT, "%zu models: at most %d can be served", n, RT_MAX_MODELS);
    for (size_t i = 0; i < n; i++)
        cn_assert(all[i].group < r->n_groups);
    if (pthread_mutex_init(&r->models_lock, NULL))
        return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    r->lock_ready = true;
    r->several = o->n_models > 0;
    r->models = cn_calloc(n, sizeof *r->models);
    if (!r->models || rt_stay_set(r, r->first_tenants))
        return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    for (uint32_t i = 0; i < r->n_groups; i++)
        if (!(r->groups[i].models = cn_calloc(n, sizeof *r->groups[i].models)))
            return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    for (; r->n_models < n; r->n_models++) {
        struct rt_model *m = &r->models[r->n_models];
        int rc = init_one(r, (uint32_t)r->n_models, &all[r->n_models], err);
        if (!rc) {
            m->group->models[m->group->n_models++] = m;
            continue;
        }
        r->n_models++;
        return rc;
    }
    rt_model_set_state(&r->models[0], RT_UNLOADED);
    return 0;
}

void rt_models_fini(struct rt *r)
{
    for (size_t i = 0; i < r->n_models; i++) {
        struct rt_model *m = &r->models[i];
        free(m->id);
        free(m->path);
        free(m->chat_template);
    }
    free(r->models);
    free(r->payers);
    if (r->lock_ready) pthread_mutex_destroy(&r->models_lock);
}

void rt_model_set_state(struct rt_model *m, enum rt_model_state state)
{
    static const enum cn_metric gauge[RT_N_MODEL_STATES] = {[RT_UNLOADED] = CN_M_models_unloaded,
                                                            [RT_LOADING] = CN_M_models_loading,
                                                            [RT_LOADED] = CN_M_models_loaded,
                                                            [RT_FAILED] = CN_M_models_failed};
    uint32_t count[RT_N_MODEL_STATES] = {0};
    struct rt *r = m->rt;
    m->state = state;
    for (size_t i = 0; i < r->n_models; i++)
        count[r->models[i].state]++;
    for (int i = 0; i < RT_N_MODEL_STATES; i++)
        cn_metric_set(r->metrics, gauge[i], count[i]);
    cn_model_set(r->metrics, m->index, CN_MM_loaded, state == RT_LOADED);
    cn_model_set(r->metrics, m->index, CN_MM_bytes, m->bytes);
}

size_t rt_n_models(const struct rt *r)
{
    return r->n_models;
}

struct rt_model *rt_model_at(const struct rt *r, size_t i)
{
    return &r->models[i];
}

uint32_t rt_model_number(const struct rt_model *m)
{
    return m->index;
}

struct rt_model *rt_model_find(const struct rt *r, const char *name, size_t n)
{
    for (size_t i = 0; i < r->n_models; i++)
        if (strlen(r->models[i].id) == n && !memcmp(r->models[i].id, name, n)) return &r->models[i];
    return NULL;
}

void rt_model_status(const struct rt_model *m, struct rt_model_status *out)
{
    struct rt *r = m->rt;
    lock(r);
    *out = (struct rt_model_status){.id = m->id,
                                    .state = m->broken ? RT_FAILED : m->state,
                                    .created_s = r->created_s,
                                    .context = m->context,
                                    .sampling = m->sampling,
                                    .embeds = m->embeds,
                                    .tools = m->tools,
                                    .pinned = m->pin};
    memcpy(out->fingerprint, m->fingerprint, sizeof out->fingerprint);
    if (out->state == RT_FAILED) out->error = m->error;
    unlock(r);
}

void rt_model_sampling(const struct rt_model *m, struct rt_sampling *out)
{
    lock(m->rt);
    *out = m->sampling;
    unlock(m->rt);
}

struct eng_model *rt_model(const struct rt *r)
{
    return r->several ? NULL : r->models[0].model;
}

const char *rt_model_id(const struct rt *r)
{
    return r->models[0].id;
}

const char *rt_fingerprint(const struct rt *r)
{
    return r->several ? "" : eng_model_info(r->models[0].model)->fingerprint;
}

/* ---- holding --------------------------------------------------------------------------------- */

static void hold(struct rt_model *m)
{
    m->uses++;
    m->used_ns = cn_now_ns();
    cn_model_set(m->rt->metrics, m->index, CN_MM_requests, m->uses);
}

static void use(struct rt_model *m, uint32_t tenant)
{
    hold(m);
    rt_stay_used(m, tenant);
}

static void count_waiting(struct rt_model *m, int change)
{
    m->n_waits += (uint64_t)change;
    cn_model_set(m->rt->metrics, m->index, CN_MM_waiting, m->n_waits);
}

static struct rt_wait *wait_new(uint32_t tenant, struct cn_mailbox *reply, uint64_t id)
{
    struct rt_wait *w = cn_calloc(1, sizeof *w);
    if (!w) return NULL;
    w->event = rt_event_new(id, RT_EV_MODEL, 0, NULL);
    w->reply = reply;
    w->tenant = tenant;
    w->since_ns = cn_now_ns();
    if (w->event) return w;
    free(w);
    return NULL;
}

/* With the lock. */
static int ask(struct rt_model *m, struct rt_wait **wait, bool *held, struct cn_error *err)
{
    if (m->broken || (m->state == RT_FAILED && cn_now_ns() < m->retry_ns)) {
        if (err) *err = m->error;
        return m->error.code;
    }
    if (m->state == RT_LOADED && !m->leaving) {
        use(m, (*wait)->tenant);
        *held = true;
        return 0;
    }
    struct rt_wait **at = &m->waits;
    while (*at)
        at = &(*at)->next;
    *at = *wait;
    cn_tenant_add(m->rt->metrics, (*wait)->tenant, CN_TM_model_waits, 1);
    *wait = NULL;
    count_waiting(m, 1);
    return 0;
}

int rt_acquire(struct rt_model *m, uint64_t tenant, struct cn_mailbox *reply, uint64_t id,
               bool *held, struct cn_error *err)
{
    struct rt *r = m->rt;
    *held = false;
    if (atomic_load(&r->draining)) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    struct rt_wait *w = wait_new(cfg_slot(tenant), reply, id);
    if (!w) return cn_fail(err, CN_ENOMEM, "out of memory for a request");
    lock(r);
    int rc = ask(m, &w, held, err);
    unlock(r);
    if (w) {
        rt_event_free(w->event);
        free(w);
    } else {
        rt_loader_poke(m->group);
    }
    return rc;
}

bool rt_acquire_cancel(struct rt_model *m, const struct cn_mailbox *reply, uint64_t id)
{
    struct rt_wait *w;
    lock(m->rt);
    struct rt_wait **at = &m->waits;
    while (*at && ((*at)->reply != reply || (*at)->event->id != id))
        at = &(*at)->next;
    w = *at;
    if (w) {
        *at = w->next;
        count_waiting(m, -1);
    }
    unlock(m->rt);
    if (!w) return false;
    rt_event_free(w->event);
    free(w);
    return true;
}

bool rt_model_hold(struct rt_model *m)
{
    lock(m->rt);
    bool there = m->state == RT_LOADED;
    if (there) hold(m);
    unlock(m->rt);
    return there;
}

void rt_release(struct rt_model *m)
{
    struct rt *r = m->rt;
    lock(r);
    cn_assert(m->uses > 0);
    m->uses--;
    m->used_ns = cn_now_ns();
    cn_model_set(r->metrics, m->index, CN_MM_requests, m->uses);
    bool poke = !m->uses && (m->group->wants_room || m->broken);
    unlock(r);
    if (poke) rt_loader_poke(m->group);
}

uint64_t rt_embedding_size(const struct rt_model *m)
{
    const struct eng_model_info *info = eng_model_info(m->model);
    return info->pooling == ENG_POOL_NONE ? 0 : info->exec->n_vocab;
}

void rt_model_text(const struct rt_model *m, struct rt_model_text *out)
{
    const struct eng_model *e = m->model;
    const struct eng_model_info *info = eng_model_info(e);
    *out = (struct rt_model_text){.vocab = eng_model_vocab(e),
                                  .chat_template = eng_model_template(e),
                                  .reply = eng_model_reply(e),
                                  .history = eng_model_history(e),
                                  .fingerprint = info->fingerprint,
                                  .context = info->context,
                                  .tools = rt_tools_for(eng_model_template(e), m->tools_fallback)};
}

void rt_model_answer(struct rt_model *m, const struct cn_error *err, uint32_t retry_s,
                     uint64_t before_ns)
{
    for (struct rt_wait **at = &m->waits, *w; (w = *at);) {
        if (w->since_ns > before_ns) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        count_waiting(m, -1);
        struct rt_event *e = w->event;
        e->retry_s = retry_s;
        if (err)
            rt_event_fail(e, err);
        else
            use(m, w->tenant);
        cn_mailbox_post(w->reply, &e->msg);
        free(w);
    }
}
