/* share: finds sequences of a step whose block tables begin with the same blocks, and puts their
 * rows into tiles of their own for the key ranges that lie wholly in those, so that keys are read
 * once.
 *
 * Engine thread, at launch. Sequences with a common prefix form a list; what is common to all of it
 * is a segment. Subsets that agree further get their own segments, from the super-range where the
 * list diverges. A row's own tile takes over after its last segment; only that one may end inside a
 * super-range. Sharing is found from the block tables alone. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct sharing {
    struct kr_cpu_exec *x;
    struct kr_tiling *t;
    uint64_t floats; /* of states that own tiles keep */
    uint32_t blocks; /* of a range */
};

/* ---- who agrees ------------------------------------------------------------------------------ */

static int compare_range(const struct sharing *s, const struct kr_member *a,
                         const struct kr_member *b, uint32_t range)
{
    size_t at = (size_t)range * s->blocks;
    return memcmp(a->table + at, b->table + at, s->blocks * sizeof *a->table);
}

/* Those that have the range whole come first, in the order of its blocks. */
static bool comes_after(const struct sharing *s, const struct kr_member *a,
                        const struct kr_member *b, uint32_t range)
{
    if (a->first != b->first) return a->first > b->first;
    if (range == UINT32_MAX) range = a->first; /* each list's own */
    bool has = a->whole > range, other = b->whole > range;
    if (!has || !other) return other && !has;
    return compare_range(s, a, b, range) > 0;
}

static void sort_members(const struct sharing *s, struct kr_member *m, uint32_t n, uint32_t range)
{
    for (uint32_t gap = n / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            struct kr_member moved = m[i];
            uint32_t j = i;
            for (; j >= gap && comes_after(s, &m[j - gap], &moved, range); j -= gap)
                m[j] = m[j - gap];
            m[j] = moved;
        }
}

/* How many from m on agree with it at the range; they are sorted. */
static uint32_t count_alike(const struct sharing *s, const struct kr_member *m, uint32_t n,
                            uint32_t range)
{
    uint32_t i = 1;
    if (m->whole <= range) return 1;
    while (i < n && m[i].first == m->first && m[i].whole > range &&
           !compare_range(s, m, &m[i], range))
        i++;
    return i;
}

/* The first range from `from` on that not all of the list have and agree on. */
static uint32_t common_end(const struct sharing *s, const struct kr_member *m, uint32_t n,
                           uint32_t from)
{
    uint32_t end = m->whole;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t stop = CN_MIN(end, m[i].whole), r = from;
        while (r < stop && !compare_range(s, m, &m[i], r))
            r++;
        end = r;
    }
    return end;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static void sort_rows(struct kr_tiling *t, uint32_t from, uint32_t n)
{
    uint32_t *pos = t->positions + from, *rows = t->rows + from;
    for (uint32_t gap = n / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            uint32_t p = pos[i], r = rows[i], j = i;
            for (; j >= gap && pos[j - gap] > p; j -= gap) {
                pos[j] = pos[j - gap];
                rows[j] = rows[j - gap];
            }
            pos[j] = p;
            rows[j] = r;
        }
}

/* A segment's tiles and pieces of work; the first tile of it is `model`. */
static void add_tiles(const struct sharing *s, const struct kr_tile *model, uint32_t n_rows)
{
    struct kr_tiling *t = s->t;
    uint32_t supers = model->last - model->first;
    for (uint32_t at = 0; at < n_rows; at += t->shared_rows) {
        struct kr_tile *tile = &t->shared[t->n_shared];
        *tile = *model;
        tile->row = t->n_listed + at;
        tile->n_rows = CN_MIN(t->shared_rows, n_rows - at);
        tile->pos = t->positions[tile->row];
        tile->last_pos = t->positions[tile->row + tile->n_rows - 1];
        for (uint32_t j = 0; j < model->pieces; j++)
            t->shared_works[t->n_shared_works++] =
                (struct kr_work){.tile = t->n_shared,
                                 .first = model->first + supers * j / model->pieces,
                                 .last = model->first + supers * (j + 1) / model->pieces};
        t->n_shared++;
    }
    t->n_listed += n_rows;
}

/* The member's own tiles begin after the segment. */
static void hand_over(const struct sharing *s, const struct kr_member *m,
                      const struct kr_tile *segment, bool begins, uint32_t n_states)
{
    for (uint32_t i = s->t->owner[m->row]; i <= s->t->owner[m->row + m->n_rows - 1]; i++) {
        struct kr_tile *own = &s->t->tiles[i];
        if (begins) {
            own->first = segment->first;
            own->merged = segment->merged;
        }
        own->begin = segment->stop;
        own->joins = true;
        own->n_states += n_states;
    }
}

/* Adds a segment from super-range `super` to range `stop`, of the whole list or its `alone`
 * members. False if none was added: slower, not wrong. */
static bool add_segment(struct sharing *s, const struct kr_member *m, uint32_t n, bool alone,
                        bool begins, uint32_t super, uint32_t stop)
{
    struct kr_tiling *t = s->t;
    uint32_t n_members = 0, n_rows = 0, first = super * KR_SUPER_RANGES;
    for (uint32_t i = 0; i < n; i++) {
        if (alone && !m[i].alone) continue;
        n_members++;
        n_rows += m[i].n_rows;
    }
    if (n_members < 2 || stop <= first) return false;
    uint32_t n_tiles = (n_rows + t->shared_rows - 1) / t->shared_rows, works = n_tiles * t->n_units;
    struct kr_tile model = {.seq = m->seq,
                            .begin = first,
                            .stop = stop,
                            .first = super,
                            .last = (stop - 1) / KR_SUPER_RANGES + 1,
                            .merged = 1,
                            .pieces = 1};
    uint32_t supers = model.last - super;
    if (works < s->x->max_split)
        model.pieces = CN_MIN(supers, (s->x->max_split + works - 1) / works);
    if (t->n_shared_works + n_tiles * model.pieces > s->x->max_works) model.pieces = 1;
    if (begins) /* what one thread does from the beginning of a row's keys on is one state */
        model.merged = CN_MAX(1u, CN_MIN(supers / model.pieces, stop / KR_SUPER_RANGES - super));
    uint32_t n_states = supers - model.merged + 1;
    uint64_t floats = (uint64_t)n_rows * t->row_floats * n_states;
    if (s->floats + floats > s->x->parts_floats ||
        t->n_shared + n_tiles > s->x->base.opts.max_rows ||
        t->n_shared_works + n_tiles * model.pieces > s->x->max_works ||
        t->n_listed + n_rows > 3ull * s->x->base.opts.max_rows)
        return false;
    s->floats += floats;
    for (uint32_t i = 0, at = t->n_listed; i < n; i++) {
        if (alone && !m[i].alone) continue;
        hand_over(s, &m[i], &model, begins, n_states);
        for (uint32_t r = 0; r < m[i].n_rows; r++, at++) {
            t->rows[at] = m[i].row + r;
            t->positions[at] = t->positions[m[i].row + r];
        }
    }
    sort_rows(t, t->n_listed, n_rows);
    add_tiles(s, &model, n_rows);
    return true;
}

/* A list that agrees at range `from`, which is of super-range `super`, the first they share now. */
static void share_list(struct sharing *s, struct kr_member *m, uint32_t n, bool begins,
                       uint32_t super, uint32_t from)
{
    uint32_t end = common_end(s, m, n, from), n_alone = 0;
    sort_members(s, m, n, end);
    for (uint32_t i = 0, k; i < n; i += k) {
        k = count_alike(s, m + i, n - i, end);
        for (uint32_t j = i; j < i + k; j++)
            m[j].alone = k == 1;
        n_alone += k == 1;
    }
    if (n_alone == n) {
        add_segment(s, m, n, false, begins, super, end);
        return;
    }
    uint32_t cut = end / KR_SUPER_RANGES;
    if (cut > super) {
        if (!add_segment(s, m, n, false, begins, super, cut * KR_SUPER_RANGES)) return;
        begins = false;
    }
    add_segment(s, m, n, true, begins, cut, end);
    for (uint32_t i = 0, k; i < n; i += k) {
        k = 1;
        if (m[i].alone) continue;
        k = count_alike(s, m + i, n - i, end);
        share_list(s, m + i, k, begins, cut, end);
    }
}

static uint32_t list_members(struct sharing *s)
{
    struct kr_cpu_exec *x = s->x;
    const struct kr_row *rows = x->now.batch->rows;
    uint32_t n = 0;
    for (uint32_t r = 0, last; r < x->now.n_rows; r = last) {
        struct kr_sight sight = kr_sight_of(&x->kv_groups[s->t->group], 0);
        uint64_t from, to;
        for (last = r; last < x->now.n_rows && rows[last].seq == rows[r].seq;)
            last++;
        kr_sight_at(&sight, rows[r].pos, &from, &to);
        struct kr_member m = {.row = r,
                              .n_rows = last - r,
                              .seq = rows[r].seq,
                              .first = (uint32_t)(from / KR_RANGE_KEYS),
                              .whole = rows[r].pos / KR_RANGE_KEYS,
                              .table = x->now.batch->seqs[rows[r].seq].tables[s->t->group]};
        if (m.first < m.whole) x->members[n++] = m;
    }
    return n;
}

uint64_t kr_cpu_share(struct kr_cpu_exec *x, struct kr_tiling *t)
{
    struct sharing s = {.x = x, .t = t, .blocks = KR_RANGE_KEYS / x->base.opts.block_tokens};
    if (x->kv_groups[t->group].span == KR_SPAN_BOTH) return 0;
    uint32_t n = list_members(&s);
    if (n < 2) return 0;
    sort_members(&s, x->members, n, UINT32_MAX);
    for (uint32_t i = 0, k; i < n; i += k) {
        struct kr_member *m = &x->members[i];
        k = count_alike(&s, m, n - i, m->first);
        if (k > 1) share_list(&s, m, k, true, m->first / KR_SUPER_RANGES, m->first);
    }
    return s.floats;
}
