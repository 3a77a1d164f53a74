/* Several models in too little memory: who makes way for whom, who waits and how long, and swaps at
 * random with clients that give up. */
#include "tests/runtime/several.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Room for two of three: the one that was idle for longest goes, a pinned one never. */
static void test_least_recent_goes(void **state)
{
    uint64_t room = sv_need(LLAMA) + sv_need(GEMMA) + sv_need(QWEN);
    for (int pinned = 0; pinned < 2; pinned++) {
        struct rt_model_opts list[3] = {{.preload = true, .pin = pinned}};
        struct h h;
        sv_start(&h, list, 3, KV_BYTES + room - 4096, 0);
        assert_int_equal(sv_state(&h, GEMMA), RT_UNLOADED);
        assert_int_equal(sv_get(&h, GEMMA, NULL), 0);
        sv_release(&h, GEMMA);
        assert_int_equal(sv_state(&h, LLAMA), RT_LOADED);
        assert_int_equal(sv_get(&h, QWEN, NULL), 0);
        assert_int_equal(sv_state(&h, LLAMA), pinned ? RT_LOADED : RT_UNLOADED);
        assert_int_equal(sv_state(&h, GEMMA), pinned ? RT_UNLOADED : RT_LOADED);
        assert_int_equal((int)h_metric(&h, CN_M_model_unloads), 1);
        assert_int_equal((int)h_metric(&h, CN_M_models_loaded), 2);
        sv_release(&h, QWEN);
        sv_check_idle(&h);
        h_stop(&h);
    }
}

/* More than there is for all: refused with the numbers; the others are served. */
static void test_never_fits(void **state)
{
    uint64_t small = sv_need(LLAMA), large = sv_need(GEMMA);
    struct rt_model_opts list[2] = {{0}};
    char message[512];
    struct answer a = {.n = 0};
    struct h h;
    assert_true(small + 8192 < large);
    sv_start(&h, list, 2, KV_BYTES + small + 8192, 0);
    assert_int_equal(sv_get(&h, GEMMA, message), CN_ENOTREADY);
    assert_non_null(strstr(message, "MiB"));
    assert_int_equal(sv_state(&h, GEMMA), RT_FAILED);
    assert_int_equal(sv_get(&h, LLAMA, NULL), 0);
    sv_ask(&h, LLAMA, 5, 4);
    sv_release(&h, LLAMA);
    sv_collect(&h, 5, &a);
    sv_check_idle(&h);
    h_stop(&h);
}

static bool is_leaving(struct h *h, size_t i)
{
    pthread_mutex_lock(&h->rt->models_lock);
    bool leaving = h->rt->models[i].leaving;
    pthread_mutex_unlock(&h->rt->models_lock);
    return leaving;
}

/* Room for one, and that one is at work: who waits is told so in time; in the second half of that
 * time nobody new gets it, and gets it after; as soon as it is let go the other one is loaded. */
static void test_waits_for_work(void **state)
{
    uint64_t room = CN_MAX(sv_need(LLAMA), sv_need(GEMMA));
    struct rt_model_opts list[2] = {{.preload = true}};
    struct cn_error err;
    char message[512];
    bool held;
    struct h h;
    sv_start(&h, list, 2, KV_BYTES + room + 4096, 3);
    assert_int_equal(sv_get(&h, LLAMA, NULL), 0);
    uint64_t began = cn_now_ns();
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 1, &held, &err), 0);
    assert_false(held);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, LLAMA), 0, &h.mail, 2, &held, &err), 0);
    assert_true(held);
    while (!is_leaving(&h, LLAMA) && cn_now_ns() - began < 30 * SECOND)
        usleep(1000);
    assert_true(cn_now_ns() - began >= 3 * SECOND / 2);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, LLAMA), 0, &h.mail, 3, &held, &err), 0);
    assert_false(held);
    struct rt_event *e = sv_take(&h);
    assert_int_equal(e->id, 1);
    assert_int_equal(e->code, CN_ENOTREADY);
    assert_true(cn_now_ns() - began >= 3 * SECOND);
    rt_event_free(e);
    e = sv_take(&h);
    assert_int_equal(e->id, 3);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, 4, &held, &err), 0);
    for (int i = 0; i < 3; i++)
        sv_release(&h, LLAMA);
    e = sv_take(&h);
    assert_int_equal(e->id, 4);
    assert_int_equal(e->code, 0);
    rt_event_free(e);
    assert_int_equal(sv_state(&h, LLAMA), RT_UNLOADED);
    sv_release(&h, GEMMA);
    assert_int_equal(sv_get(&h, LLAMA, message), 0);
    sv_release(&h, LLAMA);
    sv_check_idle(&h);
    h_stop(&h);
}

/* One that is asked for all the time and finds no room does not keep anyone from the one that is
 * there: who asked for that while it was to make way has it after the turn. */
static void test_asked_again_and_again(void **state)
{
    uint64_t room = CN_MAX(sv_need(LLAMA), sv_need(GEMMA)), asked = 0;
    struct rt_model_opts list[2] = {{.preload = true}};
    struct cn_error err;
    bool held, served = false;
    struct h h;
    sv_start(&h, list, 2, KV_BYTES + room + 4096, 1);
    assert_int_equal(sv_get(&h, LLAMA, NULL), 0);
    while (asked < 4) {
        assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, asked++, &held, &err), 0);
        assert_false(held);
        usleep(200000);
    }
    while (!is_leaving(&h, LLAMA))
        usleep(1000);
    assert_int_equal(rt_acquire(rt_model_at(h.rt, LLAMA), 0, &h.mail, 1000, &held, &err), 0);
    if (held) served = true; /* the turn was over in between */
    while (!served) {
        struct rt_event *e = sv_take(&h);
        served = e->id == 1000;
        assert_int_equal(e->code, served ? 0 : CN_ENOTREADY);
        rt_event_free(e);
        if (served) break;
        if (asked == 30) fail_msg("30 were refused the other model, and the first is not given");
        assert_int_equal(rt_acquire(rt_model_at(h.rt, GEMMA), 0, &h.mail, asked++, &held, &err), 0);
    }
    sv_release(&h, LLAMA);
    sv_release(&h, LLAMA);
    for (int i = 0; i < 4; i++) { /* those that still wait get it, or were refused just before */
        struct rt_event *e = sv_take(&h);
        if (!e->code) sv_release(&h, GEMMA);
        rt_event_free(e);
    }
    sv_check_idle(&h);
    h_stop(&h);
}

/* As sv_get of one tenant, and gives it back; *retry_s: what a refusal said. */
static int get_as(struct h *h, uint32_t tenant, size_t i, uint32_t *retry_s, char message[512])
{
    struct cn_error err;
    bool held;
    assert_int_equal(rt_acquire(rt_model_at(h->rt, i), tenant, &h->mail, 7, &held, &err), 0);
    if (held) {
        sv_release(h, i);
        return 0;
    }
    struct rt_event *e = sv_take(h);
    int rc = e->code;
    if (retry_s) *retry_s = e->retry_s;
    if (message) snprintf(message, 512, "%s", rt_event_reason(e).message);
    rt_event_free(e);
    if (!rc) sv_release(h, i);
    return rc;
}

/* Another tenant does not get a model unloaded in its first seconds, and is told how long they are;
 * then it does, and its own stays as long. One that is the only one about swaps at once. */
static void test_a_model_stays(void **state)
{
    uint64_t room = CN_MAX(sv_need(LLAMA), sv_need(GEMMA));
    struct rt_model_opts list[2] = {{0}};
    char message[512];
    uint32_t retry_s = 0;
    struct h h;
    sv_start_two(&h, list, 2, KV_BYTES + room + 4096, 0.2, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(get_as(&h, 1, GEMMA, NULL, NULL), 0);
        assert_int_equal(get_as(&h, 1, LLAMA, NULL, NULL), 0);
    }
    uint64_t began = cn_now_ns();
    int unloads = (int)h_metric(&h, CN_M_model_unloads), refused = 0;
    assert_int_equal(unloads, 3);
    while (get_as(&h, 0, GEMMA, &retry_s, message)) {
        uint64_t past = (cn_now_ns() - began) / SECOND;
        assert_in_range(retry_s, past < 3 ? 3 - past : 1, 4);
        assert_non_null(strstr(message, "(engine.min_stay_s)"));
        assert_int_equal(get_as(&h, 1, LLAMA, NULL, NULL), 0); /* its tenant goes on */
        assert_true(++refused < 100);
    }
    assert_true(refused >= 3 && cn_now_ns() - began > 2 * SECOND);
    assert_int_equal((int)h_metric(&h, CN_M_model_unloads), unloads + 1);
    assert_int_equal(get_as(&h, 1, LLAMA, &retry_s, NULL), CN_ENOTREADY);
    assert_in_range(retry_s, 1, 4);
    sv_check_idle(&h);
    h_stop(&h);
}

/* ---- swaps at random ------------------------------------------------------------------------- */

enum { CLIENTS = 12, SWAPS = 40 };
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
    int rc = rt_acquire(rt_model_at(h->rt, c->model), 0, &h->mail, id, &held, &err);
    if (rc) fail_msg("acquire: %s", err.message);
    c->what = held ? ASKING : WAITING;
    if (!held) return;
    sv_ask(h, c->model, id, 1 + next(seed) % 40);
    sv_release(h, c->model);
}

/* Twelve clients, four models, room for about two; a third of what is asked is taken back. */
static void test_random_swaps(void **state)
{
    struct client c[CLIENTS] = {{0}};
    struct rt_model_opts list[N_FILES] = {{0}};
    uint32_t seed = 4711;
    uint64_t room = 0, ended = 0, cancelled = 0;
    struct h h;
    for (int i = 0; i < N_FILES; i++)
        room = CN_MAX(room, sv_need(i));
    sv_start(&h, list, N_FILES, KV_BYTES + room * 3 / 2, 60);
    for (uint64_t i = 0; i < CLIENTS; i++)
        begin(&h, &c[i], i, &seed);
    bool more = true;
    for (uint32_t busy = CLIENTS; busy;) {
        uint64_t i = next(&seed) % CLIENTS;
        more = more && h_metric(&h, CN_M_model_loads) < SWAPS;
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
        struct rt_event *e = sv_take(&h);
        struct client *of = &c[e->id];
        if (e->kind == RT_EV_MODEL) {
            assert_int_equal(of->what, WAITING);
            assert_int_equal(e->code, 0);
            of->what = ASKING;
            sv_ask(&h, of->model, e->id, 1 + next(&seed) % 40);
            sv_release(&h, of->model);
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
    sv_check_idle(&h);
    h_stop(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recent_goes), cmocka_unit_test(test_never_fits),
        cmocka_unit_test(test_waits_for_work),    cmocka_unit_test(test_asked_again_and_again),
        cmocka_unit_test(test_a_model_stays),     cmocka_unit_test(test_random_swaps),
    };
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, sv_find_files, NULL);
}
