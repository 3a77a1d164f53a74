/* ir: builds grammars in compiled form. See ir.h; recursion.c and cost.c make them ready. */
#include "engine/text/grammar/ir.h"

#include "engine/text/grammar/ir_impl.h"
#include "engine/text/grammar/rx_impl.h"
#include "engine/text/grammar/spell.h"

#include <stdlib.h>

enum { MOST_NEEDS = 1 << 14 }; /* of an object */
/* More items or members than any answer has: a least number beyond it is refused. */
#define MOST_LEAST (1u << 20)

enum { LEXEMES, RULES, SEQS, SYMS, OBJECTS, MEMBERS, OTHERS, NEEDS, ARRAYS, ITEMS };

static const struct eng_sym never = {ENG_SYM_NEVER, 0};

int eng_ir_init(struct eng_ir *ir, enum eng_spelling spelling, size_t max_bytes, uint64_t max_work)
{
    *ir = (struct eng_ir){.spelling = spelling, .max_bytes = max_bytes, .space = ENG_RX_EMPTY};
    return eng_rx_init(&ir->rx, NULL, max_bytes, max_work);
}

void eng_ir_fini(struct eng_ir *ir)
{
    if (!ir) return;
    for (uint32_t i = 0; i < ir->n_rules; i++)
        free(ir->rules[i].seqs);
    free(ir->lexemes);
    free(ir->rules);
    free(ir->seqs);
    free(ir->seq_cost);
    free(ir->syms);
    free(ir->objects);
    free(ir->members);
    free(ir->others);
    free(ir->needs);
    free(ir->arrays);
    free(ir->items);
    free(ir->rule_cost);
    free(ir->object_cost);
    free(ir->array_cost);
    eng_rx_fini(&ir->rx);
    *ir = (struct eng_ir){0};
}

/* Room for `more` elements of one array of the grammar; false: rx.code is set. */
static bool room(struct eng_ir *ir, void *array, int which, uint32_t n, size_t more, size_t size)
{
    if (ir->rx.code) return false;
    ir->bytes += more * size;
    bool full = ir->bytes > ir->max_bytes;
    ir->rx.full |= full;
    if (full || n + more > UINT32_MAX / 16) return eng_rx_fail(&ir->rx, CN_ELIMIT), false;
    if (cn_grow(array, &ir->cap[which], n + more, size))
        return eng_rx_fail(&ir->rx, CN_ENOMEM), false;
    return true;
}

struct eng_sym eng_ir_lexeme(struct eng_ir *ir, uint32_t rx, bool spaced)
{
    if (rx == ENG_RX_NONE || ir->rx.code) return never;
    for (uint32_t i = ir->n_lexemes, look = 64; i-- && look--;) /* of the last ones */
        if (ir->lexemes[i].rx == rx && ir->lexemes[i].spaced == spaced)
            return (struct eng_sym){ENG_SYM_LEXEME, i};
    if (!room(ir, &ir->lexemes, LEXEMES, ir->n_lexemes, 1, sizeof *ir->lexemes)) return never;
    ir->lexemes[ir->n_lexemes] = (struct eng_lexeme){.rx = rx, .spaced = spaced};
    return (struct eng_sym){ENG_SYM_LEXEME, ir->n_lexemes++};
}

struct eng_sym eng_ir_rule(struct eng_ir *ir)
{
    if (!room(ir, &ir->rules, RULES, ir->n_rules, 1, sizeof *ir->rules)) return never;
    ir->rules[ir->n_rules] = (struct eng_rule){0};
    return (struct eng_sym){ENG_SYM_RULE, ir->n_rules++};
}

void eng_ir_add(struct eng_ir *ir, struct eng_sym rule, const struct eng_sym *syms, size_t n)
{
    if (ir->rx.code || rule.kind != ENG_SYM_RULE) return;
    for (size_t i = 0; i < n; i++)
        if (eng_sym_never(syms[i])) return;
    struct eng_rule *r = &ir->rules[rule.id];
    if (!room(ir, &ir->syms, SYMS, ir->n_syms, n + 1, sizeof *ir->syms) ||
        !room(ir, &ir->seqs, SEQS, ir->n_seqs, 1, sizeof *ir->seqs))
        return;
    if (cn_grow(&r->seqs, &r->cap, r->n + (size_t)1, sizeof *r->seqs)) {
        eng_rx_fail(&ir->rx, CN_ENOMEM);
        return;
    }
    r->seqs[r->n++] = ir->n_seqs;
    ir->seqs[ir->n_seqs++] = (struct eng_run_of){ir->n_syms, (uint32_t)n};
    if (n) memcpy(&ir->syms[ir->n_syms], syms, n * sizeof *syms);
    ir->n_syms += (uint32_t)n;
}

/* Appends n elements to an array of the grammar; where they are. */
#define APPEND(ir, array, which, count, list, n)                                                   \
    append(ir, &(ir)->array, which, &(ir)->count, list, n, sizeof *(ir)->array)

static struct eng_run_of append(struct eng_ir *ir, void *array, int which, uint32_t *count,
                                const void *list, size_t n, size_t size)
{
    struct eng_run_of out = {*count, (uint32_t)n};
    if (!n || !room(ir, array, which, *count, n, size)) return (struct eng_run_of){0};
    char *to;
    memcpy(&to, array, sizeof to);
    memcpy(to + *count * size, list, n * size);
    *count += (uint32_t)n;
    return out;
}

/* Needs by the member that has them: those of member i are at[first[i]] to at[first[i + 1]]. */
static void sort_needs(const struct eng_need *needs, size_t n, size_t n_members, uint32_t *first,
                       uint32_t *at)
{
    memset(first, 0, (n_members + 1) * sizeof *first);
    for (size_t i = 0; i < n; i++)
        first[needs[i].has + 1]++;
    for (size_t i = 0; i < n_members; i++)
        first[i + 1] += first[i];
    for (size_t i = n; i--;)
        at[--first[needs[i].has + 1]] = needs[i].needs;
    memmove(first, first + 1, n_members * sizeof *first);
    first[n_members] = (uint32_t)n;
}

/* Adds the needs, and the needs of what is needed: has -> needs -> more gives has -> more. */
static struct eng_run_of add_needs(struct eng_ir *ir, const struct eng_need *needs, size_t n,
                                   size_t n_members)
{
    struct eng_run_of out = {ir->n_needs, 0};
    uint32_t *pending = cn_malloc_array(n_members, sizeof *pending);
    uint32_t *met = cn_calloc(n_members, sizeof *met); /* 1 + the member that it was met for */
    uint32_t *first = cn_malloc_array(n_members + 1, sizeof *first);
    uint32_t *at = cn_malloc_array(n, sizeof *at);
    bool ok = pending && met && first && at;
    if (!ok) eng_rx_fail(&ir->rx, CN_ENOMEM);
    if (ok) sort_needs(needs, n, n_members, first, at);
    for (uint32_t has = 0; has < n_members && !ir->rx.code; has++) {
        size_t n_pending = 1;
        met[pending[0] = has] = has + 1;
        while (n_pending && !ir->rx.code) {
            uint32_t from = pending[--n_pending];
            for (uint32_t i = first[from]; i < first[from + 1]; i++) {
                if (met[at[i]] == has + 1) continue;
                met[pending[n_pending++] = at[i]] = has + 1;
                struct eng_need d = {has, at[i]};
                out.n += APPEND(ir, needs, NEEDS, n_needs, &d, 1).n;
                if (out.n > MOST_NEEDS) eng_rx_fail(&ir->rx, CN_ELIMIT);
            }
        }
    }
    free(pending);
    free(met);
    free(first);
    free(at);
    return out;
}

struct eng_sym eng_ir_object(struct eng_ir *ir, const struct eng_object *of,
                             const struct eng_member *members, size_t n_members,
                             const struct eng_other *others, size_t n_others,
                             const struct eng_need *needs, size_t n_needs)
{
    struct eng_object o = {.min = of->min, .max = of->max, .bare = of->bare};
    if (o.min > o.max) return never;
    if (o.min > MOST_LEAST) eng_rx_fail(&ir->rx, CN_ELIMIT);
    o.members = APPEND(ir, members, MEMBERS, n_members, members, n_members);
    for (uint32_t i = 0; i < o.members.n; i++)
        ir->members[o.members.first + i].matters = members[i].loose;
    for (size_t i = 0; i < n_needs && o.members.n; i++)
        ir->members[o.members.first + needs[i].has].matters =
            ir->members[o.members.first + needs[i].needs].matters = true;
    o.others = APPEND(ir, others, OTHERS, n_others, others, n_others);
    if (n_needs && o.members.n) o.needs = add_needs(ir, needs, n_needs, o.members.n);
    if (!room(ir, &ir->objects, OBJECTS, ir->n_objects, 1, sizeof *ir->objects)) return never;
    ir->objects[ir->n_objects] = o;
    return (struct eng_sym){ENG_SYM_OBJECT, ir->n_objects++};
}

struct eng_sym eng_ir_array(struct eng_ir *ir, const struct eng_array *a,
                            const struct eng_item *items, size_t n)
{
    struct eng_array copy = *a;
    if (a->min > a->max || a->min_in > a->max_in) return never;
    if (a->min > MOST_LEAST || a->min_in > MOST_LEAST) eng_rx_fail(&ir->rx, CN_ELIMIT);
    copy.items = APPEND(ir, items, ITEMS, n_items, items, n);
    if (!room(ir, &ir->arrays, ARRAYS, ir->n_arrays, 1, sizeof *ir->arrays)) return never;
    ir->arrays[ir->n_arrays] = copy;
    return (struct eng_sym){ENG_SYM_ARRAY, ir->n_arrays++};
}

/* ---- ready ----------------------------------------------------------------------------------- */

static int weigh_lexemes(struct eng_ir *ir)
{
    for (uint32_t i = 0; i < ir->n_lexemes; i++) {
        struct eng_lexeme *l = &ir->lexemes[i];
        l->full = l->spaced ? eng_rx_cat(&ir->rx, ir->space, l->rx) : l->rx;
        l->cost =
            eng_rx_live(&ir->rx, l->rx) ? eng_rx_tokens(&ir->rx, l->rx, ir->trie) : UINT32_MAX;
    }
    return ir->rx.code;
}

bool eng_ir_goes_on(struct eng_ir *ir)
{
    struct eng_rx *r = &ir->rx;
    if (r->keep_going && !r->keep_going(r->arg)) eng_rx_fail(r, CN_ECANCELLED);
    return !r->code;
}

int eng_ir_finish(struct eng_ir *ir, struct eng_sym root, struct cn_error *err)
{
    static const char marks[ENG_N_MARKS] = "{}[],";
    /* a model writes no white space in front of commas and colons */
    bool any = ir->spelling == ENG_SPELL_JSON_ANY;
    int rc;
    ir->root = root;
    for (int i = 0; i < ENG_N_MARKS; i++)
        ir->marks[i] =
            eng_ir_lexeme(ir, eng_rx_literal(&ir->rx, &marks[i], 1), i != ENG_COMMA || any).id;
    if (ir->spelling != ENG_SPELL_RAW) {
        ir->any_char = eng_spell_any(&ir->rx, ir->spelling);
        ir->any_spelled = eng_spell_any(&ir->rx, ENG_SPELL_JSON_ANY);
    }
    ir->colon = eng_rx_byte(&ir->rx, ':', ':');
    if (any) ir->colon = eng_rx_cat(&ir->rx, ir->space, ir->colon);
    for (uint32_t i = 0; i < ir->n_others; i++) {
        uint32_t name = eng_rx_cat(&ir->rx, ir->others[i].name, ir->colon);
        ir->others[i].lexeme = eng_ir_lexeme(ir, name, true).id;
    }
    rc = ir->rx.code;
    if (!rc) rc = weigh_lexemes(ir);
    ir->trie = NULL; /* a vocabulary may go while its grammars stay */
    if (!rc) rc = eng_ir_unwind(ir, err);
    if (!rc) rc = eng_ir_weigh(ir);
    if (rc == CN_ELIMIT) return cn_fail(err, rc, "the grammar is too large or too complex");
    if (rc) return rc == CN_EUNSUPP ? rc : cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    if (eng_ir_cost(ir, root) == UINT32_MAX)
        return cn_fail(err, CN_EINVAL, "nothing satisfies it: no answer would be possible");
    return 0;
}
