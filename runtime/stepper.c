/* The scheduler's steps on a device: builds the batch, has it run and drawn, hands out the ids.
 * Engine thread. As many steps may be in flight as the device takes; a step's buffers and
 * results belong to its flight until it is collected. */
#include "runtime/rt.h"

#include <stdlib.h>

/* A row whose logits are wanted. */
struct rt_logits_row {
    struct rt_req *req;
    uint64_t pos;   /* of the row; its logits are about position pos + 1 */
    bool scored;    /* the prompt has an id there, whose log-probability is asked for */
    bool guess;     /* its id is a guess: what comes of it counts only if that was right */
    int32_t sample; /* index among the step's sampled rows, or -1 */
};

void rt_stepper_init(struct rt_stepper *s, struct rt_group *g)
{
    *s = (struct rt_stepper){.group = g, .depth = 1};
    kr_draw_rooms_init(&s->rooms);
    rt_masks_init(&s->masks, "masks");
    rt_masks_init(&s->asides, "masks-aside");
    s->asides.by_turns = true;
}

void rt_stepper_fini(struct rt_stepper *s)
{
    for (uint32_t i = 0; i < RT_MAX_DEPTH; i++) {
        struct rt_flight *f = &s->flights[i];
        free(f->rows);
        free(f->seqs);
        free(f->more);
        free(f->changed);
        free(f->turns);
        free(f->draws);
        free(f->results);
        free(f->logits_rows);
        free(f->jobs);
        free(f->mask_words);
        free(f->masks);
    }
    rt_masks_fini(&s->masks);
    rt_masks_fini(&s->asides);
    kr_draw_rooms_fini(&s->rooms);
    *s = (struct rt_stepper){0};
}

/* ---- what a step brings ---------------------------------------------------------------------- */

static int reserve(struct rt_flight *f, const struct sch_step *step, uint32_t n_groups)
{
    size_t n_changed = (size_t)step->n_segments * n_groups, n_more = 0;
    for (uint32_t i = 0; i < step->n_segments; i++)
        n_more += step->segments[i].n_more;
    int rc = cn_grow(&f->rows, &f->rows_cap, step->n_rows, sizeof *f->rows);
    if (!rc) rc = cn_grow(&f->seqs, &f->seqs_cap, step->n_segments, sizeof *f->seqs);
    if (!rc) rc = cn_grow(&f->more, &f->more_cap, n_more, sizeof *f->more);
    if (!rc) rc = cn_grow(&f->changed, &f->changed_cap, n_changed, sizeof *f->changed);
    if (!rc) rc = cn_grow(&f->draws, &f->draws_cap, step->n_logits, sizeof *f->draws);
    if (!rc) rc = cn_grow(&f->logits_rows, &f->logits_cap, step->n_logits, sizeof *f->logits_rows);
    if (!rc) rc = cn_grow(&f->results, &f->results_cap, step->n_sample, sizeof *f->results);
    return rc;
}

/* changed: room for the sequence's groups; NULL: the device keeps no tables. */
static void fill_seq(struct kr_seq *q, const struct sch_segment *g, uint32_t *changed,
                     uint32_t n_groups)
{
    for (uint32_t k = 0; changed && k < n_groups; k++)
        changed[k] = kv_seq_changed(g->seq, k);
    *q = (struct kr_seq){.tables = kv_seq_tables(g->seq),
                         .slot = g->slot,
                         .generation = g->generation,
                         .changed = changed};
}

/* Further sequences of the segment; returns the place after them. The device gets whole tables. */
static struct kr_seq *fill_more(struct kr_seq *q, const struct sch_segment *g, struct kr_seq *at)
{
    q->n_more = g->n_more;
    q->more = at;
    for (uint32_t k = 0; k < g->n_more; k++)
        *at++ = (struct kr_seq){
            .tables = kv_seq_tables(g->more[k]), .slot = g->slot, .generation = g->generation};
    return at;
}

static void fill_rows(struct rt_stepper *s, struct rt_flight *f, const struct sch_segment *g,
                      uint32_t index)
{
    for (uint32_t i = 0; i < g->n_rows; i++) {
        uint32_t pos = (uint32_t)(g->pos + i);
        struct kr_row *row = &f->rows[g->first_row + i];
        *row = (struct kr_row){.seq = index,
                               .pos = pos,
                               .adapter = g->adapter,
                               .src = g->tokens ? KR_ROW_TOKEN : KR_ROW_TICKET,
                               .logits = i + g->n_logits >= g->n_rows,
                               .prompt = i < g->n_prompt_rows};
        if (g->tokens) {
            row->token = g->tokens[i];
        } else {
            row->from.ticket = s->flights[(g->from_ticket - 1) % RT_MAX_DEPTH].ticket;
            row->from.row = g->from_row;
        }
    }
}

static void list_logits_rows(struct rt_flight *f)
{
    uint32_t n = 0;
    int32_t sample = 0;
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        const struct sch_segment *g = &f->step->segments[i];
        struct rt_req *req = g->user;
        uint32_t n_guesses = g->n_sample ? g->n_sample - 1 : 0;
        for (uint32_t k = 0; k < g->n_logits; k++) {
            uint64_t pos = g->pos + g->n_rows - g->n_logits + k;
            f->logits_rows[n++] = (struct rt_logits_row){
                .req = req,
                .pos = pos,
                .scored = req->scores && g->choice == 0 && pos + 1 < req->q.n_prompt,
                .guess = k + n_guesses >= g->n_logits,
                .sample = k + g->n_sample >= g->n_logits ? sample++ : -1};
        }
    }
    f->n_logits = n;
}

/* ---- masks of guided requests ---------------------------------------------------------------- */

/* The masks of a tenant's choices share a bound: the step waits for all of them. */
static void share_time(struct rt_flight *f, uint32_t at)
{
    struct rt_mask_job *j = &f->jobs[at];
    uint64_t tenant = ((const struct rt_req *)f->step->segments[at].user)->q.tenant;
    j->all_spent = &f->masks_ns;
    j->spent = &j->own_spent;
    for (uint32_t i = at; i--;) {
        const struct rt_req *req = f->step->segments[i].user;
        if (!f->jobs[i].guide || req->q.tenant != tenant) continue;
        j->spent = f->jobs[i].spent;
        return;
    }
}

/* Position of the id that its first sampled row draws. */
static uint64_t drawn_at(const struct sch_segment *g)
{
    return g->pos + g->n_rows - g->n_sample + 1;
}

static const struct rt_aside *aside_of(const struct sch_segment *g)
{
    return ((const struct rt_req *)g->user)->choices[g->choice].aside;
}

/* Reserves memory for the masks of all rows that guided requests draw from, if there are any. */
static int reserve_masks(struct rt_flight *f, uint64_t n_vocab)
{
    const struct sch_step *step = f->step;
    size_t n_words = (n_vocab + 31) / 32, at = 0;
    f->guided = false;
    f->masks_ns = 0;
    for (uint32_t i = 0; i < step->n_segments; i++)
        f->guided |= ((const struct rt_req *)step->segments[i].user)->q.guide != NULL;
    if (!f->guided) return 0;
    int rc = cn_grow(&f->jobs, &f->jobs_cap, step->n_segments, sizeof *f->jobs);
    for (uint32_t i = 0; !rc && i < step->n_segments; i++) {
        const struct sch_segment *g = &step->segments[i];
        const struct rt_req *req = g->user;
        f->jobs[i] = (struct rt_mask_job){0};
        if (!g->n_sample || !req->q.guide) continue;
        f->jobs[i] = (struct rt_mask_job){.guide = req->q.guide,
                                          .choice = g->choice,
                                          .n_guesses = g->n_sample - 1,
                                          .n_words = (uint32_t)n_words};
        if (g->n_sample > 1) f->jobs[i].guesses = g->tokens + g->n_rows - (g->n_sample - 1);
        share_time(f, i);
        at += g->n_sample;
    }
    if (!rc) rc = cn_grow(&f->mask_words, &f->words_cap, at * n_words, sizeof *f->mask_words);
    if (!rc) rc = cn_grow(&f->masks, &f->masks_cap, at, sizeof *f->masks);
    for (uint32_t i = 0; !rc && at && i < step->n_segments; i++) {
        struct rt_mask_job *j = &f->jobs[i];
        if (!j->guide) continue;
        at -= j->n_guesses + 1;
        j->words = f->mask_words + at * n_words;
        j->masks = f->masks + at;
        rt_aside_use(aside_of(&step->segments[i]), drawn_at(&step->segments[i]), j);
    }
    return rc;
}

/* Links a job in front of those that are to be asked for together. */
static void want(struct rt_mask_job **list, struct rt_mask_job *j)
{
    j->next = *list;
    j->asked = true;
    *list = j;
}

/* Those whose ids are all known (a ticket's is not), while the forward pass runs. */
static void ask_early(struct rt_stepper *s, struct rt_flight *f)
{
    struct rt_mask_job *list = NULL;
    for (uint32_t i = 0; f->guided && i < f->step->n_segments; i++)
        if (f->jobs[i].guide && !f->jobs[i].asked && f->step->segments[i].tokens)
            want(&list, &f->jobs[i]);
    rt_masks_ask(&s->masks, list);
}

static bool is_wanted(const struct sch_draw *d)
{
    return !d->ended && d->only == SCH_NO_ID;
}

/* Its first mask took too long: the choice goes on when it is there. */
static void skip(struct rt_stepper *s, const struct rt_flight *f, struct sch_draw *d)
{
    const struct sch_segment *g = &f->step->segments[d->segment];
    struct rt_req *req = g->user;
    d->skipped = true;
    if (!rt_aside_start(s, req, g->choice, drawn_at(g), f->jobs[d->segment].n_words)) return;
    req->error = CN_ENOMEM;
    sch_cancel(s->group->sch, req->sch_id);
}

/* All that are wanted are there when it returns, or their draws are skipped. */
static void finish_masks(struct rt_stepper *s, struct rt_flight *f, struct sch_draw *draws,
                         uint32_t n)
{
    struct rt_mask_job *list = NULL;
    if (!f->guided) return;
    for (uint32_t i = 0; i < n; i++) {
        struct rt_mask_job *j = &f->jobs[draws[i].segment];
        if (j->guide && is_wanted(&draws[i]) && !j->asked) want(&list, j);
    }
    rt_masks_ask(&s->masks, list);
    for (uint32_t i = 0; i < f->step->n_segments; i++)
        if (f->jobs[i].asked) rt_masks_wait(&s->masks, &f->jobs[i]);
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        const struct rt_req *req = f->step->segments[i].user;
        rt_pace_charge(&s->group->pace, req->q.tenant, f->jobs[i].own_spent);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_mask_job *j = &f->jobs[draws[i].segment];
        if (j->guide && is_wanted(&draws[i]) && !j->n_made) skip(s, f, &draws[i]);
    }
}

/* ---- launch and draw ------------------------------------------------------------------------- */

/* Sends the device what a choice draws with, unless the choice still is where it was sent: it has
 * just started, or lost its slot meanwhile. False: the request ends with its error. */
static bool send_state(struct rt_flight *f, const struct sch_segment *g, struct kr_draw *d)
{
    struct rt_req *req = g->user;
    struct rt_choice *c = &req->choices[g->choice];
    uint64_t n_prompt = req->q.n_prompt;
    d->state = c->sampler;
    d->at = (struct kr_draw_at){.slot = g->slot, .generation = g->generation};
    if (c->at.slot == g->slot && c->at.generation == g->generation) return true;
    struct kr_exec *x = eng_model_exec(f->model->model);
    int rc = kr_draw_open(x, d->at, c->sampler, req->choices[0].at, g->ids + n_prompt,
                          d->position - n_prompt);
    kr_draw_close(x, c->at);
    c->at = d->at;
    if (rc) req->error = rc;
    return !rc;
}

/* Rows of prompts that are asked for are scored, each by itself; a sampled row is drawn from, and
 * the rows of its drafts with it. draws: of the segments with sampled rows. */
static uint32_t list_draws(struct rt_flight *f, const struct sch_draw *draws)
{
    uint32_t n = 0, at = 0;
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        const struct sch_segment *g = &f->step->segments[i];
        struct rt_req *req = g->user;
        bool wanted = g->n_sample && is_wanted(draws) && !draws->skipped;
        draws += g->n_sample > 0;
        for (uint32_t end = at + g->n_logits; at < end; at++) {
            const struct rt_logits_row *row = &f->logits_rows[at];
            struct kr_draw d = {.row = at, .position = row->pos + 1};
            if (row->scored) {
                d.score = req->q.prompt[row->pos + 1];
                d.n_top = (uint32_t)CN_MAX(req->q.sampling.logprobs, 0);
            } else if (row->sample >= 0 && !row->guess && wanted) {
                if (!send_state(f, g, &d)) continue;
                d.n_guesses = g->n_sample - 1;
                if (d.n_guesses) d.guesses = g->tokens + g->n_rows - d.n_guesses;
                if (f->guided && f->jobs[i].guide) {
                    d.masks = f->jobs[i].masks;
                    d.n_guesses = f->jobs[i].n_made - 1;
                }
            } else {
                continue;
            }
            f->draws[n++] = d;
        }
    }
    return n;
}

static int draw(void *self, uint64_t ticket, struct sch_draw *draws, uint32_t n)
{
    struct rt_stepper *s = self;
    struct rt_flight *f = &s->flights[(ticket - 1) % RT_MAX_DEPTH];
    struct cn_error err = {0};
    if (!f->drawn) return 0;
    finish_masks(s, f, draws, n);
    int rc =
        kr_draw(eng_model_exec(f->model->model), f->ticket, f->draws, list_draws(f, draws), &err);
    if (!rc) return 0;
    cn_log(CN_LOG_ERROR, "engine", "a step's draws failed: %s", err.message);
    if (rc == CN_EDEVICE) rt_device_lost(s->group);
    return rc;
}

static int start(struct rt_stepper *s, struct rt_flight *f, struct cn_error *err)
{
    const struct sch_step *step = f->step;
    struct kr_exec *x = eng_model_exec(f->model->model);
    struct kr_batch batch = {.n_rows = step->n_rows,
                             .n_seqs = step->n_segments,
                             .rows = f->rows,
                             .seqs = f->seqs,
                             .drawn = f->drawn};
    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct kv_copy *c = &step->copies[i];
        int rc = kr_kv_copy(x, s->group->kv_mem, c->group, c->dst, c->src, c->n_tokens);
        if (rc) return cn_fail(err, rc, "a block was not copied");
    }
    return kr_launch(x, s->group->kv_mem, &batch, &f->ticket, err);
}

static int launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct rt_stepper *s = self;
    struct rt_group *group = s->group;
    struct rt_flight *f = &s->flights[s->n_launched % RT_MAX_DEPTH];
    struct rt_model *m = group->running[step->model];
    const struct kr_exec_info *info = kr_exec_info(eng_model_exec(m->model));
    struct cn_error err = {0};
    f->step = step;
    int rc = reserve(f, step, info->n_groups);
    if (!rc) rc = reserve_masks(f, info->n_vocab);
    if (rc) return rc;
    f->model = m;
    f->drawn = eng_model_info(m->model)->pooling == ENG_POOL_NONE;
    struct kr_seq *more = f->more;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *g = &step->segments[i];
        uint32_t *changed = s->depth > 1 ? f->changed + (size_t)i * info->n_groups : NULL;
        fill_seq(&f->seqs[i], g, changed, info->n_groups);
        more = fill_more(&f->seqs[i], g, more);
        fill_rows(s, f, g, i);
        if (g->n_media) rt_media_rows(g->user, g, &f->rows[g->first_row], info->embd_dim);
    }
    rc = rt_media_turns(f, step->n_rows);
    if (rc) return rc;
    list_logits_rows(f);
    group->watch.weight_bytes = info->weight_bytes + info->expert_bytes * info->n_experts;
    rt_watch_launch(&group->watch, cn_now_ns(), step->n_rows, m->base_ns, m->row_ns);
    ask_early(s, f);
    rc = start(s, f, &err);
    if (rc) {
        finish_masks(s, f, NULL, 0);
        rt_watch_failed(&group->watch);
        cn_log(CN_LOG_ERROR, "engine", "a step of %u rows failed: %s", step->n_rows, err.message);
        if (rc == CN_EDEVICE) rt_device_lost(group);
        return rc;
    }
    *ticket = ++s->n_launched; /* of all models: a device's tickets are of one */
    cn_model_add(group->rt->metrics, m->index, CN_MM_steps, 1);
    return 0;
}

/* ---- collect --------------------------------------------------------------------------------- */

static void keep_score(const struct rt_logits_row *row, const struct kr_drawn *d)
{
    struct rt_prompt_score *p = &row->req->scores[row->pos + 1];
    p->logprob = d->logprob;
    p->n_top = d->n_top;
    for (uint32_t k = 0; k < d->n_top; k++)
        p->top[k] = d->top[k];
}

static void observe_drafts(struct rt_stepper *s, const struct rt_flight *f,
                           const struct kr_result *results)
{
    for (uint32_t i = 0; i + 1 < f->n_logits; i++) {
        uint64_t tokens = 1;
        if (f->logits_rows[i].guess || !f->logits_rows[i + 1].guess) continue;
        for (uint32_t k = i + 1; k < f->n_logits && f->logits_rows[k].guess; k++)
            tokens += !results[k].status;
        /* Its buckets count in seconds. */
        cn_metric_observe(s->group->rt->metrics, CN_H_draft_tokens, tokens * 1000000000u);
    }
}

static int collect_drawn(struct rt_stepper *s, struct rt_flight *f, struct cn_error *err)
{
    const struct kr_result *results;
    int rc = kr_collect_drawn(eng_model_exec(f->model->model), f->ticket, &results, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct rt_logits_row *row = &f->logits_rows[i];
        const struct kr_result *r = &results[i];
        /* A first row that was not drawn (draw): what came of it is not looked at. */
        int status = r->status == CN_ECANCELLED && !row->guess ? 0 : r->status;
        if (!row->guess && status) row->req->error = status;
        if (row->scored && !status) keep_score(row, &r->drawn);
        if (row->sample < 0) continue;
        f->results[row->sample] = (struct sch_row_result){
            .status = status, .token = r->status ? 0 : r->drawn.id, .drawn = &r->drawn};
    }
    observe_drafts(s, f, results);
    return 0;
}

/* Rows of embedding requests: a few additions per value of the row. */
static int collect_vectors(struct rt_flight *f, struct cn_error *err)
{
    struct kr_exec *x = eng_model_exec(f->model->model);
    uint64_t width = kr_exec_info(x)->n_vocab;
    float *rows;
    int rc = kr_collect(x, f->ticket, &rows, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct rt_logits_row *row = &f->logits_rows[i];
        struct rt_pooled *p = row->req->pooled;
        int status = rt_pooled_row(p, row->pos, rows + i * width);
        if (!status && row->sample >= 0) status = rt_pooled_finish(p);
        if (status) row->req->error = status;
        if (row->sample >= 0) f->results[row->sample] = (struct sch_row_result){.status = status};
    }
    return 0;
}

static int collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct rt_stepper *s = self;
    struct rt_flight *f = &s->flights[(ticket - 1) % RT_MAX_DEPTH];
    struct cn_error err = {0};
    int rc = f->drawn ? collect_drawn(s, f, &err) : collect_vectors(f, &err);
    s->n_collected++;
    s->model = f->model;
    rt_watch_done(&s->group->watch, cn_now_ns());
    if (rc) {
        cn_log(CN_LOG_ERROR, "engine", "the result of a step is lost: %s", err.message);
        if (rc == CN_EDEVICE) rt_device_lost(s->group);
        return rc;
    }
    *out = (struct sch_step_result){.n_rows = f->step->n_sample, .rows = f->results};
    return 0;
}

/* ---- preempted choices ----------------------------------------------------------------------- */

static int save(void *self, uint32_t model, const struct kv_held *blocks, uint32_t n,
                uint64_t *kept)
{
    struct rt_group *g = ((struct rt_stepper *)self)->group;
    return rt_host_save(&g->host, eng_model_exec(g->running[model]->model), blocks, n, kept);
}

static int restore(void *self, uint32_t model, uint64_t kept, const struct kv_held *blocks,
                   uint32_t n)
{
    return rt_host_restore(&((struct rt_stepper *)self)->group->host, kept, blocks, n);
}

static void forget(void *self, uint64_t kept)
{
    rt_host_forget(&((struct rt_stepper *)self)->group->host, kept);
}

static double save_rate(void *self)
{
    return rt_host_rate(&((struct rt_stepper *)self)->group->host);
}

static uint64_t now(void *self)
{
    return cn_now_ns();
}

struct sch_stepper rt_stepper_interface(struct rt_stepper *s)
{
    struct kr_device_info device;
    kr_device_info(s->group->device, &device);
    s->depth = CN_MIN(device.max_depth, (uint32_t)RT_MAX_DEPTH);
    struct sch_stepper out = {.self = s,
                              .depth = s->depth,
                              .launch = launch,
                              .draw = draw,
                              .collect = collect,
                              .now = now};
    if (s->group->host.memory) {
        out.save = save;
        out.restore = restore;
        out.forget = forget;
        out.save_bytes = s->group->host.bytes;
        out.save_rate = save_rate;
    }
    return out;
}
