/* conifer show: what a model file is and what it would need here. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int show(struct cli_stack *s, struct cn_error *err)
{
    struct eng_model_opts opts = {
        .free_bytes = cfg_free_memory(),
        .prepare = {.kv_type = s->cfg.model.kv_type == CFG_KV_Q8_0 ? KR_Q8_0 : KR_F16,
                    .block_tokens = (uint32_t)s->cfg.kv.block_tokens,
                    .max_rows = (uint32_t)s->cfg.engine.max_batch_rows,
                    .max_context = (uint64_t)s->cfg.model.context},
    };
    struct cn_buf text;
    int rc = cli_find_model(&s->cfg, &s->path, &s->name, err);

    cn_buf_init(&text, 0);
    if (!rc) rc = eng_model_describe(s->path, &opts, &text, err);
    if (!rc) fwrite(text.data, 1, text.len, stdout);
    cn_buf_fini(&text);
    return rc;
}

int cli_show(int argc, char **argv)
{
    struct cn_error err = {0};
    struct cli_stack s;
    int rc = cli_stack_config(&s, &argc, argv, &err);

    if (!rc && argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        puts("usage: conifer show MODEL.gguf|NAME [--context N] [--kv-type f16|q8_0]\n\n"
             "Architecture, quantisation, context, and the memory it takes on this machine.");
    } else if (!rc && argc == 2 && argv[1][0] != '-') {
        char flag[] = "--model", *args[] = {argv[0], flag, argv[1], NULL};
        int n = 3;
        rc = cfg_from_args(&s.cfg, &n, args, &err);
        if (!rc) rc = show(&s, &err);
    } else if (!rc && argc == 1 && (s.cfg.model.path || s.cfg.model.name)) {
        rc = show(&s, &err);
    } else if (!rc) {
        cli_stack_close(&s);
        return cli_usage(argv[0], "one model is expected");
    }
    if (rc) cli_error(argv[0], &err);
    cli_stack_close(&s);
    return rc ? 1 : 0;
}
