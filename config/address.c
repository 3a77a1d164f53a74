/* IP addresses and ranges of them, as the config writes them and as headers name them. Pure
 * functions; any thread. An IPv4 address is kept as the IPv6 address that maps it. */
#include "config/config.h"

#include <arpa/inet.h>
#include <string.h>

#define MAPPED_BITS 96 /* of ::ffff:0:0/96, before an IPv4 address */
#define LONGEST     64 /* of what a message repeats; longer than any address */

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

bool cfg_addr_is_v4(const struct cfg_addr *a)
{
    return !memcmp(a->bytes, mapped, sizeof mapped);
}

bool cfg_parse_addr(const char *s, size_t n, struct cfg_addr *out)
{
    char text[INET6_ADDRSTRLEN];

    if (n == 0 || n >= sizeof text || memchr(s, 0, n)) return false;
    memcpy(text, s, n);
    text[n] = 0;
    if (memchr(s, ':', n)) return inet_pton(AF_INET6, text, out->bytes) == 1;
    memcpy(out->bytes, mapped, sizeof mapped);
    return inet_pton(AF_INET, text, out->bytes + sizeof mapped) == 1;
}

void cfg_addr_text(const struct cfg_addr *a, char out[CFG_ADDR_TEXT])
{
    *out = 0;
    if (cfg_addr_is_v4(a))
        inet_ntop(AF_INET, a->bytes + sizeof mapped, out, CFG_ADDR_TEXT);
    else
        inet_ntop(AF_INET6, a->bytes, out, CFG_ADDR_TEXT);
}

/* Whether the first `bits` bits of both are the same. */
static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;

    if (memcmp(a, b, whole)) return false;
    return !rest || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

/* The address with all but its first `bits` bits cleared. */
static struct cfg_addr network(const struct cfg_addr *a, unsigned bits)
{
    struct cfg_addr net = {{0}};

    memcpy(net.bytes, a->bytes, bits / 8);
    if (bits % 8) net.bytes[bits / 8] = (uint8_t)(a->bytes[bits / 8] & ~(0xffu >> bits % 8));
    return net;
}

bool cfg_range_has(const struct cfg_range *r, const struct cfg_addr *a)
{
    /* ::/0 is the whole of IPv6, which the mapped addresses are not a part of. */
    return cfg_addr_is_v4(&r->at) == cfg_addr_is_v4(a) && same_bits(r->at.bytes, a->bytes, r->bits);
}

int cfg_parse_range(const char *s, size_t n, struct cfg_range *out, struct cn_error *err)
{
    const char *slash = n ? memchr(s, '/', n) : NULL;
    size_t len = slash ? (size_t)(slash - s) : n;
    int shown = (int)CN_MIN(n, (size_t)LONGEST);
    struct cfg_range r = {.bits = 128};
    uint64_t bits;

    if (!cfg_parse_addr(s, len, &r.at))
        return cn_fail(err, CN_EINVAL,
                       "\"%.*s\" is not an IP address or a range of them, such as 10.0.0.0/8 or "
                       "2001:db8::/32",
                       shown, s);
    if (slash) {
        bool v4 = !memchr(s, ':', len);
        unsigned most = v4 ? 32 : 128;
        if (!cn_parse_u64(slash + 1, n - len - 1, &bits) || bits > most)
            return cn_fail(err, CN_EINVAL, "\"%.*s\": the length of a range is from 0 to %u", shown,
                           s, most);
        r.bits = (uint8_t)(bits + (v4 ? MAPPED_BITS : 0));
        struct cfg_addr net = network(&r.at, r.bits);
        if (memcmp(&net, &r.at, sizeof net)) {
            char text[CFG_ADDR_TEXT];
            cfg_addr_text(&net, text);
            return cn_fail(err, CN_EINVAL, "\"%.*s\" is inside a range, whose own address is %s/%u",
                           shown, s, text, (unsigned)bits);
        }
    }
    *out = r;
    return CN_OK;
}
