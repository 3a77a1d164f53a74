#include "tests/server/small_env.h"

#include <stdio.h>
#include <string.h>

static struct srv_text_env env;

/* A vocabulary of single bytes, three letters and two control tokens. */
static void make_env(void)
{
    static char bytes[256][8];
    static struct eng_str tokens[264];
    static float scores[264];
    static int32_t types[264];
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    static const char *const last[] = {"\xe2\x96\x81", "a", "b", "ab", "<|im_end|>"};
    static const char text[] =
        "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% for t in m.tool_calls or [] %}"
        "{{ t | tojson }}{% endfor %}</s>{% endfor %}{{ tools | tojson if tools else '' }}"
        "{{ x if x is defined else '' }}";
    size_t at = 0;

    for (int i = 0; i < 3; i++, at++) {
        tokens[at] = (struct eng_str){first[i], strlen(first[i])};
        types[at] = i ? ENG_TOKEN_CONTROL : ENG_TOKEN_UNKNOWN;
    }
    for (int i = 0; i < 256; i++, at++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[at] = (struct eng_str){bytes[i], 6};
        types[at] = ENG_TOKEN_BYTE;
    }
    for (int i = 0; i < 5; i++, at++) {
        tokens[at] = (struct eng_str){last[i], strlen(last[i])};
        types[at] = i == 4 ? ENG_TOKEN_CONTROL : ENG_TOKEN_NORMAL;
        scores[at] = (float)-i;
    }
    struct eng_vocab_spec spec = {.model = "llama",
                                  .n_tokens = at,
                                  .tokens = tokens,
                                  .scores = scores,
                                  .types = types,
                                  .bos = 1,
                                  .eos = 2,
                                  .eot = -1,
                                  .eom = -1,
                                  .unk = 0,
                                  .sep = -1,
                                  .pad = -1,
                                  .fim_pre = -1,
                                  .fim_suf = -1,
                                  .fim_mid = -1,
                                  .fim_pad = -1,
                                  .fim_rep = -1,
                                  .fim_sep = -1,
                                  .add_bos = 1,
                                  .add_eos = -1,
                                  .add_space_prefix = -1};
    struct eng_vocab *v;
    struct eng_template *t;
    cn_assert(eng_vocab_new(&spec, &v, NULL) == 0);
    cn_assert(eng_template_new(text, sizeof text - 1, &t, NULL) == 0);
    env = (struct srv_text_env){.vocab = v,
                                .chat_template = t,
                                .model_id = "m",
                                .context = 512,
                                .max_n = 8,
                                .tools = RT_TOOLS_NATIVE};
    eng_sampling_defaults(&env.sampling);
}

const struct srv_text_env *small_env(void)
{
    if (!env.vocab) make_env();
    return &env;
}

const struct srv_text_env *small_fallback_env(void)
{
    static struct srv_text_env fallback;

    fallback = *small_env();
    fallback.tools = RT_TOOLS_FALLBACK;
    fallback.context = 4096; /* their description is long */
    return &fallback;
}

const struct srv_text_env *small_embed_env(void)
{
    static struct srv_text_env embed;

    embed = *small_env();
    embed.embedding_size = 8;
    return &embed;
}
