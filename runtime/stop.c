#include "runtime/stop.h"

#include <stdlib.h>
#include <string.h>

static int string_init(struct rt_stop_string *s, const char *text)
{
    s->text = text;
    s->len = strlen(text);
    s->fail = cn_calloc(s->len, sizeof *s->fail);
    if (!s->fail) return CN_ENOMEM;
    for (size_t i = 1, k = 0; i < s->len; i++) {
        while (k && text[i] != text[k])
            k = s->fail[k - 1];
        if (text[i] == text[k]) k++;
        s->fail[i] = (uint32_t)k;
    }
    return 0;
}

int rt_stop_set_init(struct rt_stop_set *s, const char *const *texts, size_t n)
{
    *s = (struct rt_stop_set){0};
    if (!n) return 0;
    s->v = cn_calloc(n, sizeof *s->v);
    if (!s->v) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!texts[i][0]) continue;
        if (string_init(&s->v[s->n], texts[i])) {
            rt_stop_set_fini(s);
            return CN_ENOMEM;
        }
        s->n++;
    }
    return 0;
}

void rt_stop_set_fini(struct rt_stop_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i].fail);
    free(s->v);
    *s = (struct rt_stop_set){0};
}

int rt_stop_match_init(struct rt_stop_match *m, const struct rt_stop_set *s)
{
    m->matched = cn_calloc(s->n, sizeof *m->matched);
    return m->matched ? 0 : CN_ENOMEM;
}

void rt_stop_match_fini(struct rt_stop_match *m)
{
    free(m->matched);
    m->matched = NULL;
}

void rt_stop_match_reset(struct rt_stop_match *m, const struct rt_stop_set *s)
{
    if (s->n) memset(m->matched, 0, s->n * sizeof *m->matched);
}

int rt_stop_feed(struct rt_stop_match *m, const struct rt_stop_set *s, const char *p, size_t n,
                 size_t *used)
{
    for (size_t i = 0; s->n && i < n; i++) {
        int found = -1;
        for (size_t j = 0; j < s->n; j++) {
            const struct rt_stop_string *t = &s->v[j];
            uint32_t k = m->matched[j];
            while (k && p[i] != t->text[k])
                k = t->fail[k - 1];
            if (p[i] == t->text[k]) k++;
            m->matched[j] = k;
            if (k < t->len) continue;
            if (found < 0 || t->len > s->v[found].len) found = (int)j;
            m->matched[j] = t->fail[k - 1]; /* keeps k < len for the bytes that follow */
        }
        if (found >= 0) {
            *used = i + 1;
            return found;
        }
    }
    *used = n;
    return -1;
}

size_t rt_stop_held(const struct rt_stop_match *m, const struct rt_stop_set *s)
{
    size_t held = 0;
    for (size_t j = 0; j < s->n; j++)
        held = CN_MAX(held, (size_t)m->matched[j]);
    return held;
}
