/* Messages of a conversation: an answer's, from the parts that come (message.c), its calls as a
 * person reads them (calls.c), and all of them in the form that a template takes. Main thread. */
#ifndef CLI_MESSAGE_H
#define CLI_MESSAGE_H

#include "cli/cli.h"

/* An answer's parts, added up. */
struct cli_message {
    struct cn_buf content, reasoning;
    json_t *calls;           /* as in the message; the last one's arguments are still missing */
    struct cn_buf arguments; /* of the last call */
};
/* CN_ENOMEM. cli_message_fini also takes what an init left that failed. */
int cli_message_init(struct cli_message *m);
void cli_message_fini(struct cli_message *m);
void cli_message_reset(struct cli_message *m);
/* Adds text of a part. CN_ENOMEM. */
int cli_message_take(struct cli_message *m, enum eng_part part, const char *s, size_t n);
/* The message as the chat endpoint writes it, returned owned; NULL when out of memory. Ids that the
 * form of calls lacks are numbers from first_id on, so that the output is always the same. */
json_t *cli_message_json(struct cli_message *m, size_t first_id);

/* Reads a file that holds a JSON value of this type, JSON_OBJECT or JSON_ARRAY, which is returned
 * owned. Numbers too large for an integer are read as reals. Errors name the file: CN_EIO, CN_EJSON
 * with line and column, CN_ENOMEM. */
int cli_read_json(const char *path, json_type type, json_t **out, struct cn_error *err);

/* Changes the messages, an array of objects, into what the template takes, as the chat endpoint
 * does. tools: what is offered, or NULL; way: how it reaches the model. CN_ENOMEM: the messages are
 * of no use then. */
int cli_messages_fit(const struct eng_template *t, const struct eng_history *history,
                     json_t *messages, const json_t *tools, enum rt_tools way,
                     struct cn_error *err);

/* Arguments of a call, JSON in pieces, on their way to be shown: without the white space between
 * tokens. For a person also as arguments are written, `city="Paris", days=3`. */
struct cli_arguments {
    bool person, string, escaped, key;
    unsigned depth;
    struct cn_buf name; /* the key that is being read */
};
void cli_arguments_begin(struct cli_arguments *a, bool person);
void cli_arguments_put(struct cli_arguments *a, const char *s, size_t n, struct cn_buf *out);
void cli_arguments_fini(struct cli_arguments *a);

/* The function that a call names. */
const char *cli_call_name(const json_t *call);
/* Whether the call's arguments are a whole JSON object. */
bool cli_call_is_whole(const json_t *call);
/* Appends the calls of a message, a line each: `name(arguments)` for a person, else
 * {"name": .., "arguments": {..}}. Arguments that are not a whole JSON object are a string there.
 */
void cli_put_calls(const json_t *message, bool person, struct cn_buf *out);

#endif
