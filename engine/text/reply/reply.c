/* reply: a model's output taken apart into reasoning, answer and calls of tools, as it comes.
 *
 * Reasoning is between two marks, of which the opening one is often written by the template; calls
 * begin with a mark of their form (call.c). Harmony has messages instead (harmony.c). White space
 * next to a mark belongs to the mark. What turns out to be no mark after all is given out as it
 * came. One object a stream, one thread at a time. */
#include "engine/text/reply/reply.h"

#include <string.h>

void eng_reply_init(struct eng_reply *r, const struct eng_reply_format *f,
                    const struct eng_tools *tools, enum eng_reply_start start)
{
    static const enum eng_reply_state states[] = {
        [ENG_REPLY_ANEW] = ENG_S_START,     [ENG_REPLY_OPENED] = ENG_S_REASON,
        [ENG_REPLY_THOUGHT] = ENG_S_REASON, [ENG_REPLY_CLOSED] = ENG_S_AFTER,
        [ENG_REPLY_ANSWER] = ENG_S_ANSWER,  [ENG_REPLY_CALL] = ENG_S_START,
    };
    *r = (struct eng_reply){.format = f,
                            .tools = tools && eng_tools_count(tools) ? tools : NULL,
                            .anything = !tools,
                            .state = states[start],
                            .lead = start == ENG_REPLY_OPENED,
                            .prompted = start == ENG_REPLY_CALL,
                            .part = ENG_PART_CONTENT};
    if (f->kind == ENG_REPLY_HARMONY && start == ENG_REPLY_ANSWER) r->state = ENG_S_BODY;
}

void eng_reply_fini(struct eng_reply *r)
{
    eng_reader_free(r->reader);
    r->reader = NULL;
}

int eng_put(struct eng_reply *r, enum eng_part part, const char *s, size_t n, struct eng_parts *out)
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

int eng_release(struct eng_reply *r, enum eng_part part, size_t n, struct eng_parts *out)
{
    int rc = eng_put(r, part, r->held, n, out);
    r->n_held -= n;
    memmove(r->held, r->held + n, r->n_held);
    return rc;
}

void eng_enter(struct eng_reply *r, enum eng_reply_state state)
{
    r->state = state;
    r->n_held = 0;
    r->lead = state == ENG_S_REASON;
    r->skipped = 0;
    r->again = true;
}

/* ---- which marks count ----------------------------------------------------------------------- */

/* The marks with which calls begin. */
static uint32_t triggers(const struct eng_reply *r)
{
    const struct eng_form *form = r->format->form;
    if (!form || (!r->tools && !(form->flags & ENG_F_PROMPTED))) return 0;
    uint32_t open = r->format->roles & ENG_BIT(OPEN);
    return open && !(form->flags & ENG_F_CALL_ALONE) ? open : open | ENG_BIT(CALL);
}

struct eng_wants eng_stream_wants(const struct eng_reply *r)
{
    const uint32_t wraps = ENG_BIT(WRAP) | ENG_BIT(TO), begin = triggers(r);
    const uint32_t think = ENG_BIT(THINK), end = ENG_BIT(THINK_END);
    if (r->state == ENG_S_CALL) return r->reader->ops->wants(r->reader);
    if (r->format->kind == ENG_REPLY_HARMONY) return eng_harmony_wants(r);
    switch (r->state) {
    case ENG_S_START:
        return (struct eng_wants){wraps | begin | think | end, wraps | begin | think | end, true};
    case ENG_S_REASON:
        /* A call's token ends reasoning; its text does not, unless nothing else has come. */
        return (struct eng_wants){end | (r->lead ? begin : 0), end | think | begin, false};
    case ENG_S_AFTER:
        return (struct eng_wants){wraps | begin, wraps | begin | think | end, true};
    case ENG_S_TO:
        return (struct eng_wants){ENG_BIT(MESSAGE), ENG_BIT(MESSAGE), false};
    }
    return (struct eng_wants){wraps | begin, wraps | begin | think, false};
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Whether white space at the answer's end may yet belong to a mark. */
static bool holds_space(const struct eng_reply *r)
{
    return triggers(r) || r->format->roles & (ENG_BIT(WRAP) | ENG_BIT(TO));
}

/* Holds white space, at most as much as may belong to a mark. The byte after it releases it. */
static int hold(struct eng_reply *r, enum eng_part part, char c, struct eng_parts *out)
{
    int rc = 0;
    if (eng_is_space(c)) {
        if (r->n_held == ENG_REPLY_SPACE) rc = eng_release(r, part, 1, out);
        r->held[r->n_held++] = c;
        return rc;
    }
    if (r->n_held) rc = eng_release(r, part, r->n_held, out);
    return rc ? rc : eng_put(r, part, &c, 1, out);
}

static int answer_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (eng_is_space(c) && !holds_space(r)) return eng_put(r, ENG_PART_CONTENT, &c, 1, out);
    return hold(r, ENG_PART_CONTENT, c, out);
}

static int start_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (eng_is_space(c) && r->n_held < ENG_REPLY_SPACE) {
        r->held[r->n_held++] = c;
        return 0;
    }
    if (eng_call_bare(r, c)) return eng_call_begin(r, ENG_R_NONE, (struct eng_str){"", 0}, c, out);
    r->state = ENG_S_ANSWER;
    int rc = holds_space(r) ? 0 : eng_release(r, ENG_PART_CONTENT, r->n_held, out);
    return rc ? rc : answer_byte(r, c, out);
}

static int reason_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    const char *skip = r->format->skip;
    int rc = 0;
    if (r->lead) {
        char due = skip[r->skipped]; /* of the word after the mark, which is part of the mark */
        if (due && c == due) {
            r->skipped++;
            return 0;
        }
        bool partly = r->skipped && due;
        if (!partly && eng_is_space(c)) return 0;
        r->lead = false;
        if (partly) rc = eng_put(r, ENG_PART_REASONING, skip, r->skipped, out);
    }
    return rc ? rc : hold(r, ENG_PART_REASONING, c, out);
}

/* A recipient without an end is text. */
static int to_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (r->n_held < sizeof r->held && c != '\n') {
        r->held[r->n_held++] = c;
        return 0;
    }
    r->state = ENG_S_ANSWER;
    int rc = eng_release(r, ENG_PART_CONTENT, r->n_held, out);
    return rc ? rc : answer_byte(r, c, out);
}

int eng_stream_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (r->state == ENG_S_CALL) return eng_call_byte(r, c, out);
    if (r->format->kind == ENG_REPLY_HARMONY) return eng_harmony_byte(r, c, out);
    switch (r->state) {
    case ENG_S_START:
        return start_byte(r, c, out);
    case ENG_S_REASON:
        return reason_byte(r, c, out);
    case ENG_S_TO:
        return to_byte(r, c, out);
    case ENG_S_AFTER:
        if (eng_is_space(c)) return 0;
        if (eng_call_bare(r, c))
            return eng_call_begin(r, ENG_R_NONE, (struct eng_str){"", 0}, c, out);
        r->state = ENG_S_ANSWER;
        break;
    }
    return answer_byte(r, c, out);
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* Only a part of the word after the opening mark has come: it was reasoning. */
static int put_skipped(struct eng_reply *r, struct eng_parts *out)
{
    const char *skip = r->format->skip;
    bool partly = r->state == ENG_S_REASON && r->lead && r->skipped && skip[r->skipped];
    r->lead = false;
    return partly ? eng_put(r, ENG_PART_REASONING, skip, r->skipped, out) : 0;
}

/* Who the message is to: to itself it is reasoning. */
static void end_recipient(struct eng_reply *r)
{
    static const char to[] = "to=", self[] = "self";
    size_t n = r->n_held, at = 0;
    while (n && eng_is_space(r->held[n - 1]))
        n--;
    while (at < n && memcmp(r->held + at, to, sizeof to - 1))
        at++; /* white space before it */
    at += sizeof to - 1;
    bool mine = n == at + sizeof self - 1 && !memcmp(r->held + at, self, sizeof self - 1);
    eng_enter(r, mine ? ENG_S_REASON : ENG_S_AFTER);
}

int eng_stream_mark(struct eng_reply *r, size_t mark, struct eng_parts *out)
{
    enum eng_mark_role role = r->format->marks[mark].role;
    struct eng_str text = eng_mark_text(r->format, mark);
    struct eng_wants w;
    int rc = 0;

    if (r->state == ENG_S_CALL) return eng_call_mark(r, mark, out);
    w = eng_stream_wants(r);
    if (!((w.text | w.token) >> role & 1)) { /* another's: here it is text */
        for (size_t i = 0; !rc && i < text.n; i++)
            rc = eng_stream_byte(r, text.p[i], out);
        return rc;
    }
    if (r->format->kind == ENG_REPLY_HARMONY) return eng_harmony_mark(r, role, out);
    switch (role) {
    case ENG_R_THINK:
        if (r->state == ENG_S_ANSWER) rc = eng_release(r, ENG_PART_CONTENT, r->n_held, out);
        if (r->state != ENG_S_REASON) eng_enter(r, ENG_S_REASON);
        return rc;
    case ENG_R_THINK_END:
        rc = put_skipped(r, out);
        eng_enter(r, ENG_S_AFTER);
        return rc;
    case ENG_R_WRAP:
        eng_enter(r, ENG_S_AFTER);
        return 0;
    case ENG_R_MESSAGE:
        end_recipient(r);
        return 0;
    case ENG_R_TO:
        memcpy(r->held + r->n_held, text.p, text.n);
        r->n_held += text.n;
        r->state = ENG_S_TO;
        return 0;
    default:
        break;
    }
    if (r->state == ENG_S_REASON) rc = put_skipped(r, out);
    return rc ? rc : eng_call_begin(r, role, text, 0, out);
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* The prompt has the mark with which a call begins. */
static int begin_prompted(struct eng_reply *r, struct eng_parts *out)
{
    r->prompted = false;
    return eng_call_begin(r, ENG_R_CALL, (struct eng_str){"", 0}, 0, out);
}

bool eng_reply_is_mark(const struct eng_reply *r, uint32_t id)
{
    return eng_lex_wants(r, id);
}

int eng_reply_mark(struct eng_reply *r, uint32_t id, struct eng_parts *out)
{
    int rc = r->prompted ? begin_prompted(r, out) : 0;
    for (size_t i = 0; !rc && i < r->format->n_tokens; i++)
        if (r->format->tokens[i].id == id) return eng_lex(r, (uint16_t)(256 + i), out);
    return rc;
}

/* How many bytes are text of the answer for certain, and nothing but it. */
static size_t plain_run(const struct eng_reply *r, const char *s, size_t n)
{
    const uint32_t *first = r->format->first;
    size_t i = 0;
    if (r->state != ENG_S_ANSWER || r->n_lex || r->n_held || r->format->kind == ENG_REPLY_HARMONY)
        return 0;
    for (; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (eng_is_space(s[i]) || first[c / 32] >> c % 32 & 1) break;
    }
    return i;
}

int eng_reply_text(struct eng_reply *r, const char *s, size_t n, struct eng_parts *out)
{
    int rc = r->prompted && n ? begin_prompted(r, out) : 0;
    for (size_t i = 0; !rc && i < n;) {
        size_t run = plain_run(r, s + i, n - i);
        rc = run ? eng_put(r, ENG_PART_CONTENT, s + i, run, out)
                 : eng_lex(r, (unsigned char)s[i], out);
        i += run ? run : 1;
    }
    return rc;
}

int eng_reply_finish(struct eng_reply *r, bool cut, struct eng_parts *out)
{
    /* The beginning of a mark in a call whose name is out is not its arguments'. */
    if (r->state == ENG_S_CALL && (cut || r->reader->mode == ENG_CALL_CERTAIN)) r->n_lex = 0;
    int rc = eng_lex_flush(r, out);
    if (rc) return rc;
    if (r->state == ENG_S_CALL) return eng_call_finish(r, cut, out);
    if (r->format->kind == ENG_REPLY_HARMONY) return eng_harmony_finish(r, out);
    if (r->state == ENG_S_TO && cut) r->n_held = 0;
    if (r->state != ENG_S_REASON) return eng_release(r, ENG_PART_CONTENT, r->n_held, out);
    rc = put_skipped(r, out);
    return rc ? rc : eng_release(r, ENG_PART_REASONING, r->n_held, out);
}

bool eng_reply_reasons(const struct eng_reply *r)
{
    return r->state == ENG_S_REASON || (r->state == ENG_S_BODY && r->part == ENG_PART_REASONING);
}

enum eng_reply_calls eng_reply_calls(const struct eng_reply *r)
{
    if (!r->begun) return ENG_CALLS_NONE;
    bool open = r->state == ENG_S_CALL && r->reader->mode == ENG_CALL_CERTAIN && !r->reader->ended;
    return r->cut || open ? ENG_CALLS_CUT : ENG_CALLS_WHOLE;
}
