/* Allocations that a test can make fail, or count: included once, by a program that defines
 *     static bool alloc_fails(void)
 * before, and is linked with -Wl,--wrap=malloc, calloc and realloc (reaching static libraries
 * too). */
#ifndef TESTS_WRAP_ALLOC_H
#define TESTS_WRAP_ALLOC_H

#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    return alloc_fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return alloc_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return alloc_fails() ? NULL : __real_realloc(p, n);
}

#endif
