/* rich: parts of a grammar that have so many texts that one of them is always new. See match.h.
 *
 * What is said to be rich has ENG_TEXTS_MANY texts or more. Of other parts nothing is said: looking
 * ends soon, so that it costs little. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/match.h"

enum { MOST_DEPTH = 6, MOST_PARTS = 64 };

static bool is_possible(const struct eng_match *m, struct eng_sym s)
{
    return eng_ir_cost(m->ir, s) != UINT32_MAX;
}

static bool is_rich(struct eng_match *m, struct eng_sym s, unsigned depth);

static bool is_rich_seq(struct eng_match *m, struct eng_run_of q, uint32_t from, unsigned depth)
{
    for (uint32_t i = from; i < CN_MIN(q.n, from + MOST_PARTS); i++)
        if (is_rich(m, m->ir->syms[q.first + i], depth)) return true;
    return false;
}

static bool is_rich_rule(struct eng_match *m, uint32_t rule, unsigned depth)
{
    const struct eng_rule *r = &m->ir->rules[rule];
    for (uint32_t i = 0; i < CN_MIN(r->n, (uint32_t)MOST_PARTS); i++)
        if (m->ir->seq_cost[r->seqs[i]] != UINT32_MAX &&
            is_rich_seq(m, m->ir->seqs[r->seqs[i]], 0, depth))
            return true;
    return false;
}

/* Members from this one on, and undeclared ones. That an optional one may come is only known
 * without a bound of how many there are. */
static bool has_rich_members(struct eng_match *m, const struct eng_object *o, uint32_t from,
                             unsigned depth)
{
    bool bounded = o->max != ENG_RX_INF || o->needs.n;
    for (uint32_t i = 0; i < o->others.n && !bounded; i++) {
        const struct eng_other *t = &m->ir->others[o->others.first + i];
        if (is_possible(m, t->value) && eng_lexeme_is_rich(m, t->lexeme)) return true;
    }
    for (uint32_t i = from; i < CN_MIN(o->members.n, from + MOST_PARTS); i++) {
        const struct eng_member *t = &m->ir->members[o->members.first + i];
        if ((t->required || !bounded) && !t->loose && is_rich(m, t->value, depth)) return true;
    }
    return false;
}

/* The item of a place and those behind it. */
static bool has_rich_items(struct eng_match *m, const struct eng_array *a, uint32_t pos,
                           unsigned depth)
{
    const struct eng_item *t = pos < a->items.n ? &m->ir->items[a->items.first + pos] : &a->rest;
    if (pos >= a->max || a->min_in || a->max_in != ENG_RX_INF || !is_possible(m, t->out))
        return false;
    return is_rich(m, t->out, depth) || (pos >= a->items.n && a->max == ENG_RX_INF && !a->unique);
}

static bool is_rich(struct eng_match *m, struct eng_sym s, unsigned depth)
{
    if (depth > MOST_DEPTH || !is_possible(m, s)) return false;
    switch (s.kind) {
    case ENG_SYM_LEXEME:
        return eng_lexeme_is_rich(m, s.id);
    case ENG_SYM_RULE:
        return is_rich_rule(m, s.id, depth + 1);
    case ENG_SYM_OBJECT:
        return has_rich_members(m, &m->ir->objects[s.id], 0, depth + 1);
    case ENG_SYM_ARRAY:
        return has_rich_items(m, &m->ir->arrays[s.id], 0, depth + 1);
    }
    return false;
}

static bool has_rich_rest(struct eng_match *m, const struct eng_frame *f)
{
    switch (f->kind) {
    case ENG_FRAME_SEQ:
        return is_rich_seq(m, m->ir->seqs[f->id], f->pos, 0);
    case ENG_FRAME_SYM:
        return is_rich(m, (struct eng_sym){f->id >> 29, f->id & ((1u << 29) - 1)}, 0);
    case ENG_FRAME_OBJECT:
        return has_rich_members(m, &m->ir->objects[f->id], f->pos, 0);
    case ENG_FRAME_ARRAY:
        return has_rich_items(m, &m->ir->arrays[f->id], f->pos, 0);
    }
    return false;
}

bool eng_frame_is_rich(struct eng_match *m, uint32_t frame)
{
    struct eng_frame f = m->frames[frame];
    if (!f.rich) f.rich = m->frames[frame].rich = has_rich_rest(m, &f) ? ENG_RICH : ENG_POOR;
    return f.rich == ENG_RICH;
}
