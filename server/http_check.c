/* What llhttp, strict as it is, lets through and this server does not: one decision per rule.
 * Pure functions of a request's head; loop thread. Routing and authorisation use the target that is
 * checked here and nothing else. */
#include "server/http.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t n;
} known[SRV_H_COUNT] = {
#define HEADER(id, name) [SRV_H_##id] = {name, sizeof name - 1},
#include "server/headers.def"
#undef HEADER
};

int srv_head_header(struct srv_head *h, struct cn_error *err)
{
    for (int i = 0; i < SRV_H_COUNT; i++) {
        if (h->name.len != known[i].n || strncasecmp(h->name.data, known[i].name, known[i].n))
            continue;
        const char *first = h->values[i];
        if (first && i != SRV_H_forwarded_for)
            return cn_fail(err, CN_EHTTP, "the header %s came twice", known[i].name);
        size_t n = h->value.len, at = first ? strlen(first) + 1 : 0;
        while (n && (h->value.data[n - 1] == ' ' || h->value.data[n - 1] == '\t'))
            n--;
        int rc = cn_hold_take(&h->hold, n + 1);
        char *v = rc ? NULL : cn_malloc_array(at + n + 1, 1);
        if (!v)
            return cn_fail(err, rc ? rc : CN_ENOMEM, "%s", cn_err_info(rc ? rc : CN_ENOMEM)->text);
        if (first) {
            memcpy(v, first, at - 1);
            v[at - 1] = ',';
        }
        if (n) memcpy(v + at, h->value.data, n);
        v[at + n] = 0;
        free(h->values[i]);
        h->values[i] = v;
        return 0;
    }
    return 0;
}

/* The end of a port, s being just after the ':'. RFC 3986 allows an empty one. */
static bool port_ok(const char *s, size_t n)
{
    unsigned long port = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)s[i])) return false;
        port = port * 10 + (unsigned long)(s[i] - '0');
        if (port > 65535) return false;
    }
    return true;
}

bool srv_host_ok(const char *s, size_t n)
{
    size_t i = 0;

    if (n == 0 || n > 261) return false;
    if (s[0] == '[') {
        for (i = 1; i < n && s[i] != ']'; i++)
            if (!isxdigit((unsigned char)s[i]) && s[i] != ':' && s[i] != '.') return false;
        if (i == n || i == 1) return false;
        i++;
    } else {
        for (; i < n && s[i] != ':'; i++)
            if (!isalnum((unsigned char)s[i]) && !strchr("-._~", s[i])) return false;
        if (i == 0) return false;
    }
    if (i == n) return true;
    return s[i] == ':' && port_ok(s + i + 1, n - i - 1);
}

static int check_host(const struct srv_head *h, bool http10, struct cn_error *err)
{
    const char *host = h->values[SRV_H_host];

    if (!host) {
        if (http10) return 0;
        return cn_fail(err, CN_EHTTP, "the Host header is missing");
    }
    if (!srv_host_ok(host, strlen(host)))
        return cn_fail(err, CN_EHTTP, "the Host header is not valid");
    return 0;
}

static int check_framing(const struct srv_conn *c, struct cn_error *err)
{
    const char *length = c->head->values[SRV_H_content_length];
    const char *te = c->head->values[SRV_H_transfer_encoding];

    if (length && length[0] == '0' && length[1])
        return cn_fail(err, CN_EHTTP, "the Content-Length header has leading zeros");
    if (!te) return 0;
    if (c->http10) return cn_fail(err, CN_EHTTP, "HTTP/1.0 has no Transfer-Encoding");
    if (strcasecmp(te, "chunked"))
        return cn_fail(err, CN_ENCODING, "the only Transfer-Encoding supported is chunked");
    return 0;
}

static int bad_target(struct cn_error *err)
{
    return cn_fail(err, CN_EHTTP, "the request target is not valid");
}

static int check_path(const char *s, size_t n, struct cn_error *err)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= ' ' || c >= 127 || strchr("\\#\"<>^`{|}", c)) return bad_target(err);
        if (c != '%') continue;
        if (n - i < 3 || cn_hex_digit(s[i + 1]) < 0 || cn_hex_digit(s[i + 2]) < 0)
            return bad_target(err);
        int v = cn_hex_digit(s[i + 1]) * 16 + cn_hex_digit(s[i + 2]);
        if (v < ' ' || v == 127) return bad_target(err);
        i += 2;
    }
    return 0;
}

/* Sets where the path is in the target. An absolute target must name the host that Host names. */
static int check_target(struct srv_head *h, struct cn_error *err)
{
    const char *s = h->target.data;
    size_t n = h->target.len, at = 0, end;

    if (n == 0) return bad_target(err);
    if (s[0] != '/') {
        size_t skip = n > 7 && !strncasecmp(s, "http://", 7)    ? 7
                      : n > 8 && !strncasecmp(s, "https://", 8) ? 8
                                                                : 0;
        if (!skip) return bad_target(err);
        for (at = skip; at < n && s[at] != '/' && s[at] != '?'; at++) {
        }
        const char *host = h->values[SRV_H_host];
        size_t len = at - skip;
        if (!srv_host_ok(s + skip, len)) return bad_target(err);
        if (host && (strlen(host) != len || strncasecmp(host, s + skip, len)))
            return cn_fail(err, CN_EHTTP, "the target and the Host header name different hosts");
        if (!host) { /* HTTP/1.0: the target's host is the host */
            h->values[SRV_H_host] = strndup(s + skip, len);
            if (!h->values[SRV_H_host]) return cn_fail(err, CN_ENOMEM, "out of memory");
        }
        if (at == n || s[at] != '/') return bad_target(err);
    }
    for (end = at; end < n && s[end] != '?'; end++) {
    }
    h->path_at = at;
    h->path_len = end - at;
    if (check_path(s + at, end - at, err)) return err ? err->code : CN_EHTTP;
    return check_path(s + end, n - end, err);
}

/* The caller's id, when it is harmless in a log line; else one of our own. */
static void take_request_id(struct srv_head *h)
{
    const char *s = h->values[SRV_H_request_id];
    size_t n = s ? strlen(s) : 0;
    bool ok = n > 0 && n < sizeof h->request_id;

    for (size_t i = 0; ok && i < n; i++)
        ok = isalnum((unsigned char)s[i]) || strchr("-._:", s[i]);
    if (ok) {
        memcpy(h->request_id, s, n + 1);
        return;
    }
    uint8_t r[12];
    cn_random(r, sizeof r);
    memcpy(h->request_id, "req-", 4);
    cn_hex(r, sizeof r, h->request_id + 4);
}

int srv_head_check(struct srv_conn *c, struct cn_error *err)
{
    struct srv_head *h = c->head;
    int rc;

    take_request_id(h);
    if (c->parser.http_major != 1)
        return cn_fail(err, CN_EHTTP, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    if ((rc = check_framing(c, err))) return rc;
    if ((rc = check_host(h, c->http10, err))) return rc;
    return check_target(h, err);
}

const char *srv_conn_path(const struct srv_conn *c, size_t *n)
{
    *n = c->head->path_len;
    return c->head->target.data + c->head->path_at;
}
