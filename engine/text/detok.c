/* engine/text: from ids to text, one token at a time. The output is valid UTF-8 at every moment:
 * the start of a character waits in `held` for its rest, and what can no longer become a character
 * is U+FFFD, one for each maximal part that could have begun one.
 * One object per stream, one thread at a time. */
#include "engine/text/vocab_impl.h"

void eng_detok_init(struct eng_detok *d, const struct eng_vocab *v, bool special, bool strip_prefix)
{
    *d = (struct eng_detok){
        .vocab = v,
        .special = special,
        .at_start = strip_prefix && v->model == ENG_MODEL_SPM && v->space_prefix,
    };
}

/* How many bytes at s (not a valid character) count as one error. */
static size_t error_len(const char *s, size_t n)
{
    for (size_t k = CN_MIN(n, 3); k > 1; k--) {
        if (cn_utf8_tail_len(s, k) == k) return k;
    }
    return 1;
}

/* Appends s, with replacements; what its end may still become is kept if `more`. */
static int put(struct eng_detok *d, const char *s, size_t n, bool more, struct cn_buf *out)
{
    int rc = 0;
    while (n > 0 && rc == 0) {
        size_t good = cn_utf8_valid_len(s, n);
        rc = cn_buf_append(out, s, good);
        s += good;
        n -= good;
        if (rc || n == 0) break;
        if (more && n <= 3 && cn_utf8_tail_len(s, n) == n) {
            memcpy(d->held, s, n);
            d->n_held = (uint8_t)n;
            break;
        }
        size_t bad = error_len(s, n);
        rc = cn_buf_append(out, "\xEF\xBF\xBD", 3);
        s += bad;
        n -= bad;
    }
    return rc;
}

int eng_detok_push(struct eng_detok *d, uint32_t id, struct cn_buf *out)
{
    if (id >= eng_vocab_size(d->vocab)) return CN_ERANGE;
    struct eng_str s = eng_vocab_piece(d->vocab, id, d->special);
    if (d->at_start && !(eng_vocab_is_control(d->vocab, id))) {
        d->at_start = false;
        if (s.n > 0 && s.p[0] == ' ') {
            s.p++;
            s.n--;
        }
    }
    if (d->n_held == 0 && (d->vocab->flags[id] & ENG_TF_VALID)) return cn_buf_append(out, s.p, s.n);
    /* The held bytes and as many of the new ones as a character may need go first. */
    if (d->n_held > 0 && s.n > 0) {
        char joined[8];
        size_t held = d->n_held, room = CN_MIN(s.n, sizeof joined - held), used = 0;
        memcpy(joined, d->held, held);
        memcpy(joined + held, s.p, room);
        uint32_t cp;
        size_t len = cn_utf8_decode(joined, held + room, &cp);
        d->n_held = 0;
        if (len > held) {
            used = len - held;
            int rc = cn_buf_append(out, joined, len);
            if (rc) return rc;
        } else if (room == s.n && cn_utf8_tail_len(joined, held + room) == held + room) {
            memcpy(d->held, joined, held + room);
            d->n_held = (uint8_t)(held + room);
            return 0;
        } else {
            int rc = cn_buf_append(out, "\xEF\xBF\xBD", 3);
            if (rc) return rc;
            used = error_len(joined, held + room);
            used = used > held ? used - held : 0;
        }
        s.p += used;
        s.n -= used;
    }
    return put(d, s.p, s.n, true, out);
}

int eng_detok_flush(struct eng_detok *d, struct cn_buf *out)
{
    char held[4];
    size_t n = d->n_held;
    memcpy(held, d->held, n);
    d->n_held = 0;
    return put(d, held, n, false, out);
}
