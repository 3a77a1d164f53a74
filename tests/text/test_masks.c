/* Masks on a vocabulary of 128,000 tokens, along random answers to schemas: each against steps over
 * the bytes of every token that look at all that was seen; those with few tokens left, as they are
 * kept, against those of an answer that knows no kept ones; and answers that have few tokens end in
 * time. With CONIFER_LONG, of all the oracle's schemas. */
#include "engine/text/grammar/grammar_impl.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MATCH_BYTES = 1 << 30, STEPS = 24, RANDOM = 40 };

static struct eng_vocab *v;
static const struct eng_trie *trie;
static uint64_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* ---- a mask without shortcuts ---------------------------------------------------------------- */

/* Steps over the bytes of all tokens, those that begin alike once. */
static void plain_mask(struct eng_match *m, uint32_t *mask)
{
    const struct eng_tokens_tree *t = &trie->all;
    struct eng_places *at = cn_calloc(t->deepest + (size_t)1, sizeof *at);
    const struct eng_places *from = &m->now;
    uint32_t kept = m->n_kept;
    assert_non_null(at);
    for (size_t i = 0; i < t->n;) {
        const struct eng_trie_node *n = &t->nodes[i];
        from = n->depth > 1 ? &at[n->depth - 1] : &m->now;
        if (!eng_match_step(m, from, n->byte, &at[n->depth])) {
            i = n->end;
            continue;
        }
        for (uint32_t k = t->first[i]; k < t->first[i + 1] && eng_match_alive(m, &at[n->depth]);
             k++)
            mask[t->ids[k] >> 5] |= 1u << (t->ids[k] & 31);
        i++;
    }
    for (size_t i = 0; i < trie->n_eog && eng_match_accepts(m, &m->now); i++)
        mask[trie->eog[i] >> 5] |= 1u << (trie->eog[i] & 31);
    for (uint32_t i = 0; i <= t->deepest; i++)
        free(at[i].v);
    free(at);
    eng_match_unkeep(m, kept);
    assert_int_equal(m->code, 0);
}

static bool has(const uint32_t *mask, uint32_t id)
{
    return mask[id >> 5] >> (id & 31) & 1;
}

/* ---- random answers -------------------------------------------------------------------------- */

struct answer {
    struct eng_match m, plain; /* plain: for masks without shortcuts */
    struct eng_masker k;
    struct cn_buf text;
    uint32_t before[64], n_before; /* tokens that were put */
};

/* A token of the mask: often a short one, so that answers come to their ends, or one that came
 * before, so that names and items are equal; UINT32_MAX: none. */
static uint32_t draw(const struct answer *a, const uint32_t *mask)
{
    uint32_t again = a->n_before ? a->before[rnd(CN_MIN(a->n_before, 64u))] : 0;
    if (a->n_before && rnd(2) && has(mask, again)) return again;
    uint32_t chosen = UINT32_MAX, n = 0, most = rnd(3) ? 1 + rnd(4) : 1000;
    for (int any = 0; any < 2 && !n; any++)
        for (uint32_t id = 0; id < trie->n_vocab; id++) {
            if (!mask[id >> 5]) id |= 31;
            if (!has(mask, id) || eng_vocab_is_eog(v, id)) continue;
            if (!any && eng_vocab_piece(v, id, false).n > most) continue;
            if (!rnd(++n)) chosen = id;
        }
    return chosen;
}

static void begin(struct answer *a, struct eng_grammar *g)
{
    *a = (struct answer){0};
    assert_int_equal(eng_match_init(&a->m, &g->ir, MATCH_BYTES, ENG_RX_EMPTY), 0);
    assert_int_equal(eng_match_init(&a->plain, &g->ir, MATCH_BYTES, ENG_RX_EMPTY), 0);
    assert_int_equal(eng_masker_init(&a->k, trie, eng_grammar_masks(g, trie)), 0);
    cn_buf_init(&a->text, 0);
}

static void end(struct answer *a)
{
    eng_masker_fini(&a->k);
    eng_match_fini(&a->m);
    eng_match_fini(&a->plain);
    cn_buf_fini(&a->text);
}

static void put(struct answer *a, uint32_t id)
{
    struct eng_str s = eng_vocab_piece(v, id, false);
    assert_int_equal(eng_match_bytes_in(&a->m, s.p, s.n), s.n);
    cn_buf_append(&a->text, s.p, s.n);
    a->before[a->n_before++ % 64] = id;
}

static void compare(struct answer *a, const uint32_t *mask, uint32_t *want, const char *name)
{
    struct eng_str s = {a->text.data, a->text.len};
    eng_match_fini(&a->plain);
    assert_int_equal(eng_match_init(&a->plain, a->m.ir, MATCH_BYTES, ENG_RX_EMPTY), 0);
    assert_int_equal(eng_match_bytes_in(&a->plain, s.p, s.n), s.n);
    memset(want, 0, trie->n_words * sizeof *want);
    plain_mask(&a->plain, want);
    for (uint32_t id = 0; id < trie->n_vocab; id++)
        if (has(mask, id) != has(want, id)) {
            struct eng_str t = eng_vocab_piece(v, id, false);
            fail_msg("%s, after %.*s: token %u, \"%.*s\": want %d", name, (int)s.n, s.p, id,
                     (int)t.n, t.p, has(want, id));
        }
}

/* How many masks were compared. The second answer finds those that the first one kept. */
static unsigned walk(struct eng_grammar *g, const char *name, unsigned steps)
{
    struct answer a;
    uint32_t *mask = cn_calloc(2 * (size_t)trie->n_words, sizeof *mask), id = 0;
    unsigned n = 0;
    begin(&a, g);
    for (unsigned i = 0; i < steps && id != UINT32_MAX; i++) {
        memset(mask, 0, trie->n_words * sizeof *mask);
        assert_int_equal(eng_mask(&a.k, &a.m, &a.m.now, UINT64_MAX, mask), 0);
        compare(&a, mask, mask + trie->n_words, name);
        n++;
        id = draw(&a, mask);
        if (id != UINT32_MAX) put(&a, id);
        if (!rnd(4)) eng_match_compact(&a.m);
    }
    end(&a);
    free(mask);
    return n;
}

static void check_same(const struct answer *a, const uint32_t *mask, const uint32_t *want,
                       uint64_t left, const char *name)
{
    for (uint32_t t = 0; t < trie->n_vocab; t++)
        if (has(mask, t) != has(want, t)) {
            struct eng_str p = eng_vocab_piece(v, t, false);
            fail_msg("%s, after %.*s, %llu left: token \"%.*s\": want %d", name, (int)a->text.len,
                     a->text.data, (unsigned long long)left, (int)p.n, p.p, has(want, t));
        }
}

/* Masks that few tokens left make smaller: how many there were, and were kept. */
struct near_end {
    unsigned n, kept;
    unsigned open, n_open; /* places of which kept masks say that no byte must come; all those */
};

static void check_open(struct answer *a, struct near_end *out)
{
    char text[8];
    bool open = eng_mask_is_open(&a->k, &a->m, &a->m.now);
    size_t n = eng_match_forced(&a->plain, &a->plain.now, text, sizeof text);
    if (open) assert_int_equal(n, 0);
    out->open += open;
    out->n_open += !n;
}

static void near_end(struct eng_grammar *g, const char *name, unsigned steps, struct near_end *out)
{
    struct answer a;
    struct eng_masker alone;
    size_t n = trie->n_words, bytes = n * sizeof(uint32_t);
    uint32_t *mask = cn_calloc(3 * n, sizeof *mask), *want = mask + n, *all = mask + 2 * n, id = 0;
    begin(&a, g);
    assert_int_equal(eng_masker_init(&alone, trie, NULL), 0);
    for (unsigned i = 0; i < steps && id != UINT32_MAX; i++) {
        uint64_t least = eng_match_distance(&a.m, &a.m.now), found;
        eng_match_fini(&a.plain);
        assert_int_equal(eng_match_init(&a.plain, &g->ir, MATCH_BYTES, ENG_RX_EMPTY), 0);
        eng_match_bytes_in(&a.plain, a.text.data, a.text.len);
        memset(all, 0, bytes);
        assert_int_equal(eng_mask(&a.k, &a.m, &a.m.now, UINT64_MAX, all), 0);
        for (unsigned k = 0; k < 3; k++) {
            uint64_t left = least - CN_MIN(least, rnd(4)) + rnd(k ? 7 : 60);
            memset(mask, 0, 2 * bytes);
            assert_int_equal(eng_mask(&a.k, &a.m, &a.m.now, left, mask), 0);
            assert_int_equal(eng_mask(&alone, &a.plain, &a.plain.now, left, want), 0);
            check_same(&a, mask, want, left, name);
            found = a.k.found;
            memset(mask, 0, bytes);
            assert_int_equal(eng_mask(&a.k, &a.m, &a.m.now, left, mask), 0);
            check_same(&a, mask, want, left, name);
            out->n += left && memcmp(mask, all, bytes) != 0;
            out->kept += left && memcmp(mask, all, bytes) != 0 && a.k.found > found;
        }
        check_open(&a, out);
        id = draw(&a, mask);
        if (id != UINT32_MAX) put(&a, id);
        if (!rnd(4)) eng_match_compact(&a.m);
    }
    eng_masker_fini(&alone);
    end(&a);
    free(mask);
}

/* Tokens are drawn as they come until few are left: then the answer must end in time. */
static void run_out(struct eng_grammar *g, const char *name, uint32_t most)
{
    struct answer a;
    uint32_t *mask = cn_calloc(trie->n_words, sizeof *mask), id;
    begin(&a, g);
    uint32_t left = CN_MAX(most, eng_match_distance(&a.m, &a.m.now));
    for (;; left--) {
        memset(mask, 0, trie->n_words * sizeof *mask);
        assert_int_equal(eng_mask(&a.k, &a.m, &a.m.now, left, mask), 0);
        id = draw(&a, mask);
        if (id == UINT32_MAX || !left) break;
        put(&a, id);
    }
    if (!eng_match_accepts(&a.m, &a.m.now))
        fail_msg("%s: %u tokens are left, and no end can be reached behind %.*s", name, left,
                 (int)a.text.len, a.text.data);
    end(&a);
    free(mask);
}

/* ---- schemas --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *schema;
} schemas[] = {
    {"strings", "{'properties':{'name':{'type':'string'},'code':{'type':'string','maxLength':5},"
                "'note':{'type':'string','minLength':2,'maxLength':90}},'required':['name','code',"
                "'note'],'additionalProperties':false}"},
    {"numbers", "{'properties':{'a':{'type':'integer','multipleOf':5},'b':{'type':'number',"
                "'minimum':-2,'maximum':1000}},'required':['a','b'],'additionalProperties':false}"},
    {"enums", "{'type':'array','items':{'enum':['red','green','\\u00e4\\u5b57',1,null,true]}}"},
    {"map", "{'type':'object','additionalProperties':{'type':'string'},'minProperties':2}"},
    {"map of objects",
     "{'type':'object','additionalProperties':{'type':'object','properties':"
     "{'a':{'type':'integer'},'b':{'type':'array','items':{'type':'boolean'}}}}}"},
    {"unique words", "{'type':'array','items':{'type':'string'},'uniqueItems':true}"},
    {"unique few", "{'type':'array','items':{'enum':['a','b','c','ab']},'uniqueItems':true,"
                   "'minItems':3}"},
    {"unique numbers", "{'type':'array','items':{'type':'integer','minimum':0,'maximum':30},"
                       "'uniqueItems':true}"},
    {"unique objects", "{'type':'array','items':{'type':'object','properties':{'x':{'type':'array',"
                       "'items':{'type':'string'},'uniqueItems':true}},'required':['x'],"
                       "'additionalProperties':false},'uniqueItems':true}"},
    {"unique maps", "{'type':'array','items':{'type':'object','additionalProperties':{'enum':[1,"
                    "2]}},'uniqueItems':true}"},
    {"unique closed", "{'type':'array','items':{'type':'object','properties':{'a':{'enum':['x','y',"
                      "'xy']},'b':{'type':'boolean'}},'required':['a','b'],'additionalProperties':"
                      "false},'uniqueItems':true,'minItems':6}"},
    {"recursive", "{'$ref':'#/$defs/n','$defs':{'n':{'type':'object','properties':{'v':{'type':"
                  "'string'},'kids':{'type':'array','items':{'$ref':'#/$defs/n'}}},'required':"
                  "['v']}}}"},
    {"few names", "{'type':'object','propertyNames':{'pattern':'^[a-c]{1,2}$'},"
                  "'additionalProperties':{'enum':[1,'x']}}"},
    {"map of maps",
     "{'type':'object','additionalProperties':{'type':'object',"
     "'additionalProperties':{'type':'array','items':{'type':'string'},'uniqueItems':"
     "true}}}"},
    {"lines", "{'type':'array','items':{'type':'string','pattern':'^\\\\S.*\\\\S$'}}"},
    {"union", "{'anyOf':[{'type':'object','properties':{'k':{'const':'one'},'s':{'type':'string'}},"
              "'required':['k','s']},{'type':'array','items':{'type':'number'}},"
              "{'type':'string','maxLength':70}]}"},
};

static struct eng_grammar *compiled(enum eng_grammar_kind kind, const char *text, size_t n)
{
    struct eng_grammar_in in = {.kind = kind, .text = text, .n = n};
    struct eng_grammar *g = NULL;
    struct cn_error err = {0};
    if (eng_grammar_compile(&in, &g, &err)) return NULL;
    return g;
}

/* Single quotes of a schema in C become double ones. */
static struct eng_grammar *quoted(const char *schema)
{
    char text[1024];
    size_t n = strlen(schema);
    assert_true(n < sizeof text);
    for (size_t i = 0; i <= n; i++)
        text[i] = schema[i] == '\'' ? '"' : schema[i];
    struct eng_grammar *g = compiled(ENG_GRAMMAR_SCHEMA, text, n);
    if (!g) fail_msg("%s", schema);
    return g;
}

/* Appends a random schema in single quotes. */
static void make_schema(struct cn_buf *out, unsigned depth)
{
    static const char *const leaves[] = {
        "{'type':'string'}",
        "{'type':'string','minLength':2,'maxLength':12}",
        "{'type':'string','minLength':60,'maxLength':90}",
        "{'type':'string','format':'date'}",
        "{'type':'string','pattern':'^[A-Z][a-z]+( [a-z]{3,9}){2}$'}",
        "{'type':'integer','minimum':-4,'maximum':2000}",
        "{'type':'number'}",
        "{'enum':['a','longer than the others',null,12345678]}",
        "{'type':'boolean'}",
    };
    static const char *const parts[][3] = {
        {"{'type':'array','minItems':2,'items':", "", "}"},
        {"{'type':'array','uniqueItems':true,'minItems':1,'items':", "", "}"},
        {"{'type':'object','minProperties':1,'additionalProperties':", "", "}"},
        {"{'anyOf':[", ",", "]}"},
        {"{'type':'object','additionalProperties':false,'required':['yy'],'properties':{'x':",
         ",'yy':", "}}"},
    };
    if (depth == 2 || !rnd(4)) {
        cn_buf_puts(out, leaves[rnd(CN_ARRAY_LEN(leaves))]);
        return;
    }
    const char *const *p = parts[rnd(CN_ARRAY_LEN(parts))];
    cn_buf_puts(out, p[0]);
    make_schema(out, depth + 1);
    cn_buf_puts(out, p[1]);
    if (*p[1]) make_schema(out, depth + 1);
    cn_buf_puts(out, p[2]);
}

static void test_near_the_end(void **state)
{
    struct near_end masks = {0};
    struct cn_buf schema;
    if (!vocab_here()) skip();
    cn_buf_init(&schema, 0);
    for (unsigned i = 0; i < CN_ARRAY_LEN(schemas) + RANDOM; i++) {
        bool listed = i < CN_ARRAY_LEN(schemas);
        seed = 2000 + i + (getenv("SEED") ? 1000ul * (unsigned long)atoi(getenv("SEED")) : 0);
        schema.len = 0;
        if (!listed) make_schema(&schema, 0);
        const char *text = listed ? schemas[i].schema : cn_buf_cstr(&schema);
        struct eng_grammar *g = quoted(text);
        for (int again = 0; again < 2; again++)
            near_end(g, text, STEPS / 2, &masks);
        eng_grammar_unref(g);
    }
    cn_buf_fini(&schema);
    print_message("%u masks near the end, %u of them kept; %u of %u open\n", masks.n, masks.kept,
                  masks.open, masks.n_open);
    assert_in_range(masks.n, 500, UINT32_MAX);
    assert_true(masks.kept > masks.n / 2);
    assert_true(masks.open > masks.n_open / 2);
}

static void test_all_tokens(void **state)
{
    unsigned n = 0;
    if (!vocab_here()) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(schemas); i++) {
        struct eng_grammar *g = quoted(schemas[i].schema);
        seed = i;
        for (int again = 0; again < 2; again++)
            n += walk(g, schemas[i].name, STEPS);
        eng_grammar_unref(g);
    }
    print_message("%u masks\n", n);
    assert_true(n > 150);
}

/* Any characters but a few, in a grammar that is not of JSON. */
static void test_gbnf(void **state)
{
    static const char *const grammars[] = {
        "root ::= \"[\" string (\", \" string)* \"]\"\n"
        "string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" "
        "([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\"\n",
        "root ::= line line*\nline ::= \"- \" [^\\r\\n]* \"\\n\"\n",
        "root ::= [^x]{3,70} \"x\" [^\\x7F]*\n",
    };
    if (!vocab_here()) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(grammars); i++) {
        struct eng_grammar *g = compiled(ENG_GRAMMAR_GBNF, grammars[i], strlen(grammars[i]));
        assert_non_null(g);
        seed = i;
        for (int again = 0; again < 2; again++)
            assert_true(walk(g, grammars[i], STEPS) > 3);
        for (uint32_t most = 0; most < 64; most = most * 2 + 1)
            run_out(g, grammars[i], most);
        eng_grammar_unref(g);
    }
}

static void test_ends_in_time(void **state)
{
    if (!vocab_here()) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(schemas); i++) {
        struct eng_grammar *g = quoted(schemas[i].schema);
        seed = 1000 + i;
        for (uint32_t most = 0; most < 64; most = most * 2 + 1)
            run_out(g, schemas[i].name, most);
        eng_grammar_unref(g);
    }
}

static void test_oracle(void **state)
{
    const char *dir = getenv("CONIFER_ORACLE");
    char path[1024];
    if (!getenv("CONIFER_LONG") || !dir) skip();
    snprintf(path, sizeof path, "%s/schemas/schemas.json", dir);
    json_t *file = json_load_file(path, 0, NULL), *list = json_object_get(file, "schemas");
    size_t i;
    json_t *s;
    assert_true(json_array_size(list) > 0);
    json_array_foreach(list, i, s)
    {
        const char *name = json_string_value(json_object_get(s, "name"));
        char *text = json_dumps(json_object_get(s, "schema"), 0);
        struct eng_grammar *g = compiled(ENG_GRAMMAR_SCHEMA, text, strlen(text));
        seed = i + (getenv("SEED") ? 1000ul * (unsigned long)atoi(getenv("SEED")) : 0);
        if (g) {
            walk(g, name, STEPS / 2);
            for (uint32_t most = 1; most < 200; most *= 3)
                run_out(g, name, most);
        }
        eng_grammar_unref(g);
        free(text);
    }
    json_decref(file);
}

static int open_vocab(void **state)
{
    v = vocab_open("llama-bpe");
    trie = v ? eng_vocab_trie(v) : NULL;
    return (v != NULL) != (trie != NULL) || (vocab_here() && !v);
}

static int close_vocab(void **state)
{
    eng_vocab_free(v);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_tokens), cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_ends_in_time), cmocka_unit_test(test_near_the_end),
        cmocka_unit_test(test_oracle)};
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
