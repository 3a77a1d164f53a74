#include "server/pieces.h"

size_t srv_text_piece(const char *s, size_t n, size_t most)
{
    size_t k = n;

    if (n <= most) return n;
    for (k = most; k > most - CN_MIN(most, (size_t)3) && ((unsigned char)s[k] & 0xC0) == 0x80;
         k--) {
    }
    return k ? k : most;
}

bool srv_put_text(struct cn_buf *b, struct srv_cursor *c, const char *s, size_t n, size_t most)
{
    size_t room = b->len < most ? most - b->len : 1;

    if (!c->at) cn_buf_putc(b, '"');
    size_t k = srv_text_piece(s + c->at, n - c->at, CN_MAX(room / 2, (size_t)64));
    cn_buf_json_text(b, s + c->at, k);
    c->at += k;
    if (c->at < n) return false;
    cn_buf_putc(b, '"');
    return true;
}

bool srv_put_ids(struct cn_buf *b, struct srv_cursor *c, const uint32_t *ids, size_t n, size_t most)
{
    for (; c->at < n && b->len < most; c->at++)
        cn_buf_printf(b, c->at ? ",%u" : "%u", ids[c->at]);
    return c->at == n;
}
