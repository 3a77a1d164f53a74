#!/usr/bin/env python3
"""Makes tests/engine/fixtures: what the oracle's models leave out, with values from transformers.

  pip install torch transformers gguf tokenizers numpy safetensors sentencepiece
  python3 tests/engine/make_fixtures.py ORACLE CONVERTER tests/engine/fixtures [NAME ...]

ORACLE holds make.py, whose tokenizer, random weights, conversion and reference are used here;
CONVERTER is llama.cpp's source folder. Three kinds:
  NAME-long      a prompt of many windows on a model of the oracle (its weights are made again, and the
                 GGUF compared): NAME-long.json and .logits.f32
  decoders       tiny models of their own: .gguf, .json, .logits.f32
  encoders       the same with the vector of every row (before pooling) in .vectors.f32
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as T

if __name__ == "__main__":  # the converter goes with the gguf beside it
    sys.path[:0] = [sys.argv[2], str(Path(sys.argv[2]) / "gguf-py")]
import gguf

LONG_PROMPT, LONG_GREEDY, ROWS = 176, 16, 16


def load_oracle(folder):
    """The functions of make.py, which runs when it is imported."""
    source = (Path(folder) / "make.py").read_text().rstrip()
    assert source.endswith("\nmain()")
    space = {"__name__": "oracle_make"}
    exec(compile(source[: -len("main()")], "make.py", "exec"), space)
    return space


def built(m, cls, config, seed=7):
    config._attn_implementation = "eager"
    model = cls(config).float()
    m["randomise"](model, seed)
    return model.eval()


def converted(m, converter, model, path, change=None, patch=None):
    """Writes the model as GGUF; change(folder) edits what was saved before it is converted."""
    folder = Path(tempfile.mkdtemp()) / "model"
    folder.mkdir()
    model.save_pretrained(folder)
    m["make_tokenizer"](folder, m["V"])
    if change:
        change(folder)
    if patch:
        with patch():
            m["convert"](converter, folder, path)
    else:
        m["convert"](converter, folder, path)
    shutil.rmtree(folder.parent)


def rewritten(path, arch_keys=(), drop_keys=(), tensors=None, drop_tensors=()):
    """The same file with keys (name, value) and tensors {name: array} added, others left out."""
    reader = gguf.GGUFReader(path)
    arch = bytes(reader.fields["general.architecture"].contents().encode()).decode()
    out = gguf.GGUFWriter(f"{path}.new", arch)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in drop_keys:
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        out.add_key_value(key, field.contents(), kind, sub_type=sub)
    for key, value in arch_keys:
        out.add_uint32(key, value)
    for t in reader.tensors:
        if t.name not in drop_tensors:
            out.add_tensor(t.name, np.array(t.data), raw_shape=None, raw_dtype=t.tensor_type)
    for name, data in (tensors or {}).items():
        out.add_tensor(name, data)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    Path(f"{path}.new").replace(path)


def write_json(path, doc):
    path.write_text(json.dumps(doc) + "\n")


def write_decoder(m, out, name, model, n_prompt, n_greedy, **more):
    rng = np.random.default_rng(11)
    prompt = [0] + rng.integers(4, m["V"], n_prompt - 1).tolist()
    logits, greedy, margin = m["reference"](model, prompt, n_greedy)
    (out / f"{name}.logits.f32").write_bytes(logits[-ROWS:].astype("<f4").tobytes())
    write_json(out / f"{name}.json", dict(
        prompt=prompt, greedy=greedy, greedy_margin=[round(x, 5) for x in margin],
        logit_std=round(float(logits.std()), 4), logits_positions=[n_prompt - ROWS, n_prompt],
        logits_shape=[ROWS, m["V"]], transformers=T.__version__, **more))


# ---- prompts of many windows ----------------------------------------------------------------------


def make_long(m, oracle, converter, out, name):
    cls, config = m["specs"](False)[name]
    torch.manual_seed(7)
    model = built(m, cls, config() if callable(config) else config)
    path = Path(tempfile.mkdtemp()) / f"{name}.gguf"
    converted(m, converter, model, path)
    want = json.loads((Path(oracle) / "models" / f"{name}.json").read_text())["gguf_sha256"]
    theirs = gguf.GGUFReader(Path(oracle) / "models" / f"{name}.gguf").tensors
    for a, b in zip(gguf.GGUFReader(path).tensors, theirs, strict=True):
        assert a.name == b.name and np.array_equal(a.data, b.data), f"{a.name} is not the oracle's"
    write_decoder(m, out, f"{name}-long", model, LONG_PROMPT, LONG_GREEDY, of=name,
                  gguf_sha256=want)


# ---- decoders -------------------------------------------------------------------------------------


def small(m, **more):
    base = dict(vocab_size=m["V"], hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
                rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, pad_token_id=1,
                tie_word_embeddings=True, attention_dropout=0.0)
    return base | more


def plain_norms(model, seed=5):
    """Norm weights and scales near 1, rather than near 0 or random: these are multipliers here. Those
    of queries and keys near 0.6: scores are not scaled, and steep ones show the keys' float16."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            leaf = name.split(".")[-1]
            if p.ndim == 1 and ("norm" in name or leaf in ("scale", "per_expert_scale",
                                                           "layer_scalar")):
                around = 0.6 if "q_norm" in name or "k_norm" in name else 1
                p.copy_((around * (1 + 0.2 * torch.randn(p.shape, generator=g))).half().float())


def make_gemma4(m, converter, out, name, **more):
    kinds = {"S": "sliding_attention", "F": "full_attention"}
    layers = [kinds[k] for k in more.pop("layers")]
    config = T.Gemma4TextConfig(**small(
        m, num_hidden_layers=len(layers), layer_types=layers, head_dim=8, global_head_dim=16,
        sliding_window=16, vocab_size_per_layer_input=m["V"],
        rms_norm_eps=1e-6, final_logit_softcapping=30.0) | more)
    model = built(m, T.Gemma4ForCausalLM, config)
    plain_norms(model)
    converted(m, converter, model, out / f"{name}.gguf")
    write_decoder(m, out, name, model, 64, 32)


def make_gemma4_moe(m, converter, out, name):
    make_gemma4(m, converter, out, name, layers="SSF", hidden_size_per_layer_input=0,
                enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16,
                intermediate_size=32,
                num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True)


def make_gemma4_shared(m, converter, out, name):
    make_gemma4(m, converter, out, name, layers="SSFSSF", hidden_size_per_layer_input=8,
                intermediate_size=32, num_kv_shared_layers=3, use_double_wide_mlp=True)


def make_llama4_chunks(m, converter, out, name):
    """Chunks of 16 and a temperature that grows every 24 positions, said by keys."""
    config = T.Llama4TextConfig(**small(m, num_hidden_layers=4, intermediate_size=32),
                                intermediate_size_mlp=48, head_dim=16, num_local_experts=2,
                                num_experts_per_tok=1, interleave_moe_layer_step=2,
                                attention_chunk_size=16, use_qk_norm=True,
                                no_rope_layers=[1, 1, 1, 0], attn_temperature_tuning=True,
                                floor_scale=24, attn_scale=0.1, hidden_act="silu",
                                **m["rope"](500000.0))
    model = built(m, T.Llama4ForCausalLM, config)
    path = out / f"{name}.gguf"
    converted(m, converter, model, path)
    rewritten(path, [("llama4.attention.sliding_window", 16),
                     ("llama4.attention.temperature_length", 24)])
    write_decoder(m, out, name, model, 80, 32)


def make_deepseek2_lite(m, converter, out, name):
    """V2-Lite's form, one matrix for queries, in a file of the older generation: attn_kv_b."""
    mla = dict(kv_lora_rank=24, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=16,
               v_head_dim=12, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
               moe_intermediate_size=16, first_k_dense_replace=1)
    config = T.DeepseekV2Config(**small(
        m, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=32), **mla, topk_method="greedy",
                                n_group=1, topk_group=1, norm_topk_prob=False,
                                routed_scaling_factor=1.0, **m["rope"]())
    model = built(m, T.DeepseekV2ForCausalLM, config)
    path = out / f"{name}.gguf"
    converted(m, converter, model, path)
    kv_b = {f"blk.{i}.attn_kv_b.weight": layer.self_attn.kv_b_proj.weight.detach().numpy()
            .astype(np.float16) for i, layer in enumerate(model.model.layers)}
    key = "deepseek2.attention."
    rewritten(path, [(key + "head_count_kv", 2), (key + "key_length", 24),
                     (key + "value_length", 12)],
              [key + k for k in ("head_count_kv", "key_length", "value_length", "key_length_mla",
                                 "value_length_mla")],
              kv_b, [f"blk.{i}.attn_{x}_b.weight" for i in range(2) for x in "kv"])
    write_decoder(m, out, name, model, 64, 32)


def without_eps(keys):
    return {k: v for k, v in keys.items() if k != "rms_norm_eps"}


def make_cohere2(m, converter, out, name):
    """Three layers with a window of 16, which turn, and one that sees everything and does not."""
    config = T.Cohere2Config(**without_eps(small(m, num_hidden_layers=4, num_attention_heads=4,
                                                 num_key_value_heads=2)),
                             logit_scale=0.25, sliding_window=16, **m["rope"](50000.0))
    model = built(m, T.Cohere2ForCausalLM, config)

    def change(folder):
        """A key that published configs have and the converter reads."""
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(rotary_pct=1.0)))

    converted(m, converter, model, out / f"{name}.gguf", change)
    write_decoder(m, out, name, model, 64, 32)


def make_command_r_plus(m, converter, out, name):
    """Queries and keys normalised head by head, each head by weights of its own."""
    config = T.CohereConfig(**without_eps(small(m, num_hidden_layers=2, num_attention_heads=4,
                                                num_key_value_heads=2)),
                            logit_scale=0.25, use_qk_norm=True, **m["rope"](50000.0))
    model = built(m, T.CohereForCausalLM, config)
    g = torch.Generator().manual_seed(5)
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            w = 1 + 0.2 * torch.randn(norm.weight.shape, generator=g)
            norm.weight.data = w.half().float()
    converted(m, converter, model, out / f"{name}.gguf")
    write_decoder(m, out, name, model, 64, 32)


def make_olmo3(m, converter, out, name):
    """Three layers with a window of 16, which turn unscaled, and one that sees everything, by YaRN."""
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                attention_factor=1.2079441541679836, original_max_position_embeddings=64)
    config = T.Olmo3Config(**small(m, num_hidden_layers=4, tie_word_embeddings=False),
                           sliding_window=16, rope_parameters=dict(
                               full_attention=yarn,
                               sliding_attention=dict(rope_type="default", rope_theta=10000.0)))
    model = built(m, T.Olmo3ForCausalLM, config)
    converted(m, converter, model, out / f"{name}.gguf")
    write_decoder(m, out, name, model, 96, 32)


# ---- encoders -------------------------------------------------------------------------------------


def write_encoder(m, out, name, run, lengths):
    rng, cases, rows = np.random.default_rng(11), [], []
    for n in lengths:
        ids = rng.integers(4, m["V"], n).tolist()
        with torch.inference_mode():
            v = run(torch.tensor([ids]))[0].numpy()
        cases.append(ids)
        rows.append(v.astype("<f4"))
    (out / f"{name}.vectors.f32").write_bytes(b"".join(r.tobytes() for r in rows))
    write_json(out / f"{name}.json", dict(cases=cases, width=int(rows[0].shape[1]),
                                          transformers=T.__version__))


def make_gemma_embedding(m, converter, out, name):
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(7)]
    config = T.Gemma3TextConfig(**small(m, num_hidden_layers=7, intermediate_size=32),
                                head_dim=16, sliding_window=16, query_pre_attn_scalar=16,
                                layer_types=kinds, use_bidirectional_attention=True,
                                rope_parameters=dict(
                                    full_attention=dict(rope_type="default", rope_theta=1e6),
                                    sliding_attention=dict(rope_type="default", rope_theta=1e4)))
    model = built(m, T.Gemma3TextModel, config)
    g = torch.Generator().manual_seed(3)
    dense = [torch.nn.Linear(a, b, bias=False) for a, b in ((32, 64), (64, 32))]
    for layer in dense:
        w = torch.randn(layer.weight.shape, generator=g) / layer.in_features ** 0.5
        layer.weight.data = w.half().float()

    def change(folder):
        from safetensors.torch import save_file
        names = ("1_Pooling", "2_Dense", "3_Dense")
        kind = "sentence_transformers.models."
        (folder / "modules.json").write_text(json.dumps(
            [dict(path=p, type=kind + p.split("_")[1]) for p in names]))
        for p in names:
            (folder / p).mkdir()
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
        for p, layer in zip(names[1:], dense):
            (folder / p / "config.json").write_text(json.dumps(
                dict(in_features=layer.in_features, out_features=layer.out_features)))
            save_file({"linear.weight": layer.weight.data}, folder / p / "model.safetensors")

    class Dense:
        """What the converter's option --sentence-transformers-dense-modules sets."""

        def __enter__(self):
            from conversion.base import ModelBase
            self.base, self.init = ModelBase, ModelBase.__init__
            init = self.init

            def with_dense(me, *a, **kw):
                init(me, *a, **(kw | {"sentence_transformers_dense_modules": True}))

            ModelBase.__init__ = with_dense

        def __exit__(self, *unused):
            self.base.__init__ = self.init

    converted(m, converter, model, out / f"{name}.gguf", change, Dense)
    run = lambda ids: dense[1](dense[0](model(input_ids=ids, use_cache=False).last_hidden_state))
    write_encoder(m, out, name, run, (1, 5, 9, 17, 60))


def make_nomic_bert(m, converter, out, name):
    config = T.NomicBertConfig(vocab_size=m["V"], hidden_size=32, num_hidden_layers=3,
                               num_attention_heads=2, intermediate_size=64,
                               max_position_embeddings=2048, type_vocab_size=2, pad_token_id=0,
                               rope_parameters=dict(rope_type="default", rope_theta=1000.0))
    model = built(m, T.NomicBertModel, config)

    def change(folder):
        """The names that the published checkpoint's config has, and its kind of tokenizer."""
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | dict(
            architectures=["NomicBertModel"], model_type="nomic_bert", n_embd=32, n_layer=3,
            n_head=2, n_inner=64, n_positions=8192, max_trained_positions=2048,
            vocab_size=m["V"], type_vocab_size=2, layer_norm_epsilon=1e-12, pad_token_id=0,
            activation_function="swiglu", causal=False, qkv_proj_bias=False, mlp_fc1_bias=False,
            mlp_fc2_bias=False, prenorm=False, rotary_emb_fraction=1.0, rotary_emb_base=1000,
            rotary_emb_interleaved=False, rotary_emb_scale_base=None)))
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words += [chr(c) for c in range(33, 127)] + ["##" + chr(c) for c in range(97, 123)]
        words += [f"[unused{i}]" for i in range(m["V"] - len(words))]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        for f in ("tokenizer.json", "tokenizer_config.json"):
            (folder / f).unlink(missing_ok=True)
        T.BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(folder)
        (folder / "modules.json").write_text('[{"path": "1_Pooling", "type": "x.Pooling"}]')
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')

    class WordPiece:
        """make.py gives every model a byte-level vocabulary; this one keeps the converter's."""

        def __enter__(self):
            from conversion.bert import BertModel, NomicBertModel
            self.cls, self.old = NomicBertModel, NomicBertModel._set_vocab_gpt2
            NomicBertModel._set_vocab_gpt2 = BertModel.set_vocab

        def __exit__(self, *unused):
            self.cls._set_vocab_gpt2 = self.old

    converted(m, converter, model, out / f"{name}.gguf", change, WordPiece)
    run = lambda ids: model(input_ids=ids).last_hidden_state
    write_encoder(m, out, name, run, (1, 5, 17, 60))


LONG = ["gemma2", "gemma3", "gpt-oss", "mistral-swa"]
OWN = {"gemma4-moe": make_gemma4_moe, "gemma4-shared": make_gemma4_shared,
       "llama4-chunks": make_llama4_chunks, "deepseek2-lite": make_deepseek2_lite,
       "cohere2": make_cohere2, "command-r-plus": make_command_r_plus, "olmo3": make_olmo3,
       "gemma-embedding": make_gemma_embedding, "nomic-bert": make_nomic_bert}


def main(oracle, converter, out, *names):
    torch.set_num_threads(1)
    m, out = load_oracle(oracle), Path(out)
    for name in LONG:
        if not names or f"{name}-long" in names:
            make_long(m, oracle, converter, out, name)
            print(f"{name}-long")
    for name, make in OWN.items():
        if not names or name in names:
            torch.manual_seed(7)
            make(m, converter, out, name)
            print(name, (out / f"{name}.gguf").stat().st_size, "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
