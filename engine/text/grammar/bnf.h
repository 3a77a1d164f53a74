/* bnf: a grammar as its text has it, on its way into the compiled form (private to engine/text).
 *
 * A reader (gbnf.c, lark.c) makes a tree of nodes for each rule; eng_bnf_compile turns the rules
 * into an ir. Lexemes are much cheaper to follow than rules, so whatever is regular becomes one:
 *   bnf_regular.c  finds the expression of each rule and node that has one: rules are inlined where
 *                  no recursion is in the way, and recursion at the right or left end alone is
 *                  solved as linear equations (Arden's rule)
 *   bnf_emit.c     writes the rules that are left, and lexemes for whatever is regular in them
 *
 * Nodes are made from the leaves up, and one rule after the other: the nodes of a rule are
 * neighbours, each after its children, and each has one parent. */
#ifndef ENGINE_TEXT_GRAMMAR_BNF_H
#define ENGINE_TEXT_GRAMMAR_BNF_H

#include "engine/text/grammar/ranges.h"
#include "engine/text/grammar/source.h"
#include "engine/text/vocab_impl.h"

#define ENG_BNF_NONE     UINT32_MAX /* no node, no rule, no expression; or something has failed */
#define ENG_BNF_DEPTH    200        /* most parentheses in one another */
#define ENG_BNF_RULES    10000      /* most rules */
#define ENG_BNF_WEIGHT   32768      /* most of an expression that rules are inlined into */
#define ENG_BNF_HEIGHT   300        /* likewise */
#define ENG_BNF_REPEATED 10000      /* highest bound of a repetition that is no expression */

enum eng_bnf_kind {
    ENG_BNF_RX,     /* an expression */
    ENG_BNF_SYM,    /* a symbol of the ir that is there already; not empty */
    ENG_BNF_RULE,   /* a reference to a rule */
    ENG_BNF_CAT,    /* one after the other */
    ENG_BNF_OR,     /* any of them */
    ENG_BNF_AND,    /* all of them: of a terminal */
    ENG_BNF_NOT,    /* every text that is not of it: of a terminal */
    ENG_BNF_REPEAT, /* lo to hi times */
    ENG_BNF_TOKENS, /* any one token but some. How many tokens a text has is not known, but whether
                     * it contains a certain one is: it must be repeated by * or + */
};

struct eng_bnf_node {
    uint8_t kind;  /* enum eng_bnf_kind */
    bool null;     /* may be empty */
    uint32_t a, n; /* RX, SYM, RULE: which. NOT, REPEAT: a is the child. Others: kids[a .. a + n) */
    uint32_t lo, hi; /* REPEAT */
    uint32_t parent; /* ENG_BNF_NONE: the rule's body */
    uint32_t rule;   /* it is in the body of this one */
    uint32_t next;   /* RULE: the next reference to that rule */
    uint32_t rx;     /* expression of it; ENG_BNF_NONE: it has none */
    uint32_t weight; /* parts that rx has in sequence */
    uint32_t height; /* levels of nesting in rx */
    uint32_t at;     /* place in the text */
};

struct eng_bnf_rule {
    uint32_t body;               /* ENG_BNF_NONE: not defined */
    uint32_t first, end;         /* its nodes */
    uint32_t refs;               /* first reference */
    uint32_t at;                 /* where it is defined, or first referred to */
    uint32_t rx, weight, height; /* as in a node */
    bool terminal; /* of Lark: an expression by itself, without anything ignored in it */
    bool null;
    struct eng_sym sym;      /* its texts except the empty one */
    struct eng_sym optional; /* all its texts */
};

struct eng_bnf {
    struct eng_source src;
    struct eng_ir *ir;
    struct eng_bnf_node *nodes;
    uint32_t *kids;
    struct eng_sym *syms;
    struct eng_bnf_rule *rules;
    uint32_t n_nodes, n_kids, n_syms, n_rules;
    size_t nodes_cap, kids_cap, syms_cap, rules_cap;
    uint32_t first; /* node of the rule that is being read */
    struct eng_keys names;
    struct eng_strmap by_name;
    unsigned depth;
    enum eng_spelling spelling; /* of its texts: ENG_SPELL_RAW, unless they are inside a string */
    uint32_t ignore;            /* rx: text that may precede each terminal; ENG_RX_EMPTY: none */
};

/* src has been filled by eng_source_init, and spelling set (0 is ENG_SPELL_RAW). CN_ENOMEM. */
int eng_bnf_init(struct eng_bnf *b, struct eng_ir *ir);
void eng_bnf_fini(struct eng_bnf *b);

/* The rule of that name, defined or not. ENG_BNF_NONE: failed. */
uint32_t eng_bnf_rule(struct eng_bnf *b, const char *name, size_t n, size_t at);
struct eng_str eng_bnf_name(const struct eng_bnf *b, uint32_t rule);
/* All nodes since the last definition are the rule's; body is its root. Fails if it has one. */
void eng_bnf_define(struct eng_bnf *b, uint32_t rule, uint32_t body, size_t at);

/* Nodes. All return ENG_BNF_NONE when something has failed. */
uint32_t eng_bnf_rx(struct eng_bnf *b, uint32_t rx, uint32_t weight, uint32_t height);
uint32_t eng_bnf_sym(struct eng_bnf *b, struct eng_sym s);
uint32_t eng_bnf_ref(struct eng_bnf *b, uint32_t rule, size_t at);
uint32_t eng_bnf_tokens(struct eng_bnf *b, uint32_t any_number, size_t at);
uint32_t eng_bnf_list(struct eng_bnf *b, enum eng_bnf_kind kind, const uint32_t *kids, size_t n);
uint32_t eng_bnf_not(struct eng_bnf *b, uint32_t kid);
uint32_t eng_bnf_repeat(struct eng_bnf *b, uint32_t kid, uint32_t lo, uint32_t hi, size_t at);
/* Nodes that will be the children of one. */
struct eng_bnf_kids {
    uint32_t *v;
    size_t n, cap;
};
void eng_bnf_push(struct eng_bnf *b, struct eng_bnf_kids *kids, uint32_t node);
/* The node of them (eng_bnf_list); frees the list. */
uint32_t eng_bnf_close(struct eng_bnf *b, enum eng_bnf_kind kind, struct eng_bnf_kids *kids);
/* The literal's text, and a set of characters (tidy), each as a node. */
uint32_t eng_bnf_text(struct eng_bnf *b, const char *text, size_t n);
uint32_t eng_bnf_class(struct eng_bnf *b, const struct eng_ranges *set);

/* Enters parentheses; false: failed. */
bool eng_bnf_enter(struct eng_bnf *b, size_t at);
static inline void eng_bnf_leave(struct eng_bnf *b)
{
    b->depth--;
}

/* Fails if a rule that is referred to is not defined. */
void eng_bnf_all_defined(struct eng_bnf *b);
/* The expression of a terminal, before anything else is compiled; ENG_BNF_NONE: failed. */
uint32_t eng_bnf_terminal(struct eng_bnf *b, uint32_t rule);
/* The symbol of everything that `root` stands for. Errors: CN_EINVAL (rules that are not defined),
 * CN_ELIMIT, CN_ENOMEM, CN_ECANCELLED; the ir's too. */
int eng_bnf_compile(struct eng_bnf *b, uint32_t root, struct eng_sym *out);

/* ---- parts of it ----------------------------------------------------------------------------- */

/* Rules that refer to each other, dependencies first: order[start[i] .. start[i + 1]) is a group.
 * Only rules that root reaches. */
struct eng_bnf_groups {
    uint32_t *order, *start;
    uint32_t n;
};
int eng_bnf_group(struct eng_bnf *b, uint32_t root, struct eng_bnf_groups *out);
void eng_bnf_groups_fini(struct eng_bnf_groups *g);
/* Finds expressions; afterwards the rx of every rule and node that is reached is known. */
int eng_bnf_find_regular(struct eng_bnf *b, const struct eng_bnf_groups *g);
/* n times x: x? x? x? is x{0,3}, which is followed much faster. */
uint32_t eng_bnf_power(struct eng_bnf *b, uint32_t x, uint32_t n);
/* Solves a group whose rules recur at one end only; leaves any other group as it is. */
int eng_bnf_solve(struct eng_bnf *b, const uint32_t *rules, uint32_t n);
/* The rules that have no expression. */
int eng_bnf_emit(struct eng_bnf *b, uint32_t root, const struct eng_bnf_groups *g,
                 struct eng_sym *out);

#endif
