/* engine/text: a vocabulary: the tokens' texts and what they stand for, and the tables that
 * tokenising needs. Built from what a file says, none of which is trusted: texts may be empty,
 * doubled or not UTF-8, ids and types anything. Owns all its memory; immutable once built (see
 * vocab_impl.h), so that any thread may use it. */
#include "engine/text/vocab_impl.h"

#include "engine/text/grammar/trie.h"

#include <stdlib.h>

static const char space_mark[] = "\xE2\x96\x81";

/* ---- accessors ------------------------------------------------------------------------------- */

size_t eng_vocab_size(const struct eng_vocab *v)
{
    return v->n;
}

int64_t eng_vocab_bos(const struct eng_vocab *v)
{
    return v->bos;
}

int64_t eng_vocab_eos(const struct eng_vocab *v)
{
    return v->eos;
}

bool eng_vocab_adds_bos(const struct eng_vocab *v)
{
    return v->add_bos;
}

bool eng_vocab_is_eog(const struct eng_vocab *v, uint32_t id)
{
    return id < v->n && (v->flags[id] & ENG_TF_EOG);
}

const uint32_t *eng_vocab_eog(const struct eng_vocab *v, size_t *n)
{
    *n = v->n_eog;
    return v->eog;
}

bool eng_vocab_is_control(const struct eng_vocab *v, uint32_t id)
{
    return id < v->n && (v->flags[id] & ENG_TF_CONTROL);
}

struct eng_str eng_vocab_text(const struct eng_vocab *v, uint32_t id)
{
    cn_assert(id < v->n);
    return eng_key(&v->texts, id);
}

static struct eng_str text_or_none(const struct eng_vocab *v, int64_t id)
{
    return id >= 0 ? eng_vocab_text(v, (uint32_t)id) : (struct eng_str){"", 0};
}

struct eng_str eng_vocab_bos_text(const struct eng_vocab *v)
{
    return text_or_none(v, eng_vocab_bos(v));
}

struct eng_str eng_vocab_eos_text(const struct eng_vocab *v)
{
    return text_or_none(v, eng_vocab_eos(v));
}

struct eng_str eng_vocab_piece(const struct eng_vocab *v, uint32_t id, bool special)
{
    cn_assert(id < v->n);
    if (!special && (v->flags[id] & ENG_TF_CONTROL)) return (struct eng_str){"", 0};
    return eng_key(&v->pieces, id);
}

int64_t eng_vocab_find(const struct eng_vocab *v, const char *text, size_t n)
{
    uint32_t id = eng_strmap_get(&v->by_text, &v->texts, text, n);
    return id == ENG_NO_ID ? -1 : (int64_t)id;
}

void eng_vocab_free(struct eng_vocab *v)
{
    if (!v) return;
    eng_keys_fini(&v->texts);
    eng_keys_fini(&v->pieces);
    eng_keys_fini(&v->syms);
    eng_strmap_fini(&v->by_text);
    eng_strmap_fini(&v->by_sym);
    eng_pretok_free(v->pre);
    eng_special_free(v->special);
    eng_joints_fini(&v->joints);
    for (size_t i = 0; v->spares && i < CN_ARRAY_LEN(v->spares->spare); i++)
        eng_merge_free(v->spares->spare[i]);
    if (v->spares) eng_trie_free(v->spares->trie);
    free(v->spares);
    free(v->type);
    free(v->flags);
    free(v->rank);
    free(v->eog);
    free(v->pairs.slot);
    free(v->pairs.maybe);
    free((void *)v->whole);
    free(v);
}

/* ---- building -------------------------------------------------------------------------------- */

static int list_eog(struct eng_vocab *v)
{
    size_t cap = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        if (!(v->flags[id] & ENG_TF_EOG)) continue;
        if (cn_grow(&v->eog, &cap, v->n_eog + 1, sizeof *v->eog)) return CN_ENOMEM;
        v->eog[v->n_eog++] = id;
    }
    return 0;
}

static int copy_texts(struct eng_vocab *v, const struct eng_vocab_spec *spec)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        if (!cn_add_u64(bytes, spec->tokens[i].n, &bytes) || bytes > UINT32_MAX) return CN_ELIMIT;
    }
    int rc = eng_keys_init(&v->texts, v->n, bytes);
    if (rc == 0) rc = eng_keys_init(&v->pieces, v->n, bytes);
    if (rc == 0) rc = eng_keys_init(&v->syms, v->n, bytes);
    if (rc == 0) rc = eng_strmap_init(&v->by_text, v->n);
    for (uint32_t i = 0; i < v->n && rc == 0; i++) {
        rc = eng_keys_add(&v->texts, spec->tokens[i].p, spec->tokens[i].n);
        if (rc == 0 && spec->tokens[i].n) rc = eng_strmap_put(&v->by_text, &v->texts, i, NULL);
    }
    return rc;
}

static int copy_types(struct eng_vocab *v, const struct eng_vocab_spec *spec)
{
    v->type = cn_malloc_array(v->n, 1);
    v->flags = cn_calloc(v->n, 1);
    v->whole = cn_calloc(v->n, sizeof *v->whole);
    v->rank = v->model == ENG_MODEL_SPM ? cn_malloc_array(v->n, sizeof *v->rank) : NULL;
    if (!v->type || !v->flags || !v->whole || (v->model == ENG_MODEL_SPM && !v->rank))
        return CN_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++) {
        int32_t t = spec->types ? spec->types[i] : ENG_TOKEN_NORMAL;
        v->type[i] = t >= 0 && t <= ENG_TOKEN_BYTE ? (uint8_t)t : ENG_TOKEN_UNDEFINED;
        if (v->rank) v->rank[i] = eng_spm_rank(spec->scores ? spec->scores[i] : 0.0f);
    }
    return 0;
}

/* The value of "<0xHH>", or -1. */
static int byte_of(struct eng_str s)
{
    int value = 0;
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = s.p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* U+2581 to spaces, in place of the copy in buf. */
static size_t unescape(struct eng_str s, char *buf)
{
    size_t w = 0;
    for (size_t i = 0; i < s.n;) {
        if (i + 3 <= s.n && memcmp(s.p + i, space_mark, 3) == 0) {
            buf[w++] = ' ';
            i += 3;
        } else {
            buf[w++] = s.p[i++];
        }
    }
    return w;
}

/* One token's rendered bytes and its symbol; both have an entry for every id, be it empty. */
static int add_token(struct eng_vocab *v, uint32_t id, char *buf)
{
    struct eng_str s = eng_key(&v->texts, id);
    bool literal = (v->flags[id] & ENG_TF_CONTROL) || v->type[id] == ENG_TOKEN_USER;
    struct eng_str piece = s, sym = s;
    size_t n = 0;
    int byte = v->type[id] == ENG_TOKEN_BYTE ? byte_of(s) : -1;
    if (v->model == ENG_MODEL_BPE) {
        bool mapped = eng_bytes_unmap(s.p, s.n, buf, &n);
        sym = mapped ? (struct eng_str){buf, n} : (struct eng_str){buf, 0};
        if (mapped && !literal) piece = sym;
    } else if (!literal) {
        piece = (struct eng_str){buf, unescape(s, buf)};
    }
    if (byte >= 0) {
        buf[0] = (char)byte;
        piece = (struct eng_str){buf, 1};
        sym.n = 0;
    }
    if (cn_utf8_valid_len(piece.p, piece.n) == piece.n) v->flags[id] |= ENG_TF_VALID;
    int rc = eng_keys_add(&v->pieces, piece.p, piece.n);
    return rc ? rc : eng_keys_add(&v->syms, sym.p, sym.n);
}

/* Tokens that text may become, ordinary ones before user-defined ones of the same bytes. */
static int index_symbols(struct eng_vocab *v)
{
    int rc = eng_strmap_init(&v->by_sym, v->n);
    bool marks = v->model == ENG_MODEL_SPM || v->model == ENG_MODEL_BPE_RAW;
    if (rc == 0) rc = eng_joints_init(&v->joints, v->n, marks);
    v->spares = cn_calloc(1, sizeof *v->spares);
    if (rc == 0 && !v->spares) rc = CN_ENOMEM;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t id = 0; id < v->n && rc == 0; id++) {
            struct eng_str s = eng_key(&v->syms, id);
            if (s.n == 0 || (v->flags[id] & ENG_TF_CONTROL) || v->type[id] == ENG_TOKEN_BYTE ||
                (v->type[id] == ENG_TOKEN_USER) != (pass == 1))
                continue;
            rc = eng_strmap_put(&v->by_sym, &v->syms, id, NULL);
            v->max_sym = CN_MAX(v->max_sym, s.n);
            eng_joints_add(&v->joints, s);
        }
    }
    return rc;
}

/* For a byte that no token stands for. Some files name the end of the text as their unknown token:
 * then the byte is left out, for a client's text never becomes a control token. One that is only
 * called unknown is meant for it. */
static uint32_t unknown_byte(const struct eng_vocab *v)
{
    if (v->unk < 0 || (v->flags[v->unk] & ENG_TF_EOG)) return ENG_NO_ID;
    bool control = v->flags[v->unk] & ENG_TF_CONTROL;
    if (control && v->type[v->unk] != ENG_TOKEN_UNKNOWN) return ENG_NO_ID;
    return (uint32_t)v->unk;
}

static void byte_ids(struct eng_vocab *v)
{
    for (uint32_t id = v->n; v->model != ENG_MODEL_BPE && id-- > 0;) {
        int b = v->type[id] == ENG_TOKEN_BYTE ? byte_of(eng_key(&v->texts, id)) : -1;
        if (b >= 0) v->byte_id[b] = id;
    }
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b, text[8];
        if (v->byte_id[b] != ENG_NO_ID) continue;
        uint32_t id = ENG_NO_ID;
        if (v->model != ENG_MODEL_BPE) { /* files without types */
            snprintf(text, sizeof text, "<0x%02X>", b);
            id = eng_strmap_get(&v->by_text, &v->texts, text, 6);
        }
        if (id == ENG_NO_ID) id = eng_strmap_get(&v->by_sym, &v->syms, &c, 1);
        if (id >= v->n) id = unknown_byte(v);
        v->byte_id[b] = id;
    }
}

static int build_tokens(struct eng_vocab *v)
{
    size_t longest = 0;
    for (uint32_t id = 0; id < v->n; id++)
        longest = CN_MAX(longest, eng_key(&v->texts, id).n);
    char *buf = cn_malloc_array(longest + 1, 1);
    if (!buf) return CN_ENOMEM;
    int rc = 0;
    for (uint32_t id = 0; id < v->n && rc == 0; id++)
        rc = add_token(v, id, buf);
    free(buf);
    if (rc == 0) rc = index_symbols(v);
    return rc;
}

/* Old files of Llama 3 say "default" or nothing. */
static int choose_pre(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err)
{
    const char *name = spec->pre;
    if (strcmp(spec->model, "gemma4") == 0) name = "gemma4";
    if (!name || !*name || strcmp(name, "default") == 0) {
        bool llama3 = eng_vocab_find(v, "<|eot_id|>", 10) == 128009;
        cn_log(CN_LOG_WARN, "text", "the file names no pre-tokeniser; using %s",
               llama3 ? "llama-bpe"
                      : "a default that may not be the model's own: answers can be "
                        "worse");
        name = llama3 ? "llama-bpe" : "default";
    }
    int rc = eng_pretok_new(name, true, &v->pre, err);
    if (rc) return rc;
    unsigned flags = eng_pretok_flags(v->pre);
    if (flags & ENG_PRE_RAW) v->model = ENG_MODEL_BPE_RAW;
    v->ignore_merges = flags & ENG_PRE_IGNORE_MERGES;
    v->newlines_whole = flags & ENG_PRE_NL_WHOLE;
    return 0;
}

static int build(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err)
{
    v->n = (uint32_t)spec->n_tokens;
    v->model = strcmp(spec->model, "llama") == 0  ? ENG_MODEL_SPM
               : strcmp(spec->model, "bert") == 0 ? ENG_MODEL_WPM
                                                  : ENG_MODEL_BPE;
    memset(v->byte_id, 0xff, sizeof v->byte_id);
    int rc = copy_texts(v, spec);
    if (rc == 0 && v->model == ENG_MODEL_BPE) {
        rc = choose_pre(v, spec, err);
        if (rc) return rc;
    }
    if (rc == 0) rc = copy_types(v, spec);
    if (rc == 0) {
        rc = eng_vocab_rules(v, spec, err);
        if (rc) return rc;
        rc = list_eog(v);
        if (rc == 0) rc = build_tokens(v);
    }
    if (rc == 0) byte_ids(v);
    if (rc == 0 && (v->model == ENG_MODEL_BPE || v->model == ENG_MODEL_BPE_RAW)) {
        rc = eng_bpe_load(v, spec, err);
        if (rc) return rc;
    }
    if (rc == 0) rc = eng_special_new(v, &v->special);
    if (rc)
        return cn_fail_param(err, rc, "tokenizer.ggml.tokens",
                             rc == CN_ELIMIT ? "the tokens' texts are too long together"
                                             : "the vocabulary does not fit in memory");
    return 0;
}

int eng_vocab_new(const struct eng_vocab_spec *spec, struct eng_vocab **out, struct cn_error *err)
{
    static const char *const models[] = {"llama", "gpt2", "gemma4", "bert"};
    bool known = false;
    if (!spec->model)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.model", "the key is missing");
    for (size_t i = 0; i < CN_ARRAY_LEN(models); i++)
        known |= strcmp(spec->model, models[i]) == 0;
    if (!known)
        return cn_fail_param(err, CN_EUNSUPP, "tokenizer.ggml.model",
                             "tokenizer model '%.60s' is not supported; supported are llama, gpt2, "
                             "gemma4 and bert",
                             spec->model);
    if (spec->n_tokens == 0 || spec->n_tokens > INT32_MAX)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.tokens", "%zu tokens",
                             spec->n_tokens);
    struct eng_vocab *v = cn_calloc(1, sizeof *v);
    if (!v) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = build(v, spec, err);
    if (rc) {
        eng_vocab_free(v);
        return rc;
    }
    *out = v;
    return 0;
}
