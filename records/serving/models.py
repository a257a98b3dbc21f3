"""Configurations of the models of public.csv, by their publishers' config.json, and a tokenizer: an engine needs no weights of them. Those of own.csv are
quantised, each as its name says; where vLLM looks into the weights' file, that is made, of zeros.

    models.py NAME FOLDER
"""

import json
import sys
from pathlib import Path

QWEN3 = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=151936, head_dim=128, num_key_value_heads=8, max_position_embeddings=40960,
    rope_theta=1000000, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False, torch_dtype="bfloat16", bos_token_id=151643, eos_token_id=151645,
)  # fmt: skip
LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, num_key_value_heads=8, head_dim=128, rope_theta=500000.0,
    rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=128000, eos_token_id=128009,
)  # fmt: skip
LLAMA_70B = LLAMA | dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
LONG = dict(
    max_position_embeddings=131072,
    rope_scaling=dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=8192, rope_type="llama3"),
)
GPT_OSS = dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=201088, hidden_size=2880, intermediate_size=2880, num_attention_heads=64,
    num_key_value_heads=8, head_dim=64, num_experts_per_tok=4, experts_per_token=4, sliding_window=128, max_position_embeddings=131072,
    initial_context_length=4096, rope_theta=150000, rms_norm_eps=1e-5, hidden_act="silu", attention_bias=True, attention_dropout=0.0,
    tie_word_embeddings=False, swiglu_limit=7.0, torch_dtype="bfloat16", eos_token_id=200002, pad_token_id=199999,
    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn", truncate=False),
    quantization_config=dict(
        quant_method="mxfp4",
        modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    ),
)  # fmt: skip


def gpt_oss(layers, experts):
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return GPT_OSS | dict(num_hidden_layers=layers, num_local_experts=experts, layer_types=kinds)


def float8():
    """Of compressed-tensors: weights by channel, activations by token as they come."""
    common = dict(num_bits=8, type="float", symmetric=True, group_size=None, block_structure=None, actorder=None, observer_kwargs={})
    weights = common | dict(dynamic=False, strategy="channel", observer="minmax")
    activations = common | dict(dynamic=True, strategy="token", observer=None)
    group = dict(targets=["Linear"], weights=weights, input_activations=activations, output_activations=None)
    return dict(quant_method="compressed-tensors", format="float-quantized", config_groups=dict(group_0=group), ignore=["lm_head"], quantization_status="compressed", kv_cache_scheme=None, global_compression_ratio=None)


MODELS = {
    "Qwen/Qwen3-0.6B": QWEN3 | dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, tie_word_embeddings=True),
    "Qwen/Qwen3-8B": QWEN3 | dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, tie_word_embeddings=False),
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA | LONG | dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": LLAMA_70B | LONG | dict(quantization_config=float8()),
    "TechxGenus/Meta-Llama-3-70B-Instruct-AWQ": LLAMA_70B
    | dict(max_position_embeddings=8192, torch_dtype="float16", quantization_config=dict(quant_method="awq", bits=4, group_size=128, version="gemm", zero_point=True, modules_to_not_convert=None)),
    "openai/gpt-oss-20b": gpt_oss(24, 32),
    "openai/gpt-oss-120b": gpt_oss(36, 128),
    "ibm-granite/granite-4.0-micro": dict(
        architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", vocab_size=100352, hidden_size=2560, intermediate_size=8192,
        shared_intermediate_size=8192, num_hidden_layers=40, layer_types=["attention"] * 40, num_attention_heads=40, num_key_value_heads=8,
        num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope", rope_theta=10000000, max_position_embeddings=131072,
        hidden_act="silu", rms_norm_eps=1e-5, attention_bias=False, attention_multiplier=0.015625, embedding_multiplier=12, logits_scaling=10,
        residual_multiplier=0.22, tie_word_embeddings=True, torch_dtype="bfloat16", mamba_n_heads=128, mamba_d_head=40, mamba_d_state=256,
        mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1, mamba_chunk_size=256, mamba_conv_bias=True, mamba_proj_bias=False,
        bos_token_id=100257, eos_token_id=100257, pad_token_id=100256,
    ),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": dict(
        architectures=["MistralForCausalLM"], model_type="mistral", vocab_size=131072, hidden_size=5120, intermediate_size=32768, num_hidden_layers=40,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rope_theta=1000000000.0, rms_norm_eps=1e-5,
        hidden_act="silu", sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2,
    ),
}  # fmt: skip


# Of Qwen3-0.6B, and what has to be read from a file of four layers.
SMALL, SHORT = MODELS["Qwen/Qwen3-0.6B"], dict(num_hidden_layers=4, tie_word_embeddings=False)
QUANTISED = {
    "awq": dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm", modules_to_not_convert=None),
    "gptq": dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True, lm_head=False, checkpoint_format="gptq"),
    "fp8": dict(quant_method="fp8", activation_scheme="dynamic"),
    "nvfp4": dict(
        quant_method="modelopt", quant_algo="NVFP4", kv_cache_quant_algo=None, group_size=16, exclude_modules=["lm_head"],
        producer=dict(name="modelopt", version="0.29.0"),
    ),
}  # fmt: skip
MODELS |= {f"Qwen3-0.6B-{name}": SMALL | dict(quantization_config=how) for name, how in QUANTISED.items()}
MODELS["Qwen3-4-layers-bitsandbytes"] = SMALL | SHORT
MODELS["llama-4-layers-gguf"] = LLAMA | SHORT | dict(hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=16, head_dim=64, vocab_size=32000, max_position_embeddings=4096)


def write_gptq(config, folder):
    """vLLM looks up here which layers are quantised."""
    import torch
    from safetensors.torch import save_file

    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    names = (f"model.layers.{layer}.{part}.qweight" for layer in range(config["num_hidden_layers"]) for part in parts)
    save_file({name: torch.zeros(1, dtype=torch.int32) for name in names}, folder / "model.safetensors", metadata={"format": "pt"})


def write_all(config, folder):
    """It takes no dummies."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def write_gguf(config, folder):
    import gguf
    import numpy

    width, inner, words, heads = (config[of] for of in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"))
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(words)
    writer.add_file_type(7)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{number}".encode() for number in range(words)])
    writer.add_token_scores([0.0] * words)
    writer.add_token_types([1] * words)
    kind = gguf.GGMLQuantizationType.Q8_0

    def add(name, *shape):
        zeros = numpy.zeros(shape, numpy.float32)
        given = (zeros, None) if len(shape) == 1 else (gguf.quants.quantize(zeros, kind), kind)
        writer.add_tensor(name, given[0], raw_dtype=given[1])

    for name, *shape in (("token_embd", words, width), ("output_norm", width), ("output", words, width)):
        add(f"{name}.weight", *shape)
    square, norms = ("attn_q", "attn_k", "attn_v", "attn_output"), ("attn_norm", "ffn_norm")
    parts = [*((name, width, width) for name in square), ("ffn_gate", inner, width), ("ffn_up", inner, width), ("ffn_down", width, inner), *((name, width) for name in norms)]
    for layer in range(config["num_hidden_layers"]):
        for name, *shape in parts:
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WEIGHTS = {"gptq": write_gptq, "bitsandbytes": write_all, "gguf": write_gguf}


def make(name, folder):
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name], indent=1))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = "<|endoftext|>"
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    WEIGHTS.get(name.rsplit("-", 1)[-1], lambda *_: None)(MODELS[name], folder)


if __name__ == "__main__":
    make(*sys.argv[1:])
