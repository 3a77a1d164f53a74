/* rx: regular expressions over bytes, with intersection and complement (private to engine/text).
 *
 * An expression is a number. Equal expressions have equal numbers in one arena: the constructors
 * put them into a normal form and keep each node once. Brzozowski's derivative of an expression by
 * a byte is the language of what may follow that byte; a lexer's state is such an expression
 * (J. Brzozowski, "Derivatives of regular expressions", 1964; Owens, Reppy and Turon,
 * "Regular-expression derivatives re-examined", 2009).
 *
 * An arena may continue another one, which then must not change any more and must outlive it: the
 * numbers of the older arena mean the same in the newer one. A compiled grammar has such an older
 * arena; each choice that follows it has a newer one for its own derivatives.
 *
 * A constructor that fails (memory, limits) returns ENG_RX_NONE and sets `code`, which stays: build
 * a whole expression and look at `code` once. One thread at a time. */
#ifndef ENGINE_TEXT_GRAMMAR_RX_H
#define ENGINE_TEXT_GRAMMAR_RX_H

#include "engine/text/text.h"

enum {
    ENG_RX_NONE = 0,  /* no text at all: the empty language */
    ENG_RX_EMPTY = 1, /* the empty text */
    ENG_RX_ALL = 2,   /* every text */
    ENG_RX_FIRST = 3,
};
#define ENG_RX_INF UINT32_MAX /* no upper bound of a repetition */

enum eng_rx_kind {
    ENG_RX_SET,      /* one byte of a set */
    ENG_RX_CAT,      /* a, then b; a is no CAT */
    ENG_RX_REPEAT,   /* a, lo to hi times */
    ENG_RX_OR,       /* any of the args */
    ENG_RX_AND,      /* all of the args */
    ENG_RX_NOT,      /* every text that is not of a */
    ENG_RX_MULTIPLE, /* digits that complete a multiple of a number (rx_multiple.c) */
};

/* A set of bytes. */
struct eng_bytes { uint64_t bits[4]; };

static inline bool eng_bytes_has(const struct eng_bytes *s, uint8_t b)
{
    return s->bits[b >> 6] >> (b & 63) & 1;
}
static inline void eng_bytes_add(struct eng_bytes *s, uint8_t from, uint8_t to)
{
    for (unsigned b = from; b <= to; b++)
        s->bits[b >> 6] |= 1ull << (b & 63);
}

enum eng_rx_live { ENG_RX_UNKNOWN, ENG_RX_LIVE, ENG_RX_DEAD };

struct eng_rx_node {
    uint8_t kind;    /* enum eng_rx_kind; of ENG_RX_NONE, EMPTY and ALL meaningless */
    bool nullable;   /* the empty text belongs to it */
    uint8_t live;    /* whether any text belongs to it: enum eng_rx_live */
    bool plain;      /* holds no AND and no NOT */
    uint32_t a, b;   /* SET: index of its bytes. CAT: a, b. REPEAT, NOT: a. OR, AND: first arg, n */
    uint32_t lo, hi; /* REPEAT. MULTIPLE: struct eng_multiple is packed into a, b, lo and hi */
    uint32_t least;  /* no text has fewer bytes */
    uint32_t min_len; /* bytes of its shortest text; UINT32_MAX: none, or not known yet */
    uint32_t next;    /* of the hash chain */
    uint64_t hash;    /* of the expression itself: the same in every arena */
};

struct eng_rx {
    const struct eng_rx *base; /* the older arena; NULL: none */
    uint32_t first;            /* numbers below are the older arena's */
    uint32_t first_set, first_arg;
    struct eng_rx_node *nodes;
    uint32_t n_nodes; /* with the older arena's */
    size_t nodes_cap;
    struct eng_bytes *sets;
    uint32_t n_sets;
    size_t sets_cap;
    uint32_t *args;
    uint32_t n_args;
    size_t args_cap;
    uint32_t *heads; /* hash chains of the nodes of this arena */
    uint32_t n_heads;
    struct eng_rx_memo *memo; /* answers that were computed lately */
    uint32_t n_memo;
    uint8_t classes[256]; /* bytes of a class are in the same sets */
    uint32_t n_classes;
    size_t max_bytes;
    uint64_t work, max_work; /* derivatives computed; 0: no limit */
    /* Asked every 4096 derivatives; false: the code is CN_ECANCELLED. NULL: not asked. */
    bool (*keep_going)(void *arg);
    void *arg;
    int code;  /* 0, CN_ENOMEM, CN_ELIMIT, CN_ECANCELLED */
    bool full; /* max_bytes was too little, here or for what else a compiler makes of the grammar */
};

/* base may be NULL. max_bytes: most memory of this arena; max_work: most derivatives (0 = none);
 * beyond them `code` is CN_ELIMIT. CN_ENOMEM. */
int eng_rx_init(struct eng_rx *r, const struct eng_rx *base, size_t max_bytes, uint64_t max_work);
void eng_rx_fini(struct eng_rx *r);
size_t eng_rx_bytes(const struct eng_rx *r); /* memory that it holds */
const struct eng_rx_node *eng_rx_node(const struct eng_rx *r, uint32_t x);
const struct eng_bytes *eng_rx_set_of(const struct eng_rx *r, const struct eng_rx_node *n);
const uint32_t *eng_rx_args(const struct eng_rx *r, const struct eng_rx_node *n); /* n->b of them */

/* ---- constructors ---------------------------------------------------------------------------- */

uint32_t eng_rx_set(struct eng_rx *r, const struct eng_bytes *s);
uint32_t eng_rx_byte(struct eng_rx *r, uint8_t from, uint8_t to); /* one byte of a range */
uint32_t eng_rx_literal(struct eng_rx *r, const char *s, size_t n);
uint32_t eng_rx_cat(struct eng_rx *r, uint32_t a, uint32_t b);
/* lo to hi times (ENG_RX_INF: any number from lo on); hi >= lo. */
uint32_t eng_rx_repeat(struct eng_rx *r, uint32_t a, uint32_t lo, uint32_t hi);
/* Of n expressions. None: OR is ENG_RX_NONE, AND is ENG_RX_ALL. */
uint32_t eng_rx_or_of(struct eng_rx *r, const uint32_t *x, size_t n);
uint32_t eng_rx_and_of(struct eng_rx *r, const uint32_t *x, size_t n);
uint32_t eng_rx_or(struct eng_rx *r, uint32_t a, uint32_t b);
uint32_t eng_rx_and(struct eng_rx *r, uint32_t a, uint32_t b);
uint32_t eng_rx_not(struct eng_rx *r, uint32_t a);
/* Of n literals; beginnings that they share are one. For long enumerations. */
uint32_t eng_rx_words(struct eng_rx *r, const struct eng_str *words, size_t n);

/* Decimal digits that complete a number of which the first digits are known. The texts: lo to hi
 * digits; then, if `point`, nothing, or a point and at least one digit. After a point that was read
 * (`fraction`) just digits, at least one unless some are `read`. With all of its digits the number
 * is a multiple of modulus / 10^scale. */
struct eng_multiple {
    uint64_t modulus; /* 1 to ENG_MULTIPLE_MOST */
    uint64_t rest;    /* the known digits, modulo modulus */
    uint16_t lo, hi;  /* up to ENG_MULTIPLE_INF - 1; hi: also ENG_MULTIPLE_INF, no upper bound */
    uint8_t scale;    /* up to ENG_MULTIPLE_SCALE. Later digits of a fraction are zeros */
    uint8_t read;     /* digits of the fraction that are known, up to scale */
    bool point, fraction;
};
enum { ENG_MULTIPLE_INF = 511, ENG_MULTIPLE_SCALE = 60 };
#define ENG_MULTIPLE_MOST (((uint64_t)1 << 48) - 1)
uint32_t eng_rx_multiple(struct eng_rx *r, const struct eng_multiple *m);

/* ---- questions ------------------------------------------------------------------------------- */

uint32_t eng_rx_derive(struct eng_rx *r, uint32_t x, uint8_t byte);
static inline bool eng_rx_nullable(const struct eng_rx *r, uint32_t x)
{
    return eng_rx_node(r, x)->nullable;
}
/* Adds the bytes that a text of x may begin with; there may be others among them. */
void eng_rx_first(const struct eng_rx *r, uint32_t x, struct eng_bytes *out);
/* Whether any text belongs to x. Exact; costs a search where x holds AND or NOT. */
bool eng_rx_live(struct eng_rx *r, uint32_t x);
/* Bytes of the shortest text of x; UINT32_MAX: it has none. */
uint32_t eng_rx_min_len(struct eng_rx *r, uint32_t x);
/* Tokens of a vocabulary that a text of that length takes, or more; without one (NULL): its bytes.
 */
struct eng_trie;
uint32_t eng_rx_tokens(struct eng_rx *r, uint32_t x, const struct eng_trie *t);
/* Bytes of the longest text, where it is easily seen; UINT32_MAX: not, or there is none. */
uint32_t eng_rx_max_len(const struct eng_rx *r, uint32_t x);
/* Appends a text of that length. */
int eng_rx_shortest(struct eng_rx *r, uint32_t x, struct cn_buf *out);
/* Whether x has at most `most` texts, none longer than 300 bytes; *n is their number if so. */
bool eng_rx_count(struct eng_rx *r, uint32_t x, uint64_t most, uint64_t *n);
/* Whether x, which has a text, has one for every pair of two of these characters: not where that is
 * hard to see. */
bool eng_rx_has_two(const struct eng_rx *r, uint32_t x, uint32_t a_char);
/* Whether the whole text belongs to x. */
bool eng_rx_matches(struct eng_rx *r, uint32_t x, const char *s, size_t n);

#endif
