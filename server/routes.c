/* Routing: from a request's head to its handler, by way of authentication and access checks.
 * Loop thread only. Deny by default: the credential is looked at before the path. */
#include "server/pages.h"
#include "server/request.h"

#include <stdlib.h>
#include <string.h>

enum auth { KEY, OPEN };

struct route {
    enum llhttp_method method;
    const char *path;
    size_t len;
    void (*handler)(struct srv *s, struct srv_conn *c);
    enum auth auth;
    bool work; /* makes work for the engine or the workers: refused while draining */
};

static void run_chat(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_CHAT);
}

static void run_text(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_TEXT);
}

static void run_embed(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_EMBED);
}

static void run_tokenize(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_TOKENIZE);
}

static void run_detokenize(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_DETOKENIZE);
}

static void run_apply_template(struct srv *s, struct srv_conn *c)
{
    srv_req_start(s, c, SRV_OP_TEMPLATE);
}

#define run_models  srv_page_models
#define run_model   srv_page_model
#define run_live    srv_page_live
#define run_ready   srv_page_ready
#define run_metrics srv_page_metrics
#define run_version srv_page_version

static const struct route routes[] = {
#define ROUTE(method, path, handler, auth)                                                         \
    {HTTP_##method, path, sizeof path - 1, run_##handler, auth, HTTP_##method == HTTP_POST},
#include "server/routes.def"
#undef ROUTE
};

static bool matches(const struct route *r, const char *path, size_t n)
{
    if (r->path[r->len - 1] == '*') return n >= r->len && !memcmp(path, r->path, r->len - 1);
    return n == r->len && !memcmp(path, r->path, n);
}

static const struct route *find_path(const char *path, size_t n)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(routes); i++)
        if (matches(&routes[i], path, n)) return &routes[i];
    return NULL;
}

static const struct route *find_route(const struct srv_conn *c)
{
    size_t n;
    const char *path = srv_conn_path(c, &n);
    return find_path(path, n);
}

/* ---- no route -------------------------------------------------------------------------------- */

static const struct {
    const char *path;
    size_t len;
    const char *use;
} instead[] = {
#define INSTEAD(path, use) {path, sizeof path - 1, use},
#include "server/routes.def"
#undef INSTEAD
};

static const char *find_instead(const char *path, size_t n)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(instead); i++) {
        size_t len = instead[i].len;
        bool any = instead[i].path[len - 1] == '*';

        if (any ? n >= len - 1 && !memcmp(path, instead[i].path, len - 1)
                : n == len && !memcmp(path, instead[i].path, n))
            return instead[i].use;
    }
    return NULL;
}

/* A route that is nearly the path: /v1 left out, or put in where it does not belong. */
static const struct route *find_near(const char *path, size_t n)
{
    char longer[64] = "/v1";
    const struct route *r = NULL;

    if (n > sizeof longer - 3) return NULL;
    r = find_path(path, n);
    memcpy(longer + 3, path, n);
    if (!r) r = find_path(longer, n + 3);
    if (!r && n > 3 && !memcmp(path, "/v1/", 4)) r = find_path(path + 3, n - 3);
    return r;
}

/* What the client may have meant, else all there is. */
static int no_route(const struct srv_conn *c, struct cn_error *err)
{
    size_t n;
    const char *path = srv_conn_path(c, &n);
    struct cn_buf all;

    while (n > 1 && path[n - 1] == '/')
        n--;
    const struct route *near = find_near(path, n);
    const char *use = find_instead(path, n);
    if (near)
        return cn_fail(err, CN_EROUTE, "no such path: use %s %s", llhttp_method_name(near->method),
                       near->path);
    if (use) return cn_fail(err, CN_EROUTE, "this server has no such path: use %s", use);
    cn_buf_init(&all, 0);
    for (size_t i = 0; i < CN_ARRAY_LEN(routes); i++)
        cn_buf_printf(&all, "%s%s %s", i ? ", " : "", llhttp_method_name(routes[i].method),
                      routes[i].path);
    cn_fail(err, CN_EROUTE, "no such path; there are %s",
            all.failed ? "others" : cn_buf_cstr(&all));
    cn_buf_fini(&all);
    return CN_EROUTE;
}

/* ---- who ------------------------------------------------------------------------------------- */

/* The credential: Authorization: Bearer KEY, or x-api-key: KEY. Both only if they agree. NULL: *why
 * says what is wrong with what was sent, and never repeats it. */
static const char *credential(const struct srv_conn *c, const char **why)
{
    const char *auth = srv_conn_header(c, SRV_H_authorization);
    const char *key = srv_conn_header(c, SRV_H_api_key);

    *why =
        "there is no API key: send one in the header Authorization: Bearer KEY, or x-api-key: KEY";
    if (!auth) return key && *key ? key : NULL;
    if (strncasecmp(auth, "Bearer", 6) || (auth[6] && auth[6] != ' ')) {
        *why = "the header Authorization must be Bearer and the API key";
        return NULL;
    }
    for (auth += 6; *auth == ' '; auth++) {
    }
    if (key && strcmp(key, auth)) {
        *why = "the headers Authorization and x-api-key hold different API keys";
        return NULL;
    }
    return *auth ? auth : NULL;
}

/* The host of host[:port], without brackets. */
static size_t host_part(const char **s, size_t n)
{
    if (n && **s == '[') {
        const char *end = memchr(*s, ']', n);
        (*s)++;
        return end ? (size_t)(end - *s) : 0;
    }
    const char *colon = memchr(*s, ':', n);
    return colon ? (size_t)(colon - *s) : n;
}

/* Names under which a browser may know this server when nothing but the address protects it. */
static bool host_allowed(const struct srv *s, const char *host, size_t n)
{
    char name[262];
    size_t len = host_part(&host, n);

    if (len == 0 || len >= sizeof name) return false;
    memcpy(name, host, len);
    name[len] = 0;
    if (cfg_is_loopback(name)) return true;
    for (size_t i = 0; i < s->cfg->server.allowed_hosts.count; i++)
        if (!strcasecmp(name, s->cfg->server.allowed_hosts.items[i])) return true;
    return false;
}

/* A page of another site reaches loopback addresses too, by its own name bound to 127.0.0.1 or by a
 * request across origins: without keys both names must be ours. */
static int check_browser(const struct srv *s, const struct srv_conn *c, struct cn_error *err)
{
    const char *host = srv_conn_header(c, SRV_H_host);
    const char *origin = srv_conn_header(c, SRV_H_origin);

    if (!c->stream->local && host && !host_allowed(s, host, strlen(host)))
        return cn_fail(err, CN_EFORBID,
                       "the Host header names another host (server.allowed_hosts "
                       "lists those that may be used)");
    if (!origin) return 0;
    const char *at = strstr(origin, "://");
    if (!at || !srv_host_ok(at + 3, strlen(at + 3)) || !host_allowed(s, at + 3, strlen(at + 3)))
        return cn_fail(err, CN_EFORBID, "requests from other origins are not allowed");
    return 0;
}

/* Notes the connection's tenant and key. The log names a key by the first digits of its hash,
 * enough to distinguish the keys of a config. */
static void know(const struct srv *s, struct srv_conn *c, uint64_t tenant,
                 const struct srv_key_entry *key)
{
    c->tenant = tenant;
    c->lane = srv_lane_of(tenant);
    c->changes = s->changes;
    c->known = true;
    c->key = 0;
    if (!key) return;
    memcpy(&c->key, key->hash, sizeof c->key); /* cfg_key_id */
    cn_hex(key->hash, (sizeof c->key_id - 1) / 2, c->key_id);
}

static int authenticate(struct srv *s, struct srv_conn *c, struct cn_error *err)
{
    c->key_id[0] = 0;
    if (!s->tenants->has_keys) {
        know(s, c, s->tenants->first, NULL);
        return check_browser(s, c, err);
    }
    const char *why, *key = credential(c, &why);
    if (!key) return cn_fail(err, CN_EAUTH, "%s", why);
    const struct srv_key_entry *found = srv_keys_find(&s->keys, key, strlen(key));
    if (!found) return cn_fail(err, CN_EAUTH, "the API key is not valid");
    know(s, c, found->tenant, found);
    return 0;
}

/* ---- what ------------------------------------------------------------------------------------ */

static int check_method(struct srv_conn *c, const struct route *r, struct cn_error *err)
{
    enum llhttp_method m = srv_conn_method(c);

    if (m == r->method || (m == HTTP_HEAD && r->method == HTTP_GET)) return 0;
    c->extra = r->method == HTTP_GET ? "Allow: GET, HEAD\r\n" : "Allow: POST\r\n";
    return cn_fail(err, CN_EMETHOD, "this path takes %s", r->method == HTTP_GET ? "GET" : "POST");
}

static int check_media(struct srv_conn *c, struct cn_error *err)
{
    const char *type = srv_conn_header(c, SRV_H_content_type);
    const char *coding = srv_conn_header(c, SRV_H_content_encoding);

    if (coding && strcasecmp(coding, "identity"))
        return cn_fail(err, CN_EMEDIA,
                       "the body must not be compressed: the header Content-Encoding says %.80s",
                       coding);
    if (!type) return 0;
    size_t n = strcspn(type, "; \t");
    if (n == 16 && !strncasecmp(type, "application/json", n)) return 0;
    return cn_fail(err, CN_EMEDIA,
                   "the body must be application/json: the header Content-Type says %s%.80s",
                   *type ? "" : "nothing", type);
}

/* No valid key: 401, or 429 and the end of the connection where that is too frequent. */
static int deny(struct srv *s, struct srv_conn *c, int rc, struct cn_error *err)
{
    if (rc != CN_EAUTH || srv_gate_failed(&s->gate, &c->client, cn_now_ns(), &c->retry_s))
        return rc;
    c->keep_alive = false;
    return cn_fail(err, CN_EFAILURES, "%s", cn_err_info(CN_EFAILURES)->text);
}

/* Who has shown a valid key has a place, if need be that of a connection without one. Without keys
 * a whole request shows as much as there is to see. */
static int take_place(struct srv *s, struct srv_conn *c, bool open, struct cn_error *err)
{
    if (open && s->tenants->has_keys) {
        if (c->place.health) c->keep_alive = false;
        return 0;
    }
    uint64_t tenant = open ? s->tenants->first : c->tenant; /* open: no tenant has keys */
    int rc = srv_gate_prove(&s->gate, c, cfg_slot(tenant));
    if (!rc) return 0;
    c->keep_alive = false;
    if (open) return 0;
    return cn_fail(err, rc, "%s",
                   rc == CN_ERATE ? "this tenant holds as many connections as it may, "
                                    "the others have their parts "
                                    "(server.max_connections)"
                                  : cn_err_info(rc)->text);
}

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    struct srv *s = ctx;
    const struct route *r = find_route(c);
    int rc;

    bool open = r && r->auth == OPEN;
    if (!open && (rc = authenticate(s, c, err))) return deny(s, c, rc, err);
    if ((rc = take_place(s, c, open, err))) return rc;
    if (open) c->body_max = CN_MIN(c->body_max, (size_t)SRV_OPEN_BODY);
    if (!r) return no_route(c, err);
    if ((rc = check_method(c, r, err))) return rc;
    if (r->work && (rc = check_media(c, err))) return rc;
    if (r->work && s->draining) return cn_fail(err, CN_EDRAIN, "the server is shutting down");
    c->route = r;
    return 0;
}

static void on_request(void *ctx, struct srv_conn *c)
{
    const struct route *r = c->route;
    r->handler(ctx, c);
}

static void on_gone(void *ctx, struct srv_conn *c)
{
    if (c->user) srv_req_gone(c->user);
}

static void on_refused(void *ctx, struct srv_conn *c, const struct cn_error *err)
{
    srv_refused_log(ctx, c, err);
}

static void on_sent(void *ctx, struct srv_conn *c)
{
    if (c->user) srv_req_sent(c->user);
}

static void on_closed(void *ctx)
{
    srv_listen_resume(ctx);
}

static uint32_t retry_after_s(void *ctx)
{
    const struct srv *s = ctx;
    return rt_retry_after_s(s->rt);
}

static void on_answer(void *ctx, const struct srv_conn *c, int status)
{
    const struct route *r = c->route;
    struct srv *s = ctx;

    if (!r && c->head && c->head->path_len) r = find_route(c);
    srv_responses_count(&s->responses, r ? (size_t)(r - routes) : SRV_ROUTE_other, status);
}

const struct srv_http_handler srv_routes = {on_head,   on_request, on_gone,       on_sent,
                                            on_closed, on_refused, retry_after_s, on_answer};
