"""generate() of the same Llama: eight prompts, 96 new tokens each."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                     tie_word_embeddings=True, max_position_embeddings=4096)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
model.generation_config.pad_token_id = 0
for prompts in range(2):
    ids = torch.randint(3, 128256, (8, 512), device="cuda")
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, min_new_tokens=96, do_sample=False)
