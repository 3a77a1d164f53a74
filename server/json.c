#include "server/json.h"
#include "server/text_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* jansson reports a failed allocation inside a value as a syntax error, so the parsing thread
 * notes here that one failed. */
static _Thread_local bool short_of_memory;

/* ---- turns -------------------------------------------------------------------------------------
 * On a text worker's thread reading a text, and making or freeing its values, is work in slices. */

#define YIELD_BYTES 16384
#define YIELD_CALLS 512

static _Thread_local unsigned n_calls;

static bool keep_going(void)
{
    struct srv_job *job = srv_text_job();
    return !job || srv_text_yield(job);
}

static void json_free(void *p)
{
    if (++n_calls % YIELD_CALLS == 0) keep_going();
    free(p);
}

/* A job that was cancelled gets no more memory: what it does ends there. */
static void *json_malloc(size_t n)
{
    if (++n_calls % YIELD_CALLS == 0 && !keep_going()) {
        short_of_memory = true;
        return NULL;
    }
    void *p = malloc(n);

    if (!p) short_of_memory = true;
    return p;
}

void srv_json_setup(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
    json_object_seed(0);
}

/* The end of a string whose first byte is at i. */
static size_t end_of_string(const char *data, size_t n, size_t i)
{
    for (size_t asked = i; i < n && data[i] != '"'; i++) {
        if (data[i] == '\\') i++;
        if (i - asked < 8 * YIELD_BYTES) continue;
        asked = i;
        keep_going();
    }
    return i;
}

int srv_json_scan(const char *data, size_t n, size_t *left, struct cn_error *err)
{
    unsigned depth = 0;
    size_t weight = 1;

    for (size_t i = 0, asked = 0; i < n; i++) {
        if (i - asked >= 4 * YIELD_BYTES) {
            asked = i;
            if (!keep_going()) return cn_fail(err, CN_ECANCELLED, "cancelled");
        }
        switch (data[i]) {
        case '"':
            i = end_of_string(data, n, i + 1);
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
        if (weight > *left)
            return cn_fail(err, CN_ELIMIT, "the body holds too many values: " SRV_JSON_MOST,
                           SRV_JSON_WEIGHT);
    }
    *left -= CN_MIN(weight, *left);
    return 0;
}

/* ---- integers beyond 64 bits -------------------------------------------------------------------
 * jansson refuses the text that holds one. Whether such a value is wrong, and of which field, is
 * for its reader to say: it is read again with an exponent behind each, as reals. */

struct wide_reader {
    const char *at, *end;
    const char *stop;  /* where the next of them ends, */
    bool wide;         /* or, where there is none, the text */
    size_t n_exponent; /* bytes of the exponent that are still to be given */
};

/* Whether an integer that 64 bits do not hold follows; where it ends. */
static bool next_wide(struct wide_reader *r)
{
    const char *s = r->at, *end = r->end;

    while (s < end) {
        if (*s == '"') {
            for (s++; s < end && *s != '"'; s++)
                if (*s == '\\') s++;
            s += s < end;
            continue;
        }
        const char *digits = s + (*s == '-'), *p = digits;
        uint64_t v, most = (uint64_t)INT64_MAX + (*s == '-');
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        bool real = p < end && (*p == '.' || *p == 'e' || *p == 'E');
        if (p > digits && !real && (!cn_parse_u64(digits, (size_t)(p - digits), &v) || v > most)) {
            r->stop = p;
            return true;
        }
        while (real && p < end && (strchr("+-.eE", *p) || (*p >= '0' && *p <= '9')))
            p++;
        s = p > s ? p : s + 1;
    }
    r->stop = end;
    return false;
}

struct reader {
    const char *at, *end;
    size_t n_given;
};

static size_t read_text(void *to, size_t room, void *arg)
{
    struct reader *r = arg;
    size_t n = CN_MIN(room, (size_t)(r->end - r->at));

    r->n_given += n;
    if (r->n_given >= YIELD_BYTES) {
        r->n_given = 0;
        if (!keep_going()) return (size_t)-1;
    }
    memcpy(to, r->at, n);
    r->at += n;
    return n;
}

static size_t read_wide(void *to, size_t room, void *arg)
{
    struct wide_reader *r = arg;
    size_t n = CN_MIN(room, r->n_exponent);

    if (n) {
        memcpy(to, &"e0"[2 - r->n_exponent], n);
        r->n_exponent -= n;
        return n;
    }
    n = CN_MIN(room, (size_t)(r->stop - r->at));
    if (n) memcpy(to, r->at, n);
    r->at += n;
    if (r->at == r->stop && r->wide) {
        r->wide = next_wide(r);
        r->n_exponent = 2;
    }
    return n;
}

static json_t *load_wide(const char *data, size_t n, json_error_t *e)
{
    struct wide_reader r = {.at = data, .end = data + n};

    r.wide = next_wide(&r);
    return json_load_callback(read_wide, &r, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, e);
}

/* What a tree of this weight takes, its texts included. */
static int take_room(struct srv_json_room *room, size_t weight, size_t n, struct cn_error *err)
{
    uint64_t bytes = (uint64_t)weight * SRV_JSON_UNIT + n;
    int rc = room->hold ? cn_hold_take(room->hold, bytes) : 0;

    if (rc) return cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    if (room->hold) room->taken += bytes;
    return 0;
}

int srv_json_parse(const char *data, size_t n, struct srv_json_room *room, json_t **out,
                   struct cn_error *err)
{
    json_error_t e = {0}; /* jansson may leave its code unset */
    size_t had = room->left;
    int rc = srv_json_scan(data, n, &room->left, err);

    if (!rc) rc = take_room(room, had - room->left, n, err);
    if (rc) return rc;
    if (n == 0) return cn_fail(err, CN_EJSON, "the body is empty; a JSON object is expected");
    short_of_memory = false;
    struct reader reader = {.at = data, .end = data + n};
    json_t *root =
        json_load_callback(read_text, &reader, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!root && json_error_code(&e) == json_error_numeric_overflow) root = load_wide(data, n, &e);
    if (!root && json_error_code(&e) == json_error_numeric_overflow)
        return cn_fail(err, CN_ERANGE, "line %d, column %d of the body: a number is out of range",
                       e.line, e.column);
    if (!root && !keep_going()) return cn_fail(err, CN_ECANCELLED, "cancelled");
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

/* ---- values ---------------------------------------------------------------------------------- */

bool srv_json_is(const json_t *v, const char *text)
{
    size_t n = strlen(text);

    return json_is_string(v) && json_string_length(v) == n &&
           !memcmp(json_string_value(v), text, n);
}

int srv_json_one_of(const json_t *v, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (srv_json_is(v, words[i])) return i;
    return -1;
}

bool srv_json_int(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double x = json_real_value(v); /* 0 where it is none */
    if (!json_is_real(v) || x != floor(x) || x <= -0x1p63 || x >= 0x1p63) return false;
    *out = (int64_t)x;
    return true;
}
