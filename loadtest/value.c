/* One value of a scenario from its text: from a file or an option. */
#include "loadtest/loadtest.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN     40 /* characters of a wrong value that a message repeats */
#define LEN_ITEMS 65536

/* The bounds "low..high" of a key; high is huge when it is open. */
static void bounds_of(const struct lt_key *k, double *low, double *high)
{
    const char *dots = strstr(k->bounds, "..");

    *low = strtod(k->bounds, NULL);
    *high = dots && dots[2] ? strtod(dots + 2, NULL) : 0x1p62;
}

static int outside(const struct lt_key *k, const char *text, struct cn_error *err)
{
    const char *dots = strstr(k->bounds, "..");

    if (dots && !dots[2])
        return cn_fail(err, CN_ERANGE, "must be at least %.*s, not %.*s", (int)(dots - k->bounds),
                       k->bounds, SHOWN, text);
    return cn_fail(err, CN_ERANGE, "must be in %s, not %.*s", k->bounds, SHOWN, text);
}

static bool within(const struct lt_key *k, double v)
{
    double low, high;

    bounds_of(k, &low, &high);
    return v >= low && v <= high;
}

static int put_int(const struct lt_key *k, int64_t *member, const char *text, struct cn_error *err)
{
    uint64_t v;
    bool minus = *text == '-';

    if (!cn_parse_u64(text + minus, strlen(text + minus), &v) || v > INT64_MAX)
        return cn_fail(err, CN_ETYPE, "must be a whole number, not \"%.*s\"", SHOWN, text);
    if (minus || !within(k, (double)v)) return outside(k, text, err);
    *member = (int64_t)v;
    return CN_OK;
}

static int put_num(const struct lt_key *k, double *member, const char *text, struct cn_error *err)
{
    double v;

    if (!cn_parse_double(text, &v))
        return cn_fail(err, CN_ETYPE, "must be a number, not \"%.*s\"", SHOWN, text);
    if (!within(k, v)) return outside(k, text, err);
    *member = v;
    return CN_OK;
}

static int put_enum(const struct lt_key *k, int *member, const char *text, struct cn_error *err)
{
    const char *word = k->bounds;

    for (int i = 0;; i++) {
        size_t n = strcspn(word, "|");

        if (n == strlen(text) && !memcmp(word, text, n)) {
            *member = i;
            return CN_OK;
        }
        if (!word[n]) break;
        word += n + 1;
    }
    return cn_fail(err, CN_EINVAL, "must be one of %s, not \"%.*s\"", k->bounds, SHOWN, text);
}

static int put_str(char **member, const char *text, struct cn_error *err)
{
    char *copy = strdup(text);

    if (!copy) return cn_fail(err, CN_ENOMEM, "out of memory");
    free(*member);
    *member = copy;
    return CN_OK;
}

/* ---- lengths --------------------------------------------------------------------------------- */

static int not_a_length(const char *text, struct cn_error *err)
{
    return cn_fail(err, CN_ETYPE,
                   "must be a length: 128, 16..256, lognormal:MEDIAN:SIGMA[:MOST] or a list of "
                   "numbers, not \"%.*s\"",
                   SHOWN, text);
}

static int len_list(const struct lt_key *k, struct lt_len *l, const char *text,
                    struct cn_error *err)
{
    size_t cap = 0;

    l->kind = LT_LEN_LIST;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        uint64_t v;

        if (!cn_parse_u64(p, n, &v)) return not_a_length(text, err);
        if (!within(k, (double)v)) return outside(k, text, err);
        if (l->n_list == LEN_ITEMS)
            return cn_fail(err, CN_ELIMIT, "has more than %d numbers", LEN_ITEMS);
        if (cn_grow(&l->list, &cap, l->n_list + 1, sizeof *l->list))
            return cn_fail(err, CN_ENOMEM, "out of memory");
        l->list[l->n_list++] = v;
        p += n;
        if (!*p) return CN_OK;
    }
}

static int len_lognormal(const struct lt_key *k, struct lt_len *l, const char *text,
                         struct cn_error *err)
{
    char part[3][32] = {""};
    const char *p = strchr(text, ':');
    double most;
    int n = 0;

    for (; p && n < 3; n++) {
        size_t len = strcspn(++p, ":");

        if (len >= sizeof part[0]) return not_a_length(text, err);
        memcpy(part[n], p, len);
        p = p[len] ? p + len : NULL;
    }
    bounds_of(k, &l->median, &most);
    l->low = (uint64_t)l->median;
    if (p || n < 2 || !cn_parse_double(part[0], &l->median) || !cn_parse_double(part[1], &l->sigma))
        return not_a_length(text, err);
    l->kind = LT_LEN_LOGNORMAL;
    l->high = (uint64_t)most;
    if (n == 3 && !cn_parse_u64(part[2], strlen(part[2]), &l->high)) return not_a_length(text, err);
    if (!within(k, l->median) || !within(k, (double)l->high)) return outside(k, text, err);
    if (l->sigma < 0 || l->sigma > 10)
        return cn_fail(err, CN_ERANGE, "sigma must be from 0 to 10, not %.*s", SHOWN, part[1]);
    return CN_OK;
}

static int put_len(const struct lt_key *k, struct lt_len *member, const char *text,
                   struct cn_error *err)
{
    const char *dots = strstr(text, "..");
    struct lt_len l = {0};
    int rc = CN_OK;

    if (!strncmp(text, "lognormal:", 10)) {
        rc = len_lognormal(k, &l, text, err);
    } else if (strchr(text, ',')) {
        rc = len_list(k, &l, text, err);
    } else {
        const char *high = dots ? dots + 2 : text;

        l.kind = dots ? LT_LEN_UNIFORM : LT_LEN_FIXED;
        if (!cn_parse_u64(text, dots ? (size_t)(dots - text) : strlen(text), &l.low) ||
            !cn_parse_u64(high, strlen(high), &l.high))
            rc = not_a_length(text, err);
        else if (!within(k, (double)l.low) || !within(k, (double)l.high))
            rc = outside(k, text, err);
        else if (l.low > l.high)
            rc =
                cn_fail(err, CN_EINVAL, "the first bound is above the second in %.*s", SHOWN, text);
    }
    if (rc) {
        lt_len_fini(&l);
        return rc;
    }
    lt_len_fini(member);
    *member = l;
    return CN_OK;
}

int lt_key_put(const struct lt_key *k, void *base, const char *text, bool quoted,
               struct cn_error *err)
{
    void *member = (char *)base + k->offset;

    if (cn_utf8_valid_len(text, strlen(text)) != strlen(text))
        return cn_fail(err, CN_EINVAL, "must be valid UTF-8");
    if (quoted && (k->type == LT_T_INT || k->type == LT_T_NUM))
        return cn_fail(err, CN_ETYPE, "must be a number, not a quoted text");
    switch (k->type) {
    case LT_T_STR:
        return put_str(member, text, err);
    case LT_T_INT:
        return put_int(k, member, text, err);
    case LT_T_NUM:
        return put_num(k, member, text, err);
    case LT_T_ENUM:
        return put_enum(k, member, text, err);
    case LT_T_LEN:
        return put_len(k, member, text, err);
    case LT_T_BOOL:
        break;
    }
    if (quoted || (strcmp(text, "true") && strcmp(text, "false")))
        return cn_fail(err, CN_ETYPE, "must be true or false, not \"%.*s\"", SHOWN, text);
    *(bool *)member = *text == 't';
    return CN_OK;
}
