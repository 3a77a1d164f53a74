/* Reports: a table for people and one JSON object. */
#include "loadtest/run.h"

#include <stdio.h>
#include <string.h>

struct times { /* one kind of time of a class */
    const char *title, *name;
    struct lt_samples *s;
};

void lt_plain(char *text)
{
    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        uint32_t cp = 0;

        n = cn_utf8_decode(text, left, &cp);
        if (n && cp >= 0x20 && (cp < 0x7f || cp >= 0xa0)) continue; /* C0, DEL and C1 are not */
        if (!n) n = 1;
        memset(text, ' ', n);
    }
}

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static uint64_t failures(const struct lt_tally *t)
{
    uint64_t sum = 0;

    for (int i = 0; i < LT_F_COUNT; i++)
        sum += t->failed[i];
    return sum;
}

static double rate(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

/* The times of a class that has them: at most 6. */
static size_t times_of(const struct lt_class *c, struct lt_tally *t, struct times out[6])
{
    bool split = c->split >= 0;
    struct times all[] = {
        {"TTFT", "ttft_ms", &t->ttft},
        {split ? "ITL alone" : "ITL", split ? "itl_alone_ms" : "itl_ms", &t->itl[0]},
        {"ITL beside", "itl_beside_ms", &t->itl[1]},
        {"TPOT", "tpot_ms", &t->tpot},
        {"answer", "total_ms", &t->total},
        {"sent late", "lag_ms", &t->lag}};
    size_t n = 0;

    for (size_t i = 0; i < CN_ARRAY_LEN(all); i++) {
        if (!all[i].s->n || (i == 2 && !split)) continue;
        out[n++] = all[i];
    }
    return n;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void table_failures(const struct lt_tally *t, struct cn_buf *out)
{
    const char *comma = "";

    if (!failures(t)) return;
    cn_buf_puts(out, "  failed:");
    for (int i = 0; i < LT_F_COUNT; i++) {
        if (!t->failed[i] || i == LT_F_STATUS) continue;
        cn_buf_printf(out, "%s %llu %s", comma, (unsigned long long)t->failed[i],
                      lt_failure_names[i]);
        comma = ",";
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(t->statuses); i++) {
        if (!t->statuses[i]) continue;
        cn_buf_printf(out, "%s %llu status %zu", comma, (unsigned long long)t->statuses[i], i);
        comma = ",";
    }
    cn_buf_printf(out, "; the first: %s\n", t->failure);
}

static void table_class(const struct lt_class *c, struct lt_tally *t, double run_s,
                        struct cn_buf *out)
{
    struct times rows[6];
    size_t n = times_of(c, t, rows);

    cn_buf_printf(out, "%s: %llu sent, %llu done", c->name, (unsigned long long)t->sent,
                  (unsigned long long)t->ok);
    if (t->aborted) cn_buf_printf(out, ", %llu aborted", (unsigned long long)t->aborted);
    if (t->cut) cn_buf_printf(out, ", %llu cut at the end", (unsigned long long)t->cut);
    if (t->slow) cn_buf_printf(out, ", %llu read slowly", (unsigned long long)t->slow);
    cn_buf_printf(out, ", %llu failed\n", (unsigned long long)failures(t));
    table_failures(t, out);
    if (t->behind_s >= 0.01) /* less is a timer's grain */
        cn_buf_printf(out, "  %.2f s behind at the end: what was due then was never sent\n",
                      t->behind_s);
    if (n)
        cn_buf_printf(out, "  %-16s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99",
                      "max");
    for (size_t i = 0; i < n; i++)
        cn_buf_printf(out, "  %-16s %10.2f %10.2f %10.2f %10.2f %10.2f\n", rows[i].title,
                      lt_samples_mean(rows[i].s) / 1e6, ms(lt_samples_at(rows[i].s, 0.5)),
                      ms(lt_samples_at(rows[i].s, 0.9)), ms(lt_samples_at(rows[i].s, 0.99)),
                      ms(lt_samples_at(rows[i].s, 1)));
    cn_buf_printf(out, "  %.1f tokens/s, %.2f answers/s", rate(t->window_tokens, t->window_s),
                  rate((double)t->window_ok, t->window_s));
    if (run_s - t->window_s >= 0.01) cn_buf_printf(out, " in its %.2f s", t->window_s);
    if (c->split >= 0)
        cn_buf_printf(out, "; alone %.1f tokens/s, beside %.1f",
                      rate(t->split_tokens[0], t->split_s[0]),
                      rate(t->split_tokens[1], t->split_s[1]));
    cn_buf_printf(out, "; tokens of whole answers: %llu in (%llu cached), %llu out\n",
                  (unsigned long long)t->prompt_tokens, (unsigned long long)t->cached_tokens,
                  (unsigned long long)t->answer_tokens);
}

static void table_tenants(const struct lt_scenario *s, struct lt_result *r, struct cn_buf *out)
{
    if (!r->n_tenants) return;
    cn_buf_printf(out, "%-20s %8s %8s %8s %10s %12s %12s\n", "tenant", "sent", "done", "failed",
                  "tokens", "TTFT p50", "TTFT p99");
    for (size_t i = 0; i < r->n_tenants; i++) {
        struct lt_tenant_tally *t = &r->tenants[i];

        cn_buf_printf(out, "%-20s %8llu %8llu %8llu %10llu %12.2f %12.2f\n",
                      *s->tenants[i].name ? s->tenants[i].name : "-", (unsigned long long)t->sent,
                      (unsigned long long)t->ok, (unsigned long long)t->failed,
                      (unsigned long long)t->answer_tokens, ms(lt_samples_at(&t->ttft, 0.5)),
                      ms(lt_samples_at(&t->ttft, 0.99)));
    }
}

void lt_report_table(const struct lt_scenario *s, const char *url, struct lt_result *r,
                     struct cn_buf *out)
{
    lt_plain(r->model);
    cn_buf_printf(out, "%s%s%s at %s, seed %llu%s\n", s->name, *s->name ? ": " : "", r->model, url,
                  (unsigned long long)r->seed, r->interrupted ? ", interrupted" : "");
    for (size_t i = 0; i < r->n_classes; i++)
        table_class(&s->classes[i], &r->classes[i], r->window_s, out);
    table_tenants(s, r, out);
    cn_buf_printf(
        out,
        "all in %.2f s; %llu connections, used again %llu times; this program took %.2f s "
        "of processor time\n",
        r->wall_s, (unsigned long long)r->opened, (unsigned long long)r->reused, r->cpu_s);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_text(struct cn_buf *out, const char *name, const char *value)
{
    cn_buf_printf(out, "\"%s\":", name);
    cn_buf_json_str(out, value, strlen(value));
}

static void json_times(struct cn_buf *out, const struct times *t)
{
    cn_buf_printf(out,
                  ",\"%s\":{\"n\":%zu,\"mean\":%.6f,\"p50\":%.6f,\"p90\":%.6f,\"p99\":%.6f,"
                  "\"max\":%.6f}",
                  t->name, t->s->n, lt_samples_mean(t->s) / 1e6, ms(lt_samples_at(t->s, 0.5)),
                  ms(lt_samples_at(t->s, 0.9)), ms(lt_samples_at(t->s, 0.99)),
                  ms(lt_samples_at(t->s, 1)));
}

static void json_failures(struct cn_buf *out, const struct lt_tally *t)
{
    const char *comma = "";

    cn_buf_printf(out, ",\"failed\":%llu,\"failures\":{", (unsigned long long)failures(t));
    for (int i = 0; i < LT_F_COUNT; i++) {
        if (!t->failed[i]) continue;
        cn_buf_printf(out, "%s\"%s\":%llu", comma, lt_failure_names[i],
                      (unsigned long long)t->failed[i]);
        comma = ",";
    }
    comma = "";
    cn_buf_puts(out, "},\"statuses\":{");
    for (size_t i = 0; i < CN_ARRAY_LEN(t->statuses); i++) {
        if (!t->statuses[i]) continue;
        cn_buf_printf(out, "%s\"%zu\":%llu", comma, i, (unsigned long long)t->statuses[i]);
        comma = ",";
    }
    cn_buf_puts(out, "},");
    json_text(out, "first_failure", t->failure);
}

static void json_class(const struct lt_class *c, struct lt_tally *t, struct cn_buf *out)
{
    struct times rows[6];
    size_t n = times_of(c, t, rows);

    cn_buf_putc(out, '{');
    json_text(out, "name", c->name);
    cn_buf_printf(out,
                  ",\"sent\":%llu,\"done\":%llu,\"aborted\":%llu,\"cut\":%llu,\"slow\":%llu,"
                  "\"warmup\":%llu",
                  (unsigned long long)t->sent, (unsigned long long)t->ok,
                  (unsigned long long)t->aborted, (unsigned long long)t->cut,
                  (unsigned long long)t->slow, (unsigned long long)t->warm);
    json_failures(out, t);
    cn_buf_printf(out,
                  ",\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"answer_tokens\":%llu,"
                  "\"window_s\":%.6f,\"tokens_per_s\":%.3f,\"answers_per_s\":%.4f",
                  (unsigned long long)t->prompt_tokens, (unsigned long long)t->cached_tokens,
                  (unsigned long long)t->answer_tokens, t->window_s,
                  rate(t->window_tokens, t->window_s), rate((double)t->window_ok, t->window_s));
    if (c->split >= 0) {
        cn_buf_putc(out, ',');
        json_text(out, "split_by", c->split_by);
        cn_buf_printf(out,
                      ",\"alone_s\":%.3f,\"alone_tokens_per_s\":%.3f,\"beside_s\":%.3f,"
                      "\"beside_tokens_per_s\":%.3f",
                      t->split_s[0], rate(t->split_tokens[0], t->split_s[0]), t->split_s[1],
                      rate(t->split_tokens[1], t->split_s[1]));
    }
    if (c->rate > 0) cn_buf_printf(out, ",\"behind_s\":%.3f", t->behind_s);
    for (size_t i = 0; i < n; i++)
        json_times(out, &rows[i]);
    cn_buf_putc(out, '}');
}

void lt_report_json(const struct lt_scenario *s, const char *url, struct lt_result *r,
                    struct cn_buf *out)
{
    cn_buf_putc(out, '{');
    json_text(out, "scenario", s->name);
    cn_buf_putc(out, ',');
    json_text(out, "url", url);
    cn_buf_putc(out, ',');
    json_text(out, "model", r->model);
    cn_buf_printf(
        out,
        ",\"seed\":%llu,\"interrupted\":%s,\"wall_s\":%.6f,\"window_s\":%.6f,"
        "\"connections\":%llu,\"connections_reused\":%llu,\"own_cpu_s\":%.3f,\"classes\":[",
        (unsigned long long)r->seed, r->interrupted ? "true" : "false", r->wall_s, r->window_s,
        (unsigned long long)r->opened, (unsigned long long)r->reused, r->cpu_s);
    for (size_t i = 0; i < r->n_classes; i++) {
        if (i) cn_buf_putc(out, ',');
        json_class(&s->classes[i], &r->classes[i], out);
    }
    cn_buf_puts(out, "],\"tenants\":[");
    for (size_t i = 0; i < r->n_tenants; i++) {
        struct lt_tenant_tally *t = &r->tenants[i];
        struct times ttft = {"", "ttft_ms", &t->ttft}, total = {"", "total_ms", &t->total};

        cn_buf_puts(out, i ? ",{" : "{");
        json_text(out, "name", s->tenants[i].name);
        cn_buf_printf(out, ",\"sent\":%llu,\"done\":%llu,\"failed\":%llu,\"answer_tokens\":%llu",
                      (unsigned long long)t->sent, (unsigned long long)t->ok,
                      (unsigned long long)t->failed, (unsigned long long)t->answer_tokens);
        json_times(out, &ttft);
        json_times(out, &total);
        cn_buf_putc(out, '}');
    }
    cn_buf_puts(out, "]}\n");
}
