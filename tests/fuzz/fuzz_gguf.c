/* Fuzz target: the GGUF reader, the vocabulary, and a family's keys and shapes up to the plan.
 * Whatever is accepted must be readable to its last byte. */
#include "engine/gguf.h"
#include "engine/model.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile unsigned sink;

static void check_tensors(const struct eng_gguf *g)
{
    for (uint64_t i = 0; i < eng_gguf_n_tensors(g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(g, i);
        const uint8_t *bytes = t->data;
        cn_assert(eng_gguf_find(g, t->name) == t);
        if (t->bytes) sink += (unsigned)bytes[0] + bytes[t->bytes - 1];
    }
}

static void check_values(const struct eng_gguf *g)
{
    const struct eng_gguf_kvs *kvs = &g->shards[0].kvs;
    for (size_t i = 0; i < kvs->n; i++) {
        struct cn_error err;
        struct eng_str s, *strs;
        uint64_t u;
        size_t count;
        char *key = strndup(kvs->v[i].key.p, kvs->v[i].key.n);
        if (!key) return;
        eng_gguf_u64(g, key, &u, &err);
        if (!eng_gguf_str(g, key, &s, &err) && s.n) sink += (unsigned)s.p[s.n - 1];
        if (!eng_gguf_strings(g, key, &strs, &count, &err)) {
            for (size_t k = 0; k < count; k++)
                if (strs[k].n) sink += (unsigned)strs[k].p[strs[k].n - 1];
            free(strs);
        }
        free(key);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct eng_gguf *g = NULL;
    struct eng_vocab *vocab = NULL;
    struct cn_error err = {0};

    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    /* libFuzzer's buffer may be unaligned, files are mapped at a page */
    void *copy = cn_malloc_array(n, 1);
    if (!copy) return 0;
    memcpy(copy, data, n);
    int rc = eng_gguf_open_memory(copy, n, "fuzz.gguf", &g, &err);
    cn_assert((rc != 0) == (err.message[0] != '\0'));
    if (!rc) {
        struct eng_model *m = eng_model_alloc();
        check_tensors(g);
        check_values(g);
        if (!eng_gguf_vocab(g, &vocab, &err)) eng_vocab_free(vocab);
        memset(&err, 0, sizeof(err));
        if (!m) {
            eng_gguf_close(g);
        } else {
            rc = eng_model_read(m, g, "fuzz.gguf", 0, false, &err);
            cn_assert((rc != 0) == (err.message[0] != '\0'));
            eng_model_unref(m);
        }
    }
    free(copy);
    return 0;
}
