/* Reads a scenario file event by event (libyaml), straight into a struct lt_scenario. Anchors and
 * tags are refused, so that the work is linear in the file's size. */
#include "loadtest/loadtest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_MAX (4u << 20)

struct reader {
    yaml_parser_t parser;
    yaml_event_t ev; /* the current event; valid when have */
    bool have;
    const char *file;
    struct cn_error *err;
};

/* Fails at a mark: "file:line:column: key: reason". */
static int fail_at(struct reader *r, yaml_mark_t mark, const char *key, int code, const char *why)
{
    return cn_fail_param(r->err, code, key, "%s:%zu:%zu: %s%s%s", r->file, mark.line + 1,
                         mark.column + 1, key ? key : "", key ? ": " : "", why);
}

static int fail_here(struct reader *r, const char *key, int code, const char *why)
{
    return fail_at(r, r->ev.start_mark, key, code, why);
}

static bool decorated(const yaml_event_t *ev)
{
    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        return ev->data.scalar.tag || ev->data.scalar.anchor;
    case YAML_MAPPING_START_EVENT:
        return ev->data.mapping_start.tag || ev->data.mapping_start.anchor;
    case YAML_SEQUENCE_START_EVENT:
        return ev->data.sequence_start.tag || ev->data.sequence_start.anchor;
    default:
        return ev->type == YAML_ALIAS_EVENT;
    }
}

static int next(struct reader *r)
{
    if (r->have) yaml_event_delete(&r->ev);
    r->have = false;
    if (!yaml_parser_parse(&r->parser, &r->ev)) {
        const char *why = r->parser.problem ? r->parser.problem : "not valid YAML";
        yaml_mark_t at = r->parser.problem_mark;

        if (r->parser.error == YAML_MEMORY_ERROR)
            return cn_fail(r->err, CN_ENOMEM, "%s: out of memory", r->file);
        if (r->parser.error == YAML_READER_ERROR) at = r->parser.mark; /* it has no mark */
        return fail_at(r, at, NULL, CN_EINVAL, why);
    }
    r->have = true;
    if (decorated(&r->ev))
        return fail_here(r, NULL, CN_EUNSUPP, "anchors, aliases and tags are not supported");
    return CN_OK;
}

static const char *scalar(const struct reader *r)
{
    return (const char *)r->ev.data.scalar.value;
}

static bool is_text(const struct reader *r)
{
    return r->ev.type == YAML_SCALAR_EVENT && strlen(scalar(r)) == r->ev.data.scalar.length;
}

/* A sequence of numbers as the text "1,2,3", from after its start to its end. */
static int read_numbers(struct reader *r, const char *key, struct cn_buf *out)
{
    int rc;

    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (!is_text(r) || !*scalar(r) || strspn(scalar(r), "0123456789") != strlen(scalar(r)))
            return fail_here(r, key, CN_ETYPE, "each item must be a whole number");
        if (cn_buf_puts(out, scalar(r)) || cn_buf_putc(out, ','))
            return fail_here(r, key, CN_ELIMIT, "the list is too long");
    }
    if (rc) return rc;
    if (!out->len) return fail_here(r, key, CN_EINVAL, "the list is empty");
    out->len--; /* the last comma: one number alone is a fixed length */
    return CN_OK;
}

static int read_value(struct reader *r, const struct lt_key *k, void *base)
{
    struct cn_error why = {0};
    struct cn_buf list;
    const char *text;
    int rc = next(r);

    if (rc) return rc;
    yaml_mark_t at = r->ev.start_mark;
    if (k->type == LT_T_LEN && r->ev.type == YAML_SEQUENCE_START_EVENT) {
        cn_buf_init(&list, FILE_MAX);
        rc = read_numbers(r, k->name, &list);
        text = rc ? NULL : cn_buf_cstr(&list);
        if (!rc && !text) rc = cn_fail(r->err, CN_ENOMEM, "out of memory");
        if (!rc && (rc = lt_key_put(k, base, text, false, &why)) != CN_OK)
            rc = fail_at(r, at, k->name, rc, why.message);
        cn_buf_fini(&list);
        return rc;
    }
    if (!is_text(r)) return fail_here(r, k->name, CN_ETYPE, "must be a single value");
    rc = lt_key_put(k, base, scalar(r), r->ev.data.scalar.style != YAML_PLAIN_SCALAR_STYLE, &why);
    return rc ? fail_here(r, k->name, rc, why.message) : CN_OK;
}

static int unknown(struct reader *r, const char *inside)
{
    char why[96];

    snprintf(why, sizeof why, "unknown key in %s; conifer-load --help lists them", inside);
    return fail_here(r, scalar(r), CN_EINVAL, why);
}

/* The members of one class or tenant, from after its start to its end. */
static int read_members(struct reader *r, enum lt_group g, const char *inside, void *base)
{
    bool seen[64] = {false};
    size_t count;
    const struct lt_key *all = lt_keys(g, &count);
    int rc;

    cn_assert(count <= CN_ARRAY_LEN(seen));
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_MAPPING_END_EVENT) {
        const struct lt_key *k = is_text(r) ? lt_key_find(g, scalar(r)) : NULL;

        if (!is_text(r)) return fail_here(r, inside, CN_ETYPE, "a key must be a single word");
        if (!k) return unknown(r, inside);
        if (seen[k - all]) return fail_here(r, k->name, CN_EINVAL, "this key was given already");
        seen[k - all] = true;
        rc = read_value(r, k, base);
        if (rc) return rc;
    }
    return rc;
}

/* The list under `classes` or `tenants`; its key has been read. */
static int read_items(struct reader *r, struct lt_scenario *s, enum lt_group g, const char *inside)
{
    int rc = next(r);

    if (rc) return rc;
    if (r->ev.type != YAML_SEQUENCE_START_EVENT)
        return fail_here(r, inside, CN_ETYPE, "must be a list");
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        struct cn_error why = {0};
        struct lt_place at = {r->ev.start_mark.line + 1, r->ev.start_mark.column + 1};

        if (r->ev.type != YAML_MAPPING_START_EVENT)
            return fail_here(r, inside, CN_ETYPE, "each item must be a group of keys");
        rc = g == LT_CLASS ? lt_scenario_add_class(s, &why) : lt_scenario_add_tenant(s, &why);
        if (rc) return fail_here(r, inside, rc, why.message);
        if (g == LT_CLASS) {
            s->classes[s->n_classes - 1].place = at;
            rc = read_members(r, g, inside, &s->classes[s->n_classes - 1]);
        } else {
            s->tenants[s->n_tenants - 1].place = at;
            rc = read_members(r, g, inside, &s->tenants[s->n_tenants - 1]);
        }
        if (rc) break;
    }
    return rc;
}

/* The root's members, from after its start to its end. */
static int read_root(struct reader *r, struct lt_scenario *s)
{
    bool seen[64] = {false};
    size_t count;
    const struct lt_key *all = lt_keys(LT_RUN, &count);
    int rc;

    cn_assert(count + 2 <= CN_ARRAY_LEN(seen));
    while ((rc = next(r)) == CN_OK && r->ev.type != YAML_MAPPING_END_EVENT) {
        if (!is_text(r)) return fail_here(r, NULL, CN_ETYPE, "a key must be a single word");
        bool classes = !strcmp(scalar(r), "classes"), tenants = !strcmp(scalar(r), "tenants");
        const struct lt_key *k = lt_key_find(LT_RUN, scalar(r));
        size_t at = classes ? count : tenants ? count + 1 : k ? (size_t)(k - all) : 0;

        if (!classes && !tenants && !k) return unknown(r, "the scenario");
        if (seen[at]) return fail_here(r, scalar(r), CN_EINVAL, "this key was given already");
        seen[at] = true;
        if (classes)
            rc = read_items(r, s, LT_CLASS, "classes");
        else if (tenants)
            rc = read_items(r, s, LT_TENANT, "tenants");
        else
            rc = read_value(r, k, s);
        if (rc) return rc;
    }
    return rc;
}

static int read_file(struct reader *r, struct lt_scenario *s)
{
    int rc;

    do {
        rc = next(r);
    } while (!rc &&
             (r->ev.type == YAML_STREAM_START_EVENT || r->ev.type == YAML_DOCUMENT_START_EVENT));
    if (rc) return rc;
    if (r->ev.type != YAML_MAPPING_START_EVENT)
        return fail_here(r, NULL, CN_ETYPE, "a scenario is a group of keys");
    rc = read_root(r, s);
    if (!rc) rc = next(r); /* the document's end */
    if (!rc) rc = next(r);
    if (!rc && r->ev.type != YAML_STREAM_END_EVENT)
        return fail_here(r, NULL, CN_EINVAL, "a file holds one scenario");
    return rc;
}

int lt_scenario_load_text(struct lt_scenario *s, const char *file, const char *text, size_t n,
                          struct cn_error *err)
{
    struct cn_error why = {0}; /* err may be NULL */
    struct reader r = {.file = file, .err = &why};
    int rc;

    if (n > FILE_MAX) return cn_fail(err, CN_ELIMIT, "%s: larger than %u bytes", file, FILE_MAX);
    free(s->file);
    s->file = strdup(file);
    if (!s->file || !yaml_parser_initialize(&r.parser))
        return cn_fail(err, CN_ENOMEM, "%s: out of memory", file);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    rc = read_file(&r, s);
    if (r.have) yaml_event_delete(&r.ev);
    yaml_parser_delete(&r.parser);
    if (rc && err) *err = why;
    return rc;
}

int lt_scenario_load(struct lt_scenario *s, const char *path, struct cn_error *err)
{
    FILE *f = fopen(path, "rb");
    char part[16384];
    struct cn_buf text;
    size_t n;
    int rc;

    if (!f) return cn_fail(err, CN_EIO, "%s: cannot be opened", path);
    cn_buf_init(&text, FILE_MAX);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        cn_buf_append(&text, part, n);
    if (ferror(f))
        rc = cn_fail(err, CN_EIO, "%s: cannot be read", path);
    else if (text.failed)
        rc = cn_fail(err, CN_ELIMIT, "%s: too large", path);
    else
        rc = lt_scenario_load_text(s, path, text.data ? text.data : "", text.len, err);
    fclose(f);
    cn_buf_fini(&text);
    return rc;
}
