/* Guesses at the next tokens, of which the test knows the truth: links with --wrap=sch_new. */
#ifndef TESTS_RUNTIME_GUESS_H
#define TESTS_RUNTIME_GUESS_H

#include "tests/runtime/harness.h"

/* From now on schedulers that speculate try what these results say comes next, with wrong tokens in
 * between; whose request is that of index rt_request.id. NULL: their own guesses. */
void guess_from(const struct h_result *results, uint32_t n);

#endif
