/* conifer show: what a model file is and what it would need here. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What requests draw with that do not say otherwise. */
static int put_sampling(const struct cli_stack *s, const struct eng_model_info *info,
                        struct cn_error *err)
{
    struct cfg_sampling asked;
    struct rt_sampling d;
    const struct eng_sampling *v = &d.v;
    int rc = cfg_sampling_read(s->cfg.model.sampling, &asked, err);

    if (rc || info->pooling != ENG_POOL_NONE) return rc;
    rt_sampling_for(s->path, &info->recommended, &asked, &d);
    printf("sampling        temperature %g", (double)v->temperature);
    if (v->top_p != 1) printf(", top-p %g", (double)v->top_p);
    if (v->top_k) printf(", top-k %u", v->top_k);
    if (v->min_p != 0) printf(", min-p %g", (double)v->min_p);
    if (v->repetition_penalty != 1) printf(", repetition %g", (double)v->repetition_penalty);
    if (v->presence_penalty != 0) printf(", presence %g", (double)v->presence_penalty);
    if (v->frequency_penalty != 0) printf(", frequency %g", (double)v->frequency_penalty);
    printf(" (%s)\n", !strcmp(d.from, "default") ? "for most models" : d.from);
    return 0;
}

static int show(struct cli_stack *s, struct cn_error *err)
{
    struct eng_model_opts opts = {.prepare = rt_prepare_opts(&s->cfg)};
    struct eng_model *m = NULL;
    struct cn_buf text;
    struct rt_memory_plan plan;
    int rc = rt_device_new(&s->cfg, &opts.device, err);

    cn_buf_init(&text, 0);
    if (!rc) rc = eng_model_measure(s->path, &opts, &m, err);
    if (!rc) rc = eng_model_describe(m, &opts.prepare, &text, err);
    const struct cfg_model *known = rc ? NULL : cli_catalog_of(s->path);
    if (known) printf("catalog name    %s\n", known->name);
    if (!rc) rc = put_sampling(s, eng_model_info(m), err);
    if (!rc) fwrite(text.data, 1, text.len, stdout);
    if (!rc && cli_put_memory(&s->cfg, m, &plan, err)) printf("  %s\n", err->message);
    cn_buf_fini(&text);
    eng_model_unref(m);
    kr_device_free(opts.device);
    return rc;
}

int cli_show(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct cn_error err = {0};
    struct cli_stack s;
    int opt, status = 0, rc = cli_stack_config(&s, &argc, argv, &err);

    optind = 0;
    while (!rc && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'h')
            puts("usage: conifer show MODEL.gguf|NAME [--context N] [--kv-type f16|q8_0|q4_0]\n\n"
                 "Architecture, quantisation, context, and the memory it takes on this machine.\n"
                 "NAME is one of the catalog (conifer list) or the models folder.");
        cli_stack_close(&s);
        return opt == 'h' ? 0 : 2;
    }
    if (!rc) rc = cli_one_model(&s, argc, argv, &status, &err);
    if (!rc && !status) rc = show(&s, &err);
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&s);
    return status;
}
