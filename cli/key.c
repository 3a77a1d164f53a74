/* conifer key new; conifer version. */
#include "cli/cli.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>

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
    printf("%s\n%s\n", key, line);
    return 0;
}

int cli_version(int argc, char **argv)
{
    if (argc > 1) return cli_usage(argv[0], "unexpected argument %s", argv[1]);
    printf("conifer %s\n", CLI_VERSION);
    return 0;
}
