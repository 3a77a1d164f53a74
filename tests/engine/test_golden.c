/* Golden models: logits against transformers in float32, for every ISA of this machine.
 *
 * oracle/models (float16 weights, so products are in float32): the largest difference is at most
 * 0.01 standard deviations of the reference's logits, and the greedy token is the reference's
 * wherever its margin is above twice that. oracle/quants: activations have 8 bits; rms 0.03, worst
 * 0.12. The bytes of the logits are the same for one thread and two and for every cut in chunks.
 * A reference that leaves nothing to compare (no logits, no margin wide enough) is a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "families.h"

struct bound { double max, rms; };
static const struct bound float_bound = {0.01, 0.01}, q8_bound = {0.12, 0.03};

struct reference {
    uint32_t *prompt, *greedy;
    size_t n_prompt, n_greedy, n_logits;
    double *margin, std;
    uint32_t first; /* position of the first row of logits */
    float *logits;
    char *gguf;
};

/* A file of ours (make_fixtures.py and make_dsa_fixture.py say why it is needed), or NULL. */
static const char *fixture(const char *name, const char *suffix)
{
    static char path[512];
    snprintf(path, sizeof(path), CONIFER_SOURCE_ROOT "/tests/engine/fixtures/%s%s", name, suffix);
    return access(path, R_OK) ? NULL : path;
}

static const char *reference_file(const char *folder, const char *name, const char *suffix)
{
    const char *own = fixture(name, suffix);
    return own ? own : golden_oracle(folder, name, suffix);
}

static struct reference read_reference(const char *folder, const char *name)
{
    struct reference r;
    json_t *doc = golden_json(reference_file(folder, name, ".json"));
    r.prompt = golden_ids(doc, "prompt", &r.n_prompt);
    r.greedy = golden_ids(doc, "greedy", &r.n_greedy);
    r.margin = calloc(r.n_greedy, sizeof(*r.margin));
    for (size_t i = 0; i < r.n_greedy; i++)
        r.margin[i] = json_number_value(json_array_get(json_object_get(doc, "greedy_margin"), i));
    r.std = json_number_value(json_object_get(doc, "logit_std"));
    r.first =
        (uint32_t)json_integer_value(json_array_get(json_object_get(doc, "logits_positions"), 0));
    const char *of =
        json_string_value(json_object_get(doc, "of")); /* another prompt of that model */
    r.gguf = strdup(reference_file(folder, of ? of : name, ".gguf"));
    json_decref(doc);
    r.logits = golden_floats(reference_file(folder, name, ".logits.f32"), &r.n_logits);
    if (!r.n_prompt || !r.n_greedy || !r.n_logits || !(r.std > 0))
        fail_msg("%s/%s: nothing to compare in the reference", folder, name);
    return r;
}

static void free_reference(struct reference *r)
{
    free(r->prompt);
    free(r->greedy);
    free(r->margin);
    free(r->logits);
    free(r->gguf);
}

/* Feeds the reference's own tokens, so that one close call does not decide the rest. */
static size_t check_greedy(struct golden *g, const struct reference *r, const float *last,
                           double bound, const char *name)
{
    float *logits = malloc(g->n_vocab * sizeof(*logits));
    size_t checked = 0;
    memcpy(logits, last, g->n_vocab * sizeof(*logits));
    for (size_t i = 0; i < r->n_greedy; i++) {
        uint32_t got = golden_argmax(logits, g->n_vocab);
        if (r->margin[i] > 2 * bound * r->std) {
            checked++;
            if (got != r->greedy[i])
                fail_msg("%s: greedy token %zu is %u, the reference has %u (margin %g)", name, i,
                         got, r->greedy[i], r->margin[i]);
        }
        golden_feed(g, &r->greedy[i], 1, 1, 0, logits);
    }
    free(logits);
    return checked;
}

static void check_chunks(struct golden *g, const struct reference *r, const float *whole,
                         const char *name)
{
    static const size_t chunks[] = {1, 7, 16};
    float *logits = malloc(r->n_logits * sizeof(*logits));
    for (size_t c = 0; c < CN_ARRAY_LEN(chunks); c++) {
        golden_restart(g);
        golden_feed(g, r->prompt, r->n_prompt, chunks[c], r->first, logits);
        if (memcmp(logits, whole, r->n_logits * sizeof(*logits)))
            fail_msg("%s: chunks of %zu give other bytes than the whole prompt", name, chunks[c]);
    }
    free(logits);
}

static void run_isa(const char *folder, const char *name, enum kr_isa isa, enum kr_type kv,
                    struct bound bound)
{
    struct reference r = read_reference(folder, name);
    float *logits[2] = {NULL, NULL};
    size_t checked = 0;

    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct golden g;
        if (golden_open(&g, r.gguf, isa, threads, 256, kv)) break;
        assert_int_equal(r.n_logits, (r.n_prompt - r.first) * g.n_vocab);
        float *out = logits[threads - 1] = malloc(r.n_logits * sizeof(*out));
        golden_feed(&g, r.prompt, r.n_prompt, r.n_prompt, r.first, out);
        struct golden_error e = golden_compare(out, r.logits, r.n_logits);
        if (threads == 1)
            print_message("%-12s %-8s max %.5f rms %.5f", name, kr_isa_name(isa), e.max, e.rms);
        if (!(e.max <= bound.max && e.rms <= bound.rms))
            fail_msg("%s %s: max %g rms %g", name, kr_isa_name(isa), e.max, e.rms);
        checked = check_greedy(&g, &r, out + r.n_logits - g.n_vocab, bound.max, name);
        check_chunks(&g, &r, out, name);
        if (threads == 1) families_note(&g, name, isa, e.max, r.prompt, r.n_prompt);
        golden_close(&g);
    }
    assert_true(logits[0] || isa != KR_ISA_GENERIC);
    if (logits[0]) {
        if (!checked) fail_msg("%s: no greedy token has a margin that can be compared", name);
        print_message(" greedy %zu of %zu compared\n", checked, r.n_greedy);
        assert_memory_equal(logits[0], logits[1], r.n_logits * sizeof(**logits));
    }
    free(logits[0]);
    free(logits[1]);
    free_reference(&r);
}

static void run(const char *folder, const char *name, enum kr_type kv, struct bound bound)
{
    if (!fixture(name, ".gguf") && !golden_oracle(folder, name, ".json")) return;
    for (int isa = KR_ISA_GENERIC; isa < KR_N_ISAS; isa++)
        run_isa(folder, name, (enum kr_isa)isa, kv, bound);
}

static void test_models(void **state)
{
    static const char *const names[] = {
        "llama-mha",     "llama-mqa", "llama3-gqa",   "llama-yarn", "mistral-swa", "qwen2",
        "qwen3",         "gemma",     "gemma2",       "gemma3",     "gemma4",      "granite",
        "olmo2",         "smollm3",   "phi3",         "command-r",  "starcoder2",  "mixtral",
        "qwen2moe",      "qwen3moe",  "granitemoe",   "llama4",     "gpt-oss",     "lfm2",
        "lfm2moe",       "mamba",     "falcon-mamba", "mamba2",     "jamba",       "granitehybrid",
        "falcon-h1",     "qwen3next", "qwen35",       "qwen35moe",  "deepseek2",   "deepseek3",
        "deepseek32-dsa"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        run("models", names[i], KR_F16, float_bound);
        families_end(names[i]);
    }
}

/* What the oracle leaves out: prompts of eleven windows; chunks; experts beside a dense part;
 * layers that share keys; MLA without a query rank, in a file of the older generation; layers of
 * which only those with a window turn, and those with a window turn unscaled; norms of every
 * head. */
static void test_fixtures(void **state)
{
    static const char *const names[] = {"gemma2-long",      "gemma3-long",    "gpt-oss-long",
                                        "mistral-swa-long", "gemma4-moe",     "gemma4-shared",
                                        "llama4-chunks",    "deepseek2-lite", "cohere2",
                                        "command-r-plus",   "olmo3"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        run("models", names[i], KR_F16, float_bound);
        families_end(names[i]);
    }
}

static void test_float_quants(void **state)
{
    static const char *const names[] = {"llama-f32", "llama-f16", "llama-bf16"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++)
        run("quants", names[i], KR_F16, float_bound);
}

static void test_quants(void **state)
{
    static const char *const names[] = {
        "llama-q4_0",   "llama-q4_1",      "llama-q5_0",   "llama-q5_1",
        "llama-q8_0",   "llama-q2_k",      "llama-q3_k_s", "llama-q4_k_s",
        "llama-q5_k_s", "llama-q6_k",      "llama-iq3_s",  "llama-iq4_nl",
        "llama-iq4_xs", "llama-mxfp4_moe", "llama-tq1_0",  "llama-tq2_0"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++)
        run("quants", names[i], KR_F16, q8_bound);
}

/* Keys and values in 8 bits: the same bound as for 8-bit activations. */
static void test_q8_kv(void **state)
{
    static const char *const names[] = {"llama-f16", "llama-q8_0", "llama-q4_k_s"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++)
        run("quants", names[i], KR_Q8_0, q8_bound);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),       cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_float_quants), cmocka_unit_test(test_quants),
        cmocka_unit_test(test_q8_kv),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
