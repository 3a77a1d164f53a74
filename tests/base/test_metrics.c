/* base/metrics.c: the page is parsed line by line as the text format 0.0.4 says; base/log.c: what a
 * line may hold, read back from a pipe in place of standard error. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <cmocka.h>

static struct cn_metrics metrics;

struct parsed {
    char helped[200][64], typed[200][64], types[200][16];
    size_t n_help, n_type, samples;
};

static bool name_ok(const char *s, size_t n)
{
    if (!n || isdigit((unsigned char)s[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != ':') return false;
    return true;
}

/* The value of the sample whose name and labels are exactly `series`; fails when absent. */
static double sample(const char *page, const char *series)
{
    size_t n = strlen(series);

    for (const char *l = page; l && *l; l = strchr(l, '\n') ? strchr(l, '\n') + 1 : NULL)
        if (!strncmp(l, series, n) && l[n] == ' ') return strtod(l + n, NULL);
    fail_msg("no sample %s", series);
    return 0;
}

static void parse_sample(struct parsed *p, const char *line)
{
    size_t n = strcspn(line, "{ ");
    const char *rest = line + n;
    char *end, base[64];
    bool known = false;

    assert_true(name_ok(line, n));
    if (*rest == '{') {
        const char *close = strchr(rest, '}');
        assert_non_null(close);
        const char *eq = strchr(rest, '=');
        assert_true(eq && eq < close && name_ok(rest + 1, (size_t)(eq - rest - 1)));
        assert_true(eq[1] == '"' && close[-1] == '"');
        rest = close + 1;
    }
    assert_int_equal(*rest, ' ');
    strtod(rest + 1, &end);
    assert_true(end != rest + 1 && *end == '\0');
    /* it belongs to the family announced last */
    snprintf(base, sizeof base, "%s", p->typed[p->n_type - 1]);
    known = !strncmp(line, base, strlen(base));
    assert_true(known);
    if (strcmp(p->types[p->n_type - 1], "histogram")) assert_int_equal(strlen(base), n);
    p->samples++;
}

/* Reads a whole page; returns its samples. */
static size_t read_page(struct cn_buf *page)
{
    static struct parsed p;
    char *copy, *save = NULL;

    memset(&p, 0, sizeof p);
    assert_int_equal(page->data[page->len - 1], '\n');
    copy = strdup(cn_buf_cstr(page));
    for (char *l = strtok_r(copy, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        char name[64], type[16];
        if (sscanf(l, "# HELP %63s %*s", name) == 1) {
            for (size_t i = 0; i < p.n_help; i++) /* a family stands once, in one piece */
                assert_string_not_equal(p.helped[i], name);
            strcpy(p.helped[p.n_help++], name);
        } else if (sscanf(l, "# TYPE %63s %15s", name, type) == 2) {
            assert_string_equal(p.helped[p.n_help - 1], name);
            assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") ||
                        !strcmp(type, "histogram"));
            if (!strcmp(type, "counter")) assert_non_null(strstr(name, "_total"));
            strcpy(p.typed[p.n_type], name);
            strcpy(p.types[p.n_type++], type);
        } else {
            assert_int_not_equal(l[0], '#');
            parse_sample(&p, l);
        }
    }
    assert_int_equal(p.n_help, p.n_type);
    free(copy);
    return p.samples;
}

static void page_is_valid(void **state)
{
    struct cn_buf b;

    cn_buf_init(&b, 0);
    assert_int_equal(cn_metrics_render(&metrics, &b), 0);
    assert_true(read_page(&b) > CN_M_COUNT);
    cn_buf_fini(&b);
    cn_buf_init(&b, 100);
    assert_int_equal(cn_metrics_render(&metrics, &b), CN_ELIMIT);
    cn_buf_fini(&b);
}

/* A tenant's series stand under its name, the page stays bounded, and nobody's are lost in it. */
static void series_of_tenants(void **state)
{
    enum { N = CN_TENANTS_SHOWN + 50 };
    static char text[N][16];
    const char *names[N];
    struct cn_buf all, one, few;

    memset(&metrics, 0, sizeof metrics);
    cn_buf_init(&one, 0);
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &one), 0);
    assert_int_equal(one.len, 0); /* no tenants, no lines */
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], i == 1 ? "a\"b\\c\nd" : "t%d", i);
        names[i] = text[i];
    }
    assert_int_equal(cn_metrics_tenants(&metrics, names, 3), 0);
    cn_buf_init(&few, 0);
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &few), 0);
    assert_null(strstr(cn_buf_cstr(&few), "(other)"));
    size_t per_tenant = read_page(&few) / 3;
    cn_metrics_fini(&metrics);
    assert_int_equal(cn_metrics_tenants(&metrics, names, N), 0);
    for (int i = 0; i < N; i++) {
        cn_tenant_add(&metrics, (size_t)i, CN_TM_generated, (uint64_t)i);
        cn_tenant_set(&metrics, (size_t)i, CN_TM_running, 2);
        cn_tenant_observe(&metrics, (size_t)i, CN_TH_queue, 2000000000u);
    }
    cn_tenant_add(&metrics, N, CN_TM_generated, 99); /* one that has no series */
    cn_tenant_set(&metrics, N, CN_TM_running, 99);
    cn_tenant_observe(&metrics, SIZE_MAX, CN_TH_queue, 99);
    cn_tenant_add(&metrics, 2, CN_TM_refused, 5);
    cn_buf_init(&all, 0);
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &all), 0);
    assert_int_equal(read_page(&all), per_tenant * (CN_TENANTS_SHOWN + 1));
    const char *page = cn_buf_cstr(&all);
    assert_true(sample(page, "conifer_tenant_generated_tokens_total{tenant=\"t7\"}") == 7);
    assert_true(sample(page, "conifer_tenant_generated_tokens_total{tenant=\"a\\\"b\\\\c\\nd\"}") ==
                1);
    assert_true(sample(page, "conifer_tenant_requests_total{tenant=\"t2\",result=\"refused\"}") ==
                5);
    assert_true(sample(page, "conifer_tenant_queue_seconds_bucket{tenant=\"t99\",le=\"1\"}") == 0);
    assert_true(sample(page, "conifer_tenant_queue_seconds_bucket{tenant=\"t99\",le=\"2.5\"}") ==
                1);
    assert_true(sample(page, "conifer_tenant_queue_seconds_sum{tenant=\"t99\"}") == 2);
    assert_null(strstr(page, "\"t100\""));
    int rest = 0;
    for (int i = CN_TENANTS_SHOWN; i < N; i++)
        rest += i;
    assert_true(sample(page, "conifer_tenant_generated_tokens_total{tenant=\"(other)\"}") == rest);
    assert_true(sample(page, "conifer_tenant_running{tenant=\"(other)\"}") == 100);
    assert_true(sample(page, "conifer_tenant_queue_seconds_count{tenant=\"(other)\"}") == 50);
    assert_int_equal(cn_metrics_render_tenants(&metrics, N - 1, &one), 0);
    assert_int_equal(read_page(&one), per_tenant);
    assert_true(sample(cn_buf_cstr(&one), "conifer_tenant_running{tenant=\"t149\"}") == 2);
    assert_null(strstr(cn_buf_cstr(&one), "\"t1\""));
    cn_buf_fini(&all);
    cn_buf_fini(&one);
    cn_buf_fini(&few);
    cn_metrics_fini(&metrics);
}

/* So do those of models, on the page of all. */
static void series_of_models(void **state)
{
    const char *names[] = {"a-7b", "b"};
    struct cn_buf b;

    memset(&metrics, 0, sizeof metrics);
    assert_int_equal(cn_metrics_models(&metrics, names, 2), 0);
    cn_model_add(&metrics, 0, CN_MM_generated, 3);
    cn_model_add(&metrics, 0, CN_MM_generated, 4);
    cn_model_set(&metrics, 1, CN_MM_bytes, 1u << 31);
    cn_model_add(&metrics, 2, CN_MM_generated, 99); /* one that has no series */
    cn_model_set(&metrics, SIZE_MAX, CN_MM_bytes, 99);
    cn_buf_init(&b, 0);
    assert_int_equal(cn_metrics_render(&metrics, &b), 0);
    read_page(&b);
    const char *page = cn_buf_cstr(&b);
    assert_true(sample(page, "conifer_model_generated_tokens_total{model=\"a-7b\"}") == 7);
    assert_true(sample(page, "conifer_model_generated_tokens_total{model=\"b\"}") == 0);
    assert_true(sample(page, "conifer_model_bytes{model=\"b\"}") == 2147483648.0);
    cn_buf_fini(&b);
    cn_metrics_fini(&metrics);
}

static void values_and_histograms(void **state)
{
    struct cn_buf b;
    const char *page;

    memset(&metrics, 0, sizeof metrics);
    cn_metric_add(&metrics, CN_M_steps, 41);
    cn_metric_add(&metrics, CN_M_steps, 1);
    cn_metric_set(&metrics, CN_M_kv_blocks_cached, 12);
    cn_metric_set(&metrics, CN_M_kv_bytes_total, 123456789012.0);
    cn_metric_set(&metrics, CN_M_engine_last_step_seconds, 0.125);
    assert_true(cn_metric_get(&metrics, CN_M_steps) == 42);
    assert_true(cn_metric_get(&metrics, CN_M_engine_last_step_seconds) == 0.125);
    cn_metric_observe(&metrics, CN_H_ttft, 1000000);               /* 1 ms: le 0.001 holds it */
    cn_metric_observe(&metrics, CN_H_ttft, 1000001);               /* next bucket */
    cn_metric_observe(&metrics, CN_H_ttft, UINT64_C(3000000000));  /* 3 s */
    cn_metric_observe(&metrics, CN_H_ttft, UINT64_C(99000000000)); /* +Inf */
    cn_buf_init(&b, 0);
    assert_int_equal(cn_metrics_render(&metrics, &b), 0);
    page = cn_buf_cstr(&b);
    assert_true(sample(page, "conifer_engine_steps_total") == 42);
    assert_true(sample(page, "conifer_kv_blocks{state=\"cached\"}") == 12);
    assert_true(sample(page, "conifer_kv_bytes") == 123456789012.0);
    assert_true(sample(page, "conifer_engine_last_step_seconds") == 0.125);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_bucket{le=\"0.001\"}") == 1);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_bucket{le=\"0.0025\"}") == 2);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_bucket{le=\"2.5\"}") == 2);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_bucket{le=\"5\"}") == 3);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_bucket{le=\"+Inf\"}") == 4);
    assert_true(sample(page, "conifer_time_to_first_token_seconds_count") == 4);
    double sum = sample(page, "conifer_time_to_first_token_seconds_sum");
    assert_true(sum > 102.002 && sum < 102.00201);
    cn_buf_fini(&b);
}

/* Runs `put` with standard error in a pipe; returns what came, NUL-terminated. */
static char *captured(enum cn_log_format f, enum cn_log_level max, void (*put)(const void *arg),
                      const void *arg)
{
    static char out[65536];
    int ends[2], keep = dup(STDERR_FILENO);
    ssize_t n;

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    cn_log_setup(max, f);
    put(arg);
    dup2(keep, STDERR_FILENO);
    close(keep);
    n = read(ends[0], out, sizeof out - 1);
    close(ends[0]);
    out[n > 0 ? n : 0] = '\0';
    return out;
}

struct line {
    enum cn_log_level level;
    const char *text;
};

static void put_line(const void *arg)
{
    const struct line *l = arg;
    cn_log(l->level, "test", "%s", l->text);
}

static void put_fields(const void *arg)
{
    cn_log_fields(CN_LOG_INFO, "test", "ended", arg, 4);
}

static char *logged(enum cn_log_format f, enum cn_log_level max, enum cn_log_level level,
                    const char *text)
{
    return captured(f, max, put_line, &(struct line){level, text});
}

static void log_lines_cannot_be_forged(void **state)
{
    static const char evil[] = "a\nerror forged\r\x1b[2J\xc2\x9b\xff\xc3\xa9 end";
    char big[3000];
    char *line = logged(CN_LOG_TEXT, CN_LOG_INFO, CN_LOG_INFO, evil);

    assert_non_null(strstr(line,
                           " info  test: a\\nerror forged\\x0d\\x1b[2J\\xc2\\x9b\\xff\xc3\xa9 "
                           "end\n"));
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    line = logged(CN_LOG_JOURNAL, CN_LOG_INFO, CN_LOG_WARN, "x\ny");
    assert_string_equal(line, "<4>test: x\\ny\n");
    assert_string_equal(logged(CN_LOG_TEXT, CN_LOG_WARN, CN_LOG_INFO, "quiet"), "");
    line = logged(CN_LOG_JSON, CN_LOG_DEBUG, CN_LOG_DEBUG, evil);
    json_t *j = json_loads(line, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "level")), "debug");
    assert_string_equal(json_string_value(json_object_get(j, "message")),
                        "a\nerror forged\r\x1b[2J\xc2\x9b\xef\xbf\xbd\xc3\xa9 end");
    json_decref(j);
    memset(big, 'q', sizeof big - 1); /* longer than the buffer on the stack: whole all the same */
    big[sizeof big - 1] = '\0';
    line = logged(CN_LOG_JOURNAL, CN_LOG_INFO, CN_LOG_INFO, big);
    assert_int_equal(strlen(line), strlen("<6>test: \n") + strlen(big));
}

/* Words of a line: nobody's text ends one or makes another; members in JSON, numbers as numbers. */
static void log_fields(void **state)
{
    static const struct cn_log_field f[] = {{"a", "x b=1\n\\ \"", 0, 0},
                                            {"n", NULL, 9007199254740992.0, 0},
                                            {"t", NULL, 1.25, 1},
                                            {"none", NULL, HUGE_VAL, 0}};
    char *line = captured(CN_LOG_JOURNAL, CN_LOG_INFO, put_fields, f);

    assert_string_equal(
        line, "<6>test: ended a=x\\x20b=1\\n\\x5c\\x20\" n=9007199254740992 t=1.2 none=-\n");
    line = captured(CN_LOG_JSON, CN_LOG_INFO, put_fields, f);
    json_t *j = json_loads(line, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "message")), "ended");
    assert_string_equal(json_string_value(json_object_get(j, "a")), f[0].text);
    assert_true(json_integer_value(json_object_get(j, "n")) == 9007199254740992);
    assert_true(json_is_real(json_object_get(j, "t")));
    assert_true(json_is_null(json_object_get(j, "none")));
    json_decref(j);
    assert_string_equal(captured(CN_LOG_TEXT, CN_LOG_WARN, put_fields, f), "");
}

/* Of the process: what the test can tell by itself. */
static void of_the_process(void **state)
{
    struct cn_process p = {0};
    struct cn_buf one, two;

    cn_buf_init(&one, 0);
    cn_buf_init(&two, 0);
    cn_process_render(&p, "1.2.3", &one);
    assert_false(one.failed);
    read_page(&one);
    const char *page = cn_buf_cstr(&one);
    assert_true(sample(page, "conifer_build_info{version=\"1.2.3\"}") == 1);
    double started = sample(page, "process_start_time_seconds"), now = (double)cn_wall_s();
    assert_true(started <= now + 2 && started > now - 3600);
    assert_true(sample(page, "process_max_fds") > 0);
    double cpu = sample(page, "process_cpu_seconds_total");
    for (uint64_t end = cn_thread_ns() + 20000000; cn_thread_ns() < end;) {
    }
    cn_process_render(&p, "1.2.3", &two);
    page = cn_buf_cstr(&two);
    assert_true(sample(page, "process_cpu_seconds_total") > cpu + 0.01);
    assert_true(sample(page, "process_start_time_seconds") == started);
#ifdef __linux__
    double resident = sample(page, "process_resident_memory_bytes");
    assert_true(resident > 65536 && resident < sample(page, "process_virtual_memory_bytes"));
    int fd = dup(0);
    assert_true(fd >= 0);
    p.counted_ns = 0;
    double before = sample(page, "process_open_fds");
    cn_buf_reset(&two);
    cn_process_render(&p, "1.2.3", &two);
    assert_true(sample(cn_buf_cstr(&two), "process_open_fds") == before + 1);
    close(fd);
#endif
    cn_buf_fini(&one);
    cn_buf_fini(&two);
}

/* A number is used again: nobody's has no lines, another one's begins at 0. */
static void tenants_come_and_go(void **state)
{
    struct cn_buf page;
    char name[16];

    memset(&metrics, 0, sizeof metrics);
    cn_buf_init(&page, 0);
    assert_int_equal(cn_metrics_tenant(&metrics, 5, "five"), 0);
    cn_tenant_add(&metrics, 5, CN_TM_generated, 7);
    cn_tenant_add(&metrics, 3, CN_TM_generated, 9); /* nobody's */
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &page), 0);
    assert_true(
        sample(cn_buf_cstr(&page), "conifer_tenant_generated_tokens_total{tenant=\"five\"}") == 7);
    assert_null(strstr(cn_buf_cstr(&page), "tenant=\"\""));
    assert_int_equal(cn_metrics_tenant(&metrics, 5, NULL), 0);
    cn_buf_reset(&page);
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &page), 0);
    assert_int_equal(page.len, 0);
    assert_int_equal(cn_metrics_tenant(&metrics, 5, "other"), 0);
    for (int i = 6; i < 10000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(cn_metrics_tenant(&metrics, (size_t)i, name), 0);
        cn_tenant_add(&metrics, (size_t)i, CN_TM_generated, 1);
    }
    cn_buf_reset(&page);
    assert_int_equal(cn_metrics_render_tenants(&metrics, CN_ALL_TENANTS, &page), 0);
    assert_true(
        sample(cn_buf_cstr(&page), "conifer_tenant_generated_tokens_total{tenant=\"other\"}") == 0);
    assert_true(sample(cn_buf_cstr(&page),
                       "conifer_tenant_generated_tokens_total{tenant=\"(other)\"}") == 9994 - 99);
    assert_int_equal(cn_metrics_tenant(&metrics, SIZE_MAX - 1, "far"), CN_ELIMIT);
    cn_buf_fini(&page);
    cn_metrics_fini(&metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(series_of_tenants), cmocka_unit_test(series_of_models),
        cmocka_unit_test(of_the_process),    cmocka_unit_test(values_and_histograms),
        cmocka_unit_test(page_is_valid),     cmocka_unit_test(log_lines_cannot_be_forged),
        cmocka_unit_test(log_fields),        cmocka_unit_test(tenants_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
