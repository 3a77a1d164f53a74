/* GGUF: what a file says of its tokenizer, and its chat template.
 * The vocabulary copies what it keeps, so all tables here live for one call. */
#include "engine/gguf_vocab.h"

#include "engine/gguf.h"

#include <stdlib.h>
#include <string.h>

struct tables {
    struct eng_vocab_spec spec;
    struct eng_str *tokens, *merges;
    float *scores;
    int32_t *types, *eos_ids;
    char *model, *pre, *name;
};

static void tables_fini(struct tables *t)
{
    free(t->tokens);
    free(t->merges);
    free(t->scores);
    free(t->types);
    free(t->eos_ids);
    free(t->model);
    free(t->pre);
    free(t->name);
}

/* A string as C text; *out stays NULL when the key is absent. */
static int read_text(const struct eng_gguf *g, const char *key, char **out, struct cn_error *err)
{
    struct eng_str s;
    int rc = eng_gguf_str_or_none(g, key, &s, err);
    if (rc || !s.p) return rc;
    *out = strndup(s.p, s.n);
    return *out ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
}

/* A parallel array must be as long as the token table; absent is fine. */
static int check_length(const char *key, int rc, size_t n, size_t n_tokens, struct cn_error *err,
                        const struct cn_error *local)
{
    if (rc == CN_ENOENT) return CN_OK;
    if (rc) {
        if (err) *err = *local;
        return rc;
    }
    if (n != n_tokens)
        return cn_fail_param(err, CN_EFORMAT, key, "key \"%s\" has %zu elements for %zu tokens",
                             key, n, n_tokens);
    return CN_OK;
}

static int read_tables(const struct eng_gguf *g, struct tables *t, struct cn_error *err)
{
    size_t n_tokens = 0, n = 0;
    struct cn_error local;
    int rc = eng_gguf_strings(g, "tokenizer.ggml.tokens", &t->tokens, &n_tokens, err);
    if (rc)
        return rc == CN_ENOENT ? cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.tokens",
                                               "the file has no vocabulary (key "
                                               "\"tokenizer.ggml.tokens\")")
                               : rc;
    if (!n_tokens || n_tokens > INT32_MAX)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.tokens",
                             "key \"tokenizer.ggml.tokens\" has %zu elements", n_tokens);
    t->spec.n_tokens = n_tokens;

    rc = eng_gguf_floats(g, "tokenizer.ggml.scores", &t->scores, &n, &local);
    rc = check_length("tokenizer.ggml.scores", rc, n, n_tokens, err, &local);
    if (rc) return rc;
    rc = eng_gguf_int32s(g, "tokenizer.ggml.token_type", &t->types, &n, &local);
    rc = check_length("tokenizer.ggml.token_type", rc, n, n_tokens, err, &local);
    if (rc) return rc;

    rc = eng_gguf_strings(g, "tokenizer.ggml.merges", &t->merges, &t->spec.n_merges, &local);
    if (rc && rc != CN_ENOENT) goto out;
    rc =
        eng_gguf_int32s(g, "tokenizer.ggml.eos_token_ids", &t->eos_ids, &t->spec.n_eos_ids, &local);
    if (rc && rc != CN_ENOENT) goto out;
    return CN_OK;
out:
    if (err) *err = local;
    return rc;
}

/* Published files name ids that their table does not have (a padding id one past the end); such an
 * id can never be produced, so it is left out rather than refused. */
static int read_id(const struct eng_gguf *g, const char *key, size_t n_tokens, int64_t *out,
                   struct cn_error *err)
{
    uint64_t id;
    struct cn_error local;
    int rc = eng_gguf_u64(g, key, &id, &local);
    *out = -1;
    if (rc == CN_ENOENT) return CN_OK;
    if (rc) {
        if (err) *err = local;
        return rc;
    }
    if (id < n_tokens)
        *out = (int64_t)id;
    else
        cn_log(CN_LOG_WARN, "engine", "%s = %llu is not in the vocabulary of %zu tokens; ignored",
               key, (unsigned long long)id, n_tokens);
    return CN_OK;
}

static int read_ids(const struct eng_gguf *g, struct eng_vocab_spec *s, struct cn_error *err)
{
    const struct {
        const char *key;
        int64_t *out;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &s->bos},
        {"tokenizer.ggml.eos_token_id", &s->eos},
        {"tokenizer.ggml.eot_token_id", &s->eot},
        {"tokenizer.ggml.eom_token_id", &s->eom},
        {"tokenizer.ggml.unknown_token_id", &s->unk},
        {"tokenizer.ggml.seperator_token_id", &s->sep}, /* the format's spelling */
        {"tokenizer.ggml.padding_token_id", &s->pad},
        {"tokenizer.ggml.fim_pre_token_id", &s->fim_pre},
        {"tokenizer.ggml.fim_suf_token_id", &s->fim_suf},
        {"tokenizer.ggml.fim_mid_token_id", &s->fim_mid},
        {"tokenizer.ggml.fim_pad_token_id", &s->fim_pad},
        {"tokenizer.ggml.fim_rep_token_id", &s->fim_rep},
        {"tokenizer.ggml.fim_sep_token_id", &s->fim_sep},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(ids); i++) {
        int rc = read_id(g, ids[i].key, s->n_tokens, ids[i].out, err);
        if (rc) return rc;
    }
    return CN_OK;
}

static int read_flag(const struct eng_gguf *g, const char *key, int *out, struct cn_error *err)
{
    bool value;
    struct cn_error local;
    int rc = eng_gguf_bool(g, key, &value, &local);
    *out = rc ? -1 : value;
    if (rc && rc != CN_ENOENT) {
        if (err) *err = local;
        return rc;
    }
    return CN_OK;
}

/* Ids of tokens that were cut off, and of none, are dropped; the rest is ascending as in the
 * file. */
static void keep_eos_ids(struct tables *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->spec.n_eos_ids; i++)
        if (t->eos_ids[i] >= 0 && (size_t)t->eos_ids[i] < t->spec.n_tokens)
            t->eos_ids[kept++] = t->eos_ids[i];
    t->spec.n_eos_ids = kept;
    t->spec.eos_ids = kept ? (const uint32_t *)t->eos_ids : NULL;
}

static int read_spec(const struct eng_gguf *g, struct tables *t, size_t max_tokens,
                     struct cn_error *err)
{
    int rc = read_text(g, "tokenizer.ggml.model", &t->model, err);
    if (!rc && !t->model)
        rc = cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.model",
                           "the file has no tokenizer (key \"tokenizer.ggml.model\")");
    if (!rc) rc = read_text(g, "tokenizer.ggml.pre", &t->pre, err);
    if (!rc) rc = read_text(g, "general.name", &t->name, err);
    if (!rc) rc = read_tables(g, t, err);
    if (rc) return rc;
    t->spec.n_tokens = CN_MIN(t->spec.n_tokens, max_tokens);
    rc = read_ids(g, &t->spec, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.add_bos_token", &t->spec.add_bos, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.add_eos_token", &t->spec.add_eos, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.add_space_prefix", &t->spec.add_space_prefix, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.normalizer.lowercase", &t->spec.lowercase, err);
    if (rc) return rc;
    keep_eos_ids(t);
    t->spec.model = t->model;
    t->spec.pre = t->pre;
    t->spec.general_name = t->name;
    t->spec.tokens = t->tokens;
    t->spec.scores = t->scores;
    t->spec.types = t->types;
    t->spec.merges = t->merges;
    return CN_OK;
}

int eng_gguf_vocab_upto(const struct eng_gguf *g, size_t max_tokens, struct eng_vocab **out,
                        struct cn_error *err)
{
    struct tables t = {0};
    int rc = read_spec(g, &t, max_tokens, err);
    if (!rc) rc = eng_vocab_new(&t.spec, out, err);
    tables_fini(&t);
    return rc;
}

int eng_gguf_vocab(const struct eng_gguf *g, struct eng_vocab **out, struct cn_error *err)
{
    return eng_gguf_vocab_upto(g, SIZE_MAX, out, err);
}

int eng_gguf_template(const struct eng_gguf *g, struct eng_template **out, struct cn_error *err)
{
    struct eng_str src;
    struct cn_error local;
    int rc = eng_gguf_str(g, "tokenizer.chat_template", &src, &local);
    if (rc == CN_ENOENT) {
        *out = NULL;
        return CN_OK;
    }
    if (rc) {
        if (err) *err = local;
        return rc;
    }
    rc = eng_template_new(src.p, src.n, out, err);
    if (rc) cn_error_wrap(err, "key \"tokenizer.chat_template\"");
    return rc;
}
