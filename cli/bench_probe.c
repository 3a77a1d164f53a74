/* What the machine reaches now with the config's kernels and threads: conifer bench --probe, and
 * the brackets around measurements. Main thread, on a device of its own. */
#include "cli/bench.h"

#include <stdio.h>

#define PROBE_NS   200000000u
#define BRACKET_NS 16000000u
/* Bytes read where little memory is free, or where the amount is unknown. */
#define LEAST_BYTES ((uint64_t)64 << 20)

uint64_t cli_bench_probe_room(void)
{
    return CN_MAX(cfg_free_memory() / 4, LEAST_BYTES);
}

int cli_bench_probe_now(struct kr_device *d, uint64_t most, uint64_t weight_bytes,
                        struct bench_machine *out, struct cn_error *err)
{
    int rc = kr_device_probe(d, most, BRACKET_NS, &out->probe, err);
    out->again_bytes_s = 0;
    if (!rc && weight_bytes)
        rc = kr_device_probe_read(d, CN_MIN(weight_bytes, most), BRACKET_NS, &out->again_bytes_s,
                                  err);
    return rc;
}

static bool near(double a, double b)
{
    return CN_MIN(a, b) >= CN_MAX(a, b) * (1 - BENCH_STEADY);
}

bool cli_bench_same_machine(const struct bench_machine *a, const struct bench_machine *b)
{
    return near(a->probe.read_bytes_s, b->probe.read_bytes_s) &&
           near(a->probe.int8_ops_s, b->probe.int8_ops_s);
}

static void put_probe(struct cn_buf *out, const struct kr_device *d, const struct kr_probe *p,
                      bool json)
{
    if (json)
        cn_buf_printf(out,
                      "{\"device\":\"%s\",\"threads\":%u,\"read_bytes_s\":%.0f,"
                      "\"int8_ops_s\":%.0f,\"fma_flops_s\":%.0f}\n",
                      kr_device_path(d), kr_device_threads(d), p->read_bytes_s, p->int8_ops_s,
                      p->fma_flops_s);
    else
        cn_buf_printf(out,
                      "%s, threads: %u\n"
                      "  read bandwidth       %9.2f GB/s\n"
                      "  8-bit products       %9.3f Tops/s\n"
                      "  float products       %9.1f Gflops/s\n",
                      kr_device_path(d), kr_device_threads(d), p->read_bytes_s / 1e9,
                      p->int8_ops_s / 1e12, p->fma_flops_s / 1e9);
}

int cli_bench_probe(const struct cfg *cfg, bool json, struct cn_error *err)
{
    struct kr_device *d = NULL;
    struct kr_probe p;
    struct cn_buf out;
    int rc = rt_device_new(cfg, &d, err);

    if (rc) return rc;
    cn_buf_init(&out, 0);
    rc = kr_device_probe(d, cli_bench_probe_room(), PROBE_NS, &p, err);
    if (!rc) {
        put_probe(&out, d, &p, json);
        fwrite(out.data, 1, out.len, stdout);
    }
    cn_buf_fini(&out);
    kr_device_free(d);
    return rc;
}
