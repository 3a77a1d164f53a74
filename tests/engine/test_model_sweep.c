/* Every integer of a model's header, set to what no file should say, through a whole opening; what
 * opens must also run a step. An error has a reason, and none takes longer than 100 ms. */
#include "golden.h"
#include "sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct kr_device *device;

static void run_step(struct eng_model *m)
{
    const struct kr_exec_info *info = kr_exec_info(eng_model_exec(m));
    struct kr_row rows[3] = {{.src = KR_ROW_TOKEN}, {.src = KR_ROW_TOKEN}, {.src = KR_ROW_TOKEN}};
    uint32_t tables[2][1] = {{0}, {1u << KR_BLOCK_INDEX_BITS}};
    const uint32_t *groups[2] = {tables[0], tables[1]};
    struct kr_seq seq = {.tables = groups};
    struct kr_batch batch = {.n_rows = 3, .n_seqs = 1, .rows = rows, .seqs = &seq};
    struct kr_kv_mem *mem;
    struct cn_error err;
    uint64_t slab = 64, ticket;
    float *logits;

    assert_true(info->n_groups <= 2);
    for (uint32_t i = 0; i < info->n_groups; i++)
        slab = CN_MAX(slab, info->groups[i].block_bytes);
    assert_int_equal(kr_kv_mem_new(device, slab, 2, &mem, &err), 0);
    for (uint32_t i = 0; i < 3; i++) {
        rows[i].pos = i;
        rows[i].token = i % (uint32_t)info->n_vocab;
    }
    rows[2].logits = true;
    if (eng_model_info(m)->context >= 3) {
        if (kr_launch(eng_model_exec(m), mem, &batch, &ticket, &err)) fail_msg("%s", err.message);
        assert_int_equal(kr_collect(eng_model_exec(m), ticket, &logits, &err), 0);
    }
    kr_kv_mem_free(mem);
}

static void sweep_model(const char *name)
{
    const char *from = golden_oracle("models", name, ".gguf");
    size_t n, tried = 0, accepted = 0;
    struct fields f;
    struct eng_model *m;
    struct cn_error err;
    if (!from) return;
    uint8_t *data = sweep_read_file(from, &n);
    sweep_fields(data, &f);
    char path[] = "/tmp/conifer-sweep-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    uint64_t worst = 0;
    for (size_t i = 0; i < f.n; i++) {
        uint64_t was = 0, value;
        memcpy(&was, data + f.v[i].at, f.v[i].width);
        for (size_t k = 0; sweep_value(k, was, f.v[i].width, 1, &value); k++) {
            assert_int_equal(pwrite(fd, &value, f.v[i].width, (off_t)f.v[i].at), f.v[i].width);
            uint64_t start = sweep_cpu_ns();
            int rc = golden_try(device, path, &m, &err);
            uint64_t took = sweep_cpu_ns() - start;
            worst = CN_MAX(worst, took);
            tried++;
            if (!rc) {
                accepted++;
                run_step(m);
                eng_model_unref(m);
            } else if (!err.message[0] || err.code != rc) {
                fail_msg("code %d without a reason", rc);
            }
        }
        assert_int_equal(pwrite(fd, &was, f.v[i].width, (off_t)f.v[i].at), f.v[i].width);
    }
    print_message("%s: %zu integers, %zu files, %zu accepted, worst %.2f ms\n", name, f.n, tried,
                  accepted, (double)worst / 1e6);
    assert_true(worst <= 100 * 1000 * 1000);
    close(fd);
    unlink(path);
    free(f.v);
    free(data);
}

static void test_llama(void **state)
{
    sweep_model("llama-yarn");
}

static void test_gemma3(void **state)
{
    sweep_model("gemma3");
}

static int set_up(void **state)
{
    struct cn_error err;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return dev_new(KR_ISA_AUTO, 1, &device, &err);
}

static int tear_down(void **state)
{
    kr_device_free(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_gemma3),
    };
    return cmocka_run_group_tests_name("swept models", tests, set_up, tear_down);
}
