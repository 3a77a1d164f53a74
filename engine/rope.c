/* rope: frequencies of the rotary position embedding, every scaling folded in.
 *
 * Pair i turns by position * inv_freq[i], inv_freq[i] = base^(-2i/n) / factor_i, with
 *   linear: divided by the scaling factor;
 *   llama3: factor_i from the tensor rope_freqs;
 *   longrope: factor_i from rope_factors_long or _short, whichever the context asks for; cos and
 *     sin are multiplied by the file's attn_factor;
 *   yarn (Peng et al., "YaRN", 2023): between 1/factor for slow pairs and 1 for fast ones, by a
 *     ramp over i between the pairs that turn yarn_beta_fast (32) and yarn_beta_slow (1) times in
 * the original context, which are rounded outwards; cos and sin are multiplied by 1 + 0.1
 * ln(factor). Computed in double, rounded once. */
#include "engine/arch/arch.h"

#include <math.h>

/* The pair index that turns beta times within the original context. */
static double yarn_pair(double beta, double n, double base, double original_context)
{
    return n * log(original_context / (2 * M_PI * beta)) / (2 * log(base));
}

/* How much of the unscaled frequency pair i keeps: 1 for fast pairs, 0 for slow ones. */
static double yarn_keep(const struct eng_hparams *h, uint32_t n_rot, double base, uint32_t i)
{
    double n = n_rot, context = (double)h->original_context;
    double lo = fmax(0, floor(yarn_pair(h->yarn_fast, n, base, context)));
    double hi = fmin(n - 1, ceil(yarn_pair(h->yarn_slow, n, base, context)));
    double t = (i - lo) / fmax(0.001, hi - lo);
    return 1 - fmin(1, fmax(0, t));
}

static double yarn_gain(double factor, double c)
{
    return factor <= 1 ? 1 : 1 + 0.1 * c * log(factor);
}

static float yarn_amplitude(const struct eng_hparams *h)
{
    double gain = yarn_gain(h->scaling_factor, 1);
    if (h->has_yarn_log_mul) gain /= yarn_gain(h->scaling_factor, h->yarn_log_mul);
    return (float)(gain * h->attn_factor);
}

/* The tensor of factors that frequencies are divided by; NULL when there is none. */
static const struct kr_tensor *factors_of(struct eng_builder *b, bool plain, uint32_t half)
{
    const struct eng_hparams *h = &b->h;
    bool is_long = h->context > h->original_context;
    const char *name = "rope_freqs.weight";
    if (h->scaling == ENG_ROPE_LONG)
        name = is_long ? "rope_factors_long.weight" : "rope_factors_short.weight";
    if (plain || (h->scaling != ENG_ROPE_LONG && !eng_b_has(b, ENG_GLOBAL, name))) return NULL;
    return eng_b_vector(b, ENG_GLOBAL, name, half);
}

struct kr_rope eng_b_rope(struct eng_builder *b, int layer)
{
    const struct eng_hparams *h = &b->h;
    const struct eng_layer *l = &h->layers[layer];
    bool plain = l->windowed && b->arch->window_rope != ENG_WINDOW_ROPE_SAME;
    enum eng_rope_scaling scaling = plain ? ENG_ROPE_NONE : h->scaling;
    double base = l->windowed ? h->freq_base_windowed : h->freq_base;
    uint32_t half = l->n_rot / 2;
    struct kr_rope rope = {
        .kind = b->arch->rope, .head_dim = l->k_dim, .n_rot = l->n_rot, .amplitude = 1};
    float *freq;

    if (scaling == ENG_ROPE_YARN) rope.amplitude = yarn_amplitude(h);
    if (scaling == ENG_ROPE_LONG) rope.amplitude = h->attn_factor;
    if (eng_b_failed(b)) return rope;
    const struct kr_tensor *factors = factors_of(b, plain, half);
    freq = cn_arena_alloc(b->arena, half * sizeof(*freq));
    if (!freq) cn_fail(&b->error, CN_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < half && !eng_b_failed(b); i++) {
        double f = pow(base, -2.0 * i / l->n_rot);
        if (factors) f /= ((const float *)factors->data)[i];
        if (scaling == ENG_ROPE_LINEAR) f /= h->scaling_factor;
        if (scaling == ENG_ROPE_YARN) {
            double keep = yarn_keep(h, l->n_rot, base, i);
            f = f / h->scaling_factor * (1 - keep) + f * keep;
        }
        freq[i] = (float)f;
        if (!isfinite(freq[i]))
            cn_fail_param(&b->error, CN_EFORMAT, "rope.freq_base",
                          "the rotation of pair %u is not a finite number (rope.freq_base, "
                          "rope.scaling.factor or rope_freqs.weight)",
                          i);
    }
    rope.inv_freq = freq;
    return rope;
}
