/* See devices.h. */
#include "tests/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE(name) #name,
const char *const dev_kinds[] = {
#include "kernels/devices.def"
    NULL};
#undef DEVICE

static const char *kind_of(const char *variable)
{
    const char *kind = getenv(variable);
    if (!kind || !*kind) return "cpu";
    for (size_t i = 0; dev_kinds[i]; i++)
        if (!strcmp(kind, dev_kinds[i])) return dev_kinds[i];
    fprintf(stderr, "%s: there is no device %s; there are %s\n", variable, kind, kr_device_kinds());
    exit(1);
}

const char *dev_kind(void)
{
    return kind_of("CONIFER_DEVICE");
}

const char *dev_reference(void)
{
    return kind_of("CONIFER_REFERENCE");
}

bool dev_is_cpu(void)
{
    return !strcmp(dev_kind(), "cpu");
}

int dev_new_of(const char *kind, enum kr_isa isa, uint32_t threads, struct kr_device **out,
               struct cn_error *err)
{
    struct kr_device_opts o = {.cpu = {.isa = isa, .n_threads = threads}};
    int rc = kr_device_new(kind, &o, out, err);
    if (rc || isa == KR_ISA_AUTO || isa == KR_ISA_GENERIC) return rc;
    if (!strncmp(kr_device_path(*out), "cpu-", 4)) return 0;
    kr_device_free(*out);
    *out = NULL;
    return cn_fail(err, CN_EUNSUPP, "%s has no instructions to choose from", kind);
}

int dev_new(enum kr_isa isa, uint32_t threads, struct kr_device **out, struct cn_error *err)
{
    return dev_new_of(dev_kind(), isa, threads, out, err);
}

bool dev_skip_program(const char *why)
{
    if (dev_is_cpu()) return false;
    fprintf(stderr, "skipped on %s: %s\n", dev_kind(), why);
    return true;
}
