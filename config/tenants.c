/* Snapshots of tenants, and the roll of their slots. The roll has a lock, snapshots need none.
 * Invariant: a slot is FREE, or USED by the newest snapshot, or LEAVING until every party left. */
#include "config/tenants.h"

#include "config/internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FREE, USED, LEAVING };

struct slot {
    uint32_t generation, next_free;
    uint8_t state;
    uint32_t left; /* of the parties */
};

struct cfg_roll {
    pthread_mutex_t lock;
    uint32_t refs;
    struct slot *slots;
    size_t cap;
    uint32_t n, first_free, last_free; /* a queue: the slot left longest ago comes first */
    uint32_t n_parties;
};

/* ---- the roll -------------------------------------------------------------------------------- */

static struct cfg_roll *roll_new(void)
{
    struct cfg_roll *r = cn_calloc(1, sizeof *r);

    if (!r || pthread_mutex_init(&r->lock, NULL)) {
        free(r);
        return NULL;
    }
    r->first_free = r->last_free = UINT32_MAX;
    r->refs = 1;
    return r;
}

/* The snapshots hold it, and who makes the first. */
static void roll_unref(struct cfg_roll *r)
{
    pthread_mutex_lock(&r->lock);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) return;
    pthread_mutex_destroy(&r->lock);
    free(r->slots);
    free(r);
}

uint32_t cfg_roll_join(struct cfg_roll *r)
{
    pthread_mutex_lock(&r->lock);
    cn_assert(r->n_parties < 32);
    uint32_t party = 1u << r->n_parties++;
    pthread_mutex_unlock(&r->lock);
    return party;
}

/* With the lock. A slot whose generations are used up stays out. */
static void set_free(struct cfg_roll *r, uint32_t i)
{
    struct slot *s = &r->slots[i];

    s->state = FREE;
    s->left = 0;
    s->next_free = UINT32_MAX;
    if (++s->generation == UINT32_MAX) return;
    if (r->last_free == UINT32_MAX)
        r->first_free = i;
    else
        r->slots[r->last_free].next_free = i;
    r->last_free = i;
}

static bool all_left(const struct cfg_roll *r, const struct slot *s)
{
    return s->left == (uint32_t)((1ull << r->n_parties) - 1);
}

void cfg_roll_left(struct cfg_roll *r, uint64_t id, uint32_t party)
{
    pthread_mutex_lock(&r->lock);
    cn_assert(cfg_slot(id) < r->n);
    struct slot *s = &r->slots[cfg_slot(id)];
    cn_assert(s->state != FREE && s->generation == id >> 32);
    s->left |= party;
    if (s->state == LEAVING && all_left(r, s)) set_free(r, cfg_slot(id));
    pthread_mutex_unlock(&r->lock);
}

/* With the lock. */
static int take_slot(struct cfg_roll *r, uint64_t *id)
{
    uint32_t i = r->first_free;

    if (i == UINT32_MAX) {
        if (r->n >= CFG_MAX_SLOTS ||
            cn_grow(&r->slots, &r->cap, (size_t)r->n + 1, sizeof *r->slots))
            return CN_ENOMEM;
        i = r->n++;
        r->slots[i] = (struct slot){0};
    } else {
        r->first_free = r->slots[i].next_free;
        if (r->first_free == UINT32_MAX) r->last_free = UINT32_MAX;
    }
    r->slots[i].state = USED;
    *id = (uint64_t)r->slots[i].generation << 32 | i;
    return 0;
}

/* ---- tenants by name ------------------------------------------------------------------------- */

struct names {
    const struct cfg_seat **at;
    size_t mask;
};

static size_t place_of(const struct names *n, const char *name)
{
    static const uint8_t key[16];

    return (size_t)cn_siphash13(key, name, strlen(name)) & n->mask;
}

/* Of the old snapshot's. */
static int names_init(struct names *n, const struct cfg_tenants *old)
{
    size_t cap = 16;

    while (old && cap < old->n_all * 2)
        cap *= 2;
    n->mask = cap - 1;
    n->at = cn_calloc(cap, sizeof *n->at);
    if (!n->at) return CN_ENOMEM;
    for (uint32_t i = 0; old && i < old->n_slots; i++) {
        const struct cfg_seat *seat = &old->seats[i];
        if (!seat->tenant || !seat->tenant->name) continue;
        size_t at = place_of(n, seat->tenant->name);
        while (n->at[at])
            at = (at + 1) & n->mask;
        n->at[at] = seat;
    }
    return 0;
}

static const struct cfg_seat *names_find(const struct names *n, const char *name)
{
    for (size_t at = place_of(n, name); n->at[at]; at = (at + 1) & n->mask)
        if (!strcmp(n->at[at]->tenant->name, name)) return n->at[at];
    return NULL;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

struct cfg_tenants *cfg_tenants_ref(struct cfg_tenants *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

static void snapshot_free(struct cfg_tenants *t)
{
    for (size_t i = 0; i < t->n_all; i++)
        cfg_tenant_fini(&t->all[i]);
    free(t->all);
    free(t->seats);
    roll_unref(t->roll);
    free(t);
}

void cfg_tenants_unref(struct cfg_tenants *t)
{
    if (t && atomic_fetch_sub(&t->refs, 1) == 1) snapshot_free(t);
}

/* Gives the tenants of t their seats; with the roll's lock. ids: scratch, [n_all]. */
static int seat_all(struct cfg_tenants *t, const struct cfg_tenants *old, const struct names *names,
                    uint64_t *ids)
{
    struct cfg_roll *r = t->roll;
    size_t n = 0;
    int rc = 0;

    for (; !rc && n < t->n_all; n += !rc) {
        const char *name = t->all[n].name;
        const struct cfg_seat *was = name ? names_find(names, name) : NULL;
        if (!name && old && old->unnamed)
            ids[n] = old->first;
        else if (was)
            ids[n] = was->id;
        else
            rc = take_slot(r, &ids[n]);
    }
    if (!rc && !(t->seats = cn_calloc(r->n, sizeof *t->seats))) rc = CN_ENOMEM;
    if (rc) { /* those that are new */
        while (n-- > 0)
            if (!old || !cfg_tenants_find(old, ids[n])) set_free(r, cfg_slot(ids[n]));
        return rc;
    }
    t->n_slots = r->n;
    for (size_t i = 0; i < t->n_all; i++) {
        t->seats[cfg_slot(ids[i])] = (struct cfg_seat){ids[i], &t->all[i]};
        if (t->all[i].keys.count) t->has_keys = true;
    }
    t->first = ids[0];
    return 0;
}

static int by_hash(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct cfg_key_hash));
}

static void sort_keys(struct cfg_tenant *t)
{
    if (t->keys.count) qsort(t->key_hashes, t->keys.count, sizeof *t->key_hashes, by_hash);
}

/* list is moved. */
static int make(struct cfg_roll *roll, const struct cfg_tenants *old, struct cfg_tenant *list,
                size_t n, bool unnamed, struct cfg_tenants **out, struct cn_error *err)
{
    struct cfg_tenants *t = cn_calloc(1, sizeof *t);
    uint64_t *ids = cn_calloc(n, sizeof *ids);
    struct names names = {0};

    if (!t || !ids || names_init(&names, old)) {
        struct cfg_draft d = {.tenants = list, .n = n};
        cfg_draft_fini(&d);
        free(t);
        free(ids);
        return cn_fail(err, CN_ENOMEM, "out of memory for %zu tenants", n);
    }
    *t = (struct cfg_tenants){.refs = 1, .roll = roll, .all = list, .n_all = n, .unnamed = unnamed};
    for (size_t i = 0; i < n; i++)
        sort_keys(&list[i]);
    pthread_mutex_lock(&roll->lock);
    roll->refs++;
    int rc = seat_all(t, old, &names, ids);
    pthread_mutex_unlock(&roll->lock);
    free(names.at);
    free(ids);
    if (rc) {
        snapshot_free(t);
        return cn_fail(err, rc, "out of memory for %zu tenants", n);
    }
    *out = t;
    return 0;
}

int cfg_tenant_new(struct cfg_tenant *t, const char *name, struct cn_error *err)
{
    int rc = cfg_tenant_init(t, err);

    if (rc) return rc;
    free(t->name);
    t->name = strdup(name);
    return t->name ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
}

/* For a source that names no tenant: one without a name or limits. */
static int one_unnamed(struct cfg_tenant **list, struct cn_error *err)
{
    struct cfg_tenant *t = cn_calloc(1, sizeof *t);
    int rc = t ? cfg_tenant_init(t, err) : cn_fail(err, CN_ENOMEM, "out of memory");

    if (rc) {
        if (t) cfg_tenant_fini(t);
        free(t);
        return rc;
    }
    *list = t;
    return 0;
}

int cfg_tenants_next(const struct cfg_tenants *old, struct cfg_tenant *list, size_t n,
                     struct cfg_tenants **out, struct cn_error *err)
{
    bool unnamed = !n;

    if (unnamed) {
        free(list);
        int rc = one_unnamed(&list, err);
        if (rc) return rc;
    }
    return make(old->roll, old, list, unnamed ? 1 : n, unnamed, out, err);
}

int cfg_tenants_of(const struct cfg *c, struct cfg_tenants **out, struct cn_error *err)
{
    struct cfg_roll *roll = roll_new();
    struct cfg_draft d = {.n = CN_MAX(c->n_tenants, (size_t)1)};
    bool unnamed = !c->n_tenants;
    int rc = roll ? 0 : CN_ENOMEM;

    if (!rc && unnamed)
        rc = one_unnamed(&d.tenants, err);
    else if (!rc && !(d.tenants = cn_calloc(d.n, sizeof *d.tenants)))
        rc = CN_ENOMEM;
    for (size_t i = 0; !rc && i < c->n_tenants; i++)
        rc = cfg_tenant_copy(&d.tenants[i], &c->tenants[i]);
    if (rc) {
        cfg_draft_fini(&d);
        cn_fail(err, rc, "out of memory for the tenants");
    } else {
        rc = make(roll, NULL, d.tenants, d.n, unnamed, out, err);
    }
    if (roll) roll_unref(roll);
    return rc;
}

/* Of the two, `a` has tenants that b has not: their slots. */
static void leave(const struct cfg_tenants *a, const struct cfg_tenants *b, bool at_once)
{
    struct cfg_roll *r = a->roll;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < a->n_slots; i++) {
        if (!a->seats[i].tenant || cfg_tenants_find(b, a->seats[i].id)) continue;
        r->slots[i].state = LEAVING;
        if (at_once || all_left(r, &r->slots[i])) set_free(r, i);
    }
    pthread_mutex_unlock(&r->lock);
}

void cfg_tenants_commit(const struct cfg_tenants *old, const struct cfg_tenants *now)
{
    leave(old, now, false);
}

void cfg_tenants_discard(const struct cfg_tenants *old, struct cfg_tenants *now)
{
    leave(now, old, true);
    cfg_tenants_unref(now);
}

/* ---- looking --------------------------------------------------------------------------------- */

static const struct cfg_seat *seat_at(const struct cfg_tenants *t, uint32_t slot)
{
    static const struct cfg_seat nobody;

    return t && slot < t->n_slots ? &t->seats[slot] : &nobody;
}

const struct cfg_tenant *cfg_tenants_find(const struct cfg_tenants *t, uint64_t id)
{
    const struct cfg_seat *s = seat_at(t, cfg_slot(id));

    return s->id == id ? s->tenant : NULL;
}

enum cfg_change cfg_tenants_change(const struct cfg_tenants *old, const struct cfg_tenants *now,
                                   uint32_t slot)
{
    const struct cfg_seat *a = seat_at(old, slot), *b = seat_at(now, slot);

    if (!a->tenant) return b->tenant ? CFG_ADDED : CFG_SAME;
    if (!b->tenant) return CFG_REMOVED;
    cn_assert(a->id == b->id); /* a slot is not reused before all parties have left it */
    return cfg_tenant_same(a->tenant, b->tenant) ? CFG_SAME : CFG_CHANGED;
}

uint64_t cfg_key_id(const struct cfg_key_hash *k)
{
    uint64_t id;

    memcpy(&id, k->sha256, sizeof id);
    return id;
}

bool cfg_tenant_has_key(const struct cfg_tenant *t, uint64_t key)
{
    size_t low = 0, high = t->keys.count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = memcmp(&key, t->key_hashes[mid].sha256, sizeof key);
        if (!order) return true;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return false;
}
