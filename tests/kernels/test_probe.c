/* probe: every ISA's figures are positive and finite, with the least buffer and with all that is
 * asked for, and devices of any thread count can be asked. What is asserted of speed is a ratio of
 * two devices that take turns: a busy machine only makes both smaller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/devices.h"

#define MS 1000000ull

static struct kr_device *device(enum kr_isa isa, uint32_t threads)
{
    struct kr_device *d = NULL;
    struct cn_error err = {0};
    int rc = dev_new(isa, threads, &d, &err);
    if (rc == CN_EUNSUPP) return NULL;
    assert_int_equal(rc, 0);
    return d;
}

static void assert_rate(double x)
{
    assert_true(isfinite(x));
    /* A kilobyte or operation in a microsecond, and a thousand times any machine. */
    assert_true(x > 1e6 && x < 1e18);
}

static void figures_of(enum kr_isa isa, uint32_t threads)
{
    struct kr_device *d = device(isa, threads);
    struct kr_probe p = {0};
    struct cn_error err = {0};
    double small;
    if (!d) return;
    /* twice: the second goes on with what the first has left */
    for (int k = 0; k < 2; k++) {
        assert_int_equal(kr_device_probe(d, k ? UINT64_MAX : 0, 4 * MS, &p, &err), 0);
        assert_rate(p.read_bytes_s);
        assert_rate(p.int8_ops_s);
        assert_rate(p.fma_flops_s);
        assert_int_equal(kr_device_probe_read(d, 1 << 20, 4 * MS, &small, &err), 0);
        assert_rate(small);
    }
    kr_device_free(d);
}

static void test_figures(void **state)
{
    for (int isa = 0; isa < KR_N_ISAS; isa++)
        figures_of((enum kr_isa)isa, 1);
    figures_of(KR_ISA_AUTO, 2);
    figures_of(KR_ISA_AUTO, 5);
}

/* What an instruction of many products reaches is several times plain C's, asked often enough for
 * both to have had the processor once. Only on x86: elsewhere the test may run on an emulated
 * processor, where the widest instructions are the slowest. */
#if defined(__x86_64__)
#define FACTOR 2
#else
#define FACTOR 0.7
#endif

static void test_wider_is_more(void **state)
{
    struct kr_device *plain = device(KR_ISA_GENERIC, 1), *wide = device(KR_ISA_AUTO, 1);
    struct kr_probe a = {0}, b = {0}, p;
    struct cn_error err = {0};
    for (int k = 0; k < 5; k++) {
        assert_int_equal(kr_device_probe(plain, UINT64_MAX, 2 * MS, &p, &err), 0);
        a.int8_ops_s = CN_MAX(a.int8_ops_s, p.int8_ops_s);
        assert_int_equal(kr_device_probe(wide, UINT64_MAX, 2 * MS, &p, &err), 0);
        b.int8_ops_s = CN_MAX(b.int8_ops_s, p.int8_ops_s);
    }
    bool same = !strcmp(kr_device_path(plain), kr_device_path(wide));
    assert_true(b.int8_ops_s > (same ? 0.7 : FACTOR) * a.int8_ops_s);
    kr_device_free(plain);
    kr_device_free(wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_wider_is_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
