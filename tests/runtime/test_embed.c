/* Embedding requests. The model is a tiny one that generates, whose rows of logits are taken for
 * hidden vectors (eng_model_info is wrapped): what is pooled is known from a step of the engine's
 * own with all rows in it, and the last row from the oracle's reference. usage: test_embed MODEL */
#include "tests/runtime/harness.h"

#include "runtime/pooled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 48
#define N_WORK   12

static const char *model;
static enum eng_pooling pooling;
static uint32_t prompt[N_PROMPT];
static size_t width;
static double preemptions; /* of the last run */
static float *rows;        /* [N_PROMPT][width] */

const struct eng_model_info *__real_eng_model_info(const struct eng_model *m);
const struct eng_model_info *__wrap_eng_model_info(const struct eng_model *m);

const struct eng_model_info *__wrap_eng_model_info(const struct eng_model *m)
{
    static _Thread_local struct eng_model_info info;
    info = *__real_eng_model_info(m);
    info.pooling = pooling;
    return &info;
}

/* ---- what is to be expected ------------------------------------------------------------------ */

static void read_prompt(void)
{
    char path[4200];
    snprintf(path, sizeof path, "%.*sjson", (int)(strlen(model) - 4), model);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 65536);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    char *at = strstr(text, "\"prompt\"");
    assert_non_null(at);
    at = strchr(at, '[') + 1;
    for (int i = 0; i < N_PROMPT; i++) {
        prompt[i] = (uint32_t)strtoul(at, &at, 10);
        at++;
    }
    free(text);
}

static struct h_setup setup(void)
{
    return (struct h_setup){
        .model = model, .threads = 1, .n_tenants = 2, .max_batch_rows = 64, .kv_bytes = 64u << 20};
}

/* All rows in one step, straight from the engine. */
static void run_engine(void)
{
    struct kr_device *d;
    struct eng_model *m;
    struct kr_kv_mem *mem;
    struct cn_error err;
    uint32_t table[4] = {0, 1, 2, 3};
    const uint32_t *tables[8] = {table, table, table, table, table, table, table, table};
    struct kr_row step[N_PROMPT];
    uint64_t ticket;
    float *z;

    assert_int_equal(dev_new(KR_ISA_AUTO, 1, &d, &err), 0);
    struct eng_model_opts o = {
        .device = d,
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 64, .max_logit_rows = 64}};
    assert_int_equal(eng_model_open(model, &o, &m, &err), 0);
    const struct kr_exec_info *x = eng_model_info(m)->exec;
    assert_int_equal(x->n_groups, 1);
    assert_int_equal(kr_kv_mem_new(d, x->groups[0].block_bytes * 4, 1, &mem, &err), 0);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        step[i] =
            (struct kr_row){.pos = i, .src = KR_ROW_TOKEN, .logits = true, .token = prompt[i]};
    struct kr_seq seq = {.tables = tables};
    struct kr_batch b = {.n_rows = N_PROMPT, .n_seqs = 1, .rows = step, .seqs = &seq};
    assert_int_equal(kr_launch(eng_model_exec(m), mem, &b, &ticket, &err), 0);
    assert_int_equal(kr_collect(eng_model_exec(m), ticket, &z, &err), 0);
    width = x->n_vocab;
    rows = malloc(N_PROMPT * width * sizeof *rows);
    memcpy(rows, z, N_PROMPT * width * sizeof *rows);
    kr_kv_mem_free(mem);
    eng_model_unref(m);
    kr_device_free(d);
}

static void expected(enum eng_pooling how, float *out)
{
    double *sum = calloc(width, sizeof *sum), square = 0;
    size_t from = how == ENG_POOL_LAST ? N_PROMPT - 1 : 0, to = how == ENG_POOL_CLS ? 1 : N_PROMPT;
    for (size_t r = from; r < to; r++)
        for (size_t i = 0; i < width; i++)
            sum[i] += (double)rows[r * width + i];
    for (size_t i = 0; i < width; i++)
        square += sum[i] * sum[i];
    for (size_t i = 0; i < width; i++)
        out[i] = (float)(sum[i] / sqrt(square));
    free(sum);
}

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < width; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Request 0 has the oracle's prompt; the others begin like it and go on their own way. With `arg`
 * there are long ones of the lowest class, and at last one that goes before them. */
static void make(struct h *h, uint32_t i, struct rt_request *out, void *arg)
{
    size_t n = i ? 1 + i * 37 % (size_t)64 : N_PROMPT;
    if (arg) n = i == N_WORK - 1 ? 300 : 104 + 8 * i;
    *out = (struct rt_request){.reply = &h->mail,
                               .priority = RT_NORMAL,
                               .n = 1,
                               .embed = true,
                               .max_tokens = 1,
                               .n_prompt = n};
    if (arg) out->priority = i == N_WORK - 1 ? RT_INTERACTIVE : RT_BACKGROUND;
    out->prompt = cn_malloc_array(n, sizeof *out->prompt);
    for (size_t k = 0; k < n; k++)
        out->prompt[k] =
            k < N_PROMPT && (!i || k < 20) ? prompt[k] : (uint32_t)(k * 31 + i * 7) % 250;
    eng_sampling_defaults(&out->sampling);
}

static void run(struct h_setup s, uint32_t at_once, void *arg, struct h_result *r)
{
    struct h h;
    h_start(&h, &s);
    assert_int_equal(rt_embedding_size(rt_model_at(h.rt, 0)), width);
    h_run(&h, N_WORK, at_once, make, arg, r);
    h_settle(&h);
    assert_true(h_metric(&h, CN_M_tokens_generated) == 0);
    preemptions = h_metric(&h, CN_M_preemptions);
    h_stop(&h);
    for (uint32_t i = 0; i < N_WORK; i++) {
        double square = 0;
        assert_int_equal(r[i].code, 0);
        assert_int_equal(r[i].n_vector, width);
        assert_int_equal(r[i].choices[0].finish, RT_FINISH_STOP);
        assert_int_equal(r[i].usage.completion_tokens, 0);
        for (size_t k = 0; k < width; k++)
            square += (double)r[i].vector[k] * (double)r[i].vector[k];
        assert_true(fabs(square - 1) < 1e-5);
    }
}

static void fini(struct h_result *r)
{
    for (uint32_t i = 0; i < N_WORK; i++)
        h_result_fini(&r[i]);
}

static void same_as(const struct h_result *want, struct h_setup s, uint32_t at_once, void *arg,
                    const char *what)
{
    struct h_result r[N_WORK];
    run(s, at_once, arg, r);
    for (uint32_t i = 0; i < N_WORK; i++)
        if (memcmp(r[i].vector, want[i].vector, width * sizeof(float)))
            fail_msg("%s: request %u differs", what, i);
    fini(r);
}

static void test_pooling(void **state)
{
    float *want = malloc(width * sizeof *want);
    for (pooling = ENG_POOL_MEAN; pooling <= ENG_POOL_LAST; pooling++) {
        struct h_result r[N_WORK];
        struct h_setup s = setup();
        run(s, 1, NULL, r);
        expected(pooling, want);
        assert_memory_equal(r[0].vector, want, width * sizeof *want);
        same_as(r, s, N_WORK, NULL, "all at once");
        s.max_batch_rows = 7;
        same_as(r, s, 3, NULL, "chunks of 7");
        s.max_batch_rows = 1;
        same_as(r, s, 2, NULL, "chunks of 1");
        s = setup();
        s.threads = 2;
        same_as(r, s, 5, NULL, "two threads");
        fini(r);
    }
    free(want);
}

static void test_oracle(void **state)
{
    char path[4200];
    struct h_result r[N_WORK];
    float *want = malloc(width * sizeof *want);
    snprintf(path, sizeof path, "%.*slogits.f32", (int)(strlen(model) - 4), model);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, -(long)(width * sizeof *want), SEEK_END), 0);
    assert_int_equal(fread(want, sizeof *want, width, f), width);
    fclose(f);
    pooling = ENG_POOL_LAST;
    run(setup(), 4, NULL, r);
    double c = cosine(r[0].vector, want);
    print_message("cosine to the reference: %.7f\n", c);
    assert_true(c > 0.9999);
    assert_true(cosine(r[1].vector, want) < 0.999);
    fini(r);
    free(want);
}

/* The last row may come after a prefix of the cache; the other ways need every row. */
static void test_cache(void **state)
{
    for (pooling = ENG_POOL_MEAN; pooling <= ENG_POOL_LAST; pooling++) {
        struct h_setup s = setup();
        struct h_result r[2][N_WORK];
        uint64_t cached = 0;
        struct h h;
        h_start(&h, &s);
        for (int k = 0; k < 2; k++)
            h_run(&h, N_WORK, k ? N_WORK : 1, make, NULL, r[k]);
        for (uint32_t i = 0; i < N_WORK; i++) {
            cached += r[1][i].usage.cached_tokens;
            assert_memory_equal(r[0][i].vector, r[1][i].vector, width * sizeof(float));
        }
        assert_true(pooling == ENG_POOL_LAST ? cached > 0 : cached == 0);
        h_stop(&h);
        fini(r[0]);
        fini(r[1]);
    }
}

/* Memory for three of them. When the first has ended the last one comes, for which the younger of
 * the two that are on their way has to make room; no row counts twice. */
static void test_preempted(void **state)
{
    for (pooling = ENG_POOL_MEAN; pooling <= ENG_POOL_LAST; pooling++) {
        struct h_setup s = setup();
        struct h_result r[N_WORK];
        struct h h;
        h_start(&h, &s);
        uint64_t block = eng_model_info(rt_model(h.rt))->exec->groups[0].block_bytes;
        h_stop(&h);
        run(s, 1, "long", r);
        s.kv_bytes = block * (400 / 16 + 8);
        s.max_batch_rows = 4;
        same_as(r, s, N_WORK - 1, "long", "hardly any memory");
        print_message("preemptions: %g\n", preemptions);
        assert_true(preemptions > 0);
        fini(r);
    }
}

static int submit(struct h *h, size_t n, bool embed, struct cn_error *err)
{
    struct rt_request q;
    make(h, 0, &q, NULL);
    free(q.prompt);
    q.prompt = cn_calloc(n, sizeof *q.prompt);
    q.n_prompt = n;
    q.embed = embed;
    q.id = n;
    int rc = rt_submit(h->rt, &q, err);
    if (rc) rt_request_fini(&q);
    return rc;
}

static int wait_end(struct h *h)
{
    for (;;) {
        assert_true(cn_mailbox_wait(&h->mail, 60ull * 1000000000));
        int code = 1;
        for (struct cn_msg *m = cn_mailbox_take(&h->mail), *next; m; m = next) {
            struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
            next = m->next;
            if (e->kind == RT_EV_END) code = e->code;
            rt_event_free(e);
        }
        if (code <= 0) return code;
    }
}

static void test_refusals(void **state)
{
    struct h_setup s = setup();
    struct cn_error err;
    struct h h;
    s.context = 64;
    pooling = ENG_POOL_MEAN;
    h_start(&h, &s);
    assert_int_equal(submit(&h, 10, false, &err), CN_EUNSUPP);
    assert_string_equal(err.param, "model");
    assert_int_equal(submit(&h, 65, true, &err), CN_EWINDOW);
    assert_non_null(strstr(err.message, "65"));
    assert_int_equal(submit(&h, 64, true, &err), 0); /* the whole window */
    assert_int_equal(wait_end(&h), 0);
    assert_int_equal(submit(&h, 60, true, &err), 0);
    rt_cancel(h.rt, &h.mail, 60);
    int code = wait_end(&h);
    assert_true(code == CN_ECANCELLED || code == 0);
    h_settle(&h);
    h_stop(&h);
    pooling = ENG_POOL_NONE;
    h_start(&h, &s);
    assert_int_equal(rt_embedding_size(rt_model_at(h.rt, 0)), 0);
    assert_int_equal(submit(&h, 10, true, &err), CN_EUNSUPP);
    assert_string_equal(err.param, "model");
    h_stop(&h);
}

static void test_rows(void **state)
{
    static const float a[2] = {3, 0}, b[2] = {0, 4}, no[2] = {1, NAN}, inf[2] = {INFINITY, 1};
    static const float *const bad[] = {no, inf};
    struct rt_pooled *p = rt_pooled_new(ENG_POOL_MEAN, 2, 2);
    assert_int_equal(rt_pooled_row(p, 0, a), 0);
    assert_int_equal(rt_pooled_finish(p), CN_EINTERNAL); /* a row is missing */
    assert_int_equal(rt_pooled_row(p, 0, a), 0);         /* again: not counted */
    assert_int_equal(rt_pooled_row(p, 1, b), 0);
    assert_int_equal(rt_pooled_finish(p), 0);
    assert_true(p->vector[0] == 0.6f && p->vector[1] == 0.8f);
    rt_pooled_free(p);
    p = rt_pooled_new(ENG_POOL_MEAN, 3, 2);
    assert_int_equal(rt_pooled_row(p, 1, a), CN_EINTERNAL);
    rt_pooled_free(p);
    for (int i = 0; i < 3; i++) {
        static const float zero[2];
        p = rt_pooled_new(ENG_POOL_LAST, 3, 2);
        assert_int_equal(rt_pooled_row(p, 2, i < 2 ? bad[i] : zero), 0);
        assert_int_equal(rt_pooled_finish(p), CN_ENUMERIC);
        rt_pooled_free(p);
    }
}

static int begin(void **state)
{
    pooling = ENG_POOL_NONE;
    read_prompt();
    run_engine();
    return 0;
}

static int end(void **state)
{
    free(rows);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_oracle),    cmocka_unit_test(test_cache),
        cmocka_unit_test(test_preempted), cmocka_unit_test(test_refusals)};
    model = h_model(argc > 1 ? argv[1] : NULL);
    if (!model) {
        fprintf(stderr, "skipped: no model\n");
        return 77;
    }
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    return cmocka_run_group_tests(tests, begin, end);
}
