/* Draws against plain double-precision code: exponentials of the C library, a full sort, one long
 * sum. Both get the same 64 random bits, so they give the same id, but where these fall within what
 * float exponentials may be wrong by. CONIFER_LONG: a million rows. */
#include "kernels/draw_select.h"
#include "tests/devices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MOST = 1500 };

static uint64_t rng = 88172645463325252u;
static uint64_t bits(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}
static double rnd(void)
{
    return (double)(bits() >> 11) * 0x1p-53;
}

struct item {
    double z, p;
    uint32_t id;
};
static int likelier(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->z != y->z) return x->z < y->z ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}
static int by_id(const void *a, const void *b)
{
    return ((const struct item *)a)->id < ((const struct item *)b)->id ? -1 : 1;
}

/* What is kept, in the order of ids; *near: a cut is so near that rounding may move it. */
static size_t keep(const float *z, size_t n, const struct kr_draw_opts *o, struct item *v,
                   bool *near)
{
    const double error = 1e-6;
    double all = 0, at = 0, inv_t = fmin(1 / (double)o->temperature, 3e38);
    size_t kept = n, k = 0;
    for (size_t i = 0; i < n; i++)
        v[i] = (struct item){(double)z[i], 0, (uint32_t)i};
    qsort(v, n, sizeof *v, likelier);
    if (o->top_k && o->top_k < n) kept = o->top_k;
    for (size_t i = 0; i < kept; i++)
        all += v[i].p = exp((v[i].z - v[0].z) * inv_t);
    double want = all * (double)o->top_p;
    if (o->top_p < 1) {
        while (k < kept && (!k || at < want)) {
            at += v[k++].p;
            *near |= fabs(at - want) < error * all;
        }
        kept = k;
    }
    for (k = 0; k < kept && v[k].p >= (double)o->min_p; k++) {
    }
    for (size_t i = 1; i < kept && o->min_p > 0; i++)
        *near |= fabs(v[i].p - (double)o->min_p) < error;
    kept = CN_MAX(k, (size_t)1);
    qsort(v, kept, sizeof *v, by_id);
    return kept;
}

static uint32_t pick(const struct item *v, size_t n, double u, bool *near)
{
    double all = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        all += v[i].p;
    for (size_t i = 0; i < n; i++) {
        at += v[i].p;
        *near |= fabs(at - u * all) < 1e-6 * all;
        if (at > u * all) return v[i].id;
    }
    return v[n - 1].id;
}

static double point(const struct kr_draw_opts *o, uint64_t position, uint64_t choice)
{
    uint8_t key[16] = "conifer sampling";
    struct { uint64_t seed, position, choice; } in = {o->seed, position, choice};
    return (double)cn_siphash13(key, &in, sizeof in) * 0x1p-64;
}

static void fill(float *z, size_t n)
{
    double spread = 1 << bits() % 5, quantum = bits() % 4 ? 0 : 0.5; /* many equal ones */
    for (size_t i = 0; i < n; i++) {
        double x = (rnd() + rnd() + rnd() - 1.5) * spread;
        z[i] = (float)(quantum > 0 ? floor(x / quantum) * quantum : x);
        if (bits() % 50 == 0) z[i] = -INFINITY;
    }
    z[bits() % n] = (float)spread;
}

static void test_against_doubles(void **state)
{
    static const float ps[] = {1, 1, 0.95f, 0.9f, 0.5f, 0.1f}, mins[] = {0, 0, 0.05f, 0.5f};
    static const float temperatures[] = {0.2f, 0.7f, 1, 2};
    static const uint32_t ks[] = {0, 0, 1, 5, 40, 5000};
    static float z[MOST], row[MOST];
    static struct item v[MOST];
    size_t n_rows = getenv("CONIFER_LONG") ? 1000000 : 30000, n_near = 0;
    struct kr_draw_rooms rooms;
    kr_draw_rooms_init(&rooms);
    for (size_t r = 0; r < n_rows; r++) {
        size_t n = 1 + bits() % (r % 20 ? 80 : MOST);
        struct kr_draw_opts o = {.loops = kr_draw_loops(KR_ISA_AUTO),
                                 .n_vocab = n,
                                 .temperature = temperatures[bits() % 4],
                                 .top_k = ks[bits() % 6],
                                 .top_p = ps[bits() % 6],
                                 .min_p = mins[bits() % 4],
                                 .repetition = 1,
                                 .seed = bits(),
                                 .n_top = -1};
        uint64_t position = bits() % 100000;
        uint32_t choice = (uint32_t)(bits() % 3);
        struct kr_draw_state *s;
        struct kr_drawn d;
        bool near = false;
        fill(z, n);
        memcpy(row, z, n * sizeof *z);
        assert_int_equal(kr_draw_state_new(&o, choice, &rooms, &s), 0);
        assert_int_equal(kr_draw_row(s, row, position, NULL, &d), 0);
        size_t kept = keep(z, n, &o, v, &near);
        uint32_t want = pick(v, kept, point(&o, position, choice), &near);
        n_near += near;
        if (!near && d.id != want) fail_msg("row %zu: %u drawn, not %u", r, d.id, want);
        kr_draw_state_free(s);
    }
    if (n_near > n_rows / 200) fail_msg("%zu rows of %zu are near a cut", n_near, n_rows);
    kr_draw_rooms_fini(&rooms);
}

/* The same bits with every ISA that this machine has. */
static void test_isas_agree(void **state)
{
    static const enum kr_isa isas[] = {KR_ISAS};
    enum { N = 100003 };
    float *z = malloc(N * sizeof *z), *row = malloc(N * sizeof *row);
    struct kr_draw_rooms rooms;
    assert_true(z && row);
    kr_draw_rooms_init(&rooms);
    for (int round = 0; round < 40; round++) {
        struct kr_drawn first, d;
        bool any = false;
        fill(z, N);
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
            struct kr_draw_opts o = {.loops = kr_draw_loops(isas[i]),
                                     .n_vocab = N,
                                     .temperature = 0.5f + 0.1f * (float)round,
                                     .repetition = 1,
                                     .top_p = round % 3 ? 1 : 0.9f,
                                     .top_k = round % 5 ? 0 : 100,
                                     .min_p = round % 4 ? 0 : 0.01f,
                                     .seed = 5,
                                     .n_top = 20};
            struct kr_draw_state *s;
            if (!o.loops) continue;
            memset(&d, 0, sizeof d);
            memcpy(row, z, N * sizeof *z);
            assert_int_equal(kr_draw_state_new(&o, 0, &rooms, &s), 0);
            assert_int_equal(kr_draw_row(s, row, 7, NULL, &d), 0);
            if (!any) first = d;
            any = true;
            assert_memory_equal(&first, &d, sizeof d);
            assert_true(o.loops->mass(z, N, 20, 1) == kr_draw_loops_generic()->mass(z, N, 20, 1));
            kr_draw_state_free(s);
        }
    }
    kr_draw_rooms_fini(&rooms);
    free(z);
    free(row);
}

/* With a mask, on every ISA: as if what it bars were -INFINITY, scores aside; and a value that is
 * no number is found where it is barred, too. */
static void test_masks(void **state)
{
    static const enum kr_isa isas[] = {KR_ISAS};
    static float z[MOST], row[MOST];
    static uint32_t mask[MOST / 32 + 1];
    struct kr_draw_rooms rooms;
    kr_draw_rooms_init(&rooms);
    for (uint32_t round = 0; round < 300; round++) {
        struct cn_bias edit = {.id = round % 200, .add = 3};
        struct kr_draw_opts o = {.n_vocab = 200 + bits() % (MOST - 200),
                                 .temperature = round % 5 ? 1 : 0,
                                 .repetition = 1,
                                 .top_p = 1,
                                 .edits = &edit,
                                 .n_edits = round & 1,
                                 .seed = round};
        uint32_t bad = round % (uint32_t)o.n_vocab;
        fill(z, MOST);
        for (size_t i = 0; i < CN_ARRAY_LEN(mask); i++)
            mask[i] = (uint32_t)(round % 3 ? bits() & bits() & bits() : bits() | bits());
        mask[0] |= 2; /* never none */
        for (size_t i = 0; i < 2 * CN_ARRAY_LEN(isas); i++) {
            struct kr_draw_state *s;
            struct kr_drawn want, got;
            o.loops = kr_draw_loops(isas[i / 2]);
            o.n_top = i & 1 ? 3 : -1;
            if (!o.loops) continue;
            assert_int_equal(kr_draw_state_new(&o, 0, &rooms, &s), 0);
            for (size_t k = 0; k < o.n_vocab; k++)
                row[k] = mask[k / 32] >> k % 32 & 1 ? z[k] : -INFINITY;
            assert_int_equal(kr_draw_row(s, row, round, NULL, &want), 0);
            memcpy(row, z, sizeof row);
            assert_int_equal(kr_draw_row(s, row, round, mask, &got), 0);
            assert_int_equal(got.id, want.id);
            assert_int_equal(kr_draw_score(o.loops, z, o.n_vocab, got.id, 0, &want), 0);
            if (i & 1) assert_true(got.logprob == want.logprob); /* the model's own */
            memcpy(row, z, sizeof row);
            row[bad] = round & 2 ? NAN : INFINITY;
            assert_int_equal(kr_draw_row(s, row, round, mask, &got), CN_ENUMERIC);
            kr_draw_state_free(s);
        }
    }
    kr_draw_rooms_fini(&rooms);
}

static struct kr_draw_state *penalised(struct kr_draw_rooms *rooms, size_t n_vocab)
{
    struct kr_draw_opts o = {.loops = kr_draw_loops(KR_ISA_AUTO),
                             .n_vocab = n_vocab,
                             .top_p = 1,
                             .repetition = 1.2f,
                             .frequency = 1.5f,
                             .n_top = -1};
    struct kr_draw_state *s;
    assert_int_equal(kr_draw_state_new(&o, 0, rooms, &s), 0);
    return s;
}

/* What was taken back is as if it had not been put out, also where the table has grown since. */
static void test_taken_back(void **state)
{
    enum { N = 300 };
    static float z[N], row[N];
    struct kr_draw_rooms rooms;
    kr_draw_rooms_init(&rooms);
    for (uint32_t round = 0; round < 60; round++) {
        struct kr_draw_state *s[2] = {penalised(&rooms, N), penalised(&rooms, N)};
        uint32_t n = round * 3;
        fill(z, N);
        for (uint32_t i = 0; i < 2 * n; i++)
            assert_int_equal(kr_draw_state_accept(s[i % 2], i / 2 * 37 % 200), 0);
        for (uint32_t i = 0; i < KR_DRAW_BACK; i++)
            assert_int_equal(kr_draw_state_accept(s[0], (round + i * i) % N), 0);
        kr_draw_state_cut(s[0], n);
        kr_draw_state_cut(s[0], n + 5); /* there is nothing behind that */
        for (uint32_t i = 0; i < 20; i++) {
            struct kr_drawn d[2];
            for (int k = 0; k < 2; k++) {
                memcpy(row, z, sizeof row);
                assert_int_equal(kr_draw_row(s[k], row, i, NULL, &d[k]), 0);
                assert_int_equal(kr_draw_state_accept(s[k], d[k].id), 0);
            }
            assert_int_equal(d[0].id, d[1].id);
        }
        kr_draw_state_free(s[0]);
        kr_draw_state_free(s[1]);
    }
    kr_draw_rooms_fini(&rooms);
}

/* Sums in any order and pieces, and the mass of one. */
static void test_masses_are_integers(void **state)
{
    static float z[MOST], back[MOST];
    const struct kr_draw_loops *l = kr_draw_loops(KR_ISA_AUTO);
    for (int round = 0; round < 100; round++) {
        uint64_t sum = 0;
        size_t cut = 1 + bits() % (MOST - 1);
        fill(z, MOST);
        for (size_t i = 0; i < MOST; i++) {
            sum += kr_mass(z[i], 20, 0.7f);
            back[MOST - 1 - i] = z[i];
        }
        assert_true(l->mass(z, MOST, 20, 0.7f) == sum);
        assert_true(l->mass(back, MOST, 20, 0.7f) == sum);
        assert_true(l->mass(z, cut, 20, 0.7f) + l->mass(z + cut, MOST - cut, 20, 0.7f) == sum);
    }
    assert_true(kr_mass(3, 3, 1e30f) == KR_MASS_ONE);
    assert_true(kr_mass(-INFINITY, 3, 1) == 0);
    for (float x = 0; x > -40; x -= 0.01f)
        if (kr_weighs_nothing(x, 0, 1)) assert_true(kr_mass(x + 1e-3f, 0, 1) == 0);
}

static void test_logarithm(void **state)
{
    for (int i = 0; i < 200000; i++) {
        uint64_t total = CN_MAX(bits() >> bits() % 50, (uint64_t)1);
        double want = log((double)total) - 40 * log(2);
        if (fabs((double)kr_log_mass(total) - want) > 2e-7 + 2e-7 * fabs(want))
            fail_msg("log of %g: %g, not %g", (double)total, (double)kr_log_mass(total), want);
    }
    assert_true(kr_log_mass(KR_MASS_ONE) == 0);
}

/* Nearly all of the mass is all of it, where the fraction has 32 bits. */
static void test_nearly_one(void **state)
{
    struct kr_candidates c = {0};
    struct kr_select_rule rule = {.inv_t = 1, .top_p = 0x1.fffffep-1f};
    float z[40], tops[1];
    for (int i = 0; i < 40; i++)
        z[i] = -0.5f * (float)i;
    assert_true(kr_tops(kr_draw_loops(KR_ISA_AUTO), z, 40, tops));
    assert_int_equal(kr_select(kr_draw_loops(KR_ISA_AUTO), z, 40, tops, 0, &rule, &c), 0);
    assert_true(c.n > 25 && c.n < 40);
    for (size_t i = 1; i < c.n; i++)
        assert_true(c.v[i].id > c.v[i - 1].id);
    free(c.v);
}

/* A tenant may ask for draws that keep nearly everything, of logits that hardly differ, and all of
 * a step wait for them: they take some passes over the row, and no ordering of it. */
static void test_wide_sets_are_not_ordered(void **state)
{
    enum { N = 1 << 18 };
    const struct kr_draw_loops *loops = kr_draw_loops(KR_ISA_AUTO);
    const struct kr_select_rule rules[] = {{.inv_t = 0.5f, .top_p = 0x1.fffffep-1f},
                                           {.inv_t = 0.5f, .top_p = 1, .top_k = N - N / 8},
                                           {.inv_t = 0.5f, .top_p = 0.9999f, .top_k = N - 1}};
    float *z = malloc(N * sizeof *z), *tops = malloc(kr_n_tops(N) * sizeof *tops);
    struct kr_candidates c = {0};
    for (size_t i = 0; i < N; i++)
        z[i] = (float)(bits() % 1024) * -1e-6f - 40;
    z[7] = 0;
    assert_true(kr_tops(loops, z, N, tops));
    for (size_t r = 0; r < CN_ARRAY_LEN(rules); r++) {
        uint64_t best = UINT64_MAX, pass = UINT64_MAX, sum = 0;
        for (int i = 0; i < 7; i++) {
            uint64_t t0 = cn_thread_ns();
            for (size_t k = 0; k < N; k++)
                sum += kr_mass(z[k], 0, 0.5f);
            uint64_t t1 = cn_thread_ns();
            assert_int_equal(kr_select(loops, z, N, tops, 0, &rules[r], &c), 0);
            pass = CN_MIN(pass, t1 - t0);
            best = CN_MIN(best, cn_thread_ns() - t1);
        }
        print_message("%zu of %d kept in the time of %.1f passes\n", c.n, N,
                      (double)best / (double)pass);
        assert_true(sum && c.n > N / 2 && best < 20 * pass);
    }
    free(z);
    free(tops);
    free(c.v);
}

/* The instructions that a device was made with decide its loops, and so those of its draws. */
static void test_a_device_s_loops(void **state)
{
    static const enum kr_isa isas[] = {KR_ISAS, KR_ISA_AUTO};
    uint32_t n = 0;
    for (int k = 0; dev_kinds[k]; k++)
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
            struct kr_device *d;
            if (dev_new_of(dev_kinds[k], isas[i], 1, &d, NULL)) continue;
            assert_ptr_equal(kr_device_draw_loops(d), kr_draw_loops(isas[i]));
            n += isas[i] != KR_ISA_GENERIC && kr_device_draw_loops(d) != kr_draw_loops_generic();
            kr_device_free(d);
        }
    if (!n) print_message("this processor has the generic loops only\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_doubles),
        cmocka_unit_test(test_isas_agree),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_taken_back),
        cmocka_unit_test(test_masses_are_integers),
        cmocka_unit_test(test_logarithm),
        cmocka_unit_test(test_nearly_one),
        cmocka_unit_test(test_wide_sets_are_not_ordered),
        cmocka_unit_test(test_a_device_s_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
