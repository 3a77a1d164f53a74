/* Reads conifer.yaml event by event (libyaml), straight into a struct cfg.
 * One thread, at start. Nothing is kept of the file; anchors and tags are refused, so that the work
 * is linear in the file's size, and the depth is fixed by the table of keys.
 * A fault is noted and what it concerns is skipped: functions return an error only where the
 * reading cannot go on. */
#include "config/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_MAX  (1024 * 1024)
#define DEPTH_MAX 64 /* of what is skipped */

struct reader {
    yaml_parser_t parser;
    yaml_event_t ev; /* the current event; valid when have */
    bool have;
    const char *text; /* all of it */
    size_t n;
    const char *file;
    const char *source; /* the same, owned by the cfg */
    struct cfg *c;
    struct cn_error *err; /* gets the first fault, or what stopped the reading */
    yaml_mark_t *items;   /* where those of the last list stand */
    size_t items_cap;
};

/* Notes a fault at a mark: "file:line:column: key: reason", with the reason that is in why. */
static int fault_at(struct reader *r, yaml_mark_t mark, const char *key, int code, const char *why)
{
    struct cn_error e = {0};

    cn_fail_param(&e, code, key, "%s:%zu:%zu: %s%s%s", r->file, mark.line + 1, mark.column + 1,
                  key ? key : "", key ? ": " : "", why);
    if (!key || !strchr(key, '.') || !strncmp(key, "tenants.", 8) || !strncmp(key, "models.", 7) ||
        !strncmp(key, "groups.", 7))
        r->c->half_read = true;
    return cfg_fault(r->c, &e, r->err);
}

/* Notes one at the current event. */
static int fault_here(struct reader *r, const char *key, int code, const char *why)
{
    return fault_at(r, r->ev.start_mark, key, code, why);
}

/* Notes one after which nothing more can be read. */
static int stop_at(struct reader *r, yaml_mark_t mark, const char *key, int code, const char *why)
{
    int rc = fault_at(r, mark, key, code, why);
    return rc ? rc : code;
}

/* Whether what could not be read is a tab. */
static bool at_tab(const struct reader *r)
{
    const yaml_mark_t mark = r->parser.problem_mark;
    size_t at = 0;

    for (size_t line = 0; at < r->n && line < mark.line; at++)
        line += r->text[at] == '\n';
    at += mark.column; /* counts characters: spaces, or a dash, stand before such a tab */
    return at < r->n && r->text[at] == '\t';
}

static int next(struct reader *r)
{
    if (r->have) yaml_event_delete(&r->ev);
    r->have = false;
    if (!yaml_parser_parse(&r->parser, &r->ev)) {
        const char *why = r->parser.problem ? r->parser.problem : "not valid YAML";

        if (r->parser.error == YAML_MEMORY_ERROR)
            return cn_fail(r->err, CN_ENOMEM, "%s: out of memory", r->file);
        char text[160];
        if (r->parser.error == YAML_READER_ERROR) { /* has an offset and no mark */
            snprintf(text, sizeof text, "%s (byte %zu)", why, r->parser.problem_offset);
            return stop_at(r, r->parser.mark, NULL, CN_EINVAL, text);
        }
        if (!strcmp(why, "found character that cannot start any token") && at_tab(r))
            why = "a tab cannot indent YAML: use spaces";
        return stop_at(r, r->parser.problem_mark, NULL, CN_EINVAL, why);
    }
    r->have = true;
    const yaml_char_t *tag = NULL, *anchor = NULL;
    if (r->ev.type == YAML_SCALAR_EVENT) {
        tag = r->ev.data.scalar.tag;
        anchor = r->ev.data.scalar.anchor;
    } else if (r->ev.type == YAML_MAPPING_START_EVENT) {
        tag = r->ev.data.mapping_start.tag;
        anchor = r->ev.data.mapping_start.anchor;
    } else if (r->ev.type == YAML_SEQUENCE_START_EVENT) {
        tag = r->ev.data.sequence_start.tag;
        anchor = r->ev.data.sequence_start.anchor;
    }
    if (r->ev.type == YAML_ALIAS_EVENT)
        return stop_at(r, r->ev.start_mark, NULL, CN_EUNSUPP,
                       "anchors and aliases are not supported");
    if (anchor) return fault_here(r, NULL, CN_EUNSUPP, "anchors and aliases are not supported");
    if (tag) return fault_here(r, NULL, CN_EUNSUPP, "tags are not supported");
    return CN_OK;
}

/* Goes to the end of the current event's node, when it is a list or a group: what is in it may be
 * what a rule asks for. */
static int skip_node(struct reader *r)
{
    int depth = 0, rc = CN_OK;

    for (;;) {
        if (r->ev.type == YAML_MAPPING_START_EVENT || r->ev.type == YAML_SEQUENCE_START_EVENT)
            depth++;
        if (r->ev.type == YAML_MAPPING_END_EVENT || r->ev.type == YAML_SEQUENCE_END_EVENT) depth--;
        if (!depth) return CN_OK;
        r->c->half_read = true;
        if (depth > DEPTH_MAX)
            return stop_at(r, r->ev.start_mark, NULL, CN_ELIMIT, "nested too deeply");
        if ((rc = next(r))) return rc;
    }
}

/* Skips the value of a key that is not read. */
static int skip_value(struct reader *r)
{
    int rc = next(r);
    return rc ? rc : skip_node(r);
}

/* A fault of the current event's node, which is skipped. */
static int bad_node(struct reader *r, const char *key, int code, const char *why)
{
    int rc = fault_here(r, key, code, why);
    return rc ? rc : skip_node(r);
}

static bool is_null(const yaml_event_t *ev)
{
    const char *s = (const char *)ev->data.scalar.value;

    if (ev->type != YAML_SCALAR_EVENT || ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    return !*s || !strcmp(s, "~") || !strcmp(s, "null");
}

/* The groups that are lists. */
static const char *const lists[] = {"tenants", "models", "groups"};

/* ---- which key was meant --------------------------------------------------------------------- */

/* Edit distance of two short words; longer ones are no likely slip. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[48];

    if (n >= 48 || m >= 48) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = CN_MIN(change, CN_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

/* Refuses an unknown key, with the nearest known one of its group (or the nearest group), and skips
 * its value. */
static int unknown_key(struct reader *r, const char *group, const char *name)
{
    size_t count, best = 3;
    const char *near = NULL;
    const struct cfg_key *k = group ? cfg_item_keys(group, &count) : NULL;
    char full[128], why[160];

    if (!k) k = cfg_keys(&count);
    for (size_t i = 0; i < count; i++) {
        const char *word = group ? k[i].name : k[i].group;
        size_t d;

        if (group && strcmp(k[i].group, group)) continue;
        d = distance(name, word);
        if (d < best) {
            best = d;
            near = word;
        }
    }
    for (size_t i = 0; !group && i < CN_ARRAY_LEN(lists); i++) {
        size_t d = distance(name, lists[i]);
        if (d < best) best = d, near = lists[i];
    }
    snprintf(full, sizeof full, "%s%s%s", group ? group : "", group ? "." : "", name);
    snprintf(why, sizeof why, "unknown key%s%s%s", near ? "; did you mean \"" : "",
             near ? near : "", near ? "\"?" : "");
    int rc = fault_here(r, full, CN_EINVAL, why);
    return rc ? rc : skip_value(r);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Puts the current scalar; the message gets the place before the reason. */
static int put_scalar(struct reader *r, const struct cfg_key *k, const char *full, void *base)
{
    const yaml_event_t *ev = &r->ev;
    struct cn_error why = {0};
    bool quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    const char *text = (const char *)ev->data.scalar.value;
    size_t n = ev->data.scalar.length;
    int rc;

    if (is_null(ev)) { /* nothing written: the default */
        text = k->def;
        n = strlen(text);
    }
    rc = cfg_key_put(k, base, text, n, quoted, &why);
    if (rc == CN_ENOMEM) return cn_fail(r->err, rc, "out of memory");
    return rc ? fault_here(r, full, rc, why.message) : CN_OK;
}

static int read_list(struct reader *r, const char *full, struct cfg_list *list)
{
    struct cfg_list fresh = {0};
    int rc;

    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        const char *text = (const char *)r->ev.data.scalar.value;

        if (r->ev.type != YAML_SCALAR_EVENT || is_null(&r->ev))
            rc = bad_node(r, full, CN_ETYPE, "each item must be a text");
        else if (strlen(text) != r->ev.data.scalar.length)
            rc = fault_here(r, full, CN_EINVAL, "must not hold a NUL character");
        else if (cfg_list_add(&fresh, text, strlen(text)) ||
                 cn_grow(&r->items, &r->items_cap, fresh.count, sizeof *r->items))
            rc = cn_fail(r->err, CN_ENOMEM, "out of memory");
        else
            r->items[fresh.count - 1] = r->ev.start_mark;
        if (rc) break;
    }
    if (rc) {
        cfg_list_fini(&fresh);
        return rc;
    }
    cfg_list_fini(list);
    *list = fresh;
    return CN_OK;
}

/* Reads the value of k; the key has been read, the value not yet. */
static int read_value(struct reader *r, const struct cfg_key *k, const char *full, void *base)
{
    int rc = next(r);

    if (rc) return rc;
    if (k->type == CFG_T_LIST) {
        if (is_null(&r->ev)) return CN_OK;
        if (r->ev.type != YAML_SEQUENCE_START_EVENT)
            return bad_node(r, full, CN_ETYPE, "must be a list");
        return read_list(r, full, (struct cfg_list *)((char *)base + k->offset));
    }
    if (r->ev.type != YAML_SCALAR_EVENT)
        return bad_node(r, full, CN_ETYPE, "must be a single value, not a list or a group");
    return put_scalar(r, k, full, base);
}

static int given_already(struct reader *r, const char *key)
{
    int rc = fault_here(r, key, CN_EINVAL, "this key was given already");
    return rc ? rc : skip_value(r);
}

/* Reads the members of one group into base, from after its MAPPING-START to its end. */
static int read_group(struct reader *r, const char *group, void *base, struct cfg_place *places)
{
    bool seen[64] = {false};
    size_t count;
    const struct cfg_key *all = cfg_item_keys(group, &count);
    int rc;

    if (!all) all = cfg_keys(&count);
    cn_assert(count <= CN_ARRAY_LEN(seen));
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_MAPPING_END_EVENT) {
        const struct cfg_key *k = NULL;
        yaml_mark_t at = r->ev.start_mark;
        char full[64];

        if (r->ev.type != YAML_SCALAR_EVENT) {
            rc = bad_node(r, group, CN_ETYPE, "a key must be a single word");
            if (!rc) rc = skip_value(r);
        } else if (!(k = cfg_key_find(group, (const char *)r->ev.data.scalar.value,
                                      r->ev.data.scalar.length))) {
            rc = unknown_key(r, group, (const char *)r->ev.data.scalar.value);
        } else {
            snprintf(full, sizeof full, "%s.%s", k->group, k->name);
            rc = seen[k - all] ? given_already(r, full) : read_value(r, k, full, base);
            if (!seen[k - all])
                places[k - all] = (struct cfg_place){.source = r->source,
                                                     .line = (uint32_t)at.line + 1,
                                                     .column = (uint32_t)at.column + 1};
            seen[k - all] = true;
        }
        if (rc) return rc;
    }
    return rc;
}

/* ---- tenants --------------------------------------------------------------------------------- */

/* keys is a tenant's only list, so that the last list's items are its. */
static int decode_keys(struct reader *r, struct cfg_tenant *t)
{
    t->key_hashes = cn_calloc(t->keys.count, sizeof *t->key_hashes);
    if (!t->key_hashes) return cn_fail(r->err, CN_ENOMEM, "out of memory");
    for (size_t i = 0; i < t->keys.count; i++) {
        if (!cfg_parse_key_hash(t->keys.items[i], &t->key_hashes[i]))
            return fault_at(r, r->items[i], "tenants.keys", CN_EINVAL,
                            "a key must be \"sha256:\" and 64 hex digits, as `conifer key new` "
                            "prints it (never the key itself)");
        for (size_t j = 0; j < i; j++)
            if (!memcmp(&t->key_hashes[i], &t->key_hashes[j], sizeof t->key_hashes[i]))
                return fault_at(r, r->items[i], "tenants.keys", CN_EINVAL, "a key is listed twice");
    }
    return CN_OK;
}

static int read_tenant(struct reader *r, struct cfg_tenant *t)
{
    yaml_mark_t at = r->ev.start_mark;
    int rc;

    if (r->ev.type != YAML_MAPPING_START_EVENT)
        return bad_node(r, "tenants", CN_ETYPE, "each tenant must be a group of keys");
    rc = read_group(r, "tenants", t, t->places);
    if (rc) return rc;
    if (!t->name)
        rc = fault_at(r, at, "tenants.name", CN_EMISSING, "a tenant needs a name");
    else if (!cfg_model_name_ok(t->name))
        rc = fault_at(r, at, "tenants.name", CN_EINVAL,
                      "may hold only letters, digits, '.', '_' and '-', at most 128 of them");
    return rc ? rc : decode_keys(r, t);
}

/* Goes to the items of the list `name`: *none when there are none to read. */
static int open_list(struct reader *r, const char *name, bool *none)
{
    char why[48];
    int rc = next(r);

    *none = !rc && is_null(&r->ev);
    if (rc || *none || r->ev.type == YAML_SEQUENCE_START_EVENT) return rc;
    *none = true;
    snprintf(why, sizeof why, "must be a list of %s", name);
    return bad_node(r, name, CN_ETYPE, why);
}

/* The sequence under `tenants`, which replaces what c holds. */
static int read_tenants(struct reader *r, struct cfg *c)
{
    size_t cap = 0;
    bool none;
    int rc = open_list(r, "tenants", &none);

    if (rc || none) return rc;
    for (size_t i = 0; i < c->n_tenants; i++)
        cfg_tenant_fini(&c->tenants[i]);
    free(c->tenants);
    c->tenants = NULL;
    c->n_tenants = 0;
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (cn_grow(&c->tenants, &cap, c->n_tenants + 1, sizeof *c->tenants))
            return cn_fail(r->err, CN_ENOMEM, "out of memory");
        rc = cfg_tenant_init(&c->tenants[c->n_tenants++], r->err);
        if (rc == CN_OK) rc = read_tenant(r, &c->tenants[c->n_tenants - 1]);
        if (rc) break;
    }
    return rc;
}

/* ---- models and groups ----------------------------------------------------------------------- */

/* An item of a list whose items have names; `what` one is. */
static int read_named(struct reader *r, const char *list, const char *what, void *item,
                      struct cfg_place *places, char *const *name)
{
    yaml_mark_t at = r->ev.start_mark;
    char key[32], why[64];
    int rc;

    snprintf(why, sizeof why, "each %s must be a group of keys", what);
    if (r->ev.type != YAML_MAPPING_START_EVENT) return bad_node(r, list, CN_ETYPE, why);
    rc = read_group(r, list, item, places);
    if (rc) return rc;
    snprintf(key, sizeof key, "%s.name", list);
    snprintf(why, sizeof why, "a %s needs a name", what);
    if (!*name) return fault_at(r, at, key, CN_EMISSING, why);
    if (!cfg_model_name_ok(*name))
        return fault_at(r, at, key, CN_EINVAL,
                        "may hold only letters, digits, '.', '_' and '-', at most 128 of them");
    return CN_OK;
}

/* The sequence under `models`, which replaces what c holds. */
static int read_models(struct reader *r, struct cfg *c)
{
    size_t cap = 0;
    bool none;
    int rc = open_list(r, "models", &none);

    if (rc || none) return rc;
    for (size_t i = 0; i < c->n_models; i++)
        cfg_served_fini(&c->models[i]);
    free(c->models);
    c->models = NULL;
    c->n_models = 0;
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (c->n_models == CFG_MAX_MODELS)
            return stop_at(r, r->ev.start_mark, "models", CN_ELIMIT,
                           "more models than can be served");
        if (cn_grow(&c->models, &cap, c->n_models + 1, sizeof *c->models))
            return cn_fail(r->err, CN_ENOMEM, "out of memory");
        struct cfg_served *m = &c->models[c->n_models++];
        rc = cfg_served_init(m, r->err);
        if (rc == CN_OK) rc = read_named(r, "models", "model", m, m->places, &m->name);
        if (rc) break;
    }
    return rc;
}

/* The sequence under `groups`, likewise. */
static int read_groups(struct reader *r, struct cfg *c)
{
    size_t cap = 0;
    bool none;
    int rc = open_list(r, "groups", &none);

    if (rc || none) return rc;
    for (size_t i = 0; i < c->n_groups; i++)
        cfg_group_fini(&c->groups[i]);
    free(c->groups);
    c->groups = NULL;
    c->n_groups = 0;
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (c->n_groups == CFG_MAX_GROUPS)
            return stop_at(r, r->ev.start_mark, "groups", CN_ELIMIT, "more than 16 groups");
        if (cn_grow(&c->groups, &cap, c->n_groups + 1, sizeof *c->groups))
            return cn_fail(r->err, CN_ENOMEM, "out of memory");
        struct cfg_group *g = &c->groups[c->n_groups++];
        rc = cfg_group_init(g, r->err);
        if (rc == CN_OK) rc = read_named(r, "groups", "group", g, g->places, &g->name);
        if (rc) break;
    }
    return rc;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Remembers that a top-level name was seen; false when it had been. A name is its first key's
 * place in the table, lists have the places after the last. */
static bool first_time(bool *seen, const char *name)
{
    size_t count, at = 0;
    const struct cfg_key *k = cfg_keys(&count);

    while (at < count && strcmp(k[at].group, name))
        at++;
    for (size_t i = 0; at >= count && i < CN_ARRAY_LEN(lists); i++)
        if (!strcmp(name, lists[i])) at = count + i;
    if (seen[at]) return false;
    return seen[at] = true;
}

/* The group or list whose name is the current event. */
static int read_part(struct reader *r, struct cfg *c, bool *seen)
{
    const char *word = (const char *)r->ev.data.scalar.value;
    char group[32];
    size_t count;
    int rc;

    snprintf(group, sizeof group, "%s", word);
    bool list = cfg_item_keys(group, &count);
    if (strlen(group) != r->ev.data.scalar.length || (!list && !cfg_group_known(group)))
        return unknown_key(r, NULL, word);
    if (!first_time(seen, group)) return given_already(r, group);
    if (list && !strcmp(group, "models")) return read_models(r, c);
    if (list) return strcmp(group, "groups") ? read_tenants(r, c) : read_groups(r, c);
    rc = next(r);
    if (rc || is_null(&r->ev)) return rc;
    if (r->ev.type != YAML_MAPPING_START_EVENT)
        return bad_node(r, group, CN_ETYPE, "must be a group of keys");
    return read_group(r, group, c, c->places);
}

static int read_top(struct reader *r, struct cfg *c)
{
    bool seen[64 + CN_ARRAY_LEN(lists)] = {false};
    int rc;

    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_MAPPING_END_EVENT) {
        if (r->ev.type == YAML_SCALAR_EVENT) {
            rc = read_part(r, c, seen);
        } else {
            rc = bad_node(r, NULL, CN_ETYPE, "a key must be a single word");
            if (!rc) rc = skip_value(r);
        }
        if (rc) return rc;
    }
    return rc;
}

static int read_stream(struct reader *r, struct cfg *c)
{
    int rc = next(r); /* STREAM-START */

    if (rc == CN_OK) rc = next(r);
    if (rc || r->ev.type == YAML_STREAM_END_EVENT) return rc;
    rc = next(r); /* the document's node */
    if (rc) return rc;
    if (r->ev.type == YAML_MAPPING_START_EVENT)
        rc = read_top(r, c);
    else if (!is_null(&r->ev))
        rc = stop_at(r, r->ev.start_mark, NULL, CN_ETYPE, "the file must hold groups of keys");
    if (rc == CN_OK) rc = next(r); /* DOCUMENT-END */
    if (rc == CN_OK) rc = next(r);
    if (rc == CN_OK && r->ev.type != YAML_STREAM_END_EVENT)
        rc = stop_at(r, r->ev.start_mark, NULL, CN_EUNSUPP, "a second document is not supported");
    return rc;
}

int cfg_load_text(struct cfg *c, const char *name, const char *text, size_t n, struct cn_error *err)
{
    struct cn_error first = {0};
    struct reader r = {.text = text, .n = n, .file = name, .c = c, .err = &first};
    int rc;

    if (n > FILE_MAX) return cn_fail(err, CN_ELIMIT, "%s: longer than %d bytes", name, FILE_MAX);
    if (cfg_list_add(&c->sources, name, strlen(name)))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    r.source = c->sources.items[c->sources.count - 1];
    if (!yaml_parser_initialize(&r.parser)) return cn_fail(err, CN_ENOMEM, "out of memory");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)(n ? text : ""), n);
    rc = read_stream(&r, c);
    if (r.have) yaml_event_delete(&r.ev);
    yaml_parser_delete(&r.parser);
    free(r.items);
    cn_assert(!rc || first.code);
    if (first.code && err) *err = first;
    return first.code;
}

int cfg_load_file(struct cfg *c, const char *path, struct cn_error *err)
{
    struct cn_buf text;

    cn_buf_init(&text, 0);
    int rc = cn_file_read(path, !c->again, FILE_MAX, &text, err);
    if (!rc) rc = cfg_load_text(c, path, text.data, text.len, err);
    cn_buf_fini(&text);
    return rc;
}
