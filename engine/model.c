/* model: from a file to something that runs. Opened by one thread (the loader); afterwards
 * immutable except for its exec, which belongs to the engine thread. Owns file, vocabulary,
 * template, plan and exec; the plan's tensors point into the mapping, so the file stays open as
 * long as the model.
 *
 * Memory for weights is committed by kr_prepare, after every key and every shape was checked. A
 * file that is cut short or written to while it is read or served raises no signal (mapping.c);
 * eng_model_intact reports it, and the owner drops the model. */
#include "engine/model.h"

#include "engine/gguf.h"
#include "engine/gguf_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct eng_arch *const archs[] = {
#define ARCH(name, id, text) &eng_arch_##name,
#include "engine/arch_list.def"
#undef ARCH
    &eng_arch_null,
};

const char *eng_arch_list(void)
{
#define ARCH(name, id, text) ", " id
    static const char list[] = ""
#include "engine/arch_list.def"
        ;
#undef ARCH
    return list + 2;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* An optional text; *out stays as it is when the key is absent. */
static int read_text(struct eng_model *m, const char *key, const char **out, struct cn_error *err)
{
    struct eng_str s;
    int rc = eng_gguf_str_or_none(m->g, key, &s, err);
    if (rc || !s.p) return rc;
    *out = cn_arena_strn(&m->arena, s.p, s.n);
    return *out ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
}

static int find_arch(struct eng_model *m, struct cn_error *err)
{
    const char *name = NULL, *kind = "model";
    int rc = read_text(m, "general.type", &kind, err);
    if (!rc) rc = read_text(m, "general.architecture", &name, err);
    if (rc) return rc;
    if (strcmp(kind, "model"))
        return cn_fail_param(err, CN_EUNSUPP, "general.type",
                             "the file is of the kind \"%.40s\" "
                             "(general.type), not a language model",
                             kind);
    if (!name)
        return cn_fail_param(err, CN_EFORMAT, "general.architecture",
                             "key \"general.architecture\" is missing");
    for (size_t i = 0; i < CN_ARRAY_LEN(archs); i++) {
        if (strcmp(archs[i]->name, name)) continue;
        m->builder.arch = archs[i];
        return CN_OK;
    }
    return cn_fail_param(err, CN_EUNSUPP, "general.architecture",
                         "the architecture \"%.60s\" is not supported (supported: %s)", name,
                         eng_arch_list());
}

static int record_plan(struct eng_model *m, uint64_t max_context, bool measuring,
                       struct cn_error *err)
{
    struct eng_builder *b = &m->builder;
    m->plan = kr_plan_new();
    if (!m->plan) return cn_fail(err, CN_ENOMEM, "out of memory");
    b->g = m->g;
    b->plan = m->plan;
    b->arena = &m->arena;
    b->loading = &m->loading;
    b->measuring = measuring;
    b->full_group = b->window_group = -1;
    int rc = eng_b_hparams(b, max_context);
    if (!rc) {
        eng_b_check_needs(b);
        b->arch->record(b);
        rc = b->error.code;
    }
    if (rc) {
        if (err) *err = b->error;
        return rc;
    }
    return kr_plan_finish(m->plan, err);
}

/* The type that most weight bytes have, and how many weights there are. */
static void count_weights(struct eng_model *m)
{
    uint64_t by_type[64] = {0}, best = 0;
    m->info.n_params = 0;
    m->info.file_type = "none";
    for (uint64_t i = 0; i < eng_gguf_n_tensors(m->g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(m->g, i);
        uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* checked by the reader */
        if (!cn_add_u64(m->info.n_params, n, &m->info.n_params)) m->info.n_params = UINT64_MAX;
        if ((uint32_t)t->type >= CN_ARRAY_LEN(by_type)) continue;
        uint64_t *sum = &by_type[t->type];
        if (!cn_add_u64(*sum, t->bytes, sum)) *sum = UINT64_MAX;
        if (*sum > best) {
            best = *sum;
            m->info.file_type = eng_gguf_tensor_type((uint32_t)t->type).name;
        }
    }
}

static int fill_info(struct eng_model *m, const char *path, struct cn_error *err)
{
    const struct eng_hparams *h = &m->builder.h;
    struct eng_model_info *info = &m->info;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    char *shown;

    info->arch = m->builder.arch->name;
    info->name = cn_arena_strn(&m->arena, base, strlen(base));
    if (!info->name) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = read_text(m, "general.name", &info->name, err);
    if (rc) return rc;
    /* the file's words are shown in terminals */
    info->name = shown = cn_arena_strn(&m->arena, info->name, strlen(info->name));
    if (!shown) return cn_fail(err, CN_ENOMEM, "out of memory");
    cn_clean_line(shown);
    info->file_bytes = m->g->file_bytes;
    info->n_layers = h->n_layers;
    info->embd_dim = h->embd_dim;
    info->n_heads = h->layers[0].n_heads;
    info->n_kv_heads = h->layers[0].n_kv_heads;
    info->n_vocab = h->n_vocab;
    info->train_context = h->train_context;
    info->context = h->context;
    info->pooling = h->pooling;
    eng_read_recommended(m->g, &info->recommended);
    count_weights(m);
    return CN_OK;
}

struct eng_model *eng_model_alloc(void)
{
    struct eng_model *m = cn_calloc(1, sizeof(*m));
    if (!m) return NULL;
    atomic_init(&m->refs, 1);
    cn_arena_init(&m->arena, 0);
    cn_arena_init(&m->loading, 0);
    return m;
}

int eng_model_read(struct eng_model *m, struct eng_gguf *g, const char *path, uint64_t max_context,
                   bool measuring, struct cn_error *err)
{
    m->g = g;
    int rc = find_arch(m, err);
    if (!rc && !eng_gguf_n_tensors(m->g))
        rc = cn_fail(err, CN_EFORMAT, "the file has a vocabulary only, no weights");
    if (!rc) rc = record_plan(m, max_context, measuring, err);
    if (!rc) rc = fill_info(m, path, err);
    return rc;
}

/* ---- fingerprint ----------------------------------------------------------------------------- */

/* hash = SipHash-2-4-128 of the bytes, keyed by the hash so far. */
static void chain(uint8_t hash[16], const void *p, size_t n)
{
    uint8_t next[16];
    cn_siphash24_128(hash, p, n, next);
    memcpy(hash, next, sizeof(next));
}

/* Names what decides the bytes of an answer: every key, name, shape and size of the file, the first
 * bytes of every tensor (a whole hash would read the file twice), and the numeric path. */
static void set_fingerprint(struct eng_model *m, const struct eng_model_opts *opts)
{
    enum { SAMPLE = 256 };
    uint8_t hash[16] = "conifer model 5"; /* raised when drawing or a path's numbers change */
    const char *path = kr_device_path(opts->device);
    const struct eng_hparams *h = &m->builder.h; /* some files have frequencies for long contexts */
    uint32_t numeric[3] = {(uint32_t)opts->prepare.kv_type, opts->prepare.block_tokens,
                           h->scaling == ENG_ROPE_LONG && h->context > h->original_context};

    for (uint32_t i = 0; i < m->g->n_shards; i++) {
        const struct eng_gguf_shard *s = &m->g->shards[i];
        chain(hash, &s->size, sizeof(s->size));
        chain(hash, s->data, (size_t)s->header_bytes);
    }
    for (uint64_t i = 0; i < eng_gguf_n_tensors(m->g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(m->g, i);
        chain(hash, t->data, (size_t)CN_MIN(t->bytes, SAMPLE));
    }
    chain(hash, path, strlen(path));
    chain(hash, numeric, sizeof(numeric));
    memcpy(m->info.fingerprint, "fp_", 3);
    cn_hex(hash, 8, m->info.fingerprint + 3);
}

/* ---- opening --------------------------------------------------------------------------------- */

int eng_model_read_template(struct eng_model *m, const struct eng_model_opts *opts,
                            struct cn_error *err)
{
    if (!opts->template_text) return eng_gguf_template(m->g, &m->template, err);
    int rc = eng_template_new(opts->template_text, opts->template_len, &m->template, err);
    if (rc) cn_error_wrap(err, "the given chat template");
    return rc;
}

static int read_texts(struct eng_model *m, const struct eng_model_opts *opts, struct cn_error *err)
{
    int rc = eng_gguf_vocab_upto(m->g, (size_t)m->info.n_vocab, &m->vocab, err);
    if (rc) return rc;
    if (eng_vocab_size(m->vocab) != m->info.n_vocab)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.tokens",
                             "key \"tokenizer.ggml.tokens\" has %zu tokens, the model %llu",
                             eng_vocab_size(m->vocab), (unsigned long long)m->info.n_vocab);
    rc = eng_model_read_template(m, opts, err);
    if (!rc && m->template) {
        m->reply = eng_reply_format(m->vocab, eng_template_source(m->template));
        rc = eng_history_learn(m->template, &m->reply, &m->history);
        if (rc) cn_fail(err, rc, "out of memory");
    }
    return rc;
}

/* A weight was copied: the file's pages need not stay beside the copy. */
static void on_copied(void *arg, const void *p, uint64_t n)
{
    const struct eng_gguf *g = arg;
    for (uint32_t i = 0; i < g->n_shards; i++)
        if (g->shards[i].map) eng_mapping_leave(g->shards[i].map, p, n);
}

/* Nothing of the file is read but the weights from here on, and each of those once. */
static void leave_file(const struct eng_gguf *g)
{
    for (uint32_t i = 0; i < g->n_shards; i++) {
        const struct eng_gguf_shard *s = &g->shards[i];
        if (s->map) eng_mapping_leave(s->map, s->data, s->size);
    }
}

static int prepare(struct eng_model *m, const struct eng_model_opts *opts, struct cn_error *err)
{
    struct kr_prepare_opts prepare = opts->prepare;
    prepare.max_context = m->info.context;
    prepare.copied = on_copied;
    prepare.copied_arg = m->g;
    if (m->info.pooling) prepare.max_logit_rows = prepare.max_rows;
    set_fingerprint(m, opts);
    leave_file(m->g);
    int rc = kr_prepare(opts->device, m->plan, &prepare, &m->exec, err);
    if (rc) return rc;
    cn_arena_fini(&m->loading); /* it is packed */
    cn_arena_init(&m->loading, 0);
    m->info.exec = kr_exec_info(m->exec);
    if (!eng_gguf_intact(m->g))
        return cn_fail(err, CN_EIO,
                       "the file was changed or could not be read while it was loaded");
    return CN_OK;
}

int eng_model_open(const char *path, const struct eng_model_opts *opts, struct eng_model **out,
                   struct cn_error *err)
{
    struct eng_gguf *g;
    struct eng_model *m = eng_model_alloc();
    if (!m) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = eng_gguf_open(path, &g, err);
    if (!rc) rc = eng_model_read(m, g, path, opts->prepare.max_context, false, err);
    if (!rc) rc = read_texts(m, opts, err);
    if (!rc) rc = prepare(m, opts, err);
    if (rc) {
        eng_model_unref(m);
        return rc;
    }
    *out = m;
    return CN_OK;
}

struct eng_model *eng_model_ref(struct eng_model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void eng_model_unref(struct eng_model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    kr_exec_free(m->exec);
    kr_plan_free(m->plan);
    eng_template_free(m->template);
    eng_vocab_free(m->vocab);
    eng_gguf_close(m->g);
    cn_arena_fini(&m->arena);
    cn_arena_fini(&m->loading);
    free(m);
}

bool eng_model_intact(const struct eng_model *m)
{
    return eng_gguf_intact(m->g);
}

const struct eng_model_info *eng_model_info(const struct eng_model *m)
{
    return &m->info;
}

const struct eng_vocab *eng_model_vocab(const struct eng_model *m)
{
    return m->vocab;
}

const struct eng_template *eng_model_template(const struct eng_model *m)
{
    return m->template;
}

const struct eng_history *eng_model_history(const struct eng_model *m)
{
    return &m->history;
}

const struct eng_reply_format *eng_model_reply(const struct eng_model *m)
{
    return &m->reply;
}

struct kr_exec *eng_model_exec(struct eng_model *m)
{
    return m->exec;
}
