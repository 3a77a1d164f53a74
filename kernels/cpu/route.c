/* route: which experts a row goes to, and with what weights. Any thread; pure.
 *
 * In double, rounded once at the end: the row's own logits decide, nothing else. A row with a logit
 * that is not a number has weights that are not numbers, and still n_used different experts. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define MIN_SUM 0x1p-14 /* the smallest normal float16 */

/* The best so far, in order: higher scores first, of equal ones the lower number. */
struct best {
    uint32_t n, most;
    struct {
        double score;
        uint32_t id;
    } at[KR_MAX_CHOICES];
};

/* Ids are offered in ascending order. What is not a number beats nothing. */
static void offer(struct best *b, double score, uint32_t id)
{
    if (b->n == b->most && !(score > b->at[b->n - 1].score)) return;
    uint32_t i = b->n < b->most ? b->n++ : b->n - 1;
    for (; i > 0 && score > b->at[i - 1].score; i--)
        b->at[i] = b->at[i - 1];
    b->at[i].score = score;
    b->at[i].id = id;
}

static void softmax(double *p, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p[i] > max) max = p[i];
    for (uint32_t i = 0; i < n; i++)
        sum += p[i] = exp(p[i] - max);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* Gate values of all experts; false when one of them is not a number. */
static bool gate(enum kr_gating gating, const float *logits, double *p, uint32_t n)
{
    bool numbers = true;
    for (uint32_t i = 0; i < n; i++) {
        double r = logits[i];
        if (gating == KR_GATE_SIGMOID) r = 1 / (1 + exp(-r));
        if (gating == KR_GATE_SQRT_SOFTPLUS) r = sqrt(r > 0 ? r + log1p(exp(-r)) : log1p(exp(r)));
        p[i] = r;
    }
    if (gating == KR_GATE_SOFTMAX) softmax(p, n);
    for (uint32_t i = 0; i < n; i++)
        if (isnan(p[i])) numbers = false;
    return numbers;
}

static double score_of(const double *p, const float *bias, uint32_t e)
{
    return bias ? p[e] + (double)bias[e] : p[e];
}

/* A group's score is that of its best expert, or of its two best together. */
static double group_score(const struct kr_router *r, const double *p, const float *bias,
                          uint32_t first, uint32_t n)
{
    struct best b = {.most = r->one_best || n < 2 ? 1 : 2};
    for (uint32_t e = first; e < first + n; e++)
        offer(&b, score_of(p, bias, e), e);
    return b.most == 1 ? b.at[0].score : b.at[0].score + b.at[1].score;
}

static void choose(const struct kr_router *r, uint32_t n_experts, const double *p,
                   const float *bias, struct best *chosen)
{
    struct best groups = {.most = r->n_groups_used};
    bool open[KR_MAX_CHOICES] = {false};
    uint32_t n_groups = CN_MAX(r->n_groups, 1u), size = n_experts / n_groups;
    if (n_groups == 1) {
        open[0] = true;
    } else {
        for (uint32_t g = 0; g < n_groups; g++)
            offer(&groups, group_score(r, p, bias, g * size, size), g);
        for (uint32_t i = 0; i < groups.n; i++)
            open[groups.at[i].id] = true;
    }
    chosen->n = 0;
    chosen->most = r->n_used;
    for (uint32_t g = 0; g < n_groups; g++)
        for (uint32_t e = g * size; open[g] && e < (g + 1) * size; e++)
            offer(chosen, score_of(p, bias, e), e);
}

void kr_cpu_route(const struct kr_router *r, uint32_t n_experts, const float *logits,
                  const float *bias, const float *expert_scale, double *scores, float *out)
{
    struct best chosen;
    double w[KR_MAX_CHOICES], sum = 0;
    uint32_t k = r->n_used;
    bool numbers = gate(r->gating, logits, scores, n_experts);
    choose(r, n_experts, scores, bias, &chosen);
    for (uint32_t i = 0; i < k; i++)
        w[i] = scores[chosen.at[i].id];
    if (r->gating == KR_GATE_SOFTMAX_TOP) softmax(w, k);
    for (uint32_t i = 0; i < k; i++)
        sum += w[i];
    for (uint32_t i = 0; i < k; i++) {
        uint32_t e = chosen.at[i].id;
        if (r->norm) w[i] /= sum < MIN_SUM ? MIN_SUM : sum;
        w[i] *= (double)r->scale;
        if (expert_scale) w[i] *= (double)expert_scale[e];
        memcpy(out + i, &e, sizeof e);
        out[k + i] = numbers ? (float)w[i] : NAN;
    }
}
