/* What a file recommends to draw with. A hint fails no load: one of another type, or that is not
 * there, is no recommendation. Any thread; owns nothing. */
#include "engine/model.h"

#include <math.h>

static float read_hint(const struct eng_gguf *g, const char *key)
{
    float f;
    uint64_t n;

    if (!eng_gguf_f32(g, key, &f, NULL)) return f;
    return eng_gguf_u64(g, key, &n, NULL) ? NAN : (float)n;
}

void eng_read_recommended(const struct eng_gguf *g, struct eng_recommended *out)
{
    *out = (struct eng_recommended){
        .temperature = read_hint(g, "general.sampling.temp"),
        .top_k = read_hint(g, "general.sampling.top_k"),
        .top_p = read_hint(g, "general.sampling.top_p"),
        .min_p = read_hint(g, "general.sampling.min_p"),
        .repetition_penalty = read_hint(g, "general.sampling.penalty_repeat"),
    };
}
