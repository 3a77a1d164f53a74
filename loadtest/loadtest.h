/* loadtest: an open-loop load generator for OpenAI-compatible servers.
 * This header has the parts without sockets: scenarios, chance, samples, events; client.h talks
 * HTTP, run.h runs a scenario. One thread everywhere. */
#ifndef LOADTEST_LOADTEST_H
#define LOADTEST_LOADTEST_H

#include "base/base.h"

/* ---- chance (rand.c) ------------------------------------------------------------------------- */

/* xoshiro256** (Blackman and Vigna, 2018), seeded by what a draw is for, so that request i of a
 * class is the same whatever the server did before it. */
struct lt_rand { uint64_t s[4]; };
enum lt_stream { LT_R_ARRIVAL, LT_R_PROMPT, LT_R_PREFIX, LT_R_SHAPE };
void lt_rand_init(struct lt_rand *r, uint64_t seed, enum lt_stream stream, uint64_t a, uint64_t b);
uint64_t lt_rand_u64(struct lt_rand *r);
double lt_rand_unit(struct lt_rand *r);                /* above 0, at most 1 */
uint64_t lt_rand_below(struct lt_rand *r, uint64_t n); /* without bias; n > 0 */
double lt_rand_exp(struct lt_rand *r, double mean);
double lt_rand_normal(struct lt_rand *r);

/* A length: one number, LOW..HIGH, lognormal:MEDIAN:SIGMA[:MOST], or one of a list. */
enum lt_len_kind { LT_LEN_FIXED, LT_LEN_UNIFORM, LT_LEN_LOGNORMAL, LT_LEN_LIST };
struct lt_len {
    enum lt_len_kind kind;
    uint64_t low, high; /* bounds of what is drawn; equal when fixed */
    double median, sigma;
    uint64_t *list;
    size_t n_list;
};
uint64_t lt_len_draw(const struct lt_len *l, struct lt_rand *r);
void lt_len_fini(struct lt_len *l);

/* Times of requests in an open loop: seconds since the first moment, each call the next. */
struct lt_arrival {
    struct lt_rand rand;
    double rate, at_s;
    uint64_t count;
    bool even;
};
void lt_arrival_init(struct lt_arrival *a, double rate, bool even, uint64_t seed, uint64_t index);
double lt_arrival_next(struct lt_arrival *a);

/* ---- samples (samples.c) --------------------------------------------------------------------- */

/* Every value is kept: percentiles are exact. */
struct lt_samples {
    uint64_t *v;
    size_t n, cap;
    bool sorted;
};
int lt_samples_add(struct lt_samples *s, uint64_t value);
/* The least value that at least the share q (0..1) of all does not exceed (nearest rank); 0 when
 * there are none. */
uint64_t lt_samples_at(struct lt_samples *s, double q);
double lt_samples_mean(const struct lt_samples *s);
int lt_samples_join(struct lt_samples *to, const struct lt_samples *from);
void lt_samples_fini(struct lt_samples *s);

/* ---- scenarios (scenario.c, value.c, yaml.c) ------------------------------------------------- */

enum lt_arrival_kind { LT_POISSON, LT_EVEN };
enum lt_endpoint { LT_COMPLETIONS, LT_CHAT };
enum lt_prompt_kind { LT_PROMPT_AUTO, LT_PROMPT_IDS, LT_PROMPT_TEXT };

#define LT_C_STR  char *
#define LT_C_INT  int64_t
#define LT_C_NUM  double
#define LT_C_BOOL bool
#define LT_C_ENUM int
#define LT_C_LEN  struct lt_len

struct lt_place {
    size_t line, column; /* from 1; 0: not from a file */
};
struct lt_class {
#define CLASS(type, member, def, bounds, help) LT_C_##type member;
#include "loadtest/scenario.def"
    struct lt_place place;
    int split; /* index of split_by's class, -1 for none; set by lt_scenario_check */
};
struct lt_tenant {
#define TENANT(type, member, def, bounds, help) LT_C_##type member;
#include "loadtest/scenario.def"
    struct lt_place place;
};
struct lt_scenario {
#define RUN(type, member, def, bounds, help) LT_C_##type member;
#include "loadtest/scenario.def"
    struct lt_class *classes;
    size_t n_classes;
    struct lt_tenant *tenants;
    size_t n_tenants;
    char *file; /* for messages; NULL when there is none */
};

/* Defaults, no class and no tenant. */
int lt_scenario_init(struct lt_scenario *s, struct cn_error *err);
void lt_scenario_fini(struct lt_scenario *s);
/* Errors read "file:line:column: key: reason". */
int lt_scenario_load(struct lt_scenario *s, const char *path, struct cn_error *err);
int lt_scenario_load_text(struct lt_scenario *s, const char *file, const char *text, size_t n,
                          struct cn_error *err);
/* Sets one key from an option: of the run, or of every class (of those of this name, if class_name
 * is not NULL). Without classes one is made. CN_ENOENT: there is no such key, or no such class. */
int lt_scenario_set(struct lt_scenario *s, const char *class_name, const char *key,
                    const char *value, struct cn_error *err);
int lt_scenario_add_class(struct lt_scenario *s, struct cn_error *err);
int lt_scenario_add_tenant(struct lt_scenario *s, struct cn_error *err);
/* The rules between keys; fills in what follows from others (split, prompt auto, names). */
int lt_scenario_check(struct lt_scenario *s, struct cn_error *err);

/* The table, for help and for the readers. */
enum lt_type { LT_T_STR, LT_T_INT, LT_T_NUM, LT_T_BOOL, LT_T_ENUM, LT_T_LEN };
struct lt_key {
    const char *name;
    enum lt_type type;
    const char *def, *bounds, *help;
    size_t offset;
};
enum lt_group { LT_RUN, LT_CLASS, LT_TENANT };
const struct lt_key *lt_keys(enum lt_group g, size_t *count);
const struct lt_key *lt_key_find(enum lt_group g, const char *name);
/* Writes text into the member of base that k names. quoted: YAML had quotes around it. */
int lt_key_put(const struct lt_key *k, void *base, const char *text, bool quoted,
               struct cn_error *err);

/* ---- requests (prompt.c) --------------------------------------------------------------------- */

struct lt_shape { /* what chance decides about request i of a class */
    uint64_t prompt_tokens, answer_tokens;
    size_t tenant;
    bool aborts, slow;
    uint64_t abort_events;
};
/* warm: one of the warm-up, whose prompts share nothing with the others. */
void lt_shape_draw(const struct lt_scenario *s, size_t class_index, uint64_t request, bool warm,
                   uint64_t seed, struct lt_shape *out);
/* Appends the JSON body; a failed append shows in out->failed. */
void lt_body(const struct lt_scenario *s, size_t class_index, uint64_t request, bool warm,
             uint64_t seed, const char *model, const struct lt_shape *shape, struct cn_buf *out);

/* ---- server-sent events (sse.c) -------------------------------------------------------------- */

#define LT_EVENT_MAX (16u << 20)
struct lt_sse {
    struct cn_buf line, data; /* the unfinished line; the data of the unfinished event */
    bool has_data, after_cr;
};
void lt_sse_init(struct lt_sse *s);
void lt_sse_fini(struct lt_sse *s);
/* Calls on_event for each event that is complete, with its data (not NUL-terminated), until it
 * returns false. CN_ELIMIT: an event larger than LT_EVENT_MAX. */
int lt_sse_feed(struct lt_sse *s, const char *p, size_t n,
                bool (*on_event)(void *arg, const char *data, size_t n), void *arg);

/* ---- what an answer says (event.c) ----------------------------------------------------------- */

struct lt_event {
    bool text;   /* a choice has text of an answer, of reasoning, or a call */
    bool finish; /* a choice has a finish_reason */
    bool usage, error;
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    char message[160]; /* of an error, as far as it fits */
};
/* Reads a chunk of a stream, or a whole answer, of either endpoint. Only what is asked for is
 * looked at: one pass, nothing allocated. false: it is no JSON object. */
bool lt_event_read(const char *p, size_t n, struct lt_event *out);

#endif
