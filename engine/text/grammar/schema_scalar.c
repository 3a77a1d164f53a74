/* schema: formulas on strings and numbers as expressions. See schema_impl.h.
 *
 * Negations are made where the complement is exact: of strings within all strings, of numbers
 * within those without an exponent, against every spelling of what is excluded. Values of an enum
 * are tried one by one against the rest instead of being intersected with it. */
#include "engine/text/grammar/schema_impl.h"

enum { FEW_STEPS = 8 };   /* multiples that are compared by their numbers */
enum { MOST_SPREAD = 8 }; /* conjunctions that disjunctions within one are spread to */

/* The constraints of a conjunction, by kind. Expressions that must match are not here: they are
 * pushed to tmp. */
struct parts {
    uint32_t list_form;       /* an atom, one of whose values it must be; ENG_SC_NONE: none */
    uint32_t lo, hi;          /* characters */
    struct eng_number number; /* bounds */
    /* What the number is a multiple of, and what it is not; whole numbers are multiples of 1. */
    const struct eng_decimal *steps[2][FEW_STEPS];
    uint32_t n_steps[2];
    bool strings; /* something that was pushed has strings alone */
    bool plain;   /* only numbers without an exponent */
};

static struct eng_rx *rx_of(struct eng_sc *sc)
{
    return &sc->ir->rx;
}

/* The complement of x within all strings, or all numbers, is left to the other parts. */
static uint32_t negated(struct eng_sc *sc, uint32_t x)
{
    return eng_rx_not(rx_of(sc), x);
}

/* The values of an atom. */
static size_t n_values(const struct eng_sc_form *f)
{
    return f->a ? json_array_size(f->json) : 1;
}
static const json_t *value_at(const struct eng_sc_form *f, size_t i)
{
    return f->a ? json_array_get(f->json, i) : f->json;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* A number as digits alone. */
static void plain_text(struct cn_buf *b, const struct eng_decimal *d)
{
    bool zero = d->n == 1 && d->digits[0] == '0';
    size_t n = d->n, scale = zero ? 0 : d->scale;
    while (scale && n > 1 && d->digits[n - 1] == '0') /* 1.50 */
        n--, scale--;
    if (d->negative && !zero) cn_buf_putc(b, '-');
    if (n <= scale) {
        cn_buf_puts(b, "0.");
        for (size_t i = n; i < scale; i++)
            cn_buf_putc(b, '0');
        cn_buf_append(b, d->digits, n);
    } else {
        cn_buf_append(b, d->digits, n - scale);
        if (scale) cn_buf_putc(b, '.');
        cn_buf_append(b, d->digits + n - scale, scale);
    }
}

static uint32_t some_number(struct eng_sc *sc, uint32_t node, enum eng_spelling spelling,
                            const struct eng_number *number)
{
    struct cn_error why = {0};
    uint32_t x = ENG_RX_NONE;
    if (sc->code) return x;
    int rc = eng_spell_number(rx_of(sc), spelling, number, &x, &why);
    if (rc) {
        eng_sc_fail(sc, node, rc, "%s%s", number->multiple_of ? "multipleOf: " : "", why.message);
        return ENG_RX_NONE;
    }
    return x;
}

/* Pushes the expressions of the atom's values that match rest. The plain texts are in list, where
 * they do as they are. */
static void push_values(struct eng_sc *sc, const struct eng_sc_form *f, uint32_t rest, bool every,
                        struct eng_str *list, size_t *n_list)
{
    struct cn_buf b;
    cn_buf_init(&b, 0);
    for (size_t i = 0; i < n_values(f) && eng_sc_step(sc, 4); i++) {
        const json_t *v = value_at(f, i);
        const struct eng_decimal *d = json_is_number(v) ? eng_sc_decimal(sc, f->node, v) : NULL;
        if (!d) continue;
        cn_buf_reset(&b);
        plain_text(&b, d);
        if (b.failed) eng_sc_nomem(sc);
        if (sc->code || (rest != ENG_RX_ALL && !eng_rx_matches(rx_of(sc), rest, b.data, b.len)))
            continue;
        if (every) {
            eng_sc_push(sc, eng_spell_equal(rx_of(sc), ENG_SPELL_JSON_ANY, d));
            continue;
        }
        list[*n_list] = (struct eng_str){cn_arena_strn(&sc->arena, b.data, b.len), b.len};
        if (!list[(*n_list)++].p) eng_sc_nomem(sc);
    }
    cn_buf_fini(&b);
}

/* The atom's values that match rest: as they are written, or in every spelling. */
static uint32_t listed_numbers(struct eng_sc *sc, const struct eng_sc_form *f, uint32_t rest,
                               bool every)
{
    struct eng_sc_form copy = *f;
    uint32_t from = sc->n_tmp, x = ENG_RX_NONE;
    struct eng_str *list = eng_sc_alloc(sc, (n_values(f) + 1) * sizeof *list);
    size_t n = 0;
    if (!list) return x;
    every |= sc->ir->spelling == ENG_SPELL_JSON_ANY;
    push_values(sc, &copy, rest, every, list, &n);
    if (!sc->code)
        x = every ? eng_rx_or_of(rx_of(sc), &sc->tmp[from], sc->n_tmp - from)
                  : eng_rx_words(rx_of(sc), list, n);
    sc->n_tmp = from;
    return x;
}

/* Takes the tighter bound. */
static void take_bound(struct parts *p, const struct eng_sc_form *f)
{
    bool least = f->kind == ENG_A_MIN;
    const struct eng_decimal **at = least ? &p->number.min : &p->number.max;
    bool *exclusive = least ? &p->number.above_min : &p->number.below_max;
    int c = *at ? eng_decimal_compare(f->number, *at) : least ? 1 : -1;
    if (c == 0) *exclusive |= f->a;
    if (least ? c <= 0 : c >= 0) return;
    *at = f->number;
    *exclusive = f->a;
}

/* The number in units of 10^-scale; 0: it is too large. */
static uint64_t in_units(const struct eng_decimal *d, size_t scale)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->n; i++)
        if (!cn_mul_u64(n, 10, &n) || !cn_add_u64(n, (uint64_t)(d->digits[i] - '0'), &n)) return 0;
    for (size_t i = d->scale; i < scale; i++)
        if (!cn_mul_u64(n, 10, &n)) return 0;
    return n;
}

/* Whether the formulas tmp[from] on want a multiple of a number that is always one of another
 * number, of which it must not be one. */
static bool steps_contradict(struct eng_sc *sc, uint32_t from, uint32_t n, struct parts *p)
{
    static const struct eng_decimal one = {.digits = "1", .n = 1};
    for (uint32_t i = from; i < from + n; i++) {
        const struct eng_sc_form *f = &sc->forms[sc->tmp[i]];
        uint32_t *count = &p->n_steps[f->neg];
        if ((f->kind != ENG_A_INTEGER && f->kind != ENG_A_MULTIPLE) || *count == FEW_STEPS)
            continue;
        p->steps[f->neg][(*count)++] = f->kind == ENG_A_INTEGER ? &one : f->number;
    }
    for (uint32_t i = 0; i < p->n_steps[false]; i++) {
        for (uint32_t j = 0; j < p->n_steps[true]; j++) {
            const struct eng_decimal *is = p->steps[false][i], *is_not = p->steps[true][j];
            size_t scale = CN_MAX(is->scale, is_not->scale);
            uint64_t a = in_units(is, scale), b = in_units(is_not, scale);
            if (a && b && a % b == 0) return true;
        }
    }
    return false;
}

static void take_number(struct eng_sc *sc, const struct eng_sc_form *f, struct parts *p)
{
    struct eng_number of = {0};
    p->plain |= f->neg;
    switch (f->kind) {
    case ENG_A_INTEGER:
        p->number.integer |= !f->neg;
        of.integer = true;
        if (f->neg && sc->not_integer != ENG_SC_NONE) {
            eng_sc_push(sc, sc->not_integer);
            return;
        }
        break;
    case ENG_A_MIN:
    case ENG_A_MAX:
        take_bound(p, f);
        return;
    case ENG_A_MULTIPLE:
        of.multiple_of = f->number;
        if (f->neg || p->number.multiple_of) break;
        p->number.multiple_of = f->number;
        return;
    default: /* ENG_A_NUMBERS, not */
        eng_sc_push(sc, negated(sc, listed_numbers(sc, f, ENG_RX_ALL, true)));
        return;
    }
    if (f->neg) {
        uint32_t x = negated(sc, some_number(sc, f->node, ENG_SPELL_JSON_ANY, &of));
        if (of.integer) sc->not_integer = x;
        eng_sc_push(sc, x);
    } else if (of.multiple_of)
        eng_sc_push(sc, some_number(sc, f->node, sc->ir->spelling, &of));
}

/* -?(0|[1-9][0-9]*)(\.[0-9]+)? */
static uint32_t plain_number(struct eng_sc *sc)
{
    struct eng_rx *r = rx_of(sc);
    if (sc->plain_number != ENG_SC_NONE) return sc->plain_number;
    uint32_t digit = eng_rx_byte(r, '0', '9');
    uint32_t whole =
        eng_rx_or(r, eng_rx_byte(r, '0', '0'),
                  eng_rx_cat(r, eng_rx_byte(r, '1', '9'), eng_rx_repeat(r, digit, 0, ENG_RX_INF)));
    uint32_t part = eng_rx_cat(r, eng_rx_byte(r, '.', '.'), eng_rx_repeat(r, digit, 1, ENG_RX_INF));
    uint32_t minus = eng_rx_repeat(r, eng_rx_byte(r, '-', '-'), 0, 1);
    return sc->plain_number =
               eng_rx_cat(r, minus, eng_rx_cat(r, whole, eng_rx_repeat(r, part, 0, 1)));
}

/* ---- strings --------------------------------------------------------------------------------- */

static uint32_t listed_texts(struct eng_sc *sc, const struct eng_sc_form *f, uint32_t rest)
{
    struct eng_sc_form copy = *f;
    size_t n = n_values(&copy), kept = 0;
    struct eng_str *list = eng_sc_alloc(sc, (n + 1) * sizeof *list);
    struct cn_buf b;
    cn_buf_init(&b, 0);
    for (size_t i = 0; list && i < n && eng_sc_step(sc, 1); i++) {
        const json_t *v = value_at(&copy, i);
        if (!json_is_string(v)) continue;
        struct eng_str s = {json_string_value(v), json_string_length(v)};
        cn_buf_reset(&b);
        if (eng_sc_spell(sc, s.p, s.n, &b)) eng_sc_nomem(sc);
        if (rest != ENG_RX_ALL &&
            (!eng_sc_step(sc, s.n) || !eng_rx_matches(rx_of(sc), rest, b.len ? b.data : "", b.len)))
            continue;
        list[kept++] = s;
    }
    cn_buf_fini(&b);
    return sc->code ? ENG_RX_NONE : eng_spell_texts(rx_of(sc), sc->ir->spelling, list, kept);
}

static uint32_t some_format(struct eng_sc *sc, const struct eng_sc_form *f)
{
    const char *name = json_string_value(f->json);
    struct cn_error why = {0};
    uint32_t x = ENG_RX_NONE, node = f->node;
    int rc = sc->code ? sc->code
                      : eng_spell_format(rx_of(sc), sc->ir->spelling, name, strlen(name), &x, &why);
    if (rc == CN_ENOENT)
        eng_sc_fail(sc, node, CN_EUNSUPP, "format: %s", why.message);
    else if (rc)
        eng_sc_fail(sc, node, rc, "format: %s", why.message);
    return x;
}

static void take_text(struct eng_sc *sc, const struct eng_sc_form *f, struct parts *p)
{
    bool neg = f->neg;
    uint32_t x;
    switch (f->kind) {
    case ENG_A_LENGTH:
        p->lo = CN_MAX(p->lo, f->a);
        p->hi = CN_MIN(p->hi, f->b);
        return;
    case ENG_A_PATTERN:
        x = eng_sc_pattern(sc, f->node, f->a);
        break;
    case ENG_A_FORMAT:
        x = some_format(sc, f);
        break;
    default: /* ENG_A_TEXTS */
        x = listed_texts(sc, f, ENG_RX_ALL);
        break;
    }
    p->strings |= !neg;
    eng_sc_push(sc, neg ? negated(sc, x) : x);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Sorts a formula into parts: disjunctions to the list at tmp[ors], expressions after all of it. */
static void collect(struct eng_sc *sc, uint32_t form, uint32_t stamp)
{
    struct eng_sc_form f = sc->forms[form];
    if (f.stamp == stamp || !eng_sc_step(sc, 1)) return;
    sc->forms[form].stamp = stamp;
    if (f.kind != ENG_F_AND) {
        eng_sc_push(sc, form);
        return;
    }
    for (uint32_t i = 0; i < f.b && !sc->code; i++)
        collect(sc, sc->args[f.a + i], stamp);
}

static uint32_t scalar_rx(struct eng_sc *sc, uint32_t form, bool text);

/* What a conjunction of formulas (tmp[from] on) demands, values of an enum left out. */
static uint32_t rest_of(struct eng_sc *sc, uint32_t from, uint32_t n, bool text, struct parts *p)
{
    uint32_t start = sc->n_tmp, x;
    if (!text && steps_contradict(sc, from, n, p)) return ENG_RX_NONE;
    for (uint32_t i = from; i < from + n && !sc->code; i++) {
        uint32_t form = sc->tmp[i];
        struct eng_sc_form f = sc->forms[form];
        if (f.kind == ENG_F_OR) {
            x = scalar_rx(sc, form, text);
            eng_sc_push(sc, x);
            p->strings |= text;
        } else if (form != p->list_form) {
            if (text)
                take_text(sc, &f, p);
            else if ((f.kind != ENG_A_NUMBERS || f.neg))
                take_number(sc, &f, p);
            else
                eng_sc_push(sc, listed_numbers(sc, &f, ENG_RX_ALL, false));
        }
    }
    if (sc->code) return ENG_RX_NONE;
    if (text && (p->lo || p->hi != ENG_RX_INF))
        eng_sc_push(sc, p->lo > p->hi
                            ? ENG_RX_NONE
                            : eng_spell_length(rx_of(sc), sc->ir->spelling, p->lo, p->hi));
    else if (text && !p->strings)
        eng_sc_push(sc, sc->any_text);
    if (!text) {
        eng_sc_push(sc,
                    some_number(sc, sc->forms[sc->tmp[from]].node, sc->ir->spelling, &p->number));
        if (p->plain || (sc->unique && sc->ir->spelling == ENG_SPELL_JSON))
            eng_sc_push(sc, plain_number(sc));
    }
    x = sc->code ? ENG_RX_NONE : eng_rx_and_of(rx_of(sc), &sc->tmp[start], sc->n_tmp - start);
    sc->n_tmp = start;
    return x;
}

/* One of the disjunctions among the numbers' parts that is worth trying branch by branch: bounds
 * meet bounds then, where expressions of them would have to be intersected. */
static uint32_t find_small_or(const struct eng_sc *sc, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) {
        const struct eng_sc_form *f = &sc->forms[sc->tmp[i]];
        if (f->kind == ENG_F_OR && sc->spread * f->b <= MOST_SPREAD) return i;
    }
    return ENG_SC_NONE;
}

/* The parts tmp[from] on, with the disjunction at tmp[at] for each of its branches. */
static uint32_t spread(struct eng_sc *sc, uint32_t from, uint32_t n, uint32_t at)
{
    struct eng_sc_form f = sc->forms[sc->tmp[at]];
    uint32_t start = sc->n_tmp, x;
    sc->spread *= f.b;
    for (uint32_t i = 0; i < f.b && !sc->code; i++) {
        uint32_t inner = sc->n_tmp;
        for (uint32_t j = from; j < from + n && !sc->code; j++)
            eng_sc_push(sc, j == at ? sc->args[f.a + i] : sc->tmp[j]);
        x = sc->code ? ENG_RX_NONE : scalar_rx(sc, eng_sc_join(sc, ENG_F_AND, inner), false);
        eng_sc_push(sc, x);
    }
    sc->spread /= f.b;
    x = sc->code ? ENG_RX_NONE : eng_rx_or_of(rx_of(sc), &sc->tmp[start], f.b);
    sc->n_tmp = start;
    return x;
}

static uint32_t conjunction(struct eng_sc *sc, uint32_t form, bool text)
{
    struct parts p = {.hi = ENG_RX_INF, .list_form = ENG_SC_NONE};
    enum eng_sc_form_kind list = text ? ENG_A_TEXTS : ENG_A_NUMBERS;
    uint32_t from = sc->n_tmp, n, x = ENG_RX_NONE;
    collect(sc, form, ++sc->stamp);
    n = sc->n_tmp - from;
    for (uint32_t i = from; i < from + n && p.list_form == ENG_SC_NONE; i++) {
        const struct eng_sc_form *f = &sc->forms[sc->tmp[i]];
        if (f->kind == list && !f->neg) p.list_form = sc->tmp[i];
    }
    uint32_t at = text || p.list_form != ENG_SC_NONE ? ENG_SC_NONE : find_small_or(sc, from, n);
    if (n == 1 && p.list_form != ENG_SC_NONE)
        x = ENG_RX_ALL;
    else if (!sc->code)
        x = at != ENG_SC_NONE ? spread(sc, from, n, at) : rest_of(sc, from, n, text, &p);
    sc->n_tmp = from;
    if (p.list_form == ENG_SC_NONE || x == ENG_RX_NONE) return x;
    const struct eng_sc_form *f = &sc->forms[p.list_form];
    return text ? listed_texts(sc, f, x) : listed_numbers(sc, f, x, false);
}

static uint32_t disjunction(struct eng_sc *sc, uint32_t form, bool text)
{
    struct eng_sc_form f = sc->forms[form];
    uint32_t from = sc->n_tmp, x;
    for (uint32_t i = 0; i < f.b && !sc->code; i++) {
        x = scalar_rx(sc, sc->args[f.a + i], text);
        eng_sc_push(sc, x);
    }
    x = sc->code ? ENG_RX_NONE : eng_rx_or_of(rx_of(sc), &sc->tmp[from], f.b);
    sc->n_tmp = from;
    return x;
}

/* Where items must differ without an exponent: what begins as 0e is 0 however it goes on. */
static uint32_t any_number(struct eng_sc *sc, uint32_t node)
{
    const struct eng_number any = {0};
    uint32_t x = some_number(sc, node, sc->ir->spelling, &any);
    bool plain = sc->unique && sc->ir->spelling == ENG_SPELL_JSON;
    return plain ? eng_rx_and(rx_of(sc), x, plain_number(sc)) : x;
}

static uint32_t scalar_rx(struct eng_sc *sc, uint32_t form, bool text)
{
    uint32_t node = sc->forms[form].node, x;
    if (sc->code || form == ENG_F_FALSE) return ENG_RX_NONE;
    if (form == ENG_F_TRUE) return text ? sc->any_text : any_number(sc, node);
    if (sc->forms[form].rx != ENG_SC_NONE) return sc->forms[form].rx;
    x = sc->forms[form].kind == ENG_F_OR ? disjunction(sc, form, text)
                                         : conjunction(sc, form, text);
    if (!eng_sc_rx_ok(sc, node)) return ENG_RX_NONE;
    return sc->forms[form].rx = x;
}

uint32_t eng_sc_text_rx(struct eng_sc *sc, uint32_t form)
{
    return scalar_rx(sc, form, true);
}

uint32_t eng_sc_number_rx(struct eng_sc *sc, uint32_t form)
{
    return scalar_rx(sc, form, false);
}
