/* Stop strings, stop ids and bias, made once for a call. Immutable but for the count; any
 * thread. */
#include "runtime/shared.h"

#include <stdlib.h>
#include <string.h>

static void *copy_of(const void *p, size_t n, size_t size)
{
    void *q = cn_malloc_array(n, size);

    if (q && n) memcpy(q, p, n * size);
    return q;
}

static int copy_stops(struct rt_shared *s, const char *const *stop, size_t n)
{
    size_t bytes = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        bytes += strlen(stop[i]) + 1;
    const char **texts = cn_malloc_array(n, sizeof *texts);
    s->text = cn_malloc_array(bytes, 1);
    for (size_t i = 0; texts && s->text && i < n; i++) {
        size_t len = strlen(stop[i]) + 1;
        texts[i] = memcpy(s->text + at, stop[i], len);
        at += len;
    }
    int rc = texts && s->text ? rt_stop_set_init(&s->stops, texts, n) : CN_ENOMEM;
    free(texts);
    return rc;
}

int rt_shared_new(const struct rt_shared_in *in, struct rt_shared **out)
{
    struct rt_shared *s = cn_calloc(1, sizeof *s);

    if (!s) return CN_ENOMEM;
    atomic_init(&s->refs, 1);
    s->n_stop_ids = in->n_stop_ids;
    s->n_bias = in->n_bias;
    s->stop_ids = copy_of(in->stop_ids, in->n_stop_ids, sizeof *s->stop_ids);
    s->bias = copy_of(in->bias, in->n_bias, sizeof *s->bias);
    if (!s->stop_ids || !s->bias || copy_stops(s, in->stop, in->n_stop)) {
        rt_shared_unref(s);
        return CN_ENOMEM;
    }
    *out = s;
    return 0;
}

struct rt_shared *rt_shared_ref(struct rt_shared *s)
{
    if (s) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rt_shared_unref(struct rt_shared *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1) return;
    rt_stop_set_fini(&s->stops);
    free(s->text);
    free(s->stop_ids);
    free(s->bias);
    free(s);
}

const struct rt_shared *rt_shared_of(const struct rt_request *q)
{
    static const struct rt_shared none;

    return q->shared ? q->shared : &none;
}
