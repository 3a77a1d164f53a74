/* Stop strings and held-back text against a plain search over the whole text. */
#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t rng = 12345;
static uint32_t rnd(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

/* The first end of any stop string; of those that end there the longest. */
static int naive(const char *text, size_t n, const char *const *stops, size_t n_stops, size_t *end)
{
    for (size_t e = 1; e <= n; e++) {
        int best = -1;
        for (size_t j = 0; j < n_stops; j++) {
            size_t len = strlen(stops[j]);
            if (len && len <= e && !memcmp(text + e - len, stops[j], len) &&
                (best < 0 || len > strlen(stops[best])))
                best = (int)j;
        }
        if (best >= 0) {
            *end = e;
            return best;
        }
    }
    return -1;
}

static void test_against_naive(void **state)
{
    for (int round = 0; round < 20000; round++) {
        char text[64], bufs[3][8];
        const char *stops[3];
        size_t n = rnd(60), n_stops = 1 + rnd(3);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rnd(2));
        for (size_t j = 0; j < n_stops; j++) {
            size_t len = 1 + rnd(6);
            for (size_t i = 0; i < len; i++)
                bufs[j][i] = (char)('a' + rnd(2));
            bufs[j][len] = 0;
            stops[j] = bufs[j];
        }
        struct rt_stop_set set;
        struct rt_stop_match m;
        assert_int_equal(rt_stop_set_init(&set, stops, n_stops), 0);
        assert_int_equal(rt_stop_match_init(&m, &set), 0);
        size_t at = 0, end = 0, want_end = 0;
        int got = -1, want = naive(text, n, stops, n_stops, &want_end);
        while (at < n && got < 0) { /* pieces of random size */
            size_t len = 1 + rnd(5), used = 0;
            if (len > n - at) len = n - at;
            got = rt_stop_feed(&m, &set, text + at, len, &used);
            at += used;
            end = at;
            size_t held = rt_stop_held(&m, &set), longest = 0;
            for (size_t j = 0; got < 0 && j < n_stops; j++)
                for (size_t k = 1; k < strlen(stops[j]) && k <= at; k++)
                    if (!memcmp(text + at - k, stops[j], k) && k > longest) longest = k;
            if (got < 0) assert_int_equal(held, longest);
        }
        if (want < 0) {
            assert_int_equal(got, -1);
        } else {
            assert_int_equal(end, want_end);
            assert_string_equal(stops[got], stops[want]);
        }
        rt_stop_match_fini(&m);
        rt_stop_set_fini(&set);
    }
}

static void test_empty_strings_are_ignored(void **state)
{
    const char *stops[] = {"", "x"};
    struct rt_stop_set set;
    struct rt_stop_match m;
    size_t used;
    assert_int_equal(rt_stop_set_init(&set, stops, 2), 0);
    assert_int_equal(set.n, 1);
    assert_int_equal(rt_stop_match_init(&m, &set), 0);
    assert_int_equal(rt_stop_feed(&m, &set, "abc", 3, &used), -1);
    assert_int_equal(rt_stop_feed(&m, &set, "axb", 3, &used), 0);
    assert_int_equal(used, 2);
    rt_stop_match_fini(&m);
    rt_stop_set_fini(&set);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Tokens a reply is made of; the marks are tokens of their own. */
static const char *const words[] = {"<think>", "</think>", "a", "b", "xy", "x", "y", "\xC3"};
enum { OPEN, CLOSE, A, B, XY, X, Y, HALF };

static struct eng_vocab *make_words(void)
{
    struct eng_str texts[CN_ARRAY_LEN(words)];
    int32_t types[CN_ARRAY_LEN(words)];
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++) {
        texts[i] = (struct eng_str){words[i], strlen(words[i])};
        types[i] = i <= CLOSE ? ENG_TOKEN_CONTROL : ENG_TOKEN_NORMAL;
    }
    texts[HALF] = (struct eng_str){"\xC3\x83", 2}; /* byte-level: the byte C3 */
    struct eng_vocab_spec spec = {.model = "gpt2",
                                  .pre = "gpt-2",
                                  .tokens = texts,
                                  .types = types,
                                  .n_tokens = CN_ARRAY_LEN(words),
                                  .bos = -1,
                                  .eos = -1,
                                  .eot = -1,
                                  .eom = -1,
                                  .unk = -1,
                                  .sep = -1,
                                  .pad = -1,
                                  .fim_pre = -1,
                                  .fim_suf = -1,
                                  .fim_mid = -1,
                                  .fim_pad = -1,
                                  .fim_rep = -1,
                                  .fim_sep = -1,
                                  .add_bos = -1,
                                  .add_eos = -1,
                                  .add_space_prefix = -1};
    struct eng_vocab *v;
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    return v;
}

/* Stop strings count in the answer only, do not reach across marks, and what was held for them or
 * as half a character comes out before the mark. */
static void test_parts_and_stops(void **state)
{
    static const struct {
        uint32_t ids[8];
        size_t n;
        const char *want;
        int stop;
        uint64_t n_reasoning;
        bool cut;
    } rows[] = {
        {{OPEN, XY, CLOSE, A, XY, B}, 6, "R[xy]C[a]", 0, 2},
        {{A, X, OPEN, Y, CLOSE, Y}, 6, "C[ax]R[y]C[\ny]", -1, 2},
        {{OPEN, X, CLOSE, Y, A}, 5, "R[x]C[ya]", -1, 2},
        {{A, X}, 2, "C[ax]", -1, 0},
        {{OPEN, A, HALF, CLOSE, B}, 5, "R[a\xEF\xBF\xBD]C[b]", -1, 3},
        {{OPEN, A, HALF}, 3, "R[a\xEF\xBF\xBD]", -1, 2},
        {{OPEN, A, HALF}, 3, "R[a]", -1, 2, true},
        {{A, X, HALF}, 3, "C[ax]", -1, 0, true},
    };
    const char *stops[] = {"xy"};
    struct eng_vocab *v = make_words();
    struct eng_reply_format f = eng_reply_format(v, (struct eng_str){"</think>", 8});
    struct rt_stop_set set;
    assert_int_equal(rt_stop_set_init(&set, stops, 1), 0);
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct rt_text_out t;
        struct eng_detok detok;
        struct eng_parts p;
        struct cn_buf got;
        int stop = -1;
        cn_buf_init(&got, 0);
        eng_parts_init(&p);
        eng_detok_init(&detok, v, false, false);
        assert_int_equal(rt_text_out_init(&t, &detok, &set, false, &f, NULL, false), 0);
        for (size_t k = 0; k < rows[i].n && stop < 0; k++)
            assert_int_equal(rt_text_out_push(&t, rows[i].ids[k], true, &p, &stop), 0);
        if (stop < 0) assert_int_equal(rt_text_out_finish(&t, rows[i].cut, &p), 0);
        for (size_t k = 0, at = 0; k < p.n_runs; at = p.runs[k++].end)
            cn_buf_printf(&got, "%c[%.*s]", "CRTIA"[p.runs[k].part], (int)(p.runs[k].end - at),
                          p.text.data + at);
        assert_string_equal(cn_buf_cstr(&got), rows[i].want);
        assert_int_equal(stop, rows[i].stop);
        assert_int_equal(t.n_reasoning, rows[i].n_reasoning);
        rt_text_out_fini(&t);
        eng_parts_fini(&p);
        cn_buf_fini(&got);
    }
    rt_stop_set_fini(&set);
    eng_vocab_free(v);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_memory_plan(void **state)
{
    struct kr_kv_group groups[] = {
        {.n_layers = 3, .block_bytes = 3 * 4096},
        {.span = KR_SPAN_WINDOW, .window_tokens = 512, .n_layers = 15, .block_bytes = 15 * 4096}};
    struct kr_exec_info info = {.n_groups = 2, .groups = groups};
    struct rt_memory_plan p;
    struct cn_error err;
    /* 32768 tokens: 2048 blocks of 12 KiB and 33 of 60 KiB = 26,556 KiB a sequence, 4 of them. */
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 0, 1ull << 40, false, &p, &err), 0);
    assert_true(p.total_bytes >= 4ull * 26556 * 1024);
    assert_true(p.total_bytes - p.slab_bytes < 4ull * 26556 * 1024);
    assert_true(p.why == RT_KV_ENOUGH && p.one_bytes == 26556ull * 1024);
    assert_int_equal(p.slab_bytes % (60 * 1024), 0); /* both kinds divide it */
    /* Little memory: half of what is free. */
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 0, 64u << 20, false, &p, &err), 0);
    assert_true(p.total_bytes <= 32u << 20 && p.total_bytes > 24u << 20 && p.why == RT_KV_HALF);
    /* All of it, where nobody else counts on it. */
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 0, 64u << 20, true, &p, &err), 0);
    assert_true(p.total_bytes <= 64u << 20 && p.total_bytes > 48u << 20 && p.why == RT_KV_GIVEN);
    /* Told how much. */
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 8u << 20, 64u << 20, false, &p, &err), 0);
    assert_true(p.total_bytes <= 8u << 20 && p.n_slabs >= 2 && p.why == RT_KV_ASKED);
    /* More than there is, and too little to be of use: refused with numbers. */
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 65u << 20, 64u << 20, false, &p, &err),
                     CN_ENOMEM);
    assert_non_null(strstr(err.message, "65.0 MiB"));
    assert_int_equal(rt_memory_plan(&info, 16, 32768, 4, 100000, 64u << 20, false, &p, &err),
                     CN_ENOMEM);
    assert_string_equal(err.param, "kv.memory_bytes");
}

static void test_slabs_hold_at_most_4096_blocks(void **state)
{
    struct kr_kv_group groups[] = {
        {.n_layers = 1, .block_bytes = 64},
        {.span = KR_SPAN_WINDOW, .window_tokens = 16, .n_layers = 1, .block_bytes = 1 << 20}};
    struct kr_exec_info info = {.n_groups = 2, .groups = groups};
    struct rt_memory_plan p;
    struct cn_error err;
    /* Small blocks do not fill a slab with room for a large one: 4096 of them are used of 16384. */
    assert_int_equal(rt_memory_plan(&info, 16, 1024, 4, 1u << 30, 0, false, &p, &err), 0);
    assert_int_equal(p.slab_bytes, 1 << 20);
    groups[0].block_bytes = 256;
    assert_int_equal(rt_memory_plan(&info, 16, 1024, 4, 1u << 30, 0, false, &p, &err), 0);
    assert_true(p.slab_bytes / 256 <= 4096 && p.slab_bytes >= 1 << 20);
}

/* What was asked for is refused by name; a bound that nobody asked for gives way. */
static void test_memory_fit(void **state)
{
    static const struct {
        uint64_t n_prompt, max, fit;
        bool bound;
        int code;
        const char *param;
        uint64_t left;
    } cases[] = {
        {20, 0, 100, true, 0, "", 0},
        {20, 81, 100, false, 0, "", 81},
        {20, 82, 100, false, CN_ENEVERFIT, "max_tokens", 0},
        {20, 82, 100, true, 0, "", 81},
        {100, 1, 100, false, 0, "", 1},
        {100, 5, 100, true, 0, "", 1},
        {101, 0, 100, true, CN_ENEVERFIT, "messages", 0},
        {101, 1, 100, false, CN_ENEVERFIT, "messages", 0},
        {1, UINT64_MAX, 100, false, CN_ENEVERFIT, "max_tokens", 0},
        {1, 1, 0, false, CN_ENEVERFIT, "messages", 0},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct rt_request q = {.n_prompt = cases[i].n_prompt,
                               .max_tokens = cases[i].max,
                               .max_is_bound = cases[i].bound};
        struct cn_error err = {0};
        uint64_t max = 77;
        assert_int_equal(rt_memory_fit(&q, cases[i].fit, 3 << 20, &max, &err), cases[i].code);
        assert_string_equal(err.param, cases[i].param);
        if (!cases[i].code)
            assert_int_equal(max, cases[i].left);
        else
            assert_non_null(strstr(err.message, "3.0 MiB"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_naive),
        cmocka_unit_test(test_empty_strings_are_ignored),
        cmocka_unit_test(test_parts_and_stops),
        cmocka_unit_test(test_memory_plan),
        cmocka_unit_test(test_memory_fit),
        cmocka_unit_test(test_slabs_hold_at_most_4096_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
