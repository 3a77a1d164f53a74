/* Several models in one runtime: loaded on first use, unloaded for want of room, pinned, failing,
 * given up while they load. The models are the oracle's, of four families. */
#include "runtime/rt.h"
#include "tests/runtime/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define KV_BYTES (8u << 20)
#define SECOND 1000000000ull

enum { LLAMA, GEMMA, QWEN, MAMBA, N_FILES };
static const char *const files[N_FILES] = {"oracle:models/llama3-gqa.gguf",
                                           "oracle:models/gemma3.gguf",
                                           "oracle:models/qwen3moe.gguf",
                                           "oracle:models/mamba2.gguf"};
static const char *const names[N_FILES] = {"llama", "gemma", "qwen", "mamba"};
static char paths[N_FILES][4096];

static int find_files(void **state)
{
    for (int i = 0; i < N_FILES; i++) {
        const char *p = h_model(files[i]);
        if (!p) {
            print_message("%s is not here\n", files[i]);
            exit(77);
        }
        snprintf(paths[i], sizeof paths[i], "%s", p);
    }
    return 0;
}

static void start(struct h *h, struct rt_model_opts *list, size_t n, uint64_t memory, double wait_s)
{
    for (size_t i = 0; i < n; i++) {
        if (!list[i].path) list[i].path = paths[i];
        if (!list[i].id) list[i].id = names[i];
    }
    struct h_setup s = {.threads = 2, .n_tenants = 1, .kv_bytes = KV_BYTES, .models = list,
                        .n_models = n, .memory_bytes = memory, .swap_wait_s = wait_s};
    h_start(h, &s);
}

/* What a model takes, as its own plan says. */
static uint64_t need_of(int file)
{
    struct kr_device *d;
    struct eng_model *m;
    struct cfg cfg;
    assert_int_equal(cfg_init(&cfg, NULL), 0);
    cfg.engine.threads = 2;
    struct eng_model_opts o = {.prepare = rt_prepare_opts(&cfg)};
    assert_int_equal(rt_device_new(&cfg, &d, NULL), 0);
    o.device = d;
    assert_int_equal(eng_model_open(paths[file], &o, &m, NULL), 0);
    const struct kr_exec_info *x = eng_model_info(m)->exec;
    uint64_t need = x->packed_bytes + x->scratch_bytes;
    eng_model_unref(m);
    kr_device_free(d);
    cfg_fini(&cfg);
    return need;
}

static enum rt_model_state state_of(struct h *h, size_t i)
{
    struct rt_model_status s;
    rt_model_status(rt_model_at(h->rt, i), &s);
    return s.state;
}

/* Waits until what was found broken is out. */
static void wait_unloaded(struct h *h, size_t i)
{
    struct rt_model *m = &h->rt->models[i];
    for (int k = 0; k < 5000; k++) {
        pthread_mutex_lock(&h->rt->models_lock);
        bool out = !m->model && m->state == RT_FAILED;
        pthread_mutex_unlock(&h->rt->models_lock);
        if (out) return;
        usleep(1000);
    }
    fail_msg("model %zu was not unloaded", i);
}

static struct rt_event *take(struct h *h)
{
    static struct cn_msg *list;
    if (!list) {
        if (!cn_mailbox_wait(&h->mail, 60 * SECOND)) fail_msg("no event for 60 s");
        list = cn_mailbox_take(&h->mail);
    }
    struct rt_event *e = CN_CONTAINER(list, struct rt_event, msg);
    list = list->next;
    return e;
}

/* Waits for a model; returns the event's code. With nothing else going on. */
static int get(struct h *h, size_t i, char message[512])
{
    struct cn_error err = {0};
    bool held;
    int rc = rt_acquire(rt_model_at(h->rt, i), &h->mail, 1000 + i, &held, &err);
    if (message) snprintf(message, 512, "%s", err.message);
    if (rc || held) return rc;
    struct rt_event *e = take(h);
    assert_int_equal(e->kind, RT_EV_MODEL);
    assert_int_equal(e->id, 1000 + i);
    rc = e->code;
    if (message) snprintf(message, 512, "%s", e->message);
    rt_event_free(e);
    return rc;
}

static void release(struct h *h, size_t i)
{
    rt_release(rt_model_at(h->rt, i));
}

/* Eight tokens of a prompt that any of the vocabularies has. */
static void ask(struct h *h, size_t i, uint64_t id, uint64_t max_tokens)
{
    struct cn_error err = {0};
    struct rt_request q = {.id = id, .reply = &h->mail, .model = rt_model_at(h->rt, i),
                           .priority = RT_NORMAL, .n_prompt = 8, .n = 1, .max_tokens = max_tokens};
    q.prompt = cn_malloc_array(8, sizeof *q.prompt);
    for (uint32_t k = 0; k < 8; k++)
        q.prompt[k] = 20 + (uint32_t)(id % 5) + k * 3;
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    q.sampling.logprobs = -1;
    if (rt_submit(h->rt, &q, &err)) fail_msg("submit: %s", err.message);
}

/* Everything is given back: no model is held, nobody waits, no block is in use. */
static void check_idle(struct h *h)
{
    h_settle(h);
    for (size_t i = 0; i < h->rt->n_models; i++) {
        struct rt_model *m = &h->rt->models[i];
        pthread_mutex_lock(&h->rt->models_lock);
        assert_int_equal(m->uses, 0);
        assert_null(m->waits);
        assert_true(m->model ? m->state == RT_LOADED : m->bytes == 0);
        pthread_mutex_unlock(&h->rt->models_lock);
    }
}

struct answer {
    uint32_t ids[600];
    size_t n;
};

/* Takes events until request `id` has ended. */
static void collect(struct h *h, uint64_t id, struct answer *a)
{
    for (bool done = false; !done;) {
        struct rt_event *e = take(h);
        assert_int_equal(e->id, id);
        for (size_t k = 0; e->kind == RT_EV_TOKENS && k < e->n_tokens; k++) {
            assert_true(a->n < CN_ARRAY_LEN(a->ids));
            a->ids[a->n++] = e->tokens[k].id;
        }
        if (e->kind == RT_EV_END) assert_int_equal(e->code, 0);
        done = e->kind == RT_EV_END;
        rt_event_free(e);
    }
}

/* ---- cases ------------------------------------------------------------------------------------- */

/* Each of several answers as it does alone. */
static void test_same_as_alone(void **state)
{
    struct rt_model_opts list[N_FILES] = {{0}};
    struct answer alone[N_FILES] = {{{0}, 0}}, among[N_FILES] = {{{0}, 0}};
    struct h h;
    for (size_t i = 0; i < N_FILES; i++) {
        struct h_setup s = {.model = paths[i], .threads = 1, .n_tenants = 1, .kv_bytes = KV_BYTES};
        h_start(&h, &s);
        ask(&h, 0, 3, 40);
        collect(&h, 3, &alone[i]);
        assert_int_equal(alone[i].n, 40);
        h_stop(&h);
    }
    start(&h, list, N_FILES, 0, 0);
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < N_FILES; i++) {
            assert_int_equal(get(&h, i, NULL), 0);
            ask(&h, i, 3, 40);
            release(&h, i);
            among[i].n = 0;
            collect(&h, 3, &among[i]);
            assert_memory_equal(&among[i], &alone[i], sizeof alone[i]);
        }
    assert_int_equal((int)h_metric(&h, CN_M_model_loads), N_FILES);
    check_idle(&h);
    h_stop(&h);
}

/* One is loaded, used and unloaded again and again while the other streams. */
static void test_stream_goes_on(void **state)
{
    uint64_t needs = need_of(LLAMA) + CN_MAX(need_of(GEMMA), need_of(QWEN));
    struct rt_model_opts list[3] = {{.preload = true}};
    uint64_t last = 0, worst = 0, tokens = 0, swaps = 0;
    struct cn_error err;
    struct h h;
    bool held, streaming = true;
    start(&h, list, 3, KV_BYTES + needs + 4096, 0);
    ask(&h, LLAMA, 1, 480);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), &h.mail, 2, &held, &err), 0);
    assert_false(held);
    while (streaming || swaps < 2) {
        struct rt_event *e = take(&h);
        if (e->kind == RT_EV_MODEL) {
            size_t at = swaps % 2 ? QWEN : GEMMA, other = swaps % 2 ? GEMMA : QWEN;
            assert_int_equal(e->code, 0);
            swaps++;
            release(&h, at);
            if (streaming) assert_int_equal(
                rt_acquire(rt_model_at(h.rt, other), &h.mail, 2, &held, &err), 0);
        } else if (e->kind == RT_EV_TOKENS) {
            uint64_t now = cn_now_ns();
            if (last) worst = CN_MAX(worst, now - last);
            last = now;
            tokens++;
        } else if (e->kind == RT_EV_END) {
            assert_int_equal(e->code, 0);
            streaming = false;
            if (!rt_acquire_cancel(rt_model_at(h.rt, swaps % 2 ? QWEN : GEMMA), &h.mail, 2)) swaps--;
        }
        rt_event_free(e);
        if (!streaming && swaps >= 2) break;
    }
    print_message("%llu tokens, %llu loads during them, longest gap %.1f ms\n",
                  (unsigned long long)tokens, (unsigned long long)swaps, (double)worst / 1e6);
    assert_int_equal(tokens, 480);
    assert_true(swaps >= 2);
    assert_true(worst < SECOND / 4); /* five times step_target_ms: cores are shared here */
    h_stop(&h);
}

/* Room for two of three: the one that was idle for longest goes, a pinned one never. */
static void test_least_recent_goes(void **state)
{
    uint64_t room = need_of(LLAMA) + need_of(GEMMA) + need_of(QWEN);
    for (int pinned = 0; pinned < 2; pinned++) {
        struct rt_model_opts list[3] = {{.preload = true, .pin = pinned}};
        struct h h;
        start(&h, list, 3, KV_BYTES + room - 4096, 0);
        assert_int_equal(state_of(&h, GEMMA), RT_UNLOADED);
        assert_int_equal(get(&h, GEMMA, NULL), 0);
        release(&h, GEMMA);
        assert_int_equal(state_of(&h, LLAMA), RT_LOADED);
        assert_int_equal(get(&h, QWEN, NULL), 0);
        assert_int_equal(state_of(&h, LLAMA), pinned ? RT_LOADED : RT_UNLOADED);
        assert_int_equal(state_of(&h, GEMMA), pinned ? RT_UNLOADED : RT_LOADED);
        assert_int_equal((int)h_metric(&h, CN_M_model_unloads), 1);
        assert_int_equal((int)h_metric(&h, CN_M_models_loaded), 2);
        release(&h, QWEN);
        check_idle(&h);
        h_stop(&h);
    }
}

/* More than there is for all: refused with the numbers; the others are served. */
static void test_never_fits(void **state)
{
    uint64_t small = need_of(LLAMA), large = need_of(GEMMA);
    struct rt_model_opts list[2] = {{0}};
    char message[512];
    struct answer a = {.n = 0};
    struct h h;
    assert_true(small + 8192 < large);
    start(&h, list, 2, KV_BYTES + small + 8192, 0);
    assert_int_equal(get(&h, GEMMA, message), CN_ENOTREADY);
    assert_non_null(strstr(message, "MiB"));
    assert_int_equal(state_of(&h, GEMMA), RT_FAILED);
    assert_int_equal(get(&h, LLAMA, NULL), 0);
    ask(&h, LLAMA, 5, 4);
    release(&h, LLAMA);
    collect(&h, 5, &a);
    check_idle(&h);
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
    cut_file(paths[GEMMA], path, 100000);
    struct rt_model_opts list[2] = {{.preload = true}, {.path = path, .id = "cut"}};
    start(&h, list, 2, 0, 0);
    assert_int_equal(state_of(&h, 1), RT_FAILED);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(get(&h, 1, message), CN_ENOTREADY);
        assert_non_null(strstr(message, "cut"));
        assert_null(strstr(message, dir));
    }
    assert_int_equal((int)h_metric(&h, CN_M_model_load_failures), 1);
    /* Made whole, it is served once its time has come (which is not waited for here). */
    cut_file(paths[GEMMA], path, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(paths[GEMMA], path), 0);
    pthread_mutex_lock(&h.rt->models_lock);
    h.rt->models[1].retry_ns = 0;
    pthread_mutex_unlock(&h.rt->models_lock);
    assert_int_equal(get(&h, 1, message), 0);
    ask(&h, 1, 7, 4);
    release(&h, 1);
    collect(&h, 7, &a);
    assert_int_equal(a.n, 4);
    check_idle(&h);
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
    assert_int_equal(stat(paths[GEMMA], &st), 0);
    cut_file(paths[GEMMA], path, (size_t)st.st_size);
    struct rt_model_opts list[2] = {{0}, {.path = path, .id = "one", .preload = true}};
    start(&h, list, 2, 0, 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
    usleep(600000);
    /* Steps make it look: the one that is whole keeps it busy. */
    assert_int_equal(get(&h, LLAMA, NULL), 0);
    ask(&h, LLAMA, 8, 8);
    release(&h, LLAMA);
    collect(&h, 8, &a);
    wait_unloaded(&h, 1);
    assert_int_equal(state_of(&h, 1), RT_FAILED);
    assert_int_equal(get(&h, 1, NULL), CN_ENOTREADY);
    struct rt_health health;
    rt_health(h.rt, &health);
    assert_false(health.failed);
    cut_file(paths[GEMMA], path, (size_t)st.st_size);
    pthread_mutex_lock(&h.rt->models_lock);
    h.rt->models[1].retry_ns = 0;
    pthread_mutex_unlock(&h.rt->models_lock);
    assert_int_equal(get(&h, 1, NULL), 0);
    release(&h, 1);
    check_idle(&h);
    h_stop(&h);
    unlink(path);
    rmdir(dir);
}

/* Room for one, and that one is at work: who waits is told so in time; in the second half of that
 * time nobody new gets it, and gets it after; as soon as it is let go the other one is loaded. */
static void test_waits_for_work(void **state)
{
    uint64_t room = CN_MAX(need_of(LLAMA), need_of(GEMMA));
    struct rt_model_opts list[2] = {{.preload = true}};
    struct cn_error err;
    char message[512];
    bool held;
    struct h h;
    start(&h, list, 2, KV_BYTES + room + 4096, 0.6);
    assert_int_equal(get(&h, LLAMA, NULL), 0);
    uint64_t began = cn_now_ns();
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), &h.mail, 1, &held, &err), 0);
    assert_false(held);
    usleep(150000);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, LLAMA), &h.mail, 2, &held, &err), 0);
    assert_true(held);
    usleep(300000);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, LLAMA), &h.mail, 3, &held, &err), 0);
    assert_false(held);
    struct rt_event *e = take(&h);
    uint64_t took = cn_now_ns() - began;
    assert_int_equal(e->id, 1);
    assert_int_equal(e->code, CN_ENOTREADY);
    assert_true(took > SECOND * 55 / 100 && took < 3 * SECOND);
    rt_event_free(e);
    e = take(&h);
    assert_int_equal(e->id, 3);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), &h.mail, 4, &held, &err), 0);
    for (int i = 0; i < 3; i++)
        release(&h, LLAMA);
    e = take(&h);
    assert_int_equal(e->id, 4);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    assert_int_equal(state_of(&h, LLAMA), RT_UNLOADED);
    release(&h, GEMMA);
    assert_int_equal(get(&h, LLAMA, message), 0);
    release(&h, LLAMA);
    check_idle(&h);
    h_stop(&h);
}

/* Those who wait at the end are told; a submission for a model that is not held is refused. */
static void test_end_while_waiting(void **state)
{
    uint64_t room = CN_MAX(need_of(LLAMA), need_of(GEMMA));
    struct rt_model_opts list[2] = {{.preload = true}};
    struct cn_error err = {0};
    bool held;
    struct h h;
    start(&h, list, 2, KV_BYTES + room + 4096, 0);
    struct rt_request q = {.id = 9, .reply = &h.mail, .model = rt_model_at(h.rt, GEMMA), .n = 1};
    assert_int_equal(rt_submit(h.rt, &q, &err), CN_ENOTREADY);
    assert_int_equal(get(&h, LLAMA, NULL), 0);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), &h.mail, 1, &held, &err), 0);
    rt_drain(h.rt);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), &h.mail, 2, &held, &err), CN_EDRAIN);
    rt_free(h.rt);
    h.rt = NULL;
    struct rt_event *e = take(&h);
    assert_int_equal(e->id, 1);
    assert_int_equal(e->code, CN_EDRAIN);
    rt_event_free(e);
    h_stop(&h);
}

/* ---- swaps at random --------------------------------------------------------------------------- */

enum { CLIENTS = 12, SWAPS = 100 };
struct client {
    enum { FREE, WAITING, ASKING } what;
    size_t model;
};

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void begin(struct h *h, struct client *c, uint64_t id, uint32_t *seed)
{
    struct cn_error err = {0};
    bool held;
    c->model = next(seed) % N_FILES;
    int rc = rt_acquire(rt_model_at(h->rt, c->model), &h->mail, id, &held, &err);
    if (rc) fail_msg("acquire: %s", err.message);
    c->what = held ? ASKING : WAITING;
    if (!held) return;
    ask(h, c->model, id, 1 + next(seed) % 40);
    release(h, c->model);
}

/* Twelve clients, four models, room for about two; a third of what is asked is taken back. */
static void test_random_swaps(void **state)
{
    struct client c[CLIENTS] = {{0}};
    struct rt_model_opts list[N_FILES] = {{0}};
    uint32_t seed = 4711;
    uint64_t room = 0, ended = 0, cancelled = 0, limit = cn_now_ns() + 120 * SECOND;
    struct h h;
    for (int i = 0; i < N_FILES; i++)
        room = CN_MAX(room, need_of(i));
    start(&h, list, N_FILES, KV_BYTES + room * 3 / 2, 60);
    for (uint64_t i = 0; i < CLIENTS; i++)
        begin(&h, &c[i], i, &seed);
    bool more = true;
    for (uint32_t busy = CLIENTS; busy;) {
        uint64_t i = next(&seed) % CLIENTS;
        more = more && h_metric(&h, CN_M_model_loads) < SWAPS && cn_now_ns() < limit;
        if (next(&seed) % 3 == 0) {
            if (c[i].what == ASKING) rt_cancel(h.rt, &h.mail, i);
            if (c[i].what == WAITING &&
                rt_acquire_cancel(rt_model_at(h.rt, c[i].model), &h.mail, i)) {
                cancelled++;
                c[i].what = FREE;
                busy--;
                if (more) begin(&h, &c[i], i, &seed), busy++;
            }
        }
        if (!busy) break;
        struct rt_event *e = take(&h);
        struct client *of = &c[e->id];
        if (e->kind == RT_EV_MODEL) {
            assert_int_equal(of->what, WAITING);
            assert_int_equal(e->code, 0);
            of->what = ASKING;
            ask(&h, of->model, e->id, 1 + next(&seed) % 40);
            release(&h, of->model);
        } else if (e->kind == RT_EV_END) {
            assert_int_equal(of->what, ASKING);
            assert_true(e->code == 0 || e->code == CN_ECANCELLED);
            ended++;
            of->what = FREE;
            busy--;
            if (more) begin(&h, of, e->id, &seed), busy++;
        }
        rt_event_free(e);
    }
    print_message("%.0f loads, %.0f unloads, %llu requests ended, %llu gave up waiting\n",
                  h_metric(&h, CN_M_model_loads), h_metric(&h, CN_M_model_unloads),
                  (unsigned long long)ended, (unsigned long long)cancelled);
    assert_true(h_metric(&h, CN_M_model_loads) >= SWAPS);
    check_idle(&h);
    h_stop(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_alone),     cmocka_unit_test(test_stream_goes_on),
        cmocka_unit_test(test_least_recent_goes), cmocka_unit_test(test_never_fits),
        cmocka_unit_test(test_failed_load),       cmocka_unit_test(test_file_changes),
        cmocka_unit_test(test_waits_for_work),    cmocka_unit_test(test_end_while_waiting),
        cmocka_unit_test(test_random_swaps),
    };
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, find_files, NULL);
}
