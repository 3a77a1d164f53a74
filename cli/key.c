/* conifer key new; conifer version. */
#include "cli/cli.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cli_key(int argc, char **argv)
{
    char key[SRV_KEY_LEN + 1], line[72];

    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        puts("usage: conifer key new\n\n"
             "Prints a new API key, this once, and the line that conifer.yaml takes for it:\n\n"
             "  tenants:\n"
             "    - name: team\n"
             "      keys:\n"
             "        - sha256:...");
        return 0;
    }
    if (argc != 2 || strcmp(argv[1], "new")) return cli_usage(argv[0], "the command is: key new");
    srv_key_new(key, line);
    /* Standard output carries the two lines alone, for scripts; a person is told what they are. */
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

int cli_version(int argc, char **argv)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        puts("usage: conifer version");
        return 0;
    }
    if (argc > 1) return cli_usage(argv[0], "unexpected argument %s", argv[1]);
    printf("conifer %s\n", CLI_VERSION);
    return 0;
}
