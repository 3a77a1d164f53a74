/* Tenants on the loop thread: what is kept by slot, and how one snapshot takes the place of
 * another. The source is read by a thread of libuv's, one reading at a time; all else is the
 * loop's. A tenant that is removed leaves: its requests end at once, its slot is left when nothing
 * of it is here. */
#include "server/grammars.h"
#include "server/request.h"

#include <stdlib.h>
#include <string.h>

const char *srv_tenant_name(const struct cfg_tenants *t, uint64_t id)
{
    const struct cfg_tenant *c = cfg_tenants_find(t, id);

    return c && c->name ? c->name : "-";
}

double *srv_tenants_weights(const struct cfg_tenants *t)
{
    double *w = cn_calloc(t->n_slots, sizeof *w);

    for (uint32_t i = 0; w && i < t->n_slots; i++)
        w[i] = t->seats[i].tenant ? t->seats[i].tenant->weight : 0;
    return w;
}

size_t srv_tenants_places(const struct cfg_tenants *t, size_t places)
{
    return t->n_all > 1 ? CN_MAX(places / 2, (size_t)1) : SIZE_MAX;
}

int srv_tenants_check(const struct srv *s, const struct srv_conn *c, struct cn_error *err)
{
    if (c->changes == s->changes) return 0;
    const struct cfg_tenant *t = cfg_tenants_find(s->tenants, c->tenant);
    if (t && (!c->key || cfg_tenant_has_key(t, c->key))) return 0;
    return cn_fail(err, CN_EREVOKED, "%s", cn_err_info(CN_EREVOKED)->text);
}

/* ---- tables by slot -------------------------------------------------------------------------- */

static int grow_seats(struct srv *s, uint32_t n)
{
    if (n <= s->n_seats) return 0;
    struct srv_seat *grown = cn_realloc_array(s->seats, n, sizeof *grown);

    if (!grown) return CN_ENOMEM;
    memset(grown + s->n_seats, 0, (n - s->n_seats) * sizeof *grown);
    s->seats = grown;
    s->n_seats = n;
    return 0;
}

/* Series of tenants that have none. A slot's last owner has left it. */
static int name_series(struct srv *s, const struct cfg_tenants *old, const struct cfg_tenants *now)
{
    int rc = 0;

    for (uint32_t i = 0; s->metrics && !rc && i < now->n_slots; i++)
        if (cfg_tenants_change(old, now, i) == CFG_ADDED && now->seats[i].tenant->name)
            rc = cn_metrics_tenant(s->metrics, i, now->seats[i].tenant->name);
    return rc;
}

int srv_tenants_open(struct srv *s, const struct srv_opts *opts, struct cn_error *err)
{
    int rc = 0;

    s->source = opts->source;
    if (opts->tenants)
        s->tenants = cfg_tenants_ref(opts->tenants);
    else
        rc = cfg_tenants_of(s->cfg, &s->tenants, err);
    if (rc) return rc;
    s->party = cfg_roll_join(s->tenants->roll);
    if (grow_seats(s, s->tenants->n_slots) || name_series(s, NULL, s->tenants))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    return srv_keys_init(&s->keys, s->tenants, err);
}

void srv_tenants_close(struct srv *s)
{
    srv_keys_fini(&s->keys);
    cfg_tenants_unref(s->tenants);
    free(s->seats);
}

/* ---- a snapshot takes the place of another --------------------------------------------------- */

/* All that the change needs memory for. */
struct change {
    struct cfg_tenants *next;
    double *weights;
    struct cn_share *shares;
};

static void change_fini(struct change *c)
{
    free(c->weights);
    free(c->shares);
}

static int change_init(struct srv *s, struct change *c, struct cfg_tenants *next)
{
    size_t n = next->n_slots;

    *c = (struct change){
        .next = next, .weights = srv_tenants_weights(next), .shares = srv_budget_shares(s, next)};
    if (!c->weights || !c->shares || grow_seats(s, next->n_slots) || srv_gate_grow(&s->gate, n) ||
        cn_budget_grow(s->budget, n + 1) || srv_text_grow(s->pool, n + 1) ||
        name_series(s, s->tenants, next))
        return CN_ENOMEM;
    return 0;
}

static bool is_revoked(const struct srv_req *q, const struct cfg_tenants *now)
{
    const struct cfg_tenant *t = cfg_tenants_find(now, q->tenant);

    return !t || (q->key && !cfg_tenant_has_key(t, q->key));
}

/* Requests whose tenant or key is gone; how many. */
static size_t end_requests(struct srv *s)
{
    struct cn_error why = {0};
    size_t n = 0;

    cn_fail(&why, CN_EREVOKED, "%s", cn_err_info(CN_EREVOKED)->text);
    for (struct srv_req *q = s->reqs, *next; q; q = next) {
        next = q->next;
        if (!is_revoked(q, s->tenants)) continue;
        n += q->conn != NULL;
        srv_req_fail(q, &why);
        srv_req_release(q);
    }
    return n;
}

struct counts { size_t added, changed, removed, keys; };

static size_t keys_gone(const struct cfg_tenant *was, const struct cfg_tenant *is)
{
    size_t n = 0;

    for (size_t i = 0; is && i < was->keys.count; i++)
        n += !cfg_tenant_has_key(is, cfg_key_id(&was->key_hashes[i]));
    return is ? n : was->keys.count;
}

static struct counts begin_leaving(struct srv *s, const struct cfg_tenants *old,
                                   const struct cfg_tenants *now)
{
    struct counts n = {0};

    for (uint32_t i = 0; i < now->n_slots; i++) {
        enum cfg_change change = cfg_tenants_change(old, now, i);
        n.added += change == CFG_ADDED;
        n.changed += change == CFG_CHANGED;
        if (i < old->n_slots && old->seats[i].tenant)
            n.keys += keys_gone(old->seats[i].tenant, now->seats[i].tenant);
        if (change != CFG_REMOVED) continue;
        n.removed++;
        if (s->metrics) cn_metrics_tenant(s->metrics, i, NULL); /* its name may be in use again */
        s->seats[i].leaving = true;
        s->seats[i].id = old->seats[i].id;
        s->n_leaving++;
    }
    return n;
}

static int become(struct srv *s, struct cfg_tenants *next, struct srv_keys *keys, struct counts *n)
{
    struct cfg_tenants *old = s->tenants;
    struct change c;
    int rc = change_init(s, &c, next);

    if (!rc) rc = rt_tenants_set(s->rt, next);
    if (rc) {
        change_fini(&c);
        return rc;
    }
    cfg_tenants_commit(old, next);
    *n = begin_leaving(s, old, next);
    srv_keys_fini(&s->keys);
    s->keys = *keys;
    s->tenants = next;
    s->changes++;
    cn_budget_divide(s->budget, c.shares, (size_t)next->n_slots + 1);
    srv_gate_divide(&s->gate, c.weights, next->n_slots,
                    srv_tenants_places(next, s->gate.limits.places));
    srv_text_weigh(s->pool, 1, c.weights, next->n_slots);
    cfg_tenants_unref(old);
    change_fini(&c);
    return 0;
}

/* ---- leaving --------------------------------------------------------------------------------- */

static bool slot_leaves(const struct srv *s, uint32_t slot)
{
    return slot < s->n_seats && s->seats[slot].leaving;
}

/* Connections of removed tenants, between requests. */
static void close_idle(struct srv *s)
{
    for (struct srv_conn *c = s->http.conns, *next; c; c = next) {
        next = c->next;
        bool theirs = (c->lane && slot_leaves(s, c->lane - 1)) ||
                      (c->place.proven && slot_leaves(s, c->place.tenant));
        if (!theirs || c->phase != SRV_IDLE || c->user) continue;
        if (srv_conn_unsent(c))
            srv_conn_linger(c); /* the rest of an answer */
        else
            srv_conn_close(c, false);
    }
}

void srv_tenants_tick(struct srv *s)
{
    if (!s->n_leaving) return;
    close_idle(s);
    for (uint32_t i = 0; i < s->n_seats; i++) {
        struct srv_seat *seat = &s->seats[i];
        if (seat->leaving && !seat->reqs) srv_grammars_drop(s->grammars, seat->id);
        if (!seat->leaving || seat->reqs || s->gate.tenants[i].n ||
            cn_account_held(cn_budget_account(s->budget, srv_lane_of(i))))
            continue;
        uint64_t id = seat->id;
        *seat = (struct srv_seat){0};
        s->n_leaving--;
        cfg_roll_left(s->tenants->roll, id, s->party);
    }
}

/* ---- reading the source again ---------------------------------------------------------------- */

/* On a thread of libuv's. The loop leaves `tenants` alone meanwhile. */
static void read_source(uv_work_t *work)
{
    struct srv *s = work->data;
    struct srv_reload *r = &s->reload;
    struct cfg_draft d = {0};

    r->rc = s->source->load(s->source, &d, &r->err);
    if (r->rc) return;
    memcpy(r->others, d.others, sizeof r->others);
    r->rc = cfg_tenants_next(s->tenants, d.tenants, d.n, &r->next, &r->err); /* moved */
    if (!r->rc && (r->rc = srv_keys_init(&r->keys, r->next, &r->err))) {
        cfg_tenants_discard(s->tenants, r->next);
        r->next = NULL;
    }
}

static void take_result(struct srv *s)
{
    struct srv_reload *r = &s->reload;
    struct counts n = {0};
    int rc = r->rc;

    if (!rc && (s->draining || (rc = become(s, r->next, &r->keys, &n)))) {
        srv_keys_fini(&r->keys);
        cfg_tenants_discard(s->tenants, r->next);
        if (!rc) return;
        cn_fail(&r->err, rc, "out of memory");
    }
    if (rc) {
        cn_log(CN_LOG_ERROR, "server", "tenants and keys were not changed: %s", r->err.message);
        return;
    }
    size_t ended = end_requests(s);
    srv_tenants_tick(s);
    cn_log(CN_LOG_INFO, "server",
           "tenants: %zu added, %zu changed, %zu removed; %zu keys revoked, %zu requests ended%s%s",
           n.added, n.changed, n.removed, n.keys, ended,
           r->others[0] ? "; these settings have changed too, which takes a restart: " : "",
           r->others);
}

static void was_read(uv_work_t *work, int status)
{
    struct srv *s = work->data;
    struct srv_reload *r = &s->reload;

    if (status && !r->rc) r->rc = cn_fail(&r->err, CN_ECANCELLED, "it was given up");
    r->running = false;
    take_result(s);
    r->next = NULL;
    if (r->again) srv_tenants_reload(s);
}

void srv_tenants_reload(struct srv *s)
{
    struct srv_reload *r = &s->reload;

    if (s->draining) return;
    r->again = r->running; /* a burst is read once more, when this reading is done */
    if (r->running) {
        cn_log(CN_LOG_INFO, "server",
               "tenants are still being read; they are read again after that");
        return;
    }
    *r = (struct srv_reload){.running = true, .work.data = s};
    cn_signals_take(false); /* libuv's threads, which may begin here, do not take them */
    int rc = uv_queue_work(&s->loop, &r->work, read_source, was_read);
    cn_signals_take(true);
    if (!rc) return;
    r->running = false;
    cn_log(CN_LOG_ERROR, "server", "tenants and keys were not changed: no thread reads them");
}
