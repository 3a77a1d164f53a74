#include "tests/text/schema_walk.h"

#include <stdio.h>
#include <stdlib.h>

int walk_compile(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                 enum eng_spelling spelling, struct cn_error *err)
{
    struct eng_sym root;
    int rc = eng_ir_init(ir, spelling, 64u << 20, 20000000);
    if (rc) return rc;
    rc = eng_schema_compile(ir, schema, opts, &root, err);
    if (!rc) rc = eng_ir_finish(ir, root, err);
    if (rc) eng_ir_fini(ir);
    return rc;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void put_number(const json_t *v, struct cn_buf *out)
{
    char text[64];
    if (json_is_integer(v)) {
        cn_buf_printf(out, "%lld", (long long)json_integer_value(v));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, json_real_value(v));
        if (strtod(text, NULL) == json_real_value(v)) break;
    }
    cn_buf_puts(out, text);
    if (!strpbrk(text, ".e")) cn_buf_puts(out, ".0");
}

void walk_text(const json_t *v, struct cn_buf *out)
{
    const char *key;
    json_t *w;
    bool first = true;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        cn_buf_putc(out, '{');
        json_object_foreach((json_t *)v, key, w)
        {
            if (!first) cn_buf_puts(out, ", ");
            first = false;
            cn_buf_json_str(out, key, strlen(key));
            cn_buf_puts(out, ": ");
            walk_text(w, out);
        }
        cn_buf_putc(out, '}');
        break;
    case JSON_ARRAY:
        cn_buf_putc(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i) cn_buf_puts(out, ", ");
            walk_text(json_array_get(v, i), out);
        }
        cn_buf_putc(out, ']');
        break;
    case JSON_STRING:
        cn_buf_json_str(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        put_number(v, out);
        break;
    default:
        cn_buf_puts(out, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
        break;
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool has(struct eng_ir *ir, struct eng_sym s, const json_t *v);

static bool matches(struct eng_ir *ir, uint32_t rx, const struct cn_buf *b)
{
    return eng_rx_matches(&ir->rx, rx, b->data, b->len);
}

static bool is_scalar(struct eng_ir *ir, uint32_t rx, const json_t *v)
{
    struct cn_buf b;
    if (json_is_object(v) || json_is_array(v)) return false;
    cn_buf_init(&b, 0);
    walk_text(v, &b);
    bool yes = matches(ir, rx, &b);
    cn_buf_fini(&b);
    return yes;
}

/* The member of that name; -1: it is undeclared. */
static int member_of(struct eng_ir *ir, const struct eng_object *o, const char *key)
{
    struct cn_buf b;
    int found = -1;
    cn_buf_init(&b, 0);
    cn_buf_json_str(&b, key, strlen(key));
    cn_buf_putc(&b, ':');
    for (uint32_t i = 0; i < o->members.n; i++) {
        uint32_t rx = ir->lexemes[ir->members[o->members.first + i].name].rx;
        if (!matches(ir, rx, &b)) continue;
        if (found >= 0) abort(); /* two members of one name */
        found = (int)i;
    }
    cn_buf_fini(&b);
    return found;
}

static bool is_other(struct eng_ir *ir, const struct eng_object *o, const char *key,
                     const json_t *v)
{
    struct cn_buf b;
    unsigned classes = 0;
    bool yes = false;
    cn_buf_init(&b, 0);
    cn_buf_json_str(&b, key, strlen(key));
    for (uint32_t i = 0; i < o->others.n; i++) {
        const struct eng_other *t = &ir->others[o->others.first + i];
        if (!matches(ir, t->name, &b)) continue;
        if (classes++) abort(); /* classes of names are disjoint */
        yes = has(ir, t->value, v);
    }
    cn_buf_fini(&b);
    return yes;
}

static bool has_object(struct eng_ir *ir, const struct eng_object *o, const json_t *v)
{
    bool *there = calloc(o->members.n + 1, sizeof *there), good = true, free_part = false;
    uint32_t at = 0, n = (uint32_t)json_object_size(v);
    const char *key;
    json_t *w;
    json_object_foreach((json_t *)v, key, w)
    {
        int i = member_of(ir, o, key);
        const struct eng_member *m = i < 0 ? NULL : &ir->members[o->members.first + (uint32_t)i];
        if (!m || m->loose) free_part = true;
        if (m) there[i] = true;
        if (m && !m->loose) {
            good &= !free_part && (uint32_t)i >= at;
            at = (uint32_t)i + 1;
        }
        good = good && (m ? has(ir, m->value, w) : is_other(ir, o, key, w));
        if (!good) break;
    }
    for (uint32_t i = 0; good && i < o->members.n; i++)
        good = there[i] || !ir->members[o->members.first + i].required;
    for (uint32_t i = 0; good && i < o->needs.n; i++) {
        const struct eng_need *d = &ir->needs[o->needs.first + i];
        good = !there[d->has] || there[d->needs];
    }
    free(there);
    return good && n >= o->min && n <= o->max;
}

static bool equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *w;
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++)
            same = equal(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (!json_is_object(a)) return json_equal(a, b);
    bool same = json_object_size(a) == json_object_size(b);
    json_object_foreach((json_t *)a, key, w) same =
        same && json_object_get(b, key) && equal(w, json_object_get(b, key));
    return same;
}

static bool has_array(struct eng_ir *ir, const struct eng_array *a, const json_t *v)
{
    uint32_t n = (uint32_t)json_array_size(v), counted = 0;
    if (n < a->min || n > a->max) return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct eng_item *t = i < a->items.n ? &ir->items[a->items.first + i] : &a->rest;
        const json_t *w = json_array_get(v, i);
        bool in = has(ir, t->in, w), out = has(ir, t->out, w);
        if (in && out) abort(); /* what counts and what does not are disjoint */
        if (!in && !out) return false;
        counted += in;
        for (uint32_t j = 0; j < i && a->unique; j++)
            if (equal(w, json_array_get(v, j))) return false;
    }
    return counted >= a->min_in && counted <= a->max_in;
}

static bool has(struct eng_ir *ir, struct eng_sym s, const json_t *v)
{
    switch (s.kind) {
    case ENG_SYM_LEXEME:
        return is_scalar(ir, ir->lexemes[s.id].rx, v);
    case ENG_SYM_RULE:
        for (uint32_t i = 0; i < ir->rules[s.id].n; i++) {
            struct eng_run_of q = ir->seqs[ir->rules[s.id].seqs[i]];
            if (q.n == 1 && has(ir, ir->syms[q.first], v)) return true;
        }
        return false;
    case ENG_SYM_OBJECT:
        return json_is_object(v) && has_object(ir, &ir->objects[s.id], v);
    case ENG_SYM_ARRAY:
        return json_is_array(v) && has_array(ir, &ir->arrays[s.id], v);
    default:
        return false;
    }
}

bool walk_has(struct eng_ir *ir, const json_t *value)
{
    return has(ir, ir->root, value);
}
