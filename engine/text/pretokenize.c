/* engine/text: pre-tokenisers, from the table in pretokenizers.def.
 *
 * A pre-tokeniser is a list of steps; each step cuts the pieces of the one before. A step runs as a
 * hand-written scanner where there is one, else as a PCRE2 expression: compiled once, with JIT
 * where the process may have it. Expressions are chosen so that a match costs time in proportion to
 * its length; the match limit turns a mistake in that into an error instead of a hang.
 * Immutable after creation; match data belong to the call. Any thread. */
#include "engine/text/vocab_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <stdlib.h>

/* ---- the table ------------------------------------------------------------------------------- */

#define SET(id, of_categories, is_outside, ...)                                                    \
    static const uint32_t ranges_##id[][2] = {__VA_ARGS__};                                        \
    static const struct eng_scan_set set_##id = {.categories = of_categories,                      \
                                                 .ranges = ranges_##id,                            \
                                                 .n_ranges = CN_ARRAY_LEN(ranges_##id),            \
                                                 .outside = is_outside};
#define WORDS(id, ...) static const struct eng_scan_words words_##id = {__VA_ARGS__};
#define KIND(kind)
#define STEP(kind, scan, regex)
#define NAME(name, kind, flags)
#include "engine/text/pretokenizers.def"
#undef SET
#undef WORDS
#undef KIND

enum kind {
#define SET(id, of_categories, is_outside, ...)
#define WORDS(id, ...)
#define KIND(kind) KIND_##kind,
#include "engine/text/pretokenizers.def"
#undef KIND
    N_KINDS
};

static const char *const kind_names[] = {
#define KIND(kind) #kind,
#include "engine/text/pretokenizers.def"
#undef KIND
#undef STEP
};

struct step_row {
    enum kind kind;
    struct eng_scan scan;
    const char *regex;
};
static const struct step_row step_rows[] = {
#define KIND(kind)
#define SCAN_NONE               {ENG_SCAN_NONE, 0, NULL, NULL}
#define SCAN_WORDS(id)          {ENG_SCAN_WORDS, 0, &words_##id, NULL}
#define SCAN_NUMBERS(max)       {ENG_SCAN_NUMBERS, max, NULL, NULL}
#define SCAN_CRLF               {ENG_SCAN_CRLF, 0, NULL, NULL}
#define SCAN_LINES              {ENG_SCAN_LINES, 0, NULL, NULL}
#define SCAN_TRAILING           {ENG_SCAN_TRAILING, 0, NULL, NULL}
#define SCAN_THREES             {ENG_SCAN_THREES, 0, NULL, NULL}
#define SCAN_THREE              {ENG_SCAN_THREE, 0, NULL, NULL}
#define SCAN_RUN(after, id)     {ENG_SCAN_RUN, ENG_RUN_##after, NULL, &set_##id}
#define STEP(kind, scan, regex) {KIND_##kind, scan, regex},
#include "engine/text/pretokenizers.def"
#undef STEP
#undef NAME
};

struct name_row {
    const char *name;
    enum kind kind;
    unsigned flags;
};
static const struct name_row name_rows[] = {
#define STEP(kind, scan, regex)
#define NAME(name, kind, flags) {name, KIND_##kind, flags},
#include "engine/text/pretokenizers.def"
};

/* ---- building -------------------------------------------------------------------------------- */

enum { MAX_STEPS = 8 };

struct step {
    const struct eng_scan *scan; /* NULL: the expression */
    const struct eng_classes *classes;
    struct eng_classes *own; /* where it does not share the pre-tokeniser's */
    pcre2_code *code;
};

struct eng_pretok {
    unsigned flags;
    size_t n_steps;
    bool any_regex;
    struct step step[MAX_STEPS];
    uint8_t pass[MAX_STEPS]; /* bits by enum eng_common: what steps from this one on leave whole */
    struct eng_classes classes;
    struct eng_touch *touch; /* where a step is a RUN */
};

static int compile(const char *regex, bool jit, pcre2_code **out, struct cn_error *err)
{
    int code;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C;
    *out = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
    if (!*out) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof text);
        return cn_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? CN_ENOMEM : CN_EINTERNAL,
                       "pre-tokeniser expression, offset %zu: %s", at, (const char *)text);
    }
    /* A refusal (no executable memory, no JIT on this processor) leaves the interpreter. */
    if (jit) (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return 0;
}

static int add_scan(struct eng_pretok *p, struct step *s, const struct eng_scan *scan,
                    struct cn_error *err)
{
    s->scan = scan;
    s->classes = &p->classes;
    if (scan->words && scan->words->own) {
        s->classes = s->own = cn_malloc_array(1, sizeof *s->own);
        if (!s->own) return cn_fail(err, CN_ENOMEM, "out of memory");
        eng_scan_classes(scan->words, s->own);
    }
    return 0;
}

static bool has_run(enum kind kind)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(step_rows); i++)
        if (step_rows[i].kind == kind && step_rows[i].scan.op == ENG_SCAN_RUN) return true;
    return false;
}

static void find_passes(struct eng_pretok *p);

static int build(enum kind kind, unsigned flags, bool jit, bool regex_only, struct eng_pretok **out,
                 struct cn_error *err)
{
    struct eng_pretok *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(err, CN_ENOMEM, "out of memory");
    p->flags = flags;
    eng_scan_classes(NULL, &p->classes);
    if (has_run(kind) && !regex_only) {
        p->touch = cn_calloc(1, sizeof *p->touch);
        if (!p->touch) {
            eng_pretok_free(p);
            return cn_fail(err, CN_ENOMEM, "out of memory");
        }
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(step_rows); i++) {
        if (step_rows[i].kind != kind) continue;
        cn_assert(p->n_steps < MAX_STEPS);
        if (p->touch)
            eng_scan_touch(&step_rows[i].scan, &p->classes, (unsigned)p->n_steps, p->touch);
        struct step *s = &p->step[p->n_steps++];
        int rc = regex_only || step_rows[i].scan.op == ENG_SCAN_NONE
                     ? compile(step_rows[i].regex, jit, &s->code, err)
                     : add_scan(p, s, &step_rows[i].scan, err);
        if (rc) {
            eng_pretok_free(p);
            return rc;
        }
        p->any_regex |= s->code != NULL;
    }
    if (!p->any_regex) find_passes(p);
    *out = p;
    return 0;
}

/* As many of the supported names as a message holds; the whole list goes to the log. */
static int refuse(const char *name, struct cn_error *err)
{
    struct cn_buf all;
    char list[340];
    size_t used = 0, shown = 0;
    cn_buf_init(&all, 0);
    for (size_t i = 0; i < CN_ARRAY_LEN(name_rows); i++) {
        size_t n = strlen(name_rows[i].name);
        cn_buf_printf(&all, "%s%s", i ? ", " : "", name_rows[i].name);
        if (shown == i && used + n + 3 < sizeof list) {
            memcpy(list + used, name_rows[i].name, n);
            memcpy(list + used + n, ", ", 2);
            used += n + 2;
            shown++;
        }
    }
    list[used ? used - 2 : 0] = '\0';
    const char *text = cn_buf_cstr(&all);
    cn_log(CN_LOG_INFO, "text", "supported pre-tokenisers: %s", text ? text : list);
    cn_buf_fini(&all);
    return cn_fail_param(err, CN_EUNSUPP, "tokenizer.ggml.pre",
                         "pre-tokeniser '%.60s' is not supported; supported are %s and %zu more",
                         name, list, CN_ARRAY_LEN(name_rows) - shown);
}

int eng_pretok_new(const char *name, bool jit, struct eng_pretok **out, struct cn_error *err)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(name_rows); i++) {
        if (strcmp(name_rows[i].name, name) == 0)
            return build(name_rows[i].kind, name_rows[i].flags, jit, false, out, err);
    }
    return refuse(name, err);
}

const char *eng_pretok_kind(size_t i)
{
    return i < N_KINDS ? kind_names[i] : NULL;
}

struct eng_pretok *eng_pretok_by_kind(const char *kind, bool jit, bool regex_only)
{
    struct eng_pretok *p = NULL;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kind_names[i], kind) == 0)
            return build((enum kind)i, 0, jit, regex_only, &p, NULL) ? NULL : p;
    }
    return NULL;
}

void eng_pretok_free(struct eng_pretok *p)
{
    if (!p) return;
    for (size_t i = 0; i < MAX_STEPS; i++) {
        pcre2_code_free(p->step[i].code);
        free(p->step[i].own);
    }
    free(p->touch);
    free(p);
}

unsigned eng_pretok_flags(const struct eng_pretok *p)
{
    return p->flags;
}

bool eng_pretok_has_regex(const struct eng_pretok *p)
{
    return p->any_regex;
}

/* ---- splitting ------------------------------------------------------------------------------- */

struct split {
    const struct eng_pretok *pre;
    const char *text; /* valid UTF-8 where any step is an expression */
    int (*emit)(void *arg, size_t start, size_t len);
    void *arg;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct cn_error *err;
};

static int run_step(struct split *s, size_t k, size_t start, size_t len);

static int split_words(struct split *s, size_t k, size_t start, size_t len)
{
    const struct step *step = &s->pre->step[k];
    const struct eng_scan_words *w = step->scan->words;
    size_t end = start + len;
    int rc = 0;
    if (k + 1 == s->pre->n_steps) {
        while (start < end && rc == 0) {
            size_t n = eng_scan_word(w, step->classes, s->text + start, end - start);
            rc = s->emit(s->arg, start, n);
            start += n;
        }
        return rc;
    }
    while (start < end && rc == 0) {
        size_t n = eng_scan_word(w, step->classes, s->text + start, end - start);
        rc = run_step(s, k + 1, start, n);
        start += n;
    }
    return rc;
}

/* A gap since `done` and a match: both are pieces, if not empty. */
static int pieces(struct split *s, size_t k, size_t start, size_t *done, size_t at, size_t n)
{
    int rc = 0;
    if (at > *done) rc = run_step(s, k + 1, start + *done, at - *done);
    if (rc == 0 && n > 0) rc = run_step(s, k + 1, start + at, n);
    *done = at + n;
    return rc;
}

static int split_scan(struct split *s, size_t k, size_t start, size_t len)
{
    const struct step *step = &s->pre->step[k];
    size_t done = 0, state = 0, at, n;
    while (eng_scan_find(step->scan, step->classes, s->text + start, len, done, &state, &at, &n)) {
        int rc = pieces(s, k, start, &done, at, n);
        if (rc) return rc;
    }
    return pieces(s, k, start, &done, len, 0);
}

/* A piece for the first of the steps after k that touches it. */
static inline int touched(struct split *s, size_t k, const char *p, const char *end, unsigned touch)
{
    size_t start = (size_t)(p - s->text), len = (size_t)(end - p);
    unsigned after = touch >> (k + 1);
    if (!after) return s->emit(s->arg, start, len);
    return run_step(s, k + 1 + (size_t)__builtin_ctz(after), start, len);
}

static int split_runs(struct split *s, size_t k, size_t start, size_t len)
{
    const struct step *step = &s->pre->step[k];
    const char *done = s->text + start, *end = done + len;
    struct eng_scan_match r;
    while (eng_scan_run(step->scan, step->classes, s->pre->touch, (unsigned)k, done, end, &r)) {
        int rc = r.at > done ? touched(s, k, done, r.at, r.gap) : 0;
        if (rc == 0) rc = touched(s, k, r.at, r.end, r.match);
        if (rc) return rc;
        done = r.end;
    }
    return done < end ? touched(s, k, done, end, r.gap) : 0;
}

/* JIT code has a small stack; where it does not suffice the interpreter goes on. */
static int match_at(struct split *s, pcre2_code *code, const char *p, size_t len, size_t from)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)p, len, from, PCRE2_NO_UTF_CHECK, s->match, s->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)p, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         s->match, s->limits);
    return rc;
}

static size_t char_len(const char *p)
{
    uint8_t c = (uint8_t)*p;
    return c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

static int split_regex(struct split *s, size_t k, size_t start, size_t len)
{
    const char *p = s->text + start;
    size_t done = 0, from = 0;
    uint64_t limit = 64 * (uint64_t)len + 10000;
    pcre2_set_match_limit(s->limits, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    while (from < len) {
        int rc = match_at(s, s->pre->step[k].code, p, len, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY) return cn_fail(s->err, CN_ENOMEM, "out of memory");
        if (rc < 0)
            return cn_fail(s->err, CN_ELIMIT, "pre-tokeniser: PCRE2 error %d, %zu bytes", rc, len);
        const PCRE2_SIZE *m = pcre2_get_ovector_pointer(s->match);
        size_t at = m[0], n = m[1] - m[0];
        rc = pieces(s, k, start, &done, at, n);
        if (rc) return rc;
        from = n ? at + n : at + char_len(p + at);
    }
    return pieces(s, k, start, &done, len, 0);
}

static int run_step(struct split *s, size_t k, size_t start, size_t len)
{
    if (k == s->pre->n_steps ||
        (s->pre->pass[k] && s->pre->pass[k] >> eng_scan_common(s->text + start, len) & 1))
        return s->emit(s->arg, start, len);
    const struct step *step = &s->pre->step[k];
    if (!step->scan) return split_regex(s, k, start, len);
    if (step->scan->op == ENG_SCAN_WORDS) return split_words(s, k, start, len);
    if (step->scan->op == ENG_SCAN_RUN) return split_runs(s, k, start, len);
    return split_scan(s, k, start, len);
}

static int count_piece(void *arg, size_t start, size_t len)
{
    ++*(size_t *)arg;
    return 0;
}

/* Tried out on all characters of a kind: a step that told some of them apart would cut there. */
static void find_passes(struct eng_pretok *p)
{
    static const char *const all[] = {
        [ENG_COMMON_LETTERS] = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZaAbB",
        [ENG_COMMON_MARKS] = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~!",
    };
    for (size_t k = p->n_steps; k-- > 1;) {
        uint8_t pass = 0;
        for (unsigned c = ENG_COMMON_LETTERS; c <= ENG_COMMON_MARKS; c++) {
            size_t n = 0;
            struct split s = {.pre = p, .emit = count_piece, .arg = &n};
            for (size_t i = 0; i < 2; i++) { /* after a space, and without */
                s.text = all[c] + i;
                run_step(&s, k, 0, strlen(s.text));
            }
            if (n == 2) pass |= (uint8_t)(1u << c);
        }
        p->pass[k] = pass;
    }
}

/* A copy in which every byte that is not UTF-8 is U+007F, so that offsets stay the same. */
static char *valid_copy(const char *text, size_t n)
{
    char *copy = cn_malloc_array(n, 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    for (size_t i = 0; i < n;) {
        i += cn_utf8_valid_len(text + i, n - i);
        if (i < n) copy[i++] = 0x7F;
    }
    return copy;
}

int eng_pretok_split(const struct eng_pretok *p, const char *text, size_t n,
                     int (*emit)(void *arg, size_t start, size_t len), void *arg,
                     struct cn_error *err)
{
    struct split s = {.pre = p, .text = text, .emit = emit, .arg = arg, .err = err};
    char *copy = NULL;
    if (n == 0) return 0;
    if (p->any_regex) {
        s.match = pcre2_match_data_create(1, NULL);
        s.limits = pcre2_match_context_create(NULL);
        int rc = s.match && s.limits ? 0 : CN_ENOMEM;
        if (rc == 0 && cn_utf8_valid_len(text, n) < n) {
            s.text = copy = valid_copy(text, n);
            if (!copy) rc = CN_ENOMEM;
        }
        if (rc) {
            pcre2_match_data_free(s.match);
            pcre2_match_context_free(s.limits);
            return cn_fail(err, rc, "out of memory");
        }
    }
    int rc = run_step(&s, 0, 0, n);
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.limits);
    free(copy);
    return rc;
}
