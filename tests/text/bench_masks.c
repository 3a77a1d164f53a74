/* How long masks take along texts, on one core: what tools/bench_masks.py compares with other
 * libraries.
 *
 *   bench_masks VOCAB.gguf --vocab         its tokens and merges, as JSON
 *   bench_masks VOCAB.gguf < CASES         CASES: a line {"schema": ..., "texts": [...]} each
 *
 * Prints a line of JSON for each case: {"error": ...} or {"bytes": of the grammar, "texts":
 * [{"ids", "whole", "cold", "warm"}]}. cold: the grammar is compiled for this text. warm: it was
 * followed along all texts before. Either has nanoseconds of the thread's processor time: compile,
 * begin (a new matcher), mask and put (a list with a number for each token; mask has one more, of
 * the end), and the matcher's bytes. */
#include "engine/text/grammar/grammar_impl.h"
#include "tests/text/vocab_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MATCH_BYTES = 256 << 20 };

struct bench {
    struct eng_vocab *v;
    const struct eng_trie *trie;
    uint32_t *mask;
};

/* Other programs do not count. */
static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_masks: %s\n", what);
    exit(2);
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

static json_t *texts_json(const struct eng_str *v, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_stringn(v[i].p, v[i].n));
    return list;
}

/* As the file has it, for other libraries' tokenizers. */
static void print_vocab(const struct vocab_file *f, const struct eng_vocab *v)
{
    json_t *control = json_array(), *ends = json_array();
    for (uint32_t id = 0; id < eng_vocab_size(v); id++) {
        if (eng_vocab_is_control(v, id)) json_array_append_new(control, json_integer(id));
        if (eng_vocab_is_eog(v, id)) json_array_append_new(ends, json_integer(id));
    }
    json_t *out = json_pack(
        "{s:o, s:o, s:o, s:o}", "tokens", texts_json(f->spec.tokens, f->spec.n_tokens), "merges",
        texts_json(f->spec.merges, f->spec.n_merges), "control", control, "ends", ends);
    json_dumpf(out, stdout, JSON_COMPACT);
    json_decref(out);
}

/* ---- one text -------------------------------------------------------------------------------- */

static struct eng_grammar *compile(json_t *schema, uint64_t *ns, struct cn_error *err)
{
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_SCHEMA, .json = schema};
    struct eng_grammar *g = NULL;
    uint64_t from = now();
    if (eng_grammar_compile(&in, &g, err)) return NULL;
    *ns = now() - from;
    return g;
}

static void add_ns(json_t *list, uint64_t from)
{
    json_array_append_new(list, json_integer((json_int_t)(now() - from)));
}

/* False: the mask does not have the token. */
static bool put(const struct bench *b, struct eng_match *m, uint32_t id, json_t *ns)
{
    struct eng_str s = eng_vocab_piece(b->v, id, false);
    if (!(b->mask[id / 32] >> (id % 32) & 1)) return false;
    uint64_t from = now();
    size_t k = eng_match_bytes_in(m, s.p, s.n);
    add_ns(ns, from);
    if (k != s.n) die("a token of the mask that the matcher does not take");
    return true;
}

/* Masks along the tokens; NULL: the text does not belong to the grammar. */
static json_t *follow(const struct bench *b, struct eng_grammar *g, const struct eng_ids *ids,
                      uint64_t compile_ns)
{
    struct eng_match m;
    struct eng_masker k;
    json_t *masks = json_array(), *puts = json_array();
    bool whole = true;
    uint64_t from = now();
    if (eng_match_init(&m, &g->ir, MATCH_BYTES, ENG_RX_EMPTY) ||
        eng_masker_init(&k, b->trie, eng_grammar_masks(g, b->trie)))
        die("out of memory");
    uint64_t begin = now() - from;
    for (size_t i = 0; i <= ids->n && whole; i++) {
        from = now();
        memset(b->mask, 0, b->trie->n_words * sizeof *b->mask);
        eng_mask(&k, &m, &m.now, UINT64_MAX, b->mask);
        add_ns(masks, from);
        whole = i < ids->n ? put(b, &m, ids->v[i], puts) : eng_match_accepts(&m, &m.now);
    }
    if (m.code) die(cn_err_info(m.code)->text);
    json_t *out =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "compile", (json_int_t)compile_ns, "begin",
                  (json_int_t)begin, "bytes", (json_int_t)eng_match_bytes(&m), "made",
                  (json_int_t)k.made, "found", (json_int_t)k.found, "mask", masks, "put", puts);
    eng_masker_fini(&k);
    eng_match_fini(&m);
    if (whole) return out;
    json_decref(out);
    return NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static json_t *ids_json(const struct eng_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++)
        json_array_append_new(list, json_integer(ids->v[i]));
    return list;
}

static json_t *bench_text(const struct bench *b, json_t *schema, const struct eng_ids *ids)
{
    struct cn_error err = {0};
    uint64_t ns = 0;
    struct eng_grammar *g = compile(schema, &ns, &err);
    if (!g) die(err.message);
    json_t *cold = follow(b, g, ids, ns);
    eng_grammar_unref(g);
    return cold ? cold : json_null();
}

static void warm_pass(const struct bench *b, struct eng_grammar *g, const struct eng_ids *ids,
                      json_t *texts)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        json_t *warm = follow(b, g, &ids[i], 0);
        json_object_set_new(json_array_get(texts, i), "warm", warm ? warm : json_null());
    }
}

static void tokenize(const struct bench *b, const json_t *text, struct eng_ids *ids)
{
    struct cn_error err = {0};
    *ids = (struct eng_ids){0};
    if (!json_is_string(text) || eng_tokenize(b->v, json_string_value(text),
                                              json_string_length(text), NULL, 0, 0, ids, &err))
        die("a text that is none");
}

static json_t *bench_case(const struct bench *b, json_t *c)
{
    struct cn_error err = {0};
    json_t *schema = json_object_get(c, "schema"), *in = json_object_get(c, "texts");
    size_t n = json_array_size(in);
    uint64_t ns = 0;
    struct eng_grammar *g = compile(schema, &ns, &err);
    if (!g) return json_pack("{s:s}", "error", err.message);
    struct eng_ids *ids = cn_calloc(n + 1, sizeof *ids);
    json_t *texts = json_array();
    for (size_t i = 0; i < n; i++) {
        tokenize(b, json_array_get(in, i), &ids[i]);
        json_t *cold = bench_text(b, schema, &ids[i]);
        json_array_append_new(texts, json_pack("{s:o, s:b, s:o}", "ids", ids_json(&ids[i]), "whole",
                                               json_is_object(cold), "cold", cold));
    }
    warm_pass(b, g, ids, texts);
    warm_pass(b, g, ids, texts); /* the one before it kept the masks */
    json_t *out =
        json_pack("{s:I, s:o}", "bytes", (json_int_t)eng_grammar_bytes(g), "texts", texts);
    for (size_t i = 0; i < n; i++)
        eng_ids_fini(&ids[i]);
    free(ids);
    eng_grammar_unref(g);
    return out;
}

int main(int argc, char **argv)
{
    struct vocab_file f;
    struct cn_error err = {0};
    struct bench b = {0};
    char *line = NULL;
    size_t cap = 0;
    if (argc < 2 || !vocab_file_read(&f, argv[1])) die("usage: bench_masks VOCAB.gguf [--vocab]");
    if (eng_vocab_new(&f.spec, &b.v, &err)) die(err.message);
    if (argc > 2) print_vocab(&f, b.v);
    vocab_file_fini(&f);
    if (argc > 2) {
        eng_vocab_free(b.v);
        return 0;
    }
    b.trie = eng_vocab_trie(b.v);
    b.mask = b.trie ? cn_calloc(b.trie->n_words, sizeof *b.mask) : NULL;
    if (!b.mask) die("out of memory");
    while (getline(&line, &cap, stdin) > 0) {
        json_t *c = json_loads(line, 0, NULL);
        json_t *out = c ? bench_case(&b, c) : NULL;
        if (!out) die("a line that is not JSON");
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(c);
    }
    free(line);
    free(b.mask);
    eng_vocab_free(b.v);
    return 0;
}
