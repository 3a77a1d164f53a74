/* Tools of type custom, whose input is a text: the model is shown a function with one parameter,
 * `input`, and the client gets what the model gives for it. Worker threads, save where said. */
#ifndef SERVER_CUSTOM_H
#define SERVER_CUSTOM_H

#include "server/json.h"

struct srv_call;

#define SRV_CUSTOM_INPUT "input" /* the parameter */

/* tools[i], of type custom and with a name, becomes a function; c->customs gets its name. Sets
 * c->err: a format that is not understood, or that inputs cannot be held to. */
int srv_custom_offer(struct srv_call *c, size_t i, json_t *tool);
/* Whether the name is one of c->customs. Any thread. */
bool srv_custom_is(const struct cn_buf *customs, const char *name, size_t n);
/* Whether an offered tool is a custom one; and whether its input has to match an expression. */
bool srv_custom_tool(const struct srv_call *c, const json_t *tool);
bool srv_custom_held(const struct srv_call *c, const json_t *tool);
/* A call of the conversation, if it is one of a custom tool, becomes one of a function. CN_ETYPE:
 * it has no name or no input; CN_ENOMEM, or what the room's hold says. */
int srv_custom_call(json_t *call, struct srv_json_room *room);

#endif
