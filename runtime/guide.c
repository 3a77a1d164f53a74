/* guide: see guide.h. */
#include "runtime/guide.h"

#include <string.h>

static void make_masks(struct rt_mask_job *j)
{
    const struct rt_guide *g = j->guide;
    uint64_t began = cn_thread_ns();
    for (uint32_t i = 0; i <= j->n_guesses; i++) {
        uint32_t *words = j->words + (size_t)i * j->n_words;
        uint64_t spent = *j->spent + j->ns, left = spent < j->max_ns ? j->max_ns - spent : 1;
        memset(words, 0, j->n_words * sizeof *words);
        j->masks[i] = g->mask(g->arg, j->choice, j->guesses, i, left, words) ? words : NULL;
        j->ns = cn_thread_ns() - began;
    }
    *j->spent += j->ns;
}

/* Whoever waits is woken: it said so before it looked at `done` for the last time. */
static void finish(struct rt_masks *m, struct rt_mask_job *j)
{
    atomic_store(&j->done, true); /* from here on it may be gone */
    if (!atomic_load(&m->waits)) return;
    pthread_mutex_lock(&m->lock);
    pthread_cond_signal(&m->finished);
    pthread_mutex_unlock(&m->lock);
}

static void make_all(struct rt_masks *m, struct rt_mask_job *list)
{
    for (struct rt_mask_job *j = list, *next; j; j = next) {
        next = j->next;
        make_masks(j);
        finish(m, j);
    }
}

static void *run(void *arg)
{
    struct rt_masks *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        struct rt_mask_job *list = m->first;
        if (!list && m->stop) break;
        if (!list) {
            pthread_cond_wait(&m->work, &m->lock);
            continue;
        }
        m->first = NULL;
        m->last = &m->first;
        pthread_mutex_unlock(&m->lock);
        make_all(m, list);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void rt_masks_init(struct rt_masks *m)
{
    *m = (struct rt_masks){0};
    m->last = &m->first;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->finished, NULL);
}

void rt_masks_fini(struct rt_masks *m)
{
    if (m->started) {
        pthread_mutex_lock(&m->lock);
        m->stop = true;
        pthread_cond_signal(&m->work);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->work);
    pthread_cond_destroy(&m->finished);
}

/* With the first guided request: who has none pays nothing. */
static bool start(struct rt_masks *m)
{
    if (m->started) return true;
    m->started = !pthread_create(&m->thread, NULL, run, m);
    if (m->started) pthread_setname_np(m->thread, "masks");
    return m->started;
}

void rt_masks_ask(struct rt_masks *m, struct rt_mask_job *list)
{
    struct rt_mask_job *last = list;
    if (!list) return;
    if (!start(m)) {
        make_all(m, list);
        return;
    }
    while (last->next)
        last = last->next;
    pthread_mutex_lock(&m->lock);
    *m->last = list;
    m->last = &last->next;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

void rt_masks_wait(struct rt_masks *m, const struct rt_mask_job *j)
{
    if (atomic_load(&j->done)) return;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->waits, true);
    while (!atomic_load(&j->done))
        pthread_cond_wait(&m->finished, &m->lock);
    atomic_store(&m->waits, false);
    pthread_mutex_unlock(&m->lock);
}
