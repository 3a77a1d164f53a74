/* Checks and times the kernels of an ISA.
 *
 * usage: parity [--isa NAME] [--op NAME] [--type NAME] [--json]
 *               [--bench [--shape ROWSxCOLS] [--batch N,N-N,...] [--threads N] [--rounds N]
 *                        [--min-ms N]]
 * Exits 0 when all is well, 1 on a difference, 77 when the machine lacks the ISA. */
#include "tests/kernels/parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "tests/devices.h"

const enum kr_type parity_types[] = {
    KR_F32,    KR_F16,    KR_BF16,  KR_Q4_0,  KR_Q4_1,  KR_Q5_0, KR_Q5_1,
    KR_Q8_0,   KR_Q2_K,   KR_Q3_K,  KR_Q4_K,  KR_Q5_K,  KR_Q6_K, KR_IQ3_S,
    KR_IQ4_NL, KR_IQ4_XS, KR_TQ1_0, KR_TQ2_0, KR_MXFP4,
};
const size_t parity_n_types = CN_ARRAY_LEN(parity_types);

enum { GUARD = 65, MAX_REPORTS = 20 };
static const uint32_t canary_bits = 0xc0ffee01u;

bool parity_check(struct parity *p, bool ok, const char *fmt, ...)
{
    p->checks++;
    if (ok) return true;
    if (p->failures++ < MAX_REPORTS) {
        va_list ap;
        fprintf(stderr, "parity: %s: ", p->isa_name);
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        fputc('\n', stderr);
    }
    return false;
}

void parity_figure(struct parity *p, const char *op, const char *type, uint32_t rows, uint32_t cols,
                   uint32_t batch, double seconds, double ops, double bytes)
{
    const char *text = "%-8s %-8s %-5s %6ux%-6u batch %4u %10.2f us %9.2f GOP/s %8.2f GB/s\n";
    const char *json = "{\"isa\":\"%s\",\"op\":\"%s\",\"type\":\"%s\",\"rows\":%u,\"cols\":%u,"
                       "\"batch\":%u,\"us\":%.3f,\"gops\":%.3f,\"gbps\":%.3f}\n";
    const char *form = p->opts.json ? json : text;
    printf(form, p->isa_name, op, type, rows, cols, batch, seconds * 1e6, ops / seconds * 1e-9,
           bytes / seconds * 1e-9);
    fflush(stdout);
}

uint32_t parity_u32(struct parity_rng *r)
{
    r->s ^= r->s >> 12;
    r->s ^= r->s << 25;
    r->s ^= r->s >> 27;
    return (uint32_t)(r->s * 0x2545f4914f6cdd1dull >> 32);
}

float parity_uniform(struct parity_rng *r)
{
    return (float)(int32_t)parity_u32(r) * 0x1p-31f;
}

void *parity_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    if (!p) {
        fprintf(stderr, "parity: out of memory\n");
        exit(1);
    }
    return p;
}

void parity_area_new(struct parity_area *a, size_t n)
{
    a->n = n;
    a->mem = parity_alloc((n + 2 * GUARD) * sizeof(float));
    a->data = a->mem + GUARD;
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        memcpy(&a->mem[i], &canary_bits, 4);
}

bool parity_area_intact(const struct parity_area *a)
{
    for (size_t i = 0; i < GUARD; i++)
        if (memcmp(&a->mem[i], &canary_bits, 4) || memcmp(&a->data[a->n + i], &canary_bits, 4))
            return false;
    return true;
}

void parity_area_free(struct parity_area *a)
{
    free(a->mem);
}

bool parity_wants(const struct parity *p, const char *op, enum kr_type type)
{
    if (p->opts.op && strcmp(p->opts.op, op)) return false;
    return !p->opts.type || !strcmp(p->opts.type, kr_type_info(type)->name);
}

static int usage(void)
{
    fprintf(stderr, "usage: parity [--isa NAME] [--op matmul|quantize|conv|scan|delta] "
                    "[--type NAME] [--json]\n"
                    "              [--bench [--shape ROWSxCOLS] [--batch N,N-N,...] [--threads N]\n"
                    "                       [--rounds N] [--min-ms N]]\n");
    return 2;
}

static bool parse_isa(const char *s, enum kr_isa *isa)
{
    *isa = kr_isa_named(s);
    return *isa != KR_N_ISAS;
}

static bool parse_options(int argc, char **argv, struct parity_opts *o)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--bench")) {
            o->bench = true;
            continue;
        }
        if (!strcmp(a, "--json")) {
            o->json = true;
            continue;
        }
        if (!v) return false;
        i++;
        if (!strcmp(a, "--isa")) {
            if (!parse_isa(v, &o->isa)) return false;
        } else if (!strcmp(a, "--op")) {
            o->op = v;
        } else if (!strcmp(a, "--type")) {
            o->type = v;
        } else if (!strcmp(a, "--shape")) {
            if (sscanf(v, "%ux%u", &o->rows, &o->cols) != 2 || !o->rows || !o->cols) return false;
        } else if (!strcmp(a, "--min-ms")) {
            o->min_ms = (uint32_t)strtoul(v, NULL, 10);
        } else if (!strcmp(a, "--threads")) {
            o->threads = (uint32_t)strtoul(v, NULL, 10);
        } else if (!strcmp(a, "--rounds")) {
            o->rounds = (uint32_t)strtoul(v, NULL, 10);
        } else if (!strcmp(a, "--batch")) {
            o->batches = v;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct parity p = {.opts = {.isa = KR_ISA_AUTO, .min_ms = 10, .rounds = 5}};
    struct kr_matmul_kernels k;
    if (!parse_options(argc, argv, &p.opts)) return usage();
    if (dev_skip_program("the CPU's kernels")) return DEV_SKIPPED;
    if (!kr_matmul_fill(p.opts.isa, &k)) {
        fprintf(stderr, "parity: this machine lacks the ISA\n");
        return DEV_SKIPPED;
    }
    p.isa_name = k.name;
    if (p.opts.bench) {
        parity_matmul_bench(&p);
        parity_recurrent_bench(&p);
        return 0;
    }
    parity_quantize(&p);
    parity_matmul(&p);
    if (p.opts.json)
        printf("{\"isa\":\"%s\",\"checks\":%llu,\"failures\":%llu}\n", p.isa_name,
               (unsigned long long)p.checks, (unsigned long long)p.failures);
    else
        printf("parity: %s: %llu checks, %llu failed\n", p.isa_name, (unsigned long long)p.checks,
               (unsigned long long)p.failures);
    if (p.checks == 0) fprintf(stderr, "parity: nothing was checked\n");
    return p.failures || p.checks == 0 ? 1 : 0;
}
