/* Calls: what readers report becomes events; what turns out to be no call comes out as written.
 *
 * A reader begins with the mark of its form. Until a call is certain, all that it takes is kept as
 * written (at most ENG_REPLY_HELD bytes). Then either the name, the id and the arguments go out, or
 * the text does; either way the reader reads on, so that the end of the call is found by its own
 * rules and never by looking for a mark. One reader a stream. */
#include "engine/text/reply/reply.h"

#include <stdlib.h>
#include <string.h>

static const struct eng_reader_ops *ops_of(enum eng_form_reader reader)
{
    switch (reader) {
        /* clang-format off */
    case ENG_FORM_NAMED: return &eng_named_reader;
    case ENG_FORM_TAGGED: return &eng_tagged_reader;
    case ENG_FORM_ELEMENTS: return &eng_elements_reader;
    case ENG_FORM_PYTHON: return &eng_python_reader;
    case ENG_FORM_HARMONY: return &eng_harmony_reader;
    case ENG_FORM_OBJECTS: break;
        /* clang-format on */
    }
    return &eng_objects_reader;
}

static struct eng_reader *reader_new(struct eng_reply *r)
{
    struct eng_reader *rd = cn_calloc(1, sizeof *rd);
    if (!rd) return NULL;
    rd->reply = r;
    cn_buf_init(&rd->raw, 0);
    cn_buf_init(&rd->arguments, 0);
    cn_buf_init(&rd->made, 0);
    cn_buf_init(&rd->value, 0);
    cn_buf_init(&rd->names, 0);
    return rd;
}

void eng_reader_free(struct eng_reader *rd)
{
    if (!rd) return;
    cn_buf_fini(&rd->raw);
    cn_buf_fini(&rd->arguments);
    cn_buf_fini(&rd->made);
    cn_buf_fini(&rd->value);
    cn_buf_fini(&rd->names);
    free(rd);
}

/* A section of calls begins. */
static void reader_reset(struct eng_reader *rd)
{
    struct cn_buf *bufs[] = {&rd->raw, &rd->arguments, &rd->made, &rd->value, &rd->names};
    for (size_t i = 0; i < CN_ARRAY_LEN(bufs); i++)
        cn_buf_reset(bufs[i]);
    rd->form = rd->reply->format->form;
    rd->ops = ops_of(rd->form->reader);
    rd->mode = ENG_CALL_OPEN;
    rd->tool = NULL;
    rd->state = 0;
    rd->any = rd->markup = rd->named = rd->started = rd->ended = false;
    rd->list = rd->over = rd->text = rd->newline = rd->streams = false;
    rd->n_key = rd->n_id = rd->n_field = rd->count = rd->n_elements = 0;
}

/* Text that belongs to no call goes where the text before it went. */
static int put_text(struct eng_reader *rd, const char *s, size_t n, struct eng_parts *out)
{
    return eng_put(rd->reply, rd->part, s, n, out);
}

/* A byte or mark is taken: kept, or given out, as written. */
static int take(struct eng_reader *rd, const char *s, size_t n, struct eng_parts *out)
{
    if (rd->mode == ENG_CALL_TEXT) return put_text(rd, s, n, out);
    if (rd->mode != ENG_CALL_OPEN || rd->markup) return 0;
    int rc = cn_buf_append(&rd->raw, s, n);
    if (rc || rd->raw.len <= ENG_REPLY_HELD) return rc;
    return rd->named && rd->started ? eng_call_commit(rd, out) : eng_call_is_text(rd, out);
}

/* ---- what readers report --------------------------------------------------------------------- */

int eng_call_is_text(struct eng_reader *rd, struct eng_parts *out)
{
    if (rd->mode != ENG_CALL_OPEN) return 0;
    int rc = put_text(rd, rd->raw.data, rd->raw.len, out);
    cn_buf_reset(&rd->raw);
    cn_buf_reset(&rd->arguments);
    rd->mode = ENG_CALL_TEXT;
    return rc;
}

void eng_call_forget(struct eng_reader *rd)
{
    if (rd->mode != ENG_CALL_OPEN) return;
    cn_buf_reset(&rd->raw);
    rd->markup = true;
}

/* Nothing is known of the next call. */
static void clear_call(struct eng_reader *rd)
{
    rd->named = rd->started = rd->ended = false;
    rd->tool = NULL;
    rd->n_id = rd->n_key = rd->n_field = rd->count = 0;
}

void eng_call_next(struct eng_reader *rd)
{
    if (rd->mode == ENG_CALL_TEXT || rd->mode == ENG_CALL_DROP) rd->mode = ENG_CALL_OPEN;
    clear_call(rd);
}

static bool is_direct(const struct eng_reader *rd, struct eng_str name)
{
    static const char answer[] = "directly_answer";
    if (!(rd->form->flags & ENG_F_DIRECT) || name.n != sizeof answer - 1) return false;
    return !memcmp(name.p, answer, 8) && !memcmp(name.p + 9, answer + 9, name.n - 9);
}

int eng_call_name(struct eng_reader *rd, struct eng_str name, struct eng_parts *out)
{
    if (rd->mode != ENG_CALL_OPEN) return 0;
    rd->tool = eng_tool_find(rd->reply->tools, name);
    rd->named = rd->tool;
    if (rd->tool) return 0;
    if (!is_direct(rd, name)) return eng_call_is_text(rd, out);
    cn_buf_reset(&rd->raw);
    rd->mode = ENG_CALL_DROP;
    return 0;
}

int eng_call_commit(struct eng_reader *rd, struct eng_parts *out)
{
    struct eng_reply *r = rd->reply;
    if (rd->mode != ENG_CALL_OPEN || !rd->named) return 0;
    int rc = eng_parts_add(out, ENG_PART_CALL, rd->tool->name.p, rd->tool->name.n);
    if (!rc) rc = eng_parts_add(out, ENG_PART_CALL_ID, rd->id, rd->n_id);
    if (!rc) rc = eng_parts_add(out, ENG_PART_ARGUMENTS, rd->arguments.data, rd->arguments.len);
    cn_buf_reset(&rd->raw);
    cn_buf_reset(&rd->arguments);
    rd->mode = ENG_CALL_CERTAIN;
    rd->any = true;
    rd->part = ENG_PART_CONTENT; /* what follows a call is not reasoning */
    r->begun = true;
    r->again = true;
    return rc;
}

int eng_call_arguments(struct eng_reader *rd, const char *s, size_t n, struct eng_parts *out)
{
    rd->started = true;
    if (rd->mode == ENG_CALL_CERTAIN) return eng_parts_add(out, ENG_PART_ARGUMENTS, s, n);
    if (rd->mode != ENG_CALL_OPEN) return 0;
    int rc = cn_buf_append(&rd->arguments, s, n);
    if (!rc && rd->arguments.len > ENG_REPLY_HELD) rc = eng_call_commit(rd, out);
    if (!rc && rd->arguments.len > ENG_REPLY_HELD) rc = eng_call_is_text(rd, out);
    return rc;
}

int eng_call_made(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = cn_buf_code(&rd->made);
    if (!rc && rd->made.len) rc = eng_call_arguments(rd, rd->made.data, rd->made.len, out);
    cn_buf_reset(&rd->made);
    return rc;
}

int eng_call_end(struct eng_reader *rd, struct eng_parts *out)
{
    int rc = eng_call_commit(rd, out);
    if (rd->mode == ENG_CALL_OPEN || rd->mode == ENG_CALL_CERTAIN) {
        rd->mode = ENG_CALL_OPEN;
        cn_buf_reset(&rd->arguments);
        eng_call_forget(rd);
    }
    clear_call(rd);
    return rc;
}

/* ---- the stream's side ----------------------------------------------------------------------- */

bool eng_call_bare(const struct eng_reply *r, char c)
{
    const struct eng_form *form = r->format->form;
    if (!r->tools || !form || !(form->flags & ENG_F_BARE)) return false;
    return c == '[' || (c == '{' && form->reader == ENG_FORM_OBJECTS);
}

/* The reader is done: what it kept and was not a call's markup is text. */
static int leave(struct eng_reader *rd, bool drop, struct eng_parts *out)
{
    struct eng_reply *r = rd->reply;
    bool blank = true, text = rd->mode == ENG_CALL_TEXT;
    int rc = 0;

    if (rd->mode == ENG_CALL_CERTAIN && !rd->ended) r->cut = true;
    for (size_t i = 0; i < rd->raw.len && blank; i++)
        blank = eng_is_space(rd->raw.data[i]);
    if (rd->mode == ENG_CALL_OPEN && !drop && !(blank && rd->any)) {
        rc = eng_call_is_text(rd, out);
        text = true;
    }
    if (r->format->kind == ENG_REPLY_HARMONY) {
        eng_enter(r, ENG_S_BODY);
        r->part = ENG_PART_CONTENT;
        return rc;
    }
    if (rd->any || rd->mode == ENG_CALL_DROP) {
        eng_enter(r, text ? ENG_S_ANSWER : ENG_S_AFTER);
        return rc;
    }
    /* Nothing was a call: the stream continues as if the mark had been text. */
    r->state = rd->from == ENG_S_REASON ? ENG_S_REASON : ENG_S_ANSWER;
    r->n_held = 0;
    r->lead = false;
    return rc;
}

/* What a step's result means. *again: the byte or mark is for the stream to take. */
static int after(struct eng_reader *rd, int step, struct eng_str taken, bool *again,
                 struct eng_parts *out)
{
    *again = step == ENG_STEP_AGAIN;
    int rc = step < 0 ? step : *again ? 0 : take(rd, taken.p, taken.n, out);
    if (rc || step == ENG_STEP_OK) return rc;
    if (step == ENG_STEP_ALL) {
        cn_buf_reset(&rd->raw);
        eng_enter(rd->reply, ENG_S_ANSWER);
        return 0;
    }
    if (step == ENG_STEP_LEAVE && rd->any) eng_call_forget(rd);
    return leave(rd, false, out);
}

/* The stream's reader, as new. */
static struct eng_reader *begin(struct eng_reply *r)
{
    if (!r->reader && !(r->reader = reader_new(r))) return NULL;
    struct eng_reader *rd = r->reader;
    reader_reset(rd);
    rd->from = r->state;
    rd->part = r->state == ENG_S_REASON ? ENG_PART_REASONING : ENG_PART_CONTENT;
    rd->bare = false;
    r->state = ENG_S_CALL;
    return rd;
}

int eng_call_begin_named(struct eng_reply *r, struct eng_str name, struct eng_parts *out)
{
    struct eng_reader *rd = begin(r);
    return rd ? eng_call_name(rd, name, out) : CN_ENOMEM;
}

int eng_call_begin(struct eng_reply *r, enum eng_mark_role role, struct eng_str mark, char c,
                   struct eng_parts *out)
{
    struct eng_reader *rd = begin(r);
    bool again;
    if (!rd) return CN_ENOMEM;
    rd->bare = role == ENG_R_NONE;
    int rc = cn_buf_append(&rd->raw, r->held, r->n_held);
    if (!rc) rc = cn_buf_append(&rd->raw, mark.p, mark.n);
    r->n_held = 0;
    if (rc) return rc;
    if (rd->bare) return eng_call_byte(r, c, out);
    return after(rd, rd->ops->mark(rd, role, out), (struct eng_str){"", 0}, &again, out);
}

int eng_call_byte(struct eng_reply *r, char c, struct eng_parts *out)
{
    struct eng_reader *rd = r->reader;
    bool again;
    rd->markup = false;
    int rc = after(rd, rd->ops->byte(rd, c, out), (struct eng_str){&c, 1}, &again, out);
    return rc || !again ? rc : eng_stream_byte(r, c, out);
}

int eng_call_mark(struct eng_reply *r, size_t mark, struct eng_parts *out)
{
    struct eng_reader *rd = r->reader;
    enum eng_mark_role role = r->format->marks[mark].role;
    bool again;
    rd->markup = false;
    int rc = after(rd, rd->ops->mark(rd, role, out), eng_mark_text(r->format, mark), &again, out);
    return rc || !again ? rc : eng_stream_mark(r, mark, out);
}

int eng_call_finish(struct eng_reply *r, bool cut, struct eng_parts *out)
{
    struct eng_reader *rd = r->reader;
    int rc = 0;
    if (rd->mode == ENG_CALL_CERTAIN && !rd->ended && rd->started) {
        eng_lit_cut(&rd->lit, &rd->made);
        rc = eng_call_made(rd, out);
    }
    return rc ? rc : leave(rd, cut, out);
}
