/* Files that lie, one lie at a time, for every model of the oracle and every fixture: a tensor
 * taken away, a tensor of another shape, an integer key taken away, set to 0 or to 2^31, an array
 * of zeros. Opening refuses with the tensor's or a key's name, before anything of that size is
 * allocated; or, where the lie does no harm (`harmless` below says which may), the model gives
 * finite logits. The lies are written over a good file's header: names and values keep their
 * lengths. */
#include "golden.h"

#include "engine/gguf.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct kr_device *device;

struct tensor {
    char name[128];
    size_t name_at, dims_at; /* in the file */
    uint32_t n_dims;
    uint64_t ne[4];
};

struct file {
    const char *name; /* of the model */
    char arch[64], path[64];
    int fd;
    struct eng_gguf *g;
    struct tensor *tensors;
    size_t n_tensors;
    size_t tried, accepted;
};

/* ---- a good file to write lies into ---------------------------------------------------------- */

static uint64_t number_at(const uint8_t *data, size_t at, size_t width)
{
    uint64_t v = 0;
    memcpy(&v, data + at, width);
    return v;
}

/* Walks the table of tensors, which begins where the keys end. */
static void find_tensors(struct file *f)
{
    const struct eng_gguf_shard *s = &f->g->shards[0];
    const struct eng_gguf_kv *last = &s->kvs.v[s->kvs.n - 1];
    size_t at = last->offset + last->bytes;
    f->n_tensors = number_at(s->data, 8, 8);
    f->tensors = calloc(f->n_tensors, sizeof(*f->tensors));
    for (size_t i = 0; i < f->n_tensors; i++) {
        struct tensor *t = &f->tensors[i];
        uint64_t n = number_at(s->data, at, 8);
        assert_true(n < sizeof(t->name));
        memcpy(t->name, s->data + at + 8, n);
        t->name_at = at + 8;
        t->n_dims = (uint32_t)number_at(s->data, at + 8 + n, 4);
        t->dims_at = at + 12 + n;
        for (uint32_t d = 0; d < t->n_dims; d++)
            t->ne[d] = number_at(s->data, t->dims_at + 8 * d, 8);
        at = t->dims_at + 8 * t->n_dims + 12;
    }
}

static void open_file(struct file *f, const char *name, const char *from)
{
    struct cn_error err;
    struct eng_str arch;
    memset(f, 0, sizeof(*f));
    f->name = name;
    if (eng_gguf_open(from, &f->g, &err)) fail_msg("%s", err.message);
    assert_int_equal(eng_gguf_str(f->g, "general.architecture", &arch, &err), 0);
    snprintf(f->arch, sizeof(f->arch), "%.*s.", (int)arch.n, arch.p);
    find_tensors(f);
    snprintf(f->path, sizeof(f->path), "/tmp/conifer-lies-XXXXXX");
    f->fd = mkstemp(f->path);
    assert_true(f->fd >= 0);
    const struct eng_gguf_shard *s = &f->g->shards[0];
    assert_int_equal(write(f->fd, s->data, s->size), s->size);
}

static void close_file(struct file *f)
{
    close(f->fd);
    unlink(f->path);
    free(f->tensors);
    eng_gguf_close(f->g);
}

static void put(struct file *f, size_t at, const void *p, size_t n)
{
    assert_int_equal(pwrite(f->fd, p, n, (off_t)at), n);
}

static void restore(struct file *f, size_t at, size_t n)
{
    put(f, at, f->g->shards[0].data + at, n);
}

/* ---- what must come of a lie ----------------------------------------------------------------- */

/* Eight tokens (or as many as the model may see) in one step; all logits are finite. */
static void run_step(struct file *f, struct eng_model *m, const char *lie)
{
    const struct kr_exec_info *info = kr_exec_info(eng_model_exec(m));
    struct kr_row rows[8];
    uint32_t blocks[8], n = (uint32_t)CN_MIN(8, eng_model_info(m)->context);
    const uint32_t *tables[8];
    struct kr_seq seq = {.tables = tables};
    struct kr_batch batch = {.n_rows = n, .n_seqs = 1, .rows = rows, .seqs = &seq};
    struct kr_kv_mem *mem;
    struct cn_error err;
    uint64_t slab = 64, ticket;
    float *logits;

    assert_true(info->n_groups <= 8);
    for (uint32_t i = 0; i < info->n_groups; i++) {
        slab = CN_MAX(slab, info->groups[i].block_bytes);
        blocks[i] = i << KR_BLOCK_INDEX_BITS;
        tables[i] = &blocks[i];
    }
    assert_int_equal(kr_kv_mem_new(device, slab, info->n_groups, &mem, &err), 0);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct kr_row){.pos = i,
                                  .src = KR_ROW_TOKEN,
                                  .logits = true,
                                  .token = i * 31 % (uint32_t)eng_model_info(m)->n_vocab};
    if (kr_launch(eng_model_exec(m), mem, &batch, &ticket, &err))
        fail_msg("%s, %s: %s", f->name, lie, err.message);
    assert_int_equal(kr_collect(eng_model_exec(m), ticket, &logits, &err), 0);
    for (uint64_t i = 0; i < n * info->n_vocab; i++)
        if (!isfinite(logits[i])) fail_msg("%s, %s: logit %g", f->name, lie, (double)logits[i]);
    kr_kv_mem_free(mem);
}

/* A refusal that names what is wrong: the lie's own name, or a tensor or key that it is at odds
 * with. */
static bool names_it(const struct file *f, const struct cn_error *err, const char *name)
{
    if (strstr(err->message, name)) return true;
    char key[80];
    snprintf(key, sizeof(key), "\"%s", f->arch);
    return strstr(err->message, "tensor \"") || strstr(err->message, key);
}

static void judge(struct file *f, const char *name, const char *what, bool may_pass)
{
    char lie[256];
    struct eng_model *m;
    struct cn_error err;
    snprintf(lie, sizeof(lie), "%s %s", name, what);
    int rc = golden_try(device, f->path, &m, &err);
    f->tried++;
    if (!rc) {
        if (!may_pass) fail_msg("%s, %s: opened", f->name, lie);
        f->accepted++;
        run_step(f, m, lie);
        eng_model_unref(m);
    } else if ((rc != CN_EFORMAT && rc != CN_EUNSUPP) || !names_it(f, &err, name)) {
        fail_msg("%s, %s: code %d, \"%s\"", f->name, lie, rc, err.message);
    }
}

/* ---- lies about tensors ---------------------------------------------------------------------- */

/* What a model is whole without: the embeddings are the head then; frequencies are not divided;
 * full layers of gemma4 may use what becomes their keys (these have one such layer with keys, so
 * that there is no other to compare with). And gemma3's files may have more tokens than
 * embeddings. */
static bool may_lack(const struct file *f, const char *name)
{
    bool llama3 = !strcmp(f->name, "llama3-gqa"), gemma4 = !strcmp(f->arch, "gemma4.");
    return !strcmp(name, "output.weight") || (llama3 && !strcmp(name, "rope_freqs.weight")) ||
           (gemma4 &&
            (!strcmp(name, "blk.2.attn_v.weight") || !strcmp(name, "blk.5.attn_v.weight")));
}

static void lie_about_tensors(struct file *f)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        put(f, t->name_at, "#", 1);
        judge(f, t->name, "missing", may_lack(f, t->name));
        restore(f, t->name_at, 1);

        uint32_t last = t->n_dims - 1;
        uint64_t less = t->ne[last] - 1, swapped[2] = {t->ne[1], t->ne[0]};
        if (less) {
            put(f, t->dims_at + 8 * last, &less, 8);
            judge(f, t->name, "one shorter",
                  !strcmp(f->name, "gemma3") && !strcmp(t->name, "token_embd.weight"));
            restore(f, t->dims_at + 8 * last, 8);
        }
        if (t->n_dims > 1 && t->ne[0] != t->ne[1]) {
            put(f, t->dims_at, swapped, 16);
            judge(f, t->name, "turned", false);
            restore(f, t->dims_at, 16);
        }
    }
}

/* ---- lies about keys ------------------------------------------------------------------------- */

static bool is_integer(enum eng_gguf_type type)
{
    return type != ENG_GGUF_STRING && type != ENG_GGUF_ARRAY && type != ENG_GGUF_F32 &&
           type != ENG_GGUF_F64 && type != ENG_GGUF_BOOL;
}

/* Keys that say what the file says elsewhere, have a default that the format gives, or are about
 * text; "*" stands for the family, what: the lies that do no harm, NULL for all. */
static bool harmless(const struct file *f, const char *key, const char *what)
{
    static const char *const list[][2] = {
        {"general.file_type", NULL},
        {"general.quantization_version", NULL},
        {"tokenizer.ggml.bos_token_id", NULL},
        {"tokenizer.ggml.eos_token_id", NULL},
        {"tokenizer.ggml.mask_token_id", NULL},
        {"tokenizer.ggml.padding_token_id", NULL},
        {"tokenizer.ggml.seperator_token_id", NULL},
        {"tokenizer.ggml.unknown_token_id", NULL},
        {"tokenizer.ggml.token_type", NULL},
        {"tokenizer.ggml.token_type_count", "missing"},
        {"*attention.head_count_kv", "missing"}, /* as many as heads; shapes tell */
        {"*attention.key_length", "missing"},    /* width / heads; shapes tell */
        {"*attention.value_length", "missing"},
        {"*attention.recurrent_layers", "missing"}, /* full_attention_interval */
        {"*full_attention_interval", NULL},         /* recurrent_layers */
        {"*attention.shared_kv_layers", "missing"}, /* 0 */
        {"*attention.indexer.top_k", "2^31"},       /* all keys */
        {"*attention.sliding_window", "2^31"},      /* more than the context: none */
        {"gemma2.attention.sliding_window", NULL},  /* 4096, or none */
        {"gemma3.attention.sliding_window", NULL},
        {"llama.attention.sliding_window", NULL},
        {"llama4.attention.sliding_window", NULL},
        {"phi3.attention.sliding_window", NULL},
        {"olmo2.attention.sliding_window_pattern", NULL}, /* each fourth sees all; or all do */
        {"llama4.attention.temperature_length", "missing"},
        {"llama4.attention.temperature_length", "2^31"},
        {"mamba.attention.head_count", "missing"},
        {"mamba2.attention.head_count", "missing"},
        {"*expert_feed_forward_length", "missing"}, /* shapes tell */
        {"*expert_gating_func", "missing"},         /* exp_probs_b tells */
        {"*expert_gating_func", "0"},
        {"*expert_group_count", "missing"},
        {"*expert_group_count", "0"},
        {"*expert_group_used_count", "missing"},
        {"*expert_group_used_count", "0"},
        {"*feed_forward_length", "missing"}, /* of families without a dense part; shapes tell */
        {"*feed_forward_length", "0"},
        {"*rope.dimension_count", "missing"}, /* the head's size */
        {"*rope.dimension_sections", NULL},   /* text has one position */
        {"*rope.scaling.original_context_length", "missing"},
        {"*vocab_size", "0"},
        {"*vocab_size", "missing"},
        {"*dense_2_feat_in", "missing"}, /* shapes tell */
        {"*dense_2_feat_out", "missing"},
        {"*dense_3_feat_in", "missing"},
        {"*dense_3_feat_out", "missing"},
        {"*pooling_type", "missing"}, /* mean */
        {"*pooling_type", "0"},
        {"gemma4.embedding_length_per_layer_input", "missing"}, /* tensors tell */
        {"lfm2moe.leading_dense_block_count", "missing"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(list); i++) {
        const char *pattern = list[i][0], *rest = key;
        if (*pattern == '*') {
            if (strncmp(key, f->arch, strlen(f->arch))) continue;
            pattern++;
            rest += strlen(f->arch);
        }
        if (!strcmp(pattern, rest) && (!list[i][1] || !strcmp(list[i][1], what))) return true;
    }
    return false;
}

static void lie_about_keys(struct file *f)
{
    static const char *const what[] = {"0", "2^31"};
    const struct eng_gguf_shard *s = &f->g->shards[0];
    for (size_t i = 0; i < s->kvs.n; i++) {
        const struct eng_gguf_kv *kv = &s->kvs.v[i];
        char key[160];
        snprintf(key, sizeof(key), "%.*s", (int)kv->key.n, kv->key.p);
        bool array = kv->type == ENG_GGUF_ARRAY && kv->elem != ENG_GGUF_STRING;
        if (!array && !is_integer(kv->type)) continue;
        size_t at = (size_t)((const uint8_t *)kv->key.p - s->data);
        put(f, at, "#", 1);
        judge(f, key, "missing", harmless(f, key, "missing"));
        restore(f, at, 1);
        for (uint64_t v = 0; v < 2 && !array; v++) {
            uint64_t value = v ? 1ull << 31 : 0;
            if (!memcmp(&value, s->data + kv->offset, kv->bytes)) continue;
            put(f, kv->offset, &value, kv->bytes);
            judge(f, key, what[v], harmless(f, key, what[v]));
            restore(f, kv->offset, kv->bytes);
        }
        if (array) {
            uint8_t *zeros = calloc(1, kv->bytes);
            put(f, kv->offset, zeros, kv->bytes);
            judge(f, key, "zeros", harmless(f, key, "zeros"));
            restore(f, kv->offset, kv->bytes);
            free(zeros);
        }
    }
}

/* ---- every model ----------------------------------------------------------------------------- */

static void lie_about(const char *folder, const char *file)
{
    char from[512], name[64];
    struct file f;
    snprintf(from, sizeof(from), "%s/%s", folder, file);
    snprintf(name, sizeof(name), "%.*s", (int)(strlen(file) - 5), file);
    open_file(&f, name, from);
    lie_about_tensors(&f);
    lie_about_keys(&f);
    print_message("%-16s %zu lies, %zu accepted\n", name, f.tried, f.accepted);
    close_file(&f);
}

static size_t lie_about_all(const char *folder)
{
    DIR *d = opendir(folder);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 5, ".gguf")) continue;
        lie_about(folder, e->d_name);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static void test_fixtures(void **state)
{
    assert_true(lie_about_all(CONIFER_SOURCE_ROOT "/tests/engine/fixtures") >= 6);
}

static void test_oracle(void **state)
{
    const char *any = golden_oracle("models", "", "");
    if (!any) return;
    assert_true(lie_about_all(any) >= 30);
}

static int set_up(void **state)
{
    struct cn_error err;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    return dev_new(KR_ISA_AUTO, 1, &device, &err);
}

static int tear_down(void **state)
{
    kr_device_free(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_oracle),
    };
    return cmocka_run_group_tests_name("models that lie", tests, set_up, tear_down);
}
