/* A vocabulary of single bytes and a template: what a worker needs, without a model. */
#ifndef TESTS_SERVER_SMALL_ENV_H
#define TESTS_SERVER_SMALL_ENV_H

#include "server/call.h"

const struct srv_text_env *small_env(void);
/* The same of a model with vectors of 8 values. */
const struct srv_text_env *small_embed_env(void);
/* The same, with tools described in the system message. */
const struct srv_text_env *small_fallback_env(void);

#endif
