/* HTTP with libcurl: one GET, redirects followed here so that what may be sent where is decided in
 * one place. Main thread; owns the handle.
 * Invariants: the token goes to the hub's own origin and nowhere else; https never becomes http;
 * http is for loopback and for a hub or index that the environment names so. */
#include "cli/pull.h"

#include <ctype.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_REDIRECTS = 10, CONNECT_S = 30 };

/* The environment's value, without slashes at its end, or the default. */
static char *address(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    size_t n;

    if (!v || !*v) v = otherwise;
    for (n = strlen(v); n && v[n - 1] == '/';)
        n--;
    return strndup(v, n);
}

int cli_net_init(struct cli_net *net, struct cn_error *err)
{
    const char *token = getenv("HF_TOKEN");

    memset(net, 0, sizeof *net);
    net->stall_s = CLI_STALL_S;
    net->retries = CLI_RETRIES;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) || !(net->curl = curl_easy_init()))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    net->endpoint = address("HF_ENDPOINT", "https://huggingface.co");
    net->index = address("PIP_INDEX_URL", "https://pypi.org/simple");
    if (!net->endpoint || !net->index) return cn_fail(err, CN_ENOMEM, "out of memory");
    if (strncmp(net->endpoint, "https://", 8) && strncmp(net->endpoint, "http://", 7))
        return cn_fail_param(err, CN_EINVAL, "HF_ENDPOINT", "HF_ENDPOINT must be a URL");
    if (!token || !*token) return 0;
    size_t n = strlen(token);
    while (n && isspace((unsigned char)token[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)token[i]))
            return cn_fail_param(err, CN_EINVAL, "HF_TOKEN", "HF_TOKEN is no token");
    net->token = strndup(token, n);
    return net->token ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
}

void cli_net_fini(struct cli_net *net)
{
    if (net->curl) curl_easy_cleanup(net->curl);
    if (net->token) explicit_bzero(net->token, strlen(net->token));
    free(net->token);
    free(net->endpoint);
    free(net->index);
    memset(net, 0, sizeof *net);
}

/* Whether a URL may be asked at all; secure: what led to it was https. */
static bool may_ask(const struct cli_net *net, const char *url, bool secure)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL;
    bool ok = u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
              !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
              !curl_url_get(u, CURLUPART_HOST, &host, 0);

    if (ok && !strcasecmp(scheme, "http")) {
        size_t n = strlen(host);
        if (host[0] == '[' && host[n - 1] == ']') {
            memmove(host, host + 1, n - 1);
            host[n - 2] = '\0';
        }
        ok = !secure && (cfg_is_loopback(host) || cli_same_origin(url, net->endpoint) ||
                         cli_same_origin(url, net->index));
    } else if (ok) {
        ok = !strcasecmp(scheme, "https");
    }
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    return ok;
}

/* ---- one exchange ---------------------------------------------------------------------------- */

struct exchange {
    const struct cli_http *q;
    struct cli_head *head;
    struct cn_error *err;
    bool from_hub, body; /* body: its bytes are for on_body */
    bool stalled;
    uint64_t heard_ns; /* when the last bytes came */
    unsigned stall_s;
    int stopped; /* the code that a callback stopped with */
};

static void put_text(char *out, size_t size, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < size; i++)
        out[k++] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? ' ' : s[i];
    out[k] = '\0';
}

static int64_t put_number(const char *s, size_t n)
{
    int64_t x = 0;

    if (!n || n > 18) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        x = x * 10 + (s[i] - '0');
    }
    return x;
}

/* "bytes 5-9/10", "bytes 5-9/" and a star, or "bytes " and a star and "/10" */
static void put_range(struct cli_head *h, const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n);

    if (n < 8 || strncasecmp(s, "bytes ", 6) || !slash) return;
    size_t digits = 0;
    while (s + 6 + digits < slash && isdigit((unsigned char)s[6 + digits]))
        digits++;
    h->range_from = put_number(s + 6, digits);
    h->range_total = put_number(slash + 1, (size_t)(s + n - slash - 1));
}

static void reset_head(struct cli_head *h)
{
    struct cli_head fresh = {.length = -1,
                             .range_from = -1,
                             .range_total = -1,
                             .retry_after_s = -1,
                             .linked_size = h->linked_size};
    memcpy(fresh.linked_etag, h->linked_etag, sizeof fresh.linked_etag);
    *h = fresh;
}

static void put_header(struct exchange *x, const char *name, size_t n, const char *v, size_t m)
{
    struct cli_head *h = x->head;

    /* clang-format off */
#define IS(text) (n == sizeof(text) - 1 && !strncasecmp(name, text, n))
    if (IS("content-length")) h->length = put_number(v, m);
    else if (IS("content-range")) put_range(h, v, m);
    else if (IS("content-type")) put_text(h->type, sizeof h->type, v, m);
    else if (IS("etag")) put_text(h->etag, m < sizeof h->etag ? sizeof h->etag : 1, v, m);
    else if (IS("last-modified")) put_text(h->modified, sizeof h->modified, v, m);
    else if (IS("x-error-message")) put_text(h->message, sizeof h->message, v, m);
    else if (IS("x-linked-size") && x->from_hub) h->linked_size = put_number(v, m);
    else if (IS("x-linked-etag") && x->from_hub) put_text(h->linked_etag, sizeof h->linked_etag, v, m);
    else if (IS("retry-after")) {
        char text[64];
        put_text(text, sizeof text, v, m);
        h->retry_after_s = put_number(v, m);
        time_t at = h->retry_after_s < 0 ? curl_getdate(text, NULL) : -1;
        if (at > 0) h->retry_after_s = CN_MAX((int64_t)at - cn_wall_s(), 0);
    }
#undef IS
    /* clang-format on */
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;
    size_t all = size * n, len = all;

    x->heard_ns = cn_now_ns();
    while (len && (p[len - 1] == '\r' || p[len - 1] == '\n'))
        len--;
    if (len > 5 && !strncasecmp(p, "HTTP/", 5)) {
        reset_head(x->head);
        const char *space = memchr(p, ' ', len);
        x->head->status = space ? (int)strtol(space + 1, NULL, 10) : 0;
        return all;
    }
    if (len) {
        const char *colon = memchr(p, ':', len);
        if (!colon) return all;
        const char *v = colon + 1, *end = p + len;
        while (v < end && (*v == ' ' || *v == '\t'))
            v++;
        while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        put_header(x, p, (size_t)(colon - p), v, (size_t)(end - v));
        return all;
    }
    if (x->head->status != 200 && x->head->status != 206) return all;
    x->body = true;
    if (x->q->on_head) x->stopped = x->q->on_head(x->q->arg, x->head, x->err);
    return x->stopped ? 0 : all;
}

static size_t on_data(char *p, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;

    x->heard_ns = cn_now_ns();
    if (cli_pull_stopped) return 0;
    if (!x->body) return size * n;
    x->stopped = x->q->on_body(x->q->arg, p, size * n, x->err);
    if (x->stopped) return 0;
    if (x->q->on_tick) x->q->on_tick(x->q->arg);
    return size * n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct exchange *x = arg;

    if (x->q->on_tick && x->body) x->q->on_tick(x->q->arg);
    x->stalled = cn_now_ns() - x->heard_ns > x->stall_s * 1000000000ull;
    return cli_pull_stopped || x->stalled;
}

static int add(struct curl_slist **list, const char *fmt, ...) CN_PRINTF(2, 3);
static int add(struct curl_slist **list, const char *fmt, ...)
{
    va_list ap;
    char text[1024];

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct curl_slist *more =
        n >= 0 && n < (int)sizeof text ? curl_slist_append(*list, text) : NULL;
    explicit_bzero(text, sizeof text);
    if (!more) return CN_ENOMEM;
    *list = more;
    return 0;
}

/* Certificates: what curl(1), OpenSSL and pip look at; libcurl itself looks at none of them. */
static void trust(CURL *c)
{
    static const char *const names[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT"};

    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        const char *path = getenv(names[i]);
        if (!path || !*path) continue;
        curl_easy_setopt(c, CURLOPT_CAINFO, path);
        return;
    }
}

static int set_up(struct cli_net *net, struct exchange *x, const char *url,
                  struct curl_slist **headers)
{
    CURL *c = net->curl;
    const struct cli_http *q = x->q;
    int rc = 0;

    curl_easy_reset(c);
    trust(c);
    if (q->accept) rc = add(headers, "Accept: %s", q->accept);
    if (!rc) rc = add(headers, "Accept-Encoding: identity");
    if (!rc && q->from) rc = add(headers, "Range: bytes=%llu-", (unsigned long long)q->from);
    if (!rc && q->from && q->if_range) rc = add(headers, "If-Range: %s", q->if_range);
    if (!rc && net->token && x->from_hub) rc = add(headers, "Authorization: Bearer %s", net->token);
    if (rc) return cn_fail(x->err, rc, "out of memory, or a header that is too long");
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "conifer/" CLI_VERSION);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CN_MIN(CONNECT_S, net->stall_s));
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L * 1024);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    return 0;
}

static int say_curl(CURLcode code, const struct cli_net *net, const char *url,
                    const struct exchange *x)
{
    struct cn_error *err = x->err;
    int n;
    const char *host = cli_url_host(url, &n);

    if (cli_pull_stopped) return cn_fail(err, CN_ECANCELLED, "stopped");
    if (x->stopped) return x->stopped;
    if (x->stalled) code = CURLE_OPERATION_TIMEDOUT;
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_OPERATION_TIMEDOUT:
        return cn_fail(err, CN_ETIMEOUT, "no bytes for %u seconds", net->stall_s);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return cn_fail(err, CN_EINVAL, "%s", curl_easy_strerror(code));
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
        return cn_fail(err, CN_EFORBID,
                       "the server's certificate is not trusted here (%s); CURL_CA_BUNDLE names "
                       "the file of certificates to trust",
                       curl_easy_strerror(code));
    case CURLE_OUT_OF_MEMORY:
        return cn_fail(err, CN_ENOMEM, "out of memory");
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
        return cn_fail(err, CN_EIO, "%.*s: %s", n, host, curl_easy_strerror(code));
    default:
        return cn_fail(err, CN_EIO, "%s", curl_easy_strerror(code));
    }
}

int cli_http_get(struct cli_net *net, const struct cli_http *q, struct cli_head *head,
                 struct cn_error *err)
{
    char *url = strdup(q->url), *to = NULL;
    bool secure = false;
    int rc = url ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");

    memset(head, 0, sizeof *head);
    head->linked_size = -1;
    reset_head(head);
    for (int hop = 0; !rc; hop++) {
        struct exchange x = {
            .q = q, .head = head, .err = err, .heard_ns = cn_now_ns(), .stall_s = net->stall_s};
        struct curl_slist *headers = NULL;

        if (!may_ask(net, url, secure)) {
            rc = cn_fail(err, CN_EFORBID, "%.200s: only https is allowed%s", url,
                         hop ? " (redirected there by the server)" : "");
            break;
        }
        secure = secure || !strncasecmp(url, "https:", 6);
        x.from_hub = cli_same_origin(url, net->endpoint);
        rc = set_up(net, &x, url, &headers);
        if (!rc) rc = say_curl(curl_easy_perform(net->curl), net, url, &x);
        curl_slist_free_all(headers);
        to = NULL;
        if (rc || head->status < 300 || head->status > 399) break;
        curl_easy_getinfo(net->curl, CURLINFO_REDIRECT_URL, &to);
        if (!to)
            rc = cn_fail(err, CN_EIO, "the server answers %d and says nowhere to go", head->status);
        else if (hop == MAX_REDIRECTS)
            rc = cn_fail(err, CN_ELIMIT, "more than %d redirects", MAX_REDIRECTS);
        char *next = rc ? NULL : strdup(to);
        free(url);
        url = next;
        if (!rc && !url) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    }
    free(url);
    return rc;
}

/* ---- what may be tried again ----------------------------------------------------------------- */

bool cli_http_again(int status)
{
    return status == 408 || status == 425 || status == 429 || status >= 500;
}

int cli_http_wait(const struct cli_head *head, unsigned failed, struct cn_error *err)
{
    uint64_t ms = 500u << CN_MIN(failed, 6u);
    uint16_t dice;

    cn_random(&dice, sizeof dice);
    ms = CN_MIN(ms, 30000u);
    ms += ms * dice / 65536 / 4; /* so that many clients do not come back at once */
    if (head->retry_after_s > CLI_MAX_WAIT_S)
        return cn_fail(err, CN_ERATE, "the server asks to wait %lld seconds: try again later",
                       (long long)head->retry_after_s);
    if (head->retry_after_s >= 0) ms = CN_MAX((uint64_t)head->retry_after_s * 1000, 100u);
    for (uint64_t end = cn_now_ns() + ms * 1000000; cn_now_ns() < end;) {
        if (cli_pull_stopped) return cn_fail(err, CN_ECANCELLED, "stopped");
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return 0;
}

int cli_http_refused(const struct cli_net *net, const char *url, const struct cli_head *head,
                     struct cn_error *err)
{
    bool hub = cli_same_origin(url, net->endpoint);
    const char *why = head->message;
    size_t n = strlen(why);

    while (n && strchr(". ", why[n - 1])) /* our own words follow */
        n--;
    if (head->status == 401 || head->status == 403)
        return cn_fail(
            err, head->status == 401 ? CN_EAUTH : CN_EFORBID, "the server refuses (%d)%s%.*s%s",
            head->status, n ? ": " : "", (int)n, why,
            !hub ? ""
            : net->token
                ? "; has the account of this HF_TOKEN agreed to the model's licence?"
                : "; where a model wants to know who asks, set HF_TOKEN to a key of the hub");
    if (head->status == 404 || head->status == 410)
        return cn_fail(err, CN_ENOENT, "the server has no such file (%d)%s%s", head->status,
                       *why ? ": " : "", why);
    return cn_fail(err, CN_EIO, "the server answers %d%s%s", head->status, *why ? ": " : "", why);
}

/* ---- small documents ------------------------------------------------------------------------- */

static int take_text(void *arg, const void *p, size_t n, struct cn_error *err)
{
    return cn_buf_append(arg, p, n) ? cn_fail(err, CN_ELIMIT, "the page is too long") : 0;
}

static int begin_text(void *arg, const struct cli_head *head, struct cn_error *err)
{
    cn_buf_reset(arg);
    return 0;
}

int cli_http_text(struct cli_net *net, const char *url, const char *accept, size_t limit,
                  struct cn_buf *out, struct cli_head *head, struct cn_error *err)
{
    struct cli_http q = {
        .url = url, .accept = accept, .on_head = begin_text, .on_body = take_text, .arg = out};
    int rc;

    out->max = limit;
    for (unsigned failed = 0;; failed++) {
        rc = cli_http_get(net, &q, head, err);
        if (!rc && head->status == 200) return 0;
        if (!rc) rc = cli_http_refused(net, url, head, err);
        bool again = head->status ? rc == CN_ETIMEOUT || (rc == CN_EIO && head->status == 200) ||
                                        cli_http_again(head->status)
                                  : rc == CN_EIO || rc == CN_ETIMEOUT;
        if (!again || failed >= CN_MIN(net->retries, 3u)) return rc;
        struct cn_error why = {0};
        if (cli_http_wait(head, failed, &why)) {
            if (err) *err = why;
            return why.code;
        }
    }
}
