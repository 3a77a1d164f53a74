/* A device with memory of its own: what it reports, what it refuses, and how fast weights get
 * there. */
#include "tests/kernels/tiny.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
static struct tiny *model;

static int make_model(void **state)
{
    static const struct tiny_shape shape = {.n_layers = 4,
                                            .width = 128,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_dim = 32,
                                            .ffn = 512,
                                            .vocab = 3000,
                                            .weights = KR_Q8_0,
                                            .head = KR_Q8_0};
    model = tiny_new(&shape, 1);
    return 0;
}

static int free_model(void **state)
{
    tiny_free(model);
    return 0;
}

static struct kr_prepare_opts options(void)
{
    return (struct kr_prepare_opts){.kv_type = KR_F16,
                                    .block_tokens = 16,
                                    .max_rows = 8,
                                    .max_logit_rows = 8,
                                    .max_context = 64};
}

static struct kr_device *device(uint64_t memory, uint64_t upload)
{
    struct cn_error err = {0};
    struct kr_device *d = NULL;
    struct kr_device_opts o = {.cpu = {.n_threads = 2},
                               .async = {.memory_bytes = memory, .upload_bytes_s = upload}};
    assert_int_equal(kr_device_new("async", &o, &d, &err), 0);
    return d;
}

static uint64_t left(const struct kr_device *d)
{
    struct kr_device_info i;
    kr_device_info(d, &i);
    return i.free_bytes;
}

/* Weights and scratch, as a measured exec says. */
static uint64_t size_of_model(void)
{
    struct kr_device *d = device(0, 0);
    struct kr_prepare_opts o = options();
    struct kr_exec *x;
    o.measure = true;
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, NULL), 0);
    uint64_t bytes = kr_exec_info(x)->packed_bytes + kr_exec_info(x)->scratch_bytes;
    kr_exec_free(x);
    kr_device_free(d);
    return bytes;
}

static void test_the_host_s_memory(void **state)
{
    static const char *const kinds[] = {"cpu", "async"};
    for (size_t i = 0; i < CN_ARRAY_LEN(kinds); i++) {
        struct kr_device_info info;
        struct kr_device *d;
        assert_int_equal(dev_new_of(kinds[i], KR_ISA_AUTO, 1, &d, NULL), 0);
        kr_device_info(d, &info);
        assert_true(info.memory_bytes == 0 && info.free_bytes == 0);
        kr_device_free(d);
    }
}

static void test_all_is_counted_and_comes_back(void **state)
{
    uint64_t size = size_of_model(), all = size + 2 * MIB;
    struct kr_device *d = device(all, 0);
    struct kr_prepare_opts o = options();
    struct kr_device_info info;
    struct kr_exec *x;
    struct kr_kv_mem *m;
    kr_device_info(d, &info);
    assert_true(info.memory_bytes == all && info.free_bytes == all);
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, NULL), 0);
    assert_int_equal(left(d), 2 * MIB);
    assert_int_equal(kr_kv_mem_new(d, MIB, 2, &m, NULL), 0);
    assert_int_equal(left(d), 0);
    kr_kv_mem_free(m);
    assert_int_equal(left(d), 2 * MIB);
    kr_exec_free(x);
    assert_int_equal(left(d), all);
    kr_device_free(d);
}

static void test_what_does_not_go_in_is_refused(void **state)
{
    uint64_t size = size_of_model();
    struct kr_device *d = device(size - 1, 0);
    struct kr_prepare_opts o = options();
    struct cn_error err = {0};
    struct kr_exec *x;
    struct kr_kv_mem *m;
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, &err), CN_ENOMEM);
    assert_non_null(strstr(err.message, "the model takes "));
    assert_non_null(strstr(err.message, "and the device has "));
    assert_int_equal(left(d), size - 1);
    assert_int_equal(kr_kv_mem_new(d, MIB, (uint32_t)(size / MIB) + 1, &m, &err), CN_ENOMEM);
    assert_non_null(strstr(err.message, "KV memory takes "));
    assert_int_equal(kr_kv_mem_new(d, UINT64_MAX / 2 / 64 * 64, 3, &m, &err), CN_EINVAL);
    assert_int_equal(left(d), size - 1);
    o.measure = true; /* takes nothing */
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, &err), 0);
    assert_int_equal(left(d), size - 1);
    kr_exec_free(x);
    kr_device_free(d);
}

struct seen {
    uint64_t at_ns[256], done, total;
    uint32_t n;
};
static void saw(void *arg, uint64_t done, uint64_t total)
{
    struct seen *s = arg;
    if (s->n < CN_ARRAY_LEN(s->at_ns)) s->at_ns[s->n++] = cn_now_ns();
    s->done = done;
    s->total = total;
}

static void test_weights_come_at_the_upload_s_pace(void **state)
{
    struct kr_device *d = device(0, 20 * MIB);
    struct kr_prepare_opts o = options();
    struct seen seen = {0};
    struct kr_exec *x;
    o.progress = saw;
    o.progress_arg = &seen;
    uint64_t began = cn_now_ns();
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, NULL), 0);
    double took = (double)(cn_now_ns() - began) / 1e9;
    uint64_t bytes = kr_exec_info(x)->packed_bytes;
    assert_true(took >= (double)bytes / (20.0 * MIB));
    assert_true(seen.n > 1 && seen.done == bytes && seen.total == bytes);
    kr_exec_free(x);
    kr_device_free(d);
}

static void *stop_soon(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

static void test_a_slow_upload_is_given_up(void **state)
{
    struct kr_device *d = device(64 * MIB, 1024); /* an hour */
    struct kr_prepare_opts o = options();
    atomic_bool stop = false;
    pthread_t thread;
    struct kr_exec *x;
    o.stop = &stop;
    o.background = true;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
    assert_int_equal(kr_prepare(d, model->plan, &o, &x, NULL), CN_ECANCELLED);
    pthread_join(thread, NULL);
    assert_int_equal(left(d), 64 * MIB);
    kr_device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_host_s_memory),
        cmocka_unit_test(test_all_is_counted_and_comes_back),
        cmocka_unit_test(test_what_does_not_go_in_is_refused),
        cmocka_unit_test(test_weights_come_at_the_upload_s_pace),
        cmocka_unit_test(test_a_slow_upload_is_given_up),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
