/* seen: the names and values of an answer that may not come again, and lists of them. See match.h.
 *
 * A list is a chain of cells, the newest first, shared between lists. Each cell knows its depth and
 * jumps to one far below it (E. Myers, "An applicative random-access stack", 1983), so that a cell
 * of a given depth is found in a logarithm of steps: a text is in a list if one of the cells made
 * for it is the list's cell of that depth. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

enum { CELLS = 1, SEEN = 4 };

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 31;
}

static uint32_t *bigger_heads(struct eng_match *m, int which)
{
    uint32_t n = CN_MAX(m->n_heads[which] * 2, 64u), *heads = cn_calloc(n, sizeof *heads);
    if (!heads) {
        eng_match_fail(m, CN_ENOMEM);
        return NULL;
    }
    free(m->heads[which]);
    m->heads[which] = heads;
    m->n_heads[which] = n;
    return heads;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static bool grow_cells(struct eng_match *m)
{
    uint32_t *heads = bigger_heads(m, CELLS);
    for (uint32_t i = ENG_LIST_UNKNOWN + 1; heads && i < m->n_cells; i++) {
        uint32_t *head = &heads[m->cells[i].hash & (m->n_heads[CELLS] - 1)];
        m->cells[i].next = *head;
        *head = i;
    }
    return heads != NULL;
}

/* Where a cell on top of `rest` jumps to. */
static uint32_t jump_from(const struct eng_match *m, uint32_t rest)
{
    const struct eng_cell *c = &m->cells[rest], *far = &m->cells[c->jump];
    bool equal = c->depth - far->depth == far->depth - m->cells[far->jump].depth;
    return rest && c->jump && equal ? far->jump : rest;
}

uint32_t eng_list_add(struct eng_match *m, uint32_t list, uint32_t value, uint64_t hash)
{
    struct eng_cell c = {.value = value, .rest = list};
    if (m->code) return 0;
    c.hash = mix(mix(7, list ? m->cells[list].hash : 0), hash);
    if (!eng_heads_room(m, CELLS, m->n_cells) && !grow_cells(m)) return 0;
    uint32_t *head = &m->heads[CELLS][c.hash & (m->n_heads[CELLS] - 1)];
    for (uint32_t i = *head; i; i = m->cells[i].next)
        if (m->cells[i].value == value && m->cells[i].rest == list) return i;
    if (cn_grow(&m->cells, &m->cap[1], m->n_cells + (size_t)1, sizeof *m->cells))
        return eng_match_fail(m, CN_ENOMEM), 0;
    c.depth = list ? m->cells[list].depth + 1 : 1;
    c.jump = jump_from(m, list);
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

uint32_t eng_list_length(const struct eng_match *m, uint32_t list)
{
    return m->cells[list].depth;
}

uint32_t eng_list_add_seen(struct eng_match *m, uint32_t list, uint32_t seen)
{
    uint32_t before = m->n_cells, cell = eng_list_add(m, list, seen, m->seen[seen].hash);
    if (m->n_cells == before) return cell;
    m->cells[cell].text = true;
    m->cells[cell].same = m->seen[seen].cells;
    m->seen[seen].cells = cell;
    return cell;
}

bool eng_list_has_seen(const struct eng_match *m, uint32_t list, uint32_t seen)
{
    for (uint32_t c = m->seen[seen].cells; c; c = m->cells[c].same) {
        uint32_t at = list, depth = m->cells[c].depth;
        while (m->cells[at].depth > depth)
            at = m->cells[m->cells[at].jump].depth >= depth ? m->cells[at].jump : m->cells[at].rest;
        if (at == c) return true;
    }
    return false;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *p, size_t n)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++)
        hash = mix(hash, (uint8_t)p[i]);
    return hash;
}

struct eng_str eng_seen_str(const struct eng_match *m, uint32_t seen)
{
    return (struct eng_str){m->texts + m->seen[seen].at, m->seen[seen].n};
}

static uint32_t find(const struct eng_match *m, const char *p, size_t n, uint64_t hash)
{
    uint32_t i = m->n_heads[SEEN] ? m->heads[SEEN][hash & (m->n_heads[SEEN] - 1)] : 0;
    for (; i; i = m->seen[i - 1].next) {
        const struct eng_seen *s = &m->seen[i - 1];
        if (s->hash == hash && s->n == n && (!n || !memcmp(m->texts + s->at, p, n))) return i - 1;
    }
    return UINT32_MAX;
}

uint32_t eng_seen_find(const struct eng_match *m, const char *p, size_t n)
{
    return find(m, p, n, hash_of(p, n));
}

static int compare(struct eng_str a, struct eng_str b)
{
    size_t n = CN_MIN(a.n, b.n);
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

/* The place of the first text that is not before s. */
static uint32_t place_of(const struct eng_match *m, struct eng_str s)
{
    uint32_t lo = 0, hi = m->n_seen;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (compare(eng_seen_str(m, m->order[mid]), s) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool eng_seen_begins(const struct eng_match *m, const char *p, size_t n)
{
    uint32_t i = place_of(m, (struct eng_str){p, n});
    if (i == m->n_seen) return false;
    struct eng_str s = eng_seen_str(m, m->order[i]);
    return s.n >= n && (!n || !memcmp(s.p, p, n));
}

bool eng_seen_is_fresh(const struct eng_match *m, uint32_t text, uint32_t from)
{
    if (!m->fresh || from > m->fresh_from) return false;
    while (text && m->kept[text].len > m->kept[m->fresh].len)
        text = m->kept[text].before;
    return text == m->fresh;
}

static bool grow_seen(struct eng_match *m)
{
    uint32_t *heads = bigger_heads(m, SEEN);
    for (uint32_t i = 0; heads && i < m->n_seen; i++) {
        uint32_t *head = &heads[m->seen[i].hash & (m->n_heads[SEEN] - 1)];
        m->seen[i].next = *head;
        *head = i + 1;
    }
    return heads != NULL;
}

uint32_t eng_seen_text(struct eng_match *m, const char *p, size_t n)
{
    struct eng_seen s = {.at = m->n_texts, .n = (uint32_t)n, .hash = hash_of(p, n)};
    uint32_t known = find(m, p, n, s.hash), i = m->n_seen;
    if (known != UINT32_MAX) return known;
    if (!eng_heads_room(m, SEEN, i + 1) && !grow_seen(m)) return 0;
    if (cn_grow(&m->seen, &m->cap[2], i + (size_t)1, sizeof *m->seen) ||
        cn_grow(&m->order, &m->cap[9], i + (size_t)1, sizeof *m->order) ||
        cn_grow(&m->texts, &m->cap[10], m->n_texts + n + 1, 1))
        return (uint32_t)eng_match_fail(m, CN_ENOMEM);
    if (n) memcpy(m->texts + m->n_texts, p, n);
    m->n_texts += n;
    uint32_t place = place_of(m, (struct eng_str){m->texts + s.at, n});
    memmove(m->order + place + 1, m->order + place, (i - place) * sizeof *m->order);
    m->order[place] = i;
    uint32_t *head = &m->heads[SEEN][s.hash & (m->n_heads[SEEN] - 1)];
    s.next = *head;
    *head = i + 1;
    m->seen[i] = s;
    return m->n_seen++;
}

void eng_seen_undo(struct eng_match *m, uint32_t n_cells, uint32_t n_seen)
{
    uint32_t kept = 0, before = m->n_seen;
    /* a list of members stays: parser states that are found again may have it */
    while (m->n_cells > n_cells && m->cells[m->n_cells - 1].text) {
        const struct eng_cell *c = &m->cells[--m->n_cells];
        m->heads[CELLS][c->hash & (m->n_heads[CELLS] - 1)] = c->next;
        m->seen[c->value].cells = c->same;
    }
    while (m->n_seen > n_seen && !m->seen[m->n_seen - 1].cells) {
        const struct eng_seen *s = &m->seen[--m->n_seen];
        m->heads[SEEN][s->hash & (m->n_heads[SEEN] - 1)] = s->next;
        m->n_texts = s->at;
    }
    for (uint32_t i = 0; i < before && m->n_seen < before; i++)
        if (m->order[i] < m->n_seen) m->order[kept++] = m->order[i];
}
