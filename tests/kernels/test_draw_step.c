/* Steps that are drawn: what kr_draw gives of any number of rows is what the
 * definition (draw.h) gives of the same device's logits, however many of them are in memory at
 * once; guesses, masks, ids by ticket, and what is refused. */
#include "kernels/draw.h"
#include "tests/kernels/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N = 45, VOCAB = 9000, WORDS = (VOCAB + 31) / 32 };
static struct tiny *model;
static uint32_t tokens[N];
static float *logits; /* [N][VOCAB]: as kr_collect gives them */
static struct kr_draw_rooms rooms;

static struct tiny_run_opts opts(uint32_t max_logit_rows)
{
    return (struct tiny_run_opts){.isa = KR_ISA_AUTO,
                                  .threads = 2,
                                  .block_tokens = 16,
                                  .max_rows = N,
                                  .max_context = 64,
                                  .n_blocks = 16,
                                  .kv_type = KR_F16,
                                  .max_logit_rows = max_logit_rows,
                                  .max_seqs = N};
}

static int make_model(void **state)
{
    static const struct tiny_shape shape = {.n_layers = 2,
                                            .width = 64,
                                            .heads = 4,
                                            .kv_heads = 1,
                                            .head_dim = 72,
                                            .ffn = 64,
                                            .vocab = VOCAB,
                                            .weights = KR_Q8_0,
                                            .head = KR_Q4_0,
                                            .window = 17,
                                            .softcap = 5.0f};
    uint64_t seed = 3;
    struct tiny_run r;
    struct tiny_seq s, *list[1] = {&s};
    uint32_t n = N;
    struct tiny_run_opts o = opts(0);
    model = tiny_new(&shape, 1);
    for (int i = 0; i < N; i++)
        tokens[i] = tiny_rand(&seed) % VOCAB;
    if (!tiny_run_open(&r, model, &o)) return -1;
    tiny_seq_open(&r, &s, tokens, N, VOCAB, true);
    tiny_step(&r, list, &n, 1, VOCAB);
    logits = s.logits;
    s.logits = NULL;
    tiny_seq_close(&s);
    tiny_run_close(&r);
    kr_draw_rooms_init(&rooms);
    return 0;
}

static int free_model(void **state)
{
    tiny_free(model);
    free(logits);
    kr_draw_rooms_fini(&rooms);
    return 0;
}

struct world {
    struct tiny_run r;
    struct tiny_seq s;
    struct kr_row rows[N];
    struct kr_seq seq;
    struct kr_batch batch;
};

/* All tokens in one step, whose rows all want logits. */
static void open_world(struct world *w, uint32_t max_logit_rows)
{
    struct tiny_run_opts o = opts(max_logit_rows);
    memset(w, 0, sizeof *w);
    assert_true(tiny_run_open(&w->r, model, &o));
    tiny_seq_open(&w->r, &w->s, tokens, N, VOCAB, false);
    w->seq.tables = w->s.table_ptrs;
    for (uint32_t i = 0; i < N; i++)
        w->rows[i] = (struct kr_row){.pos = i, .logits = true, .token = tokens[i]};
    w->batch = (struct kr_batch){
        .n_rows = N, .n_seqs = 1, .rows = w->rows, .seqs = &w->seq, .drawn = true};
}

static void close_world(struct world *w)
{
    tiny_seq_close(&w->s);
    tiny_run_close(&w->r);
}

static struct kr_draw_state *new_state(const struct kr_device *d, uint64_t seed)
{
    struct kr_draw_opts o = {.loops = kr_device_draw_loops(d),
                             .n_vocab = VOCAB,
                             .temperature = 1,
                             .top_p = seed % 2 ? 0.9f : 1,
                             .repetition = 1.3f,
                             .seed = seed,
                             .n_top = 3};
    struct kr_draw_state *s;
    assert_int_equal(kr_draw_state_new(&o, 0, &rooms, &s), 0);
    return s;
}

static struct kr_draw_at place(uint32_t slot, uint64_t generation)
{
    return (struct kr_draw_at){slot, generation};
}

/* A draw of a state that has put out nothing yet, in the slot of that number. */
static void open_draw(struct world *w, struct kr_draw *d, struct kr_draw_state *s, uint32_t slot)
{
    d->state = s;
    d->at = place(slot, 1);
    assert_int_equal(kr_draw_open(w->r.exec, d->at, s, place(0, 0), NULL, 0), 0);
}

static void same(const struct kr_drawn *a, const struct kr_drawn *b)
{
    assert_int_equal(a->id, b->id);
    assert_memory_equal(&a->logprob, &b->logprob, sizeof a->logprob);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top, b->top, a->n_top * sizeof a->top[0]);
}

static void test_rows_of_any_number(void **state)
{
    static const uint32_t at_once[] = {1, 7, 16, N};
    for (size_t i = 0; i < CN_ARRAY_LEN(at_once); i++) {
        struct world w;
        struct kr_draw draws[N];
        const struct kr_result *got;
        uint64_t ticket;
        uint32_t n = 0;
        open_world(&w, at_once[i]);
        struct kr_draw_state *drawn[N] = {0};
        for (uint32_t k = 0; k < N; k++) {
            if (k % 5 == 4) continue; /* its logits are not looked at */
            draws[n] = (struct kr_draw){.row = k, .position = k + 1, .score = k, .n_top = 5};
            if (k % 2) {
                drawn[k] = new_state(w.r.dev, k);
                open_draw(&w, &draws[n], drawn[k], k);
            }
            n++;
        }
        assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &ticket, NULL), 0);
        assert_int_equal(kr_draw(w.r.exec, ticket, draws, n, NULL), 0);
        assert_int_equal(kr_draw(w.r.exec, ticket, draws, n, NULL), CN_EINVAL);
        assert_int_equal(kr_collect_drawn(w.r.exec, ticket, &got, NULL), 0);
        for (uint32_t k = 0; k < N; k++) {
            struct kr_drawn want;
            float row[VOCAB];
            memcpy(row, logits + (size_t)k * VOCAB, sizeof row);
            if (k % 5 == 4) {
                assert_int_equal(got[k].status, CN_ECANCELLED);
                continue;
            }
            if (drawn[k]) {
                struct kr_draw_state *s = new_state(w.r.dev, k);
                assert_int_equal(kr_draw_row(s, row, k + 1, NULL, &want), 0);
                kr_draw_state_free(s);
            } else {
                assert_int_equal(
                    kr_draw_score(kr_device_draw_loops(w.r.dev), row, VOCAB, k, 5, &want), 0);
            }
            assert_int_equal(got[k].status, 0);
            same(&got[k].drawn, &want);
            kr_draw_state_free(drawn[k]);
        }
        close_world(&w);
    }
}

/* Guesses: draws go on as long as they come true; a mask for each; the next one knows the last. */
static void test_guesses_and_masks(void **state)
{
    static uint32_t masks[3][WORDS];
    const uint32_t *list[4] = {masks[0], masks[1], masks[2], NULL};
    uint32_t guesses[3] = {70, 4000, 12};
    struct world w;
    const struct kr_result *got;
    uint64_t ticket;
    memset(masks, 0, sizeof masks);
    masks[0][70 / 32] = 1u << 70 % 32;
    masks[1][4000 / 32] = 1u << 4000 % 32;
    masks[2][99 / 32] = 1u << 99 % 32; /* not the guess */
    open_world(&w, 6);
    struct kr_draw_state *s = new_state(w.r.dev, 5);
    struct kr_draw d = {.row = 5, .n_guesses = 3, .guesses = guesses, .position = 6, .masks = list};
    open_draw(&w, &d, s, 1);
    assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &ticket, NULL), 0);
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 1, NULL), 0);
    guesses[0] = 0; /* all was copied */
    memset(masks, 0, sizeof masks);
    assert_int_equal(kr_collect_drawn(w.r.exec, ticket, &got, NULL), 0);
    assert_int_equal(got[5].drawn.id, 70);
    assert_int_equal(got[6].drawn.id, 4000);
    assert_int_equal(got[7].drawn.id, 99);
    assert_int_equal(got[8].status, CN_ECANCELLED);
    /* nothing may be drawn */
    memset(masks, 0, sizeof masks);
    assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &ticket, NULL), 0);
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 1, NULL), 0);
    assert_int_equal(kr_collect_drawn(w.r.exec, ticket, &got, NULL), 0);
    assert_int_equal(got[5].status, CN_ENUMERIC);
    kr_draw_state_free(s);
    close_world(&w);
}

/* ---- the device's own draw states ------------------------------------------------------------ */

/* What a choice draws with, in lists of its own. */
struct own {
    struct cn_bias edits[2];
    uint32_t never[1], late[2], late_more[1];
    struct kr_draw_state *s;
};

static void own_open(struct own *o, const struct kr_device *d)
{
    *o = (struct own){
        .edits = {{17, 3}, {4000, -2}}, .never = {3}, .late = {5, 6}, .late_more = {70}};
    struct kr_draw_opts opts = {.loops = kr_device_draw_loops(d),
                                .n_vocab = VOCAB,
                                .temperature = 0.8f,
                                .top_p = 1,
                                .repetition = 1.3f,
                                .presence = 0.5f,
                                .frequency = 0.25f,
                                .seed = 11,
                                .edits = o->edits,
                                .n_edits = CN_ARRAY_LEN(o->edits),
                                .never = o->never,
                                .n_never = CN_ARRAY_LEN(o->never),
                                .late = o->late,
                                .n_late = CN_ARRAY_LEN(o->late),
                                .late_more = o->late_more,
                                .n_late_more = CN_ARRAY_LEN(o->late_more),
                                .late_until = 8,
                                .n_top = 2};
    assert_int_equal(kr_draw_state_new(&opts, 0, &rooms, &o->s), 0);
    assert_int_equal(kr_draw_state_prompt(o->s, tokens, N), 0);
}

static void accept(struct kr_draw_state *s, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(kr_draw_state_accept(s, ids[i]), 0);
}

/* A device with copies draws as before, whatever is in the host's memory. */
static void spoil(const struct world *w, struct own *o)
{
    struct kr_device_info info;
    kr_device_info(w->r.dev, &info);
    if (!info.keeps_draws) return;
    for (uint32_t id = 0; id < VOCAB; id += 3)
        accept(o->s, &id, 1);
    memset(o->edits, 0, sizeof o->edits);
    o->never[0] = o->late[0] = o->late_more[0] = 1;
}

/* Draws of rows [row, row + n), each in a step of its own; they are those of `want`. */
static void draw_some(struct world *w, struct kr_draw_at at, struct kr_draw_state *s, uint32_t row,
                      uint32_t n, struct kr_draw_state *want)
{
    for (uint32_t k = row; k < row + n; k++) {
        struct kr_draw d = {.row = k, .state = s, .at = at, .position = k + 1};
        const struct kr_result *got;
        struct kr_drawn right;
        uint64_t ticket;
        float z[VOCAB];
        memcpy(z, logits + (size_t)k * VOCAB, sizeof z);
        assert_int_equal(kr_draw_row(want, z, k + 1, NULL, &right), 0);
        accept(want, &right.id, 1);
        assert_int_equal(kr_launch(w->r.exec, w->r.mem, &w->batch, &ticket, NULL), 0);
        assert_int_equal(kr_draw(w->r.exec, ticket, &d, 1, NULL), 0);
        assert_int_equal(kr_collect_drawn(w->r.exec, ticket, &got, NULL), 0);
        assert_int_equal(got[k].status, 0);
        same(&got[k].drawn, &right);
    }
}

/* Sent once and then only changed: ids that the device drew, ids that it did not, ids taken back,
 * another choice of the request, a slot that was given out again. */
static void test_states_in_slots(void **state)
{
    static const uint32_t begun[] = {8, 8, 2000}, forced[] = {8, 31};
    struct own a, b, want, second;
    struct world w;
    open_world(&w, 6);
    own_open(&a, w.r.dev);
    own_open(&want, w.r.dev);
    accept(a.s, begun, 3);
    accept(want.s, begun, 3);
    assert_int_equal(kr_draw_open(w.r.exec, place(3, 1), a.s, place(0, 0), begun, 3), 0);
    spoil(&w, &a);
    draw_some(&w, place(3, 1), a.s, 4, 5, want.s);
    kr_draw_state_cut(want.s, 6); /* of eight */
    accept(want.s, forced, 2);
    assert_int_equal(kr_draw_put(w.r.exec, place(3, 1), a.s, 6, forced, 2), 0);
    draw_some(&w, place(3, 1), a.s, 9, 3, want.s);
    /* Another choice: the same prompt, no output. */
    own_open(&b, w.r.dev);
    own_open(&second, w.r.dev);
    kr_draw_state_free(second.s);
    assert_int_equal(kr_draw_state_clone(b.s, 1, &second.s), 0);
    struct kr_draw_state *choice;
    assert_int_equal(kr_draw_state_clone(b.s, 1, &choice), 0);
    kr_draw_state_free(b.s);
    b.s = choice;
    assert_int_equal(kr_draw_open(w.r.exec, place(5, 9), b.s, place(3, 1), NULL, 0), 0);
    draw_some(&w, place(5, 9), b.s, 12, 4, second.s);
    draw_some(&w, place(3, 1), a.s, 16, 2, want.s);
    kr_draw_close(w.r.exec, place(3, 1));
    kr_draw_close(w.r.exec, place(5, 8)); /* an older choice of that slot */
    draw_some(&w, place(5, 9), b.s, 18, 2, second.s);
    kr_draw_state_free(a.s);
    kr_draw_state_free(b.s);
    kr_draw_state_free(want.s);
    kr_draw_state_free(second.s);
    close_world(&w);
}

/* The second choice is there after the first has gone; a choice that comes back brings its output.
 */
static void test_slots_given_out_again(void **state)
{
    static const uint32_t out[] = {4, 4, 900, 4};
    struct own a, want;
    struct world w;
    open_world(&w, 6);
    for (int i = 0; i < 2; i++) { /* into the same slot, then into another one */
        own_open(&a, w.r.dev);
        own_open(&want, w.r.dev);
        assert_int_equal(kr_draw_open(w.r.exec, place(2, 5), a.s, place(2, 4), NULL, 0), 0);
        draw_some(&w, place(2, 5), a.s, 3, 2, want.s);
        kr_draw_state_cut(want.s, 0);
        kr_draw_state_cut(a.s, 0);
        accept(want.s, out, 4);
        accept(a.s, out, 4);
        struct kr_draw_at at = i ? place(7, 1) : place(2, 6);
        assert_int_equal(kr_draw_open(w.r.exec, at, a.s, place(2, 5), out, 4), 0);
        kr_draw_close(w.r.exec, place(2, 5));
        spoil(&w, &a);
        draw_some(&w, at, a.s, 5, 3, want.s);
        kr_draw_close(w.r.exec, at);
        kr_draw_state_free(a.s);
        kr_draw_state_free(want.s);
    }
    close_world(&w);
}

static void test_wrong_places(void **state)
{
    static const uint32_t id = 1;
    struct kr_device_info info;
    struct world w;
    uint64_t ticket;
    open_world(&w, 6);
    kr_device_info(w.r.dev, &info);
    if (!info.keeps_draws) {
        close_world(&w);
        print_message("skipped on %s: it draws with the caller's states\n", dev_kind());
        skip();
    }
    struct kr_draw_state *s = new_state(w.r.dev, 5);
    struct kr_draw d = {.row = 5, .state = s, .at = place(1, 1), .position = 6};
    assert_int_equal(kr_draw_open(w.r.exec, place(N, 1), s, place(0, 0), NULL, 0), CN_ERANGE);
    assert_int_equal(kr_draw_open(w.r.exec, place(1, 0), s, place(0, 0), NULL, 0), CN_ERANGE);
    assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &ticket, NULL), 0);
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 1, NULL), CN_EINVAL); /* was not sent */
    assert_int_equal(kr_draw_open(w.r.exec, place(1, 2), s, place(0, 0), NULL, 0), 0);
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 1, NULL), CN_EINVAL); /* another's slot */
    kr_draw_close(w.r.exec, place(1, 2));
    d.at.generation = 2;
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 1, NULL), CN_EINVAL); /* has gone */
    assert_int_equal(kr_draw_put(w.r.exec, d.at, s, 0, &id, 1), 0);
    kr_draw_close(w.r.exec, d.at);
    assert_int_equal(kr_draw(w.r.exec, ticket, &d, 0, NULL), 0);
    kr_draw_state_free(s);
    close_world(&w);
}

static void test_wrong_draws(void **state)
{
    const struct kr_result *got;
    struct kr_draw d[2] = {{.row = N}, {.row = 3}};
    float *z;
    struct world w;
    uint64_t ticket;
    open_world(&w, 6);
    assert_int_equal(kr_draw(w.r.exec, 1, d, 0, NULL), CN_EINVAL); /* none was launched */
    for (int k = 0; k < 3; k++) {
        int rc = kr_launch(w.r.exec, w.r.mem, &w.batch, &ticket, NULL);
        assert_int_equal(rc, 0);
        if (k == 1) d[0].row = 3; /* twice the same row */
        rc = kr_draw(w.r.exec, ticket, d, k == 2 ? 0 : 2, NULL);
        if (!rc) rc = kr_collect_drawn(w.r.exec, ticket, &got, NULL);
        assert_int_equal(rc, k == 2 ? 0 : CN_ERANGE);
    }
    assert_int_not_equal(kr_collect(w.r.exec, ticket, &z, NULL), 0); /* too many for that */
    close_world(&w);
}

/* Two steps in flight: the second's row is what the first drew. */
static void test_ids_by_ticket(void **state)
{
    struct world w;
    const struct kr_result *got;
    uint64_t first, second, third;
    uint32_t want[2];
    open_world(&w, 6);
    struct kr_device_info info;
    kr_device_info(w.r.dev, &info);
    close_world(&w);
    if (info.max_depth < 2) {
        print_message("skipped on %s: it has one step in flight\n", dev_kind());
        skip();
    }
    for (size_t i = 0; i < 2; i++) { /* with the ids known, then by ticket */
        open_world(&w, 6);
        struct kr_draw_state *s = new_state(w.r.dev, 8);
        struct kr_row row = {.pos = 3, .logits = true};
        struct kr_draw d = {.row = 2, .position = 3};
        open_draw(&w, &d, s, 0);
        w.batch.n_rows = 3;
        assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &first, NULL), 0);
        assert_int_equal(kr_draw(w.r.exec, first, &d, 1, NULL), 0);
        if (i) {
            row.src = KR_ROW_TICKET;
            row.from.ticket = first;
            row.from.row = 2;
        } else {
            assert_int_equal(kr_collect_drawn(w.r.exec, first, &got, NULL), 0);
            row.token = want[0] = got[2].drawn.id;
        }
        w.batch.n_rows = 1;
        w.batch.rows = &row;
        assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &second, NULL), 0);
        if (i) {
            assert_int_equal(kr_collect_drawn(w.r.exec, first, &got, NULL), 0);
            assert_int_equal(got[2].drawn.id, want[0]);
        }
        d = (struct kr_draw){.row = 0, .state = s, .at = place(0, 1), .position = 4};
        assert_int_equal(kr_draw(w.r.exec, second, &d, 1, NULL), 0);
        assert_int_equal(kr_collect_drawn(w.r.exec, second, &got, NULL), 0);
        if (i) assert_int_equal(got[0].drawn.id, want[1]);
        want[1] = got[0].drawn.id;
        row.src = KR_ROW_TICKET;
        row.from.ticket = second + 9; /* there is no such step */
        assert_int_equal(kr_launch(w.r.exec, w.r.mem, &w.batch, &third, NULL), CN_EINVAL);
        kr_draw_state_free(s);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_any_number), cmocka_unit_test(test_guesses_and_masks),
        cmocka_unit_test(test_states_in_slots),    cmocka_unit_test(test_slots_given_out_again),
        cmocka_unit_test(test_wrong_places),       cmocka_unit_test(test_wrong_draws),
        cmocka_unit_test(test_ids_by_ticket),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
