# SPDX-License-Identifier: Apache-2.0
"""`lade train` against transformers on the CPU: 20 steps of random small models of every family that loads from a
config.json, in FP32 from the same weights and tokens, with AdamW, decay on matrices alone and clipping. Losses agree
within 1e-5, at the whole budget and at the smallest with equal digests; the saved checkpoint has the same loss in
transformers; two tensor parallel ranks and two stages agree with one rank, also when they resume. Of models of images and text, the
text alone has the same loss, and its checkpoint loads as a model of text.

random-N is configuration N of random_configs.py, on one rank: its losses may be four times as far from those in FP64 as
transformers' are.

Usage: decoders.py LADE [CASE... | random-N... | all | default]
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import random_configs

try:
    import torch
    import transformers as hf
except ImportError as absent:
    print(f"SKIP: {absent}")
    sys.exit(77)

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-decoders-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
os.environ["HF_HUB_OFFLINE"] = "1"
hf.logging.set_verbosity_error()
torch.set_num_threads(1)
VOCAB, BATCH, SEQ, STEPS, LR, DECAY, TOLERANCE = 160, 4, 24, 20, 3e-3, 0.1, 1e-5

BASE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
            pad_token_id=None)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
NEOX = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
FALCON = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2)
MPT = dict(vocab_size=VOCAB, d_model=64, n_layers=3, n_heads=4, max_seq_len=64, bos_token_id=1, eos_token_id=2)
GPTNEO = dict(vocab_size=VOCAB, hidden_size=64, num_layers=3, num_heads=4, max_position_embeddings=64, window_size=7,
              bos_token_id=1, eos_token_id=2)
BIGCODE = dict(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0,
               resid_pdrop=0.0, bos_token_id=1, eos_token_id=2)
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 3.0, 9.0], "rope_theta": 10000.0}
# name: (config class, fields)
CASES = {
    "llama": ("LlamaConfig", dict(BASE, attention_bias=True, mlp_bias=True, pad_token_id=3)),
    "llama-relu": ("LlamaConfig", dict(BASE, hidden_act="relu2", rope_parameters={
        "rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0})),
    "llama-yarn": ("LlamaConfig", dict(BASE, head_dim=20, rope_parameters=YARN)),
    "llama-dynamic": ("LlamaConfig", dict(BASE, rope_parameters={"rope_type": "dynamic", "factor": 2.0,
                                                                  "rope_theta": 10000.0})),
    "mistral": ("MistralConfig", dict(BASE, sliding_window=7, head_dim=16)),
    "ministral": ("MinistralConfig", dict(BASE, sliding_window=7, head_dim=12, layer_types=SLIDING)),
    "qwen2": ("Qwen2Config", dict(BASE, pad_token_id=5)),
    "qwen2-tied": ("Qwen2Config", dict(BASE, num_key_value_heads=4, use_sliding_window=True, sliding_window=9,
                                       max_window_layers=1, tie_word_embeddings=True, pad_token_id=5)),
    "qwen3": ("Qwen3Config", dict(BASE, head_dim=20, attention_bias=True)),
    "qwen3-tied": ("Qwen3Config", dict(BASE, head_dim=10, tie_word_embeddings=True, rope_parameters=YARN)),
    "gemma": ("GemmaConfig", dict(BASE, head_dim=18, tie_word_embeddings=True, pad_token_id=0)),
    "gemma2": ("Gemma2Config", dict(BASE, head_dim=14, query_pre_attn_scalar=20, sliding_window=8, pad_token_id=0,
                                    final_logit_softcapping=2.0, attn_logit_softcapping=1.5,
                                    tie_word_embeddings=True)),
    "gemma3": ("Gemma3TextConfig", dict(BASE, head_dim=16, query_pre_attn_scalar=24, sliding_window=8,
                                        layer_types=SLIDING, pad_token_id=0, tie_word_embeddings=True)),
    "gemma3-linear": ("Gemma3TextConfig", dict(BASE, head_dim=16, sliding_window=6, pad_token_id=0, attention_bias=True,
                                               layer_types=SLIDING, final_logit_softcapping=3.0, rope_parameters={
                                                   "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                                      "rope_theta": 1000000.0},
                                                   "sliding_attention": {"rope_type": "default",
                                                                         "rope_theta": 5000.0}})),
    "phi3": ("Phi3Config", dict(BASE, sliding_window=10, pad_token_id=4)),
    "phi3-partial": ("Phi3Config", dict(BASE, partial_rotary_factor=0.5)),
    "phi3-longrope": ("Phi3Config", dict(BASE, partial_rotary_factor=0.5, original_max_position_embeddings=16,
                                         rope_parameters=dict(LONG, partial_rotary_factor=0.5))),
    "olmo2": ("Olmo2Config", dict(BASE, pad_token_id=1)),
    "olmo2-bias": ("Olmo2Config", dict(BASE, num_key_value_heads=4, attention_bias=True, pad_token_id=1)),
    "smollm3": ("SmolLM3Config", dict(BASE, no_rope_layers=[1, 0, 1], pad_token_id=2, tie_word_embeddings=True)),
    "starcoder2": ("Starcoder2Config", dict(BASE, sliding_window=9)),
    "starcoder2-plain": ("Starcoder2Config", dict(BASE, use_bias=False, tie_word_embeddings=True, hidden_act="gelu")),
    "gpt_neox": ("GPTNeoXConfig", dict(NEOX, tie_word_embeddings=False)),
    "gpt_neox-sequential": ("GPTNeoXConfig", dict(NEOX, use_parallel_residual=False, attention_bias=False, rotary_pct=0.5,
                                                  hidden_act="gelu_new", tie_word_embeddings=True)),
    "falcon": ("FalconConfig", dict(FALCON)),
    "falcon-new": ("FalconConfig", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True)),
    "falcon-one-norm": ("FalconConfig", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2,
                                             num_ln_in_parallel_attn=1, tie_word_embeddings=False)),
    "falcon-alibi": ("FalconConfig", dict(FALCON, hidden_size=72, num_attention_heads=6, multi_query=False,
                                          parallel_attn=False, bias=True, alibi=True)),
    "mpt": ("MptConfig", dict(MPT)),
    "mpt-clipped": ("MptConfig", dict(MPT, d_model=72, n_heads=6, tie_word_embeddings=False,
                                      attn_config=dict(clip_qkv=0.4, softmax_scale=0.2))),
    "bloom": ("BloomConfig", dict(vocab_size=VOCAB, hidden_size=72, n_layer=3, n_head=6, bos_token_id=1,
                                  eos_token_id=2)),
    "ministral3": ("Ministral3Config", dict(BASE, head_dim=12, sliding_window=9, rope_parameters=dict(
        YARN, original_max_position_embeddings=7, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "ministral3-plain": ("Ministral3Config", dict(BASE, head_dim=12, tie_word_embeddings=True, rope_parameters={
        "rope_type": "default", "rope_theta": 5000.0, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16})),
    "olmo3": ("Olmo3Config", dict(BASE, pad_token_id=1, sliding_window=7, layer_types=SLIDING, rope_parameters={
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})),
    "seed_oss": ("SeedOssConfig", dict(BASE, head_dim=14, attention_out_bias=True, mlp_bias=True, attention_dropout=0.0,
                                       residual_dropout=0.0)),
    "arcee": ("ArceeConfig", dict(BASE, attention_bias=True, mlp_bias=True, rope_parameters=YARN)),
    "exaone4": ("Exaone4Config", dict(BASE, sliding_window=7, layer_types=SLIDING, tie_word_embeddings=True)),
    "exaone4-whole": ("Exaone4Config", dict(BASE, sliding_window=None, layer_types=["full_attention"] * 3)),
    "stablelm": ("StableLmConfig", dict(BASE, hidden_size=64, use_qkv_bias=True)),
    "stablelm-parallel": ("StableLmConfig", dict(BASE, hidden_size=64, use_parallel_residual=True,
                                                 partial_rotary_factor=0.5)),
    "nemotron": ("NemotronConfig", dict(BASE, head_dim=20, attention_bias=True, mlp_bias=True)),
    "vaultgemma": ("VaultGemmaConfig", dict(BASE, head_dim=14, query_pre_attn_scalar=20, sliding_window=8, pad_token_id=0,
                                            final_logit_softcapping=2.0, tie_word_embeddings=True)),
    "granite": ("GraniteConfig", dict(BASE, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
                                      attention_multiplier=0.2, attention_bias=True, tie_word_embeddings=True)),
    "helium": ("HeliumConfig", dict(BASE, head_dim=12, attention_bias=True, pad_token_id=3)),
    "ernie4_5": ("Ernie4_5Config", dict(BASE, head_dim=20, use_bias=True, tie_word_embeddings=True, pad_token_id=0)),
    "glm": ("GlmConfig", dict(BASE, head_dim=16)),
    "glm4": ("Glm4Config", dict(BASE, head_dim=20, partial_rotary_factor=0.4)),
    "cohere": ("CohereConfig", dict(BASE, logit_scale=0.25, attention_bias=True, tie_word_embeddings=True)),
    "cohere2": ("Cohere2Config", dict(BASE, sliding_window=7, layer_types=SLIDING, pad_token_id=0)),
    "gpt_neo": ("GPTNeoConfig", dict(GPTNEO, attention_types=[[["global", "local"], 1], [["local"], 1]])),
    "gpt_bigcode": ("GPTBigCodeConfig", dict(BIGCODE)),
    "gpt_bigcode-heads": ("GPTBigCodeConfig", dict(BIGCODE, multi_query=False, n_inner=80, tie_word_embeddings=False,
                                                   activation_function="gelu")),
    "hunyuan": ("HunYuanDenseV1Config", dict(BASE, head_dim=20, attention_bias=True, pad_token_id=0, rope_parameters={
        "rope_type": "dynamic", "factor": 1.0, "alpha": 50.0, "rope_theta": 1000.0})),
    "hunyuan-plain": ("HunYuanDenseV1Config", dict(BASE, head_dim=12, tie_word_embeddings=True)),
    "cwm": ("CwmConfig", dict(BASE, head_dim=16, sliding_window=7, layer_types=SLIDING, rope_parameters={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
        "original_max_position_embeddings": 16})),
    "jais2": ("Jais2Config", {**{key: BASE[key] for key in BASE if key != "rms_norm_eps"}, "rope_parameters": YARN}),
    "internlm3": ("InternLM3Config", dict(BASE, head_dim=20, attention_bias=True, mlp_bias=True, pad_token_id=2,
                                          rope_parameters={"rope_type": "dynamic", "factor": 6.0,
                                                           "rope_theta": 5000.0})),
    "falcon-sequential": ("FalconConfig", dict(FALCON, multi_query=False, parallel_attn=False, bias=True)),
}
DEFAULT = ["qwen3", "gemma2", "gpt_neox"]


def attention_of(config):
    """Only the eager attention has soft caps, and Falcon's adds ALiBi twice: Falcon has the one of its default."""
    return "sdpa" if config.model_type == "falcon" else "eager"


def model_make(name):
    """A model with random weights of every kind, saved under its name."""
    torch.manual_seed(len(name))
    config_class, fields = CASES[name] if name in CASES else random_configs.make(int(name[7:]), VOCAB)
    config = getattr(hf, config_class)(**fields)
    config._attn_implementation = attention_of(config)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(f"{name}-hf")
    return model


def tokens_make():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (STEPS * BATCH * SEQ + 1 + 4096,), generator=generator)
    tokens.numpy().astype("<u2").tofile("tokens.bin")
    return tokens


def batch_get(tokens, step):
    first = step * BATCH * SEQ
    return [tokens[first + shift:first + shift + BATCH * SEQ].view(BATCH, SEQ) for shift in (0, 1)]


def loss_of(model, tokens, step):
    x, y = batch_get(tokens, step)
    logits = model(x).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def steps_run(model, tokens):
    """Train as docs/numbers.md says, and return the losses."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)],
                                  lr=LR, betas=(0.9, 0.99), eps=1e-8)
    losses = []
    model.train()
    for step in range(STEPS):
        loss = loss_of(model, tokens, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def lade_run(name, *args, n_ranks=1, steps=STEPS):
    """Train from the saved weights: the losses and the summary."""
    log = f"{name}.log"
    if os.path.exists(log):
        os.remove(log)
    command = [LADE, "train", "--model", f"{name}-hf", "--data", "tokens.bin", "--valid-fraction", "0", "--dtype",
               "fp32", "--order", "sequential", "--batch", str(BATCH), "--seq", str(SEQ), "--steps", str(steps),
               "--lr", str(LR), "--min-lr", str(LR), "--warmup", "0", "--quiet", "--json", "--log", log, *args]
    if n_ranks > 1:
        command[1:1] = ["launch", "-n", str(n_ranks), "--"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 0, (" ".join(command), result.stderr)
    with open(log, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line["loss"] for line in lines if "loss" in line], json.loads(result.stdout)


def losses_compare(name, what, found, expected):
    assert len(found) == len(expected), (name, what, len(found), len(expected))
    worst = max(abs(a - b) for a, b in zip(found, expected))
    assert worst < TOLERANCE, (name, what, worst, found[:3], expected[:3])
    return worst


def checkpoint_compare(name, saved, trained, tokens):
    model, report = hf.AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True, dtype=torch.float32,
                                                            attn_implementation=attention_of(trained.config))
    assert not any(report.values()), (name, report)
    with torch.no_grad():
        found, expected = (loss_of(m.eval(), tokens, STEPS).item() for m in (model, trained))
    assert abs(found - expected) < 2 * TOLERANCE, (name, found, expected)


LAYOUTS = {"tp": ["--tp", "2"], "sequence": ["--tp", "2", "--sequence-parallel"], "pp": ["--pp", "2"],
           "zero": ["--dp", "2", "--zero", "3"]}


def layouts_run(name, expected):
    """Two ranks in every way, and a run that stops at half and goes on in another layout."""
    for what, flags in LAYOUTS.items():
        micro = ["--micro-batch", "2"] if what == "pp" else []
        found, _ = lade_run(name, "--init", f"{name}-hf", *flags, *micro, n_ranks=2)
        losses_compare(name, what, found, expected)
    shutil.rmtree(f"{name}-run/step-{STEPS:08}")
    for what in ("tp", "pp"):
        found, _ = lade_run(name, "--resume", f"{name}-run", *LAYOUTS[what], n_ranks=2)
        losses_compare(name, f"resumed with {what}", found, expected[STEPS // 2:])


def case_run(name, tokens):
    model = model_make(name)
    expected = steps_run(model, tokens)
    found, whole = lade_run(name, "--init", f"{name}-hf", "--save", f"{name}-run", "--save-every", str(STEPS // 2))
    worst = losses_compare(name, "one rank", found, expected)
    checkpoint_compare(name, f"{name}-run/step-{STEPS:08}", model, tokens)
    found, least = lade_run(name, "--init", f"{name}-hf", "--budget", "min")
    assert least["loss_digest"] == whole["loss_digest"], (name, least, whole)
    layouts_run(name, expected)
    print(f"{name}: {worst:.1e} from transformers {hf.__version__} at step losses of {expected[0]:.3f} to "
          f"{expected[-1]:.3f}", flush=True)
    return expected


TEXT = dict(BASE, head_dim=12, pad_token_id=0)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16,
              patch_size=8)


def images_config(name):
    if name == "gemma3-images":
        text = hf.Gemma3TextConfig(**TEXT, sliding_window=8, query_pre_attn_scalar=24)
        return hf.Gemma3Config(text_config=text.to_dict(), vision_config=VISION, mm_tokens_per_image=4)
    kind = hf.MistralConfig if name == "mistral3-images" else hf.Ministral3Config
    return hf.Mistral3Config(text_config=kind(**TEXT, sliding_window=None).to_dict(),
                             vision_config=dict(VISION, head_dim=8, model_type="pixtral"), tie_word_embeddings=False)


def images_run(name, tokens):
    """A model of images and text: the first loss, and the model of a checkpoint."""
    torch.manual_seed(5)
    model = hf.AutoModelForImageTextToText.from_config(images_config(name)).eval()
    model.save_pretrained(f"{name}-hf")
    with torch.no_grad():
        expected = loss_of(model, tokens, 0).item()
    found, _ = lade_run(name, "--init", f"{name}-hf", "--save", f"{name}-run", steps=1)
    losses_compare(name, "the text", found, [expected])
    text, report = hf.AutoModelForCausalLM.from_pretrained(f"{name}-run/step-00000001", output_loading_info=True)
    assert not any(report.values()), (name, report)
    print(f"{name}: {abs(found[0] - expected):.1e} from transformers, saved as {type(text).__name__}", flush=True)


def random_run(name, tokens):
    model = model_make(name)
    exact = hf.AutoModelForCausalLM.from_pretrained(f"{name}-hf", dtype=torch.float64,
                                                    attn_implementation=attention_of(model.config))
    expected, true = steps_run(model, tokens), steps_run(exact, tokens)
    found, whole = lade_run(name, "--init", f"{name}-hf", "--save", f"{name}-run")
    near, far = (max(abs(a - b) for a, b in zip(losses, true)) for losses in (found, expected))
    assert near < max(TOLERANCE, 4 * far), (name, near, far, random_configs.make(int(name[7:]), VOCAB))
    checkpoint_compare(name, f"{name}-run/step-{STEPS:08}", model, tokens)
    print(f"{name}: {type(model).__name__}, {near:.1e} from FP64, transformers {far:.1e}", flush=True)


IMAGES = ["gemma3-images", "mistral3-images", "ministral3-images"]
RANDOM = [f"random-{i}" for i in range(len(random_configs.FAMILIES))]
names = sys.argv[2:] or ["default"]
SETS = {"all": [*CASES, *IMAGES, *RANDOM], "default": DEFAULT + IMAGES + RANDOM[::5]}
names = SETS.get(names[0], names)
TOKENS = tokens_make()
failed = []
for case in names:
    try:
        run = images_run if case in IMAGES else random_run if case.startswith("random-") else case_run
        run(case, TOKENS)
    except Exception as problem:  # all cases are reported
        failed.append(case)
        print(f"{case}: {str(problem)[:600]}", flush=True)
assert not failed, failed
