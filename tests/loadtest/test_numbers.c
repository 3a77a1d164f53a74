/* loadtest: chance, lengths, arrivals, percentiles. */
#include "loadtest/loadtest.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 200000 };

/* The first outputs of xoshiro256** from the state 1, 2, 3, 4, as its authors' C gives them. */
static void generator_is_xoshiro(void **state)
{
    static const uint64_t want[] = {11520u,
                                    0u,
                                    1509978240u,
                                    1215971899390074240u,
                                    1216172134540287360u,
                                    607988272756665600u,
                                    16172922978634559625u,
                                    8476171486693032832u,
                                    10595114339597558777u,
                                    2904607092377533576u};
    struct lt_rand r = {{1, 2, 3, 4}};

    for (size_t i = 0; i < CN_ARRAY_LEN(want); i++)
        assert_int_equal(lt_rand_u64(&r), want[i]);
}

static void draws_depend_on_what_they_are_for(void **state)
{
    struct lt_rand a, b;

    lt_rand_init(&a, 7, LT_R_PROMPT, 1, 2);
    lt_rand_init(&b, 7, LT_R_PROMPT, 1, 2);
    assert_int_equal(lt_rand_u64(&a), lt_rand_u64(&b));
    uint64_t same = lt_rand_u64(&a);
    struct {
        uint64_t seed, a, b;
        enum lt_stream s;
    } other[] = {{8, 1, 2, LT_R_PROMPT},
                 {7, 2, 2, LT_R_PROMPT},
                 {7, 1, 3, LT_R_PROMPT},
                 {7, 1, 2, LT_R_SHAPE},
                 {7, 2, 1, LT_R_PROMPT}};
    for (size_t i = 0; i < CN_ARRAY_LEN(other); i++) {
        lt_rand_init(&b, other[i].seed, other[i].s, other[i].a, other[i].b);
        lt_rand_u64(&b);
        assert_true(lt_rand_u64(&b) != same);
    }
}

static void draws_have_their_distribution(void **state)
{
    struct lt_rand r;
    double sum = 0, exp_sum = 0, exp_sq = 0, n_sum = 0, n_sq = 0;
    unsigned seen[7] = {0};

    lt_rand_init(&r, 1, LT_R_SHAPE, 0, 0);
    for (int i = 0; i < MANY; i++) {
        double u = lt_rand_unit(&r), e = lt_rand_exp(&r, 3), z = lt_rand_normal(&r);

        assert_true(u > 0 && u <= 1 && e >= 0);
        sum += u;
        exp_sum += e;
        exp_sq += e * e;
        n_sum += z;
        n_sq += z * z;
        seen[lt_rand_below(&r, 7)]++;
    }
    /* five standard errors; the seed is fixed, so this passes always or never */
    double five = 5 / sqrt(MANY);
    assert_true(fabs(sum / MANY - 0.5) < five * 0.29);
    assert_true(fabs(exp_sum / MANY - 3) < five * 3);
    assert_true(fabs(exp_sq / MANY - 18) < five * 18 * 2.3);
    assert_true(fabs(n_sum / MANY) < five && fabs(n_sq / MANY - 1) < five * 1.5);
    for (int i = 0; i < 7; i++)
        assert_true(fabs(seen[i] / (double)MANY - 1 / 7.0) < five * 0.35);
    assert_int_equal(lt_rand_below(&r, 1), 0);
}

static struct lt_len length(const char *text)
{
    struct lt_class c = {0};
    struct cn_error e = {0};

    if (lt_key_put(lt_key_find(LT_CLASS, "prompt_tokens"), &c, text, false, &e))
        fail_msg("%s: %s", text, e.message);
    return c.prompt_tokens;
}

static void lengths_are_drawn_as_written(void **state)
{
    struct lt_rand r;
    struct lt_len l = length("40");
    double below = 0, sum = 0;

    lt_rand_init(&r, 2, LT_R_SHAPE, 0, 0);
    assert_int_equal(lt_len_draw(&l, &r), 40);
    l = length("3..5");
    unsigned seen[9] = {0};
    for (int i = 0; i < 3000; i++) {
        uint64_t v = lt_len_draw(&l, &r);
        assert_in_range(v, 3, 5);
        seen[v]++;
    }
    assert_true(seen[3] > 800 && seen[4] > 800 && seen[5] > 800);
    l = length("lognormal:100:0.5:400");
    for (int i = 0; i < MANY; i++) {
        uint64_t v = lt_len_draw(&l, &r);
        assert_in_range(v, 1, 400);
        below += v <= 100;
        sum += (double)v;
    }
    /* half are below the median; the mean is median * exp(sigma^2 / 2), the cap takes a little */
    assert_true(fabs(below / MANY - 0.5) < 0.01);
    assert_true(fabs(sum / MANY / (100 * exp(0.125)) - 1) < 0.01);
    l = length("7,9,7");
    unsigned sevens = 0;
    for (int i = 0; i < 3000; i++) {
        uint64_t v = lt_len_draw(&l, &r);
        assert_true(v == 7 || v == 9);
        sevens += v == 7;
    }
    assert_in_range(sevens, 1850, 2150);
    lt_len_fini(&l);
}

static void arrivals(void **state)
{
    struct lt_arrival a, b;
    double last = 0, sq = 0, sum = 0;

    lt_arrival_init(&a, 8, true, 1, 0);
    for (int i = 0; i < 1000; i++)
        assert_true(fabs(lt_arrival_next(&a) - i / 8.0) < 1e-9);
    lt_arrival_init(&a, 8, false, 5, 2);
    lt_arrival_init(&b, 8, false, 5, 2);
    for (int i = 0; i < MANY; i++) {
        double at = lt_arrival_next(&a), gap = at - last;

        assert_true(gap >= 0);
        assert_true(at == lt_arrival_next(&b));
        sum += gap;
        sq += gap * gap;
        last = at;
    }
    /* exponential gaps: the standard deviation is the mean */
    double mean = sum / MANY, deviation = sqrt(sq / MANY - mean * mean);
    assert_true(fabs(mean * 8 - 1) < 0.02);
    assert_true(fabs(deviation / mean - 1) < 0.02);
}

/* Nearest rank by its definition: the least sample that at least q of all do not exceed. */
static uint64_t by_counting(const uint64_t *v, size_t n, unsigned percent)
{
    uint64_t best = UINT64_MAX;

    for (size_t i = 0; i < n; i++) {
        size_t not_above = 0;

        for (size_t j = 0; j < n; j++)
            not_above += v[j] <= v[i];
        if (not_above * 100 >= (size_t)percent * n && v[i] < best) best = v[i];
    }
    return best;
}

static void percentiles_are_exact(void **state)
{
    struct lt_rand r;

    lt_rand_init(&r, 3, LT_R_SHAPE, 0, 0);
    for (size_t n = 1; n < 230; n += n < 20 ? 1 : 21) {
        struct lt_samples s = {0}, two = {0};
        uint64_t v[256];

        for (size_t i = 0; i < n; i++) {
            v[i] = lt_rand_below(&r, 100);
            assert_int_equal(lt_samples_add(&s, v[i]), 0);
        }
        static const unsigned shares[] = {1, 10, 50, 90, 99, 100};
        for (size_t i = 0; i < CN_ARRAY_LEN(shares); i++)
            assert_int_equal(lt_samples_at(&s, shares[i] / 100.0), by_counting(v, n, shares[i]));
        assert_int_equal(lt_samples_add(&s, 1000), 0); /* after it was sorted */
        assert_int_equal(lt_samples_at(&s, 1), 1000);
        assert_int_equal(lt_samples_join(&two, &s), 0);
        assert_int_equal(lt_samples_join(&two, &s), 0);
        assert_int_equal(two.n, 2 * (n + 1));
        assert_true(fabs(lt_samples_mean(&two) - lt_samples_mean(&s)) < 1e-9);
        lt_samples_fini(&s);
        lt_samples_fini(&two);
    }
    struct lt_samples none = {0};
    assert_int_equal(lt_samples_at(&none, 0.5), 0);
    assert_true(lt_samples_mean(&none) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generator_is_xoshiro),
        cmocka_unit_test(draws_depend_on_what_they_are_for),
        cmocka_unit_test(draws_have_their_distribution),
        cmocka_unit_test(lengths_are_drawn_as_written),
        cmocka_unit_test(arrivals),
        cmocka_unit_test(percentiles_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
