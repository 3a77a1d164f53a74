/* Prompts with media, carried from a request to the device's rows: embeddings that are the tokens'
 * own rows give the bytes of the tokens; the cache knows media by their digest; positions, adapters
 * and rows that see each other both ways arrive, where the model's exec says that it takes them
 * (eng_model_info and kr_launch are wrapped), and are refused by name where not. usage: test_media
 * MODEL */
#include "tests/runtime/harness.h"

#include "kvpool/kvpool.h"
#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 96
#define FIRST    20 /* of the medium */
#define N_MEDIA  50
#define N_OUT    8

static const char *model;
static bool takes_all;                          /* whatever a row may bring */
static const struct kr_seq *wanted_more;        /* [2]: further sequences that a step must bring */
static struct kr_row seen[2][N_PROMPT + N_OUT]; /* by adapter - 1 and position */
static uint32_t seen_turns[N_PROMPT + N_OUT][3];

const struct eng_model_info *__real_eng_model_info(const struct eng_model *m);
const struct eng_model_info *__wrap_eng_model_info(const struct eng_model *m);
int __real_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);

const struct eng_model_info *__wrap_eng_model_info(const struct eng_model *m)
{
    static _Thread_local struct eng_model_info info;
    static _Thread_local struct kr_exec_info exec;
    if (!takes_all) return __real_eng_model_info(m);
    info = *__real_eng_model_info(m);
    exec = *info.exec;
    exec.turns = exec.both_ways = true;
    exec.n_adapters = 2;
    info.exec = &exec;
    return &info;
}

/* Notes the rows and takes away what the device does not do. One step at a time. */
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *mem, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err)
{
    static struct kr_row rows[512];
    struct kr_batch plain = *b;
    if (wanted_more) { /* no device takes them yet */
        uint32_t n = 0;
        for (uint32_t i = 0; i < b->n_seqs; i++)
            for (uint32_t k = 0; k < b->seqs[i].n_more; k++, n++) {
                assert_true(n < 2);
                assert_ptr_equal(b->seqs[i].more[k].tables, wanted_more[n].tables);
                assert_int_equal(b->seqs[i].more[k].slot, b->seqs[i].slot);
                assert_true(b->seqs[i].more[k].generation == b->seqs[i].generation);
            }
        assert_int_equal(n, 2);
        int rc = __real_kr_launch(x, mem, b, ticket, err);
        assert_int_equal(rc, CN_EUNSUPP);
        return rc;
    }
    if (!takes_all) return __real_kr_launch(x, mem, b, ticket, err);
    plain.rows = rows;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        rows[i] = b->rows[i];
        if (rows[i].adapter) seen[rows[i].adapter - 1][rows[i].pos] = rows[i];
        if (rows[i].turns) memcpy(seen_turns[rows[i].pos], rows[i].turns, sizeof seen_turns[0]);
        rows[i].adapter = rows[i].both_until = 0;
        rows[i].turns = NULL;
    }
    return __real_kr_launch(x, mem, &plain, ticket, err);
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t token_at(size_t i)
{
    return (uint32_t)(i * 2654435761u >> 9) % 200;
}

static struct rt_request text(void)
{
    struct rt_request q = {
        .priority = RT_NORMAL, .n = 1, .n_prompt = N_PROMPT, .max_tokens = N_OUT};
    q.prompt = cn_malloc_array(N_PROMPT, sizeof *q.prompt);
    for (size_t i = 0; i < N_PROMPT; i++)
        q.prompt[i] = token_at(i);
    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0.8f;
    q.sampling.seed = 5;
    q.sampling.logprobs = 2;
    q.sampling.ignore_eos = true;
    return q;
}

/* Positions [first, first + n) of the prompt hold what the model's table has for these tokens. */
static void add_medium(struct rt_request *q, size_t first, size_t n, uint8_t digest)
{
    struct eng_gguf *g;
    struct cn_error err;
    if (eng_gguf_open(model, &g, &err)) fail_msg("%s", err.message);
    const struct kr_tensor *t = eng_gguf_find(g, "token_embd.weight");
    const struct kr_type_info *ti = kr_type_info(t->type);
    uint64_t width = t->ne[0], row_bytes = width / ti->block_elems * ti->block_bytes;
    struct rt_media *m = cn_calloc(q->n_media + 1, sizeof *m);
    if (q->n_media) memcpy(m, q->media, q->n_media * sizeof *m);
    free(q->media);
    q->media = m;
    m += q->n_media++;
    *m = (struct rt_media){.first = first, .n = n, .digest = {digest}};
    m->embeds = cn_malloc_array(n * width, sizeof *m->embeds);
    for (size_t i = 0; i < n; i++) {
        kr_dequantize_row(t->type, (const uint8_t *)t->data + token_at(first + i) * row_bytes,
                          m->embeds + i * width, width);
        q->prompt[first + i] = UINT32_MAX; /* not looked at */
    }
    eng_gguf_close(g);
}

/* Request 0 is text; of the others each is alike but for these. */
struct variant {
    uint8_t digest; /* of a medium; 0: text */
    uint32_t tenant;
};

static void make(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    const struct variant *v = &((const struct variant *)arg)[i];
    *out = text();
    out->id = i;
    out->reply = &h->mail;
    out->tenant = v->tenant;
    if (v->digest) add_medium(out, FIRST, N_MEDIA, v->digest);
}

static struct h_setup setup(void)
{
    return (struct h_setup){
        .model = model, .threads = 1, .n_tenants = 2, .max_batch_rows = 64, .kv_bytes = 64u << 20};
}

/* One after the other: 0 is text, 1 the same with a medium in another tenant's cache, 2 the same
 * medium again, 3 another digest, 4 text again. */
static void test_embeddings_are_the_tokens(void **state)
{
    static const struct variant v[] = {{0, 0}, {1, 1}, {1, 1}, {2, 1}, {0, 1}};
    struct h_setup s = setup();
    struct h h;
    struct h_result r[5] = {{0}};
    struct h_drive d = {
        .h = &h, .n = 5, .make = make, .arg = (void *)v, .at_once = 1, .results = r};
    h_start(&h, &s);
    h_drive(&d);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(r[i].code, 0);
        assert_int_equal(r[i].choices[0].n_ids, N_OUT);
        if (!h_same(&r[0], &r[i])) fail_msg("request %d: other bytes than the tokens", i);
    }
    assert_int_equal(r[1].usage.cached_tokens, 0);
    assert_true(r[2].usage.cached_tokens >= N_PROMPT - H_BLOCK_TOKENS);
    assert_in_range(r[3].usage.cached_tokens, FIRST / H_BLOCK_TOKENS * H_BLOCK_TOKENS, FIRST);
    assert_in_range(r[4].usage.cached_tokens, FIRST / H_BLOCK_TOKENS * H_BLOCK_TOKENS, FIRST);
    for (int i = 0; i < 5; i++)
        h_result_fini(&r[i]);
    h_stop(&h);
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void make_all(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    *out = text();
    out->id = i;
    out->reply = &h->mail;
    out->adapter = 1 + i;
    if (i) return;
    add_medium(out, FIRST, N_MEDIA, 1);
    out->media[0].both = true;
    out->turns = cn_malloc_array(N_PROMPT, sizeof *out->turns);
    for (uint32_t k = 0; k < N_PROMPT; k++)
        for (uint32_t j = 0; j < 3; j++)
            out->turns[k][j] = k + 1 == N_PROMPT ? 70 : k / 2 + j;
}

static void test_rows_carry_what_was_asked_for(void **state)
{
    struct h_setup s = setup();
    struct h h;
    struct h_result r[2] = {{0}};
    struct h_drive d = {.h = &h, .n = 2, .make = make_all, .at_once = 2, .results = r};
    takes_all = true;
    s.device = "cpu";
    h_start(&h, &s);
    h_drive(&d);
    for (uint32_t pos = 0; pos < N_PROMPT + N_OUT - 1; pos++) {
        const struct kr_row *row = &seen[0][pos], *other = &seen[1][pos];
        bool inside = pos >= FIRST && pos < FIRST + N_MEDIA;
        assert_int_equal(row->adapter, 1);
        assert_int_equal(row->src, inside ? KR_ROW_EMBED : KR_ROW_TOKEN);
        assert_int_equal(row->both_until, inside ? FIRST + N_MEDIA : 0);
        assert_int_equal(other->adapter, 2);
        assert_int_equal(other->src, KR_ROW_TOKEN);
        assert_true(row->prompt == (pos < N_PROMPT) && other->prompt == row->prompt);
        assert_true(!other->turns && !other->both_until);
        for (uint32_t j = 0; j < 3; j++) {
            uint32_t want = pos + 1 < N_PROMPT ? pos / 2 + j : 70 + pos + 1 - N_PROMPT;
            assert_int_equal(seen_turns[pos][j], want);
        }
    }
    for (int i = 0; i < 2; i++)
        h_result_fini(&r[i]);
    h_stop(&h);
    takes_all = false;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(struct h *h, struct rt_request q, int code, const char *says)
{
    struct cn_error err = {0};
    q.reply = &h->mail;
    assert_int_equal(rt_submit(h->rt, &q, &err), code);
    assert_string_equal(err.param, "prompt");
    if (!strstr(err.message, says)) fail_msg("'%s' does not say '%s'", err.message, says);
    rt_request_fini(&q);
}

static void test_refusals(void **state)
{
    struct h_setup s = setup();
    struct h h;
    h_start(&h, &s);
    struct rt_request q = text();
    add_medium(&q, FIRST, 10, 1);
    q.media[0].both = true;
    refused(&h, q, CN_EUNSUPP, "both ways");
    q = text();
    q.turns = cn_calloc(N_PROMPT, sizeof *q.turns);
    refused(&h, q, CN_EUNSUPP, "three numbers");
    q = text();
    add_medium(&q, FIRST, 10, 1);
    q.prompt_logprobs = true;
    refused(&h, q, CN_EUNSUPP, "not scored");
    q = text();
    add_medium(&q, FIRST, 10, 1);
    add_medium(&q, FIRST + 9, 10, 2);
    refused(&h, q, CN_EINVAL, "in another one");
    q = text();
    add_medium(&q, N_PROMPT - 4, 4, 1);
    q.media[0].n = 5;
    refused(&h, q, CN_EINVAL, "behind the end");
    q = text();
    q.prompt[7] = KV_MEDIA | 7;
    refused(&h, q, CN_ERANGE, "not in the vocabulary");
    h_stop(&h);
}

/* Sequences that a segment has besides its own arrive with it. The scheduler makes none yet. */
static void test_further_sequences(void **state)
{
    struct h h;
    struct h_setup s = setup();
    struct kv_seq *q[3];
    struct kv_seq_opts o = {.max_tokens = 32};
    uint32_t token = 3;
    uint64_t ticket;
    h_start(&h, &s);
    h_settle(&h); /* its thread waits for requests, which do not come */
    struct rt_group *g = &h.rt->groups[0];
    static struct rt_req req;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kv_seq_open(g->models[0]->space, &o, &q[i]), 0);
        assert_int_equal(kv_seq_extend(q[i], 1, &token), 0);
    }
    struct kr_seq want[2] = {{.tables = kv_seq_tables(q[1])}, {.tables = kv_seq_tables(q[2])}};
    struct sch_segment segment = {.user = &req,
                                  .slot = 3,
                                  .generation = 5,
                                  .seq = q[0],
                                  .n_more = 2,
                                  .more = q + 1,
                                  .n_rows = 1,
                                  .tokens = &token};
    struct sch_step step = {.n_segments = 1, .n_rows = 1, .segments = &segment};
    struct sch_stepper stepper = rt_stepper_interface(&g->stepper);
    wanted_more = want;
    assert_int_equal(stepper.launch(stepper.self, &step, &ticket), CN_EUNSUPP);
    wanted_more = NULL;
    for (int i = 0; i < 3; i++)
        kv_seq_close(q[i]);
    h_stop(&h);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embeddings_are_the_tokens),
        cmocka_unit_test(test_rows_carry_what_was_asked_for),
        cmocka_unit_test(test_further_sequences),
        cmocka_unit_test(test_refusals),
    };
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
