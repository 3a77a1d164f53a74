/* Tenants and their keys as data that changes while the daemon runs.
 *
 * A snapshot is immutable and reference-counted: readers hold one, and a change replaces it with
 * a new one. Ids stay valid across snapshots; an id is a slot, which indexes tables, and a
 * generation. The roll assigns slots. It reuses the slot of a removed tenant, with the next
 * generation, only after every party that keeps data by slot has reported that all of that
 * tenant's data is gone. */
#ifndef CONFIG_TENANTS_H
#define CONFIG_TENANTS_H

#include "config/config.h"

/* slot | generation << 32 */
static inline uint32_t cfg_slot(uint64_t id)
{
    return (uint32_t)id;
}

struct cfg_roll;
/* A party that keeps something by slot, from now on; a bit. At most 32, before the first change. */
uint32_t cfg_roll_join(struct cfg_roll *r);
/* The party has nothing left of a tenant that was removed, or is about to be. Any thread. */
void cfg_roll_left(struct cfg_roll *r, uint64_t id, uint32_t party);

struct cfg_seat {
    uint64_t id;
    const struct cfg_tenant *tenant; /* NULL: the slot is free. tenant->places are not valid */
};
/* Read by any thread that holds it. */
struct cfg_tenants {
    _Atomic uint32_t refs;
    struct cfg_roll *roll;
    uint32_t n_slots;
    struct cfg_seat *seats; /* [n_slots], by slot */
    struct cfg_tenant *all; /* in the order of the source; key_hashes of each are sorted */
    size_t n_all;
    uint64_t first; /* id of the first, to whom requests belong where there are no keys */
    bool has_keys;
    bool unnamed; /* the source named no tenant: one without a name or limits */
};
/* The first snapshot, with a roll of its own: the tenants of c, copied, in slots from 0 on. *out is
 * held once. */
int cfg_tenants_of(const struct cfg *c, struct cfg_tenants **out, struct cn_error *err);
/* The snapshot after `old`: tenants of the same name keep their ids. list: n tenants, moved,
 * whatever comes of it (the array too). It becomes real with cfg_tenants_commit, or is given up
 * with cfg_tenants_discard; of the snapshots after `old` only one may be under way. */
int cfg_tenants_next(const struct cfg_tenants *old, struct cfg_tenant *list, size_t n,
                     struct cfg_tenants **out, struct cn_error *err);
/* Slots of tenants that are not in `now` any more begin to be left. */
void cfg_tenants_commit(const struct cfg_tenants *old, const struct cfg_tenants *now);
void cfg_tenants_discard(const struct cfg_tenants *old, struct cfg_tenants *now);
struct cfg_tenants *cfg_tenants_ref(struct cfg_tenants *t);
void cfg_tenants_unref(struct cfg_tenants *t); /* takes NULL */

/* The tenant of an id; NULL when it was removed. */
const struct cfg_tenant *cfg_tenants_find(const struct cfg_tenants *t, uint64_t id);

enum cfg_change { CFG_SAME, CFG_ADDED, CFG_CHANGED, CFG_REMOVED };
/* What became of a slot. Keys are not looked at. old may be NULL. */
enum cfg_change cfg_tenants_change(const struct cfg_tenants *old, const struct cfg_tenants *now,
                                   uint32_t slot);

/* What a key is called inside: of its hash, so that it stays the same whenever it is read. */
uint64_t cfg_key_id(const struct cfg_key_hash *k);
/* t: of a snapshot, where key_hashes are in ascending order. */
bool cfg_tenant_has_key(const struct cfg_tenant *t, uint64_t key);

/* ---- where tenants come from ----------------------------------------------------------------- */

struct cfg_draft {
    struct cfg_tenant *tenants; /* for cfg_tenants_next */
    size_t n;
    char others[200]; /* keys that have changed too, and need a restart; "" where there are none */
};
/* A tenant with the defaults and this name, which is copied. */
int cfg_tenant_new(struct cfg_tenant *t, const char *name, struct cn_error *err);
struct cfg_source {
    /* Reads all tenants. Any thread, one call at a time. On failure err says why nothing
     * changes. */
    int (*load)(struct cfg_source *self, struct cfg_draft *out, struct cn_error *err);
    void (*free)(struct cfg_source *self);
};
void cfg_draft_fini(struct cfg_draft *d);
/* The config file, read as cfg_from_args does with these arguments, which are copied. */
int cfg_source_args(int argc, char *const *argv, struct cfg_source **out, struct cn_error *err);
/* Takes NULL. */
void cfg_source_free(struct cfg_source *s);

#endif
