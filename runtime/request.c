/* Requests: built on the caller's thread, then driven by the scheduler's callbacks on the engine
 * thread, which turn tokens into events. */
#include "runtime/rt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rt_request_fini(struct rt_request *q)
{
    rt_shared_unref(q->shared);
    free(q->prompt);
    rt_media_free(q);
    *q = (struct rt_request){0};
}

bool rt_reads_whole(const struct kr_exec_info *x)
{
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (x->groups[g].span == KR_SPAN_BOTH) return true;
    return false;
}

static int check_embed(const struct rt_model *m, const struct rt_request *q, struct cn_error *err)
{
    const struct eng_model_info *info = eng_model_info(m->model);
    long long rows = m->rt->cfg->engine.max_batch_rows;
    if (info->pooling == ENG_POOL_NONE)
        return cn_fail_param(err, CN_EUNSUPP, "model",
                             "this model generates text; it has no embeddings");
    if (q->n != 1 || q->prompt_logprobs)
        return cn_fail_param(err, CN_EINVAL, "n", "a prompt has one embedding");
    if (q->n_prompt > info->context)
        return cn_fail_param(err, CN_EWINDOW, "prompt",
                             "the prompt has %zu tokens; the window of %llu must hold it",
                             q->n_prompt, (unsigned long long)info->context);
    if (rt_reads_whole(info->exec) && q->n_prompt > (uint64_t)rows)
        return cn_fail_param(
            err, CN_EWINDOW, "prompt",
            "the prompt has %zu tokens; this model reads a prompt in one step, and "
            "a step has %lld rows (engine.max_batch_rows)",
            q->n_prompt, rows);
    return 0;
}

static int check_generate(const struct rt_model *m, const struct rt_request *q,
                          struct cn_error *err)
{
    const struct rt *r = m->rt;
    const struct eng_model_info *info = eng_model_info(m->model);
    if (info->pooling != ENG_POOL_NONE)
        return cn_fail_param(err, CN_EUNSUPP, "model",
                             "this model gives embeddings; it generates no text");
    if (q->n_prompt >= info->context)
        return cn_fail_param(err, CN_EWINDOW, "messages",
                             "the prompt has %zu tokens; the window of %llu must hold it and at "
                             "least one more",
                             q->n_prompt, (unsigned long long)info->context);
    if (!q->n || (int64_t)q->n > r->cfg->limits.max_n)
        return cn_fail_param(err, CN_ERANGE, "n", "n must be between 1 and %lld",
                             (long long)r->cfg->limits.max_n);
    return 0;
}

static int check(const struct rt_model *m, const struct rt_request *q, struct cn_error *err)
{
    const struct eng_model_info *info = eng_model_info(m->model);
    if (!q->n_prompt) return cn_fail_param(err, CN_EMISSING, "prompt", "the prompt has no tokens");
    if (q->adapter > info->exec->n_adapters)
        return cn_fail_param(err, CN_EUNSUPP, "adapter",
                             "adapter %u: this server loads no adapters", q->adapter);
    int rc = q->embed ? check_embed(m, q, err) : check_generate(m, q, err);
    if (!rc) rc = rt_media_check(info->exec, q, err);
    if (rc) return rc;
    uint64_t n_ids = CN_MIN((uint64_t)eng_vocab_size(eng_model_vocab(m->model)), info->n_vocab);
    for (size_t i = 0, next = 0; i < q->n_prompt; i++) {
        if (next < q->n_media && i == q->media[next].first) {
            i += q->media[next++].n - 1;
            continue;
        }
        if (q->prompt[i] >= n_ids)
            return cn_fail_param(err, CN_ERANGE, "prompt",
                                 "token id %u at index %zu is not in the vocabulary of %llu",
                                 q->prompt[i], i, (unsigned long long)n_ids);
    }
    return 0;
}

/* Its tokens: a medium is nothing that could be repeated. */
static int count_prompt(struct kr_draw_state *s, const struct rt_request *q)
{
    size_t at = 0;
    for (size_t i = 0; i < q->n_media; i++) {
        int rc = kr_draw_state_prompt(s, q->prompt + at, q->media[i].first - at);
        if (rc) return rc;
        at = q->media[i].first + q->media[i].n;
    }
    return kr_draw_state_prompt(s, q->prompt + at, q->n_prompt - at);
}

/* Choice 0 counts the prompt for the repetition penalty; the others copy what it counted. */
static int make_sampler(struct rt_req *req, uint32_t i, struct cn_error *err)
{
    struct rt_choice *c = &req->choices[i];
    int rc;
    if (i) {
        rc = kr_draw_state_clone(req->choices[0].sampler, i, &c->sampler);
    } else {
        const struct rt_shared *shared = rt_shared_of(&req->q);
        struct eng_sampling s = req->q.sampling;
        s.bias = shared->bias;
        s.n_bias = shared->n_bias;
        s.stop_ids = shared->stop_ids;
        s.n_stop_ids = shared->n_stop_ids;
        struct eng_draw_env env = {.vocab = eng_model_vocab(req->m->model),
                                   .loops = kr_device_draw_loops(req->group->device),
                                   .rooms = &req->group->stepper.rooms,
                                   .n_prompt = req->q.n_prompt};
        rc = eng_draw_state_new(&s, &env, &c->sampler, err);
        if (rc) return rc;
        rc = count_prompt(c->sampler, &req->q);
    }
    return rc ? cn_fail(err, rc, "out of memory for a request") : 0;
}

static int make_choice(struct rt_req *req, uint32_t i, struct cn_error *err)
{
    struct rt_choice *c = &req->choices[i];
    c->stop = -1;
    if (req->pooled) return 0;
    struct eng_detok detok;
    eng_detok_init(&detok, eng_model_vocab(req->m->model), req->q.special_tokens, false);
    int rc = rt_text_out_init(&c->text, &detok, &rt_shared_of(&req->q)->stops, req->q.include_stop,
                              req->q.parted ? eng_model_reply(req->m->model) : NULL, req->q.tools,
                              req->q.start);
    return rc ? cn_fail(err, rc, "out of memory for a request") : make_sampler(req, i, err);
}

/* Notes where messages of the prompt end: the first (often instructions that many prompts share)
 * and the last ones. Prompts with a common beginning mostly diverge there. */
static void find_marks(struct rt_req *req)
{
    const struct eng_vocab *v = eng_model_vocab(req->m->model);
    for (size_t i = 0; i < req->q.n_prompt; i++) {
        if (!eng_vocab_is_eog(v, req->q.prompt[i])) continue;
        if (req->n_marks == RT_MAX_MARKS) {
            memmove(&req->marks[1], &req->marks[2], (RT_MAX_MARKS - 2) * sizeof req->marks[0]);
            req->n_marks--;
        }
        req->marks[req->n_marks++] = i + 1;
    }
}

int rt_req_new(struct rt *r, const struct rt_request *q, struct rt_req **out, struct cn_error *err)
{
    cn_assert(q->model < r->n_models);
    struct rt_model *m = &r->models[q->model];
    struct rt_req *req = cn_calloc(1, sizeof *req);
    if (!req) return cn_fail(err, CN_ENOMEM, "out of memory for a request");
    req->rt = r;
    req->group = m->group;
    if (!rt_model_hold(m)) {
        free(req);
        return cn_fail(err, CN_ENOTREADY, "the model %s is not loaded", m->id);
    }
    req->m = m;
    int rc = check(m, q, err);
    if (rc) {
        rt_req_free(req, true);
        return rc;
    }
    req->q = *q;
    rc = rt_media_take(req) ? cn_fail(err, CN_ENOMEM, "out of memory for a request") : 0;
    req->choices = cn_calloc(q->n, sizeof *req->choices);
    if (q->prompt_logprobs) req->scores = cn_calloc(q->n_prompt, sizeof *req->scores);
    if (q->embed)
        req->pooled =
            rt_pooled_new(eng_model_info(m->model)->pooling, q->n_prompt, rt_embedding_size(m));
    else
        find_marks(req);
    req->end = rt_event_new(q->id, RT_EV_END, 0, NULL);
    if (!rc && (!req->choices || !req->end || (q->prompt_logprobs && !req->scores) ||
                (q->embed && !req->pooled)))
        rc = cn_fail(err, CN_ENOMEM, "out of memory for a request");
    for (uint32_t i = 0; !rc && i < q->n; i++)
        rc = make_choice(req, i, err);
    if (rc) {
        rt_req_free(req, true);
        return rc;
    }
    *out = req;
    return 0;
}

void rt_req_free(struct rt_req *req, bool keep_request)
{
    if (!req) return;
    for (uint32_t i = 0; req->choices && i < req->q.n; i++) {
        kr_draw_state_free(req->choices[i].sampler);
        free(req->choices[i].aside);
        rt_text_out_fini(&req->choices[i].text);
    }
    rt_event_free(req->end);
    free(req->choices);
    free(req->scores);
    free(req->media);
    rt_pooled_free(req->pooled);
    rt_release(req->m);
    if (!keep_request) rt_request_fini(&req->q);
    free(req);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

/* Posts an event; when there is no memory for it the request ends with that error. */
static void post(struct rt_req *req, struct rt_event *e)
{
    if (!e) {
        req->error = CN_ENOMEM;
        sch_cancel(req->group->sch, req->sch_id);
        return;
    }
    cn_mailbox_post(req->q.reply, &e->msg);
}

/* The prompt's own log-probabilities: complete once the first token after it was drawn. */
static void post_prompt_scores(struct rt_req *req)
{
    size_t n = req->q.n_prompt, n_top = 0;
    for (size_t i = 0; i < n; i++)
        n_top += req->scores[i].n_top;
    struct rt_token *tokens = cn_calloc(n, sizeof *tokens);
    struct cn_top *top = cn_calloc(n_top, sizeof *top);
    struct rt_event *e = NULL;
    if (tokens && top) {
        size_t at = 0;
        for (size_t i = 0; i < n; i++) {
            const struct rt_prompt_score *p = &req->scores[i];
            tokens[i] = (struct rt_token){.id = req->q.prompt[i],
                                          .logprob = i ? p->logprob : NAN,
                                          .n_top = p->n_top,
                                          .top_at = (uint32_t)at};
            memcpy(top + at, p->top, p->n_top * sizeof *top);
            at += p->n_top;
        }
        struct rt_event_parts parts = {.tokens = tokens, .n_tokens = n, .top = top, .n_top = n_top};
        e = rt_event_new(req->q.id, RT_EV_PROMPT, 0, &parts);
    }
    free(tokens);
    free(top);
    post(req, e);
}

bool rt_ends_choice(const struct rt_req *req, uint32_t id)
{
    if (eng_vocab_is_eog(eng_model_vocab(req->m->model), id)) return true;
    const struct rt_shared *shared = rt_shared_of(&req->q);
    for (size_t i = 0; i < shared->n_stop_ids; i++)
        if (shared->stop_ids[i] == id) return true;
    return false;
}

static void observe_token(struct rt_req *req, struct rt_choice *c)
{
    uint64_t now = cn_now_ns(), step = req->group->stepper.n_collected;
    if (c->last_token_ns) {
        /* Its buckets count in seconds. */
        cn_metric_observe(req->rt->metrics, CN_H_itl_steps, (step - c->last_step) * 1000000000u);
        cn_metric_observe(req->rt->metrics, CN_H_itl, now - c->last_token_ns);
        cn_tenant_observe(req->rt->metrics, cfg_slot(req->q.tenant), CN_TH_itl,
                          now - c->last_token_ns);
    }
    cn_model_add(req->rt->metrics, req->m->index, CN_MM_generated, 1);
    c->last_token_ns = now;
    c->last_step = step;
    rt_tenant_changed(req->group, cfg_slot(req->q.tenant));
}

static enum sch_verdict on_vector(struct rt_req *req)
{
    struct rt_event_parts parts = {.vector = req->pooled->vector, .n_vector = req->pooled->n};
    rt_tenant_embedded(req->group, cfg_slot(req->q.tenant));
    if (req->error)
        sch_cancel(req->group->sch, req->sch_id);
    else
        post(req, rt_event_new(req->q.id, RT_EV_EMBEDDING, 0, &parts));
    return SCH_STOP;
}

/* The device is sent forced ids: it knows only those that it drew. If ids were forced in the midst
 * of guesses, it drew more than was put out. */
static int follow(struct rt_req *req, struct rt_choice *c, const struct sch_token *t)
{
    int rc = kr_draw_put(eng_model_exec(req->m->model), c->at, c->sampler, t->index, &t->token, 1);
    if (rc) post(req, NULL);
    return rc;
}

static int tell_guide(struct rt_req *req, const struct sch_token *t)
{
    const struct rt_guide *g = req->q.guide;
    const uint32_t *forced;
    if (!g || !g->put) return 0;
    uint64_t began = cn_thread_ns();
    uint32_t n = g->put(g->arg, t->choice, t->token, &forced);
    rt_pace_charge(&req->group->pace, req->q.tenant, cn_thread_ns() - began);
    int rc = n ? sch_force(req->group->sch, req->sch_id, t->choice, forced, n) : 0;
    if (rc) post(req, NULL);
    return rc;
}

enum sch_verdict rt_on_token(void *arg, const struct sch_token *t)
{
    struct rt_req *req = t->user;
    struct rt_choice *c = &req->choices[t->choice];
    const struct kr_drawn *d = t->drawn;
    if (req->pooled) return on_vector(req);
    if (req->scores && t->choice == 0 && t->index == 0) post_prompt_scores(req);
    if (req->error) {
        sch_cancel(req->group->sch, req->sch_id);
        return SCH_STOP;
    }
    if (t->forced && follow(req, c, t)) return SCH_STOP;
    observe_token(req, c);
    struct eng_parts *text = &req->group->token_text;
    eng_parts_reset(text);
    bool ends = rt_ends_choice(req, t->token); /* such a token is reported, but has no text */
    int rc = 0;
    if (!ends)
        rc = rt_text_out_push(&c->text, t->token, t->index + 1 > req->q.sampling.min_tokens, text,
                              &c->stop);
    if (!rc) {
        struct rt_token token = {.id = t->token}; /* forced: certain, without alternatives */
        struct rt_event_parts parts = {
            .kept = req->group->kept, .text = text, .tokens = &token, .n_tokens = 1};
        if (d) {
            token.logprob = d->logprob;
            token.n_top = d->n_top;
            parts.top = d->top;
            parts.n_top = d->n_top;
        }
        post(req, rt_event_new(req->q.id, RT_EV_TOKENS, t->choice, &parts));
    } else {
        post(req, NULL);
    }
    c->called =
        req->q.one_call && c->text.parted && eng_reply_calls(&c->text.reply) == ENG_CALLS_WHOLE;
    if (ends || c->stop >= 0 || c->called) return SCH_STOP;
    return tell_guide(req, t) ? SCH_STOP : SCH_CONTINUE;
}

static void post_held_text(struct rt_req *req, uint32_t choice, bool cut)
{
    struct eng_parts text;
    eng_parts_init(&text);
    if (rt_text_out_finish(&req->choices[choice].text, cut, &text)) {
        req->error = CN_ENOMEM;
    } else if (text.text.len) {
        struct rt_event_parts parts = {.kept = req->group->kept, .text = &text};
        post(req, rt_event_new(req->q.id, RT_EV_TOKENS, choice, &parts));
    }
    eng_parts_fini(&text);
}

/* A choice ends right after one of its ids was taken, and no mask of it is being made then
 * (guide.h). */
static void end_guide(struct rt_req *req, uint32_t choice)
{
    const struct rt_guide *g = req->q.guide;
    if (!g || !g->end) return;
    uint64_t began = cn_thread_ns();
    g->end(g->arg, choice);
    rt_pace_charge(&req->group->pace, req->q.tenant, cn_thread_ns() - began);
}

void rt_on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason)
{
    static const enum rt_finish finish[] = {[SCH_END_STOP] = RT_FINISH_STOP,
                                            [SCH_END_LENGTH] = RT_FINISH_LENGTH,
                                            [SCH_END_CANCELLED] = RT_FINISH_CANCELLED,
                                            [SCH_END_DEADLINE] = RT_FINISH_ERROR,
                                            [SCH_END_ERROR] = RT_FINISH_ERROR};
    struct rt_req *req = user;
    struct rt_choice *c = &req->choices[choice];
    bool done = reason == SCH_END_STOP || reason == SCH_END_LENGTH;
    if (done && c->stop < 0 && !req->error && !req->pooled)
        post_held_text(req, choice, reason == SCH_END_LENGTH || c->called);
    if (done && !req->error) {
        end_guide(req, choice);
        rt_aside_end(req, choice);
    }
    const struct rt_stop_set *stops = &rt_shared_of(&req->q)->stops;
    struct rt_event_parts parts = {.stop_text = c->stop >= 0 ? stops->v[c->stop].text : NULL};
    struct rt_event *e = rt_event_new(req->q.id, RT_EV_CHOICE_END, choice, &parts);
    if (e) e->finish = req->error ? RT_FINISH_ERROR : finish[reason];
    if (e) e->cut = c->text.parted && eng_reply_calls(&c->text.reply) == ENG_CALLS_CUT;
    post(req, e);
    kr_draw_close(eng_model_exec(req->m->model), c->at);
}

static void observe_end(struct rt_group *g, const struct rt_req *req, int code,
                        const struct sch_usage *u)
{
    uint32_t tenant = cfg_slot(req->q.tenant);
    struct cn_metrics *m = g->rt->metrics;
    rt_tenant_ended(g, tenant, code);
    if (!u->first_step_ns) return;
    cn_metric_observe(m, CN_H_queue, u->first_step_ns - u->submitted_ns);
    cn_tenant_observe(m, tenant, CN_TH_queue, u->first_step_ns - u->submitted_ns);
    if (!u->first_token_ns) return;
    cn_metric_observe(m, CN_H_ttft, u->first_token_ns - u->submitted_ns);
    cn_tenant_observe(m, tenant, CN_TH_ttft, u->first_token_ns - u->submitted_ns);
    cn_metric_observe(m, CN_H_prefill, u->first_token_ns - u->first_step_ns);
    if (!req->pooled) cn_metric_observe(m, CN_H_decode, u->ended_ns - u->first_token_ns);
}

/* A request that was never started ended for its wait alone, unless its own deadline came first. */
static bool waited_too_long(const struct rt *r, const struct rt_req *req, enum sch_end reason,
                            const struct sch_usage *u)
{
    if (reason != SCH_END_DEADLINE || u->first_step_ns || !(r->cfg->scheduler.queue_timeout_s > 0))
        return false;
    return !req->q.deadline_ns || u->ended_ns < req->q.deadline_ns;
}

static struct rt_usage usage_of(const struct rt_req *req, const struct sch_usage *u)
{
    return (struct rt_usage){.prompt_tokens = u->prompt_tokens,
                             .cached_tokens = u->cached_tokens,
                             .completion_tokens = req->pooled ? 0 : u->generated_tokens,
                             .computed_tokens = u->computed_tokens,
                             .recomputed_tokens = u->recomputed_tokens,
                             .written_tokens = u->written_tokens,
                             .drafted_rows = u->drafted_rows,
                             .rejected_rows = u->drafted_rows - u->right_rows,
                             .unseen_rows = u->unseen_rows,
                             .preemptions = u->preemptions,
                             .submitted_ns = u->submitted_ns,
                             .first_step_ns = u->first_step_ns,
                             .first_token_ns = u->first_token_ns,
                             .ended_ns = u->ended_ns};
}

void rt_req_leave(struct rt_req *req)
{
    struct rt *r = req->rt;
    struct rt_event *e = req->end;
    req->end = NULL;
    cn_mailbox_post(req->q.reply, &e->msg);
    rt_req_free(req, false);
    atomic_fetch_sub(&r->in_flight, 1);
}

void rt_on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
               const struct sch_usage *usage)
{
    struct rt_group *g = arg;
    struct rt *r = g->rt;
    struct rt_req *req = user;
    rt_forget(g, req);
    if (req->error)
        code = req->error;
    else if (g->stopping && reason == SCH_END_CANCELLED)
        code = CN_EDRAIN;
    else if (waited_too_long(r, req, reason, usage))
        code = CN_EQUEUE;
    observe_end(g, req, code, usage);
    /* The END event was set aside when the request was made, so it cannot fail. */
    struct rt_event *e = req->end;
    e->code = code;
    if (code == CN_ENUMERIC && !req->q.guide) /* a guide may leave nothing to draw */
        cn_log(CN_LOG_ERROR, "engine",
               "%s: the model produced a value that is not a number: its file may be damaged",
               req->m->id);
    if (code == CN_EQUEUE) {
        struct cn_error err;
        cn_fail(&err, code,
                "the request waited %g s without being started, the server's limit "
                "(scheduler.queue_timeout_s)",
                r->cfg->scheduler.queue_timeout_s);
        rt_event_fail(e, &err);
    }
    if (code == CN_ENOTREADY) {
        struct cn_error err;
        cn_fail(&err, code, RT_FILE_CHANGED, req->m->id);
        rt_event_fail(e, &err);
    }
    e->usage = usage_of(req, usage);
    for (uint32_t i = 0; i < req->q.n; i++)
        e->usage.reasoning_tokens += req->choices[i].text.n_reasoning;
    req->over = true;
    rt_aside_drop(&g->stepper, req);
    if (!req->n_aside) rt_req_leave(req);
}
