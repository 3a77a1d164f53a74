/* pattern: repetitions without bound of parts that have assertions. See pattern_build.h.
 *
 * A place in the text is known by the kind of the character in front of it and of the next one. The
 * part leads from place to place; what leads from the last place on is the rest. These are linear
 * equations between languages, one for each kind of place, and they are solved by elimination. */
#include "engine/text/grammar/pattern_build.h"

enum { KINDS = ENG_SIDES - 1, PLACES = KINDS * KINDS };

/* lead[u][v]: texts from place u to place v; ends[u]: texts from u to the end. */
struct equations {
    uint32_t lead[PLACES][PLACES];
    uint32_t ends[PLACES][ENG_REST_MOST];
};

static unsigned place_of(unsigned before, unsigned next)
{
    return (before - 1) * KINDS + (next - 1);
}
static unsigned column_of(unsigned before, unsigned next)
{
    return before * ENG_SIDES + next;
}

static uint32_t or_cat(struct eng_rx *r, uint32_t x, uint32_t a, uint32_t b)
{
    return eng_rx_or(r, x, eng_rx_cat(r, a, b));
}

/* What one iteration matches between places. `one` is symbolic. */
static void iteration(struct eng_pat_build *b, uint32_t node, struct eng_rest *one)
{
    struct eng_rest here = {{{0}}};
    unsigned columns = b->columns;
    b->columns = ENG_REST_MOST;
    for (unsigned q = 0; q < ENG_SIDES; q++)
        for (unsigned f = 0; f < ENG_SIDES; f++)
            if (b->has[q] && b->has[f]) here.x[q][column_of(q, f)] = ENG_RX_EMPTY;
    eng_pat_build(b, node, &here, one);
    b->columns = columns;
}

/* The equations of the place with q before it and f next. Iterations that match nothing lead
 * nowhere. */
static void set_up(struct eng_pat_build *b, const struct eng_rest *one, const struct eng_rest *rest,
                   unsigned q, unsigned f, struct equations *e)
{
    unsigned u = place_of(q, f);
    uint32_t begins = eng_rx_cat(b->r, b->side_rx[f], ENG_RX_ALL);
    for (unsigned i = 0; i < b->columns; i++)
        e->ends[u][i] = eng_pat_filter(b, rest->x[q][i], i, 1u << f);
    for (unsigned q2 = 1; q2 < ENG_SIDES; q2++)
        for (unsigned f2 = 0; f2 < ENG_SIDES && b->has[q2]; f2++) {
            uint32_t x = eng_rx_and(b->r, one->x[q][column_of(q2, f2)], begins);
            if (!b->has[f2] || x == ENG_RX_NONE || !eng_rx_live(b->r, x)) continue;
            if (f2) {
                e->lead[u][place_of(q2, f2)] = x;
                continue;
            }
            for (unsigned i = 0; i < b->columns; i++) {
                uint32_t end = eng_pat_filter(b, rest->x[q2][i], i, 1u << ENG_SIDE_EDGE);
                e->ends[u][i] = or_cat(b->r, e->ends[u][i], x, end);
            }
        }
}

/* Afterwards ends[u] alone is all that leads from u to the end. */
static void solve(struct eng_pat_build *b, struct equations *e)
{
    struct eng_rx *r = b->r;
    for (unsigned k = 0; k < PLACES && !r->code; k++) {
        uint32_t again = eng_rx_repeat(r, e->lead[k][k], 0, ENG_RX_INF);
        e->lead[k][k] = ENG_RX_NONE;
        for (unsigned v = 0; v < PLACES; v++)
            e->lead[k][v] = eng_rx_cat(r, again, e->lead[k][v]);
        for (unsigned i = 0; i < b->columns; i++)
            e->ends[k][i] = eng_rx_cat(r, again, e->ends[k][i]);
        for (unsigned u = 0; u < PLACES; u++) {
            uint32_t to = e->lead[u][k];
            if (u == k || to == ENG_RX_NONE) continue;
            e->lead[u][k] = ENG_RX_NONE;
            for (unsigned v = 0; v < PLACES; v++)
                e->lead[u][v] = or_cat(r, e->lead[u][v], to, e->lead[k][v]);
            for (unsigned i = 0; i < b->columns; i++)
                e->ends[u][i] = or_cat(r, e->ends[u][i], to, e->ends[k][i]);
        }
    }
}

void eng_pat_loop(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                  struct eng_rest *out)
{
    struct eng_rest one = {{{0}}};
    struct equations e = {{{0}}, {{0}}};
    iteration(b, node, &one);
    for (unsigned q = 1; q < ENG_SIDES; q++)
        for (unsigned f = 1; f < ENG_SIDES; f++)
            if (b->has[q] && b->has[f]) set_up(b, &one, rest, q, f, &e);
    solve(b, &e);
    *out = *rest; /* no iteration */
    for (unsigned p = 0; p < ENG_SIDES && !b->r->code; p++)
        for (unsigned q = 1; q < ENG_SIDES; q++)
            for (unsigned f = 0; f < ENG_SIDES; f++) {
                uint32_t x = one.x[p][column_of(q, f)];
                for (unsigned i = 0; i < b->columns && x != ENG_RX_NONE; i++) {
                    uint32_t end = f ? e.ends[place_of(q, f)][i]
                                     : eng_pat_filter(b, rest->x[q][i], i, 1u << ENG_SIDE_EDGE);
                    out->x[p][i] = or_cat(b->r, out->x[p][i], x, end);
                }
            }
}
