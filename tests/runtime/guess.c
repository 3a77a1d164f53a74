#include "tests/runtime/guess.h"

#include "runtime/rt.h"

static const struct h_result *known;
static uint32_t n_known;

int __real_sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err);
int __wrap_sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err);

/* One in four is wrong, by the position alone; and their number changes. */
static uint32_t guess(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out)
{
    const struct rt_req *req = d->user;
    if (req->q.id >= n_known) return 0;
    const struct h_answer *a = &known[req->q.id].choices[d->choice];
    uint64_t at = d->n_ids - req->q.n_prompt;
    uint32_t n = 0;
    for (; n < most && n < 1 + d->n_ids * 7 % 11; n++) {
        uint64_t i = at + n;
        bool right = i < a->n_ids && (d->n_ids * 2654435761u >> 7) % 4 != n % 4;
        out[n] = right ? a->ids[i] : (uint32_t)(i % 7);
    }
    return n;
}

void guess_from(const struct h_result *results, uint32_t n)
{
    known = results;
    n_known = n;
}

int __wrap_sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err)
{
    struct sch_opts o = *opts;
    if (known && o.speculation.max_draft) o.speculation.propose = guess;
    return __real_sch_new(&o, out, err);
}
