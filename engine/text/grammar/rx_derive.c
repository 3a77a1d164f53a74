/* rx: derivatives. See rx.h. */
#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { MOST_DEPTH = 1000 }; /* of recursion */

/* ---- cache ----------------------------------------------------------------------------------- */

static struct eng_rx_memo *memo_of(struct eng_rx *r, uint32_t x, uint16_t what)
{
    uint32_t h = (x * 0x9E3779B1u) ^ (what * 0x85EBCA6Bu);
    return &r->memo[(h ^ h >> 15) & (r->n_memo - 1)];
}

bool eng_rx_recall(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t *answer)
{
    const struct eng_rx_memo *m = memo_of(r, x, what);
    if (m->x != x || m->what != what) return false;
    *answer = m->answer;
    return true;
}

uint32_t eng_rx_keep(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t answer)
{
    if (!r->code) *memo_of(r, x, what) = (struct eng_rx_memo){x, what, answer};
    return answer;
}

/* ---- derivatives ----------------------------------------------------------------------------- */

static uint32_t derive(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth);

static uint32_t derive_list(struct eng_rx *r, const struct eng_rx_node *n, uint8_t byte,
                            unsigned depth)
{
    bool is_or = n->kind == ENG_RX_OR;
    uint32_t few[64], count = n->b, kept = 0;
    uint32_t *list = count <= CN_ARRAY_LEN(few) ? few : cn_malloc_array(count, sizeof *list);
    struct eng_rx_node copy = *n; /* the arena may move */
    if (!list) return eng_rx_fail(r, CN_ENOMEM);
    for (uint32_t i = 0; i < count && !r->code; i++) {
        uint32_t y = derive(r, eng_rx_args(r, &copy)[i], byte, depth);
        if (y == ENG_RX_NONE && is_or) continue;
        if (y == ENG_RX_NONE) { /* of an AND */
            if (list != few) free(list);
            return ENG_RX_NONE;
        }
        list[kept++] = y;
    }
    uint32_t out = is_or ? eng_rx_or_of(r, list, kept) : eng_rx_and_of(r, list, kept);
    if (list != few) free(list);
    return out;
}

/* Of a chain of parts, each as long as those before it may be empty. */
static uint32_t derive_cat(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth)
{
    uint32_t out = ENG_RX_NONE;
    for (;;) {
        struct eng_rx_node n = *eng_rx_node(r, x);
        bool chain = x >= ENG_RX_FIRST && n.kind == ENG_RX_CAT;
        uint32_t part = chain ? n.a : x, rest = chain ? n.b : ENG_RX_EMPTY;
        uint32_t y = eng_rx_cat(r, derive(r, part, byte, depth), rest);
        out = out == ENG_RX_NONE ? y : eng_rx_or(r, out, y);
        if (!chain || !eng_rx_nullable(r, part) || r->code) return out;
        x = rest;
    }
}

static uint32_t derive(struct eng_rx *r, uint32_t x, uint8_t byte, unsigned depth)
{
    struct eng_rx_node n;
    uint32_t y;
    if (x < ENG_RX_FIRST) return x == ENG_RX_ALL ? ENG_RX_ALL : ENG_RX_NONE;
    n = *eng_rx_node(r, x);
    if (n.kind == ENG_RX_SET)
        return eng_bytes_has(eng_rx_set_of(r, &n), byte) ? ENG_RX_EMPTY : ENG_RX_NONE;
    if (r->code) return ENG_RX_NONE;
    if (eng_rx_recall(r, x, byte, &y)) return y;
    if (depth > MOST_DEPTH || (r->max_work && r->work >= r->max_work))
        return eng_rx_fail(r, CN_ELIMIT);
    if (++r->work % 4096 == 0 && r->keep_going && !r->keep_going(r->arg))
        return eng_rx_fail(r, CN_ECANCELLED);
    switch (n.kind) {
    case ENG_RX_CAT:
        y = derive_cat(r, x, byte, depth + 1);
        break;
    case ENG_RX_REPEAT:
        y = derive(r, n.a, byte, depth + 1);
        if (y != ENG_RX_NONE)
            y = eng_rx_cat(
                r, y,
                eng_rx_repeat(r, n.a, n.lo ? n.lo - 1 : 0, n.hi == ENG_RX_INF ? n.hi : n.hi - 1));
        break;
    case ENG_RX_NOT:
        y = eng_rx_not(r, derive(r, n.a, byte, depth + 1));
        break;
    case ENG_RX_MULTIPLE:
        y = eng_rx_multiple_next(r, &n, byte);
        break;
    default:
        y = derive_list(r, &n, byte, depth + 1);
        break;
    }
    return r->code ? ENG_RX_NONE : eng_rx_keep(r, x, byte, y);
}

uint32_t eng_rx_derive(struct eng_rx *r, uint32_t x, uint8_t byte)
{
    return derive(r, x, byte, 0);
}

bool eng_rx_matches(struct eng_rx *r, uint32_t x, const char *s, size_t n)
{
    for (size_t i = 0; i < n && x != ENG_RX_NONE; i++)
        x = eng_rx_derive(r, x, (uint8_t)s[i]);
    return eng_rx_nullable(r, x);
}
