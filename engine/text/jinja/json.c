/* JSON in chat templates: a client's JSON to values, and the filter tojson, which writes what
 * Python's json.dumps writes (with ensure_ascii off, as the reference renderer has it). */
#include "engine/text/jinja/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct eng_jv eng_j_from_json(struct eng_jctx *c, json_t *j)
{
    struct eng_jv v = {.client = true};
    eng_j_enter(c);
    eng_j_work(c, 32);
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        v = eng_jv_dict(eng_j_dict(c, true));
        for (void *it = json_object_iter(j); it; it = json_object_iter_next(j, it)) {
            const struct eng_jstr *k =
                eng_j_new(c, json_object_iter_key(it), json_object_iter_key_len(it), false);
            eng_j_dict_set(c, v.m, eng_jv_str(k), eng_j_from_json(c, json_object_iter_value(it)));
        }
        break;
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        v = eng_jv_list(eng_j_list(c, n, true));
        for (size_t i = 0; i < n; i++)
            eng_j_push(c, v.l, eng_j_from_json(c, json_array_get(j, i)));
        break;
    }
    case JSON_STRING:
        v = eng_jv_str(eng_j_new(c, json_string_value(j), json_string_length(j), false));
        break;
    case JSON_INTEGER:
        v.t = J_INT;
        v.i = json_integer_value(j);
        break;
    case JSON_REAL:
        v.t = J_FLOAT;
        v.d = json_real_value(j);
        break;
    case JSON_NULL:
        v.t = J_NONE;
        break;
    default:
        v.t = J_BOOL;
        v.b = json_is_true(j);
    }
    eng_j_leave(c);
    return v;
}

struct dump {
    struct eng_jctx *c;
    struct eng_jbuf *b;
    bool ascii, sort;
    const struct eng_jstr *indent; /* NULL: one line */
    const struct eng_jstr *comma, *colon;
};

static void put_struct(struct dump *d, const struct eng_jstr *s, bool trusted)
{
    if (trusted)
        eng_j_put_str(d->c, d->b, s);
    else
        eng_j_put(d->c, d->b, s->p, s->n, false);
}

static void newline(struct dump *d, uint32_t level, bool trusted)
{
    if (!d->indent) return;
    eng_j_put(d->c, d->b, "\n", 1, trusted);
    for (uint32_t i = 0; i < level; i++)
        put_struct(d, d->indent, trusted);
}

static void put_json_str(struct dump *d, const struct eng_jstr *s)
{
    static const char short_of[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    bool all = eng_j_trusted(s);
    size_t from = 0, end;
    eng_j_put(d->c, d->b, "\"", 1, all);
    for (size_t i = 0; i < s->n;) {
        unsigned char ch = (unsigned char)s->p[i];
        if (ch >= 32 && ch != '"' && ch != '\\' && (ch < 127 || !d->ascii)) {
            i++;
            continue;
        }
        size_t at = i;
        uint32_t cp = eng_j_cp_next(s, &i);
        char esc[16] = "";
        for (size_t k = 0; k + 1 < sizeof(short_of); k += 2)
            if ((uint32_t)short_of[k] == cp) snprintf(esc, sizeof(esc), "\\%c", short_of[k + 1]);
        if (!esc[0] && cp < 0x10000)
            snprintf(esc, sizeof(esc), "\\u%04x", cp);
        else if (!esc[0])
            snprintf(esc, sizeof(esc), "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
        eng_j_put_sub(d->c, d->b, s, from, at - from);
        eng_j_putz(d->c, d->b, esc, eng_j_run(s, at, &end));
        from = i;
    }
    eng_j_put_sub(d->c, d->b, s, from, s->n - from);
    eng_j_put(d->c, d->b, "\"", 1, all);
}

/* None, booleans and numbers; false for anything else. */
static bool scalar_text(struct eng_jv v, char z[40])
{
    switch (v.t) {
    case J_NONE:
        snprintf(z, 40, "null");
        return true;
    case J_BOOL:
        snprintf(z, 40, "%s", v.b ? "true" : "false");
        return true;
    case J_INT:
        snprintf(z, 40, "%" PRId64, v.i);
        return true;
    case J_FLOAT:
        if (isnan(v.d))
            snprintf(z, 40, "NaN");
        else if (isinf(v.d))
            snprintf(z, 40, "%s", v.d < 0 ? "-Infinity" : "Infinity");
        else
            eng_j_float_repr(v.d, z);
        return true;
    default:
        return false;
    }
}

static void put_json(struct dump *d, struct eng_jv v, uint32_t level);

static void put_array(struct dump *d, const struct eng_jlist *l, uint32_t level)
{
    bool t = !l->client;
    eng_j_put(d->c, d->b, "[", 1, t);
    for (size_t i = 0; i < l->n; i++) {
        if (i) put_struct(d, d->comma, t);
        newline(d, level + 1, t);
        put_json(d, l->v[i], level + 1);
    }
    if (l->n) newline(d, level, t);
    eng_j_put(d->c, d->b, "]", 1, t);
}

static void put_key(struct dump *d, struct eng_jv k)
{
    char z[40];
    if (k.t == J_STR) {
        put_json_str(d, k.s);
    } else if (scalar_text(k, z)) {
        eng_j_put(d->c, d->b, "\"", 1, !k.client);
        eng_j_putz(d->c, d->b, z, !k.client);
        eng_j_put(d->c, d->b, "\"", 1, !k.client);
    } else {
        eng_j_raise(d->c, "keys must be str, int, float, bool or None, not %s", eng_j_type_name(k));
    }
}

static struct eng_jdict *sorted(struct eng_jctx *c, struct eng_jdict *m)
{
    struct eng_jlist *keys = eng_j_list(c, m->n, false);
    for (size_t i = 0; i < m->n; i++)
        eng_j_push(c, keys, m->e[i].k);
    struct eng_jv *by = eng_j_alloc_n(c, m->n + 1, sizeof(*by));
    if (m->n) memcpy(by, keys->v, m->n * sizeof(*by));
    eng_j_sort(c, keys, by, false);
    struct eng_jdict *r = eng_j_dict(c, m->client);
    for (size_t i = 0; i < m->n; i++)
        eng_j_dict_set(c, r, keys->v[i], *eng_j_dict_get(c, m, keys->v[i]));
    return r;
}

static void put_json_dict(struct dump *d, struct eng_jdict *m, uint32_t level)
{
    bool t = !m->client;
    if (d->sort) m = sorted(d->c, m);
    eng_j_put(d->c, d->b, "{", 1, t);
    for (size_t i = 0; i < m->n; i++) {
        if (i) put_struct(d, d->comma, t);
        newline(d, level + 1, t);
        put_key(d, m->e[i].k);
        put_struct(d, d->colon, t);
        put_json(d, m->e[i].v, level + 1);
    }
    if (m->n) newline(d, level, t);
    eng_j_put(d->c, d->b, "}", 1, t);
}

static void put_json(struct dump *d, struct eng_jv v, uint32_t level)
{
    char z[40];
    eng_j_enter(d->c);
    eng_j_work(d->c, 16);
    if (v.t == J_STR)
        put_json_str(d, v.s);
    else if (v.t == J_LIST || v.t == J_TUPLE)
        put_array(d, v.l, level);
    else if (v.t == J_GEN) /* the reference refuses it; DeepSeek's templates mean the list */
        put_array(d, eng_j_to_list(d->c, v), level);
    else if (v.t == J_DICT)
        put_json_dict(d, v.m, level);
    else if (scalar_text(v, z))
        eng_j_putz(d->c, d->b, z, !v.client);
    else
        eng_j_raise(d->c, "Object of type %s is not JSON serializable", eng_j_type_name(v));
    eng_j_leave(d->c);
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
struct eng_jv eng_j_tojson(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v[4];
    eng_j_bind(c, a, "ensure_ascii? indent? separators? sort_keys?", v);
    struct dump d = {.c = c, .b = eng_j_buf(c, 0)};
    d.ascii = eng_j_truth(c, v[0]);
    d.sort = eng_j_truth(c, v[3]);
    if (v[1].t == J_STR) {
        d.indent = v[1].s;
    } else if (eng_jv_is_int(v[1])) {
        int64_t n = eng_jv_i(v[1]);
        struct eng_jbuf *b = eng_j_buf(c, 0);
        if (n > 0) eng_j_put_fill(c, b, ' ', (size_t)n, !v[1].client);
        d.indent = eng_j_done(c, b);
    } else if (v[1].t != J_ABSENT && v[1].t != J_NONE) {
        eng_j_raise(c, "the indent of tojson must be a number or a string");
    }
    d.comma = eng_j_lit(c, d.indent ? "," : ", ");
    d.colon = eng_j_lit(c, ": ");
    if (v[2].t != J_ABSENT && v[2].t != J_NONE) {
        struct eng_jlist *l = eng_j_to_list(c, v[2]);
        if (l->n != 2) eng_j_raise(c, "the separators of tojson must be two strings");
        d.comma = eng_j_want_str(c, l->v[0], "separators");
        d.colon = eng_j_want_str(c, l->v[1], "separators");
    }
    put_json(&d, self, 0);
    return eng_jv_str(eng_j_done(c, d.b));
}
