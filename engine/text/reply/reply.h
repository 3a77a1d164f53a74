/* How a model's output is taken apart: what the files of this folder share. Private to engine/text.
 *
 *   tokens, text -> lexer (lexer.c) -> bytes and marks -> stream (reply.c, harmony.c)
 *                                                            | in a call
 *                                                            v
 *                                   reader of the form (objects, named, tagged, elements, python)
 *                                            | names, arguments          | anything else
 *                                            v                           v
 *                                        call.c: events              the answer's text
 *
 * The lexer finds marks, in text only those that the stream or reader asks for at that point. A
 * reader gets one byte or mark at a time, so that it does not matter how the text is cut. What a
 * reader takes is kept as written until it is certain that it is a call. */
#ifndef ENGINE_TEXT_REPLY_REPLY_H
#define ENGINE_TEXT_REPLY_REPLY_H

#include "engine/text/text.h"

/* ---- marks and forms (marks.c) --------------------------------------------------------------- */

enum eng_mark_role {
    ENG_R_NONE,
    ENG_R_THINK, /* reasoning begins */
    ENG_R_THINK_END,
    ENG_R_WRAP,    /* around the answer; never text */
    ENG_R_TO,      /* before the recipient of a message */
    ENG_R_MESSAGE, /* a message's header ends */
    ENG_R_START,   /* harmony's others */
    ENG_R_CHANNEL,
    ENG_R_CONSTRAIN,
    ENG_R_END,
    ENG_R_OPEN,      /* one or several calls begin */
    ENG_R_CLOSE,     /* and end */
    ENG_R_CALL,      /* a call begins */
    ENG_R_NEXT,      /* its header's second field follows */
    ENG_R_LAST,      /* its header ends, arguments follow */
    ENG_R_HEAD_END,  /* the head of a call or parameter ends */
    ENG_R_PARAM,     /* a parameter begins: its name follows, */
    ENG_R_KEY_END,   /* which ends here: its type, or VALUE, follows */
    ENG_R_VALUE,     /* the value begins */
    ENG_R_VALUE_END, /* and ends */
    ENG_R_CALL_END,
    ENG_R_QUOTE, /* around strings */
};
#define ENG_BIT(role) (1u << ENG_R_##role)

enum eng_form_reader {
    ENG_FORM_HARMONY,
    ENG_FORM_OBJECTS,  /* JSON objects with name and arguments, alone or in lists */
    ENG_FORM_NAMED,    /* a header with the name, then the arguments as JSON */
    ENG_FORM_TAGGED,   /* a tag for each parameter */
    ENG_FORM_ELEMENTS, /* a tag for each value, nested as values are */
    ENG_FORM_PYTHON,   /* calls as Python writes them */
};
enum eng_form_flag {
    ENG_F_BARE = 1,         /* calls may begin the answer without a mark */
    ENG_F_BUILT_IN = 2,     /* after OPEN also Python: name.call(...) */
    ENG_F_KEY_IS_NAME = 4,  /* {"name": {arguments}} */
    ENG_F_IDS = 8,          /* a member "id" is the call's id; */
    ENG_F_WAIT_ID = 16,     /* it comes after the arguments */
    ENG_F_DIRECT = 32,      /* a call of directly_answer is dropped */
    ENG_F_FENCED = 64,      /* arguments are in a fence of Markdown */
    ENG_F_OWN_VALUES = 128, /* arguments have bare keys, and strings between QUOTE marks */
    ENG_F_PROMPTED = 256,   /* the prompt ends in CALL; a call of "all" is the answer */
    ENG_F_CALL_ALONE = 512, /* models leave OPEN out */
    ENG_F_LINES = 1024,     /* one newline at each end of a value is markup */
    ENG_F_TYPED = 2048,     /* parameters say whether they are strings */
    ENG_F_ENTITIES = 4096,  /* names have &amp; and &quot; */
};

struct eng_form {
    const char *name;
    enum eng_form_reader reader;
    unsigned flags;
    const char *order; /* what the fields of a header are, in reader NAMED: - nothing, n name,
                        * i id, k Kimi's functions.NAME:N, g Gemma's call:NAME */
    const char *has, *also;
    struct {
        enum eng_mark_role role;
        const char *text;
    } marks[16];
};

/* A mark's text. */
static inline struct eng_str eng_mark_text(const struct eng_reply_format *f, size_t mark)
{
    return (struct eng_str){f->text + f->marks[mark].text, f->marks[mark].n_text};
}
/* The text of the first mark of a role; empty if the format has no such mark. */
struct eng_str eng_role_text(const struct eng_reply_format *f, enum eng_mark_role role);

/* What a buffer holds; never NULL. */
static inline struct eng_str eng_str_of(const struct cn_buf *b)
{
    return (struct eng_str){b->data ? b->data : "", b->len};
}

/* ---- lexer (lexer.c) ------------------------------------------------------------------------- */

/* Which marks count now: roles as text, and roles as tokens. */
struct eng_wants {
    uint32_t text, token;
    bool at_start; /* also those that count at the start of a message only */
};
struct eng_wants eng_stream_wants(const struct eng_reply *r);
/* What the lexer found: the stream takes it. */
int eng_stream_byte(struct eng_reply *r, char c, struct eng_parts *out);
int eng_stream_mark(struct eng_reply *r, size_t mark, struct eng_parts *out);

/* One more symbol: a byte, or 256 + an index of the format's tokens. */
int eng_lex(struct eng_reply *r, uint16_t symbol, struct eng_parts *out);
/* The symbols that wait for the rest of a mark are text. */
int eng_lex_flush(struct eng_reply *r, struct eng_parts *out);
bool eng_lex_wants(const struct eng_reply *r, uint32_t id);

/* ---- the stream (reply.c; harmony.c for its format) ------------------------------------------ */

enum eng_reply_state {
    ENG_S_START,  /* nothing but white space so far; it is held */
    ENG_S_REASON, /* reasoning; white space at its end is held */
    ENG_S_AFTER,  /* after a mark: white space is dropped */
    ENG_S_ANSWER, /* the answer; before calls, white space at its end is held */
    ENG_S_TO,     /* the recipient of a message; held */
    ENG_S_CALL,   /* the reader has the stream */
    /* harmony: */
    ENG_S_HEADER,  /* from START or CHANNEL to MESSAGE; held */
    ENG_S_BODY,    /* in a message */
    ENG_S_BETWEEN, /* after END */
};

static inline bool eng_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
/* Text of a part. A second message of a kind begins on a line of its own. */
int eng_put(struct eng_reply *r, enum eng_part part, const char *s, size_t n,
            struct eng_parts *out);
/* Gives out the first n held bytes. */
int eng_release(struct eng_reply *r, enum eng_part part, size_t n, struct eng_parts *out);
void eng_enter(struct eng_reply *r, enum eng_reply_state state);

struct eng_wants eng_harmony_wants(const struct eng_reply *r);
int eng_harmony_byte(struct eng_reply *r, char c, struct eng_parts *out);
int eng_harmony_mark(struct eng_reply *r, enum eng_mark_role role, struct eng_parts *out);
int eng_harmony_finish(struct eng_reply *r, struct eng_parts *out);

/* ---- tools and schemas (tools.c) ------------------------------------------------------------- */

enum eng_type {
    ENG_T_STRING = 1,
    ENG_T_NUMBER = 2, /* integers too */
    ENG_T_BOOLEAN = 4,
    ENG_T_NULL = 8,
    ENG_T_OBJECT = 16,
    ENG_T_ARRAY = 32,
    ENG_T_ANY = 63,
};
/* The part of a JSON schema that readers need. NULL allows everything. */
struct eng_schema;
struct eng_tool {
    struct eng_str name;
    const struct eng_schema *parameters;
};
/* The tool of that name, or NULL. */
const struct eng_tool *eng_tool_find(const struct eng_tools *t, struct eng_str name);
/* Whether a tool's name begins so. */
bool eng_tool_begins(const struct eng_tools *t, struct eng_str prefix);
/* The types that a value may have, a bit each; ANY where that is not said. */
unsigned eng_schema_types(const struct eng_schema *s);
/* The schema of an object's member and of an array's items. *known, if not NULL: whether the
 * property is named. */
const struct eng_schema *eng_schema_member(const struct eng_schema *s, struct eng_str name,
                                           bool *known);
const struct eng_schema *eng_schema_items(const struct eng_schema *s);
/* The name of the object's i-th property; empty: there are fewer. */
struct eng_str eng_schema_property(const struct eng_schema *s, size_t i);

/* ---- literals (literal.c) -------------------------------------------------------------------- */

/* Reads one value as JSON writes it, or Python, or a form of its own, and writes it as JSON. JSON
 * comes out byte for byte as it went in. Of what is not quite JSON the usual is mended: single
 * quotes, True and None, control characters and wrong escapes in strings, quotes in strings that
 * nothing follows that could follow a string, commas before a closing bracket. */
enum eng_lit_result {
    ENG_LIT_MORE, /* the byte is taken, more must come */
    ENG_LIT_DONE, /* the byte is taken, the value is complete */
    ENG_LIT_END,  /* the value was complete before the byte, which is not taken */
    ENG_LIT_BAD,  /* no value; what came out so far is the beginning of one */
};
enum { ENG_LIT_PYTHON = 1, /* tuples; a value may end before ) */ ENG_LIT_OWN = 2 /* Gemma's */ };
enum { ENG_LIT_DEPTH = 96, ENG_LIT_WORD = 256, ENG_LIT_GAP = 64 };
struct eng_lit {
    uint8_t state, flags, quote, hex, number;
    bool key;      /* the string or word is a member's name */
    bool triple;   /* the string is in three quotes */
    bool empty;    /* nothing of the string or the brackets has come */
    bool comma;    /* one is held, gap after it */
    uint8_t depth; /* open brackets */
    size_t n_word, n_gap;
    char stack[ENG_LIT_DEPTH];
    char word[ENG_LIT_WORD], gap[ENG_LIT_GAP];
    const struct eng_schema *schema[ENG_LIT_DEPTH + 1]; /* of the value at each depth, form OWN */
};
void eng_lit_init(struct eng_lit *l, unsigned flags, const struct eng_schema *schema);
/* out gets what the byte makes certain. Failure to append shows in out->failed. */
enum eng_lit_result eng_lit_byte(struct eng_lit *l, char c, struct cn_buf *out);
/* A QUOTE mark: a string begins or ends. */
enum eng_lit_result eng_lit_quote(struct eng_lit *l, struct cn_buf *out);
/* No more bytes: DONE or BAD. */
enum eng_lit_result eng_lit_finish(struct eng_lit *l, struct cn_buf *out);
/* The value is cut off here: the beginning of a number or constant that was held. */
void eng_lit_cut(const struct eng_lit *l, struct cn_buf *out);
/* Whether a whole text is one value; out then has it. Python: also Python's. */
bool eng_lit_whole(const char *s, size_t n, bool python, struct cn_buf *out);
/* One byte of the inside of a JSON string, escaped where it must be. */
int eng_lit_escape(char c, struct cn_buf *out);

/* Decodes the inside of a JSON string. Bytes written to out (at most 7); -1: the string has ended,
 * -2: it is not a string. */
int eng_unescape(struct eng_unescape *u, char c, char out[8]);

/* ---- readers of calls (call.c; one file a reader) -------------------------------------------- */

enum eng_step {
    ENG_STEP_OK = 0,
    ENG_STEP_LEAVE, /* the calls are over; the byte or mark is taken */
    ENG_STEP_AGAIN, /* they were over before it: the stream takes it */
    ENG_STEP_ALL,   /* as LEAVE: the answer's text follows, what was kept was its markup */
}; /* or a negative error */

enum eng_call_mode {
    ENG_CALL_OPEN,    /* it is not certain yet that this is a call: all of it is kept */
    ENG_CALL_CERTAIN, /* its name is out */
    ENG_CALL_TEXT,    /* it is not a call, and comes out as written; read on to find its end */
    ENG_CALL_DROP,    /* no call, and no text */
};

enum { ENG_ELEMENTS = 48, ENG_NAME_BYTES = 256 };
struct eng_reader {
    struct eng_reply *reply;
    const struct eng_form *form;
    const struct eng_reader_ops *ops;
    enum eng_call_mode mode;
    enum eng_part part;        /* of the text around the calls */
    enum eng_reply_state from; /* where the stream was */
    bool bare;                 /* without OPEN */
    bool any;                  /* a call of this section is out */
    bool markup;               /* what is being taken belongs to a call, and is not kept */
    struct cn_buf raw;         /* mode OPEN: what was taken, as written */
    struct cn_buf arguments;   /* mode OPEN: those that have come */
    struct cn_buf made;        /* scratch: what a literal makes of a byte */
    struct cn_buf value;       /* of a parameter, until it is complete; a header */
    struct cn_buf names;       /* of the elements that are open */
    const struct eng_tool *tool;
    bool named, started, ended;  /* the call's name is known, arguments have begun, are complete */
    size_t n_key, n_id, n_field; /* bytes in: */
    char key[ENG_NAME_BYTES], id[ENG_NAME_BYTES], field[ENG_NAME_BYTES];
    int state, what;
    size_t count;                    /* arguments or members so far */
    bool list, over, text;           /* readers' own */
    bool newline;                    /* one is held: the last of a value */
    bool streams;                    /* the value goes out as it comes, as a string */
    unsigned types;                  /* that the value may have */
    const struct eng_schema *schema; /* of the value that is read */
    struct eng_lit lit;
    struct eng_unescape unescape;
    size_t n_elements;
    struct {
        const struct eng_schema *schema;
        uint8_t kind;
        size_t count, name;
    } elements[ENG_ELEMENTS];
};
struct eng_reader_ops {
    struct eng_wants (*wants)(const struct eng_reader *rd);
    int (*byte)(struct eng_reader *rd, char c, struct eng_parts *out);
    int (*mark)(struct eng_reader *rd, enum eng_mark_role role, struct eng_parts *out);
};
extern const struct eng_reader_ops eng_objects_reader, eng_named_reader, eng_tagged_reader,
    eng_elements_reader, eng_python_reader, eng_harmony_reader;

/* Harmony: the header of a call has been read; its arguments follow. */
int eng_call_begin_named(struct eng_reply *r, struct eng_str name, struct eng_parts *out);
/* Gives the stream to a reader. role: the mark that began it, or NONE with the first byte c. */
int eng_call_begin(struct eng_reply *r, enum eng_mark_role role, struct eng_str mark, char c,
                   struct eng_parts *out);
int eng_call_byte(struct eng_reply *r, char c, struct eng_parts *out);
int eng_call_mark(struct eng_reply *r, size_t mark, struct eng_parts *out);
int eng_call_finish(struct eng_reply *r, bool cut, struct eng_parts *out);
void eng_reader_free(struct eng_reader *rd);
/* Whether the byte may begin a call without a mark. */
bool eng_call_bare(const struct eng_reply *r, char c);

/* What readers report. A call: name, then arguments in pieces, then end. */
/* The call's name; of no tool: everything up to the next call is text. */
int eng_call_name(struct eng_reader *rd, struct eng_str name, struct eng_parts *out);
/* Gives out the name, the id and the arguments so far. */
int eng_call_commit(struct eng_reader *rd, struct eng_parts *out);
int eng_call_arguments(struct eng_reader *rd, const char *s, size_t n, struct eng_parts *out);
/* As eng_call_arguments for what is in rd->made. */
int eng_call_made(struct eng_reader *rd, struct eng_parts *out);
/* The call is complete. */
int eng_call_end(struct eng_reader *rd, struct eng_parts *out);
/* This is not a call after all: it comes out as written. */
int eng_call_is_text(struct eng_reader *rd, struct eng_parts *out);
/* What was kept since the last call, and what is being taken, was its markup. */
void eng_call_forget(struct eng_reader *rd);
/* Another call begins, after text that was none. */
void eng_call_next(struct eng_reader *rd);

/* A value that is not in JSON but has a type by its schema (value.c). In pieces, if it is a string;
 * otherwise it is kept until it is complete. */
int eng_value_begin(struct eng_reader *rd, unsigned types, struct eng_parts *out);
int eng_value_byte(struct eng_reader *rd, char c, struct eng_parts *out);
int eng_value_end(struct eng_reader *rd, struct eng_parts *out);
/* Writes ", " or "{", and the name of the next member. */
int eng_value_member(struct eng_reader *rd, struct eng_str name, struct eng_parts *out);

#endif
