/* lark: reads definitions and directives. See lark.h; lark_expr.c reads what they are made of. */
#include "engine/text/grammar/lark.h"

#include <stdio.h>
#include <stdlib.h>

struct rules {
    uint32_t *v;
    size_t n, cap;
};

static const struct {
    const char *name, *pattern;
} common[] = {
#define COMMON(name, pattern) {#name, pattern},
#include "engine/text/grammar/lark_common.def"
#undef COMMON
};

/* ---- definitions ----------------------------------------------------------------------------- */

static void end_line(struct eng_lark *r)
{
    eng_lark_skip(r, false);
    if (!eng_source_done(r->s) && !eng_source_is(r->s, "\n"))
        eng_source_fail(r->s, r->s->at, CN_EINVAL,
                        "expected the end of the line, `|` or a part of a sequence");
}

/* The priority changes which reading of a text is taken, not which texts there are. */
static void skip_priority(struct eng_lark *r)
{
    uint32_t v;
    if (!eng_source_take(r->s, ".")) return;
    if (!eng_source_take(r->s, "-")) eng_source_take(r->s, "+");
    eng_source_number(r->s, &v);
}

static void read_attribute(struct eng_lark *r)
{
    static const char *const refused[] = {"lazy",         "suffix",     "stop",
                                          "stop_capture", "max_tokens", "temperature"};
    struct cn_buf value;
    bool terminal;
    size_t at = r->s->at, n = eng_lark_name(r, &terminal);
    const char *name = r->s->text + at;
    for (size_t i = 0; i < CN_ARRAY_LEN(refused); i++)
        if (n == strlen(refused[i]) && !memcmp(name, refused[i], n))
            eng_source_fail(r->s, at, CN_EUNSUPP, "the attribute %s of rules is not supported",
                            refused[i]);
    if (n != strlen("capture") || memcmp(name, "capture", n))
        eng_source_fail(r->s, at, CN_EINVAL, "expected an attribute of rules: capture");
    r->s->at += n;
    eng_lark_skip(r, false);
    if (r->s->rc || !eng_source_take(r->s, "=")) return;
    eng_lark_skip(r, false);
    at = r->s->at;
    cn_buf_init(&value, 0);
    if (!eng_source_take(r->s, "\""))
        eng_source_fail(r->s, at, CN_EINVAL, "expected a name in quotes");
    else
        eng_source_literal(r->s, at, &value);
    cn_buf_fini(&value);
    eng_lark_skip(r, false);
}

static void read_attributes(struct eng_lark *r)
{
    if (!eng_source_take(r->s, "[")) return;
    do {
        eng_lark_skip(r, false);
        read_attribute(r);
    } while (!r->s->rc && eng_source_take(r->s, ","));
    if (!eng_source_take(r->s, "]"))
        eng_source_fail(r->s, r->s->at, CN_EINVAL, "expected `]` after the attributes of a rule");
}

static void read_definition(struct eng_lark *r)
{
    struct eng_source *s = r->s;
    while (eng_source_take(s, "!") || eng_source_take(s, "?"))
        continue;
    size_t at = s->at, n = eng_lark_name(r, &r->terminal);
    if (!n) {
        eng_source_fail(s, at, CN_EINVAL,
                        "expected the name of a rule or terminal, or a directive");
        return;
    }
    uint32_t rule = eng_bnf_rule(r->b, s->text + at, n, at);
    s->at += n;
    if (eng_source_is(s, "{"))
        eng_source_fail(s, at, CN_EUNSUPP, "templates, such as %.*s{..}, are not supported",
                        (int)CN_MIN(n, 100u), s->text + at);
    if (eng_source_is(s, "::"))
        eng_source_fail(s, at, CN_EUNSUPP,
                        "rules with a parameter, such as %.*s, are not supported",
                        (int)CN_MIN(n, 100u), s->text + at);
    skip_priority(r);
    if (!s->rc) read_attributes(r);
    eng_lark_skip(r, false);
    if (!eng_source_take(s, ":"))
        eng_source_fail(
            s, s->at, CN_EINVAL,
            "expected `:` after the name of a definition (a grammar with `::=` is read as "
            "GBNF, any other one as Lark)");
    if (s->rc) return;
    uint32_t body = eng_lark_alternatives(r, false);
    end_line(r);
    eng_bnf_define(r->b, rule, body, at);
    if (!s->rc) r->b->rules[rule].terminal = r->terminal;
}

/* ---- directives ------------------------------------------------------------------------------ */

/* Defines an anonymous terminal, under a name that no grammar can contain. */
static void read_ignore(struct eng_lark *r, struct rules *ignored)
{
    char name[32];
    size_t at = r->s->at;
    int n = snprintf(name, sizeof name, "%%ignore %zu", ignored->n);
    uint32_t rule = eng_bnf_rule(r->b, name, (size_t)n, at);
    r->terminal = true;
    if (rule == ENG_BNF_NONE) return;
    uint32_t body = eng_lark_alternatives(r, false);
    end_line(r);
    eng_bnf_define(r->b, rule, body, at);
    if (r->s->rc) return;
    r->b->rules[rule].terminal = true;
    if (cn_grow(&ignored->v, &ignored->cap, ignored->n + 1, sizeof *ignored->v))
        eng_source_stop(r->s, CN_ENOMEM, "out of memory");
    else
        ignored->v[ignored->n++] = rule;
}

/* Defines `as` to be the common terminal of that name. */
static void import_one(struct eng_lark *r, struct eng_str name, struct eng_str as, size_t at)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(common); i++) {
        if (strlen(common[i].name) != name.n || memcmp(common[i].name, name.p, name.n)) continue;
        uint32_t rule = eng_bnf_rule(r->b, as.p, as.n, at);
        if (rule == ENG_BNF_NONE) return;
        uint32_t body = eng_lark_pattern(r, common[i].pattern, strlen(common[i].pattern), at);
        eng_bnf_define(r->b, rule, body, at);
        if (!r->s->rc) r->b->rules[rule].terminal = true;
        return;
    }
    eng_source_fail(r->s, at, CN_EINVAL, "common has no terminal %.*s", (int)CN_MIN(name.n, 100u),
                    name.p);
}

static struct eng_str take_terminal(struct eng_lark *r)
{
    bool terminal = false;
    eng_lark_skip(r, false);
    struct eng_str name = {r->s->text + r->s->at, eng_lark_name(r, &terminal)};
    if (!terminal) eng_source_fail(r->s, r->s->at, CN_EINVAL, "expected the name of a terminal");
    r->s->at += name.n;
    return name;
}

static void read_import(struct eng_lark *r)
{
    struct eng_source *s = r->s;
    eng_lark_skip(r, false);
    size_t at = s->at;
    if (!eng_source_take(s, "common")) {
        eng_source_fail(s, at, CN_EUNSUPP, "only %%import common.NAME is supported");
        return;
    }
    if (eng_source_take(s, ".")) {
        struct eng_str name = take_terminal(r), as = name;
        eng_lark_skip(r, false);
        if (eng_source_take(s, "->")) as = take_terminal(r);
        if (!s->rc) import_one(r, name, as, at);
    } else {
        eng_lark_skip(r, false);
        if (!eng_source_take(s, "("))
            eng_source_fail(s, s->at, CN_EINVAL, "expected `.NAME` or `(NAME, ..)` after common");
        do {
            struct eng_str name = take_terminal(r);
            if (!s->rc) import_one(r, name, name, at);
            eng_lark_skip(r, false);
        } while (!s->rc && eng_source_take(s, ","));
        if (!eng_source_take(s, ")"))
            eng_source_fail(s, s->at, CN_EINVAL, "expected `,` or `)` in a list of names");
    }
    end_line(r);
}

/* Options of llguidance: those that change how it works, and not what it accepts. */
static void read_options(struct eng_lark *r)
{
    struct eng_source *s = r->s;
    size_t at = s->at;
    json_error_t je;
    const char *key;
    json_t *value;
    json_t *all = json_loadb(s->text + at, s->n - at, JSON_DISABLE_EOF_CHECK, &je);
    if (!json_is_object(all))
        eng_source_fail(s, at, CN_EINVAL, "expected a JSON object after %%llguidance");
    else
        s->at += CN_MIN((size_t)je.position, s->n - at);
    json_object_foreach(all, key, value)
    {
        if (strcmp(key, "no_forcing"))
            eng_source_fail(s, at, CN_EUNSUPP, "the option %.100s of llguidance is not supported",
                            key);
    }
    json_decref(all);
    end_line(r);
}

static void read_directive(struct eng_lark *r, struct rules *ignored)
{
    static const char *const refused[] = {"%declare", "%override", "%extend", "%regex", "%lark"};
    size_t at = r->s->at;
    for (size_t i = 0; i < CN_ARRAY_LEN(refused); i++)
        if (eng_source_is(r->s, refused[i]))
            eng_source_fail(r->s, at, CN_EUNSUPP, "%s is not supported", refused[i]);
    if (eng_source_take(r->s, "%ignore"))
        read_ignore(r, ignored);
    else if (eng_source_take(r->s, "%import"))
        read_import(r);
    else if (eng_source_take(r->s, "%llguidance"))
        read_options(r);
    else
        eng_source_fail(r->s, at, CN_EINVAL, "expected %%ignore, %%import or a definition");
}

/* ---- a grammar ------------------------------------------------------------------------------- */

/* What is ignored is needed before anything else is: any number of these terminals. */
static void find_ignored(struct eng_bnf *b, const struct rules *ignored)
{
    struct eng_rx *rx = &b->ir->rx;
    uint32_t any = ENG_RX_NONE;
    for (size_t i = 0; i < ignored->n && !b->src.rc; i++) {
        uint32_t x = eng_bnf_terminal(b, ignored->v[i]);
        if (!b->src.rc) any = eng_rx_or(rx, any, x);
    }
    if (!b->src.rc) b->ignore = eng_rx_repeat(rx, any, 0, ENG_RX_INF);
}

int eng_lark_read(struct eng_bnf *b, struct eng_ir *ir, const struct eng_lark_opts *opts,
                  struct eng_sym *out)
{
    struct eng_lark r = {.b = b, .s = &b->src, .opts = opts};
    struct rules ignored = {0};
    if (eng_bnf_init(b, ir)) return b->src.rc;
    for (eng_lark_skip(&r, true); eng_source_alive(r.s) && !eng_source_done(r.s);
         eng_lark_skip(&r, true)) {
        if (eng_source_is(r.s, "%"))
            read_directive(&r, &ignored);
        else
            read_definition(&r);
    }
    uint32_t start = eng_strmap_get(&b->by_name, &b->names, "start", 5);
    if (!b->src.rc && (start == ENG_NO_ID || b->rules[start].body == ENG_BNF_NONE))
        eng_source_stop(&b->src, CN_EINVAL, "there is no rule start");
    eng_bnf_all_defined(b);
    if (!b->src.rc) find_ignored(b, &ignored);
    if (!b->src.rc) eng_bnf_compile(b, start, out);
    free(ignored.v);
    return b->src.rc;
}
