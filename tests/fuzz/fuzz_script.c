/* Fuzz target: the script of a null model, up to the model's file: parser, vocabulary, chat
 * template and the tensors that answers are followed by. */
#include "engine/gguf.h"
#include "engine/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const float *tensor(const struct eng_gguf *g, const char *name, uint64_t *rows)
{
    const struct kr_tensor *t = eng_gguf_find(g, name);
    cn_assert(t && t->type == KR_F32 && t->bytes == t->ne[0] * t->ne[1] * sizeof(float));
    if (rows) *rows = t->ne[1];
    return t->data;
}

/* Every text has an end; the next mark is in the same text; every token exists. */
static void check_texts(const struct eng_gguf *g, size_t n_vocab, size_t n_answers)
{
    uint64_t n, ends = 0;
    const float *texts = tensor(g, "script.texts", &n), *tokens = tensor(g, "script.tokens", NULL);
    float mark = 0;
    cn_assert(n > 1 && texts[0] == -1 && texts[2 * (n - 1)] == -1);
    for (uint64_t p = n; p-- > 0;) {
        float unit = texts[2 * p];
        ends += unit == -1;
        if (unit == -1) mark = 0;
        if (unit >= ENG_SCRIPT_FIRST) mark = (float)p;
        cn_assert(texts[2 * p + 1] == mark);
        cn_assert((unit == -1) == (tokens[p] == -1));
        cn_assert(tokens[p] < (float)n_vocab && unit < (float)n_vocab);
    }
    cn_assert(ends == n_answers + 2); /* place 0, and the answer where no other fits */
}

static void check_model(const struct eng_gguf *g, const struct eng_script *s)
{
    struct eng_vocab *v;
    struct eng_template *t;
    struct cn_error err = {0};
    int rc = eng_gguf_vocab(g, &v, &err);
    cn_assert(!rc);
    cn_assert(eng_vocab_is_eog(v, (uint32_t)eng_vocab_find(v, s->end.p, s->end.n)));
    check_texts(g, eng_vocab_size(v), s->n_answers);
    rc = eng_gguf_template(g, &t, &err);
    cn_assert(!rc || rc == CN_ETEMPLATE);
    if (!rc) eng_template_free(t);
    eng_vocab_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct eng_script s;
    struct eng_gguf *g;
    struct cn_error err = {0}, again = {0};
    struct cn_buf text;
    char path[64];
    cn_buf_init(&text, 0);
    cn_assert(!cn_buf_append(&text, data, n));
    int rc = eng_script_parse(&text, &s, &err);
    cn_assert(rc == err.code && (rc != 0) == (err.message[0] != 0) && !text.data);
    if (!rc && s.template_path.n) { /* files of this machine are not the fuzzer's to open */
        eng_script_fini(&s);
        return 0;
    }
    int fd = memfd_create("script", 0);
    cn_assert(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "null:vocab=512,script=/proc/self/fd/%d", fd);
    cn_assert(eng_gguf_open(path, &g, &again) == rc && !strcmp(again.message, err.message));
    close(fd);
    if (rc) return 0;
    check_model(g, &s);
    eng_gguf_close(g);
    eng_script_fini(&s);
    return 0;
}
