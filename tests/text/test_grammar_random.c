/* Random grammars in GBNF and in Lark's language, against a recogniser of their trees that knows
 * nothing of expressions, derivatives or stacks: for each text of a few letters it finds the ends
 * that each rule can have from each place, over and over until nothing new is found. */
#include "tests/text/grammar_cases.h"

enum {
    LENGTH = 7,  /* of the longest texts */
    LETTERS = 2, /* and a blank, which only Lark's grammars ignore */
    MOST_RULES = 4,
    MOST_TOKENS = 3,
    NODES = 2048,
};

struct node {
    char kind; /* t: text, s: set, r: rule, T: terminal, . | & ~ *, ?: nothing */
    char text[4];
    unsigned set, to;
    uint32_t lo, hi;
    struct node *a, *b;
};
static struct node pool[NODES];
static unsigned used, n_rules, n_tokens;
static struct node *rules[MOST_RULES], *tokens[MOST_TOKENS];
static bool lark, ignores;
static uint64_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* ---- making one ------------------------------------------------------------------------------ */

static struct node *make(int depth, bool terminal)
{
    struct node *t = &pool[used++];
    const char *kinds = depth ? ".|*.|*ts" : "ttsrrT?";
    if (terminal) kinds = depth ? ".|*.|&~ts" : "tttss?T";
    *t = (struct node){.kind = kinds[rnd((uint32_t)strlen(kinds))]};
    if (t->kind == 'T' && (!lark || !n_tokens)) t->kind = 's';
    if (t->kind == 'T') t->to = rnd(n_tokens);
    if (t->kind == 'r') t->to = rnd(n_rules);
    if (t->kind == 's') t->set = 1 + rnd(3);
    for (unsigned i = 0, n = 1 + rnd(2); t->kind == 't' && i < n; i++)
        t->text[i] = (char)('a' + rnd(LETTERS));
    if (strchr(".|&*~", t->kind)) t->a = make(depth - 1, terminal);
    if (strchr(".|&", t->kind)) t->b = make(depth - 1, terminal);
    if (t->kind == '*') {
        t->lo = rnd(3);
        t->hi = rnd(2) ? ENG_RX_INF : t->lo + rnd(3);
    }
    return t;
}

/* In parentheses where the tree needs them, and at times where it does not. */
static void print_node(struct cn_buf *b, const struct node *t, int above)
{
    static const char levels[] = "|&.*";
    const char *at = strchr(levels, t->kind == '~' ? '*' : t->kind);
    int level = at ? (int)(at - levels) : 9;
    bool closed = level < above || (level == above && level == 3) || !rnd(12);
    if (closed) cn_buf_putc(b, '(');
    if (t->kind == 't') cn_buf_printf(b, "\"%s\"", t->text);
    if (t->kind == 's' && lark)
        cn_buf_printf(b, "/[%s]/", t->set == 1 ? "a" : t->set == 2 ? "b" : "ab");
    if (t->kind == 's' && !lark)
        cn_buf_printf(b, "[%s]", t->set == 1 ? "a" : t->set == 2 ? "b" : "ab");
    if (t->kind == '?') cn_buf_puts(b, lark ? "(|)" : "\"\"");
    if (t->kind == 'T') cn_buf_printf(b, "T%u", t->to);
    if (t->kind == 'r' && t->to) cn_buf_printf(b, "r%u", t->to);
    if (t->kind == 'r' && !t->to) cn_buf_puts(b, lark ? "start" : "root");
    if (strchr("|&.", t->kind)) {
        print_node(b, t->a, level);
        cn_buf_puts(b, t->kind == '|' ? " | " : t->kind == '&' ? " & " : " ");
        print_node(b, t->b, level);
    } else if (t->kind == '~') {
        cn_buf_puts(b, "~(");
        print_node(b, t->a, 0);
        cn_buf_putc(b, ')');
    } else if (t->kind == '*') {
        print_node(b, t->a, level);
        if (t->lo == 0 && t->hi == ENG_RX_INF)
            cn_buf_putc(b, '*');
        else if (t->lo == 1 && t->hi == ENG_RX_INF)
            cn_buf_putc(b, '+');
        else if (t->lo == 0 && t->hi == 1)
            cn_buf_putc(b, '?');
        else if (t->hi == ENG_RX_INF)
            cn_buf_printf(b, "{%u,}", t->lo);
        else if (lark && rnd(2))
            cn_buf_printf(b, "~%u..%u", t->lo, t->hi);
        else
            cn_buf_printf(b, "{%u,%u}", t->lo, t->hi);
    }
    if (closed) cn_buf_putc(b, ')');
}

static void make_grammar(struct cn_buf *b)
{
    used = 0;
    n_tokens = 0;
    ignores = lark && rnd(2);
    n_rules = 1 + rnd(MOST_RULES);
    for (unsigned i = 0, n = lark ? rnd(MOST_TOKENS + 1) : 0; i < n; i++) {
        tokens[i] = make((int)rnd(3), true);
        n_tokens++; /* so that none refers to itself */
    }
    for (unsigned i = 0; i < n_rules; i++)
        rules[i] = make((int)rnd(5), false);
    for (unsigned i = 0; i < n_rules; i++) {
        if (i)
            cn_buf_printf(b, "r%u %s ", i, lark ? ":" : "::=");
        else
            cn_buf_puts(b, lark ? "start: " : "root ::= ");
        print_node(b, rules[i], 0);
        cn_buf_putc(b, '\n');
    }
    for (unsigned i = 0; i < n_tokens; i++) {
        cn_buf_printf(b, "T%u: ", i);
        print_node(b, tokens[i], 0);
        cn_buf_putc(b, '\n');
    }
    if (ignores) cn_buf_puts(b, "%ignore \" \"\n");
}

/* ---- the recogniser -------------------------------------------------------------------------- */

/* Sets of places are bits. ends[r][i]: where a text of rule r that begins at place i can end. */
static const char *text;
static unsigned length;
static unsigned ends[MOST_RULES][LENGTH + 1];

static unsigned from_place(const struct node *t, unsigned at, bool terminal);

static unsigned from_places(const struct node *t, unsigned places, bool terminal)
{
    unsigned out = 0;
    for (unsigned i = 0; i <= length; i++)
        if (places >> i & 1) out |= from_place(t, i, terminal);
    return out;
}

static unsigned of_repeat(const struct node *t, unsigned at, bool terminal)
{
    unsigned here = 1u << at, out = 0;
    for (uint32_t k = 0; k < t->lo; k++)
        here = from_places(t->a, here, terminal);
    for (uint32_t k = t->lo; here & ~out; k++) {
        out |= here;
        if (k == t->hi) break;
        here = from_places(t->a, here, terminal);
    }
    return out;
}

static unsigned of_leaf(const struct node *t, unsigned at)
{
    size_t n = t->kind == 't' ? strlen(t->text) : 1;
    if (t->kind == 'T') return from_place(tokens[t->to], at, true);
    if (n > length - at) return 0;
    if (t->kind == 't') return memcmp(text + at, t->text, n) ? 0 : 1u << (at + n);
    return text[at] != ' ' && t->set >> (text[at] - 'a') & 1 ? 1u << (at + 1) : 0;
}

static unsigned from_place(const struct node *t, unsigned at, bool terminal)
{
    unsigned out = 0;
    switch (t->kind) {
    case '?':
        return 1u << at;
    case 'r':
        return ends[t->to][at];
    case '.':
        return from_places(t->b, from_place(t->a, at, terminal), terminal);
    case '|':
        return from_place(t->a, at, terminal) | from_place(t->b, at, terminal);
    case '&':
        return from_place(t->a, at, terminal) & from_place(t->b, at, terminal);
    case '~':
        return ~from_place(t->a, at, terminal) & ((2u << length) - 1) & ~((1u << at) - 1);
    case '*':
        return of_repeat(t, at, terminal);
    }
    for (;; at++) { /* a terminal, after ignored text */
        out |= of_leaf(t, at);
        if (terminal || !ignores || at == length || text[at] != ' ') return out;
    }
}

static bool recognised(const char *s, unsigned n)
{
    text = s;
    length = n;
    memset(ends, 0, sizeof ends);
    for (bool more = true; more;) {
        more = false;
        for (unsigned r = 0; r < n_rules; r++)
            for (unsigned i = 0; i <= n; i++) {
                unsigned now = ends[r][i] | from_place(rules[r], i, false);
                more |= now != ends[r][i];
                ends[r][i] = now;
            }
    }
    return ends[0][0] >> n & 1;
}

/* ---- all texts ------------------------------------------------------------------------------- */

static struct eng_places places[LENGTH + 1];
static char word[LENGTH + 1];
static unsigned n_texts, n_in, n_ambiguous;

/* dead: no text of the grammar begins with the word, says the matcher. */
static void compare(struct eng_match *m, unsigned n, bool dead, const struct cn_buf *b)
{
    bool is = !dead && eng_match_accepts(m, &places[n]), should = recognised(word, n);
    if (m->code == CN_ELIMIT) { /* so ambiguous that there are too many ways to read the word */
        n_ambiguous++;
        return;
    }
    n_texts++;
    n_in += should;
    if (is != should)
        fail_msg("seed %s: \"%.*s\" is %s\n%.*s", lark ? "of Lark" : "of GBNF", (int)n, word,
                 should ? "in, and was not found" : "not in, and was found", (int)b->len, b->data);
    if (n == LENGTH) return;
    for (unsigned c = 0; c < LETTERS + (unsigned)lark; c++) {
        word[n] = c == LETTERS ? ' ' : (char)('a' + c);
        bool step = !dead && eng_match_step(m, &places[n], (uint8_t)word[n], &places[n + 1]);
        compare(m, n + 1, !step, b);
        if (m->code) return;
    }
}

static void check_one(void)
{
    struct eng_grammar_in in = {.kind = lark ? ENG_GRAMMAR_LARK : ENG_GRAMMAR_GBNF};
    struct eng_grammar *g = NULL;
    struct cn_error err = {0};
    struct eng_match m = {0};
    struct cn_buf b;
    cn_buf_init(&b, 0);
    make_grammar(&b);
    assert_false(b.failed);
    in.text = b.data;
    in.n = b.len;
    int rc = eng_grammar_compile(&in, &g, &err);
    if (rc && !strstr(err.message, "nothing satisfies it"))
        fail_msg("%s\n%.*s", err.message, (int)b.len, b.data);
    if (!rc) {
        assert_int_equal(eng_match_init(&m, &g->ir, 64 << 20, ENG_RX_EMPTY), 0);
        places[0].n = 0;
        assert_int_equal(cn_grow(&places[0].v, &places[0].cap, m.now.n, sizeof *places[0].v), 0);
        memcpy(places[0].v, m.now.v, m.now.n * sizeof *m.now.v);
        places[0].n = m.now.n;
    }
    compare(&m, 0, rc != 0, &b);
    if (!rc) eng_match_fini(&m);
    eng_grammar_unref(g);
    cn_buf_fini(&b);
}

static void check_many(bool of_lark, unsigned tries)
{
    lark = of_lark;
    n_texts = n_in = n_ambiguous = 0;
    for (unsigned i = 0; i < tries; i++) {
        seed = i;
        check_one();
    }
    print_message("%u texts, of which %u belong to their grammar; %u grammars too ambiguous\n",
                  n_texts, n_in, n_ambiguous);
    assert_in_range(n_in, n_texts / 50, n_texts);
    assert_in_range(n_ambiguous, 0, tries / 50);
    for (unsigned i = 0; i <= LENGTH; i++) {
        free(places[i].v);
        places[i] = (struct eng_places){0};
    }
}

static void test_random_gbnf(void **state)
{
    (void)state;
    check_many(false, getenv("CONIFER_LONG") ? 20000 : 1500);
}

static void test_random_lark(void **state)
{
    (void)state;
    check_many(true, getenv("CONIFER_LONG") ? 3000 : 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_gbnf),
        cmocka_unit_test(test_random_lark),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
