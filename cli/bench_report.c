/* What `conifer bench` found, as a table or as JSON, with shares of what the machine reaches. */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct kr_exec_info *exec_of(const struct bench *b)
{
    return eng_model_info(rt_model(b->stack.rt))->exec;
}

/* Weights once; of experts as many as rows would choose by chance; each stream's keys and values,
 * in the middle of its answer. */
double cli_bench_step_bytes(const struct bench *b, const struct bench_point *p)
{
    const struct kr_exec_info *x = exec_of(b);
    double rows = p->ask.streams, bytes = (double)x->weight_bytes;

    if (x->n_experts) {
        double spared = pow(1 - (double)x->n_experts_used / x->n_experts, rows);
        bytes += (double)x->expert_bytes * x->n_experts * (1 - spared);
    }
    return bytes + rows * (double)eng_sequence_bytes(x, (uint32_t)b->stack.cfg.kv.block_tokens,
                                                     p->ask.n_prompt + p->ask.tokens / 2);
}

double cli_bench_step_ops(const struct bench *b, const struct bench_point *p)
{
    const struct kr_exec_info *x = exec_of(b);
    return 2.0 * p->ask.streams * (double)(x->row_macs + x->logit_macs);
}

static double prefill_ops(const struct bench *b, const struct bench_point *p)
{
    const struct kr_exec_info *x = exec_of(b);
    return 2.0 * ((double)x->row_macs + (double)x->logit_macs / (double)p->ask.n_prompt);
}

/* A line of the report: a series, and the shares that its median is; 0 = none. */
struct line {
    const char *what, *unit;
    const struct bench_point *p;
    struct bench_series *s;
    double of_read, of_int8, of_again;
};

static double share(double work, double rate, double peak)
{
    return work > 0 && peak > 0 ? work * rate / peak : 0;
}

static struct line decode_line(struct bench *b, struct bench_point *p)
{
    double steps = cli_bench_summarise(&p->decode).median / p->ask.streams;
    double bytes = exec_of(b)->row_macs ? cli_bench_step_bytes(b, p) : 0; /* the null model */
    struct line l = {.what = "decode", .unit = "tok/s", .p = p, .s = &p->decode};

    l.of_read = share(bytes, steps, cli_bench_summarise(&b->read).median);
    l.of_int8 = share(cli_bench_step_ops(b, p), steps, cli_bench_summarise(&b->int8).median);
    if (b->again.n) l.of_again = share(bytes, steps, cli_bench_summarise(&b->again).median);
    return l;
}

static struct line prefill_line(struct bench *b, struct bench_point *p)
{
    struct line l = {.what = "prefill", .unit = "tok/s", .p = p, .s = &p->prefill};
    l.of_int8 = share(prefill_ops(b, p), cli_bench_summarise(&p->prefill).median,
                      cli_bench_summarise(&b->int8).median);
    return l;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_series(struct cn_buf *out, const char *name, struct bench_series *s)
{
    struct bench_summary m = cli_bench_summarise(s);
    cn_buf_printf(out, ",\"%s\":{\"median\":%.4g,\"min\":%.4g,\"max\":%.4g}", name, m.median, m.min,
                  m.max);
}

static void json_share(struct cn_buf *out, const char *name, double share)
{
    if (share > 0)
        cn_buf_printf(out, ",\"%s\":%.4f", name, share);
    else
        cn_buf_printf(out, ",\"%s\":null", name);
}

static void json_line(struct cn_buf *out, const struct line *l)
{
    struct bench_summary m = cli_bench_summarise(l->s);
    cn_buf_printf(out,
                  "{\"what\":\"%s\",\"streams\":%u,\"prompt_tokens\":%llu,\"new_tokens\":%llu,"
                  "\"unit\":\"%s\",\"median\":%.3f,\"min\":%.3f,\"max\":%.3f,\"rounds\":%zu,"
                  "\"left_out\":%zu,\"unsteady\":%s",
                  l->what, l->p->ask.streams, (unsigned long long)l->p->ask.n_prompt,
                  (unsigned long long)l->p->ask.tokens, l->unit, m.median, m.min, m.max, m.used,
                  m.left_out, m.unsteady ? "true" : "false");
    json_share(out, "read_share", l->of_read);
    json_share(out, "read_again_share", l->of_again);
    json_share(out, "int8_share", l->of_int8);
    cn_buf_puts(out, "}");
}

static void json_point(struct bench *b, struct bench_point *p, struct cn_buf *out)
{
    struct line l;
    if (p->why_not[0]) {
        cn_buf_printf(out,
                      "{\"what\":\"decode\",\"streams\":%u,\"prompt_tokens\":%llu,\"why_not\":",
                      p->ask.streams, (unsigned long long)p->ask.n_prompt);
        cn_buf_json_str(out, p->why_not, strlen(p->why_not));
        cn_buf_puts(out, "}");
        return;
    }
    if (p->kind == BENCH_ONE) {
        l = (struct line){.what = "ttft", .unit = "ms", .p = p, .s = &p->ttft_ms};
        json_line(out, &l);
        cn_buf_puts(out, ",");
        l = prefill_line(b, p);
        json_line(out, &l);
        cn_buf_puts(out, ",");
    }
    l = decode_line(b, p);
    json_line(out, &l);
}

void cli_bench_put_json(struct bench *b, struct cn_buf *out)
{
    struct bench_point *one = &b->points[0];

    cn_buf_puts(out, "{\"model\":");
    cn_buf_json_str(out, b->stack.name, strlen(b->stack.name));
    cn_buf_printf(
        out,
        ",\"fingerprint\":\"%s\",\"device\":\"%s\",\"threads\":%u,\"prompt_tokens\":%llu,"
        "\"new_tokens\":%llu,\"rounds\":%llu,\"busy\":%llu,\"weight_bytes\":%llu,\"ttft_ms\":%.3f,"
        "\"prefill_tok_s\":%.2f,\"decode_tok_s\":%.2f,\"machine\":{\"steady\":%.2f",
        rt_fingerprint(b->stack.rt), kr_device_path(b->device), kr_device_threads(b->device),
        (unsigned long long)b->prompt, (unsigned long long)b->tokens, (unsigned long long)b->rounds,
        (unsigned long long)b->busy, (unsigned long long)exec_of(b)->weight_bytes,
        cli_bench_summarise(&one->ttft_ms).median, cli_bench_summarise(&one->prefill).median,
        cli_bench_summarise(&one->decode).median, 1 - BENCH_STEADY);
    json_series(out, "read_bytes_s", &b->read);
    if (b->again.n) json_series(out, "read_again_bytes_s", &b->again);
    json_series(out, "int8_ops_s", &b->int8);
    json_series(out, "fma_flops_s", &b->fma);
    cn_buf_puts(out, "},\"points\":[");
    for (size_t i = 0; i < b->n_points; i++) {
        if (i) cn_buf_puts(out, ",");
        json_point(b, &b->points[i], out);
    }
    cn_buf_puts(out, "]}\n");
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Lines of 80 columns. */
static void table_share(struct cn_buf *out, double share)
{
    if (share > 0)
        cn_buf_printf(out, " %5.2f", share);
    else
        cn_buf_puts(out, "     -");
}

static void table_line(struct cn_buf *out, const char *name, const struct line *l)
{
    struct bench_summary m = cli_bench_summarise(l->s);
    char spread[48];

    int digits = m.max < 10000;
    snprintf(spread, sizeof spread, "%.*f..%.*f", digits, m.min, digits, m.max);
    cn_buf_printf(out, "  %-26s %8.1f %-5s %-14s", name, m.median, l->unit, spread);
    table_share(out, l->of_read);
    table_share(out, l->of_again);
    table_share(out, l->of_int8);
    if (m.unsteady)
        cn_buf_puts(out, " *");
    else if (m.left_out)
        cn_buf_printf(out, " (%zu)", m.left_out);
    cn_buf_puts(out, "\n");
}

void cli_bench_name(const struct bench_point *p, char out[BENCH_NAME])
{
    unsigned long long n = p->ask.n_prompt;

    if (p->kind == BENCH_BATCH)
        snprintf(out, BENCH_NAME, "decode, streams: %u", p->ask.streams);
    else
        snprintf(out, BENCH_NAME, "decode behind %llu tokens", n);
}

static void table_point(struct bench *b, struct bench_point *p, struct cn_buf *out)
{
    unsigned long long n = p->ask.n_prompt;
    char name[BENCH_NAME];
    struct line l;

    if (p->kind == BENCH_ONE) {
        snprintf(name, sizeof name, "first token, prompt of %llu", n);
        l = (struct line){.what = "ttft", .unit = "ms", .p = p, .s = &p->ttft_ms};
        table_line(out, name, &l);
        snprintf(name, sizeof name, "prefill, prompt of %llu", n);
        l = prefill_line(b, p);
        table_line(out, name, &l);
    }
    cli_bench_name(p, name);
    if (p->why_not[0]) {
        cn_buf_printf(out, "  %-26s not measured: %s\n", name, p->why_not);
        return;
    }
    l = decode_line(b, p);
    table_line(out, name, &l);
}

static void table_head(struct bench *b, struct cn_buf *out)
{
    struct bench_summary read = cli_bench_summarise(&b->read), int8 = cli_bench_summarise(&b->int8);

    cn_buf_printf(out, "%s: %s, threads: %u, rounds: %llu, new tokens: %llu", b->stack.name,
                  kr_device_path(b->device), kr_device_threads(b->device),
                  (unsigned long long)b->rounds, (unsigned long long)b->tokens);
    if (b->busy) cn_buf_printf(out, "\nbusy processors: %llu", (unsigned long long)b->busy);
    cn_buf_printf(out, "\nmachine: reads %.1f GB/s (%.1f..%.1f)", read.median / 1e9, read.min / 1e9,
                  read.max / 1e9);
    if (b->again.n)
        cn_buf_printf(out, ",\n         the same %.0f MB over and over %.1f GB/s",
                      (double)exec_of(b)->weight_bytes / 1e6,
                      cli_bench_summarise(&b->again).median / 1e9);
    cn_buf_printf(out, ";\n         8-bit products %.3f Tops/s (%.3f..%.3f)\n\n",
                  int8.median / 1e12, int8.min / 1e12, int8.max / 1e12);
    cn_buf_printf(out, "%77s\n", "share of machine's");
    cn_buf_printf(out, "  %-26s %8s %-5s %-14s %5s %5s %5s\n", "", "median", "", "min..max",
                  "reads", "cache", "int8");
}

void cli_bench_put_table(struct bench *b, struct cn_buf *out)
{
    table_head(b, out);
    for (size_t i = 0; i < b->n_points; i++)
        table_point(b, &b->points[i], out);
    cn_buf_printf(
        out,
        "\nShares: of the machine's reads (weights and KV of a step), of reading as\n"
        "much as the weights over and over (cache), and of its 8-bit products. Above 1:\n"
        "the processor's last cache holds a part of a small model. (n): so many rounds,\n"
        "before and after which the machine differed by more than %.0f %%, are left out;\n"
        "*: most were so, and none is.\n",
        BENCH_STEADY * 100);
}
