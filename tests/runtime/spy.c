#include "tests/runtime/spy.h"

#include "kernels/device.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct spy seen;
static const struct kr_device_ops
    *outer; /* of the engine's device, where another one works for it */

int __real_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __real_kr_draw_open(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_state *s,
                        struct kr_draw_at like, const uint32_t *output, size_t n_output);
int __wrap_kr_draw_open(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_state *s,
                        struct kr_draw_at like, const uint32_t *output, size_t n_output);
void __real_kv_pool_stats(const struct kv_pool *p, struct kv_stats *out);
void __wrap_kv_pool_stats(const struct kv_pool *p, struct kv_stats *out);

/* Rows of a sequence lie side by side. */
static bool is_mixed(const struct kr_batch *b)
{
    uint32_t ones = 0, n = 0;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        n++;
        if (i + 1 < b->n_rows && b->rows[i + 1].seq == b->rows[i].seq) continue;
        ones += n == 1;
        n = 0;
    }
    return ones && ones < b->n_seqs;
}

int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err)
{
    pthread_mutex_lock(&lock);
    if (x->ops->max_depth > 1) outer = x->ops;
    if (outer && x->ops != outer) { /* async hands its steps to the CPU */
        pthread_mutex_unlock(&lock);
        return __real_kr_launch(x, mem, b, ticket, err);
    }
    seen.steps++;
    seen.rows += b->n_rows;
    seen.most_seqs = CN_MAX(seen.most_seqs, b->n_seqs);
    seen.most_rows = CN_MAX(seen.most_rows, b->n_rows);
    seen.mixed += is_mixed(b);
    for (uint32_t i = 0; i < b->n_rows; i++)
        seen.tickets += b->rows[i].src == KR_ROW_TICKET;
    pthread_mutex_unlock(&lock);
    return __real_kr_launch(x, mem, b, ticket, err);
}

int __wrap_kr_draw_open(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_state *s,
                        struct kr_draw_at like, const uint32_t *output, size_t n_output)
{
    pthread_mutex_lock(&lock);
    seen.opened++;
    seen.opened_late += n_output > 0;
    pthread_mutex_unlock(&lock);
    return __real_kr_draw_open(x, at, s, like, output, n_output);
}

void __wrap_kv_pool_stats(const struct kv_pool *p, struct kv_stats *out)
{
    __real_kv_pool_stats(p, out);
    pthread_mutex_lock(&lock);
    seen.pool = *out;
    pthread_mutex_unlock(&lock);
}

void spy_reset(void)
{
    pthread_mutex_lock(&lock);
    seen = (struct spy){0};
    outer = NULL;
    pthread_mutex_unlock(&lock);
}

struct spy spy_read(void)
{
    pthread_mutex_lock(&lock);
    struct spy s = seen;
    pthread_mutex_unlock(&lock);
    return s;
}
