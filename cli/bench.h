/* bench: what the files of `conifer bench` share. Main thread. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/cli.h"

/* ---- bench_probe.c: what the machine reaches --------------------------------------------------- */

/* conifer bench --probe: a table, or one JSON object. */
int cli_bench_probe(const struct cfg *cfg, bool json, struct cn_error *err);

#endif
