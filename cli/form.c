/* conifer run: what an answer is held to (--schema), may call (--tools), and whether it is reasoned
 * about first (--think). Files are read and checked before a model is loaded; what depends on the
 * model is made when it is there, and again for another one. Main thread. */
#include "cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SCHEMA = 16 << 20 };

/* ---- schemas --------------------------------------------------------------------------------- */

static bool keep_going(void *arg)
{
    return !cli_interrupted;
}

/* The text of the error names the file, the place in the schema, and what to do. */
static int say_schema(const char *path, int rc, const struct cn_error *why, struct cn_error *err)
{
    const char *hint = rc == CN_EUNSUPP ? "; this cannot be enforced: remove or replace it" : "";

    if (rc == CN_ECANCELLED) return cn_fail(err, rc, "%s: interrupted", path);
    return cn_fail(err, rc, "%s: %s%s%s%s", path, why->param, why->param[0] ? ": " : "",
                   why->message[0] ? why->message : cn_err_info(rc)->text, hint);
}

/* Compiles the schema alone, or for a loaded model also the calls that may come instead. */
static int compile(const char *path, const struct cn_buf *text, const struct cli_form *f,
                   const struct eng_model *m, struct eng_grammar **out, struct cn_error *err)
{
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_SCHEMA,
                                .text = text->data ? text->data : "",
                                .n = text->len,
                                .keep_going = keep_going};
    struct cn_error why = {0};

    if (m) {
        in.vocab = eng_model_vocab(m);
        in.reply = eng_model_reply(m);
        in.calls = f->tools;
        in.many = true;
    }
    cli_interrupted = 0;
    int rc = eng_grammar_compile(&in, out, &why);
    return rc ? say_schema(path, rc, &why, err) : 0;
}

static int read_schema(const char *path, struct cn_buf *text, struct cn_error *err)
{
    if (path[strspn(path, " \t\n")] == '{')
        return cn_fail(err, CN_EINVAL,
                       "a schema is given by the name of its file, not by its text: %.40s", path);
    int rc = cn_file_read(path, true, MAX_SCHEMA, text, err);
    if (!rc && text->len > MAX_SCHEMA)
        rc = cn_fail(err, CN_ELIMIT, "%s: longer than %d MiB", path, MAX_SCHEMA >> 20);
    return rc;
}

void cli_form_free_schema(struct cli_form *f)
{
    free(f->schema_file);
    cn_buf_fini(&f->schema);
    f->schema_file = NULL;
    cli_form_forget(f);
}

int cli_form_schema(struct cli_form *f, const char *path, struct cn_error *err)
{
    struct eng_grammar *g = NULL;
    char *copy = strdup(path);
    struct cn_buf text;

    cn_buf_init(&text, 0);
    int rc = copy ? read_schema(path, &text, err) : cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) rc = compile(path, &text, f, NULL, &g, err);
    eng_grammar_unref(g);
    if (rc) {
        cn_buf_fini(&text);
        free(copy);
        return rc;
    }
    cli_form_free_schema(f);
    f->schema_file = copy;
    f->schema = text;
    return 0;
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* Templates and grammars want the form in which clients send tools. */
static int check_tool(const char *path, const json_t *tool, size_t i, struct cn_error *err)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");

    if (!type || strcmp(type, "function") != 0)
        return cn_fail(err, CN_EUNSUPP,
                       "%s: tools[%zu].type must be function: {\"type\": \"function\", "
                       "\"function\": {\"name\": ..}}",
                       path, i);
    if (!json_is_object(function))
        return cn_fail(err, CN_ETYPE, "%s: tools[%zu].function must be an object", path, i);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return cn_fail(err, CN_ETYPE, "%s: tools[%zu].function.parameters must be a JSON schema",
                       path, i);
    return 0;
}

int cli_form_tools(struct cli_form *f, const char *path, struct cn_error *err)
{
    struct eng_tools *offered = NULL;
    json_t *tools = NULL, *tool;
    size_t i;
    int rc = cli_read_json(path, JSON_ARRAY, &tools, err);

    json_array_foreach(tools, i, tool)
    {
        if (!rc) rc = check_tool(path, tool, i, err);
    }
    if (!rc && (rc = eng_tools_new(tools, &offered, err))) cn_error_wrap(err, "%s", path);
    if (!rc && !eng_tools_count(offered))
        rc = cn_fail(err, CN_EINVAL, "%s: the array has no tools", path);
    if (rc) {
        if (err) err->param[0] = '\0'; /* the message has it */
        eng_tools_free(offered);
        json_decref(tools);
        return rc;
    }
    json_decref(f->tools);
    eng_tools_free(f->offered);
    f->tools = tools;
    f->offered = offered;
    cli_form_forget(f);
    return 0;
}

/* ---- a model --------------------------------------------------------------------------------- */

void cli_form_forget(struct cli_form *f)
{
    eng_grammar_unref(f->grammar);
    json_decref(f->thinking);
    f->grammar = NULL;
    f->thinking = NULL;
    f->ready = false;
}

/* The template's own switch. */
static int find_thinking(struct cli_form *f, const char *name, const struct eng_template *t,
                         struct cn_error *err)
{
    bool on = f->think == CLI_THINK_ON;

    if (f->think == CLI_THINK_DEFAULT) return 0;
    if (t && eng_template_thinking(t, on, &f->thinking))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    if (!f->thinking)
        fprintf(stderr,
                "(%s has no chat template with a switch for reasoning: it cannot be turned %s)\n",
                name, on ? "on" : "off");
    return 0;
}

int cli_form_ready(struct cli_run *r, struct cn_error *err)
{
    const struct eng_model *m = rt_model(r->stack.rt);
    struct cli_form *f = &r->form;
    struct rt_model_status status;
    int rc = 0;

    if (f->ready) return 0;
    rt_model_status(rt_model_at(r->stack.rt, 0), &status);
    f->way = status.tools;
    if (f->tools && f->way == RT_TOOLS_NONE)
        return cn_fail(err, CN_EUNSUPP, "%s would not see the tools: %s", r->stack.name,
                       eng_model_template(m)
                           ? "its chat template has no place for them, and model.tools_fallback "
                             "is false"
                           : "it has no chat template");
    if (f->schema_file) rc = compile(f->schema_file, &f->schema, f, m, &f->grammar, err);
    if (!rc) rc = find_thinking(f, r->stack.name, eng_model_template(m), err);
    f->ready = !rc;
    return rc;
}

void cli_form_fini(struct cli_form *f)
{
    cli_form_free_schema(f);
    json_decref(f->tools);
    eng_tools_free(f->offered);
    f->tools = NULL;
    f->offered = NULL;
}
