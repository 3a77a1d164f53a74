/* What the requests of one call have in common: stop strings with their matching tables, stop ids
 * and logit bias. Immutable and counted, so that a call of many prompts and choices holds them
 * once. Private to runtime/; others see rt_shared_new, _ref and _unref (runtime.h). */
#ifndef RUNTIME_SHARED_H
#define RUNTIME_SHARED_H

#include "runtime/runtime.h"
#include "runtime/stop.h"

#include <stdatomic.h>

struct rt_shared {
    atomic_uint refs;
    struct rt_stop_set stops;
    char *text; /* of the stop strings, one after the other */
    uint32_t *stop_ids;
    size_t n_stop_ids;
    struct cn_bias *bias;
    size_t n_bias;
};

/* Of a request: never NULL, also where it has none of its own. */
const struct rt_shared *rt_shared_of(const struct rt_request *q);

#endif
