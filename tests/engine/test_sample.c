/* Sampling against plain double-precision reference code: full sort, no buckets. */
#include "engine/engine.h"
#include "kernels/draw_select.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { V = 3001, EOS = 7 }; /* six runs of KR_DRAW_RUN, the last one short */

static struct eng_vocab *vocab;
static struct kr_draw_rooms rooms;
static const struct kr_draw_loops *loops;

static int make_vocab(void **state)
{
    static char names[V][16];
    static struct eng_str tokens[V];
    static int32_t types[V];
    for (int i = 0; i < V; i++) {
        int len = snprintf(names[i], sizeof names[i], i < 256 ? "%c%d" : "t%c%d", 'a', i);
        tokens[i] = (struct eng_str){names[i], (size_t)len};
        types[i] = i == EOS ? ENG_TOKEN_CONTROL : ENG_TOKEN_NORMAL;
    }
    /* clang-format off */
    struct eng_vocab_spec spec = {
        .model = "gpt2", .pre = "gpt-2", .n_tokens = V, .tokens = tokens, .types = types,
        .bos = -1, .eos = EOS, .eot = -1, .eom = -1, .unk = -1, .sep = -1, .pad = -1,
        .fim_pre = -1, .fim_suf = -1, .fim_mid = -1, .fim_pad = -1, .fim_rep = -1, .fim_sep = -1,
        .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
    /* clang-format on */
    struct cn_error err = {0};
    kr_draw_rooms_init(&rooms);
    loops = kr_draw_loops(KR_ISA_AUTO);
    return eng_vocab_new(&spec, &vocab, &err);
}

static int free_vocab(void **state)
{
    eng_vocab_free(vocab);
    kr_draw_rooms_fini(&rooms);
    return 0;
}

static uint64_t rng_state = 88172645463325252u;
static double rnd(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (double)(rng_state >> 11) * 0x1p-53;
}

static void random_logits(float *z, double spread)
{
    for (int i = 0; i < V; i++)
        z[i] = (float)((rnd() + rnd() + rnd() - 1.5) * spread);
}

struct ref {
    double z, p;
    int id;
};
static int ref_cmp(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    return x->z != y->z ? (x->z < y->z ? 1 : -1) : x->id - y->id;
}

/* The set that the rules keep, by a full sort in double precision. `slack` tells how near a cut
 * the result was: near ties may fall either way between float and double. */
static size_t reference_set(const float *z, const struct kr_select_rule *r, struct ref *s)
{
    size_t n = V;
    for (int i = 0; i < V; i++)
        s[i] = (struct ref){z[i], 0, i};
    qsort(s, n, sizeof *s, ref_cmp);
    if (r->top_k && r->top_k < n) n = r->top_k;
    double all = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        all += s[i].p = exp((s[i].z - s[0].z) * r->inv_t);
    size_t keep = 0;
    while (keep < n && (keep == 0 || at < (double)r->top_p * all))
        at += s[keep++].p;
    if (r->top_p >= 1.0f) keep = n;
    while (keep > 1 && s[keep - 1].p < r->min_p)
        keep--;
    return keep;
}

static const float *tops_of(const float *z)
{
    static float tops[V];
    for (size_t i = 0; i < kr_n_tops(V); i++)
        tops[i] = -INFINITY;
    for (size_t i = 0; i < V; i++)
        tops[i / KR_DRAW_RUN] = fmaxf(tops[i / KR_DRAW_RUN], z[i]);
    return tops;
}

static void test_select_against_sort(void **state)
{
    static float z[V];
    static struct ref s[V];
    const float ps[] = {0.01f, 0.3f, 0.5f, 0.9f, 0.95f, 0.999f, 1.0f};
    const uint32_t ks[] = {0, 1, 2, 5, 6, 7, 500, 5000};
    const float mins[] = {0, 0.02f, 0.5f};
    for (int round = 0; round < 40; round++) {
        random_logits(z, round % 4 == 0 ? 0.01 : 1.0 + round);
        if (round % 5 == 0)
            for (int i = 0; i < V; i += 3)
                z[i] = 1.0f; /* many equal values */
        float max = -INFINITY;
        for (int i = 0; i < V; i++)
            max = fmaxf(max, z[i]);
        for (size_t a = 0; a < 7 * 8 * 3; a++) {
            struct kr_select_rule r = {.inv_t = 1.0f / (0.5f + (float)(round % 3)),
                                       .top_p = ps[a % 7],
                                       .top_k = ks[a / 7 % 8],
                                       .min_p = mins[a / 56]};
            struct kr_candidates c = {0};
            assert_int_equal(kr_select(loops, z, V, tops_of(z), max, &r, &c), 0);
            size_t n = reference_set(z, &r, s);
            /* Float sums may move a top_p or min_p cut by one token. */
            assert_true(c.n >= 1 && c.n + 1 >= n && c.n <= n + 1);
            static bool in[V + 1];
            memset(in, 0, sizeof in);
            for (size_t i = 0; i < n + 1 && i < V; i++)
                in[s[i].id] = true;
            for (size_t i = 0; i < c.n; i++)
                assert_true(in[c.v[i].id]);
            free(c.v);
        }
    }
}

/* Many equal values at the edge of what is told apart from the far ones, and at its neighbours. */
static void test_ties_at_the_last_edge(void **state)
{
    static float z[V];
    static struct ref s[V];
    const float maxima[] = {0, 1, 7.3f, 40, 1000, -700}, temperatures[] = {0.37f, 1, 1.7f};
    for (int k = 0; k < 6 * 3 * 33; k++) {
        float max = maxima[k % 6], t = temperatures[k / 6 % 3], edge = max - 511.0f / 48 * t;
        for (int step = k / 18 - 16; step; step += step < 0 ? 1 : -1)
            edge = nextafterf(edge, step < 0 ? -INFINITY : INFINITY);
        for (int i = 0; i < V; i++)
            z[i] = i % 3 == 1 && i > V / 2 ? edge : max - 100 * t;
        z[V / 4] = max;
        for (uint32_t top_k = 0; top_k <= 5000; top_k += 1250) {
            struct kr_select_rule r = {.inv_t = 1 / t, .top_p = 0.99999f, .top_k = top_k};
            struct kr_candidates c = {0};
            assert_int_equal(kr_select(loops, z, V, tops_of(z), max, &r, &c), 0);
            size_t n = reference_set(z, &r, s);
            assert_true(c.n >= 1 && c.n + 2 >= n && c.n <= n + 2);
            free(c.v);
        }
    }
}

/* Where few values are near the maximum, room is asked for those that can be kept, not for a
 * vocabulary's worth: what a sampler keeps from token to token is enough. */
static void test_room_of_few(void **state)
{
    static float z[V];
    const struct kr_select_rule rules[] = {{.inv_t = 1, .top_p = 1, .min_p = 0.02f},
                                           {.inv_t = 1, .top_p = 1, .top_k = V / KR_DRAW_RUN},
                                           {.inv_t = 1, .top_p = 0.9f, .min_p = 0.02f}};

    for (int i = 0; i < V; i++)
        z[i] = -40 - (float)rnd();
    z[7] = 0;
    z[V - 3] = -1;
    for (size_t i = 0; i < CN_ARRAY_LEN(rules); i++) {
        struct kr_candidates c = {0};
        assert_int_equal(kr_select(loops, z, V, tops_of(z), 0, &rules[i], &c), 0);
        assert_int_equal(c.n, rules[i].top_k ? rules[i].top_k : 2);
        assert_true(c.cap < V / 4);
        free(c.v);
    }
}

static struct kr_draw_state *sampler(const struct eng_sampling *p, uint32_t choice)
{
    struct eng_draw_env env = {.vocab = vocab, .loops = loops, .rooms = &rooms};
    struct kr_draw_state *first, *s;
    struct cn_error err = {0};
    assert_int_equal(eng_draw_state_new(p, &env, &first, &err), 0);
    if (!choice) return first;
    assert_int_equal(kr_draw_state_clone(first, choice, &s), 0);
    kr_draw_state_free(first);
    return s;
}

static uint32_t sample(const struct kr_draw_state *s, const float *logits, uint64_t pos,
                       struct kr_drawn *d)
{
    static float z[V];
    struct kr_drawn mine;
    memcpy(z, logits, sizeof z);
    assert_int_equal(kr_draw_row(s, z, pos, NULL, d ? d : &mine), 0);
    return d ? d->id : mine.id;
}

static void test_greedy_and_ties(void **state)
{
    static float z[V];
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.temperature = 0;
    random_logits(z, 3);
    z[400] = z[300] = 50;
    struct kr_draw_state *s = sampler(&p, 0);
    assert_int_equal(sample(s, z, 0, NULL), 300);
    kr_draw_state_free(s);
}

static void test_draw_is_pure_and_fair(void **state)
{
    static float z[V];
    for (int i = 0; i < V; i++)
        z[i] = i < 4 ? logf((float)(i + 1)) : -INFINITY;
    for (int mode = 0; mode < 2; mode++) {
        struct eng_sampling p;
        eng_sampling_defaults(&p);
        p.seed = 42;
        if (mode) p.top_p = 0.9999f;
        struct kr_draw_state *a = sampler(&p, 0), *b = sampler(&p, 0), *c = sampler(&p, 1);
        int count[4] = {0}, differ = 0, n = 40000;
        for (int i = 0; i < n; i++) {
            uint32_t id = sample(a, z, (uint64_t)i, NULL);
            assert_int_equal(id, sample(b, z, (uint64_t)i, NULL));
            differ += id != sample(c, z, (uint64_t)i, NULL);
            assert_true(id < 4);
            count[id]++;
        }
        assert_true(differ > n / 2);
        for (int i = 0; i < 4; i++) { /* 5 sigma of a binomial */
            double q = (i + 1) / 10.0, sd = sqrt(n * q * (1 - q));
            assert_true(fabs(count[i] - n * q) < 5 * sd);
        }
        kr_draw_state_free(a);
        kr_draw_state_free(b);
        kr_draw_state_free(c);
    }
}

/* Many that are unlikely, in all runs. */
static void test_draw_among_unlikely(void **state)
{
    enum { N = 60000, KINDS = 3 };
    static float z[V];
    const float heights[KINDS] = {-7, -8, -12};
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.seed = 7;
    struct kr_draw_state *s = sampler(&p, 0);
    int count[7][KINDS] = {0}, first = 0;
    double weight[7][KINDS] = {0}, total = 1;
    for (int i = 1; i < V; i++) {
        weight[i / KR_DRAW_RUN][i % KINDS] += exp(heights[i % KINDS]);
        total += exp(heights[i % KINDS]);
        z[i] = heights[i % KINDS];
    }
    for (int i = 0; i < N; i++) {
        uint32_t id = sample(s, z, (uint64_t)i, NULL);
        if (id == 0)
            first++;
        else
            count[id / KR_DRAW_RUN][id % KINDS]++;
    }
    assert_true(fabs(first - N / total) < 5 * sqrt(N / total));
    for (int i = 0; i < 7 * KINDS; i++) {
        double want = N * weight[i / KINDS][i % KINDS] / total;
        assert_true(fabs(count[i / KINDS][i % KINDS] - want) <= 5 * sqrt(want) + 1);
    }
    kr_draw_state_free(s);
}

static void test_penalties_and_bias(void **state)
{
    static float z[V];
    memset(z, 0, sizeof z);
    z[10] = 5.0f, z[11] = 4.0f, z[12] = -1.0f, z[EOS] = 9.0f;
    struct cn_bias bias[] = {{12, 20.0f}};
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.temperature = 0;
    p.ignore_eos = true;
    p.frequency_penalty = 0.75f;
    p.presence_penalty = 0.5f;
    struct kr_draw_state *s = sampler(&p, 0);
    assert_int_equal(sample(s, z, 0, NULL), 10);
    assert_int_equal(kr_draw_state_accept(s, 10), 0); /* 5 - 1.25 = 3.75 < 4 */
    assert_int_equal(sample(s, z, 1, NULL), 11);
    kr_draw_state_free(s);

    p.ignore_eos = false;
    p.min_tokens = 1;
    s = sampler(&p, 0);
    assert_int_equal(sample(s, z, 0, NULL), 10);
    assert_int_equal(kr_draw_state_accept(s, 10), 0);
    assert_int_equal(sample(s, z, 1, NULL), EOS);
    kr_draw_state_free(s);

    p.bias = bias;
    p.n_bias = 1;
    s = sampler(&p, 0);
    assert_int_equal(sample(s, z, 0, NULL), 12); /* -1 + 20 */
    kr_draw_state_free(s);

    eng_sampling_defaults(&p);
    p.temperature = 0;
    p.repetition_penalty = 2.0f;
    s = sampler(&p, 0);
    uint32_t prompt[] = {EOS, 10, 12};
    assert_int_equal(kr_draw_state_prompt(s, prompt, 3), 0);
    /* eos 9/2 = 4.5, 10: 5/2, 12: -1*2, 11 stays 4 */
    assert_int_equal(sample(s, z, 0, NULL), EOS);
    z[EOS] = 7.0f;
    assert_int_equal(sample(s, z, 0, NULL), 11);
    kr_draw_state_free(s);
}

/* Whatever is laid on a row before the draw, the log-probability told is that of the row as it
 * came. */
static void test_logprobs_are_the_rows_own(void **state)
{
    static float z[V], row[V];
    static uint32_t mask[(V + 31) / 32];
    struct cn_bias bias[] = {{3, 4.0f}, {9, -2.0f}, {3, 3.0f}, {40, 5.0f}, {41, 100.0f}};
    uint32_t prompt[] = {40, 50, 51}, drawn_biased = 0, drawn_seen = 0, drawn_plain = 0;
    struct kr_drawn d;
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.temperature = 2;
    p.logprobs = 1;
    p.bias = bias;
    p.n_bias = CN_ARRAY_LEN(bias);
    p.repetition_penalty = 1.3f;
    p.presence_penalty = -1.5f;
    p.frequency_penalty = 0.1f;
    p.ignore_eos = true;
    struct kr_draw_state *s = sampler(&p, 0);
    assert_int_equal(kr_draw_state_prompt(s, prompt, 3), 0);
    for (uint64_t pos = 0; pos < 300; pos++) {
        double sum = 0;
        random_logits(z, (double)(1 + pos % 4));
        memset(mask, 0, sizeof mask);
        for (uint32_t i = 0; i < V; i++) {
            sum += exp(z[i]);
            if (i < 64 && i != 41)
                mask[i / 32] |= 1u << i % 32; /* the likeliest by far may not be */
        }
        memcpy(row, z, sizeof row);
        assert_int_equal(kr_draw_row(s, row, pos, mask, &d), 0);
        assert_true(d.id < 64 && d.id != 41);
        if (fabs(d.logprob - (z[d.id] - log(sum))) > 1e-4)
            fail_msg("position %d, token %u: %g, not %g", (int)pos, d.id, d.logprob,
                     z[d.id] - log(sum));
        bool biased = d.id == 3 || d.id == 9 || d.id == 40;
        drawn_biased += biased;
        drawn_seen += !biased && pos > 150; /* each of 63 was drawn by then, or nearly */
        drawn_plain += !biased && pos < 5;
        assert_int_equal(kr_draw_state_accept(s, d.id), 0);
    }
    assert_true(drawn_biased && drawn_seen && drawn_plain);
    kr_draw_state_free(s);
}

static void test_logprobs(void **state)
{
    static float z[V];
    random_logits(z, 4);
    double sum = 0;
    int best = 0;
    for (int i = 0; i < V; i++) {
        sum += exp(z[i]);
        if (z[i] > z[best]) best = i;
    }
    struct cn_bias bias[] = {{3, 90.0f}};
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.temperature = 0;
    p.logprobs = 5;
    p.bias = bias;
    p.n_bias = 1;
    struct kr_draw_state *s = sampler(&p, 0);
    struct kr_drawn d;
    assert_int_equal(sample(s, z, 0, &d), 3);
    assert_true(fabs(d.logprob - (z[3] - log(sum))) < 1e-4); /* raw, not biased */
    assert_int_equal(d.n_top, 5);
    assert_int_equal(d.top[0].id, best);
    for (uint32_t i = 1; i < 5; i++)
        assert_true(d.top[i].logprob <= d.top[i - 1].logprob);
    struct kr_drawn e;
    assert_int_equal(kr_draw_score(loops, z, V, 17, 0, &e), 0);
    assert_true(fabs(e.logprob - (z[17] - log(sum))) < 1e-4);
    assert_int_equal(e.n_top, 0);
    assert_int_equal(kr_draw_score(loops, z, V, V, 0, &e), CN_EINVAL);
    kr_draw_state_free(s);
}

/* The alternatives are those of a full sort, ties by lower id, wherever the runs lie. */
static void test_top_against_sort(void **state)
{
    static float z[V];
    static struct ref s[V];
    for (int round = 0; round < 20; round++) {
        random_logits(z, 3);
        for (int i = 0; i < V && round % 2; i += 1 + round)
            z[i] = 2.5f; /* more equal ones than are given */
        for (int i = 0; i < V; i++)
            s[i] = (struct ref){z[i], 0, i};
        qsort(s, V, sizeof *s, ref_cmp);
        struct kr_drawn d;
        assert_int_equal(kr_draw_score(loops, z, V, 0, CN_MAX_TOP, &d), 0);
        assert_int_equal(d.n_top, CN_MAX_TOP);
        for (int i = 0; i < CN_MAX_TOP; i++)
            assert_int_equal(d.top[i].id, s[i].id);
    }
}

/* What draws took is kept for the next ones, until it is given back; the draw is the same with
 * either. */
static void test_rooms_are_given_back(void **state)
{
    static float z[V];
    struct eng_sampling p;
    eng_sampling_defaults(&p);
    p.top_p = 0.9f;
    random_logits(z, 1);
    struct kr_draw_state *s = sampler(&p, 0);
    uint32_t id = sample(s, z, 3, NULL);
    const struct kr_draw_room *kept = rooms.first;
    assert_non_null(kept);
    assert_int_equal(sample(s, z, 3, NULL), id);
    assert_ptr_equal(rooms.first, kept);
    kr_draw_rooms_trim(&rooms);
    assert_null(rooms.first);
    kr_draw_rooms_trim(&rooms);
    assert_int_equal(sample(s, z, 3, NULL), id);
    assert_non_null(rooms.first);
    kr_draw_state_free(s);
}

/* As small as a request may name it, where its inverse is no number any more. */
static void test_tiny_temperatures(void **state)
{
    static float z[V];
    const float temperatures[] = {1e-6f, 1e-30f, 1e-38f, 1e-40f, 1e-45f};
    for (size_t a = 0; a < 5 * 3; a++) {
        struct eng_sampling p;
        eng_sampling_defaults(&p);
        p.temperature = temperatures[a % 5];
        p.top_k = a / 5 == 1 ? 40 : 0;
        p.top_p = a / 5 == 2 ? 0.9f : 1;
        struct kr_draw_state *s = sampler(&p, 0);
        for (uint64_t pos = 0; pos < 20; pos++) {
            random_logits(z, 3);
            z[100 + pos * 131] = 50;
            assert_int_equal(sample(s, z, pos, NULL), 100 + pos * 131);
        }
        kr_draw_state_free(s);
    }
}

/* All values alike, or all but one impossible: every kind of sampling keeps its rules. */
static void test_flat_and_lonely(void **state)
{
    static float z[V];
    const float temperatures[] = {0, 0.01f, 1, 2};
    const uint32_t ks[] = {0, 1, 3, 40};
    const float cuts[][2] = {{1, 0}, {0.5f, 0}, {1, 0.5f}, {0.9f, 1}};
    for (size_t a = 0; a < 4 * 4 * 4; a++) {
        struct eng_sampling p;
        struct kr_drawn d;
        eng_sampling_defaults(&p);
        p.temperature = temperatures[a % 4];
        p.top_k = ks[a / 4 % 4];
        p.top_p = cuts[a / 16][0];
        p.min_p = cuts[a / 16][1];
        p.logprobs = 2;
        struct kr_draw_state *s = sampler(&p, 0);
        for (uint64_t pos = 0; pos < 20; pos++) {
            for (int i = 0; i < V; i++)
                z[i] = -1.5f;
            uint32_t id = sample(s, z, pos, &d), below = p.temperature > 0 ? V : 1;
            if (p.top_k) below = CN_MIN(below, p.top_k);
            assert_true(id < below);
            assert_true(fabs(d.logprob + log(V)) < 1e-4);
            assert_true(d.n_top == 2 && d.top[0].id == 0 && d.top[1].id == 1);
            for (int i = 0; i < V; i++)
                z[i] = -INFINITY;
            z[V - 1 - (int)pos * 97] = -700;
            assert_int_equal(sample(s, z, pos, &d), V - 1 - (int)pos * 97);
            assert_true(d.logprob == 0);
        }
        kr_draw_state_free(s);
    }
}

static void test_bad_numbers(void **state)
{
    static float z[V];
    struct eng_sampling p;
    struct cn_error err;
    struct kr_drawn d;
    eng_sampling_defaults(&p);
    struct kr_draw_state *s = sampler(&p, 0);
    random_logits(z, 1);
    for (int i = 0; i < V; i += i < 530 ? 1 : 61) {
        float good = z[i];
        z[i] = NAN;
        assert_int_equal(kr_draw_row(s, z, 0, NULL, &d), CN_ENUMERIC);
        assert_int_equal(kr_draw_score(loops, z, V, 0, 5, &d), CN_ENUMERIC);
        z[i] = good;
    }
    z[V - 1] = INFINITY;
    assert_int_equal(kr_draw_row(s, z, 0, NULL, &d), CN_ENUMERIC);
    for (int i = 0; i < V; i++)
        z[i] = -INFINITY;
    assert_int_equal(kr_draw_row(s, z, 0, NULL, &d), CN_ENUMERIC);
    kr_draw_state_free(s);
    struct {
        float *field;
        float bad;
        const char *name;
    } cases[] = {{&p.temperature, NAN, "temperature"},
                 {&p.temperature, 2.01f, "temperature"},
                 {&p.temperature, -0.1f, "temperature"},
                 {&p.top_p, 0.0f, "top_p"},
                 {&p.top_p, 1.1f, "top_p"},
                 {&p.min_p, -1.0f, "min_p"},
                 {&p.repetition_penalty, 0.0f, "repetition_penalty"},
                 {&p.presence_penalty, 2.5f, "presence_penalty"},
                 {&p.frequency_penalty, INFINITY, "frequency_penalty"}};
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        eng_sampling_defaults(&p);
        *cases[i].field = cases[i].bad;
        assert_int_equal(eng_sampling_check(&p, vocab, &err), CN_ERANGE);
        assert_string_equal(err.param, cases[i].name);
    }
    eng_sampling_defaults(&p);
    struct cn_bias bias[] = {{V, 1.0f}};
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(eng_sampling_check(&p, vocab, &err), CN_ERANGE);
    assert_string_equal(err.param, "logit_bias");
}

static void test_mask(void **state)
{
    static float z[V];
    struct eng_sampling p;
    struct kr_drawn d;
    eng_sampling_defaults(&p);
    struct kr_draw_state *s = sampler(&p, 0);
    uint32_t mask[(V + 31) / 32] = {0};
    mask[5] = 1u << 3; /* id 163 alone */
    for (uint64_t pos = 0; pos < 50; pos++) {
        random_logits(z, 5);
        assert_int_equal(kr_draw_row(s, z, pos, mask, &d), 0);
        assert_int_equal(d.id, 163);
    }
    memset(mask, 0, sizeof mask);
    random_logits(z, 5);
    assert_int_equal(kr_draw_row(s, z, 0, mask, &d), CN_ENUMERIC);
    kr_draw_state_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_against_sort),
        cmocka_unit_test(test_tiny_temperatures),
        cmocka_unit_test(test_room_of_few),
        cmocka_unit_test(test_rooms_are_given_back),
        cmocka_unit_test(test_flat_and_lonely),
        cmocka_unit_test(test_select_against_sort),
        cmocka_unit_test(test_ties_at_the_last_edge),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_draw_is_pure_and_fair),
        cmocka_unit_test(test_draw_among_unlikely),
        cmocka_unit_test(test_penalties_and_bias),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_are_the_rows_own),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_mask),
    };
    return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}
