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

/* From a place by one of its lexemes; *k: where its items begin, moved to those of the next one. */
static uint32_t by_lexeme(struct eng_match *m, const struct eng_parser_state *p,
                          struct eng_lexing g, uint32_t *k)
{
    uint32_t best = UINT32_MAX, len = eng_rx_tokens(&m->rx, g.rx, m->trie);
    while (*k < p->n && m->item_ofs[p->first + *k].lexeme < g.lexeme)
        ++*k;
    for (; *k < p->n && m->item_ofs[p->first + *k].lexeme == g.lexeme; ++*k) {
        uint32_t rest = rest_of(m, m->item_ofs[p->first + *k].frame);
        best = CN_MIN(best, eng_cost_add(len, rest));
    }
    return best;
}

static uint32_t distance_of(struct eng_match *m, const struct eng_place *at)
{
    const struct eng_parser_state *p = &m->parsers[at->parser];
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    bool begins = at->lexer == p->lexer;
    uint32_t best = p->accepts && begins ? 0 : UINT32_MAX;
    for (uint32_t i = 0, k = 0; i < l->n; i++) {
        uint32_t far = by_lexeme(m, p, m->lexings[l->first + i], &k);
        best = CN_MIN(best, far);
    }
    return best;
}

uint32_t eng_match_farthest(struct eng_match *m, const struct eng_place *at)
{
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    uint32_t worst = 0;
    for (uint32_t i = 0, k = 0; i < l->n; i++) {
        uint32_t far = by_lexeme(m, &m->parsers[at->parser], m->lexings[l->first + i], &k);
        worst = CN_MAX(worst, far);
    }
    if (m->rx.code) eng_match_fail(m, m->rx.code);
    return worst;
}

uint32_t eng_match_distance(struct eng_match *m, const struct eng_places *at)
{
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < at->n; i++)
        best = CN_MIN(best, distance_of(m, &at->v[i]));
    if (m->rx.code) eng_match_fail(m, m->rx.code);
    return best >= UINT32_MAX - 1 ? UINT32_MAX : best;
}
