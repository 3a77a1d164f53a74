/* draw: see draw.h. The state of a choice, what is done to a row before it is drawn from, the
 * draw, and log-probabilities. A state's draw is a pure function of (seed, choice, position), so
 * that a request gives the same bytes after a preemption and in any batch. */
#include "kernels/draw_select.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Runs of a vocabulary of half a million tokens, 4 KiB: larger ones take memory for each score. */
enum { SCORE_TOPS = 1024 };

/* A token that was chosen, and how often: 0 once it was taken back. KR_NO_ID: the slot is free. */
struct seen { uint32_t id, in_output; };

/* The tokens of a prompt: open addressing, KR_NO_ID where a slot is free. Choices of a request
 * share it: a long prompt's takes as much as all else of a choice many times over. */
struct prompt_ids {
    atomic_uint refs;
    uint32_t *id;
    size_t n, cap;
};

struct kr_draw_room {
    struct kr_candidates candidates;
    uint64_t *masses; /* of runs */
    /* Logits before bias and penalties: by bias, by slot of the seen ids, by slot of the
     * prompt's. */
    float *saved;
    size_t masses_cap, saved_cap;
    struct kr_draw_room *next;
};

struct kr_draw_state {
    struct kr_draw_opts o;
    uint32_t choice;
    struct seen *seen; /* open addressing */
    size_t n_seen, seen_cap;
    uint64_t n_accepted;
    uint32_t last[KR_DRAW_BACK]; /* accepted ones, by number */
    struct prompt_ids *prompt;   /* when repetition is penalised; NULL: none was recorded */
    struct kr_draw_rooms *rooms;
    float *tops; /* of the row at work: kept so that a token costs no allocation */
};

int kr_draw_state_new(const struct kr_draw_opts *opts, uint32_t choice, struct kr_draw_rooms *rooms,
                      struct kr_draw_state **out)
{
    struct kr_draw_state *n = cn_calloc(1, sizeof *n);
    if (!n) return CN_ENOMEM;
    n->o = *opts;
    n->choice = choice;
    n->rooms = rooms;
    n->tops = cn_malloc_array(kr_n_tops(opts->n_vocab), sizeof *n->tops);
    if (!n->tops) {
        kr_draw_state_free(n);
        return CN_ENOMEM;
    }
    *out = n;
    return 0;
}

int kr_draw_state_clone(const struct kr_draw_state *s, uint32_t choice, struct kr_draw_state **out)
{
    struct kr_draw_state *n = cn_malloc_array(1, sizeof *n);
    if (!n) return CN_ENOMEM;
    *n =
        (struct kr_draw_state){.o = s->o, .choice = choice, .prompt = s->prompt, .rooms = s->rooms};
    if (n->prompt) atomic_fetch_add_explicit(&n->prompt->refs, 1, memory_order_relaxed);
    n->tops = cn_malloc_array(kr_n_tops(s->o.n_vocab), sizeof *n->tops);
    if (!n->tops) {
        kr_draw_state_free(n);
        return CN_ENOMEM;
    }
    *out = n;
    return 0;
}

static void prompt_unref(struct prompt_ids *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) > 1) return;
    free(t->id);
    free(t);
}

void kr_draw_state_free(struct kr_draw_state *s)
{
    if (!s) return;
    prompt_unref(s->prompt);
    free(s->seen);
    free(s->tops);
    free(s);
}

/* ---- counts of tokens seen ------------------------------------------------------------------- */

static size_t seen_slot(const struct seen *t, size_t cap, uint32_t id)
{
    size_t i = (id * 0x9E3779B1u) & (cap - 1);
    while (t[i].id != KR_NO_ID && t[i].id != id)
        i = (i + 1) & (cap - 1);
    return i;
}

static int seen_grow(struct kr_draw_state *s)
{
    if ((s->n_seen + 1) * 4 <= s->seen_cap * 3) return 0;
    size_t cap = s->seen_cap ? s->seen_cap * 2 : 64;
    struct seen *t = cn_malloc_array(cap, sizeof *t);
    if (!t) return CN_ENOMEM;
    for (size_t i = 0; i < cap; i++)
        t[i] = (struct seen){.id = KR_NO_ID};
    for (size_t i = 0; i < s->seen_cap; i++)
        if (s->seen[i].id != KR_NO_ID) t[seen_slot(t, cap, s->seen[i].id)] = s->seen[i];
    free(s->seen);
    s->seen = t;
    s->seen_cap = cap;
    return 0;
}

static int seen_add(struct kr_draw_state *s, uint32_t id)
{
    int rc = seen_grow(s);
    if (rc) return rc;
    size_t i = seen_slot(s->seen, s->seen_cap, id);
    s->n_seen += s->seen[i].id == KR_NO_ID;
    s->seen[i].id = id;
    s->seen[i].in_output++;
    return 0;
}

static size_t prompt_slot(const struct prompt_ids *t, uint32_t id)
{
    size_t i = (id * 0x9E3779B1u) & (t->cap - 1);
    while (t->id[i] != KR_NO_ID && t->id[i] != id)
        i = (i + 1) & (t->cap - 1);
    return i;
}

static int prompt_grow(struct prompt_ids *t)
{
    if ((t->n + 1) * 4 <= t->cap * 3) return 0;
    struct prompt_ids more = {.cap = t->cap ? t->cap * 2 : 64};
    more.id = cn_malloc_array(more.cap, sizeof *more.id);
    if (!more.id) return CN_ENOMEM;
    memset(more.id, 0xff, more.cap * sizeof *more.id);
    for (size_t i = 0; i < t->cap; i++)
        if (t->id[i] != KR_NO_ID) more.id[prompt_slot(&more, t->id[i])] = t->id[i];
    free(t->id);
    t->id = more.id;
    t->cap = more.cap;
    return 0;
}

int kr_draw_state_prompt(struct kr_draw_state *s, const uint32_t *ids, size_t n)
{
    if (s->o.repetition == 1.0f) return 0;
    if (!s->prompt) {
        s->prompt = cn_calloc(1, sizeof *s->prompt);
        if (!s->prompt) return CN_ENOMEM;
        atomic_init(&s->prompt->refs, 1);
    }
    struct prompt_ids *t = s->prompt;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == KR_NO_ID) continue;
        int rc = prompt_grow(t);
        if (rc) return rc;
        size_t at = prompt_slot(t, ids[i]);
        t->n += t->id[at] == KR_NO_ID;
        t->id[at] = ids[i];
    }
    return 0;
}

static bool counts_ids(const struct kr_draw_state *s)
{
    return s->o.repetition != 1.0f || s->o.presence != 0.0f || s->o.frequency != 0.0f;
}

int kr_draw_state_accept(struct kr_draw_state *s, uint32_t id)
{
    int rc = counts_ids(s) ? seen_add(s, id) : 0;
    if (!rc) s->last[s->n_accepted++ % KR_DRAW_BACK] = id;
    return rc;
}

void kr_draw_state_cut(struct kr_draw_state *s, uint64_t n)
{
    cn_assert(s->n_accepted <= n + KR_DRAW_BACK);
    while (s->n_accepted > n) {
        uint32_t id = s->last[--s->n_accepted % KR_DRAW_BACK];
        if (counts_ids(s)) s->seen[seen_slot(s->seen, s->seen_cap, id)].in_output--;
    }
}

void kr_draw_state_tell(const struct kr_draw_state *s, struct kr_draw_told *out)
{
    *out = (struct kr_draw_told){.opts = &s->o,
                                 .choice = s->choice,
                                 .prompt = s->prompt ? s->prompt->id : NULL,
                                 .n_prompt = s->prompt ? s->prompt->cap : 0,
                                 .counts = counts_ids(s)};
}

/* ---- the row --------------------------------------------------------------------------------- */

static size_t n_saved(const struct kr_draw_state *s)
{
    return s->o.n_edits + s->seen_cap + (s->prompt ? s->prompt->cap : 0);
}

/* Whether it was chosen before, and its slot. */
static bool was_chosen(const struct kr_draw_state *s, uint32_t id, size_t *slot)
{
    if (!s->n_seen) return false;
    *slot = seen_slot(s->seen, s->seen_cap, id);
    return s->seen[*slot].in_output > 0;
}

static float repeated(const struct kr_draw_state *s, float v)
{
    return v > 0 ? v / s->o.repetition : v * s->o.repetition;
}

static void leave_out(const struct kr_draw_state *s, float *z, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < s->o.n_vocab) z[ids[i]] = -INFINITY;
}

/* saved: n_saved values, or NULL. */
static void adjust(const struct kr_draw_state *s, float *z, uint64_t position, float *saved)
{
    for (size_t i = 0; i < s->o.n_edits; i++) {
        const struct cn_bias *b = &s->o.edits[i];
        if (saved) saved[i] = z[b->id];
        z[b->id] += b->add;
    }
    if (saved) saved += s->o.n_edits;
    for (size_t i = 0; i < s->seen_cap; i++) {
        const struct seen *t = &s->seen[i];
        if (!t->in_output || t->id >= s->o.n_vocab) continue;
        if (saved) saved[i] = z[t->id];
        z[t->id] = repeated(s, z[t->id]) - (s->o.presence + (float)t->in_output * s->o.frequency);
    }
    if (saved) saved += s->seen_cap;
    for (size_t i = 0, slot; s->prompt && i < s->prompt->cap; i++) {
        uint32_t id = s->prompt->id[i];
        if (id >= s->o.n_vocab || was_chosen(s, id, &slot)) continue;
        if (saved) saved[i] = z[id];
        z[id] = repeated(s, z[id]);
    }
    leave_out(s, z, s->o.never, s->o.n_never);
    if (position >= s->o.late_until) return;
    leave_out(s, z, s->o.late, s->o.n_late);
    leave_out(s, z, s->o.late_more, s->o.n_late_more);
}

/* What a token that may be drawn had before all that. The first of two biases has it. */
static float own_logit(const struct kr_draw_state *s, const float *z, const float *saved,
                       uint32_t id)
{
    size_t slot;
    if (!saved) return z[id];
    for (size_t i = 0; i < s->o.n_edits; i++)
        if (s->o.edits[i].id == id) return saved[i];
    saved += s->o.n_edits;
    if (was_chosen(s, id, &slot)) return saved[slot];
    saved += s->seen_cap;
    if (!s->prompt || !s->prompt->n) return z[id];
    slot = prompt_slot(s->prompt, id);
    return s->prompt->id[slot] == id ? saved[slot] : z[id];
}

/* False when a value is NaN or INFINITY, of those barred as well. */
static bool apply_mask(const struct kr_draw_loops *l, float *z, size_t n, const uint32_t *mask)
{
    size_t left = n % 32;
    float last[32] = {0};
    bool good = l->bar(z, n / 32, mask);
    if (!left) return good;
    memcpy(last, z + n - left, left * sizeof *last);
    good &= l->bar(last, 1, mask + n / 32);
    memcpy(z + n - left, last, left * sizeof *last);
    return good;
}

/* ---- room for candidates --------------------------------------------------------------------- */

void kr_draw_rooms_init(struct kr_draw_rooms *r)
{
    r->first = NULL;
    pthread_mutex_init(&r->lock, NULL);
}

void kr_draw_rooms_trim(struct kr_draw_rooms *r)
{
    pthread_mutex_lock(&r->lock);
    struct kr_draw_room *room = r->first, *next;
    r->first = NULL;
    pthread_mutex_unlock(&r->lock);
    for (; room; room = next) {
        next = room->next;
        free(room->candidates.v);
        free(room->masses);
        free(room->saved);
        free(room);
    }
}

void kr_draw_rooms_fini(struct kr_draw_rooms *r)
{
    kr_draw_rooms_trim(r);
    pthread_mutex_destroy(&r->lock);
}

/* NULL when out of memory. */
static struct kr_draw_room *room_take(struct kr_draw_rooms *r)
{
    pthread_mutex_lock(&r->lock);
    struct kr_draw_room *room = r->first;
    if (room) r->first = room->next;
    pthread_mutex_unlock(&r->lock);
    return room ? room : cn_calloc(1, sizeof *room);
}

static void room_give(struct kr_draw_rooms *r, struct kr_draw_room *room)
{
    pthread_mutex_lock(&r->lock);
    room->next = r->first;
    r->first = room;
    pthread_mutex_unlock(&r->lock);
}

/* ---- one draw -------------------------------------------------------------------------------- */

/* Where in [0, total) the draw falls: 64 bits of a keyed hash of where it stands, as a part of the
 * total. */
static uint64_t draw_point(const struct kr_draw_state *s, uint64_t position, uint64_t total)
{
    uint8_t key[16] = "conifer sampling";
    struct { uint64_t seed, position, choice; } in = {s->o.seed, position, s->choice};
    return kr_mul_high(cn_siphash13(key, &in, sizeof in), total);
}

/* Draws from all of a row: first a run, then an id of it. */
static int draw_all(const struct kr_draw_state *s, const float *z, float max, float inv_t,
                    uint64_t position, struct kr_draw_room *room, uint32_t *id)
{
    size_t n = s->o.n_vocab, n_runs = kr_n_tops(n), r = 0;
    uint64_t total = 0;
    if (cn_grow(&room->masses, &room->masses_cap, n_runs, sizeof *room->masses)) return CN_ENOMEM;
    for (size_t k = 0; k < n_runs; k++) {
        size_t at = k * KR_DRAW_RUN;
        room->masses[k] = 0;
        if (!kr_weighs_nothing(s->tops[k], max, inv_t))
            room->masses[k] =
                s->o.loops->mass(z + at, CN_MIN(n - at, (size_t)KR_DRAW_RUN), max, inv_t);
        total += room->masses[k];
    }
    uint64_t rest = draw_point(s, position, total);
    while (rest >= room->masses[r])
        rest -= room->masses[r++];
    for (size_t i = r * KR_DRAW_RUN;; i++) {
        uint64_t w = kr_mass(z[i], max, inv_t);
        if (rest < w) {
            *id = (uint32_t)i;
            return 0;
        }
        rest -= w;
    }
}

static uint32_t candidate_at(const struct kr_candidates *c, uint64_t rest)
{
    size_t i = 0;
    while (rest >= c->v[i].w)
        rest -= c->v[i++].w;
    return c->v[i].id;
}

static int draw_in(const struct kr_draw_state *s, const float *z, float max, uint64_t position,
                   struct kr_draw_room *room, uint32_t *id)
{
    float inv_t = fminf(1.0f / s->o.temperature, FLT_MAX); /* infinitely often 0 would be NaN */
    if (!s->o.top_k && s->o.top_p >= 1.0f && s->o.min_p <= 0.0f)
        return draw_all(s, z, max, inv_t, position, room, id);
    struct kr_select_rule rule = {
        .inv_t = inv_t, .top_k = s->o.top_k, .top_p = s->o.top_p, .min_p = s->o.min_p};
    struct kr_candidates *c = &room->candidates;
    int rc = kr_select(s->o.loops, z, s->o.n_vocab, s->tops, max, &rule, c);
    if (!rc) *id = candidate_at(c, draw_point(s, position, c->mass));
    return rc;
}

/* lent: the draw's room, or NULL: it takes one. */
static int draw(const struct kr_draw_state *s, const float *z, float max, uint64_t position,
                struct kr_draw_room *lent, uint32_t *id)
{
    struct kr_draw_room *room = lent ? lent : room_take(s->rooms);
    if (!room) return CN_ENOMEM;
    int rc = draw_in(s, z, max, position, room, id);
    if (!lent) room_give(s->rooms, room);
    return rc;
}

/* Maximum of a row and the first place that has it, and of every run; false when a value is NaN or
 * none is finite. */
static bool row_max(const struct kr_draw_loops *l, const float *z, size_t n, float *tops,
                    float *max, uint32_t *arg)
{
    float top = -INFINITY;
    size_t at = 0;
    if (!kr_tops(l, z, n, tops)) return false;
    for (size_t r = 0; r < kr_n_tops(n); r++) {
        if (tops[r] > top) at = r * KR_DRAW_RUN;
        top = CN_MAX(top, tops[r]);
    }
    if (!isfinite(top)) return false;
    while (z[at] != top)
        at++;
    *max = top;
    *arg = (uint32_t)at;
    return true;
}

/* What a logit's distance from the greatest one is more than its log-probability. */
static float log_total(const struct kr_draw_loops *l, const float *z, size_t n, float max)
{
    return kr_log_mass(l->mass(z, n, max, 1.0f));
}

static void score_top(const float *z, size_t n, const float *tops, float max, float total,
                      uint32_t n_top, struct kr_drawn *out)
{
    struct cn_top *t = out->top;
    float floor = -INFINITY, heap[CN_MAX_TOP];
    uint32_t k = 0;
    n_top = CN_MIN(n_top, (uint32_t)CN_MAX_TOP);
    if (n_top && n_top <= kr_n_tops(n)) floor = kr_kth_top(tops, kr_n_tops(n), n_top, heap);
    for (size_t i = 0; n_top && i < n; i++) {
        if (i % KR_DRAW_RUN == 0 && tops[i / KR_DRAW_RUN] < floor) {
            i += KR_DRAW_RUN - 1; /* nothing in this run */
            continue;
        }
        if (k == n_top && !(z[i] > t[k - 1].logprob)) continue;
        uint32_t j = k < n_top ? k++ : k - 1;
        while (j > 0 && z[i] > t[j - 1].logprob) {
            t[j] = t[j - 1];
            j--;
        }
        t[j] = (struct cn_top){.id = (uint32_t)i, .logprob = z[i]};
    }
    for (uint32_t i = 0; i < k; i++)
        t[i].logprob = (t[i].logprob - max) - total;
    out->n_top = k;
}

int kr_draw_score(const struct kr_draw_loops *loops, const float *logits, size_t n_vocab,
                  uint32_t id, uint32_t n_top, struct kr_drawn *out)
{
    float max;
    uint32_t arg;
    if (id >= n_vocab) return CN_EINVAL;
    float few[SCORE_TOPS],
        *tops = few; /* a prompt has many tokens to score: no allocation for each */
    if (kr_n_tops(n_vocab) > SCORE_TOPS) tops = cn_malloc_array(kr_n_tops(n_vocab), sizeof *tops);
    if (!tops) return CN_ENOMEM;
    int rc = row_max(loops, logits, n_vocab, tops, &max, &arg) ? 0 : CN_ENUMERIC;
    if (!rc) {
        float total = log_total(loops, logits, n_vocab, max);
        out->id = id;
        out->logprob = (logits[id] - max) - total;
        score_top(logits, n_vocab, tops, max, total, n_top, out);
    }
    if (tops != few) free(tops);
    return rc;
}

static bool adjusts(const struct kr_draw_state *s, uint64_t position, const uint32_t *mask)
{
    return s->o.n_edits || s->n_seen || (s->prompt && s->prompt->n) || mask || s->o.n_never ||
           position < s->o.late_until;
}

/* Where the log-probability of the token will be asked for: room for what is adjusted. */
static int room_for_saved(const struct kr_draw_state *s, struct kr_draw_room **out)
{
    size_t n = n_saved(s);
    if (s->o.n_top < 0 || !n) return 0;
    struct kr_draw_room *room = room_take(s->rooms);
    if (!room) return CN_ENOMEM;
    *out = room;
    if (n <= room->saved_cap) return 0;
    return cn_grow(&room->saved, &room->saved_cap, n, sizeof *room->saved);
}

static int draw_row(const struct kr_draw_state *s, float *logits, uint64_t position,
                    const uint32_t *mask, struct kr_draw_room *room, struct kr_drawn *out)
{
    const struct kr_draw_loops *l = s->o.loops;
    size_t n = s->o.n_vocab;
    float max = 0, top, total = 0, *saved = NULL;
    uint32_t id = 0;
    bool scored = s->o.n_top >= 0;
    /* a row without scores is looked at once: where it has a mask, behind that */
    if ((scored || !mask) && !row_max(l, logits, n, s->tops, &max, &id)) return CN_ENUMERIC;
    top = max;
    out->n_top = 0;
    out->logprob = 0;
    if (scored) {
        total = log_total(l, logits, n, max);
        score_top(logits, n, s->tops, max, total, (uint32_t)s->o.n_top, out);
    }
    if (mask && !apply_mask(l, logits, n, mask)) return CN_ENUMERIC;
    if (adjusts(s, position, mask)) {
        saved = room ? room->saved : NULL;
        adjust(s, logits, position, saved);
        if (!row_max(l, logits, n, s->tops, &max, &id)) return CN_ENUMERIC;
    }
    int rc = s->o.temperature > 0 ? draw(s, logits, max, position, room, &id) : 0;
    if (rc) return rc;
    out->id = id;
    /* The log-probability reported is the model's own. */
    if (scored) out->logprob = (own_logit(s, logits, saved, id) - top) - total;
    return 0;
}

int kr_draw_row(const struct kr_draw_state *s, float *logits, uint64_t position,
                const uint32_t *mask, struct kr_drawn *out)
{
    struct kr_draw_room *room = NULL;
    int rc = room_for_saved(s, &room);
    if (!rc) rc = draw_row(s, logits, position, mask, room, out);
    if (room) room_give(s->rooms, room);
    return rc;
}
