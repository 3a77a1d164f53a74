/* Metrics: the fixed series of metrics.def and their text form (Prometheus 0.0.4). Updates come
 * from any thread as atomics; a page is a snapshot of each number, not of all at one instant,
 * but a histogram's count is always the sum of its buckets. A reader that sees a thread's update
 * of one number also sees, in a number that it reads later, all earlier updates of that thread. */
#include "base/base.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct bound {
    uint64_t ns;
    const char *text; /* seconds (of STEPS: the number), as the `le` label */
};

#define MS(n) ((uint64_t)((n) * 1000000.0))

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
static const struct bound TURN[] = {
    {MS(0.1), "0.0001"}, {MS(0.25), "0.00025"}, {MS(0.5), "0.0005"}, {MS(1), "0.001"},
    {MS(2.5), "0.0025"}, {MS(5), "0.005"},      {MS(10), "0.01"},    {MS(25), "0.025"},
    {MS(50), "0.05"},    {MS(100), "0.1"},      {MS(250), "0.25"},   {MS(500), "0.5"},
    {MS(1000), "1"},     {MS(10000), "10"},
};
#define COUNT(n) {(uint64_t)(n) * 1000000000u, #n}
static const struct bound STEPS[] = {
    COUNT(1),  COUNT(2),  COUNT(3),  COUNT(4),  COUNT(5),  COUNT(6),   COUNT(8),   COUNT(10),
    COUNT(12), COUNT(16), COUNT(24), COUNT(32), COUNT(64), COUNT(128), COUNT(256), COUNT(1024),
};
_Static_assert(CN_ARRAY_LEN(STEPS) <= CN_HIST_MAX_BUCKETS, "STEPS has too many buckets");
_Static_assert(CN_ARRAY_LEN(TURN) <= CN_HIST_MAX_BUCKETS, "TURN has too many buckets");
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

#define CN_MODEL_METRICS
static const struct series model_series[CN_MM_COUNT] = {
#define COUNTER(id, name, labels, help) [CN_MM_##id] = {name, labels, help, false},
#define GAUGE(id, name, labels, help)   [CN_MM_##id] = {name, labels, help, true},
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
};
#undef CN_MODEL_METRICS

#define CN_GROUP_METRICS
static const struct series group_series[CN_GM_COUNT] = {
#define COUNTER(id, name, labels, help) [CN_GM_##id] = {name, labels, help, false},
#define GAUGE(id, name, labels, help)   [CN_GM_##id] = {name, labels, help, true},
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
};
#undef CN_GROUP_METRICS

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

#define CN_TENANT_METRICS
static const struct series tenant_series[CN_TM_COUNT] = {
#define COUNTER(id, name, labels, help) [CN_TM_##id] = {name, labels, help, false},
#define GAUGE(id, name, labels, help)   [CN_TM_##id] = {name, labels, help, true},
#define HISTOGRAM(id, name, help, buckets)
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};
static const struct histogram tenant_hists[CN_TH_COUNT] = {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets)                                                         \
    [CN_TH_##id] = {name, help, buckets, CN_ARRAY_LEN(buckets)},
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};
#undef CN_TENANT_METRICS

static uint64_t load(const _Atomic uint64_t *v)
{
    return atomic_load_explicit(v, memory_order_acquire);
}

static void set(_Atomic uint64_t *v, uint64_t value)
{
    atomic_store_explicit(v, value, memory_order_release);
}

static void add(_Atomic uint64_t *v, uint64_t n)
{
    atomic_fetch_add_explicit(v, n, memory_order_release);
}

/* ---- updates --------------------------------------------------------------------------------- */

void cn_metric_add(struct cn_metrics *m, enum cn_metric id, uint64_t n)
{
    cn_assert(!all_series[id].gauge);
    add(&m->value[id], n);
}

void cn_metric_set(struct cn_metrics *m, enum cn_metric id, double value)
{
    uint64_t bits;

    cn_assert(all_series[id].gauge);
    memcpy(&bits, &value, sizeof bits);
    set(&m->value[id], bits);
}

void cn_metric_shift(struct cn_metrics *m, enum cn_metric id, double by)
{
    uint64_t was = load(&m->value[id]), is;
    double value;

    cn_assert(all_series[id].gauge);
    if (by == 0) return;
    do {
        memcpy(&value, &was, sizeof value);
        value += by;
        memcpy(&is, &value, sizeof is);
    } while (!atomic_compare_exchange_weak_explicit(&m->value[id], &was, is, memory_order_acq_rel,
                                                    memory_order_acquire));
}

double cn_metric_get(const struct cn_metrics *m, enum cn_metric id)
{
    uint64_t bits = load(&m->value[id]);
    double value;

    if (!all_series[id].gauge) return (double)bits;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void observe(const struct histogram *h, struct cn_hist *hist, uint64_t ns)
{
    size_t i = 0;

    while (i < h->count && ns > h->bounds[i].ns)
        i++;
    add(&hist->bucket[i == h->count ? CN_HIST_MAX_BUCKETS : i], 1);
    add(&hist->sum_ns, ns);
}

void cn_metric_observe(struct cn_metrics *m, enum cn_histogram id, uint64_t ns)
{
    observe(&all_hists[id], &m->hist[id], ns);
}

/* Where a tenant's series are; NULL: it has none. */
static struct cn_tenant_series *tenant_at(const struct cn_metrics *m, size_t i)
{
    struct cn_metrics *w = (struct cn_metrics *)m;
    size_t first = 0;

    if (i >= atomic_load_explicit(&w->n_tenants, memory_order_acquire)) return NULL;
    for (size_t k = 0;; k++) {
        size_t n = (size_t)CN_TENANT_CHUNK << k;
        if (i < first + n)
            return &atomic_load_explicit(&w->tenants[k], memory_order_acquire)[i - first];
        first += n;
    }
}

static int make_chunks(struct cn_metrics *m, size_t n)
{
    size_t first = 0;

    if (n > (size_t)CN_TENANT_CHUNK * ((1u << CN_TENANT_CHUNKS) - 1)) return CN_ELIMIT;
    for (size_t k = 0; first < n; k++) {
        size_t size = (size_t)CN_TENANT_CHUNK << k;
        if (!atomic_load(&m->tenants[k])) {
            struct cn_tenant_series *chunk = cn_calloc(size, sizeof *chunk);
            if (!chunk) return CN_ENOMEM;
            atomic_store_explicit(&m->tenants[k], chunk, memory_order_release);
        }
        first += size;
    }
    return 0;
}

int cn_metrics_tenant(struct cn_metrics *m, size_t tenant, const char *name)
{
    char *copy = name ? strdup(name) : NULL;
    int rc = name && !copy ? CN_ENOMEM : make_chunks(m, tenant + 1);

    if (rc) {
        free(copy);
        return rc;
    }
    if (tenant >= atomic_load(&m->n_tenants))
        atomic_store_explicit(&m->n_tenants, tenant + 1, memory_order_release);
    struct cn_tenant_series *s = tenant_at(m, tenant);
    free(s->name);
    s->name = copy;
    for (int i = 0; i < CN_TM_COUNT; i++)
        set(&s->value[i], 0);
    for (int i = 0; i < CN_TH_COUNT; i++) {
        for (size_t b = 0; b <= CN_HIST_MAX_BUCKETS; b++)
            set(&s->hist[i].bucket[b], 0);
        set(&s->hist[i].sum_ns, 0);
    }
    return CN_OK;
}

int cn_metrics_tenants(struct cn_metrics *m, const char *const *names, size_t n)
{
    int rc = CN_OK;

    for (size_t i = 0; !rc && i < n; i++)
        rc = cn_metrics_tenant(m, i, names[i]);
    return rc;
}

int cn_metrics_models(struct cn_metrics *m, const char *const *names, size_t n)
{
    m->models = cn_calloc(n, sizeof *m->models);
    if (!m->models) return CN_ENOMEM;
    m->n_models = n;
    for (size_t i = 0; i < n; i++)
        m->models[i].name = names[i];
    return CN_OK;
}

int cn_metrics_groups(struct cn_metrics *m, const char *const *names, size_t n)
{
    m->groups = cn_calloc(n, sizeof *m->groups);
    if (!m->groups) return CN_ENOMEM;
    m->n_groups = n;
    for (size_t i = 0; i < n; i++)
        m->groups[i].name = names[i];
    return CN_OK;
}

void cn_metrics_fini(struct cn_metrics *m)
{
    for (size_t i = 0; i < atomic_load(&m->n_tenants); i++)
        free(tenant_at(m, i)->name);
    atomic_store(&m->n_tenants, 0);
    for (size_t k = 0; k < CN_TENANT_CHUNKS; k++) {
        free(atomic_load(&m->tenants[k]));
        atomic_store(&m->tenants[k], NULL);
    }
    free(m->models);
    m->models = NULL;
    m->n_models = 0;
    free(m->groups);
    m->groups = NULL;
    m->n_groups = 0;
}

void cn_model_add(struct cn_metrics *m, size_t model, enum cn_model_metric id, uint64_t n)
{
    cn_assert(!model_series[id].gauge);
    if (model < m->n_models) add(&m->models[model].value[id], n);
}

void cn_model_set(struct cn_metrics *m, size_t model, enum cn_model_metric id, uint64_t value)
{
    cn_assert(model_series[id].gauge);
    if (model < m->n_models) set(&m->models[model].value[id], value);
}

void cn_group_add(struct cn_metrics *m, size_t group, enum cn_group_metric id, uint64_t n)
{
    cn_assert(!group_series[id].gauge);
    if (group < m->n_groups) add(&m->groups[group].value[id], n);
}

void cn_group_set(struct cn_metrics *m, size_t group, enum cn_group_metric id, uint64_t value)
{
    cn_assert(group_series[id].gauge);
    if (group < m->n_groups) set(&m->groups[group].value[id], value);
}

void cn_tenant_add(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t n)
{
    cn_assert(!tenant_series[id].gauge);
    struct cn_tenant_series *s = tenant_at(m, tenant);
    if (s) add(&s->value[id], n);
}

void cn_tenant_set(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t value)
{
    cn_assert(tenant_series[id].gauge);
    struct cn_tenant_series *s = tenant_at(m, tenant);
    if (s) set(&s->value[id], value);
}

void cn_tenant_shift(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t from,
                     uint64_t to)
{
    cn_assert(tenant_series[id].gauge);
    struct cn_tenant_series *s = from == to ? NULL : tenant_at(m, tenant);
    if (s) add(&s->value[id], to - from);
}

void cn_tenant_observe(struct cn_metrics *m, size_t tenant, enum cn_tenant_histogram id,
                       uint64_t ns)
{
    struct cn_tenant_series *s = tenant_at(m, tenant);
    if (s) observe(&tenant_hists[id], &s->hist[id], ns);
}

/* ---- the page -------------------------------------------------------------------------------- */

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
        cn_buf_printf(out, " %" PRIu64 "\n", load(&m->value[id]));
}

/* label: `tenant="name"`, or empty. */
static void put_hist(const struct histogram *h, const struct cn_hist *hist, const char *label,
                     struct cn_buf *out)
{
    uint64_t sum_ns = load(&hist->sum_ns), seen = 0;
    const char *comma = *label ? "," : "", *open = *label ? "{" : "", *close = *label ? "}" : "";

    for (size_t i = 0; i < h->count; i++) {
        seen += load(&hist->bucket[i]);
        cn_buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", h->name, label, comma,
                      h->bounds[i].text, seen);
    }
    seen += load(&hist->bucket[CN_HIST_MAX_BUCKETS]);
    cn_buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", h->name, label, comma, seen);
    cn_buf_printf(out, "%s_sum%s%s%s %" PRIu64 ".%09" PRIu64 "\n", h->name, open, label, close,
                  sum_ns / 1000000000u, sum_ns % 1000000000u);
    cn_buf_printf(out, "%s_count%s%s%s %" PRIu64 "\n", h->name, open, label, close, seen);
}

static int rendered(const struct cn_buf *out)
{
    return out->failed ? (out->max ? CN_ELIMIT : CN_ENOMEM) : CN_OK;
}

/* `label="name"`, what the format asks to escape escaped. */
static void put_label(struct cn_buf *out, const char *label, const char *name)
{
    cn_buf_printf(out, "%s=\"", label);
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') cn_buf_putc(out, '\\');
        if (*name == '\n')
            cn_buf_puts(out, "\\n");
        else
            cn_buf_putc(out, *name);
    }
    cn_buf_putc(out, '"');
}

static void put_models(const struct cn_metrics *m, struct cn_buf *out)
{
    for (int i = 0; m->n_models && i < CN_MM_COUNT; i++) {
        const struct series *s = &model_series[i];

        put_head(out, s->name, s->help, s->gauge ? "gauge" : "counter");
        for (size_t k = 0; k < m->n_models; k++) {
            cn_buf_printf(out, "%s{", s->name);
            put_label(out, "model", m->models[k].name);
            cn_buf_printf(out, "} %" PRIu64 "\n", load(&m->models[k].value[i]));
        }
    }
}

static void put_groups(const struct cn_metrics *m, struct cn_buf *out)
{
    const char *last = "";

    for (int i = 0; m->n_groups && i < CN_GM_COUNT; i++) {
        const struct series *s = &group_series[i];

        if (!strcmp(last, s->name)) continue; /* its lines stand with the first of the name */
        last = s->name;
        put_head(out, s->name, s->help, s->gauge ? "gauge" : "counter");
        for (size_t k = 0; k < m->n_groups; k++)
            for (int j = i; j < CN_GM_COUNT && !strcmp(group_series[j].name, s->name); j++) {
                const char *more = group_series[j].labels;
                cn_buf_printf(out, "%s{", s->name);
                put_label(out, "group", m->groups[k].name);
                cn_buf_printf(out, "%s%s} %" PRIu64 "\n", more[0] ? "," : "", more,
                              load(&m->groups[k].value[j]));
            }
    }
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
    for (int i = 0; i < CN_H_COUNT; i++) {
        put_head(out, all_hists[i].name, all_hists[i].help, "histogram");
        put_hist(&all_hists[i], &m->hist[i], "", out);
    }
    put_models(m, out);
    put_groups(m, out);
    return rendered(out);
}

/* ---- tenants --------------------------------------------------------------------------------- */

/* Adds one tenant's series to those of `(other)`. */
static void sum_up(const struct cn_tenant_series *t, struct cn_tenant_series *out)
{
    for (int i = 0; i < CN_TM_COUNT; i++)
        add(&out->value[i], load(&t->value[i]));
    for (int i = 0; i < CN_TH_COUNT; i++) {
        for (size_t b = 0; b <= CN_HIST_MAX_BUCKETS; b++)
            add(&out->hist[i].bucket[b], load(&t->hist[i].bucket[b]));
        add(&out->hist[i].sum_ns, load(&t->hist[i].sum_ns));
    }
}

/* A family of the page: all its lines stand together. */
static void put_tenant_series(int id, const struct cn_tenant_series *t, const char *label,
                              struct cn_buf *out)
{
    const struct series *s = &tenant_series[id];

    cn_buf_printf(out, "%s{%s%s%s} %" PRIu64 "\n", s->name, label, s->labels[0] ? "," : "",
                  s->labels, load(&t->value[id]));
}

/* labels[i] belongs to tenants[i]. */
static void put_tenants(const struct cn_tenant_series *const *tenants, const char *const *labels,
                        size_t n, struct cn_buf *out)
{
    const char *last = "";

    for (int i = 0; i < CN_TM_COUNT;) {
        const struct series *s = &tenant_series[i];
        int end = i;

        put_head(out, s->name, s->help, s->gauge ? "gauge" : "counter");
        for (last = s->name; end < CN_TM_COUNT && !strcmp(tenant_series[end].name, last); end++) {
        }
        for (size_t t = 0; t < n; t++)
            for (int k = i; k < end; k++)
                put_tenant_series(k, tenants[t], labels[t], out);
        i = end;
    }
    for (int i = 0; i < CN_TH_COUNT; i++) {
        put_head(out, tenant_hists[i].name, tenant_hists[i].help, "histogram");
        for (size_t t = 0; t < n; t++)
            put_hist(&tenant_hists[i], &tenants[t]->hist[i], labels[t], out);
    }
}

/* The first of those that are to be seen, and in one more the sum of the others; how many. */
static size_t choose(const struct cn_metrics *m, size_t tenant, struct cn_tenant_series *other,
                     const struct cn_tenant_series *shown[CN_TENANTS_SHOWN + 1])
{
    bool all = tenant == CN_ALL_TENANTS, more = false;
    size_t from = all ? 0 : tenant, n = 0;

    for (size_t i = from; all || i == from; i++) {
        const struct cn_tenant_series *s = tenant_at(m, i);
        if (!s) break;
        if (!s->name) continue;
        if (n < CN_TENANTS_SHOWN) {
            shown[n++] = s;
        } else {
            more = true;
            sum_up(s, other);
        }
    }
    if (more) shown[n++] = other;
    return n;
}

int cn_metrics_render_tenants(const struct cn_metrics *m, size_t tenant, struct cn_buf *out)
{
    const struct cn_tenant_series *shown[CN_TENANTS_SHOWN + 1];
    const char *labels[CN_TENANTS_SHOWN + 1];
    size_t at[CN_TENANTS_SHOWN + 1];
    struct cn_tenant_series other = {.name = (char *)"(other)"};
    size_t n = choose(m, tenant, &other, shown);
    struct cn_buf text;

    if (!n) return rendered(out);
    cn_buf_init(&text, 0);
    for (size_t i = 0; i < n; i++) {
        at[i] = text.len;
        put_label(&text, "tenant", shown[i]->name);
        cn_buf_putc(&text, '\0');
    }
    for (size_t i = 0; !text.failed && i < n; i++)
        labels[i] = text.data + at[i];
    if (text.failed)
        out->failed = true;
    else
        put_tenants(shown, labels, n, out);
    cn_buf_fini(&text);
    return rendered(out);
}
