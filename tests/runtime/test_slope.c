/* Promise 8: the engine thread's processor time per token does not grow with what waits, what is
 * cached, or how many tenants there are. The whole runtime on the null model: scheduler, pool,
 * prefix tree, sampling, text, events, metrics.
 *
 * The load is the same everywhere: 16 running requests of a prompt of 48 tokens, each its own, and
 * 64 tokens of answer; when one ends the next begins and another is submitted. So a token has its
 * part of what a request costs: its way through the queue, the look into the cache, its blocks,
 * taken from the cache's oldest where the pool is full.
 *
 * usage: test_slope [waiting|cached|tenants]...
 * Small ranges and a bound with room for a busy machine; with CONIFER_LONG the whole ranges and
 * 0.05. Processor time of the engine thread alone, the least of several rounds; all sizes are
 * measured in turn, up to PASSES times, and the least counts, so that only a cost that is always
 * there fails. The caches have a part in it, which differs from machine to machine by more than a
 * fifth of a token's cost: work that is a fifth more is told by counts (scheduler/test_schslope.c),
 * here what the caches and the runtime's own lists add. */
#include "tests/runtime/slope.h"

#include "runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RUNNING = 16,
    PROMPT = 48,
    ANSWER = 64,
    ROUNDS = 7,
    PASSES = 4,
    MAX_SIZES = 8,
    ROUND_TOKENS = 20000,
    FILL_PROMPT = 4000,
    BLOCK_TOKENS = 16,
    BLOCK_BYTES = 128,
};

struct load { uint32_t waiting, tenants, cached_blocks; };

struct world {
    struct cfg cfg;
    struct cn_metrics metrics;
    struct rt *rt;
    struct cn_mailbox mail;
    uint64_t submitted, ended;
};

static void must(int rc, const struct cn_error *err)
{
    if (!rc) return;
    fprintf(stderr, "%s: %s\n", err->param, err->message);
    exit(1);
}

static void start(struct world *w, struct load l)
{
    struct cn_error err = {0};
    const char **names = cn_calloc(l.tenants, sizeof *names);
    memset(w, 0, sizeof *w);
    must(cfg_init(&w->cfg, &err), &err);
    w->cfg.engine.threads = 1;
    w->cfg.scheduler.speculation = CFG_SPECULATION_OFF; /* a token a step: steps are counted */
    w->cfg.scheduler.max_running = RUNNING;
    w->cfg.scheduler.queue_requests = 4 * ((int64_t)l.waiting + RUNNING);
    w->cfg.scheduler.queue_tokens = INT64_MAX / 4;
    w->cfg.kv.memory_bytes = (int64_t)l.cached_blocks * BLOCK_BYTES;
    w->cfg.n_tenants = l.tenants;
    w->cfg.tenants = cn_calloc(l.tenants, sizeof *w->cfg.tenants);
    cn_assert(w->cfg.tenants && names);
    for (uint32_t i = 0; i < l.tenants; i++) {
        char text[16];
        snprintf(text, sizeof text, "t%u", i);
        names[i] = w->cfg.tenants[i].name = strdup(text);
        w->cfg.tenants[i].weight = 1;
        w->cfg.tenants[i].priority = CFG_NORMAL;
    }
    must(cn_metrics_tenants(&w->metrics, names, l.tenants), &err);
    free(names);
    must(cn_mailbox_init(&w->mail, NULL, NULL), &err);
    struct rt_opts o = {.cfg = &w->cfg,
                        .metrics = &w->metrics,
                        .model_id = "null",
                        .model_path = "null:head_dim=2,context=8192"};
    must(rt_new(&o, &w->rt, &err), &err);
}

static void stop(struct world *w)
{
    rt_free(w->rt);
    for (struct cn_msg *m = cn_mailbox_take(&w->mail), *next; m; m = next) {
        next = m->next;
        rt_event_free(CN_CONTAINER(m, struct rt_event, msg));
    }
    cn_mailbox_fini(&w->mail);
    cn_metrics_fini(&w->metrics);
    cfg_fini(&w->cfg);
}

static void submit(struct world *w, size_t n_prompt, uint64_t max_tokens)
{
    struct cn_error err = {0};
    uint64_t id = w->submitted++;
    struct rt_request q = {.id = id,
                           .reply = &w->mail,
                           .priority = RT_NORMAL,
                           .n = 1,
                           .tenant = (uint32_t)(id % w->cfg.n_tenants),
                           .max_tokens = max_tokens,
                           .n_prompt = n_prompt};
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.prompt = cn_malloc_array(n_prompt, sizeof *q.prompt);
    cn_assert(q.prompt);
    for (size_t i = 0; i < n_prompt; i++)
        q.prompt[i] = i < 4 ? (uint32_t)(id >> 8 * i & 255) : (uint32_t)(i * 7 % 256);
    must(rt_submit(w->rt, &q, &err), &err);
}

/* Takes what came; a request that ended makes room for another when `more`. */
static void take(struct world *w, bool more)
{
    cn_mailbox_wait(&w->mail, UINT64_MAX);
    for (struct cn_msg *m = cn_mailbox_take(&w->mail), *next; m; m = next) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        next = m->next;
        if (e->kind == RT_EV_END) {
            cn_assert(e->code == 0 || !more);
            w->ended++;
            if (more) submit(w, PROMPT, ANSWER);
        }
        rt_event_free(e);
    }
}

/* Until the pool is full of blocks that nobody uses. */
static void fill_cache(struct world *w, uint32_t blocks)
{
    for (uint64_t left = (uint64_t)blocks * BLOCK_TOKENS / FILL_PROMPT + 2; left; left--) {
        submit(w, CN_MIN((size_t)FILL_PROMPT, (size_t)blocks * BLOCK_TOKENS / 2), 1);
        while (w->ended + 8 < w->submitted)
            take(w, false);
    }
    while (w->ended < w->submitted)
        take(w, false);
    /* The gauge is set after the iteration that told of the last end. */
    struct timespec pause = {.tv_nsec = 1000000};
    double cached = 0;
    for (int ms = 0; ms < 10000 && cached < 0.9 * blocks; ms++) {
        nanosleep(&pause, NULL);
        cached = cn_metric_get(&w->metrics, CN_M_kv_blocks_cached);
    }
    if (cached < 0.9 * blocks) {
        fprintf(stderr, "%.0f of %u blocks are cached\n", cached, blocks);
        exit(1);
    }
}

static double cpu_ns(const struct world *w)
{
    struct timespec t;
    clockid_t clock;
    cn_assert(!pthread_getcpuclockid(w->rt->groups[0].thread, &clock) && !clock_gettime(clock, &t));
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double measure(struct load l)
{
    struct world w;
    double best = INFINITY;
    start(&w, l);
    fill_cache(&w, l.cached_blocks);
    for (uint32_t i = 0; i < l.waiting + RUNNING; i++)
        submit(&w, PROMPT, ANSWER);
    for (int r = 0; r <= ROUNDS; r++) { /* the first is not counted: all prompts begin together */
        double tokens = cn_metric_get(&w.metrics, CN_M_tokens_generated), t = cpu_ns(&w), now;
        do
            take(&w, true);
        while ((now = cn_metric_get(&w.metrics, CN_M_tokens_generated)) < tokens + ROUND_TOKENS);
        if (r) best = CN_MIN(best, (cpu_ns(&w) - t) / (now - tokens));
    }
    stop(&w);
    return best;
}

/* What stays as it is while something else grows: enough of each that the load can run. */
static const struct load usual = {.waiting = 64, .tenants = 4, .cached_blocks = 4000};

struct dimension {
    const char *name;
    size_t at; /* the member of struct load */
    uint32_t quick[MAX_SIZES], all[MAX_SIZES];
    uint32_t waiting; /* at least */
};
static const struct dimension dimensions[] = {
    {"waiting",
     offsetof(struct load, waiting),
     {1, 30, 1000, 10000},
     {1, 10, 100, 1000, 10000, 100000},
     0},
    {"cached",
     offsetof(struct load, cached_blocks),
     {1000, 10000, 60000},
     {1000, 10000, 100000, 1000000},
     0},
    {"tenants", offsetof(struct load, tenants), {1, 30, 1000}, {1, 10, 100, 1000, 10000}, 20000},
};

static bool check(const struct dimension *d, bool all, double most)
{
    const uint32_t *sizes = all ? d->all : d->quick;
    double size[MAX_SIZES], cost[MAX_SIZES], slope = INFINITY;
    size_t n = 0;
    for (; n < MAX_SIZES && sizes[n]; n++) {
        size[n] = sizes[n];
        cost[n] = INFINITY;
    }
    for (int pass = 0; pass < PASSES && slope > most; pass++) {
        for (size_t i = 0; i < n; i++) {
            struct load l = usual;
            l.waiting = CN_MAX(l.waiting, all ? d->waiting : d->waiting / 10);
            memcpy((char *)&l + d->at, &sizes[i], sizeof sizes[i]);
            cost[i] = CN_MIN(cost[i], measure(l));
        }
        slope = slope_of(size, cost, n);
    }
    printf("%-8s", d->name);
    for (size_t i = 0; i < n; i++)
        printf("  %u: %.0f", sizes[i], cost[i]);
    printf("  ns a token; slope %.3f, at most %.2f\n", slope, most);
    fflush(stdout);
    return slope <= most;
}

int main(int argc, char **argv)
{
    bool all = getenv("CONIFER_LONG") != NULL, ok = true;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    for (size_t i = 0; i < CN_ARRAY_LEN(dimensions); i++) {
        bool asked = argc < 2;
        for (int k = 1; k < argc; k++)
            asked |= !strcmp(argv[k], dimensions[i].name);
        if (asked) ok &= check(&dimensions[i], all, all ? 0.05 : 0.15);
    }
    return ok ? 0 : 1;
}
