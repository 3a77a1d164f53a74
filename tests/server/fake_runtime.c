/* Stands in for runtime/ at link time: the same header, the model's real vocabulary and template,
 * no forward pass. The server's own tests run against it, as it is exact where a model is not:
 *   token i of choice c is prompt[(i + c) % n_prompt], end of generation only by count or stop;
 *   max_tokens 0 means 16; CONIFER_FAKE_DELAY_US between tokens (0), CONIFER_FAKE_HOLD_MS before
 *   the first event of a request (0), CONIFER_FAKE_QUEUE requests at once, more get CN_EQUEUE;
 *   CONIFER_FAKE_FAIL_AT=n: token n of every request ends it with CN_ENUMERIC;
 *   CONIFER_FAKE_STALL_MS: at the first token of a request the thread stands still that long;
 *   CONIFER_FAKE_EMBED=n: a model of embeddings of n values: those of a prompt are
 *   (prompt[i % n_prompt] * 31 + i * 7) % 97 - 48 for value i, over their length;
 *   FAIL_AT ends those whose prompt begins with that id;
 *   parted answers (conversations with a format of their own) are taken apart, stop strings not
 *   looked for;
 *   CONIFER_FAKE_LOAD_MS: the model is loaded so long after it was first asked for (0: at once);
 *   CONIFER_FAKE_STUCK_MS: after so long without progress it says that it is stuck (2000). */
#include "runtime/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice {
    struct eng_detok detok;
    struct cn_buf held;
    struct eng_reply reply;
    uint64_t n, n_reasoning;
    bool ended;
};

struct live {
    struct live *next;
    struct rt_request q;
    struct choice *choices;
    uint64_t next_ns, done_tokens;
    bool accepted, cancelled, paused, prompted;
};

struct wait {
    struct wait *next;
    struct cn_mailbox *reply;
    struct rt_event *event;
};

struct rt {
    const struct cfg *cfg;
    struct cn_metrics *metrics;
    struct kr_device *device;
    struct eng_model *model;
    char *id;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct live *live;
    struct wait *waits;
    uint64_t loaded_ns; /* 0: not asked for yet */
    atomic_ullong n_live;
    bool stop;
    atomic_bool draining;
    atomic_ullong progress_ns;
    long delay_us, hold_ms, queue, fail_at, stall_ms, stuck_ms, embed, load_ms;
};

static long number(const char *name, long def)
{
    const char *s = getenv(name);
    return s ? strtol(s, NULL, 10) : def;
}

/* ---- events
 * -------------------------------------------------------------------------------------- */

static struct rt_event *event(const struct live *l, enum rt_event_kind kind, uint32_t choice,
                              const char *text, size_t len, size_t n_tokens, size_t n_top)
{
    struct rt_event *e = calloc(1, sizeof *e + n_tokens * sizeof(struct rt_token) +
                                       n_top * sizeof(struct eng_logprob) + len + 1);
    char *at = (char *)(e + 1);
    cn_assert(e);
    e->id = l->q.id;
    e->kind = kind;
    e->choice = choice;
    e->tokens = (struct rt_token *)at;
    e->n_tokens = n_tokens;
    at += n_tokens * sizeof(struct rt_token);
    e->top = (struct eng_logprob *)at;
    at += n_top * sizeof(struct eng_logprob);
    if (len) memcpy(at, text, len);
    e->text = at;
    e->text_len = len;
    return e;
}

void rt_event_free(struct rt_event *e)
{
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
        ((struct eng_logprob *)e->top)[t->top_at + k] =
            (struct eng_logprob){(id + k) % 200, -0.5f - (float)k};
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

/* ---- one request
 * ------------------------------------------------------------------------------------ */

static void end_choice(struct live *l, uint32_t i, enum rt_finish finish, const char *stop)
{
    struct choice *c = &l->choices[i];
    if (finish == RT_FINISH_LENGTH && l->q.parted) {
        struct eng_parts p;
        eng_parts_init(&p);
        eng_detok_flush(&c->detok, &c->held);
        eng_reply_text(&c->reply, c->held.data, c->held.len, &p);
        eng_reply_finish(&c->reply, &p);
        if (p.text.len) send_parts(l, i, &p, NULL);
        eng_parts_fini(&p);
    } else if (finish == RT_FINISH_LENGTH) {
        eng_detok_flush(&c->detok, &c->held);
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
    if (code) snprintf(e->message, sizeof e->message, "%s", cn_err_info(code)->text);
    e->usage = (struct rt_usage){l->q.n_prompt, 0, l->done_tokens, 0};
    for (uint32_t i = 0; i < l->q.n; i++)
        e->usage.reasoning_tokens += l->choices[i].n_reasoning;
    send(l, e);
    cn_metric_add(r->metrics,
                  code == CN_ECANCELLED ? CN_M_requests_cancelled
                  : code                ? CN_M_requests_error
                                        : CN_M_requests_ok,
                  1);
    for (uint32_t i = 0; i < l->q.n; i++)
        cn_buf_fini(&l->choices[i].held);
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
    for (size_t i = 0; i < l->q.n_stop; i++) {
        size_t n = strlen(l->q.stop[i]);
        if (n > longest) longest = n;
        const char *at = held->len ? memmem(held->data, held->len, l->q.stop[i], n) : NULL;
        if (!at || (found && (size_t)(at - held->data) >= *final)) continue;
        found = l->q.stop[i];
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
    cn_assert(!(mark ? eng_detok_flush(&c->detok, &c->held)
                     : eng_detok_push(&c->detok, id, &c->held)));
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
            double x = (double)((int64_t)(l->q.prompt[i % l->q.n_prompt] * 31ull + i * 7) % 97 - 48);
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

/* True when the request is over. */
static bool step(struct rt *r, struct live *l, uint64_t now)
{
    int code = l->cancelled                                  ? CN_ECANCELLED
               : l->q.deadline_ns && now >= l->q.deadline_ns ? CN_EDEADLINE
                                                             : 0;
    if (!code && l->next_ns > now) return false;
    if (!code && !l->accepted) {
        l->accepted = true;
        send(l, event(l, RT_EV_ACCEPTED, 0, NULL, 0, 0, 0));
    }
    if (!code && l->paused) return false;
    if (!code && !l->prompted) {
        l->prompted = true;
        struct timespec t = {r->stall_ms / 1000, r->stall_ms % 1000 * 1000000};
        if (r->stall_ms) nanosleep(&t, NULL);
        if (l->q.prompt_logprobs) send_prompt(l);
    }
    bool all = true;
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
    l->next_ns = now + (uint64_t)r->delay_us * 1000;
    if (!all) return false;
    end_request(r, l, code);
    return true;
}

static bool is_loaded(struct rt *r, uint64_t now)
{
    if (!r->loaded_ns && r->load_ms) r->loaded_ns = now + (uint64_t)r->load_ms * 1000000;
    return now >= r->loaded_ns;
}

/* Those who wait for the model get it, or at the end an error. */
static void answer_waits(struct rt *r, uint64_t now)
{
    if (!r->waits || (!r->stop && !is_loaded(r, now))) return;
    for (struct wait *w = r->waits, *next; w; w = next) {
        next = w->next;
        if (!is_loaded(r, now)) w->event->code = CN_EDRAIN;
        cn_mailbox_post(w->reply, &w->event->msg);
        free(w);
    }
    r->waits = NULL;
}

static void *run(void *arg)
{
    struct rt *r = arg;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        uint64_t now = cn_now_ns();
        bool any = false;
        for (struct live **at = &r->live; *at;) {
            struct live *l = *at, *next = l->next;
            if (r->stop) l->cancelled = true;
            any = true;
            if (step(r, l, now)) {
                *at = next;
                r->n_live--;
            } else {
                at = &l->next;
            }
        }
        answer_waits(r, now);
        any = any || r->waits;
        cn_metric_set(r->metrics, CN_M_requests_running, (double)r->n_live);
        atomic_store(&r->progress_ns, cn_now_ns());
        if (r->stop && !r->live) break;
        if (!any) {
            pthread_cond_wait(&r->cond, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        struct timespec t = {0, r->delay_us > 1000 ? 1000000 : r->delay_us * 1000 + 1000};
        nanosleep(&t, NULL);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the interface
 * ---------------------------------------------------------------------------------- */

void rt_request_fini(struct rt_request *q)
{
    for (size_t i = 0; i < q->n_stop; i++)
        free(q->stop[i]);
    free(q->stop);
    free(q->stop_ids);
    free(q->prompt);
    free((void *)q->sampling.bias);
    memset(q, 0, sizeof *q);
}

int rt_submit(struct rt *r, struct rt_request *q, struct cn_error *err)
{
    int rc = 0;

    if (atomic_load(&r->draining)) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    cn_assert(q->embed == (r->embed > 0)); /* the server sees to that */
    if (q->n_prompt >= eng_model_info(r->model)->context + (q->embed ? 1 : 0))
        return cn_fail_param(err, CN_EWINDOW, "messages", "the prompt is longer than the window");
    struct live *l = calloc(1, sizeof *l);
    cn_assert(l);
    pthread_mutex_lock(&r->lock);
    if (r->queue && r->n_live >= (uint64_t)r->queue)
        rc = cn_fail(err, CN_EQUEUE, "the queue is full");
    if (!rc) {
        l->q = *q;
        memset(q, 0, sizeof *q);
        l->choices = calloc(l->q.n, sizeof *l->choices);
        cn_assert(l->choices);
        for (uint32_t i = 0; i < l->q.n; i++) {
            cn_buf_init(&l->choices[i].held, 0);
            eng_detok_init(&l->choices[i].detok, eng_model_vocab(r->model), l->q.special_tokens,
                           false);
            if (l->q.parted)
                eng_reply_init(&l->choices[i].reply, eng_model_reply(r->model), l->q.opened);
        }
        l->next_ns = cn_now_ns() + (uint64_t)r->hold_ms * 1000000;
        l->next = r->live;
        r->live = l;
        r->n_live++;
        l = NULL;
        pthread_cond_signal(&r->cond);
    }
    pthread_mutex_unlock(&r->lock);
    free(l);
    return rc;
}

static struct live *find(struct rt *r, const struct cn_mailbox *reply, uint64_t id)
{
    struct live *l = r->live;
    while (l && (l->q.id != id || l->q.reply != reply))
        l = l->next;
    return l;
}

void rt_cancel(struct rt *r, const struct cn_mailbox *reply, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    struct live *l = find(r, reply, id);
    if (l) l->cancelled = true;
    pthread_mutex_unlock(&r->lock);
}

void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused)
{
    pthread_mutex_lock(&r->lock);
    struct live *l = find(r, reply, id);
    if (l) l->paused = paused;
    pthread_mutex_unlock(&r->lock);
}

int rt_check_model(const struct cfg *cfg, const char *model_path, struct cn_error *err)
{
    return 0;
}

int rt_new(const struct rt_opts *o, struct rt **out, struct cn_error *err)
{
    struct rt *r = calloc(1, sizeof *r);
    struct eng_model_opts opts = {
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 64, .max_logit_rows = 16}};
    struct kr_cpu_opts cpu = {.isa = KR_ISA_GENERIC, .n_threads = 1};
    static char text[1 << 20];

    cn_assert(r);
    r->cfg = o->cfg;
    r->metrics = o->metrics;
    r->id = strdup(o->model_id);
    if (o->cfg->model.chat_template) {
        FILE *f = fopen(o->cfg->model.chat_template, "r");
        if (!f) return cn_fail(err, CN_EIO, "cannot read %s", o->cfg->model.chat_template);
        opts.template_len = fread(text, 1, sizeof text, f);
        opts.template_text = text;
        fclose(f);
    }
    int rc = kr_cpu_new(&cpu, &r->device, err);
    opts.device = r->device;
    if (!rc) rc = eng_model_open(o->model_path, &opts, &r->model, err);
    if (rc) return rc;
    r->delay_us = number("CONIFER_FAKE_DELAY_US", 0);
    r->hold_ms = number("CONIFER_FAKE_HOLD_MS", 0);
    r->queue = number("CONIFER_FAKE_QUEUE", 0);
    r->fail_at = number("CONIFER_FAKE_FAIL_AT", 0);
    r->stall_ms = number("CONIFER_FAKE_STALL_MS", 0);
    r->embed = number("CONIFER_FAKE_EMBED", 0);
    r->load_ms = number("CONIFER_FAKE_LOAD_MS", 0);
    r->stuck_ms = number("CONIFER_FAKE_STUCK_MS", 2000);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->cond, NULL);
    cn_assert(!pthread_create(&r->thread, NULL, run, r));
    *out = r;
    return 0;
}

void rt_free(struct rt *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->cond);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    eng_model_unref(r->model);
    kr_device_free(r->device);
    free(r->id);
    free(r);
}

void rt_drain(struct rt *r)
{
    atomic_store(&r->draining, true);
}

uint64_t rt_in_flight(const struct rt *r)
{
    return atomic_load(&((struct rt *)r)->n_live);
}

struct eng_model *rt_model(const struct rt *r)
{
    return r->model;
}

const char *rt_model_id(const struct rt *r)
{
    return r->id;
}

size_t rt_n_models(const struct rt *r)
{
    return 1;
}

struct rt_model {
    struct rt *rt;
};
static struct rt_model only;

struct rt_model *rt_model_at(const struct rt *r, size_t i)
{
    only.rt = (struct rt *)r;
    return &only;
}

struct rt_model *rt_model_find(const struct rt *r, const char *name, size_t n)
{
    bool it = strlen(r->id) == n && !memcmp(r->id, name, n);
    return it ? rt_model_at(r, 0) : NULL;
}

void rt_model_status(const struct rt_model *m, struct rt_model_status *out)
{
    *out = (struct rt_model_status){.id = m->rt->id,
                                    .state = RT_LOADED,
                                    .created_s = 1700000000,
                                    .context = eng_model_info(m->rt->model)->context,
                                    .pinned = true,
                                    .fingerprint = "fp_fake"};
}

int rt_acquire(struct rt_model *m, struct cn_mailbox *reply, uint64_t id, bool *held,
               struct cn_error *err)
{
    struct rt *r = m->rt;

    *held = false;
    if (atomic_load(&r->draining)) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    pthread_mutex_lock(&r->lock);
    *held = is_loaded(r, cn_now_ns());
    if (!*held) {
        struct wait *w = calloc(1, sizeof *w);
        cn_assert(w && (w->event = calloc(1, sizeof *w->event)));
        *w->event = (struct rt_event){.id = id, .kind = RT_EV_MODEL};
        w->reply = reply;
        w->next = r->waits;
        r->waits = w;
        pthread_cond_signal(&r->cond);
    }
    pthread_mutex_unlock(&r->lock);
    return 0;
}

bool rt_acquire_cancel(struct rt_model *m, const struct cn_mailbox *reply, uint64_t id)
{
    struct rt *r = m->rt;

    pthread_mutex_lock(&r->lock);
    struct wait **at = &r->waits, *w;
    while (*at && ((*at)->reply != reply || (*at)->event->id != id))
        at = &(*at)->next;
    w = *at;
    if (w) *at = w->next;
    pthread_mutex_unlock(&r->lock);
    if (!w) return false;
    rt_event_free(w->event);
    free(w);
    return true;
}

void rt_release(struct rt_model *m)
{
}

struct eng_model *rt_model_engine(const struct rt_model *m)
{
    return m->rt->model;
}

int rt_check_served(const struct rt_model_opts *m, struct cn_error *err)
{
    return 0;
}

uint64_t rt_embedding_size(const struct rt_model *m)
{
    return (uint64_t)m->rt->embed;
}

const char *rt_fingerprint(const struct rt *r)
{
    return "fp_fake";
}

uint32_t rt_retry_after_s(const struct rt *r)
{
    return 7;
}

void rt_health(const struct rt *r, struct rt_health *out)
{
    uint64_t now = cn_now_ns(), last = atomic_load(&((struct rt *)r)->progress_ns);
    memset(out, 0, sizeof *out);
    out->draining = atomic_load(&((struct rt *)r)->draining);
    out->pending = rt_in_flight(r) > 0;
    out->since_progress_ns = out->pending && now > last ? now - last : 0;
    out->stuck_after_ns = (uint64_t)r->stuck_ms * 1000000;
    out->stuck = out->since_progress_ns > out->stuck_after_ns;
}
