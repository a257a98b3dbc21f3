"""Scores of long texts by a Llama of 1.2 billion weights in bf16: 16384 tokens at a time, their mean loss."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                     tie_word_embeddings=True, max_position_embeddings=32768)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
total = 0.0
with torch.no_grad():
    for text in range(8):
        ids = torch.randint(3, 128256, (1, 16384), device="cuda")
        total += model(ids, labels=ids, use_cache=False).loss.item()
print(total)
