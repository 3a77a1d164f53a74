/* Metrics: the fixed series of metrics.def and their text form (Prometheus 0.0.4).
 * Updates come from any thread as relaxed atomics; a page is a snapshot of each number, not of all
 * at one instant, but a histogram's count is always the sum of its buckets. */
#include "base/base.h"

#include <inttypes.h>
#include <string.h>

struct bound {
    uint64_t ns;
    const char *text; /* seconds, as the `le` label */
};

#define MS(n) ((uint64_t)((n)*1000000.0))

static const struct bound LATENCY[] = {
    {MS(1), "0.001"},  {MS(2.5), "0.0025"}, {MS(5), "0.005"},  {MS(10), "0.01"},  {MS(25), "0.025"},
    {MS(50), "0.05"},  {MS(100), "0.1"},    {MS(250), "0.25"}, {MS(500), "0.5"},  {MS(1000), "1"},
    {MS(2500), "2.5"}, {MS(5000), "5"},     {MS(10000), "10"}, {MS(30000), "30"}, {MS(60000), "60"},
};
static const struct bound DURATION[] = {
    {MS(50), "0.05"},    {MS(100), "0.1"},    {MS(250), "0.25"}, {MS(500), "0.5"},
    {MS(1000), "1"},     {MS(2500), "2.5"},   {MS(5000), "5"},   {MS(10000), "10"},
    {MS(20000), "20"},   {MS(40000), "40"},   {MS(80000), "80"}, {MS(160000), "160"},
    {MS(320000), "320"}, {MS(640000), "640"},
};
_Static_assert(CN_ARRAY_LEN(LATENCY) <= CN_HIST_MAX_BUCKETS, "LATENCY has too many buckets");
_Static_assert(CN_ARRAY_LEN(DURATION) <= CN_HIST_MAX_BUCKETS, "DURATION has too many buckets");

struct series {
    const char *name, *labels, *help;
    bool gauge;
};
static const struct series all_series[CN_M_COUNT] = {
#define COUNTER(id, name, labels, help) [CN_M_##id] = {name, labels, help, false},
#define GAUGE(id, name, labels, help)   [CN_M_##id] = {name, labels, help, true},
#define HISTOGRAM(id, name, help, buckets)
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

struct histogram {
    const char *name, *help;
    const struct bound *bounds;
    size_t count;
};
static const struct histogram all_hists[CN_H_COUNT] = {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets)                                                         \
    [CN_H_##id] = {name, help, buckets, CN_ARRAY_LEN(buckets)},
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

void cn_metric_add(struct cn_metrics *m, enum cn_metric id, uint64_t n)
{
    cn_assert(!all_series[id].gauge);
    atomic_fetch_add_explicit(&m->value[id], n, memory_order_relaxed);
}

void cn_metric_set(struct cn_metrics *m, enum cn_metric id, double value)
{
    uint64_t bits;

    cn_assert(all_series[id].gauge);
    memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&m->value[id], bits, memory_order_relaxed);
}

double cn_metric_get(const struct cn_metrics *m, enum cn_metric id)
{
    uint64_t bits = atomic_load_explicit(&m->value[id], memory_order_relaxed);
    double value;

    if (!all_series[id].gauge) return (double)bits;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void cn_metric_observe(struct cn_metrics *m, enum cn_histogram id, uint64_t ns)
{
    const struct histogram *h = &all_hists[id];
    size_t i = 0;

    while (i < h->count && ns > h->bounds[i].ns)
        i++;
    atomic_fetch_add_explicit(&m->hist[id].bucket[i == h->count ? CN_HIST_MAX_BUCKETS : i], 1,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&m->hist[id].sum_ns, ns, memory_order_relaxed);
}

static void put_head(struct cn_buf *out, const char *name, const char *help, const char *type)
{
    cn_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_series(const struct cn_metrics *m, enum cn_metric id, struct cn_buf *out)
{
    const struct series *s = &all_series[id];

    cn_buf_puts(out, s->name);
    if (s->labels[0]) cn_buf_printf(out, "{%s}", s->labels);
    if (s->gauge)
        cn_buf_printf(out, " %.15g\n", cn_metric_get(m, id));
    else
        cn_buf_printf(out, " %" PRIu64 "\n",
                      atomic_load_explicit(&m->value[id], memory_order_relaxed));
}

static void put_hist(const struct cn_metrics *m, enum cn_histogram id, struct cn_buf *out)
{
    const struct histogram *h = &all_hists[id];
    uint64_t sum_ns = atomic_load_explicit(&m->hist[id].sum_ns, memory_order_relaxed), seen = 0;

    put_head(out, h->name, h->help, "histogram");
    for (size_t i = 0; i < h->count; i++) {
        seen += atomic_load_explicit(&m->hist[id].bucket[i], memory_order_relaxed);
        cn_buf_printf(out, "%s_bucket{le=\"%s\"} %" PRIu64 "\n", h->name, h->bounds[i].text, seen);
    }
    seen += atomic_load_explicit(&m->hist[id].bucket[CN_HIST_MAX_BUCKETS], memory_order_relaxed);
    cn_buf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", h->name, seen);
    cn_buf_printf(out, "%s_sum %" PRIu64 ".%09" PRIu64 "\n%s_count %" PRIu64 "\n", h->name,
                  sum_ns / 1000000000u, sum_ns % 1000000000u, h->name, seen);
}

int cn_metrics_render(const struct cn_metrics *m, struct cn_buf *out)
{
    const char *last = "";

    for (int i = 0; i < CN_M_COUNT; i++) {
        const struct series *s = &all_series[i];

        if (strcmp(last, s->name)) put_head(out, s->name, s->help, s->gauge ? "gauge" : "counter");
        last = s->name;
        put_series(m, (enum cn_metric)i, out);
    }
    for (int i = 0; i < CN_H_COUNT; i++)
        put_hist(m, (enum cn_histogram)i, out);
    return out->failed ? (out->max ? CN_ELIMIT : CN_ENOMEM) : CN_OK;
}
