/* loadtest: server-sent events, what their JSON says, addresses. */
#include "loadtest/run.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool collect(void *arg, const char *p, size_t n)
{
    struct cn_buf *out = arg;

    cn_buf_putc(out, '<');
    cn_buf_append(out, p, n);
    cn_buf_putc(out, '>');
    return true;
}

/* The events of text, fed in parts of `part` bytes. */
static void events_are(const char *text, size_t part, const char *want)
{
    struct lt_sse s;
    struct cn_buf out;
    size_t n = strlen(text);

    lt_sse_init(&s);
    cn_buf_init(&out, 0);
    for (size_t i = 0; i < n; i += part)
        assert_int_equal(lt_sse_feed(&s, text + i, CN_MIN(part, n - i), collect, &out), 0);
    assert_string_equal(cn_buf_cstr(&out), want);
    cn_buf_fini(&out);
    lt_sse_fini(&s);
}

static void events_in_any_parts(void **state)
{
    static const struct {
        const char *text, *events;
    } rows[] = {
        {"data: a\n\ndata: b\n\n", "<a><b>"},
        {"data: a\r\n\r\ndata:b\r\n\r\n", "<a><b>"},
        {"data: a\r\rdata:  b\r\r", "<a>< b>"},
        {": comment\n\nevent: x\ndata: a\nid: 1\ndata: b\n\n", "<a\nb>"},
        {"data\n\n", "<>"},
        {"data: a\n", ""},
        {"\n\n\ndata: a\n\n\n\n", "<a>"},
        {"database: a\ndat: b\ndata: c\n\n", "<c>"},
        {"", ""},
    };

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++)
        for (size_t part = 1; part < 40; part++)
            events_are(rows[i].text, part, rows[i].events);
}

static bool stop(void *arg, const char *p, size_t n)
{
    ++*(int *)arg;
    return false;
}

static void a_reader_can_stop_and_events_have_a_limit(void **state)
{
    struct lt_sse s;
    struct cn_buf big;
    int seen = 0;

    lt_sse_init(&s);
    assert_int_equal(lt_sse_feed(&s, "data: a\n\ndata: b\n\n", 18, stop, &seen), 0);
    assert_int_equal(seen, 1);
    lt_sse_fini(&s);
    lt_sse_init(&s);
    cn_buf_init(&big, 0);
    for (int i = 0; i < 2 << 20; i++)
        cn_buf_append(&big, "data: 0123456789\n", 17);
    assert_int_equal(lt_sse_feed(&s, big.data, big.len, stop, &seen), CN_ELIMIT);
    lt_sse_fini(&s);
    lt_sse_init(&s);
    memset(big.data, 'x', big.len); /* one line without an end */
    assert_int_equal(lt_sse_feed(&s, big.data, big.len, stop, &seen), CN_ELIMIT);
    lt_sse_fini(&s);
    cn_buf_fini(&big);
}

static struct lt_event event(const char *text)
{
    struct lt_event e;

    if (!lt_event_read(text, strlen(text), &e)) fail_msg("not read: %s", text);
    return e;
}

static void what_events_say(void **state)
{
    struct lt_event e =
        event("{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\\\"b\",\"logprobs\":null,"
              "\"finish_reason\":null}],\"usage\":null}");
    assert_true(e.text && !e.finish && !e.usage && !e.error);
    e = event("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}");
    assert_true(!e.text && e.finish);
    e = event("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
    assert_false(e.text);
    e = event("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}");
    assert_false(e.text);
    e = event(" { \"choices\" : [ { \"delta\" : { \"reasoning_content\" : \"h\" } } ] } ");
    assert_true(e.text);
    e = event("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}");
    assert_true(e.text);
    e = event("{\"choices\":[{\"delta\":{\"tool_calls\":[]}}]}");
    assert_false(e.text);
    e = event("{\"timings\":{\"text\":\"no\",\"choices\":[{\"text\":\"no\"}]},\"choices\":[]}");
    assert_false(e.text);
    e = event("{\"choices\":[],\"usage\":{\"completion_tokens\":12,\"total_tokens\":99,"
              "\"prompt_tokens_details\":{\"audio\":1,\"cached_tokens\":7},\"prompt_tokens\":34}}");
    assert_true(e.usage && e.prompt_tokens == 34 && e.completion_tokens == 12 &&
                e.cached_tokens == 7);
    e = event("{\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_details\":null,"
              "\"completion_tokens\":99999999999999999999999}}");
    assert_true(e.usage && e.prompt_tokens == 1 && e.completion_tokens == UINT64_MAX);
    e = event(
        "{\"choices\":[{\"message\":{\"content\":\"all of it\"},\"finish_reason\":\"stop\"}]}");
    assert_true(e.text && e.finish);
    e = event("{\"error\":{\"code\":500,\"message\":\"went wrong\",\"x\":{\"message\":\"no\"}}}");
    assert_true(e.error);
    assert_string_equal(e.message, "went wrong");
    e = event("{\"error\":null}");
    assert_false(e.error);
    e = event("{\"error\":\"short\"}");
    assert_true(e.error);
}

static void what_is_no_object(void **state)
{
    static const char *const rows[] = {"",
                                       "[]",
                                       "null",
                                       "{",
                                       "{\"a\"}",
                                       "{\"a\":",
                                       "{\"a\":}",
                                       "{\"a\":1",
                                       "{\"a\":\"x}",
                                       "{\"a\":[1}",
                                       "{\"choices\":[{\"text\":\"a\"",
                                       "<html>",
                                       "{a:1}"};

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct lt_event e;

        if (lt_event_read(rows[i], strlen(rows[i]), &e)) fail_msg("read: %s", rows[i]);
    }
}

static void addresses(void **state)
{
    static const struct {
        const char *url, *name, *port, *base, *host;
    } rows[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", "8080", "", "127.0.0.1:8080"},
        {"http://a.example/v1", "a.example", "80", "", "a.example"},
        {"localhost:1", "localhost", "1", "", "localhost:1"},
        {"http://[::1]:99/api/v1/", "::1", "99", "/api", "[::1]:99"},
        {"http://[::1]", "::1", "80", "", "[::1]"},
        {"http://h:5/api", "h", "5", "/api", "h:5"},
    };
    static const char *const wrong[] = {
        "https://h",   "http://",    "http://:80", "http://h:", "http://h:x",
        "http://[::1", "http://a b", "http://u@h", "",          "ftp://h"};

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct lt_target t;
        struct cn_error e = {0};

        if (lt_target_parse(rows[i].url, &t, &e)) fail_msg("%s", e.message);
        assert_string_equal(t.name, rows[i].name);
        assert_string_equal(t.port, rows[i].port);
        assert_string_equal(t.base, rows[i].base);
        assert_string_equal(t.host, rows[i].host);
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(wrong); i++) {
        struct lt_target t;

        if (!lt_target_parse(wrong[i], &t, NULL)) fail_msg("taken: %s", wrong[i]);
    }
}

static void nothing_drives_a_terminal(void **state)
{
    static const struct {
        const char *text, *shown;
    } rows[] = {
        {"plain \xc3\xa9 \xe2\x82\xac", "plain \xc3\xa9 \xe2\x82\xac"},
        {"a\x1b[2Jb\x7f\r\n", "a [2Jb   "},
        {"c\xc2\x9b"
         "2J\xc2\x80\xc2\xa0",
         "c  2J  \xc2\xa0"}, /* U+009B begins a sequence too */
        {"cut \xe2\x82", "cut   "},
        {"\x9b"
         "1m",
         " 1m"},
        {"", ""},
    };

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        char text[64];

        strcpy(text, rows[i].text);
        lt_plain(text);
        assert_string_equal(text, rows[i].shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_in_any_parts),
        cmocka_unit_test(a_reader_can_stop_and_events_have_a_limit),
        cmocka_unit_test(what_events_say),
        cmocka_unit_test(what_is_no_object),
        cmocka_unit_test(addresses),
        cmocka_unit_test(nothing_drives_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
