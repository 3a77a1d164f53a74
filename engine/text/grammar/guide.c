/* guide: see guide.h. */
#include "engine/text/grammar/guide_impl.h"

#include "engine/text/grammar/calls.h"

#include <stdlib.h>

enum {
    MOST_FORCED = 256,  /* bytes */
    CHARGE = 1 << 18,   /* bytes that are charged at once; free before each piece of work */
    FIRST = 2 * CHARGE, /* that a choice has from the beginning: its matcher, and free ones */
    DEFAULT_MOST = 64 << 20,
    CLOSING = 16, /* tokens that closing the reasoning may take, beside the answer */
};

static int close_tokens(struct eng_guide *g)
{
    struct eng_ids ids = {0};
    const struct eng_reply_format *f = g->in.reply;
    struct eng_str end = {"", 0};
    int rc = 0;
    if (eng_guide_whole(g)) end = eng_calls_think_end(f);
    if (end.n)
        rc = eng_tokenize(g->in.vocab, end.p, end.n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL);
    else if (f && !eng_guide_whole(g))
        rc = eng_reply_closing(f, g->in.vocab, &ids);
    g->closing = ids.v;
    g->n_closing = ids.n;
    return rc;
}

int eng_guide_prepare(const struct eng_vocab *v)
{
    return eng_vocab_trie(v) ? 0 : CN_ENOMEM;
}

static size_t struct_bytes(uint32_t n)
{
    return sizeof(struct eng_guide) + n * sizeof(struct eng_held);
}

static uint64_t kept_bytes(const struct eng_vocab *v, uint32_t n, bool grammar)
{
    return struct_bytes(n) + (grammar ? n * (eng_vocab_size(v) / 8 + sizeof(uint64_t)) : 0);
}

uint64_t eng_guide_bytes(const struct eng_vocab *v, uint32_t n, bool grammar)
{
    return kept_bytes(v, n, grammar) + (grammar ? (uint64_t)n * FIRST : 0);
}

int eng_guide_new(const struct eng_guide_in *in, struct eng_guide **out)
{
    uint64_t all = eng_guide_bytes(in->vocab, in->n, in->grammar != NULL);
    int rc = cn_account_take(in->account, all);
    struct eng_guide *g = rc ? NULL : cn_calloc(1, struct_bytes(in->n));
    if (!g) {
        if (!rc) cn_account_give(in->account, all);
        return rc ? rc : CN_ENOMEM;
    }
    for (uint32_t i = 0; i < in->n && in->grammar; i++)
        g->choices[i].charged = FIRST;
    g->bytes = kept_bytes(in->vocab, in->n, in->grammar != NULL);
    g->in = *in;
    if (!g->in.max_bytes) g->in.max_bytes = DEFAULT_MOST;
    g->in.grammar = in->grammar ? eng_grammar_ref(in->grammar) : NULL;
    rc = close_tokens(g);
    if (in->free && in->reply) eng_seek_init(&g->seek, in->reply);
    g->trie = eng_vocab_trie(in->vocab);
    if (!g->trie) rc = CN_ENOMEM;
    if (rc) {
        eng_guide_free(g);
        return rc;
    }
    for (uint32_t i = 0; i < in->n; i++) {
        struct eng_spot *s = &g->choices[i].at;
        s->called = eng_guide_whole(g) || !in->reply;
        if (in->reply) eng_reply_init(&s->reply, in->reply, NULL, (enum eng_reply_start)in->start);
        s->phase = !in->reply || s->called || eng_reply_answers(&s->reply) ? ENG_HELD_ANSWERS
                   : eng_reply_reasons(&s->reply)                          ? ENG_HELD_THINKS
                                                                           : ENG_HELD_BEFORE;
        s->marked =
            s->phase == ENG_HELD_THINKS || (enum eng_reply_start)in->start == ENG_REPLY_CLOSED;
    }
    *out = g;
    return 0;
}

static void unmake(struct eng_held *c)
{
    struct eng_masker told = {.made = c->k.made, .found = c->k.found};
    if (!c->made) return;
    eng_match_fini(&c->m);
    eng_masker_fini(&c->k);
    c->k = told;
    c->made = false;
}

void eng_guide_limit(void *guide, uint64_t max_tokens)
{
    ((struct eng_guide *)guide)->in.max_tokens = max_tokens;
}

void eng_guide_stop(void *guide)
{
    struct eng_guide *g = guide;
    for (uint32_t i = 0; i < g->in.n; i++)
        atomic_store_explicit(&g->choices[i].stopped, true, memory_order_relaxed);
}

void eng_guide_end(void *guide, uint32_t choice)
{
    struct eng_guide *g = guide;
    struct eng_held *c = &g->choices[choice];
    struct eng_places *places[] = {&c->drafted[0], &c->drafted[1], &c->drafted[2], &c->home};
    unmake(c);
    for (size_t i = 0; i < CN_ARRAY_LEN(places); i++) {
        free(places[i]->v);
        *places[i] = (struct eng_places){0};
    }
    free(c->forced);
    c->forced = NULL;
    cn_account_give(g->in.account, c->charged);
    c->charged = 0;
}

void eng_guide_free(struct eng_guide *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->in.n; i++)
        eng_guide_end(g, i);
    cn_account_give(g->in.account, g->bytes);
    free(g->closing);
    eng_grammar_unref(g->in.grammar);
    free(g);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Room for the next piece of work is paid for; the matcher takes no more than that. */
static int charge(struct eng_guide *g, struct eng_held *c)
{
    uint64_t now = c->made ? eng_match_bytes(&c->m) : 0;
    while (!c->code && c->charged < now + CHARGE) {
        if (c->charged + CHARGE > g->in.max_bytes) return eng_held_fail(c, CN_ELIMIT);
        int rc = g->in.account ? cn_account_take(g->in.account, CHARGE) : 0;
        if (rc) return eng_held_fail(c, rc);
        c->charged += CHARGE;
    }
    if (c->made) c->m.max_bytes = c->charged;
    return c->code;
}

/* Some masks need more: twice as much, if that may be. What the matcher made in vain is dropped;
 * where the answer is stays. */
static bool double_room(struct eng_guide *g, struct eng_held *c)
{
    if (c->code != CN_ELIMIT || c->m.code != CN_ELIMIT || 2 * c->charged > g->in.max_bytes)
        return false;
    if (g->in.account && cn_account_take(g->in.account, c->charged)) return false;
    c->charged *= 2;
    c->code = c->m.code = c->m.rx.code = 0;
    c->m.max_bytes = c->charged;
    eng_match_compact(&c->m);
    return true;
}

static bool in_time(void *arg)
{
    struct eng_held *c = arg;
    uint64_t now = cn_thread_ns();
    if (!c->until_ns) c->until_ns = now + c->most_ns;
    return now < c->until_ns && !atomic_load_explicit(&c->stopped, memory_order_relaxed);
}

/* Bounds the work at hand: by max_ns where a step waits, else by the guide's own bound. Most work
 * is so short that it never looks at the clock. */
static void start_clock(const struct eng_guide *g, struct eng_held *c, uint64_t max_ns)
{
    c->most_ns = CN_MIN(g->in.max_ns, max_ns);
    c->until_ns = 0;
}

/* A grammar of whole replies, where the prompt is in one already. If the grammar does not have
 * that, it begins anew. */
static int begin_inside(struct eng_guide *g, struct eng_held *c)
{
    struct cn_buf head;
    if (!eng_guide_whole(g)) return 0;
    cn_buf_init(&head, 0);
    int rc = eng_calls_head(g->in.reply, g->in.vocab, (enum eng_reply_start)g->in.start, &head);
    if (!rc && head.len && eng_held_copy(c, &c->m.now, &c->home) &&
        !eng_held_bytes(c, (struct eng_str){head.data, head.len}, &c->m.now, &c->drafted[1]))
        eng_held_copy(c, &c->home, &c->m.now);
    cn_buf_fini(&head);
    return rc;
}

/* The matcher is made when it is first needed. */
static int ready(struct eng_guide *g, struct eng_held *c)
{
    const struct eng_grammar *grammar = g->in.grammar;
    struct eng_masks *masks = NULL;
    if (c->code || charge(g, c)) return c->code;
    if (c->made) return 0;
    uint32_t lead = g->in.reply && !grammar->whole ? grammar->lead : ENG_RX_EMPTY;
    int rc = eng_match_init(&c->m, &grammar->ir, c->charged, lead);
    if (rc) return eng_held_fail(c, rc);
    c->m.trie = g->trie;
    c->m.rx.keep_going = g->in.max_ns ? in_time : NULL;
    c->m.rx.arg = c;
    masks = eng_grammar_masks(g->in.grammar, g->trie);
    rc = eng_masker_init(&c->k, g->trie, masks);
    if (rc) {
        eng_match_fini(&c->m);
        return eng_held_fail(c, rc);
    }
    c->made = true;
    rc = begin_inside(g, c);
    if (rc) eng_held_fail(c, rc);
    if (c->code) unmake(c); /* if it may begin again, then from there */
    return c->code;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Tokens that the answer may still have, the next one included, but not the one that ends it. A
 * call that need not be is not hurried: it would become that of another function. */
static uint64_t tokens_left(const struct eng_guide *g, const struct eng_spot *s)
{
    uint64_t taken = s->n_tokens + (g->trie->n_eog > 0);
    if (g->in.max_tokens == UINT64_MAX || g->in.free) return UINT64_MAX;
    return g->in.max_tokens > taken ? g->in.max_tokens - taken : 0;
}

/* The reply holds white space back until it knows what begins. */
static bool step_blanks(struct eng_held *c, const struct eng_spot *s, const struct eng_places **at)
{
    struct eng_str blanks = {s->blanks, s->n_blanks};
    if (!blanks.n) return true;
    if (*at != &c->drafted[0] && !eng_held_copy(c, *at, &c->drafted[0])) return false;
    *at = &c->drafted[0];
    return eng_held_bytes(c, blanks, &c->drafted[0], &c->drafted[1]);
}

/* In reasoning, and where it may begin, only an end of generation would leave no answer. */
static bool all_but_ends(const struct eng_guide *g, uint32_t *mask)
{
    const struct eng_trie *t = g->trie;
    for (uint32_t i = 0; i < t->n_vocab / 32; i++)
        mask[i] = UINT32_MAX;
    for (uint32_t i = t->n_vocab / 32 * 32; i < t->n_vocab; i++)
        mask[i >> 5] |= 1u << (i & 31);
    for (size_t i = 0; i < t->n_eog; i++)
        mask[t->eog[i] >> 5] &= ~(1u << (t->eog[i] & 31));
    return true;
}

static bool any_bit(const uint32_t *mask, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (mask[i]) return true;
    return false;
}

/* A mark of the reply's is never text: it comes where the grammar asks for the token, or not. */
static void bar_marks(struct eng_guide *g, struct eng_held *c, const struct eng_places *at,
                      uint32_t *mask)
{
    const struct eng_reply_format *f = g->in.reply;
    for (size_t i = 0; f && i < f->n_tokens; i++) {
        uint32_t id = f->tokens[i].id, bit = 1u << (id & 31);
        if (mask[id >> 5] & bit && !eng_held_takes(c, at, id)) mask[id >> 5] &= ~bit;
    }
}

/* White space is the answer's where no mark is before it: the answer begins without any, unless
 * nothing else may come. */
static void begin_solid(const struct eng_guide *g, uint32_t *mask)
{
    size_t n = g->trie->n_words;
    uint32_t *all = cn_malloc_array(n, sizeof *all);
    if (!all) return; /* then it has some */
    memcpy(all, mask, n * sizeof *all);
    eng_trie_clear(g->trie, mask, " \t\r\n");
    if (!any_bit(mask, n)) memcpy(mask, all, n * sizeof *all);
    free(all);
}

static bool make_mask(struct eng_guide *g, struct eng_held *c, const uint32_t *drafts,
                      uint32_t n_drafts, uint32_t *mask)
{
    const struct eng_places *at = &c->m.now;
    struct eng_spot s = c->at;
    if (n_drafts) {
        if (!eng_held_copy(c, at, &c->drafted[0])) return true;
        if (g->in.free && !s.called && !eng_held_copy(c, at, &c->home)) return true;
        at = &c->drafted[0];
    }
    for (uint32_t i = 0; i < n_drafts; i++)
        /* a draft that may not come is never taken: what follows it does not matter */
        if (!eng_held_token(g, c, &s, drafts[i], &c->drafted[0], &c->drafted[1]))
            return c->code != 0;
    if (g->in.free && !s.called) return false;
    if (s.phase == ENG_HELD_THINKS || (s.phase == ENG_HELD_BEFORE && eng_reply_heads(&s.reply)))
        return all_but_ends(g, mask);
    if (s.phase == ENG_HELD_BEFORE && !step_blanks(c, &s, &at)) return c->code != 0;
    c->k.narrowed = false;
    if (eng_mask(&c->k, &c->m, at, tokens_left(g, &s), mask)) eng_held_fail(c, c->m.code);
    if (c->k.narrowed) c->narrowed |= UINT64_C(1) << CN_MIN(n_drafts, 63u);
    if (!any_bit(mask, g->trie->n_words)) {
        if (n_drafts) return false; /* the drafts lead nowhere: the masks before keep them out */
        eng_held_fail(c, CN_EINTERNAL);
    }
    bar_marks(g, c, at, mask);
    /* in front of the mark of a call it is markup */
    if (!s.begun && !s.marked && !g->in.grammar->calls) begin_solid(g, mask);
    if (s.phase == ENG_HELD_BEFORE) eng_reply_openings(g->in.reply, g->in.grammar->calls, mask);
    return true;
}

/* Undoes what was begun within a short time: the answer is where it was. False: it fails. */
static bool put_off(struct eng_held *c)
{
    c->until_ns = UINT64_MAX;
    c->code = 0;
    if (!c->made) return true;
    c->m.code = c->m.rx.code = 0;
    int rc = eng_match_compact(&c->m);
    if (rc) eng_held_fail(c, rc); /* what was begun may be wrong */
    return !rc;
}

/* Masks behind drafts are narrowed or not by themselves: these may not come true. */
static void forget_narrowed(struct eng_held *c, uint32_t n_drafts)
{
    c->narrowed = n_drafts ? c->narrowed & ~(UINT64_C(1) << CN_MIN(n_drafts, 63u)) : 0;
}

int eng_guide_mask(void *guide, uint32_t choice, const uint32_t *drafts, uint32_t n_drafts,
                   uint64_t max_ns, uint32_t *mask)
{
    struct eng_guide *g = guide;
    struct eng_held *c = &g->choices[choice];
    uint64_t began = cn_now_ns();
    bool failed = c->code != 0; /* before this: that is not undone */
    forget_narrowed(c, n_drafts);
    if (!g->in.grammar || (g->in.free && !c->at.called && !n_drafts && !c->code))
        return ENG_ALL_IDS;
    if (c->at.phase == ENG_HELD_THINKS && !g->in.free && !n_drafts && !c->code)
        return all_but_ends(g, mask) ? ENG_SOME_IDS : ENG_ALL_IDS;
    start_clock(g, c, max_ns);
    bool bound = ready(g, c) || make_mask(g, c, drafts, n_drafts, mask);
    while (c->code && c->made && double_room(g, c)) {
        memset(mask, 0, g->trie->n_words * sizeof *mask);
        bound = make_mask(g, c, drafts, n_drafts, mask);
    }
    c->ns += cn_now_ns() - began;
    if (!failed && c->code == CN_ECANCELLED && max_ns < g->in.max_ns && put_off(c))
        return ENG_NO_TIME;
    if (c->code) memset(mask, 0, g->trie->n_words * sizeof *mask);
    return bound ? ENG_SOME_IDS : ENG_ALL_IDS;
}

/* ---- tokens that must come ------------------------------------------------------------------- */

static int add_forced(struct eng_held *c, const uint32_t *ids, size_t n)
{
    if (cn_grow(&c->forced, &c->cap_forced, c->n_forced + n, sizeof *c->forced))
        return eng_held_fail(c, CN_ENOMEM);
    if (n) memcpy(c->forced + c->n_forced, ids, n * sizeof *ids);
    c->n_forced += n;
    return 0;
}

/* Whether the reasoning must end now: its tokens are spent, or hardly enough are left for the
 * answer. */
static bool must_close(struct eng_guide *g, struct eng_held *c)
{
    uint64_t left = tokens_left(g, &c->at), least = g->n_closing + CLOSING;
    if (eng_guide_counts(g))
        return eng_reply_reasons(&c->at.reply) && g->n_closing && /* not within a character */
               c->at.n_thoughts >= g->in.max_reasoning && eng_held_takes(c, &c->m.now, *g->closing);
    if (c->at.phase != ENG_HELD_THINKS || !g->n_closing) return false;
    if (c->at.n_thoughts >= g->in.max_reasoning) return true;
    if (!g->in.grammar || g->in.free || left == UINT64_MAX) return false;
    bool late = left <= least + eng_match_distance(&c->m, &c->m.now);
    c->hurried |= late;
    return late;
}

/* The text that the grammar leaves no choice about, as tokens. The last one is left to the model: a
 * longer token might begin like it. */
static void force_text(struct eng_guide *g, struct eng_held *c)
{
    char text[MOST_FORCED];
    uint32_t ids[MOST_FORCED];
    if (eng_mask_is_open(&c->k, &c->m, &c->m.now)) return;
    size_t n = eng_match_forced(&c->m, &c->m.now, text, sizeof text), n_ids = 0;
    for (size_t at = 0, len; at < n; at += len) {
        len = eng_trie_longest(g->trie, text + at, n - at, &ids[n_ids]);
        if (!len) break;
        n_ids++;
    }
    if (c->m.code) eng_held_fail(c, c->m.code);
    if (n_ids > 2 && n_ids < tokens_left(g, &c->at)) add_forced(c, ids, n_ids - 1);
}

uint32_t eng_guide_put(void *guide, uint32_t choice, uint32_t id, const uint32_t **forced)
{
    struct eng_guide *g = guide;
    struct eng_held *c = &g->choices[choice];
    *forced = c->forced;
    start_clock(g, c, UINT64_MAX);
    if (c->code || (g->in.grammar && ready(g, c)) || eng_vocab_is_eog(g->in.vocab, id)) return 0;
    if (g->in.free && !c->at.called && !eng_held_copy(c, &c->m.now, &c->home)) return 0;
    bool ok = eng_held_token(g, c, &c->at, id, &c->m.now, &c->drafted[1]);
    if (!ok) eng_held_fail(c, CN_EINTERNAL); /* a mask should have kept it out */
    if (c->made) eng_match_tidy(&c->m);
    c->hurried |= !c->pending && c->narrowed & 1;
    c->narrowed >>= 1;
    if (c->pending) c->pending--;
    if (c->pending || c->code) return 0;
    c->n_forced = 0;
    if (must_close(g, c))
        add_forced(c, g->closing, g->n_closing);
    else if (g->in.grammar && c->at.phase == ENG_HELD_ANSWERS && (!g->in.free || c->at.called))
        force_text(g, c);
    c->pending = (uint32_t)c->n_forced;
    if (c->pending) c->narrowed = 0;
    c->n_all_forced += c->n_forced;
    *forced = c->forced;
    return c->code ? 0 : c->pending;
}

bool eng_guide_hurried(const struct eng_guide *g, uint32_t choice)
{
    const struct eng_held *c = &g->choices[choice];
    return c->hurried || c->narrowed & 1; /* an end of generation is not put */
}

int eng_guide_error(const struct eng_guide *g, uint32_t choice, struct cn_error *err)
{
    int code = g->choices[choice].code;
    if (!code) return 0;
    if (code == CN_ELIMIT)
        return cn_fail(err, code, "the answer's grammar takes more than %zu MiB of memory here",
                       g->in.max_bytes >> 20);
    if (code == CN_ECANCELLED)
        return cn_fail(err, CN_ELIMIT,
                       "the answer's grammar takes too long to find its next token here: "
                       "limits.mask_ms is %llu",
                       (unsigned long long)(g->in.max_ns / 1000000));
    return cn_fail(err, code, "the answer could not be held to its grammar: %s",
                   cn_err_info(code)->text);
}

struct eng_guide_stats eng_guide_stats(const struct eng_guide *g)
{
    struct eng_guide_stats s = {0};
    for (uint32_t i = 0; i < g->in.n; i++) {
        const struct eng_held *c = &g->choices[i];
        s.made += c->k.made;
        s.found += c->k.found;
        s.forced += c->n_all_forced;
        s.ns += c->ns;
    }
    return s;
}
