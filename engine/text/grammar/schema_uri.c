/* schema: references to URIs, resolved by RFC 3986, section 5. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

/* The parts of a URI without a fragment; p NULL: it has no such part. */
struct uri { struct eng_str scheme, authority, path, query; };

static struct uri split(const char *s)
{
    struct uri u = {0};
    size_t n = strcspn(s, ":/?#");
    if (s[n] == ':' && n) {
        u.scheme = (struct eng_str){s, n};
        s += n + 1;
    }
    if (s[0] == '/' && s[1] == '/') {
        n = strcspn(s + 2, "/?#");
        u.authority = (struct eng_str){s + 2, n};
        s += n + 2;
    }
    n = strcspn(s, "?#");
    u.path = (struct eng_str){s, n};
    s += n;
    if (*s == '?') u.query = (struct eng_str){s + 1, strcspn(s + 1, "#")};
    return u;
}

/* Appends the path without its `.` and `..`. from: where it begins in out. */
static void put_path(struct cn_buf *out, size_t from, struct eng_str path)
{
    const char *p = path.p, *end = path.p + path.n;
    while (p < end) {
        const char *slash = memchr(p, '/', (size_t)(end - p));
        const char *stop = slash ? slash : end;
        size_t n = (size_t)(stop - p);
        bool up = n == 2 && p[0] == '.' && p[1] == '.';
        if (up && out->len > from) { /* the last segment goes, and the slash in front of it stays */
            size_t len = out->len - (out->data[out->len - 1] == '/');
            while (len > from && out->data[len - 1] != '/')
                len--;
            out->len = CN_MAX(len, from);
            if (out->len == from && path.p[0] == '/') cn_buf_putc(out, '/');
        } else if (!up && !(n == 1 && p[0] == '.')) {
            cn_buf_append(out, p, n);
            if (slash) cn_buf_putc(out, '/');
        }
        p = slash ? slash + 1 : end;
    }
}

static void put_merged(struct cn_buf *out, const struct uri *base, struct eng_str path)
{
    struct cn_buf b;
    size_t n = base->path.n;
    cn_buf_init(&b, 0);
    while (n && base->path.p[n - 1] != '/')
        n--;
    if (n)
        cn_buf_append(&b, base->path.p, n);
    else if (base->authority.p)
        cn_buf_putc(&b, '/');
    cn_buf_append(&b, path.p, path.n);
    if (b.failed)
        out->failed = true;
    else
        put_path(out, out->len, (struct eng_str){b.len ? b.data : "", b.len});
    cn_buf_fini(&b);
}

static void put_uri(struct cn_buf *out, const struct uri *b, const struct uri *r)
{
    bool whole = r->scheme.p, host = whole || r->authority.p;
    struct eng_str scheme = whole ? r->scheme : b->scheme;
    struct eng_str authority = host ? r->authority : b->authority, query = r->query;
    if (scheme.p) cn_buf_printf(out, "%.*s:", (int)scheme.n, scheme.p);
    if (authority.p) cn_buf_printf(out, "//%.*s", (int)authority.n, authority.p);
    if (host || (r->path.n && r->path.p[0] == '/')) {
        put_path(out, out->len, r->path);
    } else if (r->path.n) {
        put_merged(out, b, r->path);
    } else {
        cn_buf_append(out, b->path.p, b->path.n);
        if (!query.p) query = b->query;
    }
    if (query.p) cn_buf_printf(out, "?%.*s", (int)query.n, query.p);
}

const char *eng_sc_uri(struct eng_sc *sc, const char *base, const char *ref)
{
    struct uri b = split(base), r = split(ref);
    struct cn_buf out;
    const char *text = NULL;
    cn_buf_init(&out, 0);
    put_uri(&out, &b, &r);
    if (!out.failed) text = cn_arena_strn(&sc->arena, out.len ? out.data : "", out.len);
    cn_buf_fini(&out);
    if (!text) eng_sc_nomem(sc);
    return text;
}
