/* lexer: states of the lexer, each a set of lexemes and of what may follow of each. See match.h.
 *
 * A state is made when it is first reached, and so is each of its transitions: for all bytes of a
 * class at once, whose derivatives are the same. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { LEXERS = 2 };

const struct eng_lexeme *eng_match_lexeme(const struct eng_match *m, uint32_t lexeme)
{
    uint32_t n = m->ir->n_lexemes;
    return lexeme < n ? &m->ir->lexemes[lexeme] : &m->extra[lexeme - n];
}

uint32_t eng_match_extra(struct eng_match *m, uint32_t rx, bool spaced)
{
    struct eng_lexeme l = {.rx = rx, .spaced = spaced};
    if (rx == ENG_RX_NONE || !eng_rx_live(&m->rx, rx)) {
        if (m->rx.code) eng_match_fail(m, m->rx.code);
        return UINT32_MAX;
    }
    for (uint32_t i = m->n_extra; i--;)
        if (m->extra[i].rx == rx && m->extra[i].spaced == spaced) return m->ir->n_lexemes + i;
    l.full = spaced ? eng_rx_cat(&m->rx, m->ir->space, rx) : rx;
    if (m->rx.code || cn_grow(&m->extra, &m->cap[3], m->n_extra + (size_t)1, sizeof *m->extra)) {
        eng_match_fail(m, m->rx.code ? m->rx.code : CN_ENOMEM);
        return UINT32_MAX;
    }
    m->extra[m->n_extra] = l;
    return m->ir->n_lexemes + m->n_extra++;
}

static bool same_state(const struct eng_match *m, const struct eng_lexer_state *s,
                       const struct eng_lexer_state *wanted, const struct eng_lexing *pairs)
{
    size_t n = wanted->n;
    return s->hash == wanted->hash && s->n == n && s->begins == wanted->begins &&
           !memcmp(&m->lexings[s->first], pairs, n * sizeof *pairs);
}

static bool grow_heads(struct eng_match *m)
{
    uint32_t n = CN_MAX(m->n_heads[LEXERS] * 2, 64u), *heads = cn_calloc(n, sizeof *heads);
    if (!heads) return eng_match_fail(m, CN_ENOMEM), false;
    for (uint32_t i = ENG_LEXER_DEAD + 1; i < m->n_lexers; i++) {
        m->lexers[i].chain = heads[m->lexers[i].hash & (n - 1)];
        heads[m->lexers[i].hash & (n - 1)] = i;
    }
    free(m->heads[LEXERS]);
    m->heads[LEXERS] = heads;
    m->n_heads[LEXERS] = n;
    return true;
}

uint32_t eng_lexer_state(struct eng_match *m, const struct eng_lexing *pairs, size_t n, bool begins)
{
    struct eng_lexer_state s = {
        .first = m->n_lexings, .n = (uint32_t)n, .begins = begins, .hash = 2 * n + begins};
    if (m->rx.code) eng_match_fail(m, m->rx.code);
    if (m->code || !n) return ENG_LEXER_DEAD;
    for (size_t i = 0; i < n; i++) {
        s.hash = (s.hash ^ eng_rx_node(&m->rx, pairs[i].rx)->hash) * 0x9E3779B97F4A7C15u;
        s.hash ^= s.hash >> 29 ^ (uint64_t)pairs[i].lexeme << 20;
        s.ends |= eng_rx_nullable(&m->rx, pairs[i].rx);
    }
    if (!eng_heads_room(m, LEXERS, m->n_lexers) && !grow_heads(m)) return ENG_LEXER_DEAD;
    uint32_t *head = &m->heads[LEXERS][s.hash & (m->n_heads[LEXERS] - 1)];
    for (uint32_t i = *head; i; i = m->lexers[i].chain)
        if (same_state(m, &m->lexers[i], &s, pairs)) return i;
    if (cn_grow(&m->lexings, &m->cap[4], m->n_lexings + n, sizeof *m->lexings) ||
        cn_grow(&m->lexers, &m->cap[5], m->n_lexers + (size_t)1, sizeof *m->lexers))
        return eng_match_fail(m, CN_ENOMEM), ENG_LEXER_DEAD;
    if (eng_match_bytes(m) > m->max_bytes) return eng_match_fail(m, CN_ELIMIT), ENG_LEXER_DEAD;
    memcpy(&m->lexings[m->n_lexings], pairs, n * sizeof *pairs);
    m->n_lexings += (uint32_t)n;
    s.chain = *head;
    *head = m->n_lexers;
    m->lexers[m->n_lexers] = s;
    return m->n_lexers++;
}

static bool room_for_pairs(struct eng_match *m, size_t n)
{
    if (!cn_grow(&m->pairs, &m->cap_pairs, n, sizeof *m->pairs)) return true;
    eng_match_fail(m, CN_ENOMEM);
    return false;
}

uint32_t eng_lexer_start(struct eng_match *m, const uint32_t *lexemes, size_t n, bool begins)
{
    if (!room_for_pairs(m, n)) return ENG_LEXER_DEAD;
    for (size_t i = 0; i < n; i++) {
        const struct eng_lexeme *l = eng_match_lexeme(m, lexemes[i]);
        uint32_t rx = begins ? eng_rx_cat(&m->rx, m->lead, l->rx) : l->full;
        m->pairs[i] = (struct eng_lexing){lexemes[i], rx};
    }
    return eng_lexer_state(m, m->pairs, n, true);
}

/* Tables are by classes of bytes. A new set of bytes may split a class: they are made anew. */
static void drop_tables(struct eng_match *m)
{
    for (uint32_t i = ENG_LEXER_DEAD + 1; i < m->n_lexers; i++) {
        free(m->lexers[i].to);
        m->lexers[i].to = NULL;
    }
    m->n_tables = 0;
    m->n_classes = m->rx.n_classes;
}

/* A state's table: of the classes of bytes that may come, from the first to the last one. */
static bool make_table(struct eng_match *m, uint32_t state)
{
    struct eng_lexer_state *s = &m->lexers[state];
    struct eng_bytes may = {{0}};
    uint32_t first = 256, last = 0;
    uint64_t is[4] = {0}; /* classes */
    if (m->n_classes != m->rx.n_classes) drop_tables(m);
    if (s->to) return true;
    for (uint32_t i = 0; i < s->n; i++)
        eng_rx_first(&m->rx, m->lexings[s->first + i].rx, &may);
    for (unsigned k = 0; k < 4; k++)
        for (uint64_t bits = may.bits[k]; bits; bits &= bits - 1) {
            uint32_t c = m->rx.classes[64 * k + (unsigned)__builtin_ctzll(bits)];
            is[c >> 6] |= 1ull << (c & 63);
            first = CN_MIN(first, c);
            last = CN_MAX(last, c);
        }
    s->n_to = (uint16_t)(first <= last ? last - first + 1 : 0);
    s->from = (uint8_t)first;
    s->to = cn_malloc_array(CN_MAX(s->n_to, 1), sizeof *s->to);
    if (!s->to) return eng_match_fail(m, CN_ENOMEM), false;
    m->n_tables += s->n_to;
    for (uint32_t i = 0; i < s->n_to; i++)
        s->to[i] = is[(first + i) >> 6] >> ((first + i) & 63) & 1 ? 0 : ENG_LEXER_DEAD;
    return true;
}

static uint32_t make_next(struct eng_match *m, uint32_t state, uint8_t byte)
{
    struct eng_lexer_state *s = &m->lexers[state];
    size_t kept = 0;
    if (!make_table(m, state) || !room_for_pairs(m, s->n)) return ENG_LEXER_DEAD;
    uint32_t to = eng_lexer_known(m, state, byte);
    if (to) return to;
    for (uint32_t i = 0; i < s->n; i++) {
        struct eng_lexing l = m->lexings[s->first + i];
        l.rx = eng_rx_derive(&m->rx, l.rx, byte);
        if (l.rx != ENG_RX_NONE && eng_rx_live(&m->rx, l.rx)) m->pairs[kept++] = l;
    }
    to = eng_lexer_state(m, m->pairs, kept, false);
    if (m->code || !make_table(m, state)) return ENG_LEXER_DEAD; /* there may be more classes */
    s = &m->lexers[state];
    s->to[m->rx.classes[byte] - s->from] = to;
    return to;
}

uint32_t eng_lexer_next(struct eng_match *m, uint32_t state, uint8_t byte)
{
    uint32_t to = eng_lexer_known(m, state, byte);
    if (state <= ENG_LEXER_DEAD) return ENG_LEXER_DEAD;
    return to ? to : make_next(m, state, byte);
}
