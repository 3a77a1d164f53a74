/* The scheduler and the pool when memory runs out: one fixed schedule, again and again with the
 * 1st, 2nd, 3rd ... allocation failing, once or from there on. Every request still ends exactly
 * once, what it put out is a prefix of what it puts out alone, and nothing is left behind. */
#include "tests/scheduler/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool armed, device, for_ever;
static uint64_t count, fail_at;

static bool alloc_fails(void)
{
    if (!armed || device) return false;
    count++;
    if (count == fail_at || (for_ever && count > fail_at)) {
        errno = ENOMEM;
        return true;
    }
    return false;
}

#include "tests/wrap_alloc.h"

static void schedule(struct sim *m)
{
    for (uint32_t i = 0; i < 8; i++) {
        struct sim_req *r = sim_req_new(m, i % 3, 30 + i, 12);

        if (i > 2) memcpy(r->prompt, m->reqs[i - 3].prompt, 24 * sizeof(*r->prompt));
        if (i == 4) r->spec.n_choices = 3;
        if (i >= 6) sim_add_media(r, 24, 5, 1);
        if (i % 2) r->force_mod = 4;
        if (i == 2) r->mask_mod = 3;
        if (i == 5) r->spec.deadline_ns = m->clock + 15000000;
        armed = true;
        sim_submit(m, r);
        sim_iterate(m);
        sim_iterate(m);
        if (i == 6) sch_cancel(m->sch, m->reqs[3].id);
    }
    sim_run(m);
    armed = false;
}

/* How many allocations the schedule made. */
static uint64_t run(uint32_t depth, bool with_state, uint64_t at, bool ever)
{
    struct sim_opts o = {.seed = 3,
                         .depth = depth,
                         .block_tokens = 4,
                         .n_groups = 2,
                         .n_models = 1,
                         .slab_bytes = 128,
                         .n_slabs = 60,
                         .max_rows = 16,
                         .max_logit_rows = 16,
                         .context = 60,
                         .step_ns = 1000000,
                         .row_ns = 1000,
                         .late = true};
    struct sim m;

    o.groups[0].block_bytes = o.groups[1].block_bytes = 32;
    o.groups[1].span = KV_SPAN_WINDOW;
    o.groups[1].tokens = 9;
    if (with_state) o.groups[1].span = KV_SPAN_STATE;
    armed = device = false;
    sim_init(&m, &o);
    m.device = &device;
    count = 0;
    fail_at = at;
    for_ever = ever;
    schedule(&m);
    sim_check_outputs(&m);
    sim_check_idle(&m);
    if (m.failed) {
        printf("depth %u, allocation %" PRIu64 " failing%s: %s\n", depth, at,
               ever ? " and all after it" : "", m.what);
        exit(1);
    }
    sim_fini(&m);
    return count;
}

/* The same for what is made before anything runs. */
static uint64_t set_up(uint64_t at)
{
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = 4};
    struct kv_group g[2] = {{0, 32}, {9, 32}};
    struct kv_space_opts ko = {
        .id = "m", .id_len = 1, .block_tokens = 4, .n_groups = 2, .groups = g};
    struct sch_opts so = {.max_running = 2};
    struct sch_model_opts mo = {.context = 60, .max_rows = 4, .max_logit_rows = 4};
    struct sch_tenant_opts to = {.weight = 2, .kv_reserve_bytes = 100};
    struct sch *s;
    uint32_t model;

    armed = true;
    count = 0;
    fail_at = at;
    for_ever = false;
    if (kv_pool_new(&po, &so.pool, NULL) == 0) {
        if (kv_space_add(so.pool, &ko, &mo.space, NULL) == 0 && sch_new(&so, &s, NULL) == 0) {
            sch_model_add(s, &mo, &model, NULL);
            sch_tenant_set(s, 5, &to);
            sch_free(s);
        }
        kv_pool_free(so.pool);
    }
    armed = false;
    return count;
}

int main(void)
{
    uint64_t n, runs = 0;

    n = set_up(0);
    for (uint64_t k = 1; k <= n; k++, runs++)
        set_up(k);
    for (uint32_t way = 0; way < 8; way++) {
        uint32_t depth = 1 + way % 2;

        n = run(depth, way & 2, 0, false);
        for (uint64_t k = 1; k <= n + 2; k++, runs++)
            run(depth, way & 2, k, way & 4);
    }
    printf("%" PRIu64 " runs with failing allocations passed\n", runs);
    return 0;
}
