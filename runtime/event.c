/* Events: one block each (plus the reason of a failure), made by the engine thread, freed by the
 * receiver. Blocks for a few tokens have one size, and some are kept for reuse, so that a token
 * costs no allocation. Invariant: kept blocks are under the lock and belong to the store alone;
 * the store is freed with its runtime or with the last of its blocks, whichever is later. */
#include "runtime/rt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif

enum { KEPT_BYTES = 512 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
static const size_t max_kept = 0; /* so that a use after the end is seen */
#else
static const size_t max_kept = 4096;
#endif

struct block {
    struct block *next;
    struct rt_kept *home; /* KEPT_BYTES large; NULL: of any size */
    struct rt_event e;
};

struct rt_kept {
    pthread_mutex_t lock;
    struct block *first;
    size_t n, n_out; /* kept; with those who take events */
    bool closed;
};

struct rt_kept *rt_kept_new(void)
{
    struct rt_kept *k = cn_calloc(1, sizeof *k);
    if (k && pthread_mutex_init(&k->lock, NULL)) {
        free(k);
        return NULL;
    }
    return k;
}

static void kept_free(struct rt_kept *k)
{
    for (struct block *b = k->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    pthread_mutex_destroy(&k->lock);
    free(k);
}

void rt_kept_close(struct rt_kept *k)
{
    if (!k) return;
    pthread_mutex_lock(&k->lock);
    k->closed = true;
    bool last = !k->n_out;
    pthread_mutex_unlock(&k->lock);
    if (last) kept_free(k);
}

static struct block *take_kept(struct rt_kept *k)
{
    pthread_mutex_lock(&k->lock);
    struct block *b = k->first;
    if (b) {
        k->first = b->next;
        k->n--;
    }
    k->n_out++;
    pthread_mutex_unlock(&k->lock);
    return b;
}

static void give_back(struct rt_kept *k, struct block *b)
{
    pthread_mutex_lock(&k->lock);
    bool keep = b && !k->closed && k->n < max_kept;
    if (keep) {
        b->next = k->first;
        k->first = b;
        k->n++;
    }
    bool last = !--k->n_out && k->closed;
    pthread_mutex_unlock(&k->lock);
    if (!keep) free(b);
    if (last) kept_free(k);
}

static struct rt_event *block_new(struct rt_kept *home, size_t bytes)
{
    struct block *b = home ? take_kept(home) : NULL;
    if (!b) b = malloc(bytes);
    if (!b) {
        if (home) give_back(home, NULL);
        return NULL;
    }
    *b = (struct block){.home = home};
    return &b->e;
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
    bool keep = p->kept && bytes <= KEPT_BYTES;
    struct rt_event *e = block_new(keep ? p->kept : NULL, keep ? KEPT_BYTES : bytes);
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
    struct block *b = CN_CONTAINER(e, struct block, e);
    if (b->home)
        give_back(b->home, b);
    else
        free(b);
}
