/* grammar: constrained decoding: grammars that an answer must satisfy.
 * Part of engine/text's public header, which includes it. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_H

#include "base/base.h"

#include <jansson.h>

struct eng_reply_format;
struct eng_vocab;

/* ---- compiling (compile.c) ------------------------------------------------------------------- */

enum eng_grammar_kind {
    ENG_GRAMMAR_SCHEMA,      /* JSON texts that satisfy a JSON Schema (schema.h) */
    ENG_GRAMMAR_JSON_OBJECT, /* any JSON object */
    ENG_GRAMMAR_REGEX,       /* a regular expression, which the whole text must match (spell.h) */
    ENG_GRAMMAR_CHOICE,      /* one of a list of texts */
    ENG_GRAMMAR_GBNF,        /* a grammar of llama.cpp (gbnf.h) */
    ENG_GRAMMAR_LARK,        /* a grammar of Lark (lark.h) */
    ENG_GRAMMAR_CALLS,       /* calls of tools, as the model writes them (calls.h) */
};

struct eng_grammar_in {
    enum eng_grammar_kind kind;
    const char *text; /* REGEX, GBNF, LARK; also SCHEMA and CHOICE, as JSON, where json is NULL */
    size_t n;
    json_t *json; /* SCHEMA: the schema. CHOICE: an array of strings. Borrowed, not changed */
    /* Every JSON text that satisfies the schema, however its characters and numbers are spelled,
     * for checking texts; else only one spelling each, for models. */
    bool any_spelling;
    const struct eng_reply_format *reply; /* how the model writes calls: for CALLS and `calls` */
    json_t *calls; /* SCHEMA, JSON_OBJECT: tools that may be called instead; borrowed, or NULL */
    const json_t *inputs; /* of calls: as in struct eng_calls_in; borrowed, or NULL */
    bool many;            /* of calls: one or more; else exactly one */
    bool free;            /* CALLS: for a guide that is `free` */
    bool compact, any_order, plain_formats; /* as in struct eng_schema_opts */
    const struct eng_vocab *vocab; /* finds tokens that a grammar names; NULL: refused there */
    size_t max_bytes;              /* most memory, 0 = default 64 MiB */
    bool *full;                    /* out: whether CN_ELIMIT was for want of memory; may be NULL */
    uint64_t max_work;             /* most derivatives of expressions, 0 = no limit */
    /* Asked now and then; if it returns false, compiling ends with CN_ECANCELLED. May be NULL. */
    bool (*keep_going)(void *arg);
    void *arg;
};

/* Whether answers of this format can be held to their tools where they need not call (guide.h,
 * `free`). */
bool eng_grammar_may_wait(const struct eng_reply_format *f);

/* A compiled grammar: immutable, counted by references. Any thread. */
struct eng_grammar;

/* *out has one reference. Errors: CN_EINVAL (not a grammar, with line and column where there are
 * any, or one that no text satisfies), CN_EUNSUPP (a part, named in the message, that is not
 * supported), CN_ELIMIT, CN_ECANCELLED, CN_ENOMEM. err->param names the place within a schema; else
 * it is empty. */
int eng_grammar_compile(const struct eng_grammar_in *in, struct eng_grammar **out,
                        struct cn_error *err);
struct eng_grammar *eng_grammar_ref(struct eng_grammar *g); /* returns g */
void eng_grammar_unref(struct eng_grammar *g);              /* takes NULL */
/* Memory that it holds. The masks that are kept with it take ENG_GRAMMAR_MASK_BYTES more at most.
 */
size_t eng_grammar_bytes(const struct eng_grammar *g);
#define ENG_GRAMMAR_MASK_BYTES ((size_t)1 << 20)
/* The grammar now owns these bytes of the account, and gives them back when it is freed. Once,
 * before other threads know of it. */
void eng_grammar_paid(struct eng_grammar *g, struct cn_account *account, uint64_t bytes);
/* The bytes that it owns. */
uint64_t eng_grammar_cost(const struct eng_grammar *g);
/* There is more than one reference. */
bool eng_grammar_shared(const struct eng_grammar *g);

/* ---- for tools (check.c) --------------------------------------------------------------------- */

/* Whether a text belongs to the grammar (*whole), and how many of its bytes could be its beginning.
 * Control tokens that the text spells are these tokens, if v is not NULL. CN_ELIMIT: too many ways
 * to read the text. */
int eng_grammar_check(const struct eng_grammar *g, const struct eng_vocab *v, const char *text,
                      size_t n, size_t *taken, bool *whole, struct cn_error *err);

/* How long the mask before each token of a text took, and the one at its end. */
struct eng_grammar_times {
    uint64_t *ns; /* owned: free() */
    size_t n;     /* of them: fewer than tokens if the text does not belong to the grammar */
    size_t taken; /* bytes of the text */
    uint64_t made, found; /* masks that were computed, and taken from those kept */
};
/* Errors of eng_tokenize; CN_ELIMIT, CN_ENOMEM. */
int eng_grammar_time(struct eng_grammar *g, const struct eng_vocab *v, const char *text, size_t n,
                     struct eng_grammar_times *out, struct cn_error *err);

#endif
