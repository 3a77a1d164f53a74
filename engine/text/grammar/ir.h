/* ir: a grammar in compiled form (private to engine/text).
 *
 * The front ends (schema*.c, gbnf.c, lark.c, and regular expressions and choices in compile.c)
 * build it; then it is immutable, and match.c follows it. It is a context-free grammar whose
 * terminals are lexemes: regular expressions over bytes (rx.h). Two further kinds of symbol are
 * JSON objects and arrays: what may follow in one depends on counts and on names and items seen so
 * far, which rules could only say by a state each.
 *
 * JSON texts: a lexeme is one token of JSON (a number, a string with its quotes, a name with its
 * colon). White space may stand in front of every lexeme with `spaced`, except the very first.
 *
 * Lengths are in tokens: each lexeme's shortest text is cut into the longest tokens there are. So
 * an answer of that length exists, and there may be shorter ones.
 *
 * Symbols are small values; ids index the arrays below. Building functions set `rx.code` when they
 * fail (CN_ENOMEM, CN_ELIMIT), which stays, and then return ENG_SYM_NEVER. */
#ifndef ENGINE_TEXT_GRAMMAR_IR_H
#define ENGINE_TEXT_GRAMMAR_IR_H

#include "engine/text/grammar/rx.h"

enum eng_sym_kind {
    ENG_SYM_NEVER, /* no text at all */
    ENG_SYM_LEXEME,
    ENG_SYM_RULE,
    ENG_SYM_OBJECT,
    ENG_SYM_ARRAY,
};
struct eng_sym { uint32_t kind : 3, id : 29; };
static inline bool eng_sym_never(struct eng_sym s)
{
    return s.kind == ENG_SYM_NEVER;
}

struct eng_lexeme {
    uint32_t rx;
    bool spaced;   /* white space may stand in front */
    uint32_t full; /* rx with that white space, by eng_ir_finish */
    uint32_t cost; /* least tokens, likewise; UINT32_MAX: no text belongs to it */
};
/* A run of symbols: syms[first .. first + n). n may be 0. */
struct eng_run_of { uint32_t first, n; };
/* Alternatives, a list of sequences: the rule is any of them. */
struct eng_rule {
    uint32_t *seqs, n;
    size_t cap;
};

/* A declared member of an object. Members that are not loose stand in the order of the list; loose
 * ones may stand anywhere after all others that are not loose, among undeclared members. */
struct eng_member {
    uint32_t name; /* lexeme: the name as a JSON string, and a colon */
    struct eng_sym value;
    bool required, loose;
    bool matters; /* by eng_ir_object: whether it is there matters later: it is loose, or of a need
                   */
};
/* Undeclared members: each name that matches one of them. The names of two kinds are disjoint, and
 * do not include declared ones. */
struct eng_other {
    uint32_t name; /* rx of the name as it is written, quotes included, without the colon */
    struct eng_sym value;
    uint32_t lexeme; /* the name and a colon, by eng_ir_finish */
};
/* If member `has` is there, member `needs` must be, too (indices into the object's members). */
struct eng_need { uint32_t has, needs; };
struct eng_object {
    struct eng_run_of members, others, needs;
    uint32_t min, max; /* members in all; ENG_RX_INF: any number */
    bool bare;         /* names are as they are, without quotes */
};
/* One place of an array. `in` counts for `contains`, `out` does not; their texts are disjoint.
 * Without `contains` every item is `out`. */
struct eng_item { struct eng_sym in, out; };
struct eng_array {
    struct eng_run_of items; /* of the first places */
    struct eng_item rest;    /* of the others */
    uint32_t min, max;       /* items in all */
    uint32_t min_in, max_in; /* of kind `in` */
    bool unique;             /* no two items have the same value */
};

/* How characters may be spelled (spell.h). */
enum eng_spelling {
    ENG_SPELL_RAW,      /* as they are: not JSON */
    ENG_SPELL_JSON,     /* JSON strings, one spelling a character: what a model may write */
    ENG_SPELL_JSON_ANY, /* JSON strings, every spelling: what a checker accepts */
};

enum eng_json_mark {
    ENG_OPEN_OBJECT,
    ENG_CLOSE_OBJECT,
    ENG_OPEN_ARRAY,
    ENG_CLOSE_ARRAY,
    ENG_COMMA,
    ENG_N_MARKS
};

struct eng_ir {
    struct eng_rx rx;
    enum eng_spelling spelling;
    /* Of the vocabulary, until eng_ir_finish; NULL: a token is a byte. */
    const struct eng_trie *trie;
    uint32_t space;       /* rx: white space in front of a spaced lexeme; may be empty */
    uint32_t any_char;    /* rx: a character of a JSON string; by eng_ir_finish; 0: not JSON */
    uint32_t any_spelled; /* rx: the same in every spelling */
    uint32_t colon;       /* rx: a colon, with that in front of it; by eng_ir_finish */
    struct eng_lexeme *lexemes;
    struct eng_rule *rules;
    struct eng_run_of *seqs; /* into syms */
    uint32_t *seq_cost;      /* least tokens, by eng_ir_finish */
    struct eng_sym *syms;
    struct eng_object *objects;
    struct eng_member *members;
    struct eng_other *others;
    struct eng_need *needs;
    struct eng_array *arrays;
    struct eng_item *items;
    uint32_t n_lexemes, n_rules, n_seqs, n_syms, n_objects, n_members, n_others, n_needs, n_arrays,
        n_items;
    size_t cap[10]; /* of the arrays, in the order of the counts */
    struct eng_sym root;
    uint32_t marks[ENG_N_MARKS]; /* lexemes of JSON's marks, by eng_ir_finish */
    /* Least tokens of each, by eng_ir_finish; UINT32_MAX: none exists. */
    uint32_t *rule_cost, *object_cost, *array_cost;
    size_t bytes, max_bytes; /* of the arrays */
};

/* max_bytes and max_work as in eng_rx_init; the arrays may take max_bytes as well. */
int eng_ir_init(struct eng_ir *ir, enum eng_spelling spelling, size_t max_bytes, uint64_t max_work);
void eng_ir_fini(struct eng_ir *ir);

/* Equal lexemes are one. */
struct eng_sym eng_ir_lexeme(struct eng_ir *ir, uint32_t rx, bool spaced);
/* A new rule without alternatives: refer to it before it is complete, so that grammars can be
 * recursive. A rule that gets none is ENG_SYM_NEVER in the end. */
struct eng_sym eng_ir_rule(struct eng_ir *ir);
/* Adds an alternative: n symbols one after the other (copied). One that holds ENG_SYM_NEVER is left
 * out. */
void eng_ir_add(struct eng_ir *ir, struct eng_sym rule, const struct eng_sym *syms, size_t n);
/* of->members, others and needs are ignored: the lists have them, and are copied. */
struct eng_sym eng_ir_object(struct eng_ir *ir, const struct eng_object *of,
                             const struct eng_member *members, size_t n_members,
                             const struct eng_other *others, size_t n_others,
                             const struct eng_need *needs, size_t n_needs);
/* a->items is ignored: items has n of them. */
struct eng_sym eng_ir_array(struct eng_ir *ir, const struct eng_array *a,
                            const struct eng_item *items, size_t n);
/* Makes the grammar ready: left recursion is taken out of its rules, and least lengths are
 * computed. CN_EINVAL: no text belongs to it. CN_EUNSUPP: a rule begins with itself after something
 * that may be empty. Errors: rx.code. */
int eng_ir_finish(struct eng_ir *ir, struct eng_sym root, struct cn_error *err);

#endif
