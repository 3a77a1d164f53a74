#include "base/base.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define COUNT_AGAIN_NS 10000000000ull

enum id {
#define SERIES(id, name, type, labels, help) ID_##id,
#include "base/process.def"
#undef SERIES
    N_SERIES
};
static const struct {
    const char *name, *type, *help;
} all_series[N_SERIES] = {
#define SERIES(id, name, type, labels, help) {name, #type, help},
#include "base/process.def"
#undef SERIES
};

static void put_head(enum id id, struct cn_buf *out)
{
    cn_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", all_series[id].name, all_series[id].help,
                  all_series[id].name, all_series[id].type);
}

static void put(enum id id, double value, struct cn_buf *out)
{
    if (isnan(value)) return;
    put_head(id, out);
    cn_buf_printf(out, "%s %.15g\n", all_series[id].name, value);
}

static double wall_s(clockid_t clock)
{
    struct timespec t = {0};

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(void)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u)) return NAN;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

#ifdef __linux__
/* The text of a small file of /proc; empty when it cannot be read. */
static void read_text(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, size - 1, f) : 0;

    out[n] = 0;
    if (f) fclose(f);
}

/* Field 22 of stat: ticks of the system's life, in which it may have slept. */
static double start_s(void)
{
    char text[1024];
    unsigned long long ticks;

    read_text("/proc/self/stat", text, sizeof text);
    const char *s = strrchr(text, ')'); /* the name may hold anything */
    if (!s || sscanf(s + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d"
                     " %llu",
                     &ticks) != 1)
        return wall_s(CLOCK_REALTIME);
    double age = wall_s(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    return wall_s(CLOCK_REALTIME) - age;
}

static void put_memory(struct cn_buf *out)
{
    double page = (double)sysconf(_SC_PAGESIZE);
    unsigned long long total, resident;
    char text[256];

    read_text("/proc/self/statm", text, sizeof text);
    if (sscanf(text, "%llu %llu", &total, &resident) != 2) return;
    put(ID_resident, (double)resident * page, out);
    put(ID_virtual, (double)total * page, out);
}

/* Newer kernels say how many there are as the size of the folder. */
static double open_fds(struct cn_process *p)
{
    uint64_t now = cn_now_ns(), n = 0;
    struct stat st;
    DIR *d;

    if (stat("/proc/self/fd", &st)) return NAN;
    if (st.st_size > 0) return (double)st.st_size;
    if (p->counted_ns && now - p->counted_ns < COUNT_AGAIN_NS) return p->open_fds;
    if (!(d = opendir("/proc/self/fd"))) return NAN;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    p->counted_ns = now;
    p->open_fds = n ? (double)(n - 1) : 0; /* without the folder itself */
    return p->open_fds;
}
#else
static double start_s(void)
{
    return wall_s(CLOCK_REALTIME);
}

/* There is only the peak to be had. */
static void put_memory(struct cn_buf *out)
{
    struct rusage u;
#ifdef __APPLE__
    const double unit = 1;
#else
    const double unit = 1024;
#endif

    if (!getrusage(RUSAGE_SELF, &u)) put(ID_resident, (double)u.ru_maxrss * unit, out);
}

static double open_fds(struct cn_process *p)
{
    return NAN;
}
#endif

static double max_fds(void)
{
    struct rlimit fds;

    return getrlimit(RLIMIT_NOFILE, &fds) ? NAN : (double)fds.rlim_cur;
}

void cn_process_render(struct cn_process *p, const char *version, struct cn_buf *out)
{
    if (p->start_s == 0) p->start_s = start_s();
    put_head(ID_build, out);
    cn_buf_printf(out, "%s{version=\"%s\"} 1\n", all_series[ID_build].name, version);
    put(ID_cpu, cpu_s(), out);
    put_memory(out);
    put(ID_open_fds, open_fds(p), out);
    put(ID_max_fds, max_fds(), out);
    put(ID_start, p->start_s, out);
}

void cn_signals_take(bool taken)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(taken ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}
