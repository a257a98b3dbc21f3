"""Serves a model with vLLM and CUDA graphs, without torch.compile unless asked for: a configuration, no weights, no tokenizer.

    vllm_serve.py qwen3|gdn [compiled]
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams

TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
MODELS = {
    # Qwen3 0.6B.
    "qwen3": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960, rope_theta=1000000,
        rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu", attention_bias=False,
    ),
    # Eight layers of Qwen3-Next, 32 experts of 512: every fourth has attention over the whole context, the others a gated delta net.
    "gdn": dict(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=2048, intermediate_size=5632, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=2, head_dim=256, vocab_size=151936, max_position_embeddings=40960, rope_theta=10000000,
        rms_norm_eps=1e-6, tie_word_embeddings=False, hidden_act="silu", attention_bias=False, partial_rotary_factor=0.25,
        full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_value_head_dim=128, decoder_sparse_step=1, mlp_only_layers=[], num_experts=32, num_experts_per_tok=8,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, norm_topk_prob=True,
    ),
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = MODELS[sys.argv[1]] | TOKENS | dict(torch_dtype="bfloat16")
        (Path(folder) / "config.json").write_text(json.dumps(model))
        engine = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=8192,
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            compilation_config={} if "compiled" in sys.argv else {"mode": 0, "cudagraph_mode": "FULL"},
        )
        engine.generate({"prompt_token_ids": [3] * 256}, SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False))
