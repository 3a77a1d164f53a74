/* The scenarios of the load generator at the default settings, over simulated steps: with guesses
 * or without, bound by step_stretch or not, no setting is to be better than the defaults by more
 * than a tenth, in the 99th percentiles of first tokens and of gaps nor in tokens a second. */
#include "tests/scheduler/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define SEEDS      8
#define MANY_SEEDS 24 /* where chance decides when who comes */
#define WORSE      1.10

static bool quick; /* no figures: one run of each, for what else may be found */

/* SmolLM2-135M in Q4_1 on AVX-512 (docs/PERFORMANCE.md): streams and batches behind 64 ids, prompts
 * of 512 and of 4,000. */
/* clang-format off */
static const struct load_device two_cores = {
    .name = "two cores", .base_ns = 1.7e6, .row_ns = 0.36e6, .logit_ns = 0.08e6, .key_ns = 600,
    .token_ns = 10e3, .jitter = 0.05};
static const struct load_device one_core = {
    .name = "one core", .base_ns = 4.6e6, .row_ns = 0.70e6, .logit_ns = 0.15e6, .key_ns = 1000,
    .token_ns = 10e3, .jitter = 0.05};
/* A model of 1.1 billion weights on the two. */
static const struct load_device large = {
    .name = "1B", .base_ns = 20e6, .row_ns = 2.2e6, .logit_ns = 0.2e6, .key_ns = 1300,
    .token_ns = 10e3, .jitter = 0.05};

#define STREAMS                                                                                    \
    {.clients = 8, .ramp_s = 1, .background = true, .prompt = {1, 1}, .answer = {200, 600}}
#define STREAMS_AT_ONCE {.clients = 8, .background = true, .prompt = {1, 1}, .answer = {200, 600}}

static const struct load sixteen = {
    .name = "sixteen", .n_classes = 1, .warm = true,
    .classes = {{.clients = 16, .requests = 16, .prompt = {128, 128}, .answer = {128, 128}}}};

static const struct load crowd = {
    .name = "crowd", .n_classes = 1, .warm = true,
    .classes = {{.clients = 200, .requests = 200, .prompt = {32, 32}, .answer = {16, 16}}}};

/* Figures are the streams': how fast the long prompts are read is what step_stretch sets. */
static const struct load arrivals = {
    .name = "arrivals", .n_classes = 2, .warmup_s = 2,
    .classes = {STREAMS, {.clients = 1, .requests = 2, .start_s = 8, .prompt = {4000, 4000},
                          .answer = {1, 1}}}};

/* As much of it as five minutes have, for percentiles that mean something. */
static const struct load mixed = {
    .name = "mixed", .n_classes = 2, .warmup_s = 3, .end_s = 300, .tenants = 2,
    .classes = {{.rate = 4, .prompt = {0, 800, 60, 0.8}, .answer = {0, 300, 40, 0.7},
                 .prefix = 100, .prefixes = 3, .abort_share = 0.1},
                {.clients = 2, .think_s = 0.5, .prompt = {64, 512},
                 .answer = {64, 64}}}};

/* The same streams all at once with a long prompt, when nothing but one alone was ever seen. */
static const struct load at_once = {
    .name = "at once", .n_classes = 2, .warm = true,
    .classes = {STREAMS_AT_ONCE, {.clients = 1, .requests = 1, .prompt = {4000, 4000},
                                  .answer = {1, 1}}}};

/* Beside streams, clients of another tenant who have short prompts read without a pause. */
static const struct load flood = {
    .name = "flood", .n_classes = 2, .warmup_s = 2,
    .classes = {STREAMS, {.clients = 2, .requests = 200, .start_s = 4, .tenant = 1,
                          .prompt = {128, 128}, .answer = {1, 1}}}};
static const struct load quiet = {
    .name = "quiet", .n_classes = 2, .warmup_s = 2,
    .classes = {STREAMS, {.clients = 1, .requests = 1, .start_s = 20, .prompt = {1, 1},
                          .answer = {1, 1}}}};

static const struct load_setting defaults = {true, 0.4}, off = {false, 0.4};
static const struct load_setting others[] = {{false, 0.4}, {true, 0}, {false, 0}};

/* Means over runs with other lengths, arrivals and texts. */
static struct load_figures run(const struct load *scenario, const struct load_device *device,
                               bool text, struct load_setting setting)
{
    struct load_figures mean = {0};
    uint32_t n = quick ? 1 : scenario->end_s > 0 ? MANY_SEEDS : SEEDS;

    for (uint32_t seed = 1; seed <= n; seed++) {
        struct load l = *scenario;
        struct load_figures f;

        l.device = *device;
        l.text = text;
        l.seed = seed;
        load_run(&l, setting, &f);
        mean.ttft_p99_ms += f.ttft_p99_ms / n;
        mean.gap_p50_ms += f.gap_p50_ms / n;
        mean.gap_p99_ms += f.gap_p99_ms / n;
        mean.gap_max_ms = CN_MAX(mean.gap_max_ms, f.gap_max_ms);
        mean.tokens_s += f.tokens_s / n;
        mean.drafted += f.drafted / n;
        mean.right += f.right / n;
    }
    print_message("%s, %-8s %-4s %-4s %.1f: first tokens %6.0f ms, gaps %5.1f %5.1f %6.1f ms, "
                  "%4.0f tokens/s, %4.0f of %4.0f guesses\n",
                  device->name, scenario->name, text ? "text" : "ids",
                  setting.speculation ? "auto" : "off", setting.stretch, mean.ttft_p99_ms,
                  mean.gap_p50_ms, mean.gap_p99_ms, mean.gap_max_ms, mean.tokens_s, mean.right,
                  mean.drafted);
    return mean;
}
/* clang-format on */

/* None of the others is better by more than a tenth. */
static void compare(const struct load *l, const struct load_device *device)
{
    for (uint32_t text = 0; text < 2; text++) {
        struct load_figures d = run(l, device, text, defaults);

        if (quick) continue;
        if (!text) assert_true(d.drafted < 1);
        if (d.drafted > 50) assert_true(d.right > 0.5 * d.drafted);
        for (uint32_t i = 0; i < CN_ARRAY_LEN(others); i++) {
            struct load_figures f = run(l, device, text, others[i]);

            assert_true(d.ttft_p99_ms < WORSE * f.ttft_p99_ms);
            assert_true(d.gap_p99_ms < WORSE * f.gap_p99_ms);
            assert_true(d.tokens_s > f.tokens_s / WORSE);
        }
    }
}

static void test_sixteen(void **state)
{
    compare(&sixteen, &two_cores);
    compare(&sixteen, &one_core);
    compare(&sixteen, &large);
}

static void test_crowd(void **state)
{
    compare(&crowd, &two_cores);
    compare(&crowd, &one_core);
}

static void test_arrivals(void **state)
{
    compare(&arrivals, &two_cores);
    compare(&arrivals, &one_core);
    compare(&arrivals, &large);
}

static void test_mixed(void **state)
{
    compare(&mixed, &two_cores);
}

/* What decoding takes is known without guesses, too. */
static void test_bound_without_speculation(void **state)
{
    struct load_figures f = run(&at_once, &two_cores, true, off);

    assert_true(f.gap_p99_ms < 1.5 * f.gap_p50_ms);
    assert_true(f.gap_p99_ms < WORSE * run(&at_once, &two_cores, true, defaults).gap_p99_ms);
}

/* Short prompts without an end leave half of the time to those that decode. */
static void test_flood(void **state)
{
    struct load_figures alone = run(&quiet, &two_cores, true, defaults);
    struct load_figures beside = run(&flood, &two_cores, true, defaults);

    assert_true(beside.tokens_s > 0.35 * alone.tokens_s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_bound_without_speculation),
        cmocka_unit_test(test_flood),
    };

    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    return cmocka_run_group_tests_name("schload", tests, NULL, NULL);
}
