/* Numbers within bounds: every answer against exact integer arithmetic. */
#include "engine/text/grammar/spell.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef __int128 wide;
enum { UNIT_DIGITS = 12, ROUNDS = 800, TEXTS = 60 };

static uint32_t seed;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* ---- the judge ------------------------------------------------------------------------------- */

/* A JSON number's text: its value in units of 10^-12, exactly. False: it is not such a text. */
struct judged {
    wide value;
    bool point, exponent, minus;
    bool far; /* not computed: the exponent is too far from 0 */
    long power;
};

static bool judge(const char *s, struct judged *out)
{
    wide v = 0;
    long scale = 0;
    *out = (struct judged){.minus = *s == '-'};
    s += out->minus;
    if (*s == '0' && s[1] >= '0' && s[1] <= '9') return false;
    if (*s < '0' || *s > '9') return false;
    for (; *s >= '0' && *s <= '9'; s++)
        v = v * 10 + (*s - '0');
    if (*s == '.') {
        out->point = true;
        s++;
        if (*s < '0' || *s > '9') return false;
        for (; *s >= '0' && *s <= '9'; s++, scale++)
            v = v * 10 + (*s - '0');
    }
    if (*s == 'e' || *s == 'E') {
        char *end;
        out->exponent = true;
        s++;
        if (!((*s >= '0' && *s <= '9') || ((*s == '-' || *s == '+') && s[1] >= '0' && s[1] <= '9')))
            return false;
        out->power = strtol(s, &end, 10);
        s = end;
    }
    if (*s) return false;
    out->far = out->power > 6 || out->power < -6;
    if (out->far) return true;
    for (long p = out->power - scale + UNIT_DIGITS; p > 0; p--)
        v *= 10;
    for (long p = out->power - scale + UNIT_DIGITS; p < 0; p++) {
        assert_true(v % 10 == 0); /* the tests keep to what fits */
        v /= 10;
    }
    out->value = out->minus ? -v : v;
    return true;
}

/* ---- constraints ----------------------------------------------------------------------------- */

struct made {
    char text[3][32], room[3][400];
    struct eng_decimal d[3]; /* min, max, multiple_of */
    wide value[3];
    struct eng_number n;
};

static void set(struct made *m, int i, const char *text)
{
    struct judged j;
    snprintf(m->text[i], sizeof m->text[i], "%s", text);
    assert_true(judge(text, &j));
    m->value[i] = j.value;
    assert_int_equal(eng_decimal_parse(text, strlen(text), m->room[i], &m->d[i]), 0);
    *(i == 0 ? &m->n.min : i == 1 ? &m->n.max : &m->n.multiple_of) = &m->d[i];
}

static void random_decimal(char out[32], bool negative, unsigned size)
{
    char whole[12] = "0", fraction[12] = "";
    if (rnd(4)) snprintf(whole, sizeof whole, "%u", rnd(size));
    if (rnd(2)) snprintf(fraction, sizeof fraction, ".%0*u", (int)(1 + rnd(3)), rnd(10));
    snprintf(out, 32, "%s%s%s", negative && rnd(2) ? "-" : "", whole, fraction);
}

static void random_number(struct made *m)
{
    static const char *const multiples[] = {"1",     "2",    "5",   "10",   "25",  "100",  "1000",
                                            "7",     "0.01", "0.1", "0.5",  "2.5", "0.25", "30",
                                            "0.003", "13",   "1e3", "50e0", "1.2", "999"};
    static const unsigned sizes[] = {5, 20, 130, 3000, 99999};
    unsigned size = sizes[rnd(CN_ARRAY_LEN(sizes))];
    char text[32];
    memset(m, 0, sizeof *m);
    m->n.integer = rnd(2);
    for (int i = 0; i < 2; i++) {
        random_decimal(text, true, size);
        if (rnd(4)) set(m, i, text);
    }
    if (m->n.min && m->n.max && m->value[0] > m->value[1]) {
        char low[32];
        snprintf(low, sizeof low, "%s", m->text[1]);
        snprintf(text, sizeof text, "%s", m->text[0]);
        set(m, 0, low);
        set(m, 1, text);
    }
    m->n.above_min = m->n.min && !rnd(3);
    m->n.below_max = m->n.max && !rnd(3);
    if (rnd(2)) set(m, 2, multiples[rnd(CN_ARRAY_LEN(multiples))]);
}

static bool satisfies(const struct made *m, const struct judged *j)
{
    wide one = 1;
    for (int i = 0; i < UNIT_DIGITS; i++)
        one *= 10;
    if (m->n.integer && j->value % one) return false;
    if (m->n.min && (m->n.above_min ? j->value <= m->value[0] : j->value < m->value[0]))
        return false;
    if (m->n.max && (m->n.below_max ? j->value >= m->value[1] : j->value > m->value[1]))
        return false;
    return !m->n.multiple_of || j->value % m->value[2] == 0;
}

/* What spell.h says of the spelling. */
static bool is_spelled(const struct made *m, enum eng_spelling s, const struct judged *j)
{
    bool bounded = m->n.integer || m->n.min || m->n.max || m->n.multiple_of;
    if (s == ENG_SPELL_JSON_ANY) return true;
    if (j->minus && j->value == 0) return false;
    if (j->point && m->n.integer) return false;
    return !j->exponent || !bounded;
}

static void say(const struct made *m, enum eng_spelling s, const char *text, bool want)
{
    fail_msg("%s: want %d: %s %s%s %s%s multiple %s spelling %d", text, want,
             m->n.integer ? "integer" : "number", m->n.min ? m->text[0] : "-",
             m->n.above_min ? " open" : "", m->n.max ? m->text[1] : "-",
             m->n.below_max ? " open" : "", m->n.multiple_of ? m->text[2] : "-", s);
}

static bool check(struct eng_rx *r, uint32_t x, const struct made *m, enum eng_spelling s,
                  const char *text)
{
    struct judged j;
    bool number = judge(text, &j), want = number && satisfies(m, &j) && is_spelled(m, s, &j);
    if (number && j.far) return false;
    if (eng_rx_matches(r, x, text, strlen(text)) != want) say(m, s, text, want);
    return want;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* A text near a bound, or any. */
static void random_text(const struct made *m, char out[64])
{
    static const char *const forms[] = {"%s",     "-%s",   "%s0",  "0%s",  "%s.",
                                        "%s.0",   "%s.00", "%s00", "%se2", "%sE-1",
                                        "%se+03", "%s.5",  "+%s",  "%s-0", "%s e1"};
    char number[40];
    int of = (int)rnd(4);
    if (of < 2 && m->text[of][0]) {
        snprintf(number, sizeof number, "%s", m->text[of]);
        size_t n = strlen(number);
        if (rnd(2)) { /* a digit next to it */
            char *c = &number[rnd((uint32_t)n)];
            if (*c >= '0' && *c <= '9') *c = (char)('0' + (*c - '0' + 1 + rnd(9)) % 10);
        }
    } else {
        random_decimal(number, true, rnd(2) ? 200 : 99999);
    }
    snprintf(out, 64, rnd(3) ? "%s" : forms[rnd(CN_ARRAY_LEN(forms))], number);
}

/* The shortest text is inside; whether there is one at all is right where few numbers can be. */
static void check_some(struct eng_rx *r, uint32_t x, const struct made *m, enum eng_spelling s)
{
    struct cn_buf b;
    uint32_t len = eng_rx_min_len(r, x);
    bool any = false;
    cn_buf_init(&b, 0);
    assert_int_equal(eng_rx_shortest(r, x, &b), 0);
    assert_int_equal(len == UINT32_MAX, !eng_rx_live(r, x));
    if (len != UINT32_MAX) {
        assert_int_equal(b.len, len);
        assert_true(check(r, x, m, s, cn_buf_cstr(&b)));
    } else { /* integers and halves and thousandths: none is inside */
        for (long v = -100000; v <= 100000 && !any; v++) {
            struct judged j = {.value = (wide)v * 1000000000 * (m->n.integer ? 1000 : 1)};
            any = satisfies(m, &j);
        }
        assert_false(any);
    }
    cn_buf_fini(&b);
}

static void check_number(struct made *m, unsigned *inside)
{
    static const enum eng_spelling spellings[] = {ENG_SPELL_JSON, ENG_SPELL_JSON_ANY};
    for (size_t i = 0; i < CN_ARRAY_LEN(spellings); i++) {
        struct eng_rx r;
        uint32_t x = 77;
        char text[64];
        assert_int_equal(eng_rx_init(&r, NULL, 64 << 20, 0), 0);
        assert_int_equal(eng_spell_number(&r, spellings[i], &m->n, &x, NULL), 0);
        assert_true(eng_rx_node(&r, x)->plain);
        for (int k = 0; k < TEXTS; k++) {
            random_text(m, text);
            *inside += check(&r, x, m, spellings[i], text);
        }
        check_some(&r, x, m, spellings[i]);
        assert_int_equal(r.code, 0);
        eng_rx_fini(&r);
    }
}

static void test_random(void **state)
{
    unsigned inside = 0, all = 0;
    struct made m;
    for (seed = 1; all < ROUNDS; all++) {
        random_number(&m);
        check_number(&m, &inside);
    }
    printf("%u constraints, %u of %u texts inside\n", all, inside, 2 * ROUNDS * TEXTS);
    assert_true(inside > ROUNDS * TEXTS / 10);
}

/* ---- every integer of small ranges ----------------------------------------------------------- */

static void check_all_integers(const struct made *m)
{
    struct eng_rx r;
    uint32_t x;
    char text[16];
    assert_int_equal(eng_rx_init(&r, NULL, 64 << 20, 0), 0);
    assert_int_equal(eng_spell_number(&r, ENG_SPELL_JSON, &m->n, &x, NULL), 0);
    uint64_t counted, want = 0;
    for (int v = -130; v <= 230; v++) {
        snprintf(text, sizeof text, "%d", v);
        want += check(&r, x, m, ENG_SPELL_JSON, text);
    }
    if (m->n.min && m->n.max) { /* there are no others */
        assert_true(eng_rx_count(&r, x, 1000, &counted));
        assert_int_equal(counted, want);
    }
    eng_rx_fini(&r);
}

static void test_all_integers(void **state)
{
    static const char *const multiples[] = {NULL, "3", "10", "20", "0.5", "2.5"};
    char text[16];
    for (int lo = -21; lo <= 111; lo += 3)
        for (int hi = lo; hi <= 121; hi += 7)
            for (size_t k = 0; k < CN_ARRAY_LEN(multiples); k++) {
                struct made m;
                memset(&m, 0, sizeof m);
                m.n.integer = true;
                snprintf(text, sizeof text, lo & 1 ? "%d" : "%d.5", lo);
                set(&m, 0, text);
                snprintf(text, sizeof text, hi & 2 ? "%d" : "%d.25", hi);
                if (m.value[0] > 0 || hi > 0) set(&m, 1, text);
                m.n.above_min = lo & 2;
                m.n.below_max = m.n.max && (hi & 1);
                if (multiples[k]) set(&m, 2, multiples[k]);
                check_all_integers(&m);
            }
}

/* ---- large, small and odd ones --------------------------------------------------------------- */

struct odd {
    const char *kind, *min, *max, *multiple; /* kind: i or n */
    const char *inside, *outside;            /* blanks between them */
};
static const struct odd odds[] = {
    {"n", "1e21", NULL, NULL, "1000000000000000000000 1e21 1.5e21 1e+21 1e22 1e300",
     "999999999999999999999 9.99e20 -1e22"},
    {"i", NULL, "18446744073709551615", NULL, "18446744073709551615 -18446744073709551616 -1e300",
     "18446744073709551616 1.8446744073709551616e19"},
    {"n", "-0", "0", NULL, "0 -0 0.0 -0.00 0e5 0.0E-400", "0.1 -0.1 1e-9"},
    {"n", "-0.0", NULL, NULL, "0 -0 1", "-1 -0.1"},
    {"n", "0.1", "0.1", NULL, "0.1 0.10 1e-1 10e-2 0.01e1", "0.11 0.09 0 -0.1 1"},
    {"n", NULL, NULL, "0.01", "0 1.23 1.230 99999999.99 -5.1 123e-2 1e9", "1.234 0.001 1e-3"},
    {"n", NULL, NULL, "1e-8", "12391239123 12391239123.00000001", "0.000000001"},
    {"i", NULL, NULL, "123456789012", "123456789012 0 -246913578024 123456789012e3",
     "123456789013 1"},
    {"i", NULL, NULL, "1e20", "0 100000000000000000000 3e20 -1e21", "1 10 1e19"},
    {"i", NULL, NULL, "30000000000000000000000000", "90000000000000000000000000 0 30000000e18",
     "10000000000000000000000000"},
    {"i", "1", "1e18", "123456789", "123456789 246913578 864197523e3", "0 123456788 1e18"},
    {"n", "0.0000000001", "0.0000000002", NULL, "1e-10 0.00000000015 1.5e-10 2e-10",
     "2.1e-10 0 0.00000000009"},
    {"i", NULL, NULL, NULL, "1.0 1e3 1.5e1 1200e-2 -0 0e9 1e400", "1.5 1e-1 15e-2"},
    {"n", NULL, NULL, NULL, "1e400 -1E-400 0.5e7", "01 1. .5 1e +1 - 1e1.5"},
};

static void test_odd(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(odds); i++) {
        const struct odd *o = &odds[i];
        const char *const given[] = {o->min, o->max, o->multiple};
        char room[3][400];
        struct eng_decimal d[3];
        struct eng_rx r;
        uint32_t x;
        for (int k = 0; k < 3; k++)
            if (given[k])
                assert_int_equal(eng_decimal_parse(given[k], strlen(given[k]), room[k], &d[k]), 0);
        struct eng_number n = {.integer = *o->kind == 'i',
                               .min = o->min ? &d[0] : NULL,
                               .max = o->max ? &d[1] : NULL,
                               .multiple_of = o->multiple ? &d[2] : NULL};
        assert_int_equal(eng_rx_init(&r, NULL, 64 << 20, 0), 0);
        assert_int_equal(eng_spell_number(&r, ENG_SPELL_JSON_ANY, &n, &x, NULL), 0);
        for (int want = 1; want >= 0; want--)
            for (const char *p = want ? o->inside : o->outside; *p;) {
                size_t len = strcspn(p, " ");
                if (eng_rx_matches(&r, x, p, len) != (bool)want)
                    fail_msg("row %zu: %.*s: want %d", i, (int)len, p, want);
                p += len + (p[len] == ' ');
            }
        eng_rx_fini(&r);
    }
}

/* ---- equality -------------------------------------------------------------------------------- */

static void test_equal(void **state)
{
    static const char *const values[] = {"0",     "-0",  "1",    "-1",    "10",  "0.1",
                                         "-0.25", "1e3", "12.5", "100.0", "5e-3"};
    char text[64], room[400];
    struct eng_decimal d;
    unsigned equal = 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(values); i++) {
        struct made m = {0};
        struct judged is, given;
        struct eng_rx r;
        assert_true(judge(values[i], &given));
        snprintf(m.text[0], sizeof m.text[0], "%s", values[i]);
        assert_int_equal(eng_decimal_parse(values[i], strlen(values[i]), room, &d), 0);
        assert_int_equal(eng_rx_init(&r, NULL, 64 << 20, 0), 0);
        uint32_t x = eng_spell_equal(&r, ENG_SPELL_JSON, &d);
        uint32_t any = eng_spell_equal(&r, ENG_SPELL_JSON_ANY, &d);
        for (seed = (uint32_t)i; equal < 15 * (i + 1);) {
            random_text(&m, text);
            bool want = judge(text, &is) && !is.exponent && is.value == given.value;
            if (eng_rx_matches(&r, any, text, strlen(text)) != want)
                fail_msg("%s: %s", values[i], text);
            want = want && !(is.minus && is.value == 0);
            if (eng_rx_matches(&r, x, text, strlen(text)) != want)
                fail_msg("%s: %s", values[i], text);
            equal += want;
        }
        eng_rx_fini(&r);
    }
}

/* ---- decimals -------------------------------------------------------------------------------- */

static void test_decimals(void **state)
{
    static const char *const bad[] = {"",   "-",     "01",  "1.",   ".5",       "1e",  "1e+", "+1",
                                      "1 ", "1e1.5", "0x1", "1..2", "Infinity", "--1", "1e5e"};
    char room[400], other[400], a[64], b[64];
    struct eng_decimal d, e;
    struct made none = {0};
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++)
        assert_int_equal(eng_decimal_parse(bad[i], strlen(bad[i]), room, &d), CN_EINVAL);
    assert_int_equal(eng_decimal_parse("1e400", 5, room, &d), CN_ELIMIT);
    assert_int_equal(eng_decimal_parse("1e-401", 6, room, &d), CN_ELIMIT);
    assert_int_equal(eng_decimal_parse("1e99999999999999999999", 22, room, &d), CN_ELIMIT);
    assert_int_equal(eng_decimal_parse("0e99999999999999999999", 22, room, &d), 0);
    assert_int_equal(eng_decimal_parse("1e399", 5, room, &d), 0);
    assert_int_equal(d.n, 400);
    assert_int_equal(eng_decimal_parse("-1.250e2", 8, room, &d), 0);
    assert_true(d.negative && d.n == 3 && d.scale == 0 && !memcmp(d.digits, "125", 3));
    unsigned compared = 0;
    for (seed = 5; compared < 20000;) {
        struct judged j, k;
        random_text(&none, a);
        random_text(&none, b);
        if (!judge(a, &j) || !judge(b, &k)) continue;
        assert_int_equal(eng_decimal_parse(a, strlen(a), room, &d), 0);
        assert_int_equal(eng_decimal_parse(b, strlen(b), other, &e), 0);
        int c = eng_decimal_compare(&d, &e), want = j.value < k.value ? -1 : j.value > k.value;
        if ((c > 0) - (c < 0) != want) fail_msg("%s %s: %d", a, b, c);
        compared++;
    }
}

/* ---- refused, and costs ---------------------------------------------------------------------- */

static int build(const char *min, const char *multiple, bool integer, size_t bytes,
                 struct cn_error *err)
{
    char room[2][400];
    struct eng_decimal d[2];
    struct eng_rx r;
    uint32_t x = 77;
    assert_int_equal(eng_decimal_parse(min, strlen(min), room[0], &d[0]), 0);
    assert_int_equal(eng_decimal_parse(multiple, strlen(multiple), room[1], &d[1]), 0);
    assert_int_equal(eng_rx_init(&r, NULL, bytes, 0), 0);
    struct eng_number n = {.integer = integer, .min = &d[0], .multiple_of = &d[1]};
    int rc = eng_spell_number(&r, ENG_SPELL_JSON, &n, &x, err);
    if (rc) assert_int_equal(x, 77);
    eng_rx_fini(&r);
    return rc;
}

static void test_refused(void **state)
{
    struct cn_error err = {0};
    assert_int_equal(build("0", "1234567890123457", true, 1 << 20, &err), CN_ELIMIT);
    assert_string_equal(err.message, "it has more than 14 digits");
    assert_int_equal(build("0", "3e-50", false, 1 << 20, &err), CN_ELIMIT);
    assert_int_equal(build("0", "1e-50", false, 1 << 20, &err), 0);
    assert_int_equal(build("0", "3e-50", true, 1 << 20, &err), 0); /* integers: multiples of 3 */
    assert_int_equal(build("0", "0", true, 1 << 20, &err), CN_EINVAL);
    assert_int_equal(build("0", "-1", true, 1 << 20, &err), CN_EINVAL);
    assert_int_equal(build("1e399", "7", true, 4 << 20, &err), 0);
    assert_int_equal(build("1e-400", "1e-400", false, 4 << 20, &err), 0);
    assert_int_equal(build("123456789123456789", "7", true, 2000, &err), CN_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),   cmocka_unit_test(test_all_integers),
        cmocka_unit_test(test_odd),      cmocka_unit_test(test_equal),
        cmocka_unit_test(test_decimals), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
