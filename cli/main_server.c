/* conifer-server: the daemon. */
#include "cli/cli.h"

#ifdef CLI_JEMALLOC
/* Free memory goes back to the system within a second: what is resident stays within the memory
 * plan while requests that are refused come and go (tests/api/test_form_attacks.py). Without its
 * background thread jemalloc returns memory only during allocations, so a daemon that is idle after
 * a burst would keep all of it. */
extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf =
    "background_thread:true,dirty_decay_ms:250,muzzy_decay_ms:0";
#endif

int main(int argc, char **argv)
{
    static char name[] = "conifer-server";

    cli_open_standard();
    if (argc > 0) argv[0] = name;
    return cli_finish(name, cli_serve(argc, argv, NULL)); /* NULL: never downloads a model */
}
