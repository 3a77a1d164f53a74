/* The log line of a request that is over. Loop thread only; reads one record. Nothing that a client
 * wrote is in it: names are the config's and the model's, everything else is numbers. */
#include "server/request.h"

#include <stdio.h>

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

void srv_req_log(const struct srv_req *q)
{
    const struct srv *s = q->srv;
    const struct srv_call *c = q->call;
    uint64_t now = cn_now_ns();
    char ttft[32] = "-";

    if (s->quiet || !s->rt) return; /* what ends after the runtime did is nobody's answer */
    if (q->first_ns)
        snprintf(ttft, sizeof ttft, "%.1f", (double)(q->first_ns - c->received_ns) / 1e6);
    cn_log(CN_LOG_INFO, "server",
           "request tenant=%s endpoint=%s model=%s status=%d finish=%s prompt_tokens=%llu "
           "cached_tokens=%llu completion_tokens=%llu ttft_ms=%s total_ms=%.1f",
           q->tenant < s->cfg->n_tenants ? s->cfg->tenants[q->tenant].name : "-", endpoint(c->op),
           q->code == CN_EMODEL ? "-" : c->env->model_id, q->code ? cn_err_info(q->code)->status : 200, ending(q),
           (unsigned long long)q->usage.prompt_tokens, (unsigned long long)q->usage.cached_tokens,
           (unsigned long long)q->usage.completion_tokens, ttft,
           (double)(now - c->received_ns) / 1e6);
}
