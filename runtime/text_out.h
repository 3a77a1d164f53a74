/* From token ids to text that is final: detokenising, parts, stop strings, what must be held back.
 * Private to runtime/. */
#ifndef RUNTIME_TEXT_OUT_H
#define RUNTIME_TEXT_OUT_H

#include "engine/text/text.h"
#include "runtime/stop.h"

struct rt_text_out {
    struct eng_detok detok;
    const struct rt_stop_set *stops; /* borrowed */
    struct rt_stop_match match;
    struct cn_buf held; /* may still become part of a stop string */
    bool include_stop;
    bool parted; /* reply is used: output has parts, and stop strings count in
                  * the answer alone */
    struct eng_reply reply;
    struct cn_buf piece;    /* scratch: the text of a token, */
    struct eng_parts parts; /* and its parts before stop strings are looked for */
    uint64_t n_reasoning;   /* tokens that were reasoning */
};

/* detok is copied. reply: NULL, or how to take the output apart, the tools that it may call, and
 * where in it the output begins. */
int rt_text_out_init(struct rt_text_out *t, const struct eng_detok *detok,
                     const struct rt_stop_set *stops, bool include_stop,
                     const struct eng_reply_format *reply, const struct eng_tools *tools,
                     enum eng_reply_start start);
void rt_text_out_fini(struct rt_text_out *t);
/* One more token: appends the text that is final now (without runs where there are no parts: then
 * all is the answer). match false: its text can begin no stop string (min_tokens). *stop = index of
 * the stop string that is complete, or -1; after a match nothing more may be pushed. */
int rt_text_out_push(struct rt_text_out *t, uint32_t id, bool match, struct eng_parts *out,
                     int *stop);
/* Ends the text without a stop string: appends what was held back. cut: a limit ended it, so the
 * first bytes of an incomplete character are dropped. */
int rt_text_out_finish(struct rt_text_out *t, bool cut, struct eng_parts *out);

#endif
