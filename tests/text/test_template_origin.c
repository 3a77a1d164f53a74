/* Whose text is it: what a client sends must never come out as the template's, through any filter,
 * method or operator; what the template writes stays its own. */
#include "engine/text/jinja/value.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The client's text holds these characters only, and the templates of the sweep none of them
 * outside of their code: a trusted one in the output is a leak. */
#define EVIL "<|EVIL|>"
static const char evil_bytes[] = "<|>EVIL";

static json_t *client(void)
{
    json_t *j =
        json_pack("{s:s, s:[s,s], s:{s:s, s:[s]}, s:[{s:s,s:i},{s:s,s:i}], s:i, s:f, s:b, s:n}",
                  "x", EVIL, "xs", EVIL, EVIL " " EVIL, "d", EVIL, EVIL, "k", EVIL, "ps", "n", EVIL,
                  "a", 1, "n", EVIL EVIL, "a", 2, "i", 1717, "f", 1717.25, "b", 1, "nil");
    assert_non_null(j);
    return j;
}

static int render(const char *src, struct eng_rendered *r, struct cn_error *err)
{
    json_t *kwargs = client(),
           *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", EVIL);
    struct eng_template_in in = {.messages = messages,
                                 .kwargs = kwargs,
                                 .bos_token = {"<BOS>", 5},
                                 .limits = {.max_ns = 60000000000}};
    struct eng_template *t = NULL;
    int rc = eng_template_new(src, strlen(src), &t, err);
    if (!rc) rc = eng_template_render(t, &in, r, err);
    eng_template_free(t);
    json_decref(kwargs);
    json_decref(messages);
    return rc;
}

/* The output with the client's parts between {{ and }}. */
static char *marked(const struct eng_rendered *r)
{
    struct cn_buf b;
    size_t from = 0;
    cn_buf_init(&b, 0);
    for (size_t i = 0; i < r->n_spans; i++) {
        if (!r->spans[i].trusted) cn_buf_puts(&b, "{{");
        cn_buf_append(&b, r->text.data + from, r->spans[i].end - from);
        if (!r->spans[i].trusted) cn_buf_puts(&b, "}}");
        from = r->spans[i].end;
    }
    char *z = strdup(cn_buf_cstr(&b));
    cn_buf_fini(&b);
    return z;
}

static void exact_spans(void **state)
{
    static const struct {
        const char *src, *want;
    } cases[] = {
        {"<|a|>{{ x }}<|b|>", "<|a|>{{<|EVIL|>}}<|b|>"},
        {"{{ bos_token }}{{ messages[0].content }}", "<BOS>{{<|EVIL|>}}"},
        {"{{ bos_token + x + '<|b|>' }}", "<BOS>{{<|EVIL|>}}<|b|>"},
        {"{{ '<|a|>' ~ x ~ '<|b|>' }}", "<|a|>{{<|EVIL|>}}<|b|>"},
        {"{{ ('<|a|>' + x + '<|b|>')[3:-3] }}", "|>{{<|EVIL|>}}<|"},
        {"{{ ('<|a|>' + x)[::-1] }}", "{{>|LIVE|<}}>|a|<"},
        {"{{ ('<|a|>' + x)|upper }}", "<|A|>{{<|EVIL|>}}"},
        {"{{ ('<|A|>' + x)|lower }}", "<|a|>{{<|evil|>}}"},
        {"{{ (' <|a|> ' + x + '  ')|trim }}", "<|a|> {{<|EVIL|>}}"},
        {"{{ ('<|a|>' + x + '<|b|>').split('|') | join('#') }}", "<#a#>{{<}}#{{EVIL}}#{{>}}<#b#>"},
        {"{{ ('a' + x + 'b').replace('a', '<|c|>').replace('|E', '<|d|>') }}",
         "<|c|>{{<}}<|d|>{{VIL|>}}b"},
        {"{{ 'a-b'.replace('-', x) }}", "a{{<|EVIL|>}}b"},
        {"{{ ['<|a|>', x, '<|b|>']|join('<|s|>') }}", "<|a|><|s|>{{<|EVIL|>}}<|s|><|b|>"},
        {"{{ '%s<|a|>%s' % (x, '<|b|>') }}", "{{<|EVIL|>}}<|a|><|b|>"},
        {"{{ '{}<|a|>{}'.format(x, '<|b|>') }}", "{{<|EVIL|>}}<|a|><|b|>"},
        {"{{ '<|a|>{:>9}'.format(x) }}", "<|a|>{{ <|EVIL|>}}"},
        {"{{ {'k': '<|a|>', 'l': x}|tojson }}", "{\"k\": \"<|a|>\", \"l\": {{\"<|EVIL|>\"}}}"},
        {"{{ xs|tojson }}", "{{[\"<|EVIL|>\", \"<|EVIL|> <|EVIL|>\"]}}"},
        {"{{ ('<|a|>' + x)|tojson }}", "{{\"}}<|a|>{{<|EVIL|>\"}}"},
        {"{{ ['<|a|>', x] }}", "['<|a|>', {{'<|EVIL|>'}}]"},
        {"{% set c %}<|a|>{{ x }}{% endset %}{{ c }}{{ c[5:] }}", "<|a|>{{<|EVIL|><|EVIL|>}}"},
        {"{% macro m(v) %}<|a|>{{ v }}{% endmacro %}{{ m(x) }}{{ m('y') }}",
         "<|a|>{{<|EVIL|>}}<|a|>y"},
        {"{% filter upper %}<|a|>{{ x }}{% endfilter %}", "<|A|>{{<|EVIL|>}}"},
        {"{% set ns = namespace(t='') %}{% for m in xs %}{% set ns.t = ns.t + '<|a|>' + m %}"
         "{% endfor %}{{ ns.t }}",
         "<|a|>{{<|EVIL|>}}<|a|>{{<|EVIL|> <|EVIL|>}}"},
        {"{{ i }}<{{ i + 1 }}>{{ 7 + 1 }}", "{{1717}}<{{1718}}>8"},
        {"{{ f }}{{ b }}{{ nil }}{{ -i }}{{ i|string }}", "{{1717.25TrueNone-17171717}}"},
        {"{{ x|length }}{{ x == '<|EVIL|>' }}{{ loop is defined }}", "8TrueFalse"},
        {"{{ '<|a|>' * 2 }}{{ x * 2 }}", "<|a|><|a|>{{<|EVIL|><|EVIL|>}}"},
        {"{{ '<|a|>\n<|b|>'|indent(2) }}{{ x|indent(2, true) }}", "<|a|>\n  <|b|>  {{<|EVIL|>}}"},
        {"{{ nope|default(x) }}{{ nope|default('<|a|>') }}", "{{<|EVIL|>}}<|a|>"},
        {"{% set s = 'a' + x %}{% set p = s + '<|b|>' %}{% set q = s + x %}{{ p }}{{ q }}{{ s }}",
         "a{{<|EVIL|>}}<|b|>a{{<|EVIL|><|EVIL|>}}a{{<|EVIL|>}}"},
        {"{{ ('<|a|>' + x)|list|last }}{{ ('<|a|>' + x)|first }}", "{{>}}<"},
        {"{{ strftime_now('%Y') }}{{ strftime_now(x) }}", "1970{{<|EVIL|>}}"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        struct eng_rendered r = {0};
        struct cn_error err = {0};
        if (render(cases[i].src, &r, &err)) fail_msg("%s: %s", cases[i].src, err.message);
        char *have = marked(&r);
        assert_string_equal(have, cases[i].want);
        free(have);
        eng_rendered_fini(&r);
    }
}

/* Each filter and each string method at least once, with the client's text wherever it can go in.
 * A '!' in front: nothing of the client's text comes out. A '~': the template writes such bytes
 * too, so that only whole words are looked for. */
static const char *const sweep[] = {
    "i|abs",
    "!x|attr('upper') is defined",
    "xs|batch(1)|list",
    "x|capitalize",
    "x|center(30)",
    "!xs|count",
    "!x|count",
    "nope|d(x)",
    "nope|default(x)",
    "d|dictsort",
    "x|e",
    "x|escape",
    "i|filesizeformat",
    "xs|first",
    "f|float",
    "'1717.5'|float + f",
    "x|forceescape",
    "'%s'|format(x)",
    "x|format",
    "'%(a)10s'|format(a=x)",
    "ps|groupby('n')",
    "x|indent",
    "'a\nb'|indent(x, true, true)",
    "i|int",
    "d|items|list",
    "xs|join",
    "xs|join(x)",
    "['a','b']|join(x)",
    "ps|join(x, attribute='n')",
    "xs|last",
    "!x|length",
    "x|list",
    "x|lower",
    "xs|map('upper')|list",
    "ps|map(attribute='n')|list",
    "['a']|map('replace', 'a', x)|list",
    "xs|max",
    "xs|min",
    "x|pprint",
    "d|pprint",
    "xs|reject('none')|list",
    "ps|rejectattr('n', 'none')|list",
    "'a'|replace('a', x)",
    "x|replace('z', 'a')",
    "x|reverse",
    "f|round(1)",
    "x|safe",
    "x|safe + x",
    "~('<b>'|safe + x)[3:]",
    "('{}'|safe).format(x)",
    "('%s'|safe) % x",
    "xs|select|list",
    "ps|selectattr('a')|list",
    "xs|slice(1)|list",
    "xs|sort",
    "x|string",
    "d|string",
    "xs|string",
    "(x[1:] + 'b')|striptags",
    "ps|sum(attribute='a')",
    "[xs, xs]|sum(start=[])",
    "x|title",
    "x|tojson",
    "d|tojson",
    "ps|tojson(indent=2)",
    "d|tojson(sort_keys=true, ensure_ascii=true)",
    "['a','b']|tojson(separators=(x, x))",
    "['a']|tojson(indent=x)",
    "x|trim",
    "x|trim('<')",
    "(x * 40)|truncate(20)",
    "('a ' * 40)|truncate(20, end=x)",
    "xs|unique|list",
    "x|upper",
    "x|urlencode",
    "d|urlencode",
    "!x|wordcount",
    "(x + ' ' + x)|wordwrap(4)",
    "'a b'|wordwrap(1, wrapstring=x)",
    "{'a': x}|xmlattr",
    /* methods */
    "x.capitalize()",
    "x.casefold()",
    "x.center(20)",
    "'a'.center(20, x[0])",
    "!x.count('E')",
    "x.expandtabs()",
    "!x.endswith('>')",
    "!x.find('E')",
    "'{}'.format(x)",
    "'{:*^20}'.format(x)",
    "'{:{}}'.format('a', x[0] + '^9')",
    "x.format()",
    "'{a}'.format_map({'a': x})",
    "!x.index('E')",
    "!x.isalnum()",
    "!x.isalpha()",
    "!x.isascii()",
    "!x.isdecimal()",
    "!x.isdigit()",
    "!x.isidentifier()",
    "!x.islower()",
    "!x.isnumeric()",
    "!x.isprintable()",
    "!x.isspace()",
    "!x.istitle()",
    "!x.isupper()",
    "x.join(['a','b'])",
    "'a'.join(xs)",
    "x.ljust(20)",
    "'a'.ljust(9, x[0])",
    "x.lower()",
    "x.lstrip()",
    "x.partition('E')",
    "x.partition('E')|join",
    "x.removeprefix('<')",
    "x.removesuffix('>')",
    "x.replace('E', 'a')",
    "'a'.replace('', x)",
    "!x.rfind('E')",
    "!x.rindex('E')",
    "x.rjust(20)",
    "x.rpartition('E')",
    "x.rsplit('E')",
    "x.rstrip()",
    "x.split('E')",
    "x.split()",
    "x.splitlines()",
    "!x.startswith('<')",
    "x.strip()",
    "x.swapcase()",
    "x.title()",
    "x.upper()",
    "x.zfill(20)",
    /* operators and the rest */
    "x + x",
    "x ~ x",
    "x * 3",
    "x[0]",
    "x[1:3]",
    "x[::-1]",
    "x[::2]",
    "'%s' % x",
    "'%r' % x",
    "'%20s' % x",
    "'%-20s' % x",
    "'%.3s' % x",
    "x % ()",
    "'%c' % x[0]",
    "[x]",
    "(x, x)",
    "{x: x}",
    "{x: x}[x]",
    "d",
    "d.items()",
    "d.keys()",
    "d.values()",
    "d.get('zz', x)",
    "d.get('k')",
    "dict(a=x)",
    "dict(d)",
    "~namespace(a=x)",
    "namespace(a=x).a",
    "x if true",
    "x or 'a'",
    "'a' and x",
    "xs + xs",
    "xs * 2",
    "xs[0:1]",
    "cycler(x).next()",
    "cycler(x).current",
    "messages",
    "messages[0]",
    "messages[0].content",
    "messages|map(attribute='content')|join",
    "strftime_now(x)",
    "dict.fromkeys(xs)",
    "ps|groupby('n')|map(attribute='grouper')|join",
};

/* Bytes that only the client writes, in a span that is called the template's. */
static const char *trusted_evil(const struct eng_rendered *r)
{
    size_t from = 0;
    for (size_t k = 0; k < r->n_spans; from = r->spans[k++].end)
        for (size_t p = from; r->spans[k].trusted && p < r->spans[k].end; p++)
            if (r->text.data[p] && strchr(evil_bytes, r->text.data[p])) return &r->text.data[p];
    return NULL;
}

static bool any_of_client(const struct eng_rendered *r)
{
    return r->n_spans > 1 || (r->n_spans == 1 && !r->spans[0].trusted);
}

/* The client's word, in any case, outside of the client's spans. */
static bool word_leaks(const struct eng_rendered *r)
{
    char *z = marked(r), *at = z, *open;
    bool leak = false;
    for (; (open = strcasestr(at, "evil")); at = open + 4) {
        bool inside = false;
        for (char *q = z; q < open; q++)
            inside = strncmp(q, "{{", 2) == 0 ? true : strncmp(q, "}}", 2) == 0 ? false : inside;
        leak |= !inside;
    }
    free(z);
    return leak;
}

static void nothing_leaks(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(sweep); i++) {
        char kind = sweep[i][0], src[256];
        bool none = kind == '!', words = kind == '~';
        struct eng_rendered r = {0};
        struct cn_error err = {0};
        snprintf(src, sizeof(src), "{{ %s }}", sweep[i] + (none || words));
        if (render(src, &r, &err)) fail_msg("%s: %s", src, err.message);
        const char *leak = words ? NULL : trusted_evil(&r);
        if (leak) fail_msg("%s: trusted '%c' in '%.*s'", src, *leak, (int)r.text.len, r.text.data);
        if (none == any_of_client(&r))
            fail_msg("%s: the client's part is wrong in '%.*s'", src, (int)r.text.len, r.text.data);
        if (word_leaks(&r)) fail_msg("%s: leaks: %.*s", src, (int)r.text.len, r.text.data);
        eng_rendered_fini(&r);
    }
}

static bool swept(const char *name, char before)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < CN_ARRAY_LEN(sweep); i++)
        for (const char *p = sweep[i]; (p = strstr(p, name)); p++)
            if (p > sweep[i] && p[-1] == before && !(p[n] >= 'a' && p[n] <= 'z')) return true;
    return false;
}

static void every_filter_and_method_is_swept(void **state)
{
    const struct {
        const struct eng_jnamed *t;
        size_t n;
        char before;
    } tables[] = {
        {eng_j_filters_str, eng_j_n_filters_str, '|'},
        {eng_j_filters_seq, eng_j_n_filters_seq, '|'},
        {eng_j_filters_num, eng_j_n_filters_num, '|'},
        {eng_j_filters_sel, eng_j_n_filters_sel, '|'},
        {eng_j_methods_cut, eng_j_n_methods_cut, '.'},
        {eng_j_methods_case, eng_j_n_methods_case, '.'},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(tables); i++)
        for (size_t k = 0; k < tables[i].n; k++)
            if (!swept(tables[i].t[k].name, tables[i].before))
                fail_msg("%c%s is not in the sweep", tables[i].before, tables[i].t[k].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_spans),
        cmocka_unit_test(nothing_leaks),
        cmocka_unit_test(every_filter_and_method_is_swept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
