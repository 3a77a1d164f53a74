/* What preempted choices have computed, kept in memory of the host (kv.host_memory_bytes). Engine
 * thread. A place is free again once its choice has forgotten it and the device has done with
 * it. */
#include "runtime/rt.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_RATE 2e9            /* bytes a second, before any move was timed */
#define RATE_NS    60000000000ull /* so long a measured rate is believed without another move */

/* In the list by place, ascending. */
struct rt_saved {
    struct rt_saved *next;
    uint64_t id, at, bytes;
    struct kr_exec *exec;
    uint64_t ticket; /* of the last move to or from here */
    bool forgotten;
    uint32_t n;
    struct rt_saved_block {
        uint32_t group;
        uint64_t index, at; /* logical block; bytes from the host memory's start */
    } *blocks;              /* [n] by group and index */
};

int rt_host_init(struct rt_group *g, struct cn_error *err)
{
    struct rt_host *h = &g->host;
    uint64_t asked = (uint64_t)g->rt->cfg->kv.host_memory_bytes, there = cfg_free_memory();
    if (!asked) return 0;
    if (there && asked > there)
        return cn_fail_param(err, CN_ENOMEM, "kv.host_memory_bytes",
                             "kv.host_memory_bytes is %s, but the machine has only %s free",
                             cn_size(asked).text, cn_size(there).text);
    *h = (struct rt_host){.group = g, .bytes = asked / cfg_n_groups(g->rt->cfg)};
    return kr_host_new(g->device, h->bytes, &h->memory, err);
}

static void drop(struct rt_host *h, struct rt_saved **at)
{
    struct rt_saved *v = *at;
    *at = v->next;
    free(v->blocks);
    free(v);
}

/* Frees places that are no longer needed and whose copies are done. For those of x it waits
 * until they are; x may be NULL. */
static void sweep(struct rt_host *h, const struct kr_exec *x)
{
    for (struct rt_saved **at = &h->list; *at;) {
        struct rt_saved *v = *at;
        if (v->forgotten && kr_moved(v->exec, v->ticket, v->exec == x))
            drop(h, at);
        else
            at = &v->next;
    }
}

void rt_host_leave(struct rt_group *g, const struct kr_exec *x)
{
    sweep(&g->host, x);
}

void rt_host_fini(struct rt_group *g)
{
    struct rt_host *h = &g->host;
    while (h->list)
        drop(h, &h->list);
    if (h->memory) kr_host_free(g->device, h->memory, h->bytes);
    free(h->moves);
    *h = (struct rt_host){0};
}

/* Finds the first gap that is large enough: its offset in *at, and the link where the new place
 * is inserted. NULL if there is none. */
static struct rt_saved **find_gap(struct rt_host *h, uint64_t bytes, uint64_t *at)
{
    struct rt_saved **next = &h->list;
    *at = 0;
    while (*next && (*next)->at - *at < bytes) {
        *at = (*next)->at + (*next)->bytes;
        next = &(*next)->next;
    }
    return (*next ? (*next)->at : h->bytes) - *at >= bytes ? next : NULL;
}

double rt_host_rate(const struct rt_host *h)
{
    struct kr_device_info info;
    kr_device_info(h->group->device, &info);
    bool known = info.moved_ns && cn_now_ns() - info.moved_ns < RATE_NS;
    return known ? (double)info.move_bytes_s : FIRST_RATE;
}

/* Whether a move takes no longer than a step: the streams of others wait for it. */
static bool is_quick(const struct rt_host *h, uint64_t bytes)
{
    return (double)bytes <= rt_host_rate(h) * h->group->rt->cfg->engine.step_target_ms * 1e-3;
}

static int move(struct rt_host *h, struct rt_saved *v, uint32_t n, bool out)
{
    struct cn_error err = {0};
    int rc = kr_kv_move(v->exec, h->group->kv_mem, h->moves, n, out, &v->ticket, &err);
    if (rc) cn_log(CN_LOG_ERROR, "engine", "blocks were not moved: %s", err.message);
    return rc;
}

static struct rt_saved *saved_new(struct rt_host *h, const struct kr_exec_info *info,
                                  const struct kv_held *blocks, uint32_t n)
{
    struct rt_saved *v = cn_calloc(1, sizeof *v);
    if (v) v->blocks = cn_calloc(n, sizeof *v->blocks);
    if (!v || !v->blocks || cn_grow(&h->moves, &h->moves_cap, n, sizeof *h->moves)) {
        free(v ? v->blocks : NULL);
        free(v);
        return NULL;
    }
    v->n = n;
    for (uint32_t i = 0; i < n; i++) {
        v->blocks[i] = (struct rt_saved_block){blocks[i].group, blocks[i].index, v->bytes};
        v->bytes += info->groups[blocks[i].group].block_bytes;
    }
    return v;
}

int rt_host_save(struct rt_host *h, struct kr_exec *x, const struct kv_held *blocks, uint32_t n,
                 uint64_t *id)
{
    uint64_t at;
    sweep(h, NULL);
    struct rt_saved *v = saved_new(h, kr_exec_info(x), blocks, n);
    struct rt_saved **place = v && is_quick(h, v->bytes) ? find_gap(h, v->bytes, &at) : NULL;
    if (place) {
        v->exec = x;
        v->at = at;
        for (uint32_t i = 0; i < n; i++) {
            v->blocks[i].at += at;
            h->moves[i] = (struct kr_move){blocks[i].group, blocks[i].block,
                                           (uint8_t *)h->memory + v->blocks[i].at};
        }
    }
    int rc = place ? move(h, v, n, true) : CN_ENOMEM;
    if (rc) {
        free(v ? v->blocks : NULL);
        free(v);
        return rc;
    }
    v->next = *place;
    *place = v;
    cn_metric_shift(h->group->rt->metrics, CN_M_kv_saved_bytes, (double)v->bytes);
    *id = v->id = ++h->last_id;
    return 0;
}

static struct rt_saved *find(struct rt_host *h, uint64_t id)
{
    struct rt_saved *v = h->list;
    while (v && v->id != id)
        v = v->next;
    cn_assert(v && !v->forgotten);
    return v;
}

/* Both lists are by group and index. */
int rt_host_restore(struct rt_host *h, uint64_t id, const struct kv_held *blocks, uint32_t n)
{
    struct rt_saved *v = find(h, id);
    int rc = cn_grow(&h->moves, &h->moves_cap, n, sizeof *h->moves);
    for (uint32_t i = 0, k = 0; !rc && i < n; i++) {
        while (k < v->n &&
               (v->blocks[k].group != blocks[i].group || v->blocks[k].index != blocks[i].index))
            k++;
        cn_assert(k < v->n);
        h->moves[i] = (struct kr_move){blocks[i].group, blocks[i].block,
                                       (uint8_t *)h->memory + v->blocks[k].at};
    }
    return rc ? rc : move(h, v, n, false);
}

void rt_host_forget(struct rt_host *h, uint64_t id)
{
    struct rt_saved *v = find(h, id);
    v->forgotten = true;
    cn_metric_shift(h->group->rt->metrics, CN_M_kv_saved_bytes, -(double)v->bytes);
    sweep(h, NULL);
}
