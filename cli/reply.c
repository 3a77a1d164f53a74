/* conifer reply: takes a model's text apart as the chat endpoint does, and prints the message. With
 * a model the text is tokenised first, so that its marks are tokens where they are tokens; with a
 * chat template alone they are text. A request gives the tools, and where in the reply the prompt
 * ends. */
#include "cli/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 16 << 20 };

struct reply {
    struct cli_stack stack;
    const char *request; /* file, or NULL */
    bool in_pieces, cut;
    uint64_t seed;
    struct eng_vocab *vocab; /* NULL: no model */
    struct eng_template *template;
    struct eng_reply_format format;
    struct eng_tools *tools;
    enum eng_reply_start start;
    struct cn_buf text;
};

/* ---- model and template ---------------------------------------------------------------------- */

static int open_model(struct reply *r, bool own_template, struct cn_error *err)
{
    struct eng_gguf *g = NULL;
    int rc = eng_gguf_open(r->stack.path, &g, err);

    if (!rc) rc = eng_gguf_vocab(g, &r->vocab, err);
    if (!rc && own_template) rc = eng_gguf_template(g, &r->template, err);
    eng_gguf_close(g);
    if (!rc && own_template && !r->template)
        rc = cn_fail(err, CN_EUNSUPP,
                     "the model has no chat template; give one with "
                     "--chat-template");
    return rc;
}

static int open_template(struct reply *r, const char *path, struct cn_error *err)
{
    struct cn_buf text;

    cn_buf_init(&text, 0);
    int rc = cn_file_read(path, true, MAX_FILE, &text, err);
    if (!rc) rc = eng_template_new(text.data ? text.data : "", text.len, &r->template, err);
    if (rc) cn_error_wrap(err, "%s", path);
    cn_buf_fini(&text);
    return rc;
}

/* ---- the request ----------------------------------------------------------------------------- */

/* The variables that a request gives its template; owned, NULL when out of memory. */
static json_t *variables_of(const json_t *request)
{
    static const char *const names[] = {"enable_thinking", "reasoning_effort"};
    const json_t *given = json_object_get(request, "chat_template_kwargs");
    json_t *all = json_is_object(given) ? json_copy((json_t *)given) : json_object();

    for (size_t i = 0; all && i < CN_ARRAY_LEN(names); i++) {
        json_t *v = json_object_get(request, names[i]);
        if (v && json_object_set(all, names[i], v)) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

/* Where in the reply the prompt ends. */
static int find_start(struct reply *r, const json_t *request, json_t *tools, struct cn_error *err)
{
    json_t *messages = json_object_get(request, "messages"), *variables = variables_of(request);
    struct eng_rendered text = {0};
    struct eng_history history;
    int rc = variables ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");

    if (!rc && (rc = eng_history_learn(r->template, &r->format, &history)))
        cn_fail(err, rc, "out of memory");
    if (!rc)
        rc = cli_messages_fit(r->template, &history, messages, tools,
                              rt_tools_for(r->template, true), err);
    if (!rc) {
        struct eng_template_in in = {.messages = messages,
                                     .tools = json_array_size(tools) ? tools : NULL,
                                     .documents = json_object_get(request, "documents"),
                                     .kwargs = variables,
                                     .add_generation_prompt = true,
                                     .now_s = cn_wall_s()};
        in.bos_token = in.eos_token = (struct eng_str){"", 0};
        if (r->vocab) {
            in.bos_token = eng_vocab_bos_text(r->vocab);
            in.eos_token = eng_vocab_eos_text(r->vocab);
        }
        rc = eng_template_render(r->template, &in, &text, err);
    }
    if (!rc) {
        r->start = eng_reply_where(&r->format, &text, false);
        eng_rendered_fini(&text);
    }
    json_decref(variables);
    return rc;
}

static bool all_objects(const json_t *array)
{
    const json_t *one;
    size_t i;
    json_array_foreach(array, i, one)
    {
        if (!json_is_object(one)) return false;
    }
    return json_array_size(array) > 0;
}

static int use_request(struct reply *r, struct cn_error *err)
{
    json_t *request = NULL, *tools, *messages;
    int rc = cli_read_json(r->request, JSON_OBJECT, &request, err);

    tools = json_object_get(request, "tools");
    messages = json_object_get(request, "messages");
    const char *choice = json_string_value(json_object_get(request, "tool_choice"));
    if (choice && !strcmp(choice, "none")) tools = NULL;
    if (!rc && tools && !json_is_null(tools)) rc = eng_tools_new(tools, &r->tools, err);
    if (!rc && messages && !all_objects(messages))
        rc = cn_fail_param(err, CN_ETYPE, "messages", "messages must be an array of objects");
    if (!rc && messages) rc = find_start(r, request, tools, err);
    json_decref(request);
    return rc;
}

/* ---- the reply ------------------------------------------------------------------------------- */

static int take(struct cli_message *m, struct eng_parts *p)
{
    size_t at = 0;
    int rc = 0;

    for (size_t i = 0; !rc && i < p->n_runs; at = p->runs[i++].end)
        rc = cli_message_take(m, p->runs[i].part, p->text.data + at, p->runs[i].end - at);
    eng_parts_reset(p);
    return rc;
}

/* Text, in random pieces if they are asked for. */
static int feed_text(struct reply *r, struct eng_reply *reply, const char *s, size_t n,
                     struct eng_parts *p, struct cli_message *m)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < n;) {
        size_t len = n - i;
        if (r->in_pieces) {
            r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
            len = CN_MIN(len, 1 + (size_t)(r->seed >> 33) % 7);
        }
        rc = eng_reply_text(reply, s + i, len, p);
        if (!rc) rc = take(m, p);
        i += len;
    }
    return rc;
}

/* As the engine gives it out: token by token, up to one that ends generation. */
static int feed_tokens(struct reply *r, struct eng_reply *reply, struct eng_parts *p,
                       struct cli_message *m, struct cn_error *err)
{
    struct eng_ids ids = {0};
    struct eng_detok detok;
    struct cn_buf piece;
    int rc = eng_tokenize(r->vocab, r->text.data ? r->text.data : "", r->text.len, NULL, 0,
                          ENG_TOKENIZE_PARSE, &ids, err);

    cn_buf_init(&piece, 0);
    eng_detok_init(&detok, r->vocab, false, true);
    for (size_t i = 0; !rc && i < ids.n; i++) {
        bool mark = eng_reply_is_mark(reply, ids.v[i]);
        if (!mark && eng_vocab_is_eog(r->vocab, ids.v[i])) break;
        rc = mark ? eng_detok_flush(&detok, &piece) : eng_detok_push(&detok, ids.v[i], &piece);
        if (!rc) rc = feed_text(r, reply, piece.data, piece.len, p, m);
        cn_buf_reset(&piece);
        if (!rc && mark) rc = eng_reply_mark(reply, ids.v[i], p);
        if (!rc) rc = take(m, p);
    }
    if (!rc) rc = eng_detok_flush(&detok, &piece);
    if (!rc) rc = feed_text(r, reply, piece.data, piece.len, p, m);
    cn_buf_fini(&piece);
    eng_ids_fini(&ids);
    return rc;
}

static int read_reply(struct reply *r, json_t **out, struct cn_error *err)
{
    struct cli_message m;
    struct eng_parts p;
    struct eng_reply reply;

    eng_parts_init(&p);
    eng_reply_init(&reply, &r->format, r->tools, r->start);
    int rc = cli_message_init(&m);
    if (!rc)
        rc = r->vocab ? feed_tokens(r, &reply, &p, &m, err)
                      : feed_text(r, &reply, r->text.data, r->text.len, &p, &m);
    if (!rc) rc = eng_reply_finish(&reply, r->cut, &p);
    if (!rc) rc = take(&m, &p);
    if (!rc && !(*out = cli_message_json(&m, 0))) rc = CN_ENOMEM;
    if (rc == CN_ENOMEM) cn_fail(err, rc, "out of memory");
    eng_reply_fini(&reply);
    eng_parts_fini(&p);
    cli_message_fini(&m);
    return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run(struct reply *r, int *status, struct cn_error *err)
{
    const char *template = r->stack.cfg.model.chat_template;
    json_t *message = NULL;
    int rc = r->stack.path ? open_model(r, !template, err) : 0;

    if (!rc && template) rc = open_template(r, template, err);
    if (!rc) r->format = eng_reply_format(r->vocab, eng_template_source(r->template));
    if (!rc && r->request) rc = use_request(r, err);
    if (!rc) rc = cli_read_text(&r->text, err);
    if (!rc) rc = read_reply(r, &message, err);
    if (!rc) *status = cli_put_json(message);
    return rc;
}

static void help(void)
{
    puts("usage: conifer reply (MODEL.gguf|NAME | --chat-template FILE) [options] < TEXT\n\n"
         "Takes the text that a model wrote apart, and prints the message that the chat endpoint\n"
         "would give: content, reasoning_content, tool_calls.\n\n"
         "  --request FILE  a chat request: its tools are those that may be called, and its "
         "messages\n"
         "                  say what the prompt ends with. Without tools no calls are looked for\n"
         "  --cut           the text ends where a limit ended it: an unfinished call's beginning "
         "is\n"
         "                  left out\n"
         "  --pieces SEED   feed the text in random pieces; the message is the same\n"
         "  --chat-template FILE\n"
         "                  in place of the model's own; without a model all marks count as text\n"
         "  --model FILE|NAME, --config FILE, --set KEY=VALUE\n"
         "                  the model, said otherwise\n"
         "  -h, --help      this text");
}

static void fini(struct reply *r)
{
    eng_tools_free(r->tools);
    eng_template_free(r->template);
    eng_vocab_free(r->vocab);
    cn_buf_fini(&r->text);
    cli_stack_close(&r->stack);
}

int cli_reply(int argc, char **argv)
{
    static const struct option options[] = {{"request", required_argument, NULL, 'r'},
                                            {"pieces", required_argument, NULL, 'p'},
                                            {"cut", no_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    struct cn_error err = {0};
    struct reply r = {0};
    int opt, status = 0, rc = cli_stack_config(&r.stack, &argc, argv, &err);

    optind = 0;
    while (!rc && !status && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'r') r.request = optarg;
        if (opt == 'c') r.cut = true;
        if (opt == 'p') {
            r.in_pieces = true;
            status = cli_count(argv[0], "--pieces", optarg, 0, UINT64_MAX, &r.seed);
        }
        if (opt != 'h' && opt != '?') continue;
        if (opt == 'h') help();
        fini(&r);
        return opt == 'h' ? 0 : 2;
    }
    bool alone = r.stack.cfg.model.chat_template && optind == argc && !r.stack.cfg.model.path &&
                 !r.stack.cfg.model.name && !r.stack.cfg.n_models;
    if (!rc && !status && !alone) rc = cli_one_model(&r.stack, argc, argv, &status, &err);
    if (!rc && !status) rc = run(&r, &status, &err);
    if (rc) status = cli_error(argv[0], &err);
    fini(&r);
    return status;
}
