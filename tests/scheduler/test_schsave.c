/* Preempted choices whose blocks are saved in host memory: how much of it a tenant may have. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Eight blocks: less than is preempted at once. */
#define HOST_BYTES (8 * SIMCASE_BLOCK_BYTES)

/* Twelve growing requests of n tenants in a pool for four. Returns the most host memory that one
 * tenant had at once. */
static uint64_t most_saved(uint32_t n_tenants, uint32_t depth)
{
    struct sim_opts o = simcase_opts(depth);
    struct sch_stats st;
    uint64_t most = 0;
    struct sim m;

    o.n_slabs = 5; /* 40 blocks; each request grows to 11 */
    o.host_words = HOST_BYTES / 8;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(sim_submit(&m, sim_req_new(&m, i % n_tenants, 20, 150)), 0);
    while (sim_iterate(&m)) {
        for (uint32_t t = 0; t < n_tenants; t++) {
            struct sch_tenant_stats ts;

            sch_tenant_stats(m.sch, t, &ts);
            most = CN_MAX(most, ts.saved_bytes);
        }
    }
    sch_stats(m.sch, &st);
    assert_true(st.saved > 0 && st.restored > 0);
    for (uint32_t t = 0; t < n_tenants; t++) {
        struct sch_tenant_stats ts;

        sch_tenant_stats(m.sch, t, &ts);
        assert_int_equal(ts.saved_bytes, 0);
    }
    simcase_finish(&m);
    return most;
}

static void test_one_tenant_may_have_all(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        uint64_t most = most_saved(1, depth);

        assert_true(most > HOST_BYTES / 2 && most <= HOST_BYTES);
    }
}

static void test_one_of_several_has_at_most_half(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (uint32_t n = 2; n <= 3; n++) {
            uint64_t most = most_saved(n, depth);

            assert_true(most > 0 && most <= HOST_BYTES / 2);
        }
    }
}

/* A row takes 1,000 ns in these steps, and a position 8 bytes: both ways pay above 16 MB/s. */
static uint64_t saved_at(double bytes_s)
{
    struct sim_opts o = simcase_opts(1);
    struct sch_stats st;
    struct sim m;

    o.n_slabs = 5;
    o.host_words = 1 << 20;
    o.step_ns = 0;
    o.row_ns = 1000;
    o.save_rate = bytes_s;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(sim_submit(&m, sim_req_new(&m, 0, 20, 150)), 0);
    while (sim_iterate(&m)) {
    }
    sch_stats(m.sch, &st);
    assert_true(st.preemptions > 0);
    simcase_finish(&m);
    return st.saved;
}

static void test_saved_only_where_it_pays(void **state)
{
    assert_true(saved_at(0) > 0); /* not known */
    assert_true(saved_at(1e9) > 0);
    assert_true(saved_at(40e6) > 0);
    assert_int_equal(saved_at(8e6), 0);
    assert_int_equal(saved_at(1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_tenant_may_have_all),
        cmocka_unit_test(test_one_of_several_has_at_most_half),
        cmocka_unit_test(test_saved_only_where_it_pays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
