/* One answer: the conversation as a prompt that fits the window, and what comes, as it comes. Main
 * thread; Ctrl-C stops it. */
#include "cli/run.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LEAST_S 0.01         /* in less no speed is seen */
#define IDLE_NS 100000000ull /* without more of it a word is shown before its end */

/* ---- as it comes ----------------------------------------------------------------------------- */

static void write_text(struct cli_run *r, const char *text, size_t n)
{
    r->text_ns = cn_now_ns();
    if (r->tty) {
        cli_wrap_put(&r->wrap, text, n);
    } else {
        fwrite(text, 1, n, stdout);
        fflush(stdout);
    }
}

/* Reasoning is for a person to watch, not part of the answer: dim, and only where one is
 * looking. */
static void put_thought(struct cli_run *r, const char *text, size_t n)
{
    if (!r->tty) return;
    if (!r->thinking && r->colour) fputs("\033[2m", stdout);
    r->thinking = true;
    write_text(r, text, n);
}

static void end_thought(struct cli_run *r, bool answer_follows)
{
    if (!r->thinking) return;
    cli_wrap_flush(&r->wrap);
    if (r->colour) fputs("\033[0m", stdout);
    fputs(answer_follows ? "\n\n" : "\n", stdout);
    cli_wrap_begin(&r->wrap, stdout, r->wraps);
    r->thinking = false;
    r->at_start = true;
}

/* A person sees a call as it comes; a program gets all of them at the end. */
static void end_call(struct cli_run *r)
{
    if (!r->calling) return;
    const char *end = r->arguments.depth ? " ..." : ")"; /* it was cut off */
    cli_wrap_put(&r->wrap, end, strlen(end));
    cli_wrap_flush(&r->wrap);
    putchar('\n');
    cli_wrap_begin(&r->wrap, stdout, r->wraps);
    cli_arguments_fini(&r->arguments);
    r->calling = false;
    r->at_start = true;
}

static void begin_call(struct cli_run *r, const char *name, size_t n)
{
    end_thought(r, true);
    end_call(r);
    cli_wrap_flush(&r->wrap);
    if (!r->at_start) putchar('\n');
    cli_wrap_begin(&r->wrap, stdout, false);
    write_text(r, name, n);
    write_text(r, "(", 1);
    cli_arguments_begin(&r->arguments, true);
    r->calling = true;
}

static void put_arguments(struct cli_run *r, const char *text, size_t n)
{
    struct cn_buf out;

    cn_buf_init(&out, 0);
    cli_arguments_put(&r->arguments, text, n, &out);
    if (out.failed) r->failed = true;
    if (out.len) write_text(r, out.data, out.len);
    cn_buf_fini(&out);
}

static void put_content(struct cli_run *r, const char *text, size_t n)
{
    end_thought(r, true);
    end_call(r);
    write_text(r, text, n);
    if (n) r->at_start = text[n - 1] == '\n';
}

static void on_part(void *arg, enum eng_part part, const char *text, size_t n)
{
    struct cli_run *r = arg;

    if (cli_message_take(&r->answer, part, text, n)) r->failed = true;
    switch (part) {
    case ENG_PART_CONTENT:
        put_content(r, text, n);
        break;
    case ENG_PART_REASONING:
        end_call(r);
        put_thought(r, text, n);
        break;
    case ENG_PART_CALL:
        if (r->tty) begin_call(r, text, n);
        break;
    case ENG_PART_ARGUMENTS:
        if (r->calling) put_arguments(r, text, n);
        break;
    case ENG_PART_CALL_ID:
        break;
    }
}

/* Prompt tokens that this process has read so far, computed or found in the cache. */
static uint64_t tokens_read(const struct cli_run *r)
{
    return (uint64_t)cn_metric_get(&r->stack.metrics, CN_M_prompt_tokens_computed) +
           (uint64_t)cn_metric_get(&r->stack.metrics, CN_M_prompt_tokens_cached);
}

static void on_token(void *arg)
{
    struct cli_run *r = arg;

    r->last_ns = cn_now_ns();
    if (!r->first_ns) r->first_ns = r->last_ns;
    cli_progress_end(&r->reading);
}

static bool stopped(void *arg)
{
    struct cli_run *r = arg;

    if (!r->first_ns) cli_progress_tokens(&r->reading, tokens_read(r) - r->before, r->n_prompt);
    if (r->tty && cn_now_ns() - r->text_ns > IDLE_NS) cli_wrap_idle(&r->wrap);
    return cli_interrupted;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static bool has_role(const json_t *message, const char *role)
{
    return !strcmp(json_string_value(json_object_get(message, "role")), role);
}

size_t cli_run_first(const struct cli_run *r)
{
    const json_t *m = json_array_get(r->messages, 0);
    return m && has_role(m, "system");
}

/* Copies of the messages without the oldest `skip` after the system message; NULL when out of
 * memory. */
static json_t *messages_after(const struct cli_run *r, size_t skip)
{
    json_t *out = json_array();
    size_t first = cli_run_first(r);

    for (size_t i = 0; out && i < json_array_size(r->messages); i++)
        if (i < first || i >= first + skip)
            if (json_array_append_new(out, json_deep_copy(json_array_get(r->messages, i)))) {
                json_decref(out);
                out = NULL;
            }
    return out;
}

/* The conversation without its oldest messages as ids: through the template, or, for a model
 * without one, its last text alone. */
static int make_prompt(struct cli_run *r, size_t skip, struct eng_ids *ids,
                       enum eng_reply_start *start, struct cn_error *err)
{
    const struct eng_model *m = rt_model(r->stack.rt);
    const struct eng_vocab *v = eng_model_vocab(m);
    const struct eng_template *t = eng_model_template(m);
    struct eng_rendered text = {0};

    ids->n = 0;
    if (!t) {
        const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
        const json_t *content = json_object_get(last, "content");
        return eng_tokenize(v, json_string_value(content), json_string_length(content), NULL, 0,
                            ENG_TOKENIZE_SPECIAL, ids, err);
    }
    json_t *messages = messages_after(r, skip), *tools = json_deep_copy(r->form.tools);
    int rc = messages && (tools || !r->form.tools) ? 0 : CN_ENOMEM;
    if (!rc && r->form.way == RT_TOOLS_NATIVE) rc = eng_template_fit_tools(t, tools);
    if (rc) cn_fail(err, rc, "out of memory");
    if (!rc) rc = cli_messages_fit(t, eng_model_history(m), messages, tools, r->form.way, err);
    struct eng_template_in in = {.messages = messages,
                                 .tools = tools,
                                 .kwargs = r->form.thinking,
                                 .add_generation_prompt = true,
                                 .bos_token = eng_vocab_bos_text(v),
                                 .eos_token = eng_vocab_eos_text(v),
                                 .now_s = cn_wall_s()};
    if (!rc) rc = eng_template_render(t, &in, &text, err);
    json_decref(messages);
    json_decref(tools);
    if (rc) return rc;
    rc = eng_tokenize(v, text.text.data, text.text.len, text.spans, text.n_spans,
                      ENG_TOKENIZE_PARSE, ids, err);
    *start = eng_reply_where(eng_model_reply(m), &text, false);
    eng_rendered_fini(&text);
    return rc;
}

int cli_run_add(struct cli_run *r, const char *role, const char *text, size_t n)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n));
    return m && json_array_append_new(r->messages, m) == 0 ? 0 : CN_ENOMEM;
}

static uint64_t window_of(const struct cli_run *r)
{
    return eng_model_info(rt_model(r->stack.rt))->context;
}

/* ---- turns that are left out ----------------------------------------------------------------- */

/* The number of messages to skip so that the turn after `turns` more of them comes first; of too
 * many, so that the last one does. A turn begins with what the user says. */
static size_t skip_turns(const struct cli_run *r, size_t turns)
{
    size_t first = cli_run_first(r), skip = r->skip;

    for (size_t i = first + r->skip + 1; turns && i < json_array_size(r->messages); i++)
        if (has_role(json_array_get(r->messages, i), "user")) {
            skip = i - first;
            turns--;
        }
    return skip;
}

static size_t turns_left(const struct cli_run *r)
{
    size_t n = 0;

    for (size_t i = cli_run_first(r) + r->skip; i < json_array_size(r->messages); i++)
        n += has_role(json_array_get(r->messages, i), "user");
    return n;
}

static void leave_out(struct cli_run *r, size_t turns, const char *why)
{
    r->skip = skip_turns(r, turns);
    if (turns == 1)
        fprintf(stderr, "(%s: the oldest turn is left out from now on)\n", why);
    else
        fprintf(stderr, "(%s: the %zu oldest turns are left out from now on)\n", why, turns);
}

/* Makes a prompt that leaves room for an answer: where there is less than an eighth of the window
 * (or than the longest answer), the oldest turns are left out until a quarter is free, so that not
 * every turn begins with reading a changed conversation. */
static int fit_prompt(struct cli_run *r, struct eng_ids *ids, enum eng_reply_start *start,
                      struct cn_error *err)
{
    uint64_t window = window_of(r), least = window / 8, lo = 1, hi = turns_left(r) - 1;
    char why[64];

    if (r->max_tokens) least = CN_MIN(least, r->max_tokens);
    int rc = make_prompt(r, r->skip, ids, start, err);
    if (rc || !r->chatting || !hi || !eng_model_template(rt_model(r->stack.rt))) return rc;
    if (ids->n + CN_MAX(least, (uint64_t)1) <= window) return 0;
    while (lo < hi) { /* the fewest turns; prompts get shorter with each */
        uint64_t mid = lo + (hi - lo) / 2;
        if ((rc = make_prompt(r, skip_turns(r, mid), ids, start, err))) return rc;
        if (ids->n + window / 4 <= window)
            hi = mid;
        else
            lo = mid + 1;
    }
    if ((rc = make_prompt(r, skip_turns(r, lo), ids, start, err)) || ids->n >= window) return rc;
    snprintf(why, sizeof why, "the window of %llu tokens is full", (unsigned long long)window);
    leave_out(r, lo, why);
    return 0;
}

/* ---- an answer ------------------------------------------------------------------------------- */

static void say_cut_off(const struct cli_run *r, const struct rt_usage *used)
{
    if (r->max_tokens && used->completion_tokens >= r->max_tokens)
        fprintf(stderr, "(cut off at %llu tokens; %s sets the limit)\n",
                (unsigned long long)r->max_tokens,
                r->chatting ? "/set max_tokens" : "--max-tokens");
    else if (used->prompt_tokens + used->completion_tokens >= window_of(r))
        fprintf(stderr, "(cut off: the window of %llu tokens is full)\n",
                (unsigned long long)window_of(r));
    else
        fprintf(stderr, "(cut off: the KV memory is full; kv.memory_bytes sets its size)\n");
}

static int no_room(const struct cli_run *r, size_t n_prompt, struct cn_error *err)
{
    char most[40] = "";

    if (r->max_tokens)
        snprintf(most, sizeof most, " of up to %llu", (unsigned long long)r->max_tokens);
    return cn_fail(err, CN_EWINDOW,
                   "the conversation has %zu tokens with this text: the context window of %llu has "
                   "no room for an answer%s",
                   n_prompt, (unsigned long long)window_of(r), most);
}

/* In a chat an answer ends where the window does; one answer gets what was asked for, or none. */
static int check_room(const struct cli_run *r, size_t n_prompt, struct cn_error *err)
{
    unsigned long long window = window_of(r);

    if (r->chatting) return n_prompt < window ? 0 : no_room(r, n_prompt, err);
    if (!r->max_given || n_prompt >= window || r->max_tokens <= window - n_prompt) return 0;
    return cn_fail(
        err, CN_EWINDOW,
        "--max-tokens is %llu, and the prompt has %zu tokens: the context window of %llu "
        "leaves %llu",
        (unsigned long long)r->max_tokens, n_prompt, window, window - n_prompt);
}

/* One dim line, for a person. */
static void put_stats(const struct cli_run *r, const struct rt_usage *used, uint64_t began_ns)
{
    uint64_t n = used->completion_tokens;
    double first_s = (double)(r->first_ns - began_ns) / 1e9;
    double rest_s = (double)(r->last_ns - r->first_ns) / 1e9;
    char speed[40] = "";

    if (!r->stats || !r->tty || !r->first_ns || !isatty(STDERR_FILENO)) return;
    if (n > 1 && rest_s > LEAST_S)
        snprintf(speed, sizeof speed, ", %.1f tokens/s", (double)(n - 1) / rest_s);
    fprintf(stderr, "%s(%llu token%s%s, the first after %.2f s)%s\n", r->colour ? "\033[2m" : "",
            (unsigned long long)n, n == 1 ? "" : "s", speed, first_s, r->colour ? "\033[0m" : "");
}

static void begin_answer(struct cli_run *r, size_t n_prompt)
{
    cli_message_reset(&r->answer);
    cli_interrupted = 0;
    r->n_prompt = n_prompt;
    r->before = tokens_read(r);
    r->first_ns = r->last_ns = 0;
    r->text_ns = cn_now_ns();
    r->at_start = true;
    r->failed = false;
    cli_wrap_begin(&r->wrap, stdout, r->wraps);
    cli_progress_start(&r->reading);
}

static void end_answer(struct cli_run *r)
{
    cli_progress_end(&r->reading);
    if (r->tty) cli_wrap_flush(&r->wrap);
    end_thought(r, false);
    end_call(r);
    if (!r->at_start) putchar('\n');
    fflush(stdout);
}

/* Asks, held to the schema's grammar. */
static void ask_guided(struct cli_run *r, struct rt_request *q, const struct cli_sink *sink,
                       struct cli_result *result)
{
    const struct eng_model *m = rt_model(r->stack.rt);
    struct eng_guide_in in = {.grammar = r->form.grammar,
                              .vocab = eng_model_vocab(m),
                              .reply = q->parted ? eng_model_reply(m) : NULL,
                              .start = (int)q->start,
                              .n = 1,
                              .max_tokens = UINT64_MAX, /* the runtime says it: limit */
                              .max_reasoning = UINT64_MAX};
    struct eng_guide *guide = NULL;
    struct cn_error err = {0};

    int rc = eng_guide_new(&in, &guide);
    if (rc) {
        rt_request_fini(q);
        *result = (struct cli_result){.code = rc};
        snprintf(result->message, sizeof result->message, "%s", cn_err_info(rc)->text);
        return;
    }
    const struct rt_guide held = {
        .arg = guide, .mask = eng_guide_mask, .put = eng_guide_put, .limit = eng_guide_limit};
    q->guide = &held;
    cli_stack_ask(&r->stack, q, sink, result);
    if (result->code && eng_guide_error(guide, 0, &err)) {
        result->code = err.code;
        snprintf(result->message, sizeof result->message, "%s", err.message);
    }
    eng_guide_free(guide);
}

/* Asks with this prompt (moved), and shows what comes. */
static void ask(struct cli_run *r, struct eng_ids *ids, enum eng_reply_start start,
                struct cli_result *result)
{
    struct cli_sink sink = {.arg = r, .on_part = on_part, .on_token = on_token, .stopped = stopped};
    struct rt_request q = {.n = 1,
                           .max_tokens = r->max_tokens,
                           .sampling = r->sampling,
                           .priority = RT_INTERACTIVE,
                           .start = start,
                           .parted = eng_model_template(rt_model(r->stack.rt)) != NULL,
                           .tools = r->form.offered,
                           .prompt = ids->v,
                           .n_prompt = ids->n,
                           .max_is_bound = r->chatting || !r->max_given};

    if (q.max_is_bound && ids->n < window_of(r))
        q.max_tokens = CN_MIN(q.max_tokens, window_of(r) - ids->n);
    q.sampling.seed = r->seed;
    if (!r->seeded) cn_random(&q.sampling.seed, sizeof q.sampling.seed);
    begin_answer(r, ids->n);
    if (r->form.grammar)
        ask_guided(r, &q, &sink, result);
    else
        cli_stack_ask(&r->stack, &q, &sink, result);
    end_answer(r);
}

/* ---- what is kept of it ---------------------------------------------------------------------- */

size_t cli_run_open_calls(const struct cli_run *r, const json_t **next)
{
    size_t n = json_array_size(r->messages), results = 0;

    while (n && has_role(json_array_get(r->messages, n - 1), "tool")) {
        results++;
        n--;
    }
    const json_t *calls =
        n ? json_object_get(json_array_get(r->messages, n - 1), "tool_calls") : NULL;
    size_t all = json_array_size(calls);
    *next = json_array_get(calls, results);
    return all > results ? all - results : 0;
}

static size_t count_calls(const json_t *messages)
{
    const json_t *m;
    size_t i, n = 0;

    json_array_foreach(messages, i, m)
    {
        n += json_array_size(json_object_get(m, "tool_calls"));
    }
    return n;
}

/* Calls, for a program: a line each. */
static int put_calls(const json_t *message)
{
    struct cn_buf out;

    cn_buf_init(&out, 0);
    cli_put_calls(message, false, &out);
    int rc = cn_buf_code(&out);
    if (!rc && out.len) fwrite(out.data, 1, out.len, stdout);
    fflush(stdout);
    cn_buf_fini(&out);
    return rc;
}

/* Whether the schema is satisfied, or a tool is called instead. It is not where a limit cut the
 * answer off, or where the model only reasoned. */
static int check_answer(const struct cli_run *r, const json_t *message, struct cn_error *err)
{
    const struct eng_vocab *v = eng_model_vocab(rt_model(r->stack.rt));
    const struct cn_buf *text = &r->answer.content;
    size_t taken;
    bool whole;

    if (!r->form.grammar || json_object_get(message, "tool_calls")) return 0;
    int rc = eng_grammar_check(r->form.grammar, v, text->data ? text->data : "", text->len, &taken,
                               &whole, err);
    if (rc || whole) return rc;
    return cn_fail(err, CN_EINVAL, "the answer is incomplete: it does not satisfy %s",
                   r->form.schema_file);
}

/* Leaves out the reasoning, which was for the person alone, and a call that was cut off, which no
 * template can write. */
static int prune(json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls");
    size_t n = json_array_size(calls);

    json_object_del(message, "reasoning_content");
    if (n && !cli_call_is_whole(json_array_get(calls, n - 1))) json_array_remove(calls, n - 1);
    if (!calls || json_array_size(calls)) return 0;
    json_object_del(message, "tool_calls");
    if (!json_is_null(json_object_get(message, "content"))) return 0;
    return json_object_set_new(message, "content", json_string("")) ? CN_ENOMEM : 0;
}

/* The answer's end: its calls, and its place in the conversation. */
static int keep_answer(struct cli_run *r, bool cancelled, struct cn_error *err)
{
    json_t *m = r->failed ? NULL : cli_message_json(&r->answer, count_calls(r->messages));
    int rc = m ? 0 : CN_ENOMEM;

    if (!rc && !r->tty) rc = put_calls(m);
    if (!rc) rc = prune(m);
    if (!rc && json_array_append(r->messages, m)) rc = CN_ENOMEM;
    if (rc)
        cn_fail(err, rc, "out of memory");
    else if (!cancelled && (rc = check_answer(r, m, err)) && r->chatting) {
        fprintf(stderr, "(%s)\n", err->message);
        rc = 0;
    }
    json_decref(m);
    return rc;
}

int cli_run_answer(struct cli_run *r, struct cn_error *err)
{
    struct cli_result result;
    uint64_t began_ns;
    int rc = cli_form_ready(r, err);

    if (rc) return rc;
    for (;;) {
        struct eng_ids ids = {0};
        enum eng_reply_start start = {0};
        began_ns = cn_now_ns();
        rc = fit_prompt(r, &ids, &start, err);
        if (!rc) rc = check_room(r, ids.n, err);
        if (rc) {
            eng_ids_fini(&ids);
            return rc;
        }
        ask(r, &ids, start, &result);
        size_t turns = turns_left(r);
        if (result.code != CN_ENEVERFIT || !r->chatting || turns < 2 ||
            !eng_model_template(rt_model(r->stack.rt)))
            break;
        leave_out(r, turns / 2, "the KV memory is full");
    }
    if (result.code == CN_ECANCELLED)
        fprintf(stderr, "(stopped)\n");
    else if (result.code)
        return cn_fail(err, result.code, "%s", result.message);
    else if (result.finish == RT_FINISH_LENGTH)
        say_cut_off(r, &result.usage);
    put_stats(r, &result.usage, began_ns);
    return keep_answer(r, result.code != 0, err);
}
