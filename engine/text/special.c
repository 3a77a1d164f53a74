/* engine/text: finds the special tokens written in a text.
 *
 * What is to be found is defined by a procedure: for each special token, longest first, cut every
 * occurrence, left to right, out of the text that is still raw. Done literally that is one pass per
 * token. Here an Aho-Corasick automaton over the reversed texts runs once, from the end of the text
 * to its start, so that at each position it knows all tokens that begin there. Each position enters
 * a queue with its first token in the procedure's order; where bytes of it are taken by an earlier
 * cut, it enters again with its next shorter one. Time: O(n log n), and O(n) where special tokens
 * are few.
 * The automaton is immutable; the rest belongs to the call. */
#include "engine/text/heap.h"
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum { MAX_SPECIAL_BYTES = 16 << 20 };

struct node {
    uint32_t child, sibling; /* 0 = none: the root is no node's child */
    uint32_t fail;           /* longest proper suffix of this string that is in the trie */
    uint32_t shorter;        /* nearest node along `fail` with a token; 0 = none */
    uint32_t rank;           /* of the first token that ends here, ENG_NO_ID = none */
    uint32_t free_rank;      /* of the first one that is no control token, if that is another */
    uint8_t byte;
};

struct ranked { uint32_t id, len; };

struct eng_special {
    struct node *node;
    size_t n_nodes;
    uint32_t root[256];
    struct ranked *token; /* in the order of cutting */
    size_t n_tokens;
};

/* ---- building -------------------------------------------------------------------------------- */

bool eng_vocab_is_special(const struct eng_vocab *v, uint32_t id)
{
    return v->type[id] == ENG_TOKEN_USER || (v->flags[id] & ENG_TF_CONTROL);
}

static int by_length(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->len != y->len) return x->len > y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t child_of(const struct eng_special *s, uint32_t at, uint8_t b)
{
    if (at == 0) return s->root[b];
    uint32_t c = s->node[at].child;
    while (c && s->node[c].byte != b)
        c = s->node[c].sibling;
    return c;
}

static void insert(struct eng_special *s, struct eng_str text, uint32_t rank, bool control)
{
    uint32_t at = 0;
    for (size_t i = text.n; i-- > 0;) {
        uint8_t b = (uint8_t)text.p[i];
        uint32_t next = child_of(s, at, b);
        if (!next) {
            next = (uint32_t)s->n_nodes++;
            s->node[next] = (struct node){.byte = b, .rank = ENG_NO_ID, .free_rank = ENG_NO_ID};
            s->node[next].sibling = s->node[at].child;
            s->node[at].child = next;
            if (at == 0) s->root[b] = next;
        }
        at = next;
    }
    /* Of tokens with the same text the first in the order takes every occurrence, except where a
     * control token is not recognised. */
    if (s->node[at].rank == ENG_NO_ID)
        s->node[at].rank = rank;
    else if (!control && s->node[at].free_rank == ENG_NO_ID)
        s->node[at].free_rank = rank;
}

/* Breadth first, so that `fail` of every shorter string is there. */
static int link_nodes(struct eng_special *s)
{
    uint32_t *queue = cn_malloc_array(s->n_nodes, sizeof *queue);
    if (!queue) return CN_ENOMEM;
    size_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t at = queue[head++];
        for (uint32_t c = s->node[at].child; c; c = s->node[c].sibling) {
            uint32_t f = s->node[at].fail, to = 0;
            while (at && !(to = child_of(s, f, s->node[c].byte)) && f)
                f = s->node[f].fail;
            s->node[c].fail = to;
            s->node[c].shorter = s->node[to].rank != ENG_NO_ID ? to : s->node[to].shorter;
            queue[tail++] = c;
        }
    }
    free(queue);
    return 0;
}

int eng_special_new(const struct eng_vocab *v, struct eng_special **out)
{
    size_t bytes = 0, n = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        size_t len = eng_key(&v->texts, id).n;
        if (!eng_vocab_is_special(v, id) || len == 0) continue;
        bytes += len;
        n++;
    }
    if (bytes > MAX_SPECIAL_BYTES) return CN_ELIMIT;
    struct eng_special *s = cn_calloc(1, sizeof *s);
    if (!s) return CN_ENOMEM;
    s->token = cn_malloc_array(n, sizeof *s->token);
    s->node = cn_malloc_array(bytes + 1, sizeof *s->node);
    if (!s->token || !s->node) {
        eng_special_free(s);
        return CN_ENOMEM;
    }
    for (uint32_t id = 0; id < v->n; id++) {
        size_t len = eng_key(&v->texts, id).n;
        if (eng_vocab_is_special(v, id) && len)
            s->token[s->n_tokens++] = (struct ranked){id, (uint32_t)len};
    }
    qsort(s->token, s->n_tokens, sizeof *s->token, by_length);
    s->node[0] = (struct node){.rank = ENG_NO_ID, .free_rank = ENG_NO_ID};
    s->n_nodes = 1;
    for (size_t i = 0; i < s->n_tokens; i++) {
        uint32_t id = s->token[i].id;
        insert(s, eng_key(&v->texts, id), (uint32_t)i, v->flags[id] & ENG_TF_CONTROL);
    }
    int rc = link_nodes(s);
    if (rc) {
        eng_special_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void eng_special_free(struct eng_special *s)
{
    if (!s) return;
    free(s->node);
    free(s->token);
    free(s);
}

/* ---- searching ------------------------------------------------------------------------------- */

/* A position where a token begins. */
struct place {
    uint32_t at;
    uint32_t node, rank;  /* of the token under consideration */
    uint32_t trusted_end; /* the bytes from `at` up to here are trusted; `at` = none */
    uint32_t raw_start, raw_end;
    bool cut;
};

struct search {
    const struct eng_vocab *v;
    const struct eng_special *s;
    const char *text;
    size_t n;
    bool parse;
    struct place *place; /* in text order once the scan is done */
    size_t n_places, cap;
    uint8_t *taken;
    uint64_t *heap;
    struct eng_tick *tick;
};

/* Moves p to the longest token, from its node on along the shorter ones, that may be recognised
 * there and whose last byte is free; false when there is none. (Cuts so far are at least as long as
 * the tokens tried here, so that a cut inside a token would cover one of its ends.) */
static bool usable(const struct search *q, struct place *p)
{
    for (; p->node; p->node = q->s->node[p->node].shorter) {
        const struct node *node = &q->s->node[p->node];
        if (node->rank == ENG_NO_ID) continue;
        const struct ranked *t = &q->s->token[node->rank];
        if (q->taken && q->taken[p->at + t->len - 1]) continue;
        bool control = q->v->flags[t->id] & ENG_TF_CONTROL;
        p->rank = node->rank;
        if (control && !(q->parse && p->at + t->len <= p->trusted_end)) p->rank = node->free_rank;
        if (p->rank != ENG_NO_ID) return true;
    }
    return false;
}

static int add_place(struct search *q, struct place p)
{
    if (q->n_places == q->cap) {
        int rc = eng_grow(q->tick, &q->place, &q->cap, q->n_places + 1, sizeof *q->place);
        if (rc) return rc;
    }
    q->place[q->n_places++] = p;
    return 0;
}

static int scan(struct search *q, const struct eng_span *spans, size_t n_spans)
{
    const struct eng_special *s = q->s;
    uint32_t at = 0;
    size_t span = n_spans ? n_spans - 1 : 0, trusted_end = q->n;
    for (size_t i = q->n; i-- > 0;) {
        int rc = i % 1024 ? 0 : eng_tick(q->tick, 1024);
        if (rc) return rc;
        while (span > 0 && i < spans[span - 1].end) { /* on into the span before */
            size_t start = spans[span - 1].end;
            if (!spans[span].trusted && spans[span].end > start) trusted_end = start;
            span--;
        }
        bool trusted = n_spans == 0 || spans[span].trusted;
        uint8_t b = (uint8_t)q->text[i];
        uint32_t next;
        while (!(next = child_of(s, at, b)) && at)
            at = s->node[at].fail;
        at = next;
        if (!at) continue;
        struct place p = {.at = (uint32_t)i, .node = at};
        p.trusted_end = trusted ? (uint32_t)trusted_end : p.at;
        if (usable(q, &p)) {
            if ((rc = add_place(q, p))) return rc;
        }
    }
    for (size_t i = 0; i < q->n_places / 2; i++) {
        if (i % 1024 == 0) eng_tick(q->tick, 1024);
        struct place t = q->place[i];
        q->place[i] = q->place[q->n_places - 1 - i];
        q->place[q->n_places - 1 - i] = t;
    }
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void cut(struct search *q, struct place *p)
{
    const struct ranked *t = &q->s->token[p->rank];
    size_t start = p->at, end = start + t->len;
    memset(q->taken + start, 1, end - start);
    if (q->v->flags[t->id] & ENG_TF_LSTRIP) {
        while (start > 0 && !q->taken[start - 1] && is_space(q->text[start - 1]))
            q->taken[--start] = 1;
    }
    if (q->v->flags[t->id] & ENG_TF_RSTRIP) {
        while (end < q->n && !q->taken[end] && is_space(q->text[end]))
            q->taken[end++] = 1;
    }
    p->raw_start = (uint32_t)start;
    p->raw_end = (uint32_t)end;
    p->cut = true;
}

static uint64_t key_of(const struct search *q, size_t i)
{
    return (uint64_t)q->place[i].rank << 32 | i;
}

/* The places from..to in the order of the procedure; keys are rank << 32 | place. */
static int cut_places(struct search *q, size_t from, size_t to)
{
    size_t n_heap = to - from;
    for (size_t i = from; i < to; i++)
        q->heap[i - from] = key_of(q, i);
    eng_heap_build(q->heap, n_heap);
    while (n_heap > 0) {
        int rc = eng_tick(q->tick, 16);
        if (rc) return rc;
        uint32_t i = (uint32_t)eng_heap_pop(q->heap, &n_heap);
        struct place *p = &q->place[i];
        if (q->taken[p->at]) continue;
        uint32_t rank = p->rank;
        if (!usable(q, p)) continue;
        if (p->rank == rank)
            cut(q, p);
        else
            eng_heap_push(q->heap, &n_heap, key_of(q, i));
    }
    return 0;
}

/* Tokens that do not overlap cannot take bytes from each other, so the procedure is gone through
 * for one run of overlapping ones after the other. Mostly the first token to be cut is all of a
 * run. */
static int cut_in_order(struct search *q)
{
    int rc = eng_pay(q->tick, q->n + q->n_places * sizeof *q->heap);
    if (rc) return rc;
    q->taken = cn_calloc(q->n, 1);
    q->heap = cn_malloc_array(q->n_places, sizeof *q->heap);
    if (!q->taken || !q->heap) return CN_ENOMEM;
    if (q->v->strips) return cut_places(q, 0, q->n_places);
    for (size_t from = 0, to; from < q->n_places && rc == 0; from = to) {
        size_t end = 0, first = from;
        for (to = from; to < q->n_places && (to == from || q->place[to].at < end); to++) {
            size_t e = q->place[to].at + q->s->token[q->place[to].rank].len;
            end = CN_MAX(end, e);
            if (key_of(q, to) < key_of(q, first)) first = to;
        }
        const struct place *p = &q->place[first];
        if (first == from && p->at + q->s->token[p->rank].len == end)
            cut(q, &q->place[first]);
        else
            rc = cut_places(q, from, to);
        if (rc == 0) rc = eng_tick(q->tick, to - from);
    }
    return rc;
}

static int collect(const struct search *q, struct eng_cuts *out)
{
    for (size_t i = 0; i < q->n_places; i++) {
        const struct place *p = &q->place[i];
        int rc = i % 1024 ? 0 : eng_tick(q->tick, 1024);
        if (rc) return rc;
        if (!p->cut) continue;
        const struct ranked *t = &q->s->token[p->rank];
        if (out->n == out->cap) {
            rc = eng_grow(q->tick, &out->v, &out->cap, out->n + 1, sizeof *out->v);
            if (rc) return rc;
        }
        out->v[out->n++] = (struct eng_cut){p->at, p->at + t->len, p->raw_start, p->raw_end, t->id};
    }
    return 0;
}

int eng_special_find(const struct eng_vocab *v, const char *text, size_t n,
                     const struct eng_span *spans, size_t n_spans, bool parse,
                     struct eng_tick *tick, struct eng_cuts *out)
{
    struct search q = {.v = v, .s = v->special, .text = text, .n = n, .parse = parse, .tick = tick};
    if (v->special->n_tokens == 0 || n == 0) return 0;
    int rc = scan(&q, spans, n_spans);
    if (rc == 0 && q.n_places > 0) rc = cut_in_order(&q);
    if (rc == 0) rc = collect(&q, out);
    free(q.place);
    free(q.taken);
    free(q.heap);
    return rc;
}
