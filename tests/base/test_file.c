/* Reading whole files: what is read, and what is refused without waiting. */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/conifer-file-XXXXXX", path[64];

static int make_dir(void **state)
{
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int remove_dir(void **state)
{
    return rmdir(dir);
}

static void write_file(size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        assert_int_not_equal(fputc((int)(i % 251), f), EOF);
    assert_int_equal(fclose(f), 0);
}

static void test_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 200000};

    for (size_t i = 0; i < CN_ARRAY_LEN(sizes); i++) {
        struct cn_buf b;
        cn_buf_init(&b, 0);
        assert_int_equal(cn_buf_append(&b, "before", 6), 0);
        write_file(sizes[i]);
        assert_int_equal(cn_file_read(path, i % 2, sizes[i], &b, NULL), 0);
        assert_int_equal(b.len, 6 + sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal((uint8_t)b.data[6 + k], k % 251);
        cn_buf_fini(&b);
    }
    unlink(path);
}

/* Enough to know that there is more, and not all of it. */
static void test_larger(void **state)
{
    struct cn_buf b;

    write_file(1000000);
    cn_buf_init(&b, 0);
    assert_int_equal(cn_file_read(path, false, 100000, &b, NULL), 0);
    assert_true(b.len > 100000 && b.len < 300000);
    cn_buf_fini(&b);
    unlink(path);
}

static void refused(const char *what, const char *why)
{
    struct cn_error err = {0};
    struct cn_buf b;

    cn_buf_init(&b, 0);
    assert_int_equal(cn_file_read(what, false, 100, &b, &err), CN_EIO);
    assert_non_null(strstr(err.message, what));
    assert_non_null(strstr(err.message, why));
    assert_int_equal(b.len, 0);
    cn_buf_fini(&b);
}

static void test_refused(void **state)
{
    refused(path, "No such file");
    refused(dir, "not a regular file");
    refused("/dev/null", "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* a reader that waits for a writer fails here */
    refused(path, "not a regular file");
    alarm(0);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_larger),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
