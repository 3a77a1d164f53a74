/* Every kind of device can be asked for in the config, and only those. */
#include "config/config.h"
#include "kernels/kernels.h"
#include "runtime/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void test_each_kind_has_its_word(void **state)
{
    char kinds[256];
    int n = 0;
    assert_true(strlen(kr_device_kinds()) < sizeof kinds);
    strcpy(kinds, kr_device_kinds());
    for (char *kind = strtok(kinds, ", "); kind; kind = strtok(NULL, ", "), n++) {
        struct cn_error err = {0};
        struct kr_device_info info;
        struct kr_device *d;
        struct cfg cfg;
        assert_int_equal(cfg_init(&cfg, NULL), 0);
        assert_int_equal(cfg_set(&cfg, "engine.threads", "1", NULL), 0);
        if (cfg_set(&cfg, "engine.device", kind, &err)) fail_msg("%s: %s", kind, err.message);
        assert_int_equal(rt_device_new(&cfg, &d, &err), 0);
        kr_device_info(d, &info);
        assert_string_equal(info.kind, kind);
        assert_in_range(info.max_depth, 1, 2);
        if (!strcmp(kind, "async")) assert_int_equal(info.max_depth, 2); /* what it is for */
        kr_device_free(d);
        cfg_fini(&cfg);
    }
    assert_true(n >= 2);
}

/* engine.isa decides what draws as well, on every kind. */
static void test_the_isa_of_draws(void **state)
{
    static const enum kr_isa isas[] = {KR_ISAS};
    for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
        struct kr_cpu_opts o = {.isa = isas[i], .n_threads = 1};
        struct kr_device *d, *cpu;
        struct cn_error err = {0};
        if (kr_cpu_new(&o, &cpu, NULL)) continue;
        for (int k = 0; k < 2; k++) {
            struct cfg cfg;
            assert_int_equal(cfg_init(&cfg, NULL), 0);
            assert_int_equal(cfg_set(&cfg, "engine.threads", "1", NULL), 0);
            assert_int_equal(cfg_set(&cfg, "engine.isa", kr_isa_name(isas[i]), NULL), 0);
            assert_int_equal(cfg_set(&cfg, "engine.device", k ? "async" : "cpu", NULL), 0);
            if (rt_device_new(&cfg, &d, &err)) fail_msg("%s", err.message);
            assert_string_equal(kr_device_path(d), kr_device_path(cpu));
            assert_ptr_equal(kr_device_draw_loops(d), kr_device_draw_loops(cpu));
            kr_device_free(d);
            cfg_fini(&cfg);
        }
        kr_device_free(cpu);
    }
}

static void test_an_unknown_kind(void **state)
{
    struct kr_device_opts o = {.cpu = {.n_threads = 1}};
    struct cn_error err = {0};
    struct kr_device *d;
    assert_int_equal(kr_device_new("cp", &o, &d, &err), CN_EINVAL);
    assert_non_null(strstr(err.message, kr_device_kinds()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_kind_has_its_word),
                                       cmocka_unit_test(test_the_isa_of_draws),
                                       cmocka_unit_test(test_an_unknown_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
