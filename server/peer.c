/* Addresses of peers, and of the clients behind trusted proxies. */
#include "server/peer.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_HOPS 16 /* trusted proxies in a row; further entries are not looked at */

struct srv_peer srv_peer_of(const struct sockaddr *sa)
{
    struct srv_peer p = {.kind = SRV_PEER_UNKNOWN};

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
        p.kind = SRV_PEER_IP;
        p.port = ntohs(v4->sin_port);
        p.addr.bytes[10] = p.addr.bytes[11] = 0xff;
        memcpy(p.addr.bytes + 12, &v4->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
        p.kind = SRV_PEER_IP;
        p.port = ntohs(v6->sin6_port);
        memcpy(p.addr.bytes, &v6->sin6_addr, 16);
    } else if (sa->sa_family == AF_UNIX) {
        p.kind = SRV_PEER_UNIX;
    }
    return p;
}

struct srv_peer_key srv_peer_key(const struct srv_peer *p)
{
    struct srv_peer_key k = {{0}};

    memcpy(k.bytes, p->addr.bytes, cfg_addr_is_v4(&p->addr) ? 16 : 8);
    return k;
}

void srv_peer_text(const struct srv_peer *p, char out[SRV_PEER_TEXT])
{
    char addr[CFG_ADDR_TEXT];

    snprintf(out, SRV_PEER_TEXT, "%s", p->kind == SRV_PEER_UNIX ? "unix" : "");
    if (p->kind != SRV_PEER_IP) return;
    cfg_addr_text(&p->addr, addr);
    if (!p->port)
        snprintf(out, SRV_PEER_TEXT, "%s", addr);
    else if (cfg_addr_is_v4(&p->addr))
        snprintf(out, SRV_PEER_TEXT, "%s:%u", addr, (unsigned)p->port);
    else
        snprintf(out, SRV_PEER_TEXT, "[%s]:%u", addr, (unsigned)p->port);
}

int srv_trust_init(struct srv_trust *t, const struct cfg *cfg, struct cn_error *err)
{
    const struct cfg_list *all = &cfg->server.trusted_proxies;

    *t = (struct srv_trust){.ranges = cn_calloc(all->count, sizeof *t->ranges)};
    if (!t->ranges) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (; t->n < all->count; t->n++) {
        const char *s = all->items[t->n];
        int rc = cfg_parse_range(s, strlen(s), &t->ranges[t->n], err);
        if (rc) return rc;
    }
    return CN_OK;
}

void srv_trust_fini(struct srv_trust *t)
{
    free(t->ranges);
    *t = (struct srv_trust){0};
}

bool srv_trusted(const struct srv_trust *t, const struct srv_peer *p)
{
    if (p->kind != SRV_PEER_IP) return p->kind == SRV_PEER_UNIX;
    for (size_t i = 0; i < t->n; i++)
        if (cfg_range_has(&t->ranges[i], &p->addr)) return true;
    return false;
}

static bool blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Reads ADDRESS, [ADDRESS], and both with a port, as proxies write them. A zone id is nothing that
 * another machine could know: such an entry is not an address. */
static bool parse_entry(const char *s, size_t n, struct srv_peer *out)
{
    struct srv_peer p = {.kind = SRV_PEER_IP};
    const char *colon = n ? memchr(s, ':', n) : NULL;
    size_t len = n, after = n; /* of the address; where ":port" may begin */
    uint64_t port = 0;

    if (n && *s == '[') {
        const char *end = memchr(s, ']', n);
        if (!end) return false;
        s++;
        len = (size_t)(end - s);
        n -= 1;
        after = len + 1;
        if (!memchr(s, ':', len)) return false;
    } else if (colon && !memchr(colon + 1, ':', n - (size_t)(colon + 1 - s))) {
        len = after = (size_t)(colon - s);
    }
    if (after < n) {
        if (s[after] != ':' || !cn_parse_u64(s + after + 1, n - after - 1, &port) || port > 65535)
            return false;
        p.port = (uint16_t)port;
    }
    if (!cfg_parse_addr(s, len, &p.addr)) return false;
    *out = p;
    return true;
}

struct srv_peer srv_peer_client(const struct srv_trust *t, const struct srv_peer *peer,
                                const char *forwarded)
{
    struct srv_peer at = *peer;
    size_t end = forwarded ? strlen(forwarded) : 0;

    for (int hop = 0; forwarded && hop < MAX_HOPS && srv_trusted(t, &at); hop++) {
        size_t start = end, n;
        while (start && forwarded[start - 1] != ',')
            start--;
        const char *s = forwarded + start;
        for (n = end - start; n && blank(*s); n--)
            s++;
        while (n && blank(s[n - 1]))
            n--;
        if (!parse_entry(s, n, &at) || !start) break;
        end = start - 1;
    }
    return at;
}
