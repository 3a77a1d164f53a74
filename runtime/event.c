/* Events: one block each (and the reason of a failure), made by the engine thread, freed by who took
 * them. Blocks of a few tokens are of one size, and some of them are kept for the next: a token costs
 * no allocation. Invariant: what is kept is under the lock, and nobody else's. */
#include "runtime/rt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_BYTES = 512 };
#ifdef __SANITIZE_ADDRESS__
static const size_t max_kept = 0; /* so that a use after the end is seen */
#else
static const size_t max_kept = 4096;
#endif

struct block {
    struct block *next;
    bool keep; /* KEPT_BYTES large */
    struct rt_event e;
};

static struct { pthread_mutex_t lock; struct block *first; size_t n; } kept = {
    .lock = PTHREAD_MUTEX_INITIALIZER};

static struct rt_event *block_new(bool keep, size_t bytes)
{
    struct block *b = NULL;
    if (keep) {
        pthread_mutex_lock(&kept.lock);
        b = kept.first;
        if (b) {
            kept.first = b->next;
            kept.n--;
        }
        pthread_mutex_unlock(&kept.lock);
    }
    if (!b) b = malloc(bytes);
    if (!b) return NULL;
    *b = (struct block){.keep = keep};
    return &b->e;
}

static void block_free(struct block *b)
{
    bool keep = false;
    if (b->keep) {
        pthread_mutex_lock(&kept.lock);
        keep = kept.n < max_kept;
        if (keep) {
            b->next = kept.first;
            kept.first = b;
            kept.n++;
        }
        pthread_mutex_unlock(&kept.lock);
    }
    if (!keep) free(b);
}

struct rt_event *rt_event_new(uint64_t id, enum rt_event_kind kind, uint32_t choice,
                              const struct rt_event_parts *parts)
{
    static const struct rt_event_parts none;
    const struct rt_event_parts *p = parts ? parts : &none;
    size_t stop_len = p->stop_text ? strlen(p->stop_text) + 1 : 0;
    size_t tokens_bytes = p->n_tokens * sizeof *p->tokens, top_bytes = p->n_top * sizeof *p->top;
    size_t vector_bytes = p->n_vector * sizeof *p->vector;
    size_t text_len = p->text ? p->text->text.len : 0, n_runs = p->text ? p->text->n_runs : 0;
    size_t runs_bytes = n_runs * sizeof(struct eng_run);
    size_t bytes = sizeof(struct block) + runs_bytes + tokens_bytes + top_bytes + vector_bytes +
                   text_len + stop_len;
    bool keep = kind == RT_EV_TOKENS && bytes <= KEPT_BYTES;
    struct rt_event *e = block_new(keep, keep ? KEPT_BYTES : bytes);
    if (!e) return NULL;
    char *at = (char *)(e + 1);
    e->id = id;
    e->kind = kind;
    e->choice = choice;
    if (n_runs) e->runs = memcpy(at, p->text->runs, runs_bytes);
    e->n_runs = n_runs;
    at += runs_bytes;
    if (p->n_tokens) e->tokens = memcpy(at, p->tokens, tokens_bytes);
    e->n_tokens = p->n_tokens;
    at += tokens_bytes;
    if (p->n_top) e->top = memcpy(at, p->top, top_bytes);
    at += top_bytes;
    if (p->n_vector) e->vector = memcpy(at, p->vector, vector_bytes);
    e->n_vector = p->n_vector;
    at += vector_bytes;
    e->text = text_len ? memcpy(at, p->text->text.data, text_len) : "";
    e->text_len = text_len;
    at += text_len;
    if (stop_len) e->stop_text = memcpy(at, p->stop_text, stop_len);
    return e;
}

void rt_event_fail(struct rt_event *e, const struct cn_error *err)
{
    e->code = err->code;
    if (!err->message[0]) return;
    e->error = malloc(sizeof *e->error);
    if (e->error) *e->error = *err;
}

void rt_event_free(struct rt_event *e)
{
    if (!e) return;
    free(e->error);
    block_free(CN_CONTAINER(e, struct block, e));
}
