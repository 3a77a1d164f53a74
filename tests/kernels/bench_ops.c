/* bench_ops: the time of one op of every kind on each instruction set of the machine, at the shape
 * of a model of about 1B, 32 rows of one sequence behind 1024 positions, one thread. Lines of a
 * table in Markdown. Not a test. bench_ops [--op WORD] (only cases whose name has it)
 *
 * The time is that of a step with 1 + n of the op less that of a step with one, by n: what
 * feeds the op is in both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "tests/kernels/tiny.h"

enum { ROWS = 32, CONTEXT = 1024, WIDTH = 2048, MAX_STEPS = 25, MIN_STEPS = 3 };
static const uint64_t enough_ns = 60000000;

struct rec {
    struct tiny *t;
    struct kr_plan *p;
    int in[6], sum; /* sum [R, 64]: what is not used for an output is not computed */
    enum kr_type type;
};

struct ocase {
    const char *name, *shape;
    void (*in)(struct rec *r);  /* records inputs; NULL: WIDTH values */
    void (*one)(struct rec *r); /* records the op once, and keeps its result */
    enum kr_type type, kv;
};

static struct kr_tensor vec(struct rec *r, uint32_t n)
{
    return tiny_vector(r->t, "v", n, 1, 0.5f);
}

static struct kr_tensor mat(struct rec *r, enum kr_type type, uint32_t rows, uint32_t cols)
{
    return tiny_matrix(r->t, "w", type, rows, cols, 1);
}

/* The op's result is needed. */
static void keep(struct rec *r, int v)
{
    r->sum = kr_op_add(r->p, r->sum, kr_op_slice(r->p, v, 1, 0, 64));
}

/* ---- one of each ----------------------------------------------------------------------------- */

static void in_x(struct rec *r)
{
    struct kr_tensor table = mat(r, KR_F32, 4, WIDTH);
    r->in[0] = kr_op_embed(r->p, &table, 1);
}

static void one_embed(struct rec *r)
{
    struct kr_tensor table = mat(r, r->type, 64, WIDTH);
    keep(r, kr_op_embed(r->p, &table, 1.5f));
}

static void one_embed_pos(struct rec *r)
{
    struct kr_tensor table = mat(r, KR_F32, CONTEXT + ROWS, WIDTH);
    keep(r, kr_op_embed_pos(r->p, &table));
}

static void one_rms_norm(struct rec *r)
{
    struct kr_tensor w = vec(r, WIDTH);
    keep(r, kr_op_rms_norm(r->p, r->in[0], &w, 1e-6f, 1));
}

static void one_rms_norm_heads(struct rec *r)
{
    struct kr_tensor w = vec(r, 64);
    keep(r, kr_op_rms_norm(r->p, r->in[0], &w, 1e-6f, WIDTH / 64));
}

static void one_layer_norm(struct rec *r)
{
    struct kr_tensor w = vec(r, WIDTH), b = vec(r, WIDTH);
    keep(r, kr_op_layer_norm(r->p, r->in[0], &w, &b, 1e-5f, 1));
}

static void one_rope(struct rec *r)
{
    float freq[32];
    for (int i = 0; i < 32; i++)
        freq[i] = 1.0f / (float)(i + 1);
    struct kr_rope rope = {KR_ROPE_NEOX, 64, 64, freq, 1};
    keep(r, kr_op_rope(r->p, r->in[0], &rope));
}

static void one_act(struct rec *r)
{
    keep(r, kr_op_act(r->p, r->in[0], KR_ACT_SILU));
}

static void one_glu(struct rec *r)
{
    keep(r, kr_op_glu(r->p, r->in[0], r->in[0], KR_ACT_GELU_TANH));
}

static void one_add(struct rec *r)
{
    keep(r, kr_op_add(r->p, r->in[0], r->in[0]));
}

static void one_scale(struct rec *r)
{
    keep(r, kr_op_scale(r->p, r->in[0], 0.7f));
}

static void one_softcap(struct rec *r)
{
    keep(r, kr_op_softcap(r->p, r->in[0], 30));
}

static void one_pos_scale(struct rec *r)
{
    keep(r, kr_op_pos_scale(r->p, r->in[0], 0.1f, 1, 64));
}

static void one_slice(struct rec *r)
{
    keep(r, kr_op_slice(r->p, r->in[0], 16, 32, 64));
}

static void one_concat(struct rec *r)
{
    keep(r, kr_op_concat(r->p, r->in[0], r->in[0], 16));
}

static void one_matmul(struct rec *r)
{
    struct kr_tensor w = mat(r, r->type, 512, WIDTH);
    keep(r, kr_op_matmul(r->p, r->in[0], &w, NULL));
}

static void one_head_matmul(struct rec *r)
{
    struct kr_tensor w = mat(r, KR_Q8_0, 16 * 512, 128);
    w.n_dims = 3;
    w.ne[1] = 512;
    w.ne[2] = 16;
    keep(r, kr_op_head_matmul(r->p, r->in[0], &w));
}

/* ---- attention: 16 query heads of 128, 4 of keys and values ---------------------------------- */

enum { HEADS = 16, KV_HEADS = 4, DIM = 128, LATENT = 576 };

static void kv(struct rec *r, enum kr_span span, uint32_t tokens)
{
    in_x(r);
    int k = kr_op_slice(r->p, r->in[0], 1, 0, KV_HEADS * DIM);
    int layer = kr_plan_kv_layer(r->p, kr_plan_kv_group(r->p, span, tokens), KV_HEADS, DIM, DIM);
    kr_op_kv_write(r->p, layer, k, k);
    r->in[1] = layer;
    r->in[2] = k;
}

static void in_all(struct rec *r)
{
    kv(r, KR_SPAN_ALL, 0);
}

static void in_window(struct rec *r)
{
    kv(r, KR_SPAN_WINDOW, 512);
}

static void in_chunk(struct rec *r)
{
    kv(r, KR_SPAN_CHUNK, 512);
}

static void in_latent(struct rec *r)
{
    in_x(r);
    int k = kr_op_slice(r->p, r->in[0], 1, 0, LATENT);
    int group = kr_plan_kv_group(r->p, KR_SPAN_ALL, 0);
    r->in[1] = kr_plan_kv_layer_latent(r->p, group, 1, LATENT, 512);
    kr_op_kv_write(r->p, r->in[1], k, -1);
    int q = kr_op_slice(r->p, r->in[0], 1, 0, LATENT), q2 = kr_op_concat(r->p, q, q, 1);
    int q4 = kr_op_concat(r->p, q2, q2, 1), q8 = kr_op_concat(r->p, q4, q4, 1);
    r->in[2] = kr_op_concat(r->p, q8, q8, 1);
}

/* The latent layer's attention if keys and values were made from the latents first: 16 heads of
 * 192, V 128 (without the products that make them). */
static void in_expanded(struct rec *r)
{
    in_x(r);
    int half = kr_op_slice(r->p, r->in[0], 1, 0, HEADS * 64);
    int k = kr_op_concat(r->p, r->in[0], half, HEADS);
    r->in[1] = kr_plan_kv_layer(r->p, kr_plan_kv_group(r->p, KR_SPAN_ALL, 0), HEADS, 192, DIM);
    kr_op_kv_write(r->p, r->in[1], k, r->in[0]);
    r->in[2] = k;
}

static void one_attention(struct rec *r)
{
    struct kr_attn a = {.kv_layer = r->in[1], .n_heads = HEADS, .scale = 0.1f};
    keep(r, kr_op_attention(r->p, r->in[0], &a));
}

static void one_latent(struct rec *r)
{
    struct kr_attn a = {.kv_layer = r->in[1], .n_heads = HEADS, .scale = 0.1f};
    keep(r, kr_op_attention(r->p, r->in[2], &a));
}

static void one_kv_write(struct rec *r)
{
    int layer = kr_plan_kv_layer(r->p, 0, KV_HEADS, DIM, DIM);
    kr_op_kv_write(r->p, layer, r->in[2], r->in[2]);
}

static void in_selected(struct rec *r)
{
    in_latent(r);
    r->in[3] = kr_plan_kv_layer(r->p, kr_plan_kv_group(r->p, KR_SPAN_ALL, 0), 1, DIM, 0);
    kr_op_kv_write(r->p, r->in[3], kr_op_slice(r->p, r->in[0], 1, 0, DIM), -1);
    r->in[4] = kr_op_slice(r->p, r->in[0], 1, 0, HEADS);
}

static void one_selected(struct rec *r)
{
    struct kr_attn a = {.kv_layer = r->in[1], .n_heads = HEADS, .scale = 0.1f};
    int best = kr_op_select(r->p, r->in[0], r->in[4], r->in[3], 512, CONTEXT + ROWS);
    keep(r, kr_op_attention_selected(r->p, r->in[2], &a, best));
}

/* ---- experts: 8 of 64, 1024 wide ------------------------------------------------------------- */

enum { EXPERTS = 64, USED = 8, FFN = 1024 };

static int route(struct rec *r)
{
    struct kr_router router = {.n_used = USED, .norm = true, .scale = 1};
    return kr_op_route(r->p, kr_op_slice(r->p, r->in[0], 1, 0, EXPERTS), &router);
}

static void one_route(struct rec *r)
{
    int best = route(r), x = kr_op_slice(r->p, r->in[0], 1, 0, 64);
    keep(r, kr_op_combine(r->p, kr_op_dispatch(r->p, x, best, false), best, true));
}

static void in_route(struct rec *r)
{
    in_x(r);
    r->in[1] = route(r);
}

static void one_dispatch(struct rec *r)
{
    int x = kr_op_dispatch(r->p, r->in[0], r->in[1], true);
    keep(r, kr_op_combine(r->p, x, r->in[1], true));
}

static void one_expert_matmul(struct rec *r)
{
    struct kr_tensor w = mat(r, KR_Q4_K, EXPERTS * FFN, WIDTH);
    w.n_dims = 3;
    w.ne[1] = FFN;
    w.ne[2] = EXPERTS;
    int x = kr_op_dispatch(r->p, r->in[0], r->in[1], false);
    int y = kr_op_expert_matmul(r->p, x, r->in[1], &w, NULL, 0, FFN);
    keep(r, kr_op_combine(r->p, y, r->in[1], true));
}

/* ---- recurrences ----------------------------------------------------------------------------- */

static void one_conv(struct rec *r)
{
    struct kr_tensor w = mat(r, KR_F32, WIDTH, 4), b = vec(r, WIDTH);
    keep(r, kr_op_conv(r->p, r->in[0], kr_plan_state(r->p, WIDTH * 3), &w, &b, KR_ACT_SILU));
}

static void scan(struct rec *r, uint32_t heads, uint32_t n, bool per_n)
{
    struct kr_tensor a = tiny_vector(r->t, "a", per_n ? heads * n : heads, -1, 0.5f);
    struct kr_tensor d = vec(r, heads), bias = vec(r, heads);
    int bc = kr_op_slice(r->p, r->in[0], 1, 0, n);
    struct kr_scan s = {.state = kr_plan_state(r->p, WIDTH * n),
                        .x = r->in[0],
                        .dt = heads == WIDTH ? r->in[0] : kr_op_slice(r->p, r->in[0], 1, 0, heads),
                        .b = bc,
                        .c = bc,
                        .a = &a,
                        .d = &d,
                        .dt_bias = &bias,
                        .n_heads = heads,
                        .n_groups = 1,
                        .n_state = n};
    keep(r, kr_op_scan(r->p, &s));
}

static void one_scan1(struct rec *r)
{
    scan(r, WIDTH, 16, true);
}

static void one_scan2(struct rec *r)
{
    scan(r, WIDTH / 64, 128, false);
}

static void one_delta(struct rec *r)
{
    struct kr_tensor decay = tiny_vector(r->t, "a", 16, -1, 0.5f), bias = vec(r, 16);
    int gate = kr_op_slice(r->p, r->in[0], 1, 0, 16);
    int k = kr_op_rms_norm(r->p, r->in[0], NULL, 1e-6f, 16);
    k = kr_op_scale(r->p, k, 0.08f);
    struct kr_delta d = {.state = kr_plan_state(r->p, 16 * DIM * DIM),
                         .q = k,
                         .k = k,
                         .v = r->in[0],
                         .a = gate,
                         .b = gate,
                         .decay = &decay,
                         .dt_bias = &bias,
                         .n_k_heads = 16,
                         .n_v_heads = 16};
    keep(r, kr_op_delta(r->p, &d));
}

/* ---- the table ------------------------------------------------------------------------------- */

#define WIDE      "2048"
#define SQUARE    "512 x 2048"
#define ATTN      "16 heads of 128, 4 of K and V"
#define MLA       "16 heads of 576, V 512"
#define MATMUL(T) {"matmul " #T, SQUARE, NULL, one_matmul, KR_##T, 0}

/* clang-format off */
static const struct ocase cases[] = {
    {"embed Q8_0", WIDE, NULL, one_embed, KR_Q8_0, 0},
    {"embed_pos", WIDE, NULL, one_embed_pos, 0, 0},
    {"rms_norm", WIDE, NULL, one_rms_norm, 0, 0},
    {"rms_norm, heads", "32 of 64", NULL, one_rms_norm_heads, 0, 0},
    {"layer_norm", WIDE, NULL, one_layer_norm, 0, 0},
    {"rope", "32 heads of 64", NULL, one_rope, 0, 0},
    {"act silu", WIDE, NULL, one_act, 0, 0},
    {"glu gelu_tanh", WIDE, NULL, one_glu, 0, 0},
    {"add", WIDE, NULL, one_add, 0, 0},
    {"scale", WIDE, NULL, one_scale, 0, 0},
    {"softcap", WIDE, NULL, one_softcap, 0, 0},
    {"pos_scale", WIDE, NULL, one_pos_scale, 0, 0},
    {"slice", "16 of 64", NULL, one_slice, 0, 0},
    {"concat", "16 of 128 + 128", NULL, one_concat, 0, 0},
    MATMUL(F32), MATMUL(F16), MATMUL(BF16), MATMUL(Q4_0), MATMUL(Q4_1), MATMUL(Q5_0), MATMUL(Q5_1),
    MATMUL(Q8_0), MATMUL(Q2_K), MATMUL(Q3_K), MATMUL(Q4_K), MATMUL(Q5_K), MATMUL(Q6_K),
    MATMUL(IQ3_S), MATMUL(IQ4_NL), MATMUL(IQ4_XS), MATMUL(TQ1_0), MATMUL(TQ2_0), MATMUL(MXFP4),
    {"head_matmul Q8_0", "16 of 512 x 128", NULL, one_head_matmul, 0, 0},
    {"kv_write f16", ATTN, in_all, one_kv_write, 0, KR_F16},
    {"kv_write q8_0", ATTN, in_all, one_kv_write, 0, KR_Q8_0},
    {"kv_write q4_0", ATTN, in_all, one_kv_write, 0, KR_Q4_0},
    {"attention f16", ATTN, in_all, one_attention, 0, KR_F16},
    {"attention q8_0", ATTN, in_all, one_attention, 0, KR_Q8_0},
    {"attention q4_0", ATTN, in_all, one_attention, 0, KR_Q4_0},
    {"attention, window", ATTN ", 512 tokens", in_window, one_attention, 0, KR_F16},
    {"attention, chunk", ATTN ", 512 tokens", in_chunk, one_attention, 0, KR_F16},
    {"attention, latent", MLA, in_latent, one_latent, 0, KR_F16},
    {"attention, latent expanded", "16 heads of 192, V 128", in_expanded, one_latent, 0, KR_F16},
    {"select and attention", MLA ", best 512", in_selected, one_selected, 0, KR_F16},
    {"route", "8 of 64", NULL, one_route, 0, 0},
    {"dispatch and combine", "8 of 64, 2048", in_route, one_dispatch, 0, 0},
    {"expert_matmul Q4_K", "8 of 64, 1024 x 2048", in_route, one_expert_matmul, 0, 0},
    {"conv", "2048, 4 wide", NULL, one_conv, 0, 0},
    {"scan, Mamba-1", "2048, 16 states", NULL, one_scan1, 0, 0},
    {"scan, Mamba-2", "32 heads of 64, 128 states", NULL, one_scan2, 0, 0},
    {"delta", "16 heads of 128 x 128", NULL, one_delta, 0, 0},
};
/* clang-format on */

/* ---- running --------------------------------------------------------------------------------- */

static void need(int rc, const char *name, const struct cn_error *err)
{
    if (!rc) return;
    fprintf(stderr, "bench_ops: %s: %s\n", name, err->message);
    exit(1);
}

static struct tiny *record(const struct ocase *c, int copies)
{
    struct cn_error err = {0};
    struct tiny *t = calloc(1, sizeof *t);
    if (!t || !(t->plan = kr_plan_new())) abort();
    t->seed = 1;
    struct rec r = {.t = t, .p = t->plan, .type = c->type};
    (c->in ? c->in : in_x)(&r);
    r.sum = kr_op_slice(r.p, r.in[0], 1, 0, 64);
    for (int i = 0; i < 1 + copies; i++)
        c->one(&r);
    kr_plan_output(r.p, kr_op_take_logits(r.p, r.sum));
    need(kr_plan_finish(r.p, &err), c->name, &err);
    return t;
}

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

/* Median microseconds of the steps that come after CONTEXT positions of zeros. */
static double steps_us(const char *name, bool tokens, struct kr_exec *x, struct kr_kv_mem *mem)
{
    static float embd[ROWS * WIDTH];
    uint32_t blocks[4][CONTEXT / 16 + 3], n = CN_ARRAY_LEN(blocks[0]);
    const uint32_t *tables[4];
    struct kr_row rows[ROWS];
    double times[MAX_STEPS];
    int n_steps = -1; /* the first one is not counted */
    struct cn_error err = {0};
    uint64_t seed = 3, ticket;
    for (uint32_t g = 0; g < 4; g++) {
        for (uint32_t i = 0; i < n; i++)
            blocks[g][i] = (g * n + i) << KR_BLOCK_INDEX_BITS;
        tables[g] = blocks[g];
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(embd); i++)
        embd[i] = tiny_uniform(&seed);
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct kr_row){.pos = CONTEXT + i,
                                  .src = KR_ROW_EMBED,
                                  .logits = true,
                                  .embed = embd + (size_t)i * WIDTH};
    for (uint32_t i = 0; tokens && i < ROWS; i++)
        rows[i] = (struct kr_row){.pos = CONTEXT + i, .logits = true, .token = i % 4};
    struct kr_seq seq = {.tables = tables};
    struct kr_batch batch = {.n_rows = ROWS, .n_seqs = 1, .rows = rows, .seqs = &seq};
    for (uint64_t start = cn_now_ns();
         n_steps < MIN_STEPS || (n_steps < MAX_STEPS && cn_now_ns() - start < enough_ns);
         n_steps++) {
        uint64_t from = cn_now_ns();
        need(kr_launch(x, mem, &batch, &ticket, &err), name, &err);
        if (n_steps >= 0) times[n_steps] = (double)(cn_now_ns() - from) * 1e-3;
    }
    qsort(times, (size_t)n_steps, sizeof *times, by_size);
    return times[n_steps / 2];
}

static double run(const struct ocase *c, enum kr_isa isa, int copies)
{
    struct kr_cpu_opts cpu = {.isa = isa, .n_threads = 1};
    struct kr_prepare_opts o = {.kv_type = c->kv ? c->kv : KR_F16,
                                .block_tokens = 16,
                                .max_rows = ROWS,
                                .max_logit_rows = ROWS,
                                .max_context = CONTEXT + ROWS};
    struct cn_error err = {0};
    struct tiny *t = record(c, copies);
    struct kr_device *dev;
    struct kr_exec *x;
    struct kr_kv_mem *mem = NULL;
    need(kr_cpu_new(&cpu, &dev, &err), c->name, &err);
    need(kr_prepare(dev, t->plan, &o, &x, &err), c->name, &err);
    const struct kr_exec_info *info = kr_exec_info(x);
    uint64_t slab = 64;
    for (uint32_t g = 0; g < info->n_groups; g++)
        slab = CN_MAX(slab, info->groups[g].block_bytes);
    need(kr_kv_mem_new(dev, slab, 4 * (CONTEXT / 16 + 3), &mem, &err), c->name, &err);
    double us = steps_us(c->name, c->one == one_embed, x, mem);
    kr_kv_mem_free(mem);
    kr_exec_free(x);
    kr_device_free(dev);
    tiny_free(t);
    return us;
}

int main(int argc, char **argv)
{
    static const enum kr_isa isas[] = {KR_ISAS};
    const char *only = argc == 3 && !strcmp(argv[1], "--op") ? argv[2] : NULL;
    if (argc > 1 && !only) {
        fprintf(stderr, "usage: bench_ops [--op WORD]\n");
        return 2;
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        const struct ocase *c = &cases[i];
        double generic = 0;
        if (only && !strstr(c->name, only)) continue;
        printf("| %s | %s |", c->name, c->shape);
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            struct kr_device *dev;
            if (!kr_isa_path(isas[k])) continue; /* another processor's */
            struct kr_cpu_opts cpu = {.isa = isas[k], .n_threads = 1};
            if (kr_cpu_new(&cpu, &dev, NULL)) { /* the machine lacks it */
                printf(" %s: none |", kr_isa_name(isas[k]));
                continue;
            }
            kr_device_free(dev);
            int n = strstr(c->name, "matmul") ? 2 : 8;
            double us = (run(c, isas[k], n) - run(c, isas[k], 0)) / n;
            if (!k) generic = us;
            if (k)
                printf(" %.1f us, %.1fx |", us, generic / us);
            else
                printf(" %.1f us |", us);
            fflush(stdout);
        }
        putchar('\n');
    }
    return 0;
}
