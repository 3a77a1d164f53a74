/* describe: what a model file is and what it would need, in words, for `conifer show`.
 * Reads keys and shapes, records the plan and measures it, so a file that could not be served is
 * refused here with the same message; no weights are read. */
#include "engine/model.h"

#include "engine/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct size { char text[32]; };

/* Bytes for a person, three digits. */
static struct size size_of(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    struct size s;
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1000 && u + 1 < CN_ARRAY_LEN(units)) {
        v /= 1024;
        u++;
    }
    snprintf(s.text, sizeof(s.text), "%.*f %s",
             u && v < 10    ? 2
             : u && v < 100 ? 1
                            : 0,
             v, units[u]);
    return s;
}

static struct size count_of(uint64_t n)
{
    struct size s;
    if (n >= 1000000000)
        snprintf(s.text, sizeof(s.text), "%.2f billion", (double)n / 1e9);
    else if (n >= 1000000)
        snprintf(s.text, sizeof(s.text), "%.1f million", (double)n / 1e6);
    else
        snprintf(s.text, sizeof(s.text), "%llu", (unsigned long long)n);
    return s;
}

/* ---- what it is ------------------------------------------------------------------------------ */

/* Hybrids have heads in some layers only. */
static void put_heads(const struct eng_hparams *h, struct cn_buf *out)
{
    const struct eng_layer *first = NULL;
    uint32_t n = 0;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (!h->layers[l].n_heads || !h->layers[l].n_kv_heads) continue;
        if (!first) first = &h->layers[l];
        n++;
    }
    if (!first) return;
    cn_buf_printf(out, "heads           %u of %u, %u for keys and values", first->n_heads,
                  first->k_dim, first->n_kv_heads);
    if (n < h->n_layers) cn_buf_printf(out, ", in %u of %u layers", n, h->n_layers);
    cn_buf_puts(out, "\n");
}

static void put_identity(const struct eng_model *m, uint64_t asked, struct cn_buf *out)
{
    const struct eng_model_info *i = &m->info;
    const struct eng_hparams *h = &m->builder.h;
    uint32_t windowed = 0;
    for (uint32_t l = 0; l < h->n_layers; l++)
        windowed += h->layers[l].windowed;

    cn_buf_printf(out, "name            %s\n", i->name);
    cn_buf_printf(out, "architecture    %s\n", i->arch);
    cn_buf_printf(out, "parameters      %s\n", count_of(i->n_params).text);
    cn_buf_printf(out, "quantisation    mostly %s, by bytes\n", i->file_type);
    cn_buf_printf(out, "file            %s", size_of(i->file_bytes).text);
    if (m->g->n_shards > 1) cn_buf_printf(out, " in %u files", m->g->n_shards);
    cn_buf_printf(out, "\ncontext         %llu tokens", (unsigned long long)i->train_context);
    if (asked > i->train_context)
        cn_buf_printf(out, "; %llu asked for is more than it was trained for",
                      (unsigned long long)asked);
    else if (i->context != i->train_context)
        cn_buf_printf(out, ", %llu asked for", (unsigned long long)i->context);
    cn_buf_printf(out, "\nvocabulary      %llu tokens\n", (unsigned long long)i->n_vocab);
    cn_buf_printf(out, "layers          %u, %u wide\n", i->n_layers, i->embd_dim);
    put_heads(h, out);
    if (windowed && h->window_tokens)
        cn_buf_printf(out, "sliding window  %llu tokens in %u of %u layers\n",
                      (unsigned long long)h->window_tokens, windowed, h->n_layers);
    cn_buf_printf(out, "chat template   %s\n",
                  eng_gguf_kvs_find(&m->g->shards[0].kvs, "tokenizer.chat_template") ? "yes"
                                                                                     : "no");
}

/* ---- tensors by type ------------------------------------------------------------------------- */

struct type_sum {
    uint32_t type;
    uint64_t tensors, bytes;
};

static int by_bytes(const void *a, const void *b)
{
    const struct type_sum *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static int put_types(const struct eng_model *m, struct cn_buf *out)
{
    struct type_sum *sums = NULL;
    size_t n = 0, cap = 0;

    for (uint64_t i = 0; i < eng_gguf_n_tensors(m->g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(m->g, i);
        size_t k = 0;
        while (k < n && sums[k].type != (uint32_t)t->type)
            k++;
        if (k == n) {
            if (cn_grow(&sums, &cap, n + 1, sizeof(*sums))) {
                free(sums);
                return CN_ENOMEM;
            }
            sums[n++] = (struct type_sum){.type = (uint32_t)t->type};
        }
        sums[k].tensors++;
        if (!cn_add_u64(sums[k].bytes, t->bytes, &sums[k].bytes)) sums[k].bytes = UINT64_MAX;
    }
    if (n) qsort(sums, n, sizeof(*sums), by_bytes);
    cn_buf_puts(out, "\ntensors\n");
    for (size_t k = 0; k < n; k++)
        cn_buf_printf(out, "  %-10s %6llu  %10s%s\n", eng_gguf_tensor_type(sums[k].type).name,
                      (unsigned long long)sums[k].tensors, size_of(sums[k].bytes).text,
                      kr_type_info(sums[k].type) ? "" : "  (not supported)");
    free(sums);
    return CN_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t eng_sequence_bytes(const struct kr_exec_info *info, uint32_t block_tokens,
                            uint64_t n_tokens)
{
    uint64_t sum = 0, bytes;
    for (uint32_t g = 0; g < info->n_groups; g++) {
        const struct kr_kv_group *kg = &info->groups[g];
        uint64_t n = n_tokens;
        if (kg->span == KR_SPAN_WINDOW || kg->span == KR_SPAN_CHUNK)
            n = CN_MIN(n, (uint64_t)kg->window_tokens + block_tokens);
        if (kg->span == KR_SPAN_STATE) n = CN_MIN(n, (uint64_t)1);
        if (!cn_mul_u64(n / block_tokens + (n % block_tokens != 0), kg->block_bytes, &bytes) ||
            !cn_add_u64(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

uint64_t eng_tokens_in(const struct kr_exec_info *info, uint32_t block_tokens, uint64_t bytes)
{
    uint64_t lo = 0, hi = (uint64_t)1 << 40;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (eng_sequence_bytes(info, block_tokens, mid) <= bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static void put_group(const struct kr_kv_group *g, uint32_t block_tokens, const char *type,
                      struct cn_buf *out)
{
    char name[32];
    const char *kind = g->span == KR_SPAN_STATE ? "state" : "KV";
    snprintf(name, sizeof(name), "%s, %u layer%s", kind, g->n_layers, g->n_layers == 1 ? "" : "s");
    if (g->span == KR_SPAN_STATE) {
        cn_buf_printf(out, "  %-15s %10s  a sequence (F32)\n", name, size_of(g->block_bytes).text);
        return;
    }
    cn_buf_printf(out, "  %-15s %10s  a token (%s)", name,
                  size_of(g->block_bytes / block_tokens).text, type);
    if (g->span == KR_SPAN_WINDOW) cn_buf_printf(out, ", the last %u only", g->window_tokens);
    if (g->span == KR_SPAN_CHUNK) cn_buf_printf(out, ", of the last %u at most", g->window_tokens);
    cn_buf_puts(out, "\n");
}

static void put_memory(const struct eng_model *m, const struct kr_prepare_opts *prepare,
                       struct cn_buf *out)
{
    const struct kr_exec_info *exec = m->info.exec;
    const char *type = kr_type_info((uint32_t)prepare->kv_type)->name;
    uint64_t full = eng_sequence_bytes(exec, prepare->block_tokens, m->info.context);

    cn_buf_puts(out, "\nmemory\n");
    cn_buf_printf(out, "  weights         %10s  repacked for the processor\n",
                  size_of(exec->packed_bytes).text);
    if (exec->n_experts)
        cn_buf_printf(out, "  of these        %10s  one expert of %u; a token reads %u of them\n",
                      size_of(exec->expert_bytes).text, exec->n_experts, exec->n_experts_used);
    cn_buf_printf(out, "  scratch         %10s  for steps of %u rows\n",
                  size_of(exec->scratch_bytes).text, prepare->max_rows);
    for (uint32_t g = 0; g < exec->n_groups; g++)
        put_group(&exec->groups[g], prepare->block_tokens, type, out);
    cn_buf_printf(out, "  full context    %10s  for %llu tokens\n", size_of(full).text,
                  (unsigned long long)m->info.context);
}

static int measure(struct eng_model *m, const struct eng_model_opts *opts, struct cn_error *err)
{
    struct kr_prepare_opts prepare = opts->prepare;
    prepare.max_context = m->info.context;
    prepare.measure = true;
    if (m->info.pooling) prepare.max_logit_rows = prepare.max_rows;
    int rc = kr_prepare(opts->device, m->plan, &prepare, &m->exec, err);
    if (!rc) m->info.exec = kr_exec_info(m->exec);
    return rc;
}

int eng_model_measure(const char *path, const struct eng_model_opts *opts, struct eng_model **out,
                      struct cn_error *err)
{
    struct eng_gguf *g;
    struct eng_model *m = eng_model_alloc();
    if (!m) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = eng_gguf_open(path, &g, err);
    if (!rc) rc = eng_model_read(m, g, path, opts->prepare.max_context, true, err);
    if (!rc) rc = measure(m, opts, err);
    /* A bad template is an error of eng_model_open. */
    if (!rc && eng_model_read_template(m, opts, NULL) == CN_ENOMEM)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (rc) {
        eng_model_unref(m);
        return rc;
    }
    *out = m;
    return CN_OK;
}

int eng_model_describe(const struct eng_model *m, const struct kr_prepare_opts *prepare,
                       struct cn_buf *out, struct cn_error *err)
{
    put_identity(m, prepare->max_context, out);
    int rc = put_types(m, out);
    put_memory(m, prepare, out);
    return rc || out->failed ? cn_fail(err, CN_ENOMEM, "out of memory") : CN_OK;
}
