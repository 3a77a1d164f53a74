/* What the files of schema share.
 *
 * Failures stay: the first one is in sc->code and sc->err, and everything else then ends soon.
 * Functions that return ids return harmless ones by then, so that a caller looks at sc->code where
 * it would do something with them. */
#ifndef ENGINE_TEXT_GRAMMAR_SCHEMA_IMPL_H
#define ENGINE_TEXT_GRAMMAR_SCHEMA_IMPL_H

#include "engine/text/grammar/schema.h"
#include "engine/text/grammar/spell.h"

#define ENG_SC_NONE UINT32_MAX

/* Limits. Messages name them. */
enum {
    ENG_SC_DEPTH = 200,         /* levels of schemas and references inside of one another */
    ENG_SC_STEPS = 6000000,     /* of work, of some 10 ns each */
    ENG_SC_ALTERNATIVES = 2000, /* of one value's objects and arrays */
    ENG_SC_CLASSES = 64,        /* of names, by the patterns that they match */
    ENG_SC_PLACES = 10000,      /* items of an array that have schemas of their own */
};

/* ---- keywords (schema_words.c) --------------------------------------------------------------- */

enum eng_sc_word {
#define WORD(id, name, shape) ENG_W_##id,
#include "engine/text/grammar/schema_words.def"
#undef WORD
    ENG_W_NONE,
};
enum eng_sc_shape {
    ENG_SHAPE_ANY,
    ENG_SHAPE_REFUSED, /* not supported, whatever it is */
    ENG_SHAPE_SCHEMA,
    ENG_SHAPE_SCHEMAS, /* a list, not empty */
    ENG_SHAPE_MAP,     /* names to schemas */
    ENG_SHAPE_ITEMS,   /* a schema or a list of schemas */
    ENG_SHAPE_DEPENDENCIES,
    ENG_SHAPE_TEXT,
    ENG_SHAPE_TEXTS,
    ENG_SHAPE_TEXTS_MAP,
    ENG_SHAPE_LIST,
    ENG_SHAPE_TYPE,
    ENG_SHAPE_FLAG,
    ENG_SHAPE_COUNT, /* a whole number, 0 or more; 2.0 is one */
    ENG_SHAPE_NUMBER,
    ENG_SHAPE_POSITIVE,
    ENG_SHAPE_BOUND, /* a number; or true, of draft 4 */
};

/* The values of JSON by what conditions on them look like. */
enum eng_sc_type {
    ENG_SC_NULL,
    ENG_SC_FALSE,
    ENG_SC_TRUE,
    ENG_SC_NUMBER,
    ENG_SC_STRING,
    ENG_SC_ARRAY,
    ENG_SC_OBJECT,
    ENG_SC_TYPES,
};

/* Where a schema stands in the document. */
struct eng_sc_place {
    json_t *json; /* an object */
    uint32_t resource;
    uint32_t parent;  /* place; ENG_SC_NONE: none */
    const char *word; /* keyword of the parent; NULL: none, or a pointer led here (name) */
    const char *name; /* below it; NULL: index, if that is not ENG_SC_NONE */
    uint32_t index;
    uint8_t types; /* bits that `type` lets through */
    bool integer;  /* of numbers, whole ones only */
    bool checked;
    bool trivial;          /* constrains nothing */
    enum eng_sc_word only; /* the only keyword with a meaning; ENG_W_NONE: there are more */
    bool following;        /* its $ref is being followed */
};
/* A part of the document with a URI of its own. */
struct eng_sc_resource {
    const char *uri; /* without a fragment */
    uint32_t place;
    bool dynamic; /* has a $dynamicAnchor */
};

/* A schema as it is meant: a place, and the resources that evaluation came through, which
 * $dynamicRef asks for. Or one that is in no document: a constant, or any of some literals. */
enum eng_sc_node_kind { ENG_NODE_TRUE, ENG_NODE_PLACE, ENG_NODE_CONST, ENG_NODE_ANY };
struct eng_sc_node {
    uint8_t kind;
    uint32_t place;    /* of CONST and ANY: the one it came from, for messages */
    uint32_t scope;    /* PLACE: index of eng_sc.scopes */
    json_t *json;      /* CONST */
    uint32_t first, n; /* ANY: of lits */
};
/* A literal is a schema or its negation: node << 1, | 1. Node 0 is `true`. */
enum { ENG_LIT_TRUE, ENG_LIT_FALSE };

/* ---- formulas (schema_form.c) ---------------------------------------------------------------- */

enum { ENG_F_FALSE, ENG_F_TRUE };
enum eng_sc_form_kind {
    ENG_F_CONST,
    ENG_F_AND, /* a: first of args, b: how many */
    ENG_F_OR,
    ENG_F_SCOPE, /* a: form, within which unevaluated* looks; lit: what that demands */
    /* numbers */
    ENG_A_INTEGER,
    ENG_A_MIN, /* number; a: exclusive */
    ENG_A_MAX,
    ENG_A_MULTIPLE,
    ENG_A_NUMBERS, /* json: a value, or with a a list of values */
    /* strings */
    ENG_A_LENGTH, /* a to b */
    ENG_A_PATTERN,
    ENG_A_FORMAT,
    ENG_A_TEXTS, /* as NUMBERS */
    /* objects */
    ENG_A_MEMBERS,  /* properties, patternProperties, additionalProperties of node */
    ENG_A_REQUIRED, /* json: list of names */
    ENG_A_PRESENT,  /* a: name */
    ENG_A_ABSENT,
    ENG_A_VALUE,       /* name a is there, with lit */
    ENG_A_LIMIT,       /* if name a is there, it has lit */
    ENG_A_NEEDS,       /* if name a is there, b is */
    ENG_A_NAMES,       /* every name satisfies lit */
    ENG_A_SIZE,        /* a to b members or items */
    ENG_A_SOME_MEMBER, /* one whose name is of a class (a: enum eng_sc_class) has lit */
    ENG_A_THIS,        /* json: exactly this object or array */
    /* arrays */
    ENG_A_ITEMS,    /* prefixItems, items of node */
    ENG_A_CONTAINS, /* a to b items have lit */
    ENG_A_UNIQUE,
    ENG_A_ITEM,      /* item a is there, with lit */
    ENG_A_SOME_ITEM, /* item a or a later one has lit */
};
/* The names that ENG_A_SOME_MEMBER is about. */
enum eng_sc_class {
    ENG_CLASS_PATTERN,    /* that match pattern b (a name's id) */
    ENG_CLASS_ADDITIONAL, /* that are additional for node */
    ENG_CLASS_NAMES,      /* that satisfy literal b */
};
struct eng_sc_form {
    uint8_t kind;
    bool neg;    /* of an atom of numbers or strings, SCOPE or UNIQUE: its negation */
    bool annots; /* unevaluated* can see something in it */
    uint32_t node, lit, a, b;
    union {
        json_t *json;
        const struct eng_decimal *number;
    };
    uint32_t stamp;
    uint32_t rx; /* of strings and numbers, when known */
};

/* ---- goals (schema_goal.c) ------------------------------------------------------------------- */

struct eng_sc_member {
    uint32_t name, goal;
    bool required, loose;
};
struct eng_sc_other { uint32_t rx, goal; }; /* rx: of the name without quotes */
struct eng_sc_item { uint32_t in, out; };   /* goals */
/* One kind of object or array. */
struct eng_sc_alt {
    struct eng_sc_alt *next;
    bool object, sat;
    struct eng_sc_member *members;
    struct eng_sc_other *others;
    struct eng_need *needs; /* indices of members */
    struct eng_sc_item *items, rest;
    uint32_t n_members, n_others, n_needs, n_items;
    uint32_t min, max, min_in, max_in;
    bool unique;
};
/* What a value must satisfy: a set of literals, and what came of it. Goal 0 is impossible. */
struct eng_sc_goal {
    uint32_t first, n; /* of lits, ascending */
    uint8_t empty;     /* 0: not known yet, 1: certainly nothing satisfies it, 2: perhaps */
    bool wanted, sat, reached, has_rule, emitted;
    uint32_t words, number, text; /* rx; text without quotes */
    struct eng_sc_alt *alts, *last;
    struct eng_sym sym;
};

/* ---- a map from bytes to numbers (schema_map.c) ---------------------------------------------- */

struct eng_sc_entry {
    uint64_t hash;
    const void *key;
    uint32_t n, value;
};
struct eng_sc_map {
    uint32_t *slots; /* entry + 1 */
    size_t n_slots;
    struct eng_sc_entry *entries;
    size_t n, cap;
};

/* Names of members, and patterns. */
struct eng_sc_name {
    const char *text;
    const char *json; /* as it is spelled, without quotes; NULL: not made yet */
    size_t json_n;
    uint32_t rx;           /* as a pattern; ENG_SC_NONE: not made yet */
    uint32_t stamp, index; /* of lists that it is in */
};

struct eng_sc {
    struct eng_ir *ir;
    struct eng_schema_opts opts;
    struct cn_error *err;
    int code;
    struct cn_arena arena;
    size_t bytes;    /* outside the arena; both together at most ir->max_bytes */
    uint8_t key[16]; /* of the hashes */
    uint64_t steps;
    unsigned depth;
    uint32_t spread; /* schema_scalar.c: branches that are being tried */
    bool dynamic;    /* the document has a $dynamicRef */
    bool unique;     /* items of some array must differ, by how they are spelled */

    struct eng_sc_place *places;
    struct eng_sc_resource *resources;
    struct eng_sc_node *nodes;
    struct eng_sc_name *names;
    struct eng_sc_form *forms;
    struct eng_sc_goal *goals;
    uint32_t *lits;   /* of goals and of nodes */
    uint32_t *args;   /* of forms */
    uint32_t *tmp;    /* lists that are being built */
    uint32_t *queue;  /* goals to compile */
    uint32_t *scopes; /* scope s: scopes[s] resources, which follow */
    uint32_t n_places, n_resources, n_nodes, n_names, n_forms, n_goals, n_lits, n_args, n_tmp,
        n_queue, n_scopes, stamp;
    size_t cap_places, cap_resources, cap_nodes, cap_names, cap_forms, cap_goals, cap_lits,
        cap_args, cap_tmp, cap_queue, cap_scopes;
    /* json -> place; URI -> resource; (resource, anchor) -> place; a dynamic one; ... */
    struct eng_sc_map by_json, by_uri, by_anchor, by_dynamic, by_scope, by_node, by_name, by_form,
        by_goal, by_lexeme, by_const, by_any, by_scalars;

    /* rx; the numbers when they are made; name_end: from the quote to the colon */
    uint32_t any_text, any_name, plain_number, not_integer, quote, name_end;
};

/* ---- failures, memory (schema.c, schema_map.c) ----------------------------------------------- */

/* Notes the first failure, with the path of the node's place. Returns code. */
int eng_sc_fail(struct eng_sc *sc, uint32_t node, int code, const char *fmt, ...) CN_PRINTF(4, 5);
int eng_sc_fail_at(struct eng_sc *sc, uint32_t place, int code, const char *fmt, ...)
    CN_PRINTF(4, 5);
int eng_sc_nomem(struct eng_sc *sc);
/* Whether the expressions built so far could be built; else that is noted for the node. */
bool eng_sc_rx_ok(struct eng_sc *sc, uint32_t node);
/* Appends a text as it is spelled here, without quotes. */
int eng_sc_spell(const struct eng_sc *sc, const char *s, size_t n, struct cn_buf *out);
/* Counts work; false when there was too much, or a failure before. */
bool eng_sc_step(struct eng_sc *sc, uint64_t n);
/* Enters a level of schemas within schemas; false when that is too deep, or after a failure. */
bool eng_sc_deeper(struct eng_sc *sc, uint32_t node);
/* As cn_grow; false when it failed. */
bool eng_sc_room(struct eng_sc *sc, void *array, size_t *cap, size_t need, size_t size);
void *eng_sc_alloc(struct eng_sc *sc, size_t size); /* from the arena, zeroed; NULL: failed */

/* The value of a key; ENG_SC_NONE: it has none. */
uint32_t eng_sc_get(struct eng_sc *sc, const struct eng_sc_map *m, const void *key, size_t n);
/* Where the value of a key is, ENG_SC_NONE if it is new (the key is copied), until the next call.
 * NULL: failed. */
uint32_t *eng_sc_put(struct eng_sc *sc, struct eng_sc_map *m, const void *key, size_t n);
void eng_sc_map_fini(struct eng_sc_map *m);
/* The id of a name. */
uint32_t eng_sc_name(struct eng_sc *sc, const char *text);
/* Whether an expression (without quotes) has the name. */
bool eng_sc_name_matches(struct eng_sc *sc, uint32_t name, uint32_t rx);
/* The expression of a pattern, which is a name here. node: for messages. */
uint32_t eng_sc_pattern(struct eng_sc *sc, uint32_t node, uint32_t pattern);

/* ---- keywords, places, references ------------------------------------------------------------ */

/* The keyword; ENG_W_NONE: an annotation. */
enum eng_sc_word eng_sc_word(const char *key);
enum eng_sc_shape eng_sc_shape(enum eng_sc_word w);
json_t *eng_sc_at(const struct eng_sc *sc, uint32_t node, enum eng_sc_word w); /* NULL: absent */
/* Whether the shapes of a place's keywords are right; computes its types and so on. */
bool eng_sc_check(struct eng_sc *sc, uint32_t place);
/* A count that was checked, ENG_RX_INF at most. */
uint32_t eng_sc_count(const json_t *v);
/* A number exactly, as its shortest text; NULL: failed. */
const struct eng_decimal *eng_sc_decimal(struct eng_sc *sc, uint32_t node, const json_t *v);
/* Whether two values of JSON are the same: numbers by value, members in any order. */
bool eng_sc_equal(const json_t *a, const json_t *b);

/* Notes all schemas from here on down. parent ENG_SC_NONE: the document, or where a pointer led. */
uint32_t eng_sc_walk(struct eng_sc *sc, json_t *json, const struct eng_sc_place *at);
/* The schema that a reference at node leads to. */
uint32_t eng_sc_refer(struct eng_sc *sc, uint32_t node, const char *ref, bool dynamic);
/* Resolves a reference against a base by RFC 3986, both without a fragment; NULL: failed. */
const char *eng_sc_uri(struct eng_sc *sc, const char *base, const char *ref);
/* The literal of a schema below node; it stands in the document. */
uint32_t eng_sc_lit(struct eng_sc *sc, uint32_t node, json_t *json);
/* As eng_sc_lit, of a place. */
uint32_t eng_sc_lit_of_place(struct eng_sc *sc, uint32_t place, uint32_t scope);
uint32_t eng_sc_lit_const(struct eng_sc *sc, uint32_t node, json_t *value);
/* Any of the literals. */
uint32_t eng_sc_lit_any(struct eng_sc *sc, uint32_t node, const uint32_t *lits, uint32_t n);

/* ---- formulas -------------------------------------------------------------------------------- */

/* What a literal says of values of a type. annots: unevaluated* looks on. */
uint32_t eng_sc_form(struct eng_sc *sc, uint32_t lit, enum eng_sc_type t, bool annots);
uint32_t eng_sc_atom(struct eng_sc *sc, const struct eng_sc_form *f);
void eng_sc_push(struct eng_sc *sc, uint32_t x); /* to tmp */
/* AND or OR of what was pushed since tmp had n; takes it off. */
uint32_t eng_sc_join(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t n);
uint32_t eng_sc_join_two(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t a, uint32_t b);
/* allOf, anyOf, oneOf, if (schema_union.c). */
uint32_t eng_sc_form_union(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *list,
                           enum eng_sc_type t, bool neg, bool annots);
uint32_t eng_sc_form_if(struct eng_sc *sc, uint32_t node, enum eng_sc_type t, bool neg,
                        bool annots);
/* Keywords of numbers and strings, of objects, of arrays (schema_atoms.c, schema_members.c). */
uint32_t eng_sc_form_scalar(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                            enum eng_sc_type t, bool neg);
uint32_t eng_sc_form_object(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                            bool neg, bool annots);
uint32_t eng_sc_form_array(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                           bool neg, bool annots);
/* minItems and maxItems, and the like: least or most. */
uint32_t eng_sc_form_size(struct eng_sc *sc, uint32_t node, const json_t *v, bool least, bool neg);
/* Schemas of the first items, and of the others; NULL: none. Lists in `items` count. */
json_t *eng_sc_prefix(const struct eng_sc *sc, uint32_t node);
json_t *eng_sc_rest(const struct eng_sc *sc, uint32_t node);
uint32_t eng_sc_form_this(struct eng_sc *sc, uint32_t node, json_t *v, enum eng_sc_type t,
                          bool neg);

/* ---- expressions (schema_scalar.c) ----------------------------------------------------------- */

/* The strings of a formula on strings, without quotes; the numbers of one on numbers. */
uint32_t eng_sc_text_rx(struct eng_sc *sc, uint32_t form);
uint32_t eng_sc_number_rx(struct eng_sc *sc, uint32_t form);

/* ---- goals ----------------------------------------------------------------------------------- */

/* Whether a literal is of an enumeration, or of everything but one. */
bool eng_sc_is_enum(struct eng_sc *sc, uint32_t lit);
/* The goal of literals; the list is sorted in place. */
uint32_t eng_sc_goal(struct eng_sc *sc, uint32_t *lits, uint32_t n);
/* True only if nothing satisfies the goal. */
bool eng_sc_goal_empty(struct eng_sc *sc, uint32_t goal);
/* Its formula for a type. */
uint32_t eng_sc_goal_form(struct eng_sc *sc, uint32_t goal, enum eng_sc_type t);
void eng_sc_add_alt(struct eng_sc *sc, uint32_t goal, struct eng_sc_alt *alt);
/* The goal will be compiled. */
void eng_sc_want(struct eng_sc *sc, uint32_t goal);
/* Compiles all wanted goals. */
void eng_sc_compile_goals(struct eng_sc *sc);
/* Finds out which wanted goals can be satisfied. */
void eng_sc_satisfy(struct eng_sc *sc);
/* For an impossible goal: the node of the smallest part found that makes it impossible. */
uint32_t eng_sc_why_not(const struct eng_sc *sc, uint32_t goal);
/* How many values a goal has, at most; ENG_RX_INF: more than `most`, or not known. */
uint32_t eng_sc_values(struct eng_sc *sc, uint32_t goal, uint32_t most);
/* Least and most items that an array can have, equal ones aside; least ENG_RX_INF: it is
 * impossible.
 */
uint32_t eng_sc_shortest(const struct eng_sc *sc, const struct eng_sc_alt *alt);
uint32_t eng_sc_longest(const struct eng_sc *sc, const struct eng_sc_alt *alt);
/* The symbol of a goal; emits what it needs. */
struct eng_sym eng_sc_emit(struct eng_sc *sc, uint32_t root);

/* ---- alternatives (schema_split.c, schema_facts.c, schema_object.c, schema_array.c) ---------- */

/* Within which unevaluated* looks. */
struct eng_sc_scope {
    const struct eng_sc_scope *up;
    uint32_t node, lit;
    bool neg;
};
/* A formula that holds in an alternative, and where in the document's order it stands. */
struct eng_sc_fact {
    const struct eng_sc_fact *next; /* an earlier one */
    uint32_t form;
    const struct eng_sc_scope *scope; /* NULL: none */
    uint64_t from, to;
};
/* An alternative that is being built. */
struct eng_sc_split {
    struct eng_sc *sc;
    uint32_t goal, node; /* node: for messages */
    enum eng_sc_type type;
    const struct eng_sc_fact *facts;
    uint8_t *state;  /* of names */
    uint32_t *trail; /* names whose state was set, and which: id << 2 | bit */
    bool *seen;      /* forms without scope among the facts */
    uint32_t *seen_trail;
    uint32_t n_trail, n_seen_trail, min, max, n_alts;
    size_t cap_state, cap_trail, cap_seen, cap_seen_trail;
};
enum { ENG_NAME_PRESENT = 1, ENG_NAME_ABSENT = 2 };

/* Adds the alternatives of a formula to the goal. */
void eng_sc_split(struct eng_sc *sc, uint32_t goal, enum eng_sc_type t, uint32_t form);
/* Adds an atom to the facts; false when it contradicts them. */
bool eng_sc_assume(struct eng_sc_split *s, const struct eng_sc_fact *f);
/* Whether the facts imply the formula; certainly contradict it. */
bool eng_sc_implied(struct eng_sc_split *s, uint32_t form, const struct eng_sc_scope *scope);
bool eng_sc_contradicted(struct eng_sc_split *s, uint32_t form);
uint8_t eng_sc_name_state(const struct eng_sc_split *s, uint32_t name);
/* Pushes what the facts demand of the value of a name to tmp. exact: patterns, propertyNames and
 * unevaluatedProperties too. */
void eng_sc_name_lits(struct eng_sc_split *s, uint32_t name, bool exact);
/* Whether a fact evaluates the name, or item, within the scope. */
bool eng_sc_evaluated(struct eng_sc_split *s, const struct eng_sc_scope *scope, uint32_t name);
bool eng_sc_in_scope(const struct eng_sc_scope *s, const struct eng_sc_scope *scope);
/* Pushes the names that the facts mention, each once: first those whose order the document says, in
 * that order. Returns how many these are. */
uint32_t eng_sc_names_of(struct eng_sc_split *s);
/* The classes of all other names, with their goals; impossible ones are left out. names: the
 * declared ones, n at tmp[names]. Returns how many. */
uint32_t eng_sc_others(struct eng_sc_split *s, uint32_t names, uint32_t n,
                       struct eng_sc_other out[ENG_SC_CLASSES]);
/* The members of which ENG_A_SOME_MEMBER may be true, or a negated unevaluatedProperties, as a
 * formula; all facts about names are there. */
uint32_t eng_sc_some_member(struct eng_sc_split *s, const struct eng_sc_fact *f);
/* The facts are an alternative of the goal, unless nothing satisfies it. */
void eng_sc_object(struct eng_sc_split *s);
void eng_sc_array(struct eng_sc_split *s);

#endif
