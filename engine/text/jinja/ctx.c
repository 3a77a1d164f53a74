/* The chat template interpreter's context: failing, memory, budgets. One thread at a time; owns the
 * arena of one compilation or one rendering. */
#include "engine/text/jinja/value.h"

#include <stdio.h>
#include <string.h>

static _Noreturn void leave(struct eng_jctx *c, int code, const char *text)
{
    if (code == CN_ETEMPLATE && c->line)
        c->code = cn_fail(c->err, code, "chat template, line %u: %s", c->line, text);
    else
        c->code = cn_fail(c->err, code, "chat template: %s", text);
    longjmp(c->jmp, 1);
}

_Noreturn void eng_j_fail(struct eng_jctx *c, int code, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    /* Do not end within a character. */
    text[cn_utf8_valid_len(text, strlen(text))] = '\0';
    leave(c, code, text);
}

void *eng_j_alloc(struct eng_jctx *c, size_t size)
{
    if (size > c->max_memory || c->arena.used + c->heap_bytes > c->max_memory - size)
        eng_j_fail(c, CN_ELIMIT, "needs more than %zu bytes of memory", c->max_memory);
    void *p = cn_arena_alloc(&c->arena, size);
    if (!p) {
        if (c->arena.max && size > c->arena.max - CN_MIN(c->arena.max, c->arena.used))
            eng_j_fail(c, CN_ELIMIT, "needs more than %zu bytes of memory", c->max_memory);
        eng_j_fail(c, CN_ENOMEM, "out of memory");
    }
    return p;
}

void *eng_j_alloc_n(struct eng_jctx *c, size_t n, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(n, size, &total))
        eng_j_fail(c, CN_ELIMIT, "needs more than %zu bytes of memory", c->max_memory);
    return eng_j_alloc(c, total);
}

void *eng_j_room(struct eng_jctx *c, void *p, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return p;
    size_t grown = *cap ? *cap * 2 : 4;
    void *q = eng_j_alloc_n(c, grown, size);
    if (n) memcpy(q, p, n * size);
    *cap = grown;
    return q;
}

static void check_clock(struct eng_jctx *c)
{
    uint64_t now = cn_now_ns();

    c->work = 0;
    if (c->max_ns && now - c->started_ns > c->max_ns)
        eng_j_fail(c, CN_ELIMIT, "rendering took longer than %llu ms",
                   (unsigned long long)(c->max_ns / 1000000));
    if (!c->keep_going) return;
    if (!c->keep_going(c->going_arg)) eng_j_fail(c, CN_ECANCELLED, "cancelled");
    c->started_ns += cn_now_ns() - now; /* waiting does not count as rendering time */
}

void eng_j_work(struct eng_jctx *c, uint64_t n)
{
    c->work += n;
    if (c->work >= 65536) check_clock(c);
}

void eng_j_step(struct eng_jctx *c, uint64_t n)
{
    if (n > c->max_steps - c->steps)
        eng_j_fail(c, CN_ELIMIT, "rendering took more than %llu steps",
                   (unsigned long long)c->max_steps);
    c->steps += n;
    eng_j_work(c, 64 * n);
}

void eng_j_enter(struct eng_jctx *c)
{
    /* A call nests several levels of the interpreter, so the limit is a multiple of max_depth. */
    if (++c->frames > 16 * (uint64_t)c->max_depth) eng_j_fail(c, CN_ELIMIT, "nested too deeply");
}

const char *eng_j_quote(struct eng_jctx *c, const struct eng_jstr *s)
{
    size_t n = cn_utf8_valid_len(s->p, CN_MIN(s->n, 60));
    char *z = eng_j_alloc(c, n + 4);
    for (size_t i = 0; i < n; i++)
        z[i] = (unsigned char)s->p[i] < 32 || s->p[i] == 127 ? ' ' : s->p[i];
    if (n < s->n) memcpy(z + n, "...", 3);
    return z;
}
