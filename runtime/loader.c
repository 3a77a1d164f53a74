/* The loader: loads the models that requests ask for, and makes room by unloading the model idle
 * for longest. It is a thread of its own. It changes the states of models under models_lock, and
 * asks the engine thread to attach or detach a model.
 *
 * If every model that could be unloaded is held, a request for another waits at most
 * engine.swap_wait_s. While any wait, time runs in periods of that length. In the second half of
 * each, the models to be unloaded (`leaving`) take no new holders, so a busy model cannot keep
 * another out for ever. In the first half they do, so repeated requests for a missing model cannot
 * lock out a loaded one. */
#include "runtime/rt.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#define RETRY_FIRST_NS  5000000000u
#define RETRY_DOUBLINGS 6 /* enough to pass RETRY_MOST_NS */
#define RETRY_MOST_NS   300000000000u
#define RETRY_ABSENT_NS 1000000000u
#define ASK_AGAIN_NS    1000000u
#define LOOK_AGAIN_NS   50000000u
#define NICENESS        10 /* steps go first */

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

static void lock(struct rt_group *g)
{
    pthread_mutex_lock(&g->rt->models_lock);
}

static void unlock(struct rt_group *g)
{
    pthread_mutex_unlock(&g->rt->models_lock);
}

void rt_loader_poke(struct rt_group *g)
{
    if (!atomic_exchange(&g->poked, true)) cn_mailbox_post(&g->loader_inbox, &g->poke);
}

/* Sleeps until it is woken, at most this long. */
static void rest(struct rt_group *g, uint64_t ns)
{
    cn_mailbox_wait(&g->loader_inbox, ns);
    /* In this order: a wake-up after this posts again and is seen next time. */
    if (cn_mailbox_take(&g->loader_inbox)) atomic_store(&g->poked, false);
}

/* ---- what failed ----------------------------------------------------------------------------- */

/* Reading a bad file costs time; looking for a missing one does not. */
static uint64_t retry_after(const struct rt_model *m, uint32_t failures)
{
    if (!m->path || access(m->path, F_OK)) return RETRY_ABSENT_NS;
    uint64_t ns = (uint64_t)RETRY_FIRST_NS << CN_MIN(failures - 1, (uint32_t)RETRY_DOUBLINGS);
    return CN_MIN(ns, RETRY_MOST_NS);
}

void rt_model_failed(struct rt_model *m, const struct cn_error *err)
{
    struct rt_group *g = m->group;
    cn_log(CN_LOG_ERROR, "engine", "%s could not be loaded: %s", m->id, err->message);
    cn_metric_add(g->rt->metrics, CN_M_model_load_failures, 1);
    cn_model_add(g->rt->metrics, m->index, CN_MM_failures, 1);
    lock(g);
    rt_public_error(m, err, &m->error);
    m->failures++;
    m->retry_ns = cn_now_ns() + retry_after(m, m->failures);
    m->bytes = m->need = 0; /* the file may have been replaced by then */
    m->blocked_ns = 0;
    rt_model_set_state(m, RT_FAILED);
    rt_model_answer(m, &m->error, 0, UINT64_MAX);
    unlock(g);
}

/* ---- with the engine thread ------------------------------------------------------------------ */

static int ask_engine(struct rt_model *m, enum rt_cmd_kind kind, struct cn_error *err)
{
    m->cmd = (struct rt_cmd){.kind = kind, .m = m};
    m->answer_error = (struct cn_error){0};
    atomic_store(&m->answered, false);
    cn_mailbox_post(&m->group->inbox, &m->cmd.msg);
    while (!atomic_load(&m->answered))
        rest(m->group, LOOK_AGAIN_NS);
    if (m->answer && err) *err = m->answer_error;
    return m->answer;
}

/* Nothing holds it, and from here on nothing can. */
static void unload(struct rt_model *m, const char *why)
{
    struct rt_group *g = m->group;
    while (ask_engine(m, RT_CMD_DETACH, NULL) == CN_EBUSY)
        rest(g, ASK_AGAIN_NS);
    eng_model_unref(m->model);
    lock(g);
    m->model = NULL;
    m->bytes = 0;
    rt_model_set_state(m, m->state);
    unlock(g);
    cn_metric_add(g->rt->metrics, CN_M_model_unloads, 1);
    cn_log(CN_LOG_INFO, "engine", "%s was unloaded: %s", m->id, why);
}

/* Other programs may have taken memory that was free at the start. */
static int check_free(const struct rt_model *m, struct cn_error *err)
{
    struct rt_room room = rt_room(m->rt->cfg, m->group->device);
    if (!room.bytes || room.bytes >= m->need) return 0;
    return cn_fail(err, CN_ENOMEM, "it takes %.1f MiB of memory, and the %s has %.1f MiB free",
                   mib(m->need), room.whose, mib(room.bytes));
}

/* Another file than the one that `need` is of may be too large: it is measured first. */
static void forget_need(struct rt_model *m)
{
    lock(m->group);
    m->bytes = m->need = 0;
    rt_model_set_state(m, RT_UNLOADED);
    unlock(m->group);
}

static void load(struct rt_model *m)
{
    struct rt_group *g = m->group;
    struct cn_error err = {0};
    struct eng_model *model = NULL;
    uint64_t began = cn_now_ns();
    if (rt_model_replaced(m)) {
        forget_need(m);
        return;
    }
    int rc = check_free(m, &err);
    if (!rc) rc = rt_model_open(m, &(struct rt_loading){.background = true}, &model, &err);
    if (!rc) {
        lock(g);
        m->model = model;
        unlock(g);
        rc = ask_engine(m, RT_CMD_ATTACH, &err);
    }
    if (rc) {
        lock(g);
        m->model = NULL;
        unlock(g);
        eng_model_unref(model);
        if (!atomic_load(&g->loader_stop)) rt_model_failed(m, &err);
        return;
    }
    const struct eng_model_info *info = eng_model_info(model);
    cn_metric_add(g->rt->metrics, CN_M_model_loads, 1); /* before the waiting requests are told */
    cn_metric_observe(g->rt->metrics, CN_H_model_load, cn_now_ns() - began);
    cn_model_add(g->rt->metrics, m->index, CN_MM_loads, 1);
    lock(g);
    m->failures = 0;
    m->blocked_ns = 0;
    m->used_ns = cn_now_ns();
    m->bytes = info->exec->packed_bytes + info->exec->scratch_bytes;
    rt_stay_loaded(m, (double)(m->used_ns - began) / 1e9);
    rt_model_set_state(m, RT_LOADED);
    rt_model_answer(m, NULL, 0, UINT64_MAX);
    unlock(g);
    cn_log(CN_LOG_INFO, "engine", "%s was loaded in %.1f s: %.1f MiB", m->id,
           (double)(cn_now_ns() - began) * 1e-9, mib(m->bytes));
}

/* ---- making room (all with models_lock) ------------------------------------------------------ */

static uint64_t bytes_used(const struct rt_group *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_models; i++)
        sum += g->models[i]->bytes;
    return sum;
}

/* The model idle for longest among those that may be unloaded for `to`, held or not. */
static struct rt_model *oldest(const struct rt_group *g, const struct rt_model *to, bool held)
{
    uint64_t now = cn_now_ns();
    struct rt_model *best = NULL;
    for (size_t i = 0; i < g->n_models; i++) {
        struct rt_model *m = g->models[i];
        if (m->state != RT_LOADED || m->pin || m->leaving || (m->uses > 0) != held) continue;
        if (rt_stays_until(m, to, now)) continue;
        if (!best || m->used_ns < best->used_ns) best = m;
    }
    return best;
}

/* Of the models that could be unloaded for `to` now. */
static uint64_t bytes_idle(const struct rt_group *g, const struct rt_model *to)
{
    uint64_t now = cn_now_ns();
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_models; i++) {
        const struct rt_model *m = g->models[i];
        if (m->state == RT_LOADED && !m->pin && !m->uses && !rt_stays_until(m, to, now))
            sum += m->bytes;
    }
    return sum;
}

static uint64_t bytes_pinned(const struct rt_group *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->pin) sum += g->models[i]->bytes;
    return sum;
}

/* Marks held models as leaving until unloading them would make room for the blocked one. */
static void mark_leaving(struct rt_group *g, const struct rt_model *to)
{
    uint64_t left = bytes_used(g) - bytes_idle(g, to);
    struct rt_model *m;
    while (left + to->need > g->budget && (m = oldest(g, to, true))) {
        m->leaving = true;
        left -= m->bytes;
    }
}

/* When the first model that must stay may be unloaded for m; UINT64_MAX: none must stay. */
static uint64_t first_to_go(const struct rt_model *m, uint64_t now)
{
    const struct rt_group *g = m->group;
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < g->n_models; i++) {
        const struct rt_model *v = g->models[i];
        uint64_t until = v->state == RT_LOADED && !v->pin ? rt_stays_until(v, m, now) : 0;
        if (until) first = CN_MIN(first, until);
    }
    return first;
}

/* Fills err with the reason. Returns the seconds until m may be loaded; 0: not known. */
static uint32_t blocked_error(const struct rt_model *m, uint64_t stays, uint64_t now,
                              struct cn_error *err)
{
    if (stays == UINT64_MAX) {
        cn_fail_param(err, CN_ENOTREADY, "model",
                      "the model %s is not loaded, and those that could make room for it are busy",
                      m->id);
        return 0;
    }
    uint32_t s = (uint32_t)((stays - now) / 1000000000u) + 1;
    cn_fail_param(
        err, CN_ENOTREADY, "model",
        "the model %s is not loaded, and those that would make way for it were loaded for "
        "other tenants and stay %g s (engine.min_stay_s): the first may go in %u s",
        m->id, m->rt->cfg->engine.min_stay_s, s);
    return s;
}

/* There is no room for m yet. Returns the time to look again. */
static uint64_t block(struct rt_model *m, uint64_t now)
{
    struct rt_group *g = m->group;
    uint64_t bound = (uint64_t)(g->rt->cfg->engine.swap_wait_s * 1e9);
    uint64_t stays = first_to_go(m, now);
    if (!m->blocked_ns) m->blocked_ns = now;
    if (now - m->blocked_ns >= bound) {
        struct cn_error err = {0};
        uint32_t retry_s = blocked_error(m, stays, now, &err);
        rt_model_answer(m, &err, retry_s, now - bound);
    }
    if (!m->waits) {
        m->blocked_ns = 0;
        return UINT64_MAX;
    }
    if (!g->blocked_ns) g->blocked_ns = now;
    uint64_t phase = bound ? (now - g->blocked_ns) % bound : 0;
    if (phase >= bound / 2) mark_leaving(g, m);
    uint64_t next = now + (phase >= bound / 2 ? bound : bound / 2) - phase;
    g->wants_room = true;
    uint64_t end = CN_MAX(m->blocked_ns, m->waits->since_ns) + bound;
    return CN_MIN(CN_MIN(next, end), stays);
}

/* ---- what to do next ------------------------------------------------------------------------- */

static struct rt_model *find_broken(struct rt_group *g)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->broken && !g->models[i]->uses) return g->models[i];
    return NULL;
}

/* Unloads a model whose file has changed; it may be loaded again after a while. */
static void drop_broken(struct rt_model *m)
{
    struct rt_group *g = m->group;
    unload(m, "its file was changed");
    lock(g);
    m->broken = false;
    m->need = 0;
    m->failures++;
    m->retry_ns = cn_now_ns() + retry_after(m, m->failures);
    rt_model_set_state(m, RT_FAILED);
    rt_model_answer(m, &m->error, 0, UINT64_MAX);
    unlock(g);
}

/* Of the models that requests wait for and that were not tried: the one whose load is for the
 * tenant charged least; among equals the one waited for longest. */
static struct rt_model *next_wanted(struct rt_group *g, uint64_t now)
{
    double best_due = 0;
    struct rt_model *best = NULL;
    for (size_t i = 0; i < g->n_models; i++) {
        struct rt_model *m = g->models[i];
        if (!m->waits || m->state == RT_LOADED || m->tried) continue;
        double due = rt_stay_due(m, now);
        if (best &&
            (due > best_due || (due == best_due && m->waits->since_ns >= best->waits->since_ns)))
            continue;
        best = m;
        best_due = due;
    }
    return best;
}

/* Gives loaded models that are not leaving to the requests that wait for them. */
static void serve_loaded(struct rt_group *g)
{
    for (size_t i = 0; i < g->n_models; i++) {
        struct rt_model *m = g->models[i];
        if (m->state == RT_LOADED && !m->leaving && !m->broken && m->waits)
            rt_model_answer(m, NULL, 0, UINT64_MAX);
    }
}

enum need { NOTHING, MEASURE, EVICT, LOAD, NEVER };

/* With the lock: what m needs next. */
static enum need step_of(struct rt_model *m, struct rt_model **victim)
{
    struct rt_group *g = m->group;
    if (!m->need) return MEASURE;
    if (m->need > g->budget || bytes_pinned(g) > g->budget - m->need) return NEVER;
    uint64_t used = bytes_used(g);
    if (used <= g->budget - m->need) return LOAD;
    if (used - bytes_idle(g, m) > g->budget - m->need) return NOTHING;
    *victim = oldest(g, m, false);
    return *victim ? EVICT : NOTHING;
}

/* With the lock: the first model that something can be done for; else *wake, when to look again. */
static enum need choose(struct rt_group *g, struct rt_model **out, struct rt_model **victim,
                        uint64_t *wake)
{
    struct rt_model *m = NULL;
    uint64_t now = cn_now_ns();
    *wake = UINT64_MAX;
    g->wants_room = false;
    for (size_t i = 0; i < g->n_models; i++) {
        g->models[i]->leaving = g->models[i]->tried = false;
        if (!g->models[i]->waits) g->models[i]->blocked_ns = 0;
    }
    while ((m = next_wanted(g, now))) {
        m->tried = true;
        enum need next = step_of(m, victim);
        if (next != NOTHING) {
            *out = m;
            return next;
        }
        uint64_t again = block(m, now);
        *wake = CN_MIN(*wake, again);
    }
    if (!g->wants_room) g->blocked_ns = 0;
    serve_loaded(g);
    return NOTHING;
}

static void refuse_never(struct rt_model *m)
{
    struct rt_group *g = m->group;
    struct cn_error err = {0};
    lock(g);
    uint64_t pinned = bytes_pinned(g);
    unlock(g);
    cn_fail(&err, CN_ENOMEM,
            "it takes %.1f MiB for weights and scratch; there are %.1f MiB for all "
            "models, of which %.1f MiB are taken by pinned ones",
            mib(m->need), mib(g->budget), mib(pinned));
    rt_model_failed(m, &err);
}

/* Does one thing; false when there is nothing to do before *wake. */
static bool work(struct rt_group *g, uint64_t *wake)
{
    struct rt_model *m = NULL, *victim = NULL;
    struct cn_error err = {0};
    lock(g);
    struct rt_model *broken = find_broken(g);
    if (broken) rt_model_set_state(broken, RT_UNLOADED);
    enum need next = broken ? NOTHING : choose(g, &m, &victim, wake);
    if (next == EVICT) {
        rt_stay_taken(victim, m, cn_now_ns());
        rt_model_set_state(victim, RT_UNLOADED);
    }
    if (next == LOAD) {
        m->bytes = m->need;
        rt_model_set_state(m, RT_LOADING);
    }
    unlock(g);
    if (broken) {
        drop_broken(broken);
        return true;
    }
    switch (next) {
    case NOTHING:
        return false;
    case MEASURE:
        if (rt_model_measure(m, NULL, &err)) rt_model_failed(m, &err);
        break;
    case EVICT:
        unload(victim, "another model needed its place");
        break;
    case LOAD:
        load(m);
        break;
    case NEVER:
        refuse_never(m);
        break;
    }
    return true;
}

static void *loader_main(void *arg)
{
    struct rt_group *g = arg;
#ifdef __linux__
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
#endif
    while (!atomic_load(&g->loader_stop)) {
        uint64_t wake = 0, now;
        if (work(g, &wake)) continue;
        now = cn_now_ns();
        rest(g, wake == UINT64_MAX ? UINT64_MAX : wake > now ? wake - now : 0);
    }
    return NULL;
}

int rt_loader_start(struct rt_group *g, struct cn_error *err)
{
    if (pthread_create(&g->loader, NULL, loader_main, g))
        return cn_fail(err, CN_ENOMEM, "the loader's thread cannot be started");
    g->loader_started = true;
    pthread_setname_np(g->loader, "loader");
    return 0;
}

void rt_loader_stop(struct rt_group *g)
{
    struct cn_error err = {0};
    if (g->loader_started) {
        atomic_store(&g->loader_stop, true);
        rt_loader_poke(g);
        pthread_join(g->loader, NULL);
        g->loader_started = false;
    }
    if (g->loader_mail_ready) cn_mailbox_take(&g->loader_inbox);
    cn_fail(&err, CN_EDRAIN, "the server is shutting down");
    if (g->rt->lock_ready) lock(g);
    for (size_t i = 0; i < g->n_models; i++)
        rt_model_answer(g->models[i], &err, 0, UINT64_MAX);
    if (g->rt->lock_ready) unlock(g);
}
