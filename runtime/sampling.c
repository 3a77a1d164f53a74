/* What a request draws with that does not say: one whole set, of the file, else of the catalog,
 * else what suits most models; then what the config names, and what the request names, each field
 * by itself. Any thread; owns nothing. */
#include "runtime/runtime.h"

#include "engine/engine.h"

#define FOR_MOST "temperature=0.7, top_p=0.95, min_p=0.05"

void rt_sampling_apply(struct eng_sampling *s, const struct cfg_sampling *asked)
{
    const double *v = asked->v;
    unsigned given = asked->given;

    /* Always the likeliest token: what would make another one the likeliest is left out, too. */
    if (given >> CFG_S_TEMPERATURE & 1 && v[CFG_S_TEMPERATURE] == 0) {
        s->top_k = 0;
        s->top_p = s->repetition_penalty = 1;
        s->temperature = s->min_p = s->presence_penalty = s->frequency_penalty = 0;
    }
    if (given >> CFG_S_TEMPERATURE & 1) s->temperature = (float)v[CFG_S_TEMPERATURE];
    if (given >> CFG_S_TOP_P & 1) s->top_p = (float)v[CFG_S_TOP_P];
    if (given >> CFG_S_TOP_K & 1) s->top_k = (uint32_t)v[CFG_S_TOP_K];
    if (given >> CFG_S_MIN_P & 1) s->min_p = (float)v[CFG_S_MIN_P];
    if (given >> CFG_S_REPETITION & 1) s->repetition_penalty = (float)v[CFG_S_REPETITION];
    if (given >> CFG_S_PRESENCE & 1) s->presence_penalty = (float)v[CFG_S_PRESENCE];
    if (given >> CFG_S_FREQUENCY & 1) s->frequency_penalty = (float)v[CFG_S_FREQUENCY];
}

static void take(struct cfg_sampling *out, enum cfg_sampling_field f, double v)
{
    if (!cfg_sampling_ok(f, v)) return; /* NAN is not */
    out->v[f] = v;
    out->given |= 1u << f;
}

static struct cfg_sampling of_file(const struct eng_recommended *r)
{
    struct cfg_sampling s = {0};

    take(&s, CFG_S_TEMPERATURE, (double)r->temperature);
    take(&s, CFG_S_TOP_P, (double)r->top_p);
    take(&s, CFG_S_TOP_K, (double)r->top_k);
    take(&s, CFG_S_MIN_P, (double)r->min_p);
    take(&s, CFG_S_REPETITION, (double)r->repetition_penalty);
    return s;
}

void rt_sampling_for(const char *path, const struct eng_recommended *file,
                     const struct cfg_sampling *config, struct rt_sampling *out)
{
    struct cfg_sampling base = of_file(file);
    const struct cfg_model *known = base.given ? NULL : cfg_catalog_of(path);
    const char *text = known ? cfg_catalog_sampling(known->name) : NULL;

    eng_sampling_defaults(&out->v);
    out->from = base.given ? "file" : text ? "catalog" : "default";
    if (!base.given && cfg_sampling_read(text ? text : FOR_MOST, &base, NULL)) base.given = 0;
    rt_sampling_apply(&out->v, &base);
    rt_sampling_apply(&out->v, config);
    if (config->given) out->from = "config";
}
