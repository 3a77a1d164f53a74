/* grammar: compiles grammars of every kind. See grammar.h. */
#include "engine/text/grammar/grammar.h"

#include "engine/text/grammar/calls.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/grammar_impl.h"
#include "engine/text/grammar/lark.h"
#include "engine/text/grammar/schema.h"

#include <stdlib.h>

enum { DEFAULT_BYTES = 64 << 20, MOST_LEAD = 8 };

static int compile_schema(const struct eng_grammar_in *in, json_t *schema, struct eng_ir *ir,
                          struct eng_sym *root, struct cn_error *err)
{
    const struct eng_schema_opts opts = {
        .compact = in->compact, .any_order = in->any_order, .plain_formats = in->plain_formats};
    return eng_schema_compile(ir, schema, &opts, root, err);
}

static int compile_object(const struct eng_grammar_in *in, struct eng_ir *ir, struct eng_sym *root,
                          struct cn_error *err)
{
    json_t *schema = json_pack("{s:s}", "type", "object");
    if (!schema) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = compile_schema(in, schema, ir, root, err);
    json_decref(schema);
    return rc;
}

static int compile_regex(const struct eng_grammar_in *in, struct eng_ir *ir, struct eng_sym *root,
                         struct cn_error *err)
{
    uint32_t x;
    if (in->n > ENG_SOURCE_MAX)
        return cn_fail(err, CN_ELIMIT, "the regular expression has %zu bytes (at most %u)", in->n,
                       ENG_SOURCE_MAX);
    int rc = eng_spell_pattern(&ir->rx, ENG_SPELL_RAW, in->text, in->n, true, &x, err);
    if (!rc) *root = eng_ir_lexeme(ir, x, false);
    return rc;
}

static int compile_choice(json_t *list, struct eng_ir *ir, struct eng_sym *root,
                          struct cn_error *err)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || !n)
        return cn_fail(err, CN_EINVAL, "expected a list of at least one text to choose from");
    struct eng_str *texts = cn_malloc_array(n, sizeof *texts);
    if (!texts) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(list, i);
        if (!json_is_string(s)) {
            free(texts);
            return cn_fail(err, CN_ETYPE, "number %zu of the texts to choose from is not a string",
                           i + 1);
        }
        texts[i] = (struct eng_str){json_string_value(s), json_string_length(s)};
    }
    *root = eng_ir_lexeme(ir, eng_spell_texts(&ir->rx, ENG_SPELL_RAW, texts, n), false);
    free(texts);
    return 0;
}

/* answer: what may be answered instead; NULL: nothing. */
static int compile_calls(const struct eng_grammar_in *in, json_t *tools,
                         const struct eng_sym *answer, struct eng_ir *ir, struct eng_sym *root,
                         struct cn_error *err)
{
    const struct eng_schema_opts opts = {.compact = in->compact, .any_order = in->any_order};
    const struct eng_calls_in calls = {.format = in->reply,
                                       .vocab = in->vocab,
                                       .tools = tools,
                                       .inputs = in->inputs,
                                       .many = in->many,
                                       .free = in->free,
                                       .answer = answer,
                                       .opts = &opts};
    return eng_calls_compile(ir, &calls, root, err);
}

/* The answer, or calls. */
static int or_calls(const struct eng_grammar_in *in, struct eng_ir *ir, struct eng_sym *root,
                    struct cn_error *err)
{
    struct eng_sym calls, both = eng_ir_rule(ir), answer = *root;
    if (eng_calls_whole(in->reply)) return compile_calls(in, in->calls, &answer, ir, root, err);
    int rc = compile_calls(in, in->calls, NULL, ir, &calls, err);
    if (rc) return rc;
    eng_ir_add(ir, both, root, 1);
    eng_ir_add(ir, both, &calls, 1);
    *root = both;
    return ir->rx.code;
}

/* GBNF and Lark. */
static int compile_rules(const struct eng_grammar_in *in, struct eng_ir *ir, struct eng_sym *root,
                         struct cn_error *err)
{
    const struct eng_schema_opts schema = {
        .compact = in->compact, .any_order = in->any_order, .plain_formats = in->plain_formats};
    const struct eng_lark_opts opts = {.vocab = in->vocab, .schema = &schema};
    struct eng_bnf b = {0};
    int rc = eng_source_init(&b.src, in->text, in->n, err);
    if (rc) return rc;
    b.src.keep_going = in->keep_going;
    b.src.arg = in->arg;
    if (in->kind == ENG_GRAMMAR_GBNF)
        rc = eng_gbnf_read(&b, ir, in->vocab, root);
    else
        rc = eng_lark_read(&b, ir, &opts, root);
    eng_bnf_fini(&b);
    return rc;
}

/* The JSON of a schema or a list that was given as text. *own: to be freed. */
static int read_json(const struct eng_grammar_in *in, json_t **json, json_t **own,
                     struct cn_error *err)
{
    json_error_t e;
    *json = in->json;
    if (in->json || (in->kind != ENG_GRAMMAR_SCHEMA && in->kind != ENG_GRAMMAR_CHOICE &&
                     in->kind != ENG_GRAMMAR_CALLS))
        return 0;
    if (in->n > ENG_SOURCE_MAX)
        return cn_fail(err, CN_ELIMIT, "the text has %zu bytes (at most %u)", in->n,
                       ENG_SOURCE_MAX);
    *json = *own = json_loadb(in->text, in->n, JSON_DECODE_ANY, &e);
    if (*own) return 0;
    return cn_fail(err, CN_EINVAL, "line %d, column %d: not valid JSON: %s", e.line, e.column,
                   e.text);
}

static int build(const struct eng_grammar_in *in, json_t *json, struct eng_ir *ir,
                 struct cn_error *err)
{
    struct eng_sym root = {ENG_SYM_NEVER, 0};
    int rc;
    switch (in->kind) {
    case ENG_GRAMMAR_SCHEMA:
        rc = compile_schema(in, json, ir, &root, err);
        break;
    case ENG_GRAMMAR_JSON_OBJECT:
        rc = compile_object(in, ir, &root, err);
        break;
    case ENG_GRAMMAR_REGEX:
        rc = compile_regex(in, ir, &root, err);
        break;
    case ENG_GRAMMAR_CHOICE:
        rc = compile_choice(json, ir, &root, err);
        break;
    case ENG_GRAMMAR_CALLS:
        rc = compile_calls(in, json, NULL, ir, &root, err);
        break;
    default:
        rc = compile_rules(in, ir, &root, err);
        break;
    }
    if (!rc && in->calls && in->reply) rc = or_calls(in, ir, &root, err);
    return rc ? rc : eng_ir_finish(ir, root, err);
}

static int init(struct eng_grammar *g, const struct eng_grammar_in *in, enum eng_spelling spelling)
{
    int rc =
        eng_ir_init(&g->ir, spelling, in->max_bytes ? in->max_bytes : DEFAULT_BYTES, in->max_work);
    if (rc) return rc;
    g->ir.trie = in->vocab ? eng_vocab_trie(in->vocab) : NULL;
    g->ir.rx.keep_going = in->keep_going;
    g->ir.rx.arg = in->arg;
    return 0;
}

/* White space between reasoning and answer. */
static int add_lead(struct eng_grammar *g, struct cn_error *err)
{
    struct eng_bytes blanks = {{0}};
    for (const char *p = " \t\r\n"; *p; p++)
        eng_bytes_add(&blanks, (uint8_t)*p, (uint8_t)*p);
    g->lead = eng_rx_repeat(&g->ir.rx, eng_rx_set(&g->ir.rx, &blanks), 0, MOST_LEAD);
    g->ir.rx.keep_going = NULL; /* it is for compiling only */
    int rc = g->ir.rx.code;
    return rc ? cn_fail(err, rc, "%s", cn_err_info(rc)->text) : 0;
}

int eng_grammar_compile(const struct eng_grammar_in *in, struct eng_grammar **out,
                        struct cn_error *err)
{
    enum eng_spelling spelling = ENG_SPELL_RAW;
    json_t *json, *own = NULL;
    if (in->kind == ENG_GRAMMAR_SCHEMA || in->kind == ENG_GRAMMAR_JSON_OBJECT ||
        in->kind == ENG_GRAMMAR_LARK || in->kind == ENG_GRAMMAR_CALLS || in->calls)
        spelling = in->any_spelling ? ENG_SPELL_JSON_ANY : ENG_SPELL_JSON;
    int rc = read_json(in, &json, &own, err);
    if (rc) return rc;
    struct eng_grammar *g = calloc(1, sizeof *g);
    if (!g) {
        json_decref(own);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    g->calls = in->kind == ENG_GRAMMAR_CALLS;
    g->whole = (g->calls || in->calls) && in->reply && eng_calls_whole(in->reply);
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    rc = init(g, in, spelling);
    if (rc)
        rc = cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    else
        rc = build(in, json, &g->ir, err);
    if (!rc) rc = add_lead(g, err);
    if (in->full) *in->full = rc == CN_ELIMIT && g->ir.rx.full;
    json_decref(own);
    if (rc) {
        eng_grammar_unref(g);
        return rc;
    }
    *out = g;
    return 0;
}

bool eng_grammar_may_wait(const struct eng_reply_format *f)
{
    size_t marks[ENG_CALLS_OPENINGS];
    return eng_calls_whole(f) || eng_calls_openings(f, marks) > 0;
}

struct eng_grammar *eng_grammar_ref(struct eng_grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void eng_grammar_unref(struct eng_grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    eng_ir_fini(&g->ir);
    eng_masks_free(g->masks);
    pthread_mutex_destroy(&g->lock);
    cn_account_give(g->account, g->paid);
    free(g);
}

void eng_grammar_paid(struct eng_grammar *g, struct cn_account *account, uint64_t bytes)
{
    g->account = account;
    g->paid = bytes;
}

uint64_t eng_grammar_cost(const struct eng_grammar *g)
{
    return g->paid;
}

bool eng_grammar_shared(const struct eng_grammar *g)
{
    return atomic_load_explicit(&g->refs, memory_order_acquire) > 1;
}

struct eng_masks *eng_grammar_masks(struct eng_grammar *g, const struct eng_trie *trie)
{
    pthread_mutex_lock(&g->lock);
    if (!g->masks && !eng_masks_new(ENG_GRAMMAR_MASK_BYTES, &g->masks)) g->trie = trie;
    struct eng_masks *masks = g->trie == trie ? g->masks : NULL;
    pthread_mutex_unlock(&g->lock);
    return masks;
}

size_t eng_grammar_bytes(const struct eng_grammar *g)
{
    return sizeof *g + eng_rx_bytes(&g->ir.rx) + g->ir.bytes;
}
