/* Log lines: one per finished request, one per request that was refused before it had a record.
 * Loop thread only. The only client text in them is the request's id (checked in http_check.c) and
 * a refused path, cut and escaped; names come from the config and the model. Refusals cost a client
 * nothing, and neither do requests that end before their first token. So only some of them per
 * second get a line of their own; the latter are counted per tenant, so that no tenant hides
 * another's. */
#include "server/request.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define LINES_A_SECOND 20  /* of each kind; of failed requests, of each tenant */
#define PATH_SHOWN     128 /* bytes */

static const char *endpoint(enum srv_op op)
{
    switch (op) {
    case SRV_OP_CHAT:
        return "/v1/chat/completions";
    case SRV_OP_TEXT:
        return "/v1/completions";
    case SRV_OP_EMBED:
        return "/v1/embeddings";
    case SRV_OP_TOKENIZE:
        return "/tokenize";
    case SRV_OP_DETOKENIZE:
        return "/detokenize";
    case SRV_OP_TEMPLATE:
        return "/apply-template";
    }
    return "?";
}

/* How it ended: the error, or why the first choice did. */
static const char *ending(const struct srv_req *q)
{
    if (q->code) return cn_err_info(q->code)->slug;
    if (!q->n_choices) return "done";
    return q->choices[0].finish == RT_FINISH_STOP ? "stop" : "length";
}

static struct cn_log_field text(const char *name, const char *value)
{
    return (struct cn_log_field){.name = name, .text = value && *value ? value : "-"};
}

static struct cn_log_field count(const char *name, uint64_t n)
{
    return (struct cn_log_field){.name = name, .number = (double)n};
}

static struct cn_log_field ms(const char *name, uint64_t from_ns, uint64_t to_ns)
{
    return (struct cn_log_field){
        .name = name, .number = to_ns ? (double)(to_ns - from_ns) / 1e6 : NAN, .decimals = 1};
}

/* ---- so many of a second --------------------------------------------------------------------- */

static const struct srv_lines_kind {
    enum cn_log_level level;
    const char *what;
} kinds[SRV_N_LINES] =
    {
        [SRV_LINES_REFUSED] = {CN_LOG_INFO, "requests were refused"},
        [SRV_LINES_DENIED] = {CN_LOG_WARN, "requests were refused"},
        [SRV_LINES_PAGES] = {CN_LOG_INFO, "pages were asked for"},
    },
  failed = {CN_LOG_INFO, "requests failed or were given up"};

/* tenant: its name; NULL where the lines are of all. */
static void end_second(struct srv_refusals *r, const struct srv_lines_kind *kind,
                       const char *tenant)
{
    if (r->left_out)
        cn_log(kind->level, "server", "%llu more %s within a second%s%s",
               (unsigned long long)r->left_out, kind->what, tenant ? ", of tenant " : "",
               tenant ? tenant : "");
    *r = (struct srv_refusals){0};
}

static bool second_is_over(const struct srv_refusals *r, uint64_t now)
{
    return now > r->since_ns && now - r->since_ns >= 1000000000u;
}

/* Whether one more line of the kind may be written in this second. */
static bool may_log(struct srv_refusals *r, const struct srv_lines_kind *kind, const char *tenant)
{
    uint64_t now = cn_now_ns();

    if (second_is_over(r, now)) end_second(r, kind, tenant);
    if (!r->lines) r->since_ns = now;
    if (r->lines < LINES_A_SECOND) {
        r->lines++;
        return true;
    }
    r->left_out++;
    return false;
}

static bool may_log_failed(const struct srv_req *q)
{
    struct srv_refusals *r = &q->srv->seats[cfg_slot(q->tenant)].failures;

    return may_log(r, &failed, srv_tenant_name(q->tenants, q->tenant));
}

/* ---- requests -------------------------------------------------------------------------------- */

void srv_req_log(const struct srv_req *q)
{
    const struct srv *s = q->srv;
    const struct srv_call *c = q->call;

    if (s->quiet || !s->rt) return; /* a request that ends after the runtime has no answer to log */
    if (s->cfg->log.access >= (q->code ? CFG_ACCESS_OFF : CFG_ACCESS_ERRORS)) return;
    if (q->code && !q->first_ns && !may_log_failed(q)) return;
    const struct cn_log_field fields[] = {
        text("tenant", srv_tenant_name(q->tenants, q->tenant)),
        text("endpoint", endpoint(c->op)),
        text("model", q->code == CN_EMODEL ? "-" : c->env->model_id),
        count("status", q->code ? (uint64_t)cn_err_info(q->code)->status : 200),
        text("finish", ending(q)),
        count("prompt_tokens", q->usage.prompt_tokens),
        count("cached_tokens", q->usage.cached_tokens),
        count("completion_tokens", q->usage.completion_tokens),
        ms("ttft_ms", c->received_ns, q->first_ns),
        ms("total_ms", c->received_ns, cn_now_ns()),
        count("bytes", q->bytes),
        text("method", "POST"),
        text("key", q->key_id),
        text("peer", q->peer),
        text("id", q->request_id),
    };
    cn_log_fields(CN_LOG_INFO, "server", "request", fields, CN_ARRAY_LEN(fields));
}

/* ---- refused --------------------------------------------------------------------------------- */

/* What looks like a key is not shown: who writes one to a wrong place has it in the log
 * otherwise. */
static void mask_keys(char *s)
{
    while ((s = strstr(s, SRV_KEY_PREFIX))) {
        s += strlen(SRV_KEY_PREFIX);
        for (; isalnum((unsigned char)*s) || *s == '-' || *s == '_'; s++)
            *s = '*';
    }
}

/* The path alone: a query may hold a secret, and so may the part of a whole URL before its host. */
static void take_path(const struct srv_head *h, char out[PATH_SHOWN + 1])
{
    const char *s = h->target.len ? h->target.data + h->path_at : "";
    size_t n = h->path_len ? h->path_len : h->target.len, k = 0;

    if (*s == '/' || h->path_len)
        while (k < n && k < PATH_SHOWN && s[k] && s[k] != '?' && s[k] != '#')
            k++;
    memcpy(out, s, k);
    out[k] = 0;
    mask_keys(out);
}

static void put_refused(const struct srv *s, const struct srv_conn *c, const struct cn_error *err,
                        enum cn_log_level level)
{
    const struct cn_err_info *info = cn_err_info(err->code);
    char path[PATH_SHOWN + 1], peer[SRV_PEER_TEXT];

    take_path(c->head, path);
    srv_peer_text(&c->client, peer);
    const struct cn_log_field fields[] = {
        text("tenant", c->known ? srv_tenant_name(s->tenants, c->tenant) : "-"),
        text("key", c->key_id),
        text("method", c->head->target.len ? llhttp_method_name(srv_conn_method(c)) : "-"),
        text("path", path),
        count("status", (uint64_t)info->status),
        text("code", info->slug),
        text("peer", peer),
        text("id", c->head->request_id),
    };
    cn_log_fields(level, "server", "refused", fields, CN_ARRAY_LEN(fields));
}

void srv_refused_log(struct srv *s, const struct srv_conn *c, const struct cn_error *err)
{
    bool denied = err->code == CN_EAUTH || err->code == CN_EFORBID;
    enum srv_lines kind = denied ? SRV_LINES_DENIED : SRV_LINES_REFUSED;

    if (s->quiet || s->cfg->log.access == CFG_ACCESS_OFF) return;
    if (may_log(&s->refusals[kind], &kinds[kind], NULL)) put_refused(s, c, err, kinds[kind].level);
}

void srv_page_log(struct srv *s, const struct srv_conn *c, int status, size_t bytes, bool probe)
{
    char path[PATH_SHOWN + 1], peer[SRV_PEER_TEXT];

    if (s->quiet || s->cfg->log.access != CFG_ACCESS_ALL) return;
    if (probe ? s->cfg->log.level < CFG_LOG_DEBUG
              : !may_log(&s->refusals[SRV_LINES_PAGES], &kinds[SRV_LINES_PAGES], NULL))
        return;
    take_path(c->head, path);
    srv_peer_text(&c->client, peer);
    const struct cn_log_field fields[] = {
        text("tenant", c->known ? srv_tenant_name(s->tenants, c->tenant) : "-"),
        text("key", c->key_id),
        text("peer", peer),
        text("method", llhttp_method_name(srv_conn_method(c))),
        text("path", path),
        count("status", (uint64_t)status),
        ms("total_ms", c->since_ns, cn_now_ns()),
        count("bytes", c->head_only ? 0 : bytes),
        text("id", c->head->request_id),
    };
    cn_log_fields(probe ? CN_LOG_DEBUG : CN_LOG_INFO, "server", "page", fields,
                  CN_ARRAY_LEN(fields));
}

void srv_refused_tick(struct srv *s, uint64_t now)
{
    for (int i = 0; i < SRV_N_LINES; i++)
        if (second_is_over(&s->refusals[i], now)) end_second(&s->refusals[i], &kinds[i], NULL);
    for (uint32_t t = 0; t < s->tenants->n_slots; t++)
        if (second_is_over(&s->seats[t].failures, now))
            end_second(&s->seats[t].failures, &failed,
                       srv_tenant_name(s->tenants, s->tenants->seats[t].id));
}
