/* Composition of a step: one row for each choice that decodes, then chunks of prompts within a
 * budget of rows that comes from measured step time. In each pass the tenant with the lowest
 * counter goes next and is charged at once, so rows are shared by weight. */
#include "scheduler/internal.h"

#define MAX_PASSED_OVER 4 /* steps; then a prompt that must fit into one step goes first */
#define NORMAL_TURN     4 /* every 4th step of a model, normal prompts go before interactive ones */
#define AGE_TURN   5   /* every 5th, a tenant's oldest first; coprime to 4, so each class gets it */
#define MODEL_LATE 4   /* steps that other models may have before it is this model's turn */
#define LOOK_STEPS 32  /* steps between two measurements of decoding alone */
#define LONG_LOOK  256 /* the same if that time does not limit the prompts */

/* ---- one segment ----------------------------------------------------------------------------- */

/* Cost of rows [pos, pos + n) that were not computed before. */
static double rows_cost(const struct sch *s, const struct sch_choice *c, uint64_t pos, uint32_t n)
{
    uint64_t from = CN_MAX(pos, c->high), to = pos + n, mid = c->req->spec.n_prompt;
    uint64_t prompt = from < mid ? CN_MIN(to, mid) - CN_MIN(from, CN_MIN(to, mid)) : 0;
    uint64_t all = to > from ? to - from : 0;

    return (double)prompt + (double)(all - prompt) * s->o.decode_cost;
}

static bool scores_prompt(const struct sch_choice *c)
{
    return c->index == 0 && (c->req->spec.flags & SCH_PROMPT_LOGITS);
}

/* Number of rows of [pos, pos + n) that want logits. */
static uint32_t logits_of(const struct sch_choice *c, uint64_t pos, uint32_t n)
{
    uint32_t sample = pos + n >= c->n_ids ? 1 : 0;
    uint64_t from = CN_MAX(pos, c->scored);

    if (!scores_prompt(c) || pos >= c->req->spec.n_prompt || from >= pos + n) return sample;
    return (uint32_t)(pos + n - from);
}

/* Adds rows [pos, pos + n) of c to the step, and `drafts` draft rows. */
static void add_segment(struct sch *s, struct sch_flight *f, struct sch_choice *c, uint64_t pos,
                        uint32_t n, uint32_t drafts)
{
    struct sch_step *st = &f->step;
    struct sch_segment *g = &f->segs[st->n_segments];
    const struct kv_copy *copies;
    uint32_t n_copies = kv_seq_copies(c->seq, &copies);
    uint64_t n_prompt = c->req->spec.n_prompt;
    bool known = pos < c->n_ids;

    *g = (struct sch_segment){
        .request = c->req->id,
        .user = c->req->spec.user,
        .choice = c->index,
        .adapter = c->req->spec.adapter,
        .slot = c->place,
        .generation = s->places[c->place].generation,
        .seq = c->seq,
        .pos = pos,
        .n_rows = n + drafts,
        .n_prompt_rows = pos < n_prompt ? (uint32_t)CN_MIN(n_prompt - pos, (uint64_t)n) : 0,
        .first_row = st->n_rows,
        .ids = c->ids,
        .tokens = known ? c->ids + pos : NULL,
        .from_ticket = known ? 0 : c->last_ticket,
        .from_row = known ? 0 : c->last_row,
        .n_sample = (pos + n >= c->n_ids ? 1 : 0) + drafts,
        .n_logits = logits_of(c, pos, n) + drafts};
    if (c->req->spec.n_media) sch_media_of(c->req, g);
    f->recs[st->n_segments++] = (struct sch_rec){.choice = c, .req = c->req};
    for (uint32_t i = 0; i < n_copies; i++)
        f->copies[st->n_copies++] = copies[i];
    st->n_rows += g->n_rows;
    st->n_sample += g->n_sample;
    st->n_logits += g->n_logits;
    c->planned_now = true;
    c->n_draft = drafts;
    if (c->req->n_joined) c->passed_over = 0;
    sch_charge(s, c->req->tenant, rows_cost(s, c, pos, n));
}

static void count_adopted(struct sch *s, struct sch_choice *c, uint64_t before)
{
    uint64_t len = kv_seq_length(c->seq), from = CN_MAX(before, c->high);
    uint64_t to = CN_MIN(len, c->req->spec.n_prompt);

    if (to > from && c->index == 0) {
        c->req->usage.cached_tokens += to - from;
        c->req->tenant->cached += to - from;
        s->stats.prompt_cached += to - from;
    }
    c->high = CN_MAX(c->high, len);
    c->shared = CN_MAX(c->shared, len);
}

static bool is_whole(const struct sch_choice *c)
{
    return c->req->spec.flags & SCH_ONE_STEP;
}

/* Rows of the next chunk, at most `most`: it ends at the last row or at a block's end, and not
 * after the next wanted snapshot. A prompt that must fit into one step gets all of its rows, or
 * none. */
static uint32_t any_chunk(const struct sch_model *m, const struct sch_flight *f,
                          const struct sch_choice *c, uint64_t pos, uint32_t most)
{
    uint32_t logits = m->o.max_logit_rows - f->step.n_logits, rows = m->o.max_rows - f->step.n_rows;
    uint64_t left = c->n_ids > pos ? c->n_ids - pos : 1, end;

    if (is_whole(c))
        return left <= rows && logits_of(c, pos, (uint32_t)left) <= logits ? (uint32_t)left : 0;
    most = (uint32_t)CN_MIN((uint64_t)CN_MIN(most, rows), kv_seq_room(c->seq));
    if (scores_prompt(c) && pos < c->req->spec.n_prompt) {
        uint64_t unscored = c->scored > pos ? c->scored - pos : 0;
        most = (uint32_t)CN_MIN((uint64_t)most, unscored + logits);
    }
    if (left <= most) return logits || left > 1 ? (uint32_t)CN_MIN(left, left - !logits) : 0;
    end = (pos + most) / m->block_tokens * m->block_tokens;
    return end > pos && most >= m->block_tokens ? (uint32_t)(end - pos) : most;
}

/* As any_chunk; media that attend both ways are in the chunk as a whole or not at all. */
static uint32_t chunk_of(const struct sch_model *m, const struct sch_flight *f,
                         const struct sch_choice *c, uint64_t pos, uint32_t most)
{
    return sch_media_uncut(c, pos, any_chunk(m, f, c, pos, most), m->o.max_rows - f->step.n_rows);
}

/* About half of a chunk of n rows, for which there was no room; n if it cannot be shorter. */
static uint32_t shorter(const struct sch_model *m, const struct sch_choice *c, uint64_t pos,
                        uint32_t n)
{
    uint64_t end = (pos + n / 2) / m->block_tokens * m->block_tokens;

    if (n <= m->block_tokens || is_whole(c)) return n;
    return sch_media_uncut(c, pos, end > pos ? (uint32_t)(end - pos) : m->block_tokens, n);
}

/* Whether c's next rows are output that was never computed: its last token, and ids that were
 * forced after it. */
static bool decodes(const struct sch_choice *c)
{
    uint64_t planned = kv_seq_planned(c->seq);

    return planned + 1 >= c->n_ids || planned >= CN_MAX(c->high, c->req->spec.n_prompt);
}

/* Adopts cached blocks; false: c has to wait for a block that another sequence computes. */
static bool adopt(struct sch *s, struct sch_choice *c)
{
    uint64_t before = kv_seq_length(c->seq);
    enum kv_match m;

    if (c->in_flight || decodes(c)) return true;
    m = kv_seq_match(c->seq, c->ids, c->n_ids, NULL);
    count_adopted(s, c, before);
    return m == KV_GO;
}

static int extend(struct sch_choice *c, uint64_t pos, uint32_t n)
{
    return kv_seq_extend(c->seq, n, pos < c->n_ids ? c->ids + pos : NULL);
}

/* Plans at most `most` rows of c. Returns the number planned. */
static uint32_t plan(struct sch *s, struct sch_flight *f, struct sch_choice *c, uint32_t most)
{
    const struct sch_model *m = choice_model(c);
    uint64_t pos;
    uint32_t n;

    if (!adopt(s, c)) return 0;
    pos = kv_seq_planned(c->seq);
    n = chunk_of(m, f, c, pos, most);
    if (n == 0 && (is_whole(c) || sch_media_is_next(c, pos))) c->passed_over++;
    while (n) {
        struct sch_choice *v;
        uint32_t less;

        if (extend(c, pos, n) == 0) {
            add_segment(s, f, c, pos, n, 0);
            return n;
        }
        less = shorter(m, c, pos, n);
        if (less < n) {
            n = less;
            continue;
        }
        c->starved = true;
        v = sch_victim(s, c, false);
        if (!v) return 0;
        sch_evict(s, v);
        if (v == c || v->evict) return 0; /* c must start again, or wait for blocks */
        if (pos) continue;
        /* there may be room now for what it found in the tree */
        if (!adopt(s, c)) return 0;
        pos = kv_seq_planned(c->seq);
        n = chunk_of(m, f, c, pos, most);
    }
    return 0;
}

/* Plans the next row of c with its drafts, whose blocks are not announced to other sequences.
 * Nothing is preempted for drafts: 0 if evicting cached blocks does not give enough room. */
static uint32_t plan_drafts(struct sch *s, struct sch_flight *f, struct sch_choice *c)
{
    const struct sch_model *m = choice_model(c);
    uint32_t rows = CN_MIN(m->o.max_rows - f->step.n_rows, m->o.max_logit_rows - f->step.n_logits);
    uint32_t n = CN_MIN(c->n_draft + 1, rows);
    uint64_t pos = kv_seq_planned(c->seq);

    c->n_draft = 0;
    if (n < 2 || kv_seq_extend(c->seq, n, NULL)) return 0;
    add_segment(s, f, c, pos, 1, n - 1);
    return n;
}

/* ---- who has rows to run --------------------------------------------------------------------- */

/* Whether c has rows to launch now; a token that is still being sampled counts (depth 2). */
static bool is_ready(const struct sch *s, const struct sch_choice *c)
{
    uint64_t planned = kv_seq_planned(c->seq);

    if (c->req->paused || c->req->cancelled || c->evict || c->yields || c->skipped) return false;
    if (planned < c->n_ids) return true;
    return planned == c->n_ids && s->o.stepper.depth > 1 && c->in_flight == 1 && !c->n_forced &&
           c->n_ids + 1 < c->req->limit;
}

/* Rows of the prompt that c still has to compute, by what is known now. */
static uint64_t prompt_left(const struct sch_choice *c)
{
    uint64_t have = CN_MAX(kv_seq_planned(c->seq), c->req->peeked);

    return c->n_ids > have ? c->n_ids - have : 0;
}

/* Whether c has a short prompt, which is not slowed down for decoding choices. All rows that it has
 * to compute count, not only those that are left. */
static bool is_short(const struct sch *s, const struct sch_choice *c)
{
    uint64_t found = CN_MAX(c->req->usage.cached_tokens, c->req->peeked);

    if (c->index) return prompt_left(c) <= s->o.short_prompt; /* it shares choice 0's rows */
    return c->n_ids <= found + s->o.short_prompt;
}

/* Order of a tenant's prompts: fewest rows left first, since taking turns would delay them all;
 * every AGE_TURN steps the oldest first, so that short prompts cannot starve a long one. A prompt
 * waiting for another's snapshot goes last: it cannot run. */
static bool reads_before(const struct sch_choice *a, const struct sch_choice *b)
{
    const struct sch_model *m = choice_model(a);
    uint64_t left_a = prompt_left(a), left_b = prompt_left(b);

    if (kv_space_state_bytes(m->o.space)) {
        bool waits_a = kv_seq_waits(a->seq), waits_b = kv_seq_waits(b->seq);
        if (waits_a != waits_b) return waits_b;
    }
    if (m->compositions % AGE_TURN == 0 || left_a == left_b) return a->req->number < b->req->number;
    return left_a < left_b;
}

/* Puts the best candidate first, which gets all rows of its tenant that it can use; the order of
 * the others does not matter. */
static void cand_push(struct sch *s, struct sch_choice *c, uint32_t pass)
{
    struct sch_tenant *t = c->req->tenant;
    struct sch_choice *head = t->cand[pass].head;
    bool seen = false;

    for (uint32_t p = 0; p < SCH_N_PASSES; p++)
        seen = seen || t->cand[p].head;
    if (!seen) s->act[s->n_act++] = t;
    c->next_cand = NULL;
    if (head && pass >= PASS_PREFILL && reads_before(c, head)) {
        c->next_cand = head;
        t->cand[pass].head = c;
        return;
    }
    if (head)
        t->cand[pass].tail->next_cand = c;
    else
        t->cand[pass].head = c;
    t->cand[pass].tail = c;
}

static uint32_t pass_of(const struct sch_choice *c, enum sch_class first)
{
    enum sch_class class = c->req->class;

    if (c->passed_over >= MAX_PASSED_OVER) return PASS_WHOLE;
    if (decodes(c)) return PASS_DECODE;
    return class == SCH_BACKGROUND || class == first ? PASS_PREFILL : PASS_PREFILL_LATER;
}

/* Snapshots of recurrent state are taken where prompts diverge. So all prompts are compared with
 * the tree before the first one is computed further. */
static void look(struct sch *s, struct sch_choice *c)
{
    c->looked = true;
    if (kv_space_state_bytes(choice_model(c)->o.space)) adopt(s, c);
}

/* Prompts to read: choices with a prompt, choices that decode, and rows of short prompts. */
struct reading {
    uint32_t n, n_decode;
    uint64_t short_rows;
};

/* Collects the choices that can run by tenant and pass, and the tenants in s->act. */
static struct reading collect_candidates(struct sch *s, uint32_t model, bool background,
                                         bool normal_first)
{
    enum sch_class first = normal_first ? SCH_NORMAL : SCH_INTERACTIVE;
    struct reading reading = {0};
    uint64_t taken = 0;
    uint32_t pass;

    s->n_act = 0;
    for (struct sch_choice *c = s->running.head; c; c = c->next) {
        c->planned_now = c->starved = false;
        if (!c->in_flight) c->n_draft = 0;
        if (c->req->spec.model != model || !is_ready(s, c)) continue;
        if ((c->req->class == SCH_BACKGROUND) != background) continue;
        if (s->models[model].curve && sch_awaits(s, c, &taken)) continue;
        if (!c->looked) look(s, c);
        pass = pass_of(c, first);
        reading.n += pass != PASS_DECODE;
        reading.n_decode += pass == PASS_DECODE;
        if (pass != PASS_DECODE && is_short(s, c)) reading.short_rows += prompt_left(c);
        if (pass == PASS_PREFILL && !kv_seq_waits(c->seq)) kv_seq_in_line(c->seq);
        cand_push(s, c, pass);
    }
    return reading;
}

/* Makes a heap by counter of the tenants of this pass in s->act; the others stay after it. */
static uint32_t pass_heap(struct sch *s, uint32_t pass)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_act; i++) {
        struct sch_tenant *t = s->act[i];

        if (!t->cand[pass].head) continue;
        s->act[i] = s->act[n];
        s->act[n++] = t;
    }
    for (uint32_t i = n / 2; i-- > 0;)
        sch_act_down(s->act, n, i);
    return n;
}

/* Lets the tenants take turns until `rows` rows are given out. Returns the rows left. */
static uint32_t run_pass(struct sch *s, struct sch_flight *f, struct sch_model *m, uint32_t pass,
                         uint32_t rows)
{
    uint32_t n = pass_heap(s, pass);

    while (n) {
        struct sch_tenant *t = s->act[0];
        struct sch_choice *c = t->cand[pass].head;
        /* while others wait, a long prompt gets no more than its share */
        uint32_t fair = CN_MAX(kv_space_block_tokens(m->o.space), rows / n);

        t->cand[pass].head = c->next_cand;
        if (rows && f->step.n_rows < m->o.max_rows && c->state == CH_RUNNING && !c->evict &&
            f->step.n_logits < m->o.max_logit_rows) {
            uint32_t got = c->n_draft ? plan_drafts(s, f, c) : 0;

            if (!got && pass == PASS_DECODE) {
                got = plan(s, f, c, CN_MIN(1 + f->more, rows));
                f->more -= got ? got - 1 : 0;
            } else if (!got) {
                got = plan(s, f, c, CN_MIN(fair, rows));
            }
            rows -= CN_MIN(got, rows); /* a prompt that must fit into one step may get more */
        }
        if (!t->cand[pass].head) {
            struct sch_tenant *last = s->act[--n];
            s->act[0] = last;
            s->act[n] = t;
        }
        if (n) sch_act_down(s->act, n, 0);
    }
    return rows;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Moves served choices to the end, so that all get rows in turn if there are fewer rows than
 * choices. */
static void rotate(struct sch *s, struct sch_flight *f)
{
    for (uint32_t i = 0; i < f->step.n_segments; i++) {
        struct sch_choice *c = f->recs[i].choice;

        sch_list_remove(&s->running, c);
        sch_list_push(&s->running, c);
    }
}

static void reset(struct sch_flight *f, uint32_t model)
{
    f->step = (struct sch_step){.model = model, .segments = f->segs, .copies = f->copies};
    f->n_decode = f->more = 0;
    f->drawn = false;
}

/* Rows for forced ids, beyond one per decoding choice: at most a block of tokens, and at most what
 * step_stretch allows a prompt beside that many choices. */
static uint32_t forced_rows(const struct sch *s, const struct sch_model *m, uint32_t n_decode)
{
    if (n_decode < 2 || s->o.step_stretch <= 0) return m->block_tokens;
    return CN_MIN(m->block_tokens, sch_cost_beside(m, n_decode, s->o.step_stretch));
}

/* Prompt rows of a step, beside its decode rows.
 *
 * Enough to reach step_target_ns, but adding at most step_stretch times what the decode rows take
 * alone; more when fewer than about four choices decode per prompt, and for short prompts. None
 * once every LOOK_STEPS (or LONG_LOOK) steps, to time decoding alone. others: another model is
 * waiting. */
static uint32_t prompt_rows(const struct sch *s, const struct sch_model *m,
                            const struct sch_flight *f, const struct reading *r, bool others)
{
    uint32_t n = f->step.n_rows, room = m->o.max_rows - n, rows, most, few, waiting;
    /* four times as long if one tenant's prompts are all there is */
    double target = (double)s->o.step_target_ns * (n || others || s->n_act > 1 ? 1 : 4), part;

    rows = sch_cost_rows(m, target);
    if (others && m->cost.w == 0) rows = 0; /* no step was timed yet */
    rows = CN_MAX(rows > n ? rows - n : 0, CN_MIN(m->block_tokens, room));
    /* only steps without prompts were timed: take few rows at first */
    if (f->n_decode && m->alone.w > 0 && m->beside_ns == 0)
        rows = CN_MIN(rows, 4 * m->block_tokens);
    if (!f->n_decode || s->o.step_stretch <= 0 || !r->n) return rows;
    /* prompts are read one after the other: with the usual share the last one would wait long */
    waiting = r->n > 1 ? 2 * (r->n - 1) : 1;
    part = s->o.step_stretch * CN_MAX(1.0, 4.0 * waiting / f->n_decode);
    most = sch_cost_beside(m, f->n_decode, part);
    few = sch_cost_short(m, f->n_decode, (double)s->o.step_target_ns);
    most = CN_MAX(most, (uint32_t)CN_MIN((uint64_t)few, r->short_rows));
    if (sch_cost_asks(m, f->n_decode, most < rows ? LOOK_STEPS : LONG_LOOK) && f->n_decode == n)
        return 0;
    return m->alone.w > 0 ? CN_MIN(most, rows) : rows;
}

/* others: another model waits for its turn, so the step is short even if no choice decodes. */
static bool compose_model(struct sch *s, struct sch_flight *f, uint32_t model, bool background,
                          bool others)
{
    struct sch_model *m = &s->models[model];
    struct reading reading;
    uint32_t spare, budget;

    reset(f, model);
    reading =
        collect_candidates(s, model, background, m->compositions % NORMAL_TURN == NORMAL_TURN - 1);
    if (!s->n_act) return false;
    /* decoding never takes every row: prompts keep some */
    if (m->curve && !reading.n) sch_speculate(s, m, others);
    spare = reading.n ? CN_MIN(m->block_tokens, m->o.max_rows / 4) : 0;
    run_pass(s, f, m, PASS_WHOLE, m->o.max_rows);
    f->n_decode = f->step.n_rows;
    f->more = forced_rows(s, m, reading.n_decode);
    run_pass(s, f, m, PASS_DECODE, m->o.max_rows - spare);
    f->n_decode = f->step.n_rows - f->n_decode;
    budget = run_pass(s, f, m, PASS_PREFILL, prompt_rows(s, m, f, &reading, others));
    run_pass(s, f, m, PASS_PREFILL_LATER, budget);
    if (f->step.n_rows == 0) return false;
    rotate(s, f);
    m->compositions++;
    return true;
}

/* Whether model a goes before b. First comes a model that was passed over too often (of two such,
 * the one passed over more often: with m busy models none waits longer than MODEL_LATE + m - 1
 * steps), then the one with the neediest tenant; equal ones take turns. */
static bool model_first(const struct sch *s, const double *need, uint32_t a, uint32_t b)
{
    uint32_t waited_a = s->models[a].passed_over, waited_b = s->models[b].passed_over;

    if (waited_a < MODEL_LATE && waited_b < MODEL_LATE && need[a] != need[b])
        return need[a] < need[b];
    return waited_a > waited_b;
}

static uint32_t pick_model(const struct sch *s, const bool *tried, const double *need)
{
    uint32_t best = SCH_NONE;

    for (uint32_t m = 0; m < s->n_models; m++) {
        if (!s->models[m].used || tried[m] || need[m] < 0) continue;
        if (best == SCH_NONE || model_first(s, need, m, best)) best = m;
    }
    return best;
}

static bool compose_class(struct sch *s, struct sch_flight *f, bool background)
{
    bool tried[SCH_MAX_MODELS] = {false};
    double need[SCH_MAX_MODELS];
    uint32_t m, ready = 0;

    for (m = 0; m < s->n_models; m++)
        need[m] = -1;
    for (struct sch_choice *c = s->running.head; c; c = c->next) {
        double *n = &need[c->req->spec.model];

        if ((c->req->class == SCH_BACKGROUND) != background || !is_ready(s, c)) continue;
        ready += *n < 0;
        if (*n < 0 || c->req->tenant->counter < *n) *n = c->req->tenant->counter;
    }
    while ((m = pick_model(s, tried, need)) != SCH_NONE) {
        tried[m] = true;
        if (!compose_model(s, f, m, background, ready > 1)) continue;
        for (uint32_t k = 0; k < s->n_models; k++) {
            if (need[k] >= 0) s->models[k].passed_over++;
        }
        s->models[m].passed_over = 0;
        return true;
    }
    return false;
}

static void advance_vtime(struct sch *s)
{
    double least = -1;

    for (struct sch_choice *c = s->running.head; c; c = c->next) {
        sch_charge_blocks(s, c);
        if (least < 0 || c->req->tenant->counter < least) least = c->req->tenant->counter;
    }
    for (uint32_t k = 0; k < SCH_BACKGROUND; k++) {
        if (s->heap[k].n && (least < 0 || s->heap[k].v[0]->counter < least))
            least = s->heap[k].v[0]->counter;
    }
    if (least > s->vtime) s->vtime = least;
}

bool sch_compose(struct sch *s, struct sch_flight *f)
{
    bool others = false;

    advance_vtime(s);
    for (struct sch_choice *c = s->running.head; c && !others; c = c->next)
        others = c->req->class != SCH_BACKGROUND && is_ready(s, c);
    /* background work gets steps of its own, and only when nothing else can run */
    return compose_class(s, f, !others);
}

bool sch_compose_alone(struct sch *s, struct sch_flight *f, struct sch_choice *c)
{
    struct sch_model *m = choice_model(c);
    struct sch_choice *v;
    uint64_t pos;
    uint32_t n;

    reset(f, c->req->spec.model);
    for (v = s->running.head; v; v = v->next)
        v->planned_now = v->starved = false;
    if (!is_ready(s, c)) return false;
    if (!adopt(s, c)) { /* c waits for a leader that is stuck */
        kv_seq_no_wait(c->seq);
        if (!adopt(s, c)) return false;
    }
    pos = kv_seq_planned(c->seq);
    n = chunk_of(m, f, c, pos, m->block_tokens);
    while (extend(c, pos, n)) {
        v = sch_victim(s, c, true);
        if (!v || v == c) break;
        sch_preempt(s, v);
    }
    if (kv_seq_planned(c->seq) == pos) {
        kv_pool_make_room(s->o.pool, c->req->spec.tenant, false);
        if (extend(c, pos, n)) kv_pool_make_room(s->o.pool, c->req->spec.tenant, true);
        if (kv_seq_planned(c->seq) == pos) extend(c, pos, n);
    }
    if (kv_seq_planned(c->seq) > pos) {
        add_segment(s, f, c, pos, n, 0);
        return true;
    }
    if (s->solo == c) { /* it had the whole pool: the memory promised at admission is gone */
        sch_req_end(s, c->req, SCH_END_ERROR, CN_ENOMEM);
        return false;
    }
    /* its own blocks are spread over slabs that another layer group needs: start again in an empty
     * pool */
    s->solo = c;
    sch_preempt(s, c);
    kv_pool_make_room(s->o.pool, c->req->spec.tenant, true);
    return false;
}
