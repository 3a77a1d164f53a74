/* Harmony (gpt-oss): messages with a header of channel and recipient,
 *     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
 *     <|start|>assistant to=functions.f<|channel|>commentary
 * <|constrain|>json<|message|>{...}<|call|> of which analysis is reasoning, what has a recipient is
 * a call, and the rest is the answer. A header is markup, and given out only where no message
 * followed that it could belong to. */
#include "engine/text/reply/reply.h"

#include <string.h>

/* In a held header, where a control token stood. */
#define MARK_CHANNEL   '\x01'
#define MARK_CONSTRAIN '\x02'

struct eng_wants eng_harmony_wants(const struct eng_reply *r)
{
    const uint32_t all =
        ENG_BIT(START) | ENG_BIT(CHANNEL) | ENG_BIT(MESSAGE) | ENG_BIT(CONSTRAIN) | ENG_BIT(END);
    return (struct eng_wants){r->state == ENG_S_BODY ? ENG_BIT(END) : all, all, false};
}

/* ---- headers --------------------------------------------------------------------------------- */

/* The word at `at` of the header: up to white space or a control token. */
static struct eng_str word(const struct eng_reply *r, size_t at)
{
    size_t end = at;
    while (end < r->n_held && !eng_is_space(r->held[end]) && r->held[end] != MARK_CHANNEL &&
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
        bool begins = !i || eng_is_space(r->held[i - 1]) || r->held[i - 1] == MARK_CHANNEL ||
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
    if (to.n > sizeof own - 1 && !memcmp(to.p, own, sizeof own - 1)) {
        to.p += sizeof own - 1;
        to.n -= sizeof own - 1;
    }
    if (to.n && eng_tool_find(r->tools, to)) {
        rc = eng_call_begin_named(r, to, out);
        r->n_held = 0;
        return rc;
    }
    if (to.n && r->anything) {
        r->part = ENG_PART_ARGUMENTS;
        r->begun = true;
        rc = eng_parts_add(out, ENG_PART_CALL, to.p, to.n);
    }
    eng_enter(r, ENG_S_BODY);
    return rc;
}

/* Text before any mark: held while it can be a recipient. */
static bool could_be_recipient(const struct eng_reply *r)
{
    static const char to[] = "to=";
    size_t at = 0;
    while (at < r->n_held && eng_is_space(r->held[at]))
        at++;
    return !memcmp(r->held + at, to, CN_MIN(r->n_held - at, sizeof to - 1));
}

int eng_harmony_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    if (r->state == ENG_S_BODY) return eng_put(r, r->part, &c, 1, out);
    if (r->state == ENG_S_BETWEEN && eng_is_space(c)) return 0;
    bool header = r->state == ENG_S_START || r->state == ENG_S_HEADER;
    if (header) {
        r->held[r->n_held++] = c == MARK_CHANNEL || c == MARK_CONSTRAIN ? ' ' : c;
        if (r->n_held < sizeof r->held && (r->state == ENG_S_HEADER || could_be_recipient(r)))
            return 0;
        for (size_t i = 0; i < r->n_held; i++) /* no header of ours: as text, without the marks */
            if (r->held[i] == MARK_CHANNEL || r->held[i] == MARK_CONSTRAIN) r->held[i] = ' ';
    }
    r->state = ENG_S_BODY;
    r->part = ENG_PART_CONTENT;
    if (!header) r->again = true;
    return header ? eng_release(r, r->part, r->n_held, out) : eng_put(r, r->part, &c, 1, out);
}

static void header_mark(struct eng_reply *r, char mark)
{
    if (r->n_held + 1 < sizeof r->held) r->held[r->n_held++] = mark;
}

int eng_harmony_mark(struct eng_reply *r, enum eng_mark_role role, struct eng_parts *out)
{
    bool header = r->state == ENG_S_START || r->state == ENG_S_HEADER;
    switch (role) {
    case ENG_R_MESSAGE:
        if (header) return begin_body(r, out);
        if (r->state == ENG_S_BETWEEN) {
            eng_enter(r, ENG_S_BODY);
            r->part = ENG_PART_CONTENT;
        }
        return 0;
    case ENG_R_CHANNEL:
        if (!header) eng_enter(r, ENG_S_HEADER);
        r->state = ENG_S_HEADER;
        header_mark(r, MARK_CHANNEL);
        return 0;
    case ENG_R_CONSTRAIN:
        if (header) header_mark(r, MARK_CONSTRAIN);
        return 0;
    case ENG_R_START:
        eng_enter(r, ENG_S_HEADER);
        return 0;
    default:
        eng_enter(r, ENG_S_BETWEEN);
        return 0;
    }
}

int eng_harmony_finish(struct eng_reply *r, struct eng_parts *out)
{
    return r->state == ENG_S_START ? eng_release(r, ENG_PART_CONTENT, r->n_held, out) : 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Reader: the arguments of a call, whose name the header had. */
static struct eng_wants call_wants(const struct eng_reader *rd)
{
    struct eng_wants w = eng_harmony_wants(rd->reply);
    if (rd->started && !rd->ended) w.text = 0;
    return w;
}

static int call_byte(struct eng_reader *rd, char c, struct eng_parts *out)
{
    if (!rd->started && eng_is_space(c)) return 0;
    if (!rd->started && c != '{') return ENG_STEP_AGAIN;
    if (rd->over) return eng_is_space(c) ? 0 : ENG_STEP_AGAIN;
    if (!rd->started) eng_lit_init(&rd->lit, 0, NULL);
    enum eng_lit_result is = eng_lit_byte(&rd->lit, c, &rd->made);
    int rc = eng_call_made(rd, out);
    if (!rc) rc = eng_call_commit(rd, out);
    if (rc || is == ENG_LIT_MORE) return rc;
    if (is != ENG_LIT_DONE) return ENG_STEP_AGAIN;
    rd->ended = rd->over = true;
    return eng_call_end(rd, out);
}

static int call_mark(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out)
{
    return ENG_STEP_AGAIN;
}

const struct eng_reader_ops eng_harmony_reader = {call_wants, call_byte, call_mark};
