/* conifer plan: how many users fit, before anything is loaded. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB (1024.0 * 1024.0)

/* The KV memory that a daemon with this config would take. */
static uint64_t kv_memory(const struct cfg *cfg, uint64_t free_bytes)
{
    return cfg->kv.memory_bytes ? cfg->kv.memory_bytes : free_bytes / 2;
}

static void put_groups(const struct kr_exec_info *x, uint32_t block_tokens, uint64_t tokens)
{
    for (uint32_t g = 0; g < x->n_groups; g++) {
        const struct kr_kv_group *kg = &x->groups[g];
        const struct kr_exec_info one = {.n_groups = 1, .groups = kg};
        double bytes = (double)eng_sequence_bytes(&one, block_tokens, tokens);
        printf("  %-5s %4u layers        %12.2f MiB", kg->span == KR_SPAN_STATE ? "state" : "KV",
               kg->n_layers, bytes / MIB);
        if (kg->window_tokens) printf("  (the last %u tokens)", kg->window_tokens);
        putchar('\n');
    }
}

/* 0 when the users fit, else 1. */
static int put_plan(const struct cfg *cfg, const struct eng_model *m, uint64_t users)
{
    const struct kr_exec_info *x = eng_model_info(m)->exec;
    uint64_t fixed = x->packed_bytes + x->scratch_bytes, total = cfg_free_memory();
    uint64_t left = total > fixed ? total - fixed : 0, kv = kv_memory(cfg, left);
    uint64_t tokens = eng_model_info(m)->context;
    uint64_t one = eng_sequence_bytes(x, (uint32_t)cfg->kv.block_tokens, tokens);
    uint64_t fit = one ? kv / one : UINT64_MAX;

    printf("free memory                %12.1f MiB\n", (double)total / MIB);
    printf("weights                    %12.1f MiB\n", (double)x->packed_bytes / MIB);
    printf("scratch of a step          %12.1f MiB\n", (double)x->scratch_bytes / MIB);
    printf("KV memory                  %12.1f MiB  (%s)\n", (double)kv / MIB,
           cfg->kv.memory_bytes ? "kv.memory_bytes" : "half of what the weights leave");
    printf("a user with %llu tokens\n", (unsigned long long)tokens);
    put_groups(x, (uint32_t)cfg->kv.block_tokens, tokens);
    printf("  in all                   %12.2f MiB\n", (double)one / MIB);
    if (fixed > total || kv > left) {
        printf("does not fit: %.1f MiB are missing\n",
               (double)(fixed + kv - CN_MIN(total, fixed + kv)) / MIB);
        return 1;
    }
    printf("users at once              %12llu\n", (unsigned long long)fit);
    if (!users) return 0;
    printf("asked for                  %12llu  %s\n", (unsigned long long)users,
           users <= fit ? "fit" : "do not fit");
    if (users <= fit) return 0;
    printf("they fit with %llu tokens each, or with %.1f MiB of KV memory\n",
           (unsigned long long)eng_tokens_in(x, (uint32_t)cfg->kv.block_tokens, kv / users),
           (double)one * (double)users / MIB);
    return 1;
}

static int plan(struct cli_stack *s, uint64_t users, int *status, struct cn_error *err)
{
    struct eng_model_opts opts = {.prepare = rt_prepare_opts(&s->cfg)};
    struct eng_model *m = NULL;
    int rc = rt_check_model(&s->cfg, s->path, err);
    if (!rc) rc = rt_device_new(&s->cfg, &opts.device, err);
    if (!rc) rc = eng_model_measure(s->path, &opts, &m, err);
    if (!rc) *status = put_plan(&s->cfg, m, users);
    eng_model_unref(m);
    kr_device_free(opts.device);
    return rc;
}

int cli_plan(int argc, char **argv)
{
    static const struct option options[] = {{"users", required_argument, NULL, 'u'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct cn_error err = {0};
    struct cli_stack s;
    uint64_t users = 0;
    int opt, status = 0, rc = cli_stack_config(&s, &argc, argv, &err);

    optind = 0;
    while (!rc && !status && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'u') {
            status = cli_count(argv[0], "--users", optarg, 1, 1000000000, &users);
        } else {
            if (opt == 'h')
                puts("usage: conifer plan MODEL.gguf|NAME [--users N] [--context L]\n\n"
                     "How many users fit at once, each with a window of L tokens (the model's own when\n"
                     "not said), with the settings a daemon would have (--config). Nothing is loaded.\n"
                     "Exit status 1 when N users do not fit.");
            cli_stack_close(&s);
            return opt == 'h' ? 0 : 2;
        }
    }
    if (!rc && !status) rc = cli_one_model(&s, argc, argv, &status, &err);
    if (!rc && !status) rc = plan(&s, users, &status, &err);
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&s);
    return status;
}
