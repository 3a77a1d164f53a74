/* Fuzz target of chat templates: the bytes up to the first NUL are a template, the rest is a
 * client's text. Whatever they are, compiling and rendering end, in an error or a text whose spans
 * are sound; and so with the last message left open, where the text ends in what the client wrote,
 * white space at its ends aside. */
#include "engine/text/text.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct eng_rendered *r)
{
    size_t last = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        cn_assert(r->spans[i].end > last);
        cn_assert(!i || r->spans[i].trusted != r->spans[i - 1].trusted);
        last = r->spans[i].end;
    }
    cn_assert(last == r->text.len);
    cn_assert(cn_utf8_valid_len(r->text.data ? r->text.data : "", r->text.len) == r->text.len);
}

/* The length without controls and spaces at the end. */
static size_t end_of(const char *s, size_t n)
{
    while (n && (unsigned char)s[n - 1] <= ' ')
        n--;
    return n;
}

static void go_on(const struct eng_template *t, struct eng_template_in in, json_t *text)
{
    const char *content = json_string_value(text);
    struct eng_rendered r = {0};
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:O}]", "role", "user", "content", "Q", "role",
                                 "assistant", "content", text);

    in.messages = messages;
    in.add_generation_prompt = false;
    if (!eng_template_continue(t, &in, &r, NULL)) {
        size_t n = end_of(content, json_string_length(text));
        check(&r);
        if (n && (unsigned char)content[n - 1] < 0x80) {
            size_t at = end_of(r.text.data, r.text.len);
            cn_assert(at && r.text.data[at - 1] == content[n - 1]);
        }
        eng_rendered_fini(&r);
    }
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size;
    struct eng_template *t = NULL;
    if (eng_template_new((const char *)data, n, &t, NULL)) return 0;
    json_t *text = json_stringn(nul ? (const char *)nul + 1 : "", nul ? size - n - 1 : 0);
    if (!text) text = json_string("<|x|> \xc3\xa9");
    json_t *messages = json_pack("[{s:s,s:O},{s:s,s:[O,i,f,b,n]}]", "role", "user", "content", text,
                                 "role", "assistant", "content", text, 7, -2.5, 1);
    json_t *kwargs = json_pack("{s:O,s:i,s:f,s:[O,s],s:{s:O,s:i}}", "s", text, "n", 42, "f", 1.5,
                               "l", text, "a", "d", "a", text, "b", 1);
    struct eng_template_in in = {.messages = messages,
                                 .kwargs = kwargs,
                                 .add_generation_prompt = true,
                                 .bos_token = {"<s>", 3},
                                 .eos_token = {"</s>", 4},
                                 .now_s = 1767323045,
                                 .limits = {.max_steps = 5000,
                                            .max_output_bytes = 1 << 16,
                                            .max_memory_bytes = 1 << 22,
                                            .max_ns = 1000000000}};
    struct eng_rendered r = {0};
    if (!eng_template_render(t, &in, &r, NULL)) {
        check(&r);
        eng_rendered_fini(&r);
    }
    go_on(t, in, text);
    json_decref(messages);
    json_decref(kwargs);
    json_decref(text);
    eng_template_free(t);
    return 0;
}
