/* Grammars that were compiled for requests, kept for the next request that asks for the same: by
 * tenant and model, the oldest ones given up first. Any thread.
 *
 * A kept grammar is paid for by its tenant's account. No tenant has more than SRV_GRAMMARS_MOST of
 * them, and whoever needs the memory can have it: srv_grammars_shrink. */
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

int srv_grammars_new(struct srv_grammars **out);
void srv_grammars_free(struct srv_grammars *g); /* takes NULL */
/* Held for the caller; NULL: it is not kept. */
struct eng_grammar *srv_grammars_find(struct srv_grammars *g, const struct srv_grammar_key *key);
/* Keeps a grammar (and holds it), whose `bytes` were taken from the account: they are given back
 * when it is given up. If it is not kept, for want of memory, they are given back at once. */
void srv_grammars_keep(struct srv_grammars *g, const struct srv_grammar_key *key,
                       struct eng_grammar *grammar, struct cn_account *account, uint64_t bytes);
/* Gives up a tenant's oldest grammar; false: it has none. */
bool srv_grammars_shrink(struct srv_grammars *g, uint64_t tenant);
/* Gives up all that a tenant has. */
void srv_grammars_drop(struct srv_grammars *g, uint64_t tenant);

#endif
