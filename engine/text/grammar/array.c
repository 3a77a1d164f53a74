/* array: what may follow inside of a JSON array. See match.h.
 *
 * Where no two items may be equal, the value of each is kept, in one spelling. An item of one
 * lexeme is drawn from its lexeme without the values that were seen, so that no answer can get
 * stuck; the value of any item is looked at when it is complete. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/match.h"

#include <stdlib.h>

static const struct eng_item *item_at(const struct eng_match *m, const struct eng_array *a,
                                      uint32_t i)
{
    return i < a->items.n ? &m->ir->items[a->items.first + i] : &a->rest;
}

static bool is_possible(const struct eng_match *m, struct eng_sym s)
{
    return eng_ir_cost(m->ir, s) != UINT32_MAX;
}

/* Places from i on that an item of kind `in` can have. */
static uint64_t places_in(const struct eng_match *m, const struct eng_array *a, uint32_t i)
{
    uint64_t n = 0;
    for (; i < a->items.n && i < a->max; i++)
        n += is_possible(m, item_at(m, a, i)->in);
    if (i >= a->max || !is_possible(m, a->rest.in)) return n;
    return a->max == ENG_RX_INF ? UINT64_MAX : n + (a->max - i);
}

/* Counts stop where more makes no difference. */
static uint32_t more_items(const struct eng_array *a, uint32_t i)
{
    return a->max == ENG_RX_INF ? CN_MIN(i + 1, CN_MAX(a->items.n, a->min)) : i + 1;
}

static uint32_t more_in(const struct eng_array *a, uint32_t c)
{
    return a->max_in == ENG_RX_INF ? CN_MIN(c + 1, a->min_in) : c + 1;
}

static bool can_close(const struct eng_array *a, const struct eng_frame *f)
{
    return f->pos >= a->min && f->count >= a->min_in;
}

static void offer_item(struct eng_match *m, const struct eng_array *a, const struct eng_frame *f,
                       struct eng_sym s, bool in, const struct eng_expansion *x)
{
    struct eng_frame n = *f;
    n.phase = a->unique ? ENG_PHASE_ITEM : ENG_PHASE_NEXT;
    n.pos = more_items(a, f->pos);
    if (in) n.count = more_in(a, f->count);
    n.start = a->unique && f->inside && x->text ? m->kept[x->text].len : 0;
    eng_expand_sym(m, s, eng_frame(m, &n));
}

static void offer(struct eng_match *m, const struct eng_array *a, const struct eng_frame *f,
                  const struct eng_expansion *x)
{
    const struct eng_item *t = item_at(m, a, f->pos);
    uint32_t needed = f->count < a->min_in ? a->min_in - f->count : 0;
    if (f->pos >= a->max) return;
    if (is_possible(m, t->in) && (a->max_in == ENG_RX_INF || f->count < a->max_in))
        offer_item(m, a, f, t->in, true, x);
    if (is_possible(m, t->out) && (!needed || places_in(m, a, f->pos + 1) >= needed))
        offer_item(m, a, f, t->out, false, x);
}

bool eng_array_is_simple(const struct eng_match *m, const struct eng_frame *f)
{
    uint32_t pos = f->phase == ENG_PHASE_ITEM && f->pos ? f->pos - 1 : f->pos;
    const struct eng_item *t = item_at(m, &m->ir->arrays[f->id], pos);
    return t->in.kind <= ENG_SYM_LEXEME && t->out.kind <= ENG_SYM_LEXEME;
}

/* Whether another item may come: where items are drawn without those that were seen, there may be
 * none left. */
static bool has_more(struct eng_match *m, const struct eng_frame *f)
{
    const struct eng_array *a = &m->ir->arrays[f->id];
    const struct eng_item *t = item_at(m, a, f->pos);
    if (f->pos >= a->max || !(is_possible(m, t->in) || is_possible(m, t->out))) return false;
    if (!a->unique || !f->seen) return true;
    if (f->seen == ENG_LIST_UNKNOWN && !eng_array_is_simple(m, f)) m->doubt = ENG_UNSURE;
    struct eng_frame n = *f;
    struct eng_expansion x = {.probe = true};
    struct eng_scratch *outer = m->work;
    n.phase = ENG_PHASE_COMMA;
    uint32_t frame = eng_frame(m, &n);
    m->work = &m->scratch[1];
    m->probing = true;
    eng_expand(m, &frame, 1, &x);
    m->probing = false;
    bool any = m->work->n_found > 0;
    m->work = outer;
    return any;
}

/* The value's number; UINT32_MAX: it was not seen. */
static uint32_t value_of(struct eng_match *m, const struct eng_frame *f,
                         const struct eng_expansion *x)
{
    struct cn_buf text, value;
    cn_buf_init(&text, 0);
    cn_buf_init(&value, 0);
    int rc = eng_kept_text(m, x->text, f->start, &text);
    uint32_t seen = UINT32_MAX;
    if (!rc) rc = eng_value_canonical(text.data, text.len, &value);
    if (rc)
        eng_match_fail(m, rc);
    else
        seen = m->walking ? eng_seen_find(m, value.data, value.len)
                          : eng_seen_text(m, value.data, value.len);
    cn_buf_fini(&text);
    cn_buf_fini(&value);
    return seen;
}

/* Behind an item: its value must be a new one. */
static void take_value(struct eng_match *m, const struct eng_frame *f,
                       const struct eng_expansion *x)
{
    struct eng_frame n = *f;
    uint32_t seen = UINT32_MAX;
    bool look = f->seen && !eng_seen_is_fresh(m, x->text, f->start);
    if (!m->walking || look) seen = value_of(m, f, x);
    if (look) m->used = true;
    if (f->seen == ENG_LIST_UNKNOWN) m->doubt = ENG_UNSURE;
    if (m->code || (seen != UINT32_MAX && eng_list_has_seen(m, f->seen, seen))) return;
    n.phase = ENG_PHASE_NEXT;
    n.start = 0;
    n.seen = m->walking ? ENG_LIST_UNKNOWN : eng_list_add_seen(m, f->seen, seen);
    eng_expand_frame(m, eng_frame(m, &n));
}

uint32_t eng_array_lexeme(struct eng_match *m, uint32_t lexeme, const struct eng_frame *array)
{
    struct eng_rx *r = &m->rx;
    const struct eng_lexeme *l = &m->ir->lexemes[lexeme];
    uint32_t rx = l->rx, *seen = NULL;
    size_t n = 0, cap = 0;
    if (!array->seen) return lexeme;
    if (eng_match_keeps_lexeme(m, array->seen, lexeme)) return lexeme;
    for (uint32_t c = array->seen; c; c = m->cells[c].rest) {
        struct eng_str s = eng_seen_str(m, m->cells[c].value);
        if (s.p[0] == '{' || s.p[0] == '[') continue;
        if (cn_grow(&seen, &cap, n + 1, sizeof *seen)) {
            free(seen);
            eng_match_fail(m, CN_ENOMEM);
            return UINT32_MAX;
        }
        seen[n++] = eng_value_spellings(r, m->ir->spelling, s.p, s.n);
    }
    rx = eng_rx_and(r, rx, eng_rx_not(r, eng_rx_or_of(r, seen, n)));
    free(seen);
    return eng_match_extra(m, rx, l->spaced);
}

void eng_expand_array(struct eng_match *m, const struct eng_frame *f, const struct eng_expansion *x)
{
    const struct eng_array *a = &m->ir->arrays[f->id];
    struct eng_frame n = *f;
    switch (f->phase) {
    case ENG_PHASE_ITEM:
        take_value(m, f, x);
        return;
    case ENG_PHASE_COMMA:
        offer(m, a, f, x);
        return;
    case ENG_PHASE_OPEN:
        offer(m, a, f, x);
        break;
    default:
        n.phase = ENG_PHASE_COMMA;
        if (has_more(m, f)) eng_expand_lexeme(m, m->ir->marks[ENG_COMMA], eng_frame(m, &n));
        break;
    }
    if (can_close(a, f)) eng_expand_lexeme(m, m->ir->marks[ENG_CLOSE_ARRAY], f->parent);
}

/* ---- least lengths --------------------------------------------------------------------------- */

/* Of an item: where items differ, the shortest ones may have come before. What came before does not
 * matter beyond that, so that masks can be kept for other answers. */
static uint32_t cost_of_item(const struct eng_match *m, const struct eng_array *a,
                             const struct eng_frame *f, struct eng_sym s, bool next)
{
    bool differs = a->unique && !(next && !f->seen);
    return differs ? eng_ir_cost_anew(m->ir, s) : eng_ir_cost(m->ir, s);
}

/* An item that is under way may have to grow, so as not to repeat another one. */
static uint32_t cost_to_differ(const struct eng_match *m, const struct eng_frame *f)
{
    if (f->phase != ENG_PHASE_ITEM || !f->seen) return 0;
    return eng_array_is_simple(m, f) ? 1 : ENG_COST_ANEW;
}

uint32_t eng_array_rest(struct eng_match *m, const struct eng_frame *f)
{
    const struct eng_array *a = &m->ir->arrays[f->id];
    uint32_t c = 1 + cost_to_differ(m, f), in = f->count, pos = f->pos;
    bool comma = f->phase == ENG_PHASE_COMMA, next = f->phase != ENG_PHASE_ITEM;
    for (; comma || pos < a->min || in < a->min_in; pos++, comma = next = false) {
        const struct eng_item *t = item_at(m, a, pos);
        uint32_t yes = cost_of_item(m, a, f, t->in, next), no = cost_of_item(m, a, f, t->out, next);
        bool take = yes != UINT32_MAX && (in < a->min_in || no == UINT32_MAX);
        uint32_t one = eng_cost_add(take ? yes : no, !comma);      /* with its comma */
        if (pos >= a->items.n && !take && pos < a->min && !next) { /* the rest are alike */
            uint64_t rest = (uint64_t)one * (a->min - pos);
            return one == UINT32_MAX || rest > UINT32_MAX ? UINT32_MAX
                                                          : eng_cost_add(c, (uint32_t)rest);
        }
        c = eng_cost_add(c, one);
        in += take;
        if (c == UINT32_MAX || pos >= a->max) return UINT32_MAX;
    }
    return c;
}
