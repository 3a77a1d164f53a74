/* The n-gram index: what it expects is what followed where the ids read the same before; copies and
 * loops are guessed right; its price is flat whatever the ids are. */
#include "kvpool/kvpool.h"
#include "scheduler/draft.h"
#include "tests/scheduler/work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t rng = 88172645463325252ull;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 11) % n;
}

/* Adds ids one by one; how many from `own` on were expected. What is expected must follow ids like
 * the last ones. */
static uint32_t feed(struct sch_draft *d, const uint32_t *ids, uint32_t n, uint32_t own)
{
    uint32_t hits = 0;

    for (uint32_t i = own; i < n; i++) {
        uint32_t guess;

        assert_int_equal(sch_draft_update(d, ids, i, own), 0);
        if (!sch_draft_read(d, ids, 1, &guess)) continue;
        assert_true(d->at < i && d->len >= 2 && d->len <= d->at);
        assert_memory_equal(ids + d->at - d->len, ids + i - d->len, d->len * sizeof(*ids));
        assert_int_equal(guess, ids[d->at]);
        hits += guess == ids[i];
    }
    return hits;
}

static void test_copies_are_found(void **state)
{
    enum { N = 3000, COPY = 300 };
    uint32_t ids[N + COPY];

    for (uint32_t round = 0; round < 50; round++) {
        struct sch_draft *d = sch_draft_new();
        uint32_t from = below(N - COPY - 1);

        for (uint32_t i = 0; i < N; i++)
            ids[i] = below(5000);
        memcpy(ids + N, ids + from, COPY * sizeof(*ids));
        /* two ids have to be there before it is known where they come from; a hash that another has
         * taken costs one or two more, seldom */
        assert_true(feed(d, ids, N + COPY, N) >= COPY - 8);
        sch_draft_free(d);
    }
}

static void test_media_are_not_guessed(void **state)
{
    static const uint32_t ids[] = {1, 2, 3, 4, KV_MEDIA | 7, KV_MEDIA | 8, 5, 1, 2, 3};
    struct sch_draft *d = sch_draft_new();
    uint32_t out[8];

    assert_int_equal(sch_draft_update(d, ids, CN_ARRAY_LEN(ids), 8), 0);
    assert_int_equal(sch_draft_read(d, ids, 8, out), 1); /* 4; then an image */
    assert_int_equal(out[0], 4);
    sch_draft_free(d);
}

/* After an edit in the midst it finds back. */
static void test_edits_cost_little(void **state)
{
    enum { N = 400 };
    uint32_t ids[2 * N];
    struct sch_draft *d = sch_draft_new();

    for (uint32_t i = 0; i < N; i++)
        ids[i] = ids[N + i] = i * 7;
    for (uint32_t i = 20; i < N; i += 40)
        ids[N + i] = 100000 + i;
    assert_true(feed(d, ids, 2 * N, N) >= N - N / 40 * 4 - 4);
    sch_draft_free(d);
}

/* Guesses go on into what is guessed. */
static void test_loops_go_round(void **state)
{
    for (uint32_t period = 1; period < 9; period++) {
        uint32_t ids[64], out[40];
        struct sch_draft *d = sch_draft_new();

        for (uint32_t i = 0; i < 64; i++)
            ids[i] = i % period + 3;
        assert_int_equal(sch_draft_update(d, ids, 24, 1), 0);
        assert_int_equal(sch_draft_read(d, ids, 40, out), 40);
        assert_memory_equal(out, ids + 24, sizeof(out));
        sch_draft_free(d);
    }
}

/* A long prompt is taken up in parts, and then all is as if it had come token by token. */
static void test_long_prompts_in_parts(void **state)
{
    enum { N = 3 * SCH_DRAFT_BURST + 100 };
    uint32_t *ids = calloc(N, sizeof(*ids)), parts = 0, out[50];
    struct sch_draft *d = sch_draft_new();

    assert_non_null(ids);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = i < N - 50 ? i : i - (N - 50) + 10; /* the end is the beginning again */
    for (; d->n < N; parts++) {
        assert_int_equal(sch_draft_update(d, ids, N, N), 0);
        assert_true(d->n == CN_MIN((parts + 1) * (uint64_t)SCH_DRAFT_BURST, (uint64_t)N));
    }
    assert_int_equal(parts, 4);
    assert_int_equal(sch_draft_read(d, ids, 50, out), 50);
    assert_memory_equal(out, ids + 60, sizeof(out));
    sch_draft_free(d);
    free(ids);
}

static size_t slots_of(const struct sch_draft_table *t)
{
    return (size_t)2 << t->bits; /* n-grams of two lengths */
}

/* Slots that differ from what was kept of the tables; a table that is new has had none set. */
static size_t slots_written(const struct sch_draft *d, uint32_t *const kept[], uint32_t n_kept)
{
    size_t n = 0;

    for (uint32_t k = 0; k < d->n_tables; k++) {
        for (size_t i = 0; i < slots_of(&d->table[k]); i++)
            n += d->table[k].slot[i] != (k < n_kept ? kept[k][i] : 0);
    }
    return n;
}

/* Where the tables grow too an update writes what its own ids need, two slots each, and no more: a
 * step of a million ids costs what a step of a hundred costs. Memory stays in proportion. */
static void test_growth_moves_nothing(void **state)
{
    enum { N = 40000 };
    uint32_t *ids = calloc(N, sizeof(*ids)), *kept[SCH_DRAFT_TABLES], had, tables = 0;
    struct sch_draft *d = sch_draft_new();

    assert_non_null(ids);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = below(5000);
    for (uint32_t n = 0; n < N;) {
        uint64_t bytes = 0;

        for (had = 0; had < d->n_tables; had++) {
            size_t size = slots_of(&d->table[had]) * sizeof(uint32_t);
            kept[had] = malloc(size);
            assert_non_null(kept[had]);
            memcpy(kept[had], d->table[had].slot, size);
        }
        n += 1 + below(n % 3 ? 20 : 2000);
        n = CN_MIN(n, (uint32_t)N);
        uint64_t before = d->n;
        assert_int_equal(sch_draft_update(d, ids, n, 1), 0);
        assert_int_equal(d->n, n);
        assert_true(slots_written(d, kept, had) <= 2 * (n - before));
        tables += d->n_tables > had;
        for (uint32_t k = 0; k < d->n_tables; k++)
            bytes += slots_of(&d->table[k]) * sizeof(uint32_t);
        assert_true(bytes <= 16 * CN_MAX((uint64_t)n, (uint64_t)64));
        while (had > 0)
            free(kept[--had]);
    }
    assert_true(tables >= 5 && d->n_tables == tables);
    sch_draft_free(d);
    free(ids);
}

/* What came before a growth is known after it, and of what came twice the later one. Of the n-grams
 * in a run of ids some slot is its own still, though a third of them are another's. */
static void test_growth_forgets_nothing(void **state)
{
    enum { N = 4500, RUN = 12, ASKED = 40 };
    uint32_t ids[N + ASKED * RUN], guess;
    struct sch_draft *d = sch_draft_new();

    for (uint32_t i = 0; i < N; i++)
        ids[i] = i;
    memcpy(ids + 3000, ids + 20, RUN * sizeof(*ids)); /* then 3012 follows, no longer 32 */
    (void)feed(d, ids, N, 1);
    assert_true(d->n_tables >= 6);
    for (uint32_t k = 0, n = N; k < ASKED; k++, n += RUN) {
        uint32_t from = k ? 3 + k * 109 : 20;

        memcpy(ids + n, ids + from, RUN * sizeof(*ids));
        assert_int_equal(sch_draft_update(d, ids, n + RUN, 1), 0);
        assert_int_equal(sch_draft_read(d, ids, 1, &guess), 1);
        assert_int_equal(guess, k ? from + RUN : 3000 + RUN);
    }
    sch_draft_free(d);
}

static void test_nothing_to_expect(void **state)
{
    uint32_t ids[1000], out[4];
    struct sch_draft *d = sch_draft_new();

    for (uint32_t i = 0; i < 1000; i++)
        ids[i] = i;
    assert_int_equal(sch_draft_update(d, ids, 0, 0), 0);
    assert_int_equal(sch_draft_read(d, ids, 4, out), 0);
    assert_int_equal(feed(d, ids, 1000, 1), 0);
    assert_int_equal(sch_draft_read(d, ids, 4, out), 0);
    assert_true(sch_draft_chance(d, 0) == 0);
    sch_draft_free(d);
}

/* It is the same whether ids come one by one or many at once, as long as the tables do not grow. */
static void test_pieces(void **state)
{
    enum { N = 64 };
    uint32_t ids[N];

    for (uint32_t round = 0; round < 500; round++) {
        struct sch_draft *a = sch_draft_new(), *b = sch_draft_new();
        uint32_t n = 1;

        for (uint32_t i = 0; i < N; i++)
            ids[i] = below(12);
        while (n < N) {
            n += 1 + below(20);
            n = CN_MIN(n, (uint32_t)N);
            assert_int_equal(sch_draft_update(a, ids, n, 1), 0);
        }
        feed(b, ids, N, 1);
        assert_int_equal(sch_draft_update(b, ids, N, 1), 0);
        assert_true(a->at == b->at && a->len == b->len);
        for (uint32_t i = 0; i < 16; i++)
            assert_true(sch_draft_chance(a, i) == sch_draft_chance(b, i));
        sch_draft_free(a);
        sch_draft_free(b);
    }
}

/* What comes true becomes likelier, what does not less likely. */
static void test_chances_are_learned(void **state)
{
    enum { N = 600 };
    uint32_t ids[N];
    double before, after;
    struct sch_draft *d = sch_draft_new();

    for (uint32_t i = 0; i < N; i++)
        ids[i] = i % 20;
    assert_int_equal(sch_draft_update(d, ids, 45, 20), 0);
    before = sch_draft_chance(d, 8);
    assert_int_equal(sch_draft_update(d, ids, N, 20), 0);
    after = sch_draft_chance(d, 8);
    assert_true(after > before && after > 0.95);
    sch_draft_free(d);

    d = sch_draft_new(); /* the same two, and then something else each time */
    for (uint32_t i = 0; i < N; i++)
        ids[i] = i % 3 < 2 ? i % 3 : 10 + i;
    feed(d, ids, N, 3);
    assert_int_equal(sch_draft_update(d, ids, N - 1, 3), 0);
    assert_true(d->at && sch_draft_chance(d, 0) < 0.05);
    sch_draft_free(d);
}

/* Work for n ids, in basic blocks: counted, so that no other program has a part in it. */
static double price(const uint32_t *ids, uint32_t n)
{
    struct sch_draft *d = sch_draft_new();
    uint64_t begin = work_done();

    for (uint32_t i = 1; i <= n; i++)
        assert_int_equal(sch_draft_update(d, ids, i, 1), 0);
    sch_draft_free(d);
    return (double)(work_done() - begin) / n;
}

/* 64 times the ids: 64 times the work, whatever the ids. Repeats are what a search would get stuck
 * in. Many kinds fill the index only in the longer run, so that an id costs up to 1.66 times as
 * much there; each bound is a fifth above what is counted now. */
static void test_price_is_flat(void **state)
{
    enum { SMALL = 1 << 12, LARGE = 1 << 18 };
    static const struct {
        uint32_t kinds;
        double most;
    } rows[] = {{1, 1.2}, {11, 0.94}, {111, 1.57}, {1111, 1.97}, {11111, 2.0}};
    uint32_t *ids = cn_malloc_array(LARGE, sizeof(*ids));

    for (size_t r = 0; r < CN_ARRAY_LEN(rows); r++) {
        double small, large;

        for (uint32_t i = 0; i < LARGE; i++)
            ids[i] = below(rows[r].kinds);
        small = price(ids, SMALL);
        large = price(ids, LARGE);
        print_message("%u kinds: %.1f and %.1f blocks an id, %.2f of it, at most %g\n",
                      rows[r].kinds, small, large, large / small, rows[r].most);
        assert_true(large <= small * rows[r].most);
    }
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies_are_found),
                                       cmocka_unit_test(test_edits_cost_little),
                                       cmocka_unit_test(test_media_are_not_guessed),
                                       cmocka_unit_test(test_loops_go_round),
                                       cmocka_unit_test(test_long_prompts_in_parts),
                                       cmocka_unit_test(test_growth_moves_nothing),
                                       cmocka_unit_test(test_growth_forgets_nothing),
                                       cmocka_unit_test(test_nothing_to_expect),
                                       cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_chances_are_learned),
                                       cmocka_unit_test(test_price_is_flat)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
