/* engine/text: WordPiece, as BERT's own tokenizer does it: the text is cleaned, lower-cased and
 * stripped of accents where the vocabulary says so, cut at white space, punctuation and CJK
 * characters; each word becomes the longest tokens that match from its start on, or the unknown
 * token as a whole. In the file a token that begins a word has U+2581 in front, others have
 * nothing. A word of more than 100 characters is unknown, so the time is linear in the text.
 * Pure. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>
#include <utf8proc.h>

#define MAX_WORD_CHARS 100
/* U+2581, and what a character can become: at most 4 bytes each after decomposition into marks,
 * which are dropped, and letters, of which there are at most 4. */
#define MAX_WORD_BYTES (3 + MAX_WORD_CHARS * 16)

struct word {
    const struct eng_vocab *v;
    struct eng_merge *merge;
    struct eng_ids *ids;
    size_t chars, n;
    bool too_long;
    char text[MAX_WORD_BYTES];
};

static bool is_cjk(int32_t c)
{
    static const int32_t ranges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                        {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF},
                                        {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < CN_ARRAY_LEN(ranges); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

static bool is_punctuation(int32_t c)
{
    if (c < 128)
        return c > 32 && c < 127 && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
               !(c >= 'a' && c <= 'z');
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static bool is_space(int32_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' ||
           utf8proc_category(c) == UTF8PROC_CATEGORY_ZS;
}

/* Control, format, private and unassigned characters are left out. */
static bool is_dropped(int32_t c)
{
    if (c == 0 || c == 0xFFFD) return true;
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CS ||
           k == UTF8PROC_CATEGORY_CO || k == UTF8PROC_CATEGORY_CN;
}

/* The longest token at `from` of the word; 0 bytes when there is none. */
static size_t longest(const struct word *w, size_t from, uint32_t *id)
{
    for (size_t n = CN_MIN(w->n - from, w->v->max_sym); n > 0; n--) {
        *id = eng_strmap_get(&w->v->by_sym, &w->v->syms, w->text + from, n);
        if (*id != ENG_NO_ID) return n;
    }
    return 0;
}

static int split_word(const struct word *w)
{
    size_t first = w->ids->n, n;
    bool known = !w->too_long;
    uint32_t id;
    int rc = 0;
    for (size_t at = 0; known && at < w->n && rc == 0; at += n) {
        n = longest(w, at, &id);
        known = n > 3 || (n > 0 && at > 0); /* the mark alone is no beginning of a word */
        if (known) rc = eng_ids_push(w->ids, id);
    }
    if (known || rc) return rc;
    w->ids->n = first;
    return w->v->unk >= 0 ? eng_ids_push(w->ids, (uint32_t)w->v->unk) : 0;
}

static int end_word(struct word *w)
{
    if (!w->chars) return 0;
    uint64_t key[2];
    size_t first = w->ids->n;
    bool hit;
    int rc = 0;
    struct eng_known *k =
        eng_known_get(w->merge, w->text + 3, w->n - 3, w->text + sizeof w->text, 0, key, &hit);
    if (hit) {
        rc = eng_known_push(k, w->ids);
    } else {
        rc = split_word(w);
        if (rc == 0) eng_known_put(w->merge, k, key, w->ids, first);
    }
    w->n = 3;
    w->chars = 0;
    w->too_long = false;
    return rc;
}

static void add_char(struct word *w, int32_t c)
{
    if (w->chars++ >= MAX_WORD_CHARS || w->n + 4 > sizeof w->text)
        w->too_long = true;
    else if (c < 128)
        w->text[w->n++] = (char)c;
    else
        w->n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)w->text + w->n);
}

/* A character that is no mark stays; lower-cased where the vocabulary is. */
static void add_folded(struct word *w, int32_t c)
{
    utf8proc_int32_t parts[16];
    int last = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char(c, parts, CN_ARRAY_LEN(parts), UTF8PROC_DECOMPOSE, &last);
    for (utf8proc_ssize_t i = 0; i < n && i < (utf8proc_ssize_t)CN_ARRAY_LEN(parts); i++)
        if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN)
            add_char(w, utf8proc_tolower(parts[i]));
}

static int one_char(struct word *w, int32_t c)
{
    bool alone = is_punctuation(c) || is_cjk(c);
    int rc = 0;
    if (is_space(c)) return end_word(w);
    if (is_dropped(c)) return 0;
    if (alone) rc = end_word(w);
    if (w->v->lowercase)
        add_folded(w, c);
    else
        add_char(w, c);
    return alone && rc == 0 ? end_word(w) : rc;
}

int eng_wordpiece(const struct eng_vocab *v, struct eng_merge *m, const char *text, size_t n,
                  struct eng_ids *ids)
{
    struct word w = {.v = v, .merge = m, .ids = ids, .n = 3};
    size_t next = ENG_TICK / 4;
    int rc = 0;
    memcpy(w.text, "\xE2\x96\x81", 3);
    for (size_t i = 0; i < n && rc == 0;) {
        utf8proc_int32_t c = (uint8_t)text[i];
        if (i >= next) {
            next = i + ENG_TICK / 4; /* decomposing takes its time */
            if ((rc = eng_tick(&m->tick, ENG_TICK))) return rc;
        }
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z')) {
            add_char(&w, v->lowercase && c >= 'A' && c <= 'Z' ? c + 32 : c);
            i++;
            continue;
        }
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text + i,
                                                (utf8proc_ssize_t)CN_MIN(n - i, (size_t)4), &c);
        if (len > 0) rc = one_char(&w, c); /* a byte that is no UTF-8 is left out, like U+FFFD */
        i += len > 0 ? (size_t)len : 1;
    }
    return rc ? rc : end_word(&w);
}
