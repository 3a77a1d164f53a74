/* Blocks that move to the host and back, with every type of KV: what was moved out,
 * overwritten and moved in to other blocks goes on with the bytes of a sequence that stayed. */
#include "tests/kernels/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N = 50, CUT = 37, VOCAB = 300, BLOCK = 16, BLOCKS = (N + BLOCK - 1) / BLOCK };
static struct tiny *model;
static uint32_t tokens[2][N];

static int make_model(void **state)
{
    static const struct tiny_shape shape = {.n_layers = 4,
                                            .width = 64,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_dim = 32,
                                            .ffn = 64,
                                            .vocab = VOCAB,
                                            .weights = KR_Q8_0,
                                            .head = KR_Q8_0,
                                            .window = 20};
    uint64_t seed = 5;
    model = tiny_new(&shape, 1);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++)
            tokens[k][i] = tiny_rand(&seed) % VOCAB;
    return 0;
}

static int free_model(void **state)
{
    tiny_free(model);
    return 0;
}

static void step(struct tiny_run *r, struct tiny_seq *s, uint32_t n)
{
    tiny_step(r, &s, &n, 1, VOCAB);
}

/* All blocks of a sequence; host: one place after another. */
static uint32_t list(const struct tiny_run *r, const struct tiny_seq *s, uint8_t *host,
                     struct kr_move *moves)
{
    const struct kr_exec_info *info = kr_exec_info(r->exec);
    uint32_t n = 0;
    for (uint32_t g = 0; g < info->n_groups; g++)
        for (uint32_t i = 0; i < (CUT + BLOCK - 1) / BLOCK; i++) {
            moves[n++] = (struct kr_move){g, s->tables[g][i], host};
            host += info->groups[g].block_bytes;
        }
    return n;
}

static void run_case(enum kr_type type)
{
    struct tiny_run_opts o = {.isa = KR_ISA_AUTO,
                              .threads = 2,
                              .block_tokens = BLOCK,
                              .max_rows = N,
                              .max_context = 64,
                              .n_blocks = 3 * BLOCKS,
                              .kv_type = type};
    struct kr_move moves[4 * BLOCKS];
    struct tiny_seq stays, other, moved;
    struct tiny_run r;
    uint64_t bytes = 0, ticket;
    void *host;
    assert_true(tiny_run_open(&r, model, &o));
    for (uint32_t g = 0; g < r.n_groups; g++)
        bytes += kr_exec_info(r.exec)->groups[g].block_bytes * BLOCKS;
    assert_int_equal(kr_host_new(r.dev, bytes, &host, NULL), 0);
    tiny_seq_open(&r, &stays, tokens[0], N, VOCAB, true);
    step(&r, &stays, CUT);
    step(&r, &stays, N - CUT);
    tiny_seq_open(&r, &moved, tokens[0], N, VOCAB, true);
    step(&r, &moved, CUT);
    uint32_t n = list(&r, &moved, host, moves);
    assert_int_equal(kr_kv_move(r.exec, r.mem, moves, n, true, &ticket, NULL), 0);
    /* Another sequence in the same blocks, launched before anybody waited. */
    tiny_seq_open(&r, &other, tokens[1], N, VOCAB, false);
    for (uint32_t g = 0; g < r.n_groups; g++)
        for (uint32_t i = 0; i < BLOCKS; i++) {
            uint32_t b = other.tables[g][i];
            other.tables[g][i] = moved.tables[g][i];
            moved.tables[g][i] = b;
        }
    step(&r, &other, N);
    n = list(&r, &moved, host, moves);
    assert_int_equal(kr_kv_move(r.exec, r.mem, moves, n, false, &ticket, NULL), 0);
    step(&r, &moved, N - CUT);
    assert_true(kr_moved(r.exec, ticket, true) && kr_moved(r.exec, ticket, false));
    assert_memory_equal(moved.logits, stays.logits, sizeof(float) * N * VOCAB);
    moves[0].block = UINT32_MAX;
    assert_int_equal(kr_kv_move(r.exec, r.mem, moves, 1, true, &ticket, NULL), CN_ERANGE);
    moves[0] = (struct kr_move){r.n_groups, 0, host};
    assert_int_equal(kr_kv_move(r.exec, r.mem, moves, 1, true, &ticket, NULL), CN_ERANGE);
    tiny_seq_close(&stays);
    tiny_seq_close(&other);
    tiny_seq_close(&moved);
    kr_host_free(r.dev, host, bytes);
    tiny_run_close(&r);
}

static void test_moved(void **state)
{
    static const enum kr_type types[] = {KR_F16, KR_Q8_0, KR_Q4_0};
    for (size_t t = 0; t < CN_ARRAY_LEN(types); t++)
        run_case(types[t]);
}

static void test_no_such_memory(void **state)
{
    struct kr_device *d;
    struct cn_error err = {0};
    void *host;
    assert_int_equal(dev_new(KR_ISA_AUTO, 1, &d, NULL), 0);
    assert_int_equal(kr_host_new(d, UINT64_MAX - 5, &host, &err), CN_ENOMEM);
    kr_device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_moved),
                                       cmocka_unit_test(test_no_such_memory)};
    return cmocka_run_group_tests(tests, make_model, free_model);
}
