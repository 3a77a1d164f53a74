/* conifer key: a new key, and those of a config; conifer version. */
#include "cli/cli.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ID_BYTES = 4 }; /* of a hash: as the log names keys */

static int make_key(void)
{
    char key[SRV_KEY_LEN + 1], line[72];

    srv_key_new(key, line);
    /* Standard output has only the two lines, for scripts; a terminal gets labels on standard
     * error. */
    bool told = isatty(STDERR_FILENO), together = isatty(STDOUT_FILENO);
    if (told && together) fprintf(stderr, "key (give it to the client, shown this once):\n");
    printf("%s\n", key);
    fflush(stdout);
    if (told && together) fprintf(stderr, "config line (under a tenant's keys):\n");
    printf("%s\n", line);
    if (told && !together)
        fprintf(stderr, "first line: the key, for the client; second: the line for conifer.yaml, "
                        "under a tenant's keys\n");
    return 0;
}

static void put_keys(const struct cfg *cfg)
{
    int width = 6;

    for (size_t i = 0; i < cfg->n_tenants; i++)
        width = CN_MAX(width, (int)strlen(cfg->tenants[i].name));
    printf("%-*s  KEY\n", width, "TENANT");
    for (size_t i = 0; i < cfg->n_tenants; i++) {
        const struct cfg_tenant *t = &cfg->tenants[i];
        char id[2 * ID_BYTES + 1];
        for (size_t k = 0; k < t->keys.count; k++) {
            cn_hex(t->key_hashes[k].sha256, ID_BYTES, id);
            printf("%-*s  %s\n", width, t->name, id);
        }
        if (!t->keys.count) printf("%-*s  none\n", width, t->name);
    }
}

static int put_keys_json(const struct cfg *cfg)
{
    json_t *all = json_array();

    for (size_t i = 0; i < cfg->n_tenants; i++)
        for (size_t k = 0; k < cfg->tenants[i].keys.count; k++) {
            char hex[65], id[2 * ID_BYTES + 1], line[72];
            cn_hex(cfg->tenants[i].key_hashes[k].sha256, 32, hex);
            snprintf(id, sizeof id, "%.8s", hex);
            snprintf(line, sizeof line, "sha256:%s", hex);
            json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "tenant", cfg->tenants[i].name,
                                                 "id", id, "config", line));
        }
    return cli_put_json(all);
}

static int list_keys(int argc, char **argv, const struct cfg *cfg)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    bool json = false;
    int opt;

    optind = 0;
    while ((opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'j') json = true;
        if (opt == 'h')
            puts("usage: conifer key list --config FILE [--json]\n\n"
                 "The keys of a config's tenants, each by the first digits of its hash, which the\n"
                 "log's lines have as `key`.");
        if (opt == 'h' || opt == '?') return opt == 'h' ? 0 : 2;
    }
    if (optind < argc) return cli_usage(argv[0], "unexpected argument %s", argv[optind]);
    if (!cfg->sources.count)
        return cli_usage(argv[0], "which config? Give --config FILE; the service's is "
                                  "/etc/conifer/conifer.yaml");
    if (json) return put_keys_json(cfg);
    if (cfg->n_tenants)
        put_keys(cfg);
    else
        puts("There are no tenants: the server answers this machine only, without a key.");
    return 0;
}

static void help(void)
{
    puts("usage: conifer key new\n"
         "       conifer key list --config FILE [--json]\n\n"
         "new prints a new API key, this once, and the line that conifer.yaml takes for it:\n\n"
         "  tenants:\n"
         "    - name: team\n"
         "      keys:\n"
         "        - sha256:...\n\n"
         "list shows whose keys a config has, each by the first digits of its hash.");
}

int cli_key(int argc, char **argv)
{
    static char name[] = "conifer key list";
    struct cn_error err = {0};
    struct cfg cfg;

    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        help();
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "new")) return make_key();
    if (argc < 2 || (strcmp(argv[1], "list") && strcmp(argv[1], "ls")))
        return cli_usage(argv[0], "the commands are: key new, key list");
    argv++;
    argc--;
    argv[0] = name;
    int rc = cfg_init(&cfg, &err), status;
    if (!rc) rc = cfg_from_args(&cfg, &argc, argv, &err);
    if (rc) {
        cli_faults(name, &cfg, &err);
        cli_error(name, &err);
        status = err.code == CN_EIO || err.code == CN_ENOMEM ? 1 : 2;
    } else {
        status = list_keys(argc, argv, &cfg);
    }
    cfg_fini(&cfg);
    return status;
}

int cli_version(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool json = false;
    int opt;

    optind = 0;
    while ((opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'j') json = true;
        if (opt == 'h') puts("usage: conifer version [--json]");
        if (opt == 'h' || opt == '?') return opt == 'h' ? 0 : 2;
    }
    if (optind < argc) return cli_usage(argv[0], "unexpected argument %s", argv[optind]);
    if (json) return cli_put_json(json_pack("{s:s}", "version", CLI_VERSION));
    printf("conifer %s\n", CLI_VERSION);
    return 0;
}
