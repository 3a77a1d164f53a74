/* base/log_ring.c: order, bound, count of dropped lines. base/log_out.c: nobody waits for the
 * writer, and the end has a bound in time. */
#include "base/log_out.h"
#include "base/log_ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define S 1000000000ull

/* ---- the ring -------------------------------------------------------------------------------- */

static size_t take(struct cn_log_ring *r, char *out, uint64_t *lines, uint64_t *lost)
{
    size_t n = cn_log_ring_take(r, out, 8192, 64, lines, lost);
    out[n] = '\0';
    return n;
}

static void lines_come_out_whole_and_in_order(void **state)
{
    struct cn_log_ring r;
    char line[128], out[8193];
    uint64_t put = 0, got = 0, lines, lost;

    assert_int_equal(cn_log_ring_init(&r, 1000), 0);
    for (unsigned turn = 0; turn < 500; turn++) {
        for (unsigned i = 0; i < turn % 7; i++) {
            int n = snprintf(
                line, sizeof line, "%08llu%.*s\n", (unsigned long long)put, (int)(put % 90),
                "..........................................................................."
                "...............");
            assert_true(cn_log_ring_put(&r, line, (size_t)n));
            put++;
        }
        while (take(&r, out, &lines, &lost)) {
            assert_int_equal(lost, 0);
            uint64_t seen = 0;
            for (char *p = out; *p; p = strchr(p, '\n') + 1, seen++)
                assert_int_equal(strtoull(p, NULL, 10), got++);
            assert_int_equal(seen, lines);
            assert_true(lines == 1 || strlen(out) <= 64);
        }
    }
    assert_int_equal(got, put);
    assert_int_equal(r.dropped, 0);
    cn_log_ring_fini(&r);
}

static void a_full_ring_counts_what_it_drops(void **state)
{
    struct cn_log_ring r;
    char out[8193];
    uint64_t lines, lost;

    assert_int_equal(cn_log_ring_init(&r, 24), 0);
    assert_true(cn_log_ring_put(&r, "aaaaaa\n", 7));
    assert_true(cn_log_ring_put(&r, "bbbbbb\n", 7)); /* 22 of 24 bytes with their lengths */
    assert_false(cn_log_ring_put(&r, "c\n", 2));
    assert_false(cn_log_ring_put(&r, "d\n", 2));
    assert_int_equal(take(&r, out, &lines, &lost), 14);
    assert_true(cn_log_ring_put(&r, "e\n", 2));
    assert_int_equal(take(&r, out, &lines, &lost), 0); /* they are missing here, before e */
    assert_int_equal(lost, 2);
    assert_int_equal(take(&r, out, &lines, &lost), 2);
    assert_string_equal(out, "e\n");
    assert_int_equal(take(&r, out, &lines, &lost), 0);
    assert_int_equal(lost, 0);
    assert_false(cn_log_ring_put(&r, "a line that never fits\n", 23));
    assert_int_equal(r.dropped, 3);
    assert_int_equal(take(&r, out, &lines, &lost), 0);
    assert_int_equal(lost, 1);
    cn_log_ring_fini(&r);
}

/* ---- the writer ------------------------------------------------------------------------------ */

static int keep_stderr, pipe_ends[2];

static int begin(void **state)
{
    keep_stderr = dup(STDERR_FILENO);
    if (pipe(pipe_ends)) return -1;
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[1]);
    cn_log_setup(CN_LOG_INFO, CN_LOG_TEXT);
    return 0;
}

/* Standard error as it was: the pipe has no writer then. */
static void restore(void)
{
    dup2(keep_stderr, STDERR_FILENO);
    close(keep_stderr);
}

struct reader {
    pthread_t thread;
    unsigned long long lines[4], seen, said; /* of each thread; of all; dropped, as reported */
    bool in_order;
};

static void *read_lines(void *arg)
{
    struct reader *r = arg;
    FILE *f = fdopen(pipe_ends[0], "r");
    char line[CN_LOG_LINE_MAX + 1];

    r->in_order = true;
    while (fgets(line, sizeof line, f)) {
        unsigned who;
        unsigned long long n;
        char *at = strstr(line, "test: ");
        if (at && sscanf(at, "test: %u %llu\n", &who, &n) == 2) {
            r->in_order &= who < 4 && n >= r->lines[who];
            r->lines[who] = n + 1;
            r->seen++;
        } else if ((at = strstr(line, " log: "))) {
            r->said += strtoull(at + 6, NULL, 10);
            r->in_order &= strstr(at, " log lines dropped") != NULL;
        } else {
            r->in_order = false;
        }
    }
    fclose(f);
    return NULL;
}

static void *put_lines(void *arg)
{
    const unsigned *who = arg;
    for (unsigned long long i = 0; i < 10000; i++)
        cn_log(CN_LOG_INFO, "test", "%u %llu", *who, i);
    return NULL;
}

/* Four threads log while nobody reads: none waits; then a reader gets the rest in order, and the
 * lines that it reads and those reported as dropped are all. */
static void threads_do_not_wait_for_a_pipe_nobody_reads(void **state)
{
    struct reader r = {0};
    pthread_t threads[4];
    unsigned who[4];
    uint64_t dropped = cn_log_dropped();

    assert_int_equal(cn_log_start(NULL), 0);
    uint64_t began = cn_now_ns();
    for (unsigned i = 0; i < 4; i++) {
        who[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, put_lines, &who[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(cn_now_ns() - began < 20 * S);
    assert_false(
        cn_log_flush(S / 10)); /* 40,000 lines of 40 bytes are more than pipe and ring hold */
    dropped = cn_log_dropped() - dropped;
    assert_true(dropped > 0);
    assert_int_equal(pthread_create(&r.thread, NULL, read_lines, &r), 0);
    assert_true(cn_log_flush(60 * S));
    cn_log_stop(60 * S);
    restore();
    pthread_join(r.thread, NULL);
    assert_true(r.in_order);
    assert_int_equal(r.said, dropped);
    assert_int_equal(r.seen + r.said, 40000);
}

/* The end has a bound, and what is logged after it waits for nothing either. */
static void the_end_does_not_wait_for_a_pipe(void **state)
{
    assert_int_equal(cn_log_start(NULL), 0);
    for (unsigned i = 0; i < 5000; i++)
        cn_log(CN_LOG_INFO, "test", "a line that takes its place in a pipe of 64 KiB");
    uint64_t began = cn_now_ns();
    assert_false(cn_log_flush(S / 5));
    cn_log_stop(S / 5);
    cn_log(CN_LOG_INFO, "test", "after the end");
    uint64_t took = cn_now_ns() - began;
    assert_true(took >= S * 2 / 5 && took < 10 * S);
    /* Whoever reads gets the rest, and the thread ends. */
    fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
    char part[65536];
    for (unsigned empty = 0; empty < 20;) {
        ssize_t n = read(pipe_ends[0], part, sizeof part);
        empty = n > 0 ? 0 : empty + 1;
        if (n <= 0) usleep(10000);
    }
    restore();
    close(pipe_ends[0]);
}

/* ---- the file -------------------------------------------------------------------------------- */

static char *text_of(const char *path)
{
    static char text[65536];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    return text;
}

static void a_file_is_appended_to_and_reopened(void **state)
{
    char dir[] = "/tmp/conifer-log-XXXXXX", path[64], old[64];
    struct cn_error err = {0};
    struct stat st;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/log", dir);
    snprintf(old, sizeof old, "%s/log.1", dir);
    umask(022);
    assert_int_equal(cn_log_open(dir, &err), CN_EIO);
    assert_non_null(strstr(err.message, "log.file"));
    assert_false(cn_log_reopen("why", "")); /* there is none */
    FILE *f = fopen(path, "w");
    fputs("before\n", f);
    fclose(f);
    assert_int_equal(cn_log_open(path, &err), 0);
    cn_log(CN_LOG_INFO, "test", "written at once");
    assert_int_equal(cn_log_start(&err), 0);
    cn_log(CN_LOG_INFO, "test", "one");
    assert_true(cn_log_flush(60 * S));
    assert_int_equal(rename(path, old), 0);
    cn_log(CN_LOG_INFO, "test", "two");
    assert_true(cn_log_reopen("why", ""));
    assert_true(cn_log_flush(60 * S));
    for (int i = 0; i < 6000 && stat(path, &st); i++)
        usleep(10000);
    assert_int_equal(st.st_mode & 0777, 0640);
    cn_log(CN_LOG_INFO, "test", "three");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* it cannot be opened now: the file in use is kept */
    assert_true(cn_log_reopen("why", ""));
    cn_log(CN_LOG_INFO, "test", "four");
    assert_true(cn_log_flush(60 * S));
    cn_log_stop(60 * S);
    char *text = text_of(old);
    assert_int_equal(strncmp(text, "before\n", 7), 0);
    assert_non_null(strstr(text, "written at once\n"));
    assert_non_null(strstr(text, "one\n"));
    assert_non_null(strstr(text, "two\n"));
    assert_null(strstr(text, "three\n"));
    rmdir(path);
    unlink(old);
    rmdir(dir);
}

/* Every write fails, as on a full disk; the process goes on, and says so when there is room
 * again. */
static void a_full_disk_stops_nobody(void **state)
{
    char path[] = "/tmp/conifer-log-XXXXXX";
    struct rlimit before, none;
    struct cn_error err = {0};
    uint64_t dropped = cn_log_dropped();

    close(mkstemp(path));
    getrlimit(RLIMIT_FSIZE, &before);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(cn_log_open(path, &err), 0);
    assert_int_equal(cn_log_start(&err), 0);
    setrlimit(RLIMIT_FSIZE, &none);
    for (int i = 0; i < 100; i++)
        cn_log(CN_LOG_INFO, "test", "nowhere to go");
    assert_true(cn_log_flush(60 * S));
    assert_int_equal(cn_log_dropped() - dropped, 100);
    setrlimit(RLIMIT_FSIZE, &before);
    cn_log(CN_LOG_INFO, "test", "room again");
    cn_log_stop(60 * S);
    char *text = text_of(path);
    assert_non_null(strstr(text, " log: 100 log lines dropped"));
    assert_non_null(strstr(text, "room again\n"));
    assert_null(strstr(text, "nowhere"));
    unlink(path);
}

static void lines_have_a_bound(void **state)
{
    static char text[200000];
    char path[] = "/tmp/conifer-log-XXXXXX";
    struct cn_log_field f[20];
    struct cn_error err = {0};

    close(mkstemp(path));
    assert_int_equal(cn_log_open(path, &err), 0);
    memset(text, 1, sizeof text - 1);
    for (int i = 0; i < 20; i++)
        f[i] = (struct cn_log_field){"a_name", text, 0, 0};
    for (int format = CN_LOG_TEXT; format <= CN_LOG_JOURNAL; format++) {
        cn_log_setup(CN_LOG_INFO, (enum cn_log_format)format);
        cn_log(CN_LOG_INFO, "test", "%s", text);
        cn_log_fields(CN_LOG_INFO, "test", text, f, 20);
    }
    char *at = text_of(path);
    int lines = 0;
    for (char *end; (end = strchr(at, '\n')); at = end + 1, lines++)
        assert_in_range(end + 1 - at, 1000, CN_LOG_LINE_MAX);
    assert_int_equal(lines, 6);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_out_whole_and_in_order),
        cmocka_unit_test(a_full_ring_counts_what_it_drops),
        cmocka_unit_test_setup(threads_do_not_wait_for_a_pipe_nobody_reads, begin),
        cmocka_unit_test(a_file_is_appended_to_and_reopened),
        cmocka_unit_test(a_full_disk_stops_nobody),
        cmocka_unit_test(lines_have_a_bound),
    };
    const struct CMUnitTest stuck[] = {
        cmocka_unit_test_setup(the_end_does_not_wait_for_a_pipe, begin),
    };
    /* In a process of its own, as its writer is still at its pipe when it ends. */
    pid_t child = fork();
    if (child == 0) _exit(cmocka_run_group_tests(stuck, NULL, NULL));
    int failed = cmocka_run_group_tests(tests, NULL, NULL), status = 1;
    return failed || waitpid(child, &status, 0) != child || status;
}
