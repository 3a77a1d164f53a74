/* rx: how many tokens a vocabulary needs for a short text of an expression. See rx.h.
 *
 * The text is read off the expression, without derivatives, so that names of members and other
 * fixed texts cost little. */
#include "engine/text/grammar/rx_impl.h"
#include "engine/text/grammar/trie.h"

enum { MOST_BYTES = 256, MOST_DEPTH = 100 };

struct text {
    char s[MOST_BYTES];
    size_t n;
};

static bool put(const struct eng_rx *r, uint32_t x, struct text *out, unsigned depth);

/* Printable bytes first. */
static bool put_byte(const struct eng_bytes *set, struct text *out)
{
    if (out->n == MOST_BYTES) return false;
    for (unsigned i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)(i + ' ');
        if (!eng_bytes_has(set, b)) continue;
        out->s[out->n++] = (char)b;
        return true;
    }
    return false;
}

static bool put_nearest(const struct eng_rx *r, const struct eng_rx_node *n, struct text *out,
                        unsigned depth)
{
    uint32_t best = ENG_RX_NONE, len = UINT32_MAX;
    for (uint32_t i = 0; i < n->b; i++) {
        uint32_t arg = eng_rx_args(r, n)[i], of = eng_rx_node(r, arg)->min_len;
        if (of >= len) continue;
        best = arg;
        len = of;
    }
    return best != ENG_RX_NONE && put(r, best, out, depth);
}

/* Appends a shortest text; false: it cannot be read off. */
static bool put(const struct eng_rx *r, uint32_t x, struct text *out, unsigned depth)
{
    for (;;) {
        const struct eng_rx_node *n = eng_rx_node(r, x);
        if (eng_rx_nullable(r, x)) return true;
        if (x < ENG_RX_FIRST || depth > MOST_DEPTH) return false;
        switch ((enum eng_rx_kind)n->kind) {
        case ENG_RX_SET:
            return put_byte(eng_rx_set_of(r, n), out);
        case ENG_RX_REPEAT:
            for (uint32_t i = 0; i < n->lo; i++)
                if (!put(r, n->a, out, depth + 1)) return false;
            return true;
        case ENG_RX_OR:
            return put_nearest(r, n, out, depth + 1);
        case ENG_RX_CAT:
            if (!put(r, n->a, out, depth + 1)) return false;
            x = n->b;
            continue;
        default:
            return false;
        }
    }
}

uint32_t eng_rx_tokens(struct eng_rx *r, uint32_t x, const struct eng_trie *t)
{
    uint32_t len = eng_rx_min_len(r, x), count = 0, id;
    struct text text = {.n = 0};
    if (!t || len < 2 || len > MOST_BYTES) return len;
    if (eng_rx_recall(r, x, ENG_MEMO_TOKENS, &count)) return count;
    bool read = put(r, x, &text, 0) && text.n == len;
    for (size_t at = 0, n; read && at < text.n; at += n, count++)
        read = (n = eng_trie_longest(t, text.s + at, text.n - at, &id));
    return eng_rx_keep(r, x, ENG_MEMO_TOKENS, read ? count : len);
}

/* ---- longest texts ----------------------------------------------------------------------------
 */

/* left: looks at parts; after them no bound is known. */
static uint32_t max_len(const struct eng_rx *r, uint32_t x, unsigned depth, unsigned *left)
{
    struct eng_rx_node n = *eng_rx_node(r, x);
    uint64_t len = 0;
    if (x == ENG_RX_EMPTY || x == ENG_RX_NONE) return 0;
    if (x == ENG_RX_ALL || depth > 200 || !*left) return UINT32_MAX;
    --*left;
    switch (n.kind) {
    case ENG_RX_SET:
        return 1;
    case ENG_RX_CAT:
        for (; len < UINT32_MAX; n = *eng_rx_node(r, x)) {
            bool chain = x >= ENG_RX_FIRST && n.kind == ENG_RX_CAT;
            len += max_len(r, chain ? n.a : x, depth + 1, left);
            if (!chain) break;
            x = n.b;
        }
        break;
    case ENG_RX_REPEAT:
        if (n.hi == ENG_RX_INF) return UINT32_MAX;
        len = (uint64_t)max_len(r, n.a, depth + 1, left) * n.hi;
        break;
    case ENG_RX_OR:
        for (uint32_t i = 0; i < n.b; i++)
            len = CN_MAX(len, max_len(r, eng_rx_args(r, &n)[i], depth + 1, left));
        break;
    default:
        return UINT32_MAX;
    }
    return (uint32_t)CN_MIN(len, (uint64_t)UINT32_MAX);
}

uint32_t eng_rx_max_len(const struct eng_rx *r, uint32_t x)
{
    unsigned left = 20000;
    return max_len(r, x, 0, &left);
}
