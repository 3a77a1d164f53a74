/* Answers written in pieces: a long answer is formatted only as the reader makes room, never all
 * at once. A writer is called until it is done; each call appends about SRV_PIECE bytes. */
#ifndef SERVER_PIECES_H
#define SERVER_PIECES_H

#include "base/base.h"

#define SRV_PIECE 65536

/* Where a writer stands. All zero is the beginning. */
struct srv_cursor {
    size_t item;   /* a choice, an input: whatever there are several of */
    unsigned part; /* of it */
    size_t at;     /* in the part: bytes or tokens */
};

/* How much of a text a piece of at most `most` bytes takes: it ends where a character does. */
size_t srv_text_piece(const char *s, size_t n, size_t most);
/* Appends the JSON string of s from c->at on, and moves c->at; true when it is whole, quotes
 * included. With c->at 0 it begins. */
bool srv_put_text(struct cn_buf *b, struct srv_cursor *c, const char *s, size_t n, size_t most);
/* Appends ids from c->at on, with commas; true after the last. */
bool srv_put_ids(struct cn_buf *b, struct srv_cursor *c, const uint32_t *ids, size_t n,
                 size_t most);

#endif
