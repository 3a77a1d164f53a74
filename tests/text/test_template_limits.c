/* Limits of the template interpreter: hostile templates and data end in an error, soon, and never
 * in a crash; failing allocations leave nothing behind; renderings may run side by side. */
#include "engine/text/text.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Allocations that succeed before one fails; -1: all succeed. */
static _Thread_local int64_t left = -1;

static bool alloc_fails(void)
{
    if (left < 0) return false;
    if (left == 0) return true;
    left--;
    return false;
}

#include "tests/wrap_alloc.h"

static int render_in(const char *src, struct eng_template_in *in, size_t *n_out)
{
    struct eng_template *t = NULL;
    struct eng_rendered r = {0};
    struct cn_error err = {0};
    json_t *messages = in->messages ? json_incref(in->messages)
                                    : json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    struct eng_template_in with = *in;
    with.messages = messages;
    int rc = eng_template_new(src, strlen(src), &t, &err);
    if (!rc) rc = eng_template_render(t, &with, &r, &err);
    if (!rc && n_out) *n_out = r.text.len;
    if (!rc) eng_rendered_fini(&r);
    if (rc) {
        assert_int_equal(err.code, rc);
        assert_true(err.message[0] != '\0');
    }
    eng_template_free(t);
    json_decref(messages);
    return rc;
}

static int render(const char *src)
{
    struct eng_template_in in = {.limits = {.max_ns = 60000000000}};
    return render_in(src, &in, NULL);
}

/* a, then n times b, then c, then n times d, then e. */
static char *repeated(const char *a, const char *b, size_t n, const char *c, const char *d,
                      const char *e)
{
    struct cn_buf buf;
    cn_buf_init(&buf, 0);
    cn_buf_puts(&buf, a);
    for (size_t i = 0; i < n; i++)
        cn_buf_puts(&buf, b);
    cn_buf_puts(&buf, c);
    for (size_t i = 0; i < n; i++)
        cn_buf_puts(&buf, d);
    cn_buf_puts(&buf, e);
    char *z = strdup(cn_buf_cstr(&buf));
    cn_buf_fini(&buf);
    return z;
}

static void deep_sources(void **state)
{
    static const struct {
        const char *a, *b, *c, *d, *e;
        int want;
    } shapes[] = {
        {"{{ ", "(", "1", ")", " }}", CN_ETEMPLATE},
        {"{{ ", "[", "1", "]", " }}", CN_ETEMPLATE},
        {"{{ ", "{1:", "1", "}", " }}", CN_ETEMPLATE},
        {"{{ ", "not ", "1", "", " }}", CN_ETEMPLATE},
        {"{{ ", "-", "1", "", " }}", CN_ETEMPLATE},
        {"{{ ", "f(", "1", ")", " }}", CN_ETEMPLATE},
        {"{{ ", "x[", "1", "]", " }}", CN_ETEMPLATE},
        {"{{ x", ".a", "", "", " }}", CN_ETEMPLATE},
        {"{{ x", "|upper", "", "", " }}", CN_ETEMPLATE},
        {"{{ x", "()", "", "", " }}", CN_ETEMPLATE},
        {"{{ x", "[0]", "", "", " }}", CN_ETEMPLATE},
        {"{{ ", "1 if 1 else ", "1", "", " }}", CN_ETEMPLATE},
        {"{{ 1", " if 1", "", "", " }}", CN_ETEMPLATE},
        {"", "{% if 1 %}", "x", "{% endif %}", "", CN_ETEMPLATE},
        {"", "{% for i in [1] %}", "x", "{% endfor %}", "", CN_ETEMPLATE},
        {"", "{% macro m() %}", "x", "{% endmacro %}", "", CN_ETEMPLATE},
        {"{% for ", "(", "a", ",)", " in [] %}{% endfor %}", CN_ETEMPLATE},
        {"{{ ", "(", "", "", "", CN_ETEMPLATE},
        {"{{ ", "{", "", "", "", CN_ETEMPLATE},
        {"{{ x is ", "(", "1", ")", " }}", CN_ETEMPLATE},
        {"{{ 1", " + 1", "", "", " }}", 0},
        {"{{ 1", " ~ 1", "", "", " }}", 0},
        {"{{ 1", " and 1", "", "", " }}", 0},
        {"{{ 1", " == 1", "", "", " }}", 0},
        {"{% if 0 %}", "{% elif 0 %}", "{% else %}x{% endif %}", "", "", 0},
        {"{{ [1", ",1", "]|length }}", "", "", 0},
        {"", "{{ 1 }}", "", "", "", 0},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        char *src =
            repeated(shapes[i].a, shapes[i].b, 100000, shapes[i].c, shapes[i].d, shapes[i].e);
        int rc = render(src);
        if (rc != shapes[i].want) fail_msg("%.40s: %d", src, rc);
        free(src);
    }
}

static void endless_work(void **state)
{
    static const char *const limited[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a * b }}{% endfor %}{% endfor "
        "%}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}{{ b() }}{% "
        "endcall %}"
        "{% endmacro %}{{ b() }}",
        "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 'a' * 9223372036854775807 }}",
        "{{ [1] * 9223372036854775807 }}",
        "{{ [1] * 100000000 }}",
        "{{ 'a'.center(9223372036854775807) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ 'a'|center(999999999) }}",
        "{{ 'a\na'|indent(999999999) }}",
        "{{ [1]|batch(999999999, 1)|list }}",
        "{{ []|slice(999999999)|list }}",
        "{{ 'a'.zfill(999999999) }}",
        "{{ 'a\t'.expandtabs(999999999) }}",
        "{{ [1]|tojson(indent=999999999) }}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s "
        "%}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = "
        "ns.s.replace('a', 'aaaa') %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% "
        "endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% "
        "endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=1, k=1) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% set "
        "ns.k = [ns.k] %}"
        "{% endfor %}{{ ns.l == ns.k }}",
        "{% set ns = namespace(l=1) %}{% for i in range(9999) %}{% set ns.l = (ns.l,) %}{% endfor "
        "%}{{ {ns.l: 1} }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{{ range(100000)|list|length }}{% for i in range(99) %}{% set x = range(100000)|list %}{% "
        "endfor %}",
        "{% for i in range(100000) %}{{ "
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}",
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(limited); i++) {
        int rc = render(limited[i]);
        if (rc != CN_ELIMIT) fail_msg("%s: %d", limited[i], rc);
    }
    assert_int_equal(render("{{ range(10 ** 9) }}"), CN_ETEMPLATE); /* as the reference's sandbox */
    assert_int_equal(render("{{ 10 ** 30 }}"), CN_ETEMPLATE);
    assert_int_equal(render("{{ 9223372036854775807 + 1 }}"), CN_ETEMPLATE);
    assert_int_equal(render("{{ -9223372036854775807 - 2 }}"), CN_ETEMPLATE);
    assert_int_equal(render("{{ '9' * 400|int }}"), 0);
    assert_int_equal(render("{{ ('9' * 400)|int }}"), CN_ETEMPLATE);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The step budget is what stops nested loops, well before the clock. */
static void steps_are_quick(void **state)
{
    struct eng_template_in in = {.limits = {.max_ns = 60000000000}};
    /* The least of five, of processor time: what else the machine does only adds to it. About 14
     * ms; the bound is of the order, as machines differ by more than a fifth. */
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cpu_ns();
        assert_int_equal(
            render_in("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
                      "{% endfor %}",
                      &in, NULL),
            CN_ELIMIT);
        best = CN_MIN(best, cpu_ns() - start);
    }
    print_message("500,000 steps in %.1f ms\n", (double)best / 1e6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(best < 50000000);
#endif
}

static void given_limits(void **state)
{
    size_t n = 0;
    struct eng_template_in in = {.limits = {.max_steps = 10, .max_ns = 60000000000}};
    assert_int_equal(render_in("{% for i in range(4) %}{% endfor %}", &in, NULL), 0);
    assert_int_equal(render_in("{% for i in range(20) %}{% endfor %}", &in, NULL), CN_ELIMIT);

    in.limits = (struct eng_template_limits){.max_output_bytes = 100, .max_ns = 60000000000};
    assert_int_equal(render_in("{{ 'a' * 100 }}", &in, &n), 0);
    assert_int_equal(n, 100);
    assert_int_equal(render_in("{{ 'a' * 101 }}", &in, NULL), CN_ELIMIT);
    assert_int_equal(render_in("{{ 'a' * 60 }}{{ 'a' * 60 }}", &in, NULL), CN_ELIMIT);

    in.limits = (struct eng_template_limits){.max_depth = 5, .max_ns = 60000000000};
    const char *rec =
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(${n}) }}";
    char src[256];
    snprintf(src, sizeof(src), "%.*s4%s", (int)(strstr(rec, "${n}") - rec), rec, ") }}");
    assert_int_equal(render_in(src, &in, NULL), 0);
    snprintf(src, sizeof(src), "%.*s5%s", (int)(strstr(rec, "${n}") - rec), rec, ") }}");
    assert_int_equal(render_in(src, &in, NULL), CN_ELIMIT);

    in.limits = (struct eng_template_limits){.max_memory_bytes = 1 << 20, .max_ns = 60000000000};
    assert_int_equal(render_in("{{ 'a' * 100000 }}", &in, NULL), 0);
    assert_int_equal(render_in("{% set a = 'a' * 900000 %}{% set b = 'a' * 900000 %}", &in, NULL),
                     CN_ELIMIT);

    in.limits = (struct eng_template_limits){.max_ns = 1000000, .max_steps = UINT64_MAX};
    uint64_t start = cn_now_ns();
    assert_int_equal(render_in("{% set s = 'a' * 1000000 %}{% for i in range(99999) %}"
                               "{% set x = s.count('ab') %}{% endfor %}",
                               &in, NULL),
                     CN_ELIMIT);
    assert_int_equal(
        render_in("{% set s = 'a' * 1000000 %}{{ s.rfind('a' * 5000 ~ 'b') }}", &in, NULL),
        CN_ELIMIT);
    assert_true(cn_now_ns() - start < 5000000000);
}

static void deep_and_odd_data(void **state)
{
    json_t *j = json_array();
    for (int i = 0; i < 5000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, j);
        j = outer;
    }
    struct eng_template_in in = {.messages = j, .limits = {.max_ns = 60000000000}};
    assert_int_equal(render_in("{{ messages }}", &in, NULL), CN_ELIMIT);
    assert_int_equal(render_in("{{ messages|tojson }}", &in, NULL), CN_ELIMIT);
    assert_int_equal(render_in("not used", &in, NULL), 0);
    json_decref(j);

    /* A key with a NUL, a value with a NUL, numbers at the ends. */
    j = json_loads("[{\"a\": \"x\\u0000y\", \"min\": -9223372036854775808, \"f\": 1e308}]",
                   JSON_ALLOW_NUL, NULL);
    in.messages = j;
    size_t n = 0;
    assert_int_equal(render_in("{{ messages[0].a }}", &in, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(render_in("{{ messages[0].min // -1 }}", &in, NULL), CN_ETEMPLATE);
    assert_int_equal(render_in("{{ messages[0].min % -1 }}", &in, NULL), 0);
    assert_int_equal(render_in("{{ -messages[0].min }}", &in, NULL), CN_ETEMPLATE);
    assert_int_equal(render_in("{{ messages[0].min|abs }}", &in, NULL), CN_ETEMPLATE);
    assert_int_equal(render_in("{{ 'abc'[messages[0].min:] }}{{ 'abc'[::messages[0].min] }}"
                               "{{ [1, 2][:messages[0].min:messages[0].min] }}",
                               &in, NULL),
                     0);
    assert_int_equal(
        render_in("{{ messages[0].f * 1e10 }}{{ (messages[0].f * 1e10)|tojson }}", &in, NULL), 0);
    assert_int_equal(render_in("{{ (messages[0].f)|int }}", &in, NULL), CN_ETEMPLATE);
    assert_int_equal(render_in("{{ range(messages[0].min, -messages[0].min - 1) }}", &in, NULL),
                     CN_ETEMPLATE);
    assert_int_equal(render_in("{{ range(messages[0].min, 9223372036854775807, 1) }}", &in, NULL),
                     CN_ETEMPLATE);
    assert_int_equal(render_in("{{ range(0, messages[0].min, messages[0].min)|list }}", &in, NULL),
                     0);
    json_decref(j);
}

static void kwargs_may_not_name_the_others(void **state)
{
    static const char *const names[] = {
        "messages",  "tools",     "documents", "add_generation_prompt",
        "bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        json_t *kwargs = json_pack("{s:s}", names[i], "x");
        struct eng_template_in in = {.kwargs = kwargs};
        assert_int_equal(render_in("x", &in, NULL), CN_EINVAL);
        json_decref(kwargs);
    }
    json_t *list = json_array();
    struct eng_template_in in = {.kwargs = list};
    assert_int_equal(render_in("x", &in, NULL), CN_ETYPE);
    json_decref(list);
}

static const char everything[] =
    "{% macro m(a, b=1) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}"
    "{% set ns = namespace(t='') %}{% for x in messages %}{% set ns.t = ns.t ~ x.content ~ '|' %}"
    "{{ loop.index }}{{ m(x, 2, 3) }}{% endfor %}{{ ns.t|upper|replace('H', 'xyz')|tojson }}"
    "{{ messages|tojson(indent=2) }}{{ '%5s'|format('a') }}{{ '{:>9}'.format('b') }}"
    "{% filter indent %}a\nb{% endfilter %}{{ 'a,b,c'.split(',')|map('upper')|sort|join('-') }}";

static const char open_end[] = "{% for m in messages %}<m>{{ m.content|trim }}</m>{% endfor %}";

/* go_on: the last message is left open. */
static void fail_each(bool go_on)
{
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s}]", "role", "user", "content", "hi", "content", "x");
    struct eng_template_in in = {.messages = messages, .limits = {.max_ns = 60000000000}};
    int n_failed = 0;
    for (int64_t i = 0;; i++) {
        struct eng_template *t = NULL;
        struct eng_rendered r = {0};
        struct cn_error err = {0};
        left = i;
        int rc = go_on ? eng_template_new(open_end, sizeof open_end - 1, &t, &err)
                       : eng_template_new(everything, sizeof everything - 1, &t, &err);
        if (!rc)
            rc = go_on ? eng_template_continue(t, &in, &r, &err)
                       : eng_template_render(t, &in, &r, &err);
        left = -1;
        if (!rc) eng_rendered_fini(&r);
        eng_template_free(t);
        if (!rc) break;
        assert_int_equal(rc, CN_ENOMEM);
        n_failed++;
    }
    assert_true(n_failed >= 4);
    json_decref(messages);
}

static void failing_allocations(void **state)
{
    fail_each(false);
    fail_each(true);
}

static void *renderings(void *arg)
{
    const struct eng_template *t = arg;
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s}]", "role", "user", "content", "hi", "content", "x");
    struct eng_template_in in = {.messages = messages, .limits = {.max_ns = 60000000000}};
    uintptr_t sum = 0;
    for (int i = 0; i < 200; i++) {
        struct eng_rendered r = {0};
        if (eng_template_render(t, &in, &r, NULL)) break;
        for (size_t k = 0; k < r.text.len; k++)
            sum = sum * 31 + (unsigned char)r.text.data[k];
        eng_rendered_fini(&r);
    }
    json_decref(messages);
    return (void *)sum;
}

static void side_by_side(void **state)
{
    struct eng_template *t = NULL;
    pthread_t th[4];
    void *sum[4], *alone;
    assert_int_equal(eng_template_new(everything, sizeof(everything) - 1, &t, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&th[i], NULL, renderings, t), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], &sum[i]);
    alone = renderings(t);
    for (int i = 0; i < 4; i++)
        assert_ptr_equal(sum[i], alone);
    eng_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_sources),        cmocka_unit_test(endless_work),
        cmocka_unit_test(steps_are_quick),     cmocka_unit_test(given_limits),
        cmocka_unit_test(deep_and_odd_data),   cmocka_unit_test(kwargs_may_not_name_the_others),
        cmocka_unit_test(failing_allocations), cmocka_unit_test(side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
