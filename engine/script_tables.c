/* script: the tensors with which a null model follows its script (kr_op_follow, kr_op_peak). The
 * answers follow each other as units. A unit is a byte or one of the script's own tokens; its
 * number is the token's id. The token of a place is the tokenizer's, or the byte if the place is
 * inside such a token. So the answer can continue from any place, whatever tokens the bytes before
 * it came in. Used by one thread while a model is opened. */
#include "engine/script.h"

#include <stdlib.h>
#include <string.h>

#define REACH 32.0f /* places that are searched for a token that is not at the current one */

struct maker {
    const struct eng_script *s;
    const struct eng_vocab *v;
    struct eng_script_tables *t;
    uint32_t n_own; /* bytes, control tokens and marks have the ids below */
    size_t cap_texts, cap_tokens;
    struct eng_ids ids;
};

static int put(struct maker *m, float unit, float token)
{
    struct eng_script_tables *t = m->t;
    int rc = cn_grow(&t->texts, &m->cap_texts, t->n + 1, 2 * sizeof *t->texts);
    if (!rc) rc = cn_grow(&t->tokens, &m->cap_tokens, t->n + 1, sizeof *t->tokens);
    if (rc) return rc;
    t->texts[2 * t->n] = unit;
    t->texts[2 * t->n + 1] = 0;
    t->tokens[t->n++] = token;
    return CN_OK;
}

static int put_token(struct maker *m, uint32_t id)
{
    struct eng_str piece = eng_vocab_piece(m->v, id, true);
    if (id < m->n_own) return put(m, (float)id, (float)id);
    int rc = CN_OK;
    for (size_t i = 0; !rc && i < piece.n; i++) {
        uint8_t byte = (uint8_t)piece.p[i];
        rc = put(m, byte, i ? (float)byte : (float)id);
    }
    return rc;
}

/* Text without a `break`. */
static int put_text(struct maker *m, struct eng_str text)
{
    m->ids.n = 0;
    int rc = eng_tokenize(m->v, text.p, text.n, NULL, 0, ENG_TOKENIZE_PARSE, &m->ids, NULL);
    for (size_t i = 0; !rc && i < m->ids.n; i++)
        rc = put_token(m, m->ids.v[i]);
    return rc;
}

/* An answer, its end token, and the end of the text. */
static int put_answer(struct maker *m, struct eng_str text)
{
    struct eng_str gap = m->s->gap, end = m->s->end;
    int rc = CN_OK;
    while (!rc && text.n) {
        const char *at = gap.n ? memmem(text.p, text.n, gap.p, gap.n) : NULL;
        size_t n = at ? (size_t)(at - text.p) : text.n, next = n + (at ? gap.n : 0);
        rc = put_text(m, (struct eng_str){text.p, n});
        text = (struct eng_str){text.p + next, text.n - next};
    }
    int64_t id = eng_vocab_find(m->v, end.p, end.n);
    cn_assert(id >= 0);
    if (!rc) rc = put_token(m, (uint32_t)id);
    return rc ? rc : put(m, -1, -1);
}

/* All answers, from place 1 on. begin[i]: the first place of answer i; answer 0 is for
 * conversations that no answer fits. */
static int put_answers(struct maker *m, float *begin)
{
    static const char lost[] = "[The script has no answer to this conversation.]";
    int rc = put(m, -1, -1);
    for (size_t i = 0; !rc && i <= m->s->n_answers; i++) {
        begin[i] = (float)m->t->n;
        rc = put_answer(m, i ? m->s->answers[i - 1].text : (struct eng_str){lost, sizeof lost - 1});
    }
    float mark = 0;
    for (size_t p = m->t->n; !rc && p-- > 0;) {
        float unit = m->t->texts[2 * p];
        if (unit < 0) mark = 0;
        if (unit >= ENG_SCRIPT_FIRST) mark = (float)p;
        m->t->texts[2 * p + 1] = mark;
    }
    return rc;
}

/* The mark at the end of a generation prompt comes after the answer's token, so it is searched for
 * in the answer. A mark that closes reasoning should move the place past the answer's own
 * reasoning. A mark that opens something should not move the place to a later one of its kind. */
static float reach_of(const struct maker *m, struct eng_str text)
{
    static const char *const opens[] = {
#define TAGS(has, open, close, skip) open,
#include "engine/text/reply/tags.def"
#undef TAGS
    };
    bool opening = false;
    for (size_t i = 0; i < CN_ARRAY_LEN(opens); i++)
        opening |= text.n == strlen(opens[i]) && !memcmp(text.p, opens[i], text.n);
    for (size_t i = 0; i < m->s->n_ends; i++) {
        const struct eng_str e = m->s->ends[i];
        opening |= e.n == text.n && !memcmp(e.p, text.p, e.n) && !memchr(e.p, '/', e.n);
    }
    return opening ? -2 : -1;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A row of kr_op_follow's x. White space is not searched for: a grammar or a template may put it
 * anywhere. */
static void spell(const struct maker *m, uint32_t id, const float *begin, float *x)
{
    struct eng_str piece = eng_vocab_piece(m->v, id, true);
    size_t n_marks = m->s->n_answers + 1;
    if (id >= m->n_own && id < m->n_own + n_marks) {
        x[0] = begin[id - m->n_own];
    } else if (id >= ENG_SCRIPT_FIRST && id < m->n_own) {
        x[1] = reach_of(m, piece);
        x[2] = 1;
        x[3] = (float)id;
    } else {
        cn_assert(piece.n && piece.n + 3 <= ENG_SCRIPT_SPELLED);
        x[1] = is_space(*piece.p) ? 0 : REACH;
        x[2] = (float)piece.n;
        for (size_t i = 0; i < piece.n; i++)
            x[3 + i] = (uint8_t)piece.p[i];
    }
}

/* For draws whose mask forbids all of the script's tokens: the end, else a byte that closes JSON.
 */
static void put_rest(const struct maker *m, float *rest)
{
    static const char closing[] = "\"}]0";
    size_t n;
    const uint32_t *ends = eng_vocab_eog(m->v, &n);
    for (size_t i = 0; i < n; i++)
        rest[ends[i]] = 128;
    for (size_t i = 0; i < sizeof closing - 1; i++)
        rest[(uint8_t)closing[i]] = 112.0f - 16.0f * (float)i;
}

int eng_script_tables(const struct eng_script *s, const struct eng_vocab *v,
                      struct eng_script_tables *out, struct cn_error *err)
{
    size_t n_vocab = eng_vocab_size(v);
    struct maker m = {.s = s, .v = v, .t = out};
    float *begin = cn_calloc(s->n_answers + 1, sizeof *begin);
    *out = (struct eng_script_tables){
        .rest = cn_calloc(n_vocab, sizeof(float)),
        .spelled = cn_calloc(n_vocab, ENG_SCRIPT_SPELLED * sizeof(float)),
    };
    m.n_own = (uint32_t)(ENG_SCRIPT_FIRST + s->n_control + s->n_marks);
    int rc = begin && out->rest && out->spelled ? put_answers(&m, begin) : CN_ENOMEM;
    for (uint32_t id = 0; !rc && id < n_vocab; id++)
        spell(&m, id, begin, out->spelled + (size_t)id * ENG_SCRIPT_SPELLED);
    if (!rc) put_rest(&m, out->rest);
    eng_ids_fini(&m.ids);
    free(begin);
    return rc ? cn_fail(err, rc, "null model: the script: %s", cn_err_info(rc)->text) : CN_OK;
}

void eng_script_tables_fini(struct eng_script_tables *t)
{
    free(t->texts);
    free(t->tokens);
    free(t->rest);
    free(t->spelled);
    *t = (struct eng_script_tables){0};
}
