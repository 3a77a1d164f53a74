/* engine/text: from a text to ids: special tokens are cut out, what lies between them goes through
 * the model's own algorithm as one piece, whatever its origin.
 * All state belongs to the call; the vocabulary is shared. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

struct call {
    const struct eng_vocab *v;
    struct eng_ids *ids;
    struct cn_error *err;
    struct eng_merge *merge;
    const char *base; /* what the pre-tokeniser's offsets refer to */
    bool after_special;
};

void eng_ids_fini(struct eng_ids *ids)
{
    free(ids->v);
    *ids = (struct eng_ids){.max = ids->max};
}

static int piece(void *arg, size_t start, size_t len)
{
    struct call *c = arg;
    int rc = eng_tick(&c->merge->tick, len);
    return rc ? rc : eng_piece(c->v, c->merge, c->base + start, len, c->ids);
}

static int fragment(struct call *c, const char *text, size_t n)
{
    const struct eng_vocab *v = c->v;
    c->base = text;
    c->merge->end = text + n;
    if (v->model == ENG_MODEL_WPM) return eng_wordpiece(v, c->merge, text, n, c->ids);
    if (v->model != ENG_MODEL_SPM) return eng_pretok_split(v->pre, text, n, piece, c, c->err);
    return eng_line(v, c->merge, text, n, v->space_prefix && c->after_special, c->ids);
}

static int check_spans(const struct eng_span *spans, size_t n_spans, size_t n, struct cn_error *err)
{
    size_t end = 0;
    if (!spans) return 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].end < end) return cn_fail(err, CN_EINVAL, "span %zu ends before it begins", i);
        end = spans[i].end;
    }
    return end == n ? 0 : cn_fail(err, CN_EINVAL, "spans cover %zu of %zu bytes", end, n);
}

static int encode(struct call *c, const char *text, size_t n, const struct eng_cuts *cuts,
                  unsigned flags)
{
    const struct eng_vocab *v = c->v;
    bool special = flags & ENG_TOKENIZE_SPECIAL;
    const struct eng_cut *first = cuts->n ? &cuts->v[0] : NULL, *last = NULL;
    size_t at = 0;
    int rc = 0;
    bool has_bos = first && first->raw_start == 0 && first->id == v->bos;
    if (special && v->add_bos && !has_bos) rc = eng_ids_push(c->ids, (uint32_t)v->bos);
    c->after_special = true;
    for (size_t i = 0; i < cuts->n && rc == 0; i++) {
        last = &cuts->v[i];
        if ((rc = eng_tick(&c->merge->tick, 8))) break;
        if (last->raw_start > at) rc = fragment(c, text + at, last->raw_start - at);
        if (rc == 0) rc = eng_ids_push(c->ids, last->id);
        at = last->raw_end;
        c->after_special = true;
    }
    if (rc == 0 && at < n) {
        rc = fragment(c, text + at, n - at);
        last = NULL;
    }
    bool has_eos = last && last->id == v->eos;
    if (rc == 0 && special && v->add_eos && !has_eos) rc = eng_ids_push(c->ids, (uint32_t)v->eos);
    return rc;
}

int eng_tokenize(const struct eng_vocab *v, const char *text, size_t n,
                 const struct eng_span *spans, size_t n_spans, unsigned flags, struct eng_ids *ids,
                 struct cn_error *err)
{
    struct call c = {.v = v, .ids = ids, .err = err};
    struct eng_cuts cuts = {0};
    size_t before = ids->n;
    int rc = check_spans(spans, n_spans, n, err);
    if (rc) return rc;
    if (n >= UINT32_MAX) return cn_fail(err, CN_ELIMIT, "a text of %zu bytes is too long", n);
    struct cn_error why = {0};
    c.err = &why;
    c.merge = eng_merge_take(v);
    if (!c.merge) return cn_fail(err, CN_ENOMEM, "out of memory");
    c.merge->tick =
        (struct eng_tick){.keep_going = ids->keep_going, .take = ids->take, .arg = ids->arg};
    c.merge->max_run = ids->max_run;
    rc = eng_special_find(v, text, n, spans, spans ? n_spans : 0, flags & ENG_TOKENIZE_PARSE,
                          &c.merge->tick, &cuts);
    if (rc == 0) rc = encode(&c, text, n, &cuts, flags);
    free(cuts.v);
    size_t taken = c.merge->tick.taken;
    eng_merge_give(v, c.merge);
    if (taken) ids->give(ids->arg, taken);
    if (rc == 0) return 0;
    ids->n = before;
    if (why.code == rc) return cn_fail(err, rc, "%s", why.message);
    if (rc == CN_EWINDOW) return cn_fail(err, rc, "the text has more than %zu tokens", ids->max);
    if (rc == CN_ELIMIT && ids->max_run)
        return cn_fail(err, rc, "the text has a word of more than %zu bytes", ids->max_run);
    return cn_fail(err, rc, "%s", cn_err_info(rc)->text);
}
