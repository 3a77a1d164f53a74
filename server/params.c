#include "server/params.h"

#include <math.h>
#include <string.h>

enum type { T_BOOL, T_INT, T_NUM, T_STR, T_ARR, T_OBJ, T_ANY };

#define CHAT  SRV_EP_CHAT
#define TEXT  SRV_EP_TEXT
#define TOK   SRV_EP_TOK
#define DETOK SRV_EP_DETOK
#define EMBED SRV_EP_EMBED

static const struct field {
    const char *name;
    unsigned endpoints;
    enum type type;
    size_t at;
    double def;
    int64_t low, high;
} fields[SRV_P_COUNT] = {
#define PARAM(ep, name, type, member, def, low, high, text)                                        \
    [SRV_P_##member] = {name, ep, T_##type, offsetof(struct srv_params, member), def, low, high},
#include "server/params.def"
#undef PARAM
};

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int wrong_type(const struct field *f, const json_t *v, const char *want,
                      struct cn_error *err)
{
    return cn_fail_param(err, CN_ETYPE, f->name, "%s must be %s, got %s", f->name, want,
                         type_name(v));
}

static int read_int(const struct field *f, const json_t *v, int64_t *to, struct cn_error *err)
{
    int64_t x;
    if (!srv_json_int(v, &x)) {
        double real = json_real_value(v);
        if (!json_is_real(v) || real != floor(real)) return wrong_type(f, v, "an integer", err);
        return cn_fail_param(err, CN_ERANGE, f->name, "%s must be between %lld and %lld, got %.0f",
                             f->name, (long long)f->low, (long long)f->high, real);
    }
    if (x < f->low && f->high >= INT32_MAX) /* as good as no bound */
        return cn_fail_param(err, CN_ERANGE, f->name, "%s must be at least %lld, got %lld", f->name,
                             (long long)f->low, (long long)x);
    if (x < f->low || x > f->high)
        return cn_fail_param(err, CN_ERANGE, f->name, "%s must be between %lld and %lld, got %lld",
                             f->name, (long long)f->low, (long long)f->high, (long long)x);
    *to = x;
    return 0;
}

static int read_num(const struct field *f, const json_t *v, double *to, struct cn_error *err)
{
    if (!json_is_number(v)) return wrong_type(f, v, "a number", err);
    double x = json_number_value(v);
    if (!(x >= (double)f->low && x <= (double)f->high))
        return cn_fail_param(err, CN_ERANGE, f->name, "%s must be between %lld and %lld, got %g",
                             f->name, (long long)f->low, (long long)f->high, x);
    *to = x;
    return 0;
}

static int read_field(const struct field *f, json_t *v, void *to, struct cn_error *err)
{
    switch (f->type) {
    case T_BOOL:
        if (!json_is_boolean(v)) return wrong_type(f, v, "a boolean", err);
        *(bool *)to = json_is_true(v);
        return 0;
    case T_INT:
        return read_int(f, v, to, err);
    case T_NUM:
        return read_num(f, v, to, err);
    case T_STR:
        if (!json_is_string(v)) return wrong_type(f, v, "a string", err);
        break;
    case T_ARR:
        if (!json_is_array(v)) return wrong_type(f, v, "an array", err);
        break;
    case T_OBJ:
        if (!json_is_object(v)) return wrong_type(f, v, "an object", err);
        break;
    case T_ANY:
        break;
    }
    *(json_t **)to = v;
    return 0;
}

static void set_default(const struct field *f, void *to)
{
    if (f->type == T_BOOL)
        *(bool *)to = f->def != 0;
    else if (f->type == T_INT)
        *(int64_t *)to = (int64_t)f->def;
    else if (f->type == T_NUM)
        *(double *)to = f->def;
}

void srv_params_bounds(enum srv_param id, int64_t *low, int64_t *high)
{
    *low = fields[id].low;
    *high = fields[id].high;
}

static const struct lack {
    const char *name, *why;
} lacks[] = {
#define PARAM(ep, name, type, member, def, low, high, text)
#define LACK(name, why) {name, why},
#include "server/params.def"
#undef PARAM
};

static bool is_empty(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    case JSON_STRING:
        return !json_string_length(v);
    case JSON_ARRAY:
        return !json_array_size(v);
    case JSON_OBJECT:
        return !json_object_size(v);
    default:
        return false;
    }
}

/* What adapters and media are asked for with, by other servers' names. */
static int refuse_lacks(json_t *body, struct cn_error *err)
{
    json_t *modes = json_object_get(body, "modalities"), *mode;
    size_t k;

    for (size_t i = 0; i < CN_ARRAY_LEN(lacks); i++) {
        json_t *v = json_object_get(body, lacks[i].name);
        if (v && !is_empty(v))
            return cn_fail_param(err, CN_EUNSUPP, lacks[i].name, "%s is not supported: %s",
                                 lacks[i].name, lacks[i].why);
    }
    json_array_foreach(modes, k, mode)
    {
        if (!srv_json_is(mode, "text"))
            return cn_fail_param(err, CN_EUNSUPP, "modalities",
                                 "modalities other than text are not supported");
    }
    return 0;
}

int srv_params_read(struct srv_params *p, json_t *body, enum srv_endpoint ep, struct cn_error *err)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < SRV_P_COUNT; i++)
        set_default(&fields[i], (char *)p + fields[i].at);
    for (int i = 0; i < SRV_P_COUNT; i++) {
        const struct field *f = &fields[i];
        json_t *v = f->endpoints & ep ? json_object_get(body, f->name) : NULL;
        if (!v || json_is_null(v)) continue;
        int rc = read_field(f, v, (char *)p + f->at, err);
        if (rc) return rc;
        p->given |= 1ull << i;
    }
    return ep & (CHAT | TEXT | EMBED) ? refuse_lacks(body, err) : 0;
}
