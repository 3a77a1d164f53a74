/* null: a model without arithmetic, so that everything but the kernels can be measured.
 *
 *   null:layers=24,vocab=50000      (docs/NULL.md: what each parameter is)
 *
 * The text becomes a GGUF file in memory, which is then opened like any other: the same reader,
 * vocabulary, template, plan, pool and sampling serve it (arch/null.c has the plan). The same text
 * gives the same bytes, so that the fingerprint names the model.
 *
 * Its vocabulary is byte-level BPE: 256 bytes, two control tokens, then words made of syllables,
 * each an earlier one and a syllable more, with the merges that lead there. Answers are words that
 * begin with a space, so their text is valid UTF-8 whatever the sampling. Any thread; owns
 * nothing. */
#include "engine/null.h"

#include "engine/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint64_t fallback, min, max;
} params[] = {
#define PARAM(id, name, fallback, min, max, text) {name, fallback, min, max},
#include "engine/null.def"
#undef PARAM
};
enum {
#define PARAM(id, name, fallback, min, max, text) P_##id,
#include "engine/null.def"
#undef PARAM
    N_PARAMS
};

#define NULL_ALIGNMENT 32u
#define N_BYTES        256u
#define N_SYLLABLES    80u
enum { ID_START = N_BYTES, ID_END, ID_WORDS, ID_ANSWERS = ID_WORDS + N_SYLLABLES };

static const char chat_template[] =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

bool eng_null_is(const char *path)
{
    return !strncmp(path, "null", 4) && (!path[4] || path[4] == ':');
}

/* ---- the line -------------------------------------------------------------------------------- */

static int list_params(struct cn_error *err, const char *what, const char *at, size_t n)
{
#define PARAM(id, name, fallback, min, max, text) ", " name
    static const char names[] =
#include "engine/null.def"
        ;
#undef PARAM
    return cn_fail_param(err, CN_EINVAL, "model", "null model: %s \"%.*s\" (there are: %s)", what,
                         (int)CN_MIN(n, (size_t)40), at, names + 2);
}

/* Decimal digits only, of a number that 64 bits hold. */
static bool read_number(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || !cn_mul_u64(v, 10, &v) ||
            !cn_add_u64(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    *out = v;
    return n > 0;
}

static int read_param(const char *s, size_t n, uint64_t v[N_PARAMS], bool given[N_PARAMS],
                      struct cn_error *err)
{
    const char *equals = memchr(s, '=', n);
    size_t i = 0, len = equals ? (size_t)(equals - s) : n;
    while (i < N_PARAMS && (strlen(params[i].name) != len || memcmp(params[i].name, s, len)))
        i++;
    if (i == N_PARAMS) return list_params(err, "no parameter", s, len);
    if (!equals) return list_params(err, "no value (NAME=NUMBER) for", s, len);
    if (given[i]) return list_params(err, "twice the parameter", s, len);
    given[i] = true;
    const char *text = equals + 1;
    size_t text_len = n - len - 1;
    if (!read_number(text, text_len, &v[i]) || v[i] < params[i].min || v[i] > params[i].max)
        return cn_fail_param(
            err, CN_ERANGE, "model",
            "null model: %s=%.*s: it must be a number from %" PRIu64 " to %" PRIu64, params[i].name,
            (int)CN_MIN(text_len, (size_t)40), text, params[i].min, params[i].max);
    return CN_OK;
}

static int read_line(const char *text, uint64_t v[N_PARAMS], struct cn_error *err)
{
    bool given[N_PARAMS] = {false};
    int rc = CN_OK;
    for (size_t i = 0; i < N_PARAMS; i++)
        v[i] = params[i].fallback;
    const char *s = text[4] ? text + 5 : text + 4;
    while (!rc && *s) {
        size_t n = strcspn(s, ",");
        rc = read_param(s, n, v, given, err);
        s += n;
        if (!rc && *s == ',' && !*++s) rc = list_params(err, "no parameter", s, 0);
    }
    if (!rc && v[P_head_dim] % 2)
        rc = cn_fail_param(err, CN_ERANGE, "model", "null model: head_dim=%" PRIu64 " must be even",
                           v[P_head_dim]);
    return rc;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void put_u32(struct cn_buf *b, uint32_t v)
{
    cn_buf_append(b, &v, sizeof v); /* little-endian, as every machine this runs on */
}

static void put_u64(struct cn_buf *b, uint64_t v)
{
    cn_buf_append(b, &v, sizeof v);
}

static void put_str(struct cn_buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    cn_buf_append(b, s, n);
}

static void put_key(struct cn_buf *b, uint64_t *n_keys, const char *key, uint32_t type)
{
    put_str(b, key, strlen(key));
    put_u32(b, type);
    ++*n_keys;
}

static void key_u64(struct cn_buf *b, uint64_t *n_keys, const char *key, uint64_t v)
{
    put_key(b, n_keys, key, ENG_GGUF_U64);
    put_u64(b, v);
}

static void key_str(struct cn_buf *b, uint64_t *n_keys, const char *key, const char *v)
{
    put_key(b, n_keys, key, ENG_GGUF_STRING);
    put_str(b, v, strlen(v));
}

static void key_array(struct cn_buf *b, uint64_t *n_keys, const char *key, uint32_t type,
                      uint64_t n)
{
    put_key(b, n_keys, key, ENG_GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

/* How byte-level vocabularies write a byte: itself where it can be seen, else U+0100 and on. */
static size_t byte_text(unsigned byte, char out[4])
{
    unsigned hidden = 0;
    for (unsigned i = 0; i <= byte; i++) {
        bool seen = (i > 0x20 && i < 0x7f) || (i > 0xa0 && i != 0xad && i < 0x100);
        if (i == byte) return cn_utf8_encode(seen ? byte : 0x100 + hidden, out);
        hidden += !seen;
    }
    return 0;
}

static void syllable(uint64_t i, char out[2])
{
    out[0] = "bdfghjklmnprstvz"[i / 5];
    out[1] = "aeiou"[i % 5];
}

/* The two parts of word i: the first 80 are syllables, the next 80 a space and a syllable, the
 * others an earlier word with a space and a syllable more. Each of at most 16 bytes. */
struct parts {
    char left[16], right[2];
    size_t n_left, n_right;
};

static size_t word_text(uint64_t i, char out[16]);

static struct parts word_parts(uint64_t i)
{
    struct parts p = {.n_right = 2};
    char two[2];
    syllable(i % N_SYLLABLES, p.right);
    if (i < N_SYLLABLES) {
        syllable(i, two);
        p.left[0] = two[0];
        p.right[0] = two[1];
        p.n_left = p.n_right = 1;
    } else if (i < 2 * N_SYLLABLES) {
        p.n_left = byte_text(' ', p.left);
    } else {
        p.n_left = word_text(i / N_SYLLABLES - 2 + N_SYLLABLES, p.left);
    }
    return p;
}

static size_t word_text(uint64_t i, char out[16])
{
    struct parts p = word_parts(i);
    cn_assert(p.n_left + p.n_right <= 16);
    memcpy(out, p.left, p.n_left);
    memcpy(out + p.n_left, p.right, p.n_right);
    return p.n_left + p.n_right;
}

static void put_vocabulary(struct cn_buf *b, uint64_t *n_keys, uint64_t n_vocab)
{
    char text[16];
    key_str(b, n_keys, "tokenizer.ggml.model", "gpt2");
    key_str(b, n_keys, "tokenizer.ggml.pre", "gpt-2");
    key_array(b, n_keys, "tokenizer.ggml.tokens", ENG_GGUF_STRING, n_vocab);
    for (unsigned i = 0; i < N_BYTES; i++)
        put_str(b, text, byte_text(i, text));
    put_str(b, "<|im_start|>", 12);
    put_str(b, "<|im_end|>", 10);
    for (uint64_t i = 0; i < n_vocab - ID_WORDS; i++)
        put_str(b, text, word_text(i, text));
    key_array(b, n_keys, "tokenizer.ggml.token_type", ENG_GGUF_I32, n_vocab);
    for (uint64_t i = 0; i < n_vocab; i++)
        put_u32(b, i == ID_START || i == ID_END ? 3 : 1); /* control, normal */
    key_array(b, n_keys, "tokenizer.ggml.merges", ENG_GGUF_STRING, n_vocab - ID_WORDS);
    for (uint64_t i = 0; i < n_vocab - ID_WORDS; i++) {
        struct parts p = word_parts(i);
        put_u64(b, p.n_left + 1 + p.n_right);
        cn_buf_append(b, p.left, p.n_left);
        cn_buf_putc(b, ' ');
        cn_buf_append(b, p.right, p.n_right);
    }
    key_u64(b, n_keys, "tokenizer.ggml.eos_token_id", ID_END);
    key_str(b, n_keys, "tokenizer.chat_template", chat_template);
}

static void put_keys(struct cn_buf *b, uint64_t *n_keys, const uint64_t v[N_PARAMS])
{
    key_str(b, n_keys, "general.architecture", "null");
    key_str(b, n_keys, "general.name", "null");
    key_u64(b, n_keys, "null.block_count", v[P_layers]);
    key_u64(b, n_keys, "null.context_length", v[P_context]);
    key_u64(b, n_keys, "null.embedding_length", 1);
    key_u64(b, n_keys, "null.feed_forward_length", 1);
    key_u64(b, n_keys, "null.attention.head_count", v[P_kv_heads]);
    key_u64(b, n_keys, "null.attention.head_count_kv", v[P_kv_heads]);
    key_u64(b, n_keys, "null.attention.key_length", v[P_head_dim]);
    key_u64(b, n_keys, "null.attention.value_length", v[P_head_dim]);
    key_u64(b, n_keys, "null.answer_length", v[P_answer]);
    key_u64(b, n_keys, "null.first_answer", ID_ANSWERS);
    put_vocabulary(b, n_keys, v[P_vocab]);
}

static void put_tensor(struct cn_buf *b, const char *name, uint64_t n, uint64_t *at)
{
    put_str(b, name, strlen(name));
    put_u32(b, 2);
    put_u64(b, 1);
    put_u64(b, n);
    put_u32(b, KR_F32);
    put_u64(b, *at);
    *at += (n * sizeof(float) + NULL_ALIGNMENT - 1) & ~(uint64_t)(NULL_ALIGNMENT - 1);
}

/* A table of embeddings one value wide, which says how many tokens there are, and one value a
 * layer: the reader bounds a file's layers by its tensors. All are zeros. */
static void put_tensors(struct cn_buf *b, const uint64_t v[N_PARAMS])
{
    static const char zeros[4096];
    char name[32];
    uint64_t at = 0;
    put_tensor(b, "token_embd.weight", v[P_vocab], &at);
    for (uint64_t l = 0; l < v[P_layers]; l++) {
        snprintf(name, sizeof name, "blk.%" PRIu64 ".null", l);
        put_tensor(b, name, 1, &at);
    }
    while (b->len % NULL_ALIGNMENT && !b->failed)
        cn_buf_putc(b, 0);
    for (; at && !b->failed; at -= CN_MIN(at, sizeof zeros))
        cn_buf_append(b, zeros, CN_MIN(at, sizeof zeros));
}

int eng_null_file(const char *text, void **data, size_t *n, struct cn_error *err)
{
    uint64_t v[N_PARAMS], n_keys = 0;
    struct cn_buf b;
    int rc = read_line(text, v, err);
    if (rc) return rc;
    cn_buf_init(&b, 0);
    cn_buf_append(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, v[P_layers] + 1);
    size_t at = b.len;
    put_u64(&b, 0);
    put_keys(&b, &n_keys, v);
    put_tensors(&b, v);
    if (b.failed) {
        cn_buf_fini(&b);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    memcpy(b.data + at, &n_keys, sizeof n_keys);
    *data = b.data;
    *n = b.len;
    return CN_OK;
}
