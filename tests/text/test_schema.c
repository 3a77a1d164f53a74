/* JSON Schema to grammars: what each keyword and combination lets through, by the specification;
 * what is refused, and how that is said; and schemas that explode. Texts have ' for ". */
#include "engine/text/grammar/match.h"
#include "tests/text/schema_walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    json_error_t why;
    for (char *p = copy; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *v = json_loads(copy, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!v) printf("%s: %s\n", text, why.text);
    assert_non_null(v);
    free(copy);
    return v;
}

static const struct eng_schema_opts plain = {0}, compact = {.compact = true},
                                    any_order = {.any_order = true};

/* 1: the value belongs to the grammar, 0: it does not; value and text must agree. */
static int judge(struct eng_ir *ir, const char *text)
{
    json_t *v = parse(text);
    struct eng_match m;
    struct cn_buf b;
    cn_buf_init(&b, 0);
    walk_text(v, &b);
    int as_value = walk_has(ir, v);
    assert_int_equal(eng_match_init(&m, ir, 64u << 20, ENG_RX_EMPTY), 0);
    int as_text = eng_match_bytes_in(&m, b.data, b.len) == b.len && eng_match_accepts(&m, &m.now);
    assert_int_equal(m.code, 0);
    if (as_value != as_text) printf("%s: as a value %d, as a text %d\n", text, as_value, as_text);
    assert_int_equal(as_value, as_text);
    eng_match_fini(&m);
    cn_buf_fini(&b);
    json_decref(v);
    return as_value;
}

struct row { const char *schema, *valid[8], *invalid[8]; };

static void judge_rows(const struct row *rows, size_t n, const struct eng_schema_opts *opts)
{
    for (size_t i = 0; i < n; i++) {
        json_t *schema = parse(rows[i].schema);
        struct cn_error err = {0};
        struct eng_ir ir;
        int rc = walk_compile(&ir, schema, opts, ENG_SPELL_JSON, &err);
        if (rc) printf("%s: %s: %s\n", rows[i].schema, err.param, err.message);
        assert_int_equal(rc, 0);
        for (size_t j = 0; j < 8 && rows[i].valid[j]; j++) {
            if (judge(&ir, rows[i].valid[j]) == 1) continue;
            fail_msg("%s lacks %s", rows[i].schema, rows[i].valid[j]);
        }
        for (size_t j = 0; j < 8 && rows[i].invalid[j]; j++) {
            if (judge(&ir, rows[i].invalid[j]) == 0) continue;
            fail_msg("%s has %s", rows[i].schema, rows[i].invalid[j]);
        }
        eng_ir_fini(&ir);
        json_decref(schema);
    }
}
#define JUDGE(rows, opts) judge_rows(rows, CN_ARRAY_LEN(rows), opts)

/* ---- keywords -------------------------------------------------------------------------------- */

static void scalars(void **state)
{
    static const struct row rows[] = {
        {"true", {"null", "false", "0", "''", "[]", "{'a':[{}]}"}, {0}},
        {"{'title':'x','x-y':1,'$comment':'z','default':3}", {"null", "{'a':1}"}, {0}},
        {"{'type':['null','boolean']}", {"null", "true", "false"}, {"0", "''", "[]"}},
        {"{'enum':['a','b\\'c',1,null,true]}", {"'a'", "1", "null", "true"}, {"'b'", "2", "false"}},
        {"{'type':'string','minLength':2,'maxLength':3}",
         {"'ab'", "'\\u00fc\\ud83d\\ude00'"},
         {"'a'", "'abcd'", "1"}},
        {"{'enum':['a','bb','ccc'],'minLength':2,'not':{'const':'ccc'}}",
         {"'bb'"},
         {"'a'", "'ccc'"}},
        {"{'type':'string','not':{'enum':['a','b']}}", {"'c'", "''", "'ab'"}, {"'a'", "'b'", "1"}},
        {"{'type':'integer','minimum':3,'exclusiveMaximum':6,'not':{'const':4}}",
         {"3", "5"},
         {"2", "4", "6"}},
        {"{'type':'number','multipleOf':0.5,'minimum':-1,'maximum':1}",
         {"-1", "-0.5", "0", "0.5", "1"},
         {"0.25", "1.5", "-2"}},
        {"{'type':'number','minimum':1,'exclusiveMinimum':true,'maximum':2}", {"1.5", "2"}, {"1"}},
        {"{'oneOf':[{'type':'integer','multipleOf':2},{'type':'integer','multipleOf':3}]}",
         {"2", "3", "4", "9"},
         {"6", "12", "5", "'a'"}},
        {"{'type':'integer','not':{'multipleOf':2}}", {"1", "3", "-5"}, {"2", "0", "-4"}},
        {"{'type':'number','not':{'type':'integer'}}", {"1.5", "-0.25"}, {"1", "0", "-7"}},
        {"{'anyOf':[{'type':'string','maxLength':1},{'type':'string','minLength':3}]}",
         {"''", "'a'", "'abc'"},
         {"'ab'", "3"}},
        {"{'enum':[1,2,3,4],'allOf':[{'minimum':2},{'not':{'enum':[3]}}]}",
         {"2", "4"},
         {"1", "3", "5"}},
        {"{'if':{'type':'string'},'then':{'maxLength':1},'else':{'type':'null'}}",
         {"'a'", "null"},
         {"'ab'", "1", "true"}},
    };
    JUDGE(rows, &plain);
}

static void patterns_of_strings(void **state)
{
    static const struct row rows[] = {
        {"{'type':'string','pattern':'^a+$','maxLength':3}",
         {"'a'", "'aaa'"},
         {"'aaaa'", "'b'", "''"}},
        {"{'type':'string','pattern':'b','not':{'pattern':'c'}}",
         {"'abd'", "'b'"},
         {"'abc'", "'a'"}},
        {"{'type':'string','pattern':'^[a-c]*$','enum':['abc','abd','']}",
         {"'abc'", "''"},
         {"'abd'"}},
        {"{'type':'string','format':'date','not':{'pattern':'^2024'}}",
         {"'2023-01-31'"},
         {"'2024-01-31'", "'2023-02-30'"}},
    };
    JUDGE(rows, &plain);
}

static void objects(void **state)
{
    static const struct row rows[] = {
        {"{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},"
         "'required':['b'],'additionalProperties':false}",
         {"{'b':null}", "{'a':null,'b':null}"},
         {"{}", "{'a':null}", "{'b':null,'a':null}", "{'b':null,'c':1}", "{'b':1}"}},
        {"{'type':'object','properties':{'a':{'type':'null'}}}",
         {"{}", "{'a':null}", "{'x':1,'y':{}}", "{'a':null,'aa':2}"},
         {"{'a':1}"}},
        {"{'type':'object','required':['u','v']}",
         {"{'u':1,'v':2}", "{'v':1,'x':0,'u':2}"},
         {"{'u':1}", "{}"}},
        {"{'type':'object','properties':{'a':false,'b':{}}}", {"{'b':1}", "{}"}, {"{'a':1}"}},
        {"{'type':'object','patternProperties':{'^x':{'type':'null'},'y$':{'const':1}},"
         "'additionalProperties':{'type':'string'}}",
         {"{'xa':null}", "{'ay':1}", "{'a':'s'}", "{}"},
         {"{'xa':1}", "{'xy':1}", "{'xy':null}", "{'a':1}", "{'ay':'s'}"}},
        {"{'type':'object','properties':{'xa':{'enum':[null,2]}},'patternProperties':{'^x':"
         "{'type':'null'}},'additionalProperties':false}",
         {"{'xa':null}", "{'xb':null,'xc':null}"},
         {"{'xa':2}", "{'a':null}"}},
        {"{'type':'object','propertyNames':{'maxLength':2},'properties':{'abc':{}}}",
         {"{'a':1,'bc':2}", "{}"},
         {"{'abc':1}", "{'xyz':1}"}},
        {"{'type':'object','propertyNames':{'enum':['p','q']},'minProperties':1}",
         {"{'p':1}", "{'q':1,'p':2}"},
         {"{}", "{'r':1}"}},
        {"{'type':'object','minProperties':1,'maxProperties':2}",
         {"{'a':1}", "{'a':1,'b':2}"},
         {"{}", "{'a':1,'b':2,'c':3}"}},
        {"{'type':'object','properties':{'a':{},'b':{},'c':{}},'dependentRequired':{'a':['b'],"
         "'b':['c']}}",
         {"{'a':1,'b':1,'c':1}", "{'b':1,'c':1}", "{'c':1}", "{}"},
         {"{'a':1}", "{'a':1,'b':1}"}},
        {"{'type':'object','properties':{'a':{}},'dependentSchemas':{'a':{'required':['z'],"
         "'properties':{'z':{'type':'null'}}}}}",
         {"{'z':1}", "{'a':1,'z':null}", "{}"},
         {"{'a':1}", "{'a':1,'z':1}"}},
        {"{'enum':[{'a':1,'b':[2]},{'a':2}],'properties':{'a':{'minimum':2}}}",
         {"{'a':2}"},
         {"{'a':1,'b':[2]}", "{}", "{'a':2,'b':1}"}},
        {"{'type':'object','not':{'required':['a']}}", {"{}", "{'b':1}"}, {"{'a':1}"}},
        {"{'type':'object','not':{'properties':{'a':{'type':'null'}},'required':['b']}}",
         {"{}", "{'a':1,'b':1}", "{'a':1}", "{'a':null}"},
         {"{'a':null,'b':1}", "{'b':1}"}},
        {"{'type':'object','not':{'const':{'a':1}}}",
         {"{}", "{'a':2}", "{'a':1,'b':2}", "{'b':1}"},
         {"{'a':1}"}},
        {"{'type':'object','not':{'minProperties':2}}", {"{}", "{'a':1}"}, {"{'a':1,'b':2}"}},
        {"{'type':'object','not':{'additionalProperties':false,'properties':{'a':{}}}}",
         {"{'b':1}", "{'a':1,'b':1}"},
         {"{}", "{'a':1}"}},
    };
    JUDGE(rows, &plain);
}

static void arrays(void **state)
{
    static const struct row rows[] = {
        {"{'type':'array','items':{'type':'null'},'minItems':1,'maxItems':2}",
         {"[null]", "[null,null]"},
         {"[]", "[null,null,null]", "[1]"}},
        {"{'type':'array','prefixItems':[{'type':'null'},{'type':'boolean'}],'items':false}",
         {"[]", "[null]", "[null,true]"},
         {"[true]", "[null,true,1]"}},
        {"{'type':'array','items':[{'const':1},{'const':2}],'additionalItems':{'const':3}}",
         {"[1,2,3,3]", "[1]"},
         {"[2]", "[1,2,4]"}},
        {"{'type':'array','prefixItems':[{},false,{}]}", {"[]", "[1]"}, {"[1,2]", "[1,2,3]"}},
        {"{'type':'array','contains':{'const':1},'minContains':2,'maxContains':3,'items':"
         "{'enum':[1,2]}}",
         {"[1,1]", "[2,1,2,1,1]"},
         {"[1]", "[1,1,1,1]", "[1,1,3]", "[]"}},
        {"{'type':'array','contains':{'const':1},'minContains':0}", {"[]", "[2]", "[1]"}, {0}},
        {"{'type':'array','contains':{'const':1},'maxContains':0,'minContains':0}",
         {"[]", "[2]"},
         {"[1]", "[2,1]"}},
        {"{'type':'array','not':{'contains':{'const':1}}}", {"[]", "[2]"}, {"[1]", "[2,1]"}},
        {"{'type':'array','not':{'items':{'type':'null'}}}", {"[1]", "[null,1]"}, {"[]", "[null]"}},
        {"{'type':'array','uniqueItems':true,'items':{'enum':['a','b','c']},'minItems':2}",
         {"['a','b']", "['c','a','b']"},
         {"['a','a']", "['a']", "['a','b','a']"}},
        {"{'const':[1,{'a':2}]}", {"[1,{'a':2}]"}, {"[1]", "[1,{'a':3}]", "[1,{'a':2},3]"}},
        {"{'type':'array','not':{'enum':[[],[1]]}}", {"[2]", "[1,1]"}, {"[]", "[1]"}},
        {"{'type':'array','oneOf':[{'items':{'type':'string'}},{'items':{'type':'null'}},"
         "{'items':{'type':'boolean'}}]}",
         {"['a','b']", "[null]", "[true,false]"},
         {"[]", "['a',null]", "[1]"}},
    };
    JUDGE(rows, &plain);
}

static void unions(void **state)
{
    static const struct row rows[] = {
        {"{'oneOf':[{'type':'object','properties':{'k':{'const':'a'},'x':{'type':'null'}},"
         "'required':['k']},{'type':'object','properties':{'k':{'const':'b'},'x':{'type':"
         "'boolean'}},'required':['k']}]}",
         {"{'k':'a','x':null}", "{'k':'b','x':true}", "{'k':'b'}"},
         {"{'k':'a','x':true}", "{'k':'c'}", "{}", "{'x':null}"}},
        /* tags with defaults: not required, so that {} satisfies both */
        {"{'oneOf':[{'type':'object','properties':{'k':{'const':'a'},'x':{'type':'null'}}},"
         "{'type':'object','properties':{'k':{'const':'b'},'x':{'type':'boolean'}}}]}",
         {"{'k':'a'}", "{'k':'b'}", "{'x':null}", "{'x':true}", "{'k':'a','x':null}"},
         {"{}", "{'k':'a','x':true}", "{'y':1}", "{'x':1}"}},
        /* OpenAPI's discriminator: the tag is required then */
        {"{'discriminator':{'propertyName':'k'},'oneOf':[{'type':'object','properties':{'k':"
         "{'const':'a'}}},{'type':'object','properties':{'k':{'const':'b'}}}]}",
         {"{'k':'a'}", "{'k':'b'}"},
         {"{}", "{'x':null}"}},
        {"{'oneOf':[{'type':'object','properties':{'a':{'type':'null'}},'required':['a'],"
         "'additionalProperties':false},{'type':'object','properties':{'a':{'type':'null'},"
         "'b':{}},'required':['a'],'additionalProperties':false}]}",
         {"{'a':null,'b':1}"},
         {"{'a':null}", "{}"}},
        {"{'allOf':[{'properties':{'a':{'type':'integer'}},'required':['a']},{'properties':"
         "{'a':{'minimum':3},'b':{'type':'null'}}}],'type':'object','unevaluatedProperties':"
         "false}",
         {"{'a':3}", "{'a':4,'b':null}"},
         {"{'a':2}", "{'a':3,'c':1}", "{'b':null}"}},
        {"{'type':'object','properties':{'a':{}},'anyOf':[{'properties':{'b':{}},'required':['b']},"
         "{'properties':{'c':{}},'required':['c']}],'unevaluatedProperties':false}",
         {"{'b':1}", "{'c':1}", "{'a':1,'b':1,'c':1}"},
         {"{'a':1}", "{'b':1,'d':1}", "{}"}},
        {"{'type':'object','properties':{'k':{'enum':['x','y']},'n':{},'c':{}},'required':['k'],"
         "'if':{'properties':{'k':{'const':'x'}}},'then':{'required':['c']},'else':{'required':"
         "['n']},'additionalProperties':false}",
         {"{'k':'x','c':1}", "{'k':'y','n':1}", "{'k':'x','n':1,'c':1}"},
         {"{'k':'x','n':1}", "{'k':'y','c':1}", "{'k':'x'}"}},
        {"{'type':'array','prefixItems':[{'const':1}],'anyOf':[{'prefixItems':[{},{'const':2}]},"
         "{'prefixItems':[{},{},{'const':3}]}],'unevaluatedItems':false}",
         {"[1]", "[1,2]", "[1,2,3]", "[1,9,3]", "[1,9]"},
         {"[2]", "[1,2,4]", "[1,9,3,4]"}},
        {"{'not':{'not':{'type':'null'}}}", {"null"}, {"1", "{}"}},
        {"{'anyOf':[{'type':'string'},{'type':'object','required':['a']}],'not':{'const':'x'}}",
         {"'y'", "{'a':1}"},
         {"'x'", "{}"}},
    };
    JUDGE(rows, &plain);
}

static void references(void **state)
{
    static const struct row rows[] = {
        {"{'$defs':{'n':{'type':'object','properties':{'c':{'type':'array','items':{'$ref':"
         "'#/$defs/n'}}},'required':['c'],'additionalProperties':false}},'$ref':'#/$defs/n'}",
         {"{'c':[]}", "{'c':[{'c':[]},{'c':[{'c':[]}]}]}"},
         {"{}", "{'c':[{}]}", "{'c':[1]}"}},
        {"{'$defs':{'a~b/c d':{'type':'null'}},'$ref':'#/$defs/a~0b~1c%20d'}", {"null"}, {"1"}},
        {"{'$defs':{'x':{'$anchor':'y','type':'null'}},'anyOf':[{'$ref':'#y'},{'const':1}]}",
         {"null", "1"},
         {"2"}},
        {"{'$id':'http://a.b/c/d.json','$defs':{'x':{'$id':'e.json','type':'null','$defs':{'z':"
         "{'type':'boolean'}}}},'anyOf':[{'$ref':'http://a.b/c/e.json'},{'$ref':"
         "'./e.json#/$defs/z'}]}",
         {"null", "true"},
         {"1"}},
        {"{'$defs':{'s':{'type':'string'}},'$ref':'#/$defs/s','minLength':2}",
         {"'ab'"},
         {"'a'", "1"}},
        {"{'type':'array','items':{'$ref':'#'},'maxItems':1}",
         {"[]", "[[]]", "[[[]]]"},
         {"[[],[]]", "[1]"}},
        /* what cannot end is left out: the list's end is its only value */
        {"{'$defs':{'l':{'type':'object','properties':{'n':{'$ref':'#/$defs/"
         "l'}},'required':['n']}},"
         "'anyOf':[{'$ref':'#/$defs/l'},{'type':'null'}]}",
         {"null"},
         {"{}", "{'n':null}"}},
        /* intersections and negations of recursive schemas */
        {"{'$defs':{'t':{'type':['array','null'],'items':{'$ref':'#/$defs/"
         "t'}},'s':{'type':['array',"
         "'null'],'maxItems':1,'items':{'$ref':'#/$defs/s'}}},'allOf':[{'$ref':'#/$defs/t'},"
         "{'not':{'$ref':'#/$defs/s'}}]}",
         {"[null,null]", "[[null,[]]]", "[[],[]]"},
         {"null", "[]", "[null]", "[[null]]", "[1,2]"}},
        {"{'$id':'http://a/r','$ref':'l','$defs':{'f':{'$dynamicAnchor':'i','type':'null'},'l':"
         "{'$id':'l','type':'array','items':{'$dynamicRef':'#i'},'$defs':{'d':{'$dynamicAnchor':"
         "'i'}}}}}",
         {"[]", "[null]"},
         {"[1]"}},
    };
    JUDGE(rows, &plain);
}

/* Members in any order, as a checker wants them. */
static void orders(void **state)
{
    static const struct row rows[] = {
        {"{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},"
         "'required':['b']}",
         {"{'b':null,'a':null}", "{'x':1,'b':null,'a':null}"},
         {"{'b':1}", "{'a':null}"}},
    };
    JUDGE(rows, &any_order);
}

/* ---- white space ----------------------------------------------------------------------------- */

static bool takes(struct eng_ir *ir, const char *text)
{
    struct eng_match m;
    assert_int_equal(eng_match_init(&m, ir, 64u << 20, ENG_RX_EMPTY), 0);
    bool yes =
        eng_match_bytes_in(&m, text, strlen(text)) == strlen(text) && eng_match_accepts(&m, &m.now);
    eng_match_fini(&m);
    return yes;
}

static void white_space(void **state)
{
    json_t *schema = parse("{'type':'object','properties':{'a':{'type':'array'}},"
                           "'additionalProperties':false}");
    static const char forty[] = "                                        ";
    struct cn_error err;
    struct eng_ir ir;
    char text[200];
    assert_int_equal(strlen(forty), 40);
    assert_int_equal(walk_compile(&ir, schema, &plain, ENG_SPELL_JSON, &err), 0);
    assert_true(takes(&ir, "{}") && takes(&ir, "{\"a\":[]}") && takes(&ir, "{ }"));
    assert_true(takes(&ir, "{\n\t\"a\": [\n]\n}"));
    assert_false(takes(&ir, "{\n\n}") || takes(&ir, " {}") || takes(&ir, "{} "));
    assert_false(takes(&ir, "{\"a\" :[]}") || takes(&ir, "{  }") || takes(&ir, "{\"a\":[1 ,2]}"));
    snprintf(text, sizeof text, "{\n%s\"a\":\n%s[]}", forty, forty);
    assert_true(takes(&ir, text));
    snprintf(text, sizeof text, "{\n%s \"a\":[]}", forty);
    assert_false(takes(&ir, text));
    eng_ir_fini(&ir);
    assert_int_equal(walk_compile(&ir, schema, &compact, ENG_SPELL_JSON, &err), 0);
    assert_true(takes(&ir, "{}") && takes(&ir, "{\"a\":[]}"));
    assert_false(takes(&ir, "{ }") || takes(&ir, "{\"a\": []}") || takes(&ir, "{\"a\" :[]}"));
    eng_ir_fini(&ir);
    json_decref(schema);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    static const struct {
        const char *schema;
        int code;
        const char *param, *message;
    } rows[] = {
        {"1", CN_EINVAL, "", "must be an object"},
        {"false", CN_EINVAL, "", "no value"},
        {"{'type':'string','const':1}", CN_EINVAL, "", "no value"},
        {"{'type':'object','required':['a'],'properties':{'a':{'type':'string','enum':[1]}}}",
         CN_EINVAL, "", "no value"},
        {"{'type':'object','required':['a'],'properties':{'a':{'$ref':'#'}}}", CN_EINVAL, "",
         "no value"},
        {"{'type':'array','items':{'enum':[1,2]},'uniqueItems':true,'minItems':3}", CN_EINVAL, "",
         "no value"},
        {"{'type':'object','propertyNames':{'enum':['a']},'minProperties':2}", CN_EINVAL, "",
         "no value"},
        {"{'properties':{'a':{'items':{'type':'text'}}}}", CN_EINVAL, "properties.a.items", "type"},
        {"{'anyOf':[true,{'minLength':-1}]}", CN_EINVAL, "anyOf[1]", "minLength"},
        {"{'required':'a'}", CN_EINVAL, "", "required"},
        {"{'allOf':[]}", CN_EINVAL, "", "allOf"},
        {"{'multipleOf':0}", CN_EINVAL, "", "multipleOf"},
        {"{'$ref':'#/$defs/x'}", CN_EINVAL, "", "#/$defs/x"},
        {"{'$ref':'#x'}", CN_EINVAL, "", "anchor"},
        {"{'$ref':'#'}", CN_EINVAL, "", "$ref leads back"},
        {"{'anyOf':[{'$ref':'#'},{'type':'null'}]}", CN_EINVAL, "", "refers back"},
        {"{'properties':{'a':{'$ref':'http://x/y'}}}", CN_EUNSUPP, "properties.a", "$ref"},
        {"{'$recursiveRef':'#'}", CN_EUNSUPP, "", "$recursiveRef"},
        {"{'$schema':'http://x/y'}", CN_EUNSUPP, "", "$schema"},
        {"{'items':{'format':'phone'}}", CN_EUNSUPP, "items", "format: phone"},
        {"{'type':'string','pattern':'(a)\\\\1'}", CN_EUNSUPP, "", "pattern"},
        {"{'type':'string','pattern':'('}", CN_EINVAL, "", "pattern"},
        {"{'properties':{'x':{'not':{'uniqueItems':true}}}}", CN_EUNSUPP, "properties.x.not",
         "uniqueItems"},
        {"{'allOf':[{'contains':{'minimum':1}},{'contains':{'maximum':9}}]}", CN_EUNSUPP, "",
         "contains"},
        {"{'type':'object','not':{'patternProperties':{'^a':{'type':'null'}}}}", CN_EUNSUPP, "not",
         "patternProperties"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        json_t *schema = parse(rows[i].schema);
        struct cn_error err = {0};
        struct eng_ir ir;
        int rc = walk_compile(&ir, schema, &plain, ENG_SPELL_JSON, &err);
        if (rc != rows[i].code || err.code != rc || !strstr(err.message, rows[i].message) ||
            (rows[i].param[0] && strcmp(err.param, rows[i].param) != 0))
            fail_msg("%s: %d (%d) %s: %s", rows[i].schema, rc, err.code, err.param, err.message);
        json_decref(schema);
    }
}

/* What nothing asks for is not looked at. */
static void unused_definitions(void **state)
{
    static const struct row rows[] = {
        {"{'$defs':{'x':{'$ref':'http://x/y'},'y':{'type':3}},'type':'null'}", {"null"}, {"1"}},
        {"{'enum':[{'$ref':'http://x/y'}]}", {"{'$ref':'http://x/y'}"}, {"{}"}},
        {"{'properties':{'$ref':{'type':'null'}}}", {"{'$ref':null}"}, {"{'$ref':1}"}},
    };
    JUDGE(rows, &plain);
}

/* ---- schemas that explode -------------------------------------------------------------------- */

/* A document of n definitions d0, d1, ...; each is `fmt` with the number of the one before it. */
static json_t *chain(unsigned n, const char *first, const char *fmt)
{
    json_t *defs = json_object(), *root = json_object();
    char text[500], name[20];
    json_object_set_new(defs, "d0", parse(first));
    for (unsigned i = 1; i < n; i++) {
        snprintf(text, sizeof text, fmt, i - 1, i - 1, i, i);
        snprintf(name, sizeof name, "d%u", i);
        json_object_set_new(defs, name, parse(text));
    }
    snprintf(text, sizeof text, "#/$defs/d%u", n - 1);
    json_object_set_new(root, "$defs", defs);
    json_object_set_new(root, "$ref", json_string(text));
    return root;
}

static json_t *many(const char *word, unsigned n, const char *fmt)
{
    json_t *list = json_array(), *root = json_object();
    char text[500];
    for (unsigned i = 0; i < n; i++) {
        snprintf(text, sizeof text, fmt, i, i, i);
        json_array_append_new(list, parse(text));
    }
    json_object_set_new(root, word, list);
    return root;
}

/* Compiles and frees the schema; its code. A second of processor time is many times what the limit
 * of work allows. */
static int outcome(json_t *schema, struct cn_error *err)
{
    clock_t start = clock();
    struct eng_ir ir;
    *err = (struct cn_error){0};
    int rc = walk_compile(&ir, schema, &plain, ENG_SPELL_JSON, err);
    if (!rc) eng_ir_fini(&ir);
    json_decref(schema);
    assert_true((clock() - start) / CLOCKS_PER_SEC < 3);
    return rc;
}

static void explosions(void **state)
{
    struct cn_error err;
    /* shared parts are not copied */
    assert_int_equal(outcome(chain(60, "{'type':'object'}",
                                   "{'allOf':[{'$ref':'#/$defs/d%u'},"
                                   "{'$ref':'#/$defs/d%u'}]}"),
                             &err),
                     0);
    /* 2^39 alternatives */
    assert_int_equal(
        outcome(chain(40, "{'type':'object'}",
                      "{'anyOf':[{'$ref':'#/$defs/d%u','required':['l']},{'$ref':'#/$defs/d%u',"
                      "'properties':{'l%u':{'type':'null'}},'required':['r%u']}]}"),
                &err),
        CN_ELIMIT);
    assert_int_equal(outcome(chain(5000, "{'type':'null'}", "{'$ref':'#/$defs/d%u'}"), &err),
                     CN_ELIMIT);
    assert_non_null(strstr(err.message, "200"));
    /* an open end for the parser's own depth: items within items */
    json_t *deep = json_object();
    for (unsigned i = 0; i < 1500; i++)
        deep = json_pack("{s:o}", "items", deep);
    assert_int_equal(outcome(deep, &err), CN_ELIMIT);
    assert_int_equal(outcome(many("allOf", 20,
                                  "{'type':'object','anyOf':[{'required':['a%u']},"
                                  "{'required':['b%u']},{'required':['c%u']}]}"),
                             &err),
                     CN_ELIMIT);
    assert_non_null(strstr(err.message, "2000"));
    assert_int_equal(outcome(many("oneOf", 1000,
                                  "{'type':'object','properties':{'k':{'const':"
                                  "'k%u'}},'required':['k','v%u']}"),
                             &err),
                     0);
    assert_int_equal(outcome(many("oneOf", 30,
                                  "{'type':'object','properties':{'k%u':{'type':"
                                  "'null'}},'required':['k%u'],"
                                  "'additionalProperties':false}"),
                             &err),
                     0);
    assert_int_equal(outcome(many("enum", 10000, "'value %u'"), &err), 0);
    assert_int_equal(outcome(many("enum", 10000, "%u"), &err), 0);
    assert_int_equal(outcome(many("enum", 10000, "{'a':%u}"), &err), CN_ELIMIT);
    assert_int_equal(outcome(many("prefixItems", 20000, "{'const':%u}"), &err), CN_ELIMIT);
}

static bool never_go_on(void *arg)
{
    return false;
}

/* A compilation that is no longer wanted ends. */
static void cancelled(void **state)
{
    json_t *schema = many("enum", 20000, "'value %u'");
    struct cn_error err = {0};
    struct eng_sym root;
    struct eng_ir ir;
    assert_int_equal(eng_ir_init(&ir, ENG_SPELL_JSON, 64u << 20, 0), 0);
    ir.rx.keep_going = never_go_on;
    assert_int_equal(eng_schema_compile(&ir, schema, &plain, &root, &err), CN_ECANCELLED);
    eng_ir_fini(&ir);
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),    cmocka_unit_test(patterns_of_strings),
        cmocka_unit_test(objects),    cmocka_unit_test(arrays),
        cmocka_unit_test(unions),     cmocka_unit_test(references),
        cmocka_unit_test(orders),     cmocka_unit_test(white_space),
        cmocka_unit_test(refusals),   cmocka_unit_test(unused_definitions),
        cmocka_unit_test(explosions), cmocka_unit_test(cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
