/* pattern: escapes and classes of characters. See pattern.h. */
#include "engine/text/grammar/pattern_impl.h"

/* What finding a property costs, in derivatives, and how many ranges cost as much as one. */
enum { PROPERTY_WORK = 50000, RANGES_WORK = 8 };

static void charge(struct eng_pat_reader *d, uint64_t work)
{
    d->r->work += work;
    if (d->r->max_work && d->r->work > d->r->max_work) eng_pat_check(d, CN_ELIMIT);
}

/* ---- known classes --------------------------------------------------------------------------- */

const struct eng_cp_range *eng_pattern_known(char c, bool fold, size_t *n)
{
    static const struct eng_cp_range digits[] = {{'0', '9'}};
    static const struct eng_cp_range words[] = {{'0', '9'}, {'A', 'Z'},     {'_', '_'},
                                                {'a', 'z'}, {0x17F, 0x17F}, {0x212A, 0x212A}};
    static const struct eng_cp_range spaces[] = {
        {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    static const struct eng_cp_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    switch (c) {
    case 'd':
        *n = CN_ARRAY_LEN(digits);
        return digits;
    case 'w': /* the last two fold to s and k */
        *n = CN_ARRAY_LEN(words) - (fold ? 0 : 2);
        return words;
    case 's':
        *n = CN_ARRAY_LEN(spaces);
        return spaces;
    default:
        *n = CN_ARRAY_LEN(line_ends);
        return line_ends;
    }
}

/* ---- sets ------------------------------------------------------------------------------------ */

static uint64_t hash_of(const struct eng_ranges *v)
{
    uint64_t h = v->n;
    for (size_t i = 0; i < v->n; i++)
        h = ((h ^ v->v[i].from) * 0x9E3779B97F4A7C15u ^ v->v[i].to) * 0xC2B2AE3D27D4EB4Fu;
    return h ^ h >> 31;
}

int eng_pattern_set(struct eng_pattern *p, struct eng_ranges *v, uint32_t *out)
{
    eng_ranges_tidy(v);
    uint64_t hash = hash_of(v);
    uint32_t *head = &p->heads[hash & (CN_ARRAY_LEN(p->heads) - 1)];
    for (uint32_t i = *head; i; i = p->sets[i].next) {
        const struct eng_pat_set *s = &p->sets[i];
        if (s->hash != hash || s->n != v->n) continue;
        if (v->n && memcmp(p->ranges + s->first, v->v, v->n * sizeof *v->v)) continue;
        *out = i;
        return 0;
    }
    if (p->n_ranges + v->n > ENG_PAT_MOST_RANGES) return CN_ELIMIT;
    if (cn_grow(&p->ranges, &p->cap_ranges, p->n_ranges + v->n + 1, sizeof *p->ranges) ||
        cn_grow(&p->sets, &p->cap_sets, p->n_sets + 2, sizeof *p->sets))
        return CN_ENOMEM;
    if (!p->n_sets) p->sets[p->n_sets++] = (struct eng_pat_set){0};
    p->sets[p->n_sets] = (struct eng_pat_set){
        .first = (uint32_t)p->n_ranges, .n = (uint32_t)v->n, .next = *head, .hash = hash};
    if (v->n) memcpy(p->ranges + p->n_ranges, v->v, v->n * sizeof *v->v);
    p->n_ranges += v->n;
    *out = *head = (uint32_t)p->n_sets++;
    return 0;
}

/* The set that holds what differs from it in case only, too. */
static uint32_t folded(struct eng_pat_reader *d, uint32_t set)
{
    struct eng_pattern *p = d->p;
    uint32_t out = 0;
    if (d->code || p->sets[set].folded) return d->code ? 0 : p->sets[set].folded;
    if (!p->fold.n) eng_pat_check(d, eng_fold_init(&p->fold));
    if (!d->code) eng_pat_check(d, eng_fold_close(&p->fold, &d->class));
    if (!d->code) eng_pat_check(d, eng_pattern_set(p, &d->class, &out));
    if (!d->code) p->sets[set].folded = out;
    return out;
}

uint32_t eng_pat_class_set(struct eng_pat_reader *d, bool inverted)
{
    uint32_t set = 0;
    charge(d, 1 + d->class.n / RANGES_WORK);
    if (!d->code) eng_pat_check(d, eng_pattern_set(d->p, &d->class, &set));
    if (d->fold) set = folded(d, set);
    if (!inverted || d->code) return set;
    const struct eng_pat_set *s = &d->p->sets[set];
    d->class.n = 0;
    eng_pat_check(d, eng_ranges_add_all(&d->class, d->p->ranges + s->first, s->n));
    if (!d->code) eng_pat_check(d, eng_ranges_invert(&d->class));
    if (!d->code) eng_pat_check(d, eng_pattern_set(d->p, &d->class, &set));
    return set;
}

/* ---- escapes of one character ---------------------------------------------------------------- */

/* Passes n hexadecimal digits. */
static bool read_hex(struct eng_pat_reader *d, unsigned n, uint32_t *out)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < n; i++) {
        int x = cn_hex_digit(eng_pat_peek(d, i));
        if (x < 0) return false;
        v = v << 4 | (uint32_t)x;
    }
    d->at += n;
    *out = v;
    return true;
}

/* Passes {H..}, up to six digits. */
static bool read_braced(struct eng_pat_reader *d, uint32_t *out)
{
    uint32_t v = 0;
    size_t i = 1;
    for (; cn_hex_digit(eng_pat_peek(d, i)) >= 0 && v <= ENG_CP_MOST; i++)
        v = v << 4 | (uint32_t)cn_hex_digit(eng_pat_peek(d, i));
    if (i == 1 || eng_pat_peek(d, i) != '}' || v > ENG_CP_MOST) return false;
    d->at += i + 1;
    *out = v;
    return true;
}

/* After \x, \u or \U. A pair of surrogates is one character. */
static bool read_code(struct eng_pat_reader *d, char kind, size_t from, uint32_t *cp)
{
    unsigned digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
    bool braced = eng_pat_peek(d, 0) == '{';
    uint32_t low;
    if (braced ? !read_braced(d, cp) : !read_hex(d, digits, cp) || *cp > ENG_CP_MOST) {
        eng_pat_fail(d, CN_EINVAL, from, "\\%c needs %s", kind,
                     braced ? "a code point in its braces" : "hexadecimal digits");
        return false;
    }
    if (!braced && kind == 'u' && *cp >= 0xD800 && *cp <= 0xDBFF && eng_pat_peek(d, 0) == '\\' &&
        eng_pat_peek(d, 1) == 'u') {
        size_t was = d->at;
        d->at += 2;
        if (read_hex(d, 4, &low) && low >= 0xDC00 && low <= 0xDFFF)
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        else
            d->at = was;
    }
    return true;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool eng_pat_escape(struct eng_pat_reader *d, bool in_class, uint32_t *cp)
{
    static const char names[] = "tnrfv", meant[] = "\t\n\r\f\v";
    size_t from = d->at - 1;
    char c = eng_pat_peek(d, 0);
    const char *name = c ? strchr(names, c) : NULL;
    if (d->at >= d->n) {
        eng_pat_fail(d, CN_EINVAL, from, "a backslash at the end");
        return false;
    }
    if (name) {
        d->at++;
        *cp = (uint8_t)meant[name - names];
    } else if (c == '0' && !is_digit(eng_pat_peek(d, 1))) {
        d->at++;
        *cp = 0;
    } else if (c == 'b' && in_class) {
        d->at++;
        *cp = '\b';
    } else if (c == 'c' && is_letter(eng_pat_peek(d, 1))) {
        *cp = (uint32_t)eng_pat_peek(d, 1) & 31;
        d->at += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        d->at++;
        return read_code(d, c, from, cp);
    } else if (!is_letter(c) && !is_digit(c)) {
        *cp = eng_pat_char(d);
    } else {
        return false;
    }
    return !d->code;
}

/* ---- escapes of classes ---------------------------------------------------------------------- */

static void add_all(struct eng_pat_reader *d, const struct eng_cp_range *v, size_t n)
{
    eng_pat_check(d, eng_ranges_add_all(&d->class, v, n));
}

/* Adds all characters that are not among them. */
static void add_others(struct eng_pat_reader *d, const struct eng_cp_range *v, size_t n)
{
    struct eng_ranges others = {0};
    int rc = eng_ranges_add_all(&others, v, n);
    if (!rc) rc = eng_ranges_invert(&others);
    eng_pat_check(d, rc);
    if (!rc) add_all(d, others.v, others.n);
    eng_ranges_fini(&others);
}

/* Passes L or {..}; the name. */
static bool property_name(struct eng_pat_reader *d, struct eng_str *out)
{
    char c = eng_pat_peek(d, 0);
    const char *end = c == '{' ? memchr(d->s + d->at, '}', d->n - d->at) : NULL;
    if (is_letter(c)) {
        *out = (struct eng_str){d->s + d->at++, 1};
    } else if (end) {
        *out = (struct eng_str){d->s + d->at + 1, (size_t)(end - d->s) - d->at - 1};
        d->at = (size_t)(end - d->s) + 1;
    }
    return is_letter(c) || end;
}

/* Each property is searched once. */
static uint32_t property_set(struct eng_pat_reader *d, struct eng_str name, size_t from)
{
    struct eng_pattern *p = d->p;
    struct eng_pat_property new = {.n = (uint32_t)name.n};
    struct eng_ranges v = {0};
    struct cn_error why = {0};
    for (size_t i = 0; i < p->n_properties; i++)
        if (p->properties[i].n == name.n && !memcmp(p->properties[i].name, name.p, name.n))
            return p->properties[i].set;
    if (!name.n || name.n > sizeof new.name) {
        eng_pat_fail(d, CN_EINVAL, from, "unknown property");
    } else if (p->n_properties == ENG_PAT_MOST_PROPERTIES) {
        eng_pat_fail(d, CN_ELIMIT, from, "more than %d properties", ENG_PAT_MOST_PROPERTIES);
    } else {
        int rc = eng_ranges_property(&v, name.p, name.n, &why);
        if (rc) eng_pat_fail(d, rc, from, "%s", why.message);
        charge(d, PROPERTY_WORK);
    }
    if (!d->code) eng_pat_check(d, eng_pattern_set(p, &v, &new.set));
    if (!d->code)
        eng_pat_check(d, cn_grow(&p->properties, &p->cap_properties, p->n_properties + 1,
                                 sizeof *p->properties));
    if (!d->code) {
        memcpy(new.name, name.p, name.n);
        p->properties[p->n_properties++] = new;
    }
    eng_ranges_fini(&v);
    return d->code ? 0 : new.set;
}

bool eng_pat_class_escape(struct eng_pat_reader *d)
{
    size_t from = d->at - 1, n;
    char c = eng_pat_peek(d, 0);
    const struct eng_cp_range *v;
    struct eng_str name;
    if (!c || !strchr("dDwWsSpP", c)) return false;
    d->at++;
    if (c != 'p' && c != 'P') {
        v = eng_pattern_known((char)(c | 32), d->fold, &n);
    } else if (!property_name(d, &name)) {
        eng_pat_fail(d, CN_EINVAL, from, "\\%c needs a property in braces", c);
        return true;
    } else {
        uint32_t set = property_set(d, name, from);
        if (d->code) return true;
        v = d->p->ranges + d->p->sets[set].first;
        n = d->p->sets[set].n;
    }
    if (c & 32)
        add_all(d, v, n);
    else
        add_others(d, v, n);
    return true;
}

/* ---- [..] ------------------------------------------------------------------------------------ */

/* One item: a character, or a class (*one false). */
static void read_item(struct eng_pat_reader *d, uint32_t *cp, bool *one)
{
    size_t from = d->at;
    *one = true;
    if (eng_pat_peek(d, 0) != '\\') {
        *cp = eng_pat_char(d);
        return;
    }
    d->at++;
    if (eng_pat_class_escape(d)) {
        *one = false;
    } else if (!eng_pat_escape(d, true, cp) && !d->code) {
        char c = eng_pat_peek(d, 0);
        eng_pat_fail(d, CN_EINVAL, from, "unknown escape \\%c in a class", c);
    }
}

void eng_pat_class(struct eng_pat_reader *d)
{
    size_t from = d->at - 1;
    while (eng_pat_more(d) && eng_pat_peek(d, 0) != ']') {
        uint32_t a = 0, b = 0;
        bool one, other;
        size_t at = d->at;
        read_item(d, &a, &one);
        bool range = eng_pat_peek(d, 0) == '-' && eng_pat_peek(d, 1) != ']' && d->at + 1 < d->n;
        if (!range || d->code) {
            if (one) eng_pat_check(d, eng_ranges_add(&d->class, a, a));
            continue;
        }
        d->at++;
        read_item(d, &b, &other);
        if (one && other && b < a) {
            eng_pat_fail(d, CN_EINVAL, at, "a range that ends before it begins");
        } else if (one && other) {
            eng_pat_check(d, eng_ranges_add(&d->class, a, b));
        } else { /* [\w-.]: the hyphen is itself */
            const struct eng_cp_range alone[] = {{'-', '-'}, {one ? a : b, one ? a : b}};
            add_all(d, alone, one || other ? 2 : 1);
        }
    }
    if (d->code) return;
    if (d->at >= d->n)
        eng_pat_fail(d, CN_EINVAL, from, "a class that is not closed");
    else
        d->at++;
}
