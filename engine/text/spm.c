/* engine/text: SentencePiece BPE: the order in which pairs merge. The pair whose text is the token
 * of the highest score goes first; merge.c does the rest. Pure. */
#include "engine/text/vocab_impl.h"

#include <math.h>

/* Higher score, lower rank; equal scores, equal rank. Scores come from a file: what is not a number
 * goes last. ENG_NO_ID is never returned. */
uint32_t eng_spm_rank(float score)
{
    uint32_t u;
    if (isnan(score)) return ENG_NO_ID - 1;
    score += 0.0f; /* -0 is 0 */
    memcpy(&u, &score, sizeof u);
    return u >> 31 ? u : 0x7fffffffu - u;
}
