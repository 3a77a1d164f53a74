/* step: a small random transformer. Truth: plain double precision code over the same weights, and
 * bit equality between every way of cutting the same tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "tests/kernels/tiny.h"

/* clang-format off */
static const struct tiny_shape shapes[] = {
    { .n_layers = 3, .width = 96, .heads = 6, .kv_heads = 2, .head_dim = 32, .ffn = 160,
      .vocab = 67, .weights = KR_Q4_1, .head = KR_Q8_0, .window = 40, .bias = true },
    { .n_layers = 2, .width = 64, .heads = 3, .kv_heads = 3, .head_dim = 20, .ffn = 96,
      .vocab = 50, .weights = KR_F32, .head = KR_F16, .qk_norm = true, .neox = true },
    { .n_layers = 2, .width = 64, .heads = 4, .kv_heads = 1, .head_dim = 72, .ffn = 64,
      .vocab = 9000, .weights = KR_Q8_0, .head = KR_Q4_0, .window = 17, .softcap = 5.0f },
};
/* clang-format on */
static const enum kr_isa isas[] = {KR_ISAS};

/* Runs `tokens` alone in chunks (0 terminated list, repeated); gives all logits. */
static float *run_alone(const struct tiny *t, const struct tiny_run_opts *o, const uint32_t *tokens,
                        uint32_t n, uint32_t chunk)
{
    struct tiny_run r;
    struct tiny_seq s, *list[1] = {&s};
    if (!tiny_run_open(&r, t, o)) return NULL;
    tiny_seq_open(&r, &s, tokens, n, t->shape.vocab, true);
    while (s.done < n) {
        uint32_t c = CN_MIN(chunk, n - s.done);
        tiny_step(&r, list, &c, 1, t->shape.vocab);
    }
    float *out = s.logits;
    s.logits = NULL;
    tiny_seq_close(&s);
    tiny_run_close(&r);
    return out;
}

static uint32_t *some_tokens(uint32_t n, uint32_t vocab, uint64_t seed)
{
    uint32_t *t = malloc(n * sizeof *t);
    assert_non_null(t);
    for (uint32_t i = 0; i < n; i++)
        t[i] = tiny_rand(&seed) % vocab;
    return t;
}

static void same_bytes(const float *a, const float *b, size_t n, const char *what, const char *isa)
{
    if (!memcmp(a, b, n * sizeof *a)) return;
    size_t i = 0;
    while (!memcmp(&a[i], &b[i], sizeof *a))
        i++;
    fail_msg("%s (%s): value %zu of %zu is %.9g, not %.9g", what, isa, i, n, (double)b[i],
             (double)a[i]);
}

struct with {
    const char *what;
    uint32_t threads, chunk, block_tokens, order;
};

/* Chunks whose logits nobody wants end with the last keys and values; what follows is the same. */
static void check_silent(const struct tiny *t, const struct tiny_run_opts *o,
                         const uint32_t *tokens, uint32_t n, const float *want, const char *name)
{
    uint32_t vocab = t->shape.vocab, silent = 0, c;
    struct tiny_run r;
    struct tiny_seq s, *list[1] = {&s};
    assert_true(tiny_run_open(&r, t, o));
    tiny_seq_open(&r, &s, tokens, n, vocab, true);
    float *logits = s.logits;
    s.logits = NULL;
    for (; silent + 40 < n && silent < 80; silent += c) {
        c = 40;
        tiny_step(&r, list, &c, 1, vocab);
    }
    s.logits = logits;
    c = n - silent;
    tiny_step(&r, list, &c, 1, vocab);
    same_bytes(want + (size_t)silent * vocab, logits + (size_t)silent * vocab, (size_t)c * vocab,
               "after rows without logits", name);
    tiny_seq_close(&s);
    tiny_run_close(&r);
}

static void check_cuts(const struct tiny *t, enum kr_isa isa, const char *name, enum kr_type kv)
{
    static const struct with ways[] = {
        {"one token at a time", 1, 1, 16, 0},
        {"chunks of 2, two threads", 2, 2, 16, 1},
        {"chunks of 7, three threads", 3, 7, 16, 3},
        {"chunks of 16, blocks of 32", 1, 16, 32, 2},
        {"one token at a time, three threads, blocks of 32", 3, 1, 32, 3},
        {"all at once, two threads", 2, 700, 16, 2},
        {"chunks of 50, three threads", 3, 50, 16, 1},
        {"chunks of 130, five threads", 5, 130, 16, 0},
    };
    /* Past one super-range, so that keys are split between threads; plain C takes too long. */
    uint32_t n = isa == KR_ISA_GENERIC ? 150 : 600, vocab = t->shape.vocab;
    if (vocab > 1000) n = 90;
    uint32_t *tokens = some_tokens(n, vocab, 5);
    struct tiny_run_opts o = {.isa = isa,
                              .threads = 1,
                              .block_tokens = 16,
                              .max_rows = 700,
                              .max_context = 2048,
                              .n_blocks = 97,
                              .kv_type = kv};
    float *want = run_alone(t, &o, tokens, n, 700);
    if (want) {
        for (size_t i = 0; i < (size_t)n * vocab; i++)
            assert_true(isfinite(want[i]));
        for (size_t i = 0; i < CN_ARRAY_LEN(ways); i++) {
            o.threads = ways[i].threads;
            o.block_tokens = ways[i].block_tokens;
            o.order = ways[i].order;
            float *got = run_alone(t, &o, tokens, n, ways[i].chunk);
            same_bytes(want, got, (size_t)n * vocab, ways[i].what, name);
            free(got);
        }
        o.threads = 2;
        check_silent(t, &o, tokens, n, want, name);
    }
    free(want);
    free(tokens);
}

static void test_cuts(void **state)
{
    for (size_t s = 0; s < CN_ARRAY_LEN(shapes); s++) {
        struct tiny *t = tiny_new(&shapes[s], 11 + s);
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
            check_cuts(t, isas[i], kr_isa_name(isas[i]), KR_F16);
            check_cuts(t, isas[i], kr_isa_name(isas[i]), KR_Q8_0);
        }
        tiny_free(t);
    }
}

/* Sequences of different lengths advance together in random steps; each one's logits are those it
 * has alone. */
static void check_batch(const struct tiny *t, enum kr_isa isa, const char *name, enum kr_type kv)
{
    enum { SEQS = 5 };
    uint32_t lens[SEQS] = {33, 150, 1, 71, 16}, vocab = t->shape.vocab;
    uint64_t seed = 99;
    struct tiny_run_opts o = {.isa = isa,
                              .threads = 2,
                              .block_tokens = 16,
                              .max_rows = 64,
                              .max_context = 512,
                              .n_blocks = 97,
                              .kv_type = kv,
                              .order = 3};
    struct tiny_run r;
    struct tiny_seq seqs[SEQS], *list[SEQS];
    uint32_t *tokens[SEQS], left = 0;
    if (!tiny_run_open(&r, t, &o)) return;
    assert_int_equal(kr_exec_profile(r.exec, true), 0); /* it changes nothing */
    for (int i = 0; i < SEQS; i++) {
        tokens[i] = some_tokens(lens[i], vocab, 7 + (uint64_t)i);
        tiny_seq_open(&r, &seqs[i], tokens[i], lens[i], vocab, true);
        left += lens[i];
    }
    while (left) {
        uint32_t n[SEQS], k = 0, rows = 0;
        for (int i = 0; i < SEQS; i++) {
            uint32_t c = tiny_rand(&seed) % 3 ? 1 : tiny_rand(&seed) % 24;
            c = CN_MIN(c, lens[i] - seqs[i].done);
            c = CN_MIN(c, 64 - rows);
            if (!c) continue;
            list[k] = &seqs[i];
            n[k++] = c;
            rows += c;
        }
        if (!rows) continue;
        tiny_step(&r, list, n, k, vocab);
        left -= rows;
    }
    for (int i = 0; i < SEQS; i++) {
        o.threads = 1;
        o.order = 0;
        float *want = run_alone(t, &o, tokens[i], lens[i], 13);
        same_bytes(want, seqs[i].logits, (size_t)lens[i] * vocab, "in a batch", name);
        free(want);
        tiny_seq_close(&seqs[i]);
        free(tokens[i]);
    }
    struct cn_buf text;
    cn_buf_init(&text, 0);
    assert_int_equal(kr_exec_profile_text(r.exec, &text), 0);
    assert_non_null(strstr(cn_buf_cstr(&text), "rows:"));
    assert_non_null(strstr(cn_buf_cstr(&text), "outputs: matmul("));
    cn_buf_fini(&text);
    tiny_run_close(&r);
}

static void test_batch(void **state)
{
    for (size_t s = 0; s < CN_ARRAY_LEN(shapes); s++) {
        struct tiny *t = tiny_new(&shapes[s], 3 + s);
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
            check_batch(t, isas[i], kr_isa_name(isas[i]), KR_F16);
            check_batch(t, isas[i], kr_isa_name(isas[i]), KR_Q8_0);
        }
        tiny_free(t);
    }
}

/* Threads wait for each other at most five times a layer in a decode step (and for the head): each
 * of q, k and v; attention; its product; gate and up; down. Rows of a batch are one more stage
 * before each; of many rows a thread takes its own from one attention to the next. Counted, not
 * timed. */
static void test_barriers(void **state)
{
    DEV_CPU_ONLY("counts how often the CPU's threads wait");
    for (size_t s = 0; s < CN_ARRAY_LEN(shapes); s++) {
        struct tiny *t = tiny_new(&shapes[s], 31 + s);
        uint32_t vocab = shapes[s].vocab, layers = shapes[s].n_layers;
        uint32_t lots = 33, many = 16, one = 1;
        uint32_t *tokens = some_tokens(60, vocab, 9);
        struct tiny_run_opts o = {.isa = KR_ISA_AUTO,
                                  .threads = 2,
                                  .block_tokens = 16,
                                  .max_rows = 64,
                                  .max_context = 64,
                                  .n_blocks = 8,
                                  .kv_type = KR_F16};
        struct tiny_run r;
        struct tiny_seq seq, *list[1] = {&seq};
        struct kr_counters was, now;
        assert_true(tiny_run_open(&r, t, &o));
        bool fused = kr_cpu_best() != KR_ISA_GENERIC; /* plain C takes op by op */
        tiny_seq_open(&r, &seq, tokens, 60, vocab, false);
        kr_exec_counters(r.exec, &was);
        tiny_step(&r, list, &many, 1, vocab);
        kr_exec_counters(r.exec, &now);
        assert_true(now.barriers > was.barriers);
        if (fused) assert_true(now.barriers - was.barriers <= 10 * layers + 4);
        was = now;
        tiny_step(&r, list, &lots, 1, vocab);
        kr_exec_counters(r.exec, &now);
        if (fused) assert_true(now.barriers - was.barriers <= 2 * layers + 4);
        for (int i = 0; i < 5; i++) {
            was = now;
            tiny_step(&r, list, &one, 1, vocab);
            kr_exec_counters(r.exec, &now);
            if (fused) assert_true(now.barriers - was.barriers <= 5 * layers + 2);
        }
        tiny_seq_close(&seq);
        tiny_run_close(&r);
        tiny_free(t);
        free(tokens);
    }
}

/* The CPU's generic path runs op by op in the plan's order, so it also checks the fusing ones, and
 * those of every other device. */
static void test_isas_agree(void **state)
{
    for (size_t s = 0; s < CN_ARRAY_LEN(shapes); s++) {
        struct tiny *t = tiny_new(&shapes[s], 21 + s);
        uint32_t n = 60, vocab = shapes[s].vocab, *tokens = some_tokens(n, vocab, 1);
        struct tiny_run_opts o = {.threads = 2,
                                  .block_tokens = 16,
                                  .max_rows = 64,
                                  .max_context = 64,
                                  .n_blocks = 8,
                                  .kv_type = KR_F16};
        o.isa = KR_ISA_GENERIC;
        o.device = "cpu";
        float *want = run_alone(t, &o, tokens, n, 64);
        double sum = 0, sum2 = 0, count = (double)n * vocab;
        for (size_t i = 0; i < (size_t)n * vocab; i++) {
            sum += want[i];
            sum2 += (double)want[i] * want[i];
        }
        double sigma = sqrt(sum2 / count - sum / count * (sum / count));
        o.device = NULL;
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            o.isa = isas[k];
            float *got = run_alone(t, &o, tokens, n, 64);
            double worst = 0;
            for (size_t i = 0; got && i < (size_t)n * vocab; i++) {
                double off = fabs((double)got[i] - want[i]) / sigma;
                if (!(off <= worst)) worst = off; /* NaN too */
            }
            /* float order of sums only; 8-bit activations may round the other way now and then */
            assert_true(worst < (shapes[s].weights == KR_F32 ? 2e-4 : 0.12));
            free(got);
        }
        free(want);
        free(tokens);
        tiny_free(t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_isas_agree),
        cmocka_unit_test(test_barriers),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
