/* Guesses at what comes next in a list of ids: what followed where it read the same before. */
#ifndef SCHEDULER_DRAFT_H
#define SCHEDULER_DRAFT_H

#include "base/base.h"

#define SCH_DRAFT_CLASSES 8
#define SCH_DRAFT_BURST   4096 /* ids taken up per update: a long prompt delays no other choice */
#define SCH_DRAFT_TABLES  27   /* as many as it takes from the least size to 2^32 ids */

struct sch_draft_table {
    uint32_t *slot; /* by hash of an n-gram: the position behind its last occurrence */
    uint32_t bits;  /* of the slots for each length of n-grams */
};

struct sch_draft {
    struct sch_draft_table table[SCH_DRAFT_TABLES]; /* the last of n_tables takes new entries */
    uint32_t n_tables;
    uint64_t room; /* ids that they are for, together */
    uint64_t n;    /* ids that it has seen */
    uint64_t at;   /* ids[at] is expected next; 0 = nothing is */
    uint32_t len;  /* so many ids before `at` are the last ones, bounded */
    float tried[SCH_DRAFT_CLASSES], right[SCH_DRAFT_CLASSES]; /* by len; older ones count less */
};

struct sch_draft *sch_draft_new(void); /* NULL when out of memory */
void sch_draft_free(struct sch_draft *d);
/* Takes up what was added to the ids, at most SCH_DRAFT_BURST of them: it has caught up when d->n
 * is n. From `own` on they are output: how often what was expected came true is counted there.
 * CN_ENOMEM: nothing was taken up. No id costs more than another: what was taken up once is not
 * touched again. */
int sch_draft_update(struct sch_draft *d, const uint32_t *ids, uint64_t n, uint64_t own);
/* The `most` ids that are expected next; 0 when nothing is. */
uint32_t sch_draft_read(const struct sch_draft *d, const uint32_t *ids, uint32_t most,
                        uint32_t *out);
/* How likely guess number i (from 0) is right if those before it are. */
double sch_draft_chance(const struct sch_draft *d, uint32_t i);

#endif
