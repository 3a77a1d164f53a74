/* script: the chat template of a null model with a script. Code around the family's template
 * chooses the answer: it counts the assistant's messages and writes the fitting answer's token at
 * the end of the generation prompt. If the prompt ends with a mark of reasoning, the token comes
 * before that mark, because parsers of replies look at the prompt's end. Any thread; owns nothing.
 */
#include "engine/script.h"

#include <stdio.h>
#include <string.h>

/* The form of Hermes and Qwen: ChatML; calls are JSON between <tool_call> marks; results are a
 * user's message between <tool_response> marks; reasoning is between <think> marks. */
static const char chatml[] =
    "{%- macro text(content) -%}\n"
    "{%- if content is string -%}{{ content }}\n"
    "{%- elif content is iterable and content is not mapping -%}\n"
    "{%- for part in content -%}{%- if part.text is defined -%}{{ part.text }}{%- endif -%}{%- "
    "endfor -%}\n"
    "{%- endif -%}\n"
    "{%- endmacro -%}\n"
    "{%- set first = messages[0] if messages else none -%}\n"
    "{%- if tools -%}\n"
    "{{- '<|im_start|>system\\n' -}}\n"
    "{%- if first and first.role == 'system' -%}{{ text(first.content) ~ '\\n\\n' }}{%- endif -%}\n"
    "{{- '# Tools\\n\\nYou may call these functions to answer the user:\\n<tools>' -}}\n"
    "{%- for tool in tools -%}{{ '\\n' ~ (tool | tojson) }}{%- endfor -%}\n"
    "{{- '\\n</tools>\\n\\nWrite each call as a JSON object with its name and "
    "arguments:\\n<tool_call>\\n"
    "{\"name\": <name>, \"arguments\": <object>}\\n</tool_call><|im_end|>\\n' -}}\n"
    "{%- elif first and first.role == 'system' -%}\n"
    "{{- '<|im_start|>system\\n' ~ text(first.content) ~ '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for m in messages -%}\n"
    "{%- if m.role == 'tool' -%}\n"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}\n"
    "{{- '\\n<tool_response>\\n' ~ text(m.content) ~ '\\n</tool_response>' -}}\n"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}\n"
    "{%- elif m.role == 'assistant' -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if m.reasoning_content -%}{{ '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n\\n' "
    "}}{%- endif -%}\n"
    "{{- text(m.content) -}}\n"
    "{%- for call in m.tool_calls or [] -%}\n"
    "{%- set f = call.function or call -%}\n"
    "{%- if not loop.first or m.content -%}{{ '\\n' }}{%- endif -%}\n"
    "{{- '<tool_call>\\n{\"name\": ' ~ (f.name | tojson) ~ ', \"arguments\": ' -}}\n"
    "{{- f.arguments if f.arguments is string else (f.arguments | tojson) -}}\n"
    "{{- '}\\n</tool_call>' -}}\n"
    "{%- endfor -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- elif not (loop.first and m.role == 'system') -%}\n"
    "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ text(m.content) ~ '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if enable_thinking is defined and not enable_thinking -%}\n"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- endif -%}\n";

/* Follows the family's template, whose output is script_text. */
static const char choose[] =
    "{{ '' }}{% endset -%}\n"
    "{%- if not add_generation_prompt -%}\n"
    "{{- script_text -}}\n"
    "{%- else -%}\n"
    "{%- set script = namespace(turn=1, step=1, user='', mark='', cut=script_text | length) -%}\n"
    "{%- for m in messages -%}\n"
    "{%- if m.role == 'assistant' -%}\n"
    "{%- set script.turn = script.turn + 1 -%}{%- set script.step = script.step + 1 -%}\n"
    "{%- elif m.role == 'user' -%}\n"
    "{%- set script.step = 1 -%}{%- set script.user = m.content -%}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n";
/* For scripts with a `user` condition: a message's content may be a list of parts. */
static const char join_parts[] =
    "{%- if script.user is not string -%}\n"
    "{%- set parts = script.user -%}{%- set script.user = '' -%}\n"
    "{%- if parts is iterable and parts is not mapping -%}{%- for part in parts -%}\n"
    "{%- if part.text is string -%}{%- set script.user = script.user ~ part.text -%}{%- endif -%}\n"
    "{%- endfor -%}{%- endif -%}\n"
    "{%- endif -%}\n";

/* Marks that a prompt may end with. */
static const char *const ends[] = {
#define TAGS(has, open, close, skip) open, close,
#include "engine/text/reply/tags.def"
#undef TAGS
};

struct eng_script_mark eng_script_mark(size_t i)
{
    struct eng_script_mark m;
    snprintf(m.text, sizeof m.text, "<|script:%zu|>", i);
    return m;
}

/* Writes a text without newlines as a string literal of the template language. */
static void put_literal(struct cn_buf *out, struct eng_str s)
{
    cn_buf_putc(out, '\'');
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\'' || s.p[i] == '\\') cn_buf_putc(out, '\\');
        cn_buf_putc(out, s.p[i]);
    }
    cn_buf_putc(out, '\'');
}

static void put_answer(struct cn_buf *out, const struct eng_script_answer *a, size_t i)
{
    cn_buf_puts(out, "{%- if not script.mark");
    if (a->turn) cn_buf_printf(out, " and script.turn == %llu", (unsigned long long)a->turn);
    if (a->step) cn_buf_printf(out, " and script.step == %llu", (unsigned long long)a->step);
    if (a->user.n) {
        cn_buf_puts(out, " and ");
        put_literal(out, a->user);
        cn_buf_puts(out, " in script.user");
    }
    cn_buf_printf(out, " -%%}{%%- set script.mark = '%s' -%%}{%%- endif -%%}\n",
                  eng_script_mark(i).text);
}

/* A mark is written in two parts: how a model marks its replies is found in the template's source,
 * where these marks of all models must not be seen. */
static void put_mark(struct cn_buf *out, struct eng_str mark)
{
    size_t first = CN_MIN(mark.n, (size_t)1);
    cn_buf_putc(out, '(');
    put_literal(out, (struct eng_str){mark.p, first});
    cn_buf_puts(out, " ~ ");
    put_literal(out, (struct eng_str){mark.p + first, mark.n - first});
    cn_buf_putc(out, ')');
}

static void put_end(struct cn_buf *out, struct eng_str mark)
{
    cn_buf_puts(out, "{%- if end.endswith(");
    put_mark(out, mark);
    cn_buf_puts(out, ") -%}{%- set script.cut = end | length - ");
    put_mark(out, mark);
    cn_buf_puts(out, " | length -%}{%- endif -%}\n");
}

/* Only marks of the template itself: the others would be taken for marks of the family's. */
static void put_cut(struct cn_buf *out, const struct eng_script *s, struct eng_str source)
{
    cn_buf_puts(out, "{%- set end = script_text.rstrip() -%}\n");
    for (size_t i = 0; i < CN_ARRAY_LEN(ends); i++)
        if (memmem(source.p, source.n, ends[i], strlen(ends[i])))
            put_end(out, (struct eng_str){ends[i], strlen(ends[i])});
    for (size_t i = 0; i < s->n_ends; i++)
        put_end(out, s->ends[i]);
    cn_buf_puts(out, "{{- script_text[:script.cut] -}}{{- script.mark -}}"
                     "{{- script_text[script.cut:] -}}\n"
                     "{%- endif -%}\n");
}

int eng_script_chat(const struct eng_script *s, struct cn_buf *out)
{
    struct eng_str source = s->source;
    bool asks = false;
    if (!source.p) source = (struct eng_str){chatml, sizeof chatml - 1};
    /* The renderer drops a newline at the end of a template and one after a tag. So the newline
     * after the first tag here lets the template's own first line begin a line. */
    if (source.n && source.p[source.n - 1] == '\n') source.n--;
    cn_buf_puts(out, "{% set script_text %}\n");
    cn_buf_append(out, source.p, source.n);
    cn_buf_puts(out, choose);
    for (size_t i = 0; i < s->n_answers; i++)
        asks |= s->answers[i].user.n > 0;
    if (asks) cn_buf_puts(out, join_parts);
    for (size_t i = 0; i < s->n_answers; i++)
        put_answer(out, &s->answers[i], i + 1);
    cn_buf_printf(out,
                  "{%%- if not script.mark -%%}{%%- set script.mark = '%s' -%%}{%%- endif -%%}\n",
                  eng_script_mark(0).text);
    put_cut(out, s, source);
    return cn_buf_code(out);
}
