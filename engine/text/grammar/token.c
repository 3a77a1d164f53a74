/* token: reads references to tokens. See token.h. */
#include "engine/text/grammar/token.h"

#include <stdlib.h>

enum { MOST_TEXT = 256 }; /* bytes of a token's name */

struct reading {
    struct eng_bnf *b;
    const struct eng_vocab *vocab;
    size_t from;           /* of the reference */
    struct eng_ranges ids; /* ranges of ids */
    bool negated;
};

/* ---- expressions ----------------------------------------------------------------------------- */

/* The four bytes from `shift` down, from lo to hi. */
static uint32_t id_bytes(struct eng_rx *rx, uint32_t lo, uint32_t hi, int shift)
{
    if (shift < 0) return ENG_RX_EMPTY;
    uint8_t l = (uint8_t)(lo >> shift), h = (uint8_t)(hi >> shift);
    uint32_t rest = shift ? (1u << shift) - 1 : 0, parts[3], n = 0;
    if (l == h) return eng_rx_cat(rx, eng_rx_byte(rx, l, l), id_bytes(rx, lo, hi, shift - 8));
    bool low_whole = !(lo & rest), high_whole = (hi & rest) == rest;
    if (!low_whole)
        parts[n++] = eng_rx_cat(rx, eng_rx_byte(rx, l, l), id_bytes(rx, lo, lo | rest, shift - 8));
    if (!high_whole)
        parts[n++] = eng_rx_cat(rx, eng_rx_byte(rx, h, h), id_bytes(rx, hi & ~rest, hi, shift - 8));
    l += !low_whole;
    h -= !high_whole;
    if (l <= h)
        parts[n++] = eng_rx_cat(rx, eng_rx_byte(rx, l, h), id_bytes(rx, 0, rest, shift - 8));
    return eng_rx_or_of(rx, parts, n);
}

static uint32_t control_range(struct eng_rx *rx, uint32_t lo, uint32_t hi)
{
    return eng_rx_cat(rx, eng_rx_byte(rx, ENG_TOKEN_MARK, ENG_TOKEN_MARK),
                      id_bytes(rx, lo, hi, 24));
}

static bool is_control(const struct reading *r, uint32_t id)
{
    return !r->vocab || eng_vocab_is_control(r->vocab, id);
}

/* A run of ids of the ranges, all control tokens, or one that is not. */
struct run {
    uint32_t from, to;
    bool control;
};

/* Finds the first run at or after a place, and moves the place past it. False: no more. */
static bool next_run(const struct reading *r, size_t *range, uint32_t *id, struct run *out)
{
    if (*range == r->ids.n) return false;
    uint32_t last = r->ids.v[*range].to, from = CN_MAX(*id, r->ids.v[*range].from), to = from;
    *out = (struct run){.from = from, .control = is_control(r, from)};
    if (!r->vocab) to = last;
    while (out->control && to < last && is_control(r, to + 1))
        to++;
    out->to = to;
    *id = to + 1; /* no id is UINT32_MAX */
    *range += to == last;
    return true;
}

static uint32_t text_of(const struct reading *r, uint32_t id)
{
    struct eng_str s = eng_vocab_piece(r->vocab, id, true);
    return eng_rx_literal(&r->b->ir->rx, s.p, s.n);
}

/* Any one token of the ranges. */
static uint32_t one_of(struct reading *r)
{
    struct eng_rx *rx = &r->b->ir->rx;
    uint32_t out = ENG_RX_NONE, id = 0;
    size_t range = 0;
    for (struct run a; next_run(r, &range, &id, &a);)
        out = eng_rx_or(rx, out, a.control ? control_range(rx, a.from, a.to) : text_of(r, a.from));
    return out;
}

/* Any number of tokens but those of the ranges: text and control tokens. */
static uint32_t none_of(struct reading *r)
{
    struct eng_rx *rx = &r->b->ir->rx;
    uint32_t any = eng_spell_any(rx, ENG_SPELL_RAW), next = 0, id = 0, out;
    size_t range = 0;
    struct run a;
    while (next_run(r, &range, &id, &a)) { /* ascending; in between are the others */
        if (!a.control) continue;
        if (a.from > next) any = eng_rx_or(rx, any, control_range(rx, next, a.from - 1));
        next = a.to + 1;
    }
    any = eng_rx_or(rx, any, control_range(rx, next, UINT32_MAX));
    out = any = eng_rx_repeat(rx, any, 0, ENG_RX_INF);
    for (range = 0, id = 0; next_run(r, &range, &id, &a);) {
        if (a.control) continue;
        uint32_t with = eng_rx_cat(rx, any, eng_rx_cat(rx, text_of(r, a.from), any));
        out = eng_rx_and(rx, out, eng_rx_not(rx, with));
    }
    return out;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void add_ids(struct reading *r, uint32_t from, uint32_t to)
{
    struct eng_source *s = &r->b->src;
    if (from > to)
        eng_source_fail(s, r->from, CN_EINVAL, "a range of tokens that runs backwards");
    else if (r->vocab && to >= eng_vocab_size(r->vocab))
        eng_source_fail(s, r->from, CN_EINVAL, "there is no token %u: the vocabulary has %zu", to,
                        eng_vocab_size(r->vocab));
    else if (eng_ranges_add(&r->ids, from, to))
        eng_source_stop(s, CN_ENOMEM, "out of memory");
    for (uint32_t id = from; r->vocab && from < to && id <= to && !s->rc; id++)
        if (!eng_vocab_is_control(r->vocab, id))
            eng_source_fail(s, r->from, CN_EUNSUPP, "token %u of the range is not a control token",
                            id);
}

/* After "<[". */
static void read_ids(struct reading *r, bool lists)
{
    struct eng_source *s = &r->b->src;
    uint32_t from, to;
    if (lists && eng_source_take(s, "*")) {
        eng_source_fail(s, r->from, CN_EUNSUPP, "any one token, `<[*]>`, is not supported");
        return;
    }
    if (lists && eng_source_take(s, "^")) r->negated = true;
    do {
        if (!eng_source_number(s, &from)) return;
        to = from;
        if (lists && eng_source_take(s, "-") && !eng_source_number(s, &to)) return;
        add_ids(r, from, to);
    } while (lists && eng_source_take(s, ",") && !s->rc);
    if (!eng_source_take(s, "]>"))
        eng_source_fail(s, s->at, CN_EINVAL, "expected `]>` after the id of a token");
}

/* <text>: the token that the file writes with the angle brackets. */
static void read_text(struct reading *r)
{
    struct eng_source *s = &r->b->src;
    size_t n = 1;
    while (n < MOST_TEXT && eng_source_peek(s, n) != '>' && (uint8_t)eng_source_peek(s, n) > ' ')
        n++;
    if (eng_source_peek(s, n) != '>') {
        eng_source_fail(s, r->from, CN_EINVAL,
                        "expected a token, `<text>` or `<[id]>`, at most %d bytes without blanks",
                        MOST_TEXT);
        return;
    }
    n++;
    const char *text = s->text + s->at;
    int64_t id = r->vocab ? eng_vocab_find(r->vocab, text, n) : -1;
    if (!r->vocab)
        eng_source_fail(s, r->from, CN_EUNSUPP,
                        "the token %.*s by its text: there is no vocabulary to look it up in",
                        (int)n, text);
    else if (id < 0)
        eng_source_fail(s, r->from, CN_EINVAL, "the vocabulary has no token %.*s", (int)n, text);
    else
        add_ids(r, (uint32_t)id, (uint32_t)id);
    s->at += n;
}

uint32_t eng_token_node(struct eng_bnf *b, const struct eng_vocab *vocab, bool lists, bool negated)
{
    struct reading r = {.b = b, .vocab = vocab, .from = b->src.at - negated, .negated = negated};
    struct eng_source *s = &b->src;
    uint32_t x = ENG_RX_NONE;
    if (eng_source_take(s, "<["))
        read_ids(&r, lists);
    else
        read_text(&r);
    eng_ranges_tidy(&r.ids);
    if (!s->rc) x = r.negated ? none_of(&r) : one_of(&r);
    eng_ranges_fini(&r.ids);
    return r.negated ? eng_bnf_tokens(b, x, r.from) : eng_bnf_rx(b, x, 32, 8);
}
