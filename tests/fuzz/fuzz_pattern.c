/* Fuzz target: regular expressions as expressions over bytes. The first byte says whether the whole
 * text must match; then the pattern, up to a byte FE, and a text. A text belongs to the expression
 * of one spelling exactly if it belongs to that of the others. */
#include "engine/text/grammar/spell.h"

#include <stdlib.h>

enum { SEPARATOR = 0xFE, MOST_TEXT = 200, MOST_BYTES = 4 << 20, MOST_WORK = 30000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* 1: it belongs to it; 0: it does not; -1: the pattern is refused, or a limit is reached. */
static int verdict(enum eng_spelling s, bool whole, const char *pattern, size_t n, const char *text,
                   size_t n_text, int *rc)
{
    struct cn_error err = {0};
    struct eng_rx r;
    struct cn_buf b;
    uint32_t x = UINT32_MAX;
    int out = -1;
    if (eng_rx_init(&r, NULL, MOST_BYTES, MOST_WORK)) return -1;
    cn_buf_init(&b, 0);
    *rc = eng_spell_pattern(&r, s, pattern, n, whole, &x, &err);
    cn_assert(*rc ? x == UINT32_MAX && err.code == *rc && err.message[0] : x < r.n_nodes);
    if (s == ENG_SPELL_RAW)
        cn_buf_append(&b, text, n_text);
    else
        cn_buf_json_text(&b, text, n_text);
    if (!*rc && !b.failed) {
        out = eng_rx_matches(&r, x, b.data, b.len);
        if (r.code) out = -1;
    }
    cn_buf_fini(&b);
    eng_rx_fini(&r);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n) return 0;
    bool whole = data[0] & 1;
    const uint8_t *end = memchr(data + 1, SEPARATOR, n - 1);
    size_t n_pattern = end ? (size_t)(end - data) - 1 : n - 1;
    char *pattern = malloc(n_pattern ? n_pattern : 1); /* so that a read past its end is seen */
    const char *text = end ? (const char *)end + 1 : "";
    size_t n_text = end ? CN_MIN(n - n_pattern - 2, (size_t)MOST_TEXT) : 0;
    int got[3], rc[3];
    if (!pattern) return 0;
    memcpy(pattern, data + 1, n_pattern);
    n_text = cn_utf8_valid_len(text, n_text);
    for (int s = 0; s < 3; s++)
        got[s] = verdict((enum eng_spelling)s, whole, pattern, n_pattern, text, n_text, &rc[s]);
    for (int s = 1; s < 3; s++) {
        cn_assert(rc[s] == rc[0] || rc[s] == CN_ELIMIT || rc[0] == CN_ELIMIT);
        cn_assert(got[s] == got[0] || got[s] < 0 || got[0] < 0);
    }
    free(pattern);
    return 0;
}
