/* Messages of a conversation as JSON values (private to engine/text). */
#ifndef ENGINE_TEXT_CHAT_H
#define ENGINE_TEXT_CHAT_H

#include "engine/text/text.h"

/* Whether the message's role is this one. */
bool eng_message_is(const json_t *message, const char *role);
/* Whether it is the result of a call: of the role tool, or function as older clients call it. */
bool eng_message_is_result(const json_t *message);
/* Appends the message's content: a string, or the texts of parts with newlines between them; empty
 * texts are left out. */
void eng_message_text(const json_t *message, struct cn_buf *out);
/* The text becomes the message's content. CN_ENOMEM, also if the buffer has failed. */
int eng_message_set(json_t *message, const struct cn_buf *text);
/* A message, returned owned; NULL: out of memory, or the buffer has failed. */
json_t *eng_message_new(const char *role, const struct cn_buf *text);
/* Puts the message, which it takes, at index *n of the array and counts it. The array has room: all
 * uses replace messages that were read before. CN_ENOMEM for a NULL message. */
int eng_message_put(json_t *messages, size_t *n, json_t *message);
/* Cuts the array to n messages. */
void eng_messages_cut(json_t *messages, size_t n);
/* Appends the value as Python's json.dumps writes it with ensure_ascii off, as templates do. */
void eng_json_put(struct cn_buf *out, const json_t *v);

#endif
