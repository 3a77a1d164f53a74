/* config: defaults, the YAML reader, options, rules between keys. */
#include "config/config.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HASH_A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "sha256:0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef"

static int load(struct cfg *c, const char *text, struct cn_error *e)
{
    memset(e, 0, sizeof *e);
    return cfg_load_text(c, "t.yaml", text, strlen(text), e);
}

static void defaults_are_what_the_table_says(void **state)
{
    struct cfg c;
    struct cn_error e = {0};

    assert_int_equal(cfg_init(&c, &e), 0);
    assert_string_equal(c.server.host, "127.0.0.1");
    assert_int_equal(c.server.port, 8080);
    assert_null(c.server.unix_socket);
    assert_int_equal(c.server.max_body_bytes, 16 << 20);
    assert_true(c.server.header_timeout_s == 10 && c.server.body_grace_s == 30);
    assert_int_equal(c.server.body_min_rate, 1024);
    assert_int_equal(c.server.stream_buffer_bytes, 262144);
    assert_int_equal(c.server.allowed_hosts.count, 0);
    assert_int_equal(c.model.context, 0);
    assert_int_equal(c.model.kv_type, CFG_KV_F16);
    assert_int_equal(c.engine.isa, CFG_ISA_AUTO);
    assert_int_equal(c.kv.memory_bytes, 0);
    assert_int_equal(c.kv.block_tokens, 16);
    assert_int_equal(c.limits.max_n, 8);
    /* Nothing waits or runs for ever where nobody said how long. */
    assert_true(c.scheduler.queue_timeout_s == 120 && c.scheduler.default_deadline_s == 3600);
    assert_int_equal(c.limits.max_tokens, 0);
    assert_int_equal(c.log.level, CFG_LOG_INFO);
    assert_int_equal(c.n_tenants, 0);
    assert_int_equal(cfg_check(&c, &e), 0);
    cfg_fini(&c);
    cfg_fini(&c);
    cfg_fini(NULL);
}

static const char full_file[] =
    "# a comment\n"
    "server:\n"
    "  host: '::1'\n"
    "  port: 9000\n"
    "  max_body_bytes: 2 MiB\n"
    "  heartbeat_s: 0.5\n"
    "  allowed_hosts: [chat.example.org, \"other\"]\n"
    "model: {path: /x/y.gguf, kv_type: q8_0, context: 4096}\n"
    "engine:\n"
    "  isa: avx2\n"
    "kv:\n"
    "  memory_bytes: 3GiB\n"
    "  block_tokens: 32\n"
    "scheduler: ~\n"
    "log: {level: debug, format: json}\n"
    "tenants:\n"
    "  - name: alpha\n"
    "    keys:\n"
    "      - " HASH_A "\n"
    "      - " HASH_B "\n"
    "    weight: 2.5\n"
    "    kv_share: 0.25\n"
    "    priority: interactive\n"
    "  - {name: beta, max_concurrency: 3, max_queued: 7, keys: ["
    "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]}\n";

static void a_whole_file(void **state)
{
    struct cfg c;
    struct cn_error e;

    assert_int_equal(cfg_init(&c, NULL), 0);
    if (load(&c, full_file, &e)) fail_msg("%s", e.message);
    assert_string_equal(c.server.host, "::1");
    assert_int_equal(c.server.port, 9000);
    assert_int_equal(c.server.max_body_bytes, 2 << 20);
    assert_true(c.server.heartbeat_s == 0.5);
    assert_int_equal(c.server.allowed_hosts.count, 2);
    assert_string_equal(c.server.allowed_hosts.items[1], "other");
    assert_string_equal(c.model.path, "/x/y.gguf");
    assert_int_equal(c.model.kv_type, CFG_KV_Q8_0);
    assert_int_equal(c.model.context, 4096);
    assert_int_equal(c.engine.isa, CFG_ISA_AVX2);
    assert_true(c.kv.memory_bytes == UINT64_C(3) << 30);
    assert_int_equal(c.kv.block_tokens, 32);
    assert_int_equal(c.scheduler.max_running, 64);
    assert_int_equal(c.log.level, CFG_LOG_DEBUG);
    assert_int_equal(c.log.format, CFG_LOG_JSON);
    assert_int_equal(c.n_tenants, 2);
    assert_string_equal(c.tenants[0].name, "alpha");
    assert_int_equal(c.tenants[0].keys.count, 2);
    assert_int_equal(c.tenants[0].key_hashes[0].sha256[31], 0xaa);
    assert_int_equal(c.tenants[0].key_hashes[1].sha256[7], 0xef);
    assert_int_equal(c.tenants[0].key_hashes[1].sha256[15], 0xef);
    assert_true(c.tenants[0].weight == 2.5 && c.tenants[1].weight == 1);
    assert_int_equal(c.tenants[0].priority, CFG_INTERACTIVE);
    assert_int_equal(c.tenants[1].priority, CFG_NORMAL);
    assert_int_equal(c.tenants[1].max_concurrency, 3);
    assert_true(cfg_has_keys(&c));
    assert_int_equal(cfg_check(&c, &e), 0);
    /* a second file goes over the first; its tenants replace the others */
    assert_int_equal(load(&c, "server: {port: 1}\ntenants: [{name: solo}]\n", &e), 0);
    assert_int_equal(c.server.port, 1);
    assert_string_equal(c.server.host, "::1");
    assert_int_equal(c.n_tenants, 1);
    cfg_fini(&c);
}

static void files_with_nothing_to_say(void **state)
{
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "# only a comment\n",
                                        "---\n",
                                        "---\n...\n",
                                        "~\n",
                                        "{}\n",
                                        "server:\nmodel:\n",
                                        "\xef\xbb\xbf",
                                        "tenants:\n",
                                        "server: {allowed_hosts: }\n"};
    for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++) {
        struct cfg c;
        struct cn_error e;
        assert_int_equal(cfg_init(&c, NULL), 0);
        if (load(&c, texts[i], &e)) fail_msg("%zu: %s", i, e.message);
        assert_int_equal(c.server.port, 8080);
        cfg_fini(&c);
    }
}

/* Every beginning of a valid file is read or refused, and nothing leaks (run under ASan). */
static void every_cut_of_a_file(void **state)
{
    size_t refused = 0;

    for (size_t n = 0; n < sizeof full_file - 1; n++) {
        struct cfg c;
        struct cn_error e = {0};

        assert_int_equal(cfg_init(&c, NULL), 0);
        char *exact = malloc(n ? n : 1); /* so that a read past the end is seen */
        memcpy(exact, full_file, n);
        if (cfg_load_text(&c, "t.yaml", exact, n, &e)) {
            refused++;
            assert_true(e.message[0] != '\0');
        }
        free(exact);
        cfg_fini(&c);
    }
    assert_in_range(refused, 50, sizeof full_file);
}

static void large_and_deep_files(void **state)
{
    size_t n = 2 << 20;
    char *text = malloc(n + 1);
    struct cfg c;
    struct cn_error e;

    assert_non_null(text);
    memset(text, '[', n);
    text[n] = '\0';
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(load(&c, text, &e), CN_ELIMIT);
    text[1 << 20] = '\0';
    assert_int_equal(load(&c, text, &e), CN_ETYPE); /* stops at the first bracket */
    text[100000] = '\0';
    memcpy(text, "server: {allowed_hosts: ", 24);
    assert_int_equal(load(&c, text, &e), CN_ETYPE);
    free(text);
    assert_int_equal(cfg_load_file(&c, "/nonexistent/conifer.yaml", &e), CN_EIO);
    assert_non_null(strstr(e.message, "/nonexistent/conifer.yaml: No such file"));
    assert_int_equal(cfg_load_file(&c, "/", &e), CN_EIO);
    cfg_fini(&c);
}

static void rules_between_keys(void **state)
{
    static const struct {
        const char *text, *param, *place; /* NULL: fine */
    } cases[] = {
        {"server: {host: 0.0.0.0}\n", "server.host", "1:10"},
        {"server:\n  port: 1\n  host: 0.0.0.0\ntenants: [{name: a}]\n", "server.host", "3:3"},
        {"server: {host: 0.0.0.0}\ntenants: [{name: a, keys: [" HASH_A "]}]\n", NULL, NULL},
        {"server: {host: ''}\n", "server.host", "1:10"},
        {"tenants: [{name: a, keys: [" HASH_A "]}, {name: a, keys: [" HASH_B "]}]\n",
         "tenants.name", "1:104"},
        {"tenants:\n- {name: a, keys: [" HASH_A "]}\n- name: b\n  keys: [" HASH_A "]\n",
         "tenants.keys", "4:3"},
        {"tenants:\n- {name: a, keys: [" HASH_A "]}\n-   name: b\n", "tenants.keys", "3:5"},
        {"tenants: [{name: a},\n {name: b}]\n", "tenants.keys", "2:3"},
        {"tenants: [{name: a}]\n", NULL, NULL},
        {"tenants:\n- {name: a, kv_share: 0.6, keys: [" HASH_A "]}\n- name: b\n  keys: [" HASH_B
         "]\n  kv_share: 0.5\n",
         "tenants.kv_share", "5:3"},
        {"model: {kv_type: f16, name: ../../etc/passwd}\n", "model.name", "1:23"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cfg c;
        struct cn_error e;
        char place[64];

        assert_int_equal(cfg_init(&c, NULL), 0);
        if (load(&c, cases[i].text, &e)) fail_msg("%s", e.message);
        int rc = cfg_check(&c, &e);
        if ((rc != 0) != (cases[i].param != NULL) || (rc && strcmp(e.param, cases[i].param)))
            fail_msg("%s-> %d [%s] %s", cases[i].text, rc, e.param, e.message);
        snprintf(place, sizeof place, "t.yaml:%s: ", cases[i].place ? cases[i].place : "");
        if (rc && strncmp(e.message, place, strlen(place)))
            fail_msg("%s-> not at %s: %s", cases[i].text, place, e.message);
        cfg_fini(&c);
    }
    assert_true(cfg_is_loopback("127.8.9.1") && cfg_is_loopback("::1"));
    assert_true(cfg_is_loopback("LOCALHOST") && cfg_is_loopback("::ffff:127.0.0.1"));
    assert_false(cfg_is_loopback("0.0.0.0") || cfg_is_loopback("::") ||
                 cfg_is_loopback("10.0.0.1"));
    assert_false(cfg_is_loopback("localhost.evil.org") || cfg_is_loopback("::ffff:10.0.0.1"));
}

static void the_last_place_is_told(void **state)
{
    struct cfg c;
    struct cn_error e = {0};
    char *argv[] = {"prog",  "--context=99",      "--host", "0.0.0.0",
                    "--set", "kv.memory_bytes=5", NULL};
    int argc = 6;

    assert_int_equal(cfg_init(&c, NULL), 0);
    cn_fail_param(&e, CN_ERANGE, "model.context", "too long");
    cfg_error_place(&c, &e); /* a default has no place */
    assert_string_equal(e.message, "too long");
    char name[] = "first.yaml"; /* the place keeps its own copy */
    assert_int_equal(cfg_load_text(&c, name, "model:\n  context: 5\n", 20, &e), 0);
    memset(name, 'x', sizeof name - 1);
    cn_fail_param(&e, CN_ERANGE, "model.context", "too long");
    cfg_error_place(&c, &e);
    assert_string_equal(e.message, "first.yaml:2:3: model.context: too long");
    assert_string_equal(e.param, "model.context");
    assert_int_equal(cfg_load_text(&c, "second.yaml", "model: {context: 6}\n", 20, &e), 0);
    cn_fail_param(&e, CN_ERANGE, "model.context", "too long");
    cfg_error_place(&c, &e);
    assert_string_equal(e.message, "second.yaml:1:9: model.context: too long");
    assert_int_equal(cfg_from_args(&c, &argc, argv, &e), 0);
    cn_fail_param(&e, CN_ERANGE, "model.context", "too long");
    cfg_error_place(&c, &e);
    assert_string_equal(e.message, "--context: model.context: too long");
    cn_fail_param(&e, CN_ENOMEM, "kv.memory_bytes", "too little");
    cfg_error_place(&c, &e);
    assert_string_equal(e.message, "--set: kv.memory_bytes: too little");
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_int_equal(strncmp(e.message, "--host: server.host: 0.0.0.0 ", 29), 0);
    static const char *const no_keys[] = {"", "n", "messages", "tenants.name", "model.", ".x"};
    for (size_t i = 0; i < CN_ARRAY_LEN(no_keys); i++) {
        cn_fail_param(&e, CN_EINVAL, no_keys[i], "reason");
        cfg_error_place(&c, &e);
        assert_string_equal(e.message, "reason");
    }
    cfg_error_place(&c, NULL);
    cfg_fini(&c);
}

static void setting_one_key(void **state)
{
    struct cfg c;
    struct cn_error e;

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(cfg_set(&c, "server.port", "99", &e), 0);
    assert_int_equal(c.server.port, 99);
    assert_int_equal(cfg_set(&c, "server.allowed_hosts", "a,b,,c", &e), 0);
    assert_int_equal(c.server.allowed_hosts.count, 3);
    assert_int_equal(cfg_set(&c, "server.allowed_hosts", "", &e), 0);
    assert_int_equal(c.server.allowed_hosts.count, 0);
    assert_int_equal(cfg_set(&c, "server.port", "x", &e), CN_ETYPE);
    assert_string_equal(e.param, "server.port");
    assert_int_equal(c.server.port, 99);
    assert_int_equal(cfg_set(&c, "server.nope", "x", &e), CN_EINVAL);
    assert_int_equal(cfg_set(&c, "nope", "x", &e), CN_EINVAL);
    assert_int_equal(cfg_set(&c, "tenants.name", "x", &e), CN_EINVAL);
    assert_int_equal(cfg_set(&c, ".", "x", &e), CN_EINVAL);
    cfg_fini(&c);
}

static void several_models(void **state)
{
    struct cfg c;
    struct cn_error e;

    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(c.n_models, 0);
    assert_int_equal(load(&c,
                          "tenants: []\nmodels:\n- name: a\n- {name: b, path: /x.gguf, pin: true, "
                          "preload: false, kv_type: q4_0,\n   context: 99, chat_template: t}\n"
                          "server: {unknown_model: default}\nengine: {memory_bytes: 2GiB}\n",
                          &e),
                     0);
    assert_int_equal(c.n_models, 2);
    const struct cfg_served *a = &c.models[0], *b = &c.models[1];
    assert_string_equal(a->name, "a");
    assert_null(a->path);
    assert_false(a->pin || a->preload || a->context || a->kv_type || a->chat_template);
    assert_string_equal(b->path, "/x.gguf");
    assert_true(b->pin && !b->preload && b->kv_type == CFG_KV_Q4_0 && b->context == 99);
    assert_string_equal(b->chat_template, "t");
    assert_int_equal(b->places[CFG_MODEL_KEY_name].line, 4);
    assert_int_equal(c.server.unknown_model, CFG_UNKNOWN_DEFAULT);
    assert_int_equal(c.engine.memory_bytes, 2ull << 30);
    assert_int_equal(cfg_check(&c, &e), 0);
    /* what is for one model says nothing beside a list */
    assert_int_equal(cfg_set(&c, "model.context", "7", &e), 0);
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_string_equal(e.param, "model.context");
    /* a second file's list replaces the first's; names must differ */
    assert_int_equal(cfg_set(&c, "model.context", "0", &e), 0);
    assert_int_equal(load(&c, "models:\n- name: z\n- name: y\n- name: z\n", &e), 0);
    assert_int_equal(c.n_models, 3);
    assert_int_equal(cfg_check(&c, &e), CN_EINVAL);
    assert_string_equal(e.message, "t.yaml:4:3: models.name: two models are named \"z\"");
    cfg_fini(&c);
}

/* Loads text over the defaults; returns what cfg_check says. */
static int check_text(struct cfg *c, const char *text, struct cn_error *e)
{
    assert_int_equal(cfg_init(c, NULL), 0);
    *e = (struct cn_error){0};
    if (load(c, text, e)) fail_msg("%s", e->message);
    return cfg_check(c, e);
}

/* What groups name is theirs; those that name nothing have equal parts of the rest. */
static void engine_groups(void **state)
{
    static const char *const wrong[][2] = {
        {"groups: [{name: g}]\n", "1:11: groups: groups are for a list of models"},
        {"models: [{name: a, group: g}]\n", "1:20: models.group: there is no group \"g\""},
        {"models: [{name: a, group: h}]\ngroups: [{name: g}]\n", "1:20: models.group: there is"},
        {"models: [{name: a}]\ngroups: [{name: g}, {name: g}]\n", "2:22: groups.name: two groups"},
        {"models: [{name: a}]\ngroups: [{name: g}, {name: h}]\n", "2:22: groups.name: no model is"},
        {"models: [{name: a}]\ngroups: [{name: g}]\nkv: {memory_bytes: 1MiB}\n",
         "3:6: kv.memory_bytes: this is for one pool"},
        {"models: [{name: a}]\ngroups: [{name: g, threads: 3}]\nengine: {threads: 2}\n",
         "2:20: groups.threads: with \"g\" the groups have 3 threads, and engine.threads is 2"},
        {"models: [{name: a}]\ngroups: [{name: g, memory_bytes: 3MiB}]\n"
         "engine: {memory_bytes: 2MiB}\n",
         "2:20: groups.memory_bytes: with \"g\" the groups have"},
        {"models: [{name: a}]\ngroups: [{name: g, memory_bytes: 3MiB, kv_memory_bytes: 3MiB}]\n",
         "2:40: groups.kv_memory_bytes: the group \"g\" would have no memory left"}};
    struct cfg c;
    struct cn_error e;

    assert_int_equal(check_text(&c, "engine: {threads: 5}\n", &e), 0);
    assert_int_equal(cfg_n_groups(&c), 1);
    assert_string_equal(cfg_group_name(&c, 0), "main");
    assert_int_equal(cfg_group_threads(&c, 0), 5);
    assert_int_equal(cfg_group_memory(&c, 0, 77), 77);
    cfg_fini(&c);
    assert_int_equal(check_text(&c,
                                "engine: {threads: 8, device: async}\n"
                                "groups:\n- {name: a, threads: 3, memory_bytes: 1GiB}\n"
                                "- {name: b, device: cpu, kv_memory_bytes: 1MiB}\n- name: c\n"
                                "models: [{name: x}, {name: y, group: c}, {name: z, group: b}]\n",
                                &e),
                     0);
    assert_int_equal(cfg_n_groups(&c), 3);
    assert_int_equal(cfg_group_threads(&c, 0), 3);
    assert_int_equal(cfg_group_threads(&c, 1), 3);
    assert_int_equal(cfg_group_threads(&c, 2), 2);
    assert_int_equal(cfg_group_memory(&c, 0, 5ull << 30), 1u << 30);
    assert_int_equal(cfg_group_memory(&c, 2, 5ull << 30), 2ull << 30);
    assert_int_equal(cfg_group_memory(&c, 2, 0), 0);
    assert_int_equal(cfg_group_kv_memory(&c, 1), 1u << 20);
    assert_int_equal(cfg_group_device(&c, 0), CFG_DEVICE_async);
    assert_int_equal(cfg_group_device(&c, 1), CFG_DEVICE_cpu);
    assert_int_equal(cfg_group_of(&c, &c.models[0]), 0);
    assert_int_equal(cfg_group_of(&c, &c.models[1]), 2);
    c.engine.threads = 3; /* none are left, and no group is without */
    assert_int_equal(cfg_group_threads(&c, 2), 1);
    cfg_fini(&c);
    for (size_t i = 0; i < CN_ARRAY_LEN(wrong); i++) {
        assert_int_not_equal(check_text(&c, wrong[i][0], &e), 0);
        if (!strstr(e.message, wrong[i][1])) fail_msg("%s", e.message);
        cfg_fini(&c);
    }
}

static void options_over_file(void **state)
{
    char file[] = "/tmp/conifer-test-XXXXXX";
    int fd = mkstemp(file);
    struct cfg c;
    struct cn_error e = {0};
    static const char text[] = "server: {port: 7000, host: '::1'}\nengine: {threads: 3}\n";

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    char *argv[] = {
        "prog",           "serve", "--port",         "7001", "-x",     "--config", file,
        "--model=m.gguf", "--set", "limits.max_n=3", "--",   "--port", "5",        NULL};
    int argc = 13;
    assert_int_equal(cfg_init(&c, NULL), 0);
    if (cfg_from_args(&c, &argc, argv, &e)) fail_msg("%s", e.message);
    assert_int_equal(c.server.port, 7001); /* over the file, though it stands before --config */
    assert_string_equal(c.server.host, "::1");
    assert_int_equal(c.engine.threads, 3);
    assert_string_equal(c.model.path, "m.gguf");
    assert_int_equal(c.limits.max_n, 3);
    static const char *const rest[] = {"prog", "serve", "-x", "--", "--port", "5"};
    assert_int_equal(argc, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(argv[i], rest[i]);
    assert_null(argv[6]);
    /* a name on the command line wins over a path in the file */
    char *name[] = {"prog", "--model", "smollm2-135m", NULL};
    argc = 3;
    assert_int_equal(cfg_from_args(&c, &argc, name, &e), 0);
    assert_null(c.model.path);
    assert_string_equal(c.model.name, "smollm2-135m");
    char *lone[] = {"prog", "--port", NULL};
    argc = 2;
    assert_int_equal(cfg_from_args(&c, &argc, lone, &e), CN_EMISSING);
    char *wrong[] = {"prog", "--port=abc", NULL};
    argc = 2;
    assert_int_equal(cfg_from_args(&c, &argc, wrong, &e), CN_ETYPE);
    assert_non_null(strstr(e.message, "--port: server.port: must be a whole number"));
    char *longer[] = {"prog", "--portable", "1", NULL};
    argc = 3;
    assert_int_equal(cfg_from_args(&c, &argc, longer, &e), 0);
    assert_int_equal(argc, 3);
    char *absent[] = {"prog", "--config", "/nonexistent.yaml", NULL};
    argc = 3;
    assert_int_equal(cfg_from_args(&c, &argc, absent, &e), CN_EIO);
    cfg_fini(&c);
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_what_the_table_says),
        cmocka_unit_test(a_whole_file),
        cmocka_unit_test(files_with_nothing_to_say),
        cmocka_unit_test(every_cut_of_a_file),
        cmocka_unit_test(large_and_deep_files),
        cmocka_unit_test(rules_between_keys),
        cmocka_unit_test(the_last_place_is_told),
        cmocka_unit_test(setting_one_key),
        cmocka_unit_test(options_over_file),
        cmocka_unit_test(several_models),
        cmocka_unit_test(engine_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
