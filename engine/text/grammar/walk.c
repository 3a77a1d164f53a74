/* walk: over a tree of tokens, with the places that the bytes so far lead to on a stack, one level
 * for each byte. See mask.h.
 *
 * Nearly all steps begin at one place, inside of one lexeme, and stay there: they are a look into
 * the lexer's table. Such a level has no places of its own, only the lexer's state; they are
 * written out, with the text that the bytes since add, when a step needs them. */
#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/mask_impl.h"

#include <stdlib.h>

enum { NEAR = 256 };

struct eng_level {
    uint32_t lexer; /* 0: several places, in `at`; else the one place's */
    uint32_t base;  /* the level, this one or above it, whose places were written out last */
    uint8_t doubt;  /* enum eng_doubt: of its parsers, or ENG_UNSURE of a level above it */
    struct eng_places at;
};
/* Distances that were asked for lately. */
struct eng_near { uint32_t parser, lexer, distance; };

int eng_masker_init(struct eng_masker *k, const struct eng_trie *t, struct eng_masks *masks)
{
    *k = (struct eng_masker){.trie = t, .masks = masks};
    k->n_levels = t->all.deepest + (size_t)2;
    k->levels = cn_calloc(k->n_levels, sizeof *k->levels);
    k->bytes = cn_malloc_array(k->n_levels, 1);
    k->near = cn_calloc(NEAR, sizeof *k->near);
    if (k->levels && k->bytes && k->near) return 0;
    eng_masker_fini(k);
    return CN_ENOMEM;
}

void eng_masker_fini(struct eng_masker *k)
{
    if (!k) return;
    for (size_t i = 0; k->levels && i < k->n_levels; i++)
        free(k->levels[i].at.v);
    free(k->levels);
    free(k->bytes);
    free(k->near);
    *k = (struct eng_masker){0};
}

/* ---- distances ------------------------------------------------------------------------------- */

static uint32_t distance_of(struct eng_walk *w, uint32_t parser, uint32_t lexer)
{
    struct eng_near *n = &w->k->near[(parser * 0x9E3779B1u + lexer) & (NEAR - 1)];
    if (n->parser != parser || n->lexer != lexer) {
        struct eng_place p = {.parser = parser, .lexer = lexer};
        *n = (struct eng_near){parser, lexer, eng_place_distance(w->m, &p, UINT32_MAX)};
        eng_match_tick(w->m);
    }
    w->near_parser = parser;
    w->near_lexer = lexer;
    w->near = n->distance;
    return n->distance;
}

void eng_walk_forget(struct eng_masker *k)
{
    memset(k->near, 0, NEAR * sizeof *k->near);
}

/* ---- levels ---------------------------------------------------------------------------------- */

/* Places of the level, with the texts that are kept. */
static bool write_out(struct eng_walk *w, uint32_t depth)
{
    struct eng_level *l = &w->k->levels[depth], *base = &w->k->levels[l->base];
    struct eng_match *m = w->m;
    if (l->base == depth) return true;
    if (cn_grow(&l->at.v, &l->at.cap, 1, sizeof *l->at.v))
        return eng_match_fail(m, CN_ENOMEM), false;
    l->at.v[0] = base->at.v[0];
    l->at.v[0].lexer = l->lexer;
    l->at.n = 1;
    if (m->parsers[l->at.v[0].parser].records)
        for (uint32_t i = l->base; i < depth; i++)
            l->at.v[0].text = eng_keep_byte(m, l->at.v[0].text, w->k->bytes[i]);
    l->base = depth;
    return !m->code;
}

/* Places were put into the level. */
static void settle(struct eng_walk *w, uint32_t depth, uint8_t before)
{
    struct eng_level *l = &w->k->levels[depth];
    l->doubt = before == ENG_UNSURE ? ENG_UNSURE : ENG_SURE;
    for (size_t i = 0; i < l->at.n; i++)
        l->doubt = CN_MAX(l->doubt, w->m->parsers[l->at.v[i].parser].doubt);
    l->lexer = l->at.n == 1 ? l->at.v[0].lexer : 0;
    l->base = depth;
}

/* A step that the table does not know; false: it leads nowhere. */
static bool step(struct eng_walk *w, uint32_t depth, uint8_t byte)
{
    struct eng_level *from = &w->k->levels[depth - 1], *to = &w->k->levels[depth];
    struct eng_match *m = w->m;
    eng_match_tick(m);
    if (from->lexer && !m->lexers[from->lexer].ends) {
        uint32_t next = eng_lexer_next(m, from->lexer, byte);
        if (next == ENG_LEXER_DEAD) return false;
        to->lexer = next;
        to->base = from->base;
        to->doubt = from->doubt;
        return true;
    }
    if (!write_out(w, depth - 1) || !eng_match_step(m, &from->at, byte, &to->at)) return false;
    settle(w, depth, from->doubt);
    return true;
}

/* Whether the bytes that lead to a node are the beginning of a text, looked at without shortcuts.
 */
static bool look_again(struct eng_walk *w, uint32_t depth)
{
    struct eng_places at[2] = {{0}, {0}};
    const struct eng_places *from = w->begin;
    bool ok = true;
    w->used = true;
    w->m->walking = false;
    for (uint32_t i = 0; i < depth && ok; i++) {
        ok = eng_match_step(w->m, from, w->k->bytes[i], &at[i & 1]);
        from = &at[i & 1];
    }
    w->m->walking = true;
    ok = ok && eng_match_alive(w->m, from);
    free(at[0].v);
    free(at[1].v);
    return ok;
}

static bool is_blank(const struct eng_walk *w, uint32_t depth)
{
    for (uint32_t i = 0; i < depth; i++)
        if (!memchr(" \t\n\r", w->k->bytes[i], 4)) return false;
    return true;
}

/* Whether the lexeme that the bytes so far stay in is a string like none that was seen. */
static bool begins_new(const struct eng_walk *w, uint32_t depth)
{
    char text[256];
    size_t n = w->begun.n;
    if (w->begin->n != 1 || n + depth > sizeof text) return false;
    if (n) memcpy(text, w->begun.p, n);
    memcpy(text + n, w->k->bytes, depth);
    w->m->used = true;
    return eng_is_new_string(w->m, text, n + depth, w->begin->v[0].from > 0);
}

/* Whether the places of a level, which are in doubt, are right. The level is that of a node. */
static bool is_right(struct eng_walk *w, const struct eng_tokens_tree *t, size_t node,
                     uint32_t depth)
{
    const struct eng_level *l = &w->k->levels[depth];
    if (l->doubt == ENG_UNSURE) return look_again(w, depth);
    if (l->base == 0 && (w->fresh || node < w->new_end)) return true;
    if (l->lexer) {
        uint32_t parser = w->k->levels[l->base].at.v[0].parser;
        if (parser == w->free_parser && l->lexer == w->free_lexer) return true;
        if (eng_match_is_free(w->m, parser, l->lexer)) {
            w->free_parser = parser;
            w->free_lexer = l->lexer;
            return true;
        }
    }
    if (l->base == 0 && begins_new(w, depth)) {
        w->new_end = t->nodes[node].end; /* so is what begins like it */
        return true;
    }
    if (is_blank(w, depth) && eng_match_between(w->m, w->begin)) return true;
    return write_out(w, depth) && eng_match_alive(w->m, &l->at);
}

/* The distance of a level in doubt, if `far` holds without the doubt: shortest texts may have come
 * before. */
static uint32_t distance_in_doubt(struct eng_walk *w, uint32_t depth, uint32_t far)
{
    const struct eng_level *l = &w->k->levels[depth];
    uint32_t most = eng_cost_add(far, ENG_MOST_FARTHER);
    if (most <= w->left || l->doubt == ENG_UNSURE || !write_out(w, depth)) return most;
    return eng_match_distance(w->m, &l->at);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A node where tokens end. */
static void take(struct eng_walk *w, const struct eng_tokens_tree *t, size_t i, uint32_t depth)
{
    const struct eng_level *l = &w->k->levels[depth];
    uint32_t far, parser;
    if (!l->lexer) {
        far = eng_match_distance(w->m, &l->at);
    } else {
        parser = w->k->levels[l->base].at.v[0].parser;
        far = l->lexer == w->near_lexer && parser == w->near_parser
                  ? w->near
                  : distance_of(w, parser, l->lexer);
    }
    if (far > w->left) {
        w->next = CN_MIN(w->next, far);
        if (far >= w->least) return;
    }
    if (w->solid && is_blank(w, depth)) return;
    if (l->doubt && !is_right(w, t, i, depth)) return;
    if (l->doubt) far = distance_in_doubt(w, depth, far);
    w->least = CN_MIN(w->least, far);
    if (far > w->left) {
        w->next = CN_MIN(w->next, far);
        return;
    }
    w->worst = CN_MAX(w->worst, far);
    if (!w->open) {
        w->open = w->first >= 0 && w->first != w->k->bytes[0];
        w->first = w->k->bytes[0];
    }
    for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++)
        w->mask[t->ids[k] >> 5] |= 1u << (t->ids[k] & 31);
    w->any = true;
}

static bool begin(struct eng_walk *w)
{
    struct eng_places *at = &w->k->levels[0].at;
    const struct eng_places *from = w->begin;
    if (cn_grow(&at->v, &at->cap, CN_MAX(from->n, (size_t)1), sizeof *at->v))
        return eng_match_fail(w->m, CN_ENOMEM), false;
    memcpy(at->v, from->v, from->n * sizeof *from->v);
    at->n = from->n;
    settle(w, 0, ENG_SURE);
    w->new_end = 0;
    return true;
}

void eng_walk(struct eng_walk *w, const struct eng_tokens_tree *t)
{
    struct eng_level *levels = w->k->levels;
    struct eng_match *m = w->m;
    if (!begin(w)) return;
    for (size_t i = 0; i < t->n && !m->code;) {
        struct eng_trie_node node = t->nodes[i];
        const struct eng_level *from = &levels[node.depth - 1];
        const struct eng_lexer_state *l = &m->lexers[from->lexer]; /* 0 has no table */
        uint32_t next = l->ends ? 0 : eng_lexer_known(m, from->lexer, node.byte);
        bool ok = next != ENG_LEXER_DEAD;
        w->k->bytes[node.depth - 1] = node.byte;
        if (next > ENG_LEXER_DEAD) {
            struct eng_level *to = &levels[node.depth];
            to->lexer = next;
            to->base = from->base;
            to->doubt = from->doubt;
        } else if (!next) {
            ok = step(w, node.depth, node.byte);
        }
        if (ok && node.ends) take(w, t, i, node.depth);
        i = ok ? i + 1 : node.end;
    }
}
