/* What a step costs: ns = base + row x rows, fitted by least squares over the steps of a model,
 * each step counting 2 % less with every later one. */
#include "scheduler/internal.h"

#define DECAY 0.98

void sch_cost_init(struct sch_model *m)
{
    m->w = m->wx = m->wy = m->wxx = m->wxy = 0;
    m->base_ns = 0;
    m->row_ns = 0;
}

void sch_cost_learn(struct sch_model *m, uint32_t rows, double ns)
{
    double x = rows, var;

    m->w = m->w * DECAY + 1;
    m->wx = m->wx * DECAY + x;
    m->wy = m->wy * DECAY + ns;
    m->wxx = m->wxx * DECAY + x * x;
    m->wxy = m->wxy * DECAY + x * ns;
    var = m->w * m->wxx - m->wx * m->wx;
    if (var > 1e-3 * m->wxx * m->w) {
        m->row_ns = (m->w * m->wxy - m->wx * m->wy) / var;
    } else if (m->row_ns == 0) {
        m->row_ns = m->wy / m->wx; /* all steps alike: as if it were all rows */
    }
    if (m->row_ns < 0) m->row_ns = 0;
    m->base_ns = (m->wy - m->row_ns * m->wx) / m->w;
    if (m->base_ns < 0) {
        m->base_ns = 0;
        m->row_ns = m->wy / m->wx;
    }
}

/* How many rows a step of target_ns has: at most the model's, at least one block. */
uint32_t sch_cost_rows(const struct sch_model *m, double target_ns)
{
    double rows = m->o.max_rows;
    uint32_t least = CN_MIN(m->block_tokens, m->o.max_rows);

    if (m->w == 0) rows = 4.0 * m->block_tokens; /* nothing is known yet: not too much at once */
    if (m->row_ns > 0) rows = (target_ns - m->base_ns) / m->row_ns;
    if (!(rows > least)) return least;
    return rows < m->o.max_rows ? (uint32_t)rows : m->o.max_rows;
}
