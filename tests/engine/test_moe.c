/* Bytes of weights that a step touches, counted by the engine, for every family with experts: those
 * of the active experts, each once however many rows go there, and nothing of the others. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { ROWS = 8 };

/* ROWS sequences of one token each; the experts' bytes, and in *dense those of all other
 * weights. */
static uint64_t touched(struct golden *g, const uint32_t *ids, uint32_t n, uint64_t *dense)
{
    const struct kr_exec_info *info = kr_exec_info(g->exec);
    uint32_t tables[ROWS][8];
    const uint32_t *groups[ROWS][8];
    struct kr_seq seqs[ROWS];
    struct kr_row rows[ROWS];
    struct kr_counters was, now;
    struct cn_error err;
    uint64_t ticket;
    float *logits;

    assert_true(info->n_groups <= 8);
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < info->n_groups; i++) {
            tables[r][i] = i << KR_BLOCK_INDEX_BITS | r;
            groups[r][i] = &tables[r][i];
        }
        seqs[r] = (struct kr_seq){.tables = groups[r]};
        rows[r] = (struct kr_row){.seq = r, .src = KR_ROW_TOKEN, .logits = true, .token = ids[r]};
    }
    struct kr_batch b = {.n_rows = n, .n_seqs = n, .rows = rows, .seqs = seqs};
    kr_exec_counters(g->exec, &was);
    if (kr_launch(g->exec, g->mem, &b, &ticket, &err)) fail_msg("launch: %s", err.message);
    if (kr_collect(g->exec, ticket, &logits, &err)) fail_msg("collect: %s", err.message);
    kr_exec_counters(g->exec, &now);
    *dense = now.weight_bytes - was.weight_bytes;
    return now.expert_bytes - was.expert_bytes;
}

static void check(const char *name, enum kr_isa isa, uint32_t threads)
{
    char path[512]; /* a fixture, or the oracle's */
    struct golden g;
    uint32_t alike[ROWS], unlike[ROWS];
    uint64_t dense, again;

    snprintf(path, sizeof(path), CONIFER_SOURCE_ROOT "/tests/engine/fixtures/%s.gguf", name);
    if (access(path, R_OK))
        snprintf(path, sizeof(path), "%s", golden_oracle("models", name, ".gguf"));
    if (golden_open(&g, path, isa, threads, 512, KR_F16) == CN_EUNSUPP) return;
    const struct kr_exec_info *x = kr_exec_info(g.exec);
    uint64_t one = x->expert_bytes * x->n_experts_used, all = x->expert_bytes * x->n_experts;
    assert_true(x->n_experts_used > 0 && x->n_experts > x->n_experts_used);
    for (uint32_t r = 0; r < ROWS; r++) {
        alike[r] = 40;
        unlike[r] = 40 + 23 * r;
    }
    assert_int_equal(touched(&g, alike, 1, &dense), one);
    assert_true(dense > 0 && dense <= x->weight_bytes); /* that counts norms and biases too */
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_int_equal(touched(&g, unlike + r, 1, &again), one);
        assert_int_equal(again, dense);
    }
    assert_int_equal(touched(&g, alike, ROWS, &again), one);
    assert_int_equal(again, dense);
    uint64_t many = touched(&g, unlike, ROWS, &again);
    assert_int_equal(again, dense);
    assert_true(many > one && many <= CN_MIN(one * ROWS, all));
    print_message("%s, %s: %u of %u experts: %.1f %% of their bytes for a row, %.1f %% for %u\n",
                  name, kr_isa_name(isa), x->n_experts_used, x->n_experts,
                  100.0 * (double)one / (double)all, 100.0 * (double)many / (double)all, ROWS);
    golden_close(&g);
}

static void test_share(void **state)
{
    static const char *const models[] = {
        "mixtral",       "qwen2moe",      "qwen3moe",  "granitemoe",     "llama4",
        "gpt-oss",       "lfm2moe",       "jamba",     "granitehybrid",  "qwen3next",
        "qwen35moe",     "deepseek2",     "deepseek3", "deepseek32-dsa", "gemma4-moe",
        "llama4-chunks", "deepseek2-lite"};
    for (size_t i = 0; i < CN_ARRAY_LEN(models); i++)
        for (enum kr_isa isa = KR_ISA_GENERIC; isa < KR_N_ISAS; isa++)
            check(models[i], isa, 1 + isa % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share)};
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
