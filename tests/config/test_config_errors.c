/* config: errors: the place and key of each; all that the file, the options and the rules have. */
#include "config/config.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HASH_A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static int load(struct cfg *c, const char *text, struct cn_error *e)
{
    memset(e, 0, sizeof *e);
    return cfg_load_text(c, "t.yaml", text, strlen(text), e);
}

static const struct {
    const char *text;
    int code;
    const char *param, *message; /* the message's beginning */
} bad[] = {
    {"server:\n  prot: 1\n", CN_EINVAL, "server.prot",
     "t.yaml:2:3: server.prot: unknown key; did you mean \"port\"?"},
    {"sever:\n  port: 1\n", CN_EINVAL, "sever",
     "t.yaml:1:1: sever: unknown key; did you mean \"server\"?"},
    {"wholly_else: 1\n", CN_EINVAL, "wholly_else", "t.yaml:1:1: wholly_else: unknown key"},
    {"tenants:\n- name: a\n  wieght: 1\n", CN_EINVAL, "tenants.wieght",
     "t.yaml:3:3: tenants.wieght: unknown key; did you mean \"weight\"?"},
    {"models:\n- name: a\n  kv_typ: f16\n", CN_EINVAL, "models.kv_typ",
     "t.yaml:3:3: models.kv_typ: unknown key; did you mean \"kv_type\"?"},
    {"modles: []\n", CN_EINVAL, "modles", "t.yaml:1:1: modles: unknown key; did you mean \"model"},
    {"models:\n- path: x\n", CN_EMISSING, "models.name",
     "t.yaml:2:3: models.name: a model needs a name"},
    {"models:\n- name: a/b\n", CN_EINVAL, "models.name", "t.yaml:2:3: models.name: may hold only"},
    {"models:\n- name: a\n  pin: 1\n", CN_ETYPE, "models.pin",
     "t.yaml:3:8: models.pin: must be true or false, not \"1\""},
    {"models:\n- name: a\n  preload: 'true'\n", CN_ETYPE, "models.preload", "t.yaml:3:12: "},
    {"models: a\n", CN_ETYPE, "models", "t.yaml:1:9: models: must be a list of models"},
    {"models: [a]\n", CN_ETYPE, "models", "t.yaml:1:10: models: each model must be a group"},
    {"groups:\n- threads: 1\n", CN_EMISSING, "groups.name",
     "t.yaml:2:3: groups.name: a group needs a name"},
    {"groups:\n- name: a\n  thread: 1\n", CN_EINVAL, "groups.thread",
     "t.yaml:3:3: groups.thread: unknown key; did you mean \"threads\"?"},
    {"group: []\n", CN_EINVAL, "group", "t.yaml:1:1: group: unknown key; did you mean \"groups\"?"},
    {"groups: []\ngroups: []\n", CN_EINVAL, "groups", "t.yaml:2:1: groups: this key was given"},
    {"models: []\nmodels: []\n", CN_EINVAL, "models", "t.yaml:2:1: models: this key was given"},
    {"server:\n  unknown_model: maybe\n", CN_EINVAL, "server.unknown_model", "t.yaml:2:18: "},
    {"server:\n  port: 1\n  host: a\n  port: 2\n", CN_EINVAL, "server.port",
     "t.yaml:4:3: server.port: this key was given already"},
    {"server:\n  port: 1\nmodel: {}\nserver: {}\n", CN_EINVAL, "server",
     "t.yaml:4:1: server: this key was given already"},
    {"tenants: []\ntenants: []\n", CN_EINVAL, "tenants", "t.yaml:2:1: tenants: this key was given"},
    {"server:\n  port: many\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a whole number, not \"many\""},
    {"server:\n  port: '80'\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a number"},
    {"server:\n  port: 80.5\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a whole"},
    {"server:\n  port: 0x50\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a whole"},
    {"server:\n  port: 65536\n", CN_ERANGE, "server.port",
     "t.yaml:2:9: server.port: must be from 0 to 65535, not 65536"},
    {"server:\n  port: -1\n", CN_ERANGE, "server.port", "t.yaml:2:9: server.port: must be from 0"},
    {"server:\n  port: 99999999999999999999999\n", CN_ERANGE, "server.port", "t.yaml:2:9: "},
    {"server:\n  port: [1]\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a single"},
    {"server:\n  port: {a: 1}\n", CN_ETYPE, "server.port",
     "t.yaml:2:9: server.port: must be a sin"},
    {"server:\n  idle_timeout_s: nan\n", CN_ETYPE, "server.idle_timeout_s", "t.yaml:2:19: "},
    {"server:\n  idle_timeout_s: 1e999\n", CN_ETYPE, "server.idle_timeout_s", "t.yaml:2:19: "},
    {"server:\n  idle_timeout_s: 0\n", CN_ERANGE, "server.idle_timeout_s", "t.yaml:2:19: "},
    {"server:\n  max_body_bytes: 12 XiB\n", CN_ETYPE, "server.max_body_bytes", "t.yaml:2:19: "},
    {"server:\n  max_body_bytes: 12MB\n", CN_ETYPE, "server.max_body_bytes", "t.yaml:2:19: "},
    {"server:\n  max_body_bytes: 2GiB\n", CN_ERANGE, "server.max_body_bytes", "t.yaml:2:19: "},
    {"kv: {memory_bytes: 99999999999TiB}\n", CN_ETYPE, "kv.memory_bytes", "t.yaml:1:20: "},
    {"kv: {block_tokens: 24}\n", CN_EINVAL, "kv.block_tokens",
     "t.yaml:1:20: kv.block_tokens: must be one of 16|32, not \"24\""},
    {"model: {kv_type: f17}\n", CN_EINVAL, "model.kv_type",
     "t.yaml:1:18: model.kv_type: must be one of f16|q8_0|q4_0, not \"f17\""},
    {"model: {kv_type: f16|q8_0}\n", CN_EINVAL, "model.kv_type", "t.yaml:1:18: "},
    {"server: 5\n", CN_ETYPE, "server", "t.yaml:1:9: server: must be a group"},
    {"server: {allowed_hosts: a}\n", CN_ETYPE, "server.allowed_hosts", "t.yaml:1:25: "},
    {"server: {allowed_hosts: [[a]]}\n", CN_ETYPE, "server.allowed_hosts", "t.yaml:1:26: "},
    {"server: {allowed_hosts: [a, ~]}\n", CN_ETYPE, "server.allowed_hosts", "t.yaml:1:29: "},
    {"server: {host: \"a\\0b\"}\n", CN_EINVAL, "server.host", "t.yaml:1:16: server.host: must not"},
    {"- a\n", CN_ETYPE, "", "t.yaml:1:1: the file must hold groups of keys"},
    {"just text\n", CN_ETYPE, "", "t.yaml:1:1: the file must hold"},
    {"? [a]\n: b\n", CN_ETYPE, "", "t.yaml:1:3: a key must be a single word"},
    {"server: {port: 1\n", CN_EINVAL, "", "t.yaml:2:1: "},
    {"server:\n\tport: 1\n", CN_EINVAL, "", "t.yaml:2:1: a tab cannot indent YAML"},
    {"server:\n  \tport: 1\n", CN_EINVAL, "", "t.yaml:2:3: a tab cannot indent YAML"},
    {"server:\n  port: @1\n", CN_EINVAL, "", "t.yaml:2:9: found character that"},
    {"server: &x {port: 1}\n", CN_EUNSUPP, "", "t.yaml:1:9: anchors"},
    {"server: *x\n", CN_EUNSUPP, "", "t.yaml:1:9: anchors"},
    {"server: {port: !!int 1}\n", CN_EUNSUPP, "", "t.yaml:1:16: tags"},
    {"server: {}\n---\nserver: {}\n", CN_EUNSUPP, "", "t.yaml:2:1: a second document"},
    {"server: {host: \"\xff\"}\n", CN_EINVAL, "", "t.yaml:"},
    {"tenants: 5\n", CN_ETYPE, "tenants", "t.yaml:1:10: tenants: must be a list"},
    {"tenants: [a]\n", CN_ETYPE, "tenants", "t.yaml:1:11: tenants: each tenant"},
    {"tenants:\n- weight: 1\n", CN_EMISSING, "tenants.name", "t.yaml:2:3: tenants.name: a tenant"},
    {"tenants: [{name: 'a b'}]\n", CN_EINVAL, "tenants.name",
     "t.yaml:1:11: tenants.name: may hold"},
    {"tenants: [{name: a, keys: [cnf_secret]}]\n", CN_EINVAL, "tenants.keys", "t.yaml:1:28: "},
    {"tenants: [{name: a, keys: [" HASH_A "a]}]\n", CN_EINVAL, "tenants.keys", "t.yaml:1:28: "},
    {"tenants: [{name: a, keys: [" HASH_A ", " HASH_A "]}]\n", CN_EINVAL, "tenants.keys",
     "t.yaml:1:101: "},
    {"tenants:\n- keys:\n  - " HASH_A "\n  - sha256:abc\n  name: a\n  weight: 1\n", CN_EINVAL,
     "tenants.keys", "t.yaml:4:5: tenants.keys: a key must"},
    {"tenants: [{name: a, kv_share: 1.5}]\n", CN_ERANGE, "tenants.kv_share", "t.yaml:1:31: "},
    {"tenants: [{name: a, name: b}]\n", CN_EINVAL, "tenants.name", "t.yaml:1:21: "},
};

static void bad_files_name_place_and_key(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++) {
        struct cfg c;
        struct cn_error e;

        assert_int_equal(cfg_init(&c, NULL), 0);
        int rc = load(&c, bad[i].text, &e);
        if (rc != bad[i].code || strcmp(e.param, bad[i].param) ||
            strncmp(e.message, bad[i].message, strlen(bad[i].message)))
            fail_msg("%s-> %d [%s] %s", bad[i].text, rc, e.param, e.message);
        assert_int_equal(e.code, rc);
        cfg_fini(&c);
    }
}

/* What is wrong in one place hides nothing of the others. */
static void every_error_is_told(void **state)
{
    static const char text[] = "server:\n  port: many\n  colour: {red: [1, 2]}\n"
                               "  allowed_hosts: [a, [b, c], d]\n  host: [x]\n  port: 1\n"
                               "  ? [p, q]\n  : {r: s}\n"
                               "modle: {a: {b: c}}\n"
                               "model: 5\n"
                               "kv: !tag {block_tokens: 24}\n"
                               "tenants:\n- [a]\n- weight: heavy\n- {name: b, keys: [secret]}\n"
                               "models: {}\n"
                               "engine:\n  isa: best\n"
                               "server: {port: 5}\n";
    static const char *const want[] = {"t.yaml:2:9: server.port: must be a whole",
                                       "t.yaml:3:3: server.colour: unknown",
                                       "t.yaml:4:22: server.allowed_hosts: each item",
                                       "t.yaml:5:9: server.host: must be a single",
                                       "t.yaml:6:3: server.port: this key was given",
                                       "t.yaml:7:5: server: a key must be",
                                       "t.yaml:9:1: modle: unknown",
                                       "t.yaml:10:8: model: must be a group",
                                       "t.yaml:11:5: tags",
                                       "t.yaml:11:25: kv.block_tokens: must be one",
                                       "t.yaml:13:3: tenants: each",
                                       "t.yaml:14:11: tenants.weight: must be",
                                       "t.yaml:14:3: tenants.name: a tenant needs",
                                       "t.yaml:15:20: tenants.keys: a key must",
                                       "t.yaml:16:9: models: must be a list",
                                       "t.yaml:18:8: engine.isa: must be",
                                       "t.yaml:19:1: server: this key was given"};
    struct cfg c;
    struct cn_error e;

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, text, &e), CN_ETYPE);
    assert_string_equal(e.param, "server.port");
    assert_int_equal(c.faults.count, CN_ARRAY_LEN(want));
    for (size_t i = 0; i < c.faults.count; i++)
        if (strncmp(c.faults.items[i], want[i], strlen(want[i])))
            fail_msg("%zu: %s, not %s", i, c.faults.items[i], want[i]);
    assert_string_equal(e.message, c.faults.items[0]);
    assert_int_equal(c.server.allowed_hosts.count, 2);
    cfg_fini(&c);
}

/* Each entry that is not an address or a range is told, with the place of the key. */
static void proxies(void **state)
{
    struct cfg c;
    struct cn_error e;

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(
        load(&c, "server:\n  trusted_proxies: [10.0.0.0/8, '::1', 10.0.0.1/8, lb]\n", &e), 0);
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_string_equal(e.param, "server.trusted_proxies");
    assert_int_equal(c.faults.count, 2);
    assert_string_equal(c.faults.items[0], "t.yaml:2:3: server.trusted_proxies: \"10.0.0.1/8\" is "
                                           "inside a range, whose own address is 10.0.0.0/8");
    assert_non_null(strstr(c.faults.items[1], "\"lb\" is not an IP address or a range of them"));
    cfg_fini(&c);
}

/* Broken YAML ends the reading with what was found until there; so do too many errors. */
static void errors_that_end_the_reading(void **state)
{
    struct cfg c;
    struct cn_error e;
    char many[4096];
    size_t n = 0;

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, "server: {port: x}\nkv: [\n", &e), CN_ETYPE);
    assert_int_equal(c.faults.count, 3);
    assert_non_null(strstr(c.faults.items[1], "kv: must be a group"));
    assert_memory_equal(c.faults.items[2], "t.yaml:3:1: ", 12);
    cfg_fini(&c);
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(many + n, sizeof many - n, "key%d: 1\n", i);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, many, &e), CN_EINVAL);
    assert_string_equal(e.param, "key0");
    assert_int_equal(c.faults.count, 101);
    assert_non_null(strstr(c.faults.items[100], "more errors"));
    assert_int_equal(load(&c, "server: {host: 0.0.0.0, port: x}\n", &e), CN_ETYPE);
    assert_int_equal(cfg_check(&c, &e), 0); /* what was not read is no rule's business */
    assert_int_equal(c.faults.count, 101);
    cfg_fini(&c);
    n = 0; /* as many as are told: there are no more */
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(many + n, sizeof many - n, "%s  key%d: 1\n", i ? "" : "log:\n", i);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, many, &e), CN_EINVAL);
    assert_int_equal(c.faults.count, 100);
    assert_null(strstr(c.faults.items[99], "more errors"));
    assert_int_equal(cfg_set(&c, "server.host", "0.0.0.0", NULL), 0);
    assert_int_equal(cfg_set(&c, "model.name", "a/b", NULL), 0);
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_int_equal(c.faults.count, 101);
    assert_non_null(strstr(c.faults.items[100], "more errors"));
    cfg_fini(&c);
}

/* After too many errors neither another file nor an option is looked at. */
static void too_many_end_the_options(void **state)
{
    char path[] = "/tmp/test_config_XXXXXX";
    char *argv[] = {"x", "--config", path, "--config", path, "--port", "x", NULL};
    int argc = 7, fd = mkstemp(path);
    struct cfg c;
    struct cn_error e = {0};

    assert_true(fd >= 0);
    for (int i = 0; i < 101; i++)
        assert_true(dprintf(fd, "key%d: 1\n", i) > 0);
    close(fd);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(cfg_from_args(&c, &argc, argv, &e), CN_EINVAL);
    assert_string_equal(e.param, "key0");
    assert_int_equal(c.faults.count, 101);
    cfg_fini(&c);
    unlink(path);
}

/* Options and rules go on after an error as the file does, but for rules about what was not
 * read. */
static void errors_of_all_stages(void **state)
{
    char path[] = "/tmp/test_config_XXXXXX";
    char *argv[] = {"x", "--config", path, "--port", "x", "--threads=y", "--context", "5", NULL};
    int argc = 8, fd = mkstemp(path);
    static const char text[] = "server: {host: 0.0.0.0, body_min_rate: -1}\n"
                               "models: [{name: a}, {name: b}, {name: a}]\n";
    struct cfg c;
    struct cn_error e = {0};

    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    close(fd);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(cfg_from_args(&c, &argc, argv, &e), CN_ERANGE);
    assert_int_equal(c.faults.count, 3);
    assert_int_equal(argc, 1);
    assert_non_null(strstr(c.faults.items[1], "--port"));
    assert_non_null(strstr(c.faults.items[2], "--threads"));
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_string_equal(e.param, "server.host");
    assert_int_equal(c.faults.count, 6);
    assert_non_null(strstr(c.faults.items[4], ":2:33: models.name: two models are named \"a\""));
    assert_non_null(strstr(c.faults.items[5], "--context: model.context: this is for one model"));
    cfg_fini(&c);
    unlink(path);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, "server: {host: 0.0.0.0}\ntenants: [{nam: a, keys: [x]}]\n", &e),
                     CN_EINVAL);
    assert_int_equal(cfg_check(&c, &e), 0);
    cfg_fini(&c);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, "server: {host: 0.0.0.0, tenants: [{name: a}]}\n", &e), CN_EINVAL);
    assert_string_equal(e.param, "server.tenants");
    assert_int_equal(cfg_check(&c, &e), 0);
    cfg_fini(&c);
}

/* An option without its value takes nothing from those before it, and no rule is asked after it. */
static void an_option_without_its_value(void **state)
{
    char path[] = "/tmp/test_config_XXXXXX";
    static const char text[] = "server: {host: 0.0.0.0, colour: red}\n";
    static const char *const last[] = {"--port", "--host", "--config"};
    int fd = mkstemp(path);

    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    close(fd);
    for (size_t i = 0; i < CN_ARRAY_LEN(last); i++) {
        char *argv[] = {"x",  "--threads",     "3", "--kv-type", "f17", "--config",
                        path, (char *)last[i], NULL};
        int argc = 8;
        struct cfg c;
        struct cn_error e = {0};

        assert_int_equal(cfg_init(&c, NULL), 0);
        assert_int_equal(cfg_from_args(&c, &argc, argv, &e), CN_EINVAL);
        assert_int_equal(c.engine.threads, 3);
        assert_int_equal(c.faults.count, 3);
        assert_non_null(strstr(c.faults.items[0], "server.colour"));
        assert_non_null(strstr(c.faults.items[1], "--kv-type"));
        assert_non_null(strstr(c.faults.items[2], last[i]));
        assert_non_null(strstr(c.faults.items[2], "needs a value"));
        assert_int_equal(cfg_check(&c, &e), 0);
        cfg_fini(&c);
    }
    unlink(path);
}

/* One error for each item that is like one before it, not for each pair. */
static void what_is_shared_is_told_once(void **state)
{
#define KEYS(a, b)                                                                                 \
    "keys: [sha256:000000000000000000000000000000000000000000000000000000000000000" #a             \
    ", sha256:000000000000000000000000000000000000000000000000000000000000000" #b "]"
    static const char text[] =
        "models: [{name: m}, {name: m}, {name: m}, {name: m}]\n"
        "tenants:\n"
        "- {name: a, " KEYS(1, 2) "}\n"
                                  "- {name: b, " KEYS(1, 2) "}\n"
                                                            "- {name: a, " KEYS(
                                                                3, 4) "}\n"
                                                                      "- {name: a, " KEYS(2,
                                                                                          5) "}\n";
#undef KEYS
    static const char *const want[] = {":1:22: models.name: two models are named \"m\"",
                                       ":1:33: models.name: two models",
                                       ":1:44: models.name: two models",
                                       ":4:13: tenants.keys: tenants \"a\" and \"b\" share a key",
                                       ":5:4: tenants.name: two tenants are named \"a\"",
                                       ":6:4: tenants.name: two tenants are named \"a\"",
                                       ":6:13: tenants.keys: tenants \"a\" and \"a\" share a key"};
    struct cfg c;
    struct cn_error e = {0};

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, text, &e), 0);
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_int_equal(c.faults.count, CN_ARRAY_LEN(want));
    for (size_t i = 0; i < CN_ARRAY_LEN(want); i++)
        if (!strstr(c.faults.items[i], want[i]))
            fail_msg("%zu: %s, not %s", i, c.faults.items[i], want[i]);
    cfg_fini(&c);
}

/* The key stands between the place and the message, unless that says it: as a whole name, and not
 * as a part of another one or of a path. */
static void the_key_is_told_once(void **state)
{
    static const struct {
        const char *message, *want;
    } rows[] = {
        {"is 5", "c.yaml:2:3: model.path: is 5"},
        {"model.path is 5", "c.yaml:2:3: model.path is 5"},
        {"nothing is at model.path.", "c.yaml:2:3: nothing is at model.path."},
        {"x (model.path), y", "c.yaml:2:3: x (model.path), y"},
        {"cannot open /srv/model.path/x", "c.yaml:2:3: model.path: cannot open /srv/model.path/x"},
        {"model.path.gguf is cut", "c.yaml:2:3: model.path: model.path.gguf is cut"},
        {"model.paths is 5", "c.yaml:2:3: model.path: model.paths is 5"},
        {"my-model.path is 5", "c.yaml:2:3: model.path: my-model.path is 5"},
        {"model.path_2 with model.path", "c.yaml:2:3: model.path_2 with model.path"},
    };
    struct cfg_place place = {.source = "c.yaml", .line = 2, .column = 3};

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct cn_error e = {0};
        cn_fail_param(&e, CN_EINVAL, "model.path", "%s", rows[i].message);
        cfg_error_at(&place, &e);
        assert_string_equal(e.message, rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_name_place_and_key),
        cmocka_unit_test(every_error_is_told),
        cmocka_unit_test(proxies),
        cmocka_unit_test(errors_that_end_the_reading),
        cmocka_unit_test(too_many_end_the_options),
        cmocka_unit_test(errors_of_all_stages),
        cmocka_unit_test(an_option_without_its_value),
        cmocka_unit_test(what_is_shared_is_told_once),
        cmocka_unit_test(the_key_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
