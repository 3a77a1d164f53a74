#include "server/pages.h"

#include <stdio.h>
#include <string.h>

static void answer_to(struct srv_conn *c, int status, const char *type, struct cn_buf *b,
                      bool probe)
{
    if (b->failed) {
        struct cn_error err = {.code = CN_ENOMEM};
        srv_refused_log(c->http->ctx, c, &err);
        srv_conn_error(c, &err, NULL);
    } else {
        srv_page_log(c->http->ctx, c, status, b->len, probe);
        srv_conn_answer(c, status, type, b->data, b->len, NULL);
    }
    cn_buf_fini(b);
}

static void answer(struct srv_conn *c, int status, const char *type, struct cn_buf *b)
{
    answer_to(c, status, type, b, false);
}

static void answer_probe(struct srv_conn *c, int status, const char *type, struct cn_buf *b)
{
    answer_to(c, status, type, b, true);
}

static void put_sampling(const struct rt_sampling *s, struct cn_buf *b)
{
    const struct eng_sampling *v = &s->v;

    cn_buf_printf(b,
                  ",\"sampling\":{\"from\":\"%s\",\"temperature\":%.6g,\"top_p\":%.6g,\"top_k\":%u,"
                  "\"min_p\":%.6g,\"repetition_penalty\":%.6g,\"presence_penalty\":%.6g,"
                  "\"frequency_penalty\":%.6g}",
                  s->from, (double)v->temperature, (double)v->top_p, v->top_k, (double)v->min_p,
                  (double)v->repetition_penalty, (double)v->presence_penalty,
                  (double)v->frequency_penalty);
}

static void put_model(const struct rt_model *model, struct cn_buf *b)
{
    static const char *const states[RT_N_MODEL_STATES] = {"unloaded", "loading", "loaded",
                                                          "failed"};
    struct rt_model_status m;

    rt_model_status(model, &m);
    cn_buf_puts(b, "{\"id\":");
    cn_buf_json_str(b, m.id, strlen(m.id));
    cn_buf_printf(b,
                  ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"conifer\","
                  "\"max_model_len\":",
                  (long long)m.created_s);
    if (m.context)
        cn_buf_printf(b, "%llu", (unsigned long long)m.context);
    else
        cn_buf_puts(b, "null");
    if (m.context && !m.embeds) put_sampling(&m.sampling, b);
    if (m.context && !m.embeds) cn_buf_printf(b, ",\"tools\":\"%s\"", rt_tools_name(m.tools));
    cn_buf_printf(b, ",\"state\":\"%s\",\"pinned\":%s", states[m.state],
                  m.pinned ? "true" : "false");
    if (m.state == RT_FAILED) {
        cn_buf_puts(b, ",\"error\":");
        cn_buf_json_str(b, m.error.message, strlen(m.error.message));
    }
    cn_buf_putc(b, '}');
}

/* With those there are: every key may use, and list, all of them. */
int srv_no_model(const struct srv *s, const json_t *name, struct cn_error *err)
{
    char asked[129] = "";
    size_t n_asked = CN_MIN(json_string_length(name), sizeof asked - 1);
    const size_t most = 5, n = rt_n_models(s->rt);
    char list[256];
    size_t len = 0, i = 0;

    for (; i < CN_MIN(n, most); i++) {
        struct rt_model_status m;
        rt_model_status(rt_model_at(s->rt, i), &m);
        if (len + strlen(m.id) + 3 > sizeof list) break;
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", m.id);
    }
    if (i < n) snprintf(list + len, sizeof list - len, i ? ",..." : "others");
    if (name && !n_asked)
        return cn_fail_param(err, CN_EINVAL, "model",
                             "model is empty: leave it out for the default model; there %s %s",
                             n == 1 ? "is" : "are", list);
    for (size_t k = 0; k < n_asked; k++) /* a NUL is shown, and ends nothing */
        asked[k] = json_string_value(name)[k] ? json_string_value(name)[k] : '?';
    return cn_fail_param(err, CN_EMODEL, "model", "%s%s does not exist; there %s %s",
                         name ? "the model " : "this model", asked, n == 1 ? "is" : "are", list);
}

void srv_page_models(struct srv *s, struct srv_conn *c)
{
    struct cn_buf b;

    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < rt_n_models(s->rt); i++) {
        if (i) cn_buf_putc(&b, ',');
        put_model(rt_model_at(s->rt, i), &b);
    }
    cn_buf_puts(&b, "]}");
    answer(c, 200, "application/json", &b);
}

static int hex(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

/* Whether the percent-encoded s stands for name; its escapes were checked with the target. */
static bool decodes_to(const char *s, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++, name++) {
        char c = s[i];
        if (c == '%') {
            c = (char)(hex(s[i + 1]) * 16 + hex(s[i + 2]));
            i += 2;
        }
        if (!*name || *name != c) return false;
    }
    return *name == 0;
}

static struct rt_model *model_of_path(const struct srv *s, const char *name, size_t n)
{
    for (size_t i = 0; i < rt_n_models(s->rt); i++) {
        struct rt_model_status m;
        rt_model_status(rt_model_at(s->rt, i), &m);
        if (decodes_to(name, n, m.id)) return rt_model_at(s->rt, i);
    }
    return NULL;
}

void srv_page_model(struct srv *s, struct srv_conn *c)
{
    size_t skip = strlen("/v1/models/"), n;
    const char *path = srv_conn_path(c, &n);
    struct rt_model *m = model_of_path(s, path + skip, n - skip);
    struct cn_buf b;

    if (!m) {
        struct cn_error err = {0};
        srv_no_model(s, NULL, &err);
        srv_refused_log(s, c, &err);
        srv_conn_error(c, &err, NULL);
        return;
    }
    cn_buf_init(&b, 0);
    put_model(m, &b);
    answer(c, 200, "application/json", &b);
}

void srv_page_live(struct srv *s, struct srv_conn *c)
{
    static const char live[] = "{\"status\":\"live\"}";
    srv_page_log(s, c, 200, sizeof live - 1, true);
    srv_conn_answer(c, 200, "application/json", live, sizeof live - 1, NULL);
}

const char *srv_not_ready(struct srv *s)
{
    struct rt_health h;

    if (s->draining) return "draining";
    srv_health(s, &h);
    if (h.failed) return "failed";
    if (h.draining) return "draining";
    if (h.stuck) return "no progress";
    return NULL;
}

void srv_page_ready(struct srv *s, struct srv_conn *c)
{
    const char *why = srv_not_ready(s);
    struct cn_buf b;

    cn_buf_init(&b, 0);
    if (why)
        cn_buf_printf(&b, "{\"status\":\"not ready\",\"reason\":\"%s\"}", why);
    else
        cn_buf_puts(&b, "{\"status\":\"ready\"}");
    answer_probe(c, why ? 503 : 200, "application/json", &b);
}

void srv_page_metrics(struct srv *s, struct srv_conn *c)
{
    struct cn_buf b;

    srv_budget_tell(s);
    cn_buf_init(&b, 0);
    /* A key sees the sums and its own tenant; others' names only where the config says so. */
    const struct cfg_tenant *t = cfg_tenants_find(s->tenants, c->tenant);
    bool all = !s->tenants->has_keys || (t && t->metrics == CFG_METRICS_ALL);
    uint64_t known = (uint64_t)cn_metric_get(s->metrics, CN_M_log_lines_dropped);
    cn_metric_add(s->metrics, CN_M_log_lines_dropped, cn_log_dropped() - known);
    if (cn_metrics_render(s->metrics, &b) ||
        cn_metrics_render_tenants(s->metrics, all ? CN_ALL_TENANTS : cfg_slot(c->tenant), &b))
        b.failed = true;
    srv_responses_render(&s->responses, &b);
    cn_process_render(&s->process, s->version, &b);
    answer_probe(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}

void srv_page_version(struct srv *s, struct srv_conn *c)
{
    struct rt_model_status m; /* of the default model */
    struct cn_buf b;

    rt_model_status(rt_model_at(s->rt, 0), &m);
    cn_buf_init(&b, 0);
    cn_buf_printf(&b, "{\"version\":\"%s\",\"model\":", s->version);
    cn_buf_json_str(&b, m.id, strlen(m.id));
    cn_buf_printf(&b, ",\"system_fingerprint\":\"%s\"}", m.fingerprint);
    answer(c, 200, "application/json", &b);
}
