/* Fuzz target: a reply is taken apart alike however its text is cut, runs cover the text, and
 * nothing of an answer without marks is lost.
 *
 * Byte 0 chooses the format (bit 0, 1), whether the marks are tokens (bit 2) and whether the prompt
 * opened reasoning (bit 3). Of the rest the bytes 0xF0 to 0xF8 are the mark tokens; others are
 * text. */
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const marks[] = {"<|channel|>", "<|message|>",   "<|start|>",
                                    "<|end|>",     "<|constrain|>", "<think>",
                                    "</think>",    "<|channel>",    "<channel|>"};
#define N_MARKS CN_ARRAY_LEN(marks)
#define FIRST   0xF0

static struct eng_vocab *make_vocab(bool tokens)
{
    struct eng_str texts[N_MARKS + 1] = {{"a", 1}};
    int32_t types[N_MARKS + 1] = {ENG_TOKEN_NORMAL};
    for (size_t i = 0; i < N_MARKS; i++) {
        texts[i + 1] = (struct eng_str){marks[i], strlen(marks[i])};
        types[i + 1] = ENG_TOKEN_CONTROL;
    }
    struct eng_vocab_spec spec = {.model = "gpt2",
                                  .pre = "gpt-2",
                                  .tokens = texts,
                                  .types = types,
                                  .n_tokens = tokens ? N_MARKS + 1 : 6,
                                  .bos = -1,
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
                                  .add_space_prefix = -1};
    struct eng_vocab *v;
    cn_assert(!eng_vocab_new(&spec, &v, NULL));
    return v;
}

/* piece: bytes fed at once, 0 = all up to the next mark. */
static void feed(const struct eng_vocab *v, const struct eng_reply_format *f, bool opened,
                 const uint8_t *p, size_t n, size_t piece, struct eng_parts *out)
{
    struct eng_reply r;
    eng_reply_init(&r, f, opened);
    for (size_t i = 0; i < n;) {
        if (p[i] >= FIRST && p[i] < FIRST + N_MARKS) {
            const char *text = marks[p[i] - FIRST];
            int64_t id = eng_vocab_find(v, text, strlen(text));
            if (id >= 0 && eng_reply_is_mark(&r, (uint32_t)id))
                cn_assert(!eng_reply_mark(&r, (uint32_t)id, out));
            i++;
            continue;
        }
        size_t len = 1;
        while (i + len < n && p[i + len] < FIRST && (!piece || len < piece))
            len++;
        cn_assert(!eng_reply_text(&r, (const char *)p + i, len, out));
        i += len;
    }
    cn_assert(!eng_reply_finish(&r, out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const sources[] = {"<|channel|><|message|>", "</think>", "<channel|>",
                                          "</think>"};
    static struct eng_vocab *vocabs[2];
    if (!n) return 0;
    bool tokens = data[0] >> 2 & 1, opened = data[0] >> 3 & 1, marked = false;
    if (!vocabs[tokens]) vocabs[tokens] = make_vocab(tokens);
    const char *source = sources[data[0] & 3];
    struct eng_reply_format f =
        eng_reply_format(vocabs[tokens], (struct eng_str){source, strlen(source)});
    if (f.kind == ENG_REPLY_PLAIN) return 0;
    struct eng_parts want;
    eng_parts_init(&want);
    feed(vocabs[tokens], &f, opened, ++data, --n, 0, &want);
    for (size_t piece = 1; piece <= 5; piece += 2) {
        struct eng_parts got;
        eng_parts_init(&got);
        feed(vocabs[tokens], &f, opened, data, n, piece, &got);
        cn_assert(got.n_runs == want.n_runs && got.text.len == want.text.len);
        cn_assert(!got.text.len || !memcmp(got.text.data, want.text.data, got.text.len));
        for (size_t i = 0; i < got.n_runs; i++)
            cn_assert(got.runs[i].end == want.runs[i].end && got.runs[i].part == want.runs[i].part);
        eng_parts_fini(&got);
    }
    cn_assert(want.n_runs ? want.runs[want.n_runs - 1].end == want.text.len : !want.text.len);
    for (size_t i = 0; i < n; i++)
        marked |= data[i] >= FIRST || data[i] == '<' || data[i] < 3;
    if (!marked && !opened) /* no mark, all of it: the answer */
        cn_assert(want.text.len == n && (!n || !memcmp(want.text.data, data, n)));
    eng_parts_fini(&want);
    return 0;
}
