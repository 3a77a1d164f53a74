/* Memory accounts: who may hold how much of a process budget. Any thread; one lock per budget,
 * taken for a few instructions. Invariant: the sum of what accounts hold beyond their reserves is
 * `lent`, not above the budget's other half but where it was divided anew; all of them together
 * never hold more than the budget. */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>

struct cn_account {
    struct cn_budget *budget;
    uint64_t reserve, held, most;
    bool borrows;
};

struct cn_budget {
    pthread_mutex_t lock;
    uint64_t bytes, lendable, lent, held;
    size_t n, n_borrowers, cap;
    struct cn_account **accounts; /* each stays where it is */
    cn_spare_fn *spare;           /* or NULL */
    void *spare_arg;
};

static uint64_t borrowed(const struct cn_account *a, uint64_t held)
{
    return held > a->reserve ? held - a->reserve : 0;
}

/* With the lock, or before others know of it. */
static void divide(struct cn_budget *b, const struct cn_share *shares, size_t n)
{
    double all = 0;

    b->n_borrowers = 0;
    b->lent = 0;
    for (size_t i = 0; i < n; i++) {
        all += shares[i].weight;
        b->n_borrowers += shares[i].borrows;
    }
    for (size_t i = 0; i < b->n; i++) {
        struct cn_account *a = b->accounts[i];
        struct cn_share share = i < n ? shares[i] : (struct cn_share){0, false};
        double part = all > 0 ? share.weight / all : 0;
        a->borrows = share.borrows;
        a->reserve = (uint64_t)((double)(b->bytes - b->lendable) * part);
        a->most = a->reserve;
        if (a->borrows) a->most += b->n_borrowers > 1 ? b->lendable / 2 : b->lendable;
        b->lent += borrowed(a, a->held);
    }
}

int cn_budget_grow(struct cn_budget *b, size_t n)
{
    if (n <= b->n) return 0;
    if (cn_grow(&b->accounts, &b->cap, n, sizeof *b->accounts)) return CN_ENOMEM;
    while (b->n < n) {
        struct cn_account *a = cn_calloc(1, sizeof *a);
        if (!a) return CN_ENOMEM;
        a->budget = b;
        b->accounts[b->n++] = a;
    }
    return 0;
}

void cn_budget_divide(struct cn_budget *b, const struct cn_share *shares, size_t n)
{
    cn_assert(n <= b->n);
    pthread_mutex_lock(&b->lock);
    divide(b, shares, n);
    pthread_mutex_unlock(&b->lock);
}

static void budget_free(struct cn_budget *b)
{
    for (size_t i = 0; i < b->n; i++)
        free(b->accounts[i]);
    free(b->accounts);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

int cn_budget_new(uint64_t bytes, const struct cn_share *shares, size_t n, struct cn_budget **out)
{
    struct cn_budget *b = cn_calloc(1, sizeof *b);

    if (!b) return CN_ENOMEM;
    if (pthread_mutex_init(&b->lock, NULL)) {
        free(b);
        return CN_ENOMEM;
    }
    b->bytes = bytes;
    b->lendable = bytes / 2;
    if (cn_budget_grow(b, n)) {
        budget_free(b);
        return CN_ENOMEM;
    }
    divide(b, shares, n);
    *out = b;
    return 0;
}

void cn_budget_free(struct cn_budget *b)
{
    if (!b) return;
    cn_assert(b->held == 0);
    budget_free(b);
}

struct cn_account *cn_budget_account(struct cn_budget *b, size_t i)
{
    cn_assert(i < b->n);
    return b->accounts[i];
}

uint64_t cn_budget_bytes(const struct cn_budget *b)
{
    return b->bytes;
}

uint64_t cn_account_most(const struct cn_account *a)
{
    return a->most;
}

uint64_t cn_budget_held(struct cn_budget *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->held;
    pthread_mutex_unlock(&b->lock);
    return n;
}

uint64_t cn_account_held(struct cn_account *a)
{
    pthread_mutex_lock(&a->budget->lock);
    uint64_t n = a->held;
    pthread_mutex_unlock(&a->budget->lock);
    return n;
}

bool cn_account_borrows(struct cn_account *a)
{
    pthread_mutex_lock(&a->budget->lock);
    bool does = borrowed(a, a->held) > 0;
    pthread_mutex_unlock(&a->budget->lock);
    return does;
}

void cn_budget_on_short(struct cn_budget *b, cn_spare_fn *spare, void *arg)
{
    b->spare = spare;
    b->spare_arg = arg;
}

/* With the lock. */
static int take(struct cn_account *a, uint64_t n)
{
    struct cn_budget *b = a->budget;

    if (n > a->most) return CN_ETOOLARGE;
    if (a->held > a->most || n > a->most - a->held) return CN_EHELD; /* it may have been more */
    uint64_t had = borrowed(a, a->held), has = borrowed(a, a->held + n);
    uint64_t left = b->lendable - CN_MIN(b->lent, b->lendable);
    if (has - had > left || n > b->bytes - b->held) return CN_EFULL;
    left -= has - had;
    if (has > had && b->n_borrowers > 1 && has > left) return CN_EFULL;
    a->held += n;
    b->held += n;
    b->lent += has - had;
    return 0;
}

int cn_account_take(struct cn_account *a, uint64_t n)
{
    if (!a || !n) return 0;
    struct cn_budget *b = a->budget;

    for (int asked = 0;; asked++) {
        pthread_mutex_lock(&b->lock);
        int rc = take(a, n);
        pthread_mutex_unlock(&b->lock);
        if ((rc != CN_EHELD && rc != CN_EFULL) || !b->spare || asked == CN_SPARES_MOST) return rc;
        if (!b->spare(b->spare_arg, rc == CN_EHELD ? a : NULL)) return rc;
    }
}

void cn_account_give(struct cn_account *a, uint64_t n)
{
    if (!a || !n) return;
    struct cn_budget *b = a->budget;

    pthread_mutex_lock(&b->lock);
    cn_assert(n <= a->held);
    b->lent -= borrowed(a, a->held) - borrowed(a, a->held - n);
    a->held -= n;
    b->held -= n;
    pthread_mutex_unlock(&b->lock);
}

int cn_hold_take(struct cn_hold *h, uint64_t n)
{
    int rc = cn_account_take(h->account, n);
    uint64_t own = h->bytes + (h->beside ? h->beside->cap : 0);

    if (!rc) h->bytes += n;
    if (rc && n > h->account->most - CN_MIN(own, h->account->most)) return CN_ETOOLARGE;
    return rc;
}

void cn_hold_give(struct cn_hold *h, uint64_t n)
{
    cn_assert(n <= h->bytes);
    h->bytes -= n;
    cn_account_give(h->account, n);
}

void cn_hold_drop(struct cn_hold *h)
{
    cn_hold_give(h, h->bytes);
}
