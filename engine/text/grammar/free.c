/* free: lexer states in which many tokens may come that nobody has to look at. See mask.h. */
#include "engine/text/grammar/mask_impl.h"

/* What is said of tokens that may lead farther from the end, where it is not known. */
enum { SLACK = 32 };

/* ---- expressions ----------------------------------------------------------------------------- */

/* Any characters, and then a text that begins with none of them. */
static bool is_quote(const struct eng_match *m, uint32_t x)
{
    const struct eng_rx_node *n = eng_rx_node(&m->rx, x);
    struct eng_bytes quote = {{0}};
    eng_bytes_add(&quote, '"', '"');
    if (x >= ENG_RX_FIRST && n->kind == ENG_RX_CAT) {
        x = n->a;
        n = eng_rx_node(&m->rx, x);
    }
    return x >= ENG_RX_FIRST && n->kind == ENG_RX_SET &&
           !memcmp(eng_rx_set_of(&m->rx, n), &quote, sizeof quote);
}

/* What is found of an expression. exact: no more characters may come than `chars`. */
struct found {
    struct eng_free free;
    bool exact;
};

static bool is_any_char(const struct eng_match *m, uint32_t x)
{
    return x == m->ir->any_char || x == m->ir->any_spelled;
}

static struct found look(struct eng_match *m, uint32_t x, unsigned depth);

static struct found look_at_all(struct eng_match *m, const struct eng_rx_node *n, unsigned depth)
{
    uint32_t most = UINT32_MAX, barred = 0;
    bool some = false;
    for (uint32_t i = 0; i < n->b; i++) {
        uint32_t arg = eng_rx_args(&m->rx, n)[i];
        struct eng_rx_node a = *eng_rx_node(&m->rx, arg);
        if (a.kind == ENG_RX_NOT && arg >= ENG_RX_FIRST) {
            barred = CN_MAX(barred, eng_rx_max_len(&m->rx, a.a));
            continue;
        }
        most = CN_MIN(most, look(m, arg, depth + 1).free.chars);
        some = true;
    }
    /* longer than all that is barred, any text goes on to one that is not */
    if (!some || barred == UINT32_MAX) return (struct found){0};
    if (most != UINT32_MAX) most = most > barred ? most - barred : 0;
    return (struct found){.free = {.chars = most, .more = SLACK}};
}

static struct found look(struct eng_match *m, uint32_t x, unsigned depth)
{
    struct eng_rx_node n = *eng_rx_node(&m->rx, x);
    struct found out = {0};
    if (x < ENG_RX_FIRST || depth > 20) return out;
    if (n.kind == ENG_RX_CAT) {
        struct eng_rx_node a = *eng_rx_node(&m->rx, n.a);
        if (n.a < ENG_RX_FIRST) return out;
        if (a.kind == ENG_RX_AND) return look(m, n.a, depth + 1);
        if (a.kind != ENG_RX_REPEAT || !is_any_char(m, a.a)) return out;
        out.exact = is_quote(m, n.b);
        out.free = (struct eng_free){
            .chars = a.hi, .more = a.lo ? SLACK : 0, .alike = out.exact && a.lo == 0};
        if (!out.exact) out.free.more = SLACK;
    } else if (n.kind == ENG_RX_REPEAT && is_any_char(m, n.a)) {
        out.free = (struct eng_free){.chars = n.hi, .more = n.lo ? SLACK : 0};
    } else if (n.kind == ENG_RX_AND) {
        out = look_at_all(m, &n, depth);
    }
    return out;
}

/* ---- states ---------------------------------------------------------------------------------- */

/* The bytes of plain characters (trie.h; Unicode 15, table 3-7), and where they lead. */
enum { CHAR, LAST, TWO, THREE, AFTER_E0, AFTER_E2, AFTER_E280, AFTER_ED, AFTER_F0, AFTER_F4 };
static const struct {
    uint8_t at, from, to, next;
} chars[] = {
    {CHAR, 'a', 'z', CHAR},         {CHAR, ' ', '!', CHAR},
    {CHAR, '#', '[', CHAR},         {CHAR, ']', '`', CHAR},
    {CHAR, '{', '~', CHAR},         {CHAR, 0xC2, 0xDF, LAST},
    {CHAR, 0xE0, 0xE0, AFTER_E0},   {CHAR, 0xE1, 0xE1, TWO},
    {CHAR, 0xE2, 0xE2, AFTER_E2},   {CHAR, 0xE3, 0xEC, TWO},
    {CHAR, 0xED, 0xED, AFTER_ED},   {CHAR, 0xEE, 0xEF, TWO},
    {CHAR, 0xF0, 0xF0, AFTER_F0},   {CHAR, 0xF1, 0xF3, THREE},
    {CHAR, 0xF4, 0xF4, AFTER_F4},   {LAST, 0x80, 0xBF, CHAR},
    {TWO, 0x80, 0xBF, LAST},        {THREE, 0x80, 0xBF, TWO},
    {AFTER_E0, 0xA0, 0xBF, LAST},   {AFTER_E2, 0x80, 0x80, AFTER_E280},
    {AFTER_E2, 0x81, 0xBF, LAST},   {AFTER_E280, 0x80, 0xA7, CHAR},
    {AFTER_E280, 0xAA, 0xBF, CHAR}, {AFTER_ED, 0x80, 0x9F, LAST},
    {AFTER_F0, 0x90, 0xBF, TWO},    {AFTER_F4, 0x80, 0x8F, TWO},
};
enum { MOST_STATES = 48 };

static uint32_t tokens_from(struct eng_match *m, uint32_t lexer)
{
    return eng_rx_tokens(&m->rx, m->lexings[m->lexers[lexer].first].rx, m->trie);
}

/* Whether any plain characters may follow, however many: few states are met, and all go on. Of one
 * lexeme. *far: the tokens that it needs from the farthest of these states. */
static bool is_closed(struct eng_match *m, uint32_t lexer, uint32_t *far)
{
    struct {
        uint32_t lexer;
        uint8_t at;
    } met[MOST_STATES] = {{lexer, CHAR}};
    for (unsigned n = 1, i = 0; i < n; i++)
        for (unsigned k = 0; k < CN_ARRAY_LEN(chars); k++) {
            if (chars[k].at != met[i].at) continue;
            for (unsigned b = chars[k].from, j; b <= chars[k].to; b++) {
                uint32_t next = eng_lexer_next(m, met[i].lexer, (uint8_t)b);
                if (next == ENG_LEXER_DEAD) return false;
                for (j = 0; j < n && !(met[j].lexer == next && met[j].at == chars[k].next);)
                    j++;
                if (j < n) continue;
                if (n == MOST_STATES) return false;
                *far = CN_MAX(*far, tokens_from(m, next));
                met[n].lexer = next;
                met[n++].at = chars[k].next;
            }
        }
    return true;
}

struct eng_free eng_free_of(struct eng_match *m, uint32_t lexer)
{
    struct eng_lexer_state *l = &m->lexers[lexer];
    struct eng_free best = {0};
    uint32_t far = 0;
    if (l->looked) return (struct eng_free){l->free_chars, l->free_of, l->free_more, l->alike};
    for (uint32_t i = 0; i < l->n && m->ir->any_char; i++) {
        struct found f = look(m, m->lexings[l->first + i].rx, 0);
        /* a bound that other lexemes, or what follows, might pass tells nothing */
        if (f.free.chars != UINT32_MAX && !(f.exact && l->n == 1)) continue;
        if (f.free.chars <= best.chars) continue;
        best = f.free;
        best.of = i;
        best.alike &= l->n == 1;
    }
    if (!best.chars && l->n == 1 && is_closed(m, lexer, &far)) {
        uint32_t own = tokens_from(m, lexer);
        best.chars = UINT32_MAX;
        best.more = far > own ? far - own : 0;
    }
    l = &m->lexers[lexer]; /* may have moved */
    l->looked = true;
    l->free_chars = best.chars;
    l->free_of = best.of;
    l->free_more = best.more;
    l->alike = best.alike;
    return best;
}
