#include "server/json.h"
#include "server/text_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* jansson reports a failed allocation inside a value as a syntax error, so the parsing thread
 * notes here that one failed. */
static _Thread_local bool short_of_memory;

/* jansson gathers the text of a value in a buffer that doubles. Where the buffer cannot grow, a
 * byte is lost without a word, and the text's end is then looked for behind it. So there is always
 * room for it: once memory is short no more text is read, and what was read is thrown away. The
 * buffer is what a parse allocates first; it grows by an allocation, a copy and a free. */
static _Thread_local struct {
    char *bytes; /* NULL: no text is being read */
    size_t size, used;
    const char *buffer, *last; /* the buffer; what was allocated last */
    size_t buffer_size, last_size;
} reserve;

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

static void take_turn(void)
{
    if (++n_calls % YIELD_CALLS == 0) keep_going();
}

static void json_free(void *p)
{
    take_turn();
    if (p && p == reserve.buffer) {
        reserve.buffer = reserve.last;
        reserve.buffer_size = reserve.last_size;
    }
    if ((uintptr_t)p - (uintptr_t)reserve.bytes >= reserve.size) free(p);
}

/* For the buffer only, when it is full. */
static void *from_reserve(size_t n)
{
    if (!reserve.buffer || n != 2 * reserve.buffer_size || n > reserve.size - reserve.used)
        return NULL;
    if (strnlen(reserve.buffer, reserve.buffer_size) != reserve.buffer_size - 1) return NULL;
    reserve.used += n;
    return reserve.bytes + reserve.used - n;
}

static void *json_malloc(size_t n)
{
    take_turn();
    void *p = malloc(n);

    if (!p) {
        short_of_memory = true;
        p = from_reserve(n);
    }
    if (!reserve.bytes) return p;
    if (!reserve.buffer) {
        reserve.buffer = p;
        reserve.buffer_size = n;
    }
    reserve.last = p;
    reserve.last_size = n;
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

/* Depth and weight: what the parser may cost is known before it runs. *longest: at least the bytes
 * of any string or number. */
static int scan(const char *data, size_t n, size_t *left, size_t *longest, struct cn_error *err)
{
    unsigned depth = 0;
    size_t weight = 1, begin = 0;

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
            continue;
        }
        *longest = CN_MAX(*longest, i + 1 - begin);
        begin = i + 1;
        if (weight > *left)
            return cn_fail(err, CN_ELIMIT, "the body holds too many values: " SRV_JSON_MOST,
                           SRV_JSON_WEIGHT);
    }
    *longest = CN_MAX(*longest, n - CN_MIN(begin, n));
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

    if (short_of_memory) return (size_t)-1;
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

    if (short_of_memory) return (size_t)-1;
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

/* longest: at least the bytes of any string or number. NULL: *e says why, unless memory is short.
 */
static json_t *load(const char *data, size_t n, size_t longest, json_error_t *e)
{
    struct reader reader = {.at = data, .end = data + n};
    json_t *root = NULL;

    short_of_memory = false;
    memset(&reserve, 0, sizeof reserve);
    reserve.size = 4 * (longest + 2) + 64; /* of memory that is not touched unless it is needed */
    reserve.bytes = malloc(reserve.size);
    if (!reserve.bytes) short_of_memory = true;
    if (!short_of_memory)
        root = json_load_callback(read_text, &reader, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, e);
    reserve.buffer = NULL;
    if (!short_of_memory && !root && json_error_code(e) == json_error_numeric_overflow)
        root = load_wide(data, n, e);
    if (short_of_memory) {
        json_decref(root); /* bytes of its texts may be lost */
        root = NULL;
    }
    free(reserve.bytes);
    memset(&reserve, 0, sizeof reserve);
    return root;
}

int srv_json_parse(const char *data, size_t n, struct srv_json_room *room, json_t **out,
                   struct cn_error *err)
{
    json_error_t e = {0}; /* jansson may leave its code unset */
    size_t had = room->left, longest = 0;
    int rc = scan(data, n, &room->left, &longest, err);

    if (!rc) rc = take_room(room, had - room->left, n, err);
    if (rc) return rc;
    if (n == 0) return cn_fail(err, CN_EJSON, "the body is empty; a JSON object is expected");
    json_t *root = load(data, n, longest, &e);
    if (!root && !keep_going()) return cn_fail(err, CN_ECANCELLED, "cancelled");
    if (!root) {
        if (short_of_memory || !e.text[0] || json_error_code(&e) == json_error_out_of_memory)
            return cn_fail(err, CN_ENOMEM, "out of memory");
        if (json_error_code(&e) == json_error_numeric_overflow)
            return cn_fail(err, CN_ERANGE,
                           "line %d, column %d of the body: a number is out of range", e.line,
                           e.column);
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
