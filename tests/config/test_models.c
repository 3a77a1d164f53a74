/* config/models.c and config/machine.c: names and folders, and made-up /proc and /sys trees. */
#include "config/config.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/conifer-models-XXXXXX";

/* Writes root + path, making the folders on the way. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static void catalog_lines_are_sound(void **state)
{
    size_t n;
    const struct cfg_model *m = cfg_catalog(&n);

    assert_true(n >= 2);
    assert_string_equal(m[0].name, "smollm2-135m");
    assert_true(m[0].bytes == 98362432);
    for (size_t i = 0; i < n; i++) {
        assert_true(cfg_model_name_ok(m[i].name));
        bool hub = !strncmp(m[i].source, "hf:", 3);
        size_t digits = strlen(m[i].sha256);
        assert_true(hub || !strncmp(m[i].source, "pypi:", 5));
        assert_true(digits == 64 || (digits == 0 && hub));
        assert_int_equal(strspn(m[i].sha256, "0123456789abcdef"), digits);
        assert_true(digits == 0 || m[i].bytes > 0);
        assert_true(cfg_model_name_ok(m[i].file) && *m[i].family && *m[i].quant && *m[i].licence);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(m[k].file, m[i].file);
        assert_ptr_equal(cfg_catalog_find(m[i].name), &m[i]);
    }
    assert_null(cfg_catalog_find("nope"));
}

static void sampling_is_read(void **state)
{
    struct cfg_sampling s;
    struct cn_error err = {0};
    size_t n;
    const struct cfg_model *m = cfg_catalog(&n);

    assert_int_equal(cfg_sampling_read(NULL, &s, &err), 0);
    assert_int_equal(s.given, 0);
    assert_int_equal(cfg_sampling_read(" temperature = 0.5 ,top_k=3 ", &s, &err), 0);
    assert_int_equal(s.given, 1u << CFG_S_TEMPERATURE | 1u << CFG_S_TOP_K);
    assert_true(s.v[CFG_S_TEMPERATURE] == 0.5 && s.v[CFG_S_TOP_K] == 3);
    static const char *const bad[] = {"temperature",
                                      "=1",
                                      "top_p=",
                                      ",",
                                      "top_p=0",
                                      "min_p=1.1",
                                      "top_k=-1",
                                      "presence_penalty=nan",
                                      "temperature=0.5;top_k=3"};
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++)
        if (!cfg_sampling_read(bad[i], &s, &err)) fail_msg("%s was taken", bad[i]);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(cfg_sampling_read(cfg_catalog_sampling(m[i].name), &s, &err), 0);
    assert_string_equal(cfg_catalog_sampling("qwen3-0.6b"),
                        "temperature=0.6, top_p=0.95, top_k=20");
    assert_null(cfg_catalog_sampling("nope"));
}

static void names(void **state)
{
    char longest[130];

    memset(longest, 'a', sizeof longest);
    longest[128] = '\0';
    assert_true(cfg_model_name_ok("a") && cfg_model_name_ok("Qwen3-0.6B_q8.gguf"));
    assert_true(cfg_model_name_ok(longest));
    longest[128] = 'a';
    longest[129] = '\0';
    assert_false(cfg_model_name_ok(longest));
    static const char *const wrong[] = {"",    ".",   "..",   ".hidden",  "a/b",   "../x",
                                        "a b", "a\n", "a\\b", "\xc3\xa9", "a%2fb", "~"};
    for (size_t i = 0; i < CN_ARRAY_LEN(wrong); i++)
        assert_false(cfg_model_name_ok(wrong[i]));
}

static void a_name_becomes_a_file(void **state)
{
    char dir[256], want[300], *path = NULL, *name = NULL;
    struct cn_error e;
    struct cfg c;

    put("/models/tiny.gguf", "x");
    put("/models/folder.gguf/x", "x");
    put("/secret.gguf", "x");
    snprintf(dir, sizeof dir, "%s/models", root);
    snprintf(want, sizeof want, "%s/tiny.gguf", dir);
    assert_int_equal(cfg_find_model(dir, "tiny", &path, &e), 0);
    assert_string_equal(path, want);
    free(path);
    assert_int_equal(cfg_find_model(dir, "tiny.gguf", &path, &e), 0);
    assert_string_equal(path, want);
    free(path);
    path = (char *)1;
    assert_int_equal(cfg_find_model(dir, "../secret", &path, &e), CN_EINVAL);
    assert_int_equal(cfg_find_model(dir, "folder", &path, &e), CN_EMODEL);
    assert_int_equal(cfg_find_model(dir, "other", &path, &e), CN_EMODEL);
    assert_int_equal(cfg_find_model(dir, "gemma3-270m", &path, &e), CN_EMODEL);
    assert_non_null(strstr(e.message, "conifer pull gemma3-270m"));
    assert_ptr_equal(path, (char *)1);

    setenv("CONIFER_HOME", root, 1);
    assert_int_equal(cfg_init(&c, NULL), 0);
    assert_int_equal(cfg_model_file(&c, &path, &name, &e), CN_EMODEL); /* the default, not there */
    assert_int_equal(cfg_set(&c, "model.name", "tiny", &e), 0);
    assert_int_equal(cfg_model_file(&c, &path, &name, &e), 0);
    assert_string_equal(path, want);
    assert_string_equal(name, "tiny");
    free(path);
    free(name);
    put("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "x"); /* the default, by the catalog's file */
    assert_int_equal(cfg_set(&c, "model.name", "", &e), 0);
    assert_int_equal(cfg_model_file(&c, &path, &name, &e), 0);
    assert_string_equal(name, "smollm2-135m");
    assert_non_null(strstr(path, "/models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    free(path);
    free(name);
    assert_int_equal(cfg_set(&c, "model.path", "/a/b/My Model.gguf", &e), 0);
    assert_int_equal(cfg_model_file(&c, &path, &name, &e), 0);
    assert_string_equal(path, "/a/b/My Model.gguf");
    assert_string_equal(name, "My Model");
    free(path);
    free(name);
    cfg_fini(&c);
}

static void where_models_live(void **state)
{
    static const struct {
        const char *conifer, *xdg, *home, *want;
    } cases[] = {
        {"/c", "/x", "/h", "/c/models"},
        {"", "/x", "/h", "/x/conifer/models"},
        {NULL, "/x", "/h", "/x/conifer/models"},
        {NULL, "relative", "/h", "/h/.local/share/conifer/models"},
        {NULL, NULL, "/h", "/h/.local/share/conifer/models"},
        {NULL, NULL, NULL, "/var/lib/conifer/models"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        const char *name[] = {"CONIFER_HOME", "XDG_DATA_HOME", "HOME"};
        const char *value[] = {cases[i].conifer, cases[i].xdg, cases[i].home};
        for (int k = 0; k < 3; k++)
            value[k] ? setenv(name[k], value[k], 1) : unsetenv(name[k]);
        char *dir = cfg_models_dir();
        assert_string_equal(dir, cases[i].want);
        free(dir);
    }
}

static uint64_t mib(const char *tree)
{
    char full[300];

    snprintf(full, sizeof full, "%s%s", root, tree);
    return cfg_free_memory_at(full) >> 20;
}

static void free_memory_without_groups(void **state)
{
    put("/a/proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 100 kB\nMemAvailable: 8388608 kB\n");
    assert_int_equal(mib("/a"), 8192);
    assert_int_equal(mib("/nothing-here"), 0);
    put("/b/proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1048576 kB\n"); /* old kernels */
    assert_int_equal(mib("/b"), 1024);
}

static void free_memory_v2(void **state)
{
    put("/v2/proc/meminfo", "MemAvailable:    8388608 kB\n");
    put("/v2/proc/self/cgroup", "0::/system.slice/conifer.service\n");
    put("/v2/sys/fs/cgroup/system.slice/conifer.service/memory.max", "max\n");
    assert_int_equal(mib("/v2"), 8192);
    put("/v2/sys/fs/cgroup/system.slice/conifer.service/memory.max", "2147483648\n");
    put("/v2/sys/fs/cgroup/system.slice/conifer.service/memory.current", "1073741824\n");
    assert_int_equal(mib("/v2"), 1024);
    put("/v2/sys/fs/cgroup/system.slice/conifer.service/memory.stat",
        "anon 5\nfile 9\ninactive_file 536870912\nactive_file 7\n");
    assert_int_equal(mib("/v2"), 1536); /* cache that can be dropped is not in the way */
    put("/v2/sys/fs/cgroup/system.slice/conifer.service/memory.high", "1610612736\n");
    assert_int_equal(mib("/v2"), 1024);
    put("/v2/sys/fs/cgroup/system.slice/memory.max", "734003200\n"); /* the parent is tighter */
    assert_int_equal(mib("/v2"), 700);
    put("/v2/sys/fs/cgroup/memory.max", "104857600\n"); /* a container's own root */
    assert_int_equal(mib("/v2"), 100);
    put("/v2/sys/fs/cgroup/memory.current", "204857600\n"); /* over its limit */
    assert_int_equal(mib("/v2"), 0);
}

static void free_memory_v1(void **state)
{
    put("/v1/proc/meminfo", "MemAvailable:    8388608 kB\n");
    put("/v1/proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n5:memory_extra:/wrong\n4:memory:/"
                                "docker/abc\n1:name=systemd:/\n");
    put("/v1/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(mib("/v1"), 8192);
    put("/v1/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
    put("/v1/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1610612736\n");
    put("/v1/sys/fs/cgroup/memory/docker/abc/memory.stat", "total_inactive_file 104857600\n");
    assert_int_equal(mib("/v1"), 612);
    /* inside a container the path is the host's and only the mount's root exists */
    put("/in/proc/meminfo", "MemAvailable:    8388608 kB\n");
    put("/in/proc/self/cgroup", "4:memory:/docker/abc\n");
    put("/in/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/in/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
    assert_int_equal(mib("/in"), 1024);
}

static void this_machine(void **state)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    assert_in_range(cfg_cores(), 1, online);
    assert_in_range(cfg_free_memory() >> 20, 1, 1 << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(catalog_lines_are_sound),
        cmocka_unit_test(sampling_is_read),
        cmocka_unit_test(names),
        cmocka_unit_test(a_name_becomes_a_file),
        cmocka_unit_test(where_models_live),
        cmocka_unit_test(free_memory_without_groups),
        cmocka_unit_test(free_memory_v2),
        cmocka_unit_test(free_memory_v1),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}
