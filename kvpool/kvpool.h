/* kvpool: which block of KV memory holds what. Bookkeeping only: it touches no device memory, it
 * hands out block numbers and says which blocks to copy.
 *
 *   pool      one memory budget of equal slabs, whose number is fixed. A layer group of any space
 *             gets one when it needs a block, and gives it back when all of its blocks are free;
 *             or they are dealt when models come and go (kv_pool_opts.lend_at_load)
 *   space     one model x KV type: its layer groups and tokens per block; all adapters of the model
 *   sequence  tokens of one running choice: per group a table of block numbers
 *   tree      full blocks that can be reused, by a keyed hash chain over (space, tenant, salt,
 *             adapter, item ids); every hit compares the ids, so a collision is never a hit
 *
 * An item id is a token id. For a position of a medium (an image, a sound) it is a word of the
 * medium's digest with bit 31 set: media with the same digest share cached blocks, and for
 * different digests each position compares 31 bits. A medium whose rows attend both ways is a
 * joined range: it is reused as a whole, and no hit ends inside it.
 *
 * States of a block: free; filling (held by one sequence, some of its rows not computed); ready
 * (complete, in use); cached (complete, not in use: evictable); copying (target of a copy that no
 * step has done yet).
 *
 * One sequence at a time fills a block of the tree. Other sequences that need it next get KV_WAIT.
 * They adopt it once it is ready; if its filler gives up, the next sequence to ask fills it.
 *
 * Layer groups with a window or in chunks: a running sequence gives up blocks that its next row no
 * longer sees; in the tree they stay until evicted. A hit of n tokens counts only if every group
 * holds what a row at position n can see.
 *
 * Recurrent layers: a block of their group is the whole state of a sequence. Each sequence has its
 * own live state, which every step changes in place. A state can be neither cut nor rewound: a hit
 * of n tokens counts only if a snapshot was taken at exactly n, and adopting it copies the snapshot
 * to the live state. Partial blocks are never adopted there.
 *
 * Snapshots are sparse. They are taken at the end of a block: at the ends of messages that the
 * caller marks; at the last block end of a prompt that leaves a token to compute; where a look-up
 * found more tokens than any snapshot covers (the second visit of a branch); where a waiting
 * sequence would branch off. Chunks of rows end there (kv_seq_room). During generation one more is
 * taken every ROLL times the usual distance and replaces the last one. A sequence that ends at such
 * a place leaves its live state to the tree. A snapshot that cannot be taken fails no request.
 * Eviction starts with the snapshot that saves the fewest tokens (those since the previous one),
 * and favours recent use.
 *
 * In spaces with state a sequence waits for another one (its leader) that is about to take a
 * snapshot both can use, unless the leader makes no progress.
 *
 * Steps in flight: kv_pool_launched and kv_pool_retired report tickets. What a launched step may
 * read or write is freed only when the last step launched so far has retired.
 *
 * Threads: a pool and all that belongs to it are used by one thread at a time.
 * Cost: alloc, free and evict are O(1) (O(log tenants) where tenants have reserves); a look-up is
 * O(prompt / block); a decode token costs something at block boundaries only. */
#ifndef KVPOOL_KVPOOL_H
#define KVPOOL_KVPOOL_H

#include "base/base.h"

#define KV_BLOCK_INDEX_BITS 12 /* block number = slab << 12 | index in the slab */
#define KV_MAX_SLABS        (1u << (32 - KV_BLOCK_INDEX_BITS))
#define KV_NO_BLOCK         UINT32_MAX /* a table entry without a block (before a window) */

/* ---- pool (pool.c) --------------------------------------------------------------------------- */

struct kv_pool;
struct kv_pool_opts {
    uint64_t slab_bytes;
    uint32_t n_slabs;        /* 1 .. KV_MAX_SLABS - 1 */
    const uint8_t *key;      /* 16 bytes for the hash; NULL = random */
    uint32_t hash_bits;      /* 0 = all; tests cut the hash to force collisions */
    uint64_t max_thin_nodes; /* tree nodes of spaces without a group of span ALL, which blocks do
                              * not bound; 0 = 262144 */
    bool lend_at_load;       /* slabs change hands only in kv_space_add and kv_space_drop, which
                              * deal them again; else whenever a group needs one */
};
int kv_pool_new(const struct kv_pool_opts *opts, struct kv_pool **out, struct cn_error *err);
void kv_pool_free(struct kv_pool *p); /* every sequence closed; spaces go with it */

/* Tickets rise; steps retire in the order of launch. Retiring a step frees what waited for it. */
void kv_pool_launched(struct kv_pool *p, uint64_t ticket);
void kv_pool_retired(struct kv_pool *p, uint64_t ticket);

/* Guaranteed share of a tenant (numbered densely from 0): while it holds no more than this, its
 * cached blocks are not evicted for others. Unused shares are lent. CN_ENOMEM; CN_ERANGE: the
 * reserves together exceed the pool. */
int kv_pool_reserve(struct kv_pool *p, uint32_t tenant, uint64_t reserve_bytes);
/* Makes room for a tenant: evicts every cached block that its requests may evict, other tenants'
 * blocks included. `all`: ignores reserves (the last resort, when nothing runs and a request would
 * never end). */
void kv_pool_make_room(struct kv_pool *p, uint32_t tenant, bool all);
/* Drops the cached blocks of this tenant only. Blocks that its running sequences use stay, and can
 * still be found. */
void kv_pool_drop_cache(struct kv_pool *p, uint32_t tenant);
/* Ends a tenant: drops its cache and its reserve. The next tenant with its number finds none of its
 * blocks. CN_EBUSY: sequences of it are open, or closed and waiting for a ticket; then nothing has
 * changed. */
int kv_pool_tenant_end(struct kv_pool *p, uint32_t tenant);

enum kv_state { KV_FREE, KV_FILLING, KV_READY, KV_CACHED, KV_COPYING, KV_N_STATES };
struct kv_stats {
    /* A slab that no group has counts as free blocks of the first group. */
    uint64_t blocks[KV_N_STATES];
    uint64_t bytes[KV_N_STATES]; /* free: everything that is not in use */
    uint64_t n_slabs, n_slabs_free, slab_bytes;
    uint64_t n_nodes;                         /* logical blocks in the tree */
    uint64_t snapshots_taken, snapshots_used; /* of recurrent state, so far */
    uint64_t n_seqs;                          /* open, or closed and waiting for a ticket */
    uint64_t evictions;                       /* blocks evicted so far */
};
void kv_pool_stats(const struct kv_pool *p, struct kv_stats *out);

struct kv_tenant_stats {
    uint64_t held_bytes;   /* all blocks of the tenant */
    uint64_t cached_bytes; /* of these, evictable */
    uint64_t reserve_bytes;
    uint64_t evictions;
};
void kv_tenant_stats(const struct kv_pool *p, uint32_t tenant, struct kv_tenant_stats *out);

/* Full consistency check, O(everything): for tests. CN_EINTERNAL says what is wrong. */
int kv_check(struct kv_pool *p, struct cn_error *err);

/* ---- spaces (pool.c) ------------------------------------------------------------------------- */

enum kv_span {
    KV_SPAN_ALL,    /* a row sees every position up to its own */
    KV_SPAN_WINDOW, /* the last `tokens` positions, its own included */
    KV_SPAN_CHUNK,  /* from the last multiple of `tokens` up to its own */
    KV_SPAN_STATE   /* no positions: a block is the state of a whole sequence. A space has
                     * at most one such group */
};
struct kv_group {
    enum kv_span span;
    uint32_t tokens;      /* WINDOW, CHUNK: at least 1. STATE: the least distance of snapshots;
                           * 0 = two blocks */
    uint64_t block_bytes; /* 1 .. slab_bytes; a slab holds at most 4096 blocks */
};
struct kv_space;
struct kv_space_opts {
    const void *id; /* model and KV type: part of every key; copied */
    size_t id_len;
    uint32_t block_tokens;
    uint32_t n_groups;
    const struct kv_group *groups; /* copied */
    /* Where slabs are lent at load only: a sequence of so many tokens should fit, in steps of
     * chunk_tokens rows. 0: none in particular. */
    uint64_t longest;
    uint32_t chunk_tokens;
};
/* With kv_pool_opts.lend_at_load all spaces get the same number of slabs. In a space each group
 * gets slabs for the longest sequence, or for the longest that fits; the rest is divided in
 * proportion to what sequences of 1,024 tokens take. A slab of another space is taken if it
 * holds nothing, or only cached blocks above their tenants' reserves, and never one that an open
 * sequence may come to need (its max_tokens). What is not taken stays until the next deal. */
int kv_space_add(struct kv_pool *p, const struct kv_space_opts *opts, struct kv_space **out,
                 struct cn_error *err);
/* Drops the space and its cache; its slabs go to the others. CN_EBUSY: sequences of it are open, or
 * closed and waiting for a ticket. */
int kv_space_drop(struct kv_space *s);
uint32_t kv_space_block_tokens(const struct kv_space *s);
uint32_t kv_space_n_groups(const struct kv_space *s);
/* The longest sequence of the tenant that fits when nothing else runs and other tenants keep their
 * reserves; chunk_tokens = the most rows of a sequence in a step. */
uint64_t kv_space_max_tokens(const struct kv_space *s, uint32_t tenant, uint32_t chunk_tokens);
/* Likewise: the slabs that n_tokens would take, and those that the tenant can get. */
void kv_space_need(const struct kv_space *s, uint32_t tenant, uint64_t n_tokens,
                   uint32_t chunk_tokens, uint64_t *need_slabs, uint64_t *have_slabs);
/* Bytes of the blocks that n_tokens take, including the state. */
uint64_t kv_space_bytes(const struct kv_space *s, uint64_t n_tokens, uint32_t chunk_tokens);
/* Bytes of the state of a sequence; 0 in a space without state. */
uint64_t kv_space_state_bytes(const struct kv_space *s);
/* Bytes of one block of tokens, summed over the groups; in a space with state alone, of the state.
 * */
uint64_t kv_space_block_bytes(const struct kv_space *s);

/* ---- items of media (media.c) ---------------------------------------------------------------- */

#define KV_MEDIA        0x80000000u /* bit of an item id: the item belongs to a medium */
#define KV_DIGEST_BYTES 32
/* The ids of a medium's n positions: the digest's words in turn. The digest covers everything that
 * the rows are computed from: contents, how they are cut, positions, whether they attend both ways.
 * */
void kv_media_ids(const uint8_t digest[KV_DIGEST_BYTES], uint64_t n, uint32_t *out);

struct kv_range { uint64_t first, n; };
/* The range that pos would cut: it has positions below pos and from pos on. NULL: no range has. The
 * n ranges ascend and do not overlap. O(log n). */
const struct kv_range *kv_range_cut(const struct kv_range *v, uint32_t n, uint64_t pos);

/* ---- sequences (seq.c) ------------------------------------------------------------------------
 * Life: open; then for each step: match (while items known in advance are left), extend, launch the
 * step, commit; at last close. */

struct kv_seq;
enum {
    KV_SEQ_NO_READ = 1,  /* never adopts blocks of the tree */
    KV_SEQ_NO_WRITE = 2, /* its blocks never enter the tree */
    KV_SEQ_NO_LEAD = 4,  /* no other sequence waits for its snapshots */
};
struct kv_seq_opts {
    uint32_t tenant;
    uint64_t salt;    /* a narrower namespace within the tenant's; 0 = none */
    uint32_t adapter; /* of the model, 0 = none; part of the key of cached blocks */
    uint32_t flags;
    uint64_t max_tokens;   /* capacity of the tables (they never move) */
    uint64_t share_tokens; /* positions from here on never enter the tree; 0 = no bound */
    const uint64_t *marks; /* ends of messages, ascending, where snapshots are wanted; copied */
    uint32_t n_marks;
    const struct kv_range *joined; /* ascending ranges; no hit ends inside one. Borrowed while the
                                    * sequence or a fork of it is open */
    uint32_t n_joined;
};
int kv_seq_open(struct kv_space *s, const struct kv_seq_opts *opts, struct kv_seq **out);
/* Gives everything back: at once, or after the steps in flight if they have rows of it. Blocks of
 * rows that were extended and not committed are dropped. q may be NULL. */
void kv_seq_close(struct kv_seq *q);
/* As kv_seq_close, but blocks that q computed itself leave the tree or never enter it, because
 * their contents cannot be trusted. */
void kv_seq_close_failed(struct kv_seq *q);

enum kv_match {
    KV_GO,   /* compute from kv_seq_planned on */
    KV_WAIT, /* what comes next is being computed by another sequence */
};
/* Adopts the blocks of the tree that follow the sequence's end. ids: the n items known so far, from
 * position 0; at least the last one is left to compute. May plan a copy (of a block that matches in
 * part). Cheap to call again while it returns KV_WAIT. With rows in flight it returns KV_GO and
 * does nothing. *adopted (may be NULL) = tokens gained by this call. In spaces with state ids must
 * stay readable until the next match, truncate or close; without room for a live state nothing is
 * adopted. */
enum kv_match kv_seq_match(struct kv_seq *q, const uint32_t *ids, uint64_t n, uint64_t *adopted);
/* Whether the last match returned KV_WAIT and its reason still holds. */
bool kv_seq_waits(struct kv_seq *q);
/* q could run but others went first. Sequences that wait for its snapshots keep waiting; without
 * this call or progress of q they stop waiting after some launches. */
void kv_seq_in_line(struct kv_seq *q);
/* q waits for no snapshot of another sequence before its next rows. For the case that nothing else
 * can run. */
void kv_seq_no_wait(struct kv_seq *q);
/* Rows up to the next wanted snapshot; UINT64_MAX if none is wanted. Extending further is allowed
 * but skips that snapshot. */
uint64_t kv_seq_room(const struct kv_seq *q);
/* How many items a new sequence would find in the tree, for the order of the queue; nothing is
 * taken. as: its tenant, salt, adapter and joined ranges. *in_use (may be NULL): how many of these
 * running sequences hold, so that adopting them takes no memory. */
uint64_t kv_space_peek(const struct kv_space *s, const struct kv_seq_opts *as, const uint32_t *ids,
                       uint64_t n, uint64_t *in_use);
/* Reserves blocks for the next n rows, those of one step. ids: the n items of these rows, with
 * which whole blocks are announced as filling; NULL when they are not known yet. CN_ENOMEM: there
 * are not enough blocks now; nothing has changed. CN_ERANGE: past max_tokens. */
int kv_seq_extend(struct kv_seq *q, uint32_t n, const uint32_t *ids);
/* The next n extended rows are computed; ids are their items. Full blocks enter the tree; blocks
 * that windows have passed are given up. */
void kv_seq_commit(struct kv_seq *q, const uint32_t *ids, uint32_t n);
/* Forgets the rows from n_tokens on, planned or committed. Not while a step with rows of it is in
 * flight. CN_ENOMEM: a shared block would have to be copied, without room for it. CN_ENOENT: blocks
 * of a window are gone, or rows were launched and no snapshot is at n_tokens. After an error
 * nothing has changed. */
int kv_seq_truncate(struct kv_seq *q, uint64_t n_tokens);
/* A new sequence with as many of the first n_tokens items of q as need no computing: shared blocks,
 * and a copy of a partial one. ids: n_tokens items of q, all committed. It may be shorter than
 * n_tokens (with state it ends at the last snapshot); use it like one just opened. CN_ENOMEM. */
int kv_seq_fork(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens, uint64_t max_tokens,
                struct kv_seq **out);

/* The blocks that a row at position `to` sees and that hold positions from `from` on, ordered by
 * group and position; for a STATE group the live state, with index 0. These are the blocks to save
 * so that q can be resumed later (from 0, to its length), and those to restore after kv_seq_resume
 * (from its length, to kv_seq_planned). Returns their number; out may be NULL, to count. 0: there
 * is no such block, or a copy of q is not done yet. */
struct kv_held {
    uint32_t group, block;
    uint64_t index; /* logical block */
};
uint32_t kv_seq_held(const struct kv_seq *q, uint64_t from, uint64_t to, struct kv_held *out);
/* For a sequence just opened: takes blocks for n_tokens items whose rows another sequence computed
 * before it was closed. In spaces without state it first adopts whole blocks of the tree;
 * kv_seq_length then says how many items. The caller restores the contents of the blocks from there
 * on (kv_seq_held) and commits the items, as if the rows had been computed. Blocks of windows do
 * not enter the tree. Such blocks may be used, shared and given up at once, while their contents
 * are still on the way: the device moves, copies and steps in the order of the calls. CN_ENOMEM:
 * there are not enough blocks now; close q. */
int kv_seq_resume(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens);

uint64_t kv_seq_length(const struct kv_seq *q);  /* committed (or adopted) tokens */
uint64_t kv_seq_planned(const struct kv_seq *q); /* the next row's position */
uint64_t kv_seq_cached(const struct kv_seq *q);  /* leading tokens that are in the tree */
/* Per group: block number of each logical block; for a STATE group one entry, the sequence's state
 * (KV_NO_BLOCK before its first row). The pointers are valid and constant until close. */
const uint32_t *const *kv_seq_tables(const struct kv_seq *q);
/* The first logical block of the group whose table entry may have changed since the last call (at
 * the first call: since an empty table); UINT32_MAX = no entry has. Entries that were given up,
 * before a window or past the sequence's end, do not count. For a device that keeps a copy of the
 * tables. */
uint32_t kv_seq_changed(struct kv_seq *q, uint32_t group);
/* All blocks that it uses, in all groups; and their bytes. */
uint64_t kv_seq_n_blocks(const struct kv_seq *q);
uint64_t kv_seq_bytes(const struct kv_seq *q);

/* Copies to do before the step that has the sequence's next rows: in a group, the first n_tokens of
 * block src to block dst (in a STATE group the whole block). Both blocks are kept until those rows
 * are committed. Each copy is returned once; then it returns 0 until there are new ones. At most
 * one more than the space has groups. */
struct kv_copy { uint32_t group, dst, src, n_tokens; };
uint32_t kv_seq_copies(struct kv_seq *q, const struct kv_copy **out);

#endif
