/* Recommended sampling as text, "temperature=0.6, top_p=0.95, top_k=20": of the config and of the
 * catalog. Any thread; owns nothing. */
#include "config/config.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    double low, high;
    bool above, whole; /* low itself is out; no fractions */
} fields[CFG_N_SAMPLING] = {
    [CFG_S_TEMPERATURE] = {"temperature", 0, 2, false, false},
    [CFG_S_TOP_P] = {"top_p", 0, 1, true, false},
    [CFG_S_TOP_K] = {"top_k", 0, 2147483647, false, true},
    [CFG_S_MIN_P] = {"min_p", 0, 1, false, false},
    [CFG_S_REPETITION] = {"repetition_penalty", 0, 100, true, false},
    [CFG_S_PRESENCE] = {"presence_penalty", -2, 2, false, false},
    [CFG_S_FREQUENCY] = {"frequency_penalty", -2, 2, false, false},
};

const char *cfg_sampling_name(enum cfg_sampling_field f)
{
    return fields[f].name;
}

bool cfg_sampling_ok(enum cfg_sampling_field f, double v)
{
    bool above = fields[f].above ? v > fields[f].low : v >= fields[f].low;
    return above && v <= fields[f].high && (!fields[f].whole || v == (double)(int64_t)v);
}

static int find_field(const char *s, size_t n)
{
    for (int f = 0; f < CFG_N_SAMPLING; f++)
        if (strlen(fields[f].name) == n && !memcmp(fields[f].name, s, n)) return f;
    return -1;
}

/* NAME=VALUE, of n bytes. */
static int read_one(const char *s, size_t n, struct cfg_sampling *out, struct cn_error *err)
{
    const char *equals = memchr(s, '=', n);
    size_t len = equals ? (size_t)(equals - s) : n;
    char value[32];
    double v;

    while (len && s[len - 1] == ' ')
        len--;
    int f = equals ? find_field(s, len) : -1;
    if (f < 0)
        return cn_fail(
            err, CN_EINVAL,
            "\"%.*s\" must be one of temperature, top_p, top_k, min_p, repetition_penalty, "
            "presence_penalty and frequency_penalty, with =VALUE behind it",
            (int)CN_MIN(n, (size_t)60), s);
    if (out->given >> f & 1) return cn_fail(err, CN_EINVAL, "%s is there twice", fields[f].name);
    size_t left = n - (size_t)(equals + 1 - s);
    for (s = equals + 1; left && *s == ' '; left--)
        s++;
    snprintf(value, sizeof value, "%.*s", (int)CN_MIN(left, sizeof value), s);
    if (left >= sizeof value || !cn_parse_double(value, &v))
        return cn_fail(err, CN_ETYPE, "%s must be a number, not \"%s\"", fields[f].name, value);
    if (!cfg_sampling_ok((enum cfg_sampling_field)f, v))
        return cn_fail(err, CN_ERANGE, "%s must be %s%s %g and at most %g, not %s", fields[f].name,
                       fields[f].whole ? "a whole number, " : "",
                       fields[f].above ? "above" : "at least", fields[f].low, fields[f].high,
                       value);
    out->v[f] = v;
    out->given |= 1u << f;
    return CN_OK;
}

int cfg_sampling_read(const char *text, struct cfg_sampling *out, struct cn_error *err)
{
    memset(out, 0, sizeof *out);
    while (text && *text) {
        size_t n = strcspn(text, ","), end = n;
        const char *next = text + n + (text[n] == ',');

        for (; end && *text == ' '; end--)
            text++;
        while (end && text[end - 1] == ' ')
            end--;
        int rc = read_one(text, end, out, err);
        if (rc) return rc;
        text = next;
    }
    return CN_OK;
}

/* ---- the catalog's --------------------------------------------------------------------------- */

static const struct {
    const char *name, *text; /* of all names that begin so */
} recommended[] = {
#define MODEL(name, file, family, quant, bytes, sha256, licence, source, note)
#define SAMPLING(name, text) {name, text},
#include "config/catalog.def"
#undef MODEL
#undef SAMPLING
};

const char *cfg_catalog_sampling(const char *name)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(recommended); i++)
        if (!strncmp(name, recommended[i].name, strlen(recommended[i].name)))
            return recommended[i].text;
    return NULL;
}
