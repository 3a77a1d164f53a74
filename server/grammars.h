/* Grammars that were compiled for requests, kept for the next request that asks for the same: by
 * tenant and model, the least recently used ones given up first. Any thread.
 *
 * A tenant's account pays for a grammar until the last reference is gone. At most
 * SRV_GRAMMARS_MOST are kept per tenant. Where memory is short, unused ones are given up: the
 * tenant's own if it holds too much, those of tenants that borrow if too much is lent. */
#ifndef SERVER_GRAMMARS_H
#define SERVER_GRAMMARS_H

#include "engine/text/text.h"

#define SRV_GRAMMARS_MOST 64 /* of a tenant */

struct srv_grammars;
/* What a grammar was compiled from. */
struct srv_grammar_key {
    uint64_t tenant; /* id */
    uint32_t model;  /* number */
    uint8_t digest[16];
};

/* budget: whose accounts pay (borrowed). */
int srv_grammars_new(struct cn_budget *budget, struct srv_grammars **out);
void srv_grammars_free(struct srv_grammars *g); /* takes NULL */
/* A reference for the caller; NULL: it is not kept. */
struct eng_grammar *srv_grammars_find(struct srv_grammars *g, const struct srv_grammar_key *key);
/* Keeps a grammar that the account has paid for, with a reference of its own; without memory for
 * that it does nothing. */
void srv_grammars_keep(struct srv_grammars *g, const struct srv_grammar_key *key,
                       struct eng_grammar *grammar, struct cn_account *account);
/* What the kept ones cost: a part of what the budget's accounts hold. */
uint64_t srv_grammars_bytes(struct srv_grammars *g);
/* Gives up all that a tenant has. */
void srv_grammars_drop(struct srv_grammars *g, uint64_t tenant);

#endif
