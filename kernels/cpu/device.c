/* device: the CPU as a device: which ISA's tables, how many threads. Engine thread. */
#include "kernels/cpu/cpu.h"
#include "kernels/draw_loops.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The control group's share of processor time, rounded up; 0 = no limit known. */
static uint32_t quota_cpus(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    unsigned long long quota, period;
    if (!f) return 0;
    int n = fscanf(f, "%llu %llu", &quota, &period);
    fclose(f);
    if (n != 2 || !period) return 0;
    return (uint32_t)CN_MIN((quota + period - 1) / period, 4096ull);
}

static uint32_t usable_cpus(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) n = CPU_COUNT(&set);
#endif
    uint32_t quota = quota_cpus();
    if (n < 1) n = 1;
    return quota && quota < n ? CN_MAX(quota, 1u) : (uint32_t)CN_MIN(n, 4096);
}

static bool fill_tables(struct kr_cpu *c, enum kr_isa isa)
{
    if (!kr_matmul_fill(isa, &c->mm) || !kr_ops_fill(isa, &c->ops)) return false;
    c->fuse = isa != KR_ISA_GENERIC;
    c->base.path = kr_isa_path(isa);
    c->draw = kr_draw_loops(isa);
    return true;
}

/* The ISA asked for is not there: which it was, and which are. */
static int lacks(enum kr_isa isa, struct cn_error *err)
{
    static const enum kr_isa all[] = {KR_ISAS};
    char there[64] = "";
    size_t n = 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(all); i++)
        if (kr_cpu_has(all[i]) && n < sizeof there)
            n += (size_t)snprintf(there + n, sizeof there - n, "%s%s", n ? ", " : "",
                                  kr_isa_name(all[i]));
    return cn_fail(err, CN_EUNSUPP,
                   "this processor lacks the instructions of %s; it has those of %s",
                   kr_isa_name(isa), there);
}

static void cpu_free(struct kr_device *d)
{
    struct kr_cpu *c = CN_CONTAINER(d, struct kr_cpu, base);
    kr_cpu_probe_free(c->probe);
    kr_pool_free(c->pool);
    free(c);
}

static const struct kr_draw_loops *cpu_draw_loops(const struct kr_device *d)
{
    return CN_CONTAINER(d, struct kr_cpu, base)->draw;
}

static uint32_t cpu_threads(const struct kr_device *d)
{
    return kr_pool_threads(CN_CONTAINER(d, struct kr_cpu, base)->pool);
}

struct parallel {
    void (*fn)(void *arg, uint32_t i);
    void *arg;
};

static void run_parallel(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct parallel *p = arg;
    for (uint32_t i = lo; i < hi; i++)
        p->fn(p->arg, i);
}

static void cpu_parallel(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i),
                         void *arg)
{
    struct kr_cpu *c = CN_CONTAINER(d, struct kr_cpu, base);
    struct parallel p = {fn, arg};
    struct kr_job job = {.fn = run_parallel, .n = n, .chunk = n / (1u << 20) + 1};
    kr_pool_run(c->pool, &(struct kr_stage){0, 1}, 1, &job, &p);
}

static const struct kr_device_ops cpu_ops = {
    .kind = "cpu",
    .max_depth = 1,
    .max_outputs = 1,
    .free = cpu_free,
    .draw_loops = cpu_draw_loops,
    .threads = cpu_threads,
    .parallel = cpu_parallel,
    .probe = kr_cpu_probe,
    .probe_read = kr_cpu_probe_read,
    .prepare = kr_cpu_prepare,
    .exec_free = kr_cpu_exec_free,
    .counters = kr_cpu_counters,
    .describe = kr_cpu_describe,
    .profile = kr_cpu_profile,
    .profile_text = kr_cpu_profile_text,
    .kv_mem_new = kr_cpu_mem_new,
    .kv_mem_free = kr_cpu_mem_free,
    .kv_copy = kr_cpu_kv_copy,
    .host_new = kr_cpu_host_new,
    .host_free = kr_cpu_host_free,
    .kv_move = kr_cpu_kv_move,
    .moved = kr_cpu_moved,
    .launch = kr_cpu_launch,
    .collect = kr_cpu_collect,
    .draw = kr_cpu_draw,
    .collect_drawn = kr_cpu_collect_drawn,
};

int kr_cpu_new(const struct kr_cpu_opts *opts, struct kr_device **out, struct cn_error *err)
{
    enum kr_isa isa = opts->isa == KR_ISA_AUTO ? kr_cpu_best() : opts->isa;
    uint32_t threads = opts->n_threads ? opts->n_threads : usable_cpus();
    if (threads > 4096)
        return cn_fail(err, CN_ERANGE, "%u kernel threads: at most 4096 are possible", threads);
    struct kr_cpu *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(err, CN_ENOMEM, "out of memory");
    c->base.ops = &cpu_ops;
    if (!fill_tables(c, isa)) {
        free(c);
        return lacks(isa, err);
    }
    c->pool = kr_pool_new(threads);
    if (!c->pool) {
        free(c);
        return cn_fail(err, CN_ENOMEM, "%u kernel threads could not be started", threads);
    }
    *out = &c->base;
    return 0;
}
