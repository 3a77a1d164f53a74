/* Where a step's values lie: no two that are in use at one time share memory, for every family and
 * both forms of a plan. When each is used is taken from the ops here, not from what the layout
 * notes beside a slot; threads may be anywhere within a level, and anywhere within a chain of
 * levels. */
#include "golden.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"

struct life {
    uint32_t first, last; /* levels, or the first of their chains */
    bool used;
};
struct lives {
    const struct kr_cpu_exec *x;
    struct life *of; /* by slot */
    uint32_t *chain; /* by level: the last level that a thread may be at while another is here */
    uint32_t *begin; /* by level: the first such */
};

static void touch(struct lives *v, uint32_t slot, uint32_t level)
{
    struct life *l = &v->of[slot];
    assert_true(slot < v->x->n_slots);
    if (!l->used) *l = (struct life){v->begin[level], v->chain[level], true};
    l->first = CN_MIN(l->first, v->begin[level]);
    l->last = CN_MAX(l->last, v->chain[level]);
}

static void touch_value(struct lives *v, int value, uint32_t level)
{
    if (value >= 0) touch(v, (uint32_t)value, level);
}

static void touch_op(struct lives *v, const struct kr_step *s, uint32_t level)
{
    const struct kr_plan_op *op = &v->x->plan->ops[s->op];
    bool product = op->kind == KR_OP_MATMUL || op->kind == KR_OP_HEAD_MATMUL ||
                   op->kind == KR_OP_EXPERT_MATMUL;
    bool quantised = product && s->slot;
    if (s->slot) touch(v, s->slot, level);
    for (int i = quantised; i < KR_OP_INPUTS; i++)
        touch_value(v, op->in[i], level);
    touch_value(v, op->out, level);
}

static void touch_step(struct lives *v, const struct kr_step *s, uint32_t level)
{
    switch (s->kind) {
    case KR_STEP_OP:
        touch_op(v, s, level);
        break;
    case KR_STEP_QUANTIZE:
        touch(v, s->op, level);
        touch(v, s->slot, level);
        break;
    case KR_STEP_ANGLES:
        touch(v, s->slot, level);
        break;
    case KR_STEP_GROUP:
        touch_value(v, v->x->plan->ops[s->op].out, level);
        break;
    case KR_STEP_GATHER:
        touch(v, s->from, level);
        touch(v, s->slot, level);
        break;
    }
}

static void find_lives(struct lives *v)
{
    const struct kr_cpu_exec *x = v->x;
    for (uint32_t l = 0; l < x->n_levels; l++)
        v->begin[l] = v->chain[l] = l;
    for (uint32_t l = 0; l < x->n_levels; l++)
        for (uint32_t k = 0; k < x->levels[l].chain_rows; k++) {
            v->begin[l + k] = l;
            v->chain[l + k] = l + x->levels[l].chain_rows - 1;
        }
    for (uint32_t l = 0; l < x->n_levels; l++) {
        for (uint32_t i = x->levels[l].row_begin; i < x->levels[l].row_end; i++)
            touch_step(v, &x->row_steps[i], l);
        for (uint32_t i = x->levels[l].heavy_begin; i < x->levels[l].heavy_end; i++)
            touch_step(v, &x->heavy_steps[i], l);
    }
    v->of[x->plan->output].last = UINT32_MAX; /* read when the step is done */
}

/* How many pairs are in use together. */
static uint64_t check_slots(const struct kr_cpu_exec *x, const char *name)
{
    struct lives v = {x, calloc(x->n_slots, sizeof *v.of), calloc(x->n_levels, sizeof *v.chain),
                      calloc(x->n_levels, sizeof *v.begin)};
    uint64_t pairs = 0;
    assert_true(v.of && v.chain && v.begin);
    find_lives(&v);
    for (uint32_t i = 0; i < x->n_slots; i++) {
        const struct kr_slot *a = &x->slots[i];
        if (!v.of[i].used) continue;
        assert_true(a->row_floats && a->stride <= a->row_floats);
        assert_true(a->at + a->row_floats <= x->row_floats[a->domain]);
        for (uint32_t k = 0; k < i; k++) {
            const struct kr_slot *b = &x->slots[k];
            if (!v.of[k].used || a->domain != b->domain) continue;
            if (v.of[i].first > v.of[k].last || v.of[k].first > v.of[i].last) continue;
            pairs++;
            if (a->at < b->at + b->row_floats && b->at < a->at + a->row_floats)
                fail_msg("%s: slots %u (levels %u to %u) and %u (%u to %u) share memory", name, i,
                         v.of[i].first, v.of[i].last, k, v.of[k].first, v.of[k].last);
        }
    }
    free(v.of);
    free(v.chain);
    free(v.begin);
    return pairs;
}

/* 0 when the machine lacks the ISA. */
static uint64_t check_model(const char *path, const char *name, enum kr_isa isa)
{
    struct kr_cpu_opts cpu = {.isa = isa, .n_threads = 2};
    struct eng_model_opts opts = {
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 64, .max_logit_rows = 64}};
    struct eng_model *m = NULL;
    struct cn_error err = {0};
    int rc = kr_cpu_new(&cpu, &opts.device, &err);
    if (rc == CN_EUNSUPP) return 0;
    if (!rc) rc = eng_model_measure(path, &opts, &m, &err);
    if (rc) fail_msg("%s: %s", name, err.message);
    uint64_t pairs = check_slots((const struct kr_cpu_exec *)eng_model_exec(m), name);
    eng_model_unref(m);
    kr_device_free(opts.device);
    return pairs;
}

static void test_every_family(void **state)
{
    static const enum kr_isa isas[] = {KR_ISA_GENERIC, KR_ISA_AUTO};
    const char *one = golden_oracle("models", "llama3-gqa", ".gguf");
    DEV_CPU_ONLY("reads the CPU's scratch");
    char folder[512], path[1024];
    struct dirent *e;
    uint32_t n = 0;
    if (!one) return;
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(one, '/') - one), one);
    DIR *d = opendir(folder);
    assert_non_null(d);
    while ((e = readdir(d))) {
        size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 5, ".gguf")) continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++)
            assert_true(check_model(path, e->d_name, isas[i]) > 10);
        n++;
    }
    closedir(d);
    assert_in_range(n, 20, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
