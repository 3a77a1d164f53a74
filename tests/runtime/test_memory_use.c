/* Blocks and states in use, at every step, are those of the arithmetic: of a sequence whose step
 * has rows [pos, end) a group of layers that see everything holds ceil(end / 16) blocks, one with a
 * window those from the first position that row pos sees, one with a state one block; what a copy
 * before the step reads or writes beside that is in use too; nothing else is. usage:
 * test_memory_use MODEL [windows: it has some]. Exit 77 = skipped.
 *
 * kr_launch and kr_kv_copy are wrapped: the counting is done on the engine thread. A device that
 * passes calls on to another, on a thread of its own, is counted where the runtime calls it. */
#include "tests/runtime/harness.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_SEQS = 16, MAX_COPIES = 64, ROWS = 48, ANSWER = 70 };

static const char *model;
static bool shared_prompt;
static const char one_step[] = "the arithmetic is that of one step in flight";

/* The engine thread's, while it runs. */
static struct {
    struct rt *rt;
    const struct kr_exec_info *x;
    bool off; /* something has ended: who holds what is not known any more */
    struct held {
        const uint32_t *const *tables;
        uint64_t pos, end;
    } seqs[MAX_SEQS];
    uint32_t n_seqs;
    struct { uint32_t group, dst, src; } copies[MAX_COPIES];
    uint32_t n_copies;
    uint64_t steps, most_blocks[8], most_seqs; /* of the group, of one sequence; running */
    char problem[256];
} w;

/* ---- the arithmetic -------------------------------------------------------------------------- */

static uint64_t first_seen(const struct kr_kv_group *g, uint64_t pos)
{
    uint64_t n = g->window_tokens;
    if (g->span == KR_SPAN_WINDOW) return pos + 1 > n ? pos + 1 - n : 0;
    return g->span == KR_SPAN_CHUNK ? pos / n * n : 0;
}

static uint64_t blocks_held(const struct kr_kv_group *g, const struct held *s)
{
    if (g->span == KR_SPAN_STATE) return 1;
    uint64_t first = first_seen(g, s->pos) / H_BLOCK_TOKENS;
    return (s->end + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS - first;
}

/* Blocks of the sequence's table that are there. */
static uint64_t blocks_there(const struct kr_kv_group *g, uint32_t index, const struct held *s)
{
    uint64_t n = g->span == KR_SPAN_STATE ? 1 : (s->end + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS;
    uint64_t there = 0;
    for (uint64_t i = 0; i < n; i++)
        there += s->tables[index][i] != KV_NO_BLOCK;
    return there;
}

/* Of the first n_seqs sequences. */
static bool in_tables_of(uint32_t group, uint32_t block, uint32_t n_seqs)
{
    bool state = w.x->groups[group].span == KR_SPAN_STATE;
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint64_t n = state ? 1 : (w.seqs[i].end + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS;
        for (uint64_t k = 0; k < n; k++)
            if (w.seqs[i].tables[group][k] == block) return true;
    }
    return false;
}

/* Blocks that one of the sequences before it holds too: those of the prompt of both. */
static uint64_t blocks_shared(uint32_t g, uint32_t index)
{
    const struct held *s = &w.seqs[index];
    uint64_t n = (s->end + H_BLOCK_TOKENS - 1) / H_BLOCK_TOKENS, shared = 0;
    if (w.x->groups[g].span == KR_SPAN_STATE) return 0;
    for (uint64_t k = first_seen(&w.x->groups[g], s->pos) / H_BLOCK_TOKENS; k < n; k++)
        shared += in_tables_of(g, s->tables[g][k], index);
    if (shared && !shared_prompt && !w.problem[0])
        snprintf(w.problem, sizeof w.problem, "two sequences with nothing in common share blocks");
    return shared;
}

static void check_seq(const struct held *s)
{
    for (uint32_t g = 0; g < w.x->n_groups; g++) {
        uint64_t want = blocks_held(&w.x->groups[g], s), got = blocks_there(&w.x->groups[g], g, s);
        w.most_blocks[g] = CN_MAX(w.most_blocks[g], got);
        if (want != got && !w.problem[0])
            snprintf(w.problem, sizeof w.problem,
                     "rows %llu to %llu: %llu blocks in group %u instead of %llu",
                     (unsigned long long)s->pos, (unsigned long long)s->end,
                     (unsigned long long)got, g, (unsigned long long)want);
    }
}

/* A block of copy i that no sequence holds, and no copy before it has. */
static bool is_beside(uint32_t i, uint32_t block)
{
    uint32_t g = w.copies[i].group;
    for (uint32_t k = 0; k < i; k++)
        if (w.copies[k].group == g && (w.copies[k].dst == block || w.copies[k].src == block))
            return false;
    return !in_tables_of(g, block, w.n_seqs);
}

static void check_pool(void)
{
    struct kv_stats kv;
    uint64_t want = 0;
    kv_pool_stats(w.rt->groups[0].pool, &kv);
    for (uint32_t g = 0; g < w.x->n_groups; g++)
        for (uint32_t i = 0; i < w.n_seqs; i++)
            want += (blocks_held(&w.x->groups[g], &w.seqs[i]) - blocks_shared(g, i)) *
                    w.x->groups[g].block_bytes;
    for (uint32_t i = 0; i < w.n_copies; i++)
        want += (is_beside(i, w.copies[i].dst) + is_beside(i, w.copies[i].src)) *
                w.x->groups[w.copies[i].group].block_bytes;
    uint64_t got = kv.bytes[KV_FILLING] + kv.bytes[KV_COPYING] + kv.bytes[KV_READY];
    if (want != got && !w.problem[0])
        snprintf(w.problem, sizeof w.problem,
                 "step %llu of %u sequences: %llu bytes in use instead of %llu",
                 (unsigned long long)w.steps, w.n_seqs, (unsigned long long)got,
                 (unsigned long long)want);
}

/* ---- what the engine does -------------------------------------------------------------------- */

int __real_kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                      uint32_t src, uint32_t n_tokens);
int __wrap_kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                      uint32_t src, uint32_t n_tokens);
int __real_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);

int __wrap_kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                      uint32_t src, uint32_t n_tokens)
{
    if (kr_exec_info(x) == w.x && w.n_copies < MAX_COPIES) {
        w.copies[w.n_copies].group = group;
        w.copies[w.n_copies].dst = dst;
        w.copies[w.n_copies++].src = src;
    }
    return __real_kr_kv_copy(x, m, group, dst, src, n_tokens);
}

static struct held *held_of(const uint32_t *const *tables)
{
    uint32_t i = 0;
    while (i < w.n_seqs && w.seqs[i].tables != tables)
        i++;
    if (i == w.n_seqs) w.n_seqs = CN_MIN(w.n_seqs + 1, (uint32_t)MAX_SEQS);
    i = CN_MIN(i, (uint32_t)MAX_SEQS - 1);
    w.seqs[i].tables = tables;
    return &w.seqs[i];
}

int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err)
{
    if (kr_exec_info(x) != w.x) return __real_kr_launch(x, mem, b, ticket, err);
    for (uint32_t i = 0; i < w.n_seqs; i++) /* without rows in this step: as after its last one */
        w.seqs[i].pos = w.seqs[i].end;
    for (uint32_t i = 0; !w.off && i < b->n_rows; i++) {
        struct held *s = held_of(b->seqs[b->rows[i].seq].tables);
        uint64_t pos = b->rows[i].pos;
        if (!i || b->rows[i - 1].seq != b->rows[i].seq) s->pos = pos;
        s->end = pos + 1;
    }
    if (!w.off) {
        for (uint32_t i = 0; i < w.n_seqs; i++)
            check_seq(&w.seqs[i]);
        check_pool();
        w.steps++;
        w.most_seqs = CN_MAX(w.most_seqs, w.n_seqs);
    }
    w.n_copies = 0;
    return __real_kr_launch(x, mem, b, ticket, err);
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct ask {
    size_t n_prompt;
    uint32_t n, at_once, choices;
};

static void make(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    const struct ask *a = arg;
    uint32_t n_vocab = (uint32_t)eng_model_info(rt_model(h->rt))->n_vocab;
    struct rt_request q = {
        .tenant = i, .priority = RT_NORMAL, .n = a->choices, .max_tokens = ANSWER};
    q.n_prompt = a->n_prompt + (size_t)i * 5;
    q.prompt = cn_malloc_array(q.n_prompt, sizeof *q.prompt);
    for (uint32_t k = 0; k < q.n_prompt; k++)
        q.prompt[k] = ((k + i * 7919) * 2654435761u >> 9) % n_vocab;
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    *out = q;
}

/* On the engine thread: after the first end the sequences that are held are not all known. */
static void turn(struct h_drive *d, const struct rt_event *e)
{
    const struct ask *a = d->arg;
    if (e->kind == RT_EV_CHOICE_END) w.off = true;
    while (d->sent < d->n && d->sent - d->ended < a->at_once && !d->failed)
        h_send(d);
}

static void run(struct h *h, const struct ask *a)
{
    struct h_result *r = cn_calloc(a->n, sizeof *r);
    struct h_drive d = {
        .h = h, .n = a->n, .make = make, .arg = (void *)a, .turn = turn, .results = r};
    memset(&w, 0, sizeof w);
    w.rt = h->rt;
    w.x = eng_model_info(rt_model(h->rt))->exec;
    h_drive(&d);
    if (w.problem[0]) fail_msg("%s", w.problem);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_int_equal(r[i].code, 0);
        assert_int_equal(r[i].usage.completion_tokens, ANSWER * a->choices);
        h_result_fini(&r[i]);
    }
    h_settle(h);
    free(r);
}

static struct h_setup setup(void)
{
    return (struct h_setup){.model = model,
                            .threads = 1,
                            .n_tenants = MAX_SEQS,
                            .context = 512,
                            .max_batch_rows = ROWS,
                            .kv_bytes = 64u << 20,
                            .step_target_ms = 60000};
}

/* The largest window or chunk; 0: there is none. */
static uint32_t window_of(const struct h *h)
{
    const struct kr_exec_info *x = eng_model_info(rt_model(h->rt))->exec;
    uint32_t most = 0;
    for (uint32_t g = 0; g < x->n_groups; g++)
        most = CN_MAX(most, x->groups[g].window_tokens);
    return most;
}

/* Computed, and found again in the cache. */
static void test_one(void **state)
{
    DEV_CPU_ONLY(one_step);
    struct h_setup s = setup();
    struct h h;
    h_start(&h, &s);
    struct ask a = {.n_prompt = 330, .n = 1, .at_once = 1, .choices = 1};
    for (int again = 0; again < 2; again++) {
        double computed = h_metric(&h, CN_M_prompt_tokens_computed);
        run(&h, &a);
        computed = h_metric(&h, CN_M_prompt_tokens_computed) - computed;
        assert_true(again ? computed < 32 : computed == 330);
        assert_true(w.steps >= (again ? ANSWER : 330 / ROWS + ANSWER));
    }
    h_stop(&h);
}

static void test_several(void **state)
{
    DEV_CPU_ONLY(one_step);
    struct h_setup s = setup();
    struct h h;
    h_start(&h, &s);
    struct ask a = {.n_prompt = 100, .n = 8, .at_once = 8, .choices = 1};
    run(&h, &a);
    assert_int_equal(w.most_seqs, 8);
    assert_true(w.steps > ANSWER / 2);
    h_stop(&h);
}

/* Memory for one window and the rows of a step is enough for ten windows, and of it no more is used
 * than for two: of each such group the blocks that the window and the rows can touch. */
static void test_ten_windows(void **state)
{
    DEV_CPU_ONLY(one_step);
    struct h_setup s = setup();
    struct h h;
    h_start(&h, &s);
    uint64_t window = window_of(&h), most[2][8];
    h_stop(&h);
    assert_true(window > 0);
    s.max_batch_rows = H_BLOCK_TOKENS;
    for (int k = 0; k < 2; k++) {
        struct ask a = {.n_prompt = (k ? 10 : 2) * window, .n = 1, .at_once = 1, .choices = 1};
        s.kv_bytes = h_least_memory(&s, a.n_prompt + ANSWER);
        h_start(&h, &s);
        run(&h, &a);
        memcpy(most[k], w.most_blocks, sizeof most[k]);
        for (uint32_t g = 0; k && g < w.x->n_groups; g++) {
            const struct kr_kv_group *kg = &w.x->groups[g];
            uint64_t rows = H_BLOCK_TOKENS, span = kg->window_tokens - 1ull + rows;
            if (!kg->window_tokens) continue;
            assert_int_equal(most[0][g], most[1][g]);
            /* `span` positions, of which the first may be the last of its block */
            assert_true(most[1][g] <= (span + 2 * (H_BLOCK_TOKENS - 1)) / H_BLOCK_TOKENS);
        }
        /* nor is there more memory, but for what else grows and whole slabs of each group */
        struct rt_memory_plan plan;
        const struct eng_model_info *info = eng_model_info(rt_model(h.rt));
        assert_int_equal(rt_memory_plan(info->exec, H_BLOCK_TOKENS, info->context, 256, s.kv_bytes,
                                        0, false, &plan, NULL),
                         0);
        uint64_t held = 0;
        for (uint32_t g = 0; g < w.x->n_groups; g++)
            held += w.most_blocks[g] * w.x->groups[g].block_bytes;
        print_message("%llu tokens: %llu bytes held at most, in a pool of %llu\n",
                      (unsigned long long)a.n_prompt + ANSWER, (unsigned long long)held,
                      (unsigned long long)plan.total_bytes);
        assert_true(held <= plan.total_bytes);
        h_stop(&h);
    }
}

/* Each choice has a state of its own, and what the prompt's whole blocks hold is there once. */
static void test_choices(void **state)
{
    DEV_CPU_ONLY(one_step);
    struct h_setup s = setup();
    struct h h;
    h_start(&h, &s);
    struct ask a = {.n_prompt = 100, .n = 1, .at_once = 1, .choices = 4};
    shared_prompt = true;
    run(&h, &a);
    shared_prompt = false;
    assert_int_equal(w.most_seqs, 4);
    h_stop(&h);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one), cmocka_unit_test(test_several),
                                       cmocka_unit_test(test_choices)};
    const struct CMUnitTest windows[] = {cmocka_unit_test(test_ten_windows)};
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (argc > 2) failed += cmocka_run_group_tests(windows, NULL, NULL);
    return failed;
}
