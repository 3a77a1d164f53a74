/* ranges: properties of Unicode. See ranges.h.
 *
 * utf8proc knows the general categories. PCRE2 knows scripts and binary properties: it is given
 * every character, plane by plane, and finds the runs of those that have the property. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/grammar/ranges.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

enum { PLANE = 0x10000, MOST_NAME = 60 };

static const struct category {
    const char *short_name, *long_name;
    uint32_t mask;
} categories[] = {
#define CATEGORY(s, l, m) {s, l, m},
#define BINARY(l, s)
#include "engine/text/grammar/pattern_props.def"
#undef CATEGORY
#undef BINARY
};
static const struct binary {
    const char *long_name, *short_name;
} binaries[] = {
#define CATEGORY(s, l, m)
#define BINARY(l, s) {l, s},
#include "engine/text/grammar/pattern_props.def"
#undef CATEGORY
#undef BINARY
};

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '_' || c == '-';
}
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_name(struct eng_str given, const char *name)
{
    size_t i = 0;
    for (;; i++, name++) {
        while (i < given.n && is_blank(given.p[i]))
            i++;
        while (is_blank(*name))
            name++;
        if (i == given.n || !*name) return i == given.n && !*name;
        if (lower(given.p[i]) != lower(*name)) return false;
    }
}

/* ---- general categories ---------------------------------------------------------------------- */

static int of_categories(struct eng_ranges *out, uint32_t mask)
{
    for (uint32_t cp = 0; cp <= ENG_CP_MOST; cp++)
        if (mask >> utf8proc_category((utf8proc_int32_t)cp) & 1 && eng_ranges_add(out, cp, cp))
            return CN_ENOMEM;
    return 0;
}

/* Zero: there is no such category. */
static uint32_t category(struct eng_str name)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(categories); i++)
        if (is_name(name, categories[i].short_name) || is_name(name, categories[i].long_name))
            return categories[i].mask;
    return 0;
}

/* ---- scripts and binary properties ----------------------------------------------------------- */

struct finder {
    pcre2_code *code;
    pcre2_match_data *match;
    char *text; /* the characters of a plane */
};

static void finder_fini(struct finder *f)
{
    pcre2_match_data_free(f->match);
    pcre2_code_free(f->code);
    free(f->text);
}

/* CN_EINVAL: PCRE2 does not know the property. */
static int finder_init(struct finder *f, const char *property)
{
    char pattern[MOST_NAME + 16];
    int code;
    PCRE2_SIZE at;
    int n = snprintf(pattern, sizeof pattern, "\\p{%s}++", property);
    *f = (struct finder){0};
    f->code = pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)n, PCRE2_UTF, &code, &at, NULL);
    if (!f->code) return code == PCRE2_ERROR_HEAP_FAILED ? CN_ENOMEM : CN_EINVAL;
    (void)pcre2_jit_compile(f->code, PCRE2_JIT_COMPLETE); /* without it: ten times as long */
    f->match = pcre2_match_data_create(1, NULL);
    f->text = cn_malloc_array(PLANE, 4);
    return f->match && f->text ? 0 : CN_ENOMEM;
}

static uint32_t cp_at(const char *text, size_t at, size_t n)
{
    uint32_t cp = 0;
    (void)cn_utf8_decode(text + at, n - at, &cp);
    return cp;
}

static int find_in(struct finder *f, uint32_t plane, struct eng_ranges *out)
{
    size_t n = 0, at = 0;
    for (uint32_t cp = plane; cp < plane + PLANE; cp++)
        n += cn_utf8_encode(cp, f->text + n);
    while (at < n) {
        int rc =
            pcre2_match(f->code, (PCRE2_SPTR)f->text, n, at, PCRE2_NO_UTF_CHECK, f->match, NULL);
        if (rc == PCRE2_ERROR_NOMATCH) return 0;
        if (rc < 0) return CN_ENOMEM;
        const PCRE2_SIZE *m = pcre2_get_ovector_pointer(f->match);
        uint32_t from = cp_at(f->text, m[0], n);
        uint32_t to = m[1] < n ? cp_at(f->text, m[1], n) - 1 : plane + PLANE - 1;
        if (eng_ranges_add(out, from, to)) return CN_ENOMEM;
        at = m[1];
    }
    return 0;
}

static int find_all(struct eng_ranges *out, const char *property)
{
    struct finder f;
    int rc = finder_init(&f, property);
    for (uint32_t plane = 0; !rc && plane <= ENG_CP_MOST; plane += PLANE)
        rc = find_in(&f, plane, out);
    finder_fini(&f);
    if (!rc) eng_ranges_tidy(out); /* surrogates are in no text: a run goes past them */
    return rc;
}

static int find_script(struct eng_ranges *out, const char *key, struct eng_str name)
{
    char property[MOST_NAME + 8], *p = property + snprintf(property, 8, "%s:", key);
    if (name.n > MOST_NAME - 8) return CN_EINVAL;
    for (size_t i = 0; i < name.n; i++) {
        char c = lower(name.p[i]);
        if (!is_blank(c) && !(c >= 'a' && c <= 'z')) return CN_EINVAL;
        *p++ = name.p[i];
    }
    *p = 0;
    return find_all(out, property);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* name=value */
static int of_key(struct eng_ranges *out, struct eng_str key, struct eng_str value)
{
    if (is_name(key, "gc") || is_name(key, "General_Category")) {
        uint32_t mask = category(value);
        return mask ? of_categories(out, mask) : CN_EINVAL;
    }
    if (is_name(key, "sc") || is_name(key, "Script")) return find_script(out, "sc", value);
    if (is_name(key, "scx") || is_name(key, "Script_Extensions"))
        return find_script(out, "scx", value);
    return CN_EINVAL;
}

static int of_name(struct eng_ranges *out, struct eng_str name, struct cn_error *err)
{
    uint32_t mask = category(name);
    if (mask) return of_categories(out, mask);
    if (is_name(name, "Any")) return eng_ranges_add(out, 0, ENG_CP_MOST);
    if (is_name(name, "ASCII")) return eng_ranges_add(out, 0, 0x7F);
    if (is_name(name, "Assigned")) return of_categories(out, ~(1u << UTF8PROC_CATEGORY_CN));
    for (size_t i = 0; i < CN_ARRAY_LEN(binaries); i++) {
        const char *known = binaries[i].long_name;
        if (!is_name(name, known) && !is_name(name, binaries[i].short_name)) continue;
        int rc = find_all(out, known);
        return rc == CN_EINVAL ? cn_fail(err, CN_EUNSUPP, "the property %s is not supported", known)
                               : rc;
    }
    return find_script(out, "sc", name);
}

int eng_ranges_property(struct eng_ranges *out, const char *name, size_t n, struct cn_error *err)
{
    const char *equals = n ? memchr(name, '=', n) : NULL;
    struct eng_str whole = {name, n};
    size_t n_key = equals ? (size_t)(equals - name) : 0;
    int rc = equals ? of_key(out, (struct eng_str){name, n_key},
                             (struct eng_str){equals + 1, n - n_key - 1})
                    : of_name(out, whole, err);
    if (rc == CN_EINVAL)
        return cn_fail(err, rc, "unknown property %.*s", (int)CN_MIN(n, (size_t)MOST_NAME), name);
    if (rc == CN_ENOMEM) return cn_fail(err, rc, "out of memory");
    return rc;
}
