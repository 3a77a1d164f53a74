/* Values, strings with origin, and the context of one compilation or one rendering of the chat
 * template interpreter (private to engine/text).
 *
 * Everything is allocated in the context's arena and never freed singly. A failure (template error,
 * limit, out of memory) leaves through eng_j_fail, which jumps back to the one setjmp in
 * template.c: no function in between owns anything outside the arena, so nothing is lost by the
 * jump.
 *
 * Origin: each byte of a string is "trusted" (written by the template, or a special token that the
 * caller vouches for) or the client's. Scalars and containers have one `client` flag, so that what
 * is printed from them keeps their origin. A byte that is made from several inputs is trusted only
 * when all of them are. */
#ifndef ENGINE_TEXT_JINJA_VALUE_H
#define ENGINE_TEXT_JINJA_VALUE_H

#include "engine/text/text.h"

#include <setjmp.h>

enum eng_jtype {
    J_ABSENT, /* no value: an argument that was not given */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_RANGE,
    J_GEN,  /* a generator: can be walked once */
    J_NS,   /* namespace() */
    J_FUNC, /* built-in function or bound method */
    J_MACRO,
    J_LOOP,
    J_CYCLER,
    J_JOINER,
};

struct eng_jctx;
struct eng_jargs;

struct eng_jv {
    uint8_t t;
    bool client; /* scalars: made from a client's data */
    union {
        bool b;
        int64_t i;
        double d;
        const struct eng_jstr *s;
        struct eng_jlist *l;
        struct eng_jdict *m; /* J_DICT and J_NS */
        struct eng_jview *view;
        struct eng_jrange *r;
        struct eng_jgen *g;
        struct eng_jfunc *f;
        struct eng_jmacro *mac;
        struct eng_jloop *loop;
        struct eng_jcycler *cyc;
        const struct eng_jundef *u;
    };
};

/* Growing bytes with their origins. Strings made by appending share one: the bytes below `used`
 * never change, so a string that ends at `used` can be extended without copying it. */
struct eng_jbuf {
    char *data;
    size_t used, cap;
    struct eng_span *runs; /* ends relative to data; the last one ends at used */
    size_t n_runs, cap_runs;
    bool heap; /* malloc'd, counted in eng_jctx.heap_bytes: the rendering's output only */
};

enum eng_jorigin { J_TRUSTED, J_CLIENT, J_MIXED };

/* Immutable, valid UTF-8. */
struct eng_jstr {
    const char *p;
    size_t n;
    size_t cps;                 /* code points; SIZE_MAX = not counted yet */
    const struct eng_jbuf *buf; /* where p lies, or NULL; never NULL when mixed */
    uint8_t origin;
    bool markup; /* marked safe: HTML-escapes what is joined to it */
};

struct eng_jlist {
    struct eng_jv *v;
    size_t n, cap;
    bool client;
    bool group; /* a pair of the filter groupby: .grouper and .list */
};

struct eng_jpair {
    struct eng_jv k, v;
    uint64_t hash;
};

/* Keeps the order of insertion. idx (open addressing, entry + 1) exists above 8 entries. */
struct eng_jdict {
    struct eng_jpair *e;
    size_t n, cap;
    uint32_t *idx;
    size_t n_idx;
    bool client;
};

enum eng_jview_kind { J_KEYS, J_VALUES, J_ITEMS };
struct eng_jview {
    struct eng_jdict *m;
    enum eng_jview_kind kind;
};
struct eng_jrange {
    int64_t start, stop, step;
    size_t n;
};
struct eng_jgen {
    struct eng_jlist *l;
    size_t pos;
    const char *name, *error; /* raised when walked */
};
struct eng_jcycler {
    struct eng_jlist *l;
    size_t pos;
    bool used; /* of a joiner */
};

typedef struct eng_jv eng_jfn(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a);
struct eng_jfunc {
    eng_jfn *fn;
    const char *name;
    struct eng_jv self;
};
struct eng_jnamed {
    const char *name;
    eng_jfn *fn;
};

struct eng_jundef {
    enum { J_UNDEF_NAME, J_UNDEF_ATTR, J_UNDEF_HINT, J_UNDEF_UNSAFE } kind;
    struct eng_jv obj, name;
    const char *hint;
};

struct eng_jkw {
    const struct eng_jstr *name;
    struct eng_jv v;
};
struct eng_jargs {
    const char *fname; /* for messages */
    struct eng_jv *pos;
    size_t npos;
    struct eng_jkw *kw;
    size_t nkw;
};

struct eng_jctx {
    struct cn_arena arena;
    jmp_buf jmp;
    int code;
    struct cn_error *err;
    uint32_t line; /* of the statement at work, for messages */
    uint64_t steps, max_steps;
    uint64_t work, started_ns, max_ns; /* max_ns 0 = no limit */
    bool (*keep_going)(void *arg);     /* or NULL */
    void *going_arg;
    uint32_t depth, max_depth; /* calls; in the parser nested constructs */
    uint32_t frames;           /* C recursion of the interpreter */
    size_t max_out, max_memory, heap_bytes;
    struct eng_jbuf *out; /* where statements write now */
    const struct eng_template *tpl;
    struct eng_jv *globals; /* by name id: the top scope */
    struct eng_jscope *scope;
    int64_t now_s;
    uint8_t key[16]; /* of the dictionaries' hash */
};

/* ---- context (ctx.c) ------------------------------------------------------------------------- */
_Noreturn void eng_j_fail(struct eng_jctx *c, int code, const char *fmt, ...) CN_PRINTF(3, 4);
/* A Python exception: a template error with the line. */
#define eng_j_raise(c, ...) eng_j_fail(c, CN_ETEMPLATE, __VA_ARGS__)
void *eng_j_alloc(struct eng_jctx *c, size_t size);
void *eng_j_alloc_n(struct eng_jctx *c, size_t n, size_t size);
/* Room for one more element: returns the (moved) array. */
void *eng_j_room(struct eng_jctx *c, void *p, size_t n, size_t *cap, size_t size);
/* n units of the step budget; and work of n bytes, which only counts for the clock. */
void eng_j_step(struct eng_jctx *c, uint64_t n);
void eng_j_work(struct eng_jctx *c, uint64_t n);
void eng_j_enter(struct eng_jctx *c); /* one C recursion deeper; leave with eng_j_leave */
static inline void eng_j_leave(struct eng_jctx *c)
{
    c->frames--;
}
/* A short printable form for messages (cut, control characters dropped). */
const char *eng_j_quote(struct eng_jctx *c, const struct eng_jstr *s);

/* ---- strings (str.c) ------------------------------------------------------------------------- */
struct eng_jbuf *eng_j_buf(struct eng_jctx *c, size_t hint);
void eng_j_put(struct eng_jctx *c, struct eng_jbuf *b, const char *p, size_t n, bool trusted);
void eng_j_putz(struct eng_jctx *c, struct eng_jbuf *b, const char *p, bool trusted);
void eng_j_put_cp(struct eng_jctx *c, struct eng_jbuf *b, uint32_t cp, bool trusted);
void eng_j_put_fill(struct eng_jctx *c, struct eng_jbuf *b, char ch, size_t n, bool trusted);
void eng_j_put_str(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s);
void eng_j_put_sub(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t off,
                   size_t n);
const struct eng_jstr *eng_j_done(struct eng_jctx *c, const struct eng_jbuf *b);
const struct eng_jstr *eng_j_new(struct eng_jctx *c, const char *p, size_t n, bool trusted);
const struct eng_jstr *eng_j_copy(struct eng_jctx *c, const char *p, size_t n, bool trusted);
const struct eng_jstr *eng_j_lit(struct eng_jctx *c, const char *z); /* z is not copied */
const struct eng_jstr *eng_j_sub(struct eng_jctx *c, const struct eng_jstr *s, size_t off,
                                 size_t n);
const struct eng_jstr *eng_j_concat(struct eng_jctx *c, const struct eng_jstr *a,
                                    const struct eng_jstr *b);
const struct eng_jstr *eng_j_as_markup(struct eng_jctx *c, const struct eng_jstr *s, bool markup);
const struct eng_jstr *eng_j_escape(struct eng_jctx *c, const struct eng_jstr *s);
/* The origin of the byte at off, and where its run ends (relative to the string). */
bool eng_j_run(const struct eng_jstr *s, size_t off, size_t *end);
static inline bool eng_j_trusted(const struct eng_jstr *s)
{
    return s->origin == J_TRUSTED;
}
size_t eng_j_cps(const struct eng_jstr *s);
size_t eng_j_off(const struct eng_jstr *s, size_t cp_index); /* byte offset; n past the end */
size_t eng_j_index_of(const struct eng_jstr *s, size_t off); /* and back */
/* Decodes at *off and moves on. */
uint32_t eng_j_cp_next(const struct eng_jstr *s, size_t *off);
bool eng_j_str_eq(const struct eng_jstr *a, const struct eng_jstr *b);
bool eng_j_str_is(const struct eng_jstr *s, const char *z);
int eng_j_str_cmp(const struct eng_jstr *a, const struct eng_jstr *b);
/* First or last place of needle within [from, to) in bytes; SIZE_MAX when none. */
size_t eng_j_find(const struct eng_jstr *s, size_t from, size_t to, const struct eng_jstr *needle);
size_t eng_j_rfind(struct eng_jctx *c, const struct eng_jstr *s, size_t from, size_t to,
                   const struct eng_jstr *needle);

/* ---- values (value.c) ------------------------------------------------------------------------ */
static inline struct eng_jv eng_jv_none(void)
{
    return (struct eng_jv){.t = J_NONE};
}
static inline struct eng_jv eng_jv_bool(bool b)
{
    return (struct eng_jv){.t = J_BOOL, .b = b};
}
static inline struct eng_jv eng_jv_int(int64_t i)
{
    return (struct eng_jv){.t = J_INT, .i = i};
}
static inline struct eng_jv eng_jv_float(double d)
{
    return (struct eng_jv){.t = J_FLOAT, .d = d};
}
static inline struct eng_jv eng_jv_str(const struct eng_jstr *s)
{
    return (struct eng_jv){.t = J_STR, .s = s};
}
static inline struct eng_jv eng_jv_list(struct eng_jlist *l)
{
    return (struct eng_jv){.t = J_LIST, .l = l};
}
static inline struct eng_jv eng_jv_tuple(struct eng_jlist *l)
{
    return (struct eng_jv){.t = J_TUPLE, .l = l};
}
static inline struct eng_jv eng_jv_dict(struct eng_jdict *m)
{
    return (struct eng_jv){.t = J_DICT, .m = m};
}
static inline bool eng_jv_is_int(struct eng_jv v)
{
    return v.t == J_INT || v.t == J_BOOL;
}
static inline int64_t eng_jv_i(struct eng_jv v)
{
    return v.t == J_BOOL ? v.b : v.i;
}
static inline struct eng_jv eng_jv_taint(struct eng_jv v, bool client)
{
    v.client = v.client || client;
    return v;
}
struct eng_jv eng_jv_z(struct eng_jctx *c, const char *z);
struct eng_jv eng_jv_hint(struct eng_jctx *c, const char *hint); /* Undefined with a message */
struct eng_jv eng_jv_gen(struct eng_jctx *c, struct eng_jlist *l, const char *name);
/* A generator that raises when it is walked, as Python's do. */
struct eng_jv eng_jv_bad_gen(struct eng_jctx *c, const char *error);
struct eng_jv eng_jv_func(struct eng_jctx *c, eng_jfn *fn, const char *name, struct eng_jv self);
/* Something of the value came from a client (strings: any byte; containers: their flag). */
bool eng_jv_client(struct eng_jv v);

struct eng_jlist *eng_j_list(struct eng_jctx *c, size_t cap, bool client);
void eng_j_push(struct eng_jctx *c, struct eng_jlist *l, struct eng_jv v);
struct eng_jdict *eng_j_dict(struct eng_jctx *c, bool client);
void eng_j_dict_set(struct eng_jctx *c, struct eng_jdict *m, struct eng_jv k, struct eng_jv v);
/* The value, or NULL. Unhashable keys raise. */
struct eng_jv *eng_j_dict_get(struct eng_jctx *c, const struct eng_jdict *m, struct eng_jv k);
struct eng_jv *eng_j_dict_str(struct eng_jctx *c, const struct eng_jdict *m,
                              const struct eng_jstr *k);

const char *eng_j_type_name(struct eng_jv v); /* Python's name of the type */
bool eng_j_truth(struct eng_jctx *c, struct eng_jv v);
bool eng_j_equal(struct eng_jctx *c, struct eng_jv a, struct eng_jv b);
int eng_j_compare(struct eng_jctx *c, struct eng_jv a, struct eng_jv b, const char *op);
bool eng_j_contains(struct eng_jctx *c, struct eng_jv item, struct eng_jv seq);
bool eng_j_len(struct eng_jctx *c, struct eng_jv v, size_t *n); /* false: has no length */
_Noreturn void eng_j_undef_error(struct eng_jctx *c, struct eng_jv v);

/* Walks anything iterable; eng_j_iter raises for what is not. Each item costs a step. */
struct eng_jit {
    struct eng_jv v;
    size_t i;
};
bool eng_j_iterable(struct eng_jv v);
struct eng_jit eng_j_iter(struct eng_jctx *c, struct eng_jv v);
bool eng_j_next(struct eng_jctx *c, struct eng_jit *it, struct eng_jv *out);
struct eng_jlist *eng_j_to_list(struct eng_jctx *c, struct eng_jv v); /* always a new list */
/* Stable; keys[i] belongs to l->v[i]. */
void eng_j_sort(struct eng_jctx *c, struct eng_jlist *l, const struct eng_jv *keys, bool reverse);

/* ---- printing (repr.c, json.c) --------------------------------------------------------------- */
const struct eng_jstr *eng_j_str(struct eng_jctx *c, struct eng_jv v); /* Python's str() */
const struct eng_jstr *eng_j_repr(struct eng_jctx *c, struct eng_jv v);
void eng_j_put_value(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v);
size_t eng_j_float_repr(double d, char out[40]);
struct eng_jv eng_j_from_json(struct eng_jctx *c, json_t *j);
struct eng_jv eng_j_tojson(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a);

/* ---- operators (ops.c), attributes (attr.c) -------------------------------------------------- */
enum eng_jop {
    J_ADD,
    J_SUB,
    J_MUL,
    J_DIV,
    J_FLOORDIV,
    J_MOD,
    J_POW,
    J_EQ,
    J_NE,
    J_LT,
    J_LE,
    J_GT,
    J_GE,
    J_IN,
    J_NOTIN,
};
struct eng_jv eng_j_arith(struct eng_jctx *c, enum eng_jop op, struct eng_jv a, struct eng_jv b);
bool eng_j_relation(struct eng_jctx *c, enum eng_jop op, struct eng_jv a, struct eng_jv b);
struct eng_jv eng_j_negate(struct eng_jctx *c, struct eng_jv a, bool minus);
struct eng_jv eng_j_slice(struct eng_jctx *c, struct eng_jv v, struct eng_jv start,
                          struct eng_jv stop, struct eng_jv step);
struct eng_jv eng_j_getattr(struct eng_jctx *c, struct eng_jv v, const struct eng_jstr *name);
struct eng_jv eng_j_getitem(struct eng_jctx *c, struct eng_jv v, struct eng_jv key);
const struct eng_jnamed *eng_j_find_named(const struct eng_jnamed *t, size_t n, const char *p,
                                          size_t len);

/* ---- formatting (format.c, strformat.c) ------------------------------------------------------ */
struct eng_jv eng_j_percent(struct eng_jctx *c, const struct eng_jstr *fmt, struct eng_jv arg);
struct eng_jv eng_j_str_format(struct eng_jctx *c, const struct eng_jstr *fmt,
                               const struct eng_jargs *a);
/* Pads s (Python's alignment characters) and appends it. */
struct eng_jfill {
    char align;
    uint32_t fill;
    int64_t width;
    bool trusted;
};
void eng_j_put_padded(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t sign,
                      const struct eng_jfill *f);
/* The digits of d as Python prints it for e, f, g and their capitals, %, without sign. */
const char *eng_j_float_digits(struct eng_jctx *c, double d, char type, int64_t prec, bool alt);

/* ---- calling (call.c) ------------------------------------------------------------------------ */
/* Binds arguments by a list of names: "a b?" (? = may be absent, then J_ABSENT; a leading '.' =
 * by position only). Raises on anything missing, unknown, twice or too many. */
void eng_j_bind(struct eng_jctx *c, const struct eng_jargs *a, const char *spec,
                struct eng_jv *out);
struct eng_jv eng_j_call(struct eng_jctx *c, struct eng_jv fn, const struct eng_jargs *a);
int64_t eng_j_want_int(struct eng_jctx *c, struct eng_jv v, int64_t absent);
const struct eng_jstr *eng_j_want_str(struct eng_jctx *c, struct eng_jv v, const char *what);

/* The value at "a.b.0" (or the index) of an item; J_ABSENT: the item itself
 * (filters_seq.c). */
struct eng_jv eng_j_attr_path(struct eng_jctx *c, struct eng_jv item, struct eng_jv path,
                              struct eng_jv default_v);

/* ---- tables ---------------------------------------------------------------------------------- */
eng_jfn *eng_j_find_filter(const char *p, size_t n);
eng_jfn *eng_j_find_test(const char *p, size_t n);
eng_jfn *eng_j_find_global(const char *p, size_t n);
eng_jfn *eng_j_find_method(struct eng_jv v, const struct eng_jstr *name, const char **canonical);
bool eng_j_str_markup_method(struct eng_jctx *c, eng_jfn *fn);
extern const struct eng_jnamed eng_j_filters_str[], eng_j_filters_seq[], eng_j_filters_num[],
    eng_j_filters_sel[], eng_j_methods_cut[], eng_j_methods_case[];
extern const size_t eng_j_n_filters_str, eng_j_n_filters_seq, eng_j_n_filters_num,
    eng_j_n_filters_sel, eng_j_n_methods_cut, eng_j_n_methods_case;

/* ---- Unicode (unicode.c) --------------------------------------------------------------------- */
bool eng_j_is_space(uint32_t cp);
bool eng_j_is_word(uint32_t cp); /* \w */
bool eng_j_is_printable(uint32_t cp);
bool eng_j_is_alpha(uint32_t cp);
bool eng_j_is_decimal(uint32_t cp);
bool eng_j_is_digit(uint32_t cp);
bool eng_j_is_numeric(uint32_t cp);
bool eng_j_is_line_end(uint32_t cp);
enum eng_jcase { J_LOWER, J_UPPER, J_TITLE, J_FOLD };
/* Full case mapping: 1 to 3 code points. */
size_t eng_j_case(uint32_t cp, enum eng_jcase how, uint32_t out[3]);
/* Appends the code points [off, off+n) in the given case; origins are kept. */
void eng_j_put_cased(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t off,
                     size_t n, enum eng_jcase how);
const struct eng_jstr *eng_j_strip(struct eng_jctx *c, const struct eng_jstr *s,
                                   const struct eng_jstr *chars, bool left, bool right);
/* The next line from *off: its length without and with the line end; false at the end. */
bool eng_j_line(const struct eng_jstr *s, size_t off, size_t *n, size_t *n_with_end);

#endif
