/* A script: a file with the answers of a null model. Private to engine/. Settings, then sections:
 *
 *   marks: <think> </think> <tool_call> </tool_call>
 *   template: qwen3.jinja
 *   === answer turn=1 user=weather
 *   <think>...</think>Any text, up to the next line that begins with "=== ".
 *   === answer turn=2
 *   \=== begins a line of the answer with "=== ".
 *
 * docs/NULL.md (edit tools/gen_docs.py) has all settings, sections and conditions. */
#ifndef ENGINE_SCRIPT_H
#define ENGINE_SCRIPT_H

#include "engine/text/text.h"

enum {
    ENG_SCRIPT_MAX_BYTES = 1 << 20, /* of the script, and of its template's file */
    ENG_SCRIPT_MAX_ANSWERS = 1000,
    ENG_SCRIPT_MAX_TOKENS = 256, /* marks and control tokens */
    ENG_SCRIPT_TOKEN_BYTES = 128,
    ENG_SCRIPT_FIRST = 256,  /* id of the first control token; marks and answers' tokens follow */
    ENG_SCRIPT_SPELLED = 16, /* values of a row of kr_op_follow's x */
};

struct eng_script_answer {
    uint64_t turn, step; /* 0: any */
    struct eng_str user; /* n 0: any */
    struct eng_str text;
};

struct eng_script {
    struct cn_buf text, file; /* the script and its template's file; the rest points into them */
    struct eng_str *marks, *control;
    struct eng_str *ends;              /* prompt_ends: all of them are marks too */
    size_t n_marks, n_control, n_ends; /* each token once; `end` and `bos` are control tokens */
    struct eng_str end, bos, gap;      /* gap: `break`; bos and gap: n 0 if unset */
    struct eng_str template_path;      /* relative to the script's folder; n 0 if unset */
    struct eng_str source;             /* the template; p NULL: the built-in one */
    struct eng_script_answer *answers; /* at least one */
    size_t n_answers;
};

/* Takes over `text`, which is empty afterwards, also after an error. Opens no file: for a
 * template's file it sets the path only. Errors: CN_EFORMAT and CN_ELIMIT with the line in the
 * message, CN_ENOMEM. */
int eng_script_parse(struct cn_buf *text, struct eng_script *out, struct cn_error *err);
/* Reads and parses the script and its template's file. Errors: as eng_script_parse, and CN_EIO. No
 * message names a folder, because clients see some of the messages. */
int eng_script_read(const char *path, struct eng_script *out, struct cn_error *err);
void eng_script_fini(struct eng_script *s); /* a zeroed one is fine */

/* The token that begins answer i (from 1): "<|script:1|>" and so on; 0: the answer to conversations
 * that no answer fits. */
struct eng_script_mark { char text[32]; };
struct eng_script_mark eng_script_mark(size_t i);
/* Appends a chat template: the script's or the built-in one, and code around it that writes the
 * token of the fitting answer into the generation prompt. CN_ENOMEM. */
int eng_script_chat(const struct eng_script *s, struct cn_buf *out);

/* The tensors for kr_op_follow and kr_op_peak. */
struct eng_script_tables {
    float *texts, *tokens; /* [n][2], [n]: the answers, and the token of each place */
    float *rest;           /* [vocabulary] */
    float *spelled; /* [vocabulary][ENG_SCRIPT_SPELLED]: a row of kr_op_follow's x for each token */
    size_t n;       /* places */
};
/* v must begin with 256 bytes, s's control tokens, its marks, and eng_script_mark 0 to n_answers.
 * *out is owned by the caller, also after an error. CN_ENOMEM. */
int eng_script_tables(const struct eng_script *s, const struct eng_vocab *v,
                      struct eng_script_tables *out, struct cn_error *err);
void eng_script_tables_fini(struct eng_script_tables *t);

#endif
