/* conifer bench --probe: what the machine reaches now with the config's kernels and threads. */
#include "cli/bench.h"

#include <stdio.h>

#define PROBE_NS 200000000u

static void put_probe(struct cn_buf *out, const struct kr_device *d, const struct kr_probe *p,
                      bool json)
{
    if (json)
        cn_buf_printf(out,
                      "{\"path\":\"%s\",\"threads\":%u,\"read_bytes_s\":%.0f,"
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
    rc = kr_device_probe(d, PROBE_NS, &p, err);
    if (!rc) {
        put_probe(&out, d, &p, json);
        fwrite(out.data, 1, out.len, stdout);
    }
    cn_buf_fini(&out);
    kr_device_free(d);
    return rc;
}
