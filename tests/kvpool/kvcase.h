/* What the tests of single cases with recurrent state share: a small pool, and one sequence at
 * work. */
#ifndef TESTS_KVPOOL_KVCASE_H
#define TESTS_KVPOOL_KVCASE_H

#include "kvpool/kvpool.h"

#define BT    4u /* tokens of a block */
#define KV    0u /* groups of `hybrid` */
#define STATE 1u

struct fix {
    struct kv_pool *p;
    struct kv_space *s;
};

extern const struct kv_group hybrid[2]; /* four blocks or two states a slab */
extern const struct kv_group pure[1];
extern uint32_t prompt[4096]; /* every token another */

/* Slabs of 256 bytes. */
struct fix fix_new(uint32_t n_slabs, uint32_t n_groups, const struct kv_group *groups);
void sound(struct fix *f);
/* Nothing is in use, and nothing stays when the cache is dropped. */
void fix_end(struct fix *f);
struct kv_seq *open_as(struct fix *f, struct kv_seq_opts o);
struct kv_seq *open_seq(struct fix *f);
/* Snapshots taken so far. */
uint64_t taken(struct fix *f);
/* What a new sequence would find of the n items. */
uint64_t peek(struct fix *f, const uint32_t *ids, uint64_t n);
/* What q finds and adopts, without waiting. */
uint64_t found(struct kv_seq *q, const uint32_t *ids, uint64_t n);
/* Computes up to `to` in steps of one row. */
void by_ones(struct kv_seq *q, const uint32_t *ids, uint64_t to);
/* Computes up to `to`, ending chunks where it is asked to. */
void compute(struct kv_seq *q, const uint32_t *ids, uint64_t to);
/* Puts the items and a snapshot of them into the cache. */
void warm(struct fix *f, const uint32_t *ids, uint64_t n);

#endif
