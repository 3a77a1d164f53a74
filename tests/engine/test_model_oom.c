/* Allocation sweep: while a model is opened, the k-th allocation fails, for every k, once alone and
 * once with all that follow. The opening fails with a reason or succeeds; AddressSanitizer's build
 * shows that nothing leaks. */
#include "golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static atomic_long countdown = -1; /* allocations until one fails; -1 = never */
static atomic_bool and_all_after;
static atomic_long seen;

static bool alloc_fails(void)
{
    atomic_fetch_add(&seen, 1);
    long left = atomic_load(&countdown);
    if (left < 0) return false;
    if (left > 0) {
        atomic_store(&countdown, left - 1);
        return false;
    }
    if (!atomic_load(&and_all_after)) atomic_store(&countdown, -1);
    return true;
}

#include "tests/wrap_alloc.h"

static int open_once(const char *path, struct kr_device *device, long k, bool all)
{
    struct eng_model_opts opts = {
        .device = device,
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 16, .max_logit_rows = 16}};
    struct eng_model *m = NULL;
    struct cn_error err = {0};
    atomic_store(&and_all_after, all);
    atomic_store(&countdown, k);
    int rc = eng_model_open(path, &opts, &m, &err);
    atomic_store(&countdown, -1);
    assert_true((rc == 0) == (m != NULL));
    if (rc && (!err.message[0] || err.code != rc))
        fail_msg("allocation %ld: code %d without a reason", k, rc);
    eng_model_unref(m);
    return rc;
}

static void sweep(const char *path)
{
    struct kr_device *device;
    struct cn_error err;
    long failed = 0;
    if (!path) return;
    assert_int_equal(dev_new(KR_ISA_AUTO, 1, &device, &err), 0);
    atomic_store(&seen, 0);
    assert_int_equal(open_once(path, device, -1, false), 0);
    long n = atomic_load(&seen);
    for (long k = 0; k < n; k++)
        for (int all = 0; all < 2; all++)
            failed += open_once(path, device, k, all) != 0;
    print_message("%s: %ld allocations, %ld of %ld openings failed\n", path, n, failed, 2 * n);
    assert_true(failed >= n); /* with all that follow failing too, none can succeed */
    assert_int_equal(open_once(path, device, -1, false), 0);
    kr_device_free(device);
}

static void test_llama(void **state)
{
    sweep(golden_oracle("models", "llama3-gqa", ".gguf"));
}

static void test_gemma3(void **state)
{
    sweep(golden_oracle("models", "gemma3", ".gguf"));
}

static void test_script(void **state)
{
    sweep("null:vocab=512,script=" CONIFER_SOURCE_ROOT "/tests/engine/fixtures/script.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_script),
    };
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return cmocka_run_group_tests_name("model out of memory", tests, NULL, NULL);
}
