/* Cost per token must not grow with what does not run: waiting requests, cached blocks, tenants,
 * open sequences' history. A device that does nothing; work of the scheduler and pool per token, in
 * basic blocks (work.h), at one size and at hundreds of times that size. Counted, so that the
 * machine has no part in it, and each bound is a fifth above what is counted now: 1.00, 1.00,
 * and 1.31 for tenants, by the depth of their heap. (Time, with the caches in it:
 * runtime/test_slope.c.) */
#include "scheduler/scheduler.h"
#include "tests/scheduler/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS   1000
#define STREAMS 16

struct null_dev {
    struct sch_row_result rows[512];
    uint32_t n;
    uint64_t ticket, clock, tokens;
};

static int launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct null_dev *d = self;

    d->n = step->n_sample;
    *ticket = ++d->ticket;
    return 0;
}

static int collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct null_dev *d = self;

    d->clock += 1000000;
    for (uint32_t i = 0; i < d->n; i++)
        d->rows[i] = (struct sch_row_result){.token = (uint32_t)(d->ticket + i)};
    *out = (struct sch_step_result){d->n, d->rows};
    return 0;
}

static uint64_t now(void *self)
{
    return ((struct null_dev *)self)->clock;
}

static enum sch_verdict on_token(void *arg, const struct sch_token *t)
{
    ((struct null_dev *)arg)->tokens++;
    return SCH_CONTINUE;
}

static void on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason)
{
}

static void on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                   const struct sch_usage *usage)
{
}

struct load { uint32_t waiting, cached_blocks, tenants; };

static void submit(struct sch *s, uint32_t tenant, uint32_t first, uint64_t max_new)
{
    uint32_t prompt[40];
    uint64_t id;
    struct sch_request r = {.tenant = tenant,
                            .class = SCH_NORMAL,
                            .prompt = prompt,
                            .n_prompt = 40,
                            .max_new = max_new,
                            .n_choices = 1};

    for (uint32_t i = 0; i < 40; i++)
        prompt[i] = first * 40 + i;
    cn_assert(sch_submit(s, &r, &id, NULL) == 0);
}

/* Work per token of STREAMS running streams beside the load. */
static double measure(struct load l)
{
    struct null_dev d = {0};
    struct kv_pool_opts po = {.slab_bytes = 1 << 20, .n_slabs = 1024};
    struct kv_group g = {.block_bytes = 1024};
    struct kv_space_opts ko = {
        .id = "m", .id_len = 1, .block_tokens = 16, .n_groups = 1, .groups = &g};
    struct kv_pool *pool;
    struct sch_model_opts mo = {.context = 100000, .max_rows = 256, .max_logit_rows = 256};
    struct sch_opts so = {
        .max_running = STREAMS, .max_queue = 1000000, .max_queue_tokens = 1000000000};
    struct sch *s;
    uint32_t model;
    double cost;

    so.stepper = (struct sch_stepper){
        .self = &d, .depth = 1, .launch = launch, .collect = collect, .now = now};
    so.cb = (struct sch_callbacks){
        .arg = &d, .on_token = on_token, .on_choice_end = on_choice_end, .on_end = on_end};
    cn_assert(kv_pool_new(&po, &pool, NULL) == 0);
    cn_assert(kv_space_add(pool, &ko, &mo.space, NULL) == 0);
    so.pool = pool;
    cn_assert(sch_new(&so, &s, NULL) == 0 && sch_model_add(s, &mo, &model, NULL) == 0);
    for (uint32_t i = 0; i < l.cached_blocks / 2; i++) { /* two blocks a request */
        submit(s, i % l.tenants, 1000000 + i, 1);
        while (sch_iterate(s))
            ;
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        submit(s, i % l.tenants, i, 50000);
    for (uint32_t i = 0; i < 50; i++)
        sch_iterate(s);
    for (uint32_t i = 0; i < l.waiting; i++)
        submit(s, i % l.tenants, 100 + i, 100);
    uint64_t tokens = d.tokens, work = work_done();
    for (uint32_t i = 0; i < STEPS; i++)
        sch_iterate(s);
    cost = (double)(work_done() - work) / (double)(d.tokens - tokens);
    sch_free(s);
    kv_pool_free(pool);
    return cost;
}

static int compare(const char *what, struct load small, struct load large, int factor, double most)
{
    double a = measure(small), b = measure(large);

    printf("%-16s %6.1f blocks a token, %6.1f at %d times: %.3f of it, at most %g\n", what, a, b,
           factor, b / a, most);
    return b > a * most;
}

int main(void)
{
    int bad = 0;

    struct load few_wait = {100, 100, 4}, many_wait = {20000, 100, 4};
    struct load few_cached = {16, 1000, 4}, many_cached = {16, 200000, 4};
    struct load few_tenants = {2000, 100, 4}, many_tenants = {2000, 100, 2000};

    bad += compare("waiting requests", few_wait, many_wait, 200, 1.2);
    bad += compare("cached blocks", few_cached, many_cached, 200, 1.2);
    bad += compare("tenants", few_tenants, many_tenants, 500, 1.57);
    if (bad) printf("%d of the costs grow\n", bad);
    return bad != 0;
}
