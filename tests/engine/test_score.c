/* What sampling computes without a sampler: exponentials, and the score of a token in a row. */
#include "engine/engine.h"
#include "kernels/draw_select.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_exp(void **state)
{
    for (double x = -87.0; x <= 0; x += 0.00137) {
        double want = exp((float)x) * 0x1p40, got = (double)kr_draw_exp((float)x);
        assert_true(fabs(got - want) <= 3e-7 * want);
    }
    assert_true(kr_draw_exp(0.0f) == 0x1p40f);
    assert_true(kr_draw_exp(-INFINITY) == 0.0f);
    assert_true(kr_draw_exp(-88.0f) == 0.0f);
}

/* A vocabulary of more runs than a score has room for at hand. */
static void test_score_of_many(void **state)
{
    enum { MANY = 1024 * 512 + 700 };
    float *z = calloc(MANY, sizeof *z);
    struct kr_drawn d;
    assert_non_null(z);
    z[MANY - 3] = 9;
    z[7] = 8;
    assert_int_equal(kr_draw_score(kr_draw_loops(KR_ISA_AUTO), z, MANY, MANY - 3, 2, &d), 0);
    assert_true(fabs(d.logprob - (9 - log(exp(9) + exp(8) + MANY - 2))) < 1e-5);
    assert_int_equal(d.n_top, 2);
    assert_int_equal(d.top[0].id, MANY - 3);
    assert_int_equal(d.top[1].id, 7);
    free(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_score_of_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
