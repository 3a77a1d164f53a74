/* What the files of config/ share: the table of keys and how one value is put into a struct.
 * Not for other folders. */
#ifndef CONFIG_INTERNAL_H
#define CONFIG_INTERNAL_H

#include "config/config.h"

enum cfg_type {
    CFG_T_STR,
    CFG_T_INT,
    CFG_T_SIZE,
    CFG_T_NUM,
    CFG_T_ENUM,
    CFG_T_PICK,
    CFG_T_LIST,
    CFG_T_BOOL,
};

#define CFG_MAX_MODELS 256        /* what the scheduler can hold */
#define CFG_MAX_SLOTS  (1u << 20) /* of tenants: what the scheduler and the pool can hold */
#define CFG_MAX_FAULTS 100        /* that are worth telling */

struct cfg_key {
    const char *group, *name;
    enum cfg_type type;
    const char *def, *bounds, *help;
    size_t offset; /* in struct cfg; in an item's struct for keys of a list */
};

/* The keys of the groups; those of one item of a list, "tenants", "models" or "groups" (NULL:
 * no list). */
const struct cfg_key *cfg_keys(size_t *count);
const struct cfg_key *cfg_item_keys(const char *list, size_t *count);
/* The key of a group, NULL when there is none. name need not be NUL-terminated. */
const struct cfg_key *cfg_key_find(const char *group, const char *name, size_t n);
bool cfg_group_known(const char *group);
/* As cfg_set, and remembers the option (static) that it came from. */
int cfg_set_from(struct cfg *c, const char *key, const char *value, const char *option,
                 struct cn_error *err);

/* Writes text into the member of `base` that k names; frees what was there. quoted: YAML had quotes
 * around it, so it is no number. err gets the reason alone; callers put the place before it. */
int cfg_key_put(const struct cfg_key *k, void *base, const char *text, size_t n, bool quoted,
                struct cn_error *err);
int cfg_list_add(struct cfg_list *l, const char *text, size_t n);
void cfg_list_fini(struct cfg_list *l);

/* Notes an error that does not end the reading, in c->faults and, unless it holds one, in *err. The
 * first beyond CFG_MAX_FAULTS is noted as such, and no more: an error, as when memory is short. */
int cfg_fault(struct cfg *c, const struct cn_error *e, struct cn_error *err);

int cfg_tenant_init(struct cfg_tenant *t, struct cn_error *err);
void cfg_tenant_fini(struct cfg_tenant *t);
/* to comes zeroed, and needs cfg_tenant_fini whatever comes of it. Places are left out. */
int cfg_tenant_copy(struct cfg_tenant *to, const struct cfg_tenant *from);
/* Whether all keys but `keys` have the same values. */
bool cfg_tenant_same(const struct cfg_tenant *a, const struct cfg_tenant *b);
/* Whether a key, or `count` of them, have the same values in two structs. */
bool cfg_key_same(const struct cfg_key *k, const void *a, const void *b);
bool cfg_keys_same(const struct cfg_key *k, size_t count, const void *a, const void *b);
int cfg_served_init(struct cfg_served *m, struct cn_error *err);
void cfg_served_fini(struct cfg_served *m);
int cfg_group_init(struct cfg_group *g, struct cn_error *err);
void cfg_group_fini(struct cfg_group *g);
/* Decodes "sha256:<64 hex>"; false when it is not that. */
bool cfg_parse_key_hash(const char *text, struct cfg_key_hash *out);

#endif
