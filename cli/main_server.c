/* conifer-server: the daemon. */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    static char name[] = "conifer-server";

    if (argc > 0) argv[0] = name;
    return cli_serve(argc, argv);
}
