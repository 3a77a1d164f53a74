#include "tests/scheduler/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REQS  4096
#define MAX_ROWS  512
#define MAX_DRAFT 16
#define WORDS     140 /* of prompts of text */
#define IDS       30000
#define PHRASE    24 /* tokens after which text repeats itself, but for one in so many: */
#define NEW_WORD  20

struct client_req {
    const struct load_class *class;
    struct sch_request spec;
    uint64_t id;
    uint32_t *ids;             /* prompt and answer */
    uint32_t n_out, cut_after; /* cut_after 0: not cut */
    double due_ns, first_ns, last_ns;
    bool sent, ended, counts;
};

struct world {
    const struct load *l;
    struct sch *sch;
    double clock;
    uint64_t noise, arrivals, ticket; /* the first two: of chance */
    const struct sch_step *step;
    struct sch_row_result results[MAX_ROWS];
    struct client_req *reqs;
    uint32_t n_reqs, n_settled, n_made[2]; /* n_settled: those before it were sent and have ended */
    double next_due[2];                    /* of an open loop */
    double *gaps;
    size_t n_gaps, gaps_cap;
    double tokens, began_ns;
};

/* ---- chance ---------------------------------------------------------------------------------- */

static double unit(uint64_t *rng)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    return (double)(*rng * 0x2545f4914f6cdd1dull >> 11) / 9007199254740992.0;
}

static uint64_t seed_of(const struct world *w, uint64_t what, uint64_t number)
{
    uint64_t rng = (w->l->seed * 1000003 + what) * 0x9e3779b97f4a7c15ull + number + 1;

    for (int i = 0; i < 8; i++)
        unit(&rng);
    return rng;
}

static uint32_t below(uint64_t *rng, uint32_t n)
{
    return (uint32_t)(unit(rng) * n);
}

static uint32_t len_of(uint64_t *rng, struct load_len l)
{
    double z = sqrt(-2 * log(1 - unit(rng))) * cos(6.283185307179586 * unit(rng));

    if (l.median > 0) return (uint32_t)CN_MAX(1, CN_MIN(l.median * exp(l.sigma * z), l.most));
    return l.least + below(rng, CN_MAX(l.most, l.least) - l.least + 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct client_req *req_new(struct world *w, uint32_t class, double due_ns)
{
    struct client_req *r = &w->reqs[w->n_reqs++];
    const struct load_class *c = &w->l->classes[class];
    uint64_t rng = seed_of(w, class, w->n_made[class]); /* alike whatever the server does */
    uint32_t own = len_of(&rng, c->prompt), answer = len_of(&rng, c->answer), n = c->prefix + own;
    uint32_t words = w->l->text ? WORDS : IDS;

    cn_assert(w->n_reqs <= MAX_REQS);
    r->class = c;
    r->due_ns = due_ns;
    r->ids = cn_malloc_array(n + answer, sizeof(*r->ids));
    if (unit(&rng) < c->abort_share) r->cut_after = 1 + below(&rng, 16);
    r->spec = (struct sch_request){.tenant = w->l->tenants > 1 ? below(&rng, 4) == 0 : c->tenant,
                                   .class = SCH_NORMAL,
                                   .prompt = r->ids,
                                   .n_prompt = n,
                                   .max_new = answer,
                                   .n_choices = 1,
                                   .user = r};
    for (uint32_t i = 0; i < c->prefix; i++)
        r->ids[i] = IDS + w->n_made[class] % c->prefixes * 1000 + i;
    for (uint32_t i = c->prefix; i < n; i++)
        r->ids[i] = below(&rng, words);
    for (uint32_t i = n; i < n + answer; i++) {
        bool again = w->l->text && i >= n + PHRASE && below(&rng, NEW_WORD);
        r->ids[i] = again ? r->ids[i - PHRASE] : below(&rng, words);
    }
    r->counts = class == 0 && due_ns >= w->l->warmup_s * 1e9;
    w->n_made[class]++;
    return r;
}

static void send_due(struct world *w)
{
    while (w->n_settled < w->n_reqs && w->reqs[w->n_settled].ended)
        w->n_settled++;
    for (uint32_t i = w->n_settled; i < w->n_reqs; i++) {
        struct client_req *r = &w->reqs[i];

        if (r->sent || r->due_ns > w->clock) continue;
        cn_assert(sch_submit(w->sch, &r->spec, &r->id, NULL) == 0);
        r->sent = true;
    }
}

static bool is_over(const struct world *w, const struct load_class *c, double due_ns)
{
    if (w->l->end_s > 0 && due_ns >= w->l->end_s * 1e9) return true;
    return c->requests && w->n_made[c - w->l->classes] >= c->requests;
}

/* Whether classes that are not background have requests left. */
static bool is_wanted(const struct world *w)
{
    for (uint32_t i = w->n_settled; i < w->n_reqs; i++) {
        if (!w->reqs[i].ended && !w->reqs[i].class->background) return true;
    }
    return false;
}

/* ---- the device ------------------------------------------------------------------------------ */

static int launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct world *w = self;

    w->step = step;
    *ticket = ++w->ticket;
    return 0;
}

static double step_ns(struct world *w, const struct sch_step *step)
{
    const struct load_device *d = &w->l->device;
    double ns = d->base_ns + d->row_ns * step->n_rows + d->logit_ns * step->n_logits, keys = 0;

    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *g = &step->segments[i];
        keys += (double)(g->pos + g->n_rows / 2) * (g->n_sample > 1 ? 1 : g->n_rows);
    }
    ns += d->key_ns * keys + d->token_ns * step->n_sample;
    return ns * (1 + d->jitter * unit(&w->noise));
}

static int collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct world *w = self;
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->step->n_segments; i++) {
        const struct sch_segment *g = &w->step->segments[i];
        const struct client_req *r = g->user;

        for (uint32_t k = 0; k < g->n_sample; k++) {
            uint64_t next = g->pos + g->n_rows - g->n_sample + k + 1;
            /* behind a wrong draft anything may stand: nobody looks there */
            w->results[n++] = (struct sch_row_result){
                .token = next < r->spec.n_prompt + r->spec.max_new ? r->ids[next] : 0};
        }
    }
    w->clock += step_ns(w, w->step);
    *out = (struct sch_step_result){n, w->results};
    return 0;
}

static uint64_t now(void *self)
{
    return (uint64_t)((struct world *)self)->clock;
}

/* ---- what comes back ------------------------------------------------------------------------- */

static void note_gap(struct world *w, double ns)
{
    cn_assert(cn_grow(&w->gaps, &w->gaps_cap, w->n_gaps + 1, sizeof(*w->gaps)) == 0);
    w->gaps[w->n_gaps++] = ns;
}

static enum sch_verdict on_token(void *arg, const struct sch_token *t)
{
    struct world *w = arg;
    struct client_req *r = t->user;

    cn_assert(t->token == r->ids[t->position]);
    if (!r->n_out++)
        r->first_ns = w->clock;
    else if (r->counts)
        note_gap(w, w->clock - r->last_ns);
    r->last_ns = w->clock;
    if (r->counts) w->tokens++;
    if (r->cut_after && r->n_out == r->cut_after) sch_cancel(w->sch, t->request);
    return SCH_CONTINUE;
}

static void on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason)
{
}

static void on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                   const struct sch_usage *usage)
{
    struct world *w = arg;
    struct client_req *r = user;
    double due = w->clock + r->class->think_s * 1e9;

    r->ended = true;
    if (r->class->clients && !is_over(w, r->class, due))
        req_new(w, (uint32_t)(r->class - w->l->classes), due);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void begin(struct world *w, uint32_t class)
{
    const struct load_class *c = &w->l->classes[class];
    double start = w->began_ns + c->start_s * 1e9;

    for (uint32_t i = 0; i < c->clients && !is_over(w, c, start); i++)
        req_new(w, class, start + c->ramp_s * 1e9 * i / c->clients);
    w->next_due[class] = start;
}

static void arrive(struct world *w, uint32_t class)
{
    const struct load_class *c = &w->l->classes[class];

    while (c->rate > 0 && w->next_due[class] <= w->clock && !is_over(w, c, w->next_due[class])) {
        req_new(w, class, w->next_due[class]);
        w->next_due[class] -= log(1 - unit(&w->arrivals)) / c->rate * 1e9;
    }
}

/* The clock to when somebody comes; false: nobody will. */
static bool wait_next(struct world *w)
{
    double next = INFINITY;

    for (uint32_t k = 0; k < w->l->n_classes; k++) {
        const struct load_class *c = &w->l->classes[k];
        if (c->rate > 0 && !is_over(w, c, w->next_due[k])) next = CN_MIN(next, w->next_due[k]);
    }
    for (uint32_t i = w->n_settled; i < w->n_reqs; i++) {
        if (!w->reqs[i].sent) next = CN_MIN(next, w->reqs[i].due_ns);
    }
    if (next == INFINITY) return false;
    w->clock = CN_MAX(w->clock, next);
    return true;
}

static void serve(struct world *w)
{
    for (uint64_t turns = 0;; turns++) {
        cn_assert(turns < 10000000);
        for (uint32_t k = 0; k < w->l->n_classes; k++)
            arrive(w, k);
        send_due(w);
        w->clock += 1000;
        if (!sch_iterate(w->sch) && !wait_next(w)) return;
        if (w->l->end_s == 0 && !is_wanted(w)) return;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Nearest rank. */
static double percentile_ms(double *v, size_t n, double p)
{
    size_t rank = (size_t)ceil(p * (double)n);

    if (!n) return 0;
    qsort(v, n, sizeof(*v), by_size);
    return v[rank ? rank - 1 : 0] / 1e6;
}

static void read_figures(struct world *w, struct load_figures *out)
{
    double *ttft = cn_calloc(w->n_reqs, sizeof(*ttft));
    struct sch_stats st;
    uint32_t n = 0;

    *out = (struct load_figures){0};
    for (uint32_t i = 0; i < w->n_reqs; i++) {
        const struct client_req *r = &w->reqs[i];

        if (r->counts && r->n_out) ttft[n++] = r->first_ns - r->due_ns;
    }
    out->ttft_p99_ms = percentile_ms(ttft, n, 0.99);
    out->gap_p50_ms = percentile_ms(w->gaps, w->n_gaps, 0.5);
    out->gap_p99_ms = percentile_ms(w->gaps, w->n_gaps, 0.99);
    out->gap_max_ms = percentile_ms(w->gaps, w->n_gaps, 1);
    out->tokens_s = w->tokens / (w->clock - w->began_ns) * 1e9;
    sch_stats(w->sch, &st);
    out->drafted = (double)st.drafted;
    out->right = (double)st.drafts_right;
    free(ttft);
}

/* One request alone, as the load generator's warm-up. */
static void warm_up(struct world *w)
{
    struct client_req *r = req_new(w, 0, 0);

    r->counts = false;
    r->class = &(struct load_class){0}; /* nobody sends another */
    w->n_made[0]--;
    send_due(w);
    while (sch_iterate(w->sch))
        ;
    cn_assert(r->ended);
}

void load_run(const struct load *l, struct load_setting s, struct load_figures *out)
{
    struct world w = {.l = l};
    struct kv_pool_opts po = {
        .slab_bytes = 1 << 20, .n_slabs = 1024, .key = (const uint8_t *)"0123456789abcdef"};
    struct kv_group g = {.block_bytes = 8192};
    struct kv_space_opts ko = {
        .id = "m", .id_len = 1, .block_tokens = 16, .n_groups = 1, .groups = &g};
    struct sch_model_opts mo = {.context = 8192, .max_rows = MAX_ROWS, .max_logit_rows = 64};
    struct sch_opts so = {.max_running = 64,
                          .step_target_ns = 50000000,
                          .step_stretch = s.stretch,
                          .short_prompt = 1024,
                          .speculation = {.max_draft = s.speculation ? MAX_DRAFT : 0}};
    struct kv_pool *pool;
    uint32_t model;

    w.noise = seed_of(&w, 10, 0);
    w.arrivals = seed_of(&w, 11, 0);
    w.reqs = cn_calloc(MAX_REQS, sizeof(*w.reqs));
    so.stepper = (struct sch_stepper){
        .self = &w, .depth = 1, .launch = launch, .collect = collect, .now = now};
    so.cb = (struct sch_callbacks){
        .arg = &w, .on_token = on_token, .on_choice_end = on_choice_end, .on_end = on_end};
    cn_assert(kv_pool_new(&po, &pool, NULL) == 0);
    cn_assert(kv_space_add(pool, &ko, &mo.space, NULL) == 0);
    so.pool = pool;
    cn_assert(sch_new(&so, &w.sch, NULL) == 0 && sch_model_add(w.sch, &mo, &model, NULL) == 0);
    if (l->warm) warm_up(&w);
    w.tokens = 0;
    w.began_ns = w.clock;
    for (uint32_t k = 0; k < l->n_classes; k++)
        begin(&w, k);
    serve(&w);
    read_figures(&w, out);
    sch_free(w.sch);
    kv_pool_free(pool);
    for (uint32_t i = 0; i < w.n_reqs; i++)
        free(w.reqs[i].ids);
    free(w.gaps);
    free(w.reqs);
}
