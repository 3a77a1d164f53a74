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
 *   CONIFER_FAKE_STUCK_MS: after so long without progress it says that it is stuck (2000);
 *   CONIFER_FAKE_SUBMIT_MS: who submits goes on so long after the request is there (0);
 *   CONIFER_FAKE_GO: from when this file is there nothing is held, delayed, loading or standing
 * still, so that a test need not guess how long what it looks at takes. */
#include "tests/server/fake_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long number(const char *name, long def)
{
    const char *s = getenv(name);
    return s ? strtol(s, NULL, 10) : def;
}

bool fake_goes(const struct rt *r)
{
    return r->go && !access(r->go, F_OK);
}

static bool is_loaded(struct rt *r, uint64_t now)
{
    if (!r->loaded_ns && r->load_ms) r->loaded_ns = now + (uint64_t)r->load_ms * 1000000;
    return now >= r->loaded_ns || fake_goes(r);
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
            if (fake_step(r, l, now)) {
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

/* ---- the interface --------------------------------------------------------------------------- */

void rt_request_fini(struct rt_request *q)
{
    rt_shared_unref(q->shared);
    free(q->prompt);
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
                eng_reply_init(&l->choices[i].reply, eng_model_reply(r->model), NULL, l->q.start);
        }
        l->next_ns = cn_now_ns() + (uint64_t)r->hold_ms * 1000000;
        l->next = r->live;
        r->live = l;
        r->n_live++;
        cn_metric_set(r->metrics, CN_M_requests_running, (double)r->n_live); /* not idle any more */
        l = NULL;
        pthread_cond_signal(&r->cond);
    }
    pthread_mutex_unlock(&r->lock);
    free(l);
    if (r->submit_ms) usleep((useconds_t)r->submit_ms * 1000);
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
    r->go = getenv("CONIFER_FAKE_GO");
    r->delay_us = number("CONIFER_FAKE_DELAY_US", 0);
    r->hold_ms = number("CONIFER_FAKE_HOLD_MS", 0);
    r->queue = number("CONIFER_FAKE_QUEUE", 0);
    r->fail_at = number("CONIFER_FAKE_FAIL_AT", 0);
    r->stall_ms = number("CONIFER_FAKE_STALL_MS", 0);
    r->embed = number("CONIFER_FAKE_EMBED", 0);
    r->submit_ms = number("CONIFER_FAKE_SUBMIT_MS", 0);
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

int rt_tenants_set(struct rt *r, struct cfg_tenants *now)
{
    return 0;
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

struct rt_model { struct rt *rt; };
static struct rt_model only;

struct rt_model *rt_model_at(const struct rt *r, size_t i)
{
    only.rt = (struct rt *)r;
    return &only;
}

uint32_t rt_model_number(const struct rt_model *m)
{
    return 0;
}

struct rt_model *rt_model_find(const struct rt *r, const char *name, size_t n)
{
    bool it = strlen(r->id) == n && !memcmp(r->id, name, n);
    return it ? rt_model_at(r, 0) : NULL;
}

static enum rt_tools tools(const struct rt *r)
{
    return rt_tools_for(eng_model_template(r->model), r->cfg->model.tools_fallback);
}

void rt_model_status(const struct rt_model *m, struct rt_model_status *out)
{
    *out = (struct rt_model_status){.id = m->rt->id,
                                    .state = RT_LOADED,
                                    .created_s = 1700000000,
                                    .context = eng_model_info(m->rt->model)->context,
                                    .sampling.from = "default",
                                    .tools = tools(m->rt),
                                    .pinned = true,
                                    .fingerprint = "fp_fake"};
}

int rt_acquire(struct rt_model *m, uint64_t tenant, struct cn_mailbox *reply, uint64_t id,
               bool *held, struct cn_error *err)
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

void rt_model_text(const struct rt_model *m, struct rt_model_text *out)
{
    const struct eng_model *e = m->rt->model;
    const struct eng_model_info *info = eng_model_info(e);
    *out = (struct rt_model_text){.vocab = eng_model_vocab(e),
                                  .chat_template = eng_model_template(e),
                                  .reply = eng_model_reply(e),
                                  .fingerprint = info->fingerprint,
                                  .context = info->context,
                                  .tools = tools(m->rt)};
}

void rt_model_sampling(const struct rt_model *m, struct rt_sampling *out)
{
    eng_sampling_defaults(&out->v);
    out->from = "default";
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
