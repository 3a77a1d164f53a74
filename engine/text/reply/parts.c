/* Parts: runs of text that a reply was taken apart into. */
#include "engine/text/text.h"

#include <stdlib.h>

void eng_parts_init(struct eng_parts *p)
{
    *p = (struct eng_parts){0};
    cn_buf_init(&p->text, 0);
}

void eng_parts_fini(struct eng_parts *p)
{
    cn_buf_fini(&p->text);
    free(p->runs);
}

void eng_parts_reset(struct eng_parts *p)
{
    cn_buf_reset(&p->text);
    p->n_runs = 0;
}

int eng_parts_add(struct eng_parts *p, enum eng_part part, const char *s, size_t n)
{
    if (!n && part != ENG_PART_CALL) return 0;
    int rc = cn_buf_append(&p->text, s, n);
    if (rc) return rc;
    if (p->n_runs && p->runs[p->n_runs - 1].part == part && part != ENG_PART_CALL) {
        p->runs[p->n_runs - 1].end = p->text.len;
        return 0;
    }
    if (cn_grow(&p->runs, &p->cap, p->n_runs + 1, sizeof *p->runs)) return CN_ENOMEM;
    p->runs[p->n_runs++] = (struct eng_run){p->text.len, part};
    return 0;
}
