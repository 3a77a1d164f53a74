/* /v1/embeddings: what is asked for, and OpenAI's answer from the vectors. Worker threads; works on
 * one call. */
#include "server/call.h"

#include <math.h>
#include <string.h>

int srv_embed_read(struct srv_call *c)
{
    static const char *const formats[] = {"float", "base64", NULL};
    int format = c->p.encoding ? srv_json_one_of(c->p.encoding, formats) : 0;
    unsigned long long size = c->env->embedding_size;

    eng_sampling_defaults(&c->sampling);
    c->n = c->best_of = 1;
    c->base64 = format == 1;
    if (format < 0)
        return cn_fail_param(&c->err, CN_EINVAL, "encoding_format",
                             "encoding_format must be float or base64");
    if (c->p.dimensions > (int64_t)size)
        return cn_fail_param(&c->err, CN_ERANGE, "dimensions",
                             "dimensions is %lld; the vectors of this model have %llu values",
                             (long long)c->p.dimensions, size);
    return srv_priority_read(c);
}

/* The first `n` values, again of length 1. */
static int cut(float *v, size_t n)
{
    double square = 0;

    for (size_t i = 0; i < n; i++)
        square += (double)v[i] * (double)v[i];
    if (square == 0) return CN_ENUMERIC;
    for (size_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] / sqrt(square));
    return 0;
}

static void put_floats(struct cn_buf *b, const float *v, size_t n)
{
    cn_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++)
        cn_buf_printf(b, i ? ",%.9g" : "%.9g", (double)v[i]);
    cn_buf_putc(b, ']');
}

static uint8_t byte_of(const float *v, size_t i)
{
    uint32_t bits;

    memcpy(&bits, &v[i / 4], sizeof bits);
    return (uint8_t)(bits >> i % 4 * 8);
}

/* Base64 of the values as little-endian float32. */
static void put_base64(struct cn_buf *b, const float *v, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = n * 4;

    cn_buf_putc(b, '"');
    for (size_t i = 0; i < bytes; i += 3) {
        size_t have = CN_MIN(bytes - i, (size_t)3);
        uint32_t x = (uint32_t)byte_of(v, i) << 16;
        if (have > 1) x |= (uint32_t)byte_of(v, i + 1) << 8;
        if (have > 2) x |= byte_of(v, i + 2);
        char out[4] = {digits[x >> 18], digits[x >> 12 & 63], have > 1 ? digits[x >> 6 & 63] : '=',
                       have > 2 ? digits[x & 63] : '='};
        cn_buf_append(b, out, sizeof out);
    }
    cn_buf_putc(b, '"');
}

static int put_vector(struct srv_call *c, struct cn_buf *b, size_t i)
{
    size_t size = c->env->embedding_size, n = c->p.dimensions ? (size_t)c->p.dimensions : size;
    float *v = c->prompts[i].vector;
    int rc = !v ? CN_EINTERNAL : n < size ? cut(v, n) : 0;

    if (rc) return rc;
    cn_buf_printf(b, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
    if (c->base64)
        put_base64(b, v, n);
    else
        put_floats(b, v, n);
    cn_buf_putc(b, '}');
    return 0;
}

bool srv_embed_write(struct srv_call *c, struct cn_buf *b)
{
    unsigned long long tokens = 0;

    if (!c->at.item) cn_buf_puts(b, "{\"object\":\"list\",\"data\":[");
    for (; c->at.item < c->n_prompts && b->len < SRV_PIECE && !b->failed; c->at.item++) {
        int rc = put_vector(c, b, c->at.item);
        if (rc) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
        if (rc) return true;
    }
    if (c->at.item < c->n_prompts) return b->failed;
    for (size_t i = 0; i < c->n_prompts; i++)
        tokens += c->prompts[i].n;
    cn_buf_puts(b, "],\"model\":");
    cn_buf_json_str(b, c->env->model_id, strlen(c->env->model_id));
    cn_buf_printf(b, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", tokens, tokens);
    return true;
}
