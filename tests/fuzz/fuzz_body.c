/* Fuzz target: request bodies, all the way a text worker takes them: JSON, typed fields, messages,
 * template, tokens. The first byte chooses the endpoint, and with its highest bit a model whose
 * tools are described in the system message. Whatever comes: a whole result or a typed refusal that
 * is the client's fault, never both, never neither. */
#include "tests/server/small_env.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_json(const struct cn_buf *b)
{
    json_t *v = json_loadb(b->data, b->len, JSON_ALLOW_NUL, NULL);
    cn_assert(json_is_object(v));
    json_decref(v);
}

static void check_prompts(const struct srv_call *c)
{
    cn_assert(c->n_prompts > 0);
    for (size_t i = 0; i < c->n_prompts; i++) {
        cn_assert(c->prompts[i].n > 0 && c->prompts[i].n <= c->env->context);
        for (size_t k = 0; k < c->prompts[i].n; k++)
            cn_assert(c->prompts[i].ids[k] < eng_vocab_size(small_env()->vocab));
    }
    cn_assert(c->n >= 1 && c->best_of >= c->n && c->best_of <= (uint32_t)small_env()->max_n);
    cn_assert(eng_sampling_check(&c->sampling, small_env()->vocab, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1) return 0;
    struct srv_call *c = calloc(1, sizeof *c);
    cn_assert(c);
    c->op = (enum srv_op)(data[0] % 6);
    c->env = c->op == SRV_OP_EMBED ? small_embed_env()
             : data[0] & 0x80      ? small_fallback_env()
                                   : small_env();
    cn_buf_init(&c->body, 0);
    cn_buf_append(&c->body, data + 1, n - 1);
    srv_call_work(&c->job);
    if (c->err.code) {
        cn_assert(c->err.message[0]);
        cn_assert(cn_err_info(c->err.code)->status < 500);
    } else if (srv_op_runs(c->op)) {
        check_prompts(c);
    } else {
        check_json(&c->answer);
    }
    srv_call_free(c);
    return 0;
}
