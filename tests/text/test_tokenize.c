/* Tokenising beyond the oracle's cases: golden ids, spans, BOS and EOS, limits, and merging against
 * a literal implementation of "merge the lowest pair until none is left". */
#include "engine/text/vocab_impl.h"
#include "tests/text/small_vocab.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

static uint64_t rng = 0x9e3779b97f4a7c15u;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* Ids as "1 2 3" in a static buffer. */
static const char *ids_of(const struct eng_vocab *v, const char *text, size_t n,
                          const struct eng_span *spans, size_t n_spans, unsigned flags)
{
    static char out[8192];
    struct eng_ids ids = {0};
    struct cn_error err = {0};
    size_t used = 0;
    out[0] = '\0';
    assert_int_equal(eng_tokenize(v, text, n, spans, n_spans, flags, &ids, &err), 0);
    for (size_t i = 0; i < ids.n; i++)
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%u", i ? " " : "", ids.v[i]);
    eng_ids_fini(&ids);
    return out;
}

static const char *plain(const struct eng_vocab *v, const char *text, unsigned flags)
{
    return ids_of(v, text, strlen(text), NULL, 0, flags);
}

/* ---- goldens --------------------------------------------------------------------------------- */

/* clang-format off */
static const char *const sentences[] = {
    "Hello, world!", " Hello world", "3333333",
    "Hello, y'all! How are you \U0001f601 ?\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e",
    "\t\n"};

static const struct golden { const char *name, *ids[5]; } goldens[] = {
    {"llama-bpe", {"9906 11 1917 0", "22691 1917", "8765 8765 18",
     "9906 11 379 65948 0 2650 527 499 27623 223 949 37046 101067 19000 23182 102301 9263 18136 16 "
     "36827 21909", "1602"}},
    {"qwen35", {"9707 11 1879 0", "21927 1879", "18 18 18 18 18 18 18",
     "9707 11 379 64848 0 2585 525 498 26525 223 937 104100 18493 22377 99257 16 18 16 19 16 20 16 "
     "35727 21216", "1572"}},
    {"gpt-2", {"15496 11 995 0", "18435 995", "24840 20370",
     "15496 11 331 6 439 0 1374 389 345 30325 223 5633 22755 239 46349 111 28839 101 18040 32432 98 "
     "43291 1485 1415 24309 25465 171 121 252", "197 198"}},
    {"deepseek-llm", {"17464 11 1843 0", "37727 1843", "18 18 18 18 18 18 18",
     "17464 11 320 6 436 0 1724 418 340 33701 210 3025 19017 612 9407 2681 16 18 16 19 16 20 16 "
     "1398 68940 239", "184 185"}},
    {"falcon", {"9856 23 1079 12", "23090 1079", "22287 22287 30", NULL, "19125"}},
    {"llama-spm", {"15043 29892 3186 29991", "29871 15043 3186",
     "29871 29941 29941 29941 29941 29941 29941 29941",
     "15043 29892 343 29915 497 29991 1128 526 366 29871 243 162 155 132 1577 30672 31522 30505 "
     "11548 31041 30732 29896 29941 29896 29946 29896 29945 29896 30408 30739", "29871 12 13"}},
};
/* clang-format on */

static void test_goldens(void **state)
{
    for (size_t g = 0; g < CN_ARRAY_LEN(goldens); g++) {
        struct eng_vocab *v = vocab_open(goldens[g].name);
        if (!v) skip();
        for (size_t i = 0; i < 5; i++) {
            if (goldens[g].ids[i])
                assert_string_equal(plain(v, sentences[i], 0), goldens[g].ids[i]);
        }
        eng_vocab_free(v);
    }
}

/* ---- special tokens, spans, BOS -------------------------------------------------------------- */

static void test_specials(void **state)
{
    struct eng_vocab *v = vocab_open("llama-bpe");
    if (!v) skip();
    const unsigned both = ENG_TOKENIZE_SPECIAL | ENG_TOKENIZE_PARSE;
    assert_true(eng_vocab_adds_bos(v));
    assert_int_equal(eng_vocab_bos(v), 128000);
    assert_string_equal(plain(v, "", ENG_TOKENIZE_SPECIAL), "128000");
    assert_string_equal(plain(v, "", 0), "");
    assert_string_equal(plain(v, "Hello", both), "128000 9906");
    assert_string_equal(plain(v, "<|begin_of_text|>Hello", both), "128000 9906");
    assert_string_equal(plain(v, "<|begin_of_text|>Hello", ENG_TOKENIZE_PARSE), "128000 9906");
    assert_string_equal(plain(v, "Hello<|eot_id|>", both), "128000 9906 128009");
    /* not parsed: never a control id */
    struct eng_ids ids = {0};
    assert_int_equal(eng_tokenize(v, "<|eot_id|>", 10, NULL, 0, 0, &ids, NULL), 0);
    assert_true(ids.n > 1);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(eng_vocab_is_control(v, ids.v[i]));
    eng_ids_fini(&ids);
    /* the end-of-generation set */
    assert_true(eng_vocab_is_eog(v, 128001));
    assert_true(eng_vocab_is_eog(v, 128009));
    assert_false(eng_vocab_is_eog(v, 128006));
    assert_true(eng_vocab_is_control(v, 128006));
    assert_false(eng_vocab_is_eog(v, 9906));
    assert_false(eng_vocab_is_eog(v, UINT32_MAX));
    eng_vocab_free(v);
}

static void test_spans(void **state)
{
    struct eng_vocab *v = vocab_open("llama-bpe");
    if (!v) skip();
    static const char text[] = "<|eot_id|>a<|eot_id|>";
    const size_t n = sizeof text - 1;
    char all[64], client[256];
    snprintf(all, sizeof all, "%s", plain(v, text, ENG_TOKENIZE_PARSE));
    assert_string_equal(all, "128009 64 128009");
    snprintf(client, sizeof client, "%s", plain(v, text, 0));

    struct eng_span untrusted[] = {{n, false}};
    assert_string_equal(ids_of(v, text, n, untrusted, 1, ENG_TOKENIZE_PARSE), client);
    struct eng_span pieces[] = {{3, true}, {3, false}, {10, true}, {11, false}, {n, true}};
    assert_string_equal(ids_of(v, text, n, pieces, 5, ENG_TOKENIZE_PARSE), all);
    /* one byte of the first token is the client's */
    struct eng_span straddle[] = {{9, true}, {11, false}, {n, true}};
    const char *got = ids_of(v, text, n, straddle, 3, ENG_TOKENIZE_PARSE);
    assert_null(strstr(got, "128009 64"));
    assert_string_equal(got + strlen(got) - 7, " 128009");
    /* origin does not cut ordinary text */
    struct eng_span words[] = {{3, true}, {7, false}, {11, true}};
    assert_string_equal(ids_of(v, "Hello world", 11, words, 3, ENG_TOKENIZE_PARSE), "9906 1917");
    /* spans that do not cover the text, or run backwards, are refused */
    struct eng_ids ids = {0};
    struct eng_span bad[] = {{5, true}, {3, true}, {11, true}};
    assert_int_equal(eng_tokenize(v, "Hello world", 11, bad, 3, 0, &ids, NULL), CN_EINVAL);
    assert_int_equal(eng_tokenize(v, "Hello world", 11, bad, 1, 0, &ids, NULL), CN_EINVAL);
    assert_int_equal(eng_tokenize(v, "Hello world", 11, bad, 0, 0, &ids, NULL), CN_EINVAL);
    assert_int_equal(ids.n, 0);
    eng_ids_fini(&ids);
    eng_vocab_free(v);
}

static void test_user_defined(void **state)
{
    struct eng_vocab *v = vocab_open("qwen35");
    if (!v) skip();
    struct eng_span client[] = {{11, false}};
    assert_string_equal(ids_of(v, "[PAD151646]", 11, client, 1, 0), "151646");
    assert_true(eng_vocab_is_eog(v, 151643) && eng_vocab_is_eog(v, 151645));
    assert_false(eng_vocab_is_eog(v, 151644));
    eng_vocab_free(v);

    v = vocab_open("phi-3"); /* </s> is user-defined and ends generation: a control token */
    if (!v) skip();
    assert_int_equal(eng_vocab_find(v, "</s>", 4), 2);
    assert_true(eng_vocab_is_control(v, 2) && eng_vocab_is_eog(v, 2));
    assert_null(strstr(plain(v, "a</s>b", 0), " 2 "));
    assert_string_equal(plain(v, "</s>", ENG_TOKENIZE_PARSE), "2");
    /* phi-3's tokens eat the white space after them, but for three; the prefix space comes anew */
    assert_string_equal(plain(v, "<|user|>\n \nHello<|end|>\n", ENG_TOKENIZE_PARSE),
                        "32010 15043 32007");
    assert_string_equal(plain(v, "<|endoftext|>\n", ENG_TOKENIZE_PARSE), "32000 29871 13");
    assert_string_equal(plain(v, "<s> Hello", ENG_TOKENIZE_PARSE | ENG_TOKENIZE_SPECIAL),
                        "1 29871 15043");
    eng_vocab_free(v);
}

static void test_limit(void **state)
{
    static struct token_list l;
    l.n = l.used = 0;
    add_bytes(&l);
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    use_tokens(&spec, &l);
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    assert_int_equal(eng_vocab_new(&spec, &v, &err), 0);
    struct eng_ids ids = {.max = 5};
    assert_int_equal(eng_tokenize(v, "ab", 2, NULL, 0, 0, &ids, &err), 0);
    assert_int_equal(eng_tokenize(v, "cde", 3, NULL, 0, 0, &ids, &err), 0); /* appends */
    assert_int_equal(ids.n, 5);
    assert_int_equal(ids.v[4], 'e');
    ids.n = 2;
    assert_int_equal(eng_tokenize(v, "cdef", 4, NULL, 0, 0, &ids, &err), CN_EWINDOW);
    assert_int_equal(ids.n, 2);
    assert_non_null(strstr(err.message, "5"));
    eng_ids_fini(&ids);
    eng_vocab_free(v);
}

/* ---- merging, literally ---------------------------------------------------------------------- */

struct rank {
    struct eng_str text;
    uint32_t rank;
};

static int by_text(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    int c = memcmp(x->text.p, y->text.p, CN_MIN(x->text.n, y->text.n));
    if (c) return c;
    return x->text.n < y->text.n ? -1 : x->text.n > y->text.n;
}

static uint32_t rank_of(const struct rank *sorted, size_t n, const char *p, size_t len)
{
    struct rank key = {{p, len}, 0};
    const struct rank *r = bsearch(&key, sorted, n, sizeof key, by_text);
    return r ? r->rank : UINT32_MAX;
}

/* Splits the mapped word into the pieces that merging leaves; returns their number. */
static size_t merge_literally(const struct rank *sorted, size_t n, const char *word, size_t len,
                              struct eng_str *piece)
{
    size_t count = 0;
    for (size_t i = 0; i < len; count++) {
        uint32_t cp;
        piece[count] = (struct eng_str){word + i, cn_utf8_decode(word + i, len - i, &cp)};
        i += piece[count].n;
    }
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            char pair[512];
            memcpy(pair, piece[i].p, piece[i].n);
            pair[piece[i].n] = ' ';
            memcpy(pair + piece[i].n + 1, piece[i + 1].p, piece[i + 1].n);
            uint32_t r = rank_of(sorted, n, pair, piece[i].n + 1 + piece[i + 1].n);
            if (r < best) {
                best = r;
                at = i;
            }
        }
        if (best == UINT32_MAX) return count;
        piece[at].n += piece[at + 1].n;
        memmove(piece + at + 1, piece + at + 2, (count - at - 2) * sizeof *piece);
        count--;
    }
}

static void test_bpe(void **state)
{
    struct vocab_file f;
    if (!vocab_file_read(&f, vocab_path("gpt-2", ""))) skip();
    struct eng_vocab *v = NULL;
    assert_int_equal(eng_vocab_new(&f.spec, &v, NULL), 0);
    struct rank *sorted = malloc(f.spec.n_merges * sizeof *sorted);
    for (size_t i = 0; i < f.spec.n_merges; i++)
        sorted[i] = (struct rank){f.spec.merges[i], (uint32_t)i};
    qsort(sorted, f.spec.n_merges, sizeof *sorted, by_text);
    for (int round = 0; round < 3000; round++) {
        /* one piece of letters, short and long, from few or many letters, or a run of accents */
        char text[1000], want[8192] = "";
        struct eng_str piece[1000];
        size_t n = 1 + below(round % 100 == 0 ? 1000 : round % 3 ? 20 : 150), used = 0;
        uint32_t letters = 1 + below(26), first = below(26);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + (first + below(letters)) % 26);
        size_t count = merge_literally(sorted, f.spec.n_merges, text, n, piece);
        for (size_t i = 0; i < count; i++)
            used += (size_t)snprintf(want + used, sizeof want - used, "%s%lld", i ? " " : "",
                                     (long long)eng_vocab_find(v, piece[i].p, piece[i].n));
        assert_string_equal(ids_of(v, text, n, NULL, 0, 0), want);
    }
    free(sorted);
    eng_vocab_free(v);
    vocab_file_fini(&f);
}

/* The same with characters of several bytes, whose parts are tokens too: there the text is cut
 * where no merge can cross, and few of the places that look so may be. */
static void test_bpe_wide(void **state)
{
    static const char letters[] =
        "\u7684\u4e00\u662f\u4e0d\u4e86\u4eba\u6211\u5728\u6709\u4ed6\u8fd9\u4e3a\u4e4b\u5927\u6765"
        "\u4ee5\u4e2a\u4e2d\u4e0a\u4eec\u5230\u8bf4\u56fd\u548c\u5730\u4e5f\u5b50\u65f6\u9053\u51fa"
        "\u3042\u306e\u3057\u305f\u304b\u306f\u0435\u043d\u0438\u0430\u0442\u043e\u0441\u0440\u00e9"
        "\uac00\ub294\ub2e4\u0627\u0644\u0645\U00020000\U0001d49caet";
    struct vocab_file f;
    if (!vocab_file_read(&f, vocab_path(*state, ""))) skip();
    struct eng_vocab *v = NULL;
    assert_int_equal(eng_vocab_new(&f.spec, &v, NULL), 0);
    struct rank *sorted = malloc(f.spec.n_merges * sizeof *sorted);
    for (size_t i = 0; i < f.spec.n_merges; i++)
        sorted[i] = (struct rank){f.spec.merges[i], (uint32_t)i};
    qsort(sorted, f.spec.n_merges, sizeof *sorted, by_text);
    size_t starts[128], n_starts = 0;
    for (size_t i = 0; i < sizeof letters - 1; i++)
        if (((uint8_t)letters[i] & 0xC0) != 0x80) starts[n_starts++] = i;
    starts[n_starts] = sizeof letters - 1;
    for (int round = 0; round < 2000; round++) {
        char text[1000], mapped[2001], want[8192] = "";
        struct eng_str piece[1000];
        size_t n = 0, m = 0, used = 0, kinds = 1 + below((uint32_t)n_starts);
        for (uint32_t k = 1 + below(round % 50 == 0 ? 200 : 12); k > 0; k--) {
            size_t at = below((uint32_t)kinds), len = starts[at + 1] - starts[at];
            memcpy(text + n, letters + starts[at], len);
            n += len;
        }
        for (size_t i = 0; i < n; i++)
            m += cn_utf8_encode(eng_byte_char((uint8_t)text[i]), mapped + m);
        size_t count = merge_literally(sorted, f.spec.n_merges, mapped, m, piece);
        for (size_t i = 0; i < count; i++)
            used += (size_t)snprintf(want + used, sizeof want - used, "%s%lld", i ? " " : "",
                                     (long long)eng_vocab_find(v, piece[i].p, piece[i].n));
        assert_string_equal(ids_of(v, text, n, NULL, 0, 0), want);
    }
    free(sorted);
    eng_vocab_free(v);
    vocab_file_fini(&f);
}

/* Merges of characters and of parts of them, drawn from what merging leaves of drawn texts: symbols
 * that begin or end within a character, in an alphabet whose characters share bytes. */
enum { N_DRAWN = 90 };

struct drawn {
    struct token_list l;
    struct eng_str merge[N_DRAWN];
    char blob[16384];
    size_t n;
};

/* Letters that gpt-2's pre-tokeniser leaves in one piece, as the mapped characters of their
 * bytes. */
static size_t draw_letters(char *text, size_t *n, char *mapped)
{
    static const char *const letters[] = {"\u4e00",     "\u4e01", "\u4e40", "\u5e00",
                                          "\u5e41",     "\u00e4", "\u00e5", "\u0178",
                                          "\U00020000", "a",      "b"};
    size_t m = 0;
    *n = 0;
    for (uint32_t k = 1 + below(30), kinds = 2 + below(CN_ARRAY_LEN(letters) - 1); k > 0; k--) {
        const char *c = letters[below(kinds)];
        memcpy(text + *n, c, strlen(c));
        *n += strlen(c);
    }
    for (size_t i = 0; i < *n; i++)
        m += cn_utf8_encode(eng_byte_char((uint8_t)text[i]), mapped + m);
    return m;
}

static bool has_token(const struct token_list *l, struct eng_str s)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->text[i].n == s.n && memcmp(l->text[i].p, s.p, s.n) == 0) return true;
    return false;
}

static void draw_merges(struct drawn *d, struct rank *sorted)
{
    size_t used = 0;
    d->l.n = d->l.used = d->n = 0;
    add_bytes(&d->l);
    while (d->n < N_DRAWN) {
        char text[200], mapped[400];
        struct eng_str piece[200];
        size_t n, m = draw_letters(text, &n, mapped);
        size_t count = merge_literally(sorted, d->n, mapped, m, piece);
        if (count < 2) continue;
        size_t at = below((uint32_t)count - 1), both = piece[at].n + piece[at + 1].n;
        if (both > 24) continue;
        char *out = d->blob + used;
        memcpy(out, piece[at].p, piece[at].n);
        out[piece[at].n] = ' ';
        memcpy(out + piece[at].n + 1, piece[at + 1].p, piece[at + 1].n);
        d->merge[d->n] = (struct eng_str){out, both + 1};
        sorted[d->n] = (struct rank){d->merge[d->n], (uint32_t)d->n};
        qsort(sorted, ++d->n, sizeof *sorted, by_text);
        used += both + 1;
        struct eng_str merged = {piece[at].p, both};
        if (!has_token(&d->l, merged)) add_token(&d->l, merged.p, both, ENG_TOKEN_NORMAL);
    }
}

/* Parts of characters among letters: no pre-tokeniser leaves them in one piece with those, so the
 * piece is given as such. */
static void merge_stray(const struct eng_vocab *v, const struct drawn *d, const struct rank *sorted)
{
    struct eng_merge *merge = eng_merge_take(v);
    assert_non_null(merge);
    for (int i = 0; i < 50; i++) {
        char text[200], mapped[400], got[4096] = "", want[4096] = "";
        struct eng_str piece[200];
        struct eng_ids ids = {0};
        size_t n, m = draw_letters(text, &n, mapped), used = 0;
        for (uint32_t k = 1 + below(4); k > 0; k--) {
            size_t at = below((uint32_t)n + 1);
            memmove(text + at + 1, text + at, n++ - at);
            text[at] = "\xe4\x80\xb8\xff"[below(4)];
        }
        m = 0;
        for (size_t k = 0; k < n; k++)
            m += cn_utf8_encode(eng_byte_char((uint8_t)text[k]), mapped + m);
        size_t count = merge_literally(sorted, d->n, mapped, m, piece);
        for (size_t k = 0; k < count; k++)
            used += (size_t)snprintf(want + used, sizeof want - used, " %lld",
                                     (long long)eng_vocab_find(v, piece[k].p, piece[k].n));
        merge->end = text + n;
        assert_int_equal(eng_piece(v, merge, text, n, &ids), 0);
        used = 0;
        for (size_t k = 0; k < ids.n; k++)
            used += (size_t)snprintf(got + used, sizeof got - used, " %u", ids.v[k]);
        assert_string_equal(got, want);
        eng_ids_fini(&ids);
    }
    eng_merge_give(v, merge);
}

static void test_bpe_parts(void **state)
{
    static struct drawn d;
    struct rank sorted[N_DRAWN];
    for (int round = 0; round < 200; round++) {
        struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
        struct eng_vocab *v = NULL;
        draw_merges(&d, sorted);
        use_tokens(&spec, &d.l);
        spec.merges = d.merge;
        spec.n_merges = d.n;
        assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
        for (int i = 0; i < 50; i++) {
            char text[200], mapped[400], want[4096] = "";
            struct eng_str piece[200];
            size_t n, m = draw_letters(text, &n, mapped), used = 0;
            size_t count = merge_literally(sorted, d.n, mapped, m, piece);
            for (size_t k = 0; k < count; k++)
                used += (size_t)snprintf(want + used, sizeof want - used, "%s%lld", k ? " " : "",
                                         (long long)eng_vocab_find(v, piece[k].p, piece[k].n));
            assert_string_equal(ids_of(v, text, n, NULL, 0, 0), want);
        }
        merge_stray(v, &d, sorted);
        eng_vocab_free(v);
    }
}

/* SentencePiece: scores that tie, tokens that overlap, in a small alphabet. */
static void test_spm(void **state)
{
    for (int round = 0; round < 400; round++) {
        static struct token_list l;
        l.n = l.used = 0;
        add_token(&l, "<unk>", 5, ENG_TOKEN_UNKNOWN);
        const char *const chars[] = {"a", "b", "c", "\u2581"};
        for (int i = 0; i < 4; i++)
            add_token(&l, chars[i], strlen(chars[i]), ENG_TOKEN_NORMAL);
        for (int i = 0; i < 40; i++) {
            char text[32];
            size_t n = 0;
            for (uint32_t k = 2 + below(4); k > 0; k--) {
                const char *c = chars[below(4)];
                memcpy(text + n, c, strlen(c));
                n += strlen(c);
            }
            add_token(&l, text, n, ENG_TOKEN_NORMAL);
            l.score[l.n - 1] = -(float)below(6);
        }
        struct eng_vocab_spec spec = bare_spec("llama", NULL);
        use_tokens(&spec, &l);
        struct eng_vocab *v = NULL;
        assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
        for (int i = 0; i < 20; i++) {
            char text[601] = "", escaped[2000] = "\u2581", want[4096] = "";
            struct eng_str s[602];
            size_t n = 1 + below(i == 0 ? 600 : i % 2 ? 12 : 120), count = 0, used = 0;
            for (size_t k = 0; k < n; k++) {
                text[k] = "abc "[below(4)];
                strcat(escaped, text[k] == ' ' ? "\u2581" : (char[]){text[k], 0});
            }
            for (const char *p = escaped; *p; p += s[count++].n)
                s[count] = (struct eng_str){p, *p & 0x80 ? 3 : 1};
            for (;;) {
                int64_t best = -1;
                size_t at = 0;
                for (size_t k = 0; k + 1 < count; k++) {
                    int64_t id = eng_vocab_find(v, s[k].p, s[k].n + s[k + 1].n);
                    if (id < 0 || (best >= 0 && l.score[id] <= l.score[best])) continue;
                    best = id;
                    at = k;
                }
                if (best < 0) break;
                s[at].n += s[at + 1].n;
                memmove(s + at + 1, s + at + 2, (count - at - 2) * sizeof *s);
                count--;
            }
            for (size_t k = 0; k < count; k++)
                used += (size_t)snprintf(want + used, sizeof want - used, "%s%lld", k ? " " : "",
                                         (long long)eng_vocab_find(v, s[k].p, s[k].n));
            assert_string_equal(plain(v, text, 0), want);
        }
        eng_vocab_free(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_user_defined),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_bpe),
        {"wide, gpt-2", test_bpe_wide, NULL, NULL, "gpt-2"},
        {"wide, qwen35", test_bpe_wide, NULL, NULL, "qwen35"},
        {"wide, falcon", test_bpe_wide, NULL, NULL, "falcon"},
        cmocka_unit_test(test_bpe_parts),
        cmocka_unit_test(test_spm),
    };
    return cmocka_run_group_tests_name("tokenize", tests, NULL, NULL);
}
