/* object: what may follow inside of a JSON object. See match.h.
 *
 * Declared members come in their order; one may be left out unless it must be there: it is
 * required, or one that is there needs it. When no ordered member must come any more, loose ones
 * and undeclared ones may come in any order, each once. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/match.h"
#include "engine/text/grammar/spell.h"

#include <stdlib.h>

struct view {
    struct eng_match *m;
    const struct eng_ir *ir;
    const struct eng_object *o;
    const struct eng_member *members;
    const struct eng_need *needs;
    const struct eng_frame *f;
};

static struct view view_of(struct eng_match *m, const struct eng_frame *f)
{
    const struct eng_object *o = &m->ir->objects[f->id];
    return (struct view){
        m, m->ir, o, m->ir->members + o->members.first, m->ir->needs + o->needs.first, f};
}

static bool is_there(const struct view *v, uint32_t i)
{
    return eng_list_has(v->m, v->f->there, i);
}

/* Whether member i, which is not there yet, must come. `with`: as if that one were there, too. */
static bool must_come(const struct view *v, uint32_t i, uint32_t with)
{
    if (v->members[i].required) return true;
    for (uint32_t k = 0; v->members[i].matters && k < v->o->needs.n; k++)
        if (v->needs[k].needs == i && (v->needs[k].has == with || is_there(v, v->needs[k].has)))
            return true;
    return false;
}

/* Whether member i may still come at or after a position. */
static bool is_ahead(const struct view *v, uint32_t i, uint32_t pos)
{
    return v->members[i].loose ? !is_there(v, i) : i >= pos;
}

/* Members that must come once `with` is there and the order is at pos. */
static uint32_t count_musts(const struct view *v, uint32_t pos, uint32_t with)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->o->members.n; i++)
        n += i != with && is_ahead(v, i, pos) && must_come(v, i, with);
    return n;
}

/* Members that could come; undeclared ones without a bound. */
static uint64_t count_choices(const struct view *v, uint32_t pos, uint32_t with)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < v->o->others.n; i++)
        if (eng_ir_cost(v->ir, v->ir->others[v->o->others.first + i].value) != UINT32_MAX)
            return UINT64_MAX;
    for (uint32_t i = 0; i < v->o->members.n; i++)
        n += i != with && is_ahead(v, i, pos) &&
             eng_ir_cost(v->ir, v->members[i].value) != UINT32_MAX;
    return n;
}

/* Whether the counts allow one more member, after which the order is at pos. */
static bool fits(const struct view *v, uint32_t pos, uint32_t with)
{
    uint64_t n = v->f->count + 1ull;
    if (v->o->max != ENG_RX_INF && n + count_musts(v, pos, with) > v->o->max) return false;
    if (n >= v->o->min) return true;
    uint64_t more = count_choices(v, pos, with);
    return more == UINT64_MAX || n + more >= v->o->min;
}

/* Whether everything that member i needs is there or can still come. */
static bool can_have(const struct view *v, uint32_t i)
{
    uint32_t pos = v->members[i].loose ? v->o->members.n : i + 1;
    if (eng_ir_cost(v->ir, v->members[i].value) == UINT32_MAX) return false;
    for (uint32_t k = 0; v->members[i].matters && k < v->o->needs.n; k++) {
        uint32_t to = v->needs[k].needs;
        if (v->needs[k].has != i || to == i || is_there(v, to)) continue;
        if (!is_ahead(v, to, pos)) return false;
    }
    return fits(v, pos, i);
}

/* The frame behind one more member's value. */
static struct eng_frame behind(const struct view *v, uint32_t pos)
{
    struct eng_frame n = *v->f;
    n.phase = ENG_PHASE_NEXT;
    n.pos = pos;
    n.start = 0; /* of the name's kind no more is known, nor needed */
    n.count = v->o->max == ENG_RX_INF ? CN_MIN(v->f->count + 1, v->o->min) : v->f->count + 1;
    return n;
}

static void offer_member(const struct view *v, uint32_t i)
{
    const struct eng_member *t = &v->members[i];
    struct eng_frame n = behind(v, t->loose ? v->o->members.n : i + 1);
    if (t->matters) n.there = eng_list_add(v->m, n.there, i, i);
    uint32_t below = eng_frame(v->m, &n);
    struct eng_frame value = {
        .kind = ENG_FRAME_SYM, .parent = below, .id = (uint32_t)t->value.kind << 29 | t->value.id};
    eng_expand_lexeme(v->m, t->name, eng_frame(v->m, &value));
}

/* Undeclared names that were not seen yet; UINT32_MAX: there are no others. */
static uint32_t unseen_name(const struct view *v, const struct eng_other *t)
{
    struct eng_rx *r = &v->m->rx;
    struct eng_str *names = NULL;
    size_t n = 0, cap = 0;
    if (!v->f->seen || eng_match_keeps_lexeme(v->m, v->f->seen, t->lexeme)) return t->lexeme;
    for (uint32_t c = v->f->seen; c; c = v->m->cells[c].rest) {
        if (cn_grow(&names, &cap, n + 1, sizeof *names)) {
            free(names);
            eng_match_fail(v->m, CN_ENOMEM);
            return UINT32_MAX;
        }
        names[n++] = eng_seen_str(v->m, v->m->cells[c].value);
    }
    uint32_t quote = v->o->bare ? ENG_RX_EMPTY : eng_rx_byte(r, '"', '"');
    uint32_t seen = eng_spell_texts(r, v->o->bare ? ENG_SPELL_RAW : v->ir->spelling, names, n);
    seen = eng_rx_cat(r, quote, eng_rx_cat(r, seen, quote));
    free(names);
    uint32_t name = eng_rx_and(r, t->name, eng_rx_not(r, seen));
    return eng_match_extra(v->m, eng_rx_cat(r, name, v->ir->colon), true);
}

static bool offer_others(const struct view *v, bool emit)
{
    bool any = false;
    if (!v->o->others.n || !fits(v, v->o->members.n, UINT32_MAX)) return false;
    for (uint32_t i = 0; i < v->o->others.n; i++) {
        const struct eng_other *t = &v->ir->others[v->o->others.first + i];
        if (eng_ir_cost(v->ir, t->value) == UINT32_MAX) continue;
        v->m->probing = !emit;
        uint32_t name = unseen_name(v, t);
        v->m->probing = false;
        if (name == UINT32_MAX) continue;
        any = true;
        if (!emit) break;
        struct eng_frame n = *v->f;
        n.phase = ENG_PHASE_NAMED;
        n.pos = v->o->members.n;
        n.start = i;
        eng_expand_lexeme(v->m, name, eng_frame(v->m, &n));
    }
    return any;
}

/* The members that may come next; whether there are any. */
static bool offer(const struct view *v, bool emit)
{
    bool any = false, blocked = false;
    for (uint32_t i = v->f->pos; i < v->o->members.n && !blocked; i++) {
        if (v->members[i].loose) continue;
        if (can_have(v, i)) {
            any = true;
            if (!emit) return true;
            offer_member(v, i);
        }
        blocked = must_come(v, i, UINT32_MAX);
    }
    if (blocked) return any;
    for (uint32_t i = 0; i < v->o->members.n; i++) {
        if (!v->members[i].loose || is_there(v, i) || !can_have(v, i)) continue;
        any = true;
        if (!emit) return true;
        offer_member(v, i);
    }
    return offer_others(v, emit) || any;
}

static bool can_close(const struct view *v)
{
    if (v->f->count < v->o->min) return false;
    for (uint32_t i = 0; i < v->o->members.n; i++)
        if (is_ahead(v, i, v->f->pos) && must_come(v, i, UINT32_MAX)) return false;
    return true;
}

/* A name without quotes: up to the colon, after white space. */
static int bare_name(struct eng_str s, struct cn_buf *out)
{
    while (s.n && s.p[s.n - 1] != ':')
        s.n--;
    while (s.n && memchr(" \t\r\n", *s.p, 4))
        s.p++, s.n--;
    return s.n ? cn_buf_append(out, s.p, s.n - 1) : CN_EINVAL;
}

/* The name's number; UINT32_MAX: it was not seen. */
static uint32_t name_of(struct eng_match *m, const struct eng_expansion *x, bool bare)
{
    struct cn_buf text, name;
    cn_buf_init(&text, 0);
    cn_buf_init(&name, 0);
    int rc = eng_kept_text(m, x->text, x->from, &text);
    uint32_t seen = UINT32_MAX;
    if (!rc && bare)
        rc = bare_name((struct eng_str){text.data, text.len}, &name);
    else if (!rc)
        rc = eng_value_string(text.data, text.len, &name);
    if (rc)
        eng_match_fail(m, rc);
    else
        seen = m->walking ? eng_seen_find(m, name.data, name.len)
                          : eng_seen_text(m, name.data, name.len);
    cn_buf_fini(&text);
    cn_buf_fini(&name);
    return seen;
}

/* Behind an undeclared name: it must be a new one, and its value follows. */
static void take_name(const struct view *v, const struct eng_expansion *x)
{
    struct eng_match *m = v->m;
    const struct eng_other *t = &v->ir->others[v->o->others.first + v->f->start];
    struct eng_frame n = behind(v, v->f->pos);
    uint32_t seen = UINT32_MAX;
    bool look = v->f->seen && !eng_seen_is_fresh(m, x->text, x->from);
    if (!m->walking || look) seen = name_of(m, x, v->o->bare);
    if (look) m->used = true;
    if (v->f->seen == ENG_LIST_UNKNOWN) m->doubt = ENG_UNSURE;
    if (m->code || (seen != UINT32_MAX && eng_list_has_seen(m, v->f->seen, seen))) return;
    n.seen = m->walking ? ENG_LIST_UNKNOWN : eng_list_add_seen(m, n.seen, seen);
    eng_expand_sym(m, t->value, eng_frame(m, &n));
}

void eng_expand_object(struct eng_match *m, const struct eng_frame *f,
                       const struct eng_expansion *x)
{
    struct view v = view_of(m, f);
    struct eng_frame n = *f;
    switch (f->phase) {
    case ENG_PHASE_NAMED:
        take_name(&v, x);
        return;
    case ENG_PHASE_COMMA:
        offer(&v, true);
        return;
    case ENG_PHASE_OPEN:
        offer(&v, true);
        break;
    default:
        n.phase = ENG_PHASE_COMMA;
        if (offer(&v, false)) eng_expand_lexeme(m, m->ir->marks[ENG_COMMA], eng_frame(m, &n));
        break;
    }
    if (can_close(&v)) eng_expand_lexeme(m, m->ir->marks[ENG_CLOSE_OBJECT], f->parent);
}

/* ---- least lengths --------------------------------------------------------------------------- */

static uint32_t cost_of(const struct view *v, const struct eng_member *t)
{
    return eng_cost_add(eng_cost_add(v->ir->lexemes[t->name].cost, eng_ir_cost(v->ir, t->value)),
                        1);
}

/* Of one more member that need not come. */
static uint32_t cheapest(const struct view *v)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < v->o->members.n; i++)
        if (is_ahead(v, i, v->f->pos) && !must_come(v, i, UINT32_MAX) && can_have(v, i))
            best = CN_MIN(best, cost_of(v, &v->members[i]));
    for (uint32_t i = 0; i < v->o->others.n; i++) {
        const struct eng_other *t = &v->ir->others[v->o->others.first + i];
        uint32_t c = eng_cost_add(v->ir->lexemes[t->lexeme].cost, eng_ir_cost(v->ir, t->value));
        /* names may be used up; a longer one is there */
        best = CN_MIN(best, eng_cost_add(c, 3));
    }
    return best;
}

uint32_t eng_object_rest(struct eng_match *m, const struct eng_frame *f)
{
    struct view v = view_of(m, f);
    bool comma = f->phase == ENG_PHASE_COMMA; /* that of the next member is there */
    uint32_t c = !comma, n = f->count, one;
    if (f->phase == ENG_PHASE_NAMED) {
        c = eng_cost_add(c, eng_ir_cost(v.ir, v.ir->others[v.o->others.first + f->start].value));
        n++;
    }
    bool any = false;
    for (uint32_t i = 0; i < v.o->members.n; i++) {
        if (!is_ahead(&v, i, f->pos) || !must_come(&v, i, UINT32_MAX)) continue;
        c = eng_cost_add(c, cost_of(&v, &v.members[i]));
        any = true;
        n++;
    }
    if (n >= v.o->min && (any || !comma)) return c;
    one = cheapest(&v);
    uint64_t more = (uint64_t)one * (n < v.o->min ? v.o->min - n : 1);
    return one == UINT32_MAX || more > UINT32_MAX ? UINT32_MAX : eng_cost_add(c, (uint32_t)more);
}
