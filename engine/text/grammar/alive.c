/* alive: whether an answer can still differ from what came before, where it must: items of an array
 * without equal items, and names of an object's members. See match.h.
 *
 * From a lexeme of few texts those that came before are taken away. One of many texts stays as it
 * is, so that its states are the same however much came before; a text of it, like an item with
 * parts, is looked at when it is complete. That is too late where nothing else could have been
 * written. So the tokens that a mask allows are looked at there: most lead to more texts than there
 * are to avoid, and the few others are followed to their ends. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum {
    FEW_TEXTS = 256,    /* a lexeme of so many texts is used without those that came before */
    MOST_STATES = 300,  /* of the lexer, that are visited to count texts */
    MOST_COUNTED = 200, /* bytes of texts that are counted */
    SPELLINGS = 4,      /* a number may be written in several ways */
    MOST_STEPS = 4000,  /* of a search; behind them it counts as successful */
    MOST_DEPTH = 400,
};

static bool is_blank(unsigned byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* ---- how many texts -------------------------------------------------------------------------- */

/* Texts without white space from a lexer's state, at most ENG_TEXTS_MANY, at least 1; a state that
 * comes back to itself has many. ENG_TEXTS_UNKNOWN: too many states. */
static uint32_t count(struct eng_match *m, uint32_t lexer, unsigned depth, uint32_t *effort)
{
    struct eng_lexer_state *l = &m->lexers[lexer];
    uint32_t n = l->ends, next;
    if (l->texts) return l->texts;
    for (uint32_t i = 0; i < l->n; i++)
        if (eng_rx_has_two(&m->rx, m->lexings[l->first + i].rx, m->ir->any_char) ||
            eng_rx_has_two(&m->rx, m->lexings[l->first + i].rx, m->ir->any_spelled))
            return l->texts = ENG_TEXTS_MANY;
    if (depth > MOST_COUNTED || !*effort) return ENG_TEXTS_UNKNOWN;
    --*effort;
    l->texts = ENG_TEXTS_MANY; /* if it is met again */
    for (unsigned b = 0; b < 256 && n < ENG_TEXTS_MANY && !m->code; b++) {
        next = is_blank(b) ? ENG_LEXER_DEAD : eng_lexer_next(m, lexer, (uint8_t)b);
        if (next == ENG_LEXER_DEAD) continue;
        uint32_t more = count(m, next, depth + 1, effort);
        n = more == ENG_TEXTS_UNKNOWN ? more : CN_MIN(n + more, (uint32_t)ENG_TEXTS_MANY);
        if (n == ENG_TEXTS_UNKNOWN) break;
    }
    n = CN_MAX(n, 1u);
    m->lexers[lexer].texts = n == ENG_TEXTS_UNKNOWN ? 0 : n;
    return n;
}

static uint32_t texts_from(struct eng_match *m, uint32_t lexer)
{
    uint32_t effort = MOST_STATES, n = count(m, lexer, 0, &effort);
    m->lexers[lexer].texts = n; /* an unknown number stays so */
    return n;
}

bool eng_lexeme_is_rich(struct eng_match *m, uint32_t lexeme)
{
    uint32_t start = eng_lexer_start(m, &lexeme, 1, false);
    return start != ENG_LEXER_DEAD && texts_from(m, start) == ENG_TEXTS_MANY;
}

static bool is_enough(uint32_t texts, uint32_t taken)
{
    return texts != ENG_TEXTS_UNKNOWN && texts / SPELLINGS > taken;
}

bool eng_match_keeps_lexeme(struct eng_match *m, uint32_t list, uint32_t lexeme)
{
    enum { MORE = 1000 }; /* that a token could add to an unknown list */
    uint32_t start = eng_lexer_start(m, &lexeme, 1, false);
    uint32_t texts = start == ENG_LEXER_DEAD ? 0 : texts_from(m, start);
    bool few = texts <= FEW_TEXTS, unknown = list == ENG_LIST_UNKNOWN;
    if (!few && is_enough(texts, unknown ? m->n_seen + MORE : m->n_seen)) return true;
    if (unknown && (few || m->probing)) m->doubt = ENG_UNSURE;
    if (few && !unknown) m->used = true;
    return !few || unknown;
}

/* ---- where it matters ------------------------------------------------------------------------ */

/* An item with parts must differ as a whole. A comma is followed by an item; that one of a single
 * lexeme is left was seen before the comma was offered. */
static bool must_differ(const struct eng_match *m, const struct eng_frame *f, bool top,
                        bool without)
{
    if (f->kind != ENG_FRAME_ARRAY || f->seen <= ENG_LIST_UNKNOWN) return false;
    if (f->phase == ENG_PHASE_ITEM) return !top || !without;
    return f->phase == ENG_PHASE_COMMA && top && !eng_array_is_simple(m, f);
}

/* Behind what is rich nothing is in the way of what is around it. */
uint32_t eng_match_taken(struct eng_match *m, uint32_t lexeme, uint32_t frame)
{
    bool without = lexeme >= m->ir->n_lexemes; /* what came before was taken away from it */
    uint32_t most = 0;
    for (bool top = true; frame; frame = m->frames[frame].parent, top = false) {
        const struct eng_frame *f = &m->frames[frame];
        bool named = top && f->kind == ENG_FRAME_OBJECT && f->phase == ENG_PHASE_NAMED;
        if (must_differ(m, f, top, without) || (named && !without && f->seen > ENG_LIST_UNKNOWN))
            most = CN_MAX(most, eng_list_length(m, f->seen));
        if (!f->inside || eng_frame_is_rich(m, frame)) break;
    }
    return most;
}

/* The least of all ways to go on at a place. */
static uint32_t least_taken(struct eng_match *m, uint32_t parser, uint32_t lexer)
{
    const struct eng_parser_state *p = &m->parsers[parser];
    const struct eng_item_of *t = &m->item_ofs[p->first];
    uint32_t least = UINT32_MAX, first = m->lexers[lexer].first, n_lexings = m->lexers[lexer].n;
    if (p->doubt == ENG_SURE) return 0;
    for (uint32_t i = 0, k = 0; i < n_lexings && least; i++) {
        uint32_t lexeme = m->lexings[first + i].lexeme;
        while (k < p->n && t[k].lexeme < lexeme)
            k++;
        for (; k < p->n && t[k].lexeme == lexeme; k++) {
            uint32_t n = eng_match_taken(m, lexeme, t[k].frame);
            least = CN_MIN(least, n);
        }
    }
    return least == UINT32_MAX ? 0 : least;
}

bool eng_match_is_free(struct eng_match *m, uint32_t parser, uint32_t lexer)
{
    uint32_t taken = least_taken(m, parser, lexer), texts;
    if (!taken) return true;
    texts = texts_from(m, lexer);
    if (texts < ENG_TEXTS_MANY) m->used = true;
    return is_enough(texts, taken);
}

static bool is_free(struct eng_match *m, const struct eng_places *at)
{
    for (size_t i = 0; i < at->n; i++)
        if (eng_match_is_free(m, at->v[i].parser, at->v[i].lexer)) return true;
    return false;
}

/* ---- lengths --------------------------------------------------------------------------------- */

static uint32_t least_bytes(struct eng_match *m, uint32_t lexer)
{
    const struct eng_lexer_state *l = &m->lexers[lexer];
    uint32_t best = UINT32_MAX, first = l->first, n = l->n;
    for (uint32_t i = 0; i < n; i++)
        best = CN_MIN(best, eng_rx_min_len(&m->rx, m->lexings[first + i].rx));
    return best;
}

/* Whether the lexeme has a text of at most `most` more bytes behind which the answer goes on. */
static bool is_near(struct eng_match *m, const struct eng_place *at, uint32_t most, uint32_t *steps)
{
    struct eng_place to, after;
    bool begins = at->lexer == m->parsers[at->parser].lexer;
    if (!begins && m->lexers[at->lexer].ends && eng_match_goto(m, at, &after) &&
        eng_match_alive(m, &(struct eng_places){&after, 1, 1}))
        return true;
    for (unsigned i = 0; i < 256 && most && *steps && !m->code; i++) {
        uint8_t b = (uint8_t)(i + '!'); /* a quote soon, white space last */
        to = *at;
        to.lexer = eng_lexer_next(m, at->lexer, b);
        if (to.lexer == ENG_LEXER_DEAD || least_bytes(m, to.lexer) > most - 1) continue;
        --*steps;
        eng_match_tick(m);
        to.text = eng_keep_byte(m, at->text, b);
        if (is_near(m, &to, most - 1, steps)) return true;
    }
    return false;
}

uint32_t eng_match_farther(struct eng_match *m, const struct eng_place *at, uint32_t only)
{
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    struct eng_lexing one = m->lexings[l->first + only];
    struct eng_place place = *at;
    uint32_t kept = m->n_kept, more = 0, steps = MOST_STEPS;
    bool walking = m->walking;
    place.lexer = eng_lexer_state(m, &one, 1, l->begins);
    if (m->code || !least_taken(m, place.parser, place.lexer)) return 0;
    uint32_t least = least_bytes(m, place.lexer);
    m->walking = m->used = true;
    while (more < ENG_MOST_FARTHER && !m->code && !is_near(m, &place, least + more, &steps))
        more++;
    m->walking = walking;
    eng_match_unkeep(m, kept);
    return more;
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
    eng_match_tick(m);
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
    bool found = depth > MOST_DEPTH;
    if (!found) spread(m, from, &all);
    for (unsigned i = 0; i < 256 + ENDERS && !found && !m->code; i++) {
        int byte = byte_at(i);
        if (byte < 0 || (is_blank((unsigned)byte) && !spot.in_string)) continue;
        if (!step(m, &all, (uint8_t)byte, &to)) continue;
        found = ++s->steps > MOST_STEPS || is_free(m, &to);
        if (found) break;
        for (size_t k = 0; k < to.n; k++)
            s->unsure |= m->parsers[to.v[k].parser].doubt == ENG_UNSURE;
        found = leads_on(s, &to, after(spot, (uint8_t)byte), depth + 1);
    }
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
    uint32_t kept = m->n_kept;
    struct spot spot;
    if (is_free(m, at)) return true;
    m->used = true;
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
    eng_match_unkeep(m, kept);
    return alive;
}
