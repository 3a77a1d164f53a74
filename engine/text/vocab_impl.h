/* engine/text: types and functions that the tokenizer's files share. Not for other folders.
 * Everything here is immutable once eng_vocab_new has returned, except `whole`, which is a cache of
 * a pure function and is written with relaxed atomics, and `spares`. */
#ifndef ENGINE_TEXT_VOCAB_IMPL_H
#define ENGINE_TEXT_VOCAB_IMPL_H

#include "engine/text/text.h"

#include <stdatomic.h>
#include <string.h>

#define ENG_NO_ID UINT32_MAX

struct eng_trie;
/* Work memory that no call uses, and what is made from the vocabulary when it is first asked for.
 */
struct eng_spares {
    _Atomic(struct eng_merge *) spare[4];
    _Atomic(struct eng_trie *) trie; /* grammar/trie.h */
};

/* ---- keyed strings (strmap.c) ---------------------------------------------------------------- */

/* Strings in one blob, numbered from 0. off has n + 1 entries. */
struct eng_keys {
    char *blob;
    size_t blob_n, blob_cap;
    uint32_t *off;
    size_t n, cap;
};
int eng_keys_init(struct eng_keys *k, size_t n_hint, size_t bytes_hint);
void eng_keys_fini(struct eng_keys *k);
/* CN_ENOMEM, or CN_ELIMIT past 4 GiB of text. */
int eng_keys_add(struct eng_keys *k, const char *p, size_t n);

static inline struct eng_str eng_key(const struct eng_keys *k, uint32_t i)
{
    return (struct eng_str){k->blob + k->off[i], k->off[i + 1] - k->off[i]};
}

/* Finds the key with given bytes: open addressing over the numbers of an eng_keys. The hash has
 * a random seed, so that no file can be made whose tokens collide. */
struct eng_strmap {
    struct eng_strmap_slot { uint32_t hash, id; } *slot; /* id ENG_NO_ID = empty */
    size_t mask, used;
    uint64_t seed;
};
int eng_strmap_init(struct eng_strmap *m, size_t n_hint);
void eng_strmap_fini(struct eng_strmap *m);
/* Adds a key. If its bytes are known already, the old entry stays and *was_new is false. */
int eng_strmap_put(struct eng_strmap *m, const struct eng_keys *k, uint32_t id, bool *was_new);
uint32_t eng_strmap_get(const struct eng_strmap *m, const struct eng_keys *k, const char *p,
                        size_t n);

/* Decodes the character at p, whose first byte is not ASCII. Returns its bytes, 0 if it is not
 * valid UTF-8 or goes beyond `end`. */
static inline size_t eng_decode(const char *p, const char *end, uint32_t *cp)
{
    const uint8_t *b = (const uint8_t *)p;
    size_t n = (size_t)(end - p);
    if (n >= 3 && (b[0] & 0xF0) == 0xE0 && (b[1] & 0xC0) == 0x80 && (b[2] & 0xC0) == 0x80) {
        *cp = (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
        if (*cp >= 0x800 && (*cp & 0xF800) != 0xD800) return 3;
        return 0;
    }
    return cn_utf8_decode(p, n, cp);
}

/* ---- long work (text.h: keep_going) ---------------------------------------------------------- */

/* Counts work in units of about a byte of text, and every ENG_TICK units asks keep_going. A
 * function that cannot fail may ignore the answer: the next one that asks gets it too. */
enum { ENG_TICK = 16384 };
struct eng_tick {
    bool (*keep_going)(void *arg);
    int (*take)(void *arg, size_t bytes);
    void *arg;
    size_t done, taken; /* taken: bytes of work memory that were charged */
};
static inline int eng_tick(struct eng_tick *t, size_t n)
{
    t->done += n;
    if (t->done < ENG_TICK) return 0;
    t->done = 0;
    return !t->keep_going || t->keep_going(t->arg) ? 0 : CN_ECANCELLED;
}

/* Charges work memory of a call; before it is allocated. */
static inline int eng_pay(struct eng_tick *t, size_t bytes)
{
    int rc = t->take && bytes ? t->take(t->arg, bytes) : 0;
    if (rc == 0 && t->take) t->taken += bytes;
    return rc;
}
/* cn_grow, paid for. */
static inline int eng_grow(struct eng_tick *t, void *p, size_t *cap, size_t need, size_t size)
{
    size_t want = *cap ? *cap : 8;
    if (need <= *cap) return 0;
    while (want < need)
        want *= 2;
    int rc = eng_pay(t, (want - *cap) * size);
    return rc ? rc : cn_grow(p, cap, need, size);
}

/* ---- pre-tokenisers (pretokenize.c, scan.c) -------------------------------------------------- */

enum eng_pre_flag {
    ENG_PRE_IGNORE_MERGES = 1, /* a piece that is a token becomes it without merging */
    ENG_PRE_ADD_BOS = 2,
    ENG_PRE_FORCE_BOS = 4,    /* whatever the file's key says */
    ENG_PRE_RAW = 8,          /* merges on UTF-8 characters with U+2581 for the space */
    ENG_PRE_NL_WHOLE = 16,    /* a piece of newlines that is a token is emitted whole */
    ENG_PRE_MASK_LSTRIP = 32, /* <mask> eats the white space before it */
};

struct eng_pretok;
/* CN_EUNSUPP with the supported names. jit false: uses PCRE2's interpreter, as in a process that
 * may not map executable memory. */
int eng_pretok_new(const char *name, bool jit, struct eng_pretok **out, struct cn_error *err);
/* For tests: by the name of the regex list ("LLAMA3"). With `regex_only` every step runs as its
 * regular expression, even if a scanner does the same faster. NULL: no such name. */
struct eng_pretok *eng_pretok_by_kind(const char *kind, bool jit, bool regex_only);
/* Name of regex list i; NULL beyond the last one. */
const char *eng_pretok_kind(size_t i);
void eng_pretok_free(struct eng_pretok *p);
unsigned eng_pretok_flags(const struct eng_pretok *p);
/* Whether any step runs in PCRE2. */
bool eng_pretok_has_regex(const struct eng_pretok *p);
/* Calls emit for the pieces in order; together they are the text. A byte that is not part of valid
 * UTF-8 counts as a control character (U+007F) of its own. Stops at emit's first non-zero result
 * and returns it. Linear in n. */
int eng_pretok_split(const struct eng_pretok *p, const char *text, size_t n,
                     int (*emit)(void *arg, size_t start, size_t len), void *arg,
                     struct cn_error *err);

/* A hand-written equivalent of one step's regular expression. */
struct eng_scan {
    enum eng_scan_op {
        ENG_SCAN_NONE,     /* only the regular expression exists */
        ENG_SCAN_WORDS,    /* GPT-2's family, see struct eng_scan_words */
        ENG_SCAN_NUMBERS,  /* \p{N}{1,max}, max 0 = no limit */
        ENG_SCAN_CRLF,     /* [\r\n] */
        ENG_SCAN_LINES,    /* [^\n]+|[\n]+ */
        ENG_SCAN_TRAILING, /* \s+$ */
        ENG_SCAN_THREES,   /* (?=(\d{3})+(?!\d)) */
        ENG_SCAN_THREE,    /* [0-9][0-9][0-9] */
        ENG_SCAN_RUN,      /* [set]+, after what enum eng_run_after allows */
    } op;
    unsigned max;
    const struct eng_scan_words *words;
    const struct eng_scan_set *set;
};
enum eng_run_after { ENG_RUN_ALONE, ENG_RUN_AFTER_SPACE, ENG_RUN_AFTER_WHITE }; /* ` ?` `\s?` */
/* Characters of some categories (bits by utf8proc's numbers) or ranges; or all other characters. */
struct eng_scan_set {
    uint32_t categories;
    const uint32_t (*ranges)[2];
    size_t n_ranges;
    bool outside;
};
bool eng_scan_in(const struct eng_scan_set *set, uint32_t cp);
/* How members of the family differ; scan.c has the regular expression. */
struct eng_scan_words {
    enum { ENG_CONTRACT_NONE, ENG_CONTRACT_LOWER, ENG_CONTRACT_ANY } contract;
    bool contract_suffix; /* the contraction ends a word instead of being a piece */
    bool cased;           /* upper-case run then lower-case run */
    bool any_prefix;      /* [^\r\n\p{L}\p{N}]? before a word instead of a space */
    bool marks;           /* \p{M} belongs to words */
    bool spaced_numbers;  /* ` ?\p{N}+` */
    unsigned max_digits;  /* \p{N}{1,max}, 0 = no limit */
    enum { ENG_TAIL_NONE, ENG_TAIL_CRLF, ENG_TAIL_CRLF_SLASH } tail; /* after punctuation */
    bool newlines;                                                   /* `\s*[\r\n]+` */
    const struct eng_scan_set *own;                                  /* a class of its own ... */
    bool own_runs; /* ... whose runs are pieces; no other word contains it */
    bool symbols;  /* DeepSeek's: `own` is \p{P} and \p{S}; see symbols_word */
};

/* Tables of the scanners: the class of each character of the Basic Multilingual Plane, and the
 * steps that touch it. Other characters' classes are computed. */
enum { ENG_N_CLASSES = 0x10000 };
struct eng_classes {
    const struct eng_scan_words *words; /* whose `own` counts; NULL = none */
    uint8_t of[ENG_N_CLASSES];
};
/* Bits by step: characters in the set of a RUN; for other steps, characters that a match may
 * contain. A step does not cut a piece without such characters. The space that a run includes is
 * not in its set. */
struct eng_touch { uint8_t of[ENG_N_CLASSES]; };
void eng_scan_classes(const struct eng_scan_words *w, struct eng_classes *t);
/* Adds the bit of a step. */
void eng_scan_touch(const struct eng_scan *s, const struct eng_classes *t, unsigned step,
                    struct eng_touch *touch);

/* The most common pieces: ASCII letters or punctuation, with or without a space before them. */
enum eng_common { ENG_COMMON_NONE, ENG_COMMON_LETTERS, ENG_COMMON_MARKS };
enum eng_common eng_scan_common(const char *p, size_t n);

/* The next piece of `p` (n > 0 bytes) for op WORDS: its length. */
size_t eng_scan_word(const struct eng_scan_words *w, const struct eng_classes *t, const char *p,
                     size_t n);
/* The next match of a RUN in p, the text after the match before. If there is none: false, and only
 * `gap` is set. */
struct eng_scan_match {
    const char *at, *end;
    unsigned gap, match; /* steps that touch the text before the match, and the match */
};
bool eng_scan_run(const struct eng_scan *s, const struct eng_classes *t,
                  const struct eng_touch *touch, unsigned step, const char *p, const char *end,
                  struct eng_scan_match *run);
/* The next match of the other ops at or after `from`, the end of the match before: *start and *len.
 * False: no match is left. *state is 0 at first. A match of THREES is empty. */
bool eng_scan_find(const struct eng_scan *s, const struct eng_classes *t, const char *p, size_t n,
                   size_t from, size_t *state, size_t *start, size_t *len);

/* ---- special tokens (special.c) -------------------------------------------------------------- */

struct eng_special; /* automaton over the texts of control and user-defined tokens */

struct eng_cut {
    size_t start, end;         /* the token's bytes */
    size_t raw_start, raw_end; /* with the white space that it eats */
    uint32_t id;
};
struct eng_cuts {
    struct eng_cut *v;
    size_t n, cap;
};

int eng_special_new(const struct eng_vocab *v, struct eng_special **out);
void eng_special_free(struct eng_special *s);
/* Cuts in text order. Longest token first, then lower id, then leftmost; see special.c. */
int eng_special_find(const struct eng_vocab *v, const char *text, size_t n,
                     const struct eng_span *spans, size_t n_spans, bool parse,
                     struct eng_tick *tick, struct eng_cuts *out);

/* ---- merging (merge.c, pieces.c, joints.c, bpe.c, spm.c) ------------------------------------- */

struct eng_pair {
    uint64_t key; /* left << 32 | right */
    uint32_t rank, merged;
};
struct eng_pairs {
    struct eng_pair *slot;
    size_t mask;
    uint64_t mult;
    uint64_t *maybe; /* bits by a hash of the key: a filter that fits a cache */
    unsigned maybe_shift;
};

/* A symbol of a piece that is being merged, numbered by where it began. It covers the bytes up to
 * the next symbol's start; rank and into belong to the pair of it and the next symbol. */
struct eng_symbol { uint32_t sym, start, rank, into, prev, next; };

/* What a short piece became. */
enum { ENG_KNOWN_BYTES = 15, ENG_KNOWN_IDS = 3 };
struct eng_known {
    uint64_t key[2];                  /* its bytes; the last one is n | kind << 4 */
    uint32_t call, id[ENG_KNOWN_IDS]; /* ENG_NO_ID after the last one */
};

/* The work memory of one tokenising call. */
struct eng_merge {
    struct eng_symbol *s;
    size_t cap;
    uint64_t *heap;
    size_t heap_cap;
    char *text; /* escaped copy of a piece */
    size_t text_cap;
    struct eng_known *known;
    uint32_t call;   /* entries of other calls are void */
    const char *end; /* of the text that pieces lie in */
    struct eng_tick tick;
    size_t max_run; /* of eng_ids */
};
/* Merges one piece (n > 0 bytes, below 4 GiB): m->s has *n_left symbols, and where the last
 * ends. */
int eng_merge(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
              size_t *n_left);

/* Takes work memory, which the vocabulary keeps between calls; NULL: out of memory. */
struct eng_merge *eng_merge_take(const struct eng_vocab *v);
void eng_merge_give(const struct eng_vocab *v, struct eng_merge *m);
void eng_merge_free(struct eng_merge *m);

/* pieces.c: a piece of a pre-tokeniser (n > 0 bytes within m->end), and a text in which U+2581
 * stands for the space, after one more of them if prefix. Append the ids. */
int eng_piece(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n,
              struct eng_ids *ids);
int eng_line(const struct eng_vocab *v, struct eng_merge *m, const char *p, size_t n, bool prefix,
             struct eng_ids *ids);
/* The cache entry of the n bytes at p. *hit false: it is empty, and eng_known_put fills it. NULL:
 * the piece is too long for the cache. Bytes below `end` may be read. */
struct eng_known *eng_known_get(const struct eng_merge *m, const char *p, size_t n, const char *end,
                                unsigned kind, uint64_t key[2], bool *hit);
int eng_known_push(const struct eng_known *k, struct eng_ids *ids);
/* Keeps the ids from `from` on. */
void eng_known_put(const struct eng_merge *m, struct eng_known *k, const uint64_t key[2],
                   const struct eng_ids *ids, size_t from);

/* joints.c: pairs of characters that are neighbours in some symbol. No merge crosses a place
 * between two other characters. */
struct eng_joints {
    uint8_t ascii[128][16]; /* bits: both are ASCII */
    uint8_t edge[256][32];  /* bits by last and first byte, for symbols with part of a character */
    uint64_t *pair;         /* bits by a hash of the two characters; false positives are possible */
    unsigned shift;
    bool marks; /* U+2581 is the space */
};
int eng_joints_init(struct eng_joints *j, size_t n_symbols, bool marks);
void eng_joints_fini(struct eng_joints *j);
void eng_joints_add(struct eng_joints *j, struct eng_str symbol);
/* Bytes from p (below end) to the first place that no merge can cross, or to the end. */
size_t eng_joints_cut(const struct eng_joints *j, const char *p, const char *end,
                      struct eng_tick *tick);

/* BPE: the pair's merge, NULL when there is none. */
const struct eng_pair *eng_bpe_pair(const struct eng_vocab *v, uint32_t left, uint32_t right);
int eng_bpe_load(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err);
/* SPM: the order of merging; lower first. */
uint32_t eng_spm_rank(float score);

/* WPM (wordpiece.c): appends the ids of a text. */
int eng_wordpiece(const struct eng_vocab *v, struct eng_merge *m, const char *text, size_t n,
                  struct eng_ids *ids);

static inline int eng_ids_push(struct eng_ids *ids, uint32_t id)
{
    if (ids->max && ids->n >= ids->max) return CN_EWINDOW;
    if (ids->n == ids->cap) {
        int rc = cn_grow(&ids->v, &ids->cap, ids->n + 1, sizeof *ids->v);
        if (rc) return rc;
    }
    ids->v[ids->n++] = id;
    return 0;
}

/* ---- the vocabulary (vocab.c, vocab_rules.c) ------------------------------------------------- */

enum eng_model { ENG_MODEL_SPM, ENG_MODEL_BPE, ENG_MODEL_BPE_RAW, ENG_MODEL_WPM };

enum {
    ENG_TF_EOG = 1,
    ENG_TF_CONTROL = 2, /* never made from a client's text */
    ENG_TF_RSTRIP = 4,
    ENG_TF_LSTRIP = 8,
    ENG_TF_VALID = 16, /* it stands for whole characters */
};

struct eng_vocab {
    enum eng_model model;
    uint32_t n;
    struct eng_keys texts; /* as in the file */
    struct eng_strmap by_text;
    struct eng_keys pieces;   /* as rendered */
    struct eng_keys syms;     /* merging's symbols: n tokens, then parts that are not tokens */
    struct eng_strmap by_sym; /* only what may be made from text */
    uint8_t *type, *flags;
    uint32_t *rank;           /* SPM: eng_spm_rank of each token's score */
    size_t max_sym;           /* longest key of by_sym in bytes */
    struct eng_joints joints; /* of by_sym's keys */
    uint32_t byte_id[256];    /* id for a byte without a token; ENG_NO_ID = none */
    uint32_t byte_sym[256];   /* BPE: first symbols */
    struct eng_pairs pairs;
    _Atomic uint8_t *whole;    /* whether merging the token's bytes gives it; 0 = unknown */
    struct eng_spares *spares; /* work memory between calls */
    struct eng_pretok *pre;
    struct eng_special *special;
    int64_t bos, eos, unk;
    uint32_t *eog; /* ids that end generation, ascending */
    size_t n_eog;
    bool add_bos, add_eos, space_prefix;
    bool strips;                        /* some token eats white space around it */
    bool lowercase;                     /* WPM: letters lose case and accents */
    bool ignore_merges, newlines_whole; /* see enum eng_pre_flag */
};

/* Fills flags, bos, eos, unk and add_*: special ids, end of generation, control and strip flags. */
int eng_vocab_rules(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err);
/* GPT-2's byte map undone: writes at most n bytes; false when a character is not of the map. */
bool eng_bytes_unmap(const char *p, size_t n, char *out, size_t *out_n);
/* The code point that stands for a byte. */
uint32_t eng_byte_char(uint8_t b);

#endif
