/* What a daemon with this config would do with the memory of this machine, for show and plan. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

static void put(const char *what, uint64_t bytes, const char *more)
{
    printf("  %-15s %10.1f MiB%s\n", what, (double)bytes / MIB, more);
}

static const char *why(const struct cfg *cfg, const struct rt_memory_plan *plan, char *text,
                       size_t size)
{
    if (plan->why == RT_KV_ASKED) return "  kv.memory_bytes";
    if (plan->why == RT_KV_HALF) return "  half of what is left";
    if (plan->why == RT_KV_GIVEN) return "  all that is left";
    snprintf(text, size, "  all that %llu users at once can take (scheduler.max_running)",
             (unsigned long long)cfg->scheduler.max_running);
    return text;
}

uint64_t cli_users(const struct cfg *cfg, const struct rt_memory_plan *plan)
{
    uint64_t most = (uint64_t)cfg->scheduler.max_running;
    return plan->one_bytes ? CN_MIN(plan->total_bytes / plan->one_bytes, most) : most;
}

/* What there is, and what of it is kept for requests. */
static void put_there(const struct cfg *cfg, uint64_t there, bool own)
{
    if (cfg->engine.memory_bytes || own) {
        put(cfg->engine.memory_bytes ? "engine.memory" : "device", there,
            own ? "  of the device's own memory" : "");
        put("requests", (uint64_t)cfg->server.memory_bytes,
            own ? "  server.memory_bytes, of the machine's memory"
                : "  server.memory_bytes, beside it");
        if (cfg->kv.host_memory_bytes)
            put("saved blocks", (uint64_t)cfg->kv.host_memory_bytes,
                "  kv.host_memory_bytes, of the machine's memory");
        return;
    }
    uint64_t host = (uint64_t)cfg->kv.host_memory_bytes;
    uint64_t kept = CN_MIN((uint64_t)cfg->server.memory_bytes + host, there * 3);
    put("free now", there + kept, "");
    put("requests", kept - CN_MIN(host, kept), "  server.memory_bytes");
    if (host) put("saved blocks", CN_MIN(host, kept), "  kv.host_memory_bytes");
}

struct rt_room cli_memory_room(const struct cfg *cfg, const struct kr_device *d)
{
    struct rt_room r = rt_room(cfg, d);
    if (cfg->engine.memory_bytes) r.bytes = CN_MIN(r.bytes, (uint64_t)cfg->engine.memory_bytes);
    return r;
}

int cli_plan_room(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                  struct rt_memory_plan *plan, struct cn_error *err)
{
    const struct eng_model_info *info = eng_model_info(m);
    uint64_t fixed = info->exec->packed_bytes + info->exec->scratch_bytes;
    bool given = room->own || room->bytes == cfg->engine.memory_bytes;

    if (room->bytes > fixed) return rt_memory_for(cfg, info, room->bytes - fixed, given, plan, err);
    return cn_fail(err, CN_ENOMEM,
                   "it does not fit: weights and scratch take %.1f MiB more than the %s has",
                   (double)(fixed - room->bytes) / MIB, room->whose);
}

/* False when it cannot be loaded, or not for so many users. */
static bool put_one(const struct cfg *cfg, const struct rt_model_opts *m,
                    const struct rt_model_weight *w, const struct rt_memory_plan *kv,
                    uint64_t users)
{
    struct rt_memory_plan mine = *kv;
    uint64_t room;

    printf("\n%s", m->id);
    if (cfg->n_groups) printf(" (%s)", cfg_group_name(cfg, m->group));
    if (!w->bytes) {
        puts(": it cannot be measured");
        return false;
    }
    mine.one_bytes = w->window_bytes;
    room = w->fits ? cli_users(cfg, &mine) : 0;
    printf(", %" PRIu64 " tokens each, KV in %s\n", w->context,
           kr_type_info((uint32_t)w->kv_type)->name);
    put("weights+scratch", w->bytes, w->fits ? "" : "  it does not fit: requests are refused");
    printf("  %-15s %10" PRIu64 "  at once, each with a window of %" PRIu64 " tokens\n", "users",
           room, w->context);
    if (w->fits && w->max_tokens < w->context)
        printf("  %-15s %10" PRIu64 "  tokens, of one user alone\n", "longest", w->max_tokens);
    if (users)
        printf("  %-15s %10" PRIu64 "  %s\n", "asked for", users,
               users <= room ? "fit" : "do not fit");
    return w->fits && users <= room;
}

static void put_group(const struct cfg *cfg, uint32_t group, const struct rt_weights *all)
{
    char text[96];

    if (cfg->n_groups) {
        uint32_t n = cfg_group_threads(cfg, group);
        printf("\ngroup %s, %u %s\n", cfg_group_name(cfg, group), n, n == 1 ? "thread" : "threads");
        put("its part", all->there_bytes, all->own ? "  of the device's own memory" : "");
    }
    const char *reason = all->kv.why == RT_KV_ASKED && cfg->n_groups
                             ? "  groups.kv_memory_bytes"
                             : why(cfg, &all->kv, text, sizeof text);
    put("KV memory", all->kv.total_bytes, reason);
    put("models", all->budget_bytes, "  weights and scratch of all that are loaded at once");
}

/* What there is for the models, and what each group has of it. */
static void put_groups(const struct cfg *cfg, const struct rt_opts *o, const struct rt_weights *all)
{
    printf("memory of a daemon on this machine, for %zu models that take turns in it\n",
           o->n_models);
    if (cfg->n_groups)
        put("requests", (uint64_t)cfg->server.memory_bytes, "  server.memory_bytes, beside it");
    else
        put_there(cfg, all[0].there_bytes, all[0].own);
    for (uint32_t i = 0; i < cfg_n_groups(cfg); i++)
        put_group(cfg, i, &all[i]);
}

int cli_put_weights(const struct cfg *cfg, const struct rt_opts *o, const char *only,
                    uint64_t users, bool *fit, struct cn_error *err)
{
    struct rt_model_weight *each = cn_calloc(o->n_models, sizeof *each);
    struct rt_weights all[CFG_MAX_GROUPS];

    if (!each) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = rt_weigh(o, all, each, err);
    if (!rc) put_groups(cfg, o, all);
    *fit = true;
    for (size_t i = 0; !rc && i < o->n_models; i++)
        if (!only || !strcmp(only, o->models[i].id))
            *fit &= put_one(cfg, &o->models[i], &each[i], &all[o->models[i].group].kv, users);
    free(each);
    return rc;
}

int cli_put_memory(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                   struct rt_memory_plan *plan, struct cn_error *err)
{
    const struct eng_model_info *info = eng_model_info(m);
    const struct kr_exec_info *x = info->exec;
    uint64_t there = room->bytes, fixed = x->packed_bytes + x->scratch_bytes;
    uint32_t block = (uint32_t)cfg->kv.block_tokens;
    char text[96];

    printf("\nmemory of a daemon on this machine\n");
    put_there(cfg, there, room->own);
    put("weights", x->packed_bytes, "");
    put("scratch", x->scratch_bytes, "");
    if (there > fixed) put("left", there - fixed, "");
    int rc = cli_plan_room(cfg, m, room, plan, err);
    if (rc) return rc;
    put("KV memory", plan->total_bytes, why(cfg, plan, text, sizeof text));
    printf("  %-15s %10" PRIu64 "  at once, each with a window of %" PRIu64 " tokens\n", "users",
           cli_users(cfg, plan), info->context);
    uint64_t longest = eng_tokens_in(x, block, plan->total_bytes);
    if (longest < info->context)
        printf("  %-15s %10" PRIu64 "  tokens, of one user alone\n", "longest", longest);
    return 0;
}
