/* engine/text: what a vocabulary's tokens mean: BOS, EOS and the other ids, which tokens end
 * generation, which are never made from a client's text, which eat white space.
 * Files say part of this by keys, part only by the texts of their tokens; the lists here are the
 * ones in use. Runs once, inside eng_vocab_new. */
#include "engine/text/vocab_impl.h"

/* Texts that end generation wherever they occur. */
/* clang-format off */
static const char *const end_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "[e~[",
};
/* clang-format on */

/* Texts of the infill tokens that end generation, for files without their keys. */
static const char *const fim_pad_texts[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>",
                                            "<PAD>",       "[PAD]",     NULL};
static const char *const fim_rep_texts[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                            "<REPO>",       "<reponame>",    NULL};
static const char *const fim_sep_texts[] = {"<|file_sep|>", NULL};

static uint32_t find(const struct eng_vocab *v, const char *text)
{
    return eng_strmap_get(&v->by_text, &v->texts, text, strlen(text));
}

static void end_by_text(struct eng_vocab *v, const char *text)
{
    uint32_t id = find(v, text);
    if (id != ENG_NO_ID) v->flags[id] |= ENG_TF_EOG | ENG_TF_CONTROL;
}

/* An id from a key. A token of an ordinary type stays one that text may contain: with a newline or
 * a comma as EOS, taking it away would change harmless prompts. */
static void end_by_id(struct eng_vocab *v, int64_t id)
{
    if (id < 0) return;
    v->flags[id] |= ENG_TF_EOG;
    if (v->type[id] == ENG_TOKEN_USER) v->flags[id] |= ENG_TF_CONTROL;
}

static void end_by_id_or_text(struct eng_vocab *v, int64_t id, const char *const *texts)
{
    if (id >= 0) {
        end_by_id(v, id);
        return;
    }
    for (; *texts; texts++) {
        if (find(v, *texts) != ENG_NO_ID) {
            end_by_text(v, *texts);
            return;
        }
    }
}

/* An id of the file, or -1: files with ids past their own vocabulary exist. */
static int64_t checked(const struct eng_vocab *v, int64_t id, const char *key, int64_t missing)
{
    if (id >= 0 && id < (int64_t)v->n) return id;
    if (id >= 0)
        cn_log(CN_LOG_WARN, "text", "tokenizer.ggml.%s is %lld, past the vocabulary of %u: ignored",
               key, (long long)id, v->n);
    return missing < (int64_t)v->n ? missing : -1;
}

static bool ends(const struct eng_vocab *v, const char *text)
{
    uint32_t id = find(v, text);
    return id != ENG_NO_ID && (v->flags[id] & ENG_TF_EOG);
}

/* Two families use a text of the list inside their turns. */
static void corrections(struct eng_vocab *v)
{
    bool call = ends(v, "<|call|>") || ends(v, "<|calls|>");
    if (call && (ends(v, "<|return|>") || ends(v, "<|flush|>")) && ends(v, "<|end|>"))
        v->flags[find(v, "<|end|>")] &= (uint8_t)~ENG_TF_EOG;
    if (ends(v, "<|tool_response>") && ends(v, "</s>")) {
        uint32_t id = find(v, "</s>");
        v->flags[id] &= (uint8_t)~ENG_TF_EOG;
        if (v->type[id] != ENG_TOKEN_CONTROL && v->type[id] != ENG_TOKEN_UNKNOWN) {
            v->flags[id] &= (uint8_t)~ENG_TF_CONTROL;
            v->type[id] = ENG_TOKEN_NORMAL;
        }
    }
}

static void end_of_generation(struct eng_vocab *v, const struct eng_vocab_spec *spec)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(end_texts); i++)
        end_by_text(v, end_texts[i]);
    end_by_id_or_text(v, checked(v, spec->fim_pad, "fim_pad_token_id", -1), fim_pad_texts);
    end_by_id_or_text(v, checked(v, spec->fim_rep, "fim_rep_token_id", -1), fim_rep_texts);
    end_by_id_or_text(v, checked(v, spec->fim_sep, "fim_sep_token_id", -1), fim_sep_texts);
    end_by_id(v, v->eos);
    end_by_id(v, checked(v, spec->eot, "eot_token_id", -1));
    end_by_id(v, checked(v, spec->eom, "eom_token_id", -1));
    for (size_t i = 0; i < spec->n_eos_ids; i++)
        end_by_id(v, checked(v, spec->eos_ids[i], "eos_token_ids", -1));
    corrections(v);
}

static bool name_has(const char *name, const char *part)
{
    return name && strcasestr(name, part) != NULL;
}

/* Files do not carry these attributes; they follow from the model's name. */
static void strip_flags(struct eng_vocab *v, const struct eng_vocab_spec *spec)
{
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    if (v->pre && (eng_pretok_flags(v->pre) & ENG_PRE_MASK_LSTRIP)) {
        uint32_t id = find(v, "<mask>");
        if (id == ENG_NO_ID) id = find(v, "[MASK]");
        if (id != ENG_NO_ID) v->flags[id] |= ENG_TF_LSTRIP;
    }
    if (!name_has(spec->general_name, "phi-3") && !name_has(spec->general_name, "phi3")) return;
    for (uint32_t id = 0; id < v->n; id++) {
        if (v->type[id] == ENG_TOKEN_USER || (v->flags[id] & ENG_TF_CONTROL))
            v->flags[id] |= ENG_TF_RSTRIP;
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(keep); i++) {
        uint32_t id = find(v, keep[i]);
        if (id != ENG_NO_ID) v->flags[id] &= (uint8_t)~ENG_TF_RSTRIP;
    }
}

int eng_vocab_rules(struct eng_vocab *v, const struct eng_vocab_spec *spec, struct cn_error *err)
{
    bool spm = v->model == ENG_MODEL_SPM, wpm = v->model == ENG_MODEL_WPM;
    unsigned pre = v->pre ? eng_pretok_flags(v->pre) : 0;
    v->bos = checked(v, spec->bos, "bos_token_id", spm ? 1 : wpm ? 101 : -1);
    v->eos = checked(v, spec->eos, "eos_token_id", spm ? 2 : -1);
    if (wpm) v->eos = checked(v, spec->sep >= 0 ? spec->sep : spec->eos, "seperator_token_id", 102);
    v->unk = checked(v, spec->unk, "unknown_token_id", spm ? 0 : wpm ? 100 : -1);
    for (uint32_t id = 0; id < v->n; id++) {
        if (v->type[id] == ENG_TOKEN_CONTROL || v->type[id] == ENG_TOKEN_UNKNOWN)
            v->flags[id] |= ENG_TF_CONTROL;
    }
    end_of_generation(v, spec);
    strip_flags(v, spec);
    for (uint32_t id = 0; id < v->n; id++)
        v->strips |= (v->flags[id] & (ENG_TF_LSTRIP | ENG_TF_RSTRIP)) != 0;

    v->space_prefix = spec->add_space_prefix < 0 ? spm : spec->add_space_prefix > 0;
    v->lowercase = spec->lowercase != 0;
    v->add_eos = spec->add_eos < 0 ? wpm : spec->add_eos > 0;
    v->add_bos = spec->add_bos < 0 ? spm || wpm || (pre & ENG_PRE_ADD_BOS) : spec->add_bos > 0;
    if (pre & ENG_PRE_FORCE_BOS) v->add_bos = true;
    if (v->add_eos && v->eos < 0)
        return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.eos_token_id",
                             "add_eos_token is true, but there is no EOS token");
    if (v->add_bos && v->bos < 0) {
        if (spec->add_bos > 0)
            return cn_fail_param(err, CN_EFORMAT, "tokenizer.ggml.bos_token_id",
                                 "add_bos_token is true, but there is no BOS token");
        v->add_bos = false;
    }
    return 0;
}
