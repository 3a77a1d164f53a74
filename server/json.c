#include "server/json.h"

#include <stdlib.h>
#include <string.h>

/* jansson tells a failed allocation within a value as an error of syntax: what failed is noted
 * here, by the thread that parses. */
static _Thread_local bool short_of_memory;

static void *json_malloc(size_t n)
{
    void *p = malloc(n);

    if (!p) short_of_memory = true;
    return p;
}

void srv_json_setup(void)
{
    json_set_alloc_funcs(json_malloc, free);
    json_object_seed(0);
}

int srv_json_scan(const char *data, size_t n, size_t *left, struct cn_error *err)
{
    unsigned depth = 0;
    size_t weight = 1;

    for (size_t i = 0; i < n; i++) {
        switch (data[i]) {
        case '"':
            for (i++; i < n && data[i] != '"'; i++)
                if (data[i] == '\\') i++;
            break;
        case '{':
            weight += 4; /* and 4 more as an array's */
            /* fall through */
        case '[':
            weight += 4;
            if (++depth > SRV_JSON_DEPTH)
                return cn_fail(err, CN_EJSON, "the body is nested deeper than %d levels",
                               SRV_JSON_DEPTH);
            break;
        case '}':
        case ']':
            if (depth) depth--;
            break;
        case ',':
        case ':':
            weight++;
            break;
        default:
            break;
        }
        if (weight > *left) return cn_fail(err, CN_ELIMIT, "the body holds too many values");
    }
    *left -= CN_MIN(weight, *left);
    return 0;
}

int srv_json_parse(const char *data, size_t n, size_t *left, json_t **out, struct cn_error *err)
{
    json_error_t e;
    int rc = srv_json_scan(data, n, left, err);

    if (rc) return rc;
    if (n == 0) return cn_fail(err, CN_EJSON, "the body is empty; a JSON object is expected");
    short_of_memory = false;
    json_t *root = json_loadb(data, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!root) {
        if (short_of_memory || !e.text[0] || json_error_code(&e) == json_error_out_of_memory)
            return cn_fail(err, CN_ENOMEM, "out of memory");
        return cn_fail(err, CN_EJSON, "the body is not valid JSON: line %d, column %d: %s", e.line,
                       e.column, e.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return cn_fail(err, CN_EJSON, "the body is not a JSON object");
    }
    *out = root;
    return 0;
}
