/* Memory: checked allocation, arenas, growing byte buffers.
 * An arena or buffer belongs to one thread at a time. Sizes come from clients and files, so every
 * product and sum is checked, and running out is an error, never an abort. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *cn_calloc(size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return bytes ? calloc(n, size) : calloc(1, 1);
}

void *cn_malloc_array(size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return malloc(bytes ? bytes : 1);
}

void *cn_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

int cn_grow(void *p, size_t *cap, size_t need, size_t size)
{
    void *old, *grown;
    size_t want = *cap;

    if (need <= *cap) return CN_OK;
    while (want < need) {
        if (want > SIZE_MAX / 2) {
            want = need;
            break;
        }
        want = want ? want * 2 : 8;
    }
    memcpy(&old, p, sizeof old); /* p is the address of a pointer of any type */
    grown = cn_realloc_array(old, want, size);
    if (!grown) return CN_ENOMEM;
    memcpy(p, &grown, sizeof grown);
    *cap = want;
    return CN_OK;
}

/* ---- arena ----------------------------------------------------------------------------------- */

#define ARENA_ALIGN 16
#define CHUNK_MIN   4096
#define CHUNK_MAX   (256 * 1024)

struct cn_arena_chunk {
    struct cn_arena_chunk *next;
    size_t size, used; /* bytes of data, and how many of them are given out */
    _Alignas(ARENA_ALIGN) char data[];
};

void cn_arena_init(struct cn_arena *a, size_t max_bytes)
{
    a->chunks = NULL;
    a->used = 0;
    a->max = max_bytes;
}

void cn_arena_fini(struct cn_arena *a)
{
    if (!a) return;
    while (a->chunks) {
        struct cn_arena_chunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
    a->used = 0;
}

/* A chunk with room for `size` bytes. A large piece gets a chunk of its own, put behind the
 * current one so that the room left there is still used. */
static struct cn_arena_chunk *arena_chunk(struct cn_arena *a, size_t size)
{
    struct cn_arena_chunk *head = a->chunks, *c;
    size_t room = head ? CN_MIN(head->size * 2, (size_t)CHUNK_MAX) : CHUNK_MIN;
    bool large = size > room / 2;

    if (large) room = size;
    if (room > SIZE_MAX - sizeof *c) return NULL;
    c = malloc(sizeof *c + room);
    if (!c) return NULL;
    c->size = room;
    c->used = 0;
    if (large && head) {
        c->next = head->next;
        head->next = c;
    } else {
        c->next = head;
        a->chunks = c;
    }
    return c;
}

void *cn_arena_alloc(struct cn_arena *a, size_t size)
{
    struct cn_arena_chunk *c = a->chunks;
    uint64_t bytes;
    void *p;

    if (!cn_align_u64(size ? size : 1, ARENA_ALIGN, &bytes) || bytes > SIZE_MAX) return NULL;
    if (a->max && (a->used > a->max || bytes > a->max - a->used)) return NULL;
    if (!c || c->size - c->used < bytes) {
        c = arena_chunk(a, (size_t)bytes);
        if (!c) return NULL;
    }
    p = c->data + c->used;
    c->used += (size_t)bytes;
    a->used += (size_t)bytes;
    return memset(p, 0, (size_t)bytes);
}

void *cn_arena_copy(struct cn_arena *a, const void *p, size_t size)
{
    void *copy = cn_arena_alloc(a, size);

    if (copy && size) memcpy(copy, p, size);
    return copy;
}

char *cn_arena_strn(struct cn_arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? cn_arena_alloc(a, n + 1) : NULL;

    if (copy && n) memcpy(copy, s, n);
    return copy;
}

/* ---- buffer ---------------------------------------------------------------------------------- */

void cn_buf_init(struct cn_buf *b, size_t max_bytes)
{
    memset(b, 0, sizeof *b);
    b->max = max_bytes;
}

void cn_buf_init_for(struct cn_buf *b, size_t max_bytes, struct cn_account *account)
{
    cn_buf_init(b, max_bytes);
    b->account = account;
}

/* What the account pays for a capacity. */
static size_t charge(const struct cn_buf *b, size_t cap)
{
    return cap > b->included ? cap - b->included : 0;
}

int cn_buf_rebill(struct cn_buf *b, struct cn_account *account)
{
    int rc = account == b->account ? 0 : cn_account_take(account, charge(b, b->cap));

    if (rc || account == b->account) return rc;
    cn_account_give(b->account, charge(b, b->cap));
    b->account = account;
    return 0;
}

void cn_buf_fini(struct cn_buf *b)
{
    if (!b) return;
    free(b->data);
    cn_account_give(b->account, charge(b, b->cap));
    b->data = NULL;
    b->len = b->cap = 0;
}

void cn_buf_reset(struct cn_buf *b)
{
    b->len = 0;
    b->failed = false;
    b->code = 0;
}

/* Room for `total` bytes; the cap is checked by the caller (the NUL of cstr is not under it). */
static int buf_room(struct cn_buf *b, size_t total)
{
    size_t want = b->cap > SIZE_MAX / 2 ? total : CN_MAX(b->cap * 2, (size_t)64);
    char *grown;

    if (total <= b->cap) return CN_OK;
    if (b->max && want > b->max) want = b->max;
    if (want < total) want = total;
    size_t had = charge(b, b->cap);
    int rc = cn_account_take(b->account, charge(b, want) - had);
    if (rc && want > total) rc = cn_account_take(b->account, charge(b, want = total) - had);
    if (rc) return rc;
    grown = realloc(b->data, want);
    if (!grown) {
        cn_account_give(b->account, charge(b, want) - had);
        return CN_ENOMEM;
    }
    b->data = grown;
    b->cap = want;
    return CN_OK;
}

int cn_buf_reserve(struct cn_buf *b, size_t extra)
{
    int rc = CN_OK;

    if (b->failed) return cn_buf_code(b);
    if (extra > SIZE_MAX - 1 - b->len || (b->max && b->len + extra > b->max))
        rc = CN_ELIMIT;
    else
        rc = buf_room(b, b->len + extra);
    if (rc) {
        b->failed = true;
        b->code = rc;
    }
    return rc;
}

int cn_buf_append(struct cn_buf *b, const void *p, size_t n)
{
    int rc = cn_buf_reserve(b, n);

    if (rc || n == 0) return rc;
    memcpy(b->data + b->len, p, n);
    b->len += n;
    return CN_OK;
}

int cn_buf_puts(struct cn_buf *b, const char *s)
{
    return cn_buf_append(b, s, strlen(s));
}

int cn_buf_putc(struct cn_buf *b, char c)
{
    return cn_buf_append(b, &c, 1);
}

int cn_buf_printf(struct cn_buf *b, const char *fmt, ...)
{
    char small[256], *text = small;
    va_list ap, again;
    int n, rc;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof small) {
        text = malloc((size_t)n + 1);
        if (text) n = vsnprintf(text, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    if (n < 0 || !text) {
        b->failed = true;
        return b->code = CN_ENOMEM;
    }
    rc = cn_buf_append(b, text, (size_t)n);
    if (text != small) free(text);
    return rc;
}

/* How many bytes one U+FFFD stands for: the longest start of a valid sequence, at least one. */
static size_t bad_len(const char *s, size_t n)
{
    for (size_t k = CN_MIN(n, (size_t)3); k > 1; k--)
        if (cn_utf8_tail_len(s, k) == k) return k;
    return 1;
}

static void put_escaped(struct cn_buf *b, unsigned char c)
{
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* the character, then its escape */

    for (size_t i = 0; i + 1 < sizeof names; i += 2) {
        if ((unsigned char)names[i] == c) {
            char two[2] = {'\\', names[i + 1]};
            cn_buf_append(b, two, 2);
            return;
        }
    }
    cn_buf_printf(b, "\\u%04x", c);
}

int cn_buf_json_text(struct cn_buf *b, const char *s, size_t n)
{
    size_t plain = 0, i = 0;

    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        size_t len = 1;
        bool bad = false;

        if (c >= 0x80) {
            len = cn_utf8_decode(s + i, n - i, &cp);
            bad = len == 0;
            if (bad) len = bad_len(s + i, n - i);
        }
        if (bad || c < 0x20 || c == '"' || c == '\\') {
            cn_buf_append(b, s + plain, i - plain);
            if (bad)
                cn_buf_puts(b, "\xef\xbf\xbd");
            else
                put_escaped(b, c);
            plain = i + len;
        }
        i += len;
    }
    cn_buf_append(b, s + plain, n - plain);
    return cn_buf_code(b);
}

int cn_buf_json_str(struct cn_buf *b, const char *s, size_t n)
{
    size_t start = b->len;

    cn_buf_putc(b, '"');
    cn_buf_json_text(b, s, n);
    cn_buf_putc(b, '"');
    if (b->failed) b->len = start;
    return cn_buf_code(b);
}

const char *cn_buf_cstr(struct cn_buf *b)
{
    if (b->failed || buf_room(b, b->len + 1)) return NULL;
    b->data[b->len] = '\0';
    return b->data;
}
