/* reply: a model's output taken apart into reasoning, answer and calls of tools, as it comes.
 *
 * Two kinds of format. Tags: reasoning stands between two marks, the opening one often written by
 * the template. Harmony: messages with a header of channel and recipient,
 *     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
 *     <|start|>assistant to=functions.f<|channel|>commentary
 * <|constrain|>json<|message|>{...}<|call|> of which analysis is reasoning, what has a recipient is
 * a call, and the rest is the answer.
 *
 * Text is looked at byte by byte, so that it does not matter how it is cut. White space next to a
 * tag belongs to the tag. What turns out to be no mark after all is given out as it came; a header
 * is markup, and given out only where no message followed that it could belong to. One object per
 * stream, one thread at a time. */
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

enum state {
    START,  /* nothing but white space, or the beginning of a mark, so far; held */
    REASON, /* tags: between the marks; white space and the beginning of the closing one are held */
    AFTER,  /* tags: behind the closing one, white space so far */
    ANSWER, /* tags: the rest */
    HEADER, /* harmony: between <|start|> or <|channel|> and <|message|>; held */
    BODY,   /* harmony: in a message */
    BETWEEN, /* harmony: after <|end|> */
};

/* In a held header, where a control token stood. */
#define MARK_CHANNEL   '\x01'
#define MARK_CONSTRAIN '\x02'

/* White space held at the end of reasoning; more than this is part of it. */
#define MAX_SPACE 64

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---- parts ----------------------------------------------------------------------------------- */

void eng_parts_init(struct eng_parts *p)
{
    *p = (struct eng_parts){0};
    cn_buf_init(&p->text, 0);
}

void eng_parts_fini(struct eng_parts *p)
{
    cn_buf_fini(&p->text);
    free(p->runs);
}

void eng_parts_reset(struct eng_parts *p)
{
    cn_buf_reset(&p->text);
    p->n_runs = 0;
}

int eng_parts_add(struct eng_parts *p, enum eng_part part, const char *s, size_t n)
{
    if (!n && part != ENG_PART_CALL) return 0;
    int rc = cn_buf_append(&p->text, s, n);
    if (rc) return rc;
    if (p->n_runs && p->runs[p->n_runs - 1].part == part && part != ENG_PART_CALL) {
        p->runs[p->n_runs - 1].end = p->text.len;
        return 0;
    }
    if (cn_grow(&p->runs, &p->cap, p->n_runs + 1, sizeof *p->runs)) return CN_ENOMEM;
    p->runs[p->n_runs++] = (struct eng_run){p->text.len, part};
    return 0;
}

/* ---- formats --------------------------------------------------------------------------------- */

static bool contains(struct eng_str s, const char *what)
{
    return s.p && memmem(s.p, s.n, what, strlen(what));
}

static int64_t id_of(const struct eng_vocab *v, const char *text)
{
    return eng_vocab_find(v, text, strlen(text));
}

struct eng_reply_format eng_reply_format(const struct eng_vocab *v, struct eng_str source)
{
    static const struct {
        const char *has, *open, *close, *skip;
    } tags[] = {
#define TAGS(has, open, close, skip) {has, open, close, skip},
#include "engine/text/replies.def"
#undef TAGS
    };
    struct eng_reply_format f = {.kind = ENG_REPLY_PLAIN};
    if (contains(source, "<|channel|>") && contains(source, "<|message|>")) {
        f.channel = id_of(v, "<|channel|>");
        f.message = id_of(v, "<|message|>");
        f.start = id_of(v, "<|start|>");
        f.end = id_of(v, "<|end|>");
        f.constrain = id_of(v, "<|constrain|>");
        if (f.channel >= 0 && f.message >= 0) f.kind = ENG_REPLY_HARMONY;
        return f;
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(tags); i++) {
        if (!contains(source, tags[i].has)) continue;
        f.kind = ENG_REPLY_TAGS;
        f.open = tags[i].open;
        f.close = tags[i].close;
        f.skip = tags[i].skip;
        f.open_id = id_of(v, f.open);
        f.close_id = id_of(v, f.close);
        break;
    }
    return f;
}

/* Whether the text ends in the mark that opens reasoning, and white space. */
static bool ends_opening(const struct eng_reply_format *f, const char *s, size_t n)
{
    size_t open = strlen(f->open), skip = strlen(f->skip);
    while (skip && is_space(f->skip[skip - 1]))
        skip--;
    while (n && is_space(s[n - 1]))
        n--;
    if (skip && n >= skip && !memcmp(s + n - skip, f->skip, skip)) n -= skip;
    return n >= open && !memcmp(s + n - open, f->open, open);
}

/* Behind the last place of the mark; 0: nowhere. */
static size_t last_mark(const char *s, size_t n, const char *mark)
{
    size_t len = strlen(mark);
    while (n >= len && memcmp(s + n - len, mark, len))
        n--;
    return n >= len ? n : 0;
}

/* Whether a client's message that goes on has marks itself, and where it ends then. */
static bool has_marks(const struct eng_reply_format *f, const char *s, size_t n,
                      enum eng_reply_start *out)
{
    size_t opened = last_mark(s, n, f->open), closed = last_mark(s, n, f->close), end = n;
    while (end && is_space(s[end - 1]))
        end--;
    if (closed >= opened)
        *out = closed && end <= closed ? ENG_REPLY_CLOSED : ENG_REPLY_ANSWER;
    else
        *out = ends_opening(f, s, n) ? ENG_REPLY_OPENED : ENG_REPLY_THOUGHT;
    return opened || closed;
}

enum eng_reply_start eng_reply_where(const struct eng_reply_format *f, const struct eng_rendered *r,
                                     bool continued)
{
    enum eng_reply_start there, behind = ENG_REPLY_OPENED, else_there = ENG_REPLY_ANEW;
    size_t last = r->n_spans, to = r->text.len, from;

    if (f->kind == ENG_REPLY_PLAIN || !last--) return ENG_REPLY_ANEW;
    if (continued && !r->spans[last].trusted) {
        else_there = ENG_REPLY_ANSWER;
        if (f->kind == ENG_REPLY_HARMONY) return else_there;
        from = last ? r->spans[last - 1].end : 0;
        if (has_marks(f, r->text.data + from, to - from, &there) || !last) return there;
        behind = ENG_REPLY_THOUGHT;
        to = from;
        last--;
    }
    from = last ? r->spans[last - 1].end : 0;
    bool opens = f->kind == ENG_REPLY_TAGS && r->spans[last].trusted &&
                 ends_opening(f, r->text.data + from, to - from);
    return opens ? behind : else_there;
}

/* ---- tags ------------------------------------------------------------------------------------ */

void eng_reply_init(struct eng_reply *r, const struct eng_reply_format *f,
                    enum eng_reply_start start)
{
    static const enum state states[] = {[ENG_REPLY_ANEW] = START,
                                        [ENG_REPLY_OPENED] = REASON,
                                        [ENG_REPLY_THOUGHT] = REASON,
                                        [ENG_REPLY_CLOSED] = AFTER,
                                        [ENG_REPLY_ANSWER] = ANSWER};
    *r = (struct eng_reply){.format = f,
                            .state = states[start],
                            .lead = start == ENG_REPLY_OPENED,
                            .part = ENG_PART_CONTENT};
    if (f->kind == ENG_REPLY_HARMONY && start == ENG_REPLY_ANSWER) r->state = BODY;
}

/* Text of a part. A second message of a kind begins on a line of its own. */
static int put(struct eng_reply *r, enum eng_part part, const char *s, size_t n,
               struct eng_parts *out)
{
    bool prose = part == ENG_PART_CONTENT || part == ENG_PART_REASONING;
    if (!n) return 0;
    if (r->again && prose && r->had[part]) {
        int rc = eng_parts_add(out, part, "\n", 1);
        if (rc) return rc;
    }
    r->again = false;
    if (prose) r->had[part] = true;
    return eng_parts_add(out, part, s, n);
}

/* Gives out the first n held bytes. */
static int release(struct eng_reply *r, enum eng_part part, size_t n, struct eng_parts *out)
{
    int rc = put(r, part, r->held, n, out);
    r->n_held -= n;
    memmove(r->held, r->held + n, r->n_held);
    return rc;
}

static void enter(struct eng_reply *r, enum state state)
{
    r->state = state;
    r->n_held = 0;
    r->lead = state == REASON;
    r->skipped = 0;
    r->again = true;
}

/* Whether the held bytes are white space and then the beginning of the mark (NULL: nothing);
 * *complete: all of it. */
static bool could_be(const struct eng_reply *r, const char *mark, bool *complete)
{
    size_t at = 0, n = mark ? strlen(mark) : 0;
    while (at < r->n_held && is_space(r->held[at]))
        at++;
    size_t rest = r->n_held - at;
    *complete = n && rest == n && !memcmp(r->held + at, mark, n);
    return at <= MAX_SPACE && rest <= n && (!rest || !memcmp(r->held + at, mark, rest));
}

static int start_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    const struct eng_reply_format *f = r->format;
    bool complete;
    r->held[r->n_held++] = c;
    if (could_be(r, f->open_id < 0 ? f->open : NULL, &complete)) {
        if (complete) enter(r, REASON);
        return 0;
    }
    r->state = ANSWER;
    return release(r, ENG_PART_CONTENT, r->n_held, out);
}

static int reason_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    const struct eng_reply_format *f = r->format;
    bool complete = false;
    int rc = 0;
    if (r->lead) {
        char due = f->skip[r->skipped]; /* of the word behind the mark, which is part of it */
        if (due && c == due) {
            r->skipped++;
            return 0;
        }
        bool partly = r->skipped && due;
        if (!partly && is_space(c)) return 0;
        r->lead = false;
        if (partly) rc = put(r, ENG_PART_REASONING, f->skip, r->skipped, out);
    }
    r->held[r->n_held++] = c;
    while (!rc && !could_be(r, f->close_id < 0 ? f->close : NULL, &complete))
        rc = release(r, ENG_PART_REASONING, 1, out);
    if (!rc && complete) enter(r, AFTER);
    return rc;
}

static int tags_text(struct eng_reply *r, const char *s, size_t n, struct eng_parts *out)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        if (r->state == START) {
            rc = start_byte(r, s[i], out);
        } else if (r->state == REASON) {
            rc = reason_byte(r, s[i], out);
        } else if (r->state != AFTER || !is_space(s[i])) {
            r->state = ANSWER;
            return put(r, ENG_PART_CONTENT, s + i, n - i, out);
        }
    }
    return rc;
}

/* Behind the answer's beginning a closing mark closes nothing: it is text. */
static bool tags_is_mark(const struct eng_reply *r, uint32_t id)
{
    return id == r->format->open_id || (id == r->format->close_id && r->state != ANSWER);
}

/* A part of the word behind the opening mark, and no more: it was reasoning. */
static int put_skipped(struct eng_reply *r, struct eng_parts *out)
{
    const char *skip = r->format->skip;
    bool partly = r->state == REASON && r->lead && r->skipped && skip[r->skipped];
    r->lead = false;
    return partly ? put(r, ENG_PART_REASONING, skip, r->skipped, out) : 0;
}

static int tags_mark(struct eng_reply *r, uint32_t id, struct eng_parts *out)
{
    bool closes = id == r->format->close_id;
    int rc = closes ? put_skipped(r, out) : 0;
    if (closes || r->state != REASON) enter(r, closes ? AFTER : REASON);
    return rc;
}

/* ---- harmony --------------------------------------------------------------------------------- */

/* The word at `at` of the header: up to white space or a control token. */
static struct eng_str word(const struct eng_reply *r, size_t at)
{
    size_t end = at;
    while (end < r->n_held && !is_space(r->held[end]) && r->held[end] != MARK_CHANNEL &&
           r->held[end] != MARK_CONSTRAIN)
        end++;
    return (struct eng_str){r->held + at, end - at};
}

static bool says(struct eng_str s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

/* Who the message is to; n 0: the user. */
static struct eng_str recipient(const struct eng_reply *r)
{
    for (size_t i = 0; i + 3 <= r->n_held; i++) {
        bool begins = !i || is_space(r->held[i - 1]) || r->held[i - 1] == MARK_CHANNEL ||
                      r->held[i - 1] == MARK_CONSTRAIN;
        if (!begins || memcmp(r->held + i, "to=", 3)) continue;
        struct eng_str to = word(r, i + 3);
        return says(to, "user") || says(to, "assistant") ? (struct eng_str){"", 0} : to;
    }
    return (struct eng_str){"", 0};
}

/* The header is complete: which part its message is. */
static int begin_body(struct eng_reply *r, struct eng_parts *out)
{
    static const char own[] = "functions.";
    struct eng_str to = recipient(r), channel = {"", 0};
    const char *at = memchr(r->held, MARK_CHANNEL, r->n_held);
    int rc = 0;
    if (at) channel = word(r, (size_t)(at - r->held) + 1);
    r->part = says(channel, "analysis") ? ENG_PART_REASONING : ENG_PART_CONTENT;
    if (to.n) {
        size_t skip =
            to.n > sizeof own - 1 && !memcmp(to.p, own, sizeof own - 1) ? sizeof own - 1 : 0;
        r->part = ENG_PART_ARGUMENTS;
        rc = eng_parts_add(out, ENG_PART_CALL, to.p + skip, to.n - skip);
    }
    enter(r, BODY);
    return rc;
}

/* Text before any mark: held while it can be a recipient. */
static bool could_be_recipient(const struct eng_reply *r)
{
    static const char to[] = "to=";
    size_t at = 0;
    while (at < r->n_held && is_space(r->held[at]))
        at++;
    return !memcmp(r->held + at, to, CN_MIN(r->n_held - at, sizeof to - 1));
}

static int harmony_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (r->state == BETWEEN && is_space(c)) return 0;
    bool header = r->state == START || r->state == HEADER;
    if (header) {
        r->held[r->n_held++] = c == MARK_CHANNEL || c == MARK_CONSTRAIN ? ' ' : c;
        if (r->n_held < sizeof r->held && (r->state == HEADER || could_be_recipient(r))) return 0;
        for (size_t i = 0; i < r->n_held; i++) /* no header of ours: as text, without the marks */
            if (r->held[i] == MARK_CHANNEL || r->held[i] == MARK_CONSTRAIN) r->held[i] = ' ';
    }
    r->state = BODY;
    r->part = ENG_PART_CONTENT;
    if (!header) r->again = true;
    return header ? release(r, r->part, r->n_held, out) : put(r, r->part, &c, 1, out);
}

static int harmony_text(struct eng_reply *r, const char *s, size_t n, struct eng_parts *out)
{
    int rc = 0;
    size_t i = 0;
    while (!rc && i < n && r->state != BODY)
        rc = harmony_byte(r, s[i++], out);
    return rc ? rc : put(r, r->part, s + i, n - i, out);
}

static void begin_answer(struct eng_reply *r)
{
    enter(r, BODY);
    r->part = ENG_PART_CONTENT;
}

static void header_mark(struct eng_reply *r, char mark)
{
    if (r->n_held + 1 < sizeof r->held) r->held[r->n_held++] = mark;
}

static bool harmony_is_mark(const struct eng_reply_format *f, uint32_t id)
{
    return id == f->channel || id == f->message || id == f->start || id == f->end ||
           id == f->constrain;
}

static int harmony_mark(struct eng_reply *r, uint32_t id, struct eng_parts *out)
{
    const struct eng_reply_format *f = r->format;
    bool header = r->state == START || r->state == HEADER;
    if (id == f->message) {
        if (header) return begin_body(r, out);
        if (r->state == BETWEEN) begin_answer(r);
    } else if (id == f->channel) {
        if (!header) enter(r, HEADER);
        r->state = HEADER;
        header_mark(r, MARK_CHANNEL);
    } else if (id == f->constrain) {
        if (header) header_mark(r, MARK_CONSTRAIN);
    } else if (id == f->start) {
        enter(r, HEADER);
    } else {
        enter(r, BETWEEN);
    }
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

bool eng_reply_is_mark(const struct eng_reply *r, uint32_t id)
{
    return r->format->kind == ENG_REPLY_HARMONY ? harmony_is_mark(r->format, id)
                                                : tags_is_mark(r, id);
}

int eng_reply_mark(struct eng_reply *r, uint32_t id, struct eng_parts *out)
{
    if (r->format->kind == ENG_REPLY_HARMONY) return harmony_mark(r, id, out);
    return tags_mark(r, id, out);
}

int eng_reply_text(struct eng_reply *r, const char *s, size_t n, struct eng_parts *out)
{
    return r->format->kind == ENG_REPLY_HARMONY ? harmony_text(r, s, n, out)
                                                : tags_text(r, s, n, out);
}

int eng_reply_finish(struct eng_reply *r, struct eng_parts *out)
{
    if (r->state == START) return release(r, ENG_PART_CONTENT, r->n_held, out);
    if (r->state != REASON) return 0;
    int rc = put_skipped(r, out);
    return rc ? rc : release(r, ENG_PART_REASONING, r->n_held, out);
}

bool eng_reply_reasons(const struct eng_reply *r)
{
    return r->state == REASON || (r->state == BODY && r->part == ENG_PART_REASONING);
}
