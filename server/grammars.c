/* grammars: see grammars.h. */
#include "server/grammars.h"

#include <stdlib.h>

struct kept {
    struct kept *next; /* older */
    struct srv_grammar_key key;
    struct eng_grammar *grammar;
    struct cn_account *account; /* that paid */
};
/* Most requests find their grammar among the newest. */
struct srv_grammars {
    pthread_mutex_t lock;
    struct kept *newest;
    uint64_t bytes;
};

static void kept_free(struct kept *k)
{
    eng_grammar_unref(k->grammar);
    free(k);
}

/* With the lock. The caller frees it without. */
static struct kept *take_out(struct srv_grammars *g, struct kept **at)
{
    struct kept *k = *at;
    *at = k->next;
    g->bytes -= eng_grammar_cost(k->grammar);
    return k;
}

/* A cn_spare_fn: gives up the oldest unused one, of an account or of any that borrows. What is
 * unused stays so with the lock, since only srv_grammars_find makes another reference of it. The
 * budget's lock may be taken with this one, never this one with the budget's. */
static bool spare(void *arg, struct cn_account *account)
{
    struct srv_grammars *g = arg;
    struct kept **oldest = NULL, *k = NULL;
    pthread_mutex_lock(&g->lock);
    for (struct kept **at = &g->newest; *at; at = &(*at)->next) {
        if (account && (*at)->account != account) continue;
        if (eng_grammar_shared((*at)->grammar)) continue;
        if (account || cn_account_borrows((*at)->account)) oldest = at;
    }
    if (oldest) k = take_out(g, oldest);
    pthread_mutex_unlock(&g->lock);
    if (k) kept_free(k);
    return k != NULL;
}

int srv_grammars_new(struct cn_budget *budget, struct srv_grammars **out)
{
    struct srv_grammars *g = cn_calloc(1, sizeof *g);
    if (!g) return CN_ENOMEM;
    pthread_mutex_init(&g->lock, NULL);
    cn_budget_on_short(budget, spare, g);
    *out = g;
    return 0;
}

void srv_grammars_free(struct srv_grammars *g)
{
    if (!g) return;
    for (struct kept *k = g->newest, *next; k; k = next) {
        next = k->next;
        kept_free(k);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static bool is_key(const struct srv_grammar_key *a, const struct srv_grammar_key *b)
{
    return a->tenant == b->tenant && a->model == b->model &&
           !memcmp(a->digest, b->digest, sizeof a->digest);
}

struct eng_grammar *srv_grammars_find(struct srv_grammars *g, const struct srv_grammar_key *key)
{
    struct eng_grammar *found = NULL;
    pthread_mutex_lock(&g->lock);
    for (struct kept **at = &g->newest, *k; (k = *at) && !found; at = &k->next) {
        if (!is_key(&k->key, key)) continue;
        *at = k->next; /* it is the newest again */
        k->next = g->newest;
        g->newest = k;
        found = eng_grammar_ref(k->grammar);
        break;
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

/* A tenant's oldest one; NULL: it has none. With the lock. */
static struct kept **oldest_of(struct srv_grammars *g, uint64_t tenant, size_t *n)
{
    struct kept **oldest = NULL;
    *n = 0;
    for (struct kept **at = &g->newest; *at; at = &(*at)->next) {
        if ((*at)->key.tenant != tenant) continue;
        oldest = at;
        ++*n;
    }
    return oldest;
}

void srv_grammars_keep(struct srv_grammars *g, const struct srv_grammar_key *key,
                       struct eng_grammar *grammar, struct cn_account *account)
{
    struct kept *k = cn_calloc(1, sizeof *k), *old = NULL;
    size_t n;
    if (!k) return;
    *k = (struct kept){NULL, *key, eng_grammar_ref(grammar), account};
    pthread_mutex_lock(&g->lock);
    struct kept **oldest = oldest_of(g, key->tenant, &n);
    if (n >= SRV_GRAMMARS_MOST) old = take_out(g, oldest);
    k->next = g->newest;
    g->newest = k;
    g->bytes += eng_grammar_cost(grammar);
    pthread_mutex_unlock(&g->lock);
    if (old) kept_free(old);
}

uint64_t srv_grammars_bytes(struct srv_grammars *g)
{
    pthread_mutex_lock(&g->lock);
    uint64_t n = g->bytes;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void srv_grammars_drop(struct srv_grammars *g, uint64_t tenant)
{
    struct kept *k;
    do {
        size_t n;
        pthread_mutex_lock(&g->lock);
        struct kept **oldest = oldest_of(g, tenant, &n);
        k = oldest ? take_out(g, oldest) : NULL;
        pthread_mutex_unlock(&g->lock);
        if (k) kept_free(k);
    } while (k);
}
