/* The scheduler's steps on a device: builds the batch, runs it, samples.
 * Engine thread. Depth 1: a launched step is done when kr_launch returns. */
#include "runtime/rt.h"

#include <math.h>
#include <stdlib.h>

struct rt_logits_row {
    struct rt_req *req;
    uint64_t pos;       /* of the row; its logits are about position pos + 1 */
    uint32_t choice;
    int32_t sample;     /* index among the step's sampled rows, or -1: scored only */
    uint32_t n_drafts;  /* rows behind it that hold drafts, whose ids are `drafts` */
    const uint32_t *drafts;
    bool is_draft;      /* done together with the row before the drafts */
    int status;
};

void rt_stepper_init(struct rt_stepper *s, struct rt *r)
{
    *s = (struct rt_stepper){.rt = r, .depth = 1};
    eng_draw_rooms_init(&s->rooms);
}

void rt_stepper_fini(struct rt_stepper *s)
{
    free(s->rows);
    free(s->seqs);
    free(s->drawn);
    free(s->results);
    free(s->logits_rows);
    eng_draw_rooms_fini(&s->rooms);
    *s = (struct rt_stepper){0};
}

static int reserve(struct rt_stepper *s, const struct sch_step *step)
{
    int rc = cn_grow(&s->rows, &s->rows_cap, step->n_rows, sizeof *s->rows);
    if (!rc) rc = cn_grow(&s->seqs, &s->seqs_cap, step->n_segments, sizeof *s->seqs);
    if (!rc) rc = cn_grow(&s->drawn, &s->drawn_cap, step->n_logits, sizeof *s->drawn);
    if (!rc) rc = cn_grow(&s->logits_rows, &s->logits_cap, step->n_logits, sizeof *s->logits_rows);
    if (!rc) rc = cn_grow(&s->results, &s->results_cap, step->n_sample, sizeof *s->results);
    return rc;
}

static void fill_segment(struct rt_stepper *s, const struct sch_segment *g, uint32_t index,
                         uint32_t *n_rows)
{
    s->seqs[index].tables = kv_seq_tables(g->seq);
    for (uint32_t i = 0; i < g->n_rows; i++) {
        struct kr_row *row = &s->rows[(*n_rows)++];
        uint32_t pos = (uint32_t)(g->pos + i);
        *row = (struct kr_row){.seq = index,
                               .pos = {pos, pos, pos},
                               .adapter = g->adapter,
                               .src = g->tokens ? KR_ROW_TOKEN : KR_ROW_TICKET,
                               .logits = i + g->n_logits >= g->n_rows};
        if (g->tokens) {
            row->token = g->tokens[i];
        } else {
            row->from.ticket = g->from_ticket;
            row->from.row = g->from_row;
        }
    }
}

static int launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct rt_stepper *s = self;
    struct rt_model *m = s->rt->running[step->model];
    struct kr_exec *x = eng_model_exec(m->model);
    const struct kr_exec_info *info = kr_exec_info(x);
    struct cn_error err = {0};
    int rc = reserve(s, step);
    for (uint32_t i = 0; !rc && i < step->n_copies; i++) {
        const struct kv_copy *c = &step->copies[i];
        rc = kr_kv_copy(x, s->rt->kv_mem, c->group, c->dst, c->src, c->n_tokens);
    }
    if (rc) return rc;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < step->n_segments; i++)
        fill_segment(s, &step->segments[i], i, &n_rows);
    struct kr_batch batch = {
        .n_rows = n_rows, .n_seqs = step->n_segments, .rows = s->rows, .seqs = s->seqs};
    s->model = m;
    s->n_vocab = info->n_vocab;
    s->rt->watch.weight_bytes = info->weight_bytes + info->expert_bytes * info->n_experts;
    rt_watch_launch(&s->rt->watch, cn_now_ns(), n_rows, m->base_ns, m->row_ns);
    rc = kr_launch(x, s->rt->kv_mem, &batch, ticket, &err);
    if (!rc) {
        s->step = step;
        s->n_launched++;
        cn_model_add(s->rt->metrics, m->index, CN_MM_steps, 1);
        return 0;
    }
    rt_watch_done(&s->rt->watch, cn_now_ns());
    cn_log(CN_LOG_ERROR, "engine", "a step of %u rows failed: %s", n_rows, err.message);
    return rc;
}

/* Draws the token behind a row, and tells the sampler: a token that is drawn is put out, or its
 * choice has ended. */
static void draw_row(struct rt_stepper *s, struct rt_logits_row *row)
{
    uint64_t i = (uint64_t)(row - s->logits_rows);
    struct eng_sampler *sampler = row->req->choices[row->choice].sampler;
    struct eng_drawn *d = &s->drawn[row->sample];
    row->status = eng_sample(sampler, s->logits + i * s->n_vocab, row->pos + 1, NULL, d);
    if (!row->status) row->status = eng_sampler_accept(sampler, d->id);
}

/* One row of logits: a draw, with those of its drafts as long as they come true, or the score of a
 * prompt token that is known. Any thread. */
static void work_row(void *arg, uint32_t i)
{
    struct rt_stepper *s = arg;
    struct rt_logits_row *row = &s->logits_rows[i];
    struct rt_req *req = row->req;
    float *z = s->logits + (uint64_t)i * s->n_vocab;
    uint64_t next = row->pos + 1;
    if (req->pooled || row->is_draft) return;
    if (req->scores && row->choice == 0 && next < req->q.n_prompt) {
        struct eng_drawn d;
        uint32_t n_top = (uint32_t)CN_MAX(req->q.sampling.logprobs, 0);
        row->status = eng_score(z, s->n_vocab, req->q.prompt[next], n_top, &d);
        if (!row->status) {
            struct rt_prompt_score *p = &req->scores[next];
            p->logprob = d.logprob;
            p->n_top = d.n_top;
            for (uint32_t k = 0; k < d.n_top; k++)
                p->top[k] = d.top[k];
        }
    }
    if (row->status || row->sample < 0) return;
    draw_row(s, row);
    for (uint32_t k = 0; k < row->n_drafts; k++) {
        uint32_t id = s->drawn[row[k].sample].id;
        if (row[k].status || id != row->drafts[k] || rt_ends_choice(req, id)) break;
        draw_row(s, &row[k + 1]);
    }
}

/* Rows of embedding requests, in order, on one thread: a few additions per value of the row. */
static void pool_rows(struct rt_stepper *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct rt_logits_row *row = &s->logits_rows[i];
        struct rt_pooled *p = row->req->pooled;
        if (!p) continue;
        row->status = rt_pooled_row(p, row->pos, s->logits + (uint64_t)i * s->n_vocab);
        if (row->sample < 0) continue;
        s->drawn[row->sample] = (struct eng_drawn){0};
        if (!row->status) row->status = rt_pooled_finish(p);
    }
}

static uint32_t list_logits_rows(struct rt_stepper *s, const struct sch_step *step)
{
    uint32_t n = 0;
    int32_t sample = 0;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *g = &step->segments[i];
        uint32_t n_drafts = g->n_sample ? g->n_sample - 1 : 0;
        for (uint32_t k = 0; k < g->n_logits; k++) {
            struct rt_logits_row *row = &s->logits_rows[n++];
            *row = (struct rt_logits_row){
                .req = g->user,
                .pos = g->pos + g->n_rows - g->n_logits + k,
                .choice = g->choice,
                .sample = k + g->n_sample >= g->n_logits ? sample++ : -1,
                .is_draft = k + n_drafts >= g->n_logits};
            if (row->is_draft) row->status = CN_EINTERNAL; /* until it is drawn */
            if (!n_drafts || k + n_drafts + 1 != g->n_logits) continue;
            row->n_drafts = n_drafts;
            row->drafts = g->tokens + g->n_rows - n_drafts;
        }
    }
    return n;
}

static void observe_drafts(struct rt_stepper *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_logits_row *row = &s->logits_rows[i];
        uint64_t tokens = 1;
        if (!row->n_drafts) continue;
        while (tokens <= row->n_drafts && !row[tokens].status)
            tokens++;
        /* Its buckets count in seconds. */
        cn_metric_observe(s->rt->metrics, CN_H_draft_tokens, tokens * 1000000000u);
    }
}

static int collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct rt_stepper *s = self;
    const struct sch_step *step = s->step;
    struct cn_error err = {0};
    s->step = NULL;
    int rc = kr_collect(eng_model_exec(s->model->model), ticket, &s->logits, &err);
    if (rc) {
        rt_watch_done(&s->rt->watch, cn_now_ns());
        cn_log(CN_LOG_ERROR, "engine", "the result of a step is lost: %s", err.message);
        return rc;
    }
    uint32_t n = list_logits_rows(s, step);
    kr_device_parallel(s->rt->device, n, work_row, s);
    pool_rows(s, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_logits_row *row = &s->logits_rows[i];
        if (row->status && !row->is_draft) row->req->error = row->status;
        if (row->sample < 0) continue;
        s->results[row->sample] =
            (struct sch_row_result){.status = row->status,
                                    .token = row->status ? 0 : s->drawn[row->sample].id,
                                    .drawn = &s->drawn[row->sample]};
    }
    observe_drafts(s, n);
    out->n_rows = step->n_sample;
    out->rows = s->results;
    rt_watch_done(&s->rt->watch, cn_now_ns());
    return 0;
}

static uint64_t now(void *self)
{
    return cn_now_ns();
}

struct sch_stepper rt_stepper_interface(struct rt_stepper *s)
{
    return (struct sch_stepper){
        .self = s, .depth = s->depth, .launch = launch, .collect = collect, .now = now};
}
