/* Several models in one runtime: what each one answers and who stands still for whom, files that
 * are damaged or change, the end. */
#include "tests/runtime/several.h"

#include "engine/null.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* What a path says about the null model, said by the folder that reads settings and by the one that
 * reads models: neither knows the other. */
static void test_null_names(void **state)
{
    static const char *const paths[] = {
        "null", "null:", "null:vocab=600", "nul", "nulls", "null.gguf", "./null", "", "NULL"};

    for (size_t i = 0; i < CN_ARRAY_LEN(paths); i++)
        assert_int_equal(cfg_model_is_null(paths[i]), eng_null_is(paths[i]));
    assert_true(eng_null_is("null:layers=2") && !eng_null_is("null.gguf"));
}

/* Each of several answers as it does alone. */
static void test_same_as_alone(void **state)
{
    struct rt_model_opts list[N_FILES] = {{0}};
    struct answer alone[N_FILES] = {{{0}, 0}}, among[N_FILES] = {{{0}, 0}};
    struct h h;
    for (size_t i = 0; i < N_FILES; i++) {
        struct h_setup s = {
            .model = sv_paths[i], .threads = 1, .n_tenants = 1, .kv_bytes = KV_BYTES};
        h_start(&h, &s);
        sv_ask(&h, 0, 3, 40);
        sv_collect(&h, 3, &alone[i]);
        assert_int_equal(alone[i].n, 40);
        h_stop(&h);
    }
    sv_start(&h, list, N_FILES, 0, 0);
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < N_FILES; i++) {
            assert_int_equal(sv_get(&h, i, NULL), 0);
            sv_ask(&h, i, 3, 40);
            sv_release(&h, i);
            among[i].n = 0;
            sv_collect(&h, 3, &among[i]);
            assert_memory_equal(&among[i], &alone[i], sizeof alone[i]);
        }
    assert_int_equal((int)h_metric(&h, CN_M_model_loads), N_FILES);
    sv_check_idle(&h);
    h_stop(&h);
}

/* Steps from one token of a stream to its next, the most there were. */
static uint32_t longest_gap(struct h *h)
{
    const struct cn_hist *hist = &h->metrics.hist[CN_H_itl_steps];
    uint32_t worst = 0;
    for (uint32_t i = 0; i <= CN_HIST_MAX_BUCKETS; i++)
        if (atomic_load(&hist->bucket[i]))
            worst = i + 1; /* the first buckets are of one step each */
    return worst;
}

/* Two others are loaded and unloaded in turn while one streams: it gets a token in every step. */
static void test_stream_goes_on(void **state)
{
    uint64_t needs = sv_need(LLAMA) + CN_MAX(sv_need(GEMMA), sv_need(QWEN)), tokens = 0, swaps = 0;
    struct rt_model_opts list[3] = {{.preload = true}};
    struct cn_error err;
    struct h h;
    bool held, streaming = true;
    sv_start(&h, list, 3, KV_BYTES + needs + 4096, 60);
    sv_ask(&h, LLAMA, 1, 480);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 2, &held, &err), 0);
    assert_false(held);
    while (streaming || swaps < 8) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_TOKENS) tokens++;
        if (e->kind == RT_EV_MODEL || e->kind == RT_EV_END) assert_int_equal(e->code, 0);
        if (e->kind == RT_EV_END) {
            streaming = swaps < 8;
            if (streaming) sv_ask(&h, LLAMA, 1, 480);
        } else if (e->kind == RT_EV_MODEL) {
            size_t at = swaps % 2 ? QWEN : GEMMA, other = swaps % 2 ? GEMMA : QWEN;
            sv_release(&h, at);
            if (++swaps < 8)
                assert_int_equal(rt_acquire(rt_model_at(h.rt, other), 0, &h.mail, 2, &held, &err),
                                 0);
        }
        rt_event_free(e);
    }
    print_message("%llu tokens, %llu loads during them, a token every %u steps\n",
                  (unsigned long long)tokens, (unsigned long long)swaps, longest_gap(&h));
    assert_int_equal(longest_gap(&h), 1);
    sv_check_idle(&h);
    h_stop(&h);
}

/* Two stream at once: each gets a token in every other step, the one that was just loaded too. */
static void test_streams_take_turns(void **state)
{
    struct rt_model_opts list[2] = {{.preload = true}};
    uint64_t ended = 0;
    struct cn_error err;
    struct h h;
    bool held, both = false;
    sv_start(&h, list, 2, 0, 0);
    for (uint64_t i = 0; i < 4; i++)
        sv_ask(&h, LLAMA, i, 480);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 100, &held, &err), 0);
    while (ended < 4 || !both) {
        struct rt_event *e = sv_take(&h);
        if (e->kind == RT_EV_MODEL) {
            assert_int_equal(e->code, 0);
            for (uint64_t i = 4; i < 8; i++)
                sv_ask(&h, GEMMA, i, 480);
            sv_release(&h, GEMMA);
        }
        if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, 0);
            ended++;
        }
        both = both || (e->kind == RT_EV_TOKENS && e->id >= 4);
        rt_event_free(e);
    }
    for (; ended < 8; ended++)
        sv_wait_end(&h);
    /* A prompt goes with the others' tokens; who asks first does not matter. */
    assert_in_range(longest_gap(&h), 1, 2);
    sv_check_idle(&h);
    h_stop(&h);
}

static void cut_file(const char *from, const char *to, size_t n)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        fputc(fgetc(in), out);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* A damaged file fails those who ask for it, with the reason and without its folder, is not read
 * again at once, and does not touch the other. */
static void test_failed_load(void **state)
{
    char dir[] = "/tmp/conifer-models-XXXXXX", path[64], message[512];
    struct answer a = {.n = 0};
    struct h h;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/cut.gguf", dir);
    cut_file(sv_paths[GEMMA], path, 100000);
    struct rt_model_opts list[2] = {{.preload = true}, {.path = path, .id = "cut"}};
    sv_start(&h, list, 2, 0, 0);
    assert_int_equal(sv_state(&h, 1), RT_FAILED);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sv_get(&h, 1, message), CN_ENOTREADY);
        assert_non_null(strstr(message, "cut"));
        assert_null(strstr(message, dir));
    }
    assert_int_equal((int)h_metric(&h, CN_M_model_load_failures), 1);
    /* Made whole, it is served once its time has come (which is not waited for here). */
    cut_file(sv_paths[GEMMA], path, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(sv_paths[GEMMA], path), 0);
    pthread_mutex_lock(&h.rt->models_lock);
    h.rt->models[1].retry_ns = 0;
    pthread_mutex_unlock(&h.rt->models_lock);
    assert_int_equal(sv_get(&h, 1, message), 0);
    sv_ask(&h, 1, 7, 4);
    sv_release(&h, 1);
    sv_collect(&h, 7, &a);
    assert_int_equal(a.n, 4);
    sv_check_idle(&h);
    h_stop(&h);
    unlink(path);
    rmdir(dir);
}

/* A model whose file is rewritten is given up alone, and comes back from the new file. */
static void test_file_changes(void **state)
{
    char dir[] = "/tmp/conifer-models-XXXXXX", path[64];
    struct answer a = {.n = 0};
    struct stat st;
    struct h h;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/one.gguf", dir);
    assert_int_equal(stat(sv_paths[GEMMA], &st), 0);
    cut_file(sv_paths[GEMMA], path, (size_t)st.st_size);
    struct rt_model_opts list[2] = {{0}, {.path = path, .id = "one", .preload = true}};
    sv_start(&h, list, 2, 0, 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
    usleep(600000);
    /* Steps make it look: the one that is whole keeps it busy. */
    assert_int_equal(sv_get(&h, LLAMA, NULL), 0);
    sv_ask(&h, LLAMA, 8, 8);
    sv_release(&h, LLAMA);
    sv_collect(&h, 8, &a);
    sv_wait_unloaded(&h, 1);
    assert_int_equal(sv_state(&h, 1), RT_FAILED);
    assert_int_equal(sv_get(&h, 1, NULL), CN_ENOTREADY);
    struct rt_health health;
    rt_health(h.rt, &health);
    assert_false(health.failed);
    cut_file(sv_paths[GEMMA], path, (size_t)st.st_size);
    pthread_mutex_lock(&h.rt->models_lock);
    h.rt->models[1].retry_ns = 0;
    pthread_mutex_unlock(&h.rt->models_lock);
    assert_int_equal(sv_get(&h, 1, NULL), 0);
    sv_release(&h, 1);
    sv_check_idle(&h);
    h_stop(&h);
    unlink(path);
    rmdir(dir);
}

/* Those who wait at the end are told; a submission for a model that is not held is refused. */
static void test_end_while_waiting(void **state)
{
    uint64_t room = CN_MAX(sv_need(LLAMA), sv_need(GEMMA));
    struct rt_model_opts list[2] = {{.preload = true}};
    struct cn_error err = {0};
    bool held;
    struct h h;
    sv_start(&h, list, 2, KV_BYTES + room + 4096, 0);
    struct rt_request q = {.id = 9, .reply = &h.mail, .model = GEMMA, .n = 1};
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_ENOTREADY);
    assert_int_equal(sv_get(&h, LLAMA, NULL), 0);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 1, &held, &err), 0);
    rt_drain(h.rt);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 2, &held, &err), CN_EDRAIN);
    rt_free(h.rt);
    h.rt = NULL;
    struct rt_event *e = sv_take(&h);
    assert_int_equal(e->id, 1);
    assert_int_equal(e->code, CN_EDRAIN);
    rt_event_free(e);
    h_stop(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_names),        cmocka_unit_test(test_same_as_alone),
        cmocka_unit_test(test_stream_goes_on),    cmocka_unit_test(test_streams_take_turns),
        cmocka_unit_test(test_failed_load),       cmocka_unit_test(test_file_changes),
        cmocka_unit_test(test_end_while_waiting),
    };
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, sv_find_files, NULL);
}
