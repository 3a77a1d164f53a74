/* mask: see mask.h.
 *
 * Inside of a JSON string plain tokens are taken from a ready mask, and only the others are walked
 * over (walk.c). */
#include "engine/text/grammar/mask.h"

#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/mask_impl.h"

#include <stdlib.h>

/* Sets the plain tokens that may come, at most so many characters long. */
static void take_plain(struct eng_walk *w, uint32_t chars)
{
    const struct eng_trie *t = w->k->trie;
    const uint32_t *plain = t->plain[chars == UINT32_MAX ? 0 : CN_MIN(chars, ENG_TRIE_PLAIN - 1u)];
    for (uint32_t i = 0; i < t->n_words; i++)
        w->mask[i] |= plain[i];
    for (size_t i = 0; i < t->n_long_plain && chars != UINT32_MAX; i++)
        if (t->long_plain[i].chars <= chars)
            w->mask[t->long_plain[i].id >> 5] |= 1u << (t->long_plain[i].id & 31);
    w->any = w->open = true;
}

/* Sets the plain tokens that may come, if that can be told at once. */
static struct eng_free take_free(struct eng_walk *w)
{
    const struct eng_place *p = &w->begin->v[0];
    struct eng_free free = {0};
    uint32_t far;
    if (w->begin->n != 1) return free;
    free = eng_free_of(w->m, p->lexer);
    /* the last characters might complete a text that came before */
    bool bounded = free.chars < w->k->trie->all.deepest;
    if (bounded && w->m->parsers[p->parser].doubt && !w->fresh) free.chars = 0;
    if (!free.chars) return free;
    far = eng_cost_add(eng_place_distance(w->m, p, free.of), free.more);
    if (far > w->left) return (struct eng_free){0};
    w->worst = CN_MAX(w->worst, far);
    take_plain(w, free.chars);
    return free;
}

/* The tokens that may come. */
static void take_tokens(struct eng_walk *w)
{
    const struct eng_trie *t = w->k->trie;
    struct eng_match *m = w->m;
    struct eng_free free = take_free(w);
    uint32_t kept = m->n_kept, cells = m->n_cells, seen = m->n_seen;
    w->near_parser = w->free_parser = 0;
    m->walking = true;
    m->fresh = w->fresh;
    m->fresh_from = w->begin->v[0].from;
    m->used = false;
    eng_walk_forget(w->k);
    if (!free.chars) {
        eng_walk(w, &t->all);
    } else if (free.alike && free.chars >= ENG_TRIE_LONG &&
               !m->parsers[w->begin->v[0].parser].records) { /* the text itself does not matter */
        eng_walk(w, &t->tails);
        eng_walk(w, &t->long_rest);
    } else {
        eng_walk(w, &t->rest);
    }
    m->walking = false;
    m->fresh = 0;
    w->used |= m->used;
    eng_match_unkeep(m, kept); /* what was only tried */
    eng_seen_undo(m, cells, seen);
}

/* The ends of generation, where the answer may end. */
static void take_ends(struct eng_walk *w)
{
    const struct eng_trie *t = w->k->trie;
    if (!eng_match_accepts(w->m, w->begin)) return;
    w->open = true;
    for (size_t i = 0; i < t->n_eog; i++)
        w->mask[t->eog[i] >> 5] |= 1u << (t->eog[i] & 31);
    w->any |= t->n_eog > 0;
}

bool eng_is_new_string(const struct eng_match *m, const char *s, size_t n, bool inner)
{
    while (n && memchr(" \t\r\n", *s, 4))
        s++, n--;
    if (!n || *s != '"' || memchr(s, '\\', n) || memchr(s + 1, '"', n - 1)) return false;
    if (inner && memmem(m->texts, m->n_texts, s, n)) return false;
    /* values have quotes, names have none */
    return !eng_seen_begins(m, s, n) && !eng_seen_begins(m, s + 1, n - 1);
}

/* What has come of the lexeme that the answer is in. */
static bool find_begun(struct eng_walk *w, struct cn_buf *text)
{
    const struct eng_place *p = &w->begin->v[0];
    if (w->begin->n != 1 || !p->text || !w->m->n_seen) return true;
    if (eng_kept_text(w->m, p->text, p->from, text)) return eng_match_fail(w->m, CN_ENOMEM), false;
    w->begun = (struct eng_str){text->data, text->len};
    if (eng_is_new_string(w->m, text->data, text->len, p->from > 0)) w->fresh = p->text;
    return true;
}

static void mix(uint64_t key[2], uint64_t v)
{
    key[0] = (key[0] ^ v) * 0x9E3779B97F4A7C15u;
    key[0] ^= key[0] >> 29;
    key[1] = (key[1] + v) * 0xD6E8FEB86659FD93u ^ key[1] >> 31;
}

/* What may follow of each lexeme, and the stacks behind it. What was seen is left out: a mask that
 * depends on it beyond what the lexemes say (used) is not kept. */
static void mix_place(const struct eng_match *m, const struct eng_place *at, uint64_t key[2])
{
    const struct eng_parser_state *p = &m->parsers[at->parser];
    const struct eng_lexer_state *l = &m->lexers[at->lexer];
    const struct eng_item_of *t = &m->item_ofs[p->first];
    bool begins = at->lexer == p->lexer;
    mix(key, 2u * begins + (begins && p->accepts));
    for (uint32_t i = 0, k = 0; i < l->n; i++) {
        const struct eng_lexing *g = &m->lexings[l->first + i];
        mix(key, eng_rx_node(&m->rx, g->rx)->hash);
        while (k < p->n && t[k].lexeme < g->lexeme)
            k++;
        for (; k < p->n && t[k].lexeme == g->lexeme; k++)
            mix(key, t[k].frame ? m->frames[t[k].frame].shape : 1);
    }
}

/* The same in every choice that is where these places are; false: there is no such key. */
static bool key_of(const struct eng_match *m, const struct eng_places *at, bool fresh,
                   uint64_t key[2])
{
    key[0] = key[1] = 2 * at->n + fresh;
    for (size_t i = 0; i < at->n; i++) {
        if (at->v[i].from && !fresh) return false; /* it depends on the text so far */
        mix_place(m, &at->v[i], key);
    }
    return true;
}

/* Too late for an end in time: what leads nearest to it; of that no white space, unless it leads
 * nearer, or the answer would wait for its end there. */
static void take_nearest(struct eng_walk *w)
{
    uint32_t far = eng_match_distance(w->m, w->begin);
    w->used |= w->m->used;
    if (w->least >= far) {
        w->solid = true;
        w->least = UINT32_MAX;
        take_tokens(w);
        w->solid = w->least != UINT32_MAX;
    }
    w->left = w->least;
    if (!w->any) take_tokens(w);
}

/* Only what gets to an end in time. Near the end that depends on how many tokens are left, but not
 * on each: the mask changes where a token's way to the end is as long. */
static struct eng_mask_facts take_in_time(struct eng_walk *w, uint64_t left)
{
    w->left = left == UINT64_MAX ? left : left - 1;
    w->least = UINT32_MAX;
    w->next = UINT64_MAX;
    take_ends(w);
    take_tokens(w);
    struct eng_mask_facts facts = {.from = w->worst + UINT64_C(1), .to = w->next};
    if (!w->any && !w->m->code) take_nearest(w);
    facts.open = w->open;
    return facts;
}

/* Whether the answer might go on: then it ends for want of tokens. */
static bool goes_on(const struct eng_walk *w)
{
    struct eng_walk all = *w;
    all.mask = cn_calloc(w->k->trie->n_words, sizeof *all.mask);
    if (!all.mask) return false;
    all.any = false;
    all.left = all.next = UINT64_MAX;
    all.least = UINT32_MAX;
    take_tokens(&all);
    free(all.mask);
    return all.any;
}

static void make_mask(struct eng_walk *w, uint64_t left)
{
    struct eng_masker *k = w->k;
    uint64_t key[2];
    if (!left) { /* the answer ends here, or it is too late */
        take_ends(w);
        k->narrowed |= w->any && goes_on(w);
        if (w->any) return;
        left = 1;
    }
    bool keyed = k->masks && key_of(w->m, w->begin, w->fresh, key);
    struct eng_mask_facts facts;
    if (keyed && eng_masks_find(k->masks, key, left, w->mask, &facts)) {
        k->found++;
        k->narrowed |= facts.to != UINT64_MAX;
        return;
    }
    facts = take_in_time(w, left);
    k->made++;
    k->narrowed |= facts.to != UINT64_MAX;
    if (keyed && !w->used && !w->m->code)
        eng_masks_keep(k->masks, key, facts, k->trie->n_words, w->mask);
}

int eng_mask(struct eng_masker *k, struct eng_match *m, const struct eng_places *at, uint64_t left,
             uint32_t *mask)
{
    struct eng_walk w = {.k = k, .m = m, .begin = at, .mask = mask, .first = -1};
    struct cn_buf text;
    if (m->code || !at->n) return m->code;
    cn_buf_init(&text, 0);
    if (find_begun(&w, &text)) make_mask(&w, left);
    cn_buf_fini(&text);
    return m->code;
}

bool eng_mask_is_open(const struct eng_masker *k, const struct eng_match *m,
                      const struct eng_places *at)
{
    uint64_t key[2];
    for (size_t i = 0; i < at->n; i++)
        if (at->v[i].text && m->n_seen) return false; /* what has come of it has part in the key */
    return k->masks && key_of(m, at, false, key) && eng_masks_open(k->masks, key);
}
