/* GGUF reader, on files: split models, files that are not there, files cut short while open,
 * pages that are left behind. */
#include "gguf_write.h"

#include "engine/mapping.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const uint64_t dims_32[1] = {32};

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, struct gw *w)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(w->b.data, 1, w->b.len, f), w->b.len);
    fclose(f);
    cn_buf_fini(&w->b);
}

static void write_shard(const char *name, uint32_t no, uint32_t count, uint32_t total,
                        const char *tensor)
{
    struct gw w;
    gw_begin(&w);
    gw_key(&w, "split.no", ENG_GGUF_U16);
    gw_bytes(&w, &no, 2);
    gw_key(&w, "split.count", ENG_GGUF_U16);
    gw_bytes(&w, &count, 2);
    gw_key(&w, "split.tensors.count", ENG_GGUF_I32);
    gw_u32(&w, total);
    if (no == 0) gw_kv_str(&w, "general.name", "split");
    gw_tensor(&w, tensor, 1, dims_32, 0, 0);
    gw_end(&w, 32, 128);
    write_file(name, &w);
}

static void refused_file(const char *name, int code, const char *has, const char *also)
{
    struct eng_gguf *g = NULL;
    struct cn_error err = {0};
    int rc = eng_gguf_open(in_dir(name), &g, &err);
    if (rc != code || !strstr(err.message, has) || !strstr(err.message, also))
        fail_msg("code %d, message \"%s\"; expected %d, \"%s\", \"%s\"", rc, err.message, code, has,
                 also);
}

static void test_split(void **state)
{
    struct eng_gguf *g = NULL;
    struct cn_error err;
    const char *first = "m-00001-of-00003.gguf", *last = "m-00003-of-00003.gguf";
    write_shard(first, 0, 3, 3, "a");
    write_shard("m-00002-of-00003.gguf", 1, 3, 3, "b");
    refused_file(first, CN_ENOENT, last, "part 3 of 3");
    write_shard(last, 2, 3, 3, "c");
    if (eng_gguf_open(in_dir(first), &g, &err)) fail_msg("%s", err.message);
    assert_int_equal(eng_gguf_n_tensors(g), 3);
    assert_non_null(eng_gguf_find(g, "a"));
    assert_int_equal(((const uint8_t *)eng_gguf_find(g, "c")->data)[127], 127);
    struct eng_str s;
    assert_int_equal(eng_gguf_str(g, "general.name", &s, &err), 0);
    eng_gguf_close(g);

    refused_file(last, CN_EFORMAT, "part 3", "name the first one");
    write_shard(last, 1, 3, 3, "c");
    refused_file(first, CN_EFORMAT, last, "expected part 2 of 3");
    write_shard(last, 2, 4, 3, "c");
    refused_file(first, CN_EFORMAT, last, "of 4");
    write_shard(last, 2, 3, 3, "b");
    refused_file(first, CN_EFORMAT, "\"b\" is there twice", last);
    write_shard(last, 2, 3, 3, "c");
    write_shard(first, 0, 3, 4, "a");
    refused_file(first, CN_EFORMAT, "split.tensors.count is 4", "3 tensors");
    write_shard("other.gguf", 0, 2, 2, "a");
    refused_file("other.gguf", CN_EFORMAT, "must be named", "-00001-of-00002.gguf");
    write_shard("single.gguf", 0, 1, 1, "a");
    if (eng_gguf_open(in_dir("single.gguf"), &g, &err)) fail_msg("%s", err.message);
    eng_gguf_close(g);
}

static int used_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A model may have more files than the process has descriptors: none is kept. */
static void test_many_shards(void **state)
{
    enum { SHARDS = 100 };
    struct rlimit old, few;
    struct eng_gguf *g = NULL;
    struct cn_error err = {0};
    char name[64], other[160], tensor[16];

    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(name, sizeof name, "many-%05u-of-%05u.gguf", i + 1, (unsigned)SHARDS);
        snprintf(tensor, sizeof tensor, "t%u", i);
        write_shard(name, i, SHARDS, SHARDS, tensor);
    }
    int used = used_descriptors();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){(rlim_t)used + 8, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    if (eng_gguf_open(in_dir("many-00001-of-00100.gguf"), &g, &err)) fail_msg("%s", err.message);
    assert_int_equal(used_descriptors(), used);
    assert_non_null(eng_gguf_find(g, "t99"));

    /* Where there is no descriptor at all, the limit is named. */
    few.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    refused_file("many-00001-of-00100.gguf", CN_EIO, "LimitNOFILE", "descriptors");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);

    /* Replaced and removed files are still those that are mapped; a changed one is not. */
    assert_true(eng_gguf_intact(g));
    write_shard("other.gguf", 98, SHARDS, SHARDS, "t98");
    snprintf(other, sizeof other, "%s", in_dir("other.gguf"));
    assert_int_equal(rename(other, in_dir("many-00099-of-00100.gguf")), 0);
    assert_int_equal(unlink(in_dir("many-00098-of-00100.gguf")), 0);
    assert_true(eng_gguf_intact(g));
    assert_int_equal(truncate(in_dir("many-00097-of-00100.gguf"), 10), 0);
    assert_false(eng_gguf_intact(g));
    eng_gguf_close(g);
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(name, sizeof name, "many-%05u-of-%05u.gguf", i + 1, (unsigned)SHARDS);
        unlink(in_dir(name));
    }
}

static void test_no_file(void **state)
{
    refused_file("none.gguf", CN_ENOENT, "none.gguf", "No such file");
    refused_file("", CN_EIO, dir, "");
    FILE *f = fopen(in_dir("empty.gguf"), "wb");
    fclose(f);
    refused_file("empty.gguf", CN_EFORMAT, "empty", "");
    f = fopen(in_dir("three.gguf"), "wb");
    fputs("GGU", f);
    fclose(f);
    refused_file("three.gguf", CN_EFORMAT, "cut off at offset 0", "three.gguf");
}

/* A file cut short under us reads as zeros and says so; it never ends the process. */
static void test_truncated_while_open(void **state)
{
    const uint64_t many[1] = {1 << 16};
    struct eng_gguf *g, *other;
    struct cn_error err;
    struct gw w;
    for (int i = 0; i < 2; i++) {
        gw_begin(&w);
        gw_tensor(&w, "t", 1, many, 0, 0);
        gw_end(&w, 32, 4 << 16);
        write_file(i ? "other.gguf" : "cut.gguf", &w);
    }
    if (eng_gguf_open(in_dir("other.gguf"), &other, &err)) fail_msg("%s", err.message);
    if (eng_gguf_open(in_dir("cut.gguf"), &g, &err)) fail_msg("%s", err.message);
    const volatile uint8_t *data = eng_gguf_find(g, "t")->data;
    assert_int_equal(data[200001], 200001 & 255);
    assert_true(eng_gguf_intact(g));
    assert_int_equal(truncate(in_dir("cut.gguf"), 5000), 0);
    assert_false(eng_gguf_intact(g)); /* before any page is touched */
    unsigned sum = 0;
    for (size_t i = 8192; i < 4 << 16; i++)
        sum += data[i];
    assert_int_equal(sum, 0);
    assert_int_equal(data[100], 100);
    assert_false(eng_gguf_intact(g));
    assert_true(eng_gguf_intact(other));
    eng_gguf_close(g);
    assert_int_equal(((const uint8_t *)eng_gguf_find(other, "t")->data)[200001], 200001 & 255);
    eng_gguf_close(other);
    for (int i = 0; i < 100; i++) { /* nodes are used again */
        if (eng_gguf_open(in_dir("other.gguf"), &g, &err)) fail_msg("%s", err.message);
        assert_true(eng_gguf_intact(g));
        eng_gguf_close(g);
    }
}

/* Pages of the mapping that are this process's at the moment; -1 where that cannot be asked. */
static int present(const struct eng_mapping *m)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), entry;
    uint64_t first = (uintptr_t)eng_mapping_data(m) / page;
    int n = 0, fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (uint64_t i = 0; fd >= 0 && i * page < eng_mapping_bytes(m); i++) {
        if (pread(fd, &entry, sizeof(entry), (off_t)(8 * (first + i))) != sizeof(entry)) n = -1;
        if (n < 0) break;
        n += (int)(entry >> 63);
    }
    if (fd < 0) return -1;
    close(fd);
    return n;
}

/* What was left is no memory of this process, in whatever order its parts were read: the kernel
 * maps pages around the one that is read, those left before among them. */
static void test_left_behind(void **state)
{
    enum { PARTS = 41, PART = 100001, BYTES = PARTS * PART };
    struct eng_mapping *m;
    struct cn_error err;
    FILE *f = fopen(in_dir("left.bin"), "wb");
    assert_non_null(f);
    for (int i = 0; i < BYTES; i++)
        putc(i % 251, f);
    assert_int_equal(fclose(f), 0);
    if (eng_mapping_open(in_dir("left.bin"), &m, &err)) fail_msg("%s", err.message);
    const volatile uint8_t *data = eng_mapping_data(m);
    for (int i = 0; i < PARTS; i++) {
        int from = i * 18 % PARTS * PART;
        for (int k = from; k < from + PART; k++)
            if (data[k] != k % 251) fail_msg("byte %d is %d", k, data[k]);
        if (i == 0 && present(m) >= 0) assert_in_range(present(m), PART / 65536, BYTES);
        eng_mapping_leave(m, (const uint8_t *)data + from, PART);
    }
    /* neither before nor behind it is anything of it */
    eng_mapping_leave(m, (const uint8_t *)data - 1, 1);
    eng_mapping_leave(m, (const uint8_t *)data + BYTES - 1, PART);
    if (present(m) >= 0) assert_in_range(present(m), 0, 16);
    assert_int_equal(data[BYTES - 1], (BYTES - 1) % 251);
    assert_true(eng_mapping_intact(m));
    eng_mapping_close(m);
}

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/conifer-gguf-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    static const char *const names[] = {"m-00001-of-00003.gguf",
                                        "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf",
                                        "other.gguf",
                                        "single.gguf",
                                        "empty.gguf",
                                        "three.gguf",
                                        "cut.gguf",
                                        "left.bin"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++)
        unlink(in_dir(names[i]));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),       cmocka_unit_test(test_many_shards),
        cmocka_unit_test(test_no_file),     cmocka_unit_test(test_truncated_while_open),
        cmocka_unit_test(test_left_behind),
    };
    return cmocka_run_group_tests_name("gguf files", tests, make_dir, remove_dir);
}
