/* Fuzz target: ranges of the config and what a client writes into X-Forwarded-For. The first line
 * is a range, the rest the header. Whatever comes: a range holds its own address and is read back
 * from its text, and a client that is not the peer was named by the header. */
#include "server/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_back(const struct cfg_range *r)
{
    char addr[CFG_ADDR_TEXT], text[CFG_ADDR_TEXT + 8];
    struct cfg_range again;

    cn_assert(cfg_range_has(r, &r->at));
    cfg_addr_text(&r->at, addr);
    unsigned bits = cfg_addr_is_v4(&r->at) && r->bits >= 96 ? r->bits - 96u : r->bits;
    if (cfg_addr_is_v4(&r->at) && r->bits < 96) return; /* has no text of its own */
    snprintf(text, sizeof text, "%s/%u", addr, bits);
    cn_assert(cfg_parse_range(text, strlen(text), &again, NULL) == 0);
    cn_assert(!memcmp(&again.at, &r->at, sizeof again.at) && again.bits == r->bits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *s = (const char *)data, *line = n ? memchr(s, '\n', n) : NULL;
    size_t len = line ? (size_t)(line - s) : n;
    struct cfg_range range;
    struct srv_trust trust = {.ranges = &range};
    struct cn_error err = {0};
    char text[SRV_PEER_TEXT];

    if (cfg_parse_range(s, len, &range, &err) == 0) {
        read_back(&range);
        trust.n = 1;
    } else {
        cn_assert(err.code && err.message[0]);
    }
    if (!line) return 0;
    char *header = strndup(line + 1, n - len - 1);
    cn_assert(header);
    struct srv_peer from[] = {{.kind = SRV_PEER_UNIX}, {.kind = SRV_PEER_IP}};
    if (trust.n) from[1].addr = range.at;
    for (size_t i = 0; i < CN_ARRAY_LEN(from); i++) {
        struct srv_peer c = srv_peer_client(&trust, &from[i], header);
        srv_peer_text(&c, text);
        if (!srv_trusted(&trust, &from[i])) cn_assert(!memcmp(&c, &from[i], sizeof c));
        if (memcmp(&c, &from[i], sizeof c)) cn_assert(c.kind == SRV_PEER_IP && *text && *header);
    }
    free(header);
    return 0;
}
