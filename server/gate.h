/* Places for connections, and the addresses behind those that have not shown a valid key. Loop
 * thread only. Everything is O(1): lists in order of arrival, a hash table with a seed of its own,
 * as many entries as there are such connections, and SRV_GATE_RECORDS more.
 *
 * A connection is unproven until a request on it had a valid key (without keys: until a request is
 * whole). An unproven one that is older than the grace may lose its place to a newcomer: when 7/8
 * of the places are held by unproven ones, when all places are taken, and when its address holds
 * more than its share of them. Beyond the places there are a few for health alone.
 *
 * Half of the places are kept for the tenants, divided by weight; the other half is first come,
 * first served. With several tenants, none gets more than half of all places.
 *
 * A proven connection keeps its place during a request. Between requests it may lose it: when
 * all places are taken, and when its tenant has more than its part of them. */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include "base/base.h"
#include "server/peer.h"

#define SRV_HEALTH_PLACES 8    /* beyond server.max_connections */
#define SRV_GATE_RECORDS  1024 /* addresses remembered for their failed keys alone */

struct srv_conn;

/* Connections in order of arrival, or since when they have been between requests; each may be in
 * one list of either kind: of all, and of its address or tenant. */
enum srv_list_kind { SRV_OF_ALL, SRV_OF_ONE, SRV_N_LISTS };
struct srv_link { struct srv_conn *older, *newer; };
struct srv_list {
    struct srv_conn *oldest, *newest;
    size_t n;
};

/* One address with unproven connections, or with failed keys. */
struct srv_addr {
    struct srv_peer_key key;
    struct srv_addr *chain; /* in its bucket */
    struct srv_list unproven;
    uint64_t failed_ns; /* when the minute began in which keys failed */
    uint32_t failed;
    struct srv_addr *before, *after; /* among those without a connection */
};

/* The proven connections of a tenant: all, and those between requests. */
struct srv_tenant_places {
    size_t n, part; /* part: kept for it, whatever others hold */
    struct srv_list idle;
};

struct srv_gate_limits {
    size_t places; /* of connections */
    size_t n_tenants;
    const double *weights; /* of the tenants, 0: there is none; read by srv_gate_init alone. NULL:
                            * all the same */
    size_t per_tenant;     /* of proven ones */
    size_t per_address;    /* of unproven ones */
    uint32_t failures; /* requests without a valid key, of an address in a minute; 0: no limit */
};

struct srv_gate {
    struct srv_gate_limits limits;
    const struct srv_trust *trust; /* exempt from what counts by address */
    size_t n_open, n_health;       /* connections not closed; those of them beyond the places */
    struct srv_list unproven, idle;
    struct srv_tenant_places *tenants;
    size_t kept;          /* of their parts: not taken */
    uint64_t ticks, shed; /* shed: connections that lost their place; counted, warned: told */
    uint64_t counted, warned, warned_ns;
    struct srv_addr **buckets;
    size_t n_buckets, n_records;
    struct srv_addr *first, *last; /* without a connection, longest ago first */
    uint8_t seed[16];
};

/* What a connection keeps of the gate. */
struct srv_place {
    struct srv_link links[SRV_N_LISTS];
    struct srv_addr *addr; /* NULL: proven, or not counted by address */
    uint64_t tick;         /* of its arrival, or of the end of its last request */
    uint32_t tenant;       /* whose key was the first, when proven */
    bool inside;           /* counted in n_open */
    bool proven, idle;
    bool health; /* beyond the places, for health alone, and unproven */
};

enum srv_room { SRV_ROOM, SRV_ROOM_HEALTH, SRV_ROOM_NONE };

int srv_gate_init(struct srv_gate *g, const struct srv_gate_limits *limits,
                  const struct srv_trust *trust, struct cn_error *err);
/* Makes room for n tenants (CN_ENOMEM: as before); divides the places among the first n. */
int srv_gate_grow(struct srv_gate *g, size_t n);
void srv_gate_divide(struct srv_gate *g, const double *weights, size_t n, size_t per_tenant);
/* No connection is left. */
void srv_gate_fini(struct srv_gate *g);
/* Whether one more connection can be taken; may close another for it. */
enum srv_room srv_gate_room(struct srv_gate *g);
/* A connection has come. Its address may lose others for it. */
void srv_gate_enter(struct srv_gate *g, struct srv_conn *c);
/* It is about to close. Any number of times. */
void srv_gate_leave(struct srv_gate *g, struct srv_conn *c);
/* It showed a valid key of a tenant. CN_EPLACES: there is no place for it, even at the cost of
 * others; CN_ERATE: its tenant has its part. */
int srv_gate_prove(struct srv_gate *g, struct srv_conn *c, uint32_t tenant);
/* It is between requests, or no longer. Any number of times. */
void srv_gate_idle(struct srv_gate *g, struct srv_conn *c, bool idle);
/* A request of this client had no valid key. When that was one too many, false, and in how many
 * seconds the next is due. */
bool srv_gate_failed(struct srv_gate *g, const struct srv_peer *client, uint64_t now,
                     uint32_t *retry_s);
/* Ages connections by one tick, and logs how many were shed, at most once a second. */
void srv_gate_tick(struct srv_gate *g, struct cn_metrics *m, uint64_t now);

#endif
