/* draw: the asynchronous device's own draw states, one per slot. The host sends each once and then
 * its changes; nothing here points to the host's memory, as with a GPU. */
#include "kernels/async/async.h"

#include <stdlib.h>
#include <string.h>

/* Parameters with the lists that they name, shared by the choices of a request. */
struct kr_async_lists {
    uint32_t refs;
    struct kr_draw_opts opts; /* its lists are in `words` */
    uint32_t words[];
};

struct told {
    struct kr_async_job job;
    enum { NEW, CLONE, PUT, DROP } what;
    uint32_t slot, from, choice;
    uint64_t generation, before;
    struct kr_async_lists *lists; /* NEW: moved */
    size_t n_ids;
    uint32_t ids[]; /* NEW: of the prompt; PUT: of the output */
};

static struct kr_async_exec *exec_of(struct kr_exec *x)
{
    return CN_CONTAINER(x, struct kr_async_exec, base);
}

/* ---- the host's thread ----------------------------------------------------------------------- */

/* NULL when out of memory. */
static struct told *told_new(const uint32_t *ids, size_t n)
{
    struct told *t = cn_calloc(1, sizeof *t + n * sizeof *ids);
    if (!t) return NULL;
    if (n) memcpy(t->ids, ids, n * sizeof *ids);
    t->n_ids = n;
    return t;
}

static int push(struct kr_exec *x, struct told *t)
{
    if (!t) return CN_ENOMEM;
    t->job = (struct kr_async_job){.kind = KR_ASYNC_STATE, .x = exec_of(x)};
    kr_async_push(exec_of(x)->dev, &t->job);
    return 0;
}

static const void *copied(uint32_t **at, const void *from, size_t bytes)
{
    void *to = *at;
    if (bytes) memcpy(to, from, bytes);
    *at += bytes / sizeof **at;
    return to;
}

static struct kr_async_lists *lists_new(const struct kr_draw_opts *o)
{
    size_t words = o->n_edits * (sizeof *o->edits / sizeof(uint32_t)) + o->n_never + o->n_late +
                   o->n_late_more;
    struct kr_async_lists *l = cn_malloc_array(1, sizeof *l + words * sizeof(uint32_t));
    if (!l) return NULL;
    uint32_t *at = l->words;
    l->refs = 1;
    l->opts = *o;
    l->opts.edits = copied(&at, o->edits, o->n_edits * sizeof *o->edits);
    l->opts.never = copied(&at, o->never, o->n_never * sizeof *o->never);
    l->opts.late = copied(&at, o->late, o->n_late * sizeof *o->late);
    l->opts.late_more = copied(&at, o->late_more, o->n_late_more * sizeof *o->late_more);
    return l;
}

int kr_async_draw_new(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_told *told)
{
    struct told *t = told_new(told->prompt, told->n_prompt);
    if (!t) return CN_ENOMEM;
    t->what = NEW;
    t->slot = at.slot;
    t->generation = at.generation;
    t->choice = told->choice;
    t->lists = lists_new(told->opts);
    if (t->lists) return push(x, t);
    free(t);
    return CN_ENOMEM;
}

int kr_async_draw_clone(struct kr_exec *x, struct kr_draw_at at, uint32_t choice,
                        uint32_t from_slot)
{
    struct told *t = told_new(NULL, 0);
    if (!t) return CN_ENOMEM;
    t->what = CLONE;
    t->slot = at.slot;
    t->generation = at.generation;
    t->choice = choice;
    t->from = from_slot;
    return push(x, t);
}

int kr_async_draw_put(struct kr_exec *x, uint32_t slot, uint64_t before, const uint32_t *ids,
                      size_t n)
{
    struct told *t = told_new(ids, n);
    if (!t) return CN_ENOMEM;
    t->what = PUT;
    t->slot = slot;
    t->before = before;
    return push(x, t);
}

void kr_async_draw_drop(struct kr_exec *x, uint32_t slot)
{
    struct told *t = told_new(NULL, 0);
    if (!t) return; /* it stays until the slot is used again */
    t->what = DROP;
    t->slot = slot;
    push(x, t);
}

/* ---- the device's thread --------------------------------------------------------------------- */

static void empty(struct kr_async_exec *x, struct kr_async_copy *c)
{
    if (c->generation) x->n_copies--;
    kr_draw_state_free(c->state);
    if (c->lists && --c->lists->refs == 0) free(c->lists);
    *c = (struct kr_async_copy){0};
}

static void make(struct kr_async_exec *x, const struct told *t, struct kr_async_copy *c)
{
    empty(x, c);
    x->n_copies++;
    c->generation = t->generation;
    c->lists = t->lists;
    c->rc = kr_draw_state_new(&c->lists->opts, t->choice, &x->rooms, &c->state);
    if (!c->rc) c->rc = kr_draw_state_prompt(c->state, t->ids, t->n_ids);
}

static void copy(struct kr_async_exec *x, const struct told *t, struct kr_async_copy *c)
{
    const struct kr_async_copy *from = &x->copies[t->from];
    empty(x, c);
    x->n_copies++;
    c->generation = t->generation;
    c->rc = from->rc;
    if (c->rc) return;
    c->lists = from->lists;
    c->lists->refs++;
    c->rc = kr_draw_state_clone(from->state, t->choice, &c->state);
}

static void put(const struct told *t, struct kr_async_copy *c)
{
    if (c->rc) return;
    kr_draw_state_cut(c->state, t->before);
    for (size_t i = 0; i < t->n_ids && !c->rc; i++)
        c->rc = kr_draw_state_accept(c->state, t->ids[i]);
}

void kr_async_run_state(struct kr_async_exec *x, struct kr_async_job *j)
{
    const struct told *t = CN_CONTAINER(j, struct told, job);
    struct kr_async_copy *c = &x->copies[t->slot];
    switch (t->what) {
    case NEW:
        make(x, t, c);
        break;
    case CLONE:
        copy(x, t, c);
        break;
    case PUT:
        put(t, c);
        break;
    case DROP:
        empty(x, c);
        if (!x->n_copies) kr_draw_rooms_trim(&x->rooms);
        break;
    }
}

struct kr_draw_state *kr_async_state(const struct kr_async_exec *x, struct kr_draw_at at, int *rc)
{
    const struct kr_async_copy *c = &x->copies[at.slot];
    *rc = c->generation != at.generation ? CN_EINTERNAL : c->rc;
    return *rc ? NULL : c->state;
}

void kr_async_copies_fini(struct kr_async_exec *x)
{
    for (uint32_t i = 0; x->copies && i < x->base.opts.max_seqs; i++)
        empty(x, &x->copies[i]);
    free(x->copies);
    kr_draw_rooms_fini(&x->rooms);
}
