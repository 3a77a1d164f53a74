/* Sampling: from a row of logits to one token.
 *
 * Any thread, one at a time per sampler. A sampler owns its parameters and the counts of tokens its
 * choice has seen; the draw itself is a pure function of (seed, choice, position), so a preempted
 * or re-batched request gives the same bytes. */
#include "engine/engine.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sample_select.h"

/* Runs of a vocabulary of half a million tokens, 4 KiB: larger ones take memory for each score. */
enum { SCORE_TOPS = 1024 };

/* A token that was chosen, and how often; 0: the slot is free. */
struct seen { uint32_t id, in_output; };

/* The tokens of a prompt: open addressing, NO_ID where a slot is free. Choices of a request share
 * it: a long prompt's takes as much as all else of a choice many times over. */
struct prompt_ids {
    atomic_uint refs;
    uint32_t *id;
    size_t n, cap;
};
#define NO_ID UINT32_MAX

struct eng_draw_room {
    struct eng_candidates candidates;
    float *saved; /* logits before bias and penalties: by bias, slot of seen, slot of the prompt's */
    size_t saved_cap;
    struct eng_draw_room *next;
};

struct eng_sampler {
    struct eng_sampling p;
    const uint32_t *eog; /* the vocabulary's: what min_tokens and ignore_eos keep out */
    size_t n_eog;
    size_t n_vocab;
    uint32_t choice;
    uint64_t n_output;
    struct seen *seen; /* open addressing */
    size_t n_seen, seen_cap;
    struct prompt_ids *prompt; /* when repetition is penalised; NULL: none was told of */
    struct eng_draw_rooms *rooms;
    float *tops; /* of the row at work: kept so that a token costs no allocation */
};

void eng_sampling_defaults(struct eng_sampling *s)
{
    *s = (struct eng_sampling){
        .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .logprobs = -1};
}

static int check_range(float v, double lo, double hi, bool lo_open, const char *name,
                       struct cn_error *err)
{
    /* NaN fails both comparisons. */
    if ((lo_open ? v > lo : v >= lo) && v <= hi) return 0;
    return cn_fail_param(err, CN_ERANGE, name, "%s must be %s %g and at most %g", name,
                         lo_open ? "above" : "at least", lo, hi);
}

int eng_sampling_check(const struct eng_sampling *s, const struct eng_vocab *v,
                       struct cn_error *err)
{
    int rc = 0;
    if ((rc = check_range(s->temperature, 0, 2, false, "temperature", err))) return rc;
    if ((rc = check_range(s->top_p, 0, 1, true, "top_p", err))) return rc;
    if ((rc = check_range(s->min_p, 0, 1, false, "min_p", err))) return rc;
    if ((rc = check_range(s->repetition_penalty, 0, 100, true, "repetition_penalty", err)))
        return rc;
    if ((rc = check_range(s->presence_penalty, -2, 2, false, "presence_penalty", err))) return rc;
    if ((rc = check_range(s->frequency_penalty, -2, 2, false, "frequency_penalty", err))) return rc;
    if (s->logprobs < -1 || s->logprobs > ENG_MAX_LOGPROBS)
        return cn_fail_param(err, CN_ERANGE, "logprobs", "at most %d log-probabilities are given",
                             ENG_MAX_LOGPROBS);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id >= eng_vocab_size(v))
            return cn_fail_param(err, CN_ERANGE, "logit_bias", "token %u is not in the vocabulary",
                                 s->bias[i].id);
        if ((rc = check_range(s->bias[i].bias, -100, 100, false, "logit_bias", err))) return rc;
    }
    return 0;
}

int eng_sampler_new(const struct eng_sampling *s, const struct eng_vocab *v, uint32_t choice,
                    struct eng_draw_rooms *rooms, struct eng_sampler **out, struct cn_error *err)
{
    int rc = eng_sampling_check(s, v, err);
    if (rc) return rc;
    struct eng_sampler *n = cn_calloc(1, sizeof *n);
    if (!n) return cn_fail(err, CN_ENOMEM, "out of memory for a sampler");
    n->p = *s;
    n->choice = choice;
    n->rooms = rooms;
    n->n_vocab = eng_vocab_size(v);
    n->tops = cn_malloc_array(eng_n_tops(n->n_vocab), sizeof *n->tops);
    if (!n->tops) {
        eng_sampler_free(n);
        return cn_fail(err, CN_ENOMEM, "out of memory for a sampler");
    }
    n->eog = eng_vocab_eog(v, &n->n_eog);
    *out = n;
    return 0;
}

int eng_sampler_clone(const struct eng_sampler *s, uint32_t choice, struct eng_sampler **out)
{
    struct eng_sampler *n = cn_malloc_array(1, sizeof *n);
    if (!n) return CN_ENOMEM;
    *n = *s;
    n->choice = choice;
    if (n->prompt) atomic_fetch_add_explicit(&n->prompt->refs, 1, memory_order_relaxed);
    n->seen = cn_malloc_array(s->seen_cap, sizeof *n->seen);
    n->tops = cn_malloc_array(eng_n_tops(s->n_vocab), sizeof *n->tops);
    if (!n->seen || !n->tops) {
        eng_sampler_free(n);
        return CN_ENOMEM;
    }
    if (s->seen_cap) memcpy(n->seen, s->seen, s->seen_cap * sizeof *n->seen);
    *out = n;
    return 0;
}

static void prompt_unref(struct prompt_ids *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) > 1) return;
    free(t->id);
    free(t);
}

void eng_sampler_free(struct eng_sampler *s)
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
    while (t[i].in_output && t[i].id != id)
        i = (i + 1) & (cap - 1);
    return i;
}

static int seen_grow(struct eng_sampler *s)
{
    if ((s->n_seen + 1) * 4 <= s->seen_cap * 3) return 0;
    size_t cap = s->seen_cap ? s->seen_cap * 2 : 64;
    struct seen *t = cn_calloc(cap, sizeof *t);
    if (!t) return CN_ENOMEM;
    for (size_t i = 0; i < s->seen_cap; i++)
        if (s->seen[i].in_output) t[seen_slot(t, cap, s->seen[i].id)] = s->seen[i];
    free(s->seen);
    s->seen = t;
    s->seen_cap = cap;
    return 0;
}

static int seen_add(struct eng_sampler *s, uint32_t id)
{
    int rc = seen_grow(s);
    if (rc) return rc;
    size_t i = seen_slot(s->seen, s->seen_cap, id);
    s->n_seen += !s->seen[i].in_output;
    s->seen[i].id = id;
    s->seen[i].in_output++;
    return 0;
}

static size_t prompt_slot(const struct prompt_ids *t, uint32_t id)
{
    size_t i = (id * 0x9E3779B1u) & (t->cap - 1);
    while (t->id[i] != NO_ID && t->id[i] != id)
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
        if (t->id[i] != NO_ID) more.id[prompt_slot(&more, t->id[i])] = t->id[i];
    free(t->id);
    t->id = more.id;
    t->cap = more.cap;
    return 0;
}

int eng_sampler_prompt(struct eng_sampler *s, const uint32_t *ids, size_t n)
{
    if (s->p.repetition_penalty == 1.0f) return 0;
    if (!s->prompt) {
        s->prompt = cn_calloc(1, sizeof *s->prompt);
        if (!s->prompt) return CN_ENOMEM;
        atomic_init(&s->prompt->refs, 1);
    }
    struct prompt_ids *t = s->prompt;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == NO_ID) continue;
        int rc = prompt_grow(t);
        if (rc) return rc;
        size_t at = prompt_slot(t, ids[i]);
        t->n += t->id[at] == NO_ID;
        t->id[at] = ids[i];
    }
    return 0;
}

int eng_sampler_accept(struct eng_sampler *s, uint32_t id)
{
    s->n_output++;
    if (s->p.repetition_penalty == 1.0f && s->p.presence_penalty == 0.0f &&
        s->p.frequency_penalty == 0.0f)
        return 0;
    return seen_add(s, id);
}

/* ---- the row --------------------------------------------------------------------------------- */

static size_t n_saved(const struct eng_sampler *s)
{
    return s->p.n_bias + s->seen_cap + (s->prompt ? s->prompt->cap : 0);
}

/* Whether it was chosen before, and its slot. */
static bool was_chosen(const struct eng_sampler *s, uint32_t id, size_t *slot)
{
    if (!s->n_seen) return false;
    *slot = seen_slot(s->seen, s->seen_cap, id);
    return s->seen[*slot].in_output;
}

static float repeated(const struct eng_sampler *s, float v)
{
    return v > 0 ? v / s->p.repetition_penalty : v * s->p.repetition_penalty;
}

/* saved: n_saved values, or NULL. */
static void apply_bias_and_penalties(const struct eng_sampler *s, float *z, float *saved)
{
    for (size_t i = 0; i < s->p.n_bias; i++) {
        const struct eng_bias *b = &s->p.bias[i];
        if (saved) saved[i] = z[b->id];
        z[b->id] += b->bias;
    }
    if (saved) saved += s->p.n_bias;
    for (size_t i = 0; i < s->seen_cap; i++) {
        const struct seen *t = &s->seen[i];
        if (!t->in_output || t->id >= s->n_vocab) continue;
        if (saved) saved[i] = z[t->id];
        z[t->id] = repeated(s, z[t->id]) -
                   (s->p.presence_penalty + (float)t->in_output * s->p.frequency_penalty);
    }
    if (saved) saved += s->seen_cap;
    for (size_t i = 0, slot; s->prompt && i < s->prompt->cap; i++) {
        uint32_t id = s->prompt->id[i];
        if (id >= s->n_vocab || was_chosen(s, id, &slot)) continue;
        if (saved) saved[i] = z[id];
        z[id] = repeated(s, z[id]);
    }
    bool early = s->n_output < s->p.min_tokens;
    for (size_t i = 0; (early || s->p.ignore_eos) && i < s->n_eog; i++)
        z[s->eog[i]] = -INFINITY;
    for (size_t i = 0; early && i < s->p.n_stop_ids; i++)
        if (s->p.stop_ids[i] < s->n_vocab) z[s->p.stop_ids[i]] = -INFINITY;
}

/* What a token that may be drawn had before all that. The first of two biases has it. */
static float own_logit(const struct eng_sampler *s, const float *z, const float *saved, uint32_t id)
{
    size_t slot;
    if (!saved) return z[id];
    for (size_t i = 0; i < s->p.n_bias; i++)
        if (s->p.bias[i].id == id) return saved[i];
    saved += s->p.n_bias;
    if (was_chosen(s, id, &slot)) return saved[slot];
    saved += s->seen_cap;
    if (!s->prompt || !s->prompt->n) return z[id];
    slot = prompt_slot(s->prompt, id);
    return s->prompt->id[slot] == id ? saved[slot] : z[id];
}

static void apply_mask(float *z, size_t n, const uint32_t *mask)
{
    for (size_t i = 0; i < n; i += 32) {
        uint32_t out = ~mask[i / 32];
        if (n - i < 32) out &= (1u << (n - i)) - 1;
        for (; out; out &= out - 1)
            z[i + (size_t)__builtin_ctz(out)] = -INFINITY;
    }
}

/* Uniform in [0, 1): 53 bits of a keyed hash of where the draw stands, and how often it was
 * tried. */
static double uniform(const struct eng_sampler *s, uint64_t position, uint32_t attempt)
{
    uint8_t key[16] = "conifer sampling";
    struct { uint64_t seed, position, choice; } in = {
        s->p.seed, position, (uint64_t)attempt << 32 | s->choice};
    return (double)(cn_siphash13(key, &in, sizeof in) >> 11) * 0x1p-53;
}

/* Draws from the softmax of all of z / temperature: first a run, then a token of it. Only runs that
 * may matter are summed; the others count as much as their maximum allows, and a draw that falls
 * where such a run does not weigh is drawn again. So the chances are those of the weights, whatever
 * is summed. What is not summed counts in all at most four times as much as the likeliest token:
 * every fifth attempt succeeds at least, and after so many failures *id stays the likeliest. */
static void draw_all(const struct eng_sampler *s, const float *z, float max, float inv_t,
                     uint64_t position, uint32_t *id)
{
    enum { ATTEMPTS = 250 };
    size_t n = s->n_vocab, n_runs = eng_n_tops(n);
    float *weights = s->tops, w[ENG_TOPS_RUN];
    double total = 0;
    eng_exp_each(weights, n_runs, max, inv_t, weights);
    for (size_t r = 0; r < n_runs; r++) {
        size_t at = r * ENG_TOPS_RUN;
        weights[r] *= ENG_TOPS_RUN + 1; /* a little more, for rounding */
        if (weights[r] * (float)n_runs > 4.0f)
            weights[r] =
                (float)eng_exp_sum(z + at, CN_MIN(n - at, (size_t)ENG_TOPS_RUN), max, inv_t);
        total += weights[r];
    }
    for (uint32_t attempt = 0; attempt < ATTEMPTS; attempt++) {
        double rest = uniform(s, position, attempt) * total;
        size_t r = 0;
        while (r + 1 < n_runs && rest >= weights[r])
            rest -= weights[r++];
        size_t at = r * ENG_TOPS_RUN, len = CN_MIN(n - at, (size_t)ENG_TOPS_RUN);
        eng_exp_each(z + at, len, max, inv_t, w);
        for (size_t i = 0; i < len; i++) {
            rest -= w[i];
            if (rest >= 0) continue;
            *id = (uint32_t)(at + i);
            return;
        }
    }
}

/* ---- room for candidates --------------------------------------------------------------------- */

void eng_draw_rooms_init(struct eng_draw_rooms *r)
{
    r->first = NULL;
    pthread_mutex_init(&r->lock, NULL);
}

void eng_draw_rooms_trim(struct eng_draw_rooms *r)
{
    pthread_mutex_lock(&r->lock);
    struct eng_draw_room *room = r->first, *next;
    r->first = NULL;
    pthread_mutex_unlock(&r->lock);
    for (; room; room = next) {
        next = room->next;
        free(room->candidates.v);
        free(room->saved);
        free(room);
    }
}

void eng_draw_rooms_fini(struct eng_draw_rooms *r)
{
    eng_draw_rooms_trim(r);
    pthread_mutex_destroy(&r->lock);
}

/* NULL when out of memory. */
static struct eng_draw_room *room_take(struct eng_draw_rooms *r)
{
    pthread_mutex_lock(&r->lock);
    struct eng_draw_room *room = r->first;
    if (room) r->first = room->next;
    pthread_mutex_unlock(&r->lock);
    return room ? room : cn_calloc(1, sizeof *room);
}

static void room_give(struct eng_draw_rooms *r, struct eng_draw_room *room)
{
    pthread_mutex_lock(&r->lock);
    room->next = r->first;
    r->first = room;
    pthread_mutex_unlock(&r->lock);
}

/* ---- one draw -------------------------------------------------------------------------------- */

/* The candidate at the point u of [0, 1). */
static uint32_t candidate_at(const struct eng_candidates *c, double u)
{
    double at = 0;
    for (size_t i = 0; i < c->n; i++) {
        at += c->v[i].w;
        if (at > u * c->mass) return c->v[i].id;
    }
    return c->v[c->n - 1].id;
}

/* lent: the draw's room, or NULL: it takes one where it needs one. */
static int draw(const struct eng_sampler *s, const float *z, float max, uint64_t position,
                struct eng_draw_room *lent, uint32_t *id)
{
    float inv_t = fminf(1.0f / s->p.temperature, FLT_MAX); /* infinitely often 0 would be NaN */
    if (!s->p.top_k && s->p.top_p >= 1.0f && s->p.min_p <= 0.0f) {
        draw_all(s, z, max, inv_t, position, id);
        return 0;
    }
    struct eng_draw_room *room = lent ? lent : room_take(s->rooms);
    if (!room) return CN_ENOMEM;
    struct eng_candidates *c = &room->candidates;
    struct eng_select_rule rule = {
        .inv_t = inv_t, .top_k = s->p.top_k, .top_p = s->p.top_p, .min_p = s->p.min_p};
    int rc = eng_select(z, s->n_vocab, s->tops, max, &rule, c);
    if (!rc && c->n) *id = candidate_at(c, uniform(s, position, 0));
    if (!lent) room_give(s->rooms, room);
    return rc;
}

/* Maximum of a row and the first place that has it, and of every run; false when a value is NaN or
 * none is finite. */
static bool row_max(const float *z, size_t n, float *tops, float *max, uint32_t *arg)
{
    float top = -INFINITY;
    size_t at = 0;
    if (!eng_tops(z, n, tops)) return false;
    for (size_t r = 0; r < eng_n_tops(n); r++) {
        if (tops[r] > top) at = r * ENG_TOPS_RUN;
        top = CN_MAX(top, tops[r]);
    }
    if (!isfinite(top)) return false;
    while (z[at] != top)
        at++;
    *max = top;
    *arg = (uint32_t)at;
    return true;
}

static double log_sum_exp(const float *z, size_t n, float max)
{
    return (double)max + log(eng_exp_sum(z, n, max, 1.0f));
}

static void score_top(const float *z, size_t n, const float *tops, double lse, uint32_t n_top,
                      struct eng_drawn *out)
{
    struct eng_logprob *t = out->top;
    float floor = -INFINITY, heap[ENG_MAX_LOGPROBS];
    uint32_t k = 0;
    n_top = CN_MIN(n_top, (uint32_t)ENG_MAX_LOGPROBS);
    if (n_top && n_top <= eng_n_tops(n)) floor = eng_kth_top(tops, eng_n_tops(n), n_top, heap);
    for (size_t i = 0; n_top && i < n; i++) {
        if (i % ENG_TOPS_RUN == 0 && tops[i / ENG_TOPS_RUN] < floor) {
            i += ENG_TOPS_RUN - 1; /* nothing in this run */
            continue;
        }
        if (k == n_top && !(z[i] > t[k - 1].logprob)) continue;
        uint32_t j = k < n_top ? k++ : k - 1;
        while (j > 0 && z[i] > t[j - 1].logprob) {
            t[j] = t[j - 1];
            j--;
        }
        t[j] = (struct eng_logprob){.id = (uint32_t)i, .logprob = z[i]};
    }
    for (uint32_t i = 0; i < k; i++)
        t[i].logprob = (float)((double)t[i].logprob - lse);
    out->n_top = k;
}

int eng_score(const float *logits, size_t n_vocab, uint32_t id, uint32_t n_top,
              struct eng_drawn *out)
{
    float max;
    uint32_t arg;
    if (id >= n_vocab) return CN_EINVAL;
    float few[SCORE_TOPS],
        *tops = few; /* a prompt has many tokens to score: no allocation for each */
    if (eng_n_tops(n_vocab) > SCORE_TOPS) tops = cn_malloc_array(eng_n_tops(n_vocab), sizeof *tops);
    if (!tops) return CN_ENOMEM;
    int rc = row_max(logits, n_vocab, tops, &max, &arg) ? 0 : CN_ENUMERIC;
    if (!rc) {
        double lse = log_sum_exp(logits, n_vocab, max);
        out->id = id;
        out->logprob = (float)((double)logits[id] - lse);
        score_top(logits, n_vocab, tops, lse, n_top, out);
    }
    if (tops != few) free(tops);
    return rc;
}

static bool adjusts(const struct eng_sampler *s, const uint32_t *mask)
{
    return s->p.n_bias || s->n_seen || (s->prompt && s->prompt->n) || mask ||
           s->p.ignore_eos || s->n_output < s->p.min_tokens;
}

/* Where the log-probability of the token will be asked for: room for what is adjusted. */
static int room_for_saved(const struct eng_sampler *s, struct eng_draw_room **out)
{
    size_t n = n_saved(s);
    if (s->p.logprobs < 0 || !n) return 0;
    struct eng_draw_room *room = room_take(s->rooms);
    if (!room) return CN_ENOMEM;
    *out = room;
    if (n <= room->saved_cap) return 0;
    return cn_grow(&room->saved, &room->saved_cap, n, sizeof *room->saved);
}

static int sample_in(const struct eng_sampler *s, float *logits, uint64_t position,
                     const uint32_t *mask, struct eng_draw_room *room, struct eng_drawn *out)
{
    size_t n = s->n_vocab;
    float max, *saved = NULL;
    uint32_t id;
    double lse = 0;
    if (!row_max(logits, n, s->tops, &max, &id)) return CN_ENUMERIC;
    out->n_top = 0;
    out->logprob = 0;
    if (s->p.logprobs >= 0) {
        lse = log_sum_exp(logits, n, max);
        score_top(logits, n, s->tops, lse, (uint32_t)s->p.logprobs, out);
    }
    if (adjusts(s, mask)) {
        saved = room ? room->saved : NULL;
        apply_bias_and_penalties(s, logits, saved);
        if (mask) apply_mask(logits, n, mask);
        if (!row_max(logits, n, s->tops, &max, &id)) return CN_ENUMERIC;
    }
    int rc = s->p.temperature > 0 ? draw(s, logits, max, position, room, &id) : 0;
    if (rc) return rc;
    out->id = id;
    /* The log-probability reported is the model's own. */
    if (s->p.logprobs >= 0) out->logprob = (float)((double)own_logit(s, logits, saved, id) - lse);
    return 0;
}

int eng_sample(const struct eng_sampler *s, float *logits, uint64_t position,
               const uint32_t *mask, struct eng_drawn *out)
{
    struct eng_draw_room *room = NULL;
    int rc = room_for_saved(s, &room);
    if (!rc) rc = sample_in(s, logits, position, mask, room, out);
    if (room) room_give(s->rooms, room);
    return rc;
}
