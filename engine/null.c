/* null: a model without arithmetic, so that everything but the kernels can be measured.
 *
 *   null:layers=24,vocab=50000      (docs/NULL.md: what each parameter is)
 *   null:script=tools.txt           gives the answers of the file (script.h)
 *
 * The text becomes a GGUF file in memory, which is then opened like any other: the same reader,
 * vocabulary, template, plan, pool and sampling serve it (arch/null.c has the plan). The same text
 * gives the same bytes, so that the fingerprint names the model.
 *
 * Its vocabulary is byte-level BPE: 256 bytes, two control tokens or a script's own tokens, then
 * words made of syllables, each an earlier one and a syllable more, with the merges that lead
 * there. Answers are words that begin with a space, so their text is valid UTF-8 whatever the
 * sampling. Any thread; owns nothing. */
#include "engine/null.h"

#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint64_t fallback, min, max; /* max 0: the value is a text */
} params[] = {
#define PARAM(id, name, fallback, min, max, text) {name, fallback, min, max},
#define TEXT(id, name, text)                      {name, 0, 0, 0},
#include "engine/null.def"
#undef PARAM
#undef TEXT
};
enum {
#define PARAM(id, name, fallback, min, max, text) P_##id,
#define TEXT(id, name, text)                      P_##id,
#include "engine/null.def"
#undef PARAM
#undef TEXT
    N_PARAMS
};

/* The parameters of a line. */
struct line {
    uint64_t v[N_PARAMS];
    bool given[N_PARAMS];
    struct eng_str text[N_PARAMS];
};

#define NULL_ALIGNMENT 32u
#define N_BYTES        256u
#define N_SYLLABLES    80u

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
#define TEXT(id, name, text)                      ", " name
    static const char names[] =
#include "engine/null.def"
        ;
#undef PARAM
#undef TEXT
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

static int read_param(const char *s, size_t n, struct line *l, struct cn_error *err)
{
    const char *equals = memchr(s, '=', n);
    size_t i = 0, len = equals ? (size_t)(equals - s) : n;
    while (i < N_PARAMS && (strlen(params[i].name) != len || memcmp(params[i].name, s, len)))
        i++;
    if (i == N_PARAMS) return list_params(err, "no parameter", s, len);
    if (!equals) return list_params(err, "no value (NAME=VALUE) for", s, len);
    if (l->given[i]) return list_params(err, "twice the parameter", s, len);
    l->given[i] = true;
    l->text[i] = (struct eng_str){equals + 1, n - len - 1};
    if (!params[i].max)
        return l->text[i].n ? CN_OK : list_params(err, "no value (NAME=VALUE) for", s, len);
    if (!read_number(equals + 1, l->text[i].n, &l->v[i]) || l->v[i] < params[i].min ||
        l->v[i] > params[i].max)
        return cn_fail_param(
            err, CN_ERANGE, "model",
            "null model: %s=%.*s: it must be a number from %" PRIu64 " to %" PRIu64, params[i].name,
            (int)CN_MIN(l->text[i].n, (size_t)40), l->text[i].p, params[i].min, params[i].max);
    return CN_OK;
}

static int read_line(const char *text, struct line *l, struct cn_error *err)
{
    int rc = CN_OK;
    *l = (struct line){0};
    for (size_t i = 0; i < N_PARAMS; i++)
        l->v[i] = params[i].fallback;
    const char *s = text[4] ? text + 5 : text + 4;
    while (!rc && *s) {
        size_t n = strcspn(s, ",");
        rc = read_param(s, n, l, err);
        s += n;
        if (!rc && *s == ',' && !*++s) rc = list_params(err, "no parameter", s, 0);
    }
    if (!rc && l->v[P_head_dim] % 2)
        rc = cn_fail_param(err, CN_ERANGE, "model", "null model: head_dim=%" PRIu64 " must be even",
                           l->v[P_head_dim]);
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

/* The tokens between the 256 bytes and the words: control tokens, marks, answers' tokens. */
struct own {
    const struct eng_script *script; /* NULL: ChatML's two control tokens only */
    const struct eng_str *control, *marks;
    size_t n_control, n_marks, n_answers;
    struct eng_str end, bos;
};

static struct own own_tokens(const struct eng_script *s)
{
    static const struct eng_str chatml[] = {{"<|im_start|>", 12}, {"<|im_end|>", 10}};
    if (!s) return (struct own){.control = chatml, .n_control = 2, .end = chatml[1]};
    return (struct own){.script = s,
                        .control = s->control,
                        .n_control = s->n_control,
                        .marks = s->marks,
                        .n_marks = s->n_marks,
                        .n_answers = s->n_answers + 1,
                        .end = s->end,
                        .bos = s->bos};
}

static uint64_t n_own(const struct own *o)
{
    return o->n_control + o->n_marks + o->n_answers;
}

/* A script does not change the number of words. */
static uint64_t n_words(const struct line *l)
{
    return l->v[P_vocab] - N_BYTES - 2;
}

static void put_tokens(struct cn_buf *b, uint64_t *n_keys, const struct own *o, uint64_t words)
{
    char text[16];
    uint64_t n = N_BYTES + n_own(o) + words;
    key_array(b, n_keys, "tokenizer.ggml.tokens", ENG_GGUF_STRING, n);
    for (unsigned i = 0; i < N_BYTES; i++)
        put_str(b, text, byte_text(i, text));
    for (size_t i = 0; i < o->n_control; i++)
        put_str(b, o->control[i].p, o->control[i].n);
    for (size_t i = 0; i < o->n_marks; i++)
        put_str(b, o->marks[i].p, o->marks[i].n);
    for (size_t i = 0; i < o->n_answers; i++) {
        struct eng_script_mark mark = eng_script_mark(i);
        put_str(b, mark.text, strlen(mark.text));
    }
    for (uint64_t i = 0; i < words; i++)
        put_str(b, text, word_text(i, text));
    key_array(b, n_keys, "tokenizer.ggml.token_type", ENG_GGUF_I32, n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i - N_BYTES; /* wraps around for bytes */
        bool mark = at - o->n_control < o->n_marks;
        put_u32(b, at >= n_own(o) ? ENG_TOKEN_NORMAL : mark ? ENG_TOKEN_USER : ENG_TOKEN_CONTROL);
    }
}

/* The id of a control token or mark; there are at most ENG_SCRIPT_MAX_TOKENS. */
static uint64_t id_of(const struct own *o, struct eng_str text)
{
    for (uint64_t i = 0; i < o->n_control + o->n_marks; i++) {
        struct eng_str s = i < o->n_control ? o->control[i] : o->marks[i - o->n_control];
        if (s.n == text.n && !memcmp(s.p, text.p, s.n)) return N_BYTES + i;
    }
    cn_assert(!"a token of the script is in none of its lists");
    return 0;
}

static void put_vocabulary(struct cn_buf *b, uint64_t *n_keys, const struct own *o, uint64_t words)
{
    key_str(b, n_keys, "tokenizer.ggml.model", "gpt2");
    key_str(b, n_keys, "tokenizer.ggml.pre", "gpt-2");
    put_tokens(b, n_keys, o, words);
    key_array(b, n_keys, "tokenizer.ggml.merges", ENG_GGUF_STRING, words);
    for (uint64_t i = 0; i < words; i++) {
        struct parts p = word_parts(i);
        put_u64(b, p.n_left + 1 + p.n_right);
        cn_buf_append(b, p.left, p.n_left);
        cn_buf_putc(b, ' ');
        cn_buf_append(b, p.right, p.n_right);
    }
    key_u64(b, n_keys, "tokenizer.ggml.eos_token_id", id_of(o, o->end));
    if (o->bos.n) {
        key_u64(b, n_keys, "tokenizer.ggml.bos_token_id", id_of(o, o->bos));
        put_key(b, n_keys, "tokenizer.ggml.add_bos_token", ENG_GGUF_BOOL);
        cn_buf_putc(b, 0); /* templates write it */
    }
}

static int put_template(struct cn_buf *b, uint64_t *n_keys, const struct eng_script *s)
{
    struct cn_buf text;
    cn_buf_init(&text, 0);
    int rc = s ? eng_script_chat(s, &text) : cn_buf_puts(&text, chat_template);
    const char *whole = rc ? NULL : cn_buf_cstr(&text);
    if (whole) key_str(b, n_keys, "tokenizer.chat_template", whole);
    cn_buf_fini(&text);
    return whole ? CN_OK : CN_ENOMEM;
}

static int put_keys(struct cn_buf *b, uint64_t *n_keys, const struct line *l, const struct own *o)
{
    uint64_t width = o->script ? ENG_SCRIPT_SPELLED : 1;
    key_str(b, n_keys, "general.architecture", "null");
    key_str(b, n_keys, "general.name", "null");
    key_u64(b, n_keys, "null.block_count", l->v[P_layers]);
    key_u64(b, n_keys, "null.context_length", l->v[P_context]);
    key_u64(b, n_keys, "null.embedding_length", width);
    key_u64(b, n_keys, "null.feed_forward_length", 1);
    key_u64(b, n_keys, "null.attention.head_count", l->v[P_kv_heads]);
    key_u64(b, n_keys, "null.attention.head_count_kv", l->v[P_kv_heads]);
    key_u64(b, n_keys, "null.attention.key_length", l->v[P_head_dim]);
    key_u64(b, n_keys, "null.attention.value_length", l->v[P_head_dim]);
    key_u64(b, n_keys, "null.answer_length", l->v[P_answer]);
    key_u64(b, n_keys, "null.first_answer", N_BYTES + n_own(o) + N_SYLLABLES);
    put_vocabulary(b, n_keys, o, n_words(l));
    return put_template(b, n_keys, o->script);
}

/* ---- its tensors ----------------------------------------------------------------------------- */

static uint64_t padded(uint64_t n)
{
    return (n + NULL_ALIGNMENT - 1) & ~(uint64_t)(NULL_ALIGNMENT - 1);
}

static void put_tensor(struct cn_buf *b, const char *name, uint64_t cols, uint64_t rows,
                       uint64_t *at)
{
    put_str(b, name, strlen(name));
    put_u32(b, 2);
    put_u64(b, cols);
    put_u64(b, rows);
    put_u32(b, KR_F32);
    put_u64(b, *at);
    *at += padded(cols * rows * sizeof(float));
}

static void put_values(struct cn_buf *b, const float *v, uint64_t n)
{
    static const char zeros[4096];
    uint64_t bytes = n * sizeof *v, all = padded(bytes);
    if (v) cn_buf_append(b, v, bytes);
    for (uint64_t left = v ? all - bytes : all; left && !b->failed;
         left -= CN_MIN(left, sizeof zeros))
        cn_buf_append(b, zeros, CN_MIN(left, sizeof zeros));
}

/* The embedding table gives the number of tokens; with a script (t not NULL) its rows are what
 * kr_op_follow reads, else one zero. There is a tensor of one value for each layer, because the
 * reader bounds a file's layers by its tensors. The others are the script's. */
static void put_tensors(struct cn_buf *b, const struct line *l, const struct own *o,
                        const struct eng_script_tables *t)
{
    char name[32];
    uint64_t at = 0, n_vocab = N_BYTES + n_own(o) + n_words(l);
    uint64_t width = t ? ENG_SCRIPT_SPELLED : 1;
    put_tensor(b, "token_embd.weight", width, n_vocab, &at);
    for (uint64_t i = 0; i < l->v[P_layers]; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu64 ".null", i);
        put_tensor(b, name, 1, 1, &at);
    }
    if (t) {
        put_tensor(b, "script.texts", 2, t->n, &at);
        put_tensor(b, "script.tokens", t->n, 1, &at);
        put_tensor(b, "script.rest", n_vocab, 1, &at);
    }
    while (b->len % NULL_ALIGNMENT && !b->failed)
        cn_buf_putc(b, 0);
    put_values(b, t ? t->spelled : NULL, width * n_vocab);
    for (uint64_t i = 0; i < l->v[P_layers]; i++)
        put_values(b, NULL, 1);
    if (!t) return;
    put_values(b, t->texts, 2 * t->n);
    put_values(b, t->tokens, t->n);
    put_values(b, t->rest, n_vocab);
}

/* The header and the keys. */
static void put_head(struct cn_buf *b, uint64_t n_tensors, uint64_t n_keys,
                     const struct cn_buf *keys)
{
    cn_buf_append(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
    cn_buf_append(b, keys->data, keys->len);
}

/* The tables need the vocabulary, so a file with these keys and no tensors is opened for it. */
static int make_tables(const struct eng_script *s, uint64_t n_keys, const struct cn_buf *keys,
                       struct eng_script_tables *out, struct cn_error *err)
{
    struct eng_gguf *g = NULL;
    struct eng_vocab *v = NULL;
    struct cn_buf b;
    cn_buf_init(&b, 0);
    put_head(&b, 0, n_keys, keys);
    int rc = b.failed ? cn_fail(err, CN_ENOMEM, "out of memory")
                      : eng_gguf_open_memory(b.data, b.len, "null", &g, err);
    if (!rc) rc = eng_gguf_vocab(g, &v, err);
    if (!rc) rc = eng_script_tables(s, v, out, err);
    eng_vocab_free(v);
    eng_gguf_close(g);
    cn_buf_fini(&b);
    return rc;
}

static int make_file(const struct line *l, const struct eng_script *s, struct cn_buf *out,
                     struct cn_error *err)
{
    struct own own = own_tokens(s);
    struct eng_script_tables tables = {0};
    uint64_t n_keys = 0;
    struct cn_buf keys;
    cn_buf_init(&keys, 0);
    int rc = put_keys(&keys, &n_keys, l, &own);
    if (rc || keys.failed) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc && s) rc = make_tables(s, n_keys, &keys, &tables, err);
    if (!rc) {
        put_head(out, l->v[P_layers] + (s ? 4 : 1), n_keys, &keys);
        put_tensors(out, l, &own, s ? &tables : NULL);
        if (out->failed) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    }
    eng_script_tables_fini(&tables);
    cn_buf_fini(&keys);
    return rc;
}

int eng_null_file(const char *text, void **data, size_t *n, struct cn_error *err)
{
    struct eng_script script = {0};
    struct line line;
    struct cn_buf b;
    int rc = read_line(text, &line, err);
    struct eng_str at = line.text[P_script];
    if (rc) return rc;
    cn_buf_init(&b, 0);
    if (at.n) {
        char *path = strndup(at.p, at.n);
        rc = path ? eng_script_read(path, &script, err) : cn_fail(err, CN_ENOMEM, "out of memory");
        free(path);
    }
    if (!rc) rc = make_file(&line, at.n ? &script : NULL, &b, err);
    eng_script_fini(&script);
    if (rc) {
        cn_buf_fini(&b);
        return rc;
    }
    *data = b.data;
    *n = b.len;
    return CN_OK;
}
