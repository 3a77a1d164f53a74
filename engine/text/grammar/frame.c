/* frame: stacks, lists and texts, each kept once. See match.h. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { FRAMES, CELLS };

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 31;
}

int eng_match_fail(struct eng_match *m, int code)
{
    if (!m->code) m->code = code;
    return m->code;
}

bool eng_heads_room(struct eng_match *m, int which, uint32_t n)
{
    return m->n_heads[which] > n;
}

/* Makes the table of chains larger; `hash` and `next` of entry i are told by the caller's arrays.
 */
static bool grow_heads(struct eng_match *m, int which)
{
    uint32_t n = CN_MAX(m->n_heads[which] * 2, 64u), *heads = cn_calloc(n, sizeof *heads);
    if (!heads) return eng_match_fail(m, CN_ENOMEM), false;
    for (uint32_t i = 1; which == FRAMES && i < m->n_frames; i++) {
        m->frames[i].next = heads[m->frames[i].hash & (n - 1)];
        heads[m->frames[i].hash & (n - 1)] = i;
    }
    for (uint32_t i = ENG_LIST_UNKNOWN + 1; which == CELLS && i < m->n_cells; i++) {
        m->cells[i].next = heads[m->cells[i].hash & (n - 1)];
        heads[m->cells[i].hash & (n - 1)] = i;
    }
    free(m->heads[which]);
    m->heads[which] = heads;
    m->n_heads[which] = n;
    return true;
}

static bool same_frame(const struct eng_frame *a, const struct eng_frame *b)
{
    return a->hash == b->hash && a->parent == b->parent && a->kind == b->kind &&
           a->phase == b->phase && a->id == b->id && a->pos == b->pos && a->count == b->count &&
           a->there == b->there && a->seen == b->seen && a->start == b->start;
}

uint32_t eng_frame(struct eng_match *m, const struct eng_frame *f)
{
    struct eng_frame n = *f;
    const struct eng_frame *up = f->parent ? &m->frames[f->parent] : NULL;
    if (m->code) return 0;
    n.inside = up && (up->inside || (up->kind == ENG_FRAME_ARRAY && up->phase == ENG_PHASE_ITEM));
    n.wants = (n.kind == ENG_FRAME_OBJECT && n.phase == ENG_PHASE_NAMED) ||
              (n.kind == ENG_FRAME_ARRAY && n.phase == ENG_PHASE_ITEM);
    n.rest = 0;
    n.hash = mix(mix(mix(up ? up->hash : 1, n.kind * 8u + n.phase), n.id), n.pos);
    n.hash = mix(mix(n.hash, n.count), n.start);
    n.hash =
        mix(mix(n.hash, n.there ? m->cells[n.there].hash : 0), n.seen ? m->cells[n.seen].hash : 0);
    if (!eng_heads_room(m, FRAMES, m->n_frames) && !grow_heads(m, FRAMES)) return 0;
    uint32_t *head = &m->heads[FRAMES][n.hash & (m->n_heads[FRAMES] - 1)];
    for (uint32_t i = *head; i; i = m->frames[i].next)
        if (same_frame(&m->frames[i], &n)) return i;
    if (cn_grow(&m->frames, &m->cap[0], m->n_frames + (size_t)1, sizeof *m->frames))
        return eng_match_fail(m, CN_ENOMEM), 0;
    n.next = *head;
    *head = m->n_frames;
    m->frames[m->n_frames] = n;
    return m->n_frames++;
}

uint32_t eng_list_add(struct eng_match *m, uint32_t list, uint32_t value, uint64_t hash)
{
    struct eng_cell c = {.value = value, .rest = list};
    if (m->code) return 0;
    c.hash = mix(mix(7, list ? m->cells[list].hash : 0), hash);
    if (!eng_heads_room(m, CELLS, m->n_cells) && !grow_heads(m, CELLS)) return 0;
    uint32_t *head = &m->heads[CELLS][c.hash & (m->n_heads[CELLS] - 1)];
    for (uint32_t i = *head; i; i = m->cells[i].next)
        if (m->cells[i].value == value && m->cells[i].rest == list) return i;
    if (cn_grow(&m->cells, &m->cap[1], m->n_cells + (size_t)1, sizeof *m->cells))
        return eng_match_fail(m, CN_ENOMEM), 0;
    c.next = *head;
    *head = m->n_cells;
    m->cells[m->n_cells] = c;
    return m->n_cells++;
}

bool eng_list_has(const struct eng_match *m, uint32_t list, uint32_t value)
{
    for (; list; list = m->cells[list].rest)
        if (m->cells[list].value == value) return true;
    return false;
}

static uint64_t hash_of(const char *p, size_t n)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++)
        hash = mix(hash, (uint8_t)p[i]);
    return hash;
}

uint32_t eng_seen_find(const struct eng_match *m, const char *p, size_t n)
{
    uint64_t hash = hash_of(p, n);
    for (uint32_t i = m->n_seen; i--;)
        if (m->seen[i].hash == hash && m->seen[i].n == n && (!n || !memcmp(m->seen[i].p, p, n)))
            return i;
    return UINT32_MAX;
}

uint32_t eng_seen_text(struct eng_match *m, const char *p, size_t n)
{
    uint32_t known = eng_seen_find(m, p, n);
    if (known != UINT32_MAX) return known;
    if (cn_grow(&m->seen, &m->cap[2], m->n_seen + (size_t)1, sizeof *m->seen))
        return (uint32_t)eng_match_fail(m, CN_ENOMEM);
    struct eng_seen s = {cn_malloc_array(n + 1, 1), (uint32_t)n, hash_of(p, n)};
    if (!s.p) return (uint32_t)eng_match_fail(m, CN_ENOMEM);
    if (n) memcpy(s.p, p, n);
    s.p[n] = 0;
    m->seen[m->n_seen] = s;
    return m->n_seen++;
}

int eng_kept_text(const struct eng_match *m, uint32_t text, uint32_t from, struct cn_buf *out)
{
    uint32_t len = text ? m->kept[text].len : 0, n = len > from ? len - from : 0;
    if (cn_buf_reserve(out, n)) return CN_ENOMEM;
    for (uint32_t i = n; i--; text = m->kept[text].before)
        out->data[out->len + i] = m->kept[text].byte;
    out->len += n;
    return 0;
}
