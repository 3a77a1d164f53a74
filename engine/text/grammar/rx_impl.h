/* What the files of rx share. */
#ifndef ENGINE_TEXT_GRAMMAR_RX_IMPL_H
#define ENGINE_TEXT_GRAMMAR_RX_IMPL_H

#include "engine/text/grammar/rx.h"

/* An argument of a list. */
struct eng_rx_arg {
    uint64_t hash;
    uint32_t x;
};

/* A cache without chains: what was asked last of a place is there. */
struct eng_rx_memo {
    uint32_t x;    /* 0: empty; what is asked of ENG_RX_NONE is never kept */
    uint16_t what; /* a byte's derivative, or one of the below */
    uint32_t answer;
};
enum { ENG_MEMO_MIN_LEN = 256, ENG_MEMO_TOKENS };
bool eng_rx_recall(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t *answer);
uint32_t eng_rx_keep(struct eng_rx *r, uint32_t x, uint16_t what, uint32_t answer); /* the answer */

/* The node, or the equal one that is there already. Its hash is computed here: kind, a, b, lo and
 * hi are all that it consists of. */
uint32_t eng_rx_leaf(struct eng_rx *r, struct eng_rx_node node);
/* The derivative of an ENG_RX_MULTIPLE (rx_multiple.c). */
uint32_t eng_rx_multiple_next(struct eng_rx *r, const struct eng_rx_node *n, uint8_t byte);
/* Sets r->code, unless it is set. */
uint32_t eng_rx_fail(struct eng_rx *r, int code);

#endif
