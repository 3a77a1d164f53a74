/* Step cost: ns = base + row x rows, fitted by least squares; a step's weight decays by 2 % with
 * each later one. One fit covers all steps of a model, one its decode-only steps; what a prompt row
 * adds to those is tracked separately, as it depends on the context before it.
 *
 * While all decode-only steps had the same number of rows, the second fit takes its cost per row
 * from the first. Otherwise, after steps of one row alone, 16 rows would be taken to cost 16 times
 * as much, and nothing would bound the prompts (unless drafts have shown the cost of more rows). */
#include "scheduler/internal.h"

#define DECAY       0.98
#define DECAY_STEPS 200  /* older steps count only for the cost per row */
#define SHORT_LATER 1.03 /* short prompts may take this much longer, for even streams */
#define CREDIT_ROWS                                                                                \
    4096 /* rows of short prompts; after them they have only this part of the time: */
#define CREDIT_PART 0.5

/* row_ns: what a row is taken to cost as long as all steps were alike; 0: as if all were rows. */
static void fit_learn(struct sch_fit *f, uint32_t rows, double ns, uint32_t age, double row_ns)
{
    double x = rows, var, decay = 1;

    if (age >= DECAY_STEPS) *f = (struct sch_fit){.row_ns = f->row_ns, .fitted = f->fitted};
    for (uint32_t i = 0; i < age && i < DECAY_STEPS; i++)
        decay *= DECAY;
    f->w = f->w * decay + 1;
    f->wx = f->wx * decay + x;
    f->wy = f->wy * decay + ns;
    f->wxx = f->wxx * decay + x * x;
    f->wxy = f->wxy * decay + x * ns;
    var = f->w * f->wxx - f->wx * f->wx;
    if (var > 1e-3 * f->wxx * f->w) {
        f->row_ns = (f->w * f->wxy - f->wx * f->wy) / var;
        f->fitted = true;
    } else if (!f->fitted) {
        f->row_ns = row_ns > 0 ? row_ns : f->wy / f->wx;
    }
    if (f->row_ns < 0) f->row_ns = 0;
    f->base_ns = (f->wy - f->row_ns * f->wx) / f->w;
    if (f->base_ns < 0) {
        f->base_ns = 0;
        f->row_ns = f->wy / f->wx;
    }
}

void sch_cost_init(struct sch_model *m)
{
    m->cost = m->alone = (struct sch_fit){0};
    m->beside_ns = m->single_ns = 0;
    m->since_alone = 0;
    m->credit = CREDIT_ROWS;
    m->credit_ns = 0;
}

/* A new measurement that was disturbed may not move an estimate far at once. */
static double no_more_than(double ns, double most)
{
    return most > 0 ? CN_MIN(ns, most) : ns;
}

static void follow(double *estimate, double ns)
{
    ns = no_more_than(ns, 2 * *estimate);
    *estimate += *estimate > 0 ? (ns - *estimate) / 8 : ns;
}

void sch_cost_learn(struct sch_model *m, uint32_t rows, uint32_t n_decode, double ns)
{
    double alone = m->alone.base_ns + m->alone.row_ns * n_decode, most = 0;

    fit_learn(&m->cost, rows, ns, 1, 0);
    m->since_alone++;
    if (n_decode == rows) {
        /* The mean too: for far fewer rows than were ever seen the line may be far too low. */
        if (m->alone.w > 0 && m->since_alone < DECAY_STEPS)
            most = 1.5 * CN_MAX(alone, m->alone.wy / m->alone.w);
        fit_learn(&m->alone, rows, no_more_than(ns, most), m->since_alone, m->cost.row_ns);
        m->since_alone = 0;
    } else if (n_decode && m->alone.w > 0) {
        uint32_t n = rows - n_decode;
        double added = CN_MAX(ns - alone, 0.02 * ns);

        if (n > 1)
            follow(&m->beside_ns, added / n);
        else
            follow(&m->single_ns, no_more_than(added, 2 * m->beside_ns)); /* no more than two */
        /* One of several takes no more than a single one: a prompt with fewer keys has come. */
        if (n == 1 && m->single_ns < m->beside_ns) follow(&m->beside_ns, m->single_ns);
        if (n > 2) m->single_ns = 0; /* measured anew when two are too many again */
    }
}

/* How many rows a step of target_ns has: at most the model's, at least one block. */
uint32_t sch_cost_rows(const struct sch_model *m, double target_ns)
{
    const struct sch_fit *f = &m->cost;
    double rows = m->o.max_rows;
    uint32_t least = CN_MIN(m->block_tokens, m->o.max_rows);

    if (f->w == 0) rows = 4.0 * m->block_tokens; /* nothing is known yet: not too much at once */
    if (f->row_ns > 0) rows = (target_ns - f->base_ns) / f->row_ns;
    if (!(rows > least)) return least;
    return rows < m->o.max_rows ? (uint32_t)rows : m->o.max_rows;
}

/* What a row of a prompt takes beside others that decode. */
static double row_beside(const struct sch_model *m)
{
    return m->beside_ns > 0 ? m->beside_ns : m->cost.row_ns;
}

/* How many prompt rows fit if they may lengthen a step of n_decode decode rows by `part` of its own
 * time. If two are too many: one if one fits, else still two, since both share one reading of the
 * prompt's keys and one may cost as much. One is timed after each decode-only step. */
uint32_t sch_cost_beside(const struct sch_model *m, uint32_t n_decode, double part)
{
    double most = part * (m->alone.base_ns + m->alone.row_ns * n_decode), one = m->single_ns;
    double each = row_beside(m), rows = m->o.max_rows;

    if (each > 0 && most < each * rows) rows = most / each;
    if (rows >= 2 || m->beside_ns == 0) return CN_MIN((uint32_t)CN_MAX(rows, 2.0), m->o.max_rows);
    return one <= most || m->since_alone == 0 ? 1 : CN_MIN(2, m->o.max_rows);
}

/* At once where nothing is known, or no more than what far fewer rows take. */
bool sch_cost_asks(const struct sch_model *m, uint32_t n_decode, uint32_t steps)
{
    const struct sch_fit *f = &m->alone;

    return f->w == 0 || m->since_alone >= steps || (!f->fitted && n_decode * f->w > 3 * f->wx);
}

/* How many rows of short prompts go beside those that decode; at least a block. With r ns of a step
 * for prompts and d for the others a prompt is read in (1 + d / r) of its time alone. Steps are as
 * short as that allows that is to be no more than SHORT_LATER of what it is in steps of target_ns:
 * two thirds of these where d is little. 0: short ones had more than their part of the time. */
uint32_t sch_cost_short(const struct sch_model *m, uint32_t n_decode, double target_ns)
{
    double d = m->alone.base_ns + m->alone.row_ns * n_decode, row = row_beside(m), r;
    double least = CN_MIN(m->block_tokens, m->o.max_rows) * row;

    if (m->credit <= 0) return 0;
    if (row <= 0) return m->o.max_rows;
    r = CN_MAX(target_ns - d, least);
    r = d / (SHORT_LATER * (1 + d / r) - 1);
    return (uint32_t)CN_MIN(CN_MAX(r, least) / row, (double)m->o.max_rows);
}

void sch_cost_credit(struct sch_model *m, uint32_t rows, uint64_t now)
{
    double row = row_beside(m);

    if (row > 0) m->credit += CREDIT_PART * (double)(now - m->credit_ns) / row;
    m->credit = CN_MIN(m->credit, (double)CREDIT_ROWS) - rows;
    m->credit = CN_MAX(m->credit, -(double)m->o.max_rows); /* others may take more */
    m->credit_ns = now;
}
