/* alive: whether an item of an array without equal items can still become a new value. See match.h.
 *
 * The matcher sees that an item was there before when the item is complete, which is too late where
 * nothing else could have been written. So the tokens that a mask allows are looked at within such
 * items: most lead to more texts than there are values to avoid, and the few others are followed to
 * their ends. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum {
    MOST_TEXTS = 4095, /* that are counted of a lexer's state */
    MOST_STEPS = 4000, /* of a search; behind them it counts as successful */
    MOST_DEPTH = 400,
};

/* ---- where it matters ------------------------------------------------------------------------ */

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static uint32_t length_of(const struct eng_match *m, uint32_t list)
{
    uint32_t n = 0;
    for (; list; list = m->cells[list].rest)
        n++;
    return n;
}

/* The values that an item above this frame must differ from; 0: there are none, or they are not
 * known. A comma in such an array is followed by an item. */
static uint32_t values_below(const struct eng_match *m, uint32_t frame)
{
    uint32_t most = 0;
    for (bool top = true; frame; frame = m->frames[frame].parent, top = false) {
        const struct eng_frame *f = &m->frames[frame];
        if (f->kind != ENG_FRAME_ARRAY || f->seen <= ENG_LIST_UNKNOWN) continue;
        if (f->phase == ENG_PHASE_ITEM || (top && f->phase == ENG_PHASE_COMMA))
            most = CN_MAX(most, length_of(m, f->seen));
    }
    return most;
}

/* The same behind a lexeme of a place. An item of one lexeme is drawn without the values that were
 * there. */
static uint32_t values_behind(const struct eng_match *m, const struct eng_place *at, uint32_t frame)
{
    const struct eng_frame *f = frame ? &m->frames[frame] : NULL;
    bool one =
        f && f->kind == ENG_FRAME_ARRAY && f->phase == ENG_PHASE_ITEM && at->from == f->start;
    return values_below(m, one ? f->parent : frame);
}

/* The least of all ways to go on at a place. */
static uint32_t values_to_avoid(const struct eng_match *m, const struct eng_place *at)
{
    const struct eng_parser_state *p = &m->parsers[at->parser];
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0, k = 0; i < l->n && least; i++) {
        uint32_t lexeme = m->lexings[l->first + i].lexeme;
        while (k < p->n && m->item_ofs[p->first + k].lexeme < lexeme)
            k++;
        for (; k < p->n && m->item_ofs[p->first + k].lexeme == lexeme; k++) {
            uint32_t n = values_behind(m, at, m->item_ofs[p->first + k].frame);
            least = CN_MIN(least, n);
        }
    }
    return least == UINT32_MAX ? 0 : least;
}

/* Texts without blanks: white space makes no other value. */
static uint32_t no_blanks(struct eng_rx *r)
{
    struct eng_bytes bytes = {{0}};
    for (unsigned b = 0; b < 256; b++)
        if (!is_blank((uint8_t)b)) eng_bytes_add(&bytes, (uint8_t)b, (uint8_t)b);
    return eng_rx_repeat(r, eng_rx_set(r, &bytes), 0, ENG_RX_INF);
}

/* Texts without blanks that may follow; MOST_TEXTS + 1: more. */
static uint32_t texts_of(struct eng_match *m, uint32_t lexer)
{
    uint64_t all = 0, n;
    if (m->lexers[lexer].n_texts) return m->lexers[lexer].n_texts - 1;
    for (uint32_t i = 0; i < m->lexers[lexer].n && all <= MOST_TEXTS; i++) {
        uint32_t rx = m->lexings[m->lexers[lexer].first + i].rx;
        rx = eng_rx_and(&m->rx, rx, no_blanks(&m->rx));
        all += eng_rx_count(&m->rx, rx, MOST_TEXTS, &n) ? n : MOST_TEXTS + 1;
    }
    if (m->rx.code) eng_match_fail(m, m->rx.code);
    all = CN_MIN(all, (uint64_t)MOST_TEXTS + 1);
    m->lexers[lexer].n_texts = (uint32_t)all + 1;
    return (uint32_t)all;
}

/* Whether a look at the places is enough. */
static bool is_free(struct eng_match *m, const struct eng_places *at)
{
    for (size_t i = 0; i < at->n; i++) {
        uint32_t n = values_to_avoid(m, &at->v[i]);
        if (!n || texts_of(m, at->v[i].lexer) > n) return true;
    }
    return false;
}

/* ---- the search ------------------------------------------------------------------------------ */

struct search {
    struct eng_match *m;
    uint32_t steps;
    bool unsure; /* items were met that might be equal: a list of values was not known */
};
/* Where a JSON text is. */
struct spot { bool in_string, escaped; };

static struct spot after(struct spot s, uint8_t byte)
{
    if (s.escaped) return (struct spot){true, false};
    if (s.in_string && byte == '\\') return (struct spot){true, true};
    return (struct spot){byte == '"' ? !s.in_string : s.in_string, false};
}

/* Bytes in the order in which they are tried: those that end things first. -1: it had its turn. */
static const char enders[] = "\"}],:";
enum { ENDERS = sizeof enders - 1 };

static int byte_at(unsigned i)
{
    if (i < ENDERS) return (uint8_t)enders[i];
    return memchr(enders, (int)(i - ENDERS), ENDERS) ? -1 : (int)(i - ENDERS);
}

/* These places, and those behind the lexemes that may be complete there: what eng_match_step looks
 * at for each byte anew. */
static void spread(struct eng_match *m, const struct eng_places *from, struct eng_places *to)
{
    for (size_t i = 0; i < from->n && !m->code; i++) {
        struct eng_place p = from->v[i], after;
        for (bool again = true; again && !m->code; p = after) {
            if (cn_grow(&to->v, &to->cap, to->n + 1, sizeof *to->v))
                eng_match_fail(m, CN_ENOMEM);
            else
                to->v[to->n++] = p;
            again = p.lexer != m->parsers[p.parser].lexer && m->lexers[p.lexer].ends &&
                    eng_match_goto(m, &p, &after);
        }
    }
}

static bool step(struct eng_match *m, const struct eng_places *spread, uint8_t byte,
                 struct eng_places *to)
{
    to->n = 0;
    for (size_t i = 0; i < spread->n && !m->code; i++) {
        struct eng_place p = spread->v[i];
        p.lexer = eng_lexer_next(m, p.lexer, byte);
        if (p.lexer == ENG_LEXER_DEAD) continue;
        p.text = m->parsers[p.parser].records ? eng_keep_byte(m, p.text, byte) : p.text;
        eng_match_add(m, to, p);
    }
    return to->n && !m->code;
}

static bool leads_on(struct search *s, const struct eng_places *from, struct spot spot,
                     unsigned depth)
{
    struct eng_match *m = s->m;
    struct eng_places all = {0}, to = {0};
    uint32_t kept = m->n_kept;
    bool found = depth > MOST_DEPTH;
    if (!found) spread(m, from, &all);
    for (unsigned i = 0; i < 256 + ENDERS && !found && !m->code; i++) {
        int byte = byte_at(i);
        if (byte < 0 || (is_blank((uint8_t)byte) && !spot.in_string)) continue;
        m->n_kept = kept;
        if (!step(m, &all, (uint8_t)byte, &to)) continue;
        found = ++s->steps > MOST_STEPS || is_free(m, &to);
        if (found) break;
        for (size_t k = 0; k < to.n; k++)
            s->unsure |= m->parsers[to.v[k].parser].unsure;
        found = leads_on(s, &to, after(spot, (uint8_t)byte), depth + 1);
    }
    m->n_kept = kept;
    free(all.v);
    free(to.v);
    return found;
}

static struct spot spot_of(struct eng_match *m, uint32_t text)
{
    struct spot spot = {false, false};
    struct cn_buf b;
    cn_buf_init(&b, 0);
    int rc = eng_kept_text(m, text, 0, &b);
    if (rc) eng_match_fail(m, rc);
    for (size_t i = 0; i < b.len; i++)
        spot = after(spot, (uint8_t)b.data[i]);
    cn_buf_fini(&b);
    return spot;
}

bool eng_match_between(struct eng_match *m, const struct eng_places *at)
{
    /* in other spellings no comma comes after white space: then an array has to end */
    return at->n && m->ir->spelling == ENG_SPELL_JSON_ANY && !spot_of(m, at->v[0].text).in_string;
}

bool eng_match_alive(struct eng_match *m, const struct eng_places *at)
{
    bool walking = m->walking, alive = true;
    struct spot spot;
    if (is_free(m, at)) return true;
    spot = spot_of(m, at->v[0].text);
    /* Values that come up are not kept, unless that leaves something open. */
    struct search s = {.m = m};
    m->walking = true;
    alive = leads_on(&s, at, spot, 0);
    if (alive && s.unsure) {
        s = (struct search){.m = m};
        m->walking = false;
        alive = leads_on(&s, at, spot, 0);
    }
    m->walking = walking;
    return alive;
}
