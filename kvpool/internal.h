/* Inside kvpool: slabs, blocks, lanes of evictable blocks, nodes of the tree, sequences.
 *
 * Invariants (kv_check walks them):
 *   - a sequence pins every node of its chain, root included; so an unpinned node has only unpinned
 *     descendants;
 *   - pins are dropped from the leaf to the root, so a lane, ordered by the time of unpinning,
 *     always has a leaf at its head;
 *   - of full groups a node of the tree holds every block; of loose groups (windows, chunks, the
 *     state) it may have lost it. */
#ifndef KVPOOL_INTERNAL_H
#define KVPOOL_INTERNAL_H

#include "kvpool/kvpool.h"

#include <stddef.h>

#define KV_NONE            UINT32_MAX
#define KV_MAX_SLAB_BLOCKS (1u << KV_BLOCK_INDEX_BITS)

struct kv_node;
struct kv_seq;
struct kv_grp;

struct kv_blk {
    uint32_t tenant;
    uint32_t next_free;   /* next free block of the slab, by index */
    uint32_t refs;        /* its holder, and copies reading it */
    uint32_t seen;        /* kv_check's own */
    uint8_t state;        /* enum kv_state */
    struct kv_node *node; /* NULL: only a sequence holds it */
};

struct kv_slab {
    struct kv_grp *grp; /* NULL: not lent */
    struct kv_blk *blks;
    uint32_t n_used, n_cached, free_head;
    uint32_t prev, next; /* in the list named by `list` */
    uint8_t list;
};
enum { SLAB_NOWHERE, SLAB_FREE, SLAB_PARTIAL };

/* A doubly linked list of slabs by number. */
struct kv_slab_list { uint32_t head, tail; };

struct kv_ent {                 /* one group's block of a node: kv_ent_node */
    struct kv_ent *prev, *next; /* in the tenant's lane */
    uint64_t stamp;
    uint64_t credit; /* snapshots: the group's age at the last use */
    uint64_t writer; /* snapshots: serial of the sequence that took the last one here */
    uint32_t block;  /* KV_NO_BLOCK: lost */
    uint32_t refs;   /* loose groups: sequences that can still see it; snapshots: copies */
    uint32_t seen;   /* kv_check's own */
    uint8_t group;
    bool linked;
};

/* Evictable blocks of one tenant in one group, oldest first. */
struct kv_lane {
    struct kv_ent *head, *tail;
    uint32_t tenant;
    uint32_t heap_pos; /* in the group's heap, KV_NONE when not there */
};

struct kv_grp {
    struct kv_space *space;
    uint32_t id;    /* in the pool */
    uint32_t index; /* in the space */
    enum kv_span span;
    uint32_t tokens; /* STATE: the least tokens between snapshots */
    uint64_t age;    /* STATE: sum of the worth of evicted snapshots */
    bool loose;      /* span other than ALL: blocks are evicted one by one */
    uint64_t block_bytes;
    uint32_t slab_blocks;
    struct kv_slab_list partial; /* its slabs with a free block */
    uint32_t n_slabs;
    uint64_t due, least; /* slabs, of the last deal: those it should have; those that its sequences
                          * may come to need, which it is not deprived of */
    struct kv_grp *lane_grp; /* its lanes hold the evictable blocks; full groups share one */
    struct kv_lane **heap;   /* lanes of tenants that may be evicted from, oldest head on top */
    size_t heap_cap;
    uint32_t heap_len, n_lanes;
};

struct kv_space {
    struct kv_pool *pool;
    struct kv_space *next;
    uint8_t id_key[16];
    uint32_t block_tokens, n_groups, chunk_tokens;
    uint64_t longest;
    struct kv_grp *primary; /* the first full group; NULL when there is none */
    struct kv_grp *state;   /* the STATE group; NULL when there is none */
    uint64_t n_seqs;
    struct kv_node *node_pool;     /* free nodes, linked by hnext */
    struct kv_node_batch *batches; /* memory of the nodes */
    struct kv_node *roots;         /* linked by sib_next */
    struct kv_grp grp[];
};

enum kv_node_state { NODE_FILLING, NODE_READY };
struct kv_node {
    uint64_t key[2];
    struct kv_node *hnext;
    struct kv_node *parent; /* NULL: a root, one per (space, tenant, generation,
                             * salt, adapter) */
    struct kv_node *child, *sib_prev, *sib_next;
    struct kv_space *space;
    union {
        uint64_t salt;   /* roots */
        uint64_t writer; /* others: serial of the sequence that computed it */
    };
    uint32_t tenant, pins;
    uint32_t seen; /* kv_check's own */
    uint8_t state;
    bool dead;             /* lookups skip it; freed with its last pin */
    struct kv_seq *filler; /* FILLING: its filler; READY: who recomputes lost blocks, or NULL */
    union {
        struct kv_node *fill_prev;
        uint32_t adapter; /* roots, which have no filler */
    };
    struct kv_node *fill_next;
    struct kv_seq *waiters;
    struct kv_ent ent[]; /* one of each group; the ids follow, see kv_node_ids */
};

struct kv_tenant {
    uint64_t held_bytes, cached_bytes, reserve_bytes, evictions;
    struct kv_lane **lanes; /* by group id */
    size_t lanes_cap;
    uint32_t generation; /* number of tenants that had this number before */
    bool exposed;        /* others may evict its cached blocks */
};

struct kv_stale {
    uint64_t ticket;
    uint32_t block;
};

struct kv_pool {
    uint64_t slab_bytes;
    uint32_t n_slabs, n_slabs_free;
    bool lend_at_load;
    uint8_t key[16];
    uint64_t hash_mask;
    struct kv_slab *slabs;
    struct kv_slab_list free_slabs;
    uint32_t steal_at; /* where the next search for a slab to take back begins */
    struct kv_space *spaces;
    struct kv_grp **grps; /* by id */
    size_t grps_cap;
    uint32_t n_grps;
    struct kv_tenant *tenants;
    size_t tenants_cap;
    uint32_t n_tenants;
    uint64_t reserve_total;
    struct kv_node **buckets;
    uint64_t n_buckets, n_nodes, n_roots, n_thin, max_thin; /* thin: in spaces without primary */
    uint64_t stamp, serial;
    uint64_t blocks[KV_N_STATES], bytes[KV_N_STATES]; /* KV_FREE not kept here */
    uint64_t evictions, n_seqs, snapshots_taken, snapshots_used;
    uint64_t launched, retired;
    struct kv_stale *stale; /* queue of blocks that a step in flight may still use */
    size_t stale_cap, stale_head, stale_len;
    struct kv_seq *zombies, **zombies_tail;
    struct kv_seq *seqs; /* all sequences, zombies included */
};

#define KV_MAX_SNAPS 4
struct kv_snap {
    uint64_t pos;
    uint32_t block;
    bool rolling;
};

struct kv_seq {
    struct kv_space *space;
    struct kv_node *root;
    uint64_t serial;
    uint32_t tenant, flags;
    uint64_t max_tokens, share_tokens;
    uint64_t len, planned;
    uint64_t n_blocks; /* logical blocks, those before windows included */
    uint64_t cap_blocks;
    uint64_t n_chain; /* leading blocks that are complete nodes */
    uint64_t n_named; /* leading blocks with a node, complete or being filled */
    bool detached;    /* blocks from n_chain on stay out of the tree */
    bool copies_taken, closed;
    uint32_t **tables;      /* per group; the STATE group has one entry, the live state */
    uint64_t *first;        /* per group: first logical block still held */
    uint32_t *changed;      /* per group: first table entry set since kv_seq_changed; UINT32_MAX =
                             * none */
    struct kv_node **nodes; /* per logical block; NULL: only this sequence holds it */
    uint32_t *tail;         /* ids of the incomplete block up to len */
    struct kv_node *fills;
    struct kv_seq **wait; /* the list of waiters that it is in: a node's or its leader's */
    struct kv_seq *leader, *followers;
    bool no_wait;
    uint64_t active_at;   /* steps launched when it last made headway */
    uint64_t extended_at; /* steps launched when the rows from len on were reserved */
    const uint32_t *ids;  /* borrowed from the last match, to compare prefixes */
    uint64_t n_ids;
    const struct kv_range *joined;
    uint32_t n_joined;
    uint64_t *marks, *wants; /* wants: wanted positions from planned on, ascending */
    uint32_t n_marks, n_wants, cap_wants;
    struct kv_snap snaps[KV_MAX_SNAPS]; /* being copied, ascending */
    uint32_t n_snaps;
    bool snap_new;     /* the last snapshot's copy was not handed out yet */
    uint64_t snap_pos; /* position of the last known snapshot before planned */
    uint64_t rolled;   /* position of its last rolling snapshot; 0 = none */
    struct kv_seq *wait_prev, *wait_next;
    struct kv_copy *copies; /* [n_copies]; then the copy of a new snapshot, if snap_new */
    uint32_t n_copies;
    uint64_t copy_block;      /* logical block that the copies fill */
    struct kv_node *copy_src; /* pinned source; NULL: refs hold the source blocks */
    uint64_t tag;             /* zombie: freed when this ticket has retired */
    struct kv_seq *zombie_next;
    struct kv_seq *all_prev, *all_next;
};

/* Whether the sequence could end at pos: that is not inside a joined range. */
static inline bool kv_may_end(const struct kv_seq *q, uint64_t pos)
{
    return !q->n_joined || !kv_range_cut(q->joined, q->n_joined, pos);
}
static inline uint64_t kv_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}
static inline struct kv_node *kv_ent_node(const struct kv_ent *e)
{
    return (struct kv_node *)((char *)(e - e->group) - offsetof(struct kv_node, ent));
}
static inline uint32_t *kv_node_ids(const struct kv_node *n)
{
    return (uint32_t *)&n->ent[n->space->n_groups];
}
/* The generation of a root's tenant, kept in place of ids, which a root has not. */
static inline uint32_t *kv_root_generation(const struct kv_node *root)
{
    return kv_node_ids(root);
}
/* First position that a row at position n sees in this group (not the STATE group). */
static inline uint64_t kv_first_seen(const struct kv_grp *g, uint64_t n)
{
    if (g->span == KV_SPAN_WINDOW) return n + 1 > g->tokens ? n + 1 - g->tokens : 0;
    return g->span == KV_SPAN_CHUNK ? n - n % g->tokens : 0;
}
/* The live state of a sequence, in a space with state. */
static inline uint32_t *kv_live(const struct kv_seq *q)
{
    return q->tables[q->space->state->index];
}
/* Table entries of a group from i on may have changed. */
static inline void kv_mark(struct kv_seq *q, uint32_t group, uint64_t i)
{
    if (i < q->changed[group]) q->changed[group] = (uint32_t)i;
}
static inline struct kv_blk *kv_blk_of(const struct kv_pool *p, uint32_t block)
{
    return &p->slabs[block >> KV_BLOCK_INDEX_BITS].blks[block & (KV_MAX_SLAB_BLOCKS - 1)];
}

/* ---- pool.c ---------------------------------------------------------------------------------- */
/* Allocates what evictions for a tenant in a space need, so that they cannot fail later. */
int kv_pool_admit(struct kv_space *s, uint32_t tenant);
/* Blocks of the group that a sequence of n_tokens takes. */
uint64_t kv_blocks_for(const struct kv_grp *g, uint64_t n_tokens, uint32_t chunk_tokens);

/* ---- deal.c: of pools that lend at load only ------------------------------------------------- */
/* Divides the slabs among the spaces again. CN_ENOMEM: some slabs stay unassigned. */
int kv_deal(struct kv_pool *p);
/* Takes back all slabs of a space, which are empty. */
void kv_deal_leave(struct kv_space *s);

/* ---- block.c --------------------------------------------------------------------------------- */
void kv_slab_list_init(struct kv_slab_list *l);
void kv_slab_push(struct kv_pool *p, uint32_t slab, uint8_t list);
/* Gives a free slab to a group; CN_ENOMEM. Takes an empty one back. */
int kv_slab_lend(struct kv_pool *p, struct kv_grp *g);
void kv_slab_return(struct kv_pool *p, uint32_t slab);
/* Gives a block in state KV_FILLING with one reference; evicts blocks that the tenant may evict. */
int kv_block_alloc(struct kv_grp *g, uint32_t tenant, uint32_t *out);
void kv_block_put(struct kv_pool *p, uint32_t block);
void kv_block_unhold(struct kv_pool *p, uint32_t block); /* a copy from it is done */
void kv_block_state(struct kv_pool *p, uint32_t block, enum kv_state state);
/* As kv_block_alloc, for a snapshot worth `gap` tokens: evicts only snapshots worth less. */
int kv_block_alloc_snapshot(struct kv_grp *g, uint32_t tenant, uint64_t gap, uint32_t *out);
/* As kv_block_put, once the steps in flight have retired. Needs kv_stale_room before. */
int kv_stale_room(struct kv_pool *p, uint32_t n);
void kv_block_put_later(struct kv_pool *p, uint32_t block);

/* ---- evict.c --------------------------------------------------------------------------------- */
int kv_lanes_ensure(struct kv_pool *p, uint32_t tenant, struct kv_space *s);
void kv_lanes_free(struct kv_pool *p, uint32_t tenant); /* all of them empty */
void kv_lane_link(struct kv_ent *e);
void kv_lane_unlink(struct kv_ent *e);
void kv_tenant_hold(struct kv_pool *p, uint32_t tenant, int64_t bytes);
void kv_tenant_expose(struct kv_pool *p, uint32_t tenant);
/* Evicts a block of g's lanes: the oldest, or the snapshot worth least. */
bool kv_evict_one(struct kv_grp *g, uint32_t tenant, bool all);
/* Evicts all blocks of a slab that requests of the tenant may evict (KV_NONE: blocks that no
 * reserve keeps); whether the slab is empty then. */
bool kv_slab_empty(struct kv_pool *p, uint32_t slab, uint32_t tenant);
/* `not`: a group whose slabs are spared, or NULL. */
bool kv_steal_slab(struct kv_pool *p, uint32_t tenant, const struct kv_grp * not);
/* Makes room for a snapshot worth `gap` tokens; false when all others are worth more. */
bool kv_evict_cheaper(struct kv_grp *g, uint32_t tenant, uint64_t gap);

/* ---- tree.c ---------------------------------------------------------------------------------- */
void kv_node_key(const struct kv_pool *p, const struct kv_node *parent, const uint32_t *ids,
                 uint32_t n, uint64_t key[2]);
/* `as`: its tenant, salt and adapter. */
struct kv_node *kv_root_get(struct kv_space *s, const struct kv_seq_opts *as);
struct kv_node *kv_root_find(const struct kv_space *s, const struct kv_seq_opts *as);
struct kv_node *kv_node_find(const struct kv_node *parent, const uint32_t *ids);
struct kv_node *kv_node_insert(struct kv_node *parent, const uint32_t *ids);
void kv_node_pin(struct kv_node *n);
void kv_node_unpin(struct kv_node *n);
void kv_ent_ref(struct kv_ent *e);
void kv_ent_unref(struct kv_ent *e);
/* Takes an unpinned node and all below it out of the tree. */
void kv_node_evict(struct kv_node *n);
void kv_ent_evict(struct kv_ent *e);
/* Gives up a pinned node's block, which no sequence needs any more. */
void kv_ent_forget(struct kv_ent *e);
/* Takes a node that only its filler holds out of the tree; the filler keeps the blocks. */
void kv_node_withdraw(struct kv_node *n);
/* Hides a node and all below it from lookups. */
void kv_node_kill(struct kv_node *n);
void kv_node_fill(struct kv_node *n, struct kv_seq *q);
void kv_node_unfill(struct kv_node *n);
/* Its filler has computed it. */
void kv_node_ready(struct kv_node *n);
void kv_node_settle(struct kv_node *n);
void kv_node_pool_free(struct kv_space *s);

/* ---- seq.c ----------------------------------------------------------------------------------- */
void kv_seq_release(struct kv_seq *q);
void kv_seq_drop_copies(struct kv_seq *q);
/* Withdraws the announced blocks that are not complete, from block `keep` on. */
void kv_seq_retract(struct kv_seq *q, uint64_t keep);
/* Gives up logical blocks from `keep` on. */
void kv_seq_drop_blocks(struct kv_seq *q, uint64_t keep);
/* Gives up the blocks before the windows of a row at position len. */
void kv_seq_leave_windows(struct kv_seq *q);
void kv_seq_unwait(struct kv_seq *q);
/* Blocks of all groups for logical blocks [from, to); all or nothing. */
int kv_seq_alloc(struct kv_seq *q, uint64_t from, uint64_t to);
/* As kv_seq_match, up to `limit` items and with or without a partial block from the tree. */
enum kv_match kv_seq_adopt(struct kv_seq *q, const uint32_t *ids, uint64_t limit, bool partial);
uint64_t kv_common(const uint32_t *a, const uint32_t *b, uint64_t n);

/* ---- snap.c: without a STATE group these do nothing ------------------------------------------ */
int kv_live_alloc(struct kv_seq *q, bool *fresh);
void kv_live_drop(struct kv_seq *q);
/* Wants a snapshot at pos, rounded down to a block's end; false when there will be none. */
bool kv_want(struct kv_seq *q, uint64_t pos);
/* The end of the prompt and the marks, each moved back to where it cuts no joined range; the ids
 * are kept to compare with others. */
void kv_want_prompt(struct kv_seq *q, const uint32_t *ids, uint64_t n);
/* Positions before pos are not wanted any more. */
void kv_wants_pass(struct kv_seq *q, uint64_t pos);
/* Rows [from, to) were reserved; rows up to q->len are computed; rows past q->len are forgotten. */
void kv_snaps_extend(struct kv_seq *q, uint64_t from, uint64_t to);
void kv_snaps_commit(struct kv_seq *q);
void kv_snaps_drop(struct kv_seq *q);
/* The live state becomes a snapshot, if it stands where one can be. */
void kv_snap_keep(struct kv_seq *q);
/* The node of the chain that has a snapshot at pos, or NULL. */
struct kv_node *kv_snap_node(const struct kv_seq *q, uint64_t pos);
/* Plans the copy of n's snapshot to the live state; q->len is n's end. */
void kv_snap_restore(struct kv_seq *q, struct kv_node *n);
void kv_wake(struct kv_seq **waiters);
void kv_wait_node(struct kv_seq *q, struct kv_node *n);
void kv_follow(struct kv_seq *q, struct kv_seq *leader);
/* Who is about to take a snapshot that saves q enough beyond position `from`; asks one for it. */
struct kv_seq *kv_leader(struct kv_seq *q, const uint32_t *ids, uint64_t limit, uint64_t from);

#endif
