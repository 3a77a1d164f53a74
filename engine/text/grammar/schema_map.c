/* schema: memory, maps from bytes to numbers, names. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

enum { LOOKUP = 6, DERIVATIVE = 8 }; /* steps that they count as */
enum { ASK_EVERY = 65536 };          /* steps, whether to go on */

int eng_sc_nomem(struct eng_sc *sc)
{
    return eng_sc_fail_at(sc, ENG_SC_NONE, CN_ENOMEM, "out of memory");
}

bool eng_sc_step(struct eng_sc *sc, uint64_t n)
{
    struct eng_rx *r = &sc->ir->rx;
    uint64_t before = sc->steps / ASK_EVERY;
    sc->steps += n;
    if (sc->steps + DERIVATIVE * r->work > ENG_SC_STEPS)
        eng_sc_fail_at(sc, ENG_SC_NONE, CN_ELIMIT,
                       "the schema is too complex: it takes more than %d steps to compile",
                       ENG_SC_STEPS);
    if (sc->steps / ASK_EVERY != before && r->keep_going && !r->keep_going(r->arg))
        eng_sc_fail_at(sc, ENG_SC_NONE, CN_ECANCELLED, "%s", cn_err_info(CN_ECANCELLED)->text);
    return !sc->code;
}

static bool too_large(struct eng_sc *sc)
{
    sc->ir->rx.full = true;
    eng_sc_fail_at(sc, ENG_SC_NONE, CN_ELIMIT, "the schema is too large: it takes more than %s",
                   cn_size(sc->ir->max_bytes).text);
    return false;
}

/* Notes memory that was taken. */
static bool take(struct eng_sc *sc, size_t n)
{
    sc->bytes += n;
    return sc->bytes + sc->arena.used <= sc->ir->max_bytes || too_large(sc);
}

bool eng_sc_room(struct eng_sc *sc, void *array, size_t *cap, size_t need, size_t size)
{
    size_t had = *cap;
    if (cn_grow(array, cap, need, size)) return !eng_sc_nomem(sc);
    if (*cap > had) take(sc, (*cap - had) * size);
    return !sc->code;
}

void *eng_sc_alloc(struct eng_sc *sc, size_t size)
{
    void *p = cn_arena_alloc(&sc->arena, size);
    if (!p && sc->arena.used + size > sc->arena.max)
        too_large(sc);
    else if (!p)
        eng_sc_nomem(sc);
    return p;
}

/* ---- maps ------------------------------------------------------------------------------------ */

static bool more_slots(struct eng_sc *sc, struct eng_sc_map *m)
{
    size_t n = m->n_slots ? m->n_slots * 2 : 64;
    uint32_t *slots = cn_calloc(n, sizeof *slots);
    if (!slots) {
        eng_sc_nomem(sc);
        return false;
    }
    for (size_t i = 0; i < m->n; i++) {
        size_t at = m->entries[i].hash & (n - 1);
        while (slots[at])
            at = (at + 1) & (n - 1);
        slots[at] = (uint32_t)i + 1;
    }
    take(sc, (n - m->n_slots) * sizeof *slots);
    free(m->slots);
    m->slots = slots;
    m->n_slots = n;
    return true;
}

/* The slot of a key, or the free one where it belongs. */
static size_t slot_of(const struct eng_sc_map *m, uint64_t hash, const void *key, size_t n)
{
    size_t at = hash & (m->n_slots - 1);
    for (; m->slots[at]; at = (at + 1) & (m->n_slots - 1)) {
        const struct eng_sc_entry *e = &m->entries[m->slots[at] - 1];
        if (e->hash == hash && e->n == n && (!n || memcmp(e->key, key, n) == 0)) break;
    }
    return at;
}

uint32_t eng_sc_get(struct eng_sc *sc, const struct eng_sc_map *m, const void *key, size_t n)
{
    if (!m->n || !eng_sc_step(sc, LOOKUP)) return ENG_SC_NONE;
    size_t at = slot_of(m, cn_siphash13(sc->key, key, n), key, n);
    return m->slots[at] ? m->entries[m->slots[at] - 1].value : ENG_SC_NONE;
}

uint32_t *eng_sc_put(struct eng_sc *sc, struct eng_sc_map *m, const void *key, size_t n)
{
    uint64_t hash = cn_siphash13(sc->key, key, n);
    if (!eng_sc_step(sc, LOOKUP) || (m->n * 2 >= m->n_slots && !more_slots(sc, m))) return NULL;
    size_t at = slot_of(m, hash, key, n);
    if (m->slots[at]) return &m->entries[m->slots[at] - 1].value;
    char *copy = eng_sc_alloc(sc, n + 1);
    if (!copy || !eng_sc_room(sc, &m->entries, &m->cap, m->n + 1, sizeof *m->entries)) return NULL;
    if (n) memcpy(copy, key, n);
    m->entries[m->n] = (struct eng_sc_entry){hash, copy, (uint32_t)n, ENG_SC_NONE};
    m->slots[at] = (uint32_t)++m->n;
    return &m->entries[m->n - 1].value;
}

void eng_sc_map_fini(struct eng_sc_map *m)
{
    free(m->slots);
    free(m->entries);
    *m = (struct eng_sc_map){0};
}

/* ---- names ----------------------------------------------------------------------------------- */

uint32_t eng_sc_name(struct eng_sc *sc, const char *text)
{
    size_t n = strlen(text);
    uint32_t *at = eng_sc_put(sc, &sc->by_name, text, n);
    if (!at) return 0;
    if (*at != ENG_SC_NONE) return *at;
    char *copy = eng_sc_alloc(sc, n + 1);
    if (!copy ||
        !eng_sc_room(sc, &sc->names, &sc->cap_names, sc->n_names + (size_t)1, sizeof *sc->names))
        return 0;
    memcpy(copy, text, n);
    sc->names[sc->n_names] = (struct eng_sc_name){.text = copy, .rx = ENG_SC_NONE};
    return *at = sc->n_names++;
}

int eng_sc_spell(const struct eng_sc *sc, const char *s, size_t n, struct cn_buf *out)
{
    return sc->ir->spelling == ENG_SPELL_RAW ? cn_buf_append(out, s, n)
                                             : cn_buf_json_text(out, s, n);
}

bool eng_sc_name_matches(struct eng_sc *sc, uint32_t name, uint32_t rx)
{
    struct eng_sc_name *m = &sc->names[name];
    if (sc->code || rx == ENG_RX_NONE) return false;
    if (rx == ENG_RX_ALL || rx == sc->any_name) return true;
    if (!m->json) {
        struct cn_buf b;
        cn_buf_init(&b, 0);
        eng_sc_spell(sc, m->text, strlen(m->text), &b);
        if (!b.failed) m->json = cn_arena_strn(&sc->arena, b.len ? b.data : "", b.len);
        m->json_n = b.len;
        cn_buf_fini(&b);
        if (!m->json) {
            eng_sc_nomem(sc);
            return false;
        }
    }
    eng_sc_step(sc, m->json_n);
    return eng_rx_matches(&sc->ir->rx, rx, m->json, m->json_n);
}

uint32_t eng_sc_pattern(struct eng_sc *sc, uint32_t node, uint32_t pattern)
{
    struct eng_sc_name *m = &sc->names[pattern];
    struct cn_error why = {0};
    uint32_t rx = ENG_RX_NONE;
    if (sc->code) return ENG_RX_NONE;
    if (m->rx != ENG_SC_NONE) return m->rx;
    int rc = eng_spell_pattern(&sc->ir->rx, sc->ir->spelling, m->text, strlen(m->text), false, &rx,
                               &why);
    if (rc) {
        eng_sc_fail(sc, node, rc, "the pattern \"%.100s\": %s", m->text, why.message);
        return ENG_RX_NONE;
    }
    if (!eng_sc_rx_ok(sc, node)) return ENG_RX_NONE;
    return sc->names[pattern].rx = rx;
}
