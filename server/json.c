#include "server/json.h"

#include <string.h>

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
    json_t *root = json_loadb(data, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!root) {
        /* A failed allocation leaves no text, or this code. */
        if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory)
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
