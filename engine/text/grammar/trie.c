/* trie: see trie.h. */
#include "engine/text/grammar/trie.h"

#include "engine/text/vocab_impl.h"

#include <stdlib.h>

struct word {
    const char *p; /* NULL: a control token */
    uint32_t n, id;
    char control[5];
};

static const char *bytes_of(const struct word *w)
{
    return w->p ? w->p : w->control;
}

static int by_bytes(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int c = memcmp(bytes_of(x), bytes_of(y), CN_MIN(x->n, y->n));
    if (c) return c;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Characters of a plain text; 0: it is not plain. */
static uint32_t plain_chars(const char *s, size_t n)
{
    uint32_t chars = 0, cp;
    for (size_t i = 0; i < n; chars++) {
        size_t len = cn_utf8_decode(s + i, n - i, &cp);
        if (!len || cp < 0x20 || cp == '"' || cp == '\\') return 0;
        i += len;
    }
    return chars;
}

/* ---- trees ----------------------------------------------------------------------------------- */

static int add_node(struct eng_tokens_tree *t, uint8_t byte, uint32_t depth)
{
    if (cn_grow(&t->nodes, &t->cap, t->n + 1, sizeof *t->nodes)) return CN_ENOMEM;
    t->nodes[t->n++] =
        (struct eng_trie_node){.first = (uint32_t)t->n_ids, .depth = (uint16_t)depth, .byte = byte};
    return 0;
}

/* path: nodes that lead to the word before this one; *deep of them. */
static int add_word(struct eng_tokens_tree *t, const struct word *w, uint32_t *path, uint32_t *deep)
{
    const char *s = bytes_of(w);
    uint32_t same = 0;
    while (same < *deep && same < w->n && t->nodes[path[same]].byte == (uint8_t)s[same])
        same++;
    for (uint32_t i = same; i < *deep; i++)
        t->nodes[path[i]].end = (uint32_t)t->n;
    for (uint32_t i = same; i < w->n; i++) {
        path[i] = (uint32_t)t->n;
        if (add_node(t, (uint8_t)s[i], i + 1)) return CN_ENOMEM;
    }
    *deep = w->n;
    t->deepest = CN_MAX(t->deepest, w->n);
    struct eng_trie_node *node = &t->nodes[path[w->n - 1]];
    if (node->n == UINT8_MAX) return 0; /* as many equal tokens: the rest is never drawn */
    if (cn_grow(&t->ids, &t->cap_ids, t->n_ids + 1, sizeof *t->ids)) return CN_ENOMEM;
    if (!node->n) node->first = (uint32_t)t->n_ids;
    t->ids[t->n_ids++] = w->id;
    node->n++;
    return 0;
}

static int build(struct eng_tokens_tree *t, const struct word *words, size_t n, bool all,
                 uint32_t longest)
{
    uint32_t *path = cn_malloc_array(longest + (size_t)1, sizeof *path), deep = 0;
    int rc = path ? 0 : CN_ENOMEM;
    for (size_t i = 0; i < n && !rc; i++)
        if (all || !words[i].p || !plain_chars(words[i].p, words[i].n))
            rc = add_word(t, &words[i], path, &deep);
    for (uint32_t i = 0; i < deep && !rc; i++)
        t->nodes[path[i]].end = (uint32_t)t->n;
    free(path);
    return rc;
}

static int mark_plain(struct eng_trie *t, const struct word *words, size_t n)
{
    for (int i = 0; i <= ENG_TRIE_PLAIN; i++)
        if (!(t->plain[i] = cn_calloc(t->n_words, sizeof **t->plain))) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        uint32_t chars = words[i].p ? plain_chars(words[i].p, words[i].n) : 0, id = words[i].id;
        t->longest_plain = CN_MAX(t->longest_plain, chars);
        if (!chars) continue;
        for (uint32_t k = CN_MIN(chars, (uint32_t)ENG_TRIE_PLAIN); k <= ENG_TRIE_PLAIN; k++)
            if (k >= chars || k == ENG_TRIE_PLAIN) t->plain[k][id >> 5] |= 1u << (id & 31);
    }
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void name_token(struct word *w, uint32_t id)
{
    const char bytes[5] = {(char)0xFF, (char)(id >> 24), (char)(id >> 16), (char)(id >> 8),
                           (char)id};
    *w = (struct word){.n = sizeof bytes, .id = id};
    memcpy(w->control, bytes, sizeof bytes);
}

/* What can be drawn within a text, sorted. At most two a token. */
static size_t collect(const struct eng_vocab *v, struct word *words)
{
    size_t n = 0;
    for (uint32_t id = 0; id < eng_vocab_size(v); id++) {
        struct eng_str s = eng_vocab_piece(v, id, false);
        if (eng_vocab_is_eog(v, id)) continue;
        if (eng_vocab_is_special(v, id)) name_token(&words[n++], id);
        if (eng_vocab_is_control(v, id) || !s.n || s.n > UINT16_MAX) continue;
        if (memchr(s.p, 0xFF, s.n)) continue; /* in no text; it would spell tokens' names */
        words[n++] = (struct word){.p = s.p, .n = (uint32_t)s.n, .id = id};
    }
    if (n) qsort(words, n, sizeof *words, by_bytes);
    return n;
}

static int trie_new(const struct eng_vocab *v, struct eng_trie **out)
{
    struct word *words = cn_malloc_array(eng_vocab_size(v), 2 * sizeof *words);
    struct eng_trie *t = cn_calloc(1, sizeof *t);
    uint32_t longest = 0;
    int rc = words && t ? 0 : CN_ENOMEM;
    if (!rc) {
        size_t n = collect(v, words);
        for (size_t i = 0; i < n; i++)
            longest = CN_MAX(longest, words[i].n);
        t->n_vocab = (uint32_t)eng_vocab_size(v);
        t->n_words = (t->n_vocab + 31) / 32;
        t->eog = eng_vocab_eog(v, &t->n_eog);
        rc = build(&t->all, words, n, true, longest);
        if (!rc) rc = build(&t->rest, words, n, false, longest);
        if (!rc) rc = mark_plain(t, words, n);
    }
    free(words);
    if (rc) {
        eng_trie_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void eng_trie_free(struct eng_trie *t)
{
    if (!t) return;
    free(t->all.nodes);
    free(t->all.ids);
    free(t->rest.nodes);
    free(t->rest.ids);
    for (int i = 0; i <= ENG_TRIE_PLAIN; i++)
        free(t->plain[i]);
    free(t);
}

/* Two threads may both make it: one of the two is kept. */
const struct eng_trie *eng_vocab_trie(const struct eng_vocab *v)
{
    _Atomic(struct eng_trie *) *at = &v->spares->trie;
    struct eng_trie *t = atomic_load_explicit(at, memory_order_acquire), *made;
    if (t || trie_new(v, &made)) return t;
    if (atomic_compare_exchange_strong(at, &t, made)) return made;
    eng_trie_free(made);
    return t;
}

size_t eng_trie_longest(const struct eng_trie *t, const char *s, size_t n, uint32_t *id)
{
    const struct eng_tokens_tree *tree = &t->all;
    size_t found = 0, depth = 0;
    for (size_t i = 0; i < tree->n && depth < n;) {
        const struct eng_trie_node *node = &tree->nodes[i];
        if (node->depth != depth + 1) break; /* behind the subtree */
        if (node->byte != (uint8_t)s[depth]) {
            i = node->end;
            continue;
        }
        depth++;
        i++;
        if (!node->n) continue;
        found = depth;
        *id = tree->ids[node->first];
    }
    return found;
}

void eng_trie_clear(const struct eng_trie *t, uint32_t *mask, const char *bytes)
{
    const struct eng_tokens_tree *tree = &t->all;
    for (size_t i = 0; i < tree->n; i = tree->nodes[i].end) {
        if (!tree->nodes[i].byte || !strchr(bytes, tree->nodes[i].byte)) continue;
        for (size_t k = i; k < tree->nodes[i].end; k++)
            for (uint32_t j = 0; j < tree->nodes[k].n; j++) {
                uint32_t id = tree->ids[tree->nodes[k].first + j];
                mask[id >> 5] &= ~(1u << (id & 31));
            }
    }
}
