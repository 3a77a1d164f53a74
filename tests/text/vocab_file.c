/* A small independent reader of GGUF's key section (version 3, little-endian), for tests only. */
#include "tests/text/vocab_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STR, T_ARR, T_U64, T_I64, T_F64 };
static const size_t type_size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct in {
    const char *p, *end;
    bool bad;
};

static const char *take(struct in *in, size_t n)
{
    static const char none[8];
    if ((size_t)(in->end - in->p) < n) {
        in->bad = true;
        return none;
    }
    in->p += n;
    return in->p - n;
}

static uint64_t number(struct in *in, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, take(in, n), n);
    return v;
}

static struct eng_str string(struct in *in)
{
    struct eng_str s;
    s.n = number(in, 8);
    s.p = take(in, s.n);
    if (in->bad) s.n = 0;
    return s;
}

static char *copy(struct eng_str s)
{
    char *c = malloc(s.n + 1);
    memcpy(c, s.p, s.n);
    c[s.n] = '\0';
    return c;
}

static struct eng_str *strings(struct in *in, size_t n)
{
    struct eng_str *v = calloc(n + 1, sizeof *v);
    for (size_t i = 0; i < n && !in->bad; i++)
        v[i] = string(in);
    return v;
}

static void *numbers(struct in *in, size_t n)
{
    void *v = malloc(4 * n + 4);
    memcpy(v, take(in, 4 * n), in->bad ? 0 : 4 * n);
    return v;
}

static void array(struct vocab_file *f, struct in *in, const char *key)
{
    uint32_t type = (uint32_t)number(in, 4);
    size_t n = number(in, 8);
    if (strcmp(key, "tokens") == 0 && type == T_STR) {
        f->spec.tokens = strings(in, n);
        f->spec.n_tokens = n;
    } else if (strcmp(key, "merges") == 0 && type == T_STR) {
        f->spec.merges = strings(in, n);
        f->spec.n_merges = n;
    } else if (strcmp(key, "scores") == 0 && type == T_F32) {
        f->spec.scores = numbers(in, n);
    } else if (strcmp(key, "token_type") == 0 && type == T_I32) {
        f->spec.types = numbers(in, n);
    } else if (type == T_STR) {
        free(strings(in, n));
    } else {
        take(in, type > T_F64 ? SIZE_MAX : n * type_size[type]);
    }
}

static void scalar(struct vocab_file *f, const char *key, uint64_t v)
{
    struct eng_vocab_spec *s = &f->spec;
    const struct {
        const char *key;
        int64_t *id;
    } ids[] = {
        {"bos_token_id", &s->bos},         {"eos_token_id", &s->eos},
        {"eot_token_id", &s->eot},         {"eom_token_id", &s->eom},
        {"unknown_token_id", &s->unk},     {"seperator_token_id", &s->sep},
        {"padding_token_id", &s->pad},     {"fim_pre_token_id", &s->fim_pre},
        {"fim_suf_token_id", &s->fim_suf}, {"fim_mid_token_id", &s->fim_mid},
        {"fim_pad_token_id", &s->fim_pad}, {"fim_rep_token_id", &s->fim_rep},
        {"fim_sep_token_id", &s->fim_sep},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        if (strcmp(key, ids[i].key) == 0) *ids[i].id = (int64_t)v;
    }
    if (strcmp(key, "add_bos_token") == 0) s->add_bos = v != 0;
    if (strcmp(key, "add_eos_token") == 0) s->add_eos = v != 0;
    if (strcmp(key, "add_space_prefix") == 0) s->add_space_prefix = v != 0;
}

static void entry(struct vocab_file *f, struct in *in)
{
    static const char prefix[] = "tokenizer.ggml.";
    char *key = copy(string(in));
    bool ours = strncmp(key, prefix, sizeof prefix - 1) == 0;
    const char *name = ours ? key + sizeof prefix - 1 : "";
    uint32_t type = (uint32_t)number(in, 4);
    if (type == T_ARR) {
        array(f, in, name);
    } else if (type == T_STR) {
        struct eng_str s = string(in);
        if (strcmp(name, "model") == 0) f->spec.model = f->model = copy(s);
        if (strcmp(name, "pre") == 0) f->spec.pre = f->pre = copy(s);
        if (strcmp(key, "general.name") == 0) f->spec.general_name = f->name = copy(s);
    } else {
        if (type > T_F64)
            in->bad = true;
        else
            scalar(f, name, number(in, type_size[type]));
    }
    free(key);
}

char *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    *n = fread(data, 1, (size_t)size, file);
    data[*n] = '\0';
    fclose(file);
    return data;
}

bool vocab_file_read(struct vocab_file *f, const char *path)
{
    *f = (struct vocab_file){.spec = {.bos = -1,
                                      .eos = -1,
                                      .eot = -1,
                                      .eom = -1,
                                      .unk = -1,
                                      .sep = -1,
                                      .pad = -1,
                                      .fim_pre = -1,
                                      .fim_suf = -1,
                                      .fim_mid = -1,
                                      .fim_pad = -1,
                                      .fim_rep = -1,
                                      .fim_sep = -1,
                                      .add_bos = -1,
                                      .add_eos = -1,
                                      .add_space_prefix = -1}};
    f->data = read_file(path, &f->size);
    if (!f->data) return false;
    struct in in = {f->data, f->data + f->size, false};
    bool good = memcmp(take(&in, 4), "GGUF", 4) == 0 && number(&in, 4) == 3;
    number(&in, 8);
    uint64_t n_kv = number(&in, 8);
    for (uint64_t i = 0; i < n_kv && good && !in.bad; i++)
        entry(f, &in);
    if (good && !in.bad && f->spec.model && f->spec.n_tokens) return true;
    vocab_file_fini(f);
    return false;
}

void vocab_file_fini(struct vocab_file *f)
{
    free((void *)f->spec.tokens);
    free((void *)f->spec.merges);
    free((void *)f->spec.scores);
    free((void *)f->spec.types);
    free(f->model);
    free(f->pre);
    free(f->name);
    free(f->data);
    *f = (struct vocab_file){0};
}

static const char *oracle(void)
{
    const char *set = getenv("CONIFER_ORACLE");
    return set ? set : CONIFER_SOURCE_ROOT "/../shared/oracle";
}

const char *vocab_path(const char *name, const char *suffix)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf%s", oracle(), name, suffix);
    return path;
}

bool vocab_here(void)
{
    return access(oracle(), R_OK) == 0;
}

struct eng_vocab *vocab_open(const char *name)
{
    struct vocab_file f;
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    if (!vocab_file_read(&f, vocab_path(name, ""))) return NULL;
    if (eng_vocab_new(&f.spec, &v, &err)) {
        fprintf(stderr, "%s: %s\n", name, err.message);
        abort();
    }
    vocab_file_fini(&f);
    return v;
}
