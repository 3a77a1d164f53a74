/* The device, its blocks and the sizes of a step that the config asks for. */
#include "runtime/rt.h"

#include <stdio.h>

static int device_new(const struct cfg *cfg, int kind, uint32_t threads, struct kr_device **out,
                      struct cn_error *err)
{
    static const enum kr_isa isa[] = {
        [CFG_ISA_AUTO] = KR_ISA_AUTO,     [CFG_ISA_GENERIC] = KR_ISA_GENERIC,
        [CFG_ISA_AVX2] = KR_ISA_AVX2,     [CFG_ISA_AVXVNNI] = KR_ISA_AVXVNNI,
        [CFG_ISA_AVX512] = KR_ISA_AVX512, [CFG_ISA_NEON] = KR_ISA_NEON,
        [CFG_ISA_I8MM] = KR_ISA_I8MM};
    static const char *const kinds[] = {
        [CFG_DEVICE_auto] = "auto",
#define DEVICE(name) [CFG_DEVICE_##name] = #name,
#include "kernels/devices.def"
#undef DEVICE
    };
    struct kr_device_opts o = {.cpu = {.isa = isa[cfg->engine.isa], .n_threads = threads},
                               .async = {.delay_ns = (uint64_t)(cfg->engine.async_delay_s * 1e9),
                                         .lost_after = (uint64_t)cfg->engine.async_lost_after,
                                         .memory_bytes = (uint64_t)cfg->engine.async_memory,
                                         .upload_bytes_s = (uint64_t)cfg->engine.async_upload,
                                         .lends_at_load = cfg->engine.async_lends_at_load}};
    int rc = kr_device_new(kinds[kind], &o, out, err);
    if (rc == CN_EUNSUPP && err) snprintf(err->param, sizeof err->param, "engine.isa");
    return rc;
}

int rt_device_new(const struct cfg *cfg, struct kr_device **out, struct cn_error *err)
{
    uint32_t threads = cfg->engine.threads ? (uint32_t)cfg->engine.threads : (uint32_t)cfg_cores();
    return device_new(cfg, cfg->engine.device, threads, out, err);
}

int rt_group_device(struct rt_group *g, struct cn_error *err)
{
    const struct cfg *cfg = g->rt->cfg;
    if (!g->rt->several) return rt_device_new(cfg, &g->device, err);
    return device_new(cfg, cfg_group_device(cfg, g->index), cfg_group_threads(cfg, g->index),
                      &g->device, err);
}

int rt_group_blocks(struct rt_group *g, const struct rt_memory_plan *plan, struct cn_error *err)
{
    struct kr_device_info device;
    kr_device_info(g->device, &device);
    struct kv_pool_opts o = {.slab_bytes = plan->slab_bytes,
                             .n_slabs = plan->n_slabs,
                             .lend_at_load = device.lends_at_load};
    return kv_pool_new(&o, &g->pool, err);
}

struct rt_room rt_room(const struct cfg *cfg, const struct kr_device *d)
{
    struct kr_device_info info;
    struct rt_room r = {.bytes = cfg_engine_memory(cfg), .whose = "machine"};
    kr_device_info(d, &info);
    if (info.memory_bytes)
        r = (struct rt_room){.bytes = CN_MAX(info.free_bytes, 1u), .own = true, .whose = "device"};
    return r;
}

enum kr_type rt_kv_type(int cfg_kv_type)
{
    static const enum kr_type types[] = {
        [CFG_KV_F16] = KR_F16, [CFG_KV_Q8_0] = KR_Q8_0, [CFG_KV_Q4_0] = KR_Q4_0};
    return types[cfg_kv_type];
}

struct kr_prepare_opts rt_prepare_opts(const struct cfg *cfg)
{
    uint32_t max_rows = (uint32_t)cfg->engine.max_batch_rows;
    return (struct kr_prepare_opts){.kv_type = rt_kv_type(cfg->model.kv_type),
                                    .block_tokens = (uint32_t)cfg->kv.block_tokens,
                                    .max_rows = max_rows,
                                    .max_seqs = (uint32_t)cfg->scheduler.max_running,
                                    .max_logit_rows = CN_MIN(max_rows, 64u),
                                    .max_context = (uint64_t)cfg->model.context};
}
