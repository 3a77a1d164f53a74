/* grammars: see grammars.h. */
#include "server/grammars.h"

#include <stdlib.h>

struct kept {
    struct kept *next; /* older */
    struct srv_grammar_key key;
    struct eng_grammar *grammar;
    struct cn_account *account;
    uint64_t bytes;
};
/* Most requests find their grammar among the newest. */
struct srv_grammars {
    pthread_mutex_t lock;
    struct kept *newest;
};

int srv_grammars_new(struct srv_grammars **out)
{
    struct srv_grammars *g = cn_calloc(1, sizeof *g);
    if (!g) return CN_ENOMEM;
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return 0;
}

static void kept_free(struct kept *k)
{
    eng_grammar_unref(k->grammar);
    cn_account_give(k->account, k->bytes);
    free(k);
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

/* Takes out a tenant's oldest one; NULL: it has none. With the lock. */
static struct kept *take_oldest(struct srv_grammars *g, uint64_t tenant)
{
    struct kept **oldest = NULL, *k;
    for (struct kept **at = &g->newest; *at; at = &(*at)->next)
        if ((*at)->key.tenant == tenant) oldest = at;
    if (!oldest) return NULL;
    k = *oldest;
    *oldest = k->next;
    return k;
}

static size_t count(const struct srv_grammars *g, uint64_t tenant)
{
    size_t n = 0;
    for (const struct kept *k = g->newest; k; k = k->next)
        n += k->key.tenant == tenant;
    return n;
}

void srv_grammars_keep(struct srv_grammars *g, const struct srv_grammar_key *key,
                       struct eng_grammar *grammar, struct cn_account *account, uint64_t bytes)
{
    struct kept *k = cn_calloc(1, sizeof *k), *old = NULL;
    if (!k) {
        cn_account_give(account, bytes);
        return;
    }
    *k = (struct kept){NULL, *key, eng_grammar_ref(grammar), account, bytes};
    pthread_mutex_lock(&g->lock);
    if (count(g, key->tenant) >= SRV_GRAMMARS_MOST) old = take_oldest(g, key->tenant);
    k->next = g->newest;
    g->newest = k;
    pthread_mutex_unlock(&g->lock);
    if (old) kept_free(old);
}

bool srv_grammars_shrink(struct srv_grammars *g, uint64_t tenant)
{
    pthread_mutex_lock(&g->lock);
    struct kept *k = take_oldest(g, tenant);
    pthread_mutex_unlock(&g->lock);
    if (k) kept_free(k);
    return k != NULL;
}

void srv_grammars_drop(struct srv_grammars *g, uint64_t tenant)
{
    while (srv_grammars_shrink(g, tenant))
        continue;
}
