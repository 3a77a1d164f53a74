/* ranges: sets of code points. See ranges.h. */
#include "engine/text/grammar/ranges.h"

#include <stdlib.h>
#include <utf8proc.h>

void eng_ranges_fini(struct eng_ranges *r)
{
    free(r->v);
    *r = (struct eng_ranges){0};
}

int eng_ranges_add(struct eng_ranges *r, uint32_t from, uint32_t to)
{
    if (r->n && r->v[r->n - 1].to + 1 == from) { /* most lists ascend */
        r->v[r->n - 1].to = to;
        return 0;
    }
    if (cn_grow(&r->v, &r->cap, r->n + 1, sizeof *r->v)) return CN_ENOMEM;
    r->v[r->n++] = (struct eng_cp_range){from, to};
    return 0;
}

int eng_ranges_add_all(struct eng_ranges *r, const struct eng_cp_range *v, size_t n)
{
    if (cn_grow(&r->v, &r->cap, r->n + n, sizeof *r->v)) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++)
        r->v[r->n++] = v[i];
    return 0;
}

static int by_from(const void *a, const void *b)
{
    const struct eng_cp_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

void eng_ranges_tidy(struct eng_ranges *r)
{
    size_t kept = 0, i = 1;
    while (i < r->n && r->v[i].from > r->v[i - 1].to + 1)
        i++;
    if (i >= r->n) return; /* most are tidy */
    qsort(r->v, r->n, sizeof *r->v, by_from);
    for (i = 0; i < r->n; i++) {
        struct eng_cp_range *last = kept ? &r->v[kept - 1] : NULL;
        if (last && r->v[i].from <= last->to + 1)
            last->to = CN_MAX(last->to, r->v[i].to);
        else
            r->v[kept++] = r->v[i];
    }
    r->n = kept;
}

int eng_ranges_invert(struct eng_ranges *r)
{
    uint32_t next = 0;
    size_t n = r->n, kept = 0;
    if (cn_grow(&r->v, &r->cap, n + 1, sizeof *r->v)) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct eng_cp_range was = r->v[i];
        if (was.from > next) r->v[kept++] = (struct eng_cp_range){next, was.from - 1};
        next = was.to + 1;
    }
    if (next <= ENG_CP_MOST) r->v[kept++] = (struct eng_cp_range){next, ENG_CP_MOST};
    r->n = kept;
    return 0;
}

int eng_ranges_common(struct eng_ranges *out, const struct eng_cp_range *a, size_t n_a,
                      const struct eng_cp_range *b, size_t n_b)
{
    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        uint32_t from = CN_MAX(a[i].from, b[k].from), to = CN_MIN(a[i].to, b[k].to);
        if (from <= to && eng_ranges_add(out, from, to)) return CN_ENOMEM;
        if (a[i].to < b[k].to)
            i++;
        else
            k++;
    }
    return 0;
}

bool eng_ranges_has(const struct eng_cp_range *v, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (v[mid].to < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && v[lo].from <= cp;
}

/* ---- case ------------------------------------------------------------------------------------ */

/* utf8proc folds fully: where that gives several characters, the simple folding is the lower case,
 * except for U+0130, which has none. */
static uint32_t simple_fold(uint32_t cp)
{
    utf8proc_int32_t out[8];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, CN_ARRAY_LEN(out),
                                                 UTF8PROC_CASEFOLD, &last);
    if (n == 1) return (uint32_t)out[0];
    return cp == 0x130 ? cp : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

static int by_fold(const void *a, const void *b)
{
    const struct eng_fold_pair *x = a, *y = b;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return x->cp < y->cp ? -1 : x->cp > y->cp;
}

static int add_pair(struct eng_fold *f, uint32_t to, uint32_t cp)
{
    if (cn_grow(&f->pairs, &f->cap, f->n + 1, sizeof *f->pairs)) return CN_ENOMEM;
    f->pairs[f->n++] = (struct eng_fold_pair){to, cp};
    return 0;
}

int eng_fold_init(struct eng_fold *f)
{
    *f = (struct eng_fold){0};
    for (uint32_t cp = 0; cp < 0x20000; cp++) { /* no letter beyond has case */
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
        if (p->casefold_seqindex == UINT16_MAX) continue;
        uint32_t to = simple_fold(cp);
        if (to == cp) continue;
        if (add_pair(f, to, cp) || add_pair(f, to, to)) {
            eng_fold_fini(f);
            return CN_ENOMEM;
        }
    }
    qsort(f->pairs, f->n, sizeof *f->pairs, by_fold);
    return 0;
}

void eng_fold_fini(struct eng_fold *f)
{
    free(f->pairs);
    *f = (struct eng_fold){0};
}

int eng_fold_close(const struct eng_fold *f, struct eng_ranges *r)
{
    size_t n = r->n;
    for (size_t from = 0, to; from < f->n; from = to) {
        bool any = false;
        for (to = from; to < f->n && f->pairs[to].to == f->pairs[from].to; to++)
            any |= eng_ranges_has(r->v, n, f->pairs[to].cp);
        for (size_t i = from; any && i < to; i++) {
            uint32_t cp = f->pairs[i].cp;
            /* no shortcut of eng_ranges_add: the first n stay as they are */
            if (eng_ranges_add_all(r, &(struct eng_cp_range){cp, cp}, 1)) return CN_ENOMEM;
        }
    }
    eng_ranges_tidy(r);
    return 0;
}
