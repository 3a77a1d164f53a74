/* How a guide follows an answer by its tokens: reasoning, the mark of calls, the grammar. */
#include "engine/text/grammar/guide_impl.h"

#include <string.h>

static struct eng_str name_of(uint32_t id, char bytes[5])
{
    return (struct eng_str){bytes, eng_trie_name(id, bytes)};
}

/* A token before the answer. Text of the answer that comes with it is appended to `text`. */
static int read_reply(const struct eng_guide *g, struct eng_spot *s, uint32_t id,
                      struct cn_buf *text)
{
    struct eng_parts parts;
    struct eng_str piece = eng_vocab_piece(g->in.vocab, id, false);
    size_t from = 0;
    eng_parts_init(&parts);
    int rc = eng_reply_is_mark(&s->reply, id) ? eng_reply_mark(&s->reply, id, &parts)
                                              : eng_reply_text(&s->reply, piece.p, piece.n, &parts);
    for (size_t i = 0; i < parts.n_runs && !rc; from = parts.runs[i++].end)
        if (parts.runs[i].part == ENG_PART_CONTENT)
            rc = cn_buf_append(text, parts.text.data + from, parts.runs[i].end - from);
    for (size_t i = 0; !parts.n_runs && i < piece.n && s->n_blanks < sizeof s->blanks; i++)
        s->blanks[s->n_blanks++] = piece.p[i];
    eng_parts_fini(&parts);
    s->n_thoughts++;
    if (eng_reply_answers(&s->reply))
        s->phase = ENG_HELD_ANSWERS;
    else if (eng_reply_reasons(&s->reply))
        s->phase = ENG_HELD_THINKS;
    s->marked |= s->phase == ENG_HELD_THINKS;
    return rc;
}

bool eng_held_bytes(struct eng_held *c, struct eng_str bytes, struct eng_places *at,
                    struct eng_places *scratch)
{
    bool ok = true;
    for (size_t i = 0; i < bytes.n && ok; i++) {
        ok = eng_match_step(&c->m, at, (uint8_t)bytes.p[i], scratch);
        if (!ok && i == 0) break; /* at is as it was */
        struct eng_places old = *at;
        *at = *scratch;
        *scratch = old;
    }
    if (c->m.code) eng_held_fail(c, c->m.code);
    return ok && !c->code;
}

/* Whether the grammar asks for the token by its id. */
bool eng_held_takes(struct eng_held *c, const struct eng_places *at, uint32_t id)
{
    char name[5];
    struct eng_str bytes = name_of(id, name);
    uint32_t kept = c->m.n_kept;
    bool ok = true;
    for (size_t i = 0; i < bytes.n && ok; i++) {
        struct eng_places *to = &c->drafted[i & 1 ? 2 : 1];
        ok = eng_match_step(&c->m, at, (uint8_t)bytes.p[i], to);
        at = to;
    }
    eng_match_unkeep(&c->m, kept);
    return ok;
}

bool eng_held_copy(struct eng_held *c, const struct eng_places *from, struct eng_places *to)
{
    if (cn_grow(&to->v, &to->cap, CN_MAX(from->n, (size_t)1), sizeof *to->v))
        return eng_held_fail(c, CN_ENOMEM), false;
    memcpy(to->v, from->v, from->n * sizeof *from->v);
    to->n = from->n;
    return true;
}

/* Text of an answer that is free yet. Behind a mark of calls the grammar begins; what the same
 * token brings after the mark has to fit, or the text stays free and is looked through further. */
static bool seek_call(struct eng_guide *g, struct eng_held *c, struct eng_spot *s,
                      struct eng_str text, struct eng_places *at, struct eng_places *scratch)
{
    char bytes[5 * ENG_SEEK_MARK];
    while (text.n) {
        size_t mark, used = eng_seek_text(&g->seek, &s->tail, text, &mark);
        text = (struct eng_str){text.p + used, text.n - used};
        if (mark == g->in.reply->n_marks) continue;
        struct eng_str begun = {bytes, eng_seek_bytes(&g->seek, mark, bytes)};
        s->called = eng_held_bytes(c, begun, at, scratch) && eng_held_bytes(c, text, at, scratch);
        if (s->called) return true;
        if (c->code || !eng_held_copy(c, &c->home, at)) return false;
    }
    return true;
}

/* A token where calls may come, but none has. */
static bool step_free(struct eng_guide *g, struct eng_held *c, struct eng_spot *s, uint32_t id,
                      struct eng_places *at, struct eng_places *scratch)
{
    /* marks of which it is a part count as well */
    struct eng_str piece = eng_vocab_piece(g->in.vocab, id, true);
    struct cn_buf text;
    char name[5];
    if (eng_seek_token(&g->seek, id)) { /* also ends thoughts */
        s->phase = ENG_HELD_ANSWERS;
        s->called = s->begun = true;
        return eng_held_bytes(c, eng_held_takes(c, at, id) ? name_of(id, name) : piece, at,
                              scratch);
    }
    if (s->phase == ENG_HELD_ANSWERS) return seek_call(g, c, s, piece, at, scratch);
    cn_buf_init(&text, 0);
    int rc = read_reply(g, s, id, &text);
    if (rc) eng_held_fail(c, rc);
    bool ok = !rc && seek_call(g, c, s, (struct eng_str){text.data, text.len}, at, scratch);
    cn_buf_fini(&text);
    return ok;
}

/* Whether thoughts that a grammar of whole replies has in it are bounded: then the reply is read
 * for them alone. */
bool eng_guide_counts(const struct eng_guide *g)
{
    return eng_guide_whole(g) && g->in.max_reasoning != UINT64_MAX;
}

static void count_thought(const struct eng_guide *g, struct eng_held *c, struct eng_spot *s,
                          uint32_t id)
{
    struct cn_buf text;
    bool thinks = eng_reply_reasons(&s->reply);
    enum eng_held_phase phase = s->phase;
    cn_buf_init(&text, 0);
    int rc = read_reply(g, s, id, &text);
    if (rc) eng_held_fail(c, rc);
    cn_buf_fini(&text);
    s->phase = phase;
    s->n_thoughts -= !thinks; /* it was counted */
}

/* Goes on by a token from places to places; false: the grammar does not allow it. A token of the
 * markup goes by its id where the grammar asks for it. */
bool eng_held_token(struct eng_guide *g, struct eng_held *c, struct eng_spot *s, uint32_t id,
                    struct eng_places *at, struct eng_places *scratch)
{
    char name[5];
    struct cn_buf text;
    bool ok = true, special = eng_vocab_is_special(g->in.vocab, id);
    s->n_tokens++;
    if (g->in.free && !s->called) return step_free(g, c, s, id, at, scratch);
    if (eng_guide_counts(g)) count_thought(g, c, s, id);
    if (s->phase == ENG_HELD_ANSWERS) {
        s->begun = true;
        if (!g->in.grammar) return true;
        if (special && eng_held_takes(c, at, id))
            return eng_held_bytes(c, name_of(id, name), at, scratch);
        return eng_held_bytes(c, eng_vocab_piece(g->in.vocab, id, false), at, scratch);
    }
    if (special && g->in.grammar &&
        eng_held_takes(c, at, id)) { /* a call's mark: also ends thoughts */
        s->phase = ENG_HELD_ANSWERS;
        s->begun = true;
        return eng_held_bytes(c, name_of(id, name), at, scratch);
    }
    cn_buf_init(&text, 0);
    int rc = read_reply(g, s, id, &text);
    if (rc) eng_held_fail(c, rc);
    s->begun |= text.len > 0;
    if (!rc && g->in.grammar && text.len)
        ok = eng_held_bytes(c, (struct eng_str){text.data, text.len}, at, scratch);
    cn_buf_fini(&text);
    return ok && !c->code;
}
