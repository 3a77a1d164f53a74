/* What was probably meant by a name that is unknown: of models, commands and options. Any thread;
 * keeps nothing. */
#include "cli/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_NAMES = 4, LONGEST = 129 };

/* Letters and digits in lower case: only these are compared. Returns their number. */
static size_t bare(const char *s, char out[LONGEST])
{
    size_t n = 0;
    for (; *s && n + 1 < LONGEST; s++)
        if (isalnum((unsigned char)*s)) out[n++] = (char)tolower((unsigned char)*s);
    out[n] = '\0';
    return n;
}

/* Edits from one to the other; two neighbours that changed places are one edit. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *row = rows[2];

    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = CN_MIN(CN_MIN(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = CN_MIN(row[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[m];
}

/* Whether the letters of a stand in b, in their order. */
static bool within(const char *a, const char *b)
{
    for (; *b; b++)
        if (*a == *b) a++;
    return !*a;
}

/* How far a model's name is from the word; a part of it is as good as the name. */
static size_t model_distance(const char *word, const char *name)
{
    char a[LONGEST], b[LONGEST];
    size_t n = bare(word, a), m = bare(name, b);
    bool in = (n >= 3 && strstr(b, a)) || (m >= 3 && strstr(a, b));

    return in ? 0 : n >= 4 && within(a, b) ? 1 : CN_MAX(distance(a, n, b, m), (size_t)1);
}

/* Whether one of the first i names is the same. */
static bool repeated(const char *const *names, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!strcmp(names[k], names[i])) return true;
    return false;
}

static void put_nearest(const char *word, const char *const *names, size_t n, struct cn_buf *out)
{
    char letters[LONGEST];
    size_t len = bare(word, letters), shown = 0;

    for (size_t far = 0; len && far <= CN_MAX(len / 3, (size_t)1) && shown < SHOWN_NAMES; far++)
        for (size_t i = 0; i < n && shown < SHOWN_NAMES; i++)
            if (model_distance(word, names[i]) == far && !repeated(names, i))
                cn_buf_printf(out, shown++ ? ", %s" : "%s", names[i]);
}

void cli_suggest(const struct cfg *cfg, const char *word, bool catalog, struct cn_buf *out)
{
    size_t n_catalog, n_here = 0, n = 0, n_listed = cfg ? cfg->n_models : 0;
    const struct cfg_model *m = cfg_catalog(&n_catalog);
    char **here = cli_installed(&n_here);
    const char **names = cn_calloc(n_listed + n_here + n_catalog + 1, sizeof *names);

    for (size_t i = 0; names && i < n_listed; i++)
        names[n++] = cfg->models[i].name;
    for (size_t i = 0; names && i < n_here; i++)
        names[n++] = here[i];
    for (size_t i = 0; names && catalog && i < n_catalog; i++)
        names[n++] = m[i].name;
    if (names) put_nearest(word, names, n, out);
    free(names);
    cli_free_names(here, n_here);
}

const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    char a[LONGEST], b[LONGEST];
    size_t len = bare(word, a), best = len > 3 ? 2 : len > 1 ? 1 : 0;
    const char *found = NULL;

    for (size_t i = 0; best && i < n; i++) {
        size_t m = bare(names[i], b), d = distance(a, len, b, m);
        if (len >= 3 && !strncmp(a, b, len)) d = 0; /* the beginning of it */
        if (d > best || (found && d == best)) continue;
        best = d;
        found = names[i];
        if (!d) break;
    }
    return found;
}
