/* Where the server is. */
#include "loadtest/run.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

static bool copy(char *to, size_t size, const char *from, size_t n)
{
    if (n >= size) return false;
    memcpy(to, from, n);
    to[n] = '\0';
    return true;
}

int lt_target_parse(const char *url, struct lt_target *out, struct cn_error *err)
{
    struct lt_target t = {0};
    const char *host = strstr(url, "://"), *end, *colon, *bracket;
    size_t base;

    if (host && strncmp(url, "http://", 7))
        return cn_fail(err, CN_EUNSUPP, "%s: only http:// is spoken", url);
    host = host ? host + 3 : url;
    end = host + strcspn(host, "/?#");
    bracket = *host == '[' ? memchr(host, ']', (size_t)(end - host)) : NULL;
    colon = memchr(bracket ? bracket : host, ':', (size_t)(end - (bracket ? bracket : host)));
    const char *name = bracket ? host + 1 : host, *stop = bracket ? bracket : colon ? colon : end;

    if (stop == name || (*host == '[' && !bracket) || strpbrk(url, " \r\n\t@"))
        return cn_fail(err, CN_EINVAL, "%s: not http://HOST[:PORT][/BASE]", url);
    base = strcspn(end, "?#");
    while (base && end[base - 1] == '/')
        base--;
    if (base >= 3 && !memcmp(end + base - 3, "/v1", 3)) base -= 3;
    if (!copy(t.name, sizeof t.name, name, (size_t)(stop - name)) ||
        !copy(t.host, sizeof t.host, host, (size_t)(end - host)) ||
        !copy(t.base, sizeof t.base, end, base) ||
        !copy(t.port, sizeof t.port, colon ? colon + 1 : "80",
              colon ? (size_t)(end - colon - 1) : 2))
        return cn_fail(err, CN_ELIMIT, "%s: too long", url);
    if (!*t.port || strspn(t.port, "0123456789") != strlen(t.port))
        return cn_fail(err, CN_EINVAL, "%s: the port must be a number", url);
    *out = t;
    return CN_OK;
}

int lt_target_resolve(const struct lt_target *t, struct lt_addrs *out, struct cn_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int rc = getaddrinfo(t->name, t->port, &hints, &found);

    if (rc) return cn_fail(err, CN_EIO, "%s: %s", t->name, gai_strerror(rc));
    memset(out, 0, sizeof *out);
    for (const struct addrinfo *a = found; a && out->n < LT_ADDRS; a = a->ai_next) {
        bool again = false;

        memcpy(&out->v[out->n], a->ai_addr, a->ai_addrlen);
        for (size_t i = 0; i < out->n; i++)
            again |= !memcmp(&out->v[i], &out->v[out->n], sizeof out->v[i]);
        if (again)
            memset(&out->v[out->n], 0, sizeof out->v[0]);
        else
            out->n++;
    }
    freeaddrinfo(found);
    return CN_OK;
}
