/* config: the keys of conifer.yaml, the model catalog, where models live, what the machine has.
 * Filled once at start, read-only after: any thread may read a struct cfg that nobody changes.
 *
 *     cfg_init(&c, &err);                     defaults of config/keys.def
 *     cfg_from_args(&c, &argc, argv, &err);   --config FILE, then the other options
 *     cfg_check(&c, &err);                    rules between keys
 */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "base/base.h"

struct cfg_list {
    char **items; /* NUL-terminated */
    size_t count;
};

/* Values of ENUM keys, in the order of their words in keys.def. */
enum cfg_kv_type { CFG_KV_F16, CFG_KV_Q8_0, CFG_KV_Q4_0 };
enum cfg_isa {
    CFG_ISA_AUTO,
    CFG_ISA_GENERIC,
    CFG_ISA_AVX2,
    CFG_ISA_AVXVNNI,
    CFG_ISA_AVX512,
    CFG_ISA_NEON,
    CFG_ISA_I8MM
};
enum cfg_device { CFG_DEVICE_auto, CFG_DEVICE_cpu, CFG_DEVICE_async }; /* kernels/devices.def */
enum cfg_speculation { CFG_SPECULATION_AUTO, CFG_SPECULATION_OFF };
enum cfg_log_level { CFG_LOG_ERROR, CFG_LOG_WARN, CFG_LOG_INFO, CFG_LOG_DEBUG };
enum cfg_log_format { CFG_LOG_AUTO, CFG_LOG_TEXT, CFG_LOG_JSON, CFG_LOG_JOURNAL };
enum cfg_log_access { CFG_ACCESS_ALL, CFG_ACCESS_ERRORS, CFG_ACCESS_OFF };
enum cfg_metrics { CFG_METRICS_OWN, CFG_METRICS_ALL };
enum cfg_unknown { CFG_UNKNOWN_REFUSE, CFG_UNKNOWN_DEFAULT };
enum cfg_priority { CFG_INTERACTIVE, CFG_NORMAL, CFG_BACKGROUND };

/* The C type of a key of each type of keys.def. */
#define CFG_CTYPE_STR  char  */* NULL when unset */
#define CFG_CTYPE_INT  int64_t
#define CFG_CTYPE_SIZE uint64_t
#define CFG_CTYPE_NUM  double
#define CFG_CTYPE_ENUM int /* one of the enums above */
#define CFG_CTYPE_PICK int64_t
#define CFG_CTYPE_LIST struct cfg_list
#define CFG_CTYPE_BOOL bool

struct cfg_key_hash { uint8_t sha256[32]; };

/* The keys, numbered: CFG_KEY_server_host ..., those of a tenant, CFG_TENANT_KEY_name ..., and
 * those of a model, CFG_MODEL_KEY_name ... */
enum cfg_key_number {
#define GROUP(group, help)
#define KEY(group, name, type, def, bounds, help) CFG_KEY_##group##_##name,
#define END(group)
#include "config/keys.def"
#undef GROUP
#undef KEY
#undef END
    CFG_N_KEYS
};
enum cfg_tenant_key_number {
#define CFG_TENANT_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_TENANT_KEY_##name,
#include "config/keys.def"
#undef KEY
#undef CFG_TENANT_KEYS
    CFG_N_TENANT_KEYS
};

enum cfg_model_key_number {
#define CFG_MODEL_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_MODEL_KEY_##name,
#include "config/keys.def"
#undef KEY
#undef CFG_MODEL_KEYS
    CFG_N_MODEL_KEYS
};

enum cfg_group_key_number {
#define CFG_GROUP_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_GROUP_KEY_##name,
#include "config/keys.def"
#undef KEY
#undef CFG_GROUP_KEYS
    CFG_N_GROUP_KEYS
};

/* Where a key was set. */
struct cfg_place {
    const char *source;    /* the file or the option, owned by the cfg or static; NULL: a default */
    uint32_t line, column; /* from 1, of the key; 0 on the command line */
};

struct cfg_tenant {
#define CFG_TENANT_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_CTYPE_##type name;
#include "config/keys.def"
#undef KEY
#undef CFG_TENANT_KEYS
    struct cfg_key_hash *key_hashes; /* `keys`, decoded: keys.count of them */
    struct cfg_place places[CFG_N_TENANT_KEYS];
};

/* One item of `models`. */
struct cfg_served {
#define CFG_MODEL_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_CTYPE_##type name;
#include "config/keys.def"
#undef KEY
#undef CFG_MODEL_KEYS
    struct cfg_place places[CFG_N_MODEL_KEYS];
};

/* One item of `groups`. */
struct cfg_group {
#define CFG_GROUP_KEYS
#define KEY(group, name, type, def, bounds, help) CFG_CTYPE_##type name;
#include "config/keys.def"
#undef KEY
#undef CFG_GROUP_KEYS
    struct cfg_place places[CFG_N_GROUP_KEYS];
};

/* c.server.port, c.model.path ...: one member per line of keys.def. */
struct cfg {
#define GROUP(group, help)                        struct {
#define KEY(group, name, type, def, bounds, help) CFG_CTYPE_##type name;
#define END(group)                                                                                 \
    }                                                                                              \
    group;
#include "config/keys.def"
#undef GROUP
#undef KEY
#undef END
    struct cfg_tenant *tenants; /* empty: one tenant, no key, loopback only */
    size_t n_tenants;
    struct cfg_served *models; /* empty: one model, of the group `model` */
    size_t n_models;
    struct cfg_group *groups; /* empty: one, with all that the group `engine` says */
    size_t n_groups;
    struct cfg_place places[CFG_N_KEYS];
    struct cfg_list sources; /* names that places point to */
    struct cfg_list faults;  /* every error that was found, in order: one message each */
    bool half_read;          /* some of them left out parts that rules between keys look at */
    bool again; /* set by who reads a config while the daemon runs: files must be regular */
};

/* ---- reading (config/config.c, config/yaml.c, config/args.c) --------------------------------- */

/* Fills c with the defaults. c needs cfg_fini afterwards, also when this or a later call failed. */
int cfg_init(struct cfg *c, struct cn_error *err);
void cfg_fini(struct cfg *c);

/* Reads YAML over what c holds. `name` stands in messages: "name:line:column: key: reason".
 * Refused: unknown or repeated keys, wrong types, values out of bounds, anchors, tags, more than
 * 1 MiB. Reads on after an error, so that c->faults has all of them; err is the first,
 * err->param its key. Lack of memory or an unreadable file is not a fault: then only err is set. */
int cfg_load_text(struct cfg *c, const char *name, const char *text, size_t n,
                  struct cn_error *err);
int cfg_load_file(struct cfg *c, const char *path, struct cn_error *err);

/* Sets one key ("server.port") from text; a LIST takes its items separated by commas. */
int cfg_set(struct cfg *c, const char *key, const char *value, struct cn_error *err);

/* Reads the options of argv[1..]: --config FILE first, wherever it stands, then --host --port
 * --model (or -m) --chat-template --context --threads --isa --kv-type --log-level --log-format
 * --unix-socket and --set KEY=VALUE in their order, each as "--x V" or "--x=V". What it knows is
 * taken out of argv and *argc; everything else stays in order for the caller, and "--" ends the
 * reading. As with files, c->faults has every error. */
int cfg_from_args(struct cfg *c, int *argc, char **argv, struct cn_error *err);
/* The i-th of those options as it is typed; NULL after the last. Static. */
const char *cfg_args_flag(size_t i);
/* Help text for those options; static. */
const char *cfg_args_help(void);

/* Rules between keys: a listener that others can reach needs keys, tenants and their keys are
 * unique, shares of the pool add up to at most 1, models have names of their own. The message
 * begins with the place of the key that breaks the rule. c->faults gets every error, err is the
 * first; nothing is looked at where a file was half read. */
int cfg_check(struct cfg *c, struct cn_error *err);
/* Puts where a key was set before err's message ("file:line:column", "--host"), and the key between
 * them where the message does not say it; nothing when it has its default. cfg_error_place takes
 * the key from err->param, for errors found later. */
void cfg_error_at(const struct cfg_place *place, struct cn_error *err);
void cfg_error_place(const struct cfg *c, struct cn_error *err);
/* Whether any tenant has a key; without one requests are checked by Host and Origin. */
bool cfg_has_keys(const struct cfg *c);
/* Whether `host` (an address, or localhost) reaches only this machine. */
bool cfg_is_loopback(const char *host);
/* Sets the logger's level and format. */
void cfg_log_setup(const struct cfg *c);

/* ---- addresses (config/address.c) ------------------------------------------------------------ */

#define CFG_ADDR_TEXT 46 /* of the longest address, NUL included */

/* An IP address, IPv4 as the IPv6 address that maps it (::ffff:192.0.2.1): both ways to write one
 * are the same address. */
struct cfg_addr { uint8_t bytes[16]; };
/* The addresses that share the first bits of one. */
struct cfg_range {
    struct cfg_addr at;
    uint8_t bits; /* of the 128 */
};
bool cfg_addr_is_v4(const struct cfg_addr *a);
/* Reads an address: no port, brackets, zone or spaces. */
bool cfg_parse_addr(const char *s, size_t n, struct cfg_addr *out);
void cfg_addr_text(const struct cfg_addr *a, char out[CFG_ADDR_TEXT]);
/* Reads ADDRESS or ADDRESS/LENGTH, which must be the range's own first address. */
int cfg_parse_range(const char *s, size_t n, struct cfg_range *out, struct cn_error *err);
bool cfg_range_has(const struct cfg_range *r, const struct cfg_addr *a);

/* ---- models (config/models.c) ---------------------------------------------------------------- */

struct cfg_model {
    const char *name, *file, *family, *quant;
    uint64_t bytes;     /* exact with a sha256, else about right; 0: not known */
    const char *sha256; /* 64 lower-case hex digits; "" where only the source knows it */
    const char *licence, *source, *note;
};
/* The catalog, *count lines; the first is the default. */
const struct cfg_model *cfg_catalog(size_t *count);
/* The line of that name, or NULL. */
const struct cfg_model *cfg_catalog_find(const char *name);
/* [A-Za-z0-9._-], 1 to 128 of them, not beginning with a dot. */
bool cfg_model_name_ok(const char *name);
/* "null" and "null:...": a model without arithmetic, no file (docs/NULL.md); ./null is a file. */
bool cfg_model_is_null(const char *path);
/* $CONIFER_HOME/models, else $XDG_DATA_HOME/conifer/models, else ~/.local/share/conifer/models.
 * The service's unit sets CONIFER_HOME=/var/lib/conifer. Returned owned; NULL when out of
 * memory. */
char *cfg_models_dir(void);
/* Finds the file of a model name in dir: the catalog's file, else <name>.gguf, or <name> when it
 * ends in .gguf. CN_EINVAL for a name outside the alphabet, CN_EMODEL when there is none. *path is
 * returned owned. */
int cfg_find_model(const char *dir, const char *name, char **path, struct cn_error *err);
/* The file that c asks for: model.path, else model.name, else the catalog's default. *path and
 * *name (what clients call it) are returned owned. */
int cfg_model_file(const struct cfg *c, char **path, char **name, struct cn_error *err);
/* The file of an item of `models`; returned owned. */
int cfg_served_file(const struct cfg_served *m, char **path, struct cn_error *err);

/* The line of the catalog that a file is: by its name, and its size where that is exact; or
 * NULL. */
const struct cfg_model *cfg_catalog_of(const char *path);

/* ---- engine groups (config/groups.c) --------------------------------------------------------- */

#define CFG_MAX_GROUPS 16

/* At least 1: without a list there is one, named "main". */
uint32_t cfg_n_groups(const struct cfg *c);
const char *cfg_group_name(const struct cfg *c, uint32_t group);
/* enum cfg_device */
int cfg_group_device(const struct cfg *c, uint32_t group);
/* >= 1 */
uint32_t cfg_group_threads(const struct cfg *c, uint32_t group);
/* What of `total` bytes is the group's; all of it where there is one. 0: total is 0, and the group
 * does not say. */
uint64_t cfg_group_memory(const struct cfg *c, uint32_t group, uint64_t total);
/* The key that says how much memory the group has. */
const char *cfg_group_memory_key(const struct cfg *c);
/* Bytes of the pool of KV blocks; 0: to be chosen. */
uint64_t cfg_group_kv_memory(const struct cfg *c, uint32_t group);
/* Where an item of `models` runs. */
uint32_t cfg_group_of(const struct cfg *c, const struct cfg_served *m);

/* ---- sampling (config/sampling.c) ------------------------------------------------------------ */

enum cfg_sampling_field {
    CFG_S_TEMPERATURE,
    CFG_S_TOP_P,
    CFG_S_TOP_K,
    CFG_S_MIN_P,
    CFG_S_REPETITION,
    CFG_S_PRESENCE,
    CFG_S_FREQUENCY,
    CFG_N_SAMPLING
};
struct cfg_sampling {
    double v[CFG_N_SAMPLING];
    unsigned given; /* bit per field that has a value */
};
const char *cfg_sampling_name(enum cfg_sampling_field f);
/* Whether v is within the bounds of field f. */
bool cfg_sampling_ok(enum cfg_sampling_field f, double v);
/* "temperature=0.6, top_p=0.95"; NULL and "" name nothing. */
int cfg_sampling_read(const char *text, struct cfg_sampling *out, struct cn_error *err);
/* What is recommended for a model of the catalog, as such a text; or NULL. */
const char *cfg_catalog_sampling(const char *name);

/* ---- the machine (config/machine.c) ---------------------------------------------------------- */

/* Bytes that can be allocated without swapping: what the system has available, and at most what
 * every control group above this process (v1 or v2) still allows. 0 when unknown. */
uint64_t cfg_free_memory(void);
/* Of it, what models and KV memory may take: what is kept for requests (server.memory_bytes) and
 * for saved blocks (kv.host_memory_bytes) is left out, at most three quarters. 0 when unknown. */
uint64_t cfg_engine_memory(const struct cfg *cfg);
/* As cfg_free_memory, with /proc and /sys read below `root` (tests). */
uint64_t cfg_free_memory_at(const char *root);
/* Processors this process may use: its affinity, and its control groups' quota, rounded up. >=
 * 1. */
int cfg_cores(void);

/* ---- tenants as they change ------------------------------------------------------------------ */

#include "config/tenants.h" /* the rest of this folder's public header */

#endif
