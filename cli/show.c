/* conifer show: what a model file is and what it would need here. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEMPLATE_MOST (4u << 20) /* bytes of a chat template */

/* What requests draw with that do not say otherwise. */
static int find_sampling(const struct cli_stack *s, const struct eng_model_info *info,
                         struct rt_sampling *out, struct cn_error *err)
{
    struct cfg_sampling asked;
    int rc = cfg_sampling_read(s->cfg.model.sampling, &asked, err);

    if (!rc) rt_sampling_for(s->path, &info->recommended, &asked, out);
    return rc;
}

static void put_sampling(const struct rt_sampling *d)
{
    const struct eng_sampling *v = &d->v;

    printf("sampling        temperature %g", (double)v->temperature);
    if (v->top_p != 1) printf(", top-p %g", (double)v->top_p);
    if (v->top_k) printf(", top-k %u", v->top_k);
    if (v->min_p != 0) printf(", min-p %g", (double)v->min_p);
    if (v->repetition_penalty != 1) printf(", repetition %g", (double)v->repetition_penalty);
    if (v->presence_penalty != 0) printf(", presence %g", (double)v->presence_penalty);
    if (v->frequency_penalty != 0) printf(", frequency %g", (double)v->frequency_penalty);
    printf(" (%s)\n", !strcmp(d->from, "default") ? "for most models" : d->from);
}

static const char *tools_of(const struct cli_stack *s, const struct eng_model *m)
{
    return rt_tools_name(rt_tools_for(eng_model_template(m), s->cfg.model.tools_fallback));
}

static int put_text(struct cli_stack *s, const struct eng_model *m,
                    const struct eng_model_opts *opts, const struct rt_sampling *sampling,
                    struct cn_error *err)
{
    const struct cfg_model *known = cli_catalog_of(s->path);
    struct rt_room room = cli_memory_room(&s->cfg, opts->device);
    struct rt_memory_plan plan;
    struct cn_buf text;

    cn_buf_init(&text, 0);
    int rc = eng_model_describe(m, &opts->prepare, &text, err);
    if (known) printf("catalog name    %s\n", known->name);
    if (eng_model_info(m)->pooling == ENG_POOL_NONE) {
        put_sampling(sampling);
        printf("tools           %s\n", tools_of(s, m));
    }
    if (!rc) fwrite(text.data, 1, text.len, stdout);
    cn_buf_fini(&text);
    if (!rc && cli_put_memory(&s->cfg, m, &room, &plan, err)) printf("  %s\n", err->message);
    return rc;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

/* A float as the shortest text that means it says it: 0.7, not 0.699999988. */
static json_t *number(float v)
{
    char text[32];

    snprintf(text, sizeof text, "%.6g", (double)v);
    return json_real(strtod(text, NULL));
}

static json_t *sampling_json(const struct rt_sampling *d)
{
    const struct eng_sampling *v = &d->v;

    return json_pack("{s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "from", d->from, "temperature",
                     number(v->temperature), "top_p", number(v->top_p), "top_k", (int)v->top_k,
                     "min_p", number(v->min_p), "repetition_penalty", number(v->repetition_penalty),
                     "presence_penalty", number(v->presence_penalty), "frequency_penalty",
                     number(v->frequency_penalty));
}

/* Without the KV memory's fields where a daemon could not serve the model here. */
static json_t *memory_json(const struct cli_stack *s, const struct eng_model *m,
                           const struct kr_device *d)
{
    const struct eng_model_info *i = eng_model_info(m);
    struct rt_room room = cli_memory_room(&s->cfg, d);
    struct rt_memory_plan plan;
    struct cn_error err;
    uint64_t window = eng_sequence_bytes(i->exec, (uint32_t)s->cfg.kv.block_tokens, i->context);
    bool fits = !cli_plan_room(&s->cfg, m, &room, &plan, &err);
    json_t *o = json_pack("{s:b, s:I, s:I, s:I}", "fits", fits, "weight_bytes",
                          (json_int_t)i->exec->packed_bytes, "scratch_bytes",
                          (json_int_t)i->exec->scratch_bytes, "window_bytes",
                          (json_int_t)CN_MIN(window, (uint64_t)INT64_MAX));

    if (!fits) return o;
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)plan.total_bytes));
    json_object_set_new(o, "users", json_integer((json_int_t)cli_users(&s->cfg, &plan)));
    return o;
}

static int put_json(const struct cli_stack *s, const struct eng_model *m, const struct kr_device *d,
                    const struct rt_sampling *sampling)
{
    const struct eng_model_info *i = eng_model_info(m);
    const struct cfg_model *known = cli_catalog_of(s->path);
    bool embeds = i->pooling != ENG_POOL_NONE;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s?, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:b, s:b}",
        "id", s->name, "name", i->name, "path", s->path, "catalog", known ? known->name : NULL,
        "family", i->arch, "parameters", (json_int_t)i->n_params, "quantisation", i->file_type,
        "bytes", (json_int_t)i->file_bytes, "context", (json_int_t)i->context, "trained_context",
        (json_int_t)i->train_context, "vocabulary", (json_int_t)i->n_vocab, "layers",
        (int)i->n_layers, "width", (int)i->embd_dim, "heads", (int)i->n_heads, "kv_heads",
        (int)i->n_kv_heads, "chat_template", !embeds && eng_model_template(m), "embeds", embeds);

    if (o && !embeds) json_object_set_new(o, "sampling", sampling_json(sampling));
    if (o && !embeds) json_object_set_new(o, "tools", json_string(tools_of(s, m)));
    if (o) json_object_set_new(o, "memory", memory_json(s, m, d));
    return cli_put_json(o);
}

/* The template that the config gives the model in place of its own, if any. */
static int read_template(const struct cli_stack *s, struct eng_model_opts *opts,
                         struct cn_buf *text, struct cn_error *err)
{
    int rc = 0;

    if (!s->cfg.model.chat_template) return 0;
    if ((rc = cn_file_read(s->cfg.model.chat_template, false, TEMPLATE_MOST, text, err))) return rc;
    opts->template_text = cn_buf_cstr(text);
    opts->template_len = text->len;
    return opts->template_text ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
}

static int show(struct cli_stack *s, bool json, int *status, struct cn_error *err)
{
    struct eng_model_opts opts = {.prepare = rt_prepare_opts(&s->cfg)};
    struct eng_model *m = NULL;
    struct rt_sampling sampling;
    struct cn_buf text;
    int rc = rt_device_new(&s->cfg, &opts.device, err);

    cn_buf_init(&text, 0);
    if (!rc) rc = read_template(s, &opts, &text, err);
    if (!rc) rc = eng_model_measure(s->path, &opts, &m, err);
    if (!rc) rc = find_sampling(s, eng_model_info(m), &sampling, err);
    if (!rc && json)
        *status = put_json(s, m, opts.device, &sampling);
    else if (!rc)
        rc = put_text(s, m, &opts, &sampling, err);
    eng_model_unref(m);
    kr_device_free(opts.device);
    cn_buf_fini(&text);
    return rc;
}

int cli_show(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    struct cn_error err = {0};
    struct cli_stack s;
    bool json = false;
    int opt, status = 0, rc = cli_stack_config(&s, &argc, argv, &err);

    optind = 0;
    while (!rc && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'j') {
            json = true;
            continue;
        }
        if (opt == 'h')
            puts("usage: conifer show MODEL.gguf|NAME [--context N] [--kv-type f16|q8_0|q4_0]\n"
                 "                    [--json]\n\n"
                 "Architecture, quantisation, context, and the memory it takes on this machine.\n"
                 "NAME is one of the catalog (conifer list) or the models folder.");
        cli_stack_close(&s);
        return opt == 'h' ? 0 : 2;
    }
    if (!rc) rc = cli_one_model(&s, argc, argv, &status, &err);
    if (!rc && !status) rc = show(&s, json, &status, &err);
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&s);
    return status;
}
