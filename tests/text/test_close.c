/* Whether an answer can always be closed: from wherever a random answer to one of the oracle's
 * schemas is, some byte leads nearer to the end, as the distance says, until the answer is complete
 * and a value of the schema. And with a vocabulary: an answer that has as many tokens left as the
 * distance is complete with them, whichever tokens of the masks it takes. */
#include "engine/text/grammar/mask.h"
#include "tests/text/schema_walk.h"
#include "tests/text/small_vocab.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { WALKS = 4, STEPS = 150 };

static uint32_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* Bytes of JSON, those that close and separate first: they are tried in this order. */
static const char bytes[] =
    "\"}],:{[0123456789-.tfnrueals bcdghijkmopqvwxyz_ABCDEFGHIJKLMNOPQRST"
    "UVWXYZ@/+\\()!?*#%&;<>=|~^$`' \x80\x81\x84\x9c\xbc\xa6\xaf\xc3\xe4\xe5\xe6\xf0\x9f";

struct walk {
    struct eng_match m;
    struct eng_places next;
    struct cn_buf text;
};

/* Where a byte leads, if masks allow it. */
static bool leads(struct walk *w, uint8_t byte)
{
    return eng_match_step(&w->m, &w->m.now, byte, &w->next) && eng_match_alive(&w->m, &w->next);
}

static bool go(struct walk *w, uint8_t byte)
{
    if (!leads(w, byte)) return false;
    struct eng_places old = w->m.now;
    w->m.now = w->next;
    w->next = old;
    cn_buf_putc(&w->text, (char)byte);
    eng_match_tidy(&w->m);
    return true;
}

/* Some way into an answer. Names are hard to hit, so that what is nearest comes often. */
static void wander(struct walk *w, uint32_t steps)
{
    for (uint32_t i = 0; i < steps && !w->m.code; i++) {
        uint32_t from = rnd(3) ? 0 : rnd(sizeof bytes - 1);
        for (uint32_t k = 0; k < sizeof bytes - 1; k++)
            if (go(w, (uint8_t)bytes[(from + k) % (sizeof bytes - 1)])) break;
    }
}

/* The byte that leads nearer to the end; -1: none does. */
static int nearer(struct walk *w, uint32_t far)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < (pass ? 256 : (int)sizeof bytes - 1); i++) {
            int byte = pass ? i : (uint8_t)bytes[i];
            if (leads(w, (uint8_t)byte) && eng_match_distance(&w->m, &w->next) < far) return byte;
        }
    return -1;
}

static bool closes(struct walk *w)
{
    uint32_t far;
    while ((far = eng_match_distance(&w->m, &w->m.now)) && !w->m.code) {
        int byte = far == UINT32_MAX ? -1 : nearer(w, far);
        if (byte < 0 || !go(w, (uint8_t)byte)) return false;
    }
    return !w->m.code && eng_match_accepts(&w->m, &w->m.now);
}

/* schema_walk.c writes such numbers otherwise than the grammar does. */
static bool has_long_number(const struct walk *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->text.len && n < 6; i++)
        n = w->text.data[i] >= '0' && w->text.data[i] <= '9' ? n + 1 : 0;
    return n >= 6 || memmem(w->text.data, w->text.len, "0.0000", 6);
}

static bool is_value(struct eng_ir *ir, const struct walk *w)
{
    if (has_long_number(w)) return true;
    json_t *v = json_loadb(w->text.data, w->text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool has = v && walk_has(ir, v);
    json_decref(v);
    return has;
}

/* ---- with tokens ----------------------------------------------------------------------------- */

static struct eng_vocab *vocab(void)
{
    static const char *const words[] = {
        "\":",   "\",",    "\",\"", "{\"",  "\":\"", "\"}",   "]}",   "}}",    "[]",
        "\":[",  "\":{\"", "\":0",  "0,",   "\":{",  "},{\"", "na",   "name",  "date",
        "price", "tax",    "code",  "note", "ti",    "title", "lan",  "ing",   "at",
        "er",    "on",     "re",    "st",   "00",    "10",    "true", "false", "null",
        ",\"",   "  ",     "\n  ",  "\n",   "},",    "],",    ":",    "\"]"};
    static struct token_list l;
    struct eng_vocab_spec s = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v;
    l = (struct token_list){0};
    add_bytes(&l);
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++) {
        char text[32];
        size_t n = 0;
        for (const char *p = words[i]; *p; p++)
            n += cn_utf8_encode(eng_byte_char((uint8_t)*p), text + n);
        add_token(&l, text, n, ENG_TOKEN_NORMAL);
    }
    add_token(&l, "<eos>", 5, ENG_TOKEN_CONTROL);
    use_tokens(&s, &l);
    s.eos = (int64_t)l.n - 1;
    assert_int_equal(eng_vocab_new(&s, &v, NULL), 0);
    return v;
}

/* Any token of the mask; an end of generation is SIZE_MAX. */
static size_t pick(const struct eng_trie *t, const uint32_t *mask, const struct walk *w)
{
    uint32_t from = rnd(t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        uint32_t id = (from + i) % t->n_vocab;
        if (mask[id >> 5] >> (id & 31) & 1) return id == t->eog[0] ? SIZE_MAX : id;
    }
    fail_msg("no token may come after %.*s", (int)w->text.len, w->text.data);
    return SIZE_MAX;
}

/* As many tokens as there are left, then the end. */
static bool ends_in_time(struct walk *w, struct eng_masker *k, const struct eng_vocab *v)
{
    uint32_t mask[16];
    uint64_t left = eng_match_distance(&w->m, &w->m.now);
    for (;; left--) {
        memset(mask, 0, sizeof mask);
        if (eng_mask(k, &w->m, &w->m.now, left, mask)) return false;
        size_t id = pick(k->trie, mask, w);
        if (id == SIZE_MAX) return true;
        if (!left) return false;
        struct eng_str s = eng_vocab_piece(v, (uint32_t)id, false);
        for (size_t i = 0; i < s.n; i++)
            if (!go(w, (uint8_t)s.p[i])) return false;
    }
}

static unsigned try_tokens(struct eng_ir *ir, const char *name, const struct eng_vocab *v)
{
    unsigned wrong = 0;
    for (uint32_t i = 0; i < WALKS; i++) {
        struct walk w = {.next = {0}};
        struct eng_masker k;
        assert_int_equal(eng_match_init(&w.m, ir, 64u << 20, ENG_RX_EMPTY), 0);
        w.m.trie = eng_vocab_trie(v);
        assert_int_equal(eng_masker_init(&k, w.m.trie, NULL), 0);
        cn_buf_init(&w.text, 0);
        wander(&w, i ? rnd(STEPS) : 0);
        size_t from = w.text.len;
        if (!ends_in_time(&w, &k, v) || !is_value(ir, &w)) {
            printf("  NOT IN TIME %s: code %d: %.*s | %.*s\n", name, w.m.code, (int)from,
                   w.text.data, (int)(w.text.len - from), w.text.data + from);
            wrong++;
        }
        cn_buf_fini(&w.text);
        free(w.next.v);
        eng_masker_fini(&k);
        eng_match_fini(&w.m);
    }
    return wrong;
}

static int compile(struct eng_ir *ir, json_t *schema, const struct eng_vocab *v)
{
    static const struct eng_schema_opts opts = {0};
    struct eng_sym root;
    int rc = eng_ir_init(ir, ENG_SPELL_JSON, 64u << 20, 20000000);
    assert_int_equal(rc, 0);
    ir->trie = v ? eng_vocab_trie(v) : NULL;
    rc = eng_schema_compile(ir, schema, &opts, &root, NULL);
    if (!rc) rc = eng_ir_finish(ir, root, NULL);
    if (rc) eng_ir_fini(ir);
    return rc;
}

/* An answer of any tokens of the masks; with some answers the matcher is compacted on the way. */
static void check_walk(struct eng_ir *ir, const struct eng_vocab *v)
{
    struct walk w = {.next = {0}};
    struct eng_masker k;
    bool compact = rnd(2);
    uint32_t mask[16];
    assert_int_equal(eng_match_init(&w.m, ir, 64u << 20, ENG_RX_EMPTY), 0);
    w.m.trie = eng_vocab_trie(v);
    assert_int_equal(eng_masker_init(&k, w.m.trie, NULL), 0);
    cn_buf_init(&w.text, 0);
    for (uint64_t left = eng_match_distance(&w.m, &w.m.now) + 150;; left--) {
        memset(mask, 0, sizeof mask);
        assert_int_equal(eng_mask(&k, &w.m, &w.m.now, left, mask), 0);
        size_t id = pick(k.trie, mask, &w);
        if (id == SIZE_MAX) break;
        struct eng_str s = eng_vocab_piece(v, (uint32_t)id, false);
        for (size_t i = 0; i < s.n; i++)
            assert_true(go(&w, (uint8_t)s.p[i]));
        if (compact) eng_match_compact(&w.m);
        if (!left) print_message("NOT IN TIME %.*s\n", (int)w.text.len, w.text.data);
        assert_true(left);
    }
    assert_true(is_value(ir, &w));
    cn_buf_fini(&w.text);
    free(w.next.v);
    eng_masker_fini(&k);
    eng_match_fini(&w.m);
}

/* ---- items that differ ----------------------------------------------------------------------- */

#define UNIQUE(n, items)                                                                           \
    "{\"type\": \"array\", \"uniqueItems\": true, \"minItems\": " n ", \"items\": " items "}"
#define CLOSED(members, required)                                                                  \
    "{\"type\": \"object\", \"properties\": {" members "}, \"required\": [" required               \
    "], \"additionalProperties\": false}"

/* All values that there are, or nearly all, must come: whoever is not careful gets stuck. */
static void test_unique(void **state)
{
    static const char *const schemas[] = {
        UNIQUE("4", CLOSED("\"a\": {\"enum\": [\"x\", \"y\"]}, \"b\": {\"type\": \"boolean\"}",
                           "\"a\", \"b\"")),
        UNIQUE("3", CLOSED("\"a\": {\"enum\": [\"x y\", \"x\", null]}", "\"a\"")),
        UNIQUE("3", CLOSED("\"a\": {\"type\": \"string\"}", "\"a\"")),
        UNIQUE("5", "{\"type\": \"array\", \"items\": {\"enum\": [1, 2]}, \"minItems\": 1, "
                    "\"maxItems\": 2}"),
        UNIQUE("3", UNIQUE("2", "{\"enum\": [1, 2, 3]}")),
        UNIQUE("4", "{\"anyOf\": [{\"type\": \"boolean\"}, " CLOSED(
                        "\"a\": {\"type\": \"boolean\"}", "\"a\"") "]}"),
        UNIQUE("2",
               CLOSED("\"a\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 2}", "\"a\"")),
        "{\"type\": \"object\", \"properties\": {\"l\": " UNIQUE(
            "2", CLOSED("\"a\": {\"type\": \"boolean\"}",
                        "\"a\"")) ", \"m\": {\"type\": \"null\"}}, \"required\": [\"l\", \"m\"], "
                                  "\"additionalProperties\": false}",
    };
    (void)state;
    struct eng_vocab *v = vocab();
    for (size_t i = 0; i < CN_ARRAY_LEN(schemas); i++) {
        struct eng_ir ir;
        json_t *schema = json_loads(schemas[i], 0, NULL);
        assert_non_null(schema);
        seed = (uint32_t)i;
        assert_int_equal(compile(&ir, schema, v), 0);
        for (int k = 0; k < 6; k++)
            check_walk(&ir, v);
        eng_ir_fini(&ir);
        json_decref(schema);
    }
    eng_vocab_free(v);
}

/* ---- all schemas ----------------------------------------------------------------------------- */

static unsigned try_schema(struct eng_ir *ir, const char *name)
{
    unsigned wrong = 0;
    for (uint32_t i = 0; i < WALKS; i++) {
        struct walk w = {.next = {0}};
        assert_int_equal(eng_match_init(&w.m, ir, 64u << 20, ENG_RX_EMPTY), 0);
        cn_buf_init(&w.text, 0);
        wander(&w, i ? rnd(STEPS) : 0);
        size_t from = w.text.len;
        bool closed = closes(&w);
        if (!closed || !is_value(ir, &w)) {
            printf("  %s %s: code %d: %.*s | %.*s\n", closed ? "NO VALUE" : "NOT CLOSED", name,
                   w.m.code, (int)from, w.text.data, (int)(w.text.len - from), w.text.data + from);
            wrong++;
        }
        cn_buf_fini(&w.text);
        free(w.next.v);
        eng_match_fini(&w.m);
    }
    return wrong;
}

/* Of items that must differ the shortest ones may be taken, so that the distance is a guess. */
static bool has_unique(json_t *v)
{
    const char *name;
    json_t *of;
    size_t i;
    json_object_foreach(v, name,
                        of) if (!strcmp(name, "uniqueItems") || has_unique(of)) return true;
    json_array_foreach(v, i, of) if (has_unique(of)) return true;
    return false;
}

static void over_schemas(const struct eng_vocab *v)
{
    unsigned wrong = 0, n = 0;
    char path[512];
    const char *set = getenv("CONIFER_ORACLE");
    snprintf(path, sizeof path, "%s/schemas/schemas.json",
             set ? set : CONIFER_SOURCE_ROOT "/../shared/oracle");
    if (!vocab_here()) skip();
    json_t *doc = json_load_file(path, JSON_ALLOW_NUL, NULL),
           *list = json_object_get(doc, "schemas");
    assert_int_equal(json_array_size(list), 300);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *one = json_array_get(list, i);
        struct eng_ir ir;
        const char *name = json_string_value(json_object_get(one, "name"));
        seed = (uint32_t)i * 7919;
        if (compile(&ir, json_object_get(one, "schema"), v)) continue;
        if (!has_unique(json_object_get(one, "schema")))
            wrong += v ? try_tokens(&ir, name, v) : try_schema(&ir, name);
        for (int k = 0; v && k < 1; k++)
            check_walk(&ir, v);
        n++;
        eng_ir_fini(&ir);
    }
    json_decref(doc);
    print_message("%u schemas, %u answers\n", n, n * WALKS);
    assert_int_equal(wrong, 0);
    assert_true(n >= 150);
}

static void test_bytes(void **state)
{
    (void)state;
    over_schemas(NULL);
}

static void test_tokens(void **state)
{
    (void)state;
    struct eng_vocab *v = vocab();
    over_schemas(v);
    eng_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes), cmocka_unit_test(test_tokens),
                                       cmocka_unit_test(test_unique)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
