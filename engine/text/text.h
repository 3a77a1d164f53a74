/* engine/text: vocabularies, tokenizers, incremental detokenising and chat templates.
 * Uses base, PCRE2, utf8proc and jansson only; knows no model file and no device. All objects are
 * immutable after creation and may be used from any thread, except where said otherwise. */
#ifndef ENGINE_TEXT_TEXT_H
#define ENGINE_TEXT_TEXT_H

#include "base/base.h"
#include "engine/text/grammar/grammar.h"
#include "engine/text/grammar/guide.h"

#include <jansson.h>

/* ---- vocabularies (vocab.c) ------------------------------------------------------------------ */

/* Bytes without a NUL at their end. */
struct eng_str {
    const char *p;
    size_t n;
};

/* Token types of GGUF (tokenizer.ggml.token_type). */
enum eng_token_type {
    ENG_TOKEN_UNDEFINED = 0,
    ENG_TOKEN_NORMAL = 1,
    ENG_TOKEN_UNKNOWN = 2,
    ENG_TOKEN_CONTROL = 3,
    ENG_TOKEN_USER = 4,
    ENG_TOKEN_UNUSED = 5,
    ENG_TOKEN_BYTE = 6,
};

/* Everything the file says of its tokenizer; all pointers borrowed for the call only.
 * Ids are -1 where the file has none, tri-state flags -1 where the key is absent. */
struct eng_vocab_spec {
    const char *model;        /* tokenizer.ggml.model: "llama" (SPM), "gpt2" (byte-level BPE),
                               * "gemma4", "bert" (WordPiece) */
    const char *pre;          /* tokenizer.ggml.pre, NULL when absent */
    const char *general_name; /* general.name, NULL when absent (phi-3's rstrip rule) */
    size_t n_tokens;
    const struct eng_str *tokens;
    const float *scores;  /* n_tokens, or NULL */
    const int32_t *types; /* n_tokens, or NULL (all normal) */
    size_t n_merges;
    const struct eng_str *merges; /* "left right" */
    int64_t bos, eos, eot, eom, unk, sep, pad;
    int64_t fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
    const uint32_t *eos_ids; /* tokenizer.ggml.eos_token_ids, or NULL */
    size_t n_eos_ids;
    int add_bos, add_eos, add_space_prefix;
    int lowercase; /* tokenizer.ggml.normalizer.lowercase (WordPiece) */
};

struct eng_vocab;

/* Copies what it needs from spec. Unknown tokenizer models and pre-tokenisers are refused by name
 * (CN_EUNSUPP) with what is supported; CN_EFORMAT (no tokens, BOS or EOS to be added but missing),
 * CN_ELIMIT (4 GiB of text, 16 MiB of special tokens), CN_ENOMEM. Ids beyond the vocabulary count
 * as absent. If several tokens have the same text, the first one is used. A merge whose strings
 * occur in no text is ignored. *out is returned owned. */
int eng_vocab_new(const struct eng_vocab_spec *spec, struct eng_vocab **out, struct cn_error *err);
void eng_vocab_free(struct eng_vocab *v);

size_t eng_vocab_size(const struct eng_vocab *v);
int64_t eng_vocab_bos(const struct eng_vocab *v); /* -1 when none */
int64_t eng_vocab_eos(const struct eng_vocab *v);
bool eng_vocab_adds_bos(const struct eng_vocab *v);
/* End of generation: the file's eos, eot, eom and infill ids, and texts known for it (</s>,
 * <|im_end|> ...). */
bool eng_vocab_is_eog(const struct eng_vocab *v, uint32_t id);
/* All of them, ascending; *n of them, borrowed from the vocabulary. */
const uint32_t *eng_vocab_eog(const struct eng_vocab *v, size_t *n);
/* Control, unknown, or end of generation: never made from a client's text. A token of ordinary type
 * that only an id of the file makes an end (a newline, say) is not one of them. */
bool eng_vocab_is_control(const struct eng_vocab *v, uint32_t id);
/* Control or user-defined: the tokenizer finds it whole, and never merges it with text around it.
 * id must be < size. */
bool eng_vocab_is_special(const struct eng_vocab *v, uint32_t id);
/* The token as the file writes it (for bos_token and eos_token in templates). */
struct eng_str eng_vocab_text(const struct eng_vocab *v, uint32_t id);
/* Those of BOS and EOS; empty if the vocabulary has none. */
struct eng_str eng_vocab_bos_text(const struct eng_vocab *v);
struct eng_str eng_vocab_eos_text(const struct eng_vocab *v);
/* The bytes the token stands for: mapped bytes undone, U+2581 as a space, <0xHH> as the byte,
 * control tokens as "" unless `special`. id must be < size. Borrowed from the vocabulary. */
struct eng_str eng_vocab_piece(const struct eng_vocab *v, uint32_t id, bool special);
/* Exact look-up of a token by its text in the file; -1 when there is none. */
int64_t eng_vocab_find(const struct eng_vocab *v, const char *text, size_t n);

/* ---- tokenising (tokenize.c, bpe.c, spm.c, pretokenize.c) ------------------------------------ */

struct eng_ids {
    uint32_t *v;
    size_t n, cap;
    size_t max; /* 0 = none; a longer result is CN_EWINDOW */
    /* Called about every millisecond of work on a long text. If it returns false, the call ends
     * with CN_ECANCELLED; it must then go on returning false. May be NULL. */
    bool (*keep_going)(void *arg);
    void *arg;
    /* Longest run of bytes that has to be merged as a whole, 0 = no limit: merging takes up to 180
     * bytes of memory for each byte. A longer run is CN_ELIMIT. */
    size_t max_run;
    /* Called before work memory that grows with the text is allocated; a result other than 0 ends
     * the call with that code. `give` gets the sum back at the end. Both get arg; set both or
     * none. */
    int (*take)(void *arg, size_t bytes);
    void (*give)(void *arg, size_t bytes);
};
void eng_ids_fini(struct eng_ids *ids);

/* A run of text of one origin. It starts where the previous span ends. */
struct eng_span {
    size_t end;
    bool trusted;
};

enum {
    ENG_TOKENIZE_SPECIAL = 1, /* add BOS / EOS as the vocabulary says */
    ENG_TOKENIZE_PARSE = 2,   /* control tokens written in the text become their ids */
};

/* Appends the ids of `text` (any bytes; time linear in n for every input).
 * spans (n_spans entries, the last one ending at n; NULL = all of one origin, trusted) limit where
 * control tokens are recognised: only where the whole token lies in trusted spans. User-defined
 * tokens that do not end generation are recognised everywhere, as the reference does. Between the
 * recognised tokens the text is tokenised as one piece whatever its origin.
 * If a template writes BOS or EOS itself, SPECIAL does not add a second one.
 * Errors: CN_EWINDOW (ids->max), CN_ECANCELLED (ids->keep_going), CN_EINVAL (spans that do not end
 * at n or run backwards), CN_ELIMIT (n of 4 GiB), CN_ENOMEM. On error ids->n is as before. */
int eng_tokenize(const struct eng_vocab *v, const char *text, size_t n,
                 const struct eng_span *spans, size_t n_spans, unsigned flags, struct eng_ids *ids,
                 struct cn_error *err);

/* ---- detokenising (detok.c) ------------------------------------------------------------------
 * One object per stream, one thread at a time. Output is always valid UTF-8: bytes of an
 * unfinished character are held back; bytes that cannot become valid are U+FFFD. */
struct eng_detok {
    const struct eng_vocab *vocab;
    bool special;  /* show control tokens */
    bool at_start; /* SPM: the first piece loses its prefix space */
    uint8_t held[4];
    uint8_t n_held;
};
/* strip_prefix: this text begins a sequence (drop SPM's added prefix space). */
void eng_detok_init(struct eng_detok *d, const struct eng_vocab *v, bool special,
                    bool strip_prefix);
/* CN_ERANGE (no such token), or the error of appending to out. */
int eng_detok_push(struct eng_detok *d, uint32_t id, struct cn_buf *out);
int eng_detok_flush(struct eng_detok *d, struct cn_buf *out);
/* Forgets the start of a character whose rest will not come. */
static inline void eng_detok_drop(struct eng_detok *d)
{
    d->n_held = 0;
}

/* ---- chat templates (jinja/, template.c) ----------------------------------------------------- */

struct eng_template;

/* Compiles a Jinja template once (at most 4 MiB; nested at most 64 deep). The source is copied.
 * Small conversations are then rendered to learn how the template takes messages and switches
 * reasoning: for at most a second, and in a few milliseconds unless the template is hostile.
 * Errors: CN_ETEMPLATE with line number, CN_ENOMEM. */
int eng_template_new(const char *src, size_t n, struct eng_template **out, struct cn_error *err);
void eng_template_free(struct eng_template *t);
/* The source that eng_template_new got. */
struct eng_str eng_template_source(const struct eng_template *t);

/* Whether the template expects null, not "", as the content of an assistant message with tool calls
 * and no text. */
bool eng_template_null_content(const struct eng_template *t);
/* Whether the arguments of a call in the conversation should be JSON text: the template wants text,
 * or writes the text as it is where it would write an object. False: they should be an object. */
bool eng_template_text_arguments(const struct eng_template *t);
enum eng_role { ENG_SYSTEM, ENG_USER, ENG_ASSISTANT, ENG_TOOL, ENG_N_ROLES };
/* Whether the template takes a list of parts ({"type": "text", "text": ...}) as the content of a
 * message of this role. False: it wants a string. */
bool eng_template_takes_parts(const struct eng_template *t, enum eng_role role);
/* Whether the template uses `tools`; one that does not renders the same with and without them. */
bool eng_template_takes_tools(const struct eng_template *t);

/* Puts messages into the form that the template takes: a content of parts becomes a string where
 * the template does not take a list (texts on lines of their own); the role developer becomes
 * system where the template does not know it; several system messages become one at the beginning,
 * and later ones text of the user, where the template takes one at the beginning only (all of them
 * where it takes none); arguments that are objects become text where the template wants text. What
 * the template takes is not changed. messages: an array of objects, changed in place; their
 * contents are strings, null or arrays of parts. After CN_ENOMEM, the only error, they are of no
 * use. Takes linear time. */
int eng_template_fit(const struct eng_template *t, json_t *messages, struct cn_error *err);

/* For a template that does not take tools: describes the tools in the system message (a new one
 * where there is none) and writes calls and their results as text, in the form
 *     <tools>..</tools>  <tool_call>{"name": .., "arguments": ..}</tool_call>
 *     <tool_response>..</tool_response>
 * (results as text of the user, in the order of their calls). Arguments that are a string are
 * written as they are. tools: the request's array, unchanged; NULL or empty: none are described,
 * and calls and results become text only if the template does not write them itself. messages,
 * error and time as with eng_template_fit, which must come after it. */
int eng_template_fall_back(const struct eng_template *t, json_t *messages, const json_t *tools,
                           struct cn_error *err);

/* Adds to the functions of native tools the members that some templates write without asking
 * whether they are there: an empty description, parameters without properties. tools: an array of
 * {"type": "function", "function": {..}}, changed in place. CN_ENOMEM. */
int eng_template_fit_tools(const struct eng_template *t, json_t *tools);

/* How reasoning is switched in this template: *out gets an object with the variable that turns it
 * on or off, for struct eng_template_in.kwargs (returned owned), or NULL if the template has no
 * such switch. gpt-oss can only think less: off is then its lowest effort. CN_ENOMEM. */
int eng_template_thinking(const struct eng_template *t, bool on, json_t **out);

struct eng_template_limits {
    uint64_t max_steps;      /* 0 = default 500,000 */
    uint32_t max_depth;      /* 0 = default 64 */
    size_t max_output_bytes; /* 0 = default 16 MiB */
    size_t max_memory_bytes; /* 0 = default 64 MiB */
    uint64_t max_ns;         /* 0 = default 250 ms */
    /* As in struct eng_ids; the time it takes is not counted. */
    bool (*keep_going)(void *arg);
    void *arg;
};

struct eng_template_in {
    json_t *messages;  /* array; borrowed, not changed */
    json_t *tools;     /* array or NULL = none */
    json_t *documents; /* array or NULL = none */
    json_t *kwargs;    /* object of further variables, or NULL; may not name the others */
    bool add_generation_prompt;
    struct eng_str bos_token, eos_token, pad_token, unk_token; /* p NULL: not defined */
    int64_t now_s; /* for strftime_now: local wall clock as seconds (UTC) */
    struct eng_template_limits limits;
};

struct eng_rendered {
    struct cn_buf text;
    struct eng_span *spans; /* origin: trusted = written by the template (or bos/eos) */
    size_t n_spans;
};
void eng_rendered_fini(struct eng_rendered *r);

/* Renders. Every byte that came from messages, tools, documents or kwargs is in an untrusted span,
 * whatever filters or slices it went through. Errors: CN_ETEMPLATE (raise_exception's own text
 * included), CN_ELIMIT (steps, depth, output, memory, time), CN_ECANCELLED (limits.keep_going),
 * CN_EINVAL or CN_ETYPE (kwargs), CN_ENOMEM. out is fini'd by the caller on success. */
int eng_template_render(const struct eng_template *t, const struct eng_template_in *in,
                        struct eng_rendered *out, struct cn_error *err);

/* As eng_template_render, but the text ends after the content of the last message, so that the
 * model continues it: what the template writes after it is left out. The content is a string, or
 * parts of which the last with a text is continued; white space at its ends is cut if the template
 * does that. add_generation_prompt must be false. Also CN_EINVAL: there is no such content, or the
 * template does not write it exactly once and unchanged. */
int eng_template_continue(const struct eng_template *t, const struct eng_template_in *in,
                          struct eng_rendered *out, struct cn_error *err);

/* ---- the tools that a request offers (reply/tools.c) ----------------------------------------- */

/* Names and types of parameters of the functions that a request offers. Immutable. */
struct eng_tools;
/* tools: an array as clients send it (borrowed, for the call only): {"type": "function",
 * "function": {"name", "parameters"}}, or the inner object alone. `parameters` is a JSON schema;
 * $ref into itself is followed, and what it does not say is taken as any type. Time and
 * memory are linear in the schemas. An empty array gives an object that offers nothing.
 * Errors: CN_ETYPE or CN_EINVAL (no array, no name, a name twice; err->param names the place, such
 * as "tools[1].function.name"), CN_ELIMIT (more than 4096), CN_ENOMEM. *out is returned owned. */
int eng_tools_new(const json_t *tools, struct eng_tools **out, struct cn_error *err);
void eng_tools_free(struct eng_tools *t);
/* The bytes it takes, for the caller to charge. */
size_t eng_tools_bytes(const struct eng_tools *t);
size_t eng_tools_count(const struct eng_tools *t);

/* ---- replies (reply/) ------------------------------------------------------------------------ */

/* A model's output is taken apart into reasoning, the answer, and calls of tools. */

enum eng_part {
    ENG_PART_CONTENT,
    ENG_PART_REASONING,
    ENG_PART_CALL,      /* the name of a function: a call begins */
    ENG_PART_CALL_ID,   /* of the call that has just begun, where the format has ids */
    ENG_PART_ARGUMENTS, /* of the last call: JSON; a call that is finished has a whole object */
};
/* A run of text of one part. It starts where the previous run ends. Neighbouring runs are of
 * different parts, except for calls. */
struct eng_run {
    size_t end;
    enum eng_part part;
};
struct eng_parts {
    struct cn_buf text;
    struct eng_run *runs;
    size_t n_runs, cap;
};
void eng_parts_init(struct eng_parts *p);
void eng_parts_fini(struct eng_parts *p);
void eng_parts_reset(struct eng_parts *p); /* empty, memory kept */
int eng_parts_add(struct eng_parts *p, enum eng_part part, const char *s, size_t n);

enum eng_reply_kind {
    ENG_REPLY_PLAIN, /* nothing is marked but calls */
    ENG_REPLY_TAGS,
    ENG_REPLY_HARMONY,
};
/* How a model marks the parts, and the form in which it writes calls. Plain data without pointers
 * into itself, immutable; only kind is for others to read. */
enum { ENG_REPLY_MARKS = 24, ENG_REPLY_TOKENS = 24, ENG_REPLY_TEXT = 1024 };
struct eng_reply_mark {
    uint8_t role;                /* of enum eng_mark_role in reply/reply.h */
    bool token;                  /* at least one of its symbols is a token of the vocabulary */
    bool at_start;               /* as text it counts at the start of a message only */
    uint16_t text, n_text;       /* where its text is in `text`, */
    uint16_t symbols, n_symbols; /* and its symbols in `symbols` */
};
struct eng_reply_format {
    enum eng_reply_kind kind;
    const struct eng_form *form; /* a constant of reply/marks.c */
    const char *skip;            /* text after the opening mark that belongs to it; a constant */
    uint32_t roles;              /* which roles have marks, a bit each */
    uint32_t first[8];           /* bytes with which marks begin as text, a bit each */
    size_t n_marks, n_tokens, n_text, n_symbols;
    struct eng_reply_mark marks[ENG_REPLY_MARKS];
    struct {
        uint32_t id;
        uint16_t text, n_text;
    } tokens[ENG_REPLY_TOKENS]; /* the vocabulary's tokens that marks consist of */
    char text[ENG_REPLY_TEXT];
    uint16_t symbols[ENG_REPLY_TEXT]; /* a byte, or 256 + an index of tokens */
};
/* The format that the chat template's source and the vocabulary imply. A mark, or a part of it,
 * that is a control or user-defined token of the vocabulary counts only as that token; everything
 * else counts as text. v may be NULL: then all marks count as text. A template that says nothing of
 * calls gets the generic form (<tool_call> with JSON). */
struct eng_reply_format eng_reply_format(const struct eng_vocab *v, struct eng_str source);
/* The name of the form in which calls are written, such as "hermes"; a constant. */
const char *eng_reply_form(const struct eng_reply_format *f);
/* Whether the form is the template's own; otherwise it is the generic one. */
bool eng_reply_form_known(const struct eng_reply_format *f);
/* Whether the output needs an eng_reply to be taken apart; tools may be NULL. */
bool eng_reply_needed(const struct eng_reply_format *f, const struct eng_tools *tools);
/* Where in the reply generation starts: the prompt may already contain its beginning. */
enum eng_reply_start {
    ENG_REPLY_ANEW,    /* at its beginning */
    ENG_REPLY_OPENED,  /* directly after the mark that opens reasoning */
    ENG_REPLY_THOUGHT, /* inside the text of the reasoning */
    ENG_REPLY_CLOSED,  /* directly after the mark that closes reasoning */
    ENG_REPLY_ANSWER,  /* inside the answer */
    ENG_REPLY_CALL,    /* directly after the mark that begins a call or says who is addressed */
};
/* Found in the template's own text and, with `continued` (eng_template_continue), in the text of
 * the message that is continued. */
enum eng_reply_start eng_reply_where(const struct eng_reply_format *f, const struct eng_rendered *r,
                                     bool continued);

/* What became of the calls in a stream so far. */
enum eng_reply_calls {
    ENG_CALLS_NONE,
    ENG_CALLS_WHOLE, /* the arguments of each call are a whole JSON object */
    ENG_CALLS_CUT,   /* those of a call are not: the stream ended in it, or it was no JSON */
};

/* The state of one stream. Memory is bounded: at most ENG_REPLY_HELD bytes of text are held back
 * until it is known whether they are a call. */
enum { ENG_REPLY_HELD = 1 << 16, ENG_REPLY_LEX = 96, ENG_REPLY_SPACE = 64 };
struct eng_reader;
struct eng_reply {
    const struct eng_reply_format *format; /* borrowed */
    const struct eng_tools *tools;         /* borrowed; NULL: no calls */
    int state;
    enum eng_part part;       /* of the message (harmony) */
    bool lead, again, had[2]; /* reply/reply.c */
    bool anything;            /* harmony: all calls are given out */
    bool prompted;            /* the prompt has the mark of a call */
    bool begun, cut;          /* a call is out; the arguments of one are not whole */
    size_t skipped, n_lex, n_held;
    uint16_t lex[ENG_REPLY_LEX]; /* the beginning of a mark */
    char held[256];              /* white space, or a header */
    struct eng_reader *reader;   /* of calls; owned, made when one begins */
};
/* tools: what the request offers. Only calls of these functions are calls; everything else stays
 * the answer's text. NULL: no form of calls is looked for, except that harmony's calls are given
 * out whatever their names and arguments are. tools and f outlive the reply. Allocates nothing. */
void eng_reply_init(struct eng_reply *r, const struct eng_reply_format *f,
                    const struct eng_tools *tools, enum eng_reply_start start);
void eng_reply_fini(struct eng_reply *r);
/* Whether the token may be a mark, or a part of one, at this point of the stream. If so, pass it to
 * eng_reply_mark, after all text of the tokens before it, and do not pass its own text to
 * eng_reply_text. */
bool eng_reply_is_mark(const struct eng_reply *r, uint32_t id);
int eng_reply_mark(struct eng_reply *r, uint32_t id, struct eng_parts *out);
/* Takes the text of tokens, cut anywhere, and appends what can be decided now. */
int eng_reply_text(struct eng_reply *r, const char *s, size_t n, struct eng_parts *out);
/* Ends the stream: appends what was held back. cut: a limit ended it, not the model: the beginning
 * of a call whose name is not out is then dropped instead of being given out as content. */
int eng_reply_finish(struct eng_reply *r, bool cut, struct eng_parts *out);
/* Whether the stream is inside reasoning now. */
bool eng_reply_reasons(const struct eng_reply *r);
enum eng_reply_calls eng_reply_calls(const struct eng_reply *r);

/* The text of one member of a JSON object that comes in pieces, such as the arguments of a call
 * (reply/extract.c): what its string says, or of any other value the JSON as it is written. The
 * first member of that name counts. */
struct eng_unescape {
    uint8_t state, n;
    uint32_t cp, high;
};
struct eng_extract {
    const char *name;
    bool found; /* its value has begun */
    uint8_t state;
    bool in_value, escaped;
    size_t depth, n_key;
    struct eng_unescape unescape;
};
/* name: borrowed. */
void eng_extract_init(struct eng_extract *m, const char *name);
/* More of the object; the text that it brings is appended to out, whose errors these are. */
int eng_extract_push(struct eng_extract *m, const char *s, size_t n, struct cn_buf *out);

/* For whoever holds the answer to a form (reply/answer.c). */
/* Whether text that comes now belongs to the answer. */
bool eng_reply_answers(const struct eng_reply *r);
/* Whether the stream is in markup that comes before the answer, such as a header of harmony. */
bool eng_reply_heads(const struct eng_reply *r);
/* Sets the bits of the tokens that open reasoning in a mask of the vocabulary's size; with `close`
 * also of those that close it before there was any. */
void eng_reply_openings(const struct eng_reply_format *f, bool close, uint32_t *mask);
/* Appends the tokens that close reasoning, in the model's own way; none if it marks none. Errors:
 * those of eng_tokenize. */
int eng_reply_closing(const struct eng_reply_format *f, const struct eng_vocab *v,
                      struct eng_ids *ids);

/* ---- calls in a conversation's history (reply/history.c) ------------------------------------- */

enum eng_call_ids {
    ENG_IDS_ANY,  /* the template takes them as they are */
    ENG_IDS_NINE, /* nine letters and digits (Mistral) */
    ENG_IDS_KIMI, /* functions.NAME:N, N counted over the conversation */
};
/* What a template wants of the calls and results in the messages that it gets. Plain data. */
struct eng_history {
    enum eng_call_ids ids;
    bool by_order; /* it writes no ids: results belong to calls by their order */
};
/* Learns it by rendering a small conversation twice. CN_ENOMEM. */
int eng_history_learn(const struct eng_template *t, const struct eng_reply_format *f,
                      struct eng_history *out);
/* Changes the messages (an array of objects), after eng_template_fit: ids of calls, and those that
 * results name, are replaced by ids that the template accepts: different ones by different ones,
 * and Mistral's by ids that depend on the client's id alone. Consecutive results are put into the
 * order of their calls where the template needs that. Linear time. After CN_ENOMEM, the only error,
 * the messages are of no use. */
int eng_history_prepare(const struct eng_history *h, json_t *messages, struct cn_error *err);
/* The calls in the messages: where ids count the calls of a conversation, the next one's number. */
size_t eng_history_calls(const json_t *messages);

/* ---- sampling (asked.c) ---------------------------------------------------------------------- */

/* What a request asks for. It is plain data: the code that takes requests knows nothing of
 * devices. */

struct eng_sampling {         /* defaults in parentheses */
    float temperature;        /* 0..2 (1) */
    uint32_t top_k;           /* 0 = off (0) */
    float top_p;              /* (0,1] (1) */
    float min_p;              /* [0,1] (0) */
    float repetition_penalty; /* > 0 (1): prompt and output tokens */
    float presence_penalty;   /* -2..2 (0): output tokens */
    float frequency_penalty;  /* -2..2 (0): output tokens */
    uint64_t seed;
    const struct cn_bias *bias; /* borrowed: outlives the state and its clones */
    size_t n_bias;
    uint32_t min_tokens;      /* no end of generation before this many output tokens */
    const uint32_t *stop_ids; /* further ids that min_tokens forbids; borrowed: outlives the
                               * state */
    size_t n_stop_ids;
    bool ignore_eos;  /* end-of-generation tokens are never sampled */
    int32_t logprobs; /* -1 = none; else how many alternatives (0..20) */
};
void eng_sampling_defaults(struct eng_sampling *s);
/* Checks ranges (NaN included); CN_ERANGE names the field. */
int eng_sampling_check(const struct eng_sampling *s, const struct eng_vocab *v,
                       struct cn_error *err);

#endif
