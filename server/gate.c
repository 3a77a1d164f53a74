/* Who has a place: unproven connections, oldest first, of all and of each address. */
#include "server/gate.h"

#include "server/http.h"

#include <stdlib.h>
#include <string.h>

#define GRACE_TICKS 5  /* before a connection may lose its place: its request may be on the way */
#define LOOK        64 /* connections that are looked at for one at rest */
#define FAILURES_NS (60 * 1000000000ull)
#define WARN_NS     1000000000ull

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_add(struct srv_list *l, struct srv_conn *c, enum srv_list_kind kind)
{
    c->place.links[kind] = (struct srv_link){.older = l->newest};
    if (l->newest)
        l->newest->place.links[kind].newer = c;
    else
        l->oldest = c;
    l->newest = c;
    l->n++;
}

static void list_remove(struct srv_list *l, struct srv_conn *c, enum srv_list_kind kind)
{
    struct srv_link *k = &c->place.links[kind];

    if (k->older)
        k->older->place.links[kind].newer = k->newer;
    else
        l->oldest = k->newer;
    if (k->newer)
        k->newer->place.links[kind].older = k->older;
    else
        l->newest = k->older;
    *k = (struct srv_link){0};
    l->n--;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static struct srv_addr **bucket(struct srv_gate *g, const struct srv_peer_key *key)
{
    return &g->buckets[cn_siphash13(g->seed, key, sizeof *key) & (g->n_buckets - 1)];
}

/* Appends to, and takes from, the addresses that have no connection. */
static void record_add(struct srv_gate *g, struct srv_addr *a)
{
    a->before = g->last;
    a->after = NULL;
    if (g->last)
        g->last->after = a;
    else
        g->first = a;
    g->last = a;
    g->n_records++;
}

static void record_remove(struct srv_gate *g, struct srv_addr *a)
{
    if (a->before)
        a->before->after = a->after;
    else
        g->first = a->after;
    if (a->after)
        a->after->before = a->before;
    else
        g->last = a->before;
    a->before = a->after = NULL;
    g->n_records--;
}

static void forget(struct srv_gate *g, struct srv_addr *a)
{
    struct srv_addr **p = bucket(g, &a->key);

    while (*p != a)
        p = &(*p)->chain;
    *p = a->chain;
    record_remove(g, a);
    free(a);
}

/* The entry of an address, made if there is none; it is among those without a connection then.
 * NULL when memory is short. */
static struct srv_addr *addr_of(struct srv_gate *g, const struct srv_peer *peer)
{
    struct srv_peer_key key = srv_peer_key(peer);
    struct srv_addr **at = bucket(g, &key), *a;

    for (a = *at; a; a = a->chain)
        if (!memcmp(&a->key, &key, sizeof key)) return a;
    if (g->n_records >= SRV_GATE_RECORDS) forget(g, g->first);
    if (!(a = cn_calloc(1, sizeof *a))) return NULL;
    at = bucket(g, &key);
    a->key = key;
    a->chain = *at;
    *at = a;
    record_add(g, a);
    return a;
}

/* Whether limits per address are for this peer. */
static bool counted(const struct srv_gate *g, const struct srv_peer *p)
{
    return p->kind == SRV_PEER_IP && !srv_trusted(g->trust, p);
}

static void leave_lists(struct srv_gate *g, struct srv_conn *c)
{
    struct srv_addr *a = c->place.addr;

    list_remove(&g->unproven, c, SRV_OF_ALL);
    if (!a) return;
    list_remove(&a->unproven, c, SRV_OF_ONE);
    c->place.addr = NULL;
    if (a->unproven.n) return;
    record_add(g, a);
    if (!a->failed || g->n_records > SRV_GATE_RECORDS) forget(g, a->failed ? g->first : a);
}

/* ---- places ---------------------------------------------------------------------------------- */

static size_t unused(const struct srv_tenant_places *t)
{
    return t->part > t->n ? t->part - t->n : 0;
}

static void count(struct srv_gate *g, struct srv_tenant_places *t, bool in)
{
    g->kept -= unused(t);
    t->n = in ? t->n + 1 : t->n - 1;
    g->kept += unused(t);
}

static void divide(struct srv_gate *g, const double *weights)
{
    size_t half = g->limits.places / 2;
    double sum = 0;

    g->kept = 0;
    for (size_t i = 0; i < g->limits.n_tenants; i++)
        sum += weights ? weights[i] : 1;
    for (size_t i = 0; i < g->limits.n_tenants; i++) {
        double part = sum > 0 ? (weights ? weights[i] : 1) / sum : 0;
        g->tenants[i].part = (size_t)((double)half * part);
        g->kept += unused(&g->tenants[i]);
    }
    g->limits.weights = NULL;
}

int srv_gate_grow(struct srv_gate *g, size_t n)
{
    size_t had = g->limits.n_tenants;

    if (n <= had) return 0;
    struct srv_tenant_places *t = cn_realloc_array(g->tenants, n, sizeof *t);
    if (!t) return CN_ENOMEM;
    memset(t + had, 0, (n - had) * sizeof *t);
    g->tenants = t;
    g->limits.n_tenants = n;
    return 0;
}

void srv_gate_divide(struct srv_gate *g, const double *weights, size_t n, size_t per_tenant)
{
    cn_assert(n == g->limits.n_tenants);
    g->limits.per_tenant = per_tenant;
    divide(g, weights);
}

int srv_gate_init(struct srv_gate *g, const struct srv_gate_limits *limits,
                  const struct srv_trust *trust, struct cn_error *err)
{
    memset(g, 0, sizeof *g);
    g->limits = *limits;
    g->trust = trust;
    g->n_buckets = 64;
    while (g->n_buckets < limits->places && g->n_buckets < (size_t)1 << 20)
        g->n_buckets *= 2;
    cn_random(g->seed, sizeof g->seed);
    g->buckets = cn_calloc(g->n_buckets, sizeof *g->buckets);
    g->tenants = cn_calloc(limits->n_tenants, sizeof *g->tenants);
    if (!g->buckets || !g->tenants) return cn_fail(err, CN_ENOMEM, "out of memory");
    divide(g, limits->weights);
    return CN_OK;
}

void srv_gate_fini(struct srv_gate *g)
{
    while (g->first)
        forget(g, g->first);
    free(g->buckets);
    free(g->tenants);
    memset(g, 0, sizeof *g);
}

static void shed_one(struct srv_gate *g, struct srv_conn *c)
{
    g->shed++;
    srv_conn_close(c, false);
}

/* One between requests may have some of its last answer to send yet, or its next request has
 * come. */
static bool at_rest(const struct srv_conn *c)
{
    return !c->place.idle || (!c->in.len && !srv_conn_unsent(c));
}

/* Closes the oldest of a list that is at rest, if it is older than the grace: of the first few, for
 * who does not read its last answer may stand there for long. */
static bool shed(struct srv_gate *g, const struct srv_list *l)
{
    struct srv_conn *c = l->oldest;
    enum srv_list_kind kind = l == &g->idle || l == &g->unproven ? SRV_OF_ALL : SRV_OF_ONE;

    for (int k = 0; c && k < LOOK; k++) {
        if (g->ticks - c->place.tick < GRACE_TICKS) return false;
        if (at_rest(c)) {
            shed_one(g, c);
            return true;
        }
        c = c->place.links[kind].newer;
    }
    return false;
}

static bool full(const struct srv_gate *g)
{
    return g->n_open - g->n_health >= g->limits.places;
}

enum srv_room srv_gate_room(struct srv_gate *g)
{
    if (full(g) || g->unproven.n >= g->limits.places - g->limits.places / 8) shed(g, &g->unproven);
    if (full(g)) shed(g, &g->idle);
    if (!full(g)) return SRV_ROOM;
    return g->n_health < SRV_HEALTH_PLACES ? SRV_ROOM_HEALTH : SRV_ROOM_NONE;
}

void srv_gate_enter(struct srv_gate *g, struct srv_conn *c)
{
    struct srv_place *p = &c->place;

    p->health = full(g);
    p->inside = true;
    p->tick = g->ticks;
    g->n_open++;
    g->n_health += p->health;
    list_add(&g->unproven, c, SRV_OF_ALL);
    struct srv_addr *a = counted(g, &c->stream->peer) ? addr_of(g, &c->stream->peer) : NULL;
    if (!a) return;
    if (!a->unproven.n) record_remove(g, a);
    p->addr = a;
    list_add(&a->unproven, c, SRV_OF_ONE);
    /* Two for one, so that a burst of young ones, which had to be let in, is made up for. */
    for (int k = 0; k < 2 && a->unproven.n > g->limits.per_address; k++)
        if (!shed(g, &a->unproven)) break;
}

void srv_gate_leave(struct srv_gate *g, struct srv_conn *c)
{
    struct srv_place *p = &c->place;

    if (!p->inside) return;
    srv_gate_idle(g, c, false);
    if (p->proven)
        count(g, &g->tenants[p->tenant], false);
    else
        leave_lists(g, c);
    p->inside = false;
    g->n_open--;
    g->n_health -= p->health;
}

/* Makes room for one with a key; its own place is beyond the others. */
static bool make_room(struct srv_gate *g)
{
    struct srv_conn *c = g->unproven.oldest;

    while (c && c->place.health) /* there are few of those */
        c = c->place.links[SRV_OF_ALL].newer;
    if (!c) return shed(g, &g->idle);
    shed_one(g, c);
    return true;
}

/* Whether a tenant may have one more: of its part, or of what is for all. Where nothing is kept for
 * others it is the places alone that count. */
static bool may_have(const struct srv_gate *g, const struct srv_tenant_places *t)
{
    size_t proven = g->n_open - g->unproven.n;

    if (t->n < t->part) return true;
    return t->n < g->limits.per_tenant && (!g->kept || proven + g->kept < g->limits.places);
}

int srv_gate_prove(struct srv_gate *g, struct srv_conn *c, uint32_t tenant)
{
    struct srv_place *p = &c->place;
    struct srv_tenant_places *t = &g->tenants[tenant];

    cn_assert(tenant < g->limits.n_tenants);
    /* One that gets no place stays unproven, so that its own can be had back. */
    if (!p->inside || p->proven) return 0;
    if (!may_have(g, t) && !shed(g, &t->idle)) return CN_ERATE;
    if (p->health && full(g) && !make_room(g)) return CN_EPLACES;
    g->n_health -= p->health;
    p->health = false;
    leave_lists(g, c);
    p->proven = true;
    p->tenant = tenant;
    count(g, t, true);
    return 0;
}

void srv_gate_idle(struct srv_gate *g, struct srv_conn *c, bool idle)
{
    struct srv_place *p = &c->place;

    if (!p->inside || !p->proven || p->idle == idle) return;
    p->idle = idle;
    if (idle) {
        p->tick = g->ticks;
        list_add(&g->idle, c, SRV_OF_ALL);
        list_add(&g->tenants[p->tenant].idle, c, SRV_OF_ONE);
    } else {
        list_remove(&g->idle, c, SRV_OF_ALL);
        list_remove(&g->tenants[p->tenant].idle, c, SRV_OF_ONE);
    }
}

bool srv_gate_failed(struct srv_gate *g, const struct srv_peer *client, uint64_t now,
                     uint32_t *retry_s)
{
    struct srv_addr *a;

    if (!g->limits.failures || !counted(g, client) || !(a = addr_of(g, client))) return true;
    if (!a->failed || now - a->failed_ns > FAILURES_NS) {
        a->failed = 0;
        a->failed_ns = now;
    }
    if (a->failed < g->limits.failures) {
        a->failed++;
        return true;
    }
    *retry_s = (uint32_t)((a->failed_ns + FAILURES_NS - now) / 1000000000u) + 1;
    return false;
}

void srv_gate_tick(struct srv_gate *g, struct cn_metrics *m, uint64_t now)
{
    g->ticks++;
    cn_metric_add(m, CN_M_connections_shed, g->shed - g->counted);
    g->counted = g->shed;
    if (g->shed == g->warned || now - g->warned_ns < WARN_NS) return;
    cn_log(CN_LOG_WARN, "server", "closed %llu silent connections: others needed their places",
           (unsigned long long)(g->shed - g->warned));
    g->warned = g->shed;
    g->warned_ns = now;
}
