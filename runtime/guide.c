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

static void *run(void *arg)
{
    struct rt_masks *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        struct rt_mask_job *j = m->first;
        if (!j && m->stop) break;
        if (!j) {
            pthread_cond_wait(&m->work, &m->lock);
            continue;
        }
        m->first = j->next;
        if (!m->first) m->last = &m->first;
        pthread_mutex_unlock(&m->lock);
        make_masks(j);
        pthread_mutex_lock(&m->lock);
        j->done = true;
        pthread_cond_signal(&m->done);
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
    pthread_cond_init(&m->done, NULL);
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
    pthread_cond_destroy(&m->done);
}

/* With the first guided request: who has none pays nothing. */
static bool start(struct rt_masks *m)
{
    if (m->started) return true;
    m->started = !pthread_create(&m->thread, NULL, run, m);
    if (m->started) pthread_setname_np(m->thread, "masks");
    return m->started;
}

void rt_masks_ask(struct rt_masks *m, struct rt_mask_job *j)
{
    j->next = NULL;
    j->asked = true;
    j->done = false;
    if (!start(m)) {
        make_masks(j);
        j->done = true;
        return;
    }
    pthread_mutex_lock(&m->lock);
    *m->last = j;
    m->last = &j->next;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

void rt_masks_wait(struct rt_masks *m, const struct rt_mask_job *j)
{
    pthread_mutex_lock(&m->lock);
    while (!j->done)
        pthread_cond_wait(&m->done, &m->lock);
    pthread_mutex_unlock(&m->lock);
}
