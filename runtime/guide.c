/* guide: see guide.h. */
#include "runtime/guide.h"

#include <string.h>

/* Processor time for which a step waits: for the masks of one tenant, for all masks, and for each
 * mask whatever the others took. A usual mask takes some ten microseconds, and the first ones of a
 * grammar up to two milliseconds. */
#define TENANT_NS 8000000u
#define STEP_NS   32000000u
#define LEAST_NS  100000u

static uint64_t time_left(const struct rt_mask_job *j)
{
    uint64_t own, all;
    if (!j->spent) return UINT64_MAX;
    own = TENANT_NS - CN_MIN(*j->spent + j->ns, (uint64_t)TENANT_NS);
    all = STEP_NS - CN_MIN(*j->all_spent + j->ns, (uint64_t)STEP_NS);
    return CN_MAX(CN_MIN(own, all), (uint64_t)LEAST_NS);
}

/* now: the thread's processor time. */
static void make_masks(struct rt_mask_job *j, uint64_t *now)
{
    const struct rt_guide *g = j->guide;
    uint64_t began = *now;
    for (uint32_t i = j->n_made; i <= j->n_guesses; i = j->n_made) {
        uint32_t *words = j->words + (size_t)i * j->n_words;
        memset(words, 0, j->n_words * sizeof *words);
        int may = g->mask(g->arg, j->choice, j->guesses, i, time_left(j), words);
        *now = cn_thread_ns();
        j->ns = *now - began;
        if (may == RT_NO_TIME) break;
        j->masks[i] = may == RT_SOME_IDS ? words : NULL;
        j->n_made++;
    }
    if (!j->spent) return;
    *j->spent += j->ns;
    *j->all_spent += j->ns;
}

/* Whoever waits is woken: it said so before it looked at `done` for the last time. */
static void finish(struct rt_masks *m, struct rt_mask_job *j)
{
    if (j->tell) {
        cn_mailbox_post(j->tell, j->told); /* from here on it may be gone, as behind `done` */
        return;
    }
    atomic_store(&j->done, true);
    if (!atomic_load(&m->waits)) return;
    pthread_mutex_lock(&m->lock);
    pthread_cond_signal(&m->finished);
    pthread_mutex_unlock(&m->lock);
}

static void make_all(struct rt_masks *m, struct rt_mask_job *list)
{
    uint64_t now = cn_thread_ns();
    for (struct rt_mask_job *j = list, *next; j; j = next) {
        next = j->next;
        make_masks(j, &now);
        finish(m, j);
    }
}

/* Takes what is to be done next off the list: all of it, or with by_turns the first. */
static struct rt_mask_job *take(struct rt_masks *m)
{
    struct rt_mask_job *list = m->first;
    m->first = m->by_turns ? list->next : NULL;
    if (m->by_turns) list->next = NULL;
    if (!m->first) m->last = &m->first;
    return list;
}

static void *run(void *arg)
{
    struct rt_masks *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        if (!m->first && m->stop) break;
        if (!m->first) {
            pthread_cond_wait(&m->work, &m->lock);
            continue;
        }
        struct rt_mask_job *list = take(m);
        pthread_mutex_unlock(&m->lock);
        make_all(m, list);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void rt_masks_init(struct rt_masks *m, const char *name)
{
    *m = (struct rt_masks){.name = name};
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
    if (m->started) pthread_setname_np(m->thread, m->name);
    return m->started;
}

static void append(struct rt_masks *m, struct rt_mask_job *list)
{
    struct rt_mask_job *last = list;
    while (last->next)
        last = last->next;
    *m->last = list;
    m->last = &last->next;
}

/* Behind the tenant's other jobs, and in front of those of tenants with more of them. A tenant that
 * had none begins where the first job is, not in front of all that have waited. */
static void insert(struct rt_masks *m, struct rt_mask_job *j)
{
    struct rt_mask_job **at = &m->first;
    j->turn = m->first ? m->first->turn : 0;
    for (const struct rt_mask_job *i = m->first; i; i = i->next)
        if (i->tenant == j->tenant) j->turn = i->turn + 1;
    while (*at && (*at)->turn <= j->turn)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    if (!j->next) m->last = &j->next;
}

void rt_masks_ask(struct rt_masks *m, struct rt_mask_job *list)
{
    if (!list) return;
    if (!start(m)) {
        make_all(m, list);
        return;
    }
    pthread_mutex_lock(&m->lock);
    if (m->by_turns)
        insert(m, list);
    else
        append(m, list);
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

bool rt_masks_drop(struct rt_masks *m, struct rt_mask_job *j)
{
    struct rt_mask_job **at = &m->first;
    pthread_mutex_lock(&m->lock);
    while (*at && *at != j)
        at = &(*at)->next;
    bool found = *at != NULL;
    if (found) *at = j->next;
    if (found && !*at) m->last = at;
    pthread_mutex_unlock(&m->lock);
    return found;
}
