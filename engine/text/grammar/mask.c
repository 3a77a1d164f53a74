/* mask: see mask.h.
 *
 * A walk over the vocabulary's tree, with the places that the bytes so far lead to on a stack, one
 * level for each byte. Inside of a JSON string plain tokens are taken from a ready mask, and only
 * the others are walked over. Nearly all steps have one place, inside of one lexeme: they are a
 * look into the lexer's table. */
#include "engine/text/grammar/mask.h"

#include <stdlib.h>

enum { NEAR = 256 };

struct eng_level {
    struct eng_places at;
    bool unsure;     /* of this level or one before it */
    bool blank;      /* this level and all before it are white space */
    uint32_t n_kept; /* bytes of kept texts that levels up to this one stand on */
};
/* Distances that were asked for lately. */
struct eng_near { uint32_t parser, lexer, distance; };

int eng_masker_init(struct eng_masker *k, const struct eng_trie *t, struct eng_masks *masks)
{
    *k = (struct eng_masker){.trie = t, .masks = masks};
    k->n_levels = t->all.deepest + (size_t)2;
    k->levels = cn_calloc(k->n_levels, sizeof *k->levels);
    k->near = cn_calloc(NEAR, sizeof *k->near);
    if (k->levels && k->near) return 0;
    eng_masker_fini(k);
    return CN_ENOMEM;
}

void eng_masker_fini(struct eng_masker *k)
{
    if (!k) return;
    for (size_t i = 0; k->levels && i < k->n_levels; i++)
        free(k->levels[i].at.v);
    free(k->levels);
    free(k->near);
    *k = (struct eng_masker){0};
}

/* ---- walking --------------------------------------------------------------------------------- */

struct walk {
    struct eng_masker *k;
    struct eng_match *m;
    const struct eng_tokens_tree *tree;
    const struct eng_places *begin;
    uint32_t *mask;
    uint64_t left;  /* tokens that lead farther from the end than this are left out */
    uint32_t worst; /* farthest from the end that a token leads */
    uint32_t least; /* nearest, left out or not */
    bool any;
    bool solid;   /* tokens of white space are left out */
    bool between; /* white space changes nothing here */
};

static bool put_places(struct eng_match *m, struct eng_places *to, const struct eng_places *from)
{
    if (cn_grow(&to->v, &to->cap, CN_MAX(from->n, 1u), sizeof *to->v))
        return eng_match_fail(m, CN_ENOMEM), false;
    memcpy(to->v, from->v, from->n * sizeof *from->v);
    to->n = from->n;
    return true;
}

/* One place, in the middle of a lexeme whose text nobody keeps: a table tells. */
static bool step_fast(struct eng_match *m, const struct eng_level *from, uint8_t byte,
                      struct eng_level *to)
{
    const struct eng_place *p = &from->at.v[0];
    const struct eng_lexer_state *l = &m->lexers[p->lexer];
    uint32_t next = eng_lexer_known(m, p->lexer, byte);
    if (from->at.n != 1 || !next || (l->ends && p->lexer != m->parsers[p->parser].lexer) ||
        m->parsers[p->parser].records)
        return false;
    to->at.n = next != ENG_LEXER_DEAD;
    if (!to->at.n) return true;
    if (!to->at.cap && cn_grow(&to->at.v, &to->at.cap, 4, sizeof *to->at.v)) {
        eng_match_fail(m, CN_ENOMEM);
        to->at.n = 0;
        return true;
    }
    to->at.v[0] = *p;
    to->at.v[0].lexer = next;
    to->unsure = from->unsure;
    return true;
}

static void step(struct eng_match *m, const struct eng_level *from, uint8_t byte,
                 struct eng_level *to)
{
    if (step_fast(m, from, byte, to)) return;
    eng_match_step(m, &from->at, byte, &to->at);
    to->unsure = from->unsure;
    for (size_t i = 0; i < to->at.n && !to->unsure; i++)
        to->unsure = m->parsers[to->at.v[i].parser].unsure;
}

static uint32_t distance(struct walk *w, const struct eng_places *at)
{
    struct eng_near *n;
    if (at->n != 1) return eng_match_distance(w->m, at);
    n = &w->k->near[(at->v[0].parser * 0x9E3779B1u + at->v[0].lexer) >> 7 & (NEAR - 1)];
    if (n->parser != at->v[0].parser || n->lexer != at->v[0].lexer)
        *n = (struct eng_near){at->v[0].parser, at->v[0].lexer, eng_match_distance(w->m, at)};
    return n->distance;
}

/* Whether the bytes that lead to a node are the beginning of a text, looked at without shortcuts.
 */
static bool look_again(struct walk *w, const struct eng_trie_node *node)
{
    struct eng_places at[2] = {{0}, {0}};
    uint8_t *bytes = cn_malloc_array(node->depth, 1);
    const struct eng_trie_node *first = w->tree->nodes, *t = node;
    bool ok = bytes && put_places(w->m, &at[0], w->begin);
    if (!bytes) eng_match_fail(w->m, CN_ENOMEM);
    for (uint32_t depth = node->depth; ok; t--) { /* its bytes stand in front of it */
        if (t->depth == depth) bytes[--depth] = t->byte;
        if (!depth || t == first) break;
    }
    w->m->walking = false;
    for (uint32_t i = 0; i < node->depth && ok; i++)
        ok = eng_match_step(w->m, &at[i & 1], bytes[i], &at[~i & 1]);
    w->m->walking = true;
    ok = ok && eng_match_alive(w->m, &at[node->depth & 1]);
    free(bytes);
    free(at[0].v);
    free(at[1].v);
    return ok;
}

static void set_ids(struct walk *w, const struct eng_trie_node *node)
{
    for (uint32_t i = 0; i < node->n; i++) {
        uint32_t id = w->tree->ids[node->first + i];
        w->mask[id >> 5] |= 1u << (id & 31);
    }
    w->any = true;
}

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static void walk(struct walk *w)
{
    const struct eng_tokens_tree *t = w->tree;
    struct eng_level *levels = w->k->levels;
    for (size_t i = 0; i < t->n && !w->m->code;) {
        const struct eng_trie_node *node = &t->nodes[i];
        struct eng_level *to = &levels[node->depth];
        w->m->n_kept = levels[node->depth - 1].n_kept; /* texts of what was tried before */
        step(w->m, &levels[node->depth - 1], node->byte, to);
        to->n_kept = w->m->n_kept;
        if (!to->at.n) {
            i = node->end;
            continue;
        }
        i++;
        to->blank = levels[node->depth - 1].blank && is_blank(node->byte);
        if (!node->n || (to->blank && w->solid)) continue;
        uint32_t far = distance(w, &to->at);
        if (far > w->left && far >= w->least) continue;
        if (to->unsure && !look_again(w, node)) continue;
        if (!to->unsure && !(to->blank && w->between) && !eng_match_alive(w->m, &to->at)) continue;
        w->least = CN_MIN(w->least, far);
        if (far > w->left) continue;
        w->worst = CN_MAX(w->worst, far);
        set_ids(w, node);
    }
}

/* ---- strings --------------------------------------------------------------------------------- */

/* How many characters of any kind may come. *exact: no more of them may. */
static uint32_t free_of(struct eng_match *m, uint32_t x, bool *exact, unsigned depth)
{
    struct eng_rx_node n = *eng_rx_node(&m->rx, x);
    uint32_t most = UINT32_MAX, barred = 0;
    bool some = false;
    *exact = false;
    if (x < ENG_RX_FIRST || depth > 20) return 0;
    if (n.kind == ENG_RX_CAT) {
        struct eng_rx_node a = *eng_rx_node(&m->rx, n.a), b = *eng_rx_node(&m->rx, n.b);
        uint32_t first = b.kind == ENG_RX_CAT && n.b >= ENG_RX_FIRST ? b.a : n.b;
        struct eng_bytes quote = {{0}};
        eng_bytes_add(&quote, '"', '"');
        if (n.a < ENG_RX_FIRST) return 0;
        if (a.kind == ENG_RX_AND) return free_of(m, n.a, exact, depth + 1);
        if (a.kind != ENG_RX_REPEAT || a.a != m->ir->any_char) return 0;
        *exact = first >= ENG_RX_FIRST && eng_rx_node(&m->rx, first)->kind == ENG_RX_SET &&
                 !memcmp(eng_rx_set_of(&m->rx, eng_rx_node(&m->rx, first)), &quote, sizeof quote);
        return a.hi;
    }
    if (n.kind == ENG_RX_REPEAT) return n.a == m->ir->any_char ? n.hi : 0;
    if (n.kind != ENG_RX_AND) return 0;
    for (uint32_t i = 0; i < n.b; i++) {
        uint32_t arg = eng_rx_args(&m->rx, &n)[i];
        bool of_arg;
        struct eng_rx_node a = *eng_rx_node(&m->rx, arg);
        if (a.kind == ENG_RX_NOT && arg >= ENG_RX_FIRST) {
            barred = CN_MAX(barred, eng_rx_max_len(&m->rx, a.a));
            continue;
        }
        most = CN_MIN(most, free_of(m, arg, &of_arg, depth + 1));
        some = true;
    }
    /* longer than all that is barred, any text goes on to one that is not */
    if (!some || barred == UINT32_MAX) return 0;
    return most == UINT32_MAX ? most : most > barred ? most - barred : 0;
}

uint32_t eng_free_chars(struct eng_match *m, uint32_t lexer)
{
    struct eng_lexer_state *l = &m->lexers[lexer];
    if (l->free_chars) return l->free_chars - 1;
    uint32_t best = 0;
    for (uint32_t i = 0; i < l->n && m->ir->any_char; i++) {
        bool exact;
        uint32_t n = free_of(m, m->lexings[l->first + i].rx, &exact, 0);
        /* a bound that other lexemes, or what follows, might pass tells nothing */
        if (n > ENG_TRIE_PLAIN * 8 || (exact && l->n == 1)) best = CN_MAX(best, n);
    }
    l->free_chars = best == UINT32_MAX ? UINT32_MAX : best + 1;
    return l->free_chars - 1;
}

/* Sets the plain tokens that may come; false: they have to be walked over. */
static bool take_plain(struct walk *w)
{
    const struct eng_trie *t = w->k->trie;
    const struct eng_place *p = &w->begin->v[0];
    if (w->begin->n != 1) return false;
    uint32_t n = eng_free_chars(w->m, p->lexer), far = eng_match_farthest(w->m, p);
    if (!n) return false;
    /* an item that must be a new value can still become one, if its text has no end */
    if (w->m->parsers[p->parser].inside && n != UINT32_MAX) return false;
    if (n < t->longest_plain && n >= ENG_TRIE_PLAIN) return false;
    if (far > w->left) return false;
    const uint32_t *plain = t->plain[CN_MIN(n, (uint32_t)ENG_TRIE_PLAIN)];
    for (uint32_t i = 0; i < t->n_words; i++)
        w->mask[i] |= plain[i];
    w->worst = CN_MAX(w->worst, far);
    w->any = true;
    return true;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* The tokens that may come. */
static void take_tokens(struct walk *w)
{
    struct eng_masker *k = w->k;
    if (!put_places(w->m, &k->levels[0].at, w->begin)) return;
    k->levels[0].unsure = false;
    k->levels[0].blank = true;
    w->between = eng_match_between(w->m, w->begin);
    k->levels[0].n_kept = w->m->n_kept;
    memset(k->near, 0, NEAR * sizeof *k->near);
    w->m->walking = true;
    w->tree = take_plain(w) ? &k->trie->rest : &k->trie->all;
    walk(w);
    w->m->walking = false;
    w->m->n_kept = k->levels[0].n_kept;
}

/* The ends of generation, where the answer may end. */
static void take_ends(struct walk *w)
{
    const struct eng_trie *t = w->k->trie;
    if (!eng_match_accepts(w->m, w->begin)) return;
    for (size_t i = 0; i < t->n_eog; i++)
        w->mask[t->eog[i] >> 5] |= 1u << (t->eog[i] & 31);
    w->any |= t->n_eog > 0;
}

/* The same in every choice that is where these places are; false: there is no such key. */
static bool key_of(const struct eng_match *m, const struct eng_places *at, uint64_t key[2])
{
    key[0] = key[1] = at->n;
    for (size_t i = 0; i < at->n; i++) {
        const struct eng_parser_state *p = &m->parsers[at->v[i].parser];
        const struct eng_lexer_state *l = &m->lexers[at->v[i].lexer];
        /* it depends on the text so far */
        if (p->inside || (p->keeps && at->v[i].from)) return false;
        key[0] = (key[0] ^ p->hash) * 0x9E3779B97F4A7C15u + l->hash;
        key[1] = (key[1] + l->hash) * 0xD6E8FEB86659FD93u ^ p->hash;
        key[1] += at->v[i].lexer == p->lexer;
    }
    return true;
}

/* Near the end: only what gets there in time. Too late for that: what leads nearest to it; of that
 * no white space, unless it leads nearer, or the answer would wait for its end there. */
static void take_near(struct walk *w, uint64_t left)
{
    uint32_t far = eng_match_distance(w->m, w->begin);
    w->any = false;
    w->left = left ? left - 1 : 0;
    w->least = UINT32_MAX;
    take_ends(w);
    if (left || !w->any) take_tokens(w);
    if (w->any || w->m->code) return;
    if (w->least >= far) {
        w->solid = true;
        w->least = UINT32_MAX;
        take_tokens(w);
        w->solid = w->least != UINT32_MAX;
    }
    w->left = w->least;
    if (!w->any) take_tokens(w);
}

int eng_mask(struct eng_masker *k, struct eng_match *m, const struct eng_places *at, uint64_t left,
             uint32_t *mask)
{
    size_t bytes = k->trie->n_words * sizeof *mask;
    uint64_t key[2];
    bool keyed = k->masks && key_of(m, at, key);
    struct walk w = {.k = k, .m = m, .begin = at, .mask = mask, .left = UINT64_MAX};
    if (m->code || !at->n) return m->code;
    if (keyed && eng_masks_find(k->masks, key, bytes, mask, &w.worst)) {
        k->found++;
    } else {
        take_tokens(&w);
        take_ends(&w);
        k->made++;
        if (keyed && !m->code) eng_masks_keep(k->masks, key, bytes, mask, w.worst);
    }
    if (m->code || left == UINT64_MAX || w.worst < left) return m->code;
    memset(mask, 0, bytes);
    take_near(&w, left);
    return m->code;
}
