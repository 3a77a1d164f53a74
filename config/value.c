/* One value: from text to a member of struct cfg, within the bounds of its line in keys.def.
 * Any thread; owns nothing. The same reader takes defaults, file and command line. */
#include "config/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 60 /* bytes of a wrong value that a message repeats */

static bool parse_int(const char *s, int64_t *out)
{
    char *end;
    const char *p = *s == '-' ? s + 1 : s;

    if (!*p || strspn(p, "0123456789") != strlen(p)) return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end) return false;
    *out = v;
    return true;
}

static bool parse_size(const char *s, uint64_t *out)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    size_t digits = strspn(s, "0123456789");
    uint64_t v = 0, factor = 1;

    if (!cn_parse_u64(s, digits, &v)) return false;
    s += digits;
    if (*s == ' ') s++;
    for (size_t i = 0; *s && i < CN_ARRAY_LEN(units); i++) {
        if (strcmp(s, units[i])) continue;
        factor = (uint64_t)1 << 10 * (i + 1);
        s += 3;
    }
    return !*s && cn_mul_u64(v, factor, out);
}

/* Splits "low..high"; either side may be empty. */
static void split_bounds(const char *bounds, char low[32], char high[32])
{
    const char *dots = strstr(bounds, "..");
    size_t n = dots ? (size_t)(dots - bounds) : 0;

    low[0] = high[0] = '\0';
    if (!dots) return;
    cn_assert(n < 32 && strlen(dots + 2) < 32);
    memcpy(low, bounds, n);
    low[n] = '\0';
    memcpy(high, dots + 2, strlen(dots + 2) + 1);
}

static int out_of_bounds(const struct cfg_key *k, const char *text, struct cn_error *err)
{
    char low[32], high[32];

    split_bounds(k->bounds, low, high);
    if (!high[0]) return cn_fail(err, CN_ERANGE, "must be at least %s, not %.*s", low, SHOWN, text);
    return cn_fail(err, CN_ERANGE, "must be from %s to %s, not %.*s", low, high, SHOWN, text);
}

static int put_int(const struct cfg_key *k, int64_t *member, const char *text, struct cn_error *err)
{
    char low[32], high[32];
    int64_t v, bound;

    if (!parse_int(text, &v)) {
        if (strspn(text, "0123456789-") == strlen(text) && strlen(text) > 18)
            return out_of_bounds(k, text, err);
        return cn_fail(err, CN_ETYPE, "must be a whole number, not \"%.*s\"", SHOWN, text);
    }
    split_bounds(k->bounds, low, high);
    if (parse_int(low, &bound) && v < bound) return out_of_bounds(k, text, err);
    if (parse_int(high, &bound) && v > bound) return out_of_bounds(k, text, err);
    *member = v;
    return CN_OK;
}

static int put_size(const struct cfg_key *k, uint64_t *member, const char *text,
                    struct cn_error *err)
{
    char low[32], high[32];
    uint64_t v, bound;

    if (!parse_size(text, &v))
        return cn_fail(
            err, CN_ETYPE,
            "must be a number of bytes, such as 65536, 64KiB, 16MiB or 2GiB, not \"%.*s\"", SHOWN,
            text);
    split_bounds(k->bounds, low, high);
    if (parse_size(low, &bound) && v < bound) return out_of_bounds(k, text, err);
    if (parse_size(high, &bound) && v > bound) return out_of_bounds(k, text, err);
    *member = v;
    return CN_OK;
}

static int put_num(const struct cfg_key *k, double *member, const char *text, struct cn_error *err)
{
    char low[32], high[32];
    double v, bound;

    if (!cn_parse_double(text, &v))
        return cn_fail(err, CN_ETYPE, "must be a number, not \"%.*s\"", SHOWN, text);
    split_bounds(k->bounds, low, high);
    if (cn_parse_double(low, &bound) && v < bound) return out_of_bounds(k, text, err);
    if (cn_parse_double(high, &bound) && v > bound) return out_of_bounds(k, text, err);
    *member = v;
    return CN_OK;
}

/* The place of text among the words of "a|b|c", or -1. */
static int choice(const char *words, const char *text)
{
    size_t n = strlen(text);

    for (int i = 0; n; i++) {
        size_t len = strcspn(words, "|");

        if (len == n && !memcmp(words, text, n)) return i;
        if (!words[len]) break;
        words += len + 1;
    }
    return -1;
}

static int put_str(char **member, const char *text, size_t n, struct cn_error *err)
{
    char *copy = NULL;

    if (n) {
        copy = strndup(text, n);
        if (!copy) return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    free(*member);
    *member = copy;
    return CN_OK;
}

static int put_list(struct cfg_list *member, const char *text, struct cn_error *err)
{
    struct cfg_list list = {0};

    while (*text) {
        size_t len = strcspn(text, ",");

        if (len && cfg_list_add(&list, text, len)) {
            cfg_list_fini(&list);
            return cn_fail(err, CN_ENOMEM, "out of memory");
        }
        text += len + (text[len] == ',');
    }
    cfg_list_fini(member);
    *member = list;
    return CN_OK;
}

static int put_any(const struct cfg_key *k, void *member, const char *text, bool quoted,
                   struct cn_error *err)
{
    bool number = k->type == CFG_T_INT || k->type == CFG_T_NUM || k->type == CFG_T_PICK;
    int at;

    if (quoted && number) return cn_fail(err, CN_ETYPE, "must be a number, not a quoted text");
    switch (k->type) {
    case CFG_T_STR:
        return put_str(member, text, strlen(text), err);
    case CFG_T_INT:
        return put_int(k, member, text, err);
    case CFG_T_SIZE:
        return put_size(k, member, text, err);
    case CFG_T_NUM:
        return put_num(k, member, text, err);
    case CFG_T_LIST:
        return put_list(member, text, err);
    case CFG_T_BOOL:
        if (quoted || (strcmp(text, "true") && strcmp(text, "false")))
            return cn_fail(err, CN_ETYPE, "must be true or false, not \"%.*s\"", SHOWN, text);
        *(bool *)member = *text == 't';
        return CN_OK;
    case CFG_T_ENUM:
    case CFG_T_PICK:
        break;
    }
    at = choice(k->bounds, text);
    if (at < 0)
        return cn_fail(err, CN_EINVAL, "must be one of %s, not \"%.*s\"", k->bounds, SHOWN, text);
    if (k->type == CFG_T_PICK) return parse_int(text, member) ? CN_OK : CN_EINTERNAL;
    *(int *)member = at;
    return CN_OK;
}

int cfg_key_put(const struct cfg_key *k, void *base, const char *text, size_t n, bool quoted,
                struct cn_error *err)
{
    char *copy;
    int rc;

    if (memchr(text, 0, n)) return cn_fail(err, CN_EINVAL, "must not hold a NUL character");
    if (cn_utf8_valid_len(text, n) != n) return cn_fail(err, CN_EINVAL, "must be valid UTF-8");
    copy = strndup(text, n);
    if (!copy) return cn_fail(err, CN_ENOMEM, "out of memory");
    rc = put_any(k, (char *)base + k->offset, copy, quoted, err);
    free(copy);
    return rc;
}

int cfg_list_add(struct cfg_list *l, const char *text, size_t n)
{
    char *copy = strndup(text, n), **items;

    if (!copy) return CN_ENOMEM;
    items = cn_realloc_array(l->items, l->count + 1, sizeof *items);
    if (!items) {
        free(copy);
        return CN_ENOMEM;
    }
    l->items = items;
    l->items[l->count++] = copy;
    return CN_OK;
}

void cfg_list_fini(struct cfg_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->items[i]);
    free(l->items);
    l->items = NULL;
    l->count = 0;
}

bool cfg_parse_key_hash(const char *text, struct cfg_key_hash *out)
{
    static const char prefix[] = "sha256:";

    if (strncmp(text, prefix, sizeof prefix - 1)) return false;
    text += sizeof prefix - 1;
    if (strlen(text) != 64) return false;
    for (int i = 0; i < 32; i++) {
        int a = cn_hex_digit(text[2 * i]), b = cn_hex_digit(text[2 * i + 1]);

        if (a < 0 || b < 0) return false;
        out->sha256[i] = (uint8_t)(a << 4 | b);
    }
    return true;
}

/* ---- comparing and copying ------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static bool same_list(const struct cfg_list *a, const struct cfg_list *b)
{
    bool same = a->count == b->count;

    for (size_t i = 0; same && i < a->count; i++)
        same = !strcmp(a->items[i], b->items[i]);
    return same;
}

bool cfg_key_same(const struct cfg_key *k, const void *a, const void *b)
{
    const void *x = (const char *)a + k->offset, *y = (const char *)b + k->offset;

    switch (k->type) {
    case CFG_T_STR:
        return same_text(*(char *const *)x, *(char *const *)y);
    case CFG_T_LIST:
        return same_list(x, y);
    case CFG_T_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case CFG_T_ENUM:
        return *(const int *)x == *(const int *)y;
    case CFG_T_NUM:
        return *(const double *)x == *(const double *)y;
    case CFG_T_INT:
    case CFG_T_SIZE:
    case CFG_T_PICK:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    }
    return false;
}

bool cfg_keys_same(const struct cfg_key *k, size_t count, const void *a, const void *b)
{
    for (size_t i = 0; i < count; i++)
        if (!cfg_key_same(&k[i], a, b)) return false;
    return true;
}

bool cfg_tenant_same(const struct cfg_tenant *a, const struct cfg_tenant *b)
{
    size_t n;
    const struct cfg_key *k = cfg_item_keys("tenants", &n);

    for (size_t i = 0; i < n; i++)
        if (i != CFG_TENANT_KEY_keys && !cfg_key_same(&k[i], a, b)) return false;
    return true;
}

/* One text or list of `to`, which has from's own now. */
static int copy_owned(const struct cfg_key *k, struct cfg_tenant *to, const struct cfg_tenant *from)
{
    const void *src = (const char *)from + k->offset;
    void *dst = (char *)to + k->offset;

    if (k->type == CFG_T_STR) {
        const char *text = *(char *const *)src;
        if (text && !(*(char **)dst = strdup(text))) return CN_ENOMEM;
    } else if (k->type == CFG_T_LIST) {
        const struct cfg_list *list = src;
        for (size_t i = 0; i < list->count; i++)
            if (cfg_list_add(dst, list->items[i], strlen(list->items[i]))) return CN_ENOMEM;
    }
    return 0;
}

int cfg_tenant_copy(struct cfg_tenant *to, const struct cfg_tenant *from)
{
    size_t n, n_keys = from->key_hashes ? from->keys.count : 0;
    const struct cfg_key *k = cfg_item_keys("tenants", &n);
    int rc = 0;

    *to = *from;
    memset(to->places, 0, sizeof to->places);
    for (size_t i = 0; i < n; i++) { /* nothing that is from's stays in it */
        if (k[i].type == CFG_T_STR) *(char **)((char *)to + k[i].offset) = NULL;
        if (k[i].type == CFG_T_LIST)
            *(struct cfg_list *)((char *)to + k[i].offset) = (struct cfg_list){0};
    }
    to->key_hashes = cn_calloc(CN_MAX(n_keys, (size_t)1), sizeof *to->key_hashes);
    if (!to->key_hashes) return CN_ENOMEM;
    if (n_keys) memcpy(to->key_hashes, from->key_hashes, n_keys * sizeof *to->key_hashes);
    for (size_t i = 0; !rc && i < n; i++)
        rc = copy_owned(&k[i], to, from);
    return rc;
}
