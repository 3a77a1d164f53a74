/* loadtest: scenario files, their messages, options over them, and the requests they make. */
#include "loadtest/loadtest.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static int load(struct lt_scenario *s, const char *text, struct cn_error *e)
{
    memset(e, 0, sizeof *e);
    assert_int_equal(lt_scenario_init(s, e), 0);
    int rc = lt_scenario_load_text(s, "t.yaml", text, strlen(text), e);
    return rc ? rc : lt_scenario_check(s, e);
}

static const char full_file[] = "name: full\n"
                                "seed: 12\n"
                                "duration_s: 1.5\n"
                                "keep_alive: false\n"
                                "tenants:\n"
                                "  - {name: a, key: cnf_1, share: 3}\n"
                                "  - name: b\n"
                                "    key: 'cnf_2'\n"
                                "classes:\n"
                                "  - name: chats\n"
                                "    endpoint: chat\n"
                                "    rate: 2.5\n"
                                "    arrival: even\n"
                                "    prompt_tokens: [4, 8]\n"
                                "    answer_tokens: [6]\n"
                                "    split_by: others\n"
                                "    extra: '{\"top_p\": 0.5}'\n"
                                "  - name: others\n"
                                "    clients: 3\n"
                                "    prompt_tokens: 2..9\n"
                                "    prefix_tokens: 5\n"
                                "    prefix_groups: 2\n";

static void a_file_is_read(void **state)
{
    struct lt_scenario s;
    struct cn_error e;

    assert_int_equal(load(&s, full_file, &e), 0);
    assert_string_equal(s.name, "full");
    assert_int_equal(s.seed, 12);
    assert_true(s.duration_s == 1.5 && !s.keep_alive && s.timeout_s == 600);
    assert_int_equal(s.n_tenants, 2);
    assert_true(s.tenants[0].share == 3 && s.tenants[1].share == 1);
    assert_string_equal(s.tenants[1].key, "cnf_2");
    assert_int_equal(s.n_classes, 2);
    const struct lt_class *c = &s.classes[0], *d = &s.classes[1];
    assert_true(c->endpoint == LT_CHAT && c->rate == 2.5 && c->arrival == LT_EVEN);
    assert_int_equal(c->prompt, LT_PROMPT_TEXT);
    assert_int_equal(c->split, 1);
    assert_int_equal(c->prompt_tokens.kind, LT_LEN_LIST);
    assert_int_equal(c->prompt_tokens.n_list, 2);
    assert_int_equal(c->answer_tokens.kind, LT_LEN_FIXED);
    assert_int_equal(c->answer_tokens.low, 6);
    assert_true(d->endpoint == LT_COMPLETIONS && d->prompt == LT_PROMPT_IDS && d->split == -1);
    assert_true(d->clients == 3 && d->prompt_tokens.low == 2 && d->prompt_tokens.high == 9);
    assert_true(c->place.line == 10 && c->place.column == 5);
    lt_scenario_fini(&s);
}

static void errors_name_their_place(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"seed: x", "t.yaml:1:7: seed: must be a whole number, not \"x\""},
        {"seed: -1", "t.yaml:1:7: seed: must be at least 0, not -1"},
        {"seed: '1'", "t.yaml:1:7: seed: must be a number, not a quoted text"},
        {"a: 1", "t.yaml:1:1: a: unknown key in the scenario; conifer-load --help lists them"},
        {"seed: 1\nseed: 2", "t.yaml:2:1: seed: this key was given already"},
        {"[1]", "t.yaml:1:1: a scenario is a group of keys"},
        {"classes: 5", "t.yaml:1:10: classes: must be a list"},
        {"classes:\n  - 5", "t.yaml:2:5: classes: each item must be a group of keys"},
        {"classes:\n  - requests: 1\n    clients: 0",
         "t.yaml:3:14: clients: must be in 1..1000000, not 0"},
        {"classes:\n  - stream: maybe",
         "t.yaml:2:13: stream: must be true or false, not \"maybe\""},
        {"classes:\n  - arrival: odd",
         "t.yaml:2:14: arrival: must be one of poisson|even, not \"odd\""},
        {"classes:\n  - prompt_tokens: 9..3",
         "t.yaml:2:20: prompt_tokens: the first bound is above the second in 9..3"},
        {"classes:\n  - prompt_tokens: 0",
         "t.yaml:2:20: prompt_tokens: must be in 1..10000000, not 0"},
        {"classes:\n  - prompt_tokens: [1, -2]",
         "t.yaml:2:24: prompt_tokens: each item must be a whole number"},
        {"classes:\n  - prompt_tokens: []", "t.yaml:2:21: prompt_tokens: the list is empty"},
        {"classes:\n  - prompt_tokens: some", "t.yaml:2:20: prompt_tokens: must be a length: 128, "
                                              "16..256, lognormal:MEDIAN:SIGMA[:MOST] or "
                                              "a list of numbers, not \"some\""},
        {"classes:\n  - prompt_tokens: lognormal:5:99",
         "t.yaml:2:20: prompt_tokens: sigma must be from 0 to 10, not 99"},
        {"classes:\n  - {clients: 2}",
         "t.yaml:2:5: requests: how many? (or duration_s for how long, or background)"},
        {"classes:\n  - {requests: 2, endpoint: chat, prompt: ids}",
         "t.yaml:2:5: prompt: a chat has words, not ids"},
        {"classes:\n  - {requests: 2, ids_from: 9, ids_to: 9}",
         "t.yaml:2:5: ids_to: must be above ids_from"},
        {"classes:\n  - {requests: 2, extra: '[1]'}", "t.yaml:2:5: extra: must be a JSON object"},
        {"classes:\n  - {requests: 2, stream: false, abort_share: 0.5}",
         "t.yaml:2:5: abort_share: an answer that is no stream is cut after a time: abort_after_s"},
        {"classes:\n  - {requests: 2, split_by: x}",
         "t.yaml:2:5: split_by: there is no class of this name"},
        {"classes:\n  - {requests: 2, name: x, split_by: x}",
         "t.yaml:2:5: split_by: must name another class"},
        {"classes:\n  - {requests: 1, name: x}\n  - {requests: 1, name: x}",
         "t.yaml:3:5: name: two classes have this name"},
        {"classes:\n  - {background: true}", "background: one class must not be in the background"},
        {"duration_s: 1\nwarmup_s: 1", "warmup_s: must be shorter than duration_s"},
        {"classes: [{requests: 1}]\ntenants:\n  - {share: 0}",
         "t.yaml:3:5: tenants.share: all tenants' shares are 0"},
        {"classes: [{requests: 1}]\ntenants:\n  - {key: \"a\\nb\"}",
         "t.yaml:3:5: tenants.key: must be one line"},
        {"x: &a 1", "t.yaml:1:1: x: unknown key in the scenario; conifer-load --help lists them"},
        {"seed: &a 1", "t.yaml:1:7: anchors, aliases and tags are not supported"},
        {"seed: !!int 1", "t.yaml:1:7: anchors, aliases and tags are not supported"},
        {"seed: 1\n---\nseed: 2", "t.yaml:2:1: a file holds one scenario"},
    };

    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct lt_scenario s;
        struct cn_error e;

        assert_true(load(&s, rows[i].text, &e) != 0);
        assert_string_equal(e.message, rows[i].message);
        lt_scenario_fini(&s);
    }
}

static void options_override(void **state)
{
    struct lt_scenario s;
    struct cn_error e;

    assert_int_equal(load(&s, full_file, &e), 0);
    assert_int_equal(lt_scenario_set(&s, NULL, "seed", "77", &e), 0);
    assert_int_equal(lt_scenario_set(&s, NULL, "answer_tokens", "3..4", &e), 0);
    assert_int_equal(lt_scenario_set(&s, "others", "clients", "8", &e), 0);
    assert_int_equal(lt_scenario_set(&s, "nobody", "clients", "8", &e), CN_ENOENT);
    assert_int_equal(lt_scenario_set(&s, NULL, "colour", "8", &e), CN_ENOENT);
    assert_int_equal(lt_scenario_set(&s, "others", "seed", "8", &e), CN_ENOENT);
    assert_int_equal(lt_scenario_check(&s, &e), 0);
    assert_true(s.seed == 77 && s.classes[0].answer_tokens.high == 4 &&
                s.classes[1].answer_tokens.high == 4);
    assert_true(s.classes[0].clients == 1 && s.classes[1].clients == 8);
    lt_scenario_fini(&s);
    /* without a file an option makes the one class */
    assert_int_equal(lt_scenario_init(&s, &e), 0);
    assert_int_equal(lt_scenario_set(&s, NULL, "requests", "5", &e), 0);
    assert_int_equal(lt_scenario_check(&s, &e), 0);
    assert_int_equal(s.n_classes, 1);
    assert_string_equal(s.classes[0].name, "requests");
    lt_scenario_fini(&s);
}

static void the_scenarios_here_are_right(void **state)
{
    const char *folder = CONIFER_SOURCE_ROOT "/loadtest/scenarios";
    DIR *d = opendir(folder);
    int found = 0;

    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        struct lt_scenario s;
        struct cn_error e = {0};
        char path[512];

        if (!strstr(f->d_name, ".yaml")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        assert_int_equal(lt_scenario_init(&s, &e), 0);
        if (lt_scenario_load(&s, path, &e) || lt_scenario_check(&s, &e)) fail_msg("%s", e.message);
        assert_true(!strncmp(s.name, f->d_name, strlen(s.name)) && *s.description);
        found++;
        lt_scenario_fini(&s);
    }
    closedir(d);
    assert_true(found >= 4);
}

/* ---- requests -------------------------------------------------------------------------------- */

static json_t *body(const struct lt_scenario *s, size_t class, uint64_t i, bool warm, uint64_t seed)
{
    struct lt_shape shape;
    struct cn_buf out;
    json_error_t why;
    json_t *v;

    cn_buf_init(&out, 0);
    lt_shape_draw(s, class, i, warm, seed, &shape);
    lt_body(s, class, i, warm, seed, "some \"model\"", &shape, &out);
    v = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &why);
    if (!v) fail_msg("%.*s: %s", (int)out.len, out.data, why.text);
    cn_buf_fini(&out);
    return v;
}

static size_t shared(json_t *a, json_t *b)
{
    json_t *x = json_object_get(a, "prompt"), *y = json_object_get(b, "prompt");
    size_t i = 0;

    while (i < json_array_size(x) && i < json_array_size(y) &&
           json_equal(json_array_get(x, i), json_array_get(y, i)))
        i++;
    return i;
}

static void prompts_share_what_they_should(void **state)
{
    struct lt_scenario s;
    struct cn_error e;
    json_t *v[5];

    assert_int_equal(load(&s,
                          "classes: [{requests: 1, prefix_tokens: 50, prefix_groups: 2, "
                          "prompt_tokens: 20, answer_tokens: 9, ids_from: 10, ids_to: 100000}]",
                          &e),
                     0);
    for (uint64_t i = 0; i < 4; i++)
        v[i] = body(&s, 0, i, false, 5);
    assert_int_equal(json_array_size(json_object_get(v[0], "prompt")), 70);
    assert_int_equal(shared(v[0], v[2]), 50);
    assert_int_equal(shared(v[1], v[3]), 50);
    assert_int_equal(shared(v[0], v[1]), 0);
    assert_int_equal(json_integer_value(json_object_get(v[0], "max_tokens")), 9);
    assert_string_equal(json_string_value(json_object_get(v[0], "model")), "some \"model\"");
    assert_true(json_is_true(json_object_get(v[0], "ignore_eos")));
    assert_true(json_is_true(json_object_get(v[0], "stream")));
    for (size_t i = 0; i < 70; i++)
        assert_in_range(json_integer_value(json_array_get(json_object_get(v[0], "prompt"), i)), 10,
                        99999);
    v[4] = body(&s, 0, 0, false, 5); /* the same again, from the same seed */
    assert_true(json_equal(v[0], v[4]));
    json_decref(v[4]);
    v[4] = body(&s, 0, 0, false, 6);
    assert_int_equal(shared(v[0], v[4]), 0);
    json_decref(v[4]);
    v[4] = body(&s, 0, 0, true, 5); /* the warm-up makes nothing warm */
    assert_int_equal(shared(v[0], v[4]), 0);
    for (int i = 0; i < 5; i++)
        json_decref(v[i]);
    lt_scenario_fini(&s);
}

static void chats_and_extra_members(void **state)
{
    struct lt_scenario s;
    struct cn_error e;

    assert_int_equal(
        load(&s,
             "classes: [{requests: 1, endpoint: chat, stream: false, prompt_tokens: 7, "
             "prefix_tokens: 3, ignore_eos: false, temperature: 0.25, "
             "extra: ' {\"top_p\": 0.5} '}, {requests: 1, prompt: text, "
             "prompt_tokens: 4, extra: '{ }'}]",
             &e),
        0);
    json_t *v = body(&s, 0, 1, false, 5), *messages = json_object_get(v, "messages");
    const char *text = json_string_value(json_object_get(json_array_get(messages, 1), "content"));
    int spaces = 0;

    assert_int_equal(json_array_size(messages), 2);
    for (const char *p = text; *p; p++)
        spaces += *p == ' ';
    assert_int_equal(spaces, 6);
    assert_null(json_object_get(v, "ignore_eos"));
    assert_null(json_object_get(v, "stream"));
    assert_true(json_real_value(json_object_get(v, "temperature")) == 0.25);
    assert_true(json_real_value(json_object_get(v, "top_p")) == 0.5);
    json_decref(v);
    v = body(&s, 1, 1, false, 5);
    assert_true(json_is_string(json_object_get(v, "prompt")));
    json_decref(v);
    lt_scenario_fini(&s);
}

static void shares_are_kept(void **state)
{
    struct lt_scenario s;
    struct cn_error e;
    int second = 0, aborts = 0, slow = 0;

    assert_int_equal(load(&s,
                          "tenants: [{share: 0}, {share: 3}, {share: 1}]\n"
                          "classes: [{requests: 1, abort_share: 0.25, slow_share: 0.5}]",
                          &e),
                     0);
    for (uint64_t i = 0; i < 10000; i++) {
        struct lt_shape shape;

        lt_shape_draw(&s, 0, i, false, 9, &shape);
        assert_true(shape.tenant != 0);
        second += shape.tenant == 1;
        aborts += shape.aborts;
        slow += shape.slow;
    }
    assert_in_range(second, 7250, 7750);
    assert_in_range(aborts, 2250, 2750);
    assert_in_range(slow, 4750, 5250);
    lt_scenario_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read),
        cmocka_unit_test(errors_name_their_place),
        cmocka_unit_test(options_override),
        cmocka_unit_test(the_scenarios_here_are_right),
        cmocka_unit_test(prompts_share_what_they_should),
        cmocka_unit_test(chats_and_extra_members),
        cmocka_unit_test(shares_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
