/* What the machine can give: memory and processors, as the kernel and the control groups say.
 * Any thread; reads files only. Limits hold at every level of the tree above the process, so
 * each level is asked. */
#include "config/config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#endif

#define TEXT_MAX 16384

/* Reads root + path into out (NUL-terminated, cut at the buffer's end); false when it cannot. */
static bool slurp(const char *root, const char *path, char *out, size_t cap)
{
    char full[PATH_MAX];
    ssize_t got;
    size_t n = 0;
    int fd;

    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return false;
    fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    while (n + 1 < cap && (got = read(fd, out + n, cap - 1 - n)) > 0)
        n += (size_t)got;
    close(fd);
    out[n] = '\0';
    return n > 0;
}

/* The number after `label` at the start of a line. */
static bool field(const char *text, const char *label, uint64_t *out)
{
    size_t n = strlen(label);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, label, n) || (line[n] != ' ' && line[n] != ':' && line[n] != '\t'))
            continue;
        return sscanf(line + n + 1, "%" SCNu64, out) == 1;
    }
    return false;
}

/* One number in a file of a control group; "max" and v1's huge values mean no limit. */
static bool number(const char *root, const char *dir, const char *file, uint64_t *out)
{
    char path[PATH_MAX], text[64];

    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) return false;
    return slurp(root, path, text, sizeof text) && sscanf(text, "%" SCNu64, out) == 1;
}

/* What one group still allows, or UINT64_MAX. Page cache that can be dropped is not counted as
 * used. */
static uint64_t group_room(const char *root, const char *dir, bool v2)
{
    char path[PATH_MAX], stat[TEXT_MAX];
    uint64_t limit = UINT64_MAX, soft = UINT64_MAX, used = 0, cache = 0;

    if (!number(root, dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit)) limit = UINT64_MAX;
    if (v2 && number(root, dir, "memory.high", &soft)) limit = CN_MIN(limit, soft);
    if (limit >= (uint64_t)1 << 60) return UINT64_MAX;
    if (!number(root, dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used)) return limit;
    if (snprintf(path, sizeof path, "%s/memory.stat", dir) < (int)sizeof path &&
        slurp(root, path, stat, sizeof stat))
        field(stat, v2 ? "inactive_file" : "total_inactive_file", &cache);
    used -= CN_MIN(used, cache);
    return limit > used ? limit - used : 0;
}

/* The path of this process in a hierarchy: v2's line is "0::/path", v1's "N:a,memory,b:/path". */
static bool group_path(const char *text, const char *controller, char *out, size_t cap)
{
    for (const char *line = text; line && *line;) {
        const char *end = strchr(line, '\n'), *first = strchr(line, ':');
        const char *second = first ? strchr(first + 1, ':') : NULL;
        size_t len = end ? (size_t)(end - line) : strlen(line);

        if (second && second < line + len) {
            size_t n = (size_t)(second - first - 1), path = (size_t)(line + len - second - 1);
            char list[256];

            snprintf(list, sizeof list, ",%.*s,", (int)CN_MIN(n, (size_t)250), first + 1);
            char want[32];
            snprintf(want, sizeof want, ",%s,", controller);
            if ((*controller ? strstr(list, want) != NULL : n == 0) && path < cap) {
                memcpy(out, second + 1, path);
                out[path] = '\0';
                return true;
            }
        }
        line = end ? end + 1 : NULL;
    }
    return false;
}

/* Calls fn for the group of this process and each one above it, up to the mount point. */
static uint64_t climb(const char *root, const char *mount, const char *path, bool v2,
                      uint64_t (*fn)(const char *root, const char *dir, bool v2))
{
    char dir[PATH_MAX];
    size_t floor = strlen(mount);
    uint64_t least = UINT64_MAX;

    if (snprintf(dir, sizeof dir, "%s%s", mount, strcmp(path, "/") ? path : "") >= (int)sizeof dir)
        return least;
    for (;;) {
        uint64_t room = fn(root, dir, v2);
        char *slash = strrchr(dir, '/');

        least = CN_MIN(least, room);
        if (strlen(dir) <= floor || !slash || (size_t)(slash - dir) < floor) break;
        *slash = '\0';
    }
    return least;
}

static uint64_t least_over_groups(const char *root, const char *controller, const char *v1_mount,
                                  uint64_t (*fn)(const char *, const char *, bool))
{
    char text[TEXT_MAX], path[PATH_MAX];
    uint64_t least = UINT64_MAX, room;

    if (!slurp(root, "/proc/self/cgroup", text, sizeof text)) return least;
    if (group_path(text, "", path, sizeof path)) {
        least = climb(root, "/sys/fs/cgroup", path, true, fn);
        room = climb(root, "/sys/fs/cgroup/unified", path, true, fn); /* hybrid layout */
        least = CN_MIN(least, room);
    }
    if (group_path(text, controller, path, sizeof path)) {
        room = climb(root, v1_mount, path, false, fn);
        least = CN_MIN(least, room);
    }
    return least;
}

uint64_t cfg_free_memory_at(const char *root)
{
    char text[TEXT_MAX];
    uint64_t kib, bytes = 0, room;

    if (slurp(root, "/proc/meminfo", text, sizeof text) &&
        (field(text, "MemAvailable", &kib) || field(text, "MemFree", &kib)))
        bytes = kib <= UINT64_MAX / 1024 ? kib * 1024 : 0;
    room = least_over_groups(root, "memory", "/sys/fs/cgroup/memory", group_room);
    if (room == UINT64_MAX) return bytes;
    return bytes ? CN_MIN(bytes, room) : room;
}

uint64_t cfg_free_memory(void)
{
#ifdef __APPLE__
    vm_statistics64_data_t vm;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;

    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &n)) return 0;
    return ((uint64_t)vm.free_count + vm.inactive_count) * (uint64_t)vm_kernel_page_size;
#else
    return cfg_free_memory_at("");
#endif
}

uint64_t cfg_engine_memory(const struct cfg *cfg)
{
    uint64_t there = cfg_free_memory();
    uint64_t kept = (uint64_t)cfg->server.memory_bytes + (uint64_t)cfg->kv.host_memory_bytes;
    return there - CN_MIN(kept, there / 4 * 3);
}

/* Processors' worth of time that one group allows, rounded up, or UINT64_MAX. */
static uint64_t group_cores(const char *root, const char *dir, bool v2)
{
    char path[PATH_MAX], text[64];
    uint64_t quota, period = 100000;

    if (v2) {
        if (snprintf(path, sizeof path, "%s/cpu.max", dir) >= (int)sizeof path) return UINT64_MAX;
        if (!slurp(root, path, text, sizeof text)) return UINT64_MAX;
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period) < 1) return UINT64_MAX;
    } else {
        if (!number(root, dir, "cpu.cfs_quota_us", &quota)) return UINT64_MAX;
        number(root, dir, "cpu.cfs_period_us", &period);
    }
    if (quota == 0 || period == 0 || quota > (uint64_t)1 << 60) return UINT64_MAX; /* -1: none */
    return quota / period + (quota % period != 0);
}

int cfg_cores(void)
{
    uint64_t cores = 1, room;
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    if (online > 0) cores = (uint64_t)online;
#ifdef __linux__
    for (int room_for = 1024; room_for <= 65536; room_for *= 2) { /* big machines need a big set */
        cpu_set_t *set = CPU_ALLOC(room_for);
        size_t size = CPU_ALLOC_SIZE(room_for);
        bool done = set && sched_getaffinity(0, size, set) == 0;

        if (done) cores = (uint64_t)CPU_COUNT_S(size, set);
        if (set) CPU_FREE(set);
        if (done || !set) break;
    }
#endif
    room = least_over_groups("", "cpu", "/sys/fs/cgroup/cpu", group_cores);
    cores = CN_MIN(cores, room);
    return cores ? (int)CN_MIN(cores, (uint64_t)INT_MAX) : 1;
}
