/* Stop strings, matched byte by byte as text arrives. Private to runtime/.
 *
 * Each string keeps the length of its longest prefix that ends the text so far (Knuth, Morris and
 * Pratt), so a byte costs O(1) amortised per string, and the text that could still turn out to
 * begin a stop string is exactly the longest of these prefixes. */
#ifndef RUNTIME_STOP_H
#define RUNTIME_STOP_H

#include "base/base.h"

struct rt_stop_string {
    const char *text; /* borrowed */
    size_t len;
    uint32_t *fail; /* [len]: length of the longest border of text[0..i] */
};
struct rt_stop_set { /* shared by the choices of all requests of a call */
    struct rt_stop_string *v;
    size_t n;
};
struct rt_stop_match { /* state of one choice */
    uint32_t *matched; /* [n] */
};

/* Borrows the strings. Empty ones are ignored. */
int rt_stop_set_init(struct rt_stop_set *s, const char *const *texts, size_t n);
void rt_stop_set_fini(struct rt_stop_set *s);
int rt_stop_match_init(struct rt_stop_match *m, const struct rt_stop_set *s);
void rt_stop_match_fini(struct rt_stop_match *m);
void rt_stop_match_reset(struct rt_stop_match *m, const struct rt_stop_set *s); /* no text so far */
/* Feeds bytes until a stop string is complete. Returns its index, with *used the bytes consumed
 * (the string's last byte included), or -1 with *used = n. Of strings that end at the same byte the
 * longest wins. */
int rt_stop_feed(struct rt_stop_match *m, const struct rt_stop_set *s, const char *p, size_t n,
                 size_t *used);
/* How many of the last bytes fed could begin a stop string. */
size_t rt_stop_held(const struct rt_stop_match *m, const struct rt_stop_set *s);

#endif
