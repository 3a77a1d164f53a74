/* Snapshots of recurrent state: where they are taken, who finds them, what is evicted. What the
 * copies bring is checked by test_kvrandom.c. */
#include "kvpool/kvpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define BT 4u
#define KV 0u    /* groups of `hybrid` */
#define STATE 1u

struct fix {
    struct kv_pool *p;
    struct kv_space *s;
};

static const struct kv_group hybrid[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, BT, 128}};
static const struct kv_group pure[1] = {{KV_SPAN_STATE, BT, 128}}; /* two a slab */
static uint32_t prompt[4096];

static struct fix fix_new(uint32_t n_slabs, uint32_t n_groups, const struct kv_group *groups)
{
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = n_slabs};
    struct kv_space_opts so = {.id = "m", .id_len = 1, .block_tokens = BT,
                               .n_groups = n_groups, .groups = groups};
    struct fix f;

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(prompt); i++)
        prompt[i] = i;
    return f;
}

static void sound(struct fix *f)
{
    struct cn_error err = {0};

    if (kv_check(f->p, &err)) fail_msg("%s", err.message);
}

static void fix_end(struct fix *f)
{
    struct kv_stats st;

    sound(f);
    kv_pool_stats(f->p, &st);
    assert_int_equal(st.n_seqs, 0);
    assert_int_equal(st.blocks[KV_FILLING] + st.blocks[KV_READY] + st.blocks[KV_COPYING], 0);
    kv_pool_drop_cache(f->p, 0, true);
    kv_pool_stats(f->p, &st);
    assert_int_equal(st.n_nodes, 0);
    kv_pool_free(f->p);
}

static struct kv_seq *open_as(struct fix *f, struct kv_seq_opts o)
{
    struct kv_seq *q;

    o.max_tokens = 2048;
    assert_int_equal(kv_seq_open(f->s, &o, &q), 0);
    return q;
}

static struct kv_seq *open_seq(struct fix *f)
{
    return open_as(f, (struct kv_seq_opts){0});
}

static uint64_t taken(struct fix *f)
{
    struct kv_stats st;

    kv_pool_stats(f->p, &st);
    return st.snapshots_taken;
}

/* What a new sequence finds of the n items; it takes nothing. */
static uint64_t peek(struct fix *f, const uint32_t *ids, uint64_t n)
{
    return kv_space_peek(f->s, 0, 0, ids, n, NULL);
}

static uint64_t found(struct kv_seq *q, const uint32_t *ids, uint64_t n)
{
    uint64_t got;

    assert_int_equal(kv_seq_match(q, ids, n, &got), KV_GO);
    return got;
}

/* Computes up to `to` in steps of one row. */
static void by_ones(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    const struct kv_copy *c;

    while (kv_seq_planned(q) < to) {
        const uint32_t *at = ids + kv_seq_planned(q);

        assert_int_equal(kv_seq_extend(q, 1, at), 0);
        kv_seq_copies(q, &c);
        kv_seq_commit(q, at, 1);
    }
}

/* Computes up to `to`, ending chunks where it is asked to. */
static void compute(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    while (kv_seq_planned(q) < to) {
        uint64_t from = kv_seq_planned(q), n = CN_MIN(to - from, kv_seq_room(q));
        const struct kv_copy *c;

        assert_int_equal(kv_seq_extend(q, (uint32_t)n, ids + from), 0);
        kv_seq_copies(q, &c);
        kv_seq_commit(q, ids + from, (uint32_t)n);
    }
}

static void warm(struct fix *f, const uint32_t *ids, uint64_t n)
{
    struct kv_seq *q = open_seq(f);

    found(q, ids, n);
    compute(q, ids, n);
    kv_seq_close(q);
}

/* ---- where they are taken -------------------------------------------------------------------- */

static void test_the_last_place_of_a_prompt(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    const struct kv_copy *c;
    uint32_t live;

    assert_int_equal(found(q, prompt, 18), 0);
    assert_int_equal(kv_seq_room(q), 16);
    assert_int_equal(kv_seq_extend(q, 16, prompt), 0);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    kv_seq_commit(q, prompt, 16);
    assert_int_equal(peek(&f, prompt, 18), 0);
    assert_int_equal(kv_seq_extend(q, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(q, &c), 1); /* before the rows behind it */
    assert_int_equal(c->group, STATE);
    assert_int_equal(c->src, kv_seq_tables(q)[STATE][0]);
    assert_int_not_equal(c->dst, c->src);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 18), 0); /* not before it is done */
    kv_seq_commit(q, prompt + 16, 2);
    assert_int_equal(peek(&f, prompt, 18), 16);
    assert_int_equal(peek(&f, prompt, 16), 0); /* a token must be left */
    kv_seq_close(q);

    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 18), 16);
    live = kv_seq_tables(q)[STATE][0];
    assert_int_equal(kv_seq_copies(q, &c), 1);
    assert_int_equal(c->group, STATE);
    assert_int_equal(c->dst, live);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_a_branch_on_its_second_visit(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    uint32_t other[3][24];
    struct kv_seq *q;

    for (int i = 0; i < 3; i++) {
        memcpy(other[i], prompt, sizeof(other[i]));
        for (int k = 13; k < 24; k++)
            other[i][k] = 1000 + 100 * (uint32_t)i + (uint32_t)k;
    }
    warm(&f, prompt, 24);
    assert_int_equal(taken(&f), 2); /* at 20, and where it ended */
    q = open_seq(&f);
    assert_int_equal(found(q, other[0], 24), 0);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, other[0], 24);
    kv_seq_close(q);
    sound(&f);
    q = open_seq(&f);
    assert_int_equal(found(q, other[1], 24), 12);
    assert_int_equal(kv_seq_room(q), 8); /* its own end */
    kv_seq_close(q);
    fix_end(&f);
}

static void test_marks(void **state)
{
    static const struct kv_group sparse[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, 8, 128}};
    static const uint64_t marks[] = {3, 9, 14, 26, 33, 90};
    struct kv_seq_opts o = {.marks = marks, .n_marks = 6};
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_as(&f, o);
    uint64_t at[] = {8, 12, 24, 32, 36};

    assert_int_equal(found(q, prompt, 38), 0); /* 3 is in the first block, 90 not yet there */
    for (uint32_t i = 0; i < CN_ARRAY_LEN(at); i++) {
        assert_int_equal(kv_seq_planned(q) + kv_seq_room(q), at[i]);
        compute(q, prompt, at[i]);
    }
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    compute(q, prompt, 38);
    kv_seq_close(q);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(at); i++)
        assert_int_equal(peek(&f, prompt, at[i] + 1), at[i]);
    fix_end(&f);

    f = fix_new(32, 2, sparse); /* the prompt's end, then the last marks that are not near */
    q = open_as(&f, o);
    found(q, prompt, 38);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, prompt, 12);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, prompt, 24);
    assert_int_equal(kv_seq_room(q), 12);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_short_prompts_are_not_worth_it(void **state)
{
    static const struct kv_group usual[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, 0, 128}};
    struct fix f = fix_new(16, 2, usual);
    struct kv_seq *q = open_seq(&f);

    found(q, prompt, 8);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    found(q, prompt, 9); /* two blocks */
    assert_int_equal(kv_seq_room(q), 8);
    kv_seq_close(q);
    warm(&f, prompt, 18);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 23), 16);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_an_end_becomes_a_snapshot_without_a_copy(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    struct kv_stats st;
    uint32_t live;

    by_ones(q, prompt, 12);
    live = kv_seq_tables(q)[STATE][0];
    kv_seq_close(q);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.blocks[KV_CACHED], 4);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 14), 12);
    assert_int_not_equal(kv_seq_tables(q)[STATE][0], live);
    kv_seq_close(q);
    q = open_seq(&f); /* not at a block's end */
    by_ones(q, prompt + 100, 13);
    kv_seq_close(q);
    assert_int_equal(peek(&f, prompt + 100, 20), 0);
    q = open_seq(&f); /* with a row in flight the state is another */
    by_ones(q, prompt + 200, 12);
    assert_int_equal(kv_seq_extend(q, 1, prompt + 212), 0);
    kv_pool_launched(f.p, 1);
    kv_seq_close(q);
    kv_pool_retired(f.p, 1);
    assert_int_equal(peek(&f, prompt + 200, 20), 0);
    fix_end(&f);
}

static void test_what_is_not_shared_has_none(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_WRITE});

    found(q, prompt, 18);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    by_ones(q, prompt, 16);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 0);
    q = open_as(&f, (struct kv_seq_opts){.share_tokens = 11});
    found(q, prompt, 18);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    by_ones(q, prompt, 16);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 0);
    q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_READ}); /* reads not, but writes */
    found(q, prompt, 18);
    compute(q, prompt, 18);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 1);
    q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_READ});
    assert_int_equal(found(q, prompt, 18), 0);
    kv_seq_close(q);
    q = open_seq(&f); /* who does not stop there gets none */
    found(q, prompt + 100, 18);
    assert_int_equal(kv_seq_extend(q, 18, prompt + 100), 0);
    kv_seq_commit(q, prompt + 100, 18);
    kv_seq_close(q);
    assert_int_equal(peek(&f, prompt + 100, 18), 0);
    fix_end(&f);
}

static void test_no_room_is_no_failure(void **state)
{
    struct fix f = fix_new(3, 2, hybrid); /* 2 slabs of KV, one of two states */
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f);
    const struct kv_copy *c;

    found(a, prompt, 18);
    compute(a, prompt, 16);
    by_ones(b, prompt + 100, 1);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(a, &c), 0);
    kv_seq_commit(a, prompt + 16, 2);
    assert_int_equal(taken(&f), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_two_steps_in_flight(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *a = open_seq(&f);
    const struct kv_copy *c;

    found(a, prompt, 18);
    assert_int_equal(kv_seq_extend(a, 16, prompt), 0);
    kv_pool_launched(f.p, 1);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(a, &c), 1);
    kv_pool_launched(f.p, 2);
    kv_pool_retired(f.p, 1);
    kv_seq_commit(a, prompt, 16);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 18), 0);
    kv_pool_retired(f.p, 2);
    kv_seq_commit(a, prompt + 16, 2);
    assert_int_equal(peek(&f, prompt, 18), 16);
    kv_seq_close(a);
    fix_end(&f);
}

/* ---- following ------------------------------------------------------------------------------- */

static void test_a_burst_follows_one(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f), *d = open_seq(&f);
    uint32_t other[30], early[30];

    memcpy(other, prompt, sizeof(other));
    other[18] = 999; /* parts from the others within the fifth block */
    memcpy(early, prompt, sizeof(early));
    early[3] = 999; /* shares no block */
    assert_int_equal(found(a, prompt, 30), 0);
    assert_int_equal(kv_seq_room(a), 28);
    assert_int_equal(kv_seq_match(b, other, 30, NULL), KV_WAIT);
    assert_int_equal(kv_seq_room(a), 16); /* asked for by b */
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT);
    assert_int_equal(found(d, early, 30), 0);
    sound(&f);
    compute(a, prompt, 16);
    assert_int_equal(kv_seq_match(b, other, 30, NULL), KV_WAIT);
    by_ones(a, prompt, 17);
    assert_int_equal(found(b, other, 30), 16);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT); /* for the one at 28 */
    compute(a, prompt, 30);
    assert_int_equal(found(c, prompt, 30), 28);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);
    kv_seq_close(d);
    fix_end(&f);
}

static void test_a_leader_that_gives_up_is_followed(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 30);
    assert_int_equal(kv_seq_extend(a, 28, prompt), 0);
    kv_pool_launched(f.p, 1);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT);
    kv_seq_close(a);
    kv_pool_retired(f.p, 1);
    assert_int_equal(found(c, prompt, 30), 0);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    compute(c, prompt, 30);
    assert_int_equal(found(b, prompt, 30), 28);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_no_headway_is_not_waited_for(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 30);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    for (uint64_t t = 1; t <= 16; t++)
        kv_pool_launched(f.p, t);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    kv_pool_launched(f.p, 17);
    kv_pool_retired(f.p, 17);
    assert_int_equal(found(b, prompt, 30), 0);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT); /* now for b */
    kv_seq_no_wait(c);
    assert_int_equal(found(c, prompt, 30), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);

    a = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_LEAD});
    b = open_seq(&f);
    found(a, prompt, 30);
    assert_int_equal(found(b, prompt, 30), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_a_snapshot_that_fails_wakes_who_waits(void **state)
{
    struct fix f = fix_new(3, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 10);
    assert_int_equal(kv_seq_match(b, prompt, 10, NULL), KV_WAIT);
    compute(a, prompt, 8);
    by_ones(c, prompt + 100, 1); /* the second state */
    by_ones(c, prompt + 100, 9); /* and a slab of blocks */
    assert_int_equal(kv_seq_match(b, prompt, 10, NULL), KV_WAIT);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 8), 0);
    assert_int_equal(found(b, prompt, 10), 0);
    kv_seq_commit(a, prompt + 8, 2);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

/* ---- going back, branching off, failing ------------------------------------------------------ */

static void test_truncate_only_to_a_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    const struct kv_copy *c;
    uint32_t live;

    found(q, prompt, 18);
    compute(q, prompt, 22);
    live = kv_seq_tables(q)[STATE][0];
    assert_int_equal(kv_seq_truncate(q, 21), CN_ENOENT);
    assert_int_equal(kv_seq_truncate(q, 12), CN_ENOENT);
    assert_int_equal(kv_seq_length(q), 22);
    assert_int_equal(kv_seq_extend(q, 3, prompt + 22), 0);
    assert_int_equal(kv_seq_truncate(q, 23), 0); /* rows that were never launched */
    assert_int_equal(kv_seq_truncate(q, 22), 0);
    assert_int_equal(kv_seq_extend(q, 3, prompt + 22), 0);
    kv_pool_launched(f.p, 1);
    kv_pool_retired(f.p, 1);
    assert_int_equal(kv_seq_truncate(q, 22), CN_ENOENT); /* the state has gone on */
    assert_int_equal(kv_seq_truncate(q, 16), 0);
    assert_int_equal(kv_seq_length(q), 16);
    assert_int_equal(kv_seq_copies(q, &c), 1);
    assert_int_equal(c->dst, live);
    assert_int_equal(kv_seq_tables(q)[STATE][0], live);
    sound(&f);
    by_ones(q, prompt + 50, 18);
    assert_int_equal(kv_seq_truncate(q, 0), 0);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    by_ones(q, prompt + 60, 2);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_fork_shares_by_a_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_seq(&f), *c;
    const struct kv_copy *copy;

    found(q, prompt, 19);
    compute(q, prompt, 19);
    assert_int_equal(kv_seq_fork(q, prompt, 18, 2048, &c), 0);
    assert_int_equal(kv_seq_length(c), 16);
    assert_int_equal(kv_seq_tables(c)[KV][3], kv_seq_tables(q)[KV][3]);
    assert_int_not_equal(kv_seq_tables(c)[STATE][0], kv_seq_tables(q)[STATE][0]);
    assert_int_equal(kv_seq_copies(c, &copy), 1);
    kv_seq_close(q);
    sound(&f);
    by_ones(c, prompt, 20);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_a_failed_sequence_leaves_no_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q, *r;

    q = open_seq(&f); /* good blocks without a snapshot at 8 */
    by_ones(q, prompt, 10);
    kv_seq_close(q);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 18), 0);
    compute(q, prompt, 17);
    r = open_seq(&f);
    assert_int_equal(found(r, prompt, 9), 8); /* taken by q, on a node that q did not write */
    by_ones(r, prompt + 100, 12);
    assert_int_equal(peek(&f, prompt, 17), 16);
    kv_seq_close_failed(q);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 17), 0);
    by_ones(r, prompt + 100, 20);
    kv_seq_close(r);
    assert_int_equal(peek(&f, prompt, 9), 0);
    fix_end(&f);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_the_cheapest_goes_first(void **state)
{
    static const uint64_t marks[] = {40, 44};
    struct fix f = fix_new(3, 1, pure); /* 6 states */
    struct kv_seq *q = open_as(&f, (struct kv_seq_opts){.marks = marks, .n_marks = 2});
    struct kv_seq *r[3];

    found(q, prompt, 102);
    compute(q, prompt, 102); /* at 40, 44, 100 */
    kv_seq_close(q);
    warm(&f, prompt + 1000, 13); /* at 12 */
    assert_int_equal(taken(&f), 4);
    for (int i = 0; i < 3; i++)
        r[i] = open_seq(&f);
    by_ones(r[0], prompt + 2000, 1);
    by_ones(r[1], prompt + 2000, 1);
    assert_int_equal(peek(&f, prompt, 50), 44);
    by_ones(r[2], prompt + 2000, 1); /* 44 saves 4 tokens */
    assert_int_equal(peek(&f, prompt, 50), 40);
    assert_int_equal(peek(&f, prompt + 1000, 20), 12);
    kv_seq_close(r[0]);
    r[0] = open_seq(&f);
    by_ones(r[0], prompt + 2000, 1);
    assert_int_equal(peek(&f, prompt + 1000, 20), 12); /* it had been free */
    q = open_seq(&f);
    by_ones(q, prompt + 2000, 1); /* then the one that saves 12 */
    assert_int_equal(peek(&f, prompt + 1000, 20), 0);
    assert_int_equal(peek(&f, prompt, 50), 40);
    assert_int_equal(peek(&f, prompt, 102), 100);
    kv_seq_close(q);
    for (int i = 0; i < 3; i++)
        kv_seq_close(r[i]);
    fix_end(&f);
}

static void test_what_is_used_lasts(void **state)
{
    struct fix f = fix_new(2, 1, pure); /* 4 states */
    struct kv_seq *q;

    warm(&f, prompt, 401); /* saves much, and is never used again */
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t at = 500 + 40 * i;

        warm(&f, prompt + at, 22);
        assert_int_equal(peek(&f, prompt + at, 22), 20);
    }
    assert_int_equal(peek(&f, prompt, 401), 0); /* in the end it goes */
    warm(&f, prompt, 401);
    for (uint32_t i = 0; i < 60; i++) {
        q = open_seq(&f);
        assert_int_equal(found(q, prompt, 401), 400);
        kv_seq_close(q);
        warm(&f, prompt + 500 + 40 * i, 22);
    }
    fix_end(&f);
}

static void test_a_snapshot_being_read_stays(void **state)
{
    struct fix f = fix_new(2, 1, pure);
    struct kv_seq *q, *r[3];
    const struct kv_copy *c;

    warm(&f, prompt, 9);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 9), 8);
    assert_int_equal(kv_seq_copies(q, &c), 1);
    for (int i = 0; i < 3; i++)
        r[i] = open_seq(&f);
    by_ones(r[0], prompt + 100, 1);
    by_ones(r[1], prompt + 100, 1);
    assert_int_equal(kv_seq_extend(r[2], 1, prompt + 100), CN_ENOMEM);
    by_ones(q, prompt, 9); /* the copy is done: now it may go */
    assert_int_equal(kv_seq_extend(r[2], 1, prompt + 100), 0);
    assert_int_equal(peek(&f, prompt, 9), 0);
    sound(&f);
    kv_seq_close(q);
    for (int i = 0; i < 3; i++)
        kv_seq_close(r[i]);
    fix_end(&f);
}

static void test_no_room_to_adopt(void **state)
{
    struct fix f = fix_new(1, 1, pure);
    struct kv_seq *q, *r = open_seq(&f);

    warm(&f, prompt, 8); /* one state cached */
    by_ones(r, prompt + 100, 1);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 10), 0); /* no place for a state of its own */
    assert_int_equal(kv_seq_length(q), 0);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 10), 8);
    kv_seq_close(r);
    assert_int_equal(found(q, prompt, 10), 8);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_a_reserve_keeps_snapshots(void **state)
{
    struct fix f = fix_new(2, 1, pure);
    struct kv_seq *q[3];

    assert_int_equal(kv_pool_reserve(f.p, 0, 256), 0);
    warm(&f, prompt, 8);
    warm(&f, prompt + 100, 8);
    for (int i = 0; i < 3; i++)
        q[i] = open_as(&f, (struct kv_seq_opts){.tenant = 1});
    by_ones(q[0], prompt + 200, 1);
    by_ones(q[1], prompt + 200, 1);
    assert_int_equal(kv_seq_extend(q[2], 1, prompt + 200), CN_ENOMEM);
    assert_int_equal(peek(&f, prompt, 10), 8);
    for (int i = 0; i < 3; i++)
        kv_seq_close(q[i]);
    fix_end(&f);
}

static void test_states_and_blocks_lend_each_other(void **state)
{
    struct fix f = fix_new(4, 2, hybrid);
    struct kv_seq *q = open_seq(&f), *r = open_seq(&f), *s;
    struct kv_stats st;

    by_ones(q, prompt, 47); /* 12 blocks in three slabs, a state in the fourth */
    kv_seq_close(q);
    found(r, prompt + 100, 4 * 8 + 1);
    compute(r, prompt + 100, 33); /* 9 blocks: the older ones go, and a snapshot finds room */
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.snapshots_taken, 1);
    kv_seq_close(r);
    r = open_seq(&f);
    q = open_seq(&f);
    by_ones(q, prompt + 300, 1);
    by_ones(r, prompt + 400, 1);
    sound(&f);
    assert_int_equal(peek(&f, prompt + 100, 33), 0); /* the snapshot was evicted for one */
    s = open_seq(&f);
    by_ones(s, prompt + 500, 1); /* and blocks for another */
    sound(&f);
    kv_seq_close(q);
    kv_seq_close(r);
    kv_seq_close(s);
    fix_end(&f);
}

static void test_a_tree_without_blocks_is_bounded(void **state)
{
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = 8, .max_thin_nodes = 100};
    struct kv_space_opts so = {.id = "m", .id_len = 1, .block_tokens = BT, .n_groups = 1,
                               .groups = pure};
    struct fix f;
    struct kv_stats st;
    struct kv_seq *q;

    f = fix_new(8, 1, pure);
    q = open_seq(&f);
    by_ones(q, prompt, 102); /* no snapshot: nothing leads to it, nothing stays */
    kv_seq_close(q);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.n_nodes, 0);
    warm(&f, prompt, 102);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.n_nodes, 25);
    fix_end(&f);

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < 10; i++) { /* 40 nodes each */
        warm(&f, prompt + 200 * i, 162);
        kv_pool_stats(f.p, &st);
        assert_true(st.n_nodes <= 100);
        assert_int_equal(peek(&f, prompt + 200 * i, 162), 160);
        sound(&f);
    }
    q = open_seq(&f); /* longer than all that may be */
    by_ones(q, prompt, 500);
    kv_pool_stats(f.p, &st);
    assert_true(st.n_nodes <= 100);
    kv_seq_close(q);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_place_of_a_prompt),
        cmocka_unit_test(test_a_branch_on_its_second_visit),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_short_prompts_are_not_worth_it),
        cmocka_unit_test(test_an_end_becomes_a_snapshot_without_a_copy),
        cmocka_unit_test(test_what_is_not_shared_has_none),
        cmocka_unit_test(test_no_room_is_no_failure),
        cmocka_unit_test(test_two_steps_in_flight),
        cmocka_unit_test(test_a_burst_follows_one),
        cmocka_unit_test(test_a_leader_that_gives_up_is_followed),
        cmocka_unit_test(test_no_headway_is_not_waited_for),
        cmocka_unit_test(test_a_snapshot_that_fails_wakes_who_waits),
        cmocka_unit_test(test_truncate_only_to_a_snapshot),
        cmocka_unit_test(test_fork_shares_by_a_snapshot),
        cmocka_unit_test(test_a_failed_sequence_leaves_no_snapshot),
        cmocka_unit_test(test_the_cheapest_goes_first),
        cmocka_unit_test(test_what_is_used_lasts),
        cmocka_unit_test(test_a_snapshot_being_read_stays),
        cmocka_unit_test(test_no_room_to_adopt),
        cmocka_unit_test(test_a_reserve_keeps_snapshots),
        cmocka_unit_test(test_states_and_blocks_lend_each_other),
        cmocka_unit_test(test_a_tree_without_blocks_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
