#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

const struct kv_group hybrid[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, BT, 128}};
const struct kv_group pure[1] = {{KV_SPAN_STATE, BT, 128}};
uint32_t prompt[4096];

struct fix fix_new(uint32_t n_slabs, uint32_t n_groups, const struct kv_group *groups)
{
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = n_slabs};
    struct kv_space_opts so = {
        .id = "m", .id_len = 1, .block_tokens = BT, .n_groups = n_groups, .groups = groups};
    struct fix f;

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(prompt); i++)
        prompt[i] = i;
    return f;
}

void sound(struct fix *f)
{
    struct cn_error err = {0};

    if (kv_check(f->p, &err)) fail_msg("%s", err.message);
}

void fix_end(struct fix *f)
{
    struct kv_stats st;

    sound(f);
    kv_pool_stats(f->p, &st);
    assert_int_equal(st.n_seqs, 0);
    assert_int_equal(st.blocks[KV_FILLING] + st.blocks[KV_READY] + st.blocks[KV_COPYING], 0);
    kv_pool_make_room(f->p, 0, true);
    kv_pool_stats(f->p, &st);
    assert_int_equal(st.n_nodes, 0);
    kv_pool_free(f->p);
}

struct kv_seq *open_as(struct fix *f, struct kv_seq_opts o)
{
    struct kv_seq *q;

    o.max_tokens = 2048;
    assert_int_equal(kv_seq_open(f->s, &o, &q), 0);
    return q;
}

struct kv_seq *open_seq(struct fix *f)
{
    return open_as(f, (struct kv_seq_opts){0});
}

uint64_t taken(struct fix *f)
{
    struct kv_stats st;

    kv_pool_stats(f->p, &st);
    return st.snapshots_taken;
}

/* What a new sequence finds of the n items; it takes nothing. */
uint64_t peek(struct fix *f, const uint32_t *ids, uint64_t n)
{
    return kv_space_peek(f->s, &(struct kv_seq_opts){0}, ids, n, NULL);
}

uint64_t found(struct kv_seq *q, const uint32_t *ids, uint64_t n)
{
    uint64_t got;

    assert_int_equal(kv_seq_match(q, ids, n, &got), KV_GO);
    return got;
}

/* Computes up to `to` in steps of one row. */
void by_ones(struct kv_seq *q, const uint32_t *ids, uint64_t to)
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
void compute(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    while (kv_seq_planned(q) < to) {
        uint64_t from = kv_seq_planned(q), n = CN_MIN(to - from, kv_seq_room(q));
        const struct kv_copy *c;

        assert_int_equal(kv_seq_extend(q, (uint32_t)n, ids + from), 0);
        kv_seq_copies(q, &c);
        kv_seq_commit(q, ids + from, (uint32_t)n);
    }
}

void warm(struct fix *f, const uint32_t *ids, uint64_t n)
{
    struct kv_seq *q = open_seq(f);

    found(q, ids, n);
    compute(q, ids, n);
    kv_seq_close(q);
}
