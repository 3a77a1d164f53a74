/* frame: stacks, each kept once, and kept texts. See match.h. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { FRAMES };

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

static bool grow_heads(struct eng_match *m)
{
    uint32_t n = CN_MAX(m->n_heads[FRAMES] * 2, 64u), *heads = cn_calloc(n, sizeof *heads);
    if (!heads) return eng_match_fail(m, CN_ENOMEM), false;
    for (uint32_t i = 1; i < m->n_frames; i++) {
        m->frames[i].next = heads[m->frames[i].hash & (n - 1)];
        heads[m->frames[i].hash & (n - 1)] = i;
    }
    free(m->heads[FRAMES]);
    m->heads[FRAMES] = heads;
    m->n_heads[FRAMES] = n;
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
    n.rest = n.rich = 0;
    n.hash = mix(mix(mix(1, n.kind * 8u + n.phase), n.id), n.pos);
    n.hash = mix(mix(n.hash, n.count), n.start);
    n.hash = mix(n.hash, n.there ? m->cells[n.there].hash : 0);
    n.shape = mix(mix(n.hash, up ? up->shape : 1), n.seen != 0);
    n.hash = mix(mix(n.hash, up ? up->hash : 1), n.seen ? m->cells[n.seen].hash : 0);
    if (!eng_heads_room(m, FRAMES, m->n_frames) && !grow_heads(m)) return 0;
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

int eng_kept_text(const struct eng_match *m, uint32_t text, uint32_t from, struct cn_buf *out)
{
    uint32_t len = text ? m->kept[text].len : 0, n = len > from ? len - from : 0;
    if (cn_buf_reserve(out, n)) return CN_ENOMEM;
    for (uint32_t i = n; i--; text = m->kept[text].before)
        out->data[out->len + i] = m->kept[text].byte;
    out->len += n;
    return 0;
}
