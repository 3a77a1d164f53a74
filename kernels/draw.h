/* draw: from a row of logits to one id. One definition, whose bits are the same on every device.
 *
 * Order: logit_bias, penalties, what is left out, the mask; then the likeliest id where the
 * temperature is 0; else temperature, top_k, top_p, min_p, and one draw that is a pure function of
 * (seed, choice, position).
 *
 * Chances are integer masses: w = rint(2^40 e^((z - max) / T)), so that sums are exact in any
 * order, and a device may sum as it likes. A mass below 1 is 0: of a vocabulary of 2^18 ids less
 * than 2e-7 of the chances is lost. top_p keeps the likeliest ids until their mass reaches
 * floor(total * rint(p 2^32) / 2^32), min_p those of at least ceil(p 2^40). What is drawn is the
 * first id, in the order of ids, at which the sum of kept masses exceeds floor(u * kept / 2^64),
 * u 64 bits of a keyed hash. Equal logits: the lower id is the likelier one.
 *
 * Threads: a state by one at a time; everything else is pure. */
#ifndef KERNELS_DRAW_H
#define KERNELS_DRAW_H

#include "base/base.h"

#define KR_NO_ID UINT32_MAX
/* The loops over a vocabulary, compiled for an ISA: the bytes are the same in all of them. */
struct kr_draw_loops;

struct kr_draw_opts {                  /* what a choice draws with */
    const struct kr_draw_loops *loops; /* kr_device_draw_loops */
    size_t n_vocab;
    float temperature;         /* 0: the likeliest id */
    uint32_t top_k;            /* 0 = off */
    float top_p;               /* (0, 1]; 1 = off */
    float min_p;               /* [0, 1]; 0 = off */
    float repetition;          /* > 0; 1 = off. Of ids of the prompt and of the output */
    float presence, frequency; /* 0 = off. Of ids of the output */
    uint64_t seed;
    /* Borrowed: they outlive the state and its clones. */
    const struct cn_bias *edits;
    size_t n_edits;
    const uint32_t *never; /* ids that are never drawn; those of n_vocab and above are no matter */
    size_t n_never;
    const uint32_t *late, *late_more; /* ids that are not drawn for positions below late_until */
    size_t n_late, n_late_more;
    uint64_t late_until;
    int32_t n_top; /* -1: no log-probabilities; else how many alternatives, at most
                    * CN_MAX_TOP */
};

/* Room for the candidates of draws, some MiB where a large vocabulary's row is flat: lent for a
 * draw and kept for the next, so that an id costs no allocation and there is no more of it than
 * draws that ran at once, however many states there are. Any thread. */
struct kr_draw_room;
struct kr_draw_rooms {
    pthread_mutex_t lock;
    struct kr_draw_room *first; /* not lent */
};
void kr_draw_rooms_init(struct kr_draw_rooms *r);
void kr_draw_rooms_trim(struct kr_draw_rooms *r); /* gives back all that are not lent */
void kr_draw_rooms_fini(struct kr_draw_rooms *r); /* none is lent */

/* What a choice draws with, and the ids that it has seen. */
struct kr_draw_state;
/* opts: copied. rooms: borrowed, outlives the state and its clones. CN_ENOMEM. */
int kr_draw_state_new(const struct kr_draw_opts *opts, uint32_t choice, struct kr_draw_rooms *rooms,
                      struct kr_draw_state **out);
/* A new one for another choice of the same request: with the ids of its prompt, without those of
 * the output. */
int kr_draw_state_clone(const struct kr_draw_state *s, uint32_t choice, struct kr_draw_state **out);
void kr_draw_state_free(struct kr_draw_state *s);
/* Records ids of the prompt (for `repetition`), or an id of the output. CN_ENOMEM. */
int kr_draw_state_prompt(struct kr_draw_state *s, const uint32_t *ids, size_t n);
int kr_draw_state_accept(struct kr_draw_state *s, uint32_t id);
/* Forgets the ids after the first n of the output, which belong to rejected drafts. At most
 * KR_DRAW_BACK of them. */
#define KR_DRAW_BACK 32
void kr_draw_state_cut(struct kr_draw_state *s, uint64_t n);
/* What a device needs for a copy of its own. Valid until ids of the prompt are added to s, or s is
 * freed. */
struct kr_draw_told {
    const struct kr_draw_opts *opts;
    uint32_t choice;
    const uint32_t *prompt; /* [n_prompt] ids of the prompt, each once, in any order; KR_NO_ID: to
                             * be skipped. n_prompt 0: `repetition` is off */
    size_t n_prompt;
    bool counts; /* whether draws depend on the ids of the output */
};
void kr_draw_state_tell(const struct kr_draw_state *s, struct kr_draw_told *out);

struct kr_drawn {
    uint32_t id;
    float logprob; /* of the raw logits (before bias, penalties, temperature) */
    uint32_t n_top;
    struct cn_top top[CN_MAX_TOP]; /* descending; ties by lower id */
};
/* Draws from one row of logits (n_vocab of them; they may be overwritten). position: of the id to
 * be drawn. mask: a bit for each id that may be drawn; NULL: all. Does not accept the id.
 * CN_ENUMERIC: a logit is NaN, or none is finite; CN_ENOMEM. */
int kr_draw_row(const struct kr_draw_state *s, float *logits, uint64_t position,
                const uint32_t *mask, struct kr_drawn *out);
/* Log-probability of a given id and the likeliest n_top ids, from raw logits. CN_EINVAL: id is not
 * below n_vocab; CN_ENUMERIC and CN_ENOMEM as above. */
int kr_draw_score(const struct kr_draw_loops *loops, const float *logits, size_t n_vocab,
                  uint32_t id, uint32_t n_top, struct kr_drawn *out);

#endif
