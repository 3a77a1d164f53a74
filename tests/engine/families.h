/* What the golden tests learn of each family, for docs/FAMILIES.md: rows of a table, written when
 * CONIFER_FAMILIES names a file (tools/gen_families.sh). */
#ifndef TESTS_ENGINE_FAMILIES_H
#define TESTS_ENGINE_FAMILIES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "golden.h"

/* A model on one ISA: no op but those of the ISA's tables is run, its worst error, and how long a
 * prompt takes. The row is written with the last ISA of the machine. */
void families_note(struct golden *g, const char *name, enum kr_isa isa, double worst,
                   const uint32_t *prompt, size_t n);
/* Ends a model's row. */
void families_end(const char *name);

#endif
