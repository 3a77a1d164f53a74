/* Addresses: ranges of the config, peers, and the client behind proxies. */
#include "server/peer.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_ranges(void **state)
{
    static const struct {
        const char *range, *in, *out;
    } cases[] = {
        {"10.0.0.0/8", "10.255.0.1", "11.0.0.0"},
        {"10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"},
        {"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
        {"192.0.2.7", "192.0.2.7", "192.0.2.6"},
        {"192.0.2.6/31", "192.0.2.7", "192.0.2.8"},
        {"0.0.0.0/0", "255.255.255.255", "::1"},
        {"::/0", "2001:db8::1", "10.0.0.1"},
        {"2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"},
        {"::1", "::1", "127.0.0.1"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cfg_range r;
        struct cfg_addr in, out;
        assert_int_equal(cfg_parse_range(cases[i].range, strlen(cases[i].range), &r, NULL), 0);
        assert_true(cfg_parse_addr(cases[i].in, strlen(cases[i].in), &in));
        assert_true(cfg_parse_addr(cases[i].out, strlen(cases[i].out), &out));
        if (!cfg_range_has(&r, &in) || cfg_range_has(&r, &out)) fail_msg("%s", cases[i].range);
    }
}

static void test_bad_ranges(void **state)
{
    static const struct {
        const char *range, *says;
    } cases[] = {
        {"", "is not an IP address"},
        {"proxy.example", "is not an IP address"},
        {"10.0.0.1/8", "own address is 10.0.0.0/8"},
        {"2001:db8::1/32", "own address is 2001:db8::/32"},
        {"10.0.0.0/33", "from 0 to 32"},
        {"::/129", "from 0 to 128"},
        {"10.0.0.0/", "from 0 to 32"},
        {"10.0.0.0/8x", "from 0 to 32"},
        {"10.0.0.0/-1", "from 0 to 32"},
        {"/8", "is not an IP address"},
        {"10.0.0", "is not an IP address"},
        {"fe80::1%eth0", "is not an IP address"},
        {"[::1]", "is not an IP address"},
        {"10.0.0.1:80", "is not an IP address"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct cfg_range r;
        struct cn_error e = {0};
        assert_int_equal(cfg_parse_range(cases[i].range, strlen(cases[i].range), &r, &e),
                         CN_EINVAL);
        if (!strstr(e.message, cases[i].says)) fail_msg("%s: %s", cases[i].range, e.message);
    }
}

static struct srv_peer peer(const char *addr, uint16_t port)
{
    struct srv_peer p = {.kind = SRV_PEER_IP, .port = port};

    assert_true(cfg_parse_addr(addr, strlen(addr), &p.addr));
    return p;
}

static void test_text_and_key(void **state)
{
    static const char *const texts[] = {"192.0.2.1:80", "192.0.2.1", "[2001:db8::1]:8080",
                                        "2001:db8::1"};
    const struct srv_peer peers[] = {peer("::ffff:192.0.2.1", 80), peer("192.0.2.1", 0),
                                     peer("2001:db8::1", 8080), peer("2001:db8::1", 0)};
    char text[SRV_PEER_TEXT];

    for (size_t i = 0; i < CN_ARRAY_LEN(peers); i++) {
        srv_peer_text(&peers[i], text);
        assert_string_equal(text, texts[i]);
    }
    srv_peer_text(&(struct srv_peer){.kind = SRV_PEER_UNIX}, text);
    assert_string_equal(text, "unix");
    srv_peer_text(&(struct srv_peer){.kind = SRV_PEER_UNKNOWN}, text);
    assert_string_equal(text, "");

    const struct srv_peer a = peer("2001:db8::1", 1), b = peer("2001:db8::ffff:0:0:2", 2),
                          c = peer("2001:db8:0:1::1", 1), d = peer("10.0.0.1", 1),
                          e = peer("10.0.0.2", 1);
    struct srv_peer_key ka = srv_peer_key(&a), kb = srv_peer_key(&b), kc = srv_peer_key(&c),
                        kd = srv_peer_key(&d), ke = srv_peer_key(&e);
    assert_memory_equal(&ka, &kb, sizeof ka);
    assert_memory_not_equal(&ka, &kc, sizeof ka);
    assert_memory_not_equal(&kd, &ke, sizeof kd);
}

static void test_sockaddr(void **state)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(81)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(82), .sin6_scope_id = 3};
    struct sockaddr other = {.sa_family = AF_UNSPEC};
    char text[SRV_PEER_TEXT];

    inet_pton(AF_INET, "198.51.100.2", &v4.sin_addr);
    inet_pton(AF_INET6, "fe80::2", &v6.sin6_addr);
    struct srv_peer p = srv_peer_of((struct sockaddr *)&v4);
    srv_peer_text(&p, text);
    assert_string_equal(text, "198.51.100.2:81");
    p = srv_peer_of((struct sockaddr *)&v6);
    srv_peer_text(&p, text);
    assert_string_equal(text, "[fe80::2]:82");
    assert_int_equal(srv_peer_of(&other).kind, SRV_PEER_UNKNOWN);
}

static void make_trust(struct srv_trust *t, struct cfg *c)
{
    struct cn_error e = {0};

    assert_int_equal(cfg_init(c, &e), 0);
    assert_int_equal(cfg_set(c, "server.trusted_proxies", "10.0.0.0/8,2001:db8::/32", &e), 0);
    assert_int_equal(cfg_check(c, &e), 0);
    assert_int_equal(srv_trust_init(t, c, &e), 0);
}

static void test_client(void **state)
{
    static const struct {
        const char *from, *forwarded, *client; /* from NULL: a Unix socket */
    } cases[] = {
        {"203.0.113.1", "198.51.100.1", "203.0.113.1:7"}, /* not trusted: what it says is nothing */
        {"10.0.0.1", NULL, "10.0.0.1:7"},
        {"10.0.0.1", "", "10.0.0.1:7"},
        {"10.0.0.1", "198.51.100.1", "198.51.100.1"},
        {"10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"}, /* the client's own claim */
        {"10.0.0.1", "1.1.1.1, 198.51.100.1 ,\t10.9.9.9 ", "198.51.100.1"},
        {"10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
        {"10.0.0.1", "unknown, 10.0.0.2", "10.0.0.2"},
        {"10.0.0.1", "1.1.1.1, unknown", "10.0.0.1:7"},
        {"10.0.0.1", "1.1.1.1, fe80::1%eth0", "10.0.0.1:7"},
        {"10.0.0.1", "1.1.1.1,", "10.0.0.1:7"},
        {"10.0.0.1", ",,,,", "10.0.0.1:7"},
        {"10.0.0.1", "198.51.100.1:4711", "198.51.100.1:4711"},
        {"10.0.0.1", "198.51.100.1:99999", "10.0.0.1:7"},
        {"10.0.0.1", "198.51.100.1:", "10.0.0.1:7"},
        {"10.0.0.1", "[2001:db9::1]:443", "[2001:db9::1]:443"},
        {"10.0.0.1", "[2001:db9::1]", "2001:db9::1"},
        {"10.0.0.1", "2001:db9::1", "2001:db9::1"},
        {"10.0.0.1", "[2001:db9::1", "10.0.0.1:7"},
        {"10.0.0.1", "[", "10.0.0.1:7"},
        {"10.0.0.1", "[]", "10.0.0.1:7"},
        {"10.0.0.1", "[10.0.0.2]", "10.0.0.1:7"},
        {"10.0.0.1", "[2001:db9::1]x", "10.0.0.1:7"},
        {"10.0.0.1", "::ffff:198.51.100.1", "198.51.100.1"},
        {"10.0.0.1", "198.051.100.1", "10.0.0.1:7"},
        {"10.0.0.1", "\"198.51.100.1\"", "10.0.0.1:7"},
        {"2001:db8::5", "198.51.100.1, 2001:db8::6", "198.51.100.1"},
        {NULL, "198.51.100.1", "198.51.100.1"},
        {NULL, NULL, "unix"},
    };
    struct srv_trust t;
    struct cfg c;
    char text[SRV_PEER_TEXT];

    make_trust(&t, &c);
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct srv_peer from = {.kind = SRV_PEER_UNIX};
        if (cases[i].from) from = peer(cases[i].from, 7);
        struct srv_peer got = srv_peer_client(&t, &from, cases[i].forwarded);
        srv_peer_text(&got, text);
        if (strcmp(text, cases[i].client))
            fail_msg("%s, %s: %s, not %s", cases[i].from, cases[i].forwarded, text,
                     cases[i].client);
    }
    srv_trust_fini(&t);
    cfg_fini(&c);
}

/* A list as long as a head may be costs no more than a short one. */
static void test_long_list(void **state)
{
    struct srv_trust t;
    struct cfg c;
    struct cn_buf b;
    char text[SRV_PEER_TEXT];
    struct srv_peer from = peer("10.0.0.1", 7);

    make_trust(&t, &c);
    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "198.51.100.1");
    for (int i = 0; i < 3000; i++)
        cn_buf_printf(&b, ", 10.0.%d.%d", i / 256, i % 256);
    assert_false(b.failed);
    struct srv_peer got = srv_peer_client(&t, &from, cn_buf_cstr(&b));
    srv_peer_text(&got, text);
    assert_string_equal(text, "10.0.11.168"); /* the sixteenth from the right */
    cn_buf_fini(&b);
    srv_trust_fini(&t);
    cfg_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),       cmocka_unit_test(test_bad_ranges),
        cmocka_unit_test(test_text_and_key), cmocka_unit_test(test_sockaddr),
        cmocka_unit_test(test_client),       cmocka_unit_test(test_long_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
