/* Tenants of the config file. One thread at a time; a source owns its arguments and what they said
 * when it was made. */
#include "config/tenants.h"

#include "config/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file_source {
    struct cfg_source base;
    int argc;
    char **argv;       /* owned; NULL at the end */
    struct cfg before; /* its other keys are those that the daemon runs with */
};

void cfg_draft_fini(struct cfg_draft *d)
{
    for (size_t i = 0; d->tenants && i < d->n; i++)
        cfg_tenant_fini(&d->tenants[i]);
    free(d->tenants);
    *d = (struct cfg_draft){0};
}

/* *c needs cfg_fini, whatever comes of it. again: the daemon runs, and must not wait for a pipe. */
static int read_all(const struct file_source *s, struct cfg *c, bool again, struct cn_error *err)
{
    char **argv = cn_malloc_array((size_t)s->argc + 1, sizeof *argv);
    int argc = s->argc, rc = cfg_init(c, err);

    if (!argv) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    c->again = again;
    if (!rc) {
        memcpy(argv, s->argv, ((size_t)argc + 1) * sizeof *argv); /* reading reorders them */
        rc = cfg_from_args(c, &argc, argv, err);
    }
    free(argv);
    return rc ? rc : cfg_check(c, err);
}

static void name_other(struct cfg_draft *d, const char *group, const char *name)
{
    size_t n = strlen(d->others);

    snprintf(d->others + n, sizeof d->others - n, "%s%s%s%s", n ? ", " : "", group, name ? "." : "",
             name ? name : "");
}

static void compare_others(const struct cfg *a, const struct cfg *b, struct cfg_draft *d)
{
    size_t n, n_model, n_group;
    const struct cfg_key *k = cfg_keys(&n), *of_model = cfg_item_keys("models", &n_model);
    const struct cfg_key *of_group = cfg_item_keys("groups", &n_group);
    bool same = a->n_models == b->n_models;

    for (size_t i = 0; i < n; i++)
        if (!cfg_key_same(&k[i], a, b)) name_other(d, k[i].group, k[i].name);
    for (size_t i = 0; same && i < a->n_models; i++)
        same = cfg_keys_same(of_model, n_model, &a->models[i], &b->models[i]);
    if (!same) name_other(d, "models", NULL);
    same = a->n_groups == b->n_groups;
    for (size_t i = 0; same && i < a->n_groups; i++)
        same = cfg_keys_same(of_group, n_group, &a->groups[i], &b->groups[i]);
    if (!same) name_other(d, "groups", NULL);
}

static int file_load(struct cfg_source *base, struct cfg_draft *out, struct cn_error *err)
{
    struct file_source *s = (struct file_source *)base;
    struct cfg c;
    int rc = read_all(s, &c, true, err);

    *out = (struct cfg_draft){0};
    if (!rc && cfg_has_keys(&c) != cfg_has_keys(&s->before))
        rc = cn_fail_param(err, CN_EINVAL, "tenants.keys",
                           "whether the server asks for keys at all cannot change while it runs: "
                           "restart it to add the first key or to remove the last one");
    if (!rc) {
        compare_others(&s->before, &c, out);
        out->tenants = c.tenants;
        out->n = c.n_tenants;
        c.tenants = NULL;
        c.n_tenants = 0;
        for (size_t i = 0; i < out->n; i++) /* they point into what c owns */
            memset(out->tenants[i].places, 0, sizeof out->tenants[i].places);
    }
    cfg_fini(&c);
    return rc;
}

static void file_free(struct cfg_source *base)
{
    struct file_source *s = (struct file_source *)base;

    for (int i = 0; s->argv && i < s->argc; i++)
        free(s->argv[i]);
    free(s->argv);
    cfg_fini(&s->before);
    free(s);
}

int cfg_source_args(int argc, char *const *argv, struct cfg_source **out, struct cn_error *err)
{
    struct file_source *s = cn_calloc(1, sizeof *s);
    int rc = 0;

    if (!s) return cn_fail(err, CN_ENOMEM, "out of memory");
    s->base = (struct cfg_source){.load = file_load, .free = file_free};
    s->argv = cn_calloc((size_t)argc + 1, sizeof *s->argv);
    for (; s->argv && !rc && s->argc < argc; s->argc++)
        if (!(s->argv[s->argc] = strdup(argv[s->argc]))) rc = CN_ENOMEM;
    if (!s->argv || rc)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    else
        rc = read_all(s, &s->before, false, err);
    if (rc) {
        file_free(&s->base);
        return rc;
    }
    *out = &s->base;
    return 0;
}

void cfg_source_free(struct cfg_source *s)
{
    if (s) s->free(s);
}
