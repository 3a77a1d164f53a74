/* Real models: the distributions of SmolLM2-135M Q4_1 and Gemma 3 270M Q4_K_M over a text, against
 * transformers in float32 on the same stored weights.
 *
 * At even positions, KL(reference || ours) over the 256 listed tokens and one bucket for the rest;
 * its mean must not be above what llama.cpp reaches on the same file (the oracle says). Greedy
 * tokens after the first 32: the reference's own tokens are fed, and each is compared.
 * The files come from tools/fetch_models.py; without them the test is skipped. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "golden.h"

enum { TOP = 256 };
struct listed {
    int32_t ids[TOP];
    float logprobs[TOP];
};

/* log of the sum of exp(logits). */
static double log_sum(const float *logits, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = CN_MAX((double)logits[i], max);
    for (size_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

static double divergence(const float *logits, size_t n, const struct listed *want)
{
    double all = log_sum(logits, n), kl = 0, p_sum = 0, q_sum = 0;
    for (int i = 0; i < TOP; i++) {
        double p = exp(want->logprobs[i]), log_q = logits[want->ids[i]] - all;
        kl += p * (want->logprobs[i] - log_q);
        p_sum += p;
        q_sum += exp(log_q);
    }
    double p_rest = fmax(1 - p_sum, 1e-12), q_rest = fmax(1 - q_sum, 1e-12);
    return kl + p_rest * log(p_rest / q_rest);
}

struct result { double kl, top1; };

static struct result measure(struct golden *g, const uint32_t *ids, size_t n,
                             const struct listed *want)
{
    enum { AT_ONCE = 16 };
    float *logits = malloc(AT_ONCE * g->n_vocab * sizeof(*logits));
    struct result r = {0, 0};
    size_t counted = 0;
    for (uint32_t pos = 0; pos < n; pos++) {
        const float *row = logits + pos % AT_ONCE * g->n_vocab;
        if (pos % AT_ONCE == 0)
            golden_feed(g, &ids[pos], CN_MIN(AT_ONCE, n - pos), AT_ONCE, 0, logits);
        if (pos % 2) continue;
        r.kl += divergence(row, g->n_vocab, &want[pos]);
        r.top1 += golden_argmax(row, g->n_vocab) == (uint32_t)want[pos].ids[0];
        counted++;
    }
    free(logits);
    r.kl /= (double)counted;
    r.top1 /= (double)counted;
    return r;
}

/* How many greedy tokens are the reference's when its own tokens are fed, and how many from the
 * start without a difference. */
static void follow_greedy(struct golden *g, const uint32_t *ids, const uint32_t *greedy, size_t n,
                          size_t *equal, size_t *run)
{
    float *logits = malloc(g->n_vocab * sizeof(*logits));
    *equal = *run = 0;
    golden_restart(g);
    golden_feed(g, ids, 32, 32, 31, logits);
    for (size_t i = 0; i < n; i++) {
        bool same = golden_argmax(logits, g->n_vocab) == greedy[i];
        if (same && *run == i) ++*run;
        *equal += same;
        golden_feed(g, &greedy[i], 1, 1, 0, logits);
    }
    free(logits);
}

/* The last row's logits for the text in one piece and in several cuts: the same bytes. */
static void check_cuts(struct golden *g, const uint32_t *ids)
{
    static const size_t chunks[] = {64, 1, 7, 16};
    float *logits[2];
    for (size_t c = 0; c < CN_ARRAY_LEN(chunks); c++) {
        float *out = logits[c > 0] = malloc(g->n_vocab * sizeof(*out));
        golden_restart(g);
        golden_feed(g, ids, 64, chunks[c], 63, out);
        if (c == 0) continue;
        assert_memory_equal(logits[0], out, g->n_vocab * sizeof(*out));
        free(out);
    }
    free(logits[0]);
}

struct real {
    double kl, top1; /* llama.cpp's */
    uint32_t *ids, *greedy;
    size_t n_ids, n_greedy, positions;
    struct listed *want;
};

static struct real read_real(const char *name)
{
    struct real r;
    size_t n;
    json_t *doc = golden_json(golden_oracle("real", name, ".json"));
    const json_t *peer = json_object_get(doc, "llama_cpp");
    r.kl = json_number_value(json_object_get(peer, "mean_kl"));
    r.top1 = json_number_value(json_object_get(peer, "top1_agreement"));
    r.ids = golden_ids(doc, "tokens", &r.n_ids);
    r.greedy = golden_ids(doc, "greedy_after_32", &r.n_greedy);
    r.positions = (size_t)json_integer_value(json_object_get(doc, "positions"));
    r.want = (struct listed *)golden_floats(golden_oracle("real", name, ".top256"), &n);
    json_decref(doc);
    assert_true(r.kl > 0 && r.positions <= r.n_ids);
    assert_int_equal(n * sizeof(float), r.positions * sizeof(*r.want));
    return r;
}

static void run_isa(const char *path, const struct real *want, enum kr_isa isa)
{
    struct golden g;
    size_t equal, same_run;
    if (golden_open(&g, path, isa, 2, 512, KR_F16)) return;
    struct result r = measure(&g, want->ids, want->positions, want->want);
    follow_greedy(&g, want->ids, want->greedy, want->n_greedy, &equal, &same_run);
    print_message("%s (%s): mean KL %.5f (llama.cpp %.5f), top-1 %.3f (%.3f), greedy %zu of %zu, "
                  "the first %zu in a row\n",
                  eng_model_info(g.model)->name, kr_device_path(g.device), r.kl, want->kl, r.top1,
                  want->top1, equal, want->n_greedy, same_run);
    assert_true(r.kl <= want->kl);
    assert_true(r.top1 >= want->top1 - 0.05);
    assert_true(equal * 10 >= want->n_greedy * 9);
    check_cuts(&g, want->ids);
    golden_close(&g);
}

static void run(const char *file, const char *oracle, const enum kr_isa *isas, size_t n)
{
    const char *path = golden_real(file);
    if (!path || !golden_oracle("real", oracle, ".json")) return;
    struct real want = read_real(oracle);
    for (size_t i = 0; i < n; i++)
        run_isa(path, &want, isas[i]);
    free(want.want);
    free(want.ids);
    free(want.greedy);
}

static void test_smollm2(void **state)
{
    static const enum kr_isa isas[] = {KR_ISAS};
    run("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-q4_1", isas, CN_ARRAY_LEN(isas));
}

/* Its 262,144 rows of head take the generic kernels minutes. */
static void test_gemma3(void **state)
{
    static const enum kr_isa isas[] = {KR_ISA_AUTO, KR_ISA_AVX2};
    run("gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4_k_m", isas, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    return cmocka_run_group_tests_name("real models", tests, NULL, NULL);
}
