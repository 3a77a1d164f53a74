/* attention: every variant, KV type and ISA against a plain computation in double precision, at
 * positions around the borders of key ranges, super-ranges, windows and chunks; and the same bytes
 * in every cut, batch and number of threads.
 *
 * Vector ISAs meet every shape in every KV type, and every way to cut it in one of the types; plain
 * C, which is slow, each shape in one type. With CONIFER_LONG everything meets everything; where
 * kernels are instrumented or emulated each shape meets one type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/attn_case.h"
#include "tests/kernels/tiny.h"

/* clang-format off */
static const struct attn_shape shapes[] = {
    {.name = "all", .kv_heads = 2, .heads = 6, .k_dim = 32, .v_dim = 48, .n = 1100},
    {.name = "all, odd", .kv_heads = 1, .heads = 7, .k_dim = 23, .v_dim = 37, .n = 300},
    {.name = "window", .span = KR_SPAN_WINDOW, .tokens = 130, .kv_heads = 1, .heads = 3,
     .k_dim = 64, .v_dim = 64, .n = 700},
    {.name = "short window", .span = KR_SPAN_WINDOW, .tokens = 1, .kv_heads = 2, .heads = 2,
     .k_dim = 8, .v_dim = 8, .n = 150},
    {.name = "chunk", .span = KR_SPAN_CHUNK, .tokens = 96, .kv_heads = 1, .heads = 5, .k_dim = 32,
     .v_dim = 32, .n = 650},
    {.name = "long chunk", .span = KR_SPAN_CHUNK, .tokens = 600, .kv_heads = 2, .heads = 4,
     .k_dim = 16, .v_dim = 16, .n = 1250, .softcap = 4},
    {.name = "short chunk", .span = KR_SPAN_CHUNK, .tokens = 3, .kv_heads = 1, .heads = 1,
     .k_dim = 16, .v_dim = 20, .n = 150},
    {.name = "sinks", .kv_heads = 2, .heads = 8, .k_dim = 64, .v_dim = 64, .sinks = true, .n = 560},
    {.name = "window and sinks", .span = KR_SPAN_WINDOW, .tokens = 40, .kv_heads = 1, .heads = 8,
     .k_dim = 24, .v_dim = 24, .sinks = true, .softcap = 9, .n = 300},
    {.name = "many heads", .kv_heads = 1, .heads = 71, .k_dim = 16, .v_dim = 16, .n = 150},
    {.name = "both", .span = KR_SPAN_BOTH, .kv_heads = 3, .heads = 3, .k_dim = 32, .v_dim = 32,
     .n = 600},
    {.name = "both, near", .span = KR_SPAN_BOTH, .tokens = 130, .kv_heads = 1, .heads = 4,
     .k_dim = 20, .v_dim = 20, .sinks = true, .n = 700},
    {.name = "latent", .kv_heads = 1, .heads = 16, .k_dim = 576, .v_dim = 512, .latent = true,
     .n = 140},
    {.name = "latent, many heads", .kv_heads = 1, .heads = 100, .k_dim = 24, .v_dim = 16,
     .latent = true, .n = 530},
    {.name = "latent, odd", .kv_heads = 2, .heads = 6, .k_dim = 45, .v_dim = 39, .latent = true,
     .sinks = true, .span = KR_SPAN_WINDOW, .tokens = 140, .n = 300},
    {.name = "latent, V is K", .kv_heads = 1, .heads = 4, .k_dim = 20, .v_dim = 20, .latent = true,
     .n = 200},
    {.name = "chosen, latent", .kv_heads = 1, .heads = 8, .k_dim = 48, .v_dim = 32, .latent = true,
     .top_k = 24, .sel_heads = 4, .sel_dim = 32, .n = 700},
    {.name = "chosen, few", .kv_heads = 2, .heads = 4, .k_dim = 24, .v_dim = 24, .top_k = 1,
     .sel_heads = 1, .sel_dim = 16, .n = 1100},
    {.name = "chosen, sinks, window", .span = KR_SPAN_WINDOW, .tokens = 200, .kv_heads = 1,
     .heads = 7, .k_dim = 33, .v_dim = 17, .sinks = true, .top_k = 60, .sel_heads = 101,
     .sel_dim = 33, .n = 400},
    {.name = "chosen, all", .kv_heads = 1, .heads = 64, .k_dim = 40, .v_dim = 32, .latent = true,
     .top_k = 280, .sel_heads = 3, .sel_dim = 64, .n = 300},
    {.name = "wide", .kv_heads = 1, .heads = 3, .k_dim = 256, .v_dim = 256, .n = 200},
    {.name = "wide, read in place", .kv_heads = 1, .heads = 2, .k_dim = 512, .v_dim = 512, .n = 150},
    {.name = "too wide for it", .kv_heads = 1, .heads = 2, .k_dim = 544, .v_dim = 64, .n = 150},
};
/* clang-format on */
static const enum kr_type kv_types[] = {KR_F16, KR_Q8_0, KR_Q4_0};
static const enum kr_isa isas[] = {KR_ISAS};

static bool everything(void)
{
    return getenv("CONIFER_LONG");
}

static const char *kv_name(enum kr_type t)
{
    return kr_type_info((uint32_t)t)->name;
}

/* ---- truth ----------------------------------------------------------------------------------- */

/* Rows on both sides of every border, and some anywhere. */
static bool is_checked(const struct attn_shape *s, uint32_t r)
{
    static const uint32_t borders[] = {16, 128, 256, 512, 1024};
    for (size_t i = 0; i < CN_ARRAY_LEN(borders); i++)
        if (r + 1 >= borders[i] && r <= borders[i] + 1) return true;
    if (s->tokens && (r + 1) % s->tokens < 3 && r < 3 * s->tokens) return true;
    return r < 2 || r + 1 == s->n || r % 53 == 7;
}

static void check_truth(const struct attn_case *c, const double *want, uint32_t isa,
                        const float *got)
{
    /* Values are below 2. Scores of float32 sums differ by some 1e-6 of their terms. */
    for (uint32_t r = 0; r < c->shape.n; r++) {
        if (!is_checked(&c->shape, r)) continue;
        for (uint32_t i = 0; i < c->out; i++) {
            size_t at = (size_t)r * c->out + i;
            if (fabs((double)got[at] - want[at]) > 2e-5)
                fail_msg("%s, %s, %s: row %u value %u is %.9g, not %.9g", c->shape.name,
                         kv_name(c->kv_type), kr_isa_name(isas[isa]), r, i, (double)got[at],
                         want[at]);
        }
    }
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void same_bytes(const struct attn_case *c, uint32_t isa, const char *what, const float *want,
                       const float *got)
{
    size_t n = (size_t)c->shape.n * c->out, i = 0;
    if (!memcmp(want, got, n * sizeof *want)) return;
    while (!memcmp(&want[i], &got[i], sizeof *want))
        i++;
    fail_msg("%s, %s, %s, %s: row %zu value %zu is %.9g, not %.9g", c->shape.name,
             kv_name(c->kv_type), kr_isa_name(isas[isa]), what, i / c->out, i % c->out,
             (double)got[i], (double)want[i]);
}

/* turn: which share of the ways is the case's. */
static void check_cuts(const struct attn_case *c, uint32_t isa, uint32_t turn, const float *want)
{
    static const uint32_t one[] = {1, 0}, mixed[] = {1, 7, 16, 1, 1, 130, 2, 0}, all[] = {2048, 0},
                          seven[] = {7, 0};
    static const struct {
        const char *what;
        struct attn_run run;
    } ways[] = {
        {"one by one, two threads", {.threads = 2, .block_tokens = 16, .order = 1, .cuts = one}},
        {"mixed, three threads, in copied blocks",
         {.threads = 3, .block_tokens = 32, .order = 2, .cuts = mixed, .copies = true}},
        {"sevens in a batch",
         {.threads = 2,
          .block_tokens = 16,
          .order = 3,
          .cuts = seven,
          .twice = true,
          .behind = 50}},
        {"all at once, blocks of 32, batch",
         {.threads = 1, .block_tokens = 32, .cuts = all, .twice = true}},
        {"all at once, three threads", {.threads = 3, .block_tokens = 16, .cuts = all}},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(ways); i++) {
        struct attn_run how = ways[i].run;
        bool whole = c->shape.span == KR_SPAN_BOTH; /* rows come all at once */
        if (whole && how.cuts != all) continue;
        /* Plain C reads the whole past for every row. */
        if (isas[isa] == KR_ISA_GENERIC && how.cuts == one && c->shape.n > 150) continue;
        if (!everything() && !whole && (i + turn) % CN_ARRAY_LEN(kv_types)) continue;
        float *other = NULL;
        how.isa = isas[isa];
        how.max_rows = how.cuts == all ? 2 * c->shape.n : 140;
        float *got = attn_case_run(c, &how, how.twice ? &other : NULL);
        same_bytes(c, isa, ways[i].what, want, got);
        if (other) same_bytes(c, isa, ways[i].what, want, other);
        free(got);
        free(other);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void check_case(const struct attn_shape *shape, uint32_t kv, bool plain_c, uint64_t seed)
{
    static const uint32_t all[] = {2048, 0};
    enum kr_type kv_type = kv_types[kv];
    struct attn_case c;
    attn_case_open(&c, shape, kv_type, seed);
    double *truth = calloc((size_t)shape->n * c.out, sizeof *truth);
    assert_non_null(truth);
    for (uint32_t r = 0; r < shape->n; r++)
        if (is_checked(shape, r)) attn_case_truth(&c, r, truth + (size_t)r * c.out);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
        if (isas[i] == KR_ISA_GENERIC && !plain_c) continue;
        struct attn_run how = {
            .isa = isas[i], .threads = 1, .block_tokens = 16, .max_rows = shape->n, .cuts = all};
        float *want = attn_case_run(&c, &how, NULL);
        if (!want) continue;
        check_truth(&c, truth, i, want);
        /* Shapes that meet one type only, (shape + kv) % 3 == 0, still take all the turns. */
        check_cuts(&c, i, (uint32_t)seed + 2 * kv, want);
        free(want);
    }
    free(truth);
    attn_case_close(&c);
}

static void test_shapes(void **state)
{
    for (uint32_t i = 0; i < CN_ARRAY_LEN(shapes); i++)
        for (uint32_t k = 0; k < CN_ARRAY_LEN(kv_types); k++)
            if (everything() || (i + k) % attn_case_share() == 0)
                check_case(&shapes[i], k, everything() || i % CN_ARRAY_LEN(kv_types) == k, 5 + i);
}

/* Tiles of few pairs are cut differently for each number of them: rows of steps one more than of
 * the step before, of one head, and of three that share keys. */
static void test_each_number_of_pairs(void **state)
{
    static const uint32_t all[] = {2048, 0},
                          rising[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                      14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 0};
    for (uint32_t k = 0; k < CN_ARRAY_LEN(kv_types); k++)
        for (uint32_t heads = 1; heads <= 3; heads += 2) {
            struct attn_shape s = {.name = "each number of pairs",
                                   .kv_heads = 1,
                                   .heads = heads,
                                   .k_dim = 33,
                                   .v_dim = 96,
                                   .n = 325};
            struct attn_case c;
            attn_case_open(&c, &s, kv_types[k], 1 + heads);
            for (uint32_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
                struct attn_run how = {.isa = isas[i],
                                       .threads = 1,
                                       .block_tokens = 16 << heads / 3,
                                       .max_rows = s.n,
                                       .cuts = all};
                float *want = attn_case_run(&c, &how, NULL);
                if (!want) continue;
                how.cuts = rising;
                float *got = attn_case_run(&c, &how, NULL);
                same_bytes(&c, i, "rows rising", want, got);
                free(want);
                free(got);
            }
            attn_case_close(&c);
        }
}

/* Whatever comes out of a die. */
static void test_random(void **state)
{
    uint64_t seed = 77;
    for (int i = 0; i < (everything() ? 36 : 36 / (int)attn_case_share()); i++) {
        struct attn_shape s = {.name = "random", .span = tiny_rand(&seed) % 4};
        s.tokens = s.span == KR_SPAN_ALL ? 0 : 1 + tiny_rand(&seed) % 300;
        s.kv_heads = 1 + tiny_rand(&seed) % 3;
        s.heads = s.kv_heads * (1 + tiny_rand(&seed) % 9);
        s.k_dim = 1 + tiny_rand(&seed) % 90;
        s.v_dim = 1 + tiny_rand(&seed) % 90;
        s.sinks = tiny_rand(&seed) % 2;
        s.softcap = tiny_rand(&seed) % 3 ? 0 : 6.0f;
        s.latent = tiny_rand(&seed) % 3 == 0;
        if (s.latent) s.v_dim = CN_MIN(s.v_dim, s.k_dim);
        if (tiny_rand(&seed) % 3 == 0 && s.span != KR_SPAN_BOTH) {
            s.top_k = 1 + tiny_rand(&seed) % 100;
            s.sel_heads = 1 + tiny_rand(&seed) % 70;
            s.sel_dim = 1 + tiny_rand(&seed) % 100;
        }
        s.n = 1 + tiny_rand(&seed) % 400;
        check_case(&s, tiny_rand(&seed) % CN_ARRAY_LEN(kv_types), everything() || i % 3 == 0, seed);
    }
}

/* A key and a value that are not numbers reach the rows that see them, and no others. */
static void check_nan(const struct attn_shape *shape, enum kr_type kv)
{
    enum { BAD = 21 };
    static const uint32_t cuts[] = {1, 7, 30, 0}, all[] = {2048, 0};
    struct attn_shape s = *shape;
    struct attn_case c;
    s.n = CN_MIN(s.n, 150u);
    attn_case_open(&c, &s, kv, 3);
    struct attn_parts at = attn_parts_of(&s);
    double *truth = calloc(c.out, sizeof *truth);
    assert_non_null(truth);
    for (uint32_t i = at.k; i < at.iq; i++)
        c.rows[(size_t)BAD * c.width + i] = NAN;
    for (uint32_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
        struct attn_run how = {.isa = isas[i],
                               .threads = 1,
                               .block_tokens = 16,
                               .max_rows = s.n,
                               .cuts = s.span == KR_SPAN_BOTH ? all : cuts};
        float *got = attn_case_run(&c, &how, NULL);
        for (uint32_t r = BAD - 2; got && r < s.n; r += r < BAD + 6 ? 1 : 11) {
            attn_case_truth(&c, r, truth);
            for (uint32_t j = 0; j < c.out; j++)
                if (!isnan(truth[j]) != !isnan(got[(size_t)r * c.out + j]))
                    fail_msg("%s, %s: row %u value %u is %g, not %g", s.name, kr_isa_name(isas[i]),
                             r, j, (double)got[(size_t)r * c.out + j], truth[j]);
        }
        free(got);
    }
    free(truth);
    attn_case_close(&c);
}

static void test_nan(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++)
        check_nan(&shapes[i], i % 2 ? KR_Q8_0 : KR_F16);
}

/* An encoder's rows come whole or not at all, as far as a step can tell. */
static void test_encoder_cut(void **state)
{
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    struct attn_case c;
    struct cn_error err = {0};
    attn_case_open(&c, &shapes[10], KR_F16, 1);
    assert_int_equal(c.shape.span, KR_SPAN_BOTH);
    assert_int_equal(dev_new(KR_ISA_AUTO, 1, &dev, &err), 0);
    struct kr_prepare_opts prep = {.kv_type = KR_F16,
                                   .block_tokens = 16,
                                   .max_rows = 4,
                                   .max_logit_rows = 4,
                                   .max_context = 64};
    assert_int_equal(kr_prepare(dev, c.plan, &prep, &exec, &err), 0);
    assert_int_equal(kr_kv_mem_new(dev, kr_exec_info(exec)->groups[0].block_bytes, 1, &mem, &err),
                     0);
    uint32_t table[1] = {0};
    const uint32_t *tables[1] = {table};
    struct kr_seq seq = {.tables = tables};
    struct kr_row row = {.pos = 1, .src = KR_ROW_EMBED, .embed = c.rows, .logits = true};
    struct kr_batch batch = {.n_rows = 1, .n_seqs = 1, .rows = &row, .seqs = &seq};
    uint64_t ticket;
    assert_int_equal(kr_launch(exec, mem, &batch, &ticket, &err), CN_EINVAL);
    assert_non_null(strstr(err.message, "encoder"));
    row.pos = 0;
    assert_int_equal(kr_launch(exec, mem, &batch, &ticket, &err), 0);
    kr_kv_mem_free(mem);
    kr_exec_free(exec);
    kr_device_free(dev);
    attn_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_each_number_of_pairs),
        cmocka_unit_test(test_random),      cmocka_unit_test(test_nan),
        cmocka_unit_test(test_encoder_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
