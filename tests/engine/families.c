#include "families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    double worst, generic_ms;
    char sizes[512], speed[128], arch[64], shape[128];
} now;

static double prompt_ms(struct golden *g, const uint32_t *prompt, size_t n)
{
    double best = 1e9; /* of the table of docs/FAMILIES.md; no test looks at it */
    for (int i = 0; i < 20; i++) {
        golden_restart(g);
        uint64_t t = cn_now_ns();
        golden_feed(g, prompt, n, n, UINT32_MAX, NULL);
        double ms = (double)(cn_now_ns() - t) * 1e-6;
        best = ms < best ? ms : best;
    }
    return best;
}

/* What of the shapes is in the plan, by its ops. */
static void list_shape(const char *ops)
{
    static const struct {
        const char *op, *word;
    } words[] = {
        {" expert_matmul", "experts"}, {"attn_sinks", "sinks"},        {" select", "DSA"},
        {" head_matmul", "MLA"},       {" conv", "convolution"},       {" scan", "scan"},
        {" delta", "delta rule"},      {" layer_norm", "layer norms"}, {" softcap", "soft cap"},
        {" pos_scale", "temperature"}};
    now.shape[0] = 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++) {
        size_t at = strlen(now.shape);
        if (strstr(ops, words[i].op))
            snprintf(now.shape + at, sizeof(now.shape) - at, "%s%s", at ? ", " : "", words[i].word);
    }
    if (!now.shape[0]) snprintf(now.shape, sizeof(now.shape), "dense");
}

static void list_sizes(const struct kr_exec_info *x)
{
    static const char *const spans[] = {[KR_SPAN_ALL] = "all",
                                        [KR_SPAN_WINDOW] = "window",
                                        [KR_SPAN_CHUNK] = "chunk",
                                        [KR_SPAN_BOTH] = "both ways"};
    char kv[256] = "", state[64] = "none";
    for (uint32_t g = 0; g < x->n_groups; g++) {
        const struct kr_kv_group *kg = &x->groups[g];
        size_t at = strlen(kv);
        if (kg->span == KR_SPAN_STATE)
            snprintf(state, sizeof(state), "%llu", (unsigned long long)kg->block_bytes);
        else
            snprintf(kv + at, sizeof(kv) - at, "%s%s %llu", at ? ", " : "", spans[kg->span],
                     (unsigned long long)kg->block_bytes / GOLDEN_BLOCK_TOKENS);
    }
    snprintf(now.sizes, sizeof(now.sizes), "%s | %s", kv[0] ? kv : "none", state);
}

void families_note(struct golden *g, const char *name, enum kr_isa isa, double worst,
                   const uint32_t *prompt, size_t n)
{
    struct cn_buf text;
    cn_buf_init(&text, 0);
    assert_int_equal(kr_exec_describe(g->exec, &text), 0);
    if (isa != KR_ISA_GENERIC && strstr(cn_buf_cstr(&text), "(generic"))
        fail_msg("%s on %s runs an op in generic C:\n%s", name, kr_isa_name(isa),
                 cn_buf_cstr(&text));
    if (isa == KR_ISA_GENERIC) memset(&now, 0, sizeof(now));
    list_shape(cn_buf_cstr(&text));
    cn_buf_fini(&text);
    if (!getenv("CONIFER_FAMILIES")) return;
    now.worst = worst > now.worst ? worst : now.worst;
    snprintf(now.arch, sizeof(now.arch), "%s", eng_model_info(g->model)->arch);
    list_sizes(kr_exec_info(g->exec));
    double ms = prompt_ms(g, prompt, n);
    if (isa == KR_ISA_GENERIC) {
        now.generic_ms = ms;
        return;
    }
    size_t at = strlen(now.speed);
    snprintf(now.speed + at, sizeof(now.speed) - at, "%s%s %.1fx", at ? ", " : "", kr_isa_name(isa),
             now.generic_ms / ms);
}

void families_end(const char *name)
{
    const char *path = getenv("CONIFER_FAMILIES");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s | %s | %s | %.5f | %s | %s\n", now.arch, now.shape, name, now.worst, now.sizes,
            now.speed[0] ? now.speed : "generic only");
    fclose(f);
}
