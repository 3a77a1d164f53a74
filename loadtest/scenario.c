/* A scenario: its table of keys, defaults, and the rules between keys. */
#include "loadtest/loadtest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLASSES 64
#define MAX_TENANTS 100000

static const struct lt_key run_keys[] = {
#define RUN(type, member, def, bounds, help)                                                       \
    {#member, LT_T_##type, def, bounds, help, offsetof(struct lt_scenario, member)},
#include "loadtest/scenario.def"
};
static const struct lt_key class_keys[] = {
#define CLASS(type, member, def, bounds, help)                                                     \
    {#member, LT_T_##type, def, bounds, help, offsetof(struct lt_class, member)},
#include "loadtest/scenario.def"
};
static const struct lt_key tenant_keys[] = {
#define TENANT(type, member, def, bounds, help)                                                    \
    {#member, LT_T_##type, def, bounds, help, offsetof(struct lt_tenant, member)},
#include "loadtest/scenario.def"
};

const struct lt_key *lt_keys(enum lt_group g, size_t *count)
{
    switch (g) {
    case LT_CLASS:
        *count = CN_ARRAY_LEN(class_keys);
        return class_keys;
    case LT_TENANT:
        *count = CN_ARRAY_LEN(tenant_keys);
        return tenant_keys;
    case LT_RUN:
        break;
    }
    *count = CN_ARRAY_LEN(run_keys);
    return run_keys;
}

const struct lt_key *lt_key_find(enum lt_group g, const char *name)
{
    size_t count;
    const struct lt_key *k = lt_keys(g, &count);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(k[i].name, name)) return &k[i];
    return NULL;
}

static int defaults(enum lt_group g, void *base, struct cn_error *err)
{
    size_t count;
    const struct lt_key *k = lt_keys(g, &count);

    for (size_t i = 0; i < count; i++) {
        int rc = lt_key_put(&k[i], base, k[i].def, false, err);
        if (rc) return rc;
    }
    return CN_OK;
}

static void members_fini(enum lt_group g, void *base)
{
    size_t count;
    const struct lt_key *k = lt_keys(g, &count);

    for (size_t i = 0; i < count; i++) {
        void *member = (char *)base + k[i].offset;

        if (k[i].type == LT_T_STR) free(*(char **)member);
        if (k[i].type == LT_T_LEN) lt_len_fini(member);
    }
}

int lt_scenario_init(struct lt_scenario *s, struct cn_error *err)
{
    memset(s, 0, sizeof *s);
    return defaults(LT_RUN, s, err);
}

void lt_scenario_fini(struct lt_scenario *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_classes; i++)
        members_fini(LT_CLASS, &s->classes[i]);
    for (size_t i = 0; i < s->n_tenants; i++)
        members_fini(LT_TENANT, &s->tenants[i]);
    members_fini(LT_RUN, s);
    free(s->classes);
    free(s->tenants);
    free(s->file);
    memset(s, 0, sizeof *s);
}

int lt_scenario_add_class(struct lt_scenario *s, struct cn_error *err)
{
    struct lt_class *grown;

    if (s->n_classes == MAX_CLASSES)
        return cn_fail(err, CN_ELIMIT, "more than %d classes", MAX_CLASSES);
    grown = cn_realloc_array(s->classes, s->n_classes + 1, sizeof *grown);
    if (!grown) return cn_fail(err, CN_ENOMEM, "out of memory");
    s->classes = grown;
    memset(&grown[s->n_classes], 0, sizeof *grown);
    return defaults(LT_CLASS, &grown[s->n_classes++], err);
}

int lt_scenario_add_tenant(struct lt_scenario *s, struct cn_error *err)
{
    struct lt_tenant *grown;

    if (s->n_tenants == MAX_TENANTS)
        return cn_fail(err, CN_ELIMIT, "more than %d tenants", MAX_TENANTS);
    grown = cn_realloc_array(s->tenants, s->n_tenants + 1, sizeof *grown);
    if (!grown) return cn_fail(err, CN_ENOMEM, "out of memory");
    s->tenants = grown;
    memset(&grown[s->n_tenants], 0, sizeof *grown);
    return defaults(LT_TENANT, &grown[s->n_tenants++], err);
}

int lt_scenario_set(struct lt_scenario *s, const char *class_name, const char *key,
                    const char *value, struct cn_error *err)
{
    const struct lt_key *k = lt_key_find(LT_CLASS, key);
    bool found = false;
    int rc = CN_OK;

    if (!class_name && lt_key_find(LT_RUN, key))
        return lt_key_put(lt_key_find(LT_RUN, key), s, value, false, err);
    if (!k) return cn_fail_param(err, CN_ENOENT, key, "there is no key \"%s\"", key);
    if (!s->n_classes && !class_name) rc = lt_scenario_add_class(s, err);
    for (size_t i = 0; !rc && i < s->n_classes; i++) {
        if (class_name && strcmp(class_name, s->classes[i].name)) continue;
        found = true;
        rc = lt_key_put(k, &s->classes[i], value, false, err);
    }
    if (!rc && !found)
        return cn_fail_param(err, CN_ENOENT, class_name, "there is no class \"%s\"", class_name);
    return rc;
}

/* ---- the rules between keys ------------------------------------------------------------------ */

static int refuse(const struct lt_scenario *s, const struct lt_place *at, const char *key,
                  const char *why, struct cn_error *err)
{
    if (!s->file || !at->line) return cn_fail_param(err, CN_EINVAL, key, "%s: %s", key, why);
    return cn_fail_param(err, CN_EINVAL, key, "%s:%zu:%zu: %s: %s", s->file, at->line, at->column,
                         key, why);
}

/* extra must be one JSON object. */
static int check_extra(const struct lt_scenario *s, const struct lt_class *c, struct cn_error *err)
{
    json_error_t why;
    json_t *v;
    bool object;

    if (!*c->extra) return CN_OK;
    v = json_loads(c->extra, JSON_REJECT_DUPLICATES, &why);
    object = json_is_object(v);
    json_decref(v);
    if (object) return CN_OK;
    return refuse(s, &c->place, "extra", "must be a JSON object", err);
}

static int check_split(const struct lt_scenario *s, struct lt_class *c, struct cn_error *err)
{
    c->split = -1;
    if (!*c->split_by) return CN_OK;
    for (size_t i = 0; i < s->n_classes; i++)
        if (!strcmp(s->classes[i].name, c->split_by)) c->split = (int)i;
    if (c->split < 0)
        return refuse(s, &c->place, "split_by", "there is no class of this name", err);
    if (&s->classes[c->split] == c)
        return refuse(s, &c->place, "split_by", "must name another class", err);
    return CN_OK;
}

static int check_class(struct lt_scenario *s, size_t index, struct cn_error *err)
{
    struct lt_class *c = &s->classes[index];

    if (!*c->name) {
        char name[32];

        snprintf(name, sizeof name, s->n_classes > 1 ? "class-%zu" : "requests", index + 1);
        free(c->name);
        c->name = strdup(name);
        if (!c->name) return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < index; i++)
        if (!strcmp(s->classes[i].name, c->name))
            return refuse(s, &c->place, "name", "two classes have this name", err);
    if (c->prompt == LT_PROMPT_AUTO)
        c->prompt = c->endpoint == LT_CHAT ? LT_PROMPT_TEXT : LT_PROMPT_IDS;
    if (c->prompt == LT_PROMPT_IDS && c->endpoint == LT_CHAT)
        return refuse(s, &c->place, "prompt", "a chat has words, not ids", err);
    if (c->ids_from >= c->ids_to)
        return refuse(s, &c->place, "ids_to", "must be above ids_from", err);
    if (!c->background && !c->requests && s->duration_s <= 0)
        return refuse(s, &c->place, "requests",
                      "how many? (or duration_s for how long, or background)", err);
    if (c->abort_share > 0 && !c->stream && c->abort_after_s <= 0)
        return refuse(s, &c->place, "abort_share",
                      "an answer that is no stream is cut after a time: abort_after_s", err);
    return check_extra(s, c, err);
}

int lt_scenario_check(struct lt_scenario *s, struct cn_error *err)
{
    static const struct lt_place nowhere;
    bool foreground = false;
    double share = 0;
    int rc = s->n_classes ? CN_OK : lt_scenario_add_class(s, err);

    for (size_t i = 0; !rc && i < s->n_classes; i++) {
        rc = check_class(s, i, err);
        foreground |= !s->classes[i].background;
    }
    for (size_t i = 0; !rc && i < s->n_classes; i++)
        rc = check_split(s, &s->classes[i], err);
    if (rc) return rc;
    if (!foreground)
        return refuse(s, &nowhere, "background", "one class must not be in the background", err);
    if (s->duration_s > 0 && s->warmup_s >= s->duration_s)
        return refuse(s, &nowhere, "warmup_s", "must be shorter than duration_s", err);
    for (size_t i = 0; i < s->n_tenants; i++) {
        share += s->tenants[i].share;
        if (strpbrk(s->tenants[i].key, "\r\n"))
            return refuse(s, &s->tenants[i].place, "tenants.key", "must be one line", err);
    }
    if (s->n_tenants && share <= 0)
        return refuse(s, &s->tenants[0].place, "tenants.share", "all tenants' shares are 0", err);
    return CN_OK;
}
