/* forced: the bytes for which a grammar leaves one way. See match.h. */
#include "engine/text/grammar/match.h"

#include <stdlib.h>

/* Adds the bytes that may follow a place to those that are known; false: there are two or more. */
static bool add_bytes(struct eng_match *m, struct eng_place p, int *byte)
{
    struct eng_place after;
    for (bool again = true; again && !m->code; p = after) {
        for (int b = 0; b < 256 && !m->code; b++) {
            if (b == *byte || eng_lexer_next(m, p.lexer, (uint8_t)b) == ENG_LEXER_DEAD) continue;
            if (*byte >= 0) return false;
            *byte = b;
        }
        again = p.lexer != m->parsers[p.parser].lexer && m->lexers[p.lexer].ends &&
                eng_match_goto(m, &p, &after);
    }
    return true;
}

size_t eng_match_forced(struct eng_match *m, const struct eng_places *at, char *out, size_t most)
{
    struct eng_places now[2] = {{0}, {0}};
    const struct eng_places *from = at;
    size_t n = 0;
    while (n < most && !m->code && !eng_match_accepts(m, from)) {
        int byte = -1;
        bool one = true;
        for (size_t i = 0; i < from->n && one; i++)
            one = add_bytes(m, from->v[i], &byte);
        if (!one || byte < 0) break;
        if (!eng_match_step(m, from, (uint8_t)byte, &now[n & 1])) break;
        from = &now[n & 1];
        out[n++] = (char)byte;
    }
    free(now[0].v);
    free(now[1].v);
    return m->code ? 0 : n;
}
