/* Engine groups: how threads and memory are divided among them. Any thread; owns nothing.
 * A group has what it names; those that name nothing have equal parts of the rest. */
#include "config/config.h"

#include <string.h>

uint32_t cfg_n_groups(const struct cfg *c)
{
    return c->n_groups ? (uint32_t)c->n_groups : 1;
}

const char *cfg_group_name(const struct cfg *c, uint32_t group)
{
    return c->n_groups ? c->groups[group].name : "main";
}

int cfg_group_device(const struct cfg *c, uint32_t group)
{
    if (!c->n_groups || c->groups[group].device == CFG_DEVICE_auto) return c->engine.device;
    return c->groups[group].device;
}

uint32_t cfg_group_threads(const struct cfg *c, uint32_t group)
{
    uint32_t all = c->engine.threads ? (uint32_t)c->engine.threads : (uint32_t)cfg_cores();
    uint32_t named = 0, unnamed = 0, before = 0;

    if (!c->n_groups) return all;
    if (c->groups[group].threads) return (uint32_t)c->groups[group].threads;
    for (size_t i = 0; i < c->n_groups; i++) {
        named += (uint32_t)c->groups[i].threads;
        unnamed += !c->groups[i].threads;
        before += i < group && !c->groups[i].threads;
    }
    uint32_t rest = all > named ? all - named : 0;
    return CN_MAX(rest / unnamed + (before < rest % unnamed), 1u);
}

uint64_t cfg_group_memory(const struct cfg *c, uint32_t group, uint64_t total)
{
    uint64_t rest = total, unnamed = 0;

    if (!c->n_groups) return total;
    if (c->groups[group].memory_bytes) return c->groups[group].memory_bytes;
    for (size_t i = 0; i < c->n_groups; i++) {
        rest -= CN_MIN(rest, c->groups[i].memory_bytes);
        unnamed += !c->groups[i].memory_bytes;
    }
    return total ? CN_MAX(rest / unnamed, 1u) : 0;
}

const char *cfg_group_memory_key(const struct cfg *c)
{
    return c->n_groups ? "groups.memory_bytes" : "engine.memory_bytes";
}

uint64_t cfg_group_kv_memory(const struct cfg *c, uint32_t group)
{
    return c->n_groups ? c->groups[group].kv_memory_bytes : c->kv.memory_bytes;
}

uint32_t cfg_group_of(const struct cfg *c, const struct cfg_served *m)
{
    for (size_t i = 0; m->group && i < c->n_groups; i++)
        if (!strcmp(m->group, c->groups[i].name)) return (uint32_t)i;
    return 0;
}
