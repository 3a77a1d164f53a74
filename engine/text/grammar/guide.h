/* guide: holds the answers of one request to a grammar, and bounds their reasoning.
 * Part of engine/text's public header, which includes it.
 *
 * Its functions mask, put and end have the signatures of a runtime's guide. For a choice they are
 * never called at the same time; different choices may be asked by different threads.
 *
 * The answer begins where its reasoning ends, as the reply format says; until then every token is
 * free. From there on only tokens of the grammar may come, after white space. Where the number of
 * tokens is known, what may come is narrowed near the end, so that the answer is complete in time.
 * With `free` every token may come until a mark that calls begin with has (eng_grammar_may_wait);
 * the answer is then calls up to its end. A grammar of the whole reply (calls.def) has what may
 * come instead itself.
 */
#ifndef ENGINE_TEXT_GRAMMAR_GUIDE_H
#define ENGINE_TEXT_GRAMMAR_GUIDE_H

#include "base/base.h"

struct eng_grammar;
struct eng_guide;
struct eng_reply_format;
struct eng_vocab;

struct eng_guide_in {
    struct eng_grammar *grammar; /* the guide holds it; NULL: only the reasoning is bounded */
    bool free; /* text may come before the calls that the grammar is of, or no call at all */
    const struct eng_vocab *vocab;        /* outlives the guide */
    const struct eng_reply_format *reply; /* outlives it; NULL: the answer begins at once */
    int start;           /* enum eng_reply_start: where in the reply generation starts */
    uint32_t n;          /* choices */
    uint64_t max_tokens; /* of a choice, reasoning included; UINT64_MAX: not known yet, or no bound
                          * (eng_guide_limit) */
    uint64_t max_reasoning; /* tokens; then it is closed as the model does; UINT64_MAX: no bound */
    /* Pays for the memory, before it is taken; NULL: nobody does. */
    struct cn_account *account;
    size_t max_bytes; /* of a choice; 0: 64 MiB */
    uint64_t max_ns;  /* CPU time of a mask, and of a token's put; 0: no bound */
};

/* Makes what all guides of a vocabulary share, once: about 0.6 us a token. eng_guide_new makes it
 * where this was not called. CN_ENOMEM. Any thread. */
int eng_guide_prepare(const struct eng_vocab *v);
/* What a guide of n choices takes of its account when it is made: with a grammar, room for each to
 * begin with, and a mask that its user may keep. */
uint64_t eng_guide_bytes(const struct eng_vocab *v, uint32_t n, bool grammar);
/* CN_ENOMEM, or what the account says. *out is returned owned. */
int eng_guide_new(const struct eng_guide_in *in, struct eng_guide **out);
void eng_guide_free(struct eng_guide *g); /* takes NULL */
/* Sets the bound on a choice's tokens, before the first mask and put. */
void eng_guide_limit(void *guide, uint64_t max_tokens);
/* A mask that is being made is given up soon; the guide is of no further use. Any thread. */
void eng_guide_stop(void *guide);
/* Which tokens may come after those put and then these drafts. ENG_SOME_IDS: those whose bits it
 * has set in the mask, which was all 0; if none is set, the guide failed, see eng_guide_error.
 * ENG_NO_TIME: finding out takes more than max_ns of CPU time, which is less than the guide's own
 * bound. It can be asked again; what is in the mask means nothing. Not where the guide has no bound
 * of its own: then it takes the time that it needs. */
enum { ENG_ALL_IDS, ENG_SOME_IDS, ENG_NO_TIME };
int eng_guide_mask(void *guide, uint32_t choice, const uint32_t *drafts, uint32_t n_drafts,
                   uint64_t max_ns, uint32_t *mask);
/* A token was emitted. Returns the number of tokens that must come next: *forced, borrowed until
 * the next call for this choice. */
uint32_t eng_guide_put(void *guide, uint32_t choice, uint32_t id, const uint32_t **forced);
/* The choice has ended: its memory goes, and mask and put are not called for it again. */
void eng_guide_end(void *guide, uint32_t choice);
/* Why a choice could not go on: CN_ELIMIT (memory, time), CN_ENOMEM or an account's code, with a
 * message; 0: it could. Once the request has ended. */
int eng_guide_error(const struct eng_guide *g, uint32_t choice, struct cn_error *err);
/* Whether the end of max_tokens had a say in it: reasoning was closed, or tokens that it could have
 * had were left out, so that the answer ends in time. Drafts have no part in it. Once the choice
 * has ended by itself: not while a mask may be made for it. */
bool eng_guide_hurried(const struct eng_guide *g, uint32_t choice);
/* Masks that were made, and taken from those kept for the grammar. Once the request has ended. */
struct eng_guide_stats { uint64_t made, found, forced, ns; };
struct eng_guide_stats eng_guide_stats(const struct eng_guide *g);

#endif
