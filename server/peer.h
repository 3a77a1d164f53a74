/* Who is at the other end of a connection, and for whom it speaks. Values and pure functions; any
 * thread. An address that a client names counts only where a trusted proxy passed it on. */
#ifndef SERVER_PEER_H
#define SERVER_PEER_H

#include "base/base.h"
#include "config/config.h"

#define SRV_PEER_TEXT 56 /* of "[address]:port", NUL included */

enum srv_peer_kind {
    SRV_PEER_UNKNOWN, /* the system could not tell */
    SRV_PEER_UNIX,    /* a Unix socket: a program on this machine, or a proxy */
    SRV_PEER_IP,
};

struct srv_peer {
    enum srv_peer_kind kind;
    uint16_t port; /* 0: not known */
    struct cfg_addr addr;
};

/* What limits per address count by: the whole IPv4 address, the /64 of an IPv6 one, which is the
 * least that a single customer is given. */
struct srv_peer_key { uint8_t bytes[16]; };

/* server.trusted_proxies. */
struct srv_trust {
    struct cfg_range *ranges;
    size_t n;
};

struct sockaddr;
/* From what accept or getpeername gave; other families are SRV_PEER_UNKNOWN. */
struct srv_peer srv_peer_of(const struct sockaddr *sa);
struct srv_peer_key srv_peer_key(const struct srv_peer *p);
/* "192.0.2.1:80", "[2001:db8::1]:80", "unix"; "" when it is not known. Without a port the address
 * alone. */
void srv_peer_text(const struct srv_peer *p, char out[SRV_PEER_TEXT]);

/* The list of a config that passed cfg_check. */
int srv_trust_init(struct srv_trust *t, const struct cfg *cfg, struct cn_error *err);
void srv_trust_fini(struct srv_trust *t);
/* Whether p may say for whom it speaks: one of the list, or a Unix socket. */
bool srv_trusted(const struct srv_trust *t, const struct srv_peer *p);
/* The client of a request that came from `peer` with this X-Forwarded-For (NULL: none): the peer
 * itself, unless it is trusted; then the right-most address of the list that is not trusted. An
 * entry that is not an address ends the list. */
struct srv_peer srv_peer_client(const struct srv_trust *t, const struct srv_peer *peer,
                                const char *forwarded);

#endif
