/* Fuzz target: the UTF-8 functions agree with each other, and what cn_buf_json_str writes is JSON
 * that reads back as the input with what is invalid replaced. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The input with U+FFFD for each longest start of a sequence that does not go on; NUL-safe. */
static void replaced(const char *s, size_t n, struct cn_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = cn_utf8_decode(s + i, n - i, &cp);

        if (len) {
            char again[4];
            cn_assert(cn_utf8_encode(cp, again) == len && !memcmp(again, s + i, len));
            cn_buf_append(out, s + i, len);
            i += len;
            continue;
        }
        cn_buf_puts(out, "\xef\xbf\xbd");
        size_t k = CN_MIN(n - i, (size_t)3);
        while (k > 1 && cn_utf8_tail_len(s + i, k) != k)
            k--;
        i += k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *s = (const char *)data;
    struct cn_buf json, want;
    size_t valid = cn_utf8_valid_len(s, n), tail = cn_utf8_tail_len(s, n), at = 0;
    uint32_t cp;

    while (at < valid) { /* the prefix is made of whole characters, and the next one is none */
        size_t len = cn_utf8_decode(s + at, valid - at, &cp);
        cn_assert(len);
        at += len;
    }
    cn_assert(valid == n || cn_utf8_decode(s + valid, n - valid, &cp) == 0);
    cn_assert(tail <= 3 && valid <= n - tail);
    if (valid == n) cn_assert(tail == 0);

    cn_buf_init(&json, 0);
    cn_buf_init(&want, 0);
    cn_assert(cn_buf_json_str(&json, s, n) == CN_OK);
    replaced(s, n, &want);
    json_t *back = json_loadb(json.data, json.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    cn_assert(back && json_string_length(back) == want.len);
    cn_assert(!want.len || !memcmp(json_string_value(back), want.data, want.len));
    json_decref(back);
    cn_buf_fini(&json);
    cn_buf_fini(&want);
    return 0;
}
