#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct sim_opts simcase_opts(uint32_t depth)
{
    struct sim_opts o = {.seed = 7,
                         .depth = depth,
                         .block_tokens = SIMCASE_BLOCK_TOKENS,
                         .n_groups = 1,
                         .n_models = 1,
                         .slab_bytes = SIMCASE_BLOCK_BYTES * 8,
                         .n_slabs = 64,
                         .max_rows = 64,
                         .max_logit_rows = 64,
                         .context = 500,
                         .step_ns = 1000000,
                         .row_ns = 100000};

    o.groups[0].block_bytes = SIMCASE_BLOCK_BYTES;
    o.sch.step_target_ns = 1000000000;
    return o;
}

void simcase_sound(struct sim *m)
{
    struct cn_error err;

    if (m->sch && sch_check(m->sch, &err)) fail_msg("%s", err.message);
    if (m->failed) fail_msg("%s", m->what);
}

void simcase_finish(struct sim *m)
{
    sim_run(m);
    sim_check_outputs(m);
    sim_check_idle(m);
    simcase_sound(m);
    sim_fini(m);
}

void simcase_cancel(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_reqs; i++)
        sch_cancel(m->sch, m->reqs[i].id);
    sim_run(m);
    sim_check_idle(m);
    simcase_sound(m);
    sim_fini(m);
}

uint64_t simcase_in_use(struct sim *m)
{
    struct kv_stats st;

    kv_pool_stats(m->pool, &st);
    return st.blocks[KV_FILLING] + st.blocks[KV_READY] + st.blocks[KV_COPYING];
}
