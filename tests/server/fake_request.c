/* A request of the stand-in: from its prompt to its events, exactly (fake_runtime.c says how). */
#include "tests/server/fake_runtime.h"
#include "runtime/shared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---------------------------------------------------------------------------------- */

static struct rt_event *event(const struct live *l, enum rt_event_kind kind, uint32_t choice,
                              const char *text, size_t len, size_t n_tokens, size_t n_top)
{
    struct rt_event *e = calloc(1, sizeof *e + n_tokens * sizeof(struct rt_token) +
                                       n_top * sizeof(struct cn_top) + len + 1);
    char *at = (char *)(e + 1);
    cn_assert(e);
    e->id = l->q.id;
    e->kind = kind;
    e->choice = choice;
    e->tokens = (struct rt_token *)at;
    e->n_tokens = n_tokens;
    at += n_tokens * sizeof(struct rt_token);
    e->top = (struct cn_top *)at;
    at += n_top * sizeof(struct cn_top);
    if (len) memcpy(at, text, len);
    e->text = at;
    e->text_len = len;
    return e;
}

void rt_event_free(struct rt_event *e)
{
    if (e) free(e->error);
    if (e) free((void *)e->stop_text);
    if (e) free((void *)e->runs);
    free(e);
}

static void send(const struct live *l, struct rt_event *e)
{
    cn_mailbox_post(l->q.reply, &e->msg);
}

static void set_token(struct rt_event *e, size_t i, uint32_t id, int32_t n_top)
{
    struct rt_token *t = (struct rt_token *)&e->tokens[i];
    t->id = id;
    t->logprob = -0.5f;
    t->n_top = n_top > 0 ? (uint32_t)n_top : 0;
    t->top_at = (uint32_t)(i * t->n_top);
    for (uint32_t k = 0; k < t->n_top; k++)
        ((struct cn_top *)e->top)[t->top_at + k] =
            (struct cn_top){(id + k) % 200, -0.5f - (float)k};
}

/* Sends parts; nothing when there are none and no token. */
static void send_parts(struct live *l, uint32_t i, const struct eng_parts *p, const uint32_t *id)
{
    size_t n_top = id && l->q.sampling.logprobs > 0 ? (size_t)l->q.sampling.logprobs : 0;
    struct rt_event *e = event(l, RT_EV_TOKENS, i, p->text.data, p->text.len, id ? 1 : 0, n_top);
    if (id) set_token(e, 0, *id, (int32_t)n_top);
    struct eng_run *runs = malloc(p->n_runs * sizeof *runs + 1);
    cn_assert(runs);
    if (p->n_runs) memcpy(runs, p->runs, p->n_runs * sizeof *runs);
    e->runs = runs;
    e->n_runs = p->n_runs;
    send(l, e);
}

/* ---- one request ----------------------------------------------------------------------------- */

static void end_choice(struct live *l, uint32_t i, enum rt_finish finish, const char *stop)
{
    struct choice *c = &l->choices[i];
    if (finish == RT_FINISH_LENGTH && l->q.parted) {
        struct eng_parts p;
        eng_parts_init(&p);
        eng_detok_drop(&c->detok);
        eng_reply_text(&c->reply, c->held.data, c->held.len, &p);
        eng_reply_finish(&c->reply, true, &p);
        if (p.text.len) send_parts(l, i, &p, NULL);
        eng_parts_fini(&p);
    } else if (finish == RT_FINISH_LENGTH) {
        eng_detok_drop(&c->detok);
        if (c->held.len) send(l, event(l, RT_EV_TOKENS, i, c->held.data, c->held.len, 0, 0));
    }
    struct rt_event *e = event(l, RT_EV_CHOICE_END, i, NULL, 0, 0, 0);
    e->finish = finish;
    if (stop) e->stop_text = strdup(stop);
    send(l, e);
    c->ended = true;
}

static void end_request(struct rt *r, struct live *l, int code)
{
    struct rt_event *e = event(l, RT_EV_END, 0, NULL, 0, 0, 0);
    e->code = code;
    e->usage = (struct rt_usage){l->q.n_prompt, 0, l->done_tokens, 0};
    for (uint32_t i = 0; i < l->q.n; i++)
        e->usage.reasoning_tokens += l->choices[i].n_reasoning;
    send(l, e);
    cn_metric_add(r->metrics,
                  code == CN_ECANCELLED ? CN_M_requests_cancelled
                  : code                ? CN_M_requests_error
                                        : CN_M_requests_ok,
                  1);
    for (uint32_t i = 0; i < l->q.n; i++) {
        eng_reply_fini(&l->choices[i].reply);
        cn_buf_fini(&l->choices[i].held);
    }
    free(l->choices);
    rt_request_fini(&l->q);
    free(l);
}

/* The earliest stop string in held text, and how much of the text is surely before any. */
static const char *find_stop(const struct live *l, const struct cn_buf *held, size_t *final)
{
    size_t longest = 0;
    const char *found = NULL;
    *final = held->len;
    const struct rt_stop_set *stops = l->q.shared ? &l->q.shared->stops : NULL;
    for (size_t i = 0; stops && i < stops->n; i++) {
        const char *stop = stops->v[i].text;
        size_t n = stops->v[i].len;
        if (n > longest) longest = n;
        const char *at = held->len ? memmem(held->data, held->len, stop, n) : NULL;
        if (!at || (found && (size_t)(at - held->data) >= *final)) continue;
        found = stop;
        *final = (size_t)(at - held->data);
    }
    if (!found && longest) *final = held->len >= longest - 1 ? held->len - (longest - 1) : 0;
    return found;
}

static void step_parted(struct live *l, uint32_t i, uint32_t id)
{
    struct choice *c = &l->choices[i];
    struct eng_parts p;
    eng_parts_init(&p);
    c->n_reasoning += eng_reply_reasons(&c->reply);
    bool mark = eng_reply_is_mark(&c->reply, id);
    cn_assert(
        !(mark ? eng_detok_flush(&c->detok, &c->held) : eng_detok_push(&c->detok, id, &c->held)));
    cn_assert(!eng_reply_text(&c->reply, c->held.data, c->held.len, &p));
    cn_assert(!mark || !eng_reply_mark(&c->reply, id, &p));
    cn_buf_reset(&c->held);
    send_parts(l, i, &p, &id);
    eng_parts_fini(&p);
}

static void step_choice(struct live *l, uint32_t i)
{
    struct choice *c = &l->choices[i];
    uint64_t max = l->q.max_tokens ? l->q.max_tokens : 16;
    uint32_t id = l->q.prompt[(c->n + i) % l->q.n_prompt];
    size_t final, n_top = l->q.sampling.logprobs > 0 ? (size_t)l->q.sampling.logprobs : 0;

    c->n++;
    l->done_tokens++;
    if (l->q.parted) {
        step_parted(l, i, id);
        if (eng_vocab_is_eog(c->detok.vocab, id))
            end_choice(l, i, RT_FINISH_STOP, NULL);
        else if (c->n >= max)
            end_choice(l, i, RT_FINISH_LENGTH, NULL);
        return;
    }
    eng_detok_push(&c->detok, id, &c->held);
    const char *stop = find_stop(l, &c->held, &final);
    struct rt_event *e = event(l, RT_EV_TOKENS, i, c->held.data, final, 1, n_top);
    set_token(e, 0, id, (int32_t)n_top);
    send(l, e);
    if (final) memmove(c->held.data, c->held.data + final, c->held.len - final);
    c->held.len -= final;
    if (stop)
        end_choice(l, i, RT_FINISH_STOP, stop);
    else if (c->n >= max)
        end_choice(l, i, RT_FINISH_LENGTH, NULL);
}

static void step_vector(struct rt *r, struct live *l)
{
    size_t n = (size_t)r->embed;
    struct rt_event *e = calloc(1, sizeof *e + n * sizeof(float));
    double length = 0;

    cn_assert(e);
    e->id = l->q.id;
    e->kind = RT_EV_EMBEDDING;
    e->text = "";
    float *v = (float *)(e + 1);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            double x =
                (double)((int64_t)(l->q.prompt[i % l->q.n_prompt] * 31ull + i * 7) % 97 - 48);
            if (!pass)
                length += x * x;
            else
                v[i] = (float)(x / sqrt(length));
        }
    e->vector = v;
    e->n_vector = n;
    send(l, e);
    end_choice(l, 0, RT_FINISH_STOP, NULL);
}

static void send_prompt(struct live *l)
{
    size_t n_top = l->q.sampling.logprobs > 0 ? (size_t)l->q.sampling.logprobs : 0;
    struct rt_event *e = event(l, RT_EV_PROMPT, 0, NULL, 0, l->q.n_prompt, l->q.n_prompt * n_top);
    for (size_t i = 0; i < l->q.n_prompt; i++)
        set_token(e, i, l->q.prompt[i], (int32_t)n_top);
    ((struct rt_token *)e->tokens)[0].logprob = NAN;
    ((struct rt_token *)e->tokens)[0].n_top = 0;
    send(l, e);
}

static void stand_still(const struct rt *r)
{
    uint64_t end = cn_now_ns() + (uint64_t)r->stall_ms * 1000000;
    struct timespec t = {0, 1000000};
    while (cn_now_ns() < end && !fake_goes(r))
        nanosleep(&t, NULL);
}

bool fake_step(struct rt *r, struct live *l, uint64_t now)
{
    int code = l->cancelled                                  ? CN_ECANCELLED
               : l->q.deadline_ns && now >= l->q.deadline_ns ? CN_EDEADLINE
                                                             : 0;
    if (!code && l->next_ns > now && !fake_goes(r)) return false;
    if (!code && !l->accepted) {
        l->accepted = true;
        send(l, event(l, RT_EV_ACCEPTED, 0, NULL, 0, 0, 0));
    }
    if (!code && l->paused) return false;
    if (!code && !l->prompted) {
        l->prompted = true;
        stand_still(r);
        if (l->q.prompt_logprobs) send_prompt(l);
    }
    bool all = true;
    uint64_t had = l->done_tokens;
    for (uint32_t i = 0; i < l->q.n; i++) {
        struct choice *c = &l->choices[i];
        if (!c->ended && !code && l->q.embed && r->fail_at && l->q.prompt[0] == r->fail_at)
            code = CN_ENUMERIC;
        else if (!c->ended && !code && l->q.embed)
            step_vector(r, l);
        else if (!c->ended && !code)
            step_choice(l, i);
        if (!c->ended && r->fail_at && c->n >= (uint64_t)r->fail_at) code = CN_ENUMERIC;
        if (!c->ended && code)
            end_choice(l, i, code == CN_ECANCELLED ? RT_FINISH_CANCELLED : RT_FINISH_ERROR, NULL);
        all &= c->ended;
    }
    cn_metric_add(r->metrics, CN_M_tokens_generated, l->done_tokens - had);
    l->next_ns = now + (uint64_t)r->delay_us * 1000;
    if (!all) return false;
    end_request(r, l, code);
    return true;
}
