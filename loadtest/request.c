/* One request from its sending to its end: its bytes, the times of what comes, what kind of end. */
#include "loadtest/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX LT_EVENT_MAX

const char *const lt_failure_names[LT_F_COUNT] = {"connect", "closed",    "timeout", "status",
                                                  "error",   "truncated", "bad",     "short"};

/* ---- lists and counts of a class ------------------------------------------------------------- */

static void enter(struct lt_request *q, uint64_t now)
{
    struct lt_class_run *k = q->class;

    q->next = k->first;
    if (k->first) k->first->prev = q;
    k->first = q;
    if (!k->in_flight++) k->busy_since_ns = now;
}

static void leave(struct lt_request *q, uint64_t now)
{
    struct lt_class_run *k = q->class;

    if (q->prev)
        q->prev->next = q->next;
    else
        k->first = q->next;
    if (q->next) q->next->prev = q->prev;
    if (--k->in_flight) return;
    k->last_busy_ns = now;

    const struct lt_run *r = k->run;
    for (size_t i = 0; r->phase >= LT_PHASE_MEASURE && i < r->result->n_classes; i++) {
        struct lt_class_run *beside = &r->classes[i];
        uint64_t from, until;

        if (beside->c->split != (int)k->index) continue;
        lt_class_window(beside, now, &from, &until);
        from = CN_MAX(from, k->busy_since_ns);
        if (until > from) beside->beside_ns += until - from;
    }
}

static void request_free(struct lt_request *q)
{
    cn_buf_fini(&q->call.out);
    cn_buf_fini(&q->body);
    lt_sse_fini(&q->sse);
    free(q);
}

static void sample(struct lt_request *q, struct lt_samples *s, uint64_t ns)
{
    if (lt_samples_add(s, ns)) q->run->oom = true;
}

/* Whether the request's own times count: it was due inside the window, and read at full speed. */
static bool counts(const struct lt_request *q)
{
    return !q->warm && !q->shape.slow && q->due_ns >= q->run->window_ns;
}

/* ---- pieces of an answer --------------------------------------------------------------------- */

/* 1 when a request of the class that split_by names ran at some time since the last piece. */
static int split_of(const struct lt_request *q, uint64_t since)
{
    int at = q->class->c->split;
    const struct lt_class_run *other = at < 0 ? NULL : &q->run->classes[at];

    return other && (other->in_flight || other->last_busy_ns > since);
}

static void on_text(struct lt_request *q, uint64_t now)
{
    struct lt_run *r = q->run;
    struct lt_tally *t = q->class->tally;
    bool inside = !q->warm && now >= r->window_ns && (!r->stop_ns || now <= r->stop_ns);
    int split = split_of(q, q->events ? q->last_ns : now);

    if (!q->events) {
        q->first_ns = now;
        if (counts(q)) sample(q, &t->ttft, now - q->due_ns);
        if (counts(q) && r->s->n_tenants)
            sample(q, &r->result->tenants[q->shape.tenant].ttft, now - q->due_ns);
    } else if (inside && !q->shape.slow && q->last_ns >= r->window_ns) {
        sample(q, &t->itl[split], now - q->last_ns);
    }
    q->last_ns = now;
    q->events++;
    if (inside) {
        q->window_events++;
        q->split_events[split]++;
    }
}

static void take(struct lt_request *q, const struct lt_event *e)
{
    if (e->usage) {
        q->usage = true;
        q->prompt_tokens = e->prompt_tokens;
        q->completion_tokens = e->completion_tokens;
        q->cached_tokens = e->cached_tokens;
    }
    if (e->error) {
        q->error = true;
        memcpy(q->message, e->message, sizeof q->message);
    }
}

static bool on_event(void *arg, const char *data, size_t n)
{
    struct lt_request *q = arg;
    struct lt_event e;

    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        q->done = true;
        return true;
    }
    if (!lt_event_read(data, n, &e)) {
        q->bad = true;
        return true;
    }
    take(q, &e);
    if (e.text) on_text(q, cn_now_ns());
    return !(q->shape.aborts && q->events >= q->shape.abort_events);
}

static bool on_data(struct lt_call *call, uint64_t now, const char *p, size_t n)
{
    struct lt_request *q = CN_CONTAINER(call, struct lt_request, call);

    (void)now;
    if (call->status != 200 || !q->class->c->stream) {
        cn_buf_append(&q->body, p, n);
        return true;
    }
    if (lt_sse_feed(&q->sse, p, n, on_event, q)) q->bad = true;
    if (!q->shape.aborts || q->events < q->shape.abort_events) return true;
    lt_request_cut(q, true);
    return false;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Tokens of the answer: as the server counts them, else pieces of text. */
static uint64_t tokens_of(const struct lt_request *q)
{
    if (q->usage && q->completion_tokens) return q->completion_tokens;
    return q->class->c->stream ? q->events : q->text;
}

static void count_tokens(struct lt_request *q, uint64_t now)
{
    struct lt_run *r = q->run;
    struct lt_tally *t = q->class->tally;
    double tokens = (double)tokens_of(q);

    if (q->class->c->stream) {
        if (!q->events) return;
        t->window_tokens += tokens * (double)q->window_events / (double)q->events;
        for (int i = 0; i < 2; i++)
            t->split_tokens[i] += tokens * (double)q->split_events[i] / (double)q->events;
    } else {
        /* when its tokens were made is not known: all along, and so the window has its part of
         * them */
        uint64_t from = CN_MAX(q->sent_ns, r->window_ns);
        uint64_t until = r->stop_ns ? CN_MIN(now, r->stop_ns) : now;

        if (until <= from) return;
        tokens *= (double)(until - from) / (double)(now - q->sent_ns);
        t->window_tokens += tokens;
        t->split_tokens[split_of(q, q->sent_ns)] += tokens;
    }
}

static void count_ok(struct lt_request *q, uint64_t now)
{
    struct lt_run *r = q->run;
    struct lt_tally *t = q->class->tally;
    uint64_t tokens = tokens_of(q);

    t->ok++;
    t->slow += q->shape.slow;
    t->prompt_tokens += q->prompt_tokens;
    t->cached_tokens += q->cached_tokens;
    t->answer_tokens += tokens;
    if (now >= r->window_ns && (!r->stop_ns || now <= r->stop_ns)) t->window_ok++;
    if (r->s->n_tenants) {
        struct lt_tenant_tally *tenant = &r->result->tenants[q->shape.tenant];

        tenant->ok++;
        tenant->answer_tokens += tokens;
        if (counts(q)) sample(q, &tenant->total, now - q->due_ns);
    }
    if (!counts(q)) return;
    sample(q, &t->total, now - q->due_ns);
    if (q->events && tokens > 1) sample(q, &t->tpot, (q->last_ns - q->first_ns) / (tokens - 1));
}

static void count_failure(struct lt_request *q, enum lt_failure f, const char *detail)
{
    struct lt_tally *t = q->class->tally;
    int status = q->call.status;

    t->failed[f]++;
    if (f == LT_F_STATUS) t->statuses[CN_MIN((size_t)status, CN_ARRAY_LEN(t->statuses) - 1)]++;
    if (q->run->s->n_tenants) q->run->result->tenants[q->shape.tenant].failed++;
    if (t->failure[0]) return;
    if (f == LT_F_STATUS)
        snprintf(t->failure, sizeof t->failure, "%d: %s", status, detail);
    else
        snprintf(t->failure, sizeof t->failure, "%s: %s", lt_failure_names[f], detail);
    lt_plain(t->failure);
}

/* What an answer that is whole as HTTP amounts to; LT_F_COUNT: all is well. */
static enum lt_failure judge(struct lt_request *q, const char **detail)
{
    struct lt_event e;

    *detail = q->message;
    if (q->call.status != 200 || !q->class->c->stream) {
        bool object =
            !q->body.failed && lt_event_read(q->body.data ? q->body.data : "", q->body.len, &e);
        if (object) take(q, &e);
        if (q->call.status != 200) return LT_F_STATUS;
        if (!object) {
            *detail = "the answer is no JSON object";
            return LT_F_BAD;
        }
        q->done = e.finish;
        q->text = e.text;
    }
    if (q->error) return LT_F_ERROR;
    if (q->bad) {
        *detail = "an event is no JSON object";
        return LT_F_BAD;
    }
    if (!q->done) {
        *detail = "the answer has no end";
        return LT_F_TRUNCATED;
    }
    if (q->class->c->ignore_eos && q->usage && q->completion_tokens < q->shape.answer_tokens) {
        *detail = "fewer tokens than asked for";
        return LT_F_SHORT;
    }
    if (!tokens_of(q)) {
        *detail = "an answer without a token";
        return LT_F_BAD;
    }
    return LT_F_COUNT;
}

static void over(struct lt_request *q, uint64_t now, bool failed)
{
    struct lt_class_run *k = q->class;
    struct lt_user *user = q->user;
    bool warm = q->warm;

    leave(q, now);
    request_free(q);
    lt_run_request_over(k, user, warm, failed);
}

static void on_end(struct lt_call *call, uint64_t now, enum lt_end end, const char *detail)
{
    static const enum lt_failure of_end[] = {[LT_END_CONNECT] = LT_F_CONNECT,
                                             [LT_END_CLOSED] = LT_F_CLOSED,
                                             [LT_END_TIMEOUT] = LT_F_TIMEOUT,
                                             [LT_END_BAD_HTTP] = LT_F_BAD};
    struct lt_request *q = CN_CONTAINER(call, struct lt_request, call);
    enum lt_failure f = end == LT_END_OK ? judge(q, &detail) : of_end[end];

    if (f != LT_F_COUNT) count_failure(q, f, detail); /* those of the warm-up too */
    if (!q->warm) {
        count_tokens(q, now);
        if (f == LT_F_COUNT) count_ok(q, now);
    } else {
        q->class->tally->warm++;
    }
    over(q, now, f != LT_F_COUNT);
}

void lt_request_cut(struct lt_request *q, bool aborted)
{
    struct lt_tally *t = q->class->tally;
    uint64_t now = cn_now_ns();

    lt_client_cut(&q->run->client, &q->call);
    if (!q->warm) {
        count_tokens(q, now);
        if (aborted)
            t->aborted++;
        else
            t->cut++;
    }
    over(q, now, false);
}

/* ---- the beginning --------------------------------------------------------------------------- */

void lt_head(const struct lt_run *r, const char *method, const char *path, const char *key,
             size_t body, struct cn_buf *out)
{
    cn_buf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: conifer-load\r\n", method,
                  r->target.base, path, r->target.host);
    if (key && *key) cn_buf_printf(out, "Authorization: Bearer %s\r\n", key);
    if (!r->s->keep_alive) cn_buf_puts(out, "Connection: close\r\n");
    if (body) cn_buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body);
    cn_buf_puts(out, "\r\n");
}

void lt_request_send(struct lt_class_run *k, struct lt_user *user, uint64_t due_ns, bool warm)
{
    static const struct lt_call_ops ops = {on_data, on_end};
    struct lt_run *r = k->run;
    struct lt_request *q = cn_calloc(1, sizeof *q);
    uint64_t number = warm ? k->warm_issued++ : k->issued++;
    const char *key = r->key;
    struct cn_buf body;

    if (!q) {
        r->oom = true;
        return;
    }
    q->run = r;
    q->class = k;
    q->user = user;
    q->warm = warm;
    q->due_ns = due_ns;
    q->call.ops = &ops;
    lt_sse_init(&q->sse);
    cn_buf_init(&q->body, BODY_MAX);
    cn_buf_init(&q->call.out, 0);
    lt_shape_draw(r->s, k->index, number, warm, r->result->seed, &q->shape);
    if (warm) q->shape.aborts = q->shape.slow = false;
    if (q->shape.slow) q->call.read_rate_bytes = (uint64_t)k->c->slow_bytes_per_s;
    cn_buf_init(&body, 0);
    lt_body(r->s, k->index, number, warm, r->result->seed, r->result->model, &q->shape, &body);
    if (r->s->n_tenants) key = r->s->tenants[q->shape.tenant].key;
    lt_head(r, "POST", k->c->endpoint == LT_CHAT ? "/v1/chat/completions" : "/v1/completions", key,
            body.len, &q->call.out);
    cn_buf_append(&q->call.out, body.data, body.len);
    if (body.failed || q->call.out.failed) r->oom = true;
    cn_buf_fini(&body);
    q->sent_ns = cn_now_ns();
    if (q->shape.aborts && k->c->abort_after_s > 0)
        q->cut_at_ns = q->sent_ns + (uint64_t)(k->c->abort_after_s * 1e9);
    enter(q, q->sent_ns);
    if (!warm) {
        k->tally->sent++;
        if (r->s->n_tenants) r->result->tenants[q->shape.tenant].sent++;
        if (due_ns >= r->window_ns)
            sample(q, &k->tally->lag, q->sent_ns > due_ns ? q->sent_ns - due_ns : 0);
    }
    lt_client_start(&r->client, &q->call);
}
