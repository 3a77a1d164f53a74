/* conifer-server: the daemon. */
#include "cli/cli.h"

#ifdef CLI_JEMALLOC
/* What is free goes back to the system within seconds: without a thread of its own jemalloc looks
 * at that only when somebody allocates, and a daemon that is idle after a burst keeps it all. */
extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf =
    "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";
#endif

int main(int argc, char **argv)
{
    static char name[] = "conifer-server";

    cli_open_standard();
    if (argc > 0) argv[0] = name;
    return cli_finish(name, cli_serve(argc, argv, NULL)); /* a service is told what it lacks */
}
