/* Conversations with lists of text parts, and with system messages in odd places, through the chat
 * templates in use: eng_template_fit and the rendering together give what the reference renderer
 * gives (make_parts_cases.py). Skipped where the oracle is absent. */
#include "tests/text/vocab_file.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct { size_t lists, texts, refused, templates; } seen;

static void digest(const struct cn_buf *b, char out[17])
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < b->len; i++)
        h = (h ^ (unsigned char)b->data[i]) * 0x100000001b3u;
    snprintf(out, 17, "%016" PRIx64, h);
}

static bool any(const json_t *messages, const char *member, bool list)
{
    const json_t *m;
    size_t i;
    json_array_foreach(messages, i, m)
    {
        const json_t *v = json_object_get(m, member);
        if (list ? json_is_array(v) : v != NULL) return true;
    }
    return false;
}

static int64_t seconds(const char *iso)
{
    struct tm tm = {0};
    assert_non_null(strptime(iso, "%Y-%m-%dT%H:%M:%S", &tm));
    return timegm(&tm);
}

/* want: "list HASH" where a list is to reach the template, "text HASH" where none is, or null where
 * the reference refuses the conversation. */
static bool run_case(const struct eng_template *t, const json_t *doc, bool tools, const char *name,
                     const char *label, const json_t *want)
{
    json_t *messages =
        json_deep_copy(json_object_get(json_object_get(doc, "conversations"), label));
    json_t *list = json_pack("[O]", json_object_get(doc, "tool"));
    struct eng_rendered r = {0};
    struct cn_error err = {0};
    char have[32] = "refused", hash[17];

    assert_non_null(messages);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    struct eng_template_in in = {
        .messages = messages,
        .tools = tools || any(messages, "tool_calls", false) ? list : NULL,
        .add_generation_prompt =
            strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0,
        .bos_token = {"<BOS>", 5},
        .eos_token = {"<EOS>", 5},
        .pad_token = {"<PAD>", 5},
        .unk_token = {"<UNK>", 5},
        .now_s = seconds(json_string_value(json_object_get(doc, "now"))),
        .limits = {.max_ns = 60000000000}};
    assert_int_equal(eng_template_fit(t, messages, &err), 0);
    bool lists = any(messages, "content", true);
    int rc = eng_template_render(t, &in, &r, &err);
    if (!rc) {
        digest(&r.text, hash);
        snprintf(have, sizeof have, "%s %s", lists ? "list" : "text", hash);
        eng_rendered_fini(&r);
    }
    bool ok = json_is_string(want) ? !strcmp(json_string_value(want), have) : rc == CN_ETEMPLATE;
    if (!ok)
        print_error("%s/%s: %s %s, wanted %s\n", name, label, have, rc ? err.message : "",
                    json_is_string(want) ? json_string_value(want) : "an error");
    seen.refused += ok && rc;
    seen.lists += ok && !rc && lists;
    seen.texts += ok && !rc && !lists;
    json_decref(messages);
    json_decref(list);
    return ok;
}

static void as_the_reference(void **state)
{
    const char *env = getenv("CONIFER_ORACLE"), *name, *label;
    json_t *doc = json_load_file(CONIFER_SOURCE_ROOT "/tests/text/parts_cases.json", 0, NULL), *one;
    json_t *want;
    size_t wrong = 0;

    assert_non_null(doc);
    json_object_foreach(json_object_get(doc, "templates"), name, one)
    {
        char path[4096];
        size_t n = 0;
        snprintf(path, sizeof path, "%s/templates/%s.jinja",
                 env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle", name);
        char *src = read_file(path, &n);
        struct eng_template *t = NULL;
        if (!src && !seen.templates) {
            print_message("no oracle: skipped\n");
            json_decref(doc);
            skip();
        }
        assert_non_null(src);
        assert_int_equal(eng_template_new(src, n, &t, NULL), 0);
        bool tools = json_is_true(json_object_get(one, "tools"));
        json_object_foreach(json_object_get(one, "cases"), label, want) wrong +=
            !run_case(t, doc, tools, name, label, want);
        eng_template_free(t);
        free(src);
        seen.templates++;
    }
    json_decref(doc);
    print_message("%zu templates: %zu conversations with lists, %zu with texts alone and %zu "
                  "refused as by the reference; %zu wrong\n",
                  seen.templates, seen.lists, seen.texts, seen.refused, wrong);
    assert_int_equal(wrong, 0);
    assert_true(seen.templates > 40 && seen.lists > 300 && seen.texts > 900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
