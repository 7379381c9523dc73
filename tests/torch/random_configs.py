# SPDX-License-Identifier: Apache-2.0
"""Random small configurations of each family that `lade train` loads: sizes, heads, biases, windows, rotary forms."""
import random

FAMILIES = ["Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "SmolLM3",
            "Starcoder2", "GPTNeoX", "Falcon", "Mpt", "Bloom", "Ministral3", "Olmo3", "SeedOss", "Arcee", "Exaone4",
            "StableLm", "Nemotron", "VaultGemma", "Granite", "Helium", "Ernie4_5", "Glm", "Glm4", "Cohere", "Cohere2",
            "HunYuanDenseV1", "Cwm", "Jais2", "InternLM3", "GPTNeo", "GPTBigCode"]
ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2"]


def rope(r, n_pairs, kinds=("default", "linear", "dynamic", "yarn", "llama3", "longrope")):
    fields = {"rope_type": r.choice(kinds), "rope_theta": r.choice([100.0, 10000.0, 1000000.0])}
    if fields["rope_type"] in ("linear", "dynamic", "yarn"):
        fields["factor"] = r.choice([1.0, 2.5, 4.0])
    if fields["rope_type"] == "yarn":
        fields.update(original_max_position_embeddings=r.choice([8, 16, 32]), truncate=r.random() < 0.5,
                      mscale=r.choice([0.7, 1.0]), mscale_all_dim=r.choice([0.7, 1.3]))
    if fields["rope_type"] == "llama3":
        fields.update(factor=r.choice([1.0, 8.0]), low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]),
                      original_max_position_embeddings=r.choice([8, 32]))
    if fields["rope_type"] == "longrope":
        fields.update(short_factor=[round(r.uniform(1, 2), 3) for _ in range(n_pairs)],
                      long_factor=[round(r.uniform(1, 9), 3) for _ in range(n_pairs)],
                      original_max_position_embeddings=r.choice([16, 64]))
    return fields


def base(r, n_heads, n_kv_heads, head_dim, vocabulary):
    return dict(vocab_size=vocabulary, hidden_size=n_heads * head_dim, intermediate_size=r.choice([17, 56, 96]),
                num_hidden_layers=r.choice([1, 2, 3]), num_attention_heads=n_heads, num_key_value_heads=n_kv_heads,
                max_position_embeddings=64, bos_token_id=1, eos_token_id=2, tie_word_embeddings=r.random() < 0.4,
                pad_token_id=r.choice([None, 0, vocabulary - 1]), rms_norm_eps=r.choice([1e-5, 1e-6]),
                hidden_act=r.choice(ACTIVATIONS), rope_parameters=rope(r, head_dim // 2))


def llama_change(r, family, c, head_dim):
    if family in ("Llama", "SmolLM3", "Arcee", "SeedOss", "Nemotron", "Granite", "Jais2"):
        c.update(attention_bias=r.random() < 0.4, mlp_bias=r.random() < 0.4)
    if family in ("Qwen3", "Olmo2", "Olmo3", "VaultGemma", "Helium", "Glm", "Glm4", "Cohere", "Cohere2",
                  "HunYuanDenseV1") or family.startswith("Gemma"):
        c["attention_bias"] = r.random() < 0.4
    if family in ("Mistral", "Ministral", "Qwen2", "Qwen3", "SmolLM3", "Olmo3", "Exaone4", "Cohere2", "Cwm"):
        c["sliding_window"] = r.choice([1, 5, 16, 100])
    if family in ("Ministral", "Olmo3", "Exaone4", "VaultGemma", "Cohere2", "Cwm"):
        c["layer_types"] = [r.choice(["sliding_attention", "full_attention"]) for _ in range(c["num_hidden_layers"])]
    if family == "Granite":
        c.update(embedding_multiplier=r.choice([1.0, 3.0]), residual_multiplier=r.choice([1.0, 0.22]),
                 logits_scaling=r.choice([1.0, 3.0]), attention_multiplier=r.choice([1.0, 0.1]))
    if family == "Ernie4_5":
        c["use_bias"] = r.random() < 0.5
    if family in ("Cohere", "Cohere2"):
        c.update(logit_scale=r.choice([1.0, 0.25, 0.3]), layer_norm_eps=c.pop("rms_norm_eps"))
    if family == "InternLM3":
        biases = r.random() < 0.5
        c.update(attention_bias=biases, mlp_bias=biases)
    if family == "HunYuanDenseV1" and r.random() < 0.5:
        c["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0,
                                "alpha": r.choice([2.0, 1000.0])}
    if family == "Helium":
        c["head_dim"] = head_dim
    if family == "SeedOss":
        c.update(attention_out_bias=r.random() < 0.5, attention_dropout=0.0, residual_dropout=0.0)
    if family == "Olmo3":
        c["rope_parameters"] = {"full_attention": c["rope_parameters"],
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
    if family in ("Qwen2", "Qwen3", "SmolLM3"):
        c.update(use_sliding_window=r.random() < 0.5, max_window_layers=r.choice([0, 1, 28]))
    if family == "SmolLM3":
        c["no_rope_layers"] = [r.randint(0, 1) for _ in range(c["num_hidden_layers"])]
    if family in ("Qwen3", "Mistral", "Ministral", "Gemma", "Gemma2", "Gemma3Text", "SeedOss", "VaultGemma", "Nemotron",
                  "Ernie4_5", "Glm", "Glm4", "HunYuanDenseV1", "Cwm", "InternLM3"):
        c.update(head_dim=head_dim, hidden_size=c["num_attention_heads"] * r.choice([6, 10]))


def gemma_change(r, family, c, head_dim):
    c["hidden_act" if family == "Gemma" else "hidden_activation"] = c.pop("hidden_act")
    if family == "Gemma":
        return
    c.update(query_pre_attn_scalar=r.choice([head_dim, 24, 100]), sliding_window=r.choice([1, 5, 39]),
             final_logit_softcapping=r.choice([None, 2.0, 30.0]))
    if family in ("Gemma2", "VaultGemma"):
        c["attn_logit_softcapping"] = r.choice([None, 1.5, 50.0])
    if family == "Gemma3Text":
        c["rope_parameters"] = {"full_attention": c["rope_parameters"],
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}


def fused_change(r, family, c, head_dim):
    part = r.choice([1.0, 0.5]) if head_dim % 4 == 0 and family != "Falcon" else 1.0
    if family == "Phi3":
        c.update(partial_rotary_factor=part, original_max_position_embeddings=32,
                 rope_parameters=rope(r, int(head_dim * part) // 2, ("default", "longrope")))
        c["rope_parameters"].pop("original_max_position_embeddings", None)
        c["rope_parameters"]["partial_rotary_factor"] = part
        return
    n_heads = c.pop("num_key_value_heads")
    for name in ("rms_norm_eps", "pad_token_id", "rope_parameters"):
        del c[name]
    if family == "GPTNeoX":
        c.update(rotary_pct=part, attention_bias=r.random() < 0.6, use_parallel_residual=r.random() < 0.6)
        return
    c.update(activation=c.pop("hidden_act"), ffn_hidden_size=c.pop("intermediate_size"), bias=r.random() < 0.5)
    c.update(r.choice([dict(new_decoder_architecture=True, num_kv_heads=n_heads,
                            num_ln_in_parallel_attn=r.choice([None, 1, 2])),
                       dict(multi_query=True), dict(multi_query=False),
                       dict(multi_query=r.random() < 0.5, parallel_attn=False)]), alibi=r.random() < 0.4)


def alibi_make(r, family, n_heads, head_dim, vocabulary):
    ends = dict(vocab_size=vocabulary, bos_token_id=1, eos_token_id=2, tie_word_embeddings=r.random() < 0.6)
    if family == "Bloom":
        return dict(ends, hidden_size=n_heads * head_dim, n_layer=r.choice([1, 2, 3]), n_head=n_heads)
    return dict(ends, d_model=n_heads * head_dim, n_layers=r.choice([1, 2, 3]), n_heads=n_heads, max_seq_len=64,
                attn_config=dict(clip_qkv=r.choice([None, 0.3, 6.0]), softmax_scale=r.choice([None, 0.2])))


def positions_make(r, family, n_heads, head_dim, vocabulary):
    n_layers = r.choice([1, 2, 3])
    ends = dict(vocab_size=vocabulary, bos_token_id=1, eos_token_id=2, tie_word_embeddings=r.random() < 0.6,
                activation_function=r.choice(ACTIVATIONS))
    if family == "GPTNeo":
        return dict(ends, hidden_size=n_heads * head_dim, num_layers=n_layers, num_heads=n_heads,
                    max_position_embeddings=64, window_size=r.choice([1, 5, 16, 100]),
                    intermediate_size=r.choice([None, 56]),
                    attention_types=[[[r.choice(["global", "local"])], 1] for _ in range(n_layers)])
    return dict(ends, n_embd=n_heads * head_dim, n_layer=n_layers, n_head=n_heads, n_positions=64,
                n_inner=r.choice([None, 56]), multi_query=r.random() < 0.5, attn_pdrop=0.0, embd_pdrop=0.0,
                resid_pdrop=0.0)


def make(seed, vocabulary):
    """Return (config class, fields) of configuration @seed, the same everywhere."""
    r, family = random.Random(seed), FAMILIES[seed % len(FAMILIES)]
    n_kv_heads, head_dim = r.choice([1, 2, 3]), r.choice([8, 10, 12, 20])
    if family in ("Mpt", "Bloom"):
        return family + "Config", alibi_make(r, family, n_kv_heads * r.choice([1, 2, 3]), head_dim, vocabulary)
    if family in ("GPTNeo", "GPTBigCode"):
        return family + "Config", positions_make(r, family, n_kv_heads * r.choice([1, 2, 3]), head_dim, vocabulary)
    c = base(r, n_kv_heads * r.choice([1, 2, 3]), n_kv_heads, head_dim, vocabulary)
    if family.startswith("Gemma") or family == "VaultGemma":
        gemma_change(r, family, c, head_dim)
    if family in ("Phi3", "GPTNeoX", "Falcon"):
        fused_change(r, family, c, head_dim)
    else:
        llama_change(r, family, c, head_dim)
    if family == "Ministral3":
        c.update(head_dim=head_dim, sliding_window=r.choice([None, 9]), rope_parameters=dict(
            rope(r, head_dim // 2, ("default", "yarn")), original_max_position_embeddings=r.choice([3, 8, 32]),
            llama_4_scaling_beta=r.choice([0.0, 0.1, 0.7])))
    if family in ("StableLm", "Nemotron", "Glm", "Glm4"):
        part = r.choice([1.0, 0.5]) if head_dim % 4 == 0 else 1.0
        c.update(partial_rotary_factor=part, rope_parameters=dict(rope(r, 0, ("default", "linear")),
                                                                  partial_rotary_factor=part))
    if family in ("StableLm", "Nemotron", "Jais2"):
        c["norm_eps" if family == "Nemotron" else "layer_norm_eps"] = c.pop("rms_norm_eps")
    if family == "StableLm":
        c.update(use_qkv_bias=r.random() < 0.5, use_parallel_residual=r.random() < 0.5)
    if family == "Starcoder2":
        c.update(use_bias=r.random() < 0.6, sliding_window=r.choice([None, 9]), norm_epsilon=c.pop("rms_norm_eps"))
        del c["pad_token_id"]
    return family + "Config", c
