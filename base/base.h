/* base: errors, logging, arenas, buffers, clocks, mailboxes, metrics, small hashes.
 * Knows no network, model or device. Every other folder may include it.
 *
 * Conventions of the whole project:
 *   - int functions return 0 or a negative CN_E... code; a trailing struct cn_error * (may be NULL)
 *     gets the reason for a person. Output parameters are untouched on failure.
 *   - init/fini for embedded objects, new/free for heap ones; destructors take NULL and
 *     half-built objects.
 *   - pointer parameters are borrowed unless the comment says moved or returned owned. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CN_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define CN_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* From a pointer to a member back to the struct that holds it. */
#define CN_CONTAINER(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#define CN_MIN(a, b)                    ((a) < (b) ? (a) : (b))
#define CN_MAX(a, b)                    ((a) > (b) ? (a) : (b))

/* An invariant of our own code; stays on in release builds. Never for anything that a client,
 * file or config can cause. */
#define cn_assert(c) ((c) ? (void)0 : cn_assert_failed(#c, __FILE__, __LINE__))
_Noreturn void cn_assert_failed(const char *expr, const char *file, int line);

/* ---- errors (base/error.c) ------------------------------------------------------------------- */

enum cn_err {
    CN_OK = 0,
#define ERR(name, num, status, type, code, text) CN_##name = num,
#include "base/errors.def"
#undef ERR
};

struct cn_error {
    int code;          /* CN_E..., 0 when unset */
    char param[128];   /* the field, key or tensor at fault; "" when none */
    char message[512]; /* one line for a person, no trailing dot or newline */
};

struct cn_err_info {
    int code;
    int status;       /* HTTP status */
    const char *name; /* "EINVAL" */
    const char *type; /* OpenAI error type */
    const char *slug; /* stable code in the error envelope */
    const char *text; /* default message */
};

/* The table's line for a code; unknown codes give EINTERNAL's. Never NULL. */
const struct cn_err_info *cn_err_info(int code);
/* Fills err (if not NULL) and returns code, so that callers can `return cn_fail(...)`. */
int cn_fail(struct cn_error *err, int code, const char *fmt, ...) CN_PRINTF(3, 4);
/* As cn_fail, and names the field at fault. */
int cn_fail_param(struct cn_error *err, int code, const char *param, const char *fmt, ...)
    CN_PRINTF(4, 5);
/* Makes one line of s, a text that may be cut anywhere: valid UTF-8 without the control characters
 * of both sets (C0 and C1), so that a terminal acts on none of it. In place; it never gets longer.
 */
void cn_clean_line(char *s);
/* Puts "context: " before the message that is there. */
void cn_error_wrap(struct cn_error *err, const char *fmt, ...) CN_PRINTF(2, 3);

/* ---- checked arithmetic (inline): the one helper for numbers that come from outside ---------- */

/* The bytes at p, of any alignment, as a number in the host's order. */
static inline uint32_t cn_load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t cn_load64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline bool cn_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool cn_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
/* Rounds up to a multiple of align (a power of two, not 0). */
static inline bool cn_align_u64(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t t;
    if (__builtin_add_overflow(a, align - 1, &t)) return false;
    *out = t & ~(align - 1);
    return true;
}

/* ---- memory (base/mem.c) --------------------------------------------------------------------- */

/* calloc(n, size), malloc(n*size) and realloc with checked products; NULL when out of memory or
 * on overflow. n*size == 0 gives a valid pointer. Free with free(). */
void *cn_calloc(size_t n, size_t size);
void *cn_malloc_array(size_t n, size_t size);
void *cn_realloc_array(void *p, size_t n, size_t size);
/* Grows *p (elements of `size` bytes, capacity *cap) to hold at least `need` elements, doubling.
 * Returns CN_ENOMEM and leaves *p as it was when it cannot. */
int cn_grow(void *p, size_t *cap, size_t need, size_t size);

/* Arena: many small allocations, freed at once. `max` is a hard cap in bytes (0 = none). */
struct cn_arena {
    struct cn_arena_chunk *chunks;
    size_t used, max;
};
void cn_arena_init(struct cn_arena *a, size_t max_bytes);
void cn_arena_fini(struct cn_arena *a);
/* 16-byte aligned, zeroed; NULL when out of memory or over the cap. */
void *cn_arena_alloc(struct cn_arena *a, size_t size);
void *cn_arena_copy(struct cn_arena *a, const void *p, size_t size);
/* Copies n bytes and adds a NUL. */
char *cn_arena_strn(struct cn_arena *a, const char *s, size_t n);

/* Growing byte buffer with a hard cap. After a failed append `failed` stays true and the contents
 * are unchanged, so a series of appends may be checked once at the end. data is not
 * NUL-terminated unless cn_buf_cstr was called. */
struct cn_account;
struct cn_buf {
    char *data;
    size_t len, cap, max;
    struct cn_account *account; /* charged for cap - included bytes; NULL: no account is */
    size_t included;            /* the first bytes of cap, which are paid for elsewhere */
    bool failed;
    int code; /* why, where it is known; cn_buf_code reads it */
};
void cn_buf_init(struct cn_buf *b, size_t max_bytes); /* max_bytes 0 = no cap */
/* As cn_buf_init; every byte of capacity is taken from the account (borrowed) before it is
 * allocated, and given back by cn_buf_fini. */
void cn_buf_init_for(struct cn_buf *b, size_t max_bytes, struct cn_account *account);
/* Charges another account from now on (NULL: none). On failure the old account still pays. */
int cn_buf_rebill(struct cn_buf *b, struct cn_account *account);
void cn_buf_fini(struct cn_buf *b);
/* Why an append failed; 0 when none did. */
static inline int cn_buf_code(const struct cn_buf *b)
{
    return !b->failed ? 0 : b->code ? b->code : CN_ENOMEM;
}
void cn_buf_reset(struct cn_buf *b); /* length 0, failed false, memory kept */
int cn_buf_reserve(struct cn_buf *b, size_t extra);
int cn_buf_append(struct cn_buf *b, const void *p, size_t n);
int cn_buf_puts(struct cn_buf *b, const char *s);
int cn_buf_putc(struct cn_buf *b, char c);
int cn_buf_printf(struct cn_buf *b, const char *fmt, ...) CN_PRINTF(2, 3);
/* Appends a JSON string literal, quotes included: control characters, '"' and '\' escaped, bytes
 * that are not valid UTF-8 replaced by U+FFFD, everything else as it is. */
int cn_buf_json_str(struct cn_buf *b, const char *s, size_t n);
/* As the inside of such a literal, without its quotes: a long text may be appended in pieces that
 * end where a character does. On failure what fitted stays. */
int cn_buf_json_text(struct cn_buf *b, const char *s, size_t n);
/* Terminates with a NUL that is not counted in len; NULL when out of memory or failed. */
const char *cn_buf_cstr(struct cn_buf *b);

/* ---- memory accounts (base/account.c) -------------------------------------------------------
 * One budget of a process, divided among accounts. Half of the budget is reserved for the accounts
 * by weight. The other half is lent: an account borrows what it needs beyond its reserve, as long
 * as it leaves as much as it has borrowed (the only one that may borrow takes all). Any thread. */
struct cn_budget;
struct cn_share {
    double weight;
    bool borrows;
};
/* Accounts 0 .. n-1 of the budget. */
int cn_budget_new(uint64_t bytes, const struct cn_share *shares, size_t n, struct cn_budget **out);
/* Makes accounts up to n; the new ones have nothing reserved and may not borrow. CN_ENOMEM: fewer
 * were made. One thread at a time, the one that asks for accounts. */
int cn_budget_grow(struct cn_budget *b, size_t n);
/* Divides the budget again by new shares; accounts keep what they hold. Accounts from n on have no
 * share. */
void cn_budget_divide(struct cn_budget *b, const struct cn_share *shares, size_t n);
/* Takes NULL. Every account must be empty. */
void cn_budget_free(struct cn_budget *b);
struct cn_account *cn_budget_account(struct cn_budget *b, size_t i); /* borrowed, stays put */
uint64_t cn_budget_bytes(const struct cn_budget *b);
uint64_t cn_budget_held(struct cn_budget *b); /* by all accounts */
uint64_t cn_account_held(struct cn_account *a);
bool cn_account_borrows(struct cn_account *a); /* it holds more than its reserve */
/* Bytes that it could hold if no other account held any. */
uint64_t cn_account_most(const struct cn_account *a);
/* A holder of memory that can be given up. A take that would end with CN_EHELD asks it to give some
 * of the account's memory, one that would end with CN_EFULL some of an account that borrows (NULL);
 * false: there is none. It is asked on the taker's thread without the budget's lock, at most
 * CN_SPARES_MOST times in a take, and must not take memory. */
#define CN_SPARES_MOST 64
typedef bool cn_spare_fn(void *arg, struct cn_account *account);
/* Before other threads know of the budget. */
void cn_budget_on_short(struct cn_budget *b, cn_spare_fn *spare, void *arg);
/* Takes n bytes before they are allocated. CN_ETOOLARGE: more than it could ever hold; CN_EHELD:
 * too much with what it holds now; CN_EFULL: others have borrowed what it needs. A NULL account
 * takes nothing and never fails. */
int cn_account_take(struct cn_account *a, uint64_t n);
void cn_account_give(struct cn_account *a, uint64_t n); /* at most what it holds */

/* The bytes that one owner has taken, so that all of them can be given back at once. One thread at
 * a time. */
struct cn_hold {
    struct cn_account *account;
    uint64_t bytes;
    const struct cn_buf *beside; /* the same owner's, charged by itself; or NULL */
};
/* As cn_account_take. CN_ETOOLARGE also if this owner's bytes and n together could never fit. */
int cn_hold_take(struct cn_hold *h, uint64_t n);
void cn_hold_give(struct cn_hold *h, uint64_t n);
void cn_hold_drop(struct cn_hold *h); /* all of it */

/* ---- files (base/file.c) --------------------------------------------------------------------- */

/* Appends a file's bytes to out; of a file with more than max bytes at least max + 1. `pipes`
 * false: never waits for a writer, and refuses anything but a regular file. CN_EIO, with the path
 * in its message; CN_ENOMEM. */
int cn_file_read(const char *path, bool pipes, size_t max, struct cn_buf *out,
                 struct cn_error *err);

/* ---- UTF-8, hashes, random (base/util.c) ----------------------------------------------------- */

/* Length of the longest valid UTF-8 prefix (RFC 3629: no surrogates, no overlong forms). */
size_t cn_utf8_valid_len(const char *s, size_t n);
/* How many bytes at the end are the start of a sequence that more bytes could complete (0..3). */
size_t cn_utf8_tail_len(const char *s, size_t n);
/* Decodes one code point at s (n > 0 bytes): its length 1..4 with *cp set, or 0 when invalid. */
size_t cn_utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes 1..4 bytes to out; returns the length, 0 when cp is not a scalar value. */
size_t cn_utf8_encode(uint32_t cp, char out[4]);

/* SipHash-1-3 (64 bit): for hash tables; SipHash-2-4 with 128-bit output: for block keys.
 * Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012. key is 16 bytes. */
uint64_t cn_siphash13(const uint8_t key[16], const void *data, size_t n);
void cn_siphash24_128(const uint8_t key[16], const void *data, size_t n, uint8_t out[16]);
/* Fills p from the kernel's generator; aborts only if the kernel has none. */
void cn_random(void *p, size_t n);
/* Lower-case hex of n bytes; out holds 2n+1 chars. */
void cn_hex(const void *p, size_t n, char *out);

/* Parses a number that a person wrote. The whole text must be the number; otherwise false, and *out
 * is unchanged.
 * u64: decimal digits without a sign, at most UINT64_MAX.
 * double: decimal, with an optional sign and exponent, finite ("inf", "nan" and hexadecimal are
 * refused). */
bool cn_parse_u64(const char *s, size_t n, uint64_t *out);
bool cn_parse_double(const char *s, double *out);

/* Value of a hexadecimal digit of either case; -1 for any other character. */
int cn_hex_digit(char c);

/* A number of bytes for people to read: "1000 bytes", "1.5 KiB", "300.0 MiB". */
struct cn_size { char text[32]; };
struct cn_size cn_size(uint64_t bytes);

/* ---- clocks ---------------------------------------------------------------------------------- */

uint64_t cn_now_ns(void);    /* monotonic */
uint64_t cn_thread_ns(void); /* CPU time of the thread that asks */
int64_t cn_wall_s(void);     /* seconds since the epoch, UTC */

/* ---- ids of a vocabulary with a number (plain data: every layer may hand it on) -------------- */

/* What logit_bias adds to an id's logit. */
struct cn_bias {
    uint32_t id;
    float add;
};
/* An id that was likely where another one was drawn. */
struct cn_top {
    uint32_t id;
    float logprob;
};
#define CN_MAX_TOP 20 /* alternatives of one position */

/* ---- logging (base/log.c): the one piece of global state ------------------------------------- */

enum cn_log_level { CN_LOG_ERROR = 3, CN_LOG_WARN = 4, CN_LOG_INFO = 6, CN_LOG_DEBUG = 7 };
enum cn_log_format { CN_LOG_TEXT, CN_LOG_JSON, CN_LOG_JOURNAL };
void cn_log_setup(enum cn_log_level max, enum cn_log_format format);
/* From now on lines are appended to this file, which is created with mode 0640 if it is absent.
 * Call it before any thread logs. CN_EIO with the reason. */
int cn_log_open(const char *path, struct cn_error *err);
/* Starts the writer thread. Until then the thread that logs a line writes it, and waits while
 * the pipe is full. Afterwards no thread waits: lines go into a bounded ring, and a line that
 * finds it full is dropped and counted. Once per process, by its main thread. */
int cn_log_start(struct cn_error *err);
/* Waits at most timeout_ns until all lines logged so far are written; false if some are not. */
bool cn_log_flush(uint64_t timeout_ns);
/* Flushes for at most timeout_ns and ends the writer thread. A writer that is blocked stays, and
 * lines still go into its ring. */
void cn_log_stop(uint64_t timeout_ns);
/* Opens the file again, because a tool may have moved the old one away, and logs a line that begins
 * with `why` and ends with `more` (both constants). If it cannot be opened, the old file stays in
 * use. The writer thread does it: the caller does not wait. False: lines go to standard error. */
bool cn_log_reopen(const char *why, const char *more);
/* Lines that were dropped or could not be written. */
uint64_t cn_log_dropped(void);
/* Writes a finished line and waits at most a second for it: for use just before the process
 * ends. */
void cn_log_last(const char *line, size_t n);
/* One line of at most 8 KiB to standard error or the file; control characters in the text are
 * escaped so that a line cannot be forged, and a longer text is cut. Never give it prompt text or
 * keys. Thread-safe. */
void cn_log(enum cn_log_level level, const char *component, const char *fmt, ...) CN_PRINTF(3, 4);
/* One line of named values: `message name=value ...`; members of the object in JSON. A text is
 * escaped so that it is one word: no text can forge a field. */
struct cn_log_field {
    const char *name;
    const char *text; /* NULL: the number */
    double number;    /* not finite: no value, written "-" or null */
    int decimals;
};
void cn_log_fields(enum cn_log_level level, const char *component, const char *message,
                   const struct cn_log_field *fields, size_t n);

/* ---- mailbox (base/mailbox.c) ---------------------------------------------------------------
 * Many senders, one receiver. The receiver takes the whole list; the wake callback runs only
 * when the list was empty, on the sender's thread, outside the lock. */
struct cn_msg { struct cn_msg *next; };
struct cn_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct cn_msg *head, **tail;
    void (*wake)(void *arg); /* may be NULL: the receiver then uses cn_mailbox_wait */
    void *wake_arg;
};
int cn_mailbox_init(struct cn_mailbox *m, void (*wake)(void *), void *arg);
void cn_mailbox_fini(struct cn_mailbox *m);                     /* must be empty */
void cn_mailbox_post(struct cn_mailbox *m, struct cn_msg *msg); /* msg moved */
/* Takes the whole list, in the order of posting; NULL if it is empty. */
struct cn_msg *cn_mailbox_take(struct cn_mailbox *m);
/* Waits for a message, at most timeout_ns (UINT64_MAX = for ever); true if there is one. */
bool cn_mailbox_wait(struct cn_mailbox *m, uint64_t timeout_ns);

/* ---- metrics (base/metrics.c) ---------------------------------------------------------------
 * Fixed series from metrics.def, and those of each tenant of the config; updates are release
 * atomics. */
enum cn_metric {
#define COUNTER(id, name, labels, help) CN_M_##id,
#define GAUGE(id, name, labels, help)   CN_M_##id,
#define HISTOGRAM(id, name, help, buckets)
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    CN_M_COUNT
};
enum cn_histogram {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets) CN_H_##id,
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    CN_H_COUNT
};
#define CN_TENANT_METRICS
enum cn_tenant_metric {
#define COUNTER(id, name, labels, help) CN_TM_##id,
#define GAUGE(id, name, labels, help)   CN_TM_##id,
#define HISTOGRAM(id, name, help, buckets)
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    CN_TM_COUNT
};
enum cn_tenant_histogram {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets) CN_TH_##id,
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    CN_TH_COUNT
};
#undef CN_TENANT_METRICS
#define CN_MODEL_METRICS
enum cn_model_metric {
#define COUNTER(id, name, labels, help) CN_MM_##id,
#define GAUGE(id, name, labels, help)   CN_MM_##id,
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
    CN_MM_COUNT
};
#undef CN_MODEL_METRICS
#define CN_GROUP_METRICS
enum cn_group_metric {
#define COUNTER(id, name, labels, help) CN_GM_##id,
#define GAUGE(id, name, labels, help)   CN_GM_##id,
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
    CN_GM_COUNT
};
#undef CN_GROUP_METRICS
#define CN_HIST_MAX_BUCKETS 24
struct cn_hist {
    _Atomic uint64_t bucket[CN_HIST_MAX_BUCKETS + 1]; /* the last one is +Inf */
    _Atomic uint64_t sum_ns;
};
struct cn_tenant_series {
    char *name; /* owned; NULL: the number is free */
    _Atomic uint64_t value[CN_TM_COUNT];
    struct cn_hist hist[CN_TH_COUNT];
};
struct cn_model_series {
    const char *name;
    _Atomic uint64_t value[CN_MM_COUNT];
};
struct cn_group_series {
    const char *name;
    _Atomic uint64_t value[CN_GM_COUNT];
};
/* Series stay where they are: chunk k has CN_TENANT_CHUNK << k of them. */
#define CN_TENANT_CHUNK  8
#define CN_TENANT_CHUNKS 18
struct cn_metrics {
    _Atomic uint64_t value[CN_M_COUNT]; /* gauges hold the bits of a double */
    struct cn_hist hist[CN_H_COUNT];
    _Atomic(struct cn_tenant_series *) tenants[CN_TENANT_CHUNKS]; /* NULL: none are kept */
    _Atomic size_t n_tenants;
    struct cn_model_series *models; /* likewise */
    size_t n_models;
    struct cn_group_series *groups; /* likewise */
    size_t n_groups;
};
void cn_metric_add(struct cn_metrics *m, enum cn_metric id, uint64_t n);   /* counters */
void cn_metric_set(struct cn_metrics *m, enum cn_metric id, double value); /* gauges */
/* For a gauge that is a sum over several threads: each thread adds its own changes. */
void cn_metric_shift(struct cn_metrics *m, enum cn_metric id, double by);
double cn_metric_get(const struct cn_metrics *m, enum cn_metric id);
void cn_metric_observe(struct cn_metrics *m, enum cn_histogram id, uint64_t ns);
/* Makes the series of n tenants, as cn_metrics_tenant does. */
int cn_metrics_tenants(struct cn_metrics *m, const char *const *names, size_t n);
/* Gives this number to the tenant of that name (copied), whose series begin at 0; NULL frees the
 * number. Updates of other threads for the number are lost meanwhile. One thread at a time, the one
 * that renders; others may update. CN_ENOMEM, CN_ELIMIT.
 *
 * The functions below ignore a number without series: the one tenant of a server without `tenants`
 * has no name and so no series, and programs without a metrics page make none. Unknown tenants are
 * found where ids are looked up (rt_tenants_check), not here. */
int cn_metrics_tenant(struct cn_metrics *m, size_t tenant, const char *name);
/* Makes the series of n models, before any thread uses m; cn_metrics_fini frees them. names[i]
 * (borrowed) must outlive them. */
int cn_metrics_models(struct cn_metrics *m, const char *const *names, size_t n);
/* As cn_metrics_models, for n engine groups. */
int cn_metrics_groups(struct cn_metrics *m, const char *const *names, size_t n);
void cn_metrics_fini(struct cn_metrics *m);
void cn_model_add(struct cn_metrics *m, size_t model, enum cn_model_metric id, uint64_t n);
void cn_model_set(struct cn_metrics *m, size_t model, enum cn_model_metric id, uint64_t value);
void cn_group_add(struct cn_metrics *m, size_t group, enum cn_group_metric id, uint64_t n);
void cn_group_set(struct cn_metrics *m, size_t group, enum cn_group_metric id, uint64_t value);
void cn_tenant_add(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t n);
void cn_tenant_set(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t value);
/* As cn_metric_shift: adds to - from. */
void cn_tenant_shift(struct cn_metrics *m, size_t tenant, enum cn_tenant_metric id, uint64_t from,
                     uint64_t to);
void cn_tenant_observe(struct cn_metrics *m, size_t tenant, enum cn_tenant_histogram id,
                       uint64_t ns);
/* Prometheus text format 0.0.4: the fixed series and those of the models; those of one tenant, or
 * of all with CN_ALL_TENANTS. With all, the first CN_TENANTS_SHOWN have their own lines
 * and the others are summed as tenant="(other)", so that a page has a bounded number of lines. */
#define CN_TENANTS_SHOWN 100
#define CN_ALL_TENANTS   SIZE_MAX
int cn_metrics_render(const struct cn_metrics *m, struct cn_buf *out);
int cn_metrics_render_tenants(const struct cn_metrics *m, size_t tenant, struct cn_buf *out);

/* ---- the process (base/process.c) ------------------------------------------------------------ */

/* Whether SIGUSR1 and SIGHUP may reach this thread, and threads that it starts. Without a handler
 * they end the process. So the daemon blocks them from its start on, and one thread takes them
 * while it has handlers. */
void cn_signals_take(bool taken);

/* Metrics of this process, under the names that Prometheus' client libraries use. One thread. */
struct cn_process {
    double start_s;  /* 0: not read yet */
    double open_fds; /* as counted at counted_ns */
    uint64_t counted_ns;
};

/* Appends conifer_build_info and process_*; takes some ten microseconds. On an old
 * kernel, open descriptors are counted one by one, every ten seconds. *p must be zero at first. */
void cn_process_render(struct cn_process *p, const char *version, struct cn_buf *out);

#endif
