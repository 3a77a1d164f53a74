/* How many tokens to draft for which choice: the number with the most tokens per time.
 *
 * The time of decode-only steps is measured per number of rows, separately by number of sequences
 * (whose keys cost time too). Gaps are interpolated. Beyond the last point a row is assumed to cost
 * the average so far, or almost nothing if none was measured, so that it gets tried: at most twice
 * the drafts tried before, or one per sequence. Points expire, because contexts grow and shrink.
 * After FRESH_PLAIN steps one runs without drafts to re-measure the baseline.
 *
 * With two steps in flight, the id that drafts would follow is still being sampled when the next
 * step is composed. A choice may wait for it and skip that step; if the wait brings no drafts, it
 * does not wait again for WAIT_AGAIN ids.
 *
 * Draft rows are added one by one, the likeliest first. The number with the most tokens per time is
 * used, if it beats no drafts by MARGIN. */
#include "scheduler/internal.h"

#include <stdlib.h>

#define MARGIN      1.05 /* least gain in tokens per time over no drafts */
#define GAP         1.10 /* most by which other choices' token gaps may grow */
#define LEAST       0.02 /* chance of acceptance below which a draft is not considered */
#define FRESH       1024 /* steps until a measured point expires */
#define FRESH_PLAIN 256  /* the same for the point without drafts */
#define FEW_IDS     64   /* ids indexed even in a step whose SCH_DRAFT_BURST is spent */
#define WAIT_AGAIN  32   /* ids before the next wait, after one that brought no drafts */
#define TRIAL       32   /* a row count never measured is taken to add 1/TRIAL of a step */

/* ---- the curve ------------------------------------------------------------------------------- */

int sch_curve_new(struct sch *s, struct sch_model *m)
{
    if (!s->o.speculation.max_draft || kv_space_state_bytes(m->o.space)) return 0;
    if (!s->guessers) s->guessers = cn_calloc(SCH_CURVE_ROWS, sizeof(*s->guessers));
    if (s->guessers) m->curve = cn_calloc(1, sizeof(*m->curve));
    return m->curve ? 0 : CN_ENOMEM;
}

static uint32_t curve_of(uint32_t n_seqs)
{
    uint32_t k = 0;

    while ((1u << k) < n_seqs)
        k++;
    return k;
}

/* Close to the median, so that one step delayed by the machine changes little. */
static void follow(double *mean, double ns)
{
    double step = (ns - *mean) / 4, most = *mean / 8;

    *mean += step > most ? most : step < -most ? -most : step;
}

void sch_curve_learn(struct sch_model *m, uint32_t n_seqs, uint32_t n_rows, double ns)
{
    struct sch_curve *c = m->curve;
    struct sch_point *p;

    if (!c || n_rows > SCH_CURVE_ROWS || !(ns > 0)) return;
    p = &c->at[curve_of(n_seqs)][n_rows];
    if (!p->step || ++c->steps - p->step > FRESH)
        p->ns = ns;
    else
        follow(&p->ns, ns);
    p->step = c->steps = CN_MAX(c->steps, 1u);
}

static bool is_fresh(const struct sch_curve *c, const struct sch_point *p, uint64_t steps)
{
    return p->step && c->steps - p->step < steps;
}

/* Times of steps with n_seqs sequences and `from` to `to` rows. Returns the most rows that may be
 * tried: `from` when nothing is known. */
static uint32_t read_curve(const struct sch_curve *c, uint32_t n_seqs, uint32_t from, uint32_t to,
                           double *ns)
{
    const struct sch_point *p = c->at[curve_of(n_seqs)];
    uint32_t last = from;
    double row;

    if (!is_fresh(c, &p[from], FRESH_PLAIN)) return from;
    ns[from] = p[from].ns;
    for (uint32_t i = from + 1; i <= to; i++) {
        if (!is_fresh(c, &p[i], FRESH)) continue;
        ns[i] = p[i].ns;
        for (uint32_t k = last + 1; k < i; k++)
            ns[k] = ns[last] + (ns[i] - ns[last]) * (k - last) / (i - last);
        last = i;
    }
    to = CN_MIN(to, last + CN_MAX(last - from, CN_MAX(n_seqs, 2u)));
    row = last > from ? CN_MAX(ns[last] - ns[from], 0) / (last - from) : ns[from] / TRIAL;
    for (uint32_t k = last + 1; k <= to; k++)
        ns[k] = ns[last] + row * (k - last);
    return to;
}

/* ---- who could have drafts ------------------------------------------------------------------- */

/* The most drafts c could use: its step gives one token more than accepted drafts. */
static uint32_t room_of(const struct sch *s, const struct sch_choice *c)
{
    uint64_t left = c->req->limit - c->n_ids;

    if (c->in_flight || c->n_ids <= c->req->spec.n_prompt || left < 2) return 0;
    if (c->n_forced || kv_seq_planned(c->seq) + 1 < c->n_ids) return 0; /* its next ids are known */
    return (uint32_t)CN_MIN(left - 1, (uint64_t)s->o.speculation.max_draft);
}

/* Indexes the ids that c generated since the last call (a long prompt in parts, one per step).
 * Whether it has drafts. *taken: ids indexed in this step, over all choices. */
static bool expects(struct sch_choice *c, uint64_t *taken)
{
    uint64_t had, left;

    if (!c->draft) c->draft = sch_draft_new();
    if (!c->draft) return false;
    had = c->draft->n;
    left = c->n_ids - had;
    if (left > FEW_IDS && *taken >= SCH_DRAFT_BURST) return false; /* in a later step */
    if (sch_draft_update(c->draft, c->ids, c->n_ids, c->req->spec.n_prompt)) return false;
    *taken += c->draft->n - had;
    return c->draft->n == c->n_ids && c->draft->at > 0;
}

bool sch_awaits(const struct sch *s, struct sch_choice *c, uint64_t *taken)
{
    uint64_t left = c->req->limit - c->n_ids;
    uint32_t most = (uint32_t)CN_MIN((uint64_t)s->o.speculation.max_draft, left - 1);
    double gain = 0, p;

    if (!c->in_flight || kv_seq_planned(c->seq) < c->n_ids || c->n_ids <= c->req->spec.n_prompt)
        return false;
    if (c->n_ids < c->waits_from || !most) return false;
    if (!s->o.speculation.propose) {
        if (!expects(c, taken)) return false;
        p = sch_draft_chance(c->draft, 0);
        for (uint32_t i = 1; i <= most; i++, gain += p)
            p *= sch_draft_chance(c->draft, i);
        /* the row that it skips, and one more if others use the device meanwhile */
        if (gain < (s->n_running > 1 ? 1.5 : 0.5)) return false;
    }
    c->waits_from = c->n_ids + WAIT_AGAIN;
    return true;
}

static bool wants_guess(const struct sch *s, const struct sch_guesser *g)
{
    return g->p >= LEAST && g->n < room_of(s, g->c);
}

static void propose(struct sch *s, struct sch_choice *c)
{
    const struct sch_speculation *o = &s->o.speculation;
    struct sch_drafting d = {c->req->spec.user, c->index, c->ids, c->n_ids};
    uint32_t most = room_of(s, c);

    if (most) c->n_draft = o->propose(o->arg, &d, most, c->ids + c->n_ids);
    c->n_draft = CN_MIN(c->n_draft, most);
    if (c->n_draft) c->waits_from = 0;
}

/* Lists the choices that decode in the step being composed; SCH_NONE: too many. *any: whether one
 * of them has drafts. */
static uint32_t gather(struct sch *s, bool *any)
{
    uint64_t taken = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_act; i++)
        for (struct sch_choice *c = s->act[i]->cand[PASS_DECODE].head; c; c = c->next_cand)
            n++;
    if (n > SCH_CURVE_ROWS && !s->o.speculation.propose) return SCH_NONE;
    n = 0;
    for (uint32_t i = 0; i < s->n_act; i++) {
        for (struct sch_choice *c = s->act[i]->cand[PASS_DECODE].head; c; c = c->next_cand) {
            bool may = s->o.speculation.propose == NULL && room_of(s, c) && expects(c, &taken);

            if (s->o.speculation.propose) propose(s, c);
            if (n == SCH_CURVE_ROWS) return SCH_NONE;
            s->guessers[n++] =
                (struct sch_guesser){.c = c, .p = may ? sch_draft_chance(c->draft, 0) : 0};
            *any = *any || may;
        }
    }
    return n;
}

/* ---- how many -------------------------------------------------------------------------------- */

/* Adds the likeliest remaining draft to the chosen ones. Returns its chance of acceptance; 0: none
 * is left. *least: the smallest expected gain of any choice, beyond the token that it gets
 * anyway. */
static double add_guess(const struct sch *s, struct sch_guesser *v, uint32_t n, double *least)
{
    struct sch_guesser *best = NULL;
    double p;

    for (uint32_t i = 0; i < n; i++) {
        if (wants_guess(s, &v[i]) && (!best || v[i].p > best->p)) best = &v[i];
    }
    if (!best) return 0;
    p = best->p;
    best->gain += p;
    best->n++;
    best->p *= sch_draft_chance(best->c->draft, best->n);
    *least = v[0].gain;
    for (uint32_t i = 1; i < n; i++)
        *least = CN_MIN(*least, v[i].gain);
    return p;
}

/* The number of drafts with the most tokens per time. */
static uint32_t best_number(const struct sch *s, struct sch_guesser *v, uint32_t n, uint32_t most,
                            const double *ns, bool others)
{
    double tokens = n, best, least;
    uint32_t number = 0;

    if (most <= n) return 0;
    best = n / ns[n] * MARGIN;
    for (uint32_t r = n + 1; r <= most; r++) {
        double p = add_guess(s, v, n, &least);

        if (p == 0) break;
        tokens += p;
        if (others) least = 0;
        if ((n > 1 || others) && ns[r] > ns[n] * GAP * (1 + least)) continue;
        if (ns[r] > (double)s->o.step_target_ns && ns[r] > ns[n] * GAP) continue;
        if (tokens / ns[r] <= best) continue;
        best = tokens / ns[r];
        number = r - n;
    }
    return number;
}

void sch_speculate(struct sch *s, struct sch_model *m, bool others)
{
    struct sch_guesser *v = s->guessers;
    double ns[SCH_CURVE_ROWS + 1], least;
    bool any = false;
    uint32_t n = gather(s, &any), number;
    uint32_t most = CN_MIN(CN_MIN(m->o.max_rows, m->o.max_logit_rows), (uint32_t)SCH_CURVE_ROWS);

    if (!any || n >= most) return;
    most = read_curve(m->curve, n, n, most, ns);
    number = best_number(s, v, n, most, ns, others);
    for (uint32_t i = 0; i < n; i++) {
        v[i].n = 0;
        v[i].p = v[i].p > 0 ? sch_draft_chance(v[i].c->draft, 0) : 0;
    }
    for (; number; number--)
        add_guess(s, v, n, &least);
    for (uint32_t i = 0; i < n; i++) {
        struct sch_choice *c = v[i].c;

        if (!v[i].n) continue;
        c->n_draft = sch_draft_read(c->draft, c->ids, v[i].n, c->ids + c->n_ids);
        c->waits_from = 0;
    }
}
