/* Special tokens: what eng_special_find cuts is what the defining procedure cuts (for each token,
 * longest first, every occurrence in what is still raw, left to right), on random texts, tokens,
 * spans and strip flags. */
#include "tests/text/small_vocab.h"

#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

static uint64_t rng = 0x243f6a8885a308d3u;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* ---- the procedure, literally: a list of fragments, raw (id < 0) or a token ------------------ */

struct fragment {
    size_t start, end;
    int64_t id;
};
struct list {
    struct fragment v[2048];
    size_t n;
};

static void replace(struct list *l, size_t at, const struct fragment *with, size_t n)
{
    memmove(l->v + at + n, l->v + at + 1, (l->n - at - 1) * sizeof l->v[0]);
    memcpy(l->v + at, with, n * sizeof *with);
    l->n += n - 1;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool allowed(const bool *trusted, size_t start, size_t len, bool control, bool parse)
{
    if (!control) return true;
    if (!parse) return false;
    for (size_t i = 0; i < len; i++) {
        if (!trusted[start + i]) return false;
    }
    return true;
}

static void cut_all(const struct eng_vocab *v, uint32_t id, const char *text, const bool *trusted,
                    bool parse, struct list *l)
{
    struct eng_str t = eng_vocab_text(v, id);
    for (size_t f = 0; f < l->n; f++) {
        struct fragment raw = l->v[f];
        if (raw.id >= 0) continue;
        for (size_t i = raw.start; i + t.n <= raw.end; i++) {
            if (memcmp(text + i, t.p, t.n) != 0 ||
                !allowed(trusted, i, t.n, eng_vocab_is_control(v, id), parse))
                continue;
            struct fragment parts[3];
            size_t n = 0, left = i, right = i + t.n;
            while ((v->flags[id] & ENG_TF_LSTRIP) && left > raw.start && is_space(text[left - 1]))
                left--;
            while ((v->flags[id] & ENG_TF_RSTRIP) && right < raw.end && is_space(text[right]))
                right++;
            if (left > raw.start) parts[n++] = (struct fragment){raw.start, left, -1};
            parts[n++] = (struct fragment){i, i + t.n, id};
            if (right < raw.end) parts[n++] = (struct fragment){right, raw.end, -1};
            replace(l, f, parts, n);
            f += left > raw.start; /* now at the token; the loop goes on with what is right of it */
            break;
        }
    }
}

static void procedure(const struct eng_vocab *v, const char *text, size_t n, const bool *trusted,
                      bool parse, struct list *l)
{
    bool done[1024] = {false};
    l->n = 0;
    if (n) l->v[l->n++] = (struct fragment){0, n, -1};
    for (;;) {
        uint32_t best = ENG_NO_ID;
        for (uint32_t id = 0; id < v->n; id++) {
            bool special = v->type[id] == ENG_TOKEN_USER || eng_vocab_is_control(v, id);
            if (done[id] || !special || eng_vocab_text(v, id).n == 0) continue;
            if (best == ENG_NO_ID || eng_vocab_text(v, id).n > eng_vocab_text(v, best).n) best = id;
        }
        if (best == ENG_NO_ID) return;
        done[best] = true;
        cut_all(v, best, text, trusted, parse, l);
    }
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void compare(const struct eng_vocab *v, const char *text, size_t n,
                    const struct eng_span *spans, size_t n_spans, bool parse)
{
    static struct list l;
    bool trusted[512];
    for (size_t i = 0, s = 0; i < n; i++) {
        while (spans && i >= spans[s].end)
            s++;
        trusted[i] = spans ? spans[s].trusted : true;
    }
    procedure(v, text, n, trusted, parse, &l);
    struct eng_cuts cuts = {0};
    struct eng_tick tick = {0};
    assert_int_equal(eng_special_find(v, text, n, spans, n_spans, parse, &tick, &cuts), 0);
    size_t k = 0, at = 0;
    for (size_t i = 0; i < l.n; i++) {
        if (l.v[i].id < 0) { /* raw text lies between the cuts */
            assert_true(l.v[i].start >= at);
            if (k < cuts.n) assert_int_equal(l.v[i].end, cuts.v[k].raw_start);
            if (k > 0) assert_int_equal(l.v[i].start, cuts.v[k - 1].raw_end);
            continue;
        }
        assert_true(k < cuts.n);
        assert_int_equal(cuts.v[k].id, l.v[i].id);
        assert_int_equal(cuts.v[k].start, l.v[i].start);
        assert_int_equal(cuts.v[k].end, l.v[i].end);
        at = cuts.v[k].raw_end;
        k++;
    }
    assert_int_equal(k, cuts.n);
    free(cuts.v);
}

static struct eng_vocab *random_vocab(const char *letters, uint32_t n_letters)
{
    static struct token_list l;
    l.n = l.used = 0;
    static const int32_t types[] = {ENG_TOKEN_NORMAL, ENG_TOKEN_CONTROL, ENG_TOKEN_CONTROL,
                                    ENG_TOKEN_USER,   ENG_TOKEN_USER,    ENG_TOKEN_UNKNOWN};
    uint32_t count = 1 + below(14);
    for (uint32_t i = 0; i < count; i++) {
        char text[16];
        size_t n = below(10) ? 1 + below(5) : 1 + below(12);
        for (size_t k = 0; k < n; k++)
            text[k] = letters[below(n_letters)];
        add_token(&l, text, below(40) ? n : 0, types[below(6)]);
    }
    struct eng_vocab_spec spec = bare_spec("gpt2", "gpt-2");
    struct eng_vocab *v = NULL;
    use_tokens(&spec, &l);
    assert_int_equal(eng_vocab_new(&spec, &v, NULL), 0);
    v->strips = below(2); /* half of them without: then runs of tokens are gone through apart */
    for (uint32_t id = 0; id < v->n && v->strips; id++) {
        if (below(4) == 0) v->flags[id] |= ENG_TF_RSTRIP;
        if (below(4) == 0) v->flags[id] |= ENG_TF_LSTRIP;
    }
    return v;
}

static void test_procedure(void **state)
{
    static const char letters[] = "ab< >\n|";
    for (int round = 0; round < 4000; round++) {
        uint32_t n_letters = 1 + below(sizeof letters - 1);
        struct eng_vocab *v = random_vocab(letters, n_letters);
        for (int i = 0; i < 6; i++) {
            char text[80];
            size_t n = below(sizeof text + 1), n_spans = 0;
            struct eng_span spans[16];
            for (size_t k = 0; k < n; k++)
                text[k] = letters[below(n_letters)];
            for (size_t end = 0; n_spans < 15 && (end < n || below(3)); n_spans++) {
                end += below(12);
                if (n_spans == 14 || end > n) end = n;
                spans[n_spans] = (struct eng_span){end, below(3) > 0};
            }
            if (n_spans == 0 || spans[n_spans - 1].end < n)
                spans[n_spans++] = (struct eng_span){n, true};
            compare(v, text, n, NULL, 0, below(4) > 0);
            compare(v, text, n, spans, n_spans, below(4) > 0);
        }
        eng_vocab_free(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_procedure)};
    return cmocka_run_group_tests_name("special", tests, NULL, NULL);
}
