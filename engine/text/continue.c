/* Renders a conversation whose last message the model continues. Templates have no such mode: a
 * mark is appended to the message's content, and the rendered text is cut where the mark
 * appears. The mark is random, so that no client can write it. It ends in a space; if that is
 * missing from the output, the template trims content. The reference (transformers) does the
 * same. */
#include "engine/text/jinja/value.h"

#include <stdlib.h>
#include <string.h>

enum { MARK = 32 };

static int open_end(struct cn_error *err, const char *why)
{
    return cn_fail_param(err, CN_EINVAL, "continue_final_message", "continue_final_message: %s",
                         why);
}

static struct eng_str trimmed(struct eng_str s, bool end)
{
    while (s.n) {
        uint32_t cp = 0;
        size_t at = end ? s.n - 1 : 0;
        while (at && ((unsigned char)s.p[at] & 0xc0) == 0x80)
            at--;
        size_t n = cn_utf8_decode(s.p + at, s.n - at, &cp);
        if (!n || !eng_j_is_space(cp)) break;
        s.n -= n;
        if (!end) s.p += n;
    }
    return s;
}

/* Where the mark, without its space, appears; NULL if it appears nowhere or more than once. */
static char *find(const struct cn_buf *text, const char *mark)
{
    if (!text->len) return NULL;
    char *end = text->data + text->len;
    char *at = memmem(text->data, text->len, mark, MARK);

    return at && memmem(at + MARK, (size_t)(end - at) - MARK, mark, MARK) ? NULL : at;
}

static void cut(struct eng_rendered *r, size_t n)
{
    r->text.len = n;
    while (r->n_spans > 1 && r->spans[r->n_spans - 2].end >= n)
        r->n_spans--;
    if (n)
        r->spans[r->n_spans - 1].end = n;
    else
        r->n_spans = 0;
}

/* Cuts the text behind the content, which must be there as the client wrote it. */
static int cut_at_mark(struct eng_rendered *r, struct eng_str content, const char *mark,
                       struct cn_error *err)
{
    static const char lost[] =
        "the chat template does not write the last message once and as it is";
    char *at = find(&r->text, mark);
    if (!at) return open_end(err, lost);
    size_t n = (size_t)(at - r->text.data);
    bool trims = n + MARK == r->text.len || at[MARK] != ' ';
    struct eng_str core = trimmed(content, false); /* many drop what stands before it */

    if (core.n > n || memcmp(at - core.n, core.p, core.n)) return open_end(err, lost);
    if (trims) n -= core.n - trimmed(core, true).n;
    cut(r, n);
    return 0;
}

/* The message's last text: its content, or that of the last part that has one; NULL: it has none.
 */
static json_t *last_text(const json_t *message)
{
    json_t *content = json_object_get(message, "content"), *text = NULL;

    if (json_is_string(content)) return content;
    for (size_t i = json_array_size(content); !json_is_string(text) && i > 0; i--)
        text = json_object_get(json_array_get(content, i - 1), "text");
    return json_is_string(text) ? text : NULL;
}

/* A copy of the messages in which that text is marked; NULL when memory is out. */
static json_t *marked(const json_t *messages, const json_t *text, const char *mark)
{
    size_t n = json_array_size(messages);
    json_t *out = json_copy((json_t *)messages);
    json_t *last = json_copy(json_array_get(messages, n - 1)), *to;
    struct cn_buf b;

    cn_buf_init(&b, 0);
    cn_buf_append(&b, json_string_value(text), json_string_length(text));
    cn_buf_append(&b, mark, MARK);
    cn_buf_putc(&b, ' ');
    bool ok = out && last && !b.failed &&
              json_object_set_new(last, "content",
                                  json_deep_copy(json_object_get(last, "content"))) == 0 &&
              (to = last_text(last)) && json_string_setn(to, b.data, b.len) == 0 &&
              json_array_set(out, n - 1, last) == 0;
    cn_buf_fini(&b);
    json_decref(last);
    if (ok) return out;
    json_decref(out);
    return NULL;
}

int eng_template_continue(const struct eng_template *t, const struct eng_template_in *in,
                          struct eng_rendered *out, struct cn_error *err)
{
    size_t n = json_array_size(in->messages);
    const json_t *text = last_text(json_array_get(in->messages, n - 1));
    uint8_t key[MARK / 2];
    char mark[MARK + 1];

    if (!text) return open_end(err, "the last message has no content to continue");
    struct eng_str content = {json_string_value(text), json_string_length(text)};
    cn_random(key, sizeof key);
    cn_hex(key, sizeof key, mark);
    struct eng_template_in with = *in;
    with.messages = marked(in->messages, text, mark);
    if (!with.messages) return cn_fail(err, CN_ENOMEM, "chat template: out of memory");
    int rc = eng_template_render(t, &with, out, err);
    json_decref(with.messages);
    if (rc) return rc;
    rc = cut_at_mark(out, content, mark, err);
    if (rc) eng_rendered_fini(out);
    return rc;
}
