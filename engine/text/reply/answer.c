/* answer: finds where in a reply the answer is, for the code that constrains it
 * (grammar/guide.c). */
#include "engine/text/reply/reply.h"

#include <string.h>

bool eng_reply_answers(const struct eng_reply *r)
{
    const struct eng_reply_format *f = r->format;
    switch (r->state) {
    case ENG_S_AFTER:
    case ENG_S_ANSWER:
        return true;
    case ENG_S_BODY:
        return r->part == ENG_PART_CONTENT;
    case ENG_S_START:
        return f->kind == ENG_REPLY_PLAIN && !r->prompted;
    default:
        return false;
    }
}

bool eng_reply_heads(const struct eng_reply *r)
{
    if (r->state == ENG_S_START) return r->format->kind == ENG_REPLY_HARMONY || r->prompted;
    return !eng_reply_reasons(r) && !eng_reply_answers(r);
}

void eng_reply_openings(const struct eng_reply_format *f, bool close, uint32_t *mask)
{
    for (size_t i = 0; i < f->n_marks; i++) {
        uint16_t first = f->symbols[f->marks[i].symbols];
        bool thought = f->marks[i].role == ENG_R_THINK ||
                       (close && f->marks[i].role == ENG_R_THINK_END && f->marks[i].n_symbols == 1);
        if (!thought || !f->marks[i].n_symbols || first < 256) continue;
        uint32_t id = f->tokens[first - 256].id;
        mask[id >> 5] |= 1u << (id & 31);
    }
}

int eng_reply_closing(const struct eng_reply_format *f, const struct eng_vocab *v,
                      struct eng_ids *ids)
{
    static const char harmony[] = "<|end|><|start|>assistant<|channel|>final<|message|>";
    struct eng_str s = {harmony, sizeof harmony - 1};
    if (f->kind != ENG_REPLY_HARMONY) s = eng_role_text(f, ENG_R_THINK_END);
    return s.n ? eng_tokenize(v, s.p, s.n, NULL, 0, ENG_TOKENIZE_PARSE, ids, NULL) : 0;
}
