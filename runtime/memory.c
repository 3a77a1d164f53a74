/* How much KV memory, and how it is cut into slabs. Pure arithmetic. */
#include "runtime/rt.h"

#include <stdlib.h>

#define SLAB_AIM_BYTES (2u << 20)
#define MIN_SLABS      8u

/* Snapshots of recurrent state that are worth keeping beside the state of a running sequence. */
static uint64_t snapshot_bytes(const struct kr_exec_info *info)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < info->n_groups; g++)
        if (info->groups[g].span == KR_SPAN_STATE) sum += 3 * info->groups[g].block_bytes;
    return sum;
}

/* A slab holds whole blocks of one group at a time, so many at most: the size, near the aim, that
 * wastes least. Every group's block goes into it, even where the smallest blocks cannot fill it. */
static uint64_t slab_size(const struct kr_kv_group *groups, uint32_t n, uint64_t total)
{
    uint64_t large = 64, small = UINT64_MAX;
    for (uint32_t g = 0; g < n; g++) {
        large = CN_MAX(large, groups[g].block_bytes);
        small = CN_MIN(small, groups[g].block_bytes);
    }
    uint64_t aim = CN_MIN((uint64_t)SLAB_AIM_BYTES, total / MIN_SLABS);
    uint64_t first = CN_MAX(aim / large, (uint64_t)1), best = first * large;
    double best_waste = 2 * n;
    for (uint64_t k = first; k <= first * 4; k++) {
        uint64_t size = k * large;
        if (size / small > 1u << KR_BLOCK_INDEX_BITS || (k > 1 && size > total / MIN_SLABS)) break;
        double waste = 0;
        for (uint32_t g = 0; g < n; g++)
            waste += (double)(size % groups[g].block_bytes) / (double)size;
        if (waste >= best_waste) continue;
        best_waste = waste;
        best = size;
    }
    uint64_t filled = CN_MIN(best, small << KR_BLOCK_INDEX_BITS);
    return filled >= large ? filled : large;
}

/* What the models ask for together. */
struct sum {
    uint64_t one;      /* a sequence of the whole window, of the one that takes most */
    uint64_t all;      /* as many of them as may run */
    uint64_t least;    /* four blocks, of the one that takes least */
    uint32_t groups;   /* of the one that has fewest */
    uint32_t n_groups; /* of all */
    const struct rt_memory_ask *small; /* whose `least` it is */
};

static struct sum sum_up(const struct rt_memory_ask *asks, size_t n, uint32_t block_tokens,
                         uint32_t max_running)
{
    struct sum s = {.least = UINT64_MAX, .groups = UINT32_MAX, .small = asks};
    for (size_t i = 0; i < n; i++) {
        const struct rt_memory_ask *a = &asks[i];
        uint64_t few = CN_MIN(a->context, (uint64_t)block_tokens * 4);
        uint64_t one = eng_sequence_bytes(a->info, block_tokens, a->context), all;
        uint64_t least = eng_sequence_bytes(a->info, block_tokens, few);
        if (!cn_add_u64(one, snapshot_bytes(a->info), &all) || !cn_mul_u64(all, max_running, &all))
            all = UINT64_MAX;
        s.one = CN_MAX(s.one, one);
        s.all = CN_MAX(s.all, all);
        if (least < s.least) {
            s.least = least;
            s.small = a;
        }
        s.groups = CN_MIN(s.groups, a->info->n_groups);
        s.n_groups += a->info->n_groups;
    }
    return s;
}

/* The size of a slab for the groups of all. */
static int cut(const struct rt_memory_ask *asks, size_t n, uint32_t n_groups, uint64_t total,
               uint64_t *slab_bytes, struct cn_error *err)
{
    struct kr_kv_group *groups = cn_calloc(n_groups, sizeof *groups);
    uint32_t at = 0;
    if (!groups) return cn_fail(err, CN_ENOMEM, "out of memory for the pool");
    for (size_t i = 0; i < n; i++)
        for (uint32_t g = 0; g < asks[i].info->n_groups; g++)
            groups[at++] = asks[i].info->groups[g];
    *slab_bytes = slab_size(groups, n_groups, total);
    free(groups);
    return 0;
}

/* The key that is named is the one that was set. */
static int too_small(const struct sum *s, uint64_t total, uint32_t block_tokens,
                     uint64_t free_bytes, enum rt_kv_why why, struct cn_error *err)
{
    bool given = why == RT_KV_GIVEN;

    return cn_fail_param(err, CN_ENOMEM, given ? "engine.memory_bytes" : "kv.memory_bytes",
                         "%s of KV memory%s cannot hold %u tokens, which take %s; one sequence of "
                         "the whole window (%llu tokens) takes %s; free: %s",
                         cn_size(total).text, given ? " are left, which" : "", block_tokens * 4,
                         cn_size(s->least).text, (unsigned long long)s->small->context,
                         cn_size(s->one).text, cn_size(free_bytes).text);
}

int rt_memory_plan_for(const struct rt_memory_ask *asks, size_t n, uint32_t block_tokens,
                       uint32_t max_running, uint64_t want_bytes, uint64_t free_bytes, bool given,
                       struct rt_memory_plan *out, struct cn_error *err)
{
    struct sum s = sum_up(asks, n, block_tokens, max_running);
    const struct kr_exec_info *info = s.small->info;
    uint64_t total = want_bytes;
    /* Half of what is free stays for the page cache, requests and other programs, unless it was
     * given to the daemon; memory is only committed when a block is first written. */
    uint64_t most = !free_bytes ? s.one : given ? free_bytes : free_bytes / 2;
    if (!total) total = CN_MIN(s.all, most);
    out->why = want_bytes      ? RT_KV_ASKED
               : s.all <= most ? RT_KV_ENOUGH
               : given         ? RT_KV_GIVEN
                               : RT_KV_HALF;
    out->one_bytes = s.one;
    if (want_bytes && free_bytes && want_bytes > free_bytes)
        return cn_fail_param(err, CN_ENOMEM, "kv.memory_bytes",
                             "kv.memory_bytes is %s, but only %s are free after the weights (%s) "
                             "and scratch (%s)",
                             cn_size(want_bytes).text, cn_size(free_bytes).text,
                             cn_size(info->packed_bytes).text, cn_size(info->scratch_bytes).text);
    if (total < s.least) return too_small(&s, total, block_tokens, free_bytes, out->why, err);
    int rc = cut(asks, n, s.n_groups, total, &out->slab_bytes, err);
    if (rc) return rc;
    uint64_t slabs = total / out->slab_bytes;
    if (out->why == RT_KV_ENOUGH && total % out->slab_bytes) slabs++;
    if (slabs < s.groups) /* every group needs a slab of its own */
        return cn_fail_param(err, CN_ENOMEM, "kv.memory_bytes",
                             "%s of KV memory are %llu slabs of %s; the model has %u groups of "
                             "layers, and each needs one",
                             cn_size(total).text, (unsigned long long)slabs,
                             cn_size(out->slab_bytes).text, s.groups);
    out->n_slabs = (uint32_t)CN_MIN(slabs, (uint64_t)KV_MAX_SLABS - 1);
    out->total_bytes = out->slab_bytes * out->n_slabs;
    return 0;
}

int rt_memory_blocks_fit(const struct kr_exec_info *info, uint64_t slab_bytes, struct cn_error *err)
{
    for (uint32_t g = 0; g < info->n_groups; g++) {
        uint64_t block = info->groups[g].block_bytes;
        if (block > slab_bytes)
            return cn_fail(
                err, CN_EUNSUPP,
                "a block of this model's KV memory has %llu bytes; when the server started, "
                "the memory was cut into pieces of %llu bytes for the other models: "
                "restart it, or set the model's kv_type to q8_0",
                (unsigned long long)block, (unsigned long long)slab_bytes);
    }
    return 0;
}

int rt_memory_plan(const struct kr_exec_info *info, uint32_t block_tokens, uint64_t context,
                   uint32_t max_running, uint64_t want_bytes, uint64_t free_bytes, bool given,
                   struct rt_memory_plan *out, struct cn_error *err)
{
    struct rt_memory_ask ask = {info, context};
    int rc = rt_memory_plan_for(&ask, 1, block_tokens, max_running, want_bytes, free_bytes, given,
                                out, err);
    return rc ? rc : rt_memory_blocks_fit(info, out->slab_bytes, err);
}

void rt_memory_text(const struct kr_exec_info *info, uint32_t block_tokens, struct cn_buf *out)
{
    for (uint32_t g = 0; g < info->n_groups; g++) {
        const struct kr_kv_group *kg = &info->groups[g];
        const char *layers = kg->n_layers == 1 ? "layer" : "layers";
        if (kg->span == KR_SPAN_STATE)
            cn_buf_printf(out, ", state of %u %s %.1f KiB a sequence", kg->n_layers, layers,
                          (double)kg->block_bytes / 1024);
        else
            cn_buf_printf(out, ", KV of %u %s %.3g KiB a token", kg->n_layers, layers,
                          (double)kg->block_bytes / block_tokens / 1024);
        if (kg->window_tokens) cn_buf_printf(out, " (the last %u)", kg->window_tokens);
    }
}

int rt_memory_for(const struct cfg *cfg, const struct eng_model_info *info, uint64_t left_bytes,
                  bool given, struct rt_memory_plan *out, struct cn_error *err)
{
    return rt_memory_plan(info->exec, (uint32_t)cfg->kv.block_tokens, info->context,
                          (uint32_t)cfg->scheduler.max_running, cfg->kv.memory_bytes, left_bytes,
                          given, out, err);
}

int rt_memory_fit(const struct rt_request *q, uint64_t fit_tokens, uint64_t pool_bytes,
                  uint64_t *max_tokens, struct cn_error *err)
{
    double mib = (double)pool_bytes / 1048576;
    unsigned long long fit = fit_tokens, max = q->max_tokens;
    *max_tokens = q->max_tokens;
    if (q->n_prompt > fit)
        return cn_fail_param(
            err, CN_ENEVERFIT, "messages",
            "the prompt has %zu tokens; the KV memory of %.1f MiB holds at most %llu "
            "tokens of a request of this tenant",
            q->n_prompt, mib, fit);
    uint64_t room = fit - q->n_prompt + 1; /* the last token that is put out needs no place */
    if (max <= room) return 0;
    if (!q->max_is_bound)
        return cn_fail_param(
            err, CN_ENEVERFIT, "max_tokens",
            "%llu tokens after a prompt of %zu are more than the KV memory of %.1f "
            "MiB holds of a request of this tenant, %llu tokens: at most %llu can be "
            "asked for",
            max, q->n_prompt, mib, fit, (unsigned long long)room);
    *max_tokens = room;
    return 0;
}
