/* Says how the HTTP layer frames what it reads, for tests that compare it with other servers.
 * Standard input: conversations, each a 32-bit length (little-endian) and its bytes, then the end
 * of the stream; a length of 0 ends. Standard output: a line for each:
 *     METHOD TARGET BODY-AS-HEX|...;END
 * every request that was read whole, and how it ended: the status of a refusal, "closed" after an
 * answer that closes, "body" or "head" within one, "idle" between two. */
#include "server/http.h"

#include "tests/server/fake_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    return 0;
}

static void on_request(void *ctx, struct srv_conn *c)
{
    printf("%s %.*s ", llhttp_method_name(srv_conn_method(c)), (int)c->head->target.len,
           c->head->target.data);
    for (size_t i = 0; i < c->body.len; i++)
        printf("%02x", (unsigned char)c->body.data[i]);
    putchar('|');
    srv_conn_answer(c, 200, "text/plain", "", 0, NULL);
}

static void on_gone(void *ctx, struct srv_conn *c)
{
}

static void on_sent(void *ctx, struct srv_conn *c)
{
}

static void on_closed(void *ctx)
{
}

static const struct srv_http_handler handler = {on_head, on_request, on_gone, on_sent, on_closed};

/* The status of the last answer, when it is a refusal. */
static int refusal(const struct cn_buf *sent)
{
    int status = 0;

    for (size_t i = 0; i + 12 < sent->len; i++)
        if (!memcmp(sent->data + i, "HTTP/1.1 ", 9)) status = atoi(sent->data + i + 9);
    return status >= 400 ? status : 0;
}

static const char *ended(const struct srv_http *h)
{
    const struct srv_conn *c = h->conns;

    if (!c || c->phase == SRV_LINGER || c->phase == SRV_CLOSED) return "closed";
    if (c->phase == SRV_BODY) return "body";
    return c->phase == SRV_HEADING && c->started ? "head" : "idle";
}

static void converse(const char *data, size_t n, unsigned piece)
{
    struct srv_http h;
    struct fake_stream *f = fake_new();

    srv_http_init(&h, &handler, NULL, NULL);
    h.limits = (struct srv_http_limits){65536, 1000000000, 1000000000, 1000000000, 1000000000, 0};
    if (!srv_conn_new(&h, &f->base)) abort();
    for (size_t i = 0; i < n && !f->closing; i += piece) {
        fake_feed(f, data + i, CN_MIN((size_t)piece, n - i));
        while (srv_http_work(&h)) {
        }
        fake_turn(f);
    }
    const char *end = f->closing ? "closed" : ended(&h);
    int status = refusal(&f->sent);
    if (status)
        printf(";%d\n", status);
    else
        printf(";%s\n", end);
    srv_http_close_all(&h);
    fake_turn(f);
    fake_free(f);
}

int main(void)
{
    uint8_t head[4];
    unsigned turn = 0;

    while (fread(head, 1, 4, stdin) == 4) {
        size_t n = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        char *data = malloc(n + 1);
        if (!n || !data || fread(data, 1, n, stdin) != n) {
            free(data);
            break;
        }
        converse(data, n, turn++ % 3 ? (unsigned)n : 1 + turn % 7);
        free(data);
    }
    return ferror(stdin) ? 1 : 0;
}
