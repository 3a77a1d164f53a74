/* Who has a place: unproven connections, addresses, places for health, failed keys. */
#include "server/http.h"

#include "tests/server/fake_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 64

struct world {
    struct srv_http http;
    struct srv_gate gate;
    struct cn_metrics metrics;
    struct cfg_range proxy;
    struct srv_trust trust;
    struct fake_stream *streams[MOST];
    struct srv_conn *conns[MOST];
    size_t n;
    uint64_t now;
};

static void on_gone(void *ctx, struct srv_conn *c)
{
}
static void on_closed(void *ctx)
{
}
static const struct srv_http_handler handler = {.on_gone = on_gone, .on_closed = on_closed};

static void begin_for(struct world *w, size_t n_tenants, const double *weights, size_t places,
                      size_t per_address, uint32_t failures)
{
    struct srv_gate_limits l = {.places = places,
                                .n_tenants = n_tenants,
                                .weights = weights,
                                .per_tenant = CN_MAX(places / 2, (size_t)1),
                                .per_address = per_address,
                                .failures = failures};

    memset(w, 0, sizeof *w);
    srv_http_init(&w->http, &handler, w, &w->metrics);
    assert_int_equal(cfg_parse_range("10.9.0.0/16", 11, &w->proxy, NULL), 0);
    w->trust = (struct srv_trust){&w->proxy, 1};
    assert_int_equal(srv_gate_init(&w->gate, &l, &w->trust, NULL), 0);
    w->http.gate = &w->gate;
    w->now = 1000000000;
}

static void begin(struct world *w, size_t places, size_t per_address, uint32_t failures)
{
    begin_for(w, 2, NULL, places, per_address, failures);
}

static struct srv_peer peer(const char *addr)
{
    struct srv_peer p = {.kind = SRV_PEER_IP};

    if (!addr) return (struct srv_peer){.kind = SRV_PEER_UNIX};
    assert_true(cfg_parse_addr(addr, strlen(addr), &p.addr));
    return p;
}

/* Connections come as the listener takes them; false where it would not. */
static bool come(struct world *w, const char *addr)
{
    assert_true(w->n < MOST);
    if (srv_gate_room(&w->gate) == SRV_ROOM_NONE) return false;
    struct fake_stream *f = fake_new();
    f->base.peer = peer(addr);
    w->streams[w->n] = f;
    w->conns[w->n] = srv_conn_new(&w->http, &f->base);
    assert_non_null(w->conns[w->n]);
    w->n++;
    return true;
}

static void ticks(struct world *w, int n)
{
    for (int i = 0; i < n; i++)
        srv_gate_tick(&w->gate, &w->metrics, w->now += 100000000);
}

static bool closed(const struct world *w, size_t i)
{
    return w->streams[i]->closing;
}

static void end(struct world *w)
{
    srv_http_close_all(&w->http);
    for (size_t i = 0; i < w->n; i++) {
        fake_turn(w->streams[i]);
        fake_free(w->streams[i]);
    }
    assert_int_equal(w->gate.n_open, 0);
    assert_int_equal(w->gate.n_health, 0);
    assert_int_equal(w->gate.unproven.n, 0);
    assert_true(w->gate.n_records <= SRV_GATE_RECORDS);
    srv_gate_fini(&w->gate);
}

/* At 7/8 the oldest goes, but none so young that its request may be on its way. */
static void test_seven_eighths(void **state)
{
    struct world w;

    begin(&w, 16, 16, 0);
    for (int i = 0; i < 14; i++)
        assert_true(come(&w, "192.0.2.1"));
    ticks(&w, 4);
    assert_true(come(&w, "192.0.2.2")); /* a burst is let in */
    for (size_t i = 0; i < w.n; i++)
        assert_false(closed(&w, i));
    ticks(&w, 1);
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[0], 0), 0);
    assert_true(come(&w, "192.0.2.3"));
    assert_false(closed(&w, 0)); /* it has shown a key */
    assert_true(closed(&w, 1));
    assert_false(closed(&w, 2));
    ticks(&w, 1);
    assert_int_equal((int)cn_metric_get(&w.metrics, CN_M_connections_shed), 1);
    end(&w);
}

/* All places are taken by connections at work: health is served beyond them, others are not, and no
 * more are taken than there are places for health; a silent one there goes after the grace. */
static void test_health_places(void **state)
{
    struct world w;

    begin(&w, 4, 16, 0);
    for (int i = 0; i < 4; i++) {
        assert_true(come(&w, "192.0.2.1"));
        assert_int_equal(srv_gate_prove(&w.gate, w.conns[i], i % 2), 0);
    }
    for (int i = 0; i < SRV_HEALTH_PLACES; i++) {
        assert_int_equal(srv_gate_room(&w.gate), SRV_ROOM_HEALTH);
        assert_true(come(&w, "192.0.2.2"));
        assert_true(w.conns[4 + i]->place.health);
    }
    assert_false(come(&w, "192.0.2.2"));
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[5], 0), CN_ERATE);
    w.gate.limits.per_tenant = SIZE_MAX;
    w.gate.tenants[0].part = SIZE_MAX;
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[5], 0),
                     CN_EPLACES); /* its place is for health alone */
    ticks(&w, 5);
    assert_true(come(&w, "192.0.2.2"));
    assert_true(closed(&w, 4));
    for (int i = 0; i < 4; i++)
        assert_false(closed(&w, i));
    srv_conn_abort(w.conns[0]); /* a place is free: the next with a key gets it */
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[6], 0), 0);
    assert_false(w.conns[6]->place.health);
    end(&w);
}

/* A valid key has a place at once, though those who hold them all came a moment ago. */
static void test_key_wins(void **state)
{
    struct world w;

    begin(&w, 4, 16, 0);
    for (int i = 0; i < 5; i++)
        assert_true(come(&w, "192.0.2.1"));
    assert_true(w.conns[4]->place.health);
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[4], 0), 0);
    assert_true(closed(&w, 0));
    assert_false(w.conns[4]->place.health);
    assert_false(closed(&w, 4));
    end(&w);
}

/* Connections with keys that do nothing: the one idle for longest makes room when all places are
 * taken, those at work stay; a tenant gives up its own when it has its part. */
static void test_idle_ones(void **state)
{
    struct world w;

    begin(&w, 4, 16, 0);
    for (int i = 0; i < 4; i++) {
        assert_true(come(&w, "192.0.2.1"));
        assert_int_equal(srv_gate_prove(&w.gate, w.conns[i], i % 2), 0);
        if (i != 1) srv_gate_idle(&w.gate, w.conns[i], true);
    }
    ticks(&w, 5);
    assert_int_equal(srv_gate_room(&w.gate), SRV_ROOM);
    assert_true(closed(&w, 0));
    assert_true(come(&w, "192.0.2.2"));
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[4], 1), 0); /* the third of tenant 1 */
    assert_true(closed(&w, 3));
    assert_false(closed(&w, 1) || closed(&w, 2));
    srv_gate_idle(&w.gate, w.conns[4], true);
    assert_true(come(&w, "192.0.2.2"));
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[5], 1), CN_ERATE); /* both are at work */
    end(&w);
}

/* Two tenants take all they can: a third one's part is left, by weight. */
static void test_parts_are_kept(void **state)
{
    static const double weights[] = {1, 1, 2};
    struct world w;
    size_t had[3] = {0};

    begin_for(&w, 3, weights, 32, 64, 0);
    for (int i = 0; i < 40; i++) {
        assert_true(come(&w, "192.0.2.1"));
        had[i % 2] += srv_gate_prove(&w.gate, w.conns[w.n - 1], (uint32_t)i % 2) == 0;
        if (!w.conns[w.n - 1]->place.proven) srv_conn_abort(w.conns[w.n - 1]);
    }
    assert_int_equal(had[0] + had[1], 24);
    for (int i = 0; i < 8; i++) {
        assert_true(come(&w, "192.0.2.2"));
        assert_false(w.conns[w.n - 1]->place.health);
        assert_int_equal(srv_gate_prove(&w.gate, w.conns[w.n - 1], 2), 0);
    }
    assert_int_equal(srv_gate_room(&w.gate), SRV_ROOM_HEALTH);
    end(&w);
}

/* Tenants come and go while connections are there: parts are divided anew, and nobody loses a place
 * for it. */
static void test_parts_change(void **state)
{
    static const double before[] = {1, 1, 0, 0}, after[] = {1, 0, 3, 4};
    struct world w;

    begin_for(&w, 2, before, 32, 64, 0);
    for (int i = 0; i < 12; i++) {
        assert_true(come(&w, "192.0.2.1"));
        assert_int_equal(srv_gate_prove(&w.gate, w.conns[w.n - 1], (uint32_t)i % 2), 0);
    }
    assert_int_equal(srv_gate_grow(&w.gate, 4), 0);
    srv_gate_divide(&w.gate, after, 4, 16);
    assert_int_equal(w.gate.kept, 6 + 8); /* 2 for the first, who has them, 6 and 8 */
    for (int i = 0; i < 14; i++) {
        assert_true(come(&w, "192.0.2.2"));
        assert_int_equal(srv_gate_prove(&w.gate, w.conns[w.n - 1], i < 6 ? 2 : 3), 0);
    }
    assert_int_equal(w.gate.kept, 0);
    for (int i = 0; i < 12; i++)
        assert_false(closed(&w, (size_t)i));
    srv_gate_divide(&w.gate, before, 4, 16); /* and back */
    end(&w);
}

/* An address loses its own oldest; proxies and the Unix socket are not counted, nor is who has
 * shown a key; a /64 is one address. */
static void test_addresses(void **state)
{
    static const char *const same[] = {"192.0.2.1", "::ffff:192.0.2.1"};
    static const char *const net[] = {"2001:db8::1", "2001:db8::ffff:0:0:2"};
    struct world w;

    begin(&w, 60, 3, 0);
    for (int i = 0; i < 4; i++)
        assert_true(come(&w, same[i % 2])); /* 0 to 3 */
    for (int i = 0; i < 3; i++)
        assert_true(come(&w, net[i % 2])); /* 4 to 6 */
    for (int i = 0; i < 6; i++)
        assert_true(come(&w, i % 2 ? NULL : "10.9.1.1")); /* 7 to 12 */
    ticks(&w, 5);
    assert_int_equal(srv_gate_prove(&w.gate, w.conns[1], 0), 0);
    assert_true(come(&w, same[0])); /* 13: three and one, and one too many */
    assert_true(closed(&w, 0));
    assert_true(come(&w, net[1])); /* 14 */
    assert_true(closed(&w, 4));
    assert_true(come(&w, NULL));
    assert_true(come(&w, "10.9.1.1"));
    for (size_t i = 0; i < w.n; i++)
        if (i != 0 && i != 4) assert_false(closed(&w, i));
    end(&w);
}

/* What a burst had too many is made up for, two for one. */
static void test_burst_of_an_address(void **state)
{
    struct world w;
    int left = 0;

    begin(&w, 60, 4, 0);
    for (int i = 0; i < 10; i++)
        assert_true(come(&w, "192.0.2.1"));
    for (size_t i = 0; i < w.n; i++)
        assert_false(closed(&w, i));
    ticks(&w, 5);
    for (int i = 0; i < 12; i++)
        assert_true(come(&w, "192.0.2.1"));
    for (size_t i = 0; i < w.n; i++)
        left += !closed(&w, i);
    assert_int_equal(left, 12); /* the ten are gone, and the new ones are a burst again */
    ticks(&w, 5);
    for (int i = 0; i < 12; i++)
        assert_true(come(&w, "192.0.2.1"));
    end(&w);
}

static void test_failed_keys(void **state)
{
    struct world w;
    struct srv_peer a = peer("192.0.2.1"), b = peer("192.0.2.2"), unix_socket = peer(NULL),
                    proxy = peer("10.9.0.1");
    uint32_t retry = 0;
    uint64_t s = 1000000000;

    begin(&w, 4, 4, 3);
    for (int i = 0; i < 3; i++)
        assert_true(srv_gate_failed(&w.gate, &a, 10 * s, &retry));
    assert_false(srv_gate_failed(&w.gate, &a, 20 * s, &retry));
    assert_in_range(retry, 50, 51);
    assert_true(srv_gate_failed(&w.gate, &b, 20 * s, &retry));
    for (int i = 0; i < 10; i++) {
        assert_true(srv_gate_failed(&w.gate, &unix_socket, 20 * s, &retry));
        assert_true(srv_gate_failed(&w.gate, &proxy, 20 * s, &retry));
    }
    assert_true(come(&w, "192.0.2.1")); /* coming back does not help */
    assert_false(srv_gate_failed(&w.gate, &a, 21 * s, &retry));
    srv_conn_abort(w.conns[0]);
    assert_false(srv_gate_failed(&w.gate, &a, 22 * s, &retry));
    assert_true(srv_gate_failed(&w.gate, &a, 71 * s, &retry)); /* but a minute does */
    end(&w);

    begin(&w, 4, 4, 0);
    for (int i = 0; i < 1000; i++)
        assert_true(srv_gate_failed(&w.gate, &a, s, &retry));
    end(&w);
}

/* Failures of any number of addresses are remembered in bounded memory. */
static void test_records_are_bounded(void **state)
{
    struct world w;
    uint32_t retry = 0;

    begin(&w, 4, 4, 1);
    for (int i = 0; i < 5000; i++) {
        char addr[32];
        snprintf(addr, sizeof addr, "10.0.%d.%d", i / 256, i % 256);
        struct srv_peer p = peer(addr);
        assert_true(srv_gate_failed(&w.gate, &p, 1000, &retry));
        assert_false(srv_gate_failed(&w.gate, &p, 1000, &retry));
    }
    assert_int_equal(w.gate.n_records, SRV_GATE_RECORDS);
    end(&w);
}

/* Any order of coming, proving, failing and leaving keeps the lists whole. */
static void test_any_order(void **state)
{
    static const char *const addrs[] = {"192.0.2.1", "192.0.2.2", "2001:db8::1", "10.9.0.1", NULL};
    uint32_t rnd = 7, retry;

    for (int round = 0; round < 200; round++) {
        struct world w;
        begin(&w, 1 + round % 9, 1 + round % 4, 2);
        for (int i = 0; i < 120; i++) {
            rnd = rnd * 1664525u + 1013904223u;
            size_t at = w.n ? (rnd >> 16) % w.n : 0;
            switch (rnd >> 29) {
            case 0:
            case 1:
            case 2:
                if (w.n < MOST) come(&w, addrs[(rnd >> 8) % CN_ARRAY_LEN(addrs)]);
                break;
            case 3:
                if (w.n && !closed(&w, at)) {
                    srv_gate_prove(&w.gate, w.conns[at], rnd >> 8 & 1);
                    srv_gate_idle(&w.gate, w.conns[at], rnd >> 9 & 1);
                }
                break;
            case 4:
                if (w.n && !closed(&w, at)) srv_conn_abort(w.conns[at]);
                break;
            case 5:
                if (w.n) srv_gate_failed(&w.gate, &w.streams[at]->base.peer, w.now, &retry);
                break;
            default:
                ticks(&w, 1);
            }
            size_t open = 0;
            for (size_t k = 0; k < w.n; k++)
                open += !closed(&w, k);
            assert_int_equal(open, w.gate.n_open);
            assert_true(open <= w.gate.limits.places + SRV_HEALTH_PLACES);
        }
        end(&w);
    }
}

int main(void)
{
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seven_eighths),  cmocka_unit_test(test_health_places),
        cmocka_unit_test(test_key_wins),       cmocka_unit_test(test_idle_ones),
        cmocka_unit_test(test_parts_are_kept), cmocka_unit_test(test_parts_change),
        cmocka_unit_test(test_addresses),      cmocka_unit_test(test_burst_of_an_address),
        cmocka_unit_test(test_failed_keys),    cmocka_unit_test(test_records_are_bounded),
        cmocka_unit_test(test_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
