/* shared keys: sequences whose tables begin with the same blocks, in steps together, give the bytes
 * that each gives alone with blocks of its own; and the keys they share are read once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/kernels/attn_case.h"
#include "tests/kernels/tiny.h"

enum { MAX_SEQS = 24, MAX_TOKENS = 1400, MAX_GROUPS = 2 };

/* A sequence: the first `shared` positions are those of its parent, rows and blocks. */
struct member {
    uint32_t parent, shared; /* parent: itself = none */
    uint32_t n, done;
    uint32_t tokens[MAX_TOKENS]; /* rows of the case */
    uint32_t tables[MAX_GROUPS][MAX_TOKENS / 16 + 1];
    const uint32_t *ptrs[MAX_GROUPS];
    float *out;
};
struct world {
    struct attn_case c;
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t bt, n_groups, next_block, n_seqs, max_rows;
    struct member seqs[MAX_SEQS];
};

static bool open_world(struct world *w, const struct attn_shape *shape, enum kr_type kv,
                       enum kr_isa isa, uint32_t threads, uint32_t bt)
{
    struct cn_error err = {0};
    if (dev_new(isa, threads, &w->dev, &err)) return false;
    attn_case_open(&w->c, shape, kv, 11);
    w->bt = bt;
    w->max_rows = 2048;
    w->next_block = 0;
    struct kr_prepare_opts prep = {.kv_type = kv,
                                   .block_tokens = bt,
                                   .max_rows = w->max_rows,
                                   .max_logit_rows = w->max_rows,
                                   .max_context = 2048};
    assert_int_equal(kr_prepare(w->dev, w->c.plan, &prep, &w->exec, &err), 0);
    const struct kr_exec_info *info = kr_exec_info(w->exec);
    uint64_t slab = 64;
    w->n_groups = info->n_groups;
    for (uint32_t g = 0; g < info->n_groups; g++)
        slab = CN_MAX(slab, info->groups[g].block_bytes);
    assert_int_equal(
        kr_kv_mem_new(w->dev, slab, MAX_SEQS * MAX_GROUPS * (MAX_TOKENS / 16 + 1), &w->mem, &err),
        0);
    return true;
}

static void close_world(struct world *w)
{
    for (uint32_t i = 0; i < w->n_seqs; i++)
        free(w->seqs[i].out);
    kr_kv_mem_free(w->mem);
    kr_exec_free(w->exec);
    kr_device_free(w->dev);
    attn_case_close(&w->c);
}

/* Shared blocks are the parent's, others new; a shared position's row is the parent's. */
static void add_member(struct world *w, uint32_t parent, uint32_t shared, uint32_t n, bool share)
{
    struct member *m = &w->seqs[w->n_seqs], *from = &w->seqs[parent];
    *m = (struct member){.parent = parent, .shared = parent == w->n_seqs ? 0 : shared, .n = n};
    for (uint32_t i = 0; i < n; i++)
        m->tokens[i] = i < m->shared ? from->tokens[i] : (i + 31 * w->n_seqs) % w->c.shape.n;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        for (uint32_t b = 0; b * w->bt < n; b++) {
            bool same = share && (b + 1) * w->bt <= m->shared;
            m->tables[g][b] = same ? from->tables[g][b] : w->next_block++ << KR_BLOCK_INDEX_BITS;
        }
        m->ptrs[g] = m->tables[g];
    }
    m->done = share ? m->shared / w->bt * w->bt : 0;
    m->out = calloc((size_t)n * w->c.out, sizeof *m->out);
    assert_non_null(m->out);
    w->n_seqs++;
}

/* The next k[i] rows of each sequence. */
static void step(struct world *w, const uint32_t *k)
{
    static struct kr_row rows[2048];
    struct kr_seq seqs[MAX_SEQS] = {{0}};
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        struct member *m = &w->seqs[s];
        seqs[s].tables = m->ptrs;
        for (uint32_t i = 0; i < k[s]; i++) {
            uint32_t pos = m->done + i;
            rows[n++] = (struct kr_row){.seq = s,
                                        .pos = pos,
                                        .logits = true,
                                        .src = KR_ROW_EMBED,
                                        .embed = w->c.rows + (size_t)m->tokens[pos] * w->c.width};
        }
    }
    struct kr_batch batch = {.n_rows = n, .n_seqs = w->n_seqs, .rows = rows, .seqs = seqs};
    struct cn_error err = {0};
    uint64_t ticket;
    float *y;
    if (kr_launch(w->exec, w->mem, &batch, &ticket, &err)) fail_msg("%s", err.message);
    assert_int_equal(kr_collect(w->exec, ticket, &y, &err), 0);
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        struct member *m = &w->seqs[s];
        memcpy(m->out + (size_t)m->done * w->c.out, y, (size_t)k[s] * w->c.out * sizeof *y);
        y += (size_t)k[s] * w->c.out;
        m->done += k[s];
    }
}

/* A sequence alone, up to `end`. */
static void run_alone(struct world *w, uint32_t seq, uint32_t end)
{
    uint32_t k[MAX_SEQS] = {0};
    if (w->seqs[seq].done >= end) return;
    k[seq] = end - w->seqs[seq].done;
    step(w, k);
}

/* Parents first, each as far as others share it; then all together, in steps of few or many
 * rows. */
static void run_together(struct world *w, uint64_t *seed)
{
    uint32_t k[MAX_SEQS], left = 1, most = 1 + tiny_rand(seed) % 24;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        run_alone(w, w->seqs[s].parent, w->seqs[s].shared);
    while (left) {
        left = 0;
        for (uint32_t s = 0; s < w->n_seqs; s++) {
            const struct member *m = &w->seqs[s];
            uint32_t want = tiny_rand(seed) % 5 ? 1 : 1 + tiny_rand(seed) % most;
            k[s] = CN_MIN(m->n - m->done, want);
            left += k[s];
        }
        if (left) step(w, k);
    }
}

/* clang-format off */
static const struct attn_shape shapes[] = {
    {.name = "all", .kv_heads = 2, .heads = 6, .k_dim = 32, .v_dim = 48, .n = 700},
    {.name = "odd", .kv_heads = 1, .heads = 7, .k_dim = 23, .v_dim = 37, .sinks = true, .n = 300},
    {.name = "window", .span = KR_SPAN_WINDOW, .tokens = 300, .kv_heads = 1, .heads = 3,
     .k_dim = 32, .v_dim = 32, .n = 700},
    {.name = "long window", .span = KR_SPAN_WINDOW, .tokens = 1000, .kv_heads = 2, .heads = 2,
     .k_dim = 8, .v_dim = 8, .softcap = 5, .n = 300},
    {.name = "chunk", .span = KR_SPAN_CHUNK, .tokens = 520, .kv_heads = 1, .heads = 5, .k_dim = 16,
     .v_dim = 16, .n = 650},
    {.name = "latent", .kv_heads = 1, .heads = 16, .k_dim = 48, .v_dim = 32, .latent = true,
     .n = 500},
    {.name = "latent, many heads", .kv_heads = 1, .heads = 100, .k_dim = 24, .v_dim = 16,
     .latent = true, .n = 300},
    {.name = "chosen", .kv_heads = 1, .heads = 4, .k_dim = 24, .v_dim = 24, .top_k = 40,
     .sel_heads = 2, .sel_dim = 16, .n = 400},
};
/* clang-format on */
static const enum kr_type kv_types[] = {KR_F16, KR_Q8_0, KR_Q4_0};
static const enum kr_isa isas[] = {KR_ISAS};

/* Families of sequences out of a die: shared wholly or in part, one within the other, not at
 * all. */
static void add_family(struct world *w, uint64_t seed, uint32_t n_seqs, uint32_t longest,
                       bool share)
{
    w->n_seqs = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t parent = s, shared = 0, own = 1 + tiny_rand(&seed) % 40;
        uint32_t base = 1 + tiny_rand(&seed) % longest, kind = tiny_rand(&seed) % 8;
        if (s && kind) {
            parent = kind < 5 ? 0 : tiny_rand(&seed) % s;
            shared = w->seqs[parent].n - tiny_rand(&seed) % CN_MIN(w->seqs[parent].n, 200u);
            base = shared;
        }
        if (base + own > MAX_TOKENS) own = 1, base = CN_MIN(base, MAX_TOKENS - 1u);
        add_member(w, parent, CN_MIN(shared, base), base + own, share);
    }
}

static void check_family(const struct attn_shape *shape, enum kr_type kv, enum kr_isa isa,
                         uint64_t seed)
{
    static struct world a, b;
    uint64_t dice = seed;
    uint32_t n_seqs = 2 + tiny_rand(&dice) % (isa == KR_ISA_GENERIC ? 4 : MAX_SEQS - 2);
    uint32_t longest = isa == KR_ISA_GENERIC ? 200 : 1100, bt = tiny_rand(&dice) % 2 ? 16 : 32;
    if (!open_world(&a, shape, kv, isa, 1 + tiny_rand(&dice) % 3, bt)) return;
    assert_true(open_world(&b, shape, kv, isa, 1, bt));
    add_family(&a, seed + 1, n_seqs, longest, true);
    add_family(&b, seed + 1, n_seqs, longest, false);
    run_together(&a, &dice);
    for (uint32_t s = 0; s < n_seqs; s++) {
        run_alone(&b, s, b.seqs[s].n);
        uint32_t from = a.seqs[s].shared / bt * bt; /* before, it made none itself */
        size_t at = (size_t)from * a.c.out, n = (size_t)(a.seqs[s].n - from) * a.c.out;
        for (size_t i = at; i < at + n; i++)
            if (memcmp(&a.seqs[s].out[i], &b.seqs[s].out[i], sizeof(float)))
                fail_msg("%s, %s, isa %d, seed %llu: sequence %u row %zu value %zu: %.9g, not %.9g",
                         shape->name, kr_type_info((uint32_t)kv)->name, (int)isa,
                         (unsigned long long)seed, s, i / a.c.out, i % a.c.out,
                         (double)a.seqs[s].out[i], (double)b.seqs[s].out[i]);
    }
    close_world(&a);
    close_world(&b);
}

static void test_same_bytes(void **state)
{
    bool all = getenv("CONIFER_LONG");
    uint32_t share = 3 * attn_case_share();
    for (uint32_t i = 0; i < CN_ARRAY_LEN(shapes); i++)
        for (uint32_t k = 0; k < CN_ARRAY_LEN(kv_types); k++)
            for (uint32_t a = 0; a < CN_ARRAY_LEN(isas); a++)
                if (all || (i + k + a) % share == 0 || (a == 2 && k == 0 && share == 3))
                    for (uint32_t turn = 0; turn < (all ? 10u : 1u); turn++)
                        check_family(&shapes[i], kv_types[k], isas[a],
                                     100 * i + 10 * k + a + turn * 1000);
}

/* ---- what is read ---------------------------------------------------------------------------- */

static uint64_t kv_bytes(const struct world *w)
{
    struct kr_counters c;
    kr_exec_counters(w->exec, &c);
    return c.kv_bytes;
}

/* One row of each of n sequences that share `shared` of their `context` tokens. */
static uint64_t bytes_of_step(enum kr_isa isa, uint32_t n, uint32_t shared, uint32_t context,
                              bool share)
{
    static struct world w;
    static const struct attn_shape shape = {
        .name = "read", .kv_heads = 2, .heads = 6, .k_dim = 32, .v_dim = 32, .n = 300};
    uint32_t k[MAX_SEQS];
    if (!open_world(&w, &shape, KR_F16, isa, 2, 16)) return 0;
    w.n_seqs = 0;
    for (uint32_t i = 0; i < n; i++) {
        add_member(&w, 0, shared, context, share);
        k[i] = 1;
    }
    for (uint32_t i = 0; i < n; i++)
        run_alone(&w, i, context - 1);
    uint64_t was = kv_bytes(&w);
    step(&w, k);
    was = kv_bytes(&w) - was;
    close_world(&w);
    return was;
}

static void test_read_once(void **state)
{
    enum { TOKEN = 2 * 2 * (32 + 32), N = 16 }; /* bytes of a position: two heads of f16 */
    for (uint32_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
        if (!bytes_of_step(isas[i], 1, 0, 20, false)) continue;
        assert_int_equal(bytes_of_step(isas[i], N, 256, 270, false), N * 270 * TOKEN);
        /* Ranges of 128 keys that are shared are read once, the rest by each. */
        assert_int_equal(bytes_of_step(isas[i], N, 256, 270, true), (256 + N * 14) * TOKEN);
        if (isas[i] == KR_ISA_GENERIC) continue;
        assert_int_equal(bytes_of_step(isas[i], N, 1100, 1120, true), (1024 + N * 96) * TOKEN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
