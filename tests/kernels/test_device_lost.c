/* A device that is lost after some steps: what was in flight and all that is asked for later gives
 * CN_EDEVICE, again and again; what was done before stays. */
#include "tests/kernels/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { VOCAB = 300, ROWS = 4 };
static struct tiny *model;
static uint32_t tokens[ROWS] = {3, 1, 4, 1};

static int make_model(void **state)
{
    static const struct tiny_shape shape = {.n_layers = 2,
                                            .width = 64,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_dim = 32,
                                            .ffn = 64,
                                            .vocab = VOCAB,
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

struct world {
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t table[1];
    const uint32_t *tables[1];
    struct kr_row rows[ROWS];
    struct kr_seq seq;
    struct kr_batch batch;
};

/* Each step takes so long that the host asks for the next one meanwhile; the tests hold however
 * fast it is. */
static void open_world(struct world *w, uint64_t lost_after)
{
    struct kr_device_opts o = {.cpu = {.n_threads = 1},
                               .async = {.delay_ns = 50000000, .lost_after = lost_after}};
    struct kr_prepare_opts prep = {.kv_type = KR_F16,
                                   .block_tokens = 16,
                                   .max_rows = ROWS,
                                   .max_logit_rows = ROWS,
                                   .max_seqs = 1,
                                   .max_context = 16};
    memset(w, 0, sizeof *w);
    assert_int_equal(kr_device_new("async", &o, &w->dev, NULL), 0);
    assert_int_equal(kr_prepare(w->dev, model->plan, &prep, &w->exec, NULL), 0);
    const struct kr_exec_info *info = kr_exec_info(w->exec);
    assert_int_equal(info->n_groups, 1);
    assert_int_equal(kr_kv_mem_new(w->dev, info->groups[0].block_bytes, 1, &w->mem, NULL), 0);
    w->tables[0] = w->table;
    w->seq = (struct kr_seq){.tables = w->tables, .generation = 1};
    for (uint32_t i = 0; i < ROWS; i++)
        w->rows[i] = (struct kr_row){.pos = i, .logits = i + 1 == ROWS, .token = tokens[i]};
    w->batch = (struct kr_batch){.n_rows = ROWS, .n_seqs = 1, .rows = w->rows, .seqs = &w->seq};
}

static void close_world(struct world *w)
{
    kr_kv_mem_free(w->mem);
    kr_exec_free(w->exec);
    kr_device_free(w->dev);
}

static int launch(struct world *w, bool drawn, uint64_t *ticket)
{
    w->batch.drawn = drawn;
    return kr_launch(w->exec, w->mem, &w->batch, ticket, NULL);
}

/* Every call, and more than once. */
static void all_is_lost(struct world *w, uint64_t drawn, uint64_t other)
{
    struct kr_draw scored = {.score = 1};
    const struct kr_result *results;
    const char *why = NULL;
    uint64_t ticket;
    float *logits;
    void *host;
    assert_int_equal(kr_host_new(w->dev, 1 << 16, &host, NULL), 0);
    struct kr_move move = {0, 0, host};
    for (int i = 0; i < 3; i++) {
        struct cn_error err = {0};
        assert_true(kr_device_lost(w->dev, &why));
        assert_int_equal(kr_launch(w->exec, w->mem, &w->batch, &ticket, &err), CN_EDEVICE);
        assert_non_null(strstr(err.message, why));
        assert_int_equal(kr_draw(w->exec, drawn, &scored, 1, NULL), CN_EDEVICE);
        assert_int_equal(kr_kv_move(w->exec, w->mem, &move, 1, true, &ticket, NULL), CN_EDEVICE);
        assert_int_equal(kr_kv_move(w->exec, w->mem, &move, 1, false, &ticket, NULL), CN_EDEVICE);
        if (drawn) assert_int_equal(kr_collect_drawn(w->exec, drawn, &results, NULL), CN_EDEVICE);
        if (other) assert_int_equal(kr_collect(w->exec, other, &logits, NULL), CN_EDEVICE);
    }
    kr_host_free(w->dev, host, 1 << 16);
}

/* The second step is launched while the first runs, and is the one at which the device is lost. */
static void test_a_step_in_flight(void **state)
{
    struct kr_draw scored = {.score = 1};
    const struct kr_result *results;
    uint64_t first, second;
    struct world w;
    int rc;
    open_world(&w, 1);
    assert_false(kr_device_lost(w.dev, NULL));
    assert_int_equal(launch(&w, true, &first), 0);
    assert_int_equal(kr_draw(w.exec, first, &scored, 1, NULL), 0);
    assert_int_equal(launch(&w, true, &second), 0); /* nothing is lost before this step runs */
    rc = kr_draw(w.exec, second, &scored, 1, NULL);
    assert_true(rc == 0 || rc == CN_EDEVICE);
    assert_int_equal(kr_collect_drawn(w.exec, first, &results, NULL), 0);
    assert_int_equal(results[0].status, 0);
    assert_int_equal(results[0].drawn.id, 1);
    assert_int_equal(kr_collect_drawn(w.exec, second, &results, NULL), CN_EDEVICE);
    all_is_lost(&w, second, 0);
    close_world(&w);
}

/* Two steps in flight, neither of which is done: both get it. */
static void test_two_steps_in_flight(void **state)
{
    struct kr_draw scored = {.score = 1};
    const struct kr_result *results;
    uint64_t first, second, third;
    float *logits;
    struct world w;
    open_world(&w, 1);
    assert_int_equal(launch(&w, true, &first), 0);
    assert_int_equal(kr_draw(w.exec, first, &scored, 1, NULL), 0);
    assert_int_equal(kr_collect_drawn(w.exec, first, &results, NULL), 0);
    assert_int_equal(launch(&w, false, &second), 0);
    int rc = launch(&w, false, &third); /* the device may have gone by now */
    assert_true(rc == 0 || rc == CN_EDEVICE);
    assert_int_equal(kr_collect(w.exec, second, &logits, NULL), CN_EDEVICE);
    if (!rc) assert_int_equal(kr_collect(w.exec, third, &logits, NULL), CN_EDEVICE);
    all_is_lost(&w, 0, second);
    close_world(&w);
}

/* Blocks that were on their way are there, or not; waiting for them ends. */
static void test_a_move_in_flight(void **state)
{
    struct world w;
    uint64_t ticket, moved;
    float *logits;
    void *host;
    int rc;
    open_world(&w, 1);
    assert_int_equal(kr_host_new(w.dev, 1 << 16, &host, NULL), 0);
    struct kr_move move = {0, 0, host};
    assert_int_equal(launch(&w, false, &ticket), 0);
    assert_int_equal(kr_collect(w.exec, ticket, &logits, NULL), 0);
    assert_int_equal(launch(&w, false, &ticket), 0);
    rc = kr_kv_move(w.exec, w.mem, &move, 1, true, &moved, NULL);
    assert_true(rc == 0 || rc == CN_EDEVICE);
    if (!rc) assert_true(kr_moved(w.exec, moved, true));
    assert_int_equal(kr_collect(w.exec, ticket, &logits, NULL), CN_EDEVICE);
    all_is_lost(&w, 0, ticket);
    kr_host_free(w.dev, host, 1 << 16);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_step_in_flight),
                                       cmocka_unit_test(test_two_steps_in_flight),
                                       cmocka_unit_test(test_a_move_in_flight)};
    return cmocka_run_group_tests(tests, make_model, free_model);
}
