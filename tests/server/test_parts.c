/* The server's small parts: JSON before and in jansson, typed fields, keys. */
#include "server/json.h"
#include "server/key.h"
#include "server/params.h"
#include "server/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int parse(const char *text, size_t n, struct cn_error *err)
{
    json_t *root = NULL;
    memset(err, 0, sizeof *err);
    struct srv_json_room left = {.left = SRV_JSON_WEIGHT};
    int rc = srv_json_parse(text, n, &left, &root, err);
    assert_int_equal(rc, err->code);
    assert_true((rc == 0) == (root != NULL));
    json_decref(root);
    return rc;
}

static void test_json(void **state)
{
    static const struct {
        const char *text;
        int want;
    } cases[] = {
        {"{}", 0},
        {" {\"a\": [1, 2, {\"b\": null}]} ", 0},
        {"", CN_EJSON},
        {"[]", CN_EJSON},
        {"1", CN_EJSON},
        {"{\"a\":1,\"a\":2}", CN_EJSON},
        {"{} x", CN_EJSON},
        {"{\"a\":\"\xff\"}", CN_EJSON},
        {"{\"a\":\"\xed\xa0\x80\"}", CN_EJSON},
        {"{\"a\":NaN}", CN_EJSON},
        {"{\"a\":1e999}", CN_ERANGE},
        {"{\"a\":}", CN_EJSON},
        {"{\"a\":\"\\u0000\"}", 0},
        {"{\"a\":\"\\ud800\"}", CN_EJSON},
        {"{\"a\":\"[[[[\\\"{{\"}", 0},
        {"{\"a\":\"\\", CN_EJSON},
        {"{\"a\":99999999999999999999}", 0},
        {"{\"a\":[9223372036854775808,-9223372036854775809,\"9223372036854775808\"]}", 0},
        {"{\"a\":9223372036854775808,\"a\":1}", CN_EJSON},
        {"{\"a\":9223372036854775808", CN_EJSON},
        {"{\"a\":9223372036854775808.5e999}", CN_ERANGE},
    };
    struct cn_error err;
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        if (parse(cases[i].text, strlen(cases[i].text), &err) != cases[i].want)
            fail_msg("%s: %d %s", cases[i].text, err.code, err.message);
}

/* An integer that 64 bits do not hold is a real, and what is around it stays what it is. */
static void test_json_wide(void **state)
{
    static const char text[] = "{\"s\":\"\\\"18446744073709551616\",\"b\":18446744073709551616,"
                               "\"i\":-9223372036854775808,\"r\":18446744073709551616.5,"
                               "\"n\":-9223372036854775809,\"one\":1.0,\"k\":1e3,\"h\":1.5}";
    struct srv_json_room left = {.left = SRV_JSON_WEIGHT};
    struct cn_error err = {0};
    json_t *root = NULL;
    int64_t x;

    assert_int_equal(srv_json_parse(text, sizeof text - 1, &left, &root, &err), 0);
    assert_true(srv_json_is(json_object_get(root, "s"), "\"18446744073709551616"));
    assert_true(json_real_value(json_object_get(root, "b")) == 18446744073709551616.0);
    assert_true(json_integer_value(json_object_get(root, "i")) == INT64_MIN);
    assert_true(json_is_real(json_object_get(root, "r")) &&
                json_is_real(json_object_get(root, "n")));
    assert_false(srv_json_int(json_object_get(root, "b"), &x));
    assert_false(srv_json_int(json_object_get(root, "h"), &x));
    assert_false(srv_json_int(json_object_get(root, "s"), &x));
    assert_true(srv_json_int(json_object_get(root, "i"), &x) && x == INT64_MIN);
    assert_true(srv_json_int(json_object_get(root, "one"), &x) && x == 1);
    assert_true(srv_json_int(json_object_get(root, "k"), &x) && x == 1000);
    json_decref(root);
}

/* A word with a NUL and more behind it is not that word. */
static void test_json_words(void **state)
{
    static const char *const words[] = {"user", "use", "", NULL};
    json_t *long_one = json_stringn("user\0x", 6), *use = json_string("use"),
           *none = json_string("");

    assert_false(srv_json_is(long_one, "user"));
    assert_int_equal(srv_json_one_of(long_one, words), -1);
    assert_int_equal(srv_json_one_of(use, words), 1);
    assert_int_equal(srv_json_one_of(none, words), 2);
    assert_int_equal(srv_json_one_of(json_true(), words), -1);
    assert_int_equal(srv_json_one_of(NULL, words), -1);
    json_decref(long_one);
    json_decref(use);
    json_decref(none);
}

static void nested(struct cn_buf *b, size_t depth)
{
    cn_buf_reset(b);
    cn_buf_puts(b, "{\"a\":");
    for (size_t i = 1; i < depth; i++)
        cn_buf_putc(b, '[');
    for (size_t i = 1; i < depth; i++)
        cn_buf_putc(b, ']');
    if (depth == 1) cn_buf_putc(b, '1');
    cn_buf_putc(b, '}');
}

static void test_json_depth(void **state)
{
    struct cn_error err;
    struct cn_buf b;

    cn_buf_init(&b, 0);
    nested(&b, 64);
    assert_int_equal(parse(b.data, b.len, &err), 0);
    nested(&b, 65);
    assert_int_equal(parse(b.data, b.len, &err), CN_EJSON);
    assert_non_null(strstr(err.message, "64"));
    nested(&b, 100000);
    assert_int_equal(parse(b.data, b.len, &err), CN_EJSON);
    cn_buf_reset(&b);
    cn_buf_puts(&b, "{\"a\":[1");
    for (int i = 0; i < 1100000; i++)
        cn_buf_puts(&b, ",1");
    cn_buf_puts(&b, "]}");
    assert_int_equal(parse(b.data, b.len, &err), CN_ELIMIT);
    cn_buf_fini(&b);
}

static int fields(const char *text, enum srv_endpoint ep, struct srv_params *p,
                  struct cn_error *err)
{
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    memset(err, 0, sizeof *err);
    int rc = srv_params_read(p, root, ep, err);
    json_decref(root);
    return rc;
}

static void test_params(void **state)
{
    struct srv_params p;
    struct cn_error err;

    assert_int_equal(fields("{\"unknown\":[],\"n\":null}", SRV_EP_CHAT, &p, &err), 0);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.n == 1 && !p.stream && p.given == 0);
    assert_true(p.add_generation_prompt && p.skip_special);
    assert_int_equal(fields("{\"temperature\":0,\"stream\":true,\"n\":3}", SRV_EP_CHAT, &p, &err),
                     0);
    assert_true(p.temperature == 0 && p.stream && p.n == 3);
    assert_true(srv_given(&p, SRV_P_n) && !srv_given(&p, SRV_P_seed));
    assert_int_equal(fields("{\"max_tokens\":1.0}", SRV_EP_CHAT, &p, &err), 0);
    assert_int_equal(p.max_tokens, 1);

    static const struct {
        const char *text, *param;
        int want;
    } bad[] = {
        {"{\"temperature\":\"hot\"}", "temperature", CN_ETYPE},
        {"{\"temperature\":2.01}", "temperature", CN_ERANGE},
        {"{\"temperature\":-0.1}", "temperature", CN_ERANGE},
        {"{\"top_k\":-2}", "top_k", CN_ERANGE},
        {"{\"seed\":1e30}", "seed", CN_ERANGE},
        {"{\"n\":1.5}", "n", CN_ETYPE},
        {"{\"n\":true}", "n", CN_ETYPE},
        {"{\"max_tokens\":-1}", "max_tokens", CN_ERANGE},
        {"{\"stream\":1}", "stream", CN_ETYPE},
        {"{\"logprobs\":5}", "logprobs", CN_ETYPE},
        {"{\"top_logprobs\":21}", "top_logprobs", CN_ERANGE},
        {"{\"messages\":{}}", "messages", CN_ETYPE},
        {"{\"model\":5}", "model", CN_ETYPE},
        {"{\"logit_bias\":[]}", "logit_bias", CN_ETYPE},
        {"{\"top_k\":-2}", "top_k", CN_ERANGE},
        {"{\"presence_penalty\":-2.5}", "presence_penalty", CN_ERANGE},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++) {
        assert_int_equal(fields(bad[i].text, SRV_EP_CHAT, &p, &err), bad[i].want);
        assert_string_equal(err.param, bad[i].param);
    }
    /* The same name means another thing elsewhere, or nothing. */
    assert_int_equal(fields("{\"logprobs\":5}", SRV_EP_TEXT, &p, &err), 0);
    assert_int_equal(p.n_logprobs, 5);
    assert_int_equal(fields("{\"messages\":5}", SRV_EP_TEXT, &p, &err), 0);
}

static void test_keys(void **state)
{
    enum { N = 300 };
    static char keys[N][SRV_KEY_LEN + 1];
    static struct cfg_key_hash hashes[N];
    char line[72], hex[65], *items[N] = {0};
    struct cfg_tenant tenants[2] = {0};
    struct cfg cfg = {.tenants = tenants, .n_tenants = 2};
    struct cfg_tenants *snapshot;
    struct srv_keys k;

    for (int i = 0; i < N; i++) {
        srv_key_new(keys[i], line);
        assert_int_equal(strlen(keys[i]), SRV_KEY_LEN);
        assert_memory_equal(keys[i], "cnf_", 4);
        assert_int_equal(strspn(keys[i] + 4, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                             "0123456789-_"),
                         SRV_KEY_LEN - 4);
        assert_int_equal(strlen(line), 71);
        srv_key_hash(keys[i], SRV_KEY_LEN, hashes[i].sha256);
        cn_hex(hashes[i].sha256, 32, hex);
        assert_string_equal(line + 7, hex);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(keys[i], keys[j]);
    }
    srv_key_hash("abc", 3, hashes[0].sha256); /* FIPS 180-2, example B.1 */
    cn_hex(hashes[0].sha256, 32, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    srv_key_hash(keys[0], SRV_KEY_LEN, hashes[0].sha256);
    tenants[0].keys = (struct cfg_list){items, 100};
    tenants[0].key_hashes = hashes;
    tenants[1].keys = (struct cfg_list){items, 200};
    tenants[1].key_hashes = hashes + 100;
    for (int i = 0; i < N; i++)
        items[i] = line;
    assert_int_equal(cfg_tenants_of(&cfg, &snapshot, NULL), 0);
    assert_int_equal(srv_keys_init(&k, snapshot, NULL), 0);
    for (int i = 0; i < N; i++) {
        const struct srv_key_entry *e = srv_keys_find(&k, keys[i], SRV_KEY_LEN);
        assert_non_null(e);
        assert_int_equal(e->tenant, i >= 100);
        assert_memory_equal(e->hash, hashes[i].sha256, 32);
    }
    cfg_tenants_unref(snapshot);
    assert_null(srv_keys_find(&k, keys[0], SRV_KEY_LEN - 1));
    assert_null(srv_keys_find(&k, "", 0));
    keys[7][20] ^= 1;
    assert_null(srv_keys_find(&k, keys[7], SRV_KEY_LEN));
    srv_keys_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),       cmocka_unit_test(test_json_wide),
        cmocka_unit_test(test_json_words), cmocka_unit_test(test_json_depth),
        cmocka_unit_test(test_params),     cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
