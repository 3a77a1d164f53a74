/* Fuzz target: a reply is taken apart alike however its text is cut; runs cover the text; nothing
 * of an answer is lost; calls are of offered functions, and those that are said to be whole are.
 *
 * Byte 0 chooses: without its four high bits a format of reasoning (bits 0, 1), else with tools a
 * form of calls (bits 0, 1 and the high ones); whether the marks are tokens (bit 2) and whether the
 * prompt opened reasoning (bit 3). In the rest 0xFF and a byte are one of the format's marks, as a
 * token or as text; other bytes are text. */
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What the chat template of a format has. */
static const char *const reasoning[] = {"<|channel|><|message|>", "</think>", "<channel|>",
                                        "</think>"};
static const char *const forms[] = {"<|\"|> <channel|>",
                                    "atem:",
                                    "<|channel|><|message|>",
                                    "<|tool_call:begin|>",
                                    "<|end_of_msg|>",
                                    "｜DSML｜",
                                    "｜DSML｜ </think>",
                                    "<｜tool▁calls▁begin｜> ```json",
                                    "<｜tool▁calls▁begin｜>",
                                    "<steptml:",
                                    "<|tool_calls_section_begin|>",
                                    "[TOOL_CALLS][ARGS]",
                                    "[TOOL_CALLS]",
                                    "<|tools_prefix|>",
                                    "<|START_ACTION|>",
                                    "directly_answer Action: ```json",
                                    "<|function_call|><|message_sep|>",
                                    "<|message_sep|>function call",
                                    "]<]minimax[>[",
                                    "<minimax:tool_call>",
                                    "<seed:tool_call>",
                                    "tool_sep HYTK = ':o'",
                                    "<function=<parameter=",
                                    "<arg_key>",
                                    "<TOOLCALL>",
                                    "<function=python_tag",
                                    ">>>",
                                    "<|tool_call_start|>",
                                    "<|tool_call|>",
                                    "<tool_calls>[",
                                    "<tool_call></think>",
                                    "[func_name1(",
                                    "<|eom_id|>",
                                    "<function_calls>",
                                    "<|action_start|>"};
#define MARK 0xFF

static const char tools_text[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"},\"u\":{\"type\":[\"string\",\"null\"]},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"o\":{\"type\":\"object\"}}}},"
    "{\"name\":\"get\"}]";

/* A vocabulary of the format's marks; without tokens: of nothing. */
static struct eng_vocab *make_vocab(const struct eng_reply_format *f, bool tokens)
{
    struct eng_str texts[ENG_REPLY_MARKS + 1] = {{"a", 1}};
    int32_t types[ENG_REPLY_MARKS + 1] = {ENG_TOKEN_NORMAL};
    for (size_t i = 0; i < f->n_marks; i++) {
        texts[i + 1] = (struct eng_str){f->text + f->marks[i].text, f->marks[i].n_text};
        types[i + 1] = ENG_TOKEN_CONTROL;
    }
    struct eng_vocab_spec spec = {.model = "gpt2",
                                  .pre = "gpt-2",
                                  .tokens = texts,
                                  .types = types,
                                  .n_tokens = tokens ? f->n_marks + 1 : 1,
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

struct setting {
    const struct eng_vocab *v;
    struct eng_reply_format marks; /* as text: what the bytes after MARK mean */
    struct eng_reply_format format;
    const struct eng_tools *tools;
    bool tokens, opened, lossy; /* a mark was no text and no mark */
};

static void feed_mark(struct setting *s, struct eng_reply *r, uint8_t byte, size_t piece,
                      struct eng_parts *out)
{
    if (!s->marks.n_marks) return;
    size_t i = byte % s->marks.n_marks;
    const char *text = s->marks.text + s->marks.marks[i].text;
    size_t len = s->marks.marks[i].n_text;
    int64_t id = eng_vocab_find(s->v, text, len);
    if (id > 0 && eng_reply_is_mark(r, (uint32_t)id)) {
        cn_assert(!eng_reply_mark(r, (uint32_t)id, out));
    } else if (s->tokens) {
        s->lossy = true;
    } else {
        for (size_t k = 0; k < len; k += piece ? piece : len)
            cn_assert(!eng_reply_text(r, text + k, CN_MIN(piece ? piece : len, len - k), out));
    }
}

/* piece: bytes fed at once, 0 = all up to the next mark. */
static enum eng_reply_calls feed(struct setting *s, const uint8_t *p, size_t n, size_t piece,
                                 struct eng_parts *out)
{
    struct eng_reply r;
    eng_reply_init(&r, &s->format, s->tools, s->opened ? ENG_REPLY_OPENED : ENG_REPLY_ANEW);
    for (size_t i = 0; i < n;) {
        if (p[i] == MARK) {
            if (i + 1 < n) feed_mark(s, &r, p[i + 1], piece, out);
            i += 2;
            continue;
        }
        size_t len = 1;
        while (i + len < n && p[i + len] != MARK && (!piece || len < piece))
            len++;
        cn_assert(!eng_reply_text(&r, (const char *)p + i, len, out));
        i += len;
    }
    cn_assert(!eng_reply_finish(&r, false, out));
    enum eng_reply_calls calls = eng_reply_calls(&r);
    eng_reply_fini(&r);
    return calls;
}

/* The bytes with marks spelled out. */
static void spell(const struct setting *s, const uint8_t *p, size_t n, struct cn_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != MARK) {
            cn_buf_append(out, p + i, 1);
        } else if (++i < n && s->marks.n_marks) {
            const struct eng_reply_mark *m = &s->marks.marks[p[i] % s->marks.n_marks];
            cn_buf_append(out, s->marks.text + m->text, m->n_text);
        }
    }
}

/* Whether the text is an object; what this parser does not take, lone surrogates, NUL in names and
 * bytes that are no UTF-8, is not looked at. */
static bool is_object(const char *s, size_t n)
{
    static const char *const odd[] = {"\\ud", "\\uD", "\\u0000"};
    if (cn_utf8_valid_len(s, n) != n) return true;
    for (size_t i = 0; i < CN_ARRAY_LEN(odd); i++)
        if (memmem(s, n, odd[i], strlen(odd[i]))) return true;
    json_t *j = json_loadb(s, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    bool huge = !j && (memmem(s, n, "e", 1) || memmem(s, n, "E", 1) || n > 300); /* 1e999 */
    bool is = json_is_object(j);
    json_decref(j);
    return is || huge;
}

static void check_calls(const struct eng_parts *p, enum eng_reply_calls calls)
{
    size_t at = 0, n_calls = 0, begin = 0;
    for (size_t i = 0; i < p->n_runs; at = p->runs[i++].end) {
        enum eng_part part = p->runs[i].part;
        size_t n = p->runs[i].end - at;
        const char *s = p->text.data + at;
        cn_assert(n || part == ENG_PART_CALL);
        if (part == ENG_PART_CALL) {
            cn_assert((n == 1 && *s == 'f') || (n == 3 && !memcmp(s, "get", 3)));
            n_calls++;
            begin = 1;
        } else if (part == ENG_PART_CALL_ID) {
            cn_assert(i && p->runs[i - 1].part == ENG_PART_CALL);
        } else if (part == ENG_PART_ARGUMENTS) {
            cn_assert(n_calls && *s == (begin ? '{' : *s));
            bool alone = i + 1 == p->n_runs || p->runs[i + 1].part == ENG_PART_CALL;
            if (begin && alone && calls == ENG_CALLS_WHOLE) cn_assert(is_object(s, n));
            begin = 0;
        }
    }
    cn_assert(at == p->text.len && !n_calls == (calls == ENG_CALLS_NONE));
}

/* Where only calls are marked and there are none, all of the text is the answer. */
static void check_kept(const struct setting *s, const uint8_t *p, size_t n,
                       const struct eng_parts *got)
{
    struct cn_buf want;
    cn_buf_init(&want, 0);
    spell(s, p, n, &want);
    cn_assert(got->text.len == want.len);
    cn_assert(!want.len || !memcmp(got->text.data, want.data, want.len));
    cn_buf_fini(&want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct eng_tools *tools;
    static struct setting settings[2][256];
    if (!n) return 0;
    if (!tools) {
        json_t *j = json_loads(tools_text, 0, NULL);
        cn_assert(!eng_tools_new(j, &tools, NULL));
        json_decref(j);
    }
    size_t high = data[0] >> 4, form = high ? (high - 1) * 4 + (data[0] & 3) : data[0] & 3;
    const char *source = high ? forms[form % CN_ARRAY_LEN(forms)] : reasoning[form];
    struct setting *s = &settings[data[0] >> 2 & 1][high ? 4 + form : form];
    if (!s->v) {
        struct eng_str text = {source, strlen(source)};
        s->tokens = data[0] >> 2 & 1;
        s->marks = eng_reply_format(NULL, text);
        s->v = make_vocab(&s->marks, s->tokens);
        s->format = s->tokens ? eng_reply_format(s->v, text) : s->marks;
    }
    s->tools = high ? tools : NULL;
    s->opened = data[0] >> 3 & 1 && s->format.kind == ENG_REPLY_TAGS;
    s->lossy = false;
    data++;
    n--;
    struct eng_parts want;
    eng_parts_init(&want);
    enum eng_reply_calls calls = feed(s, data, n, 0, &want);
    for (size_t piece = 1; piece <= 5; piece += 2) {
        struct eng_parts got;
        eng_parts_init(&got);
        cn_assert(feed(s, data, n, piece, &got) == calls);
        cn_assert(got.n_runs == want.n_runs && got.text.len == want.text.len);
        cn_assert(!got.text.len || !memcmp(got.text.data, want.text.data, got.text.len));
        for (size_t i = 0; i < got.n_runs; i++)
            cn_assert(got.runs[i].end == want.runs[i].end && got.runs[i].part == want.runs[i].part);
        eng_parts_fini(&got);
    }
    if (high)
        check_calls(&want, calls);
    else
        cn_assert(want.n_runs ? want.runs[want.n_runs - 1].end == want.text.len : !want.text.len);
    if (s->format.kind == ENG_REPLY_PLAIN && calls == ENG_CALLS_NONE && !s->lossy)
        check_kept(s, data, n, &want);
    bool marked = false;
    for (size_t i = 0; i < n; i++)
        marked |= data[i] == MARK || data[i] == '<' || data[i] < 3;
    if (!high && !marked && !s->opened) /* no mark, all of it: the answer */
        cn_assert(want.text.len == n && (!n || !memcmp(want.text.data, data, n)));
    eng_parts_fini(&want);
    return 0;
}
