/* step: what the host asks for becomes a step's own, and what the device's thread makes of it. */
#include "kernels/async/async.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct kr_async_exec *exec_of(struct kr_exec *x)
{
    return CN_CONTAINER(x, struct kr_async_exec, base);
}

static int lost(const struct kr_async_exec *x, struct cn_error *err)
{
    const char *why;
    if (!kr_device_lost(&x->dev->base, &why)) return 0;
    return cn_fail(err, CN_EDEVICE, "the device is lost: %s", why);
}

/* ---- launch: the host's thread --------------------------------------------------------------- */

/* Entries of a group's table that rows up to last_pos need. */
static uint64_t n_entries(const struct kr_async_exec *x, uint32_t group, uint32_t last_pos)
{
    return x->base.info.groups[group].span == KR_SPAN_STATE
               ? 1
               : last_pos / x->base.opts.block_tokens + 1;
}

static int add_change(struct kr_async_exec *x, struct kr_async_step *s, const struct kr_seq *q,
                      uint32_t seq, uint32_t group, uint64_t from, uint64_t to)
{
    if (from >= to) return 0;
    if (to > x->max_entries) return CN_ERANGE;
    size_t n = to - from;
    int rc = cn_grow(&s->changes, &s->changes_cap, s->n_changes + 1, sizeof *s->changes);
    if (!rc) rc = cn_grow(&s->entries, &s->entries_cap, s->n_entries + n, sizeof *s->entries);
    if (rc) return rc;
    s->changes[s->n_changes++] = (struct kr_async_change){
        .seq = seq, .group = group, .from = (uint32_t)from, .n = (uint32_t)n, .at = s->n_entries};
    memcpy(s->entries + s->n_entries, q->tables[group] + from, n * sizeof *s->entries);
    s->n_entries += n;
    return 0;
}

/* Takes what differs from what the slot has, and lets the copy name the slot. */
static int take_tables(struct kr_async_exec *x, struct kr_async_step *s, const struct kr_seq *q,
                       uint32_t seq, uint32_t last_pos)
{
    bool slots = x->base.opts.max_seqs;
    uint32_t slot = slots ? q->slot : seq;
    bool known = slots && x->used[slot] && x->generations[slot] == q->generation && q->changed;
    for (uint32_t g = 0; g < x->base.info.n_groups; g++) {
        int rc = add_change(x, s, q, seq, g, known ? q->changed[g] : 0, n_entries(x, g, last_pos));
        if (rc) return rc;
    }
    x->used[slot] = true;
    x->generations[slot] = q->generation;
    s->seqs[seq] = (struct kr_seq){.slot = slot};
    return 0;
}

static int take_batch(struct kr_async_exec *x, struct kr_async_step *s, const struct kr_batch *b)
{
    int rc = cn_grow(&s->rows, &s->rows_cap, b->n_rows, sizeof *s->rows);
    if (!rc) rc = cn_grow(&s->seqs, &s->seqs_cap, b->n_seqs, sizeof *s->seqs);
    if (!rc) rc = cn_grow(&s->ids, &s->ids_cap, b->n_rows, sizeof *s->ids);
    if (!rc) rc = cn_grow(&s->results, &s->results_cap, b->n_rows, sizeof *s->results);
    if (rc) return rc;
    s->n_changes = s->n_entries = 0;
    s->n_wanted = x->base.n_wanted;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const struct kr_row *r = &b->rows[i];
        bool last = i + 1 == b->n_rows || b->rows[i + 1].seq != r->seq;
        s->rows[i] = *r;
        if (last) rc = take_tables(x, s, &b->seqs[r->seq], r->seq, r->pos);
        if (rc) return rc;
    }
    s->batch = (struct kr_batch){.n_rows = b->n_rows,
                                 .n_seqs = b->n_seqs,
                                 .rows = s->rows,
                                 .seqs = s->seqs,
                                 .drawn = b->drawn};
    return 0;
}

int kr_async_launch(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_batch *b,
                    uint64_t *ticket, struct cn_error *err)
{
    struct kr_async_exec *x = exec_of(base);
    struct kr_async_step *s = &x->steps[(x->base.ticket + 1) % KR_ASYNC_STEPS];
    int rc = lost(x, err);
    if (rc) return rc;
    rc = take_batch(x, s, b);
    if (rc) return cn_fail(err, rc, "the step cannot be taken: %s", cn_err_info(rc)->text);
    s->ticket = *ticket = ++x->base.ticket;
    s->rc = 0;
    s->err = (struct cn_error){0};
    s->draw_asked = s->forward_done = s->draw_done = false;
    s->forward = (struct kr_async_job){.kind = KR_ASYNC_FORWARD, .x = x, .step = s, .mem = m};
    kr_async_push(x->dev, &s->forward);
    return 0;
}

/* ---- draw: the host's thread ----------------------------------------------------------------- */

static size_t mask_words(const struct kr_async_exec *x)
{
    return (x->base.info.n_vocab + 31) / 32;
}

/* Guesses and masks into memory of the step, which must not move once it is pointed to. */
static int take_draws(struct kr_async_exec *x, struct kr_async_step *s, const struct kr_draw *draws,
                      uint32_t n)
{
    size_t words = 0, pointers = 0, per_mask = mask_words(x);
    for (uint32_t i = 0; i < n; i++) {
        words += draws[i].n_guesses;
        if (!draws[i].masks) continue;
        pointers += draws[i].n_guesses + 1;
        for (uint32_t k = 0; k <= draws[i].n_guesses; k++)
            words += draws[i].masks[k] ? per_mask : 0;
    }
    int rc = cn_grow(&s->draws, &s->draws_cap, n, sizeof *s->draws);
    if (!rc) rc = cn_grow(&s->words, &s->words_cap, words, sizeof *s->words);
    if (!rc) rc = cn_grow(&s->masks, &s->masks_cap, pointers, sizeof *s->masks);
    if (rc) return rc;
    uint32_t *word = s->words;
    const uint32_t **mask = s->masks;
    for (uint32_t i = 0; i < n; i++) {
        struct kr_draw *d = &s->draws[i];
        *d = draws[i];
        d->state = NULL; /* the host's: the device's thread finds its own */
        if (!draws[i].state) d->at.generation = 0;
        d->guesses = word;
        if (d->n_guesses) memcpy(word, draws[i].guesses, d->n_guesses * sizeof *word);
        word += d->n_guesses;
        if (!d->masks) continue;
        d->masks = mask;
        for (uint32_t k = 0; k <= d->n_guesses; k++, mask++) {
            *mask = draws[i].masks[k] ? word : NULL;
            if (!*mask) continue;
            memcpy(word, draws[i].masks[k], per_mask * sizeof *word);
            word += per_mask;
        }
    }
    s->n_draws = n;
    return 0;
}

/* NULL: no such step is there. */
static struct kr_async_step *find(struct kr_async_exec *x, uint64_t ticket, bool drawn)
{
    struct kr_async_step *s = &x->steps[ticket % KR_ASYNC_STEPS];
    return ticket && s->ticket == ticket && s->draw_asked == drawn ? s : NULL;
}

static int no_step(const struct kr_async_exec *x, uint64_t ticket, const char *what,
                   struct cn_error *err)
{
    int rc = lost(x, err);
    return rc ? rc
              : cn_fail(err, CN_EINVAL, "there is no step %llu %s", (unsigned long long)ticket,
                        what);
}

int kr_async_draw(struct kr_exec *base, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                  struct cn_error *err)
{
    struct kr_async_exec *x = exec_of(base);
    struct kr_async_step *s = find(x, ticket, false);
    int rc = lost(x, err);
    if (rc) return rc;
    if (!s || !s->batch.drawn) return no_step(x, ticket, "to draw", err);
    rc = take_draws(x, s, draws, n);
    if (rc) return cn_fail(err, rc, "out of memory for the draws of a step");
    s->draw_asked = true;
    s->draw_job = (struct kr_async_job){.kind = KR_ASYNC_DRAW, .x = x, .step = s};
    kr_async_push(x->dev, &s->draw_job);
    return 0;
}

static int wait(struct kr_async_exec *x, const struct kr_async_step *s, const bool *done,
                struct cn_error *err)
{
    pthread_mutex_lock(&x->dev->lock);
    while (!*done)
        pthread_cond_wait(&x->dev->done, &x->dev->lock);
    pthread_mutex_unlock(&x->dev->lock);
    if (s->rc && err) *err = s->err;
    return s->rc;
}

int kr_async_collect(struct kr_exec *base, uint64_t ticket, float **logits, struct cn_error *err)
{
    struct kr_async_exec *x = exec_of(base);
    struct kr_async_step *s = find(x, ticket, false);
    if (!s || s->batch.drawn) return no_step(x, ticket, "to collect", err);
    int rc = wait(x, s, &s->forward_done, err);
    if (!rc) *logits = s->logits;
    return rc;
}

int kr_async_collect_drawn(struct kr_exec *base, uint64_t ticket, const struct kr_result **out,
                           struct cn_error *err)
{
    struct kr_async_exec *x = exec_of(base);
    struct kr_async_step *s = find(x, ticket, true);
    if (!s) return no_step(x, ticket, "that was drawn", err);
    int rc = wait(x, s, &s->draw_done, err);
    if (!rc) *out = s->results;
    return rc;
}

/* ---- the device's thread --------------------------------------------------------------------- */

static void apply_changes(struct kr_async_exec *x, struct kr_async_step *s)
{
    uint32_t groups = x->base.info.n_groups;
    for (size_t i = 0; i < s->n_changes; i++) {
        const struct kr_async_change *c = &s->changes[i];
        uint32_t *table = x->pointers[(size_t)s->seqs[c->seq].slot * groups + c->group];
        memcpy(table + c->from, s->entries + c->at, c->n * sizeof *table);
    }
    for (uint32_t i = 0; i < s->batch.n_seqs; i++)
        s->seqs[i].tables = (const uint32_t *const *)&x->pointers[(size_t)s->seqs[i].slot * groups];
}

/* Of a row whose draw failed anything will do: its request has ended by then. */
static void look_up_ids(struct kr_async_exec *x, struct kr_async_step *s)
{
    for (uint32_t i = 0; i < s->batch.n_rows; i++) {
        struct kr_row *r = &s->rows[i];
        if (r->src != KR_ROW_TICKET) continue;
        const struct kr_async_step *from = &x->steps[r->from.ticket % KR_ASYNC_STEPS];
        uint32_t id = 0;
        if (from->ticket == r->from.ticket && r->from.row < from->batch.n_rows && !from->rc)
            id = from->ids[r->from.row];
        r->src = KR_ROW_TOKEN;
        r->token = id;
    }
}

static void keep_logits(struct kr_async_exec *x, struct kr_async_step *s)
{
    size_t n = (size_t)s->n_wanted * x->base.info.n_vocab;
    float *logits;
    s->rc = kr_collect(x->cpu, s->cpu_ticket, &logits, &s->err);
    if (!s->rc && cn_grow(&s->logits, &s->logits_cap, n, sizeof *s->logits))
        s->rc = cn_fail(&s->err, CN_ENOMEM, "out of memory for logits");
    if (!s->rc && n) memcpy(s->logits, logits, n * sizeof *logits);
}

static void forward(struct kr_async *d, struct kr_async_job *j)
{
    struct kr_async_step *s = j->step;
    struct timespec delay = {.tv_sec = (time_t)(d->opts.delay_ns / 1000000000u),
                             .tv_nsec = (long)(d->opts.delay_ns % 1000000000u)};
    if (d->opts.lost_after && ++d->n_steps > d->opts.lost_after) {
        atomic_store(&d->lost, true);
        s->rc = lost(j->x, &s->err);
        return;
    }
    if (d->opts.delay_ns) nanosleep(&delay, NULL);
    apply_changes(j->x, s);
    look_up_ids(j->x, s);
    s->rc = kr_launch(j->x->cpu, j->mem, &s->batch, &s->cpu_ticket, &s->err);
    if (!s->rc && !s->batch.drawn) keep_logits(j->x, s);
}

/* No other forward pass of this exec came since the step's. */
static void draw(struct kr_async_exec *x, struct kr_async_step *s)
{
    const struct kr_result *r;
    uint32_t n = 0;
    int unused;
    if (s->rc) return;
    for (uint32_t i = 0; i < s->n_draws; i++)
        if (s->draws[i].at.generation)
            s->draws[i].state = kr_async_state(x, s->draws[i].at, &unused);
    s->rc = kr_draw(x->cpu, s->cpu_ticket, s->draws, s->n_draws, &s->err);
    if (!s->rc) s->rc = kr_collect_drawn(x->cpu, s->cpu_ticket, &r, &s->err);
    if (s->rc) return;
    memcpy(s->results, r, s->n_wanted * sizeof *r);
    for (uint32_t i = 0; i < s->n_draws; i++) {
        struct kr_draw *d = &s->draws[i]; /* one without a state was scored instead */
        if (d->at.generation && !d->state) kr_async_state(x, d->at, &s->results[d->row].status);
    }
    for (uint32_t i = 0; i < s->batch.n_rows; i++) {
        s->ids[i] = 0;
        if (!s->rows[i].logits) continue;
        if (!s->results[n].status) s->ids[i] = s->results[n].drawn.id;
        n++;
    }
}

void kr_async_run(struct kr_async *d, struct kr_async_job *j)
{
    switch (j->kind) {
    case KR_ASYNC_COPY:
        kr_kv_copy(j->x->cpu, j->mem, j->group, j->dst, j->src, j->n_tokens);
        break;
    case KR_ASYNC_MOVE:
        kr_async_run_move(d, j);
        break;
    case KR_ASYNC_STATE:
        kr_async_run_state(j->x, j);
        break;
    case KR_ASYNC_FORWARD:
        forward(d, j);
        break;
    case KR_ASYNC_DRAW:
        draw(j->x, j->step);
        break;
    }
}
