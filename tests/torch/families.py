# SPDX-License-Identifier: Apache-2.0
"""Small random models of HuggingFace families, their batches, and an ordinary training step."""
import torch
import transformers as hf

VOCAB = 512
_DECODER = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4,
                max_position_embeddings=256, attention_dropout=0.1)
_KEYS = dict(num_key_value_heads=2)
_ENCODER = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4)

_SMALL = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=256)


def _tokens(rows=4, columns=64, **more):
    ids = torch.randint(0, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(1))
    return dict(input_ids=ids, labels=ids, **more)


def _images(size=64, channels=3, n_labels=2, rows=8):
    generator = torch.Generator().manual_seed(1)
    return dict(pixel_values=torch.randn(rows, channels, size, size, generator=generator),
                labels=torch.randint(0, n_labels, (rows,), generator=generator))


def _speech():
    generator = torch.Generator().manual_seed(1)
    return dict(input_features=torch.randn(2, 80, 128, generator=generator),
                labels=torch.randint(0, VOCAB, (2, 32), generator=generator))


def _whole():
    """A mask without zeros, as a tokenizer gives it: models go without one then."""
    batch = _tokens()
    return dict(batch, attention_mask=torch.ones_like(batch["input_ids"]))


def _captions():
    """Texts with an image of four patches in their first tokens."""
    batch = _tokens(2, 32)
    batch["input_ids"] = torch.where(batch["input_ids"] == 5, 6, batch["input_ids"])
    batch["input_ids"][:, 1:5] = 5
    return dict(batch, pixel_values=_images(16, rows=2)["pixel_values"])


def _masked():
    batch = _tokens()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][:, 48:] = 0
    return batch


# name: (kind, model class, config class, fields, batch)
FAMILIES = {
    "llama": ("decoder", "LlamaForCausalLM", "LlamaConfig", {**_DECODER, **_KEYS}, _whole),
    "gpt2": ("decoder", "GPT2LMHeadModel", "GPT2Config",
             dict(n_embd=128, n_layer=3, n_head=4, vocab_size=VOCAB, n_positions=256), _tokens),
    "qwen3": ("decoder", "Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, **_KEYS, "head_dim": 32}, _tokens),
    "gemma3": ("decoder", "Gemma3ForCausalLM", "Gemma3TextConfig", {**_DECODER, **_KEYS, "head_dim": 32}, _tokens),
    "bert": ("encoder", "BertForMaskedLM", "BertConfig", _ENCODER, _masked),
    "t5": ("encoder-decoder", "T5ForConditionalGeneration", "T5Config",
           dict(d_model=128, d_ff=256, d_kv=32, num_layers=2, num_heads=4, vocab_size=VOCAB,
                decoder_start_token_id=0), _tokens),
    "vit": ("vision", "ViTForImageClassification", "ViTConfig",
            dict(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, image_size=64,
                 patch_size=16, hidden_dropout_prob=0.1), _images),
    "mixtral": ("experts", "MixtralForCausalLM", "MixtralConfig",
                dict(_DECODER, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_local_experts=4, **_KEYS),
                _tokens),
    "resnet": ("convolution", "ResNetForImageClassification", "ResNetConfig",
               dict(embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"), _images),
    "mamba": ("state space", "MambaForCausalLM", "MambaConfig",
              dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, state_size=8), lambda: _tokens(2, 32)),
    "whisper": ("encoder-decoder", "WhisperForConditionalGeneration", "WhisperConfig",
                dict(vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                     decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=64,
                     max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                     decoder_start_token_id=1, dropout=0.1), _speech),
    "distilbert": ("encoder", "DistilBertForMaskedLM", "DistilBertConfig",
                   dict(vocab_size=VOCAB, dim=128, hidden_dim=256, n_layers=3, n_heads=4), _masked),
    "roberta": ("encoder", "RobertaForMaskedLM", "RobertaConfig", dict(_ENCODER, max_position_embeddings=256), _masked),
    "bart": ("encoder-decoder", "BartForConditionalGeneration", "BartConfig",
             dict(vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=128),
             _tokens),
    "gptneox": ("decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig",
                dict(_ENCODER, hidden_dropout=0.1, max_position_embeddings=256), _tokens),
    "opt": ("decoder", "OPTForCausalLM", "OPTConfig",
            dict(vocab_size=VOCAB, hidden_size=128, ffn_dim=256, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=128, word_embed_proj_dim=128), _tokens),
    "phi": ("decoder", "PhiForCausalLM", "PhiConfig", dict(_DECODER), _tokens),
    "qwen2_moe": ("experts", "Qwen2MoeForCausalLM", "Qwen2MoeConfig",
                  dict(_DECODER, num_hidden_layers=2, num_experts=4, moe_intermediate_size=64,
                       shared_expert_intermediate_size=64, **_KEYS), _tokens),
    "falcon": ("decoder", "FalconForCausalLM", "FalconConfig",
               dict(vocab_size=VOCAB, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                    hidden_dropout=0.1), _tokens),
    "convnext": ("convolution", "ConvNextForImageClassification", "ConvNextConfig",
                 dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2), _images),
    "swin": ("vision", "SwinForImageClassification", "SwinConfig",
             dict(embed_dim=32, depths=[1, 2], num_heads=[2, 2], image_size=32, window_size=4), lambda: _images(32)),
    "mamba2": ("state space", "Mamba2ForCausalLM", "Mamba2Config",
               dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, state_size=16, num_heads=8, head_dim=16,
                    expand=2, n_groups=2, chunk_size=16), lambda: _tokens(2, 32)),
    "electra": ("encoder", "ElectraForMaskedLM", "ElectraConfig", dict(_ENCODER, embedding_size=64), _masked),
    "deberta": ("encoder", "DebertaV2ForMaskedLM", "DebertaV2Config", dict(_ENCODER, relative_attention=True,
                pos_att_type=["p2c", "c2p"]), _masked),
    "albert": ("encoder", "AlbertForMaskedLM", "AlbertConfig", dict(_ENCODER, embedding_size=64), _masked),
    "gemma2": ("decoder", "Gemma2ForCausalLM", "Gemma2Config", {**_DECODER, **_KEYS, "head_dim": 32}, _tokens),
    "bloom": ("decoder", "BloomForCausalLM", "BloomConfig",
              dict(vocab_size=VOCAB, hidden_size=128, n_layer=2, n_head=4, hidden_dropout=0.1), _tokens),
    "olmo2": ("decoder", "Olmo2ForCausalLM", "Olmo2Config", {**_DECODER, **_KEYS}, _tokens),
    "wav2vec2": ("speech", "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
                 dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                      conv_dim=[32, 32], conv_kernel=[10, 3], conv_stride=[5, 2], num_feat_extract_layers=2,
                      num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, layerdrop=0.0),
                 lambda: dict(input_values=torch.randn(2, 1600), labels=torch.tensor([0, 1]))),
    "clip": ("vision and text", "CLIPModel", "CLIPConfig",
             dict(text_config=dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                   num_attention_heads=4, max_position_embeddings=32),
                  vision_config=dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                     image_size=32, patch_size=8)),
             lambda: dict(input_ids=_tokens(4, 16)["input_ids"], pixel_values=_images(32, rows=4)["pixel_values"],
                          return_loss=True)),
    "xlnet": ("decoder", "XLNetLMHeadModel", "XLNetConfig",
              dict(vocab_size=VOCAB, d_model=64, n_layer=2, n_head=4, d_inner=128), _tokens),
    "bigbird": ("encoder", "BigBirdForMaskedLM", "BigBirdConfig",
                dict(_SMALL, attention_type="block_sparse", block_size=8, num_random_blocks=1),
                lambda: _tokens(2, 128)),
    "jamba": ("state space", "JambaForCausalLM", "JambaConfig",
              dict(_SMALL, **_KEYS, num_experts=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
                   expert_layer_offset=1, use_mamba_kernels=False, mamba_d_state=8), lambda: _tokens(2, 16)),
    "deepseek_v3": ("experts", "DeepseekV3ForCausalLM", "DeepseekV3Config",
                    dict(_SMALL, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=16,
                         qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
                         moe_intermediate_size=32, first_k_dense_replace=1, n_shared_experts=1, n_group=1, topk_group=1),
                    _tokens),
    "olmoe": ("experts", "OlmoeForCausalLM", "OlmoeConfig", dict(_SMALL, num_experts=4, num_experts_per_tok=2), _tokens),
    "gpt_oss": ("experts", "GptOssForCausalLM", "GptOssConfig",
                dict(_SMALL, **_KEYS, num_local_experts=4, num_experts_per_tok=2, head_dim=16), _tokens),
    "qwen3_next": ("linear attention", "Qwen3NextForCausalLM", "Qwen3NextConfig",
                   dict(_SMALL, **_KEYS, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                        shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=4,
                        linear_key_head_dim=16, linear_value_head_dim=16,
                        layer_types=["linear_attention", "full_attention"]), lambda: _tokens(2, 32)),
    "mt5": ("encoder-decoder", "MT5ForConditionalGeneration", "MT5Config",
            dict(d_model=64, d_ff=128, d_kv=16, num_layers=2, num_heads=4, vocab_size=VOCAB, decoder_start_token_id=0),
            _tokens),
    "modernbert": ("encoder", "ModernBertForMaskedLM", "ModernBertConfig", dict(_SMALL, pad_token_id=0), _masked),
    "patchtst": ("time series", "PatchTSTForPrediction", "PatchTSTConfig",
                 dict(num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, prediction_length=4,
                      d_model=16, num_hidden_layers=1, ffn_dim=32),
                 lambda: dict(past_values=torch.rand(2, 32, 2), future_values=torch.rand(2, 4, 2))),
    "llava": ("vision and text", "LlavaForConditionalGeneration", "LlavaConfig",
              dict(text_config=dict(_SMALL, model_type="llama"), image_token_id=5, vision_feature_layer=-1,
                   vision_config=dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      image_size=16, patch_size=8, model_type="clip_vision_model")), _captions),
    "perceiver": ("cross attention", "PerceiverForMaskedLM", "PerceiverConfig",
                  dict(vocab_size=VOCAB, d_model=32, d_latents=64, num_latents=8, num_self_attends_per_block=1,
                       num_self_attention_heads=2, num_cross_attention_heads=2, max_position_embeddings=64,
                       qk_channels=32, v_channels=64), _masked),
}


def make(name):
    """Return (model in training mode, batch) of a family, always the same."""
    _, model, config, fields, batch = FAMILIES[name]
    torch.manual_seed(0)
    return getattr(hf, model)(getattr(hf, config)(**fields)).train(), batch()


def trainer(model, learning_rate=1e-3, **options):
    """Return (optimizer, train): a step with clipping and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, **options)

    def train(batch):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return optimizer, train
