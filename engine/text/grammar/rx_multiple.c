/* rx: digits that complete a multiple of a number. See rx.h.
 *
 * The automaton over remainders is not written down: a node is a remainder, and the next one is
 * computed. Whether any text belongs to it, and how short one can be, is arithmetic: if the known
 * digits leave `rest`, n more digits can complete a multiple of m exactly if the n digits
 * -rest 10^n mod m are enough for it, that is, below 10^n. */
#include "engine/text/grammar/rx_impl.h"

typedef unsigned __int128 wide;

static struct eng_multiple unpack(const struct eng_rx_node *n)
{
    bool fraction = n->hi >> 31;
    return (struct eng_multiple){
        .modulus = n->a | (uint64_t)(n->b & 0xFFFF) << 32,
        .rest = n->lo | (uint64_t)(n->b >> 16) << 32,
        .scale = n->hi & 63,
        .point = n->hi >> 6 & 1,
        .lo = fraction ? 0 : n->hi >> 7 & 511,
        .hi = fraction ? 0 : n->hi >> 16 & 511,
        .read = fraction ? n->hi >> 7 & 63 : 0,
        .fraction = fraction,
    };
}

static struct eng_rx_node pack(const struct eng_multiple *m)
{
    uint32_t counts = m->fraction ? m->read : m->lo | (uint32_t)m->hi << 9;
    uint32_t point = m->point || m->fraction;
    return (struct eng_rx_node){
        .kind = ENG_RX_MULTIPLE,
        .plain = true,
        .live = ENG_RX_LIVE,
        .a = (uint32_t)m->modulus,
        .b = (uint32_t)(m->modulus >> 32) | (uint32_t)(m->rest >> 32) << 16,
        .lo = (uint32_t)m->rest,
        .hi = m->scale | point << 6 | counts << 7 | (uint32_t)m->fraction << 31,
    };
}

/* What an integer must be a multiple of, so that it is one of modulus after n more zeros. */
static uint64_t before_zeros(uint64_t modulus, unsigned n)
{
    for (unsigned i = 0; i < n && modulus % 2 == 0; i++)
        modulus /= 2;
    for (unsigned i = 0; i < n && modulus % 5 == 0; i++)
        modulus /= 5;
    return modulus;
}

static uint64_t power_of_ten(unsigned n, uint64_t modulus)
{
    wide out = 1 % modulus, base = 10 % modulus;
    for (; n; n >>= 1, base = base * base % modulus)
        if (n & 1) out = out * base % modulus;
    return (uint64_t)out;
}

/* Whether n more digits can make it a multiple of m. */
static bool completes(uint64_t rest, unsigned n, uint64_t m)
{
    uint64_t room = 1, missing = (uint64_t)((wide)(rest % m) * power_of_ten(n, m) % m);
    if (missing) missing = m - missing;
    for (unsigned i = 0; i < n && room <= ENG_MULTIPLE_MOST; i++)
        room *= 10;
    return missing < room;
}

/* Bytes of the shortest text of digits before the point; UINT32_MAX: none. */
static uint32_t least_whole(const struct eng_multiple *m)
{
    uint32_t best = UINT32_MAX;
    for (unsigned of = 0; of <= (m->point ? m->scale : 0); of++) { /* digits of the fraction */
        uint64_t modulus = before_zeros(m->modulus, m->scale - of);
        unsigned point = of > 0;
        for (unsigned k = m->lo; k <= m->hi && k + of + point < best; k++)
            if (completes(m->rest, k + of, modulus)) best = k + of + point;
    }
    return best;
}

static uint32_t least_fraction(const struct eng_multiple *m)
{
    for (unsigned k = m->read == 0; m->read + k <= m->scale; k++)
        if (completes(m->rest, k, before_zeros(m->modulus, m->scale - m->read - k))) return k;
    return UINT32_MAX;
}

/* All that is left of a fraction whose digits that count were read. */
static uint32_t zeros(struct eng_rx *r, uint32_t lo)
{
    return eng_rx_repeat(r, eng_rx_byte(r, '0', '0'), lo, ENG_RX_INF);
}

uint32_t eng_rx_multiple(struct eng_rx *r, const struct eng_multiple *m)
{
    bool whole = completes(m->rest, 0, before_zeros(m->modulus, m->scale - m->read));
    if (r->code) return ENG_RX_NONE;
    if (m->modulus > ENG_MULTIPLE_MOST || m->scale > ENG_MULTIPLE_SCALE ||
        m->lo >= ENG_MULTIPLE_INF || m->hi > ENG_MULTIPLE_INF)
        return eng_rx_fail(r, CN_ELIMIT);
    if (m->fraction && m->read == m->scale) return whole ? zeros(r, m->read == 0) : ENG_RX_NONE;
    if (!m->fraction && !m->hi && !m->point) return whole ? ENG_RX_EMPTY : ENG_RX_NONE;
    struct eng_rx_node node = pack(m);
    node.min_len = m->fraction ? least_fraction(m) : least_whole(m);
    node.nullable = node.min_len == 0;
    node.least = node.min_len;
    if (node.min_len == UINT32_MAX) return ENG_RX_NONE;
    uint32_t before = r->n_nodes, x = eng_rx_leaf(r, node);
    if (r->n_nodes == before) return x;
    for (char c = '0'; c <= '9'; c++)
        (void)eng_rx_byte(r, (uint8_t)c, (uint8_t)c); /* each is a class of its own now */
    (void)eng_rx_byte(r, '.', '.');
    return r->code ? ENG_RX_NONE : x;
}

uint32_t eng_rx_multiple_next(struct eng_rx *r, const struct eng_rx_node *n, uint8_t byte)
{
    struct eng_multiple m = unpack(n);
    if (byte == '.') {
        if (m.fraction || !m.point || m.lo) return ENG_RX_NONE;
        m.fraction = true;
        return eng_rx_multiple(r, &m);
    }
    if (byte < '0' || byte > '9' || (!m.fraction && !m.hi)) return ENG_RX_NONE;
    m.rest = (uint64_t)(((wide)m.rest * 10 + (byte - '0')) % m.modulus);
    if (m.fraction) m.read++;
    m.lo -= m.lo > 0;
    m.hi -= m.hi > 0 && m.hi != ENG_MULTIPLE_INF;
    return eng_rx_multiple(r, &m);
}
