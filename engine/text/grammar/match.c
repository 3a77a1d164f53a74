/* match: the parser's states, and steps from byte to byte. See match.h. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { PARSERS = 3, FIRST_GOTOS = 64, MOST_PLACES = 1024, MOST_GOTOS = 1 << 20 };

int eng_match_init(struct eng_match *m, const struct eng_ir *ir, size_t max_bytes, uint32_t lead)
{
    struct eng_expansion x = {0};
    struct eng_frame root = {.kind = ENG_FRAME_SYM,
                             .id = (uint32_t)ir->root.kind << 29 | ir->root.id};
    *m = (struct eng_match){.ir = ir, .max_bytes = max_bytes, .lead = lead};
    m->work = &m->scratch[0];
    m->n_frames = m->n_parsers = m->n_kept = 1;
    m->n_cells = ENG_LIST_UNKNOWN + 1;
    m->n_lexers = ENG_LEXER_DEAD + 1;
    m->gotos = cn_calloc(FIRST_GOTOS, sizeof *m->gotos);
    m->n_gotos = FIRST_GOTOS;
    if (!m->gotos || eng_rx_init(&m->rx, &ir->rx, max_bytes, 0) ||
        cn_grow(&m->frames, &m->cap[0], 64, sizeof *m->frames) ||
        cn_grow(&m->cells, &m->cap[1], m->n_cells, sizeof *m->cells) ||
        cn_grow(&m->lexers, &m->cap[5], 64, sizeof *m->lexers) ||
        cn_grow(&m->parsers, &m->cap[6], 16, sizeof *m->parsers) ||
        cn_grow(&m->kept, &m->cap[8], 1, sizeof *m->kept) ||
        cn_grow(&m->now.v, &m->now.cap, 4, sizeof *m->now.v)) {
        eng_match_fini(m);
        return CN_ENOMEM;
    }
    memset(m->cells, 0, m->n_cells * sizeof *m->cells);
    memset(m->lexers, 0, (ENG_LEXER_DEAD + 1) * sizeof *m->lexers);
    uint32_t frame = eng_frame(m, &root);
    m->n_classes = m->rx.n_classes;
    m->now.v[0] = (struct eng_place){.parser = eng_parser_state(m, &frame, 1, &x, true)};
    m->now.v[0].lexer = m->parsers[m->now.v[0].parser].lexer;
    m->now.n = 1;
    if (!m->code) return 0;
    int rc = m->code;
    eng_match_fini(m);
    return rc;
}

void eng_match_fini(struct eng_match *m)
{
    if (!m) return;
    for (uint32_t i = ENG_LEXER_DEAD + 1; m->lexers && i < m->n_lexers; i++)
        free(m->lexers[i].to);
    for (int i = 0; i < 2; i++) {
        free(m->scratch[i].pending);
        free(m->scratch[i].found);
        free(m->scratch[i].met);
    }
    for (int i = 0; i < 5; i++)
        free(m->heads[i]);
    free(m->frames);
    free(m->cells);
    free(m->seen);
    free(m->order);
    free(m->texts);
    free(m->extra);
    free(m->lexings);
    free(m->lexers);
    free(m->parsers);
    free(m->item_ofs);
    free(m->kept);
    free(m->gotos);
    free(m->pairs);
    free(m->now.v);
    eng_rx_fini(&m->rx);
    *m = (struct eng_match){0};
}

size_t eng_match_bytes(const struct eng_match *m)
{
    size_t n = eng_rx_bytes(&m->rx) + m->cap[0] * sizeof *m->frames + m->cap[1] * sizeof *m->cells +
               m->cap[2] * sizeof *m->seen + m->cap[3] * sizeof *m->extra +
               m->cap[4] * sizeof *m->lexings + m->cap[5] * sizeof *m->lexers +
               m->cap[6] * sizeof *m->parsers + m->cap[7] * sizeof *m->item_ofs +
               m->cap[8] * sizeof *m->kept + m->cap[9] * sizeof *m->order + m->cap[10];
    for (int i = 0; i < 5; i++)
        n += m->n_heads[i] * sizeof *m->heads[i];
    n += m->n_gotos * sizeof *m->gotos + m->n_tables * sizeof(uint32_t);
    return n;
}

/* ---- parser states --------------------------------------------------------------------------- */

static int by_lexeme(const void *a, const void *b)
{
    const struct eng_item_of *x = a, *y = b;
    if (x->lexeme != y->lexeme) return x->lexeme < y->lexeme ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

static bool grow_heads(struct eng_match *m)
{
    uint32_t n = CN_MAX(m->n_heads[PARSERS] * 2, 64u), *heads = cn_calloc(n, sizeof *heads);
    if (!heads) return eng_match_fail(m, CN_ENOMEM), false;
    for (uint32_t i = 1; i < m->n_parsers; i++) {
        m->parsers[i].chain = heads[m->parsers[i].hash & (n - 1)];
        heads[m->parsers[i].hash & (n - 1)] = i;
    }
    free(m->heads[PARSERS]);
    m->heads[PARSERS] = heads;
    m->n_heads[PARSERS] = n;
    return true;
}

/* What was found: sorted, each once. */
static struct eng_parser_state describe(struct eng_match *m, bool accepts, bool begins)
{
    struct eng_scratch *w = m->work;
    struct eng_parser_state p = {.accepts = accepts, .hash = accepts + 2u * begins};
    if (w->n_found) qsort(w->found, w->n_found, sizeof *w->found, by_lexeme);
    for (size_t i = 0; i < w->n_found; i++) {
        const struct eng_item_of *t = &w->found[i];
        const struct eng_frame *f = t->frame ? &m->frames[t->frame] : NULL;
        if (p.n && !by_lexeme(&w->found[p.n - 1], t)) continue;
        uint64_t rx = eng_rx_node(&m->rx, eng_match_lexeme(m, t->lexeme)->full)->hash;
        p.hash = (p.hash ^ rx) * 0x9E3779B97F4A7C15u;
        p.hash = ((p.hash ^ p.hash >> 29) + (f ? f->hash : 0)) * 0xD6E8FEB86659FD93u;
        p.keeps |= f && (f->inside || (f->kind == ENG_FRAME_ARRAY && f->wants));
        p.records |= f && (f->inside || f->wants);
        if (eng_match_taken(m, t->lexeme, t->frame)) p.doubt = ENG_TAKEN;
        w->found[p.n++] = *t;
    }
    p.doubt = CN_MAX(p.doubt, m->doubt);
    return p;
}

static uint32_t start_lexer(struct eng_match *m, uint32_t found, bool begins)
{
    const struct eng_scratch *w = m->work;
    uint32_t few[64], *lexemes = few, n = 0, state;
    if (found > CN_ARRAY_LEN(few)) lexemes = cn_malloc_array(found, sizeof *lexemes);
    if (!lexemes) return eng_match_fail(m, CN_ENOMEM), ENG_LEXER_DEAD;
    for (size_t i = 0; i < found; i++)
        if (!n || lexemes[n - 1] != w->found[i].lexeme) lexemes[n++] = w->found[i].lexeme;
    state = eng_lexer_start(m, lexemes, n, begins);
    if (lexemes != few) free(lexemes);
    return state;
}

uint32_t eng_parser_state(struct eng_match *m, const uint32_t *frames, size_t n,
                          struct eng_expansion *x, bool begins)
{
    m->doubt = ENG_SURE;
    eng_expand(m, frames, n, x);
    return eng_parser_found(m, x->accepts, begins);
}

uint32_t eng_parser_found(struct eng_match *m, bool accepts, bool begins)
{
    struct eng_parser_state p;
    if (m->code) return 0;
    p = describe(m, accepts, begins);
    m->work->n_found = 0;
    if (!p.n && !p.accepts) return 0;
    if (!eng_heads_room(m, PARSERS, m->n_parsers) && !grow_heads(m)) return 0;
    uint32_t *head = &m->heads[PARSERS][p.hash & (m->n_heads[PARSERS] - 1)];
    for (uint32_t i = *head; i; i = m->parsers[i].chain) {
        const struct eng_parser_state *q = &m->parsers[i];
        if (q->hash == p.hash && q->n == p.n && q->accepts == p.accepts && q->doubt == p.doubt &&
            (!p.n || !memcmp(&m->item_ofs[q->first], m->work->found, p.n * sizeof *m->item_ofs)))
            return i;
    }
    p.lexer = start_lexer(m, p.n, begins);
    if (m->code) return 0;
    if (cn_grow(&m->parsers, &m->cap[6], m->n_parsers + (size_t)1, sizeof *m->parsers) ||
        cn_grow(&m->item_ofs, &m->cap[7], m->n_item_ofs + p.n, sizeof *m->item_ofs))
        return eng_match_fail(m, CN_ENOMEM), 0;
    if (eng_match_bytes(m) > m->max_bytes) return eng_match_fail(m, CN_ELIMIT), 0;
    p.first = m->n_item_ofs;
    if (p.n) memcpy(&m->item_ofs[p.first], m->work->found, p.n * sizeof *m->item_ofs);
    m->n_item_ofs += p.n;
    p.chain = *head;
    *head = m->n_parsers;
    m->parsers[m->n_parsers] = p;
    return m->n_parsers++;
}

/* ---- behind lexemes -------------------------------------------------------------------------- */

static struct eng_goto *find_goto(struct eng_match *m, uint32_t parser, uint32_t lexer)
{
    uint32_t h = (parser * 0x9E3779B1u ^ lexer * 0x85EBCA6Bu);
    for (h ^= h >> 15;; h++) {
        struct eng_goto *g = &m->gotos[h & (m->n_gotos - 1)];
        if (!g->parser || (g->parser == parser && g->lexer == lexer)) return g;
    }
}

static void keep_goto(struct eng_match *m, struct eng_goto g)
{
    if (m->used_gotos * 2 >= m->n_gotos && m->n_gotos < MOST_GOTOS) {
        struct eng_goto *old = m->gotos, *now = cn_calloc(m->n_gotos * 2ul, sizeof *now);
        uint32_t n = m->n_gotos;
        if (!now) return; /* slower without */
        m->gotos = now;
        m->n_gotos = 2 * n;
        for (uint32_t i = 0; i < n; i++)
            if (old[i].parser) *find_goto(m, old[i].parser, old[i].lexer) = old[i];
        free(old);
    }
    if (m->used_gotos * 2 >= m->n_gotos) return;
    m->used_gotos++;
    *find_goto(m, g.parser, g.lexer) = g;
}

/* The frames behind all lexemes that may be complete. */
static size_t frames_behind(struct eng_match *m, const struct eng_parser_state *p,
                            const struct eng_lexer_state *l, uint32_t *out)
{
    const struct eng_item_of *t = &m->item_ofs[p->first];
    size_t n = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct eng_lexing *g = &m->lexings[l->first + i];
        if (!eng_rx_nullable(&m->rx, g->rx)) continue;
        while (at < p->n && t[at].lexeme < g->lexeme)
            at++;
        for (; at < p->n && t[at].lexeme == g->lexeme; at++)
            out[n++] = t[at].frame;
    }
    return n;
}

/* The state behind a lexeme, made anew. */
static uint32_t make_goto(struct eng_match *m, const struct eng_place *at)
{
    struct eng_parser_state p = m->parsers[at->parser];
    struct eng_expansion x = {.text = at->text, .from = at->from};
    uint32_t few[64], *frames = few, to;
    if (p.n > CN_ARRAY_LEN(few)) frames = cn_malloc_array(p.n, sizeof *frames);
    if (!frames) return (uint32_t)(eng_match_fail(m, CN_ENOMEM), 0);
    size_t n = frames_behind(m, &p, &m->lexers[at->lexer], frames);
    to = n ? eng_parser_state(m, frames, n, &x, false) : 0;
    if (frames != few) free(frames);
    return m->code ? 0 : to;
}

static struct eng_place place_behind(const struct eng_match *m, const struct eng_place *at,
                                     uint32_t to)
{
    struct eng_place after = {.parser = to};
    if (!to) return after;
    after.lexer = m->parsers[to].lexer;
    if (m->parsers[to].keeps) after.text = at->text;
    after.from = after.text ? m->kept[after.text].len : 0;
    return after;
}

static bool same_place(const struct eng_place *a, const struct eng_place *b)
{
    return a->parser == b->parser && a->lexer == b->lexer && a->text == b->text &&
           a->from == b->from;
}

/* Of a lexeme whose text is kept: it depends on the text. */
static uint32_t goto_by_text(struct eng_match *m, const struct eng_place *at,
                             struct eng_place *after)
{
    uint32_t h = (at->text * 0x9E3779B1u ^ at->lexer * 0x85EBCA6Bu) >> 16;
    struct eng_lately *l = &m->lately[h % ENG_LATELY];
    bool used = m->used;
    if (m->walking && l->at.parser && same_place(&l->at, at)) {
        m->used |= l->used;
        *after = l->after;
        return after->parser;
    }
    m->used = false;
    *after = place_behind(m, at, make_goto(m, at));
    if (m->walking) *l = (struct eng_lately){*at, *after, m->used};
    m->used |= used;
    return after->parser;
}

uint32_t eng_match_goto(struct eng_match *m, const struct eng_place *at, struct eng_place *after)
{
    if (m->parsers[at->parser].records) return goto_by_text(m, at, after);
    struct eng_goto *g = find_goto(m, at->parser, at->lexer);
    bool used = m->used;
    uint32_t to = g->to;
    if (g->parser) {
        m->used |= g->used;
    } else {
        m->used = false;
        to = make_goto(m, at);
        if (!m->code) keep_goto(m, (struct eng_goto){at->parser, at->lexer, to, m->used});
        m->used |= used;
    }
    *after = place_behind(m, at, to);
    return to;
}

void eng_match_unkeep(struct eng_match *m, uint32_t n_kept)
{
    m->n_kept = n_kept;
    memset(m->lately, 0, sizeof m->lately);
}

/* ---- steps ----------------------------------------------------------------------------------- */

uint32_t eng_keep_byte(struct eng_match *m, uint32_t text, uint8_t byte)
{
    if (cn_grow(&m->kept, &m->cap[8], m->n_kept + (size_t)1, sizeof *m->kept))
        return (uint32_t)(eng_match_fail(m, CN_ENOMEM), 0);
    m->kept[m->n_kept] = (struct eng_kept){text, text ? m->kept[text].len + 1 : 1, (char)byte};
    return m->n_kept++;
}

void eng_match_add(struct eng_match *m, struct eng_places *to, struct eng_place p)
{
    for (size_t i = 0; i < to->n; i++)
        if (to->v[i].parser == p.parser && to->v[i].lexer == p.lexer && !p.text) return;
    if (to->n >= MOST_PLACES)
        eng_match_fail(m, CN_ELIMIT);
    else if (cn_grow(&to->v, &to->cap, to->n + 1, sizeof *to->v))
        eng_match_fail(m, CN_ENOMEM);
    else
        to->v[to->n++] = p;
}

void eng_match_tick(struct eng_match *m)
{
    if (++m->ticks % 256 || !m->rx.keep_going || m->rx.keep_going(m->rx.arg)) return;
    eng_match_fail(m, CN_ECANCELLED);
}

/* A lexeme may be complete here; then the byte belongs to what follows. Nothing is complete at the
 * beginning of a lexeme: lexemes that may be empty are left out when frames are expanded. */
void eng_match_step_one(struct eng_match *m, const struct eng_place *at, uint8_t byte,
                        struct eng_places *to)
{
    struct eng_place p = *at, after;
    eng_match_tick(m);
    for (bool again = true; again && !m->code;) {
        uint32_t next = eng_lexer_next(m, p.lexer, byte);
        if (next != ENG_LEXER_DEAD) {
            struct eng_place n = {p.parser, next, p.text, p.from};
            if (m->parsers[p.parser].records) n.text = eng_keep_byte(m, p.text, byte);
            eng_match_add(m, to, n);
        }
        again = p.lexer != m->parsers[p.parser].lexer && m->lexers[p.lexer].ends &&
                eng_match_goto(m, &p, &after);
        p = after;
    }
}

bool eng_match_step(struct eng_match *m, const struct eng_places *from, uint8_t byte,
                    struct eng_places *to)
{
    to->n = 0;
    for (size_t i = 0; i < from->n && !m->code; i++)
        eng_match_step_one(m, &from->v[i], byte, to);
    return to->n && !m->code;
}

bool eng_match_accepts(struct eng_match *m, const struct eng_places *at)
{
    struct eng_place after;
    for (size_t i = 0; i < at->n && !m->code; i++) {
        const struct eng_place *p = &at->v[i];
        bool begins = p->lexer == m->parsers[p->parser].lexer;
        if (begins && m->parsers[p->parser].accepts) return true;
        if (!begins && m->lexers[p->lexer].ends && eng_match_goto(m, p, &after) &&
            m->parsers[after.parser].accepts)
            return true;
    }
    return false;
}

void eng_match_tidy(struct eng_match *m)
{
    bool texts = false;
    for (size_t i = 0; i < m->now.n; i++)
        texts |= m->now.v[i].text > 0;
    if (!texts) eng_match_unkeep(m, 1); /* nothing looks at them any more */
    if (eng_match_bytes(m) > m->max_bytes / 2) eng_match_compact(m);
}

size_t eng_match_bytes_in(struct eng_match *m, const char *s, size_t n)
{
    struct eng_places next = {0};
    size_t i = 0;
    for (; i < n && eng_match_step(m, &m->now, (uint8_t)s[i], &next); i++) {
        struct eng_places old = m->now;
        m->now = next;
        next = old;
        eng_match_tidy(m);
    }
    free(next.v);
    return i;
}
