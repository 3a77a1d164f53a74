/* match: follows a grammar in compiled form, byte by byte (private to engine/text).
 *
 * One object per choice of an answer; one thread at a time. Where it stands is a set of places
 * (struct eng_place): each is a state of the parser, which is a set of stacks, and a state of the
 * lexer, which is how far each lexeme that the stacks allow has come. Both are kept once each, so
 * that they can be compared by number. Most of the time there is one place; a number that might go
 * on or end gives two.
 *
 * A stack is a list of frames, the bottom last, shared between stacks; a frame says what comes
 * after the thing above it is complete. Counts in frames stop where they make no difference any
 * more, so that the same situation is the same frame however long the answer is. */
#ifndef ENGINE_TEXT_GRAMMAR_MATCH_H
#define ENGINE_TEXT_GRAMMAR_MATCH_H

#include "engine/text/grammar/ir.h"

/* ---- frames (frame.c) ------------------------------------------------------------------------ */

enum eng_frame_kind {
    ENG_FRAME_SEQ,    /* a sequence of symbols, from pos on */
    ENG_FRAME_SYM,    /* a symbol */
    ENG_FRAME_OBJECT, /* in an object */
    ENG_FRAME_ARRAY,  /* in an array */
};
enum eng_phase {
    ENG_PHASE_OPEN,  /* behind the bracket that opens */
    ENG_PHASE_COMMA, /* behind a comma */
    ENG_PHASE_NAMED, /* objects: behind an undeclared name, whose text is yet to be looked at */
    ENG_PHASE_ITEM,  /* arrays without equal items: behind an item that is yet to be looked at */
    ENG_PHASE_NEXT,  /* behind a value */
};
enum eng_rich { ENG_POOR = 1, ENG_RICH };
struct eng_frame {
    uint32_t parent; /* 0: the answer ends */
    uint8_t kind, phase;
    bool inside;    /* within an item of an array without equal items: texts are kept */
    bool wants;     /* its own expansion looks at the text of what came last */
    uint32_t id;    /* sequence, object, array; SYM: kind << 29 | id */
    uint32_t pos;   /* SEQ: next symbol. OBJECT: next member in order. ARRAY: items so far */
    uint32_t count; /* OBJECT: members so far. ARRAY: items of kind `in` so far */
    uint32_t there; /* list: OBJECT: members that are there, of those that it matters for */
    uint32_t seen;  /* list: OBJECT: undeclared names. ARRAY: values */
    uint32_t start; /* ARRAY: length of the kept text where the item began. OBJECT: the other */
    uint8_t rich;   /* rich.c: 0 not known yet, else enum eng_rich */
    uint32_t rest;  /* close.c: 0 not known yet, else 1 + least tokens from here to the end */
    uint32_t next;  /* hash chain */
    uint64_t hash;  /* of all of the stack from here down */
    uint64_t shape; /* the same without what was seen */
};
/* A list of numbers, shared between lists; 0 is the empty one.
 * While many continuations are tried (walking), a name or value that comes up is not added to its
 * list: the list becomes ENG_LIST_UNKNOWN. A parser state that depends on such a list is in doubt.
 */
enum { ENG_LIST_UNKNOWN = 1 };
enum eng_doubt {
    ENG_SURE,
    ENG_TAKEN, /* some texts that may follow came before: one is right if it can go on to another */
    ENG_UNSURE, /* made with ENG_LIST_UNKNOWN: a text that leads here must be looked at */
};
struct eng_cell {
    uint32_t value, rest, next;
    uint32_t depth; /* cells from here down */
    uint32_t jump;  /* a cell farther down */
    uint32_t same;  /* the next cell of the same seen text */
    bool text;      /* the value is a seen text */
    uint64_t hash;
};
/* A text that was seen: a name without its quotes and escapes, or a value in one spelling. */
struct eng_seen {
    size_t at; /* in texts */
    uint32_t n, next;
    uint32_t cells; /* of it: the first of a chain */
    uint64_t hash;
};

/* ---- lexer states (lexer.c) ------------------------------------------------------------------ */

struct eng_lexing { uint32_t lexeme, rx; }; /* a lexeme, and what may follow of it */
struct eng_lexer_state {
    uint32_t first, n; /* of lexings */
    uint32_t chain;
    bool ends;   /* a lexeme may be complete */
    bool begins; /* nothing of it has come yet: not the state that leading bytes can lead back to */
    bool looked, alike; /* free.c: whether struct eng_free is known, and what it is */
    uint8_t from;
    uint16_t n_to; /* of `to` */
    uint64_t hash;
    /* By class of bytes, from class `from` on: 0 not known yet, else a state; all other classes
     * lead nowhere. NULL: there is no table yet. */
    uint32_t *to;
    uint32_t free_chars, free_of, free_more;
    uint32_t texts; /* alive.c: that may follow; 0: not counted yet */
};
enum { ENG_LEXER_DEAD = 1 };
#define ENG_TEXTS_MANY    (1u << 20)
#define ENG_TEXTS_UNKNOWN UINT32_MAX

/* ---- parser states (match.c) ----------------------------------------------------------------- */

struct eng_item_of { uint32_t lexeme, frame; }; /* behind the lexeme the frame is expanded */
struct eng_parser_state {
    uint32_t first, n; /* of item_ofs, ascending by lexeme */
    uint32_t lexer;    /* state at the beginning of a lexeme */
    uint32_t chain;
    bool accepts;  /* the answer may end here */
    bool records;  /* texts are kept of its lexemes */
    bool keeps;    /* the text so far is needed, too: within an item whose value is looked at */
    uint8_t doubt; /* enum eng_doubt */
    uint64_t hash;
};

struct eng_place {
    uint32_t parser, lexer;
    uint32_t text; /* kept so far: last byte; 0: nothing */
    uint32_t from; /* length of the kept text where the lexeme began */
};
struct eng_places {
    struct eng_place *v;
    size_t n, cap;
};
struct eng_kept {
    uint32_t before, len;
    char byte;
};
struct eng_goto {
    uint32_t parser, lexer, to;
    bool used; /* struct eng_match */
};

/* Where a lexeme whose text is kept led lately, while walking. */
enum { ENG_LATELY = 32 };
struct eng_lately {
    struct eng_place at, after;
    bool used;
};

struct eng_scratch {
    struct eng_pending *pending;
    struct eng_item_of *found;
    size_t n_pending, cap_pending, n_found, cap_found;
    struct eng_met *met; /* hash table; entries of earlier expansions are void */
    uint32_t n_met, n_slots, now;
};

struct eng_match {
    const struct eng_ir *ir;     /* outlives it */
    struct eng_rx rx;            /* continues the grammar's arena */
    const struct eng_trie *trie; /* that distances are counted with; NULL: a token is a byte */
    size_t max_bytes;
    uint32_t lead;
    int code;       /* 0, CN_ENOMEM, CN_ELIMIT, CN_ECANCELLED (rx.keep_going said so); stays */
    uint32_t ticks; /* of eng_match_tick */
    struct eng_frame *frames; /* 0 unused */
    struct eng_cell *cells;
    struct eng_seen *seen;
    uint32_t *order; /* seen texts by their bytes */
    char *texts;
    size_t n_texts;
    struct eng_lexeme *extra; /* lexemes that came up on the way: number - ir->n_lexemes */
    struct eng_lexing *lexings;
    struct eng_lexer_state *lexers;   /* 0 unused, 1 dead */
    struct eng_parser_state *parsers; /* 0 unused */
    struct eng_item_of *item_ofs;
    struct eng_kept *kept;  /* 0 unused */
    struct eng_goto *gotos; /* hash table */
    struct eng_lately lately[ENG_LATELY];
    uint32_t n_frames, n_cells, n_seen, n_extra, n_lexings, n_lexers, n_parsers, n_item_ofs, n_kept;
    size_t cap[11];
    uint32_t n_classes;           /* of bytes, when the lexers' tables were made */
    uint32_t n_gotos, used_gotos; /* used_gotos: of them used */
    size_t n_tables;              /* entries of the lexers' tables */
    uint32_t *heads[5];           /* hash chains of frames, cells, lexers, parsers, seen texts */
    uint32_t n_heads[5];
    struct eng_scratch scratch[2], *work; /* of expand.c; the second one is for looks ahead */
    struct eng_lexing *pairs;             /* scratch of lexer.c */
    size_t cap_pairs;
    bool walking;
    /* While walking: the kept text of a string that has begun and that no text that was seen has
     * (0: there is none), and the length of the kept text where it began. */
    uint32_t fresh, fresh_from;
    bool probing;          /* only whether another item or member may come is asked for */
    bool used;             /* what was seen mattered in a step */
    uint8_t doubt;         /* enum eng_doubt: of the expansion */
    struct eng_places now; /* where the answer is */
};

struct eng_expansion {
    uint32_t text, from; /* the text behind which they are expanded */
    bool accepts;
    bool probe; /* only whether anything may follow: the first finding ends it */
};

/* max_bytes: memory that it may take as the answer grows; beyond it the code is CN_ELIMIT. lead: an
 * expression of the grammar's arena that the answer may begin with (ENG_RX_EMPTY: nothing). */
int eng_match_init(struct eng_match *m, const struct eng_ir *ir, size_t max_bytes, uint32_t lead);
void eng_match_fini(struct eng_match *m);
size_t eng_match_bytes(const struct eng_match *m);
int eng_match_fail(struct eng_match *m, int code); /* sets m->code unless it is set; returns it */
/* Called for each piece of work; every 256 pieces it asks rx.keep_going. */
void eng_match_tick(struct eng_match *m);

/* Goes on by a byte from `from` to `to` (emptied first; not the same). False: no text of the
 * grammar goes on like this, or m->code. */
bool eng_match_step(struct eng_match *m, const struct eng_places *from, uint8_t byte,
                    struct eng_places *to);
/* The same for places that are given one by one: appends where a place leads to. */
void eng_match_step_one(struct eng_match *m, const struct eng_place *at, uint8_t byte,
                        struct eng_places *to);
/* Whether the answer may end at these places. */
bool eng_match_accepts(struct eng_match *m, const struct eng_places *at);
/* Gives back memory that only the past needed: what is left is what `now` stands on. Places held
 * elsewhere are void. On an error nothing has changed: CN_ELIMIT, CN_ENOMEM. */
int eng_match_compact(struct eng_match *m);
/* To be called now and then while `now` goes on: the same where it is worth it. */
void eng_match_tidy(struct eng_match *m);
/* Appends bytes to the answer; how many were taken before one that cannot be. */
size_t eng_match_bytes_in(struct eng_match *m, const char *s, size_t n);
/* The parser's state behind the lexemes that may be complete at a place; 0: none. *after gets the
 * kept text. */
uint32_t eng_match_goto(struct eng_match *m, const struct eng_place *at, struct eng_place *after);
/* Kept texts from this one on are given up. */
void eng_match_unkeep(struct eng_match *m, uint32_t n_kept);

/* The state of what may follow these frames; 0: nothing, or m->code. begins: the answer does. */
uint32_t eng_parser_state(struct eng_match *m, const uint32_t *frames, size_t n,
                          struct eng_expansion *x, bool begins);
/* The same of what eng_expand_lexeme was given since. */
uint32_t eng_parser_found(struct eng_match *m, bool accepts, bool begins);
void eng_match_add(struct eng_match *m, struct eng_places *to, struct eng_place p);
uint32_t eng_keep_byte(struct eng_match *m, uint32_t text, uint8_t byte); /* after a kept text */

/* forced.c: the bytes that must come next, at most `most`: as long as there is one way. A text that
 * may end here has none. Returns how many. */
size_t eng_match_forced(struct eng_match *m, const struct eng_places *at, char *out, size_t most);

/* close.c: least tokens from these places to an end of the answer; UINT32_MAX: not known. It may be
 * more than the least, but an answer of that length exists. */
uint32_t eng_match_distance(struct eng_match *m, const struct eng_places *at);
/* The same of one place, and if `only` is not UINT32_MAX of one of its lexer's lexemes. */
uint32_t eng_place_distance(struct eng_match *m, const struct eng_place *at, uint32_t only);
uint32_t eng_object_rest(struct eng_match *m, const struct eng_frame *f);
uint32_t eng_array_rest(struct eng_match *m, const struct eng_frame *f);

/* alive.c */
/* Whether the answer can go on from there to an end. False only where it would have to repeat an
 * item of an array without equal items, or a name of an object. */
bool eng_match_alive(struct eng_match *m, const struct eng_places *at);
/* True: it can, as a look at one place tells. False: that is not enough to know. */
bool eng_match_is_free(struct eng_match *m, uint32_t parser, uint32_t lexer);
/* How many values and names a text must differ from that goes on behind a lexeme; 0: any may come,
 * or they are not known. */
uint32_t eng_match_taken(struct eng_match *m, uint32_t lexeme, uint32_t frame);
bool eng_lexeme_is_rich(struct eng_match *m, uint32_t lexeme); /* it has many texts */
/* How many bytes a lexeme (index into those of the lexer's state) needs more than its shortest
 * text, as that one came before. It may be more than ENG_MOST_FARTHER, which is then the answer. */
enum { ENG_MOST_FARTHER = 4 };
uint32_t eng_match_farther(struct eng_match *m, const struct eng_place *at, uint32_t only);
/* Whether places within an item of such an array are not within a string: white space there does
 * not matter. */
bool eng_match_between(struct eng_match *m, const struct eng_places *at);
/* Whether a lexeme is used as it is though texts of this list must not come again: it has many
 * others, or the list is not known. */
bool eng_match_keeps_lexeme(struct eng_match *m, uint32_t list, uint32_t lexeme);

/* rich.c: whether what is still to come of a frame has many texts; false: not known. */
bool eng_frame_is_rich(struct eng_match *m, uint32_t frame);

/* frame.c */
uint32_t eng_frame(struct eng_match *m, const struct eng_frame *f); /* 0 with m->code */

/* seen.c */
/* hash: of what the value stands for, the same in every object. */
uint32_t eng_list_add(struct eng_match *m, uint32_t list, uint32_t value, uint64_t hash);
bool eng_list_has(const struct eng_match *m, uint32_t list, uint32_t value);
uint32_t eng_list_length(const struct eng_match *m, uint32_t list);
/* The same for lists of seen texts. */
uint32_t eng_list_add_seen(struct eng_match *m, uint32_t list, uint32_t seen);
bool eng_list_has_seen(const struct eng_match *m, uint32_t list, uint32_t seen);
/* Takes away the newest cells of seen texts, and texts, down to so many at most. Frames made with
 * them stay, but no new frame is equal to one of them: the hashes of their lists differ. */
void eng_seen_undo(struct eng_match *m, uint32_t n_cells, uint32_t n_seen);
uint32_t eng_seen_text(struct eng_match *m, const char *p, size_t n); /* its number */
/* UINT32_MAX: not seen. */
uint32_t eng_seen_find(const struct eng_match *m, const char *p, size_t n);
/* Whether any text that was seen begins like this. */
bool eng_seen_begins(const struct eng_match *m, const char *p, size_t n);
/* Whether a kept text, from this length on, has the string that has begun as a new one (fresh). */
bool eng_seen_is_fresh(const struct eng_match *m, uint32_t text, uint32_t from);
struct eng_str eng_seen_str(const struct eng_match *m, uint32_t seen);
/* Whether a hash table of this many chains grows for n entries; and the chain's head. */
bool eng_heads_room(struct eng_match *m, int which, uint32_t n);

/* lexer.c */
/* Where these lexemes begin; `begins`: with the answer, behind what it may begin with. */
uint32_t eng_lexer_start(struct eng_match *m, const uint32_t *lexemes, size_t n, bool begins);
/* The state of n pairs, ascending by lexeme. */
uint32_t eng_lexer_state(struct eng_match *m, const struct eng_lexing *pairs, size_t n,
                         bool begins);
uint32_t eng_lexer_next(struct eng_match *m, uint32_t state, uint8_t byte); /* or ENG_LEXER_DEAD */
/* What the table says; 0: nothing yet. */
static inline uint32_t eng_lexer_known(const struct eng_match *m, uint32_t state, uint8_t byte)
{
    const struct eng_lexer_state *s = &m->lexers[state];
    uint32_t i = (uint32_t)m->rx.classes[byte] - s->from;
    if (!s->to || m->n_classes != m->rx.n_classes) return 0;
    return i < s->n_to ? s->to[i] : ENG_LEXER_DEAD;
}
const struct eng_lexeme *eng_match_lexeme(const struct eng_match *m, uint32_t lexeme);
/* A lexeme that came up on the way (equal ones are one); UINT32_MAX: no text belongs to it. */
uint32_t eng_match_extra(struct eng_match *m, uint32_t rx, bool spaced);

/* expand.c: what may follow frames. */
/* Fills m->work->found. */
void eng_expand(struct eng_match *m, const uint32_t *frames, size_t n, struct eng_expansion *x);
/* For object.c and array.c: to be done as part of an expansion. */
void eng_expand_sym(struct eng_match *m, struct eng_sym s, uint32_t frame);
void eng_expand_lexeme(struct eng_match *m, uint32_t lexeme, uint32_t frame);
void eng_expand_frame(struct eng_match *m, uint32_t frame);
void eng_expand_object(struct eng_match *m, const struct eng_frame *f,
                       const struct eng_expansion *x);
void eng_expand_array(struct eng_match *m, const struct eng_frame *f,
                      const struct eng_expansion *x);
/* The lexeme of an item for an array without equal items: without the values that were seen. */
uint32_t eng_array_lexeme(struct eng_match *m, uint32_t lexeme, const struct eng_frame *array);
/* Whether the item that comes next, or is under way, is one lexeme. */
bool eng_array_is_simple(const struct eng_match *m, const struct eng_frame *f);

/* value.c */
/* Appends the value of a JSON text in the one spelling that equal values have: members sorted,
 * numbers without needless zeros, strings with as few escapes as can be. Not JSON: CN_EINVAL. */
int eng_value_canonical(const char *s, size_t n, struct cn_buf *out);
/* Appends a JSON string's characters; s is the literal with quotes, white space around it aside. */
int eng_value_string(const char *s, size_t n, struct cn_buf *out);
/* The texts of a value given by eng_value_canonical, as a lexeme may spell them; only for values
 * that are neither objects nor arrays. */
uint32_t eng_value_spellings(struct eng_rx *r, enum eng_spelling s, const char *p, size_t n);
/* Bytes [from, to's length) of a kept text. */
int eng_kept_text(const struct eng_match *m, uint32_t text, uint32_t from, struct cn_buf *out);

#endif
