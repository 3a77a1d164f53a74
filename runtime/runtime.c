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
    if (rt_send(&r->groups[0], (struct rt_cmd){.kind = RT_CMD_CANCEL, .reply = reply, .id = id}))
        cn_log(CN_LOG_ERROR, "engine", "out of memory: a cancel was not sent");
}

void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused)
{
    struct rt_cmd c = {.kind = RT_CMD_PAUSE, .reply = reply, .id = id, .paused = paused};
    if (rt_send(&r->groups[0], c))
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
    return CN_MAX(atomic_load(&r->groups[0].retry_after_s), 1u);
}

void rt_health(const struct rt *r, struct rt_health *out)
{
    struct rt *m = (struct rt *)r;
    out->draining = atomic_load(&m->draining);
    out->failed = atomic_load(&m->failed);
    rt_watch_read(&m->groups[0].watch, cn_now_ns(), out);
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
    r->groups = cn_calloc(1, sizeof *r->groups);
    if (!r->groups) return cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    r->n_groups = 1;
    int rc = rt_group_init(&r->groups[0], r, 0, err);
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
    if (!rc) rc = rt_weigh_all(&r->groups[0], out, each, err);
    rt_free(r);
    return rc;
}

int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err)
{
    struct rt *r = NULL;
    int rc = make(opts, &r, err);
    if (!rc) rc = rt_open_all(&r->groups[0], opts, err);
    if (!rc) rc = rt_group_start(&r->groups[0], err);
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
    for (uint32_t i = 0; i < r->n_groups; i++)
        rt_group_stop(&r->groups[i]);
    for (uint32_t i = 0; i < r->n_groups; i++)
        rt_group_fini(&r->groups[i]);
    free(r->groups);
    cfg_tenants_unref(r->first_tenants);
    rt_models_fini(r);
    free(r);
}
