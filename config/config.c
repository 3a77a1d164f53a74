/* The table made from keys.def, defaults, and the rules between keys.
 * One thread, at start. A struct cfg owns every string, list and tenant in it. */
#include "config/internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct cfg_key keys[] = {
#define GROUP(group, help)
#define END(group)
#define KEY(group, name, type, def, bounds, help)                                                  \
    {#group, #name, CFG_T_##type, def, bounds, help, offsetof(struct cfg, group.name)},
#include "config/keys.def"
#undef KEY
#undef GROUP
#undef END
};

_Static_assert(CN_ARRAY_LEN(keys) <= 64, "yaml.c remembers 64 keys as seen");
_Static_assert(CN_ARRAY_LEN(keys) == CFG_N_KEYS, "places are by the key's number");

static const struct cfg_key tenant_keys[] = {
#define CFG_TENANT_KEYS
#define KEY(group, name, type, def, bounds, help)                                                  \
    {#group, #name, CFG_T_##type, def, bounds, help, offsetof(struct cfg_tenant, name)},
#include "config/keys.def"
#undef KEY
#undef CFG_TENANT_KEYS
};

static const struct cfg_key model_keys[] = {
#define CFG_MODEL_KEYS
#define KEY(group, name, type, def, bounds, help)                                                  \
    {#group, #name, CFG_T_##type, def, bounds, help, offsetof(struct cfg_served, name)},
#include "config/keys.def"
#undef KEY
#undef CFG_MODEL_KEYS
};

static const struct cfg_key group_keys[] = {
#define CFG_GROUP_KEYS
#define KEY(group, name, type, def, bounds, help)                                                  \
    {#group, #name, CFG_T_##type, def, bounds, help, offsetof(struct cfg_group, name)},
#include "config/keys.def"
#undef KEY
#undef CFG_GROUP_KEYS
};

/* The lists, by name. */
static const struct {
    const char *name;
    const struct cfg_key *keys;
    size_t n;
} item_keys[] = {{"tenants", tenant_keys, CN_ARRAY_LEN(tenant_keys)},
                 {"models", model_keys, CN_ARRAY_LEN(model_keys)},
                 {"groups", group_keys, CN_ARRAY_LEN(group_keys)}};

const struct cfg_key *cfg_keys(size_t *count)
{
    *count = CN_ARRAY_LEN(keys);
    return keys;
}

const struct cfg_key *cfg_item_keys(const char *list, size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(item_keys); i++) {
        if (strcmp(list, item_keys[i].name)) continue;
        *count = item_keys[i].n;
        return item_keys[i].keys;
    }
    return NULL;
}

static const struct cfg_key *find_in(const struct cfg_key *k, size_t count, const char *group,
                                     const char *name, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(k[i].group, group) && strlen(k[i].name) == n && !memcmp(k[i].name, name, n))
            return &k[i];
    return NULL;
}

const struct cfg_key *cfg_key_find(const char *group, const char *name, size_t n)
{
    size_t count;
    const struct cfg_key *item = cfg_item_keys(group, &count);

    if (item) return find_in(item, count, group, name, n);
    return find_in(keys, CN_ARRAY_LEN(keys), group, name, n);
}

bool cfg_group_known(const char *group)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(keys); i++)
        if (!strcmp(keys[i].group, group)) return true;
    return false;
}

static int put_defaults(const struct cfg_key *k, size_t count, void *base, struct cn_error *err)
{
    for (size_t i = 0; i < count; i++) {
        int rc = cfg_key_put(&k[i], base, k[i].def, strlen(k[i].def), false, err);

        if (rc) {
            cn_error_wrap(err, "default of %s.%s", k[i].group, k[i].name);
            return rc;
        }
    }
    return CN_OK;
}

static void free_values(const struct cfg_key *k, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++) {
        void *member = (char *)base + k[i].offset;

        if (k[i].type == CFG_T_STR) free(*(char **)member);
        if (k[i].type == CFG_T_LIST) cfg_list_fini(member);
    }
}

int cfg_init(struct cfg *c, struct cn_error *err)
{
    memset(c, 0, sizeof *c);
    return put_defaults(keys, CN_ARRAY_LEN(keys), c, err);
}

void cfg_fini(struct cfg *c)
{
    if (!c) return;
    free_values(keys, CN_ARRAY_LEN(keys), c);
    for (size_t i = 0; i < c->n_tenants; i++)
        cfg_tenant_fini(&c->tenants[i]);
    free(c->tenants);
    for (size_t i = 0; i < c->n_models; i++)
        cfg_served_fini(&c->models[i]);
    free(c->models);
    for (size_t i = 0; i < c->n_groups; i++)
        cfg_group_fini(&c->groups[i]);
    free(c->groups);
    cfg_list_fini(&c->sources);
    cfg_list_fini(&c->faults);
    memset(c, 0, sizeof *c);
}

int cfg_tenant_init(struct cfg_tenant *t, struct cn_error *err)
{
    memset(t, 0, sizeof *t);
    return put_defaults(tenant_keys, CN_ARRAY_LEN(tenant_keys), t, err);
}

void cfg_tenant_fini(struct cfg_tenant *t)
{
    free_values(tenant_keys, CN_ARRAY_LEN(tenant_keys), t);
    free(t->key_hashes);
    memset(t, 0, sizeof *t);
}

int cfg_served_init(struct cfg_served *m, struct cn_error *err)
{
    memset(m, 0, sizeof *m);
    return put_defaults(model_keys, CN_ARRAY_LEN(model_keys), m, err);
}

void cfg_served_fini(struct cfg_served *m)
{
    free_values(model_keys, CN_ARRAY_LEN(model_keys), m);
    memset(m, 0, sizeof *m);
}

int cfg_group_init(struct cfg_group *g, struct cn_error *err)
{
    memset(g, 0, sizeof *g);
    return put_defaults(group_keys, CN_ARRAY_LEN(group_keys), g, err);
}

void cfg_group_fini(struct cfg_group *g)
{
    free_values(group_keys, CN_ARRAY_LEN(group_keys), g);
    memset(g, 0, sizeof *g);
}

/* The key of the groups that "group.name" stands for, or NULL. */
static const struct cfg_key *find_full(const char *key)
{
    const char *dot = strchr(key, '.');
    char group[32];
    size_t count;

    if (!dot || (size_t)(dot - key) >= sizeof group) return NULL;
    memcpy(group, key, (size_t)(dot - key));
    group[dot - key] = '\0';
    return cfg_item_keys(group, &count) ? NULL : cfg_key_find(group, dot + 1, strlen(dot + 1));
}

int cfg_set_from(struct cfg *c, const char *key, const char *value, const char *option,
                 struct cn_error *err)
{
    const struct cfg_key *k = find_full(key);
    int rc;

    if (!k) return cn_fail_param(err, CN_EINVAL, key, "unknown key \"%.100s\"", key);
    rc = cfg_key_put(k, c, value, strlen(value), false, err);
    if (rc && err) {
        struct cn_error why = *err;
        cn_fail_param(err, rc, key, "%s: %s", key, why.message);
    }
    if (!rc) c->places[k - keys] = (struct cfg_place){.source = option};
    return rc;
}

int cfg_set(struct cfg *c, const char *key, const char *value, struct cn_error *err)
{
    return cfg_set_from(c, key, value, NULL, err);
}

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("_-/[]", c));
}

/* Whether text names the key: neither as a part of another name nor within a path. */
static bool says_key(const char *text, const char *key)
{
    size_t n = strlen(key);

    for (const char *at = text; (at = strstr(at, key)); at++) {
        bool begins = at == text || (!in_name(at[-1]) && at[-1] != '.');
        if (begins && !in_name(at[n]) && !(at[n] == '.' && in_name(at[n + 1]))) return true;
    }
    return false;
}

void cfg_error_at(const struct cfg_place *place, struct cn_error *err)
{
    if (!err || !place->source) return;
    if (err->param[0] && !says_key(err->message, err->param)) cn_error_wrap(err, "%s", err->param);
    if (place->line)
        cn_error_wrap(err, "%s:%u:%u", place->source, place->line, place->column);
    else
        cn_error_wrap(err, "%s", place->source);
}

void cfg_error_place(const struct cfg *c, struct cn_error *err)
{
    const struct cfg_key *k = err ? find_full(err->param) : NULL;

    if (k) cfg_error_at(&c->places[k - keys], err);
}

int cfg_fault(struct cfg *c, const struct cn_error *e, struct cn_error *err)
{
    static const char more[] = "there are more errors: these are the first";

    bool full = c->faults.count >= CFG_MAX_FAULTS;
    const char *text = full ? more : e->message;

    if (err && !err->code) *err = *e;
    if (c->faults.count > CFG_MAX_FAULTS) return CN_ELIMIT;
    if (full) c->half_read = true;
    if (cfg_list_add(&c->faults, text, strlen(text)))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    return full ? CN_ELIMIT : CN_OK;
}

/* ---- rules between keys ---------------------------------------------------------------------- */

struct checker {
    struct cfg *c;
    struct cn_error *first; /* of the rules that are broken */
};

/* Notes a broken rule as "file:line:column: key: reason", with the place of the key at fault. */
CN_PRINTF(5, 6)
static void broken(struct checker *k, const struct cfg_place *place, int code, const char *param,
                   const char *fmt, ...)
{
    struct cn_error e = {0};
    char why[sizeof e.message];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    cn_fail_param(&e, code, param, "%s: %s", param, why);
    cfg_error_at(place, &e);
    (void)cfg_fault(k->c, &e, k->first); /* no memory: k->first says so */
}

bool cfg_has_keys(const struct cfg *c)
{
    for (size_t i = 0; i < c->n_tenants; i++)
        if (c->tenants[i].keys.count) return true;
    return false;
}

bool cfg_is_loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;

    if (!strcasecmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) != 1) return false;
    if (IN6_IS_ADDR_V4MAPPED(&six)) return six.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&six);
}

static bool share_a_key(const struct cfg_tenant *a, const struct cfg_tenant *b)
{
    for (size_t i = 0; i < a->keys.count; i++)
        for (size_t j = 0; j < b->keys.count; j++)
            if (!memcmp(&a->key_hashes[i], &b->key_hashes[j], sizeof a->key_hashes[i])) return true;
    return false;
}

/* Reports a name or a key that t shares with a tenant before it: each at most once, for the
 * first such tenant. */
static void check_others(struct checker *k, const struct cfg_tenant *before,
                         const struct cfg_tenant *t)
{
    const struct cfg_tenant *a = before;

    while (a < t && strcmp(a->name, t->name))
        a++;
    if (a < t)
        broken(k, &t->places[CFG_TENANT_KEY_name], CN_EINVAL, "tenants.name",
               "two tenants are named \"%.80s\"", t->name);
    for (a = before; a < t && !share_a_key(a, t);)
        a++;
    if (a < t)
        broken(k, &t->places[CFG_TENANT_KEY_keys], CN_EINVAL, "tenants.keys",
               "tenants \"%.80s\" and \"%.80s\" share a key", a->name, t->name);
}

static void check_tenants(struct checker *k)
{
    const struct cfg *c = k->c;
    bool keys_used = cfg_has_keys(c);
    double shares = 0;

    for (size_t i = 0; i < c->n_tenants; i++) {
        const struct cfg_tenant *t = &c->tenants[i];
        bool fits = shares <= 1 + 1e-9;

        if (keys_used && !t->keys.count)
            broken(k, &t->places[CFG_TENANT_KEY_name], CN_EINVAL, "tenants.keys",
                   "tenant \"%.80s\" has no key, and without one nobody can use it: give it a "
                   "key, or remove the tenant, which revokes the keys that it had",
                   t->name);
        if (!keys_used && i == 1)
            broken(k, &t->places[CFG_TENANT_KEY_name], CN_EINVAL, "tenants.keys",
                   "several tenants need keys: without one, every request belongs to the first");
        check_others(k, c->tenants, t);
        shares += t->kv_share;
        if (fits && shares > 1 + 1e-9)
            broken(k, &t->places[CFG_TENANT_KEY_kv_share], CN_ERANGE, "tenants.kv_share",
                   "the tenants' kv_share add up to %.3g with \"%.80s\", which is more than 1",
                   shares, t->name);
    }
}

static void check_sampling(struct checker *k, const char *text, const struct cfg_place *place,
                           const char *key)
{
    struct cfg_sampling s;
    struct cn_error why = {0};
    int rc = cfg_sampling_read(text, &s, &why);

    if (rc) broken(k, place, rc, key, "%s", why.message);
}

/* Beside a list of models the group of the one model says nothing: what is set there would be
 * lost. */
static void check_models(struct checker *k)
{
    const struct cfg *c = k->c;
    const struct {
        bool set;
        enum cfg_key_number key;
        const char *name;
    } lost[] = {{c->model.path, CFG_KEY_model_path, "model.path"},
                {c->model.name, CFG_KEY_model_name, "model.name"},
                {c->model.chat_template, CFG_KEY_model_chat_template, "model.chat_template"},
                {c->model.sampling, CFG_KEY_model_sampling, "model.sampling"},
                {c->model.context, CFG_KEY_model_context, "model.context"},
                {c->model.kv_type != CFG_KV_F16, CFG_KEY_model_kv_type, "model.kv_type"}};

    check_sampling(k, c->model.sampling, &c->places[CFG_KEY_model_sampling], "model.sampling");
    for (size_t i = 0; i < c->n_models; i++) {
        size_t j = 0;

        check_sampling(k, c->models[i].sampling, &c->models[i].places[CFG_MODEL_KEY_sampling],
                       "models.sampling");
        while (j < i && strcmp(c->models[i].name, c->models[j].name))
            j++;
        if (j < i)
            broken(k, &c->models[i].places[CFG_MODEL_KEY_name], CN_EINVAL, "models.name",
                   "two models are named \"%.80s\"", c->models[i].name);
    }
    for (size_t i = 0; c->n_models && i < CN_ARRAY_LEN(lost); i++)
        if (lost[i].set)
            broken(k, &c->places[lost[i].key], CN_EINVAL, lost[i].name,
                   "this is for one model, and models lists several: set it there");
}

static bool has_models(const struct cfg *c, uint32_t group)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (cfg_group_of(c, &c->models[i]) == group) return true;
    return false;
}

/* Of a group beside those before it. */
static void check_group(struct checker *k, uint32_t i)
{
    const struct cfg *c = k->c;
    const struct cfg_group *g = &c->groups[i];
    uint32_t j = 0;

    while (j < i && strcmp(g->name, c->groups[j].name))
        j++;
    if (j < i)
        broken(k, &g->places[CFG_GROUP_KEY_name], CN_EINVAL, "groups.name",
               "two groups are named \"%.80s\"", g->name);
    else if (!has_models(c, i))
        broken(k, &g->places[CFG_GROUP_KEY_name], CN_EINVAL, "groups.name",
               "no model is in the group \"%.80s\" (models.group)", g->name);
    if (g->memory_bytes && g->kv_memory_bytes >= g->memory_bytes)
        broken(k, &g->places[CFG_GROUP_KEY_kv_memory_bytes], CN_ERANGE, "groups.kv_memory_bytes",
               "the group \"%.80s\" would have no memory left for weights (groups.memory_bytes)",
               g->name);
}

/* Together the groups have no more than there is for all. */
static void check_parts(struct checker *k)
{
    const struct cfg *c = k->c;
    uint64_t threads = 0, memory = 0;

    for (size_t i = 0; i < c->n_groups; i++) {
        const struct cfg_group *g = &c->groups[i];
        bool fit = threads <= (uint64_t)c->engine.threads, room = memory <= c->engine.memory_bytes;
        threads += (uint64_t)g->threads;
        if (!cn_add_u64(memory, g->memory_bytes, &memory)) memory = UINT64_MAX;
        if (c->engine.threads && fit && threads > (uint64_t)c->engine.threads)
            broken(k, &g->places[CFG_GROUP_KEY_threads], CN_ERANGE, "groups.threads",
                   "with \"%.80s\" the groups have %llu threads, and engine.threads is %lld",
                   g->name, (unsigned long long)threads, (long long)c->engine.threads);
        if (c->engine.memory_bytes && room && memory > c->engine.memory_bytes)
            broken(k, &g->places[CFG_GROUP_KEY_memory_bytes], CN_ERANGE, "groups.memory_bytes",
                   "with \"%.80s\" the groups have %s, and engine.memory_bytes is %s", g->name,
                   cn_size(memory).text, cn_size(c->engine.memory_bytes).text);
    }
}

static void check_groups(struct checker *k)
{
    const struct cfg *c = k->c;

    for (size_t i = 0; i < c->n_models; i++) {
        const struct cfg_served *m = &c->models[i];
        uint32_t g = cfg_group_of(c, m);
        if (m->group && (!c->n_groups || strcmp(m->group, c->groups[g].name)))
            broken(k, &m->places[CFG_MODEL_KEY_group], CN_EINVAL, "models.group",
                   "there is no group \"%.80s\" (groups)", m->group);
    }
    if (!c->n_groups) return;
    if (!c->n_models)
        broken(k, &c->groups[0].places[CFG_GROUP_KEY_name], CN_EINVAL, "groups",
               "groups are for a list of models: list them under models, each with its group");
    for (uint32_t i = 0; c->n_models && i < c->n_groups; i++)
        check_group(k, i);
    if (c->kv.memory_bytes)
        broken(k, &c->places[CFG_KEY_kv_memory_bytes], CN_EINVAL, "kv.memory_bytes",
               "this is for one pool, and each of the groups has its own: set "
               "groups.kv_memory_bytes");
    check_parts(k);
}

static void check_proxies(struct checker *k)
{
    const struct cfg_list *all = &k->c->server.trusted_proxies;

    for (size_t i = 0; i < all->count; i++) {
        struct cn_error why = {0};
        struct cfg_range r;
        if (cfg_parse_range(all->items[i], strlen(all->items[i]), &r, &why))
            broken(k, &k->c->places[CFG_KEY_server_trusted_proxies], CN_EINVAL,
                   "server.trusted_proxies", "%s", why.message);
    }
}

int cfg_check(struct cfg *c, struct cn_error *err)
{
    struct cn_error first = {0};
    struct checker k = {.c = c, .first = &first};

    if (c->half_read) return CN_OK;
    if (!c->server.host)
        broken(&k, &c->places[CFG_KEY_server_host], CN_EMISSING, "server.host",
               "must not be empty");
    else if (!cfg_is_loopback(c->server.host) && !cfg_has_keys(c))
        broken(&k, &c->places[CFG_KEY_server_host], CN_EINVAL, "server.host",
               "%.80s can be reached from other machines, but no tenant has a key: make one "
               "with `conifer key new`, or listen on 127.0.0.1",
               c->server.host);
    if (c->model.name && !c->model.path && !cfg_model_name_ok(c->model.name))
        broken(&k, &c->places[CFG_KEY_model_name], CN_EINVAL, "model.name",
               "\"%.80s\" may hold only letters, digits, '.', '_' and '-'", c->model.name);
    check_proxies(&k);
    check_models(&k);
    check_groups(&k);
    check_tenants(&k);
    if (first.code && err) *err = first;
    return first.code;
}

void cfg_log_setup(const struct cfg *c)
{
    static const enum cn_log_level levels[] = {CN_LOG_ERROR, CN_LOG_WARN, CN_LOG_INFO,
                                               CN_LOG_DEBUG};
    enum cn_log_format format = CN_LOG_TEXT;

    switch ((enum cfg_log_format)c->log.format) {
    case CFG_LOG_AUTO:
        if (getenv("JOURNAL_STREAM") && !c->log.file) format = CN_LOG_JOURNAL;
        break;
    case CFG_LOG_TEXT:
        break;
    case CFG_LOG_JSON:
        format = CN_LOG_JSON;
        break;
    case CFG_LOG_JOURNAL:
        format = CN_LOG_JOURNAL;
        break;
    }
    cn_log_setup(levels[c->log.level], format);
}
