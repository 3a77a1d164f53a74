/* Strings of the chat template interpreter: bytes with their origin. A mixed string finds the
 * origins of its bytes in the runs of the buffer it lies in, so that slices copy nothing. */
#include "engine/text/jinja/value.h"

#include <stdlib.h>
#include <string.h>

struct eng_jbuf *eng_j_buf(struct eng_jctx *c, size_t hint)
{
    struct eng_jbuf *b = eng_j_alloc(c, sizeof(*b));
    if (hint) b->data = eng_j_alloc(c, hint);
    b->cap = hint;
    return b;
}

/* The rendering's own output lies on the heap: it grows without leaving copies in the arena. */
static void *heap_grow(struct eng_jctx *c, void *p, size_t old_bytes, size_t new_bytes)
{
    size_t used = c->arena.used + c->heap_bytes;
    if (new_bytes - old_bytes > c->max_memory || used > c->max_memory - (new_bytes - old_bytes))
        eng_j_fail(c, CN_ELIMIT, "needs more than %zu bytes of memory", c->max_memory);
    void *q = cn_realloc_array(p, new_bytes, 1);
    if (!q) eng_j_fail(c, CN_ENOMEM, "out of memory");
    c->heap_bytes += new_bytes - old_bytes;
    return q;
}

static void buf_room(struct eng_jctx *c, struct eng_jbuf *b, size_t n)
{
    if (n <= b->cap - b->used) return;
    size_t need;
    if (__builtin_add_overflow(b->used, n, &need) || need > c->max_out)
        eng_j_fail(c, CN_ELIMIT, "a text is longer than %zu bytes", c->max_out);
    size_t cap = CN_MAX(CN_MAX(need, b->cap * 2), (size_t)32);
    cap = CN_MIN(cap, c->max_out + 32);
    if (b->heap) {
        b->data = heap_grow(c, b->data, b->cap, cap);
    } else {
        char *data = eng_j_alloc(c, cap);
        if (b->used) memcpy(data, b->data, b->used);
        b->data = data;
    }
    b->cap = cap;
}

static void run_room(struct eng_jctx *c, struct eng_jbuf *b)
{
    if (b->n_runs < b->cap_runs) return;
    if (!b->heap) {
        b->runs = eng_j_room(c, b->runs, b->n_runs, &b->cap_runs, sizeof(*b->runs));
        return;
    }
    size_t cap = b->cap_runs ? b->cap_runs * 2 : 16;
    b->runs = heap_grow(c, b->runs, b->cap_runs * sizeof(*b->runs), cap * sizeof(*b->runs));
    b->cap_runs = cap;
}

void eng_j_put(struct eng_jctx *c, struct eng_jbuf *b, const char *p, size_t n, bool trusted)
{
    if (!n) return;
    eng_j_work(c, n);
    if (n > b->cap - b->used) buf_room(c, b, n);
    if (b->used + n > c->max_out)
        eng_j_fail(c, CN_ELIMIT, "a text is longer than %zu bytes", c->max_out);
    bool same = b->n_runs && b->runs[b->n_runs - 1].trusted == trusted;
    if (!same) run_room(c, b);
    memcpy(b->data + b->used, p, n);
    b->used += n;
    if (!same) b->runs[b->n_runs++].trusted = trusted;
    b->runs[b->n_runs - 1].end = b->used;
}

void eng_j_putz(struct eng_jctx *c, struct eng_jbuf *b, const char *p, bool trusted)
{
    eng_j_put(c, b, p, strlen(p), trusted);
}

void eng_j_put_cp(struct eng_jctx *c, struct eng_jbuf *b, uint32_t cp, bool trusted)
{
    char utf8[4];
    eng_j_put(c, b, utf8, cn_utf8_encode(cp, utf8), trusted);
}

void eng_j_put_fill(struct eng_jctx *c, struct eng_jbuf *b, char ch, size_t n, bool trusted)
{
    char block[64];
    memset(block, ch, sizeof(block));
    for (; n > sizeof(block); n -= sizeof(block))
        eng_j_put(c, b, block, sizeof(block), trusted);
    eng_j_put(c, b, block, n, trusted);
}

bool eng_j_run(const struct eng_jstr *s, size_t off, size_t *end)
{
    if (s->origin != J_MIXED) {
        *end = s->n;
        return s->origin == J_TRUSTED;
    }
    size_t base = (size_t)(s->p - s->buf->data), lo = 0, hi = s->buf->n_runs - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->buf->runs[mid].end > base + off)
            hi = mid;
        else
            lo = mid + 1;
    }
    *end = CN_MIN(s->buf->runs[lo].end - base, s->n);
    return s->buf->runs[lo].trusted;
}

void eng_j_put_sub(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t off,
                   size_t n)
{
    for (size_t to = off + n, end; off < to; off = end) {
        bool trusted = eng_j_run(s, off, &end);
        end = CN_MIN(end, to);
        eng_j_put(c, b, s->p + off, end - off, trusted);
    }
}

void eng_j_put_str(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s)
{
    eng_j_put_sub(c, b, s, 0, s->n);
}

static struct eng_jstr *make(struct eng_jctx *c, const char *p, size_t n, uint8_t origin)
{
    struct eng_jstr *s = eng_j_alloc(c, sizeof(*s));
    *s = (struct eng_jstr){.p = p ? p : "", .n = n, .cps = SIZE_MAX, .origin = origin};
    return s;
}

/* The part [off, off+n) of a buffer as a string. */
static const struct eng_jstr *part(struct eng_jctx *c, const struct eng_jbuf *b, size_t off,
                                   size_t n)
{
    struct eng_jstr *s = make(c, b->data + off, n, J_MIXED);
    s->buf = b;
    size_t end;
    if (!n) {
        s->origin = J_TRUSTED;
        return s;
    }
    bool trusted = eng_j_run(s, 0, &end);
    if (end == n) s->origin = trusted ? J_TRUSTED : J_CLIENT;
    return s;
}

const struct eng_jstr *eng_j_done(struct eng_jctx *c, const struct eng_jbuf *b)
{
    return b->used ? part(c, b, 0, b->used) : make(c, "", 0, J_TRUSTED);
}

const struct eng_jstr *eng_j_new(struct eng_jctx *c, const char *p, size_t n, bool trusted)
{
    return make(c, p, n, trusted ? J_TRUSTED : J_CLIENT);
}

const struct eng_jstr *eng_j_copy(struct eng_jctx *c, const char *p, size_t n, bool trusted)
{
    char *q = eng_j_alloc(c, n + 1);
    if (n) memcpy(q, p, n);
    return eng_j_new(c, q, n, trusted);
}

const struct eng_jstr *eng_j_lit(struct eng_jctx *c, const char *z)
{
    return make(c, z, strlen(z), J_TRUSTED);
}

const struct eng_jstr *eng_j_sub(struct eng_jctx *c, const struct eng_jstr *s, size_t off, size_t n)
{
    if (off == 0 && n == s->n) return s;
    struct eng_jstr *r;
    if (s->origin == J_MIXED) {
        r = (struct eng_jstr *)part(c, s->buf, (size_t)(s->p - s->buf->data) + off, n);
    } else {
        r = make(c, s->p + off, n, n ? s->origin : J_TRUSTED);
        r->buf = s->buf;
    }
    r->markup = s->markup;
    if (s->cps == s->n) r->cps = n;
    return r;
}

const struct eng_jstr *eng_j_as_markup(struct eng_jctx *c, const struct eng_jstr *s, bool markup)
{
    if (s->markup == markup) return s;
    struct eng_jstr *r = eng_j_alloc(c, sizeof(*r));
    *r = *s;
    r->markup = markup;
    return r;
}

const struct eng_jstr *eng_j_concat(struct eng_jctx *c, const struct eng_jstr *a,
                                    const struct eng_jstr *b)
{
    if (a->markup != b->markup && (a->markup ? b : a)->n) {
        if (a->markup)
            b = eng_j_escape(c, b);
        else
            a = eng_j_escape(c, a);
    }
    bool markup = a->markup || b->markup;
    if (!b->n) return eng_j_as_markup(c, a, markup);
    if (!a->n) return eng_j_as_markup(c, b, markup);
    struct eng_jbuf *buf = (struct eng_jbuf *)a->buf;
    size_t off = 0;
    if (buf && !buf->heap && a->p + a->n == buf->data + buf->used && b->n <= buf->cap - buf->used) {
        off = (size_t)(a->p - buf->data); /* a ends where its buffer ends: extend it in place */
    } else {
        /* Room for as much again, so that a loop of appends copies each byte a few times only. */
        buf = eng_j_buf(c, CN_MIN(a->n + b->n, c->max_out) + (a->n > 64 ? a->n : 0) + b->n);
        eng_j_put_str(c, buf, a);
    }
    eng_j_put_str(c, buf, b);
    struct eng_jstr *r = (struct eng_jstr *)part(c, buf, off, a->n + b->n);
    r->markup = markup;
    return r;
}

const struct eng_jstr *eng_j_escape(struct eng_jctx *c, const struct eng_jstr *s)
{
    static const char *const with[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    if (s->markup) return s;
    struct eng_jbuf *b = eng_j_buf(c, s->n + s->n / 8);
    size_t from = 0;
    for (size_t i = 0, end = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        if (ch >= 128 || !with[ch]) continue;
        eng_j_put_sub(c, b, s, from, i - from);
        eng_j_putz(c, b, with[ch], eng_j_run(s, i, &end));
        from = i + 1;
    }
    eng_j_put_sub(c, b, s, from, s->n - from);
    return eng_j_as_markup(c, eng_j_done(c, b), true);
}

/* ---- code points ----------------------------------------------------------------------------- */

size_t eng_j_cps(const struct eng_jstr *s)
{
    if (s->cps == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++)
            n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
        ((struct eng_jstr *)s)->cps = n; /* a cache: only strings of one rendering get here */
    }
    return s->cps;
}

size_t eng_j_off(const struct eng_jstr *s, size_t cp_index)
{
    size_t cps = eng_j_cps(s);
    if (cp_index >= cps) return s->n;
    if (cps == s->n) return cp_index;
    size_t i = 0;
    for (;; i++)
        if (((unsigned char)s->p[i] & 0xc0) != 0x80 && cp_index-- == 0) return i;
}

size_t eng_j_index_of(const struct eng_jstr *s, size_t off)
{
    if (eng_j_cps(s) == s->n) return off;
    size_t n = 0;
    for (size_t i = 0; i < off; i++)
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
    return n;
}

uint32_t eng_j_cp_next(const struct eng_jstr *s, size_t *off)
{
    const unsigned char *p = (const unsigned char *)s->p + *off;
    if (p[0] < 0x80) {
        *off += 1;
        return p[0];
    }
    uint32_t cp = 0xfffd;
    size_t n = cn_utf8_decode((const char *)p, s->n - *off, &cp);
    *off += n ? n : 1;
    return cp;
}

/* ---- comparing and finding ------------------------------------------------------------------- */

bool eng_j_str_eq(const struct eng_jstr *a, const struct eng_jstr *b)
{
    return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

bool eng_j_str_is(const struct eng_jstr *s, const char *z)
{
    return s->n == strlen(z) && memcmp(s->p, z, s->n) == 0;
}

/* By code point, which for UTF-8 is by byte. */
int eng_j_str_cmp(const struct eng_jstr *a, const struct eng_jstr *b)
{
    int d = memcmp(a->p, b->p, CN_MIN(a->n, b->n));
    return d ? d : (a->n > b->n) - (a->n < b->n);
}

size_t eng_j_find(const struct eng_jstr *s, size_t from, size_t to, const struct eng_jstr *needle)
{
    if (from > to || needle->n > to - from) return SIZE_MAX;
    if (!needle->n) return from;
    /* memmem takes linear time whatever the texts; AddressSanitizer's looks at all of them each
     * time, which made replacing one character by others quadratic. */
    const char *q = needle->n == 1 ? memchr(s->p + from, needle->p[0], to - from)
                                   : memmem(s->p + from, to - from, needle->p, needle->n);
    return q ? (size_t)(q - s->p) : SIZE_MAX;
}

size_t eng_j_rfind(struct eng_jctx *c, const struct eng_jstr *s, size_t from, size_t to,
                   const struct eng_jstr *needle)
{
    if (from > to || needle->n > to - from) return SIZE_MAX;
    for (size_t i = to - needle->n;; i--) {
        if (memcmp(s->p + i, needle->p, needle->n) == 0) return i;
        if (i == from) return SIZE_MAX;
        eng_j_work(c, 1 + needle->n / 8); /* quadratic at worst: the clock stops it */
    }
}
