/* describe: what a model file is and what it would need, in words, for `conifer show`.
 * Reads keys and shapes and records the plan, so a file that could not be served is refused here
 * with the same message. */
#include "engine/model.h"

#include "engine/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCK_TOKENS = 16 };

struct size {
    char text[32];
};

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
    cn_buf_printf(out, "quantisation    mostly %s\n", i->file_type);
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
    cn_buf_printf(out, "heads           %u of %u, %u for keys and values\n", i->n_heads, h->layers[0].k_dim,
                  i->n_kv_heads);
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

/* Bytes of n values of a KV type. */
static uint64_t kv_bytes(const struct kr_type_info *type, uint64_t n)
{
    return (n + type->block_elems - 1) / type->block_elems * type->block_bytes;
}

struct kv_need {
    uint64_t full_token_bytes; /* grows with every token */
    uint64_t window_token_bytes;
    uint32_t full_layers, window_layers;
};

static struct kv_need kv_need(const struct eng_model *m, const struct kr_type_info *type)
{
    const struct eng_hparams *h = &m->builder.h;
    struct kv_need need = {0};
    for (uint32_t l = 0; l < h->n_layers; l++) {
        const struct eng_layer *layer = &h->layers[l];
        /* heads and head sizes are below 2^16, layers below 2^32: no overflow */
        uint64_t bytes = layer->n_kv_heads * (kv_bytes(type, layer->k_dim) + kv_bytes(type, layer->v_dim));
        if (layer->windowed && h->window_tokens) {
            need.window_token_bytes += bytes;
            need.window_layers++;
        } else {
            need.full_token_bytes += bytes;
            need.full_layers++;
        }
    }
    return need;
}

/* What one sequence of n tokens holds: whole blocks; behind the window they are given back. */
static uint64_t sequence_bytes(const struct eng_model *m, const struct kv_need *need,
                               uint32_t block_tokens, uint64_t n)
{
    uint64_t window = CN_MIN(n, m->builder.h.window_tokens + block_tokens);
    uint64_t whole = (n + block_tokens - 1) / block_tokens * block_tokens;
    uint64_t seen = (window + block_tokens - 1) / block_tokens * block_tokens;
    return whole * need->full_token_bytes + seen * need->window_token_bytes;
}

/* How many tokens fit in `bytes`: in one sequence when the window's part is paid for once. */
static uint64_t tokens_in(const struct eng_model *m, const struct kv_need *need,
                          uint32_t block_tokens, uint64_t bytes)
{
    uint64_t lo = 0, hi = (uint64_t)1 << 40;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2, a, b;
        bool fits = cn_mul_u64(mid + block_tokens, need->full_token_bytes, &a) &&
                    cn_mul_u64(CN_MIN(mid, m->builder.h.window_tokens) + 2 * block_tokens,
                               need->window_token_bytes, &b) &&
                    cn_add_u64(a, b, &a) && sequence_bytes(m, need, block_tokens, mid) <= bytes;
        if (fits)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static struct size layers_of(uint32_t n)
{
    struct size s;
    snprintf(s.text, sizeof(s.text), "KV, %u layer%s", n, n == 1 ? "" : "s");
    return s;
}

static void put_kv(const struct eng_model *m, const struct kv_need *need, const char *type,
                   struct cn_buf *out)
{
    if (need->full_layers)
        cn_buf_printf(out, "  %-14s  %10s  a token (%s)\n", layers_of(need->full_layers).text,
                      size_of(need->full_token_bytes).text, type);
    if (need->window_layers)
        cn_buf_printf(out, "  %-14s  %10s  a token (%s), the last %llu only\n",
                      layers_of(need->window_layers).text, size_of(need->window_token_bytes).text,
                      type, (unsigned long long)m->builder.h.window_tokens);
}

static void put_memory(const struct eng_model *m, const struct eng_model_opts *opts,
                       const struct kr_exec_info *exec, struct cn_buf *out)
{
    uint32_t block = opts->prepare.block_tokens ? opts->prepare.block_tokens : DEFAULT_BLOCK_TOKENS;
    const struct kr_type_info *type = kr_type_info((uint32_t)opts->prepare.kv_type);
    if (!type || !opts->prepare.kv_type) type = kr_type_info(KR_F16);
    struct kv_need need = kv_need(m, type);
    uint64_t weights = exec ? exec->packed_bytes : m->builder.matmul_bytes;
    uint64_t scratch = exec ? exec->scratch_bytes : 0;
    uint64_t full = sequence_bytes(m, &need, block, m->info.context);

    cn_buf_puts(out, "\nmemory\n");
    cn_buf_printf(out, "  weights         %10s  repacked for the processor%s\n",
                  size_of(weights).text, exec ? "" : " (about)");
    if (exec)
        cn_buf_printf(out, "  scratch         %10s  for steps of %u rows\n", size_of(scratch).text,
                      opts->prepare.max_rows);
    put_kv(m, &need, type->name, out);
    cn_buf_printf(out, "  full context    %10s  of KV for %llu tokens\n", size_of(full).text,
                  (unsigned long long)m->info.context);
    if (!opts->free_bytes) return;
    cn_buf_printf(out, "  free now        %10s\n", size_of(opts->free_bytes).text);
    if (opts->free_bytes < weights + scratch) {
        cn_buf_printf(out, "  does not fit: %s more are needed for weights and scratch\n",
                      size_of(weights + scratch - opts->free_bytes).text);
        return;
    }
    uint64_t left = opts->free_bytes - weights - scratch;
    cn_buf_printf(out, "  room for KV     %10s  = %s - %s%s%s\n", size_of(left).text,
                  size_of(opts->free_bytes).text, size_of(weights).text, exec ? " - " : "",
                  exec ? size_of(scratch).text : "");
    uint64_t tokens = tokens_in(m, &need, block, left);
    cn_buf_printf(out, "  tokens that fit %10llu  = %.1f full contexts\n",
                  (unsigned long long)tokens, (double)tokens / (double)m->info.context);
}

/* Exact figures come from a prepared plan: worth its time only for weights that fit. */
static const struct kr_exec_info *prepared(struct eng_model *m, const struct eng_model_opts *opts)
{
    struct kr_prepare_opts prepare = opts->prepare;
    prepare.max_context = m->info.context;
    if (!opts->device || m->builder.matmul_bytes > opts->free_bytes / 2) return NULL;
    if (kr_prepare(opts->device, m->plan, &prepare, &m->exec, NULL)) return NULL;
    return kr_exec_info(m->exec);
}

int eng_model_describe(const char *path, const struct eng_model_opts *opts, struct cn_buf *out,
                       struct cn_error *err)
{
    struct eng_gguf *g;
    struct eng_model *m = eng_model_alloc();
    if (!m) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = eng_gguf_open(path, &g, err);
    if (!rc) rc = eng_model_read(m, g, path, opts->prepare.max_context, err);
    if (!rc) {
        put_identity(m, opts->prepare.max_context, out);
        rc = put_types(m, out);
        put_memory(m, opts, prepared(m, opts), out);
        if (rc || out->failed) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    }
    eng_model_unref(m);
    return rc;
}
