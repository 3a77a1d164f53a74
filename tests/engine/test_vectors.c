/* Encoders: token ids and vectors of all-MiniLM-L6-v2 (Q8_0) against transformers' of the original
 * weights: cosine at least 0.9985 for each sentence and 0.9994 on average, on every ISA. Tiny
 * models of the other families (fixtures, float16 weights): every row's vector within 0.01 standard
 * deviations of transformers', with the same bytes for one thread and two. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "families.h"

/* The mean of the rows' vectors, of length 1. */
static void pool(const float *rows, size_t n, size_t width, double *out)
{
    double length = 0;
    for (size_t c = 0; c < width; c++) {
        out[c] = 0;
        for (size_t r = 0; r < n; r++)
            out[c] += rows[r * width + c];
        length += out[c] * out[c];
    }
    for (size_t c = 0; c < width; c++)
        out[c] /= sqrt(length);
}

static double cosine(struct golden *g, const json_t *one)
{
    size_t n, width = g->n_vocab;
    uint32_t *ids = golden_ids(one, "ids", &n);
    const char *text = json_string_value(json_object_get(one, "text"));
    const json_t *want = json_object_get(one, "embedding");
    struct eng_ids got = {0};
    struct cn_error err;
    assert_int_equal(eng_tokenize(eng_model_vocab(g->model), text, strlen(text), NULL, 0,
                                  ENG_TOKENIZE_SPECIAL, &got, &err),
                     0);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.v, ids, n * sizeof(*ids));
    assert_int_equal(json_array_size(want), width);

    float *rows = malloc(n * width * sizeof(*rows));
    double *v = malloc(width * sizeof(*v)), dot = 0, length = 0;
    golden_restart(g);
    golden_feed(g, ids, n, n, 0, rows);
    pool(rows, n, width, v);
    for (size_t c = 0; c < width; c++) {
        double w = json_number_value(json_array_get(want, c));
        dot += v[c] * w;
        length += w * w;
    }
    free(v);
    free(rows);
    free(ids);
    eng_ids_fini(&got);
    return dot / sqrt(length);
}

static void test_minilm(void **state)
{
    const char *gguf = golden_oracle("real", "minilm-q8_0", ".gguf");
    if (!gguf) return;
    json_t *doc = golden_json(golden_oracle("real", "minilm", ".json"));
    const json_t *cases = json_object_get(doc, "cases");
    assert_int_equal(json_array_size(cases), 12);
    for (int isa = KR_ISA_GENERIC; isa < KR_N_ISAS; isa++) {
        struct golden g;
        double sum = 0, worst = 1;
        if (golden_open(&g, gguf, (enum kr_isa)isa, 2, 512, KR_F16)) continue;
        assert_int_equal(eng_model_info(g.model)->pooling, ENG_POOL_MEAN);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            double c = cosine(&g, json_array_get(cases, i));
            sum += c;
            worst = fmin(worst, c);
        }
        double mean = sum / (double)json_array_size(cases);
        print_message("minilm %-8s cosine %.5f on average, %.5f at worst\n",
                      kr_isa_name((enum kr_isa)isa), mean, worst);
        if (worst < 0.9985 || mean < 0.9994) fail_msg("too far from the reference");
        golden_close(&g);
    }
    json_decref(doc);
}

/* ---- fixtures -------------------------------------------------------------------------------- */

static const char *fixture(const char *name, const char *suffix)
{
    static char paths[2][512];
    static unsigned next;
    char *path = paths[next++ % 2];
    snprintf(path, sizeof(paths[0]), CONIFER_SOURCE_ROOT "/tests/engine/fixtures/%s%s", name,
             suffix);
    return path;
}

/* Vectors of all cases' rows, one after another; malloc'd. NULL when the machine lacks the ISA. */
static float *vectors_of(const char *name, const json_t *cases, enum kr_isa isa, uint32_t threads,
                         const float *want, size_t n_floats)
{
    struct golden g;
    if (golden_open(&g, fixture(name, ".gguf"), isa, threads, 256, KR_F16)) return NULL;
    assert_int_equal(eng_model_info(g.model)->pooling, ENG_POOL_MEAN);
    float *out = malloc(n_floats * sizeof(*out));
    uint32_t ids[GOLDEN_MAX_ROWS];
    size_t at = 0, n = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        n = json_array_size(one);
        assert_true(n && n <= GOLDEN_MAX_ROWS && at + n * g.n_vocab <= n_floats);
        for (size_t k = 0; k < n; k++)
            ids[k] = (uint32_t)json_integer_value(json_array_get(one, k));
        golden_restart(&g);
        golden_feed(&g, ids, n, n, 0, out + at);
        at += n * g.n_vocab;
    }
    assert_int_equal(at, n_floats);
    if (threads == 1) /* the last case is the longest */
        families_note(&g, name, isa, golden_compare(out, want, n_floats).max, ids, n);
    golden_close(&g);
    return out;
}

static void check_family(const char *name)
{
    json_t *doc = golden_json(fixture(name, ".json"));
    const json_t *cases = json_object_get(doc, "cases");
    size_t n;
    float *want = golden_floats(fixture(name, ".vectors.f32"), &n);
    for (int isa = KR_ISA_GENERIC; isa < KR_N_ISAS; isa++) {
        float *one = vectors_of(name, cases, (enum kr_isa)isa, 1, want, n);
        float *two = vectors_of(name, cases, (enum kr_isa)isa, 2, want, n);
        assert_true(one || isa != KR_ISA_GENERIC);
        if (!one) continue;
        struct golden_error e = golden_compare(one, want, n);
        print_message("%-16s %-8s max %.5f rms %.5f\n", name, kr_isa_name((enum kr_isa)isa), e.max,
                      e.rms);
        if (!(e.max <= 0.01)) fail_msg("%s: too far from the reference", name);
        assert_memory_equal(one, two, n * sizeof(*one));
        free(one);
        free(two);
    }
    families_end(name);
    free(want);
    json_decref(doc);
}

static void test_nomic_bert(void **state)
{
    check_family("nomic-bert");
}

static void test_gemma_embedding(void **state)
{
    check_family("gemma-embedding");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_minilm),
                                       cmocka_unit_test(test_nomic_bert),
                                       cmocka_unit_test(test_gemma_embedding)};
    return cmocka_run_group_tests_name("vectors", tests, NULL, NULL);
}
