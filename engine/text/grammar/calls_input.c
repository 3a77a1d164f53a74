/* calls: arguments that are one text of a grammar of Lark, inside a JSON string. See calls_impl.h.
 */
#include "engine/text/grammar/calls_impl.h"

#include "engine/text/grammar/lark.h"
#include "engine/text/grammar/spell.h"

#include <string.h>

const json_t *eng_calls_input_of(const struct eng_calls_build *b)
{
    return json_object_getn(b->in->inputs, b->name.p, b->name.n);
}

int eng_calls_no_input(struct eng_calls_build *b)
{
    return eng_calls_refuse(b, CN_EUNSUPP, NULL,
                            "a grammar of Lark is not supported in the form in which this model "
                            "calls: give a regular expression (syntax regex)");
}

static struct eng_sym literal(struct eng_calls_build *b, uint32_t before, const char *s)
{
    struct eng_rx *r = &b->ir->rx;
    return eng_ir_lexeme(b->ir, eng_rx_cat(r, before, eng_rx_literal(r, s, strlen(s))), false);
}

int eng_calls_input(struct eng_calls_build *b, const json_t *grammar, struct eng_sym *out)
{
    struct eng_rx *r = &b->ir->rx;
    const char *name =
        json_object_iter_key(json_object_iter(json_object_get(b->parameters, "properties")));
    struct cn_error why = {0};
    const struct eng_lark_opts opts = {0};
    struct eng_bnf lark = {.spelling = ENG_SPELL_JSON};
    struct eng_sym text;
    if (b->opts.style != ENG_STYLE_JSON || !name) return eng_calls_no_input(b);
    int rc =
        eng_source_init(&lark.src, json_string_value(grammar), json_string_length(grammar), &why);
    if (rc) return eng_calls_refuse(b, rc, NULL, why.message);
    lark.src.keep_going = r->keep_going;
    lark.src.arg = r->arg;
    rc = eng_lark_read(&lark, b->ir, &opts, &text);
    eng_bnf_fini(&lark);
    if (rc) return eng_calls_refuse(b, rc, NULL, why.message);
    if (eng_sym_never(text)) return eng_calls_refuse(b, CN_EINVAL, NULL, "no text is in it");
    uint32_t blank = eng_rx_repeat(r, eng_rx_byte(r, ' ', ' '), 0, 1);
    uint32_t key = eng_spell_text(r, ENG_SPELL_JSON, name, strlen(name));
    uint32_t open = eng_rx_cat(r, eng_rx_literal(r, "{", 1), blank);
    open = eng_rx_cat(r, open, eng_rx_cat(r, eng_rx_literal(r, "\"", 1), key));
    open = eng_rx_cat(r, open, eng_rx_cat(r, eng_rx_literal(r, "\":", 2), blank));
    const struct eng_sym parts[] = {literal(b, open, "\""), text, literal(b, ENG_RX_EMPTY, "\"}")};
    *out = eng_ir_rule(b->ir);
    eng_ir_add(b->ir, *out, parts, CN_ARRAY_LEN(parts));
    return r->code;
}
