/* Fuzz target: what a server sends the load generator. Events must be the same however the bytes
 * are cut; the scan of their JSON must stay inside them. The first byte says where to cut. */
#include "loadtest/loadtest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool keep(void *arg, const char *p, size_t n)
{
    struct cn_buf *out = arg;

    cn_buf_append(out, &n, sizeof n);
    cn_buf_append(out, p, n);
    return true;
}

/* A copy of exactly n bytes, so that a sanitizer sees a byte read behind them. */
static void scan(const uint8_t *data, size_t n)
{
    char *p = malloc(n ? n : 1);
    struct lt_event e;

    if (!p) return;
    memcpy(p, data, n);
    if (lt_event_read(p, n, &e)) cn_assert(strlen(e.message) < sizeof e.message);
    free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct lt_sse whole, cut;
    struct cn_buf a, b;
    size_t at;

    if (!n) return 0;
    at = data[0];
    data++;
    n--;
    scan(data, n);
    lt_sse_init(&whole);
    lt_sse_init(&cut);
    cn_buf_init(&a, 0);
    cn_buf_init(&b, 0);
    cn_assert(lt_sse_feed(&whole, (const char *)data, n, keep, &a) == CN_OK);
    for (size_t i = 0; i < n; i += at % 7 + 1)
        cn_assert(lt_sse_feed(&cut, (const char *)data + i, CN_MIN(n - i, at % 7 + 1), keep, &b) ==
                  CN_OK);
    cn_assert(a.len == b.len && (!a.len || !memcmp(a.data, b.data, a.len)));
    cn_buf_fini(&a);
    cn_buf_fini(&b);
    lt_sse_fini(&whole);
    lt_sse_fini(&cut);
    return 0;
}
