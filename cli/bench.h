/* bench: what the files of `conifer bench` share. Main thread. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/cli.h"

/* ---- bench_stats.c --------------------------------------------------------------------------- */

/* Values of the rounds; those taken while the machine itself changed are not steady. */
struct bench_value {
    double v;
    bool steady;
};
struct bench_series {
    struct bench_value *v;
    size_t n, cap;
    size_t missed; /* rounds that gave no value: left out too */
};
struct bench_summary {
    double median, min, max;
    size_t used, left_out;
    bool unsteady; /* more rounds than half were: all are used */
};
int cli_bench_series_add(struct bench_series *s, double v, bool steady);
void cli_bench_series_fini(struct bench_series *s);
/* Of at least one value; sorts them. */
struct bench_summary cli_bench_summarise(struct bench_series *s);

/* ---- bench_streams.c: requests at the same time, through the runtime ------------------------- */

struct bench_ask {
    uint32_t streams;
    uint64_t n_prompt, tokens; /* of each stream; tokens >= 2 */
    const uint32_t *prompt;    /* the same for all; NULL: each its own, by chance */
};
struct bench_times {
    double ttft_s;       /* of the last to begin */
    bool together;       /* whether all ran at once at some time */
    double decode_tok_s; /* of all, while all ran; 0 where they never did */
};
int cli_bench_streams(struct cli_stack *s, const struct bench_ask *a, struct bench_times *out,
                      struct cn_error *err);
/* Ordinary tokens by chance; NULL when out of memory. */
uint32_t *cli_bench_random_prompt(const struct eng_vocab *v, size_t n);

/* ---- bench_probe.c: what the machine reaches ------------------------------------------------- */

/* conifer bench --probe: a table, or one JSON object. */
int cli_bench_probe(const struct cfg *cfg, bool json, struct cn_error *err);

/* ---- bench_busy.c ---------------------------------------------------------------------------- */

/* Busy threads, each on a processor of its own, until stopped. After an error too. */
struct bench_busy;
int cli_bench_busy_start(uint32_t n, struct bench_busy **out, struct cn_error *err);
void cli_bench_busy_stop(struct bench_busy *b);

/* ---- bench_ladder.c, bench_convert.c --------------------------------------------------------- */

/* conifer bench --ladder: what each classic step brings to the model. */
int cli_bench_ladder(const struct cfg *cfg, const char *path, const char *name, bool json,
                     struct cn_error *err);
/* The file with its matrices as F32 or Q8_0, in memory that goes with *fd; out: a path to open. */
int cli_bench_convert(const char *path, const struct eng_gguf *g, enum kr_type type, char *out,
                      size_t out_size, int *fd, struct cn_error *err);
uint64_t cli_bench_converted_bytes(const struct eng_gguf *g, enum kr_type type);

/* A bracket: the machine as it was between two measurements. */
struct bench_machine {
    struct kr_probe probe;
    double again_bytes_s; /* reading as much as the weights, over and over; 0 = not asked */
};
/* What a probe may read at most, asked before the first: a quarter of what is free, the control
 * groups' limits included. */
uint64_t cli_bench_probe_room(void);
int cli_bench_probe_now(struct kr_device *d, uint64_t most, uint64_t weight_bytes,
                        struct bench_machine *out, struct cn_error *err);
/* More than this share between the brackets of a measurement: it is left out. */
#define BENCH_STEADY 0.05
bool cli_bench_same_machine(const struct bench_machine *a, const struct bench_machine *b);

/* ---- points: what is measured ---------------------------------------------------------------- */

enum bench_kind { BENCH_ONE, BENCH_BATCH, BENCH_DEPTH };
struct bench_point {
    enum bench_kind kind;
    struct bench_ask ask;
    uint32_t *prompt;  /* of DEPTH: the same in every round, so that it is computed once */
    char why_not[512]; /* left out: the reason */
    struct bench_series ttft_ms, prefill, decode; /* the first two: ONE only */
};
struct bench {
    struct cli_stack stack;
    struct kr_device *device; /* for probes: as the runtime's, which is its own thread's */
    uint64_t rounds, prompt, tokens, busy;
    uint64_t batches[32], depths[32];
    size_t n_batches, n_depths;
    bool tty; /* of standard error: progress is shown */
    bool json, probe, ladder, prompt_given, tokens_given, depths_given;
    struct bench_point *points;
    size_t n_points;
    struct bench_series read, again, int8, fma; /* of the machine, over all brackets */
};

/* ---- bench_report.c -------------------------------------------------------------------------- */

/* Bytes that one decode step of a point reads, and operations of its products. */
double cli_bench_step_bytes(const struct bench *b, const struct bench_point *p);
double cli_bench_step_ops(const struct bench *b, const struct bench_point *p);
/* What a point measures, for people. */
#define BENCH_NAME 64
void cli_bench_name(const struct bench_point *p, char out[BENCH_NAME]);
void cli_bench_put_json(struct bench *b, struct cn_buf *out);
void cli_bench_put_table(struct bench *b, struct cn_buf *out);

#endif
