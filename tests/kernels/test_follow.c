/* Rows of follow, and of peak with texts: against the rules of kernels.h, implemented here by
 * visiting every place of a text; with invalid numbers; and plans that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/tiny.h"

enum { MARK = 256, WIDTH = 8, UNITS = WIDTH - 3, MOST = 400 };

/* Texts of a script: units, and for each place the next mark. */
struct texts {
    float v[2 * MOST];
    uint32_t n;
};

static void add_text(struct texts *t, const int *units, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        t->v[2 * (t->n + i)] = (float)units[i];
    t->v[2 * (t->n + n)] = -1;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t at = i;
        while (at < n && units[at] < MARK)
            at++;
        t->v[2 * (t->n + i) + 1] = at < n ? (float)(t->n + at) : 0;
    }
    t->n += n + 1;
}

static bool is_at(const struct texts *t, uint32_t at, const float *x)
{
    for (uint32_t i = 0; i < (uint32_t)x[2]; i++)
        if (at + i >= t->n || t->v[2 * (at + i)] != x[3 + i]) return false;
    return true;
}

/* The rules of kernels.h: visits every place from this one to the end of the text, and takes the
 * first that is within reach and has the token. */
static uint32_t expected(const struct texts *t, uint32_t place, const float *x)
{
    uint32_t marks = 0;
    if (x[0] > 0) return (uint32_t)x[0];
    if (!place) return 0;
    bool first = t->v[2 * (place - 1)] == -1;
    for (uint32_t at = place; t->v[2 * at] != -1; at++) {
        bool mark = t->v[2 * at] >= MARK, here = at == place;
        if (mark && !here) marks++;
        bool may = here || (x[1] >= 0 && at - place <= CN_MIN((uint32_t)x[1], 64u)) ||
                   (x[1] == -1 && mark && marks <= 64) ||
                   (x[1] == -2 && mark && marks <= 64 && !first);
        if (may && is_at(t, at, x)) return at + (uint32_t)x[2];
    }
    return place;
}

static void make_texts(struct texts *t, uint64_t *seed)
{
    int units[MOST];
    *t = (struct texts){.v = {-1, 0}, .n = 1};
    while (t->n < MOST / 2) {
        uint32_t n = tiny_rand(seed) % 90, few = 2 + tiny_rand(seed) % 4;
        for (uint32_t i = 0; i < n; i++)
            units[i] = (int)(tiny_rand(seed) % few + (tiny_rand(seed) % 2 ? MARK : 'a'));
        add_text(t, units, n);
    }
}

static void test_places(void **state)
{
    static const float reaches[] = {0, 1, 5, 32, 64, 200, -1, -2};
    uint64_t seed = 1;
    uint32_t moved = 0, stayed = 0, jumped = 0;
    struct texts t;
    for (uint32_t round = 0; round < 200000; round++) {
        if (round % 500 == 0) make_texts(&t, &seed);
        uint32_t place = tiny_rand(&seed) % t.n;
        uint32_t from = tiny_rand(&seed) % t.n;
        float x[WIDTH] = {0}, at = (float)place;
        x[0] = tiny_rand(&seed) % 50 ? 0 : (float)(1 + tiny_rand(&seed) % (t.n - 1));
        x[1] = reaches[tiny_rand(&seed) % CN_ARRAY_LEN(reaches)];
        x[2] = (float)(1 + tiny_rand(&seed) % (tiny_rand(&seed) % 2 ? 1 : UNITS));
        if (tiny_rand(&seed) % 3) from = place; /* so that the token is often there or nearby */
        for (uint32_t i = 0; i < UNITS; i++) {
            x[3 + i] = from + i < t.n ? t.v[2 * (from + i)] : 'a';
            if (x[3 + i] < 0) x[3 + i] = 'a';
        }
        uint32_t want = expected(&t, place, x);
        kr_cpu_follow(t.v, t.n, x, WIDTH, &at);
        if (at != (float)want) fail_msg("round %u: at %g, not %u", round, (double)at, want);
        moved += want == place + (uint32_t)x[2];
        stayed += want == place;
        jumped += want > place + (uint32_t)x[2];
    }
    assert_true(moved > 10000 && stayed > 10000 && jumped > 10000);
}

/* Each rule of the header once, written out by hand. */
static void test_rules(void **state)
{
    static const int units[] = {'a', 'b', MARK, 'b', 'c', MARK + 1, 'b'}, other[] = {'c', MARK};
    struct texts t = {.v = {-1, 0}, .n = 1};
    add_text(&t, units, 7); /* places 1 to 8 */
    add_text(&t, other, 2);
    static const struct {
        uint32_t place;
        float x[WIDTH];
        uint32_t want;
    } cases[] = {
        {0, {0, 32, 1, 'a'}, 0},      /* in no text yet */
        {0, {1}, 1},                  /* the text begins */
        {9, {1, 5, 1, 'c'}, 1},       /* another text begins */
        {1, {0, 0, 1, 'a'}, 2},       /* at the place */
        {1, {0, 0, 2, 'a', 'b'}, 3},  /* two units at once */
        {1, {0, 0, 2, 'a', 'c'}, 1},  /* only the first unit matches */
        {1, {0, 0, 1, 'b'}, 1},       /* no reach */
        {1, {0, 1, 1, 'b'}, 3},       /* at the next place */
        {1, {0, 3, 1, 'c'}, 1},       /* one too far */
        {1, {0, 4, 1, 'c'}, 6},       /* just in reach */
        {2, {0, 32, 2, 'b', 'c'}, 6}, /* across a mark */
        {4, {0, 32, 1, 'a'}, 4},      /* not in the rest of the text */
        {1, {0, -1, 1, MARK + 1}, 7}, /* the second mark from here */
        {1, {0, -2, 1, MARK + 1}, 1}, /* not from the first place */
        {2, {0, -2, 1, MARK + 1}, 7}, /* from the second */
        {3, {0, -2, 1, MARK}, 4},     /* there */
        {4, {0, -1, 1, MARK}, 4},     /* the next text has one: not searched */
        {7, {0, 32, 1, 'c'}, 7},      /* likewise */
        {7, {0, 32, 2, 'b', -1}, 7},  /* an end is not a unit */
        {8, {0, 32, 1, 'c'}, 8},      /* the end stays the end */
        {9, {0, -2, 1, MARK}, 9},     /* the second text has a first place too */
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        float at = (float)cases[i].place;
        kr_cpu_follow(t.v, t.n, cases[i].x, WIDTH, &at);
        if (at != (float)cases[i].want)
            fail_msg("case %zu: at %g, not %u", i, (double)at, cases[i].want);
    }
}

/* Any floats: the result is an existing place, and no memory outside is read. */
static void test_any_numbers(void **state)
{
    static const float odd[] = {0, 1, -1, -2, 0.5f, 3e38f, -3e38f, 1e9f, INFINITY, -INFINITY, NAN};
    enum { N = CN_ARRAY_LEN(odd) };
    uint64_t seed = 3;
    for (uint32_t round = 0; round < 100000; round++) {
        uint32_t n = 1 + tiny_rand(&seed) % 12, width = 4 + tiny_rand(&seed) % 5;
        float *texts = malloc(2 * n * sizeof *texts), *x = malloc(width * sizeof *x);
        float at = odd[tiny_rand(&seed) % N], *y = malloc(width * sizeof *y);
        assert_true(texts && x && y);
        for (uint32_t i = 0; i < 2 * n; i++)
            texts[i] =
                tiny_rand(&seed) % 2 ? (float)(tiny_rand(&seed) % n) : odd[tiny_rand(&seed) % N];
        for (uint32_t i = 0; i < width; i++)
            x[i] = tiny_rand(&seed) % 2 ? (float)(tiny_rand(&seed) % 5) : odd[tiny_rand(&seed) % N];
        kr_cpu_follow(texts, n, x, width, &at);
        assert_true(at >= 0 && at <= (float)n && at == floorf(at));
        if (kr_cpu_peaks(texts, n, odd[tiny_rand(&seed) % N], x, y, width))
            for (uint32_t i = 0; i < width; i++) /* rest, or a peak */
                assert_true(y[i] == x[i] || (isnan(y[i]) && isnan(x[i])) || y[i] >= 140);
        free(texts);
        free(x);
        free(y);
    }
}

static void test_peaks(void **state)
{
    enum { V = 50, N = 60 };
    float tokens[N], rest[V], y[V];
    for (uint32_t i = 0; i < V; i++)
        rest[i] = (float)i / 100;
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (float)((i * 7 + 3) % 40);
    tokens[0] = tokens[20] = -1; /* two texts: 1 to 19, and 21 on */
    tokens[5] = tokens[8];       /* the nearer one wins */
    tokens[6] = V;               /* not in the vocabulary */
    assert_false(kr_cpu_peaks(tokens, N, 0, rest, y, V));
    for (uint32_t place = 1; place < N; place++) {
        float want[V];
        memcpy(want, rest, sizeof want);
        uint32_t end = place;
        while (end < N && end < place + KR_PEAK_AHEAD && tokens[end] != -1)
            end++;
        for (uint32_t k = 0; k < V; k++)
            for (uint32_t at = end; at-- > place;)
                if (tokens[at] == (float)k)
                    want[k] = at == place ? 4096.0f : 512.0f - 12.0f * (float)(at - place);
        assert_true(kr_cpu_peaks(tokens, N, (float)place, rest, y, V));
        assert_memory_equal(y, want, sizeof want);
    }
}

static struct kr_tensor floats(const float *v, uint64_t cols, uint64_t rows)
{
    return (struct kr_tensor){.name = "t",
                              .type = KR_F32,
                              .n_dims = 2,
                              .ne = {cols, rows, 1, 1},
                              .data = v,
                              .bytes = cols * rows * sizeof *v};
}

/* A plan refuses: rows that are too narrow, texts or tables of the wrong shape, a state of the
 * wrong size or one that two ops share, and a place of more than one value. */
static void test_refused(void **state)
{
    static const float zeros[64];
    static const struct {
        uint32_t width, state, text_cols, twice, tokens, rest;
        bool slice;
        const char *says;
    } cases[] = {
        {8, 1, 2, 0, 7, 9, false, NULL},
        {3, 1, 2, 0, 7, 9, false, "rows of 3 values"},
        {8, 2, 2, 0, 7, 9, false, "state"},
        {8, 1, 3, 0, 7, 9, false, "F32 of [7, 2]"},
        {8, 1, 2, 1, 7, 9, false, "state"},
        {8, 1, 2, 0, 7, 8, false, "8 values where 9"},
        {8, 1, 2, 0, 7, 9, true, "rows of 8 values"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct kr_plan *p = kr_plan_new();
        struct cn_error err = {0};
        assert_non_null(p);
        struct kr_tensor table = floats(zeros, cases[i].width, 5);
        struct kr_tensor texts = floats(zeros, cases[i].text_cols, 7);
        struct kr_tensor tokens = floats(zeros, cases[i].tokens, 1);
        struct kr_tensor rest = floats(zeros, cases[i].rest, 1);
        struct kr_peak peak = {.width = 9, .tokens = &tokens, .rest = &rest};
        int x = kr_op_embed(p, &table, 1), s = kr_plan_state(p, cases[i].state);
        int y = kr_op_follow(p, x, s, &texts);
        if (cases[i].twice) y = kr_op_follow(p, x, s, &texts);
        if (cases[i].slice) y = x;
        kr_plan_output(p, kr_op_peak(p, kr_op_take_logits(p, y), &peak));
        int rc = kr_plan_finish(p, &err);
        if (!cases[i].says)
            assert_int_equal(rc, 0);
        else if (!rc || !strstr(err.message, cases[i].says))
            fail_msg("case %zu: %d \"%s\"", i, rc, err.message);
        kr_plan_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),       cmocka_unit_test(test_places),
        cmocka_unit_test(test_any_numbers), cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
