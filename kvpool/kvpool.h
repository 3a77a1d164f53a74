/* kvpool: which block of KV memory holds what. Bookkeeping only: it touches no device memory, it
 * hands out block numbers and says which blocks to copy.
 *
 *   pool      one memory budget of equal slabs, lent on demand to the layer groups of its spaces;
 *             a slab whose blocks are all free goes back
 *   space     one model x KV type: its layer groups and tokens per block; all adapters of the model
 *   sequence  tokens of one running choice: per group a table of block numbers
 *   tree      full blocks that can be used again, keyed by a keyed hash chain over (space, tenant,
 *             salt, adapter, item ids); the ids are compared on every hit, so a collision is never a hit
 *
 * An item id is a token id, or for a position of a medium (an image, a sound) a word of its digest with
 * bit 31 set. Media of one digest share what is cached; of different digests each position compares 31
 * bits. Where rows of a medium see each other both ways, what is cached of it counts only as a whole:
 * such a range is joined, and a hit never ends inside.
 *
 * States of a block: free; filling (held by one sequence whose rows are not all computed); ready
 * (complete, in use); cached (complete, used by nobody: evictable); copying (target of a copy that
 * a step has not done yet).
 *
 * A block of the tree is filled by one sequence at a time: others whose next block it is are told
 * KV_WAIT; when it is ready they adopt it, when its filler gives up the next one to ask fills it.
 *
 * Layer groups with a window or in chunks: blocks wholly behind what a sequence's next row sees are
 * given up while it runs; in the tree they stay until evicted. A hit of n tokens counts only where
 * every group holds what a row at position n can see.
 *
 * Recurrent layers: a block of their group is the whole state of a sequence. Each sequence has one
 * of its own, its live state, which every step changes in place. Such a state can be neither cut
 * nor rewound: a hit of n tokens counts only where a snapshot was taken at exactly n, and adopting
 * it copies the snapshot to the live state. Parts of blocks are never adopted there.
 *
 * Snapshots are sparse. They stand at the end of a block, where one is wanted: at the ends of
 * messages that the caller marks; at the last place of a prompt that leaves a token to compute;
 * where a look-up found more tokens than any snapshot covers (the second visit of a branch); where
 * another sequence that waits would branch off. Chunks of rows end there (kv_seq_room). During
 * generation one more is taken at ROLL times the usual distance, replacing the last. A sequence
 * that ends at such a place leaves its live state. Taking one never fails a request. The first
 * evicted saves the fewest tokens (those since the previous one), favouring recent use.
 *
 * In spaces with state a sequence waits for another one (its leader) when that is about to take a
 * snapshot that both can use; not for one that makes no headway.
 *
 * Steps in flight: kv_pool_launched and kv_pool_retired tell of tickets. What a launched step may
 * read or write is freed only once the last step launched so far has retired.
 *
 * Threads: a pool and all that belongs to it are used by one thread at a time.
 * Cost: alloc, free and evict are O(1) (O(log tenants) where tenants have reserves); a look-up is
 * O(prompt / block); a decode token costs nothing but at block boundaries. */
#ifndef KVPOOL_KVPOOL_H
#define KVPOOL_KVPOOL_H

#include "base/base.h"

#define KV_BLOCK_INDEX_BITS 12              /* block number = slab << 12 | index in the slab */
#define KV_MAX_SLABS (1u << (32 - KV_BLOCK_INDEX_BITS))
#define KV_NO_BLOCK UINT32_MAX              /* table entry that is not there (behind a window) */

/* ---- pool (pool.c) --------------------------------------------------------------------------- */

struct kv_pool;
struct kv_pool_opts {
    uint64_t slab_bytes;
    uint32_t n_slabs;        /* 1 .. KV_MAX_SLABS - 1 */
    const uint8_t *key;      /* 16 bytes for the hash; NULL = random */
    uint32_t hash_bits;      /* 0 = all; tests cut the hash to force collisions */
    uint64_t max_thin_nodes; /* of the trees of spaces without a group of span ALL, where blocks do
                              * not bound them; 0 = 262144 */
};
int kv_pool_new(const struct kv_pool_opts *opts, struct kv_pool **out, struct cn_error *err);
void kv_pool_free(struct kv_pool *p); /* every sequence closed; spaces go with it */

/* Tickets rise; steps retire in the order of launch. Retiring frees what waited for it. */
void kv_pool_launched(struct kv_pool *p, uint64_t ticket);
void kv_pool_retired(struct kv_pool *p, uint64_t ticket);

/* Guaranteed share of a tenant (numbered densely from 0): its cached blocks are not evicted for
 * others while it holds no more than this. Unused shares are lent. CN_ENOMEM; CN_ERANGE: all
 * reserves together are more than the pool. */
int kv_pool_reserve(struct kv_pool *p, uint32_t tenant, uint64_t reserve_bytes);
/* Makes room for a tenant: evicts every cached block that its requests may evict, other tenants'
 * too. `all`: past reserves (the last resort when nothing runs and a request would never end). */
void kv_pool_make_room(struct kv_pool *p, uint32_t tenant, bool all);
/* Drops what is cached of this tenant and of no other. Blocks that its running sequences use stay,
 * and are found as before. */
void kv_pool_drop_cache(struct kv_pool *p, uint32_t tenant);
/* Ends a tenant: drops its cache and its reserve. Whoever gets its number next is another tenant,
 * who finds nothing of what this one computed. CN_EBUSY, with nothing changed: sequences of it are
 * open, or closed and waiting for a ticket. */
int kv_pool_tenant_end(struct kv_pool *p, uint32_t tenant);

enum kv_state { KV_FREE, KV_FILLING, KV_READY, KV_CACHED, KV_COPYING, KV_N_STATES };
struct kv_stats {
    uint64_t blocks[KV_N_STATES]; /* free: slabs not lent count as the first group would cut them */
    uint64_t bytes[KV_N_STATES];  /* free: everything that holds nothing */
    uint64_t n_slabs, n_slabs_free, slab_bytes;
    uint64_t n_nodes;             /* logical blocks in the tree */
    uint64_t snapshots_taken, snapshots_used; /* of recurrent state, so far */
    uint64_t n_seqs;              /* open, or closed and waiting for a ticket */
    uint64_t evictions;           /* blocks evicted so far */
};
void kv_pool_stats(const struct kv_pool *p, struct kv_stats *out);

struct kv_tenant_stats {
    uint64_t held_bytes;          /* all blocks of the tenant */
    uint64_t cached_bytes;        /* of these, evictable */
    uint64_t reserve_bytes;
    uint64_t evictions;
};
void kv_tenant_stats(const struct kv_pool *p, uint32_t tenant, struct kv_tenant_stats *out);

/* Full consistency check, O(everything): for tests. CN_EINTERNAL says what is wrong. */
int kv_check(struct kv_pool *p, struct cn_error *err);

/* ---- spaces (pool.c) ------------------------------------------------------------------------- */

enum kv_span {
    KV_SPAN_ALL,                  /* a row sees every position up to its own */
    KV_SPAN_WINDOW,               /* the last `tokens` positions, its own included */
    KV_SPAN_CHUNK,                /* from the last multiple of `tokens` up to its own */
    KV_SPAN_STATE                 /* none: a block is the state of a whole sequence. At most one
                                   * group of a space */
};
struct kv_group {
    enum kv_span span;
    uint32_t tokens;              /* WINDOW, CHUNK: at least 1. STATE: there are at least so many
                                   * between snapshots; 0 = two blocks */
    uint64_t block_bytes;         /* 1 .. slab_bytes; a slab holds at most 4096 blocks */
};
struct kv_space;
struct kv_space_opts {
    const void *id;               /* model, KV type: goes into every key; copied */
    size_t id_len;
    uint32_t block_tokens;
    uint32_t n_groups;
    const struct kv_group *groups; /* copied */
};
int kv_space_add(struct kv_pool *p, const struct kv_space_opts *opts, struct kv_space **out,
                 struct cn_error *err);
/* Every sequence of it closed and retired (CN_EBUSY otherwise); its cache is dropped. */
int kv_space_drop(struct kv_space *s);
uint32_t kv_space_block_tokens(const struct kv_space *s);
uint32_t kv_space_n_groups(const struct kv_space *s);
/* The longest sequence that fits when nothing else runs, the reserves of others left alone;
 * chunk_tokens = the most rows that one step gives a sequence. *need (if not NULL) = slabs that
 * n_tokens would take, *have = slabs that tenant can get. */
uint64_t kv_space_max_tokens(const struct kv_space *s, uint32_t tenant, uint32_t chunk_tokens);
void kv_space_need(const struct kv_space *s, uint32_t tenant, uint64_t n_tokens,
                   uint32_t chunk_tokens, uint64_t *need_slabs, uint64_t *have_slabs);
/* Bytes of the blocks that n_tokens take, the state included. */
uint64_t kv_space_bytes(const struct kv_space *s, uint64_t n_tokens, uint32_t chunk_tokens);
/* Bytes of the state of a sequence; 0 where there is none. */
uint64_t kv_space_state_bytes(const struct kv_space *s);
/* Bytes of one block of tokens over all groups; where there are none, of the state. */
uint64_t kv_space_block_bytes(const struct kv_space *s);

/* ---- items that are no tokens (media.c) -------------------------------------------------------- */

#define KV_MEDIA 0x80000000u      /* of an item id: it is of a medium */
#define KV_DIGEST_BYTES 32
/* The ids of a medium's n positions: the digest's words in turn. The digest is of all that its rows are
 * computed from: contents, how they were cut, positions, how they see each other. */
void kv_media_ids(const uint8_t digest[KV_DIGEST_BYTES], uint64_t n, uint32_t *out);

struct kv_range { uint64_t first, n; };
/* Of n ascending ranges that do not overlap the one that has positions both before pos and from pos on;
 * NULL: none. O(log n). */
const struct kv_range *kv_range_cut(const struct kv_range *v, uint32_t n, uint64_t pos);

/* ---- sequences (seq.c) ------------------------------------------------------------------------
 * Life: open; then again and again: match (while tokens known in advance are left), extend, launch
 * the step, commit (or abort); at last close. */

struct kv_seq;
enum { KV_SEQ_NO_READ = 1,        /* never adopts blocks of the tree */
       KV_SEQ_NO_WRITE = 2,       /* its blocks never enter the tree */
       KV_SEQ_NO_LEAD = 4 };      /* no other sequence waits for its snapshots */
struct kv_seq_opts {
    uint32_t tenant;
    uint64_t salt;                /* a narrower namespace within the tenant's; 0 = none */
    uint32_t adapter;             /* of the model, 0 = none: what was computed with one is found by
                                   * nobody who has another one */
    uint32_t flags;
    uint64_t max_tokens;          /* the tables are made for so many (they never move) */
    uint64_t share_tokens;        /* positions from here on never enter the tree; 0 = no bound */
    const uint64_t *marks;        /* ends of messages, ascending: worth a snapshot; copied */
    uint32_t n_marks;
    const struct kv_range *joined; /* ranges inside of which no hit ends, ascending; borrowed as long
                                    * as it is open, and as long as its forks are */
    uint32_t n_joined;
};
int kv_seq_open(struct kv_space *s, const struct kv_seq_opts *opts, struct kv_seq **out);
/* Gives everything back: at once, or when the steps in flight have retired if rows of it are in
 * one. Blocks of rows that were extended and not committed are dropped. NULL is fine. */
void kv_seq_close(struct kv_seq *q);
/* As close, but whatever q computed itself leaves the tree or never enters it: its contents cannot
 * be trusted. */
void kv_seq_close_failed(struct kv_seq *q);

enum kv_match { KV_GO,            /* compute from kv_seq_planned on */
                KV_WAIT };        /* what comes next is being computed by another sequence */
/* Adopts from the tree what follows the sequence's end, given the n items known so far (all of
 * them, from position 0); at least the last one is left to compute. May make a copy plan (a block
 * that agrees in part). Cheap to call again while it answers KV_WAIT. With rows in flight it
 * answers KV_GO and does nothing. *adopted (may be NULL) = tokens gained by this call.
 * With state: ids stay readable until the next match, truncate or close; when there is no room for
 * a live state nothing is adopted. */
enum kv_match kv_seq_match(struct kv_seq *q, const uint32_t *ids, uint64_t n, uint64_t *adopted);
/* Whether the last match answered KV_WAIT, and what it waits for is still to come. */
bool kv_seq_waits(struct kv_seq *q);
/* q could run but others went first: sequences waiting for its snapshots keep waiting. Without this
 * call or progress, they give up on q after some launches. */
void kv_seq_in_line(struct kv_seq *q);
/* It waits for nobody's snapshot before its next rows: when nothing else can be done. */
void kv_seq_no_wait(struct kv_seq *q);
/* Rows up to the next wanted snapshot; UINT64_MAX if none is wanted. Extending further is allowed
 * but skips that snapshot. */
uint64_t kv_seq_room(const struct kv_seq *q);
/* How many items a new sequence would find, without taking anything (for queue order); as: its
 * tenant, salt, adapter and joined ranges. *in_use (may be NULL): of these, held by running sequences, so that
 * adopting them costs no memory. */
uint64_t kv_space_peek(const struct kv_space *s, const struct kv_seq_opts *as, const uint32_t *ids,
                       uint64_t n, uint64_t *in_use);
/* Reserves blocks for the next n rows, those of one step. ids: the n items of these rows, so that
 * whole blocks are announced as being filled; NULL when they are not known yet. CN_ENOMEM: the
 * blocks cannot be had now, and nothing has changed. CN_ERANGE: past max_tokens. */
int kv_seq_extend(struct kv_seq *q, uint32_t n, const uint32_t *ids);
/* The next n rows of those that were extended are computed; ids are their items. Full blocks enter
 * the tree; blocks behind windows are given up. */
void kv_seq_commit(struct kv_seq *q, const uint32_t *ids, uint32_t n);
/* Forgets rows from n_tokens on (planned ones, or committed ones). CN_ENOMEM: a shared block would
 * have to be copied and there is no room; CN_ENOENT: a window's blocks are gone, or rows were
 * launched and there is no snapshot at n_tokens. Then nothing has changed. Not while a step that
 * computes rows of it is in flight. */
int kv_seq_truncate(struct kv_seq *q, uint64_t n_tokens);
/* A new sequence with the first n_tokens items of q as far as they can be had without computing:
 * shared blocks, and a copy of a partial one. ids: q's items, n_tokens of them, all committed. It
 * may end up shorter than n_tokens (with state: where the last snapshot is): go on as after open.
 * CN_ENOMEM. */
int kv_seq_fork(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens, uint64_t max_tokens,
                struct kv_seq **out);

/* The blocks that a row at position `to` sees and that hold positions from `from` on: what has to be
 * kept elsewhere so that q can be resumed (from 0, to its length), or brought back (after kv_seq_resume,
 * from its length to kv_seq_planned). By group and position; of a STATE group the live state, with index
 * 0. out may be NULL, to count. 0: there is nothing, or a copy of q is still to be done. */
struct kv_held {
    uint32_t group, block;
    uint64_t index;               /* logical block */
};
uint32_t kv_seq_held(const struct kv_seq *q, uint64_t from, uint64_t to, struct kv_held *out);
/* For a sequence that was just opened: takes blocks for n_tokens items whose rows were computed before, by
 * one that was closed. Where there is no state, whole blocks of the tree are adopted first. Then
 * kv_seq_length tells what was adopted, the caller has the contents of the blocks from there on brought
 * back (kv_seq_held), and commits the items; as if the rows had been computed. Blocks of windows do not
 * enter the tree. CN_ENOMEM: the blocks cannot be had now; close q. */
int kv_seq_resume(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens);

uint64_t kv_seq_length(const struct kv_seq *q);   /* committed (or adopted) tokens */
uint64_t kv_seq_planned(const struct kv_seq *q);  /* the next row's position */
uint64_t kv_seq_cached(const struct kv_seq *q);   /* leading tokens that are in the tree */
/* Per group: block number of each logical block; of a STATE group one entry, the sequence's state
 * (KV_NO_BLOCK before its first row). The pointers stay the same while it is open. */
const uint32_t *const *kv_seq_tables(const struct kv_seq *q);
/* The first logical block of the group whose table entry may differ from what it was at the call
 * before (at the first call: from an empty table); UINT32_MAX = none. Entries that were given up,
 * behind a window or beyond the sequence's end, do not count. For whoever keeps a copy of the
 * tables and is sent changes only. */
uint32_t kv_seq_changed(struct kv_seq *q, uint32_t group);
/* All blocks it uses, over all groups; and their bytes. */
uint64_t kv_seq_n_blocks(const struct kv_seq *q);
uint64_t kv_seq_bytes(const struct kv_seq *q);

/* Copies to be done before the step that has the sequence's next rows: per group, the first
 * n_tokens of block src to block dst (of a STATE group the whole block). Both stay put until those
 * rows are committed. Handed out once: after that it answers 0 until there are new ones. At most
 * one more than the space has groups. */
struct kv_copy {
    uint32_t group, dst, src, n_tokens;
};
uint32_t kv_seq_copies(struct kv_seq *q, const struct kv_copy **out);

#endif
