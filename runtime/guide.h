/* guide: masks of guided requests, made by a thread of its own while the device runs the step that
 * they are for. Private to runtime/.
 *
 * The engine thread asks for the masks of a choice's rows once it knows every id before them,
 * does what else there is to do, and waits for them at the draw. A guide never makes masks while
 * it is given an id of the same choice: requested masks are waited for before their step is
 * collected, and ids are passed on only after a step was collected. For a mask that is made aside
 * nobody waits: its request is paused, so that no id of the choice comes.
 *
 * The step waits for a mask only a short time. A mask that takes longer is made once more by a
 * second thread, without that bound (aside.c). Its request is paused meanwhile, and its row runs
 * again when the mask is there. */
#ifndef RUNTIME_GUIDE_H
#define RUNTIME_GUIDE_H

#include "runtime/runtime.h"

/* Masks of a row that is drawn and of the guesses behind it. */
struct rt_mask_job {
    struct rt_mask_job *next;
    uint64_t tenant; /* with by_turns */
    uint32_t turn;   /* jobs of the tenant that are to be done before it */
    const struct rt_guide *guide;
    uint32_t choice, n_guesses;
    const uint32_t *guesses; /* borrowed until it is done */
    uint32_t n_words;        /* of a mask */
    uint32_t *words;         /* [(n_guesses + 1) * n_words] */
    const uint32_t **masks;  /* [n_guesses + 1]: into words, or NULL where all ids may be drawn */
    uint32_t n_made;         /* masks that are there; those behind took too long */
    uint64_t *spent;         /* time of the tenant's jobs in the step. NULL: no bound */
    uint64_t *all_spent;     /* of all jobs in the step */
    uint64_t own_spent;      /* where `spent` of the tenant's first job points */
    uint64_t ns;             /* processor time that this job took, once it is done */
    bool asked;
    struct cn_mailbox *tell; /* who is sent `told` when it is done; NULL: somebody waits for it */
    struct cn_msg *told;
    atomic_bool done;
};

struct rt_masks {
    const char *name; /* of the thread */
    bool by_turns;    /* one job of each tenant after the other, in turns */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    struct rt_mask_job *first, **last;
    bool started, stop;
    atomic_bool waits; /* the engine thread does, for a job */
};
void rt_masks_init(struct rt_masks *m, const char *name);
void rt_masks_fini(struct rt_masks *m); /* no job is left */
/* Has the masks of these jobs made, linked by `next`, one after the other; here and now where there
 * can be no thread. A job stays put until it was waited for. Engine thread. */
void rt_masks_ask(struct rt_masks *m, struct rt_mask_job *list);
void rt_masks_wait(struct rt_masks *m, const struct rt_mask_job *j);
/* Takes a job off the list; false: it is being done, or is done. */
bool rt_masks_drop(struct rt_masks *m, struct rt_mask_job *j);

/* ---- masks that take longer than a step may wait (aside.c); engine thread ---------------------
 */

struct rt_req;
struct rt_stepper;
struct rt_aside;
/* The mask of the choice's next id, at this position, is made aside; its request is paused until it
 * is there. CN_ENOMEM. */
int rt_aside_start(struct rt_stepper *s, struct rt_req *req, uint32_t choice, uint64_t position,
                   uint32_t n_words);
struct rt_cmd;
/* Handles RT_CMD_MASK, the second thread's message that a mask is made: resumes the request, or
 * frees it if it has ended meanwhile. */
void rt_aside_done(struct rt_stepper *s, struct rt_cmd *c);
/* The request has ended: drops its masks that were not begun, and has those that were given up. */
void rt_aside_drop(struct rt_stepper *s, struct rt_req *req);
/* The choice has ended: frees what it has, unless a mask is being made. */
void rt_aside_end(struct rt_req *req, uint32_t choice);
/* Gives a job the mask that was made aside for this position, as its first one. */
void rt_aside_use(const struct rt_aside *a, uint64_t position, struct rt_mask_job *j);

#endif
