/* conifer show: what a model file is and what it would need here. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
