/* What other threads see of the engine groups, and their start and end. */
#include "runtime/rt.h"

#include <stdlib.h>

int rt_submit(struct rt *r, struct rt_request *q, struct cn_error *err)
{
    struct rt_req *req;
    if (atomic_load(&r->draining)) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    int rc = rt_req_new(r, q, &req, err);
    if (rc) return rc;
    atomic_fetch_add(&r->in_flight, 1);
    rc = rt_send(req->group, (struct rt_cmd){.kind = RT_CMD_SUBMIT, .req = req});
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
    /* Of the caller's live requests one has the id, and it is in one group. */
    if (rt_send_all(r, (struct rt_cmd){.kind = RT_CMD_CANCEL, .reply = reply, .id = id}))
        cn_log(CN_LOG_ERROR, "engine", "out of memory: a cancel was not sent");
}

void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused)
{
    struct rt_cmd c = {.kind = RT_CMD_PAUSE, .reply = reply, .id = id, .paused = paused};
    if (rt_send_all(r, c)) cn_log(CN_LOG_ERROR, "engine", "out of memory: a pause was not sent");
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
    uint32_t most = 1;
    for (uint32_t i = 0; i < r->n_groups; i++)
        most = CN_MAX(most, atomic_load(&r->groups[i].retry_after_s));
    return most;
}

void rt_health(const struct rt *r, struct rt_health *out)
{
    struct rt *m = (struct rt *)r;
    uint64_t now = cn_now_ns();
    int64_t worst = INT64_MIN;
    bool pending = false;
    for (uint32_t i = 0; i < r->n_groups; i++) {
        struct rt_health h = {0};
        rt_watch_read(&m->groups[i].watch, now, &h);
        int64_t late = (int64_t)h.since_progress_ns - (int64_t)h.stuck_after_ns;
        pending |= h.pending;
        if (late < worst) continue;
        worst = late;
        *out = h;
    }
    out->pending = pending;
    out->draining = atomic_load(&m->draining);
    out->failed = atomic_load(&m->failed);
    out->lost = atomic_load(&m->lost);
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
    r->there_bytes = cfg_engine_memory(r->cfg);
    uint32_t n = opts->n_models ? cfg_n_groups(r->cfg) : 1;
    r->groups = cn_calloc(n, sizeof *r->groups);
    if (!r->groups) return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    int rc = 0;
    for (; !rc && r->n_groups < n; r->n_groups++)
        rc = rt_group_init(&r->groups[r->n_groups], r, r->n_groups, err);
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
    for (uint32_t i = 0; !rc && i < r->n_groups; i++)
        rc = rt_group_weigh(&r->groups[i], &out[i], each, err);
    rt_free(r);
    return rc;
}

int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err)
{
    struct rt *r = NULL;
    int rc = make(opts, &r, err);
    for (uint32_t i = 0; !rc && i < r->n_groups; i++)
        rc = rt_group_open(&r->groups[i], opts, err);
    for (uint32_t i = 0; !rc && i < r->n_groups; i++)
        rc = rt_group_start(&r->groups[i], err);
    if (rc) {
        rt_free(r);
        return rc;
    }
    cfg_tenants_unref(r->first_tenants); /* in effect, and held by each group */
    r->first_tenants = NULL;
    *out = r;
    return 0;
}

void rt_free(struct rt *r)
{
    if (!r) return;
    atomic_store(&r->draining, true);
    for (uint32_t i = 0; i < r->n_groups; i++)
        rt_group_stop(&r->groups[i]);
    for (uint32_t i = 0; i < r->n_groups; i++)
        rt_group_join(&r->groups[i]);
    for (uint32_t i = 0; i < r->n_groups; i++)
        rt_group_fini(&r->groups[i]);
    free(r->groups);
    cfg_tenants_unref(r->first_tenants);
    rt_models_fini(r);
    free(r);
}
