/* close: how far an answer is from its end, in tokens. See match.h.
 *
 * A frame's least length does not depend on what is above it, so that it is computed once: its own,
 * and that of the stack below. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/match.h"

static uint32_t own_rest(struct eng_match *m, const struct eng_frame *f)
{
    struct eng_run_of q;
    uint32_t c = 0;
    switch (f->kind) {
    case ENG_FRAME_OBJECT:
        return eng_object_rest(m, f);
    case ENG_FRAME_ARRAY:
        return eng_array_rest(m, f);
    case ENG_FRAME_SYM:
        return eng_ir_cost(m->ir, (struct eng_sym){f->id >> 29, f->id & ((1u << 29) - 1)});
    }
    q = m->ir->seqs[f->id];
    for (uint32_t i = f->pos; i < q.n; i++)
        c = eng_cost_add(c, eng_ir_cost(m->ir, m->ir->syms[q.first + i]));
    return c;
}

/* From the bottom up, without recursion: a stack may be deep. */
static uint32_t rest_of(struct eng_match *m, uint32_t frame)
{
    while (frame && !m->frames[frame].rest) {
        uint32_t low = frame, up;
        while ((up = m->frames[low].parent) && !m->frames[up].rest)
            low = up;
        struct eng_frame copy = m->frames[low];
        uint32_t below = up ? m->frames[up].rest - 1 : 0;
        uint32_t c = eng_cost_add(own_rest(m, &copy), below);
        m->frames[low].rest = c == UINT32_MAX ? c : c + 1;
        if (c >= UINT32_MAX - 1) m->frames[low].rest = UINT32_MAX;
    }
    return frame ? m->frames[frame].rest - 1 : 0;
}

uint32_t eng_place_distance(struct eng_match *m, const struct eng_place *at, uint32_t only)
{
    const struct eng_parser_state *p = &m->parsers[at->parser];
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    bool ends = p->accepts && at->lexer == p->lexer && only == UINT32_MAX;
    uint32_t best = ends ? 0 : UINT32_MAX;
    for (uint32_t i = 0, k = 0; i < l->n; i++) {
        struct eng_lexing g = m->lexings[l->first + i];
        if (only != UINT32_MAX && i != only) continue;
        uint32_t len = eng_rx_tokens(&m->rx, g.rx, m->trie);
        while (k < p->n && m->item_ofs[p->first + k].lexeme < g.lexeme)
            k++;
        for (; k < p->n && m->item_ofs[p->first + k].lexeme == g.lexeme; k++) {
            uint32_t rest = rest_of(m, m->item_ofs[p->first + k].frame);
            best = CN_MIN(best, eng_cost_add(len, rest));
        }
    }
    return best;
}

/* The shortest text of a lexeme may have come before, where it must not come again. */
static uint32_t distance_of(struct eng_match *m, const struct eng_place *at)
{
    const struct eng_parser_state *p = &m->parsers[at->parser];
    uint32_t best = p->accepts && at->lexer == p->lexer ? 0 : UINT32_MAX;
    if (p->doubt != ENG_TAKEN) return eng_place_distance(m, at, UINT32_MAX);
    for (uint32_t i = 0; i < m->lexers[at->lexer].n; i++) {
        uint32_t far = eng_place_distance(m, at, i);
        if (far < best) far = eng_cost_add(far, eng_match_farther(m, at, i));
        best = CN_MIN(best, far);
    }
    return best;
}

uint32_t eng_match_distance(struct eng_match *m, const struct eng_places *at)
{
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < at->n; i++) {
        uint32_t far = distance_of(m, &at->v[i]);
        best = CN_MIN(best, far);
    }
    if (m->rx.code) eng_match_fail(m, m->rx.code);
    return best >= UINT32_MAX - 1 ? UINT32_MAX : best;
}
