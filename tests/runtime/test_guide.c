/* Guided requests: masks that a thread makes while a step runs, and ids that are forced.
 *
 * usage: test_guide MODEL
 *
 * A toy grammar: an id and the one before it add up to a multiple of three; behind an id of 3
 * modulo 8 come three that follow from it. Whether these are forced or only allowed, with guesses
 * and without, with slow masks and with such that a step does not wait for, with one step in flight
 * and with two: the ids are the same. */
#include "tests/runtime/guess.h"
#include "tests/runtime/spy.h"

#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { N = 24, CHOICES = 2, MOST = 400, RUN = 3 };

static const char *model;
static struct h_result *want;

struct text { uint32_t ids[MOST], n; };
struct toy {
    struct rt_guide guide;
    uint32_t n_vocab;
    bool forces, slow, late;
    uint32_t stuck_at; /* after so many ids no id is allowed; 0: never */
    struct text texts[CHOICES];
    uint32_t forced[RUN];
};
static struct toy toys[N];
static bool forces, slow, late, plain;
static atomic_uint n_late;
enum { STUCK = 5, STUCK_AT = 23 }; /* which request, and after how many ids */
static bool stuck;

static uint32_t follower(uint32_t id, uint32_t k, uint32_t n_vocab)
{
    return (id * 31 + k * 17 + 5) % n_vocab;
}

/* What must come after these ids; UINT32_MAX: there is a choice. *begins: a run of such ids
 * begins. */
static uint32_t next_of(const struct toy *t, const struct text *x, const uint32_t *guesses,
                        uint32_t n_guesses, uint32_t *last, bool *begins)
{
    uint32_t left = 0, first = 0;
    *last = 0;
    *begins = false;
    for (uint32_t i = 0; i < x->n + n_guesses; i++) {
        *last = i < x->n ? x->ids[i] : guesses[i - x->n];
        *begins = false;
        if (left) {
            left--;
        } else if (*last % 8 == 3) {
            left = RUN;
            first = *last;
            *begins = true;
        }
    }
    return left ? follower(first, RUN - left, t->n_vocab) : UINT32_MAX;
}

static int mask(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                uint64_t max_ns, uint32_t *bits)
{
    const struct toy *t = arg;
    uint32_t last, only;
    bool begins;
    assert_true(max_ns == UINT64_MAX || (max_ns >= 100000 && max_ns <= 8000000));
    if (t->late && max_ns != UINT64_MAX && (t->texts[choice].n + 3 * n_guesses) % 5 == 4) {
        atomic_fetch_add(&n_late, 1);
        return RT_NO_TIME;
    }
    if (t->slow) usleep(300);
    if (t->stuck_at && t->texts[choice].n + n_guesses >= t->stuck_at) return RT_SOME_IDS;
    only = next_of(t, &t->texts[choice], guesses, n_guesses, &last, &begins);
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (only == UINT32_MAX ? (id + last) % 3 == 0 : id == only) bits[id / 32] |= 1u << id % 32;
    return RT_SOME_IDS;
}

static uint32_t put(void *arg, uint32_t choice, uint32_t id, const uint32_t **out)
{
    struct toy *t = arg;
    struct text *x = &t->texts[choice];
    uint32_t last;
    bool begins;
    assert_true(x->n < MOST);
    x->ids[x->n++] = id;
    next_of(t, x, NULL, 0, &last, &begins);
    if (!t->forces || !begins) return 0;
    for (uint32_t k = 0; k < RUN; k++)
        t->forced[k] = follower(id, k, t->n_vocab);
    *out = t->forced;
    return RUN;
}

static void make(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    struct toy *t = &toys[i];
    h_request(h, i, 0, out);
    out->n = 1 + i % CHOICES;
    out->max_tokens = 60 + i;
    out->sampling.ignore_eos = true;
    out->sampling.frequency_penalty = i % 3 ? 0 : 0.7f;
    out->sampling.temperature = i % 4 ? 1 : 0;
    memset(t->texts, 0, sizeof t->texts);
    t->n_vocab = (uint32_t)eng_model_info(rt_model(h->rt))->n_vocab;
    t->forces = forces;
    t->slow = slow;
    t->late = late;
    t->stuck_at = stuck && i == STUCK ? STUCK_AT : 0;
    t->guide = (struct rt_guide){.arg = t, .mask = mask, .put = put};
    if (!plain) out->guide = &t->guide;
}

static struct h_result *run(const char *device, bool speculation, uint32_t at_once)
{
    struct h h;
    struct h_setup s = {.model = model,
                        .threads = 2,
                        .n_tenants = 1,
                        .kv_bytes = 64u << 20,
                        .context = 512,
                        .speculation = speculation,
                        .device = device};
    struct h_result *r = cn_calloc(N, sizeof *r);
    h_start(&h, &s);
    spy_reset();
    h_run(&h, N, at_once, make, NULL, r);
    h_settle(&h);
    assert_true(spy_read().tickets > 0 || h.rt->groups[0].stepper.depth == 1);
    h_stop(&h);
    return r;
}

static void same(struct h_result *r, const char *what)
{
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(r[i].code, 0);
        for (uint32_t c = 0; c < r[i].n; c++) {
            const struct h_answer *a = &want[i].choices[c], *b = &r[i].choices[c];
            if (a->n_ids != b->n_ids || memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids))
                fail_msg("%s: request %u, choice %u differs", what, i, c);
        }
        h_result_fini(&r[i]);
    }
    free(r);
}

/* The rules hold, and there were runs to force. */
static void test_masks_hold(void **state)
{
    uint32_t runs = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct toy t = {.n_vocab = toys[i].n_vocab};
        for (uint32_t c = 0; c < want[i].n; c++) {
            struct text x = {.n = 0};
            assert_int_equal(want[i].code, 0);
            assert_true(want[i].choices[c].n_ids > 0);
            for (size_t k = 0; k < want[i].choices[c].n_ids; k++) {
                uint32_t id = want[i].choices[c].ids[k], last, only;
                bool begins;
                only = next_of(&t, &x, NULL, 0, &last, &begins);
                if (only == UINT32_MAX)
                    assert_int_equal((id + last) % 3, 0);
                else
                    assert_int_equal(id, only);
                runs += begins;
                x.ids[x.n++] = id;
            }
        }
    }
    assert_true(runs > N);
}

static void test_forced_or_allowed(void **state)
{
    for (int i = 0; i < 8; i++) {
        forces = i & 1;
        slow = i == 3 || i == 4;
        same(run(NULL, i & 2, i & 4 ? N : 5), forces ? "forced" : "allowed");
    }
}

/* Masks that take too long for a step: their requests wait for them, and say the same. */
static void test_masks_made_aside(void **state)
{
    static const int ways[] = {0, 3, 5, 6}; /* of the eight above */
    late = true;
    for (size_t k = 0; k < CN_ARRAY_LEN(ways); k++) {
        int i = ways[k];
        forces = i & 1;
        slow = i == 3;
        atomic_store(&n_late, 0);
        same(run(false, i & 2, i & 4 ? N : 5), "with masks made aside");
        assert_true(atomic_load(&n_late) > N);
    }
    late = slow = false;
}

/* A mask without an id ends its request, not the others, which keep their bytes; with guesses,
 * whose masks come at once, and without, one step in flight or two. */
static void test_no_id_is_allowed(void **state)
{
    stuck = true;
    for (int i = 0; i < 4; i++) {
        forces = i & 1;
        struct h_result *r = run(NULL, i & 2, N);
        assert_int_equal(r[STUCK].code, CN_ENUMERIC);
        assert_true(want[STUCK].choices[0].n_ids > STUCK_AT);
        for (uint32_t c = 0, whole = 0; c < r[STUCK].n; c++) {
            const struct h_answer *a = &want[STUCK].choices[c], *b = &r[STUCK].choices[c];
            assert_true(b->ended && b->n_ids <= STUCK_AT + (forces ? RUN : 0));
            assert_memory_equal(a->ids, b->ids, b->n_ids * sizeof *b->ids);
            whole += b->n_ids >= STUCK_AT;
            if (c + 1 == r[STUCK].n) assert_true(whole > 0);
        }
        h_result_fini(&r[STUCK]);
        r[STUCK] = (struct h_result){.n = 0};
        same(r, "beside one that is stuck");
    }
    stuck = false;
}

/* Beside requests that nobody guides, which are as they were. */
static void test_without_a_guide(void **state)
{
    struct h_result *with, *without;
    plain = true;
    with = run(NULL, true, N);
    without = run(dev_reference(), false, 1);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(h_same(&with[i], &without[i]));
        h_result_fini(&with[i]);
        h_result_fini(&without[i]);
    }
    free(with);
    free(without);
    plain = false;
}

static int make_truth(void **state)
{
    want = run(dev_reference(), false, 1);
    guess_from(want, N); /* guesses that come true, in the midst of runs and behind them */
    return 0;
}

static int free_truth(void **state)
{
    for (uint32_t i = 0; i < N; i++)
        h_result_fini(&want[i]);
    free(want);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_hold),       cmocka_unit_test(test_forced_or_allowed),
        cmocka_unit_test(test_masks_made_aside), cmocka_unit_test(test_no_id_is_allowed),
        cmocka_unit_test(test_without_a_guide),
    };
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, make_truth, free_truth);
}
