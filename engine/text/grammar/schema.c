/* schema: JSON Schema to a grammar. See schema.h. */
#include "engine/text/grammar/schema.h"

#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

enum { SPACES = 40 }; /* most blanks and tabs in one place, after a line end */

/* ---- failures -------------------------------------------------------------------------------- */

/* Puts the path of a place in front of what is there already. */
static void put_path(struct eng_sc *sc, struct cn_buf *b, uint32_t place)
{
    const struct eng_sc_place *chain[ENG_SC_DEPTH + 2];
    unsigned n = 0;
    for (uint32_t p = place; p < sc->n_places && n < CN_ARRAY_LEN(chain); p = sc->places[p].parent)
        chain[n++] = &sc->places[p];
    while (n--) {
        const struct eng_sc_place *p = chain[n];
        if (p->word) cn_buf_printf(b, "%s%s", b->len ? "." : "", p->word);
        if (p->name) cn_buf_printf(b, "%s%s", b->len ? "." : "", p->name);
        if (!p->name && p->index != ENG_SC_NONE) cn_buf_printf(b, "[%u]", p->index);
    }
}

static int fail(struct eng_sc *sc, uint32_t place, int code, const char *fmt, va_list args)
{
    struct cn_buf b;
    char message[sizeof sc->err->message];
    if (sc->code) return sc->code;
    sc->code = code;
    cn_buf_init(&b, 0);
    put_path(sc, &b, place);
    const char *path = cn_buf_cstr(&b);
    vsnprintf(message, sizeof message, fmt, args);
    message[cn_utf8_valid_len(message, strlen(message))] = '\0';
    cn_fail_param(sc->err, code, path ? path : "", "%s", message);
    cn_buf_fini(&b);
    return code;
}

int eng_sc_fail_at(struct eng_sc *sc, uint32_t place, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail(sc, place, code, fmt, args);
    va_end(args);
    return sc->code;
}

int eng_sc_fail(struct eng_sc *sc, uint32_t node, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail(sc, node < sc->n_nodes ? sc->nodes[node].place : ENG_SC_NONE, code, fmt, args);
    va_end(args);
    return sc->code;
}

bool eng_sc_rx_ok(struct eng_sc *sc, uint32_t node)
{
    int code = sc->ir->rx.code;
    if (code == CN_ELIMIT)
        eng_sc_fail(sc, node, code,
                    "the schema is too large or too complex for the memory and work "
                    "that a grammar may take");
    else if (code)
        eng_sc_fail(sc, node, code, "%s", cn_err_info(code)->text);
    return !sc->code;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* White space before a token. A checker accepts any. A model may write one blank, or a line end
 * and up to 40 blanks: without a limit it could write blanks for ever. */
static uint32_t white_space(const struct eng_ir *ir, struct eng_rx *r)
{
    struct eng_bytes any = {{0}}, blanks = {{0}};
    for (const char *p = " \t\r\n"; *p; p++)
        eng_bytes_add(&any, (uint8_t)*p, (uint8_t)*p);
    for (const char *p = " \t"; *p; p++)
        eng_bytes_add(&blanks, (uint8_t)*p, (uint8_t)*p);
    if (ir->spelling == ENG_SPELL_JSON_ANY)
        return eng_rx_repeat(r, eng_rx_set(r, &any), 0, ENG_RX_INF);
    uint32_t line =
        eng_rx_cat(r, eng_rx_byte(r, '\n', '\n'), eng_rx_repeat(r, eng_rx_set(r, &blanks), 0, 40));
    return eng_rx_or_of(r, (uint32_t[]){ENG_RX_EMPTY, eng_rx_byte(r, ' ', ' '), line}, 3);
}

/* Names without quotes: those that a reader takes as they are (reply/literal.c). */
static void bare_names(struct eng_sc *sc)
{
    static const char pattern[] =
        "[^:{}\\[\\],\"'<\\s\\x00-\\x1f](?:[^:\\x00-\\x1f]{0,48}[^:\\s\\x00-\\x1f])?";
    struct cn_error why = {0};
    sc->quote = ENG_RX_EMPTY;
    int rc = eng_spell_pattern(&sc->ir->rx, ENG_SPELL_RAW, pattern, sizeof pattern - 1, true,
                               &sc->any_name, &why);
    if (rc) eng_sc_fail(sc, 0, rc, "%s", why.message);
}

/* Node 0, goal 0, the two constant formulas and the empty list of resources. */
static void begin(struct eng_sc *sc)
{
    struct eng_sc_form constant = {.kind = ENG_F_CONST};
    eng_sc_atom(sc, &constant);
    eng_sc_atom(sc, &constant);
    if (!eng_sc_room(sc, &sc->nodes, &sc->cap_nodes, 1, sizeof *sc->nodes) ||
        !eng_sc_room(sc, &sc->goals, &sc->cap_goals, 1, sizeof *sc->goals) ||
        !eng_sc_room(sc, &sc->scopes, &sc->cap_scopes, 1, sizeof *sc->scopes))
        return;
    sc->nodes[sc->n_nodes++] = (struct eng_sc_node){.kind = ENG_NODE_TRUE};
    sc->goals[sc->n_goals++] = (struct eng_sc_goal){.empty = 1};
    sc->scopes[sc->n_scopes++] = 0;
    sc->quote = eng_rx_byte(&sc->ir->rx, '"', '"');
    sc->any_text = eng_spell_length(&sc->ir->rx, sc->ir->spelling, 0, ENG_RX_INF);
    sc->any_name = sc->any_text;
    if (sc->opts.style == ENG_STYLE_BARE) bare_names(sc);
    if (sc->opts.style != ENG_STYLE_BARE)
        sc->ir->space = sc->opts.compact ? ENG_RX_EMPTY : white_space(sc->ir, &sc->ir->rx);
}

/* The goal of the whole schema. */
static uint32_t resolve(struct eng_sc *sc, json_t *schema)
{
    static const struct eng_sc_place top = {.parent = ENG_SC_NONE, .index = ENG_SC_NONE};
    uint32_t lit = json_is_true(schema) ? ENG_LIT_TRUE : ENG_LIT_FALSE, root;
    begin(sc);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        eng_sc_fail_at(sc, ENG_SC_NONE, CN_EINVAL, "a schema must be an object, true or false");
    if (json_is_object(schema)) lit = eng_sc_lit_of_place(sc, eng_sc_walk(sc, schema, &top), 0);
    root = eng_sc_goal(sc, &lit, 1);
    eng_sc_want(sc, root);
    eng_sc_compile_goals(sc);
    eng_sc_satisfy(sc);
    return root;
}

static struct eng_sym compile(struct eng_sc *sc, json_t *schema)
{
    struct eng_sym never = {ENG_SYM_NEVER, 0};
    uint32_t root = resolve(sc, schema);
    if (!sc->code && !sc->goals[root].sat)
        eng_sc_fail(sc, eng_sc_why_not(sc, root), CN_EINVAL, "no value satisfies the schema");
    return sc->code ? never : eng_sc_emit(sc, root);
}

static void fini(struct eng_sc *sc)
{
    struct eng_sc_map *maps[] = {&sc->by_json,   &sc->by_uri,    &sc->by_anchor, &sc->by_dynamic,
                                 &sc->by_scope,  &sc->by_node,   &sc->by_name,   &sc->by_form,
                                 &sc->by_goal,   &sc->by_lexeme, &sc->by_const,  &sc->by_any,
                                 &sc->by_scalars};
    for (size_t i = 0; i < CN_ARRAY_LEN(maps); i++)
        eng_sc_map_fini(maps[i]);
    free(sc->places);
    free(sc->resources);
    free(sc->nodes);
    free(sc->names);
    free(sc->forms);
    free(sc->goals);
    free(sc->lits);
    free(sc->args);
    free(sc->tmp);
    free(sc->queue);
    free(sc->scopes);
    cn_arena_fini(&sc->arena);
}

static void init(struct eng_sc *sc, struct eng_ir *ir, const struct eng_schema_opts *opts,
                 struct cn_error *err)
{
    *sc = (struct eng_sc){.ir = ir, .opts = *opts, .err = err};
    sc->plain_number = sc->not_integer = ENG_SC_NONE;
    sc->spread = 1;
    cn_random(sc->key, sizeof sc->key);
    cn_arena_init(&sc->arena, ir->max_bytes);
}

int eng_schema_texts(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                     uint32_t *out, struct cn_error *err)
{
    struct cn_error ignored;
    struct eng_sc sc;
    enum eng_spelling spelling = ir->spelling;
    uint32_t space = ir->space;
    ir->spelling = ENG_SPELL_RAW;
    init(&sc, ir, opts, err ? err : &ignored);
    uint32_t root = resolve(&sc, schema), texts = ENG_RX_NONE;
    if (!sc.code && sc.goals[root].sat) texts = sc.goals[root].text;
    fini(&sc);
    ir->spelling = spelling;
    ir->space = space;
    if (sc.code) return sc.code;
    *out = texts;
    return 0;
}

int eng_schema_compile(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                       struct eng_sym *root, struct cn_error *err)
{
    struct cn_error ignored;
    struct eng_sc sc;
    enum eng_spelling spelling = ir->spelling;
    if (opts->style == ENG_STYLE_BARE) ir->spelling = ENG_SPELL_RAW;
    init(&sc, ir, opts, err ? err : &ignored);
    struct eng_sym sym = compile(&sc, schema);
    fini(&sc);
    ir->spelling = spelling;
    if (sc.code) return sc.code;
    *root = sym;
    return 0;
}
