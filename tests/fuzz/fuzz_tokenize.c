/* Fuzz target: vocabularies from hostile bytes, then tokenising, splitting and detokenising with
 * them. The input: one byte each for model, pre-tokeniser and flags; then up to 64 tokens, each a
 * type byte, a length byte and its bytes, ended by a type of 255; what is left is the text. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_TOKENS = 64 };

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t next(struct input *in)
{
    if (in->n == 0) return 255;
    in->n--;
    return *in->p++;
}

static int add_up(void *arg, size_t start, size_t len)
{
    size_t *at = arg;
    cn_assert(start == *at && len > 0);
    *at += len;
    return 0;
}

static void split(const char *text, size_t n, uint8_t which, bool jit)
{
    size_t kinds = 0;
    while (eng_pretok_kind(kinds))
        kinds++;
    const char *kind = eng_pretok_kind(which % kinds);
    struct eng_pretok *pre = eng_pretok_by_kind(kind, jit, which & 128);
    size_t at = 0;
    if (!pre) return;
    cn_assert(eng_pretok_split(pre, text, n, add_up, &at, NULL) == 0 && at == n);
    eng_pretok_free(pre);
}

static void detok(const struct eng_vocab *v, const struct eng_ids *ids, bool special)
{
    struct eng_detok d;
    struct cn_buf out;
    cn_buf_init(&out, 0);
    eng_detok_init(&d, v, special, true);
    for (size_t i = 0; i < ids->n; i++)
        cn_assert(eng_detok_push(&d, ids->v[i], &out) == 0);
    cn_assert(eng_detok_flush(&d, &out) == 0);
    cn_assert(cn_utf8_valid_len(out.data, out.len) == out.len);
    cn_buf_fini(&out);
}

static void tokenize(const struct eng_vocab *v, const char *text, size_t n, uint8_t flags)
{
    struct eng_ids ids = {0};
    struct eng_span spans[3] = {{n / 3, flags & 4}, {n / 2, flags & 8}, {n, flags & 16}};
    bool special = flags & ENG_TOKENIZE_SPECIAL;
    bool any_control = (flags & ENG_TOKENIZE_PARSE) && (flags & 28);
    cn_assert(eng_tokenize(v, text, n, spans, 3, flags & 3, &ids, NULL) == 0);
    for (size_t i = 0; i < ids.n; i++) {
        cn_assert(ids.v[i] < v->n);
        /* untrusted text alone makes no control token but what a missing byte becomes */
        if (!any_control && !special && ids.v[i] != v->unk)
            cn_assert(!eng_vocab_is_control(v, ids.v[i]));
    }
    detok(v, &ids, flags & 32);
    eng_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const models[] = {"llama", "gpt2", "gemma4"};
    static const char *const pres[] = {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-llm", "default"};
    struct input in = {data, n};
    struct eng_str tokens[256 + MAX_TOKENS], merges[MAX_TOKENS];
    int32_t types[256 + MAX_TOKENS];
    float scores[256 + MAX_TOKENS];
    char bytes[256][4];
    size_t n_tokens = 0, n_merges = 0;
    uint8_t model = next(&in), pre = next(&in), flags = next(&in);

    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    for (unsigned b = 0; b < 256; b++, n_tokens++) {
        tokens[n_tokens] =
            (struct eng_str){bytes[b], cn_utf8_encode(eng_byte_char((uint8_t)b), bytes[b])};
        types[n_tokens] = ENG_TOKEN_NORMAL;
        scores[n_tokens] = 0;
    }
    while (n_tokens < 256 + MAX_TOKENS && n_merges < MAX_TOKENS) {
        uint8_t type = next(&in);
        if (type == 255) break;
        size_t len = next(&in);
        len = CN_MIN(len, in.n);
        struct eng_str s = {(const char *)in.p, len};
        in.p += len;
        in.n -= len;
        if (type & 128) {
            merges[n_merges++] = s;
            continue;
        }
        types[n_tokens] = type % 8;
        scores[n_tokens] = (float)(type >> 3);
        tokens[n_tokens++] = s;
    }
    struct eng_vocab_spec spec = {.model = models[model % 3],
                                  .pre = pres[pre % 5],
                                  .general_name = flags & 64 ? "phi-3" : NULL,
                                  .n_tokens = n_tokens,
                                  .tokens = tokens,
                                  .types = types,
                                  .scores = scores,
                                  .merges = merges,
                                  .n_merges = n_merges,
                                  .bos = model,
                                  .eos = pre,
                                  .unk = -1,
                                  .eot = -1,
                                  .eom = -1,
                                  .fim_pad = -1,
                                  .fim_rep = -1,
                                  .fim_sep = -1,
                                  .add_bos = -1,
                                  .add_eos = -1,
                                  .add_space_prefix = -1};
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    int rc = eng_vocab_new(&spec, &v, &err);
    cn_assert((rc == 0) == (v != NULL) && rc == err.code);
    if (v) tokenize(v, (const char *)in.p, in.n, flags);
    eng_vocab_free(v);
    split((const char *)in.p, in.n, pre, model & 128);
    return 0;
}
