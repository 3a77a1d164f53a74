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

/* Bytes of the plain characters that a text begins with; *chars: how many characters. */
static size_t plain_start(const char *s, size_t n, uint32_t *chars)
{
    uint32_t cp;
    size_t i = 0, len;
    for (*chars = 0; i < n; i += len, ++*chars) {
        len = cn_utf8_decode(s + i, n - i, &cp);
        if (!len || cp < 0x20 || cp == 0x7F || cp == '"' || cp == '\\') break;
        if (cp == 0x2028 || cp == 0x2029) break;
    }
    return i;
}

/* Characters of a plain token; 0: it is not plain. */
static uint32_t plain_chars(const struct word *w)
{
    uint32_t chars;
    return w->p && plain_start(w->p, w->n, &chars) == w->n ? chars : 0;
}

/* ---- trees ----------------------------------------------------------------------------------- */

struct builder {
    struct eng_tokens_tree *t;
    uint32_t *path, deep; /* nodes that lead to the last word */
};

static int add_node(struct eng_tokens_tree *t, uint8_t byte, uint32_t depth)
{
    if (cn_grow(&t->nodes, &t->cap, t->n + 1, sizeof *t->nodes) ||
        cn_grow(&t->first, &t->cap_first, t->n + 2, sizeof *t->first))
        return CN_ENOMEM;
    t->first[t->n] = (uint32_t)t->n_ids;
    t->nodes[t->n++] = (struct eng_trie_node){.depth = (uint16_t)depth, .byte = byte};
    return 0;
}

/* Words come sorted, so that ids are in the order of their nodes. */
static int add_word(struct builder *b, const char *s, uint32_t n, uint32_t id)
{
    struct eng_tokens_tree *t = b->t;
    uint32_t same = 0;
    while (same < b->deep && same < n && t->nodes[b->path[same]].byte == (uint8_t)s[same])
        same++;
    for (uint32_t i = same; i < b->deep; i++)
        t->nodes[b->path[i]].end = (uint32_t)t->n;
    for (uint32_t i = same; i < n; i++) {
        b->path[i] = (uint32_t)t->n;
        if (add_node(t, (uint8_t)s[i], i + 1)) return CN_ENOMEM;
    }
    b->deep = n;
    t->deepest = CN_MAX(t->deepest, n);
    if (cn_grow(&t->ids, &t->cap_ids, t->n_ids + 1, sizeof *t->ids)) return CN_ENOMEM;
    t->ids[t->n_ids++] = id;
    t->nodes[b->path[n - 1]].ends = true;
    t->first[t->n] = (uint32_t)t->n_ids;
    return 0;
}

static bool is_any(const struct word *w)
{
    return true;
}
static bool is_rest(const struct word *w)
{
    return !plain_chars(w);
}
static bool is_short_rest(const struct word *w)
{
    return w->n <= ENG_TRIE_LONG && is_rest(w);
}
static bool is_long_rest(const struct word *w)
{
    return w->n > ENG_TRIE_LONG && is_rest(w);
}

static int build(struct eng_tokens_tree *t, const struct word *words, size_t n,
                 bool (*is)(const struct word *w))
{
    struct builder b = {.t = t};
    uint32_t longest = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        longest = CN_MAX(longest, words[i].n);
    b.path = cn_malloc_array(longest + (size_t)1, sizeof *b.path);
    if (!b.path) return CN_ENOMEM;
    for (size_t i = 0; i < n && !rc; i++)
        if (is(&words[i])) rc = add_word(&b, bytes_of(&words[i]), words[i].n, words[i].id);
    for (uint32_t i = 0; i < b.deep && !rc; i++)
        t->nodes[b.path[i]].end = (uint32_t)t->n;
    free(b.path);
    return rc;
}

/* Cuts the words down to their tails; those that have none, and long ones, are left out. */
static int build_tails(struct eng_tokens_tree *t, struct word *words, size_t n)
{
    size_t kept = 0;
    uint32_t chars;
    for (size_t i = 0; i < n; i++) {
        struct word w = words[i];
        if (!is_short_rest(&w)) continue;
        size_t cut = w.p ? plain_start(w.p, w.n, &chars) : 0;
        if (cut) w.p += cut, w.n -= (uint32_t)cut;
        words[kept++] = w;
    }
    if (kept) qsort(words, kept, sizeof *words, by_bytes);
    return build(t, words, kept, is_any);
}

static int mark_plain(struct eng_trie *t, const struct word *words, size_t n)
{
    for (int i = 0; i < ENG_TRIE_PLAIN; i++)
        if (!(t->plain[i] = cn_calloc(t->n_words, sizeof **t->plain))) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        uint32_t chars = plain_chars(&words[i]), id = words[i].id;
        if (!chars) continue;
        for (uint32_t k = chars; k < ENG_TRIE_PLAIN; k++)
            t->plain[k][id >> 5] |= 1u << (id & 31);
        t->plain[0][id >> 5] |= 1u << (id & 31);
        if (chars < ENG_TRIE_PLAIN) continue;
        if (cn_grow(&t->long_plain, &t->cap_long_plain, t->n_long_plain + 1, sizeof *t->long_plain))
            return CN_ENOMEM;
        t->long_plain[t->n_long_plain++] = (struct eng_plain){id, chars};
    }
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void name_token(struct word *w, uint32_t id)
{
    *w = (struct word){.id = id};
    w->n = eng_trie_name(id, w->control);
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
    int rc = words && t ? 0 : CN_ENOMEM;
    if (!rc) {
        size_t n = collect(v, words);
        t->n_vocab = (uint32_t)eng_vocab_size(v);
        t->n_words = (t->n_vocab + 31) / 32;
        t->eog = eng_vocab_eog(v, &t->n_eog);
        rc = build(&t->all, words, n, is_any);
        if (!rc) rc = build(&t->rest, words, n, is_rest);
        if (!rc) rc = build(&t->long_rest, words, n, is_long_rest);
        if (!rc) rc = mark_plain(t, words, n);
        if (!rc) rc = build_tails(&t->tails, words, n);
    }
    free(words);
    if (rc) {
        eng_trie_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

static void tree_fini(struct eng_tokens_tree *t)
{
    free(t->nodes);
    free(t->first);
    free(t->ids);
}

void eng_trie_free(struct eng_trie *t)
{
    if (!t) return;
    tree_fini(&t->all);
    tree_fini(&t->rest);
    tree_fini(&t->tails);
    tree_fini(&t->long_rest);
    for (int i = 0; i < ENG_TRIE_PLAIN; i++)
        free(t->plain[i]);
    free(t->long_plain);
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
        if (!node->ends) continue;
        found = depth;
        *id = tree->ids[tree->first[i - 1]];
    }
    return found;
}

void eng_trie_clear(const struct eng_trie *t, uint32_t *mask, const char *bytes)
{
    const struct eng_tokens_tree *tree = &t->all;
    for (size_t i = 0; i < tree->n; i = tree->nodes[i].end) {
        if (!tree->nodes[i].byte || !strchr(bytes, tree->nodes[i].byte)) continue;
        for (uint32_t k = tree->first[i]; k < tree->first[tree->nodes[i].end]; k++)
            mask[tree->ids[k] >> 5] &= ~(1u << (tree->ids[k] & 31));
    }
}
