/* devices: the device that a test program runs on. One list for all tests: kernels/devices.def.
 *
 * CONIFER_DEVICE names the kind, "cpu" without it. A test makes its devices with dev_new, and is
 * about every kind. What is about the CPU itself (its instructions, threads, scratch) says so with
 * DEV_CPU_ONLY or dev_skip_program, and counts as skipped on other kinds. Tests only. */
#ifndef TESTS_DEVICES_H
#define TESTS_DEVICES_H

#include "kernels/kernels.h"

/* All kinds, ended by NULL, for a test that goes through them by itself. */
extern const char *const dev_kinds[];
/* The kind that this run is about. An unknown name ends the program as failed. */
const char *dev_kind(void);
bool dev_is_cpu(void);
/* The kind whose answers are the truth for dev_kind(). CONIFER_REFERENCE names it, "cpu" without
 * it. A device whose sums have other bits names itself: its answers under load are then compared
 * with those to the same requests alone. */
const char *dev_reference(void);
/* A device of that kind, with nothing special about it. CN_EUNSUPP: it has no such instructions; a
 * kind without ISAs (its path does not begin with "cpu-") takes AUTO and GENERIC, and so runs what
 * goes through all ISAs once. */
int dev_new(enum kr_isa isa, uint32_t threads, struct kr_device **out, struct cn_error *err);
/* As that, of any kind of the list. */
int dev_new_of(const char *kind, enum kr_isa isa, uint32_t threads, struct kr_device **out,
               struct cn_error *err);

/* In a test of cmocka: the rest of it is for the CPU; `why` is static text. */
#define DEV_CPU_ONLY(why)                                                                          \
    do {                                                                                           \
        if (!dev_is_cpu()) {                                                                       \
            print_message("skipped on %s: %s\n", dev_kind(), why);                                 \
            skip();                                                                                \
        }                                                                                          \
    } while (0)
/* In main: true where the whole program is for the CPU and this run is about another kind; main
 * then returns DEV_SKIPPED. */
bool dev_skip_program(const char *why);
#define DEV_SKIPPED 77 /* as meson counts it */

#endif
