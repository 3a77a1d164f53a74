/* Damaged files: every integer of a real header swept, the file cut everywhere, bits flipped.
 * Whatever the reader says, it must say it quickly, and what it accepts must be readable to the
 * last byte (under AddressSanitizer the file lies in an exact allocation, so a step past the end
 * shows). */
#include "golden.h"
#include "sweep.h"

#include "engine/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_NS = 100 * 1000 * 1000 };

static volatile unsigned sink;

static void touch_value(const struct eng_gguf *g, const struct eng_gguf_kv *kv)
{
    char key[256];
    struct eng_str s, *strs;
    uint64_t u;
    float f, *floats;
    bool b;
    int32_t *ints;
    size_t n;
    struct cn_error err;
    if (kv->key.n >= sizeof(key)) return;
    memcpy(key, kv->key.p, kv->key.n);
    key[kv->key.n] = '\0';
    eng_gguf_u64(g, key, &u, &err);
    eng_gguf_f32(g, key, &f, &err);
    eng_gguf_bool(g, key, &b, &err);
    if (!eng_gguf_str(g, key, &s, &err) && s.n) sink += (unsigned)s.p[0] + (unsigned)s.p[s.n - 1];
    if (!eng_gguf_strings(g, key, &strs, &n, &err)) {
        for (size_t i = 0; i < n; i++)
            if (strs[i].n) sink += (unsigned)strs[i].p[strs[i].n - 1];
        free(strs);
    }
    if (!eng_gguf_floats(g, key, &floats, &n, &err)) free(floats);
    if (!eng_gguf_int32s(g, key, &ints, &n, &err)) free(ints);
    if (kv->type == ENG_GGUF_ARRAY && kv->n) {
        eng_gguf_array_u64(g, key, kv->n - 1, &u, &err);
        eng_gguf_array_u64(g, key, kv->n, &u, &err);
    }
}

/* Opens, and reads the ends of everything that was accepted. true when accepted. */
static bool try_open(const uint8_t *data, size_t n, uint64_t *worst_ns)
{
    struct eng_gguf *g = NULL;
    struct cn_error err = {0};
    uint64_t start = sweep_cpu_ns();
    int rc = eng_gguf_open_memory(data, n, "damaged.gguf", &g, &err);
    uint64_t took = sweep_cpu_ns() - start;
    *worst_ns = CN_MAX(*worst_ns, took);
    if (rc) {
        if ((rc != CN_EFORMAT && rc != CN_EUNSUPP) || err.code != rc || !err.message[0])
            fail_msg("code %d, error %d \"%s\"", rc, err.code, err.message);
        return false;
    }
    for (uint64_t i = 0; i < eng_gguf_n_tensors(g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(g, i);
        const uint8_t *bytes = t->data;
        if (t->bytes) sink += (unsigned)bytes[0] + bytes[t->bytes - 1];
        assert_ptr_equal(eng_gguf_find(g, t->name), t);
    }
    for (size_t i = 0; i < g->shards[0].kvs.n; i++)
        touch_value(g, &g->shards[0].kvs.v[i]);
    eng_gguf_close(g);
    return true;
}

static uint8_t *load(size_t *n)
{
    const char *path = golden_oracle("models", "qwen2", ".gguf");
    return path ? sweep_read_file(path, n) : NULL;
}

static void test_sweep(void **state)
{
    size_t n, tried = 0, accepted = 0;
    uint64_t worst = 0;
    struct fields f;
    uint8_t *data = load(&n);
    if (!data) return;
    sweep_fields(data, &f);
    assert_true(f.n > 300);
    for (size_t i = 0; i < f.n; i++) {
        uint64_t was = 0, value;
        memcpy(&was, data + f.v[i].at, f.v[i].width);
        for (size_t k = 0; sweep_value(k, was, f.v[i].width, 0, &value); k++) {
            memcpy(data + f.v[i].at, &value, f.v[i].width);
            accepted += try_open(data, n, &worst);
            tried++;
        }
        memcpy(data + f.v[i].at, &was, f.v[i].width);
    }
    assert_true(try_open(data, n, &worst));
    print_message("%zu integers, %zu files, %zu accepted, worst %.2f ms\n", f.n, tried, accepted,
                  (double)worst / 1e6);
    assert_true(worst <= MAX_NS);
    free(f.v);
    free(data);
}

/* Cut at every byte of the header, and around every tensor's start and end. */
static void test_truncation(void **state)
{
    size_t n, tried = 0;
    uint64_t worst = 0;
    struct fields f;
    struct eng_gguf *whole = NULL;
    uint8_t *data = load(&n);
    if (!data) return;
    sweep_fields(data, &f);
    for (size_t cut = 0; cut <= f.header; cut++, tried++) {
        uint8_t *exact = malloc(cut ? cut : 1);
        memcpy(exact, data, cut);
        if (try_open(exact, cut, &worst)) fail_msg("accepted a file cut at %zu", cut);
        free(exact);
    }
    assert_int_equal(eng_gguf_open_memory(data, n, "whole", &whole, NULL), 0);
    size_t last = 0; /* bytes that the tensors need */
    for (uint64_t i = 0; i < eng_gguf_n_tensors(whole); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(whole, i);
        last = CN_MAX(last, (size_t)((const uint8_t *)t->data - data) + (size_t)t->bytes);
    }
    for (uint64_t i = 0; i < eng_gguf_n_tensors(whole); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(whole, i);
        size_t edges[2] = {(size_t)((const uint8_t *)t->data - data), 0};
        edges[1] = edges[0] + (size_t)t->bytes;
        for (int e = 0; e < 6; e++, tried++) {
            size_t cut = edges[e / 3] + (size_t)(e % 3) - 1;
            if (cut > n) continue;
            uint8_t *exact = malloc(cut);
            memcpy(exact, data, cut);
            if (try_open(exact, cut, &worst) != (cut >= last)) fail_msg("cut at %zu", cut);
            free(exact);
        }
    }
    eng_gguf_close(whole);
    print_message("%zu cuts, worst %.2f ms\n", tried, (double)worst / 1e6);
    assert_true(worst <= MAX_NS);
    free(f.v);
    free(data);
}

/* One to eight bits of the header flipped, from a fixed sequence. */
static void test_bit_flips(void **state)
{
    enum { ROUNDS = 20000 };
    size_t n, accepted = 0;
    uint64_t worst = 0, x = 88172645463325252u;
    struct fields f;
    uint8_t *data = load(&n), *damaged;
    if (!data) return;
    sweep_fields(data, &f);
    damaged = malloc(n);
    memcpy(damaged, data, n);
    for (int round = 0; round < ROUNDS; round++) {
        size_t places[8], flips = 1 + (size_t)round % 8;
        for (size_t k = 0; k < flips; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            places[k] = (size_t)(x % (f.header * 8));
            damaged[places[k] / 8] ^= (uint8_t)(1 << places[k] % 8);
        }
        accepted += try_open(damaged, n, &worst);
        for (size_t k = 0; k < flips; k++)
            damaged[places[k] / 8] = data[places[k] / 8];
    }
    print_message("%d files, %zu accepted, worst %.2f ms\n", ROUNDS, accepted, (double)worst / 1e6);
    assert_true(worst <= MAX_NS);
    free(damaged);
    free(f.v);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_bit_flips),
    };
    return cmocka_run_group_tests_name("damaged files", tests, NULL, NULL);
}
