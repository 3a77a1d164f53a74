/* profile: how long each stage of the steps took, added up by what the stage does. For benchmarks;
 * off it costs a test a step. Engine thread. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

struct kr_profile {
    uint64_t steps, start;
    uint64_t *ends, *ns; /* by stage: of the step at hand; in all */
};

/* Stages that do the same. */
struct kind {
    char what[160];
    uint32_t n;
    uint64_t ns;
};

static size_t n_stages(const struct kr_cpu_exec *x)
{
    return KR_STAGES_A_LEVEL * (size_t)x->n_levels;
}

static void profile_free(struct kr_cpu_exec *x)
{
    if (!x->profile) return;
    kr_pool_note_ends(x->dev->pool, NULL);
    free(x->profile->ends);
    free(x->profile->ns);
    free(x->profile);
    x->profile = NULL;
}

int kr_cpu_profile(struct kr_exec *base, bool on)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    profile_free(x);
    if (!on) return 0;
    x->profile = cn_calloc(1, sizeof *x->profile);
    if (!x->profile) return CN_ENOMEM;
    x->profile->ends = cn_calloc(n_stages(x), sizeof *x->profile->ends);
    x->profile->ns = cn_calloc(n_stages(x), sizeof *x->profile->ns);
    if (x->profile->ends && x->profile->ns) return 0;
    profile_free(x);
    return CN_ENOMEM;
}

void kr_cpu_profile_begin(struct kr_cpu_exec *x, uint32_t n_stages)
{
    struct kr_profile *p = x->profile;
    memset(p->ends, 0, n_stages * sizeof *p->ends);
    kr_pool_note_ends(x->dev->pool, p->ends);
    p->start = cn_now_ns();
}

void kr_cpu_profile_end(struct kr_cpu_exec *x, uint32_t n_stages)
{
    struct kr_profile *p = x->profile;
    uint64_t before = p->start;
    for (uint32_t i = 0; i < n_stages; i++) {
        if (!p->ends[i]) continue;
        p->ns[i] += p->ends[i] - before;
        before = p->ends[i];
    }
    kr_pool_note_ends(x->dev->pool, NULL);
    p->steps++;
}

static void name_step(const struct kr_cpu_exec *x, const struct kr_step *s, struct cn_buf *out)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    switch (s->kind) {
    case KR_STEP_QUANTIZE:
        cn_buf_puts(out, " quantize");
        break;
    case KR_STEP_ANGLES:
        cn_buf_puts(out, " angles");
        break;
    case KR_STEP_GROUP:
        cn_buf_puts(out, " group");
        break;
    case KR_STEP_GATHER:
        cn_buf_puts(out, " gather");
        break;
    case KR_STEP_OP:
        cn_buf_printf(out, " %s", kr_op_names[op->kind]);
        if (!kr_is_product(op)) break;
        cn_buf_printf(out, "(%s %llux%llu)", kr_type_info((uint32_t)op->w.type)->name,
                      (unsigned long long)op->w.ne[1], (unsigned long long)op->w.ne[0]);
        break;
    }
}

static void name_products(const struct kr_cpu_exec *x, const struct kr_level *l, struct cn_buf *out)
{
    for (uint32_t i = l->heavy_begin; i < l->heavy_end; i++)
        if (kr_is_product(&x->plan->ops[x->heavy_steps[i].op]))
            name_step(x, &x->heavy_steps[i], out);
}

/* What a stage does, cut to the room there is. */
static int name_stage(const struct kr_cpu_exec *x, uint32_t stage, char *what, size_t room)
{
    const struct kr_level *l = &x->levels[stage / KR_STAGES_A_LEVEL];
    const bool heavy = stage % KR_STAGES_A_LEVEL == KR_STAGE_HEAVY;
    const struct kr_step *steps = heavy ? x->heavy_steps : x->row_steps;
    uint32_t i = heavy ? l->heavy_begin : l->row_begin, end = heavy ? l->heavy_end : l->row_end;
    struct cn_buf out;
    cn_buf_init(&out, 0);
    if (x->now.chain_parts && l->chain_rows && stage % KR_STAGES_A_LEVEL == KR_STAGE_ROWS) {
        cn_buf_puts(&out, "by rows:");
        for (uint32_t k = 0; k < l->chain_heavy; k++)
            name_products(x, &l[k], &out);
        i = end;
    } else if (stage % KR_STAGES_A_LEVEL == KR_STAGE_SHARED) {
        cn_buf_puts(&out, "shared keys");
        i = end;
    } else {
        cn_buf_puts(&out, heavy ? "outputs:" : "rows:");
    }
    for (; i < end; i++)
        name_step(x, &steps[i], &out);
    bool failed = out.failed;
    if (!failed) {
        size_t n = CN_MIN(out.len, room - 1);
        memcpy(what, out.data, n);
        what[n] = 0;
    }
    cn_buf_fini(&out);
    return failed ? CN_ENOMEM : 0;
}

static int by_time(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : strcmp(x->what, y->what);
}

int kr_cpu_profile_text(const struct kr_exec *base, struct cn_buf *out)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    const struct kr_profile *p = x->profile;
    uint32_t n = 0;
    uint64_t all = 0;
    if (!p || !p->steps) return 0;
    struct kind *kinds = cn_calloc(n_stages(x), sizeof *kinds);
    if (!kinds) return CN_ENOMEM;
    for (uint32_t stage = 0; stage < n_stages(x); stage++) {
        struct kind *k = &kinds[n];
        if (!p->ns[stage]) continue;
        if (name_stage(x, stage, k->what, sizeof k->what)) {
            free(kinds);
            return CN_ENOMEM;
        }
        for (k = kinds; strcmp(k->what, kinds[n].what); k++) {
        }
        if (k == &kinds[n]) n++;
        k->n++;
        k->ns += p->ns[stage];
        all += p->ns[stage];
    }
    qsort(kinds, n, sizeof *kinds, by_time);
    cn_buf_printf(out, "%llu steps, %.3f ms each\n", (unsigned long long)p->steps,
                  (double)all * 1e-6 / (double)p->steps);
    for (uint32_t i = 0; i < n; i++)
        cn_buf_printf(out, "%5.1f %% %9.1f us %4u x %8.2f us  %s\n",
                      100.0 * (double)kinds[i].ns / (double)all,
                      (double)kinds[i].ns * 1e-3 / (double)p->steps, kinds[i].n,
                      (double)kinds[i].ns * 1e-3 / (double)p->steps / kinds[i].n, kinds[i].what);
    free(kinds);
    return out->failed ? CN_ENOMEM : 0;
}
