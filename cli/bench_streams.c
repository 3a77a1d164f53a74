/* Requests at the same time, through the runtime that serves: when each stream's tokens came. Main
 * thread; the tokens are made by the runtime's. */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

struct stream {
    uint32_t *prompt; /* until the stream has begun */
    uint64_t id, first_ns, last_ns, n;
    bool done;
};
struct run {
    struct cli_stack *stack;
    const struct bench_ask *ask;
    struct stream *streams;
    uint64_t *stamps; /* of all tokens, in the order they came */
    size_t n_stamps;
    uint32_t n_begun, n_done;
    struct cn_error *err; /* the first reason why a stream failed */
    int rc;
};

uint32_t *cli_bench_random_prompt(const struct eng_vocab *v, size_t n)
{
    uint32_t *ids = cn_malloc_array(n, sizeof *ids);
    size_t size = eng_vocab_size(v), drawn = 0;
    uint64_t x[256];

    for (size_t i = 0; ids && i < n; i++) {
        for (int tries = 0; tries < 64; tries++) {
            if (drawn % CN_ARRAY_LEN(x) == 0) cn_random(x, sizeof x);
            ids[i] = (uint32_t)(x[drawn++ % CN_ARRAY_LEN(x)] % size);
            /* control tokens could change what the model does */
            if (!eng_vocab_is_control(v, ids[i])) break;
        }
    }
    return ids;
}

static void fail(struct run *r, int code, const char *message)
{
    if (r->rc) return;
    r->rc = cn_fail(r->err, code, "%s", message);
    for (uint32_t i = 0; i < r->n_begun; i++) /* nobody waits for the others */
        if (!r->streams[i].done) rt_cancel(r->stack->rt, &r->stack->mail, r->streams[i].id);
}

static int make_prompts(struct run *r)
{
    const struct bench_ask *a = r->ask;
    const struct eng_vocab *v = eng_model_vocab(rt_model(r->stack->rt));
    size_t n = (size_t)a->n_prompt;

    for (uint32_t i = 0; i < a->streams; i++) {
        uint32_t *ids = a->prompt ? cn_malloc_array(n, sizeof *ids) : cli_bench_random_prompt(v, n);
        if (!ids) return cn_fail(r->err, CN_ENOMEM, "out of memory");
        if (a->prompt) memcpy(ids, a->prompt, n * sizeof *ids);
        r->streams[i].prompt = ids;
    }
    return 0;
}

static int begin(struct run *r, struct stream *s)
{
    const struct bench_ask *a = r->ask;
    struct rt_request q = {.n = 1,
                           .n_prompt = (size_t)a->n_prompt,
                           .max_tokens = a->tokens,
                           .priority = RT_INTERACTIVE,
                           .reply = &r->stack->mail};
    struct cn_error err = {0};

    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    q.id = s->id = ++r->stack->last_id;
    q.prompt = s->prompt;
    s->prompt = NULL;
    int rc = rt_submit(r->stack->rt, &q, &err);
    if (rc) {
        rt_request_fini(&q);
        fail(r, rc, err.message);
    }
    return rc;
}

static void take(struct run *r, const struct rt_event *e, uint64_t now)
{
    /* ids rise by one from the first stream's */
    uint64_t i = e->id - r->streams[0].id;
    if (i >= r->n_begun) return;
    struct stream *s = &r->streams[i];
    if (e->kind == RT_EV_TOKENS) {
        for (size_t k = 0; k < e->n_tokens && s->n < r->ask->tokens; k++) {
            if (!s->n++) s->first_ns = now;
            s->last_ns = now;
            r->stamps[r->n_stamps++] = now;
        }
    } else if (e->kind == RT_EV_END) {
        s->done = true;
        r->n_done++;
        if (e->code)
            fail(r, e->code, rt_event_reason(e).message);
        else if (s->n < 2)
            fail(r, CN_EINTERNAL, "the model made fewer than two tokens");
    }
}

static void wait_all(struct run *r)
{
    while (r->n_done < r->n_begun) {
        cn_mailbox_wait(&r->stack->mail, 50000000u);
        uint64_t now = cn_now_ns();
        for (struct cn_msg *m = cn_mailbox_take(&r->stack->mail), *next; m; m = next) {
            struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
            next = m->next;
            take(r, e, now);
            rt_event_free(e);
        }
    }
}

/* From when the last stream has begun to when the first one ends. */
static void measure(const struct run *r, uint64_t start, struct bench_times *out)
{
    uint64_t from = 0, to = UINT64_MAX, n = 0;

    for (uint32_t i = 0; i < r->ask->streams; i++) {
        from = CN_MAX(from, r->streams[i].first_ns);
        to = CN_MIN(to, r->streams[i].last_ns);
    }
    out->ttft_s = (double)(from - start) / 1e9;
    out->together = to >= from;
    if (!out->together) return;
    if (to == from) from = start; /* faster than this thread looks: from the beginning, then */
    for (size_t i = 0; i < r->n_stamps; i++)
        n += r->stamps[i] > from && r->stamps[i] <= to;
    out->decode_tok_s = (double)n * 1e9 / (double)CN_MAX(to - from, 1u);
}

int cli_bench_streams(struct cli_stack *s, const struct bench_ask *a, struct bench_times *out,
                      struct cn_error *err)
{
    struct run r = {.stack = s,
                    .ask = a,
                    .err = err,
                    .streams = cn_calloc(a->streams, sizeof *r.streams),
                    .stamps = cn_malloc_array((size_t)a->streams * a->tokens, sizeof *r.stamps)};

    r.rc = r.streams && r.stamps ? make_prompts(&r) : cn_fail(err, CN_ENOMEM, "out of memory");
    uint64_t start = cn_now_ns();
    while (!r.rc && r.n_begun < a->streams)
        if (!begin(&r, &r.streams[r.n_begun])) r.n_begun++;
    wait_all(&r);
    *out = (struct bench_times){0};
    if (!r.rc) measure(&r, start, out);
    for (uint32_t i = 0; r.streams && i < a->streams; i++)
        free(r.streams[i].prompt);
    free(r.streams);
    free(r.stamps);
    return r.rc;
}
