/* grammar: for tools: whether a text belongs to a grammar, and how long masks take along it. See
 * grammar.h. */
#include "engine/text/grammar/grammar.h"

#include "engine/text/grammar/grammar_impl.h"
#include "engine/text/grammar/token.h"

#include <stdlib.h>

enum { MATCH_BYTES = 256 << 20 };

static int say(int rc, struct cn_error *err)
{
    if (rc == CN_ELIMIT)
        return cn_fail(err, rc, "following the text takes more than %d MiB of memory here",
                       MATCH_BYTES >> 20);
    return rc ? cn_fail(err, rc, "%s", cn_err_info(rc)->text) : 0;
}

/* A control token's bytes in a grammar. */
static size_t put_control(struct eng_match *m, uint32_t id)
{
    const char bytes[ENG_TOKEN_BYTES] = {(char)ENG_TOKEN_MARK, (char)(id >> 24), (char)(id >> 16),
                                         (char)(id >> 8), (char)id};
    return eng_match_bytes_in(m, bytes, sizeof bytes);
}

/* The text, with the control tokens that it spells as such. *taken: bytes of it. */
static int follow(struct eng_match *m, const struct eng_vocab *v, const char *text, size_t n,
                  size_t *taken)
{
    struct eng_cuts cuts = {0};
    struct eng_tick tick = {0};
    size_t at = 0;
    int rc = v ? eng_special_find(v, text, n, NULL, 0, true, &tick, &cuts) : 0;
    for (size_t i = 0; i <= cuts.n && !rc; i++) {
        size_t to = i < cuts.n ? cuts.v[i].start : n;
        if (i < cuts.n && !eng_vocab_is_control(v, cuts.v[i].id)) continue;
        at += eng_match_bytes_in(m, text + at, to - at);
        if (at < to || i == cuts.n || put_control(m, cuts.v[i].id) < ENG_TOKEN_BYTES) break;
        at = cuts.v[i].end;
    }
    free(cuts.v);
    *taken = at;
    return rc ? rc : m->code;
}

int eng_grammar_check(const struct eng_grammar *g, const struct eng_vocab *v, const char *text,
                      size_t n, size_t *taken, bool *whole, struct cn_error *err)
{
    struct eng_match m;
    size_t k;
    int rc = eng_match_init(&m, &g->ir, MATCH_BYTES, ENG_RX_EMPTY);
    if (rc) return say(rc, err);
    rc = follow(&m, v, text, n, &k);
    bool is = !rc && k == n && eng_match_accepts(&m, &m.now);
    if (!rc) rc = m.code;
    eng_match_fini(&m);
    if (rc) return say(rc, err);
    *taken = k;
    *whole = is;
    return 0;
}

/* ---- masks along a text ---------------------------------------------------------------------- */

struct timing {
    const struct eng_vocab *v;
    const struct eng_trie *trie;
    struct eng_match m;
    struct eng_masker k;
    uint32_t *mask;
};

static int one_mask(struct timing *t, uint64_t *ns)
{
    uint64_t from = cn_now_ns();
    memset(t->mask, 0, t->trie->n_words * sizeof *t->mask);
    eng_mask(&t->k, &t->m, &t->m.now, UINT64_MAX, t->mask);
    *ns = cn_now_ns() - from;
    return t->m.code;
}

/* Advances by a token; false if the grammar does not allow it there. An SPM vocabulary puts a
 * space in front of the text's first token, which is not part of the text. */
static bool go_on(struct timing *t, uint32_t id, const char *text, size_t n, size_t *at)
{
    struct eng_str s = eng_vocab_piece(t->v, id, true);
    bool is_control = eng_vocab_is_control(t->v, id);
    bool added = !*at && s.n && *s.p == ' ' && (!n || *text != ' ');
    if (!added && !(t->mask[id / 32] >> (id % 32) & 1)) return false;
    size_t bytes = s.n - added, k;
    if (is_control)
        k = put_control(&t->m, id) == ENG_TOKEN_BYTES ? bytes : 0;
    else
        k = eng_match_bytes_in(&t->m, s.p + added, bytes);
    *at += k;
    return k == bytes && !t->m.code;
}

static int time_all(struct timing *t, const char *text, size_t n, const struct eng_ids *ids,
                    struct eng_grammar_times *out)
{
    int rc = 0;
    for (size_t i = 0; i <= ids->n && !rc; i++) { /* the last one is the mask of the end */
        rc = one_mask(t, &out->ns[i]);
        if (!rc) out->n = i + 1;
        if (rc || i == ids->n || !go_on(t, ids->v[i], text, n, &out->taken)) break;
    }
    if (!rc) rc = t->m.code;
    out->made = t->k.made;
    out->found = t->k.found;
    return rc;
}

int eng_grammar_time(struct eng_grammar *g, const struct eng_vocab *v, const char *text, size_t n,
                     struct eng_grammar_times *out, struct cn_error *err)
{
    struct timing t = {.v = v, .trie = eng_vocab_trie(v)};
    struct eng_grammar_times times = {0};
    struct eng_ids ids = {0};
    int rc = eng_tokenize(v, text, n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, err);
    if (rc) return rc;
    times.ns = cn_calloc(ids.n + 1, sizeof *times.ns);
    if (t.trie) t.mask = cn_calloc(t.trie->n_words, sizeof *t.mask);
    rc = times.ns && t.mask ? 0 : CN_ENOMEM;
    if (!rc) rc = eng_match_init(&t.m, &g->ir, MATCH_BYTES, ENG_RX_EMPTY);
    if (!rc) {
        rc = eng_masker_init(&t.k, t.trie, eng_grammar_masks(g, t.trie));
        if (!rc) rc = time_all(&t, text, n, &ids, &times);
        eng_masker_fini(&t.k);
        eng_match_fini(&t.m);
    }
    free(t.mask);
    eng_ids_fini(&ids);
    if (rc) {
        free(times.ns);
        return say(rc, err);
    }
    *out = times;
    return 0;
}
