/* layout: turns a plan into levels of row work and heavy work, and gives every value a place.
 *
 * Runs once at prepare, on the caller's thread. Time t = 2 * level for row work and 2 * level + 1
 * for heavy work; an op goes to the earliest time at which its inputs are there. Invariant used by
 * the steps: two slots share memory only when no level uses both. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

struct sched {
    struct kr_cpu_exec *x;
    const struct kr_plan *p;
    uint32_t *ready;       /* by slot: the time it is made */
    uint32_t *quantized;   /* by value: its quantised slot, 0 = none (slot 0 is a value) */
    uint32_t *written;     /* by KV layer: time of its kv_write */
    uint32_t *attn_at;     /* by level: attention and select ops there */
    uint32_t *grouping_of; /* by value: a route's grouping */
    bool *needed;          /* by op: the output or the pool depends on it */
    uint32_t angles0;      /* slot of rotation 0's angles */
    uint32_t now;          /* last time given, for one op a level */
    uint32_t n_row, n_heavy, max_levels;
};

static uint32_t even_from(uint32_t t)
{
    return t + (t & 1);
}

/* With fusion the time wanted; without, the first free one of the same kind. */
static uint32_t at_time(struct sched *s, uint32_t wanted)
{
    if (s->x->dev->fuse) return wanted;
    uint32_t t = s->now + 1;
    if ((t & 1) != (wanted & 1)) t++;
    s->now = t;
    return t;
}

static void use(struct sched *s, uint32_t slot, uint32_t t)
{
    struct kr_slot *v = &s->x->slots[slot];
    v->last = CN_MAX(v->last, t / 2);
}

/* Logits are made of some rows after the others: what they are made of stays. */
static void use_in(struct sched *s, enum kr_domain domain, uint32_t slot, uint32_t t)
{
    use(s, slot, t);
    if (domain == KR_DOM_LOGITS && s->x->slots[slot].domain != domain)
        s->x->slots[slot].last = UINT32_MAX;
}

static void make(struct sched *s, uint32_t slot, uint32_t t, enum kr_domain domain,
                 uint32_t row_floats, uint32_t stride)
{
    s->x->slots[slot] = (struct kr_slot){.domain = domain,
                                         .row_floats = row_floats,
                                         .stride = stride,
                                         .first = t / 2,
                                         .last = t / 2};
    s->ready[slot] = t;
}

static struct kr_step *add_step(struct sched *s, enum kr_step_kind kind, uint32_t t,
                                enum kr_domain domain, uint32_t op)
{
    struct kr_step *list = t & 1 ? s->x->heavy_steps : s->x->row_steps;
    uint32_t *n = t & 1 ? &s->n_heavy : &s->n_row;
    struct kr_step *st = &list[(*n)++];
    *st = (struct kr_step){.kind = kind, .level = t / 2, .domain = domain, .op = op};
    return st;
}

/* The first row work that may read rows which other threads made at t. */
static uint32_t after_meeting(uint32_t t)
{
    return t & 1 ? t + 1 : t + 2;
}

/* Whether a quantised copy of the value is a copy of quantised rows: the same bytes for less. */
static const struct kr_plan_op *gathered(const struct sched *s, int value)
{
    const struct kr_plan_op *op = &s->p->ops[s->p->values[value].op];
    return s->x->dev->fuse && op->kind == KR_OP_DISPATCH && !op->flag ? op : NULL;
}

static uint32_t quantize(struct sched *s, uint32_t value);

static void gather(struct sched *s, const struct kr_plan_op *op, uint32_t slot, uint32_t row_floats)
{
    uint32_t from = quantize(s, (uint32_t)op->in[0]), route = (uint32_t)op->in[1];
    uint32_t t = CN_MAX(after_meeting(s->ready[from]), even_from(s->ready[route]));
    t = at_time(s, t);
    make(s, slot, t, KR_DOM_ROUTED, row_floats, 0);
    struct kr_step *st = add_step(s, KR_STEP_GATHER, t, KR_DOM_ROUTED, (uint32_t)(op - s->p->ops));
    st->slot = slot;
    st->from = from;
    st->grouping = s->grouping_of[route];
    use(s, from, t);
    use(s, route, t);
}

/* The quantised copy of a value: made once, as soon as the value is there. */
static uint32_t quantize(struct sched *s, uint32_t value)
{
    struct kr_cpu_exec *x = s->x;
    const struct kr_slot *v = &x->slots[value];
    const struct kr_plan_op *dispatch = gathered(s, (int)value);
    if (s->quantized[value]) return s->quantized[value];
    if (dispatch) {
        uint32_t row_bytes = (uint32_t)kr_q8_bytes(1, s->p->values[value].width);
        s->quantized[value] = x->n_slots++;
        gather(s, dispatch, s->quantized[value], row_bytes / sizeof(float));
        return s->quantized[value];
    }
    uint32_t slot = x->n_slots++, t = at_time(s, even_from(s->ready[value]));
    uint32_t width = s->p->values[value].width;
    make(s, slot, t, v->domain, (uint32_t)(kr_q8_bytes(1, width) / sizeof(float)), 0);
    add_step(s, KR_STEP_QUANTIZE, t, v->domain, value)->slot = slot;
    use(s, value, t);
    s->quantized[value] = slot;
    return slot;
}

/* Elementwise work on rows as wide as a vocabulary is cut by columns. */
static bool is_wide(const struct sched *s, const struct kr_plan_op *op)
{
    bool elementwise = op->kind == KR_OP_ADD || op->kind == KR_OP_SCALE ||
                       op->kind == KR_OP_SOFTCAP || op->kind == KR_OP_GLU || op->kind == KR_OP_ACT;
    if (op->kind == KR_OP_GLU)
        elementwise = s->p->values[op->in[0]].width == s->p->values[op->in[1]].width;
    return elementwise && s->p->values[op->out].width >= KR_WIDE_ROW;
}

static uint32_t time_of(struct sched *s, const struct kr_plan_op *op)
{
    uint32_t t = 0;
    for (int i = 0; i < KR_OP_INPUTS; i++)
        if (op->in[i] >= 0) t = CN_MAX(t, s->ready[op->in[i]]);
    if (is_wide(s, op)) return even_from(t) + 1;
    switch (op->kind) {
    case KR_OP_CONV:
    case KR_OP_SCAN:
    case KR_OP_DELTA:
    case KR_OP_FOLLOW:
    case KR_OP_MATMUL: /* of floats */
    case KR_OP_HEAD_MATMUL:
    case KR_OP_EXPERT_MATMUL:
        return even_from(t) + 1;
    case KR_OP_DISPATCH: /* these read rows of another domain */
    case KR_OP_COMBINE:
        return CN_MAX(even_from(t), after_meeting(s->ready[op->in[0]]));
    case KR_OP_ATTENTION:
    case KR_OP_SELECT:
        t = CN_MAX(even_from(t), s->written[op->kv_layer]) + 1;
        if (s->x->dev->fuse)
            while (s->attn_at[t / 2])
                t += 2; /* one at a level: they share the memory for partial states */
        return t;
    case KR_OP_TAKE_LOGITS: /* reads rows that other threads made: only after they met */
        return after_meeting(t);
    case KR_OP_ROPE:
        t = even_from(t);
        return s->p->values[op->out].domain == KR_DOM_LOGITS ? CN_MAX(t, 2u) : t;
    default:
        return even_from(t);
    }
}

/* A route is there once its rows are grouped by expert. Its own slot is for scores. */
static void place_route(struct sched *s, struct kr_step *st, uint32_t t)
{
    struct kr_cpu_exec *x = s->x;
    const struct kr_plan_op *op = &s->p->ops[st->op];
    uint32_t n_experts = s->p->values[op->in[0]].width, pad = (2 * n_experts + 15) & ~15u;
    st->slot = x->n_slots++;
    make(s, st->slot, t, KR_DOM_ROWS, pad, pad);
    uint32_t at = at_time(s, t + 1), g = x->n_groupings++;
    add_step(s, KR_STEP_GROUP, at, KR_DOM_ROWS, st->op)->grouping = g;
    x->groupings[g] = (struct kr_grouping){
        .n_experts = n_experts, .value = (uint32_t)op->out, .first_level = at / 2};
    s->grouping_of[op->out] = g;
    use(s, (uint32_t)op->out, at);
    s->ready[op->out] = at;
}

static void place_op(struct sched *s, uint32_t index)
{
    struct kr_cpu_exec *x = s->x;
    const struct kr_plan_op *op = &s->p->ops[index];
    enum kr_domain domain = KR_DOM_ROWS;
    if (op->out >= 0) domain = s->p->values[op->out].domain;
    uint32_t q = 0, t;
    if (kr_is_product(op) && kr_type_wants_q8(op->w.type)) {
        q = quantize(s, (uint32_t)op->in[0]);
        t = at_time(s, s->ready[q] + 1); /* the input of experts comes after their grouping */
        use(s, q, t);
        if (op->in[1] >= 0) use(s, (uint32_t)op->in[1], t);
    } else {
        t = at_time(s, time_of(s, op));
        for (int i = 0; i < KR_OP_INPUTS; i++)
            if (op->in[i] >= 0) use_in(s, domain, (uint32_t)op->in[i], t);
    }
    struct kr_step *st = add_step(s, KR_STEP_OP, t, domain, index);
    st->slot = q;
    if (op->in[1] >= 0) st->grouping = s->grouping_of[op->in[1]];
    if (op->kind == KR_OP_ROPE) {
        st->slot = s->angles0 + (uint32_t)op->rope;
        use_in(s, domain, st->slot, t);
    }
    if (op->kind == KR_OP_KV_WRITE) s->written[op->kv_layer] = t;
    if (op->kind == KR_OP_ATTENTION || op->kind == KR_OP_SELECT) s->attn_at[t / 2]++;
    if (op->out < 0) return;
    uint32_t width = s->p->values[op->out].width, pad = kr_value_stride(width);
    bool output = op->out == s->p->output;
    make(s, (uint32_t)op->out, t, domain, pad, output ? width : pad);
    if (output) x->slots[op->out].last = UINT32_MAX;
    if (op->kind == KR_OP_ROUTE) place_route(s, st, t);
}

/* A product of a gathered copy reads what that is made of, not the dispatch. */
static void reads(void *arg, const struct kr_plan_op *op, int in[KR_OP_INPUTS])
{
    const struct kr_plan_op *d = op->in[0] >= 0 ? gathered(arg, op->in[0]) : NULL;
    if (!d || !kr_is_product(op) || !kr_type_wants_q8(op->w.type)) return;
    in[0] = d->in[0];
    in[2] = d->in[1]; /* a product has no third input */
}

static void make_levels(struct sched *s, uint32_t n_levels)
{
    struct kr_cpu_exec *x = s->x;
    uint32_t r = 0, h = 0;
    for (uint32_t l = 0; l < n_levels; l++) {
        struct kr_level *v = &x->levels[l];
        *v = (struct kr_level){.row_begin = r, .heavy_begin = h};
        for (; r < s->n_row && x->row_steps[r].level == l; r++) {
            const struct kr_step *st = &x->row_steps[r];
            v->has_rows[st->domain] = true;
            if (st->kind == KR_STEP_OP && s->p->ops[st->op].kind == KR_OP_KV_WRITE) {
                x->last_kv_level = l;
                x->last_kv_heavy = false;
            }
        }
        for (; h < s->n_heavy && x->heavy_steps[h].level == l; h++) {
            if (s->p->ops[x->heavy_steps[h].op].state < 0) continue;
            x->last_kv_level = l;
            x->last_kv_heavy = true;
        }
        v->row_end = r;
        v->heavy_end = h;
    }
    x->n_levels = n_levels;
    x->first_logit_level = 0;
    while (x->first_logit_level < n_levels &&
           !x->levels[x->first_logit_level].has_rows[KR_DOM_LOGITS])
        x->first_logit_level++; /* the first is KR_OP_TAKE_LOGITS */
    x->n_row_steps = s->n_row;
    x->n_heavy_steps = s->n_heavy;
}

/* Steps are in the plan's order; a stable insertion by level keeps producers before users. */
static void sort_steps(struct kr_step *a, struct kr_step *tmp, uint32_t n)
{
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t lo = 0; lo < n; lo += 2 * width) {
            uint32_t mid = CN_MIN(lo + width, n), hi = CN_MIN(mid + width, n);
            uint32_t i = lo, j = mid, k = lo;
            while (k < hi)
                tmp[k++] = j >= hi || (i < mid && a[i].level <= a[j].level) ? a[i++] : a[j++];
        }
        for (uint32_t i = 0; i < n; i++)
            a[i] = tmp[i];
    }
}

static int by_first(const void *a, const void *b)
{
    const struct kr_slot *x = *(struct kr_slot *const *)a, *y = *(struct kr_slot *const *)b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* First fit in order of birth: `live` holds the slots in use, by address. */
static void place_domain(struct kr_cpu_exec *x, enum kr_domain domain, struct kr_slot **order,
                         struct kr_slot **live)
{
    uint32_t n = 0, n_live = 0;
    uint64_t top = 0;
    for (uint32_t i = 0; i < x->n_slots; i++)
        if (x->slots[i].row_floats && x->slots[i].domain == domain) order[n++] = &x->slots[i];
    qsort(order, n, sizeof(struct kr_slot *), by_first);
    for (uint32_t i = 0; i < n; i++) {
        struct kr_slot *s = order[i];
        uint32_t kept = 0, where = 0;
        for (uint32_t j = 0; j < n_live; j++)
            if (live[j]->last >= s->first) live[kept++] = live[j];
        n_live = kept;
        uint64_t at = 0;
        while (where < n_live && live[where]->at < at + s->row_floats) {
            at = live[where]->at + live[where]->row_floats;
            where++;
        }
        for (uint32_t j = n_live++; j > where; j--)
            live[j] = live[j - 1];
        live[where] = s;
        s->at = at;
        top = CN_MAX(top, at + s->row_floats);
    }
    x->row_floats[domain] = top;
}

static int alloc_tables(struct sched *s)
{
    struct kr_cpu_exec *x = s->x;
    const struct kr_plan *p = s->p;
    size_t n_slots = 2 * p->n_values + p->n_ropes + p->n_ops;
    size_t n_steps = 2 * p->n_ops + p->n_ropes;
    if (n_slots + n_steps > UINT32_MAX / 8) return CN_ENOMEM;
    s->max_levels = (uint32_t)(4 * p->n_ops + 4);
    x->slots = cn_calloc(n_slots, sizeof *x->slots);
    x->row_steps = cn_calloc(n_steps, sizeof *x->row_steps);
    x->heavy_steps = cn_calloc(n_steps, sizeof *x->heavy_steps);
    x->levels = cn_calloc(s->max_levels, sizeof *x->levels);
    x->stages = cn_calloc(KR_STAGES_A_LEVEL * (size_t)s->max_levels, sizeof *x->stages);
    x->jobs = cn_calloc(KR_STAGES_A_LEVEL * (size_t)s->max_levels + n_steps, sizeof *x->jobs);
    s->ready = cn_calloc(n_slots, sizeof *s->ready);
    s->quantized = cn_calloc(n_slots, sizeof *s->quantized);
    s->written = cn_calloc(p->n_layers, sizeof *s->written);
    s->attn_at = cn_calloc(s->max_levels, sizeof *s->attn_at);
    s->grouping_of = cn_calloc(p->n_values, sizeof *s->grouping_of);
    x->groupings = cn_calloc(p->n_ops, sizeof *x->groupings);
    s->needed = cn_calloc(p->n_ops, sizeof *s->needed);
    bool ok = s->needed && x->stages && x->jobs && x->slots && x->row_steps && x->heavy_steps &&
              x->levels && s->ready && s->quantized && s->written && s->attn_at && s->grouping_of &&
              x->groupings;
    return ok ? 0 : CN_ENOMEM;
}

static int place_slots(struct kr_cpu_exec *x)
{
    struct kr_slot **order = cn_malloc_array(2 * (size_t)x->n_slots + 1, sizeof *order);
    if (!order) return CN_ENOMEM;
    for (int d = 0; d < KR_N_DOMAINS; d++)
        place_domain(x, (enum kr_domain)d, order, order + x->n_slots);
    free(order);
    return 0;
}

int kr_cpu_schedule(struct kr_cpu_exec *x, struct cn_error *err)
{
    const struct kr_plan *p = x->plan;
    struct sched s = {.x = x, .p = p, .now = (uint32_t)-1};
    struct kr_step *tmp = NULL;
    int rc = alloc_tables(&s);
    if (!rc) {
        x->n_slots = (uint32_t)p->n_values;
        s.angles0 = x->n_slots;
        s.now = x->dev->fuse || !p->n_ropes ? (uint32_t)-1 : 0;
        for (uint32_t i = 0; i < p->n_ropes; i++) {
            uint32_t n = p->ropes[i].n_rot;
            make(&s, x->n_slots, 0, KR_DOM_ROWS, (n + 15) & ~15u, (n + 15) & ~15u);
            add_step(&s, KR_STEP_ANGLES, 0, KR_DOM_ROWS, i)->slot = x->n_slots++;
        }
        kr_plan_needed(p, reads, &s, s.needed);
        for (uint32_t i = 0; i < p->n_ops; i++)
            if (s.needed[i]) place_op(&s, i);
        tmp = cn_malloc_array(CN_MAX(s.n_row, s.n_heavy), sizeof *tmp);
        rc = tmp ? 0 : CN_ENOMEM;
    }
    if (!rc) {
        sort_steps(x->row_steps, tmp, s.n_row);
        sort_steps(x->heavy_steps, tmp, s.n_heavy);
        uint32_t last = 0;
        if (s.n_row) last = x->row_steps[s.n_row - 1].level;
        if (s.n_heavy) last = CN_MAX(last, x->heavy_steps[s.n_heavy - 1].level);
        make_levels(&s, last + 1);
        kr_cpu_find_chains(x);
        rc = place_slots(x);
    }
    free(tmp);
    free(s.ready);
    free(s.quantized);
    free(s.written);
    free(s.attn_at);
    free(s.needed);
    free(s.grouping_of);
    return rc ? cn_fail(err, rc, "out of memory while preparing the plan") : 0;
}
