/* expand: which lexemes may follow frames, and what is behind each. See match.h.
 *
 * Works through a list of things to do, so that no grammar can exhaust the stack. A rule that was
 * expanded above the same frame already, and a frame, is not expanded again: rules that come back
 * to where they were without a byte end there. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { MOST_FOUND = 1 << 16 };

struct eng_met { uint32_t what, frame, when; };
struct eng_pending {
    struct eng_sym sym; /* ENG_SYM_NEVER: expand the frame itself */
    uint32_t frame;
};

static void later(struct eng_match *m, struct eng_pending t)
{
    struct eng_scratch *w = m->work;
    if (m->code) return;
    if (w->n_pending >= MOST_FOUND)
        eng_match_fail(m, CN_ELIMIT);
    else if (cn_grow(&w->pending, &w->cap_pending, w->n_pending + 1, sizeof *w->pending))
        eng_match_fail(m, CN_ENOMEM);
    else
        w->pending[w->n_pending++] = t;
}

static struct eng_met *place_of(const struct eng_scratch *w, uint32_t what, uint32_t frame)
{
    uint32_t h = (what * 0x9E3779B1u ^ frame) * 0x85EBCA6Bu;
    for (h ^= h >> 15;; h++) {
        struct eng_met *p = &w->met[h & (w->n_slots - 1)];
        if (p->when != w->now || (p->what == what && p->frame == frame)) return p;
    }
}

static bool grow_met(struct eng_scratch *w)
{
    struct eng_scratch to = {.n_slots = CN_MAX(2 * w->n_slots, 64u), .now = w->now};
    to.met = cn_calloc(to.n_slots, sizeof *to.met);
    if (!to.met) return false;
    for (uint32_t i = 0; i < w->n_slots; i++)
        if (w->met[i].when == w->now) *place_of(&to, w->met[i].what, w->met[i].frame) = w->met[i];
    free(w->met);
    w->met = to.met;
    w->n_slots = to.n_slots;
    return true;
}

/* Whether this was met before in this expansion; it has been from now on. what: a rule, or
 * UINT32_MAX for the frame itself. */
static bool met(struct eng_match *m, uint32_t what, uint32_t frame)
{
    struct eng_scratch *w = m->work;
    if (2 * w->n_met >= w->n_slots && !grow_met(w)) return eng_match_fail(m, CN_ENOMEM), true;
    struct eng_met *p = place_of(w, what, frame);
    if (p->when == w->now) return true;
    if (w->n_met >= MOST_FOUND) return eng_match_fail(m, CN_ELIMIT), true;
    *p = (struct eng_met){what, frame, w->now};
    w->n_met++;
    return false;
}

void eng_expand_sym(struct eng_match *m, struct eng_sym s, uint32_t frame)
{
    if (eng_ir_cost(m->ir, s) != UINT32_MAX) later(m, (struct eng_pending){s, frame});
}

void eng_expand_frame(struct eng_match *m, uint32_t frame)
{
    later(m, (struct eng_pending){{ENG_SYM_NEVER, 0}, frame});
}

void eng_expand_lexeme(struct eng_match *m, uint32_t lexeme, uint32_t frame)
{
    struct eng_scratch *w = m->work;
    if (m->code || lexeme == UINT32_MAX) return;
    if (w->n_found >= MOST_FOUND)
        eng_match_fail(m, CN_ELIMIT);
    else if (cn_grow(&w->found, &w->cap_found, w->n_found + 1, sizeof *w->found))
        eng_match_fail(m, CN_ENOMEM);
    else
        w->found[w->n_found++] = (struct eng_item_of){lexeme, frame};
}

/* The rest of a sequence, above `parent`: the frame below what comes next, which is none where the
 * sequence ends, so that rules that call themselves last need no more room. */
static uint32_t rest_of(struct eng_match *m, uint32_t seq, uint32_t pos, uint32_t parent)
{
    if (pos == m->ir->seqs[seq].n) return parent;
    return eng_frame(
        m, &(struct eng_frame){.kind = ENG_FRAME_SEQ, .id = seq, .pos = pos, .parent = parent});
}

static void expand_seq(struct eng_match *m, uint32_t seq, uint32_t pos, uint32_t parent)
{
    struct eng_run_of q = m->ir->seqs[seq];
    if (pos == q.n)
        eng_expand_frame(m, parent);
    else
        eng_expand_sym(m, m->ir->syms[q.first + pos], rest_of(m, seq, pos + 1, parent));
}

static void do_sym(struct eng_match *m, struct eng_sym s, uint32_t frame)
{
    const struct eng_frame *f = frame ? &m->frames[frame] : NULL;
    struct eng_frame in = {.parent = frame, .id = s.id, .phase = ENG_PHASE_OPEN};
    uint32_t lexeme = s.id;
    switch (s.kind) {
    case ENG_SYM_LEXEME:
        if (f && f->kind == ENG_FRAME_ARRAY && f->phase == ENG_PHASE_ITEM)
            lexeme = eng_array_lexeme(m, lexeme, f);
        eng_expand_lexeme(m, lexeme, frame);
        if (eng_rx_nullable(&m->rx, m->ir->lexemes[s.id].rx)) eng_expand_frame(m, frame);
        return;
    case ENG_SYM_RULE:
        if (met(m, s.id, frame)) return;
        for (uint32_t i = m->ir->rules[s.id].n; i--;) {
            uint32_t seq = m->ir->rules[s.id].seqs[i];
            if (m->ir->seq_cost[seq] != UINT32_MAX) expand_seq(m, seq, 0, frame);
        }
        return;
    case ENG_SYM_OBJECT:
        in.kind = ENG_FRAME_OBJECT;
        eng_expand_lexeme(m, m->ir->marks[ENG_OPEN_OBJECT], eng_frame(m, &in));
        return;
    case ENG_SYM_ARRAY:
        in.kind = ENG_FRAME_ARRAY;
        eng_expand_lexeme(m, m->ir->marks[ENG_OPEN_ARRAY], eng_frame(m, &in));
        return;
    }
}

static void do_frame(struct eng_match *m, uint32_t frame, struct eng_expansion *x)
{
    if (!frame) {
        x->accepts = true;
        return;
    }
    if (met(m, UINT32_MAX, frame)) return;
    struct eng_frame f = m->frames[frame]; /* they may move */
    switch (f.kind) {
    case ENG_FRAME_SEQ:
        expand_seq(m, f.id, f.pos, f.parent);
        return;
    case ENG_FRAME_SYM:
        eng_expand_sym(m, (struct eng_sym){f.id >> 29, f.id & ((1u << 29) - 1)}, f.parent);
        return;
    case ENG_FRAME_OBJECT:
        eng_expand_object(m, &f, x);
        return;
    case ENG_FRAME_ARRAY:
        eng_expand_array(m, &f, x);
        return;
    }
}

void eng_expand(struct eng_match *m, const uint32_t *frames, size_t n, struct eng_expansion *x)
{
    m->work->n_found = m->work->n_met = m->work->n_pending = 0;
    if (!++m->work->now) { /* the numbers begin again */
        if (m->work->met) memset(m->work->met, 0, m->work->n_slots * sizeof *m->work->met);
        m->work->now = 1;
    }
    for (size_t i = n; i--;)
        eng_expand_frame(m, frames[i]);
    while (m->work->n_pending && !m->code && !(x->probe && (m->work->n_found || x->accepts))) {
        struct eng_pending t = m->work->pending[--m->work->n_pending];
        eng_match_tick(m);
        if (t.sym.kind == ENG_SYM_NEVER)
            do_frame(m, t.frame, x);
        else
            do_sym(m, t.sym, t.frame);
    }
}
